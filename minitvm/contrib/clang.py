"""LLVM IR of C and C++ by an installed Clang: classic ``tvm.contrib.clang``."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from minitvm.contrib.utils import tempdir
from minitvm.runtime.errors import CompileError


def find_clang(required: bool = True) -> list[str]:
    """The commands under which Clang is installed.

    Raises
    ------
    CompileError
        When Clang isn't installed and is `required`.
    """
    found = [name for name in ("clang", *(f"clang-{v}" for v in range(30, 9, -1)))
             if shutil.which(name)]  # fmt: skip
    if required and not found:
        raise CompileError(
            "clang: expected clang on the PATH, found none: install it, or give "
            "pragma(axis, 'import_llvm', text) LLVM IR that you have"
        )
    return found


def create_llvm(
    inputs: str | Sequence[str],
    output: str | None = None,
    options: Sequence[str] | None = None,
    cc: str | None = None,
) -> str:
    """The LLVM IR of C++ code, for the pragma ``import_llvm``.

    Parameters
    ----------
    inputs : str or list of str
        Code, or paths of files of code.
    output : str
        The path of a file to which the text is written as well.
    options, cc
        More options, and the command of Clang.

    Raises
    ------
    CompileError
        When there is no Clang, or it refuses the code: with its message.
    """
    command = cc or find_clang()[0]
    temp = tempdir()
    paths = []
    for position, each in enumerate([inputs] if isinstance(inputs, str) else inputs):
        is_code = "\n" in each or not Path(each).is_file()
        path = temp / f"input{position}.cc" if is_code else Path(each)
        if is_code:
            path.write_text(each, encoding="utf-8")
        paths.append(str(path))
    made = Path(output or temp.relpath("output.ll"))
    line = [command, "-S", "-O3", "-emit-llvm", *(options or ()), "-o", str(made), *paths]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"clang: {' '.join(line)}: {done.stderr.strip()}")
    return made.read_text(encoding="utf-8")
