"""The values of expressions in a hybrid function: known now, or expressions of loop IR."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

from minitvm.te.hybrid.calls import call
from minitvm.te.hybrid.frame import Frame
from minitvm.te.hybrid.names import captured, read_name
from minitvm.te.hybrid.values import (
    Part,
    as_part,
    is_cheap,
    is_known,
    number_if_known,
    shown,
    simple,
)
from minitvm.te.python_operators import BINARY, UNARY
from minitvm.tir import expr as e
from minitvm.tir import op
from minitvm.tir.expr import BufferLoad, IntImm, PrimExpr

_BINARY = {**BINARY, ast.Pow: operator.pow}
# Comparisons that are defined only for numbers, texts and tuples known now.
_KNOWN_ONLY: dict[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


def value_of(frame: Frame, node: ast.expr) -> Any:
    """The value of an expression."""
    made = _VALUES.get(type(node))
    if made is None:
        raise frame.unsupported(node)
    with frame.located(node):
        return made(frame, node)


def _constant(frame: Frame, node: ast.Constant) -> Any:
    if is_known(node.value):
        return node.value
    raise frame.error(node, f"expected a number or a string, got {node.value!r}")


def _tuple(frame: Frame, node: ast.Tuple | ast.List) -> tuple[Any, ...]:
    return tuple(value_of(frame, each) for each in node.elts)


# -- Operators ------------------------------------------------------------------------------------


def _binary(frame: Frame, node: ast.BinOp) -> Any:
    return of_two(frame, node, node.op, value_of(frame, node.left), value_of(frame, node.right))


def of_two(frame: Frame, node: ast.AST, operation: ast.AST, a: Any, b: Any) -> Any:
    """The value of an operator on two values."""
    if type(operation) not in _BINARY:
        raise frame.error(
            node, f"expected an operator on numbers, found {type(operation).__name__}"
        )
    function = _BINARY[type(operation)]
    if is_known(a) and is_known(b):
        return function(a, b)
    lenient = isinstance(operation, ast.cmpop)
    return frame.program.numbers.made(function, a, b, lenient=lenient)


def _unary(frame: Frame, node: ast.UnaryOp) -> Any:
    if isinstance(node.op, ast.Not):
        held = condition(frame, node.operand)
        return not held if isinstance(held, bool) else e.logical_not(held)
    value = value_of(frame, node.operand)
    if isinstance(node.op, ast.UAdd):
        return +value if is_known(value) else value
    function = UNARY[type(node.op)]
    return function(value) if is_known(value) else frame.program.numbers.made(function, value)


def _compare(frame: Frame, node: ast.Compare) -> Any:
    made: Any = True
    left = value_of(frame, node.left)
    for operation, right_node in zip(node.ops, node.comparators, strict=True):
        right = value_of(frame, right_node)
        made = _both(made, _compared(frame, node, operation, left, right))
        if made is False:
            return False
        left = right
    return made


def _compared(frame: Frame, node: ast.AST, operation: ast.cmpop, a: Any, b: Any) -> Any:
    if type(operation) not in _KNOWN_ONLY:
        return of_two(frame, node, operation, a, b)
    if not (is_known(a) and is_known(b)):
        raise frame.error(node, "expected `is` and `in` between values that are known now")
    return _KNOWN_ONLY[type(operation)](a, b)


# -- Conditions -----------------------------------------------------------------------------------


def condition(frame: Frame, node: ast.expr) -> bool | PrimExpr:
    """A condition: True or False where it is known now."""
    return _truth(frame, node, value_of(frame, node))


def _truth(frame: Frame, node: ast.expr, value: Any) -> bool | PrimExpr:
    if is_known(value):
        return bool(value)
    if not isinstance(value, PrimExpr):
        raise frame.error(node, f"expected a condition, got {shown(value)}")
    held = value if value.dtype.is_bool else e.not_equal(value, e.const(0, value.dtype))
    made = simple(held)
    return bool(made.value) if isinstance(made, IntImm) else made


def _any_or_all(frame: Frame, node: ast.BoolOp) -> Any:
    """As in Python, the right operand counts only where the left one doesn't decide the result."""
    decides = isinstance(node.op, ast.Or)
    join = _either if decides else _both
    made: Any = None
    for each in node.values:
        value = value_of(frame, each)
        if made is None and is_known(value):
            if bool(value) is decides or each is node.values[-1]:
                return value
            continue
        held = _truth(frame, each, value)
        made = held if made is None else join(made, held)
    return made


def _both(a: Any, b: Any) -> Any:
    if isinstance(a, bool):
        return b if a else False
    return e.logical_and(a, b) if is_cheap(b) else op.if_then_else(a, b, False)


def _either(a: Any, b: Any) -> Any:
    if isinstance(a, bool):
        return True if a else b
    return e.logical_or(a, b) if is_cheap(b) else op.if_then_else(a, True, b)


def _conditional(frame: Frame, node: ast.IfExp) -> Any:
    held = condition(frame, node.test)
    if isinstance(held, bool):
        return value_of(frame, node.body if held else node.orelse)
    values = value_of(frame, node.body), value_of(frame, node.orelse)
    return frame.program.numbers.made(lambda a, b: op.if_then_else(held, a, b), *values)


# -- Parts of values ------------------------------------------------------------------------------


def _attribute(frame: Frame, node: ast.Attribute) -> Any:
    owner = value_of(frame, node.value)
    if isinstance(owner, ModuleType):
        return captured(frame, node, ast.unparse(node), getattr(owner, node.attr, None))
    part = as_part(owner)
    if part is not None and node.attr == "shape":
        return tuple(map(number_if_known, part.shape))
    if part is not None and node.attr == "ndim":
        return len(part.shape)
    if node.attr == "dtype" and (part is not None or isinstance(owner, PrimExpr)):
        return str(owner.dtype if part is None else part.buffer.dtype)
    raise frame.error(node, f"expected .shape, .dtype or .ndim of a tensor, found .{node.attr}")


def element_of(frame: Frame, node: ast.Subscript) -> Any:
    """An element of a tensor (a load) or of a tuple."""
    owner = value_of(frame, node.value)
    index_nodes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    indices = [value_of(frame, each) for each in index_nodes]
    if isinstance(owner, (tuple, str)):
        for index_node, index in zip(index_nodes, indices, strict=True):
            owner = _member(frame, index_node, owner, index)
        return owner
    part = as_part(owner)
    if part is None:
        raise frame.error(node.value, f"expected a tensor or a tuple to index, got {shown(owner)}")
    buffer = part.buffer
    own = (_index(frame, *each) for each in zip(index_nodes, indices, strict=True))
    made = (*part.indices, *own)
    if len(made) < buffer.ndim:
        return Part(buffer, made)
    if len(made) > buffer.ndim:
        raise frame.error(node, f"expected {buffer.ndim} indices of {buffer.name}, got {len(made)}")
    return BufferLoad(buffer, made)


def _member(frame: Frame, node: ast.expr, owner: Any, value: Any) -> Any:
    """A member of a tuple, whose index must be known now."""
    index = number_if_known(simple(value) if isinstance(value, PrimExpr) else value)
    if not isinstance(index, int):
        raise frame.error(
            node,
            f"expected an index of a tuple that is known now, got {shown(value)}: "
            "loop with const_range",
        )
    if not -len(owner) <= index < len(owner):
        raise frame.error(node, f"expected an index of a tuple of {len(owner)} values, got {index}")
    return owner[index]


def _index(frame: Frame, node: ast.expr, value: Any) -> PrimExpr:
    if isinstance(value, int) and value < 0:
        raise frame.error(
            node,
            f"expected an index from 0 on, got {value}: counting from the end is written as "
            "in a.shape[0] - 1",
        )
    if not isinstance(value, (int, PrimExpr)):
        raise frame.error(node, f"expected an integer as an index, got {shown(value)}")
    return e.as_index(value)


# -- Calls ----------------------------------------------------------------------------------------


def _call(frame: Frame, node: ast.Call) -> Any:
    target, frame.target = frame.target, "buffer"
    function = value_of(frame, node.func)
    for each in node.args:
        if isinstance(each, ast.Starred):
            raise frame.error(each, "expected each argument by itself, found a starred one")
    for keyword in node.keywords:
        if keyword.arg is None:
            raise frame.error(keyword.value, "expected each argument by itself, found ** of a dict")
    args = [value_of(frame, each) for each in node.args]
    named = {str(keyword.arg): value_of(frame, keyword.value) for keyword in node.keywords}
    return call(frame, node, function, args, named, target)


_VALUES: dict[type[ast.expr], Callable[[Frame, Any], Any]] = {
    ast.Attribute: _attribute,
    ast.BinOp: _binary,
    ast.BoolOp: _any_or_all,
    ast.Call: _call,
    ast.Compare: _compare,
    ast.Constant: _constant,
    ast.IfExp: _conditional,
    ast.List: _tuple,
    ast.Name: read_name,
    ast.Subscript: element_of,
    ast.Tuple: _tuple,
    ast.UnaryOp: _unary,
}
