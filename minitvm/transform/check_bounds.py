"""Proves that every access stays inside its tensor, or makes the program check it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

from minitvm.arith.atoms import structural_key
from minitvm.arith.effects import SureChoices, calls_out, choices_in_both
from minitvm.arith.facts import System
from minitvm.arith.linear import Affine, Atom, find_witness, is_empty, is_infeasible, project
from minitvm.arith.prover import Prover
from minitvm.arith.scopes import ScopedMutator, prover_of
from minitvm.arith.simplify import Simplifier
from minitvm.runtime.dtype import INT64
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, BufferLoad, Call, IntImm, PrimExpr, Var
from minitvm.tir.functor import (
    Mutator,
    children,
    free_vars,
    substitute,
    walk_once,
    with_fields,
)
from minitvm.tir.intrinsics import INTRINSICS
from minitvm.tir.stmt import PrimFunc, Stmt, with_body
from minitvm.tir.structural_equal import structural_equal
from minitvm.transform.check_accesses import checked_load, checked_store, is_repeatable

_NOTHING = s.SeqStmt(())


def check_bounds(func: PrimFunc) -> PrimFunc:
    """Proves that no access leaves its tensor, or makes the program check it.

    A proved access costs nothing. An access that depends only on sizes and scalar parameters is
    checked once, at entry (``ValueError``). An access that depends on data is checked where it
    happens (``IndexError``). An index that calls a function, or is read around a call, may change
    when it is evaluated again; so it is evaluated once, for the check and the access.

    Before::

        for i in range(n):
            B[i] = A[i] + T[I[i]]        # A has m elements, T has 10
            C[i] = T[call_packed("g")]

    After::

        assert n <= m, "f: A[i]: index 0 needs n <= m, got n = {}, m = {}"
        for i in range(n):
            assert 0 <= I[i] < 10, "f: T[I[i]]: index 0 must stay in [0, {}), got {}"
            B[i] = A[i] + T[I[i]]
            C[i] = let index = call_packed("g") in
                checked(0 <= index < 10, "f: T[{}]: expected ...", T[index], index)

    Raises
    ------
    CompileError
        When an access leaves its tensor for constant sizes, or for all sizes of 1 and more.
    """
    (body,), at_entry = check_statements(func, [func.body])
    return with_body(func, at_entry(body))


def check_statements(
    func: PrimFunc, statements: Iterable[Stmt]
) -> tuple[list[Stmt], Callable[[Stmt], Stmt]]:
    """Statements with the checks at their accesses; and a function that puts the checks at entry of
    `func` around a body."""
    checker = _Checker(func)
    checked = [checker.stmt(each) for each in statements]
    if checker.in_place:
        in_place = _CheckInPlace(func.name, checker.in_place)
        checked = [in_place.stmt(each) for each in checked]

    def at_entry(body: Stmt) -> Stmt:
        for check in reversed(checker.at_entry):
            body = check.around(body)
        return body

    return checked, at_entry


@final
@record()
class _Check:
    """An assertion, and the conditions of the lazy choices around its access."""

    condition: PrimExpr
    message: str
    values: tuple[PrimExpr, ...]
    kind: str
    guards: tuple[PrimExpr, ...] = ()

    def around(self, body: Stmt) -> Stmt:
        if not self.guards:
            return s.AssertStmt(self.condition, self.message, body, self.values, self.kind)
        check: Stmt = s.AssertStmt(self.condition, self.message, _NOTHING, self.values, self.kind)
        for guard in reversed(self.guards):
            check = s.IfThenElse(guard, check)
        return s.seq(check, body)

    @property
    def key(self) -> object:
        return structural_key(self.condition), structural_key(self.guards), self.kind


@final
@record()
class _Access:
    """One index of one access, as messages show it."""

    buffer: Buffer
    indices: tuple[PrimExpr, ...]
    axis: int
    is_store: bool

    @property
    def extent(self) -> PrimExpr:
        return self.buffer.shape[self.axis]

    def __str__(self) -> str:
        return f"{self.buffer.name}[{', '.join(map(str, self.indices))}]: index {self.axis}"

    @property
    def advice(self) -> str:
        if self.is_store:
            return "guard the store with an if, or change the shape"
        if (place := e.const_int(self.indices[self.axis])) is not None and place < 0:
            of = f"{self.buffer.name}.shape[{self.axis}]"
            return f"indices begin with 0: write {of} - {-place} to count from the end"
        return "guard the read with if_then_else (Select evaluates both sides) or change the shape"


class _Checker(ScopedMutator):
    """Goes down the statements, with the facts that hold at each access."""

    def __init__(self, func: PrimFunc) -> None:
        super().__init__(prover_of(func))
        self.at_entry: list[_Check] = []
        self.in_place: set[BufferLoad | s.BufferStore] = set()  # to be checked where they happen
        self._name = func.name
        self._sizes: set[Var] = set()
        self._inputs = set(func.params)  # the variables known at entry
        self._choices: SureChoices = {}
        self._values: dict[Var, PrimExpr] = {}  # of lets in the current expression
        self._scanned: set[PrimExpr] = set()  # in the current expression, here or outside
        self._calls_out = False  # whether the current statement does, and so may write any memory
        for buffer in func.buffer_map.values():
            self._sizes.update(*map(free_vars, buffer.shape))
            self._inputs.update(*map(free_vars, buffer.sizes))

    # -- Statements -------------------------------------------------------------------------------

    def visit_For(self, node: s.For) -> Stmt:
        return _checked(self._checks(node.min, node.extent), super().visit_For(node))

    def visit_While(self, node: s.While) -> Stmt:
        """Checks the condition's accesses before each iteration, when the condition is
        evaluated."""
        checks = self._checks(node.condition)
        body = self.under(node.condition, node.body)
        if checks:
            body = s.seq(body, _checked(checks, _NOTHING))
        return _checked(checks, with_fields(node, body=body))

    def visit_BufferStore(self, node: s.BufferStore) -> Stmt:
        where = () if node.predicate is None else (node.predicate,)
        checks = self._checks(node.value, *node.indices, *where)
        checks += self._access(node, (), is_store=True)
        return _checked(checks, node)

    def visit_LetStmt(self, node: s.LetStmt) -> Stmt:
        return _checked(self._checks(node.value), super().visit_LetStmt(node))

    def visit_IfThenElse(self, node: s.IfThenElse) -> Stmt:
        return _checked(self._checks(node.condition), super().visit_IfThenElse(node))

    def visit_AssertStmt(self, node: s.AssertStmt) -> Stmt:
        return _checked(self._checks(node.condition, *node.values), super().visit_AssertStmt(node))

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        return _checked(self._checks(node.value), self.descend(node))

    def visit_Evaluate(self, node: s.Evaluate) -> Stmt:
        return _checked(self._checks(node.value), node)

    # -- Expressions ------------------------------------------------------------------------------

    def _checks(self, *exprs: PrimExpr) -> list[_Check]:
        """The checks that a statement needs for its expressions, in the order of evaluation."""
        made: list[_Check] = []
        self._calls_out = calls_out(*exprs)
        for each in exprs:
            made += self._scan(each, ())
        self._values.clear()
        self._scanned.clear()
        return made

    def _scan(self, node: PrimExpr, guards: tuple[PrimExpr, ...]) -> list[_Check]:
        """The checks that an expression needs, unless it was already scanned with the same facts or
        fewer."""
        if node in self._scanned:
            return []
        checks = self._scan_new(node, guards)
        self._scanned.add(node)
        return checks

    def _scan_new(self, node: PrimExpr, guards: tuple[PrimExpr, ...]) -> list[_Check]:
        if isinstance(node, Call) and node.op == "if_then_else":
            return self._scan_lazy(node, guards)
        if isinstance(node, e.Let):
            checks = self._scan(node.value, guards)
            self._values[node.var] = substitute(node.value, self._values)
            with (
                self.binding(node.var, node.value, node.body),
                self._scanning_apart(set()),
            ):
                return checks + self._scan(node.body, guards)
        checks = []
        for child in children(node):
            if isinstance(child, PrimExpr):
                checks += self._scan(child, guards)
        if isinstance(node, BufferLoad):
            checks += self._access(node, guards, is_store=False)
        return checks

    @contextmanager
    def _scanning_apart(self, scanned: set[PrimExpr]) -> Iterator[None]:
        """A scope with more facts: expressions scanned inside still need a scan outside. The
        expressions `scanned` need no scan inside."""
        outer, self._scanned = self._scanned, scanned
        try:
            yield
        finally:
            self._scanned = outer

    def _scan_lazy(self, node: Call, guards: tuple[PrimExpr, ...]) -> list[_Check]:
        condition, a, b = node.args
        checks = self._scan(condition, guards)
        for each in choices_in_both(a, b, self._choices):
            checks += self._scan(each, guards)
        for branch, holds in ((a, condition), (b, e.logical_not(condition))):
            with self.assuming(holds, branch), self._scanning_apart(set(self._scanned)):
                guard = substitute(holds, self._values)
                checks += self._scan(branch, (*guards, guard))
        return checks

    # -- Accesses ---------------------------------------------------------------------------------

    def _access(
        self, node: BufferLoad | s.BufferStore, guards: tuple[PrimExpr, ...], is_store: bool
    ) -> list[_Check]:
        """The checks to be made before the statement."""
        places = node.indices if node.predicate is None else (*node.indices, node.predicate)
        if not self._are_settled(places):
            self.in_place.add(node)
            return []
        checks = self._access_checks(node, guards, is_store)
        if checks and not self._are_settled(guards):
            self.in_place.add(node)
            return []
        return checks

    def _are_settled(self, values: Iterable[PrimExpr]) -> bool:
        """Whether values are the same before the statement as within it."""
        return not self._calls_out or all(
            is_repeatable(substitute(each, self._values)) for each in values
        )

    def _access_checks(
        self, node: BufferLoad | s.BufferStore, guards: tuple[PrimExpr, ...], is_store: bool
    ) -> list[_Check]:
        checks: list[_Check] = []
        for axis, index in enumerate(node.indices):
            access = _Access(node.buffer, node.indices, axis, is_store)
            if node.predicate is not None:
                checks += self._predicated_index(access, index, node.predicate, guards)
                continue
            for scalar in _extreme_lanes(index):
                if node.buffer.auto_broadcast:
                    checks += self._broadcast_index(access, scalar, guards)
                else:
                    checks += self._index(access, scalar, guards)
        return checks

    def _predicated_index(
        self,
        access: _Access,
        index: PrimExpr,
        predicate: PrimExpr,
        guards: tuple[PrimExpr, ...],
    ) -> list[_Check]:
        """Checks lane by lane, each under its own predicate: where the outer lanes are off, an
        inner lane may still leave the tensor."""
        checks: list[_Check] = []
        for k in range(predicate.dtype.lanes):
            holds = _lane(predicate, k)
            with self._prover.constraint(holds):
                guard = substitute(holds, self._values)
                checks += self._index(access, _lane(index, k), (*guards, guard))
        return checks

    def _broadcast_index(
        self, access: _Access, index: PrimExpr, guards: tuple[PrimExpr, ...]
    ) -> list[_Check]:
        """Checks an index of a buffer that broadcasts: a dimension of extent 1 takes any index."""
        several = e.not_equal(access.extent, 1)
        if isinstance(several, IntImm) and not several.value:
            return []
        with self._prover.constraint(several):
            return self._index(access, index, (*guards, substitute(several, self._values)))

    def _index(
        self, access: _Access, index: PrimExpr, guards: tuple[PrimExpr, ...]
    ) -> list[_Check]:
        shown = substitute(index, self._values)
        if isinstance(index, e.FloorMod) and structural_equal(index.b, access.extent):
            index = e.const(0, index.dtype)  # inside where any remainder is: there are elements
        value = self._prover.affine(index)
        extent = self._prover.affine(access.extent)
        below, above = -value - 1, value - extent
        verdicts = [
            self._verdict(access, index, [below], e.GE, e.const(0, index.dtype)),
            self._verdict(access, index, [above], e.LT, access.extent),
        ]
        parts = [made for made in verdicts if made is not None]
        if not parts:
            return []
        message = f"{self._name}: {access} must stay in [0, {{}}), got {{}}"
        values = (access.extent, shown)
        condition = substitute(parts[0] if len(parts) == 1 else e.And(*parts), self._values)
        return [_Check(condition, message, values, "IndexError", guards)]

    def _verdict(
        self, access: _Access, index: PrimExpr, escape: System, inside: Any, bound: PrimExpr
    ) -> PrimExpr | None:
        """None when `escape` never happens, or is checked at entry; otherwise the condition under
        which it doesn't happen. Raises an error when it surely happens."""
        if self._prover.proves(-escape[0] - 1):
            return None
        ways = self._prover.ways(escape)
        entry: list[_Check] = []
        for system in ways.systems:
            if is_empty(system):
                continue
            if not ways.complete or not self._is_understood(system):
                return e.compare(inside, index, bound)
            check = self._at_entry(access, index, system)
            if check is None:
                return e.compare(inside, index, bound)
            entry += check
        self.at_entry += entry
        return None

    def _is_understood(self, system: System) -> bool:
        """Whether each solution of the system is an execution of the program that reaches the
        access."""
        return all(
            self._is_input(atom) or self._prover.is_determined(atom)
            for row in system
            for atom in row.terms
        )

    def _is_input(self, atom: Atom) -> bool:
        """Whether the value of `atom` is known at entry."""
        return all(
            each in self._inputs if isinstance(each, Var) else not isinstance(each, _OPAQUE)
            for each in walk_once(atom)
        )

    def _at_entry(self, access: _Access, index: PrimExpr, system: System) -> list[_Check] | None:
        """The check at entry that excludes `system`; None if there is no exact check."""
        inputs = [a for a in dict.fromkeys(_atoms(system)) if self._is_input(a)]
        projection = project(system, inputs)
        if projection is None or not (projection.exact or not inputs):
            return None
        premises = [row for atom in inputs for row in self._prover.meaning(atom)]
        needed = _irredundant(projection.constraints, premises)
        ones = [Affine.of_atom(a) - 1 for a in inputs if a in self._sizes]
        if all(is_infeasible([*premises, *ones, -row - 1]) for row in needed):
            self._refuse_if_certain(access, index, [*system, *premises, *ones])
            return None if not inputs else self._entry_check(access, needed)
        return self._entry_check(access, needed)

    def _entry_check(self, access: _Access, escape: Sequence[Affine]) -> list[_Check] | None:
        if not escape:
            return None
        first, *others = sorted(escape, key=lambda row: -len(row.terms))  # most terms first
        condition = _holds(-first - 1)
        for row in others:
            condition = e.logical_or(condition, _holds(-row - 1))
        variables = free_vars(condition)
        found = ", ".join(f"{var.name} = {{}}" for var in variables)
        message = f"{self._name}: {access} needs {condition}, got {found}"
        check = _Check(condition, message, tuple(variables), "ValueError")
        return [] if any(check.key == known.key for known in self.at_entry) else [check]

    def _refuse_if_certain(self, access: _Access, index: PrimExpr, system: System) -> None:
        """Raises if the access leaves its tensor at a point that can be shown.

        The index is evaluated at this point as the machine evaluates it, so no program is refused
        for an index that wraps back into the tensor.
        """
        point = find_witness(system)
        if point is None:
            return
        at = {
            var: e.const(value, var.dtype) for var, value in point.items() if isinstance(var, Var)
        }
        value = self._evaluated(index, at)
        extent = self._evaluated(access.extent, at)
        if value is None or extent is None or 0 <= value < extent:
            return
        shown = dict.fromkeys([*free_vars(index), *free_vars(access.extent)])
        where = ", ".join(f"{var.name} = {point[var]}" for var in shown if var in point)
        low, high = self._prover.const_int_bound(index)
        if isinstance(index, IntImm):
            found = f"{value}"
        elif _is_tight(index, low, high):
            found = f"{index} in [{low}, {high}]"
        else:
            found = f"{index} = {value}"
        raise CompileError(
            f"{self._name}: {access} must stay in [0, {access.extent}), got {found}"
            f"{f' (at {where})' if where else ''}: {access.advice}"
        )

    def _evaluated(self, node: PrimExpr, at: dict[Var, PrimExpr]) -> int | None:
        value = substitute(substitute(node, self._values), at)
        return e.const_int(Simplifier(Prover()).expr(value))


@final
class _CheckInPlace(Mutator):
    """Checks some accesses where they happen, with their index at that time."""

    def __init__(self, function: str, accesses: set[BufferLoad | s.BufferStore]) -> None:
        super().__init__()
        self._function = function
        self._accesses = accesses

    def visit_BufferLoad(self, node: BufferLoad) -> PrimExpr:
        made: BufferLoad = self.descend(node)
        return checked_load(self._function, made) if node in self._accesses else made

    def visit_BufferStore(self, node: s.BufferStore) -> Stmt:
        made: s.BufferStore = self.descend(node)
        return checked_store(self._function, made) if node in self._accesses else made


_OPAQUE = (BufferLoad, Call, e.ProducerLoad, e.BufferRef)


def _checked(checks: Sequence[_Check], body: Stmt) -> Stmt:
    """`checks`, each once, before `body`."""
    distinct = {check.key: check for check in reversed(checks)}
    for check in distinct.values():
        body = check.around(body)
    return body


def _is_tight(index: PrimExpr, low: float, high: float) -> bool:
    """Whether the bounds are tighter than those of the index's dtype."""
    return low > index.dtype.min() and high < index.dtype.max() // 2


def _irredundant(rows: Sequence[Affine], premises: System) -> list[Affine]:
    """The rows that neither `premises` nor the other rows imply."""
    kept = list(rows)
    for row in rows:
        others = [each for each in kept if each is not row]
        if is_infeasible([*premises, *others, -row - 1]):
            kept = others
    return kept


def _atoms(system: System) -> Iterator[Atom]:
    return (atom for row in system for atom in row.terms)


def _holds(row: Affine) -> PrimExpr:
    """The condition ``row >= 0`` with sums on both sides: ``n + 1 <= m``."""
    less = {a: -c for a, c in row.terms.items() if c < 0}
    more = {a: c for a, c in row.terms.items() if c > 0}
    strict = row.constant == -1 and bool(less) and bool(more)
    constant = 0 if strict else row.constant
    if not less:
        return e.GE(*_sides(Affine(more), Affine({}, -constant)))
    left = Affine(less, -constant if constant < 0 and more else 0)
    right = Affine(more, constant if constant > 0 or not more else 0)
    sides = _sides(left, right)
    return e.LT(*sides) if strict else e.LE(*sides)


def _sides(left: Affine, right: Affine) -> tuple[PrimExpr, PrimExpr]:
    """Both sides in one dtype: 64 bits if a side contains arithmetic."""
    plain = all(
        list(side.terms.values()) == [1] and not side.constant if side.terms else True
        for side in (left, right)
    )
    dtypes = [atom.dtype for side in (left, right) for atom in side.terms]
    small = all(d.min() <= side.constant <= d.max() for d in dtypes for side in (left, right))
    dtype = (
        max(dtypes, key=lambda d: d.bits) if plain and small and len(set(dtypes)) == 1 else INT64
    )
    prover = Prover()
    return prover.expression(left, dtype), prover.expression(right, dtype)


# -- Vectors --------------------------------------------------------------------------------------


def _extreme_lanes(index: PrimExpr) -> list[PrimExpr]:
    """Lanes of an index whose values bound the values of all other lanes."""
    lanes = index.dtype.lanes
    if lanes == 1:
        return [index]
    if isinstance(index, e.Broadcast):
        return [index.value]
    picked = (0, lanes - 1) if _is_progression(index) else range(lanes)
    return [_lane(index, k) for k in picked]


def _is_progression(index: PrimExpr) -> bool:
    if isinstance(index, e.Add | e.Sub):
        return _is_progression(index.a) and _is_progression(index.b)
    return isinstance(index, e.Ramp | e.Broadcast)


def _lane(node: Any, k: int) -> Any:
    if node.dtype.lanes == 1:
        return node
    match node:
        case e.Ramp(base, stride):
            return base + e.cast(base.dtype, stride) * e.const(k, base.dtype)
        case e.Broadcast(value):
            return value
        case e.Cast(dtype, value):
            return e.cast(dtype.element, _lane(value, k))
        case BufferLoad(buffer, indices, predicate) if buffer.dtype.lanes == 1:
            where = None if predicate is None else _lane(predicate, k)
            return BufferLoad(buffer, tuple([_lane(each, k) for each in indices]), where)
        case Call(dtype, op, args) if op in _LANEWISE:
            return Call(dtype.element, op, tuple([_lane(each, k) for each in args]))
        case e.Not(a):
            return e.logical_not(_lane(a, k))
        case e.Select(condition, a, b):
            return e.Select(_lane(condition, k), _lane(a, k), _lane(b, k))
        case e.BinaryOp(a=a, b=b):
            make: Any = type(node)
            return make(_lane(a, k), _lane(b, k))
    return Call(node.dtype.element, "vector_extract", (node, e.const(k)))


# Calls that are elementwise: lane k of the result is the call on lane k of the operands.
_LANEWISE = frozenset({*INTRINSICS, "likely"})
