"""The checks of classic test programs: ``tvm.testing``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minitvm.arith.analyzer import Analyzer
from minitvm.runtime import cpu as _cpu
from minitvm.runtime import enabled as _enabled
from minitvm.runtime.device import Device
from minitvm.runtime.faces import hand_on as _hand_on
from minitvm.tir.expr import Range, Var, as_expr, const_int
from minitvm.tir.functor import substitute
from minitvm.tir.structural_equal import structural_equal


def assert_allclose(actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 1e-7) -> None:
    """Raises an ``AssertionError`` unless two arrays agree in shape, and in each element up to
    ``atol + rtol * |desired|``. Takes arrays of minitvm and everything that numpy takes.

    >>> assert_allclose([1.0, 2.0], [1.0, 2.0 + 1e-9])
    """
    have, want = (np.asarray(_as_numpy(each)) for each in (actual, desired))
    if have.shape != want.shape:
        raise AssertionError(f"expected an array of shape {want.shape}, got {have.shape}")
    np.testing.assert_allclose(have, want, rtol=rtol, atol=atol, verbose=True)


def _as_numpy(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") and not isinstance(value, np.ndarray) else value


def assert_prim_expr_equal(lhs: Any, rhs: Any) -> None:
    """Raises an ``AssertionError`` unless two expressions surely have one value.

    >>> i = Var("i")
    >>> assert_prim_expr_equal((i * 4 + 2) // 4, i)
    """
    a, b = as_expr(lhs), as_expr(rhs)
    if not structural_equal(a, b) and not Analyzer().can_prove_equal(a, b):
        raise AssertionError(f"expected equal expressions, got {a} and {b}")


def check_bool_expr_is_true(bool_expr: Any, vranges: Mapping[Var, Range], cond: Any = None) -> None:
    """Raises an ``AssertionError`` unless a condition holds for all values of its variables, in
    constant ranges, for which `cond` holds. Every such value is tried.

    >>> i = Var("i")
    >>> check_bool_expr_is_true(i * i < 10, {i: Range(0, 4)})
    """
    simplify = Analyzer().simplify
    bounds = []
    for var, range_ in vranges.items():
        low, extent = (const_int(simplify(each)) for each in (range_.min, range_.extent))
        if low is None or extent is None:
            raise ValueError(f"expected a constant range of {var.name}, got {range_}")
        bounds.append(range(low, low + extent))
    for values in itertools.product(*bounds):
        chosen = dict(zip(vranges, values, strict=True))
        held = cond is None or bool(simplify(substitute(as_expr(cond), chosen)))
        if held and const_int(simplify(substitute(as_expr(bool_expr), chosen))) != 1:
            at = ", ".join(f"{var.name} = {value}" for var, value in chosen.items())
            raise AssertionError(f"expected {bool_expr} for all values, found it false at {at}")


def check_numerical_grads(
    function: Callable[..., Any],
    input_values: Sequence[Any],
    grad_values: Sequence[Any],
    function_value: Any = None,
    delta: float = 1e-3,
    atol: float = 1e-2,
    rtol: float = 0.1,
) -> None:
    """Raises an ``AssertionError`` unless gradients agree with central differences.

    Parameters
    ----------
    function
        Takes the inputs, by position, and returns a number (or an array, whose sum counts).
    input_values, grad_values : sequence of arrays, or dict of them by name
        The point, and the gradients there.
    function_value
        There for classic programs, and ignored.
    delta : float
        The step.
    atol, rtol : float
        The difference of two gradients, in the Euclidean norm, may be ``atol * sqrt(size)``, and
        `rtol` of the norm of the numerical one.

    >>> check_numerical_grads(lambda x: (x * x).sum(), [np.ones(3)], [2 * np.ones(3)])
    """
    names: list[Any] = list(range(len(input_values)))
    if isinstance(input_values, Mapping) and isinstance(grad_values, Mapping):
        names = list(input_values)
    points = {name: np.array(input_values[name], "float64") for name in names}

    def value() -> float:
        if isinstance(input_values, Mapping):
            return float(np.sum(function(**points)))
        return float(np.sum(function(*points.values())))

    for name, point in points.items():
        numeric = np.empty_like(point)
        for index in np.ndindex(point.shape):
            kept = point[index]
            point[index] = kept + delta
            above = value()
            point[index] = kept - delta
            numeric[index] = (above - value()) / (2 * delta)
            point[index] = kept
        given = np.asarray(_as_numpy(grad_values[name]))
        if given.shape != numeric.shape:
            raise AssertionError(
                f"gradient of input {name}: expected shape {numeric.shape}, got {given.shape}"
            )
        off = float(np.linalg.norm(given - numeric))
        allowed = atol * numeric.size**0.5 + rtol * float(np.linalg.norm(numeric))
        if not off <= allowed:
            raise AssertionError(
                f"gradient of input {name}: expected it within {allowed:.3g} of the differences, "
                f"found it {off:.3g} off: {given} and {numeric}"
            )


def device_enabled(target: Any) -> bool:
    """Whether code for a target can be made and run here."""
    return _enabled(str(target))


def enabled_targets() -> list[tuple[str, Device]]:
    """The targets that classic tests run on, with their devices: here the CPU."""
    return [("llvm", _cpu(0))]


def get_const_tuple(shape: Sequence[Any]) -> tuple[int, ...]:
    """The extents of a constant shape as Python's integers (classic
    ``topi.utils.get_const_tuple``).

    Raises
    ------
    ValueError
        When one isn't constant.

    >>> get_const_tuple([as_expr(4), 2])
    (4, 2)
    """
    simplify = Analyzer().simplify
    made = []
    for position, extent in enumerate(shape):
        known = const_int(simplify(extent))
        if known is None:
            raise ValueError(f"shape[{position}]: expected a constant, got {extent}")
        made.append(known)
    return tuple(made)


_hand_on(__name__)
