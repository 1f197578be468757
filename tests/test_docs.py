"""All code in the README, in docs/ and in docstrings runs.

The blocks of a page run one after the other in one namespace.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

import minitvm
from minitvm.transform.pass_config import _KEYS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
NOT_RUN = {"sh", "text", "c"}  # commands, pictures and declarations
MODULES = sorted(each.name for each in pkgutil.walk_packages(minitvm.__path__, "minitvm."))
LINK = re.compile(r"\]\(([^)#:]+)\)")
PROMISE = re.compile(r"^\| (?!promise \||---)(.*) \| (.*) \|$", re.M)
NAME = re.compile(r"(?<![\w./-])(?:tvm|minitvm|te|tir)(?:\.[A-Za-z_]\w*)+")
PATH = re.compile(
    r"(?<![\w./-])(?:minitvm|codegen|runtime|tests|docs|examples|benchmarks)/[\w./]+\b"
)
VARIABLE = re.compile(r"\bMINITVM_(?!PLUGIN_ABI)[A-Z_]+\b")
# Options of a PassContext, and what a page says is not there.
NO_NAMES = {*_KEYS, "te.hybrid.parse", "te.hybrid.build"}
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position)


def _run_session(code: str, page: Path, line: int, names: dict[str, Any]) -> None:
    """A block of ``>>>`` lines, whose answers are compared."""
    test = doctest.DocTestParser().get_doctest(code, names, page.name, str(page), line)
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    said: list[str] = []
    runner.run(test, out=said.append, clear_globs=False)
    names.update(test.globs)
    assert not runner.failures, "".join(said)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_runs(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": page.stem}
    for block in FENCE.finditer(text):
        kind, code = block.groups()
        line = _line(text, block.start(2))
        if kind == "pycon":
            _run_session(code, page, line, names)
        elif kind == "python":
            exec(compile("\n" * line + code, str(page), "exec"), names)
        else:
            assert kind in NOT_RUN, f"{page.name}:{line}: a block of {kind or 'nothing'}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_and_paths_are_there(page: Path) -> None:
    """What a page calls by its full name, or by its path in the repository."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for code in re.findall(r"`([^`\n]+)`", text):
        for name in NAME.findall(code):
            assert name in NO_NAMES or _is_there(name), f"{page.name}: {name}"
        for path in PATH.findall(code):
            places = ROOT / path, ROOT / "minitvm/include" / path
            assert any(each.exists() for each in places), f"{page.name}: {path}"


def _is_there(name: str) -> bool:
    first, *rest = name.split(".")
    found: Any = minitvm if first in ("tvm", "minitvm") else getattr(minitvm, first)
    path = "minitvm" if first in ("tvm", "minitvm") else f"minitvm.{first}"
    for each in rest:
        path += f".{each}"
        if path in MODULES:
            importlib.import_module(path)
        if not hasattr(found, each):
            return False
        found = getattr(found, each)
    return True


def test_each_environment_variable_is_told() -> None:
    """And what is told is read."""
    read = {
        name
        for folder in ("minitvm", "codegen", "runtime")
        for path in (ROOT / folder).rglob("*.py")
        for name in VARIABLE.findall(path.read_text(encoding="utf-8"))
    }
    told = {name for page in PAGES for name in VARIABLE.findall(page.read_text(encoding="utf-8"))}
    assert told == read


def test_what_a_call_costs_is_said_once() -> None:
    """Among the README's figures, with the machine that they were measured on."""
    assert not re.search(r"\b\d+ ns\b", (ROOT / "docs/calling.md").read_text(encoding="utf-8"))


def test_the_readme_links_every_page() -> None:
    linked = LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert {f"docs/{page.name}" for page in PAGES[1:]} <= set(linked)


def test_each_promise_has_its_tests() -> None:
    promises = PROMISE.findall((ROOT / "docs/promises.md").read_text(encoding="utf-8"))
    assert len(promises) > 20
    for promise, tests in promises:
        found = TEST.findall(tests)
        assert found, promise
        for path, name in found:
            assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"


@pytest.mark.parametrize("name", ["minitvm", *MODULES])
def test_the_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)
    if ">>>" in inspect.getsource(module):  # to look for examples takes longer than most of them
        assert doctest.testmod(module).failed == 0
