"""Outlines statements: a function of their own gets the captured buffers and variables as
parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, final

from minitvm.codegen.emitter import Emitter
from minitvm.codegen.llvm_text import OWN_COPIES, FunctionText, Value
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, PrimExpr, Var
from minitvm.tir.functor import find, free_vars
from minitvm.tir.stmt import Stmt

Captured: TypeAlias = tuple[Var | Buffer, Value]
"""Something from outside, and its value there."""


@final
@record()
class Inside:
    """A function under construction, and its values for the captured buffers and variables."""

    text: FunctionText
    variables: dict[Var, Value]
    pointers: dict[Buffer, Value]


def captured_by(node: Stmt, outer: Emitter) -> list[Captured]:
    """The captured buffers and variables: those that `node` uses from outside, except for
    constants."""
    buffers: dict[Buffer, None] = {}
    inside: set[Buffer | Var] = set()
    for each in find((e.BufferLoad, s.BufferStore, e.BufferRef, s.Allocate), node):
        buffers[each.buffer] = None
    inside.update(each.buffer for each in find(s.Allocate, node))
    inside.update(each.loop_var for each in find(s.For, node))
    inside.update(each.var for each in find((s.LetStmt, e.Let), node))
    roots: list[Stmt | PrimExpr] = [node]
    for buffer in buffers:
        roots += buffer.sizes
    variables = dict.fromkeys(var for root in roots for var in free_vars(root))
    named = {buffer.data: buffer for buffer in outer.pointers}
    buffers |= {named[var]: None for var in variables if var in named}
    found: list[Captured] = []
    found += [(b, outer.pointers[b]) for b in buffers if b in outer.pointers]
    found += [(v, outer.variables[v]) for v in variables if v in outer.variables]
    return [(k, value) for k, value in found if k not in inside and not _is_literal(value)]


def function_of(
    captured: Sequence[Captured],
    outer: Emitter,
    name: str,
    environment: Sequence[str],
    *,
    attributes: str = "",
    has_barrier: bool = False,
) -> Inside:
    """An internal function that returns a status, with the captured values and an `environment` as
    parameters: so a pointer that came through memory is still known to have no alias. With a
    barrier it may have one, since other tasks write to the buffer meanwhile. Equal functions are
    shared."""
    addresses = [value.text for _, value in captured]
    params: list[str] = []
    for position, (key, value) in enumerate(captured):
        alone = isinstance(key, Buffer) and addresses.count(value.text) == 1 and not has_barrier
        params.append(f"{value.type}{' noalias' if alone else ''} p{position}")
    text = FunctionText(
        outer.text.module, name, "i32", [*params, *environment], linkage="internal",
        attributes=f"{OWN_COPIES}{attributes}", is_shared=True,
    )  # fmt: skip
    variables = {v: x for v, x in outer.variables.items() if _is_literal(x)}
    pointers: dict[Buffer, Value] = {}
    for (key, _), value in zip(captured, text.params, strict=False):
        if isinstance(key, Buffer):
            pointers[key] = value
        else:
            variables[key] = value
    return Inside(text, variables, pointers)


def _is_literal(value: Value) -> bool:
    return not value.text.startswith("%")
