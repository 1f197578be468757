"""Prefetches the elements that a later iteration will read or write."""

from __future__ import annotations

from math import prod

from minitvm.arith.accesses import neighbours, without_digits
from minitvm.arith.atoms import structural_key
from minitvm.arith.prover import Prover
from minitvm.arith.simplify import Simplifier
from minitvm.runtime.dtype import INT32, INT64
from minitvm.runtime.errors import CompileError
from minitvm.runtime.host import CACHE_LINE
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, BufferLoad, Call, PrimExpr, Var, const
from minitvm.tir.functor import (
    Mutator,
    children,
    contains,
    find,
    free_vars,
    substitute,
    walk_once,
    with_fields,
)
from minitvm.tir.stmt import Evaluate, For, ForKind, PrimFunc, Stmt, seq, with_body

SCOPE = "prefetch_scope"
SHARES = "prefetch_shares"
_MOST_UNROLLED = 32  # requests: of fewer, a loop's counter takes longer than they do


def inject_prefetch(func: PrimFunc) -> PrimFunc:
    """Turns ``AttrStmt(buffer, "prefetch_scope", offset, loop)`` into requests: each iteration of
    the loop requests the elements of the buffer that the iteration `offset` further on reads or
    writes.

    Before::

        # attr A.prefetch_scope = 2
        for i in range(n):
            for j in range(64):
                B[i, j] = A[i, j]

    After::

        for i in range(n):
            for j in range(4):
                prefetch(A[i + 2, j * 16])
            for j in range(64):
                B[i, j] = A[i, j]

    One request is made for each cache line along the last dimension, and another one for the last
    element, which may lie in a further line. Memory of the function's own begins at a cache line;
    whole lines of it need no such request. Reads that go along a line from one iteration to the
    next are requested only if all do: of ``A[i, k] * A[k, j]`` the second one is, in a loop over k.
    A request changes nothing and never fails, also where it lies outside of the buffer;
    ``prefetch`` does not read its operand. An index may be read from a buffer, as in ``A[I[i, k],
    j]``. It is then read ahead, too: from the next row of that buffer at the end of a row, and from
    the last element at the end of the buffer. Elements at other indices that depend on data are
    left out.

    ``AttrStmt(buffer, "prefetch_shares", j + offset, loop)`` stands inside of the loop over j. Its
    iterations request the elements that the iteration `offset` further on of that loop accesses,
    each an equal share of the rows. Behind the last iteration comes the first one of the next
    iteration of the loop directly around. Shares are made where the numbers of iterations are
    known.

    Before::

        for j in range(4):
            for i in range(2):
                # attr B.prefetch_shares = j + 1
                for k in range(8):
                    for l in range(64):
                        C[j, i] += B[l, j * 16] * A[i, k, l]

    After::

        for j in range(4):
            for i in range(2):
                for k in range(8):
                    for t in unrolled(4):
                        prefetch(B[(i * 8 + k) * 4 + t, (j + 1) * 16])
                    for l in range(64):
                        C[j, i] += B[l, j * 16] * A[i, k, l]

    Raises
    ------
    CompileError
        When the attribute is not around a loop, or shares are not inside of the loop that they
        name.
    """
    data = {each.var for each in find((s.LetStmt, e.Let), func.body)}
    own = {each.buffer for each in find(s.Allocate, func.body)}
    return with_body(func, _Inject(data, own).stmt(func.body))


class _Inject(Mutator):
    def __init__(self, data: set[Var], own: set[Buffer]) -> None:
        super().__init__()
        self._data = data
        self._own = own
        self._around: list[For] = []

    def visit_For(self, node: For) -> Stmt:
        self._around.append(node)
        made: Stmt = self.descend(node)
        self._around.pop()
        return made

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        made: s.AttrStmt = self.descend(node)
        if made.attr_key == SHARES:
            return self._in_shares(made.node, made.value, made.body)
        if made.attr_key != SCOPE:
            return made
        return self._ahead(made.node, made.value, made.body)

    def _ahead(self, buffer: Buffer, offset: PrimExpr, node: Stmt) -> Stmt:
        if isinstance(node, s.AttrStmt):
            body = self._ahead(buffer, offset, node.body)
            return s.AttrStmt(node.node, node.attr_key, node.value, body)
        if not isinstance(node, For):
            raise CompileError(
                f"prefetch of {buffer.name}: expected a loop, found {type(node).__name__}: "
                "prefetch at the variable of a loop of the stage"
            )
        var = node.loop_var
        at = {var: var + e.cast(var.dtype, offset)}
        return self._with_requests(node, substitute(seq(*self._requests_of(buffer, node)), at))

    def _requests_of(self, buffer: Buffer, loop: For) -> list[Stmt]:
        requests = _Requests(buffer, self._data, buffer in self._own, loop.loop_var)
        requests.gather(loop.body, ())
        return requests.made or requests.along

    def _with_requests(self, node: For, requests: Stmt) -> Stmt:
        body = seq(_Inside().stmt(requests), node.body)
        return For(node.loop_var, node.min, node.extent, node.kind, body, node.annotations)

    def _in_shares(self, buffer: Buffer, at: PrimExpr, node: Stmt) -> Stmt:
        """A loop in which each iteration requests a share of the accesses of the loop in `at`."""
        if isinstance(node, s.AttrStmt):
            body = self._in_shares(buffer, at, node.body)
            return s.AttrStmt(node.node, node.attr_key, node.value, body)
        named = [i for i, each in enumerate(self._around) if each.loop_var in _variables(at)]
        if not isinstance(node, For) or not named:
            raise CompileError(
                f"prefetch of {buffer.name}: expected a loop inside of the loop in {at}, found "
                f"{type(node).__name__}"
            )
        place = named[-1]
        loop, inside = self._around[place], [*self._around[place + 1 :], node]
        extents = [e.const_int(each.extent) for each in inside]
        if None in extents:
            return node
        number: PrimExpr = const(0, node.loop_var.dtype)
        for each in inside:
            number = number * each.extent + (each.loop_var - each.min)
        total = prod(each or 0 for each in extents)
        shares = [_share(each, number, total) for each in self._requests_of(buffer, loop)]
        before = self._around[place - 1] if place else None
        made = substitute(seq(*shares), _further_on(loop, before, at))
        return self._with_requests(node, made)


def _share(requests: Stmt, number: PrimExpr, total: int) -> Stmt:
    """The part, of a number, of `total` equal parts of the iterations of loops of requests: of as
    many of the outer loops as have that many iterations."""
    loops, count, body = list[For](), 1, requests
    while isinstance(body, For) and (count < total or not loops):
        size = e.const_int(body.extent)
        if not size:
            return seq()
        loops.append(body)
        count, body = count * size, body.body
    if not loops:
        return seq()
    var = Var("share", number.dtype)
    rest: PrimExpr = e.floordiv(number * count, total) + var
    digits = list[PrimExpr]()
    for each in reversed(loops):
        digit = rest if each is loops[0] else e.floormod(rest, each.extent)
        digits.insert(0, e.cast(each.loop_var.dtype, digit))
        rest = e.floordiv(rest, each.extent)
    values = dict[Var, PrimExpr]()
    for each, digit in zip(loops, digits, strict=True):  # a loop may begin where one around it is
        values[each.loop_var] = substitute(each.min, values) + digit
    each_share = const(-(-count // total), number.dtype)
    body = _OwnLoops().stmt(substitute(body, values))
    return For(var, const(0, number.dtype), each_share, ForKind.UNROLLED, body)


class _OwnLoops(Mutator):
    """Loops get variables of their own: those of a request may be around it."""

    def visit_For(self, node: For) -> Stmt:
        var = Var(node.loop_var.name, node.loop_var.dtype)
        body = substitute(node.body, {node.loop_var: var})
        return with_fields(node, loop_var=var, body=self.stmt(body))


def _further_on(loop: For, around: For | None, at: PrimExpr) -> dict[Var, PrimExpr]:
    """The values of a loop's variable and of that of the loop directly around for the iteration
    `at`, which may be behind the last one."""
    var = loop.loop_var
    if around is None or _inside_of(around) is not loop:
        return {var: at}
    place, outer = at - loop.min, around.loop_var
    return {
        var: loop.min + e.floormod(place, loop.extent),
        outer: outer + e.cast(outer.dtype, e.floordiv(place, loop.extent)),
    }


def _inside_of(loop: For) -> Stmt:
    """The body of a loop, without attributes."""
    body = loop.body
    while isinstance(body, s.AttrStmt):
        body = body.body
    return body


class _Requests:
    """The requests for the elements of a buffer that a statement reads or writes, in a loop over
    `var`; apart from them, those that go `along` a line from one iteration to the next."""

    def __init__(self, buffer: Buffer, data: set[Var], is_own: bool, var: Var) -> None:
        self.made: list[Stmt] = []
        self.along: list[Stmt] = []
        self._var = var
        self._buffer = buffer
        self._data = data
        self._is_own = is_own
        self._seen: set[object] = set()

    def gather(self, node: Stmt, loops: tuple[For, ...]) -> None:
        inside = (*loops, node) if isinstance(node, For) else loops
        if isinstance(node, s.BufferStore) and node.buffer is self._buffer:
            self._request(BufferLoad(node.buffer, node.indices), loops)
        for child in children(node):
            if isinstance(child, Stmt):
                self.gather(child, inside)
                continue
            for each in find(BufferLoad, child):
                if each.buffer is self._buffer:
                    self._request(each, loops)

    def _request(self, load: BufferLoad, loops: tuple[For, ...]) -> None:
        key = structural_key(load.indices)
        if key in self._seen or any(index.dtype.lanes > 1 for index in load.indices):
            return
        self._seen.add(key)
        used: list[For] = []
        needed = _variables(*load.indices)
        for loop in reversed(loops):
            if loop.loop_var in needed:
                used.append(loop)
                needed = needed | _variables(loop.min, loop.extent)
        ranges = [x for loop in used for x in (loop.min, loop.extent)]
        if needed & self._data or any(map(_reads, ranges)):
            return
        if contains(Call, *load.indices):
            return
        body: Stmt = Evaluate(Call(INT32, "prefetch", (load,)))
        for loop in used:
            body = For(loop.loop_var, loop.min, loop.extent, ForKind.SERIAL, body)
        is_along = neighbours(load.buffer, load.indices, self._var) is not None
        requests = self.along if is_along else self.made
        requests.append(self._by_lines(Simplifier(Prover()).stmt(body)))

    def _by_lines(self, body: Stmt) -> Stmt:
        """A request in loops, whose ranges have simplified its indices, with one for each line."""
        loops: list[For] = []
        while isinstance(body, For):
            loops.append(body)
            body = body.body
        assert isinstance(body, Evaluate)
        (load,) = children(body.value)
        assert isinstance(load, BufferLoad)
        if not self._buffer.strides:  # the address is the same
            load = with_fields(load, indices=(*without_digits(load.indices, load.buffer.shape),))
            body = Evaluate(Call(INT32, "prefetch", (load,)))
        for loop in reversed(loops):
            body = self._loop(loop, load, body)
        return body

    def _loop(self, loop: For, load: BufferLoad, body: Stmt) -> Stmt:
        """`body` for each value of a loop, or for one in each cache line."""
        var = loop.loop_var
        count = CACHE_LINE // self._buffer.dtype.itemsize
        if count < 2 or neighbours(load.buffer, load.indices, var) is None:
            return For(var, loop.min, loop.extent, ForKind.SERIAL, body)
        line = const(count, var.dtype)
        lines = e.floordiv(loop.extent + (line - const(1, var.dtype)), line)
        each = substitute(body, {var: loop.min + var * line})
        last = substitute(body, {var: loop.min + loop.extent - 1})
        begin = substitute(load.indices[-1], {var: loop.min})
        sizes = map(e.const_int, (begin, loop.extent, self._buffer.shape[-1]))
        is_short = 0 < (e.const_int(loop.extent) or 0) <= _MOST_UNROLLED * count
        kind = ForKind.UNROLLED if is_short else ForKind.SERIAL
        requests = For(var, const(0, var.dtype), lines, kind, each)
        is_whole = all(size is not None and size % count == 0 for size in sizes)
        return requests if self._is_own and is_whole else seq(requests, last)


class _Inside(Mutator):
    """Reads indices inside of their buffers: from the end of a row on into the next one, and from
    the last element."""

    def visit_Call(self, node: Call) -> PrimExpr:
        if node.op != "prefetch":
            return self.descend(node)
        (load,) = node.args
        assert isinstance(load, BufferLoad)
        indices = tuple(map(self.expr, load.indices))
        return with_fields(node, args=(with_fields(load, indices=indices),))

    def visit_BufferLoad(self, node: BufferLoad) -> PrimExpr:
        made: BufferLoad = self.descend(node)
        shape = [e.cast(INT64, extent) for extent in made.buffer.shape]
        place, size = const(0, INT64), const(1, INT64)
        for index, extent in zip(made.indices, shape, strict=True):
            place, size = place * extent + e.cast(INT64, index), size * extent
        rest: PrimExpr = e.maximum(e.minimum(place, size - 1), const(0, INT64))
        indices: list[PrimExpr] = []
        for extent in reversed(shape[1:]):
            indices.insert(0, e.floormod(rest, extent))
            rest = e.floordiv(rest, extent)
        made = with_fields(made, indices=(rest, *indices) if shape else ())
        if (e.const_int(size) or 0) > 0:
            return made
        nothing = const(0, made.dtype)  # of an empty buffer
        return e.intrinsic("if_then_else", made.dtype, size > 0, made, nothing)


def _reads(node: PrimExpr) -> bool:
    return any(isinstance(each, BufferLoad | Call) for each in walk_once(node))


def _variables(*nodes: PrimExpr) -> set[Var]:
    return {var for node in nodes for var in free_vars(node)}
