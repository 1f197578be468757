"""Comparisons of dimensions, which have a truth value while a program is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from minitvm.runtime.errors import CompileError
from minitvm.tir.checks import is_size
from minitvm.tir.described import shown
from minitvm.tir.node import NO_TRUTH, PrimExpr
from minitvm.tir.nodes import EQ, NE, BinaryOp, Cast, IntImm, Var

_decided: ContextVar[bool] = ContextVar("_decided", default=False)


@contextmanager
def only_decided_sizes() -> Iterator[None]:
    """In it, dimensions that may be equal at one call and differ at another have no truth value.
    A dimension that is no number is taken not to be 1."""
    token = _decided.set(True)
    try:
        yield
    finally:
        _decided.reset(token)


def is_same_size(comparison: EQ | NE) -> bool:
    """Whether both sides of a comparison of dimensions are one and the same expression. While a
    program is written, ``if A.shape[0] == B.shape[0]`` asks this: n is n whatever its value at the
    call, and n is not 1, although the call may bind it to 1.

    Raises
    ------
    CompileError
        When a side is no expression of dimensions: its text doesn't stand for its value; when
        only calls decide (:func:`only_decided_sizes`).
    """
    sides = comparison.a, comparison.b
    is_same = _are_of_sizes(*sides) and _is_same(*sides)
    if not _are_of_sizes(*sides) or (not is_same and _decided.get() and not _differ(*sides)):
        raise CompileError(f"{shown(comparison)} has {NO_TRUTH}")
    return is_same


def _differ(a: PrimExpr, b: PrimExpr) -> bool:
    """Whether two sizes that aren't one expression are two numbers, or one of them is 1."""
    numbers = [each.value for each in (a, b) if isinstance(each, IntImm)]
    return len(numbers) == 2 or 1 in numbers


def _is_same(*sides: PrimExpr) -> bool:
    pairs = [sides]
    seen = set()
    while pairs:
        a, b = pairs.pop()
        if a is b or (id(a), id(b)) in seen:
            continue
        seen.add((id(a), id(b)))
        below = _operands_of(a), _operands_of(b)
        numbers = isinstance(a, IntImm) and isinstance(b, IntImm) and a.value == b.value
        if type(a) is not type(b) or a.dtype is not b.dtype or not (all(below) or numbers):
            return False
        pairs += zip(*below, strict=True)
    return True


def _operands_of(expr: PrimExpr) -> tuple[PrimExpr, ...]:
    """The nodes directly below an expression of dimensions."""
    if isinstance(expr, BinaryOp):
        return expr.a, expr.b
    return (expr.value,) if isinstance(expr, Cast) else ()


def _are_of_sizes(*exprs: PrimExpr) -> bool:
    """Whether expressions are made of dimensions and integers alone."""
    stack, seen = list(exprs), set()
    while stack:
        top = stack.pop()
        if id(top) in seen:
            continue
        seen.add(id(top))
        below = _operands_of(top)
        size = isinstance(top, IntImm) or (isinstance(top, Var) and not top.axis) or below
        if not size or not is_size(top.dtype):
            return False
        stack += below
    return True
