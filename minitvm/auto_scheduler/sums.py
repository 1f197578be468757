"""Contractions in the schedule that is written: their epilogues, and their prepacked factors.

:mod:`contraction` describes an operation by itself. This module adds the facts that depend on the
other stages: which stage takes the sums in the tiles (the epilogue), whether a factor is computed
while it is packed, and whether it is packed before the call. Writers of contractions take this
record.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from typing import TypeGuard, final

from minitvm.auto_scheduler.attempts import Program
from minitvm.auto_scheduler.contraction import (
    Contraction,
    all_loads,
    bytes_of,
    can_be_packed,
    contraction_of,
    is_at_digits,
    is_near_along,
    is_uneven,
    only_moves,
    plain_axes_of,
    rows_in_common,
    running_axis,
)
from minitvm.auto_scheduler.packing import can_be_copied
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, Operation, Tensor
from minitvm.tir.expr import Reduce


@final
@record()
class Sums:
    """A contraction that is to be scheduled, or whose cycles are asked for.

    Attributes
    ----------
    contraction, target
        The contraction, and the target.
    strict
        Whether floats are summed in order, and rounded as the program is written.
    program
        The program; None where the cycles of the contraction by itself are asked for. The other
        attributes depend on it.
    kept
        The stages that stay as they are.
    by_hand
        The stages that a user scheduled.
    ahead
        The tensor for the columns' factor that is packed before the call, if any.
    inline_columns
        Whether only this contraction reads the columns' factor, and the factor is computed
        elementwise, each element once.
    """

    contraction: Contraction
    target: Target
    strict: bool = False
    program: Program | None = None
    kept: Collection[Stage] = ()
    by_hand: Container[Stage] = ()
    ahead: Tensor | None = None
    inline_columns: bool = False

    @property
    def schedule(self) -> Schedule:
        assert self.program is not None
        return self.program.schedule

    @property
    def stage(self) -> Stage:
        return self.schedule[self.contraction.op]

    @property
    def last(self) -> Stage:
        """The stage that reads the sums."""
        if self.stage in self.kept:
            return self.stage
        return epilogue_of(self.schedule, self.stage, self.by_hand)

    @property
    def is_packed_ahead(self) -> bool:
        """Whether the columns' factor is a prepacked placeholder, or its elements are moved from
        one for this contraction alone. Not if its size is symbolic: padded panels of different
        sizes may be of one shape."""
        if self.program is None or bytes_of(self.contraction.b.tensor) is None:
            return False
        s, tensor, reader = self.schedule, self.contraction.b.tensor, self.stage
        while tensor not in self.program.prepacked:
            stage = s[tensor]
            inputs = stage.op.input_tensors
            if not only_moves(stage.op) or s.readers(stage) != [reader] or len(inputs) != 1:
                return False
            (tensor,), reader = inputs, stage
        return s.readers(s[tensor]) == [reader]

    @property
    def moved(self) -> list[Stage]:
        """The stages that move elements to a factor, for this contraction alone: they may be
        computed in its loops."""
        assert self.program is not None
        s, copies = self.schedule, self.program.copies
        stages = [s[each.tensor] for each in (self.contraction.a, self.contraction.b)]
        return [
            each
            for each in stages
            if only_moves(each.op)
            and not (each.is_output or each.is_view or each in self.by_hand)
            and (each in copies or each not in self.kept)
            and s.readers(each) == [self.stage]
        ]

    @property
    def in_order(self) -> bool:
        """Whether sums must not be computed in parts: parts may round floats differently, sums of
        different lengths can't be divided into equal parts, and each part would begin with
        `init`."""
        op = self.contraction.op
        is_rounded = op.output(0).dtype.is_float
        begins = isinstance(op.body[0], Reduce) and bool(op.body[0].init)
        return (self.strict and is_rounded) or begins or is_uneven(op)


def sums_of(
    program: Program, stage: Stage, kept: Collection[Stage], by_hand: Container[Stage]
) -> Sums | None:
    """A stage as a contraction to schedule, or None. The stages of `kept` stay as they are; those
    of `by_hand` were scheduled by the user."""
    s, contraction = program.schedule, contraction_of(stage.op)
    if contraction is None or running_axis(contraction.op) is not None:
        return None
    columns = s[contraction.b.tensor]
    inline_columns = (
        columns not in kept
        and is_elementwise(columns.op)
        and s.readers(columns) == [stage]
        and not columns.is_output
        and can_be_copied(contraction, contraction.b)
        and not _is_read_apart(contraction, columns.op)
    )
    ahead = _ahead(s, contraction, program.prepacked, inline_columns)
    target, strict = program.target, program.strict
    return Sums(contraction, target, strict, program, kept, by_hand, ahead, inline_columns)


def reads_in_order(reader: Stage, stage: Stage) -> bool:
    """Whether the reader is elementwise, and reads only the element at the same indices."""
    if not is_elementwise(reader.op):
        return False
    op = reader.op
    loads = [each for each in all_loads(op) if each.producer in stage.op.outputs]
    return all(rows_in_common(x, op) == len(x.indices) == len(op.axis) for x in loads)


def epilogue_of(s: Schedule, stage: Stage, by_hand: Container[Stage]) -> Stage:
    """The epilogue of a contraction: the stage that reads its sums elementwise, in order, unless it
    is scheduled by hand. The contraction's stage itself if there is no epilogue."""
    reader = stage
    while not reader.is_output:
        # Stages that became part of their readers are read by none.
        readers = [each for each in s.readers(reader) if each.is_read or not each.inlined]
        if len(readers) != 1 or not reads_in_order(readers[0], reader):
            return stage
        reader = readers[0]
        if not reader.inlined:
            return stage if reader in by_hand else reader
    return stage


def _ahead(
    s: Schedule, contraction: Contraction, prepacked: Collection[Tensor], inline_columns: bool
) -> Tensor | None:
    """The prepacked placeholder that is the columns' factor, or from which this factor is computed
    elementwise, in order. None if there is none, or the placeholder has no panels, has a symbolic
    size, or is read by other stages, too."""
    if not can_be_packed(contraction) or bytes_of(contraction.b.tensor) is None:
        return None
    stage, columns = s[contraction.op], s[contraction.b.tensor]
    if contraction.b.tensor in prepacked:
        return contraction.b.tensor if s.readers(columns) == [stage] else None
    for each in columns.op.input_tensors if inline_columns else ():
        if each in prepacked and s.readers(s[each]) == [columns]:
            return each if reads_in_order(columns, s[each]) else None
    return None


def _is_read_apart(contraction: Contraction, op: ComputeOp) -> bool:
    """Whether the stage of the columns' factor reads elements one by one where it computes columns
    that are neighbours, and vectors along its own rows: elements at quotients, or that data
    choose. Vectors of sums of axes are transposed in registers."""
    axes = plain_axes_of(contraction, contraction.b)
    if axes is None or contraction.column not in axes:
        return False
    column = op.axis[axes.index(contraction.column)]
    return column is not op.axis[-1] and any(
        is_at_digits(load) and not is_near_along(op, load, column) for load in all_loads(op)
    )


def is_elementwise(op: Operation) -> TypeGuard[ComputeOp]:
    """Whether an operation computes one element of one tensor after the other."""
    return isinstance(op, ComputeOp) and not op.reduce_axis and len(op.body) == 1
