"""The examples in the docstrings are true."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name",
    ["conversion", "promotion", "nodes", "functor", "scalars", "printer", "verify", "interpreter"],
)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"minitvm.tir.{name}")).failed == 0
