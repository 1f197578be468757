"""Faces: modules that re-export names of other modules, with each name written once."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def hand_on(face: str, *others: str) -> None:
    """Gives a module its ``__all__``: the public names that it imports or defines.

    A face imports public names in the form ``from x import name as name``, which type checkers and
    editors recognise, and its own helpers under names that begin with ``_``. Submodules of a face
    become names in it as soon as they are imported. They are public only if they are among
    `others`, as are names that the face makes on demand.

    >>> from minitvm import nd
    >>> nd.__all__
    ['Device', 'NDArray', 'array', 'cpu', 'device', 'empty', 'ext_dev', 'from_dlpack']
    """
    module = sys.modules[face]
    names = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    vars(module)["__all__"] = sorted(names.union(others))


def on_demand(
    face: str, places: Mapping[str, str], advice: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """A face's ``__getattr__``: names that few programs need are imported from their places on
    demand. A place is the module that defines the name, or the face's own module of that name.
    `advice` says what to write in place of names that a user may expect.

    >>> from minitvm import te
    >>> on_demand("minitvm.te", {"hybrid": "minitvm.te.hybrid"})("hybrid") is te.hybrid
    True
    """

    def find(name: str) -> Any:
        if name not in places:
            remedy = f": {advice[name]}" if advice and name in advice else ""
            raise AttributeError(f"module {face!r} has no attribute {name!r}{remedy}")
        module = importlib.import_module(places[name])
        return module if places[name] == f"{face}.{name}" else getattr(module, name)

    return find


def explain_absent(face: str, reasons: Mapping[str, str]) -> None:
    """Lets a module's error for a missing classic name tell the replacement.

    >>> import minitvm
    >>> minitvm.tir.Schedule
    Traceback (most recent call last):
    ...
    AttributeError: minitvm.tir has no 'Schedule' of TVM: schedule with te.create_schedule
    """
    module = sys.modules[face]
    otherwise = getattr(module, "__getattr__", None) or on_demand(face, {})

    def find(name: str) -> Any:
        if name in reasons:
            raise AttributeError(f"{face} has no {name!r} of TVM: {reasons[name]}")
        return otherwise(name)

    vars(module)["__getattr__"] = find
