"""Puts changes into copies of the tree and runs the tests that could notice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.mutation.mutants import Mutant
from tests.mutation.sources import ROOT
from tests.mutation.traces import Traces

_COPIED = ("minitvm", "codegen", "runtime", "tests", "docs", "examples", "benchmarks")
_FILES = ("README.md", "pyproject.toml")


class Tree:
    """A copy of the tree, with a server that runs its tests."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="minitvm-mutation-"))
        unwanted = shutil.ignore_patterns("results")
        for name in _COPIED:
            shutil.copytree(ROOT / name, self._folder / name, symlinks=True, ignore=unwanted)
        for name in _FILES:
            shutil.copy2(ROOT / name, self._folder / name)
        temporary = self._folder / "tmp"
        temporary.mkdir()
        self._server = subprocess.Popen(
            (sys.executable, "-m", "tests.mutation.server"),
            cwd=self._folder,
            # A cached file would hide a change of the same size in the same second.
            env={
                **os.environ,
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONPATH": str(self._folder),
                "TMPDIR": str(temporary),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Tree:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.kill()
        self._server.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)

    @contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """The tree with the change, for a while."""
        path = self._folder / mutant.path
        source = path.read_bytes()
        cached = path.parent / "__pycache__"
        for old in cached.glob(f"{path.stem}.cpython-*.pyc"):
            old.unlink()
        path.write_bytes(mutant.applied(source))
        try:
            yield
        finally:
            path.write_bytes(source)

    def run(self, tests: dict[str, float], *, all_of_them: bool = False) -> dict[str, Any]:
        """What becomes of `tests`, which take so many seconds when they pass."""
        request = {
            "tests": list(tests),
            "limit": 10 + 5 * sum(tests.values()),
            "all": all_of_them,
        }
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        for left in (self._folder / "tmp").iterdir():
            shutil.rmtree(left, ignore_errors=True)
        return answer


def judged(tree: Tree, mutant: Mutant, traces: Traces, near: float, far: float) -> dict[str, Any]:
    """The record of a change: whether a test caught it, and which.

    `near` seconds of tests, as traced, are run at first; what survives them meets `far` more.
    """
    tests = traces.nearest(mutant, near)
    with tree.changed(mutant):
        answer = tree.run(tests)
        seconds = answer["seconds"]
        if answer["state"] == "passed":
            rest = {t: s for t, s in traces.nearest(mutant, far).items() if t not in tests}
            answer = tree.run(rest) if rest else answer
            seconds += answer["seconds"] if rest else 0
    states = {"passed": "survived", "failed": "caught", "timed out": "timed out"}
    return {
        "room": mutant.room,
        "path": mutant.path,
        "function": mutant.function,
        "line": mutant.line,
        "kind": mutant.kind,
        "before": mutant.before,
        "after": mutant.after,
        "state": states[answer["state"]],
        "by": answer["failed"][:1],
        "seconds": round(seconds, 1),
    }
