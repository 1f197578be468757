"""Loops that were fused from two, seen as two loops again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

from minitvm.arith.guards import quotient
from minitvm.arith.prover import Prover
from minitvm.arith.simplify import Simplifier
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import PrimExpr, Var
from minitvm.tir.functor import Mutator, find, substitute, with_fields
from minitvm.tir.stmt import ForKind, Stmt


def divisor_of(prover: Prover, node: s.For) -> int | None:
    """The extent of the inner one of two loops from which a parallel loop was fused, if it is
    constant. Schedules fuse the loops over tasks."""
    var, extent = node.loop_var, prover.affine(node.extent)
    if node.kind != ForKind.PARALLEL or e.const_int(node.min) != 0:
        return None
    if not prover.is_index_arithmetic(node.extent):
        return None
    found = [
        divisor
        for each in find((e.FloorDiv, e.FloorMod), node.body)
        if each.a is var
        if (divisor := e.const_int(each.b)) is not None and divisor > 1
    ]
    most = max(found, default=0)
    is_whole = most and not any(each % most for each in (extent.constant, *extent.terms.values()))
    return most if is_whole and e.const_int(node.extent) != most else None


def by_digits(prover: Prover, node: s.For, divisor: int, change: Callable[[Stmt], Stmt]) -> Stmt:
    """A fused loop, rewritten by `change` as the two loops ``node.loop_var // divisor`` and
    ``node.loop_var % divisor``, one inside of the other."""
    var = node.loop_var
    outer, inner = (Var(f"{var.name}.{each}", var.dtype) for each in ("outer", "inner"))
    body = substitute(node.body, {var: outer * divisor + inner})
    zero = e.const(0, var.dtype)
    extent = quotient(prover, prover.affine(node.extent), divisor, var.dtype)
    inside = with_fields(
        node, loop_var=inner, min=zero, extent=e.const(divisor, var.dtype), body=body
    )
    loops = Simplifier(prover).stmt(with_fields(node, loop_var=outer, extent=extent, body=inside))
    made = change(loops)
    if made is loops:
        return node
    values = {outer: e.floordiv(var, divisor), inner: e.floormod(var, divisor)}
    return with_fields(node, body=_Fuse(values).stmt(made))


@final
class _Fuse(Mutator):
    """Replaces each of some loops by one iteration, whose value is given."""

    def __init__(self, values: Mapping[Var, PrimExpr]) -> None:
        super().__init__()
        self._values = values

    def visit_For(self, node: s.For) -> Stmt:
        value, body = self._values.get(node.loop_var), self.stmt(node.body)
        if value is None:
            return with_fields(node, body=body)
        runs = e.And(node.min <= node.loop_var, node.loop_var < node.min + node.extent)
        return s.LetStmt(node.loop_var, value, s.IfThenElse(runs, body))
