"""The error messages of compiled functions about their arguments.

A check in a function's entry is a comparison, a branch and a call of one of the functions made
here, which finds out which mistake it is, if several are possible. They are the same for every
kernel, so one module of them is compiled once a process, without optimisation: they run only when
an argument is wrong. They set a Python error, taking the GIL for that, and return -1. Where only
the layout of the arrays is wrong, and the caller asks for the variant that takes it
(:mod:`minitvm.runtime.arrangement`), they return NEEDS_VARIANT without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import final

from minitvm.codegen.dltensor import Tensor, load_field
from minitvm.codegen.gil import take_gil_anew
from minitvm.codegen.llvm_text import NULL, FunctionText, ModuleText, Value, i32, i64
from minitvm.codegen.overlap import emit_overlap_check, tables_of
from minitvm.runtime.arrangement import ALL_WISHES, ASKS_FOR_VARIANT, NEEDS_VARIANT
from minitvm.runtime.device_type import DEVICE_TYPES
from minitvm.runtime.dtype import CODE_NAMES, TypeCode
from minitvm.runtime.record import record
from minitvm.runtime.values import ArgTypeCode

ARRAY_CODES = (ArgTypeCode.DLTENSOR_HANDLE, ArgTypeCode.NDARRAY_HANDLE)
REPORT_PREFIX = "minitvm_report_"
ERROR_PREFIX = "minitvm_error_"

_KINDS = (
    "an integer", "an unsigned integer", "a float", "an opaque pointer", "None", "a dtype",
    "a device", "an array", "an object", "a module", "a function", "a str", "bytes", "an array",
    "an object",
)  # fmt: skip
_DEVICE_NAMES = {number: name for name, number in DEVICE_TYPES.items()}
_DEVICES = tuple(_DEVICE_NAMES.get(i, "unknown device") for i in range(max(_DEVICE_NAMES) + 1))


@final
@record()
class Message:
    """One message: the class of the error (a name of :data:`minitvm.runtime.errors.RAISABLE`), the
    text for ``PyErr_Format``, and the LLVM types of the values that it shows. `tables` give names
    to numbers among the values. `arrangement`: a variant of the function may take these arrays."""

    kind: str
    format: str
    types: tuple[str, ...] = ()
    tables: dict[int, tuple[str, ...]] = field(default_factory=dict)
    arrangement: bool = False


# The mistakes in one argument. Each text continues "fmm: argument 1 'Y': expected ".
MESSAGES: dict[str, Message] = {
    "kind": Message("TypeError", "%s, got %s", ("ptr", "i32"), {1: _KINDS}),
    "null": Message("TypeError", "an array, got a null pointer"),
    "ndim": Message("ValueError", "ndim == %d, got %d%s", ("i32", "i32", "ptr")),
    "dtype": Message("TypeError", "dtype %s, got %s", ("ptr", "i32")),
    "device": Message("ValueError", "an array on cpu, got one on %s(%d)", ("i32", "i32"),
                      {0: _DEVICES}),
    "shape": Message("ValueError", "shape[%d] == %lld%s, got %lld%s",
                     ("i32", "i64", "ptr", "i64", "ptr")),
    "extent": Message("ValueError", "shape[%d] from 0 to the largest %s, got %lld",
                      ("i32", "ptr", "i64")),
    "size": Message("ValueError", "an array of less than 2**63 bytes, got a shape of more"),
    "strides": Message("LayoutError", "strides[%d] == %lld (elements), got %lld",
                       ("i32", "i64", "i64"), arrangement=True),
    "declared": Message("LayoutError", "strides[%d] == %lld (elements, layout_%s), got %lld%s",
                        ("i32", "i64", "ptr", "i64", "ptr")),
    "positive": Message("LayoutError", "strides[%d] of at least 1 (elements, layout_stride), got "
                        "%lld: pass a copy", ("i32", "i64")),
    "no_strides": Message("LayoutError", "strides (layout_%s), got a null pointer", ("ptr",),
                          arrangement=True),
    "data": Message("ValueError", "memory for %lld elements, got a null data pointer", ("i64",)),
    "alignment": Message("ValueError", "data aligned to %d bytes, got address %p: pass a copy",
                         ("i32", "ptr")),
    "overlap": Message(
        "ValueError",
        "an output that shares no memory with argument %d '%s', got overlapping memory: pass a "
        "copy or another output",
        ("i32", "ptr"),
        arrangement=True,
    ),
    "same": Message(
        "ValueError",
        "the same array as argument %d '%s', got another one: call the function that was built, "
        "not a variant of it",
        ("i32", "ptr"),
        arrangement=True,
    ),
    "own_overlap": Message(
        "ValueError",
        "an output whose elements are apart, got strides that make them share memory along "
        "dimension %d: pass a copy or another output",
        ("i32",),
    ),
    "scalar": Message("ValueError", "a value of dtype %s, got %lld", ("ptr", "i64")),
}  # fmt: skip
_ARGUMENT = ("ptr function", "i32 position", "ptr name")
_COUNT = "count"
_OVERLAPS = "overlapping"  # another name when its parameters change: saved code asks for it


def raise_error(text: FunctionText, kind: str, format: Value, values: Sequence[Value]) -> None:
    """Sets a Python exception of class `kind` (a name of
    :data:`minitvm.runtime.errors.RAISABLE`) with the text that ``PyErr_Format`` makes."""
    signature = "ptr (ptr, ptr, ...)"
    set_error = text.module.external_function("PyErr_Format", signature)
    error = text.load("ptr", text.module.external_global(ERROR_PREFIX + kind), 8)
    text.call(set_error, "ptr", [error, format, *values], signature=signature)


class ArgumentErrors:
    """Emits the reports of one function, whose arguments are `arg_names`."""

    def __init__(
        self, text: FunctionText, function: str, arg_names: Sequence[str], ret_type_code: Value
    ) -> None:
        self._text = text
        self._ret_type_code = ret_type_code
        self._function = function
        self._arg_names = arg_names

    def report(self, name: str, position: int, *values: int | str | Value) -> None:
        """Reports a message of :data:`MESSAGES` about an argument, or the first fitting one by a
        function of :data:`SEARCHES`; ends the function with the status."""
        message = MESSAGES.get(name)
        asking = [self._ret_type_code] if message is not None and message.arrangement else []
        operands = [*asking, self._function, position, self._arg_names[position], *values]
        self._call(name, operands, () if message is None else message.types)

    def report_count(self, found: Value) -> None:
        """Reports a wrong number of arguments, and ends the function."""
        names = self._arg_names
        expected = f"{len(names)} argument{'' if len(names) == 1 else 's'}"
        if names:
            expected += f" ({', '.join(names)})"
        self._call(_COUNT, [self._function, expected, found], ())

    def overlaps(self, tensors: Sequence[Tensor]) -> Value:
        """The status after a report of the first of the outputs among `tensors` that shares memory
        with another one; 0 if there is none."""
        function, count = self._text.module.string(self._function), i64(len(tensors))
        operands = [self._ret_type_code, function, *tables_of(self._text, tensors), count]
        return self._text.call_external(REPORT_PREFIX + _OVERLAPS, "i32", operands)

    def _call(self, name: str, values: Sequence[int | str | Value], shown: tuple[str, ...]) -> None:
        """`shown` are the types of the last `values`, which the message shows."""
        string = self._text.module.string
        operands = [
            string(v) if isinstance(v, str) else i32(v) if isinstance(v, int) else v for v in values
        ]
        assert not shown or shown == tuple(v.type for v in operands[-len(shown) :])
        self._text.ret(self._text.call_external(REPORT_PREFIX + name, "i32", operands))


def messages_text(triple: str, data_layout: str) -> str:
    """The LLVM IR of the functions that report."""
    module = ModuleText("messages", triple, data_layout)
    count = _open(module, _COUNT, ("ptr function", "ptr expected", "i32 found"))
    _raise(count, "TypeError", module.string("%s: expected %s, got %d"), count.params)
    _close(count)
    for name, message in MESSAGES.items():
        asking = ["ptr ret_type_code"] if message.arrangement else []
        shown = (f"{type} value{i}" for i, type in enumerate(message.types))
        text = _open(module, name, [*asking, *_ARGUMENT, *shown])
        values = list(text.params)
        if message.arrangement:
            code = text.load("i32", values.pop(0), 4)
            asked, raises = text.blocks("asked", "raises")
            asks_for = asks(text, code, ASKS_FOR_VARIANT)
            text.return_if(asks_for, i32(NEEDS_VARIANT), asked, raises)
        for position, table in message.tables.items():
            at = len(_ARGUMENT) + position
            values[at] = _entry_of(text, f"{name}.{position}", table, values[at])
        format = module.string(_full(message.format))
        if name == "dtype":
            format, parts = _found_dtype(text, message.format, values.pop())
            values += parts
        _raise(text, message.kind, format, values)
        _close(text)
    for search, (details, emit) in SEARCHES.items():
        text = _open(module, search, (*_ARGUMENT, *details))
        emit(text, *text.params[len(_ARGUMENT) :])
        text.finish()
    emit_overlap_check(module, REPORT_PREFIX + _OVERLAPS, REPORT_PREFIX + "overlap")
    return str(module)


def _raise(text: FunctionText, kind: str, format: Value, values: Sequence[Value]) -> None:
    """As :func:`raise_error`, for callers with or without the GIL."""
    state = take_gil_anew(text)
    raise_error(text, kind, format, values)
    text.call_external("PyGILState_Release", "void", [state])


def _open(module: ModuleText, name: str, params: Sequence[str]) -> FunctionText:
    return FunctionText(module, REPORT_PREFIX + name, "i32", params)


def _close(text: FunctionText) -> None:
    text.ret(i32(-1))
    text.finish()


def _return_report(
    text: FunctionText, message: str, *values: Value, asking: Sequence[Value] = ()
) -> None:
    """Ends a function by calling a message's function, with the same parameters about an
    argument."""
    reporter = Value("ptr", f"@{REPORT_PREFIX}{message}")
    arguments = [*asking, *text.params[: len(_ARGUMENT)], *values]
    text.ret(text.call(reporter, "i32", arguments))


def _search_array(text: FunctionText, *values: Value) -> None:
    advice, dtype, code, handle, ndim, word = values
    a, b = (text.icmp("eq", code, i32(each)) for each in ARRAY_CODES)
    with text.unless(text.binary("or", a, b)):
        _return_report(text, "kind", text.module.string("an array"), code)
    with text.unless(text.icmp("ne", handle, NULL)):
        _return_report(text, "null")
    found = load_field(text, handle, "ndim")
    with text.unless(text.icmp("eq", found, ndim)):
        _return_report(text, "ndim", ndim, found, advice)
    found = load_field(text, handle, "dtype")
    with text.unless(text.icmp("eq", found, word)):
        _return_report(text, "dtype", dtype, found)
    device = [load_field(text, handle, field) for field in ("device_type", "device_id")]
    _return_report(text, "device", *device)


def _search_extents(text: FunctionText, *values: Value) -> None:
    advice, handle, expected, sources = values
    shape = load_field(text, handle, "shape")

    def differs(dim: Value) -> Value:
        return text.icmp("ne", text.word(shape, dim), text.word(expected, dim))

    dim = _first(text, differs)
    found, wanted = text.word(shape, dim), text.word(expected, dim)
    number = text.convert("trunc", dim, "i32")
    with text.unless(text.icmp("eq", sources, NULL)):
        source = text.word(sources, dim, "ptr")
        _return_report(text, "shape", number, wanted, source, found, advice)
    _return_report(text, "shape", number, wanted, text.module.string(""), found, advice)


def _search_memory(text: FunctionText, *values: Value) -> None:
    size, data, first, alignment = values
    empty = text.icmp("eq", size, i64(0))
    with text.unless(text.binary("or", text.icmp("ne", data, NULL), empty)):
        _return_report(text, "data", size)
    _return_report(text, "alignment", alignment, first)


def _search_layout(text: FunctionText, asking: Value, handle: Value, expected: Value) -> None:
    shape, strides = (load_field(text, handle, field) for field in ("shape", "strides"))

    def differs(dim: Value) -> Value:
        several = text.icmp("sgt", text.word(shape, dim), i64(1))
        other = text.icmp("ne", text.word(strides, dim), text.word(expected, dim))
        return text.binary("and", several, other)

    dim = _first(text, differs)
    number = text.convert("trunc", dim, "i32")
    found, wanted = text.word(strides, dim), text.word(expected, dim)
    _return_report(text, "strides", number, wanted, found, asking=[asking])


def _first(text: FunctionText, found: Callable[[Value], Value]) -> Value:
    """The first number for which a condition holds; there is one."""
    before = text.current
    search, done = text.blocks("search", "found")
    text.branch(search)
    text.place(search)
    number, upcoming = text.phi_open(i64(0), before, search)
    text.count_up(upcoming, number, i64(1), signed=True)
    with text.scope():
        text.branch_if(found(number), done, search)
    text.place(done)
    return number


# The searches for the fitting message: the parameters after those of _ARGUMENT, and the search.
SEARCHES: dict[str, tuple[Sequence[str], Callable[..., None]]] = {
    "array": (
        ("ptr advice", "ptr dtype", "i32 code", "ptr handle", "i32 ndim", "i32 word"),
        _search_array,
    ),
    "extents": (("ptr advice", "ptr handle", "ptr expected", "ptr sources"), _search_extents),
    "memory": (("i64 size", "ptr data", "ptr first", "i32 alignment"), _search_memory),
    "layout": (("ptr asking", "ptr handle", "ptr expected"), _search_layout),
}


def asks(text: FunctionText, code: Value, wish: int) -> Value:
    """Whether a caller makes the request `wish`, by ``*ret_type_code``, alone or with other
    requests."""
    with_others = text.binary("or", code, i32(ALL_WISHES ^ wish))
    return text.icmp("eq", with_others, i32(ALL_WISHES))


def _full(format: str) -> str:
    return f"%s: argument %d '%s': expected {format}"


def _entry_of(text: FunctionText, name: str, table: tuple[str, ...], number: Value) -> Value:
    """The entry of a table of names, or "unknown"."""
    known = text.icmp("ult", number, i32(len(table)))
    index = text.select(known, number, i32(len(table)))
    pointers = text.module.string_table(name, (*table, "unknown"))
    entry = text.element_pointer("ptr", pointers, text.convert("zext", index, "i64"))
    return text.load("ptr", entry, 8)


def _found_dtype(text: FunctionText, format: str, word: Value) -> tuple[Value, list[Value]]:
    """The format that shows a ``DLDataType``, given as one word, and the parts to show.

    Only int, uint, float, bfloat and complex are named together with their bits.
    """
    one_byte = i32(255)
    code = text.binary("and", word, one_byte)
    bits = text.binary("and", text.binary("lshr", word, i32(8)), one_byte)
    lanes = text.binary("lshr", word, i32(16))
    bare = text.icmp("ugt", code, i32(TypeCode.COMPLEX))
    bare = text.binary("or", bare, text.icmp("eq", code, i32(TypeCode.HANDLE)))
    name, scalar, vector = (
        text.module.string(_full(format + rest)) for rest in ("", "%d", "%dx%d")
    )
    several = text.icmp("ne", lanes, i32(1))
    chosen = text.select(several, vector, text.select(bare, name, scalar))
    return chosen, [_entry_of(text, "dtype.names", CODE_NAMES, code), bits, lanes]


def percent_escaped(text: str) -> str:
    """`text` escaped for a format."""
    return text.replace("%", "%%")
