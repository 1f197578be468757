"""Exponentials: ``x = n * ln(2) + r``, and a polynomial of r.

The reduction is Cody and Waite's ("Software Manual for the Elementary Functions", 1980).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from minitvm.codegen.coefficients import LN2, ONE, format_of
from minitvm.codegen.lanes import Lanes, Pair


def exponential(log_base: int) -> Callable[[Lanes], Lanes]:
    """``b**x``, by the logarithm of b: ``2**n * b**r`` with n the nearest integer to
    ``x * log2(b)``."""

    def emit(x: Lanes) -> Lanes:
        within = _clamped(x, log_base)
        if log_base == ONE:
            n, r = reduced(within)
            return scaled(_exp_minus_one(r) + 1.0, n)
        if log_base == LN2:
            n = _nearest(within, LN2)
            r = within - n  # exact
            power = r.times_plus(LN2 / ONE, (r * r) * r.polynomial(format_of(x).exp2))
            return scaled(power + 1.0, n)
        n, r, rest = reduced_exactly(within, log_base)
        high, low = format_of(x).parts(log_base, ONE, 2)
        power = r * high
        lost = r.times_plus(low, r.times_plus(high, -power))
        return _of_parts(n, power, rest.times_plus(high, lost))

    return emit


def exp_of_pair(x: Pair) -> Lanes:
    """``exp`` of the sum of a pair, also where the first number overflowed and the second is
    NaN."""
    high = _clamped(x[0])
    n, r, lost = reduced_exactly(high)
    r, rest = r.plus_smaller(high.where(high.equals(x[0]), x[1], 0.0))
    return _of_parts(n, r, rest + lost)


def _of_parts(n: Lanes, r: Lanes, rest: Lanes) -> Lanes:
    """``2**n * exp(r + rest)``; `rest` is the rounding error of r."""
    total, lost = r.number(1.0).plus_smaller(r)
    return scaled(total + (r * r).times_plus(r.polynomial(format_of(r).exp), rest + lost), n)


def expm1(x: Lanes) -> Lanes:
    """``expm1``, as twice its half, since 2**n may overflow."""
    form = format_of(x)
    within = x.clamped(-(form.digits + 3) * LN2 / ONE, (form.bias + 1.4) * LN2 / ONE)
    high, low = _less(within, 0.5)
    half = high + low
    return x.where(abs(x) < 2.0 ** (-form.digits - 1), x, half + half)


def _less(x: Lanes, part: float) -> Pair:
    """``part * (exp(x) - 1)`` in a little more than the digits of the format; the first number of
    the pair need not be the nearest float. It is ``(2**n - 1) + 2**n * (exp(r) - 1)``, where 2**n
    is a normal number."""
    n, r, rest = reduced_exactly(x)
    scale = power_of_two(n if part == 1.0 else n + math.log2(part))
    least = scale - part
    lost = -(least - scale) - part
    high, low = least.plus_smaller(scale * r)
    power = (r * r).times_plus(r.polynomial(format_of(x).exp), rest.times_plus(r, rest))
    return high, scale.times_plus(power, low + lost)


def sinh(x: Lanes) -> Lanes:
    """With ``p = 2**n / 2`` and ``m = 2**-n / 2``, ``(p - m) * cosh(r) + (p + m) * sinh(r)``, for
    the magnitude; computed as twice its half, since 2**n may overflow."""
    a = abs(x)
    p, m, sine, cosine = _hyperbolic(a)
    c, lost = p.plus_smaller(-m)
    half = c + (p + m).times_plus(sine, c.times_plus(cosine, lost))
    return a.where(a < 2.0 ** -format_of(x).digits, a, half + half).with_sign_of(x)


def cosh(x: Lanes) -> Lanes:
    """With ``p = 2**n / 2`` and ``m = 2**-n / 2``, ``(p + m) * cosh(r) + (p - m) * sinh(r)``;
    computed as twice its half, since 2**n may overflow."""
    p, m, sine, cosine = _hyperbolic(abs(x))
    c, lost = p.plus_smaller(m)
    half = c + (p - m).times_plus(sine, c.times_plus(cosine, lost))
    return half + half


def _hyperbolic(a: Lanes) -> tuple[Lanes, Lanes, Lanes, Lanes]:
    """A quarter of 2**n and of 2**-n, ``sinh(r)`` and ``cosh(r) - 1``."""
    form = format_of(a)
    n, r, rest = reduced_exactly(a.at_most((form.bias + 2.4) * LN2 / ONE))
    z = r * r
    sine = (r * z).times_plus(z.polynomial(form.sinh), rest) + r
    cosine = z * z.polynomial(form.cosh)
    return power_of_two(n - 2.0), power_of_two((-n).clamped(-60.0, 0.0) - 2.0), sine, cosine


def tanh(x: Lanes) -> Lanes:
    """A polynomial of magnitudes below 1; for others ``1 - 2 / (exp(2 * a) + 1)``."""
    a, form = abs(x), format_of(x)
    z, lost = a.times_exactly(a)
    slope = z.polynomial(form.tanh)
    near = z.times_plus(slope, lost * slope).times_plus(a, a)
    double = (a + a).at_most(2 * form.tanh_is_one)
    scale, power = _power_and_scale(double)
    far = (x.number(-2.0) / scale.times_plus(power, scale + 1.0)) + 1.0
    return x.where(a < 1.0, near, far).with_sign_of(x)


def sigmoid(x: Lanes) -> Lanes:
    """``1 / (1 + 2**n * exp(r))`` for the negated argument. For n above zero it is ``2**-n / (2**-n
    + exp(r))``, since the first form overflows where the result is still finite."""
    form = format_of(x)
    end = 2 * form.bias * LN2 / ONE
    n, r = reduced((-x).clamped(-end, end))
    grows = n > 0.0
    down = -abs(n)
    # A smaller one wouldn't change the result, and products with it would underflow.
    small = power_of_two(down.clamped(-2.0 * form.digits - 16.0, 0.0))
    power = _exp_minus_one(r)
    least, lost = x.number(1.0).plus_smaller(small)
    total, low = least.plus_smaller(x.where(grows, 1.0, small).times_plus(power, lost))
    y = x.number(1.0) / total
    error = (-low).times_plus(y, (-total).times_plus(y, 1.0))
    return scaled(y.times_plus(error, y), x.where(grows, down, 0.0))


def erf(x: Lanes) -> Lanes:
    form = format_of(x)
    a = abs(x).at_most(form.erf_is_one)
    scale, power = _power_and_scale(-a.times_plus(a.polynomial(form.erf), a))
    return (-scale.times_plus(power, scale - 1.0)).with_sign_of(x)


def reduced(x: Lanes) -> tuple[Lanes, Lanes]:
    """n and r with ``x = n * ln(2) + r`` and n whole."""
    n, r = _nearest(x, ONE), x
    for part in format_of(x).parts(LN2, ONE, 2):
        r = n.times_plus(-part, r)
    return n, r


def reduced_exactly(x: Lanes, log_base: int = ONE) -> tuple[Lanes, Lanes, Lanes]:
    """As :func:`reduced`, by multiples of ``log_b(2)``; and the rounding error of r."""
    n = _nearest(x, log_base)
    first, second = format_of(x).parts(LN2, log_base, 2)
    long = n.times_plus(-first, x)
    r = n.times_plus(-second, long)
    return n, r, n.times_plus(-second, long - r)


def _nearest(x: Lanes, log_base: int) -> Lanes:
    rounder = format_of(x).rounder
    return x.times_plus(log_base / LN2, rounder) - rounder


def _clamped(x: Lanes, log_base: int = ONE) -> Lanes:
    """`x` limited to the range beyond which powers are infinite, or :func:`scaled` multiplies by
    zero."""
    form, step = format_of(x), LN2 / log_base
    return x.clamped(-2 * form.bias * step, (form.bias + 2) * step)


def _power_and_scale(x: Lanes) -> Pair:
    """2**n and ``exp(r) - 1``, where 2**n is a normal number."""
    n, r = reduced(x)
    return power_of_two(n), _exp_minus_one(r)


def _exp_minus_one(r: Lanes) -> Lanes:
    return (r * r).times_plus(r.polynomial(format_of(r).exp), r)


def power_of_two(n: Lanes) -> Lanes:
    """2**n for a whole n, as bits of the exponent; n in the range of normal numbers."""
    form = format_of(n)
    biased = (n + (form.rounder + form.bias)).bits
    return n.of_bits(n.text.binary("shl", biased, n.integer(form.digits)))


def scaled(x: Lanes, n: Lanes) -> Lanes:
    """``x * 2**n`` for a magnitude of x below 4: by two factors, so that subnormal results are
    rounded once, and great ones become infinite. CPUs take a hundred cycles and more for a product
    that underflows, but not for a product with zero. Both factors are zero where n is minus twice
    the exponent's bias; an instruction gets a zero in the place of x where the result is zero."""
    form = format_of(x)
    if x.fills_registers:
        x = x.where(n < -float(form.bias + form.digits + 2), 0.0, x)
    by_instruction = x.by_registers("scalef", x, n)
    if by_instruction is not None:
        return by_instruction
    rounder = form.rounder
    half = n.times_plus(0.5, rounder) - rounder
    return x * power_of_two(half) * power_of_two(n - half)
