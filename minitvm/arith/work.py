"""The work of a piece of a program: the operations that count, and their weights.

There are three measures. `estimated_work` is a formula of symbolic sizes; it decides at the call
whether threads are used and the GIL is released. `statements_run` and `code_size` are rough numbers
by which passes weigh a loop against its copies. `value_operations` are the operations that compute
values, without those of indices, for reports.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import TypeAlias, TypeGuard, final

from minitvm.arith.effects import is_lazy
from minitvm.arith.fused_index import joined
from minitvm.runtime.dtype import FLOAT64
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, PrimExpr, Var
from minitvm.tir.functor import children, find, mentions, substitute, walk_once
from minitvm.tir.intrinsics import INTRINSICS
from minitvm.tir.provenance import Kind
from minitvm.tir.stmt import ForKind, Stmt

_C_FUNCTION = 50_000.0  # of a C function, whose work is unknown: enough for threads
TRIPS_FROM_DATA = 16.0  # of a loop whose extent is read from data
_FEW = 4  # iterations of which each is looked at, where they differ
USUAL_TRIPS = 128  # of a loop whose extent is no constant, where a number has to do
_LEAVES = (e.Var, e.IntImm, e.FloatImm, e.StringImm, e.BufferRef)


# -- The operations of values ---------------------------------------------------------------------


def value_operations(*roots: PrimExpr) -> Iterator[tuple[Kind, PrimExpr]]:
    """The operations that compute values, each with its kind; an object that occurs several times
    counts once. Operations of indices and of conditions are left out.

    >>> x = Var("x", "float32")
    >>> [kind for kind, _ in value_operations(e.Select(x + 1.0 > x, x * 2.0, x))]
    [('float32',)]
    """
    waiting: list[object] = [*roots]
    seen = set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or isinstance(node, (e.ProducerLoad, e.BufferLoad, e.Comparison)):
            continue
        seen.add(id(node))
        if not isinstance(node, PrimExpr):
            continue
        if isinstance(node, e.Arithmetic) or (isinstance(node, e.Call) and _is_function(node)):
            yield _kind(node), node
        is_choice = isinstance(node, e.Select) or is_lazy(node)
        waiting += [*children(node)][1 if is_choice else 0 :]


def named_operations(
    *roots: PrimExpr, values: Container[object] = ()
) -> Iterator[tuple[str, PrimExpr]]:
    """The operations of every kind that compute and move values, each with the name of its kind; an
    object that occurs several times counts once. Operations of indices, and of conditions on
    indices alone, are left out, except for the elements that they read. `values` are variables that
    are no indices.

    >>> x = Var("x", "float32")
    >>> [name for name, _ in named_operations(e.Max(x * x + 1.0, e.Cast("float32", x / x)))]
    ['minima and maxima', 'divisions', 'multiply-adds']
    """
    waiting: list[tuple[object, bool]] = [(root, False) for root in roots]
    seen = set[int]()
    while waiting:
        node, in_index = waiting.pop()
        if id(node) in seen or not isinstance(node, PrimExpr):
            continue
        seen.add(id(node))
        is_load = isinstance(node, (e.ProducerLoad, e.BufferLoad))
        if isinstance(node, (e.Comparison, e.Logic)) and not in_index:
            in_index = not any(_is_load(each) or each in values for each in walk_once(node))
        name = "loads" if is_load else "" if in_index else _name(node)
        if name:
            yield name, node
        product = _product_of(node) if name == "multiply-adds" else None
        if product is not None:
            seen.add(id(product))
            waiting += [(each, False) for each in children(product)]
        waiting += [(each, in_index or is_load) for each in children(node)]


def _is_load(node: object) -> bool:
    return isinstance(node, (e.ProducerLoad, e.BufferLoad))


def _name(node: PrimExpr) -> str:
    """The kind of an operation on values; None for a node that computes nothing."""
    if is_lazy(node):
        return "selections"
    if isinstance(node, e.Call):
        if _is_function(node):
            return str(_kind(node))
        return node.op if node.op in INTRINSICS else ""
    if isinstance(node, e.Cast) and node.dtype.element is node.value.dtype.element:
        return ""
    if _product_of(node) is not None:
        return "multiply-adds"
    return _NAMES.get(type(node), "")


def _product_of(node: PrimExpr) -> e.Mul | None:
    """The product that an addition of floats adds."""
    if not isinstance(node, (e.Add, e.Sub)) or not node.dtype.is_float:
        return None
    return next((each for each in (node.a, node.b) if isinstance(each, e.Mul)), None)


def products_in(term: PrimExpr, is_subtracted: bool = False) -> Iterator[tuple[PrimExpr, bool]]:
    """The products that a term adds, and those that it subtracts (True), if it is a sum of products
    alone; otherwise nothing. With multiply-adds, each of them takes one operation of a larger sum.
    16-bit floats are rounded after each operation.

    >>> x, y = Var("x", "float32"), Var("y", "float32")
    >>> list(products_in(x * x - y * y)), list(products_in(x * x - y))
    ([(x * x, False), (y * y, True)], [])
    """
    if isinstance(term, (e.Add, e.Sub)) and term.dtype.is_float and term.dtype.bits > 16:
        a = [*products_in(term.a, is_subtracted)]
        b = [*products_in(term.b, is_subtracted != isinstance(term, e.Sub))]
        yield from (*a, *b) if a and b else ()
    elif isinstance(term, e.Mul):
        yield term, is_subtracted


_NAMES: dict[type, str] = {
    e.Add: "additions",
    e.Sub: "additions",
    e.Mul: "multiplications",
    e.Div: "divisions",
    e.FloorDiv: "divisions",
    e.Mod: "remainders",
    e.FloorMod: "remainders",
    e.Min: "minima and maxima",
    e.Max: "minima and maxima",
    **dict.fromkeys((e.EQ, e.NE, e.LT, e.LE, e.GT, e.GE), "comparisons"),
    e.And: "conditions combined",
    e.Or: "conditions combined",
    e.Not: "conditions combined",
    e.Select: "selections",
    e.Cast: "conversions",
}


def _is_function(call: e.Call) -> bool:
    return call.op in ("call_extern", "call_packed") or _is_math(call)


def _is_math(node: object) -> TypeGuard[e.Call]:
    return isinstance(node, e.Call) and node.op in INTRINSICS and node.dtype.is_float


def _kind(node: PrimExpr) -> Kind:
    if not isinstance(node, e.Call):
        return (str(node.dtype.with_lanes(1)),)
    name = node.args[0] if node.op.startswith("call_") and node.args else None
    return name.value if isinstance(name, e.StringImm) else node.op


# -- Statements, as rough numbers -----------------------------------------------------------------


def iterations(loop: s.For) -> int:
    """The trip count of a loop, at least one; a usual number stands for a symbolic extent."""
    known = e.const_int(loop.extent)
    return USUAL_TRIPS if known is None else max(known, 1)


def statements_run(node: Stmt) -> int:
    """About how many statements `node` runs."""
    below = sum(statements_run(child) for child in children(node) if isinstance(child, Stmt))
    return max(below, 1) * (iterations(node) if isinstance(node, s.For) else 1)


def code_size(node: Stmt) -> int:
    """The number of statements of `node` in the machine code, with unrolled loops written out."""
    below = sum(code_size(child) for child in children(node) if isinstance(child, Stmt))
    if isinstance(node, s.For) and node.kind == ForKind.UNROLLED:
        return below * max(e.const_int(node.extent) or 1, 1)
    return max(below, 1)


# -- Statements, as formulas ----------------------------------------------------------------------

_Count: TypeAlias = float | PrimExpr
KnownWork: TypeAlias = dict[Stmt, float]
"""The work of stores, and of loops that run alike wherever they are."""


def estimated_work(node: Stmt, known: KnownWork | None = None) -> PrimExpr:
    """The operations of `node`, as a ``float64`` expression of the variables outside of it. `known`
    keeps those of its parts for the next question about them.

    An extent that depends on a loop around it is evaluated in each iteration of that loop if there
    are up to four, and in the middle one otherwise. An extent that is read from data counts as 16.
    A C function, whose work is unknown, counts as enough for threads.

    >>> from minitvm.tir.buffer import decl_buffer
    >>> n, i, j = Var("n"), Var("i"), Var("j")
    >>> A = decl_buffer((n, n), "float32", "A")
    >>> store = s.BufferStore(A, A[i, j] + 1.0, (i, j))
    >>> zero, serial = e.const(0), s.ForKind.SERIAL
    >>> inner = s.For(j, zero, e.const(8), serial, store)
    >>> print(estimated_work(s.For(i, zero, n, serial, inner)))
    float64(n) * float64(24.0)
    """
    return _expression(_Estimate(_of_store, _operations, known).of(node))


def estimated_sum(
    node: Stmt,
    of_store: Callable[[s.BufferStore], float],
    of_other: Callable[[PrimExpr], float] = lambda other: 0.0,
) -> PrimExpr:
    """As :func:`estimated_work`; `of_store` gives the work of a store, and `of_other` the work of
    conditions and of the values of names."""
    return _expression(_Estimate(of_store, of_other).of(node))


def _has_loop_cut_by(var: Var, body: Stmt) -> bool:
    """Whether a loop inside has more iterations for some values of a variable than for others."""
    return any(mentions(var, each.extent) for each in find(s.For, body))


@final
class _Estimate:
    """Counts the work of statements. Known counts are plain floats, which are added much faster
    than expressions."""

    def __init__(
        self,
        of_store: Callable[[s.BufferStore], float],
        of_other: Callable[[PrimExpr], float],
        known: KnownWork | None = None,
    ) -> None:
        self._of_store = of_store
        self._of_other = of_other
        # The expression that stands for a variable bound inside; None if it is unknown.
        self._inside: dict[Var, PrimExpr | None] = {}
        self._known: KnownWork = {} if known is None else known
        self._is_alike = True  # whether the extents of the loops inside are constant

    def of(self, node: Stmt) -> _Count:
        if (found := self._known.get(node)) is not None:
            return found
        match node:
            case s.For():
                outside, self._is_alike = self._is_alike, e.const_int(node.extent) is not None
                made = self._of_loop(node)
                if self._is_alike and isinstance(made, float):
                    self._known[node] = made
                self._is_alike = self._is_alike and outside
                return made
            case s.While():
                return (self.of(node.body) + self._of_other(node.condition)) * TRIPS_FROM_DATA
            case s.SeqStmt():
                return _total(map(self.of, node.seq))
            case s.IfThenElse():
                longer = self.of(node.then_case)
                if node.else_case is not None:
                    longer = _greater(longer, self.of(node.else_case))
                return longer + self._of_other(node.condition)
            case s.LetStmt():
                self._inside[node.var] = self._outside(node.value)
                return self.of(node.body) + self._of_other(node.value)
            case s.AssertStmt():
                return self.of(node.body) + self._of_other(node.condition)
            case s.Allocate() | s.AttrStmt():
                return self.of(node.body)
            case s.BufferStore():
                work = self._known[node] = self._of_store(node)
                return work
            case s.Evaluate():
                return self._of_other(node.value)
        raise e.unknown_node(node, "estimated_work")

    def _of_loop(self, node: s.For) -> _Count:
        begin, extent = self._outside(node.min), self._outside(node.extent)
        middle = None
        trips: _Count = TRIPS_FROM_DATA
        if extent is not None:
            # In the middle iteration of a clipped loop, a loop inside may have no iterations left.
            depends = extent is not node.extent
            trips = _count(e.cast(FLOAT64, e.maximum(extent, 0) if depends else extent))
        if begin is not None and extent is not None:
            few = e.const_int(extent) or 0
            if 1 < few <= _FEW and _has_loop_cut_by(node.loop_var, node.body):
                return self._of_each(node, begin, few)
            middle = begin + e.truncdiv(extent, 2)
        self._inside[node.loop_var] = middle
        return trips * self.of(node.body)

    def _of_each(self, node: s.For, begin: PrimExpr, iterations: int) -> _Count:
        """The sum over the iterations of a loop, which differ."""

        def of_iteration(i: int) -> _Count:
            self._inside[node.loop_var] = begin + i
            return self.of(node.body)

        return _total(map(of_iteration, range(iterations)))

    def _outside(self, node: PrimExpr) -> PrimExpr | None:
        """`node` in terms of variables from outside; None where it depends on data."""
        if isinstance(node, e.IntImm):
            return node
        for each in walk_once(node):
            if isinstance(each, (e.BufferLoad, e.Call)):
                return None
            if isinstance(each, Var) and self._inside.get(each, each) is None:
                return None
        made: PrimExpr = substitute(node, {v: m for v, m in self._inside.items() if m is not None})
        return made


def _count(value: PrimExpr) -> _Count:
    """A count as a plain float if it is known."""
    return value.value if isinstance(value, e.FloatImm) else value


def _expression(count: _Count) -> PrimExpr:
    return count if isinstance(count, PrimExpr) else e.FloatImm(FLOAT64, count)


def _greater(a: _Count, b: _Count) -> _Count:
    return max(a, b) if isinstance(a, float) and isinstance(b, float) else e.maximum(a, b)


def _total(counts: Iterable[_Count]) -> _Count:
    total: _Count = 0.0
    for each in counts:
        total = total + each
    return total


def _of_store(node: s.BufferStore) -> float:
    if _in_registers(node.buffer):
        return _operations(node.value)
    indices = (index for index, _ in joined(node.buffer, node.indices))
    return float(node.value.dtype.lanes) + _operations(node.value, *indices)


def _in_registers(buffer: Buffer) -> bool:
    return buffer.scope == "local"


def _operations(*nodes: PrimExpr) -> float:
    """The machine's operations in expressions, those of indices included. Values in registers cost
    nothing; a product that is added is one operation together with the addition."""
    total = 0.0
    waiting = [*nodes]
    seen: dict[int, object] = {}  # the objects are kept, so that no others get their addresses
    while waiting:
        each = waiting.pop()
        if id(each) in seen or not isinstance(each, PrimExpr) or isinstance(each, _LEAVES):
            continue
        seen[id(each)] = each
        if isinstance(each, e.BufferLoad):
            if _in_registers(each.buffer):
                continue
            waiting += [index for index, _ in joined(each.buffer, each.indices)]
            waiting += [] if each.predicate is None else [each.predicate]
        else:
            waiting += children(each)
        if isinstance(each, e.Call) and each.op == "call_extern":
            return _C_FUNCTION
        if isinstance(each, (e.Ramp, e.Broadcast)):
            continue
        product = _product_of(each)
        if product is not None and id(product) not in seen:
            seen[id(product)] = product
            waiting += children(product)
        cost = INTRINSICS[each.op].cost if _is_math(each) else 1.0
        total += cost * each.dtype.lanes
    return total
