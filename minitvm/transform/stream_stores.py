"""Stores that bypass the caches, where whole vectors of an output are aligned."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from math import gcd
from typing import final

from minitvm.arith.atoms import structural_key
from minitvm.arith.effects import calls_out, written_parameters
from minitvm.arith.fused_index import joined
from minitvm.runtime.dtype import BOOL, INT64
from minitvm.runtime.host import CACHE_LINE, LINES_COMBINED
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, BufferLoad, BufferRef, PrimExpr, Var
from minitvm.tir.functor import Mutator, children, find, mentions, walk_once
from minitvm.tir.stmt import BufferStore, PrimFunc, Stmt, with_body
from minitvm.tir.structural_equal import structural_equal
from minitvm.transform.widen_indices import widened

PRAGMA = "pragma_nontemporal"
NONTEMPORAL = "nontemporal"
LINES = "nontemporal_lines"
ALIGNMENT = {NONTEMPORAL: 16, LINES: CACHE_LINE}
"""By attribute the bytes to which an output must be aligned."""
_LEAST_BYTES = 16  # of a vector; wider vectors are put together


def stream_stores(func: PrimFunc) -> PrimFunc:
    """Decides when the stores in a loop with ``pragma_nontemporal`` can bypass the caches, and
    profit from it.

    Before::

        # attr pragma_nontemporal = 1048576
        for i in parallel(n):
            for j in range(128):
                T[i, ramp(j * 8, 1, 8)] = A[i, ramp(j * 8, 1, 8)]

    After::

        past_caches = n * 4096 >= 1048576
        for i in parallel(n):
            # attr nontemporal of T = past_caches
            for j in range(128):
                T[i, ramp(j * 8, 1, 8)] = A[i, ramp(j * 8, 1, 8)]

    The value of the pragma is the size in bytes from which on bypassing pays. Code generation emits
    the body of the attribute twice, so the attribute is put around the innermost loops that store
    vectors of the output. Where its value holds, all these vectors begin a multiple of 16 bytes
    behind the begin of the output; code generation checks the alignment of the output itself.
    Stores that don't follow each other in memory, as those of a transpose, must fill a few whole
    lines: the attribute is ``nontemporal_lines`` then, and rows begin with lines. An output that
    the function reads gets no attribute, and neither do stores for which this isn't known.
    """
    has_pragmas = any(map(_is_pragma, find(s.AttrStmt, func.body)))
    return with_body(func, _Pragmas(func).stmt(func.body)) if has_pragmas else func


def _is_pragma(node: s.AttrStmt) -> bool:
    return node.attr_key == PRAGMA


class _Pragmas(Mutator):
    """Replaces pragmas by attributes."""

    def __init__(self, func: PrimFunc) -> None:
        super().__init__()
        read = {
            node.buffer.data
            for node in walk_once(func.body)
            if isinstance(node, BufferLoad | BufferRef)
        }
        known = () if calls_out(func.body) else written_parameters(func)
        self._outputs = {each for each in known if each.data not in read}
        dims = (each for b in func.buffer_map.values() for each in b.shape)
        self._sizes = {each for each in dims if isinstance(each, Var)}

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        if not _is_pragma(node):
            return self.descend(node)
        body = self.stmt(node.body)
        stores = [*find(BufferStore, body)]
        outputs = {each.buffer for each in stores if each.buffer in self._outputs}
        if len(outputs) != 1:
            return body
        (output,) = outputs
        size = reduce(e.multiply, map(widened, output.shape), e.const(output.dtype.itemsize))
        names = {each.var: each.value for each in find(s.LetStmt, body)}
        multiples = _Multiples(names, self._sizes)
        vectors = [
            (store, loops)
            for store, loops in _stores(body, ())
            if store.buffer is output and store.value.dtype.lanes > 1
        ]
        together: dict[tuple[Var, ...], list[BufferStore]] = {}
        for store, loops in vectors:
            together.setdefault(loops, []).append(store)
        in_turn = all(multiples.are_in_turn(*each) for each in together.items())
        if not in_turn and max(map(len, together.values())) > LINES_COMBINED:
            return body
        conditions = [size >= widened(node.value)]
        for store, _ in vectors:
            found = multiples.of_store(store, in_turn=in_turn)
            if found is None:
                return body
            conditions += found
        condition = reduce(e.logical_and, _different(conditions))
        if e.const_int(condition) == 0:
            return body
        key = NONTEMPORAL if in_turn else LINES
        if e.const_int(condition) is not None:
            return _Innermost(output, key, condition).stmt(body)
        flag = Var("past_caches", BOOL)
        return s.LetStmt(flag, condition, _Innermost(output, key, flag).stmt(body))


@final
class _Innermost(Mutator):
    """Puts an attribute around the innermost statements that contain all loops in which vectors of
    `output` are stored, or that store these without loops."""

    def __init__(self, output: Buffer, key: str, value: PrimExpr) -> None:
        super().__init__()
        self._output = output
        self._key = key
        self._value = value

    def stmt(self, node: Stmt) -> Stmt:
        match node:
            case s.For(kind=s.ForKind.PARALLEL) | s.LetStmt() | s.Allocate() | s.IfThenElse():
                is_here = False
            case s.For():
                is_here = self._stores(node.body)
            case s.SeqStmt():
                is_here = sum(map(self._stores, node.seq)) > 1
            case _:
                is_here = self._stores(node)
        if is_here:
            return s.AttrStmt(self._output, self._key, self._value, node)
        return super().stmt(node)

    def _stores(self, node: Stmt) -> bool:
        """Whether a statement stores vectors of the output without a loop, except for unrolled
        ones."""
        if isinstance(node, BufferStore):
            return node.buffer is self._output and node.value.dtype.lanes > 1
        if isinstance(node, s.For) and node.kind != s.ForKind.UNROLLED:
            return False
        return any(isinstance(each, Stmt) and self._stores(each) for each in children(node))


def _different(conditions: Iterable[PrimExpr]) -> Iterable[PrimExpr]:
    """Conditions, each once."""
    return {structural_key(each): each for each in conditions}.values()


def _stores(node: Stmt, loops: tuple[Var, ...]) -> Iterator[tuple[BufferStore, tuple[Var, ...]]]:
    """The stores in a statement, each with the variables of the loops around it."""
    if isinstance(node, BufferStore):
        yield node, loops
    if isinstance(node, s.For):
        loops = (*loops, node.loop_var)
    for child in children(node):
        if isinstance(child, Stmt):
            yield from _stores(child, loops)


@final
class _Multiples:
    """Finds the conditions under which indices are multiples of numbers. `names` have known values;
    the values of `sizes` are known only at a call."""

    def __init__(self, names: Mapping[Var, PrimExpr], sizes: Container[Var]) -> None:
        self._names = names
        self._sizes = sizes

    def are_in_turn(self, loops: Sequence[Var], stores: Sequence[BufferStore]) -> bool:
        """Whether stores in some loops go through memory in order: no inner loop steps along an
        earlier dimension than an outer loop."""
        first, *others = stores
        *rows, _ = joined(first.buffer, first.indices)
        for store in others:
            *same, _ = joined(store.buffer, store.indices)
            alike = zip(rows, same, strict=False)
            if len(rows) != len(same) or not all(
                structural_equal(a, b) for (a, _), (b, _) in alike
            ):
                return False  # a line may be joined from more dimensions
        last = [dim for var in loops for dim in self._dims_of(first, var)[-1:]]
        return last == sorted(last)

    def _dims_of(self, store: BufferStore, var: Var) -> list[int]:
        """The dimensions along which a store moves with a variable."""
        pairs = joined(store.buffer, store.indices)
        return [dim for index, dim in pairs if self._depends(index, var)]

    def _depends(self, node: PrimExpr, var: Var) -> bool:
        return mentions(var, node) or any(
            self._depends(self._names[each], var)
            for each in walk_once(node)
            if isinstance(each, Var) and each in self._names
        )

    def of_store(self, store: BufferStore, *, in_turn: bool) -> list[PrimExpr] | None:
        """The conditions under which a vector, or its line, begins at a multiple of its own size;
        None if there are none that a call can check."""
        buffer, lanes = store.buffer, store.value.dtype.lanes
        itemsize = buffer.dtype.itemsize
        step = _LEAST_BYTES // gcd(_LEAST_BYTES, itemsize)
        if lanes % step or buffer.strides or buffer.auto_broadcast:
            return None
        line = step if in_turn else CACHE_LINE // itemsize
        step = step if in_turn else min(lanes, line)
        found: list[PrimExpr] = []
        for index, dim in joined(buffer, store.indices):
            below = reduce(e.multiply, map(widened, buffer.shape[dim + 1 :]), e.const(1, INT64))
            is_last = all(e.const_int(extent) == 1 for extent in buffer.shape[dim + 1 :])
            first = index
            if isinstance(index, e.Ramp):
                if not is_last or e.const_int(index.stride) != 1:
                    return None
                first = index.base
            if first.dtype.lanes > 1:
                return None
            number = step if is_last else line
            conditions = self._of(e.cast(INT64, first) * below, number)
            if conditions is None:
                return None
            found += conditions
        return found

    def _of(self, node: PrimExpr, number: int) -> list[PrimExpr] | None:
        """The conditions under which `node` is a multiple of `number`; None if there are none that
        a call can check."""
        known = e.const_int(node)
        if number == 1 or (known is not None and known % number == 0):
            return []
        match node:
            case e.Cast(value=inner):
                return self._of(inner, number)
            case e.Add(a, b) | e.Sub(a, b) | e.Min(a, b) | e.Max(a, b):
                first, second = self._of(a, number), self._of(b, number)
                return None if first is None or second is None else [*first, *second]
            case e.Mul(a, b):
                factor = e.const_int(b)
                if factor is not None:
                    return self._of(a, number // gcd(number, factor))
                second = self._of(b, number)
                return self._of(a, number) if second is None else second
            case Var() if node in self._names:
                return self._of(self._names[node], number)
            case Var() if node in self._sizes:
                return [e.equal(e.floormod(widened(node), number), 0)]
        return None
