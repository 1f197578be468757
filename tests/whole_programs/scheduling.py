"""Random schedules through the public face: what is refused is left out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Any

import minitvm as tvm
from minitvm import te
from tests.whole_programs.description import Program

FACTORS = [1, 2, 3, 4, 5, 7, 8, 16]
PRAGMAS = [("auto_unroll_max_step", 16), ("unroll_explicit", True), ("parallel_launch_point", None)]


def schedule_randomly(s: Any, random: Random, steps: int, program: Program) -> None:
    """Applies some primitives to a schedule of a program."""
    for _ in range(steps):
        step = random.choice(_STEPS)
        try:
            if step is _transform_layout:
                step(s, random, program.output_stages)
            else:
                step(s, random)
        except tvm.CompileError:
            continue


def specialize_randomly(
    s: Any, random: Random, steps: int, program: Program, names: Mapping[str, Any]
) -> None:
    """Gives a schedule some versions, each with primitives of its own."""
    sizes = {names[name]: values for name, values in program.sizes}
    for _ in range(random.randint(1, 3) if sizes else 0):
        version = te.create_schedule(list(dict.fromkeys(t.op for t in names["outputs"])))
        schedule_randomly(version, random, random.randint(0, steps), program)
        conditions = [_condition(random, sizes) for _ in range(random.choice([1, 1, 2]))]
        try:
            s.specialize(te.all(*conditions), version)
        except tvm.CompileError:
            continue


def _condition(random: Random, sizes: Mapping[Any, tuple[int, ...]]) -> Any:
    size, other = random.choice([*sizes]), random.choice([*sizes])
    value = random.choice(sizes[size]) + random.choice([0, 0, -1, 1])
    return random.choice(
        [
            size % random.choice(FACTORS) == 0, size == value, size >= value, size < value,
            size <= other, size != value, size + other > value, size * other < value * value,
        ]
    )  # fmt: skip


def _stages(s: Any) -> list[Any]:
    return [each for each in s.stages if isinstance(each.op, te.ComputeOp)]


def _stage(s: Any, random: Random) -> Any:
    return random.choice(_stages(s) or s.stages)


def _axes(stage: Any) -> list[Any]:
    """The axes of the elements, which inputs, scans and loops by hand don't have."""
    return list(getattr(stage.op, "axis", ()))


def _loop(stage: Any, random: Random) -> Any:
    if not stage.leaf_iter_vars:
        raise tvm.CompileError("no loop")
    return random.choice(stage.leaf_iter_vars)


def _split(s: Any, random: Random) -> None:
    stage = _stage(s, random)
    if len(stage.leaf_iter_vars) < 8:
        how = random.choice(["factor", "factor", "nparts"])
        stage.split(_loop(stage, random), **{how: random.choice(FACTORS)})


def _tile(s: Any, random: Random) -> None:
    stage = _stage(s, random)
    if 2 <= len(stage.leaf_iter_vars) < 7:
        a, b = random.sample(list(stage.leaf_iter_vars), 2)
        stage.tile(a, b, random.choice(FACTORS), random.choice(FACTORS))


def _fuse(s: Any, random: Random) -> None:
    stage = _stage(s, random)
    loops = stage.leaf_iter_vars
    if len(loops) >= 2:
        i = random.randrange(len(loops) - 1)
        stage.fuse(loops[i], loops[i + 1])


def _reorder(s: Any, random: Random) -> None:
    stage = _stage(s, random)
    loops = list(stage.leaf_iter_vars)
    random.shuffle(loops)
    stage.reorder(*loops)


def _kind(s: Any, random: Random) -> None:
    stage = _stage(s, random)
    loop = _loop(stage, random)
    getattr(stage, random.choice(["vectorize", "unroll", "parallel"]))(loop)


def _vectorize(s: Any, random: Random) -> None:
    stage = _stage(s, random)
    if not stage.leaf_iter_vars:
        return
    inner = stage.leaf_iter_vars[-1]
    if random.random() < 0.3:  # lanes of tiles that they needn't divide
        _, inner = stage.split(inner, factor=random.choice([*FACTORS, 13, 20]))
    _, inner = stage.split(inner, factor=random.choice([2, 4, 8, 16]))
    stage.vectorize(inner)


def _inline(s: Any, random: Random) -> None:
    _stage(s, random).compute_inline()


def _compute_at(s: Any, random: Random) -> None:
    stage = _stage(s, random)
    readers = s.readers(stage)
    if readers:
        reader = random.choice(readers)
        stage.compute_at(reader, _loop(reader, random))


def _compute_root(s: Any, random: Random) -> None:
    _stage(s, random).compute_root()


def _tensor(s: Any, random: Random) -> tuple[Any, Any]:
    stage = random.choice(s.stages)
    return random.choice(list(stage.op.outputs)), stage


def _cache_read(s: Any, random: Random) -> None:
    tensor, stage = _tensor(s, random)
    readers = [each.op for each in s.readers(stage) if tensor in each.op.input_tensors]
    if readers and len(s.stages) < 12:
        chosen = readers if random.random() < 0.6 else [random.choice(readers)]
        s.cache_read(tensor, random.choice(["local", "global"]), chosen)


def _cache_write(s: Any, random: Random) -> None:
    if len(s.stages) < 12:
        stage = _stage(s, random)
        s.cache_write(list(stage.op.outputs), random.choice(["local", "global"]))


def _rfactor(s: Any, random: Random) -> None:
    able = [
        (stage, axis)
        for stage in _stages(s)
        for axis in stage.leaf_iter_vars
        if axis.iter_type == 2  # one that is reduced
    ]
    if able and len(s.stages) < 12:
        stage, axis = random.choice(able)
        s.rfactor(stage.op.output(0), axis, random.choice([0, 0, -1]))


def _transform_layout(s: Any, random: Random, kept: Collection[str]) -> None:
    stage = _stage(s, random)
    if stage.op.name in kept:  # an argument would have another shape
        return
    block = random.choice([1, 2, 3, 4])
    if _axes(stage) and random.random() < 0.7:
        stage.transform_layout(lambda *i: [i[-1] // block, *i[:-1], i[-1] % block])
    else:
        stage.transform_layout(lambda *i: list(reversed(i)))


def _storage(s: Any, random: Random) -> None:
    stage = _stage(s, random)
    match random.choice(["scope", "align", "twice"]):
        case "scope":
            stage.set_scope(random.choice(["local", "global"]))
        case "align":
            if axes := _axes(stage):
                axis = random.choice(axes)
                stage.storage_align(axis, random.choice([1, 4, 8]), random.choice([0, 1]))
        case "twice":
            stage.double_buffer()


def _root(s: Any, random: Random) -> tuple[Any, Any]:
    """A stage and one of its loops."""
    stage = _stage(s, random)
    return stage, _loop(stage, random)


def _compute_with(s: Any, random: Random) -> None:
    stage = _stage(s, random)
    other, axis = _root(s, random)
    stage.compute_with(other, axis)


def _accumulate(s: Any, random: Random) -> None:
    stage = _stage(s, random)
    if axes := _axes(stage):
        stage.accumulate(random.choice(axes))


def _request(s: Any, random: Random) -> None:
    stage, axis = _root(s, random)
    tensors = [*stage.op.input_tensors, *stage.op.outputs]
    around = [*_around(stage, axis)]
    of = random.choice(around) if around and random.random() < 0.5 else None
    stage.prefetch(random.choice(tensors), axis, random.choice([0, 1, 2, 8]), of=of)


def _around(stage: Any, axis: Any) -> list[Any]:
    """The loops around a loop of a stage."""
    loops = list(stage.leaf_iter_vars)
    outer = loops[: loops.index(axis)]
    place = stage.attach_stage
    return (
        outer if place is None else [*_around(place, stage.attach_ivar), stage.attach_ivar, *outer]
    )


def _pragma(s: Any, random: Random) -> None:
    stage, axis = _root(s, random)
    stage.pragma(axis, *random.choice(PRAGMAS))


def _simplify(s: Any, random: Random) -> None:
    _stage(s, random).simplify()


def _cache_access(s: Any, random: Random) -> None:
    tensor, stage = _tensor(s, random)
    readers = [each.op for each in s.readers(stage) if tensor in each.op.input_tensors]
    if readers and len(s.stages) < 12:
        scope = random.choice(["local", "global"])
        s.cache_access(tensor, scope, random.choice(readers), sums=random.random() < 0.3)


def _some_axes(stage: Any, random: Random) -> list[Any]:
    loops = list(stage.leaf_iter_vars)
    return random.sample(loops, random.randint(1, len(loops))) if loops else []


def _factor_out(s: Any, random: Random) -> None:
    stage = _stage(s, random)
    s.factor_out(stage.op.output(0), _some_axes(stage, random))


def _omit_zeros(s: Any, random: Random) -> None:
    _stage(s, random).omit_zeros()


def _reassociate(s: Any, random: Random) -> None:
    _stage(s, random).reassociate()


def _hoist(s: Any, random: Random) -> None:
    stage = _stage(s, random)
    s.hoist(stage.op.output(0), _some_axes(stage, random))


def _join(s: Any, random: Random) -> None:
    reductions = [each.op.output(0) for each in s.stages if getattr(each.op, "reduce_axis", ())]
    s.join(random.sample(reductions, min(len(reductions), random.randint(2, 3))))


def _unstack(s: Any, random: Random) -> None:
    stage, axis = _root(s, random)
    s.unstack(stage.op.output(0), axis)


def _find_block(s: Any, random: Random) -> None:
    s.find_block(_stage(s, random).op.output(0), random.randint(1, 9))


def _mirror(s: Any, random: Random) -> None:
    stage = _stage(s, random)
    axes = [*_axes(stage)]
    s.mirror(stage.op.output(0), random.sample(axes, min(2, len(axes))), random.choice([1, 3, 16]))


def _pad_einsum(s: Any, random: Random) -> None:
    stage = _stage(s, random)
    axes = [*_axes(stage), *getattr(stage.op, "reduce_axis", ())]
    s.pad_einsum(stage.op.output(0), [random.choice([1, 2, 4, 8]) for _ in axes])


def _scans(s: Any, random: Random) -> None:
    scans = [each for each in s.stages if isinstance(each.op, te.ScanOp)]
    if scans:
        scan = random.choice(scans).op.output(0)
        random.choice([s.reduce_scan, s.drop_time])(scan)


def _reverse_inline(s: Any, random: Random) -> None:
    s.reverse_compute_inline(_stage(s, random).op.output(0))


_STEPS: list[Callable[..., None]] = [
    _split, _split, _split, _tile, _fuse, _reorder, _reorder, _kind, _kind, _vectorize, _inline,
    _compute_at, _compute_at, _compute_at, _compute_root, _cache_read, _cache_write, _rfactor,
    _transform_layout, _storage, _compute_with, _accumulate, _request, _pragma, _simplify,
    _cache_access, _factor_out, _omit_zeros, _reassociate, _hoist, _unstack, _pad_einsum, _scans,
    _reverse_inline, _find_block, _mirror, _join,
]  # fmt: skip
