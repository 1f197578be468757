"""Explains a built function: its schedule, the reasons for it, and its speed against the
machine's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.effects import written_parameters
from minitvm.codegen.machine_code import emit_assembly
from minitvm.driver.program import compiled_function, module_text
from minitvm.explanation.amount import Amount, Sizes, value_of
from minitvm.explanation.assembly import inner_loops
from minitvm.explanation.loops import ParallelLoop, parallel_loops, temporaries
from minitvm.explanation.machine import bandwidth, least_time, peak
from minitvm.explanation.nests import measured, nests_of
from minitvm.explanation.report import ExplainedStage, Explanation, Roofline
from minitvm.explanation.work import (
    Operations,
    bytes_of_arguments,
    is_written,
    named_operations_of,
    operations_of,
    operations_of_stage,
)
from minitvm.runtime.dlpack import TensorView, compact_strides
from minitvm.runtime.errors import KernelError
from minitvm.runtime.ndarray import NDArray, array, as_ndarray
from minitvm.runtime.packed_func import Function, PackedFunc
from minitvm.runtime.threads import num_threads
from minitvm.target import Target
from minitvm.tir.depth import deep_expressions
from minitvm.tir.expr import Broadcast, Buffer, BufferLoad, Cast, PrimExpr, Var, const_int
from minitvm.tir.functor import substitute, walk_once
from minitvm.tir.provenance import Origin
from minitvm.tir.stmt import IfThenElse, IRModule, PrimFunc

_MOST_GENERATED = 1 << 30  # bytes of the arrays that are made for measuring


def explain(function: Any, *args: Any, measure: bool = True) -> Explanation:
    """The schedule of a built function and the reasons for it, in words and figures.

    Parameters
    ----------
    function : Module or Function
        The result of ``build``; of a module, its first function.
    args
        Arguments to measure with; the function writes its outputs. By default arrays are made, if
        all shapes are constant: random floats, zeros for integers, and random valid indices for
        integers that serve as indices alone.
    measure
        Whether to time the function and this machine's limits. This takes up to a few seconds; the
        limits are measured once in a process.

    Returns
    -------
    Explanation
        Its ``str`` is a page of text, its fields are the figures.

    Raises
    ------
    TypeError
        When `function` was not built, or the arguments don't fit it.

    >>> from minitvm import build, te
    >>> A, B = te.placeholder((64, 64), name="A"), te.placeholder((64, 64), name="B")
    >>> k = te.reduce_axis((0, 64), name="k")
    >>> C = te.compute((64, 64), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    >>> found = explain(build([C], [A, B, C], name="mm"), measure=False)
    >>> found.flop, found.bytes, found.stages[0].choices[0].figures["rows"]
    (524288, 49152, 64)
    """
    found = compiled_function(function)
    if found is None:
        raise TypeError(f"explain: expected a function that build made, got {_said(function)}")
    called, program = found
    func, options = program.lowered[called.name], program.options
    with deep_expressions(func.name):
        func = _in_one_version(func, _sizes(func, args))
        assembly = emit_assembly(module_text(IRModule({func.name: func}), options), options.target)
        sizes = _sizes(func, args)
        origin = func.attrs.origin
        parallel = parallel_loops(func.body, sizes, options.target)
        operations, size = operations_of(func, sizes), bytes_of_arguments(func, sizes)
        given, unmeasured = _arguments(called, func, args, measure)
        nests, seconds, roofline = nests_of(func, options, sizes), None, None
        if not unmeasured:
            seconds, unmeasured = _seconds(called, given, is_given=bool(args))
        if seconds is not None:
            threads = _threads(parallel)
            roofline = _roofline(operations, size, options.target, threads)
            nests = measured(nests, func, given, options)
        return Explanation(
            name=func.name,
            arguments=tuple(_declared(param, func.buffer_map.get(param)) for param in func.params),
            target=str(options.target),
            scheduled="" if origin is None else origin.scheduled,
            stages=() if origin is None else _stages(origin, sizes),
            parallel=parallel,
            temporaries=temporaries(func.body, sizes),
            nests=nests,
            inner_loops=inner_loops(assembly, options.target.arch),
            vector_registers=options.target.vector_registers,
            operations=operations,
            named=named_operations_of(func, sizes),
            is_estimate=not is_written(origin),
            bytes=size,
            roofline=roofline,
            seconds=seconds,
            unmeasured=unmeasured,
            zeros=() if args else _zeros(func),
        )


def _said(value: Any) -> str:
    return repr(value) if isinstance(value, PackedFunc) else f"a {type(value).__name__}"


def _declared(param: Var, buffer: Buffer | None) -> str:
    if buffer is None:
        return f"{param.name}: {param.dtype}"
    return f"{buffer.name}: {buffer.dtype}[{', '.join(map(str, buffer.shape))}]"


def _in_one_version(func: PrimFunc, sizes: Sizes) -> PrimFunc:
    """A function with the only version that serves calls of some sizes; if no sizes are known, the
    last one."""
    body = func.body
    while isinstance(body, IfThenElse) and body.else_case is not None:
        body = body.then_case if _holds(body.condition, sizes) else body.else_case
    return replace(func, body=body)


def _holds(condition: PrimExpr, sizes: Sizes) -> bool:
    """Whether a condition surely holds."""
    return bool(const_int(Analyzer().simplify(substitute(condition, dict(sizes)))))


def _stages(origin: Origin, sizes: Sizes) -> tuple[ExplainedStage, ...]:
    def values(extents: Sequence[PrimExpr]) -> tuple[Amount, ...]:
        return tuple(value_of(extent, sizes) for extent in extents)

    served = (each for condition, each in origin.versions if _holds(condition, sizes))
    notes = [each for each in origin.choices if each.about == "version"]
    choices = [*next(served, origin.choices), *notes]
    return tuple(
        ExplainedStage(
            stage.name,
            values(stage.extents),
            values(stage.summed),
            operations_of_stage(stage, sizes),
            tuple(dict.fromkeys(each for each in choices if each.stage == stage.name)),
        )
        for stage in origin.stages
    )


# -- Arguments ------------------------------------------------------------------------------------


def _sizes(func: PrimFunc, args: Sequence[Any]) -> dict[Var, int]:
    """The values of the symbolic sizes, from the arguments."""
    sizes: dict[Var, int] = {}
    if args and len(args) != len(func.params):
        raise TypeError(f"{func.name}: expected {len(func.params)} arguments, got {len(args)}")
    for param, arg in zip(func.params, args, strict=False):
        buffer, found = func.buffer_map.get(param), as_ndarray(arg)
        if buffer is None:
            sizes |= {param: arg} if isinstance(arg, int) else {}
        elif found is None:
            kind = type(arg).__name__
            raise TypeError(f"{func.name}: argument '{buffer.name}': expected an array, got {kind}")
        else:
            pairs = zip(buffer.shape, found.shape, strict=False)
            sizes |= {extent: size for extent, size in pairs if isinstance(extent, Var)}
    return sizes


def _arguments(
    function: PackedFunc, func: PrimFunc, args: Sequence[Any], measure: bool
) -> tuple[Sequence[Any], str]:
    """The arguments to measure with; or the reason why nothing is measured."""
    if not measure:
        return (), "measure=False"
    if not isinstance(function, Function):
        return (), "it is code for another machine"
    if args:
        return args, ""
    buffers = [func.buffer_map.get(param) for param in func.params]
    shapes = [None if buffer is None else _constant_shape(buffer) for buffer in buffers]
    if None in shapes:
        return (), "sizes or numbers are symbolic: give the arguments"
    made = list(zip(buffers, shapes, strict=True))
    total = sum(prod(shape or ()) * buffer.dtype.itemsize for buffer, shape in made if buffer)
    if total > _MOST_GENERATED:
        return (), f"the arguments are {total} bytes large: give them"
    limits = _limits_of_indices(func)
    return [
        _array(buffer, shape, limits.get(buffer, 1))
        for buffer, shape in made
        if buffer and shape is not None
    ], ""


def _limits_of_indices(func: PrimFunc) -> dict[Buffer, int]:
    """For each buffer whose elements are read as indices alone, the number below which they must
    be."""
    found: dict[Buffer, int] = {}
    for load in walk_once(func.body):
        if isinstance(load, BufferLoad):
            for index, extent in zip(load.indices, load.buffer.shape, strict=True):
                while isinstance(index, (Cast, Broadcast)):
                    index = index.value
                size = const_int(extent)
                if isinstance(index, BufferLoad) and size:
                    found[index.buffer] = min(size, found.get(index.buffer, size))
    return found


def _constant_shape(buffer: Buffer) -> tuple[int, ...] | None:
    found = [value_of(extent, {}) for extent in buffer.shape]
    known = tuple(each for each in found if isinstance(each, int))
    return known if len(known) == len(found) and buffer.dtype.lanes == 1 else None


def _zeros(func: PrimFunc) -> tuple[str, ...]:
    """The inputs that are filled with zeros if arguments are made: integers that aren't read as
    indices alone."""
    known = {*_limits_of_indices(func), *written_parameters(func)}
    buffers = (each for each in func.buffer_map.values() if each not in known)
    return tuple(each.name for each in buffers if not each.dtype.is_float)


def _array(buffer: Buffer, shape: tuple[int, ...], limit: int) -> NDArray:
    """An array in the layout of `buffer`: random floats, or integers below a limit."""
    is_left = buffer.layout == "left"
    outermost = shape[::-1] if is_left else shape
    random = np.random.default_rng(0).random(outermost, np.float32)
    limit = min(limit, int(buffer.dtype.max()) + 1) if buffer.dtype.is_integral else limit
    made = array(random if buffer.dtype.is_float else random * limit // 1, dtype=buffer.dtype)
    if not is_left:
        return made
    return NDArray(TensorView(made.data, shape, compact_strides(outermost)[::-1], made.dtype), made)


# -- Measuring ------------------------------------------------------------------------------------


def _seconds(function: PackedFunc, args: Sequence[Any], is_given: bool) -> tuple[float | None, str]:
    """The time of a call; or the reason why a call with made arguments fails."""
    assert isinstance(function, Function)
    try:
        return least_time(function, *args), ""
    except (KernelError, ValueError, IndexError) as error:
        if is_given:
            raise
        return None, f"with arguments that were made: {error}"


def _threads(parallel: Sequence[ParallelLoop]) -> int:
    """The number of threads that a call uses."""
    tasks = [each.iterations for each in parallel if each.starts_threads is not False]
    most = max((each for each in tasks if isinstance(each, int)), default=1)
    return min(num_threads(), most)


def _roofline(
    operations: Sequence[Operations], size: Amount, target: Target, threads: int
) -> Roofline | None:
    if isinstance(size, str):
        return None
    arithmetic = 0.0
    for each in operations:
        if isinstance(each.kind, tuple):
            if isinstance(each.number, str):
                return None
            arithmetic += each.number / peak(each.kind, target, threads)
    speed = bandwidth(max(size, 1), threads)
    return Roofline(threads, arithmetic, speed, size / speed)
