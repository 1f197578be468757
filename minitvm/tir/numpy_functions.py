"""Functions of numpy and torch on expressions and tensors, which have no value yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import numpy as np

from minitvm.tir.arithmetic import FUNCTIONS
from minitvm.tir.conversion import is_array, no_array
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
    raise _refused(f"np.{ufunc.__name__}", given, arrays)


def of_torch(given: Any, function: Callable[..., Any], args: Iterable[Any]) -> NoReturn:
    """A function of torch among whose arguments is `given`: an error with advice."""
    arrays = [each for each in args if is_array(each)]
    raise _refused(f"torch.{function.__name__}", given, arrays)


def _refused(called: str, given: Any, arrays: list[Any]) -> TypeError:
    if arrays:
        return TypeError(f"{called} of {described(given)}: {no_array(arrays[0])}")
    name = called.partition(".")[2]
    advice = "write it with the functions of te"
    if name in _NAMES or name in OTHERWISE:
        advice = f"write te.{_NAMES[name]}" if name in _NAMES else OTHERWISE[name]
    return TypeError(
        f"{called} computes numbers, and {described(given)} has none while a program is written: "
        f"{advice}"
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
_SUM = "write te.sum over an axis of te.reduce_axis"
_MOVED = "say where each element comes from, as in te.compute((n, m), lambda i, j: x[j, i])"

# How functions of numpy and torch that te has under no name are written.
OTHERWISE = {
    "where": "write te.if_then_else(c, a, b)",
    "select": "write te.if_then_else(c, a, b)",
    "maximum": "write te.max(a, b)",
    "minimum": "write te.min(a, b)",
    "relu": "write te.max(x, 0.0)",
    "clip": "write te.max(te.min(x, high), low)",
    "clamp": "write te.max(te.min(x, high), low)",
    "square": "write x * x",
    "silu": "write x * te.sigmoid(x)",
    **dict.fromkeys(("mean", "matmul", "dot", "mm", "bmm", "einsum"), _SUM),
    **dict.fromkeys(("argmax", "argmin"), "write a reducer, te.comm_reducer"),
    "cumsum": "write te.sum with a condition, as in te.sum(x[k], axis=k, where=k <= i)",
    **dict.fromkeys(("transpose", "reshape", "concatenate", "cat", "stack", "flip"), _MOVED),
    **dict.fromkeys(("zeros", "ones", "full", "arange"), "write te.compute(shape, lambda i: ...)"),
    "softmax": "write its maximum, exponentials and sum: examples/operators has one",
}

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
