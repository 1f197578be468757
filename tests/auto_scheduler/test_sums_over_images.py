"""Sums over images at all places of a window: what a convolution's weights get as their gradient.

Held to numpy, in small integers, whose sums are exact in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import minitvm as tvm
from minitvm import te

Array = np.ndarray[Any, Any]
TARGET = "llvm -mcpu=haswell -num-cores=2"
SMALL = f"{TARGET} -l1d-cache-bytes=2048 -l2-cache-bytes=16384"  # blocks within a small image
TURNED = "computed as {orders}: copies counted, that takes fewer cycles"


@dataclass
class Case:
    """The shape ``[n, f, y, x]`` of an adjoint, and the windows of its convolution."""

    images: int
    inputs: int
    outputs: int
    result: tuple[int, int]
    kernel: tuple[int, int] = (3, 3)
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    dtype: str = "float32"

    @property
    def image(self) -> tuple[int, ...]:
        sizes = zip(self.result, self.kernel, strict=True)
        return tuple((y - 1) * self.stride + (r - 1) * self.dilation + 1 for y, r in sizes)


def program(case: Case) -> list[te.Tensor]:
    g, size, step = case.groups, case.outputs, case.inputs
    X = te.placeholder((case.images, g * step, *case.image), case.dtype, name="X")
    D = te.placeholder((case.images, g * size, *case.result), case.dtype, name="D")
    n = te.reduce_axis((0, case.images), name="n")
    y, x = (te.reduce_axis((0, extent)) for extent in case.result)

    def element(f: Any, c: Any, r: Any, q: Any) -> Any:
        channel = c if g == 1 else f // size * step + c
        at = [i * case.stride + k * case.dilation for i, k in ((y, r), (x, q))]
        return te.sum(X(n, channel, *at) * D[n, f, y, x], axis=[n, y, x])

    return [X, D, te.compute((g * size, step, *case.kernel), element, name="W")]


def expected(case: Case, x: Array, d: Array) -> Array:
    spans = [(r - 1) * case.dilation + 1 for r in case.kernel]
    windows = sliding_window_view(x, spans, (2, 3))[
        :, :, :: case.stride, :: case.stride, :: case.dilation, :: case.dilation
    ]
    per = [a.reshape(a.shape[0], case.groups, -1, *a.shape[2:]) for a in (windows, d)]
    made: Array = np.einsum("ngcyxrq,ngfyx->gfcrq", *per)
    return made.reshape(-1, *made.shape[2:])


def arrays(tensors: list[te.Tensor]) -> list[Array]:
    rng = np.random.default_rng(0)
    shapes = [tuple(int(n) for n in each.shape) for each in tensors]
    return [
        rng.integers(-9, 10, shape).astype(str(each.dtype))
        for shape, each in zip(shapes, tensors, strict=True)
    ]


CASES = {
    "plain": Case(2, 8, 16, (9, 10)),
    "one image": Case(1, 9, 40, (20, 17)),
    "odd channels": Case(3, 5, 7, (11, 6)),
    "a stride": Case(2, 6, 17, (8, 9), (7, 7), stride=2),
    "dilation": Case(2, 4, 24, (7, 9), (3, 2), dilation=2),
    "single elements": Case(2, 30, 33, (9, 7), (1, 1)),
    "single elements, a stride": Case(2, 13, 33, (9, 7), (1, 1), stride=2),
    "groups": Case(2, 4, 8, (8, 9), groups=3),
    "depthwise": Case(2, 1, 1, (9, 11), groups=10),
    "depthwise, rows of whole vectors": Case(1, 1, 1, (5, 32), groups=3),
    "depthwise, large windows": Case(2, 1, 1, (7, 21), (7, 7), groups=5),
    "depthwise, more windows than registers": Case(1, 1, 1, (6, 19), (5, 5), groups=4),
    "depthwise, float64": Case(2, 1, 1, (9, 13), groups=4, dtype="float64"),
    "depthwise, int32": Case(2, 1, 1, (9, 13), groups=4, dtype="int32"),
    "depthwise, a stride": Case(2, 1, 1, (9, 13), groups=4, stride=2),
    "one row of an image": Case(3, 6, 16, (1, 30), (1, 4)),
    "larger windows than images": Case(2, 6, 16, (3, 2), (5, 5)),
    "float64": Case(2, 8, 16, (9, 10), dtype="float64"),
    "int32": Case(2, 8, 16, (9, 10), dtype="int32"),
}


@pytest.mark.parametrize(
    ("target", "name"),
    [
        pytest.param(target, name, marks=[] if number % 3 == place else pytest.mark.wide)
        for place, target in enumerate((TARGET, "llvm", SMALL))
        for number, name in enumerate(CASES)
    ],
)
def test_exact_sums(name: str, target: str) -> None:
    case = CASES[name]
    tensors = program(case)
    x, d, w = arrays(tensors)
    tvm.build(tensors[-1], tensors, target, name="f")(x, d, w)
    np.testing.assert_array_equal(w, expected(case, x, d))


def test_long_sums_are_computed_with_the_adjoints_channels_as_the_column() -> None:
    """In blocks of rows of an image, for one image after the other."""
    s = tvm.auto_schedule(program(Case(2, 32, 64, (40, 40)))[-1], SMALL)
    assert TURNED in [each.text for each in s.choices]
    assert "s.rfactor(" in s.trace()
    assert ".fuse(n, " in s.trace()


def test_few_terms_are_summed_for_neighbouring_weights() -> None:
    """Copied twice, the result would take longer than its sums."""
    s = tvm.auto_schedule(program(Case(1, 512, 512, (7, 7)))[-1], TARGET)
    assert TURNED not in [each.text for each in s.choices]


def test_in_order() -> None:
    """Strict sums aren't cut."""
    case = Case(2, 8, 16, (12, 12))
    tensors = program(case)
    x, d, w = (each.astype("float32") for each in arrays(tensors))
    x[0, 3, 4, 5] = np.nan
    d[1, 2] = np.inf
    tvm.build(tensors[-1], tensors, SMALL, name="f", fp="strict")(x, d, w)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(w, expected(case, x, d))


def test_depthwise_sums_have_steps_in_their_lanes() -> None:
    case = Case(2, 1, 1, (9, 21), groups=6)
    tensors = program(case)
    s = tvm.auto_schedule(tensors[-1], TARGET)
    assert any("steps of the sum in the lanes" in each.text for each in s.choices)
    x, d, w = arrays(tensors)
    x[1, 3, 4, 5] = np.nan
    tvm.build(tensors[-1], tensors, TARGET, name="f")(x, d, w)
    np.testing.assert_array_equal(w, expected(case, x, d))
    assert np.isnan(w).sum() == 9


def test_depthwise_sums_of_a_padded_image() -> None:
    """Each channel is padded where it is read."""
    X = te.placeholder((2, 6, 9, 13), name="X")
    P = te.compute(
        (2, 6, 11, 15),
        lambda n, c, y, x: te.if_then_else(
            te.all(y >= 1, y < 10, x >= 1, x < 14), X[n, c, y - 1, x - 1], 0.0
        ),
        name="P",
    )
    D = te.placeholder((2, 6, 9, 13), name="D")
    n, y, x = (te.reduce_axis((0, extent)) for extent in (2, 9, 13))
    W = te.compute(
        (6, 3, 3),
        lambda c, r, q: te.sum(P[n, c, y + r, x + q] * D[n, c, y, x], axis=[n, y, x]),
        name="W",
    )
    image, d, w = arrays([X, D, W])
    tvm.build(W, [X, D, W], TARGET, name="f")(image, d, w)
    padded = np.pad(image, [(0, 0), (0, 0), (1, 1), (1, 1)])
    case = Case(2, 1, 1, (9, 13), groups=6)
    np.testing.assert_array_equal(w, expected(case, padded, d)[:, 0])


@pytest.mark.parametrize(
    "case",
    [Case(2, 16, 32, (20, 20)), Case(2, 1, 1, (9, 21), groups=6)],
    ids=["dense", "depthwise"],
)
def test_an_epilogue(case: Case) -> None:
    """A step of descent reads the sums, transposed back."""
    X, D, W = program(case)
    before = te.placeholder(W.shape, name="before")
    after = te.compute(W.shape, lambda *i: before(*i) - 2 * W(*i), name="after")
    x, d, old, new = arrays([X, D, before, after])
    tvm.build(after, [X, D, before, after], TARGET, name="f")(x, d, old, new)
    np.testing.assert_array_equal(new, old - 2 * expected(case, x, d))


def test_the_trace_makes_the_same_schedule() -> None:
    tensors = program(Case(2, 8, 16, (9, 10)))
    s = tvm.auto_schedule(tensors[-1], SMALL)
    again = te.replay(s.trace(), [tensors[-1].op])
    assert str(tvm.lower(again, tensors)) == str(tvm.lower(s, tensors))


def test_steps_in_lanes_beside_rows_of_a_symbolic_extent() -> None:
    """Rows without a constant extent can't be written out."""
    n = te.var("n")
    X, Y = te.placeholder((n, 3, 16), name="X"), te.placeholder((3, 16), name="Y")
    k = te.reduce_axis((0, 16), name="k")
    Z = te.compute((n, 3), lambda b, i: te.sum(X[b, i, k] * Y[i, k], axis=k), name="Z")
    f = tvm.build([Z], [X, Y, Z], SMALL)
    rng = np.random.default_rng(0)
    for rows in (0, 1, 9):
        x, y = rng.random((rows, 3, 16), "float32"), rng.random((3, 16), "float32")
        z = np.full((rows, 3), 7, "float32")
        f(x, y, z)
        np.testing.assert_allclose(z, np.einsum("bik,ik->bi", x, y), rtol=1e-5)
