"""``jit``: makes a Python function of tensors an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

from minitvm.operators.operator import Operator, Options
from minitvm.runtime.errors import CompileError
from minitvm.target import Target
from minitvm.te.python_function import why_no_program
from minitvm.tir.described import shown


@overload
def jit(
    function: Callable[..., Any],
    /,
    *,
    static: str | Iterable[str] = (),
    symbolic: str | Iterable[str] | None = None,
    broadcast: bool = False,
    name: str | None = None,
    target: str | Target | None = None,
    fp: str = "fast",
    release_gil: bool | None = None,
    backward: Callable[..., Any] | None = None,
) -> Operator: ...


@overload
def jit(
    *,
    static: str | Iterable[str] = (),
    symbolic: str | Iterable[str] | None = None,
    broadcast: bool = False,
    name: str | None = None,
    target: str | Target | None = None,
    fp: str = "fast",
    release_gil: bool | None = None,
    backward: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], Operator]: ...


def jit(
    function: Callable[..., Any] | None = None,
    /,
    *,
    static: str | Iterable[str] = (),
    symbolic: str | Iterable[str] | None = None,
    broadcast: bool = False,
    name: str | None = None,
    target: str | Target | None = None,
    fp: str = "fast",
    release_gil: bool | None = None,
    backward: Callable[..., Any] | None = None,
) -> Any:
    """Makes a Python function of tensors an operator, which returns its outputs in arrays of the
    caller's library.

    Parameters
    ----------
    function
        A function that takes tensors of ``te`` and numbers, and returns a tensor or a tuple of
        them. It may return a schedule with them: ``return s, C``.
    static
        Parameters whose values are part of the program, so that each value has a build of its own:
        names, separated by spaces or in a list.
    symbolic
        Letters of the annotations whose extents are variables from the first build on; all other
        letters are then constants, and each of their values has a build of its own. That pays for
        a short last dimension, as of the channels of an image: ``symbolic="n h w"``. By default a
        letter is a constant until a call has a second value for it, and a variable from then on.
    broadcast
        Whether the leading dimensions, ``...``, broadcast as in numpy. By default they are the same
        for all parameters that have them.
    name
        The name in messages and in the code; by default the function's.
    target, fp, release_gil
        As for :func:`minitvm.build`.
    backward
        A function of tensors that writes the gradients; by default ``te.gradient`` does. It takes
        the arguments of the function, then, if it has parameters for them, the outputs, then the
        gradients of the outputs that are floats. It returns the gradients of the arrays of floats
        among the arguments, in order.

    Returns
    -------
    Operator
        Call it with arrays.

    Raises
    ------
    CompileError
        When `function` is a class, a generator, asynchronous, or not written in Python; when an
        annotation isn't understood. The function itself runs at the first call.

    >>> import numpy as np
    >>> from minitvm import te
    >>> @jit
    ... def scaled(x: "m n", w: "n", scale: float = 1.0):
    ...     return te.compute(x.shape, lambda i, j: x[i, j] * w[j] * scale)
    >>> scaled(np.ones((2, 3), "float32"), np.arange(3, dtype="float32"), scale=2.0)
    array([[0., 2., 4.],
           [0., 2., 4.]], dtype=float32)
    """
    variable = None if symbolic is None else _names("symbolic", symbolic)
    options = Options(
        _names("static", static), variable, broadcast, name, target, fp, release_gil, backward
    )
    if function is None:
        return lambda each: _operator(each, options)
    return _operator(function, options)


def _operator(function: Any, options: Options) -> Operator:
    found = _no_function_of_tensors(function)
    if found:
        raise CompileError(f"jit: expected a Python function of tensors, got {found}")
    backward: Any = options.backward
    if not (backward is None or callable(backward)):
        kind = type(backward).__name__
        raise CompileError(f"jit: backward: expected a function of tensors, got {kind}")
    return Operator(function, options)


def _no_function_of_tensors(function: Any) -> str:
    """Why something can't be traced, and what to do; nothing for a function of Python code."""
    if isinstance(function, classmethod | staticmethod | property):
        kind = type(function).__name__
        return f"a {kind}: decorate the function first, with @{kind} above @minitvm.jit"
    if not callable(function):
        kind = type(function).__name__
        return f"{kind}: give options by name, as @minitvm.jit(static='axis')"
    if isinstance(function, type):
        return f"the class {function.__name__}: make its methods operators, with static='self'"
    return why_no_program(function, "te.compute(...)")


def _names(option: str, given: str | Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        return tuple(given.replace(",", " ").split())
    names = tuple(given) if isinstance(given, list | tuple | set | frozenset) else (given,)
    if not all(isinstance(each, str) for each in names):
        raise CompileError(
            f"jit: {option}: expected names, as 'm n' or a list of them, got {shown(given)}"
        )
    return names
