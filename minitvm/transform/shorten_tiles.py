"""Short tiles for the rows that are left behind the whole tiles of a symbolic extent."""

from __future__ import annotations

from collections.abc import Set
from typing import final

from minitvm.arith.guards import Without, conjuncts
from minitvm.arith.linear import Affine
from minitvm.arith.scopes import ScopedMutator, prover_of
from minitvm.arith.work import code_size
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import BufferLoad, PrimExpr, Var
from minitvm.tir.functor import children, contains, find, mentions, with_fields
from minitvm.tir.stmt import ForKind, PrimFunc, Stmt, with_body
from minitvm.transform.fused_loops import by_digits, divisor_of
from minitvm.transform.guarded_tiles import (
    Moved,
    NoFunctionOfTheTile,
    Shortened,
    Tiles,
    accesses_of,
    if_repeated,
    tiles_of,
)
from minitvm.transform.loop_conditions import Conditions

_SHORT = 4  # rows, whose sums of two vectors hide the latency of multiply-adds
_LONG = 16  # iterations
_MOST = 512  # statements of a function whose tiles are copied


def shorten_tiles(func: PrimFunc) -> PrimFunc:
    """Computes the rows behind the last whole tile of a symbolic number of rows in tiles of four
    rows, where long loops run in the tiles.

    Before::

        for io in parallel((n + 12) // 13):
            for k in range(m):
                for ii in unrolled(13):
                    if likely(io * 13 + ii < n):
                        S[ii] = S[ii] + A[io * 13 + ii, k]

    After::

        for io in parallel((n + 12) // 13):
            if io * 13 + 8 < n and n >= 13:
                io.begin = min(io * 13, n - 13)
                for k in range(m):
                    for ii in unrolled(13):
                        S[ii] = S[ii] + A[io.begin + ii, k]
            else:
                for io.short in range((n - io * 13 + 3) // 4):
                    io.begin = io * 13 + io.short * 4
                    for k in range(m):
                        for ii in unrolled(4):
                            if likely(io.begin + ii < n):
                                S[ii] = S[ii] + A[io.begin + ii, k]

    Where more rows are left than two short tiles have, or as many as a whole tile has, a whole tile
    overlaps the one before, unless it may read what it stores (see :func:`overlap_tiles`): then
    short tiles follow the last whole one.

    Whole tiles need no conditions. A tile is shortened only if all of its rows are unrolled, and if
    it is a function of ``io * 13``.
    """
    if code_size(func.body) > _MOST:
        return func
    return with_body(func, _Shorten(func).stmt(func.body))


@final
class _Shorten(ScopedMutator):
    changes = (s.IfThenElse,)

    def __init__(self, func: PrimFunc) -> None:
        super().__init__(prover_of(func))
        self._func = func
        self._forms = Conditions(self._prover)

    def visit_For(self, node: s.For) -> Stmt:
        made = super().visit_For(node)
        assert isinstance(made, s.For)
        if made.kind not in (ForKind.SERIAL, ForKind.PARALLEL) or not _is_long(made.body):
            return made
        divisor = divisor_of(self._prover, made)
        if divisor is None:
            return self._tiled(made)
        return by_digits(self._prover, made, divisor, self._tiled)

    def _tiled(self, made: Stmt) -> Stmt:
        """A loop over tiles; of fused loops, the first one."""
        if not isinstance(made, s.For):
            return made
        tiles = tiles_of(self._prover, self._forms, made, ForKind.UNROLLED)
        if tiles is None or not tiles.last.terms or tiles.size < 2 * _SHORT:
            return made
        if not _is_guarded(made.body, made.loop_var, frozenset(tiles.guards)):
            return made
        return self._shortened(made, tiles) or made

    def _shortened(self, loop: s.For, tiles: Tiles) -> s.For | None:
        var, dtype = loop.loop_var, loop.loop_var.dtype
        begin, name = Var(f"{var.name}.begin", dtype), Var(f"{var.name}.short", dtype)
        try:
            short = Shortened(tiles, _SHORT).stmt(loop.body)
            body = Moved(var, tiles, begin, divisor=1).stmt(short)
        except NoFunctionOfTheTile:
            return None
        whole = Without(tiles.guards).stmt(loop.body)
        at = Affine({var: tiles.size})
        left = self._prover.expression(tiles.last + tiles.size - at, dtype)
        count = e.floordiv(left + (_SHORT - 1), _SHORT)
        body = s.LetStmt(begin, var * tiles.size + name * _SHORT, body)
        rest = s.For(name, e.const(0, dtype), count, ForKind.SERIAL, body)
        is_whole = self._forms.at_least_zero(tiles.last - at)
        if self._may_repeat(loop):
            place, end = Var(begin.name, dtype), self._prover.expression(tiles.last, dtype)
            moved = Moved(var, tiles, place, tiles.divisor).stmt(whole)
            whole = s.LetStmt(place, e.minimum(var * tiles.size, end), moved)
            least = min(2 * _SHORT + 1, tiles.size)  # rows, for which a whole tile is faster
            is_most = self._forms.at_least_zero(tiles.last - at + (tiles.size - least))
            is_whole = e.logical_and(is_most, self._forms.at_least_zero(tiles.last))
        return with_fields(loop, body=s.IfThenElse(is_whole, whole, rest))

    def _may_repeat(self, loop: s.For) -> bool:
        """Whether rows may be computed again, which are those of an output."""
        accesses = accesses_of(loop.body)
        if accesses is None or not accesses.written <= {*self._func.buffer_map.values()}:
            return False
        apart = if_repeated(self._func, accesses)
        return apart is not None and e.const_int(apart) == 1


def _is_guarded(node: Stmt, var: Var, guards: Set[PrimExpr]) -> bool:
    """Whether accesses at places that depend on a loop variable are under guards."""
    if not mentions(var, node):
        return True
    match node:
        case s.IfThenElse(condition, _, None) if not guards.isdisjoint(conjuncts(condition)):
            return True
        case s.Evaluate(e.Call(op="prefetch")):
            return True
        case s.BufferStore() | s.Evaluate():
            return False
        case s.LetStmt() if mentions(var, node.value):
            return False
    values = [child for child in children(node) if isinstance(child, PrimExpr)]
    below = (each for each in children(node) if isinstance(each, Stmt))
    return not contains(BufferLoad, *values) and all(
        _is_guarded(each, var, guards) for each in below
    )


def _is_long(body: Stmt) -> bool:
    """Whether a tile has a long loop around others."""
    return any(
        each.kind == ForKind.SERIAL and contains(s.For, each.body)
        for each in find(s.For, body)
        if (e.const_int(each.extent) or _LONG) >= _LONG
    )
