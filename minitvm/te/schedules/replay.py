"""Replays traces: executes the statements of which a trace consists, and refuses all others."""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from minitvm.runtime.errors import CompileError
from minitvm.te.intrinsics.dot_product import (
    dot_product,
    dot_product_of_lanes,
    interleave,
    interleave_rows,
)
from minitvm.te.intrinsics.matrix_product import matrix_product
from minitvm.te.operation import thread_axis
from minitvm.te.python_operators import BINARY, UNARY
from minitvm.te.schedules.schedule import Schedule, create_schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.schedules.trace import Traced, is_primitive
from minitvm.te.tensor import Operation, Tensor
from minitvm.tir import expr as e
from minitvm.tir import op as operators
from minitvm.tir.expr import IterVar, PrimExpr
from minitvm.tir.intrinsics import FUNCTIONS

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "te.create_schedule": create_schedule,
    "te.thread_axis": thread_axis,
    "te.all": operators.all,
    "te.any": operators.any,
    "te.max": e.maximum,
    "te.min": e.minimum,
    "te.dot_product": dot_product,
    "te.dot_product_of_lanes": dot_product_of_lanes,
    "te.interleave": interleave,
    "te.interleave_rows": interleave_rows,
    "te.matrix_product": matrix_product,
    "tir.Not": e.logical_not,
    "tir.Select": lambda *args: e.Select(*map(e.as_expr, args)),
    "tir.const": e.const,
    "tir.truncdiv": e.truncdiv,
    "tir.truncmod": e.truncmod,
    "tir.call_intrin": operators.call_intrin,
}
_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    Tensor: ("op", "shape"),
    Stage: ("op",),
    Operation: ("axis", "reduce_axis", "scan_axis", "input_tensors"),
    IterVar: ("var",),
}
_METHODS: dict[type, tuple[str, ...]] = {Operation: ("output",), PrimExpr: ("astype",)}
_BINARY = {**BINARY, ast.Eq: e.equal, ast.NotEq: e.not_equal}  # numbers can be compared as well


def replay(
    text: str,
    outputs: Operation | Tensor | Sequence[Operation | Tensor],
    names: Mapping[str, Any] | None = None,
) -> Schedule:
    """The schedule of `outputs` that a trace, the text of :meth:`Schedule.trace`, describes.

    The computation must be like the one that was scheduled. The text is parsed, and not run by
    Python: a line applies a primitive, or names a tensor, an axis or a size; any other statement is
    refused. So an untrusted trace can make a bad schedule, and do nothing worse.

    Parameters
    ----------
    text : str
        Lines as :meth:`Schedule.trace` prints them.
    outputs : Tensor or Operation, or a list of them
        The outputs, as for :func:`create_schedule`; the text refers to them by their operations'
        names.
    names : mapping
        The values of further names in the text: the intrinsics of ``tensorize``.

    Raises
    ------
    CompileError
        When `text` is no trace, or a primitive refuses its arguments.

    >>> from minitvm import te
    >>> B = te.compute((64,), lambda i: i, name="B")
    >>> s = te.create_schedule(B.op)
    >>> outer, inner = s[B].split(B.op.axis[0], 8)
    >>> te.replay(s.trace(), B).trace() == s.trace()
    True
    """
    if not isinstance(text, str):
        raise CompileError(f"replay: expected the text of s.trace(), got {text!r}")
    ops = create_schedule(outputs).outputs
    given = create_schedule(ops).calls.names_of(ops)
    try:
        statements = ast.parse(text).body
    except SyntaxError as error:
        raise CompileError(
            f"replay: line {error.lineno}: expected Python as s.trace() prints it: {error.msg}"
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise CompileError(f"replay: expected the text of s.trace(): {error}") from None
    reader = _Reader({**given, **(names or {})})
    for statement in statements:
        try:
            reader.run(statement)
        except RecursionError:
            raise reader.refusal(statement, "an expression nested less deeply") from None
    made = reader.names.get("s")
    if not isinstance(made, Schedule):
        raise CompileError("replay: expected a text that makes a schedule s, as s.trace() does")
    return made


_FUNCTIONS["te.replay"] = replay  # of a version of the schedule


@final
class _Reader:
    """Executes the statements of a trace."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names

    def refusal(self, node: ast.AST, expected: str) -> CompileError:
        line, text = getattr(node, "lineno", 0), _shortened(node)
        return CompileError(f"replay: line {line}: expected {expected}, got {text}")

    def run(self, statement: ast.stmt) -> None:
        """Executes a statement: a call of a primitive, or names for tensors, axes and sizes."""
        match statement:
            case ast.Expr(ast.Call() as call):
                self._value(call)
            case ast.Assign([ast.Name(name)], value):
                self.names[name] = self._value(value)
            case ast.Assign([ast.Tuple(targets)], value):
                results = self._value(value)
                if not isinstance(results, (list, tuple)) or len(results) != len(targets):
                    raise self.refusal(statement, "as many names as results")
                for target, result in zip(targets, results, strict=True):
                    if not isinstance(target, ast.Name):
                        raise self.refusal(target, "a name")
                    self.names[target.id] = result
            case _:
                raise self.refusal(statement, "a call of a primitive, or a name for its result")

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(bool() | int() | float() | str() | None as value):
                return value
            case ast.Name(name):
                if name not in self.names:
                    raise self.refusal(node, "a name that the text gave, or that of an output")
                return self.names[name]
            case ast.Tuple(members) | ast.List(members):
                values = [self._value(member) for member in members]
                return values if isinstance(node, ast.List) else tuple(values)
            case ast.UnaryOp(by, operand) if type(by) in UNARY:
                return UNARY[type(by)](self._number(operand))
            case ast.BinOp(left, by, right) | ast.Compare(left, [by], [right]):
                if type(by) not in _BINARY:
                    raise self.refusal(node, "an operator that a trace prints")
                return self._binary(node, _BINARY[type(by)], left, right)
            case ast.Attribute(of, name):
                return self._attribute(node, self._value(of), name)
            case ast.Subscript(of, at):
                return self._element(node, self._value(of), at)
            case ast.Lambda():
                return self._function(node)
            case ast.Call():
                return self._call(node)
        raise self.refusal(node, "an expression of a trace")

    def _number(self, node: ast.expr) -> Any:
        """The operand of an operator: an expression, an axis or a number."""
        value = self._value(node)
        if not isinstance(value, (PrimExpr, IterVar, Tensor, int, float)):
            raise self.refusal(node, "a number or an expression")
        return value

    def _binary(
        self, node: ast.expr, by: Callable[[Any, Any], Any], left: ast.expr, right: ast.expr
    ) -> Any:
        a, b = self._number(left), self._number(right)
        if by is operator.lshift and not isinstance(a, PrimExpr) and not isinstance(b, PrimExpr):
            raise self.refusal(node, "a shift of an expression")
        try:
            return by(a, b)
        except (TypeError, ArithmeticError) as error:
            raise CompileError(f"replay: line {node.lineno}: {_shortened(node)}: {error}") from None

    def _attribute(self, node: ast.expr, value: Any, name: str) -> Any:
        if not _is_among(_ATTRIBUTES, value, name) or not hasattr(value, name):
            raise self.refusal(node, "a part of a tensor, an operation or an axis")
        return getattr(value, name)

    def _element(self, node: ast.expr, value: Any, at: ast.expr) -> Any:
        if isinstance(value, Schedule):
            return value[self._value(at)]
        match at:
            case ast.Constant(int() as index) if isinstance(value, (list, tuple)):
                if not isinstance(index, bool) and index < len(value):
                    return value[index]
        raise self.refusal(node, "a stage, or one of the axes, dimensions or inputs there are")

    def _function(self, node: ast.Lambda) -> Callable[..., Any]:
        """A layout: a function of indices."""
        takes = node.args
        if takes.defaults or takes.kwonlyargs or takes.posonlyargs or takes.vararg or takes.kwarg:
            raise self.refusal(node, "a function of indices")
        parameters = [each.arg for each in takes.args]
        outside = self.names

        def layout(*indices: Any) -> Any:
            return _Reader({**outside, **dict(zip(parameters, indices, strict=True))})._value(
                node.body
            )

        # Only the number of the function's parameters is needed.
        layout.__signature__ = _signature(parameters)  # type: ignore[attr-defined]  # as inspect has it
        return layout

    def _call(self, node: ast.Call) -> Any:
        function = self._callee(node.func)
        args = [self._value(each) for each in node.args]
        named = {}
        for each in node.keywords:
            if each.arg is None:
                raise self.refusal(node, "arguments one by one")
            named[each.arg] = self._value(each.value)
        self._check_harmless(node, [*args, *named.values()])
        try:
            return function(*args, **named)
        except (TypeError, ValueError, AttributeError) as error:
            raise CompileError(f"replay: line {node.lineno}: {_shortened(node)}: {error}") from None

    def _callee(self, node: ast.expr) -> Callable[..., Any]:
        match node:
            case ast.Attribute(ast.Name("te" | "tir" as room), name) if room not in self.names:
                if f"{room}.{name}" in _FUNCTIONS:
                    return _FUNCTIONS[f"{room}.{name}"]
            case ast.Attribute(of, name):
                value = self._value(of)
                if isinstance(value, Traced) and is_primitive(value, name):
                    return getattr(value, name)  # type: ignore[no-any-return]  # a method
                if _is_among(_METHODS, value, name):
                    return getattr(value, name)  # type: ignore[no-any-return]  # a method
            case ast.Name():
                value = self._value(node)
                if isinstance(value, Tensor):
                    return value
        raise self.refusal(node, "a primitive, or a function that a trace prints")

    def _check_harmless(self, node: ast.Call, args: Sequence[Any]) -> None:
        """Refuses primitives that run code from outside of the program."""
        match node.func:
            case ast.Attribute(_, "pragma") if _holds(args, "import_llvm"):
                raise self.refusal(node, "no code of the text's own: apply this pragma by hand")
            case ast.Attribute(_, "call_intrin"):
                if len(args) < 2 or not isinstance(args[1], str) or args[1] not in FUNCTIONS:
                    raise self.refusal(node, "a function of numbers: apply this primitive by hand")


def _signature(parameters: Sequence[str]) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_ONLY
    return inspect.Signature([inspect.Parameter(each, kind) for each in parameters])


def _shortened(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _holds(values: Sequence[Any], text: str) -> bool:
    return any(isinstance(each, str) and each == text for each in values)


def _is_among(table: Mapping[type, tuple[str, ...]], value: Any, name: str) -> bool:
    return any(isinstance(value, of) and name in parts for of, parts in table.items())
