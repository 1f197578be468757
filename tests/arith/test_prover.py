"""What the prover knows: ranges, conditions, quotients, products, and where integers wrap."""

from __future__ import annotations

import math

import pytest

from minitvm import te
from minitvm.arith import proofs
from minitvm.arith.analyzer import Analyzer
from minitvm.arith.prover import Prover
from minitvm.runtime.dtype import BOOL, INT32, INT64, UINT8, UINT32
from minitvm.tir import expr as e
from minitvm.tir.expr import And, Call, Not, Or, PrimExpr, Range, Select, Var, const

i, j, F = Var("i"), Var("j"), Var("f")
n, m = Var("n"), Var("m")
k = Var("k")
BYTE = Var("b", UINT8)
U = Var("u", UINT32)
COUNT = e.Call(INT32, "popcount", (k,))  # of which nothing is known


@pytest.fixture
def analyzer() -> Analyzer:
    """i in [0, n), j in [0, m), f in [0, n * m), k in [0, 16)."""
    made = Analyzer()
    made.bind_size(n)
    made.bind_size(m)
    made.bind(i, Range(0, n))
    made.bind(j, Range(0, m))
    made.bind(F, Range(0, n * m))
    made.bind(k, Range(0, 16))
    made.bind(U, Range(const(0, "uint32"), const(16, "uint32")))
    return made


PROVED = [
    i < n, i >= 0, n >= 1, i + 1 <= n, n - 1 - i >= 0,
    i * 4 + 3 < n * 4, (i * 4 + k // 4) // 4 < n,
    i * m + j < n * m, i * m + j >= 0, F // m < n, F % m < m, F % m >= 0, F // m >= 0,
    k % 4 < 4, k // 4 < 4, e.EQ(k // 4 * 4 + k % 4, k), (k + 3) // 4 <= 4, e.truncdiv(k, 4) < 4,
    e.truncmod(k, 4) < 4, (k - 16) // 4 < 0, (k - 16) % 4 >= 0,
    e.EQ(COUNT // 4 // 3, COUNT // 12), e.EQ(COUNT % 12 // 4, COUNT // 4 % 3),
    e.EQ(COUNT % 12 % 4, COUNT % 4), e.EQ((i * 4 + 3) // 12, i // 3),
    e.EQ((i * 4 + 7) % 12, (i + 1) % 3 * 4 + 3),
    e.EQ(i // 12 * 12 + i // 4 % 3 * 4 + i % 4, i), e.EQ(F // m * m + F % m, F),
    (i * 16 + k) // n < 16, e.EQ((i * m + F // m * m + F % m), i * m + F),
    (e.minimum(i, n - 2) * 16 + k) // n < 16,
    e.minimum(i + 1, n - 1) < n, e.maximum(0, i - 1) < n, e.maximum(0, e.minimum(COUNT, n - 1)) < n,
    e.maximum(0, e.minimum(COUNT, n - 1)) + 1 <= n,
    e.minimum(i, m) <= m, Select(i < 4, i, const(0)) < 4,
    Call(INT32, "if_then_else", (k < 8, k + 8, k - 8)) < 16,
    e.shift_left(k, 2) < 61, e.shift_right(k, 2) < 4, e.bitwise_and(COUNT, 7) < 8,
    e.cast("int64", i) < e.cast("int64", n), e.cast("int32", BYTE) + 1 > 0,
    e.cast("int32", U) < 16, U + const(1, "uint32") > U,
    And(i >= 0, i < n), Or(k < 8, k >= 8), Not(k < 0), e.NE(k, const(16)), const(True),
    e.Call(BOOL, "likely", (i < n,)), e.Let(V := Var("v"), k + 1, V <= 16),
]  # fmt: skip
NOT_PROVED = [
    (i * 16 + k) // n < 15, e.EQ(F // m * n + F % m, F),
    e.EQ(k // COUNT * COUNT + k % COUNT, k), (e.maximum(i, COUNT) * 16 + k) // n < 16,
    i < m, i + 1 < n, i * m + j < n, COUNT + 1 > COUNT, BYTE + const(1, "uint8") > BYTE,
    U - const(1, "uint32") < U, e.cast("uint8", k * 32) >= e.cast("uint8", k),
    F // n < n, e.truncdiv(i - n, 4) >= 0, And(k >= 0, k < 8), e.EQ(k, const(3)), const(False),
    e.maximum(0, e.minimum(COUNT, n)) < n, Select(i < 4, i, const(4)) < 4, Var("flag", BOOL),
    k < 15, k > 0, k + n > n, k * 2 + n < n + 30,
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(PROVED)))
def test_proved(analyzer: Analyzer, number: int) -> None:
    assert analyzer.can_prove(PROVED[number])


@pytest.mark.parametrize("number", range(len(NOT_PROVED)))
def test_not_proved(analyzer: Analyzer, number: int) -> None:
    assert not analyzer.can_prove(NOT_PROVED[number])


@pytest.mark.parametrize(
    ("condition", "conclusion"),
    [
        (And(k >= 4, k < 6), k // 2 < 3),
        (Or(k < 3, k > 12), e.NE(k, const(7))),
        (Not(Or(k < 3, k > 12)), k >= 3),
        (e.NE(k, const(0)), k >= 1),
        (e.EQ(k, i), i < 16),
        (e.Call(BOOL, "likely", (i * 2 < m,)), i < m),
        (Not(e.NE(k, const(3))), k <= 3),
        (e.EQ(k % 2, const(0)), e.NE(k, const(5))),
        (n > COUNT, e.maximum(COUNT, 0) < n),
    ],
)
def test_a_condition_holds_inside_only(
    analyzer: Analyzer, condition: PrimExpr, conclusion: PrimExpr
) -> None:
    assert not analyzer.can_prove(conclusion)
    with analyzer.constraint(condition):
        assert analyzer.can_prove(conclusion)
    assert not analyzer.can_prove(conclusion)


def test_a_variable_that_becomes_data_may_wrap() -> None:
    """Forms that were read before are read anew."""
    prover, form = Prover(), k * 2 + 1
    assert prover.affine(form).terms == {k: 2} and prover.is_exact(form)
    prover.bind_data(k)
    assert prover.affine(form).terms != {k: 2} and not prover.is_exact(form)


def test_contradictions_prove_anything(analyzer: Analyzer) -> None:
    with analyzer.constraint(const(False)):
        assert analyzer.can_prove(i < m)
    with analyzer.constraint(k > 20):
        assert analyzer.can_prove(k > 30)


def test_bound_value_is_the_variable(analyzer: Analyzer) -> None:
    v = Var("v")
    analyzer.bind(v, k * 2)
    assert analyzer.can_prove(e.EQ(v, k + k))
    assert analyzer.const_int_bound(v) == (0, 30)


def test_a_loop_over_a_product_needs_each_factor() -> None:
    made, v, w = Analyzer(), Var("v"), Var("w")
    for size in (n, m):
        made.bind_size(size)
    with made.scope():
        made.bind(v, Range(0, n * m))
        assert made.can_prove(n >= 1) and made.can_prove(m >= 1)
    with made.scope():
        made.bind(w, Range(0, n * m + 1))
        assert not made.can_prove(n >= 1) and not made.can_prove(m >= 1)
    made.bind(w, Range(0, n * (k - 3)))
    assert not made.can_prove(k >= 4)


@pytest.mark.parametrize(
    "term",
    [
        k + n, k - n, k * n, e.truncdiv(k, n), e.truncmod(k, n), k // n, k % n, e.minimum(k, n),
        e.maximum(k, n), e.cast("int32", e.cast("int64", k)), Select(Not(k < n), k, n),
    ],
    ids=str,
)  # fmt: skip
def test_arithmetic_of_indices_does_not_wrap(term: PrimExpr) -> None:
    made = Analyzer()
    assert made.can_prove(term + 1 > term)
    assert made.can_prove(term * 2 - term <= term)
    with_data = term + COUNT
    assert not made.can_prove(with_data + 1 > with_data)


def test_numbers_answer_questions_about_extrema(
    analyzer: Analyzer, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = [e.Call(INT32, "popcount", (Var(name),)) for name in "abcdef"]
    low, high = e.Min(x[0], e.Min(x[1], x[2])), e.Max(x[0], x[3])
    assert analyzer.can_prove(low <= high)
    monkeypatch.setattr(proofs, "_Systems", None)  # no search
    assert not analyzer.can_prove(e.Max(low, x[4]) <= e.Min(high, x[5]))


def test_a_conversion_keeps_what_is_known_to_fit(analyzer: Analyzer) -> None:
    kept = e.EQ(e.cast("int32", e.cast("int8", i - j)), i - j)
    below, above = i - j < 128, i - j >= -128
    for conditions in ([], [below], [above], [i - j < 129, above], [below, i - j >= -129]):
        with analyzer.constraint(te.all(*conditions, const(True))):
            assert not analyzer.can_prove(kept)
    with analyzer.constraint(And(below, above)):
        assert analyzer.can_prove(kept)


def test_a_name_for_data_wraps_as_data_does(analyzer: Analyzer) -> None:
    v = Var("v")
    analyzer.bind(v, COUNT)
    assert not analyzer.can_prove(v + 1 > v)


@pytest.mark.parametrize(
    ("value", "bounds"),
    [
        (k, (0, 15)),
        (k * -2 + 1, (-29, 1)),
        (k // 4, (0, 3)),
        (k // (n + 1), (0, 15)),
        ((k - 3) // (n + 1), (-3, 12)),
        (k % 4, (0, 3)),
        (e.minimum(k, 7), (0, 7)),
        (BYTE, (0, 255)),
        (Select(k < 3, k, k + 1), (0, 16)),
        (const(7), (7, 7)),
        (k * k, (0, 225)),
    ],
)
def test_const_int_bound(analyzer: Analyzer, value: PrimExpr, bounds: tuple[float, float]) -> None:
    assert analyzer.const_int_bound(value) == bounds


def test_const_int_bound_may_be_infinite(analyzer: Analyzer) -> None:
    v = Var("v")
    analyzer.bind(v, Range(0, n))
    assert analyzer.const_int_bound(v)[0] == 0
    assert not math.isinf(analyzer.const_int_bound(v)[1])  # a 32-bit size ends somewhere


def test_impure_calls_are_not_equal() -> None:
    analyzer = Analyzer()

    def call() -> PrimExpr:
        return Call(INT32, "call_extern", (e.StringImm("rand"),))

    assert not analyzer.can_prove(e.EQ(call(), call()))


def test_what_becomes_data_is_no_index_arithmetic() -> None:
    """Also where it was asked before."""
    prover = Prover()
    assert prover.is_index_arithmetic(i * 4 + 1)
    prover.bind_data(i)
    assert not prover.is_index_arithmetic(i * 4 + 1)
    assert prover.is_index_arithmetic(j * 4 + 1)


def test_an_answer_holds_until_another_fact_is_learnt() -> None:
    """In its scope: outside of it, what was learnt inside is forgotten, answers too."""
    prover, n = Prover(), Var("n")
    for _ in range(2):
        assert not prover.can_prove(n * 2 < 9)
        with prover.constraint(n < 4):
            assert prover.can_prove(n * 2 < 9)
            assert not prover.can_prove(n * 2 < 6)
            prover.assume(n != 3)
            assert prover.can_prove(n * 2 < 6)
    prover.bind_loop(n, const(0), const(3))
    assert prover.can_prove(n * 2 < 9)
    prover = Prover()
    prover.bind_interval(n, const(0), const(4))
    assert prover.can_prove(n * 2 < 9)
    prover.bind_unknown(n)
    assert not prover.can_prove(n * 2 < 9)


def test_facts_of_a_scope_are_learnt_when_something_is_asked_in_it() -> None:
    prover, i, j, asked = Prover(), Var("i"), Var("j"), list[str]()

    def learn(name: str, var: Var) -> None:
        asked.append(name)
        prover.bind_loop(var, const(0), const(4))

    with prover.scope(lambda: learn("outer", i)):
        with prover.scope(lambda: learn("unasked", j)):
            pass
        with prover.scope(lambda: learn("inner", j)):
            assert asked == []
            assert prover.can_prove(i + j < 7)
            assert asked == ["outer", "inner"]
        assert not prover.can_prove(j < 4)
        assert prover.can_prove(i < 4)
    assert not prover.can_prove(i < 4)
    assert asked == ["outer", "inner"]


def test_a_loop_over_data_is_known_to_be_one_before_its_variable_is_asked_about() -> None:
    prover, i, many = Prover(), Var("i", INT64), Var("many", INT64)
    prover.bind_data(many)
    with prover.scope(lambda: prover.bind_loop(i, const(0, "int64"), many)):
        assert not prover.is_index_arithmetic(i * 4)
