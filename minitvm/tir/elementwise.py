"""Decorators of the language's functions: mapping over whole tensors, and names in errors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from minitvm.runtime.errors import CompileError
from minitvm.tir.node import WholeTensor

_P = ParamSpec("_P")
_R = TypeVar("_R")


def named(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Lets errors of a function of the language begin with the name that the user wrote: the name
    of the outermost such function."""
    name = function.__name__

    @functools.wraps(function)
    def apply(*args: _P.args, **keywords: _P.kwargs) -> _R:
        try:
            return function(*args, **keywords)
        except CompileError as error:
            raise _named_error(name, error) from None

    return apply


def elementwise(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Lets a function of expressions take whole tensors as well, and broadcast as numpy does. Its
    errors begin with its name, as with :func:`named`."""
    of_elements: Callable[..., _R] = function
    name = function.__name__

    @functools.wraps(function)
    def apply(*args: Any, **keywords: Any) -> Any:
        try:
            if keywords:
                bound = signature(function).bind(*args, **keywords)
                bound.apply_defaults()
                args = bound.args
            for arg in args:
                if isinstance(arg, WholeTensor):
                    return arg.map_elements(of_elements, args)
            return of_elements(*args)
        except CompileError as error:
            raise _named_error(name, error) from None

    return apply


def _named_error(name: str, error: CompileError) -> CompileError:
    problem = error.problem or str(error)
    made = CompileError(f"{name}: {problem}")
    made.problem = problem
    return made
