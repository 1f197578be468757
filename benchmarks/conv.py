"""Convolutions of one image, NCHW in and out, against torch: all changes of layout counted; and
convolutions drawn at random (:mod:`benchmarks.drawn_conv`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks import contraction, drawn_conv, peers
from benchmarks.contraction import Array, Call, Problem
from benchmarks.measure import Row, Settings
from benchmarks.speeds import LOST, Target


class Layer(NamedTuple):
    """A convolution: channels in, height and width, channels out, the kernel's side."""

    channels: int
    size: int
    out: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1

    @property
    def out_size(self) -> int:
        reach = self.dilation * (self.kernel - 1) + 1
        return (self.size + 2 * self.padding - reach) // self.stride + 1

    def __str__(self) -> str:
        parts = [f"{self.channels}@{self.size} to {self.out}, {self.kernel}x{self.kernel}"]
        if self.stride > 1:
            parts.append(f"stride {self.stride}")
        if self.dilation > 1:
            parts.append(f"dilation {self.dilation}")
        if self.groups not in (1, self.channels):
            parts.append(f"groups {self.groups}")
        return " ".join(parts)


def _depthwise(channels: int, size: int, stride: int = 1, kernel: int = 3) -> Layer:
    return Layer(channels, size, channels, kernel, stride, kernel // 2, groups=channels)


_RESNET50 = (
    Layer(3, 224, 64, 7, 2, 3),
    Layer(64, 56, 64, 1),
    Layer(64, 56, 64, 3, 1, 1),
    Layer(64, 56, 256, 1),
    Layer(256, 56, 64, 1),
    Layer(256, 56, 128, 1),
    Layer(128, 56, 128, 3, 2, 1),
    Layer(256, 56, 512, 1, 2),
    Layer(128, 28, 512, 1),
    Layer(512, 28, 128, 1),
    Layer(128, 28, 128, 3, 1, 1),
    Layer(512, 28, 256, 1),
    Layer(256, 28, 256, 3, 2, 1),
    Layer(512, 28, 1024, 1, 2),
    Layer(256, 14, 1024, 1),
    Layer(1024, 14, 256, 1),
    Layer(256, 14, 256, 3, 1, 1),
    Layer(1024, 14, 512, 1),
    Layer(512, 14, 512, 3, 2, 1),
    Layer(1024, 14, 2048, 1, 2),
    Layer(512, 7, 2048, 1),
    Layer(2048, 7, 512, 1),
    Layer(512, 7, 512, 3, 1, 1),
)
_MOBILENET = (
    _depthwise(32, 112),
    _depthwise(64, 112, 2),
    _depthwise(128, 56),
    _depthwise(128, 56, 2),
    _depthwise(256, 28),
    _depthwise(256, 28, 2),
    _depthwise(512, 14),
    _depthwise(512, 14, 2),
    _depthwise(1024, 7),
)
# Images of odd sizes, strides, dilation, groups, channels that fill no vectors.
_OTHERS = (
    Layer(64, 35, 64, 3, 1, 1),
    Layer(192, 17, 192, 3, 1, 1),
    Layer(384, 13, 256, 3, 1, 1),
    Layer(32, 149, 32, 3),
    Layer(96, 28, 96, 5, 2, 2),
    Layer(256, 33, 256, 3, 1, 4, dilation=4),
    Layer(96, 27, 256, 5, 1, 2, groups=2),
    Layer(256, 28, 256, 3, 1, 1, groups=32),
    Layer(32, 28, 24, 3, 1, 1),
)
# Nobody looks at these to choose a rule or a constant.
_HELD_OUT = (
    Layer(3, 192, 48, 5, 2, 2),
    Layer(40, 46, 112, 3, 1, 1),
    Layer(112, 21, 224, 3, 2, 1),
    Layer(320, 10, 160, 1),
    Layer(72, 37, 72, 3, 1, 3, dilation=3),
    Layer(192, 24, 192, 3, 1, 1, groups=6),
)
_HELD_OUT_DEPTHWISE = (_depthwise(168, 44, 1, 5), _depthwise(60, 51), _depthwise(320, 12, 2))

TARGETS = (
    Target("conv2d", 1.0, lambda row: row.what != "conv/drawn"),
    Target("    ResNet-50 and the like", 1.0, lambda row: row.what == "conv/layers"),
    Target("    others", 1.0, lambda row: row.what == "conv/others"),
    Target("    depthwise", 1.0, lambda row: row.what == "conv/depthwise"),
    Target("drawn at random", 1.0, lambda row: row.what == "conv/drawn", LOST),
)


def rows(settings: Settings) -> Iterator[Row]:
    """All layers."""
    return contraction.rows(_problems(), settings)


def _problems() -> Iterator[Problem]:
    for family, layers, held_out in (
        ("conv/layers", _RESNET50, False),
        ("conv/layers", _HELD_OUT, True),
        ("conv/others", _OTHERS, False),
        ("conv/depthwise", _MOBILENET, False),
        ("conv/depthwise", _HELD_OUT_DEPTHWISE, True),
    ):
        for layer in layers:
            yield convolution(family, layer, held_out=held_out)
    yield from drawn_conv.problems()


def convolution(family: str, layer: Layer, *, held_out: bool = False) -> Problem:
    """A layer, its padding a stage of its own as programs write it."""
    channels, size, out, kernel, stride, padding, dilation, groups = layer
    each, out_each = channels // groups, out // groups
    image, weights = (1, channels, size, size), (out, each, kernel, kernel)
    result = (1, out, layer.out_size, layer.out_size)

    def program(te: Any) -> list[Any]:
        X = te.placeholder(image, "float32", name="X")
        W = te.placeholder(weights, "float32", name="W")
        P = X
        if padding:
            end = padding + size
            P = te.compute(
                (1, channels, size + 2 * padding, size + 2 * padding),
                lambda n, c, y, x: te.if_then_else(
                    te.all(y >= padding, y < end, x >= padding, x < end),
                    X[n, c, y - padding, x - padding],
                    0.0,
                ),
                name="P",
            )
        rc = te.reduce_axis((0, each), name="rc")
        ry = te.reduce_axis((0, kernel), name="ry")
        rx = te.reduce_axis((0, kernel), name="rx")

        def element(n: Any, f: Any, y: Any, x: Any) -> Any:
            row, column = y * stride + ry * dilation, x * stride + rx * dilation
            if each == 1 and out_each == 1:
                return te.sum(P[n, f, row, column] * W[f, 0, ry, rx], axis=[ry, rx])
            channel = rc if groups == 1 else te.indexdiv(f, out_each) * each + rc
            return te.sum(P[n, channel, row, column] * W[f, rc, ry, rx], axis=[rc, ry, rx])

        return [X, W, te.compute(result, element, name="Y")]

    def arrays() -> list[Any]:
        return [
            contraction.filled(image, "float32", 0),
            contraction.filled(weights, "float32", 1),
            contraction.aligned(result, "float32"),
        ]

    def exact(x: Array, w: Array) -> tuple[Array, Array]:
        return _exact(layer, x, w), _exact(layer, np.abs(x), np.abs(w))

    terms = each * kernel * kernel
    flop = 2 * int(np.prod(result)) * terms
    calls = partial(_libraries, layer)
    return Problem(
        family, str(layer), flop, program, arrays, exact, terms, calls, held_out=held_out
    )


def _exact(layer: Layer, x: Array, w: Array) -> Array:
    """The sum over the kernel's places of a product of matrices for each group."""
    channels, _, out, kernel, stride, padding, dilation, groups = layer
    side = layer.out_size
    padded = np.pad(x[0], ((0, 0), (padding, padding), (padding, padding)))
    total = np.zeros((groups, out // groups, side * side))
    for y in range(kernel):
        for x_at in range(kernel):
            rows, columns = (
                slice(at * dilation, at * dilation + stride * (side - 1) + 1, stride)
                for at in (y, x_at)
            )
            seen = padded[:, rows, columns].reshape(groups, channels // groups, -1)
            total += w[:, :, y, x_at].reshape(groups, out // groups, -1) @ seen
    return total.reshape(1, out, side, side)


def _libraries(layer: Layer, inputs: Sequence[Any]) -> dict[str, Call]:
    torch = peers.peer("torch")
    if torch is None:
        return {}
    return {
        "torch": partial(
            torch.nn.functional.conv2d,
            *contraction.tensors(inputs),
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            groups=layer.groups,
        )
    }
