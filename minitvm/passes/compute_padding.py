"""Padding computed like everything else, where nothing keeps it from being."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from minitvm import expr as e
from minitvm import stmt as s
from minitvm.arith.atoms import is_pure
from minitvm.arith.prover import Prover
from minitvm.expr import Buffer, BufferLoad, PrimExpr
from minitvm.functor import Mutator, walk_once
from minitvm.op import is_likely
from minitvm.stmt import PrimFunc, Stmt, with_body

_DIVISIONS = (e.Div, e.Mod, e.FloorDiv, e.FloorMod)


def compute_padding(func: PrimFunc) -> PrimFunc:
    """A guard that only keeps padding from being computed goes, if all that is read without it is
    there.

    Before, where `T` has 32 elements a row, and `S` is padded to 32::

        for j in range(32):
            with attr(S, "padded_buffer", 1):
                if likely(jo * 32 + j < n):
                    S[j] = S[j] + T[k, j]

    After::

        for j in range(32):
            with attr(S, "padded_buffer", 1):
                S[j] = S[j] + T[k, j]

    So a tile at the edge runs the same code as all others; nothing that counts reads what is
    computed there. What is read has to be written for that: a buffer whose own padding is left out
    keeps the guards of those who read it.
    """
    return with_body(func, _Compute(func).stmt(func.body))


class _Compute(Mutator):
    def __init__(self, func: PrimFunc) -> None:
        super().__init__()
        self._prover = Prover()
        self._left_out: set[Buffer] = (
            set()
        )  # of these, guards keep some elements from being written
        for buffer in func.buffer_map.values():
            for size in buffer.shape:
                self._prover.bind_size(size)

    def expr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_For(self, node: s.For) -> Stmt:
        with self._prover.scope():
            self._prover.bind_loop(node.loop_var, node.min, node.extent)
            return self.descend(node)  # type: ignore[no-any-return]  # a For again

    def visit_LetStmt(self, node: s.LetStmt) -> Stmt:
        with self._prover.scope():
            self._prover.bind(node.var, node.value)
            return self.descend(node)  # type: ignore[no-any-return]  # a LetStmt again

    def visit_IfThenElse(self, node: s.IfThenElse) -> Stmt:
        if is_likely(node.condition):
            stores = (each for each in walk_once(node) if isinstance(each, s.BufferStore))
            self._left_out.update(store.buffer for store in stores)
        return self.descend(node)  # type: ignore[no-any-return]  # an IfThenElse again

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        if node.attr_key != "padded_buffer":
            return self.descend(node)  # type: ignore[no-any-return]  # an AttrStmt again
        guards, store = _guards(node.body)
        if not guards or not isinstance(store, s.BufferStore) or not _is_harmless(store.value):
            return cast(Stmt, self.descend(node))
        kept = list(guards)
        for guard in guards:
            others = [each for each in kept if each is not guard]
            if self._is_there(store, others):
                kept = others
        if kept:
            self._left_out.add(store.buffer)
        if len(kept) == len(guards):
            return node
        body: Stmt = store
        for guard in reversed(kept):
            body = s.IfThenElse(guard, body)
        return s.AttrStmt(node.node, node.attr_key, node.value, body)

    def _is_there(self, store: s.BufferStore, guards: Sequence[PrimExpr]) -> bool:
        """Whether all that is read and written is inside of its buffer where `guards` hold, and
        what is read is written."""
        places = [(store.buffer, store.indices)]
        loads = [each for each in walk_once(store.value) if isinstance(each, BufferLoad)]
        if any(load.buffer in self._left_out for load in loads):
            return False
        places += [(load.buffer, load.indices) for load in loads]
        with self._prover.scope():
            for guard in guards:
                self._prover.assume(guard)
            rows = []
            for buffer, indices in places:
                for index, extent in zip(indices, buffer.shape, strict=True):
                    at = self._prover.affine(index)
                    rows += [at, self._prover.affine(extent) - at - 1]
            return self._prover.proves(*rows)


def _guards(node: Stmt) -> tuple[list[PrimExpr], Stmt]:
    """The ``likely`` conditions around a statement, and that."""
    found: list[PrimExpr] = []
    while isinstance(node, s.IfThenElse) and node.else_case is None and is_likely(node.condition):
        found.append(node.condition)
        node = node.then_case
    return found, node


def _is_harmless(value: PrimExpr) -> bool:
    """Whether a value can be computed from whatever its operands are."""
    return is_pure(value) and not any(
        isinstance(each, _DIVISIONS) and each.dtype.is_integral and e.const_int(each.b) in (None, 0)
        for each in walk_once(value)
    )
