"""Contractions of small numbers by dot-product instructions.

As :mod:`tiled`, but a step of the sum is a group of neighbours, which an instruction multiplies and
adds to 32-bit sums; the columns' factor is packed so that groups lie together::

    for each tile of rows:
        for each tile of columns:
            sums[rows, columns] = 0                  # "local": vector registers
            for each group of k:
                sums[i, :] += dot_product(A[i, group], panels[j // columns, group, :])
            C[...] = sums
"""

from __future__ import annotations

from typing import Any, cast

from minitvm.auto_scheduler.contraction import Contraction, extent_of
from minitvm.auto_scheduler.sums import sums_in_registers
from minitvm.auto_scheduler.tiled import write_copy
from minitvm.auto_scheduler.tiles import Tile
from minitvm.expr import IterVar, ProducerLoad, Var
from minitvm.target import Target
from minitvm.te.dataflow import factors_of
from minitvm.te.dot_product import DotProduct, dot_product, find_dot_product, interleave
from minitvm.te.schedule import Schedule
from minitvm.te.stage import Stage
from minitvm.te.tensor import ComputeOp, Tensor

_LEAST_ROWS = 4  # that use what is packed
_WIDER = {"int8": "int16", "uint8": "int16", "int16": "int16"}
_MOST_VECTORS = 4  # of a tile's row
_LATENCY = 8  # products that are under way at once


def instruction_for(
    contraction: Contraction, target: Target, ahead: bool = False
) -> DotProduct | None:
    """The instruction that a contraction is computed by, or None. Where the columns' factor is
    packed `ahead` of the call, a single row is enough.

    >>> from minitvm import te
    >>> from minitvm.auto_scheduler.contraction import contraction_of
    >>> A, B = te.placeholder((8, 64), "uint8"), te.placeholder((64, 16), "int8")
    >>> k = te.reduce_axis((0, 64), name="k")
    >>> C = te.compute((8, 16), lambda i, j: te.sum(
    ...     A[i, k].astype("int32") * B[k, j].astype("int32"), axis=k))
    >>> znver4 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4")
    >>> instruction_for(contraction_of(C.op), znver4).name
    'vpdpbusd_512'
    """
    op = contraction.op
    if not factors_of(op) or len(op.reduce_axis) != 1 or not contraction.rows:
        return None
    a, b = contraction.a, contraction.b
    (k,) = op.reduce_axis
    if a.tensor is b.tensor or not (a.reads(k) and b.reads(k)):
        return None
    features = target.features
    dtypes = (str(a.tensor.dtype), str(b.tensor.dtype), str(op.output(0).dtype))
    found = find_dot_product(*dtypes, features) or find_dot_product(
        _WIDER.get(dtypes[0], ""), _WIDER.get(dtypes[1], ""), dtypes[2], features
    )
    rows, columns, depth = map(extent_of, (contraction.rows[-1], contraction.column, k))
    if found is None or columns is None or depth is None:
        return None
    if rows is not None and rows < _LEAST_ROWS and not ahead:
        return None
    return found if columns >= found.lanes and depth >= found.group else None


def write_dotted(
    s: Schedule, contraction: Contraction, last: Tensor, by: DotProduct, target: Target, ahead: bool
) -> None:
    """Writes the schedule of a contraction by an instruction, and of the stage of `last`, which
    takes its sums. `ahead`: the columns' factor is an argument that is packed before the call."""
    op = contraction.op
    row = contraction.rows[-1]
    places = (op.axis.index(row), len(op.axis) - 1)
    (k,) = op.reduce_axis
    depth = _depth(by, cast(int, extent_of(k))) if contraction.a.along(k) == 1 else 1
    tile = _tile(contraction, row, by, depth, target)

    sums = sums_in_registers(s, contraction, last)
    multiples = [1] * len(op.axis)
    multiples[places[1]] = tile.columns
    if extent_of(row) is not None:
        multiples[places[0]] = tile.rows
    loads = factors_of(s[sums].op)
    kept = [by.b if each.producer is contraction.b.tensor else by.kept_a for each in loads]
    known = {stage.op for stage in s.stages}
    padded, *factors = s.pad_einsum(sums, [*multiples, depth * by.group], kept)
    for load, factor in zip(loads, factors, strict=True):
        is_b = load.producer is contraction.b.tensor
        place, width = (places[1], tile.columns) if is_b else (places[0], tile.rows)
        in_order = _write_factor(s, padded, factor, load, place, width, by, ahead and is_b)
        if factor.op in known:
            continue
        if in_order:
            write_copy(s[factor], target)
        else:
            s[factor].compute_inline()
    _write_tiles(s[last], s[padded], places, tile, by, depth, columns_outside=ahead)


def _depth(by: DotProduct, extent: int) -> int:
    """How many groups are summed at once: about what is worth it, with the least padding."""
    groups = -(-extent // by.group)
    if groups < by.depth:
        return 1
    return min(range(by.depth, 2 * by.depth), key=lambda depth: -groups % depth)


def _tile(
    contraction: Contraction, row: IterVar, by: DotProduct, depth: int, target: Target
) -> Tile:
    """The tile that takes the fewest instructions, all of one size: what pads the last one is
    computed as well."""
    rows, columns = extent_of(row) or 1 << 12, cast(int, extent_of(contraction.column))
    best, least = Tile(1, by.lanes), float("inf")
    taken = 1 if by.form == "offset" else 0
    for vectors in range(1, min(_MOST_VECTORS, columns // by.lanes) + 1):
        # Next to the sums there are a row's group, and of each column its vectors and what is taken
        # away from the sums.
        others = 2 + vectors * (depth + taken)
        limit = (target.vector_registers - others) // vectors
        for tile_rows in range(1, min(limit, rows) + 1):
            tiles = -(-rows // tile_rows) * -(-columns // (vectors * by.lanes))
            products = tile_rows * vectors
            cost = tiles * (max(products, tile_rows + 2 * vectors, _LATENCY) + taken * vectors)
            if cost < least:
                best, least = Tile(tile_rows, vectors * by.lanes), cost
    return best


def _write_tiles(
    stage: Stage,
    inner: Stage,
    places: tuple[int, int],
    tile: Tile,
    by: DotProduct,
    depth: int,
    columns_outside: bool,
) -> None:
    """The loops over tiles, and over groups in a tile."""
    assert isinstance(stage.op, ComputeOp) and isinstance(inner.op, ComputeOp)
    axes = stage.op.axis
    row, column = places
    outer = [axis for i, axis in enumerate(axes) if i not in places]
    row_outer, row_inner = stage.split(axes[row], factor=tile.rows)
    column_outer, column_inner = stage.split(axes[column], factor=tile.columns)
    tiles = (column_outer, row_outer) if columns_outside else (row_outer, column_outer)
    stage.reorder(*outer, *tiles, row_inner, column_inner)
    stage.unroll(row_inner)
    stage.vectorize(column_inner)
    stage.parallel((*outer, *tiles)[0])

    inner.compute_at(stage, tiles[-1])
    axes = inner.op.axis
    (k,) = inner.op.reduce_axis
    rest = [axis for i, axis in enumerate(axes) if i not in places]
    groups, group = inner.split(k, factor=depth * by.group)
    inner.reorder(*rest, groups, axes[row], axes[column], group)
    inner.unroll(axes[row])
    inner.tensorize(axes[column], dot_product(by.name, tile.columns, depth))


def _write_factor(
    s: Schedule,
    sums: Tensor,
    factor: Tensor,
    load: ProducerLoad,
    place: int,
    width: int,
    by: DotProduct,
    ahead: bool,
) -> bool:
    """Brings groups of a factor, which `load` reads, together. Whether it is read in vectors.

    Rows that have them together stay as they are; all else goes into panels of `width` along the
    axis `place` of the sums, where ``panels[..., j // width, k // group, c]`` holds the element of
    ``c = j % width * group + k % group``.
    """
    op = s[sums].op
    assert isinstance(op, ComputeOp)
    dimension = {cast(Var, index): i for i, index in enumerate(load.indices)}
    k, j = dimension[op.reduce_axis[0].var], dimension[op.axis[place].var]
    last = factor.ndim - 1
    if k == last and place != len(op.axis) - 1:
        return True

    def layout(*indices: Any) -> list[Any]:
        first = [index for i, index in enumerate(indices) if i not in (k, j)]
        inner = indices[j] % width * by.group + indices[k] % by.group
        return [*first, indices[j] // width, indices[k] // by.group, inner]

    panels = s[s.cache_read(factor, "global", [sums])]
    loops = panels.transform_layout(layout)
    panels.parallel(loops[0])
    if ahead:
        panels.compute_ahead()
    if (k, j) == (last - 1, last):
        panels.tensorize(loops[-1], interleave(str(factor.dtype), by.group, width))
        return True
    _, group = panels.split(loops[-1], factor=by.group)
    panels.vectorize(group)
    return False
