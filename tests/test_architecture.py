"""The arrows of import, read from the source: they go down, and in no circle."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {"minitvm": "minitvm", "minitvm.codegen": "codegen", "minitvm.runtime": "runtime"}

# The rooms of the house, the floor first: what is in each, and which other rooms it may import.
# A package stands for all its modules. The README draws the same picture.
_IR = ("runtime", "loop IR")
ROOMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "runtime": ("runtime", ()),
    "loop IR": (
        "scalars expr stmt functor indices buffer structural_equal printer verify interpreter",
        ("runtime",),
    ),
    "operators": ("op ir_builder", _IR),
    "arith": ("arith", _IR),
    "te": ("te", (*_IR, "operators", "arith")),
    "passes": ("passes", (*_IR, "operators", "arith", "te")),
    "pipeline": ("pass_config pass_context lower", (*_IR, "te", "passes")),
    "target": ("target", ("runtime",)),
    "auto-scheduler": ("auto_scheduler", (*_IR, "arith", "te", "target")),
    "classic names": (
        "error ir nd tir transform contrib",
        (*_IR, "operators", "te", "pipeline"),
    ),
    "codegen": ("codegen", (*_IR, "arith", "te", "passes", "pipeline", "target", "auto-scheduler")),
    "explanation": (
        "explanation",
        (
            *_IR,
            "operators",
            "arith",
            "te",
            "passes",
            "pipeline",
            "target",
            "auto-scheduler",
            "codegen",
        ),
    ),
}
FACE = "minitvm"
RUNTIME_DEPENDENCIES = {"numpy", "llvmlite"}
# These alone may be imported inside a function, the last for type checkers, which bring it.
OPTIONAL = {"torch", "ml_dtypes", "google", "safetensors", "typing_extensions"}
# The nodes' `__str__` asks the printer, their `__reduce__` and the folding of constants the
# traversal, which stand above the nodes; a stage knows its schedule, by its type. hashlib loads
# OpenSSL, and logging much, which `import minitvm` does not need. `te` hands hybrid on when it is
# asked for, and the face explain and plugins; both import them for type checkers alone. Most
# programs need no simulated device.
IMPORTED_INSIDE = {
    ("minitvm", "minitvm.explanation.explain"),
    ("minitvm", "minitvm.runtime.device_api.plugin"),
    ("minitvm.auto_scheduler.attempts", "logging"),
    ("minitvm.runtime.code_cache", "hashlib"),
    ("minitvm.runtime.device_api.registry", "minitvm.runtime.device_api.ext_dev"),
    ("minitvm.te", "minitvm.te.hybrid"),
    ("minitvm.te.schedules.stage", "minitvm.te.schedules.schedule"),
    ("minitvm.tir.expr", "minitvm.tir.functor"),
    ("minitvm.tir.expr", "minitvm.tir.printer"),
    ("minitvm.tir.stmt", "minitvm.tir.printer"),
    ("minitvm.tir.stmt", "minitvm.tir.functor"),
}


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
    is_star: bool
    is_inside: bool


def _imports(name: str) -> Iterator[Import]:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, False, id(node) not in top)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: expected an absolute import"
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                target = full if full in MODULES else node.module
                yield Import(target, node.lineno, alias.name == "*", id(node) not in top)


IMPORTS = {name: tuple(_imports(name)) for name in MODULES}


def _room(module: str) -> str | None:
    first = module.removeprefix("minitvm.").split(".")[0]
    return next((room for room, (names, _) in ROOMS.items() if first in names.split()), None)


INSIDE = sorted(set(MODULES) - {FACE})


def test_the_walls_stand_where_they_should() -> None:
    """The rooms are in order: each imports only rooms that stand before it."""
    order = list(ROOMS)
    for room, (_, below) in ROOMS.items():
        assert all(order.index(other) < order.index(room) for other in below), room


@pytest.mark.parametrize("name", INSIDE)
def test_imports_go_down(name: str) -> None:
    room = _room(name)
    assert room is not None, f"{name}: expected it in a room: add it to ROOMS and to the README"
    allowed = {room, *ROOMS[room][1]}
    for each in IMPORTS[name]:
        if each.target.split(".")[0] != "minitvm" or (name, each.target) in IMPORTED_INSIDE:
            continue
        where = f"{name}:{each.line}: import of {each.target}"
        assert each.target != FACE, f"{where}: the face is for users only"
        assert _room(each.target) in allowed, f"{where}: {room} may import {sorted(allowed)}"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_no_other_distribution_is_needed(name: str) -> None:
    for each in IMPORTS[name]:
        root = each.target.split(".")[0]
        known = {"minitvm", *RUNTIME_DEPENDENCIES} | sys.stdlib_module_names
        assert root in (known | OPTIONAL if each.is_inside else known), f"{name}:{each.line}"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_inside_functions_are_of_optional_packages(name: str) -> None:
    for each in IMPORTS[name]:
        if each.is_inside and each.target.split(".")[0] not in OPTIONAL:
            assert (name, each.target) in IMPORTED_INSIDE, f"{name}:{each.line}: {each.target}"


def test_every_exception_is_still_needed() -> None:
    found = {(name, i.target) for name in MODULES for i in IMPORTS[name] if i.is_inside}
    assert found >= IMPORTED_INSIDE


@pytest.mark.parametrize("name", INSIDE)
def test_no_star_import(name: str) -> None:
    assert not [each for each in IMPORTS[name] if each.is_star]


def test_no_cycle() -> None:
    below = {
        name: sorted({i.target for i in IMPORTS[name] if not i.is_inside} & set(MODULES))
        for name in MODULES
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"a circle: {' -> '.join((*path[path.index(name) :], name))}"
        if name not in done:
            for other in below[name]:
                visit(other, (*path, name))
            done.add(name)

    for name in MODULES:
        visit(name, ())


def test_the_readme_draws_the_same_rooms() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    house = readme.split("\n## The house\n")[1].split("\n## ")[0]
    rows = [row.split(" | ") for row in house.splitlines() if row.startswith("| ")]
    drawn = {row[0].removeprefix("| "): set(re.findall(r"`(\w+)/?`", row[1])) for row in rows[1:]}
    assert drawn == {room: set(names.split()) for room, (names, _) in ROOMS.items()}
    assert list(drawn) == list(ROOMS)
