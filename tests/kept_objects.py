"""Object files that an earlier test, or an earlier run, has compiled from the same LLVM IR.

Half of the time of an ordinary run was LLVM's, and a change of the sources leaves the LLVM IR of
most tests as it was. So what LLVM makes of a text is kept in pytest's cache (``pytest
--cache-clear`` empties it). The key holds everything that determines an object file::

    LLVM IR, the target, LLVM's version, the sources that call LLVM  ->  the object file

Processes that tests start compile by themselves.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm
import pytest

from minitvm.codegen import machine_code
from minitvm.codegen.llvm_text import ModuleText
from minitvm.driver import program
from minitvm.runtime import object_code
from minitvm.target import Target

_KEPT_FOR = 7 * 24 * 3600  # seconds without a use
Compile = Callable[[ModuleText, Target], bytes]


def install(config: pytest.Config) -> None:
    """Lets `build` find object files in pytest's cache, to the end of the run."""
    cache = getattr(config, "cache", None)
    if cache is None:  # with -p no:cacheprovider
        return
    folder = cache.mkdir("object_files")
    drop_unused(folder)
    patch = pytest.MonkeyPatch()
    patch.setattr(program, "emit_object", keeping(machine_code.emit_object, folder))
    config.add_cleanup(patch.undo)


@functools.cache
def _made_by() -> bytes:
    """The versions and the sources that make an object file of a text."""
    sources = [Path(str(module.__file__)).read_bytes() for module in (machine_code, object_code)]
    return repr((llvmlite.__version__, llvm.llvm_version_info, sources)).encode()


def key_of(text: ModuleText, target: Target) -> str:
    """The name of the file that keeps the object file of a text."""
    about = (text.imports, text.has_plain_loops, target.triple, target.mcpu, target.feature_string)
    parts = (_made_by(), repr(about).encode(), str(text).encode())
    return hashlib.blake2b(b"\0".join(parts), digest_size=20).hexdigest()


def keeping(compile_text: Compile, folder: Path) -> Compile:
    """`compile_text`, which finds in a folder what it has made of a text before."""

    def emit_object(text: ModuleText, target: Target) -> bytes:
        path = folder / key_of(text, target)
        try:
            found = path.read_bytes()
            os.utime(path)
            return found
        except FileNotFoundError:
            made = compile_text(text, target)
            _write(path, made)
            return made

    return emit_object


def _write(path: Path, content: bytes) -> None:
    """Another process finds the whole file or none."""
    handle, unfinished = tempfile.mkstemp(dir=path.parent)
    with open(handle, "wb") as file:
        file.write(content)
    os.replace(unfinished, path)


def drop_unused(folder: Path) -> None:
    """Removes what no run of the last days has used."""
    for each in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            if time.time() - each.stat().st_mtime > _KEPT_FOR:
                each.unlink()
