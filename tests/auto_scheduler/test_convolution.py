"""Convolutions of all kinds, held to float64 arithmetic on windows."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import te
from minitvm.arith.analyzer import Analyzer
from minitvm.auto_scheduler import auto_schedule
from minitvm.tir.functor import children, walk
from minitvm.tir.stmt import BufferStore, For, Stmt

Array = np.ndarray[Any, Any]
TARGETS = ["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64"]


@dataclass
class Case:
    """A convolution: `groups` of `inputs` channels, each read for `outputs` channels."""

    batch: int
    groups: int
    inputs: int
    outputs: int
    image: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: int = 1
    dilation: int = 1
    padding: int = 0
    channels_last: bool = False
    epilogue: bool = False
    symbolic: bool = False

    @property
    def result(self) -> tuple[int, ...]:
        return tuple(
            (size + 2 * self.padding - self.dilation * (window - 1) - 1) // self.stride + 1
            for size, window in zip(self.image, self.kernel, strict=True)
        )

    def shape(self, channels: Any, image: tuple[Any, ...], batch: Any) -> tuple[Any, ...]:
        return (batch, *image, channels) if self.channels_last else (batch, channels, *image)

    def parts(self, index: tuple[Any, ...]) -> tuple[Any, Any, tuple[Any, ...]]:
        """Batch, channel and place of an element."""
        if self.channels_last:
            return index[0], index[-1], index[1:-1]
        return index[0], index[1], index[2:]


def program(case: Case) -> list[te.Tensor]:
    batch = te.var("batch") if case.symbolic else case.batch
    p, g = case.padding, case.groups
    ci, co = g * case.inputs, g * case.outputs
    x = te.placeholder(case.shape(ci, case.image, batch), name="X")
    w = te.placeholder((co, case.inputs, *case.kernel), name="W")
    image = x
    if p:
        larger = tuple(size + 2 * p for size in case.image)

        def padded(*index: Any) -> Any:
            b, c, place = case.parts(index)
            sizes = zip(place, case.image, strict=True)
            inside = [each for i, n in sizes for each in (i >= p, i < n + p)]
            at = case.shape(c, tuple(i - p for i in place), b)
            return te.if_then_else(te.all(*inside), x(*at), 0.0)

        image = te.compute(case.shape(ci, larger, batch), padded, name="padded")
    k = te.reduce_axis((0, case.inputs), name="k")
    windows = [te.reduce_axis((0, n), name=f"r{i}") for i, n in enumerate(case.kernel)]

    def element(*index: Any) -> Any:
        b, c, place = case.parts(index)
        at = tuple(i * case.stride + r * case.dilation for i, r in zip(place, windows, strict=True))
        channel = k if g == 1 else c // case.outputs * case.inputs + k
        value = image(*case.shape(channel, at, b)) * w(c, k, *windows)
        return te.sum(value, axis=[k, *windows])

    y = te.compute(case.shape(co, case.result, batch), element, name="Y")
    if not case.epilogue:
        return [x, w, y]
    bias = te.placeholder((co,), name="bias")
    residual = te.placeholder(y.shape, name="residual")
    shifted = te.compute(y.shape, lambda *i: y(*i) + bias[case.parts(i)[1]], name="shifted")
    z = te.compute(y.shape, lambda *i: te.max(shifted(*i) + residual(*i), 0.0), name="Z")
    return [x, w, bias, residual, z]


def arrays(case: Case, rng: np.random.Generator) -> tuple[list[Array], Array]:
    """Arguments of small integers, and the result that is then exact."""
    g, p = case.groups, case.padding
    ci, co = g * case.inputs, g * case.outputs
    x = rng.integers(-3, 4, (case.batch, ci, *case.image)).astype("float64")
    w = rng.integers(-3, 4, (co, case.inputs, *case.kernel)).astype("float64")
    around = np.pad(x, [(0, 0), (0, 0)] + [(p, p)] * len(case.image))
    y = np.zeros((case.batch, co, *case.result))
    for place in itertools.product(*map(range, case.kernel)):
        ends = zip(place, case.result, strict=True)
        part: Any = [
            slice(r * case.dilation, r * case.dilation + (n - 1) * case.stride + 1, case.stride)
            for r, n in ends
        ]
        everything: Any = (..., *part)
        window: Array = around[everything]
        grouped = window.reshape(case.batch, g, case.inputs, *case.result)
        here: Any = (..., *place)
        weights = w[here].reshape(g, case.outputs, case.inputs)
        y += np.einsum("bgi...,goi->bgo...", grouped, weights).reshape(y.shape)
    given: list[Array] = [x, w]
    if case.epilogue:
        bias = rng.integers(-3, 4, co).astype("float64")
        residual = rng.integers(-3, 4, y.shape).astype("float64")
        given += [bias, residual]
        y = np.maximum(y + bias.reshape((-1, *[1] * len(case.image))) + residual, 0)
    moved = [each if i in (1, 2) else _in_layout(case, each) for i, each in enumerate(given)]
    return [np.ascontiguousarray(each, "float32") for each in moved], _in_layout(case, y)


def _in_layout(case: Case, array: Array) -> Array:
    return np.moveaxis(array, 1, -1) if case.channels_last else array


CASES = {
    "3x3": Case(1, 1, 8, 16, (20, 20), (3, 3), padding=1),
    "1x1": Case(1, 1, 16, 24, (8, 8), (1, 1)),
    "1x1 odd": Case(2, 1, 6, 10, (5, 7), (1, 1)),
    "1x1 strided": Case(1, 1, 6, 10, (9, 9), (1, 1), stride=2),
    "few columns": Case(1, 1, 8, 32, (7, 7), (3, 3), padding=1),
    "one place": Case(1, 1, 3, 16, (4,), (3,), stride=2),
    "stem": Case(1, 1, 3, 8, (30, 30), (7, 7), stride=2, padding=3),
    "dilated": Case(1, 1, 4, 8, (19, 23), (3, 3), dilation=2, padding=2),
    "groups": Case(2, 4, 4, 8, (12, 12), (3, 3), padding=1),
    "depthwise": Case(1, 16, 1, 1, (18, 18), (3, 3), padding=1),
    "depthwise, 7 x 7": Case(1, 6, 1, 1, (19, 17), (7, 7), padding=3),
    "depthwise, 5 x 11, strided": Case(1, 5, 1, 1, (20, 31), (5, 11), stride=2, padding=2),
    "depthwise strided": Case(1, 16, 1, 1, (18, 19), (3, 3), stride=2, padding=1),
    "multiplier": Case(1, 8, 1, 2, (12, 12), (3, 3), padding=1),
    "groups, one element": Case(2, 3, 1, 2, (5,), (2,), stride=3, dilation=2),
    "one row": Case(1, 1, 8, 16, (40,), (5,), padding=2),
    "full channels": Case(1, 1, 5, 32, (13, 14), (3, 3), padding=1),
    "full channels, strided": Case(2, 1, 3, 48, (15, 17), (3, 2), stride=2, padding=1),
    "full channels, dilated": Case(1, 1, 4, 16, (19, 11), (3, 3), dilation=3, padding=2),
    "full channels, groups": Case(2, 3, 4, 16, (9, 10), (3, 3), padding=1, epilogue=True),
    "full channels, 1x1": Case(2, 1, 20, 32, (7, 7), (1, 1)),
    "half a vector of channels": Case(1, 4, 4, 8, (9, 12), (3, 3), padding=1),
    "odd channels, odd rows": Case(1, 1, 4, 40, (9, 35), (3, 3), padding=1, epilogue=True),
    "more channels than tiles": Case(1, 1, 3, 200, (6, 9), (3, 3)),
    "a column of an image": Case(1, 1, 6, 32, (30, 1), (5, 1)),
    "groups, channels last": Case(1, 4, 8, 16, (9, 11), (3, 3), padding=1, channels_last=True),
    "full row": Case(1, 1, 8, 32, (50,), (5,), stride=2, padding=2, epilogue=True),
    "full volume": Case(1, 1, 4, 16, (5, 6, 7), (3, 2, 3), padding=1),
    "volume, few channels": Case(1, 1, 4, 6, (5, 6, 8), (3, 2, 3), padding=1),
    "volume": Case(1, 1, 4, 8, (6, 7, 8), (3, 3, 3), padding=1),
    "channels last": Case(1, 1, 8, 32, (14, 14), (3, 3), padding=1, channels_last=True),
    "depthwise, channels last": Case(1, 32, 1, 1, (9, 9), (3, 3), padding=1, channels_last=True),
    "epilogue": Case(1, 1, 8, 16, (14, 14), (3, 3), padding=1, epilogue=True),
    "symbolic batch": Case(3, 1, 4, 8, (9, 9), (3, 3), padding=1, symbolic=True),
    "symbolic batch, full channels": Case(3, 1, 4, 32, (9, 9), (3, 3), padding=1, symbolic=True),
    "symbolic batch, depthwise": Case(3, 8, 1, 1, (9, 9), (3, 3), padding=1, symbolic=True),
}


def check(case: Case, target: str = "llvm") -> None:
    made = program(case)
    s = auto_schedule(made[-1], target)
    given, expected = arrays(case, np.random.default_rng(0))
    out = np.full(expected.shape, np.nan, "float32")
    tvm.build(s, made, target=target)(*given, out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        pytest.param(
            target, name, marks=[] if target == TARGETS[number % 3 == 0] else pytest.mark.wide
        )
        for target in TARGETS[:2]
        for number, name in enumerate(CASES)
    ],
)
def test_a_convolution(name: str, target: str) -> None:
    check(CASES[name], target)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if number % 3 == 0 else pytest.mark.wide)
        for number, name in enumerate(CASES)
    ],
)
def test_its_trace_makes_the_same_schedule(name: str) -> None:
    made = program(CASES[name])
    s = auto_schedule(made[-1])
    again = te.replay(s.trace(), made[-1])
    assert str(tvm.lower(again, made)) == str(tvm.lower(s, made))


@pytest.mark.parametrize("size", [4, 15, 64])
@pytest.mark.parametrize("times", [2, 3])
def test_an_image_made_larger(size: int, times: int) -> None:
    """Each pixel is read for several neighbours; what several channels read are groups."""
    small = size // times + 3
    x, w = te.placeholder((4, small, small), name="X"), te.placeholder((8, 4, 3, 3), name="W")
    k, i, j = (
        te.reduce_axis((0, extent), name=name) for extent, name in ((4, "k"), (3, "i"), (3, "j"))
    )
    y = te.compute(
        (8, size, size),
        lambda o, r, c: te.sum(
            x[k, r // times + i, c // times + j] * w[o, k, i, j], axis=[k, i, j]
        ),
        name="Y",
    )
    rng = np.random.default_rng(0)
    image = rng.integers(-3, 4, (4, small, small)).astype("float32")
    weights = rng.integers(-3, 4, (8, 4, 3, 3)).astype("float32")
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), (1, 2))
    expected = np.einsum("krcij,okij->orc", windows, weights)
    expected = expected.repeat(times, 1).repeat(times, 2)[:, :size, :size]
    out = np.full((8, size, size), np.nan, "float32")
    tvm.build(y, [x, w, y])(image, weights, out)
    np.testing.assert_array_equal(out, expected)


def test_rows_of_several_axes_share_panels() -> None:
    """A copy of a factor has as many elements as the factor, whatever reads them again."""
    x, y = te.placeholder((4, 24, 20, 32), name="X"), te.placeholder((30, 32, 24, 28), name="Y")
    k, m = te.reduce_axis((0, 24), name="k"), te.reduce_axis((0, 32), name="m")
    z = te.compute(
        (4, 20, 28, 30),
        lambda a, b, i, j: te.sum(x[a, k, b, m] * y[j, m, k, i], axis=[k, m]),
        name="Z",
    )
    s = auto_schedule(z, TARGETS[2])
    program = tvm.lower(s, [x, y, z], name="f")["f"]
    copies = [
        each
        for each in walk(program.body)
        if isinstance(each, BufferStore) and str(each.buffer.name).startswith("Y.")
    ]
    assert copies, "Y isn't copied: this test needs another program"
    around: list[int] = []

    def count(node: Any, times: int) -> None:
        if isinstance(node, For):
            times *= int(Analyzer().const_int_bound(node.extent).max_value)
        if node in copies:
            around.append(times * node.value.dtype.lanes)
        for child in children(node):
            if isinstance(child, Stmt):
                count(child, times)

    count(program.body, 1)
    # As a whole, and then into panels, with the ends of loops.
    assert sum(around) < 3 * 30 * 32 * 24 * 28
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, t.shape).astype("float32") for t in (x, y))
    out = np.full((4, 20, 28, 30), np.nan, "float32")
    tvm.build(s, [x, y, z])(a, b, out)
    np.testing.assert_array_equal(out, np.einsum("akbm,jmki->abij", a, b, optimize=True))


def test_with_every_access_checked() -> None:
    case = Case(2, 1, 3, 32, (9, 10), (3, 2), stride=2, padding=1, epilogue=True)
    made = program(case)
    given, expected = arrays(case, np.random.default_rng(0))
    out = np.full(expected.shape, np.nan, "float32")
    tvm.build(auto_schedule(made[-1]), made, debug="bounds")(*given, out)
    np.testing.assert_array_equal(out, expected)


def test_arguments_that_are_not_compact() -> None:
    case = Case(1, 1, 3, 32, (9, 10), (3, 3), padding=1)
    made = program(case)
    given, expected = arrays(case, np.random.default_rng(0))
    apart = [np.ascontiguousarray(each[..., ::-1])[..., ::-1] for each in given]
    out = np.full((*expected.shape, 2), np.nan, "float32")[..., 0]
    tvm.build(auto_schedule(made[-1]), made)(*apart, out)
    np.testing.assert_array_equal(out, expected)


def random_case(data: st.DataObject) -> Case:
    few = st.integers(1, 3)
    ndim = data.draw(few)
    return Case(
        batch=data.draw(few),
        groups=data.draw(st.sampled_from([1, 1, 3])),
        inputs=data.draw(st.integers(1, 5)),
        outputs=data.draw(st.one_of(st.integers(1, 17), st.sampled_from([16, 32, 40, 48]))),
        image=tuple(data.draw(st.integers(5, 19)) for _ in range(ndim)),
        kernel=tuple(data.draw(few) for _ in range(ndim)),
        stride=data.draw(few),
        dilation=data.draw(st.integers(1, 2)),
        padding=data.draw(st.integers(0, 2)),
        channels_last=data.draw(st.booleans()),
        epilogue=data.draw(st.booleans()),
        symbolic=data.draw(st.booleans()),
    )


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_random_convolutions(data: st.DataObject) -> None:
    check(random_case(data), data.draw(st.sampled_from(["llvm", "llvm -mcpu=haswell"])))


@pytest.mark.wide
@settings(max_examples=1000, deadline=None)
@given(st.data())
def test_many_random_convolutions(data: st.DataObject) -> None:
    check(random_case(data), data.draw(st.sampled_from(TARGETS)))


def test_sums_along_windows_without_rows() -> None:
    """A product of a matrix of Toeplitz and a vector: so many results at a time that no step waits
    for the one before."""
    C, X = te.placeholder((399,), name="C"), te.placeholder((200,), name="X")
    k = te.reduce_axis((0, 200), name="k")
    Y = te.compute((200,), lambda i: te.sum(C[i - k + 199] * X[k], axis=k), name="Y")
    assert "factor=80" in auto_schedule(Y, "llvm -mcpu=haswell").trace()  # ten vectors
    rng = np.random.default_rng(0)
    c, x = (rng.integers(-9, 9, n).astype("float32") for n in (399, 200))
    found = np.empty(200, "float32")
    tvm.build([Y], [C, X, Y], "llvm -mcpu=haswell")(c, x, found)
    at = np.arange(200)
    np.testing.assert_array_equal(found, c[at[:, None] - at + 199] @ x)


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride"),
    [((11, 30, 3), (3, 3), 1), ((9, 21, 2), (1, 5), 1), ((20, 9, 4), (7, 1), 1),
     ((12, 40, 3), (3, 3), 2)],
)  # fmt: skip
@pytest.mark.parametrize("reads", [False, True])
def test_few_channels_with_weights_of_places(
    shape: tuple[int, ...], kernel: tuple[int, int], stride: int, dtype: str, reads: bool
) -> None:
    """A blur of pixels: vectors run along pixels and channels together."""
    wide = "int32" if dtype == "uint8" else dtype
    x, w = te.placeholder(shape, dtype, name="X"), te.placeholder(kernel, wide, name="W")
    r, q = (te.reduce_axis((0, n), name=name) for n, name in zip(kernel, "rq", strict=True))
    size = [(n - m) // stride + 1 for n, m in zip(shape, kernel, strict=False)]
    y = te.compute(
        (*size, shape[2]),
        lambda i, j, c: te.sum(
            x[i * stride + r, j * stride + q, c].astype(wide) * w[r, q], axis=[r, q]
        ),
        name="Y",
    )
    z = te.compute(y.shape, lambda i, j, c: y[i, j, c] * 2 + 1, name="Z") if reads else y
    rng = np.random.default_rng(0)
    image, weights = rng.integers(0, 9, shape).astype(dtype), rng.integers(-3, 4, kernel)
    found = np.empty([int(n) for n in z.shape], wide)
    tvm.build(z, [x, w, z])(image, weights.astype(wide), found)
    windows = np.lib.stride_tricks.sliding_window_view(image.astype("int64"), kernel, (0, 1))
    expected = np.einsum("ijcrq,rq->ijc", windows[::stride, ::stride], weights)
    np.testing.assert_array_equal(found, expected * 2 + 1 if reads else expected)
    texts = [each.text for each in auto_schedule(z, "llvm -mcpu=znver4").choices]
    assert any("neighbouring results at a time" in each for each in texts)


@pytest.mark.parametrize(
    ("channels", "cores", "loop"),
    [(512, 2, "i1_outer"), (64, 2, "i0_i2_fused"), (64, 1, "i1_outer")],
)
def test_threads_share_a_block_of_channels_where_there_are_few(
    channels: int, cores: int, loop: str
) -> None:
    """Two blocks for each thread are enough; otherwise the rows of the image are the tasks."""
    made = program(Case(1, 1, 64, channels, (16, 16), (3, 3)))
    trace = auto_schedule(made[-1], f"llvm -mcpu=znver4 -num-cores={cores}").trace()
    assert f"].parallel({loop})" in trace
    inside = [line for line in trace.splitlines() if "W_global].compute_at(" in line]
    assert [line.endswith(", i1_outer)") for line in inside] == [True]  # a panel for each block
