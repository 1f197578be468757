"""Prefetches the elements that a later iteration will read or write."""

from __future__ import annotations

from minitvm.arith.accesses import neighbours
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

    Raises
    ------
    CompileError
        When the attribute is not around a loop.
    """
    data = {each.var for each in find((s.LetStmt, e.Let), func.body)}
    own = {each.buffer for each in find(s.Allocate, func.body)}
    return with_body(func, _Inject(data, own).stmt(func.body))


class _Inject(Mutator):
    def __init__(self, data: set[Var], own: set[Buffer]) -> None:
        super().__init__()
        self._data = data
        self._own = own

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        made: s.AttrStmt = self.descend(node)
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
        requests = _Requests(buffer, self._data, buffer in self._own, node.loop_var)
        requests.gather(node.body, ())
        var, made = node.loop_var, requests.made or requests.along
        ahead = substitute(seq(*made), {var: var + e.cast(var.dtype, offset)})
        body = seq(_Inside().stmt(ahead), node.body)
        return For(var, node.min, node.extent, node.kind, body, node.annotations)


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
