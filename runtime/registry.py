"""The global functions: one table of names for Python and compiled code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, overload

from minitvm.runtime.dlpack import dtype_of_word
from minitvm.runtime.errors import similar
from minitvm.runtime.ndarray import Loan
from minitvm.runtime.packed_func import PackedFunc, answer, convert_to_packed, native
from minitvm.runtime.values import text_for_c

# Every use is a single dict operation, which is atomic; there is no lock that a fork could leave
# locked.
_functions: dict[str, PackedFunc] = {}
# The modules of ours that register names when they are imported, by name.
_origins: dict[str, str] = {}
_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@overload
def register_func(func_name: str, f: None = None, override: bool = False) -> _Decorator: ...
@overload
def register_func(
    func_name: str, f: Callable[..., Any], override: bool = False
) -> Callable[..., Any]: ...
@overload
def register_func(
    func_name: Callable[..., Any], f: None = None, override: bool = False
) -> Callable[..., Any]: ...
def register_func(
    func_name: Any, f: Callable[..., Any] | None = None, override: bool = False
) -> Any:
    """Register a global function; a call, or a decorator with or without a name.

    Parameters
    ----------
    func_name
        The name; by default the function's own.
    f
        The function; without it, the result is a decorator.
    override
        Whether to replace a function of that name.

    Raises
    ------
    ValueError
        When the name is taken, or compiled code can't have it.

    >>> @register_func("example.twice")
    ... def twice(x):
    ...     return 2 * x
    >>> get_global_func("example.twice")(21)
    42
    >>> remove_global_func("example.twice")
    """
    if not isinstance(func_name, str):
        if not callable(func_name):
            kind = type(func_name).__name__
            raise TypeError(f"register_func: expected a name or a function, got {kind}")
        return register_func(func_name.__name__, func_name, override)

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _check_name(func_name)
        packed = convert_to_packed(function)
        if override:
            _functions[func_name] = packed
        elif _functions.setdefault(func_name, packed) is not packed:
            raise ValueError(
                f"global function '{func_name}' is registered already; "
                "pass override=True to replace it"
            )
        return function

    return register if f is None else register(f)


@overload
def get_global_func(name: str) -> PackedFunc: ...
@overload
def get_global_func(name: str, allow_missing: bool) -> PackedFunc | None: ...
def get_global_func(name: str, allow_missing: bool = False) -> PackedFunc | None:
    """The global function of that name.

    Raises
    ------
    ValueError
        When there is no such function; with `allow_missing`, the result is None instead.
    """
    found = _functions.get(name)
    if found is None and name in _origins:
        import_module(_origins.pop(name))
        found = _functions.get(name)
    if found is not None or allow_missing:
        return found
    close = similar(name, _functions)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
    raise ValueError(
        f"get_global_func: expected the name of a registered global function, got {name!r}{hint}"
    )


def set_origins(origins: Mapping[str, str]) -> None:
    """Sets the modules that register functions of some names; each is imported when it is
    needed."""
    _origins.update(origins)


def _check_name(name: str) -> None:
    try:
        text_for_c(name)
    except ValueError as error:
        raise ValueError(f"register_func: name: {error}") from None


def list_global_func_names() -> list[str]:
    """The names of all global functions, sorted."""
    return sorted(_functions)


def remove_global_func(name: str) -> None:
    """Forget a global function.

    Raises
    ------
    ValueError
        When there is none of that name.
    """
    if _functions.pop(name, None) is None:
        get_global_func(name)  # raises an error with similar names


def _answer_global(
    name: str, loan: Loan, args: int, codes: int, count: int, ret: int, ret_code: int
) -> None:
    function = get_global_func(name)
    asked = ctypes.c_int.from_address(ret_code).value
    reader = dtype_of_word(~asked) if asked < 0 else None
    answer(function._callable or function, loan, args, codes, count, ret, ret_code, reader)


def call_global_address() -> int:
    """The address of the C function by which compiled code calls a global function.

    ``int call_global(const char* name, TVMValue* args, int* type_codes, int num_args, TVMValue*
    ret, int* ret_type_code)``: 0, or -1 with a Python exception pending. A caller that reads the
    result as a number puts the number's dtype into ``ret_type_code``, as ``~word``. A result that
    isn't a number of that dtype is an error then.

    >>> call_global_address() != 0
    True
    """
    native().set_objects(answer_global=_answer_global)
    return native().function("call_global")
