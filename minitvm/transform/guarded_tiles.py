"""Loops over tiles of an extent, whose last tile has guards."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Set
from math import gcd
from typing import TypeAlias, final

from minitvm.arith.effects import (
    calls_out,
    may_be_one_array,
    own_memory,
    read_buffers,
    written_buffers,
)
from minitvm.arith.guards import Without, conjuncts, is_symbolic
from minitvm.arith.linear import Affine
from minitvm.arith.prover import Prover
from minitvm.arith.scopes import in_loop
from minitvm.arith.work import code_size
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, BufferLoad, IntImm, PrimExpr, Var
from minitvm.tir.functor import (
    Mutator,
    children,
    contains,
    find,
    mentions,
    rebuild,
    substitute,
    with_fields,
)
from minitvm.tir.op import are_apart, is_likely
from minitvm.tir.stmt import ForKind, PrimFunc, Stmt, seq
from minitvm.transform.loop_conditions import Conditions

_Linear: TypeAlias = dict[PrimExpr, tuple[dict[Var, int], dict[PrimExpr, None]]]
"""The factors of variables in each of some expressions, and the parts that aren't linear."""

LITTLE = 4
"""Statements of a tile: a copy for the last tile costs little."""

_QUOTIENTS = (e.Div, e.Mod, e.FloorDiv, e.FloorMod, e.Call)  # calls: shifts and masks


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
    None where its body has no guards on such loops, or several limits, or where a tile may not
    begin anywhere."""
    tiles = guarded_tiles(prover, forms, loop, kind)
    if tiles is None or not _Places(prover, forms, loop.loop_var, tiles).are_computed_by(loop.body):
        return None
    return tiles


def guarded_tiles(prover: Prover, forms: Conditions, loop: s.For, kind: ForKind) -> Tiles | None:
    """As :func:`tiles_of`, whether or not a tile may begin anywhere."""
    if e.const_int(loop.min) != 0 or not prover.is_index_arithmetic(loop.extent):
        return None
    # Loops of requests compute no parts.
    loops = (each for each in find(s.For, loop.body) if each.kind == kind)
    parts = [each.loop_var for each in loops if contains(s.BufferStore, each)]
    var = loop.loop_var
    # Without such a guard nothing else need be asked.
    if not parts or not any(mentions(var, x.condition) for x in find(s.IfThenElse, loop.body)):
        return None
    with in_loop(prover, loop):
        uses = forms.uses(loop, every=False).conditions
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
class _Places:
    """Whether a tile may begin anywhere, since it computes each place by itself.

    A guard ``io * 16 + (r * 8 + ii) < n`` numbers the places of the tiles. Tiles may begin
    anywhere if each statement under a guard runs once for each of the 16 places of a tile, so that
    a tile that ends with the extent leaves out none; if it uses `io`, `r` and `ii` only as parts of
    the number of its place, except in indices of the tile's own memory; if the place alone
    determines the elements that are stored in a dimension, by the same rule for all statements; and
    if all other statements store to the tile's own memory, or store the same for all tiles. No loop
    runs through the tile's own memory against another one. A tile under other guards than those of
    a split has no own memory.
    """

    def __init__(self, prover: Prover, forms: Conditions, var: Var, tiles: Tiles) -> None:
        self._prover = prover
        self._forms = forms
        self._var = var
        self._size = tiles.size
        self._guards = frozenset(tiles.guards)

    def are_computed_by(self, body: Stmt) -> bool:
        self._own = own_memory(body)
        self._rules: dict[Buffer, list[Affine | None]] = {}
        self._directions: dict[tuple[Buffer, int], bool] = {}
        is_made = all(self._is_made(each) for each in find(s.IfThenElse, body))
        return (is_made or not self._own) and self._holds(body, {}, (), {})

    def _is_made(self, node: s.IfThenElse) -> bool:
        """Whether guards in a condition are those of a split."""
        return is_likely(node.condition) or self._guards.isdisjoint(conjuncts(node.condition))

    def _holds(
        self,
        node: Stmt,
        loops: Mapping[Var, s.For],
        conditions: tuple[PrimExpr, ...],
        names: Mapping[Var, PrimExpr],
    ) -> bool:
        match node:
            case s.For(var):
                if not self._own and self._mentions((), node.min, node.extent):
                    return False
                loops = {**loops, var: node}
            case s.LetStmt(var, value):
                names = {**names, var: substitute(value, names)}
            case s.IfThenElse(condition, then_case, else_case):
                condition = substitute(condition, names)
                then_conditions = (*conditions, *conjuncts(node.condition))
                if else_case is not None and not self._holds(
                    else_case, loops, (*conditions, e.logical_not(condition)), names
                ):
                    return False
                return self._holds(then_case, loops, then_conditions, names)
            case s.BufferStore():
                return self._stores_places(node, loops, conditions, names)
        parts = (each for each in children(node) if isinstance(each, Stmt))
        return all(self._holds(each, loops, conditions, names) for each in parts)

    def _stores_places(
        self,
        node: s.BufferStore,
        loops: Mapping[Var, s.For],
        conditions: tuple[PrimExpr, ...],
        names: Mapping[Var, PrimExpr],
    ) -> bool:
        is_own = node.buffer in self._own
        used = [node.value, *(() if is_own else node.indices)]
        used = [substitute(each, names) for each in used]
        accesses: list[s.BufferStore | BufferLoad] = [node, *find(BufferLoad, node.value)]
        own = [each for each in accesses if each.buffer in self._own]
        if not all(self._keeps_direction(each, loops, names) for each in own):
            return False
        guard = next((each for each in conditions if each in self._guards), None)
        if guard is None:
            return is_own or not self._mentions((), *used, *conditions)
        factors = self._factors(guard, loops)
        others = (each for each in conditions if each not in self._guards)
        used += (substitute(each, names) for each in others)
        if factors is None:
            return False
        seen: set[PrimExpr] = set()
        made: _Linear = {}
        if not all(self._is_of_place(each, factors, seen, made) for each in used):
            return False
        outside = frozenset(each for each in loops if each not in factors)
        return is_own or self._has_one_rule(node, factors, outside, names)

    def _keeps_direction(
        self,
        node: s.BufferStore | BufferLoad,
        loops: Iterable[Var],
        names: Mapping[Var, PrimExpr],
    ) -> bool:
        """Whether loops run through the dimensions of a buffer as other loops do."""
        for dim, index in enumerate(node.indices):
            used, _ = _linear(substitute(index, names), {self._var, *loops}, {})
            for factor in filter(None, used.values()):
                if self._directions.setdefault((node.buffer, dim), factor > 0) != (factor > 0):
                    return False
        return True

    def _has_one_rule(
        self,
        node: s.BufferStore,
        factors: Mapping[Var, int],
        others: Set[Var],
        names: Mapping[Var, PrimExpr],
    ) -> bool:
        """Whether the indices of a store that depend on the place depend on no `others` of the
        loops, and are those of the other stores to the buffer."""
        rule: list[Affine | None] = []
        for index in node.indices:
            index = substitute(index, names)
            used, others_in = _linear(index, factors, {})
            is_linear = not self._mentions(factors, *others_in)
            if is_linear and used.get(self._var):
                own = dict[PrimExpr, int](used.items())
                left = self._prover.affine(index) - Affine(own)
                if any(mentions(each, *left.terms) for each in others):
                    return False
                rule.append(left + Affine({self._var: used[self._var]}))
            else:
                rule.append(None)
        known = self._rules.setdefault(node.buffer, rule)
        return all(
            a is b is None or (a is not None and b is not None and a.same_as(b))
            for a, b in zip(known, rule, strict=True)
        )

    def _factors(self, guard: PrimExpr, loops: Mapping[Var, s.For]) -> dict[Var, int] | None:
        """The factors of the tile's loops in the number of a place; None where they don't number
        all places of a tile."""
        terms = self._forms.form(guard).terms
        factors = {each: -terms[each] for each in loops if terms.get(each)}
        if any(mentions(each, atom) for each in loops for atom in terms if atom is not each):
            return None
        reach = 0  # the places from the first one on
        for each in sorted(factors, key=lambda var: factors[var]):
            extent = e.const_int(loops[each].extent) or 0
            if not 0 < factors[each] <= reach + 1 or e.const_int(loops[each].min) is None:
                return None
            reach += factors[each] * (extent - 1)
        return {self._var: self._size, **factors} if reach + 1 == self._size else None

    def _mentions(self, parts: Iterable[Var], *nodes: PrimExpr) -> bool:
        return any(mentions(each, *nodes) for each in (self._var, *parts))

    def _is_of_place(
        self, node: PrimExpr, factors: Mapping[Var, int], seen: set[PrimExpr], made: _Linear
    ) -> bool:
        """Whether an expression uses variables with `factors` only as parts of the place. What was
        `seen` does."""
        if node in seen or (isinstance(node, BufferLoad) and node.buffer in self._own):
            return True
        seen.add(node)
        parts: Iterable[PrimExpr] = (each for each in children(node) if isinstance(each, PrimExpr))
        if node.dtype.is_int:
            used, others = _linear(node, factors, made)
            times = used.get(self._var, 0) // self._size
            if any(used.get(each, 0) != times * factor for each, factor in factors.items()):
                return False
            parts = parts if node in others else others
        return all(self._is_of_place(each, factors, seen, made) for each in parts)


def _linear(
    node: PrimExpr, variables: Container[Var], made: _Linear
) -> tuple[dict[Var, int], dict[PrimExpr, None]]:
    """The factors of some variables in an expression, and its parts that aren't linear. Forms that
    were `made` are those of parts that expressions share."""
    found = made.get(node)
    if found is not None:
        return found
    terms: list[tuple[PrimExpr, int]] = []
    used, parts = dict[Var, int](), dict[PrimExpr, None]()
    match node:
        case Var() if node in variables:
            used[node] = 1
        case e.Add(a, b):
            terms = [(a, 1), (b, 1)]
        case e.Sub(a, b):
            terms = [(a, 1), (b, -1)]
        case e.Mul(a, IntImm(value=value)) | e.Mul(IntImm(value=value), a):
            terms = [(a, value)]
        case e.Cast(value=value) if value.dtype.is_int:
            terms = [(value, 1)]
        case _:
            parts[node] = None
    for each, times in terms:
        factors, others = _linear(each, variables, made)
        parts |= others
        for var, factor in factors.items():
            used[var] = used.get(var, 0) + times * factor
    made[node] = used, parts
    return used, parts


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
class NoFunctionOfTheTile(Exception):
    """A loop variable occurs outside of a multiple of the tile's size, or a loop over the parts of
    a tile isn't one over the whole tile."""


@final
class Shortened(Mutator):
    """Lets loops over the parts of a tile, which its guards mention, have fewer iterations. Loops
    of requests stay. Of the iterations, the first ones that are `whole` aren't guarded."""

    def __init__(self, tiles: Tiles, size: int, whole: int = 0) -> None:
        super().__init__()
        self._tiles = tiles
        self._size = size
        self._whole = whole

    def visit_For(self, node: s.For) -> Stmt:
        made: s.For = self.descend(node)
        extent = e.const_int(node.extent)
        if extent == 1 or not mentions(node.loop_var, *self._tiles.guards):
            return made
        if not contains(s.BufferStore, node):
            return made
        if extent != self._tiles.size:
            raise NoFunctionOfTheTile
        if not self._whole:
            return self._of_size(made, self._size)
        first = self._of_size(Without(self._tiles.guards).stmt(made), self._whole)
        moved = substitute(made.body, {made.loop_var: made.loop_var + self._whole})
        return seq(first, self._of_size(with_fields(made, body=moved), self._size - self._whole))

    def _of_size(self, loop: Stmt, size: int) -> Stmt:
        assert isinstance(loop, s.For)
        return with_fields(loop, extent=e.const(size, loop.extent.dtype))


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
        if any(mentions(self._var, each) for each in find(_QUOTIENTS, node)):
            return super().expr(node)  # no quotient that is known only for a multiple of the size
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
