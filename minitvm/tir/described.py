"""The texts by which errors name a value and its position."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

from minitvm.runtime.errors import CompileError


def described(value: Any) -> str:
    """The class of a value and its text, cut short."""
    kind, text = type(value).__name__, shown(value)
    return text if text.startswith(kind) else f"{kind} {text}"


def shown(value: Any) -> str:
    """The text of a value, cut short."""
    try:
        text = digits(value) if isinstance(value, int) else repr(value)
    except ValueError:  # a list of such long integers
        text = object.__repr__(value)
    return text if len(text) <= 60 else text[:57] + "..."


def digits(value: int) -> str:
    """An integer as text; Python refuses to print thousands of digits."""
    return str(value) if abs(value) >> 256 == 0 else f"one of {value.bit_length()} bits"


def check_takes(where: str, function: Any, *args: object) -> None:
    """Refuses what is no function of such arguments; errors begin with `where`."""
    try:
        signature(function).bind(*args)
    except ValueError:
        pass  # a builtin, whose parameters nobody knows
    except TypeError as error:
        raise CompileError(f"{where}: {error}") from None


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Has errors begin with `where`."""
    try:
        yield
    except CompileError as error:
        raise CompileError(f"{where}: {error}") from None
