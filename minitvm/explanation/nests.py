"""The loop nests of a function: their operations, their vectors, and their shares of the time.

A nest consists of the loops that fill one buffer from others. Nests inside of one shared loop, such
as the stages of a softmax that is computed row by row, are separate. Their machine code is found by
marks in the assembly, and their time by a clock that is read where a nest begins and ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, final

import numpy as np

from minitvm.arith.accesses import step_of
from minitvm.arith.analyzer import Analyzer
from minitvm.arith.fused_index import joined
from minitvm.arith.work import TRIPS_FROM_DATA, estimated_sum, named_operations
from minitvm.codegen.machine_code import emit_assembly
from minitvm.codegen.options import CodegenOptions
from minitvm.driver.program import compile_module, module_text
from minitvm.explanation.amount import Amount, Sizes, value_of
from minitvm.explanation.assembly import NestCode, codes_of_nests, definitions_of_marks
from minitvm.runtime.dtype import HANDLE, INT32, INT64
from minitvm.runtime.record import record
from minitvm.runtime.threads import num_threads
from minitvm.target import Target
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.buffer import constant_bytes, decl_buffer
from minitvm.tir.expr import Buffer, PrimExpr, Var
from minitvm.tir.functor import Mutator, children, find, mentions, walk_once
from minitvm.tir.intrinsics import INTRINSICS
from minitvm.tir.stmt import ForKind, IRModule, PrimFunc, Stmt
from minitvm.transform.reuse_storage import STACK_BYTES

_LEAST_CYCLES = 50  # of a nest that is timed by itself: reading the clock takes as long
_ROUNDS = 5
_MOST_LOOKED_AT = 64  # statements of a nest; unrolled loops make many
_READINGS = 64  # of the clock, one after the other
_FAR = 1 << 20  # a distance in a tensor of symbolic shape
_NEAR = 4  # elements apart: such lanes are picked from vectors of neighbours
_CLOCKS = {"x86_64": "llvm.readcyclecounter", "aarch64": "llvm.readsteadycounter"}

Path = tuple[Stmt, ...]  # the statements around one, outermost first
Leaf = s.BufferStore | s.Evaluate | s.LetStmt  # what computes: of a name, its value


@final
@record()
class Nest:
    """A loop nest.

    Attributes
    ----------
    writes, reads
        The buffers that it fills, and those that it reads.
    loops
        The loops around its statements, with their iterations, outermost first.
    operations
        The elements loaded, stored and computed, by the names of the operations.
    bits
        The width of the vectors of its machine code; of a scalar, its own width.
    lanes
        The elements that are computed at once: 1 where it isn't in vectors.
    notes
        The reasons why it isn't in vectors, or is slow in vectors.
    predicted
        The share of the time, by instructions counted; None where a size is symbolic.
    measured
        The share of the time on one thread; None where not measured, or too short to be timed by
        itself.
    """

    writes: tuple[str, ...]
    reads: tuple[str, ...]
    loops: tuple[tuple[str, Amount], ...]
    operations: tuple[tuple[str, int], ...]
    bits: int
    lanes: int
    notes: tuple[str, ...]
    predicted: float | None
    measured: float | None


@final
@record(eq=False)
class _Part:
    """A statement of a nest, and the statements around it."""

    node: Stmt
    path: Path
    is_begin: bool = False  # of a reduction: constants alone are stored


@final
@record(eq=False)
class _Found:
    """A nest as the loops have it: parts of a partitioned loop are parts of one nest."""

    buffers: tuple[Buffer, ...]
    reads: tuple[Buffer, ...]
    parts: tuple[_Part, ...]


def nests_of(func: PrimFunc, options: CodegenOptions, sizes: Sizes) -> tuple[Nest, ...]:
    """The nests of a function, none of them measured."""
    found = _found(func)
    codes = _codes(func, found, options)
    made = [
        _nest(each, codes.get(i, NestCode(0, False)), options, sizes)
        for i, each in enumerate(found)
    ]
    cycles = [_cycles(nest, options.target) for nest in made]
    known = [each for each in cycles if each is not None]
    total = sum(known) if len(known) == len(cycles) else 0.0
    return tuple(
        replace(nest, predicted=each / total if total and each is not None else None)
        for nest, each in zip(made, cycles, strict=True)
    )


# -- Finding nests --------------------------------------------------------------------------------


def _found(func: PrimFunc) -> list[_Found]:
    nests: dict[tuple[object, ...], _Found] = {}
    begun: dict[str, list[_Part]] = {}  # initial values of reductions: constants alone are stored
    for part in _parts(func.body, ()):
        buffers = tuple(_written(part.node))
        names = tuple(each.name for each in buffers)
        read = tuple(dict.fromkeys(_read(part.node)))
        if not read:
            begun.setdefault(names[0], []).append(replace(part, is_begin=True))
            continue
        reads = tuple(each for each in read if each not in buffers)
        key = (*names, "of", *(each.name for each in reads))
        before = nests[key].parts if key in nests else ()
        first = [each for name in names for each in begun.pop(name, [])]
        nests[key] = _Found(buffers, reads, (*before, *first, part))
    alone = [_Found((*_written(parts[0].node),), (), (*parts,)) for parts in begun.values()]
    return [*nests.values(), *alone]


def _parts(node: Stmt, path: Path) -> Iterator[_Part]:
    """The nests in a statement: loops that fill one buffer, or several in one innermost loop, and
    that threads don't share."""
    written = _written(node)
    if not written:
        return
    loops = [*find(s.For, node)]
    is_one = len(written) == 1 or all(each is node for each in loops)
    if is_one and not any(each.kind == ForKind.PARALLEL for each in loops):
        yield _Part(node, path)
    else:
        inside = path if isinstance(node, s.SeqStmt) else (*path, node)
        for child in _below(node):
            yield from _parts(child, inside)


def _below(node: Stmt) -> list[Stmt]:
    return [each for each in children(node) if isinstance(each, Stmt)]


def _written(node: Stmt) -> list[Buffer]:
    """The buffers that a statement stores to, or passes to functions and instructions."""
    found: dict[Buffer, None] = {}
    for each in walk_once(node):
        if isinstance(each, s.BufferStore):
            found[each.buffer] = None
    if not found:
        found = {each.buffer: None for each in find(e.BufferRef, node)}
    return list(found)


def _read(node: Stmt) -> Iterator[Buffer]:
    return (x.buffer for x in find((e.BufferLoad, e.BufferRef), node))


# -- Operations and loops -------------------------------------------------------------------------


def _nest(found: _Found, code: NestCode, options: CodegenOptions, sizes: Sizes) -> Nest:
    leaves = [pair for part in found.parts for pair in _leaves(part.node, part.path)]
    known = {leaf.var: leaf.value for leaf, _ in leaves if isinstance(leaf, s.LetStmt)}
    counts: Counter[str] = Counter()
    times: dict[tuple[int, ...], Amount] = {}

    def trips(path: Path) -> Amount:
        key = tuple(map(id, path))
        if key not in times:
            times[key] = _trips(path, sizes)
        return times[key]

    is_known = True
    for leaf, path in leaves:
        for name, number, around in _operations(leaf, path):
            often = trips(around)
            is_known &= isinstance(often, int)
            counts[name] += number * (often if isinstance(often, int) else 0)
    leaves = [pair for pair in leaves if not _is_request(pair[0])]
    path = max((path for _, path in leaves), key=_depth)
    bits = max(found.buffers[0].dtype.bits, 8)
    in_loops = max((leaf.value.dtype.lanes for leaf, _ in leaves), default=1)
    in_loops = min(in_loops, options.target.lanes(found.buffers[0].dtype))
    lanes = max(1, code.bits // bits, 1 if code.bits else in_loops)
    notes = [*dict.fromkeys(_notes(leaves, known, lanes, options))]
    if lanes == 1 and not notes and code.bits:
        notes = ["LLVM left it so"]
    return Nest(
        writes=tuple(each.name for each in found.buffers),
        reads=tuple(dict.fromkeys(each.name for each in found.reads)),
        loops=tuple(
            (each.loop_var.name, value_of(each.extent, sizes))
            for each in path
            if isinstance(each, s.For)
        ),
        operations=tuple(pair for pair in counts.most_common() if is_known and pair[1]),
        bits=code.bits or (bits * lanes if lanes > 1 else 0),
        lanes=lanes,
        notes=tuple(notes),
        predicted=None,
        measured=None,
    )


def _is_request(leaf: Leaf) -> bool:
    """Whether a statement only requests a line of memory."""
    call = leaf.value
    return isinstance(leaf, s.Evaluate) and isinstance(call, e.Call) and call.op == "prefetch"


def _depth(path: Path) -> int:
    return sum(isinstance(each, s.For) for each in path)


def _leaves(node: Stmt, path: Path) -> Iterator[tuple[Leaf, Path]]:
    """The statements that compute, and the statements around each. Where a condition tells the main
    part of a loop from its ends, the main part alone."""
    if isinstance(node, (s.BufferStore, s.Evaluate, s.LetStmt)):
        yield node, path
    if isinstance(node, s.IfThenElse) and node.else_case is not None:
        both = [*_leaves(node.then_case, (*path, node))], [*_leaves(node.else_case, (*path, node))]
        yield from both[0] or both[1]
    else:  # a statement that computes has no statement below, or is a name for one
        inside = path if isinstance(node, s.SeqStmt) else (*path, node)
        for child in _below(node):
            yield from _leaves(child, inside)


def _trips(path: Path, sizes: Sizes) -> Amount:
    """How often the statement inside of `path` runs."""
    once = s.Evaluate(e.const(0))
    body: Stmt = once
    for each in reversed(path):
        if isinstance(each, (s.For, s.LetStmt)):
            body = replace(each, body=body)
    return value_of(estimated_sum(body, lambda store: 0.0, partial(_one_if, once.value)), sizes)


def _one_if(counted: PrimExpr, node: PrimExpr) -> float:
    return float(node is counted)


def _operations(leaf: Leaf, path: Path) -> Iterator[tuple[str, int, Path]]:
    """The operations of a statement, their elements, and the statements around each: an access that
    stays where it is while the innermost loop runs is outside of that."""
    if isinstance(leaf, s.LetStmt) and not leaf.value.dtype.is_float and not _loads(leaf.value):
        return  # an index
    if _is_request(leaf):
        yield "prefetches", 1, path
        return
    loaded = set[tuple[Buffer, str]]()  # code generation loads equal elements once
    for name, node in named_operations(leaf.value):
        if not isinstance(node, e.BufferLoad):
            yield name, node.dtype.lanes, path
        elif not _in_registers(node.buffer) and (node.buffer, str(node)) not in loaded:
            loaded.add((node.buffer, str(node)))
            around = _outside(path, node.indices)
            yield _name_of_load(node, path), node.dtype.lanes, around
    if isinstance(leaf, s.BufferStore) and not _in_registers(leaf.buffer):
        name = "scattered stores" if _is_scattered(leaf.buffer, leaf.indices) else "stores"
        yield name, leaf.value.dtype.lanes, _outside(path, leaf.indices)


def _name_of_load(node: e.BufferLoad, path: Path) -> str:
    if _is_scattered(node.buffer, node.indices):
        return "gathers"
    loop = _innermost(path)
    if node.dtype.lanes > 1 or loop is None:
        return "loads"
    step = _steps(node.buffer, node.indices, loop.loop_var)
    return "loads apart" if step is None or abs(step) > _NEAR else "loads"


def _loads(node: PrimExpr) -> list[e.BufferLoad]:
    return [*find(e.BufferLoad, node)]


def _outside(path: Path, indices: Sequence[PrimExpr]) -> Path:
    """The statements around an access, without the innermost loop, and those unrolled inside of it,
    if the access is the same in all of their iterations."""
    loop = _innermost(path)
    place = 0 if loop is None else path.index(loop)
    names = [each.var for each in path[place:] if isinstance(each, s.LetStmt)]
    if any(mentions(name, *indices) for name in names):
        return path
    changing = [
        each
        for each in path[place:]
        if not isinstance(each, s.For) or mentions(each.loop_var, *indices)
    ]
    return (*path[:place], *changing)


def _innermost(path: Path) -> s.For | None:
    """The innermost loop that the machine runs: iterations of an unrolled one are written out."""
    loops = (each for each in path[::-1] if isinstance(each, s.For))
    return next((each for each in loops if each.kind != ForKind.UNROLLED), None)


def _in_registers(buffer: Buffer) -> bool:
    size = constant_bytes(buffer)
    return buffer.scope == "local" and size is not None and size <= STACK_BYTES


def _is_scattered(buffer: Buffer, indices: tuple[PrimExpr, ...]) -> bool:
    """Whether the lanes of an access lie apart, and not just a few elements."""
    steps = 0
    for index, stride in _places(buffer, indices):
        if isinstance(index, e.Ramp):
            steps += (e.const_int(index.stride) or _FAR) * _guessed(stride)
        elif index.dtype.lanes > 1 and not isinstance(index, e.Broadcast):
            return True
    return abs(steps) > _NEAR


def _places(buffer: Buffer, indices: tuple[PrimExpr, ...]) -> list[tuple[PrimExpr, PrimExpr]]:
    """The indices of an access, those of fused loops as one, and their strides."""
    strides = buffer.strides or [
        prod(buffer.shape[dim + 1 :], start=e.const(1)) for dim in range(buffer.ndim)
    ]
    return [(index, strides[dim]) for index, dim in joined(buffer, indices)]


def _guessed(stride: PrimExpr) -> int:
    return e.const_int(stride) or _FAR


# -- Prediction -----------------------------------------------------------------------------------

_ONE_BY_ONE = ("gathers", "loads apart", "scattered stores")
_MOVES = ("loads", "stores", *_ONE_BY_ONE)


def _cycles(nest: Nest, target: Target) -> float | None:
    """About the cycles of a nest, by the instructions that compute and those that move."""
    if not nest.operations:
        return None
    computing = moving = 0.0
    for name, number in nest.operations:
        at_once = 1 if name in _ONE_BY_ONE else nest.lanes
        cost = INTRINSICS[name].cost if name in INTRINSICS else 1.0
        if name in _MOVES:
            moving += number / at_once
        else:
            computing += cost * number / at_once
    return max(computing, moving) / target.processor.ports


# -- In vectors, and why not ----------------------------------------------------------------------


def _notes(
    leaves: Sequence[tuple[Leaf, Path]],
    known: Mapping[Var, PrimExpr],
    lanes: int,
    options: CodegenOptions,
) -> Iterator[str]:
    deepest = max(_depth(path) for _, path in leaves)
    inner = [(leaf, path) for leaf, path in leaves if _depth(path) == deepest]
    if any(leaf.value.dtype.lanes > 1 for leaf, _ in inner):  # vectors by the schedule
        for leaf, _ in inner[:_MOST_LOOKED_AT]:
            yield from _apart_in_lanes(leaf)
        return
    for leaf, path in inner[:_MOST_LOOKED_AT]:
        loop = _innermost(path)
        if loop is not None:
            found = [*_obstacles(leaf, known, loop, options)]
            yield from (each for each, stops in found if lanes == 1 or not stops)


def _apart_in_lanes(leaf: Leaf) -> Iterator[str]:
    for each in walk_once(leaf.value):
        if isinstance(each, e.BufferLoad) and _is_scattered(each.buffer, each.indices):
            yield f"{each.buffer.name} is read lane by lane: {_why_apart(each.indices)}"
    if isinstance(leaf, s.BufferStore) and _is_scattered(leaf.buffer, leaf.indices):
        yield f"{leaf.buffer.name} is written lane by lane: {_why_apart(leaf.indices)}"


def _why_apart(indices: Sequence[PrimExpr]) -> str:
    tables = [x.buffer.name for i in indices for x in find(e.BufferLoad, i)]
    return f"at places that {tables[0]} holds" if tables else "its elements lie apart"


def _obstacles(
    leaf: Leaf, known: Mapping[Var, PrimExpr], loop: s.For, options: CodegenOptions
) -> Iterator[tuple[str, bool]]:
    """The obstacles that keep a plain loop from running in vectors, or slow it down; and whether
    they keep it from running in vectors."""
    var = loop.loop_var
    extent = e.const_int(loop.extent)
    if extent is not None and extent < 4:
        yield f"{var.name} has {extent} iterations", True
    data = [x.buffer.name for x in find(e.BufferLoad, loop.extent)]
    for table in data[:1]:
        length = f"the length of {var.name} is read from {table}"
        yield f"{length}, and counts as {int(TRIPS_FROM_DATA)} iterations", False
    for each in walk_once(leaf.value):
        if isinstance(each, e.Call) and each.op in ("call_extern", "call_packed"):
            yield f"a function is called for each element: {each.args[0]}", True
        elif isinstance(each, e.BufferLoad):
            yield from _apart_along(each.buffer, each.indices, "read", var)
    if not isinstance(leaf, s.BufferStore):
        return
    value = known.get(leaf.value, leaf.value) if isinstance(leaf.value, Var) else leaf.value
    own = [x for x in walk_once(value) if isinstance(x, e.BufferLoad) if x.buffer is leaf.buffer]
    moves = _steps(leaf.buffer, leaf.indices, var)
    if own and moves == 0:
        yield from _of_reduction(value, options)
    elif any(_is_from_before(each, leaf, var) for each in own):
        yield f"each step of {var.name} reads elements of {leaf.buffer.name} from others", True
    yield from _apart_along(leaf.buffer, leaf.indices, "written", var)


def _of_reduction(value: PrimExpr, options: CodegenOptions) -> Iterator[tuple[str, bool]]:
    if options.strict and value.dtype.is_float:
        yield 'floats are added in order: fp="strict"', True
    if not isinstance(value, (e.Add, e.Mul, e.Min, e.Max)):
        names = {name for name, _ in named_operations(value)} - {"loads", "conversions"}
        yield f"a reduction by {' and '.join(sorted(names))} isn't divided among lanes", True


def _apart_along(
    buffer: Buffer, indices: tuple[PrimExpr, ...], how: str, var: Var
) -> Iterator[tuple[str, bool]]:
    distance = _distance(buffer, indices, var)
    tables = [x for i in indices for x in find(e.BufferLoad, i)]
    if any(mentions(var, each) for each in tables):
        yield f"{buffer.name} is {how} at places that {tables[0].buffer.name} holds", False
    elif distance is None:
        yield f"{buffer.name} is {how} at places that change irregularly along {var.name}", False
    elif abs(steps := _guess(distance)) > 1:
        moves = [(step if steps > 0 else -step, stride) for step, stride in distance]
        apart = Analyzer().simplify(sum((stride * step for step, stride in moves), e.const(0)))
        yield f"{buffer.name} is {how} {apart} elements apart along {var.name}", False


def _distance(
    buffer: Buffer, indices: tuple[PrimExpr, ...], var: Var
) -> list[tuple[int, PrimExpr]] | None:
    """From one iteration's access to the next one's: the steps along each dimension, and its
    stride in elements; None if the distance varies."""
    places = [(_step(index, var), stride) for index, stride in _places(buffer, indices)]
    found = [(step, stride) for step, stride in places if step is not None]
    return found if len(found) == len(places) else None


def _guess(distance: Sequence[tuple[int, PrimExpr]]) -> int:
    return sum(step * _guessed(stride) for step, stride in distance)


def _steps(buffer: Buffer, indices: tuple[PrimExpr, ...], var: Var) -> int | None:
    """The distance in elements, a guess in a tensor of symbolic shape; None if it varies."""
    distance = _distance(buffer, indices, var)
    return None if distance is None else _guess(distance)


def _step(index: PrimExpr, var: Var) -> int | None:
    """As :func:`step_of`, of an index in any width."""
    if isinstance(index, e.Cast):
        return _step(index.value, var)
    if isinstance(index, e.Add):
        parts = _step(index.a, var), _step(index.b, var)
        return None if parts[0] is None or parts[1] is None else parts[0] + parts[1]
    return step_of(index, var)


def _is_from_before(load: e.BufferLoad, store: s.BufferStore, var: Var) -> bool:
    """Whether a load reads an element that another iteration of the loop over `var` stores."""
    simplify = Analyzer().simplify
    for read, written in zip(load.indices, store.indices, strict=True):
        same = read.dtype == written.dtype and e.const_int(simplify(read - written)) == 0
        if not same:
            return mentions(var, written)
    return False


# -- Marks and clocks -----------------------------------------------------------------------------


class _Wrapped(Mutator):
    """Statements with something around them, by their identity."""

    def __init__(self, around: Mapping[int, Callable[[Stmt], Stmt]]) -> None:
        super().__init__()
        self._around = around

    def stmt(self, node: Stmt) -> Stmt:
        wrap = self._around.get(id(node))
        return super().stmt(node) if wrap is None else wrap(node)


def _wrapped(func: PrimFunc, found: Sequence[_Found], wrap: Callable[[int, Stmt], Stmt]) -> Stmt:
    around = {
        id(part.node): partial(wrap, i)
        for i, each in enumerate(found)
        for part in each.parts
        if not part.is_begin or not each.reads
    }
    return _Wrapped(around).stmt(func.body)


def _codes(func: PrimFunc, found: Sequence[_Found], options: CodegenOptions) -> dict[int, NestCode]:
    """The machine code of each nest."""
    if options.target.arch != "x86_64":
        return {}
    marks = e.StringImm(definitions_of_marks(len(found)))

    def mark(i: int) -> Stmt:
        return s.Evaluate(e.Call(INT32, "call_extern", (e.StringImm(f"nest.{i}"),)))

    body = _wrapped(func, found, lambda i, node: s.seq(mark(i), node, mark(-1)))
    body = s.AttrStmt(None, "pragma_import_llvm", marks, body)
    marked = replace(func, body=body)
    module = module_text(IRModule({func.name: marked}), options)
    return codes_of_nests(emit_assembly(module, options.target))


def measured(
    nests: Sequence[Nest], func: PrimFunc, args: Sequence[Any], options: CodegenOptions
) -> tuple[Nest, ...]:
    """The nests with their shares of the time of calls with `args`, on one thread."""
    found, sizes = _found(func), [_cycles(each, options.target) or 0.0 for each in nests]
    begins = [sum(map(_begins, each.parts)) for each in found]
    is_long = [size >= _LEAST_CYCLES * n for size, n in zip(sizes, begins, strict=True)]
    if len(found) < 2 or not any(is_long):
        return tuple(nests)
    clocked = _clocked(func, found, is_long, _CLOCKS[options.target.arch])
    run = compile_module(IRModule({func.name: clocked}), options)
    best = np.zeros(0)
    with num_threads(1):
        for _ in range(_ROUNDS):
            taken = np.zeros(len(found) + 2, "int64")
            run(*args, taken)
            best = taken if not best.size or taken[-1] < best[-1] else best
    reading = best[-2] / _READINGS
    ticks = [max(float(t) - reading * n, 0.0) for t, n in zip(best, begins, strict=False)]
    read = sum(n for n, long in zip(begins, is_long, strict=True) if long)
    total = float(best[-1]) - reading * (2 * read + _READINGS)
    return tuple(
        replace(nest, measured=min(t / max(total, 1.0), 1.0) if long else None)
        for nest, t, long in zip(nests, ticks, is_long, strict=True)
    )


def _begins(part: _Part) -> int:
    """How often a part begins; 1 where that is symbolic."""
    trips = 0 if part.is_begin else _trips(part.path, {})
    return trips if isinstance(trips, int) else 1


def _clocked(
    func: PrimFunc, found: Sequence[_Found], is_long: Sequence[bool], clock: str
) -> PrimFunc:
    """A function with another argument, to whose elements it adds the time of each long nest; to
    the last two, the time of `_READINGS` readings of the clock, and the time of the whole call."""
    ticks, handle = decl_buffer((len(found) + 2,), "int64", "ticks"), Var("ticks", HANDLE)

    def timed(i: int, node: Stmt) -> Stmt:
        begin, place = Var("begin", INT64), e.const(i)
        now = e.Call(INT64, "call_llvm_intrin", (e.StringImm(clock),))
        passed = e.BufferLoad(ticks, (place,)) + (now - begin)
        return s.LetStmt(begin, now, s.seq(node, s.BufferStore(ticks, passed, (place,))))

    body = _wrapped(func, found, lambda i, node: timed(i, node) if is_long[i] else node)
    nothing = timed(len(found), s.seq())
    count = s.For(Var("i"), e.const(0), e.const(_READINGS), ForKind.SERIAL, nothing)
    outputs = func.attrs.outputs
    return replace(
        func,
        params=(*func.params, handle),
        buffer_map={**func.buffer_map, handle: ticks},
        body=timed(len(found) + 1, s.seq(count, body)),
        attrs=replace(func.attrs, outputs=None if outputs is None else outputs | {ticks}),
    )
