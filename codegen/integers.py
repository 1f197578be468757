"""Integer arithmetic with every case defined: wrapping, division by zero, shifts out of range.

The meaning is that of :mod:`minitvm.tir.scalars`. A divisor or a shift that is a constant costs no
check.
"""

from __future__ import annotations

from collections.abc import Callable

from minitvm.codegen.llvm_text import FunctionText, Value, element_type, integer, lanes_of, poison
from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import InternalError
from minitvm.tir.intrinsics import INTRINSICS, Domain


class Integers:
    """Emits integer operations into one function."""

    def __init__(self, text: FunctionText) -> None:
        self._text = text
        self.own: dict[str, Callable[[DType, list[Value]], Value]] = {
            "bitwise_and": lambda dtype, args: text.binary("and", args[0], args[1]),
            "bitwise_or": lambda dtype, args: text.binary("or", args[0], args[1]),
            "bitwise_xor": lambda dtype, args: text.binary("xor", args[0], args[1]),
            "bitwise_not": lambda dtype, args: text.binary(
                "xor", args[0], integer(args[0].type, -1)
            ),
            "shift_left": self._shift_left,
            "shift_right": self._shift_right,
            "popcount": lambda dtype, args: text.intrinsic("ctpop", args[0].type, args[0]),
            "clz": self._clz,
            "fabs": self._abs,
            "power": self._power,
        }

    def binary(self, name: str, dtype: DType, a: Value, b: Value) -> Value:
        """The node `name` (``Add``, ``FloorDiv``...) on two integers of type `dtype`."""
        if name in _RING:
            return self._text.binary(_RING[name], a, b)
        if name in ("Min", "Max"):
            return self._extremum(name, dtype, a, b)
        quotient, remainder = self._divide(dtype, a, b)
        if name == "Div" or (name == "FloorDiv" and not dtype.is_int):
            return quotient
        if name == "Mod" or (name == "FloorMod" and not dtype.is_int):
            return remainder
        return self._floor(name, b, quotient, remainder)

    def intrinsic(self, name: str, dtype: DType, args: list[Value]) -> Value:
        """An intrinsic of :data:`minitvm.tir.intrinsics.INTRINSICS` on integers."""
        known = INTRINSICS[name]
        if known.domain is Domain.ROUNDED:
            return args[0]
        if known.domain is Domain.TESTED:
            return self._constant(args[0], bool(known.meaning(dtype, 0)))
        if name not in self.own:
            raise InternalError(f"intrinsic {name!r} of {dtype} has no lowering")
        return self.own[name](dtype, args)

    def _constant(self, x: Value, value: bool) -> Value:
        lanes = lanes_of(x.type)
        return integer("i1" if lanes == 1 else f"<{lanes} x i1>", value)

    def _extremum(self, name: str, dtype: DType, a: Value, b: Value) -> Value:
        if dtype.is_bool:
            return self._text.binary("and" if name == "Min" else "or", a, b)
        prefix = "s" if dtype.is_int else "u"
        return self._text.intrinsic(prefix + name.lower(), a.type, a, b)

    def _divide(self, dtype: DType, a: Value, b: Value) -> tuple[Value, Value]:
        """Quotient and remainder, rounded towards zero; both 0 for a division by zero."""
        text = self._text
        prefix = "s" if dtype.is_int else "u"
        divisor = _constant_of(b)
        if divisor is not None and _is_multiplied(dtype, a, divisor):
            quotient = self._quotient_by(dtype, a, divisor)
            return quotient, text.binary("sub", a, text.binary("mul", quotient, b))
        if divisor not in (None, 0, -1):
            return text.binary(prefix + "div", a, b), text.binary(prefix + "rem", a, b)
        zero, one = integer(b.type, 0), integer(b.type, 1)
        by_zero = text.icmp("eq", b, zero)
        if not dtype.is_int:
            safe = text.select(by_zero, one, b)
            quotient, remainder = self._divide_safely(dtype, a, safe)
            return text.select(by_zero, zero, quotient), remainder if divisor != 0 else zero
        # Dividing the least integer by -1 overflows, and traps on x86: negation wraps instead.
        by_minus_one = text.icmp("eq", b, integer(b.type, -1))
        safe = text.select(text.binary("or", by_zero, by_minus_one), one, b)
        quotient, remainder = self._divide_safely(dtype, a, safe)
        quotient = text.select(by_minus_one, text.binary("sub", zero, a), quotient)
        return text.select(by_zero, zero, quotient), remainder

    def _quotient_by(self, dtype: DType, a: Value, divisor: int) -> Value:
        """64-bit integers in the lanes of a vector, divided by a number that is no power of two,
        rounded towards zero: the upper half of a product (T. Granlund, P. Montgomery: Division by
        Invariant Integers using Multiplication, 1994, fig. 4.1). LLVM would divide lane by lane."""
        text, type = self._text, a.type
        shift = divisor.bit_length()
        factor = ((1 << 64) * ((1 << shift) - divisor)) // divisor + 1
        one = integer(type, 1)
        size = text.intrinsic("abs", type, a, Value("i1", "false")) if dtype.is_int else a
        upper = self._upper_product(size, factor)
        rest = text.binary("lshr", text.binary("sub", size, upper), one)
        total = text.binary("add", rest, upper)
        quotient = text.binary("lshr", total, integer(type, shift - 1))
        if not dtype.is_int:
            return quotient
        is_negative = text.icmp("slt", a, integer(type, 0))
        return text.select(is_negative, text.binary("sub", integer(type, 0), quotient), quotient)

    def _upper_product(self, a: Value, factor: int) -> Value:
        """The upper 64 bits of the product of unsigned 64-bit integers, from products of halves."""
        text, type = self._text, a.type
        mask, bits = integer(type, (1 << 32) - 1), integer(type, 32)
        low, high = text.binary("and", a, mask), text.binary("lshr", a, bits)
        times_low, times_high = integer(type, factor & ((1 << 32) - 1)), integer(type, factor >> 32)
        below = text.binary("lshr", text.binary("mul", low, times_low), bits)
        middle = text.binary("add", text.binary("mul", high, times_low), below)
        carried = text.binary("and", middle, mask)
        other = text.binary("add", text.binary("mul", low, times_high), carried)
        upper = text.binary("add", text.binary("mul", high, times_high),
                            text.binary("lshr", middle, bits))  # fmt: skip
        return text.binary("add", upper, text.binary("lshr", other, bits))

    def _divide_safely(self, dtype: DType, a: Value, b: Value) -> tuple[Value, Value]:
        """Quotient and remainder where they exist. No machine divides vectors of integers. Floats
        of more bits do: a quotient that isn't whole is at least 1 / b away from a whole number, and
        the error of the division is less, so that both have the same whole part."""
        text, sign = self._text, "s" if dtype.is_int else "u"
        if lanes_of(a.type) == 1 or dtype.bits > 32:
            return text.binary(sign + "div", a, b), text.binary(sign + "rem", a, b)
        wide = "float" if dtype.bits <= 16 else "double"
        x, y = (text.convert(sign + "itofp", each, wide) for each in (a, b))
        whole = text.convert(f"fpto{sign}i", text.binary("fdiv", x, y), f"i{dtype.bits}")
        return whole, text.binary("sub", a, text.binary("mul", whole, b))

    def _floor(self, name: str, b: Value, quotient: Value, remainder: Value) -> Value:
        """The quotient or remainder rounded down, from the pair rounded towards zero."""
        text = self._text
        zero = integer(b.type, 0)
        nonzero = text.icmp("ne", remainder, zero)
        opposite = text.icmp("slt", text.binary("xor", remainder, b), zero)
        adjust = text.binary("and", nonzero, opposite)
        if name == "FloorMod":
            return text.select(adjust, text.binary("add", remainder, b), remainder)
        return text.binary("add", quotient, text.convert("sext", adjust, element_type(b.type)))

    def _shift_left(self, dtype: DType, args: list[Value]) -> Value:
        x, s = args
        shifted = self._text.binary("shl", x, s)
        return self._in_range(dtype, s, shifted, integer(x.type, 0))

    def _shift_right(self, dtype: DType, args: list[Value]) -> Value:
        x, s = args
        if not dtype.is_int:
            return self._in_range(dtype, s, self._text.binary("lshr", x, s), integer(x.type, 0))
        beyond = self._text.binary("ashr", x, integer(x.type, dtype.bits - 1))
        return self._in_range(dtype, s, self._text.binary("ashr", x, s), beyond)

    def _in_range(self, dtype: DType, shift: Value, inside: Value, beyond: Value) -> Value:
        known = _constant_of(shift)
        if known is not None and 0 <= known < dtype.bits:
            return inside
        fits = self._text.icmp("ult", shift, integer(shift.type, dtype.bits))
        return self._text.select(fits, inside, beyond)

    def _clz(self, dtype: DType, args: list[Value]) -> Value:
        x = args[0]
        count = self._text.intrinsic("ctlz", x.type, x, Value("i1", "false"))
        return self._text.convert("zext" if dtype.bits < 32 else "trunc", count, "i32")

    def _abs(self, dtype: DType, args: list[Value]) -> Value:
        if not dtype.is_int:
            return args[0]
        return self._text.intrinsic("abs", args[0].type, args[0], Value("i1", "false"))

    def _power(self, dtype: DType, args: list[Value]) -> Value:
        """A power by repeated squaring; in a function of its own, unless the exponent is known."""
        exponent = _constant_of(args[1])
        if exponent is not None and exponent >= 0:
            return self._power_of_number(args[0], exponent)
        function = _power_function(self._text, dtype)
        element = element_type(args[0].type)
        result = poison(args[0].type)
        if lanes_of(result.type) == 1:
            return self._text.call(function, element, args)
        for lane in range(lanes_of(result.type)):
            lanes = [self._text.extract(a, lane) for a in args]
            result = self._text.insert(result, self._text.call(function, element, lanes), lane)
        return result

    def _power_of_number(self, x: Value, exponent: int) -> Value:
        made, square = integer(x.type, 1), x
        while exponent:
            if exponent % 2:
                made = self._text.binary("mul", made, square)
            exponent //= 2
            square = self._text.binary("mul", square, square) if exponent else square
        return made


_LANES_OF_HALVES = 4  # from which on 64-bit products of halves take less time than single ones
_RING = {"Add": "add", "Sub": "sub", "Mul": "mul"}


def _is_multiplied(dtype: DType, a: Value, divisor: int) -> bool:
    """Whether a division is a product: of vectors of 64-bit integers by no power of two."""
    is_wide = dtype.bits == 64 and lanes_of(a.type) >= _LANES_OF_HALVES
    return is_wide and divisor > 1 and divisor & (divisor - 1) != 0


def _constant_of(value: Value) -> int | None:
    """The value of an integer constant, or of a splat of one; None for anything else."""
    digits = value.text.removesuffix(")").rsplit(" ", 1)[-1]
    return int(digits) if digits.lstrip("-").isdigit() else None


def _power_function(caller: FunctionText, dtype: DType) -> Value:
    """``i32 (i32 base, i32 exponent)`` and its like, added to the module once."""
    type = f"i{dtype.bits}"
    name = f"minitvm.power.{dtype}"
    if not caller.module.claim(name):
        return Value("ptr", f"@{name}")
    text = FunctionText(
        caller.module, name, type, [f"{type} base", f"{type} exponent"], linkage="internal"
    )
    base, exponent = text.params
    zero, one = integer(type, 0), integer(type, 1)
    loop, body, done, negative = (text.block(b) for b in ("loop", "body", "done", "negative"))
    entry = text.current
    if dtype.is_int:
        text.branch_if(text.icmp("slt", exponent, zero), negative, loop)
    else:
        text.branch(loop)
    text.place(loop)
    result, next_result = text.phi_open(one, entry, body)
    square, next_square = text.phi_open(base, entry, body)
    left, next_left = text.phi_open(exponent, entry, body)
    text.branch_if(text.icmp("eq", left, zero), done, body)
    text.place(body)
    is_odd = text.icmp("ne", text.binary("and", left, one), zero)
    product = text.binary("mul", result, square)
    text.phi_close(next_result, text.select(is_odd, product, result))
    text.phi_close(next_square, text.binary("mul", square, square))
    text.phi_close(next_left, text.binary("lshr", left, one))
    text.branch(loop)
    text.place(done)
    text.ret(result)
    if dtype.is_int:
        text.place(negative)
        is_one = text.icmp("eq", base, one)
        is_even = text.icmp("eq", text.binary("and", exponent, one), zero)
        minus_one = integer(type, -1)
        signed = text.select(is_even, one, minus_one)
        of_minus_one = text.select(text.icmp("eq", base, minus_one), signed, zero)
        text.ret(text.select(is_one, one, of_minus_one))
    text.finish()
    return Value("ptr", f"@{name}")
