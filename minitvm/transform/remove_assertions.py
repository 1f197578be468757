"""Removes the assertions that a program makes itself."""

from __future__ import annotations

from minitvm.tir import stmt as s
from minitvm.tir.functor import Mutator
from minitvm.tir.stmt import PrimFunc, Stmt, with_body


def remove_assertions(func: PrimFunc) -> PrimFunc:
    """Removes the program's own assertions (``tir.disable_assert``).

    Before::

        assert n > 0, "expected rows"
        B[0] = A[0]

    After::

        B[0] = A[0]

    The pass runs before ``check_bounds``, whose checks stay. The loops of ``te.extern`` in a
    schedule lose their assertions when they are placed, which is also before the checks.
    """
    return with_body(func, without_assertions(func.body))


def without_assertions(node: Stmt) -> Stmt:
    """A statement without its assertions."""
    return _Remove().stmt(node)


class _Remove(Mutator):
    def visit_AssertStmt(self, node: s.AssertStmt) -> Stmt:
        return self.stmt(node.body)
