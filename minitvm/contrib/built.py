"""A built function as bridges to other libraries see it: its results, and the parameters of its
program."""

from __future__ import annotations

from typing import Any, final

from minitvm.runtime.dtype import DType
from minitvm.runtime.module import Module
from minitvm.runtime.results import results_of
from minitvm.tir.stmt import PrimFunc


@final
class Built:
    """A function of ``build`` with its results (:class:`minitvm.runtime.results.Results`).

    Attributes
    ----------
    function
        The function; of a module, its entry function.
    params
        For each argument its buffer, or the variable of a scalar.
    batches
        The functions for batches of calls (:class:`minitvm.driver.batches.Batches`), or None.

    Raises
    ------
    TypeError
        For a function that ``build`` didn't make, and for one that writes nothing.

    >>> from minitvm import build, te
    >>> X = te.placeholder((3,), name="X")
    >>> Y = te.compute((3,), lambda i: X[i] * 2.0, name="Y")
    >>> Built(build(te.create_schedule(Y.op), [X, Y], name="f")).outputs
    (1,)
    """

    def __init__(self, function: Any) -> None:
        results = results_of(function)
        entry: Any = function.entry_func if isinstance(function, Module) else function
        self.function = entry
        func: PrimFunc = self.function.program.lowered[results.name]
        self.params = func.arguments
        self.batches = self.function.program.batches
        self.name, self.names = results.name, results.names
        self.inputs, self.outputs = results.inputs, results.outputs
        self.is_scalar, self.bind = results.is_scalar, results.bind
        self.shapes, self.arguments = results.shapes, results.arguments
        self.returned = results.returned

    def dtype(self, position: int) -> DType:
        """The dtype of an argument."""
        return self.params[position].dtype
