"""Reads the loops of a function: its parallel loops, and the memory of its intermediate results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import final

from minitvm.codegen.gil import needs_the_gil
from minitvm.codegen.parallel import tasks_worth
from minitvm.explanation.amount import Amount, Sizes, total, value_of
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.buffer import constant_bytes, size_factors
from minitvm.tir.expr import Buffer, PrimExpr, Var
from minitvm.tir.functor import children, find
from minitvm.tir.stmt import ForKind, Stmt
from minitvm.transform.reuse_storage import STACK_BYTES


@final
@record()
class ParallelLoop:
    """A loop whose iterations threads share. `starts_threads` is None where a symbolic size decides
    whether there is enough work."""

    name: str
    iterations: Amount
    starts_threads: bool | None


@final
@record()
class Temporary:
    """Memory for an intermediate result.

    Attributes
    ----------
    name, dtype, shape, bytes
        The properties of the buffer.
    place
        ``"registers"`` (elements of constant indices, as far as they fit), ``"stack"`` or
        ``"workspace"``: memory that is kept from call to call.
    is_per_task
        Whether each thread has its own memory; otherwise there is one for a call.
    made_of
        The buffers from which it is computed.
    """

    name: str
    dtype: str
    shape: tuple[Amount, ...]
    bytes: Amount
    place: str
    is_per_task: bool
    made_of: tuple[str, ...] = ()


def parallel_loops(body: Stmt, sizes: Sizes, target: Target) -> tuple[ParallelLoop, ...]:
    """The outermost parallel loops."""
    found = (each for each, inside in _statements(body) if not inside and _is_parallel(each))
    return tuple(_parallel_loop(each, sizes, target) for each in found if isinstance(each, s.For))


def temporaries(body: Stmt, sizes: Sizes) -> tuple[Temporary, ...]:
    """All allocations; an allocation that the parts of a partitioned loop share counts once."""
    made: dict[Temporary, tuple[str, ...]] = {}
    for each, inside in _statements(body):
        if isinstance(each, s.Allocate):
            found = _temporary(each.buffer, inside, sizes)
            made[found] = (*made.get(found, ()), *_made_of(each.buffer, body))
    return tuple(replace(each, made_of=(*dict.fromkeys(of),)) for each, of in made.items())


def _statements(body: Stmt) -> Iterator[tuple[Stmt, bool]]:
    """The statements in order, and whether each is in a parallel loop."""
    waiting = [(body, False)]
    while waiting:
        node, inside = waiting.pop()
        yield node, inside
        inside = inside or _is_parallel(node)
        below = [each for each in children(node) if isinstance(each, Stmt)]
        waiting += [(each, inside) for each in reversed(below)]


def _is_parallel(node: Stmt) -> bool:
    return isinstance(node, s.For) and node.kind == ForKind.PARALLEL


def _parallel_loop(node: s.For, sizes: Sizes, target: Target) -> ParallelLoop:
    worth = value_of(tasks_worth(node, target), sizes)
    starts = None if isinstance(worth, str) else worth >= 2
    iterations = value_of(node.extent, sizes)
    if needs_the_gil(node) or iterations == 1:
        starts = False
    return ParallelLoop(node.loop_var.name, iterations, starts)


def _temporary(buffer: Buffer, inside: bool, sizes: Sizes) -> Temporary:
    size = constant_bytes(buffer)
    small = size is not None and size <= STACK_BYTES
    place = "stack" if small else "workspace"
    return Temporary(
        buffer.name,
        str(buffer.dtype),
        tuple(value_of(extent, sizes) for extent in buffer.shape),
        total([(buffer.dtype.itemsize, size_factors(buffer))], sizes),
        "registers" if small and buffer.scope == "local" else place,
        inside,
    )


def _made_of(buffer: Buffer, body: Stmt) -> Iterator[str]:
    """The buffers that the stores to `buffer` read, also by way of names for values."""
    named = {each.var: each.value for each in find(s.LetStmt, body)}
    stores = find(s.BufferStore, body)
    waiting = [each.value for each in stores if each.buffer is buffer]
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, e.BufferLoad) and node.buffer is not buffer:
            yield node.buffer.name
        below = [named[node]] if isinstance(node, Var) and node in named else [*children(node)]
        waiting += [each for each in reversed(below) if isinstance(each, PrimExpr)]
