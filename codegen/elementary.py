"""Elementary functions by polynomials: arithmetic alone, so that they run in the lanes of vectors.

Each is the classic reduction of its argument, and a polynomial on the rest (Muller, "Elementary
Functions", 3rd ed., 2016, chapters 3 and 11; Cody and Waite, "Software Manual for the Elementary
Functions", 1980; for erf, ``1 - erf(x) = exp(-x * Q(x))``, where Q is smooth). The polynomials are
minimax ones, by the algorithm of Remez at 260 bits, in the error relative to the function: they add
less than 2**-26 (float) or 2**-56 (double). The target must have fused multiply-add, which makes
the reductions exact to the last bit that counts.

Every function takes all arguments, NaN, infinities, zeros and subnormals included. Errors are in
docs/numerics.md; a scalar gets the same bits as a lane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from minitvm.codegen.lanes import Lanes
from minitvm.codegen.llvm_text import FunctionText, Value, lanes_of
from minitvm.runtime.dtype import FLOAT32
from minitvm.runtime.record import record
from minitvm.tir.scalars import round_float

# Numbers to 63 decimals, as integers: Python rounds the quotient of two integers correctly.
_ONE = 10**63
_LN2 = 693147180559945309417232121458176568075500134360255254120680009
_LN10 = 2302585092994045684017991454684364207601101488628772976033327901
_HALF_PI = 1570796326794896619231321691639751442098584699687552910487472296
_EXPONENTIAL = {"exp": _ONE, "exp2": _LN2, "exp10": _LN10}  # the logarithm of the base
_LOGARITHM = {"log": _ONE, "log2": _LN2, "log10": _LN10}


@final
@record()
class _Format:
    """A binary format, and the polynomials for it.

    With r in [-ln(2) / 2, ln(2) / 2], f in [sqrt(1/2) - 1, sqrt(2) - 1], z = r**2::

        exp(r) = 1 + r + r**2 * exp          log(1 + f) = f - f**2 / 2 + f**3 * log
        sin(r) = r + r * z * sin             cos(r) = 1 - z / 2 + z**2 * cos     (r to pi / 4)
        erf(x) = 1 - exp(-(x + x * erf))                                  (to erf_is_one)
    """

    digits: int  # of the significand, behind the point
    bias: int  # of the exponent
    far: float  # beyond it, the reduction by multiples of pi / 2 is not exact enough
    tanh_is_one: float
    erf_is_one: float
    exp: tuple[float, ...]
    log: tuple[float, ...]
    sin: tuple[float, ...]
    cos: tuple[float, ...]
    erf: tuple[float, ...]

    @property
    def rounder(self) -> float:
        """Added to a number, it leaves the nearest integer in the lowest bits."""
        return 1.5 * 2.0**self.digits

    @property
    def one(self) -> int:
        """The bits of 1.0."""
        return self.bias << self.digits

    def parts(self, above: int, below: int, count: int) -> tuple[float, ...]:
        """Floats whose sum is ``above / below``, the largest first."""
        made = []
        for _ in range(count):
            part = above / below
            made.append(round_float(FLOAT32, part) if self.digits == 23 else part)
            part_above, part_below = made[-1].as_integer_ratio()
            above, below = above * part_below - part_above * below, below * part_below
        return tuple(made)


_SINGLE = _Format(
    digits=23, bias=127, far=2.0**17, tanh_is_one=9.1, erf_is_one=3.95,
    exp=(0.5, 0.16666667, 0.041666355, 0.008333273, 0.0013941008, 0.0001991424),
    log=(
        0.3333333, -0.2500082, 0.20001227, -0.16623354, 0.14201741, -0.13160214, 0.12761828,
        -0.07634786,
    ),
    sin=(-0.16666667, 0.008333329, -0.00019839333, 2.7183005e-6),
    cos=(0.041666646, -0.0013887367, 2.4438377e-5),
    erf=(
        0.12837917, 0.6366198, 0.10277128, -0.019117707, -0.00025303266, 0.0017993201,
        -0.0007406642, 0.00016747357, -2.1353424e-5, 1.1932415e-6,
    ),
)  # fmt: skip
_DOUBLE = _Format(
    digits=52, bias=1023, far=2.0**28, tanh_is_one=19.1, erf_is_one=5.95,
    exp=(
        0.5, 0.16666666666666677, 0.0416666666666667, 0.008333333333321605,
        0.001388888888886676, 0.00019841269886187375, 2.480158736095644e-5,
        2.7557244151067675e-6, 2.755724232890752e-7, 2.510905605037311e-8,
        2.0924586840584107e-9,
    ),
    log=(
        0.3333333333333314, -0.24999999999987996, 0.20000000000066537, -0.16666666669821484,
        0.14285714280096282, -0.12499999691777985, 0.11111111147656509, -0.10000015193782363,
        0.09090923913988694, -0.08332913791073039, 0.07691530363596039, -0.07149436846724565,
        0.0668458106100854, -0.06196690543730319, 0.056684361061617616, -0.05677793291382411,
        0.0650332926658959, -0.059815144714365755, 0.026150472267634287,
    ),
    sin=(
        -0.16666666666666632, 0.008333333333322403, -0.00019841269829799516,
        2.7557313689034335e-6, -2.5050757667523176e-8, 1.589677012204289e-10,
    ),
    cos=(
        0.0416666666666666, -0.0013888888888874131, 2.4801587289486684e-5, -2.75573143535251e-7,
        2.087572341078519e-9, -1.1359653465859799e-11,
    ),
    erf=(
        0.12837916709551256, 0.6366197723675836, 0.10277260330178904, -0.019128447005074323,
        -0.00020919469482264804, 0.0016962063858007251, -0.0005901255541217613,
        2.5878611717189796e-5, 6.449183411031747e-5, -2.9723980157007095e-5,
        3.4071463301986835e-6, 2.8353034144443557e-6, -1.741720894172081e-6, 3.365097630985178e-7,
        1.3708566865141553e-7, -1.4171084614919812e-7, 6.571190449261566e-8,
        -2.0955415304289864e-8, 4.9957943699719305e-9, -9.078315112899002e-10,
        1.2478017487420574e-10, -1.2604075777892945e-11, 8.840135808317757e-13,
        -3.8478944086571664e-14, 7.828277131220993e-16,
    ),
)  # fmt: skip


class ElementaryFunctions:
    """Emits elementary functions into one function.

    Parameters
    ----------
    text
        The function that they are emitted into.
    libm
        Emits a call of the C library on all lanes: for sines of huge arguments.
    """

    def __init__(
        self, text: FunctionText, libm: Callable[[FunctionText, str, Value], Value]
    ) -> None:
        self._text = text
        self._libm = libm
        self.table: dict[str, Callable[..., Lanes]] = {
            **{name: self._exponential(log) for name, log in _EXPONENTIAL.items()},
            **{name: self._logarithm(log) for name, log in _LOGARITHM.items()},
            "log1p": self._log1p,
            "tanh": self._tanh,
            "sigmoid": self._sigmoid,
            "erf": self._erf,
            "sin": lambda x: self._unless_far("sin", x, self._sin(x)),
            "cos": lambda x: self._unless_far("cos", x, self._cos(x)),
            "power": self._power,
        }

    def emit(self, name: str, *args: Value) -> Value:
        """A function on all lanes."""
        return self.table[name](*[Lanes(self._text, arg) for arg in args]).value

    # -- powers: b**x = 2**n * b**r, with n the nearest integer to x * log2(b) --

    def _exponential(self, log_base: int) -> Callable[[Lanes], Lanes]:
        def emit(x: Lanes) -> Lanes:
            form = _format(x)
            lowest = -(form.bias + form.digits + 1) * _LN2 / log_base
            highest = (form.bias + 2) * _LN2 / log_base
            n, r = _reduced(x.clamped(lowest, highest), log_base)
            if log_base != _ONE:
                r = r * (log_base / _ONE)
            return _scaled(_exp_minus_one(r) + 1.0, n)

        return emit

    def _sigmoid(self, x: Lanes) -> Lanes:
        """``1 / (1 + e)`` with ``e = exp(-x)``; below zero ``e / (1 + e)`` with ``e = exp(x)``, as
        the other overflows where the result is still a number."""
        power = self.table["exp"](-abs(x))
        return x.where(x < 0.0, power, x.number(1.0)) / (power + 1.0)

    def _tanh(self, x: Lanes) -> Lanes:
        """``t / (t + 2)`` with ``t = exp(2 * x) - 1``, of the magnitude."""
        t = _power_minus_one(abs(x + x).clamped(0.0, 2 * _format(x).tanh_is_one))
        return (t / (t + 2.0)).with_sign_of(x)

    def _erf(self, x: Lanes) -> Lanes:
        form = _format(x)
        a = abs(x).clamped(0.0, form.erf_is_one)
        return _power_minus_one(-a.times_plus(a.polynomial(form.erf), a)).with_sign_of(x)

    # -- logarithms: log(2**k * (1 + f)) = k * log(2) + log(1 + f) --

    def _logarithm(self, log_base: int) -> Callable[[Lanes], Lanes]:
        def emit(x: Lanes) -> Lanes:
            form = _format(x)
            is_tiny, up = x < 2.0 ** (1 - form.bias), form.digits + 1
            k, m = _split(x.where(is_tiny, x * 2.0**up, x))
            k = x.where(is_tiny, k - float(up), k)
            return _at_ends(x, _log_of_product(k, m - 1.0, log_base))

        return emit

    def _log1p(self, x: Lanes) -> Lanes:
        """The logarithm of 1 + x, rounded, with the rounding's error added to f (Knuth's exact
        sum, The Art of Computer Programming 2, 4.2.2)."""
        total = x + 1.0
        virtual = total - 1.0
        error = (x - virtual) - ((total - virtual) - 1.0)
        k, m = _split(total)
        down = (-k).clamped(-float(_format(x).bias), 1.0)  # the error is lost in huge sums
        f = error.times_plus(_power_of_two(down), m - 1.0)
        small = abs(x) < 2.0 ** (-_format(x).digits - 2)
        return x.where(small, x, _at_ends(total, _log_of_product(k, f, _ONE)))

    def _power(self, x: Lanes, y: Lanes) -> Lanes:
        """``exp2(y * log2(x))`` in double, more than twice the digits that float needs. Signs,
        infinities and NaN follow C99 (F.9.4.4)."""
        text, magnitude = self._text, abs(x)
        product = y.as_double() * self.table["log2"](magnitude.as_double())
        power = self.table["exp2"](product).as_float()
        is_whole, is_even = y.is_whole(), (y * 0.5).is_whole()
        both_end = text.binary(
            "and", magnitude.compare("oeq", 1.0), abs(y).compare("oeq", float("inf"))
        )
        is_one = text.binary("or", x.compare("oeq", 1.0), y.compare("oeq", 0.0))
        power = x.where(text.binary("or", is_one, both_end), x.number(1.0), power)
        of_whole = x.where(is_even, power, power.with_sign_of(x))
        of_other = x.where(
            text.binary("and", x < 0.0, x > float("-inf")), x.number(float("nan")), power
        )
        return x.where(is_whole, of_whole, of_other)

    # -- sines: x = n * pi / 2 + r --

    def _sin(self, x: Lanes) -> Lanes:
        odd = self._quadrant(abs(x), 0)
        sign = self._text.binary("and", x.bits, _sign_bit(x))
        return odd.of_bits(self._text.binary("xor", odd.bits, sign))

    def _cos(self, x: Lanes) -> Lanes:
        return self._quadrant(abs(x), 1)

    def _quadrant(self, x: Lanes, turns: int) -> Lanes:
        """The sine of ``x + turns * pi / 2``: by the number of quarter turns, a sine or a cosine of
        the rest, or the opposite."""
        text, form = self._text, _format(x)
        shifted = x.times_plus(_ONE / _HALF_PI, form.rounder)
        n = shifted - form.rounder
        r = x
        for part in form.parts(_HALF_PI, _ONE, 3):
            r = n.times_plus(-part, r)
        z = r * r
        sine = (r * z).times_plus(z.polynomial(form.sin), r)
        cosine = (z * z).times_plus(z.polynomial(form.cos), z.times_plus(-0.5, 1.0))
        quarter = text.binary("add", shifted.bits, x.integer(turns))
        is_odd = text.icmp("ne", text.binary("and", quarter, x.integer(1)), x.integer(0))
        chosen = x.where(is_odd, cosine, sine)
        half_turns = text.binary("lshr", quarter, x.integer(1))
        sign = text.binary("shl", half_turns, x.integer(form.digits + _width_of_exponent(form)))
        return x.of_bits(text.binary("xor", chosen.bits, text.binary("and", sign, _sign_bit(x))))

    def _unless_far(self, name: str, x: Lanes, near: Lanes) -> Lanes:
        """`near`, and in lanes whose argument is huge the value of the C library."""
        text = self._text
        is_near = abs(x).compare("ult", _format(x).far)
        all_near = is_near
        if lanes_of(is_near.type) > 1:
            all_near = text.intrinsic("vector.reduce.and", "i1", is_near)
        far, join = text.block("far"), text.block("endfar")
        before = text.current
        text.branch_if(all_near, join, far, likely=True)
        text.place(far)
        with text.scope():
            exact = text.call(self._far_function(name, x.value.type), x.value.type, [x.value])
            mixed = text.select(is_near, near.value, exact)
        text.branch(join)
        text.place(join)
        return Lanes(text, text.phi(x.value.type, (near.value, before), (mixed, far)))

    def _far_function(self, name: str, type: str) -> Value:
        """``<16 x float> (<16 x float>)`` and its like, added to the module once."""
        symbol = f"minitvm.{name}.{''.join(c if c.isalnum() else '_' for c in type)}"
        if self._text.module.claim(symbol):
            text = FunctionText(
                self._text.module, symbol, type, [f"{type} x"],
                linkage="internal", attributes="noinline cold ",
            )  # fmt: skip
            text.ret(self._libm(text, name, text.params[0]))
            text.finish()
        return Value("ptr", f"@{symbol}")


def _format(x: Lanes) -> _Format:
    return _SINGLE if x.is_single else _DOUBLE


def _width_of_exponent(form: _Format) -> int:
    return form.bias.bit_length() + 1


def _sign_bit(x: Lanes) -> Value:
    return x.integer(-(1 << (31 if x.is_single else 63)))


def _reduced(x: Lanes, log_base: int) -> tuple[Lanes, Lanes]:
    """n and r with ``x = n * log(2) / log_base + r`` and n whole."""
    form = _format(x)
    n = x.times_plus(log_base / _LN2, form.rounder) - form.rounder
    r = x
    for part in form.parts(_LN2, log_base, 2):
        if part:
            r = n.times_plus(-part, r)
    return n, r


def _power_minus_one(x: Lanes) -> Lanes:
    """``exp(x) - 1`` where 2**n is a normal number: as exact for a small x."""
    n, r = _reduced(x, _ONE)
    scale = _power_of_two(n)
    return scale.times_plus(_exp_minus_one(r), scale - 1.0)


def _exp_minus_one(r: Lanes) -> Lanes:
    return (r * r).times_plus(r.polynomial(_format(r).exp), r)


def _power_of_two(n: Lanes) -> Lanes:
    """2**n for a whole n, as bits of the exponent; n in the range of normal numbers."""
    form = _format(n)
    biased = (n + (form.rounder + form.bias)).bits
    return n.of_bits(n.text.binary("shl", biased, n.integer(form.digits)))


def _scaled(x: Lanes, n: Lanes) -> Lanes:
    """``x * 2**n`` by two factors, so that subnormal results are rounded once, and great ones
    become infinite."""
    rounder = _format(x).rounder
    half = n.times_plus(0.5, rounder) - rounder
    return x * _power_of_two(half) * _power_of_two(n - half)


def _split(x: Lanes) -> tuple[Lanes, Lanes]:
    """k and m with ``x = 2**k * m`` and m in [sqrt(1/2), sqrt(2)), for positive normal numbers."""
    text, form, bits = x.text, _format(x), x.bits
    half = x.integer(form.digits)
    root = {23: 0x3F3504F3, 52: 0x3FE6A09E667F3BCC}[form.digits]  # sqrt(1/2), rounded down
    moved = text.binary("add", bits, x.integer(form.one - root))
    biased = text.binary("lshr", moved, half)  # k, biased
    exponent = x.of_bits(text.binary("or", biased, x.number(2.0**form.digits).bits))
    k = exponent - (2.0**form.digits + form.bias)
    less = text.binary("sub", text.binary("shl", biased, half), x.integer(form.one))
    return k, x.of_bits(text.binary("sub", bits, less))


def _log_of_product(k: Lanes, f: Lanes, log_base: int) -> Lanes:
    """``(k * log(2) + log(1 + f)) / log_base``."""
    form = _format(f)
    small = (f * f) * f.times_plus(f.polynomial(form.log), -0.5)  # log(1 + f) - f
    one_high, one_low = form.parts(_ONE, log_base, 2)
    two_high, two_low = form.parts(_LN2, log_base, 2)
    low = k.times_plus(two_low, small) if log_base == _ONE else k * two_low
    if log_base != _ONE:
        low = small.times_plus(one_high, f.times_plus(one_low, low))
    return k.times_plus(two_high, f.times_plus(one_high, low))


def _at_ends(x: Lanes, log: Lanes) -> Lanes:
    """The logarithm of x, also at 0, infinity, NaN and negative numbers."""
    none = x.where(x < 0.0, x.number(float("nan")), x)
    end = x.where(x.compare("oeq", 0.0), x.number(float("-inf")), none)
    is_inside = x.text.binary("and", x > 0.0, x < float("inf"))
    return x.where(is_inside, log, end)
