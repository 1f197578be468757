"""Lines along which an expression repeats itself every few elements.

Neighbours of `X[i, 2 - c]` with three channels c, or of `X[i // 3]`, lie in a pattern: after a
number of vectors each lane reads what the same lane read before, some elements on. The vectors of
one such period are written out, each with constant lanes, which are picked from vectors of
neighbours::

    for parts of the line, on all threads
        for vectors of a period, unrolled
            T[l] = X[l // 3]                  # in vectors
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, lcm, prod

from minitvm.auto_scheduler.contraction import all_loads, extent_of, product_of_extents
from minitvm.auto_scheduler.inlining import calls_functions
from minitvm.auto_scheduler.loops import Loop, compute_of, fused
from minitvm.auto_scheduler.reductions import is_line
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, ProducerLoad
from minitvm.tir.functor import mentions, walk_once

_SIDE_BY_SIDE = 4  # vectors of long functions: of more, registers are spilled
_WASTE = 8  # times the elements behind the end of a line are as many as those of the line, at most


def first_of_digits(s: Schedule, stage: Stage, first: int, target: Target) -> int:
    """The first axis of a line that begins with axis `first`, or further out where that is shorter
    than a vector: the axes inside are digits of the place in the line. Rows that data choose stay
    apart."""
    op = compute_of(stage)
    if any(isinstance(i, ProducerLoad) for load in all_loads(op) for i in walk_once(*load.indices)):
        return first
    lanes = target.lanes(op.body[0].dtype)
    below = 1
    for at in range(len(op.axis) - 1, first - 1, -1):
        below *= extent_of(op.axis[at]) or lanes
    while first and 0 < below < lanes and _vectors(op, op.axis[first - 1 :], lanes, target) > 0:
        first -= 1
        below *= extent_of(op.axis[first]) or lanes
    return first


def write_line(s: Schedule, stage: Stage, line: Sequence[IterVar], target: Target) -> Loop:
    """Computes a line in vectors; returns the loop over them, or over the periods."""
    op = compute_of(stage)
    lanes = target.lanes(op.body[0].dtype)
    extents = [extent_of(axis) for axis in line]
    if None not in extents:
        lanes = max(1, min(lanes, prod(each or 1 for each in extents)))
    vectors = 0 if is_line(op, line) else _vectors(op, line, lanes, target)
    if not vectors and calls_functions(s, stage):
        lanes *= _vectors_at_once(product_of_extents(line), lanes)
    factor = max(1, vectors) * lanes
    outer, inner = stage.split(fused(stage, line), factor=factor)
    if vectors > 1:
        vector, inner = stage.split(inner, factor=lanes)
        stage.unroll(vector)
    stage.vectorize(inner)
    known = product_of_extents(line)
    return Loop(outer, None if known is None else -(-known // factor))


def _vectors_at_once(extent: int | None, lanes: int) -> int:
    """The number of vectors of functions side by side. Each step of a function waits for the one
    before, so that several take little more time than one. Few of their elements lie behind the end
    of a line."""
    if extent is None:
        return _SIDE_BY_SIDE // 2
    number = _SIDE_BY_SIDE
    while number > 1 and (number * lanes > extent or -extent % (number * lanes) * _WASTE > extent):
        number //= 2
    return number


def _vectors(op: ComputeOp, line: Sequence[IterVar], lanes: int, target: Target) -> int:
    """The number of vectors after which a pattern repeats itself; 0 if it is too long."""
    period = 1
    below = 1
    for axis in reversed(line[1:]):
        extent = extent_of(axis)
        if extent is None or below >= lanes:
            break
        below *= extent
        period = lcm(period, max(1, below)) if below < lanes else period
    for node in walk_once(*op.body):
        if isinstance(node, e.FloorDiv | e.FloorMod) and any(mentions(a.var, node) for a in line):
            divisor = e.const_int(node.b)
            if divisor is not None and 0 < divisor <= lanes:
                period = lcm(period, divisor)
    vectors = period // gcd(period, lanes)
    return vectors if vectors <= target.vector_registers // 2 else 0
