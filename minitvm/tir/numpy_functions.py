"""Numpy's functions on expressions and tensors: Python's operators, or an error with advice."""

from __future__ import annotations

from typing import Any

import numpy as np

from minitvm.tir.arithmetic import FUNCTIONS
from minitvm.tir.conversion import no_array
from minitvm.tir.described import described
from minitvm.tir.intrinsics import INTRINSICS


def of_numpy(
    given: Any, ufunc: Any, method: str, inputs: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """A function of numpy on `given`, which is no number: a Python operator where a numpy scalar
    stands on the left; otherwise an error with advice."""
    inputs = tuple(each[()] if isinstance(each, np.ndarray) else each for each in inputs)
    arrays = [each for each in inputs if isinstance(each, np.ndarray)]  # a scalar isn't one
    operator = _OPERATORS.get(ufunc.__name__)
    if operator is not None and method == "__call__" and not options and not arrays:
        return FUNCTIONS[operator](*inputs)
    if arrays:
        raise TypeError(f"np.{ufunc.__name__} of {described(given)}: {no_array(arrays[0])}")
    own = _NAMES.get(ufunc.__name__)
    advice = f"write te.{own}" if own else "write it with the functions of te"
    raise TypeError(
        f"np.{ufunc.__name__} computes numbers, and {described(given)} has none while a program "
        f"is written: {advice}"
    )


# The functions that a numpy number on the left of an operator calls, and our names for them.
_OPERATORS = {
    **{name: name for name in (
        "add", "subtract", "multiply", "divide", "power", "bitwise_and", "bitwise_or",
        "bitwise_xor", "less", "less_equal", "greater", "greater_equal", "equal", "not_equal",
    )},
    "floor_divide": "floordiv",
    "remainder": "floormod",
    "left_shift": "shift_left",
    "right_shift": "shift_right",
}  # fmt: skip
# The names of numpy's functions in te.
_NAMES = {
    "fmax": "max",
    "fmin": "min",
    "logical_and": "all",
    "logical_or": "any",
    "maximum": "max",
    "minimum": "min",
    **{
        name: each.language_name
        for each in INTRINSICS.values()
        for name in (each.name, *each.numpy)
    },
}
