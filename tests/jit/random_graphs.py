"""Random graphs of operations, each in the expression language and in torch.

A graph starts from one tensor; each step reads the tensor before, and perhaps an input of its own.
The same seed makes the same graph again, of other tensors.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from minitvm import te

Shape = tuple[int, ...]
Pair = tuple[Any, Any]
F64 = torch.float64


class Graph:
    """A graph under way: its inputs in the expression language and in torch, placeholders and zeros
    unless given.

    Attributes
    ----------
    shapes
        The shapes of its inputs.
    rows
        Its inputs of integers: rows that gathers read.
    steps
        The names of its operations.
    """

    def __init__(
        self,
        seed: int,
        tensors: Sequence[Any] = (),
        rows: Sequence[Any] = (),
        leaves: Sequence[Any] = (),
    ) -> None:
        self.draw = random.Random(seed)
        self.shapes: list[Shape] = []
        self.rows: list[npt.NDArray[np.int32]] = []
        self.steps: list[str] = []
        self._tensors, self._rows, self._leaves = tensors, rows, leaves

    def input(self, shape: Shape) -> Pair:
        at = len(self.shapes)
        self.shapes.append(shape)
        mine = self._tensors[at] if self._tensors else te.placeholder(shape, "float64", f"x{at}")
        return mine, self._leaves[at] if self._leaves else torch.zeros(shape, dtype=F64)

    def choice_of_rows(self, extent: int) -> Pair:
        at, count = len(self.rows), self.draw.randrange(1, 9)
        self.rows.append(np.array([self.draw.randrange(extent) for _ in range(count)], "int32"))
        mine = self._rows[at] if self._rows else te.placeholder((count,), "int32", f"t{at}")
        return mine, torch.tensor(self.rows[at], dtype=torch.int64)

    def run(self) -> Pair:
        """The result."""
        rank = self.draw.choice([1, 2, 2, 3])
        pair = self.input(tuple(self.draw.choice([1, 2, 3, 5, 8, 17]) for _ in range(rank)))
        for _ in range(self.draw.randrange(1, 5)):
            rank = len(pair[1].shape)
            names = [name for name, (ranks, _) in STEPS.items() if rank in ranks]
            self.steps.append(self.draw.choice(names))
            pair = STEPS[self.steps[-1]][1](self, *pair)
        return pair

    def axis(self, x: Any) -> tuple[int, int]:
        """One of a tensor's axes, and its extent."""
        at = self.draw.randrange(x.ndim)
        return at, x.shape[at]


# -- Operations -----------------------------------------------------------------------------------


def _moved(
    X: Any, x: Any, axis: int, extent: int, at: Callable[[Any], Any], picked: Sequence[int]
) -> Pair:
    """The elements of an axis at other places: by index, and by torch's index_select."""
    shape = [extent if i == axis else n for i, n in enumerate(x.shape)]
    made = te.compute(
        shape, lambda *i: X(*(at(each) if d == axis else each for d, each in enumerate(i)))
    )
    return made, x.index_select(axis, torch.tensor(list(picked), dtype=torch.int64))


def _function(g: Graph, X: Any, x: Any) -> Pair:
    mine, known = g.draw.choice(
        [
            (te.sin, torch.sin),
            (te.tanh, torch.tanh),
            (te.sigmoid, torch.sigmoid),
            (lambda v: te.exp(v * 0.3), lambda v: torch.exp(v * 0.3)),
            (lambda v: v * v, lambda v: v * v),
            (te.abs, torch.abs),
            (lambda v: te.max(v, 0.0), torch.relu),
            (
                lambda v: te.if_then_else(v > 0.2, v * 2.0, te.sin(v)),
                lambda v: torch.where(v > 0.2, v * 2, torch.sin(v)),
            ),
        ]
    )
    return te.compute(x.shape, lambda *i: mine(X(*i))), known(x)


def _binary(g: Graph, X: Any, x: Any) -> Pair:
    Y, y = g.input(tuple(x.shape))
    mine, known = g.draw.choice(
        [
            (lambda a, b: a + b, lambda a, b: a + b),
            (lambda a, b: a - b, lambda a, b: a - b),
            (lambda a, b: a * b, lambda a, b: a * b),
            (te.max, torch.maximum),
            (lambda a, b: a / (2.0 + te.abs(b)), lambda a, b: a / (2 + b.abs())),
        ]
    )
    return te.compute(x.shape, lambda *i: mine(X(*i), Y(*i))), known(x, y)


def _broadcast(g: Graph, X: Any, x: Any) -> Pair:
    axis, extent = g.axis(x)
    Y, y = g.input((extent,))
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    return te.compute(x.shape, lambda *i: X(*i) * Y[i[axis]]), x * y.reshape(shape)


def _squares(g: Graph, X: Any, x: Any) -> Pair:
    k = te.reduce_axis((0, x.shape[-1]))
    return (
        te.compute(x.shape[:-1], lambda *i: te.sum(X(*i, k) * X(*i, k), axis=k)),
        (x * x).sum(-1),
    )


def _largest(g: Graph, X: Any, x: Any) -> Pair:
    k = te.reduce_axis((0, x.shape[-1]))
    return te.compute(x.shape[:-1], lambda *i: te.max(X(*i, k), axis=k)), x.max(-1)[0]


def _softmax(g: Graph, X: Any, x: Any) -> Pair:
    k, m = te.reduce_axis((0, x.shape[-1])), te.reduce_axis((0, x.shape[-1]))
    top = te.compute(x.shape[:-1], lambda *i: te.max(X(*i, k), axis=k))
    power = te.compute(x.shape, lambda *i: te.exp(X(*i) - top(*i[:-1])))
    total = te.compute(x.shape[:-1], lambda *i: te.sum(power(*i, m), axis=m))
    return te.compute(x.shape, lambda *i: power(*i) / total(*i[:-1])), torch.softmax(x, -1)


def _running_sum(g: Graph, X: Any, x: Any) -> Pair:
    k = te.reduce_axis((0, x.shape[-1]))

    def element(*i: Any) -> Any:
        return te.sum(X(*i[:-1], k), axis=k, where=k <= i[-1])

    return te.compute(x.shape, element), x.cumsum(-1)


def _recurrence(g: Graph, X: Any, x: Any) -> Pair:
    count, *rest = x.shape
    state = te.placeholder(x.shape, "float64", "state")
    first = te.compute((1, *rest), lambda _, *i: X(0, *i))
    step = te.compute(x.shape, lambda t, *i: te.tanh(state(t - 1, *i)) * 0.7 + X(t, *i))
    known = [x[0]]
    for t in range(1, count):
        known.append(torch.tanh(known[-1]) * 0.7 + x[t])
    return te.scan(first, step, state), torch.stack(known)


def _roll(g: Graph, X: Any, x: Any) -> Pair:
    axis, n = g.axis(x)
    by = g.draw.randrange(n + 2)
    return _moved(X, x, axis, n, lambda i: (i + by) % n, [(i + by) % n for i in range(n)])


def _flip(g: Graph, X: Any, x: Any) -> Pair:
    axis, n = g.axis(x)
    return _moved(X, x, axis, n, lambda i: n - 1 - i, range(n - 1, -1, -1))


def _slice(g: Graph, X: Any, x: Any) -> Pair:
    axis, n = g.axis(x)
    start = g.draw.randrange(n)
    extent = g.draw.randrange(1, n - start + 1)
    return _moved(X, x, axis, extent, lambda i: i + start, range(start, start + extent))


def _stride(g: Graph, X: Any, x: Any) -> Pair:
    axis, n = g.axis(x)
    by = g.draw.randrange(2, 4)
    return _moved(X, x, axis, -(-n // by), lambda i: i * by, range(0, n, by))


def _repeated_border(g: Graph, X: Any, x: Any) -> Pair:
    axis, n = g.axis(x)
    by = g.draw.randrange(3)
    picked = np.clip(np.arange(n + 2 * by) - by, 0, n - 1)
    return _moved(X, x, axis, n + 2 * by, lambda i: te.min(te.max(i - by, 0), n - 1), [*picked])


def _gather(g: Graph, X: Any, x: Any) -> Pair:
    axis, n = g.axis(x)
    rows, known = g.choice_of_rows(n)
    return _moved(X, x, axis, len(known), lambda i: rows[i], known.tolist())


def _pad(g: Graph, X: Any, x: Any) -> Pair:
    axis, n = g.axis(x)
    before, after = g.draw.randrange(3), g.draw.randrange(3)
    shape = [n + before + after if i == axis else each for i, each in enumerate(x.shape)]

    def element(*i: Any) -> Any:
        place = [each - before if d == axis else each for d, each in enumerate(i)]
        inside = te.all(i[axis] >= before, i[axis] < n + before)
        return te.if_then_else(inside, X(*place), 0.0)

    widths = [0] * (2 * x.ndim)
    at = 2 * (x.ndim - 1 - axis)
    widths[at : at + 2] = [before, after]
    return te.compute(shape, element), torch.nn.functional.pad(x, widths)


def _concatenate(g: Graph, X: Any, x: Any) -> Pair:
    Y, y = g.input(tuple(x.shape))
    *rest, n = x.shape
    return (
        te.compute(
            (*rest, 2 * n),
            lambda *i: te.if_then_else(i[-1] < n, X(*i), Y(*i[:-1], i[-1] - n)),
        ),
        torch.cat([x, y], -1),
    )


def _product(g: Graph, X: Any, x: Any) -> Pair:
    count, depth = g.draw.randrange(1, 20), x.shape[-1]
    k = te.reduce_axis((0, depth))
    shape = (*x.shape[:-1], count)
    if g.draw.random() < 0.5:
        Y, y = g.input((depth, count))
        made = te.compute(shape, lambda *i: te.sum(X(*i[:-1], k) * Y[k, i[-1]], axis=k))
        return made, x @ y
    Y, y = g.input((count, depth))
    made = te.compute(shape, lambda *i: te.sum(X(*i[:-1], k) * Y[i[-1], k], axis=k))
    return made, x @ y.T


def _bilinear(g: Graph, X: Any, x: Any) -> Pair:
    rows, n = x.shape
    Y, y = g.input((n, n))
    k, m = te.reduce_axis((0, n)), te.reduce_axis((0, n))
    made = te.compute((rows,), lambda i: te.sum(X[i, k] * Y[k, m] * X[i, m], axis=[k, m]))
    return made, torch.einsum("ik,km,im->i", x, y, x)


def _flatten(g: Graph, X: Any, x: Any) -> Pair:
    n = x.shape[1]
    shape = (x.shape[0] * n, *x.shape[2:])
    return te.compute(shape, lambda i, *j: X(i // n, i % n, *j)), x.reshape(shape)


def _triangle(g: Graph, X: Any, x: Any) -> Pair:
    made = te.compute(x.shape, lambda i, j: te.if_then_else(j <= i, X[i, j], 0.0))
    return made, torch.tril(x)


def _window(g: Graph, X: Any, x: Any) -> Pair:
    a, b = (te.reduce_axis((0, min(2, n))) for n in x.shape)
    shape = [n - min(2, n) + 1 for n in x.shape]
    parts = x.unfold(0, min(2, x.shape[0]), 1).unfold(1, min(2, x.shape[1]), 1)
    if g.draw.random() < 0.5:
        made = te.compute(shape, lambda i, j: te.sum(X[i + a, j + b], axis=[a, b]))
        return made, parts.sum((-1, -2))
    return te.compute(shape, lambda i, j: te.max(X[i + a, j + b], axis=[a, b])), parts.amax(
        (-1, -2)
    )


def _permute(g: Graph, X: Any, x: Any) -> Pair:
    order = list(range(x.ndim))
    g.draw.shuffle(order)
    shape = [x.shape[each] for each in order]
    made = te.compute(shape, lambda *i: X(*(i[order.index(d)] for d in range(len(i)))))
    return made, x.permute(order)


def _convolution(g: Graph, X: Any, x: Any) -> Pair:
    channels, *size = x.shape
    kernel = [min(n, g.draw.randrange(1, 4)) for n in size]
    by, filters = g.draw.randrange(1, 4), g.draw.randrange(1, 6)
    W, w = g.input((filters, channels, *kernel))
    c, a, b = (te.reduce_axis((0, n)) for n in (channels, *kernel))
    made = te.compute(
        (filters, *((n - m) // by + 1 for n, m in zip(size, kernel, strict=True))),
        lambda f, i, j: te.sum(X[c, i * by + a, j * by + b] * W[f, c, a, b], axis=[c, a, b]),
    )
    return made, torch.nn.functional.conv2d(x[None], w, stride=by)[0]


# By name: the ranks of the tensors that an operation takes, and the operation.
STEPS: dict[str, tuple[Sequence[int], Callable[[Graph, Any, Any], Pair]]] = {
    "function": (range(4), _function),
    "binary": (range(4), _binary),
    "broadcast": (range(1, 4), _broadcast),
    "squares": (range(1, 4), _squares),
    "largest": (range(1, 4), _largest),
    "softmax": (range(1, 4), _softmax),
    "running sum": (range(1, 4), _running_sum),
    "recurrence": (range(1, 4), _recurrence),
    "roll": (range(1, 4), _roll),
    "flip": (range(1, 4), _flip),
    "slice": (range(1, 4), _slice),
    "stride": (range(1, 4), _stride),
    "repeated border": (range(1, 4), _repeated_border),
    "gather": (range(1, 4), _gather),
    "pad": (range(1, 4), _pad),
    "concatenate": (range(1, 4), _concatenate),
    "product": (range(1, 4), _product),
    "bilinear": ([2], _bilinear),
    "flatten": ([2, 3], _flatten),
    "triangle": ([2], _triangle),
    "window": ([2], _window),
    "permute": ([2, 3], _permute),
    "convolution": ([3], _convolution),
}
