"""Built functions as functions that return their outputs, in the library of their inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minitvm.contrib.results import results_of
from minitvm.operators.arrays import is_fixed, library_of, maker_for
from minitvm.runtime.module import Module


def returning(module: Module) -> Callable[..., Any]:
    """A function ``r(*inputs, out=None)`` that returns the output of a module, or a tuple of them,
    in arrays of the library of its first array."""
    results = results_of(module)
    kinds = [results.dtype(position) for position in results.outputs]
    arrays = [i for i, p in enumerate(results.inputs) if not results.is_scalar(p)]

    def run(*inputs: Any, out: Any = None) -> Any:
        if out is not None:
            outputs = written(module.name, len(kinds), out)
            results.function(*results.arguments(inputs, outputs))
            return results.returned(outputs)
        maker = maker_for(type(inputs[arrays[0]]) if arrays else np.ndarray)
        made = [
            maker.empty(shape, dtype)
            for shape, dtype in zip(results.shapes(inputs), kinds, strict=True)
        ]
        results.function(*results.arguments(inputs, made))
        return results.returned([maker.result(each) for each in made])

    return run


def written(name: str, count: int, out: Any) -> Sequence[Any]:
    """The arrays of ``out=``: one, or a tuple of as many as there are outputs.

    Raises
    ------
    TypeError
        When it is something else.
    """
    outputs = out if isinstance(out, tuple) else (out,)
    if len(outputs) != count:
        wanted = "an array" if count == 1 else f"a tuple of {count} arrays"
        got = f"a tuple of {len(out)}" if isinstance(out, tuple) else type(out).__name__
        raise TypeError(f"{name}: out: expected {wanted}, got {got}")
    for each in outputs:
        if library_of(type(each)) is None:
            raise TypeError(f"{name}: out: expected an array, got {type(each).__name__}")
        if is_fixed(type(each)):
            library = library_of(type(each))
            raise ValueError(
                f"{name}: out: expected a writable array, got one of {library}, whose arrays never "
                "change: leave out= away"
            )
    return outputs
