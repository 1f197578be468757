"""Schedules in part by hand: that part stays as it is, and the rest is scheduled on request."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import te
from minitvm.auto_scheduler import left_plain, rows
from minitvm.auto_scheduler.strategies import STRATEGIES, TILES
from minitvm.auto_scheduler.tiled import write_tiled
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import Tensor
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import ForKind
from tests.schedules.programs import PROGRAMS, Draw, Program
from tests.schedules.random_schedule import schedule_in_part

HASWELL = "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell -num-cores=2"
ZNVER4 = "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4 -num-cores=2"
QUICK = [Phase.explicit, Phase.reuse, Phase.generate]
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


class Chain:
    """P = 2 A, C = P B, D = max(C, 0), E = D + 1; and the schedule of E."""

    def __init__(self, n: int = 48) -> None:
        self.A, self.B = (te.placeholder((n, n), name=name) for name in "AB")
        self.k = k = te.reduce_axis((0, n), name="k")
        A, B = self.A, self.B
        self.P = P = te.compute((n, n), lambda i, j: A[i, j] * 2.0, name="P")
        self.C = C = te.compute((n, n), lambda i, j: te.sum(P[i, k] * B[k, j], axis=k), name="C")
        self.D = D = te.compute((n, n), lambda i, j: te.max(C[i, j], 0.0), name="D")
        self.E = te.compute((n, n), lambda i, j: D[i, j] + 1.0, name="E")
        self.s: Any = te.create_schedule(self.E.op)
        self.args = [A, B, self.E]

    def check(self, s: Any = None) -> None:
        """The schedule computes E, and its trace makes it again."""
        s = s or self.s
        a, b = np.random.default_rng(0).integers(-4, 5, (2, *map(int, self.A.shape)))
        made = np.empty(a.shape, "float32")
        tvm.build(s, self.args)(a.astype("float32"), b.astype("float32"), made)
        np.testing.assert_array_equal(made, np.maximum(2 * a @ b, 0) + 1)
        again = te.replay(s.trace(), [self.E], {"own": OWN})
        assert again.trace() == s.trace()
        assert str(tvm.lower(again, self.args)) == str(tvm.lower(s, self.args))


def state(stage: Stage) -> tuple[Any, ...]:
    """What primitives decided about a stage."""
    attrs = {axis: (each.kind, each.intrin) for axis, each in stage.iter_var_attrs.items()}
    loops = (stage.all_iter_vars, stage.leaf_iter_vars, stage.relations, attrs)
    place = (stage.attach_stage, stage.attach_ivar, stage.inlined, stage.is_ahead, stage.scope)
    return tuple(list(each) if isinstance(each, list) else each for each in (*loops, *place))


def complete(s: Schedule, target: str | None = None) -> Schedule:
    """Completes a schedule, and checks that what was done by hand stayed."""
    lines, by_hand = s.trace().splitlines(), [each for each in s.stages if each.is_touched]
    before = [state(each) for each in by_hand]
    assert tvm.auto_schedule(s, target) is s
    assert [state(each) for each in by_hand] == before
    assert s.trace().splitlines()[: len(lines)] == lines
    assert all(each.schedule is s and s.stage_map[each.op] is each for each in by_hand)
    return s


# -- By hand, and by machine ----------------------------------------------------------------------


def test_an_epilogue_by_hand_keeps_its_loops_and_the_product_is_tiled() -> None:
    chain = Chain()
    s, handle = chain.s, chain.s[chain.E]
    outer, inner = s[chain.E].split(chain.E.op.axis[1], factor=8)
    s[chain.E].vectorize(inner)
    complete(s, HASWELL)
    assert s[chain.E] is handle
    assert handle.leaf_iter_vars == [chain.E.op.axis[0], outer, inner]
    assert s[chain.C].attach_stage is s[chain.D]  # and E is no epilogue
    assert s[chain.D].attach_stage is None
    assert s[chain.C].scope == "local"
    chain.check()
    s[chain.E].parallel(chain.E.op.axis[0])  # the user goes on
    chain.check()


def test_a_product_by_hand_and_all_else_by_machine() -> None:
    chain = Chain()
    s = chain.s
    k_outer, _ = s[chain.C].split(chain.k, factor=4)
    s[chain.C].reorder(chain.C.op.axis[0], k_outer, chain.C.op.axis[1])
    complete(s)
    assert s[chain.C].attach_stage is None
    assert not s[chain.C].inlined
    assert s[chain.D].inlined  # in E, which nobody touched
    assert any(each.kind == ForKind.VECTORIZED for each in s[chain.E].iter_var_attrs.values())
    chain.check()


def test_nothing_is_computed_inside_of_what_is_by_hand() -> None:
    """Neither inlined, nor in its rows, nor in its tiles: unless the user says so."""
    X = te.placeholder((32, 64), name="X")
    k = te.reduce_axis((0, 64), name="k")
    M = te.compute((32,), lambda i: te.max(X[i, k], axis=k), name="M")
    Z = te.compute((32, 64), lambda i, j: X[i, j] - M[i], name="Z")
    Y = te.compute((32, 64), lambda i, j: te.exp(Z[i, j]), name="Y")
    s: Any = te.create_schedule(Y.op)
    complete(s)
    assert s[Z].inlined
    assert s[M].attach_stage is s[Y]
    s = te.create_schedule(Y.op)
    s[Y].parallel(Y.op.axis[0])
    complete(s)
    assert not s[Z].inlined
    assert s[Z].attach_stage is None
    assert s[M].attach_stage is s[Z]  # whose rows are the machine's
    s = te.create_schedule(Y.op)
    s[Y].parallel(Y.op.axis[0])
    s[Z].compute_inline()
    complete(s)
    assert s[M].attach_stage is None
    s = te.create_schedule(Y.op)
    s[Z].compute_inline()
    complete(s)
    assert s[M].attach_stage is s[Y]
    x = np.random.default_rng(0).random((32, 64), "float32")
    y = np.empty_like(x)
    tvm.build(s, [X, Y])(x, y)
    np.testing.assert_allclose(y, np.exp(x - x.max(1, keepdims=True)), rtol=1e-5)


def test_a_stage_read_by_an_inlined_one() -> None:
    """What the user inlined is computed in the loops of its readers."""
    for last_by_hand in (False, True):
        chain = Chain()
        s = chain.s
        s[chain.D].compute_inline()
        if last_by_hand:
            s[chain.E].parallel(chain.E.op.axis[0])
        complete(s, HASWELL)
        expected = None if last_by_hand else s[chain.E]
        assert s[chain.C].attach_stage is expected
        chain.check()


def _tensorize(chain: Chain) -> None:
    _, inner = chain.s[chain.E].split(chain.E.op.axis[1], factor=8)
    chain.s[chain.E].tensorize(inner, OWN)


def _own() -> Any:
    a = te.placeholder((8,), name="a")
    b = te.compute((8,), lambda i: a[i] + 1.0, name="b")

    def body(ins: Any, outs: Any) -> Any:
        builder = tvm.tir.ir_builder.create()
        with builder.for_range(0, 8, kind="vectorize") as i:
            builder.buffer_ptr(outs[0])[i] = builder.buffer_ptr(ins[0])[i] + 1.0
        return builder.get()

    return te.decl_tensor_intrin(b.op, body, name="own")


OWN = _own()


def _attach(chain: Chain) -> None:
    chain.s[chain.D].compute_at(chain.s[chain.E], chain.E.op.axis[0])


def _attach_all(chain: Chain) -> None:
    s = chain.s
    s[chain.D].compute_at(s[chain.E], chain.E.op.axis[0])
    s[chain.C].compute_at(s[chain.D], chain.D.op.axis[0])


def _group(chain: Chain) -> None:
    group = chain.s.create_group(chain.D, [chain.C])
    group.compute_at(chain.s[chain.E], chain.E.op.axis[0])
    chain.s.cache_write(chain.D, "local")  # is placed with the group


def _rfactor(chain: Chain) -> None:
    chain.s.rfactor(chain.C, chain.s[chain.C].split(chain.k, factor=4)[1])


def _cache(chain: Chain) -> None:
    chain.s.cache_read(chain.B, "global", [chain.C])
    chain.s.cache_write(chain.C, "global")
    chain.s.cache_read(chain.D, "local", [chain.E])


def _ahead(chain: Chain) -> None:
    """Only the place of a copy."""
    copy = chain.s.cache_read(chain.B, "global", [chain.C])
    chain.s[copy].compute_root()


def _touch_all(chain: Chain) -> None:
    for tensor in (chain.P, chain.C, chain.D, chain.E):
        chain.s[tensor].parallel(tensor.op.axis[0])


BY_HAND: dict[str, Callable[[Chain], None]] = {
    "nothing": lambda chain: None,
    "everything": _touch_all,
    "tensorized": _tensorize,
    "attached": _attach,
    "attached twice": _attach_all,
    "a group": _group,
    "rfactored": _rfactor,
    "caches": _cache,
    "a copy at the root": _ahead,
    "inlined": lambda chain: chain.s[chain.P].compute_inline(),
    "at the root": lambda chain: chain.s[chain.D].compute_root(),
    "layout": lambda chain: chain.s[chain.P].transform_layout(lambda i, j: [j, i]),
    "accesses": lambda chain: chain.s.cache_access(chain.B, "global", chain.C),
    "scope": lambda chain: chain.s[chain.D].set_scope("global"),
    "aligned": lambda chain: chain.s[chain.D].storage_align(chain.D.op.axis[0], 16, 1),
    "prefetched": lambda chain: chain.s[chain.E].prefetch(chain.D, chain.E.op.axis[0], 1),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("by_hand", BY_HAND)
@pytest.mark.parametrize("target", [HASWELL, ZNVER4])
def test_each_primitive_by_hand(by_hand: str, target: str) -> None:
    chain = Chain()
    BY_HAND[by_hand](chain)
    plain = tvm.build(chain.s, chain.args, auto_schedule=False)  # and is not changed by it
    assert plain is not None
    complete(chain.s, target)
    chain.check()
    text = chain.s.trace()
    tvm.auto_schedule(chain.s, target)
    assert chain.s.trace() == text  # there is nothing left to do
    copies = [each for each in chain.s.stages if each.is_named and each.inlined]
    assert not copies or by_hand == "nothing"


def test_stages_made_by_hand_stay_and_get_loops() -> None:
    chain = Chain(64)
    cache = chain.s.cache_write(chain.C, "global")
    copy = chain.s.cache_read(chain.D, "global", [chain.E])
    complete(chain.s, HASWELL)
    assert not chain.s[copy].inlined
    assert not chain.s[chain.D].inlined
    assert chain.s[cache].attach_stage is None
    kinds = [each.kind for stage in chain.s.stages for each in stage.iter_var_attrs.values()]
    assert kinds.count(ForKind.UNROLLED) >= 1  # a tile of the product
    chain.check()


def test_an_untouched_schedule_is_completed_like_its_outputs() -> None:
    chain = Chain()
    assert (
        tvm.auto_schedule(chain.s, HASWELL).trace() == tvm.auto_schedule(chain.E, HASWELL).trace()
    )
    found = tvm.explain(tvm.build(chain.s, chain.args), measure=False)
    assert found.scheduled == "by auto_schedule"


def test_explain_says_who_scheduled_what() -> None:
    chain = Chain()
    chain.s[chain.E].parallel(chain.E.op.axis[0])
    complete(chain.s)
    found = tvm.explain(tvm.build(chain.s, chain.args), measure=False)
    assert found.scheduled == "by hand, the rest by auto_schedule"
    choices = {each.name: each.choices for each in found.stages}
    assert choices["C"]
    assert not choices["E"]


def test_prepacked_arguments_of_a_schedule_in_part_by_hand() -> None:
    chain = Chain(64)
    chain.s[chain.E].parallel(chain.E.op.axis[0])
    tvm.auto_schedule(chain.s, prepacked=[chain.B])
    f = tvm.build(chain.s, chain.args)
    a, b = np.random.default_rng(0).integers(-4, 5, (2, 64, 64)).astype("float32")
    made = np.empty_like(a)
    f(a, tvm.prepack(f, "B", b), made)
    np.testing.assert_array_equal(made, np.maximum(2 * a @ b, 0) + 1)
    other = te.placeholder((64, 64), name="other")
    with pytest.raises(tvm.CompileError, match="prepacked: expected placeholders that the program"):
        tvm.auto_schedule(Chain().s, prepacked=[other])


def test_a_strategy_that_fails_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch, dropped: list[str]
) -> None:
    chain = Chain()
    chain.s[chain.E].parallel(chain.E.op.axis[0])

    def fails(*args: Any, **named: Any) -> Any:
        write_tiled(*args, **named)
        raise RuntimeError("late")

    monkeypatch.setattr("minitvm.auto_scheduler.strategies.write_tiled", fails)
    complete(chain.s, HASWELL)
    assert dropped == ["C: tiles was dropped: RuntimeError: late"]
    others = tuple(each for each in STRATEGIES if each.name != TILES)
    monkeypatch.setattr("minitvm.auto_scheduler.strategies.STRATEGIES", others)
    other = Chain()
    other.s[other.E].parallel(other.E.op.axis[0])
    complete(other.s, HASWELL)
    assert chain.s.trace() == other.s.trace()
    said = str(tvm.explain(tvm.build(chain.s, chain.args), measure=False))
    assert "tiles: tried, and dropped since it failed: RuntimeError: late" in said
    chain.check()


def test_wrong_arguments_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain()
    chain.s[chain.E].parallel(chain.E.op.axis[0])
    text = chain.s.trace()
    with pytest.raises(tvm.CompileError, match="prepacked: expected placeholders"):
        tvm.auto_schedule(chain.s, prepacked=[chain.D])
    with pytest.raises(tvm.CompileError):
        tvm.auto_schedule(chain.s, "llvm -mcpu=nothing-such")
    monkeypatch.setattr(rows._Rows, "_write_alone", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tvm.auto_schedule(chain.s)
    assert chain.s.trace() == text
    assert not chain.s[chain.C].iter_var_attrs


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


# -- Random programs and schedules ----------------------------------------------------------------


def check_random(make: Any, draw: Draw) -> None:
    program: Program = make(draw)
    s = te.create_schedule(program.outputs)
    schedule_in_part(s, draw)
    note(s.trace())
    complete(s)
    note(s.trace())
    note(str(program.sizes))
    lowered = tvm.lower(s, program.args)
    assert str(tvm.lower(te.replay(s.trace(), program.outputs), program.args)) == str(lowered)
    expected, actual = program.arrays(seed=0), program.arrays(seed=0)
    interpret(tvm.lower(te.create_schedule(program.outputs), program.args)["main"], *expected)
    tvm.build(s, program.args, name="completed")(*actual)
    for got, wanted in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("make", PROGRAMS)
@settings(max_examples=2, deadline=None, suppress_health_check=SLOW, phases=QUICK)
@given(data=st.data())
def test_completed_schedules_keep_what_is_computed(make: Any, data: st.DataObject) -> None:
    check_random(make, data.draw)


@pytest.mark.wide
@pytest.mark.parametrize("make", PROGRAMS)
@settings(max_examples=500, deadline=None, suppress_health_check=SLOW, phases=QUICK)
@given(data=st.data())
def test_many_completed_schedules_keep_what_is_computed(make: Any, data: st.DataObject) -> None:
    check_random(make, data.draw)


# -- What is left plain ---------------------------------------------------------------------------


def slow(n: Any = 256) -> Chain:
    chain = Chain(n)
    chain.s[chain.E].parallel(chain.E.op.axis[0])
    return chain


def test_build_says_once_what_is_left_plain() -> None:
    chain = slow()
    with pytest.warns(tvm.PerformanceWarning, match=r"^f: C: computed by plain loops") as caught:
        tvm.build(chain.s, chain.args, HASWELL, name="f")
    (warning,) = caught
    assert warning.filename == __file__
    assert "minitvm.auto_schedule(s)" in str(warning.message)
    tvm.build(chain.s, chain.args, HASWELL, name="f")  # said once: warnings are errors here
    tvm.build(complete(chain.s), chain.args)
    chain = slow()
    with pytest.warns(tvm.PerformanceWarning):  # of another schedule, too
        tvm.build(chain.s, chain.args, HASWELL)


def test_what_silences_it() -> None:
    chain = slow()
    with warnings.catch_warnings(record=True) as caught:
        tvm.build(chain.s, chain.args, auto_schedule=False)
        warnings.filterwarnings("ignore", category=tvm.PerformanceWarning)
        tvm.build(chain.s, chain.args)
    assert not caught


def names(s: Schedule, target: str = HASWELL) -> list[str]:
    return [stage.name for stage in left_plain(s, tvm.Target(target))]


def test_what_is_left_plain_is_slow() -> None:
    assert names(slow().s) == ["C"]
    assert names(slow(64).s) == []  # tiny
    assert names(Chain(256).s) == []  # is scheduled by build
    assert names(slow(te.var("n")).s) == ["C"]
    chain = slow()
    chain.s[chain.C].parallel(chain.C.op.axis[0])
    assert names(chain.s) == []  # every heavy stage is touched
    assert names(complete(slow().s)) == []
    chain = Chain(256)
    chain.s.cache_write(chain.C, "local")
    assert names(chain.s) == ["C.local"]


def test_large_elementwise_stages_are_slow_where_there_are_many_threads() -> None:
    chain = Chain(4096)
    chain.s[chain.C].parallel(chain.C.op.axis[0])
    assert names(chain.s) == []
    assert names(chain.s, HASWELL.replace("cores=2", "cores=16")) == ["P", "D", "E"]


def test_sums_along_and_across() -> None:
    X = te.placeholder((2048, 1024), name="X")

    def total(across: bool) -> Tensor:
        k = te.reduce_axis((0, 2048 if across else 1024), name="k")
        made: Tensor = te.compute(
            (1024 if across else 2048,),
            lambda i: te.sum(X[k, i] if across else X[i, k], axis=k),
            name="total",
        )
        return made

    for across in (False, True):
        sums = total(across)
        Y = te.compute(sums.shape, lambda i, sums=sums: sums[i] * 2.0, name="Y")
        s: Any = te.create_schedule(Y.op)
        s[Y].parallel(Y.op.axis[0])
        assert names(s) == (["total"] if across else [])


@pytest.mark.parametrize("target", [[], 3, ["llvm"]])
def test_an_argument_that_is_no_target_is_named(target: Any) -> None:
    A = te.placeholder((4,), name="A")
    s = te.create_schedule(te.compute((4,), lambda i: A[i] + 1.0, name="B").op)
    with pytest.raises(tvm.CompileError, match="target: expected a text such as 'llvm' or a dict"):
        tvm.auto_schedule(s, target)
