"""convert: a Python value as a value of the language (classic ``tvm.runtime.convert``).

The conversion belongs to the language, which stands above the runtime. The face of the package
knows both, and sets it here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_meanings: list[Callable[[Any, Any], Any]] = []


def convert(value: Any, span: Any = None) -> Any:
    """A Python value as a value of the language, as ``minitvm.convert`` gives it.

    >>> convert([1, 2.5])
    (1, 2.5)
    """
    return _meanings[-1](value, span)


def set_meaning(meaning: Callable[[Any, Any], Any]) -> None:
    """Sets the function that :func:`convert` calls."""
    _meanings.append(meaning)
