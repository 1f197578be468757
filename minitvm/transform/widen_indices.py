"""Computes index arithmetic in 64 bits where 32 bits might overflow."""

from __future__ import annotations

from typing import Any

from minitvm.arith.facts import Interval
from minitvm.arith.prover import Prover
from minitvm.runtime.dtype import INT32, INT64, DType
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.buffer import with_layout
from minitvm.tir.expr import PrimExpr, Var, cast
from minitvm.tir.functor import Mutator, children, free_vars, rebuild, replace_buffers
from minitvm.tir.indices import is_exact_call, wraps
from minitvm.tir.stmt import PrimFunc, Stmt, with_body

_ARITHMETIC = (e.Add, e.Sub, e.Mul, e.Div, e.Mod, e.FloorDiv, e.FloorMod, e.Min, e.Max)


def widen_indices(func: PrimFunc) -> PrimFunc:
    """Makes loops count in 64 bits, and does index arithmetic (:mod:`minitvm.tir.indices`) in 64
    bits where int32 might overflow: in indices, bounds of loops and conditions, and in values where
    the result would differ. Values keep the dtype that the program gave them.

    Before::

        for i: int32 in range(n):
            if i * 8 < n * 4:
                A[i * 4 + 1] = float32(i * 3 // 2)

    After::

        for i: int64 in range(int64(n)):
            if i * 8 < int64(n) * 4:
                A[i * 4 + 1] = float32(int32(i * 3 // 2))
    """
    return with_body(func, _Widen().stmt(func.body))


def widened(node: PrimExpr) -> PrimExpr:
    """The exact value of an index or a dimension outside of a function's body, in 64 bits.

    >>> print(widened(Var("n") * 4))
    int64(n) * 4
    """
    return _Widen().index(node)


def _is_narrow(dtype: DType) -> bool:
    return dtype.is_int and dtype.bits == 32


class _Widen(Mutator):
    """:meth:`expr` rewrites to values modulo 2**bits, :meth:`index` to exact values.

    The result depends on the bounds of an expression's variables. Copies of a loop bind one
    variable in several places, each with bounds of its own: see :meth:`_bound_anew`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._prover = Prover()  # used only for the bounds of variables
        self._wide: dict[Var, Var] = {}
        self._bindings: dict[Var, tuple[Interval, bool]] = {}
        self._indices_made: dict[PrimExpr, PrimExpr] = {}
        self._leaves: dict[PrimExpr, bool] = {}

    def index(self, node: PrimExpr) -> PrimExpr:
        """`node` as a 64-bit value, which is exact."""
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
            case e.Let():
                return self._let(node, self.index)
            case _ if wraps(node) and not self._is_exact(node):
                return cast(wide, self.expr(node))
            case _ if isinstance(node, _ARITHMETIC) or is_exact_call(node):
                return self._of_indices(node)
            case _:
                return cast(wide, self.expr(node))

    def _of_indices(self, node: Any) -> PrimExpr:
        """The operator at the top of `node` in 64 bits, of exact operands."""
        if isinstance(node, e.Call):
            wide = INT64.with_lanes(node.dtype.lanes)
            return e.Call(wide, node.op, self._indices(node.args))
        return rebuild(node, {"a": self.index(node.a), "b": self.index(node.b)})  # type: ignore[no-any-return]  # the same class again

    # -- Arithmetic that leaves its dtype --

    def _is_exact(self, node: PrimExpr) -> bool:
        if node.dtype.lanes > 1:
            return self._prover.is_index_arithmetic(node)
        return self._prover.is_exact(node)

    def _may_leave(self, node: PrimExpr) -> bool:
        """Whether the exact value of `node` may leave 32 bits."""
        known = self._leaves.get(node)
        if known is None:
            known = self._leaves[node] = self._may_leave_new(node)
        return known

    def _may_leave_new(self, node: PrimExpr) -> bool:
        if not _is_narrow(node.dtype.element) or isinstance(node, e.IntImm):
            return False
        if isinstance(node, Var):
            return node in self._wide and not self._fits(node)
        if wraps(node):
            return self._prover.is_index_arithmetic(node) and not self._fits(node)
        if isinstance(node, (*_ARITHMETIC, e.Select, e.Let, e.Ramp, e.Broadcast)) or (
            is_exact_call(node)
        ):
            return any(map(self._may_leave, children(node)))
        return False

    def _fits(self, node: PrimExpr) -> bool:
        if node.dtype.lanes > 1:
            return False
        low, high = self._prover.const_int_bound(node)
        return low >= INT32.min() and high <= INT32.max()

    # -- Values --

    def visit_Var(self, node: Var) -> PrimExpr:
        wide = self._wide.get(node)
        return node if wide is None else cast(node.dtype, wide)

    def _of_exact(self, node: Any) -> PrimExpr:
        """Rewrites an operator whose result depends on whether its operands are exact."""
        if any(self._may_leave(operand) for operand in children(node)):
            return cast(node.dtype, self._of_indices(node))
        return self.descend(node)  # type: ignore[no-any-return]  # the same class again

    visit_Div = visit_Mod = visit_FloorDiv = visit_FloorMod = visit_Min = visit_Max = _of_exact

    def visit_Cast(self, node: e.Cast) -> PrimExpr:
        target = node.dtype.element
        if (target.is_bool or (target.is_integral and target.bits > 32)) and (
            self._may_leave(node.value)
        ):
            return cast(node.dtype, self.index(node.value))
        return self.descend(node)

    def visit_Let(self, node: e.Let) -> PrimExpr:
        return self._let(node, self.expr)

    def _let(self, node: e.Let, rewrite: Any) -> PrimExpr:
        var, value = self._named(node)
        return e.Let(var, value, rewrite(node.body))

    def visit_LetStmt(self, node: s.LetStmt) -> Stmt:
        var, value = self._named(node)
        body = self.stmt(node.body)
        if value is node.value and body is node.body:
            return node
        return s.LetStmt(var, value, body)

    def _named(self, node: e.Let | s.LetStmt) -> tuple[Var, PrimExpr]:
        """A name and its value; the name has 64 bits where the exact value needs them."""
        if node.var.dtype.is_integral and node.var.dtype.lanes == 1:
            if not self._prover.is_index_arithmetic(node.value):
                self._prover.bind_data(node.var)
            self._prover.bind_interval(node.var, node.value, e.const(1, node.var.dtype))
        if self._may_leave(node.value):
            made = self._wide_of(node.var), self.index(node.value)
        else:
            made = node.var, self.expr(node.value)
            self._wide.pop(node.var, None)
        self._bound_anew(node.var)
        return made

    def _wide_of(self, narrow: Var) -> Var:
        wide = self._wide.get(narrow)  # perhaps from another copy of this loop
        if wide is None:
            wide = self._wide[narrow] = Var(narrow.name, INT64, axis=narrow.axis)
        return wide

    def _bound_anew(self, var: Var) -> None:
        """Forgets the rewritten expressions of an earlier binding of `var`, if its bounds or its
        width differ now."""
        binding = self._prover.const_int_bound(var), var in self._wide
        if self._bindings.setdefault(var, binding) != binding:
            self._bindings[var] = binding
            self._made.clear()
            self._indices_made.clear()
            self._leaves.clear()

    # -- Nodes that hold indices --

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
        match node:
            case e.Call(op="tvm_access_ptr", args=(reference, offset, extent, mask)):
                args = (reference, *self._indices((offset, extent)), mask)
            case e.Call(op="tvm_stack_make_array", args=(reference, *numbers)):
                args = (reference, *self._indices(tuple(numbers)))
            case e.Call(op="checked", args=(condition, message, value, *shown)):
                args = (self.expr(condition), message, self.expr(value), *self._shown(shown))
            case e.Call(op="shift_right") if is_exact_call(node):
                return self._of_exact(node)
            case _:
                return self.descend(node)
        return e.Call(node.dtype, node.op, args)

    def _shown(self, values: Any) -> tuple[PrimExpr, ...]:
        """The values in a message."""
        return self._indices(tuple(values))

    def visit_AssertStmt(self, node: s.AssertStmt) -> Stmt:
        condition, values = self.expr(node.condition), self._shown(node.values)
        return s.AssertStmt(condition, node.message, self.stmt(node.body), values, node.kind)

    def visit_Allocate(self, node: s.Allocate) -> Stmt:
        """Widens dimensions that contain names and loop variables that are wide now."""
        body, buffer = self.stmt(node.body), node.buffer
        dims = (*buffer.shape, *buffer.strides)
        if not any(var in self._wide for dim in dims for var in free_vars(dim)):
            return node if body is node.body else s.Allocate(buffer, body)
        layout = (self._indices(buffer.shape), self._indices(buffer.strides))
        wide = with_layout(buffer, *layout)
        return s.Allocate(wide, replace_buffers(body, {buffer: wide}))

    def visit_For(self, node: s.For) -> Stmt:
        if node.loop_var.dtype.is_integral:
            self._prover.bind_interval(node.loop_var, node.min, node.extent)
        if not _is_narrow(node.loop_var.dtype):
            return self.descend(node)
        begin, extent = self.index(node.min), self.index(node.extent)
        wide = self._wide_of(node.loop_var)
        self._bound_anew(node.loop_var)
        return s.For(wide, begin, extent, node.kind, self.stmt(node.body), node.annotations)

    def _compare(self, node: Any) -> PrimExpr:
        """Rewrites a comparison: comparisons of loop variables, such as guards, also stay in 64
        bits."""
        if _is_narrow(node.a.dtype.element) and (
            self._mentions_loop(node) or self._may_leave(node.a) or self._may_leave(node.b)
        ):
            return rebuild(node, {"a": self.index(node.a), "b": self.index(node.b)})  # type: ignore[no-any-return]  # the same class again
        return self.descend(node)  # type: ignore[no-any-return]  # the same class again

    visit_EQ = visit_NE = visit_LT = visit_LE = visit_GT = visit_GE = _compare

    def _mentions_loop(self, node: e.Comparison) -> bool:
        """Whether both sides are index arithmetic, and one contains a loop's variable."""
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
