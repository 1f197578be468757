"""The order of the decisions for a program.

1. Each stage gets simpler indices, and loses terms that are 0 (``SIMPLER``).
2. Stages that only move elements become part of other stages. Parts of a stage become stages of
   their own, which are computed ahead of it. Cheap stages are inlined (``AHEAD``).
3. Scans, and reductions by groups, are recognised (:mod:`scans`, :mod:`ways`).
4. Each remaining stage gets the order of its axes (``LAYOUTS``).
5. Stages are chosen that are computed together for a block of rows (:mod:`fused_blocks`).
6. Each contraction is written by the strategy of the fewest cycles (:mod:`strategies`), together
   with its epilogue.
7. All other stages are written row by row (:mod:`rows`). Reductions with the same loops share them
   (:mod:`shared_loops`).
8. A scan over many systems that don't depend on each other is computed in parts (:mod:`parts`). Any
   other program with symbolic extents gets versions for some sizes (:mod:`versions`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from minitvm.auto_scheduler.ahead import (
    write_factor_order,
    write_hoisted,
    write_joined,
    write_mirrored,
    write_own_factor,
    write_reassociated,
)
from minitvm.auto_scheduler.attempts import Attempt, Program, complete, first_that_works
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import (
    contraction_of,
    extent_of,
    long_axes,
    running_axis,
    usual_iterations,
)
from minitvm.auto_scheduler.fused_blocks import FusedBlocks, blocks_in
from minitvm.auto_scheduler.inlining import (
    MOST_LEVELS,
    becomes_part,
    can_be_inlined,
    levels_of,
    stays_a_reduction,
)
from minitvm.auto_scheduler.layouts import write_layouts, write_operands
from minitvm.auto_scheduler.loops import Part, compute_of, lie_in_order
from minitvm.auto_scheduler.packing import place_copy, write_copy
from minitvm.auto_scheduler.parts import write_parts
from minitvm.auto_scheduler.places import (
    write_digits,
    write_digits_of_rows,
    write_digits_of_steps,
    write_phases,
    write_unstacked,
    write_windows,
)
from minitvm.auto_scheduler.reductions import write_found_blocks, write_grouped
from minitvm.auto_scheduler.rows import write_rows
from minitvm.auto_scheduler.scans import write_running_scans, write_steps
from minitvm.auto_scheduler.shared_loops import write_shared_loops
from minitvm.auto_scheduler.short_rows import write_rows_in_line, write_short_pieces
from minitvm.auto_scheduler.strategies import (
    TILES,
    TOGETHER,
    choose_products,
    is_tiled,
    strategy_for,
    together,
    write_contraction,
)
from minitvm.auto_scheduler.sums import Sums, sums_of
from minitvm.auto_scheduler.terms import share_of_steps
from minitvm.auto_scheduler.tiled import write_tiled
from minitvm.auto_scheduler.tiles import on_one_core
from minitvm.auto_scheduler.versions import write_versions
from minitvm.auto_scheduler.ways import is_grouped, is_plain_reduction
from minitvm.runtime.errors import CompileError
from minitvm.target import Target, create
from minitvm.te.schedules.operation_graph import read_by_ranges
from minitvm.te.schedules.schedule import Schedule, create_schedule
from minitvm.te.schedules.simplify_operations import simplified
from minitvm.te.schedules.stage import Stage
from minitvm.te.schedules.views import viewed_by
from minitvm.te.schedules.zero_terms import without_zero_terms
from minitvm.te.tensor import ComputeOp, PlaceholderOp, ScanOp, Tensor
from minitvm.tir.depth import deep_expressions

_T = TypeVar("_T")
Rewriting: TypeAlias = tuple[str, Callable[[Program, Stage], list[Stage] | bool | None]]
"""A strategy that rewrites a stage, by its name. It returns the stages that compute parts of the
stage, or copies for it; or True. None where it doesn't fit."""
_MOST_LEFT = 0.8  # of the steps of a sum whose other terms are left out


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
    made = Target.current() or Target() if target is None else create(target)
    with deep_expressions("auto_schedule"):
        if not isinstance(ops, Schedule):
            return schedule_program(ops, made, (), lambda s: s, prepacked=prepacked)
        if not ops.is_as_chosen or prepacked:
            write = partial(_write, target=made, arguments=(), strict=False, prepacked=prepacked)
            complete(ops, write)
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
    is_part: bool = False,
) -> None:
    s = attempt.schedule
    begin = len(s.calls.lines)
    for each in prepacked:
        _check_prepacked(s, each)
    is_whole = not s.is_touched
    given = _kept(s, arguments)
    write_running_scans(attempt, given)
    by_hand = {each for each in s.stages if each.is_touched}
    program = Program(s, target, {*prepacked}, strict, by_hand, {*given}, set(), set(), {})
    _write_program(attempt, program, given)
    for each in prepacked:
        source = s[each]
        if not any(stage.is_ahead and s.consumes(stage, source) for stage in s.stages):
            _write_unpacked(s, source, target)
    if is_whole and not prepacked and not is_part:
        again = partial(_write, strict=strict, prepacked=())
        if not write_parts(attempt, arguments, target, partial(again, is_part=True)):
            write_versions(attempt, arguments, target, partial(again, target=target))
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


def _write_program(attempt: Attempt, program: Program, given: Container[Stage]) -> None:
    rewritten = partial(_rewritten, attempt, program)
    stages = rewritten(stages_to_write(program.schedule), SIMPLER)
    # A stage that only unread stages read is unread, too.
    stages = rewritten(stages[::-1], (("unread", _write_unread),))[::-1]
    stages = write_steps(attempt, program, rewritten(stages, AHEAD))
    group = partial(partial, write_grouped, program)
    stages = [each for each in stages if not attempt.follow("groups", each, group(each))]
    program.kept.update(program.whole)
    stages = rewritten(stages, LAYOUTS)
    program.kept.update(program.copies)
    _write_loops(attempt, program, stages, given)


def _write_loops(
    attempt: Attempt, program: Program, stages: Sequence[Stage], given: Container[Stage]
) -> None:
    """Schedules the stages of a program. The caller gets the results of `given`."""
    s, kept, by_hand = program.schedule, program.kept, program.by_hand
    name = "blocks of rows"
    find_blocks = partial(_fused, attempt, program, stages)
    found = attempt.follow(name, stages[-1], find_blocks) if len(stages) > 1 else None
    fused = found or FusedBlocks(s, (), {})
    done: set[Stage] = set()
    for stage in stages:
        # The blocks were chosen for these last stages; by now other stages may be free to read
        # sums.
        whole = kept | fused.without_epilogue | done
        find = partial(sums_of, program, stage, whole, by_hand | done)
        sums = attempt.follow("contraction", stage, find) if stage not in done else None
        if sums is not None and sums.last in fused.parts and is_tiled(sums):
            done |= set(_write_part(attempt, sums, fused))
        elif sums is not None:
            done |= set(write_contraction(attempt, _beside_blocks(sums, fused)))
    rest = [stage for stage in stages if stage not in done and not stage.inlined]
    # An argument is whole after the call, in whatever loops its rows are computed.
    whole = program.whole | {each for each in kept if each.is_touched or each.is_named}
    fused.loops |= write_rows(
        attempt, rest, program.target, whole, fused.parts, given=given, strict=program.strict
    )
    if found is not None:
        attempt.follow(name, stages[-1], found.attach)
    if len(stages) > 1:
        ours = {each for each in s.stages if each not in by_hand}
        attempt.follow("shared loops", stages[-1], partial(write_shared_loops, s, ours))


def _fused(attempt: Attempt, program: Program, stages: Sequence[Stage]) -> FusedBlocks | None:
    """The stages that are computed together for blocks of rows."""
    s, kept, whole, by_hand = program.schedule, program.kept, program.kept, program.by_hand
    here = [
        each
        for each in stages
        if not each.inlined and each.time is None and running_axis(compute_of(each)) is None
    ]
    products: dict[Stage, Sums] = {}
    alone: set[Stage] = set()
    for stage in here:
        sums = sums_of(program, stage, whole, by_hand) if stage not in products else None
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
        group = [replace(each, target=on_one_core(each.target)) for each in group]
    choose_products(group)
    loop, panels = write_tiled(group, part or Part(0, None))
    if part is not None and loop is not None:
        fused.loops[last] = loop
    fused.panels += [(last, *each) for each in panels]
    return (*(each.stage for each in group), last)


def _rewritten(
    attempt: Attempt, program: Program, stages: Sequence[Stage], table: Sequence[Rewriting]
) -> list[Stage]:
    """The stages to schedule after each strategy of a table was tried on all stages: each stage
    behind those that were made for it. Inlined stages and views are left out."""
    found = [*stages]
    for name, write in table:
        before, found = found, []
        for stage in before:
            done = attempt.follow(name, stage, partial(write, program, stage))
            made = done if isinstance(done, list) else []
            for each in {*made} - {stage}:
                attempt.count_as(each, stage)
            found += [*made, *(() if stage in made else (stage,))]
        found = [stage for stage in found if not (stage.inlined or stage.is_view)]
    return found


def _write_simplified(program: Program, stage: Stage) -> bool | None:
    op = compute_of(stage)
    made = simplified(op)
    if made is op or (op.reduce_axis and not made.reduce_axis and _reads_again(op)):
        return None
    choose(stage, "indices", "simplified with the ranges of their axes")
    stage.simplify()
    return True


def _reads_again(op: ComputeOp) -> bool:
    """Whether an operation is a contraction that reads each element for several results. It stays
    a contraction even if it has a single step."""
    found = contraction_of(op)
    axes = long_axes(op.axis)
    return found is not None and not any(all(map(f.reads, axes)) for f in found.factors)


def _write_zeros(program: Program, stage: Stage) -> bool | None:
    """Leaves out the terms of a contraction that are 0, if these are a good part of them, or all
    but those of one group. Those at the borders of images are a small part, and padding is
    faster."""
    op = compute_of(stage)
    is_free = stage.time is None and bool(op.reduce_axis) and not program.strict
    made = without_zero_terms(op) if is_free else None
    if made is None:
        return None
    fewer = simplified(made)  # conditions on remainders become shorter axes
    steps = usual_iterations(fewer.reduce_axis) / max(1, usual_iterations(made.reduce_axis))
    if not is_grouped(fewer, program.target):
        is_few = steps * share_of_steps(fewer) <= _MOST_LEFT
        if not is_few or contraction_of(op) is None:
            return None
    choose(stage, "zeros", "terms that conditions make 0 are left out")
    stage.omit_zeros()
    if steps < 1:
        stage.simplify()
    return True


def _write_unread(program: Program, stage: Stage) -> bool | None:
    """Computes a stage nowhere if nothing reads it any more."""
    if stage.is_read or not program.is_free(stage):
        return None
    choose(stage, "strategy", "not computed: nothing needs it")
    stage.compute_inline()
    return True


def _write_flat(program: Program, stage: Stage) -> list[Stage] | None:
    """Leaves out a tensor's last dimensions of one element, so that its last axis has neighbours. A
    reduction whose result is kept as it is becomes a copy of it, a view if no other stage reads it;
    the stage of the reduction is returned. Contractions and their factors stay as they are."""
    s, op, stays = program.schedule, compute_of(stage), not program.is_free(stage)
    readers = s.readers(stage)
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


def _write_inlined(program: Program, stage: Stage) -> bool | None:
    s = program.schedule
    if not program.is_free(stage) or not can_be_inlined(s, stage, program.by_hand):
        return None
    levels = levels_of(s, stage, program.levels)
    if levels > MOST_LEVELS:
        return None
    program.levels[stage] = levels
    choose(stage, "strategy", "inlined where it is read")
    stage.compute_inline()
    for each in s.readers(stage):
        # The loops of a reduction are chosen for the elements that it reads.
        if compute_of(each).reduce_axis and stays_a_reduction(each, s.inlined):
            each.simplify()
    return True


def _write_view(program: Program, stage: Stage) -> bool | None:
    """Computes the only tensor that an output copies, in its order, in the memory of the output."""
    s = program.schedule
    source = viewed_by(stage.op) if stage.is_output and stage.time is None else None
    if source is None or stage in program.by_hand or s.readers(stage):
        return None
    made = s[source]
    is_single = isinstance(made.op, ComputeOp) and len(made.op.outputs) == 1
    if (
        not is_single
        or not program.is_free(made)
        or made in program.by_hand
        or s.readers(made) != [stage]
    ):
        return None
    choose(stage, "places", "{tensor} in another shape: computed in its memory", tensor=source)
    stage.compute_view()
    return True


def _write_moves(program: Program, stage: Stage) -> bool | None:
    s = program.schedule
    if not program.is_free(stage) or not becomes_part(s, stage, program.by_hand):
        return None
    if levels_of(s, stage, program.levels) > MOST_LEVELS:
        return None
    waiting = [*stage.op.input_tensors]
    while waiting:
        read = s[waiting.pop()]
        if _write_inlined(program, read):
            waiting += read.op.input_tensors
    readers = s.readers(stage)
    choose(stage, "strategy", "part of {readers}: elements are only moved between them",
           readers=" and ".join(each.name for each in readers))  # fmt: skip
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


SIMPLER: tuple[Rewriting, ...] = (
    ("simplified", _write_simplified),
    ("zeros", _write_zeros),
    ("steps", write_digits_of_steps),
)
AHEAD: tuple[Rewriting, ...] = (  # of the choice of loops
    ("dimensions of one element", _write_flat),
    ("views", _write_view),
    ("moves", _write_moves),
    ("digits of rows", write_digits_of_rows),
    ("joined reductions", write_joined),
    ("places", write_unstacked),
    ("order of factors", write_factor_order),
    ("association", write_reassociated),
    ("own factor", write_own_factor),
    ("symmetry", write_mirrored),
    ("parts ahead", write_hoisted),
    ("phases", write_phases),
    ("borders", write_windows),
    ("operands", write_operands),
    ("short lines", write_short_pieces),
    ("rows in line", write_rows_in_line),
    ("places in blocks", write_found_blocks),
    ("inlining", _write_inlined),
)
LAYOUTS: tuple[Rewriting, ...] = (("layout", write_layouts), ("digits", write_digits))
