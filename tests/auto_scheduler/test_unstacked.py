"""Results along a short axis that sum different terms: values, and whether each is a stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minitvm import auto_schedule, te
from minitvm.te.tensor import Tensor
from minitvm.tir.expr import Select
from tests.auto_scheduler.test_reductions import built

RNG = np.random.default_rng(5)
Choose = Callable[[Any, Any, Any], Any]


def complex_product(m: int, k: int, n: int, choose: Choose, order: str, dtype: str) -> Any:
    """The tensors of a product of complex matrices, its axes in some order."""
    a, b = te.placeholder((m, k, 2), dtype, name="A"), te.placeholder((k, n, 2), dtype, name="B")
    r = te.reduce_axis((0, k), name="r")

    def element(*axes: Any) -> Any:
        i, j, c = (axes[order.index(name)] for name in "ijc")
        real = a[i, r, 0] * b[r, j, 0] - a[i, r, 1] * b[r, j, 1]
        imaginary = a[i, r, 0] * b[r, j, 1] + a[i, r, 1] * b[r, j, 0]
        return te.sum(choose(c == 0, real, imaginary), axis=r)

    sizes = {"i": m, "j": n, "c": 2}
    return a, b, te.compute(tuple(sizes[name] for name in order), element, name="C")


@pytest.mark.covering(1)
@pytest.mark.parametrize("choose", [te.if_then_else, Select])
@pytest.mark.parametrize("order", ["ijc", "cij", "icj"])
@pytest.mark.parametrize(
    ("m", "k", "n", "dtype"),
    [(33, 12, 47, "float32"), (7, 5, 3, "float64"), (40, 20, 1, "float32"), (9, 8, 20, "int32")],
)
def test_complex_products(choose: Choose, order: str, m: int, k: int, n: int, dtype: str) -> None:
    a, b, c = complex_product(m, k, n, choose, order, dtype)
    assert "s.unstack(" in auto_schedule(c).trace()
    x, y = (RNG.integers(-9, 9, t).astype(dtype) for t in ((m, k, 2), (k, n, 2)))
    product = (x[..., 0] + 1j * x[..., 1]) @ (y[..., 0] + 1j * y[..., 1])
    expected = np.stack([product.real, product.imag], order.index("c"))
    np.testing.assert_array_equal(built(c, [a, b], [x, y]), expected.astype(dtype))


def test_signs_and_reversed_parts() -> None:
    """The same written by signs: the other part of one factor lies in reverse."""
    a, b = te.placeholder((30, 9, 2), name="A"), te.placeholder((9, 21, 2), name="B")
    r = te.reduce_axis((0, 9), name="r")

    def element(i: Any, j: Any, c: Any) -> Any:
        sign = te.if_then_else(c == 0, -1.0, 1.0)
        return te.sum(a[i, r, 0] * b[r, j, c] + sign * a[i, r, 1] * b[r, j, 1 - c], axis=r)

    c = te.compute((30, 21, 2), element, name="C")
    assert "s.unstack(" in auto_schedule(c).trace()
    x, y = (RNG.integers(-9, 9, t).astype("float32") for t in ((30, 9, 2), (9, 21, 2)))
    product = (x[..., 0] + 1j * x[..., 1]) @ (y[..., 0] + 1j * y[..., 1])
    expected = np.stack([product.real, product.imag], 2)
    np.testing.assert_array_equal(built(c, [a, b], [x, y]), expected)


def alike(choose: str) -> tuple[Tensor, Tensor]:
    x, k = te.placeholder((20, 30, 3), name="X"), te.reduce_axis((0, 30), name="k")

    def element(i: Any, c: Any) -> Any:
        if choose == "padding":  # a fourth channel
            return te.sum(te.if_then_else(c < 3, x[i, k, te.min(c, 2)], 1.0), axis=k)
        if choose == "weights":
            return te.sum(x[i, k, c] * te.if_then_else(c == 0, 2.0, 1.0), axis=k)
        return te.sum(te.if_then_else(k < 9, x[i, k, c], 0.0), axis=k)

    return x, te.compute((20, 4 if choose == "padding" else 3), element, name="C")


@pytest.mark.parametrize("choose", ["padding", "weights", "steps"])
def test_terms_along_the_axis_stay_together(choose: str) -> None:
    _, c = alike(choose)
    assert "s.unstack(" not in auto_schedule(c).trace()
