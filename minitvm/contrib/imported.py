"""Frameworks, which are imported when a function needs them."""

from __future__ import annotations

import importlib
from typing import Any


def imported(framework: str, function: str) -> Any:
    """The module of a framework that a function needs.

    Raises
    ------
    ImportError
        When the framework isn't installed.

    >>> imported("nowhere", "to_nowhere_func")
    Traceback (most recent call last):
    ...
    ImportError: to_nowhere_func: expected nowhere to be installed, got: No module named 'nowhere'
    """
    try:
        return importlib.import_module(framework)
    except ImportError as error:
        raise ImportError(
            f"{function}: expected {framework} to be installed, got: {error}", name=framework
        ) from error
