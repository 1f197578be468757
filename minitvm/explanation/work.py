"""The operations that a function computes, and the bytes that it moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import final

from minitvm.arith.effects import written_parameters
from minitvm.arith.work import estimated_sum, value_operations
from minitvm.explanation.amount import Amount, Sizes, total, value_of
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, PrimExpr
from minitvm.tir.functor import find
from minitvm.tir.provenance import Kind, Origin, StageWork, Work
from minitvm.tir.stmt import BufferStore, PrimFunc


@final
@record()
class Operations:
    """Operations of one ``kind``: a dtype, the dtypes of two factors and of their sums, or the name
    of a function that is called."""

    kind: Kind
    number: Amount

    @property
    def is_arithmetic(self) -> bool:
        return not isinstance(self.kind, str)


def operations_of_stage(stage: StageWork, sizes: Sizes) -> tuple[Operations, ...]:
    """The operations of a stage as it was written."""
    return _by_kind(stage.work or (), sizes)


def operations_of(func: PrimFunc, sizes: Sizes) -> tuple[Operations, ...]:
    """The operations of a function: of the program as it was written where that is known, otherwise
    of its loops. Where factors of sums were taken out of them, the loops compute fewer."""
    origin = func.attrs.origin
    if origin is None or not is_written(origin):
        return tuple(_operations_of_loops(func, sizes))
    written = _by_kind((work for stage in origin.stages for work in stage.work or ()), sizes)
    if all(each.about != "factors" for each in origin.choices):
        return written
    done = {each.kind: each.number for each in _operations_of_loops(func, sizes)}
    return tuple(replace(each, number=_least(each.number, done.get(each.kind))) for each in written)


def _least(written: Amount, done: Amount | None) -> Amount:
    """The fewer operations, where both numbers are known, and the loops show theirs."""
    return min(written, done) if isinstance(written, int) and isinstance(done, int) else written


def named_operations_of(func: PrimFunc, sizes: Sizes) -> tuple[Operations, ...]:
    """The operations on values, by their names, of a function as it was written; none where the
    written form isn't known."""
    origin = func.attrs.origin
    if origin is None or not is_written(origin):
        return ()
    return _by_kind((work for stage in origin.stages for work in stage.named), sizes)


def is_written(origin: Origin | None) -> bool:
    """Whether all stages are expressions, from which operations can be counted."""
    return origin is not None and all(stage.work is not None for stage in origin.stages)


def _by_kind(works: Iterable[Work], sizes: Sizes) -> tuple[Operations, ...]:
    kinds: dict[Kind, list[Work]] = {}
    for work in works:
        kinds.setdefault(work.kind, []).append(work)
    return tuple(
        Operations(kind, total(((each.number, each.extents) for each in found), sizes))
        for kind, found in kinds.items()
    )


# -- Bytes ----------------------------------------------------------------------------------------


def bytes_of_arguments(func: PrimFunc, sizes: Sizes) -> Amount:
    """The bytes moved if each element of an argument that is used is read, or written, once."""
    written, passed_on = written_parameters(func), _passed_on(func)
    terms: list[tuple[int, Sequence[PrimExpr]]] = []
    for buffer in func.buffer_map.values():
        everything = (1, buffer.shape)
        size, loads = total([everything], sizes), value_of(_loads(buffer, func), sizes)
        is_part = isinstance(size, int) and isinstance(loads, int) and loads < size
        if is_part and buffer not in written | passed_on:  # a table, say
            everything = (int(loads), ())
        terms.append((everything[0] * buffer.dtype.itemsize, everything[1]))
    return total(terms, sizes)


def _passed_on(func: PrimFunc) -> frozenset[Buffer]:
    """The buffers that are passed whole to functions and instructions."""
    return frozenset(each.buffer for each in find(e.BufferRef, func.body))


def _loads(buffer: Buffer, func: PrimFunc) -> PrimExpr:
    """The number of elements of a buffer that are loaded."""

    def of(*roots: PrimExpr) -> float:
        found = find(e.BufferLoad, *roots)
        return float(sum(each.dtype.lanes for each in found if each.buffer is buffer))

    return estimated_sum(func.body, lambda store: of(store.value, *store.indices), of)


# -- Loops ----------------------------------------------------------------------------------------


def _operations_of_loops(func: PrimFunc, sizes: Sizes) -> Iterator[Operations]:
    stores = (each.value for each in find(BufferStore, func.body))
    for kind in dict.fromkeys(kind for kind, _ in value_operations(*stores)):
        number = estimated_sum(func.body, partial(_count, kind))
        yield Operations(kind, value_of(number, sizes))


def _count(kind: Kind, store: BufferStore) -> float:
    found = value_operations(store.value)
    return float(sum(node.dtype.lanes for other, node in found if other == kind))
