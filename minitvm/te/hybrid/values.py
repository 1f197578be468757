"""The names and the values of a hybrid function while it is followed.

A value that is known now is Python's own: a number, a text, a tuple, None. Others are expressions,
buffers, parts of buffers, and functions.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any, final

import numpy as np

from minitvm.arith.analyzer import Analyzer
from minitvm.runtime.dtype import DType
from minitvm.runtime.record import record
from minitvm.te.hybrid import intrinsics
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, BufferLoad, IntImm, IterVar, PrimExpr
from minitvm.tir.functor import contains
from minitvm.tir.stmt import ForKind, Stmt, seq

# -- Names ----------------------------------------------------------------------------------------

Key = tuple[Any, ...]  # names a variable: the calls and the loop that it is in, and its name


@final
@record(frozen=False)
class Facts:
    """Facts about names, from earlier traversals of the tree: the names that are variables, and the
    dtypes of variables that begin as Python's numbers."""

    variables: set[Key] = field(default_factory=set)
    dtypes: dict[Key, DType] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.variables) + len(self.dtypes)


class Learned(Exception):
    """Raised when a fact was learned: the tree must be followed again."""


@final
@record(eq=False)
class Binding:
    """A name bound to a value, in a block; `is_loop` for the variable of a loop."""

    value: Any
    node: ast.AST
    block: Block
    key: Key
    is_loop: bool = False


@final
@record(eq=False)
class Variable:
    """A name whose value changes. It `adapts` as long as only Python's numbers are assigned to
    it."""

    buffer: Buffer
    node: ast.AST
    key: Key
    adapts: bool
    loops: int  # the number of loops around it


@final
@record(eq=False)
class Part:
    """A buffer indexed in its first dimensions: ``a[i]`` of a matrix."""

    buffer: Buffer
    indices: tuple[Any, ...]

    @property
    def shape(self) -> tuple[PrimExpr, ...]:
        """The dimensions that aren't indexed yet."""
        return self.buffer.shape[len(self.indices) :]


@final
@record(eq=False)
class Loop:
    """The result of a call of ``range`` or ``parallel``."""

    kind: ForKind
    begin: PrimExpr
    end: PrimExpr
    step: int


@final
@record(frozen=False, eq=False)
class Block:
    """Statements, and functions that wrap the statements that follow in the block."""

    items: list[Stmt | Callable[[Stmt], Stmt]] = field(default_factory=list)
    loop: bool = False  # the body of a loop or of the function, where variables live

    def statement(self) -> Stmt:
        made = seq()
        for item in reversed(self.items):
            made = seq(item, made) if isinstance(item, Stmt) else item(made)
        return made


# -- Values ---------------------------------------------------------------------------------------

NO_VALUE = object()


def plain(value: Any) -> Any:
    """A number, a text or an expression from outside the program; `NO_VALUE` for others."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return str(value) if isinstance(value, DType) else value
    if isinstance(value, (np.number, np.bool_)):
        return value.item()
    if isinstance(value, (IterVar, PrimExpr)):
        return e.as_expr(value)
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return str(DType.of(value))
    return NO_VALUE


def as_part(value: Any) -> Part | None:
    """A buffer, or a part of one, as a part; None for any other value."""
    if isinstance(value, Buffer):
        return Part(value, ())
    return value if isinstance(value, Part) else None


def buffers_in(values: tuple[Any, ...]) -> Iterator[Buffer]:
    for value in values:
        part = as_part(value)
        if part is not None:
            yield part.buffer
        elif isinstance(value, tuple):
            yield from buffers_in(value)


def is_intrinsic(value: Any) -> bool:
    """Whether `value` is a function of :mod:`minitvm.te.hybrid.intrinsics`, or one of Python's."""
    name = getattr(value, "__name__", "")
    return callable(value) and any(
        value is known.get(name) for known in (intrinsics.INTRINSICS, intrinsics.BUILTINS)
    )


def is_known(value: Any) -> bool:
    """Whether a value is known while the tree is followed."""
    if isinstance(value, tuple):
        return all(map(is_known, value))
    return value is None or isinstance(value, (bool, int, float, str, range))


def is_float(value: Any) -> bool:
    return value.dtype.is_float if isinstance(value, PrimExpr) else isinstance(value, float)


def is_cheap(value: Any) -> bool:
    """Whether a condition may be evaluated where Python wouldn't evaluate it."""
    return isinstance(value, bool) or not contains((BufferLoad, e.Call), value)


def number_if_known(value: Any) -> Any:
    """An int32 constant, as shapes have them, as Python's number, which adapts."""
    return value.value if isinstance(value, IntImm) and value.dtype == "int32" else value


def simple(value: PrimExpr) -> PrimExpr:
    return Analyzer().simplify(value)


def shown(value: Any) -> str:
    if isinstance(value, Buffer):
        return f"tensor {value.name}"
    if isinstance(value, Part):
        return f"a part of tensor {value.buffer.name}"
    if isinstance(value, Loop):
        return "a range"
    if isinstance(value, PrimExpr):
        return f"{value} of {value.dtype}"
    if callable(value):
        return f"function {getattr(value, '__name__', value)}"
    return repr(value)
