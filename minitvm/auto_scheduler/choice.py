"""Notes on the decisions, for ``explain``: a text with figures. The text is made on demand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import prod
from typing import TypeAlias

from minitvm.auto_scheduler.contraction import Contraction, extent_of
from minitvm.auto_scheduler.cost import Blocks, Tile, Unit
from minitvm.auto_scheduler.tiles import rows_side_by_side
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import Tensor
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr
from minitvm.tir.provenance import Choice, Figure

_Named: TypeAlias = Tensor | Stage | IterVar


def choose(
    where: Stage | Schedule, about: str, text: str, /, **figures: Figure | _Named | Sequence[_Named]
) -> None:
    """Notes a decision for a stage; of a schedule, for the stage of its last note. Tensors, axes
    and stages are figures by their names."""
    s = where.schedule if isinstance(where, Stage) else where
    assert isinstance(s, Schedule)
    stage = where.name if isinstance(where, Stage) else s.choices[-1].stage
    s.choices.append(Choice(stage, about, text, {k: _figure_of(x) for k, x in figures.items()}))


def _figure_of(figure: Figure | _Named | Sequence[_Named]) -> Figure:
    if isinstance(figure, Tensor | Stage | IterVar):
        return figure.name
    if isinstance(figure, Sequence) and not isinstance(figure, str):
        return ", ".join(each.name for each in figure)
    return figure


def choose_form(s: Schedule, contraction: Contraction, name: str) -> None:
    """Notes the form of a contraction: `rows` x `columns` sums of `steps` products."""
    op, a, b = contraction.op, contraction.a, contraction.b
    rows = [axis for axis in op.axis if not b.reads(axis)]
    batch = size_of(axis for axis in op.axis if b.reads(axis) and a.reads(axis))
    is_across = any(a.along(row) == 1 for row in contraction.rows[-1:])
    layout = "NT"[is_across] + "NT"[b.along(contraction.column) != 1]
    choose(s[op], "form", "{name} of {a} and {b}: {rows} x {columns} sums of {steps} products"
           + ("" if name == "convolution" else ", {layout}")
           + ("" if isinstance(batch, int) and batch == 1 else ", {batch} of them"),
           name=name, a=a.tensor, b=b.tensor, rows=size_of(rows), batch=batch, layout=layout,
           columns=size_of(contraction.columns), steps=size_of(op.reduce_axis))  # fmt: skip


def choose_tile(
    where: Stage | Schedule,
    contraction: Contraction,
    tile: Tile,
    unit: Unit,
    target: Target,
    by: str = "multiply-adds",
    width: int | None = None,
) -> None:
    """Notes the register tile, which `unit`, the instructions `by`, computes; `width` is the width
    of several columns side by side."""
    rows = contraction.rows[-1:]
    row_bytes = sum(map(contraction.a.along, rows)) * contraction.a.tensor.dtype.itemsize
    most = rows_side_by_side(row_bytes, target)
    sizes = (extent_of(rows[0]) if rows else 1, width or extent_of(contraction.column))
    filled = [
        size / (-(-size // part) * part)
        for size, part in zip(sizes, (tile.rows, tile.columns), strict=True)
        if size
    ]
    kind = "vector registers" if unit.registers == target.vector_registers else "registers"
    text = (
        "tiles of {rows} x {columns} sums by {by}, {filled:.0%} filled, in {registers} of {there} "
        f"{kind}: the fewest cycles, loads and edges counted"
    )
    if rows and most < target.vector_registers:
        text += "; of {most} rows at most, which fall into the same set of the L1 cache"
    choose(where, "tile", text, rows=tile.rows, columns=tile.columns, by=by, filled=prod(filled),
           registers=-(-tile.rows // unit.rows) * unit.vectors_of(tile.columns),
           there=unit.registers, most=most)  # fmt: skip


def choose_blocks(
    where: Stage | Schedule, contraction: Contraction, blocks: Blocks, in_panels: bool = True
) -> None:
    """Notes the blocks that are computed one after the other, or by different threads."""
    note, a, b = partial(choose, where), contraction.a.tensor, contraction.b.tensor
    sides = ["{rows} rows"] * (blocks.rows is not None)
    sides += ["{columns} columns"] * (blocks.columns is not None)
    if sides:
        what = "panels" if in_panels else "part of {b}"
        text = f"in tasks of {' and '.join(sides)}, whose {what} stay{'' if in_panels else 's'} in "
        text += "the caches"
        note("blocks", text, rows=blocks.rows, columns=blocks.columns, b=b)
    if blocks.depth is not None:
        text = "{depth} steps of the sum at a time, for which the rows of a tile fit the L1 cache"
        if blocks.by_panel:
            text = "{depth} steps of the sum at a time, for which the rows of {a} stay in L2"
        if not in_panels:
            text = "{depth} steps of the sum at a time: rows of {b} on pages found without a walk"
        note("blocks", text, depth=blocks.depth, a=a, b=b)
    slow = ": it is slow to read in its own layout"
    if blocks.strip is not None:
        note("packing", "{a} is copied {strip} rows at a time" + slow, a=a, strip=blocks.strip)
    if blocks.shares_rows:
        note("packing", "{a} is copied once for all tasks" + slow, a=a)


def size_of(axes: Iterable[IterVar]) -> int | PrimExpr:
    """The product of the extents of some axes."""
    extents = (axis.dom.extent for axis in axes if axis.dom is not None)
    size = prod(extents, start=e.const(1))
    known = e.const_int(size)
    return size if known is None else known
