"""Sets of integers between two expressions, and the regions that accesses touch, by classic
names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from minitvm.arith.prover import Prover
from minitvm.arith.regions import Span, Spans
from minitvm.arith.simplify import Simplifier
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.depth import deep_expressions
from minitvm.tir.expr import Buffer, PrimExpr, Range, Var, as_expr, const, described
from minitvm.tir.functor import children, free_vars, walk_leaves_first


@final
@record(eq=False)
class IntervalSet:
    """The integers from `min_value` to `max_value`, both included; None stands for an unknown end.

    >>> IntervalSet(0, 7)
    IntervalSet[0, 7]
    """

    min_value: PrimExpr | None
    max_value: PrimExpr | None

    def __init__(self, min_value: Any, max_value: Any) -> None:
        for name, value in (("min_value", min_value), ("max_value", max_value)):
            object.__setattr__(self, name, None if value is None else as_expr(value))

    @staticmethod
    def single_point(point: Any) -> IntervalSet:
        """The set of one value."""
        return IntervalSet(point, point)

    def is_everything(self) -> bool:
        """Whether nothing is known of either end."""
        return self.min_value is None and self.max_value is None

    def is_nothing(self) -> bool:
        """Whether the set is surely empty."""
        if self.min_value is None or self.max_value is None:
            return False
        return Prover().can_prove(e.less(self.max_value, self.min_value))

    def __repr__(self) -> str:
        low = "-inf" if self.min_value is None else self.min_value
        return f"IntervalSet[{low}, {'+inf' if self.max_value is None else self.max_value}]"


def interval_of(prover: Prover, expr: PrimExpr, dom_map: Mapping[Any, Any]) -> IntervalSet:
    """The values of `expr` while variables run over sets or ranges; the others are fixed."""
    if not expr.dtype.is_integral:
        raise CompileError(f"int_set: expected an integer expression, got {expr} of {expr.dtype}")
    if not isinstance(dom_map, Mapping):
        raise CompileError(
            f"int_set: expected a mapping from variables to ranges, got {described(dom_map)}"
        )
    spans = Spans(prover)
    for key, values in dom_map.items():
        var = as_expr(key)
        if not isinstance(var, Var):
            raise CompileError(f"int_set: expected variables as keys, got {described(key)}")
        spans.let(var, _span(spans, values))
    found = spans.of(expr)
    if found is None:
        return IntervalSet(None, None)
    simple = Simplifier(prover).expr
    low, high = (spans.expression(end, expr.dtype) for end in (found.low, found.high))
    return IntervalSet(simple(low), simple(high))


def _span(spans: Spans, values: Any) -> Span | None:
    if isinstance(values, Range):
        return spans.of_range(values)
    if isinstance(values, IntervalSet):
        if values.min_value is None or values.max_value is None:
            return None
        low, high = spans.of(values.min_value), spans.of(values.max_value)
        return None if low is None or high is None else Span(low.low, high.high)
    raise CompileError(f"int_set: expected a Range or an IntervalSet, got {described(values)}")


def detect_linear_equation(expr: Any, var_list: Sequence[Any]) -> list[PrimExpr]:
    """The coefficient of each variable, then the rest, of an expression that is linear in them: a
    sum of them times expressions without them. An empty list for any other expression.

    >>> x, y, n = Var("x"), Var("y"), Var("n")
    >>> detect_linear_equation(x * 2 + y * n + (n + 1), [x, y])
    [2, n, n + 1]
    >>> detect_linear_equation(x * y, [x, y])
    []
    """
    variables = variables_of("detect_linear_equation", var_list)
    value = as_expr(expr)
    found = _Linear(variables).read(value)
    simple = Simplifier(Prover()).expr
    with deep_expressions("detect_linear_equation", value):
        return [simple(each) for each in found or ()]


def variables_of(name: str, var_list: Any) -> list[PrimExpr]:
    """Variables of integers, from a caller's list of variables and axes."""
    given = list(var_list) if isinstance(var_list, list | tuple) else [None]
    variables: list[Any] = [
        as_expr(each) if isinstance(each, e.ExprOperators) else each for each in given
    ]
    for var in variables:
        if not isinstance(var, Var) or not var.dtype.is_integral:
            raise CompileError(
                f"{name}: expected a list of integer variables, got {described(var_list)}"
            )
    return variables


class _Linear:
    """Reads expressions as linear forms in some variables, however deeply they are nested."""

    def __init__(self, variables: Sequence[PrimExpr]) -> None:
        self._variables = variables
        # For each expression that contains variables; None if it isn't linear.
        self._forms: dict[PrimExpr, list[PrimExpr] | None] = {}

    def read(self, expr: PrimExpr) -> list[PrimExpr] | None:
        """The coefficients, and the rest."""
        for each in walk_leaves_first(expr):
            if isinstance(each, Var):
                if any(each is var for var in self._variables):
                    self._forms[each] = self._with_rest(const(0, each.dtype), each)
            elif any(part in self._forms for part in children(each)):
                self._forms[each] = self._of(each)
        return self._form(expr)

    def _form(self, expr: PrimExpr) -> list[PrimExpr] | None:
        return self._forms[expr] if expr in self._forms else self._with_rest(expr)

    def _with_rest(self, rest: PrimExpr, of: PrimExpr | None = None) -> list[PrimExpr]:
        return [*(const(int(of is var), rest.dtype) for var in self._variables), rest]

    def _of(self, expr: PrimExpr) -> list[PrimExpr] | None:
        if not isinstance(expr, e.Add | e.Sub | e.Mul):
            return None
        a, b = self._form(expr.a), self._form(expr.b)
        if a is None or b is None:
            return None
        if isinstance(expr, e.Mul):
            if expr.b not in self._forms:
                return [e.multiply(x, expr.b) for x in a]
            return None if expr.a in self._forms else [e.multiply(x, expr.a) for x in b]
        join = e.add if isinstance(expr, e.Add) else e.subtract
        return [join(x, y) for x, y in zip(a, b, strict=True)]


def DomainTouched(
    stmt: s.Stmt, buffer: Buffer, consider_loads: bool = True, consider_stores: bool = True
) -> list[Range]:
    """The least box that holds every element of a buffer that a statement reads or writes: a range
    for each dimension, in terms of the variables that the statement doesn't bind.

    Raises
    ------
    CompileError
        When nothing accesses the buffer, or an index has no known bounds.

    >>> from minitvm import te, tir
    >>> i, n, A = te.var("i"), te.var("n"), tir.decl_buffer((100,), name="A")
    >>> store = tir.BufferStore(A, 1.0, [i * 2 + n])
    >>> DomainTouched(tir.For(i, 0, 8, tir.ForKind.SERIAL, store), A)
    [range(min=n, ext=15)]
    """
    prover = Prover()
    spans = Spans(prover)
    kinds = [kind for kind, asked in (
        (e.BufferLoad, consider_loads), (s.BufferStore, consider_stores)) if asked]  # fmt: skip
    boxes: list[list[Span]] = []
    _visit(stmt, buffer, tuple(kinds), spans, boxes)
    if not boxes:
        raise CompileError(
            f"DomainTouched: {buffer.name}: expected an access in the statement, found none"
        )
    simple = Simplifier(prover).expr
    ranges = []
    for dim, size in enumerate(buffer.shape):
        whole = boxes[0][dim]
        for box in boxes[1:]:
            whole = spans.union(whole, box[dim])
        low, extent = (
            simple(spans.expression(form, size.dtype)) for form in (whole.low, whole.extent)
        )
        ranges.append(Range.from_min_extent(low, extent))
    return ranges


def _visit(
    node: Any, buffer: Buffer, kinds: tuple[type, ...], spans: Spans, boxes: list[list[Span]]
) -> None:
    """Collects the spans of the indices of all accesses below a node."""
    if isinstance(node, s.For):
        spans.let(node.loop_var, spans.of_range(Range.from_min_extent(node.min, node.extent)))
    elif isinstance(node, s.LetStmt | e.Let):
        spans.let(node.var, spans.of(node.value) if node.value.dtype.is_integral else None)
    if isinstance(node, kinds) and getattr(node, "buffer", None) is buffer:
        box = []
        for dim, index in enumerate(node.indices):  # type: ignore[attr-defined]
            span = spans.of(index) if index.dtype.lanes == 1 else None
            if span is None:
                names = ", ".join(var.name for var in free_vars(index)) or "constants"
                raise CompileError(
                    f"DomainTouched: {buffer.name}: index {dim}: expected an index with known "
                    f"bounds, got {index}, of {names}"
                )
            box.append(span)
        boxes.append(box)
    for child in children(node):
        _visit(child, buffer, kinds, spans, boxes)
