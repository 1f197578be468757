"""Convolutions drawn at random: layouts, sizes, strides, dilations, groups; transposed ones; and
gradients. Peers are torch (oneDNN) and JAX, with all changes of layout counted.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks import contraction, peers
from benchmarks.contraction import Array, Call, Problem

_SEEDS = (1, 20261126)  # tuned on; held out
_COUNT = 40  # of each seed
_CHANNELS = (1, 2, 3, 4, 8, 16, 17, 32, 64, 96, 128, 160)
_SIZES = (5, 7, 8, 9, 13, 14, 17, 28, 32, 33, 48, 56, 64, 75, 96, 112)
_KINDS = ("plain",) * 6 + ("transposed", "transposed", "gradient of data", "gradient of weights")
_PRODUCTS = 1e5, 5e8
_ELEMENTS = 1e7  # of image and result


class Drawn(NamedTuple):
    """A convolution. Channels of `data` and `result` are ``first`` or ``last``; `weights` have the
    layout ``OI*``, ``O*I`` or ``*IO``. `inside`: the padding is a choice in the sum. A `bias` is
    added, and negative results are cut off."""

    kind: str
    data: str
    weights: str
    result: str
    batch: int
    channels: int
    out: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    inside: bool
    bias: bool

    @property
    def places(self) -> tuple[int, ...]:
        """The size of the result."""
        sides = zip(self.size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        if self.kind == "transposed":
            return tuple((n - 1) * s - 2 * p + d * (k - 1) + 1 for n, k, s, p, d in sides)
        return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sides)

    @property
    def products(self) -> int:
        """The number of multiply-adds."""
        places = self.size if self.kind == "transposed" else self.places
        terms = self.channels // self.groups * math.prod(self.kernel)
        return self.batch * self.out * terms * math.prod(places)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The shapes of the data, the weights and the result, channels first."""
        return (
            (self.batch, self.channels, *self.size),
            (self.out, self.channels // self.groups, *self.kernel),
            (self.batch, self.out, *self.places),
        )

    def __str__(self) -> str:
        def sides(each: Sequence[int]) -> str:
            return "x".join(map(str, each))

        parts = [
            self.kind,
            f"{self.data}/{self.weights}/{self.result}",
            f"{self.batch} of {self.channels}@{sides(self.size)} to {self.out}",
            f"kernel {sides(self.kernel)}",
        ]
        for name in ("stride", "dilation"):
            if max(getattr(self, name)) > 1:
                parts.append(f"{name} {sides(getattr(self, name))}")
        if any(self.padding):
            parts.append(f"{'inside ' * self.inside}{sides(self.padding)}")
        parts += [f"groups {self.groups}"] * (self.groups > 1) + ["bias"] * self.bias
        return ", ".join(parts)


def problems() -> Iterator[Problem]:
    """The drawn convolutions, the second half held out."""
    for held_out, seed in enumerate(_SEEDS):
        rng = random.Random(seed)
        for _ in range(_COUNT):
            yield _problem(drawn(rng, *_PRODUCTS), held_out=bool(held_out))


def drawn(rng: random.Random, least: float, most: float) -> Drawn:
    """A convolution of `least` to `most` multiply-adds."""
    while True:
        dims, side = rng.choice((1, 2, 2, 2, 3)), rng.choice(_SIZES)
        data = rng.choice(("first", "first", "last"))
        several = rng.choice((1, 3, 3, rng.randint(1, 7)))
        kernel = tuple(rng.choice((several, several, several, 1)) for _ in range(dims))
        dilation = rng.choice((1, 1, 1, 2, 3))
        channels, out, groups = rng.choice(_CHANNELS), rng.choice(_CHANNELS), 1
        shape = rng.random()
        if shape < 0.1:
            groups = math.gcd(channels, out)
        elif shape < 0.25:
            groups, out = channels, channels * rng.choice((1, 1, 2))
        kind = rng.choice(_KINDS)
        made = Drawn(
            kind,
            data,
            rng.choice(("OI*", "OI*", "O*I", "*IO")),
            rng.choice((data, data, "first", "last")),
            rng.choice((1, 1, 2, 3, 4, 8)),
            channels,
            out,
            tuple(rng.choice((side, side, side + 1, max(5, side // 2))) for _ in range(dims)),
            kernel,
            (rng.choice((1, 1, 2, 3)),) * dims,
            tuple(rng.choice((0, dilation * (k - 1) // 2)) for k in kernel),
            (dilation,) * dims,
            groups,
            rng.choice((False, False, kind == "plain")),
            rng.choice((False, kind == "plain")),
        )
        if min(made.places) < 1 or not least <= made.products <= most:
            continue
        if math.prod(made.shapes[0]) + math.prod(made.shapes[2]) <= _ELEMENTS:
            return made


# ---- Layouts -------------------------------------------------------------------------------------

_ORDERS: dict[str, Callable[..., list[Any]]] = {
    "first": lambda n, c, *rest: [n, c, *rest],
    "last": lambda n, c, *rest: [n, *rest, c],
    "OI*": lambda o, i, *rest: [o, i, *rest],
    "O*I": lambda o, i, *rest: [o, *rest, i],
    "*IO": lambda o, i, *rest: [*rest, i, o],
}


def laid_out(array: Any, layout: str) -> Any:
    """A view of an array, channels first, in a layout."""
    return np.transpose(array, _ORDERS[layout](*range(array.ndim)))


def channels_first(array: Any, layout: str) -> Any:
    """A view of an array or a tensor in a layout, channels first."""
    order = _ORDERS[layout](*range(array.ndim))
    return (array.transpose if isinstance(array, np.ndarray) else array.permute)(
        *(order.index(i) for i in range(array.ndim))
    )


def _layouts(case: Drawn) -> list[str]:
    """The layouts of the arguments, the output last."""
    if case.kind == "gradient of data":
        return [case.weights, case.result, case.data]
    if case.kind == "gradient of weights":
        return [case.data, case.result, case.weights]
    return [case.data, case.weights, case.result]


# ---- The program ---------------------------------------------------------------------------------


def program(case: Drawn, te: Any, dtype: str = "float32") -> list[Any]:
    """The arguments, the output last; of gradients, the derivative by the result before it."""
    summed = {"int8": "int32", "bfloat16": "float32"}.get(dtype, dtype)
    each, out_each = case.channels // case.groups, case.out // case.groups
    image, kernel, result = (
        _ORDERS[layout](*shape)
        for shape, layout in zip(case.shapes, (case.data, case.weights, case.result), strict=True)
    )
    X = te.placeholder(image, dtype, name="X")
    W = te.placeholder(kernel, dtype, name="W")
    zero = te.const(0, dtype)
    padding = case.padding
    P: Any = X

    def inside(n: Any, c: Any, place: Sequence[Any], otherwise: Any) -> Any:
        holds = [
            condition
            for y, size, p in zip(place, case.size, padding, strict=True)
            if p
            for condition in (y >= p, y < size + p)
        ]
        at = [y - p for y, p in zip(place, padding, strict=True)]
        value = X[tuple(_ORDERS[case.data](n, c, *at))]
        return te.if_then_else(te.all(*holds), value, otherwise) if holds else value

    if case.kind != "transposed" and any(padding) and not case.inside:
        shape = [n + 2 * p for n, p in zip(case.size, padding, strict=True)]

        def padded(*at: Any) -> Any:
            n, c, *place = at if case.data == "first" else (at[0], at[-1], *at[1:-1])
            return inside(n, c, place, zero)

        shape = _ORDERS[case.data](case.batch, case.channels, *shape)
        P = te.compute(shape, padded, name="P")
    rc = te.reduce_axis((0, each), name="rc")
    window = [te.reduce_axis((0, k), name=f"r{i}") for i, k in enumerate(case.kernel)]

    def element(*at: Any) -> Any:
        n, o, *place = at if case.result == "first" else (at[0], at[-1], *at[1:-1])
        channel = rc if case.groups == 1 else te.indexdiv(o, out_each) * each + rc
        weight = W[tuple(_ORDERS[case.weights](o, rc, *window))].astype(summed)
        sides = [*zip(place, window, case.stride, padding, case.dilation, strict=True)]
        if case.kind == "transposed":
            sources = [y + p - r * d for y, r, _, p, d in sides]
            holds = []
            for y, size, s in zip(sources, case.size, case.stride, strict=True):
                holds += [y >= 0, y <= (size - 1) * s, te.indexmod(y, s).equal(0)]
            read = [te.indexdiv(y, s) for y, s in zip(sources, case.stride, strict=True)]
            value = X[tuple(_ORDERS[case.data](n, channel, *read))].astype(summed) * weight
            term = te.if_then_else(te.all(*holds), value, te.const(0, summed))
        else:
            read = [y * s + r * d for y, r, s, _, d in sides]
            if case.inside:
                value = inside(n, channel, read, zero)
            else:
                value = P[tuple(_ORDERS[case.data](n, channel, *read))]
            term = value.astype(summed) * weight
        return te.sum(term, axis=[rc, *window])

    Y = te.compute(result, element, name="Y")
    if case.kind.startswith("gradient"):
        D = te.placeholder(result, dtype, name="D")
        kept, by = (W, X) if case.kind == "gradient of data" else (X, W)
        return [kept, D, *te.gradient(Y, [by], D)]
    if not case.bias:
        return [X, W, Y]
    B = te.placeholder([case.out], summed, name="B")

    def cut_off(*at: Any) -> Any:
        total = Y[at] + B[at[1 if case.result == "first" else -1]]
        return te.if_then_else(total > te.const(0, summed), total, te.const(0, summed))

    return [X, W, B, te.compute(result, cut_off, name="Z")]


# ---- What it is to compute -----------------------------------------------------------------------


def exact(case: Drawn, *arrays: Array) -> Array:
    """The result, one place of the kernel after the other."""
    layouts = _layouts(case)
    a, b = (channels_first(each, layout) for each, layout in zip(arrays, layouts[:2], strict=False))
    by_data, by_weights = case.kind == "gradient of data", case.kind == "gradient of weights"
    scatters = case.kind == "transposed" or by_data
    # A scatter reads single places, and adds to windows of what is padded.
    places = case.size if case.kind == "transposed" else case.places
    whole = case.places if case.kind == "transposed" else case.size
    shape = [n + 2 * p for n, p in zip(whole, case.padding, strict=True)]
    g, n = case.groups, case.batch
    out, each = case.out // g, case.channels // g
    channels = {"transposed": case.out}.get(case.kind, case.channels)
    image = np.zeros((n, channels, *shape), np.result_type(a, b))
    middle = _at(*(slice(p, p + s) for p, s in zip(case.padding, whole, strict=True)))
    if not scatters:
        image[middle] = a
    grouped = image.reshape(n, g, channels // g, *shape)
    result = np.zeros((n, g, out, *places), image.dtype)
    derivative = np.zeros((g, out, each, *case.kernel), image.dtype)
    for at in itertools.product(*map(range, case.kernel)):
        steps = zip(at, case.dilation, case.stride, places, strict=True)
        seen = _at(*(slice(k * d, k * d + s * (q - 1) + 1, s) for k, d, s, q in steps))
        if by_weights:
            adjoint = b.reshape(n, g, out, -1)
            terms = grouped[seen].reshape(n, g, each, -1)
            derivative[_at(*at)] = np.einsum("ngop,ngcp->goc", adjoint, terms, optimize=True)
            continue
        weights = (a if by_data else b).reshape(g, out, each, *case.kernel)[_at(*at)]
        if by_data:
            grouped[seen] += np.einsum(
                "ngo...,goc->ngc...", b.reshape(n, g, out, *places), weights, optimize=True
            )
        elif scatters:
            grouped[seen] += np.einsum(
                "ngc...,goc->ngo...", a.reshape(n, g, each, *places), weights, optimize=True
            )
        else:
            result += np.einsum("ngc...,goc->ngo...", grouped[seen], weights, optimize=True)
    found = image[middle] if scatters else result.reshape(n, case.out, *places)
    if by_weights:
        found = derivative.reshape(case.out, each, *case.kernel)
    if case.bias:
        found = np.maximum(found + arrays[2].reshape(-1, *[1] * len(places)), 0)
    return np.asarray(laid_out(found, layouts[2]))


def _at(*places: Any) -> Any:
    """The index of places along the last dimensions."""
    return (..., *places)


# ---- Problems and peers --------------------------------------------------------------------------


def _problem(case: Drawn, *, held_out: bool) -> Problem:
    shapes = [*case.shapes]
    if case.kind == "gradient of data":
        shapes = [*shapes[1:], shapes[0]]
    elif case.kind == "gradient of weights":
        shapes = [shapes[0], *shapes[:0:-1]]
    stored = [_ORDERS[name](*s) for name, s in zip(_layouts(case), shapes, strict=True)]
    stored[2:2] = [[case.out]] * case.bias

    def arrays() -> list[Any]:
        made = [contraction.filled(shape, "float32", i) for i, shape in enumerate(stored[:-1])]
        return [*made, contraction.aligned(stored[-1], "float32")]

    def with_magnitude(*doubles: Array) -> tuple[Array, Array]:
        return exact(case, *doubles), exact(case, *map(np.abs, doubles))

    return Problem(
        "conv/drawn",
        str(case),
        2 * case.products,
        partial(program, case),
        arrays,
        with_magnitude,
        # A library may sum in another order, or by transforms.
        8 + case.products // max(1, math.prod(stored[-1])),
        partial(_libraries, case),
        held_out=held_out,
    )


def _libraries(case: Drawn, inputs: Sequence[Any]) -> dict[str, Call]:
    found: dict[str, Call] = {}
    if (torch := peers.peer("torch")) is not None:
        given = contraction.tensors(inputs)
        found["torch"] = _by_torch(case, torch, given)
        is_flat = len(case.size) == 1
        if not is_flat and (case.data, case.result) != ("last", "last"):
            form = torch.channels_last if len(case.size) == 2 else torch.channels_last_3d
            found["torch, channels last"] = _by_torch(case, torch, given, form)
    if (jax := peers.peer("jax")) is not None:
        jitted = jax.jit(partial(_by_jax, case, jax))
        given = [jax.numpy.asarray(each) for each in inputs]
        found["jax"] = lambda: jitted(*given).block_until_ready()
    return found


def _by_torch(case: Drawn, torch: Any, given: Sequence[Any], form: Any = None) -> Call:
    """Torch's operator on views, and its result in the asked layout."""
    layouts = _layouts(case)
    a, b = (channels_first(x, layout) for x, layout in zip(given, layouts[:2], strict=False))
    about = case.stride, case.padding, case.dilation
    dims = len(case.size)

    def formed(x: Any) -> Any:
        return x if form is None else x.contiguous(memory_format=form)

    def stored(y: Any) -> Any:
        return y.permute(_ORDERS[layouts[2]](*range(y.dim()))).contiguous()

    if case.kind == "plain":
        bias = given[2] if case.bias else None
        conv = getattr(torch.nn.functional, f"conv{dims}d")

        def plain() -> Any:
            y = conv(formed(a), b, bias, *about, case.groups)
            return stored(y if bias is None else torch.relu_(y))

        return plain
    if case.kind == "transposed":
        g = case.groups
        weights = b.reshape(g, case.out // g, case.channels // g, *case.kernel).transpose(1, 2)
        weights = weights.reshape(case.channels, case.out // g, *case.kernel)
        conv = getattr(torch.nn.functional, f"conv_transpose{dims}d")
        stride, padding, dilation = about
        return lambda: stored(conv(formed(a), weights, None, stride, padding, 0, g, dilation))
    backward = torch.ops.aten.convolution_backward
    by_data = case.kind == "gradient of data"
    x = torch.empty(case.shapes[0]) if by_data else a
    w = a if by_data else torch.empty(case.shapes[1])

    def gradient() -> Any:
        wanted = [by_data, not by_data, False]
        made = backward(
            formed(b), formed(x), w, None, *about, False, [0] * dims, case.groups, wanted
        )
        return stored(made[0 if by_data else 1])

    return gradient


def _by_jax(case: Drawn, jax: Any, a: Any, b: Any, *bias: Any) -> Any:
    sides = "DHW"[-len(case.size) :]
    names = {
        layout: "".join(order(*("NC" if layout in ("first", "last") else "OI"), *sides))
        for layout, order in _ORDERS.items()
    }
    dimensions = names[case.data], names[case.weights], names[case.result]
    general = partial(
        jax.lax.conv_general_dilated,
        rhs_dilation=case.dilation,
        dimension_numbers=dimensions,
        feature_group_count=case.groups,
    )
    if case.kind == "transposed":
        ends = [
            (d * (k - 1) - p,) * 2
            for d, k, p in zip(case.dilation, case.kernel, case.padding, strict=True)
        ]
        turned = jax.numpy.flip(b, [dimensions[1].index(side) for side in sides])
        return general(a, turned, [1] * len(sides), ends, lhs_dilation=case.stride)

    def conv(x: Any, w: Any) -> Any:
        return general(x, w, case.stride, [(p, p) for p in case.padding])

    def zeros(shape: Sequence[int], layout: str) -> Any:
        return jax.numpy.zeros(_ORDERS[layout](*shape), "float32")

    if case.kind == "gradient of data":
        return jax.vjp(lambda x: conv(x, a), zeros(case.shapes[0], case.data))[1](b)[0]
    if case.kind == "gradient of weights":
        return jax.vjp(lambda w: conv(a, w), zeros(case.shapes[1], case.weights))[1](b)[0]
    y = conv(a, b)
    if not bias:
        return y
    place = [1] * y.ndim
    place[1 if case.result == "first" else -1] = -1
    return jax.numpy.maximum(y + bias[0].reshape(place), 0)
