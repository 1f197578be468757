"""The guards of statements: conditions that must hold for a statement to have an effect.

A guarded statement changes nothing where its guard fails. So a loop may leave out the iterations in
which the guards of its body fail, if the guards are stable in the loop.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from math import gcd
from typing import final

from minitvm.arith.atoms import is_pure
from minitvm.arith.effects import has_effect, is_stable, loads, own_memory
from minitvm.arith.linear import Affine
from minitvm.arith.prover import Prover
from minitvm.arith.scopes import binding
from minitvm.runtime.dtype import INT64, DType
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, IntImm, PrimExpr, Range, Var, const
from minitvm.tir.functor import Mutator, contains, free_vars, mentions, substitute, with_fields
from minitvm.tir.op import is_likely
from minitvm.tir.stmt import ForKind, Stmt, seq

# A greater bound comes from a dtype, not from the program.
LARGEST = 1 << 30
_MOST = 1 << 62


@final
@record()
class Limit:
    """``factor * var + rest`` is at least zero in each iteration in which a loop has an effect.

    `rest` stays the same while the loop runs. `guards` are the comparisons equivalent to the limit,
    if every statement of the loop is under one of them; otherwise it is empty.
    """

    factor: int
    rest: Affine
    guards: tuple[PrimExpr, ...]

    def is_same(self, other: Limit) -> bool:
        """Whether two limits exclude the same iterations."""
        return self.factor == other.factor and self.rest.same_as(other.rest)


def limits(prover: Prover, loop: s.For) -> list[Limit]:
    """The limits that guards set to the variable of a loop.

    A limit is computed ahead of the loop. So it reads data only where the loop surely has an
    iteration, which reads the same data. Statements that write memory of an iteration's own, such
    as the sums of a tile that a guarded statement copies, have no effect by themselves.
    """
    if not contains(s.IfThenElse, loop.body):
        return []
    found = _limits(prover, loop, ()) if _is_guarded(loop.body, ()) else []
    own = own_memory(loop.body)
    if own and _is_guarded(loop.body, own):
        of_effects = _limits(prover, loop, own)
        found += [each for each in of_effects if not any(each.is_same(other) for other in found)]
    return found


def _limits(prover: Prover, loop: s.For, own: Container[Buffer]) -> list[Limit]:
    """The limits, where writing the loop's `own` memory is no effect."""
    found: list[Limit] = []
    with prover.scope():
        prover.bind_interval(loop.loop_var, loop.min, loop.extent)
        needs = _needs(prover, loop.body, {}, own)
    anywhere = _everywhere(needs)
    if len(anywhere) < len(needs) and not prover.proves(prover.affine(loop.extent) - 1):
        needs = anywhere
    for need in needs:
        factor, rest = _apart(need.form, loop.loop_var)
        if (
            factor
            and loop.loop_var not in variables(rest)
            and all(is_stable(atom, loop.body) for atom in rest.terms)
            and _is_computable(prover, rest)
        ):
            found.append(Limit(factor, rest, need.guards))
    return found


def is_symbolic(prover: Prover, form: Affine) -> bool:
    """Whether a form has a variable to which the program sets no bound."""
    ranges = (prover.interval(Affine({var: 1})) for var in variables(form))
    return any(max(map(abs, each)) > LARGEST for each in ranges)


def _is_computable(prover: Prover, form: Affine) -> bool:
    """Whether 64 bits hold the value of a form with some room to spare, even if it contains
    data."""
    if all(map(prover.is_index_arithmetic, form.terms)):
        return True
    low, high = prover.interval(form)
    return low >= -_MOST and high <= _MOST


def gates(prover: Prover, loop: s.For, outer: Set[Var]) -> list[PrimExpr]:
    """The conditions on `outer` variables, the same in all iterations, that hold wherever a loop
    has an effect, and that aren't known to hold.

    A condition that doesn't depend on the loops inside of `loop` isn't returned, since it can move
    out unchanged. Any other condition is returned for those iterations of the loops inside in which
    it is weakest::

        for k in range(512):                       # i * 6 + 5 - j * 16 >= 0
            for r in range(6):
                for c in range(16):
                    if j * 16 + c <= i * 6 + r:
                        C[r, c] = C[r, c] + A[i * 6 + r, k] * B[k, j * 16 + c]
    """
    if not _is_guarded(loop.body, ()):
        return []
    return [
        prover.expression(need.form, widest(need.form, loop.loop_var.dtype)) >= 0
        for need in _everywhere(_needs(prover, loop, {}, ()))
        if not need.guards
        and not outer.isdisjoint(variables(need.form))
        and all(map(prover.is_index_arithmetic, need.form.terms))
        and not prover.proves(need.form)
    ]


def cutting(prover: Prover, loop: s.For) -> list[Limit]:
    """The limits that may exclude iterations of a loop."""
    first = prover.affine(loop.min)
    last = first + prover.affine(loop.extent) - 1
    return [
        limit
        for limit in limits(prover, loop)
        if limit.rest.terms
        and not prover.proves(limit.rest + (last if limit.factor < 0 else first) * limit.factor)
    ]


def clipped(prover: Prover, loop: s.For, found: Sequence[Limit]) -> s.For:
    """A loop without the iterations that have no effect, and without the guards that hold in the
    remaining ones.

    Before::

        for i in range(16):
            if likely(io * 16 + i < n):
                B[io * 16 + i] = 0.0

    After::

        for i in range(min(16, n - io * 16)):
            B[io * 16 + i] = 0.0
    """
    begin, end = loop.min, loop.min + loop.extent
    dtype = loop.loop_var.dtype
    for limit in found:
        if limit.factor > 0:
            low = quotient(prover, -limit.rest + (limit.factor - 1), limit.factor, dtype)
            begin = e.maximum(begin, low)
            if low.dtype != dtype:  # a type that may not hold the bound
                begin = e.cast(dtype, e.minimum(begin, end))
        else:
            high = quotient(prover, limit.rest - limit.factor, -limit.factor, dtype)
            end = e.minimum(end, high if high.dtype == dtype else e.maximum(high, begin))
            end = e.cast(dtype, end)
    if not found or (loop.kind == ForKind.UNROLLED and None in map(e.const_int, (begin, end))):
        return loop
    body = Without(guard for limit in found for guard in limit.guards).stmt(loop.body)
    return with_fields(loop, min=begin, extent=end - begin, body=body)


def quotient(prover: Prover, form: Affine, divisor: int, dtype: DType) -> PrimExpr:
    """``form // divisor`` as an expression, in `dtype` or a wider one. The type is wide enough for
    a form that contains data not to wrap."""
    dtype = widest(form, dtype)
    is_index = all(map(prover.is_index_arithmetic, form.terms))
    if not is_index and not prover.fits(form, dtype):
        dtype = INT64
    return e.floordiv(prover.expression(form, dtype), const(divisor, dtype))


def widest(form: Affine, dtype: DType) -> DType:
    """A type for the arithmetic of `form`, no narrower than `dtype`."""
    if max(map(abs, (form.constant, *form.terms.values()))) > LARGEST:
        return INT64
    return max((dtype, *(atom.dtype for atom in form.terms)), key=lambda each: each.bits)


NEGATIONS: dict[type[e.Comparison], type[e.Comparison]] = {
    e.LT: e.GE,
    e.LE: e.GT,
    e.GT: e.LE,
    e.GE: e.LT,
}
"""The comparison of integers that holds where another one fails."""


def conjuncts(condition: PrimExpr) -> Iterator[PrimExpr]:
    """The conditions whose conjunction is `condition`, without ``likely``."""
    if is_likely(condition):
        yield from conjuncts(condition.args[0])
    elif isinstance(condition, e.And):
        yield from conjuncts(condition.a)
        yield from conjuncts(condition.b)
    else:
        yield condition


def same_throughout(condition: PrimExpr, loops: Mapping[Var, Range]) -> PrimExpr | None:
    """A condition, without the variables of some loops, that holds in all of their iterations if
    `condition` does in one; None where there may be none.

    >>> from minitvm.tir.expr import Var
    >>> i, n, tile = Var("i"), Var("n"), Var("tile")
    >>> same_throughout(tile * 25 + i < n * 25, {i: Range(0, 25)})
    tile * 25 + 0 < n * 25
    """
    loops = {var: each for var, each in loops.items() if mentions(var, condition)}
    prover = Prover()
    form = form_of(prover, condition)
    if not loops or form is None:
        return None if loops else condition
    inside = Affine({atom: n for atom, n in form.terms.items() if atom in loops}, form.constant)
    outside = form - inside
    if any(mentions(var, atom) for var in loops for atom in outside.terms):
        return None
    for var, each in loops.items():
        prover.bind(var, each)
    low, high = prover.interval(inside)
    factor = gcd(*outside.terms.values())
    if not factor or not isinstance(low, int) or not isinstance(high, int):
        return None
    begins = {var: each.min for var, each in loops.items()}
    return substitute(condition, begins) if low // factor == high // factor else None


def form_of(prover: Prover, condition: PrimExpr) -> Affine | None:
    """The form that is at least zero exactly where `condition` holds; None if there is none."""
    systems, is_complete = prover.alternatives(condition, True)
    if not is_complete or [len(system) for system in systems] != [1]:
        return None
    return systems[0][0]


def variables(form: Affine) -> set[Var]:
    """The variables in a form."""
    return set[Var]().union(*(free_vars(atom) for atom in form.terms))


def guards_around(node: Stmt) -> tuple[list[PrimExpr], Stmt]:
    """The guards directly around a statement, and that statement."""
    found: list[PrimExpr] = []
    while isinstance(node, s.IfThenElse) and _is_guard(node):
        found += conjuncts(node.condition)
        node = node.then_case
    return found, node


def conditions_around(node: Stmt) -> tuple[list[PrimExpr], Stmt]:
    """The conditions that decide whether a statement runs, the outermost first, and that
    statement."""
    found: list[PrimExpr] = []
    while isinstance(node, s.IfThenElse) and node.else_case is None:
        found.append(node.condition)
        node = node.then_case
    return found, node


def under(conditions: Sequence[PrimExpr], node: Stmt) -> Stmt:
    """A statement under some conditions, the outermost first."""
    for condition in reversed(conditions):
        node = s.IfThenElse(condition, node)
    return node


def _is_guard(node: s.IfThenElse) -> bool:
    return node.else_case is None and is_likely(node.condition) and is_pure(node.condition)


def _is_guarded(node: Stmt, own: Container[Buffer]) -> bool:
    """Whether every effect of a statement outside of its `own` memory is under a guard. This is a
    quick test before the search for needs."""
    match node:
        case s.IfThenElse(condition, then_case, None):
            return is_pure(condition) or _is_guarded(then_case, own)
        case s.SeqStmt(statements):
            acting = _acting(statements, own)
            return bool(acting) and all(_is_guarded(each, own) for each in acting)
        case s.For() | s.LetStmt() | s.AttrStmt() | s.Allocate():
            return _is_guarded(node.body, own)
    return False


# -- From the inside out ---------------------------------------------------------------------------


@final
@record()
class _Need:
    """A form that is at least zero wherever a statement has an effect; `guards` as in a limit."""

    form: Affine
    guards: tuple[PrimExpr, ...]


def _acting(statements: Sequence[Stmt], own: Container[Buffer]) -> list[Stmt]:
    """The statements that have an effect outside of the `own` memory of a loop."""
    return [each for each in statements if has_effect(each, own)]


def _needs(
    prover: Prover, node: Stmt, names: Mapping[Var, Affine], own: Container[Buffer]
) -> list[_Need]:
    """The forms, over variables from outside, that must be at least zero for `node` to have an
    effect outside of its `own` memory. `names` maps each name in `node` to its form.

    Where a form is negative, `node` writes nothing on the way to the next guard, which fails for
    the same reason. So the memory that `node` writes doesn't matter.
    """
    match node:
        case s.For(var, begin, extent, body=body) if is_pure(begin) and is_pure(extent):
            with prover.scope():
                prover.bind_interval(var, begin, extent)
                found = _needs(prover, body, names, own)
            found = list(_outside(prover, node, found, names))
            return found if (e.const_int(extent) or 0) > 0 else _everywhere(found)
        case s.LetStmt(var, value, body) if is_pure(value):
            if value.dtype.is_int and is_stable(value, body):
                names = {**names, var: _unnamed(prover.affine(value), names)}
            with binding(prover, var, value, body):
                found = _needs(prover, body, names, own)
            return [need for need in found if var not in variables(need.form)]
        case s.IfThenElse(condition, then_case, None) if is_pure(condition):
            found = _everywhere(_needs(prover, then_case, names, own))
            forms = ((form_of(prover, each), each) for each in conjuncts(condition))
            stated = [
                _Need(_unnamed(form, names), (each,)) for form, each in forms if form is not None
            ]
            return _merged([*found, *stated])
        case s.SeqStmt(statements) if acting := _acting(statements, own):
            needs = (_needs(prover, each, names, own) for each in acting)
            return functools.reduce(_common, needs)
        case s.AttrStmt() | s.Allocate():
            return _needs(prover, node.body, names, own)
    return []


def _unnamed(form: Affine, names: Mapping[Var, Affine]) -> Affine:
    """A form with values in the place of their names."""
    for var, value in names.items():
        factor, rest = _apart(form, var)
        if factor:
            form = rest + value * factor
    return form


def _outside(
    prover: Prover, loop: s.For, found: Sequence[_Need], names: Mapping[Var, Affine]
) -> Iterator[_Need]:
    """The needs of a loop: the needs of its body, in the iteration in which they are weakest."""
    begin, extent = (_unnamed(prover.affine(each), names) for each in (loop.min, loop.extent))
    for need in found:
        factor, rest = _apart(need.form, loop.loop_var)
        if loop.loop_var in variables(rest):
            continue
        if not factor:
            yield need
        else:
            least = begin + extent - 1 if factor > 0 else begin
            yield _Need(rest + least * factor, ())


def _everywhere(needs: Sequence[_Need]) -> list[_Need]:
    """The needs without loads. Such needs may be evaluated where the statement isn't reached."""
    return [need for need in needs if not loads(*need.form.terms)]


def _merged(needs: Sequence[_Need]) -> list[_Need]:
    """The needs, each form once, with the guards of all needs of that form."""
    made: list[_Need] = []
    for need in needs:
        same = next((each for each in made if each.form.same_as(need.form)), None)
        if same is not None:
            made.remove(same)
            need = _Need(need.form, same.guards + need.guards)
        made.append(need)
    return made


def _common(a: Sequence[_Need], b: Sequence[_Need]) -> list[_Need]:
    """The needs that `a` and `b` have in common, with the guards of both, if both have guards."""
    return [
        _Need(x.form, x.guards + y.guards if x.guards and y.guards else ())
        for x in a
        for y in b
        if x.form.same_as(y.form)
    ]


def _apart(form: Affine, var: Var) -> tuple[int, Affine]:
    """The coefficient of a variable in a form, and the rest."""
    factor = form.terms.get(var, 0)
    return factor, form - Affine({var: factor}) if factor else form


class Without(Mutator):
    """Removes conditions that hold from the guards."""

    def __init__(self, held: Iterable[PrimExpr]) -> None:
        super().__init__()
        self._held = frozenset(held)

    def stmt(self, node: Stmt) -> Stmt:
        return super().stmt(node) if self._held else node

    def expr(self, node: PrimExpr) -> PrimExpr:
        return node

    def condition(self, node: PrimExpr) -> PrimExpr:
        """`node` where the conditions that hold are true."""
        if node in self._held:
            return const(True)
        if isinstance(node, e.And):
            a, b = self.condition(node.a), self.condition(node.b)
            return node if a is node.a and b is node.b else e.logical_and(a, b)
        if isinstance(node, e.Not):
            made = self.condition(node.a)
            return node if made is node.a else e.logical_not(made)
        if is_likely(node):
            made = self.condition(node.args[0])
            if isinstance(made, IntImm):
                return made
            return with_fields(node, args=(made,))
        return self.expr(node)

    def visit_IfThenElse(self, node: s.IfThenElse) -> Stmt:
        condition = self.condition(node.condition)
        then_case = self.stmt(node.then_case)
        known = e.const_int(condition)
        if known:
            return then_case
        else_case = None if node.else_case is None else self.stmt(node.else_case)
        if known is not None:
            return else_case or seq()
        return with_fields(node, condition=condition, then_case=then_case, else_case=else_case)
