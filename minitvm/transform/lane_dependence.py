"""Whether the iterations of a loop may run side by side, one a lane of vectors.

The vector form of a loop runs statement by statement, each for all lanes, where the loop runs
iteration by iteration. Both give the same result unless two different iterations meet at one
element, one of them writing it, and the vector form turns the order of the two accesses around:

* of two statements that follow each other, the first is then done for all lanes before the second,
  which is wrong only for an earlier lane's second against a later lane's first;
* within one store, all lanes are read before any is written, and lanes are written in order;
* inside an inner loop any order is possible, so the lanes must not meet at all.

That they don't meet is proved, or the loop is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from minitvm.arith.atoms import structural_key
from minitvm.arith.linear import Affine, less
from minitvm.arith.prover import Prover
from minitvm.arith.same_element import same_element
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, BufferLoad, Call, PrimExpr, Range, Var
from minitvm.tir.functor import children, substitute, walk_once
from minitvm.tir.intrinsics import VECTOR_FOLDS
from minitvm.tir.op import is_likely
from minitvm.tir.stmt import BufferStore, Stmt
from minitvm.tir.structural_equal import structural_equal


@final
@record()
class _Access:
    """One access in the body of a loop. `position` is its place in the order of the vector form;
    `loops` are the inner loops around it.

    With `is_known` the indices are made of what the body doesn't change. A `fold` names the
    operator of a store that combines a value with the very element that it replaces.
    """

    buffer: Buffer
    indices: tuple[PrimExpr, ...]
    is_store: bool
    position: int
    loops: tuple[s.For, ...]
    conditions: tuple[PrimExpr, ...]
    is_known: bool
    fold: str | None = None

    def __str__(self) -> str:
        return f"{self.buffer.name}[{', '.join(map(str, self.indices))}]"


@final
@dataclass(slots=True)
class _Alike:
    """Accesses of one form: one of them, and the positions of the first and the last."""

    access: _Access
    begin: int
    end: int = 0


@final
@record()
class Fold:
    """A store ``C[i] = operator(C[i], value)``, where i is the same in every lane."""

    name: str  # of intrinsics.VECTOR_FOLDS
    load: PrimExpr
    value: PrimExpr


# By the operator that they repeat.
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
    """What a sum of integers adds to the element that `store` replaces: ``C[i] + x - y`` adds
    ``x - y``. None where the element is no term of it."""
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
class LaneDependence:
    """The accesses of a loop's body, and which of its stores are folds over the lanes."""

    def __init__(self, where: str, loop: s.For, prover: Prover, padded: frozenset[Buffer]) -> None:
        """`where` names the loop in messages; `padded` are the buffers whose stores take no notice
        of ``likely`` guards."""
        self.folds: dict[BufferStore, Fold] = {}
        self._where = where
        self._loop = loop
        self._prover = prover
        self._padded = padded
        nodes = list(walk_once(loop.body))
        self._private = {each.buffer for each in nodes if isinstance(each, s.Allocate)}
        self._written = {each.buffer.data for each in nodes if isinstance(each, BufferStore)}
        self._accesses: list[_Access] = []
        self._moving: set[Var] = set()  # what differs between lanes or rounds of inner loops
        self._forms: dict[PrimExpr, Affine | None] = {}
        self._position = 0
        self._collect(loop.body, _Place())

    # -- Which accesses there are -----------------------------------------------------------------

    def _collect(self, node: Stmt, place: _Place) -> None:
        match node:
            case BufferStore():
                self._collect_store(node, place)
            case s.LetStmt(var, value, body):
                self._read(place, value)
                self._collect(body, self._binding(place, var, value))
            case s.IfThenElse(condition, then_case, else_case):
                self._read(place, condition)
                self._collect(then_case, self._under(place, condition))
                if else_case is not None:
                    self._collect(else_case, self._under(place, e.logical_not(condition)))
            case s.For():
                self._read(place, node.min, node.extent)
                self._collect(node.body, replace(place, loops=(*place.loops, node)))
            case s.AttrStmt(buffer, "padded_buffer", _, body):
                outside, self._padded = self._padded, self._padded | {buffer}
                self._collect(body, place)
                self._padded = outside
            case _:
                for child in children(node):
                    if isinstance(child, PrimExpr):
                        self._read(place, child)
                    else:
                        self._collect(child, place)

    def _collect_store(self, node: BufferStore, place: _Place) -> None:
        fold = as_fold(node)
        indices, is_known = self._resolved(node.indices, place)
        shared = node.buffer not in self._private and not any(map(self._varies, indices))
        if fold is not None and is_known and shared:
            self.folds[node] = fold
            self._read(place, fold.value)
        else:
            fold = None
            self._read(place, node.value)
        where = () if node.predicate is None else (node.predicate,)
        self._read(place, *node.indices, *where)
        if node.buffer not in self._private:
            conditions = place.firm if node.buffer in self._padded else place.conditions
            self._accesses.append(
                _Access(
                    node.buffer, indices, True, self._position, place.loops, conditions, is_known,
                    fold and fold.name,
                )
            )  # fmt: skip
        self._position += 1

    def _read(self, place: _Place, *exprs: PrimExpr) -> None:
        """Notes what expressions read of what the body writes, and goes on to the next position."""
        for each in exprs:
            self._read_below(each, place, set())
        self._position += 1

    def _read_below(self, node: PrimExpr, place: _Place, seen: set[PrimExpr]) -> None:
        if node in seen:
            return
        seen.add(node)
        if isinstance(node, e.Let):
            self._read_below(node.value, place, seen)
            self._read_below(node.body, self._binding(place, node.var, node.value), set())
            return
        for child in children(node):
            assert isinstance(child, PrimExpr)
            self._read_below(child, place, seen)
        if isinstance(node, BufferLoad) and node.buffer.data in self._written:
            if node.buffer in self._private:
                return
            indices, is_known = self._resolved(node.indices, place)
            conditions = place.firm if node.buffer in self._padded else place.conditions
            self._accesses.append(
                _Access(
                    node.buffer, indices, False, self._position, place.loops, conditions, is_known
                )
            )

    def _binding(self, place: _Place, var: Var, value: PrimExpr) -> _Place:
        """Inside a let. A value that the body may change stays a name that is not known."""
        (resolved,), is_known = self._resolved((value,), place)
        return replace(place, values={**place.values, var: resolved if is_known else None})

    def _under(self, place: _Place, condition: PrimExpr) -> _Place:
        (resolved,), is_known = self._resolved((condition,), place)
        if not is_known:
            return place
        firm = place.firm if is_likely(condition) else (*place.firm, resolved)
        return replace(place, conditions=(*place.conditions, resolved), firm=firm)

    def _resolved(
        self, exprs: Sequence[PrimExpr], place: _Place
    ) -> tuple[tuple[PrimExpr, ...], bool]:
        """Expressions without the names bound in the body, and whether these are known and nothing
        in them is written by the body."""
        mapping = {var: value for var, value in place.values.items() if value is not None}
        made: tuple[PrimExpr, ...] = tuple([substitute(each, mapping) for each in exprs])
        unknown = {var for var, value in place.values.items() if value is None}
        is_known = not any(
            each in unknown or (isinstance(each, BufferLoad) and each.buffer.data in self._written)
            for each in walk_once(*made)
        )
        return made, is_known

    def _varies(self, index: PrimExpr) -> bool:
        return any(each is self._loop.loop_var for each in walk_once(index))

    # -- Which of them meet -----------------------------------------------------------------------

    def check(self) -> None:
        """
        Raises
        ------
        CompileError
            Unless the vector form of the loop surely does what the loop does.
        """
        moving = {loop.loop_var for access in self._accesses for loop in access.loops}
        self._moving = moving | {self._loop.loop_var}
        for alike in self._alike_by_memory():
            for first in alike:
                if first.access.is_store:
                    self._check_alone(first.access)
                for second in alike:
                    writes = first.access.is_store or second.access.is_store
                    if writes and first.begin < second.end:
                        self._check_in_turn(first.access, second.access)

    def _alike_by_memory(self) -> list[list[_Alike]]:
        """The accesses to each memory, those of one form together: an unrolled body has many."""
        found: dict[Var, dict[object, _Alike]] = {}
        for access in self._accesses:  # in the order of their positions
            alike = found.setdefault(access.buffer.data, {})
            known = alike.setdefault(_form(access), _Alike(access, access.position))
            known.end = access.position
        return [list(alike.values()) for alike in found.values()]

    def _check_alone(self, store: _Access) -> None:
        """A store in two lanes, which it reaches in their order unless an inner loop is around."""
        if store.fold is not None:
            self._check_fold(store)
        elif store.loops and self._may_meet(store, store):
            self._refuse(store, store)

    def _check_in_turn(self, first: _Access, second: _Access) -> None:
        """`second` is done after `first` for all lanes, or in rounds of one inner loop."""
        together = bool(first.loops and second.loops and first.loops[0] is second.loops[0])
        if self._may_meet(second, first) or (together and self._may_meet(first, second)):
            self._refuse(first, second)

    def _check_fold(self, access: _Access) -> None:
        """A sum of floats is taken in the order of the lanes for each element: the inner loops must
        not come back to an element, unless the order doesn't matter."""
        ordered = access.buffer.dtype.is_float and access.fold in (
            "vector_reduce_add",
            "vector_reduce_mul",
        )
        if ordered and any(self._comes_back(access, loop) for loop in access.loops):
            self._fail(
                f"the additions to {access} to be in the order of the loop, found a loop inside "
                f"({', '.join(loop.loop_var.name for loop in access.loops)}) that goes on with the "
                "same element: make the vectorized loop the innermost, or rfactor the reduction"
            )

    def _comes_back(self, access: _Access, loop: s.For) -> bool:
        """Whether two rounds of an inner loop may reach one element."""
        with self._prover.scope():
            ours, theirs = self._instance(access, "_1"), self._instance(access, "_2")
            goal = self._same_element(access, access, ours, theirs)
            goal.append(less(self._of(loop.loop_var, ours), self._of(loop.loop_var, theirs)))
            return self._prover.is_possible(goal)

    def _of(self, var: Var, instance: Mapping[Var, Var]) -> Affine:
        return self._prover.affine(instance[var])

    def _may_meet(self, earlier: _Access, later: _Access) -> bool:
        """Whether `earlier` in one lane and `later` in a later lane may be at one element."""
        if not earlier.is_known or not later.is_known or earlier.buffer is not later.buffer:
            return True
        if earlier.buffer.auto_broadcast:
            return True
        pairs = zip(earlier.indices, later.indices, strict=True)
        if any(self._meet_along(a, b) is False for a, b in pairs):
            return False
        with self._prover.scope():
            ours, theirs = self._instance(earlier, "_1"), self._instance(later, "_2")
            goal = self._same_element(earlier, later, ours, theirs)
            goal.append(
                less(self._of(self._loop.loop_var, ours), self._of(self._loop.loop_var, theirs))
            )
            return self._prover.is_possible(goal)

    def _meet_along(self, earlier: PrimExpr, later: PrimExpr) -> bool | None:
        """The same of one dimension, from the coefficients of the loop's variable alone; None where
        that doesn't tell."""
        a, b = self._affine_of(earlier), self._affine_of(later)
        if a is None or b is None:
            return None
        var = self._loop.loop_var
        step = a.terms.get(var, 0)
        distance = a - b  # at one value of the variable
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
        """The form of an index in which all but the loop's own variable is the same in every lane
        and round; None of any other index."""
        if index not in self._forms:
            form = self._prover.affine(index)
            atoms = [atom for atom in form.terms if atom is not self._loop.loop_var]
            is_fixed = not any(each in self._moving for each in walk_once(*atoms))
            self._forms[index] = form if is_fixed else None
        return self._forms[index]

    def _same_element(
        self, a: _Access, b: _Access, ours: Mapping[Var, Var], theirs: Mapping[Var, Var]
    ) -> list[Affine]:
        for extent in a.buffer.shape:  # an access stays inside, so there is an inside
            self._prover.assume(e.greater_equal(extent, 1))
        xs = [substitute(x, ours) for x in a.indices]
        return same_element(self._prover, xs, [substitute(y, theirs) for y in b.indices])

    def _instance(self, access: _Access, suffix: str) -> dict[Var, Var]:
        """Copies of the variables of the loop and the inner loops, and what is known of them."""
        made: dict[Var, Var] = {}
        for loop in (self._loop, *access.loops):
            var = Var(loop.loop_var.name + suffix, loop.loop_var.dtype)
            bounds = (substitute(loop.min, made), substitute(loop.extent, made))
            if self._is_settled(*bounds):
                self._prover.bind(var, Range.from_min_extent(*bounds))
            made[loop.loop_var] = var
        for condition in access.conditions:
            self._prover.assume(substitute(condition, made))
        return made

    def _is_settled(self, *bounds: PrimExpr) -> bool:
        """Whether bounds read nothing that the body may write or bind."""
        names = {each.var for each in walk_once(self._loop.body) if isinstance(each, s.LetStmt)}
        return not any(isinstance(each, BufferLoad) or each in names for each in walk_once(*bounds))

    # -- Refusals ---------------------------------------------------------------------------------

    def _refuse(self, a: _Access, b: _Access) -> None:
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


@final
@record()
class _Place:
    """What is around an access: inner loops, lets (None: a value that the body may change) and
    conditions, of which `firm` are those that are no ``likely`` guards."""

    loops: tuple[s.For, ...] = ()
    values: Mapping[Var, PrimExpr | None] = field(default_factory=dict)
    conditions: tuple[PrimExpr, ...] = ()
    firm: tuple[PrimExpr, ...] = ()


def _form(access: _Access) -> object:
    loops = tuple(id(loop) for loop in access.loops)
    conditions = tuple(id(each) for each in access.conditions)
    key = structural_key(access.indices)
    return key, id(access.buffer), access.is_store, access.fold, loops, conditions
