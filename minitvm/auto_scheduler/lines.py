"""The vectors of an elementwise stage: its last axes that run along one line of memory.

:mod:`rows` decides which stages are computed in one row; this module writes the loop over its
elements. Neighbours of ``X[i, 2 - c]`` with three channels c, or of ``X[i // 3]``, lie in a
pattern: some vectors later, each lane reads the element that lies a fixed distance behind the one
it read before. The vectors of one such period are written out. Their elements are picked from
vectors of neighbours, at places that are known when code is generated::

    for parts of the line, on all threads
        for vectors of a period, unrolled
            T[l] = X[l // 3]                  # in vectors

Short rows of symbolic length that read the same row of a tensor are computed several at a time, as
one line whose vectors don't end with the rows. The tensor's row is repeated as often::

    for r in 32, j: repeated[r, j] = b[j]
    for lines of 32 rows, on all threads:
        for vectors of a line: Y[...] = X[...] + repeated[...]      # one address for both axes

Along an antidiagonal, or up to the diagonal, the pieces of a row compute different expressions. If
a row is cut into vectors, the vectors in which pieces meet compute all pieces under masks. This is
cheap where the processor has mask registers, and dear where it hasn't, for narrow elements and in
reverse order; so it is in each step of a scan, whose rows are short. Such a row stays one loop. The
pass ``partition_loops`` cuts it where the pieces meet, and LLVM makes vectors of each::

    for i on all threads:
        for j up to i: Y[i, j] = X[i, j] + w[i - j]
        for j from i + 1: Y[i, j] = 0

Outputs that are too large for the caches are stored past them: a store through the caches reads its
line first, and evicts another line. A large output is not in the caches any more when it is read,
so this wastes a third or a half of the memory's bandwidth.

Rows that data choose, as of ``T[i, j] = X[I[i], j]``, are requested some steps ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import gcd, lcm, prod

from minitvm.arith.accesses import step_of
from minitvm.arith.analyzer import Analyzer
from minitvm.arith.effects import is_lazy, reads_tensors
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import (
    all_loads,
    bare_vars,
    bytes_of,
    distances_of,
    divisors_along,
    extent_of,
    is_line,
    is_read_in_order,
    line_of,
    product_of_extents,
)
from minitvm.auto_scheduler.loops import compute_of, fused
from minitvm.auto_scheduler.some_sizes import USUAL_COLUMNS
from minitvm.auto_scheduler.terms import is_long
from minitvm.auto_scheduler.ways import gathered
from minitvm.runtime.host import CACHE_LINE, LINES_AT_ONCE
from minitvm.target import Target
from minitvm.te.schedules.guarded_reads import choices_in
from minitvm.te.schedules.rewrite_operations import with_inlined
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, Tensor, domain_of, tensor_of
from minitvm.tir import expr as e
from minitvm.tir.expr import Call, IterVar, PrimExpr, ProducerLoad, Var
from minitvm.tir.functor import contains, find, mentions, walk_once
from minitvm.tir.structural_equal import structural_equal

_SIDE_BY_SIDE = 4  # vectors of long functions: of more, registers are spilled
_MOST_CALLS = 200  # of functions in a step, of some 40 instructions each
_LEAST_REQUESTED = 256  # bytes of a row
_MOST_REPEATED = 8192  # bytes of a row's copies, which stay in the L1 cache
_LEAST_TIMES = 4  # lines of several rows: for fewer, copying a row takes longer
_VECTORS_OF_ROWS = 2  # whose lanes are as many as the rows of a line
_WASTE = 8  # a line has at least so many elements for each one computed behind its end


# -- Lines in vectors --


def first_of_digits(s: Schedule, stage: Stage, first: int, target: Target) -> int:
    """The first axis of a line that begins with axis `first`, or further out where that is shorter
    than a vector: the axes inside are digits of the place in the line. Rows that data choose stay
    apart."""
    op = with_inlined(compute_of(stage), s.inlined)
    if any(reads_tensors(*load.indices) for load in all_loads(op)):
        return first
    lanes = target.lanes(op.body[0].dtype)
    below = 1
    for at in range(len(op.axis) - 1, first - 1, -1):
        below *= extent_of(op.axis[at]) or lanes
    # Masks compute a row that fills half of a vector without reads of digits.
    least = -(-lanes // 2) if target.has_mask_registers else lanes
    while first and 0 < below < least and _vectors(op, op.axis[first - 1 :], lanes, target) > 0:
        first -= 1
        below *= extent_of(op.axis[first]) or lanes
    return first


def write_line(s: Schedule, stage: Stage, line: Sequence[IterVar], target: Target) -> IterVar:
    """Computes a line in vectors; returns the loop over them, or over the periods."""
    op = with_inlined(compute_of(stage), s.inlined)
    lanes = target.lanes(op.body[0].dtype)
    extents = [extent_of(axis) for axis in line]
    if None not in extents:
        lanes = max(1, min(lanes, prod(each or 1 for each in extents)))
    vectors = 0 if is_line(op, line) else _vectors(op, line, lanes, target)
    calls = sum(map(is_long, walk_once(*op.body)))
    if not vectors and calls:
        lanes *= vectors_at_once(product_of_extents(line), lanes, calls)
    factor = max(1, vectors) * lanes
    outer, inner = stage.split(fused(stage, line), factor=factor)
    if vectors > 1:
        vector, inner = stage.split(inner, factor=lanes)
        stage.unroll(vector)
    stage.vectorize(inner)
    return outer


def vectors_at_once(extent: int | None, lanes: int, calls: int) -> int:
    """The number of vectors of functions side by side. Each step of a function waits for the one
    before, so that several take little more time than one. Few of their elements lie behind the end
    of a line. The code of many calls is long as it is, and takes long to compile."""
    number = _SIDE_BY_SIDE if extent is not None else _SIDE_BY_SIDE // 2
    while number > 1 and number * calls > _MOST_CALLS:
        number //= 2
    if extent is None:
        return number
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
    period = lcm(period, *(each for each in divisors_along(line, *op.body) if each <= lanes))
    vectors = period // gcd(period, lanes)
    return vectors if vectors <= target.vector_registers // 2 else 0


# -- Lines of several digits --


def part_of_line(op: ComputeOp) -> Var | None:
    """The symbolic number of the neighbours along the last axis of an elementwise stage that have
    one quotient, where an element is read at quotients or at remainders alone; None if there is
    none."""
    axis = op.axis[-1] if op.axis and not op.reduce_axis else None
    if axis is None or not contains((e.FloorDiv, e.FloorMod), *op.body):
        return None
    found = set[Var]()
    for load in all_loads(op):
        kinds = {
            (type(each), each.b)
            for each in find((e.FloorDiv, e.FloorMod), *load.indices)
            if each.a is axis.var and isinstance(each.b, Var)
        }
        found |= {by for kind, by in kinds if len(kinds) == 1}
    if len(found) != 1:
        return None
    (size,) = found
    is_whole = e.const_int(Analyzer().simplify(e.floormod(domain_of(axis).extent, size))) == 0
    return size if is_whole else None


def write_parts_of_line(stage: Stage, size: Var, target: Target) -> None:
    """Computes a line part by part, each in vectors."""
    op = compute_of(stage)
    *rows, axis = op.axis
    part, place = stage.split(axis, factor=size)
    _, lane = stage.split(place, factor=target.lanes(op.body[0].dtype))
    stage.vectorize(lane)
    stage.parallel(fused(stage, rows) if rows else part)


# -- Short rows --


def has_repeated_rows(op: ComputeOp) -> bool:
    """Whether the rows of an elementwise stage are one line of memory but for tensors of which it
    reads the same row in each, and their length is symbolic."""
    if op.reduce_axis or len(op.axis) < 2 or extent_of(op.axis[-1]) is not None:
        return False
    row, column = op.axis[-2:]
    again, through = _read_again(op)
    bare = bare_vars(*op.body)
    if not again or row.var in bare or column.var in bare:
        return False
    in_order = all(is_read_in_order(x, y) for x in through for y in (row, column))
    return in_order and len(line_of(op, (row, column), through)) == 2


def _read_again(op: ComputeOp) -> tuple[list[Tensor], list[ProducerLoad]]:
    """The tensors of which each row of an operation reads the same whole row, and the reads of
    others."""
    row, column = op.axis[-2:]
    again, others = dict[Tensor, None](), list[ProducerLoad]()
    for load in all_loads(op):
        tensor = tensor_of(load)
        used = [index for index in load.indices if mentions(column.var, index)]
        is_row = len(used) == 1 and used[0] is column.var and load.indices[-1] is column.var
        is_row = is_row and structural_equal(tensor.shape[-1], domain_of(column).extent)
        if is_row and not any(mentions(row.var, index) for index in load.indices):
            again[tensor] = None
        else:
            others.append(load)
    found = [each for each in again if all(load.producer is not each for load in others)]
    return found, [load for load in all_loads(op) if load.producer not in found]


def are_short_lines(op: ComputeOp, target: Target) -> PrimExpr | None:
    """The condition under which rows of symbolic length are computed several at a time as one line:
    they are short, no whole vectors, and there are many; None for other stages."""
    if not has_repeated_rows(op):
        return None
    *rows, size = [domain_of(axis).extent for axis in op.axis]
    widest = max(each.dtype.itemsize for each in _read_again(op)[0])
    longest = _MOST_REPEATED // (_rows_at_once(op, target) * widest)
    number = reduce(e.multiply, (e.cast("int64", each) for each in rows))
    is_many = e.greater_equal(number, _LEAST_TIMES * _rows_at_once(op, target))
    is_short = e.logical_and(e.less_equal(1, size), e.less_equal(size, longest))
    has_rest = e.not_equal(e.floormod(size, target.lanes(op.body[0].dtype)), 0)
    return reduce(e.logical_and, (is_short, has_rest, is_many))


def _rows_at_once(op: ComputeOp, target: Target) -> int:
    """The rows of a line: together they fill whole vectors."""
    return target.lanes(op.body[0].dtype) * _VECTORS_OF_ROWS


def write_short_lines(s: Schedule, stage: Stage, target: Target) -> None:
    """Computes several rows at a time as one line, in vectors that don't end with the rows."""
    rows = _rows_at_once(compute_of(stage), target)
    for reader in (stage, *s.inlined_in(stage)):
        op = compute_of(reader)
        for tensor in _read_again(op)[0] if len(op.axis) > 1 else ():
            copy = s[s.repeat_rows(tensor, op, rows)]
            _, lane = copy.split(compute_of(copy).axis[-1], factor=target.lanes(tensor.dtype))
            copy.vectorize(lane)
    op = compute_of(stage)
    *outer, row, column = op.axis
    size = domain_of(column).extent
    lines, place = stage.split(fused(stage, (row, column)), factor=size * rows)
    _, lane = stage.split(place, factor=target.lanes(op.body[0].dtype))
    stage.vectorize(lane)
    stage.parallel(fused(stage, outer) if outer else lines)


# -- Rows in pieces --


def write_pieces(stage: Stage, target: Target) -> bool:
    """Schedules an elementwise stage whose rows have pieces, in a scan or for a target without mask
    registers; False for any other stage."""
    is_masked = target.has_mask_registers and stage.time is None
    if is_masked or not _is_in_pieces(stage):
        return False
    *lines, _ = compute_of(stage).axis
    choose(stage, "strategy", "row by row, in pieces that begin elsewhere in each")
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
    if any(isinstance(each, Call) and not is_lazy(each) for each in nodes):
        return False
    loads = [x for x in nodes if isinstance(x, ProducerLoad) and mentions(last.var, *x.indices)]
    if not any(x.dtype.bits < 32 or step_of(x.indices[-1], last.var) == -1 for x in loads):
        return False  # no load is dear under masks
    conditions = [condition for condition, *_ in choices_in(*op.body)]
    return any(_moves(each, last.var, others) for each in walk_once(*conditions))


def _moves(node: PrimExpr, var: Var, others: list[Var]) -> bool:
    """Whether a comparison of `var` with another loop's variable changes its value once along
    `var`."""
    if not isinstance(node, e.LT | e.LE | e.GT | e.GE) or not mentions(var, node):
        return False
    return not reads_tensors(node) and any(mentions(other, node) for other in others)


# -- Rows that data choose --


def request_gathered(stage: Stage, loop: IterVar, columns: int | None, target: Target) -> None:
    """Requests rows that data choose before a loop over them reads `columns` of each: no processor
    foresees them. So many are under way as memory delivers while it looks up a page and then a
    line; half of the L1 cache holds them. Loads of short rows overlap by themselves."""
    tables = gathered(compute_of(stage), target)
    size = (columns or USUAL_COLUMNS) * sum(each.dtype.itemsize for each in tables)
    if size < _LEAST_REQUESTED:
        return
    wanted = -(-2 * target.processor.memory_latency * int(target.bytes_per_cycle(4)) // size)
    steps = min(wanted, target.cache_bytes(1) // (2 * size))
    for each in tables if steps else ():
        choose(stage, "prefetch", "rows of {tensor} are prefetched {steps} steps ahead: data "
               "choose them", tensor=each, steps=steps)  # fmt: skip
        stage.prefetch(each, loop, steps)


# -- Nontemporal stores --


def store_past_caches(s: Schedule, stage: Stage, target: Target, *, in_blocks: bool) -> None:
    """Lets an elementwise output that no stage reads bypass the caches, from half the size of the
    last cache on, which it fills together with an input of its size. `in_blocks`: the stage is
    computed in blocks of lines. Then only known sizes qualify: rows of a symbolic size rarely begin
    with a cache line, and a second form of the blocks takes long to compile."""
    op = compute_of(stage)
    if op.reduce_axis or len(op.outputs) != 1 or not stage.is_output or s.readers(stage):
        return
    least = target.cache_bytes(3) // 2
    size = bytes_of(op.output(0))
    is_small = in_blocks if size is None else size < least
    if not op.axis or is_small or _reads_far_apart(stage):
        return
    if size is not None:
        choose(stage, "stores", "past the caches: {size} bytes don't stay in them", size=size)
    stage.pragma(stage.leaf_iter_vars[0], "nontemporal", least)


def _reads_far_apart(stage: Stage) -> bool:
    """Whether successive rows that are read don't follow each other in memory, and aren't
    requested. Such reads wait for memory, and stores past the caches would wait behind them."""
    op = compute_of(stage)
    requested = [each for attrs in stage.iter_var_attrs.values() for each, *_ in attrs.prefetches]
    for load in all_loads(op):
        if load.producer in requested:
            continue
        if reads_tensors(*load.indices):
            return True
        near = LINES_AT_ONCE * CACHE_LINE // load.producer.dtype.itemsize
        distances = distances_of(load, op)
        for outer, inner in zip(op.axis, op.axis[1:], strict=False):
            row, extent = distances.get(outer.var, 0), extent_of(inner)
            if extent is not None and row - extent * distances.get(inner.var, row) > near:
                return True
    return False
