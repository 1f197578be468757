"""Bound inference: the elements that each stage of a schedule computes, and its loops.

Stages are visited consumers first. A stage at the root computes its whole domain. A stage placed at
a loop of a consumer computes the region that one iteration of this loop reads, in terms of the
loops around it. Ranges then flow down the relations to the loops; a split that leaves a remainder
makes a guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import permutations
from typing import final

from minitvm.arith.coverage import Coverage, Read
from minitvm.arith.fused_index import without_remainders
from minitvm.arith.guards import conjuncts, form_of
from minitvm.arith.linear import Affine
from minitvm.arith.prover import Prover
from minitvm.arith.regions import Span, Spans
from minitvm.runtime.dtype import INT64
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.schedules.operation_graph import root_axes
from minitvm.te.schedules.relation import (
    Fuse,
    Rebase,
    Singleton,
    Split,
    guards_of,
    ranges_of,
    results_of,
    sources_of,
    values_of,
)
from minitvm.te.schedules.scans import Scans
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, ScanOp, domain_of
from minitvm.tir import expr as e
from minitvm.tir.expr import (
    BufferLoad,
    Call,
    FloatImm,
    IntImm,
    IterType,
    IterVar,
    PrimExpr,
    Range,
    Reduce,
    Var,
    const,
)
from minitvm.tir.functor import Node, find, substitute, walk_once
from minitvm.tir.stmt import ForKind

Loop = tuple[Stage, IterVar]


@final
@record(frozen=False)
class Bounds:
    """The bounds of one stage: its ranges, guards and memory.

    Attributes
    ----------
    ranges
        The range of every axis.
    values
        The value of every axis, in terms of the loop variables.
    guards
        For each root axis, the conditions under which the loops are inside of its range and domain.
    begins
        For each dimension of the stage's tensors, the index of the first element computed; None
        where all elements are computed.
    shape
        The shape of the memory for these elements; None where it is the tensor's shape.
    partial
        The dimensions along which the memory holds more elements than one iteration of the loops
        around computes.
    is_padded
        Whether the memory also holds the elements that guards of data axes leave out.
    names
        Variables for parts of the ranges that are too long to be repeated at each use, and their
        values in terms of the loops around and of earlier variables.
    """

    ranges: dict[IterVar, Range]
    values: dict[IterVar, PrimExpr]
    guards: dict[IterVar, list[PrimExpr]]
    begins: tuple[PrimExpr, ...] | None = None
    shape: tuple[PrimExpr, ...] | None = None
    partial: tuple[int, ...] = ()
    is_padded: bool = False
    names: list[tuple[Var, PrimExpr]] = field(default_factory=list)


@final
@record()
class _Room:
    """Memory along one axis: its first element, the number of elements, whether it holds all
    elements that the loops may reach, and whether it holds only those that one iteration of the
    loops around computes.
    """

    begin: PrimExpr
    extent: PrimExpr
    is_enough: bool = True
    is_exact: bool = True


@final
@record(frozen=False)
class Inferred:
    """The bounds and the place of each stage; for an argument, the extents that must be at least 1
    for its elements to be computed."""

    bounds: dict[Stage, Bounds] = field(default_factory=dict)
    places: dict[Stage, Loop] = field(default_factory=dict)
    wanted: dict[Stage, list[PrimExpr]] = field(default_factory=dict)


@final
@record(frozen=False)
class BoundInference:
    """The bounds of all stages of a normalised schedule that are computed; see :meth:`run`.

    Attributes
    ----------
    schedule
        Normalised.
    reads
        The reads of each stage, with indices in terms of its root axes.
    readers
        The readers of each stage, after inlining.
    is_of
        Whether a read reads a stage's tensors.
    internal
        Whether a stage's memory is the program's own.
    is_argument
        Whether the caller gets the result of a stage.
    scans
        The scans, and the stages inside of them.
    read
        Turns reads of tensors in the expression of a range into reads of their buffers.
    domain
        The range of a root axis of a stage.
    """

    schedule: Schedule
    reads: Mapping[Stage, Sequence[BufferLoad]]
    readers: Callable[[Stage], list[Stage]]
    is_of: Callable[[BufferLoad, Stage], bool]
    internal: Callable[[Stage], bool]
    is_argument: Callable[[Stage], bool]
    scans: Scans
    read: Callable[[PrimExpr], PrimExpr]
    domain: Callable[[Stage, IterVar], Range]
    _found: Inferred = field(default_factory=Inferred, init=False)
    _sizes: list[PrimExpr] | None = field(default=None, init=False)  # those that are symbolic
    # For each stage that has a place, the region that one iteration there computes.
    _regions: dict[Stage, list[Span | None]] = field(default_factory=dict, init=False)
    # The stages, each with a reader that needs only elements for which a condition holds.
    _conditional: set[tuple[Stage, Stage]] = field(default_factory=set, init=False)

    def run(self) -> Inferred:
        """The bounds of each stage.

        Raises
        ------
        CompileError
            When a stage is placed where not all of its readers are, or an argument where not all
            of its elements are computed.
        """
        for stage in reversed(self.schedule.stages):
            if stage not in self.reads:
                continue
            place = place_of(stage, self.scans)
            if place is not None:
                self._check_place(stage, place)
                self._found.places[stage] = place
            self._found.bounds[stage] = self._bounds(stage, place)
            if place is not None and self.is_argument(stage):
                self._check_argument(stage, place)
        found = self._found.bounds.items()
        growing = [each for each, of in found if of.partial or isinstance(each.op, ScanOp)]
        for stage, bounds in found if growing else []:
            bounds.is_padded = bounds.is_padded and not self._reads_unwritten(stage, growing)
        return self._found

    def _reads_unwritten(self, stage: Stage, growing: Sequence[Stage]) -> bool:
        """Whether padding would be computed from elements that are not computed yet, because the
        tensor's memory holds more than one iteration computes."""
        guards = self._found.bounds[stage].guards
        guarded = {axis.var for axis in root_axes(stage.op) if guards[axis]}
        return any(
            not guarded.isdisjoint(walk_once(load.indices[i]))
            for load in self.reads[stage]
            for source in growing
            if self.is_of(load, source)
            for i in self._incomplete(source, stage)
        )

    def _incomplete(self, stage: Stage, reader: Stage) -> tuple[int, ...]:
        """The dimensions along which a stage has memory for elements that aren't computed yet when
        `reader` reads it."""
        is_state = self.scans.inside.get(reader) is stage
        return (0,) if is_state else self._found.bounds[stage].partial  # 0 is time

    def _bounds(self, stage: Stage, place: Loop | None) -> Bounds:
        """The bounds of a stage, given those of its readers."""
        op = stage.op
        if place is None or not isinstance(op, ComputeOp):
            if place is not None:
                self._check_readers(stage, place)
            return self._of_loops(stage, self._domains(stage), Prover())
        prover = self._knowing_sizes()
        for size in stage.op.output(0).shape:
            prover.bind_size(size)
        around = [*self._path(place[0]), *self._loops_to(place)]
        self._bind(prover, around)
        regions = self._regions[stage] = self._regions_inside(stage, op, place, prover)
        domains = self._domains(stage)
        roots = dict(domains)
        names: list[tuple[Var, PrimExpr]] = []
        for axis, region in zip(op.axis, regions, strict=True):
            if region is not None:
                roots[axis] = Range.from_min_extent(
                    _named(prover, f"{axis.name}.begin", region.low, axis, names),
                    _named(prover, f"{axis.name}.extent", region.extent, axis, names),
                )
        made = self._of_loops(stage, roots, prover)
        made.names = names
        for axis, region in zip(op.axis, regions, strict=True):
            if region is not None:
                _guard(prover, made, axis, region, domain_of(axis))
        steps = self.scans.read_at.get(stage)
        if steps is not None and regions[0] is not None:
            _guard(prover, made, op.axis[0], regions[0], steps)
        rooms = [self._room(prover, stage, made, axis, domains[axis], around) for axis in op.axis]
        if self.internal(stage):
            made.begins = tuple(room.begin for room in rooms)
            made.shape = tuple(room.extent for room in rooms)
            is_moved = _fuses_data(stage) or _runs_backwards(stage)
            made.is_padded = all(room.is_enough for room in rooms) and not is_moved
        made.partial = tuple(
            i
            for i, region in enumerate(regions)
            if region is not None and not (self.internal(stage) and rooms[i].is_exact)
        )
        return made

    def _regions_inside(
        self, stage: Stage, op: ComputeOp, place: Loop, prover: Prover
    ) -> list[Span | None]:
        """For each axis of a stage, the region that one iteration of the loop `place` computes;
        None for the whole domain."""
        spans: list[Span | None] = [None] * len(op.axis)
        if stage not in self.scans.updates:
            self._check_readers(stage, place)
            spans = self._spans_inside(stage, place, prover)
        regions = [
            None if axis is stage.accumulates else self._clamped(prover, stage, span, axis)
            for span, axis in zip(spans, op.axis, strict=True)
        ]
        steps = self.scans.read_at.get(stage)
        if steps is not None:
            regions[0] = _of_time(prover, regions[0], steps)
        return regions

    def _of_loops(self, stage: Stage, roots: dict[IterVar, Range], prover: Prover) -> Bounds:
        """The loops over some ranges of the root axes."""
        ranges = ranges_of(stage.relations, roots)
        loops: dict[IterVar, PrimExpr] = {}
        for leaf in stage.leaf_iter_vars:
            once = e.const_int(ranges[leaf].extent) == 1 and e.const_int(ranges[leaf].min) == 0
            loops[leaf] = const(0, leaf.var.dtype) if once else leaf.var
        values = values_of(stage.relations, ranges, loops)
        if _are_ragged(roots):
            ranges, values = _resolved(ranges, values, roots)
        made = Bounds(ranges, values, {axis: [] for axis in roots})
        # A root axis above each axis; a loop that fuse() of no axes made has none.
        above = {axis: axis for axis in roots}
        for relation in stage.relations:
            for source in reversed(sources_of(relation)):
                if source in above:
                    above.update((result, above[source]) for result in results_of(relation))
        for guard in guards_of(stage.relations, ranges, values, prover):
            made.guards[above[guard.axis]].append(guard.condition)
        return made

    def _bind(self, prover: Prover, around: Sequence[Loop]) -> None:
        """Let `prover` know the loops around and the names between them."""
        named: set[Stage] = set()
        for stage, leaf in around:
            bounds = self._found.bounds[stage]
            for var, value in () if stage in named else bounds.names:
                prover.bind(var, value)
            named.add(stage)
            prover.bind(leaf.var, bounds.ranges[leaf])

    def _domains(self, stage: Stage) -> dict[IterVar, Range]:
        domains = {}
        for axis in root_axes(stage.op):
            domain = self.domain(stage, axis)
            low, extent = self.read(domain.min), self.read(domain.extent)
            dtype = axis.var.dtype
            domains[axis] = Range.from_min_extent(e.cast(dtype, low), e.cast(dtype, extent))
        return domains

    # -- Regions ----------------------------------------------------------------------------------

    def _path(self, stage: Stage) -> list[Loop]:
        """The loops around the loops of a stage, the outermost first."""
        place = self._found.places.get(stage)
        return [] if place is None else [*self._path(place[0]), *self._loops_to(place)]

    def _loops_to(self, place: Loop) -> list[Loop]:
        stage, axis = place
        last = stage.leaf_iter_vars.index(axis)
        return [(stage, leaf) for leaf in stage.leaf_iter_vars[: last + 1]]

    def _check_place(self, stage: Stage, place: Loop) -> None:
        parent, axis = place
        where = f"{stage.name}: computed at loop {axis.name} of {parent.name}"
        if parent not in self._found.bounds:
            raise CompileError(
                f"{where}, which is inlined and has no loops: compute {stage.name} elsewhere, or "
                f"{parent.name} at the root"
            )
        if axis not in parent.leaf_iter_vars:
            loops = ", ".join(leaf.name for leaf in parent.leaf_iter_vars)
            raise CompileError(
                f"{where}, whose loops began anew since ({loops}): compute {stage.name} at one of "
                "those"
            )

    def _check_readers(self, stage: Stage, place: Loop) -> None:
        for reader in self.readers(stage):
            if reader is place[0] and isinstance(reader.op, ScanOp):
                raise CompileError(
                    f"{stage.name}: computed at loop {place[1].name} of {reader.name}, which "
                    f"begins from {stage.name}: compute it at the root"
                )
            if reader is not place[0] and place not in self._path(reader):
                raise CompileError(
                    f"{stage.name}: computed at loop {place[1].name} of {place[0].name}, but it is "
                    f"read by {reader.name}, too, which is outside of that loop: compute it at the "
                    f"root, or compute {reader.name} inside of that loop"
                )

    # -- Arguments --------------------------------------------------------------------------------

    def _check_argument(self, stage: Stage, place: Loop) -> None:
        """Checks that all elements of an argument are computed, each by one thread."""
        where = f"{stage.name}: computed at loop {place[1].name} of {place[0].name}"
        advice = f"compute it at the root, or leave {stage.name} out of the arguments"
        coverage = self._coverage(stage)
        if not self._is_whole(stage, coverage):
            raise CompileError(
                f"{where}: expected all elements of an argument to be computed, but that loop may "
                f"need only some of them: {advice}"
            )
        self._found.wanted[stage] = coverage.wanted
        for parent, loop in self._path(stage):
            kind = parent.attrs_of(loop).kind
            if kind in (ForKind.SERIAL, ForKind.UNROLLED) or self._is_apart(stage, loop):
                continue
            raise CompileError(
                f"{where}: expected the iterations of the {kind.name.lower()} loop {loop.name} of "
                f"{parent.name} to compute different elements of an argument, but several may "
                f"compute the same: {advice}"
            )

    def _coverage(self, stage: Stage) -> Coverage:
        """The proofs of full coverage, which may assume that a stage's tensor has elements."""
        prover = self._knowing_sizes()
        for i, size in enumerate(stage.op.output(0).shape):
            prover.bind(Var(f"element.{i}", size.dtype), Range(0, size))
        return Coverage(prover)

    def _knowing_sizes(self) -> Prover:
        prover = Prover()
        if self._sizes is None:
            shapes = [each.op.output(0).shape for each in self.schedule.stages]
            sizes = (size for shape in shapes for size in shape)
            self._sizes = [*dict.fromkeys(each for each in sizes if e.const_int(each) is None)]
        for size in self._sizes:
            prover.bind_size(size)
        return prover

    def _is_whole(self, stage: Stage, coverage: Coverage) -> bool:
        """Whether all elements of a stage are surely computed: read by a stage that is computed
        whole, or computed in each iteration of a loop that surely has one."""
        if stage not in self._found.places or stage in self.scans.updates:
            return True
        if stage in self.scans.inside:
            return False  # without elements at the first time steps
        regions = self._regions.get(stage, [])
        partial = [i for i, region in enumerate(regions) if region is not None]
        if partial:
            domains = [*self._domains(stage).values()]
            reads = self._whole_reads(stage, partial, coverage)
            if not coverage.reach_all([domains[i] for i in partial], reads):
                return False
        for range_, leaf in self._ranges_around(stage):
            if not coverage.is_nonempty(range_.extent):
                return False
            coverage.prover.bind(leaf.var, range_)
        return True

    def _whole_reads(
        self, stage: Stage, dimensions: Sequence[int], coverage: Coverage
    ) -> list[Read]:
        """The reads of some dimensions of a stage by stages that are computed whole."""
        found = []
        for reader in self.readers(stage):
            if (stage, reader) in self._conditional or not self._is_whole(reader, coverage):
                continue
            ranges = {axis.var: range_ for axis, range_ in self._domains(reader).items()}
            times = self.scans.times.get(reader)
            if times is not None:
                time = root_axes(reader.op)[0] if reader.time is None else reader.time
                ranges[time.var] = times
            found += [
                Read(tuple(load.indices[i] for i in dimensions), ranges)
                for load in self.reads[reader]
                if self.is_of(load, stage)
            ]
        return found

    def _ranges_around(self, stage: Stage) -> list[tuple[Range, IterVar]]:
        """The loops around a stage and their ranges, in terms of those further out."""
        found: list[tuple[Range, IterVar]] = []
        for parent, leaf in self._path(stage):
            range_ = self._found.bounds[parent].ranges[leaf]
            extent = self._spelt_out(stage, range_.extent)
            found.append((Range.from_min_extent(range_.min, extent), leaf))
        return found

    def _spelt_out(self, stage: Stage, value: PrimExpr) -> PrimExpr:
        """A value in terms of the loops around a stage, without names for parts of it."""
        for parent in reversed(dict.fromkeys(parent for parent, _ in self._path(stage))):
            for var, meaning in reversed(self._found.bounds[parent].names):
                value = substitute(value, {var: meaning})
        return value

    def _is_apart(self, stage: Stage, loop: IterVar) -> bool:
        """Whether the iterations of a loop around a stage all compute different elements of it."""
        prover = self._knowing_sizes()
        spans = Spans(prover)
        around = self._ranges_around(stage)
        place = [leaf for _, leaf in around].index(loop)
        for range_, leaf in around[: place + 1]:
            prover.bind(leaf.var, range_)
        for range_, leaf in around[place + 1 :]:
            prover.bind(leaf.var, range_)
            spans.let(leaf.var, spans.of_range(range_))
        later = Var(loop.name, loop.var.dtype, axis=True)
        extent = around[place][0].extent
        if e.const_int(extent) == 1:
            return True
        prover.bind(later, Range.from_min_extent(loop.var + 1, extent - loop.var - 1))

        def at(form: Affine, low: bool) -> Affine | None:
            span = spans.of(self._spelt_out(stage, prover.expression(form, INT64)))
            return None if span is None else span.low if low else span.high

        def moved(form: Affine) -> Affine:
            by_loop = form.terms.get(loop.var, 0)
            rest = prover.expression(form - Affine.of_atom(loop.var) * by_loop, INT64)
            whole = prover.affine(substitute(rest, {loop.var: later}))
            return whole + Affine.of_atom(later) * by_loop

        reached: list[tuple[Affine, Affine, PrimExpr]] = []
        for region, size in zip(self._regions[stage], stage.op.output(0).shape, strict=True):
            span = Span(Affine(), prover.affine(size) - 1) if region is None else region
            low, high = at(span.low, True), at(span.high, False)
            if low is None or high is None:
                return False
            if prover.proves(moved(low) - high - 1) or prover.proves(low - moved(high) - 1):
                return True
            reached.append((low, high, size))
        # The digits of fused loops are apart when together they make the fused index, in any order;
        # of many digits, only in their own.
        for order in permutations(reached) if len(reached) < 5 else [reached]:
            first, last = Affine(), Affine()
            for low, high, size in order:
                first, last = (
                    prover.affine(prover.expression(each, INT64) * size) + end
                    for each, end in ((first, low), (last, high))
                )
            first, last = (without_remainders(prover, each) for each in (first, last))
            if prover.proves(moved(first) - last - 1):
                return True
        return False

    def _spans_inside(self, stage: Stage, place: Loop, prover: Prover) -> list[Span | None]:
        """For each dimension, the span of all reads in one iteration of the loop `place`."""
        ndim = stage.op.output(0).ndim
        found: list[Span | None] = [None] * ndim
        unknown = [False] * ndim
        for reader in self.readers(stage):
            with prover.scope():  # where the loops inside are not empty
                spans = self._reader_spans(reader, place, prover)
                # All elements of an argument are computed, those that nothing reads, too.
                is_whole = self.is_argument(stage)
                forms = [] if is_whole else _conditions(reader, prover, _has_whole_tiles(stage))
                if forms:
                    self._conditional.add((stage, reader))
                loops = self._fused_loops(reader)
                for load in self.reads[reader]:
                    if not self.is_of(load, stage):
                        continue
                    for i, index in enumerate(load.indices):
                        span = (
                            _read(spans, index, loops) if isinstance(reader.op, ComputeOp) else None
                        )
                        old = found[i]
                        unknown[i] |= span is None
                        if span is not None:
                            span = spans.where(index, span, forms)
                        found[i] = span if old is None or span is None else spans.union(old, span)
        return [None if hidden else span for span, hidden in zip(found, unknown, strict=True)]

    def _fused_loops(self, reader: Stage) -> dict[Var, PrimExpr]:
        """The axes of a reader whose data axes were fused, in terms of its loops."""
        if not _fuses_data(reader):
            return {}
        values = self._found.bounds[reader].values
        return {axis.var: values[axis] for axis in root_axes(reader.op)}

    def _reader_spans(self, reader: Stage, place: Loop, prover: Prover) -> Spans:
        """The spans of the root axes of a reader in one iteration of the loop `place`."""
        spans = Spans(prover)
        path = self._path(reader)
        inside = path[path.index(place) + 1 :] if place in path else []
        fixed = set() if place in path else {loop[1] for loop in self._loops_to(place)}
        named = {place[0]}
        for stage, leaf in inside:
            self._relax_names(spans, stage, named)
            self._relax(spans, prover, self._found.bounds[stage].ranges[leaf], leaf)
        self._relax_names(spans, reader, named)
        bounds = self._found.bounds[reader]
        leaves: dict[IterVar, tuple[Span | None, bool]] = {}
        for leaf in reader.leaf_iter_vars:
            if leaf in fixed:
                leaves[leaf] = spans.point(bounds.values[leaf]), False
            else:
                leaves[leaf] = self._relax(spans, prover, bounds.ranges[leaf], leaf), True
        for axis, span in axis_spans(reader, bounds, spans, leaves).items():
            spans.let(axis.var, span)
        return spans

    def _relax_names(self, spans: Spans, stage: Stage, done: set[Stage]) -> None:
        """Let the names of a stage computed inside take all their values."""
        for var, value in () if stage in done else self._found.bounds[stage].names:
            spans.let(var, spans.of(value))
        done.add(stage)

    def _relax(self, spans: Spans, prover: Prover, range_: Range, leaf: IterVar) -> Span | None:
        """Let a loop variable take all its values; it has at least one."""
        prover.bind(leaf.var, range_)
        span = spans.of_range(range_)
        spans.let(leaf.var, span)
        return span

    def _clamped(
        self, prover: Prover, stage: Stage, span: Span | None, axis: IterVar
    ) -> Span | None:
        """A region cut to the domain, where its bounds are known; None for the whole domain. Tiles
        of a constant size keep it beside a domain that is smaller, but of unknown size."""
        if span is None:
            return None
        domain = domain_of(axis)
        first = prover.affine(domain.min)
        whole = Span(first, first + prover.affine(domain.extent) - 1)
        if not any(f.terms for f in (span.low, span.high, whole.low, whole.high)):
            low = max(span.low.constant, whole.low.constant)
            high = min(span.high.constant, whole.high.constant)
            return Span(Affine({}, low), Affine({}, max(high, low - 1)))
        is_tile = not span.extent.terms and whole.extent.terms and self._serves_whole_tiles(stage)
        if not is_tile and prover.proves(span.extent - whole.extent):
            return None  # the region is the whole domain
        return span

    def _serves_whole_tiles(self, stage: Stage) -> bool:
        """Whether the tiles of a stage, or of one that it is computed from at the same loop, have
        one size."""
        place = place_of(stage, self.scans)
        return _has_whole_tiles(stage) or any(
            self.schedule.consumes(stage, each)
            for each in self.schedule.stages
            if place_of(each, self.scans) == place and _has_whole_tiles(each)
        )

    def _room(
        self,
        prover: Prover,
        stage: Stage,
        made: Bounds,
        axis: IterVar,
        whole: Range,
        around: Sequence[Loop],
    ) -> _Room:
        """The memory along an axis with the domain `whole`."""
        begin, dtype = made.ranges[axis].min, axis.var.dtype
        covered = _covered(stage, made, axis)
        outer = dict.fromkeys(parent for parent, _ in around)
        names = [each for parent in outer for each in self._found.bounds[parent].names]
        for var, value in reversed([*names, *made.names]):
            covered = substitute(covered, {var: value})
        form = prover.affine(covered)
        if not form.terms:
            return _Room(begin, const(form.constant, dtype))
        # Memory has one size for all iterations around it.
        loops = {leaf.var for _, leaf in around}
        variables = set(find(Var, *form.terms))
        high = prover.interval(form)[1]
        most = e.const_int(whole.extent)
        if most is None:
            most = dtype.max() - 1  # the dtype's own maximum says nothing
        if variables <= self._counted(around) and isinstance(high, int) and high <= most:
            return _Room(begin, const(max(high, 0), dtype))
        if not variables.isdisjoint(loops):
            return _Room(whole.min, whole.extent, not made.guards[axis], is_exact=False)
        needed = prover.expression(form, dtype)
        known = prover.proves(form)
        return _Room(begin, needed if known else e.maximum(needed, const(0, dtype)))

    def _counted(self, around: Sequence[Loop]) -> set[Var]:
        """The variables of the loops with constant extents."""
        ranges = [(leaf, self._found.bounds[stage].ranges[leaf]) for stage, leaf in around]
        return {leaf.var for leaf, range_ in ranges if e.const_int(range_.extent) is not None}


def _has_whole_tiles(stage: Stage) -> bool:
    """Whether a stage's tiles have one size: they lie in registers, or a loop that isn't a part of
    a split is unrolled or in vectors."""
    splits = [each for each in stage.relations if isinstance(each, Split)]
    parts = {leaf for each in splits for leaf in results_of(each)}
    whole = [stage.attrs_of(leaf).kind for leaf in stage.leaf_iter_vars if leaf not in parts]
    return stage.scope == "local" or bool({ForKind.UNROLLED, ForKind.VECTORIZED} & {*whole})


def _conditions(reader: Stage, prover: Prover, has_whole_tiles: bool) -> list[Affine]:
    """Forms that are at least zero in the steps of a stage that read anything: of a reduction with
    a condition, or of elements that are constants elsewhere. Tiles of one size are computed whole
    for such elements."""
    if has_whole_tiles:
        return []
    match reader.op.body if isinstance(reader.op, ComputeOp) else ():
        case (Reduce(condition=condition), *_) | (
            Call(op="if_then_else", args=(condition, _, IntImm() | FloatImm())),
        ):
            forms = (form_of(prover, each) for each in conjuncts(condition))
            return [form for form in forms if form is not None]
    return []


def place_of(stage: Stage, scans: Scans) -> Loop | None:
    """The loop at which a stage is computed: its own place, its group's, or its scan's."""
    here = stage if stage.attach_stage is not None else stage.group
    if here is not None and here.attach_stage is not None and here.attach_ivar is not None:
        return here.attach_stage, here.attach_ivar
    scan = scans.inside.get(stage)
    return None if scan is None else (scan, scan.leaf_iter_vars[0])


def _of_time(prover: Prover, region: Span | None, steps: Range) -> Span:
    """A region of time steps, or `steps` where the region surely contains all of them."""
    low = prover.affine(steps.min)
    high = low + prover.affine(steps.extent) - 1
    if region is None or prover.proves(low - region.low, region.high - high):
        return Span(low, high)
    return region


def _guard(prover: Prover, made: Bounds, axis: IterVar, region: Span, within: Range) -> None:
    """Adds the guards that keep `axis` inside of `within`, where its region may leave it. The
    elements left out need no value: they don't exist, or the reader guards its reads."""
    value = made.values[axis]
    first = prover.affine(within.min)
    end = first + prover.affine(within.extent)
    if not prover.proves(region.low - first):
        made.guards[axis].append(e.greater_equal(value, within.min))
    if not prover.proves(end - region.high - 1):
        made.guards[axis].append(e.less(value, within.min + within.extent))


def _are_ragged(roots: Mapping[IterVar, Range]) -> bool:
    """Whether the range of an axis depends on another axis of its operation."""
    ends = [end for range_ in roots.values() for end in (range_.min, range_.extent)]
    return not {axis.var for axis in roots}.isdisjoint(walk_once(*ends))


def _resolved(
    ranges: Mapping[IterVar, Range],
    values: Mapping[IterVar, PrimExpr],
    roots: Iterable[IterVar],
) -> tuple[dict[IterVar, Range], dict[IterVar, PrimExpr]]:
    """Ranges and values in terms of the loops alone, where some ranges depend on root axes."""
    made = dict(values)
    for _ in [*roots]:  # an axis depends on those before it
        known = {axis.var: made[axis] for axis in roots if made[axis] is not axis.var}
        made = {axis: substitute(value, known) for axis, value in values.items()}
    known = {axis.var: made[axis] for axis in roots if made[axis] is not axis.var}

    def at(bound: PrimExpr) -> PrimExpr:
        return substitute(bound, known)

    resolved = {
        axis: Range.from_min_extent(at(range_.min), at(range_.extent))
        for axis, range_ in ranges.items()
    }
    return resolved, made


def axis_spans(
    stage: Stage,
    bounds: Bounds,
    spans: Spans,
    leaves: Mapping[IterVar, tuple[Span | None, bool]],
) -> dict[IterVar, Span | None]:
    """The spans of all axes, given those of the loops; None where data says the ends. An axis whose
    loops all run over their whole ranges takes exactly the values of its own range."""
    found = dict(leaves)

    def all_of(axis: IterVar) -> tuple[Span | None, bool]:
        return spans.of_range(bounds.ranges[axis]), True

    def moved(axis: IterVar, *parts: Span | None) -> tuple[Span | None, bool]:
        """The sum of the parts from the begin of an axis."""
        low, high = Affine(), Affine()
        for part in (spans.of(bounds.ranges[axis].min), *parts):
            if part is None:
                return None, False
            low, high = low + part.low, high + part.high
        return Span(low, high), False

    for relation in reversed(stage.relations):
        match relation:
            case Split(parent, outer, inner):
                (high, all_outer), (low, all_inner) = found[outer], found[inner]
                factor = bounds.ranges[inner].extent
                size = spans.of(factor)
                if (all_outer and all_inner) or size is None or not size.is_point:
                    found[parent] = all_of(parent)
                else:
                    scaled = None if high is None else _scaled(spans, high, factor, outer)
                    found[parent] = moved(parent, scaled, low)
            case Fuse(outer, inner, fused):
                span, complete = found[fused]
                if complete:
                    found[outer], found[inner] = all_of(outer), all_of(inner)
                    continue
                held = Var(fused.name, fused.var.dtype)
                spans.let(held, span)
                extent = bounds.ranges[inner].extent
                for axis, part in (
                    (outer, e.floordiv(*e.promote(held, extent))),
                    (inner, e.floormod(*e.promote(held, extent))),
                ):
                    reached = spans.of(part)
                    found[axis] = all_of(axis) if reached is None else moved(axis, reached)
            case Rebase(parent, rebased, is_reversed):
                span, complete = found[rebased]
                if is_reversed and complete:
                    found[parent] = all_of(parent)
                    continue
                if is_reversed and span is not None:
                    end = spans.of(bounds.ranges[parent].extent - 1)
                    span = end and Span(end.low - span.high, end.high - span.low)
                found[parent] = moved(parent, span)[0], complete
            case Singleton():
                pass
    return {axis: span for axis, (span, _) in found.items()}


def _read(spans: Spans, index: PrimExpr, loops: Mapping[Var, PrimExpr]) -> Span | None:
    """The span of an index. Fused axes are taken together, as the loop that they became: over 16
    of its iterations ``y * width + x`` spans 16, while y and x one by one span whole rows."""
    span = spans.of(index)
    if not loops or (span is not None and span.is_point):
        return span
    together = spans.of(substitute(index, loops))
    if together is None or together.extent.terms:
        return span
    if span is not None and not span.extent.terms:
        return min(span, together, key=lambda each: each.extent.constant)
    return together


def _scaled(spans: Spans, span: Span, factor: PrimExpr, axis: IterVar) -> Span:
    """``span * factor``; the factor is at least 1."""
    known = e.const_int(factor)
    if known is not None:
        return Span(span.low * known, span.high * known)
    dtype = axis.var.dtype
    low, high = (
        spans.point(spans.expression(form, dtype) * factor).low for form in (span.low, span.high)
    )
    return Span(low, high)


def _covered(stage: Stage, bounds: Bounds, axis: IterVar) -> PrimExpr:
    """The number of values that the loops cover along a root axis, remainders of splits
    included."""
    covers: dict[IterVar, PrimExpr] = {
        leaf: bounds.ranges[leaf].extent for leaf in stage.leaf_iter_vars
    }
    for relation in reversed(stage.relations):
        match relation:
            case Split(parent, outer, inner):
                # (outer - 1) whole inner extents, and those iterations that inner covers.
                whole = (covers[outer] - 1) * bounds.ranges[inner].extent
                covers[parent] = whole + covers[inner]
            case Fuse(outer, inner, fused):
                extent = bounds.ranges[inner].extent
                covers[inner] = extent
                if covers[fused] is bounds.ranges[fused].extent:  # with no remainder
                    covers[outer] = bounds.ranges[outer].extent
                else:
                    reached = e.floordiv(*e.promote(covers[fused] + extent - 1, extent))
                    covers[outer] = reached
            case Rebase(parent, rebased):
                covers[parent] = covers[rebased]
            case Singleton():
                pass
    return covers[axis]


def _fuses_data(stage: Stage) -> bool:
    """Whether data axes were fused. If so, an index is a quotient or remainder: simplified under a
    guard, it would be another element's index outside of this guard."""
    fused = [r.fused for r in stage.relations if isinstance(r, Fuse)]
    return any(axis.iter_type == IterType.DATA_PAR for axis in fused)


def _runs_backwards(stage: Stage) -> bool:
    """Whether an axis runs backwards. If so, iterations outside of a guard come before the first
    element: they are no padding behind the last one."""
    return any(isinstance(each, Rebase) and each.is_reversed for each in stage.relations)


def _named(
    prover: Prover,
    name: str,
    form: Affine,
    axis: IterVar,
    names: list[tuple[Var, PrimExpr]],
) -> PrimExpr:
    """A form as an expression, or a name for it when it holds more than sums of products and the
    digits of fused loops."""
    value = prover.expression(form, axis.var.dtype)
    if all(_is_plain(node) for node in walk_once(value)):
        return value
    var = Var(name, value.dtype)
    prover.bind(var, value)
    names.append((var, value))
    return var


# The nodes in sums of products of loop variables.
_PLAIN = (Var, e.IntImm, e.Add, e.Sub, e.Mul, e.Cast)


def _is_plain(node: Node) -> bool:
    if isinstance(node, e.FloorDiv | e.FloorMod):
        return isinstance(node.a, Var | e.Cast) and isinstance(node.b, e.IntImm)
    return isinstance(node, _PLAIN)
