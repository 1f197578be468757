"""``ufunc`` and ``gufunc``: expressions as ufuncs of numpy, and built functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

from minitvm.contrib.built import Built
from minitvm.runtime.dtype import DType
from minitvm.te.python_function import inputs_of, name_of, why_no_program
from minitvm.tir.described import described
from minitvm.ufuncs.loop import make_ufunc
from minitvm.ufuncs.programs import Batched, BuiltLoop, Elementwise
from minitvm.ufuncs.signature import Signature, parse_signature

FLOATS = ("float32", "float64")
_Types = Sequence[str | Sequence[str]]


@overload
def ufunc(
    function: Callable[..., Any],
    /,
    *,
    types: _Types = FLOATS,
    identity: int | None = None,
    name: str | None = None,
) -> np.ufunc: ...


@overload
def ufunc(
    *, types: _Types = FLOATS, identity: int | None = None, name: str | None = None
) -> Callable[[Callable[..., Any]], np.ufunc]: ...


def ufunc(
    function: Callable[..., Any] | None = None,
    /,
    *,
    types: _Types = FLOATS,
    identity: int | None = None,
    name: str | None = None,
) -> np.ufunc | Callable[[Callable[..., Any]], np.ufunc]:
    """Makes a ufunc of numpy from a Python function of numbers, written with ``te``.

    The ufunc has all features of numpy's ufuncs: broadcasting, ``out=``, ``where=``, casts,
    ``reduce``, ``accumulate``, ``outer`` and ``at``. Arrays are computed by one call of compiled
    code.

    Parameters
    ----------
    function
        Without it, a decorator.
    types
        The dtypes for which code is built: each entry is one dtype for all parameters, or a dtype
        for each parameter. numpy converts other arguments to the first dtypes that hold them.
    identity
        The value with which ``reduce`` begins: 0, 1, -1, or None for the first element.
    name
        By default the function's own.

    Raises
    ------
    CompileError
        When the function returns no number.

    >>> from minitvm import te
    >>> @ufunc
    ... def logaddexp(x, y):
    ...     return te.log(te.exp(x) + te.exp(y))
    >>> logaddexp([0.0, 1.0], 0.0).round(3).tolist(), logaddexp.types
    ([0.693, 1.313], ['ff->f', 'dd->d'])
    """

    def make(function: Callable[..., Any]) -> np.ufunc:
        if not callable(function):
            raise TypeError(
                f"ufunc: expected a function of numbers, got {described(function)}: give options "
                "by name, as @minitvm.ufunc(identity=0)"
            )
        own = _checked(name, function, "x * y, say")
        count = len(inputs_of(own, function))

        loops = []
        for dtypes in _each(own, types, count):
            elementwise = Elementwise(own, function, dtypes)
            loops.append(elementwise.loop())
        outputs = len(loops[0].dtypes) - count
        signature = Signature("", ((),) * count, ((),) * outputs)
        return make_ufunc(own, inspect.getdoc(function) or "", signature, loops, identity)

    return make if function is None else make(function)


def gufunc(
    signature: str, *, types: _Types = FLOATS, name: str | None = None
) -> Callable[[Callable[..., Any]], np.ufunc]:
    """Makes a generalised ufunc of numpy from a Python function of tensors, written with ``te``.

    The function gets a tensor of the core dimensions for each input and returns the outputs. The
    ufunc computes a whole batch, of any leading dimensions, in one call of compiled code.

    Parameters
    ----------
    signature
        The core dimensions, as numpy writes them: ``"(m,k),(k,n)->(m,n)"``. A number is an extent.
    types
        As for :func:`ufunc`.
    name
        By default the function's own.

    Raises
    ------
    ValueError
        When the signature can't be read, or doesn't fit the function.
    CompileError
        When a stage isn't written with ``te.compute``.

    >>> from minitvm import te
    >>> @gufunc("(n),(n)->()", types=["float64"])
    ... def dot(x, y):
    ...     k = te.reduce_axis((0, x.shape[0]))
    ...     return te.compute((), lambda: te.sum(x[k] * y[k], axis=k))
    >>> dot(np.ones((2, 3, 4)), np.arange(4)).tolist()
    [[6.0, 6.0, 6.0], [6.0, 6.0, 6.0]]
    """
    parsed = parse_signature(signature)

    def make(function: Callable[..., Any]) -> np.ufunc:
        own = _checked(name, function, "te.compute(...)")
        count = len(inputs_of(own, function))
        if count != len(parsed.inputs):
            raise ValueError(
                f"{own}: expected a function of {len(parsed.inputs)} tensors, as '{signature}' has "
                f"inputs, got one of {count}"
            )
        loops = [Batched(own, function, parsed, each).loop() for each in _each(own, types, count)]
        return make_ufunc(own, inspect.getdoc(function) or "", parsed, loops, None)

    return make


def function_gufunc(
    function: Any, signature: str | None = None, *, name: str | None = None
) -> np.ufunc:
    """A built function as a ufunc of numpy; :meth:`Function.gufunc`."""
    results = Built(function)
    own = name or results.name
    parsed = (
        Signature("", ((),) * len(results.inputs), ((),) * len(results.outputs))
        if signature is None
        else parse_signature(signature)
    )
    counts = (len(results.inputs), len(results.outputs))
    wanted = (len(parsed.inputs), len(parsed.outputs))
    if counts != wanted:
        raise ValueError(
            f"{own}: expected a signature of {counts[0]} inputs and {counts[1]} outputs, got "
            f"'{parsed.text}', of {wanted[0]} and {wanted[1]}"
        )
    return make_ufunc(own, str(function.__doc__), parsed, [BuiltLoop(results, parsed).loop()], None)


def _checked(name: str | None, function: Callable[..., Any], example: str) -> str:
    """The name of a ufunc of `function`, which is checked."""
    found = why_no_program(function, example)
    if isinstance(function, type):
        found = f"the class {function.__name__}"
    if found:
        raise TypeError(f"{name or 'ufunc'}: expected a Python function, got {found}")
    return name or name_of(function)


def _each(name: str, types: _Types, count: int) -> list[tuple[DType, ...]]:
    """The dtypes of the inputs, for each loop."""
    made = []
    for each in [types] if isinstance(types, str) else types:
        dtypes = (each,) * count if isinstance(each, str) else tuple(each)
        if len(dtypes) != count:
            raise ValueError(f"{name}: types: expected a dtype, or {count} of them, got {each}")
        made.append(tuple(map(DType.of, dtypes)))
    if not made:
        raise ValueError(f"{name}: types: expected at least one dtype, got none")
    return made
