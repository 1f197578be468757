"""Serialises programs as JSON, and back: ``ir.save_json`` and ``ir.load_json``.

The text is JSON: a list of nodes, each behind the nodes that it refers to by their number, so that
shared subexpressions stay shared. A node is its class's name and the arguments of its constructor.
A value is a number, a string, a bool or null, or an object whose only key is the kind of the value:
``{"node": 3}``, ``{"float": "0x1.8p+1"}``, ``{"dtype": "int8"}``, ``{"tuple": [...]}``, ``{"set":
[...]}``, ``{"map": [[key, value], ...]}``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.tir.depth import deep_expressions
from minitvm.tir.described import described
from minitvm.tir.fields import CONSTRUCTED_OF
from minitvm.tir.node import WholeTensor
from minitvm.tir.nodes import FuncAttrs, Range

_FORMAT = "minitvm program 1"
_CLASSES: dict[str, type] = {cls.__name__: cls for cls in CONSTRUCTED_OF}
_NOT_SAVED: dict[type, frozenset[str]] = {
    FuncAttrs: frozenset({"origin"})
}  # they don't belong to a program's meaning


def save_json(node: Any) -> str:
    """The text of a program: an expression, a statement, a function or a module, or a list, tuple
    or dict of them.

    Raises
    ------
    CompileError
        When the program contains an object that isn't of the IR, such as a tensor of ``te``: save
        the result of ``lower``.

    >>> from minitvm.tir.expr import Var
    >>> i = Var("i")
    >>> load_json(save_json(i * i + 1))
    i * i + 1
    """
    numbers: dict[int, int] = {}
    nodes: list[Any] = []
    with deep_expressions("save_json"):  # for nested lists; nodes have no limit
        for each in _leaves_first(node):
            fields = [_value(getattr(each, name), numbers) for name in _saved(type(each))]
            numbers[id(each)] = len(nodes)
            nodes.append([type(each).__name__, *fields])
    return json.dumps({"format": _FORMAT, "nodes": nodes, "root": _value(node, numbers)})


def load_json(json_str: str) -> Any:
    """The program in a text of :func:`save_json`. Its variables are new ones.

    Raises
    ------
    CompileError
        When the text isn't one of :func:`save_json`, or was changed so that it has no meaning.
    """
    try:
        data = json.loads(json_str)
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise ValueError(f"no text of format {_FORMAT!r}")
        nodes: list[Any] = []
        for name, *fields in data["nodes"]:
            nodes.append(_made(_CLASSES[name], [_loaded(each, nodes) for each in fields]))
        return _loaded(data["root"], nodes)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise CompileError(
            f"load_json: expected a text that save_json made, got {described(json_str)}: {error}"
        ) from None


def _saved(cls: type) -> tuple[str, ...]:
    left_out = _NOT_SAVED.get(cls, frozenset())
    return tuple(name for name in CONSTRUCTED_OF[cls] if name not in left_out)


def _leaves_first(root: Any) -> Iterator[Any]:
    """Every distinct node below a value, each behind the nodes that it refers to, at any depth."""
    seen: set[int] = set()
    stack = [(each, False) for each in reversed(list(_nodes_in(root)))]
    while stack:
        node, follows_parts = stack.pop()
        if follows_parts:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            parts = [p for name in _saved(type(node)) for p in _nodes_in(getattr(node, name))]
            stack.extend((part, False) for part in reversed(parts) if id(part) not in seen)


def _nodes_in(value: Any) -> Iterator[Any]:
    if type(value) in CONSTRUCTED_OF:
        yield value
    elif isinstance(value, tuple | list | frozenset):
        for each in value:
            yield from _nodes_in(each)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _nodes_in(key)
            yield from _nodes_in(each)


def _value(value: Any, numbers: Mapping[int, int]) -> Any:
    if type(value) in CONSTRUCTED_OF:
        return {"node": numbers[id(value)]}
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, DType):
        return {"dtype": str(value)}
    if isinstance(value, Mapping):
        pairs = [[_value(k, numbers), _value(each, numbers)] for k, each in value.items()]
        return {"map": pairs}
    for kind, name in ((tuple, "tuple"), (list, "list"), (frozenset, "set")):
        if isinstance(value, kind):
            return {name: [_value(each, numbers) for each in value]}
    advice = ": save the loops that lower makes" if isinstance(value, WholeTensor) else ""
    raise CompileError(
        f"save_json: expected a program of expressions, statements and functions, found "
        f"{described(value)} in it{advice}"
    )


_LOADED: dict[str, Callable[[Any], Any]] = {
    "float": float.fromhex,
    "dtype": DType.of,
    "tuple": tuple,
    "list": list,
    "set": frozenset,
    "map": dict,
}


def _loaded(value: Any, nodes: list[Any]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, given),) = value.items()
    if kind == "node":
        if not isinstance(given, int) or given < 0:
            raise IndexError(f"expected the number of a node, got {given!r}")
        return nodes[given]
    if kind == "map":
        given = [(_loaded(key, nodes), _loaded(each, nodes)) for key, each in given]
    elif isinstance(given, list):
        given = [_loaded(each, nodes) for each in given]
    return _LOADED[kind](given)


def _made(cls: Any, values: list[Any]) -> Any:
    if cls is Range:
        return Range.from_min_extent(*values)
    names = _saved(cls)
    if len(names) != len(values):
        raise ValueError(f"expected {len(names)} values of a {cls.__name__}, got {len(values)}")
    return cls(**dict(zip(names, values, strict=True)))
