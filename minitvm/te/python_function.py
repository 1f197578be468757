"""Functions of Python from which programs are written, by calling them with expressions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, or of the function in it, or of its class."""
    inner = _inner(function)
    return str(getattr(inner, "__name__", type(inner).__name__))


def why_no_program(function: Any, example: str) -> str:
    """Why no program can be written by calling something, and what to do; nothing for a function of
    Python code. `example` is the `return` of such a function."""
    inner = _inner(function)
    name = name_of(function)
    if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
        return f"the asynchronous function {name}: write it with def, and return its results"
    if inspect.isgeneratorfunction(inner):
        return f"the generator {name}: return its results in a tuple in place of yield"
    called = inner if hasattr(inner, "__code__") else type(inner).__call__
    if not hasattr(called, "__code__"):
        return f"{name}, which isn't written in Python: write one that returns {example}"
    return ""


def _inner(function: Any) -> Any:
    """The function that a call runs at last."""
    while isinstance(function, partial | staticmethod):
        function = function.func if isinstance(function, partial) else function.__func__
    return inspect.unwrap(function)


def inputs_of(what: str, function: Callable[..., Any]) -> list[str]:
    """The names of a function's parameters, each of one input. Parameters by name alone keep their
    defaults.

    Raises
    ------
    TypeError
        When the function has no inputs, or other parameters without a default. `what` names the
        function.
    """
    names: list[str] = []
    for each in inspect.signature(function).parameters.values():
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
            names.append(each.name)
        elif each.kind is each.VAR_POSITIONAL or (
            each.kind is each.KEYWORD_ONLY and each.default is each.empty
        ):
            raise TypeError(
                f"{what}: expected a parameter by position for each input, got '{each}': name the "
                "inputs one by one"
            )
    if not names:
        raise TypeError(f"{what}: expected a function of at least one input, got one of none")
    return names
