"""Calls in hybrid functions: of helpers, and of the intrinsics of hybrid programs."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minitvm.te.hybrid import intrinsics
from minitvm.te.hybrid.frame import Frame
from minitvm.te.hybrid.initial_zeros import begin_with_zeros
from minitvm.te.hybrid.names import assign_name, settled
from minitvm.te.hybrid.source import ScriptedFunction, read_source
from minitvm.te.hybrid.values import (
    Loop,
    as_part,
    buffers_in,
    is_intrinsic,
    is_known,
    number_if_known,
    shown,
    simple,
)
from minitvm.tir import expr as e
from minitvm.tir import op
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import Buffer, BufferLoad, PrimExpr
from minitvm.tir.functor import walk_once
from minitvm.tir.stmt import Allocate, ForKind

_KINDS = {
    "range": ForKind.SERIAL,
    "serial": ForKind.SERIAL,
    "parallel": ForKind.PARALLEL,
    "vectorize": ForKind.VECTORIZED,
    "unroll": ForKind.UNROLLED,
}


def call(
    frame: Frame,
    node: ast.Call,
    function: Any,
    args: Sequence[Any],
    named: Mapping[str, Any],
    target: str,
) -> Any:
    """The value of a call; an array that it makes gets the name `target`."""
    if isinstance(function, ScriptedFunction):
        return _inlined(frame, node, function, args, named)
    if not is_intrinsic(function):
        raise frame.error(node.func, f"expected a function to call, got {shown(function)}")
    name: str = function.__name__
    if name in ("allocate", "output_tensor"):
        return _new_buffer(frame, node, name, target, **_bound(function, args, named))
    if named:
        raise frame.error(
            node, f"expected arguments of {name} by position, got {', '.join(named)}="
        )
    if name in _KINDS:
        return _range(frame, node, name, args)
    if all(map(is_known, args)) and name != "bind" and name not in intrinsics.CASTS:
        return function(*args)
    return _intrinsic(frame, node, name, args)


def _bound(
    function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by the names of the function's parameters."""
    bound = inspect.signature(function).bind(*args, **named)
    bound.apply_defaults()
    return bound.arguments


# -- Functions ------------------------------------------------------------------------------------


def run(frame: Frame, arguments: Mapping[str, Any]) -> None:
    """Follows a function called with `arguments`: its statements join the program."""
    for name, value in arguments.items():
        if frame.key(name) in frame.program.facts.variables:
            parameter = ast.copy_location(ast.Name(name, ast.Store()), frame.source.tree)
            assign_name(frame, parameter, value)
        else:
            frame.bind(name, value, frame.source.tree)
    frame.follow(frame)


def _inlined(
    frame: Frame,
    node: ast.Call,
    function: ScriptedFunction,
    args: Sequence[Any],
    named: Mapping[str, Any],
) -> Any:
    """The value of a helper's call, whose statements are inlined here."""
    caller: Frame | None = frame
    while caller is not None:
        if caller.function is function:
            raise frame.error(node, f"expected no recursion, found a call of {frame.source.name}")
        caller = caller.caller
    bound = _bound(function.pyfunc, args, named)
    values = {name: settled(frame, name, value) for name, value in bound.items()}
    read_only = frozenset(buffers_in(tuple(values.values())))
    place = (*frame.call, frame.positions[-1], (node.lineno, node.col_offset))
    source = read_source(function.pyfunc)
    made = Frame(function, source, frame.program, read_only, frame.follow, frame, place)
    run(made, values)
    return settled(made, "result", made.returned)


# -- Memory ---------------------------------------------------------------------------------------


def _new_buffer(
    frame: Frame,
    node: ast.AST,
    kind: str,
    name: str,
    shape: Any,
    dtype: Any,
    scope: str = "global",
) -> Buffer:
    program = frame.program
    extents = shape if isinstance(shape, tuple) else (shape,)
    sizes = [simple(each) if isinstance(each, PrimExpr) else each for each in extents]
    buffer = decl_buffer(sizes, dtype, name, scope=scope)
    if any(isinstance(n, BufferLoad) or n in program.computed for n in walk_once(*buffer.shape)):
        raise frame.error(
            node, f"expected a shape of sizes for {name}, got one computed by the program"
        )
    if kind == "allocate" or frame.caller is not None:
        program.emit(lambda rest: Allocate(buffer, begin_with_zeros(buffer, rest, False)))
        return buffer
    if len(program.blocks) > 1:
        raise frame.error(node, f"expected output tensor {name} outside of blocks, found it inside")
    program.outputs.append(buffer)
    program.emit(lambda rest: begin_with_zeros(buffer, rest, True))
    return buffer


# -- Loops ----------------------------------------------------------------------------------------


def _range(frame: Frame, node: ast.Call, name: str, args: Sequence[Any]) -> Loop:
    if not 1 <= len(args) <= 3:
        raise frame.error(node, f"expected {name} of 1 to 3 bounds, got {len(args)}")
    begin, end, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    for bound in (begin, end):
        if not isinstance(bound, (int, PrimExpr)):
            raise frame.error(node, f"expected integers as bounds of {name}, got {shown(bound)}")
    step = number_if_known(step)
    if not isinstance(step, int) or not step:
        raise frame.error(node, f"expected a known step other than 0 of {name}, got {shown(step)}")
    low, high = e.promote(*map(e.as_index, frame.program.numbers.operands([begin, end])))
    return Loop(_KINDS[name], low, high, step)


# -- Intrinsics -----------------------------------------------------------------------------------


def _intrinsic(frame: Frame, node: ast.Call, name: str, args: Sequence[Any]) -> Any:
    """A call of an intrinsic on arguments, some of them expressions."""
    made = frame.program.numbers.made
    match name:
        case "const_range":
            bounds = [number_if_known(simple(e.as_expr(bound))) for bound in args]
            if not all(isinstance(bound, int) for bound in bounds):
                raise frame.error(
                    node, "expected bounds of const_range that are known now: use range"
                )
            return range(*bounds)
        case "bind":
            raise frame.error(
                node,
                f"bind({', '.join(map(repr, args))}) makes threads of a GPU, and this is code "
                "for a CPU: use range or parallel",
            )
        case "len":
            return _length(frame, node, args)
        case "int" | "float" | "bool":
            raise frame.error(
                node,
                f"expected a cast that names its dtype, as int32(x) or float32(x), got {name}",
            )
        case "likely":
            return op.likely(args[0])
        case "min" | "max":
            values = args[0] if len(args) == 1 and isinstance(args[0], tuple) else args
            function = e.minimum if name == "min" else e.maximum
            return functools.reduce(lambda a, b: made(function, a, b), values)
        case "abs":
            return made(e.absolute, *args)
        case "ceil_div":
            return made(op.ceildiv, *args)
    if name in intrinsics.CASTS:
        return e.cast(name, *args)
    return made(getattr(op, name), *args)


def _length(frame: Frame, node: ast.Call, args: Sequence[Any]) -> Any:
    if len(args) == 1 and isinstance(args[0], tuple):
        return len(args[0])
    part = as_part(args[0]) if len(args) == 1 else None
    if part is not None and part.shape:
        return number_if_known(part.shape[0])
    raise frame.error(node, f"expected len of a tuple or a tensor, got {shown(args[0])}")
