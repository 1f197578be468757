"""Lowered loop IR as machine code, shared by a module and its functions."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from functools import cache, partial
from pickle import UnpicklingError
from typing import Any, final
from weakref import WeakValueDictionary

import llvmlite
import llvmlite.binding as llvm

from minitvm.arith.effects import written_parameters
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
from minitvm.codegen.packed_abi import arg_names, emit_function, packed_symbol, plain_symbol
from minitvm.driver.batches import Batches
from minitvm.driver.documentation import describe
from minitvm.driver.results import results_of_program
from minitvm.runtime.arrangement import Arrangement, Compiled, Variants
from minitvm.runtime.device_function import DeviceFunction
from minitvm.runtime.device_type import DeviceType
from minitvm.runtime.errors import CompileError
from minitvm.runtime.module import Module
from minitvm.runtime.object_code import LoadedCode
from minitvm.runtime.packed_func import Function, PackedFunc, Program
from minitvm.runtime.version import VERSION
from minitvm.target import Target
from minitvm.tir.depth import deep_expressions
from minitvm.tir.stmt import IRModule
from minitvm.variants.any_strides import accept_strides, is_free
from minitvm.variants.in_place import can_run_in_place, run_in_place, with_others_apart

SOURCES = ("ll", "asm", "tir")  # the kinds of text of a program


def compile_module(lowered: IRModule, options: CodegenOptions) -> Module:
    """The functions of lowered loop IR as machine code."""
    if not lowered.functions:
        raise CompileError("build: expected at least one function, got none")
    program = CompiledProgram(lowered, options)
    return Module(
        {name: program.function(name) for name in lowered.functions},
        sources={kind: partial(program.source, kind) for kind in SOURCES},
    )


def module_text(lowered: IRModule, options: CodegenOptions) -> ModuleText:
    """The LLVM IR of lowered loop IR, not yet optimised."""
    machine = machine_for(options.target)
    module = ModuleText("minitvm", options.target.triple, str(machine.target_data))
    for func in lowered.functions.values():
        if not isinstance(func.name, str) or not func.name or "\0" in func.name:
            raise CompileError(f"build: expected a name such as 'fmm', got {func.name!r}")
        emit_function(module, with_others_apart(func), options)
    return module


def compiled_function(function: Any) -> tuple[PackedFunc, CompiledProgram] | None:
    """A function that `build` made (the first one of a module) and its program; else None."""
    called = function.entry_func if isinstance(function, Module) else function
    program = called.program if isinstance(called, PackedFunc) else None
    return (called, program) if isinstance(program, CompiledProgram) else None


@final
class CompiledProgram(Program):
    """Lowered loop IR and its machine code, shared by a module and its functions.

    Other texts are made anew when they are asked for, which is rare. A pickle holds the loop IR,
    the text of the target, and the object file. The object file is loaded where compiling would
    give the same one; elsewhere the loop IR is compiled again.

    Parameters
    ----------
    lowered, options
        The program, and the options with which it is compiled.
    object_code
        The object file, if it is compiled already.

    Attributes
    ----------
    batches
        The functions for batches, where the program was written with ``te``. A pickle has none.
    """

    __slots__ = ("_functions", "_object_code", "batches", "code", "lowered", "options")

    def __init__(
        self, lowered: IRModule, options: CodegenOptions, object_code: bytes | None = None
    ) -> None:
        self.lowered = lowered
        self.options = options
        self._object_code = object_code or _compile(lowered, options)
        missing = options.target.missing_on_host
        self.code = None if missing else load(self._object_code)
        self._functions: WeakValueDictionary[str, PackedFunc] = WeakValueDictionary()
        self.batches: Batches | None = None

    @property
    def object_code(self) -> bytes:
        """The object file."""
        return self._object_code

    def function(self, name: str) -> PackedFunc:
        """The function of a name. As long as it lives, every call returns the same object."""
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

    def plain_entry(self, name: str) -> int:
        """The address of the plain entry of a function, for machine code that has made all checks
        itself; 0 where the function has no plain entry: none was asked for, or the function may
        fail."""
        symbol = plain_symbol(name)
        return self.code.address(symbol) if self.code is not None and self.code.has(symbol) else 0

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
    """The function that the pickle of a program calls."""
    if _digest(object_code) != digest:  # LLVM's loader would crash
        names = ", ".join(lowered.functions)
        raise UnpicklingError(f"{names}: expected the machine code as it was pickled, got another")
    is_current = made_by == _made_by(options.target)
    return CompiledProgram(lowered, options, object_code if is_current else None)


def _digest(object_code: bytes) -> int:
    return zlib.crc32(object_code)


def _made_by(target: Target) -> tuple[object, ...]:
    """The properties that determine the machine code besides the program."""
    versions = (VERSION, llvmlite.__version__, llvm.llvm_version_info, sys.implementation.cache_tag)
    return (*versions, target.triple, target.mcpu, target.feature_string)


def _compile(lowered: IRModule, options: CodegenOptions) -> bytes:
    """The object file of a program."""
    with deep_expressions(next(iter(lowered.functions))):
        text = module_text(lowered, options)
    return emit_object(text, options.target)


def _function(program: CompiledProgram, code: LoadedCode, name: str) -> Function:
    """A function of machine code, with the variants that are compiled when a call needs them."""
    func, options = program.lowered[name], program.options
    buffers = {i: func.buffer_map[p] for i, p in enumerate(func.params) if p in func.buffer_map}
    written = frozenset(i for i, b in buffers.items() if b in written_parameters(func))
    free = frozenset(i for i, b in buffers.items() if is_free(b))
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
        arg_names=arg_names(func),
        written=written,
        calls_back=needs_the_gil(func.body),
        doc=partial(describe, func),
        results=partial(results_of_program, func),
        variants=Variants(base, written, free, allowed, make),
    )


def _refusing(program: CompiledProgram, name: str) -> PackedFunc:
    """The stand-in for a function that this machine can't run."""
    target, missing = str(program.options.target), program.options.target.missing_on_host

    def refuse(*args: Any) -> None:
        raise ValueError(f"{name}: built for {target!r}, which this machine can't run: {missing}")

    return PackedFunc(refuse, name=name, owner=program)
