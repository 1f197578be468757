"""How much a statement computes: enough to tell whether threads pay."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from minitvm.runtime.dtype import FLOAT64
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import PrimExpr, Var
from minitvm.tir.functor import substitute, walk_once
from minitvm.tir.scalars import INTRINSICS
from minitvm.tir.stmt import Stmt

# Operations from which on a parallel loop starts threads: 0.8 us of vectorised code, which is where
# two threads that are awake begin to gain, and some 30 us of code that isn't vectorised.
LEAST_WORK = 50_000.0

_C_FUNCTION = LEAST_WORK  # of a C function: nobody knows what it does
_INTRINSIC = 16.0  # operations that a function such as exp counts for
_UNKNOWN_TRIPS = 16.0  # of a loop whose extent is read from data
_LEAVES = (e.Var, e.IntImm, e.FloatImm, e.StringImm, e.BufferRef)


def pays_threads(node: Stmt) -> PrimExpr:
    """Whether `node` is enough work for threads: a condition on variables outside of it."""
    return e.greater_equal(estimated_work(node), LEAST_WORK)


def estimated_work(node: Stmt) -> PrimExpr:
    """The operations of `node`, as a ``float64`` expression of the variables outside of it.

    An extent that depends on the loops around it counts as it is in their middle; one that is read
    from data, as 16. A C function counts as enough work for threads: nobody knows what it does.

    >>> from minitvm.tir.buffer import decl_buffer
    >>> n, i, j = Var("n"), Var("i"), Var("j")
    >>> A = decl_buffer((n, n), "float32", "A")
    >>> store = s.BufferStore(A, A[i, j] + 1.0, (i, j))
    >>> zero, serial = e.const(0), s.ForKind.SERIAL
    >>> inner = s.For(j, zero, e.const(8), serial, store)
    >>> print(estimated_work(s.For(i, zero, n, serial, inner)))
    float64(n) * float64(24.0)
    """
    return _Estimate(_of_store, _operations).of(node)


def estimated_sum(
    node: Stmt,
    of_store: Callable[[s.BufferStore], float],
    of_other: Callable[[PrimExpr], float] = lambda other: 0.0,
) -> PrimExpr:
    """As :func:`estimated_work`, where a store counts as `of_store` says, and conditions and the
    values of names as `of_other` does."""
    return _Estimate(of_store, of_other).of(node)


@final
class _Estimate:
    def __init__(
        self, of_store: Callable[[s.BufferStore], float], of_other: Callable[[PrimExpr], float]
    ) -> None:
        self._of_store = of_store
        self._of_other = of_other
        # What stands for a variable that is bound inside; None if that is unknown.
        self._inside: dict[Var, PrimExpr | None] = {}

    def of(self, node: Stmt) -> PrimExpr:
        match node:
            case s.For():
                begin, extent = self._outside(node.min), self._outside(node.extent)
                middle = None
                trips: PrimExpr = _number(_UNKNOWN_TRIPS)
                if extent is not None:
                    trips = e.cast(FLOAT64, extent)
                if begin is not None and extent is not None:
                    middle = begin + e.truncdiv(extent, 2)
                self._inside[node.loop_var] = middle
                return trips * self.of(node.body)
            case s.While():
                return (self.of(node.body) + self._of_other(node.condition)) * _UNKNOWN_TRIPS
            case s.SeqStmt():
                total = _number(0.0)
                for child in node.seq:
                    total = total + self.of(child)
                return total
            case s.IfThenElse():
                branches = s.seq(node.then_case, node.else_case or s.seq())
                return self.of(branches) + self._of_other(node.condition)
            case s.LetStmt():
                self._inside[node.var] = self._outside(node.value)
                return self.of(node.body) + self._of_other(node.value)
            case s.AssertStmt():
                return self.of(node.body) + self._of_other(node.condition)
            case s.Allocate() | s.AttrStmt():
                return self.of(node.body)
            case s.BufferStore():
                return _number(self._of_store(node))
            case s.Evaluate():
                return _number(self._of_other(node.value))
        raise e.unknown_node(node, "estimated_work")

    def _outside(self, node: PrimExpr) -> PrimExpr | None:
        """`node` in terms of variables from outside; None where data decides it."""
        if isinstance(node, e.IntImm):
            return node
        for each in walk_once(node):
            if isinstance(each, (e.BufferLoad, e.Call)):
                return None
            if isinstance(each, Var) and self._inside.get(each, each) is None:
                return None
        made: PrimExpr = substitute(node, {v: m for v, m in self._inside.items() if m is not None})
        return made


def _number(value: float) -> PrimExpr:
    return e.FloatImm(FLOAT64, value)


def _of_store(node: s.BufferStore) -> float:
    return float(node.value.dtype.lanes) + _operations(node.value, *node.indices)


def _operations(*nodes: PrimExpr) -> float:
    """The operations in expressions, those of indices included."""
    total = 0.0
    for each in walk_once(*nodes):
        if not isinstance(each, PrimExpr) or isinstance(each, _LEAVES):
            continue
        if isinstance(each, e.Call) and each.op == "call_extern":
            return _C_FUNCTION
        is_function = isinstance(each, e.Call) and each.op in INTRINSICS and each.dtype.is_float
        total += (_INTRINSIC if is_function else 1.0) * each.dtype.lanes
    return total
