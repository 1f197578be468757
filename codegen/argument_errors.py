"""The messages of a compiled function about its arguments.

Each is a cold internal function of the module, so that a check in the entry is a comparison, a
branch and a call. They set a Python error, which needs the GIL, and return -1.
"""

from __future__ import annotations

from collections.abc import Sequence

from minitvm.codegen.llvm_text import FunctionText, ModuleText, Value, integer, symbol
from minitvm.runtime.device import DEVICE_TYPES
from minitvm.runtime.dtype import CODE_NAMES, TypeCode

_KINDS = (
    "an integer", "an unsigned integer", "a float", "an opaque pointer", "None", "a dtype",
    "a device", "an array", "an object", "a module", "a function", "a str", "bytes", "an array",
    "an object",
)  # fmt: skip
ERROR_PREFIX = "minitvm_error_"


def raise_error(text: FunctionText, kind: str, format: Value, values: Sequence[Value]) -> None:
    """Sets a Python exception of class `kind` (a name of
    :data:`minitvm.runtime.errors.RAISABLE`) with the text that ``PyErr_Format`` makes."""
    signature = "ptr (ptr, ptr, ...)"
    set_error = text.module.external_function("PyErr_Format", signature)
    error = text.load("ptr", text.module.external_global(ERROR_PREFIX + kind), 8)
    text.call(set_error, "ptr", [error, format, *values], signature=signature)


class ArgumentErrors:
    """The messages of one function, named `name`, with arguments named `arg_names`."""

    def __init__(self, module: ModuleText, name: str, arg_names: Sequence[str]) -> None:
        self._module = module
        self._name = name
        self._arg_names = arg_names

    def count(self, text: FunctionText, found: Value) -> Value:
        """Wrong number of arguments."""
        listed = ", ".join(self._arg_names)
        noun = "argument" if len(self._arg_names) == 1 else "arguments"
        message = f"{percent_escaped(self._name)}: expected {len(self._arg_names)} {noun}"
        message += f" ({percent_escaped(listed)}), got %d" if self._arg_names else ", got %d"
        return self._report(text, "count", "TypeError", message, [found], names_argument=False)

    def kind(self, text: FunctionText, arg: int, expected: str, code: Value) -> Value:
        """An argument of another kind, by its type code."""
        message = "expected %s, got %s"
        return self._report(
            text, "kind", "TypeError", message, [arg, expected, code], tables={2: _KINDS}
        )

    def null(self, text: FunctionText, arg: int) -> Value:
        """A null pointer where an array should be."""
        return self._report(
            text, "null", "TypeError", "expected an array, got a null pointer", [arg]
        )

    def ndim(self, text: FunctionText, arg: int, expected: int, found: Value) -> Value:
        """Another number of dimensions."""
        return self._report(
            text, "ndim", "ValueError", "expected ndim == %d, got %d", [arg, expected, found]
        )

    def dtype(self, text: FunctionText, arg: int, expected: str, word: Value) -> Value:
        """Another element type, given as DLPack's three numbers in one word."""
        one_byte = integer("i32", 255)
        code = text.binary("and", word, one_byte)
        bits = text.binary("and", text.binary("lshr", word, integer("i32", 8)), one_byte)
        lanes = text.binary("lshr", word, integer("i32", 16))
        # Only int, uint, float, bfloat and complex are named together with their bits.
        is_bool = text.icmp("eq", code, integer("i32", TypeCode.BOOL))
        is_handle = text.icmp("eq", code, integer("i32", TypeCode.HANDLE))
        is_narrow = text.icmp("ugt", code, integer("i32", TypeCode.BOOL))
        plain = text.binary("or", text.binary("or", is_bool, is_handle), is_narrow)
        head = "expected dtype %s, got %s"
        with_lanes = text.icmp("ne", lanes, integer("i32", 1))
        named = self._format(head)
        scalar = self._format(head + "%d")
        vector = self._format(head + "%dx%d")
        format = text.select(with_lanes, vector, text.select(plain, named, scalar))
        return self._report(
            text, "dtype", "TypeError", format, [arg, expected, code, bits, lanes],
            tables={2: CODE_NAMES},
        )  # fmt: skip

    def device(self, text: FunctionText, arg: int, type: Value, number: Value) -> Value:
        """An array elsewhere than on the CPU."""
        names = {value: name for name, value in DEVICE_TYPES.items()}
        table = tuple(names.get(i, "unknown device") for i in range(max(names) + 1))
        message = "expected an array on cpu, got one on %s(%d)"
        return self._report(
            text, "device", "ValueError", message, [arg, type, number], tables={1: table}
        )

    def shape(
        self, text: FunctionText, arg: int, dim: int, source: str, expected: Value, found: Value
    ) -> Value:
        """An extent that differs from the one expected, which is that of `source`."""
        message = "expected shape[%d] == %lld%s, got %lld"
        return self._report(
            text, "shape", "ValueError", message, [arg, dim, expected, source, found]
        )

    def extent_range(
        self, text: FunctionText, arg: int, dim: int, dtype: str, found: Value
    ) -> Value:
        """An extent that the variable for it can't hold."""
        message = "expected shape[%d] that fits %s, got %lld"
        return self._report(text, "extent", "ValueError", message, [arg, dim, dtype, found])

    def strides(
        self, text: FunctionText, arg: int, dim: int, expected: Value, found: Value
    ) -> Value:
        """A layout that the code was not made for."""
        message = "expected strides[%d] == %lld (elements), got %lld"
        return self._report(text, "strides", "LayoutError", message, [arg, dim, expected, found])

    def data(self, text: FunctionText, arg: int, size: Value) -> Value:
        """No memory behind an array that has elements."""
        message = "expected memory for %lld elements, got a null data pointer"
        return self._report(text, "data", "ValueError", message, [arg, size])

    def alignment(self, text: FunctionText, arg: int, bytes: int, found: Value) -> Value:
        """Elements that are not aligned to their own size."""
        message = "expected data aligned to %d bytes, got address %p"
        return self._report(text, "alignment", "ValueError", message, [arg, bytes, found])

    def overlap(self, text: FunctionText, arg: int, other: int) -> Value:
        """An output in the memory of another argument."""
        message = (
            "expected an output that shares no memory with argument %d '%s', "
            "got overlapping memory: pass a copy or another output"
        )
        name = self._arg_names[other]
        return self._report(text, "overlap", "ValueError", message, [arg, other, name])

    def scalar_range(self, text: FunctionText, arg: int, dtype: str, found: Value) -> Value:
        """An integer that its parameter can't hold."""
        message = "expected a value of dtype %s, got %lld"
        return self._report(text, "scalar", "ValueError", message, [arg, dtype, found])

    def _format(self, message: str) -> Value:
        return self._module.string(f"{percent_escaped(self._name)}: argument %d '%s': {message}")

    def _report(
        self,
        text: FunctionText,
        key: str,
        kind: str,
        message: str | Value,
        values: Sequence[int | str | Value],
        *,
        tables: dict[int, tuple[str, ...]] | None = None,
        names_argument: bool = True,
    ) -> Value:
        """A call of the message's function, which is made at its first use.

        The first of `values` is the argument's number; `tables` turn others from numbers to names.
        """
        module = self._module
        operands = [
            integer("i32", v)
            if isinstance(v, int)
            else module.string(v)
            if isinstance(v, str)
            else v
            for v in values
        ]
        if isinstance(message, Value):
            operands.append(message)
        name = f"minitvm.{key}.{self._name}"
        function = Value("ptr", f"@{symbol(name)}")
        if module.claim(function.text):
            types = [(operand.type, f"a{i}") for i, operand in enumerate(operands)]
            self._define(name, kind, message, types, tables or {}, names_argument)
        return text.call(function, "i32", operands)

    def _define(
        self,
        name: str,
        kind: str,
        message: str | Value,
        types: Sequence[tuple[str, str]],
        tables: dict[int, tuple[str, ...]],
        names_argument: bool,
    ) -> None:
        text = FunctionText(
            self._module, name, "i32", types, linkage="internal", attributes="cold noinline "
        )
        values = list(text.params)
        for position, table in tables.items():
            values[position] = self._name_of(text, name, position, table, values[position])
        if names_argument:
            names = self._module.string_table(f"names.{self._name}", self._arg_names)
            wide = text.convert("sext", values[0], "i64")
            entry = text.element_pointer("ptr", names, wide)
            values.insert(1, text.load("ptr", entry, 8))
        if isinstance(message, Value):
            format = values.pop()
        else:
            format = self._format(message) if names_argument else self._module.string(message)
        raise_error(text, kind, format, values)
        text.ret(integer("i32", -1))
        text.finish()

    def _name_of(
        self, text: FunctionText, name: str, position: int, table: tuple[str, ...], value: Value
    ) -> Value:
        """The entry of a table of names, or "unknown"."""
        known = text.icmp("ult", value, integer("i32", len(table)))
        index = text.select(known, value, integer("i32", len(table)))
        pointers = self._module.string_table(f"{name}.{position}", (*table, "unknown"))
        entry = text.element_pointer("ptr", pointers, text.convert("zext", index, "i64"))
        return text.load("ptr", entry, 8)


def percent_escaped(text: str) -> str:
    """`text` as it stands in a format."""
    return text.replace("%", "%%")
