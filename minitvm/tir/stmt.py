"""Every statement node of the loop IR, and the function and module that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import IntEnum
from typing import Any, final

from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.tir.expr import NODES, Buffer, PrimExpr, Var, check_condition, check_value_of
from minitvm.tir.expr import BufferStore as BufferStore
from minitvm.tir.expr import Stmt as Stmt


class ForKind(IntEnum):
    """How a loop runs (classic numbering)."""

    SERIAL = 0
    PARALLEL = 1
    VECTORIZED = 2
    UNROLLED = 3
    THREAD_BINDING = 4


# The annotation of a loop no iteration of which uses what another one writes, which whoever makes
# the loop knows: that of a data axis of a schedule.
INDEPENDENT = "independent"

# The attribute of a function that was made from a schedule: an `Origin`
# (minitvm/te/schedules/provenance.py). It says nothing of what the function does.
ORIGIN = "origin"


@final
@record(eq=False, repr=False, admission=NODES)
class For(Stmt):
    """``for loop_var in [min, min + extent)``. A negative extent runs nothing."""

    loop_var: Var
    min: PrimExpr
    extent: PrimExpr
    kind: ForKind
    body: Stmt
    annotations: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        dtype = self.loop_var.dtype
        if not dtype.is_integral or dtype.is_bool:
            raise CompileError(f"For: loop variable: expected an integer, got {dtype}")
        for what, bound in (("min", self.min), ("extent", self.extent)):
            if bound.dtype is not dtype.element:
                raise CompileError(f"For: {what}: expected {dtype.element}, got {bound.dtype}")


@final
@record(eq=False, repr=False, admission=NODES)
class While(Stmt):
    """Repeats `body` while `condition` holds. Made by ``ir_builder``."""

    condition: PrimExpr
    body: Stmt

    def __post_init__(self) -> None:
        check_condition("While", self.condition)


@final
@record(eq=False, repr=False, admission=NODES)
class Allocate(Stmt):
    """`buffer` exists, with undefined contents, while `body` runs."""

    buffer: Buffer
    body: Stmt


@final
@record(eq=False, repr=False, admission=NODES)
class LetStmt(Stmt):
    """``var = value`` while `body` runs."""

    var: Var
    value: PrimExpr
    body: Stmt

    def __post_init__(self) -> None:
        check_value_of("LetStmt", self.var, self.value)


@final
@record(eq=False, repr=False, admission=NODES)
class IfThenElse(Stmt):
    """Runs one of two statements; `else_case` may be None."""

    condition: PrimExpr
    then_case: Stmt
    else_case: Stmt | None = None

    def __post_init__(self) -> None:
        check_condition("IfThenElse", self.condition)


@final
@record(eq=False, repr=False, admission=NODES)
class SeqStmt(Stmt):
    """Statements one after the other; ``SeqStmt(())`` does nothing."""

    seq: tuple[Stmt, ...]


@final
@record(eq=False, repr=False, admission=NODES)
class Evaluate(Stmt):
    """Evaluates a call for its effect."""

    value: PrimExpr


@final
@record(eq=False, repr=False, admission=NODES)
class AssertStmt(Stmt):
    """Ends the function with a ``KernelError`` (or `kind`, a name of
    :data:`minitvm.runtime.errors.RAISABLE`) of text `message` unless `condition` holds.

    ``{}`` in `message` stand for the values of `values`, integers, in order.
    """

    condition: PrimExpr
    message: str
    body: Stmt
    values: tuple[PrimExpr, ...] = ()
    kind: str = "KernelError"

    def __post_init__(self) -> None:
        check_condition("AssertStmt", self.condition)


@final
@record(eq=False, repr=False, admission=NODES)
class AttrStmt(Stmt):
    """Says something about `body`: `attr_key` of `node` is `value`."""

    node: Any
    attr_key: str
    value: PrimExpr
    body: Stmt


@final
@record(eq=False, repr=False, admission=NODES)
class PrimFunc:
    """A function of the loop IR.

    A parameter in `buffer_map` is a tensor, whose shape (and strides) bind the variables in them at
    the call; any other parameter is a scalar, or an opaque handle.
    """

    params: tuple[Var, ...]
    body: Stmt
    buffer_map: Mapping[Var, Buffer]
    name: str
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        from minitvm.tir.printer import func_text  # the printer stands above the nodes it prints

        return func_text(self)

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle names what it holds already instead of descending. With the leaves written
        first it never descends far, so expressions may be nested as deeply as for `build`.
        Parameters and buffers go in pairs, as joblib would sort a mapping by its keys."""
        from minitvm.tir.functor import walk_leaves_first  # traversal stands above the nodes

        leaves_first, buffers = tuple(walk_leaves_first(self.body)), (*self.buffer_map.items(),)
        return _prim_func, (leaves_first, self.params, self.body, buffers, self.name, self.attrs)


def _prim_func(
    leaves_first: object,
    params: tuple[Var, ...],
    body: Stmt,
    buffers: tuple[tuple[Var, Buffer], ...],
    name: str,
    attrs: Mapping[str, Any],
) -> PrimFunc:
    """What the pickle of a function calls."""
    return PrimFunc(params, body, dict(buffers), name, attrs)


def with_body(func: PrimFunc, body: Stmt) -> PrimFunc:
    """`func` with another body; itself if it is the same one."""
    if body is func.body:
        return func
    return PrimFunc(func.params, body, func.buffer_map, func.name, func.attrs)


@final
@record(eq=False, repr=False, admission=NODES)
class IRModule:
    """Functions by name. Prints as the program that it is."""

    functions: Mapping[str, PrimFunc]

    def __getitem__(self, name: str) -> PrimFunc:
        if name not in self.functions:
            raise KeyError(f"expected a function among {', '.join(self.functions)}, got {name!r}")
        return self.functions[name]

    def script(self) -> str:
        """The text of all functions."""
        return str(self)

    astext = script

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.functions.values()))

    def __repr__(self) -> str:
        return str(self)


def seq(*statements: Stmt) -> Stmt:
    """Statements one after the other, nested sequences flattened.

    >>> seq().seq
    ()
    """
    flat: list[Stmt] = []
    for statement in statements:
        flat.extend(statement.seq if isinstance(statement, SeqStmt) else (statement,))
    return flat[0] if len(flat) == 1 else SeqStmt(tuple(flat))
