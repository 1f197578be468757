"""Convolutions of narrow numbers by instructions: windows are copied into rows where a tile reads
them. Small integers are exact in any order."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import minitvm as tvm
from benchmarks.drawn_conv import Drawn, exact, program
from minitvm import te
from minitvm.te.schedules.simplify_operations import simplified
from tests.auto_scheduler.test_drawn_convolutions import case
from tests.auto_scheduler.test_matrix_products import AMX, ARM, HAS_BMI2, anywhere
from tests.whole_programs.running import strategies_that_failed

__all__ = ["anywhere"]
HASWELL = "llvm -mcpu=haswell -num-cores=2"
TARGETS = [
    pytest.param(AMX, marks=pytest.mark.skipif(not HAS_BMI2, reason="kernels use BMI2")),
    ARM,
    HASWELL,
]
SUMMED = {"int8": "int32", "bfloat16": "float32"}


def numpy_of(dtype: str) -> Any:
    return ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)


def small(**differences: Any) -> Drawn:
    usual = case(batch=1, channels=32, out=32, size=(5, 7))
    return usual._replace(**differences)


def check(made: Drawn, target: str, dtype: str = "int8") -> str:
    """Computes a convolution, compares it, and returns its trace."""
    arguments = program(made, te, dtype)
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(-3, 4, [int(extent) for extent in each.shape]).astype(numpy_of(dtype))
        for each in arguments[:2]
    ]
    summed = SUMMED[dtype]
    expected = exact(made, *(each.astype(summed) for each in arrays))
    found = np.full(expected.shape, -77, summed)
    with strategies_that_failed() as failed:
        s = tvm.auto_schedule(arguments[-1], target)
        tvm.build(s, arguments, target, name="f")(*arrays, found)
    assert not failed
    np.testing.assert_array_equal(found, expected)
    return s.trace()


@pytest.mark.covering(1)
@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("data", "weights", "result"), [
    ("first", "OI*", "first"), ("last", "*IO", "last"), ("first", "O*I", "last"),
    ("last", "OI*", "first"),
])  # fmt: skip
def test_any_layout(data: str, weights: str, result: str, target: str) -> None:
    made = small(data=data, weights=weights, result=result)
    assert "_product(" in check(made, target)


@pytest.mark.covering(1)
@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
@pytest.mark.parametrize("differences", [
    {"stride": (2, 2), "size": (9, 9)},
    {"dilation": (1, 2), "size": (5, 9)},
    {"kernel": (1, 1), "padding": (0, 0)},
    {"kernel": (5, 1), "padding": (2, 0), "inside": True},
    {"batch": 3, "size": (3, 4)},
    {"size": (20,), "kernel": (3,), "stride": (1,), "padding": (1,), "dilation": (1,)},
    {"size": (3, 4, 5), "kernel": (2, 2, 2), "stride": (1, 1, 1), "padding": (0, 0, 0),
     "dilation": (1, 1, 1)},
], ids=["stride", "dilation", "1x1", "inside", "batch", "1-d", "3-d"])  # fmt: skip
@pytest.mark.parametrize("data", ["first", "last"])
def test_windows(data: str, differences: dict[str, Any], dtype: str) -> None:
    made = small(data=data, result=data, **differences)
    trace = check(made, AMX if HAS_BMI2 else ARM, dtype)
    assert "_product(" in trace or dtype == "bfloat16"  # some are too small


@pytest.mark.covering(1)
@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
@pytest.mark.parametrize(("data", "weights"), [("first", "OI*"), ("last", "*IO")])
def test_groups(data: str, weights: str, kernel: tuple[int, int]) -> None:
    """Each group of channels is a product of its own; a view divides the channels."""
    made = small(data=data, weights=weights, result=data, groups=2, channels=64, kernel=kernel,
                 padding=tuple(k // 2 for k in kernel))  # fmt: skip
    trace = check(made, AMX if HAS_BMI2 else ARM)
    assert "_product(" in trace and "compute_view" in trace


@pytest.mark.usefixtures("anywhere")
def test_groups_too_small_for_an_instruction() -> None:
    assert "_product(" not in check(small(groups=16, data="last", result="last"), AMX)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("data", ["first", "last"])
def test_symbolic_batches(data: str) -> None:
    target, n = AMX if HAS_BMI2 else ARM, te.var("n")
    shape = (n, 32, 7, 7) if data == "first" else (n, 7, 7, 32)
    X, W = te.placeholder(shape, "int8", name="X"), te.placeholder((32, 32, 3, 3), "int8", name="W")
    c, r, q = (te.reduce_axis((0, size)) for size in (32, 3, 3))

    def element(n: Any, *at: Any) -> Any:
        f, y, x = at if data == "first" else (at[2], *at[:2])
        place = (n, c, y + r, x + q) if data == "first" else (n, y + r, x + q, c)
        return te.sum(X[place].astype("int32") * W[f, c, r, q].astype("int32"), [c, r, q])

    out = (n, 32, 5, 5) if data == "first" else (n, 5, 5, 32)
    Y = te.compute(out, element, name="Y")
    assert "_product(" in tvm.auto_schedule(Y, target).trace()
    f = tvm.build(Y, [X, W, Y], target)
    rng = np.random.default_rng(3)
    w = rng.integers(-3, 4, (32, 32, 3, 3)).astype("int8")
    for batch in (0, 1, 3):
        x = rng.integers(-3, 4, [batch, *map(int, shape[1:])]).astype("int8")
        found = np.full([batch, *map(int, out[1:])], -77, "int32")
        f(x, w, found)
        whole = small(batch=batch, data=data, result=data, size=(7, 7), padding=(0, 0))
        np.testing.assert_array_equal(found, exact(whole, x.astype("int32"), w.astype("int32")))


@pytest.mark.covering(1)
@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("data", "weights"), [("first", "OI*"), ("last", "*IO"), ("last", "OI*")])
def test_prepacked_weights(data: str, weights: str, target: str) -> None:
    made = small(data=data, weights=weights, result=data)
    *_, Y = arguments = program(made, te, "int8")
    schedule = tvm.auto_schedule(Y, target, prepacked=[arguments[1]])
    assert "_product(" in schedule.trace() and "compute_ahead" in schedule.trace()
    f = tvm.build(schedule, arguments, target)
    rng = np.random.default_rng(4)
    x, w = (
        rng.integers(-3, 4, [int(extent) for extent in each.shape]).astype("int8")
        for each in arguments[:2]
    )
    found = np.full([int(extent) for extent in Y.shape], -77, "int32")
    f(x, tvm.prepack(f, "W", w), found)
    np.testing.assert_array_equal(found, exact(made, x.astype("int32"), w.astype("int32")))


@pytest.mark.covering(2)
@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("channels", [3, 33, 97])
@pytest.mark.parametrize("data", ["first", "last"])
@pytest.mark.parametrize("target", [AMX if HAS_BMI2 else ARM, HASWELL])
def test_lines_that_end_anywhere(target: str, data: str, channels: int) -> None:
    """Lines of channels fill no vectors, and the sums no steps of an instruction."""
    check(small(data=data, result=data, channels=channels), target)


def test_copies_are_made_for_a_strip_of_rows() -> None:
    """The matrix of the windows is never stored as a whole, nor is the padding copied again."""
    X, W, *_, Y = program(case(data="last", weights="*IO", result="last", out=64), te, "int8")
    schedule = tvm.auto_schedule(Y, AMX)
    (copy,) = [
        stage for stage in schedule.stages if stage.op.name.startswith("P.") and not stage.inlined
    ]
    assert copy.attach_stage is not None
    lines = [each for each in schedule.trace().split("\n") if "cache_access" in each]
    assert len(lines) == 1, [X, W]


def test_tiles_keep_their_configuration() -> None:
    """No call, such as one of memset for the padding of a row, lies between tiles."""
    arguments = program(small(channels=16, data="last", weights="*IO", result="last"), te, "int8")
    assembly = tvm.build(arguments[-1], arguments, AMX).get_source("asm")
    assert "tileload" in assembly and "memset" not in assembly


@pytest.mark.parametrize("target", ["llvm", "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=znver4"])
def test_code_has_no_instruction_without_a_form_of_avx(target: str) -> None:
    """Zen has ``extrq``, which other machines with the features of its row lack, and for which
    others wait."""
    made = small(channels=12, data="last", result="last", kernel=(1, 1), padding=(0, 0))
    arguments = program(made, te, "int8")
    X, k = te.placeholder((1000, 33), "uint8", name="X"), te.reduce_axis((0, 33), name="k")
    least = te.compute((1000,), lambda i: te.min(X[i, k], axis=k), name="least")
    if tvm.Target(target).arch == "x86_64":
        assert "+sse4a" not in tvm.Target(target).feature_string.partition("-sse4a")[2]
        assert "-sse4a" in tvm.Target(target).feature_string
    for tensors in (arguments, [X, least]):
        assembly = tvm.build(tensors[-1], tensors, target).get_source("asm")
        assert "extrq" not in assembly and "insertq" not in assembly


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("data", ["first", "last"])
def test_epilogues_take_the_sums_in_the_tile(data: str) -> None:
    """Bias, activation and rounding have the layout of the sums."""
    target = AMX if HAS_BMI2 else ARM
    *_, Y = arguments = program(small(data=data, result=data), te, "int8")
    B = te.placeholder((32,), "int32", name="B")
    Z = te.compute(
        Y.shape,
        lambda *at: te.max(Y[at] + B[at[1 if data == "first" else 3]], 0).astype("uint8"),
        name="Z",
    )
    taken = [each for each in tvm.auto_schedule(Z, target).choices if each.about == "epilogue"]
    assert len(taken) == 1
    rng = np.random.default_rng(1)
    x, w = (
        rng.integers(-3, 4, [int(extent) for extent in each.shape]).astype("int8")
        for each in arguments[:2]
    )
    b = rng.integers(-40, 40, 32).astype("int32")
    found = np.full([int(extent) for extent in Z.shape], 77, "uint8")
    tvm.build(Z, [*arguments[:2], B, Z], target)(x, w, b, found)
    sums = exact(small(data=data, result=data), x.astype("int32"), w.astype("int32"))
    bias = b[:, None, None] if data == "first" else b
    np.testing.assert_array_equal(found, np.maximum(sums + bias, 0).astype("uint8"))


@pytest.mark.usefixtures("anywhere")
def test_windows_of_the_user() -> None:
    """A matrix of windows that the program writes itself is computed where a tile reads it."""
    target = AMX if HAS_BMI2 else ARM
    X = te.placeholder((9, 9, 32), "int8", name="X")
    W = te.placeholder((288, 32), "int8", name="W")
    M = te.compute(
        (49, 288), lambda i, k: X[i // 7 + k // 96, i % 7 + k // 32 % 3, k % 32], name="M"
    )
    k = te.reduce_axis((0, 288), name="k")
    Y = te.compute(
        (49, 32), lambda i, j: te.sum(M[i, k].astype("int32") * W[k, j].astype("int32"), axis=k),
        name="Y",
    )  # fmt: skip
    schedule = tvm.auto_schedule(Y, target)
    whole = [each for each in schedule.stages if each.op.name.startswith("M")
             and not each.inlined and each.attach_stage is None]  # fmt: skip
    assert not whole
    rng = np.random.default_rng(2)
    x, w = rng.integers(-9, 9, (9, 9, 32)).astype("int8"), rng.integers(-9, 9, (288, 32), "int8")
    found = np.zeros((49, 32), "int32")
    tvm.build(Y, [X, W, Y], target)(x, w, found)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype("int32"), (3, 3), axis=(0, 1))
    rows = windows.transpose(0, 1, 3, 4, 2).reshape(49, 288)
    np.testing.assert_array_equal(found, rows @ w.astype("int32"))


def test_floats_in_order_take_none() -> None:
    arguments = program(small(), te, "bfloat16")
    for fp in ("fast", "strict"):
        text = tvm.build(arguments[-1], arguments, AMX, fp=fp).get_source("ll")
        assert ("tdpbf16ps" in text) == (fp == "fast")


def test_steps_of_one_term_are_none() -> None:
    """A kernel of one element is no window: the image itself is the rows' factor."""
    *_, Y = program(small(kernel=(1, 1), padding=(0, 0), data="last", result="last"), te, "int8")
    made = simplified(Y.op)
    assert [axis.var.name for axis in made.reduce_axis] == ["rc"]
    assert "cache_access" not in tvm.auto_schedule(Y, AMX).trace()


def test_windows_of_a_large_image_are_copied_along_its_channels() -> None:
    """A strip of rows is made in the caches, however large the matrix of all windows is."""
    X = te.placeholder((1, 41, 41, 256), "bfloat16", name="X")
    W = te.placeholder((3, 3, 256, 256), "bfloat16", name="W")
    r, q, c = (te.reduce_axis((0, n), name=name) for n, name in ((3, "r"), (3, "q"), (256, "c")))

    def element(n: Any, y: Any, x: Any, f: Any) -> Any:
        read = X[n, y + r * 4, x + q * 4, c].astype("float32")
        return te.sum(read * W[r, q, c, f].astype("float32"), axis=[r, q, c])

    Y = te.compute((1, 33, 33, 256), element, name="Y")
    trace = tvm.auto_schedule(Y, AMX).trace()
    assert "te.matrix_product(" in trace
    assert "factor=1)" not in trace  # elements one by one, as along the places of the image
