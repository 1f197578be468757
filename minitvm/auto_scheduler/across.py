"""Elementwise stages that read a tensor across: its elements lie apart along the stage's last axis.

A transpose reads rows where it writes columns. The rows lie along another axis of the result. Both
axes are computed in blocks of whole cache lines, which are transposed in registers
(:mod:`minitvm.transform.transpose_copies`); all other axes are outside. One read across is enough;
the expression may read other tensors as well. `x` is the last axis, `y` the axis along which the
rows of the tensor lie. ::

    for all other axes, parts of x, and parts of a long y, on all threads
        for y of a part
            for x of a part, in vectors
                T[y, x] = A[x, y] + B[y, x]

Where rows of the result end within a cache line, or their length is symbolic, `x` runs from one row
on into the next, if the reads do, too: a transpose of kernels ``W[f, c, r, q] = T[c, r, q, f]`` is
computed as the transpose of a matrix. So does a `y` of symbolic extent, as the pixels of an image
``T[y, x, c] = A[c, y, x]``.

Where the last axes, `z`, are a short line that lies side by side in the tensor as well, lines take
the place of elements: ``T[y, x, z] = A[x, y, z]``, as images whose channels are last are
transposed. A few lines that follow each other in the tensor are stored at a time, each behind the
one that came before it in its row of the result::

    for all other axes, and blocks of y, on all threads
        for x
            for y of a block, unrolled
                for z, in a vector
                    T[y, x, z] = A[x, y, z]

Where y has at most four elements, which are the whole row, the elements of all rows are picked from
the same vectors of neighbours, one y after the other::

    for all other axes, and vectors of x, on all threads
        for y, unrolled
            T[y, x] = A[x, y]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isqrt, prod
from typing import final

from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import (
    NEAR,
    all_loads,
    bare_vars,
    bytes_of,
    distances_of,
    divisors_along,
    extent_of,
    line_of,
    long_axes,
    product_of_extents,
)
from minitvm.auto_scheduler.cost import PAGE
from minitvm.auto_scheduler.loops import calls_in, compute_of, fused, write_loops
from minitvm.runtime.host import CACHE_LINE, LINES_AT_ONCE
from minitvm.runtime.record import record
from minitvm.runtime.threads import TASKS
from minitvm.target import Target
from minitvm.te.schedules.rewrite_operations import with_inlined
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp
from minitvm.tir.expr import IterVar, ProducerLoad

_FEW = 4  # rows, at most, that are mixed into one vector
_TASK = 4096  # elements that are worth a task
_LINES = (4, 8)  # short lines that are moved at a time: more rows of the result come late


def write_across(s: Schedule, stage: Stage, target: Target) -> bool | None:
    """Writes a stage that reads across; None for any other stage."""
    op = compute_of(stage)
    found = _across(s, op)
    if found is None:
        return _write_moved_lines(s, stage)
    order = sorted(op.axis, key=lambda axis: extent_of(axis) != 1)
    if any(axis is not own for axis, own in zip(order, op.axis, strict=True)):
        stage.reorder(*order)
    write = _write_picked if found.apart <= NEAR else _write_blocks
    write(stage, found, target)
    return True


def reads_across(s: Schedule, op: ComputeOp) -> bool:
    """Whether a stage reads elements that lie far apart along its last axis, but side by side along
    another."""
    found = _across(s, op)
    return found is not None and found.apart > NEAR


@final
@record()
class _Across:
    """The axes of a stage that reads across: `rows`, along which the rows that it reads lie;
    `columns`, the last axis, each behind the axes that are joined to it; and the `others`. Reads at
    neighbours of the last axis are `apart` elements apart."""

    rows: list[IterVar]
    columns: list[IterVar]
    apart: int
    others: list[IterVar]

    def parts_wanted(self, target: Target) -> int:
        """The number of parts into which the blocks are divided, so that there are enough tasks."""
        return -(-target.num_cores * TASKS // prod(extent_of(axis) or 1 for axis in self.others))


def _write_blocks(stage: Stage, found: _Across, target: Target) -> None:
    """Blocks of cache lines, which are transposed."""
    tasks = found.others
    choose(stage, "strategy", "blocks of cache lines, read along {y} and stored along {x}",
           y=found.rows, x=found.columns)  # fmt: skip
    line, wanted = _line(compute_of(stage)), found.parts_wanted(target)
    height, width = map(product_of_extents, (found.rows, found.columns))
    x, y = fused(stage, found.columns), fused(stage, found.rows)
    is_by_lines = _is_by_lines(compute_of(stage), found, target)
    part = width if width and is_by_lines else _part(width, line, wanted, height)
    digits = {n for n in divisors_along(found.columns, *compute_of(stage).body) if n % line == 0}
    if len(digits) == 1 and not is_by_lines:  # conditions on quotients are the same in a block
        (part,), wanted = digits, 1
    if width is None or part < width:
        outer, x = stage.split(x, factor=part)
        tasks.append(outer)
        wanted = max(1, wanted * part // (width or part))
    is_cut = wanted > 1 or (height is None and width is not None)
    if is_cut:
        part = _part(height, line, wanted, part)
        if height is None or part < height:
            outer, y = stage.split(y, factor=part)
            tasks.append(outer)
    lines = list[IterVar]()
    if is_by_lines:
        outer, y = stage.split(y, factor=line)
        lines.append(outer)
    write_loops(stage, [*lines, y], x, tasks=tasks)


def _is_by_lines(op: ComputeOp, found: _Across, target: Target) -> bool:
    """Whether a line of y is finished for whole rows of the result, which are so few elements that
    the lines that one row is read from fit the L1 cache. Where rows end within lines, neighbouring
    pieces of a row then meet in the cache. Where a column of the result lies on more pages than the
    CPU finds without a walk, a page is looked up once, and not for each column."""
    height, width = map(product_of_extents, (found.rows, found.columns))
    line = _line(op)
    if width is None or width <= LINES_AT_ONCE * line or target.level_of(width * CACHE_LINE) > 1:
        return False
    row = product_of_extents(op.axis[op.axis.index(found.rows[-1]) + 1 :])
    total = bytes_of(op.output(0))
    if width % line or height is None or row is None or total is None:
        return width % line > 0
    size = op.output(0).dtype.itemsize
    pages = height * min(row * size, PAGE) // PAGE
    is_read_again = height * width * size <= target.cache_bytes(2)
    is_walked = pages > target.processor.pages[0]
    return is_walked and is_read_again and total < target.cache_bytes(3) // 2


def _write_picked(stage: Stage, found: _Across, target: Target) -> None:
    """Writes vectors along x, whose elements are picked from the same reads for all y."""
    (y,), (x,), tasks = found.rows, found.columns, found.others
    choose(stage, "strategy", "vectors along {x}, whose elements are picked from the same reads "
           "for all {y}", y=y, x=x)  # fmt: skip
    is_divided = extent_of(x) is None or found.parts_wanted(target) > 1
    outer, x = stage.split(x, factor=target.lanes(stage.op.output(0).dtype))
    tasks, loops = ([*tasks, outer], []) if is_divided else (tasks, [outer])
    write_loops(stage, loops, x, tasks=tasks, unrolled=[y])


def _write_moved_lines(s: Schedule, stage: Stage) -> bool | None:
    """Writes a stage that moves short lines across; None for any other stage."""
    op = compute_of(stage)
    found = _moved_lines(s, op)
    if found is None or calls_in(s, stage):
        return None
    x, y, z = found
    choose(stage, "strategy", "short lines along {z}, a few neighbours along {y} at a time, which "
           "are stored along {x}", x=x, y=y, z=z)  # fmt: skip
    least, most = _LINES
    size = (product_of_extents(z) or 1) * op.output(0).dtype.itemsize
    lines, extent = max(least, min(most, CACHE_LINE // size)), extent_of(y)
    if extent is not None:
        even = (each for each in range(most, least - 1, -1) if extent % each == 0)
        lines = min(even, key=lambda each: abs(each - lines), default=min(lines, extent))
    tasks = [axis for axis in op.axis if axis not in (x, y, *z)]
    outer, y = stage.split(y, factor=lines)
    write_loops(stage, [x], fused(stage, z), tasks=[*tasks, outer], unrolled=[y])
    return True


def _moved_lines(s: Schedule, op: ComputeOp) -> tuple[IterVar, IterVar, list[IterVar]] | None:
    """Axes of a stage that moves short lines across: the axis along which they are stored, that
    along which they follow each other in a tensor, and those of a line; None for other stages."""
    long = long_axes(op.axis)
    if op.reduce_axis or len(op.body) != 1 or len(long) < 3:
        return None
    loads = [*all_loads(with_inlined(op, s.inlined))]
    z = _joined(loads, op, long[-1], op.axis[0])
    count, rest = product_of_extents(z), long[: long.index(z[0])]
    if len(rest) < 2 or count is None or count * op.output(0).dtype.itemsize > CACHE_LINE:
        return None
    *others, x = rest
    for distance in (distances_of(load, op) for load in loads):
        if distance.get(z[-1].var) == 1 and distance.get(x.var, 0) > count:
            for y in others:
                extent = extent_of(y)
                is_enough = extent is None or extent >= _LINES[0]
                if distance.get(y.var) == count and is_enough:
                    return x, y, z
    return None


def _line(op: ComputeOp) -> int:
    """The number of elements in a cache line of the result."""
    return max(1, CACHE_LINE // op.output(0).dtype.itemsize)


def _part(extent: int | None, line: int, wanted: int, other: int | None) -> int:
    """The length of the parts of an axis. It is a multiple of a line. There are about as many parts
    as `wanted`, each with enough work for a task, and the last part is no shorter than a line.
    `other` is the extent of the other axis."""
    other = isqrt(_TASK) if other is None else other  # unknown: blocks are squares
    least = line * max(1, _TASK // (line * max(1, other)))
    if extent is None:
        return least
    part = max(least, -(-extent // (wanted * line)) * line)
    while part < extent and 0 < extent % part < line:
        part += line
    return min(part, max(1, extent))


def _across(s: Schedule, op: ComputeOp) -> _Across | None:
    """The axes of a stage that reads across; None for other stages, and for too few elements."""
    long = long_axes(op.axis)
    if op.reduce_axis or len(op.body) != 1 or len(long) < 2 or op.body[0].dtype.is_bool:
        return None
    x = long[-1]
    axes = {axis.var: axis for axis in op.axis}
    loads = [*all_loads(with_inlined(op, s.inlined))]
    found = [distances_of(load, op) for load in loads]
    rows = Counter(
        var
        for each in found
        if each.get(x.var, 0) > 1
        for var, distance in each.items()
        if distance == 1 and var is not x.var
    )
    if not rows:
        return None
    ((row, _),) = rows.most_common(1)
    y = axes[row]
    apart = max(each.get(x.var, 0) for each in found if each.get(row) == 1)
    columns = [x] if apart <= NEAR else _joined(loads, op, x, y, _line(op))
    lines = [y] if extent_of(y) is not None else _joined(loads, op, y, x)
    others = [axis for axis in op.axis if axis not in (*columns, *lines)]
    height, width = product_of_extents(lines), product_of_extents(columns)
    if apart <= NEAR:
        is_enough = height is not None and 1 < height <= NEAR and (width is None or width >= _FEW)
    elif height is not None and height < _FEW:
        is_enough = False
    elif width is not None and width < _FEW:
        is_mixed = y is long[-2] and all(each.get(row, 0) in (0, 1) for each in found)
        is_enough = is_mixed and width > 1
    else:
        is_enough = True
    return _Across(lines, columns, apart, others) if is_enough else None


def _joined(
    loads: Sequence[ProducerLoad], op: ComputeOp, last: IterVar, other: IterVar, line: int = 0
) -> list[IterVar]:
    """The axes that form one loop with the axis `last`, outermost first: those before it that run
    along its line, without `other`. With `line`, as many as have an extent that is surely a
    multiple of it."""
    long = long_axes(op.axis)
    found = line_of(op, long[: long.index(last) + 1], loads, [other])
    sizes = [product_of_extents(found[i:]) for i in range(len(found))]
    ends = [i for i, size in enumerate(sizes) if line and size is not None and size % line == 0]
    found = found[ends[-1] :] if ends else found
    rest = bare_vars(*op.body)
    return found if rest.isdisjoint(axis.var for axis in found) else found[-1:]
