"""The types and the names of a page of native code (:mod:`minitvm.runtime.native_language`)."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, final

from minitvm.runtime.errors import InternalError
from minitvm.runtime.record import record


@final
@record()
class Type:
    """A type: of a number, a pointer to a type, an array of a type, or a structure by its name."""

    text: str  # of LLVM
    bits: int = 0  # of a number
    is_signed: bool = True
    of: Type | None = None  # of the elements of an array, or of the target of a pointer

    def __str__(self) -> str:
        return self.text if self.is_signed else f"u{self.bits}"

    @property
    def is_pointer(self) -> bool:
        return self.text == "ptr"

    @property
    def is_float(self) -> bool:
        return self.text in ("float", "double")

    @property
    def is_in_memory(self) -> bool:
        """Whether a value is an address: of a structure or an array."""
        return self.text[0] in "%["


VOID, POINTER, TRUTH = Type("void"), Type("ptr"), Type("i1", 1)
BYTE, WORD = Type("i8", 8), Type("i64", 64)
TYPES = {
    **{f"i{bits}": Type(f"i{bits}", bits) for bits in (1, 8, 16, 32, 64)},
    **{f"u{bits}": Type(f"i{bits}", bits, is_signed=False) for bits in (8, 16, 32, 64)},
    "boolean": Type("zeroext i1", 1),  # the result of a function of C
    "float": Type("float", 32),
    "double": Type("double", 64),
    "ptr": POINTER,
    "void": VOID,
}
_OF_LLVM = {each.text: each for each in TYPES.values() if each.is_signed}


def pointer_to(kind: Type) -> Type:
    return Type("ptr", of=kind)


@final
@record()
class Value:
    """A value of LLVM; a literal has no type until it meets one."""

    type: Type | None
    text: str

    def __str__(self) -> str:
        assert self.type is not None
        return f"{self.type.text} {self.text}"


@final
@record()
class Function:
    """The signature of a function: the types, and whether more arguments may follow."""

    name: str
    result: Type
    parameters: tuple[Type, ...]
    is_variadic: bool = False

    @property
    def head(self) -> str:
        """The type, in a call of a variadic function, and in a declaration behind ``@``."""
        parameters = [each.text for each in self.parameters] + ["..."] * self.is_variadic
        return f"{self.result.text} ({', '.join(parameters)})"


def refused(node: Any, why: str = "is no part of the language") -> InternalError:
    """A mistake in a page is one of ours."""
    return InternalError(f"native code: {ast.unparse(node)!r}, line {node.lineno}: {why}")


def is_named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def number(node: ast.expr) -> int:
    """The value of an expression of literals."""
    return int(eval(ast.unparse(node), {}))


class Names:
    """The structures, global variables, functions and texts of a page."""

    def __init__(self, external: Mapping[str, str]) -> None:
        self.structures: dict[str, dict[str, tuple[int, Type]]] = {}
        self.variables: dict[str, Type] = {}
        self.functions: dict[str, Function] = {}
        self.declared: dict[str, Function] = {}  # functions of C and LLVM that the page uses
        self.texts: dict[str, str] = {}  # the names of constants
        self._external = external

    def type(self, node: ast.expr | None) -> Type:
        """The type that an expression names."""
        if isinstance(node, ast.Name):
            return TYPES.get(node.id) or Type(f"%{node.id}")
        if isinstance(node, ast.Subscript) and is_named(node.value, "ptr"):
            return pointer_to(self.type(node.slice))
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):  # array[T, n]
            element = self.type(node.slice.elts[0])
            return Type(f"[{number(node.slice.elts[1])} x {element.text}]", of=element)
        raise refused(node)

    def function(self, name: str, node: ast.expr) -> Function:
        """A function of the page, or of C or LLVM."""
        if name in self.functions:
            return self.functions[name]
        if name not in self._external:
            raise refused(node, "is nothing")
        result, _, rest = self._external[name].partition(" (")
        symbol, _, result = result.rpartition(" ")  # LLVM's name, before the type
        kinds = [each for each in rest[:-1].split(", ") if each]
        types = tuple(_OF_LLVM[each] for each in kinds if each != "...")
        return self.declare(Function(symbol or name, _OF_LLVM[result], types, "..." in kinds))

    def declare(self, function: Function) -> Function:
        return self.declared.setdefault(function.name, function)

    def text(self, text: str) -> str:
        """The name of a constant text."""
        return self.texts.setdefault(text, f"text.{len(self.texts)}")
