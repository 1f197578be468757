"""The arrows of import, read from the source: they go down, and in no circle.

A room is a folder of the package, or a module that stands beside the folders. What a room imports
counts wherever it is written: at the top, inside a function, for type checkers alone, or as the
name of a module that importlib is given. ``pytest tests/test_architecture.py --update-golden``
draws the picture of the README anew.
"""

from __future__ import annotations

import ast
import importlib
import operator
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import minitvm

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
FOLDERS = {"minitvm": "minitvm", "minitvm.codegen": "codegen", "minitvm.runtime": "runtime"}
FACE = "minitvm"
RUNTIME_DEPENDENCIES = {"numpy", "llvmlite"}
# Imported inside functions only: the extras, what they bring, and what type checkers bring.
OPTIONAL = {"torch", "ml_dtypes", "google", "safetensors", "typing_extensions"}


def _modules() -> dict[str, Path]:
    """The files of the installed package, by module name; links are followed by FOLDERS alone."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.relative_to(ROOT / folder).with_suffix("")
            linked = ROOT / folder / inside.parts[0]
            if not linked.is_symlink():
                name = ".".join([package, *inside.parts])
                found[name.removesuffix(".__init__")] = path
    return found


MODULES = _modules()


@dataclass(frozen=True)
class Import:
    """One imported module, and where."""

    target: str
    line: int
    is_star: bool = False
    is_inside: bool = False


def _imports(name: str) -> Iterator[Import]:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    top = set(map(id, tree.body))
    named = {
        each.name
        for n in tree.body
        if isinstance(n, ast.Import | ast.ImportFrom)
        for each in n.names
    }
    by_name = bool(named & {"importlib", "on_demand"})
    for node in ast.walk(tree):
        inside = id(node) not in top
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, is_inside=inside)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: expected an absolute import"
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                target = full if full in MODULES else node.module
                yield Import(target, node.lineno, alias.name == "*", inside)
        elif by_name and isinstance(node, ast.Constant) and node.value in MODULES:
            yield Import(str(node.value), node.lineno, is_inside=inside)


@cache
def imports() -> dict[str, tuple[Import, ...]]:
    """What each module imports; read when it is first asked for, as that takes some seconds."""
    return {name: tuple(_imports(name)) for name in MODULES}


@cache
def below() -> dict[str, list[str]]:
    """The modules of the package that each imports."""
    return {
        name: sorted({each.target for each in found if each.target in MODULES} - {name})
        for name, found in imports().items()
    }


def room_of(module: str) -> str:
    """The room in which a module is: the first name below the package's."""
    return module.removeprefix("minitvm.").split(".")[0]


@cache
def rooms() -> dict[str, list[str]]:
    """The rooms that each room imports; the face, which users see, is none."""
    found: dict[str, set[str]] = {}
    for name, targets in below().items():
        if name != FACE:
            found.setdefault(room_of(name), set()).update(map(room_of, targets))
    return {room: sorted(others - {room}) for room, others in found.items()}


def circle_in(graph: Mapping[str, list[str]]) -> list[str]:
    """The nodes of a circle, each followed by one that imports it; none where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _floors() -> list[str]:
    """The rooms, each above those that it imports; where several could be next, by name."""
    sorter = TopologicalSorter(rooms())
    sorter.prepare()
    order: list[str] = []
    ready: list[str] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()])
        order.append(ready.pop(0))
        sorter.done(order[-1])
    return order


def _purpose(room: str) -> str:
    """What lives in a room: the first line of its own docstring."""
    tree = ast.parse(MODULES[f"minitvm.{room}"].read_text(encoding="utf-8"))
    lines = (ast.get_docstring(tree) or "").splitlines()
    assert lines, f"minitvm.{room}: expected a docstring that says what lives there"
    plain = re.sub(r":\w+:`minitvm\.([\w.]+)`", r"`\1`", lines[0].removesuffix("."))
    return plain.replace("``", "`")


def _picture() -> str:
    """The rooms as the README draws them."""
    rows = ["| room | what lives there | imports |", "|---|---|---|"]
    for room in _floors():
        is_module = MODULES[f"minitvm.{room}"].name != "__init__.py"
        path = f"{room}.py" if is_module else f"{room}/"
        rows.append(f"| `{path}` | {_purpose(room)} | {', '.join(rooms()[room]) or '-'} |")
    return "\n".join(rows)


def _drawn(readme: str) -> str:
    """The picture in the README's text."""
    house = readme.split("\n## The house\n")[1].split("\n## ")[0]
    return "\n".join(line for line in house.splitlines() if line.startswith("|"))


def test_no_circle_of_modules() -> None:
    assert circle_in(below()) == []


def test_no_circle_of_rooms() -> None:
    assert circle_in(rooms()) == []


def test_a_circle_would_be_found() -> None:
    assert set(circle_in({"a": ["b"], "b": ["c"], "c": ["b"]})) == {"b", "c"}


def test_modules_that_importlib_is_given_count() -> None:
    assert "minitvm.explanation.explain" in below()[FACE]


def test_modules_on_demand_count() -> None:
    found = [
        each.is_inside for each in imports()["minitvm.te"] if each.target == "minitvm.te.hybrid"
    ]
    assert len(found) == 2  # for type checkers, and by name


@pytest.mark.parametrize(
    "name",
    [
        "minitvm.contrib",
        "minitvm.explanation",
        "minitvm.te.hybrid",
        "decimal",
        "difflib",
        "fractions",
        "subprocess",
        "sysconfig",
    ],
)
def test_an_import_leaves_to_others(name: str) -> None:
    assert name not in _imported_beyond_the_dependencies()


@cache
def _imported_beyond_the_dependencies() -> frozenset[str]:
    """The modules that ``import minitvm`` brings into a fresh process with numpy and llvmlite."""
    program = (
        "import sys, numpy, llvmlite.binding; known = set(sys.modules); import minitvm; "
        "print(*set(sys.modules) - known)"
    )
    done = subprocess.run((sys.executable, "-c", program), capture_output=True, check=True)
    return frozenset(done.stdout.decode().split())


def test_nothing_inside_imports_the_face() -> None:
    assert [name for name, targets in below().items() if FACE in targets] == []


def test_the_runtime_is_the_floor() -> None:
    assert rooms()["runtime"] == []


def test_no_star_import() -> None:
    stars = [name for name, found in imports().items() if any(each.is_star for each in found)]
    assert [name for name in stars if name != FACE] == []


def test_no_other_distribution_is_needed() -> None:
    known = {"minitvm", *RUNTIME_DEPENDENCIES} | sys.stdlib_module_names
    others = [
        f"{name}:{each.line}: {each.target}"
        for name, found in imports().items()
        for each in found
        if each.target.split(".")[0] not in (known | OPTIONAL if each.is_inside else known)
    ]
    assert others == []


def test_the_readme_draws_the_rooms(request: pytest.FixtureRequest) -> None:
    readme = README.read_text(encoding="utf-8")
    if request.config.getoption("--update-golden"):
        readme = readme.replace(_drawn(readme), _picture())
        README.write_text(readme, encoding="utf-8")
    assert _drawn(readme) == _picture()


@pytest.mark.parametrize(
    ("former", "name"),
    [
        ("minitvm.expr", "Var"),
        ("minitvm.stmt", "For"),
        ("minitvm.op", "exp"),
        ("minitvm.functor", "Mutator"),
        ("minitvm.pass_context", "PassContext"),
        ("minitvm.te.schedule", "Schedule"),
        ("minitvm.te.reducer", "comm_reducer"),
        ("minitvm.codegen.build", "build"),
        ("minitvm.codegen.prepack", "prepack"),
    ],
)
def test_modules_are_importable_where_they_were(former: str, name: str) -> None:
    assert importlib.import_module(former) is sys.modules[former]
    assert hasattr(sys.modules[former], name)
    assert operator.attrgetter(former.removeprefix("minitvm."))(minitvm) is sys.modules[former]


def test_the_interpreter_is_importable_where_it_was() -> None:
    assert callable(importlib.import_module("minitvm.interpreter").interpret)
