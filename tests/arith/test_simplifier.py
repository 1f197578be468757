"""Every rule has a row, and random expressions keep their values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitvm import expr as e
from minitvm import scalars
from minitvm.arith import simplify
from minitvm.arith.analyzer import Analyzer
from minitvm.arith.rules import RULES, Rule
from minitvm.expr import (
    EQ,
    NE,
    Add,
    And,
    Call,
    Cast,
    Div,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    Let,
    Max,
    Min,
    Mod,
    Mul,
    Not,
    Or,
    PrimExpr,
    Range,
    Select,
    Sub,
    Var,
    const,
)  # fmt: skip
from minitvm.runtime.dtype import BOOL, FLOAT32, FLOAT64, INT8, INT32, UINT8
from minitvm.structural_equal import structural_equal

i, j, Y = Var("i"), Var("j"), Var("y")
n, m = Var("n"), Var("m")
A, B = Var("a", INT8), Var("b", INT8)
U, V = Var("u", UINT8), Var("v", UINT8)
X = Var("x", FLOAT32)
P, Q = Var("p", BOOL), Var("q", BOOL)
TRUE, FALSE = IntImm(BOOL, 1), IntImm(BOOL, 0)
LARGE = const(2**30)


def lazy(condition: PrimExpr, a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return Call(a.dtype, "if_then_else", (condition, a, b))


def likely(condition: PrimExpr) -> PrimExpr:
    return Call(BOOL, "likely", (condition,))


@pytest.fixture
def analyzer() -> Analyzer:
    """i in [0, n), j in [0, m), y in [0, 4)."""
    made = Analyzer()
    made.bind_size(n)
    made.bind_size(m)
    made.bind(i, Range(0, n))
    made.bind(j, Range(0, m))
    made.bind(Y, Range(0, 4))
    return made


# What the rules of minitvm.arith.rules do, in their order.
RULE_ROWS: list[tuple[PrimExpr, PrimExpr]] = [
    (Sub(X, const(0.0)), X),
    (Mul(X, const(1.0)), X),
    (Div(X, const(1.0)), X),
    (Mod(i, const(1)), const(0)),
    (i // 4 // 3, i // 12),
    (i % 12 % 4, i % 4),
    (i % 12 // 4, i // 4 % 3),
    (FloorDiv(j, m), const(0)),
    (FloorMod(j, m), j),
    (Div(Y, const(4)), const(0)),
    (Mod(Y, const(4)), Y),
    ((i * m + j) // m, i),
    ((i * m + j) % m, j),
    ((i * m) // m, i),
    ((i * m) % m, const(0)),
    (Min(X, X), X),
    (Max(X, X), X),
    (Min(Min(B, const(7, "int8")), const(3, "int8")), Min(B, const(3, "int8"))),
    (Max(Max(B, const(7, "int8")), const(9, "int8")), Max(B, const(9, "int8"))),
    (Min(i, n), i),
    (Max(i, n), n),
    (i < n, TRUE),
    (i <= n, TRUE),
    (n > i, TRUE),
    (i >= 0, TRUE),
    (EQ(Y // 4, const(0)), TRUE),
    (NE(Y, const(4)), TRUE),
    (n < i, FALSE),
    (n <= i, FALSE),
    (i > n, FALSE),
    (Y >= 4, FALSE),
    (EQ(Y, const(4)), FALSE),
    (NE(Y // 4, const(0)), FALSE),
    (EQ(P, TRUE), P),
    (EQ(P, FALSE), Not(P)),
    (NE(P, TRUE), Not(P)),
    (NE(P, FALSE), P),
    (And(P, TRUE), P),
    (And(P, FALSE), FALSE),
    (And(P, P), P),
    (And(P, Not(P)), FALSE),
    (And(P, And(P, Q)), And(P, Q)),
    (And(P, Or(P, Q)), P),
    (And(i < 8, i < 4), i < 4),
    (And(i < 4, i > 8), FALSE),
    (Or(P, TRUE), TRUE),
    (Or(P, FALSE), P),
    (Or(P, P), P),
    (Or(P, Not(P)), TRUE),
    (Or(P, Or(P, Q)), Or(P, Q)),
    (Or(P, And(P, Q)), P),
    (Or(i < 4, i < 8), i < 8),
    (Or(i < 8, i > 4), TRUE),
    (Not(TRUE), FALSE),
    (Not(FALSE), TRUE),
    (Not(Not(P)), P),
    (Not(EQ(X, X)), NE(X, X)),
    (Not(NE(X, X)), EQ(X, X)),
    (Not(i < j), i >= j),
    (Not(i <= j), i > j),
    (Not(i > j), i <= j),
    (Not(i >= j), i < j),
    (Select(TRUE, i, j), i),
    (Select(FALSE, i, j), j),
    (Select(P, X, X), X),
    (Select(P, TRUE, FALSE), P),
    (Select(P, FALSE, TRUE), Not(P)),
    (Select(Not(P), i, j), Select(P, j, i)),
    (Select(P, Select(P, i, j), n), Select(P, i, n)),
    (Select(P, i, Select(P, j, n)), Select(P, i, n)),
    (lazy(TRUE, i, j), i),
    (lazy(FALSE, i, j), j),
    (lazy(P, X, X), X),
    (likely(TRUE), TRUE),
    (likely(FALSE), FALSE),
    (Cast(FLOAT32, Cast(FLOAT64, U)), Cast(FLOAT32, U)),
]


@pytest.mark.parametrize("number", range(len(RULE_ROWS)))
def test_rule(analyzer: Analyzer, number: int) -> None:
    before, after = RULE_ROWS[number]
    assert structural_equal(analyzer.simplify(before), after)


def test_every_rule_has_a_row(analyzer: Analyzer) -> None:
    def fires(rule: Rule, node: PrimExpr) -> bool:
        return any(
            rule.when(simplify._Match(node, bound, analyzer))
            for bound in simplify._matches(rule.left, node, {})
        )

    befores = [before for before, _ in RULE_ROWS]
    unused = [r for rules in RULES.values() for r in rules if not any(fires(r, b) for b in befores)]
    assert [f"{type(rule.left).__name__} -> {rule.right}" for rule in unused] == []


# What the normal forms do.
FORM_ROWS: list[tuple[PrimExpr, PrimExpr]] = [
    ((i * 4 + Y) // 4, i),
    ((i * 4 + Y) % 4, Y),
    ((i * 8 + Y) // 4, i * 2),
    ((i * 2 + 1) // 4, i // 2),
    ((i + 8) % 4, i % 4),
    (FloorDiv(i + 8, const(4)), i // 4 + 2),
    (i // 4 * 4 + i % 4, i),
    (i + j - i, j),
    (j + i, i + j),
    ((i + 1) * 4 - i * 4, const(4)),
    (i * j - j * i, const(0)),
    (U + V - U, V),
    (U * const(200, "uint8") + U * const(100, "uint8"), U * const(44, "uint8")),
    (const(0, "uint8") - U + V, V - U),
    (const(0, "uint8") - (U + const(1, "uint8")), const(255, "uint8") - U),
    (Add(const(2), const(3)), const(5)),
    (Mul(const(2.0), const(3.0)), const(6.0)),
    (i * 4 < 18, i < 5),
    (i * 4 >= 17, i >= 5),
    (i * 4 <= 18, i <= 4),
    (i * 4 > 17, i > 4),
    (i + 0 > 5, i > 5),
    (i + 1 < j, i < j - 1),
    (EQ(i * 2, j * 2 + 1), FALSE),
    (NE(i * 2, j * 2 + 1), TRUE),
    (Cast(UINT8, Cast(INT32, U)), U),
    (Let(j, i, j + 1), i + 1),
    (Let(j, i * n, const(3)), const(3)),
    (lazy(i < 5, Min(i, const(7)), j), lazy(i < 5, i, j)),
    (Select(i < 5, Min(i, const(7)), j), Select(i < 5, i, j)),
    (Min(i + 1, i + 3), i + 1),
    (e.cast("int64", i) + 1 - e.cast("int64", i), const(1, "int64")),
    (Call(INT32, "fabs", (const(-3) + Y - Y,)), const(3)),
]


@pytest.mark.parametrize("number", range(len(FORM_ROWS)))
def test_normal_form(analyzer: Analyzer, number: int) -> None:
    before, after = FORM_ROWS[number]
    assert structural_equal(analyzer.simplify(before), after)


KEPT: list[PrimExpr] = [
    Add(X, const(0.0)),  # -0.0
    Sub(X, FloatImm(FLOAT32, -0.0)),
    Mul(X, const(0.0)),  # NaN
    Sub(X, X),
    Not(X < X),
    EQ(X, X),
    Add(Add(X, const(1.0)), const(2.0)),
    Div(Mul(X, const(3.0)), const(3.0)),
    U + const(1, "uint8") > U,  # wraps
    FloorDiv(U * const(2, "uint8"), const(2, "uint8")),
    Cast(INT32, Cast(FLOAT32, n)),  # rounds
    Cast(INT32, Cast(INT8, n)),
    Select(P, Call(INT32, "call_extern", (i,)), Call(INT32, "call_extern", (i,))),
    i * LARGE * 4,  # no int32 holds the coefficient
]


@pytest.mark.parametrize("number", range(len(KEPT)))
def test_kept(number: int) -> None:
    assert Analyzer().simplify(KEPT[number]) is KEPT[number]


# -- Random expressions ---------------------------------------------------------------------------


def evaluate(node: Any, env: Mapping[Var, Any]) -> Any:
    """The value of a scalar expression."""
    match node:
        case IntImm(value=value) | FloatImm(value=value):
            return value
        case Var():
            return env[node]
        case Not(a):
            return not evaluate(a, env)
        case Cast(dtype, value):
            return scalars.cast(dtype, evaluate(value, env))
        case Select(condition, a, b) | Call(op="if_then_else", args=(condition, a, b)):
            return evaluate(a if evaluate(condition, env) else b, env)
        case Let(var, value, body):
            return evaluate(body, {**env, var: evaluate(value, env)})
        case e.BinaryOp(a=a, b=b):
            x, y = evaluate(a, env), evaluate(b, env)
            return scalars.binary(type(node).__name__, a.dtype, x, y)
    raise AssertionError(type(node).__name__)


def exprs(dtype: str, leaves: list[PrimExpr], divisors: range, constants: range) -> Any:
    """Expressions of one integer dtype; conditions compare those."""
    leaf = st.sampled_from(leaves) | st.sampled_from(constants).map(lambda c: const(c, dtype))

    def extend(inner: Any) -> Any:
        arithmetic = st.sampled_from([Add, Sub, Min, Max, Add, Sub])
        compare = st.sampled_from([e.LT, e.LE, e.GT, e.GE, EQ, NE])
        divisor = st.sampled_from(divisors).map(lambda c: const(c, dtype))
        condition = st.builds(lambda op, a, b: op(a, b), compare, inner, inner)
        junction = st.builds(
            lambda op, a, b: op(a, b), st.sampled_from([And, Or]), condition, condition
        )
        conditions = condition | junction | junction.map(Not)
        return (
            st.builds(lambda op, a, b: op(a, b), arithmetic, inner, inner)
            | st.builds(Mul, inner, divisor)
            | st.builds(
                lambda op, a, b: op(a, b), st.sampled_from([FloorDiv, FloorMod, Div, Mod]),
                inner, divisor,
            )
            | st.builds(Select, conditions, inner, inner)
            | st.builds(lazy, conditions, inner, inner)
        )  # fmt: skip

    return st.recursive(leaf, extend, max_leaves=8)


def check(expr: PrimExpr, ranges: Mapping[Var, tuple[int, int]], data: Any) -> None:
    analyzer = Analyzer()
    for var, (low, high) in ranges.items():
        dtype = var.dtype
        if dtype.bits == 32:
            analyzer.bind(var, Range(const(low, dtype), const(high + 1, dtype)))
    simple = analyzer.simplify(expr)
    assert analyzer.simplify(simple) is simple
    least, greatest = analyzer.const_int_bound(expr)
    for _ in range(6):
        env = {var: data.draw(st.integers(*bounds)) for var, bounds in ranges.items()}
        value: Any = evaluate(expr, env)
        assert evaluate(simple, env) == value
        assert least <= value <= greatest


INDEX = {i: (0, 11), j: (-5, 6), Y: (0, 3)}


@given(exprs("int32", [i, j, Y], range(1, 7), range(-9, 10)), st.data())
@settings(max_examples=250, deadline=None)
def test_index_expressions_keep_their_values(expr: PrimExpr, data: Any) -> None:
    check(expr, INDEX, data)


@given(exprs("uint8", [U, V], range(1, 7), range(10)), st.data())
@settings(max_examples=200, deadline=None)
def test_unsigned_data_keeps_its_values(expr: PrimExpr, data: Any) -> None:
    check(expr, {U: (0, 255), V: (0, 255)}, data)


@given(exprs("int8", [A, B], range(1, 7), range(-9, 10)), st.data())
@settings(max_examples=200, deadline=None)
def test_signed_data_keeps_its_values(expr: PrimExpr, data: Any) -> None:
    check(expr, {A: (-128, 127), B: (-128, 127)}, data)


def test_float_values_are_kept_to_the_bit() -> None:
    values = [0.0, -0.0, 1.5, -math.inf, math.inf, math.nan]
    rows = [Sub(X, const(0.0)), Mul(X, const(1.0)), Div(X, const(1.0)), Min(X, X), Max(X, X)]
    for expr in rows:
        simple = Analyzer().simplify(expr)
        for value in values:
            before, after = evaluate(expr, {X: value}), evaluate(simple, {X: value})
            assert scalars.to_bits(X.dtype, before) == scalars.to_bits(X.dtype, after)
