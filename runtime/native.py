"""NativeCode: a page of the runtime's native code as machine code of this process.

:mod:`minitvm.runtime.native_text` describes how a page is written. Its engine is never disposed of:
a framework may hold one of our deleters until the process ends.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from typing import Generic, TypeVar, final

from llvmlite.binding import ffi

from minitvm.runtime.host import host
from minitvm.runtime.native_text import PREFIX
from minitvm.runtime.object_code import LoadedCode, host_machine, native_object, provide

_Made = TypeVar("_Made")


@final
class NativeCode:
    """A page of LLVM IR as machine code that lives as long as the process.

    Parameters
    ----------
    text
        A page as :func:`minitvm.runtime.native_text.native_text` translates it. It is optimised,
        and cached for the next process: no address may stand in it.
    library
        The library of the C functions that the page declares.
    """

    def __init__(self, text: str, library: ctypes.CDLL = ctypes.pythonapi) -> None:
        def find(symbol: str) -> int:
            return ctypes.addressof(ctypes.c_char.in_dll(library, symbol.removeprefix(PREFIX)))

        # All functions: only for ELF files are the symbols known that an object needs.
        for name in re.findall(rf"^declare .*@({PREFIX}\w+)", text, re.MULTILINE):
            provide(name, find)
        layout = host_machine().target_data
        target = f'target datalayout = "{layout}"\ntarget triple = "{host().triple}"\n'
        self._code = LoadedCode(native_object(target + text), find)
        self._addresses: dict[str, int] = {}
        # Never freed, not even at the end of the interpreter.
        increment_reference(self._code)

    def function(self, name: str) -> int:
        """The address of a function."""
        if name not in self._addresses:
            self._addresses[name] = self._code.address(PREFIX + name)
        return self._addresses[name]

    def data(self, name: str) -> int:
        """The address of a global variable."""
        if name not in self._addresses:
            self._addresses[name] = self._code.data(PREFIX + name)
        return self._addresses[name]

    def set_address(self, name: str, address: int) -> None:
        """Sets a global variable to an address."""
        ctypes.c_void_p.from_address(self.data(name)).value = address

    def set_objects(self, **objects: object) -> None:
        """Sets global variables to Python objects, which are kept as long as the process lives."""
        for name, value in objects.items():
            slot = ctypes.c_void_p.from_address(self.data(name))
            if slot.value != id(value):
                increment_reference(value)
                slot.value = id(value)


@final
class Once(Generic[_Made]):
    """A function without arguments whose result is made once a process, on the first call.

    Without a lock, which a fork could leave locked: if two threads race, both get the first result.

    >>> made = Once(list)
    >>> made.is_made, made() is made()
    (False, True)
    """

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], _Made]) -> None:
        self._make = make
        self._made: list[_Made] = []

    def __call__(self) -> _Made:
        if not self._made:
            self._made.append(self._make())
        return self._made[0]

    @property
    def is_made(self) -> bool:
        return bool(self._made)


# By a lock of llvmlite, one thread at a time is in LLVM. A fork waits until it has left: the child
# would have the locked lock, but not the thread that can open it.
_in_llvm = getattr(ffi.lib, "_lock", None)
if _in_llvm is not None and hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_in_llvm.__enter__,
        after_in_parent=_in_llvm.__exit__,
        after_in_child=_in_llvm.__exit__,
    )

# Private prototypes: the argtypes of `ctypes.pythonapi.X` itself belong to the whole process.
increment_reference = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", ctypes.pythonapi))
