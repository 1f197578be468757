"""The adjoints of the elements that an expression reads: reverse mode on one expression.

The adjoint of a value is the derivative of the result by this value, times the result's adjoint.
Adjoints are computed from the result down: the rule of a node's class gives the adjoints of its
operands from the adjoint of the node::

    y = a * exp(b)      with adjoint g of y
        a     has       g * exp(b)
        exp(b) has      g * a, and so b has g * a * exp(b)

The branch that a choice doesn't take has no part in the result. So the choice surrounds the
adjoints of all reads below it, which keeps out infinities and NaN of the other branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, final

from minitvm.arith.effects import is_lazy
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.autodiff import functions
from minitvm.te.autodiff.functions import product, where, wide
from minitvm.tir import expr as e
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
    return _merged(list(backward.below(_without_lets(result), adjoint, known)))


def _merged(found: Sequence[ReadAdjoint]) -> list[ReadAdjoint]:
    """The adjoints of one element under the same guards, added up."""
    made: list[ReadAdjoint] = []
    for each in found:
        place = next((i for i, other in enumerate(made) if _is_same_read(each, other)), None)
        if place is None:
            made.append(each)
        else:
            made[place] = ReadAdjoint(each.load, made[place].value + each.value, each.guards)
    return made


def _is_same_read(a: ReadAdjoint, b: ReadAdjoint) -> bool:
    return structural_equal(a.load, b.load) and structural_equal(a.guards, b.guards)


class _Lets(Mutator):
    def visit_Let(self, node: e.Let) -> PrimExpr:
        return substitute(self.expr(node.body), {node.var: self.expr(node.value)})


def _without_lets(node: PrimExpr) -> PrimExpr:
    """`node` with each name replaced by the (shared) expression that it stands for."""
    return _Lets().expr(node)


class _Backward:
    """Reverse mode on one expression of a stage, from the result down."""

    def __init__(self, name: str, is_wanted: Callable[[ProducerLoad], bool]) -> None:
        self._name = name
        self._is_wanted = is_wanted
        self._active: dict[PrimExpr, bool] = {}
        self._linear: dict[PrimExpr, bool] = {}

    def below(
        self, root: PrimExpr, adjoint: PrimExpr, known: PrimExpr | None
    ) -> Iterator[ReadAdjoint]:
        """The adjoints of the elements that `root` reads, by the adjoint of its value; `known` is
        the value, if it has been computed."""
        adjoints: dict[PrimExpr, PrimExpr] = {root: adjoint}
        for node in self._from_the_top(root):
            mine = adjoints.pop(node, None)
            if mine is None:
                continue  # only functions without a derivative depend on it, such as a sign
            if isinstance(node, ProducerLoad):
                yield ReadAdjoint(node, mine)
            elif self._is_choice(node):
                yield from self._chosen(node, mine, known if node is root else None)
            else:
                value = known if node is root and known is not None else node
                for operand, more in self._operands(node, mine, value):
                    before = adjoints.get(operand)
                    adjoints[operand] = more if before is None else before + more

    def _from_the_top(self, root: PrimExpr) -> list[PrimExpr]:
        """The nodes with an adjoint, each before its operands; not those below choices."""
        done: dict[PrimExpr, None] = {}
        stack = [(root, False)] if self._is_active(root) else []
        while stack:
            node, operands_done = stack.pop()
            if operands_done:
                done[node] = None
            elif node not in done:
                stack.append((node, True))
                if not self._is_choice(node):
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

    def _chosen(
        self, node: PrimExpr, adjoint: PrimExpr, known: PrimExpr | None
    ) -> Iterator[ReadAdjoint]:
        """The adjoints below a choice, each surrounded by the choice. The choice has the value of
        its operand."""
        for operand, condition, mine in _branches(node, adjoint):
            if not self._is_active(operand):
                continue
            for each in self.below(operand, mine, known):
                if is_lazy(node):
                    yield ReadAdjoint(each.load, each.value, (condition, *each.guards))
                else:
                    zero = functions.zeros_like(each.value)
                    value = where(condition, each.value, zero)
                    yield ReadAdjoint(each.load, value, each.guards)

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
