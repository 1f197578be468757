"""convert: a Python value as a value of the language (classic ``tvm.runtime.convert``).

The conversion belongs to the language, which stands above the runtime. The face of the package
knows both, and sets it here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final


@final
@dataclass(slots=True)
class _Language:
    """The conversion, which the face of the package sets."""

    convert: Callable[[Any, Any], Any] | None = None


_language = _Language()


def convert(value: Any, span: Any = None) -> Any:
    """A Python value as a value of the language, as ``minitvm.convert`` gives it.

    >>> convert([1, 2.5])
    (1, 2.5)
    """
    assert _language.convert is not None
    return _language.convert(value, span)


def set_meaning(meaning: Callable[[Any, Any], Any]) -> None:
    """Sets the function that :func:`convert` calls."""
    _language.convert = meaning
