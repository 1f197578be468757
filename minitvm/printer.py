"""The text of expressions, statements and functions."""

from __future__ import annotations

from minitvm.expr import PrimExpr
from minitvm.stmt import PrimFunc, Stmt


def expr_text(node: PrimExpr) -> str:
    """The text of an expression."""
    raise NotImplementedError


def stmt_text(node: Stmt) -> str:
    """The text of a statement."""
    raise NotImplementedError


def func_text(func: PrimFunc) -> str:
    """The text of a function."""
    raise NotImplementedError
