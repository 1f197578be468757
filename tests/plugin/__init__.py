"""A device as a plugin in C, for tests: `plugin.c`, compiled by the system's compiler."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import minitvm as tvm

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "plugin.c"
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
PADDLE_INCLUDE = "PADDLE_INCLUDE"
"""The environment variable that names the folder with PaddlePaddle's headers, where it isn't
installed beside us: the one that has ``paddle/phi/backends/device_ext.h``."""
DEVICES = 3
_numbers = count()


def paddle_include() -> Path | None:
    """The folder of PaddlePaddle's own headers, if there is one."""
    named = os.environ.get(PADDLE_INCLUDE)
    spec = None if named else importlib.util.find_spec("paddle")
    places = spec.submodule_search_locations if spec else None
    folder = Path(named) if named else Path(next(iter(places or ["nowhere"]))) / "include"
    return folder if (folder / "paddle" / "phi" / "backends" / "device_ext.h").is_file() else None


def run_compiler(compiler: str, *arguments: str) -> None:
    done = subprocess.run([compiler, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def compile_c(source: Path, made: Path, *arguments: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    include = f"-I{tvm.get_include()}"
    shared = ["-std=c99", "-shared", "-fPIC", "-pthread"]
    run_compiler(compiler, include, *WARNINGS, *shared, *arguments, str(source), "-o", str(made))
    return made


def compile_for_paddle(source: Path, made: Path) -> Path:
    """Compiled with PaddlePaddle's own header, which is C++."""
    include = paddle_include()
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if include is None:
        pytest.skip(f"needs PaddlePaddle's headers: install it, or name them by {PADDLE_INCLUDE}")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    shared = ["-std=c++17", "-shared", "-fPIC", "-pthread", "-DPADDLE_HEADER", "-Wall"]
    run_compiler(compiler, f"-I{include}", *shared, "-x", "c++", str(source), "-o", str(made))
    return made


class TestPlugin:
    """A copy of a compiled plugin, which shares no state with others, and its own device type."""

    __test__ = False

    def __init__(self, compiled: Path, folder: Path) -> None:
        number = next(_numbers)
        self.name = f"plugin_{number}"
        self.path = folder / f"lib{self.name}.so"
        shutil.copy(compiled, self.path)
        self.library = ctypes.CDLL(str(self.path))
        self.set_text("plugin_type", self.name.encode())
        self.left_out: set[str] = set()

    def set_text(self, name: str, value: bytes) -> None:
        (ctypes.c_char * 64).in_dll(self.library, name).value = value

    def set(self, name: str, value: int, kind: Any = ctypes.c_int) -> None:
        kind.in_dll(self.library, name).value = value

    def leave_out(self, *functions: str) -> None:
        for each in functions:
            assert self.library.plugin_leave_out(each.encode()) == 0, each
            self.left_out.add(each)

    def fail(self, function: str, status: int, after: int = 0, later: bool = False) -> None:
        assert self.library.plugin_fail(function.encode(), status, after, later) == 0, function

    def calls(self, function: str) -> int:
        found: int = self.library.plugin_calls(function.encode())
        assert found >= 0, function
        return found

    def live(self) -> dict[str, int]:
        kinds = ("memory", "streams", "events")
        return {each: self.library.plugin_live(each.encode()) for each in kinds}
