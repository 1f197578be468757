"""build: from a schedule to a function that can be called."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pickle import UnpicklingError
from typing import Any, final
from weakref import WeakValueDictionary

import llvmlite
import llvmlite.binding as llvm

from minitvm.arith.effects import written_parameters
from minitvm.auto_scheduler import schedule_program
from minitvm.codegen.gil import needs_the_gil
from minitvm.codegen.llvm_text import ModuleText
from minitvm.codegen.machine_code import (
    emit_assembly,
    emit_object,
    load,
    machine_for,
    optimised,
)
from minitvm.codegen.options import CodegenOptions
from minitvm.codegen.packed_abi import arg_names, emit_function, packed_symbol
from minitvm.driver.documentation import describe
from minitvm.lowering.lower import deep_expressions, lower
from minitvm.runtime.arrangement import Arrangement, Compiled, Variants
from minitvm.runtime.device_function import DeviceFunction
from minitvm.runtime.device_type import DeviceType
from minitvm.runtime.errors import CompileError
from minitvm.runtime.module import Module
from minitvm.runtime.object_code import LoadedCode
from minitvm.runtime.packed_func import Function, PackedFunc, Program
from minitvm.runtime.record import record
from minitvm.runtime.version import VERSION
from minitvm.target import Target, create
from minitvm.te.schedules.operation_graph import in_order
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.tensor import Operation, Tensor
from minitvm.tir.expr import Buffer
from minitvm.tir.stmt import IRModule, PrimFunc
from minitvm.variants.any_strides import accept_strides, is_free
from minitvm.variants.column_major import in_column_major, reversed_buffer, shows_indices
from minitvm.variants.in_place import can_run_in_place, run_in_place
from minitvm.variants.row_major import in_row_major

_FP_MODES = ("fast", "strict")


def build(
    inputs: Any,
    args: Sequence[Any] | None = None,
    target: str | Target | None = None,
    target_host: str | Target | None = None,
    name: str | None = None,
    binds: Mapping[Tensor, Buffer] | None = None,
    *,
    fp: str = "fast",
    release_gil: bool | None = None,
    debug: str | None = None,
    auto_schedule: bool = True,
    prepacked: Sequence[Tensor] = (),
) -> Module:
    """A native function for a schedule.

    Parameters
    ----------
    inputs
        A schedule, output tensors, a ``PrimFunc`` or an ``IRModule``.
    args
        The parameters of the function, in order: tensors (inputs and outputs), buffers, and
        variables for scalars. Not for a ``PrimFunc`` or ``IRModule``, which have their own.
    target
        What to compile for: ``"llvm"`` is this machine; see :class:`minitvm.target.Target`. By
        default the innermost ``with Target(...)``, or this machine.
    target_host
        Classic; serves where `target` is not given.
    name
        Of the function, in messages and in the object code. By default ``"default_function"``.
    binds
        Buffers for some tensors, for strides and alignments other than the default.
    fp
        ``"fast"`` lets a multiplication and an addition be contracted into one rounding, and the
        additions of a reduction be reordered. ``"strict"`` computes as written, with the functions
        of the C library. Neither assumes anything about NaN and infinities.
    release_gil
        Whether other threads of Python run while the function computes. By default they do where
        its work, estimated at the call, is worth it, and it calls nothing of Python.
    auto_schedule
        Whether a program is scheduled for the target where nothing was said of its schedule: where
        `inputs` are tensors, or a schedule on which no primitive was applied.
    prepacked
        Placeholders that don't change from call to call, such as weights: the function takes what
        :func:`minitvm.prepack` makes of them, in the layout that the schedule wants. For programs
        that are scheduled here; a schedule says it by ``compute_ahead``.
    debug
        ``"bounds"`` checks every access of memory where it happens, which is slower and leaves
        nothing to trust: one that leaves its tensor is an ``IndexError`` of the call, also where a
        pass of yours, or a proof, was wrong. See docs/bounds.md.

    Returns
    -------
    Module
        Call it, or its functions by name: ``f(x, y, z)`` with arrays that speak DLPack. Outputs are
        arguments, and are written.

    Raises
    ------
    CompileError
        When the program has no meaning, or not on this target.

    >>> import numpy as np
    >>> from minitvm import te
    >>> A = te.placeholder((4,), name="A")
    >>> B = te.compute((4,), lambda i: A[i] * 2.0, name="B")
    >>> double = build(te.create_schedule(B.op), [A, B], name="double")
    >>> b = np.empty(4, "float32")
    >>> double(np.arange(4, dtype="float32"), b)
    >>> b
    array([0., 2., 4., 6.], dtype=float32)
    """
    if fp not in _FP_MODES:
        raise CompileError(f"build: expected fp to be 'fast' or 'strict', got {fp!r}")
    if release_gil is not None and not isinstance(release_gil, bool):
        raise CompileError(
            f"build: expected release_gil to be True, False or None, got {release_gil!r}"
        )
    if args is not None and isinstance(inputs, (PrimFunc, IRModule)):
        raise CompileError(
            "build: expected no args for a PrimFunc or IRModule, which have their own"
        )
    options = CodegenOptions(
        _target(target, target_host), strict=fp == "strict", release_gil=release_gil
    )

    called = name or "default_function"

    def made(program: Any) -> Module:
        lowered = lower(program, args, called, binds, debug=debug)
        if name is not None and isinstance(program, PrimFunc):
            (func,) = lowered.functions.values()
            lowered = IRModule(
                {name: PrimFunc(func.params, func.body, func.buffer_map, name, func.attrs)}
            )
        return compile_module(lowered, options)

    outputs = _unscheduled(inputs, args) if auto_schedule else ()
    if not outputs:
        if prepacked:
            raise CompileError(
                "build: expected prepacked only where nothing is scheduled, got a program that is: "
                "say s[packed].compute_ahead() in its schedule"
            )
        return made(inputs)
    kept = [each for each in args or () if isinstance(each, Tensor)]
    write = partial(schedule_program, target=options.target, strict=options.strict)
    turned = None if prepacked else _in_row_major(outputs, args or (), binds or {})
    if turned is not None:
        module = _built_in_row_major(turned, called, debug, options, write)
        if module is not None:
            return module
    return write(outputs, arguments=kept, use=made, prepacked=prepacked)


@final
@record(eq=False)
class _RowMajor:
    """A program in which arguments that are declared column-major are row-major ones in reverse
    order, which auto_schedule knows how to walk; `declared` is what they have to become again."""

    outputs: Sequence[Operation]
    args: Sequence[Any]
    binds: Mapping[Tensor, Buffer]
    declared: Mapping[Buffer, Buffer]
    names: frozenset[str]  # of the tensors that are in reverse order


def _in_row_major(
    outputs: Sequence[Any], args: Sequence[Any], binds: Mapping[Tensor, Buffer]
) -> _RowMajor | None:
    """The program for its columns' sake; None where nothing changes."""
    given = {each for each in args if isinstance(each, Tensor | Buffer)}
    left = [
        tensor
        for tensor, buffer in binds.items()
        if buffer.layout == "left" and (tensor in given or buffer in given)
    ]
    if not left:
        return None
    ops = [each.op if isinstance(each, Tensor) else each for each in outputs]
    kept = {*(each for each in args if isinstance(each, Tensor)), *binds}
    if all(tensor in left for tensor in kept if tensor.ndim > 1):  # and what lies between them
        left += [t for op in in_order(ops) for t in op.outputs if t not in kept]
    ops, now, turned = in_row_major(ops, left)
    if not turned:
        return None
    reversed_ = {tensor: reversed_buffer(binds[tensor]) for tensor in turned if tensor in binds}
    buffers = {binds[tensor]: buffer for tensor, buffer in reversed_.items()}
    return _RowMajor(
        ops,
        [now.get(arg, arg) if isinstance(arg, Tensor) else buffers.get(arg, arg) for arg in args],
        {now.get(tensor, tensor): reversed_.get(tensor, b) for tensor, b in binds.items()},
        {buffer: each for each, buffer in buffers.items()},
        frozenset(tensor.name for tensor in turned),
    )


def _built_in_row_major(
    program: _RowMajor,
    name: str,
    debug: str | None,
    options: CodegenOptions,
    write: Callable[..., Module],
) -> Module | None:
    """The module of such a program; None where a message would show indices in reverse order."""
    shows = []

    def made(schedule: Schedule) -> Module:
        lowered = lower(schedule, program.args, name, program.binds, debug=debug)
        shows.append(shows_indices(lowered[name], program.names))
        func = in_column_major(lowered[name], program.declared)
        return compile_module(IRModule({**lowered.functions, name: func}), options)

    kept = [each for each in program.args if isinstance(each, Tensor)]
    try:
        module = write(program.outputs, arguments=kept, use=made)
    except CompileError:
        return None  # the program as it was written says it in its own words
    return None if shows[-1] else module


def _unscheduled(inputs: Any, args: Sequence[Any] | None) -> Sequence[Any]:
    """The outputs of what nobody has scheduled; none of anything else."""
    if args is None:
        return ()
    if isinstance(inputs, Schedule):
        return () if inputs.is_touched else inputs.outputs
    outputs = inputs if isinstance(inputs, list | tuple) else [inputs]
    return outputs if all(isinstance(each, Tensor) for each in outputs) else ()


def _target(target: str | Target | None, target_host: str | Target | None) -> Target:
    """The target, where the host's counts only if there is no other."""
    host = None if target_host is None else create(target_host)
    if target is not None:
        return create(target)
    return host or Target.current() or Target("llvm")


def compile_module(lowered: IRModule, options: CodegenOptions) -> Module:
    """The functions of lowered loop IR as machine code."""
    if not lowered.functions:
        raise CompileError("build: expected at least one function, got none")
    program = CompiledProgram(lowered, options)
    return Module(
        {name: program.function(name) for name in lowered.functions},
        sources={kind: partial(program.source, kind) for kind in ("ll", "asm", "tir")},
    )


def module_text(lowered: IRModule, options: CodegenOptions) -> ModuleText:
    """The LLVM IR of lowered loop IR, not yet optimised."""
    machine = machine_for(options.target)
    module = ModuleText("minitvm", options.target.triple, str(machine.target_data))
    for func in lowered.functions.values():
        if not isinstance(func.name, str) or not func.name or "\0" in func.name:
            raise CompileError(f"build: expected a name such as 'fmm', got {func.name!r}")
        emit_function(module, func, options)
    return module


def compiled_function(function: Any) -> tuple[PackedFunc, CompiledProgram] | None:
    """A function that `build` made, of a module its first one, and its program; None of anything
    else."""
    called = function.entry_func if isinstance(function, Module) else function
    program = called.program if isinstance(called, PackedFunc) else None
    return (called, program) if isinstance(program, CompiledProgram) else None


@final
class CompiledProgram(Program):
    """Lowered loop IR and its machine code: what a module and its functions share.

    Other texts are made again when they are asked for, which is rare. A pickle holds the loop IR,
    the text of the target, and the object file. That is loaded where compiling would give the same
    one; elsewhere the loop IR is compiled again.

    Parameters
    ----------
    lowered, options
        The program, and how it is compiled.
    object_code
        What compiling gives, if that is known.
    """

    __slots__ = ("_functions", "_object_code", "code", "lowered", "options")

    def __init__(
        self, lowered: IRModule, options: CodegenOptions, object_code: bytes | None = None
    ) -> None:
        self.lowered = lowered
        self.options = options
        self._object_code = object_code or _compile(lowered, options)
        missing = options.target.missing_on_host
        self.code = None if missing else load(self._object_code)
        self._functions: WeakValueDictionary[str, PackedFunc] = WeakValueDictionary()

    def function(self, name: str) -> PackedFunc:
        """The function of a name: one object, as long as that lives."""
        found = self._functions.get(name)
        if found is None:
            found = self._functions.setdefault(name, self._made(name))
        return found

    def _made(self, name: str) -> PackedFunc:
        if self.code is None:
            return _refusing(self, name)
        made = _function(self, self.code, name)
        device_type = self.options.target.device_type
        return made if device_type == DeviceType.CPU else DeviceFunction(made, device_type)

    def source(self, kind: str) -> str:
        """The text of a kind: "tir" (the loop IR), "ll" (optimised LLVM IR) or "asm"."""
        with deep_expressions("get_source"):
            if kind == "tir":
                return str(self.lowered)
            text = module_text(self.lowered, self.options)
        target = self.options.target
        return emit_assembly(text, target) if kind == "asm" else str(optimised(text, target))

    def __reduce__(self) -> tuple[Callable[..., CompiledProgram], tuple[Any, ...]]:
        code, target = self._object_code, self.options.target
        return _unpickled, (self.lowered, self.options, code, _digest(code), _made_by(target))


def _unpickled(
    lowered: IRModule,
    options: CodegenOptions,
    object_code: bytes,
    digest: int,
    made_by: tuple[object, ...],
) -> CompiledProgram:
    """What the pickle of a program calls."""
    if _digest(object_code) != digest:  # LLVM's loader would crash
        names = ", ".join(lowered.functions)
        raise UnpicklingError(f"{names}: expected the machine code as it was pickled, got another")
    is_current = made_by == _made_by(options.target)
    return CompiledProgram(lowered, options, object_code if is_current else None)


def _digest(object_code: bytes) -> int:
    return zlib.crc32(object_code)


def _made_by(target: Target) -> tuple[object, ...]:
    """All that decides, besides the program, what machine code it becomes."""
    versions = (VERSION, llvmlite.__version__, llvm.llvm_version_info, sys.implementation.cache_tag)
    return (*versions, target.triple, target.mcpu, target.feature_string)


def _compile(lowered: IRModule, options: CodegenOptions) -> bytes:
    """The object file of a program."""
    with deep_expressions(next(iter(lowered.functions))):
        text = module_text(lowered, options)
    return emit_object(text, options.target)


def _function(program: CompiledProgram, code: LoadedCode, name: str) -> Function:
    func, options = program.lowered[name], program.options
    names = arg_names(func)
    written = written_parameters(func)
    positions = [i for i, p in enumerate(func.params) if func.buffer_map.get(p) in written]

    free = frozenset(
        i for i, p in enumerate(func.params) if p in func.buffer_map and is_free(func.buffer_map[p])
    )

    symbol = packed_symbol(func.name)
    base = Compiled(code.address(symbol), code)

    @cache
    def accepts_same(output: int, before: int) -> bool:
        with deep_expressions(func.name):
            return can_run_in_place(func, output, before)

    def allowed(wanted: Arrangement) -> Arrangement:
        same = frozenset(pair for pair in wanted.same if accepts_same(*pair))
        return Arrangement(wanted.strided, same)

    def make(arrangement: Arrangement) -> Compiled:
        with deep_expressions(func.name):
            variant = run_in_place(func, arrangement.same)
            if arrangement.strided:
                variant = accept_strides(variant)
        made = load(_compile(IRModule({func.name: variant}), options))
        return Compiled(made.address(symbol), made)

    return Function(
        base.address,
        owner=program,
        name=func.name,
        arg_names=names,
        written=positions,
        calls_back=needs_the_gil(func.body),
        doc=partial(describe, func),
        variants=Variants(base, frozenset(positions), free, allowed, make),
    )


def _refusing(program: CompiledProgram, name: str) -> PackedFunc:
    """What stands for a function that this machine can't run."""
    target, missing = str(program.options.target), program.options.target.missing_on_host

    def refuse(*args: Any) -> None:
        raise ValueError(f"{name}: built for {target!r}, which this machine can't run: {missing}")

    return PackedFunc(refuse, name=name, owner=program)
