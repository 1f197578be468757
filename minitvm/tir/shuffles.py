"""Programs of vector shuffles: vectors that are each computed once, and blocks that are transposed
in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import final

from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir.expr import Call, PrimExpr, Var
from minitvm.tir.stmt import LetStmt, Stmt

_NUMBERS = [e.const(lane) for lane in range(128)]  # shared by all shuffles


@final
@record(frozen=False)
class Shuffles:
    """Vectors that are each computed once, in order."""

    values: list[tuple[Var, PrimExpr]] = field(default_factory=list)

    def named(self, name: str, value: PrimExpr) -> Var:
        """The variable that stands for `value`."""
        self.values.append((Var(name, value.dtype), value))
        return self.values[-1][0]

    def shuffled(self, a: PrimExpr, b: PrimExpr, lanes: Sequence[int]) -> Var:
        """The vector of some lanes of `a` and `b`; those of `b` are counted behind those of
        `a`."""
        chosen = [_NUMBERS[lane] if lane < len(_NUMBERS) else e.const(lane) for lane in lanes]
        made = a.dtype.with_lanes(len(lanes))
        return self.named("lanes", Call(made, "vector_shuffle", (a, b, *chosen)))

    def transposed(self, rows: Sequence[PrimExpr]) -> list[PrimExpr]:
        """The columns of a block: as many as a row has lanes. Both numbers are powers of two, and
        no row has more lanes than there are rows.

        First the vectors are filled with rows, which loads can do. For four rows of two lanes::

            a0 a1    b0 b1    c0 c1    d0 d1    ->    a0 a1 c0 c1    b0 b1 d0 d1

        Then the lanes of two vectors are interleaved within parts as long as rows, until lane i of
        a part comes from the part's row i. The two vectors are half a part apart. A step takes one
        instruction for each vector::

            a0 a1 c0 c1    b0 b1 d0 d1    ->    a0 b0 c0 d0    a1 b1 c1 d1
        """
        size, part = len(rows), rows[0].dtype.lanes
        vectors = [self._side_by_side(rows[i::part]) for i in range(part)]
        low, high = (
            [
                lane
                for first in range(half, size, part)
                for i in range(first, first + part // 2)
                for lane in (i, size + i)
            ]
            for half in (0, part // 2)
        )
        for _ in range(part.bit_length() - 1):
            vectors = [
                self.shuffled(vectors[i], vectors[i + part // 2], lanes)
                for i in range(part // 2)
                for lanes in (low, high)
            ]
        return vectors

    def _side_by_side(self, parts: Sequence[PrimExpr]) -> PrimExpr:
        """Concatenates vectors, whose number is a power of two."""
        while len(parts) > 1:
            both = range(2 * parts[0].dtype.lanes)
            parts = [
                self.shuffled(a, b, both) for a, b in zip(parts[::2], parts[1::2], strict=True)
            ]
        return parts[0]

    def around(self, body: Stmt) -> Stmt:
        """`body`, in which the variables have their values."""
        for var, value in reversed(self.values):
            body = LetStmt(var, value, body)
        return body
