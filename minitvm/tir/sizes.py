"""The truth value of comparisons of dimensions while a program is written."""

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
    """A context in which comparisons of dimensions have no truth value if they hold at some calls
    and fail at others. A symbolic dimension is taken not to be 1."""
    token = _decided.set(True)
    try:
        yield
    finally:
        _decided.reset(token)


def is_same_size(comparison: EQ | NE) -> bool:
    """Whether both sides of a comparison of dimensions are one and the same expression. This is the
    truth value of ``if A.shape[0] == B.shape[0]`` while a program is written: n equals n for every
    value at the call, and n isn't 1, although the call may bind it to 1.

    Raises
    ------
    CompileError
        When a side isn't an expression of dimensions, whose text determines its value; inside of
        :func:`only_decided_sizes`, when the result depends on the call.
    """
    sides = comparison.a, comparison.b
    is_same = _are_of_sizes(*sides) and _is_same(*sides)
    if not _are_of_sizes(*sides) or (not is_same and _decided.get() and not _differ(*sides)):
        raise CompileError(f"{shown(comparison)} has {NO_TRUTH}")
    return is_same


def _differ(a: PrimExpr, b: PrimExpr) -> bool:
    """Whether two different expressions of sizes surely have different values: both are numbers, or
    one of them is 1."""
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
