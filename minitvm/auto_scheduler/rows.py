"""Stages other than contractions: elementwise ones and reductions, computed row by row.

Stages that read rows of each other are computed together: all of them for one row, then for the
next, so that a row is in the cache when the next stage reads it. The maximum, the exponentials, the
sum and the quotients of a softmax are such stages. Vectors lie along data axes: of sums down the
columns of a matrix, a vector stays in a register. A sum along neighbours is a plain loop, of which
LLVM makes vectors of partial sums.

::

    for each row, on all threads:
        for k: largest = max(largest, X[row, k])
        for j in vectors: powers[j] = exp(X[row, j] - largest)
        for k: total += powers[k]
        for j in vectors: Y[row, j] = powers[j] / total

Sums down the columns of a matrix whose rows are read here, too, are added up beside them in the L1
cache: large matrices come from memory once::

    for each part of the rows, on all threads:
        for each row of the part:
            for j: total += dY[row, j] * w[j]
            for j in vectors: dX[row, j] = dY[row, j] * w[j] - total / n
            for j in vectors: sums[part, j] += dY[row, j]
    for j in vectors: db[j] = the sums of all parts
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import final

from minitvm.auto_scheduler.across import reads_across, write_across
from minitvm.auto_scheduler.attempts import Attempt
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import (
    all_loads,
    extent_of,
    has_choices,
    is_in_order,
    lanes_of,
    last_line,
    product_of_extents,
    rows_in_common,
    running_axis,
)
from minitvm.auto_scheduler.cost import usual_bytes_of
from minitvm.auto_scheduler.inner_rows import InnerRows, inner_rows
from minitvm.auto_scheduler.lines import (
    first_of_digits,
    has_repeated_rows,
    part_of_line,
    request_gathered,
    store_past_caches,
    write_line,
    write_parts_of_line,
    write_pieces,
    write_short_lines,
)
from minitvm.auto_scheduler.loops import (
    Part,
    calls_in,
    compute_of,
    fused,
    in_tasks,
    run_parallel,
    write_loops,
)
from minitvm.auto_scheduler.reductions import (
    in_parts,
    split_in_parts,
    write_along,
    write_in_registers,
    write_streamed,
)
from minitvm.auto_scheduler.short_rows import are_short_rows, waits_for_memory, write_short_rows
from minitvm.auto_scheduler.some_sizes import has_short_rows
from minitvm.auto_scheduler.ways import (
    parts_of_rows,
    rows_of,
    rows_summed,
    runs_in_columns,
    streamed,
)
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.schedules.rewrite_operations import with_inlined
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, Operation
from minitvm.tir.expr import IterVar
from minitvm.tir.functor import mentions

_MOST_INSIDE = 32  # stages in the rows of another: the time of a build grows faster with more
_MOST_VECTORS = 4  # of a row: in longer ones, a function that is called once is a small part


@final
@record()
class _Place:
    """The place of a stage: within the loops over the first `rows` axes of `root`."""

    root: Stage
    rows: int


def write_rows(
    attempt: Attempt,
    stages: Sequence[Stage],
    target: Target,
    kept: Container[Stage],
    parts: Mapping[Stage, Part | None],
    *,
    given: Container[Stage],
    strict: bool,
) -> dict[Stage, IterVar]:
    """Schedules `stages`, given in an order in which each comes before its readers. Stages of
    `kept` are computed as a whole; outputs, and stages of `given`, in loops that compute all
    elements. A stage of `parts` computes one part at a time, in a loop of its own; None means the
    part that a loop of its reader needs. Returns the loops over parts. `strict`: floats are
    combined in order."""
    s = attempt.schedule
    places: dict[Stage, _Place] = {}
    members: dict[Stage, list[Stage]] = {}
    stages = _without_inner_rows(attempt, stages, target, kept, parts, given=given, strict=strict)
    turned = {each for each in stages if reads_across(s, compute_of(each)) and each not in parts}
    for stage in reversed(stages):
        place = None
        if stage not in kept and stage not in turned and parts.get(stage) is None:
            find = partial(_place_of_readers, s, stage, places, target)
            place = attempt.follow("rows of its readers", stage, find)
        if place is not None:
            is_full = len(members.get(place.root, ())) >= _MOST_INSIDE
            is_free = not (stage.is_output or stage in given)
            is_whole = is_free or _has_all_elements(s, stage, place, target)
            if place.root in turned or is_full or not is_whole:
                place = None
            else:
                members.setdefault(place.root, []).append(stage)
        places[stage] = place or _Place(stage, rows_of(compute_of(stage), target))
    for root, others in members.items():
        most = min(places[stage].rows for stage in others)
        is_apart = any(each.is_output or each in given for each in others)
        if is_apart or not _are_elements_of_rows(s, root, others, most, target):
            most = _rows_of_vectors(root, others, most, target)
        places |= {stage: _Place(root if most else stage, most) for stage in others}
    found: dict[Stage, _Rows] = {}
    for root in stages:
        if places[root].root is root:
            inside = {each: places[each].rows for each in members.get(root, [])}
            inside = {each: rows for each, rows in inside.items() if rows}
            found[root] = _Rows(s, root, inside, given, target, strict)
    beside: set[Stage] = set()
    for root, rows in found.items():
        if rows.inside and root not in parts:
            free = [each for each in found if each not in (root, *parts, *beside, *turned)]
            find_sums = partial(rows.sums_beside, [x for x in free if not found[x].inside])
            sums = attempt.follow("sums beside rows", root, find_sums) or []
            found[root] = replace(rows, beside=sums)
            beside.update(sums)
    loops: dict[Stage, IterVar] = {}
    for root in stages:
        if root in beside:
            continue
        if root in found:
            rows = found[root]
            if root in parts:
                loop = attempt.follow("rows", root, partial(rows.write_part, parts[root]))
                loops |= {} if loop is None else {root: loop}
                continue
            across = partial(write_across, s, root, target)
            in_blocks = not rows.inside and bool(attempt.follow("blocks across", root, across))
            if not in_blocks:
                attempt.follow("rows", root, rows.write)
            store_past_caches(s, root, target, in_blocks=in_blocks)
        else:
            choose(root, "place", "computed row by row within {root}", root=places[root].root)
    return loops


# -- Stages that are computed together --


def _without_inner_rows(
    attempt: Attempt,
    stages: Sequence[Stage],
    target: Target,
    kept: Container[Stage],
    parts: Container[Stage],
    *,
    given: Container[Stage],
    strict: bool,
) -> Sequence[Stage]:
    """Schedules the stages whose rows along an inner axis take turns, and those that are computed
    for each of these rows; returns the others."""
    s, done = attempt.schedule, set[Stage]()

    def write(root: Stage) -> InnerRows | None:
        before = stages[: stages.index(root)]
        free = [each for each in before if each not in (*done, root) and is_free(each)]
        found = inner_rows(s, root, free, given, target)
        if found is not None:
            _Rows(s, root, dict.fromkeys(found.inside, 1), given, target, strict).write_in_turn(
                found.axis
            )
        return found

    def is_free(stage: Stage) -> bool:
        return stage not in kept and stage not in parts

    for root in reversed([each for each in stages if each not in parts]):
        found = None if root in done else attempt.follow("rows in turn", root, partial(write, root))
        if found is not None:
            done |= {root, *found.inside}
    return [each for each in stages if each not in done]


def _place_of_readers(
    s: Schedule, stage: Stage, places: dict[Stage, _Place], target: Target
) -> _Place | None:
    """The place that all readers of a stage have in common, within the rows that they share with
    the stage; None if there is no such place, or a reader needs more than one row. Sums of columns
    stay side by side."""
    op = compute_of(stage)
    most = rows_of(op, target)
    found: list[_Place] = []
    for reader, rows in readers_of(s, stage).items():
        if reader not in places:
            return None
        found.append(_Place(places[reader].root, min(rows, places[reader].rows)))
    if not found:  # an output, or read by ranges alone
        return None
    root, rows = found[0].root, min([most, *(place.rows for place in found)])
    if _is_single(root, rows):
        return None
    return _Place(root, rows) if rows and all(place.root is root for place in found) else None


def _has_all_elements(s: Schedule, stage: Stage, place: _Place, target: Target) -> bool:
    """Whether a place computes all elements of a stage: one in each iteration, or a row. Rows are
    for tensors larger than the L1 cache. The elements of others are near in any case, and those of
    a short row would be read before they are stored."""
    op, rows = compute_of(stage), compute_of(place.root).axis[: place.rows]
    is_large = sum(map(usual_bytes_of, op.outputs)) > target.cache_bytes(1)
    return (is_large or len(rows) == len(op.axis)) and computes_all(s, stage, rows)


def _rows_of_vectors(root: Stage, inside: Sequence[Stage], rows: int, target: Target) -> int:
    """Up to `rows` leading axes of a stage, so few that a row fills a vector where no stage of it
    is a reduction; 0 where no row does, and for a single row."""
    ops = [*map(compute_of, (root, *inside))]
    if any(op.reduce_axis for op in ops):
        return rows
    lanes = min(lanes_of(op, target) for op in ops)
    while rows and (product_of_extents(ops[0].axis[rows:]) or lanes) < lanes:
        rows -= 1
    return 0 if _is_single(root, rows) else rows


def _are_elements_of_rows(
    s: Schedule, root: Stage, inside: Sequence[Stage], rows: int, target: Target
) -> bool:
    """Whether stages inside of rows compute one element of each row, for as many rows at a time as
    a vector has lanes: these rows are one line of few vectors, or functions take a good part of
    their time. No stage is a reduction."""
    op, others = compute_of(root), [*map(compute_of, inside)]
    length, number = product_of_extents(op.axis[rows:]), extent_of(op.axis[rows - 1])
    lanes = min(lanes_of(each, target) for each in (op, *others))
    if not rows or op.reduce_axis or len(op.outputs) > 1 or length is None or length < 2:
        return False
    if any(each.reduce_axis or len(each.axis) != rows for each in others):
        return False
    is_dear = length <= _MOST_VECTORS * lanes and any(calls_in(s, each) for each in inside)
    is_filled = number is None or number >= lanes
    return is_filled and (_is_one_line(length, target) or is_dear)


def _is_one_line(length: int, target: Target) -> bool:
    """Whether as many rows as a vector has lanes are so few vectors that these are written out."""
    return length <= target.vector_registers


def _is_single(root: Stage, rows: int) -> bool:
    """Whether the first axes of a stage have one row together, which no threads can share."""
    return all(extent_of(axis) == 1 for axis in compute_of(root).axis[:rows])


def computes_all(s: Schedule, stage: Stage, rows: Sequence[IterVar]) -> bool:
    """Whether loops over `rows`, in which the readers of a stage are computed, need all of its
    elements: as many iterations as there are rows, in each of which the owner of the loops reads a
    row from end to end, and no reader with a condition."""
    op = compute_of(stage)
    if not rows or not all(map(_are_alike, op.axis, rows)):
        return False
    reads = [
        (compute_of(reader).axis, load.indices)
        for reader in s.readers(stage)
        for load in all_loads(compute_of(reader))
        if load.producer in op.outputs
    ]
    first = len(rows)
    if any(
        index is not axis.var  # the loop over an axis of one element must say so
        for axes, indices in reads
        for index, axis in zip(indices[:first], axes, strict=False)
    ):
        return False
    if first < len(op.axis) and not any(
        axes[:first] == tuple(rows)
        and len(axes) == len(op.axis)
        and all(map(_are_alike, op.axis, axes))
        and all(index is axis.var for index, axis in zip(indices, axes, strict=True))
        for axes, indices in reads
    ):
        return False
    readers = (x for x in s.stages if isinstance(x.op, ComputeOp) and s.consumes(x, stage))
    return not any(has_choices(compute_of(each)) for each in readers)


def readers_of(s: Schedule, stage: Stage) -> dict[Stage, int]:
    """The readers of a stage, directly or through inlined stages; for each, the number of leading
    axes along which it reads only its own row of the stage."""
    least: dict[Stage, float] = {stage: inf}
    pending = [stage]
    while pending:
        read = pending.pop()
        for reader in s.readers(read):
            rows = min(least[read], _rows_in_common(reader.op, read))
            if rows < least.get(reader, inf):
                least[reader] = rows
                pending += [reader] if reader.inlined else []
    del least[stage]
    return {each: int(rows) for each, rows in least.items() if not each.inlined}


def _rows_in_common(reader: Operation, stage: Stage) -> int:
    if not isinstance(reader, ComputeOp):
        return 0
    reads = [each for each in all_loads(reader) if each.producer in stage.op.outputs]
    return min((rows_in_common(each, reader) for each in reads), default=len(reader.axis))


def _can_stand_beside(s: Schedule, stage: Stage, group: Sequence[Stage]) -> bool:
    """Whether a stage and those of a group don't read each other, and no other stage has to be
    computed between two of them all. Inlined ones are computed within them."""
    whole = [*group, stage]
    if stage in s.consumed_by(group) or not s.consumed_by([stage]).isdisjoint(group):
        return False
    others = (x for x in s.consumed_by(whole) if x not in whole and not x.inlined)
    return all(s.consumed_by([each]).isdisjoint(whole) for each in others)


def _are_alike(a: IterVar, b: IterVar) -> bool:
    """Whether two axes have the same extent."""
    if a.dom is None or b.dom is None:
        return True
    size = extent_of(a)
    return size == extent_of(b) and (size is not None or a.dom.extent is b.dom.extent)


# -- Loops --


@final
@record()
class _Rows:
    """The loops of a stage, `root`, and of the stages `inside` of its rows, each with the number of
    leading axes that are rows. The caller gets the results of outputs and of stages of `given`.
    `beside`: the sums of columns that are added up row by row."""

    s: Schedule
    root: Stage
    inside: Mapping[Stage, int]
    given: Container[Stage]
    target: Target
    strict: bool
    beside: Sequence[Stage] = ()

    def write(self) -> bool:
        """Schedules the stages, on all threads."""
        s, root, target = self.s, self.root, self.target
        rows = min(self.inside.values(), default=len(compute_of(root).axis))
        if short := self._short_rows(rows):
            if root not in short:
                self._choose()
                self._write_columns(root, rows)
            block = write_short_rows(s, short, root, rows, target, strict=self.strict)
            self._write_inside(block, rows, short)
        elif not self.inside:
            self._write_alone()
        elif _are_elements_of_rows(s, root, [*self.inside], rows, target):
            self._write_elements_of_rows(rows)
        elif found := self._tails():
            self._choose()
            in_order = any(is_in_order(compute_of(each), self.strict) for each in found)
            loops = write_in_registers(s, found, root, 0, target, in_order=in_order)
            run_parallel(root, loops, target)
        else:
            self._choose()
            self._write_columns(root, rows)
            row = fused(root, compute_of(root).axis[:rows])
            if self.beside:
                row = self._write_beside(row)
            else:
                root.parallel(row)
            self._write_inside(row, rows)
        return True

    def write_in_turn(self, row: IterVar) -> None:
        """Schedules the stages in a loop over the rows along one axis of the root."""
        root, axes = self.root, compute_of(self.root).axis
        choose(root, "strategy", "the rows along {axis} take turns: all stages for one row, which "
               "stays in the L2 cache", axis=row)  # fmt: skip
        place = axes.index(row)
        root.reorder(row, *axes[:place])
        self._write_columns(root, place + 1)
        root.parallel(row)
        self._write_inside(row, 1)
        for each in self.inside:
            choose(each, "place", "computed row by row within {root}", root=root)

    def sums_beside(self, stages: Sequence[Stage]) -> list[Stage] | None:
        """The sums of columns among `stages` that are added up in the loops over rows: of the same
        rows of large tensors. None where there are none."""
        s, target, op = self.s, self.target, compute_of(self.root)
        rows = min(self.inside.values())
        if rows != 1 or op.reduce_axis or self._short_rows(rows) or self._tails():
            return None
        read = {tensor for each in (self.root, *self.inside) for tensor in each.op.input_tensors}
        found = list[Stage]()
        for stage in stages:
            shared = rows_summed(compute_of(stage), op.axis[0], read, target, strict=self.strict)
            if shared and _can_stand_beside(s, stage, [self.root, *self.inside, *found]):
                found.append(stage)
        return found or None

    def _write_beside(self, row: IterVar) -> IterVar:
        """Adds up the sums of columns in parts of the rows, which run in parallel. Returns the loop
        over the rows of a part."""
        root, parts = self.root, parts_of_rows(compute_of(self.beside[0]), self.target)
        part, row = root.split(row, nparts=parts)
        root.parallel(part)
        for stage in self.beside:
            choose(stage, "strategy", "added up row by row beside {root}, which reads the same "
                   "rows, in {parts} parts", root=root, parts=parts)  # fmt: skip
            lanes = lanes_of(compute_of(stage), self.target)
            made = split_in_parts(self.s, stage, parts, lanes)
            task, column = compute_of(made).axis
            column, lane = made.split(column, factor=lanes)
            write_loops(made, [*compute_of(made).reduce_axis, column], lane, tasks=[task])
            made.compute_with(root, row)
        return row

    def write_part(self, part: Part | None) -> IterVar:
        """Schedules stages that are computed in parts; returns the loop over the parts. With no
        `part`, they are computed in the loop over parts of a reader."""
        self._choose()
        root = self.root
        axes = list(compute_of(root).axis)
        alone = max(0, len(axes) - 1) if part is None else part.axis + 1
        rows = min(self.inside.values(), default=alone)
        self._write_columns(root, rows)
        loop = axes[0]
        if part is not None:
            tasks = axes[: part.axis]
            if part.rows is not None:
                outer, axes[part.axis] = root.split(axes[part.axis], factor=part.rows)
                tasks.append(outer)
            loop = tasks[-1]
            if self.target.num_cores > 1:
                loop = fused(root, tasks)
                root.parallel(loop)
        if self.inside:
            self._write_inside(axes[rows - 1], rows)
        return loop

    def _write_inside(self, row: IterVar, rows: int, done: Container[Stage] = ()) -> None:
        """Schedules the stages inside of a row that aren't `done`."""
        for stage in self.inside:
            if stage not in done:
                self._write_columns(stage, rows)
                stage.compute_at(self.root, row)

    def _write_elements_of_rows(self, rows: int) -> None:
        """Schedules the stages for as many rows at a time as a vector has lanes: each stage inside
        fills a vector. Short rows are one line in vectors."""
        root, ops = self.root, [*map(compute_of, (self.root, *self.inside))]
        lanes = min(lanes_of(op, self.target) for op in ops)
        *outer, row = ops[0].axis[:rows]
        block, row = root.split(row, factor=lanes)
        if _is_one_line(product_of_extents(ops[0].axis[rows:]) or 0, self.target):
            how = "as one line in vectors"
            vector, lane = root.split(fused(root, [row, *ops[0].axis[rows:]]), factor=lanes)
            root.unroll(vector)
            root.vectorize(lane)
        else:
            how = "each in vectors of neighbours in memory"
            self._write_columns(root, rows)
        choose(root, "strategy", f"{{lanes}} rows at a time, {how}", lanes=lanes)
        block = fused(root, [*outer, block])
        root.parallel(block)
        for stage in self.inside:
            stage.vectorize(compute_of(stage).axis[-1])
            stage.compute_at(root, block)

    def _choose(self) -> None:
        """Notes how the rows are computed. The strategy for a running reduction has its own
        note."""
        op = compute_of(self.root)
        if op.reduce_axis and running_axis(op, in_order=is_in_order(op, self.strict)) is not None:
            return
        how = "each along its line of memory"
        if not op.reduce_axis or runs_in_columns(op, self.target):
            how = "in vectors of neighbours in memory"
        choose(self.root, "strategy", f"row by row, {how}")

    def _short_rows(self, rows: int) -> list[Stage]:
        """The reductions, if all of them are along short rows, with one result for each of the
        `rows`; none otherwise."""
        found = [each for each in (self.root, *self.inside) if compute_of(each).reduce_axis]
        if all(waits_for_memory(compute_of(each), self.target) for each in found):
            return []
        if any(each.is_output or each in self.given for each in self.inside):
            return []  # results in memory that the caller gives
        is_each = all(
            len(op.axis) == rows and are_short_rows(op, self.target, strict=self.strict)
            for op in map(compute_of, found)
        )
        return found if is_each else []

    def _tails(self) -> list[Stage]:
        """The stages inside, if all of them are reductions in columns whose results the root alone
        reads, element by element; none otherwise."""
        s, last, found = self.s, compute_of(self.root), [*self.inside]
        if last.reduce_axis or any(each.is_output or each in self.given for each in found):
            return []
        is_each = all(
            op.reduce_axis
            and len(last.axis) == len(op.axis)
            and runs_in_columns(op, self.target)
            and _rows_in_common(last, stage) == len(op.axis)
            for stage, op in ((each, compute_of(each)) for each in found)
        )
        return found if is_each and s.consumed_by(found).isdisjoint(found) else []

    def _write_alone(self) -> None:
        """The loops of a stage in whose rows no other stage is computed."""
        s, stage, target = self.s, self.root, self.target
        op, is_short = compute_of(stage), has_short_rows() and stage is s[s.calls.outputs[-1]]
        if op.reduce_axis:
            in_order = is_in_order(op, self.strict)
            if not runs_in_columns(op, target):
                self._choose()
                write_along(s, stage, target, in_order=in_order, alone=True)
            elif streamed(op, target):
                write_streamed(s, stage, target, in_order=in_order)
            else:
                self._choose()
                stage = in_parts(s, stage, target, in_order=in_order)
                loops = write_in_registers(s, [stage], stage, 0, target, in_order=in_order)
                run_parallel(stage, loops, target)
        elif not op.axis:
            self._choose()
        elif is_short and (size := part_of_line(op)) is not None:
            choose(stage, "strategy", "row by row, each in parts of {size} neighbours",
                   size=size.name)  # fmt: skip
            write_parts_of_line(stage, size, target)
        elif is_short and has_repeated_rows(with_inlined(op, s.inlined)):
            choose(stage, "strategy", "several rows at a time, as one line in vectors")
            write_short_lines(s, stage, target)
        elif not write_pieces(stage, target):
            self._choose()
            first = self._first_of_vectors(stage)
            vectors = self._write_columns(stage, first)
            lines = compute_of(stage).axis[:first]
            assert vectors is not None
            line = product_of_extents(op.axis[first:])
            loop = fused(stage, in_tasks(stage, lines, vectors, target))
            stage.parallel(loop)
            request_gathered(stage, loop, line, target)

    def _write_columns(self, stage: Stage, rows: int) -> IterVar | None:
        """Schedules the loops inside of the first `rows` axes; returns the outer loop over vectors
        of an elementwise stage."""
        op, target = compute_of(stage), self.target
        if op.reduce_axis:
            in_order = is_in_order(op, self.strict)
            if not runs_in_columns(op, target):
                write_along(self.s, stage, target, in_order=in_order, alone=False)
            elif rows < len(op.axis):
                write_in_registers(self.s, [stage], stage, rows, target, in_order=in_order)
            return None
        if rows == len(op.axis):
            return None
        first = max(rows, self._first_of_vectors(stage))
        return write_line(self.s, stage, op.axis[first:], target)

    # -- Neighbours in memory --

    def _first_of_vectors(self, stage: Stage) -> int:
        """The first axis of the line that an elementwise stage computes in vectors."""
        return first_of_digits(self.s, stage, self._first_of_line(stage), self.target)

    def _first_of_line(self, stage: Stage) -> int:
        """The first axis of those that together run along one line of memory of every tensor, or
        don't index it. Fused into one loop, these axes need no index arithmetic."""
        found: dict[Stage, int] = {}
        for each in sorted({*self.s.inlined_in(stage), stage}, key=self.s.stages.index):
            found[each] = self._first_after(each, found)
        return found[stage]

    def _first_after(self, stage: Stage, inlined: Mapping[Stage, int]) -> int:
        """The first axis of a line, given the first axes of the stages inlined in the stage."""
        op = compute_of(stage)
        last = len(op.axis) - 1
        first = len(op.axis) - len(last_line(op, op.axis))
        for each in {self.s[tensor] for tensor in op.input_tensors}:
            if each.inlined:
                first = max(first, inlined[each])
            elif each in self.inside and any(
                mentions(op.axis[-1].var, *load.indices)
                for load in all_loads(op)
                if load.producer in each.op.outputs
            ):
                first = max(first, len(op.axis) - self._unbroken(each))
        return min(first, last)

    def _unbroken(self, stage: Stage) -> int:
        """The number of the last axes along which a row of a stage is contiguous. A line whose
        length is no multiple of a vector is padded with unused memory."""
        op = compute_of(stage)
        if not op.axis or (op.reduce_axis and not runs_in_columns(op, self.target)):
            return len(op.axis)
        first = len(op.axis) - 1 if op.reduce_axis else self._first_of_vectors(stage)
        extent = product_of_extents(op.axis[first:])
        is_whole = extent is not None and extent % lanes_of(op, self.target) == 0
        return len(op.axis) if is_whole else len(op.axis) - first
