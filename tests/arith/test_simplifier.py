"""Every rule has a row, and random expressions keep their values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitvm.arith import rules, simplify
from minitvm.arith.analyzer import Analyzer
from minitvm.arith.atoms import Atoms
from minitvm.arith.rules import RULES, Rule
from minitvm.runtime.dtype import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    UINT8,
    UINT16,
    DType,
)
from minitvm.tir import expr as e
from minitvm.tir import scalars
from minitvm.tir.expr import (
    EQ,
    NE,
    Add,
    And,
    Broadcast,
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
from minitvm.tir.functor import walk_once
from minitvm.tir.structural_equal import structural_equal

i, j, Y = Var("i"), Var("j"), Var("y")
n, m, K = Var("n"), Var("m"), Var("k")
A, B = Var("a", INT8), Var("b", INT8)
U, V = Var("u", UINT8), Var("v", UINT8)
X = Var("x", FLOAT32)
P, Q = Var("p", BOOL), Var("q", BOOL)
TRUE, FALSE = IntImm(BOOL, 1), IntImm(BOOL, 0)
LARGE = const(2**30)


def lazy(condition: PrimExpr, a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return Call(a.dtype, "if_then_else", (condition, a, b))


def lanes(value: PrimExpr) -> PrimExpr:
    return Broadcast(value, 4)


def unknown(value: PrimExpr) -> PrimExpr:
    return Call(INT32, "call_extern", (value,))


def likely(condition: PrimExpr) -> PrimExpr:
    return Call(BOOL, "likely", (condition,))


def bound() -> Analyzer:
    """i in [0, n), j in [0, m), k in [n - 1, n), y in [0, 4)."""
    made = Analyzer()
    made.bind_size(n)
    made.bind_size(m)
    made.bind(i, Range(0, n))
    made.bind(j, Range(0, m))
    made.bind(K, Range(n - 1, n))
    made.bind(Y, Range(0, 4))
    return made


@pytest.fixture
def analyzer() -> Analyzer:
    return bound()


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
    (EQ(K, n - 1), TRUE),
    (NE(Y, const(4)), TRUE),
    (n < i, FALSE),
    (n <= i, FALSE),
    (i > n, FALSE),
    (Y >= 4, FALSE),
    (EQ(Y, const(4)), FALSE),
    (NE(K, n - 1), FALSE),
    (EQ(P, TRUE), P),
    (EQ(P, FALSE), Not(P)),
    (NE(P, TRUE), Not(P)),
    (NE(P, FALSE), P),
    (And(lanes(P), lanes(TRUE)), lanes(P)),
    (And(lanes(P), lanes(FALSE)), lanes(FALSE)),
    (And(P, P), P),
    (And(P, Not(P)), FALSE),
    (And(P, And(P, Q)), And(P, Q)),
    (And(P, Or(P, Q)), P),
    (And(i < 8, i < 4), i < 4),
    (And(i < 4, i > 8), FALSE),
    (Or(lanes(P), lanes(TRUE)), lanes(TRUE)),
    (Or(lanes(P), lanes(FALSE)), lanes(P)),
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
            for bound in simplify._matches(rule.left, node, {}, Atoms())
        )

    befores = [before for before, _ in RULE_ROWS]
    unused = [r for rules in RULES.values() for r in rules if not any(fires(r, b) for b in befores)]
    assert [f"{type(rule.left).__name__} -> {rule.right}" for rule in unused] == []


def test_every_rule_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, one of the rows stays as it is, or becomes something else."""

    def holds(row: tuple[PrimExpr, PrimExpr]) -> bool:
        return structural_equal(bound().simplify(row[0]), row[1])

    unused = []
    for cls, of_class in RULES.items():
        rows = [row for row in RULE_ROWS if isinstance(row[0], cls)]
        for rule in of_class:
            monkeypatch.setitem(RULES, cls, tuple(each for each in of_class if each is not rule))
            if all(map(holds, rows)):
                unused.append(f"{rule.left} -> {rule.right}")
        monkeypatch.undo()
    assert unused == []


# What the normal forms do.
FORM_ROWS: list[tuple[PrimExpr, PrimExpr]] = [
    ((i * m + j) // m, i),
    ((i * m + j) % m, j),
    ((i * m) // m, i),
    ((i * m) % m, const(0)),
    ((j + (m + i * m)) // m, i + 1),
    ((m + i * m - 1) // m, i),
    ((i * m - 1) % m, m - 1),
    ((i * m + (m + j)) // m, i + 1),
    ((i * m * 3 + j) // m, i * 3),
    ((i * m * 3 + i) // m, i * 3 + i // m),
    ((i * m + n) % m, n % m),
    (i // m * m + i % m, i),
    ((i * 4 + Y) // 4, i),
    ((i * 4 + Y) % 4, Y),
    ((i * 8 + Y) // 4, i * 2),
    ((i * 2 + 1) // 4, i // 2),
    ((i + 8) % 4, i % 4),
    (FloorDiv(i + 8, const(4)), i // 4 + 2),
    (i // 4 * 4 + i % 4, i),
    ((i * 24 + Y) // 9 * 3 + (i * 24 + Y) // 3 % 3, i * 8 + Y // 3),
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
    (Let(j, unknown(i + n - i), j * 2), Let(j, unknown(n), j * 2)),
    (Let(j, unknown(n), j + i - i), Let(j, unknown(n), j)),
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
    FloorDiv(U * V, V),
    FloorMod(U * V, V),
    FloorDiv(i * m, m),  # m may be 0
    FloorDiv(i * m + n, m),
    m * (i // m) + i % m,
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
        case Call(op="likely", args=(condition,)):
            return evaluate(condition, env)
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
@settings(max_examples=50, deadline=None)
def test_quotients_by_symbols_keep_their_values(rest: PrimExpr, data: Any) -> None:
    whole = data.draw(st.sampled_from([i, j, i * 3 - j, i + m, const(1)]))
    for by in (FloorDiv, FloorMod):
        check(by(whole * m + rest, m), INDEX | {m: (1, 6)}, data)


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


# -- Rules where they don't apply -----------------------------------------------------------------

SOME_DTYPES = [INT8, UINT8, INT32, FLOAT16, BFLOAT16, FLOAT32]
CAST_DTYPES = [*SOME_DTYPES, UINT16, INT64, FLOAT64, BOOL]
SOME_FLOATS = [0.0, -0.0, 1.5, 1 / 3, 2.0**-130, 65504.0, 70000.0, math.inf, -math.inf, math.nan]


def some_value(random: Random, dtype: DType) -> Any:
    """A number at an end of the dtype, or near zero."""
    if dtype.is_float:
        return scalars.cast(dtype, random.choice(SOME_FLOATS))
    if dtype.is_bool:
        return random.randint(0, 1)
    ends = [dtype.min(), dtype.max(), dtype.max() // 2 + 1]
    near = random.randint(max(dtype.min(), -9), min(dtype.max(), 9))
    return random.choice([near, near, *ends])


def some_range(random: Random, dtype: DType) -> tuple[int, int] | None:
    """Bounds of an index, both included, some of them negative; None: any value of the dtype."""
    if dtype != INT32 or random.random() < 0.2:
        return None
    low = random.randint(-9, 9)
    return low, low + random.randint(0, 9)


def filled(pattern: PrimExpr, given: Mapping[Var, PrimExpr], dtype: DType) -> PrimExpr:
    """A rule's left side as a term of `dtype`, of what its wildcards stand for."""
    match pattern:
        case Var():
            return given[pattern]
        case IntImm():
            return pattern if pattern.dtype.is_bool else const(pattern.value, dtype)
        case Not(a):
            return Not(filled(a, given, dtype))
        case Select(condition, a, b):
            return Select(*(filled(each, given, dtype) for each in (condition, a, b)))
        case Call(result, op, args):
            result = BOOL if op == "likely" else dtype
            return Call(result, op, tuple(filled(each, given, dtype) for each in args))
        case e.BinaryOp(a=a, b=b):
            make: Any = type(pattern)
            return cast(PrimExpr, make(filled(a, given, dtype), filled(b, given, dtype)))
    raise AssertionError(type(pattern).__name__)


def instance(random: Random, rule: Rule) -> tuple[PrimExpr, dict[Var, tuple[int, int] | None]]:
    """A term of the form of the rule's left side, and the ranges of its variables."""
    whole = any(isinstance(each, Mod | FloorDiv | FloorMod) for each in walk_once(rule.left))
    dtype = random.choice(SOME_DTYPES[:3] if whole else SOME_DTYPES)
    ranges: dict[Var, tuple[int, int] | None] = {}

    def term(of: DType, name: str) -> PrimExpr:
        if random.random() < 0.4:
            return const(some_value(random, of), of)
        ranges[var := Var(name, of)] = some_range(random, of)
        more = not of.is_bool and random.random() < 0.5
        return Add(var, const(some_value(random, of), of)) if more else var

    given = {}
    for wildcard in (rules.x, rules.y, rules.z):
        given[wildcard] = term(dtype, wildcard.name)
    sides = [term(dtype, name) for name in "uvw"]
    for wildcard in (rules.p, rules.q):
        compare = random.choice([e.LT, e.LE, e.GT, e.GE, EQ, NE])
        ranges[condition := Var(wildcard.name, BOOL)] = None
        given[wildcard] = random.choice([condition, compare(*random.sample(sides, 2))])
    for wildcard in rules.CONSTANTS:
        power = 1 << random.randrange(dtype.bits - 1 if dtype.is_integral else 10)
        given[wildcard] = const(random.choice([power, random.randint(1, 12)]), dtype)
    return filled(rule.left, given, dtype), ranges


def overflows(node: PrimExpr, env: Mapping[Var, Any]) -> bool:
    """Whether arithmetic of indices leaves its dtype."""
    for each in walk_once(node):
        if isinstance(each, Add | Sub | Mul) and each.dtype == INT32:
            a, b = evaluate(each.a, env), evaluate(each.b, env)
            exact = a + b if isinstance(each, Add) else a - b if isinstance(each, Sub) else a * b
            if not INT32.min() <= exact <= INT32.max():
                return True
    return False


def same_value(dtype: DType, a: Any, b: Any) -> bool:
    """To the bit, but for those of NaN."""
    if not dtype.is_float:
        return bool(a == b)
    return scalars.to_bits(dtype, a) == scalars.to_bits(dtype, b) or (a != a and b != b)


def check_instance(random: Random, rule: Rule) -> None:
    before, ranges = instance(random, rule)
    analyzer = Analyzer()
    for var, bounds in ranges.items():
        if bounds is not None:
            analyzer.bind(var, Range(bounds[0], bounds[1] + 1))
    after = analyzer.simplify(before)
    assert after.dtype == before.dtype
    for _ in range(4):
        env = {
            var: some_value(random, var.dtype) if bounds is None else random.randint(*bounds)
            for var, bounds in ranges.items()
        }
        if overflows(before, env) or overflows(after, env):  # lowering widens indices
            continue
        expected, found = evaluate(before, env), evaluate(after, env)
        same = same_value(before.dtype, expected, found)
        assert same, f"{before} became {after}, which is {found}, not {expected}, where {env}"


@given(st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_rules_keep_values_whatever_they_match(seed: int) -> None:
    """Of values that wrap, round or lie at the ends above all, where most rules must not apply."""
    random = Random(seed)
    for cls, of_class in RULES.items():
        for rule in of_class if cls is not Cast else ():
            check_instance(random, rule)


@pytest.mark.parametrize("inner", CAST_DTYPES, ids=str)
def test_conversions_keep_values(inner: DType) -> None:
    """Of every pair of conversions, at the ends of the dtypes."""
    value = Var("v", inner)
    if inner.is_float:
        values = [scalars.cast(inner, each) for each in (*SOME_FLOATS, -3.7, 200.5)]
    else:
        near = [each for each in (-126, -1, 0, 1, 3, 200, 2**24 + 1) if inner.min() <= each]
        values = [inner.min(), inner.max(), *(each for each in near if each <= inner.max())]
    for middle, outer in product(CAST_DTYPES, repeat=2):
        before = Cast(outer, Cast(middle, value))
        after = Analyzer().simplify(before)
        for each in values:
            expected, found = evaluate(before, {value: each}), evaluate(after, {value: each})
            assert same_value(outer, expected, found), f"{before}, where {value} is {each}"


def test_float_values_are_kept_to_the_bit() -> None:
    values = [0.0, -0.0, 1.5, -math.inf, math.inf, math.nan]
    rows = [Sub(X, const(0.0)), Mul(X, const(1.0)), Div(X, const(1.0)), Min(X, X), Max(X, X)]
    for expr in rows:
        simple = Analyzer().simplify(expr)
        for value in values:
            before, after = evaluate(expr, {X: value}), evaluate(simple, {X: value})
            assert scalars.to_bits(X.dtype, before) == scalars.to_bits(X.dtype, after)


def test_a_choice_in_both_branches_stays_one() -> None:
    """The number of scopes in which a chain of choices could be simplified doubles with each."""
    i, x = Var("i"), Var("x", FLOAT32)
    analyzer = Analyzer()
    analyzer.bind(i, Range(0, 1024))
    sizes = []
    for depth in (4, 8):
        made: PrimExpr = x
        for step in range(depth):
            made = lazy((i + 0) % (step + 2) <= 0, made * x, made * made + x)
        sizes.append(len({*walk_once(analyzer.simplify(made))}))
    assert sizes[1] <= 2 * sizes[0]
