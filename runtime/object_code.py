"""Compiles LLVM IR to machine code in this process: parses, optimises, emits, loads.

Each loaded object has an engine of its own. The engine and its code are freed with their owner.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Set
from functools import lru_cache
from typing import Any, final

import llvmlite
import llvmlite.binding as llvm
from llvmlite.binding.ffi import ObjectRef
from llvmlite.binding.newpassmanagers import NewPassManager

from minitvm.runtime.code_cache import entry_key, read_entry, write_entry
from minitvm.runtime.errors import InternalError
from minitvm.runtime.host import host
from minitvm.runtime.object_file import calls_through_stubs, undefined_symbols
from minitvm.runtime.version import VERSION

# The library functions by which LLVM replaces a program's own loops.
_LIBRARY_CALLS = ("bcmp", "memcmp", "memcpy", "memmove", "memset", "strlen")


@lru_cache(maxsize=8)
def target_machine(triple: str, cpu: str, features: str, level: int = 2) -> Any:
    """LLVM's target machine, for code generation at `level`. Each combination is made once, since
    this costs a millisecond."""
    if triple == host().triple:
        _initialise()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=level, reloc="pic", codemodel="small"
    )


def host_machine(level: int = 2) -> Any:
    """LLVM's target machine for the machine that this process runs on."""
    return target_machine(host().triple, host().cpu, host().feature_string, level)


def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


_DECLARED = re.compile(r"^declare .*\)(?: (?:local_)?unnamed_addr)?", re.MULTILINE)
# A flag of the module: calls of the C library that LLVM inserts use the table as well.
_LIBRARY_BY_TABLE = """
!llvm.module.flags = !{!1000000000}
!1000000000 = !{i32 7, !"RtLibUseGOT", i32 1}
"""


def by_table(text: str) -> str:
    """LLVM IR that calls external functions through the table of their addresses (the GOT). Stubs
    would need memory that LLVM's loader doesn't count beforehand."""
    return _DECLARED.sub(r"\g<0> nonlazybind", text) + _LIBRARY_BY_TABLE


def parse(text: str) -> Any:
    """LLVM's module for a text, verified."""
    try:
        module = llvm.parse_assembly(by_table(text))
        module.verify()
    except RuntimeError as error:
        raise InternalError(f"LLVM refuses the generated code: {error}") from error
    return module


def optimise(module: Any, machine: Any) -> None:
    """LLVM's own pipeline, in place. Unrolling is left to schedules: LLVM's triples the time."""
    builder = _pass_builder(machine)
    passes = builder.getModulePassManager()
    passes.run(module, builder)
    _dispose(passes)


def optimise_functions(module: Any, machine: Any, with_loops: Set[str]) -> None:
    """LLVM's own simplifications of each function by itself, in place, except for functions marked
    ``optnone``: all of them for the functions named in `with_loops`. The others get those that put
    stack memory into registers and simplify what isn't a loop, which takes a sixth of the time."""
    builder = _pass_builder(machine)
    every, few = builder.getFunctionPassManager(), llvm.create_new_function_pass_manager()
    few.add_sroa_pass()
    for _ in range(2):  # the second time, variables in loops whose vectors the first has narrowed
        few.add_instruction_combine_pass()
        few.add_simplify_cfg_pass()
    for function in module.functions:
        if not function.is_declaration and not _stays(function):
            passes = every if function.name in with_loops else few
            passes.run(function, builder)
    _dispose(every)
    _dispose(few)


def _stays(function: Any) -> bool:
    return any(b"optnone" in each.split() for each in function.attributes)


def _pass_builder(machine: Any) -> Any:
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = False
    options.loop_interleaving = True
    options.loop_vectorization = True
    options.slp_vectorization = False
    return llvm.create_pass_builder(machine, options)


def _dispose(passes: Any) -> None:
    """llvmlite (0.50) never frees a pass manager: its classes inherit ObjectRef's empty _dispose
    before NewPassManager's real one. 180 KB a build, so it is called here."""
    if type(passes)._dispose is ObjectRef._dispose:
        NewPassManager._dispose(passes)
        passes.detach()


def native_object(text: str, level: int = 2) -> bytes:
    """The object file of a text for this machine: from the cache, if it is there.

    Parameters
    ----------
    text
        LLVM IR for this machine, with its triple and data layout. It must contain no address, since
        another process may run the code.
    level
        0 doesn't optimise, for code that seldom runs; 2 optimises.
    """
    key = entry_key(
        by_table(text),
        str(level),
        host().cpu,
        host().feature_string,
        f"llvmlite {llvmlite.__version__}, LLVM {llvm.llvm_version_info}",
        f"minitvm {VERSION}, {sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}",
    )
    kept = read_entry(key)
    if kept is not None and _needs_only_declared(kept, text):
        return kept
    machine, module = host_machine(level), parse(text)
    if level:
        optimise(module, machine)
    made: bytes = machine.emit_object(module)
    write_entry(key, made)
    return made


def _needs_only_declared(object_code: bytes, text: str) -> bool:
    names = {*re.findall(r"@([\w.]+)", text), *_LIBRARY_CALLS}
    return names.issuperset(undefined_symbols(object_code))


_provided: set[str] = set()


def provide(name: str, find: Callable[[str], int]) -> None:
    """Tells LLVM the address of a symbol, unless it has it. Without a lock, which a fork could
    leave locked: two threads set the same address."""
    if name not in _provided:
        llvm.add_symbol(name, find(name))
        _provided.add(name)


@final
class LoadedCode:
    """An object file in memory, ready to run.

    Parameters
    ----------
    object_code
        The object file, undamaged: LLVM's loader checks nothing.
    find
        Returns the address of a symbol that the code needs; raises an error if there is none. A
        name has one meaning in a process, so `find` is called once for it.
    """

    def __init__(self, object_code: bytes, find: Callable[[str], int]) -> None:
        for name in undefined_symbols(object_code):
            provide(name, find)
        # An engine needs a module; an empty one for this machine is enough.
        _initialise()
        empty = llvm.parse_assembly("")
        empty.triple = host().triple
        # Sections refer to each other by 32 bits. llvmlite's own memory manager puts them side by
        # side in any free part of the address space, but has to know their sizes.
        together = None if calls_through_stubs(object_code) else True
        engine = llvm.create_mcjit_compiler(empty, _loader_machine(), use_lmm=together)
        engine.remove_module(empty)
        # The engine uses the file's own memory: it must not be freed before the engine.
        self._object = llvm.ObjectFileRef.from_data(object_code)
        engine.add_object_file(self._object)
        engine.finalize_object()
        self._engine = engine

    def address(self, name: str) -> int:
        """The address of a function."""
        return _checked(name, self._engine.get_function_address(name))

    def has(self, name: str) -> bool:
        """Whether there is a function of a name."""
        return bool(self._engine.get_function_address(name))

    def data(self, name: str) -> int:
        """The address of a global variable."""
        return _checked(name, self._engine.get_global_value_address(name))


def _checked(name: str, address: int) -> int:
    if not address:
        raise InternalError(f"{name}: no such symbol in the compiled code")
    return int(address)


def _loader_machine() -> Any:
    """A target machine that an engine may own."""
    return llvm.Target.from_triple(host().triple).create_target_machine(
        reloc="pic", codemodel="small", jit=True
    )
