"""The checks of each argument of a compiled function: kind, shape, memory and strides.

Each check is a comparison, a branch and the call of a report
(:mod:`minitvm.codegen.argument_errors`). The checks also bind the variables among the dimensions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from math import prod
from typing import final

from minitvm.arith.prover import Prover
from minitvm.codegen.accesses import strides_of
from minitvm.codegen.argument_errors import ARRAY_CODES, ArgumentErrors, asks
from minitvm.codegen.conversion import register_type
from minitvm.codegen.dltensor import Tensor, load_field
from minitvm.codegen.emitter import Emitter
from minitvm.codegen.llvm_text import NULL, FunctionText, Value, i32, i64, integer
from minitvm.runtime.arrangement import ASKS_FOR_VARIANT
from minitvm.runtime.device_type import DEVICE_TYPES
from minitvm.runtime.dlpack import dtype_word
from minitvm.runtime.dtype import FLOAT64, INT64, DType
from minitvm.runtime.record import record
from minitvm.runtime.values import ArgTypeCode
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, PrimExpr, Var
from minitvm.tir.stmt import PrimFunc


@final
@record(frozen=False)
class Checks:
    """The checks of one function's arguments, which are called `names`."""

    text: FunctionText
    func: PrimFunc
    names: Sequence[str]
    emitter: Emitter
    errors: ArgumentErrors
    written: Collection[Buffer]
    # The text for the source of each variable's value, as messages show it.
    sources: dict[Var, str] = field(default_factory=dict)

    @contextmanager
    def unless(self, conditions: Iterable[Value]) -> Iterator[None]:
        """Opens the block that runs unless all conditions hold, and that ends the function. Each is
        evaluated only where the ones before it hold."""
        wrong = self.text.block("wrong")
        for holds in conditions:
            self.text.go_on_if(holds, wrong)
        with self.text.aside(wrong):
            yield

    def require(
        self, holds: Value, message: str, position: int, *values: int | str | Value
    ) -> None:
        """Reports a message about an argument unless a condition holds."""
        with self.unless([holds]):
            self.errors.report(message, position, *values)

    def advice(self, position: int) -> str:
        """The advice in the message about an argument of another shape."""
        if position not in self.func.attrs.prepacked:
            return ""
        name = self.names[position]
        return f": pack it with minitvm.prepack({self.func.name}, '{name}', array)"


# -- scalars --


def read_scalar(checks: Checks, position: int, param: Var, code: Value, where: Value) -> Value:
    """The value of a scalar argument."""
    text, dtype = checks.text, param.dtype
    if dtype.is_handle:
        accepted = _is_one_of(text, code, (ArgTypeCode.HANDLE, ArgTypeCode.NULL))
        checks.require(accepted, "kind", position, "an opaque pointer", code)
        return text.load("ptr", where, 8)
    if dtype.is_float:
        return _float_scalar(checks, position, dtype, code, where)
    accepted = _is_one_of(text, code, (ArgTypeCode.INT,))
    checks.require(accepted, "kind", position, "an integer", code)
    value = text.load("i64", where, 8)
    if dtype != INT64:
        low, high = i64(dtype.min()), i64(min(dtype.max(), INT64.max()))
        fits = text.binary("and", text.icmp("sge", value, low), text.icmp("sle", value, high))
        checks.require(fits, "scalar", position, str(dtype), value)
    return checks.emitter.conversions.cast(value, INT64, dtype)


def _float_scalar(checks: Checks, position: int, dtype: DType, code: Value, where: Value) -> Value:
    text, cast = checks.text, checks.emitter.conversions.cast
    accepted = _is_one_of(text, code, (ArgTypeCode.FLOAT, ArgTypeCode.INT))
    checks.require(accepted, "kind", position, "a number", code)
    from_float = cast(text.load("double", where, 8), FLOAT64, dtype)
    from_int = cast(text.load("i64", where, 8), INT64, dtype)
    is_int = text.icmp("eq", code, i32(ArgTypeCode.INT))
    return text.select(is_int, from_int, from_float)


def _is_one_of(text: FunctionText, code: Value, accepted: Sequence[ArgTypeCode]) -> Value:
    return text.any_of(*[text.icmp("eq", code, i32(each)) for each in accepted])


# -- arrays: their kind and their sizes --


def read_tensor(checks: Checks, position: int, buffer: Buffer, code: Value, where: Value) -> Tensor:
    """Reads an array argument; checks its kind, rank, dtype and device."""
    text = checks.text
    handle = text.load("ptr", where, 8)
    ndim, dtype = buffer.ndim, dtype_word(buffer.dtype)
    wrong = text.block("wrong")
    text.go_on_if_any((text.icmp("eq", code, i32(each)) for each in ARRAY_CODES), wrong)
    text.go_on_if(text.icmp("ne", handle, NULL), wrong)
    wanted = {"ndim_and_dtype": i64(ndim | dtype << 32), "device_type": i32(DEVICE_TYPES["cpu"])}
    for name, value in wanted.items():
        text.go_on_if(text.icmp("eq", load_field(text, handle, name), value), wrong)
    with text.aside(wrong):
        told = checks.advice(position), str(buffer.dtype), code, handle, i32(ndim), i32(dtype)
        checks.errors.report("array", position, *told)
    return Tensor(position, checks.names[position], buffer, buffer in checks.written, handle)


def bind_shape(checks: Checks, tensor: Tensor) -> None:
    """Gives the variables among the dimensions their values."""
    variables = checks.emitter.variables
    for dim, expr in enumerate(tensor.buffer.shape):
        if isinstance(expr, Var) and expr not in variables:
            extent = checks.text.word(load_field(checks.text, tensor.handle, "shape"), dim)
            variables[expr] = _extent(checks, tensor, dim, expr, extent)
            tensor.bound.add(dim)
            source = f"{expr.name}, as argument {tensor.position} '{tensor.name}' has it"
            checks.sources[expr] = f" ({source})"
    offset = tensor.buffer.elem_offset
    if isinstance(offset, Var) and offset not in variables:
        # A DLTensor's byte offset is already in the pointer.
        variables[offset] = integer(register_type(offset.dtype), 0)


def _extent(checks: Checks, tensor: Tensor, dim: int, var: Var, extent: Value) -> Value:
    """Binds a variable to an extent, which must not be negative, and must be in the range of the
    variable."""
    fits = checks.text.icmp("ule", extent, i64(min(var.dtype.max(), INT64.max())))
    checks.require(fits, "extent", tensor.position, dim, str(var.dtype), extent)
    return checks.emitter.conversions.cast(extent, INT64, var.dtype)


def check_memory(checks: Checks, tensor: Tensor) -> None:
    """Checks shape, memory and alignment."""
    text, position, buffer = checks.text, tensor.position, tensor.buffer
    expected = [checks.emitter.dimension(expr) for expr in buffer.shape]
    dims = [dim for dim in range(buffer.ndim) if dim not in tensor.bound]
    if dims:
        shape = load_field(text, tensor.handle, "shape")
        fits = (text.icmp("eq", text.word(shape, dim), expected[dim]) for dim in dims)
        sources = [_source(checks, expr) for expr in buffer.shape]
        with checks.unless(fits):
            strings = [text.module.string(source) for source in sources]
            tables = text.table(expected), text.table(strings) if any(sources) else NULL
            advice = checks.advice(position)
            checks.errors.report("extents", position, advice, tensor.handle, *tables)
    tensor.extents = expected
    tensor.size = size = _size(checks, tensor)
    data = load_field(text, tensor.handle, "data")
    offset = load_field(text, tensor.handle, "byte_offset")
    tensor.first = tensor.low = text.element_pointer("i8", data, offset)
    alignment = max(buffer.dtype.element.itemsize, buffer.data_alignment)
    with checks.unless(_memory_fits(text, tensor, data, alignment)):
        checks.errors.report("memory", position, size, data, tensor.low, alignment)


def _memory_fits(
    text: FunctionText, tensor: Tensor, data: Value, alignment: int
) -> Iterator[Value]:
    """The conditions that there is memory unless the array is empty, and that it is aligned."""
    exists = text.icmp("ne", data, NULL)
    if _is_not(text, tensor.size, 0).text != "true":
        exists = text.any_of(exists, text.icmp("eq", tensor.size, i64(0)))
    yield exists
    if alignment > 1:
        address = text.convert("ptrtoint", tensor.low, "i64")
        yield text.icmp("eq", text.binary("and", address, i64(alignment - 1)), i64(0))


def _source(checks: Checks, expr: PrimExpr) -> str:
    """The text for the source of an expected extent, as messages show it."""
    if isinstance(expr, Var):
        return checks.sources.get(expr, f" ({expr.name})")
    return "" if e.const_int(expr) is not None else f" ({expr})"


def _size(checks: Checks, tensor: Tensor) -> Value:
    """The number of elements of an array. An array of 2**63 bytes or more is refused."""
    text, most = checks.text, INT64.max() // tensor.buffer.dtype.itemsize
    largest = prod(_largest(extent) for extent in tensor.buffer.shape)
    size = i64(1)
    for extent in tensor.extents:
        if largest <= most:
            size = checks.emitter.product(size, extent)
        else:  # an extent of 0 makes it 0
            size = text.intrinsic("smul.fix.sat", "i64", size, extent, i32(0))
    if largest > most:
        checks.require(text.icmp("sle", size, i64(most)), "size", tensor.position)
    return size


def _largest(extent: PrimExpr) -> float:
    """The largest value of a dimension, as far as its dtype tells."""
    return min(Prover().const_int_bound(extent)[1], INT64.max())


def _is_not(text: FunctionText, value: Value, number: int) -> Value:
    """Whether a value, which may be constant, differs from a number."""
    if value.text.isdigit():
        return integer("i1", int(value.text) != number)
    return text.icmp("ne", value, i64(number))


# -- arrays: their strides --


def check_strides(checks: Checks, tensor: Tensor) -> None:
    """Checks that a compact array has compact strides; binds the strides of a strided buffer. The
    stride of a dimension with one element doesn't count, and an empty array's strides don't
    either."""
    text, buffer = checks.text, tensor.buffer
    if buffer.layout and buffer.ndim:
        _check_layout(checks, tensor)
    if buffer.strides:
        _bind_strides(checks, tensor)
        return
    size = checks.emitter.product(tensor.size, i64(buffer.dtype.itemsize))
    tensor.end = text.element_pointer("i8", tensor.low, size)
    if not buffer.ndim or buffer.layout:
        return
    strides = load_field(text, tensor.handle, "strides")
    given, done = text.blocks("strided", "compact")
    has_strides, nonempty = text.icmp("ne", strides, NULL), _is_not(text, tensor.size, 0)
    if nonempty.text != "true":
        has_strides = text.binary("and", has_strides, nonempty)
    with text.when(has_strides, given, done):
        expected = strides_of(checks.emitter, buffer)
        fits = (
            _fits_stride(text, tensor, dim, step, text.word(strides, dim))
            for dim, step in enumerate(expected)
        )
        with checks.unless(fits):
            found = text.params[4], tensor.handle, text.table(expected)
            checks.errors.report("layout", tensor.position, *found)


def _fits_stride(
    text: FunctionText, tensor: Tensor, dim: int, expected: Value, stride: Value
) -> Value:
    """Whether a dimension of more than one element has the stride expected."""
    fits = text.icmp("eq", stride, expected)
    if _is_not(text, tensor.extents[dim], 1).text == "true":
        return fits
    return text.binary("or", fits, text.icmp("sle", tensor.extents[dim], i64(1)))


def _check_layout(checks: Checks, tensor: Tensor) -> None:
    """Requires the strides of a declared layout, as :mod:`minitvm.runtime.mdspan` does: also in
    dimensions with one element or none, whose strides lead to no element."""
    text, layout, position = checks.text, tensor.buffer.layout, tensor.position
    if layout == "stride_relaxed":
        return
    _require_given(checks, tensor)
    strides = _given_strides(checks, tensor)
    expected = _declared_strides(text, tensor)
    for dim in range(tensor.buffer.ndim):
        stride = text.word(strides, dim)
        if layout == "stride":
            checks.require(text.icmp("sgt", stride, i64(0)), "positive", position, dim, stride)
            continue
        fits = text.icmp("eq", stride, expected[dim])
        advice = f": pass np.array(x, order='{'F' if layout == 'left' else 'C'}')"
        found = (dim, expected[dim], layout, stride, advice)
        checks.require(fits, "declared", position, *found)


def _require_given(checks: Checks, tensor: Tensor) -> None:
    """Requires strides to be given where row-major ones would be wrong. A caller that can ask for a
    variant must also give strides where numpy counts an array with other strides as compact: along
    a dimension with one element, or in an empty array."""
    text, layout = checks.text, tensor.buffer.layout
    known = text.icmp("ne", load_field(text, tensor.handle, "strides"), NULL)
    if layout != "left" or tensor.buffer.ndim == 1:
        code = text.load("i32", text.params[4], 4)
        unasked = text.binary("xor", asks(text, code, ASKS_FOR_VARIANT), integer("i1", 1))
        known = text.binary("or", known, unasked)
        several = text.all_of([text.icmp("sgt", each, i64(1)) for each in tensor.extents])
        known = text.binary("or", known, several)
    checks.require(known, "no_strides", tensor.position, layout)


def _declared_strides(text: FunctionText, tensor: Tensor) -> list[Value]:
    """The strides of a row-major or column-major array. No array has a stride beyond int64, so such
    a stride becomes the largest int64."""
    order = 1 if tensor.buffer.layout == "left" else -1
    made = [i64(1)]
    for extent in tensor.extents[::order][:-1]:
        made.append(text.intrinsic("smul.fix.sat", "i64", made[-1], extent, i32(0)))
    return made[::order]


def _bind_strides(checks: Checks, tensor: Tensor) -> None:
    """Binds stride variables, checks other stride expressions, and finds the memory's extent: a
    negative stride reaches below the first element."""
    text, buffer, variables = checks.text, tensor.buffer, checks.emitter.variables
    strides = _given_strides(checks, tensor)
    zero, one, itemsize = i64(0), i64(1), i64(buffer.dtype.itemsize)
    low, high = zero, one
    for dim, expr in enumerate(buffer.strides):
        stride = text.word(strides, dim)
        if isinstance(expr, Var) and expr not in variables:
            variables[expr] = _stride(checks, tensor, dim, expr, stride)
        elif not buffer.layout:
            expected = checks.emitter.dimension(expr)
            fits = _fits_stride(text, tensor, dim, expected, stride)
            checks.require(fits, "strides", tensor.position, dim, expected, stride)
        reach = text.binary("mul", stride, text.binary("sub", tensor.extents[dim], one))
        low = text.binary("add", low, text.intrinsic("smin", "i64", reach, zero))
        high = text.binary("add", high, text.intrinsic("smax", "i64", reach, zero))
    empty = zero
    for extent in tensor.extents:
        is_empty = text.convert("zext", text.icmp("eq", extent, zero), "i64")
        empty = text.binary("or", empty, is_empty)
    span = text.select(text.icmp("eq", empty, zero), high, low)
    tensor.low = text.element_pointer("i8", tensor.first, text.binary("mul", low, itemsize))
    tensor.end = text.element_pointer("i8", tensor.first, text.binary("mul", span, itemsize))


def _stride(checks: Checks, tensor: Tensor, dim: int, var: Var, stride: Value) -> Value:
    """Binds a variable to a stride, which may be negative."""
    cast = checks.emitter.conversions.cast
    narrow = cast(stride, INT64, var.dtype)
    if var.dtype.bits < 64:
        back = cast(narrow, var.dtype, INT64)
        fits = checks.text.icmp("eq", back, stride)
        checks.require(fits, "strides", tensor.position, dim, back, stride)
    return narrow


def _given_strides(checks: Checks, tensor: Tensor) -> Value:
    """The address of the strides; in DLPack a compact array may have none."""
    text = checks.text
    strides = load_field(text, tensor.handle, "strides")
    compact = text.alloca("i64", tensor.buffer.ndim)
    step = i64(1)
    for dim in reversed(range(tensor.buffer.ndim)):
        text.set_word(compact, dim, step)
        step = checks.emitter.product(step, tensor.extents[dim])
    return text.select(text.icmp("eq", strides, NULL), compact, strides)
