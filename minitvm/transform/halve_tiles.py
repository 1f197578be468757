"""Half of a tile for the columns that are left at the end of a symbolic extent."""

from __future__ import annotations

from typing import final

from minitvm.arith.effects import calls_out, written_buffers
from minitvm.arith.guards import LARGEST, Without, conjuncts
from minitvm.arith.scopes import ScopedMutator, prover_of
from minitvm.arith.work import code_size
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import PrimExpr, Var
from minitvm.tir.functor import children, contains, find, mentions, with_fields
from minitvm.tir.stmt import ForKind, PrimFunc, Stmt, with_body
from minitvm.transform.guarded_tiles import (
    LITTLE,
    Moved,
    NoFunctionOfTheTile,
    Shortened,
    Tiles,
    accesses_of,
    guarded_tiles,
    if_repeated,
    tiles_of,
)
from minitvm.transform.loop_conditions import Conditions
from minitvm.transform.transpose_copies import VECTOR_BYTES

_MANY = 8  # tiles of a block: one of them takes little of the time


def halve_tiles(func: PrimFunc, *, vector_bytes: int = VECTOR_BYTES) -> PrimFunc:
    """Computes the last columns of a symbolic number of columns in half of a tile, where no more
    are left and a long loop runs in the tiles.

    Before::

        for jo in range((n + 31) // 32):
            for k in range(m):
                for ji in vectorized(32):
                    if likely(jo * 32 + ji < n):
                        S[ji] = S[ji] + panel[jo, k, ji]

    After::

        for jo in range((n + 31) // 32):
            if jo * 32 + 16 < n:
                ...                                             # as before
            else:
                for k in range(m):
                    for ji in vectorized(16):
                        if likely(jo * 32 + ji < n):
                            S[ji] = S[ji] + panel[jo, k, ji]

    The choice is for tiles that can't overlap (see :func:`overlap_tiles`), such as those that read
    panels. Half a tile is one vector or more, and all statements for single columns are guarded. In
    blocks of many tiles, and where several loops run in a tile, there is no choice.
    """
    return with_body(func, _Halve(func, vector_bytes).stmt(func.body))


@final
class _Halve(ScopedMutator):
    changes = (s.IfThenElse,)

    def __init__(self, func: PrimFunc, vector_bytes: int) -> None:
        super().__init__(prover_of(func))
        self._func = func
        self._vector_bytes = vector_bytes
        self._forms = Conditions(self._prover)

    def visit_For(self, node: s.For) -> Stmt:
        made = super().visit_For(node)
        assert isinstance(made, s.For)
        if made.kind not in (ForKind.SERIAL, ForKind.PARALLEL) or isinstance(made.extent, e.IntImm):
            return made
        if not self._is_long(made.body):
            return made
        tiles = guarded_tiles(self._prover, self._forms, made, ForKind.VECTORIZED)
        if tiles is None or not tiles.last.terms or tiles.size % 2:
            return made
        if not self._saves_vectors(made.body, tiles) or not _is_guarded(made.body, tiles):
            return made
        if self._may_overlap(made):
            return made
        try:
            half = Shortened(tiles, tiles.size // 2).stmt(made.body)
        except NoFunctionOfTheTile:
            return made
        _, most = self._prover.interval(self._prover.affine(made.extent))
        if _MANY <= most < LARGEST // tiles.size:
            return made
        var = made.loop_var
        columns = e.cast(var.dtype, self._prover.expression(tiles.last + tiles.size, var.dtype))
        is_more = var * tiles.size + tiles.size // 2 < columns
        return with_fields(made, body=s.IfThenElse(is_more, made.body, half))

    def _may_overlap(self, loop: s.For) -> bool:
        """Whether a tile may begin anywhere, and be computed again."""
        tiles = tiles_of(self._prover, self._forms, loop, ForKind.VECTORIZED)
        accesses = None if tiles is None else accesses_of(loop.body)
        if tiles is None or accesses is None or if_repeated(self._func, accesses) is None:
            return False
        begin = Var(f"{loop.loop_var.name}.begin", loop.loop_var.dtype)
        body = Without(tiles.guards).stmt(loop.body)
        try:
            Moved(loop.loop_var, tiles, begin, tiles.divisor).stmt(body)
        except NoFunctionOfTheTile:
            return False
        return True

    def _is_long(self, body: Stmt) -> bool:
        """Whether a single tile has one loop inside, and calls nothing. Tiles with several, as of
        windows, are long, and so are their copies."""
        serial = [each for each in find(s.For, body) if each.kind == ForKind.SERIAL]
        is_single = not any(each.else_case for each in find(s.IfThenElse, body))
        is_long = sum(contains(s.BufferStore, each) for each in serial) == 1
        return is_long and is_single and code_size(body) > LITTLE and not calls_out(body)

    def _saves_vectors(self, body: Stmt, tiles: Tiles) -> bool:
        """Whether half of a tile consists of whole vectors."""
        widths = [each.dtype.itemsize for each in written_buffers(body)]
        return tiles.size * max(widths, default=0) >= 2 * self._vector_bytes


def _is_guarded(node: Stmt, tiles: Tiles) -> bool:
    """Whether all stores in loops that guards mention are under these guards."""
    match node:
        case s.IfThenElse(condition, _, None) if _has_guard(condition, tiles):
            return True
        case s.For(var) if mentions(var, *tiles.guards):
            return not contains(s.BufferStore, node) or _stores_guarded(node.body, tiles)
    return all(_is_guarded(each, tiles) for each in children(node) if isinstance(each, Stmt))


def _stores_guarded(node: Stmt, tiles: Tiles) -> bool:
    match node:
        case s.IfThenElse(condition, _, None) if _has_guard(condition, tiles):
            return True
        case s.BufferStore() | s.Evaluate():
            return False
    return all(_stores_guarded(each, tiles) for each in children(node) if isinstance(each, Stmt))


def _has_guard(condition: PrimExpr, tiles: Tiles) -> bool:
    return not set(tiles.guards).isdisjoint(conjuncts(condition))
