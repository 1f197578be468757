"""The order of the decisions for a program.

1. The program is rewritten: indices are simplified, and stages that only move elements become part
   of others (:mod:`inlining`).
2. Other stages compute parts of a stage ahead of it (``AHEAD``), and each stage gets the order of
   its axes (:mod:`layouts`).
3. Stages are chosen that are computed together for a block of rows (:mod:`fused_blocks`).
4. Each contraction is written by the first strategy that fits it (:mod:`strategies`), together with
   the stage that reads its sums.
5. All other stages are written row by row (:mod:`rows`). Reductions with the same loops share them
   (:mod:`shared_loops`).
6. A program with symbolic extents gets versions for some sizes (:mod:`versions`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from minitvm.auto_scheduler.ahead import (
    write_factor_order,
    write_hoisted,
    write_joined,
    write_mirrored,
    write_reassociated,
)
from minitvm.auto_scheduler.attempts import Attempt, complete, first_that_works
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import contraction_of, extent_of
from minitvm.auto_scheduler.fused_blocks import FusedBlocks, blocks_in
from minitvm.auto_scheduler.inlining import becomes_part, can_be_inlined, stays_a_reduction
from minitvm.auto_scheduler.instructions import multiplies_dtypes
from minitvm.auto_scheduler.layouts import write_layouts, write_operands
from minitvm.auto_scheduler.loops import Part, compute_of, lie_in_order
from minitvm.auto_scheduler.packing import place_copy, write_copy
from minitvm.auto_scheduler.places import (
    write_digits,
    write_digits_of_rows,
    write_digits_of_steps,
    write_phases,
    write_unstacked,
    write_windows,
)
from minitvm.auto_scheduler.reductions import write_found_blocks
from minitvm.auto_scheduler.rows import write_rows
from minitvm.auto_scheduler.running import running_axis, write_running_scans, write_steps
from minitvm.auto_scheduler.shared_loops import write_shared_loops
from minitvm.auto_scheduler.short_rows import write_short_lines
from minitvm.auto_scheduler.strategies import (
    TILES,
    TOGETHER,
    choose_products,
    is_tiled,
    strategy_for,
    together,
    write_contraction,
)
from minitvm.auto_scheduler.streams import is_plain_reduction, write_grouped
from minitvm.auto_scheduler.sums import Program, Sums
from minitvm.auto_scheduler.terms import share_of_steps
from minitvm.auto_scheduler.tiled import write_tiled
from minitvm.auto_scheduler.tiles import on_one_core
from minitvm.auto_scheduler.versions import write_versions
from minitvm.runtime.errors import CompileError
from minitvm.target import Target
from minitvm.te.schedules.operation_graph import read_by_ranges
from minitvm.te.schedules.schedule import Schedule, create_schedule
from minitvm.te.schedules.simplify_operations import simplified
from minitvm.te.schedules.stage import Stage
from minitvm.te.schedules.zero_terms import without_zero_terms
from minitvm.te.tensor import ComputeOp, PlaceholderOp, ScanOp, Tensor

_T = TypeVar("_T")
_MOST_LEFT = 0.8  # of the steps of a sum whose other terms are left out
OPERANDS = "operands"
"""The strategy that copies operands which lie across."""


def auto_schedule(
    ops: Any, target: Target | str | None = None, prepacked: Sequence[Tensor] = ()
) -> Schedule:
    """A schedule for the outputs of a program, made for a target.

    ``trace()`` of the schedule is the Python code that makes it.

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
    in order, and no instruction with a rounding of its own is used. If `use` fails for a strategy,
    the next one is tried."""
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
    is_whole = not s.is_touched
    _write_program(attempt, Program(s, target, prepacked, strict), _kept(s, arguments))
    for each in prepacked:
        source = s[each]
        if not any(stage.is_ahead and s.consumes(stage, source) for stage in s.stages):
            _write_unpacked(s, source, target)
    if is_whole and not prepacked:
        again = partial(_write, target=target, strict=strict, prepacked=())
        write_versions(attempt, arguments, target, again)
    s.chosen = range(begin, len(s.calls.lines))


def stages_to_write(s: Schedule) -> list[Stage]:
    """The stages of a schedule that are left to the auto-scheduler."""
    return [each for each in s.stages if isinstance(each.op, ComputeOp) and not each.is_touched]


def _kept(s: Schedule, arguments: Iterable[Tensor]) -> set[Stage]:
    """The stages that stay stages of their own: arguments, and stages that the user scheduled."""
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
    """Copies a prepacked argument unchanged where no schedule packs it, so that callers can treat
    all prepacked arguments alike."""
    tensor = source.op.output(0)
    copy = s[s.cache_read(tensor, "global", [stage.op for stage in s.readers(source)])]
    if tensor.ndim:
        write_copy(copy, target)
    place_copy(copy, "ahead")


def _write_program(attempt: Attempt, program: Program, kept: set[Stage]) -> None:
    s, target, strict, given = program.schedule, program.target, program.strict, kept
    write_running_scans(attempt, kept)
    stages, by_hand = stages_to_write(s), {each for each in s.stages if each.is_touched}
    program = replace(program, by_hand=by_hand)
    for stage in stages:
        attempt.follow("simplified", stage, partial(_write_simplified, s, stage))
        attempt.follow("zeros", stage, partial(_write_zeros, s, stage, strict))
        attempt.follow("steps", stage, partial(write_digits_of_steps, s, stage, target))
    for stage in reversed(stages):
        if stage not in kept and not stage.is_output:
            attempt.follow("unread", stage, partial(_write_unread, s, stage))
    stages = _behind(attempt, "dimensions of one element", stages, _write_flat, kept)
    for stage in stages:
        if stage not in kept and not stage.is_output and not stage.inlined:
            attempt.follow("moves", stage, partial(_write_moves, s, stage, kept, by_hand))
    stages = [stage for stage in stages if not (stage.inlined or stage.is_view)]
    stages = _behind(attempt, "digits of rows", stages, write_digits_of_rows)
    stages = [stage for stage in stages if not stage.is_view]
    stages = _behind(attempt, "joined reductions", stages, write_joined, by_hand, target, strict)
    for name, write in AHEAD:
        before = stages
        stages = _behind(attempt, name, stages, write, target, strict)
        # Copies of operands are computed as wholes.
        kept = kept | ({*stages} - {*before} if name == OPERANDS else set())
    for stage in stages:
        if stage not in kept and not stage.is_output:
            attempt.follow("inlining", stage, partial(_write_inlined, s, stage, by_hand))
    stages, read = write_steps(attempt, stages, by_hand, target)
    stages, read_by_groups = _write_grouped(attempt, program, stages)
    kept = kept | read | read_by_groups
    copies = set[Stage]()
    stages = _behind(attempt, "layout", stages, _write_layout, program, kept, copies)
    stages = _behind(attempt, "digits", stages, write_digits, target)
    stages = [stage for stage in stages if not stage.is_view]
    kept, program = kept | copies, replace(program, copies=copies)
    name = "blocks of rows"
    find_blocks = partial(_fused, attempt, program, stages, kept, by_hand)
    found = attempt.follow(name, stages[-1], find_blocks) if len(stages) > 1 else None
    fused = found or FusedBlocks(s, (), {})
    done: set[Stage] = set()
    for stage in stages:
        # The blocks were chosen for these last stages; by now other stages may be free to read
        # sums.
        whole = kept | fused.without_epilogue | done
        find = partial(program.sums_of, stage, whole, by_hand | done)
        sums = attempt.follow("contraction", stage, find) if stage not in done else None
        if sums is not None and sums.last in fused.parts and is_tiled(sums):
            done |= set(_write_part(attempt, sums, fused))
        elif sums is not None:
            done |= set(write_contraction(attempt, _beside_blocks(sums, fused)))
    rest = [stage for stage in stages if stage not in done and not stage.inlined]
    # An argument is whole after the call, in whatever loops its rows are computed.
    whole = {each for each in kept if each.is_touched or each.is_named} | read | read_by_groups
    fused.loops |= write_rows(attempt, rest, target, whole, fused.parts, given=given, strict=strict)
    if found is not None:
        attempt.follow(name, stages[-1], found.attach)
    if len(stages) > 1:
        ours = {each for each in s.stages if each not in by_hand}
        attempt.follow("shared loops", stages[-1], partial(write_shared_loops, s, ours))


def _fused(
    attempt: Attempt,
    program: Program,
    stages: Sequence[Stage],
    kept: set[Stage],
    by_hand: set[Stage],
) -> FusedBlocks | None:
    """The stages that are computed together for blocks of rows."""
    s, whole = attempt.schedule, kept
    here = [
        each
        for each in stages
        if not each.inlined and each.time is None and running_axis(compute_of(each)) is None
    ]
    products: dict[Stage, Sums] = {}
    alone: set[Stage] = set()
    for stage in here:
        sums = program.sums_of(stage, whole, by_hand) if stage not in products else None
        if sums is None:
            continue
        if is_tiled(sums):
            products |= {each.stage: each for each in _group(attempt, sums)}
        else:
            kept = kept | {stage, sums.last}
            # Any stage can have plain loops.
            alone |= set() if is_plain_reduction(sums.contraction) else {stage, sums.last}
        if strategy_for(sums).takes_epilogue:
            by_hand = by_hand | {sums.last}
    free = {each for each in here if each not in kept and not each.is_output}
    roots = [each for each in here if each in free or each.is_output or each in whole]
    found = [*blocks_in(s, roots, free, alone, products, program.target)] if products else []
    return FusedBlocks(s, found, products) if found else None


def _group(attempt: Attempt, sums: Sums) -> Sequence[Sums]:
    """A contraction, and those whose sums are computed in the same tiles."""
    return attempt.follow(TOGETHER, sums.stage, partial(together, sums)) or [sums]


def _write_part(attempt: Attempt, sums: Sums, fused: FusedBlocks) -> Iterable[Stage]:
    """Schedules a contraction that is computed in parts, and the contractions in the same tiles."""
    group = _group(attempt, sums)
    name = TOGETHER if len(group) > 1 else TILES
    return attempt.follow(name, sums.stage, partial(_write_parts, group, fused)) or ()


def _write_parts(group: Sequence[Sums], fused: FusedBlocks) -> Iterable[Stage]:
    last = group[0].last
    part = fused.parts[last]
    if part is None:
        alone = replace(group[0].program, target=on_one_core(group[0].target))
        group = [replace(each, program=alone) for each in group]
    choose_products(group)
    loop, panels = write_tiled(group, part or Part(0, None))
    if part is not None and loop is not None:
        fused.loops[last] = loop
    fused.panels += [(last, *each) for each in panels]
    return (*(each.stage for each in group), last)


def _write_grouped(
    attempt: Attempt, program: Program, stages: Sequence[Stage]
) -> tuple[list[Stage], set[Stage]]:
    """Schedules the reductions by groups. Returns the other stages, and those that are computed
    before a reduction which reads them."""
    s, left, read = attempt.schedule, list[Stage](), set[Stage]()
    for stage in stages:
        inputs = stage.op.input_tensors
        write = partial(write_grouped, s, stage, program.target, strict=program.strict)
        is_alone = not stage.inlined and stage.time is None
        if is_alone and attempt.follow("groups", stage, write):
            read |= {s[tensor] for tensor in inputs}
        else:
            left.append(stage)
    return left, read


def _behind(
    attempt: Attempt,
    name: str,
    stages: Sequence[Stage],
    write: Callable[..., Sequence[Stage] | None],
    *more: object,
) -> list[Stage]:
    """The stages, each behind the new stages that a strategy makes for it: `write`, of the
    schedule, the stage, and `more`."""
    found = list[Stage]()
    for stage in stages:
        made = attempt.follow(name, stage, partial(write, attempt.schedule, stage, *more)) or ()
        for each in {*made} - {stage}:
            attempt.count_as(each, stage)
        found += [*made, *(() if stage in made else (stage,))]
    return found


def _write_simplified(s: Schedule, stage: Stage) -> bool | None:
    op = compute_of(stage)
    made = simplified(op)
    # A contraction of one step stays one: it reads its elements for several results.
    is_one_step = op.reduce_axis and not made.reduce_axis and contraction_of(op) is not None
    if made is op or is_one_step:
        return None
    choose(s, "indices", "simplified with the ranges of their axes", stage=stage.name)
    stage.simplify()
    return True


def _write_zeros(s: Schedule, stage: Stage, strict: bool) -> bool | None:
    """Leaves out the terms of a contraction that are 0, if these are a good part of them. Those at
    the borders of images are a small part, and padding is faster."""
    found = contraction_of(stage.op) if stage.time is None else None
    made = None if strict or found is None else without_zero_terms(found.op)
    if found is None or made is None or share_of_steps(made) > _MOST_LEFT:
        return None
    choose(s, "zeros", "terms that conditions on axes make 0 are left out", stage=stage.name)
    stage.omit_zeros()
    return True


def _write_unread(s: Schedule, stage: Stage) -> bool | None:
    """Computes a stage nowhere if nothing reads it any more."""
    if stage.is_read:
        return None
    choose(s, "strategy", "not computed: nothing needs it", stage=stage.name)
    stage.compute_inline()
    return True


def _write_flat(s: Schedule, stage: Stage, kept: Container[Stage]) -> list[Stage] | None:
    """Leaves out a tensor's last dimensions of one element, so that its last axis has neighbours. A
    reduction whose result is kept as it is becomes a copy of it, a view if no other stage reads it;
    the stage of the reduction is returned. Contractions and their factors stay as they are."""
    if stage.inlined:
        return None
    op, readers, stays = compute_of(stage), s.readers(stage), stage in kept or stage.is_output
    last = next((i + 1 for i, axis in enumerate(op.axis[::-1]) if extent_of(axis) != 1), 0)
    places = range(len(op.axis) - last + 1 if last else 1)
    is_kept = stays and (not op.reduce_axis or len(op.outputs) > 1 or not last)
    is_free = not is_kept and not stage.whole_readers and stage.time is None
    if len(places) >= len(op.axis) or not is_free:
        return None
    if any(contraction_of(each.op) is not None for each in (stage, *readers)):
        return None
    if any(isinstance(each.op, ScanOp) for each in s.stages):
        return None  # the first dimension is time
    if any(tensor in op.outputs for each in readers for _, tensor in read_by_ranges(each.op)):
        return None
    made = [s[s.cache_write(op.output(0), "global")]] if stays else []
    lie_in_order((made or [stage])[0], places)
    if stays and not readers:
        stage.compute_view()
    return made


# The strategies by which other stages compute parts of a stage, or copies for it, by name, in the
# order in which they are tried. Each returns these stages, or None where it doesn't fit.
AHEAD: tuple[tuple[str, Callable[[Schedule, Stage, Target, bool], list[Stage] | None]], ...] = (
    ("places", lambda s, stage, *_: write_unstacked(s, stage)),
    ("order of factors", write_factor_order),
    ("association", lambda s, stage, _, strict: write_reassociated(s, stage, strict)),
    ("symmetry", write_mirrored),
    ("parts ahead", lambda s, stage, target, _: write_hoisted(s, stage, target)),
    ("phases", lambda s, stage, *_: write_phases(s, stage)),
    ("borders", lambda s, stage, *_: write_windows(s, stage)),
    (OPERANDS, lambda s, stage, *_: write_operands(s, stage)),
    ("short lines", write_short_lines),
    ("places in blocks", write_found_blocks),
)


def _write_layout(
    s: Schedule, stage: Stage, program: Program, kept: Container[Stage], copies: set[Stage]
) -> list[Stage] | None:
    """Lets a stage be computed in another order; returns the stages that do, and those of the
    copies that they read, which are added to `copies`."""
    if stage.inlined or stage.time is not None:
        return None
    if any(each in program.prepacked for each in stage.op.input_tensors):
        found = contraction_of(stage.op)
        if found is None or not multiplies_dtypes(found, program.target):
            return None  # panels are made of the tensor itself
    stays = stage in kept or stage.is_output or bool(stage.whole_readers)
    made = write_layouts(program, stage, stays=stays)
    copied, computed = made or ([], [])
    copies |= {*copied}
    return [*copied, *computed] if made else None


def _write_inlined(s: Schedule, stage: Stage, by_hand: Container[Stage]) -> bool | None:
    if not can_be_inlined(s, stage, by_hand):
        return None
    choose(s, "strategy", "inlined where it is read", stage=stage.name)
    stage.compute_inline()
    for each in s.readers(stage):
        # The loops of a reduction are chosen for what it reads.
        if compute_of(each).reduce_axis and stays_a_reduction(each, s.inlined):
            each.simplify()
    return True


def _write_moves(
    s: Schedule, stage: Stage, kept: Container[Stage], by_hand: Container[Stage]
) -> bool | None:
    if not becomes_part(s, stage, by_hand):
        return None
    waiting = [*stage.op.input_tensors]
    while waiting:
        read = s[waiting.pop()]
        is_free = read not in kept and not read.is_output and not read.inlined
        if is_free and _write_inlined(s, read, by_hand):
            waiting += read.op.input_tensors
    readers = s.readers(stage)
    choose(s, "strategy", "part of {readers}: elements are only moved between them",
           stage=stage.name, readers=" and ".join(each.name for each in readers))  # fmt: skip
    stage.compute_inline()
    for each in readers:
        each.simplify()
    return True


def _beside_blocks(sums: Sums, fused: FusedBlocks) -> Sums:
    """A contraction outside of all blocks, whose schedule leaves the blocks' stages where they
    are."""
    columns = sums.schedule[sums.contraction.b.tensor]
    return replace(
        sums,
        kept={*sums.kept, *fused.parts},
        inline_columns=sums.inline_columns and columns not in fused.parts,
    )
