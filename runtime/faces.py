"""Faces: modules that hand on names of other modules, with each name written once."""

from __future__ import annotations

import sys
from types import ModuleType


def hand_on(face: str, *others: str) -> None:
    """Gives a module its ``__all__``: the public names that it imports or defines.

    A face imports public names in the form ``from x import name as name``, which type checkers and
    editors recognise, and its own helpers under names that begin with ``_``. Modules below a face
    are names in it as soon as they are imported; they count only among `others`, as do names that
    the face makes on demand.

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
