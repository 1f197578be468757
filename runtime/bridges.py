"""Bridges: methods of functions whose work is done in rooms above the runtime.

A framework's operator is made by a method of the function (``f.jax_op()``), as users look for it
there. The face of the package knows the modules that do it, and says so here; each is imported when
a program asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

_places: dict[str, str] = {}


def set_bridges(places: Mapping[str, str]) -> None:
    """Says which module makes what: the name of a function, and the module that defines it."""
    _places.update(places)


def bridge(name: str) -> Callable[..., Any]:
    """The function of a name.

    >>> import minitvm
    >>> bridge("jax_op").__module__
    'minitvm.contrib.jax_op'
    """
    made: Callable[..., Any] = getattr(import_module(_places[name]), name)
    return made
