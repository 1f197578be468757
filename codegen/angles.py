"""Sines, ``x = n * pi / 2 + r`` and polynomials of r; and arcs, polynomials of a quotient or root.

The arguments are reduced by parts of pi / 2 (Cody and Waite, "Software Manual for the Elementary
Functions", 1980), huge ones by the bits of 2 / pi that count (Payne and Hanek, "Radian reduction
for trigonometric functions", 1983).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from minitvm.codegen.coefficients import DOUBLE, HALF_PI, ONE, format_of
from minitvm.codegen.lanes import Lanes, Pair
from minitvm.codegen.llvm_text import FunctionText, Value, i64, integer
from minitvm.codegen.slow_lanes import guarded

Angle = tuple[Value, Lanes, Lanes]
"""The number of quarter turns, whose two lowest bits count, and the rest with its rounding
error."""
OfAngle = Callable[[Angle], Lanes]


# -- of angles --


def sin(x: Lanes) -> Lanes:
    return _of_angle("sin", x, lambda angle: _sine(angle, 0))


def cos(x: Lanes) -> Lanes:
    return _of_angle("cos", x, lambda angle: _sine(angle, 1), odd=False)


def tan(x: Lanes) -> Lanes:
    return _of_angle("tan", x, _tangent, needs_rest=True)


def _of_angle(
    name: str, x: Lanes, function: OfAngle, *, odd: bool = True, needs_rest: bool = False
) -> Lanes:
    """An even or odd function, computed from the magnitude."""
    a, form = abs(x), format_of(x)

    def far(each: Lanes) -> Lanes:
        return function(_far_angle(each))

    near = function(_near_angle(a, needs_rest))
    found = guarded(name, a.compare("ult", form.far), near, [a], far)
    if not odd:
        return found
    return _signed(found, x.of_bits(x.text.binary("and", x.bits, x.integer(form.sign))))


def _near_angle(x: Lanes, needs_rest: bool) -> Angle:
    form = format_of(x)
    shifted = x.times_plus(ONE / HALF_PI, form.rounder)
    n = shifted - form.rounder
    first, second, third = form.parts(HALF_PI, ONE, 3)
    r = n.times_plus(-first, x)
    if not needs_rest:
        r = n.times_plus(-third, n.times_plus(-second, r))
        return shifted.bits, r, r.number(0.0)
    product, low = n.times_exactly(r.number(second))
    # Where the product is the greater one, the error isn't exact, but less than half of a unit.
    r, error = r.plus_smaller(-product)
    return shifted.bits, r, n.times_plus(-third, error - low)


def _sine(angle: Angle, turns: int) -> Lanes:
    """The sine of an angle plus a number of quarter turns: a sine or a cosine of the rest, or its
    negation, depending on the number."""
    quarter, r, _ = angle
    text, form = r.text, format_of(r)
    z = r * r
    sine = (r * z).times_plus(z.polynomial(form.sin), r)
    cosine = (z * z).times_plus(z.polynomial(form.cos), z.times_plus(-0.5, 1.0))
    quarter = text.binary("add", quarter, r.integer(turns))
    chosen = r.where(_is_odd(quarter, r), cosine, sine)
    half_turns = text.binary("lshr", quarter, r.integer(1))
    sign = text.binary("shl", half_turns, r.integer(form.digits + form.width))
    return _signed(chosen, r.of_bits(text.binary("and", sign, r.integer(form.sign))))


def _tangent(angle: Angle) -> Lanes:
    """The tangent of the rest; for an odd number of quarter turns, its negated inverse."""
    quarter, r, rest = angle
    z = r * r
    lost = rest.times_plus(z, rest)  # the slope is 1 + tan(r)**2
    tangent = r + (r * z).times_plus(z.polynomial(format_of(r).tan), lost)
    return r.where(_is_odd(quarter, r), r.number(-1.0) / tangent, tangent)


def _is_odd(quarter: Value, r: Lanes) -> Value:
    low = r.text.binary("and", quarter, r.integer(1))
    return r.text.icmp("ne", low, r.integer(0))


# -- arcs --


def asin(x: Lanes) -> Lanes:
    """The arc sine; for magnitudes a beyond 1 / 2 it is ``pi / 2`` less twice the arc sine of
    ``sqrt((1 - a) / 2)``."""
    a = abs(x)
    is_great, t, rest = _arc_of_sine(a)
    high, low = format_of(x).parts(HALF_PI, ONE, 2)
    great = -((t + t) + ((rest + rest) - low)) + high
    return x.where(is_great, great, t + rest).with_sign_of(x)


def acos(x: Lanes) -> Lanes:
    """``pi / 2`` less the arc sine; for magnitudes a beyond 1 / 2 it is twice the arc sine of
    ``sqrt((1 - a) / 2)``, or pi less that value."""
    is_great, t, rest = _arc_of_sine(abs(x))
    t, rest = t.where(is_great, t + t, t), t.where(is_great, rest + rest, rest)
    is_negative = x < 0.0
    # pi / 2 - arc, pi / 2 + arc, arc, pi - arc
    high, low = format_of(x).parts(HALF_PI, ONE, 2)
    least = x.where(is_great, x.where(is_negative, 2 * high, 0.0), high)
    below = x.where(is_great, x.where(is_negative, 2 * low, 0.0), low)
    adds = x.text.binary("xor", is_great, is_negative)
    sign = x.of_bits(x.text.select(adds, x.integer(0), x.integer(format_of(x).sign)))
    return least + (_signed(t, sign) + (_signed(rest, sign) + below))


def _signed(x: Lanes, sign: Lanes) -> Lanes:
    """`x`, negated where the sign bit of `sign` is set."""
    return x.of_bits(x.text.binary("xor", x.bits, sign.bits))


def _arc_of_sine(a: Lanes) -> tuple[Value, Lanes, Lanes]:
    """Whether a magnitude is beyond 1 / 2; and the arc sine of the magnitude, or of ``sqrt((1 - a)
    / 2)``, as a sum."""
    is_great = a > 0.5
    z = a.where(is_great, a.times_plus(-0.5, 0.5), a * a)
    t = a.where(is_great, z.sqrt(), a)
    return is_great, t, (t * z) * z.polynomial(format_of(a).asin)


def atan(x: Lanes) -> Lanes:
    """The arc tangent; for magnitudes a beyond 1 it is ``pi / 2`` less the arc tangent of ``1 /
    a``."""
    a = abs(x)
    is_great = a > 1.0
    t = a.where(is_great, a.number(1.0) / a, a)
    rest = _rest_of_arc(t)
    high, low = format_of(x).parts(HALF_PI, ONE, 2)
    great = -(t + (rest - low)) + high
    return x.where(is_great, great, t + rest).with_sign_of(x)


def atan2(y: Lanes, x: Lanes) -> Lanes:
    """The arc tangent of the quotient of the lesser and the greater magnitude, plus or minus a
    quarter or a half turn where needed."""
    a, b, form = abs(y), abs(x), format_of(x)
    is_steep = a > b
    less, greater = x.where(is_steep, b, a), x.where(is_steep, a, b)
    ones = x.where(less.equals(0.0), 0.0, 1.0)  # 0 for two zeros, 1 for two infinities
    t = x.where(less.equals(greater), ones, less / greater)
    rest = _rest_of_arc(t)
    is_back = x.text.icmp("slt", x.bits, x.integer(0))
    high, low = form.parts(HALF_PI, ONE, 2)
    base = x.where(is_steep, high, x.where(is_back, 2 * high, 0.0))
    below = x.where(is_steep, low, x.where(is_back, 2 * low, 0.0))
    takes = x.text.binary("xor", is_steep, is_back)
    sign = x.of_bits(x.text.select(takes, x.integer(form.sign), x.integer(0)))
    return (base + (_signed(t, sign) + (_signed(rest, sign) + below))).with_sign_of(y)


def _rest_of_arc(t: Lanes) -> Lanes:
    """``atan(t) - t``."""
    z = t * t
    return (t * z) * z.polynomial(format_of(t).atan)


# -- huge angles --


def _far_angle(x: Lanes) -> Angle:
    """The quarter turns and the rest of one number from ``far`` on. For infinity and NaN the rest
    is NaN."""
    text, wide = x.text, x.as_double() if x.is_single else x
    turns = _quarter_turns(text, wide.bits)
    rest = text.binary("shl", turns, integer("i128", 2))  # in units of 2**-128, signed
    is_beyond = text.icmp("slt", rest, integer("i128", 0))  # half of a quarter: the next is nearer
    quarter = text.convert("trunc", text.binary("lshr", turns, integer("i128", 126)), "i64")
    quarter = text.binary("add", quarter, text.convert("zext", is_beyond, "i64"))
    high, low = _fraction(wide, text.intrinsic("abs", "i128", rest, integer("i1", 0)))
    big, small = DOUBLE.parts(HALF_PI, ONE, 2)
    r, error = high.times_exactly(high.number(big))
    r, error = r.plus_smaller(high.times_plus(small, low.times_plus(big, error)))
    sign = wide.of_bits(text.select(is_beyond, i64(DOUBLE.sign), i64(0)))
    r, error = _signed(r, sign), _signed(error, sign)
    r = wide.where(wide < float("inf"), r, float("nan"))
    if not x.is_single:
        return quarter, r, error
    nearest = r.as_float()
    return text.convert("trunc", quarter, "i32"), nearest, (r - nearest.as_double()).as_float()


def _quarter_turns(text: FunctionText, bits: Value) -> Value:
    """The quarter turns of a ``double``, in units of ``2**-126``, without whole turns: the product
    of the significand and 192 bits of 2 / pi. The bits before these only count whole turns, and the
    bits behind are too small to matter."""
    exponent = text.binary("lshr", bits, i64(52))
    significand = text.binary("and", bits, i64((1 << 52) - 1))
    significand = text.binary("or", significand, i64(1 << 52))
    place = text.binary("sub", text.intrinsic("umax", "i64", exponent, i64(_FIRST)), i64(_FIRST))
    start, shift = text.binary("lshr", place, i64(6)), text.binary("and", place, i64(63))
    table = text.module.constants("minitvm.two_over_pi", _two_over_pi())
    words = [text.word(table, text.binary("add", start, i64(i))) for i in range(4)]
    factor, word = text.convert("zext", significand, "i128"), integer("i128", 64)
    high, middle, low = (
        text.binary("mul", factor, text.convert("zext", each, "i128"))
        for each in (text.intrinsic("fshl", "i64", words[i], words[i + 1], shift) for i in range(3))
    )
    total = text.binary("add", middle, text.binary("lshr", low, word))
    return text.binary("add", total, text.binary("shl", high, word))


def _fraction(like: Lanes, units: Value) -> Pair:
    """``units * 2**-128``, rounded to 106 bits from its highest one."""
    text = like.text
    zeros = text.intrinsic("ctlz", "i128", units, integer("i1", 0))
    normal = text.binary("shl", units, zeros)
    first = text.convert("trunc", text.binary("lshr", normal, integer("i128", 75)), "i64")
    second = text.convert("trunc", text.binary("lshr", normal, integer("i128", 22)), "i64")
    second = text.binary("and", second, i64((1 << 53) - 1))
    exponent = text.binary("sub", i64(DOUBLE.bias - 53), text.convert("trunc", zeros, "i64"))
    unit = like.of_bits(text.binary("shl", exponent, i64(52)))
    high, low = (like.of(text.convert("sitofp", each, "double")) for each in (first, second))
    return high * unit, low * (unit * 2.0**-53)


_FIRST = 1075 - 62  # the exponent whose bits begin where the table does


@cache
def _two_over_pi() -> tuple[int, ...]:
    """The bits of 2 / pi behind the point, in words, with one word of zeros in front: enough for
    the greatest double. Machin's formula gives pi."""
    size = 19 * 64
    more = size + 64
    pi = 4 * (4 * _arc_of_inverse(5, more) - _arc_of_inverse(239, more))
    bits = (1 << (size + more + 1)) // pi
    return (0, *((bits >> (size - 64 * i)) & ((1 << 64) - 1) for i in range(1, 20)))


def _arc_of_inverse(number: int, bits: int) -> int:
    """The arc tangent of ``1 / number``, times ``2**bits``."""
    power = total = (1 << bits) // number
    odd = 1
    while power:
        power //= -number * number
        odd += 2
        total += power // odd
    return total
