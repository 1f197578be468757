"""build: from a schedule to a function that can be called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minitvm.codegen.llvm_text import ModuleText
from minitvm.codegen.machine_code import (
    LoadedCode,
    emit_assembly,
    emit_object,
    linked,
    machine_for,
    optimised,
)
from minitvm.codegen.options import CodegenOptions
from minitvm.codegen.packed_abi import arg_names, emit_function, packed_symbol
from minitvm.expr import Buffer
from minitvm.lower import deep_expressions, lower
from minitvm.passes.access import written_parameters
from minitvm.passes.strided import accept_strides, knows_layout
from minitvm.runtime.errors import CompileError
from minitvm.runtime.module import Module
from minitvm.runtime.packed_func import Function, PackedFunc
from minitvm.stmt import IRModule, PrimFunc
from minitvm.target import Target, create
from minitvm.te.tensor import Tensor

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
    debug: str | None = None,
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
        additions of a reduction be reordered. ``"strict"`` computes as written. Neither assumes
        anything about NaN and infinities.
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
    if args is not None and isinstance(inputs, (PrimFunc, IRModule)):
        raise CompileError(
            "build: expected no args for a PrimFunc or IRModule, which have their own"
        )
    options = CodegenOptions(_target(target, target_host), strict=fp == "strict")
    lowered = lower(inputs, args, name or "default_function", binds, debug=debug)
    if name is not None and isinstance(inputs, PrimFunc):
        (func,) = lowered.functions.values()
        lowered = IRModule(
            {name: PrimFunc(func.params, func.body, func.buffer_map, name, func.attrs)}
        )
    with deep_expressions(name or "default_function"):
        return compile_module(lowered, options)


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
    text = module_text(lowered, options)
    missing = options.target.missing_on_host
    functions: dict[str, PackedFunc] = {}
    object_code = emit_object(text, options.target)
    code = None if missing else LoadedCode(object_code)
    for name, func in lowered.functions.items():
        if code is None:
            functions[name] = _refusing(name, f"{options.target}", missing)
        else:
            functions[name] = _function(code, func, options)
    sources = {  # made again when asked for, which is rare
        "ll": lambda: str(optimised(text, options.target)),
        "asm": lambda: emit_assembly(text, options.target),
        "tir": lambda: str(lowered),
    }
    return Module(functions, sources=sources)


def module_text(lowered: IRModule, options: CodegenOptions) -> str:
    """The LLVM IR of lowered loop IR, not yet optimised."""
    machine = machine_for(options.target)
    module = ModuleText("minitvm", options.target.triple, str(machine.target_data))
    for func in lowered.functions.values():
        if not isinstance(func.name, str) or not func.name or "\0" in func.name:
            raise CompileError(f"build: expected a name such as 'fmm', got {func.name!r}")
        emit_function(module, func, options)
    text = str(module)
    return linked(text, module.imports) if module.imports else text


def _function(code: LoadedCode, func: PrimFunc, options: CodegenOptions) -> Function:
    names = arg_names(func)
    written = written_parameters(func)
    positions = [i for i, p in enumerate(func.params) if func.buffer_map.get(p) in written]

    def strided() -> Function:
        text = module_text(IRModule({func.name: accept_strides(func)}), options)
        return make(LoadedCode(emit_object(text, options.target)), None)

    def make(code: LoadedCode, variant: Callable[[], Function] | None) -> Function:
        return Function(
            code.address(packed_symbol(func.name)),
            owner=code,
            name=func.name,
            arg_names=names,
            written=positions,
            strided=variant,
        )

    return make(code, None if knows_layout(func) else strided)


def _refusing(name: str, target: str, missing: str) -> PackedFunc:
    """What stands for a function that this machine can't run."""

    def refuse(*args: Any) -> None:
        raise ValueError(f"{name}: built for {target!r}, which this machine can't run: {missing}")

    return PackedFunc(refuse, name=name)
