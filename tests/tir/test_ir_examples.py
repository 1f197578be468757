"""The examples in the docstrings are true."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name", ["expr", "stmt", "functor", "scalars", "printer", "verify", "interpreter"]
)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"minitvm.{name}")).failed == 0
