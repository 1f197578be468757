"""The arithmetic of lanes: expressions of a loop's variable as vectors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from minitvm.arith.effects import loads
from minitvm.arith.prover import Prover
from minitvm.arith.scopes import binding
from minitvm.runtime.dtype import INT32, INT64, UINT32, DType
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import PrimExpr, Var
from minitvm.tir.functor import Mutator, mentions, rebuild, walk_once


class LaneArithmetic(Mutator):
    """Rewrites the expressions of one loop. A value that is the same in every lane stays a scalar,
    any other becomes a vector; a Broadcast joins the two. Numbers in a progression become a Ramp,
    and comparisons of them are made in narrow lanes.

    Parameters
    ----------
    loop
        The loop, whose iterations are lanes.
    prover
        The facts that hold in its body.
    """

    def __init__(self, loop: s.For, prover: Prover) -> None:
        super().__init__()
        self._loop = loop
        self._prover = prover
        lanes = e.const_int(loop.extent)
        assert lanes is not None
        self._lanes = lanes
        one = e.const(1, loop.loop_var.dtype)
        self._vectors: dict[Var, PrimExpr] = {loop.loop_var: e.Ramp(loop.min, one, lanes)}

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """A scope in which an expression may be rewritten in another way than outside."""
        outside, self._made = self._made, {}
        try:
            yield
        finally:
            self._made = outside

    @contextmanager
    def _binding(self, var: Var, made: Var) -> Iterator[None]:
        """A scope in which `made` stands for `var`."""
        outside, self._vectors = self._vectors, {**self._vectors, var: made}
        try:
            with self._apart():
                yield
        finally:
            self._vectors = outside

    def _is_vector(self, node: PrimExpr) -> bool:
        return node.dtype.lanes > 1

    def _vector(self, node: PrimExpr) -> PrimExpr:
        return node if self._is_vector(node) else e.Broadcast(node, self._lanes)

    def _wide(self, dtype: DType) -> DType:
        return dtype.with_lanes(self._lanes)

    def visit_Var(self, node: Var) -> PrimExpr:
        return self._vectors.get(node, node)

    def _operator(self, node: e.BinaryOp) -> PrimExpr:
        a, b = self.expr(node.a), self.expr(node.b)
        if not self._is_vector(a) and not self._is_vector(b):
            return rebuild(node, {"a": a, "b": b})
        return rebuild(node, {"a": self._vector(a), "b": self._vector(b)})

    visit_Div = visit_Mod = visit_Min = visit_Max = visit_And = visit_Or = _operator

    def _ring(self, node: e.Add | e.Sub | e.Mul) -> PrimExpr:
        """Sums and products: a sum of progressions is a progression, also modulo 2**bits."""
        made = self._operator(node)
        if not made.dtype.is_integral or not isinstance(made, e.Add | e.Sub | e.Mul):
            return made
        a, b = _progression(made.a), _progression(made.b)
        if a is None or b is None:
            return made
        if isinstance(made, e.Mul):
            if not _is_zero(a[1]) and not _is_zero(b[1]):
                return made
            (factor, _), (base, step) = (a, b) if _is_zero(a[1]) else (b, a)
            return self._ramp(base * factor, step * factor)
        if isinstance(made, e.Add):
            return self._ramp(a[0] + b[0], a[1] + b[1])
        return self._ramp(a[0] - b[0], a[1] - b[1])

    visit_Add = visit_Sub = visit_Mul = _ring

    def _ramp(self, base: PrimExpr, step: PrimExpr) -> PrimExpr:
        return base if _is_zero(step) else e.Ramp(base, step, self._lanes)

    def _division(self, node: e.FloorDiv | e.FloorMod) -> PrimExpr:
        """Quotients and remainders: a quotient that is the same in all lanes is a scalar, and its
        remainders are a progression."""
        made = self._operator(node)
        divisor = e.const_int(node.b)
        if divisor is None or divisor <= 0 or not isinstance(made, e.FloorDiv | e.FloorMod):
            return made
        progression = _progression(made.a)
        if progression is None:
            return made
        base, step = progression
        if not self._has_one_quotient(node.a, base, divisor):
            return made
        if isinstance(made, e.FloorDiv):
            return e.floordiv(base, node.b)
        return self._ramp(e.floormod(base, node.b), step)

    visit_FloorDiv = visit_FloorMod = _division

    def _has_one_quotient(self, dividend: PrimExpr, first: PrimExpr, divisor: int) -> bool:
        quotients = [
            self._prover.affine(e.FloorDiv(each, e.const(divisor, each.dtype)))
            for each in (dividend, first)
        ]
        difference = quotients[0] - quotients[1]
        return self._prover.proves(difference, -difference)

    def _comparison(self, node: e.Comparison) -> PrimExpr:
        """Compares index arithmetic by the numbers of the lanes: a constant vector of narrow
        integers is compared, which is cheap for any width of the indices."""
        made = self._operator(node)
        if not isinstance(made, e.Comparison) or not self._is_vector(made):
            return made
        a, b = _progression(made.a), _progression(made.b)
        if a is None or b is None or not self._is_index(node.a) or not self._is_index(node.b):
            return made
        if self._prover.can_prove(node):  # it holds in every lane
            return e.const(True)
        step = e.const_int(a[1] - b[1])
        if step is None:
            return made
        if step == 0:
            return e.compare(type(made), a[0], b[0])
        ramp = e.Ramp(e.const(0), e.const(step), self._lanes)
        if isinstance(made, e.EQ | e.NE) and a[0].dtype == b[0].dtype == INT32:
            # Numbers of 32 bits are equal if they are equal modulo 2^32.
            wrapped = e.cast(INT32, e.cast(UINT32, b[0]) - e.cast(UINT32, a[0]))
            return type(made)(ramp, e.Broadcast(wrapped, self._lanes))
        distance = e.cast(INT64, b[0]) - e.cast(INT64, a[0])  # step * lane (op) distance
        last = step * (self._lanes - 1)
        low, high = min(0, last) - 1, max(0, last) + 1
        if low < INT32.min() or high > INT32.max() or not self._prover.is_exact(distance):
            return made
        known = e.const_int(distance)
        if known is not None and not low < known < high:
            return e.compare(type(made), e.const(0), e.const(min(max(known, low), high)))
        if not self._prover.proves(self._prover.affine(distance) - low):
            distance = e.maximum(distance, e.const(low))
        clamped = e.cast(INT32, e.minimum(distance, e.const(high)))
        return type(made)(ramp, e.Broadcast(clamped, self._lanes))

    visit_EQ = visit_NE = visit_LT = visit_LE = visit_GT = visit_GE = _comparison

    def _is_index(self, node: PrimExpr) -> bool:
        """Whether arithmetic on integers of `node` can't wrap."""
        return (
            node.dtype.is_int
            and node.dtype.bits >= 32
            and all(
                self._prover.is_exact(each)
                for each in walk_once(node)
                if isinstance(each, e.Add | e.Sub | e.Mul)
            )
        )

    def visit_Not(self, node: e.Not) -> PrimExpr:
        return e.Not(self.expr(node.a))

    def visit_Select(self, node: e.Select) -> PrimExpr:
        condition = self.expr(node.condition)
        a, b = self.expr(node.true_value), self.expr(node.false_value)
        if not any(map(self._is_vector, (condition, a, b))):
            return e.Select(condition, a, b)
        # Data decide, so that no branch can be predicted.
        if isinstance(condition, e.Comparison) and loads(condition):
            sides = {"a": self._vector(condition.a), "b": self._vector(condition.b)}
            condition = rebuild(condition, sides)
        return e.Select(condition, self._vector(a), self._vector(b))

    def visit_Cast(self, node: e.Cast) -> PrimExpr:
        value = self.expr(node.value)
        if not self._is_vector(value):
            return e.Cast(node.dtype, value)
        source, target = node.value.dtype, node.dtype
        to_integer = target.is_integral and not target.is_bool
        narrower = target.bits <= source.bits  # sums stay sums modulo a smaller power of 2
        if not isinstance(value, e.Ramp) or not to_integer:
            return e.Cast(self._wide(target), value)
        if narrower or self._is_progression(node.value, value):
            return self._ramp(e.cast(target, value.base), e.cast(target, value.stride))
        return e.Cast(self._wide(target), value)

    def _is_progression(self, node: PrimExpr, lanes: e.Ramp) -> bool:
        """Whether the lanes of `node`, rewritten as `lanes`, are a progression without wrapping."""
        var, step = self._loop.loop_var, e.const_int(lanes.stride)
        form = self._prover.affine(node)
        others = [atom for atom in form.terms if atom is not var]
        return node.dtype.is_int and form.terms.get(var) == step and not mentions(var, *others)

    def visit_Let(self, node: e.Let) -> PrimExpr:
        value = self.expr(node.value)
        var = Var(node.var.name, value.dtype) if self._is_vector(value) else node.var
        scope = binding(self._prover, node.var, node.value, node.body)
        with self._binding(node.var, var), scope:
            return e.Let(var, value, self.expr(node.body))


def _progression(node: PrimExpr) -> tuple[PrimExpr, PrimExpr] | None:
    """The first lane of an integer vector and the step between lanes, where there is one."""
    if isinstance(node, e.Ramp):
        return node.base, node.stride
    if isinstance(node, e.Broadcast):
        return node.value, e.const(0, node.value.dtype)
    return None


def _is_zero(value: PrimExpr) -> bool:
    return e.const_int(value) == 0
