"""Stages that only move elements: padding, slices, transposes, concatenations.

A read of such a stage is a read of the tensor behind it, at another place. So the sums of adjoints
are computed for the tensor itself, over its own elements only, and no tensor is copied::

    P[y] = if_then_else(y >= 1, X[y - 1], 0)
    Y[i] = sum(P[i + k] * W[k], k)              X is read at i + k - 1, where i + k >= 1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import final

from minitvm.arith.atoms import structural_key
from minitvm.arith.effects import reads_tensors
from minitvm.arith.guards import conjuncts
from minitvm.arith.prover import Prover
from minitvm.runtime.record import record
from minitvm.te.autodiff.expression import read_adjoints
from minitvm.te.tensor import ComputeOp, domain_of
from minitvm.tir.expr import (
    EQ,
    FloorDiv,
    PrimExpr,
    ProducerLoad,
    Reduce,
    Var,
    const_int,
    floormod,
    logical_not,
)
from minitvm.tir.functor import substitute


@final
@record()
class Move:
    """A read by which a stage moves elements: the read, in terms of the stage's axes, and the
    conditions under which the element at these axes is the element read."""

    load: ProducerLoad
    conditions: tuple[PrimExpr, ...]

    def at(
        self, op: ComputeOp, indices: Sequence[PrimExpr]
    ) -> tuple[tuple[PrimExpr, ...], tuple[PrimExpr, ...]]:
        """The indices of the read, and the conditions, for the element of the stage at some
        indices."""
        values = {axis.var: index for axis, index in zip(op.axis, indices, strict=True)}
        return (
            tuple(substitute(each, values) for each in self.load.indices),
            tuple(substitute(each, values) for each in self.conditions),
        )


def moves_of(op: ComputeOp, is_wanted: Callable[[ProducerLoad], bool]) -> list[Move] | None:
    """The wanted reads of a stage that only moves elements, each to one place. None for a stage
    that computes with a wanted element, reads one for several places, reads one tensor twice under
    conditions that don't exclude each other, or reads twice where data choose between the reads.
    Through a chain of such stages, the reads of one tensor would double with each stage, or the
    conditions of the reads would grow.
    """
    if len(op.body) > 1 or isinstance(op.body[0], Reduce):
        return None
    adjoint = Var("adjoint", op.body[0].dtype)
    found = read_adjoints(op.name, op.body[0], adjoint, is_wanted)
    if not all(each.value is adjoint and _is_move(op, each.load, each.guards) for each in found):
        return None
    for read, other in combinations(found, 2):
        is_same = read.load.producer is other.load.producer
        guards = read.guards, other.guards
        if reads_tensors(*read.guards, *other.guards) or (is_same and not _exclude(*guards)):
            return None
    return [Move(each.load, each.guards) for each in found]


def _has_remainder(quotient: FloorDiv, guards: Sequence[PrimExpr]) -> bool:
    """Whether a guard says what remains of a division."""
    remainder = structural_key(floormod(quotient.a, quotient.b))
    return any(
        isinstance(each, EQ)
        and structural_key(each.a) == remainder
        and const_int(each.b) is not None
        for guard in guards
        for each in conjuncts(guard)
    )


def _exclude(guards: Sequence[PrimExpr], others: Sequence[PrimExpr]) -> bool:
    """Whether two reads are surely never made together."""
    known = Prover()
    for each in guards:
        known.assume(each)
    return any(known.can_prove(logical_not(each)) for each in others)


def _is_move(op: ComputeOp, load: ProducerLoad, guards: Sequence[PrimExpr]) -> bool:
    """Whether each index is a constant, or an axis of the stage plus a constant, no axis twice; or
    the quotient of such a place, where a guard fixes its remainder."""
    known = Prover()
    seen: list[object] = []
    for index in load.indices:
        if isinstance(index, FloorDiv) and _has_remainder(index, guards):
            index = index.a
        terms = known.affine(index).terms
        if len(terms) > 1 or any(by != 1 for by in terms.values()):
            return False
        seen += terms
    axes = [axis.var for axis in op.axis if const_int(domain_of(axis).extent) != 1]
    return len({*seen}) == len(seen) and {*axes} <= {*seen} <= {axis.var for axis in op.axis}
