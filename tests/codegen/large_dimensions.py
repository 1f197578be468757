"""Programs with dimensions near the limits of 32 and 64 bits, and what Python's integers say of
them. ``python -m tests.codegen.large_dimensions SEED COUNT`` tries COUNT of them."""

from __future__ import annotations

import mmap
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import minitvm as tvm
from minitvm import CompileError, te, tir
from minitvm.tir.expr import PrimExpr, Var, promote

MAP_NORESERVE = 0x4000
MOST_MAPPED = 1 << 42
LARGE = 1 << 55  # where bounds of what is computed may begin to reach 2**62


def mapped(size: int) -> Any:
    """`size` bytes, which take memory only where they are written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), "int8")


def repeated(size: int) -> Any:
    """`size` bytes that are one."""
    return np.broadcast_to(np.int8(0), (size,))


def array(size: int) -> Any:
    return mapped(size) if 0 < size <= MOST_MAPPED else repeated(size)


@dataclass
class Value:
    """An expression, the integer that it is, and one that no step of it is more than. What is made
    of data wraps; `most` is that of the index arithmetic in it."""

    expr: Any
    exact: int
    most: int
    is_data: bool = False


def wrapped(value: int, bits: int) -> int:
    return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


@dataclass
class Program:
    """What is drawn: variables with their values, and expressions of them."""

    random: random.Random
    sizes: list[tuple[Var, int]] = field(default_factory=list)
    scalars: list[tuple[Var, int]] = field(default_factory=list)
    data: list[tuple[Any, list[int]]] = field(default_factory=list)

    def draw_variables(self) -> None:
        draw = self.random
        for name in "nm":
            bits = draw.choice((32, 32, 64))
            power = draw.choice((4, 16, 28, 29, 30, 31) if bits == 32 else (3, 31, 32, 40, 60, 62))
            near = (1 << power) + draw.randint(-3, 3)
            value = draw.choice((0, 1, near, near, near, near))
            value = max(0, min(value, (1 << (bits - 1)) - 1))
            self.sizes.append((te.var(name, f"int{bits}"), value))
        value = draw.choice((-3, 0, 5, 1 << 20, -(1 << 31), (1 << 31) - 1))
        self.scalars.append((te.var("k"), value))

    def leaf(self) -> Value:
        if self.random.random() < 0.3:
            number = self.random.choice((1, 2, 3, 4, 15, 64, 4096))
            return Value(number, number, number)
        choices = self.sizes * 3 + self.scalars
        var, value = self.random.choice(choices)
        return Value(var, value, abs(value))

    def value(self, depth: int) -> Value:
        if depth == 0:
            return self.leaf()
        a, b, c = self.value(depth - 1), self.leaf(), self.random.choice((2, 3, 16))
        match self.random.choice("+-***/%<>s^&?"):
            case "+":
                return Value(a.expr + b.expr, a.exact + b.exact, a.most + b.most)
            case "-":
                return Value(a.expr - b.expr, a.exact - b.exact, a.most + b.most)
            case "*":
                return Value(a.expr * b.expr, a.exact * b.exact, a.most * b.most + a.most + b.most)
            case "/":
                return Value(a.expr // c, a.exact // c, a.most)
            case "%":
                return Value(a.expr % c, a.exact % c, a.most)
            case "<":
                return Value(te.min(a.expr, b.expr), min(a.exact, b.exact), a.most + b.most)
            case ">":
                return Value(te.max(a.expr, b.expr), max(a.exact, b.exact), a.most + b.most)
            case "s":
                return Value(as_expr(a.expr) << 2, a.exact << 2, a.most << 2)
            case "^":
                return Value(as_expr(a.expr) >> 3, a.exact >> 3, a.most)
            case "&":
                return Value(as_expr(a.expr) + 15 & -16, a.exact + 15 & -16, a.most * 4 + 64)
        chosen = a if a.exact < b.exact else b
        condition = as_expr(a.expr) < b.expr
        expr = tir.if_then_else(condition, *promote(a.expr, b.expr))
        return Value(expr, chosen.exact, a.most + b.most)

    def element(self) -> Value:
        """An element of the data, or a leaf of index arithmetic."""
        if self.random.random() < 0.4:
            return self.leaf()
        tensor, numbers = self.random.choice(self.data)
        at = self.random.randrange(len(numbers))
        return Value(tensor[at], numbers[at], 0, is_data=True)

    def mixed(self, depth: int) -> Value:
        """An expression of data and of index arithmetic."""
        if depth == 0:
            return self.element()
        a, b = self.mixed(depth - 1), self.element()
        x, y = promote(as_expr(a.expr), as_expr(b.expr))
        made, exact = _MIXED[self.random.choice([*_MIXED])](x, y, a.exact, b.exact)
        is_data = a.is_data or b.is_data
        if is_data:
            exact = wrapped(exact, made.dtype.bits)
        most = max(a.most, 1) * max(b.most, 1) + a.most + b.most
        return Value(made, exact, 4 * most, is_data)

    def binding(self) -> tuple[list[Any], list[Any]]:
        """Parameters that bind the variables, and arguments for them."""
        tensors = [te.placeholder((var,), "int8", var.name.upper()) for var, _ in self.sizes]
        params = [*tensors, *(var for var, _ in self.scalars)]
        return params, [repeated(v) for _, v in self.sizes] + [v for _, v in self.scalars]


def _quotient(a: int, b: int) -> int:
    return a // b if b else 0


def _towards_zero(a: int, b: int) -> int:
    return _quotient(abs(a), abs(b)) * (1 if (a < 0) == (b < 0) else -1)


# Of two expressions and their values: an expression, and its value before it wraps.
_MIXED: dict[str, Callable[[PrimExpr, PrimExpr, int, int], tuple[Any, int]]] = {
    "+": lambda x, y, a, b: (x + y, a + b),
    "-": lambda x, y, a, b: (x - y, a - b),
    "*": lambda x, y, a, b: (x * y, a * b),
    "<<": lambda x, y, a, b: (x << 2, a << 2),
    ">>": lambda x, y, a, b: (x >> 3, a >> 3),
    "//": lambda x, y, a, b: (x // y, _quotient(a, b)),
    "/": lambda x, y, a, b: (te.truncdiv(x, y), _towards_zero(a, b)),
    "%": lambda x, y, a, b: (x % y, a - _quotient(a, b) * b if b else 0),
    "min": lambda x, y, a, b: (te.min(x, y), min(a, b)),
    "max": lambda x, y, a, b: (te.max(x, y), max(a, b)),
    "if": lambda x, y, a, b: (te.if_then_else(x < y, y, x), b if a < b else a),
    "- +": lambda x, y, a, b: (x - y + y, a),
}


def as_expr(value: Any) -> PrimExpr:
    return value if isinstance(value, PrimExpr) else te.const(value)


# -- Where an expression stands -------------------------------------------------------------------


def call(function: Any, *args: Any) -> str:
    """Whether a call succeeds."""
    try:
        function(*args)
    except MemoryError:
        return "memory"
    except ValueError as error:
        return "limit" if "2**62" in str(error) else "refused"
    except IndexError:
        return "refused"
    return "done"


def require(verdict: str, expected: str, value: Value) -> None:
    if verdict == "limit":
        assert value.most >= LARGE, f"{value}: expected {expected}, got a limit"
        return
    assert verdict == expected, f"{value}: expected {expected}, got {verdict}"


def others(size: int) -> list[int]:
    """What might be taken for `size`."""
    near = {size + 1, size - 1, wrapped(size, 32), wrapped(size, 64), abs(wrapped(size, 32)), 8}
    return sorted(each for each in near if each != size and 0 <= each < 1 << 62)


def build(outputs: Any, params: list[Any]) -> Any:
    return tvm.build(te.create_schedule(outputs.op), params, name="f", auto_schedule=False)


def as_input(program: Program, value: Value) -> None:
    """An argument of that shape, of which the first and the last element are read."""
    params, args = program.binding()
    Y = te.placeholder((value.expr,), "int8", "Y")
    B = te.compute((2,), lambda i: Y[i * (value.expr - 1)], name="B")
    f = build(B, [*params, Y, B])
    for size in others(value.exact):
        verdict = call(f, *args, array(size), np.zeros(2, "int8"))
        require("refused" if verdict == "limit" else verdict, "refused", value)
    if not 1 <= value.exact < 1 << 62:
        return
    y, b = array(value.exact), np.zeros(2, "int8")
    if value.exact <= MOST_MAPPED:
        y[-1], y[0] = 5, 3
    verdict = call(f, *args, y, b)
    require(verdict, "done", value)
    if verdict == "done":
        assert b.tolist() == [y[0], y[-1]], value


def as_output(program: Program, value: Value) -> None:
    """An output of that shape, whose first and last element are written by hand."""
    params, args = program.binding()

    def body(ins: Any, outs: Any) -> Any:
        ib = tir.ir_builder.create()
        out = ib.buffer_ptr(outs[0])
        with ib.if_scope(as_expr(value.expr) >= 1):
            out[0] = te.const(3, "int8")
            out[value.expr - 1] = te.const(5, "int8")
        return ib.get()

    E = te.extern((value.expr,), params[:2], body, dtype="int8", name="E")
    f = build(E, [*params, E])
    for size in others(value.exact):
        if size <= MOST_MAPPED:
            verdict = call(f, *args, np.zeros(0, "int8") if size == 0 else mapped(size))
            require("refused" if verdict == "limit" else verdict, "refused", value)
    if not 2 <= value.exact <= MOST_MAPPED:
        return
    y = mapped(value.exact)
    verdict = call(f, *args, y)
    require(verdict, "done", value)
    if verdict == "done":
        assert (y[0], y[-1]) == (3, 5), value


def as_workspace(program: Program, value: Value) -> None:
    """Memory of that size; and one of twice as many elements of 4 bytes."""
    params, args = program.binding()
    wide = program.random.random() < 0.5

    def body(ins: Any, outs: Any) -> Any:
        ib = tir.ir_builder.create()
        shape = (2, value.expr) if wide else (value.expr,)
        space = ib.allocate("int32" if wide else "int8", shape, "space")
        out = ib.buffer_ptr(outs[0])
        first, last = ((0, 0), (1, value.expr - 1)) if wide else (0, value.expr - 1)
        out[0] = te.const(-1, "int8")
        with ib.if_scope(as_expr(value.expr) >= 2):
            space[first] = te.const(3, "int32" if wide else "int8")
            space[last] = te.const(5, "int32" if wide else "int8")
            out[0] = (space[first] * 10 + space[last]).astype("int8")
        return ib.get()

    E = te.extern((1,), params[:2], body, dtype="int8", name="E")
    f = build(E, [*params, E])
    found = np.zeros(1, "int8")
    verdict = call(f, *args, found)
    size = max(value.exact, 0) * (8 if wide else 1)
    if verdict == "limit" or size > 1 << 38:
        require(verdict, "memory", value)
    elif verdict == "memory":  # on a small machine
        assert size > 1 << 31, value
    else:
        require(verdict, "done", value)
        assert found[0] == (35 if value.exact >= 2 else -1), value


def as_stage(program: Program, value: Value) -> None:
    """A stage that stays in a workspace: of no elements, of few, or of too many."""
    if 4096 < value.exact < 1 << 38:
        value = Value(value.expr * (1 << 30), value.exact << 30, value.most << 30)
    params, args = program.binding()
    P = te.compute((value.expr,), lambda i: (i % 100).astype("int8"), name="P")
    B = te.compute((2,), lambda i: P[i * (value.expr - 1)] + te.const(1, "int8"), name="B")
    f = build(B, [*params, B])
    b = np.zeros(2, "int8")
    verdict = call(f, *args, b)
    if value.exact > 1 << 37:
        require(verdict, "memory", value)
    else:
        require(verdict, "done" if value.exact >= 1 else "refused", value)
    if verdict == "done":
        assert b.tolist() == [1, (value.exact - 1) % 100 + 1], value


def as_guard(program: Program, value: Value) -> None:
    """A condition, under which an element is read that there is only then."""
    params, args = program.binding()
    other = program.value(1)
    A = te.placeholder((4,), "int8", "A")

    def element(i: Any) -> Any:
        less = as_expr(other.expr) * i + value.expr < i * 3
        return te.if_then_else(less, te.const(1, "int8"), A[i])

    B = te.compute((4,), element, name="B")
    f = build(B, [*params, A, B])
    a, b = np.arange(10, 14, dtype="int8"), np.zeros(4, "int8")
    verdict = call(f, *args, a, b)
    most = Value(None, 0, other.most * 4 + value.most)
    require(verdict, "done", most)
    if verdict == "done":
        holds = [other.exact * i + value.exact < i * 3 for i in range(4)]
        assert b.tolist() == [1 if h else 10 + i for i, h in enumerate(holds)], (value, other)


def as_data(program: Program, value: Value) -> None:
    """A number that is stored, modulo what its dtype holds."""
    params, args = program.binding()
    expr = as_expr(value.expr)
    B = te.compute((1,), lambda i: expr, name="B")
    f = build(B, [*params, B])
    b = np.zeros(1, B.dtype)
    verdict = call(f, *args, b)
    require(verdict, "done", value)
    if verdict == "done":
        assert b[0] == wrapped(value.exact, expr.dtype.bits), value


def as_range(program: Program, value: Value) -> None:
    """Where a sum begins, and how far a reduction goes."""
    params, args = program.binding()
    expr = as_expr(value.expr)
    k = te.reduce_axis((expr, expr + 3), "k")
    one = te.const(1, "int64")
    B = te.compute((1,), lambda i: te.sum(k.var.astype("int64") * one, axis=k), name="B")
    f = build(B, [*params, B])
    b = np.zeros(1, "int64")
    verdict = call(f, *args, b)
    require(verdict, "done", value)
    if verdict == "done":
        assert b[0] == wrapped(3 * value.exact + 3, 64), value


def as_strides(program: Program, value: Value) -> None:
    """The stride of an argument, and the place of an element behind it."""
    params, args = program.binding()
    if not 1 <= value.exact <= MOST_MAPPED // 4:
        return
    Y = te.placeholder((2, 3), "int8", "Y")
    layout = tir.decl_buffer((2, 3), "int8", "Y", strides=[value.expr + 3, 1])
    B = te.compute((2,), lambda i: Y[i, 2], name="B")
    s = te.create_schedule(B.op)
    f = tvm.build(s, [*params, Y, B], name="f", binds={Y: layout}, auto_schedule=False)
    memory, b = mapped(value.exact + 6), np.zeros(2, "int8")
    rows = np.lib.stride_tricks.as_strided(memory, (2, 3), (value.exact + 3, 1))
    memory[2], memory[value.exact + 5] = 3, 5
    verdict = call(f, *args, rows, b)
    require(verdict, "done", value)
    if verdict == "done":
        assert b.tolist() == [3, 5], value
    other = np.lib.stride_tricks.as_strided(memory, (2, 3), (3, 1))
    assert call(f, *args, other, b) in ("refused", "limit"), value


def beside_data(program: Program, _: Value) -> None:
    """Data and index arithmetic in one expression: compared, widened, and as an index."""
    draw = program.random
    for bits in (32, 64):
        least = -(1 << (bits - 1))
        numbers = [
            least,
            -1,
            -least - 1,
            draw.choice((0, 1, -2, 7, least // 2, 46341, -least // 3)),
        ]
        program.data.append((te.placeholder((4,), f"int{bits}", f"D{bits}"), numbers))
    value = program.mixed(draw.choice((1, 2, 2, 3)))
    expr = as_expr(value.expr)
    number, dtype = draw.choice((0, 5, -3, 1 << 30)), expr.dtype
    T = te.placeholder((5,), "int8", "T")
    made = [
        te.compute((3,), lambda i: te.if_then_else(expr < i + number, 1, 0), name="compared"),
        te.compute((3,), lambda i: expr.astype("int64"), name="widened"),
        te.compute((3,), lambda i: T[te.floormod(expr, te.const(5, dtype))], name="index"),
        te.compute((3,), lambda i: expr, name="stored"),
    ]
    params, args = program.binding()
    tensors = [tensor for tensor, _ in program.data]
    f = tvm.build(made, [*params, *tensors, T, *made], name="f", auto_schedule=False)
    found = [np.zeros(3, each.dtype) for each in made]
    data = [np.array(numbers, tensor.dtype) for tensor, numbers in program.data]
    verdict = call(f, *args, *data, np.arange(5, dtype="int8"), *found)
    require(verdict, "done", value)
    if verdict == "done":
        exact = value.exact
        assert found[0].tolist() == [int(exact < i + number) for i in range(3)], value
        assert found[1].tolist() == [wrapped(exact, 64)] * 3, value
        assert found[2].tolist() == [exact % 5] * 3, value
        assert found[3].tolist() == [wrapped(exact, dtype.bits)] * 3, value


PLACES: tuple[Callable[[Program, Value], None], ...] = (
    as_input, as_output, as_workspace, as_stage, as_guard, as_data, as_range, as_strides,
    beside_data, beside_data, beside_data,
)  # fmt: skip


def main(seed: int, count: int) -> None:
    for number in range(seed, seed + count):
        program = Program(random.Random(number))
        program.draw_variables()
        value = program.value(program.random.choice((1, 1, 2, 3)))
        place = program.random.choice(PLACES)
        print(number, place.__name__, program.sizes, program.scalars, value, flush=True)
        try:
            place(program, value)
        except CompileError as error:
            known = "must stay in [0, " in str(error) or "no negative extent" in str(error)
            assert known and value.exact < 1, (error, value)  # a constant


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
