"""Names of operators, and of functions in a module, with their classic forms.

Both are strings, so that code here compares and looks up plain names.
"""

from __future__ import annotations

from typing import Any, final

from minitvm.runtime.errors import CompileError, similar
from minitvm.runtime.record import record
from minitvm.tir.intrinsics import CALLS, INTRINSICS

# The classic names of operators that have another name here.
_RENAMED = {"pow": "power", "tvm_call_packed": "call_packed"} | {
    each.function: each.name for each in INTRINSICS.values() if each.function
}
_CLASSIC = {"power": "pow", "call_packed": "tvm_call_packed"}


def plain_name(op_name: str) -> str:
    """The name of an operator here, from its classic name.

    >>> plain_name("tir.pow"), plain_name("exp")
    ('power', 'exp')
    """
    name = op_name.removeprefix("tir.")
    return _RENAMED.get(name, name)


@final
@record()
class Registered:
    """The value of an attribute of an operator, and its level. The value of the highest level
    counts."""

    value: Any
    level: int


ATTRIBUTES: dict[tuple[str, str], Registered] = {}  # by operator and attribute


@final
class Op(str):
    """The operator of a call, under its name here: ``"exp"``. Its classic name is `name`.

    >>> Op("exp") == "exp", Op("exp").name
    (True, 'tir.exp')
    """

    __slots__ = ()

    @staticmethod
    def get(op_name: str) -> Op:
        """The operator of a name, ``"exp"`` or as in classic TVM ``"tir.exp"``.

        Raises
        ------
        CompileError
            When there is none.
        """
        name = plain_name(op_name) if isinstance(op_name, str) else ""
        if name not in INTRINSICS and name not in CALLS:
            close = similar(name, [*INTRINSICS, *CALLS])
            hint = f": did you mean {' or '.join(close)}?" if close else ""
            raise CompileError(f"Op.get: expected the name of an operator, got {op_name!r}{hint}")
        return Op(name)

    @property
    def name(self) -> str:
        """The classic name: with ``tir.`` before it."""
        return f"tir.{_CLASSIC.get(self, self)}"

    def get_attr(self, attr_name: str) -> Any:
        """The registered value of an attribute; None where there is none."""
        known = ATTRIBUTES.get((str(self), attr_name))
        return None if known is None else known.value

    def has_attr(self, attr_name: str) -> bool:
        """Whether an attribute is registered."""
        return (str(self), attr_name) in ATTRIBUTES

    def same_as(self, other: object) -> bool:
        """Whether `other` is the same operator."""
        return isinstance(other, Op) and self == other


@final
class GlobalVar(str):
    """The name of a function in a module; classic programs read it as `name_hint`.

    >>> GlobalVar("main").name_hint
    'main'
    """

    __slots__ = ()

    @property
    def name_hint(self) -> str:
        """The name."""
        return str(self)
