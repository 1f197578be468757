"""Turns vectorized loops into vector code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, final

from minitvm.arith.effects import (
    SureChoices,
    choices_in_both,
    is_stable,
    loads,
    surely_evaluated,
)
from minitvm.arith.fused_index import joined
from minitvm.arith.guards import Without, limits
from minitvm.arith.prover import Prover
from minitvm.arith.scopes import ScopedMutator, assuming, binding, in_loop, prover_of
from minitvm.runtime.dtype import BOOL, HANDLE, INT32, INT64, DType
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, BufferLoad, Call, PrimExpr, Var
from minitvm.tir.functor import find, mentions, rebuild, substitute, walk_once, with_fields
from minitvm.tir.intrinsics import FUNCTIONS, INTRINSICS
from minitvm.tir.op import is_likely
from minitvm.tir.stmt import BufferStore, ForKind, PrimFunc, Stmt, with_body
from minitvm.transform.lane_arithmetic import LaneArithmetic
from minitvm.transform.lane_dependence import Fold, LaneDependence
from minitvm.transform.read_in_pieces import pieces_of_read
from minitvm.transform.transpose_copies import VECTOR_BYTES
from minitvm.transform.whole_vectors import in_whole_vectors, whole_width

# A loop with more iterations becomes a loop over vectors with this number of lanes.
MAX_LANES = 64
# The narrowest vectors from which wider ones are put together.
_LEAST_STRIP = 4
# The most vectors that are unrolled: an accumulator stays in registers only if its indices are
# constant.
_FEW_STRIPS = 6


def vectorize_loops(
    func: PrimFunc, *, vector_bytes: int = VECTOR_BYTES, mask_registers: bool = False
) -> PrimFunc:
    """Turns the iterations of a vectorized loop into lanes of vectors.

    Before::

        for i in range((n + 15) // 16):
            for j in vectorized(16):
                if likely(i * 16 + j < n):
                    B[i * 16 + j] = A[i * 16 + j] * x

    After::

        for i in range((n + 15) // 16):
            mask = ramp(0, 1, 16) < broadcast(int32(min(max(n - i * 16, -1), 17)), 16)
            B[ramp(i * 16, 1, 16), where=mask] = (
                A[ramp(i * 16, 1, 16), where=mask] * broadcast(x, 16)
            )

    Conditions that differ between lanes become masks of the accesses under them. Accesses to a
    ``padded_buffer`` ignore ``likely`` guards. A reduction over the lanes becomes a fold of a
    vector (``vector_reduce_add``). A buffer allocated inside gets a dimension of lanes. A failing
    assertion is reported for the first lane in which it fails, before any lane goes on.

    A loop whose body has no vector form becomes a serial one: a body with calls out of the program,
    another vectorized or parallel loop, vectors, a ``while``, or an inner loop whose bounds differ
    between lanes.

    If the number of lanes isn't a power of two, they are divided among narrower vectors. There are
    two exceptions on targets with `mask_registers`, where masks cost nothing: loops that call
    functions, and lanes that lie in registers (:mod:`minitvm.transform.whole_vectors`), are one
    vector of at most `vector_bytes` with masked lanes.

    Raises
    ------
    CompileError
        When the extent of a vectorized loop is not constant, or when iterations may depend on each
        other (:mod:`minitvm.transform.lane_dependence`).
    """
    loops = [*filter(_is_vectorized, find(s.For, func.body))]
    if not loops:
        return func
    for loop in loops:
        assert isinstance(loop, s.For)
        if e.const_int(loop.extent) is None:
            raise CompileError(
                f"{func.name}: loop {loop.loop_var.name}: expected a constant extent to vectorize, "
                f"got {loop.extent}: split it by a constant and vectorize the inner loop"
            )
    return with_body(func, _Loops(func, vector_bytes, mask_registers).stmt(func.body))


def _is_vectorized(node: object) -> bool:
    return isinstance(node, s.For) and node.kind == ForKind.VECTORIZED


class _Loops(ScopedMutator):
    """Goes down to the vectorized loops, with the facts that hold there; inner loops first."""

    def __init__(self, func: PrimFunc, vector_bytes: int, mask_registers: bool) -> None:
        super().__init__(prover_of(func))
        self._name = func.name
        # The bytes of a vector, on a target with mask registers; otherwise 0.
        self._masked_bytes = vector_bytes if mask_registers else 0
        self._padded: frozenset[Buffer] = frozenset()
        self._conditions: dict[Var, PrimExpr] = {}  # the conditions by their names

    def visit_For(self, node: s.For) -> Stmt:
        if node.kind == ForKind.VECTORIZED:
            narrowed = _narrowed(node, self._prover)
            widened = self._widened(narrowed)
            return self._vectorized(widened, has_new_lanes=widened is not narrowed)
        return super().visit_For(node)

    def visit_LetStmt(self, node: s.LetStmt) -> Stmt:
        if node.value.dtype.is_bool and not loads(node.value):
            self._conditions[node.var] = node.value
        return super().visit_LetStmt(node)

    def under(self, condition: PrimExpr, body: Stmt) -> Stmt:
        named = self._conditions.get(condition) if isinstance(condition, Var) else None
        return super().under(condition if named is None else named, body)

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        outside = self._padded
        if node.attr_key == "padded_buffer":
            self._padded = outside | {node.node}
        made = self.descend(node)
        self._padded = outside
        return made

    def visit_Allocate(self, node: s.Allocate) -> Stmt:
        made = in_whole_vectors(node, self._masked_bytes)
        outside = self._padded
        if made is not None:
            self._padded = outside | {made.buffer}
        result: Stmt = self.descend(node if made is None else made)
        self._padded = outside
        return result

    def _widened(self, node: s.For) -> s.For:
        """A loop that calls functions as one vector with masked lanes, where the target has
        registers for masks, in place of several narrow ones."""
        lanes = e.const_int(node.extent) or 0
        stores = [*find(BufferStore, node.body)]
        size = max((each.buffer.dtype.itemsize for each in stores), default=1)
        width = whole_width(lanes, self._masked_bytes // size)
        if width is None or not is_stable(node.min, node.body):
            return node
        calls = find(Call, node.body)
        if not any(each.op in INTRINSICS and INTRINSICS[each.op].is_long for each in calls):
            return node
        # Padding isn't `likely` here: a padded buffer needn't have these lanes.
        body = s.IfThenElse(node.loop_var < node.min + node.extent, node.body)
        return with_fields(node, extent=e.const(width, node.extent.dtype), body=body)

    def _vectorized(self, node: s.For, *, has_new_lanes: bool = False) -> Stmt:
        lanes = e.const_int(node.extent)
        assert lanes is not None
        if lanes <= 0:
            return s.seq()
        if lanes == 1:
            return self.stmt(s.LetStmt(node.loop_var, node.min, node.body))
        if _must_stay_serial(node):
            return self.stmt(_serial(node))
        if not is_stable(node.min, node.body):  # the begin is read once, before the first iteration
            begin = Var(f"{node.loop_var.name}_begin", node.loop_var.dtype)
            rest = rebuild(node, {"min": begin})
            return self.stmt(s.LetStmt(begin, node.min, rest))
        width = min(MAX_LANES, _natural_width(lanes))
        if width < lanes:
            return self.stmt(_strips(node, lanes, width))
        with self.in_loop(node):
            if node.annotations.get(s.INDEPENDENT):
                try:
                    return _Lanes(node, self._prover, self._padded, {}, has_new_lanes).body()
                except _StaysSerial:
                    return self.stmt(_serial(node))
            where = f"{self._name}: loop {node.loop_var.name} (vectorized)"
            dependence = LaneDependence(where, node, self._prover, self._padded)
            try:
                folds = dependence.folds
                made = _Lanes(node, self._prover, self._padded, folds, has_new_lanes).body()
            except _StaysSerial:
                return self.stmt(_serial(node))
            dependence.check()
            return made


def _serial(node: s.For) -> s.For:
    return s.For(node.loop_var, node.min, node.extent, ForKind.SERIAL, node.body, node.annotations)


def _natural_width(lanes: int) -> int:
    """The lanes of a vector that suits the machine. It is `lanes` itself if this is a power of two,
    or small; the greatest power of two that divides `lanes`, if a few such vectors make up the
    whole; and otherwise the greatest power of two below `lanes`."""
    power = lanes & -lanes
    if lanes == power or lanes < 2 * _LEAST_STRIP:
        return lanes
    if power >= _LEAST_STRIP and lanes <= _FEW_STRIPS * power:
        return power
    return 1 << (lanes.bit_length() - 1)


def _narrowed(node: s.For, prover: Prover) -> s.For:
    """A loop with fewer lanes, if guards exclude the other lanes from its whole body: the tail of a
    row need not be as wide as a tile. The number of remaining lanes is a power of two, and at least
    a vector's."""
    lanes, begin = e.const_int(node.extent), e.const_int(node.min)
    if lanes is None or begin is None:
        return node
    constant = [each for each in limits(prover, node) if each.factor < 0 and not each.rest.terms]
    used = [each.rest.constant // -each.factor + 1 - begin for each in constant]
    if not used or min(used) < 1:
        return node
    width = 1 << max(1, (min(used) - 1).bit_length())
    if width >= lanes:
        return node
    held = [limit.guards for limit, end in zip(constant, used, strict=True) if end >= width]
    body = Without(chain.from_iterable(held)).stmt(node.body)
    return with_fields(node, extent=e.const(width, node.extent.dtype), body=body)


def _strips(node: s.For, lanes: int, width: int) -> Stmt:
    """A loop over vectors of `width` lanes, and one vector of the remaining lanes."""
    var, dtype = node.loop_var, node.loop_var.dtype
    count, rest = divmod(lanes, width)

    def strip(begin: PrimExpr, width: int) -> Stmt:
        lane = Var(var.name, dtype, axis=var.axis)
        body = substitute(node.body, {var: lane})
        extent = e.const(width, dtype)
        return s.For(lane, begin, extent, ForKind.VECTORIZED, body, node.annotations)

    if count == 1:
        return s.seq(strip(node.min, width), strip(node.min + e.const(width, dtype), rest))
    strip_var = Var(f"{var.name}_strip", dtype)
    first = strip(node.min + strip_var * e.const(width, dtype), width)
    kind = ForKind.UNROLLED if count <= _FEW_STRIPS else ForKind.SERIAL
    made: Stmt = s.For(strip_var, e.const(0, dtype), e.const(count, dtype), kind, first)
    if rest:
        made = s.seq(made, strip(node.min + e.const(count * width, dtype), rest))
    return made


def _must_stay_serial(loop: s.For) -> bool:
    nodes = list(walk_once(loop.body))
    lanes = {each.args[0] for each in nodes if isinstance(each, Call) and _is_own_lane(each, loop)}
    return any(each not in lanes and _is_only_serial(each) for each in nodes)


def _is_own_lane(node: Call, loop: s.For) -> bool:
    """Whether a call extracts from a named vector the lane with the number of the iteration."""
    if node.op != "vector_extract" or node.args[1] is not loop.loop_var:
        return False
    return isinstance(node.args[0], Var)


def _is_only_serial(node: Any) -> bool:
    """Whether a node has no vector form, so that it must run lane after lane."""
    if isinstance(node, Call) and node.op not in FUNCTIONS:
        return True
    if isinstance(node, s.For):
        return node.kind not in (ForKind.SERIAL, ForKind.UNROLLED)
    if isinstance(node, BufferLoad | BufferStore) and node.buffer.dtype.lanes > 1:
        return True
    return isinstance(node, s.While) or (isinstance(node, PrimExpr) and node.dtype.lanes > 1)


class _StaysSerial(Exception):
    """Raised where the loop's body turns out to have no vector form."""


@final
@record(frozen=False)
class _Region:
    """A part of the body in which some lanes are off. `mask` holds the lanes that are on, and
    `firm` the lanes that would be on without ``likely`` guards; None for all lanes. `conditions`
    are the mask's conditions in scalar form, where they have one. `is_reached`: at least one lane
    is on.

    `needs_a_lane` is set by a statement that runs once for all lanes, which is wrong if no lane is
    on.
    """

    mask: PrimExpr | None = None
    firm: PrimExpr | None = None
    conditions: tuple[PrimExpr, ...] = ()
    is_reached: bool = True
    needs_a_lane: bool = False


@final
class _Lanes(LaneArithmetic):
    """Rewrites the body of one loop. Some lanes of an access or a statement may be masked off."""

    def __init__(
        self,
        loop: s.For,
        prover: Prover,
        padded: frozenset[Buffer],
        folds: dict[BufferStore, Fold],
        has_new_lanes: bool,
    ) -> None:
        super().__init__(loop, prover)
        self._padded = padded
        self._has_new_lanes = has_new_lanes  # that padding needn't have
        self._folds = folds
        self._private: dict[Buffer, Buffer] = {}
        self._region = _Region()
        self._choices: SureChoices = {}

    def body(self) -> Stmt:
        """The vector form of the loop."""
        return self.stmt(self._loop.body)

    @contextmanager
    def _in(self, region: _Region) -> Iterator[None]:
        outside, self._region = self._region, region
        try:
            with self._apart():
                yield
        finally:
            self._region = outside

    # -- Expressions ------------------------------------------------------------------------------

    def visit_BufferLoad(self, node: BufferLoad) -> PrimExpr:
        pieces = pieces_of_read(node, self._loop, self._prover)
        if pieces is None:
            return self._load(node)
        with self._prover.scope():
            for each in self._region.conditions:
                if not loads(each):
                    self._prover.assume(each)
            is_right = self._prover.can_prove(pieces.in_each_lane)
        if is_right:
            return self.expr(pieces.choice)
        values = self.expr(pieces.choice), self._load(node)
        return Call(values[0].dtype, "if_then_else", (self.expr(pieces.in_all_lanes), *values))

    def _load(self, node: BufferLoad) -> PrimExpr:
        indices = self._indices(node.buffer, node.indices)
        where = None if node.predicate is None else self.expr(node.predicate)
        buffer = self._private.get(node.buffer, node.buffer)
        if any(map(self._is_vector, indices)):
            if where is None and self._region.mask is not None and self._is_inside(node):
                return BufferLoad(buffer, indices)
            return BufferLoad(buffer, indices, self._predicate(node.buffer, where))
        if where is not None and self._is_vector(where):
            where = self._some_lane(where)
        if not self._region.is_reached and not self._exists(node):
            self._once()
        return BufferLoad(buffer, indices, where)

    def _exists(self, node: BufferLoad | BufferStore) -> bool:
        """Whether an element exists regardless of the conditions around it."""
        if node.predicate is not None:
            return False
        for index, extent in zip(node.indices, node.buffer.shape, strict=True):
            if not self._prover.is_index_arithmetic(index):
                return False
            form = self._prover.affine(index)
            if not self._prover.proves(form, self._prover.affine(extent) - form - 1):
                return False
        return True

    def _is_inside(self, node: BufferLoad | BufferStore) -> bool:
        """Whether an element exists in every lane, also in those that are off."""
        is_padding = node.buffer in self._padded and not self._has_new_lanes
        return is_padding or self._exists(node)

    def _indices(self, buffer: Buffer, indices: tuple[PrimExpr, ...]) -> tuple[PrimExpr, ...]:
        made = tuple(map(self.expr, indices))
        if any(self._is_vector(each) and not isinstance(each, e.Ramp) for each in made):
            alone = {dim: index for index, dim in joined(buffer, indices)}
            single = {dim for dim, extent in enumerate(buffer.shape) if e.const_int(extent) == 1}
            made = tuple(
                each if alone.get(dim) is index or dim in single else self._digit(index)
                for dim, (each, index) in enumerate(zip(made, indices, strict=True))
            )
        if buffer not in self._private:
            return made
        return (*made, e.Ramp(e.const(0), e.const(1), self._lanes))

    def _digit(self, node: PrimExpr) -> PrimExpr:
        """A digit of a number that differs between lanes, as a vector in a form that shows,
        together with the digits in the other dimensions, that they are digits of the same
        number."""
        if not isinstance(node, e.FloorDiv | e.FloorMod):
            return self.expr(node)
        a, b = self._digit(node.a), self.expr(node.b)
        if not self._is_vector(a):
            return rebuild(node, {"a": a, "b": b})
        return rebuild(node, {"a": a, "b": self._vector(b)})

    def _predicate(self, buffer: Buffer, own: PrimExpr | None) -> PrimExpr | None:
        """The mask of an access, `own` predicate included; None for all lanes."""
        region = self._region
        return self._with(region.firm if buffer in self._padded else region.mask, own)

    def _with(self, mask: PrimExpr | None, own: PrimExpr | None) -> PrimExpr | None:
        if own is None or mask is None:
            return mask if own is None else self._vector(own)
        return e.And(mask, self._vector(own))

    def _once(self) -> None:
        """Notes that a statement runs once for all lanes that are on."""
        self._region.needs_a_lane = self._region.needs_a_lane or not self._region.is_reached

    def _some_lane(self, mask: PrimExpr) -> PrimExpr:
        return Call(BOOL, "vector_reduce_or", (e.const(False), mask))

    def visit_Call(self, node: Call) -> PrimExpr:
        if node.op == "if_then_else":
            return self._lazy_choice(node)
        if _is_own_lane(node, self._loop):
            return self._all_lanes(node.args[0])
        args = tuple(map(self.expr, node.args))
        if not any(map(self._is_vector, args)):
            return Call(node.dtype, node.op, args)
        if node.op == "isnullptr":
            raise _StaysSerial
        return Call(self._wide(node.dtype), node.op, tuple(map(self._vector, args)))

    def _all_lanes(self, vector: PrimExpr) -> PrimExpr:
        """A vector of values, one for each lane of the loop."""
        if e.const_int(self._loop.min) != 0 or vector.dtype.lanes != self._lanes:
            raise _StaysSerial
        return vector

    def _lazy_choice(self, node: Call) -> PrimExpr:
        """A choice that differs between lanes computes both values, each under its own mask."""
        condition, a, b = node.args
        chosen = self.expr(condition)
        if isinstance(chosen, e.IntImm):
            return self.expr(a if chosen.value else b)
        if not self._is_vector(chosen):
            if self._is_late_choice(node):
                return self.expr(e.Select(condition, a, b))
            a, b = self.expr(a), self.expr(b)
            if self._is_vector(a) or self._is_vector(b):
                a, b = self._vector(a), self._vector(b)
            return Call(a.dtype, node.op, (chosen, a, b))
        shared = choices_in_both(a, b, self._choices)
        for each in shared:
            self.expr(each)
        evaluated = surely_evaluated(condition, *shared)
        known = {each: self._made[each] for each in evaluated if each in self._made}
        values = [self._under(chosen, a, known), self._under(e.Not(chosen), b, known)]
        return e.Select(chosen, *map(self._vector, values))

    def _is_late_choice(self, node: Call) -> bool:
        """Whether data decide, so that no branch can be predicted, between values that take less
        time than a mispredicted branch."""
        condition, *values = node.args
        return loads(condition) and all(map(self._is_quick, walk_once(*values)))

    def _is_quick(self, node: PrimExpr) -> bool:
        if isinstance(node, Call):
            return node.op in INTRINSICS and not INTRINSICS[node.op].is_long
        if not isinstance(node, BufferLoad):
            return True
        with self._prover.scope():
            if mentions(self._loop.loop_var, node):  # it is read only in the lanes that are on
                for each in self._region.conditions:
                    if not loads(each):
                        self._prover.assume(each)
            return self._exists(node)

    def _under(
        self, condition: PrimExpr, value: PrimExpr, known: Mapping[PrimExpr, PrimExpr]
    ) -> PrimExpr:
        """`value` computed in the lanes where `condition` holds. Values are `known` of expressions
        that are computed outside as well, in more lanes."""
        outside = self._region
        region = _Region(
            _both(outside.mask, condition), _both(outside.firm, condition), is_reached=False
        )
        with self._in(region):
            self._made.update(known)
            made = self.expr(value)
        if not region.needs_a_lane:
            return made
        assert region.mask is not None
        zero = e.const(0, made.dtype)
        return Call(made.dtype, "if_then_else", (self._some_lane(region.mask), made, zero))

    # -- Statements -------------------------------------------------------------------------------

    def visit_BufferStore(self, node: BufferStore) -> Stmt:
        fold = self._folds.get(node)
        if fold is not None:
            return self._folded(node, fold)
        value = self.expr(node.value)
        indices = self._indices(node.buffer, node.indices)
        where = None if node.predicate is None else self.expr(node.predicate)
        buffer = self._private.get(node.buffer, node.buffer)
        differs = any(map(self._is_vector, (*indices, value)))
        if not differs and (where is None or not self._is_vector(where)):
            self._once()
            return BufferStore(buffer, value, indices, where)
        if not indices:
            raise _StaysSerial  # there is no index to make a vector of
        predicate = self._predicate(node.buffer, where)
        if not any(map(self._is_vector, indices)):  # one element: the last lane's value remains
            indices = (*indices[:-1], self._vector(indices[-1]))
            predicate = self._with(self._region.mask, where)
        elif predicate is not None and buffer.scope == "local" and self._is_inside(node):
            # Only this loop accesses these elements. A choice keeps them in registers; a masked
            # store wouldn't.
            value = e.Select(predicate, self._vector(value), BufferLoad(buffer, indices))
            predicate = None
        return BufferStore(buffer, self._vector(value), indices, predicate)

    def _folded(self, node: BufferStore, fold: Fold) -> Stmt:
        """Vectorises ``C[i] = C[i] + x`` for every lane; lanes that are off add the identity."""
        lanes = self._vector(self.expr(fold.value))
        mask = self._region.mask
        if mask is not None:
            neutral = _identity(fold.name, node.value.dtype)
            lanes = e.Select(mask, lanes, e.Broadcast(neutral, self._lanes))
        self._once()
        start = self.expr(fold.load)
        indices = tuple(map(self.expr, node.indices))
        total = Call(node.value.dtype, fold.name, (start, lanes))
        return BufferStore(node.buffer, total, indices)

    def visit_LetStmt(self, node: s.LetStmt) -> Stmt:
        value = self.expr(node.value)
        var = Var(node.var.name, value.dtype) if self._is_vector(value) else node.var
        scope = binding(self._prover, node.var, node.value, node.body)
        with self._binding(node.var, var), scope:
            return s.LetStmt(var, value, self.stmt(node.body))

    def visit_For(self, node: s.For) -> Stmt:
        low, extent = self.expr(node.min), self.expr(node.extent)
        if self._is_vector(low) or self._is_vector(extent):
            raise _StaysSerial
        with self._binding(node.loop_var, node.loop_var), in_loop(self._prover, node):
            body = self.stmt(node.body)
        return s.For(node.loop_var, low, extent, node.kind, body, node.annotations)

    def visit_IfThenElse(self, node: s.IfThenElse) -> Stmt:
        condition, likely = node.condition, is_likely(node.condition)
        if is_likely(condition):
            (condition,) = condition.args
        if isinstance(condition, e.And) and node.else_case is None:
            return self.stmt(_nested(condition, likely, node.then_case))
        made = self.expr(condition)
        if self._is_vector(made):
            return self._masked(node, condition, made, likely)
        if isinstance(made, e.IntImm):
            chosen = node.then_case if made.value else node.else_case
            return s.seq() if chosen is None else self.stmt(chosen)
        then_case = self._assuming(condition, node.then_case)
        else_case = node.else_case
        if else_case is not None:
            else_case = self._assuming(e.logical_not(condition), else_case)
        if likely:
            made = Call(BOOL, "likely", (made,))
        return s.IfThenElse(made, then_case, else_case)

    def _assuming(self, condition: PrimExpr, body: Stmt) -> Stmt:
        with self._apart(), assuming(self._prover, condition, body):
            return self.stmt(body)

    def _masked(
        self, node: s.IfThenElse, condition: PrimExpr, made: PrimExpr, likely: bool
    ) -> Stmt:
        """Both cases, each under its mask; `made` is the mask of the scalar `condition`."""
        holds = Var("mask", made.dtype)
        then_case = self._in_lanes(holds, condition, likely, node.then_case)
        if node.else_case is None:
            return _named(holds, made, then_case)
        otherwise = e.Not(holds)
        else_case = self._in_lanes(otherwise, e.logical_not(condition), likely, node.else_case)
        return _named(holds, made, s.seq(then_case, else_case))

    def _in_lanes(self, holds: PrimExpr, condition: PrimExpr, likely: bool, body: Stmt) -> Stmt:
        outside = self._region
        mask = _both(outside.mask, holds)
        if likely:
            firm = outside.firm
        else:
            firm = mask if outside.firm is outside.mask else _both(outside.firm, holds)
        name = mask if isinstance(mask, Var) else Var("mask", mask.dtype)  # computed once
        conditions = (*outside.conditions, condition)
        is_reached = outside.is_reached and self._is_reached(conditions)
        region = _Region(name, name if firm is mask else firm, conditions, is_reached)
        with self._in(region):
            made = self.stmt(body)
        if region.needs_a_lane:
            made = s.IfThenElse(self._some_lane(name), made)
        return made if name is mask else _named(name, mask, made)

    def _is_reached(self, conditions: tuple[PrimExpr, ...]) -> bool:
        """Whether `conditions` surely hold in the first lane, or in the last."""
        var, low = self._loop.loop_var, self._loop.min
        ends = (low, low + e.const(self._lanes - 1, var.dtype))
        return any(
            all(self._prover.can_prove(substitute(each, {var: end})) for each in conditions)
            for end in ends
        )

    def visit_Allocate(self, node: s.Allocate) -> Stmt:
        """Gives each lane a buffer of its own, next to the buffers of the other lanes."""
        buffer = node.buffer
        shape = tuple(map(self.expr, buffer.shape))
        plain = not buffer.strides and buffer.elem_offset is None and buffer.dtype.lanes == 1
        if not plain or any(map(self._is_vector, shape)):
            raise _StaysSerial
        lanes = e.const(self._lanes, shape[0].dtype if shape else INT32)
        made = Buffer(
            Var(buffer.data.name, HANDLE), (*shape, lanes), buffer.dtype, buffer.name,
            scope=buffer.scope, data_alignment=buffer.data_alignment,
        )  # fmt: skip
        outside, self._private = self._private, {**self._private, buffer: made}
        try:
            with self._apart():
                return s.Allocate(made, self.stmt(node.body))
        finally:
            self._private = outside

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        value = self.expr(node.value)
        if self._is_vector(value):
            raise _StaysSerial
        subject = node.node
        outside = self._padded
        if node.attr_key == "padded_buffer":
            self._padded = outside | {subject}
        if isinstance(subject, Buffer):
            subject = self._private.get(subject, subject)
        with self._apart():
            body = self.stmt(node.body)
        self._padded = outside
        return s.AttrStmt(subject, node.attr_key, value, body)

    def visit_AssertStmt(self, node: s.AssertStmt) -> Stmt:
        condition = self.expr(node.condition)
        values = tuple(map(self.expr, node.values))
        mask = self._region.mask
        if mask is not None:
            condition = e.Or(self._vector(condition), e.Not(mask))
            body = self.stmt(node.body)
        else:
            body = self._assuming(node.condition, node.body)
        if not self._is_vector(condition):
            values = tuple([self._lane(each, e.const(0)) for each in values])
            return s.AssertStmt(condition, node.message, body, values, node.kind)
        lane, holds = Var("lane", INT64), Var("holds", condition.dtype)
        check: Stmt = s.AssertStmt(
            self._lane(holds, lane), node.message, s.seq(),
            tuple([self._lane(each, lane) for each in values]), node.kind,
        )  # fmt: skip
        lanes = e.const(self._lanes, INT64)
        check = s.For(lane, e.const(0, INT64), lanes, ForKind.SERIAL, check)
        everywhere = Call(BOOL, "vector_reduce_and", (e.const(True), holds))
        return s.LetStmt(holds, condition, s.seq(s.IfThenElse(e.Not(everywhere), check), body))

    def _lane(self, value: PrimExpr, lane: PrimExpr) -> PrimExpr:
        if not self._is_vector(value):
            return value
        return Call(value.dtype.element, "vector_extract", (value, lane))


def _named(name: Var, value: PrimExpr, body: Stmt) -> Stmt:
    """`body` inside of a binding of `name` to the value, if it uses the name."""
    used = mentions(name, body)
    return s.LetStmt(name, value, body) if used else body


def _both(a: PrimExpr | None, b: PrimExpr) -> PrimExpr:
    return b if a is None else e.And(a, b)


def _nested(condition: e.And, likely: bool, body: Stmt) -> Stmt:
    """``if a and b`` as two nested conditions: one of them may be the same in all lanes."""
    for part in (condition.b, condition.a):
        guard = Call(BOOL, "likely", (part,)) if likely and not is_likely(part) else part
        body = s.IfThenElse(guard, body)
    return body


def _identity(name: str, dtype: DType) -> PrimExpr:
    match name:
        case "vector_reduce_add":
            return e.const(-0.0 if dtype.is_float else 0, dtype)
        case "vector_reduce_mul":
            return e.const(1.0 if dtype.is_float else 1, dtype)
        case "vector_reduce_min":
            return e.const(float("inf") if dtype.is_float else dtype.max(), dtype)
        case "vector_reduce_max":
            return e.const(float("-inf") if dtype.is_float else dtype.min(), dtype)
        case "vector_reduce_and":
            return e.const(dtype.max() if not dtype.is_int else -1, dtype)
    return e.const(0, dtype)
