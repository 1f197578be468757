"""Instructions of CPUs, as tables state them: found by what a target has, or by name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record


@record()
class Instruction:
    """What the tables of instructions have in common.

    Attributes
    ----------
    name
        As the tensor intrinsic takes it.
    features
        What a target must have.
    llvm
        LLVM's intrinsic.
    a, b, sum
        The dtypes of two factors, and of the sums of their products.
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
    """The best instruction for some dtypes among those that a target has, or None: of several in
    a table, the first.

    >>> from minitvm.te.intrinsics.dot_product import DOT_PRODUCTS
    >>> find_instruction(DOT_PRODUCTS, "uint8", "int8", "int32", {"avx2", "avx512vnni"}).name
    'vpdpbusd_512'
    """
    for each in table:
        if (each.a, each.b, each.sum) == (a, b, sum) and each.features <= set(features):
            return each
    return None


def instruction_named(table: Sequence[_Instruction], name: str, taker: str) -> _Instruction:
    """The instruction of a name, for the function `taker`.

    Raises
    ------
    CompileError
        When there is none.
    """
    for each in table:
        if isinstance(name, str) and each.name == name:
            return each
    known = ", ".join(each.name for each in table)
    raise CompileError(f"{taker}: expected an instruction among {known}, got {name!r}")
