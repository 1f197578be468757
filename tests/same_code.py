"""Writes the LLVM text of many programs: ``python -m tests.same_code FOLDER`` compares two trees.

A change that should leave the generated code alone shows it: run this before and after, and compare
the folders by ``diff -rq``. The programs are the examples, those that the benchmarks build, and
random whole programs. The texts are those that LLVM is given, in the order of compilation.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import runpy
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

_ROOT = Path(__file__).resolve().parents[1]
# The groups of the benchmarks whose programs are compared; the others measure calls and copies.
_GROUPS = ("build", "matmul", "ladder", "gemm", "conv")


@contextlib.contextmanager
def _written(folder: Path) -> Iterator[None]:
    """Each text that is compiled meanwhile becomes a file of the folder."""
    from minitvm.codegen import machine_code
    from minitvm.runtime import object_code

    folder.mkdir(parents=True)
    parse = object_code.parse
    count = 0

    def recorded(text: str) -> Any:
        nonlocal count
        (folder / f"{count:04}.ll").write_text(text, encoding="utf-8")
        count += 1
        return parse(text)

    with mock.patch.object(machine_code, "parse", recorded):
        yield
    print(f"{folder.name}: {count} texts", flush=True)


def _run(script: Path) -> None:
    """Runs an example as from the command line, its output dropped."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        runpy.run_path(str(script), run_name="__main__")


def main() -> None:
    """Writes the texts into the folder that the command line names, which must not be there."""
    parser = argparse.ArgumentParser(prog="python -m tests.same_code", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the texts go: a new folder")
    parser.add_argument("--seeds", type=int, default=100, help="how many random programs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as empty:
        os.environ["MINITVM_CACHE_DIR"] = empty  # what lies on disk is not compiled
        _write_all(options.folder, options.seeds, empty)


def _write_all(folder: Path, seeds: int, scratch: str) -> None:
    from benchmarks.__main__ import main as run_benchmarks
    from minitvm import CompileError
    from tests.whole_programs.numpy_meaning import Unsuitable
    from tests.whole_programs.running import run
    from tests.whole_programs.sweep import case_of

    sys.argv = ["example"]
    for script in sorted((_ROOT / "examples").rglob("*.py")):
        with _written(folder / "examples" / script.stem):
            _run(script)
    for group in _GROUPS:
        with _written(folder / "benchmarks" / group), contextlib.redirect_stdout(io.StringIO()):
            run_benchmarks([group, "--quick", "--json", f"{scratch}/{group}.json"])
    with _written(folder / "random"):
        for seed in range(seeds):
            with contextlib.suppress(CompileError, Unsuitable):
                run(*case_of(seed))


if __name__ == "__main__":
    main()
