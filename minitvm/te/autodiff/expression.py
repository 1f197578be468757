"""The adjoints of the elements that an expression reads: reverse mode on one expression.

The adjoint of a value is the derivative of the result by this value, times the result's adjoint.
Adjoints are computed from the result down: the rule of a node's class gives the adjoints of its
operands from the adjoint of the node::

    y = a * exp(b)      with adjoint g of y
        a     has       g * exp(b)
        exp(b) has      g * a, and so b has g * a * exp(b)

The branch that a choice doesn't take has no part in the result. So the choice surrounds the
adjoints of all reads below it, which keeps out infinities and NaN of the other branch. A value that
several branches share has one adjoint, in the innermost branch around its uses::

    y = a * v if c else v * v           v has       g * a if c else g * v * 2
    y = (a * v if c else 0) + (v * v if d else 0)
                                        v has       the sum of both, where c or d holds
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TypeAlias, final

from minitvm.arith.atoms import structural_key
from minitvm.arith.effects import is_lazy
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.autodiff import functions
from minitvm.te.autodiff.functions import product, where, wide
from minitvm.te.autodiff.stages import reads
from minitvm.tir import expr as e
from minitvm.tir import op as language
from minitvm.tir.expr import Call, PrimExpr, ProducerLoad, Select
from minitvm.tir.functor import Mutator, substitute
from minitvm.tir.intrinsics import INTRINSICS
from minitvm.tir.structural_equal import structural_equal

_Operands: TypeAlias = list[tuple[PrimExpr, PrimExpr]]  # each with its adjoint


@final
@record()
class ReadAdjoint:
    """The adjoint of an element that an expression reads.

    Attributes
    ----------
    load
        The read.
    value
        Its adjoint, in the dtype of the element or a wider one.
    guards
        The conditions under which the expression reads it, and `value` may be evaluated.
    """

    load: ProducerLoad
    value: PrimExpr
    guards: tuple[PrimExpr, ...] = ()


def read_adjoints(
    name: str,
    result: PrimExpr,
    adjoint: PrimExpr,
    is_wanted: Callable[[ProducerLoad], bool],
    known: PrimExpr | None = None,
) -> list[ReadAdjoint]:
    """The adjoints of the wanted elements that an expression of the stage `name` reads, by the
    `adjoint` of its value. `known` is that value where it has been computed: the derivatives of
    many functions, such as exp, are written with it.

    Raises
    ------
    CompileError
        When a wanted element goes through an operation without derivative.
    """
    backward = _Backward(name, is_wanted)
    made: dict[Hashable, ReadAdjoint] = {}
    for each in backward.run(_Prepared().expr(result), adjoint, known):
        key = each.load, structural_key(each.guards)
        value = made[key].value + each.value if key in made else each.value
        made[key] = ReadAdjoint(each.load, value, each.guards)
    return list(made.values())


class _Prepared(Mutator):
    """Replaces each name by the (shared) expression that it stands for, and equal reads by one."""

    def __init__(self) -> None:
        super().__init__()
        self._loads: dict[Hashable, PrimExpr] = {}

    def visit_Let(self, node: e.Let) -> PrimExpr:
        return self.expr(substitute(node.body, {node.var: node.value}))

    def visit_ProducerLoad(self, node: ProducerLoad) -> PrimExpr:
        return self._loads.setdefault(structural_key(node), node)


# -- Branches -------------------------------------------------------------------------------------


@final
@record(eq=False)
class _Branch:
    """A branch of a choice.

    Attributes
    ----------
    outer
        The branch in which the choice stands; None outside of all choices.
    choice
        The choice; None for a branch that stands for branches of several choices.
    condition
        The condition under which the branch is taken.
    is_lazy
        Whether the branch is evaluated only under the condition.
    """

    outer: _Branch | None
    choice: PrimExpr | None
    condition: PrimExpr
    is_lazy: bool

    def path(self) -> list[_Branch]:
        """The branch, behind the branches around it."""
        made, branch = [self], self.outer
        while branch is not None:
            made.append(branch)
            branch = branch.outer
        return made[::-1]


_Place: TypeAlias = _Branch | None


@final
class _Uses:
    """The adjoints of a node, one for each branch in which it is used."""

    def __init__(self) -> None:
        self._adjoints: dict[_Place, PrimExpr] = {}

    def add(self, place: _Place, adjoint: PrimExpr) -> None:
        before = self._adjoints.get(place)
        self._adjoints[place] = adjoint if before is None else before + adjoint

    def gathered(self) -> dict[_Place, PrimExpr]:
        """The adjoints in the outermost branches in which the node is used whatever is chosen
        inside. Both branches of a choice together are the branch around the choice."""
        used = set(self._adjoints)
        if len(used) > 1:
            left = [*used]
            while left:
                place = left.pop()
                if place is not None and place.outer not in used and _is_whole(place, used):
                    used.add(place.outer)
                    left.append(place.outer)
            self._move_out({each for each in used if used.isdisjoint(_places_around(each))})
        return self._adjoints

    def in_one_branch(self) -> tuple[_Place, PrimExpr]:
        """The branch that stands for all of these, and the adjoint in it."""
        found = self.gathered()
        if len(found) > 1:
            paths = [each.path() for each in found if each is not None]
            count = next(i for i, each in enumerate(zip_longest(*paths)) if len({*each}) > 1)
            common = paths[0][count - 1] if count else None
            inner = [path[count:] for path in paths]
            is_lazy = any(branch.is_lazy for path in inner for branch in path)
            condition = language.any(*(_condition(path) for path in inner))
            self._move_out({common})
            return _Branch(common, None, condition, is_lazy), found[common]
        (only,) = found.items()
        return only

    def _move_out(self, kept: set[_Place]) -> None:
        """Surrounds adjoints by the choices of their branches, until they are in some branches."""
        inner = {each: len(each.path()) for each in self._adjoints if each and each not in kept}
        while inner:
            deepest = max(inner, key=inner.__getitem__)
            both = [each for each in inner if each.choice is deepest.choice]
            taken = both if deepest.choice is not None else [deepest]
            outer = deepest.outer
            self.add(outer, _chosen([(each, self._adjoints.pop(each)) for each in taken]))
            depth = {inner.pop(each) for each in taken}.pop()
            if outer is not None and outer not in kept:
                inner[outer] = depth - 1


def _is_whole(branch: _Branch, used: Iterable[_Place]) -> bool:
    """Whether both branches of a choice are among some."""
    if branch.choice is None:
        return False
    return sum(each is not None and each.choice is branch.choice for each in used) == 2


def _places_around(place: _Place) -> list[_Place]:
    return [] if place is None else [None, *place.path()[:-1]]


def _condition(path: Sequence[_Branch]) -> PrimExpr:
    """The condition under which all of some branches, each inside of the one before, are taken."""
    *outer, made = (each.condition for each in path)
    for each in reversed(outer):
        if reads(made):
            made = language.if_then_else(each, made, e.const(False, "bool"))
        else:
            made = e.logical_and(each, made)
    return made


def _chosen(adjoints: Sequence[tuple[_Branch, PrimExpr]]) -> PrimExpr:
    """The adjoint outside of a choice, from the adjoint in one or in both of its branches."""
    (branch, value), *rest = adjoints
    other = functions.zeros_like(value)
    if rest and isinstance(branch.choice, e.Min | e.Max):  # in a tie, both are chosen
        return where(branch.condition, value, other) + _chosen(rest)
    if rest:
        ((_, other),) = rest
    if value is other:
        return value
    choose = language.if_then_else if branch.is_lazy else where
    return choose(branch.condition, *e.promote(value, other))


def _outside(load: ProducerLoad, place: _Place, value: PrimExpr) -> ReadAdjoint:
    """The adjoint of an element that is read in a branch."""
    guards: list[PrimExpr] = []
    for branch in [] if place is None else reversed(place.path()):
        if branch.is_lazy:
            guards.insert(0, branch.condition)
        else:
            value = where(branch.condition, value, functions.zeros_like(value))
    return ReadAdjoint(load, value, tuple(guards))


# -- Reverse mode ---------------------------------------------------------------------------------


@final
class _Backward:
    """Reverse mode on one expression of a stage, from the result down."""

    def __init__(self, name: str, is_wanted: Callable[[ProducerLoad], bool]) -> None:
        self._name = name
        self._is_wanted = is_wanted
        self._active: dict[PrimExpr, bool] = {}
        self._linear: dict[PrimExpr, bool] = {}

    def run(
        self, root: PrimExpr, adjoint: PrimExpr, known: PrimExpr | None
    ) -> Iterator[ReadAdjoint]:
        """The adjoints of the elements that `root` reads, by the adjoint of its value; `known` is
        the value, if it has been computed."""
        uses = defaultdict[PrimExpr, _Uses](_Uses)
        uses[root].add(None, adjoint)
        values: dict[tuple[PrimExpr, _Place], PrimExpr] = {}
        if known is not None:
            values[root, None] = known
        for node in self._from_the_top(root):
            if node not in uses:
                continue  # only functions without a derivative depend on it, such as a sign
            mine = uses.pop(node)
            if isinstance(node, ProducerLoad):
                for place, each in mine.gathered().items():
                    yield _outside(node, place, each)
                continue
            place, g = mine.in_one_branch()
            value = values.get((node, place))
            if self._is_choice(node):
                for operand, condition, more in _branches(node, g):
                    if self._is_active(operand):
                        branch = _Branch(place, node, condition, isinstance(node, Call))
                        uses[operand].add(branch, more)
                        if value is not None:  # the choice has the value of its operand
                            values[operand, branch] = value
            else:
                for operand, more in self._operands(node, g, node if value is None else value):
                    uses[operand].add(place, more)

    def _from_the_top(self, root: PrimExpr) -> list[PrimExpr]:
        """The nodes with an adjoint, each before its operands."""
        done: dict[PrimExpr, None] = {}
        stack = [(root, False)] if self._is_active(root) else []
        while stack:
            node, operands_done = stack.pop()
            if operands_done:
                done[node] = None
            elif node not in done:
                stack.append((node, True))
                stack += [(each, False) for each in self._active_operands(node)]
        return [*reversed(done)]

    def _active_operands(self, node: PrimExpr) -> list[PrimExpr]:
        return [each for each in _operands_of(node) if self._is_active(each)]

    def _is_active(self, root: PrimExpr) -> bool:
        """Whether the value of a wanted element may change `root` continuously."""
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self._active:
                stack.pop()
                continue
            if isinstance(node, ProducerLoad):
                self._active[node] = node.dtype.is_float and self._is_wanted(node)
                continue
            operands = _operands_of(node) if node.dtype.is_float else ()
            waiting = [each for each in operands if each not in self._active]
            if waiting:
                stack += waiting
            else:
                self._active[node] = any(self._active[each] for each in operands)
        return self._active[root]

    # -- Choices ----------------------------------------------------------------------------------

    def _is_choice(self, node: PrimExpr) -> bool:
        """Whether `node` surrounds the adjoints below it."""
        is_chosen = isinstance(node, Select | e.Min | e.Max) and not self._is_linear(node)
        return is_lazy(node) or is_chosen

    def _is_linear(self, root: PrimExpr) -> bool:
        """Whether `root` consists of sums, multiples by numbers, and choices between these, so that
        an adjoint of 0 stays 0."""
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self._linear:
                stack.pop()
                continue
            operands = self._active_operands(node)
            waiting = [each for each in operands if each not in self._linear]
            if waiting:
                stack += waiting
            else:
                self._linear[node] = _is_linear_node(node) and all(
                    self._linear[each] for each in operands
                )
        return self._linear[root]

    # -- The rules --------------------------------------------------------------------------------

    def _operands(self, node: PrimExpr, g: PrimExpr, value: PrimExpr) -> _Operands:
        """The operands that have an adjoint, each with the share that comes from `node`, whose
        value is `value`."""
        return [(x, more) for x, more in self._parts(node, g, value) if self._is_active(x)]

    def _parts(self, node: PrimExpr, g: PrimExpr, y: PrimExpr) -> _Operands:
        match node:
            case e.Add(a, b):
                return [(a, g), (b, g)]
            case e.Sub(a, b):
                return [(a, g), (b, -g)]
            case e.Mul(a, b) if structural_equal(a, b):
                return [(a, product(product(g, a), e.const(2, g.dtype)))]
            case e.Mul(a, b):
                return [(a, product(g, b)), (b, product(a, g))]
            case e.Div(a, b):
                quotient = g / b
                return [(a, quotient), (b, -(quotient * y))]
            case e.Cast(_, value):
                return [(value, _converted(g, value))]
            case Select() | e.Min() | e.Max():
                zero = functions.zeros_like(g)
                return [
                    (x, where(condition, mine, zero)) for x, condition, mine in _branches(node, g)
                ]
            case Call() if node.op in INTRINSICS:
                return self._of_intrinsic(node, g, y)
        raise self._no_derivative(node)

    def _of_intrinsic(self, node: Call, g: PrimExpr, y: PrimExpr) -> _Operands:
        rule = INTRINSICS[node.op].derivative
        if rule is None:
            raise self._no_derivative(node)
        factors = rule(functions, y, *node.args)
        pairs = zip(node.args, factors, strict=True)
        return [(x, product(g, factor)) for x, factor in pairs if factor is not None]

    def _no_derivative(self, node: PrimExpr) -> CompileError:
        what = node.op if isinstance(node, Call) else type(node).__name__
        return CompileError(
            f"gradient: {self._name}: expected operations that have a derivative, found {what} in "
            f"{node}"
        )


def _operands_of(node: PrimExpr) -> Sequence[PrimExpr]:
    """The operands on which the value of a float may depend continuously."""
    match node:
        case e.BinaryOp(a, b):
            return a, b
        case Select(_, a, b):
            return a, b
        case e.Cast(_, value):
            return (value,)
        case Call(op="if_then_else", args=(_, a, b)):
            return a, b
        case Call():
            rule = INTRINSICS.get(node.op)
            constant = rule is not None and rule.is_piecewise_constant
            return () if constant else node.args
    return ()


def _is_linear_node(node: PrimExpr) -> bool:
    if isinstance(node, e.Mul):
        return any(functions.number(each) is not None for each in (node.a, node.b))
    return isinstance(node, ProducerLoad | e.Add | e.Sub | e.Cast | Select | e.Min | e.Max)


def _branches(node: PrimExpr, g: PrimExpr) -> list[tuple[PrimExpr, PrimExpr, PrimExpr]]:
    """The operands of a choice, each with the condition that chooses it and its adjoint there."""
    match node:
        case Select(condition, a, b) | Call(args=(condition, a, b)):
            return [(a, condition, g), (b, e.logical_not(condition), g)]
        case e.Min(a, b):
            return [_extreme(a, b, a <= b, a < b, g), _extreme(b, a, b <= a, b < a, g)]
        case e.Max(a, b):
            return [_extreme(a, b, a >= b, a > b, g), _extreme(b, a, b >= a, b > a, g)]
    raise e.unknown_node(node, "a choice")


def _extreme(
    mine: PrimExpr, other: PrimExpr, weak: PrimExpr, strict: PrimExpr, g: PrimExpr
) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
    """At a tie, half of the adjoint; with a constant, nothing."""
    if functions.number(other) is not None:
        return mine, strict, g
    return mine, weak, where(e.equal(mine, other), g * e.const(0.5, g.dtype), g)


def _converted(g: PrimExpr, value: PrimExpr) -> PrimExpr:
    """The adjoint of the operand of a conversion, from the conversion's adjoint `g`. Values of 16
    bits keep a wide adjoint."""
    widest = wide(value.dtype)
    return g if g.dtype in (value.dtype, widest) else e.cast(widest, g)
