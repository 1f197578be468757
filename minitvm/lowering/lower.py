"""The pipeline from a schedule to the loop IR for code generation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, final

from minitvm.lowering.parts import loops_in_parts
from minitvm.lowering.schedule_ops import schedule_ops
from minitvm.runtime.dtype import HANDLE
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.schedules.provenance import origin_of
from minitvm.te.schedules.replay import replay
from minitvm.te.schedules.rewrite_operations import with_sizes
from minitvm.te.schedules.schedule import Schedule, create_schedule, is_input
from minitvm.te.tensor import PlaceholderOp, Tensor
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.depth import deep_expressions
from minitvm.tir.expr import Buffer, PrimExpr, Var, described
from minitvm.tir.functor import Node, find, free_vars, substitute
from minitvm.tir.stmt import FuncAttrs, IRModule, PrimFunc, seq
from minitvm.tir.verify import check_written
from minitvm.transform.check_accesses import check_accesses
from minitvm.transform.check_bounds import check_bounds
from minitvm.transform.clip_loops import clip_loops
from minitvm.transform.compute_padding import compute_padding
from minitvm.transform.enter_once import enter_once
from minitvm.transform.fold_storage import fold_storage
from minitvm.transform.halve_tiles import halve_tiles
from minitvm.transform.hoist_conditions import hoist_conditions
from minitvm.transform.inject_double_buffer import inject_double_buffer
from minitvm.transform.inject_prefetch import inject_prefetch
from minitvm.transform.join_indices import join_indices
from minitvm.transform.limit_indices import limit_indices
from minitvm.transform.lower_intrinsics import lower_intrinsics
from minitvm.transform.overlap_tiles import overlap_tiles
from minitvm.transform.partition_loops import partition_loops
from minitvm.transform.pass_config import PassConfig
from minitvm.transform.pass_context import FIRST_STAGE, Pass, PassContext
from minitvm.transform.passes import added_pass
from minitvm.transform.remove_assertions import remove_assertions
from minitvm.transform.reuse_storage import reuse_storage
from minitvm.transform.serialize_vectors import serialize_vectors
from minitvm.transform.shorten_tiles import shorten_tiles
from minitvm.transform.simplify import simplify
from minitvm.transform.skip_loops import skip_loops
from minitvm.transform.stream_stores import stream_stores
from minitvm.transform.transpose_copies import VECTOR_BYTES, transpose_copies
from minitvm.transform.unroll_loops import unroll_loops
from minitvm.transform.vectorize_loops import vectorize_loops
from minitvm.transform.widen_indices import widen_indices


def pipeline(
    config: PassConfig,
    *,
    is_written: bool,
    vector_bytes: int = VECTOR_BYTES,
    mask_registers: bool = False,
    kind: str = "",
) -> tuple[Pass, ...]:
    """The passes, in order, each bound to its options. `is_written`: the loops are the user's own,
    and their accesses are checked here; the loops of a schedule are checked where they are made,
    before they are moved. `kind` is the kind of target whose registered rules replace calls: after
    the passes that users added to phase 0, and again at the end of phase 3 if users added passes.

    Loops are partitioned before the one run of the simplifier, which simplifies the parts.
    Conditions move out of loops before the loops become vectors, so that only conditions that
    differ from lane to lane become masks. Joined indices may hide an access outside of its tensor,
    so indices aren't joined where every access is checked.
    """
    phases = (
        (("remove_assertions", remove_assertions),)
        if is_written and not config.program_assertions
        else (),
        (
            *((("check_bounds", check_bounds),) if is_written else ()),
            ("inject_prefetch", inject_prefetch),
            ("inject_double_buffer", partial(inject_double_buffer, options=config.double_buffer)),
            *(() if config.vectorize else (("serialize_vectors", serialize_vectors),)),
        ),
        (
            ("clip_loops", clip_loops),
            ("shorten_tiles", shorten_tiles),
            ("halve_tiles", partial(halve_tiles, vector_bytes=vector_bytes)),
            ("compute_padding", compute_padding),
            (
                "overlap_tiles",
                partial(overlap_tiles, vector_bytes=vector_bytes, mask_registers=mask_registers),
            ),
            (
                "partition_loops",
                partial(partition_loops, options=config.partition, mask_registers=mask_registers),
            ),
            ("simplify", partial(simplify, keep_trivial_loops=config.keep_trivial_loops)),
            ("fold_storage", fold_storage),
            ("hoist_conditions", hoist_conditions),
            ("skip_loops", skip_loops),
            ("enter_once", enter_once),
            ("unroll_loops", partial(unroll_loops, options=config.unroll)),
            *(() if config.check_accesses else (("join_indices", join_indices),)),
        ),
        (
            *((("reuse_storage", reuse_storage),) if config.reuse_storage else ()),
            ("widen_indices", widen_indices),
            ("limit_indices", limit_indices),
            ("transpose_copies", partial(transpose_copies, vector_bytes=vector_bytes)),
            (
                "vectorize_loops",
                partial(vectorize_loops, vector_bytes=vector_bytes, mask_registers=mask_registers),
            ),
            ("stream_stores", stream_stores),
        ),
    )
    made: list[Pass] = []
    for phase, passes in enumerate(phases):
        made += passes
        made += (added_pass(each) for when, each in config.added if when == phase)
        if kind and (phase == 0 or (phase == 3 and config.added)):
            made.append(("lower_intrinsics", partial(lower_intrinsics, kind=kind)))
    if config.check_accesses:  # last, so that it checks the result of every other pass
        made.append(("check_accesses", check_accesses))
    return tuple(made)


def lower(
    sch: Any,
    args: Sequence[Any] | None = None,
    name: str = "main",
    binds: Mapping[Tensor, Buffer] | None = None,
    simple_mode: bool = False,
    *,
    debug: str | None = None,
    vector_bytes: int = VECTOR_BYTES,
    mask_registers: bool = False,
    kind: str = "",
) -> IRModule:
    """The loop IR of a schedule.

    Parameters
    ----------
    sch
        A schedule; or the output tensors themselves; or a ``PrimFunc`` or ``IRModule`` of loops.
    args
        The parameters of the function, in order: tensors, buffers, and variables for scalars. For
        a ``PrimFunc`` they are its own.
    name
        The function's name.
    binds
        Buffers for some tensors, to give strides and alignments other than the default.
    simple_mode
        Stop before the indices are widened to 64 bits: the text is easier to read.
    debug
        ``"bounds"`` checks every access where it happens, also those that were proved; see
        docs/bounds.md.
    vector_bytes
        The bytes of a vector register of the target, for which ``build`` passes its own.
    mask_registers
        Whether the target holds the masks of vectors in registers. ``build`` passes it.
    kind
        The kind of the target, ``"llvm"``: calls with a rule for it are replaced, and an output
        that is no argument is refused. ``build`` passes it.

    Raises
    ------
    CompileError
        When the program has no meaning: an access that leaves its tensor, a placeholder that is no
        argument, a variable that no argument binds.

    >>> from minitvm import te
    >>> A = te.placeholder((4,), name="A")
    >>> B = te.compute((4,), lambda i: A[i] + 1.0, name="B")
    >>> print(lower(te.create_schedule(B.op), [A, B], simple_mode=True))
    def main(A: float32[4], B: float32[4]):
        for i in range(4):
            B[i] = A[i] + 1.0
    """
    check_binds(name, binds)
    if debug is not None and not (isinstance(debug, str) and debug in _DEBUG_MODES):
        raise CompileError(f"{name}: expected debug to be None or 'bounds', got {debug!r}")
    with deep_expressions(name):
        passes_for = partial(
            pipeline, vector_bytes=vector_bytes, mask_registers=mask_registers, kind=kind
        )
        return _lower(sch, args, name, binds or {}, simple_mode, debug, passes_for, kind)


_DEBUG_MODES = ("bounds",)


def check_binds(name: str, binds: Any) -> None:
    """Checks that `binds` gives buffers to tensors."""
    if binds is None:
        return
    if not isinstance(binds, Mapping):
        raise CompileError(
            f"{name}: binds: expected a mapping from tensors to buffers, got {described(binds)}"
        )
    for tensor, buffer in binds.items():
        if not isinstance(tensor, Tensor) or not isinstance(buffer, Buffer):
            raise CompileError(
                f"{name}: binds: expected a mapping from tensors to buffers, got "
                f"{described(buffer)} for {described(tensor)}"
            )


def _lower(
    sch: Any,
    args: Sequence[Any] | None,
    name: str,
    binds: Mapping[Tensor, Buffer],
    simple_mode: bool,
    debug: str | None,
    passes_for: Callable[..., tuple[Pass, ...]],
    kind: str,
) -> IRModule:
    context = PassContext.current()
    config = context.config
    if debug == "bounds":
        config = replace(config, check_accesses=True)
    is_written = isinstance(sch, (IRModule, PrimFunc))
    passes = passes_for(config, is_written=is_written)
    if simple_mode:
        passes = passes[: [each[0] for each in passes].index("widen_indices")]
    if isinstance(sch, IRModule):
        functions = [
            _Versions(func if func.name == key else replace(func, name=str(key)), [])
            for key, func in sch.functions.items()
        ]
    elif isinstance(sch, PrimFunc):
        functions = [_Versions(sch, [])]
    else:
        with context.timed(FIRST_STAGE):
            functions = _from_schedule(
                _as_schedule(sch), args, name, binds, needs_outputs=bool(kind)
            )
    lowered: dict[str, PrimFunc] = {}
    for versions in functions:
        func = versions.func
        _check_variables(func)
        if is_written:
            check_written(func)
            if kind:
                _check_outputs_computed(func)
        lowered[func.name] = versions.together(partial(context.run, passes))
    return IRModule(lowered)


def _as_schedule(value: Any) -> Schedule:
    if isinstance(value, Schedule):
        return value
    outputs = value if isinstance(value, (list, tuple)) else [value]
    if outputs and all(isinstance(each, Tensor) for each in outputs):
        return create_schedule([tensor.op for tensor in outputs])
    raise CompileError(
        f"expected a schedule (te.create_schedule(C.op)), tensors or a PrimFunc, got {value!r}"
    )


def _from_schedule(
    schedule: Schedule,
    args: Sequence[Any] | None,
    name: str,
    binds: Mapping[Tensor, Buffer],
    *,
    needs_outputs: bool,
) -> list[_Versions]:
    """The function, and a function for each argument that is computed ahead."""
    if args is None or not isinstance(args, (list, tuple)):
        raise CompileError(f"{name}: expected a list of arguments, such as [A, B, C], got {args!r}")
    _check_computed(schedule, args, name)
    _check_ahead(schedule, args, name)
    schedule, ahead = schedule.without_ahead()
    for source in ahead:
        if source in binds:
            raise CompileError(
                f"{name}: binds: expected no buffer for {source.name}, which is computed ahead and "
                "has a layout of its own"
            )
    if ahead and (schedule.versions or schedule.parts):
        where = "compute_in_parts" if schedule.parts else "specialize"
        raise CompileError(
            f"{name}: {where}: expected no stage that is computed ahead, whose layout would differ "
            "from one schedule of the program to another"
        )
    versions = _loops(schedule, args, name, binds, needs_outputs=needs_outputs)
    func = versions.func
    positions = {schedule.now(arg): i for i, arg in enumerate(args) if isinstance(arg, Tensor)}
    prepacked: dict[int, str] = {}
    parts = []
    for source, part in ahead.items():
        into = part.outputs[0].outputs
        made = _loops(part, [source, *into], f"{name}.prepack.{source.name}", {}).func
        if made.name in prepacked.values():
            raise CompileError(
                f"{name}: expected names that differ of arguments that are computed ahead, got "
                f"{source.name} twice"
            )
        prepacked[positions[schedule.now(source)]] = made.name
        parts.append(_Versions(made, []))
    attrs = replace(func.attrs, prepacked=prepacked)
    func = PrimFunc(func.params, func.body, func.buffer_map, name, attrs)
    return [_Versions(func, versions.others), *parts]


def _check_computed(schedule: Schedule, args: Sequence[Any], name: str) -> None:
    """Checks that a stage computes each argument that is no input."""
    for position, arg in enumerate(args):
        if not isinstance(arg, Tensor) or isinstance(arg.op, PlaceholderOp):
            continue
        if arg.op not in schedule.stage_map:
            outputs = ", ".join(each.name for each in schedule.outputs)
            listed = ", ".join(f"{each.name}.op" for each in (*schedule.outputs, arg.op))
            raise CompileError(
                f"{name}: argument {position} {arg.name}: expected a placeholder, or a tensor that "
                f"the schedule computes, got one that {outputs} does not read: have it computed, "
                f"as in te.create_schedule([{listed}]), or leave it out of the arguments"
            )


def _check_ahead(schedule: Schedule, args: Sequence[Any], name: str) -> None:
    """Checks that no stage computed ahead is a result of the call."""
    for stage in schedule.stages:
        for each in stage.stages_before()[1:] if stage.is_ahead else []:
            for position, arg in enumerate(args):
                if isinstance(arg, Tensor) and schedule.stage_map.get(arg.op) is each:
                    raise CompileError(
                        f"{name}: argument {position} {arg.name}: expected a tensor that the "
                        f"function computes, found it computed ahead for {stage.name}: leave it "
                        "out of the arguments, or compute it at the root"
                    )


def _loops(
    schedule: Schedule,
    args: Sequence[Any],
    name: str,
    binds: Mapping[Tensor, Buffer],
    *,
    needs_outputs: bool = True,
) -> _Versions:
    shell, buffers = function_shell(schedule, args, name, binds)
    if needs_outputs:
        _check_outputs(schedule, buffers, name)
    given = [*(each for each in args if isinstance(each, Tensor)), *binds]
    memory = {each: buffers[schedule.now(each)] for each in given if schedule.now(each) in buffers}

    def loops_of(version: Schedule, now: Mapping[Tensor, Tensor]) -> PrimFunc:
        # For display only: an argument whose stage was inlined remains an argument, and no loop
        # writes it.
        stages = () if needs_outputs else version.stages
        inlined = {t for stage in stages if stage.inlined for t in stage.op.outputs}
        kept = {version.now(now.get(each, each)): buffer for each, buffer in memory.items()}
        kept = {tensor: buffer for tensor, buffer in kept.items() if tensor not in inlined}
        if version.parts is not None:
            return loops_in_parts(version, version.parts, memory, shell)
        return schedule_ops(version, kept, shell)

    def knowing(func: PrimFunc, *conditions: PrimExpr) -> PrimFunc:
        """A version for calls in which its conditions hold and those of the versions before it
        don't."""
        negations = (e.Not(each) for each, _ in others)
        holds = [each for one in (*conditions, *negations) for each in _least_extents(one)]
        return replace(func, attrs=replace(func.attrs, holds=tuple(holds)))

    others = list[tuple[PrimExpr, PrimFunc]]()
    for condition, version in schedule.versions:
        if e.const_int(condition):
            return _Versions(knowing(loops_of(version, {})), others)
        values = _values(condition)
        func = loops_of(*_with_values(version, values))
        func = replace(func, body=substitute(func.body, values))
        others.append((condition, knowing(func, condition)))
    return _Versions(knowing(loops_of(schedule, {})), others)


@final
@record()
class _Versions:
    """A function, and others that serve the calls in which a condition holds."""

    func: PrimFunc
    others: list[tuple[PrimExpr, PrimFunc]]

    def together(self, lowered: Callable[[PrimFunc], PrimFunc]) -> PrimFunc:
        """One function, in which each version is lowered by itself."""
        made = lowered(self.func)
        for condition, func in reversed(self.others):
            other = lowered(func)
            body = s.IfThenElse(condition, other.body, made.body)
            knows_layout = made.attrs.knows_layout or other.attrs.knows_layout
            attrs = replace(made.attrs, knows_layout=knows_layout, holds=())
            made = replace(made, body=body, attrs=attrs)
        return made


def _with_values(
    version: Schedule, values: Mapping[Var, PrimExpr]
) -> tuple[Schedule, Mapping[Tensor, Tensor]]:
    """A schedule for the program in which variables have values, and the tensors of that program
    in place of those of the first one."""
    made = with_sizes(version.calls.outputs, values) if values else None
    if made is None:
        return version, {}
    return replay(version.trace(), made[0]), made[1]


def _least_extents(condition: PrimExpr) -> Iterator[PrimExpr]:
    """The comparisons ``n >= 8`` of extents that a condition implies. Upper bounds aren't among
    them: an extent below a number would be treated almost like a known one."""
    match condition:
        case e.And(a, b):
            yield from (*_least_extents(a), *_least_extents(b))
        case e.Not(e.Or(a, b)):
            yield from (*_least_extents(e.Not(a)), *_least_extents(e.Not(b)))
        case e.Not(e.LT(a, b)):
            yield from _least_extents(e.GE(a, b))
        case e.Not(e.LE(a, b)):
            yield from _least_extents(e.GT(a, b))
        case e.GE(Var(), e.IntImm()) | e.GT(Var(), e.IntImm()) | e.LE(e.IntImm(), Var()):
            yield condition


def _values(condition: PrimExpr) -> dict[Var, PrimExpr]:
    """The values of variables for which a condition says that they are equal to a number, or a
    multiple of it."""
    match condition:
        case e.And(a, b):
            return _values(a) | _values(b)
        case e.EQ(Var() as var, e.IntImm() as value):
            return {var: value}
        case e.EQ(e.FloorMod(Var() as var, e.IntImm() as size), e.IntImm(value=0)):
            return {var: e.floordiv(var, size) * size}
    return {}


def function_shell(
    schedule: Schedule, args: Sequence[Any], name: str, binds: Mapping[Tensor, Buffer]
) -> tuple[PrimFunc, dict[Tensor, Buffer]]:
    """A function of some arguments that does nothing yet, and the buffers of their tensors."""
    params: dict[Var, None] = {}
    buffer_map: dict[Var, Buffer] = {}
    buffers: dict[Tensor, Buffer] = {}
    for position, arg in enumerate(args):
        now = schedule.now(arg) if isinstance(arg, Tensor) and arg not in binds else arg
        param, buffer = _parameter(name, position, now, binds)
        if param in params or (isinstance(arg, Tensor) and schedule.now(arg) in buffers):
            raise CompileError(
                f"{name}: argument {position} {arg}: expected each argument once, got one again"
            )
        params[param] = None
        if buffer is None:
            continue
        buffer_map[param] = buffer
        tensors = [arg] if isinstance(arg, Tensor) else [t for t, b in binds.items() if b is arg]
        buffers.update((schedule.now(tensor), buffer) for tensor in tensors)
    outputs = frozenset(b for tensor, b in buffers.items() if not is_input(tensor.op))
    attrs = FuncAttrs(outputs=outputs, origin=origin_of(schedule))
    return PrimFunc(tuple(params), seq(), buffer_map, name, attrs), buffers


def _parameter(
    name: str, position: int, arg: Any, binds: Mapping[Tensor, Buffer]
) -> tuple[Var, Buffer | None]:
    """The variable of an argument, and its buffer if it is a tensor."""
    if isinstance(arg, Var):
        return arg, None
    if isinstance(arg, Buffer):
        return arg.data, arg
    if isinstance(arg, Tensor):
        buffer = binds.get(arg)
        if buffer is None:
            buffer = Buffer(Var(arg.name, HANDLE), arg.shape, arg.dtype, arg.name)
        return buffer.data, buffer
    raise CompileError(
        f"{name}: argument {position}: expected a tensor, a buffer or a te.var, got {arg!r}"
    )


def _check_outputs(schedule: Schedule, buffers: Mapping[Tensor, Buffer], name: str) -> None:
    """Checks that at least one tensor of each output operation is an argument."""
    for op in schedule.outputs:
        if not is_input(op) and not any(tensor in buffers for tensor in op.outputs):
            listed = " or ".join(tensor.name for tensor in op.outputs)
            raise CompileError(
                f"{name}: expected output {listed} among the arguments, found it missing: the "
                "caller passes the arrays that are written"
            )


def _check_outputs_computed(func: PrimFunc) -> None:
    """Checks that the loops compute all outputs. In loops that :func:`lower` only shows, an
    argument may be inlined."""
    found = {each.buffer for each in find(_ACCESSES, func.body)}
    for buffer in func.attrs.outputs or ():
        is_empty = any(e.const_int(dim) == 0 for dim in buffer.shape)
        if buffer not in found and not is_empty:
            raise CompileError(
                f"{func.name}: argument {buffer.name}: expected an output that the loops compute, "
                f"found none that do: compute it at the root, or leave {buffer.name} out of the "
                "arguments"
            )


_ACCESSES = (e.BufferStore, e.BufferLoad, e.BufferRef)


def _check_variables(func: PrimFunc) -> None:
    """Checks that every variable is bound: by a parameter, a plain dimension or stride, or in the
    body."""
    _check_offsets(func)
    dims = [d for b in func.buffer_map.values() for d in b.sizes]
    bound = {*func.params, *(dim for dim in dims if isinstance(dim, Var))}
    nodes: tuple[Node, ...] = (func.body, *dims)
    for node in nodes:
        for var in free_vars(node):
            if var not in bound:
                raise CompileError(
                    f"{func.name}: variable {var.name}: expected every variable to be an argument "
                    f"or a plain dimension of one, found {var.name} bound by none: pass it as an "
                    "argument, or give a tensor a dimension that is just it"
                )


def _check_offsets(func: PrimFunc) -> None:
    """Checks that the offsets of the arguments' buffers are 0: an array begins at its first
    element."""
    others = {*func.params, *(d for b in func.buffer_map.values() for d in (*b.shape, *b.strides))}
    for buffer in func.buffer_map.values():
        offset = buffer.elem_offset
        if offset is None or e.const_int(offset) == 0:
            continue
        if not isinstance(offset, Var) or offset in others:
            raise CompileError(
                f"{func.name}: buffer {buffer.name}: expected the elem_offset of an argument to be "
                f"0 or a variable of its own, got {offset}: an array is passed from its first "
                "element on, as in x[16:]"
            )
