"""Outputs that share memory with another argument are refused, and only those."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
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


@given(st.data())
def test_views_of_one_array(data: st.DataObject) -> None:
    """Refused exactly where an element is shared, unless all are, each with itself; or (nearly so)
    where the output's own are."""
    base = np.arange(300, dtype=np.float32)
    shape = data.draw(st.tuples(st.integers(0, 4), st.integers(0, 4)))

    def view() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        start = data.draw(st.integers(90, 210))
        steps = data.draw(st.tuples(st.integers(-9, 9), st.integers(-9, 9)))
        return np.lib.stride_tricks.as_strided(base[start:], shape, [4 * s for s in steps])

    source, target = view(), view()
    places = [
        [start + i * a.strides[0] + j * a.strides[1] for i, j in np.ndindex(*shape)]
        for a in (source, target)
        for start in (a.ctypes.data,)
    ]
    expected, before = source + 1, base.copy()
    shared = places[0] != places[1] and not set(places[0]).isdisjoint(places[1])
    if shared or len(set(places[1])) < target.size:
        with pytest.raises(ValueError, match=r"share memory|shares no memory"):
            INC(source, target)
        np.testing.assert_array_equal(base, before)
    elif _steps_over(target):
        INC(source, target)
        np.testing.assert_array_equal(target, expected)


def _steps_over(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> bool:
    """Whether each stride steps over what smaller ones reach, as it does in any slice."""
    dims = sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1)
    reach = 0
    for stride, extent in dims:
        if stride <= reach:
            return False
        reach += stride * (extent - 1)
    return True
