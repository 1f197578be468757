"""How a DType is held: in a register, and in memory.

A ``bool`` is an ``i1`` in a register and a byte in memory. ``float16`` and ``bfloat16`` are a
``float`` in a register, always one that the narrow type can represent, and two bytes in memory: an
operation computes in binary32 and rounds once to the narrow type, which gives the correctly
rounded result for ``+ - * /`` and ``sqrt`` (24 >= 2 * 11 + 2) on every target alike.
"""

from __future__ import annotations

from minitvm.codegen.llvm_text import vector_type
from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError


def register_type(dtype: DType) -> str:
    """The LLVM type of a value in a register."""
    return vector_type(_register_element(dtype), dtype.lanes)


def memory_type(dtype: DType) -> str:
    """The LLVM type of a value in memory."""
    if dtype.is_bool:
        return vector_type("i8", dtype.lanes)
    if dtype.is_float and dtype.bits == 16:
        return vector_type("i16", dtype.lanes)
    return register_type(dtype)


def _register_element(dtype: DType) -> str:
    if dtype.is_bool:
        return "i1"
    if dtype.is_float:
        return "double" if dtype.bits == 64 else "float"
    if dtype.is_integral:
        return f"i{dtype.bits}"
    if dtype.is_handle:
        return "ptr"
    raise CompileError(
        f"dtype {dtype}: expected a type that kernels compute with: bool, int8 to "
        "int64, uint8 to uint64, float16, bfloat16, float32, float64"
    )
