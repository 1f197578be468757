"""How much is proved and how small terms become, counted over drawn terms of every kind of node.

The meaning is computed by numpy at all points of a box. What is proved has to hold at each of them;
and what is counted may not fall below what was found once (`LEAST`): what makes the prover or the
simplifier weaker shows, though nothing becomes wrong. ``python -m tests.arith.test_strength``
prints the figures of now.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.linear import Affine
from minitvm.arith.regions import Span, Spans
from minitvm.runtime.dtype import BOOL, INT32, INT64, UINT32, DType
from minitvm.tir import expr as e
from minitvm.tir.expr import Call, PrimExpr, Range, Select, Var, const
from minitvm.tir.functor import walk_once

Points = dict[Var, npt.NDArray[np.int64]]
CASES = 30  # of each kind

# Sizes of 0 to 5, indices below them, numbers from -3 to 7, of 0 to 10, and from P to P + 2.
N, M = Var("n"), Var("m")
P, Q, K = Var("i"), Var("j"), Var("k")
U, R = Var("u", UINT32), Var("r")


def box() -> Points:
    rows = [
        (n, m, i, j, k)
        for n, m in product(range(6), repeat=2)
        for i, j in product(range(n), range(m))
        for k in (-3, -2, -1, 0, 1, 2, 3, 6, 7)
    ]
    columns = np.array(rows, np.int64).T
    points = dict(zip((N, M, P, Q, K), columns, strict=True))
    return {**points, U: points[K] + 3, R: points[P] + points[K] % 3}


def analyzer() -> Analyzer:
    made = Analyzer()
    made.bind_size(N)
    made.bind_size(M)
    made.bind(P, Range(0, N))
    made.bind(Q, Range(0, M))
    made.bind(K, Range(-3, 8))
    made.bind(U, Range(const(0, "uint32"), const(11, "uint32")))
    made.bind(R, Range(P, P + 3))
    return made


def call(op: str, *args: Any) -> PrimExpr:
    return Call(INT32, op, tuple(e.as_expr(each) for each in args))


def compared(random: Random, a: PrimExpr, b: PrimExpr) -> PrimExpr:
    made: PrimExpr = random.choice([e.LT, e.LE, e.GT, e.GE, e.EQ, e.NE])(a, b)
    return Call(BOOL, "likely", (made,)) if random.random() < 0.2 else made


def condition(random: Random, a: PrimExpr, b: PrimExpr) -> PrimExpr:
    first = compared(random, a, b)
    second = compared(random, random.choice([P, Q, K]), const(random.randint(-2, 6)))
    return random.choice(
        [first, second, e.And(first, second), e.Or(first, second), e.Not(e.And(first, second))]
    )


def let(random: Random, a: PrimExpr, b: PrimExpr) -> PrimExpr:
    name = Var("v")
    return e.Let(name, a, name * 2 + b)


def number(random: Random) -> int:
    return random.choice([1, 2, 3, 4, 6, 8])


# A term of the kind, of two terms.
KINDS: dict[str, Callable[[Random, PrimExpr, PrimExpr], PrimExpr]] = {
    "sum": lambda random, a, b: a + b,
    "difference": lambda random, a, b: a - b,
    "multiple": lambda random, a, b: a * random.choice([-3, -1, 2, 4, 5]) + b,
    "product": lambda random, a, b: a * b,
    "quotient": lambda random, a, b: (a * number(random) + b) // number(random),
    "quotient of a multiple": lambda random, a, b: (
        (a * (c := number(random)) + (b % (c + 1))) // (c * random.choice([2, 3, 7]))
    ),
    "remainder": lambda random, a, b: (a * number(random) + b) % number(random),
    "nested quotient": lambda random, a, b: (a // number(random) + b) // number(random),
    "nested remainder": lambda random, a, b: a % (number(random) * 4) // number(random) % 4,
    "both parts": lambda random, a, b: (a // (c := number(random))) * c + a % c + b,
    "truncated quotient": lambda random, a, b: e.truncdiv(a, number(random)) + b,
    "truncated remainder": lambda random, a, b: e.truncmod(a, number(random)) + b,
    "symbolic quotient": lambda random, a, b: (a + P * M + Q) // e.maximum(M, 1),
    "symbolic remainder": lambda random, a, b: (a * M + Q) % e.maximum(M, 1) + b,
    "minimum": lambda random, a, b: e.minimum(a, b),
    "maximum": lambda random, a, b: e.maximum(a, b),
    "extremum of others": lambda random, a, b: random.choice([e.minimum, e.maximum])(
        call("shift_left", a, 1), call("if_then_else", condition(random, a, b), b, a)
    ),
    "product of others": lambda random, a, b: (
        call("shift_left", a, 1) * random.choice([b, e.minimum(a, b), e.truncmod(b, 3)])
    ),
    "select": lambda random, a, b: Select(condition(random, a, b), a, b),
    "if_then_else": lambda random, a, b: call("if_then_else", condition(random, a, b), a, b),
    "shift_left": lambda random, a, b: call("shift_left", a, random.randint(0, 3)) + b,
    "shift_right": lambda random, a, b: call("shift_right", a, random.randint(0, 3)) + b,
    "bitwise_and": lambda random, a, b: call("bitwise_and", a, random.choice([1, 3, 7])) + b,
    "unsigned": lambda random, a, b: (
        (e.cast("int64", U) * random.choice([1, 2, 3]) - e.cast("int64", a)) // number(random)
        + e.cast("int64", b - 1) * 2
        - e.cast("int64", U - e.cast("uint32", number(random)))
    ),
    "cast": lambda random, a, b: e.cast("int32", e.cast("int64", a) + e.cast("int64", b)),
    "let": let,
}  # fmt: skip

_NUMPY: dict[type[PrimExpr], Callable[..., Any]] = {
    e.Add: np.add, e.Sub: np.subtract, e.Mul: np.multiply, e.FloorDiv: np.floor_divide,
    e.FloorMod: np.mod, e.Min: np.minimum, e.Max: np.maximum, e.LT: np.less, e.LE: np.less_equal,
    e.GT: np.greater, e.GE: np.greater_equal, e.EQ: np.equal, e.NE: np.not_equal,
    e.And: np.logical_and, e.Or: np.logical_or, e.Mod: np.fmod,
    e.Div: lambda a, b: (a - np.fmod(a, b)) // b,
}  # fmt: skip
_CALLS: dict[str, Callable[..., Any]] = {
    "if_then_else": np.where,
    "likely": lambda a: a,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "bitwise_and": np.bitwise_and,
}


def wrapped(dtype: DType, found: Any) -> Any:
    low = dtype.min() if dtype in (INT32, UINT32) else None
    return found if low is None else (found - low) % (1 << 32) + low


def values(node: PrimExpr, at: Points) -> Any:
    """The values of a term at all points."""
    match node:
        case Var():
            return at[node]
        case e.IntImm(value=value):
            return np.int64(value)
        case e.Cast(dtype, value):
            return wrapped(dtype, values(value, at))
        case e.Not(a):
            return np.logical_not(values(a, at))
        case Select(chosen, a, b):
            return np.where(values(chosen, at), values(a, at), values(b, at))
        case e.Let(var, value, body):
            return values(body, {**at, var: values(value, at)})
        case Call(op=op, args=args):
            return _CALLS[op](*(values(each, at) for each in args))
        case e.BinaryOp(a=a, b=b):
            return wrapped(node.dtype, _NUMPY[type(node)](values(a, at), values(b, at)))
    raise AssertionError(type(node).__name__)


def operand(random: Random) -> PrimExpr:
    leaf = random.choice([P, Q, K, P, R, K, N, M])
    choice = random.randrange(5)
    if choice == 0:
        return leaf * random.choice([2, 4, 6]) + random.randint(-2, 3)
    if choice == 1:
        return leaf + random.choice([P, Q, K])
    return leaf if choice > 2 else random.choice([leaf // 2, leaf % 3, leaf - 1])


def drawn(kind: str) -> list[PrimExpr]:
    random = Random(kind)
    return [KINDS[kind](random, operand(random), operand(random)) for _ in range(CASES)]


def counted(kind: str) -> tuple[int, int, int, int]:
    """Of the drawn terms: how many ends of bounds are tight, how many statements that hold are
    proved, how many ends of spans are taken, and how many nodes simplified terms have less."""
    at = box()
    tight = proved = taken = saved = 0
    for place, term in enumerate(drawn(kind)):
        random, known = Random(f"{kind} {place}"), analyzer()
        found = np.broadcast_to(values(term, at), at[P].shape)

        low, high = known.const_int_bound(term)
        assert low <= found.min() and found.max() <= high, term
        tight += bool(low == found.min()) + bool(high == found.max())

        for _ in range(6):
            end = const(int(random.choice([found.min(), found.max()])))
            compare = random.choice([e.LT, e.LE, e.GT, e.GE, e.NE])
            statement = compare(term, e.cast(term.dtype, random.choice([operand(random), end])))
            if known.can_prove(statement):
                assert np.all(values(statement, at)), statement
                proved += 1

        simple = known.simplify(term)
        assert np.array_equal(np.broadcast_to(values(simple, at), found.shape), found), term
        saved += size(term) - size(simple)

        spans = Spans(known)
        spans.let(K, Span(Affine({}, -3), Affine({}, 7)))
        span = spans.of(term)
        if span is not None:
            least = values(spans.expression(span.low, INT64), at)
            greatest = values(spans.expression(span.high, INT64), at)
            assert np.all(least <= found) and np.all(found <= greatest), term
            taken += bool(np.any(least == found)) + bool(np.any(greatest == found))
    return tight, proved, taken, saved


def size(term: PrimExpr) -> int:
    return sum(isinstance(each, PrimExpr) for each in walk_once(term))


LEAST: dict[str, tuple[int, int, int, int]] = {
    "sum": (32, 19, 60, 1),
    "difference": (20, 13, 60, 21),
    "multiple": (28, 13, 59, 25),
    "product": (18, 11, 56, -3),
    "quotient": (31, 9, 60, 34),
    "quotient of a multiple": (33, 15, 60, 5),
    "remainder": (58, 31, 60, 90),
    "nested quotient": (33, 13, 60, 18),
    "nested remainder": (50, 29, 60, 89),
    "both parts": (34, 13, 59, 192),
    "truncated quotient": (23, 12, 46, -1),
    "truncated remainder": (23, 12, 46, 2),
    "symbolic quotient": (28, 6, 60, 58),
    "symbolic remainder": (30, 12, 60, 221),
    "minimum": (40, 26, 60, 5),
    "maximum": (33, 21, 60, 12),
    "extremum of others": (12, 5, 48, 30),
    "product of others": (5, 3, 42, 0),
    "select": (16, 16, 46, 53),
    "if_then_else": (25, 16, 50, 28),
    "shift_left": (7, 0, 34, -3),
    "shift_right": (10, 7, 42, -2),
    "bitwise_and": (16, 8, 41, -3),
    "unsigned": (0, 1, 58, 8),
    "cast": (5, 1, 35, 0),
    "let": (34, 12, 59, 20),
}


@pytest.mark.parametrize("kind", KINDS)
def test_strength(kind: str) -> None:
    found = counted(kind)
    assert all(a >= b for a, b in zip(found, LEAST[kind], strict=True)), (found, LEAST[kind])


if __name__ == "__main__":
    for each in KINDS:
        print(f'    "{each}": {counted(each)},')
