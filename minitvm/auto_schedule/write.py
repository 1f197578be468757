"""Writes schedules: ordinary primitives, chosen by what each stage computes."""

from __future__ import annotations

import operator
from math import prod
from typing import Any

from minitvm import expr as e
from minitvm.auto_schedule.contraction import Contraction, Factor, contraction_of
from minitvm.auto_schedule.tiles import Tile, tile_of
from minitvm.expr import IterVar, ProducerLoad
from minitvm.functor import walk_once
from minitvm.target import Target
from minitvm.te.schedule import Schedule, create_schedule
from minitvm.te.stage import Stage
from minitvm.te.tensor import ComputeOp, Operation, Tensor


def auto_schedule(ops: Any, target: Target | str | None = None) -> Schedule:
    """A schedule for the outputs of a program, made for a target.

    Its ``trace()`` is the Python that makes it.

    Parameters
    ----------
    ops : Operation, Tensor, or a list of them
        The outputs, as for ``te.create_schedule``.
    target
        What it is for; by default the innermost ``with Target(...)``, or this machine.
    """
    made = Target(target) if isinstance(target, str) else target or Target.current() or Target()
    s = create_schedule(ops)
    stages = list(s.stages)
    for stage in stages:
        if not stage.is_output and _is_elementwise(stage.op) and _reads_once(s, stage):
            stage.compute_inline()
    done: set[Stage] = set()
    for stage in stages:
        contraction = contraction_of(stage.op)
        if contraction is not None:
            last = _epilogue(s, stage)
            _Tiled(s, contraction, last.op.output(0), made).write()
            done |= {stage, last}
    for stage in stages:
        if stage not in done and isinstance(stage.op, ComputeOp) and not stage.inlined:
            _write_simple(stage, made)
    return s


def _is_elementwise(op: Operation) -> bool:
    return isinstance(op, ComputeOp) and not op.reduce_axis and len(op.body) == 1


def _reads_once(s: Schedule, stage: Stage) -> bool:
    """Whether inlining computes nothing twice: elementwise stages alone read it, as it lies."""
    readers = s.readers(stage)
    return all(_is_elementwise(each.op) and _reads_in_order(each, stage) for each in readers)


def _reads_in_order(reader: Stage, stage: Stage) -> bool:
    """Whether each element of the reader reads just the element of the same indices."""
    assert isinstance(reader.op, ComputeOp)
    axes = [axis.var for axis in reader.op.axis]
    loads = [
        each
        for body in reader.op.body
        for each in walk_once(body)
        if isinstance(each, ProducerLoad) and each.producer in stage.op.outputs
    ]
    return all(
        len(each.indices) == len(axes) and all(map(operator.is_, each.indices, axes))
        for each in loads
    )


def _epilogue(s: Schedule, stage: Stage) -> Stage:
    """The stage that takes a contraction's sums, element by element, in its own order; itself if
    there is none."""
    readers = s.readers(stage)
    if stage.is_output or len(readers) != 1 or readers[0].inlined:
        return stage
    (reader,) = readers
    ours = _is_elementwise(reader.op) and _reads_in_order(reader, stage)
    return reader if ours else stage


def _write_simple(stage: Stage, target: Target) -> None:
    """Elements in vectors, the outermost loop on all threads."""
    assert isinstance(stage.op, ComputeOp)
    axes = stage.op.axis
    if not axes:
        return
    if not stage.op.reduce_axis:
        lanes = max(1, target.vector_bits // max(8, stage.op.body[0].dtype.bits))
        extent = e.const_int(axes[-1].dom.extent)
        if extent is None or extent >= lanes:
            _, inner = stage.split(axes[-1], factor=lanes)
            stage.vectorize(inner)
    if len(axes) > 1:
        stage.parallel(axes[0])


class _Tiled:
    """Writes the schedule of one contraction, and of the stage `last` that takes its sums."""

    def __init__(
        self, s: Schedule, contraction: Contraction, last: Tensor, target: Target
    ) -> None:
        self._s = s
        self._contraction = contraction
        self._last = last
        self._target = target
        op = contraction.op
        self._column = op.axis[-1] if op.axis else None
        a, b = contraction.factors
        if self._column is not None and not b.reads(self._column):
            a, b = b, a
        self._a, self._b = a, b

    def write(self) -> None:
        s, op, column = self._s, self._contraction.op, self._column
        if column is None or not self._b.reads(column):
            return
        place = len(op.axis) - 1
        rows = [
            i for i, axis in enumerate(op.axis[:-1]) if self._a.reads(axis) != self._b.reads(axis)
            and self._a.reads(axis)
        ]  # fmt: skip
        row = rows[-1] if rows and not self._a.reads(column) else None
        tile = self._tile(row)

        last = self._last
        if last.op is op:
            sums = s.cache_write(last, "local")
        else:
            sums = op.output(0)
            s[sums].set_scope("local")
        stage = s[last]
        axes = list(stage.op.axis)
        outer = [axis for i, axis in enumerate(axes) if i not in (row, place)]
        inner: list[IterVar] = []
        column_outer, column_inner = stage.split(axes[place], factor=tile.columns)
        if row is not None:
            row_outer, row_inner = stage.split(axes[row], factor=tile.rows)
            stage.reorder(*outer, row_outer, column_outer, row_inner, column_inner)
            stage.unroll(row_inner)
            outer.append(row_outer)
        else:
            stage.reorder(*outer, column_outer, column_inner)
        outer.append(column_outer)
        stage.vectorize(column_inner)
        stage.parallel(outer[0])
        self._write_sums(sums, stage, column_outer, row, place)
        if self._packs(row):
            self._pack(sums, tile)

    def _write_sums(
        self, sums: Tensor, stage: Stage, at: IterVar, row: int | None, place: int
    ) -> None:
        inner = self._s[sums]
        inner.compute_at(stage, at)
        assert isinstance(inner.op, ComputeOp)
        axes = inner.op.axis
        rest = [axis for i, axis in enumerate(axes) if i not in (row, place)]
        rows = [] if row is None else [axes[row]]
        inner.reorder(*rest, *inner.op.reduce_axis, *rows, axes[place])
        for axis in rows:
            inner.unroll(axis)
        inner.vectorize(axes[place])

    def _tile(self, row: int | None) -> Tile:
        op = self._contraction.op
        columns = e.const_int(op.axis[-1].dom.extent)
        dtype = self._last.dtype
        if row is None:
            return tile_of(1, columns, dtype, self._target, 0)
        distance = self._a.along(op.axis[row]) * self._a.tensor.dtype.itemsize
        rows = e.const_int(op.axis[row].dom.extent)
        return tile_of(rows, columns, dtype, self._target, distance)

    def _packs(self, row: int | None) -> bool:
        """Whether the factor that columns read is first brought into panels as wide as a tile."""
        if row is None or self._plain_dims() is None or self._column is None:
            return False
        if self._b.along(self._column) != 1:
            return True
        shape = [e.const_int(extent) for extent in self._b.tensor.shape]
        if None in shape:
            return True
        size = prod(each or 0 for each in shape) * self._b.tensor.dtype.itemsize
        return size > _UNPACKED

    def _plain_dims(self) -> list[IterVar] | None:
        """The axis that each dimension of the columns' factor is indexed by; None if it is indexed
        otherwise, or read through other operations."""
        op = self._contraction.op
        tensor = self._b.tensor
        axes = {axis.var: axis for axis in (*op.axis, *op.reduce_axis)}
        for load in walk_once(op.body[0]):
            if isinstance(load, ProducerLoad) and load.producer is tensor:
                if not all(index in axes for index in load.indices):
                    return None
                return [axes[index] for index in load.indices]  # type: ignore[index]
        return None

    def _pack(self, sums: Tensor, tile: Tile) -> None:
        s = self._s
        dims = self._plain_dims()
        assert dims is not None
        place = next(i for i, axis in enumerate(dims) if axis is self._column)
        panels = s.cache_read(self._b.tensor, "global", [sums])
        reduced = [i for i, axis in enumerate(dims) if axis in self._contraction.op.reduce_axis]
        first = [i for i in range(len(dims)) if i not in reduced and i != place]

        def layout(*indices: Any) -> list[Any]:
            outer, inner = indices[place] // tile.columns, indices[place] % tile.columns
            return [*(indices[i] for i in first), outer, *(indices[i] for i in reduced), inner]

        axes = s[panels].transform_layout(layout)
        if place == len(dims) - 1:
            s[panels].vectorize(axes[-1])
        s[panels].parallel(axes[0])


_UNPACKED = 1 << 18  # bytes
