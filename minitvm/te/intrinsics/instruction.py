"""Instructions of CPUs in tables: found by the features of a target, or by name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record


@record()
class Instruction:
    """An entry in a table of instructions.

    Attributes
    ----------
    name
        The name that the tensor intrinsic takes.
    features
        The features that a target must have.
    llvm
        LLVM's intrinsic.
    a, b, sum
        The dtypes of the two factors, and of the sums of their products.
    """

    name: str
    features: frozenset[str]
    llvm: str
    a: str
    b: str
    sum: str


_Instruction = TypeVar("_Instruction", bound=Instruction)


def find_instruction(
    table: Sequence[_Instruction], a: str, b: str, sum: str, features: Collection[str]
) -> _Instruction | None:
    """The first instruction in a table for some dtypes whose features a target has, or None.

    >>> from minitvm.te.intrinsics.dot_product import DOT_PRODUCTS
    >>> find_instruction(DOT_PRODUCTS, "uint8", "int8", "int32", {"avx2", "avx512vnni"}).name
    'vpdpbusd_512'
    """
    for each in table:
        if (each.a, each.b, each.sum) == (a, b, sum) and each.features <= set(features):
            return each
    return None


def instruction_named(table: Sequence[_Instruction], name: str, taker: str) -> _Instruction:
    """The instruction called `name`. Errors name the function `taker`.

    Raises
    ------
    CompileError
        When the table has no such instruction.
    """
    for each in table:
        if isinstance(name, str) and each.name == name:
            return each
    known = ", ".join(each.name for each in table)
    raise CompileError(f"{taker}: expected an instruction among {known}, got {name!r}")
