"""Splits reads at piecewise linear indices into choices of reads of neighbours in memory.

The lanes of a vector at the border of an image read ``X[min(j, n - 1)]``, and those of a rolled row
``X[(j + 5) % n]``: neighbours of each other, except at one place between two lanes. Each part is
read as a vector under a mask, instead of one element after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from minitvm.arith.effects import loads
from minitvm.arith.prover import Prover
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import BufferLoad, PrimExpr, Var
from minitvm.tir.functor import Mutator, children, mentions, substitute, with_fields


@final
@record()
class Pieces:
    """The `choice` of reads that replaces one read. It may do so if the condition `in_each_lane`
    holds in each lane that is on. That follows from the condition `in_all_lanes`, which is the same
    in all lanes."""

    choice: PrimExpr
    in_each_lane: PrimExpr = e.const(True)
    in_all_lanes: PrimExpr = e.const(True)


def pieces_of_read(load: BufferLoad, loop: s.For, prover: Prover) -> Pieces | None:
    """The reads of a vector's lanes, the iterations of `loop`; None if the index isn't piecewise
    linear.

    Before::

        X[i, max(min(j, n - 1), 0)]
        X[i, (j + 5) % n]

    After::

        if_then_else(j <= n - 1, X[i, max(j, 0)], X[i, max(n - 1, 0)])
        if_then_else(begin + lane < n, X[i, begin + lane], X[i, begin + lane - n])

    Here `begin` is ``(j + 5) % n`` in the first lane. The second form is right if no more lanes are
    on than a row has elements.
    """
    var = loop.loop_var
    if not load.indices or load.predicate is not None or load.buffer.strides:
        return None
    *others, index = load.indices
    if mentions(var, *others) or not mentions(var, index):
        return None
    node = next((each for each in _inner_first(index) if _has_pieces(each, loop, prover)), None)
    if node is None:
        return None

    def read(value: PrimExpr) -> PrimExpr:
        moved = _Replaced(node, e.cast(node.dtype, value)).expr(index)
        return with_fields(load, indices=(*others, moved))

    def chosen(condition: PrimExpr, a: PrimExpr, b: PrimExpr) -> PrimExpr:
        return e.Call(load.dtype, "if_then_else", (condition, read(a), read(b)))

    match node:
        case e.Min(a, b):
            return Pieces(chosen(e.LE(a, b), a, b))
        case e.Max(a, b):
            return Pieces(chosen(e.GE(a, b), a, b))
        case e.Select(condition, a, b) | e.Call(op="if_then_else", args=(condition, a, b)):
            return Pieces(chosen(condition, a, b))
        case e.FloorMod(x, size):
            rest = _rest(substitute(x, {var: loop.min}), size)
            begin, lane = Var("begin", rest.dtype), var - loop.min
            place = begin + lane
            made = e.Let(begin, rest, chosen(place < size, place, place - size))
            return Pieces(made, lane <= size, loop.extent <= size)
    return None


def _rest(x: PrimExpr, size: PrimExpr) -> PrimExpr:
    """``x % size``, mostly without a division."""
    is_near = e.And(e.GE(x, e.const(0, x.dtype)), e.LT(x, size * 2))
    near = x - e.Select(e.GE(x, size), size, e.const(0, size.dtype))
    return e.Call(x.dtype, "if_then_else", (is_near, near, e.floormod(x, size)))


def _has_pieces(node: PrimExpr, loop: s.For, prover: Prover) -> bool:
    """Whether the lanes on each side of one place read neighbours, and the two sides lie apart."""
    var = loop.loop_var
    match node:
        case e.Min(a, b) | e.Max(a, b):
            parts = (a, b)
        case e.Select(condition, a, b) | e.Call(op="if_then_else", args=(condition, a, b)):
            if not isinstance(condition, e.Comparison) or loads(condition):
                return False
            parts = (a, b)
        case e.FloorMod(a, b) if not mentions(var, b):
            return _step(prover, a, loop) == 1
        case _:
            return False
    steps = [_step(prover, each, loop) for each in parts]
    return any(steps) and all(each in (-1, 0, 1) for each in steps)


def _step(prover: Prover, x: PrimExpr, loop: s.For) -> int | None:
    """The step of a number from lane to lane, if it is linear."""
    if not mentions(loop.loop_var, x):
        return 0
    if not prover.is_index_arithmetic(x):
        return None
    terms = prover.affine(x).terms
    is_linear = all(each is loop.loop_var or not mentions(loop.loop_var, each) for each in terms)
    return terms.get(loop.loop_var, 0) if is_linear else None


def _inner_first(node: PrimExpr) -> Iterator[PrimExpr]:
    for each in children(node):
        if isinstance(each, PrimExpr) and not isinstance(each, BufferLoad):
            yield from _inner_first(each)
    yield node


@final
class _Replaced(Mutator):
    def __init__(self, node: PrimExpr, value: PrimExpr) -> None:
        super().__init__()
        self._node = node
        self._value = value

    def expr(self, node: PrimExpr) -> PrimExpr:
        return self._value if node is self._node else super().expr(node)
