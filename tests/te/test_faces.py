"""The classic names: te, tir, ir, and that they are documented by examples that run."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from minitvm import ir, te, tir
from minitvm.te import operation, tag, tensor
from minitvm.tir import buffer, expr, functor, ir_builder, op, reducer


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
