"""Forms of programs, each a function of extents: constants, or variables that calls bind.

A program returns its arguments, the outputs last. Indices read from data are below every extent.
What is no extent of a tensor (the places of a window, a stride, the width of a border) is constant
unless the form is about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from minitvm import te
from minitvm.te.tensor import Tensor

Extent = Any
"""A number, or a variable."""
Program = Callable[..., list[Tensor]]


class Form(NamedTuple):
    """A program and the extents that it is measured at."""

    name: str
    program: Program
    extents: tuple[int, ...]


def forms() -> Iterator[Form]:
    """All forms, by topic."""
    for topic in (
        _products,
        _narrow_products,
        _rows_by_weights,
        _convolutions,
        _pools,
        _transposes,
        _broadcasts,
        _sums,
        _norms,
        _attentions,
        _borders,
        _moves,
        _running,
        _gathers,
    ):
        yield from topic()


def _sized(name: str, program: Program, *sizes: Sequence[int]) -> Iterator[Form]:
    """A program at several sizes, which its name says."""
    for extents in sizes:
        yield Form(f"{name} {' x '.join(map(str, extents))}", program, tuple(extents))


# ---- Products ------------------------------------------------------------------------------------


def _products() -> Iterator[Form]:
    for layout in ("NN", "NT", "TN", "TT"):
        product = partial(_product, layout)
        sizes = [(64,) * 3, (100,) * 3, (256,) * 3, (67, 129, 65)]
        yield from _sized(f"product {layout}", product, *sizes)
    yield from _sized("product NN", partial(_product, "NN"), (512, 16, 512), (1000, 3, 100))
    yield from _sized("product NT", partial(_product, "NT"), (1, 500, 500), (8, 1000, 64))
    yield from _sized("product NN", partial(_product, "NN"), (1, 500, 500), (4, 384, 384))
    for layout in ("NN", "TN", "NT"):  # too large for the L2 cache
        yield from _sized(f"product {layout}", partial(_product, layout), (600, 700, 1500))
    yield from _sized("product float64 NN", partial(_product, "NN", dtype="float64"), (100,) * 3)
    yield from _sized("product and bias and relu", _layer, (100, 100, 100), (64, 256, 64))
    yield from _sized(
        "product of batches NN", partial(_batched, "NN"), (8, 64, 64, 64), (5, 100, 70, 90)
    )
    yield from _sized("product of batches NT", partial(_batched, "NT"), (8, 64, 64, 64))
    yield from _sized("product with a vector", _matvec, (512, 512), (1000, 100))
    yield from _sized("product of a vector with", _vecmat, (512, 512), (1000, 100))
    yield from _sized("outer product", _outer, (300, 500))
    yield from _sized("distances", _distances, (100, 100, 64))
    yield from _sized("least sums", _least_sums, (100, 100, 100))


def _factors(layout: str, m: Extent, n: Extent, k: Extent, dtype: str) -> tuple[Tensor, Tensor]:
    a = te.placeholder((m, k) if layout[0] == "N" else (k, m), dtype, "A")
    b = te.placeholder((k, n) if layout[1] == "N" else (n, k), dtype, "B")
    return a, b


def _product(
    layout: str,
    m: Extent,
    n: Extent,
    k: Extent,
    *,
    dtype: str = "float32",
    wide: str = "",
) -> list[Tensor]:
    a, b = _factors(layout, m, n, k, dtype)
    at = te.reduce_axis((0, k), "k")

    def term(i: Any, j: Any) -> Any:
        x = a[i, at] if layout[0] == "N" else a[at, i]
        y = b[at, j] if layout[1] == "N" else b[j, at]
        return te.sum(x.astype(wide) * y.astype(wide) if wide else x * y, axis=at)

    return [a, b, te.compute((m, n), term, "C")]


def _layer(m: Extent, n: Extent, k: Extent) -> list[Tensor]:
    a, b, c = _product("NT", m, n, k)
    bias = te.placeholder((n,), name="bias")
    return [a, b, bias, te.compute((m, n), lambda i, j: te.max(c[i, j] + bias[j], 0.0), "D")]


def _batched(layout: str, p: Extent, m: Extent, n: Extent, k: Extent) -> list[Tensor]:
    a = te.placeholder((p, m, k), name="A")
    b = te.placeholder((p, k, n) if layout == "NN" else (p, n, k), name="B")
    at = te.reduce_axis((0, k), "k")

    def term(q: Any, i: Any, j: Any) -> Any:
        return te.sum(a[q, i, at] * (b[q, at, j] if layout == "NN" else b[q, j, at]), axis=at)

    return [a, b, te.compute((p, m, n), term, "C")]


def _matvec(m: Extent, k: Extent) -> list[Tensor]:
    a, x, at = (
        te.placeholder((m, k), name="A"),
        te.placeholder((k,), name="x"),
        te.reduce_axis((0, k)),
    )
    return [a, x, te.compute((m,), lambda i: te.sum(a[i, at] * x[at], axis=at), "y")]


def _vecmat(k: Extent, n: Extent) -> list[Tensor]:
    a, x, at = (
        te.placeholder((k, n), name="A"),
        te.placeholder((k,), name="x"),
        te.reduce_axis((0, k)),
    )
    return [a, x, te.compute((n,), lambda j: te.sum(a[at, j] * x[at], axis=at), "y")]


def _outer(m: Extent, n: Extent) -> list[Tensor]:
    x, y = te.placeholder((m,), name="x"), te.placeholder((n,), name="y")
    return [x, y, te.compute((m, n), lambda i, j: x[i] * y[j], "C")]


def _distances(m: Extent, n: Extent, k: Extent) -> list[Tensor]:
    a, b = _factors("NT", m, n, k, "float32")
    at = te.reduce_axis((0, k), "k")

    def term(i: Any, j: Any) -> Any:
        off = a[i, at] - b[j, at]
        return te.sum(off * off, axis=at)

    return [a, b, te.compute((m, n), term, "C")]


def _least_sums(m: Extent, n: Extent, k: Extent) -> list[Tensor]:
    a, b = _factors("NN", m, n, k, "float32")
    at = te.reduce_axis((0, k), "k")
    return [a, b, te.compute((m, n), lambda i, j: te.min(a[i, at] + b[at, j], axis=at), "C")]


def _narrow_products() -> Iterator[Form]:
    sizes = [(64,) * 3, (100,) * 3, (256,) * 3]
    for layout in ("NN", "NT"):
        as_int8 = partial(_product, layout, dtype="int8", wide="int32")
        yield from _sized(f"product int8 {layout}", as_int8, *sizes)
        as_bfloat16 = partial(_product, layout, dtype="bfloat16", wide="float32")
        yield from _sized(f"product bfloat16 {layout}", as_bfloat16, *sizes)


def _rows_by_weights() -> Iterator[Form]:
    """Products of any number of rows with weights of constant sizes, as layers have them."""
    for dtype, wide in (("float32", ""), ("int8", "int32"), ("bfloat16", "float32")):
        weigh = partial(_weighted, dtype=dtype, wide=wide)
        yield from _sized(f"rows by weights {dtype}", weigh, (64,), (100,), (300,))
        heads = partial(_by_heads, dtype=dtype, wide=wide or dtype)
        yield from _sized(f"rows by heads {dtype}", heads, (4, 64), (4, 100))


def _weighted(m: Extent, *, dtype: str, wide: str) -> list[Tensor]:
    return _product("NN", m, 512, 256, dtype=dtype, wide=wide)


def _by_heads(b: Extent, m: Extent, *, dtype: str, wide: str) -> list[Tensor]:
    x, weights = te.placeholder((b, m, 256), dtype, "X"), te.placeholder((256, 4, 64), dtype, "W")
    at = te.reduce_axis((0, 256), "k")

    def term(p: Any, i: Any, h: Any, j: Any) -> Any:
        return te.sum(x[p, i, at].astype(wide) * weights[at, h, j].astype(wide), axis=at)

    return [x, weights, te.compute((b, m, 4, 64), term, "Y")]


# ---- Convolutions --------------------------------------------------------------------------------


def _convolutions() -> Iterator[Form]:
    images = [(1, 64, 64, 56, 56), (2, 67, 65, 33, 30)]
    yield from _sized("convolution 3 x 3", partial(_convolution, 3), *images)
    yield from _sized("convolution 1 x 1", partial(_convolution, 1), *images)
    yield from _sized(
        "convolution 3 x 3, stride 2", partial(_convolution, 3, stride=2), *images[:1]
    )
    yield from _sized(
        "convolution 1 x 1, stride 2", partial(_convolution, 1, stride=2), *images[:1]
    )
    yield from _sized(
        "convolution 3 x 3, dilation 2", partial(_convolution, 3, dilation=2), *images[:1]
    )
    yield from _sized("convolution 3 x 3, padded", partial(_convolution, 3, pad=1), *images)
    yield from _sized("convolution in groups", _grouped, (1, 4, 16, 16, 56, 56))
    yield from _sized("convolution depthwise", _depthwise, (1, 64, 56, 56), (2, 67, 33, 30))
    yield from _sized("convolution channels last", _channels_last, (1, 64, 64, 56, 56))
    yield from _sized("convolution of lines", _line_convolution, (2, 64, 64, 300))


def _convolution(
    places: int,
    n: Extent,
    c: Extent,
    f: Extent,
    h: Extent,
    w: Extent,
    *,
    stride: int = 1,
    dilation: int = 1,
    pad: int = 0,
) -> list[Tensor]:
    x = te.placeholder((n, c, h, w), name="X")
    weights = te.placeholder((f, c, places, places), name="W")
    height, width = h + 2 * pad, w + 2 * pad
    source = x
    if pad:

        def padded(b: Any, ch: Any, y: Any, z: Any) -> Any:
            inside = te.all(y >= pad, y < h + pad, z >= pad, z < w + pad)
            return te.if_then_else(inside, x[b, ch, y - pad, z - pad], 0.0)

        source = te.compute((n, c, height, width), padded, "P")
    reach = (places - 1) * dilation
    ch, r, q = (
        te.reduce_axis((0, k), name) for k, name in ((c, "c"), (places, "r"), (places, "q"))
    )
    shape = (n, f, (height - reach - 1) // stride + 1, (width - reach - 1) // stride + 1)

    def term(b: Any, o: Any, y: Any, z: Any) -> Any:
        read = source[b, ch, y * stride + r * dilation, z * stride + q * dilation]
        return te.sum(read * weights[o, ch, r, q], axis=[ch, r, q])

    return [x, weights, te.compute(shape, term, "Y")]


def _grouped(n: Extent, g: Extent, c: Extent, f: Extent, h: Extent, w: Extent) -> list[Tensor]:
    x = te.placeholder((n, g, c, h, w), name="X")
    weights = te.placeholder((g, f, c, 3, 3), name="W")
    ch, r, q = (te.reduce_axis((0, k), name) for k, name in ((c, "c"), (3, "r"), (3, "q")))

    def term(b: Any, p: Any, o: Any, y: Any, z: Any) -> Any:
        return te.sum(x[b, p, ch, y + r, z + q] * weights[p, o, ch, r, q], axis=[ch, r, q])

    return [x, weights, te.compute((n, g, f, h - 2, w - 2), term, "Y")]


def _depthwise(n: Extent, c: Extent, h: Extent, w: Extent) -> list[Tensor]:
    x, weights = te.placeholder((n, c, h, w), name="X"), te.placeholder((c, 3, 3), name="W")
    r, q = te.reduce_axis((0, 3), "r"), te.reduce_axis((0, 3), "q")

    def term(b: Any, ch: Any, y: Any, z: Any) -> Any:
        return te.sum(x[b, ch, y + r, z + q] * weights[ch, r, q], axis=[r, q])

    return [x, weights, te.compute((n, c, h - 2, w - 2), term, "Y")]


def _channels_last(n: Extent, c: Extent, f: Extent, h: Extent, w: Extent) -> list[Tensor]:
    x, weights = te.placeholder((n, h, w, c), name="X"), te.placeholder((3, 3, c, f), name="W")
    r, q, ch = (te.reduce_axis((0, k), name) for k, name in ((3, "r"), (3, "q"), (c, "c")))

    def term(b: Any, y: Any, z: Any, o: Any) -> Any:
        return te.sum(x[b, y + r, z + q, ch] * weights[r, q, ch, o], axis=[r, q, ch])

    return [x, weights, te.compute((n, h - 2, w - 2, f), term, "Y")]


def _line_convolution(n: Extent, c: Extent, f: Extent, w: Extent) -> list[Tensor]:
    x, weights = te.placeholder((n, c, w), name="X"), te.placeholder((f, c, 5), name="W")
    ch, r = te.reduce_axis((0, c), "c"), te.reduce_axis((0, 5), "r")

    def term(b: Any, o: Any, z: Any) -> Any:
        return te.sum(x[b, ch, z + r] * weights[o, ch, r], axis=[ch, r])

    return [x, weights, te.compute((n, f, w - 4), term, "Y")]


def _pools() -> Iterator[Form]:
    images = [(2, 64, 56, 56), (3, 17, 67, 65)]
    yield from _sized("largest of 2 x 2", partial(_pool, te.max, 2, 2), *images)
    yield from _sized("largest of 3 x 3, stride 2", partial(_pool, te.max, 3, 2), *images)
    yield from _sized("sum of 3 x 3", partial(_pool, te.sum, 3, 1), *images)
    last = [(2, 56, 56, 64), (2, 33, 30, 17), (2, 56, 56, 3)]
    yield from _sized("largest of 3 x 3, channels last", _pool_last, *last)
    yield from _sized("mean of an image", _global_mean, (8, 64, 14, 14), (2, 64, 56, 56))
    yield from _sized("stencil of five points", _five_points, (300, 500), (67, 65))


def _pool(
    combine: Callable[..., Any],
    places: int,
    stride: int,
    n: Extent,
    c: Extent,
    h: Extent,
    w: Extent,
) -> list[Tensor]:
    x = te.placeholder((n, c, h, w), name="X")
    r, q = te.reduce_axis((0, places), "r"), te.reduce_axis((0, places), "q")
    shape = (n, c, (h - places) // stride + 1, (w - places) // stride + 1)

    def term(b: Any, ch: Any, y: Any, z: Any) -> Any:
        return combine(x[b, ch, y * stride + r, z * stride + q], axis=[r, q])

    return [x, te.compute(shape, term, "Y")]


def _pool_last(n: Extent, h: Extent, w: Extent, c: Extent) -> list[Tensor]:
    x = te.placeholder((n, h, w, c), name="X")
    r, q = te.reduce_axis((0, 3), "r"), te.reduce_axis((0, 3), "q")

    def term(b: Any, y: Any, z: Any, ch: Any) -> Any:
        return te.max(x[b, y + r, z + q, ch], axis=[r, q])

    return [x, te.compute((n, h - 2, w - 2, c), term, "Y")]


def _global_mean(n: Extent, c: Extent, h: Extent, w: Extent) -> list[Tensor]:
    x, r, q = te.placeholder((n, c, h, w), name="X"), te.reduce_axis((0, h)), te.reduce_axis((0, w))
    total = te.compute((n, c), lambda b, ch: te.sum(x[b, ch, r, q], axis=[r, q]), "T")
    return [x, te.compute((n, c), lambda b, ch: total[b, ch] / (h * w), "Y")]


def _five_points(h: Extent, w: Extent) -> list[Tensor]:
    x = te.placeholder((h, w), name="X")

    def element(i: Any, j: Any) -> Any:
        around = x[i, j + 1] + x[i + 2, j + 1] + x[i + 1, j] + x[i + 1, j + 2]
        return x[i + 1, j + 1] + 0.1 * (around - 4.0 * x[i + 1, j + 1])

    return [x, te.compute((h - 2, w - 2), element, "Y")]


# ---- Elementwise ---------------------------------------------------------------------------------


def _transposes() -> Iterator[Form]:
    two = [(256, 256), (67, 129), (1000, 2), (1000, 3), (1000, 5), (3, 1000), (5, 1000), (1000, 17)]
    yield from _sized("transpose", partial(_permuted, (1, 0)), *two)
    three = [(16, 64, 64), (2, 100, 100), (3, 224, 224)]
    yield from _sized("transpose 0 2 1", partial(_permuted, (0, 2, 1)), *three, (200, 64, 3))
    yield from _sized("transpose 1 0 2", partial(_permuted, (1, 0, 2)), (64, 16, 64), (100, 100, 3))
    yield from _sized("transpose 2 0 1", partial(_permuted, (2, 0, 1)), (100, 100, 3), (64, 64, 64))
    yield from _sized("transpose 1 2 0", partial(_permuted, (1, 2, 0)), *three)
    yield from _sized("transpose 2 1 0", partial(_permuted, (2, 1, 0)), (64, 64, 64), (100, 100, 3))
    four = [(2, 100, 100, 3), (4, 32, 32, 32)]
    yield from _sized("transpose 0 3 1 2", partial(_permuted, (0, 3, 1, 2)), *four)
    yield from _sized(
        "transpose 0 2 3 1", partial(_permuted, (0, 2, 3, 1)), (2, 3, 100, 100), four[1]
    )
    yield from _sized("transpose 0 2 1 3", partial(_permuted, (0, 2, 1, 3)), (2, 64, 8, 64))
    yield from _sized("sum with a transpose", _plus_transposed, (256, 256), (67, 129))


def _permuted(order: Sequence[int], *shape: Extent) -> list[Tensor]:
    x = te.placeholder(shape, name="X")

    def element(*at: Any) -> Any:
        return x[tuple(at[order.index(i)] for i in range(len(shape)))]

    return [x, te.compute([shape[i] for i in order], element, "Y")]


def _plus_transposed(m: Extent, n: Extent) -> list[Tensor]:
    x, y = te.placeholder((m, n), name="X"), te.placeholder((n, m), name="Y")
    return [x, y, te.compute((n, m), lambda i, j: x[j, i] + y[i, j], "Z")]


def _broadcasts() -> Iterator[Form]:
    sizes = [(300, 500), (1000, 7), (1000, 3), (64, 64), (100, 100)]
    yield from _sized("sum", _total, (65536,), (300, 500), (1000, 7), (16, 64, 100), (10, 100, 3))
    yield from _sized("bias", _bias, *sizes)
    yield from _sized("factor of each row", _row_factor, *sizes)
    yield from _sized("rows plus columns", _rows_plus_columns, (300, 500), (1000, 7))
    yield from _sized("bias of channels, last", _last_bias, (2, 33, 30, 17), (2, 56, 56, 64))
    yield from _sized("bias of channels", _channel_bias, (2, 64, 28, 28), (64, 64, 7, 7))
    yield from _sized("exponential", _exponential, (300, 500), (1000, 7))
    yield from _sized("bytes to floats", _widened, (300, 500), (1000, 7))


def _total(*shape: Extent) -> list[Tensor]:
    x, y = te.placeholder(shape, name="X"), te.placeholder(shape, name="Y")
    return [x, y, te.compute(shape, lambda *at: x[at] + y[at], "Z")]


def _bias(m: Extent, n: Extent) -> list[Tensor]:
    x, b = te.placeholder((m, n), name="X"), te.placeholder((n,), name="b")
    return [x, b, te.compute((m, n), lambda i, j: x[i, j] + b[j], "Z")]


def _row_factor(m: Extent, n: Extent) -> list[Tensor]:
    x, b = te.placeholder((m, n), name="X"), te.placeholder((m,), name="b")
    return [x, b, te.compute((m, n), lambda i, j: x[i, j] * b[i], "Z")]


def _rows_plus_columns(m: Extent, n: Extent) -> list[Tensor]:
    x, y = te.placeholder((m,), name="x"), te.placeholder((n,), name="y")
    return [x, y, te.compute((m, n), lambda i, j: x[i] + y[j], "Z")]


def _channel_bias(n: Extent, c: Extent, h: Extent, w: Extent) -> list[Tensor]:
    x, b = te.placeholder((n, c, h, w), name="X"), te.placeholder((c,), name="b")
    return [x, b, te.compute((n, c, h, w), lambda p, i, y, z: x[p, i, y, z] + b[i], "Z")]


def _last_bias(n: Extent, h: Extent, w: Extent, c: Extent) -> list[Tensor]:
    x, b = te.placeholder((n, h, w, c), name="X"), te.placeholder((c,), name="b")
    return [x, b, te.compute((n, h, w, c), lambda p, y, z, i: x[p, y, z, i] + b[i], "Z")]


def _exponential(m: Extent, n: Extent) -> list[Tensor]:
    x = te.placeholder((m, n), name="X")
    return [x, te.compute((m, n), lambda i, j: te.exp(x[i, j]), "Z")]


def _widened(m: Extent, n: Extent) -> list[Tensor]:
    x = te.placeholder((m, n), "int8", name="X")
    return [x, te.compute((m, n), lambda i, j: x[i, j].astype("float32") * 0.1, "Z")]


# ---- Reductions ----------------------------------------------------------------------------------


def _sums() -> Iterator[Form]:
    sizes = [(300, 500), (100, 100), (1000, 64), (64, 1000)]
    for name, reduce in (("sum", te.sum), ("largest", te.max)):
        yield from _sized(f"{name} of rows", partial(_rows, reduce), *sizes)
        yield from _sized(f"{name} of columns", partial(_columns, reduce), *sizes)
    yield from _sized("sum of rows", partial(_rows, te.sum), (1000, 7))
    yield from _sized("sum of columns", partial(_columns, te.sum), (1000, 7), (7, 1000))
    yield from _sized("sum of the middle", _middle, (16, 64, 100), (64, 100, 7))
    yield from _sized("sum of all", _all, (65536,))
    yield from _sized("argmax of rows", _argmax, (300, 500), (100, 100), (500, 17))


def _rows(reduce: Callable[..., Any], m: Extent, n: Extent) -> list[Tensor]:
    x, k = te.placeholder((m, n), name="X"), te.reduce_axis((0, n), "k")
    return [x, te.compute((m,), lambda i: reduce(x[i, k], axis=k), "Y")]


def _columns(reduce: Callable[..., Any], m: Extent, n: Extent) -> list[Tensor]:
    x, k = te.placeholder((m, n), name="X"), te.reduce_axis((0, m), "k")
    return [x, te.compute((n,), lambda j: reduce(x[k, j], axis=k), "Y")]


def _middle(p: Extent, m: Extent, n: Extent) -> list[Tensor]:
    x, k = te.placeholder((p, m, n), name="X"), te.reduce_axis((0, m), "k")
    return [x, te.compute((p, n), lambda i, j: te.sum(x[i, k, j], axis=k), "Y")]


def _all(n: Extent) -> list[Tensor]:
    x, k = te.placeholder((n,), name="X"), te.reduce_axis((0, n), "k")
    return [x, te.compute((1,), lambda i: te.sum(x[k], axis=k), "Y")]


def _argmax(m: Extent, n: Extent) -> list[Tensor]:
    x, k = te.placeholder((m, n), name="X"), te.reduce_axis((0, n), "k")
    argmax = te.comm_reducer(
        lambda a, b: tuple(te.if_then_else(a[1] >= b[1], a[i], b[i]) for i in range(2)),
        lambda index, value: (te.const(-1, index), te.min_value(value)),
        name="argmax",
    )
    place, value = te.compute((m,), lambda i: argmax((k.var, x[i, k]), axis=k), name="Y")
    return [x, place, value]


def _norms() -> Iterator[Form]:
    sizes = [(300, 500), (100, 100), (64, 768), (1000, 64)]
    yield from _sized("softmax", _softmax, *sizes)
    yield from _sized("layer norm", _layer_norm, *sizes)
    yield from _sized("rms norm", _rms_norm, *sizes)
    yield from _sized("norm of columns", _column_norm, (300, 500), (100, 100))
    yield from _sized("norm of channels", _channel_norm, (4, 32, 28, 28))


def _over(combine: Callable[..., Any], x: Tensor, name: str) -> Any:
    m, n = x.shape
    k = te.reduce_axis((0, n), "k")
    return te.compute((m,), lambda i: combine(x[i, k], axis=k), name)


def _softmax(m: Extent, n: Extent) -> list[Tensor]:
    x = te.placeholder((m, n), name="X")
    largest = _over(te.max, x, "M")
    powers = te.compute(x.shape, lambda i, j: te.exp(x[i, j] - largest[i]), "E")
    total = _over(te.sum, powers, "S")
    return [x, te.compute((m, n), lambda i, j: powers[i, j] / total[i], "P")]


def _layer_norm(m: Extent, n: Extent) -> list[Tensor]:
    x, w, b = (
        te.placeholder((m, n), name="X"),
        te.placeholder((n,), name="w"),
        te.placeholder((n,), name="b"),
    )
    mean = _over(te.sum, x, "M")
    off = te.compute((m, n), lambda i, j: x[i, j] - mean[i] / n, "O")
    square = te.compute((m, n), lambda i, j: off[i, j] * off[i, j], "Q")
    total = _over(te.sum, square, "V")
    scaled = te.compute(
        (m, n), lambda i, j: off[i, j] * te.rsqrt(total[i] / n + 1e-5) * w[j] + b[j], "Y"
    )
    return [x, w, b, scaled]


def _rms_norm(m: Extent, n: Extent) -> list[Tensor]:
    x, w, k = (
        te.placeholder((m, n), name="X"),
        te.placeholder((n,), name="w"),
        te.reduce_axis((0, n)),
    )
    total = te.compute((m,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), "S")
    return [
        x,
        w,
        te.compute((m, n), lambda i, j: x[i, j] * te.rsqrt(total[i] / n + 1e-6) * w[j], "Y"),
    ]


def _column_norm(m: Extent, n: Extent) -> list[Tensor]:
    x, k = te.placeholder((m, n), name="X"), te.reduce_axis((0, m))
    total = te.compute((n,), lambda j: te.sum(x[k, j] * x[k, j], axis=k), "S")
    return [x, te.compute((m, n), lambda i, j: x[i, j] * te.rsqrt(total[j] / m + 1e-6), "Y")]


def _channel_norm(n: Extent, c: Extent, h: Extent, w: Extent) -> list[Tensor]:
    x = te.placeholder((n, c, h, w), name="X")
    p, y, z = te.reduce_axis((0, n)), te.reduce_axis((0, h)), te.reduce_axis((0, w))
    mean = te.compute((c,), lambda i: te.sum(x[p, i, y, z], axis=[p, y, z]), "M")

    def element(b: Any, i: Any, u: Any, v: Any) -> Any:
        return x[b, i, u, v] - mean[i] / (n * h * w)

    return [x, te.compute((n, c, h, w), element, "Y")]


def _attentions() -> Iterator[Form]:
    sizes = [(4, 128, 64), (2, 100, 64)]
    yield from _sized("attention", partial(_attention, is_causal=False), *sizes, (1, 512, 64))
    yield from _sized("attention causal", partial(_attention, is_causal=True), *sizes)


def _attention(heads: Extent, n: Extent, d: Extent, *, is_causal: bool) -> list[Tensor]:
    q, k, v = (te.placeholder((heads, n, d), name=name) for name in "QKV")
    at = te.reduce_axis((0, d), "d")

    def score(h: Any, i: Any, j: Any) -> Any:
        return te.sum(q[h, i, at] * k[h, j, at], axis=at)

    def over(combine: Callable[..., Any], x: Tensor, name: str) -> Any:
        def element(h: Any, i: Any) -> Any:
            j = te.reduce_axis((0, i + 1 if is_causal else n), "j")
            return combine(x[h, i, j], axis=j)

        return te.compute((heads, n), element, name)

    scores = te.compute((heads, n, n), score, "S")
    largest = over(te.max, scores, "M")
    powers = te.compute(scores.shape, lambda h, i, j: te.exp(scores[h, i, j] - largest[h, i]), "E")
    total = over(te.sum, powers, "T")
    weights = te.compute(scores.shape, lambda h, i, j: powers[h, i, j] / total[h, i], "P")

    def output(h: Any, i: Any, c: Any) -> Any:
        j = te.reduce_axis((0, i + 1 if is_causal else n), "j")
        return te.sum(weights[h, i, j] * v[h, j, c], axis=j)

    return [q, k, v, te.compute((heads, n, d), output, "O")]


# ---- Moves ---------------------------------------------------------------------------------------


def _borders() -> Iterator[Form]:
    sizes = [(300, 500), (67, 65)]
    for kind in ("zero", "reflected", "replicated", "wrapped"):
        yield from _sized(f"border {kind}", partial(_bordered, kind), *sizes)
    yield from _sized("roll", _rolled, *sizes)
    yield from _sized("roll by half", _half_rolled, *sizes)
    yield from _sized("roll of rows", _rolled_rows, *sizes)


def _bordered(kind: str, m: Extent, n: Extent) -> list[Tensor]:
    x, width = te.placeholder((m, n), name="X"), 2

    def element(i: Any, j: Any) -> Any:
        y, z = i - width, j - width
        if kind == "zero":
            return te.if_then_else(te.all(y >= 0, y < m, z >= 0, z < n), x[y, z], 0.0)
        if kind == "replicated":
            return x[te.max(te.min(y, m - 1), 0), te.max(te.min(z, n - 1), 0)]
        if kind == "wrapped":
            return x[(y + m) % m, (z + n) % n]
        return x[_reflected(y, m), _reflected(z, n)]

    return [x, te.compute((m + 2 * width, n + 2 * width), element, "Y")]


def _reflected(at: Any, extent: Extent) -> Any:
    return te.if_then_else(at < 0, -at, te.if_then_else(at >= extent, 2 * extent - 2 - at, at))


def _rolled(m: Extent, n: Extent) -> list[Tensor]:
    x = te.placeholder((m, n), name="X")
    return [x, te.compute((m, n), lambda i, j: x[i, (j + 5) % n], "Y")]


def _half_rolled(m: Extent, n: Extent) -> list[Tensor]:
    x = te.placeholder((m, n), name="X")
    return [x, te.compute((m, n), lambda i, j: x[i, (j + n // 2) % n], "Y")]


def _rolled_rows(m: Extent, n: Extent) -> list[Tensor]:
    x = te.placeholder((m, n), name="X")
    return [x, te.compute((m, n), lambda i, j: x[(i + 5) % m, j], "Y")]


def _moves() -> Iterator[Form]:
    sizes = [(300, 500), (67, 65)]
    yield from _sized("concatenation of columns", _side_by_side, (300, 200, 300), (67, 65, 31))
    yield from _sized("concatenation of rows", _one_below, (200, 100, 500), (67, 65, 31))
    yield from _sized("slice", _sliced, *sizes)
    yield from _sized("every other column", _every_other, *sizes)
    yield from _sized("reversed", _reversed, *sizes)
    yield from _sized("lower triangle", _triangle, *sizes)
    yield from _sized("two columns into one", _flattened, (300, 500), (1000, 7))
    yield from _sized("repeated", _repeated, (300, 250))
    yield from _sized("one hot", _one_hot, (300, 500))
    yield from _sized("diagonal added", _diagonal, (300, 300))


def _side_by_side(m: Extent, n: Extent, p: Extent) -> list[Tensor]:
    x, y = te.placeholder((m, n), name="X"), te.placeholder((m, p), name="Y")

    def element(i: Any, j: Any) -> Any:
        return te.if_then_else(j < n, x[i, j], y[i, j - n])

    return [x, y, te.compute((m, n + p), element, "Z")]


def _one_below(m: Extent, p: Extent, n: Extent) -> list[Tensor]:
    x, y = te.placeholder((m, n), name="X"), te.placeholder((p, n), name="Y")

    def element(i: Any, j: Any) -> Any:
        return te.if_then_else(i < m, x[i, j], y[i - m, j])

    return [x, y, te.compute((m + p, n), element, "Z")]


def _sliced(m: Extent, n: Extent) -> list[Tensor]:
    x = te.placeholder((m, n), name="X")
    return [x, te.compute((m - 3, n - 5), lambda i, j: x[i + 3, j + 2], "Y")]


def _every_other(m: Extent, n: Extent) -> list[Tensor]:
    x = te.placeholder((m, n), name="X")
    return [x, te.compute((m, (n + 1) // 2), lambda i, j: x[i, j * 2], "Y")]


def _reversed(m: Extent, n: Extent) -> list[Tensor]:
    x = te.placeholder((m, n), name="X")
    return [x, te.compute((m, n), lambda i, j: x[i, n - 1 - j], "Y")]


def _triangle(m: Extent, n: Extent) -> list[Tensor]:
    x = te.placeholder((m, n), name="X")
    return [x, te.compute((m, n), lambda i, j: te.if_then_else(j <= i, x[i, j], 0.0), "Y")]


def _flattened(m: Extent, n: Extent) -> list[Tensor]:
    x = te.placeholder((m, n), name="X")
    return [x, te.compute((m * n,), lambda i: x[i // n, i % n], "Y")]


def _repeated(m: Extent, n: Extent) -> list[Tensor]:
    x = te.placeholder((m, n), name="X")
    return [x, te.compute((m, n * 2), lambda i, j: x[i, j // 2], "Y")]


def _one_hot(m: Extent, n: Extent) -> list[Tensor]:
    x = te.placeholder((m,), "int32", name="X")
    return [x, te.compute((m, n), lambda i, j: te.if_then_else(x[i] == j, 1.0, 0.0), "Y")]


def _diagonal(m: Extent, n: Extent) -> list[Tensor]:
    x = te.placeholder((m, n), name="X")
    return [x, te.compute((m, n), lambda i, j: x[i, j] + te.if_then_else(i == j, 1.0, 0.0), "Y")]


def _running() -> Iterator[Form]:
    sizes = [(300, 500), (100, 100)]
    yield from _sized("running sum of rows", _running_rows, *sizes)
    yield from _sized("running sum of columns", _running_columns, *sizes)
    yield from _sized("sum of the lower triangle", _triangle_sum, *sizes)


def _running_rows(m: Extent, n: Extent) -> list[Tensor]:
    x = te.placeholder((m, n), name="X")
    k = te.reduce_axis((0, n), "k")
    return [x, te.compute((m, n), lambda i, j: te.sum(x[i, k], axis=k, where=k <= j), "Y")]


def _running_columns(m: Extent, n: Extent) -> list[Tensor]:
    x = te.placeholder((m, n), name="X")
    k = te.reduce_axis((0, m), "k")
    return [x, te.compute((m, n), lambda i, j: te.sum(x[k, j], axis=k, where=k <= i), "Y")]


def _triangle_sum(m: Extent, n: Extent) -> list[Tensor]:
    x = te.placeholder((m, n), name="X")
    k = te.reduce_axis((0, n), "k")
    return [x, te.compute((m,), lambda i: te.sum(x[i, k], axis=k, where=k <= i), "Y")]


def _gathers() -> Iterator[Form]:
    yield from _sized(
        "rows gathered", _gathered, (300, 1000, 64), (300, 1000, 100), (1000, 1000, 7)
    )
    yield from _sized("elements gathered", _picked, (300, 500))
    yield from _sized("embedding bag", _bag, (100, 20, 1000, 64), (100, 20, 1000, 100))
    yield from _sized("rows gathered and multiplied", _gathered_product, (100, 1000, 64))


def _gathered(m: Extent, rows: Extent, n: Extent) -> list[Tensor]:
    x, at = te.placeholder((rows, n), name="X"), te.placeholder((m,), "int32", name="I")
    return [x, at, te.compute((m, n), lambda i, j: x[at[i], j], "Y")]


def _picked(m: Extent, n: Extent) -> list[Tensor]:
    x, at = te.placeholder((m, n), name="X"), te.placeholder((m, n), "int32", name="I")
    return [x, at, te.compute((m, n), lambda i, j: x[i, at[i, j]], "Y")]


def _bag(m: Extent, places: Extent, rows: Extent, n: Extent) -> list[Tensor]:
    x, at = te.placeholder((rows, n), name="X"), te.placeholder((m, places), "int32", name="I")
    k = te.reduce_axis((0, places), "k")
    return [x, at, te.compute((m, n), lambda i, j: te.sum(x[at[i, k], j], axis=k), "Y")]


def _gathered_product(m: Extent, rows: Extent, n: Extent) -> list[Tensor]:
    x, at = te.placeholder((rows, n), name="X"), te.placeholder((m,), "int32", name="I")
    w, k = te.placeholder((n, n), name="W"), te.reduce_axis((0, n), "k")
    return [x, at, w, te.compute((m, n), lambda i, j: te.sum(x[at[i], k] * w[k, j], axis=k), "Y")]
