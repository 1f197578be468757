"""Floats in registers, one or a vector of them, with the operators of arithmetic.

Formulas are emitted as written: no operation is contracted or reordered, so a lane of a vector gets
the bits that a scalar gets.
"""

from __future__ import annotations

from typing import final

from minitvm.codegen.llvm_text import FunctionText, Value, element_type, floating, integer
from minitvm.runtime.dtype import FLOAT32
from minitvm.runtime.record import record
from minitvm.tir.scalars import round_float


@final
@record()
class Lanes:
    """A ``float`` or ``double``, or a vector of them, in the function `text`.

    The other operand of an operator may be a Python number, which is rounded to the type.
    """

    text: FunctionText
    value: Value

    @property
    def is_single(self) -> bool:
        return element_type(self.value.type) == "float"

    @property
    def bits(self) -> Value:
        """The bit patterns, as integers."""
        return self.text.convert("bitcast", self.value, "i32" if self.is_single else "i64")

    def of_bits(self, bits: Value) -> Lanes:
        """The floats of bit patterns."""
        element = "float" if self.is_single else "double"
        return Lanes(self.text, self.text.convert("bitcast", bits, element))

    def number(self, number: float) -> Lanes:
        """`number` in every lane."""
        rounded = round_float(FLOAT32, number) if self.is_single else number
        return Lanes(self.text, floating(self.value.type, rounded))

    def integer(self, number: int) -> Value:
        """`number` in every lane, as an integer of as many bits."""
        return integer(self.bits.type, number)

    def __neg__(self) -> Lanes:
        return Lanes(self.text, self.text.fneg(self.value))

    def __abs__(self) -> Lanes:
        return Lanes(self.text, self.text.intrinsic("fabs", self.value.type, self.value))

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

    def compare(self, predicate: str, other: Lanes | float) -> Value:
        """The mask of the lanes for which LLVM's comparison `predicate` holds: "oeq", "ult"..."""
        return self.text.fcmp(predicate, self.value, self._operand(other))

    def times_plus(self, factor: Lanes | float, addend: Lanes | float) -> Lanes:
        """``self * factor + addend`` with one rounding."""
        operands = (self.value, self._operand(factor), self._operand(addend))
        return Lanes(self.text, self.text.intrinsic("fma", self.value.type, *operands))

    def polynomial(self, coefficients: tuple[float, ...]) -> Lanes:
        """``c[0] + c[1] * x + c[2] * x**2 + ...``, by Horner's rule."""
        *lower, highest = coefficients
        made = self.number(highest)
        for coefficient in reversed(lower):
            made = made.times_plus(self, coefficient)
        return made

    def is_whole(self) -> Value:
        """The mask of the lanes that are integers or infinite."""
        whole = self.text.intrinsic("trunc", self.value.type, self.value)
        return self.text.fcmp("oeq", whole, self.value)

    def as_double(self) -> Lanes:
        """A ``float`` as a ``double``, exactly."""
        return Lanes(self.text, self.text.convert("fpext", self.value, "double"))

    def as_float(self) -> Lanes:
        """A ``double`` as a ``float``, rounded."""
        return Lanes(self.text, self.text.convert("fptrunc", self.value, "float"))

    def clamped(self, low: float, high: float) -> Lanes:
        """NaN stays NaN."""
        above = self.where(self < low, self.number(low), self)
        return self.where(above > high, self.number(high), above)

    def where(self, condition: Value, yes: Lanes, no: Lanes) -> Lanes:
        """The lanes of `yes` where `condition` holds, of `no` elsewhere."""
        return Lanes(self.text, self.text.select(condition, yes.value, no.value))

    def with_sign_of(self, other: Lanes) -> Lanes:
        operands = (self.value, other.value)
        return Lanes(self.text, self.text.intrinsic("copysign", self.value.type, *operands))

    def _binary(self, opcode: str, other: Lanes | float) -> Lanes:
        return Lanes(self.text, self.text.binary(opcode, self.value, self._operand(other)))

    def _operand(self, other: Lanes | float) -> Value:
        return other.value if isinstance(other, Lanes) else self.number(other).value
