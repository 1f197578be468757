"""``call_packed``: compiled code calls a registered function through the packed C ABI."""

from __future__ import annotations

from collections.abc import Callable

from minitvm.codegen import dltensor
from minitvm.codegen.expression import ExpressionEmitter
from minitvm.codegen.llvm_text import NULL, Value, integer
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


class PackedCalls:
    """Emits packed calls into one function."""

    def __init__(
        self, expressions: ExpressionEmitter, fail_unless: Callable[[Value, int], None]
    ) -> None:
        """`fail_unless(holds, status)` ends the function with `status` unless `holds`."""
        self._expressions = expressions
        self._text = expressions.text
        self._fail_unless = fail_unless

    def emit(self, node: e.Call) -> Value:
        """The call, and its result, a number of the node's dtype or a handle."""
        if node.dtype.is_handle:
            return self._text.convert("inttoptr", self.run(node, ArgTypeCode.NULL), "ptr")
        bits = self.run(node, ~dtype_word(node.dtype))
        convert = self._expressions.conversions.cast
        if node.dtype.is_float:
            return convert(self._text.convert("bitcast", bits, "double"), FLOAT64, node.dtype)
        return convert(bits, INT64, node.dtype)

    def run(self, node: e.Call, asked: int = ArgTypeCode.NULL) -> Value:
        """The call, and the 8 bytes of its result. `asked` is what ``call_global`` finds as the
        result's type code."""
        name = node.args[0] if node.args else None
        if not isinstance(name, e.StringImm):
            raise CompileError(f"call_packed: expected the name of a function first, got {name}")
        text = self._text
        arguments = node.args[1:]
        values = text.alloca("i64", max(1, len(arguments)))
        codes = text.alloca("i32", max(1, len(arguments)), 4)
        for position, argument in enumerate(arguments):
            value, code = self._argument(argument)
            text.store(value, text.element_pointer("i64", values, integer("i64", position)), 8)
            where = text.element_pointer("i32", codes, integer("i64", position))
            text.store(integer("i32", code), where, 4)
        result, result_code = text.alloca("i64"), text.alloca("i32", align=4)
        text.store(integer("i64", 0), result, 8)
        text.store(integer("i32", asked), result_code, 4)
        function = text.module.external_function(CALL_GLOBAL, "i32 (ptr, ptr, ptr, i32, ptr, ptr)")
        count = integer("i32", len(arguments))
        status = text.call(
            function,
            "i32",
            [text.module.string(name.value), values, codes, count, result, result_code],
        )
        text.forget()  # it may have written what was read before
        self._fail_unless(text.icmp("eq", status, integer("i32", 0)), -1)
        return text.load("i64", result, 8)

    def _argument(self, node: PrimExpr) -> tuple[Value, int]:
        """A value of 8 bytes and its type code."""
        convert = self._expressions.conversions.cast
        if isinstance(node, e.BufferRef):
            return self._whole(node.buffer), ArgTypeCode.DLTENSOR_HANDLE
        if isinstance(node, e.Call) and node.op == "tvm_stack_make_array":
            return self._region(node), ArgTypeCode.DLTENSOR_HANDLE
        if isinstance(node, e.StringImm):
            return self._expressions.emit(node), ArgTypeCode.STR
        value = self._expressions.emit(node)
        if node.dtype.lanes > 1:
            raise CompileError(f"call_packed: expected scalars and buffers, got {node}")
        if node.dtype.is_handle:
            return value, ArgTypeCode.HANDLE
        if node.dtype.is_float:
            return convert(value, node.dtype, FLOAT64), ArgTypeCode.FLOAT
        return convert(value, node.dtype, INT64), ArgTypeCode.INT

    def _whole(self, buffer: Buffer) -> Value:
        sizes = [self._expressions.dimension(extent) for extent in buffer.shape]
        return self._tensor(buffer, self._expressions.pointer(buffer), sizes)

    def _region(self, node: e.Call) -> Value:
        reference = node.args[0]
        assert isinstance(reference, e.BufferRef)
        buffer = reference.buffer
        begins, extents = node.args[1 : buffer.ndim + 1], node.args[buffer.ndim + 1 :]
        first = self._expressions.address(buffer, begins).pointer
        sizes = [self._expressions.index(extent) for extent in extents]
        return self._tensor(buffer, first, sizes)

    def _tensor(self, buffer: Buffer, data: Value, sizes: list[Value]) -> Value:
        """A DLTensor on the stack that describes the last dimensions of a buffer's memory."""
        text = self._text
        ndim = len(sizes)
        tensor = text.alloca("i8", dltensor.SIZE)
        shape = text.alloca("i64", max(1, ndim))
        strides = text.alloca("i64", max(1, ndim))
        steps = self._expressions.strides(buffer)[buffer.ndim - ndim :]
        for where, values in ((shape, sizes), (strides, steps)):
            for position, value in enumerate(values):
                text.store(value, text.element_pointer("i64", where, integer("i64", position)), 8)
        word = dtype_word(buffer.dtype)
        fields: tuple[tuple[int, Value], ...] = (
            (dltensor.DATA, data),
            (dltensor.DEVICE_TYPE, integer("i32", DEVICE_TYPES["cpu"])),
            (dltensor.DEVICE_ID, integer("i32", 0)),
            (dltensor.NDIM, integer("i32", ndim)),
            (dltensor.DTYPE, integer("i32", word)),
            (dltensor.SHAPE, shape if ndim else NULL),
            (dltensor.STRIDES, strides if ndim else NULL),
            (dltensor.BYTE_OFFSET, integer("i64", 0)),
        )
        for offset, value in fields:
            dltensor.store_field(text, tensor, offset, value)
        return tensor
