"""The memory of stages: the buffers of their tensors, and the parts that loops keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

from minitvm.lowering.infer_bounds import Bounds
from minitvm.lowering.tensorize import Match, Region, View
from minitvm.runtime.dtype import HANDLE, INT64
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.schedules.scans import Scans
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.schedules.views import viewed_by
from minitvm.te.tensor import ComputeOp, PlaceholderOp, ScanOp, Tensor
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, IterVar, PrimExpr, Var, const
from minitvm.tir.functor import Substitution, rebuild


@final
@record()
class _Moved:
    """The buffer that holds the elements of a stage's plain buffer, and their place in it."""

    buffer: Buffer
    begins: tuple[PrimExpr, ...]


class _Move(Substitution):
    """Moves accesses of plain buffers to the buffers that hold the elements, and replaces axes by
    their values."""

    def __init__(self, moved: Mapping[Buffer, _Moved], values: Mapping[Var, PrimExpr]) -> None:
        super().__init__(values)
        self._moved = moved

    def _access(self, node: Any) -> Any:
        made = self.descend(node)
        moved = self._moved.get(made.buffer)
        if moved is None:
            return made
        indices = tuple(map(e.subtract, made.indices, moved.begins))
        return rebuild(made, {"buffer": moved.buffer, "indices": indices})

    visit_BufferLoad = visit_BufferStore = _access


@final
class StageMemory:
    """The buffers of a schedule's tensors.

    Attributes
    ----------
    plain
        For each tensor its argument, or a buffer of its full size.
    shared
        For parts of scans, the scans' results, whose memory they share.
    views
        The stages that need no loops, since they share the memory of the tensor that they copy.
    """

    def __init__(self, schedule: Schedule, given: Mapping[Tensor, Buffer], scans: Scans) -> None:
        self._schedule = schedule
        self._given = given
        self._scans = scans
        self._moved: dict[Buffer, _Moved] = {}
        self.plain: dict[Tensor, Buffer] = {}
        self.shared: dict[Tensor, Tensor] = {}
        self.views = set[Stage]()
        self._owner: dict[Tensor, Tensor] = {}  # whose memory another tensor has, in its own shape
        self._name_buffers()
        self._share_views()

    # -- Buffers ----------------------------------------------------------------------------------

    def _name_buffers(self) -> None:
        for stage in self._schedule.stages:
            for tensor in stage.op.outputs:
                self.plain[tensor] = self._given.get(tensor) or _allocated(tensor, stage.scope)
        for stage in self._schedule.stages:
            if isinstance(stage.op, ScanOp):
                self._share_buffers(stage, stage.op)
        for stage in self._schedule.stages:
            is_known = all(x in self._given or x in self.shared for x in stage.op.outputs)
            if isinstance(stage.op, PlaceholderOp) and not is_known:
                raise CompileError(
                    f"{stage.op.name}: expected every placeholder that is read to be an argument, "
                    "found it missing: add it to the list of arguments"
                )

    def _share_buffers(self, scan: Stage, op: ScanOp) -> None:
        """Makes the states, the updates and the first parts of a scan share the memory of its
        result."""
        for i, tensor in enumerate(op.outputs):
            buffer = self.plain[tensor]
            parts = [op.state_placeholder[i], op.update[i]]
            if self._scans.inits.get(self._schedule[op.init[i]]) is scan:
                parts.append(op.init[i])
            for part in parts:
                self._check_not_given(scan, part)
                self.plain[part] = buffer
                self.shared[part] = tensor

    def _share_views(self) -> None:
        """Lets views share the memory of the tensors that they copy. A tensor that a view copies
        into an argument is computed in the argument."""
        views = [each for each in self._schedule.stages if each.is_view and self._is_whole(each)]
        views = [each for each in views if not self._is_more_than_a_copy(each)]
        for stage in reversed(views):
            tensor = viewed_by(stage.op)
            if tensor is not None and self.is_given(stage.op.output(0)):
                self._share(stage, stage.op.output(0), tensor)
        for stage in views:
            tensor = viewed_by(stage.op)
            if tensor is not None and stage not in self.views:
                self._share(stage, tensor, stage.op.output(0))

    def _share(self, view: Stage, owner: Tensor, other: Tensor) -> None:
        """Lets another tensor have the memory of its owner, if it may."""
        memory, known = self.plain[owner], (self._given, self.shared, self._owner)
        is_compact = not memory.strides and memory.elem_offset is None
        is_plain = is_compact and not memory.auto_broadcast and memory.scope == "global"
        may_own = self.is_given(owner) or self._is_whole(self._schedule[owner])
        is_free = self._is_whole(self._schedule[other]) and not any(other in each for each in known)
        if is_plain and may_own and is_free:
            self.plain[other] = replace(memory, shape=other.shape, name=other.name, layout="")
            self._owner[other] = self._owner.get(owner, owner)
            self.views.add(view)

    def _is_whole(self, stage: Stage) -> bool:
        """Whether a stage is computed as a whole, once, in compact memory."""
        placed = stage.attach_stage or (stage.group and stage.group.attach_stage)
        return (
            isinstance(stage.op, ComputeOp)
            and len(stage.op.outputs) == 1
            and not placed
            and not stage.inlined
            and stage.time is None
            and not stage.storage_alignments
            and not stage.is_double_buffered
            and stage.scope in ("", "global")
        )

    def _is_more_than_a_copy(self, stage: Stage) -> bool:
        """Whether other stages are computed in the loops of a stage, or some elements aren't."""
        others = [*self._schedule.stages, *self._schedule.groups]
        is_alone = stage.with_stage is None and stage.store_predicate is None
        return not is_alone or any(
            stage in (each.attach_stage, getattr(each, "with_stage", None)) for each in others
        )

    def owner_of(self, tensor: Tensor) -> Tensor | None:
        """The tensor whose memory a tensor of another shape has, if there is one."""
        return self._owner.get(tensor)

    @property
    def shares_arguments(self) -> bool:
        """Whether a tensor of another shape shares the memory of an argument."""
        return any(map(self.is_given, self._owner))

    def _check_not_given(self, scan: Stage, tensor: Tensor) -> None:
        if tensor in self._given:
            raise CompileError(
                f"{scan.name}: expected {tensor.name}, which is part of a scan, to be no argument: "
                f"pass {scan.name}"
            )

    def is_given(self, tensor: Tensor) -> bool:
        """Whether an argument is the memory of a tensor."""
        owner = self._owner.get(tensor, tensor)
        return self.shared.get(owner, owner) in self._given

    def is_argument(self, stage: Stage) -> bool:
        """Whether a caller gives the memory of some result of a stage."""
        return any(each in self._given for each in stage.op.outputs)

    def is_internal(self, stage: Stage) -> bool:
        """Whether no memory of a stage is a caller's, or a scan's."""
        known = (self._given, self.shared, self._owner, {*self._owner.values()})
        return stage not in self.views and not any(
            each in tensors for each in stage.op.outputs for tensors in known
        )

    # -- Parts ------------------------------------------------------------------------------------

    def fit(self, stage: Stage, bounds: Bounds) -> None:
        """Lets the buffers of a stage hold the elements that its bounds ask for."""
        if not self.is_internal(stage) or not isinstance(stage.op, ComputeOp):
            return
        for tensor in stage.op.outputs:
            plain = self.plain[tensor]
            shape = plain.shape if bounds.shape is None else bounds.shape
            strides = _aligned_strides(stage, stage.op, shape)
            if bounds.shape is not None or strides:
                begins = bounds.begins or tuple(const(0, d.dtype) for d in shape)
                self._moved[plain] = _Moved(_sized(plain, shape, strides), begins)

    def real(self, tensor: Tensor) -> Buffer:
        """The memory of a tensor."""
        plain = self.plain[self._schedule.now(tensor)]
        moved = self._moved.get(plain)
        return plain if moved is None else moved.buffer

    def move(self, values: Mapping[IterVar, PrimExpr]) -> _Move:
        """The substitution that gives the axes these values."""
        places = _Move(self._moved, {})
        return _Move(self._moved, {axis.var: places.expr(each) for axis, each in values.items()})

    def moved(self, bound: PrimExpr, values: Mapping[IterVar, PrimExpr]) -> PrimExpr:
        """An expression of a range or guard, for these values of the axes."""
        if isinstance(bound, e.IntImm | Var):
            return bound
        return self.move(values).expr(bound)

    def in_memory(self, match: Match, outputs: tuple[Tensor, ...]) -> list[View]:
        """The operands of an intrinsic as regions of the buffers that hold their elements."""
        sources = [*(region.source for region in match.inputs), *outputs]
        return list(map(self._view, sources, (*match.inputs, *match.outputs)))

    def _view(self, source: Tensor | Buffer, region: Region) -> View:
        plain = self.plain[source] if isinstance(source, Tensor) else source
        moved = self._moved.get(plain)
        if moved is None:
            return View(plain, region.begins, region.extents)
        begins = tuple(map(e.subtract, region.begins, moved.begins))
        return View(moved.buffer, begins, region.extents)


def _allocated(tensor: Tensor, scope: str) -> Buffer:
    """New memory for a tensor that is no argument."""
    return Buffer(
        Var(tensor.name, HANDLE), tensor.shape, tensor.dtype, tensor.name, scope=scope or "global"
    )


def _sized(buffer: Buffer, shape: tuple[PrimExpr, ...], strides: tuple[PrimExpr, ...]) -> Buffer:
    data = Var(buffer.name, HANDLE)
    return Buffer(data, shape, buffer.dtype, buffer.name, strides, scope=buffer.scope)


def _aligned_strides(
    stage: Stage, op: ComputeOp, shape: tuple[PrimExpr, ...]
) -> tuple[PrimExpr, ...]:
    """The strides that `storage_align` asks for; no strides for a stage without it."""
    if not stage.storage_alignments:
        return ()
    strides: list[PrimExpr] = []
    stride: PrimExpr = const(1, INT64)
    for axis, extent in zip(reversed(op.axis), reversed(shape), strict=True):
        factor, offset = stage.storage_alignments.get(axis, (1, 0))
        stride = stride + e.floormod(factor + offset - e.floormod(stride, factor), factor)
        strides.insert(0, stride)
        stride = stride * e.cast(INT64, extent)
    return tuple(strides)
