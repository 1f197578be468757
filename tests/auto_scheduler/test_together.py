"""Several contractions with one epilogue: one takes it alone, or all are computed in its tiles. No
strategy is dropped: each test would fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.te.tensor import Tensor
from tests.auto_scheduler.test_contractions import numpy_dtype

TARGET = "llvm -mcpu=haswell -num-cores=2"


def product(a: Tensor, b: Tensor, name: str, layout: str = "NN", *, triangle: bool = False) -> Any:
    """``a @ b`` of the last two dimensions; "T" in `layout`: a factor is stored transposed."""
    turned = [each == "T" for each in layout]
    k = te.reduce_axis((0, a.shape[-2 if turned[0] else -1]), name="k")
    batch = max(a, b, key=lambda each: each.ndim).shape[:-2]
    rows, columns = a.shape[-1 if turned[0] else -2], b.shape[-2 if turned[1] else -1]

    def element(*at: Any) -> Any:
        *before, i, j = at
        left = (*before[: a.ndim - 2], *((k, i) if turned[0] else (i, k)))
        right = (*before[: b.ndim - 2], *((j, k) if turned[1] else (k, j)))
        where = {"where": k <= i} if triangle else {}
        return te.sum(a[left] * b[right], axis=k, **where)

    return te.compute((*batch, rows, columns), element, name=name)


def matrix(*shape: Any, dtype: str = "float32", name: str = "X") -> Tensor:
    return te.placeholder(shape, dtype, name=name)


def check(
    output: Tensor,
    args: list[Tensor],
    sizes: dict[Any, int] | None = None,
    **options: Any,
) -> None:
    """Compares with the plain loops, of small whole numbers."""
    known = sizes or {}
    rng = np.random.default_rng(0)
    shapes = [[int(known.get(each, each)) for each in t.shape] for t in (*args, output)]
    values = [
        rng.integers(-3, 4, shape).astype(numpy_dtype(t.dtype))
        for shape, t in zip(shapes, args, strict=False)
    ]
    found, wanted = (np.full(shapes[-1], 77).astype(numpy_dtype(output.dtype)) for _ in range(2))
    tvm.build([output], [*args, output], **options)(*values, found)
    tvm.build([output], [*args, output], auto_schedule=False)(*values, wanted)
    np.testing.assert_allclose(found.astype(float), wanted.astype(float), rtol=1e-5, atol=1e-5)


def gated(m: Any, n: Any, depths: tuple[Any, ...], layout: str = "NN") -> list[Tensor]:
    """Products, one behind a sigmoid, and sums of the others: the arguments, and the epilogue."""
    args, products = list[Tensor](), list[Tensor]()
    for i, k in enumerate(depths):
        x = matrix(*((k, m) if layout[0] == "T" else (m, k)), name=f"X{i}")
        w = matrix(*((n, k) if layout[1] == "T" else (k, n)), name=f"W{i}")
        args += [x, w]
        products.append(product(x, w, f"P{i}", layout))
    first, *others = products

    def element(i: Any, j: Any) -> Any:
        total = others[0][i, j]
        for each in others[1:]:
            total = total + each[i, j]
        return te.sigmoid(first[i, j]) * total

    return [*args, te.compute((m, n), element, name="Y")]


@pytest.mark.covering(1)  # layouts are in the factors' copies, sizes in the loops of tiles
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("sizes", [(37, 53), (1, 40), (40, 1), (64, 96), (0, 5)], ids=str)
def test_two_products(
    sizes: tuple[int, int], layout: str, caplog: pytest.LogCaptureFixture
) -> None:
    *args, output = gated(*sizes, (19, 19), layout)
    check(output, args)


@pytest.mark.parametrize("depths", [(5, 5, 5), (3, 200), (1, 7), (8, 0)], ids=str)
def test_several_depths(depths: tuple[int, ...]) -> None:
    *args, output = gated(33, 70, depths)
    check(output, args)


def test_symbolic_sizes() -> None:
    m, n, k = te.var("m"), te.var("n"), te.var("k")
    *args, output = gated(m, n, (k, 12))
    check(output, args, {m: 29, n: 45, k: 17})


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int32", "int8"])
def test_dtypes(dtype: str) -> None:
    x, v, w = (matrix(24, 24, dtype=dtype, name=name) for name in "XVW")
    wide = dtype if dtype != "int8" else "int32"

    def of(a: Tensor, b: Tensor, name: str) -> Any:
        k = te.reduce_axis((0, 24), name="k")
        return te.compute(
            (24, 24),
            lambda i, j: te.sum(a[i, k].astype(wide) * b[k, j].astype(wide), axis=k),
            name=name,
        )

    p, q = of(x, v, "P"), of(x, w, "Q")
    check(te.compute((24, 24), lambda i, j: p[i, j] + q[i, j], name="Y"), [x, v, w])


def test_a_batch_with_shared_and_own_factors() -> None:
    x, w, v = matrix(3, 20, 8, name="X"), matrix(8, 33, name="W"), matrix(3, 33, 8, name="V")
    bias = matrix(33, name="B")
    p, q = product(x, w, "P"), product(x, v, "Q", "NT")
    y = te.compute((3, 20, 33), lambda b, i, j: p[b, i, j] * q[b, i, j] + bias[j], name="Y")
    check(y, [x, w, v, bias])


def test_a_triangle_and_a_whole_product() -> None:
    x, w = matrix(40, 40, name="X"), matrix(40, 40, name="W")
    p, q = product(x, w, "P", triangle=True), product(w, x, "Q", "TN")
    check(te.compute((40, 40), lambda i, j: p[i, j] - q[i, j], name="Y"), [x, w])


def test_one_product_feeds_the_other() -> None:
    """Low rank: ``X W + (X A) B``, with stages between the products and the epilogue."""
    x, w, a, b = (matrix(*s, name=n) for s, n in [((30, 64), "X"), ((64, 48), "W"),
                                                  ((64, 4), "A"), ((4, 48), "B")])  # fmt: skip
    whole, low = product(x, w, "P"), product(product(x, a, "R"), b, "Q")
    scaled = te.compute((30, 48), lambda i, j: low[i, j] * 0.5, name="S")
    y = te.compute((30, 48), lambda i, j: whole[i, j] + scaled[i, j], name="Y")
    check(y, [x, w, a, b])


def test_a_product_and_a_convolution() -> None:
    x, w, taps = matrix(20, 24, name="X"), matrix(24, 24, name="W"), matrix(20, 3, name="K")
    image = matrix(20, 26, name="I")
    r = te.reduce_axis((0, 3), name="r")
    c = te.compute((20, 24), lambda i, j: te.sum(image[i, j + r] * taps[i, r], axis=r), name="C")
    p = product(x, w, "P")
    for first, second in [(p, c), (c, p)]:
        y = te.compute((20, 24), lambda i, j: first[i, j] + second[i, j], name="Y")  # noqa: B023
        check(y, [x, w, taps, image])


def test_sums_that_would_pass_through_memory_stay_in_the_tiles() -> None:
    """Shallow products, whose sums take longer to move than to compute."""
    for sizes, is_together in [((2048, 2048, (8, 8)), True), ((96, 96, (512, 512)), False)]:
        *_, output = gated(*sizes)
        trace = str(tvm.auto_schedule(output, TARGET).trace())
        assert "s[P0].compute_at(s[Y]" in trace
        assert ("s[P1].compute_at(s[Y]" in trace) is is_together


def test_strict_sums_are_exact() -> None:
    *args, output = gated(30, 40, (300, 20))
    check(output, args, fp="strict")


def test_prepacked_factors() -> None:
    x, v, w, y = gated_of_one(48, 64, 16)
    f = tvm.build([y], [x, v, w, y], name="f", prepacked=[v, w])
    rng = np.random.default_rng(1)
    a, b, c = (rng.standard_normal([int(d) for d in t.shape], "float32") for t in (x, v, w))
    out = np.empty((48, 64), "float32")
    f(a, tvm.prepack(f, "V", b), tvm.prepack(f, "W", c), out)
    np.testing.assert_allclose(out, (a @ b) * (a @ c), rtol=1e-4, atol=1e-4)


def gated_of_one(m: int, n: int, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, v, w = matrix(m, k, name="X"), matrix(k, n, name="V"), matrix(k, n, name="W")
    p, q = product(x, v, "P"), product(x, w, "Q")
    return x, v, w, te.compute((m, n), lambda i, j: p[i, j] * q[i, j], name="Y")


def test_a_reader_that_only_one_contraction_in_blocks_may_leave() -> None:
    """The tangents of a product: one of two sums is computed transposed, and so leaves the stage
    that adds them to the other, which blocks of rows were chosen for without it."""
    x, w, v = (
        te.placeholder(shape, name=name, dtype="float64")
        for name, shape in [("X", (3, 1, 17)), ("W", (18, 17)), ("V", (1, 3, 1, 1))]
    )
    turned = te.compute(x.shape, lambda i, j, k: x[i, j, 16 - k], name="C")
    r, c = te.reduce_axis((0, 17), name="r"), te.reduce_axis((0, 3), name="c")
    y = te.compute((3, 1, 18), lambda i, j, n: te.sum(turned[i, j, r] * w[n, r], axis=r), name="D")
    z = te.compute(
        (1, 1, 9), lambda o, j, i: te.sum(y[c, 0, i * 2] * v[o, c, 0, 0], axis=c), name="E"
    )
    moved = [te.placeholder(t.shape, name=f"{t.op.name}_t", dtype="float64") for t in (x, w, v)]
    (tangent,) = te.jvp([z], [x, w, v], moved)
    f = tvm.build(te.create_schedule(tangent.op), [x, w, v, *moved, tangent], target=TARGET)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal([int(n) for n in t.shape]) for t in (x, w, v, *moved)]
    found = np.empty((1, 1, 9))
    f(*inputs, found)

    def result(x: Any, w: Any, v: Any) -> Any:
        return np.einsum("cjk,nk,ocji->ojn", x[:, :, ::-1], w, v)[:, :, ::2]

    given, speeds = inputs[:3], inputs[3:]
    expected = sum(
        result(*(speeds[i] if i == moving else given[i] for i in range(3))) for moving in range(3)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lower", [True, False])
def test_a_reader_of_a_triangle(lower: bool) -> None:
    """The tiles of a sum that passes through memory have one size, whatever is read of them."""
    a, b, c, d = (
        matrix(*s, name=n)
        for s, n in [((3, 17), "A"), ((17, 14), "B"), ((3, 17), "C"), ((17, 14), "D")]
    )
    p, q = product(a, b, "P"), product(c, d, "Q")
    y = te.compute(
        (3, 14),
        lambda i, j: te.if_then_else(j <= i if lower else j > i, p[i, j] + q[i, j], 0.0),
        name="Y",
    )
    check(y, [a, b, c, d])


def _forces(n: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Sums of what lies between all pairs of points, along three axes."""
    points = [te.placeholder((n,), name=name) for name in "XYZ"]

    def along(v: Tensor) -> Tensor:
        k = te.reduce_axis((0, n), name="k")

        def term(i: Any) -> Any:
            square = sum(((p[k] - p[i]) * (p[k] - p[i]) for p in points), te.const(0.5, "float32"))
            return te.rsqrt(square) * (v[k] - v[i])

        made: Tensor = te.compute((n,), lambda i: te.sum(term(i), axis=k), name=f"F{v.name}")
        return made

    return points, [*map(along, points)]


@pytest.mark.parametrize("fp", ["fast", "strict"])
@pytest.mark.parametrize("n", [1, 37, 64])
def test_sums_that_share_dear_terms_are_one_stage(n: int, fp: str) -> None:
    points, forces = _forces(n)
    trace = tvm.auto_schedule(forces, "llvm -mcpu=haswell").trace()
    assert n == 1 or "s.join([FX, FY, FZ])" in trace
    x = np.random.default_rng(0).standard_normal((3, n), dtype="float32")
    found = np.empty((3, n), "float32")
    tvm.build(forces, [*points, *forces], "llvm -mcpu=haswell", fp=fp)(*x, *found)
    d = x[:, None].astype("float64") - x[:, :, None]
    terms = d / np.sqrt((d**2).sum(0) + 0.5)
    np.testing.assert_allclose(
        found, terms.sum(-1), atol=2e-6 * max(1.0, np.abs(terms).sum(-1).max())
    )


def test_a_quotient_of_sums_that_share_dear_terms() -> None:
    """A weighted mean of a window: an epilogue of both results."""
    X, p, q = te.placeholder((12, 20), name="X"), *(te.reduce_axis((0, 3), name=x) for x in "pq")
    r, t = (te.reduce_axis((0, 3), name=x) for x in "rt")

    def weight(i: Any, j: Any, a: Any, b: Any) -> Any:
        return te.exp(
            (X[i + a, j + b] - X[i + 1, j + 1]) * (X[i + a, j + b] - X[i + 1, j + 1]) * -1.0
        )

    N = te.compute((10, 18), lambda i, j: te.sum(weight(i, j, p, q) * X[i + p, j + q], axis=[p, q]))
    D = te.compute((10, 18), lambda i, j: te.sum(weight(i, j, r, t), axis=[r, t]), name="D")
    M = te.compute((10, 18), lambda i, j: N[i, j] / D[i, j], name="M")
    assert "s.join(" in tvm.auto_schedule(M, "llvm -mcpu=haswell").trace()
    x, found = np.random.default_rng(0).random((12, 20), "float32"), np.empty((10, 18), "float32")
    tvm.build([M], [X, M], "llvm -mcpu=haswell")(x, found)
    views = np.lib.stride_tricks.sliding_window_view(x.astype("float64"), (3, 3))
    weights = np.exp(-((views - x[1:-1, 1:-1, None, None]) ** 2))
    wanted = (weights * views).sum((2, 3)) / weights.sum((2, 3))
    np.testing.assert_allclose(found, wanted, rtol=3e-6)


def test_sums_that_depend_on_each_other_are_not_joined() -> None:
    X, k, r = te.placeholder((9, 40), name="X"), *(te.reduce_axis((0, 40), name=x) for x in "kr")
    A = te.compute((9,), lambda i: te.sum(te.exp(X[i, k]), axis=k), name="A")
    B = te.compute((9,), lambda i: te.max(te.exp(X[i, r]) - A[i], axis=r), name="B")
    assert ".join(" not in tvm.auto_schedule(B, "llvm -mcpu=haswell").trace()
    x, found = np.random.default_rng(0).random((9, 40), "float32"), np.empty(9, "float32")
    tvm.build([B], [X, B])(x, found)
    e = np.exp(x.astype("float64"))
    np.testing.assert_allclose(found, e.max(1) - e.sum(1), rtol=1e-5)
