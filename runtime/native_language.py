"""The language of the runtime's native code, and its translation to LLVM IR.

The runtime's own machine code (the call path, the pool of threads, pools of memory) is written in
this language: C with the syntax of Python. A page of it holds structures, global variables and
functions::

    class Node:
        key: i64
        next: ptr[Node]

    first: internal[ptr[Node]]  # a global variable, zero at the start

    # The node of a key, or null.
    @export
    def find(key: i64) -> ptr[Node]:
        node = first
        while node and node.key != key:
            node = node.next
        return node

Everything has the meaning that it has in C:

- Types are ``i1 i8 i16 i32 i64``, unsigned ``u8 u16 u32 u64``, ``float double``, ``ptr`` and
  ``ptr[T]``, ``array[T, n]``, and structures. Nothing is converted implicitly, with three
  exceptions: a literal takes the type of the other operand, any pointer may stand for any other,
  and functions of C take numbers of either sign. ``i32(x)`` converts. ``//`` and ``%`` round toward
  zero.
- ``p[i]`` and ``p.field`` read and write memory; ``at(p[i])`` is the address. A structure or an
  array in memory is its address. ``p + n`` moves a pointer by elements, one of ``ptr`` by bytes.
  ``load(T, p)`` and ``store(value, p)`` are for addresses without a type.
- A variable gets its type by its first assignment. ``and``, ``or`` and ``x if c else y`` compute
  only what they need; numbers and pointers are true where they aren't zero.
- ``alloca(T)`` and ``alloca(T, n)`` are memory until the function returns. ``call(T, f, ...)``
  calls an address. ``bits(x)`` are those of a double.
- ``load_acquire(place)``, ``store_release(value, place)`` and so on are atomic, and so are
  ``exchanges(place, old, new, order)``, which is whether the value was the old one, and
  ``fetch_add(place, value, order)``.
- ``max``, ``min``, ``ctlz``, ``cttz`` and the like are LLVM's; so is the pair
  ``value, is_over = add_overflow(a, b)``.
- A global variable is known outside of the page, unless it is ``internal``; a function with
  ``@export``. ``@inline`` and ``@noinline`` are LLVM's. A function with the body ``...`` is C's.

The types are checked here, the rest by LLVM's parser and verifier, in a test of every page.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

import minitvm.runtime.native_function as native_function
import minitvm.runtime.native_names as native_names
import minitvm.runtime.native_values as native_values
from minitvm.runtime.native_function import NativeFunction
from minitvm.runtime.native_names import (
    BYTE,
    VOID,
    Function,
    Names,
    Type,
    is_named,
    refused,
)
from minitvm.runtime.version import VERSION


def translate(page: str, external: Mapping[str, str]) -> str:
    """A page as LLVM IR.

    Parameters
    ----------
    page
        A text in the language of this module.
    external
        The types of the functions of C and LLVM that pages may call, by their names. Those that
        the page uses are declared.

    >>> print(translate('''
    ... class Pair:
    ...     first: i32
    ...     second: i64
    ...
    ... @export
    ... def second(pair: ptr[Pair]) -> i64:
    ...     return pair.second
    ... ''', {}))
    %Pair = type { i32, i64 }
    define i64 @second(ptr %pair) {
      %t1 = getelementptr %Pair, ptr %pair, i32 0, i32 1
      %t2 = load i64, ptr %t1
      ret i64 %t2
    }
    <BLANKLINE>
    """
    return "\n".join(_lines(ast.parse(page).body, Names(external))) + "\n"


def source_of_translation() -> str:
    """The texts on which translations depend, as far as they are at hand."""
    modules: list[Any] = [native_names, native_values, native_function]
    paths = [__file__, *(each.__file__ for each in modules)]
    try:
        return VERSION + "".join(str(modules[0].__spec__.loader.get_data(each)) for each in paths)
    except OSError:  # of a program that was packed without them
        return VERSION


def _lines(page: list[ast.stmt], names: Names) -> Iterator[str]:
    functions = []
    for node in page:
        if isinstance(node, ast.ClassDef):
            yield _structure(node, names)
        elif isinstance(node, ast.AnnAssign):
            yield _variable(node, names)
        elif isinstance(node, ast.Assign):
            yield _text(node, names)
        elif isinstance(node, ast.FunctionDef):
            result = names.type(node.returns) if node.returns else VOID
            parameters = tuple(names.type(each.annotation) for each in node.args.args)
            function = Function(node.name, result, parameters)
            names.functions[node.name] = function
            if ast.unparse(node.body[0]) == "...":
                names.declare(function)
            else:
                functions.append(node)
        else:
            raise refused(node)
    for node in functions:
        yield from NativeFunction(names, node).lines()
    for text, name in names.texts.items():
        yield f"@{name} = internal constant {_characters(text)}"
    for function in names.declared.values():
        yield f"declare {function.head.replace(' (', f' @{function.name}(', 1)}"


def _structure(node: ast.ClassDef, names: Names) -> str:
    fields: dict[str, tuple[int, Type]] = {}
    names.structures[node.name] = fields
    for field in node.body:
        assert isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        fields[field.target.id] = len(fields), names.type(field.annotation)
    kinds = ", ".join(kind.text for _, kind in fields.values())
    return f"%{node.name} = type {{ {kinds} }}"


def _variable(node: ast.AnnAssign, names: Names) -> str:
    assert isinstance(node.target, ast.Name)
    kind, linkage = node.annotation, ""
    if isinstance(kind, ast.Subscript) and is_named(kind.value, "internal"):
        kind, linkage = kind.slice, "internal "
    names.variables[node.target.id] = made = names.type(kind)
    start = ast.unparse(node.value) if node.value else "zeroinitializer"
    return f"@{node.target.id} = {linkage}global {made.text} {start}"


def _text(node: ast.Assign, names: Names) -> str:
    """``name = "text"``: a constant that is known outside."""
    (target,), value = node.targets, node.value
    assert isinstance(target, ast.Name) and isinstance(value, ast.Constant)
    constant = _characters(str(value.value))
    names.variables[target.id] = Type(constant[: constant.index("]") + 1], of=BYTE)
    return f"@{target.id} = constant {constant}"


def _characters(text: str) -> str:
    """A constant of a text, with a zero at its end."""
    data = [*text.encode(), 0]
    escaped = "".join(f"\\{c:02X}" if c < 32 or c > 126 or c in b'"\\' else chr(c) for c in data)
    return f'[{len(data)} x i8] c"{escaped}"'
