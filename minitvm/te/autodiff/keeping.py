"""Chooses the tensors of a forward run that are kept for the backward run; others are recomputed.

The adjoints of a program read tensors of it. Each of these is kept, or computed again from others
that are kept. Both have a cost, and the choice is a cheapest cut of this graph, whose edges lead
from the inputs to the tensors that the adjoints read::

                  computing again          keeping
      forward  ------------------>  T.op  --------->  T  ---> each operation that reads T, as T'.op
                                                      |
                                                      '--->  the adjoints, if they read T

A tensor on the far side of the cut is computed again; one whose own edge is cut is kept. So a chain
of elementwise stages is computed again from the product before it, and a norm from the sums of its
rows. (M. Beck and H. Shrobe call such a tensor a checkpoint; the cut is that of torch's
``min_cut_rematerialization_partition``.)

The adjoints may compute tensors of their own from the inputs, such as the positions of maxima.
These are kept as well, where a stage of the program finds them beside its own results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, prod
from typing import final

from minitvm.arith.effects import reads_tensors
from minitvm.arith.work import TRIPS_FROM_DATA, USUAL_TRIPS
from minitvm.te.autodiff.min_cut import Network
from minitvm.te.autodiff.stages import repeated_by
from minitvm.te.schedules.operation_graph import in_order, read_by_ranges
from minitvm.te.schedules.rewrite_operations import moved_by, reading, rewritten
from minitvm.te.tensor import (
    ComputeOp,
    Operation,
    PlaceholderOp,
    ScanOp,
    Tensor,
    domain_of,
    tensor_of,
)
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Reduce, Var
from minitvm.tir.functor import children, find, walk_once
from minitvm.tir.intrinsics import INTRINSICS

# Costs are in operations of one lane. A core computes some 50 of them while a byte comes from
# memory, and some 5 while it comes from the cache; tensors of this size are in between.
_WRITTEN = 10.0  # for a byte that is written only to be kept, and read again
_READ = 2.0  # for a byte that the forward run writes anyway
_RETURNED = 0.1  # for a byte that the caller gets anyway: its memory may live longer
_ALLOCATED = 30_000.0  # for each further tensor
_UNKNOWN = 1000.0  # for an element whose operations aren't known
# A tensor larger than this factor times all inputs and outputs together is never kept: fused
# programs exist to avoid such tensors.
_LARGEST = 4.0


def kept_tensors(outputs: Sequence[Tensor], adjoints: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that the forward run of a program is to keep for the backward run.

    Parameters
    ----------
    outputs
        The program's outputs.
    adjoints
        The tensors that the backward run computes, which read tensors of the program.

    Returns
    -------
    list of Tensor
        Outputs and intermediate tensors, in the program's order, then tensors that the adjoints
        alone compute.

    >>> from minitvm import te
    >>> A, B = te.placeholder((64, 512), name="A"), te.placeholder((512, 64), name="B")
    >>> k = te.reduce_axis((0, 512), name="k")
    >>> C = te.compute((64, 64), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    >>> D = te.compute((64, 64), lambda i, j: te.sin(C[i, j]), name="D")
    >>> dA, dB = te.gradient(D, [A, B], te.placeholder((64, 64), name="dD"))
    >>> kept_tensors([D], [dA, dB])
    [Tensor(shape=[64, 64], op.name=C)]
    """
    return _Choice(outputs, adjoints).kept()


def recorded(outputs: Sequence[Tensor], kept: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a forward run, and behind them the tensors that it keeps. A stage that repeats
    one of the program takes its place."""
    returned = [*outputs, *(each for each in kept if each not in outputs)]
    pairs = ((each.op, repeated_by(each.op)) for each in kept)
    others = {
        mine: other
        for op, own in pairs
        if own is not None
        for mine, other in zip(own.outputs, op.outputs, strict=False)
    }
    return rewritten(returned, in_order([each.op for each in returned]), reading, others)


def reading_kept(adjoints: Sequence[Tensor], kept: Mapping[Tensor, Tensor]) -> list[Tensor]:
    """The adjoints, reading placeholders in place of the kept tensors."""
    ops = in_order([each.op for each in adjoints])
    computed = [op for op in ops if kept.keys().isdisjoint(op.outputs)]
    return rewritten(adjoints, computed, reading, kept)


@final
class _Choice:
    """The graph of a program and its adjoints."""

    def __init__(self, outputs: Sequence[Tensor], adjoints: Sequence[Tensor]) -> None:
        forward = in_order([each.op for each in outputs])
        backward = in_order([each.op for each in adjoints])
        own = {op for op in forward if not isinstance(op, PlaceholderOp)}
        self._outputs = set(outputs)
        # The operations that the backward run computes if nothing is kept, of those that the
        # forward run can compute.
        self._ahead = _before_heads(forward, backward)
        self._repeated = [op for op in forward if op in own and op in set(backward)] + self._ahead
        own.update(self._ahead)
        readers = [op for op in backward if op not in own]
        self._read = {t for op in readers for t in op.input_tensors if t.op in own}
        self._read |= {each for each in adjoints if each.op in own}
        self._never = _inside_scans(backward) | {
            tensor for op in backward for _, tensor in read_by_ranges(op)
        }
        given = {t for op in backward if isinstance(op, PlaceholderOp) for t in op.outputs}
        self._given = {t for t in given if t.op in set(forward)}
        self._read_anyway = {t for op in readers for t in op.input_tensors}
        self._largest = _LARGEST * sum(map(_bytes, given | self._outputs))
        self._reread = {tensor for op in forward for tensor in _read_again(op)}

    def kept(self) -> list[Tensor]:
        near = self._network().on_side_of_source()
        again = [op for op in self._repeated if op not in near]
        read = self._read | {tensor for op in again for tensor in op.input_tensors}
        return [
            tensor
            for op in self._repeated
            if op in near
            for tensor in op.outputs
            if tensor in read and tensor not in near
        ]

    def _network(self) -> Network:
        made = Network("inputs", "adjoints")
        repeated = set(self._repeated)
        for op in self._repeated:
            # A run that computes nothing but the adjoints' own stages earlier saves nothing.
            is_saved = op not in self._ahead or repeated_by(op) is not None
            made.join("inputs", op, _operations(op) if is_saved else 0.0)
            for tensor in op.outputs:
                made.join(op, tensor, self._cost(tensor))
            for tensor in op.input_tensors:
                if tensor.op in repeated or tensor in self._given:
                    made.join(tensor, op)
        for tensor in self._given - self._read_anyway:
            made.join("inputs", tensor, _READ * _bytes(tensor))
        for tensor in self._read:
            made.join(tensor, "adjoints")
        return made

    def _cost(self, tensor: Tensor) -> float:
        """The cost of keeping a tensor."""
        size = _bytes(tensor)
        if tensor in self._never or _is_moved(tensor):
            return inf
        if tensor in self._outputs:
            return _RETURNED * size
        if size > self._largest or tensor.dtype.bits < 8 or tensor.dtype.lanes != 1:
            return inf
        return _ALLOCATED + (_READ if tensor in self._reread else _WRITTEN) * size


def _before_heads(forward: Sequence[Operation], backward: Sequence[Operation]) -> list[Operation]:
    """The operations of the backward run that aren't in the program, and depend on nothing but its
    inputs."""
    known, found = {*forward}, list[Operation]()
    for op in backward:
        if op not in known and op.input_tensors and all(x.op in known for x in op.input_tensors):
            known.add(op)
            found.append(op)
    return found


def _inside_scans(order: Iterable[Operation]) -> set[Tensor]:
    """The tensors that exist only within one step of a scan."""
    found: set[Tensor] = set()
    for op in order:
        if isinstance(op, ScanOp):
            found.update(op.state_placeholder)
    for op in order:
        if not isinstance(op, ScanOp) and not found.isdisjoint(op.input_tensors):
            found.update(op.outputs)
    return found | {each for op in order if isinstance(op, ScanOp) for each in op.update}


def _read_again(op: Operation) -> list[Tensor]:
    """The tensors whose elements an operation reads for several of its own elements, as a product
    reads its factors. Such tensors must be in memory."""
    first = op.body[0] if isinstance(op, ComputeOp) else None
    if not isinstance(first, Reduce) or not isinstance(op, ComputeOp):
        return []
    axes = {axis.var for axis in op.axis}
    loads = [*find(ProducerLoad, *first.source)]
    return [tensor_of(each) for each in loads if not axes <= set(walk_once(*each.indices))]


def _is_moved(tensor: Tensor) -> bool:
    """Whether a stage only moves elements, as padding does: they are read where they come from."""
    if not isinstance(tensor.op, ComputeOp):
        return False
    moved = moved_by(tensor.op.body[tensor.value_index])
    return moved is not None and not reads_tensors(*(i for each in moved for i in children(each)))


# -- Sizes and costs ------------------------------------------------------------------------------


def _bytes(tensor: Tensor) -> float:
    return prod(map(_number, tensor.shape)) * tensor.dtype.bits * tensor.dtype.lanes / 8


def _operations(op: Operation) -> float:
    """The cost of computing an operation's tensors."""
    if not isinstance(op, ComputeOp):
        return _UNKNOWN * sum(prod(map(_number, each.shape)) for each in op.outputs)
    first = op.body[0]
    values: Sequence[PrimExpr] = op.body
    axes: tuple[IterVar, ...] = op.axis
    values_of_step = 1
    if isinstance(first, Reduce):
        values, axes = (*first.source, first.condition), (*axes, *first.axis)
        combined = walk_once(*first.combiner.result)
        values_of_step = sum(not isinstance(each, Var) for each in combined)
    each = values_of_step + sum(map(_cost, walk_once(*values)))
    return each * prod(_number(domain_of(axis).extent) for axis in axes)


def _cost(node: object) -> float:
    if isinstance(node, ProducerLoad):
        return 1.0
    if not isinstance(node, PrimExpr) or not node.dtype.is_float:
        return 0.0  # an operation on indices
    if isinstance(node, e.Call):
        return INTRINSICS[node.op].cost if node.op in INTRINSICS else _UNKNOWN
    return 1.0 if isinstance(node, e.Arithmetic | e.Select | e.Cast) else 0.0


def _number(extent: PrimExpr) -> float:
    """An extent as a number; a usual number for a symbolic one."""
    if reads_tensors(extent):
        return TRIPS_FROM_DATA
    known = e.const_int(extent)
    return float(USUAL_TRIPS if known is None else known)
