"""Logarithms: ``x = 2**k * (1 + f)``, and ``log(1 + f) = 2 * atanh(s)`` with ``s = f / (2 + f)``.

The sum that keeps f exact is that of Tang ("Table-driven implementation of the logarithm function
in IEEE floating-point arithmetic", 1990, section 2).
"""

from __future__ import annotations

from collections.abc import Callable

from minitvm.codegen.coefficients import LN2, ONE, format_of
from minitvm.codegen.exponentials import power_of_two
from minitvm.codegen.lanes import Lanes, Pair, quotient_of_pairs, root_of_pair

_FROM_ONE = 0  # AVX-512's number of the interval from 1 to 2


def logarithm(log_base: int) -> Callable[[Lanes], Lanes]:
    """The logarithm to a base, which is given by its natural logarithm."""

    def emit(x: Lanes) -> Lanes:
        k, m = split(x)
        return _at_ends(x, _of_product(k, m - 1.0, log_base=log_base))

    return emit


def log1p(x: Lanes) -> Lanes:
    """``log(1 + x)``, from the exact sum."""
    total, error = x.plus_exactly(1.0)
    found = _of_product(*_parts_of_sum(total, error))
    small = abs(x) < 2.0 ** (-format_of(x).digits - 2)
    return x.where(small, x, _at_ends(total, found))


def asinh(x: Lanes) -> Lanes:
    """``log(a + sqrt(a**2 + 1))`` for the magnitude a; for a huge one ``log(a) + log(2)``."""
    a = abs(x)
    square, rest = a.times_exactly(a)
    total, error = square.plus_exactly(1.0)
    root, low = root_of_pair((total, error + rest))
    found = _log_of_sum(a, root.plus_smaller(a), low)
    return found.with_sign_of(x)


def acosh(x: Lanes) -> Lanes:
    """``log(x + sqrt(x**2 - 1))``; for a huge x ``log(x) + log(2)``."""
    square, rest = x.times_exactly(x)
    total, error = square.plus_smaller(x.number(-1.0))
    root, low = root_of_pair((total, error + rest))
    found = _log_of_sum(x, x.plus_smaller(root), low)
    return x.where(x < 1.0, float("nan"), found)


def atanh(x: Lanes) -> Lanes:
    """Half of the logarithm of ``(1 + a) / (1 - a)``, for the magnitude a, without computing this
    quotient: written as ``2**k * (1 + s) / (1 - s)``, it gives the s ``(1 + a - 2**k * (1 - a)) /
    (1 + a + 2**k * (1 - a))``."""
    a, form = abs(x), format_of(x)
    one = x.number(1.0)
    up, more = one.plus_smaller(a)
    down, less = one.plus_smaller(-a)
    k, m = split(down)
    k = x.where(up > m * 2.0**0.5, -k + 1.0, -k)
    scale = power_of_two(k)
    sum_high, sum_low = up.plus_exactly(scale * down)
    s, rest = quotient_of_pairs(
        ((-scale).times_plus(down, up), (-scale).times_plus(less, more)),
        (sum_high, scale.times_plus(less, more + sum_low)),
    )
    z = s * s
    high, low = form.parts(LN2, 2 * ONE, 2)
    rest = (s * z).times_plus(z.polynomial(form.log) * 0.5, k.times_plus(low, rest))
    found = k.times_plus(high, s + rest)
    end = x.where(a.equals(1.0), float("inf"), float("nan"))
    return x.where(a < 1.0, found, end).with_sign_of(x)


def split(x: Lanes) -> Pair:
    """k and m with ``x = 2**k * m`` and m in [sqrt(1/2), sqrt(2)), for positive numbers."""
    found = _split_by_instructions(x)
    if found is not None:
        return found
    form = format_of(x)
    is_tiny, up = x < 2.0 ** (1 - form.bias), form.digits + 1
    k, m = _split_normal(x.where(is_tiny, x * 2.0**up, x))
    return x.where(is_tiny, k - float(up), k), m


def _split_by_instructions(x: Lanes) -> Pair | None:
    k, m = x.by_registers("getexp", x), x.by_registers("getmant", x, _FROM_ONE)
    if k is None or m is None:
        return None
    is_great = m.compare("oge", 2 * format_of(x).root)
    return k.where(is_great, k + 1.0, k), m.where(is_great, m * 0.5, m)


def _split_normal(x: Lanes) -> Pair:
    found = _split_by_instructions(x)
    if found is not None:
        return found
    text, form, bits = x.text, format_of(x), x.bits
    digits = x.integer(form.digits)
    root = x.number(form.root).bits
    moved = text.binary("add", bits, text.binary("sub", x.integer(form.one), root))
    biased = text.binary("lshr", moved, digits)  # k, biased
    exponent = x.of_bits(text.binary("or", biased, x.number(2.0**form.digits).bits))
    k = exponent - (2.0**form.digits + form.bias)
    less = text.binary("sub", text.binary("shl", biased, digits), x.integer(form.one))
    return k, x.of_bits(text.binary("sub", bits, less))


def _log_of_sum(a: Lanes, sum: Pair, low: Lanes) -> Lanes:
    """The logarithm of `sum`, which is `a` plus a root, plus `low`; for a huge `a` that of ``2 *
    a``."""
    total, error = sum
    huge = a > 2.0 ** (format_of(a).digits // 2 + 3)
    k, f, rest = _parts_of_sum(a.where(huge, a, total), a.where(huge, 0.0, error + low))
    k = a.where(huge, k + 1.0, k)
    return a.where(a < float("inf"), _of_product(k, *f.plus_smaller(rest)), a)


def _parts_of_sum(total: Lanes, error: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """k, f and a small rest with ``total + error = 2**k * (1 + f + rest)``."""
    k, m = _split_normal(total)
    down, least = -k, -float(format_of(total).bias)
    down = down.where(down < least, least, down)  # the error is lost in huge sums
    return k, m - 1.0, error * power_of_two(down)


def _of_product(k: Lanes, f: Lanes, rest: Lanes | None = None, log_base: int = ONE) -> Lanes:
    """``(k * log(2) + log(1 + f + rest)) / log_base``."""
    form = format_of(f)
    s = f / (f + 2.0)
    z, half_square = s * s, f * 0.5 * f
    inner = z.times_plus(z.polynomial(form.log), half_square)
    small = s.times_plus(inner, -half_square)  # log(1 + f) - f
    if rest is not None:
        # The slope is 1 / (1 + f) = (1 - s) / (1 + s).
        small = small + (rest + rest).times_plus(z - s, rest)
    one_high, one_low = form.parts(ONE, log_base, 2)
    two_high, two_low = form.parts(LN2, log_base, 2)
    if log_base == ONE:
        return k.times_plus(two_high, f + k.times_plus(two_low, small))
    if log_base != LN2:
        low = small.times_plus(one_high, f.times_plus(one_low, k * two_low))
        return k.times_plus(two_high, f.times_plus(one_high, low))
    product = f * one_high
    lost = (f * -0.5).times_plus(f, half_square).times_plus(one_high, f * one_low)
    low = small.times_plus(one_high, f.times_plus(one_high, -product) + lost)
    total, error = k.plus_smaller(product)  # k is exact here
    return total + (error + low)


def _at_ends(x: Lanes, log: Lanes) -> Lanes:
    """`log`, the logarithm of x, with its values at 0, infinity, NaN and negative numbers."""
    below = x.where(x.equals(0.0), float("-inf"), float("nan"))
    return x.where(x > 0.0, x.where(x < float("inf"), log, x), below)
