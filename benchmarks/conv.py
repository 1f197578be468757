"""Convolutions of one image against torch, NCHW in and out, all changes of layout counted; of
bfloat16 also with channels last; and convolutions drawn at random
(:mod:`benchmarks.drawn_conv`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
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

_NARROW = (
    *(_RESNET50[i] for i in (0, 1, 2, 7, 10, 16, 20, 22)),
    _OTHERS[5],
    _OTHERS[6],
    _OTHERS[8],
    *_MOBILENET[2:4],
)
_HELD_OUT_NARROW = (*_HELD_OUT[1:3], _HELD_OUT[5], Layer(24, 50, 36, 3, 1, 1), Layer(5, 61, 20, 5))

TARGETS = (
    Target("conv2d", 1.0, lambda row: row.what not in ("conv/drawn", "conv/bfloat16")),
    Target("    ResNet-50 and the like", 1.0, lambda row: row.what == "conv/layers"),
    Target("    others", 1.0, lambda row: row.what == "conv/others"),
    Target("    depthwise", 1.0, lambda row: row.what == "conv/depthwise"),
    Target("of bfloat16", 1.0, lambda row: row.what == "conv/bfloat16", LOST),
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
    narrow = [(layer, False) for layer in _NARROW] + [(layer, True) for layer in _HELD_OUT_NARROW]
    for (layer, held_out), is_last in product(narrow, (False, True)):
        yield convolution(
            "conv/bfloat16", layer, held_out=held_out, is_narrow=True, is_last=is_last
        )
    yield from drawn_conv.problems()


def convolution(
    family: str,
    layer: Layer,
    *,
    held_out: bool = False,
    is_narrow: bool = False,
    is_last: bool = False,
) -> Problem:
    """A layer, its padding a stage of its own as programs write it. `is_narrow`: of bfloat16, with
    sums of float32 that are rounded at the end. `is_last`: channels are the last dimension of the
    image and of the result, and of the weights the last ones."""
    channels, size, out, kernel, stride, padding, dilation, groups = layer
    each, out_each = channels // groups, out // groups
    dtype = "bfloat16" if is_narrow else "float32"

    def ordered(n: Any, c: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (n, y, x, c) if is_last else (n, c, y, x)

    def of_weights(f: Any, c: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (y, x, c, f) if is_last else (f, c, y, x)

    image, weights = ordered(1, channels, size, size), of_weights(out, each, kernel, kernel)
    result = ordered(1, out, layer.out_size, layer.out_size)
    parts = (0, 3, 1, 2) if is_last else (0, 1, 2, 3)  # where n, c, y, x are

    def program(te: Any) -> list[Any]:
        X = te.placeholder(image, dtype, name="X")
        W = te.placeholder(weights, dtype, name="W")
        P = X
        if padding:
            end = padding + size

            def padded(*at: Any) -> Any:
                n, c, y, x = (at[i] for i in parts)
                return te.if_then_else(
                    te.all(y >= padding, y < end, x >= padding, x < end),
                    X(*ordered(n, c, y - padding, x - padding)),
                    te.const(0, dtype),
                )

            whole = size + 2 * padding
            P = te.compute(ordered(1, channels, whole, whole), padded, name="P")
        rc = te.reduce_axis((0, each), name="rc")
        ry = te.reduce_axis((0, kernel), name="ry")
        rx = te.reduce_axis((0, kernel), name="rx")

        def element(*at: Any) -> Any:
            n, f, y, x = (at[i] for i in parts)
            row, column = y * stride + ry * dilation, x * stride + rx * dilation
            is_depthwise = each == 1 and out_each == 1
            channel = f if is_depthwise else rc
            if groups > 1 and not is_depthwise:
                channel = te.indexdiv(f, out_each) * each + rc
            term = P(*ordered(n, channel, row, column)).astype("float32")
            weight = W(*of_weights(f, 0 if is_depthwise else rc, ry, rx)).astype("float32")
            return te.sum(term * weight, axis=[ry, rx] if is_depthwise else [rc, ry, rx])

        Y = te.compute(result, element, name="Y")
        if is_narrow:
            return [X, W, te.compute(result, lambda *at: Y(*at).astype(dtype), name="Z")]
        return [X, W, Y]

    def arrays() -> list[Any]:
        made = [
            contraction.filled(image, "float32", 0),
            contraction.filled(weights, "float32", 1),
            contraction.aligned(result, "float32"),
        ]
        torch = peers.peer("torch") if is_narrow else None
        return made if torch is None else [torch.from_numpy(x).to(torch.bfloat16) for x in made]

    def exact(x: Array, w: Array) -> tuple[Array, Array]:
        x = x.transpose(parts)
        w = w.transpose(3, 2, 0, 1) if is_last else w
        found = (_exact(layer, x, w), _exact(layer, np.abs(x), np.abs(w)))
        first, second = (each.transpose(0, 2, 3, 1) if is_last else each for each in found)
        return first, second

    terms = each * kernel * kernel
    flop = 2 * int(np.prod(result)) * terms
    return Problem(
        family,
        f"{layer}{', channels last' if is_last else ''}",
        flop,
        program,
        arrays,
        exact,
        terms,
        partial(_libraries, layer, is_last),
        rounding=2.0**-8 * 1.01 if is_narrow else 0.0,
        held_out=held_out,
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


def _libraries(layer: Layer, is_last: bool, inputs: Sequence[Any]) -> dict[str, Call]:
    torch = peers.peer("torch")
    if torch is None:
        return {}
    x, w = contraction.tensors(inputs)
    if is_last:  # dimensions of torch in another order of memory
        x = x.permute(0, 3, 1, 2)
        w = w.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    convolved = partial(
        torch.nn.functional.conv2d,
        x,
        w,
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        groups=layer.groups,
    )
    return {"torch": (lambda: convolved().permute(0, 2, 3, 1)) if is_last else convolved}
