"""Proves that the iterations of a loop may run side by side, each in a lane of a vector.

A loop runs iteration by iteration; its vector form runs statement by statement, each for all lanes.
Both give the same result unless two iterations access one element, one of them writes it, and the
vector form swaps the order of the two accesses:

* of two statements in a row, the first runs for all lanes before the second: this swaps an
  earlier lane's second statement with a later lane's first;
* within one store, all lanes are read before any is written, and lanes are written in order;
* inside an inner loop any order is possible, so the lanes must not meet at all.

The loop is refused unless it is proved that no two such accesses are swapped.
"""

from __future__ import annotations

from typing import final

from minitvm.arith.accesses import Access, Accesses, Loop, Place, meeting, one_round
from minitvm.arith.atoms import structural_key
from minitvm.arith.linear import Affine, less
from minitvm.arith.prover import Prover
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, BufferLoad, Call, PrimExpr, Var
from minitvm.tir.functor import walk_once
from minitvm.tir.intrinsics import VECTOR_FOLDS
from minitvm.tir.stmt import BufferStore
from minitvm.tir.structural_equal import structural_equal


@final
@record(frozen=False)
class _Alike:
    """Accesses with the same indices: one of the accesses, and the positions of the first and the
    last."""

    access: Access
    begin: int
    end: int = 0


@final
@record()
class Fold:
    """A fold: a store ``C[i] = operator(C[i], value)`` with the same i in every lane."""

    name: str  # of intrinsics.VECTOR_FOLDS
    load: PrimExpr
    value: PrimExpr


# The folds by their operator.
_FOLDS = {operator: name for name, operator in VECTOR_FOLDS.items()} | {
    "And": "vector_reduce_and",
    "Or": "vector_reduce_or",
}


def as_fold(node: BufferStore) -> Fold | None:
    """`node` as the step of a reduction, if it is one by its form."""
    value = node.value
    if isinstance(value, Call):
        name, operands = _FOLDS.get(value.op), value.args
    elif isinstance(value, e.BinaryOp):
        name, operands = _FOLDS.get(type(value).__name__), (value.a, value.b)
    else:
        return None
    if node.predicate is not None:
        return None
    if name is not None:
        for side, other in (operands, operands[::-1]):
            if _is_element(side, node):
                return Fold(name, side, other)
    rest = _rest_of_sum(value, node) if value.dtype.is_integral else None
    if rest is None:
        return None
    return Fold("vector_reduce_add", BufferLoad(node.buffer, node.indices), rest)


def _rest_of_sum(value: PrimExpr, store: BufferStore) -> PrimExpr | None:
    """The terms that a sum of integers adds to the element that `store` replaces: ``x - y`` of
    ``C[i] + x - y``. None if the element is no term of the sum."""
    if _is_element(value, store):
        return e.const(0, value.dtype)
    if isinstance(value, e.Add | e.Sub):
        rest = _rest_of_sum(value.a, store)
        if rest is not None:
            return type(value)(rest, value.b)
    if isinstance(value, e.Add):
        rest = _rest_of_sum(value.b, store)
        return None if rest is None else e.Add(value.a, rest)
    return None


def _is_element(side: PrimExpr, store: BufferStore) -> bool:
    return (
        isinstance(side, BufferLoad)
        and side.buffer is store.buffer
        and side.predicate is None
        and all(map(structural_equal, side.indices, store.indices))
    )


@final
class LaneDependence(Accesses):
    """The accesses of a loop's body, and its stores that are folds over the lanes."""

    def __init__(self, where: str, loop: s.For, prover: Prover, padded: frozenset[Buffer]) -> None:
        """`where` names the loop in messages; stores to the buffers `padded` ignore ``likely``
        guards."""
        nodes = list(walk_once(loop.body))
        written = (each.buffer.data for each in nodes if isinstance(each, BufferStore))
        super().__init__(frozenset(written), padded)
        self.folds: dict[BufferStore, Fold] = {}
        self._where = where
        self._loop = loop
        self._lanes = Loop(loop.loop_var, (loop.min, loop.extent))
        self._prover = prover
        self._private = {each.buffer for each in nodes if isinstance(each, s.Allocate)}
        self._moving: set[Var] = set()  # variables that differ between lanes or inner iterations
        self._forms: dict[PrimExpr, Affine | None] = {}
        self.collect(loop.body, Place())

    def concerns(self, node: BufferLoad | BufferStore) -> bool:
        return node.buffer not in self._private and node.buffer.data in self._written

    def store(self, node: BufferStore, value: PrimExpr, place: Place) -> None:
        fold = as_fold(node)
        indices, is_known = self.resolved(node.indices, place)
        shared = node.buffer not in self._private and not any(map(self._varies, indices))
        if fold is not None and is_known and shared:
            self.folds[node] = fold
            value = fold.value
        super().store(node, value, place)

    def _fold_of(self, access: Access) -> str | None:
        """The operator of a store that combines the stored element with a value; None for other
        stores."""
        fold = self.folds.get(access.node) if isinstance(access.node, BufferStore) else None
        return fold and fold.name

    def _varies(self, index: PrimExpr) -> bool:
        return any(each is self._loop.loop_var for each in walk_once(index))

    # -- Accesses to one element ------------------------------------------------------------------

    def check(self) -> None:
        """
        Raises
        ------
        CompileError
            Unless the vector form of the loop surely gives the same result.
        """
        loops = [self._lanes, *(loop for access in self.found for loop in access.loops)]
        self._moving = {loop.var for loop in loops if loop.var is not None}
        for alike in self._alike_by_memory():
            for first in alike:
                if first.access.is_store:
                    self._check_alone(first.access)
                for second in alike:
                    writes = first.access.is_store or second.access.is_store
                    if writes and first.begin < second.end:
                        self._check_in_turn(first.access, second.access)

    def _form(self, access: Access) -> object:
        loops = tuple(id(loop) for loop in access.loops)
        conditions = tuple(id(each) for each in access.conditions)
        key, fold = structural_key(access.indices), self._fold_of(access)
        return key, id(access.buffer), access.is_store, fold, loops, conditions

    def _alike_by_memory(self) -> list[list[_Alike]]:
        """The accesses to each memory, grouped by equal indices, since an unrolled body has
        many."""
        found: dict[Var, dict[object, _Alike]] = {}
        for access in self.found:  # in the order of their positions
            alike = found.setdefault(access.buffer.data, {})
            known = alike.setdefault(self._form(access), _Alike(access, access.position))
            known.end = access.position
        return [list(alike.values()) for alike in found.values()]

    def _check_alone(self, store: Access) -> None:
        """Checks a store against itself in another lane. Lanes are stored in order, unless an inner
        loop is around the store."""
        if self._fold_of(store) is not None:
            self._check_fold(store)
        elif store.loops and self._may_meet(store, store):
            self._refuse(store, store)

    def _check_in_turn(self, first: Access, second: Access) -> None:
        """Checks two accesses: `second` runs after `first` for all lanes, or in iterations of one
        inner loop."""
        together = bool(first.loops and second.loops and first.loops[0] is second.loops[0])
        if self._may_meet(second, first) or (together and self._may_meet(first, second)):
            self._refuse(first, second)

    def _check_fold(self, access: Access) -> None:
        """Checks a fold, which adds to each element in the order of the lanes: inner loops must not
        return to an element, unless the order doesn't matter, as for integers."""
        ordered = access.buffer.dtype.is_float and self._fold_of(access) in (
            "vector_reduce_add",
            "vector_reduce_mul",
        )
        if ordered and any(self._is_possible(access, access, loop) for loop in access.loops):
            self._fail(
                f"the additions to {access} to be in the order of the loop, found a loop inside "
                f"({', '.join(str(loop.var) for loop in access.loops)}) that goes on with the "
                "same element: make the vectorized loop the innermost, or rfactor the reduction"
            )

    def _is_possible(self, earlier: Access, later: Access, loop: Loop) -> bool:
        """Whether both may be at one element, `later` in a later iteration of `loop`."""
        assert loop.var is not None
        with self._prover.scope():
            ours, theirs = (
                one_round(self._prover, (self._lanes, *each.loops), each.conditions, {})
                for each in (earlier, later)
            )
            goal = meeting(self._prover, earlier, ours, later, theirs)
            a, b = (self._prover.affine(each[loop.var]) for each in (ours, theirs))
            return self._prover.is_possible([*goal, less(a, b)])

    def _may_meet(self, earlier: Access, later: Access) -> bool:
        """Whether `earlier` in one lane and `later` in a later lane may be at one element."""
        if not earlier.is_known or not later.is_known or earlier.buffer is not later.buffer:
            return True
        if earlier.buffer.auto_broadcast:
            return True
        pairs = zip(earlier.indices, later.indices, strict=True)
        if any(self._meet_along(a, b) is False for a, b in pairs):
            return False
        return self._is_possible(earlier, later, self._lanes)

    def _meet_along(self, earlier: PrimExpr, later: PrimExpr) -> bool | None:
        """:meth:`_may_meet` for one dimension, from the coefficients of the loop's variable alone;
        None where they don't decide it."""
        a, b = self._affine_of(earlier), self._affine_of(later)
        if a is None or b is None:
            return None
        var = self._loop.loop_var
        step = a.terms.get(var, 0)
        distance = a - b  # for equal values of the variable
        if b.terms.get(var, 0) != step or distance.terms:
            return None
        if step == 0:
            return distance.constant == 0
        # step * lane + a == step * (lane + k) + b for some k >= 1
        lanes = e.const_int(self._loop.extent)
        assert lanes is not None
        k, rest = divmod(distance.constant, step)
        return rest == 0 and 1 <= k < lanes

    def _affine_of(self, index: PrimExpr) -> Affine | None:
        """The form of an index in which only the loop's own variable differs between lanes and
        iterations; None for any other index."""
        if index not in self._forms:
            form = self._prover.affine(index)
            atoms = [atom for atom in form.terms if atom is not self._loop.loop_var]
            is_fixed = not any(each in self._moving for each in walk_once(*atoms))
            self._forms[index] = form if is_fixed else None
        return self._forms[index]

    # -- Refusals ---------------------------------------------------------------------------------

    def _refuse(self, a: Access, b: Access) -> None:
        store, other = (a, b) if a.is_store else (b, a)
        verb = "writes" if other.is_store else "reads"
        self._fail(
            f"iterations that can run side by side, found that one writes {store} while "
            f"another {verb} {'the same' if store is other else other}, which may be the same "
            "element: leave the loop serial or unroll it; if it reduces, rfactor it and vectorize "
            "the new axis"
        )

    def _fail(self, problem: str) -> None:
        raise CompileError(f"{self._where}: expected {problem}")
