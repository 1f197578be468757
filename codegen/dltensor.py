"""The layout of ``DLTensor`` (DLPack 1.3, dlpack.h), as compiled code sees it."""

from __future__ import annotations

from minitvm.codegen.llvm_text import FunctionText, Value, integer

SIZE = 48
# Byte offsets of the fields.
DATA, DEVICE_TYPE, DEVICE_ID, NDIM, DTYPE, SHAPE, STRIDES, BYTE_OFFSET = (
    0,
    8,
    12,
    16,
    20,
    24,
    32,
    40,
)


def load_field(text: FunctionText, tensor: Value, offset: int, type: str) -> Value:
    """The field of `tensor` at a byte offset."""
    address = text.element_pointer("i8", tensor, integer("i64", offset))
    return text.load(type, address, 8 if type in ("ptr", "i64") else 4)


def store_field(text: FunctionText, tensor: Value, offset: int, value: Value) -> None:
    """Sets the field of `tensor` at a byte offset."""
    address = text.element_pointer("i8", tensor, integer("i64", offset))
    text.store(value, address, 8 if value.type in ("ptr", "i64") else 4)
