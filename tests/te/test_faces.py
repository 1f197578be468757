"""The classic names: te, tir, ir, and that they are documented by examples that run."""

from __future__ import annotations

import ast
import doctest
import inspect
from types import ModuleType

import pytest

import minitvm
from minitvm import auto_scheduler, contrib, error, ir, nd, runtime, te, tir, transform
from minitvm.te import operation, tag, tensor
from minitvm.tir import buffer, expr, functor, ir_builder, op, reducer

IMPORTS = (ast.Import, ast.ImportFrom)


FACES = [
    minitvm, te, te.hybrid, tir, ir, error, nd, runtime, transform, contrib, auto_scheduler,
]  # fmt: skip


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_names_are_handed_on_alike(face: ModuleType) -> None:
    """By the form of import that type checkers know; what isn't public has a name that says so."""
    tree = ast.parse(inspect.getsource(face))
    said = [alias for node in ast.walk(tree) if isinstance(node, IMPORTS) for alias in node.names]
    public = [alias for alias in said if not (alias.asname or alias.name).startswith("_")]
    public = [alias for alias in public if alias.name != "*"]
    assert all(alias.asname == alias.name for alias in public)
    names = [alias.name for alias in public]
    assert len(names) == len(set(names))
    assert set(names) - {"hybrid"} <= set(face.__all__)
    assert not {"Any", "importlib", "annotations", "typing"} & set(face.__all__)


@pytest.mark.parametrize("face", [te, tir, ir])
def test_every_name_is_there(face: ModuleType) -> None:
    assert len(set(face.__all__)) == len(face.__all__)
    for name in face.__all__:
        assert getattr(face, name).__doc__, name


@pytest.mark.parametrize(
    "module", [buffer, expr, functor, ir_builder, op, operation, reducer, tag, tensor]
)
def test_the_examples_run(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


def test_traversal_under_classic_names() -> None:
    seen: list[object] = []
    n = te.var("n")
    tir.stmt_functor.post_order_visit(n + 1, seen.append)
    assert seen[0] is n and len(seen) == 3
    assert ir.structural_equal(tir.stmt_functor.substitute(n + 1, {n: n * 2}), n * 2 + 1)
