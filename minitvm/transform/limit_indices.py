"""Restricts sizes to values for which 64 bits suffice for index arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import reduce
from typing import final

from minitvm.runtime.dtype import FLOAT64
from minitvm.runtime.record import record
from minitvm.runtime.threads_text import MAX_FAILURE_VALUES
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Call, PrimExpr, Var
from minitvm.tir.functor import children
from minitvm.tir.indices import is_exact_call, is_index_arithmetic, is_modular, is_wide, wraps
from minitvm.tir.stmt import PrimFunc, Stmt, with_body

LARGEST = 1 << 62  # half the range of 64 bits: later passes add far less than the other half


def limit_indices(func: PrimFunc) -> PrimFunc:
    """Makes a function refuse (``ValueError``, at entry) the sizes and scalar parameters for which
    index arithmetic of 64 bits might overflow.

    Before::

        for x in range(int64(n) * int64(m) * int64(k)):
            ...

    After::

        assert float64(n) * float64(m) * float64(k) <= 2**62, ValueError("f: expected sizes ...")
        for x in range(int64(n) * int64(m) * int64(k)):
            ...

    The bounds are sums and products of the greatest absolute values. They are easy to compute, and
    are upper bounds of the true values; 2**62 leaves room.
    """
    limits = _Limits(func)
    limits.statement(func.body)
    condition = limits.condition()
    if condition is None:
        return func
    shown = limits.variables[:MAX_FAILURE_VALUES]
    message = (
        f"{func.name}: expected sizes with which indices stay below 2**62, got "
        f"{', '.join(f'{var.name} = {{}}' for var in shown)}: pass smaller ones; arithmetic that "
        "is meant to wrap is that of unsigned integers"
    )
    checked = s.AssertStmt(condition, message, func.body, tuple(shown), "ValueError")
    return with_body(func, checked)


# A product of powers of variables that are known at entry, in the order in which they were met.
# Each variable has an exponent, and a lower bound, 0 or 1, to which its absolute value is raised.
_Product = tuple[tuple[Var, int, int], ...]

# Beyond these a factor or a power is too large for any value but 0 and 1.
_MOST_FACTOR = 1 << 64
_MOST_POWER = 63
_MOST_TERMS = 32  # terms of a bound; further ones are merged


@final
@record()
class _Bound:
    """An upper bound of an absolute value: a number, and a sum of products of variables' absolute
    values. `exact`: the value is index arithmetic."""

    most: int
    terms: Mapping[_Product, int]
    exact: bool


def _constant(most: int, *, exact: bool = True) -> _Bound:
    return _bound(most, {(): most}, exact)


def _sum(a: _Bound, b: _Bound) -> _Bound:
    terms = dict(a.terms)
    for product, factor in b.terms.items():
        terms[product] = terms.get(product, 0) + factor
    return _bound(a.most + b.most, terms, a.exact and b.exact)


def _greater(a: _Bound, b: _Bound) -> _Bound:
    terms = dict(a.terms)
    for product, factor in b.terms.items():
        terms[product] = max(factor, terms.get(product, 0))
    return _bound(max(a.most, b.most), terms, a.exact and b.exact)


def _bound(most: int, terms: Mapping[_Product, int], exact: bool) -> _Bound:
    """A bound with few terms. If there are too many, they are replaced by one term that is at least
    as large as each of them."""
    if len(terms) > _MOST_TERMS:
        powers: dict[Var, int] = {}
        for product in terms:
            for var, _, power in product:
                powers[var] = max(power, powers.get(var, 0))
        whole = tuple((var, 1, power) for var, power in powers.items())
        terms = {whole: sum(terms.values())}
    if max(terms.values(), default=0) > _MOST_FACTOR:
        terms = {product: min(factor, _MOST_FACTOR) for product, factor in terms.items()}
    return _Bound(min(most, _MOST_FACTOR), terms, exact)


class _Limits:
    """Gathers the bounds of the values that may be too large."""

    def __init__(self, func: PrimFunc) -> None:
        self.variables: list[Var] = []
        self._order: dict[Var, int] = {}
        self._bounds: dict[PrimExpr, _Bound] = {}
        self._seen: set[int] = set()
        self._needed: _Bound | None = None
        for param in func.params:
            if param not in func.buffer_map:
                self._input(param)
        for buffer in func.buffer_map.values():
            for dim in buffer.sizes:
                if isinstance(dim, Var) and dim not in self._bounds:
                    self._input(dim)
        for buffer in func.buffer_map.values():
            self._all_exact(buffer.sizes)

    def _input(self, var: Var) -> None:
        if not var.dtype.is_integral or var.dtype.is_bool:
            return
        self._order[var] = len(self._order)
        most = min(max(-var.dtype.min(), var.dtype.max()), 1 << 63)  # a call passes int64
        self._bounds[var] = _bound(most, {((var, 0, 1),): 1}, exact=True)

    def condition(self) -> PrimExpr | None:
        """The condition on sizes and parameters; None where it always holds."""
        if self._needed is None:
            return None
        used: dict[Var, None] = {}
        terms: list[PrimExpr] = []
        for product, factor in self._needed.terms.items():
            used.update(dict.fromkeys(var for var, _, _ in product))
            powers = [_power(_absolute(var, least), power) for var, least, power in product]
            terms.append(reduce(e.multiply, powers, e.const(float(factor), FLOAT64)))
        self.variables = list(used)
        return e.less_equal(reduce(e.add, terms), e.const(float(LARGEST), FLOAT64))

    # -- Where indices stand --

    def statement(self, node: Stmt) -> None:
        match node:
            case s.For():
                self._bind(node.loop_var, self._of_loop(node))
            case s.LetStmt():
                self._name(node.var, node.value)
            case s.BufferStore():
                self._all_exact(node.indices)
            case s.Allocate():
                self._all_exact(node.buffer.sizes)
            case s.AssertStmt():
                self._all_exact(node.values)
        for child in children(node):
            if isinstance(child, PrimExpr):
                self._value(child)
            else:
                self.statement(child)

    def _of_loop(self, node: s.For) -> _Bound:
        bound = _sum(self.of(node.min), self.of(node.extent))
        if bound.most > LARGEST and not bound.exact:
            return self._data(node.loop_var)
        return _Bound(bound.most, bound.terms, exact=True)

    def _name(self, var: Var, value: PrimExpr) -> None:
        if var.dtype.is_integral and var.dtype.lanes == 1:
            bound = self.of(value)
            self._bind(var, bound if bound.exact else self._data(var))

    def _bind(self, var: Var, bound: _Bound) -> None:
        """Binds a variable anew: copies of a loop share the variable, but have bounds of their
        own."""
        if var in self._bounds:
            self._bounds = {x: b for x, b in self._bounds.items() if isinstance(x, Var)}
            self._seen.clear()
        self._bounds[var] = bound

    def _data(self, node: PrimExpr) -> _Bound:
        element = node.dtype.element
        most = max(-element.min(), element.max() + 1) if element.is_integral else 0
        return _constant(most, exact=False)

    def _all_exact(self, nodes: tuple[PrimExpr, ...]) -> None:
        for node in nodes:
            if node.dtype.is_integral:
                self.of(node)

    def _value(self, node: PrimExpr) -> None:
        """Looks for index arithmetic in a value that may itself wrap."""
        if id(node) in self._seen:
            return
        self._seen.add(id(node))
        if isinstance(node, e.Let):
            self._name(node.var, node.value)
        below = children(node)
        if isinstance(node, e.BufferLoad | e.Comparison) or (
            _is_operator(node) and not is_modular(node)
        ):
            self._all_exact(tuple(each for each in below if not each.dtype.is_bool))
        elif isinstance(node, Call) and node.op in ("tvm_access_ptr", "tvm_stack_make_array"):
            self._all_exact(node.args[1:])
        for each in below:
            self._value(each)

    # -- Bounds --

    def of(self, node: PrimExpr) -> _Bound:
        """The bound of an exact value; the condition at entry keeps the bound small enough."""
        known = self._bounds.get(node)
        if known is None:
            known = self._bounds[node] = self._of(node)
        return known

    def _of(self, node: PrimExpr) -> _Bound:
        match node:
            case e.IntImm(value=value):
                return _constant(abs(int(value)))
            case e.Cast(value=value) if value.dtype.is_bool:
                return _constant(1, exact=is_index_arithmetic(value))
            case e.Cast(value=value) if value.dtype.is_integral:
                return self._cast(node, self.of(value))
            case e.Ramp(base, stride, lanes):
                return self._needed_of(
                    _sum(self.of(base), _product(self.of(stride), _constant(lanes), self._order))
                )
            case e.Broadcast(value):
                return self.of(value)
            case e.Let(var, value, body):
                self._name(var, value)
                return self.of(body)
            case e.Select(_, a, b) | Call(op="if_then_else", args=(_, a, b)):
                return _greater(self.of(a), self.of(b))
            case Call(op="likely", args=(a,)):
                return self.of(a)
            case e.BinaryOp(a=a, b=b) | Call(args=(a, b)) if _is_operator(node):
                return self._operator(node, self.of(a), self.of(b))
            case Call(op="bitwise_not", args=(a,)):
                return _sum(self.of(a), _constant(1))
        return self._data(node)

    def _cast(self, node: PrimExpr, bound: _Bound) -> _Bound:
        holds = self._data(node)
        if bound.most <= holds.most:
            return bound
        return _constant(holds.most, exact=bound.exact)

    def _operator(self, node: PrimExpr, a: _Bound, b: _Bound) -> _Bound:
        if wraps(node) and not (a.exact and b.exact and is_wide(node.dtype.element)):
            return self._data(node)
        if is_modular(node):
            if isinstance(node, e.Mul):
                made = _product(a, b, self._order)
            elif isinstance(node, Call):
                made = _product(a, _constant(1 << b.most), self._order)
            else:
                made = _sum(a, b)
            return self._needed_of(made)
        if isinstance(node, e.Min | e.Max):
            return _greater(a, b)
        if isinstance(node, e.Mod | e.FloorMod):
            return _Bound(b.most, b.terms, a.exact and b.exact)
        if isinstance(node, e.Div | e.FloorDiv) or (
            isinstance(node, Call) and node.op == "shift_right"
        ):
            return _Bound(a.most, a.terms, a.exact and b.exact)
        return _sum(_sum(a, b), _sum(_constant(1), _greater(a, b)))  # bitwise operators

    def _needed_of(self, bound: _Bound) -> _Bound:
        if bound.most > LARGEST and bound.exact:
            self._needed = bound if self._needed is None else _greater(self._needed, bound)
        return bound


def _product(a: _Bound, b: _Bound, order: Mapping[Var, int]) -> _Bound:
    terms: Counter[_Product] = Counter()
    for x, x_factor in a.terms.items():
        for y, y_factor in b.terms.items():
            if not x or not y:
                terms[x or y] += x_factor * y_factor
                continue
            powers: Counter[tuple[Var, int]] = Counter()
            for var, least, power in (*x, *y):
                powers[var, least] += power
            found = sorted(powers, key=lambda each: (order[each[0]], each[1]))
            merged = tuple((*each, min(powers[each], _MOST_POWER)) for each in found)
            terms[merged] += x_factor * y_factor
    return _bound(a.most * b.most, terms, a.exact and b.exact)


def _absolute(var: Var, least: int) -> PrimExpr:
    value = e.absolute(e.cast(FLOAT64, var))
    return e.maximum(value, e.const(1.0, FLOAT64)) if least else value


def _power(value: PrimExpr, exponent: int) -> PrimExpr:
    if exponent == 1:
        return value
    half = _power(value, exponent // 2)
    return half * half * value if exponent % 2 else half * half


def _is_operator(node: PrimExpr) -> bool:
    """Whether a node computes an integer from two operands."""
    if not node.dtype.is_integral or node.dtype.is_bool:
        return False
    if isinstance(node, Call):
        return is_exact_call(node) and len(node.args) == 2
    return isinstance(node, e.Arithmetic)
