"""Strategies that fail: another one is taken, the plain loops last, and somebody is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import te
from minitvm.auto_scheduler import attempts, rows, strategies, write
from minitvm.auto_scheduler.strategies import STRATEGIES
from minitvm.lowering.lower import lower
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.tensor import Tensor
from tests.auto_scheduler.contractions import contraction
from tests.auto_scheduler.meaning import Meaning
from tests.auto_scheduler.test_contractions import (
    QUICK,
    SLOW,
    SMALL_CACHES,
    assert_means,
    inputs,
    run,
)
from tests.schedules.programs import Program

ZNVER4 = "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4 -num-cores=2"
AMX = "llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids -num-cores=2"
Tensors = list[Tensor]


def product(m: int, n: int, depth: int, dtypes: tuple[str, str, str] = 3 * ("float32",)) -> Tensors:
    a, b, dtype = dtypes
    A, B = te.placeholder((m, depth), a, name="A"), te.placeholder((depth, n), b, name="B")
    k = te.reduce_axis((0, depth), name="k")
    C = te.compute(
        (m, n),
        lambda i, j: te.sum(A[i, k].astype(dtype) * B[k, j].astype(dtype), axis=k),
        name="C",
    )
    return [A, B, te.compute((m, n), lambda i, j: C[i, j] + te.const(1, dtype), name="D")]


def convolution(channels: int) -> Tensors:
    X = te.placeholder((2, 3, 9, 9), name="X")
    W = te.placeholder((channels, 3, 3, 3), name="W")
    c, r, q = (te.reduce_axis((0, 3), name=name) for name in "crq")
    P = te.compute(
        (2, 3, 11, 11),
        lambda b, c, y, x: te.if_then_else(
            te.all(y >= 1, y < 10, x >= 1, x < 10), X[b, c, y - 1, x - 1], 0.0
        ),
        name="P",
    )
    Y = te.compute(
        (2, channels, 9, 9),
        lambda b, f, y, x: te.sum(P[b, c, y + r, x + q] * W[f, c, r, q], axis=[c, r, q]),
        name="Y",
    )
    return [X, W, Y]


def depthwise() -> Tensors:
    X, W = te.placeholder((4, 20), name="X"), te.placeholder((4, 5), name="W")
    k = te.reduce_axis((0, 5), name="k")
    return [X, W, te.compute((4, 16), lambda c, x: te.sum(X[c, x + k] * W[c, k], axis=k), name="Y")]


def vector() -> Tensors:
    W, X = te.placeholder((20, 300), name="W"), te.placeholder((300,), name="X")
    k = te.reduce_axis((0, 300), name="k")
    return [W, X, te.compute((20,), lambda j: te.sum(W[j, k] * X[k], axis=k), name="Y")]


def softmax() -> Tensors:
    X = te.placeholder((5, 12), name="X")
    k, r = te.reduce_axis((0, 12), name="k"), te.reduce_axis((0, 12), name="r")
    M = te.compute((5,), lambda i: te.max(X[i, k], axis=k), name="M")
    E = te.compute((5, 12), lambda i, j: te.exp(X[i, j] - M[i]), name="E")
    T = te.compute((5,), lambda i: te.sum(E[i, r], axis=r), name="T")
    return [X, te.compute((5, 12), lambda i, j: E[i, j] / T[i], name="Y")]


def two_products() -> Tensors:
    """A product of a product."""
    (A, B, D), C = product(300, 24, 9), te.placeholder((24, 7), name="C")
    k = te.reduce_axis((0, 24), name="k")
    return [A, B, C, te.compute((300, 7), lambda i, j: te.sum(D[i, k] * C[k, j], axis=k), name="E")]


def roundabout() -> Tensors:
    A = te.placeholder((7, 9), name="A")
    return [A, te.compute((7, 9), lambda i, j: A[(i * 9 + j) // 9, j % 9] * 2.0, name="B")]


# A program for each strategy, and the target for which it is followed.
FAMILIES: dict[str, tuple[Callable[[], Tensors], str]] = {
    "plain reduction": (vector, "llvm"),
    "streamed": (lambda: product(2, 1600, 500), "llvm"),
    "convolution": (lambda: convolution(16), "llvm"),
    "convolution of few channels": (lambda: convolution(3), "llvm"),
    "convolution of each channel": (depthwise, "llvm"),
    "matrix-product instructions": (lambda: product(16, 16, 64, ("uint8", "int8", "int32")), AMX),
    "dot-product instructions": (lambda: product(5, 20, 10, ("uint8", "int8", "int32")), ZNVER4),
    "tiles": (lambda: product(20, 40, 30), "llvm"),
    "inlining": (
        lambda: [A := te.placeholder((7, 9), name="A"), _doubled(_doubled(A, "B"), "C")],
        "llvm",
    ),
    "simplified": (roundabout, "llvm"),
    "rows": (softmax, "llvm"),
    "rows of its readers": (softmax, "llvm"),
    "contraction": (lambda: product(20, 40, 30), "llvm"),
    "blocks of rows": (two_products, f"llvm {SMALL_CACHES}"),
}


def _doubled(tensor: Tensor, name: str) -> Tensor:
    made: Tensor = te.compute(tensor.shape, lambda *i: tensor(*i) * 2.0, name=name)
    return made


def fails(*_: Any) -> Any:
    """A strategy with a bug."""
    return [][0]


FAILING = tuple(replace(each, find=fails, write=fails) for each in STRATEGIES)


def misuses(schedule: Schedule) -> None:
    """Lets a schedule say what can't be lowered."""
    stage = schedule[schedule.outputs[0]]
    stage.tensorize(stage.leaf_iter_vars[-1], te.dot_product("vpdpbusd_512", 16))


class Broken:
    """How strategies of a name fail: when a schedule is written, or when it is lowered."""

    def __init__(self, name: str, when: str) -> None:
        self.name = name
        self.when = when
        self.failures = 0

    def __call__(self, attempt: attempts.Attempt, strategy: str, stage: Any, do: Any) -> Any:
        if strategy != self.name:
            return FOLLOW(attempt, strategy, stage, do)

        def broken() -> Any:
            made = do()
            if made is not None:
                self.failures += 1
                fails() if self.when == "writing" else misuses(attempt.schedule)
            return made

        return FOLLOW(attempt, strategy, stage, broken)


FOLLOW = attempts.Attempt.follow


@pytest.mark.covering(1)
@pytest.mark.parametrize("when", ["writing", "lowering"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_one_strategy_cannot_another_does(
    family: str, when: str, monkeypatch: pytest.MonkeyPatch, dropped: list[str]
) -> None:
    make, target = FAMILIES[family]
    tensors = make()
    name = family.partition(" of ")[0] if family.startswith("convolution") else family
    broken = Broken(name, when)
    monkeypatch.setattr(attempts.Attempt, "follow", lambda *args: broken(*args))
    f = tvm.build(tensors[-1], tensors, target, name="f")
    assert broken.failures
    assert any(f": {name} was dropped: " in each for each in dropped)
    error = "IndexError: list index out of range" if when == "writing" else "CompileError: "
    assert all(error in each for each in dropped)
    monkeypatch.undo()
    said = str(tvm.explain(f, measure=False))
    assert f"{name}: tried, and dropped since it failed: {error}" in " ".join(said.split())
    if target == "llvm":
        assert_computes(f, tensors)


def assert_computes(f: Any, tensors: Tensors) -> None:
    program = Program([tensors[-1].op], tensors, {})
    given = inputs(program, {}, 0, whole=True)
    (got,) = run(f, program, given, {})
    assert_means(tensors[-1], got, Meaning(given, {}).of(tensors[-1]))


def test_the_plain_loops_are_the_last(monkeypatch: pytest.MonkeyPatch, dropped: list[str]) -> None:
    tensors = product(20, 40, 30)
    monkeypatch.setattr(strategies, "STRATEGIES", FAILING)
    monkeypatch.setattr(rows, "_place_of_readers", fails)
    monkeypatch.setattr(rows._Rows, "write", fails)
    expected = [each.name for each in STRATEGIES]
    expected += ["comparison of strategies", "blocks of rows", "rows of its readers", "rows"]
    for table in ("SIMPLER", "AHEAD", "LAYOUTS"):
        names = [name for name, _ in getattr(write, table)]
        monkeypatch.setattr(write, table, tuple((name, fails) for name in names))
        expected += names
    f = tvm.build(tensors[-1], tensors, name="f")
    assert {each.split(": ")[1].removesuffix(" was dropped") for each in dropped} == {*expected}
    assert_computes(f, tensors)
    plain = tvm.build(tensors[-1], tensors, name="f", auto_schedule=False)
    assert f.get_source("tir") == plain.get_source("tir")


def test_costs_that_fail_are_reported(monkeypatch: pytest.MonkeyPatch, dropped: list[str]) -> None:
    """Strategies are then tried in the order of their table."""
    tensors = product(20, 40, 30)
    failing = tuple(replace(each, cycles=each.cycles and fails) for each in STRATEGIES)
    twice = (*failing[:-1], replace(failing[-1], name="others"), failing[-1])
    monkeypatch.setattr(strategies, "STRATEGIES", twice)
    f = tvm.build(tensors[-1], tensors, name="f")
    assert any(": comparison of strategies was dropped: IndexError" in each for each in dropped)
    assert not any(": tiles was dropped" in each for each in dropped)
    assert_computes(f, tensors)


def test_one_that_always_fails_to_be_used_is_dropped_alone(dropped: list[str]) -> None:
    """Of two products that of C has a fault that shows in the end: that of P keeps its tiles."""
    A, B, C = (te.placeholder((40, 40), name=name) for name in "ABC")
    k, r = te.reduce_axis((0, 40), name="k"), te.reduce_axis((0, 40), name="r")
    P = te.compute((40, 40), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="P")
    Q = te.compute((40, 40), lambda i, j: te.sum(P[i, r] * C[r, j], axis=r), name="Q")

    def use(schedule: Schedule) -> str:
        assert "s[Q].unroll" not in schedule.trace(), "no machine code for Q"
        return str(lower(schedule, [A, B, C, Q]))

    made = write.schedule_program([Q], tvm.target.Target(ZNVER4), [A, B, C, Q], use)
    assert dropped[0].startswith("Q: tiles was dropped: AssertionError: no machine code for Q")
    assert all(each.startswith("Q: ") for each in dropped)
    assert "P.local" in made


FEW = "m <= 8 and n >= 64 and k >= 64"


@pytest.mark.parametrize("faulty", [[FEW], ["m == 1", FEW]])
def test_versions_that_fail_are_dropped_alone(faulty: list[str], dropped: list[str]) -> None:
    m, n, k = map(te.var, "mnk")
    A, B, r = te.placeholder((m, k)), te.placeholder((k, n)), te.reduce_axis((0, k))
    C = te.compute((m, n), lambda i, j: te.sum(A[i, r] * B[r, j], axis=r), name="C")
    kept: list[str] = []

    def use(schedule: Schedule) -> None:
        kept[:] = [str(condition) for condition, _ in schedule.versions]
        found = [each for each in faulty if each in kept]
        assert not found, f"no machine code for {found}"

    write.schedule_program([C], tvm.target.Target(ZNVER4), [A, B, C], use)
    assert len(kept) == 4 - len(faulty)
    assert len(dropped) == len(faulty)
    assert f"no machine code for {[FEW]}" in dropped[-1]


def wrong_program() -> Tensors:
    A, B = te.placeholder((20, 30), name="A"), te.placeholder((30, 40), name="B")
    k = te.reduce_axis((0, 30), name="k")
    return [
        A,
        B,
        te.compute((20, 40), lambda i, j: te.sum(A[i + 1, k] * B[k, j], axis=k), name="C"),
    ]


@pytest.mark.parametrize("broken", [False, True])
def test_an_error_of_the_program_is_that_of_its_plain_loops(
    broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broken:  # and says nothing of what else went wrong; nobody is told of that, either
        monkeypatch.setattr(strategies, "STRATEGIES", FAILING)
    tensors = wrong_program()
    texts = []
    for automatic in (False, True):
        with pytest.raises(tvm.CompileError, match=r"index 0 must stay in \[0, 20\)") as caught:
            tvm.build(tensors[-1], tensors, name="f", auto_schedule=automatic)
        texts.append(str(caught.value))
        assert caught.value.__context__ is None
    assert texts[0] == texts[1]


def test_interrupts_are_no_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Any) -> Any:
        raise KeyboardInterrupt

    (first, *_) = STRATEGIES
    monkeypatch.setattr(strategies, "STRATEGIES", (replace(first, find=interrupted),))
    tensors = product(20, 40, 30)
    with pytest.raises(KeyboardInterrupt):
        tvm.build(tensors[-1], tensors)


def test_prepacked_arguments_are_packed_by_whatever_strategy(
    monkeypatch: pytest.MonkeyPatch, dropped: list[str]
) -> None:
    tensors = product(40, 40, 30)
    monkeypatch.setattr(strategies, "STRATEGIES", FAILING)
    f = tvm.build(tensors[-1], tensors, name="f", prepacked=[tensors[1]])
    a, b = (np.random.default_rng(0).random(t, "float32") for t in ((40, 30), (30, 40)))
    out = np.empty((40, 40), "float32")
    f(a, tvm.prepack(f, "B", b), out)
    np.testing.assert_allclose(out, a @ b + 1, rtol=1e-5)
    assert dropped


def check_broken(draw: Any) -> None:
    """A random program, where strategies of one name, or of several, fail."""
    program: Program = draw(st.composite(contraction)())
    names = [*(each.name for each in STRATEGIES), "inlining", "rows", "rows of its readers"]
    names.append("blocks of rows")
    broken = {
        name: Broken(name, draw(st.sampled_from(["writing", "lowering"])))
        for name in draw(st.sets(st.sampled_from(names), min_size=1))
    }
    note(str({name: each.when for name, each in broken.items()}))

    def follow(attempt: attempts.Attempt, strategy: str, stage: Any, do: Any) -> Any:
        return broken.get(strategy, FOLLOW)(attempt, strategy, stage, do)

    outputs = [op.output(0) for op in program.outputs]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempts.Attempt, "follow", follow)
        f = tvm.build(outputs, program.args, name="f")
    given = inputs(program, program.sizes, 0, whole=True)
    meaning = Meaning(given, program.sizes)
    written = [tensor for tensor in program.args if tensor not in given]
    for tensor, got in zip(written, run(f, program, given, program.sizes), strict=True):
        assert_means(tensor, got, meaning.of(tensor))


CHECKS = [*SLOW, HealthCheck.function_scoped_fixture]  # one list of strategies for all programs


@settings(max_examples=3, deadline=None, suppress_health_check=CHECKS, phases=QUICK)
@given(data=st.data())
def test_random_programs(dropped: list[str], data: st.DataObject) -> None:
    check_broken(data.draw)


@pytest.mark.wide
@settings(max_examples=800, deadline=None, suppress_health_check=CHECKS, phases=QUICK)
@given(data=st.data())
def test_many_random_programs(dropped: list[str], data: st.DataObject) -> None:
    check_broken(data.draw)
