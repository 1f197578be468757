"""Which changes are made, and which parts of a source are left alone."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from tests.mutation.equal import EQUAL
from tests.mutation.mutants import Mutant, mutants_in, sampled
from tests.mutation.sources import ROOMS, ROOT


def test_the_files_are_there() -> None:
    """Of the rooms that are changed, and of the changes that change nothing."""
    assert all(any((ROOT / folder).rglob("*.py")) for folder in ROOMS.values())
    assert all((ROOT / path).is_file() for path, *_ in EQUAL)


def made(source: str) -> list[Mutant]:
    return mutants_in("runtime/sample.py", dedent(source).encode())


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("x = a < b", {"x = a <= b"}),
        ("x = a + 32", {"x = a - 32", "x = a + 64"}),
        ("x = a and not b", {"x = (a or not b)", "x = (not b)", "x = (a)", "x = a and (b)"}),
        ("x = min(a, b)", {"x = max(a, b)"}),
        ("x = f(a, b, 'c')", {"x = f(b, a, 'c')"}),
        ("x = a if b else c", {"x = c if b else a"}),
        ("T = (a, b, c)", {"without a", "without b", "without c"}),
        ("x.y = a", {"pass"}),
        ("x = [y for y in z if y]", {"x = [y for y in z if True]"}),
        ("x = 'icmp slt i32'", {"x = 'icmp sle i32'"}),
        ("x = y[1]", {"x = y[2]", "x = y[0]"}),
    ],
)
def test_changes(source: str, changed: set[str]) -> None:
    assert {mutant.after for mutant in made(source)} == changed


def test_statements() -> None:
    source = """
    def f(a, b):
        if a:
            raise ValueError(f"a: expected {b + 1}")
        match b:
            case int():
                g(b)
        return g(a)
    """
    kinds = [(mutant.function, mutant.kind) for mutant in made(source)]
    assert kinds == [
        ("f", "returned argument"),
        ("f", "deleted guard"),
        ("f", "dropped case"),
        ("f", "deleted statement"),
    ]


@pytest.mark.parametrize(
    "source",
    [
        '"""1 + 1"""',
        "import a",
        "x: int | None",
        "def f(a: A | B = None) -> C | D: ...",
        "assert a < b",
        "raise TypeError(f'{a + 1}')",
        "if TYPE_CHECKING:\n    x = 1",
        "def __repr__(self):\n    return f'{a}' + str(1)",
        "Row = tuple[int, ...]",
        "__all__ = ['a', 'b']",
        "x = zip(a, strict=True)",
    ],
)
def test_what_is_left_alone(source: str) -> None:
    assert [mutant.after for mutant in made(source) if mutant.after != "pass"] == []


def test_a_change_is_made_where_it_says() -> None:
    source = "é = 'ä', a < b\nx = (a <\n     b)\n"
    compared = [mutant for mutant in made(source) if mutant.kind == "comparison"]
    assert [mutant.line for mutant in compared] == [1, 2]
    for mutant in compared:
        changed = mutant.applied(source.encode()).decode()
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
        assert changed.count("<=") == 1


def test_samples_hold_one_change_a_line_and_stay_the_same() -> None:
    source = "\n".join(f"x{i} = a{i} < b{i} + {i + 10}" for i in range(40))
    all_of_them = made(source)
    first = sampled(all_of_them, 15, 1, compiles=lambda mutant: True)
    assert len({mutant.line for mutant in first}) == len(first) == 15
    moved = made("\n\n" + source)
    again = sampled(moved, 15, 1, compiles=lambda mutant: True)
    assert [mutant.key for mutant in again] == [mutant.key for mutant in first]
    other = sampled(all_of_them, 15, 2, compiles=lambda mutant: True)
    assert [mutant.key for mutant in other] != [mutant.key for mutant in first]
