"""From the text of a module to machine code: parse, optimise, emit, load.

Each loaded module has an engine of its own, which goes when its owner goes, and the code with it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, final

import llvmlite.binding as llvm
from llvmlite.binding.ffi import ObjectRef
from llvmlite.binding.newpassmanagers import NewPassManager

from minitvm.codegen.argument_errors import ERROR_PREFIX, REPORT_PREFIX, messages_text
from minitvm.codegen.object_file import undefined_symbols
from minitvm.codegen.overlap import SHARE_MEMORY
from minitvm.codegen.packed_call import CALL_GLOBAL
from minitvm.codegen.parallel import BARRIER, PARALLEL_FOR
from minitvm.codegen.statement import ALLOCATE_WORKSPACE, GIVE_BACK_WORKSPACE
from minitvm.runtime.errors import RAISABLE, CompileError, InternalError
from minitvm.runtime.overlap import share_memory_address
from minitvm.runtime.registry import call_global_address
from minitvm.runtime.threads import barrier_address, parallel_for_address
from minitvm.runtime.workspace import workspaces
from minitvm.target import Target, host


@lru_cache(maxsize=8)
def target_machine(triple: str, cpu: str, features: str, level: int = 2) -> Any:
    """LLVM's target machine, for code generation at `level`; one for each combination, as making
    one costs a millisecond."""
    if triple == host().triple:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=level, reloc="pic", codemodel="small"
    )
    machine.set_asm_verbosity(False)
    return machine


def machine_for(target: Target) -> Any:
    """LLVM's target machine for a target."""
    return target_machine(target.triple, target.mcpu, target.feature_string)


def parse(text: str) -> Any:
    """LLVM's module of a text, verified."""
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise InternalError(f"LLVM refuses the generated code: {error}") from error
    return module


def optimise(module: Any, machine: Any) -> None:
    """LLVM's own pipeline, in place. Unrolling is left to schedules: LLVM's triples the time."""
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = False
    options.loop_interleaving = True
    options.loop_vectorization = True
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    passes = builder.getModulePassManager()
    passes.run(module, builder)
    # llvmlite (0.50) never frees a pass manager: its classes inherit ObjectRef's empty _dispose
    # before NewPassManager's real one. 180 KB a build, so it is called here.
    if type(passes)._dispose is ObjectRef._dispose:
        NewPassManager._dispose(passes)
        passes.detach()


def linked(text: str, imports: Sequence[str]) -> str:
    """The text of a module with others of the user's linked in.

    Raises
    ------
    CompileError
        When LLVM can't read one of them, or they define one name twice.
    """
    module = parse(text)
    for each in imports:
        try:
            other = llvm.parse_assembly(each)
            other.verify()
            other.triple, other.data_layout = module.triple, module.data_layout
            module.link_in(other)
        except RuntimeError as error:
            raise CompileError(
                f"pragma import_llvm: expected LLVM IR that can be linked in: {error}"
            ) from None
    return str(module)


def optimised(text: str, target: Target) -> Any:
    """The optimised module of a text."""
    module = parse(text)
    optimise(module, machine_for(target))
    return module


def emit_object(text: str, target: Target) -> bytes:
    """The object file of a text."""
    object_code: bytes = machine_for(target).emit_object(optimised(text, target))
    return object_code


def emit_assembly(text: str, target: Target) -> str:
    """The assembly of a text."""
    return str(machine_for(target).emit_assembly(optimised(text, target)))


@final
class LoadedCode:
    """An object file in memory, ready to run."""

    def __init__(self, object_code: bytes) -> None:
        """
        Raises
        ------
        CompileError
            When it needs a symbol that this process does not have.
        """
        for name in undefined_symbols(object_code):
            _provide(name)
        # An engine wants a module; an empty one, for this machine, serves.
        empty = llvm.parse_assembly("")
        empty.triple = host().triple
        engine = llvm.create_mcjit_compiler(empty, _loader_machine())
        engine.remove_module(empty)
        # The engine uses the file's own memory: it must not be freed before the engine.
        self._object = llvm.ObjectFileRef.from_data(object_code)
        engine.add_object_file(self._object)
        engine.finalize_object()
        self._engine = engine

    def address(self, name: str) -> int:
        """Where a function begins."""
        address = int(self._engine.get_function_address(name))
        if not address:
            raise InternalError(f"{name}: no such function in the compiled code")
        return address


def _loader_machine() -> Any:
    """A target machine that an engine may own."""
    return llvm.Target.from_triple(host().triple).create_target_machine(
        reloc="pic", codemodel="small", jit=True
    )


_provided: set[str] = set()
# Pointers to exception classes, for as long as the process lives.
_error_slots: dict[str, ctypes.c_void_p] = {}


def _provide(name: str) -> None:
    """Tells LLVM the address of a symbol, unless it has it."""
    if name in _provided:
        return
    # Without a lock, which a fork could leave locked: all find the same address.
    llvm.add_symbol(name, _find(name))
    _provided.add(name)


@lru_cache(maxsize=1)
def _messages() -> LoadedCode:
    """The functions that report wrong arguments; they live as long as the process."""
    machine = target_machine(host().triple, host().cpu, host().feature_string, level=0)
    module = parse(messages_text(host().triple, str(machine.target_data)))
    return LoadedCode(machine.emit_object(module))


# What the runtime provides under names of its own.
_RUNTIME: dict[str, Callable[[], int]] = {
    CALL_GLOBAL: call_global_address,
    SHARE_MEMORY: share_memory_address,
    PARALLEL_FOR: parallel_for_address,
    BARRIER: barrier_address,
    ALLOCATE_WORKSPACE: lambda: workspaces().allocate,
    GIVE_BACK_WORKSPACE: lambda: workspaces().give_back,
}


def _find(name: str) -> int:
    if name in _RUNTIME:
        return _RUNTIME[name]()
    if name.startswith(REPORT_PREFIX):
        return _messages().address(name)
    if name.startswith(ERROR_PREFIX):
        kind = name.removeprefix(ERROR_PREFIX)
        slot = _error_slots.setdefault(kind, ctypes.c_void_p(id(RAISABLE[kind])))
        return ctypes.addressof(slot)
    for library in (ctypes.pythonapi, *_c_libraries()):
        function = getattr(library, name, None)
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    raise CompileError(
        f"call of {name!r}: expected a C function that is loaded in this process, found none: load "
        "its library with ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) first"
    )


@lru_cache(maxsize=1)
def _c_libraries() -> tuple[ctypes.CDLL, ...]:
    """What the process has loaded, and the mathematical library if that is apart."""
    found = [ctypes.CDLL(None)]
    for name in ("libm.so.6", "libm.dylib", "libgcc_s.so.1"):
        try:
            found.append(ctypes.CDLL(name))
        except OSError:
            continue
    return tuple(found)
