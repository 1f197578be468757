"""The examples in the docstrings are true; nothing heavy is imported; nothing is upstairs."""

from __future__ import annotations

import ast
import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import minitvm.runtime

ROOM = Path(minitvm.runtime.__file__).parent
MODULES = sorted(f"minitvm.runtime.{path.stem}" for path in ROOM.glob("[a-z]*.py"))


@pytest.mark.parametrize("name", [*MODULES, "minitvm.contrib.dlpack"])
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_down(name: str) -> None:
    path = ROOM / f"{name.rpartition('.')[2]}.py"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported = [node.module or ""]
        else:
            continue
        for target in imported:
            assert not target.startswith("minitvm") or target.startswith("minitvm.runtime.")


def test_import_is_light() -> None:
    code = (
        "import sys, minitvm.runtime, minitvm.nd, minitvm.contrib.dlpack\n"
        "print({'torch', 'ml_dtypes', 'numpy.ma'} & set(sys.modules))\n"
        "print(minitvm.runtime.glue.glue.is_made)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["set()", "False"]
