"""Rows in pieces: rows in which a condition changes its value at another place in each row.

Along an antidiagonal, or up to the diagonal, the pieces of a row compute different expressions. If
a row is cut into vectors, the vectors in which pieces meet compute all pieces under masks. This is
cheap where the processor has masked loads, and dear where it hasn't: for narrow elements, and in
reverse order. Such a row stays one loop. The pass ``partition_loops`` cuts it where the pieces
meet, and LLVM makes vectors of each::

    for i on all threads:
        for j up to i: Y[i, j] = X[i, j] + w[i - j]
        for j from i + 1: Y[i, j] = 0
"""

from __future__ import annotations

from minitvm.arith.accesses import step_of
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.loops import compute_of, fused
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.tir import expr as e
from minitvm.tir.expr import Call, PrimExpr, ProducerLoad, Select, Var
from minitvm.tir.functor import mentions, walk_once

_CHOICE = "if_then_else"


def write_pieces(s: Schedule, stage: Stage) -> bool:
    """Schedules an elementwise stage whose rows have pieces; False for any other stage."""
    if not _is_in_pieces(stage):
        return False
    *lines, _ = compute_of(stage).axis
    choose(s, "strategy", "row by row, in pieces that begin elsewhere in each", stage=stage.name)
    if lines:  # threads need several rows: the parts of a single row aren't loops of pieces
        stage.parallel(fused(stage, lines))
    return True


def _is_in_pieces(stage: Stage) -> bool:
    """Whether comparisons of the last axis with another loop choose between expressions, whose
    elements are dear to load under a mask, and in which all arithmetic can be vectorised by
    LLVM."""
    op = compute_of(stage)
    *lines, last = op.axis
    others = [axis.var for axis in lines]
    if stage.time is not None:
        others.append(stage.time.var)
    nodes = [*walk_once(*op.body)]
    if any(isinstance(each, Call) and each.op != _CHOICE for each in nodes):
        return False
    loads = [each for each in nodes if isinstance(each, ProducerLoad)]
    if not any(_is_dear_under_masks(each, last.var) for each in loads):
        return False
    conditions = [
        each.args[0] if isinstance(each, Call) else each.condition
        for each in nodes
        if isinstance(each, Call | Select)
    ]
    return any(
        _moves(each, last.var, others) for condition in conditions for each in walk_once(condition)
    )


def _is_dear_under_masks(load: ProducerLoad, var: Var) -> bool:
    if not any(mentions(var, index) for index in load.indices):
        return False
    return load.dtype.bits < 32 or step_of(load.indices[-1], var) == -1


def _moves(node: PrimExpr, var: Var, others: list[Var]) -> bool:
    """Whether a comparison of `var` with another loop's variable changes its value once along
    `var`."""
    if not isinstance(node, e.LT | e.LE | e.GT | e.GE) or not mentions(var, node):
        return False
    is_read = any(isinstance(each, ProducerLoad) for each in walk_once(node))
    return not is_read and any(mentions(other, node) for other in others)
