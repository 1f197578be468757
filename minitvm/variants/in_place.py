"""The variant of a program whose output is the array of an input, and the proof that it is
right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import product
from typing import final

from minitvm.arith.accesses import Access, Accesses, Place, meeting, one_round
from minitvm.arith.atoms import structural_key
from minitvm.arith.effects import may_be_one_array, written_buffers, written_parameters
from minitvm.arith.linear import Affine, less
from minitvm.arith.prover import Prover
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, BufferLoad, BufferRef, Call, PrimExpr, Var
from minitvm.tir.functor import Mutator, replace_buffers, walk_once
from minitvm.tir.stmt import BufferStore, PrimFunc, Stmt, with_body


def run_in_place(func: PrimFunc, pairs: frozenset[tuple[int, int]]) -> PrimFunc:
    """`func` for outputs that are the same arrays as inputs. `pairs` are positions of parameters
    for which :func:`can_run_in_place` holds. Accesses to the input become accesses to the output.

    Before::

        def f(X: float32[n], Y: float32[n]):
            for i in range(n):
                Y[i] = X[i] * 2.0

    After::

        def f(X: float32[n], Y: float32[n]):  # attribute in_place = {(1, 0)}
            for i in range(n):
                Y[i] = Y[i] * 2.0
    """
    if pairs:
        func = func.attrs.form_in_place or func
    same = {_parameter(func, before): _parameter(func, output) for output, before in pairs}
    body = replace_buffers(_Known(same).stmt(func.body), same)
    return PrimFunc(
        func.params, body, func.buffer_map, func.name, replace(func.attrs, in_place=pairs)
    )


def with_others_apart(func: PrimFunc) -> PrimFunc:
    """`func` for calls in which no output is the array of an input beside the pairs of its
    attribute ``in_place``: a call runs another variant for others, or refuses them."""
    written = frozenset(buffer.data for buffer in written_parameters(func))
    return with_body(func, _Known({}, written).stmt(func.body))


def can_run_in_place(func: PrimFunc, output: int, before: int) -> bool:
    """Whether lowered loop IR gives the same results when the parameter at position `output`, which
    it writes, is the same array as the parameter at `before`, which it reads.

    It does if every load of an element comes before the store to it, in every order in which the
    program may run. If no loop is around both the store and the load, the text gives their order.
    In loops around both, the store may belong to an earlier iteration of the outermost loop whose
    iterations differ; then it comes first, in any order of the text, and the two must not be at one
    element. Without a proof of this the answer is no.
    """
    func = func.attrs.form_in_place or func
    source, target = _parameter(func, before), _parameter(func, output)
    if not may_be_one_array(func, source, target):
        return False
    func = with_body(func, _Known({source: target}).stmt(func.body))
    if _escape(func, source, target):
        return False
    accesses = _Accesses(func, source, target)
    accesses.collect(func.body, Place())
    numbered = list(_numbered(accesses.found))
    loads = [each for each in numbered if not each[1].is_store]
    stores = [each for each in numbered if each[1].is_store]
    pairs = sorted(product(loads, stores), key=lambda pair: pair[0][0] + pair[1][0])
    prover = Prover()
    return not any(_may_precede(prover, store, load) for (_, load), (_, store) in pairs)


def needs_form_in_place(func: PrimFunc) -> bool:
    """Whether an output and an input of different declared layouts may be one array. Each element
    then has the same place in both, but to the loops it is a transpose, which is computed in
    blocks."""
    written = written_parameters(func)
    return any(
        source.layout != target.layout and may_be_one_array(func, source, target)
        for target in written
        for source in func.buffer_map.values()
    )


def with_form_in_place(func: PrimFunc, form: PrimFunc) -> PrimFunc:
    """`func` with the form `form` for calls in place."""
    return replace(func, attrs=replace(func.attrs, form_in_place=form))


def _parameter(func: PrimFunc, position: int) -> Buffer:
    return func.buffer_map[func.params[position]]


@final
class _Known(Mutator):
    """Decides whether parameters are apart that are one array, and those that are `apart` from all
    others."""

    def __init__(self, same: Mapping[Buffer, Buffer], apart: Set[Var] = frozenset()) -> None:
        super().__init__()
        self._same = {frozenset((a.data, b.data)) for a, b in same.items()}
        self._apart = apart

    def visit_Call(self, node: Call) -> PrimExpr:
        if node.op != "are_apart":
            return self.descend(node)
        is_same = frozenset(node.args) in self._same
        return e.const(not is_same) if is_same or not self._apart.isdisjoint(node.args) else node

    def visit_And(self, node: e.And) -> PrimExpr:
        made: e.And = self.descend(node)
        return e.logical_and(made.a, made.b)

    def visit_Or(self, node: e.Or) -> PrimExpr:
        made: e.Or = self.descend(node)
        return e.logical_or(made.a, made.b)

    def visit_Select(self, node: e.Select) -> PrimExpr:
        made: e.Select = self.descend(node)
        known = e.const_int(made.condition)
        return made if known is None else made.true_value if known else made.false_value

    def visit_IfThenElse(self, node: s.IfThenElse) -> Stmt:
        made: s.IfThenElse = self.descend(node)
        known = e.const_int(made.condition)
        chosen = made.then_case if known else made.else_case
        return made if known is None else chosen or s.seq()


def _escape(func: PrimFunc, source: Buffer, target: Buffer) -> bool:
    """Whether the memory is accessed other than by loads and stores of the buffer in a known order:
    through an argument of a call, under another name, or in a region of several parallel loops."""
    memory = {source.data: source, target.data: target}
    for node in walk_once(func.body):
        match node:
            case BufferRef(buffer) if buffer.data in memory:
                return True
            case BufferLoad(buffer) | BufferStore(buffer) if buffer.data in memory:
                if memory[buffer.data] is not buffer:
                    return True
                if buffer is source and isinstance(node, BufferStore):
                    return True
            case Var() if node in memory:
                return True
            case s.AttrStmt(attr_key="pragma_parallel_launch_point"):
                return True
    return False


# -- Order of execution ----------------------------------------------------------------------------


@final
class _Accesses(Accesses):
    """The loads of one buffer and the stores of another."""

    def __init__(self, func: PrimFunc, source: Buffer, target: Buffer) -> None:
        written = {buffer.data for buffer in written_buffers(func.body)}
        super().__init__(frozenset(written | {source.data, target.data}))
        self._source = source
        self._target = target

    def concerns(self, node: BufferLoad | BufferStore) -> bool:
        return node.buffer is (self._source if isinstance(node, BufferLoad) else self._target)


def _numbered(accesses: Sequence[Access]) -> Iterator[tuple[int, Access]]:
    """Each access with its number among the accesses of its kind in the same loops. Among the
    copies of an unrolled body, the first ones are compared first, since the others seldom
    decide."""
    before: Counter[tuple[object, ...]] = Counter()
    for each in accesses:
        has_lanes = any(index.dtype.lanes > 1 for index in each.node.indices)
        around = each.loops[:-1] if has_lanes else each.loops  # the last loop is over its own lanes
        key = each.is_store, *map(id, around)
        yield before[key], each
        before[key] += 1


def _may_precede(prover: Prover, store: Access, load: Access) -> bool:
    """Whether `store` may be done at an element before `load` is."""
    if _are_in_other_versions(store, load):
        return False
    common = 0
    for ours, theirs in zip(store.loops, load.loops, strict=False):
        if ours is not theirs:
            break
        common += 1
    for depth in range(common):  # the outermost loop whose iterations differ
        if _may_meet(prover, store, load, depth, differ=True):
            return True
    return store.position < load.position and _may_meet(prover, store, load, common, differ=False)


def _are_in_other_versions(store: Access, load: Access) -> bool:
    """Whether no call does both: a condition that is the same throughout a call holds for one of
    them and fails for the other, as that of a version does."""
    running = {loop.var for each in (store, load) for loop in each.loops}
    holding, failing = set[Hashable](), set[Hashable]()
    for each in (store, load):
        for condition in each.conditions:
            if running.isdisjoint(walk_once(condition)):
                is_negated = isinstance(condition, e.Not)
                inside = condition.a if isinstance(condition, e.Not) else condition
                (failing if is_negated else holding).add(structural_key(inside))
    return not holding.isdisjoint(failing)


def _may_meet(prover: Prover, store: Access, load: Access, depth: int, *, differ: bool) -> bool:
    """Whether both may be at one element in the same iterations of the first `depth` common loops.
    If they `differ`, the iterations of the next loop are different ones, that of `store` first."""
    with prover.scope():
        outside = one_round(prover, load.loops[:depth], (), {})
        ours, theirs = (
            one_round(prover, each.loops[depth:], each.conditions, outside)
            for each in (store, load)
        )
        goal: list[Affine] = []
        if store.is_known and load.is_known:
            goal = meeting(prover, store, ours, load, theirs)
        loop = load.loops[depth] if differ else None
        if loop is None or loop.var is None:
            return prover.is_possible(goal)
        a, b = (prover.affine(each[loop.var]) for each in (ours, theirs))
        if prover.is_possible([*goal, less(a, b)]):
            return True
        return not loop.is_ordered and prover.is_possible([*goal, less(b, a)])
