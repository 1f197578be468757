"""Simplifies the expressions and statements of a program by the facts that hold at each."""

from __future__ import annotations

from minitvm.arith.atoms import is_pure
from minitvm.arith.effects import is_stable
from minitvm.arith.scopes import prover_of
from minitvm.arith.simplify import (
    Simplifier,
    constant_in_all_lanes,
    is_constant,
    is_trivial,
)
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import IntImm, PrimExpr
from minitvm.tir.functor import substitute, with_fields
from minitvm.tir.stmt import ForKind, PrimFunc, Stmt, with_body

_NOTHING = s.SeqStmt(())


def simplify(func: PrimFunc, keep_trivial_loops: bool = False) -> PrimFunc:
    """Simplifies by the ranges of loops, the conditions around a statement and the values of names.

    Before::

        for i in range(4):
            for j in range(1):
                if i * 4 + j < 16:
                    B[(i * 4 + j) // 4] = A[i + 0]

    After::

        for i in range(4):
            B[i] = A[i]

    Conditions that are known are decided. A loop with one iteration becomes its body; loops without
    iterations and empty statements disappear. A name for a constant or for another name is
    replaced. A function in which nothing changes comes back as the same object. With
    `keep_trivial_loops` a loop with one iteration stays a loop.
    """
    return with_body(func, _SimplifyStmts(func, keep_trivial_loops).stmt(func.body))


class _SimplifyStmts(Simplifier):
    """Goes down the statements; the base class simplifies their expressions."""

    def __init__(self, func: PrimFunc, keep_trivial_loops: bool) -> None:
        super().__init__(prover_of(func))
        self._keep = keep_trivial_loops

    def visit_For(self, node: s.For) -> Stmt:
        low, extent = self.expr(node.min), self.expr(node.extent)
        if self._prover.proves(-self._prover.affine(extent)):
            calls = [s.Evaluate(each) for each in (low, extent) if not is_pure(each)]
            return s.seq(*calls)
        keep = (
            self._keep
            or node.kind == ForKind.THREAD_BINDING
            or bool(node.annotations.keys() - {s.INDEPENDENT})
        )
        if e.const_int(extent) == 1 and not keep:
            return self._run_once(node, low)
        node = with_fields(node, min=low, extent=extent)
        with self.in_loop(node):
            body = self.stmt(node.body)
        if _is_nothing(body) and is_pure(low) and is_pure(extent):
            return _NOTHING
        return with_fields(node, body=body)

    def _run_once(self, node: s.For, low: PrimExpr) -> Stmt:
        value = e.cast(node.loop_var.dtype, low)
        if is_stable(value, node.body):
            return self.stmt(substitute(node.body, {node.loop_var: value}))
        return self.stmt(s.LetStmt(node.loop_var, value, node.body))

    def visit_BufferStore(self, node: s.BufferStore) -> Stmt:
        made: s.BufferStore = self.descend(node)
        if made.predicate is None or (known := constant_in_all_lanes(made.predicate)) is None:
            return made
        if known:
            return s.BufferStore(made.buffer, made.value, made.indices)
        return _NOTHING if is_pure(made.value) else s.Evaluate(made.value)

    def visit_While(self, node: s.While) -> Stmt:
        condition = self.expr(node.condition)
        if isinstance(condition, IntImm) and not condition.value:
            return _NOTHING
        return with_fields(node, condition=condition, body=self.under(condition, node.body))

    def visit_IfThenElse(self, node: s.IfThenElse) -> Stmt:
        condition = self.expr(node.condition)
        if isinstance(condition, IntImm):
            chosen = node.then_case if condition.value else node.else_case
            return _NOTHING if chosen is None else self.stmt(chosen)
        then_case = self.under(condition, node.then_case)
        otherwise = self.expr(e.logical_not(condition))
        else_case = None
        if node.else_case is not None:
            else_case = self.under(otherwise, node.else_case)
            else_case = None if _is_nothing(else_case) else else_case
        if _is_nothing(then_case):
            if else_case is not None:
                return s.IfThenElse(otherwise, else_case)
            return _NOTHING if is_pure(condition) else s.Evaluate(condition)
        return with_fields(node, condition=condition, then_case=then_case, else_case=else_case)

    def visit_AssertStmt(self, node: s.AssertStmt) -> Stmt:
        condition = self.expr(node.condition)
        if isinstance(condition, IntImm) and condition.value:
            return self.stmt(node.body)
        body = self.under(condition, node.body)
        values = tuple(map(self.expr, node.values))
        return with_fields(node, condition=condition, body=body, values=values)

    def visit_LetStmt(self, node: s.LetStmt) -> Stmt:
        value = self.expr(node.value)
        if is_trivial(value):
            return self.stmt(substitute(node.body, {node.var: value}))
        with self.binding(node.var, value, node.body):
            body = self.stmt(node.body)
        if _is_nothing(body) and is_pure(value):
            return _NOTHING
        return with_fields(node, value=value, body=body)

    def visit_SeqStmt(self, node: s.SeqStmt) -> Stmt:
        made = [self.stmt(each) for each in node.seq]
        flat = len(made) != 1 and not any(isinstance(each, s.SeqStmt) for each in made)
        return node if flat and all(map(Stmt.same_as, made, node.seq)) else s.seq(*made)

    def visit_Evaluate(self, node: s.Evaluate) -> Stmt:
        value = self.expr(node.value)
        if is_constant(value):
            return _NOTHING
        return with_fields(node, value=value)

    def _around(self, node: s.Allocate | s.AttrStmt) -> Stmt:
        made: s.Allocate | s.AttrStmt = self.descend(node)
        return _NOTHING if _is_nothing(made.body) else made

    visit_Allocate = visit_AttrStmt = _around


def _is_nothing(node: Stmt) -> bool:
    return isinstance(node, s.SeqStmt) and not node.seq
