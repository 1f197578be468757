"""The meaning of names in a hybrid function: values, variables, and names from outside of it."""

from __future__ import annotations

import ast
import builtins
from types import ModuleType
from typing import Any

import numpy as np

from minitvm.runtime.errors import CompileError
from minitvm.te.hybrid import intrinsics
from minitvm.te.hybrid.frame import Frame
from minitvm.te.hybrid.source import ScriptedFunction
from minitvm.te.hybrid.values import (
    NO_VALUE,
    Binding,
    Learned,
    Part,
    Variable,
    is_float,
    is_intrinsic,
    plain,
    shown,
)
from minitvm.te.tensor import Tensor
from minitvm.tir import expr as e
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import BufferLoad, IntImm, PrimExpr, Var
from minitvm.tir.functor import contains
from minitvm.tir.stmt import Allocate, BufferStore, ForKind, LetStmt

_AT_ONCE = (ForKind.PARALLEL, ForKind.VECTORIZED)

# -- Reading --------------------------------------------------------------------------------------


def read_name(frame: Frame, node: ast.Name) -> Any:
    """The value that a name stands for."""
    name, known = node.id, frame.names.get(node.id)
    if isinstance(known, Binding):
        return known.value
    if isinstance(known, Variable):
        return _read_variable(frame, node, known)
    code = frame.function.pyfunc.__code__
    if name in code.co_varnames + code.co_cellvars:
        raise _unbound(frame, node)
    if name in frame.closure.nonlocals:
        return captured(frame, node, name, frame.closure.nonlocals[name])
    outside = frame.closure.globals.get(name, NO_VALUE)
    if name in intrinsics.INTRINSICS and not isinstance(outside, ScriptedFunction):
        return intrinsics.INTRINSICS[name]
    if outside is not NO_VALUE:
        return captured(frame, node, name, outside)
    if name in intrinsics.BUILTINS:
        return intrinsics.BUILTINS[name]
    if hasattr(builtins, name):
        raise frame.error(
            node,
            f"expected a function of hybrid programs, got Python's {name}: write a loop, or one of "
            f"{', '.join(sorted(intrinsics.BUILTINS))}",
        )
    raise frame.error(node, f"expected a known name, got {name}")


def _unbound(frame: Frame, node: ast.Name) -> CompileError:
    name = node.id
    if name in frame.merged:
        frame.program.facts.variables.add(frame.merged[name])
        raise Learned
    if name in frame.ended:
        return frame.error(
            node, f"{name} ends with {frame.ended[name]}: give it a value before that, too"
        )
    return frame.error(node, f"expected {name} to have a value, found none assigned before")


def _read_variable(frame: Frame, node: ast.Name, known: Variable) -> PrimExpr:
    if node.id not in frame.assigned:
        raise frame.error(
            node,
            f"{node.id} may have no value here, as only some ways to here assign one (line "
            f"{frame.line_of(known)}): give it a value before",
        )
    made = BufferLoad(known.buffer, (e.const(0),))
    if known.adapts:
        frame.program.numbers.let_adapt(made)
    return made


def captured(frame: Frame, node: ast.AST, name: str, value: Any) -> Any:
    """A value from outside of the function."""
    if isinstance(value, (tuple, list)):
        return tuple(captured(frame, node, name, each) for each in value)
    if isinstance(value, (ScriptedFunction, ModuleType)):
        return value
    made = plain(value)
    if made is not NO_VALUE and value is not None:
        return made
    if is_intrinsic(value):
        return value
    if isinstance(value, (Tensor, np.ndarray)):
        raise frame.error(
            node, f"expected tensors as arguments, found {name} captured: pass it as one"
        )
    if callable(value):
        known = intrinsics.INTRINSICS.get(getattr(value, "__name__", ""))
        hint = "" if known is None else f": write {known.__name__}"
        raise frame.error(
            node,
            "expected a function of hybrid programs, or one decorated with "
            f"te.hybrid.script, got {name}{hint}",
        )
    raise frame.error(node, f"expected a number, got {name}, {shown(value)}, from outside")


# -- Assigning ------------------------------------------------------------------------------------


def assign_name(frame: Frame, node: ast.Name, value: Any) -> None:
    """Binds a name to a value, or stores to the variable of this name."""
    name, known = node.id, frame.names.get(node.id)
    if isinstance(known, Binding) and known.is_loop:
        raise frame.error(
            node,
            f"{name} is the variable of the loop at line {frame.line_of(known)}: it can't be "
            "assigned to",
        )
    if isinstance(known, Variable):
        _set_variable(frame, node, known, value)
    elif known is not None and known.block is not frame.program.blocks[-1]:
        frame.program.facts.variables.add(known.key)
        raise Learned
    elif frame.key(name) in frame.program.facts.variables:
        _set_variable(frame, node, _new_variable(frame, node, value), value)
    else:
        frame.bind(name, settled(frame, name, value), node)


def _new_variable(frame: Frame, node: ast.Name, value: Any) -> Variable:
    """A new variable, of the dtype of its first value."""
    name, program = node.id, frame.program
    if not isinstance(value, (bool, int, float, PrimExpr)):
        raise frame.error(
            node,
            f"expected a number for {name}, which a loop or a branch assigns to again, got "
            f"{shown(value)}: give the other value another name",
        )
    key, known = frame.key(name), program.facts.dtypes
    adapts = key not in known and not program.numbers.is_firm(value)
    buffer = decl_buffer((1,), known.get(key, e.as_expr(value).dtype), name, scope="local")
    home = next(block for block in reversed(program.blocks) if block.loop)
    home.items.append(lambda rest: Allocate(buffer, rest))
    loops = sum(block.loop for block in program.blocks) - 1
    made = frame.names[name] = Variable(buffer, node, key, adapts, loops)
    return made


def _set_variable(frame: Frame, node: ast.Name, known: Variable, value: Any) -> None:
    name, program, line = node.id, frame.program, frame.line_of(known)
    if any(kind in _AT_ONCE for kind in program.loops[known.loops :]):
        raise frame.error(
            node,
            f"{name} is from outside of a parallel or vectorized loop (line {line}), whose "
            "iterations run at once: give it a value inside, or use range",
        )
    if known.adapts and program.numbers.is_firm(value):
        program.facts.dtypes[known.key] = value.dtype
        raise Learned
    if known.adapts and known.buffer.dtype.is_integral and is_float(value):
        raise frame.error(
            node,
            f"{name} begins as an integer at line {line}, and "
            "can't become a float: begin with a float, such as 0.0",
        )
    with frame.located(node):
        stored = program.numbers.converted(name, value, known.buffer.dtype)
    program.emit(BufferStore(known.buffer, stored, (e.const(0),)))
    frame.assigned.add(name)


def settled(frame: Frame, name: str, value: Any) -> Any:
    """A value that later stores can't change: an expression that reads memory is bound to a new
    name."""
    if isinstance(value, tuple):
        return tuple(settled(frame, name, each) for each in value)
    if isinstance(value, Part):
        return Part(value.buffer, settled(frame, "index", value.indices))
    if not isinstance(value, PrimExpr) or isinstance(value, (Var, IntImm, e.FloatImm)):
        return value
    reads = contains((BufferLoad, e.Call), value)
    if value.dtype.is_integral and not reads:
        return value
    program, var = frame.program, Var(name, value.dtype)
    program.emit(lambda rest: LetStmt(var, value, rest))
    program.computed.add(var)
    if not program.numbers.is_firm(value):
        program.numbers.let_adapt(var)
    return var
