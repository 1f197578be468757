"""Arithmetic on floats in registers: operators on a float or a vector of floats.

Formulas are emitted as written: no operation is contracted or reordered, so a lane of a vector gets
the bits that a scalar gets.
"""

from __future__ import annotations

from typing import final

from minitvm.codegen.llvm_text import (
    FunctionText,
    Value,
    element_type,
    floating,
    i32,
    integer,
    lanes_of,
    poison,
)
from minitvm.runtime.dtype import FLOAT32
from minitvm.runtime.record import record
from minitvm.tir.scalars import round_float

_LONG = 8  # coefficients of a polynomial
_EXACT = 2  # the first terms, whose rounding errors count

Pair = tuple["Lanes", "Lanes"]
"""A number as the unevaluated sum of two: the nearest float, and the rest, rounded."""


@final
@record()
class Lanes:
    """A ``float`` or ``double``, or a vector of them, in the function `text`.

    The other operand of an operator may be a Python number, which is rounded to the type. `fuses`:
    the target has an instruction that multiplies and adds with one rounding. `takes_apart`: it has
    instructions that take vectors of floats apart into powers of two and significands.
    """

    text: FunctionText
    value: Value
    fuses: bool = True
    takes_apart: bool = False

    @property
    def is_single(self) -> bool:
        return element_type(self.value.type) == "float"

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        return lanes_of(self.value.type)

    @property
    def bits(self) -> Value:
        """The bit patterns, as integers."""
        return self.text.convert("bitcast", self.value, "i32" if self.is_single else "i64")

    def of(self, value: Value) -> Lanes:
        """Another value, in the same function."""
        return Lanes(self.text, value, self.fuses, self.takes_apart)

    def of_bits(self, bits: Value) -> Lanes:
        """The floats of bit patterns."""
        element = "double" if element_type(bits.type) == "i64" else "float"
        return self.of(self.text.convert("bitcast", bits, element))

    def number(self, number: float) -> Lanes:
        """`number` in every lane."""
        rounded = round_float(FLOAT32, number) if self.is_single else number
        return self.of(floating(self.value.type, rounded))

    def integer(self, number: int) -> Value:
        """`number` in every lane, as an integer of as many bits."""
        return integer(self.bits.type, number)

    def __neg__(self) -> Lanes:
        return self.of(self.text.fneg(self.value))

    def __abs__(self) -> Lanes:
        return self.of(self.text.intrinsic("fabs", self.value.type, self.value))

    def __add__(self, other: Lanes | float) -> Lanes:
        return self._binary("fadd", other)

    def __sub__(self, other: Lanes | float) -> Lanes:
        return self._binary("fsub", other)

    def __mul__(self, other: Lanes | float) -> Lanes:
        return self._binary("fmul", other)

    def __truediv__(self, other: Lanes | float) -> Lanes:
        return self._binary("fdiv", other)

    def __lt__(self, other: Lanes | float) -> Value:
        return self.compare("olt", other)

    def __gt__(self, other: Lanes | float) -> Value:
        return self.compare("ogt", other)

    def equals(self, other: Lanes | float) -> Value:
        """The mask of the lanes that are equal; NaN equals nothing."""
        return self.compare("oeq", other)

    def compare(self, predicate: str, other: Lanes | float) -> Value:
        """The mask of the lanes for which LLVM's comparison `predicate` holds: "oeq", "ult"..."""
        return self.text.fcmp(predicate, self.value, self._operand(other))

    def sqrt(self) -> Lanes:
        """The square root, correctly rounded."""
        return self.of(self.text.intrinsic("sqrt", self.value.type, self.value))

    def times_plus(self, factor: Lanes | float, addend: Lanes | float) -> Lanes:
        """``self * factor + addend`` with one rounding."""
        if not self.fuses:
            return self._fused_by_hand(self._lanes(factor), self._lanes(addend))
        operands = (self.value, self._operand(factor), self._operand(addend))
        return self.of(self.text.intrinsic("fma", self.value.type, *operands))

    def polynomial(self, coefficients: tuple[float, ...]) -> Lanes:
        """``c[0] + c[1] * x + c[2] * x**2 + ...``: short ones by Horner's rule. In long ones, only
        the first terms are computed by it; neighbours of the other terms are joined in pairs again
        and again (Estrin's scheme), which shortens the chain of dependent steps."""
        first, rest = list(coefficients), []
        if len(first) > _LONG:
            first, rest = first[:_EXACT], first[_EXACT:]
        terms, power = [self.number(each) for each in rest or first[-1:]], self
        while len(terms) > 1:
            pairs = zip(terms[::2], terms[1::2], strict=False)
            odd = terms[-1:] if len(terms) % 2 else []
            terms = [high._times_plus_about(power, low) for low, high in pairs] + odd
            power = power * power
        (made,) = terms
        for coefficient in reversed(first if rest else first[:-1]):
            made = made._times_plus_about(self, self.number(coefficient))
        return made

    def _times_plus_about(self, factor: Lanes, addend: Lanes) -> Lanes:
        """``self * factor + addend``: with one rounding if an instruction fuses, otherwise with
        two."""
        return self.times_plus(factor, addend) if self.fuses else self * factor + addend

    def as_double(self) -> Lanes:
        """A ``float`` as a ``double``, exactly."""
        return self.of(self.text.convert("fpext", self.value, "double"))

    def as_float(self) -> Lanes:
        """A ``double`` as a ``float``, rounded."""
        return self.of(self.text.convert("fptrunc", self.value, "float"))

    def clamped(self, low: float, high: float) -> Lanes:
        """`self` limited to ``[low, high]``; NaN stays NaN."""
        return self.where(self < low, self.number(low), self).at_most(high)

    def at_most(self, high: float) -> Lanes:
        """`self` limited to ``high``; NaN stays NaN."""
        return self.where(self > high, self.number(high), self)

    def where(self, condition: Value, yes: Lanes | float, no: Lanes | float) -> Lanes:
        """The lanes of `yes` where `condition` holds, of `no` elsewhere."""
        return self.of(self.text.select(condition, self._operand(yes), self._operand(no)))

    def with_sign_of(self, other: Lanes) -> Lanes:
        operands = (self.value, other.value)
        return self.of(self.text.intrinsic("copysign", self.value.type, *operands))

    def is_every_lane(self, mask: Value) -> Value:
        """Whether a mask holds in every lane."""
        if self.lanes == 1:
            return mask
        return self.text.intrinsic("vector.reduce.and", "i1", mask)

    @property
    def fills_registers(self) -> bool:
        """Whether the lanes fill registers of 512 bits, of a target with AVX-512."""
        size = 16 if self.is_single else 8
        return self.takes_apart and self.lanes >= size and not self.lanes & (self.lanes - 1)

    def by_registers(self, name: str, *passed: Lanes | int) -> Lanes | None:
        """AVX-512's instruction `name` on registers of 512 bits, one after the other; None where
        the target lacks it, or the lanes don't fill registers."""
        if not self.fills_registers:
            return None
        size = 16 if self.is_single else 8
        text, element = self.text, element_type(self.value.type)
        type = f"<{size} x {element}>"
        kind = "ps" if self.is_single else "pd"
        pieces = []
        for begin in range(0, self.lanes, size):
            args = [
                i32(each)
                if isinstance(each, int)
                else text.shuffle(each.value, each.value, range(begin, begin + size))
                for each in passed
            ]
            args += [poison(type), integer(f"i{size}", -1), i32(4)]  # no mask, MXCSR's rounding
            pieces.append(text.intrinsic(f"x86.avx512.mask.{name}.{kind}.512", type, *args))
        while len(pieces) > 1:
            pieces = [
                text.shuffle(a, b, range(2 * lanes_of(a.type)))
                for a, b in zip(pieces[::2], pieces[1::2], strict=True)
            ]
        return self.of(pieces[0])

    # -- sums and products of two floats, exactly (Knuth, The Art of Computer Programming 2, 4.2.2;
    # -- Dekker, A floating-point technique for extending the available precision, 1971) --

    def plus_exactly(self, other: Lanes | float) -> Pair:
        """The sum."""
        total = self + other
        virtual = total - self
        return total, (self - (total - virtual)) + (self._lanes(other) - virtual)

    def plus_smaller(self, other: Lanes) -> Pair:
        """The sum and its rounding error, if the magnitude of `other` isn't greater."""
        total = self + other
        return total, other - (total - self)

    def times_exactly(self, other: Lanes) -> Pair:
        """The product and its rounding error, if neither of them under- or overflows."""
        product = self * other
        if self.fuses:
            return product, self.times_plus(other, -product)
        if self.is_single:
            exact = self.as_double() * other.as_double()
            return product, (exact - product.as_double()).as_float()
        (a, b), (c, d) = self._halves(), other._halves()
        return product, (((a * c - product) + a * d) + b * c) + b * d

    def _halves(self) -> Pair:
        """Two numbers with half as many digits whose sum is `self`, a ``double``."""
        rounded = self.text.binary("add", self.bits, self.integer(1 << 26))
        high = self.of_bits(self.text.binary("and", rounded, self.integer(-1 << 27)))
        return high, self - high

    def _fused_by_hand(self, factor: Lanes, addend: Lanes) -> Lanes:
        """``self * factor + addend``: exact if the result is a float of the type, and otherwise
        nearly always with one rounding."""
        if self.is_single:
            product = self.as_double() * factor.as_double()
            return (product + addend.as_double()).as_float()
        is_huge = abs(addend) > 2.0**900  # the halves of such numbers may overflow
        down, up = (self.where(is_huge, scale, 1.0) for scale in (2.0**-200, 2.0**200))
        product, rest = self.times_exactly(factor * down)
        total, error = product.plus_exactly(addend * down)
        fused = total + (error + rest)
        return self.where(fused.equals(fused), fused, total) * up  # NaN where `rest` overflows

    def _binary(self, opcode: str, other: Lanes | float) -> Lanes:
        return self.of(self.text.binary(opcode, self.value, self._operand(other)))

    def _lanes(self, other: Lanes | float) -> Lanes:
        return other if isinstance(other, Lanes) else self.number(other)

    def _operand(self, other: Lanes | float) -> Value:
        return self._lanes(other).value


def quotient_of_pairs(dividend: Pair, divisor: Pair) -> Pair:
    """The quotient of two pairs to nearly twice the digits; its first number need not be the
    nearest float."""
    inverse = divisor[0].number(1.0) / divisor[0]
    quotient = dividend[0] * inverse
    error = (-quotient).times_plus(divisor[0], dividend[0])
    error = (-quotient).times_plus(divisor[1], error + dividend[1])
    return quotient, error * inverse


def root_of_pair(square: Pair) -> Pair:
    """The square root of a number to nearly twice the digits."""
    root = square[0].sqrt()
    error = (-root).times_plus(root, square[0]) + square[1]
    return root, error / root.where(root.equals(0.0), 1.0, root + root)
