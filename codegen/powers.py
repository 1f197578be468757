"""Powers and roots, remainders, and functions that scale by powers of two."""

from __future__ import annotations

from functools import reduce

from minitvm.codegen.coefficients import LN2, ONE, Format, format_of
from minitvm.codegen.exponentials import exp_of_pair
from minitvm.codegen.lanes import Lanes, Pair, quotient_of_pairs, root_of_pair
from minitvm.codegen.llvm_text import Value, element_type, i64
from minitvm.codegen.logarithms import split
from minitvm.codegen.rounding import nearest_whole
from minitvm.codegen.slow_lanes import guarded, mended

_MOST_FACTORS = 32  # of a power that is computed as a product


def rsqrt(x: Lanes) -> Lanes:
    """A quotient y, refined by one step of Newton's method, whose error is the error of ``x *
    y``."""
    y = x.number(1.0) / x.sqrt()
    error = (-(x * y)).times_plus(y, 1.0)
    refined = (y * 0.5).times_plus(error, y)
    return x.where(refined.equals(refined), refined, y)  # NaN at zero and infinity


def hypot(x: Lanes, y: Lanes) -> Lanes:
    """The length of a vector: for ``float`` computed in ``double``; for ``double`` scaled to a
    range in which squares neither over- nor underflow."""
    a, b = abs(x), abs(y)
    if x.is_single:
        wide, other = a.as_double(), b.as_double()
        root = wide.times_plus(wide, other * other).sqrt().as_float()
    else:
        swaps = b > a
        greater, less = a.where(swaps, b, a), a.where(swaps, a, b)
        is_huge, is_tiny = greater > 2.0**500, greater < 2.0**-450
        factor = a.where(is_huge, 2.0**-600, a.where(is_tiny, 2.0**600, 1.0))
        back = a.where(is_huge, 2.0**600, a.where(is_tiny, 2.0**-600, 1.0))
        greater, less = greater * factor, less * factor
        square, rest = greater.times_exactly(greater)
        other, lost = less.times_exactly(less)
        total, error = square.plus_smaller(other)
        root, low = root_of_pair((total, (rest + lost) + error))
        root = (root + low) * back
    infinite = x.text.binary("or", a.equals(float("inf")), b.equals(float("inf")))
    return x.where(infinite, float("inf"), root)


def fmod(x: Lanes, y: Lanes) -> Lanes:
    """The remainder by one division if the quotient is less than half of the format's whole
    numbers, and otherwise by several."""
    a, b = abs(x), abs(y)
    limit = 2.0 ** (format_of(x).digits - 1)
    quotient = a / b
    near = _remainder(a, b, nearest_whole(quotient))
    # It is NaN for an infinite dividend and for a zero divisor; for an infinite divisor, the
    # dividend itself.
    near = a.where(a < b, a, near)
    found = guarded("fmod", quotient.compare("ult", limit), near, [a, b], _fmod_of_one)
    return found.with_sign_of(x)


def _remainder(a: Lanes, b: Lanes, whole: Lanes) -> Lanes:
    """``a - whole * b``, exactly, plus b if the result is below zero."""
    rest = (-whole).times_plus(b, a)
    return rest.where(rest < 0.0, rest + b, rest)


def _fmod_of_one(a: Lanes, b: Lanes) -> Lanes:
    """The remainder of single numbers in ``double``: multiples of ``b * 2**n`` are subtracted for
    one n after another, so that each quotient has nearly all digits. NaN for an infinite a, or a b
    of zero."""
    if a.is_single:
        return _fmod_of_one(a.as_double(), b.as_double()).as_float()
    text, infinity, digits = a.text, float("inf"), format_of(a).digits
    valid = text.all_of((a < infinity, b > 0.0))
    a, b = a.where(valid, a, 0.0), a.where(valid, b, 1.0)
    before, (head, done) = text.current, text.blocks("reduce", "reduced")
    text.branch_if(a.compare("oge", b), head, done)
    text.place(head)
    with text.scope():
        begun, upcoming = text.phi_open(a.value, before, head)
        rest = a.of(begun)
        step = b
        for up in (2.0**1000, 2.0**80):  # where the quotient overflows
            step = b.where((rest / step).equals(infinity), step * up, step)
        exponent = text.binary("lshr", (rest / step).bits, i64(digits))
        most = i64(format_of(a).bias + digits - 2)
        over = text.intrinsic("umax", "i64", exponent, most)
        one = text.binary("sub", over, i64(digits - 2))
        step = step * a.of_bits(text.binary("shl", one, i64(digits)))
        less = _remainder(rest, step, nearest_whole(rest / step))
        text.phi_close(upcoming, less.value)
        text.branch_if(less.compare("oge", b), head, done)
    text.place(done)
    found = a.of(text.phi(a.value.type, (a.value, before), (less.value, head)))
    return a.where(valid, found, float("nan"))


def ldexp(x: Lanes, exponent: Lanes) -> Lanes:
    """``x * 2**exponent``: the exponents are added, and the significand is scaled by two factors,
    so that subnormal results are rounded once."""
    if x.takes_apart:
        element = "float" if x.is_single else "double"
        number = x.of(x.text.convert("sitofp", exponent.value, element))
        made = x.by_registers("scalef", x, number)
        if made is not None:
            return made
    text, form, a = x.text, format_of(x), abs(x)
    up = form.digits + 1
    is_tiny = a < 2.0 ** (1 - form.bias)
    bits = x.where(is_tiny, x * 2.0**up, x).bits
    type, places = bits.type, x.integer(form.digits)
    field = x.integer(2 * form.bias + 1)
    own = text.binary("and", text.binary("lshr", bits, places), field)
    own = text.binary("sub", own, text.select(is_tiny, x.integer(up), x.integer(0)))
    given = text.convert("sext", exponent.value, element_type(type))
    given = text.intrinsic("smax", type, given, x.integer(-4 * form.bias))
    given = text.intrinsic("smin", type, given, x.integer(4 * form.bias))
    total = text.binary("add", own, given)  # biased
    total = text.intrinsic("smax", type, total, x.integer(-form.digits - 2))
    total = text.intrinsic("smin", type, total, x.integer(2 * form.bias + 2))
    total = text.binary("add", total, x.integer(form.bias))  # for two factors
    half = text.binary("lshr", total, x.integer(1))
    significand = text.binary("and", bits, x.integer(~(form.one | form.one << 1)))
    made = x.of_bits(text.binary("or", significand, x.integer(form.one)))
    for each in (half, text.binary("sub", total, half)):
        made = made * x.of_bits(text.binary("shl", each, places))
    is_number = text.binary("and", a > 0.0, a < float("inf"))
    return x.where(is_number, made, x)


def power(x: Lanes, y: Lanes) -> Lanes:
    """The power of the magnitude, ``exp(y * log(x))``, in about twice the digits of the format.
    Signs, infinities and NaN follow C99 (F.9.4.4)."""
    text, infinity = x.text, float("inf")
    found = _power_of_magnitude(abs(x), y)
    is_plain = text.binary("and", x > 0.0, x + abs(y) < infinity)
    return mended(is_plain, found, lambda: _power_of_any(x, y, found))


def power_of_number(x: Lanes, exponent: float) -> Lanes | None:
    """The power by a number, if this is a multiple of 1/2 that takes few products: each factor has
    about twice the digits of the format. Signs, infinities and NaN follow C99 (F.9.4.4)."""
    count, has_root = int(abs(exponent)), exponent % 1 == 0.5
    if abs(exponent) in (0, 1) or abs(exponent) > _MOST_FACTORS or exponent % 0.5:
        return None
    if not has_root:
        return _product(_factors(x, exponent < 0, count, has_root))
    base = abs(x)
    if count:
        found = _product(_factors(base, exponent < 0, count, has_root))
    else:
        found = base.sqrt() if exponent > 0 else rsqrt(base)
    is_below = x.text.binary("and", x < 0.0, x > float("-inf"))
    return x.where(is_below, float("nan"), found)


def _factors(x: Lanes, is_inverted: bool, count: int, has_root: bool) -> list[Pair]:
    """Numbers with the product ``x ** count``, or its inverse; with another factor of the root."""
    square: Pair = (x, x.number(0.0))
    if is_inverted:
        inverse = x.number(1.0) / x
        square = inverse, (-inverse).times_plus(x, 1.0) * inverse
    made = [root_of_pair(square)] if has_root else []
    while count > 2 or (count == 2 and made):
        if count % 2:
            made.append(square)
        count //= 2
        square = _product_of_pairs(square, square)
    return [*made, *[square] * count]


def _product_of_pairs(a: Pair, b: Pair) -> Pair:
    product, rest = a[0].times_exactly(b[0])
    return product, a[0].times_plus(b[1], a[1].times_plus(b[0], rest))


def _product(factors: list[Pair]) -> Lanes:
    """The nearest float of a product. Where a rest isn't a number, it is left out: a factor is zero
    or infinite then."""
    (a, a_rest), (b, b_rest) = reduce(_product_of_pairs, factors[:-1]), factors[-1]
    rough = a * b
    found = a.times_plus(b, a.times_plus(b_rest, a_rest * b))
    return rough.where(found.equals(found), found, rough).with_sign_of(rough)


def _power_of_any(x: Lanes, y: Lanes, found: Lanes) -> Lanes:
    """The power, where `found` is that of positive numbers."""
    text, magnitude = x.text, abs(x)
    # At zero and infinity the logarithm is infinite.
    grows = text.binary("xor", magnitude < 1.0, y > 0.0)
    end = x.where(x.compare("uno", y), x + y, x.where(grows, float("inf"), 0.0))
    is_inner = text.binary("and", magnitude > 0.0, magnitude < float("inf"))
    found = x.where(is_inner, found, end)
    is_whole, is_even = _is_whole(y), _is_whole(y * 0.5)
    both_end = text.binary("and", magnitude.equals(1.0), abs(y).equals(float("inf")))
    is_one = text.binary("or", x.equals(1.0), y.equals(0.0))
    found = x.where(text.binary("or", is_one, both_end), 1.0, found)
    of_whole = x.where(is_even, found, found.with_sign_of(x))
    of_other = x.where(text.binary("and", x < 0.0, x > float("-inf")), float("nan"), found)
    return x.where(is_whole, of_whole, of_other)


def _is_whole(y: Lanes) -> Value:
    """The mask of the lanes that are integers or infinite."""
    a = abs(y)
    is_great = a.compare("oge", 2.0 ** format_of(y).digits)
    return y.text.binary("or", nearest_whole(a).equals(a), is_great)


def _power_of_magnitude(x: Lanes, y: Lanes) -> Lanes:
    high, low = _log_pair(x)
    product, rest = high.times_exactly(y)
    rest = y.times_plus(low, rest)
    return exp_of_pair((product, rest))


def _log_pair(x: Lanes) -> Pair:
    """The natural logarithm of a positive finite number to 36 bits or more, in ``double`` to 66."""
    form = format_of(x)
    k, m = split(x)
    f = m - 1.0
    s, s_low = quotient_of_pairs((f, f.number(0.0)), f.number(2.0).plus_smaller(f))
    z, z_low = s.times_exactly(s)
    z_low = (s + s).times_plus(s_low, z_low)
    third, third_low = form.parts(2, 3, 2)
    # 2 * s + s * z * (2 / 3 + z * tail)
    tail = z.polynomial(form.log_tail)
    c, c_low = z.number(third).plus_smaller(z * tail)
    c_low = c_low + third_low
    p, p_low = z.times_exactly(c)
    p_low = z.times_plus(c_low, z_low.times_plus(c, p_low))
    q, q_low = p.number(2.0).plus_smaller(p)
    q_low = q_low + p_low
    log, log_low = s.times_exactly(q)
    log_low = s.times_plus(q_low, s_low.times_plus(q, log_low))
    two, two_low = _parts_of_ln2(form)
    total, lost = (k * two).plus_smaller(log)  # of k = 0 the sum is exact
    return total.plus_smaller(k.times_plus(two_low, lost + log_low))


def _parts_of_ln2(form: Format) -> tuple[float, float]:
    """log(2) as a sum of parts. The first is so short that its product with an exponent is
    exact."""
    places = form.digits - form.width - 1
    high = (LN2 << places) // ONE
    return high * 2.0**-places, ((LN2 << places) - high * ONE) / (ONE << places)
