"""Writes schedules: ordinary primitives, chosen from the expression of each stage."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, final

from minitvm.auto_scheduler.attempts import Attempt, complete, first_that_works
from minitvm.auto_scheduler.choice import choose, choose_form
from minitvm.auto_scheduler.contraction import (
    Contraction,
    Factor,
    all_loads,
    bytes_of,
    contraction_of,
    is_uneven,
)
from minitvm.auto_scheduler.convolution import is_convolution, write_convolution
from minitvm.auto_scheduler.few_rows import is_left_plain, is_streamed, write_streamed
from minitvm.auto_scheduler.fused_blocks import FusedBlocks, Product, blocks_in
from minitvm.auto_scheduler.instructions import (
    dot_product_for,
    matrix_product_for,
    write_by_instruction,
)
from minitvm.auto_scheduler.loops import Part, compute_of, place_copy, write_copy
from minitvm.auto_scheduler.phases import write_phases
from minitvm.auto_scheduler.rows import write_rows
from minitvm.auto_scheduler.running import running_axis
from minitvm.auto_scheduler.scans import write_running_scans, write_steps
from minitvm.auto_scheduler.tiled import can_be_packed, write_tiled
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.intrinsics.dot_product import DotProduct
from minitvm.te.intrinsics.matrix_product import MatrixProduct
from minitvm.te.schedules.operation_graph import read_by_ranges
from minitvm.te.schedules.schedule import Schedule, create_schedule
from minitvm.te.schedules.simplify_operations import simplified
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, Operation, PlaceholderOp, Tensor
from minitvm.tir.expr import IterVar, Reduce

_T = TypeVar("_T")


def auto_schedule(
    ops: Any, target: Target | str | None = None, prepacked: Sequence[Tensor] = ()
) -> Schedule:
    """A schedule for the outputs of a program, made for a target.

    Its ``trace()`` is the Python that makes it.

    Parameters
    ----------
    ops : Operation, Tensor, or a list of them; or Schedule
        The outputs, as for ``te.create_schedule``. Of a schedule, the stages to which no primitive
        was applied, and at whose loops no other stage is computed, are scheduled in place; the
        others stay as they are.
    target
        The target of the schedule; by default the innermost ``with Target(...)``, or this machine.
    prepacked
        Placeholders that don't change from call to call: see :func:`minitvm.prepack`.

    >>> from minitvm import te
    >>> A, B = te.placeholder((8, 4), name="A"), te.placeholder((4, 16), name="B")
    >>> k = te.reduce_axis((0, 4), name="k")
    >>> C = te.compute((8, 16), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    >>> print(auto_schedule(C, "llvm -mcpu=haswell -num-cores=2").trace())
    s = te.create_schedule([C.op])
    C_local = s.cache_write(C, 'local')
    j = C.op.axis[1]
    j_outer, j_inner = s[C].split(j, factor=16)
    i = C.op.axis[0]
    i_outer, i_inner = s[C].split(i, factor=4)
    s[C].reorder(i_outer, j_outer, i_inner, j_inner)
    s[C].unroll(i_inner)
    s[C].vectorize(j_inner)
    s[C].parallel(i_outer)
    s[C_local].compute_at(s[C], j_outer)
    k = C.op.reduce_axis[0]
    i_c = C_local.op.axis[0]
    j_c = C_local.op.axis[1]
    s[C_local].reorder(k, i_c, j_c)
    s[C_local].unroll(i_c)
    s[C_local].vectorize(j_c)
    """
    made = Target(target) if isinstance(target, str) else target or Target.current() or Target()
    if not isinstance(ops, Schedule):
        return schedule_program(ops, made, (), lambda s: s, prepacked=prepacked)
    if not ops.is_as_chosen or prepacked:
        complete(ops, partial(_write, target=made, arguments=(), strict=False, prepacked=prepacked))
    return ops


def schedule_program(
    ops: Any,
    target: Target,
    arguments: Iterable[Tensor],
    use: Callable[[Schedule], _T],
    *,
    strict: bool = False,
    prepacked: Sequence[Tensor] = (),
) -> _T:
    """The result of `use` for a schedule of outputs, as :func:`auto_schedule` writes it. No tensor
    of `arguments` is inlined or replaced. `strict`: floats are rounded as the program is written,
    in order, and by no instruction with a rounding of its own. Where `use` fails for a strategy,
    the next one is taken."""
    write = partial(
        _write, target=target, arguments=[*arguments], strict=strict, prepacked=prepacked
    )
    return first_that_works(partial(create_schedule, ops), write, use)


def _write(
    attempt: Attempt,
    target: Target,
    arguments: Iterable[Tensor],
    strict: bool,
    prepacked: Sequence[Tensor],
) -> None:
    s = attempt.schedule
    begin = len(s.calls.lines)
    for each in prepacked:
        _check_prepacked(s, each)
    _write_program(attempt, target, _kept(s, arguments), strict, prepacked)
    for each in prepacked:
        source = s[each]
        if not any(stage.is_ahead and s.consumes(stage, source) for stage in s.stages):
            _write_unpacked(s, source, target)
    s.chosen = range(begin, len(s.calls.lines))


def stages_to_write(s: Schedule) -> list[Stage]:
    """The stages of a schedule that are left to the auto-scheduler."""
    return [each for each in s.stages if isinstance(each.op, ComputeOp) and not each.is_touched]


def _kept(s: Schedule, arguments: Iterable[Tensor]) -> set[Stage]:
    """The stages that stay stages of their own: arguments, and those a user decided about."""
    given = {tensor.op for tensor in arguments}
    return {each for each in s.stages if each.is_touched or each.is_named or each.op in given}


def _check_prepacked(s: Schedule, tensor: Any) -> None:
    is_given = isinstance(tensor, Tensor) and isinstance(tensor.op, PlaceholderOp)
    if not is_given or tensor.op not in s.stage_map or s[tensor].is_output:
        raise CompileError(f"prepacked: expected placeholders that the program reads, got {tensor}")
    for reader in s.readers(s[tensor]):
        if any(tensor is read for _, read in read_by_ranges(reader.op)):
            raise CompileError(
                f"prepacked: expected placeholders whose elements are computed with, got "
                f"{tensor.name}, which says how long sums of {reader.name} are: leave it out"
            )


def _write_unpacked(s: Schedule, source: Stage, target: Target) -> None:
    """Copies a prepacked argument as it is where no schedule packs it, so that callers can treat
    all alike."""
    tensor = source.op.output(0)
    copy = s[s.cache_read(tensor, "global", [stage.op for stage in s.readers(source)])]
    if tensor.ndim:
        write_copy(copy, target)
    place_copy(copy, "ahead")


def _write_program(
    attempt: Attempt,
    target: Target,
    kept: set[Stage],
    strict: bool,
    prepacked: Collection[Tensor],
) -> None:
    s = attempt.schedule
    write_running_scans(attempt, kept)
    stages = stages_to_write(s)
    by_hand = {each for each in s.stages if each.is_touched}
    for stage in stages:
        attempt.follow("simplified", stage, partial(_write_simplified, s, stage))
    stages = [each for stage in stages for each in _by_phases(attempt, stage)]
    for stage in stages:
        if stage not in kept and not stage.is_output:
            attempt.follow("inlining", stage, partial(_write_inlined, s, stage, by_hand))
    stages, read = write_steps(attempt, stages, by_hand, target)
    kept = kept | read
    program = partial(
        _sums_of, s, target=target, by_hand=by_hand, strict=strict, prepacked=prepacked
    )
    name, find_blocks = "blocks of rows", partial(_fused, s, stages, target, kept, program)
    found = attempt.follow(name, stages[-1], find_blocks) if len(stages) > 1 else None
    fused = found or FusedBlocks(s, ())
    done: set[Stage] = set()
    for stage in stages:
        find = partial(program, stage, kept={each.op for each in kept | done})
        sums = attempt.follow("contraction", stage, find)
        if sums is not None and sums.last in done:  # it takes the sums of another contraction
            sums = replace(sums, kept={*sums.kept, stage.op})
        if sums is not None and sums.last in fused.parts:
            made = attempt.follow("tiles", stage, partial(_write_part, sums, fused))
            done |= set(made or ())
        elif sums is not None:
            done |= set(_write_contraction(attempt, stage, sums))
    rest = [stage for stage in stages if stage not in done and not stage.inlined]
    ops = {each.op for each in kept}
    fused.loops |= write_rows(attempt, rest, target, ops, fused.parts, strict=strict)
    if found is not None:
        attempt.follow(name, stages[-1], found.attach)


def _fused(
    s: Schedule,
    stages: Sequence[Stage],
    target: Target,
    kept: set[Stage],
    sums_of: Callable[..., Sums | None],
) -> FusedBlocks | None:
    """The stages that are computed together for blocks of rows."""
    ops = {each.op for each in kept}
    here = [
        each
        for each in stages
        if not each.inlined and each.time is None and running_axis(compute_of(each)) is None
    ]
    products: dict[Stage, Product] = {}
    for stage in here:
        sums = sums_of(stage, kept=ops)
        if sums is None:
            continue
        if _is_tiled(sums):
            products[stage] = Product(sums.contraction, sums.last)
        else:
            kept = kept | {stage, sums.last}
    free = {each for each in here if each not in kept and not each.is_output}
    roots = [each for each in here if each in free or each.is_output or each.op in ops]
    found = list(blocks_in(s, roots, free, products, target)) if products else []
    return FusedBlocks(s, found) if found else None


def _is_tiled(sums: Sums) -> bool:
    """Whether no strategy before the tiles of sums fits a contraction."""
    contraction, target = sums.contraction, sums.target
    is_factor = sums.ahead is contraction.b.tensor
    return bool(contraction.rows) and not (
        is_left_plain(contraction)
        or is_streamed(contraction, target)
        or is_convolution(contraction)
        or matrix_product_for(contraction, target) is not None
        or dot_product_for(contraction, target, is_factor) is not None
    )


def _write_part(sums: Sums, fused: FusedBlocks) -> Iterable[Stage]:
    """Schedules a contraction that is computed in parts."""
    stage, last, part = sums.stage, sums.last, fused.parts[sums.last]
    if part is None:
        sums = replace(sums, target=Target(f"{sums.target} -num-cores=1"))
    _choose_product(sums, last)
    loop, panels = _tile(sums, part or Part(0, None))
    if part is not None and loop is not None:
        fused.loops[last] = loop
    fused.panels += [(last, sums.contraction, factor, copy) for factor, copy in panels]
    return (stage, last)


def _write_simplified(s: Schedule, stage: Stage) -> bool | None:
    op = compute_of(stage)
    if simplified(op) is op:
        return None
    choose(s, "indices", "simplified with the ranges of their axes", stage=stage.name)
    stage.simplify()
    return True


def _by_phases(attempt: Attempt, stage: Stage) -> list[Stage]:
    phases = attempt.follow("phases", stage, partial(write_phases, attempt.schedule, stage))
    if phases is None:
        return [stage]
    attempt.count_as(phases, stage)
    return [phases, stage]


def _write_inlined(s: Schedule, stage: Stage, by_hand: Container[Stage]) -> bool | None:
    if not _can_be_inlined(s, stage, by_hand):
        return None
    choose(s, "strategy", "inlined where it is read", stage=stage.name)
    stage.compute_inline()
    return True


@final
@record()
class Sums:
    """A contraction that is to be scheduled.

    Attributes
    ----------
    schedule, contraction, target
        The schedule, the contraction in it, and the target.
    kept
        The operations that stay as they are.
    by_hand
        The stages that a user scheduled.
    strict
        Whether floats are rounded as the program is written.
    ahead
        The tensor for the columns' factor that is packed before the call, if any.
    inline_columns
        Whether the columns' factor is computed elementwise, for this contraction alone.
    """

    schedule: Schedule
    contraction: Contraction
    target: Target
    kept: Collection[Operation]
    by_hand: Container[Stage]
    strict: bool
    ahead: Tensor | None
    inline_columns: bool

    @property
    def stage(self) -> Stage:
        return self.schedule[self.contraction.op]

    @property
    def last(self) -> Stage:
        """The stage that reads the sums."""
        if self.stage.op in self.kept:
            return self.stage
        return _epilogue(self.schedule, self.stage, self.by_hand)

    @property
    def in_order(self) -> bool:
        """Whether sums must not be computed in parts: parts may round floats differently, sums of
        different lengths can't be divided alike, and each part would begin with `init`."""
        op = self.contraction.op
        is_rounded = op.output(0).dtype.is_float
        begins = isinstance(op.body[0], Reduce) and bool(op.body[0].init)
        return (self.strict and is_rounded) or begins or is_uneven(op)


def _sums_of(
    s: Schedule,
    stage: Stage,
    *,
    target: Target,
    kept: Collection[Operation],
    by_hand: Container[Stage],
    strict: bool,
    prepacked: Collection[Tensor],
) -> Sums | None:
    """A stage as a contraction to schedule, or None. The operations of `kept` stay as they are."""
    contraction = contraction_of(stage.op)
    if contraction is None or running_axis(contraction.op) is not None:
        return None
    columns = s[contraction.b.tensor]
    inline_columns = columns.op not in kept and _is_elementwise(columns.op)
    inline_columns = inline_columns and s.readers(columns) == [stage] and not columns.is_output
    ahead = _ahead(s, contraction, prepacked, inline_columns)
    return Sums(s, contraction, target, kept, by_hand, strict, ahead, inline_columns)


def _write_contraction(attempt: Attempt, stage: Stage, sums: Sums) -> Iterable[Stage]:
    """Schedules a contraction by the first strategy that fits it; returns the scheduled stages."""
    for name, write in STRATEGIES:
        done = attempt.follow(name, stage, partial(write, sums))
        if done is not None:
            return done
    return ()


def _leave_plain(sums: Sums) -> Iterable[Stage] | None:
    s, contraction = sums.schedule, sums.contraction
    if not is_left_plain(contraction) or sums.ahead is not None:
        return None
    choose_form(s, contraction, "matrix-vector product")
    choose(s, "strategy", "sums one by one, along what lies side by side")
    return ()


def _write_streamed(sums: Sums) -> Iterable[Stage] | None:
    s, contraction = sums.schedule, sums.contraction
    if not is_streamed(contraction, sums.target) or sums.ahead is not None:
        return None
    choose_form(s, contraction, "matrix product")
    if sums.inline_columns:
        s[contraction.b.tensor].compute_inline()
    write_streamed(s, contraction, sums.target, in_order=sums.in_order)
    return (sums.stage,)


def _write_convolution(sums: Sums) -> Iterable[Stage] | None:
    s, contraction = sums.schedule, sums.contraction
    if not is_convolution(contraction):
        return None
    choose_form(s, contraction, "convolution")
    return write_convolution(s, contraction, sums.last.op.output(0), sums.target, sums.kept)


def _write_matrix_products(sums: Sums) -> Iterable[Stage] | None:
    return _write_by(sums, matrix_product_for(sums.contraction, sums.target))


def _write_dot_products(sums: Sums) -> Iterable[Stage] | None:
    is_factor = sums.ahead is sums.contraction.b.tensor
    return _write_by(sums, dot_product_for(sums.contraction, sums.target, is_factor))


def _write_by(sums: Sums, found: DotProduct | MatrixProduct | None) -> Iterable[Stage] | None:
    s, contraction, last = sums.schedule, sums.contraction, sums.last
    if found is None or (sums.strict and found.sum == "float32"):
        return None
    _choose_product(sums, last)
    ahead = sums.ahead is contraction.b.tensor
    write_by_instruction(s, contraction, last.op.output(0), found, sums.target, ahead=ahead)
    return (sums.stage, last)


def _write_tiled(sums: Sums) -> Iterable[Stage]:
    _choose_product(sums, sums.last)
    _tile(sums, None)
    return (sums.stage, sums.last)


def _tile(sums: Sums, part: Part | None) -> tuple[IterVar | None, list[tuple[Factor, Stage]]]:
    return write_tiled(
        sums.schedule,
        sums.contraction,
        sums.last.op.output(0),
        sums.target,
        inline_columns=sums.inline_columns,
        in_order=sums.in_order,
        ahead=sums.ahead,
        part=part,
    )


def _choose_product(sums: Sums, last: Stage) -> None:
    choose_form(sums.schedule, sums.contraction, "matrix product")
    if last is not sums.stage:
        choose(sums.schedule, "epilogue", "{last} takes the sums in the tile", last=last.name)


# The strategies for contractions, by name, in order of preference. Each returns the stages that it
# scheduled, or None where it doesn't fit. A contraction that none fits is computed row by row.
STRATEGIES: tuple[tuple[str, Callable[[Sums], Iterable[Stage] | None]], ...] = (
    ("sums one by one", _leave_plain),
    ("streamed", _write_streamed),
    ("convolution", _write_convolution),
    ("matrix-product instructions", _write_matrix_products),
    ("dot-product instructions", _write_dot_products),
    ("tiles", _write_tiled),
)


def _ahead(
    s: Schedule, contraction: Contraction, prepacked: Collection[Tensor], inline_columns: bool
) -> Tensor | None:
    """The prepacked placeholder that is the columns' factor, or from which the factor is computed
    elementwise, in order. None if there is none, or the placeholder has no panels, has a symbolic
    size, or is read by other stages, too."""
    if not can_be_packed(contraction) or bytes_of(contraction.b.tensor) is None:
        return None
    stage, columns = s[contraction.op], s[contraction.b.tensor]
    if contraction.b.tensor in prepacked:
        return contraction.b.tensor if s.readers(columns) == [stage] else None
    for each in columns.op.input_tensors if inline_columns else ():
        if each in prepacked and s.readers(s[each]) == [columns]:
            return each if _reads_in_order(columns, s[each]) else None
    return None


def _is_elementwise(op: Operation) -> bool:
    return isinstance(op, ComputeOp) and not op.reduce_axis and len(op.body) == 1


def _can_be_inlined(s: Schedule, stage: Stage, by_hand: Container[Stage]) -> bool:
    """Whether inlining a stage computes nothing twice, and in no loop by hand: only elementwise
    stages read it, in order."""
    if not _is_elementwise(stage.op):
        return False
    return all(
        _is_elementwise(each.op)
        and _reads_in_order(each, stage)
        and not _is_by_hand(s, each, by_hand)
        for each in s.readers(stage)
    )


def _is_by_hand(s: Schedule, stage: Stage, by_hand: Container[Stage]) -> bool:
    """Whether a user scheduled the loops in which a stage is computed."""
    if stage.inlined:
        return any(_is_by_hand(s, each, by_hand) for each in s.readers(stage))
    return stage in by_hand


def _reads_in_order(reader: Stage, stage: Stage) -> bool:
    """Whether each element of the reader reads only the element at the same indices."""
    assert isinstance(reader.op, ComputeOp)
    axes = [axis.var for axis in reader.op.axis]
    loads = [each for each in all_loads(reader.op) if each.producer in stage.op.outputs]
    return all(
        len(each.indices) == len(axes) and all(map(operator.is_, each.indices, axes))
        for each in loads
    )


def _epilogue(s: Schedule, stage: Stage, by_hand: Container[Stage]) -> Stage:
    """The epilogue of a contraction: the stage that reads its sums elementwise, in order, unless it
    is scheduled by hand. The contraction's stage itself if there is no epilogue."""
    reader = stage
    while not reader.is_output:
        readers = s.readers(reader)
        if len(readers) != 1 or not _is_elementwise(readers[0].op):
            return stage
        if not _reads_in_order(readers[0], reader):
            return stage
        reader = readers[0]
        if not reader.inlined:
            return stage if reader in by_hand else reader
    return stage
