"""Outputs that share memory with another argument are refused, and only those."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import te


def elementwise() -> tvm.runtime.Module:
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n, m), name="A")
    b = te.compute((n, m), lambda i, j: a[i, j] + 1.0, name="B")
    return tvm.build(b, [a, b], name="inc")


INC = elementwise()


def test_interleaved_views_are_apart() -> None:
    x = np.zeros((4, 6), np.float32)
    INC(x[:, ::2], x[:, 1::2])  # even and odd columns
    np.testing.assert_array_equal(x, np.tile([0, 1], (4, 3)))
    INC(x[1::2], x[::2])  # odd and even rows
    np.testing.assert_array_equal(x[::2], np.tile([1, 2], (2, 3)))
    pixels = np.zeros((5, 7, 3), np.float32)
    INC(pixels[..., 2], pixels[..., 0])
    np.testing.assert_array_equal(pixels[..., 0], np.ones((5, 7)))
    np.testing.assert_array_equal(pixels[..., 1:], np.zeros((5, 7, 2)))


def test_an_empty_array_inside_of_another() -> None:
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n,), name="A")
    b = te.compute((m,), lambda i: te.if_then_else(i < n, a[i], 7.0), name="B")
    fill = tvm.build(b, [a, b], name="fill")
    y = np.zeros(5, np.float32)
    fill(y[2:2], y)
    np.testing.assert_array_equal(y, np.full(5, 7))
    fill(y, y[2:2])
    with pytest.raises(ValueError, match="overlapping memory"):
        fill(y[2:3], y)


def test_what_is_too_hard_to_tell_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros((4, 6), np.float32)
    INC(x[:, ::2], x[:, 1::2])

    def give_up(*args: object, **limit: object) -> bool:
        raise np.exceptions.TooHardError

    monkeypatch.setattr(np, "shares_memory", give_up)
    with pytest.raises(ValueError, match="memory"):
        INC(x[:, ::2], x[:, 1::2])


@settings(deadline=None)  # the first call of a kind compiles a variant
@given(st.data())
def test_views_of_one_array(data: st.DataObject) -> None:
    """Refused exactly where an element is shared and the arrays aren't one, or (nearly so) where
    the output's own elements are."""
    base = np.arange(300, dtype=np.float32)
    shape = data.draw(st.tuples(st.integers(0, 4), st.integers(0, 4)))

    def view() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        start = data.draw(st.integers(90, 210))
        steps = data.draw(st.tuples(st.integers(-9, 9), st.integers(-9, 9)))
        return np.lib.stride_tricks.as_strided(base[start:], shape, [4 * s for s in steps])

    source, target = view(), view()
    places = [
        {start + i * a.strides[0] + j * a.strides[1] for i, j in np.ndindex(*shape)}
        for a in (source, target)
        for start in (a.ctypes.data,)
    ]
    expected, before = source + 1, base.copy()
    if _steps_over(target) and _are_same(source, target):
        INC(source, target)
        np.testing.assert_array_equal(target, expected)
    elif places[0] & places[1] or len(places[1]) < target.size:
        with pytest.raises(ValueError, match=r"share memory|shares no memory"):
            INC(source, target)
        np.testing.assert_array_equal(base, before)
    elif _steps_over(target):
        INC(source, target)
        np.testing.assert_array_equal(target, expected)


def _are_same(
    a: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    b: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
) -> bool:
    """Whether two arrays of one shape are one: each element of one is that of the other."""
    steps = zip(a.strides, b.strides, a.shape, strict=True)
    return a.ctypes.data == b.ctypes.data and all(x == y or n == 1 for x, y, n in steps)


def _steps_over(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> bool:
    """Whether each stride steps over what smaller ones reach, as it does in any slice."""
    dims = sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1)
    reach = 0
    for stride, extent in dims:
        if stride <= reach:
            return False
        reach += stride * (extent - 1)
    return True


# -- Many arguments --------------------------------------------------------------------------------

COUNT = 9
N = te.var("n")


@cache
def many() -> tvm.runtime.Module:
    inputs = [te.placeholder((N,), name=f"x{i}") for i in range(COUNT)]
    outputs = [
        te.compute((N,), lambda i, x=x, p=p: x[i] + float(p), name=f"y{p}")
        for p, x in enumerate(inputs)
    ]
    s = te.create_schedule([output.op for output in outputs])
    return tvm.build(s, [*inputs, *outputs], name="many")


@pytest.mark.parametrize("step", [1, 2, -1])
def test_many_arguments(step: int) -> None:
    """Each output is compared with each argument, and none is forgotten."""
    arrays = [np.zeros(8, np.float32)[::step] for _ in range(2 * COUNT)]
    many()(*arrays)
    for p, written in enumerate(arrays[COUNT:]):
        np.testing.assert_array_equal(written, np.full_like(written, p))
    memory = np.zeros(24, np.float32)
    for first in range(2 * COUNT):
        for second in range(max(first + 1, COUNT), 2 * COUNT):
            wrong = list(arrays)
            wrong[first], wrong[second] = memory[:8][::step], memory[6:14][::step]
            if step == 2:
                wrong[second] = memory[2:10][::step]
            output, other = (first, second) if first >= COUNT else (second, first)
            with pytest.raises(ValueError, match=rf"argument {output} .* memory with .* {other} "):
                many()(*wrong)
    assert not memory.any()


def test_many_arguments_interleaved_and_in_place() -> None:
    memory = np.zeros((6, 2 * COUNT), np.float32)
    many()(*memory.T)
    np.testing.assert_array_equal(memory, np.tile([0.0] * COUNT + [*range(COUNT)], (6, 1)))
    same = np.ones((COUNT, 6), np.float32)
    many()(*same, *same)
    np.testing.assert_array_equal(same, np.tile(np.arange(1, COUNT + 1)[:, None], (1, 6)))
