"""Which tests execute which lines, noted once by coverage.py for each file of tests."""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import coverage

from tests.mutation.mutants import Mutant
from tests.mutation.sources import CACHE, ROOMS, ROOT

TRACES = CACHE / "traces"
TEXTS = CACHE / "texts"  # the traced sources, by their digests
FAILING = CACHE / "failing"
# Of no use here: they build packages, read sources or measure.
LEFT_OUT = ("test_packaging.py", "test_benchmarks.py", "test_architecture.py", "test_examples.py")


def test_files() -> list[str]:
    """The files of tests, as pytest names them."""
    found = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in found if path.name not in LEFT_OUT]


def known_failing() -> set[str]:
    """The tests that have failed without a change since they were traced."""
    return set(FAILING.read_text(encoding="utf-8").split("\0")) if FAILING.exists() else set()


def note_failing(tests: Iterable[str]) -> None:
    """From now on these are known to fail by themselves."""
    CACHE.mkdir(exist_ok=True)
    FAILING.write_text("\0".join(sorted(tests)), encoding="utf-8")


def trace(files: list[str], jobs: int) -> None:
    """Runs `files` of tests, each in a process, and notes the lines of each test."""
    note_failing(test for test in known_failing() if test.split("::")[0] not in files)
    with ThreadPoolExecutor(jobs) as pool:
        for name, passed in zip(files, pool.map(_trace_one, files), strict=True):
            print(f"traced {name}: {passed} tests", flush=True)


def _trace_one(file: str) -> int:
    folder = TRACES / file.replace("/", ".")
    made = CACHE / f"{folder.name}.{os.getpid()}"
    made.mkdir(parents=True)
    (made / "texts.json").write_text(json.dumps(_keep_texts()), encoding="utf-8")
    plugins = ("-p", "tests.mutation.steady", "-p", "tests.mutation.tracing")
    subprocess.run(
        (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugins, file),
        cwd=ROOT,
        env={**os.environ, "MUTATION_TRACE": str(made)},
        stdout=subprocess.DEVNULL,
        check=False,
    )
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(exist_ok=True)
    made.rename(folder)
    return len(json.loads((folder / "tests.json").read_text(encoding="utf-8")))


def _keep_texts() -> dict[str, str]:
    """Keeps the sources as they are now: the digest of each."""
    TEXTS.mkdir(parents=True, exist_ok=True)
    digests = {}
    for folder in ROOMS.values():
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_bytes()
            digest = hashlib.sha256(text).hexdigest()
            (TEXTS / digest).write_bytes(text)
            digests[str(path.relative_to(ROOT))] = digest
    return digests


@dataclass(frozen=True)
class _Trace:
    """One file of tests: the seconds of each, the digests of the sources then, the lines."""

    tests: dict[str, float]
    texts: dict[str, str]
    lines: coverage.CoverageData


class Traces:
    """What was traced, read once."""

    def __init__(self) -> None:
        self._traces = list(_read())
        failing = known_failing()
        self._seconds = {
            t: s for trace in self._traces for t, s in trace.tests.items() if t not in failing
        }
        self._lines: dict[str, dict[int, set[str]]] = {}
        self._functions: dict[str, ast.Module] = {}

    def nearest(self, mutant: Mutant, most: float) -> dict[str, float]:
        """The tests that may notice the change, at most `most` seconds of them (but three).

        Those that execute the line come before those that execute its function, and all others of
        the room; among those, the ones near by name, and the quick ones.
        """
        lines = self._lines_of(mutant.path)
        on_line = lines.get(mutant.line, set())
        first, last = self._around(mutant)
        inside = set().union(*(lines.get(at, ()) for at in range(first, last + 1)))
        room = {t for t in self._seconds if t.startswith(f"tests/{mutant.room}/")}
        stem = Path(mutant.path).stem
        ordered: list[str] = []
        for group in (on_line, inside - on_line, room - inside - on_line):
            ordered += _spread(group & self._seconds.keys(), self._seconds, mutant.room, stem)
        chosen: dict[str, float] = {}
        for test in ordered:
            seconds = self._seconds[test]
            if sum(chosen.values()) + seconds <= most or len(chosen) < 3:
                chosen[test] = seconds
        return chosen

    def seconds_of(self, tests: set[str]) -> dict[str, float]:
        """How long each of the tests takes."""
        return {test: self._seconds[test] for test in sorted(tests & self._seconds.keys())}

    def _lines_of(self, path: str) -> dict[int, set[str]]:
        """The tests of each line of a file as it is now."""
        if path not in self._lines:
            found: dict[int, set[str]] = {}
            now = (ROOT / path).read_text(encoding="utf-8").splitlines()
            for trace in self._traces:
                if path not in trace.texts:  # it is new since then
                    continue
                then = (TEXTS / trace.texts[path]).read_text(encoding="utf-8").splitlines()
                moved = _moved(tuple(then), tuple(now))
                for line, tests in trace.lines.contexts_by_lineno(str(ROOT / path)).items():
                    place = moved[min(line, len(moved) - 1)]  # edited while it was traced
                    found.setdefault(place, set()).update(tests)
            self._lines[path] = found
        return self._lines[path]

    def _around(self, mutant: Mutant) -> tuple[int, int]:
        """The lines of the body of the function that is changed, or of the statement."""
        if mutant.path not in self._functions:
            self._functions[mutant.path] = ast.parse((ROOT / mutant.path).read_bytes())
        first, last = mutant.line, mutant.line
        for node in ast.walk(self._functions[mutant.path]):
            if isinstance(node, ast.FunctionDef):
                end = node.end_lineno or node.lineno
                if node.lineno <= mutant.line <= end:  # the innermost comes last
                    first, last = node.body[0].lineno, end
        return first, last


def _spread(tests: set[str], seconds: dict[str, float], room: str, stem: str) -> list[str]:
    """Near ones before others, quick ones before slow ones, some of each function before all."""
    kinds: Counter[str] = Counter()
    places = {}
    for test in sorted(tests, key=lambda each: (seconds[each], each)):
        kind = test.split("[")[0]
        by_name = test.split("::")[0].endswith(f"/test_{stem}.py")
        near = 0 if by_name else 1 if test.startswith(f"tests/{room}/") else 2
        places[test] = (near, seconds[test] * (1 + kinds[kind] / 4), test)
        kinds[kind] += 1
    return sorted(tests, key=places.__getitem__)


@cache
def _moved(then: tuple[str, ...], now: tuple[str, ...]) -> list[int]:
    """Where each line of an old text is in the new one; a changed line is at the one before it."""
    places, place = [0], 0
    matched: dict[int, int] = {}
    for block in difflib.SequenceMatcher(None, then, now, autojunk=False).get_matching_blocks():
        matched |= {block.a + at + 1: block.b + at + 1 for at in range(block.size)}
    for line in range(1, len(then) + 1):
        place = matched.get(line, place)
        places.append(place)
    return places


def _read() -> Iterator[_Trace]:
    for file in test_files():
        folder = TRACES / file.replace("/", ".")
        if all((folder / name).exists() for name in ("tests.json", "texts.json", "lines.sqlite")):
            lines = coverage.CoverageData(str(folder / "lines.sqlite"))
            lines.read()
            tests = json.loads((folder / "tests.json").read_text(encoding="utf-8"))
            texts = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
            yield _Trace(tests, texts, lines)
