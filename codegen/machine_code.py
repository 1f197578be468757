"""Compiles the text of a module to machine code for a target, and links it to its symbols."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import llvmlite.binding as llvm

from minitvm.codegen.argument_errors import ERROR_PREFIX, REPORT_PREFIX, messages_text
from minitvm.codegen.llvm_text import ModuleText
from minitvm.codegen.overlap import SHARE_MEMORY
from minitvm.codegen.packed_call import CALL_GLOBAL
from minitvm.codegen.parallel import BARRIER, PARALLEL_FOR
from minitvm.codegen.statement import ALLOCATE_WORKSPACE, GIVE_BACK_WORKSPACE
from minitvm.runtime.errors import RAISABLE, CompileError
from minitvm.runtime.host import host
from minitvm.runtime.native import increment_reference
from minitvm.runtime.object_code import (
    LoadedCode,
    by_table,
    host_machine,
    native_object,
    optimise,
    optimise_functions,
    parse,
    target_machine,
)
from minitvm.runtime.overlap import share_memory_address
from minitvm.runtime.registry import call_global_address
from minitvm.runtime.threads import barrier_address, parallel_for_address
from minitvm.runtime.workspace import workspaces
from minitvm.target import Target


def machine_for(target: Target) -> Any:
    """LLVM's target machine for a target."""
    return target_machine(target.triple, target.mcpu, target.feature_string)


def _link(module: Any, imports: Sequence[str]) -> None:
    """Links the user's modules, given as text, into a module.

    Raises
    ------
    CompileError
        When LLVM can't read one of them, or they define one name twice.
    """
    for each in imports:
        try:
            other = llvm.parse_assembly(by_table(each))
            other.verify()
            other.triple, other.data_layout = module.triple, module.data_layout
            module.link_in(other)
        except (RuntimeError, UnicodeEncodeError) as error:
            raise CompileError(
                f"pragma import_llvm: expected LLVM IR that can be linked in: {error}"
            ) from None


def optimised(text: ModuleText, target: Target) -> Any:
    """The optimised module of a text.

    LLVM's whole pipeline takes twice the time of its passes over single functions. It vectorises
    loops and inlines calls, which pays only where a scalar loop is left, or where the user's code
    is linked in. Its passes over loops take most of the rest, and run where the text says so.

    Raises
    ------
    CompileError
        When the user's LLVM IR can't be linked in.
    """
    module = parse(str(text))
    _link(module, text.imports)
    if text.imports or text.has_plain_loops:
        optimise(module, machine_for(target))
    else:
        optimise_functions(module, machine_for(target), text.with_loop_passes)
    return module


def emit_object(text: ModuleText, target: Target) -> bytes:
    """The object file of a text."""
    object_code: bytes = machine_for(target).emit_object(optimised(text, target))
    return object_code


def emit_assembly(text: ModuleText, target: Target) -> str:
    """The assembly of a text."""
    return str(machine_for(target).emit_assembly(optimised(text, target)))


def load(object_code: bytes) -> LoadedCode:
    """An object file in memory, ready to run.

    Raises
    ------
    CompileError
        When the code needs a symbol that this process does not have.
    """
    return LoadedCode(object_code, _find)


# Pointers to exception classes, for as long as the process lives.
_error_slots: dict[str, ctypes.c_void_p] = {}


@lru_cache(maxsize=1)
def _messages() -> LoadedCode:
    """The functions that report wrong arguments. They live as long as the process, even if a second
    thread compiled them at the same time, since LLVM may know their addresses."""
    text = messages_text(host().triple, str(host_machine().target_data))
    made = load(native_object(text, level=0))
    increment_reference(made)
    return made


# The symbols that the runtime provides under names of its own.
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
    """The libraries that the process has loaded, and the mathematical library if it is a separate
    one."""
    found = [ctypes.CDLL(None)]
    for name in ("libm.so.6", "libm.dylib", "libgcc_s.so.1"):
        try:
            found.append(ctypes.CDLL(name))
        except OSError:
            continue
    return tuple(found)
