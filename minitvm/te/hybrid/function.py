"""Python functions that are compiled to loops, or run as they are."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, final

import numpy as np

from minitvm.runtime.errors import CompileError
from minitvm.te.hybrid.intrinsics import INTRINSICS
from minitvm.te.hybrid.parser import parse
from minitvm.te.hybrid.source import ScriptedFunction
from minitvm.te.tensor import Tensor
from minitvm.tir.expr import IterVar, PrimExpr


def script(pyfunc: Callable[..., Any]) -> HybridFunction:
    """Decorator that makes a Python function usable as an operation of tensor programs.

    Called with tensors, the function returns the tensors of an operation with the loops of its
    text. Called with numpy arrays, it runs as Python, and computes the same.

    Parameters
    ----------
    pyfunc : function
        Defined by ``def``, in a file or a notebook. It makes its outputs with ``output_tensor``,
        and returns them. docs/hybrid.md lists the constructs that it may use.

    Raises
    ------
    CompileError
        When `pyfunc` is no such function; at a call with tensors, when it uses an unsupported
        construct.

    >>> from minitvm import te
    >>> from minitvm.te.hybrid import output_tensor
    >>> @te.hybrid.script
    ... def outer(a, b):
    ...     c = output_tensor((a.shape[0], b.shape[0]), a.dtype)
    ...     for i in range(a.shape[0]):
    ...         for j in range(b.shape[0]):
    ...             c[i, j] = a[i] * b[j]
    ...     return c
    >>> outer(te.placeholder((2,), name="a"), te.placeholder((3,), name="b"))
    Tensor(shape=[2, 3], op.name=outer)
    >>> outer(np.ones(1), np.ones(2))
    array([[1., 1.]])
    """
    if not isinstance(pyfunc, FunctionType) or pyfunc.__name__ == "<lambda>":
        raise CompileError(
            f"hybrid.script: expected a function defined by `def`, got {pyfunc!r}: the text "
            "of the definition is compiled"
        )
    return HybridFunction(pyfunc)


@final
class HybridFunction(ScriptedFunction):
    """A function that was decorated with :func:`script`."""

    def __init__(self, pyfunc: FunctionType) -> None:
        self.pyfunc: FunctionType = pyfunc
        functools.update_wrapper(self, pyfunc)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Tensors for tensors, arrays for arrays: see :func:`script`."""
        bound = inspect.signature(self.pyfunc).bind(*args, **named)
        bound.apply_defaults()
        if any(map(_is_symbolic, bound.arguments.values())):
            outputs = parse(self, bound.arguments).outputs
            return outputs[0] if len(outputs) == 1 else outputs
        bound.arguments.update({k: _for_python(v) for k, v in bound.arguments.items()})
        with np.errstate(all="ignore"):  # integers wrap, and nothing traps, as in compiled code
            return self._as_python()(*bound.args, **bound.kwargs)

    def _as_python(self) -> FunctionType:
        """The Python function with the names of intrinsics defined."""
        given = self.pyfunc.__globals__
        mine = {name: f for name, f in INTRINSICS.items() if not _is_hybrid(given.get(name))}
        made = FunctionType(
            self.pyfunc.__code__,
            {**given, **mine},
            self.pyfunc.__name__,
            self.pyfunc.__defaults__,
            self.pyfunc.__closure__,
        )
        made.__kwdefaults__ = self.pyfunc.__kwdefaults__
        return made

    def __repr__(self) -> str:
        return f"hybrid.script({self.pyfunc.__name__})"


def _is_hybrid(value: Any) -> bool:
    return isinstance(value, ScriptedFunction)


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_is_symbolic, value))
    return isinstance(value, (Tensor, PrimExpr, IterVar))


def _for_python(value: Any) -> Any:
    """An argument for a run as Python: arrays are read-only, as parameters are."""
    if isinstance(value, (tuple, list)):
        return [_for_python(member) for member in value]
    if not isinstance(value, np.ndarray):
        return value
    view = value.view()
    view.flags.writeable = False
    return view
