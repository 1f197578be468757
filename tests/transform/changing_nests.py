"""Loop nests that write what their guards, bounds, names and indices read, drawn at random."""

from __future__ import annotations

from random import Random
from typing import Any, final

import numpy as np
from hypothesis import strategies as st

from minitvm.runtime.dtype import HANDLE, INT32, INT64
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import Buffer, BufferRef, Call, PrimExpr, StringImm, Var, const
from minitvm.tir.functor import walk_once
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import BufferStore, ForKind, PrimFunc, Stmt
from tests.tir.programs import likely

ROWS, COLUMNS, NUMBERS = 6, 40, 4
Array = np.ndarray[Any, Any]
# Of which sums and products wrap.
_EXTREME = (-(2**31), -(2**31) + 5, -(2**30), 2**30, 2**30 + 3, 2**31 - 3, 2**31 - 1)
DOUBLE = "tests.double"  # a packed function that doubles, and counts up, what it is given


def double(numbers: Any) -> int:
    """Changes an array in place; its first number before."""
    array = np.from_dlpack(numbers)
    before = int(array[0])
    array[0] = before * 2 % 7 + 1
    return before


@final
class ChangingNest:
    """Draws a function of A (floats), N (small integers) and W (how often ``while`` has run)."""

    def __init__(self, numbers: Random, *, calls: bool = True, lanes: bool = False):
        self._numbers = numbers
        self._calls = calls
        self._lanes = lanes
        self.a = decl_buffer((ROWS, COLUMNS), "float32", "A")
        self.n = decl_buffer((NUMBERS,), "int32", "N")
        self.w = decl_buffer((1,), "int32", "W")
        self._count = 0
        self._local: list[Buffer] = []
        body = self._block((), self._small(3, 5))
        buffers = {each.data: each for each in (self.a, self.n, self.w)}
        self.func = PrimFunc(tuple(buffers), body, buffers, "changing")
        self.start = [self._one(*[*range(-1, 10)] * 2, *_EXTREME) for _ in range(NUMBERS)]

    def __repr__(self) -> str:
        return f"{self.start}:\n{self.func}"

    def arguments(self) -> list[Array]:
        a = np.arange(ROWS * COLUMNS, dtype="float32").reshape(ROWS, COLUMNS)
        return [a, np.array(self.start, "int32"), np.zeros(1, "int32")]

    def run(self, func: PrimFunc) -> list[Array]:
        """What the function, or another made of it, does to the arguments."""
        arguments = self.arguments()
        interpret(func, *arguments, packed={DOUBLE: double})
        return arguments

    def calls_out(self) -> bool:
        return any(
            isinstance(each, Call) and each.op in ("call_packed", "call_extern")
            for each in walk_once(self.func.body)
        )

    # -- drawing --

    def _one(self, *choices: Any) -> Any:
        return choices[self._small(0, len(choices) - 1)]

    def _small(self, low: int, high: int) -> int:
        return self._numbers.randint(low, high)

    def _name(self, name: str) -> Var:
        self._count += 1
        return Var(f"{name}{self._count}")

    # -- expressions --

    def _number(self, names: tuple[Var, ...], depth: int = 2) -> PrimExpr:
        """A small integer."""
        kinds = ["constant", "element", "element"] + ["name"] * min(3, len(names))
        if depth > 0:
            kinds += ["sum", "difference", "quotient", "remainder", "least", "choice", "times"]
            if self._calls and self._small(0, 1):
                kinds.append("call")
        kind = self._one(*kinds)
        if kind == "constant":
            return const(self._small(-2, 9))
        if kind == "name":
            return self._one(*names)  # type: ignore[no-any-return]  # a variable
        if kind == "element":
            return self.n[self._place(names, NUMBERS, depth)]
        if kind == "call":
            return Call(INT32, "call_packed", (StringImm(DOUBLE), BufferRef(self.n))) % 5
        x, y = self._number(names, depth - 1), self._number(names, 0)
        match kind:
            case "sum":
                return x + y
            case "difference":
                return x - y
            case "times":
                return x * self._small(-2, 8)
            case "quotient":
                return x // self._small(1, 8)
            case "remainder":
                return x % self._small(1, 8)
            case "choice":
                condition = self._condition(names, depth - 1)
                return Call(INT32, "if_then_else", (condition, x, y))
        return self._one(e.minimum, e.maximum)(x, y)  # type: ignore[no-any-return]  # a number

    def _place(self, names: tuple[Var, ...], extent: int, depth: int) -> PrimExpr:
        """An index inside."""
        if depth <= 0 or self._small(0, 2) == 0:
            return const(self._small(0, extent - 1))
        number = self._number(names, depth - 1)
        if self._small(0, 1):
            return number % extent
        return e.maximum(0, e.minimum(number, extent - 1))

    def _condition(self, names: tuple[Var, ...], depth: int = 2) -> PrimExpr:
        compare = self._one(e.less, e.less, e.less, e.less_equal, e.greater, e.equal, e.not_equal)
        made: PrimExpr = compare(self._number(names, depth - 1), self._number(names, 0))
        if depth > 0 and self._small(0, 4) == 0:
            other = self._condition(names, depth - 1)
            made = self._one(e.logical_and, e.logical_or)(made, other)
        return made

    def _guard(self, names: tuple[Var, ...]) -> PrimExpr:
        """Mostly ``names + c < N[k]``."""
        if not names or self._small(0, 3) == 0:
            made = self._condition(names)
        else:
            made = self._below(names)
        return likely(made) if self._small(0, 2) and not isinstance(made, e.IntImm) else made

    # -- statements --

    def _block(self, names: tuple[Var, ...], depth: int) -> Stmt:
        """Mostly one statement; the innermost are two, of which one changes what is read."""
        if depth <= 0:
            made = [self._store(names), self._change(names)][:: self._one(1, -1)]
            return made[0] if self._small(0, 3) == 0 else s.seq(*made)
        made = [self._around(names, depth)]
        if self._small(0, 2) == 0:
            made.insert(self._one(0, 1), self._change(names))
        return s.seq(*made)

    def _around(self, names: tuple[Var, ...], depth: int) -> Stmt:
        kinds = (
            ["panels"] * 5 + ["loop"] * 4 + ["if"] * 3 + ["let", "let", "while", "local", "assert"]
        )
        match self._one(*kinds):
            case "panels":
                return self._panels(names, depth)
            case "loop":
                return self._loop(names, depth)
            case "if":
                other = self._block(names, 0) if self._small(0, 3) == 0 else None
                return s.IfThenElse(self._guard(names), self._block(names, depth - 1), other)
            case "let":
                var = self._name("x")
                value = self._number(names)
                return s.LetStmt(var, value, self._block((*names, var), depth - 1))
            case "while":
                more = e.logical_and(self._condition(names), self.w[0] < 20)
                count = BufferStore(self.w, self.w[0] + 1, (const(0),))
                return s.While(more, s.seq(self._block(names, depth - 1), count))
            case "assert":
                holds = e.logical_or(self._condition(names), self.w[0] >= 0)
                return s.AssertStmt(holds, "never", self._block(names, depth - 1))
        return self._allocated(names, depth)

    def _change(self, names: tuple[Var, ...]) -> Stmt:
        """A store to what guards and bounds read."""
        if self._calls and self._small(0, 4) == 0:
            return s.Evaluate(self._cleared())
        value = e.maximum(-2, e.minimum(self._number(names, 1), 9))
        return BufferStore(self.n, value, (self._place(names, NUMBERS, 1),))

    def _store(self, names: tuple[Var, ...]) -> Stmt:
        value = e.cast("float32", self._number(names))
        place = self._place(names, ROWS, 2), self._place(names, COLUMNS, 2)
        if self._small(0, 1):
            value = value + self.a[self._place(names, ROWS, 1), self._place(names, COLUMNS, 1)]
        return BufferStore(self.a, value, place)

    def _cleared(self) -> PrimExpr:
        """The call of a C function that writes a number."""
        pointer = Call(
            HANDLE,
            "tvm_access_ptr",
            (BufferRef(self.n), const(self._small(0, NUMBERS - 1), "int64"), const(1, "int64"),
             const(3)),
        )  # fmt: skip
        zero, size = const(0), const(4, INT64)
        return Call(HANDLE, "call_extern", (StringImm("memset"), pointer, zero, size))

    def _panels(self, names: tuple[Var, ...], depth: int) -> Stmt:
        """Loops as a split leaves them, all guards inside."""
        loops = [self._name("p") for _ in range(self._small(2, 4))]
        inside = (*names, *loops)
        body = self._block(inside, depth - len(loops))
        for _ in range(self._small(1, 2)):
            body = s.IfThenElse(likely(self._below(inside)), body)
        extents = self._one([32, 2, 4, 2], [8, 4, 4, 2], [2, 4, 2, 8])
        for extent, var in zip(extents, reversed(loops), strict=False):
            body = s.For(var, const(0), const(extent), ForKind.SERIAL, body)
            if self._small(0, 5) == 0:
                body = s.LetStmt(self._name("x"), self._number(names), body)
        return body

    def _below(self, names: tuple[Var, ...]) -> PrimExpr:
        """``i * 4 + j < N[k]``"""
        place = self._one(*names) * self._small(1, 3) + self._small(-2, 2)
        if self._small(0, 1):
            place = place + self._one(*names) * self._one(1, 4, -1)
        made: PrimExpr = place < self._number(names, 1)
        return made

    def _loop(self, names: tuple[Var, ...], depth: int) -> Stmt:
        var = self._name("i")
        begin: PrimExpr = const(0)
        if self._small(0, 4) == 0:
            begin = self._number(names, 1)
        extent: PrimExpr = const(self._one(1, 2, 4, 6, 8))
        kind = self._one(ForKind.SERIAL, ForKind.SERIAL, ForKind.SERIAL, ForKind.UNROLLED)
        if self._lanes and self._small(0, 1):
            kind = ForKind.VECTORIZED
        if kind == ForKind.SERIAL and self._small(0, 2) == 0:
            extent = e.minimum(self._number(names, 1), 6)
        body = self._block((*names, var), depth - 1)
        for _ in range(self._small(0, 2)):
            body = s.IfThenElse(self._guard((*names, var)), body)
        return s.For(var, begin, extent, kind, body)

    def _allocated(self, names: tuple[Var, ...], depth: int) -> Stmt:
        """Numbers of its own, all of them written at first."""
        buffer = decl_buffer((NUMBERS,), "int32", f"L{self._count}")
        var = self._name("j")
        store = BufferStore(buffer, self._number((*names, var), 1), (var,))
        fill = s.For(var, const(0), const(NUMBERS), ForKind.SERIAL, store)
        outer, self.n = self.n, buffer
        body = self._block(names, depth - 1)
        self.n = outer
        keep = BufferStore(outer, buffer[0] % 9, (const(0),))
        return s.Allocate(buffer, s.seq(fill, body, keep))


def changing_nests(**options: bool) -> st.SearchStrategy[ChangingNest]:
    """Programs whose order matters everywhere. Each comes from one number: they aren't shrunk, and
    take less time to draw than to run."""
    return st.integers(0, 2**32).map(lambda seed: ChangingNest(Random(seed), **options))
