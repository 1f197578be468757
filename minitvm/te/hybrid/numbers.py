"""The dtypes of numbers: Python's adapt to those of the other operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.te.hybrid.values import is_float, shown
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr


@final
class Numbers:
    """Remembers the expressions that consist of Python's numbers alone, and so adapt to the dtype
    of other operands. A number is *firm* if it has a dtype of its own.

    >>> from minitvm.tir.expr import Var
    >>> Numbers().made(e.add, Var("x", "float64"), 0.1)
    x + float64(0.1)
    """

    def __init__(self) -> None:
        self._adapting: dict[PrimExpr, None] = {}

    def let_adapt(self, value: PrimExpr) -> None:
        """Notes that `value` consists of Python's numbers alone."""
        self._adapting[value] = None

    def is_firm(self, value: Any) -> bool:
        """Whether a value has a dtype of its own, which Python's numbers have not."""
        return isinstance(value, PrimExpr) and value not in self._adapting

    def adapted(self, value: Any, dtype: DType) -> Any:
        """A number as the operand beside a value of `dtype`; one that isn't firm adapts."""
        if isinstance(value, bool) or dtype.is_bool:
            return e.as_expr(value)
        if is_float(value) and not dtype.is_float:
            return e.as_expr(value)
        return e.cast(dtype, value) if isinstance(value, PrimExpr) else e.constant(value, dtype)

    def operands(self, values: Sequence[Any], lenient: bool = False) -> list[Any]:
        """Numbers as the operands of one operation; when `lenient`, numbers that the others' dtype
        can't hold keep their own."""
        firm = [value.dtype for value in values if self.is_firm(value)]
        if not firm:
            return [e.as_expr(value) for value in values]
        made = []
        for value in values:
            fits = not isinstance(value, int) or not firm[0].is_integral or firm[0].is_bool
            fits = fits or firm[0].min() <= value <= firm[0].max()
            keep = self.is_firm(value) or (lenient and not fits)
            made.append(e.as_expr(value) if keep else self.adapted(value, firm[0]))
        return made

    def made(self, function: Callable[..., Any], *values: Any, lenient: bool = False) -> Any:
        """`function` of numbers; at least one is an expression."""
        for value in values:
            if not isinstance(value, (bool, int, float, PrimExpr)):
                raise TypeError(f"expected a number, got {shown(value)}")
        made = function(*self.operands(values, lenient))
        if not any(map(self.is_firm, values)):
            self.let_adapt(made)
        return made

    def converted(self, name: str, value: Any, dtype: DType) -> PrimExpr:
        """A value as it is stored: converted if the conversion only rounds."""
        if not isinstance(value, (bool, int, float, PrimExpr)):
            raise CompileError(f"expected a number to store to {name}, got {shown(value)}")
        made = e.as_expr(value if self.is_firm(value) else self.adapted(value, dtype))
        loses_sign = made.dtype.is_int and dtype.is_uint
        if loses_sign or (made.dtype != dtype and e.promoted(made.dtype, dtype) != dtype):
            raise CompileError(
                f"expected a value of {dtype} for {name}, got one of {made.dtype}: cast it, as in "
                f"{dtype}(...)" + ("" if not isinstance(value, float) else ", or write an integer")
            )
        return e.cast(dtype, made)
