"""Module: compiled functions under their names."""

from __future__ import annotations

import ctypes
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, final

from minitvm.runtime.bridges import Bridged, bridge
from minitvm.runtime.c_function import CFunction
from minitvm.runtime.device import Device
from minitvm.runtime.device_function import DeviceFunction
from minitvm.runtime.evaluator import BenchmarkResult
from minitvm.runtime.heap_types import HEADER, enable, storage
from minitvm.runtime.packed_func import Function, InstanceDoc, PackedFunc, natively_called
from minitvm.runtime.returning import Returning
from minitvm.runtime.values import ArgTypeCode, HandleObject

if TYPE_CHECKING:
    _Storage = object
else:
    _Storage = storage("minitvm.runtime.module.Storage", 8)  # the address of the entry function


@final
class Module(Bridged, HandleObject, _Storage):
    """The result of ``build``: functions by name. A call of the module calls the first one.

    A copy (``copy.copy``, ``copy.deepcopy``) is the module itself, as for a Python function. A
    module can be pickled if its functions and its sources can.

    Parameters
    ----------
    functions
        The functions by name; at least one.
    sources
        The texts of ``get_source``: a thunk for each kind of text ("ll", "asm"...).
    imported_modules
        Modules whose functions ``get_function(name, query_imports=True)`` finds as well.
    type_key
        The kind of the module, which its maker gives.
    """

    __slots__ = ("__weakref__", "_functions", "_sources", "entry_name", "imported_modules",
                 "type_key")  # fmt: skip
    _type_code = ArgTypeCode.MODULE_HANDLE
    _native_entry = "call_entry"
    __doc__ = InstanceDoc(__doc__)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(natively_called(cls))

    def __init__(
        self,
        functions: Mapping[str, PackedFunc],
        *,
        sources: Mapping[str, Callable[[], str]] | None = None,
        imported_modules: Iterable[Module] = (),
        type_key: str = "llvm",
    ) -> None:
        if not functions:
            raise ValueError("Module: expected at least one function, got none")
        self._functions = dict(functions)
        self._sources = dict(sources or {})
        self.entry_name = next(iter(self._functions))
        self.imported_modules = list(imported_modules)
        self.type_key = type_key
        ctypes.c_void_p.from_address(id(self) + HEADER).value = id(self.entry_func)
        enable(self)

    @property
    def entry_func(self) -> PackedFunc:
        """The function that a call of the module calls."""
        return self._functions[self.entry_name]

    @property
    def c_function(self) -> CFunction:
        """The entry function for C code, see :attr:`PackedFunc.c_function`."""
        return self.entry_func.c_function

    def implements_function(self, name: str, query_imports: bool = False) -> bool:
        """Whether the module has a function of that name."""
        return isinstance(name, str) and self._find(name, query_imports) is not None

    def get_function(self, name: str, query_imports: bool = False) -> PackedFunc:
        """The function of that name; with `query_imports`, also one of an imported module.

        Raises
        ------
        AttributeError
            When there is no such function.
        """
        found = self._find(name, query_imports) if isinstance(name, str) else None
        if found is None:
            known = ", ".join(self._functions)
            raise AttributeError(f"Module: expected a function among {known}, got {name!r}")
        return found

    def __getitem__(self, name: str) -> PackedFunc:
        return self.get_function(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.entry_func(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Module {self.type_key}: {', '.join(self._functions)}>"

    def __copy__(self) -> Module:
        return self

    def __deepcopy__(self, memo: object) -> Module:
        return self

    def __reduce__(self) -> tuple[Callable[..., Module], tuple[Any, ...]]:
        state = (self._functions, self._sources, self.imported_modules, self.type_key)
        return _module, (*state, self.entry_name)

    @property
    def function_names(self) -> tuple[str, ...]:
        """The names of the module's own functions."""
        return tuple(self._functions)

    def export_library(self, path: str | os.PathLike[str]) -> None:
        """Writes the module to a file, with its machine code and the modules that it imports, for
        :func:`minitvm.runtime.load_module`. The format doesn't depend on the file's name.

        Raises
        ------
        TypeError
            When a function is not one of ``build``.
        ValueError
            When the module imports itself.
        OSError
            When the file can't be written.

        >>> import tempfile
        >>> from minitvm import build, te
        >>> A = te.placeholder((4,), name="A")
        >>> B = te.compute((4,), lambda i: A[i] * 2.0, name="B")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     build(B, [A, B], name="double").export_library(f"{folder}/double.tvm")
        ...     load_module(f"{folder}/double.tvm")
        <Module llvm: double>
        """
        bridge("export_library")(self, path)

    def save(self, path: str | os.PathLike[str], fmt: str = "") -> None:
        """Writes one form of the entry function's program to a file, for other tools.

        Parameters
        ----------
        path
            The file.
        fmt
            ``"ll"`` (LLVM IR), ``"s"`` or ``"asm"``, ``"o"`` (the object file), ``"tir"`` (the loop
            IR); by default the ending of `path`.

        Raises
        ------
        ValueError
            When the format is unknown, or the module has no such form.
        OSError
            When the file can't be written.
        """
        kind = fmt
        if isinstance(fmt, str):
            kind = fmt or os.path.splitext(os.fsdecode(path))[1].removeprefix(".")
        if isinstance(kind, str) and kind == "o" and self.entry_func.program is not None:
            content = self.entry_func.program.object_code
        elif isinstance(kind, str) and kind in _SAVED:
            content = self.get_source(_SAVED[kind]).encode()
        else:
            raise ValueError(
                f"Module.save: {self.name}: expected the format o, {', '.join(_SAVED)}, got "
                f"{kind!r}: export_library writes what load_module reads"
            )
        with open(path, "wb") as file:
            file.write(content)

    def get_source(self, kind: str = "ll") -> str:
        """The text of that kind.

        Raises
        ------
        ValueError
            When the module has no text of that kind.
        """
        thunk = self._sources.get(kind or "ll") if isinstance(kind, str) else None
        if thunk is None:
            known = ", ".join(self._sources) or "nothing"
            raise ValueError(f"Module: expected a kind of source among {known}, got {kind!r}")
        return thunk()

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.entry_func)

    @property
    def _doc(self) -> str | None:
        return self.entry_func.__doc__

    @property
    def name(self) -> str:
        """The name of the entry function."""
        return self.entry_name

    def returning(self) -> Returning:
        """The entry function as one that returns its outputs: see :meth:`Function.returning`.

        Raises
        ------
        TypeError, ValueError
            When it can't return them.
        """
        function = self.entry_func
        if not isinstance(function, Function | DeviceFunction):
            kind = type(function).__name__
            raise TypeError(f"returning: {self.name}: expected a compiled Function, got {kind}")
        return function.returning()

    def time_evaluator(
        self,
        func_name: str | None = None,
        dev: Device | None = None,
        number: int = 10,
        repeat: int = 1,
        min_repeat_ms: float = 0,
    ) -> Callable[..., BenchmarkResult]:
        """As :meth:`Function.time_evaluator`, for the function of a name, or the entry.

        Raises
        ------
        ValueError
            For counts below 1, and for a device of another kind than the function's.
        TypeError
            For a function that isn't compiled.
        """
        if func_name is not None and not isinstance(func_name, str):
            raise TypeError(
                f"time_evaluator: expected a function's name first, got {func_name!r}: give counts "
                "by name, as in time_evaluator(number=100)"
            )
        function = self.get_function(func_name or self.entry_name, query_imports=True)
        if not isinstance(function, Function | DeviceFunction):
            kind = type(function).__name__
            raise TypeError(
                f"time_evaluator: {func_name}: expected a compiled Function, got {kind}"
            )
        if dev is not None and dev.device_type != function.device_type:
            expected = Device(function.device_type).name
            raise ValueError(
                f"time_evaluator: {function.name}: expected a device of {expected}, got {dev}"
            )
        return function.time_evaluator(number, repeat, min_repeat_ms)

    def _find(self, name: str, query_imports: bool) -> PackedFunc | None:
        found = self._functions.get(name)
        if found is not None or not query_imports:
            return found
        imported = (module._find(name, True) for module in self.imported_modules)
        return next((function for function in imported if function is not None), None)


_SAVED = {"ll": "ll", "s": "asm", "asm": "asm", "tir": "tir"}


def load_module(path: str | os.PathLike[str]) -> Module:
    """The module of a file that :meth:`Module.export_library` has written. Its functions behave
    like the functions of ``build``: in calls, results and failures.

    The machine code is linked as it is. Where another version of minitvm or Python wrote the file,
    the loops in it are compiled again. The code runs with the rights of the process: load only
    files that you trust.

    Raises
    ------
    ValueError
        When the file is no such library, is damaged, or was made for a CPU with features that this
        one lacks.
    OSError
        When it can't be read.
    """
    made: Module = bridge("load_module")(path)
    return made


def _module(
    functions: Mapping[str, PackedFunc],
    sources: Mapping[str, Callable[[], str]],
    imported_modules: Iterable[Module],
    type_key: str,
    entry_name: str,
) -> Module:
    """Unpickles a module."""
    module = Module(
        functions, sources=sources, imported_modules=imported_modules, type_key=type_key
    )
    module.entry_name = entry_name
    return module
