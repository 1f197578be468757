"""Batches of scans, computed in parts.

The steps of a scan over many small systems read and write the states of all systems, which no cache
holds. Where no system depends on another, a task computes all steps of a part of them, whose states
stay in the L1 cache::

    for part, on all threads
        for t:
            for b in part: H[t, b] = H[t - 1, b] * a + X[t, b]

In a part, the systems are the lanes of vectors where the rows of a system are shorter than a
vector. Inputs and results whose systems lie elsewhere are transposed, part by part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from math import prod
from typing import final

from minitvm.auto_scheduler.attempts import VERSION, Attempt, Write, written
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import all_loads, usual_extent, usual_iterations
from minitvm.auto_scheduler.tiles import on_one_core
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.schedules.batches import Batch, batch_along, part_of_batch
from minitvm.te.schedules.operation_graph import in_order
from minitvm.te.schedules.schedule import Schedule, create_schedule
from minitvm.te.tensor import ComputeOp, Operation, PlaceholderOp, ScanOp, Tensor, tensor_of
from minitvm.tir import expr as e
from minitvm.tir.expr import const_int
from minitvm.tir.functor import mentions

_LEAST_STEPS = 4  # of a scan, for which states that stay near pay
_NEAR = 0.75  # of the L1 cache, for what each step reads or writes
_SHARED = 0.25  # of the L2 cache, for what all parts read
_FAR = 0.125  # of the L2 cache, for what one step reads or writes
_ONCE = 1 / 16  # of a part's work: what each part computes again
_UNDER_WAY = 8  # vectors of a step, whose operations wait for those of the step before
_TASKS = 8  # parts of a batch, which cores share evenly enough
_MOST = 4096  # elements in a part


def write_parts(
    attempt: Attempt, arguments: Iterable[Tensor], target: Target, write: Write
) -> bool:
    """Lets a batch be computed in parts, where the states of its scans are nearer then. `write`
    writes the schedule of a part. Returns whether it is."""
    s = attempt.schedule
    outputs = s.calls.outputs
    if not any(isinstance(stage.op, ScanOp) for stage in s.stages):
        return False
    ends = {*outputs}
    if any(not isinstance(x.op, PlaceholderOp) and x.op not in ends for x in arguments):
        return False
    found = _best(outputs, target)
    if found is None:
        return False
    return bool(attempt.follow(
        f"{VERSION}parts of a batch", s[outputs[-1]], lambda: _write_part(s, found, target, write)
    ))  # fmt: skip


@final
@record()
class _Choice:
    """A batch along a dimension of the first output, and the elements of a part."""

    batch: Batch
    dimension: int
    factor: int
    in_lanes: bool


def _write_part(s: Schedule, found: _Choice, target: Target, write: Write) -> bool:
    outputs = s.calls.outputs
    extent = e.const(found.factor, found.batch.extent.dtype)
    part = part_of_batch(outputs, found.batch, extent, in_lanes=found.in_lanes)

    def write_part(attempt: Attempt) -> None:
        write(attempt, target=on_one_core(target), arguments=part.copies)

    made = written(lambda: create_schedule(part.outputs), write_part, {}).schedule
    text = "parts of {factor} of {extent} elements: their states stay in the caches"
    choose(s[outputs[-1]], "batch", text, factor=found.factor, extent=str(found.batch.extent))
    s.choices += made.choices
    s.compute_in_parts(found.dimension, found.factor, made.trace(), in_lanes=found.in_lanes)
    return True


def _best(outputs: Sequence[Operation], target: Target) -> _Choice | None:
    """The first dimension along which parts pay."""
    for dimension in range(outputs[0].output(0).ndim):
        batch = batch_along(outputs, dimension)
        if batch is None:
            continue
        in_lanes = _are_lanes(outputs, batch, target)
        factor = _factor(outputs, batch, target, in_lanes=in_lanes)
        if factor is not None:
            return _Choice(batch, dimension, factor, in_lanes)
    return None


# -- The order of dimensions ----------------------------------------------------------------------


def _states(outputs: Iterable[Operation], batch: Batch) -> list[Tensor]:
    """The states of the scans over a batch."""
    scans = [op for op in in_order(outputs) if isinstance(op, ScanOp)]
    return [each for op in scans for each in op.state_placeholder if each in batch.places]


def _are_lanes(outputs: Sequence[Operation], batch: Batch, target: Target) -> bool:
    """Whether the elements of a batch become the lanes of vectors: they are already, or each has
    rows that are shorter than a vector, and no product by a factor that all elements share."""
    states = _states(outputs, batch)
    if all(batch.places[each] == each.ndim - 1 for each in states):
        return True
    rows = [const_int(each.shape[-1]) for each in states if batch.places[each] < each.ndim - 1]
    lanes = min(target.lanes(each.dtype) for each in states)
    are_short = all(row is not None and row < lanes for row in rows)
    return are_short and not any(
        tensor not in batch.places
        for op in in_order(outputs)
        if isinstance(op, ComputeOp) and op.reduce_axis
        for tensor in op.input_tensors
    )


# -- The elements of a part -----------------------------------------------------------------------


def _factor(
    outputs: Sequence[Operation], batch: Batch, target: Target, *, in_lanes: bool
) -> int | None:
    """The number of elements in a part; None where parts don't pay."""
    states = _states(outputs, batch)
    if not states or any((const_int(x.shape[0]) or _LEAST_STEPS) < _LEAST_STEPS for x in states):
        return None
    needs = _Needs(outputs, batch, in_lanes=in_lanes)
    first, second = target.cache_bytes(1), target.cache_bytes(2)
    if needs.shared > _SHARED * second:
        return None
    room = _NEAR * first - needs.shared if needs.shared < first / 2 else _SHARED * second
    near, far = room / max(1, needs.near), _FAR * second / max(1, needs.far)
    size = const_int(batch.extent)
    if size is not None and size <= min(near, far):
        return None
    step = max(target.lanes(each.dtype) for each in states) if in_lanes else 1
    least = step * _under_way(states, batch, target, in_lanes=in_lanes)
    all_near = room / max(1, needs.near + needs.far)
    most = min(_MOST, all_near if all_near >= least else max(least, min(near, far)))
    if size is not None:
        most = min(most, max(least, size / _TASKS))
    if most * max(needs.near, needs.far) > second / 2 or (size is not None and size < 2 * most):
        most = step
    if step * max(needs.near, needs.far) > second / 2 or (size is not None and size < 2 * step):
        return None
    factor = _even(int(most), step, size)
    parts = (size or _MOST) // factor
    if needs.again * parts > _ONCE * needs.work:
        return None
    return factor


def _under_way(states: Iterable[Tensor], batch: Batch, target: Target, *, in_lanes: bool) -> int:
    """The elements of a batch, or vectors of them, that hide the latency of a step."""
    rows = (
        prod(usual_extent(x) for i, x in enumerate(each.shape) if i not in (0, batch.places[each]))
        // (1 if in_lanes else target.lanes(each.dtype))
        for each in states
    )
    return -(-_UNDER_WAY // max(1, min(rows)))


def _even(most: int, step: int, size: int | None) -> int:
    """The largest multiple of `step` up to `most` that leaves few elements of a batch of `size`
    over."""
    largest = most // step * step
    if size is None:
        return largest
    candidates = range(largest, max(step, largest // 2) - 1, -step)
    return min(candidates, key=lambda each: (size % each, -each))


class _Needs:
    """What the parts of a batch read and write.

    Attributes
    ----------
    near
        The bytes that one step of a scan reads or writes, for each element of the batch.
    far
        The bytes that are kept from a scan or a copy to its readers, for each element.
    shared
        The bytes that are the same for all elements.
    work, again
        The iterations of all stages, and of those whose results are the same for all elements.
    """

    def __init__(self, outputs: Sequence[Operation], batch: Batch, *, in_lanes: bool) -> None:
        self.near = self.far = self.shared = self.work = self.again = 0
        self._places, self._in_lanes, self._ends = batch.places, in_lanes, {*outputs}
        order = in_order(outputs)
        scans = [op for op in order if isinstance(op, ScanOp)]
        self._inside = _inside(order, scans)
        states = {each.op for op in scans for each in op.state_placeholder}
        firsts = {each.op for op in scans for each in op.init}
        self._steps = reads = self._reads(op for op in order if op not in firsts)
        for op in order:
            if isinstance(op, ComputeOp):
                iterations = usual_iterations((*op.axis, *op.reduce_axis))
                self.work += iterations
                self.again += 0 if op.output(0) in batch.places else iterations
            if op not in states and op not in firsts:
                for each in op.outputs:
                    self._add(op, each, reads.get(each, set()))

    def _reads(self, order: Iterable[Operation]) -> Mapping[Tensor, set[int]]:
        """For each tensor, the dimensions along which each step of a scan reads one element."""
        found: dict[Tensor, list[set[int]]] = defaultdict(list)
        for op in order:
            if not isinstance(op, ComputeOp):
                continue
            time = op.axis[0].var if op in self._inside else None
            for load in all_loads(op):
                indices = enumerate(load.indices)
                along = {i for i, x in indices if time is not None and mentions(time, x)}
                is_step = op not in self._inside and const_int(load.indices[0]) is not None
                found[tensor_of(load)].append(along | ({0} if is_step else set()))
        return {tensor: set.intersection(*each) for tensor, each in found.items()}

    def _add(self, op: Operation, tensor: Tensor, step: Container[int]) -> None:
        place, size = self._places.get(tensor), tensor.dtype.itemsize
        extents = [usual_extent(extent) for extent in tensor.shape]
        whole = size * prod(x for i, x in enumerate(extents) if i != place)
        row = size * prod(x for i, x in enumerate(extents) if i != place and i not in step)
        row_of_step = size * prod(x for i, x in enumerate(extents) if i not in (0, place))
        if place is None:
            self.shared += row if isinstance(op, PlaceholderOp) else whole
        elif op in self._inside:
            # An update has the memory of its scan.
            self.near += 2 * row_of_step
        elif isinstance(op, ScanOp):
            # A step reads the states of one step before, or of all steps.
            read = self._steps.get(op.state_placeholder[tensor.value_index], {0})
            self.near += 0 if 0 in read else whole
            self.far += whole if 0 not in step and op not in self._ends else 0
        elif isinstance(op, PlaceholderOp):
            is_copied = self._in_lanes and place < tensor.ndim - 1
            self.near += row
            self.far += whole if is_copied and row < whole else 0
        else:
            self.far += whole if op not in self._ends else 0


def _inside(order: Iterable[Operation], scans: Sequence[ScanOp]) -> set[Operation]:
    """The operations that are computed in each step of a scan."""
    states = {each for op in scans for each in op.state_placeholder}
    found: set[Operation] = {each.op for op in scans for each in op.update}
    for op in order:
        reads = op.input_tensors
        if isinstance(op, ComputeOp) and any(x in states or x.op in found for x in reads):
            found.add(op)
    return found
