"""Tiles at the end of an extent that overlap the tiles before them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from minitvm.arith.atoms import structural_key
from minitvm.arith.effects import written_buffers
from minitvm.arith.guards import Without, quotient
from minitvm.arith.linear import Affine
from minitvm.arith.scopes import ScopedMutator, prover_of
from minitvm.arith.simplify import Simplifier
from minitvm.arith.work import code_size
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import BufferLoad, PrimExpr, Var
from minitvm.tir.functor import contains, find, mentions, substitute, with_fields
from minitvm.tir.stmt import ForKind, PrimFunc, Stmt, seq, with_body
from minitvm.transform.fused_loops import by_digits, divisor_of
from minitvm.transform.guarded_tiles import (
    LITTLE,
    Accesses,
    Moved,
    NoFunctionOfTheTile,
    Shortened,
    Tiles,
    accesses_of,
    if_repeated,
    tiles_of,
)
from minitvm.transform.loop_conditions import Conditions
from minitvm.transform.transpose_copies import VECTOR_BYTES, ends_of_blocks

_WHOLE = 4  # bytes of the least elements for which there are masks without mask registers

_LONG = 32  # statements of a tile: a copy takes long to compile
_SHORT = 16  # statements of a tile that has a copy for each number of vectors that are left
_EIGHTHS = (2, 4, 5, 6, 8)  # of it. One vector waits for itself as long as two do.
_MANY = 8  # tiles: one of them takes little of the time


def overlap_tiles(
    func: PrimFunc, *, vector_bytes: int = VECTOR_BYTES, mask_registers: bool = False
) -> PrimFunc:
    """Lets the last tile of an extent end where the extent does, if the extent is as long as a
    tile. So no tile has a masked part.

    Before::

        for io in range((n + 15) // 16):
            for ii in vectorized(16):
                if likely(io * 16 + ii < n):
                    B[io * 16 + ii] = A[io * 32 + ii * 2]

    After::

        if n - 16 >= 0:
            for io in range((n + 15) // 16):
                io.begin = min(io * 16, n - 16)
                for ii in vectorized(16):
                    B[io.begin + ii] = A[io.begin * 2 + ii * 2]
        else:
            ...  # as before

    If a tile has few statements, the last tile is a copy, and the others need no minimum::

        for io in range(n // 16): ...                           # without guards
        if n // 16 < (n + 15) // 16:
            if n - 16 >= 0:
                ...                                             # at n - 16
            else:
                ...                                             # as before, io = n // 16

    If it reads no more than one vector and the target has registers for masks, the last tile is
    masked in either case. A block of tiles may begin where the extent has ended already: `n` is
    then negative, as is the number of the last tile, and the block has no tile.

    Short tiles of three vectors or more with a loop inside, as sums of columns are, are followed by
    one of as few vectors as the rest needs, whose last one is masked::

        for io in range(n // 64): ...                           # without guards
        if n // 64 < (n + 63) // 64:
            if n - n // 64 * 64 <= 16: ...                      # 16 columns, at n // 64 * 64
            elif n - n // 64 * 64 <= 32: ...                    # 16, and 16 under guards
            elif ...

    Other tiles of several vectors are followed by tiles of half of the columns::

        if n >= 16:
            io.whole = select(n >= 32, (n + 15) // 32, 0)
            for io in range(io.whole): ...                      # 32 columns at min(io * 32, n - 32)
            for io in range((n - io.whole * 32 + 15) // 16): ...
                ...                                             # 16, at min(..., n - 16)
        else:
            ...                                                 # 16 columns, under guards

    A parallel loop chooses between both in each iteration. If no tile is whole, there is one tile,
    without a loop.

    For a constant extent, a long tile has no copy, since compiling it takes longer than computing
    some elements twice. This holds for parallel loops, too::

        for io in parallel((m + 15) // 16):
            io.begin = min(io * 16, m - 16)
            ...

    In a parallel loop, two threads may store the same values to these elements. If a call may pass
    one array as input and output, the loop keeps a guarded last tile for such calls.

    Choices, as at the borders of an image, stay where they are: the loop over the other tiles is
    divided by :func:`partition_loops`, and the last tile tests them in its lanes.

    The last tile computes elements of the tile before it again. So a tile must not read the memory
    that it stores to, unless that is its own. If a caller can pass the same array as an input, the
    condition tests whether both are apart. The whole tile must be a function of ``io * 16``, and
    compute each place by itself: a tile of 13 places in lanes of 8, or an element that depends on
    the number of its lane, stays where it is.

    At the end of a constant extent a tile overlaps if a mask takes longer: on targets without
    `mask_registers`, whose vectors have `vector_bytes`.
    """
    return with_body(func, _Overlap(func, vector_bytes, mask_registers).stmt(func.body))


@final
class _Overlap(ScopedMutator):
    changes = (s.IfThenElse,)

    def __init__(self, func: PrimFunc, vector_bytes: int, mask_registers: bool) -> None:
        super().__init__(prover_of(func))
        self._func = func
        self._vector_bytes = vector_bytes
        # The bytes of a vector, on a target without mask registers; otherwise 0.
        self._masked_bytes = 0 if mask_registers else vector_bytes
        self._forms = Conditions(self._prover)

    def visit_For(self, node: s.For) -> Stmt:
        made = super().visit_For(node)
        assert isinstance(made, s.For)
        return self._tiled(made)

    def _tiled(self, loop: s.For) -> Stmt:
        divisor = divisor_of(self._prover, loop)
        if divisor is None:
            return self._overlapped(loop)
        if not self._may_overlap(loop):  # without simplifying the loop by digits
            return loop
        return by_digits(self._prover, loop, divisor, self._in_digits)

    def _may_overlap(self, loop: s.For) -> bool:
        """Whether tiles in a loop have guards on lanes, and may be computed again."""
        has_lanes = any(each.kind == ForKind.VECTORIZED for each in find(s.For, loop.body))
        if not has_lanes or not contains(s.IfThenElse, loop.body):
            return False
        accesses = accesses_of(loop.body)
        return accesses is not None and if_repeated(self._func, accesses) is not None

    def _in_digits(self, outer: Stmt) -> Stmt:
        """The loop over the last of the loops that were fused has tiles that may overlap."""
        if not isinstance(outer, s.For) or not isinstance(outer.body, s.For):
            return outer
        with self.in_loop(outer):
            return with_fields(outer, body=self._tiled(outer.body))

    def _overlapped(self, loop: s.For) -> Stmt:
        if loop.kind not in (ForKind.SERIAL, ForKind.PARALLEL):
            return loop
        tiles = tiles_of(self._prover, self._forms, loop, ForKind.VECTORIZED)
        accesses = None if tiles is None else accesses_of(loop.body)
        if (
            tiles is None
            or accesses is None
            or (apart := if_repeated(self._func, accesses)) is None
        ):
            return loop
        is_long = code_size(loop.body) >= _LONG
        if loop.kind == ForKind.PARALLEL and not (is_long or self._repeats_as_little(loop, tiles)):
            return loop
        count = tiles.last.constant // tiles.size + 1
        if tiles.last.terms or (is_long and count >= _MANY):
            return self._overlapping(loop, tiles, apart) or loop
        is_dear = tiles.last.constant >= 0 and self._masks_are_dear(accesses, tiles)
        return self._behind(loop, tiles) if is_dear and e.const_int(apart) == 1 else loop

    def _masks_are_dear(self, tile: Accesses, tiles: Tiles) -> bool:
        """Whether the last tile of a constant extent takes longer under masks than as a whole."""
        if not self._masked_bytes:
            return False
        least = min((each.dtype.itemsize for each in tile.read | tile.written), default=_WHOLE)
        left = tiles.last.constant % tiles.size
        vectors = [-(-n * least // self._masked_bytes) for n in (left, tiles.size)]
        is_vector = left & (left - 1) == 0  # without a mask
        return not is_vector and (least < _WHOLE or vectors[0] == vectors[1])

    def _behind(self, loop: s.For, tiles: Tiles) -> Stmt:
        """The whole tiles of a constant extent, then one that overlaps the last of them."""
        begin = Var(f"{loop.loop_var.name}.begin", loop.loop_var.dtype)
        body = Without(tiles.guards).stmt(loop.body)
        try:
            last = Moved(loop.loop_var, tiles, begin, tiles.divisor).stmt(body)
        except NoFunctionOfTheTile:
            return loop
        place = e.const(tiles.last.constant, begin.dtype)
        whole = e.const(tiles.last.constant // tiles.size + 1, loop.extent.dtype)
        return seq(with_fields(loop, extent=whole, body=body), substitute(last, {begin: place}))

    def _overlapping(self, loop: s.For, tiles: Tiles, apart: PrimExpr) -> Stmt | None:
        var, size, whole = loop.loop_var, tiles.size, Without(tiles.guards).stmt(loop.body)
        begin = Var(f"{var.name}.begin", var.dtype)
        try:
            moved = Moved(var, tiles, begin, tiles.divisor).stmt(whole)
        except NoFunctionOfTheTile:
            return None
        last = e.cast(var.dtype, self._prover.expression(tiles.last, var.dtype))
        if not tiles.last.terms:
            return with_fields(loop, body=self._chosen(loop, tiles, (begin, moved), apart))
        every = quotient(self._prover, tiles.last + (2 * size - 1), size, var.dtype)
        is_whole = self._ends_behind(loop, every)
        if is_whole and (pieces := self._pieces(loop, tiles)):
            return self._with_rest(loop, tiles, whole, pieces)
        fits = e.logical_and(self._forms.at_least_zero(tiles.last), apart)
        if code_size(loop.body) > LITTLE:
            whole_loop = with_fields(
                loop, body=s.LetStmt(begin, e.minimum(var * size, last), moved)
            )
            is_alone = bool(e.const_int(apart)) and is_whole
            narrow = self._narrow(loop, tiles) if is_alone else None
            if narrow is not None and loop.kind == ForKind.SERIAL:
                return self._with_halves(loop, tiles, whole_loop, narrow)
            if narrow is not None:
                whole_loop = self._or_half(whole_loop, tiles, narrow)
            is_once = e.const_int(apart) and self._prover.proves(
                self._prover.affine(every) - self._prover.affine(loop.extent)
            )
            if is_once:  # fewer columns than a tile has
                first = substitute(loop.body, {var: e.const(0, var.dtype)})
                return s.IfThenElse(fits, whole_loop, s.IfThenElse(loop.extent > 0, first))
            return s.IfThenElse(fits, whole_loop, loop)
        count = self._number(loop, tiles.last + size, size)
        ending, masked = substitute(moved, {begin: last}), substitute(loop.body, {var: count})
        rest = masked if self._is_masked_well(loop.body) else s.IfThenElse(fits, ending, masked)
        rest = s.IfThenElse(self._is_begun(loop, tiles, count), rest)
        # A block of tiles may end before the extent does.
        number = count if self._ends_behind(loop, count) else e.minimum(count, loop.extent)
        return s.seq(with_fields(loop, extent=number, body=whole), rest)

    def _number(self, loop: s.For, form: Affine, size: int) -> PrimExpr:
        """``form // size`` in the type of a loop's variable: where this may not hold it, moved to
        the loop's extent, or to -1."""
        count, dtype = quotient(self._prover, form, size, loop.loop_var.dtype), loop.loop_var.dtype
        if count.dtype == dtype:
            return count
        return e.cast(dtype, e.maximum(e.minimum(count, loop.extent), -1))

    def _repeats_as_little(self, loop: s.For, tiles: Tiles) -> bool:
        """Whether a tile of symbolic columns takes as long under its guards as without them: it has
        loops inside, and none that ends where the guards do."""
        has_loops = any(each.kind == ForKind.SERIAL for each in find(s.For, loop.body))
        return has_loops and bool(tiles.last.terms) and not ends_of_blocks(loop.body)

    def _ends_behind(self, loop: s.For, count: PrimExpr) -> bool:
        """Whether a loop has at least `count` iterations."""
        return self._prover.proves(self._prover.affine(loop.extent) - self._prover.affine(count))

    def _is_masked_well(self, tile: Stmt) -> bool:
        """Whether a mask takes no longer than a vector that overlaps the one before: the target has
        registers for masks, and the tile reads no more than one vector. Masks on several reads
        take longer; vectors that are stored again wait for lines that were left already."""
        if self._masked_bytes:
            return False
        lanes = [each.loop_var for each in find(s.For, tile) if each.kind == ForKind.VECTORIZED]
        reads = {
            structural_key(each)
            for each in find(BufferLoad, tile)
            if any(mentions(lane, *each.indices) for lane in lanes)
        }
        return len(reads) <= 1

    def _with_rest(
        self, loop: s.For, tiles: Tiles, whole: Stmt, pieces: Mapping[int, Stmt]
    ) -> Stmt:
        """The loop over `whole` tiles, and behind it a guarded one of as few vectors as the rest
        needs: one of the `pieces`, by their number of columns."""
        var, size = loop.loop_var, tiles.size
        number = self._number(loop, tiles.last + size, size)
        columns = e.cast(var.dtype, self._prover.expression(tiles.last + size, var.dtype))
        (_, rest), *others = sorted(pieces.items(), reverse=True)
        for least, each in others:
            rest = s.IfThenElse(columns - number * size <= least, each, rest)
        rest = s.IfThenElse(self._is_begun(loop, tiles, number), substitute(rest, {var: number}))
        return s.seq(with_fields(loop, extent=number, body=whole), rest)

    def _is_begun(self, loop: s.For, tiles: Tiles, number: PrimExpr) -> PrimExpr:
        """Whether a tile that isn't whole, the one behind `number` of them, has columns."""
        within = number < loop.extent
        if self._prover.proves(tiles.last + tiles.size):
            return within
        return e.logical_and(number >= 0, within)  # the extent may have ended before

    def _pieces(self, loop: s.For, tiles: Tiles) -> dict[int, Stmt]:
        """The bodies for the first columns of a tile of three vectors or more, up to all of them,
        by their number; none if the tile is long, or has no loop inside."""
        if loop.kind != ForKind.SERIAL or code_size(loop.body) > _SHORT:
            return {}
        inside = find(s.For, loop.body)
        widths = {each.dtype.itemsize for each in written_buffers(loop.body)}
        has_loops = any(each.kind == ForKind.SERIAL for each in inside)
        if not has_loops or len(widths) != 1 or (self._masked_bytes and min(widths) < _WHOLE):
            return {}
        vector = self._vector_bytes // min(widths)
        sizes = [tiles.size * part // 8 for part in _EIGHTHS]
        sizes = [size for size in sizes if size % vector == 0]
        if tiles.size % 8 or len(sizes) < 3:
            return {}
        try:
            return {
                size: Shortened(tiles, size, before).stmt(loop.body)
                for before, size in zip([0, *sizes], sizes, strict=False)
            }
        except NoFunctionOfTheTile:
            return {}

    def _with_halves(self, loop: s.For, tiles: Tiles, whole: s.For, narrow: Stmt) -> Stmt:
        """The loop over `whole` tiles, behind it tiles of half of the columns, whose guarded body
        is `narrow`; and one such tile where there are fewer columns."""
        var, size, half = loop.loop_var, tiles.size, tiles.size // 2
        dtype = var.dtype
        columns = e.cast(dtype, self._prover.expression(tiles.last + size, dtype))
        count = self._number(loop, tiles.last + size + half - 1, size)
        wide = Var(f"{var.name}.whole", dtype)
        name, begin = Var(var.name, dtype), Var(f"{var.name}.begin", dtype)
        body = Moved(var, tiles, begin, tiles.divisor).stmt(Without(tiles.guards).stmt(narrow))
        body = s.LetStmt(begin, e.minimum(wide * size + name * half, columns - half), body)
        left = e.maximum(e.floordiv(columns - wide * size + (half - 1), half), 0)
        halves = with_fields(loop, loop_var=name, extent=left, body=body)
        tiled = s.seq(with_fields(whole, extent=wide), halves)
        tiled = s.LetStmt(wide, e.Select(columns >= size, count, e.const(0, dtype)), tiled)
        return s.IfThenElse(columns >= half, tiled, with_fields(loop, body=narrow))

    def _or_half(self, whole: s.For, tiles: Tiles, narrow: Stmt) -> s.For:
        """The parallel loop over `whole` tiles, whose last one has half of the columns if no more
        are left; `narrow` is its guarded body."""
        var, size, half = whole.loop_var, tiles.size, tiles.size // 2
        columns = e.cast(var.dtype, self._prover.expression(tiles.last + size, var.dtype))
        begin = Var(f"{var.name}.begin", var.dtype)
        body = Moved(var, tiles, begin, tiles.divisor).stmt(Without(tiles.guards).stmt(narrow))
        last = s.LetStmt(begin, columns - half, body)
        return with_fields(whole, body=s.IfThenElse(var * size + half < columns, whole.body, last))

    def _narrow(self, loop: s.For, tiles: Tiles) -> Stmt | None:
        """The body for a tile of half of the columns, where that takes half of the time: in a long
        loop inside of the tile, several vectors become half as many."""
        inside = [*find(s.For, loop.body)]
        is_long = any(each.kind == ForKind.SERIAL for each in inside)
        if not is_long or tiles.size % 2:
            return None
        widths = [each.dtype.itemsize for each in written_buffers(loop.body)]
        if tiles.size * max(widths, default=0) < 2 * self._vector_bytes:
            return None
        try:
            return Shortened(tiles, tiles.size // 2).stmt(loop.body)
        except NoFunctionOfTheTile:
            return None

    def _chosen(self, loop: s.For, tiles: Tiles, moved: tuple[Var, Stmt], apart: PrimExpr) -> Stmt:
        """The body `moved`, in which a name stands for the begin of the tile, in all tiles of a
        constant extent if arrays are `apart`, and otherwise in all but the last one."""
        var, (name, body) = loop.loop_var, moved
        aligned, last = var * tiles.size, e.const(tiles.last.constant, var.dtype)
        begin = e.minimum(aligned, last)
        if e.const_int(apart):
            return s.LetStmt(name, begin, body)
        whole = e.const(tiles.last.constant // tiles.size + 1, var.dtype)
        made = s.LetStmt(name, e.Select(apart, begin, aligned), body)
        end = Simplifier(self._prover).stmt(substitute(loop.body, {var: whole}))
        return s.IfThenElse(e.logical_or(var < whole, apart), made, end)
