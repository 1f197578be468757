"""The value of an element that nothing wrote, as the interpreter has it.

A vector may hold lanes that nothing wrote, such as those of rows behind the last one, as long as
nothing depends on them: operations give no value for such lanes either, and only a use is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, final

from minitvm.runtime.errors import InternalError


@final
class Unwritten:
    """What is read from the element named in `place`, which nothing wrote. Python's operators and
    conversions raise an error that names the element.

    >>> Unwritten("f: T[2]") < 3
    Traceback (most recent call last):
        ...
    minitvm.runtime.errors.InternalError: f: T[2]: expected an element written before, found none
    """

    __slots__ = ("_place",)

    def __init__(self, place: str) -> None:
        self._place = place

    def use(self, *_: object) -> NoReturn:
        """Raises the error."""
        raise InternalError(f"{self._place}: expected an element written before, found none")

    __bool__ = __int__ = __float__ = __index__ = __round__ = __trunc__ = __floor__ = __ceil__ = use
    __neg__ = __abs__ = __invert__ = use
    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = use
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = use
    __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = use
    __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = use
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = use
    __hash__ = object.__hash__


def result_of(function: Callable[..., Any], *values: Any) -> Any:
    """`function` of some values, or the value among them that nothing wrote.

    >>> unwritten = Unwritten("f: T[2]")
    >>> result_of(max, unwritten, 3) is unwritten
    True
    """
    try:
        return function(*values)
    except InternalError:
        for each in values:
            if isinstance(each, Unwritten):
                return each
        raise
