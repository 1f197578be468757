"""The polynomials of minitvm.codegen.coefficients: ``python -m tests.codegen.minimax [NAME ...]``
computes them again, and prints them with their errors.

Each is the minimax polynomial of a smooth function on an interval, by the exchange algorithm of
Remez (Muller, "Elementary Functions", 3rd edition, 2016, section 3.4) on a grid of Chebyshev
points, at 260 bits; the coefficients are then rounded to the format. The error is weighted so that
it is the relative error of the elementary function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mpmath
import numpy as np
from mpmath import mpf

Real = Any  # mpmath has no types
Function = Callable[[Real], Real]

_DIGITS = 260
_GRID = 24  # points for each coefficient
_ROUNDS = 12


class Polynomial(NamedTuple):
    """A polynomial: the function that it approximates, the weight of its error, the interval, and
    how many coefficients it has in float32 and in float64."""

    function: Function
    weight: Function
    low: Real
    high: Real
    counts: tuple[int, int]


def _of_root(function: Function, start: float) -> Function:
    """``(function(r) / r - start) / z`` of ``z = r * r``: of an odd function whose series begins
    with ``start * r``."""

    def divided(z: Real) -> Real:
        r = mpmath.sqrt(z)
        return (function(r) / r - start) / z

    return divided


def _odd(function: Function, high: Real, counts: tuple[int, int], start: float = 1.0) -> Polynomial:
    def weight(z: Real) -> Real:
        r = mpmath.sqrt(z)
        return z * r / function(r)

    return Polynomial(_of_root(function, start), weight, mpf(0), high, counts)


def _erf_exponent(x: Real) -> Real:
    return -mpmath.log(mpmath.erfc(x)) / x - 1


def polynomials() -> dict[str, Polynomial]:
    """All of them; their places in the formulas are in the docstring of ``Format``."""
    half = mpmath.log(2) / 2
    quarter = (mpmath.pi / 4) ** 2 * mpf("1.0001")  # the nearest quarter turn may be rounded
    # The quarter turns of 2**17 are wrong by 0.0034 in float32. Tangents are steep there.
    steep = quarter * mpf("1.0136")
    root = (mpmath.sqrt(2) - 1) / (mpmath.sqrt(2) + 1)
    return {
        "exp": Polynomial(
            lambda r: (mpmath.expm1(r) - r) / r**2,
            lambda r: r**2 / mpmath.exp(r),
            -half,
            half,
            (6, 11),
        ),
        "exp2": Polynomial(
            lambda q: (2**q - 1 - q * mpmath.log(2)) / q**2,
            lambda q: q**2 / 2**q,
            mpf(-1) / 2,
            mpf(1) / 2,
            (5, 10),
        ),
        "sinh": _odd(mpmath.sinh, half**2, (3, 5)),
        "cosh": Polynomial(
            lambda z: (mpmath.cosh(mpmath.sqrt(z)) - 1) / z, lambda z: z, mpf(0), half**2, (3, 5)
        ),
        "log": _odd(lambda s: 2 * mpmath.atanh(s), root**2, (3, 7), 2.0),
        "log_tail": Polynomial(
            lambda z: (_of_root(lambda s: 2 * mpmath.atanh(s), 2)(z) - mpf(2) / 3) / z,
            lambda z: z**2 / 2,
            mpf(0),
            root**2,
            (4, 8),
        ),
        "sin": _odd(mpmath.sin, quarter, (3, 6)),
        "cos": Polynomial(
            lambda z: (mpmath.cos(mpmath.sqrt(z)) - 1 + z / 2) / z**2,
            lambda z: z**2 / mpmath.cos(mpmath.sqrt(z)),
            mpf(0),
            quarter,
            (3, 6),
        ),
        "tan": _odd(mpmath.tan, steep, (7, 14)),
        "tanh": _odd(mpmath.tanh, mpf(1), (7, 16)),
        "asin": _odd(mpmath.asin, mpf(1) / 4, (5, 12)),
        "atan": _odd(mpmath.atan, mpf(1), (9, 20)),
        "erf": Polynomial(
            _erf_exponent,
            lambda x: x * mpmath.erfc(x) / mpmath.erf(x),
            mpf(2) ** -20,
            mpf(6),
            (10, 25),
        ),
    }


def remez(wanted: Polynomial, count: int) -> tuple[list[Real], Real]:
    """The coefficients, the lowest first, and the greatest error."""
    middle, radius = (wanted.low + wanted.high) / 2, (wanted.high - wanted.low) / 2
    last = _GRID * count
    grid = [middle - radius * mpmath.cos(mpmath.pi * (i + 0.5) / last) for i in range(last)]
    values = [wanted.function(u) for u in grid]
    weights = [wanted.weight(u) for u in grid]
    chosen = [round((last - 1) * i / count) for i in range(count + 1)]
    for _ in range(_ROUNDS):
        matrix, right = mpmath.matrix(count + 1, count + 1), mpmath.matrix(count + 1, 1)
        for row, i in enumerate(chosen):
            for column in range(count):
                matrix[row, column] = weights[i] * grid[i] ** column
            matrix[row, count] = (-1) ** row
            right[row] = weights[i] * values[i]
        solved = mpmath.lu_solve(matrix, right)
        found = [solved[i] for i in range(count)]
        errors = [
            w * (v - mpmath.polyval(found[::-1], u))
            for u, v, w in zip(grid, values, weights, strict=True)
        ]
        upcoming = _alternating(errors, count + 1)
        if upcoming == chosen:
            break
        chosen = upcoming
    return found, max(map(abs, errors))


def _alternating(errors: Sequence[Real], count: int) -> list[int]:
    """Where errors of alternating signs are greatest: `count` places."""
    places: list[int] = []
    for i, error in enumerate(errors):
        if not places or (error > 0) != (errors[places[-1]] > 0):
            places.append(i)
        elif abs(error) > abs(errors[places[-1]]):
            places[-1] = i
    while len(places) > count:
        places.pop(0 if abs(errors[places[0]]) < abs(errors[places[-1]]) else -1)
    return places


def rounded(coefficients: Sequence[Real], bits: int) -> tuple[float, ...]:
    """The coefficients in a format, as the shortest texts that mean them."""
    if bits == 64:
        return tuple(map(float, coefficients))
    return tuple(float(str(np.float32(float(c)))) for c in coefficients)


def computed(name: str, bits: int) -> tuple[tuple[float, ...], Real]:
    """The coefficients of a polynomial in a format, and the error before they are rounded."""
    with mpmath.workprec(_DIGITS):
        wanted = polynomials()[name]
        count = wanted.counts[bits == 64]
        found, error = remez(wanted, count) if count else ([], mpf(1))
        return rounded(found, bits), error


def main(names: Sequence[str]) -> None:
    """Prints polynomials, by default all."""
    for bits in (32, 64):
        for name in names or polynomials():
            found, error = computed(name, bits)
            print(f"float{bits} {name}: error 2**{float(mpmath.log(error, 2)):.1f}")
            print(f"    {name}=({', '.join(map(repr, found))}),")


if __name__ == "__main__":
    main(sys.argv[1:])
