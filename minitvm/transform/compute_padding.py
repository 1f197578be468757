"""Removes guards from padding: computes it like other elements, where this is harmless."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import final

from minitvm.arith.atoms import is_pure
from minitvm.arith.effects import loads
from minitvm.arith.guards import conditions_around, form_of, guards_around, is_symbolic, under
from minitvm.arith.linear import Affine
from minitvm.arith.prover import Prover
from minitvm.arith.scopes import ScopedMutator, prover_of
from minitvm.arith.simplify import Simplifier
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, BufferLoad, Call, PrimExpr, Var, const
from minitvm.tir.functor import (
    Mutator,
    children,
    contains,
    find,
    free_vars,
    mentions,
    substitute,
    walk_once,
    with_fields,
)
from minitvm.tir.op import is_likely
from minitvm.tir.stmt import ForKind, PrimFunc, Stmt, with_body
from minitvm.tir.structural_equal import structural_equal

_DIVISIONS = (e.Div, e.Mod, e.FloorDiv, e.FloorMod)


def compute_padding(func: PrimFunc) -> PrimFunc:
    """Removes a guard that only keeps padding from being computed, if all elements that are read
    without it exist.

    Before, where `T` has 32 elements a row, and `S` is padded to 32::

        for j in range(32):
            with attr(S, "padded_buffer", 1):
                if likely(jo * 32 + j < n):
                    S[j] = S[j] + T[k, j]

    After::

        for j in range(32):
            with attr(S, "padded_buffer", 1):
                S[j] = S[j] + T[k, j]

    So a tile at the edge runs the same code as all others. No element of the result depends on
    padding. The elements that are read must have been written: if the padding of a buffer isn't
    computed, the guards of its reads are kept.

    If the guard of unrolled rows has a symbolic size, the last row is read in place of rows that
    don't exist::

        if likely(io * 8 + i < m): S[i, j] = S[i, j] + A[io * 8 + i, k] * T[k, j]

    becomes ``S[i, j] = S[i, j] + A[min(io * 8 + i, m - 1), k] * T[k, j]``. The same holds for rows
    of an intermediate buffer that aren't written. Conditions of the program itself stay around the
    store.
    """
    padded = (each for each in find(s.AttrStmt, func.body) if each.attr_key == "padded_buffer")
    if not any(contains(s.IfThenElse, each) for each in padded):
        return func
    return with_body(func, _Compute(prover_of(func)).stmt(func.body))


def _digits_of(variables: Iterable[Var], index: PrimExpr) -> int:
    """The number of quotients and remainders in an index that depend on some variables."""
    found = find((e.FloorDiv, e.FloorMod), index)
    return sum(any(mentions(var, node.a) for var in variables) for node in found)


class _Compute(ScopedMutator):
    def __init__(self, prover: Prover) -> None:
        super().__init__(prover)
        # Buffers with elements that guards leave unwritten.
        self._left_out: set[Buffer] = set()
        self._written_out: set[Var] = set()
        self._lanes: set[Var] = set()
        self._parts: set[Var] = set()  # loops that guards may mostly exclude

    def visit_For(self, node: s.For) -> Stmt:
        if node.kind == ForKind.UNROLLED:
            self._written_out.add(node.loop_var)
        elif node.kind == ForKind.VECTORIZED:
            self._lanes.add(node.loop_var)
        elif e.const_int(node.extent) is not None:
            self._parts.add(node.loop_var)
        return super().visit_For(node)

    def visit_IfThenElse(self, node: s.IfThenElse) -> Stmt:
        if is_likely(node.condition):
            stores = find(s.BufferStore, node)
            self._left_out.update(store.buffer for store in stores)
        return super().visit_IfThenElse(node)

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        if node.attr_key != "padded_buffer":
            return self.descend(node)
        guards, inner = guards_around(node.body)
        conditions, store = conditions_around(inner)
        if not guards or not isinstance(store, s.BufferStore):
            return self.descend(node)
        if not all(map(_is_harmless, (store.value, *conditions))) or loads(*conditions):
            return self.descend(node)
        kept, made = list(guards), store
        for guard in guards:
            if conditions and not self._is_symbolic(guard):
                continue  # a loop around it gets a main part without the guard
            others = [each for each in kept if each is not guard]
            found = self._under(made, [*others, *conditions], guard)
            if found is not None:
                kept, made = others, found
        if kept:
            self._left_out.add(store.buffer)
        if len(kept) == len(guards):
            return node
        likely = [Call(guard.dtype, "likely", (guard,)) for guard in kept]
        return with_fields(node, body=under([*likely, *conditions], made))

    def _under(
        self, store: s.BufferStore, guards: Sequence[PrimExpr], removed: PrimExpr
    ) -> s.BufferStore | None:
        """`store`, or a store in its place, that is safe where only `guards` hold: it writes inside
        of its buffer, and reads elements that exist. None if there is no such store. Elements that
        don't depend on the variables of a further guard, `removed`, are read where that guard holds
        as well."""
        loads, variables = list(_loads(store.value, ())), set(free_vars(removed))
        if any(conditions for _, conditions in loads) and not variables.isdisjoint(self._parts):
            return None  # the guard saves work
        if self._ends_a_line(removed, [index for load, _ in loads for index in load.indices]):
            return None
        rows: dict[Var, PrimExpr] = {}
        moved: set[BufferLoad] = set()
        for load, _ in loads:
            used = set(find(Var, *load.indices))
            if _is_replaced(load, store):
                continue  # an element of the padding depends on itself alone
            if load.buffer in self._left_out and not variables.isdisjoint(used):
                rows = rows or self._last_rows(removed)
                moved.add(load)
                if rows.keys().isdisjoint(used):
                    return None
        with self._prover.scope():
            for guard in guards:
                self._prover.assume(guard)
            if not all(map(self._is_inside, store.indices, store.buffer.shape)):
                return None
            replaced: dict[BufferLoad, BufferLoad] = {}
            for load, conditions in loads:
                made = self._readable(load, conditions)
                if made is None:
                    return None
                if load in moved:
                    places = tuple([substitute(each, rows) for each in load.indices])
                    made = BufferLoad(load.buffer, places) if made is load else None
                if made is None:
                    return None
                if made is not load:
                    replaced[load] = made
        if not replaced:
            return store
        return s.BufferStore(store.buffer, _Replace(replaced).expr(store.value), store.indices)

    def _ends_a_line(self, guard: PrimExpr, indices: Sequence[PrimExpr]) -> bool:
        """Whether the lanes of a vector are neighbours because of a guard: behind it, a quotient or
        a remainder in an index goes on from the beginning."""
        lanes = self._lanes.intersection(free_vars(guard))
        if not any(_digits_of(lanes, index) for index in indices):
            return False
        everywhere = [Simplifier(self._prover).expr(index) for index in indices]
        with self._prover.scope():
            self._prover.assume(guard)
            inside = [Simplifier(self._prover).expr(index) for index in indices]
        pairs = zip(everywhere, inside, strict=True)
        return any(_digits_of(lanes, b) < _digits_of(lanes, a) for a, b in pairs)

    def _readable(self, load: BufferLoad, conditions: Sequence[PrimExpr]) -> BufferLoad | None:
        """`load`, or a load in its place, of an element that exists where `conditions` hold."""
        with self._prover.scope():
            for condition in conditions:
                self._prover.assume(condition)
            found = list(map(self._moved_inside, load.indices, load.buffer.shape))
        indices = tuple(each for each in found if each is not None)
        if len(indices) < len(found):
            return None
        is_same = all(map(operator.is_, indices, load.indices))
        return load if is_same else BufferLoad(load.buffer, indices)

    def _is_symbolic(self, guard: PrimExpr) -> bool:
        form = form_of(self._prover, guard)
        return form is not None and is_symbolic(self._prover, form)

    def _last_rows(self, guard: PrimExpr) -> dict[Var, PrimExpr]:
        """For the variable of an unrolled loop over rows, the row itself where a guard holds, and
        the last row for which it does elsewhere; nothing for other loops and guards."""
        form = form_of(self._prover, guard)
        if form is None or not is_symbolic(self._prover, form):
            return {}
        rows = [each for each in form.terms if each in self._written_out]
        if len(rows) != 1 or form.terms[rows[0]] != -1:
            return {}
        (var,) = rows
        assert isinstance(var, Var)
        last = form + Affine({var: 1})
        if mentions(var, *last.terms) or not self._prover.proves(last):
            return {}
        return {var: e.minimum(var, e.cast(var.dtype, self._prover.expression(last, var.dtype)))}

    def _is_inside(self, index: PrimExpr, extent: PrimExpr) -> bool:
        at = self._prover.affine(index)
        return self._prover.proves(at, self._prover.affine(extent) - at - 1)

    def _moved_inside(self, index: PrimExpr, extent: PrimExpr) -> PrimExpr | None:
        """`index` if it is surely inside. If it may exceed a symbolic extent, ``min(index, extent -
        1)``, provided that it differs only between the copies of an unrolled loop and not between
        lanes, so that the minimum costs nothing. Otherwise None."""
        if self._is_inside(index, extent):
            return index
        used = set(free_vars(index))
        if e.const_int(extent) is not None or not self._written_out & used or self._lanes & used:
            return None
        if not self._prover.proves(self._prover.affine(index), self._prover.affine(extent) - 1):
            return None
        dtype = max(index.dtype, extent.dtype, key=lambda each: each.bits)
        return e.minimum(e.cast(dtype, index), e.cast(dtype, extent) - const(1, dtype))


@final
class _Replace(Mutator):
    """Replaces loads."""

    def __init__(self, loads: Mapping[BufferLoad, BufferLoad]) -> None:
        super().__init__()
        self._loads = loads

    def visit_BufferLoad(self, node: BufferLoad) -> PrimExpr:
        return self._loads.get(node, node)


def _is_replaced(load: BufferLoad, store: s.BufferStore) -> bool:
    """Whether a store writes to the element that a load reads."""
    if load.buffer is not store.buffer:
        return False
    return all(map(structural_equal, load.indices, store.indices))


def _loads(
    node: PrimExpr,
    conditions: tuple[PrimExpr, ...],
    seen: set[tuple[PrimExpr, tuple[PrimExpr, ...]]] | None = None,
) -> Iterator[tuple[BufferLoad, tuple[PrimExpr, ...]]]:
    """The loads in an expression, each with the conditions under which it is evaluated. Shared
    parts, which were `seen` under the same conditions, are visited once."""
    seen = set() if seen is None else seen
    if (node, conditions) in seen:
        return
    seen.add((node, conditions))
    match node:
        case Call(op="if_then_else", args=(condition, a, b)):
            yield from _loads(condition, conditions, seen)
            yield from _loads(a, (*conditions, condition), seen)
            yield from _loads(b, (*conditions, e.Not(condition)), seen)
            return
        case BufferLoad():
            yield node, conditions
    for child in children(node):
        if isinstance(child, PrimExpr):
            yield from _loads(child, conditions, seen)


def _is_harmless(value: PrimExpr) -> bool:
    """Whether a value can be computed from any operands, garbage included."""
    return is_pure(value) and not any(
        isinstance(each, _DIVISIONS) and each.dtype.is_integral and e.const_int(each.b) in (None, 0)
        for each in walk_once(value)
    )
