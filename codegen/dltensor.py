"""The layout of ``DLTensor`` (DLPack 1.3, dlpack.h), as compiled code sees it."""

from __future__ import annotations

from dataclasses import field
from typing import final

from minitvm.codegen.llvm_text import NULL, FunctionText, Value, i64
from minitvm.runtime.record import record
from minitvm.tir.expr import Buffer

SIZE = 48
# The offset of each field, in bytes, and its type.
_FIELDS = {
    "data": (0, "ptr"),
    "device_type": (8, "i32"),
    "device_id": (12, "i32"),
    "ndim": (16, "i32"),
    "dtype": (20, "i32"),
    "ndim_and_dtype": (16, "i64"),  # both in one load: x86-64 and AArch64 are little-endian
    "shape": (24, "ptr"),
    "strides": (32, "ptr"),
    "byte_offset": (40, "i64"),
}


def load_field(text: FunctionText, tensor: Value, field: str) -> Value:
    """A field of `tensor`."""
    offset, type = _FIELDS[field]
    return text.load(type, text.element_pointer("i8", tensor, i64(offset)), _align(type))


def store_field(text: FunctionText, tensor: Value, field: str, value: Value) -> None:
    """Sets a field of `tensor`."""
    offset, type = _FIELDS[field]
    text.store(value, text.element_pointer("i8", tensor, i64(offset)), _align(type))


def _align(type: str) -> int:
    return 4 if type == "i32" else 8


@final
@record(frozen=False)
class Tensor:
    """The fields of a tensor argument that a function has read. Its bytes lie in ``[low, end)``.
    Element 0 is at `first`; with a negative stride, other elements lie before it. Strides are
    counted in elements. The extents of the dimensions in `bound` were bound to variables."""

    position: int
    name: str
    buffer: Buffer
    is_output: bool
    handle: Value
    bound: set[int] = field(default_factory=set)
    extents: list[Value] = field(default_factory=list)
    strides: list[Value] = field(default_factory=list)
    size: Value = NULL
    first: Value = NULL
    low: Value = NULL
    end: Value = NULL

    @property
    def is_compact(self) -> bool:
        """Whether the elements fill the range of memory."""
        return not self.buffer.strides
