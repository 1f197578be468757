"""Random legal sequences of primitives."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise

from hypothesis import strategies as st

from minitvm import CompileError, lower
from minitvm.te.schedules.accumulation import accumulation_of
from minitvm.te.schedules.operation_graph import read_by_ranges
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Attachable, Stage
from minitvm.te.schedules.views import viewed_by
from minitvm.te.tensor import ComputeOp, PlaceholderOp, ScanOp, Tensor
from minitvm.tir.expr import (
    IterType,
    IterVar,
    PrimExpr,
    ProducerLoad,
    Range,
    Reduce,
    const_int,
)
from minitvm.tir.functor import free_vars, walk_once
from minitvm.tir.stmt import ForKind
from tests.schedules.programs import Draw

FACTORS = st.integers(1, 6)


def schedule_randomly(s: Schedule, draw: Draw) -> None:
    """Apply up to a dozen primitives to a schedule."""
    for _ in range(draw(st.integers(1, 12))):
        draw(st.sampled_from(STEPS))(s, draw)
    while any(map(partial(_return_to_root, s), s.stages)):
        pass
    for stage in s.stages:
        _choose_kinds(stage, draw)
    for stage in _stages(s):
        _accumulate(s, stage, draw)
    for stage in _stages(s):
        _share_loops(s, stage, draw)


def _share_loops(s: Schedule, stage: Stage, draw: Draw) -> None:
    """Lets a stage share the loops of another, where they are alike."""
    read = [each.op.output(0) for each in s.stages if isinstance(each.op, PlaceholderOp)]
    args = [*read, *(tensor for op in s.outputs for tensor in op.outputs)]
    for other in _stages(s):
        if not other.leaf_iter_vars or other is stage:
            continue
        axis = draw(st.sampled_from(other.leaf_iter_vars))
        tried = s.copy()
        with suppress(CompileError):
            tried[stage.op].compute_with(tried[other.op], axis)
            lower(tried, args)
            stage.compute_with(other, axis)
            return


def _accumulate(s: Schedule, stage: Stage, draw: Draw) -> None:
    """Lets results go on from each other, where the loops do so in order."""
    assert isinstance(stage.op, ComputeOp)
    for axis in stage.op.axis:
        if accumulation_of(stage.op, axis) is None or not draw(st.booleans()):
            continue
        tried = s.copy()
        tried[stage.op].accumulate(axis)
        with suppress(CompileError):
            tried.normalize()
            stage.accumulate(axis)
            return


def schedule_in_part(s: Schedule, draw: Draw) -> None:
    """Apply a few primitives to some stages of a schedule."""
    for _ in range(draw(st.integers(1, 3))):
        draw(st.sampled_from(STEPS))(s, draw)
    while any(map(partial(_return_to_root, s), s.stages)):
        pass
    for stage in s.stages:
        if stage.is_touched and draw(st.booleans()):
            _choose_kinds(stage, draw)


def _return_to_root(s: Schedule, stage: Stage) -> bool:
    """Takes a stage from a place from which a later step took a reader of it; whether it did."""
    placed = _placed(stage)
    if placed is None or placed.attach_stage is None or placed.attach_ivar is None:
        return False
    place = placed.attach_stage, placed.attach_ivar
    if _is_around(place, _readers(s, stage)) and not _is_in_a_started_reduction(*place):
        return False
    placed.compute_root()
    return True


def _is_in_a_started_reduction(stage: Stage, axis: IterVar) -> bool:
    """Whether a loop is inside of a reduction that depends on elements before it runs: by what it
    begins from, or by its range."""
    first = stage.op.body[0] if isinstance(stage.op, ComputeOp) else None
    if not isinstance(first, Reduce):
        return False
    ranges = [bound for each in first.axis if each.dom for bound in _ends(each.dom)]
    begins = (*first.combiner.identity, *first.init, *ranges)
    leaves = stage.leaf_iter_vars
    reduced = [i for i, leaf in enumerate(leaves) if leaf in stage.reduce_leaves()]
    reads = any(isinstance(each, ProducerLoad) for each in walk_once(*begins))
    return reads and axis in leaves[reduced[0] :]


def _placed(stage: Stage) -> Attachable | None:
    """What says where a stage is computed: itself, or its group."""
    return stage if stage.attach_stage is not None or stage.inlined else stage.group


def _stages(s: Schedule) -> list[Stage]:
    return [stage for stage in s.stages if isinstance(stage.op, ComputeOp) and not stage.inlined]


def _stage(s: Schedule, draw: Draw) -> Stage:
    chosen: Stage = draw(st.sampled_from(_stages(s)))
    return chosen


def split(s: Schedule, draw: Draw) -> None:
    stage = _stage(s, draw)
    if len(stage.leaf_iter_vars) > 7 or not stage.leaf_iter_vars:
        return
    axis = draw(st.sampled_from(stage.leaf_iter_vars))
    if draw(st.booleans()):
        stage.split(axis, factor=draw(FACTORS))
    else:
        stage.split(axis, nparts=draw(FACTORS))


def fuse(s: Schedule, draw: Draw) -> None:
    stage = _stage(s, draw)
    leaves = stage.leaf_iter_vars
    pairs = [(x, y) for x, y in pairwise(leaves) if x.iter_type == y.iter_type]
    if pairs:
        stage.fuse(*draw(st.sampled_from(pairs)))


def fuse_nothing(s: Schedule, draw: Draw) -> None:
    _stage(s, draw).fuse()


def reorder(s: Schedule, draw: Draw) -> None:
    stage = _stage(s, draw)
    if _is_ragged(stage):
        return
    stage.reorder(*draw(st.permutations(stage.leaf_iter_vars)))


def _is_movable(s: Schedule, stage: Stage) -> bool:
    """Neither an output, nor given its place by a scan."""
    updates = [t.op for each in s.stages if isinstance(each.op, ScanOp) for t in each.op.update]
    return not stage.is_output and stage.op not in updates


def _is_read_as_a_whole(s: Schedule, stage: Stage) -> bool:
    return any(not isinstance(each.op, ComputeOp) for each in s.readers(stage))


def inline(s: Schedule, draw: Draw) -> None:
    able = [
        stage
        for stage in _stages(s)
        if _is_movable(s, stage)
        and not stage.reduce_leaves()
        and not _has_guests(s, stage)
        and not _is_read_as_a_whole(s, stage)
    ]
    if able:
        draw(st.sampled_from(able)).compute_inline()


def _is_at_root(stage: Stage) -> bool:
    return stage.attach_stage is None and stage.group is None and not stage.inlined


def _inputs(s: Schedule, stage: Stage) -> list[Stage]:
    """A stage, and those that it reads."""
    return [stage, *[s[each] for each in stage.op.input_tensors if not s[each].inlined]]


def _has_guests(s: Schedule, stage: Stage) -> bool:
    return any(each.attach_stage is stage for each in [*s.stages, *s.groups])


def compute_at(s: Schedule, draw: Draw) -> None:
    able = []
    for stage in _stages(s):
        if not _is_movable(s, stage) or stage.group is not None:
            continue
        if not _is_read_as_a_whole(s, stage):
            places = _common_places(_readers(s, stage))
            able += [(stage, *place) for place in places if not _needs_for_ranges(s, *place, stage)]
    if able:
        stage, reader, axis = draw(st.sampled_from(able))
        stage.compute_at(reader, axis)


def _needs_for_ranges(s: Schedule, reader: Stage, _: IterVar, stage: Stage) -> bool:
    """Whether the loops of `reader` are as long as what is made of `stage` says."""
    lengths = [s[s.now(tensor)] for _, tensor in read_by_ranges(reader.op)]
    return any(each is stage or s.consumes(each, stage) for each in lengths)


def _common_places(readers: list[Stage]) -> list[tuple[Stage, IterVar]]:
    """The loops that are around all of some stages."""
    inside = [_places(reader) for reader in readers]
    own = [(reader, axis) for reader in readers for axis in reader.leaf_iter_vars]
    around = inside[0] if inside else []
    return [place for place in [*own, *around] if _is_around(place, readers)]


def _is_around(place: tuple[Stage, IterVar], stages: list[Stage]) -> bool:
    return all(each is place[0] or place in _places(each) for each in stages)


def _places(stage: Stage) -> list[tuple[Stage, IterVar]]:
    """The loops of other stages around one."""
    placed = _placed(stage)
    parent = None if placed is None else placed.attach_stage
    axis = None if placed is None else placed.attach_ivar
    if parent is None or axis not in parent.leaf_iter_vars:
        return []
    loops = parent.leaf_iter_vars[: parent.leaf_iter_vars.index(axis) + 1]
    return [*_places(parent), *[(parent, each) for each in loops]]


def _readers(s: Schedule, stage: Stage) -> list[Stage]:
    """The stages that read one, inlining done."""
    found: list[Stage] = []
    for reader in s.readers(stage):
        found += _readers(s, reader) if reader.inlined else [reader]
    return list(dict.fromkeys(found))


def compute_root(s: Schedule, draw: Draw) -> None:
    _stage(s, draw).compute_root()


def compute_view(s: Schedule, draw: Draw) -> None:
    able = [each for each in _stages(s) if _is_at_root(each) and viewed_by(each.op) is not None]
    if able:
        draw(st.sampled_from(able)).compute_view()


def cache_read(s: Schedule, draw: Draw) -> None:
    able = [stage for stage in s.stages if s.readers(stage) and len(s.stages) < 9]
    able = [each for each in able if _is_at_root(each)]
    able = [each for each in able if not _is_read_as_a_whole(s, each)]
    if not able:
        return
    stage = draw(st.sampled_from(able))
    readers = draw(st.lists(st.sampled_from(s.readers(stage)), min_size=1, unique=True))
    if any(each.inlined for each in readers):
        return
    tensor = draw(st.sampled_from(stage.op.outputs))
    readers = [each for each in readers if tensor in each.op.input_tensors]
    if readers:
        s.cache_read(tensor, "local", [each.op for each in readers])


def cache_write(s: Schedule, draw: Draw) -> None:
    able = [each for each in _stages(s) if not _has_guests(s, each) and len(s.stages) < 9]
    able = [each for each in able if all(map(_is_at_root, _inputs(s, each)))]
    if any(isinstance(each.op, ScanOp) for each in s.stages):  # time stays the first dimension
        able = [each for each in able if each.leaf_iter_vars == each.all_iter_vars]
    if able:
        stage = draw(st.sampled_from(able))
        s.cache_write(list(stage.op.outputs), draw(st.sampled_from(["local", "global"])))


def _is_ragged(stage: Stage) -> bool:
    """Whether an axis is longer for some elements than for others."""
    axes = stage.op.reduce_axis if isinstance(stage.op, ComputeOp) else ()
    own = {axis.var for axis in stage.all_iter_vars}
    return any(not own.isdisjoint(free_vars(each.dom.extent)) for each in axes if each.dom)


def cache_access(s: Schedule, draw: Draw) -> None:
    able = [each for each in _stages(s) if not _has_guests(s, each) and len(s.stages) < 9]
    able = [each for each in able if all(map(_is_at_root, _inputs(s, each)))]
    found = [
        (tensor, reader)
        for reader in able
        for tensor in reader.op.input_tensors
        if not _is_ragged(reader) and _reads_once(reader, tensor) and not s[tensor].inlined
    ]
    if found:
        tensor, reader = draw(st.sampled_from(found))
        s.cache_access(tensor, draw(st.sampled_from(["local", "global"])), reader.op)


def repeat_rows(s: Schedule, draw: Draw) -> None:
    """The rows that a stage reads, several times."""
    able = [(x, reader) for reader in _rewritable(s) for x in reader.op.input_tensors]
    if able and len(s.stages) < 9:
        tensor, reader = draw(st.sampled_from(able))
        with suppress(CompileError):
            s.repeat_rows(tensor, reader.op, draw(st.integers(1, 5)))


def _reads_once(stage: Stage, tensor: Tensor) -> bool:
    """Whether a stage reads one element of a tensor in each iteration, if any."""
    assert isinstance(stage.op, ComputeOp)
    ranges = [bound for axis in stage.op.reduce_axis if axis.dom for bound in _ends(axis.dom)]

    def reads(*nodes: PrimExpr) -> list[ProducerLoad]:
        found = (each for each in walk_once(*nodes) if isinstance(each, ProducerLoad))
        return [each for each in found if each.producer is tensor]

    return len({str(each) for each in reads(*stage.op.body)}) == 1 and not reads(*ranges)


def _ends(dom: Range) -> tuple[PrimExpr, PrimExpr]:
    return dom.min, dom.extent


def rfactor(s: Schedule, draw: Draw) -> None:
    able = [
        (stage, axis)
        for stage in _stages(s)
        for axis in stage.leaf_iter_vars
        if axis in stage.reduce_leaves() and not _has_guests(s, stage) and len(s.stages) < 9
        if not _is_ragged(stage) or _is_constant(stage, axis)
    ]
    if able:
        stage, axis = draw(st.sampled_from(able))
        s.rfactor(stage.op.output(0), axis, draw(st.integers(-1, len(stage.op.axis))))


def transform_layout(s: Schedule, draw: Draw) -> None:
    able = [
        stage
        for stage in _stages(s)
        if _is_movable(s, stage)
        and not _is_read_as_a_whole(s, stage)
        and not _has_guests(s, stage)
        and stage.op.output(0).ndim
        and not stage.relations  # fuse() of nothing adds its loop to all and to the leaves
        and stage.leaf_iter_vars == stage.all_iter_vars
        and all((const_int(dim) or 0) > 0 for dim in stage.op.output(0).shape)
        and not any(s.now(t) in stage.op.outputs for x in s.stages for _, t in read_by_ranges(x.op))
    ]
    if any(isinstance(each.op, ScanOp) for each in s.stages):  # time stays the first dimension
        return
    if able:
        block = draw(st.integers(1, 4))
        draw(st.sampled_from(able)).transform_layout(
            lambda *i: [i[-1] // block, *i[:-1], i[-1] % block]
        )


def set_scope(s: Schedule, draw: Draw) -> None:
    able = [each for each in _stages(s) if _is_movable(s, each)]
    if able:
        draw(st.sampled_from(able)).set_scope(draw(st.sampled_from(["local", "global"])))


def memory(s: Schedule, draw: Draw) -> None:
    """What is said about memory, and changes no value."""
    stage = _stage(s, draw)
    if isinstance(stage.op, ComputeOp) and stage.op.axis:
        axis = draw(st.sampled_from(stage.op.axis))
        stage.storage_align(axis, draw(st.integers(1, 16)), draw(st.integers(0, 3)))


def create_group(s: Schedule, draw: Draw) -> None:
    """A chain of stages with one reader each, placed together at a loop of the last reader."""
    end = _stage(s, draw)
    readers = _readers(s, end)
    if not _is_movable(s, end) or len(readers) != 1 or _is_read_as_a_whole(s, end):
        return
    inside = [end]
    for stage in reversed(s.stages[: s.stages.index(end)]):
        if isinstance(stage.op, ComputeOp) and set(s.readers(stage)) <= set(inside):
            inside.append(stage)
    begins = [
        tensor for stage in inside for tensor in stage.op.input_tensors if s[tensor] not in inside
    ]
    plain = all(each.group is None and _is_movable(s, each) for each in inside)
    if plain and readers[0].leaf_iter_vars and begins:
        axis = draw(st.sampled_from(readers[0].leaf_iter_vars))
        s.create_group(end.op, begins).compute_at(readers[0], axis)


def reduce_scan(s: Schedule, draw: Draw) -> None:
    for stage in [stage for stage in s.stages if isinstance(stage.op, ScanOp)]:
        with suppress(CompileError):
            s.reduce_scan(stage.op.output(0))


def reverse_compute_inline(s: Schedule, draw: Draw) -> None:
    for stage in _stages(s):
        source = [s[each] for each in stage.op.input_tensors if s[each] in _stages(s)]
        if all(map(_is_at_root, [stage, *source])) and not any(
            _has_guests(s, each) for each in [stage, *source]
        ):
            with suppress(CompileError):
                s.reverse_compute_inline(stage.op.output(0))
                return


def factor_out(s: Schedule, draw: Draw) -> None:
    """Factors out of inner sums, where that is possible: before other loops."""
    able = [each for each in _rewritable(s) if len(each.reduce_leaves()) > 1]
    if able:
        stage = draw(st.sampled_from(able))
        summed = [axis for axis in stage.leaf_iter_vars if axis in stage.reduce_leaves()]
        axes = draw(st.lists(st.sampled_from(summed), min_size=1, unique=True))
        with suppress(CompileError):
            s.factor_out(stage.op.output(0), axes)


def reassociate(s: Schedule, draw: Draw) -> None:
    """Factors of the same axes first, where they stand apart."""
    able = [each for each in _rewritable(s) if each.reduce_leaves()]
    if able:
        with suppress(CompileError):
            draw(st.sampled_from(able)).reassociate()


def hoist(s: Schedule, draw: Draw) -> None:
    """A part that changes along some axes alone ahead of the others, where there is one."""
    able = [each for each in _rewritable(s) if each.leaf_iter_vars]
    if able:
        stage = draw(st.sampled_from(able))
        axes = draw(st.lists(st.sampled_from(stage.leaf_iter_vars), min_size=1, unique=True))
        with suppress(CompileError):
            s.hoist(stage.op.output(0), axes)


def unstack(s: Schedule, draw: Draw) -> None:
    """The places along a short axis, each by itself."""
    able = [each for each in _rewritable(s) if each.leaf_iter_vars]
    if able:
        stage = draw(st.sampled_from(able))
        with suppress(CompileError):
            s.unstack(stage.op.output(0), draw(st.sampled_from(stage.leaf_iter_vars)))


def find_block(s: Schedule, draw: Draw) -> None:
    """The block of steps that holds a place first, where a reduction finds one."""
    if able := [each for each in _rewritable(s) if each.reduce_leaves()]:
        with suppress(CompileError):
            stage = draw(st.sampled_from(able))
            s.find_block(stage.op.output(0), draw(st.integers(1, 5)))


def mirror(s: Schedule, draw: Draw) -> None:
    """Half of a symmetric result."""
    able = [each.op for each in _rewritable(s) if isinstance(each.op, ComputeOp)]
    able = [op for op in able if op.reduce_axis and len(op.axis) > 1]
    if able:
        op = draw(st.sampled_from(able))
        with suppress(CompileError):
            s.mirror(op.output(0), [*op.axis[-2:]], draw(st.integers(1, 5)))


def _rewritable(s: Schedule) -> list[Stage]:
    """The stages from which another may be taken: at the root, without loops of their own."""
    return [
        each
        for each in _stages(s)
        if len(s.stages) < 9
        and not _has_guests(s, each)
        and all(map(_is_at_root, _inputs(s, each)))
        and each.leaf_iter_vars == each.all_iter_vars
    ]


def transform_reduction(s: Schedule, draw: Draw) -> None:
    """Sums over other axes, where the stage and its reducer allow them."""
    able = [
        each
        for each in _stages(s)
        if isinstance(each.op, ComputeOp)
        and len(each.op.reduce_axis) > 1
        and not _has_guests(s, each)
    ]
    if not able:
        return
    stage = draw(st.sampled_from(able))
    extents = [const_int(axis.dom.extent) for axis in stage.op.reduce_axis if axis.dom]
    joins = draw(st.booleans()) and None not in extents

    def steps(*indices: PrimExpr) -> list[PrimExpr]:
        if not joins:
            return [*indices[::-1]]
        place = indices[0]
        for index, extent in zip(indices[1:], extents[1:], strict=True):
            place = place * extent + index
        return [place]

    with suppress(CompileError):
        stage.transform_reduction(steps)


def drop_time(s: Schedule, draw: Draw) -> None:
    scans = [stage for stage in s.stages if isinstance(stage.op, ScanOp)]
    if scans:
        s.drop_time(draw(st.sampled_from(scans)).op.output(0))


STEPS: list[Callable[[Schedule, Draw], None]] = [
    split, split, split, fuse, fuse_nothing, reorder, reorder, inline, compute_at, compute_at,
    compute_root, compute_view, cache_read, cache_access, cache_write, rfactor, transform_layout,
    set_scope, memory, create_group, drop_time, transform_reduction, reduce_scan,
    reverse_compute_inline,
    factor_out, reassociate, hoist, unstack, find_block, mirror, repeat_rows,
]  # fmt: skip

KINDS = [ForKind.SERIAL, ForKind.SERIAL, ForKind.UNROLLED, ForKind.PARALLEL, ForKind.VECTORIZED]


def _choose_kinds(stage: Stage, draw: Draw) -> None:
    """How loops run, where that is allowed: vectors and unrolling need constant extents."""
    if not isinstance(stage.op, ComputeOp):
        return
    for axis in stage.leaf_iter_vars:
        kind = draw(st.sampled_from(KINDS))
        if kind == ForKind.PARALLEL and axis.iter_type == IterType.DATA_PAR:
            stage.parallel(axis)
        if not _is_constant(stage, axis):
            continue
        if kind == ForKind.UNROLLED:
            stage.unroll(axis)
        if kind == ForKind.VECTORIZED and axis.iter_type == IterType.DATA_PAR:
            stage.vectorize(axis)


def _is_constant(stage: Stage, axis: IterVar) -> bool:
    """Whether a loop is the inner one of a split by a factor."""
    return any(
        getattr(r, "inner", None) is axis and getattr(r, "factor", None) is not None
        for r in stage.relations
    )
