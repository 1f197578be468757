"""Indices in 64 bits."""

from __future__ import annotations

from typing import Any

from minitvm import expr as e
from minitvm import stmt as s
from minitvm.expr import PrimExpr, Var, cast
from minitvm.functor import Mutator, rebuild
from minitvm.runtime.dtype import INT64, DType
from minitvm.stmt import PrimFunc, Stmt, with_body

_ARITHMETIC = (e.Add, e.Sub, e.Mul, e.Div, e.Mod, e.FloorDiv, e.FloorMod, e.Min, e.Max)


def widen_indices(func: PrimFunc) -> PrimFunc:
    """Loops count in 64 bits, and indices are computed in them, so that neither overflows where the
    language's int32 would. Values keep the dtype that the program gave them.

    Before::

        for i: int32 in range(n):
            A[i * 4 + 1] = float32(i)

    After::

        for i: int64 in range(int64(n)):
            A[i * 4 + 1] = float32(int32(i))
    """
    return with_body(func, _Widen().stmt(func.body))


def _is_narrow(dtype: DType) -> bool:
    return dtype.is_int and dtype.bits == 32


class _Widen(Mutator):
    """Rewrites values; :meth:`index` rewrites what is an index."""

    def __init__(self) -> None:
        super().__init__()
        self._wide: dict[Var, Var] = {}
        self._indices_made: dict[PrimExpr, PrimExpr] = {}

    def index(self, node: PrimExpr) -> PrimExpr:
        """`node` as a 64-bit value, its arithmetic done in 64 bits."""
        made = self._indices_made.get(node)
        if made is None:
            made = self._indices_made[node] = self._widened(node)
        return made

    def _widened(self, node: PrimExpr) -> PrimExpr:
        if not _is_narrow(node.dtype.element):
            return self.expr(node)
        wide = INT64.with_lanes(node.dtype.lanes)
        match node:
            case Var():
                return self._wide[node] if node in self._wide else cast(wide, node)
            case e.IntImm():
                return e.IntImm(INT64, node.value)
            case e.Ramp():
                return e.Ramp(self.index(node.base), self.index(node.stride), node.lanes)
            case e.Broadcast():
                return e.Broadcast(self.index(node.value), node.lanes)
            case e.Select():
                branches = (self.index(node.true_value), self.index(node.false_value))
                return e.Select(self.expr(node.condition), *branches)
            case e.Call(op="if_then_else"):
                condition, yes, no = node.args
                args = (self.expr(condition), self.index(yes), self.index(no))
                return e.Call(wide, node.op, args)
            case e.Call(op="likely"):
                return self.index(node.args[0])
            case e.Let():  # the name keeps its dtype: it may be in values, too
                return e.Let(node.var, self.expr(node.value), self.index(node.body))
            case _ if isinstance(node, _ARITHMETIC):
                return rebuild(node, {"a": self.index(node.a), "b": self.index(node.b)})  # type: ignore[no-any-return]  # the same class again
            case _:
                return cast(wide, self.expr(node))

    def visit_Var(self, node: Var) -> PrimExpr:
        wide = self._wide.get(node)
        return node if wide is None else cast(node.dtype, wide)

    def _indices(self, indices: tuple[PrimExpr, ...]) -> tuple[PrimExpr, ...]:
        return tuple(self.index(i) for i in indices)

    def visit_BufferLoad(self, node: e.BufferLoad) -> PrimExpr:
        return e.BufferLoad(node.buffer, self._indices(node.indices), self._where(node))

    def visit_BufferStore(self, node: s.BufferStore) -> Stmt:
        indices = self._indices(node.indices)
        return s.BufferStore(node.buffer, self.expr(node.value), indices, self._where(node))

    def _where(self, node: e.BufferLoad | s.BufferStore) -> PrimExpr | None:
        return None if node.predicate is None else self.expr(node.predicate)

    def visit_Call(self, node: e.Call) -> PrimExpr:
        if node.op != "tvm_access_ptr":
            return self.descend(node)  # type: ignore[no-any-return]  # a Call again
        reference, offset, extent, mask = node.args
        return e.Call(node.dtype, node.op, (reference, *self._indices((offset, extent)), mask))

    def visit_For(self, node: s.For) -> Stmt:
        if not _is_narrow(node.loop_var.dtype):
            return self.descend(node)  # type: ignore[no-any-return]  # a For again
        begin, extent = self.index(node.min), self.index(node.extent)
        narrow = node.loop_var
        wide = self._wide.get(narrow)  # of another loop beside this one, whose copy it may be
        if wide is None:
            wide = self._wide[narrow] = Var(narrow.name, INT64, axis=narrow.axis)
        return s.For(wide, begin, extent, node.kind, self.stmt(node.body), node.annotations)

    def _compare(self, node: Any) -> PrimExpr:
        """Comparisons of loop variables, as guards of edges are, stay in 64 bits too."""
        if _is_narrow(node.a.dtype.element) and self._mentions_loop(node):
            return rebuild(node, {"a": self.index(node.a), "b": self.index(node.b)})  # type: ignore[no-any-return]  # the same class again
        return self.descend(node)  # type: ignore[no-any-return]  # the same class again

    visit_EQ = visit_NE = visit_LT = visit_LE = visit_GT = visit_GE = _compare

    def _mentions_loop(self, node: e.Comparison) -> bool:
        """Whether both sides are index arithmetic, and a loop's variable is in it."""
        found = False
        stack: list[PrimExpr] = [node.a, node.b]
        while stack:
            each = stack.pop()
            if isinstance(each, Var):
                found = found or each in self._wide
            elif isinstance(each, _ARITHMETIC):
                stack.extend((each.a, each.b))
            elif not isinstance(each, e.IntImm):
                return False
        return found
