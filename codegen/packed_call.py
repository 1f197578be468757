"""``call_packed``: compiled code calls a registered function through the packed C ABI."""

from __future__ import annotations

from minitvm.codegen import dltensor
from minitvm.codegen.accesses import address, pointer_of, strides_of
from minitvm.codegen.calls import name_called
from minitvm.codegen.emitter import Emitter
from minitvm.codegen.llvm_text import NULL, Value, i32, i64
from minitvm.runtime.device_type import DEVICE_TYPES
from minitvm.runtime.dlpack import dtype_word
from minitvm.runtime.dtype import FLOAT64, INT64
from minitvm.runtime.errors import CompileError
from minitvm.runtime.values import ArgTypeCode
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, PrimExpr

# int call_global(const char* name, TVMValue* args, int* codes, int count,
#                 TVMValue* ret, int* ret_code)
CALL_GLOBAL = "minitvm_call_global"


def emit_packed(emitter: Emitter, node: e.Call) -> Value:
    """The call, and its result, a number of the node's dtype or a handle."""
    text, dtype = emitter.text, node.dtype
    bits = run_packed(emitter, node, ArgTypeCode.NULL if dtype.is_handle else ~dtype_word(dtype))
    if dtype.is_handle:
        return text.convert("inttoptr", bits, "ptr")
    if dtype.is_float:
        double = text.convert("bitcast", bits, "double")
        return emitter.conversions.cast(double, FLOAT64, dtype)
    return emitter.conversions.cast(bits, INT64, dtype)


def run_packed(emitter: Emitter, node: e.Call, asked: int = ArgTypeCode.NULL) -> Value:
    """The call, and the 8 bytes of its result. ``call_global`` gets `asked` in the place of the
    result's type code. Where the call fails, the function ends with -1."""
    name, text = name_called(node), emitter.text
    arguments = node.args[1:]
    values = text.alloca("i64", max(1, len(arguments)))
    codes = text.alloca("i32", max(1, len(arguments)), 4)
    for position, argument in enumerate(arguments):
        value, code = _argument(emitter, argument)
        text.set_word(values, position, value)
        text.store(i32(code), text.element_pointer("i32", codes, i64(position)), 4)
    result, result_code = text.alloca("i64"), text.alloca("i32", align=4)
    text.store(i64(0), result, 8)
    text.store(i32(asked), result_code, 4)
    passed = [text.module.string(name), values, codes, i32(len(arguments)), result, result_code]
    status = text.call_external(CALL_GLOBAL, "i32", passed)
    text.forget()  # the callee may have written memory
    assert emitter.fail_unless is not None
    emitter.fail_unless(text.icmp("eq", status, i32(0)), -1)
    return text.load("i64", result, 8)


def _argument(emitter: Emitter, node: PrimExpr) -> tuple[Value, int]:
    """A value of 8 bytes and its type code."""
    if isinstance(node, e.BufferRef):
        return _whole(emitter, node.buffer), ArgTypeCode.DLTENSOR_HANDLE
    if isinstance(node, e.Call) and node.op == "tvm_stack_make_array":
        return _region(emitter, node), ArgTypeCode.DLTENSOR_HANDLE
    if isinstance(node, e.StringImm):
        return emitter.emit(node), ArgTypeCode.STR
    if node.dtype.lanes > 1:
        raise CompileError(f"call_packed: expected scalars and buffers, got {node}")
    if node.dtype.is_handle:
        return emitter.emit(node), ArgTypeCode.HANDLE
    if node.dtype.is_float:
        return emitter.cast(node, FLOAT64), ArgTypeCode.FLOAT
    return emitter.cast(node, INT64), ArgTypeCode.INT


def _whole(emitter: Emitter, buffer: Buffer) -> Value:
    sizes = [emitter.dimension(extent) for extent in buffer.shape]
    return _tensor(emitter, buffer, pointer_of(emitter, buffer), sizes)


def _region(emitter: Emitter, node: e.Call) -> Value:
    reference = node.args[0]
    assert isinstance(reference, e.BufferRef)
    buffer = reference.buffer
    begins, extents = node.args[1 : buffer.ndim + 1], node.args[buffer.ndim + 1 :]
    first = address(emitter, buffer, begins).pointer
    return _tensor(emitter, buffer, first, [emitter.index(extent) for extent in extents])


def _tensor(emitter: Emitter, buffer: Buffer, data: Value, sizes: list[Value]) -> Value:
    """A DLTensor on the stack that describes the last dimensions of a buffer's memory."""
    text = emitter.text
    ndim = len(sizes)
    tensor = text.alloca("i8", dltensor.SIZE)
    shape, strides = (text.alloca("i64", max(1, ndim)) for _ in range(2))
    steps = strides_of(emitter, buffer)[buffer.ndim - ndim :]
    for where, values in ((shape, sizes), (strides, steps)):
        for position, value in enumerate(values):
            text.set_word(where, position, value)
    fields = {
        "data": data,
        "device_type": i32(DEVICE_TYPES["cpu"]),
        "device_id": i32(0),
        "ndim": i32(ndim),
        "dtype": i32(dtype_word(buffer.dtype)),
        "shape": shape if ndim else NULL,
        "strides": strides if ndim else NULL,
        "byte_offset": i64(0),
    }
    for field, value in fields.items():
        dltensor.store_field(text, tensor, field, value)
    return tensor
