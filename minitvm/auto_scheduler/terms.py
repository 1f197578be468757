"""The cost of one step of a reduction for a vector of results: operations, loads and registers.

The figures come from the expression of the stage, and are a part of the nest that the model of
tiles sees (:mod:`cost`). Operations are counted in vector multiply-adds. A value that changes along
the rows of a tile only is a scalar. A value that changes along the columns only is computed once
for all rows. Neither of them counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from itertools import product
from typing import final

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.atoms import structural_key
from minitvm.arith.effects import reads_tensors
from minitvm.arith.guards import conjuncts
from minitvm.arith.work import USUAL_TRIPS, products_in, value_operations
from minitvm.auto_scheduler.contraction import Contraction, extent_of
from minitvm.runtime.dtype import INT32
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.schedules.mirrored_results import block_of_half
from minitvm.te.tensor import ComputeOp, domain_of, reduce_of
from minitvm.tir import expr as e
from minitvm.tir.commutation import is_operator
from minitvm.tir.expr import PrimExpr, ProducerLoad, Reduce, Var
from minitvm.tir.functor import Node, children, substitute, walk_once
from minitvm.tir.intrinsics import INTRINSICS

_KEEPS_NAN = 1  # operations of a minimum or maximum of floats beside the instruction itself
_DIVISION = 8
_WIDE_PRODUCT = 2  # of integers of 32 bits: two instructions of the CPU
CAST = 2.0  # operations that convert a vector of narrower elements: it is widened, and converted
_PLACES = 9  # along an axis, at which conditions are looked at
_FUNCTION = 8  # registers of a function's polynomial


@final
@record()
class Terms:
    """The cost of a step: `operations` for each vector of results; loads of `scalars` for each row,
    of `vectors` for each vector of columns, and of `both` for each vector of results; registers,
    `results` for each vector of results, and `temporaries` beside them; and `casts`, the operations
    that convert a vector of columns."""

    operations: float
    scalars: int
    vectors: int
    both: int
    results: int
    temporaries: int
    casts: float = 0.0


MULTIPLY_ADD = Terms(1.0, 1, 1, 0, 1, 0)
SEPARATE = Terms(2.0, 1, 1, 0, 1, 1)
"""A multiplication, and an addition of its result."""


def terms_of(contraction: Contraction, target: Target) -> Terms:
    """The cost of a contraction's terms.

    >>> from minitvm import te
    >>> from minitvm.auto_scheduler.contraction import contraction_of
    >>> A, B = te.placeholder((8, 4), name="A"), te.placeholder((4, 16), name="B")
    >>> k = te.reduce_axis((0, 4), name="k")
    >>> C = te.compute((8, 16), lambda i, j: te.sum(abs(A[i, k] - B[k, j]), axis=k), name="C")
    >>> terms_of(contraction_of(C.op), Target("llvm -mcpu=haswell"))
    Terms(operations=3.0, scalars=1, vectors=1, both=0, results=1, temporaries=1, casts=0.0)
    """
    op, reduce = contraction.op, reduce_of(contraction.op)
    column = contraction.column.var
    beside = {x.var for x in contraction.rows or op.axis if x is not contraction.column}
    combined = (*reduce.combiner.lhs, *reduce.combiner.rhs)
    counter = _Counter({column, *combined}, {*beside, *combined}, target)
    conditions = [
        each for each in conjuncts(reduce.condition) if block_of_half(each, op.axis) is None
    ]
    roots = (*reduce.source, *conditions, *reduce.combiner.result)
    fused = _fused(reduce, target)
    lanes = target.lanes(op.output(0).dtype)
    ways = [
        (each.reads(contraction.column), any(map(each.reads, contraction.rows)))
        for each in contraction.factors
    ]
    sources = max(map(counter.registers, reduce.source))
    combiners = max(map(counter.registers, reduce.combiner.result))
    return Terms(
        max(1.0, sum(map(counter.operations, roots)) - fused),
        ways.count((False, True)),
        ways.count((True, False)),
        ways.count((True, True)),
        sum(-(-body.dtype.bits * lanes // target.vector_bits) for body in op.body),
        max(sources - bool(fused), sources - 1 + combiners - (len(op.body) == 1), 0),
        CAST * sum(each.is_cast for each in contraction.factors if each.reads(contraction.column)),
    )


def step_operations(reduce: Reduce, components: Iterable[int]) -> int:
    """The operations that compute some components of a step's terms, and combine them."""
    chosen = [*components]
    combined = walk_once(*(reduce.combiner.result[i] for i in chosen))
    combines = sum(not isinstance(x, Var | e.IntImm | e.FloatImm) for x in combined)
    return term_operations(reduce, chosen) + combines


def term_operations(reduce: Reduce, components: Iterable[int]) -> int:
    """The operations that compute some components of a step's terms; LLVM computes equal ones
    once."""
    computed = value_operations(*(reduce.source[i] for i in components))
    return len({structural_key(node) for _, node in computed})


def share_of_steps(op: ComputeOp) -> float:
    """About the part of a reduction's steps in which its conditions on axes hold."""
    conditions = conjuncts(reduce_of(op).condition)
    return _share_where(op, [each for each in conditions if not reads_tensors(each)])


def _share_where(op: ComputeOp, conditions: Sequence[PrimExpr]) -> float:
    """About the part of the iterations in which some conditions hold, from a few places along each
    axis that they mention. An unknown extent counts as 128."""
    names = {x for x in walk_once(*conditions) if isinstance(x, Var)}
    axes = [axis for axis in (*op.axis, *op.reduce_axis) if axis.var in names]
    sizes = dict.fromkeys(names - {axis.var for axis in axes}, USUAL_TRIPS)
    known, places = Analyzer(), list[list[PrimExpr]]()
    for axis in axes:
        begin, extent = domain_of(axis).min, extent_of(axis) or USUAL_TRIPS
        count = min(extent, _PLACES)
        places.append([begin + (extent - 1) * i // max(1, count - 1) for i in range(count)])
    total = left = 0
    for at in product(*places):
        values = {axis.var: place for axis, place in zip(axes, at, strict=True)} | sizes
        total += 1
        left += all(e.const_int(known.simplify(substitute(x, values))) != 0 for x in conditions)
    return left / total if total else 1.0


def is_fused(reduce: Reduce, target: Target) -> bool:
    """Whether a step ends in one multiply-add."""
    return _fused(reduce, target) == 1


def _fused(reduce: Reduce, target: Target) -> int:
    """The multiply-adds in which a step ends."""
    is_sum = reduce.dtype.is_float and is_operator(reduce.combiner, e.Add)
    if not is_sum or not target.has_fused_multiply_add:
        return 0
    return len([*products_in(reduce.source[0])])


@final
class _Counter:
    """Counts the operations for each vector of results: those on values that change both from lane
    to lane, with an axis of `across`, and from row to row, with an axis of `beside`."""

    def __init__(self, across: Set[Var], beside: Set[Var], target: Target) -> None:
        self._across = across
        self._beside = beside
        self._target = target
        self._seen: dict[PrimExpr, tuple[bool, bool]] = {}
        self._counted: set[PrimExpr] = set()

    def operations(self, node: PrimExpr) -> float:
        """The operations of an expression; those that were counted before are free."""
        if node in self._counted or isinstance(node, ProducerLoad):
            return 0.0
        self._counted.add(node)
        below = sum(map(self.operations, children(node)))
        return below + (_operations(node, self._target) if all(self._depends(node)) else 0.0)

    def registers(self, node: PrimExpr) -> int:
        """The registers that evaluating an expression takes, beside those of the elements that it
        reads (Ershov's number, with 0 for a leaf)."""
        if isinstance(node, ProducerLoad) or not all(self._depends(node)):
            return 0
        most, *others = sorted(map(self.registers, children(node)), reverse=True) or [0]
        more = max((count + 1 for count in others if count == most), default=1)
        return max(most, more, 1) + (_FUNCTION if is_long(node) else 0)

    def _depends(self, node: PrimExpr) -> tuple[bool, bool]:
        found = self._seen.get(node)
        if found is None:
            if isinstance(node, Var):
                found = node in self._across, node in self._beside
            else:
                each = [*map(self._depends, children(node))]
                found = any(a for a, _ in each), any(b for _, b in each)
            self._seen[node] = found
        return found


def _operations(node: PrimExpr, target: Target) -> float:
    match node:
        case e.Call() if is_long(node) or node.op in ("sqrt", "rsqrt"):
            return INTRINSICS[node.op].cost
        case e.Min() | e.Max():
            return 1.0 + (node.dtype.is_float and not target.keeps_nan) * _KEEPS_NAN
        case e.Div() | e.Mod() | e.FloorDiv() | e.FloorMod():
            return _DIVISION
        case e.Mul() if not node.dtype.is_float and node.dtype.bits >= INT32.bits:
            return _WIDE_PRODUCT
        case Var() | e.IntImm() | e.FloatImm():
            return 0.0
    return 1.0


def is_long(node: Node) -> bool:
    """Whether an expression is a function whose code is long."""
    return isinstance(node, e.Call) and node.op in INTRINSICS and INTRINSICS[node.op].is_long
