"""How much a function computes and moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import final

from minitvm import expr as e
from minitvm.codegen.work import estimated_values
from minitvm.explanation.amount import Amount, Sizes, product_of, sum_of, value_of
from minitvm.expr import PrimExpr
from minitvm.functor import children, walk_once
from minitvm.passes.access import written_parameters
from minitvm.scalars import INTRINSICS
from minitvm.stmt import ORIGIN, BufferStore, PrimFunc
from minitvm.te.origin import Origin, StageWork


@final
@dataclass(frozen=True, slots=True)
class Operations:
    """Operations of one kind: of the dtypes ``kind`` (one, or those of two factors and of their
    sums), or the calls of the function of that name."""

    kind: tuple[str, ...] | str
    number: Amount

    @property
    def is_arithmetic(self) -> bool:
        return not isinstance(self.kind, str)


def operations_of_stage(stage: StageWork, sizes: Sizes) -> tuple[Operations, ...]:
    """What a stage computes as it was written."""
    kinds: dict[tuple[str, ...] | str, list[Amount]] = {}
    for work in stage.work or ():
        kinds.setdefault(work.kind, []).append(product_of(work.number, work.extents, sizes))
    return tuple(Operations(kind, sum_of(found)) for kind, found in kinds.items())


def operations_of(func: PrimFunc, sizes: Sizes) -> tuple[Operations, ...]:
    """What a function computes: as it was written where that is known, else as its loops do."""
    origin: Origin | None = func.attrs.get(ORIGIN)
    if origin is None or not is_written(origin):
        return tuple(_operations_of_loops(func, sizes))
    kinds: dict[tuple[str, ...] | str, list[Amount]] = {}
    for stage in origin.stages:
        for each in operations_of_stage(stage, sizes):
            kinds.setdefault(each.kind, []).append(each.number)
    return tuple(Operations(kind, sum_of(found)) for kind, found in kinds.items())


def is_written(origin: Origin | None) -> bool:
    """Whether all stages are expressions, from which operations can be counted."""
    return origin is not None and all(stage.work is not None for stage in origin.stages)


def bytes_of_arguments(func: PrimFunc, sizes: Sizes) -> Amount:
    """What is moved if each element of an argument is read, or written, once."""
    read = {
        each.buffer
        for each in walk_once(func.body)
        if isinstance(each, (e.BufferLoad, e.BufferRef))
    }
    written = written_parameters(func)
    is_also_read = ORIGIN not in func.attrs
    times = (
        (buffer, (buffer in read and (buffer not in written or is_also_read)) + (buffer in written))
        for buffer in func.buffer_map.values()
    )
    return sum_of(
        product_of(number * buffer.dtype.itemsize, buffer.shape, sizes) for buffer, number in times
    )


def _operations_of_loops(func: PrimFunc, sizes: Sizes) -> Iterator[Operations]:
    stores = [each for each in walk_once(func.body) if isinstance(each, BufferStore)]
    kinds = dict.fromkeys(kind for store in stores for kind, _ in _values(store.value))
    for kind in kinds:
        number = value_of(estimated_values(func.body, partial(_count, kind)), sizes)
        yield Operations(kind, number)


def _count(kind: tuple[str, ...] | str, value: PrimExpr) -> float:
    return float(sum(lanes for other, lanes in _values(value) if other == kind))


def _values(root: PrimExpr) -> Iterator[tuple[tuple[str, ...] | str, int]]:
    """The operations of a value and their lanes, indices left out."""
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or isinstance(node, e.BufferLoad):
            continue
        seen.add(id(node))
        if isinstance(node, e.Arithmetic):
            yield (str(node.dtype.with_lanes(1)),), node.dtype.lanes
        elif isinstance(node, e.Call) and node.op in INTRINSICS and node.dtype.is_float:
            yield node.op, node.dtype.lanes
        waiting += [each for each in children(node) if isinstance(each, PrimExpr)]
