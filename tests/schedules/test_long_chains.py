"""Chains of many stages, which a schedule changes one by one."""

from __future__ import annotations

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te

_COUNT = 30


def _chain(count: int = _COUNT) -> list[te.Tensor]:
    made = [te.placeholder((6,), name="X")]
    for i in range(count):
        before = made[-1]
        made.append(te.compute((6,), lambda j, t=before: t[j] + 1.0, name=f"T{i}"))
    return made


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_change_of_each_stage_makes_few_operations(is_reversed: bool) -> None:
    """A stage that changes makes others of all that follow: not before they are asked for."""
    tensors = _chain()
    s = te.create_schedule(tensors[-1].op)
    computed = tensors[1:]
    for tensor in reversed(computed) if is_reversed else computed:
        s.cache_write(tensor, "local")
    assert len(s.stage_map) <= 5 * _COUNT
    x, y = np.arange(6, dtype="float32"), np.empty(6, "float32")
    tvm.build(s, [tensors[0], tensors[-1]])(x, y)
    np.testing.assert_array_equal(y, x + _COUNT)


def test_changes_of_several_stages_meet_in_their_readers() -> None:
    """A diamond whose sides change in turn, before the stage that reads both is asked for."""
    x = te.placeholder((6,), name="X")
    top = te.compute((6,), lambda i: x[i] + 1.0, name="top")
    left = te.compute((6,), lambda i: top[i] * 2.0, name="left")
    right = te.compute((6,), lambda i: top[i] - left[i], name="right")
    end = te.compute((6,), lambda i: left[i] * right[i] + top[i], name="end")
    s = te.create_schedule(end.op)
    caches = {tensor: s.cache_write(tensor, "local") for tensor in (top, left, right, end)}
    s.cache_write(top, "local")
    s.cache_write(left, "local")
    s[left].transform_layout(lambda i: [i // 3, i % 3])
    s.cache_read(top, "local", [caches[right], caches[end]])
    reads = {tensor.name for tensor in s[end].op.input_tensors}
    assert reads == {"end.local"}
    assert s.outputs == (s[end].op,)
    assert [each.name for each in s.readers(s[left])] == ["right.local", "end.local"]
    assert s.consumes(s[end], s[x]) and not s.consumes(s[x], s[end])
    data, out = np.arange(6, dtype="float32"), np.empty(6, "float32")
    tvm.build(s, [x, end])(data, out)
    a = data + 1
    np.testing.assert_array_equal(out, a * 2 * (a - a * 2) + a)


def test_a_copy_has_the_changes_that_nobody_asked_for() -> None:
    tensors = _chain(4)
    s = te.create_schedule(tensors[-1].op)
    s.cache_write(tensors[1], "local")
    made = s.copy()
    s.cache_write(tensors[2], "local")
    assert len(made.stages) == 6 and len(s.stages) == 7
    assert made[tensors[-1]].op.input_tensors == (made.now(tensors[-2]),)
    x, y = np.arange(6, dtype="float32"), np.empty(6, "float32")
    for each in (made, s):
        tvm.build(each, [tensors[0], tensors[-1]])(x, y)
        np.testing.assert_array_equal(y, x + 4)


def test_a_trace_names_the_stages_on_a_long_way() -> None:
    """Each in a line of its own, rather than by a path from the output."""
    tensors = _chain()
    s = te.create_schedule(tensors[-1].op)
    for tensor in tensors[1:]:
        s[tensor].split(tensor.axis[0], 2)
    text = s.trace()
    assert max(line.count("input_tensors") for line in text.split("\n")) == 1
    assert te.replay(text, tensors[-1]).trace() == text


def test_a_trace_reaches_near_stages_in_one_line() -> None:
    tensors = _chain(4)
    s = te.create_schedule(tensors[-1].op)
    s[tensors[1]].split(tensors[1].axis[0], 2)
    assert s.trace().split("\n")[1] == (
        "T0 = T3.op.input_tensors[0].op.input_tensors[0].op.input_tensors[0].op.output(0)"
    )


def test_a_refused_primitive_leaves_no_names() -> None:
    tensors = _chain()
    s = te.create_schedule(tensors[-1].op)
    before = s.trace()
    with pytest.raises(tvm.CompileError, match="split"):
        s[tensors[1]].split(tensors[2].axis[0], 2)
    assert s.trace() == before
    s[tensors[1]].split(tensors[1].axis[0], 2)
    assert te.replay(s.trace(), tensors[-1]).trace() == s.trace()


@pytest.mark.parametrize("step", ["arithmetic", "a choice", "operators"])
def test_stages_that_read_the_one_before_several_times(step: str) -> None:
    """Their expression, written out, has millions of nodes; so has that of their derivative."""
    count = 14
    x = te.placeholder((37,), "float64", name="X")
    y: te.Tensor = x
    for _ in range(count):
        if step == "operators":
            y = y * y * 0.25 + y
            continue
        y = te.compute(
            (37,),
            lambda i, t=y: (
                t[i] * t[i] * 0.25 + t[i]
                if step == "arithmetic"
                else te.if_then_else(t[i] > 0.0, t[i] - 1.0, t[i] + 0.75)
            ),
        )
    dy = te.placeholder((37,), "float64", name="dY")
    (dx,) = te.gradient(y, x, dy)
    data = np.linspace(-1, 0.5, 37)
    value, slope = data, np.ones(37)
    for _ in range(count):
        slope = slope if step == "a choice" else slope * (value * 0.5 + 1)
        chosen = np.where(value > 0, value - 1, value + 0.75)
        value = chosen if step == "a choice" else value * value * 0.25 + value
    out, gradient = np.empty(37), np.empty(37)
    tvm.build([y, dx], [x, dy, y, dx])(data, np.ones(37), out, gradient)
    np.testing.assert_allclose(out, value, rtol=1e-12)
    np.testing.assert_allclose(gradient, slope, rtol=1e-12)


def test_a_choice_that_both_branches_of_another_read() -> None:
    """One expression, whose shared parts are computed before each choice."""
    x = te.placeholder((37,), name="X")

    def element(i: te.Var) -> te.PrimExpr:
        value = x[i]
        for step in range(12):
            value = te.if_then_else(x[i] > step * 0.1, value * 0.5, value + 1.0)
        return value

    y = te.compute((37,), element, name="Y")
    data = np.linspace(0, 1.5, 37, dtype="float32")
    expected = data
    for step in range(12):
        expected = np.where(data > np.float32(step * 0.1), expected * 0.5, expected + 1)
    for scheduled in (True, False):
        out = np.empty(37, "float32")
        tvm.build(y, [x, y], auto_schedule=scheduled)(data, out)
        np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_nested_choices_by_the_stage_before() -> None:
    """Each branch has the adjoint of the stage behind, which is computed once for all of them; and
    each condition has the stage before, which is simplified once."""
    count = 7
    x, dy = (te.placeholder((37,), "float64", name=name) for name in ("X", "dY"))
    y = x
    for _ in range(count):
        y = te.compute(
            (37,),
            lambda i, t=y: te.if_then_else(
                t[i] > 0.0,
                t[i] * 0.5 + 0.1,
                te.if_then_else(t[i] < -1.0, t[i] + t[i] * t[i] * 0.1, t[i] - 1.0),
            ),
        )
    (dx,) = te.gradient(y, x, dy)
    data = np.linspace(-2, 2, 37)
    value, slope = data, np.ones(37)
    for _ in range(count):
        slope = slope * np.select([value > 0, value < -1], [0.5, 1 + value * 0.2], 1.0)
        value = np.select(
            [value > 0, value < -1], [value * 0.5 + 0.1, value + value * value * 0.1], value - 1
        )
    out, gradient = np.empty(37), np.empty(37)
    tvm.build([y, dx], [x, dy, y, dx])(data, np.ones(37), out, gradient)
    np.testing.assert_allclose(out, value, rtol=1e-12)
    np.testing.assert_allclose(gradient, slope, rtol=1e-12, atol=1e-300)


def test_sums_of_shifted_reads() -> None:
    """The reads of a chain of such stages, passed on, would double with each stage."""
    count = 20
    x, dy = (te.placeholder((37,), "float64", name=name) for name in ("X", "dY"))
    y = x
    for _ in range(count):
        y = te.compute((37,), lambda i, t=y: te.if_then_else(i >= 1, t[i - 1], 0.0) + t[i])
    (dx,) = te.gradient(y, x, dy)
    expected = np.arange(37.0)
    for _ in range(count):
        expected = expected + np.append(expected[1:], 0)
    gradient = np.empty(37)
    tvm.build([dx], [x, dy, dx])(np.zeros(37), np.arange(37.0), gradient)
    np.testing.assert_allclose(gradient, expected, rtol=1e-12)
