"""A process that has imported what all tests import, and forks for every change.

It stands in a copy of the tree (``python -m tests.mutation.server``), reads requests as lines of
JSON and answers each with one. minitvm itself is imported in the forked children alone.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

import pytest

_IMPORTED_ONCE = ("numpy", "torch", "hypothesis", "llvmlite.binding", "ml_dtypes", "mpmath")
_MOST_MEMORY = 3 << 30  # resident bytes of a child: there are others on the machine
_BROKEN = 99
_PATIENCE = 12  # wall seconds to a second of the processor, on a machine that others use
_LONGEST_PAUSE = 60  # wall seconds in which a child and what it has waited for do nothing


class _Chosen:
    """A plugin: the chosen tests alone, in their order."""

    def __init__(self, tests: list[str]) -> None:
        self._place = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keeps those which are there: a change may have taken away others."""
        items[:] = [item for item in items if item.nodeid in self._place]
        items.sort(key=lambda item: self._place[item.nodeid])


def main() -> None:
    """Answers requests until the input ends."""
    for module in _IMPORTED_ONCE:
        importlib.import_module(module)
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


def _run(request: dict[str, Any]) -> dict[str, Any]:
    """Runs the tests of a request in a child: `state` is passed, failed or timed out."""
    output = Path("output.txt")
    start, child = time.monotonic(), os.fork()
    if child == 0:
        _test(request["tests"], request["limit"], output, request["all"])
    state = _wait(child, start + request["limit"] * _PATIENCE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what the tests have left running
    failed = [
        line.split(" ", 1)[1].split(" - ")[0]
        for line in output.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    ]
    return {"state": state, "failed": failed, "seconds": round(time.monotonic() - start, 1)}


def _wait(child: int, deadline: float) -> str:
    spent, paused = -1, time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        now = time.monotonic()
        if spent != (spent := _ticks(child)):
            paused = now
        idle = now - paused > _LONGEST_PAUSE
        if idle or now > deadline or _resident(child) > _MOST_MEMORY:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "timed out"
        time.sleep(0.05)
    code = os.waitstatus_to_exitcode(status)
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return "timed out"
    assert code != _BROKEN, "a child could not run its tests: see above"
    return "passed" if code in (0, 5) else "failed"  # 5: no test was left


def _resident(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def _ticks(process: int) -> int:
    """The processor's time of a child and of those of its own that have ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return 0
    return sum(map(int, fields[11:15]))


def _test(tests: list[str], limit: float, output: Path, all_of_them: bool) -> NoReturn:
    """Runs the tests, and never returns."""
    code = _BROKEN
    try:
        os.setsid()
        Path("/proc/self/oom_score_adj").write_text("1000")
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, handle), (2, handle)):
            os.dup2(source, target)
        files = list(dict.fromkeys(test.split("::")[0] for test in tests))
        options = ["-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-p", "no:randomly"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        options += ["-p", "tests.mutation.steady", *([] if all_of_them else ["-x"])]
        code = int(pytest.main([*options, *files], plugins=[_Chosen(tests)]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
