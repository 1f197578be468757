"""Convolutions drawn at random, whose small integers are exact in any order: layouts, strides,
dilations, groups, paddings inside of sums; transposed ones, and gradients."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from benchmarks.drawn_conv import Drawn, drawn, exact, laid_out, program
from minitvm import te
from tests.whole_programs.running import strategies_that_failed

TARGETS = (
    "llvm -mcpu=haswell -num-cores=2",
    "llvm -mcpu=haswell -num-cores=2 -l1d-cache-bytes=8192 -l2-cache-bytes=65536",
    "llvm",
)
SUMMED = {"int8": "int32"}
IN_LANES = "the {lanes} lanes of a vector hold the sums of neighbouring steps"
BORDERS = "{tensor} is copied with its borders"


def case(**differences: Any) -> Drawn:
    """A 3 x 3 convolution of a small image."""
    usual = Drawn(
        kind="plain", data="first", weights="OI*", result="first", batch=2, channels=32, out=8,
        size=(9, 11), kernel=(3, 3), stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1,
        inside=False, bias=False,
    )  # fmt: skip
    return usual._replace(**differences)


def check(made: Drawn, target: str, dtype: str = "float32", fp: str = "fast") -> list[str]:
    """Computes a convolution, compares it, and returns the choices for it, if `fp` is "fast"."""
    arguments = program(made, te, dtype)
    rng = np.random.default_rng(0)
    shapes = [[int(extent) for extent in each.shape] for each in arguments]
    arrays = [
        rng.integers(-3, 4, shape).astype(str(each.dtype))
        for shape, each in zip(shapes[:-1], arguments, strict=False)
    ]
    expected = exact(made, *(each.astype(SUMMED.get(dtype, dtype)) for each in arrays))
    found = np.full(shapes[-1], -77, str(arguments[-1].dtype))
    with strategies_that_failed() as failed:
        made_fast = tvm.auto_schedule(arguments[-1], target) if fp == "fast" else None
        tvm.build(made_fast or arguments[-1], arguments, target, name="f", fp=fp)(*arrays, found)
    assert not failed
    np.testing.assert_array_equal(found, expected)
    return [each.text for each in made_fast.choices] if made_fast else []


@pytest.mark.parametrize("seed", range(16))
def test_drawn(seed: int) -> None:
    check(drawn(random.Random(seed), 1e3, 1e6), TARGETS[seed % 2])


@pytest.mark.wide
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(16, 300))
def test_drawn_widely(seed: int, target: str) -> None:
    made = drawn(random.Random(seed), 1e3, 1e6)
    dtype = ("float32", "float64", "int32")[seed % 3]
    check(made, target, "float32" if made.kind.startswith("gradient") else dtype)
    if seed % 5 == 0:
        check(made, target, fp="strict")


def test_the_reference() -> None:
    """The sum as it is defined, of a strided and dilated convolution by groups."""
    made = case(channels=4, out=6, groups=2, stride=(2, 1), dilation=(1, 2), size=(5, 7))
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, shape) for shape in made.shapes[:2])
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    expected = np.zeros(made.shapes[2], x.dtype)
    for n, o, i, j in np.ndindex(expected.shape):
        channels = slice(o // 3 * 2, o // 3 * 2 + 2)
        window = padded[n, channels, 2 * i : 2 * i + 3, j : j + 5 : 2]
        expected[n, o, i, j] = (window * w[o]).sum()
    np.testing.assert_array_equal(exact(made, x, w), expected)
    turned = made._replace(data="last", weights="*IO", result="last")
    found = exact(turned, laid_out(x, "last"), laid_out(w, "*IO"))
    np.testing.assert_array_equal(found, laid_out(expected, "last"))


# -- Lanes of sums --


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int8"])
@pytest.mark.parametrize("weights", ["OI*", "O*I", "*IO"])
@pytest.mark.parametrize("out", [1, 3])
@pytest.mark.parametrize("channels", [32, 35])
def test_few_channels_out(channels: int, out: int, weights: str, dtype: str) -> None:
    """The channels of an image that lie side by side are the lanes, in any layout of the weights;
    the last ones are left idle."""
    made = case(data="last", weights=weights, result="last", channels=channels, out=out)
    assert any(IN_LANES in each for each in check(made, TARGETS[0], dtype))


def test_few_channels_out_that_lie_apart() -> None:
    made = case(data="last", weights="OI*", result="first", channels=64, out=3)
    assert any(IN_LANES in each for each in check(made, TARGETS[0]))


def test_channels_in_blocks_are_no_lanes() -> None:
    """Lines of 4 channels end before a vector."""
    X = te.placeholder((1, 8, 9, 9, 4), name="X")
    W = te.placeholder((3, 3, 3, 32), name="W")
    c, i, j = (te.reduce_axis((0, n)) for n in (32, 3, 3))
    Y = te.compute(
        (1, 7, 7, 3),
        lambda n, y, x, o: te.sum(
            X[n, c // 4, y + i, x + j, c % 4] * W[o, i, j, c], axis=[c, i, j]
        ),
        name="Y",
    )
    texts = [each.text for each in tvm.auto_schedule(Y, TARGETS[2]).choices]
    assert not any(IN_LANES in each for each in texts)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, [int(n) for n in each.shape]).astype("float32") for each in (X, W))
    y = np.empty((1, 7, 7, 3), "float32")
    tvm.build(Y, [X, W, Y], TARGETS[2])(x, w, y)
    image = x.transpose(0, 2, 3, 1, 4).reshape(1, 9, 9, 32)
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), (1, 2))
    np.testing.assert_array_equal(y, np.einsum("nyxcij,oijc->nyxo", windows, w))


@pytest.mark.parametrize("channels", [1, 32])
def test_a_single_channel_that_is_the_last_axis(channels: int) -> None:
    """It is computed along the rows of the image."""
    for size in ((9, 11), (7, 33)):
        check(case(result="last", channels=channels, out=1, size=size), TARGETS[0])


# -- Images as they lie --


def test_few_rows_of_weights_read_the_image_as_it_lies() -> None:
    texts = check(case(channels=64, out=4, size=(20, 64)), TARGETS[0])
    assert not any("windows" in each for each in texts)
    assert any("{b} is not packed" in each for each in texts)


# -- Paddings --


@pytest.mark.parametrize("data", ["first", "last"])
def test_padding_in_a_sum_becomes_a_copy(data: str) -> None:
    assert BORDERS in check(case(data=data, result=data, inside=True, out=32), TARGETS[0])


def test_padding_that_is_read_once_stays() -> None:
    made = case(channels=1, out=1, kernel=(3, 1), padding=(1, 0), stride=(3, 1), inside=True)
    assert BORDERS not in check(made, TARGETS[0])


# -- The order of steps --


def test_channels_that_are_transposed_into_panels() -> None:
    """A few of them are the innermost steps."""
    made = case(data="last", weights="*IO", channels=8, out=128, size=(23, 22), kernel=(1, 1))
    for target in TARGETS:
        check(made._replace(padding=(0, 0)), target)


@pytest.mark.covering(2)
@pytest.mark.parametrize("weights", ["OI*", "O*I", "*IO"])
@pytest.mark.parametrize("data", ["first", "last"])
@pytest.mark.parametrize("fp", ["fast", "strict"])
def test_steps_in_the_order_of_the_rows(fp: str, data: str, weights: str) -> None:
    made = case(data=data, weights=weights, channels=24, out=32, stride=(2, 2))
    check(made, TARGETS[1], fp=fp)


@pytest.mark.parametrize("kernel", [(3, 3), (6, 5)])
@pytest.mark.parametrize("bias", [False, True])
def test_channels_that_lie_apart_in_the_image_alone(kernel: tuple[int, int], bias: bool) -> None:
    """Each channel has weights of its own: it is computed along the rows of the image, and the
    result is copied, its channels last."""
    made = case(
        channels=24, out=24, groups=24, size=(20, 33), kernel=kernel, result="last", bias=bias
    )
    assert any("computed as" in each for each in check(made, TARGETS[0]))
