"""Terms of contractions that conditions on axes make 0 are left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.auto_scheduler import auto_schedule
from minitvm.te.tensor import Tensor

TARGET = "llvm -mcpu=haswell -num-cores=2"


def omits(tensor: Tensor) -> bool:
    trace = auto_schedule(tensor, TARGET).trace()
    return ".omit_zeros()" in trace.split("s.specialize(")[0]


FACTORS: dict[str, tuple[Callable[[Any, Any, Any], Any], Any]] = {
    # Each with the numbers of numpy by which A is multiplied; None where nothing is left out.
    "lower": (lambda a, i, k: te.if_then_else(k <= i, a, 0.0), np.tril),
    "upper": (
        lambda a, i, k: tvm.tir.Select(i < k, a * 2.0, te.const(0.0)),
        lambda x: np.triu(2 * x, 1),
    ),
    "other branch": (lambda a, i, k: te.if_then_else(k > i, 0.0, a), np.tril),
    "mask": (lambda a, i, k: a * (k <= i).astype("float32"), np.tril),
    "band": (
        lambda a, i, k: te.if_then_else(te.all(k <= i + 3, k > i - 9), a, 0.0),
        lambda x: np.triu(np.tril(x, 3), -8),
    ),
    "divided": (lambda a, i, k: te.if_then_else(k <= i, a, 0.0) / 4.0, lambda x: np.tril(x) / 4),
    "border": (lambda a, i, k: te.if_then_else(k > 0, a, 0.0), None),
    "ones": (lambda a, i, k: te.if_then_else(k <= i, a, 1.0), None),
    "remainders": (
        lambda a, i, k: te.if_then_else((k + i) % 2 == 0, a, 0.0),
        lambda x: x * (np.add.outer(np.arange(90), np.arange(90)) % 2 == 0),
    ),
    "data": (lambda a, i, k: te.if_then_else(a > 0.0, a, 0.0), None),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("is_stage", [False, True])
@pytest.mark.parametrize("factor", FACTORS)
def test_factors_that_are_zero(factor: str, is_stage: bool) -> None:
    """Also those of another stage. Terms of 0 times NaN are left out."""
    n = 90
    A, B = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    of, dense = FACTORS[factor]
    L = te.compute((n, n), lambda i, k: of(A[i, k], i, k), name="L")
    C = te.compute(
        (n, n),
        lambda i, j: te.sum((L[i, k] if is_stage else of(A[i, k], i, k)) * B[k, j], axis=k),
        name="C",
    )
    assert omits(C) == (dense is not None)
    if dense is None:
        return
    a, b = np.random.default_rng(0).standard_normal((2, n, n)).astype("float32")
    c, left = np.empty((n, n), "float32"), dense(np.ones((n, n))) == 0
    a[0, left[0]] = np.nan
    tvm.build(C, [A, B, C])(a, b, c)
    np.testing.assert_allclose(c, dense(np.where(left, 0, a)) @ b, rtol=1e-4, atol=1e-4)


MASKS: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "causal": (lambda i, j: j <= i, lambda i, j: j <= i),
    "window": (lambda i, j: te.all(j <= i, j > i - 20), lambda i, j: (j <= i) & (j > i - 20)),
    "later": (lambda i, j: j >= i, lambda i, j: j >= i),
    "none of the first row": (lambda i, j: j < i, lambda i, j: j < i),
}


def attention(
    rows: Any, depth: int, mask: Callable[[Any, Any], Any], hidden: float, bias: float = 0.0
) -> list[Tensor]:
    Q, K, V = (te.placeholder((2, rows, depth), name=name) for name in "QKV")
    d, shape = te.reduce_axis((0, depth), name="d"), (2, rows, rows)
    S = te.compute(shape, lambda h, i, j: te.sum(Q[h, i, d] * K[h, j, d], axis=d), name="S")

    def score(h: Any, i: Any, j: Any) -> Any:
        value = S[h, i, j] / math.sqrt(depth) + (j - i).astype("float32") * bias
        return te.if_then_else(mask(i, j), value, hidden)

    def over(f: Any, term: Any, name: str, *more: int) -> Tensor:
        def element(h: Any, i: Any, *c: Any) -> Any:
            k = te.reduce_axis((0, rows), name="k")
            return f(term(h, i, k, *c), axis=k)

        made: Tensor = te.compute((2, rows, *more), element, name=name)
        return made

    C = te.compute(shape, score, name="C")
    M = over(te.max, lambda h, i, k: C[h, i, k], "M")
    E = te.compute(shape, lambda h, i, j: te.exp(C[h, i, j] - M[h, i]), name="E")
    T = over(te.sum, lambda h, i, k: E[h, i, k], "T")
    P = te.compute(shape, lambda h, i, j: E[h, i, j] / T[h, i], name="P")
    return [Q, K, V, over(te.sum, lambda h, i, k, c: P[h, i, k] * V[h, k, c], "O", depth)]


def expected_attention(q: Any, k: Any, v: Any, holds: Any, hidden: float, bias: float) -> Any:
    places = np.arange(q.shape[1])
    scores = q.astype("float64") @ k.transpose(0, 2, 1) / math.sqrt(q.shape[2])
    scores = scores + (places - places[:, None]) * bias
    scores = np.where(holds(places[:, None], places), scores, hidden)
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize(
    ("mask", "hidden", "rows", "is_left_out"),
    [
        ("causal", -math.inf, 75, True),
        ("causal", -math.inf, None, True),
        ("window", -math.inf, 75, True),
        ("later", -math.inf, 75, True),
        ("causal", -1e9, 75, False),  # which isn't less than all scores for certain
        ("none of the first row", -math.inf, 75, False),  # whose results are NaN
    ],
)
def test_attention_under_a_mask(
    mask: str, hidden: float, rows: int | None, is_left_out: bool
) -> None:
    arguments = attention(rows or te.var("n"), 24, MASKS[mask][0], hidden, 0.01)
    assert omits(arguments[-1]) == is_left_out
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 75, 24)).astype("float32")
    o = np.empty((2, 75, 24), "float32")
    f = tvm.build(arguments[-1], arguments)
    for special in (None, np.nan, -np.inf):
        if special is not None:
            q[1, 30, 3] = special  # the row is NaN, and no other one
        f(q, k, v, o)
        with np.errstate(invalid="ignore"):
            expected = expected_attention(q, k, v, MASKS[mask][1], hidden, 0.01)
        np.testing.assert_allclose(o, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reducer", ["min", "max"])
def test_ways_under_a_mask(reducer: str) -> None:
    """The terms of a minimum that are infinite, and those of a maximum that are minus infinity."""
    n = 60
    A, B, k = te.placeholder((n, n)), te.placeholder((n, n)), te.reduce_axis((0, n), name="k")
    none = math.inf if reducer == "min" else -math.inf
    C = te.compute(
        (n, n),
        lambda i, j: getattr(te, reducer)(te.if_then_else(k < i, A[i, k], none) + B[k, j], axis=k),
        name="C",
    )
    assert omits(C)
    a, b = np.random.default_rng(0).standard_normal((2, n, n)).astype("float32")
    c = np.empty((n, n), "float32")
    tvm.build(C, [A, B, C])(a, b, c)
    i, _, step = np.ogrid[:n, :n, :n]
    terms = np.where(step < i, a[:, None] + b.T[None], none)
    np.testing.assert_allclose(c, getattr(terms, reducer)(2), rtol=1e-6)


def test_floats_in_order_keep_all_terms() -> None:
    n = 40
    A, B, k = te.placeholder((n, n)), te.placeholder((n, n)), te.reduce_axis((0, n), name="k")
    C = te.compute(
        (n, n), lambda i, j: te.sum(te.if_then_else(k <= i, A[i, k], 0.0) * B[k, j], axis=k)
    )
    a, b = np.ones((2, n, n), "float32")
    b[n - 1, 2] = np.nan
    for fp, expected in (("fast", 1), ("strict", n)):
        c = np.zeros((n, n), "float32")
        tvm.build(C, [A, B, C], fp=fp)(a, b, c)
        assert np.isnan(c[:, 2]).sum() == expected


@pytest.mark.parametrize("size", [5, 20])
def test_padding_of_images_stays(size: int) -> None:
    X, W = te.placeholder((8, size, size), name="X"), te.placeholder((8, 8, 3, 3), name="W")
    c, r, s = (te.reduce_axis((0, n), name=x) for n, x in ((8, "c"), (3, "r"), (3, "s")))

    def padded(c: Any, y: Any, x: Any) -> Any:
        inside = te.all(y >= 1, y <= size, x >= 1, x <= size)
        return te.if_then_else(inside, X[c, y - 1, x - 1], 0.0)

    Y = te.compute(
        (8, size, size),
        lambda f, y, x: te.sum(padded(c, y + r, x + s) * W[f, c, r, s], axis=[c, r, s]),
        name="Y",
    )
    assert not omits(Y)


def transposed_convolution(form: str, size: int, stride: int, pad: int, sizes: Any) -> list[Tensor]:
    """With zeros between the elements of the image: in stages, or where it is read."""
    n, m, channels, results = sizes
    X = te.placeholder((channels, n, m), name="X")
    W = te.placeholder((channels, results, size, size), name="W")
    c, r, q = (te.reduce_axis((0, each)) for each in (channels, size, size))
    border = size - 1 - pad
    high, wide = (n - 1) * stride + 1, (m - 1) * stride + 1
    shape = (results, high + 2 * border - size + 1, wide + 2 * border - size + 1)

    def element(at: Any, i: Any, j: Any, low: int) -> Any:
        y, x = i - low, j - low
        inside = te.all(y >= 0, x >= 0, y < high, x < wide, y % stride == 0, x % stride == 0)
        return te.if_then_else(inside, X[at, y // stride, x // stride], 0.0)

    if form == "two stages":
        D = te.compute((channels, high, wide), lambda a, i, j: element(a, i, j, 0), name="D")

        def padded(a: Any, i: Any, j: Any) -> Any:
            y, x = i - border, j - border
            inside = te.all(y >= 0, x >= 0, y < high, x < wide)
            return te.if_then_else(inside, D[a, y, x], 0.0)
    else:

        def padded(a: Any, i: Any, j: Any) -> Any:
            return element(a, i, j, border)

    P = te.compute((channels, high + 2 * border, wide + 2 * border), padded, name="P")
    read = P.__getitem__ if "stage" in form else lambda at: padded(*at)
    Y = te.compute(
        shape,
        lambda o, i, j: te.sum(
            read((c, i + r, j + q)) * W[c, o, size - 1 - r, size - 1 - q], axis=[c, r, q]
        ),
        name="Y",
    )
    return [X, W, Y]


def scattered(x: Any, w: Any, stride: int, pad: int) -> Any:
    """A transposed convolution as its definition has it."""
    (_, n, m), (_, results, size, _) = x.shape, w.shape
    y = np.zeros((results, (n - 1) * stride + size, (m - 1) * stride + size))
    for i, j in np.ndindex(n, m):
        to = np.s_[:, i * stride : i * stride + size, j * stride : j * stride + size]
        y[to] += np.einsum("c,corq->orq", x[:, i, j], w)
    return y[:, pad : y.shape[1] - pad, pad : y.shape[2] - pad]


@pytest.mark.parametrize("form", ["in place", "stage", "two stages"])
@pytest.mark.parametrize(("size", "stride", "pad"), [(4, 2, 1), (3, 2, 1), (2, 2, 0), (5, 3, 2)])
def test_zeros_between_the_elements_of_an_image(
    form: str, size: int, stride: int, pad: int
) -> None:
    args = transposed_convolution(form, size, stride, pad, (9, 11, 6, 5))
    assert omits(args[-1])
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal([int(n) for n in t.shape]).astype("float32") for t in args[:2])
    y = np.empty([int(n) for n in args[-1].shape], "float32")
    tvm.build(args[-1], args)(x, w, y)
    expected = scattered(x.astype("float64"), w.astype("float64"), stride, pad)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


def test_conditions_on_remainders_leave_the_others() -> None:
    """The elements beyond the image are still not read."""
    *_, Y = transposed_convolution("two stages", 4, 2, 1, (9, 11, 6, 5))
    s = te.create_schedule(Y.op)
    s[Y].omit_zeros()
    op: Any = s[Y].op
    reduce = op.body[0]
    assert "% 2 == 0" in str(reduce.condition) and "% 2" not in str(reduce.source[0])
    assert "if_then_else" in str(reduce.source[0]) and "X[" in str(reduce.source[0])
