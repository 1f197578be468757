"""Libraries: files that hold compiled functions, for other processes.

A library is written by :meth:`Module.export_library` and read by ``runtime.load_module``. It holds
the object file, which is linked when it is loaded, and the loop IR, from which variants for other
layouts are compiled when a call needs them::

    b"minitvm library 1\\n"   the number counts the formats
    32 bytes                  SHA-256 of all that follows
    uint64                    bytes of the description, little-endian
    description               JSON: modules by their functions, programs by their loops and targets
    object files              one for each program, in order
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from minitvm.codegen.options import CodegenOptions
from minitvm.driver.program import SOURCES, CompiledProgram, compiled_function
from minitvm.runtime.errors import CompileError
from minitvm.runtime.module import Module
from minitvm.runtime.version import VERSION
from minitvm.target import Target, missing_on_host
from minitvm.tir.json import load_json, save_json
from minitvm.tir.stmt import IRModule

_MAGIC = b"minitvm library 1\n"
_ANY_MAGIC = b"minitvm library "
_DIGEST_SIZE = 32
_LENGTH = struct.Struct("<Q")
# The properties besides its target on which the meaning of an object file depends.
_MADE_BY = [VERSION, sys.implementation.cache_tag]


def export_library(module: Module, path: str | os.PathLike[str]) -> None:
    """See :meth:`minitvm.runtime.Module.export_library`."""
    programs: list[CompiledProgram] = []
    modules: list[dict[str, Any]] = []
    _describe(module, modules, programs, [])
    codes = [each.object_code for each in programs]
    description = {
        "made_by": _MADE_BY,
        "modules": modules,
        "programs": [
            {**_description(program), "bytes": len(code)}
            for program, code in zip(programs, codes, strict=True)
        ],
    }
    text = json.dumps(description).encode()
    content = b"".join((_LENGTH.pack(len(text)), text, *codes))
    # The file is written beside the old one and moved to its place: a process that loads the
    # library meanwhile gets the whole old file.
    unfinished = Path(f"{os.fsdecode(path)}.{os.getpid()}.tmp")
    try:
        unfinished.write_bytes(_MAGIC + hashlib.sha256(content).digest() + content)
        unfinished.replace(os.fsdecode(path))
    finally:
        unfinished.unlink(missing_ok=True)


def _describe(
    module: Module,
    modules: list[dict[str, Any]],
    programs: list[CompiledProgram],
    around: Sequence[Module],
) -> int:
    """Adds a module, the modules that it imports, and their programs; returns its position."""
    if any(module is each for each in around):
        raise ValueError(f"export_library: {module.name}: expected no module that imports itself")
    functions: dict[str, list[Any]] = {}
    for name in module.function_names:
        found = compiled_function(module[name])
        if found is None:
            raise TypeError(
                f"export_library: {name}: expected a function of build, which has machine code, "
                f"got {type(module[name]).__name__}: register a Python function where the library "
                "is loaded, and call it by call_packed"
            )
        function, program = found
        if program not in programs:
            programs.append(program)
        functions[name] = [programs.index(program), function.name]
    imported = [
        _describe(each, modules, programs, [*around, module]) for each in module.imported_modules
    ]
    modules.append(
        {
            "functions": functions,
            "entry": module.entry_name,
            "type_key": module.type_key,
            "imported": imported,
        }
    )
    return len(modules) - 1


def _description(program: CompiledProgram) -> dict[str, Any]:
    options = program.options
    return {
        "loops": save_json(program.lowered),
        "target": options.target.target,
        "triple": options.target.triple,
        "features": sorted(options.target.features),
        "strict": options.strict,
        "release_gil": options.release_gil,
    }


class _Saved(NamedTuple):
    """A program of a library, checked."""

    loops: IRModule
    options: CodegenOptions
    missing: str  # why this machine can't run its machine code
    object_code: bytes


def load_module(path: str | os.PathLike[str]) -> Module:
    """See :func:`minitvm.runtime.load_module`."""
    name = os.fsdecode(path)
    where = f"load_module: {name}"
    content = _content(where, Path(name).read_bytes())
    try:
        description, saved = _read(content)
    except (CompileError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(
            f"{where}: expected a library as export_library writes it: {error}"
        ) from None
    is_current = description["made_by"] == _MADE_BY
    programs = [_program(where, each, is_current) for each in saved]
    modules: list[Module] = []
    for each in description["modules"]:
        modules.append(_module(each, modules, programs))
    return modules[-1]


def _content(where: str, data: bytes) -> bytes:
    """The content of a file behind its digest, which must match."""
    start = len(_MAGIC) + _DIGEST_SIZE
    if not data.startswith(_MAGIC):
        if data.startswith(_ANY_MAGIC):
            version = data[len(_ANY_MAGIC) : start].split(b"\n")[0].decode("ascii", "replace")
            raise ValueError(
                f"{where}: expected a library of format 1, got one of format {version!r}: export "
                "it again with this version of minitvm"
            )
        advice = ""
        if data[:4] == b"\x7fELF":
            advice = ", got an object file or shared library: no linker is needed here"
        raise ValueError(
            f"{where}: expected a library that Module.export_library has written{advice}"
        )
    content = data[start:]
    if hashlib.sha256(content).digest() != data[len(_MAGIC) : start]:
        raise ValueError(
            f"{where}: expected the library as it was written, found it cut off or changed: copy "
            "or export it again"
        )
    return content


def _read(content: bytes) -> tuple[dict[str, Any], list[_Saved]]:
    """The description of a library and its programs. Wrong types raise whatever Python raises for
    them."""
    (length,) = _LENGTH.unpack_from(content)
    description = json.loads(content[_LENGTH.size : _LENGTH.size + length])
    position = _LENGTH.size + length
    programs = []
    for each in description["programs"]:
        size, strict, release_gil = each["bytes"], each["strict"], each["release_gil"]
        code = content[position : position + size]
        loops = load_json(each["loops"])
        if len(code) != size or not isinstance(loops, IRModule):
            raise ValueError("a program is incomplete")
        if strict not in (False, True) or release_gil not in (False, True, None):
            raise ValueError("an option is unknown")
        options = CodegenOptions(Target(each["target"]), strict=strict, release_gil=release_gil)
        missing = missing_on_host(each["triple"], frozenset(each["features"]))
        programs.append(_Saved(loops, options, missing, code))
        position += size
    if position != len(content) or not description["modules"]:
        raise ValueError("its parts don't add up")
    for number, each in enumerate(description["modules"]):
        _check(each, number, programs)
    return description, programs


def _check(module: Mapping[str, Any], number: int, programs: Sequence[_Saved]) -> None:
    """Checks that a module has an entry, functions of the programs, and imports earlier modules."""
    for program, name in module["functions"].values():
        if name not in programs[program].loops.functions:
            raise ValueError(f"no program has a function {name!r}")
    if module["entry"] not in module["functions"]:
        raise ValueError(f"no function is called {module['entry']!r}")
    if not all(0 <= each < number for each in module["imported"]):
        raise ValueError("a module is missing")


def _program(where: str, saved: _Saved, is_current: bool) -> CompiledProgram:
    """The program of a library, linked; compiled again where another version of minitvm or Python
    made it."""
    if saved.missing:
        raise ValueError(
            f"{where}: {', '.join(saved.loops.functions)}: expected a machine that runs code for "
            f"{str(saved.options.target)!r} as it was there, but {saved.missing}: build it on this "
            "one, or for features of both, as with target='llvm -mcpu=x86-64-v3'"
        )
    return CompiledProgram(saved.loops, saved.options, saved.object_code if is_current else None)


def _module(
    description: Mapping[str, Any],
    modules: Sequence[Module],
    programs: Sequence[CompiledProgram],
) -> Module:
    functions = {
        name: programs[program].function(of)
        for name, (program, of) in description["functions"].items()
    }
    first = programs[next(iter(description["functions"].values()))[0]]
    made = Module(
        functions,
        sources={kind: partial(first.source, kind) for kind in SOURCES},
        imported_modules=[modules[each] for each in description["imported"]],
        type_key=description["type_key"],
    )
    made.entry_name = description["entry"]
    return made
