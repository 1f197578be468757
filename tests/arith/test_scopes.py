"""Statements that are rewritten from the outside in, with the facts that hold at each."""

from __future__ import annotations

from minitvm.arith.prover import Prover
from minitvm.arith.scopes import ScopedMutator
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import Var
from minitvm.tir.stmt import Stmt


def test_statements_without_the_nodes_that_a_pass_changes_are_not_visited() -> None:
    seen: list[Stmt] = []

    class Pass(ScopedMutator):
        changes = (s.IfThenElse,)

        def visit_SeqStmt(self, node: s.SeqStmt) -> Stmt:
            seen.append(node)
            made: Stmt = self.descend(node)
            return made

    i, A = Var("i"), decl_buffer((8,), "float32", "A")
    store = s.BufferStore(A, e.const(1.0, "float32"), (i,))
    plain = s.SeqStmt((store, store))
    guarded = s.SeqStmt((store, s.IfThenElse(i < 4, plain)))
    nest = s.For(i, e.const(0), e.const(8), s.ForKind.SERIAL, s.SeqStmt((plain, guarded)))
    assert Pass(Prover()).stmt(nest) is nest
    assert seen == [nest.body, guarded]
