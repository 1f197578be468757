"""Versions of a schedule, for calls whose symbolic extents are of some size.

The model of a schedule takes a symbolic extent for a large one. Products of small matrices, or of
few rows, want another schedule, as a call with constant extents of that size gets it. So a program
with a contraction has versions. Each is the schedule of the same program with constant extents of
some size, applied to the program with symbolic extents, for which it is right as well::

    if m == 1: ...                                  # the schedule for 1 x 128 x 128
    elif m <= 8: ...                                # for 4 x 512 x 512
    elif n or k < 64: ...                           # for 64 x 64 x 64
    elif both factors fit the L2 cache: ...         # for 128 x 128 x 128
    else: ...                                       # for large extents

Where the target has an instruction for products of narrow numbers, which takes whole tiles, the
versions are one for multiples of the tiles, and one that pads the factors.

Sums of rows have a version for short rows, which sums several rows together; elementwise stages
have one that computes several short rows as one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial, reduce
from math import isqrt, log2
from typing import TypeAlias, final

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.effects import reads_tensors
from minitvm.arith.prover import Prover
from minitvm.auto_scheduler.attempts import VERSION, Attempt, Write, written
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import (
    Contraction,
    bytes_of,
    contraction_of,
    extent_of,
    lanes_of,
    reads_windows,
)
from minitvm.auto_scheduler.convolutions import is_convolution
from minitvm.auto_scheduler.instructions import has_instruction, lies_in_groups, multiplies_dtypes
from minitvm.auto_scheduler.lines import are_short_lines, part_of_line
from minitvm.auto_scheduler.short_rows import (
    AT_ONCE,
    are_short_rows,
    goes_step_by_step,
    longest,
    waits_for_memory,
)
from minitvm.auto_scheduler.some_sizes import is_version, written_for
from minitvm.auto_scheduler.ways import gathered, runs_in_columns, streamed
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.schedules.operation_graph import in_order, root_axes
from minitvm.te.schedules.relation import leaves_below, ranges_of
from minitvm.te.schedules.replay import replay
from minitvm.te.schedules.rewrite_operations import with_inlined, with_sizes
from minitvm.te.schedules.schedule import Schedule, create_schedule
from minitvm.te.schedules.simplify_operations import simplified
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, Operation, PlaceholderOp, Tensor, domain_of
from minitvm.te.tensor_intrin import TensorIntrin
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr, Reduce, Var
from minitvm.tir.functor import substitute
from minitvm.tir.stmt import ForKind

_FEW = 8  # rows, which are read or computed one by one
_FEW_BY_TILES = 64  # rows, at most, that stay in the caches as the columns of instructions
_PADDED_FEW = 61  # of them, a prime: all tiles are padded
_USUAL_FEW = 4  # rows, of a tile that fills the registers with columns
_STEPS_OF_FEW = 32  # of a sum, for each of few rows: adding lanes takes as long as packing a factor
_LEAST = 64  # of all extents, for which blocks of large factors are packed
_WHOLE = 64  # multiples of it need no padding for instructions for matrices
_WHOLE_SIZES = (128, 256, 64)  # that a version for multiples is made for, as far as they divide it
_SHORT = 16  # an extent below would be padding for the most part
_STEPS = 64  # of short rows that are combined step by step
_WAITING = 512  # elements of rows whose sums wait for each other: those of several rows overlap
# Extents that versions are made for, the first ones for which they are right.
_NARROW = (64, 128, 192)
_SMALL = (128, 64, 192)
_IMAGE = (128, 192)  # and for single rows
_ROWS = (512, 256, 128, 64)  # of a product whose columns and steps are known
_PLACES = (56, 128, 192)  # of images that are read as they lie
_LINE = 48  # places of a line that fill vectors well

_Make: TypeAlias = Callable[..., Schedule | None]
"""Makes the schedule of a version for some sizes, as :func:`_made_for` does."""


@final
@record()
class _Version:
    """A version for calls in which `condition` holds: the schedule for the first of `sizes` of the
    extents that serves all of these calls. Without sizes, the extents stay symbolic; rows count as
    short then, and tiles of instructions as padded."""

    name: str
    condition: PrimExpr
    sizes: tuple[Mapping[Var, int], ...]
    is_whole: bool = False  # nothing is padded where extents are multiples of _WHOLE
    rows: Var | None = None  # it is for no more of them than the first size that saves copies
    is_near: bool = False  # tensors of symbolic size are in the L2 cache
    is_bounded: bool = False  # calls have no larger extents than its sizes
    made_for: str = ""  # where it has no sizes


def write_versions(
    attempt: Attempt, arguments: Iterable[Tensor], target: Target, write: Write
) -> None:
    """Gives a schedule versions, which `write` writes for a program and its arguments."""
    if is_version():
        return
    s = attempt.schedule
    outputs = s.calls.outputs
    found = [*_versions(in_order(outputs), target)]
    trace = s.trace() if found else ""
    make = cache(partial(_made_for, outputs, [*arguments], write))
    found = _joined(found, make)
    for place, each in enumerate(found):
        follow = partial(_write_version, s, trace, each, found[place + 1 :], make)
        attempt.follow(f"{VERSION}{each.name}", s[outputs[-1]], follow)


def _joined(versions: Sequence[_Version], make: _Make) -> list[_Version]:
    """The versions, with one in place of neighbours that have the same schedule."""
    found = list[_Version]()
    for each in versions:
        before = found[-1] if found else None
        if before is not None and before.sizes[0] and each.sizes[0] and _is_for_any(each):
            one, other = (_made(make, v, v.sizes[0]) for v in (before, each))
            if one is not None and other is not None and one.trace() == other.trace():
                either = e.logical_or(before.condition, each.condition)
                found[-1] = replace(each, name=f"{before.name}, or {each.name}", condition=either)
                continue
        found.append(each)
    return found


def _is_for_any(version: _Version) -> bool:
    """Whether the schedule for the first sizes serves all calls of a version."""
    return not version.is_whole and version.rows is None


def _made_for(
    outputs: Sequence[Operation],
    arguments: Sequence[Tensor],
    write: Write,
    sizes: tuple[tuple[Var, int], ...],
    is_near: bool,
    is_bounded: bool,
) -> Schedule | None:
    """The schedule that `write` writes for a program with some sizes of its extents, with tensors
    in the L2 cache if they are near; None if a dimension has no size then. `is_bounded`: extents
    are no larger in any call."""
    values = {var: e.const(n, var.dtype) for var, n in sizes}
    constant = with_sizes(outputs, values) if values else ([*outputs], {})
    if constant is None:
        return None
    ops, now = constant
    given = [now.get(each, each) for each in arguments]
    larger = () if is_bounded else (*dict(sizes).values(), *_varying(now))
    with written_for({*larger}, is_near=is_near):
        return written(partial(create_schedule, ops), partial(write, arguments=given), {}).schedule


def _made(make: _Make, version: _Version, sizes: Mapping[Var, int]) -> Schedule | None:
    """The schedule of a version for some of its sizes."""
    return make((*sizes.items(),), version.is_near, version.is_bounded)


def _varying(now: Mapping[Tensor, Tensor]) -> Iterator[int]:
    """The constant extents that stand for symbolic ones, as those of windows ``n - 2``."""
    for symbolic, constant in now.items():
        for extent, made in zip(symbolic.shape, constant.shape, strict=True):
            if e.const_int(extent) is None and (known := e.const_int(made)) is not None:
                yield known


def _write_version(
    s: Schedule, trace: str, version: _Version, others: Sequence[_Version], make: _Make
) -> bool | None:
    """`trace`: that of the schedule without versions. `others`: the versions behind this one."""
    outputs = s.calls.outputs
    for sizes in version.sizes:
        made = _made(make, version, sizes)
        if made is None:
            return None
        text = made.trace()
        if s.versions and text == s.versions[-1][1].trace() and _is_for_any(version):
            condition, before = s.take_back_version()
            s.specialize(e.logical_or(condition, version.condition), before)
            return True
        if text in (trace, *(other.trace() for _, other in s.versions)):
            return None
        if version.rows is not None and len(made.stages) >= len(s.stages):
            continue
        if version.is_whole and any(_is_made_by(make, each, text) for each in others):
            return None  # the other one serves more calls
        schedule = _replayed(text, outputs)
        if schedule is None or (not version.is_whole and any(map(_leaves_out, schedule.stages))):
            continue
        if not (version.is_whole and _pads(text, outputs, sizes, len(made.stages))):
            extents = " x ".join(map(str, sizes.values())) or version.made_for
            name, condition, rows = version.name, version.condition, version.rows
            if rows is not None:
                name, condition = f"{extents} {rows.name} or fewer", rows <= sizes[rows]
            note = "calls with {sizes} have a version of the schedule, made for {extents}"
            choose(s[outputs[-1]], "version", note, sizes=name, extents=extents)
            schedule.choices = made.choices
            s.specialize(condition, schedule)
            return True
    return None


def _is_made_by(make: _Make, version: _Version, trace: str) -> bool:
    """Whether a version's schedule has a trace."""
    made = (_made(make, version, sizes) for sizes in version.sizes)
    return any(each is not None and each.trace() == trace for each in made)


def _replayed(trace: str, outputs: Sequence[Operation]) -> Schedule | None:
    """The schedule of symbolic extents by a trace for constant ones; None where it would unroll a
    loop of unknown length, or a primitive needs a constant extent."""
    try:
        made = replay(trace, outputs)
    except CompileError:
        return None
    return None if any(map(_has_unknown_parts, made.stages)) else made


def _pads(trace: str, outputs: Sequence[Operation], extents: Iterable[Var], stages: int) -> bool:
    """Whether multiples of _WHOLE are padded, which takes more than a number of stages."""
    multiples = {var: e.floordiv(var, _WHOLE) * _WHOLE for var in extents}
    found = with_sizes(outputs, multiples)
    made = found and _replayed(trace, found[0])
    return made is None or len(made.stages) > stages


def _has_unknown_parts(stage: Stage) -> bool:
    """Whether a loop that is written out, or in vectors, has a symbolic extent. Loops over elements
    that are computed at a loop of another stage get their ranges there."""
    if not isinstance(stage.op, ComputeOp) or stage.inlined:
        return False
    axes = stage.op.reduce_axis if stage.attach_stage else (*stage.op.axis, *stage.op.reduce_axis)
    known = leaves_below(stage.relations, axes)
    ranges = ranges_of(stage.relations, {axis: domain_of(axis) for axis in root_axes(stage.op)})
    return any(
        stage.iter_var_attrs[axis].kind in _WRITTEN_OUT and e.const_int(ranges[axis].extent) is None
        for axis in stage.leaf_iter_vars
        if axis in known and axis in stage.iter_var_attrs
    )


def _leaves_out(stage: Stage) -> bool:
    """Whether an instruction would have to leave out terms behind the end of a symbolic sum, or
    results behind that of an axis, unless a tile of its own holds them."""
    op = stage.op
    reduce = op.body[0] if isinstance(op, ComputeOp) else None
    intrinsics = [attrs.intrin for attrs in stage.iter_var_attrs.values() if attrs.intrin]
    if not intrinsics or not isinstance(op, ComputeOp) or not isinstance(reduce, Reduce):
        return False
    if stage.attach_stage is None and not all(_come_out_even(op, i) for i in intrinsics):
        return True
    return e.const_int(reduce.condition) != 1 or not all(_takes_all(reduce, i) for i in intrinsics)


def _come_out_even(op: ComputeOp, intrinsic: TensorIntrin) -> bool:
    """Whether the last axes of a stage consist of whole tiles of an intrinsic."""
    extents = zip(reversed(op.axis), reversed(intrinsic.op.axis), strict=False)
    rests = (e.floormod(domain_of(mine).extent, domain_of(tile).extent) for mine, tile in extents)
    return all(Prover().can_prove(e.equal(rest, 0)) for rest in rests)


def _takes_all(sum: Reduce, intrinsic: TensorIntrin) -> bool:
    """Whether the last axes of a sum consist of whole parts, where an intrinsic takes any number of
    parts."""
    prover = Prover()
    for mine, other in zip(reversed(sum.axis), reversed(intrinsic.op.reduce_axis), strict=False):
        for term, size in prover.affine(domain_of(other).extent).terms.items():
            rest = e.floormod(domain_of(mine).extent, size)
            if term in intrinsic.scalar_params and not prover.can_prove(e.equal(rest, 0)):
                return False
    return True


_WRITTEN_OUT = (ForKind.UNROLLED, ForKind.VECTORIZED)


def _versions(ops: Sequence[Operation], target: Target) -> Iterator[_Version]:
    """The versions of a program with symbolic extents that has a contraction; of several that hold,
    the first one counts."""
    extents = _symbolic_extents(ops)
    if not extents:
        return
    found = [each for op in ops if (each := contraction_of(op)) is not None and _wants_some(each)]
    if not found:
        yield from _versions_of_rows(ops, target)
        return
    narrow, small = (
        tuple(_of_size(size, extents, found) for size in sizes) for sizes in (_NARROW, _SMALL)
    )
    tiled = [var for var in extents if var in _tiled_extents(found)]
    if not tiled and any(multiplies_dtypes(each, target) for each in found):
        return  # such as the images of a batch, each with tiles of its own
    if any(_has_windows(each) and not is_convolution(each, target) for each in found):
        # The tiles of an image hardly depend on its size, if there is one.
        yield _Version("images", e.const(True), _sizes_of_images(extents, found))
        return
    itemsize = max(each.b.tensor.dtype.itemsize for each in found)
    # Two factors of this size fit the L2 cache.
    most = 1 << (isqrt(target.cache_bytes(2) // 2 // itemsize).bit_length() - 1)
    rows = _rows(found)
    if rows is not None:
        one = tuple(dict.fromkeys(extents, size) | {rows: 1} for size in _IMAGE)
        yield _Version(f"one {rows.name}", e.equal(rows, 1), one)
        few = _of_size(most, extents, found) | {rows: _USUAL_FEW}
        if (are_few := _are_few(rows, found, target)) is not None:
            yield _Version(f"{_FEW} {rows.name} or fewer", are_few, (few,))
    alone = rows if len(extents) == 1 and extents[0] is rows else None
    if any(has_instruction(each, target) for each in found):
        whole = (e.equal(e.floormod(var, _WHOLE), 0) for var in tiled)
        name = f"extents that are multiples of {_WHOLE}"
        sizes = tuple(dict.fromkeys(extents, size) for size in _WHOLE_SIZES)
        yield _Version(name, reduce(e.logical_and, whole), sizes, is_whole=True)
        if alone is not None and not all(map(lies_in_groups, found)):
            few = {alone: _PADDED_FEW}
            name, are_few = f"{_FEW_BY_TILES} {alone.name} or fewer", alone <= _FEW_BY_TILES
            yield _Version(name, are_few, (few,), is_bounded=True)
        long = (e.less_equal(_SHORT, var) for var in tiled)
        name = f"extents of {_SHORT} or more"
        yield _Version(name, reduce(e.logical_and, long), ({},), made_for="padded tiles")
        return
    if images := [each for each in found if _is_image(each)]:
        yield from _images_as_they_lie(extents, images)
        return
    if alone is not None:
        # Of any larger number of rows the tiles and the blocks are the same.
        sizes = tuple({alone: size} for size in _ROWS)
        yield _Version("few rows", e.const(True), sizes, rows=alone)
        return
    mine = tiled or extents
    # Few rows by a large factor want the tiles of many; rests of rows cost little.
    below = [e.less(var, _LEAST) for var in mine if var is not rows]
    if below:
        yield _Version(f"an extent below {_LEAST}", reduce(e.logical_or, below), narrow)
    is_small = _fits_cache(found, mine, most)
    yield _Version(f"factors of {most} x {most} elements or less", is_small, small)


def _versions_of_rows(ops: Sequence[Operation], target: Target) -> Iterator[_Version]:
    """The versions of a program with symbolic extents that has no contraction."""
    for condition in _many_short_rows(ops, target):
        yield _Version("many short rows", condition, ({},), made_for="short rows")
    last = ops[-1]
    if isinstance(last, ComputeOp):
        is_elementwise = not any(isinstance(op, ComputeOp) and op.reduce_axis for op in ops)
        inlined = with_inlined(last, lambda x: x.op if isinstance(x.op, ComputeOp) else None)
        if is_elementwise and (lines := are_short_lines(inlined, target)) is not None:
            yield _Version("many short lines", lines, ({},), made_for="short lines")
        if (size := part_of_line(last)) is not None:
            parts = f"parts of {size.name} neighbours"
            yield _Version(f"{size.name} of 1 or more", size >= 1, ({},), made_for=parts)
    yield from _near_tensors(ops, target)


def _of_size(
    size: int, extents: Sequence[Var], contractions: Iterable[Contraction]
) -> dict[Var, int]:
    """One size for all extents, but for those of several reduction axes of a contraction, which
    have about as many steps together."""
    made = dict.fromkeys(extents, size)
    for each in contractions:
        steps = {n for axis in each.op.reduce_axis if (n := domain_of(axis).extent) in made}
        if len(steps) > 1:
            made |= {var: 1 << round(log2(size) / len(steps)) for var in made if var in steps}
    return made


def _fits_cache(contractions: Sequence[Contraction], extents: Sequence[Var], most: int) -> PrimExpr:
    """Whether factors have no more elements than `most` x `most`. Where each step is in another
    line of both factors, lines don't lie so far apart that the steps take too many pages: long
    lines are few."""
    if not any(map(_steps_across_both, contractions)):
        return _within(contractions, most)
    short = reduce(e.logical_and, (e.less_equal(var, most) for var in extents))
    return e.logical_or(short, _within(contractions, most // 2))


def _within(contractions: Iterable[Contraction], side: int) -> PrimExpr:
    """Whether the factors of symbolic size have no more elements than a square of a `side`."""
    sizes = dict[tuple[int, ...], PrimExpr]()
    for each in contractions:
        for a, b in ((each.a, each.b), (each.b, each.a)):
            rows = [axis for axis in each.op.axis if a.reads(axis) and not b.reads(axis)]
            extents = [domain_of(axis).extent for axis in (*each.op.reduce_axis, *rows)]
            if any(isinstance(n, Var) for n in extents):
                key = tuple(sorted(map(id, extents)))
                sizes[key] = reduce(e.multiply, (e.cast("int64", n) for n in extents))
    fit = (e.less_equal(size, side**2) for size in sizes.values())
    return reduce(e.logical_and, fit, e.const(True))


def _steps_across_both(contraction: Contraction) -> bool:
    """Whether each step of a sum reads another line of both factors."""
    plain = contraction_of(simplified(contraction.op))
    if plain is None:
        return False
    return all(each.along(plain.op.reduce_axis[-1]) > 1 for each in (plain.a, plain.b))


def _sizes_of_images(
    extents: Sequence[Var], images: Sequence[Contraction]
) -> tuple[Mapping[Var, int], ...]:
    """Sizes of images and of their channels. There may be a single image, whose parts are tasks,
    unless its windows are read."""
    if any(reads_windows(each.op, each.b.load) for each in images):
        return tuple(dict.fromkeys(extents, size) for size in _IMAGE)
    outer = ((each, axis) for each in images for axis in each.op.axis[:-2])
    single = {domain_of(axis).extent for each, axis in outer if not each.a.reads(axis)}
    return tuple({var: 1 if var in single else size for var in extents} for size in _PLACES)


def _are_few(rows: Var, contractions: Iterable[Contraction], target: Target) -> PrimExpr | None:
    """Whether rows are few. Where the factors lie side by side along the sum, the lanes of each sum
    are added in the end, which takes long for short sums: the fewer rows, the shorter sums pay.
    None if two rows are too many, or an instruction adds neighbouring steps anyway. Elsewhere tiles
    of few rows are long, and the columns and steps must not be few as well."""
    conditions = [e.less_equal(rows, _FEW)]
    for each in contractions:
        steps = domain_of(each.op.reduce_axis[-1]).extent
        if all(factor.along(each.op.reduce_axis[-1]) == 1 for factor in each.factors):
            is_short = (e.const_int(steps) or 2 * _STEPS_OF_FEW) < 2 * _STEPS_OF_FEW
            if is_short or has_instruction(each, target):
                return None
            conditions.append(e.less_equal(rows, e.floordiv(steps, _STEPS_OF_FEW)))
        else:
            extents = (domain_of(each.column).extent, steps)
            conditions += [e.less_equal(_LEAST, n) for n in extents if e.const_int(n) is None]
    return Analyzer().simplify(reduce(e.logical_and, dict.fromkeys(conditions)))


def _tiled_extents(contractions: Iterable[Contraction]) -> set[PrimExpr]:
    """The extents that tiles of an instruction divide: of rows, columns and steps, and not of the
    batches of a product."""
    axes = (
        axis
        for each in contractions
        for axis in (*each.rows[-1:], each.column, each.op.reduce_axis[-1])
    )
    return {domain_of(axis).extent for axis in axes}


def _many_short_rows(ops: Sequence[Operation], target: Target) -> Iterator[PrimExpr]:
    """The condition under which a sum of rows is that of short ones, enough of them for a block,
    and with a rest behind the vectors that a plain loop adds at a time."""
    sums = [op for op in ops if isinstance(op, ComputeOp) and op.reduce_axis]
    in_steps = bool(sums) and all(goes_step_by_step(each, strict=False) for each in sums)
    if not in_steps and not all(waits_for_memory(each, target) for each in sums):
        return
    for op in sums[:1]:
        (length, *others) = [domain_of(axis).extent for axis in op.reduce_axis]
        if not others and isinstance(length, Var) and are_short_rows(op, target, strict=False):
            rows, lanes = domain_of(op.axis[-1]).extent, lanes_of(op, target)
            most = _WAITING if _wait_for_each_other(sums) else min(map(longest, sums))
            is_short = e.less_equal(length, _STEPS if in_steps else most)
            if op is ops[-1] and not in_steps:
                has_rest = e.not_equal(e.floormod(length, lanes * AT_ONCE), 0)
                is_short = e.logical_and(is_short, has_rest)
            yield e.logical_and(is_short, e.greater_equal(rows, lanes))


def _wait_for_each_other(sums: Sequence[Operation]) -> bool:
    """Whether a sum of a row needs another one of the same row, as a variance needs the mean."""
    return any(other is not each and other in in_order([each]) for each in sums for other in sums)


def _near_tensors(ops: Sequence[Operation], target: Target) -> Iterator[_Version]:
    """The version for tensors in the L2 cache: no row of a table is requested ahead, and rows that
    are summed are read in pieces."""
    far = dict(pair for op in ops if isinstance(op, ComputeOp) for pair in _far(op, target))
    if far:
        most = target.cache_bytes(2)
        fit = [
            e.less_equal(
                reduce(e.multiply, (e.cast("int64", n) for n in shape)) * tensor.dtype.itemsize,
                most,
            )
            for tensor, shape in far.items()
        ]
        names = " and ".join(each.name for each in far)
        yield _Version(f"small {names}", reduce(e.logical_and, fit), ({},), is_near=True,
                       made_for="tensors in the L2 cache")  # fmt: skip


def _far(op: ComputeOp, target: Target) -> Iterator[tuple[Tensor, Sequence[PrimExpr]]]:
    """The tensors of symbolic size that a stage reads otherwise where they come from beyond the L2
    cache; of each, the shape of the part that the cache would hold: a table whose rows data choose,
    or one matrix of a batch whose rows are summed."""
    for each in gathered(op, target):
        if bytes_of(each) is None:
            yield each, each.shape
    if op.reduce_axis and runs_in_columns(op, target):
        shape = [domain_of(axis).extent for axis in (*op.reduce_axis, op.axis[-1])]
        for each in streamed(op, target):
            if bytes_of(each) is None:
                yield each, shape


def _wants_some(contraction: Contraction) -> bool:
    """Whether a contraction has rows. Products of gathered rows have one schedule for all sizes:
    their checks take long to build."""
    return bool(contraction.rows) and not (contraction.a.is_gathered or contraction.b.is_gathered)


def _is_image(contraction: Contraction) -> bool:
    """Whether the columns are several axes of a factor, the last one side by side."""
    return len(contraction.columns) > 1 and contraction.b.along(contraction.column) == 1


def _images_as_they_lie(
    extents: Sequence[Var], images: Sequence[Contraction]
) -> Iterator[_Version]:
    """The version for images of several axes of columns."""
    sizes = _sizes_of_images(extents, images)
    lines = dict.fromkeys(line for each in images for line in _lines_of_places(each))
    if any(map(_has_symbolic_channels, images)):
        yield _Version("images", e.const(True), sizes)
    elif lines:
        long = reduce(e.logical_and, (e.less_equal(_LINE, extent) for extent in lines))
        yield _Version(f"lines of {_LINE} or more", long, sizes)


def _lines_of_places(image: Contraction) -> list[Var]:
    """The symbolic number of places of a line of an image that is read as it lies, without windows.
    Long lines are computed as columns; of short ones, channels fill vectors better."""
    extent = domain_of(image.column).extent
    return [extent] if isinstance(extent, Var) and not reads_windows(image.op, image.b.load) else []


def _has_symbolic_channels(image: Contraction) -> bool:
    """Whether the size of an image is symbolic, and the numbers of its channels aren't all known,
    which decide whether channels or places are the columns of tiles."""
    op, b = image.op, image.b
    columns = {axis for axis in op.axis if axis not in image.rows and b.reads(axis)}
    channels = {*op.axis, *op.reduce_axis} - columns
    return all(any(extent_of(axis) is None for axis in axes) for axes in (columns, channels))


def _has_windows(contraction: Contraction) -> bool:
    """Whether the columns' factor is read through windows, or not all of its elements are. All are
    read at the quotients of an axis."""
    axes = (*contraction.op.axis, *contraction.op.reduce_axis)
    single = {axis.var: e.const(0, axis.var.dtype) for axis in axes if extent_of(axis) == 1}
    indices = [substitute(index, single) for index in contraction.b.load.indices]
    indices = [Analyzer().simplify(index) for index in indices]
    indices = [each.a if isinstance(each, e.FloorDiv) else each for each in indices]
    return not reads_tensors(*indices) and not all(isinstance(each, Var) for each in indices)


def _symbolic_extents(ops: Iterable[Operation]) -> list[Var]:
    """The variables that are dimensions of a program's inputs."""
    dims = (dim for op in ops if isinstance(op, PlaceholderOp) for dim in op.shape)
    return [*dict.fromkeys(dim for dim in dims if isinstance(dim, Var))]


def _rows(contractions: Sequence[Contraction]) -> Var | None:
    """The symbolic number of rows of products of matrices, which is the extent of no other axis;
    None where several axes are columns, as those of an image."""
    rows, others = list[PrimExpr](), list[PrimExpr]()
    for each in contractions:
        if len(each.columns) != 1:
            return None
        for axis in root_axes(each.op):
            (rows if axis in each.rows else others).append(domain_of(axis).extent)
    symbolic = [*dict.fromkeys(extent for extent in rows if isinstance(extent, Var))]
    if len(symbolic) != 1 or any(extent is symbolic[0] for extent in others):
        return None
    return symbolic[0]
