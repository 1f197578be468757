"""Loops over tiles of an extent, whose last tile has guards."""

from __future__ import annotations

from math import gcd
from typing import final

from minitvm.arith.effects import (
    calls_out,
    may_be_one_array,
    own_memory,
    read_buffers,
    written_buffers,
)
from minitvm.arith.guards import is_symbolic
from minitvm.arith.linear import Affine
from minitvm.arith.prover import Prover
from minitvm.arith.scopes import in_loop
from minitvm.arith.work import code_size
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, PrimExpr, Var
from minitvm.tir.functor import Mutator, contains, find, mentions, rebuild, substitute, with_fields
from minitvm.tir.op import are_apart
from minitvm.tir.stmt import ForKind, PrimFunc, Stmt
from minitvm.transform.loop_conditions import Conditions

LITTLE = 4
"""Statements of a tile: a copy for the last tile costs little."""


@final
@record()
class Tiles:
    """A loop over tiles of `size` elements; all `guards` hold in the tiles that begin at `last` or
    before it."""

    size: int
    last: Affine
    guards: tuple[PrimExpr, ...]

    @property
    def divisor(self) -> int:
        """A divisor of the begins of all tiles, and of half a tile."""
        return gcd(self.size, self.size // 2, self.last.constant, *self.last.terms.values())


def tiles_of(prover: Prover, forms: Conditions, loop: s.For, kind: ForKind) -> Tiles | None:
    """The tiles over which a loop runs, whose parts are loops of a kind: lanes, or unrolled rows;
    None where its body has no guards on such loops, or several limits."""
    if e.const_int(loop.min) != 0 or not prover.is_index_arithmetic(loop.extent):
        return None
    parts = [each.loop_var for each in find(s.For, loop.body) if each.kind == kind]
    if not parts:
        return None
    with in_loop(prover, loop):
        uses = forms.uses(loop, every=False).conditions
    var = loop.loop_var
    uses = {each: use for each, use in uses.items() if mentions(var, each)}
    # Choices stay in the last tile. Those of a long tile need a loop that can be divided.
    found = {each: use for each, use in uses.items() if not use.divides and use.negates is None}
    rows = [row for use in found.values() for row in use.rows]
    if not rows or (len(found) < len(uses) and code_size(loop.body) > LITTLE):
        return None
    first = rows[0]
    size = -first.terms.get(var, 0)
    if size <= 1 or not all(row.same_as(first) for row in rows):
        return None
    if not any(mentions(part, *found) for part in parts):
        return None
    last = first - Affine({var: -size})
    # Its operands stay the same while the loop runs.
    is_known = all(prover.is_index_arithmetic(atom) for atom in last.terms)
    if not is_known or any(mentions(var, atom) for atom in last.terms):
        return None
    with in_loop(prover, loop):
        if last.terms and not is_symbolic(prover, last):
            return None  # a loop around it gets a main part without guards
    return Tiles(size, last, tuple(found))


@final
@record()
class Accesses:
    """The buffers that a tile reads and writes, without its own."""

    read: frozenset[Buffer]
    written: frozenset[Buffer]


def accesses_of(body: Stmt) -> Accesses | None:
    """The accesses of a tile; None where it calls functions, or may not end."""
    if calls_out(body) or contains(s.While, body):
        return None
    own = own_memory(body)
    return Accesses(read_buffers(body) - own, written_buffers(body) - own)


def if_repeated(func: PrimFunc, tile: Accesses) -> PrimExpr | None:
    """The condition under which a part of a tile may be computed again: whichever arrays a
    caller passes, the tile reads no memory that it writes, except for its own. None if it
    does."""
    both = [(a, b) for a in tile.written for b in tile.read]
    if any(a.data is b.data for a, b in both):
        return None
    pairs = [(a, b) for a, b in both if may_be_one_array(func, b, a)]
    order = {buffer: i for i, buffer in enumerate(func.buffer_map.values())}
    apart: PrimExpr = e.const(True)
    for each in sorted(pairs, key=lambda pair: [order[buffer] for buffer in pair]):
        apart = e.logical_and(apart, are_apart(*(buffer.data for buffer in each)))
    return apart


@final
class Shortened(Mutator):
    """Lets loops over the parts of a tile, which its guards mention, have fewer iterations."""

    def __init__(self, tiles: Tiles, size: int) -> None:
        super().__init__()
        self._tiles = tiles
        self._size = size

    def visit_For(self, node: s.For) -> Stmt:
        made: s.For = self.descend(node)
        is_part = mentions(node.loop_var, *self._tiles.guards)
        if not is_part or e.const_int(node.extent) != self._tiles.size:
            return made
        return with_fields(made, extent=e.const(self._size, node.extent.dtype))


@final
class NoFunctionOfTheTile(Exception):
    """A loop variable occurs outside of a multiple of the tile's size."""


@final
class Moved(Mutator):
    """Replaces multiples of ``var * size`` by those of `begin`, a multiple of `divisor`. In
    quotients and remainders by 2, say, if all tiles begin at even places, they are those of
    ``begin // 2 * 2``."""

    def __init__(self, var: Var, tiles: Tiles, begin: Var, divisor: int) -> None:
        super().__init__()
        self._prover = Prover()
        self._var = var
        self._size = tiles.size
        self._divisor = divisor
        self._begin = begin

    def expr(self, node: PrimExpr) -> PrimExpr:
        if not mentions(self._var, node):
            return node
        if not node.dtype.is_int or not self._prover.is_index_arithmetic(node):
            return super().expr(node)
        if isinstance(node, e.FloorMod) and not isinstance(node.b, e.IntImm):
            return super().expr(node)  # the end of a row, where lanes may begin anywhere
        if isinstance(node, (e.FloorDiv, e.FloorMod)):
            size = e.const_int(node.b)
            if not size or self._divisor % size:
                raise NoFunctionOfTheTile
            whole = e.floordiv(self._begin, size) * size
            return rebuild(node, {"a": substitute(self.expr(node.a), {self._begin: whole})})
        if isinstance(node, Var):
            raise NoFunctionOfTheTile
        form = self._prover.affine(node)
        if any(atom is not self._var and mentions(self._var, atom) for atom in form.terms):
            return super().expr(node)
        factor, size = form.terms.get(self._var, 0), self._size
        if factor % size:
            raise NoFunctionOfTheTile
        moved = form
        if factor:
            moved += Affine({self._begin: factor // size}) - Affine({self._var: factor})
        return e.cast(node.dtype, self._prover.expression(moved, node.dtype))
