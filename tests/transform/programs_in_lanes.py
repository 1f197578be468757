"""Random loops to vectorize, for hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from minitvm.runtime.dtype import BOOL, FLOAT32, HANDLE, INT32, INT64, DType
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import Buffer, Call, PrimExpr, Var, const
from minitvm.tir.stmt import BufferStore, ForKind, PrimFunc, Stmt

SIZE = 300  # of each dimension: larger than any index made below
ROWS = 4


class Program:
    """Draws a function with a vectorized loop around a random body.

    Parameters are X (read only), Y and Z of one dtype, and P of integers in ``[0, ROWS)``.
    """

    def __init__(self, draw: Callable[[Any], Any], dtype: DType) -> None:
        self._draw = draw
        self._dtype = dtype
        self.x = decl_buffer((SIZE,), dtype, "X")
        self.y = decl_buffer((SIZE,), dtype, "Y")
        self.z = decl_buffer((ROWS, SIZE), dtype, "Z")
        self.p = decl_buffer((SIZE,), "int32", "P")
        self._private: list[Buffer] = []
        self._lets: list[Var] = []
        self._count = 0
        self.lane, self.outer = Var("v"), Var("i")
        self._inner: list[Var] = []
        lanes = draw(st.integers(1, 33))
        begin = draw(st.sampled_from([const(0), const(3), self.outer * lanes]))
        body = self._statement(3)
        loop = s.For(self.lane, begin, const(lanes), ForKind.VECTORIZED, body)
        nest = s.For(self.outer, const(0), const(2), ForKind.SERIAL, loop)
        tensors = (self.x, self.y, self.z, self.p)
        self.func = PrimFunc(
            tuple(b.data for b in tensors), nest, {b.data: b for b in tensors}, "f"
        )

    def _one(self, *choices: Any) -> Any:
        return self._draw(st.sampled_from(choices))

    def _name(self, name: str) -> str:
        self._count += 1
        return f"{name}{self._count}"

    # -- expressions --

    def _index(self) -> PrimExpr:
        """From 0 to SIZE - 1, mostly affine."""
        lane, outer = self.lane, self.outer
        inner = self._one(const(0), *self._inner)
        return self._one(  # type: ignore[no-any-return]  # hypothesis draws Any
            lane, lane, lane, lane + outer * 40, lane * 2 + inner, lane + self._one(0, 1, 4, 33),
            120 - lane, e.floordiv(lane, self._one(2, 7)), e.floormod(lane, self._one(3, 64)),
            e.floordiv(outer * 64 + lane, 64), e.floormod(outer * 64 + lane, 64),
            inner, const(7), lane * 3 - lane * 2, self.p[lane], lane + self.p[lane],
            lane * 4 + inner + outer, e.Cast(INT32, e.Cast(INT64, lane)),
            e.Cast(INT64, lane * 2 + inner),
        )  # fmt: skip

    def _row(self) -> PrimExpr:
        inner = self._one(const(0), *self._inner)
        return self._one(const(1), inner, self.p[self._index()], e.floormod(self.lane, ROWS))  # type: ignore[no-any-return]

    def _load(self) -> PrimExpr:
        which = self._one("x", "x", "y", "z", "private")
        if which == "z":
            return self.z[self._row(), self._index()]
        if which == "private" and self._private:
            return self._one(*self._private)[e.floormod(self._index(), 4)]  # type: ignore[no-any-return]
        return (self.y if which == "y" else self.x)[self._index()]

    def _condition(self) -> PrimExpr:
        lane = self.lane
        made: PrimExpr = self._one(
            lane < self._one(0, 1, 5, 100), lane + self.outer * 7 >= 5, lane * 2 < 9,
            self.outer < 1, lane > self.outer, e.EQ(e.floormod(lane, const(2)), const(0)),
            self.p[lane] > 1, e.NE(lane, const(4)), 20 - lane * 3 > self.outer,
        )  # fmt: skip
        if self._one(False, False, True):
            made = e.And(made, self._condition())
        return self._one(made, made, e.Not(made), Call(BOOL, "likely", (made,)))  # type: ignore[no-any-return]

    def _value(self, depth: int = 2) -> PrimExpr:
        dtype = self._dtype
        if depth == 0:
            named = [var for var in self._lets if var.dtype == dtype]
            return self._one(self._load(), self._load(), const(1, dtype), *named)  # type: ignore[no-any-return]
        kind = self._one("operator", "select", "lazy", "let", "cast", "load")
        a, b = self._value(depth - 1), self._value(depth - 1)
        if kind == "operator":
            operators = [e.Min, e.Max] + ([] if dtype.is_bool else [e.Add, e.Sub, e.Mul])
            return self._one(*operators)(a, b)  # type: ignore[no-any-return]
        if kind == "select":
            return e.Select(self._condition(), a, b)
        if kind == "lazy":
            return Call(dtype, "if_then_else", (self._condition(), a, b))
        if kind == "let":
            var = Var(self._name("t"), dtype)
            return e.Let(var, a, e.Max(var, e.Min(var, b)))
        if kind == "cast":
            return e.cast(dtype, self._one(self.lane, e.cast(FLOAT32, a), self._index()))
        return self._load()

    # -- statements --

    def _statement(self, depth: int) -> Stmt:
        kinds = ["store"] * 3 + ["fold"]
        if depth:
            kinds += ["seq", "seq", "if", "else", "for", "let", "allocate", "assert"]
        made: Stmt = getattr(self, "_" + self._one(*kinds))(depth)
        return made

    def _store(self, depth: int) -> Stmt:
        which = self._one("y", "y", "z", "private")
        if which == "private" and self._private:
            place = (e.floormod(self._index(), const(4)),)
            return BufferStore(self._one(*self._private), self._value(), place)
        if which == "z":
            return BufferStore(self.z, self._value(), (self._row(), self._index()))
        return BufferStore(self.y, self._value(), (self._index(),))

    def _fold(self, depth: int) -> Stmt:
        place = self._one((const(1), const(9)), (const(0), self._one(const(0), *self._inner)))
        of_bools: tuple[Any, ...] = (e.Min, e.Max, e.And, e.Or)
        operators = of_bools if self._dtype.is_bool else (e.Min, e.Max, e.Add, e.Mul)
        sides = [self.z[place], self._value(1)]
        return BufferStore(self.z, self._one(*operators)(*self._one(sides, sides[::-1])), place)

    def _seq(self, depth: int) -> Stmt:
        return s.SeqStmt((self._statement(depth - 1), self._statement(depth - 1)))

    def _if(self, depth: int) -> Stmt:
        return s.IfThenElse(self._condition(), self._statement(depth - 1))

    def _else(self, depth: int) -> Stmt:
        return s.IfThenElse(
            self._condition(), self._statement(depth - 1), self._statement(depth - 1)
        )

    def _for(self, depth: int) -> Stmt:
        var = Var(self._name("k"))
        extent = self._one(const(3), const(2), self.outer + 1, e.floordiv(self.lane, const(16)))
        self._inner.append(var)
        body = self._statement(depth - 1)
        self._inner.pop()
        return s.For(var, const(0), extent, self._one(ForKind.SERIAL, ForKind.UNROLLED)
                     if isinstance(extent, e.IntImm) else ForKind.SERIAL, body)  # fmt: skip

    def _let(self, depth: int) -> Stmt:
        var = Var(self._name("u"), self._dtype)
        value = self._value(1)
        self._lets.append(var)
        body = self._statement(depth - 1)
        self._lets.pop()
        return s.LetStmt(var, value, body)

    def _allocate(self, depth: int) -> Stmt:
        buffer = Buffer(Var(self._name("T"), HANDLE), (const(4),), self._dtype, "T")
        fill = s.SeqStmt(tuple(BufferStore(buffer, self._value(1), (const(k),)) for k in range(4)))
        self._private.append(buffer)
        body = self._statement(depth - 1)
        self._private.pop()
        return s.Allocate(buffer, s.seq(fill, body))

    def _assert(self, depth: int) -> Stmt:
        """Holds, as P does not exceed 3."""
        holds = e.Or(self._condition(), self.p[self.lane] < 4)
        return s.AssertStmt(holds, "{}", self._statement(depth - 1), (self.lane + 1,))


NEAR = 64  # elements of Y, few enough for lanes and rounds to meet
LANES, ROUNDS = 6, 3  # at most


class NearProgram:
    """Draws a vectorized loop whose lanes meet often: loops inside it, and one after the other, at
    sums of the lane and the rounds, whose bounds and guards may read what the loop writes.

    Parameters are Y, and P of integers in ``[0, ROUNDS]``.
    """

    def __init__(self, numbers: Random) -> None:
        self._numbers = numbers
        self._count = 0
        self.y, self.p = decl_buffer((NEAR,), "int32", "Y"), decl_buffer((4,), "int32", "P")
        self._lane, self._outer = Var("v"), Var("i")
        self._around: tuple[Var, ...] = ()
        lanes = numbers.randint(2, LANES)
        body = self._block(2)
        loop = s.For(self._lane, const(0), const(lanes), ForKind.VECTORIZED, body)
        nest = s.For(self._outer, const(0), const(2), ForKind.SERIAL, loop)
        buffers = {each.data: each for each in (self.y, self.p)}
        self.func = PrimFunc(tuple(buffers), nest, buffers, "near")

    def arguments(self) -> list[Any]:
        return [np.arange(NEAR, dtype="int32"), np.array([2, 0, 3, 1], "int32")]

    def _one(self, *choices: Any) -> Any:
        return choices[self._numbers.randrange(len(choices))]

    def _name(self, name: str) -> Var:
        self._count += 1
        return Var(f"{name}{self._count}")

    def _place(self) -> PrimExpr:
        """An index of Y."""
        lane = self._one(self._lane, self._lane, self._lane, self._lane // 2, self._lane % 3)
        step = self._one(1, 1, 2, ROUNDS, -1, 0)
        place, lowest = lane * step, min(step, 0) * (LANES - 1)
        for var in (*self._around, self._outer):
            step = self._one(0, 1, 1, LANES, -1)
            place, lowest = place + var * step, lowest + min(step, 0) * (ROUNDS - 1)
        return place + (self._one(0, 0, 0, 1, 2, LANES) - lowest)  # type: ignore[no-any-return]

    def _number(self) -> PrimExpr:
        loads = self.y[self._place()], self.y[self._place()]
        return self._one(*loads, loads[0] + loads[1] * 3, self._lane, self.p[self._lane % 4])  # type: ignore[no-any-return]

    def _block(self, depth: int) -> Stmt:
        return s.seq(*[self._statement(depth) for _ in range(self._numbers.randint(1, 2))])

    def _statement(self, depth: int) -> Stmt:
        match self._one("loop", "loop", "if", "let", "store", "store") if depth else "store":
            case "loop":
                var, outside = self._name("k"), self._around
                extent = self._one(const(2), const(ROUNDS), self.p[self._one(0, 1, 2)])
                self._around = (*outside, var)
                body = self._block(depth - 1)
                self._around = outside
                return s.For(var, const(0), extent, ForKind.SERIAL, body)
            case "if":
                below = self._one(const(1), const(3), self.p[1], *self._around)
                return s.IfThenElse(self._lane < below, self._block(depth - 1))
            case "let":
                var = self._name("x")
                body = s.seq(self._block(depth - 1), BufferStore(self.y, var, (self._place(),)))
                return s.LetStmt(var, self._number(), body)
        if self._one(*[False] * 5, True):
            value = e.floormod(self._number(), ROUNDS + 1)
            return BufferStore(self.p, value, (self._one(const(0), const(1), self._lane % 4),))
        place = self._place()
        value = self._one(self._number(), self.y[place] + self._number())
        return BufferStore(self.y, value, (place,))
