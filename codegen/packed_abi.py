"""The packed C function of a kernel: it checks its arguments, binds sizes, and calls the body.

::

    int f(TVMValue* args, int* type_codes, int num_args,
          TVMValue* ret, int* ret_type_code, void* resource)

returns 0, or -1 with a Python error set. Everything is checked before the body writes anything:
the number of arguments and their kinds; of each array the rank, dtype, device, shape, strides,
memory and alignment; and that no output shares memory with another argument, or, in the variant
for that, that it is the same array. Where another variant may take the arrays, and the caller asks
for it, the status is NEEDS_VARIANT (:mod:`minitvm.runtime.arrangement`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import prod
from typing import final

from minitvm.arith.effects import written_parameters
from minitvm.arith.prover import Prover
from minitvm.codegen import dltensor
from minitvm.codegen.argument_errors import (
    ARRAY_CODES,
    ArgumentErrors,
    asks,
    percent_escaped,
    raise_error,
)
from minitvm.codegen.expression import ExpressionEmitter
from minitvm.codegen.gil import pays_release, release_gil, take_gil
from minitvm.codegen.llvm_text import NULL, FunctionText, ModuleText, Value, integer, symbol
from minitvm.codegen.options import CodegenOptions
from minitvm.codegen.overlap import Region, own_elements_apart, ranges_apart
from minitvm.codegen.statement import Assertion, StatementEmitter
from minitvm.codegen.types import register_type
from minitvm.runtime.arrangement import ASKS_FOR_VARIANT, ASKS_TO_CHECK
from minitvm.runtime.device_type import DEVICE_TYPES
from minitvm.runtime.dlpack import dtype_word
from minitvm.runtime.dtype import FLOAT64, INT64, DType
from minitvm.runtime.threads import MAX_FAILURE_VALUES
from minitvm.runtime.values import ArgTypeCode
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, PrimExpr, Var
from minitvm.tir.stmt import PrimFunc

PACKED_PARAMS = (
    ("ptr", "args"), ("ptr", "type_codes"), ("i32", "num_args"),
    ("ptr", "ret"), ("ptr", "ret_type_code"), ("ptr", "resource"),
)  # fmt: skip


def emit_function(module: ModuleText, func: PrimFunc, options: CodegenOptions) -> None:
    """Adds `func` to `module`: its body, and its packed function under its own name."""
    sizes = bound_variables(func)
    assertions = _emit_body(module, func, sizes, options)
    _Entry(module, func, sizes, options).emit(assertions)


def bound_variables(func: PrimFunc) -> tuple[Var, ...]:
    """The variables that the shapes, strides and offsets of the arguments bind, in order."""
    dims = [d for b in func.buffer_map.values() for d in (*b.shape, *b.strides, b.elem_offset)]
    parameters = set(func.params)
    found = (d for d in dims if isinstance(d, Var) and d not in parameters)
    return tuple(dict.fromkeys(found))


def packed_symbol(name: str) -> str:
    """The symbol of a function's packed entry, which no C function's name can be."""
    return f"packed.{_ascii(name)}"


def _body_symbol(name: str) -> str:
    return f"body.{_ascii(name)}"


def _ascii(name: str) -> str:
    """llvmlite looks functions up by names in ASCII only."""
    return name.encode("ascii", "backslashreplace").decode()


def _emit_body(
    module: ModuleText, func: PrimFunc, sizes: tuple[Var, ...], options: CodegenOptions
) -> list[Assertion]:
    written = written_parameters(func)
    params: list[tuple[str, str]] = []
    for position, param in enumerate(func.params):
        buffer = func.buffer_map.get(param)
        if buffer is None:
            params.append((register_type(param.dtype), f"p{position}"))
        else:
            access = "" if buffer in written else " readonly"
            # Not nocapture: a packed call and a parallel region get the address by way of memory.
            params.append((f"ptr noalias{access}", f"p{position}"))
    params.extend((register_type(var.dtype), f"size{i}") for i, var in enumerate(sizes))
    params.append(("ptr noalias", "failure"))
    text = FunctionText(module, _body_symbol(func.name), "i32", params, linkage="internal",
                        attributes="nounwind ")  # fmt: skip
    emitter = StatementEmitter(text, options, text.params[-1])
    for param, value in zip((*func.params, *sizes), text.params[:-1], strict=True):
        buffer = func.buffer_map.get(param)
        if buffer is None:
            emitter.expressions.variables[param] = value
        else:
            emitter.expressions.pointers[buffer] = value
    emitter.emit(func.body)
    emitter.finish()
    return emitter.assertions


@final
@dataclass(slots=True)
class _Tensor:
    """A tensor argument, as far as the entry has read it."""

    position: int
    buffer: Buffer
    handle: Value
    extents: list[Value]
    data: Value | None = None
    end: Value | None = None


class _Entry:
    """Emits the packed function of one kernel."""

    def __init__(
        self, module: ModuleText, func: PrimFunc, sizes: tuple[Var, ...], options: CodegenOptions
    ) -> None:
        self._func = func
        self._sizes = sizes
        self._written = written_parameters(func)
        self._names = arg_names(func)
        self._text = FunctionText(
            module, packed_symbol(func.name), "i32", PACKED_PARAMS, attributes="nounwind "
        )
        self._pays_release = pays_release(func, options.release_gil)
        self._errors = ArgumentErrors(self._text, func.name, self._names, self._text.params[4])
        self._expressions = ExpressionEmitter(self._text, options)
        self._checks_alone = options.target.device_type != DEVICE_TYPES["cpu"]
        self._expressions.no_wrap = ""  # nothing is known of the sizes yet
        self._source: dict[Var, str] = {}
        # Where element 0 of a strided array is, which a negative stride puts behind others.
        self._first: dict[int, Value] = {}

    def emit(self, assertions: list[Assertion]) -> None:
        text = self._text
        args, codes, count, _ret, ret_code, _resource = text.params
        expected = integer("i32", len(self._func.params))
        self._require(text.icmp("eq", count, expected), self._errors.report_count, count)
        tensors: list[_Tensor] = []
        for position, param in enumerate(self._func.params):
            code_at = text.element_pointer("i32", codes, integer("i64", position))
            code = text.load("i32", code_at, 4)
            where = text.element_pointer("i64", args, integer("i64", position))
            buffer = self._func.buffer_map.get(param)
            if buffer is None:
                self._expressions.variables[param] = self._scalar(position, param, code, where)
            else:
                tensors.append(self._tensor(position, buffer, code, where))
        for tensor in tensors:
            self._bind(tensor)
        for tensor in tensors:
            self._check(tensor)
        self._check_overlaps(tensors)
        if self._checks_alone:
            self._return_if_checked(ret_code)
        self._call(tensors, assertions, ret_code)
        text.finish()

    def _return_if_checked(self, ret_code: Value) -> None:
        """Whoever launches the function asks first whether its arguments are right."""
        text = self._text
        checked, go_on = text.block("checked"), text.block("go_on")
        code = text.load("i32", ret_code, 4)
        text.branch_if(asks(text, code, ASKS_TO_CHECK), checked, go_on)
        text.place(checked)
        text.ret(integer("i32", 0))
        text.place(go_on)

    def _require(self, holds: Value, report: Callable[..., Value], *details: object) -> None:
        """Returns what ``report(*details)`` does unless `holds`."""
        failed, go_on = self._text.block("wrong"), self._text.block("right")
        self._text.branch_if(holds, go_on, failed, likely=True)
        self._text.place(failed)
        with self._text.scope():
            self._text.ret(report(*details))
        self._text.place(go_on)

    # -- scalars --

    def _scalar(self, position: int, param: Var, code: Value, where: Value) -> Value:
        text, dtype = self._text, param.dtype
        if dtype.is_handle:
            accepted = (ArgTypeCode.HANDLE, ArgTypeCode.NULL)
            self._require(
                self._is_one_of(code, accepted),
                self._errors.report,
                "kind",
                position,
                "an opaque pointer",
                code,
            )
            return text.load("ptr", where, 8)
        if dtype.is_float:
            return self._float_scalar(position, dtype, code, where)
        self._require(
            self._is_one_of(code, (ArgTypeCode.INT,)),
            self._errors.report,
            "kind",
            position,
            "an integer",
            code,
        )
        value = text.load("i64", where, 8)
        if dtype != INT64:
            largest = min(dtype.max(), INT64.max())
            low, high = integer("i64", dtype.min()), integer("i64", largest)
            fits = text.binary("and", text.icmp("sge", value, low), text.icmp("sle", value, high))
            self._require(fits, self._errors.report, "scalar", position, str(dtype), value)
        return self._expressions.conversions.cast(value, INT64, dtype)

    def _float_scalar(self, position: int, dtype: DType, code: Value, where: Value) -> Value:
        text, cast = self._text, self._expressions.conversions.cast
        self._require(
            self._is_one_of(code, (ArgTypeCode.FLOAT, ArgTypeCode.INT)),
            self._errors.report,
            "kind",
            position,
            "a number",
            code,
        )
        from_float = cast(text.load("double", where, 8), FLOAT64, dtype)
        from_int = cast(text.load("i64", where, 8), INT64, dtype)
        is_int = text.icmp("eq", code, integer("i32", ArgTypeCode.INT))
        return text.select(is_int, from_int, from_float)

    def _is_one_of(self, code: Value, accepted: tuple[ArgTypeCode, ...]) -> Value:
        found = [self._text.icmp("eq", code, integer("i32", a)) for a in accepted]
        result = found[0]
        for other in found[1:]:
            result = self._text.binary("or", result, other)
        return result

    # -- arrays: what they are --

    def _tensor(self, position: int, buffer: Buffer, code: Value, where: Value) -> _Tensor:
        text, errors = self._text, self._errors
        handle = text.load("ptr", where, 8)
        ndim, dtype = integer("i32", buffer.ndim), integer("i32", dtype_word(buffer.dtype))
        known, right, wrong = (text.block(hint) for hint in ("known", "right", "wrong"))
        is_array = text.binary(
            "and", self._is_one_of(code, ARRAY_CODES), text.icmp("ne", handle, NULL)
        )
        text.branch_if(is_array, known, wrong, likely=True)
        text.place(known)
        with text.scope():
            cpu = integer("i32", DEVICE_TYPES["cpu"])
            fields = ((dltensor.NDIM, ndim), (dltensor.DTYPE, dtype), (dltensor.DEVICE_TYPE, cpu))
            fits = [
                text.icmp("eq", dltensor.load_field(text, handle, field, "i32"), expected)
                for field, expected in fields
            ]
            text.branch_if(_all(text, fits), right, wrong, likely=True)
        text.place(wrong)
        advice = self._advice(position)
        text.ret(
            errors.report_array(position, advice, str(buffer.dtype), code, handle, ndim, dtype)
        )
        text.place(right)
        extents: list[Value] = []
        if buffer.ndim:
            shape = dltensor.load_field(text, handle, dltensor.SHAPE, "ptr")
            extents = [self._element(shape, dim) for dim in range(buffer.ndim)]
        return _Tensor(position, buffer, handle, extents)

    def _advice(self, position: int) -> str:
        """What to do about an argument of another shape."""
        if position not in self._func.attrs.prepacked:
            return ""
        name = self._names[position]
        return f": pack it with minitvm.prepack({self._func.name}, '{name}', array)"

    def _element(self, array: Value, position: int) -> Value:
        where = self._text.element_pointer("i64", array, integer("i64", position))
        return self._text.load("i64", where, 8)

    # -- arrays: their sizes --

    def _bind(self, tensor: _Tensor) -> None:
        """Gives the variables among the dimensions their values."""
        for dim, (expr, extent) in enumerate(zip(tensor.buffer.shape, tensor.extents, strict=True)):
            if not isinstance(expr, Var) or expr in self._expressions.variables:
                continue
            self._expressions.variables[expr] = self._extent(tensor, dim, expr, extent)
            name = self._names[tensor.position]
            self._source[expr] = f" ({expr.name}, as argument {tensor.position} '{name}' has it)"
        offset = tensor.buffer.elem_offset
        if isinstance(offset, Var) and offset not in self._expressions.variables:
            # A DLTensor's offset counts bytes, and is in the pointer already.
            self._expressions.variables[offset] = integer(register_type(offset.dtype), 0)

    def _extent(self, tensor: _Tensor, dim: int, var: Var, extent: Value) -> Value:
        """An extent as a variable's value: not negative, and not more than it holds."""
        largest = integer("i64", min(var.dtype.max(), INT64.max()))
        self._require(
            self._text.icmp("ule", extent, largest),
            self._errors.report,
            "extent",
            tensor.position,
            dim,
            str(var.dtype),
            extent,
        )
        return self._expressions.conversions.cast(extent, INT64, var.dtype)

    def _stride(self, tensor: _Tensor, dim: int, var: Var, stride: Value) -> Value:
        """A stride as a variable's value, which may be negative."""
        narrow = self._expressions.conversions.cast(stride, INT64, var.dtype)
        if var.dtype.bits < 64:
            back = self._expressions.conversions.cast(narrow, var.dtype, INT64)
            self._require(
                self._text.icmp("eq", back, stride),
                self._errors.report,
                "strides",
                tensor.position,
                dim,
                back,
                stride,
            )
        return narrow

    def _check(self, tensor: _Tensor) -> None:
        """Shape, strides, memory and alignment."""
        text, errors, position = self._text, self._errors, tensor.position
        buffer = tensor.buffer
        expected = [self._expressions.dimension(expr) for expr in buffer.shape]
        if expected:
            pairs = zip(tensor.extents, expected, strict=True)
            fits = _all(text, [text.icmp("eq", *pair) for pair in pairs])
            sources = [self._describe(expr) for expr in buffer.shape]
            found = (tensor.handle, expected, sources)
            self._require(fits, errors.report_shape, position, self._advice(position), *found)
        tensor.extents = expected
        size = self._size(tensor)
        data = dltensor.load_field(text, tensor.handle, dltensor.DATA, "ptr")
        offset = dltensor.load_field(text, tensor.handle, dltensor.BYTE_OFFSET, "i64")
        tensor.data = text.element_pointer("i8", data, offset)
        nonempty = self._is_not(size, 0)
        fits = text.icmp("ne", data, NULL)
        if nonempty.text != "true":
            fits = text.binary("or", fits, text.icmp("eq", size, integer("i64", 0)))
        alignment = max(buffer.dtype.element.itemsize, buffer.data_alignment)
        if alignment > 1:
            address = text.convert("ptrtoint", tensor.data, "i64")
            low = text.binary("and", address, integer("i64", alignment - 1))
            fits = text.binary("and", fits, text.icmp("eq", low, integer("i64", 0)))
        details = (size, data, tensor.data, alignment)
        self._require(fits, errors.report_memory, position, *details)
        self._check_strides(tensor, size, nonempty)

    def _size(self, tensor: _Tensor) -> Value:
        """How many elements an array has; more bytes than 63 bits count are no array's."""
        text, buffer = self._text, tensor.buffer
        most = INT64.max() // buffer.dtype.itemsize
        largest = prod(_largest(extent) for extent in buffer.shape)
        size = integer("i64", 1)
        for extent in tensor.extents:
            if largest <= most:
                size = self._expressions.times(size, extent)
            else:  # with any extent of 0 it is 0
                size = text.intrinsic("smul.fix.sat", "i64", size, extent, integer("i32", 0))
        if largest > most:
            fits = text.icmp("sle", size, integer("i64", most))
            self._require(fits, self._errors.report, "size", tensor.position)
        return size

    def _is_not(self, value: Value, number: int) -> Value:
        """Whether a value, which may be constant, is another than a number."""
        if value.text.isdigit():
            return integer("i1", int(value.text) != number)
        return self._text.icmp("ne", value, integer("i64", number))

    def _describe(self, expr: PrimExpr) -> str:
        if isinstance(expr, Var):
            return self._source.get(expr, f" ({expr.name})")
        return "" if e.const_int(expr) is not None else f" ({expr})"

    def _check_strides(self, tensor: _Tensor, size: Value, nonempty: Value) -> None:
        """A compact array's strides must be so; a strided buffer's are bound. Strides of
        dimensions of one element don't matter, nor does any in an empty array."""
        text, buffer = self._text, tensor.buffer
        itemsize = integer("i64", buffer.dtype.itemsize)
        if buffer.layout and buffer.ndim:
            self._check_layout(tensor)
        if buffer.strides:
            self._bind_strides(tensor)
            return
        tensor.end = text.element_pointer(
            "i8", self._data(tensor), text.binary("mul", size, itemsize)
        )
        if not buffer.ndim or buffer.layout:
            return
        strides = dltensor.load_field(text, tensor.handle, dltensor.STRIDES, "ptr")
        given, done = text.block("strided"), text.block("compact")
        has_strides = text.icmp("ne", strides, NULL)
        if nonempty.text != "true":
            has_strides = text.binary("and", has_strides, nonempty)
        text.branch_if(has_strides, given, done)
        text.place(given)
        with text.scope():
            expected = self._expressions.strides(buffer)
            fits = [
                self._fits_stride(tensor, dim, step, self._element(strides, dim))
                for dim, step in enumerate(expected)
            ]
            report = self._errors.report_strides
            self._require(_all(text, fits), report, tensor.position, tensor.handle, expected)
            text.branch(done)
        text.place(done)

    def _check_layout(self, tensor: _Tensor) -> None:
        """What a declared layout asks, as :mod:`minitvm.runtime.mdspan` does of a tensor: also of
        dimensions of one element and of none, whose strides lead nowhere."""
        text, layout = self._text, tensor.buffer.layout
        if layout == "stride_relaxed":
            return
        self._require_given(tensor)
        strides = self._given_strides(tensor)
        expected = self._declared_strides(tensor)
        for dim in range(tensor.buffer.ndim):
            stride, position = self._element(strides, dim), tensor.position
            if layout == "stride":
                fits = text.icmp("sgt", stride, integer("i64", 0))
                self._require(fits, self._errors.report, "positive", position, dim, stride)
                continue
            fits = text.icmp("eq", stride, expected[dim])
            order = "F" if layout == "left" else "C"
            advice = f": pass np.array(x, order='{order}')"
            found = (dim, expected[dim], layout, stride, advice)
            self._require(fits, self._errors.report, "declared", position, *found)

    def _require_given(self, tensor: _Tensor) -> None:
        """The strides must be there where row-major ones would be wrong; and the caller who can ask
        is asked for them where numpy calls an array compact that has strides of its own: along a
        dimension of one element, or where there is no element."""
        text, layout = self._text, tensor.buffer.layout
        strides = dltensor.load_field(text, tensor.handle, dltensor.STRIDES, "ptr")
        known = text.icmp("ne", strides, NULL)
        if layout != "left" or tensor.buffer.ndim == 1:
            code = text.load("i32", text.params[4], 4)
            unasked = text.binary("xor", asks(text, code, ASKS_FOR_VARIANT), Value("i1", "true"))
            known = text.binary("or", known, unasked)
            one = integer("i64", 1)
            several = _all(text, [text.icmp("sgt", each, one) for each in tensor.extents])
            known = text.binary("or", known, several)
        self._require(known, self._errors.report, "no_strides", tensor.position, layout)

    def _declared_strides(self, tensor: _Tensor) -> list[Value]:
        """The strides of a row-major or column-major array; what int64 doesn't hold is no array's,
        and so the largest there is."""
        text = self._text
        inside = tensor.extents if tensor.buffer.layout == "left" else tensor.extents[::-1]
        made = [integer("i64", 1)]
        for extent in inside[:-1]:
            made.append(text.intrinsic("smul.fix.sat", "i64", made[-1], extent, integer("i32", 0)))
        return made if tensor.buffer.layout == "left" else made[::-1]

    def _fits_stride(self, tensor: _Tensor, dim: int, expected: Value, stride: Value) -> Value:
        """Whether a dimension of more than one element has the stride expected."""
        fits = self._text.icmp("eq", stride, expected)
        several = self._is_not(tensor.extents[dim], 1)
        if several.text == "true":
            return fits
        single = self._text.icmp("sle", tensor.extents[dim], integer("i64", 1))
        return self._text.binary("or", fits, single)

    def _require_stride(self, tensor: _Tensor, dim: int, expected: Value, stride: Value) -> None:
        """The stride of a dimension of more than one element must be the one expected."""
        fits = self._fits_stride(tensor, dim, expected, stride)
        self._require(fits, self._errors.report, "strides", tensor.position, dim, expected, stride)

    def _data(self, tensor: _Tensor) -> Value:
        assert tensor.data is not None
        return tensor.data

    def _bind_strides(self, tensor: _Tensor) -> None:
        """Binds stride variables, checks other stride expressions, and finds the memory's extent:
        a negative stride reaches below the first element."""
        text, buffer = self._text, tensor.buffer
        strides = self._given_strides(tensor)
        zero, one = integer("i64", 0), integer("i64", 1)
        itemsize = integer("i64", buffer.dtype.itemsize)
        low, high = zero, one
        for dim, expr in enumerate(buffer.strides):
            stride = self._element(strides, dim)
            if isinstance(expr, Var) and expr not in self._expressions.variables:
                narrow = self._stride(tensor, dim, expr, stride)
                self._expressions.variables[expr] = narrow
            elif not buffer.layout:
                self._require_stride(tensor, dim, self._expressions.dimension(expr), stride)
            reach = text.binary("mul", stride, text.binary("sub", tensor.extents[dim], one))
            low = text.binary("add", low, text.intrinsic("smin", "i64", reach, zero))
            high = text.binary("add", high, text.intrinsic("smax", "i64", reach, zero))
        first = self._data(tensor)
        empty = zero
        for extent in tensor.extents:
            empty = text.binary(
                "or", empty, text.convert("zext", text.icmp("eq", extent, zero), "i64")
            )
        span = text.select(text.icmp("eq", empty, zero), high, low)
        tensor.data = text.element_pointer("i8", first, text.binary("mul", low, itemsize))
        tensor.end = text.element_pointer("i8", first, text.binary("mul", span, itemsize))
        self._first[tensor.position] = first

    def _given_strides(self, tensor: _Tensor) -> Value:
        """The address of the strides; DLPack lets a compact array have none."""
        text = self._text
        strides = dltensor.load_field(text, tensor.handle, dltensor.STRIDES, "ptr")
        compact = text.alloca("i64", tensor.buffer.ndim)
        step = integer("i64", 1)
        for dim in reversed(range(tensor.buffer.ndim)):
            text.store(step, text.element_pointer("i64", compact, integer("i64", dim)), 8)
            step = self._expressions.times(step, tensor.extents[dim])
        return text.select(text.icmp("eq", strides, NULL), compact, strides)

    # -- overlap, and the call --

    def _check_overlaps(self, tensors: list[_Tensor]) -> None:
        """Each output against each other argument, and against itself. An input in whose place an
        output is has the output's memory, which is enough to look at."""
        by_position = {tensor.position: tensor for tensor in tensors}
        same = self._func.attrs.in_place
        for output, before in sorted(same):
            holds = self._are_same(by_position[output], by_position[before])
            names = before, self._names[before]
            self._require(holds, self._errors.report, "same", output, *names)
        covered = {before for _, before in same}
        regions = [self._region(each) for each in tensors if each.position not in covered]
        for region in regions:
            if region.is_output and not region.is_compact:
                for dim, apart in enumerate(own_elements_apart(self._text, region)):
                    report = self._errors.report
                    self._require(apart, report, "own_overlap", region.position, dim)
        self._require_apart(regions)

    def _require_apart(self, regions: list[Region]) -> None:
        text = self._text
        meeting, shared, apart = (text.block(hint) for hint in ("meeting", "shared", "apart"))
        text.branch_if(ranges_apart(text, regions), apart, meeting, likely=True)
        text.place(meeting)
        with text.scope():
            status = self._errors.report_overlaps(regions)
            text.branch_if(text.icmp("eq", status, integer("i32", 0)), apart, shared)
            text.place(shared)
            text.ret(status)
        text.place(apart)

    def _are_same(self, output: _Tensor, other: _Tensor) -> Value:
        """Whether two arrays of one shape are one array."""
        text = self._text
        same = text.icmp("eq", self._first_element(output), self._first_element(other))
        if not output.buffer.strides and not other.buffer.strides:
            return same
        strides = (self._expressions.strides(each.buffer) for each in (output, other))
        for extent, *steps in zip(output.extents, *strides, strict=True):
            single = text.icmp("sle", extent, integer("i64", 1))
            agrees = text.binary("or", text.icmp("eq", *steps), single)
            same = text.binary("and", same, agrees)
        return same

    def _first_element(self, tensor: _Tensor) -> Value:
        return self._first.get(tensor.position, self._data(tensor))

    def _check_own_overlap(self, output: _Tensor, region: Region) -> None:
        for dim, apart in enumerate(own_elements_apart(self._text, region)):
            self._require(apart, self._errors.report, "own_overlap", output.position, dim)

    def _region(self, tensor: _Tensor) -> Region:
        assert tensor.data is not None
        assert tensor.end is not None
        return Region(
            tensor=tensor.handle,
            low=tensor.data,
            end=tensor.end,
            extents=tensor.extents,
            strides=self._expressions.strides(tensor.buffer),
            name=self._names[tensor.position],
            position=tensor.position,
            is_output=tensor.buffer in self._written,
            is_compact=not tensor.buffer.strides,
        )

    def _call(self, tensors: list[_Tensor], assertions: list[Assertion], ret_code: Value) -> None:
        text = self._text
        failure = text.alloca("i64", MAX_FAILURE_VALUES)
        by_position = {tensor.position: tensor for tensor in tensors}
        arguments: list[Value] = []
        for position, param in enumerate(self._func.params):
            tensor = by_position.get(position)
            if tensor is None:
                arguments.append(self._expressions.variables[param])
            else:
                arguments.append(self._first_element(tensor))
        arguments.extend(self._expressions.variables[var] for var in self._sizes)
        body = Value("ptr", f"@{symbol(_body_symbol(self._func.name))}")
        status = self._without_gil(lambda: text.call(body, "i32", [*arguments, failure]))
        done, failed = text.block("done"), text.block("failed")
        text.branch_if(text.icmp("eq", status, integer("i32", 0)), done, failed, likely=True)
        text.place(done)
        text.store(integer("i32", ArgTypeCode.NULL), ret_code, 4)
        text.ret(integer("i32", 0))
        text.place(failed)
        self._report_failure(status, failure, assertions)

    def _without_gil(self, call: Callable[[], Value]) -> Value:
        """What `call` gives, with the GIL released around it where that pays."""
        if e.const_int(self._pays_release) == 0:
            return call()
        state = release_gil(self._text, self._expressions.emit(self._pays_release))
        status = call()
        take_gil(self._text, state)
        return status

    def _report_failure(self, status: Value, failure: Value, assertions: list[Assertion]) -> None:
        """Raises what the assertion of number `status` says; of -1 the error is set already."""
        text = self._text
        blocks = [text.block("assertion") for _ in assertions]
        gave_up = text.block("callee_failed")
        text.switch(status, gave_up, [(i + 1, block) for i, block in enumerate(blocks)])
        for block, assertion in zip(blocks, assertions, strict=True):
            text.place(block)
            with text.scope():
                values = [self._element(failure, i) for i in range(assertion.values)]
                message = percent_escaped(assertion.message).replace("{}", "%lld")
                raise_error(text, assertion.kind, text.module.string(message), values)
            text.ret(integer("i32", -1))
        text.place(gave_up)
        text.ret(integer("i32", -1))


def _largest(extent: PrimExpr) -> float:
    """The most that a dimension may be, as far as its dtype tells."""
    return min(Prover().const_int_bound(extent)[1], INT64.max())


def _all(text: FunctionText, conditions: Sequence[Value]) -> Value:
    """Whether all of some conditions hold."""
    first, *others = conditions
    return reduce(partial(text.binary, "and"), others, first)


def arg_names(func: PrimFunc) -> tuple[str, ...]:
    """The names of a function's parameters: a tensor's is its buffer's."""
    return tuple(
        func.buffer_map[param].name if param in func.buffer_map else param.name
        for param in func.params
    )
