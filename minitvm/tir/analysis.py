"""Classic ``tvm.tir.analysis``: questions about expressions and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minitvm.runtime.errors import CompileError
from minitvm.tir.expr import PrimExpr, Var, as_expr, described
from minitvm.tir.functor import free_vars
from minitvm.tir.stmt import Stmt
from minitvm.tir.structural_equal import structural_equal


def expr_deep_equal(lhs: Any, rhs: Any) -> bool:
    """Whether two expressions are the same tree: a variable equals only itself.

    >>> i, j = Var("i"), Var("j")
    >>> expr_deep_equal(i + 1, i + 1), expr_deep_equal(i + 1, j + 1), expr_deep_equal(i + 1, 1 + i)
    (True, False, False)
    """
    return structural_equal(as_expr(lhs), as_expr(rhs))


def undefined_vars(node: Any, defs: Sequence[Var] = ()) -> list[Var]:
    """The variables that an expression or a statement reads without binding them, except for those
    of `defs`, in the order of their first use.

    >>> i, j = Var("i"), Var("j")
    >>> undefined_vars(i + j, [i])
    [j]
    """
    if not isinstance(node, PrimExpr | Stmt):
        raise CompileError(
            f"undefined_vars: expected an expression or a statement, got {described(node)}: pass "
            "func.body"
        )
    known = set(defs)
    return [var for var in free_vars(node) if var not in known]
