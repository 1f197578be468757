"""Contractions of narrow numbers by instructions: dot products, and products of small matrices.

The loops are those of :mod:`tiled`, but an instruction multiplies a group of neighbouring steps
along the last axis of the sum, and adds the products to 32-bit sums. The columns' factor is packed
so that groups lie together::

    for each tile of rows:
        for each tile of columns:
            sums[rows, columns] = 0                  # "local": vector registers
            for each step of the other axes of the sum, for each group of k:
                sums[i, :] += dot_product(A[i, group], panels[j // columns, group, :])
            C[...] = sums

An intrinsic of matrix products computes a tile over all of k, in tile registers or in vectors of
two rows and columns. Where all tiles are whole they are stored to C itself.

An instruction takes groups of steps that are neighbours. As rows a factor may lie so in memory; as
columns it is packed. Where the columns' factor lies so too, as the weights ``B[j, k]`` of a linear
layer do, the roles of the factors may be exchanged: ``B`` is read as rows, the few rows of ``A``
are packed, and a tile of sums is transposed on its way to ``C`` (:func:`_roles`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import lcm, prod
from typing import TypeAlias, TypeVar, cast

from minitvm.arith.prover import Prover
from minitvm.auto_scheduler.choice import choose, choose_blocks, choose_tile
from minitvm.auto_scheduler.contraction import (
    Contraction,
    Factor,
    contraction_of,
    extent_of,
    only_moves,
)
from minitvm.auto_scheduler.cost import (
    Blocks,
    Nest,
    Tile,
    Unit,
    copy_cycles,
    copy_cycles_apart,
    cost,
    l1_way_bytes,
    layout_cycles,
    lines_kept,
    transfer_cycles,
    waiting_for_panels,
)
from minitvm.auto_scheduler.loops import (
    Places,
    Tiles,
    compute_of,
    lie_in_order,
    nest_of,
    places_of,
    run_in_vectors,
    run_outermost,
    sums_in_registers,
    write_tiles,
)
from minitvm.auto_scheduler.packing import (
    Place,
    in_panels,
    line_of_digits,
    make_copy,
    place_copy,
    tell_apart,
)
from minitvm.auto_scheduler.some_sizes import USUAL, is_version, may_vary
from minitvm.auto_scheduler.sums import Sums
from minitvm.auto_scheduler.terms import MULTIPLY_ADD
from minitvm.auto_scheduler.tiles import ALIKE, best_tile, blocks_of, strip_of, tiles_of, vectors
from minitvm.runtime.dtype import INT8, INT32, DType
from minitvm.runtime.host import CACHE_LINE
from minitvm.target import Target
from minitvm.te.intrinsics.dot_product import (
    DOT_PRODUCTS,
    DotProduct,
    dot_product,
    interleave,
    interleave_rows,
)
from minitvm.te.intrinsics.instruction import find_instruction
from minitvm.te.intrinsics.matrix_product import MATRIX_PRODUCTS, MatrixProduct, matrix_product
from minitvm.te.schedules.operation_graph import multiplied_reads
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, Tensor, domain_of
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Var

_LEAST_ROWS = 4  # that must use a packed factor
_OFFSET = {"int8": "uint8"}  # kept with 128 added
_WIDER = {"int8": "int16", "uint8": "int16", "int16": "int16"}
_PANEL = 8  # columns that are copied into a panel as one vector
_TOGETHER = 16  # steps of the sum that are brought together at once
_T = TypeVar("_T")
_Instruction: TypeAlias = DotProduct | MatrixProduct
_MOST_LANES = 16  # of vectors that are transposed
_SQUARES = (16, 8, 4)  # groups of a side
_LONG_SUM = 32  # groups: three more are a tenth at most
_PADDED = 127  # an extent that is padded: a multiple of no tile, and nearly one


def _size_of(axis: IterVar) -> int | None:
    """The extent of an axis, None if it is symbolic. A version pads its tiles: it is known."""
    known = extent_of(axis)
    return _PADDED if known is None and is_version() else known


def _is_narrow_product(contraction: Contraction) -> bool:
    """Whether each step of one sum multiplies an element of each of two tensors."""
    op, a, b = contraction.op, contraction.a, contraction.b
    if not multiplied_reads(op) or not contraction.rows:
        return False
    is_last = op.axis[-1] in (contraction.column, contraction.rows[-1])
    return (
        is_last
        and a.tensor is not b.tensor
        and all(a.reads(k) and b.reads(k) for k in op.reduce_axis)
    )


def dot_product_for(
    contraction: Contraction, target: Target, ahead: bool = False
) -> DotProduct | None:
    """The instruction for a contraction, or None. Where the columns' factor is packed `ahead` of
    the call, a single row is enough.

    >>> from minitvm import te
    >>> from minitvm.auto_scheduler.contraction import contraction_of
    >>> A, B = te.placeholder((8, 64), "uint8"), te.placeholder((64, 16), "int8")
    >>> k = te.reduce_axis((0, 64), name="k")
    >>> C = te.compute((8, 16), lambda i, j: te.sum(
    ...     A[i, k].astype("int32") * B[k, j].astype("int32"), axis=k))
    >>> znver4 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4")
    >>> dot_product_for(contraction_of(C.op), znver4).name
    'vpdpbusd_512'
    """
    if not _is_narrow_product(contraction):
        return None
    found = _dot_product_of(contraction, target)
    if found is None:
        return None
    k = contraction.op.reduce_axis[-1]
    rows, columns, depth = map(extent_of, (contraction.rows[-1], contraction.column, k))
    if rows is not None and rows < _LEAST_ROWS and not ahead:
        return None
    is_wide = columns is None or columns >= found.lanes
    return found if is_wide and (depth is None or depth >= found.group) else None


def has_instruction(contraction: Contraction, target: Target) -> bool:
    """Whether the target has an instruction for a contraction, if its sizes fit."""
    return multiplies_dtypes(contraction, target) and _is_narrow_product(contraction)


def multiplies_dtypes(contraction: Contraction, target: Target) -> bool:
    """Whether the target has an instruction for the dtypes of a contraction."""
    a, b, total = contraction.a.tensor, contraction.b.tensor, contraction.op.output(0)
    dtypes = (str(a.dtype), str(b.dtype), str(total.dtype))
    found = find_instruction(MATRIX_PRODUCTS, *dtypes, target.features)
    return bool(found or _dot_product_of(contraction, target))


def _dot_product_of(contraction: Contraction, target: Target) -> DotProduct | None:
    """The instruction for the dtypes of a contraction, or for those of copies of its factors."""
    mine, other = str(contraction.a.tensor.dtype), str(contraction.b.tensor.dtype)
    ways = [(mine, other), (_OFFSET.get(mine), other), (_WIDER.get(mine), _WIDER.get(other))]
    total = str(contraction.op.output(0).dtype)
    found = (find_instruction(DOT_PRODUCTS, a, b, total, target.features)
             for a, b in ways if a is not None and b is not None)  # fmt: skip
    return next(filter(None, found), None)


def matrix_product_for(contraction: Contraction, target: Target) -> MatrixProduct | None:
    """The instruction for a contraction, or None: where the target has none, or most of the
    products would be padding. Fewer rows than it takes are columns, the roles of the factors
    exchanged.

    >>> from minitvm import te
    >>> from minitvm.auto_scheduler.contraction import contraction_of
    >>> A, B = te.placeholder((32, 64), "uint8"), te.placeholder((64, 32), "int8")
    >>> k = te.reduce_axis((0, 64), name="k")
    >>> C = te.compute((32, 32), lambda i, j: te.sum(
    ...     A[i, k].astype("int32") * B[k, j].astype("int32"), axis=k))
    >>> sapphirerapids = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids")
    >>> matrix_product_for(contraction_of(C.op), sapphirerapids).name
    'tdpbusd'
    """
    found = _matrix_product_of(contraction, target)
    if found is None:
        return None
    rows, columns, depth = _sizes(contraction)
    if not takes_rows(contraction):
        can_be_columns = rows > 1 and columns >= found.rows
        return found if can_be_columns and len(_roles(found, contraction, target)) > 1 else None
    tile = best_tile(_nest(contraction, found, target), target)
    computed = (
        _rounded_up(rows, tile.rows)
        * _rounded_up(_rounded_up(columns, tile.columns), found.columns)
        * _rounded_up(depth, found.depth)
    )
    return found if rows * columns * depth >= found.share * computed else None


def _matrix_product_of(contraction: Contraction, target: Target) -> MatrixProduct | None:
    """The instruction for a contraction, whatever part of the products is padding."""
    op, a, b = contraction.op, contraction.a, contraction.b
    is_plane = len(op.reduce_axis) == 1 and {*_plane(contraction)} == {*op.axis[-2:]}
    if not is_plane or not _is_narrow_product(contraction):
        return None
    dtypes = (str(a.tensor.dtype), str(b.tensor.dtype), str(op.output(0).dtype))
    found = find_instruction(MATRIX_PRODUCTS, *dtypes, target.features)
    if found is None or None in map(_size_of, (*op.axis[-2:], *op.reduce_axis)):
        return None
    return found if any(tiles_of(_nest(contraction, found, target), target)) else None


def takes_rows(contraction: Contraction) -> bool:
    """Whether a contraction has as many rows as instructions for matrices take."""
    rows, *_ = _sizes(contraction)
    return rows >= _LEAST_ROWS


def write_by_instruction(given: Sums, by: _Instruction) -> list[Stage]:
    """Writes the schedule of a contraction by an instruction, and of the stage that reads its sums.
    Stages that only move elements to a factor are part of its padded copy, or are computed at its
    place, and are returned then."""
    s, target, moved, last = given.schedule, given.target, given.moved, given.last.op.output(0)
    ahead = given.contraction.b.tensor if given.is_packed_ahead else None
    by, contraction = _best_roles(by, given.contraction, target, ahead)
    op, places = contraction.op, places_of(contraction)
    nest, tile, blocks = _decision(contraction, by, target, ahead)
    choose_tile(s, contraction, tile, nest.unit, target, by.name)
    choose_blocks(s, contraction, replace(blocks, strip=None))

    known, turned = {stage.op for stage in s.stages}, _is_exchanged(contraction)
    padding = _padding(contraction, tile, nest.unit.depth)
    sums, loads, factors = _sums_of_tile(s, contraction, by, padding, last)
    excess, order = factors[2:], _columns_last(contraction, range(len(op.axis)))
    rows, others = (tuple(map(order.index, each)) for each in (places.rows, places.others))
    own = Places(rows, others, len(order) - 1)
    stage = s[last]
    tiles = write_tiles(stage, places, tile, blocks, None)
    _write_elements(stage, tiles, by, turned=turned, are_sums=s[sums] is stage)
    task, placed = run_outermost(stage, tiles), list[Stage]()
    # All tasks share a copy that fits the caches.
    is_near = target.level_of(_bytes_of(contraction, contraction.a)) < 4
    shares_rows = blocks.columns is not None and is_near and not stage.time
    for load, factor in zip(loads, factors[:2], strict=True):
        is_columns = load.producer is contraction.b.tensor
        source = s[cast(Tensor, load.producer)]
        at: Place = task if is_columns else (stage, tiles.strip)
        if load.producer is ahead:
            at = "ahead"
        elif not is_columns and source not in moved and shares_rows:
            at = None
        is_padded = factor.op not in known
        if is_columns or isinstance(by, DotProduct):
            place, width = (own.column, tile.columns) if is_columns else (own.rows[-1], tile.rows)
            readers = [sums, *excess] if is_columns else [sums]
            is_read, copied_at = _write_panels(
                s, readers, factor, load, place, width, by.group, at, target
            )
        else:
            is_read, copied_at = _write_rows(s, sums, factor, load, at), at
            if is_read and at != "ahead" and (is_padded or source in moved):
                _lie_apart(s[factor])
        if source in moved and is_padded:
            source.compute_inline()
            s[factor].simplify()
        elif source in moved:
            make_copy(source, at, target)
            placed.append(source)
        if is_padded and (is_read or source in moved):
            make_copy(s[factor], copied_at, target)
        elif is_padded:
            s[factor].compute_inline()
        if at == "ahead" and not is_columns and is_read and isinstance(s[factor].op, ComputeOp):
            tell_apart(s[factor])
            s[factor].compute_ahead()
    if isinstance(by, DotProduct):
        for each in excess:
            _write_excess(s, s[each], tile, by, task, (stage, tiles.loops[-1]))
        s[sums].compute_at(stage, tiles.loops[-1])
        _write_dot_products(s[sums], own, tile, by)
    else:
        _write_matrix_products(s[sums], stage, tiles, tile, by, nest, target)
    return placed


def _evicts_rows(nest: Nest, tile: Tile, target: Target) -> bool:
    """Whether lines of the rows of a tile, as these lie, are in so few sets of the L1 cache that
    most are evicted before the next step reads them."""
    if nest.copies_rows or None in nest.steps:
        return False
    return 2 * lines_kept(nest.row_bytes, l1_way_bytes(target), target.l1_ways) < tile.rows


def _decision(
    contraction: Contraction, by: _Instruction, target: Target, ahead: Tensor | None
) -> tuple[Nest, Tile, Blocks]:
    """The contraction as the model sees it, with the tile and the blocks of the fewest cycles."""
    nest = _nest(contraction, by, target, ahead)
    tile = best_tile(nest, target)
    copied = nest.copies_rows or nest.height % tile.rows > 0
    copied = copied and contraction.a.tensor is not ahead
    blocks = _even_blocks(nest, tile, target, copied=copied)
    columns = _of_whole_lines(contraction, tile, blocks.columns)
    return nest, tile, replace(blocks, columns=columns)


def _write_matrix_products(
    sums: Stage,
    stage: Stage,
    tiles: Tiles,
    tile: Tile,
    by: MatrixProduct,
    nest: Nest,
    target: Target,
) -> None:
    """Lets an instruction compute the sums of a tile: `stage` itself, or a stage in its tiles."""
    depth = _rounded_up(nest.depth, by.depth)
    intrinsic = matrix_product(
        by.name,
        tile.rows,
        tile.columns,
        depth if depth > INT32.max() else None,
        prefetch=by.exact or not _evicts_rows(nest, tile, target),
    )
    if sums is stage:
        assert tiles.row is not None
        stage.tensorize(tiles.row, intrinsic)
        return
    sums.compute_at(stage, tiles.loops[-1])
    sums.tensorize(compute_of(sums).axis[-2], intrinsic)


def _sums_of_tile(
    s: Schedule, contraction: Contraction, by: _Instruction, padding: Sequence[int], last: Tensor
) -> tuple[Tensor, list[ProducerLoad], list[Tensor]]:
    """The stage of the sums, whose columns are its last axis; the reads of its two factors; and the
    factors, perhaps padded copies, with the excess of an offset behind them."""
    op, turned, is_block = contraction.op, _is_exchanged(contraction), isinstance(by, MatrixProduct)
    if is_block and last.op is op and not turned and _is_even(contraction, padding):
        loads = multiplied_reads(op)
        return last, loads, [cast(Tensor, load.producer) for load in loads]
    if not is_block:
        inner = sums_in_registers(s, contraction, last)
    else:
        inner = s.cache_write(last, "global") if last.op is op else op.output(0)
    if turned:
        text = "{a} is read as rows, {b} as columns: sums are transposed on their way to {last}"
        choose(s, "layout", text, a=contraction.a.tensor, b=contraction.b.tensor, last=last)
        s[inner].transform_layout(lambda *at: _columns_last(contraction, at))
        inner = s[inner].op.output(0)
    loads = multiplied_reads(s[inner].op)
    kept = [by.b if each.producer is contraction.b.tensor else by.a for each in loads]
    sums, *factors = s.pad_einsum(inner, padding, kept)
    return sums, loads, factors


def _write_elements(
    stage: Stage, tiles: Tiles, by: _Instruction, *, turned: bool, are_sums: bool
) -> None:
    """Writes the elements of a tile of a stage in vectors: along the rows of tiles that are
    `turned`, whose rows are neighbours. The instruction itself stores elements that are its
    sums."""
    if turned:
        assert tiles.row is not None
        stage.reorder(tiles.column, tiles.row)
        stage.vectorize(tiles.row)
    elif isinstance(by, DotProduct):
        run_in_vectors(stage, tiles)
    elif not are_sums:
        stage.vectorize(tiles.column)


def _write_excess(
    s: Schedule, stage: Stage, tile: Tile, by: DotProduct, task: Place, at: Place
) -> None:
    """Computes, for each column, the excess that an offset in the rows' factor adds, as a row of
    sums."""
    op = compute_of(stage)
    *others, column = op.axis
    *steps, k = op.reduce_axis
    outer, inner = stage.split(column, factor=tile.columns)
    groups, group = stage.split(k, factor=by.group)
    stage.reorder(*others, outer, *steps, groups, inner, group)
    stage.tensorize(inner, dot_product(by.name, tile.columns, 128))
    place_copy(stage, task)
    # A tile reads as many of its elements as it is wide, so it is computed for whole tiles.
    readers = [reader.op for reader in s.readers(stage)]
    part = s[s.cache_read(stage.op.output(0), "local", readers)]
    place_copy(part, at)
    part.vectorize(compute_of(part).axis[-1])


def _write_dot_products(inner: Stage, places: Places, tile: Tile, by: DotProduct) -> None:
    """The loops over groups in a tile."""
    rows, _, column = places.of(inner)
    op = compute_of(inner)
    rest = [axis for axis in op.axis if axis not in (rows[-1], column)]
    *steps, k = op.reduce_axis
    groups, group = inner.split(k, factor=by.group)
    inner.reorder(*rest, *steps, groups, rows[-1], column, group)
    inner.unroll(rows[-1])
    inner.tensorize(column, dot_product(by.name, tile.columns))


# -- The model --


def _nest(
    contraction: Contraction, by: _Instruction, target: Target, ahead: Tensor | None = None
) -> Nest:
    """The contraction as the model sees it. All tiles have one size: the padding of the last tile
    is computed as well. `ahead`: the factor that is copied ahead of the call."""
    sums, terms = DType.of(by.sum), MULTIPLY_ADD
    if isinstance(by, DotProduct):
        unit = replace(vectors(sums, target), columns=by.lanes, depth=by.group)
        terms = replace(terms, temporaries=1)
    else:
        unit = Unit(
            by.rows,
            by.columns,
            by.depth,
            by.registers,
            by.under_way,
            by.cycles or 1 / target.processor.ports,
            by.rows if by.rows * by.columns > target.lanes(sums) else 1,
            _PANEL,
            is_exact=by.exact,
        )
    packed = DType.of(by.a), DType.of(by.b)
    made = nest_of(contraction, target, *packed, unit=unit, terms=terms, pads=True)
    *steps, last = map(_size_of, contraction.op.reduce_axis)
    is_moved, a_bytes = only_moves(contraction.a.tensor.op), made.a_bytes
    if is_moved and a_bytes is not None:  # tiles read a strip of it, which is made in the caches
        a_bytes = min(a_bytes, target.cache_bytes(2) // 8)
    depth, are_ahead = last and _rounded_up(last, unit.depth), contraction.a.tensor is ahead
    made = replace(
        made,
        rows=tuple(map(_size_of, contraction.rows)),
        columns=_size_of(contraction.column),
        steps=(*steps, depth),
        a_bytes=a_bytes,
        copies_rows=are_ahead or is_moved or _copies_rows(contraction, by),
        transposes=_is_exchanged(contraction),
    )
    if are_ahead and depth is not None:
        made = replace(made, step_bytes=made.itemsize, row_bytes=made.itemsize * depth)
    return made


def cycles_by_instruction(contraction: Contraction, target: Target) -> float | None:
    """The cycles of a contraction by an instruction; None where no instruction computes it."""
    by = matrix_product_for(contraction, target) or dot_product_for(contraction, target)
    return None if by is None else cycles_by(by, contraction, target)


def cycles_by(by: _Instruction, contraction: Contraction, target: Target) -> float:
    """The cycles of a contraction by an instruction, with the copies of its factors."""
    return min(_cycles(*each, target) for each in _roles(by, contraction, target))


def lies_in_groups(contraction: Contraction) -> bool:
    """Whether neither factor is transposed for instructions: steps are neighbours in the rows'
    factor, and columns in the columns'."""
    a, b, k = contraction.a, contraction.b, contraction.op.reduce_axis[-1]
    return a.along(k) == 1 == b.along(contraction.column)


def _roles(
    by: _Instruction, contraction: Contraction, target: Target, ahead: Tensor | None = None
) -> list[tuple[_Instruction, Contraction]]:
    """A contraction and its instruction; and with the roles of the factors exchanged. Rows are read
    as they lie, if their steps are neighbours, and columns copied: of weights ``W[j, k]`` and few
    rows, the weights had better be the rows."""
    found, plane = [(by, contraction)], _plane(contraction)
    # Panels of many rows are better read than packed for each strip.
    is_free = {*plane} == {*contraction.op.axis[-2:]} and not may_vary(plane[0])
    lies = lies_in_groups(contraction) if ahead is None else isinstance(by, DotProduct)
    if is_free and not lies:
        other = contraction_of(contraction.op, plane[0])
        find = _matrix_product_of if isinstance(by, MatrixProduct) else dot_product_for
        its = None if other is None else find(other, target)
        if other is not None and its is not None:
            found.append((its, other))
    return found


def _best_roles(
    by: _Instruction, contraction: Contraction, target: Target, ahead: Tensor | None
) -> tuple[_Instruction, Contraction]:
    """The roles of the factors that take the fewest cycles; those of the program, if they are
    alike."""
    itself, *exchanged = _roles(by, contraction, target, ahead)

    def cycles(each: tuple[_Instruction, Contraction]) -> float:
        return _cycles(each[0], each[1], target, ahead) * (1 if each is itself else ALIKE)

    return min((itself, *exchanged), key=cycles)


def _cycles(
    by: _Instruction, contraction: Contraction, target: Target, ahead: Tensor | None = None
) -> float:
    """The cycles of a contraction by an instruction, with the copies, in these roles. That of the
    factor `ahead` is made ahead of the call."""
    nest = _nest(contraction, by, target, ahead)
    tile = best_tile(nest, target)
    a, b, k = contraction.a, contraction.b, contraction.op.reduce_axis[-1]
    size = _bytes_of(contraction, b)
    if b.tensor is ahead:
        copying = waiting_for_panels(size, target)
    elif b.along(k) == 1:  # squares of groups
        copying = layout_cycles(size, size, target, in_rows=False)
        copying += transfer_cycles(size, size, target)
    else:
        copying = _copying(contraction, b, contraction.column)
    if a.tensor is not ahead and _copies_rows(contraction, by) and not only_moves(a.tensor.op):
        copying += _copying(contraction, a, k, contraction.rows[-1])
    blocks = _even_blocks(nest, tile, target, copied=nest.copies_rows and a.tensor is not ahead)
    return cost(nest, tile, blocks, target) + copying


def _copying(contraction: Contraction, factor: Factor, *lines: IterVar) -> float:
    """The cycles in which a factor is copied, in vectors if elements are neighbours along one of
    the axes `lines`."""
    size = _bytes_of(contraction, factor)
    if any(factor.along(axis) == 1 for axis in lines):
        return copy_cycles(size)
    return copy_cycles_apart(size // factor.tensor.dtype.itemsize)


def _bytes_of(contraction: Contraction, factor: Factor) -> int:
    """The size of a factor; symbolic extents are of the size that stands for them."""
    axes = (*contraction.op.axis, *contraction.op.reduce_axis)
    read = (_size_of(axis) or USUAL for axis in axes if factor.reads(axis))
    return prod(read) * factor.tensor.dtype.itemsize


def _copies_rows(contraction: Contraction, by: _Instruction) -> bool:
    """Whether the rows' factor is copied, whatever the tile: into another order or type, or with
    steps of padding."""
    a, k = contraction.a, contraction.op.reduce_axis[-1]
    depth = by.group if isinstance(by, DotProduct) else by.depth
    return (_size_of(k) or 0) % depth > 0 or a.along(k) != 1 or str(a.tensor.dtype) != by.a


def _even_blocks(nest: Nest, tile: Tile, target: Target, *, copied: bool) -> Blocks:
    """Blocks over the whole reduction axis, of whole tiles, divided into equal strips. `copied`:
    the rows' factor is copied."""
    blocks = blocks_of(nest, tile, target, copied=copied, whole=True)
    if blocks.columns is not None:
        whole = max(1, blocks.columns // tile.columns) * tile.columns
        blocks = replace(blocks, columns=whole)
    most = strip_of(nest, tile, nest.depth, target) // tile.rows
    rows = (blocks.rows if len(nest.rows) == 1 else None) or nest.rows[-1]
    if rows is None:
        return replace(blocks, strip=most * tile.rows)
    tiles = -(-rows // tile.rows)
    strip = next(each for each in range(most, 0, -1) if tiles % each == 0)
    return replace(blocks, strip=strip * tile.rows)


def _of_whole_lines(contraction: Contraction, tile: Tile, columns: int | None) -> int | None:
    """The columns of a block: about as many as `columns`, and whole lines of those in which the
    columns' factor is moved. None where such a block would have most of the columns."""
    line = _line_of_moved(contraction.b.tensor)
    if columns is None or line is None:
        return columns
    whole = lcm(line, tile.columns)
    made = -(-columns // whole) * whole
    return made if 2 * made <= (extent_of(contraction.column) or 0) else None


def _padding(contraction: Contraction, tile: Tile, group: int) -> list[int]:
    """The multiples to which the axes are padded, so that all tiles and groups are full; rows of
    unknown extent are not padded."""
    multiple = {contraction.column: tile.columns}
    if _size_of(contraction.rows[-1]) is not None:
        multiple[contraction.rows[-1]] = tile.rows
    axes = _columns_last(contraction, contraction.op.axis)
    steps = [1] * (len(contraction.op.reduce_axis) - 1) + [_together(contraction, group)]
    return [*(multiple.get(axis, 1) for axis in axes), *steps]


def _together(contraction: Contraction, group: int) -> int:
    """The multiple to which the steps are padded. Where the columns' factor lies along them, a copy
    moves squares of groups, the least of which have few: for long sums, that many are worth more
    than the products with padding cost."""
    b, k = contraction.b, contraction.op.reduce_axis[-1]
    groups = -(-(_size_of(k) or 0) // group)
    if b.along(k) == 1 and groups >= _LONG_SUM:
        return group * _SQUARES[-1] if group <= INT32.bits // INT8.bits else group
    return group


def _is_even(contraction: Contraction, padding: Sequence[int]) -> bool:
    """Whether no axis is padded."""
    axes = _columns_last(contraction, contraction.op.axis)
    extents = map(_size_of, (*axes, *contraction.op.reduce_axis))
    return all(
        each == 1 if n is None else n % each == 0 for n, each in zip(extents, padding, strict=True)
    )


def _is_exchanged(contraction: Contraction) -> bool:
    """Whether the rows of tiles are neighbours in the result, and not their columns."""
    return contraction.column is not contraction.op.axis[-1]


def _columns_last(contraction: Contraction, order: Sequence[_T]) -> list[_T]:
    """A sequence with an entry for each data axis, with that of the columns last."""
    *others, row, column = order
    return [*others, column, row] if _is_exchanged(contraction) else [*others, row, column]


def _plane(contraction: Contraction) -> tuple[IterVar, ...]:
    """The axes of the rows and of the columns of tiles."""
    return *contraction.rows[-1:], contraction.column


def _sizes(contraction: Contraction) -> tuple[int, int, int]:
    axes = (*_plane(contraction), *contraction.op.reduce_axis)
    rows, columns, depth = (cast(int, _size_of(axis)) for axis in axes)
    return rows, columns, depth


def _rounded_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


# -- The layout of factors --


def _write_panels(
    s: Schedule,
    readers: Sequence[Tensor],
    factor: Tensor,
    load: ProducerLoad,
    place: int,
    width: int,
    group: int,
    at: Place,
    target: Target,
) -> tuple[bool, Place]:
    """Puts the groups of the factor that `load` reads together in memory. Returns whether a padded
    copy of the factor is read, in vectors, and the place where it is made.

    Rows with their groups together stay as they are. Other factors go into panels of `width` along
    the axis `place` of the sums, where ``panels[..., j // width, ..., k // group, c]`` holds the
    element with ``c = j % width * group + k % group``.
    """
    op = compute_of(s[readers[0]])
    column = op.axis[place]
    dimension = {cast(Var, index): i for i, index in enumerate(load.indices)}
    steps = [dimension[axis.var] for axis in op.reduce_axis]
    k, j, last = steps[-1], dimension[column.var], factor.ndim - 1
    if k == last and column is not op.axis[-1]:
        return True, at

    choose(s, "packing", "{factor} is packed into panels of {width}, groups of {group} together"
           + ", ahead of the call" * (at == "ahead"),
           factor=factor, width=width, group=group)  # fmt: skip
    panels = s[s.cache_read(factor, "global", readers)]
    outside = [i for i in range(factor.ndim) if i not in (*steps, j)]
    loops = in_panels(panels, width, outside, j, steps, group=group)
    place_copy(panels, at)
    # Where extents are symbolic, the last panel and the last group are guarded.
    is_whole = None not in map(_size_of, (column, op.reduce_axis[-1]))
    if is_whole and j == last:
        before = len(loops) - len(steps) - 2
        # Row after row is read, for all panels.
        panels.reorder(*loops[before + 1 : -1], loops[before], loops[-1])
        panels.tensorize(loops[-1], interleave(str(factor.dtype), group, width))
        return True, (panels, loops[-2])
    square = _square_of_groups(factor.dtype, group, width, op.reduce_axis[-1], target)
    is_short = INT32 == column.var.dtype == op.reduce_axis[-1].var.dtype
    if is_whole and square is not None and is_short and k == last:
        lanes, number = square
        groups, several = panels.split(loops[-2], factor=number)
        columns, lane = panels.split(loops[-1], factor=lanes * group)
        panels.reorder(columns, groups, several, lane)
        panels.tensorize(several, interleave_rows(str(factor.dtype), group, lanes, number))
        # A part that ends within a line is moved element by element; whole rows are lines.
        line = _line_of_moved(cast(Tensor, load.producer))
        each = groups if line is None or line % (number * group) == 0 else columns
        return True, (panels, each)
    _, together = panels.split(loops[-1], factor=group)
    panels.vectorize(together)
    return False, at


def _lie_apart(rows: Stage) -> None:
    """Lets rows lie an odd number of cache lines apart: lines of neighbouring rows, which a tile
    loads together, are in different sets of the L1 cache."""
    line = CACHE_LINE // rows.op.output(0).dtype.itemsize
    rows.storage_align(compute_of(rows).axis[-2], 2 * line, line)


def _line_of_moved(factor: Tensor) -> int | None:
    """The neighbours of a factor that are moved together, as a line; None if it isn't moved, or
    lies in one line."""
    return line_of_digits(cast(ComputeOp, factor.op)) if only_moves(factor.op) else None


def _square_of_groups(
    dtype: DType, group: int, width: int, k: IterVar, target: Target
) -> tuple[int, int] | None:
    """The columns of a panel, and the groups of 4 bytes along the sum, that are transposed
    together: as many as a vector of groups has lanes, or fewer, that divide both extents."""
    most, prover = min(target.lanes(INT32), _MOST_LANES), Prover()

    def greatest(extent: PrimExpr, most: int, each_of: int = 1) -> int:
        found = (each for each in _SQUARES if each <= most)
        rests = ((each, e.floormod(extent, each * each_of)) for each in found)
        return next((each for each, rest in rests if prover.can_prove(e.equal(rest, 0))), 0)

    columns = greatest(e.const(width), most)
    groups = greatest(domain_of(k).extent, columns, group)
    return (columns, groups) if group * dtype.bits == INT32.bits and columns and groups else None


def _write_rows(s: Schedule, sums: Tensor, factor: Tensor, load: ProducerLoad, at: Place) -> bool:
    """Lets the rows' factor be read row after row, each row along the reduction axis. Returns
    whether the factor lies in memory in this order; otherwise a copy is read."""
    op = compute_of(s[sums])
    dimension = {cast(Var, index): i for i, index in enumerate(load.indices)}
    i, k = dimension[op.axis[-2].var], dimension[op.reduce_axis[0].var]
    if (i, k) == (factor.ndim - 2, factor.ndim - 1):
        return True

    rows = s[s.cache_read(factor, "global", [sums])]
    others = (place for place in range(factor.ndim) if place not in (i, k))
    *first, row, step = lie_in_order(rows, [*others, i, k])
    if at == "ahead":
        *first, row, step = tell_apart(rows)
    _lie_apart(rows)
    steps, together = rows.split(step, factor=_TOGETHER)
    rows.reorder(*first, steps, row, together)  # so that squares are transposed in registers
    rows.vectorize(together)
    place_copy(rows, at)
    return False
