"""Contractions whose axes lie in any order: computed in the order of a product, with copies where
these pay; and operands that other stages read across again and again."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from math import prod
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.auto_scheduler.write import schedule_program
from minitvm.te.tensor import Tensor
from tests.processes import ROOT
from tests.whole_programs.running import strategies_that_failed

TARGETS = (
    "llvm -mcpu=haswell -num-cores=2",
    "llvm -mcpu=haswell -num-cores=2 -l1d-cache-bytes=8192 -l2-cache-bytes=65536",
    "llvm",
)
SUMMED = {"int8": "int32", "int16": "int32", "float16": "float32", "bfloat16": "float32"}
ORDERS = "computed as {orders}: copies counted, that takes fewer cycles"
OPERANDS = "{tensor} is copied in the order in which it is read; reads of an element: {again}"


def contraction(text: str, extents: Mapping[str, Any], dtype: str = "float32") -> list[Tensor]:
    """What ``np.einsum(text, X, Y)`` computes; of narrow types, sums of 32 bits."""
    inputs, z = text.split("->")
    x, y = inputs.split(",")
    X = te.placeholder([extents[axis] for axis in x], dtype, name="X")
    Y = te.placeholder([extents[axis] for axis in y], dtype, name="Y")
    summed = [axis for axis in dict.fromkeys(x + y) if axis not in z]
    steps = {axis: te.reduce_axis((0, extents[axis]), name=axis) for axis in summed}

    def element(*axes: Any) -> Any:
        at = {**dict(zip(z, axes, strict=True)), **steps}
        summed_as = SUMMED.get(dtype, dtype)
        factors = X(*(at[axis] for axis in x)), Y(*(at[axis] for axis in y))
        term = factors[0].astype(summed_as) * factors[1].astype(summed_as)
        return te.sum(term, axis=[*steps.values()]) if steps else term

    return [X, Y, te.compute([extents[axis] for axis in z], element, name="Z")]


def arrays(text: str, extents: Mapping[str, int], dtype: str = "float32") -> tuple[Any, Any]:
    """Small integers, whose sums are exact in any order."""
    rng = np.random.default_rng(0)
    x, y = text.split("->")[0].split(",")
    made = [rng.integers(-4, 5, [extents[axis] for axis in each]) for each in (x, y)]
    return made[0].astype(dtype), made[1].astype(dtype)


def extents_of(text: str, *sizes: int) -> dict[str, int]:
    letters = sorted({*text} - {*",->"})
    return dict(zip(letters, sizes, strict=True))


def check(text: str, extents: Mapping[str, int], target: str, dtype: str = "float32") -> list[str]:
    """Computes a contraction, compares it, and returns the choices for it."""
    tensors = contraction(text, extents, dtype)
    a, b = arrays(text, extents, dtype)
    expected = np.einsum(text, *(each.astype(SUMMED.get(dtype, dtype)) for each in (a, b)))
    found = np.full(expected.shape, -77, expected.dtype)
    with strategies_that_failed() as failed:
        s = tvm.auto_schedule(tensors[-1], target)
        tvm.build(s, tensors, target, name="f")(a, b, found)
    assert not failed
    np.testing.assert_array_equal(found, expected)
    return [each.text for each in s.choices]


BATCHES_INSIDE = {
    "of all": ("bda,cda->bca", (40, 9, 12, 33)),
    "of one factor": ("bad,cda->cba", (48, 16, 12, 33)),
    "of both factors": ("bda,cda->abc", (40, 18, 33, 29)),
    "of none": ("abd,acd->bca", (24, 17, 19, 20)),
    "with rows of two axes": ("ebca,ade->dcba", (64, 3, 8, 12, 8)),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", BATCHES_INSIDE)
def test_batches_inside(name: str, target: str) -> None:
    """Matrices of a batch share lines of memory."""
    text, sizes = BATCHES_INSIDE[name]
    check(text, extents_of(text, *sizes), target)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("cba,c->ab", (50, 70, 40)),  # a matrix that is computed transposed
        ("bac,ac->ba", (60, 5, 90)),  # dot products, the batch as the columns
        ("bad,cda->cba", (96, 32, 24, 33)),
    ],
)
def test_another_order_is_chosen(text: str, sizes: tuple[int, ...]) -> None:
    assert ORDERS in check(text, extents_of(text, *sizes), "llvm -mcpu=haswell -num-cores=1")


def test_products_as_libraries_have_them_stay() -> None:
    for text in ("ac,cb->ab", "ac,bc->ab", "ca,cb->ab", "ca,bc->ab", "dac,dcb->dab"):
        extents = dict.fromkeys("abcd", 64)
        found = tvm.auto_schedule(contraction(text, extents)[-1], TARGETS[0]).choices
        assert "layout" not in {each.about for each in found}


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["float64", "int32", "int8", "float16"])
@pytest.mark.parametrize("target", ["llvm -mcpu=haswell", "llvm"])
def test_types(dtype: str, target: str) -> None:
    check("bad,cda->cba", extents_of("bad,cda->cba", 40, 9, 12, 33), target, dtype)


def test_narrow_numbers_are_brought_into_the_order_of_instructions() -> None:
    """They multiply neighbouring steps."""
    tensors = contraction("bad,cda->cba", extents_of("bad,cda->cba", 48, 32, 32, 64), "int8")
    target = "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4"
    found = [each.about for each in tvm.auto_schedule(tensors[-1], target).choices]
    assert "layout" in found
    assert "vpdpbusd" in tvm.auto_schedule(tensors[-1], target).trace()


SEVERAL_STEPS = {
    "joined as they lie": ("abcd,cde->abe", (2, 9, 5, 34, 40)),
    "in another order": ("abc,cdb->ad", (20, 7, 34, 33)),
    "with a rest of groups": ("dabc,bcde->dae", (9, 12, 3, 7, 33)),
    "of which one is outside": ("bcad,bce->dae", (5, 6, 37, 4, 48)),
}


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", ["int8", "int16", "float16", "float32"])
@pytest.mark.parametrize("name", SEVERAL_STEPS)
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell"])
def test_several_axes_of_steps(target: str, name: str, dtype: str) -> None:
    text, sizes = SEVERAL_STEPS[name]
    check(text, extents_of(text, *sizes), target, dtype)


@pytest.mark.parametrize(
    ("dtype", "instruction"), [("int8", "vpdpbusd"), ("bfloat16", "vdpbf16ps")]
)
@pytest.mark.parametrize("name", SEVERAL_STEPS)
def test_an_instruction_multiplies_several_axes_of_steps(
    name: str, dtype: str, instruction: str
) -> None:
    text, sizes = SEVERAL_STEPS[name]
    tensors = contraction(text, extents_of(text, *sizes), dtype)
    target = "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4"
    assert instruction in tvm.auto_schedule(tensors[-1], target).trace()


def test_all_numbers_with_several_axes_of_steps() -> None:
    """Also the least one, to which an instruction for unsigned numbers adds 128."""
    text = "abcd,cde->abe"
    tensors = contraction(text, extents_of(text, 2, 9, 5, 34, 40), "int8")
    a, b = (np.resize(np.arange(-128, 128), [int(n) for n in t.shape]) for t in tensors[:2])
    z = np.empty((2, 9, 40), "int32")
    tvm.build(tensors[-1], tensors, name="f")(a.astype("int8"), b.astype("int8"), z)
    np.testing.assert_array_equal(z, np.einsum(text, a, b))


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("text", "sizes", "order"),
    [
        ("acd,bcd->ab", (64, 3, 20, 40), "X[i0, c d]"),  # long sums in lanes
        ("ebda,cde->acb", (1, 3, 64, 60, 24), "over d e"),  # in the order of the larger factor
        ("acd,cadb->ab", (100, 3, 8, 128), "Y[i0, c d, i1]"),  # and the columns' factor transposed
    ],
)
def test_the_order_of_steps(text: str, sizes: tuple[int, ...], order: str, target: str) -> None:
    tensors = contraction(text, extents_of(text, *sizes))
    s = tvm.auto_schedule(tensors[-1], "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4")
    (found,) = (str(each) for each in s.choices if each.about == "layout")
    assert order in found
    check(text, extents_of(text, *sizes), target)


def test_steps_stay_in_order_where_floats_are_rounded_as_written() -> None:
    tensors = contraction("ebda,cde->acb", extents_of("ebda,cde->acb", 1, 3, 64, 60, 24))
    target = tvm.Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4")
    traces = [
        schedule_program(tensors[-1], target, tensors, te.Schedule.trace, strict=strict)
        for strict in (False, True)
    ]
    assert ["transform_reduction" in each for each in traces] == [True, False]


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS[:2])
@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("ac,bca->ab", (33, 70, 1)),
        ("afcb,afde->bcdae", (17, 6, 5, 24, 1, 16)),
        ("dab,dec->dcba", (30, 20, 9, 1, 7)),
        ("cad,bcad->ab", (1, 60, 20, 9)),
        ("adcb,bea->ecbad", (7, 1, 20, 33, 7)),
    ],
)
def test_axes_of_one_element(text: str, sizes: tuple[int, ...], target: str) -> None:
    check(text, extents_of(text, *sizes), target)


def drawn(seed: int) -> tuple[str, dict[str, int]]:
    """A contraction of two factors with axes of all kinds, in any order."""
    rng = random.Random(seed)
    while True:
        letters = iter("abcdefgh")
        kinds = [[next(letters) for _ in range(rng.randrange(3))] for _ in range(4)]
        batch, rows, columns, steps = kinds
        parts = [batch + rows + steps, batch + columns + steps, batch + rows + columns]
        for part in parts:
            rng.shuffle(part)
        extents = {axis: rng.choice((1, 2, 3, 7, 8, 16, 17, 33)) for kind in kinds for axis in kind}
        if all(parts) and prod(extents.values()) < 2**18:
            x, y, z = ("".join(part) for part in parts)
            return f"{x},{y}->{z}", extents


@pytest.mark.parametrize("seed", range(24))
def test_any_order(seed: int) -> None:
    check(*drawn(seed), TARGETS[seed % 2], "int8" if seed % 3 == 0 else "float32")


@pytest.mark.wide
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(24, 400))
def test_any_order_widely(seed: int, target: str) -> None:
    check(*drawn(seed), target, ("float32", "int8", "float16")[seed % 3])


def test_a_line_goes_on_over_dimensions_of_one_element() -> None:
    text = "cad,bcad->b"
    found = tvm.auto_schedule(contraction(text, extents_of(text, 1, 60, 20, 9))[-1], TARGETS[0])
    assert ".fuse(c, d)" in found.trace()


def test_equal_ways_are_chosen_alike_in_every_process() -> None:
    """Hashes of None differ between processes of Python before 3.12."""
    code = (
        "from tests.auto_scheduler.test_layouts import trace_of_equal_ways\n"
        "print(trace_of_equal_ways())"
    )
    command = [sys.executable, "-c", code]
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == trace_of_equal_ways().strip()


@cache
def trace_of_equal_ways() -> str:
    text = "beaf,cdfe->acbd"
    made = contraction(text, extents_of(text, 32, 16, 64, 17, 4, 3))[-1]
    return tvm.auto_schedule(made, TARGETS[0]).trace()


def test_symbolic_sizes() -> None:
    text = "bad,cda->cba"
    extents = {axis: te.var(axis) for axis in "abcd"}
    tensors = contraction(text, extents)
    found = tvm.auto_schedule(tensors[-1], TARGETS[0]).choices
    assert ORDERS in [each.text for each in found]
    function = tvm.build(tensors[-1], tensors, TARGETS[0], name="f")
    for sizes in ((40, 9, 12, 33), (1, 1, 1, 1), (5, 0, 3, 2), (5, 2, 3, 0), (64, 33, 2, 7)):
        a, b = arrays(text, dict(zip("abcd", sizes, strict=True)))
        expected = np.einsum(text, a, b)
        z = np.full(expected.shape, -77, "float32")
        function(a, b, z)
        np.testing.assert_array_equal(z, expected)


def test_rows_of_symbolic_number_stay_as_they_lie() -> None:
    """Sums of three factors along lines of memory need no copies."""
    m, n = te.var("m"), 768
    X, Y = te.placeholder((m, n), name="X"), te.placeholder((m, n), name="Y")
    w, mean = te.placeholder((n,), name="w"), te.placeholder((m,), name="mean")
    k = te.reduce_axis((0, n), name="k")
    Z = te.compute((m,), lambda i: te.sum((X[i, k] - mean[i]) * (Y[i, k] * w[k]), axis=k), name="Z")
    for target in TARGETS:
        assert ORDERS not in [each.text for each in tvm.auto_schedule(Z, target).choices]


def test_other_operations() -> None:
    """The order of axes doesn't depend on what is computed."""
    X, Y = te.placeholder((40, 9, 33), name="X"), te.placeholder((12, 33, 40), name="Y")
    k = te.reduce_axis((0, 33), name="k")
    Z = te.compute((12, 9, 40), lambda c, b, a: te.min(X[a, b, k] + Y[c, k, a], axis=k), name="Z")
    assert ORDERS in [each.text for each in tvm.auto_schedule(Z, TARGETS[0]).choices]
    rng = np.random.default_rng(0)
    x, y = (rng.random([int(n) for n in each.shape], "float32") for each in (X, Y))
    x[3, 5, 7] = np.nan
    z = np.empty((12, 9, 40), "float32")
    tvm.build(Z, [X, Y, Z], TARGETS[0], name="f")(x, y, z)
    expected = (x.transpose(1, 0, 2)[None] + y.transpose(0, 2, 1)[:, None]).min(-1)
    np.testing.assert_array_equal(z, expected)


def test_what_is_read_and_what_reads() -> None:
    """A factor that is computed, an epilogue, and a result that is read twice."""
    text = "bad,cda->cba"
    extents = extents_of(text, 48, 16, 12, 33)
    X, Y, _ = contraction(text, extents)
    doubled = te.compute(X.shape, lambda *i: X(*i) * 2.0, name="doubled")
    k = te.reduce_axis((0, 33), name="k")
    Z = te.compute(
        (12, 16, 48), lambda c, b, a: te.sum(doubled[b, a, k] * Y[c, k, a], axis=k), name="Z"
    )
    E = te.compute(Z.shape, lambda *i: Z(*i) + 1.0, name="E")
    F = te.compute((48, 16, 12), lambda a, b, c: Z[c, b, a] * 3.0, name="F")
    a, b = arrays(text, extents)
    e, f = np.empty((12, 16, 48), "float32"), np.empty((48, 16, 12), "float32")
    tvm.build([E, F], [X, Y, E, F], TARGETS[0], name="f")(a, b, e, f)
    expected = np.einsum(text, 2 * a, b)
    np.testing.assert_array_equal(e, expected + 1)
    np.testing.assert_array_equal(f, 3 * expected.T)


def test_strided_arguments() -> None:
    text = "bad,cda->cba"
    extents = extents_of(text, 40, 9, 12, 33)
    tensors = contraction(text, extents)
    a, b = arrays(text, extents)
    function = tvm.build(tensors[-1], tensors, TARGETS[0], name="f")
    z = np.full((12, 9, 80), -77, "float32")[..., ::2]
    function(np.asfortranarray(a), b[::-1], z)
    np.testing.assert_array_equal(z, np.einsum(text, a, b[::-1]))


# -- Operands of other stages --


@pytest.mark.parametrize("target", TARGETS)
def test_operands_of_elementwise_stages(target: str) -> None:
    """An outer product, each row of which reads a matrix across."""
    text = "ba,c->cab"
    assert OPERANDS in check(text, extents_of(text, 40, 33, 12), target)


@pytest.mark.parametrize("target", TARGETS)
def test_operands_of_reductions(target: str) -> None:
    """Sums along two axes, of which one factor has the other order."""
    text = "abc,cb->a"
    assert OPERANDS in check(text, extents_of(text, 30, 40, 9), target)


def test_operands_that_are_read_a_few_times_stay() -> None:
    text = "ba,c->cab"
    found = tvm.auto_schedule(contraction(text, extents_of(text, 40, 33, 2))[-1], TARGETS[0])
    assert OPERANDS not in [each.text for each in found.choices]


@pytest.mark.covering(2)
@pytest.mark.parametrize("is_flipped", [False, True])
@pytest.mark.parametrize("reducer", [te.sum, te.max])
@pytest.mark.parametrize("target", TARGETS)
def test_weights_of_channels_that_lie_apart(target: str, reducer: Any, is_flipped: bool) -> None:
    """A window of an image, channels last, whose weights have channels first; they may be read
    backwards."""
    X, W = te.placeholder((2, 13, 11, 37), name="X"), te.placeholder((37, 3, 3), name="W")
    r, q = te.reduce_axis((0, 3), name="r"), te.reduce_axis((0, 3), name="q")

    def element(n: Any, y: Any, x: Any, c: Any) -> Any:
        weight = W[c, 2 - r, 2 - q] if is_flipped else W[c, r, q]
        return reducer(X[n, y + r, x + q, c] * weight, axis=[r, q])

    Y = te.compute((2, 11, 9, 37), element, name="Y")
    assert OPERANDS in [each.text for each in tvm.auto_schedule(Y, target).choices]
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-9, 9, n).astype("float32") for n in ((2, 13, 11, 37), (37, 3, 3)))
    y = np.empty((2, 11, 9, 37), "float32")
    tvm.build(Y, [X, W, Y], target, name="f")(x, w, y)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))
    terms = windows * (w[:, ::-1, ::-1] if is_flipped else w)
    reduced = getattr(terms, "sum" if reducer is te.sum else "max")((-1, -2))
    np.testing.assert_array_equal(y, reduced)


# -- Other reductions --


@pytest.mark.covering(2)
@pytest.mark.parametrize("stride", [1, 2, 5])
@pytest.mark.parametrize("reducer", [te.sum, te.max])
@pytest.mark.parametrize("target", TARGETS)
def test_windows_whose_results_lie_otherwise(target: str, reducer: Any, stride: int) -> None:
    """An image with channels first is reduced along its rows, where neighbouring windows share
    elements, and stored with channels last."""
    X = te.placeholder((2, 37, 23, 25), name="X")
    r, q = te.reduce_axis((0, 3), name="r"), te.reduce_axis((0, 3), name="q")
    height, width = (20 // stride + 1, 22 // stride + 1)

    def element(n: Any, y: Any, x: Any, c: Any) -> Any:
        return reducer(X[n, c, y * stride + r, x * stride + q], axis=[r, q])

    Y = te.compute((2, height, width, 37), element, name="Y")
    assert "layout" in {each.about for each in tvm.auto_schedule(Y, target).choices}
    x = np.random.default_rng(0).integers(-9, 10, (2, 37, 23, 25)).astype("float32")
    y = np.empty((2, height, width, 37), "float32")
    tvm.build(Y, [X, Y], target, name="f")(x, y)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    windows = windows[:, :, ::stride, ::stride]
    reduced = getattr(windows, "sum" if reducer is te.sum else "max")((-1, -2))
    np.testing.assert_array_equal(y, reduced.transpose(0, 2, 3, 1))


def test_places_that_begin_again_are_no_line() -> None:
    """Of what a remainder reads, neighbours aren't neighbours in memory everywhere."""
    X, W = te.placeholder((200, 64), name="X"), te.placeholder((64, 42), name="W")
    k = te.reduce_axis((0, 40), name="k")
    Y = te.compute((200, 64), lambda i, j: te.sum(X[i, j] * W[j, (i + k) % 42], axis=k), name="Y")
    assert "computed along" not in str([each.text for each in tvm.auto_schedule(Y).choices])


@pytest.mark.covering(1)
@pytest.mark.parametrize("reducer", [te.sum, te.max])
@pytest.mark.parametrize("target", TARGETS)
def test_results_in_another_order_than_their_terms(target: str, reducer: Any) -> None:
    """Column sums that are stored transposed."""
    X = te.placeholder((20, 30, 40), name="X")
    k = te.reduce_axis((0, 20), name="k")
    Y = te.compute((40, 30), lambda j, i: reducer(X[k, i, j], axis=k), name="Y")
    Z = te.compute((40, 1, 30), lambda j, _, i: Y[j, i] * 2.0, name="Z")
    assert "layout" in {each.about for each in tvm.auto_schedule(Z, target).choices}
    x = np.random.default_rng(0).integers(-9, 10, (20, 30, 40)).astype("float32")
    reduced = getattr(x, "sum" if reducer is te.sum else "max")(0).T
    y, z = np.empty((40, 30), "float32"), np.empty((40, 1, 30), "float32")
    tvm.build([Y, Z], [X, Y, Z], target, name="f")(x, y, z)
    np.testing.assert_array_equal(y, reduced)
    np.testing.assert_array_equal(z, 2 * reduced[:, None])
    tvm.build(Z, [X, Z], target, name="f")(x, z)
    np.testing.assert_array_equal(z, 2 * reduced[:, None])


def test_several_factors() -> None:
    X, Y, Z = (te.placeholder(n, name=name) for n, name in
               (((30, 20, 40), "X"), ((30, 20), "Y"), ((9, 20), "Z")))  # fmt: skip
    k = te.reduce_axis((0, 20), name="k")
    R = te.compute(
        (9, 40, 30), lambda d, a, c: te.sum(X[c, k, a] * Y[c, k] * Z[d, k], axis=k), name="R"
    )
    rng = np.random.default_rng(0)
    x, y, z = (
        rng.integers(-3, 4, [int(n) for n in each.shape]).astype("float32") for each in (X, Y, Z)
    )
    expected = np.einsum("cba,cb,db->dac", x, y, z, optimize=True)
    for target in TARGETS:
        r = np.empty(expected.shape, "float32")
        tvm.build(R, [X, Y, Z, R], target, name="f")(x, y, z, r)
        np.testing.assert_array_equal(r, expected)


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize(("n", "d"), [(61, 3), (130, 2)])
def test_pairs_of_points_of_one_tensor(n: int, d: int, is_cut: bool, target: str) -> None:
    """Two factors are elements of one tensor: the points are the columns, not their coordinates."""
    X, k = te.placeholder((n, d), name="X"), te.reduce_axis((0, n), name="k")

    def force(i: Any, c: Any) -> Any:
        apart = [X[i, a] - X[k, a] for a in range(d)]
        far = sum((each * each for each in apart[1:]), apart[0] * apart[0])
        term = 1.0 / (1.0 + far) * (X[i, c] - X[k, c])
        return te.if_then_else(far < 9.0, term, te.const(0.0)) if is_cut else term

    F = te.compute((n, d), lambda i, c: te.sum(force(i, c), axis=k), name="F")
    x = np.random.default_rng(0).integers(-3, 4, (n, d)).astype("float32")
    apart = x[:, None].astype("float64") - x
    far = (apart * apart).sum(2)
    weight = np.where(far < 9, 1 / (1 + far), 0) if is_cut else 1 / (1 + far)
    terms = weight[..., None] * apart
    f = np.empty((n, d), "float32")
    tvm.build(F, [X, F], target, name="f")(x, f)
    assert (abs(f - terms.sum(1)) <= (n + 8) * 2.0**-24 * abs(terms).sum(1)).all()
    assert any("[c, i]" in str(each) for each in tvm.auto_schedule(F, target).choices)


@pytest.mark.parametrize("target", TARGETS)
def test_short_rows_that_another_operand_cuts(target: str) -> None:
    """An image with its channels last, times a number for each channel of a row."""
    text = "ab,acbd->dacb"
    extents = extents_of(text, 20, 4, 3, 40)
    check(text, extents, target)
    tensors = contraction(text, extents)
    about = {each.about for each in tvm.auto_schedule(tensors[-1], target).choices}
    assert "layout" in about
    plain = contraction("c,abcd->dabc", extents_of("c,abcd->dabc", 20, 4, 32, 40))
    about = {each.about for each in tvm.auto_schedule(plain[-1], target).choices}
    assert "layout" not in about


def test_matrix_instructions_take_joined_axes() -> None:
    """Steps of two axes, as of the heads of an attention and their elements."""
    text = "bshd,hde->bse"
    extents = {"b": 2, "s": 64, "h": 3, "d": 64, "e": 96}
    target = "llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids"
    for dtype, instruction in (("bfloat16", "tdpbf16ps"), ("int8", "tdpbssd")):
        s = tvm.auto_schedule(contraction(text, extents, dtype)[-1], target)
        assert f"te.matrix_product('{instruction}'" in s.trace()
        assert "compute_view" in s.trace()
    check(text, extents, "llvm", "int8")


def test_pieces_of_lines_that_evict_each_other_are_counted() -> None:
    """A copy that stores rows of 7 at a distance of a power of two takes longer than the product
    beside it."""
    text = "bae,dec->cadb"
    tensors = contraction(text, extents_of(text, 512, 7, 65, 16, 32), "bfloat16")
    target = "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4"
    (found,) = (str(each) for each in tvm.auto_schedule(tensors[-1], target).choices
                if each.about == "layout" and "computed as" in str(each))  # fmt: skip
    assert "Z[i3 i1, i2 i0]" not in found


def test_no_rows() -> None:
    """All factors share the batch: tiles have no axis of rows."""
    A, w = te.placeholder((3, 17), "int64", name="A"), te.placeholder((7,), "int64", name="w")
    B = te.placeholder((3, 7, 7), "int64", name="B")
    C = te.placeholder((48, 17, 7), "int64", name="C")
    a, c, d, e = (te.reduce_axis((0, size)) for size in (48, 3, 17, 7))

    def term(b: Any) -> Any:
        return A[c, d] * A[c, d] * B[c, e, b] * C[a, d, e]

    D = te.compute((7,), lambda b: te.max(term(b), axis=[a, c, d, e]), name="D")
    Z = te.compute((7,), lambda b: D[b] * w[b], name="Z")
    rng = np.random.default_rng(4)
    values = [rng.integers(-9, 9, [int(n) for n in each.shape]) for each in (A, B, C, w)]
    found = np.empty(7, "int64")
    f = tvm.build([Z], [A, B, C, w, Z], "llvm -num-cores=1", fp="strict")
    f(*values, found)
    terms = np.einsum("cd,cd,ceb,ade->bacde", values[0], *values[:3])
    np.testing.assert_array_equal(found, terms.reshape(7, -1).max(1) * values[3])


@pytest.mark.parametrize("turned", [False, True])
def test_further_factors_lie_along_the_columns(turned: bool) -> None:
    """The gradient of squared distances, in the order in which the third tensor lies, too."""
    m, n, c = 500, 510, 64
    A, B = te.placeholder((m, c), name="A"), te.placeholder((n, c), name="B")
    G, i = te.placeholder((m, n), name="G"), te.reduce_axis((0, m), name="i")

    def element(j: Any, k: Any) -> Any:
        j, k = (k, j) if turned else (j, k)
        return te.sum(G[i, j] * (A[i, k] - B[j, k]), axis=i)

    D = te.compute((c, n) if turned else (n, c), element, name="D")
    choices = tvm.auto_schedule(D, "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4").choices
    assert (ORDERS in [each.text for each in choices]) == turned
    rng = np.random.default_rng(0)
    a, b, g = (rng.random(s).astype("float32") for s in ((m, c), (n, c), (m, n)))
    d = np.zeros((c, n) if turned else (n, c), "float32")
    tvm.build([D], [A, B, G, D])(a, b, g, d)
    wanted = (g[:, :, None] * (a[:, None] - b[None])).sum(0)
    np.testing.assert_allclose(d, wanted.T if turned else wanted, rtol=1e-4, atol=1e-4)


def test_elements_that_no_step_changes_are_not_requested() -> None:
    A, B = te.placeholder((512, 64), name="A"), te.placeholder((512, 64), name="B")
    G, j = te.placeholder((512, 512), name="G"), te.reduce_axis((0, 512), name="j")
    D = te.compute((512, 64), lambda i, k: te.sum(G[i, j] * (A[i, k] - B[j, k]), axis=j), name="D")
    choices = tvm.auto_schedule(D, "llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids").choices
    prefetches = [str(each) for each in choices if each.about == "prefetch"]
    assert prefetches
    assert all(each.startswith("B is prefetched") for each in prefetches)
