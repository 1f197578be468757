"""Whole graphs drawn at random: elementwise stages, reductions, broadcasts, moved elements.

A graph is a list of nodes, each an operation on earlier ones. It is a program of minitvm,
and a function of the arrays of numpy, torch or JAX. Values stay of magnitude 1 or so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, final

from benchmarks import contraction

Shape = tuple[int, ...]

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 32, 33, 48, 64, 65, 96, 100, 128, 200, 256, 300,
           512, 768, 1000, 4096, 10000, 65536)  # fmt: skip


@final
@dataclass(frozen=True)
class Node:
    """An operation on the nodes `args`, with what else it needs: axes, sizes, constants."""

    op: str
    args: tuple[int, ...]
    shape: Shape
    dtype: str
    more: tuple[Any, ...] = ()


@final
@dataclass(frozen=True)
class Graph:
    """Nodes in their order, and which of them are outputs."""

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        return tuple(i for i, node in enumerate(self.nodes) if node.op == "input")

    @property
    def elements(self) -> int:
        """Of all inputs and outputs together."""
        return sum(math.prod(self.nodes[i].shape) for i in (*self.inputs, *self.outputs))

    def __str__(self) -> str:
        lines = []
        for i, node in enumerate(self.nodes):
            size = "x".join(map(str, node.shape))
            given = ", ".join([*(f"v{a}" for a in node.args), *map(str, node.more)])
            kept = " *" if i in self.outputs else ""
            lines.append(f"v{i} = {node.op}({given}): {node.dtype}[{size}]{kept}")
        return "\n".join(lines)

    @property
    def title(self) -> str:
        """In a line: the operations and the largest shape."""
        kinds = [node.op for node in self.nodes if node.op != "input"]
        largest = max((node.shape for node in self.nodes), key=math.prod)
        return f"{' '.join(kinds)} of {'x'.join(map(str, largest))}"


# ---- Drawing -------------------------------------------------------------------------------------


def draw(
    random: Random,
    extents: Sequence[int] = EXTENTS,
    least: int = 1_000,
    most: int = 4_000_000,
    stored: Sequence[str] = ("bfloat16", "float16", "uint8"),
) -> Graph:
    """A graph of two to eight steps, whose first tensor has some `extents`, and from `least` to
    `most` elements. Some graphs store numbers of one of the types `stored`."""
    while True:
        drawing = _Drawing(random, extents, least, most, stored)
        try:
            return drawing.graph()
        except _Unfit:
            continue


class _Unfit(Exception):
    """What was drawn is too large or too small."""


class _Drawing:
    def __init__(
        self, random: Random, extents: Sequence[int], least: int, most: int, stored: Sequence[str]
    ) -> None:
        self.random, self.extents, self.least, self.most = random, extents, least, most
        self.nodes: list[Node] = []
        self.floats = "float64" if self.maybe(0.08) else "float32"
        self.stored = self.floats
        if self.maybe(0.15):
            self.stored = random.choice(stored)

    def maybe(self, chance: float) -> bool:
        return self.random.random() < chance

    def graph(self) -> Graph:
        rank = self.random.choice([1, 2, 2, 2, 3, 3, 4])
        while True:
            shape = tuple(self.random.choice(self.extents) for _ in range(rank))
            if self.least <= math.prod(shape) <= self.most:
                break
        last = self.input(shape)
        for _ in range(self.random.randint(2, 8)):
            if self.maybe(0.2):  # from an earlier value
                last = self.random.choice(self.values())
            last = self.step(last)
        read = {a for node in self.nodes for a in node.args}
        outputs = [i for i, n in enumerate(self.nodes) if i not in read and n.op != "input"]
        for i in self.values():
            if i in read and self.nodes[i].op != "input" and self.maybe(0.06):
                outputs.append(i)
        outputs = [self.narrowed(i) for i in sorted(outputs)]
        graph = Graph(tuple(self.nodes), tuple(outputs))
        if graph.elements > 2 * self.most:
            raise _Unfit
        return graph

    def narrowed(self, i: int) -> int:
        if self.stored in ("bfloat16", "float16") and self.nodes[i].dtype == "float32":
            return self.unary(i, self.stored, self.stored)
        return i

    def values(self) -> list[int]:
        return [i for i, n in enumerate(self.nodes) if n.dtype == self.floats]

    def add(self, op: str, args: Sequence[int], shape: Sequence[int], *more: Any,
            dtype: str = "") -> int:  # fmt: skip
        if math.prod(shape) > self.most:
            raise _Unfit
        self.nodes.append(Node(op, tuple(args), tuple(shape), dtype or self.floats, more))
        return len(self.nodes) - 1

    def input(self, shape: Sequence[int]) -> int:
        if self.stored != self.floats and self.maybe(0.7):
            made = self.add("input", (), shape, dtype=self.stored)
            made = self.unary(made, "float", self.floats)
            return self.unary(made, "scale", "", 1 / 256) if self.stored == "uint8" else made
        return self.add("input", (), shape)

    def shape(self, i: int) -> Shape:
        return self.nodes[i].shape

    def unary(self, i: int, op: str, dtype: str = "", *more: Any) -> int:
        return self.add(op, (i,), self.shape(i), *more, dtype=dtype)

    def step(self, x: int) -> int:
        kinds: list[tuple[int, Callable[[int], int]]] = [
            (5, self.elementwise), (4, self.combined), (5, self.reduced), (2, self.softmax),
            (3, self.norm), (2, self.permuted), (2, self.sliced), (1, self.flipped),
            (2, self.joined), (1, self.padded), (1, self.stacked), (2, self.reshaped),
            (1, self.rolled), (1, self.gathered), (2, self.running), (2, self.window),
            (1, self.places), (1, self.integers), (1, self.counted),
        ]  # fmt: skip
        weights, makers = zip(*kinds, strict=True)
        (make,) = self.random.choices(makers, weights)
        made: int = make(x)
        return made

    # -- Elementwise --

    def elementwise(self, x: int) -> int:
        for _ in range(self.random.choice([1, 2, 3])):
            op = self.random.choice(
                ["exp", "tanh", "sqrt", "sigmoid", "relu", "square", "negative", "clamp", "scale",
                 "log", "bfloat16", "float16"]
            )  # fmt: skip
            if op in ("bfloat16", "float16"):
                x = self.unary(self.unary(x, op, op), "float")
            else:
                x = self.unary(x, op, "", *({"scale": (0.7,)}.get(op, ())))
        return x

    def integers(self, x: int) -> int:
        x = self.unary(x, "int", "int32")
        if self.maybe(0.7):
            x = self.unary(x, "remainder", "int32", self.random.choice([2, 3, 7, 8]))
        if self.maybe(0.5):
            x = self.unary(x, "quotient", "int32", self.random.choice([2, 3, 5]))
        return self.unary(x, "float")

    def other(self, x: int) -> tuple[int, Shape]:
        """A value to combine with x: an earlier one, or an input that lacks some dimensions."""
        shape = self.shape(x)
        fitting = [
            i for i in self.values() if i != x and len(self.shape(i)) == len(shape)
            and all(a == b or 1 in (a, b) for a, b in zip(self.shape(i), shape, strict=True))
        ]  # fmt: skip
        if fitting and self.maybe(0.6):
            i = self.random.choice(fitting)
        else:
            i = self.input([n if self.maybe(0.5) else 1 for n in shape])
        return i, tuple(map(max, self.shape(i), shape))

    def combined(self, x: int) -> int:
        y, shape = self.other(x)
        op = self.random.choice(["add", "subtract", "multiply", "maximum", "minimum", "divide",
                                 "choose"])  # fmt: skip
        args: tuple[int, ...] = (x, y) if self.maybe(0.7) else (y, x)
        if op == "choose":
            z, shape = self.other(self.add("add", args, shape))
            args = (*args, z)
        return self.add(op, args, shape)

    # -- Reductions --

    def axes(self, x: int) -> tuple[int, ...]:
        rank = len(self.shape(x))
        if not rank:
            raise _Unfit
        return tuple(sorted(self.random.sample(range(rank), self.random.choice(
            [1, 1, 1, min(2, rank), self.random.randint(1, rank)]))))  # fmt: skip

    def reduce(self, x: int, op: str, axes: Shape, *, kept: bool, dtype: str = "") -> int:
        shape = self.shape(x)
        left = [1 if i in axes else n for i, n in enumerate(shape) if kept or i not in axes]
        return self.add(op, (x,), left, axes, dtype=dtype)

    def reduced(self, x: int) -> int:
        op = self.random.choice(["sum", "mean", "max", "min", "mean", "max", "prod"])
        axes, kept = self.axes(x), self.maybe(0.5)
        if op == "prod":
            x = self.unary(x, "near1", "", math.prod(self.shape(x)[a] for a in axes))
        made = self.reduce(x, op, axes, kept=kept)
        if op == "sum":
            scale = math.prod(self.shape(x)[a] for a in axes) ** -0.5
            made = self.unary(made, "scale", "", scale)
        return self.combined_with(made, x) if kept and self.maybe(0.5) else made

    def combined_with(self, small: int, x: int) -> int:
        op = self.random.choice(["subtract", "multiply", "divide", "maximum"])
        return self.add(op, (x, small), self.shape(x))

    def counted(self, x: int) -> int:
        kept = self.maybe(0.5)
        axes = self.axes(x)
        op = self.random.choice(["count", "any", "all"])
        made = self.reduce(x, op, axes, kept=kept, dtype="int32")
        return self.unary(
            self.unary(made, "float"), "scale", "",
            1 / math.prod(self.shape(x)[a] for a in axes) if op == "count" else 1.0,
        )  # fmt: skip

    def places(self, x: int) -> int:
        axes = self.axes(x)[:1]
        made = self.reduce(x, "argmax", axes, kept=self.maybe(0.5), dtype="int32")
        return self.unary(self.unary(made, "float"), "scale", "", 1 / self.shape(x)[axes[0]])

    def softmax(self, x: int) -> int:
        axes, shape = self.axes(x), self.shape(x)
        top = self.reduce(x, "max", axes, kept=True)
        powers = self.unary(self.add("subtract", (x, top), shape), "power")
        total = self.reduce(powers, "sum", axes, kept=True)
        if self.maybe(0.25):
            return self.add("add", (self.unary(total, "log"), top), self.shape(top))
        return self.add("divide1", (powers, total), shape)

    def norm(self, x: int) -> int:
        axes, shape = self.axes(x), self.shape(x)
        kind = self.random.choice(["layer", "layer", "rms", "l2", "variance"])
        if kind in ("layer", "variance"):
            x = self.add("subtract", (x, self.reduce(x, "mean", axes, kept=True)), shape)
        squares = self.unary(x, "square1")
        if kind == "variance":
            return self.reduce(squares, "mean", axes, kept=self.maybe(0.5))
        made = self.reduce(squares, "sum" if kind == "l2" else "mean", axes, kept=True)
        x = self.add("multiply1", (x, self.unary(made, "rsqrt")), shape)
        if self.maybe(0.5):
            weights = self.input([n if i in axes else 1 for i, n in enumerate(shape)])
            x = self.add("multiply1", (x, weights), shape)
        return x

    # -- Moved elements --

    def permuted(self, x: int) -> int:
        order = list(range(len(self.shape(x))))
        if len(order) < 2:
            raise _Unfit
        self.random.shuffle(order)
        return self.add("permute", (x,), [self.shape(x)[i] for i in order], tuple(order))

    def sliced(self, x: int) -> int:
        parts = []
        for n in self.shape(x):
            step = self.random.choice([1, 1, 2, 3]) if n > 8 else 1
            first = self.random.choice([0, 0, 1, n // 3]) if n > 2 else 0
            parts.append((first, n - self.random.choice([0, 0, n // 4]), step))
        shape = [len(range(*part)) for part in parts]
        if math.prod(shape) < self.least / 10:
            raise _Unfit
        return self.add("slice", (x,), shape, tuple(parts))

    def flipped(self, x: int) -> int:
        return self.add("flip", (x,), self.shape(x), self.axes(x))

    def joined(self, x: int) -> int:
        (axis, *_), shape = self.axes(x), self.shape(x)
        others = [i for i in self.values() if len(self.shape(i)) == len(shape)
                  and all(a == b or k == axis
                          for k, (a, b) in enumerate(zip(self.shape(i), shape, strict=True)))
                  ]  # fmt: skip
        if self.maybe(0.4):
            others = [self.input([self.random.choice([1, 3, 16, n]) if k == axis else n
                                  for k, n in enumerate(shape)])]  # fmt: skip
        y = self.random.choice(others)
        total = [n + self.shape(y)[k] if k == axis else n for k, n in enumerate(shape)]
        return self.add("concatenate", (x, y), total, axis)

    def padded(self, x: int) -> int:
        axes = self.axes(x)
        parts = tuple((self.random.choice([0, 1, 2]), self.random.choice([1, 1, 3]))
                      if i in axes else (0, 0) for i in range(len(self.shape(x))))  # fmt: skip
        shape = [n + sum(part) for n, part in zip(self.shape(x), parts, strict=True)]
        return self.add("pad", (x,), shape, parts)

    def stacked(self, x: int) -> int:
        shape = self.shape(x)
        if len(shape) > 3:
            raise _Unfit
        axis = self.random.randint(0, len(shape))
        same = [i for i in self.values() if self.shape(i) == shape]
        args = [x, *self.random.choices(same, k=self.random.choice([1, 2]))]
        return self.add("stack", args, [*shape[:axis], len(args), *shape[axis:]], axis)

    def reshaped(self, x: int) -> int:
        shape = list(self.shape(x))
        i = self.random.randrange(len(shape)) if shape else 0
        if len(shape) > 1 and self.maybe(0.5):
            i = min(i, len(shape) - 2)
            shape[i : i + 2] = [shape[i] * shape[i + 1]]
        else:
            able = [d for d in (2, 3, 4, 8, 10, 16, 32, 64) if shape and shape[i] % d == 0
                    and d < shape[i]]  # fmt: skip
            if not able or len(shape) > 3:
                raise _Unfit
            d = self.random.choice(able)
            shape[i : i + 1] = self.random.choice([[d, shape[i] // d], [shape[i] // d, d]])
        return self.add("reshape", (x,), shape)

    def rolled(self, x: int) -> int:
        axis = self.axes(x)[0]
        n = self.shape(x)[axis]
        return self.add("roll", (x,), self.shape(x), axis, self.random.choice([1, n // 2]))

    def gathered(self, x: int) -> int:
        axis, shape = self.axes(x)[0], list(self.shape(x))
        count = self.random.choice(
            [shape[axis], 2 * shape[axis], self.random.choice(self.extents[:-3])]
        )
        places = self.add("input", (), (count,), shape[axis], dtype="int64")
        shape[axis] = count
        return self.add("take", (x, places), shape, axis)

    def running(self, x: int) -> int:
        axis = self.axes(x)[0]
        made = self.add("cumsum", (x,), self.shape(x), axis)
        return self.unary(made, "scale", "", self.shape(x)[axis] ** -0.5)

    def window(self, x: int) -> int:
        axes, shape = self.axes(x)[:2], list(self.shape(x))
        size, step = self.random.choice([(2, 2), (3, 1), (3, 2), (5, 1), (2, 1), (8, 1)])
        if any(shape[a] < size for a in axes):
            raise _Unfit
        for a in axes:
            shape[a] = (shape[a] - size) // step + 1
        kind = self.random.choice(["max", "sum"])
        made = self.add("window", (x,), shape, kind, axes, size, step)
        return self.unary(made, "scale", "", size ** -len(axes)) if kind == "sum" else made


# ---- Elements ------------------------------------------------------------------------------------

# Elementwise operations, by a library `m` of functions of elements, or of whole arrays.
_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "exp": lambda m, a: m.exp(a * 0.25),
    "power": lambda m, a: m.exp(a),
    "sqrt": lambda m, a: m.sqrt(m.abs(a)),
    "rsqrt": lambda m, a: m.rsqrt(a + 1e-3),
    "log": lambda m, a: m.log(m.abs(a) + 1.0),
    "tanh": lambda m, a: m.tanh(a),
    "sigmoid": lambda m, a: m.sigmoid(a),
    "relu": lambda m, a: m.limited(a, 0.0, None),
    "square": lambda m, a: a * a * 0.25,
    "square1": lambda m, a: a * a,
    "negative": lambda m, a: -a,
    "clamp": lambda m, a: m.limited(a, -1.0, 1.0),
    "scale": lambda m, a, factor: a * factor,
    "near1": lambda m, a, count: a * (1 / count) + 1.0,
    "int": lambda m, a: m.cast(a * 100.0, "int32"),
    "remainder": lambda m, a, divisor: a % divisor,
    "quotient": lambda m, a, divisor: a // divisor,
    "add": lambda m, a, b: a + b,
    "subtract": lambda m, a, b: a - b,
    "multiply": lambda m, a, b: a * b * 0.5,
    "multiply1": lambda m, a, b: a * b,
    "divide": lambda m, a, b: a / (m.abs(b) + 1.0),
    "divide1": lambda m, a, b: a / b,
    "maximum": lambda m, a, b: m.maximum(a, b),
    "minimum": lambda m, a, b: m.minimum(a, b),
    "choose": lambda m, a, b, c: m.where(a > b, a, c),
}
DISCRETE = {
    "int", "choose", "count", "any", "all", "argmax", "bfloat16", "float16"
}  # fmt: skip
"""The operations whose results jump: rounding before them may change results as a whole."""


class _Elements:
    """The functions of elements of a `te`."""

    def __init__(self, te: Any) -> None:
        self.exp, self.sqrt, self.rsqrt, self.log = te.exp, te.sqrt, te.rsqrt, te.log
        self.tanh, self.sigmoid, self.abs = te.tanh, te.sigmoid, te.abs
        self.maximum, self.minimum, self.where = te.max, te.min, te.if_then_else

    def limited(self, a: Any, low: float, high: float | None) -> Any:
        a = self.maximum(a, low)
        return a if high is None else self.minimum(a, high)

    def cast(self, a: Any, dtype: str) -> Any:
        return a.astype(dtype)


class _Arrays:
    """The functions of arrays of numpy, torch or JAX. With `floats`, floats are of that dtype."""

    def __init__(self, np: Any, floats: str) -> None:
        self.np, self.floats, self.is_torch = np, floats, np.__name__ == "torch"
        self.exp, self.sqrt, self.log, self.tanh = np.exp, np.sqrt, np.log, np.tanh
        self.abs, self.where, self.maximum, self.minimum = np.abs, np.where, np.maximum, np.minimum

    def rsqrt(self, a: Any) -> Any:
        return self.np.rsqrt(a) if self.is_torch else 1 / self.np.sqrt(a)

    def sigmoid(self, a: Any) -> Any:
        return self.np.sigmoid(a) if self.is_torch else 1 / (1 + self.np.exp(-a))

    def limited(self, a: Any, low: float, high: float | None) -> Any:
        return self.np.clip(a, low, high)

    def cast(self, a: Any, dtype: str) -> Any:
        if self.floats and "float" in dtype:
            dtype = self.floats
        kind = getattr(self.np, dtype)
        return a.to(kind) if self.is_torch else a.astype(kind)


# ---- In minitvm's language -----------------------------------------------------------------------


def program(graph: Graph, te: Any) -> list[Any]:
    """Given minitvm's `te`, the arguments: the inputs, then the outputs."""
    made: list[Any] = []
    for i, node in enumerate(graph.nodes):
        if node.op == "input":
            made.append(te.placeholder(node.shape, node.dtype, name=f"v{i}"))
        else:
            made.append(_stage(te, f"v{i}", node, [made[a] for a in node.args]))
    return [made[i] for i in (*graph.inputs, *graph.outputs)]


def _stage(te: Any, name: str, node: Node, args: Sequence[Any]) -> Any:
    x, more, shape = args[0], node.more, node.shape

    def at(x: Any, place: Sequence[Any]) -> Any:
        return x[tuple(0 if int(n) == 1 else p for n, p in zip(x.shape, place, strict=True))]

    def element(place: Sequence[Any]) -> Any:
        match node.op:
            case "permute":
                return at(x, [place[more[0].index(i)] for i in range(len(place))])
            case "slice":
                return at(x, [p * s + f for p, (f, _, s) in zip(place, more[0], strict=True)])
            case "flip":
                last = [n - 1 - p for p, n in zip(place, shape, strict=True)]
                return at(x, [last[a] if a in more[0] else p for a, p in enumerate(place)])
            case "roll":
                return x[_with(place, more[0], (place[more[0]] - more[1] + shape[more[0]])
                               % shape[more[0]])]  # fmt: skip
            case "take":
                return x[_with(place, more[0], args[1][place[more[0]]])]
            case "concatenate":
                axis, n = more[0], int(x.shape[more[0]])
                beyond = args[1][_with(place, axis, place[axis] - n)]
                return te.if_then_else(place[axis] < n, x[tuple(place)], beyond)
            case "pad":
                inner = [p - low for p, (low, _) in zip(place, more[0], strict=True)]
                inside = [t for p, n, part in zip(inner, x.shape, more[0], strict=True) if any(part)
                          for t in (p >= 0, p < n)]  # fmt: skip
                return te.if_then_else(te.all(*inside), x[tuple(inner)], te.const(0, x.dtype))
            case "stack":
                rest = (*place[: more[0]], *place[more[0] + 1 :])
                made = args[-1][rest]
                for k in reversed(range(len(args) - 1)):
                    made = te.if_then_else(place[more[0]] == k, args[k][rest], made)
                return made
            case "reshape":
                flat: Any = 0
                for p, n in zip(place, shape, strict=True):
                    flat = flat * n + p
                found: list[Any] = []
                for n in reversed([int(n) for n in x.shape]):
                    found, flat = [flat % n, *found], flat // n
                return at(x, found)
        values = [at(each, place) for each in args]
        if node.op in _ELEMENTWISE:
            return _ELEMENTWISE[node.op](_Elements(te), *values, *more)
        return values[0].astype(node.dtype)

    match node.op:
        case "cumsum":
            k = te.reduce_axis((0, shape[more[0]]), name="k")
            return te.compute(shape, lambda *p: te.sum(
                x[_with(p, more[0], k)], axis=k, where=k <= p[more[0]]), name=name)  # fmt: skip
        case "window":
            kind, axes, size, step = more
            ks = {a: te.reduce_axis((0, size), name=f"k{a}") for a in axes}
            return te.compute(shape, lambda *p: getattr(te, kind)(
                x[tuple(i * step + ks[a] if a in ks else i for a, i in enumerate(p))],
                axis=[*ks.values()]), name=name)  # fmt: skip
        case "sum" | "mean" | "max" | "min" | "prod" | "argmax" | "count" | "any" | "all":
            return _reduction(te, name, node, x)
    return te.compute(shape, lambda *place: element(place), name=name)


def _with(place: Sequence[Any], axis: int, value: Any) -> tuple[Any, ...]:
    return (*place[:axis], value, *place[axis + 1 :])


def _reduction(te: Any, name: str, node: Node, x: Any) -> Any:
    (axes,), shape = node.more, node.shape
    steps = {a: te.reduce_axis((0, int(x.shape[a])), name=f"k{a}") for a in axes}
    over = [*steps.values()]

    def term(place: Sequence[Any]) -> Any:
        kept = len(place) == len(x.shape)
        rest = iter([p for a, p in enumerate(place) if not (kept and a in steps)])
        return x[tuple(steps[a] if a in steps else next(rest) for a in range(len(x.shape)))]

    def sign(place: Sequence[Any]) -> Any:
        return te.if_then_else(term(place) > 0, te.const(1, "int32"), te.const(0, "int32"))

    match node.op:
        case "argmax":
            greatest = contraction.place_of_greatest(te)
            return te.compute(
                shape, lambda *p: greatest((over[0].var, term(p)), axis=over), name=name
            )[0]
        case "count" | "any" | "all":
            reducer = {"count": te.sum, "any": te.max, "all": te.min}[node.op]
            return te.compute(shape, lambda *p: reducer(sign(p), axis=over), name=name)
    reducer = te.sum if node.op == "mean" else getattr(te, node.op)
    made = te.compute(shape, lambda *p: reducer(term(p), axis=over), name=name)
    if node.op != "mean":
        return made
    share = 1 / math.prod(int(x.shape[a]) for a in axes)
    return te.compute(shape, lambda *p: made[p] * share, name=f"{name}_mean")


# ---- Of whole arrays -----------------------------------------------------------------------------


def function(
    graph: Graph,
    library: Any,
    floats: str = "",
    rounded: Callable[[Any, str], Any] = lambda array, dtype: array,
) -> Callable[..., tuple[Any, ...]]:
    """The graph as a function of arrays of numpy, torch or ``jax.numpy``, which returns the
    outputs, compact. With `floats`, all floats are of that dtype. `rounded` is applied to each
    computed array, with the dtype that it has in the graph."""
    arrays = _Arrays(library, floats)

    def run(*inputs: Any) -> tuple[Any, ...]:
        left = iter(inputs)
        made: list[Any] = []
        for node in graph.nodes:
            args = [made[a] for a in node.args]
            if node.op == "input":
                made.append(next(left))
            else:
                made.append(rounded(_value(arrays, node, args), node.dtype))
        outputs = [made[i] for i in graph.outputs]
        return tuple(x.contiguous() if arrays.is_torch else x for x in outputs)

    return run


def _value(m: _Arrays, node: Node, args: Sequence[Any]) -> Any:
    np, x, more = m.np, args[0], node.more
    if node.op in _ELEMENTWISE:
        return _ELEMENTWISE[node.op](m, *args, *more)
    match node.op:
        case "float" | "bfloat16" | "float16":
            return m.cast(x, node.dtype)
        case "sum" | "mean":
            return getattr(x, node.op)(more[0]).reshape(node.shape)
        case "max" | "min":
            return getattr(np, f"a{node.op}")(x, more[0]).reshape(node.shape)
        case "prod":
            for axis in reversed(more[0]):
                x = x.prod(axis)
            return x.reshape(node.shape)
        case "count":
            return m.cast(m.cast(x > 0, "int32").sum(more[0]), "int32").reshape(node.shape)
        case "any" | "all":
            return m.cast(getattr(np, node.op)(x > 0, more[0]), "int32").reshape(node.shape)
        case "argmax":
            return m.cast(np.argmax(x, more[0][0]), "int32").reshape(node.shape)
        case "permute":
            return x.permute(more[0]) if m.is_torch else np.transpose(x, more[0])
        case "slice":
            return x[tuple(slice(*part) for part in more[0])]
        case "concatenate":
            return np.concatenate(args, more[0])
        case "pad":
            if not m.is_torch:
                return np.pad(x, more[0])
            return np.nn.functional.pad(x, [n for part in reversed(more[0]) for n in part])
        case "stack":
            return np.stack(args, more[0])
        case "reshape":
            return x.reshape(node.shape)
        case "roll":
            return np.roll(x, more[1], more[0])
        case "take":
            return np.index_select(x, more[0], args[1]) if m.is_torch else np.take(
                x, args[1], more[0])  # fmt: skip
        case "flip" | "cumsum":
            return getattr(np, node.op)(x, more[0])
    kind, axes, size, step = more  # a window
    for axis in axes:
        end = step * (node.shape[axis] - 1) + 1
        places = [(*[slice(None)] * axis, slice(q, q + end, step)) for q in range(size)]
        x, *others = [x[place] for place in places]
        for piece in others:
            x = x + piece if kind == "sum" else np.maximum(x, piece)
    return x
