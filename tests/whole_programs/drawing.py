"""Random programs, drawn as users write them: recipes for stages, one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from tests.whole_programs.description import (
    FLOATS,
    INTEGERS,
    SIGNED,
    Axis,
    Compute,
    Extern,
    Input,
    Load,
    Number,
    Program,
    ReduceAxis,
    Reduction,
    Result,
    Scalar,
    Scan,
    Size,
    Stage,
    Value,
    apply,
    arith,
    bits,
    cast,
    needed,
    nodes,
    number,
    reads,
    results_of,
)
from tests.whole_programs.numpy_meaning import Unsuitable

T = TypeVar("T")
Shape = tuple[Value, ...]

DTYPES = [
    *["float32"] * 12, *["float64"] * 4, *["float16"] * 3, *["bfloat16"] * 3, *["int32"] * 5,
    *["int8"] * 3, *["uint8"] * 3, *["int64"] * 3, "int16", "uint16", "uint32", "uint64", "bool",
]  # fmt: skip
EXTENTS = [1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 8, 9, 12, 15, 16, 16, 17, 20, 24, 31, 32, 33, 40, 64]
SIZES = [0, 1, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 21, 32, 35]
FUNCTIONS = ["exp", "tanh", "sigmoid", "sin", "cos", "erf", "atan", "asinh", "exp2"]
POSITIONS = ["int32", "int32", "int64", "int16"]
MOST_ELEMENTS = 12_000  # of a tensor
MOST_GRID = 60_000  # of a reduction


class Drawer:
    """Draws one program."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.stages: list[Stage] = []
        self.tensors: list[Result] = []
        self.scalars: list[tuple[str, str, int | float]] = []
        self._count = 0
        calls = random.choice([1, 2, 2])
        names = random.choice([(), (), ("n",), ("n", "m"), ("n",)])
        self.sizes = tuple(
            (name, tuple(random.choice(SIZES) for _ in range(calls))) for name in names
        )
        self.style = random.choice(["whole", "whole", "real", "mixed"])

    # -- Choices ----------------------------------------------------------------------------------

    def choose(self, choices: Sequence[T]) -> T:
        return self.random.choice(choices)

    def maybe(self, chance: float) -> bool:
        return self.random.random() < chance

    def name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    # -- Sizes ------------------------------------------------------------------------------------

    def extents(self, dim: Value) -> list[int]:
        """What a dimension is in each call."""
        calls = len(self.sizes[0][1]) if self.sizes else 1
        return [
            extent_of(dim, {name: values[i] for name, values in self.sizes}) for i in range(calls)
        ]

    def work(self, dims: Sequence[Value]) -> int:
        each = [self.extents(dim) for dim in dims] or [[1]]
        return max(int(math.prod(extents)) for extents in zip(*each, strict=True))

    def least(self, dim: Value) -> int:
        return min(self.extents(dim))

    def dim(self) -> Value:
        """A dimension: constant, a symbol, or an expression of symbols, which may be bounded."""
        if not self.sizes or self.maybe(0.5):
            return number(0 if self.maybe(0.01) else self.choose(EXTENTS))
        size: Value = Size(self.choose(self.sizes)[0])
        match self.choose(["plain"] * 5 + ["more", "times", "parts", "both", "most", "rest"]):
            case "more":
                return arith("add", size, number(self.choose([1, 2, 3, 8])))
            case "times":
                return arith("multiply", size, number(self.choose([2, 3, 4])))
            case "parts":
                by = self.choose([2, 4, 8, 16])
                return apply("floordiv", arith("add", size, number(by - 1)), number(by))
            case "both":
                other = Size(self.choose(self.sizes)[0])
                return arith(self.choose(["add", "multiply"]), size, other)
            case "most":
                return apply("minimum", size, number(self.choose([4, 9, 24])))
            case "rest":
                return arith("subtract", number(max(SIZES) + self.choose([0, 1, 5])), size)
        return size

    def shape(self, rank: int | None = None) -> Shape:
        rank = self.choose([1, 1, 2, 2, 2, 3, 3, 4]) if rank is None else rank
        for _ in range(20):
            dims = tuple(self.dim() for _ in range(rank))
            if self.work(dims) <= MOST_ELEMENTS:
                return dims
        return tuple(number(2) for _ in range(rank))

    # -- Tensors ----------------------------------------------------------------------------------

    def numbers(self, dtype: str) -> str:
        if dtype in FLOATS:
            if self.maybe(0.04):
                return "special"
            real = self.style == "real" or (self.style == "mixed" and self.maybe(0.5))
            return "real" if real else "whole"
        return "any" if self.maybe(0.35) else "whole"

    def input(
        self, shape: Shape, dtype: str, numbers: str = "", bound: Value | None = None
    ) -> Result:
        if self.work(shape) > MOST_ELEMENTS * 3:
            raise Unsuitable("too large an input")
        stage = Input(
            self.name("A"), shape, dtype, numbers or self.numbers(dtype), bound or number(0)
        )
        self.stages.append(stage)
        return results_of(stage)[0]

    def fresh(self, shape: Shape | None = None, dtype: str | None = None) -> Result:
        made = self.input(
            shape if shape is not None else self.shape(), dtype or self.choose(DTYPES)
        )
        self.tensors.append(made)
        return made

    def tensor(self, fits: Callable[[Result], bool] = lambda _: True) -> Result:
        """One that is there, a late one rather than an early one, or a new one."""
        able = [each for each in self.tensors if fits(each)]
        if able and not self.maybe(0.15):
            return able[-1] if self.maybe(0.6) else self.choose(able)
        if self.maybe(0.7) or not able:
            made = self.fresh()
            if fits(made):
                return made
        if not able:
            raise Unsuitable("no tensor")
        return self.choose(able)

    def add(self, stage: Stage) -> None:
        self.stages.append(stage)
        self.tensors += results_of(stage)

    # -- Values -----------------------------------------------------------------------------------

    def constant(self, dtype: str) -> Number:
        if dtype == "bool":
            return Number(self.maybe(0.5), dtype)
        if dtype in FLOATS:
            value = self.choose([0.0, 1.0, -1.0, 2.0, 0.5, -0.25, 3.0, 1.5])
            return Number(value, dtype, plain=dtype == "float32" and self.maybe(0.7))
        value = self.choose([0, 1, 1, 2, 3, 5, 7, 10, 100])
        if dtype in SIGNED and self.maybe(0.3):
            value = -value
        return Number(value, dtype, plain=dtype == "int32" and self.maybe(0.7))

    def scalar(self, dtype: str) -> Scalar:
        name = self.name("p")
        value = self.choose([2.0, 0.5, -3.0]) if dtype in FLOATS else self.choose([1, 3, 7])
        self.scalars.append((name, dtype, value))
        return Scalar(name, dtype)

    def leaf(self, leaves: Sequence[Value], dtype: str) -> Value:
        same = [each for each in leaves if each.dtype == dtype]
        if same and self.maybe(0.75):
            return self.choose(same)
        if leaves and self.maybe(0.75):
            return cast(self.choose(leaves), dtype)
        if dtype in ("float32", "float64", "int32", "int64") and self.maybe(0.1):
            return self.scalar(dtype)
        return self.constant(dtype)

    def value(self, leaves: Sequence[Value], dtype: str, depth: int) -> Value:
        """An expression of a type, over some leaves."""
        if depth <= 0 or self.maybe(0.1):
            return self.leaf(leaves, dtype)
        if self.maybe(0.12):
            return self.choice(leaves, dtype, depth)
        if self.maybe(0.08):
            return cast(self.value(leaves, self.choose(DTYPES), depth - 1), dtype)
        if dtype == "bool":
            return self.condition(leaves, depth)
        make = self.float_value if dtype in FLOATS else self.integer_value
        made = make(leaves, dtype, depth)
        return cast(made, dtype)

    def choice(self, leaves: Sequence[Value], dtype: str, depth: int) -> Value:
        op = self.choose(["select", "if_then_else"])
        condition = self.condition(leaves, 1)
        a, b = (self.value(leaves, dtype, depth - 1) for _ in range(2))
        return cast(apply(op, condition, a, b), dtype)

    def condition(self, leaves: Sequence[Value], depth: int) -> Value:
        if depth > 1 and self.maybe(0.3):
            parts = [self.condition(leaves, depth - 1) for _ in range(2)]
            return apply(self.choose(["all", "any"]), *parts)
        if self.maybe(0.08):
            return apply("not", self.condition(leaves, depth - 1))
        bools = [each for each in leaves if each.dtype == "bool"]
        if bools and self.maybe(0.4):
            return self.choose(bools)
        dtype = self.choose([each.dtype for each in leaves if each.dtype != "bool"] or ["int32"])
        a, b = self.value(leaves, dtype, depth - 1), self.value(leaves, dtype, 0)
        if dtype in FLOATS and self.maybe(0.08):
            return apply(self.choose(["isnan", "isfinite"]), a)
        return apply(self.choose(["lt", "le", "gt", "ge", "eq", "ne"]), a, b)

    def float_value(self, leaves: Sequence[Value], dtype: str, depth: int) -> Value:
        a = self.value(leaves, dtype, depth - 1)
        match self.choose(
            ["two"] * 8 + ["divide", "function", "function", "positive", "step", "sign"]
        ):
            case "two":
                op = self.choose(
                    ["add", "add", "subtract", "multiply", "multiply", "minimum", "maximum"]
                )
                return apply(op, a, self.value(leaves, dtype, depth - 1))
            case "divide":
                if self.maybe(0.5):
                    return apply("divide", a, Number(self.choose([2.0, 4.0, 3.0]), dtype))
                below = apply("absolute", self.leaf(leaves, dtype))
                return apply("divide", a, apply("add", below, Number(1.0, dtype)))
            case "function":
                op = self.choose(
                    ["exp", "tanh", "sigmoid", "sin", "cos", "erf", "atan", "asinh", "exp2"]
                )
                if op in ("exp", "exp2"):
                    a = apply("minimum", a, Number(3.0, dtype))
                return apply(op, a)
            case "positive":
                op = self.choose(["sqrt", "rsqrt", "log", "log2", "log1p"])
                return apply(op, apply("add", apply("absolute", a), Number(0.5, dtype)))
            case "step":
                return apply(self.choose(["floor", "ceil", "trunc", "round", "nearbyint"]), a)
        return apply(self.choose(["negative", "absolute"]), a)

    def integer_value(self, leaves: Sequence[Value], dtype: str, depth: int) -> Value:
        a = self.value(leaves, dtype, depth - 1)
        match self.choose(["two"] * 8 + ["divide"] * 3 + ["shift", "bits", "sign"]):
            case "two":
                op = self.choose(["add", "subtract", "multiply", "minimum", "maximum"])
                return apply(op, a, self.value(leaves, dtype, depth - 1))
            case "divide":
                op = self.choose(["floordiv", "floormod", "truncdiv", "truncmod"])
                divisor: Value = Number(self.choose([1, 2, 3, 4, 7, 8, 56, 100]), dtype)
                if self.maybe(0.3):
                    drawn = self.leaf(leaves, dtype)
                    divisor = drawn if _has_data(drawn) else divisor  # no 0 that is written
                return apply(op, a, divisor)
            case "shift":
                most = bits(dtype) - 1 if _has_data(a) else 2  # indices don't wrap
                by: Value = Number(self.choose([0, 1, 2, 3, most]), dtype)
                if self.maybe(0.3):
                    by = self.leaf([each for each in leaves if each.dtype != "bool"], dtype)
                    by = by if _has_data(by) else Number(1, dtype)
                return apply(self.choose(["shift_left", "shift_right"]), a, by)
            case "bits":
                if self.maybe(0.3):
                    return apply("popcount", a)
                return apply(self.choose(["and", "or", "xor"]), a, self.leaf(leaves, dtype))
        return apply(self.choose(["negative", "absolute", "invert"]), a)

    # -- Reads ------------------------------------------------------------------------------------

    def read(self, tensor: Result, indices: Sequence[Value]) -> Load:
        return Load(tensor.name, tuple(indices), tensor.dtype)

    def beside(self, axes: Sequence[str], shape: Shape) -> Value | None:
        """A read of another tensor whose dimensions are among those of a stage."""
        choices = []
        for tensor in self.tensors:
            indices = self._broadcast(tensor, axes, shape)
            if indices is not None:
                choices.append(self.read(tensor, indices))
        if choices and self.maybe(0.7):
            return choices[-1] if self.maybe(0.4) else self.choose(choices)
        if len(shape) == 0 or self.maybe(0.3):
            return None
        kept = [i for i in range(len(shape)) if self.maybe(0.6)] or [len(shape) - 1]
        if self.work([shape[i] for i in kept]) > MOST_ELEMENTS:
            return None
        made = self.fresh(tuple(shape[i] for i in kept))
        return self.read(made, [Axis(axes[i]) for i in kept])

    def _broadcast(self, tensor: Result, axes: Sequence[str], shape: Shape) -> list[Value] | None:
        """Indices of a tensor by axes of the same extents, in any order; 0 in dimensions of 1."""
        left = list(range(len(shape)))
        indices: list[Value] = []
        for dim in tensor.shape:
            same = [i for i in left if shape[i] == dim]
            if same:
                at = self.choose(same) if self.maybe(0.3) else same[0]
                left.remove(at)
                indices.append(Axis(axes[at]))
            elif self.least(dim) >= 1 and (dim == number(1) or self.maybe(0.1)):
                indices.append(number(0))
            else:
                return None
        return indices

    def leaves(self, axes: Sequence[str], shape: Shape, first: Value) -> list[Value]:
        """What an elementwise body may read."""
        made: list[Value] = [first, first]
        for _ in range(self.choose([0, 1, 1, 2])):
            other = self.beside(axes, shape)
            if other is not None:
                made += [other, other]
        if axes and self.maybe(0.35):
            made += [Axis(self.choose(axes)) for _ in range(self.choose([1, 1, 2, 3]))]
        if axes and self.maybe(0.1) and self.work(shape) < 500:
            called = apply("packed", Axis(self.choose(axes)))
            made += [called, called]
        return made

    def body(self, leaves: Sequence[Value], dtype: str | None = None) -> Value:
        kinds = [each.dtype for each in leaves if not isinstance(each, Axis)]
        wanted = dtype or (self.choose(DTYPES) if self.maybe(0.2) else self.choose(kinds))
        made = self.value(leaves, wanted, self.choose([1, 2, 2, 3]))
        if not any(isinstance(node, Load) for node in nodes(made)):
            made = cast(leaves[0], wanted)
        return made

    # -- Recipes ----------------------------------------------------------------------------------

    def axes(self, count: int) -> tuple[str, ...]:
        return tuple(f"i{i}" for i in range(count))

    def elementwise(self) -> None:
        source = self.tensor()
        order = list(range(len(source.shape)))
        if self.maybe(0.15):
            self.random.shuffle(order)
        shape = tuple(source.shape[i] for i in order)
        axes = self.axes(len(shape))
        first = self.read(source, [Axis(axes[order.index(i)]) for i in range(len(order))])
        leaves = self.leaves(axes, shape, first)
        count = 2 if self.maybe(0.08) else 1
        bodies = tuple(self.body(leaves) for _ in range(count))
        self.add(Compute(tuple(self.name("T") for _ in bodies), axes, shape, bodies))

    def moved(self) -> None:
        """Elements taken from other places: each dimension by a form of its own."""
        source = self.tensor(lambda each: len(each.shape) > 0)
        shape: list[Value] = []
        indices: list[Value] = []
        guards: list[Value] = []
        selected: list[Value] = []
        for dim in source.shape:
            self._place(dim, shape, indices, guards, selected)
        if len(shape) > 4 or self.work(shape) > MOST_ELEMENTS:
            raise Unsuitable("too large")
        axes = self.axes(len(shape))
        first: Value = self.read(source, indices)
        if selected:
            first = self.guarded("select", first, selected)
        if guards:
            first = self.guarded("if_then_else", first, guards)
        self._moved_stage(axes, tuple(shape), first)

    def guarded(self, op: str, value: Value, guards: Sequence[Value]) -> Value:
        condition = guards[0] if len(guards) == 1 else apply("all", *guards)
        return apply(op, condition, value, self.constant(value.dtype))

    def _moved_stage(self, axes: tuple[str, ...], shape: Shape, first: Value) -> None:
        body = first if self.maybe(0.5) else self.body(self.leaves(axes, shape, first))
        self.add(Compute((self.name("M"),), axes, shape, (body,)))

    def _place(
        self,
        dim: Value,
        shape: list[Value],
        indices: list[Value],
        guards: list[Value],
        selected: list[Value],
    ) -> None:
        """How one dimension of the source is indexed, by a new axis or an old one."""
        least = self.least(dim)
        axis = Axis(f"i{len(shape)}")
        forms = ["same"] * 5 + ["reversed", "repeat", "padded", "shifted"]
        if least >= 1:
            forms += ["selected", "constant", "gather", "cycle", "clamp", "sub", "split"]
        if isinstance(dim, Number) and least >= 3:
            forms += ["strided", "strided"]
        same = [i for i, each in enumerate(shape) if each == dim]
        form = "diagonal" if same and self.maybe(0.15) else self.choose(forms)
        match form:
            case "same":
                shape.append(dim)
                indices.append(axis)
            case "diagonal":
                indices.append(Axis(f"i{self.choose(same)}"))
            case "reversed":
                shape.append(dim)
                last = arith("subtract", dim, number(1))
                indices.append(apply("subtract", last, axis))
            case "repeat":
                by = number(self.choose([2, 3]))
                shape.append(arith("multiply", dim, by))
                indices.append(apply("floordiv", axis, by))
            case "padded":
                before, after = self.choose([0, 1, 2, 3]), self.choose([0, 1, 2])
                shape.append(arith("add", dim, number(before + after)))
                index = arith("subtract", axis, number(before))
                indices.append(index)
                if before:
                    guards.append(apply("ge", axis, number(before)))
                if before or after:
                    guards.append(apply("lt", index, dim))
            case "shifted":
                shape.append(dim)
                index = arith("add", axis, number(self.choose([1, 2])))
                indices.append(index)
                guards.append(apply("lt", index, dim))
            case "selected":  # both sides are evaluated: the index stays inside
                shape.append(arith("add", dim, number(1)))
                inside = apply("maximum", arith("subtract", axis, number(1)), number(0))
                indices.append(inside)
                selected.append(apply("ge", axis, number(1)))
            case "constant":
                indices.append(number(self.random.randrange(min(least, 4))))
            case "gather":
                extent = self.dim()
                positions = self.input((extent,), self.choose(POSITIONS), "positions", dim)
                shape.append(extent)
                indices.append(self.read(positions, [axis]))
            case "cycle":
                shape.append(self.dim())
                offset = number(self.choose([0, 0, 1, 5]))
                index = apply("floormod", arith("add", axis, offset), dim)
                if self.maybe(0.3):
                    index = apply("subtract", arith("subtract", dim, number(1)), index)
                indices.append(index)
            case "clamp":
                shape.append(self.dim())
                moved = arith("add", axis, number(self.choose([-2, -1, 1, 3])))
                highest = arith("subtract", dim, number(1))
                indices.append(apply("maximum", apply("minimum", moved, highest), number(0)))
            case "sub":
                begin = self.random.randrange(min(least, 3))
                shape.append(arith("subtract", dim, number(begin)))
                indices.append(arith("add", axis, number(begin)))
            case "strided":
                step, begin = self.choose([2, 2, 3]), self.choose([0, 1])
                shape.append(number((least - begin + step - 1) // step))
                indices.append(arith("add", arith("multiply", axis, number(step)), number(begin)))
            case "split":
                factors = [f for f in (2, 3, 4) if all(e % f == 0 for e in self.extents(dim))]
                if not factors or not isinstance(dim, Number):
                    shape.append(dim)
                    indices.append(axis)
                    return
                inner = self.choose(factors)
                shape += [number(int(dim.value) // inner), number(inner)]
                below = Axis(f"i{len(shape) - 1}")
                indices.append(apply("add", arith("multiply", axis, number(inner)), below))

    def flattened(self) -> None:
        """Two dimensions as one, by // and %."""
        source = self.tensor(lambda each: len(each.shape) >= 2)
        at = self.random.randrange(len(source.shape) - 1)
        a, b = source.shape[at], source.shape[at + 1]
        if self.least(b) < 1:
            raise Unsuitable("a remainder of 0")
        shape = (*source.shape[:at], arith("multiply", a, b), *source.shape[at + 2 :])
        axes = self.axes(len(shape))
        joined = Axis(axes[at])
        indices: list[Value] = [Axis(each) for each in axes]
        both: list[Value] = [apply("floordiv", joined, b), apply("floormod", joined, b)]
        self._moved_stage(
            axes, shape, self.read(source, [*indices[:at], *both, *indices[at + 1 :]])
        )

    def concatenated(self) -> None:
        a = self.tensor(lambda each: len(each.shape) >= 1)
        at = self.random.randrange(len(a.shape))
        able = [
            each
            for each in self.tensors
            if len(each.shape) == len(a.shape)
            and all(
                x == y for i, (x, y) in enumerate(zip(each.shape, a.shape, strict=True)) if i != at
            )
            and (meet(each.dtype, a.dtype))
        ]
        if able and self.maybe(0.7):
            b = self.choose(able)
        else:
            b = self.fresh((*a.shape[:at], self.dim(), *a.shape[at + 1 :]), a.dtype)
        shape = (*a.shape[:at], arith("add", a.shape[at], b.shape[at]), *a.shape[at + 1 :])
        if self.work(shape) > MOST_ELEMENTS:
            raise Unsuitable("too large")
        axes = self.axes(len(shape))
        here: list[Value] = [Axis(each) for each in axes]
        there = list(here)
        there[at] = apply("subtract", here[at], a.shape[at])
        body = apply("if_then_else", apply("lt", here[at], a.shape[at]),
                     self.read(a, here), self.read(b, there))  # fmt: skip
        self._moved_stage(axes, shape, body)

    def reduced(self) -> None:
        """A reduction of one tensor over some of its dimensions."""
        source = self.tensor(lambda each: len(each.shape) >= 1)
        rank = len(source.shape)
        count = min(rank, self.choose([1, 1, 1, 2, 2, 3, 4]))
        over = sorted(self.random.sample(range(rank), count))
        kept = [i for i in range(rank) if i not in over]
        shape = tuple(source.shape[i] for i in kept)
        if self.work(source.shape) > MOST_GRID:
            raise Unsuitable("too large")
        axes = self.axes(len(shape))
        names = [self.name("k") for _ in over]
        indices: list[Value] = []
        for i in range(rank):
            indices.append(Axis(names[over.index(i)] if i in over else axes[kept.index(i)]))
        ranges = tuple(
            self.range(name, source.shape[i], axes, shape)
            for name, i in zip(names, over, strict=True)
        )
        self._reduction_stage(axes, shape, ranges, self.read(source, indices))

    def accumulated(self) -> None:
        """A reduction of all that lies before each element along an axis, or behind it."""
        source = self.tensor(lambda each: len(each.shape) >= 1)
        shape, axes = source.shape, self.axes(len(source.shape))
        place = self.choose(range(len(shape)))
        if self.work(shape) * max(self.extents(shape[place])) > MOST_GRID:
            raise Unsuitable("too large")
        here, dim, k = Axis(axes[place]), shape[place], self.name("k")
        zero, after = number(0), arith("add", here, number(1))
        ends: list[tuple[Value, Value]] = [(zero, after), (zero, here), (here, dim)]
        begin, end = self.choose(ends)
        indices: list[Value] = [Axis(each) for each in axes]
        indices[place] = Axis(k)
        term = self.read(source, indices)
        self._combine(axes, shape, (ReduceAxis(k, begin, end),), term, [term])

    def range(self, name: str, dim: Value, axes: Sequence[str], shape: Shape) -> ReduceAxis:
        """A range within a dimension: the whole, a part, or one that reads axes or data."""
        least = self.least(dim)
        forms = ["whole"] * 9
        if least >= 3:
            forms += ["inside", "inside"]
        if least >= 1:
            forms += ["empty"]
        same = [i for i, each in enumerate(shape) if each == dim]
        if same:
            forms += ["up to", "from"]
        if axes:
            forms += ["data", "least"]
        match self.choose(forms):
            case "inside":
                begin = self.choose([1, 2])
                end = (
                    dim if self.maybe(0.6) else arith("subtract", dim, number(self.choose([0, 1])))
                )
                return ReduceAxis(name, number(begin), end)
            case "empty":
                if self.maybe(0.7):
                    return ReduceAxis(name, number(0), dim)
                return ReduceAxis(name, number(1), number(1))
            case "up to":
                end = arith("add", Axis(axes[self.choose(same)]), number(self.choose([0, 1, 1])))
                return ReduceAxis(name, number(0), end)
            case "from":
                return ReduceAxis(name, Axis(axes[self.choose(same)]), dim)
            case "least":
                at = Axis(self.choose(axes))
                end = apply("minimum", arith("add", at, number(self.choose([1, 2]))), dim)
                return ReduceAxis(name, number(0), end)
            case "data":
                position = self.random.randrange(len(axes))
                more = arith("add", shape[position], number(1))
                offsets = self.input(
                    (more,), self.choose(["int32", "int32", "int64"]), "offsets", dim
                )
                here = Axis(axes[position])
                begin_value = self.read(offsets, [here])
                end_value = self.read(offsets, [apply("add", here, number(1))])
                return ReduceAxis(name, begin_value, end_value)
        return ReduceAxis(name, number(0), dim)

    def _reduction_stage(
        self, axes: tuple[str, ...], shape: Shape, ranges: tuple[ReduceAxis, ...], first: Value
    ) -> None:
        fixed = [each for each in ranges if not _varies(each)]
        grid = (*axes, *(each.name for each in fixed))
        leaves = self.leaves(grid, (*shape, *(each.end for each in fixed)), first)
        source = first if self.maybe(0.4) else self.body(leaves)
        if self.maybe(0.06):
            source = self.condition(leaves, 2)
        self._combine(axes, shape, ranges, source, leaves)

    def _combine(
        self,
        axes: tuple[str, ...],
        shape: Shape,
        ranges: tuple[ReduceAxis, ...],
        source: Value,
        leaves: Sequence[Value],
    ) -> None:
        dtype = source.dtype
        kinds = ["sum"] * 4 + ["min", "max", "max"]
        if dtype == "bool":
            kinds = ["any", "all"]
        elif dtype in INTEGERS:
            kinds += ["xor", "prod", "modular", "capped"]
        if dtype != "bool":
            kinds += ["argmax", "sum_and_max"]
        if dtype == "float32" or dtype == "float64":
            kinds += ["prod", "sums"]
        kind = self.choose(kinds)
        bodies: tuple[Value, ...] = (source,)
        captured: Value | None = None
        if kind == "prod" and dtype in FLOATS:  # factors near 1
            bodies = (
                apply(
                    "add",
                    apply("multiply", apply("tanh", source), Number(0.25, dtype)),
                    Number(1.0, dtype),
                ),
            )
        elif kind == "argmax":
            bodies = (Axis(ranges[0].name, ranges[0].dtype), source)
        elif kind in ("sum_and_max", "sums"):
            bodies = (source, self.body(leaves, dtype))
        elif kind in ("modular", "capped"):
            most = (
                arith("add", Axis(self.choose(axes)), number(2))
                if axes and self.maybe(0.7)
                else number(5)
            )
            captured = cast(most if not isinstance(most, Number) else Number(5, dtype), dtype)
            op = "floormod" if kind == "modular" else "minimum"
            held = apply("and", source, Number(15, dtype))
            bodies = (cast(apply(op, held, captured), dtype),)
        where = self.condition(leaves, 1) if self.maybe(0.15) else None
        init = None
        if self.maybe(0.12) and kind in ("sum", "min", "max", "prod"):
            init = (cast(self.constant(dtype), dtype),)
            same = [t for t in self.tensors if t.dtype == dtype and t.shape == shape]
            if same and self.maybe(0.6):
                init = (self.read(self.choose(same), [Axis(each) for each in axes]),)
            if kind == "prod":
                init = (Number(2, dtype),)
        stage = Compute(
            tuple(self.name("R") for _ in bodies), axes, shape, bodies,
            Reduction(kind, ranges, where, init, captured),
        )  # fmt: skip
        self.add(stage)

    def contracted(self) -> None:
        """A sum of products: matrix products, batched ones, convolutions, and their neighbours."""
        narrow, wide = self.choose([
            *[("float32", "float32")] * 6, *[("float64", "float64")] * 2, ("float16", "float32"),
            ("bfloat16", "float32"), ("int8", "int32"), ("uint8", "int32"), ("int16", "int32"),
            ("int32", "int32"), ("float16", "float16"), ("int64", "int64"), ("float32", "float64"),
        ])  # fmt: skip
        data = [self.dim() for _ in range(self.choose([1, 2, 2, 2, 3, 3, 4]))]
        reduce = [self.dim() for _ in range(self.choose([1, 1, 1, 2, 3]))]
        if self.work([*data, *reduce]) > MOST_GRID or self.work(data) > MOST_ELEMENTS:
            raise Unsuitable("too large")
        axes = self.axes(len(data))
        names = [self.name("k") for _ in reduce]
        labels = [*zip(axes, data, strict=True), *zip(names, reduce, strict=True)]
        factors: list[Value] = []
        for _ in range(self.choose([2, 2, 2, 2, 2, 3, 1])):
            factors.append(self.factor(labels, len(axes), narrow))
        if self.maybe(0.12):  # one without a reduce axis
            factors[-1] = self.factor(labels[: len(axes)], len(axes), narrow)
        ranges = []
        for name, dim in zip(names, reduce, strict=True):
            drawn = self.range(name, dim, axes, tuple(data)) if self.maybe(0.12) else None
            ranges.append(drawn or ReduceAxis(name, number(0), dim))
        body = cast(factors[0], wide)
        for each in factors[1:]:
            body = apply("multiply", body, cast(each, wide))
        where = None
        if self.maybe(0.12):
            where = self.among_places(Axis(names[-1]), Axis(self.choose(axes)))
        reducer = "sum" if self.maybe(0.95) else self.choose(["max", "min"])
        if self.maybe(0.05) and len(factors) == 2:
            op = self.choose(["add", "subtract", "maximum"])
            body = apply(op, cast(factors[0], wide), cast(factors[1], wide))
        init = None
        if self.maybe(0.05):
            init = (Number(1, wide) if wide in INTEGERS else Number(1.0, wide),)
        stage = Compute((self.name("P"),), axes, tuple(data), (body,),
                        Reduction(reducer, tuple(ranges), where, init))  # fmt: skip
        self.add(stage)

    def factor(self, labels: Sequence[tuple[str, Value]], data: int, dtype: str) -> Value:
        """A tensor read by some labels, in some order, by plain indices and by others."""
        mine = [each for each in labels if self.maybe(0.7)]
        if not mine:
            mine = [self.choose(labels)]
        if self.maybe(0.5):
            self.random.shuffle(mine)
        reducing = {name for name, _ in labels[data:]}
        shape: list[Value] = []
        indices: list[Value] = []
        guards: list[Value] = []
        i = 0
        while i < len(mine):
            name, dim = mine[i]
            axis: Value = Axis(name)
            pair = mine[i + 1] if i + 1 < len(mine) else None
            if pair and (name in reducing) != (pair[0] in reducing) and self.maybe(0.35):
                self._window(mine[i], pair, shape, indices, guards)
                i += 2
                continue
            i += 1
            if self.maybe(0.06):
                axis = apply("subtract", arith("subtract", dim, number(1)), axis)
            elif self.maybe(0.05):
                guards.append(apply("lt", arith("add", axis, number(1)), dim))
                axis = arith("add", axis, number(1))
            shape.append(dim)
            indices.append(axis)
        fitting = [t for t in self.tensors if t.shape == tuple(shape) and meet(t.dtype, dtype)]
        tensor = (
            self.choose(fitting) if fitting and self.maybe(0.5) else self.fresh(tuple(shape), dtype)
        )
        value: Value = cast(self.read(tensor, indices), dtype)
        if guards:
            zero = Number(0.0 if dtype in FLOATS else 0, dtype)
            condition = guards[0] if len(guards) == 1 else apply("all", *guards)
            op = "if_then_else"
            value = cast(apply(op, condition, value, zero), dtype)
        elif self.maybe(0.06):
            value = self.value([value], dtype, 1)
        return value

    def _window(
        self,
        a: tuple[str, Value],
        b: tuple[str, Value],
        shape: list[Value],
        indices: list[Value],
        guards: list[Value],
    ) -> None:
        """Two labels in one dimension: ``y * stride + r * dilation``, with padding or without."""
        stride, dilation = self.choose([1, 1, 2, 3]), self.choose([1, 1, 1, 2])
        sum_ = apply(
            "add",
            arith("multiply", Axis(a[0]), number(stride)),
            arith("multiply", Axis(b[0]), number(dilation)),
        )
        if self.maybe(0.3):
            padding = self.choose([0, 1, 2])
            index = arith("subtract", sum_, number(padding))
            dim = self.dim()
            if padding:
                guards.append(apply("ge", index, number(0)))
            guards.append(apply("lt", index, dim))
            shape.append(dim)
            indices.append(index)
            return
        shape.append(
            arith(
                "add",
                arith("multiply", a[1], number(stride)),
                arith("multiply", b[1], number(dilation)),
            )
        )
        indices.append(sum_)

    def among_places(self, k: Value, axis: Value) -> Value:
        """A condition on a step and an element, or on the place that they have in a window."""
        place = arith("add", arith("multiply", axis, number(self.choose([1, 1, 2]))), k)
        return self.choose([
            apply("lt", k, axis), apply("ge", place, number(2)),
            apply("ne", apply("floormod", place, number(3)), number(1)),
        ])  # fmt: skip

    def pooled(self) -> None:
        """A pool over the last dimension of a tensor, padded or not, by a guard or by where=."""
        source = self.tensor(lambda each: 1 <= len(each.shape) <= 3)
        dim, least = source.shape[-1], self.least(source.shape[-1])
        window, stride = self.choose([2, 3]), self.choose([1, 1, 2])
        dilation = self.choose([1, 1, 2])
        count, padding = (least - (window - 1) * dilation - 1) // stride + 1, 0
        if not isinstance(dim, Number) or count < 1 or self.maybe(0.4):
            count, padding = max(least, 1), self.choose([1, 2])
        shape = (*source.shape[:-1], number(count))
        if padding and self.maybe(0.5):
            shape = source.shape
        axes = self.axes(len(shape))
        k = self.name("k")
        at = arith("multiply", Axis(axes[-1]), number(stride))
        index = apply("add", at, arith("multiply", Axis(k), number(dilation)))
        index = arith("subtract", index, number(padding))
        first: Value = self.read(source, [*(Axis(each) for each in axes[:-1]), index])
        ranges = (ReduceAxis(k, number(0), number(window)),)
        if not padding:
            self._reduction_stage(axes, shape, ranges, first)
            return
        inside = [apply("ge", index, number(0)), apply("lt", index, dim)]
        if self.maybe(0.3):
            inside.append(self.among_places(Axis(k), Axis(axes[-1])))
        if self.maybe(0.5):
            first = self.guarded("if_then_else", first, inside)
            self._reduction_stage(axes, shape, ranges, first)
            return
        kind = self.choose(["any"] if source.dtype == "bool" else ["sum", "max", "min"])
        reduction = Reduction(kind, ranges, apply("all", *inside))
        self.add(Compute((self.name("R"),), axes, shape, (first,), reduction))

    def stencil(self) -> None:
        """Neighbours added up without a reduction."""
        source = self.tensor(lambda each: len(each.shape) >= 1 and self.least(each.shape[-1]) >= 3)
        last = arith("subtract", source.shape[-1], number(2))
        shape = (*source.shape[:-1], last)
        axes = self.axes(len(shape))
        outer: list[Value] = [Axis(each) for each in axes[:-1]]
        near = [
            self.read(source, [*outer, arith("add", Axis(axes[-1]), number(d))]) for d in (0, 1, 2)
        ]
        self.add(Compute((self.name("S"),), axes, shape, (self.body(near),)))

    def scanned(self) -> None:
        source = self.tensor(
            lambda each: (
                1 <= len(each.shape) <= 3
                and self.least(each.shape[0]) >= 2
                and each.dtype != "bool"
                and max(self.extents(each.shape[0])) <= 40
            )
        )
        shape, steps = source.shape, self.choose([1, 1, 2])
        axes = self.axes(len(shape))
        name = self.name("C")
        here: list[Value] = [Axis(each) for each in axes]
        first = self.read(source, here)
        before = Load(
            name,
            (apply("subtract", here[0], number(self.choose(range(1, steps + 1)))), *here[1:]),
            source.dtype,
        )
        beside = [first, before, before]
        update = cast(apply(self.choose(["add", "minimum", "maximum", "subtract"]), before,
                            self.value(beside[:1], source.dtype, 1)), source.dtype)  # fmt: skip
        if self.maybe(0.3):
            update = self.value(beside, source.dtype, 2)
        if before not in list(nodes(update)):
            update = apply("add", before, first)
        self.add(Scan(name, axes, shape, steps, first, update))

    def running_sums(self) -> None:
        source = self.tensor(
            lambda each: (
                len(each.shape) == 1 and each.dtype in ("int32", "int64", "float32", "float64")
            )
        )
        self.add(Extern(self.name("E"), source.name, source.shape, source.dtype))

    def softmax(self) -> None:
        """The chain that attention has: a row's greatest, exponentials, their sum, quotients."""
        source = self.tensor(lambda each: len(each.shape) >= 1 and each.dtype in FLOATS)
        shape, rest = source.shape, source.shape[:-1]
        if self.work(shape) > MOST_ELEMENTS or self.least(shape[-1]) < 1:
            raise Unsuitable("no rows")
        axes = self.axes(len(shape))
        here: list[Value] = [Axis(each) for each in axes]
        k, j = self.name("k"), self.name("k")
        most, powers, sums, parts = (self.name(stem) for stem in "RTRT")
        row: list[Value] = here[:-1]
        self.add(Compute((most,), axes[:-1], rest, (self.read(source, [*row, Axis(k)]),),
                         Reduction("max", (ReduceAxis(k, number(0), shape[-1]),))))  # fmt: skip
        dtype = source.dtype
        less = apply("subtract", self.read(source, here), Load(most, tuple(row), dtype))
        self.add(Compute((powers,), axes, shape, (apply("exp", less),)))
        self.add(Compute((sums,), axes[:-1], rest, (Load(powers, (*row, Axis(j)), dtype),),
                         Reduction("sum", (ReduceAxis(j, number(0), shape[-1]),))))  # fmt: skip
        quotient = apply("divide", Load(powers, tuple(here), dtype), Load(sums, tuple(row), dtype))
        self.add(Compute((parts,), axes, shape, (quotient,)))

    # -- Programs ---------------------------------------------------------------------------------

    def program(self) -> Program:
        recipes: list[Callable[[], None]] = [
            *[self.elementwise] * 6, *[self.moved] * 5, self.flattened, self.flattened,
            self.concatenated, *[self.reduced] * 5, *[self.contracted] * 8, *[self.pooled] * 2,
            self.accumulated, self.stencil, self.scanned, self.running_sums, self.softmax,
        ]  # fmt: skip
        wanted = self.choose([1, 1, 2, 2, 2, 3, 3, 4, 6])
        tries = 0
        made = 0
        while made < wanted and tries < 40:
            tries += 1
            before = (list(self.stages), list(self.tensors), list(self.scalars))
            try:
                self.choose(recipes)()
                made += 1
            except Unsuitable:
                self.stages, self.tensors, self.scalars = before
        return self._finished()

    def _finished(self) -> Program:
        """The outputs: what nobody reads, and now and then an intermediate stage."""
        computed = [s for s in self.stages if not isinstance(s, Input)]
        if not computed:
            raise Unsuitable("no stage")
        read = {name for stage in self.stages for name in reads(stage)}
        results = [r.name for stage in computed for r in results_of(stage)]
        ends = [name for name in results if name not in read]
        last = results_of(computed[-1])[0].name
        if self.maybe(0.4):
            ends = [last]
        outputs = [n for n in results if n in ends or (n in read and self.maybe(0.2))]
        program = Program(self.sizes, tuple(self.scalars), tuple(self.stages), tuple(outputs),
                          self.random.getrandbits(30), self.maybe(0.5))  # fmt: skip
        return needed(program)


def meet(a: str, b: str) -> bool:
    """Whether an operator takes the two types: float16 and bfloat16 don't meet."""
    return {a, b} != {"float16", "bfloat16"}


def _has_data(value: Value) -> bool:
    return any(isinstance(node, Load) for node in nodes(value))


def _varies(axis: ReduceAxis) -> bool:
    return any(isinstance(node, (Axis, Load)) for node in nodes((axis.begin, axis.end)))


def extent_of(dim: Value, sizes: dict[str, int]) -> int:
    """An extent, in Python's integers."""
    match dim:
        case Number():
            return int(dim.value)
        case Size():
            return sizes[dim.name]
    a, b = (extent_of(each, sizes) for each in dim.args)  # type: ignore[union-attr]
    op = dim.op  # type: ignore[union-attr]
    return {
        "add": a + b,
        "subtract": a - b,
        "multiply": a * b,
        "floordiv": a // b if b else 0,
        "minimum": min(a, b),
    }[op]


def draw_program(seed: int) -> Program:
    """The program of a seed."""
    random = Random(seed)
    while True:
        try:
            return Drawer(random).program()
        except Unsuitable:
            continue
