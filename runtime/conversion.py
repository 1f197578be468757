"""convert: a value of Python as one of the language (classic ``tvm.runtime.convert``).

Its meaning is the language's, which stands above the runtime. The face of the package knows both,
and says it here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_meanings: list[Callable[[Any, Any], Any]] = []


def convert(value: Any, span: Any = None) -> Any:
    """Python's value as one of the language: what ``minitvm.convert`` makes of it.

    >>> convert([1, 2.5])
    (1, 2.5)
    """
    return _meanings[-1](value, span)


def set_meaning(meaning: Callable[[Any, Any], Any]) -> None:
    """Says what :func:`convert` does."""
    _meanings.append(meaning)
