"""Keeps only the last steps of a buffer that a loop stores step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import Any, final

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.prover import Prover
from minitvm.arith.scopes import ScopedMutator, prover_of
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, BufferLoad, BufferRef, PrimExpr, const_int
from minitvm.tir.functor import Mutator, contains, find, rebuild, replace_buffers
from minitvm.tir.stmt import BufferStore, ForKind, PrimFunc, Stmt, with_body


def fold_storage(func: PrimFunc) -> PrimFunc:
    """Lets a buffer keep as many steps as are read later, if a serial loop stores one step in each
    iteration.

    Before::

        T = allocate(float32[100, n])
        for i in range(n):
            T[0, i] = A[i]
        for t in range(1, 100):
            for i in range(n):
                T[t, i] = T[t - 1, n - 1 - i] + 1.0
        for i in range(n):
            B[i] = T[99, i]

    After::

        T = allocate(float32[2, n])
        for i in range(n):
            T[0, i] = A[i]
        for t in range(1, 100):
            for i in range(n):
                T[t % 2, i] = T[(t - 1) % 2, n - 1 - i] + 1.0
        for i in range(n):
            B[i] = T[1, i]

    So the steps stay in the caches.
    """
    if not contains(s.Allocate, func.body):
        return func
    loops = {each.loop_var for each in find(s.For, func.body) if each.kind == ForKind.SERIAL}
    stepped: dict[Buffer, set[PrimExpr]] = {}
    for store in find(BufferStore, func.body):
        if len(store.indices) > 1 and store.indices[0] in loops:
            stepped.setdefault(store.buffer, set()).add(store.indices[0])
    if not any(each.buffer in stepped for each in find(s.Allocate, func.body)):
        return func
    return with_body(func, _FoldEach(prover_of(func), stepped).stmt(func.body))


class _FoldEach(ScopedMutator):
    """Folds the steps of buffers; only those in `stepped` are stored step by step, each by loops
    over some variables."""

    changes = (s.Allocate,)

    def __init__(self, prover: Prover, stepped: Mapping[Buffer, Set[PrimExpr]]) -> None:
        super().__init__(prover)
        self._stepped = stepped

    def visit_Allocate(self, node: s.Allocate) -> Stmt:
        counted = self._stepped.get(node.buffer)
        steps = _steps_of(node, counted) if counted else None
        made = None if steps is None else _Fold(self._prover, steps).folded(node)
        return self.descend(made or node)


@final
@record()
class _Steps:
    """The steps of a buffer: the loop that stores them, and the number of those that are kept."""

    buffer: Buffer
    loop: s.For
    kept: int


def _steps_of(node: s.Allocate, counted: Set[PrimExpr]) -> _Steps | None:
    """The steps of a buffer that loops over the variables `counted` store; None where no loop
    stores them one by one and reads others at constant distances, or all are kept."""
    buffer = node.buffer
    if len(buffer.shape) < 2 or buffer.strides:
        return None
    in_order = (x for x in _in_order(node.body) if isinstance(x, s.For) and x.loop_var in counted)
    loops = [x for x in in_order if _stores_steps(x, buffer)]
    if not loops or any(each.buffer is buffer for each in find(BufferRef, node.body)):
        return None
    loop = loops[-1]  # earlier ones store the first steps
    first, steps, back = const_int(loop.min), const_int(buffer.shape[0]), 0
    for each in _accesses(loop.body, buffer):
        distance = const_int(Analyzer().simplify(loop.loop_var - each.indices[0]))
        if distance is None or distance < 0 or (distance and isinstance(each, BufferStore)):
            return None
        back = max(back, distance)
    kept = None if first is None else max(first, back + 1)
    if kept is None or (steps is not None and kept >= steps):
        return None
    return _Steps(buffer, loop, kept)


def _in_order(body: Stmt) -> Iterator[Stmt]:
    """The statements of `body` that run one after the other, each once."""
    pending = [body]
    while pending:
        match pending.pop():
            case s.SeqStmt(seq):
                pending += seq[::-1]
            case s.Allocate() as allocation:
                pending.append(allocation.body)
            case statement:
                yield statement


def _stores_steps(loop: s.For, buffer: Buffer) -> bool:
    return loop.kind == ForKind.SERIAL and any(
        isinstance(each, BufferStore) and each.indices[0] is loop.loop_var
        for each in _accesses(loop.body, buffer)
    )


def _accesses(body: Stmt, buffer: Buffer) -> Iterator[BufferLoad | BufferStore]:
    return (each for each in find((BufferLoad, BufferStore), body) if each.buffer is buffer)


class _Fold(ScopedMutator):
    """Folds the steps of one buffer, in the order in which the statements run."""

    def __init__(self, prover: Prover, steps: _Steps) -> None:
        super().__init__(prover)
        self._steps = steps
        self._at = self._before
        self._fails = False

    def folded(self, node: s.Allocate) -> Stmt | None:
        """The allocation of fewer steps; None where a step is accessed that may not be kept."""
        body, buffer = self.stmt(node.body), node.buffer
        if self._fails:
            return None
        shape = e.const(self._steps.kept, buffer.shape[0].dtype), *buffer.shape[1:]
        own = replace(buffer, shape=shape)
        return s.Allocate(own, replace_buffers(body, {buffer: own}))

    def expr(self, node: PrimExpr) -> PrimExpr:
        return node if self._fails else Mutator.expr(self, node)

    def stmt(self, node: Stmt) -> Stmt:
        return node if self._fails else super().stmt(node)

    def visit_For(self, node: s.For) -> Stmt:
        if node is not self._steps.loop:
            return super().visit_For(node)
        self._at = self._during
        made = super().visit_For(node)
        self._at, self._made = self._behind, {}
        return made

    def _access(self, node: Any) -> Any:
        made = self.descend(node)
        if node.buffer is not self._steps.buffer:
            return made
        return rebuild(made, {"indices": (self._at(made), *made.indices[1:])})

    visit_BufferLoad = visit_BufferStore = _access

    def _before(self, node: BufferLoad | BufferStore) -> PrimExpr:
        """The place of a step before the loop runs: the steps that aren't folded."""
        return self._proved(node.indices[0] < self._steps.kept, node.indices[0])

    def _during(self, node: BufferLoad | BufferStore) -> PrimExpr:
        return e.floormod(node.indices[0], self._steps.kept)

    def _behind(self, node: BufferLoad | BufferStore) -> PrimExpr:
        loop, kept, step = self._steps.loop, self._steps.kept, node.indices[0]
        self._fails = self._fails or isinstance(node, BufferStore)
        place = Analyzer().simplify(e.floormod(step, kept))
        return self._proved(step + kept >= loop.min + loop.extent, place)

    def _proved(self, condition: PrimExpr, place: PrimExpr) -> PrimExpr:
        self._fails = self._fails or not self._prover.can_prove(condition)
        return place
