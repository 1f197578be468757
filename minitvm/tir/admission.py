"""Converts the arguments of nodes' constructors: numbers and axes to expressions, lists to tuples.

A literal takes the dtype of the neighbouring field that must have the same dtype, as in ``EQ(v,
4)``. Next to a float an integer literal becomes a float, as with operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from enum import IntEnum
from typing import Any

import numpy as np

from minitvm.runtime.dtype import HANDLE, INT32
from minitvm.runtime.errors import CompileError
from minitvm.tir.checks import dtype_at
from minitvm.tir.conversion import NUMBERS, as_dtype, as_expr, as_size, as_tuple, valued
from minitvm.tir.described import described, naming
from minitvm.tir.fields import class_of, of_annotation
from minitvm.tir.node import PrimExpr
from minitvm.tir.nodes import (
    BinaryOp,
    Buffer,
    BufferRef,
    BufferStore,
    FuncAttrs,
    IterVar,
    PrimFunc,
    Var,
)
from minitvm.tir.promotion import promote
from minitvm.tir.tree import with_fields

# Fields that share one dtype, which a literal among them takes. In a `BinaryOp` these fields are
# the operands.
_ALIKE: dict[str, tuple[str, ...]] = {
    "Select": ("true_value", "false_value"),
    "Ramp": ("base", "stride"),
    "Let": ("var", "value"),
    "LetStmt": ("var", "value"),
    "For": ("loop_var", "min", "extent"),
}


def admit(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """The fields of a node of `cls`, converted from the constructor's arguments."""
    annotations = {each.name: str(each.type) for each in fields(cls)}
    if cls is PrimFunc:
        values = _of_classic_function(values)
    alike = ("a", "b") if issubclass(cls, BinaryOp) else _ALIKE.get(cls.__name__, ())
    if cls is BufferStore:
        alike = ("value",)
    made: dict[str, Any] = {}
    for name, value in values.items():
        made[name] = value
        literal = isinstance(value, NUMBERS) and annotations[name] == "PrimExpr"
        if name not in alike or not literal:
            made[name] = _field(cls, name, annotations[name], value)
    with naming(cls.__name__):
        if cls is BufferStore:
            dtype = dtype_at(made["buffer"], made["indices"])
            return {**made, "value": valued(dtype, made["value"])}
        return {**made, **_of_one_dtype({name: made[name] for name in alike})}


def _of_classic_function(values: dict[str, Any]) -> dict[str, Any]:
    """The fields of a function, from fields that may have their classic form: buffers among the
    parameters, and attributes by their classic names."""
    made = dict(values)
    params = made["params"]
    if isinstance(params, tuple | list) and any(isinstance(each, Buffer) for each in params):
        handles = {each: Var(each.name, HANDLE) for each in params if isinstance(each, Buffer)}
        given = {} if made["buffer_map"] in (None, MISSING) else made["buffer_map"]
        made["params"] = tuple(handles.get(each, each) for each in params)
        made["buffer_map"] = {**given, **{var: buffer for buffer, var in handles.items()}}
    if made["buffer_map"] is None:
        made["buffer_map"] = {}
    attrs = made["attrs"]
    if attrs is None:
        made["attrs"] = FuncAttrs()
    elif isinstance(attrs, Mapping) and not attrs.keys() <= {e.name for e in fields(FuncAttrs)}:
        name = classic_name("PrimFunc: attrs", attrs)
        made.update(attrs=FuncAttrs(), name=made["name"] if name is None else name)
    return made


# Attributes that classic programs set, and that hold for every function here.
_TRUE_OF_EACH = ("tir.noalias", "tir.is_entry_func", "from_legacy_te_schedule")


def classic_name(where: str, attributes: Mapping[Any, Any]) -> str | None:
    """The name that classic attributes give a function, if any."""
    for key, value in attributes.items():
        expected = "True" if key in _TRUE_OF_EACH else "a name"
        if key not in ("global_symbol", *_TRUE_OF_EACH):
            known = ", ".join(("global_symbol", *_TRUE_OF_EACH))
            raise CompileError(
                f"{where}: expected an attribute among {known}, got {described(key)}: keep the "
                "findings of your own passes outside of the function"
            )
        if not (value in (True, 1) if key in _TRUE_OF_EACH else isinstance(value, str)):
            raise CompileError(f"{where}: {key}: expected {expected}, got {described(value)}")
    return attributes.get("global_symbol")


def with_attributes(func: PrimFunc, key_or_mapping: Any, value: Any) -> PrimFunc:
    """See :meth:`minitvm.tir.nodes.PrimFunc.with_attr`."""
    is_mapping = isinstance(key_or_mapping, Mapping)
    attributes = key_or_mapping if is_mapping else {key_or_mapping: value}
    name = classic_name(f"{func.name}: with_attr", attributes)
    return func if name is None else with_fields(func, name=name)


def _field(cls: type, name: str, annotation: str, value: Any) -> Any:
    """`value` converted for a field of a node."""
    kind, optional, several = of_annotation(annotation)
    if kind == "Any" or value is MISSING or (optional and value is None):
        return value
    taken = class_of(cls, kind)
    with naming(f"{cls.__name__}: {name}"):
        if several:
            return tuple(_as_kind(taken, kind, each) for each in as_tuple(value))
        return _as_kind(taken, kind, value)


def _as_kind(taken: Any, kind: str, value: Any) -> Any:
    converted = _CONVERTERS.get(kind, lambda same: same)(value)
    if issubclass(taken, IntEnum) and type(value) is int and value in list(taken):
        converted = taken(value)
    if not isinstance(converted, taken):
        raise CompileError(f"expected {_WORDS.get(kind, kind)}, got {described(value)}")
    return converted


def _of_one_dtype(values: dict[str, Any]) -> dict[str, Any]:
    """Expressions and literals, each literal in the dtype of the expressions."""
    literals = [value for value in values.values() if isinstance(value, NUMBERS)]
    if not literals:
        return values
    firm = [value for value in values.values() if not isinstance(value, NUMBERS)]
    if len(values) == 2 and not any(isinstance(value, Var) for value in firm if "var" in values):
        fraction = any(isinstance(literal, float) for literal in literals)
        if not firm or (fraction and firm[0].dtype.is_integral):
            return dict(zip(values, promote(*values.values()), strict=True))
    dtype = firm[0].dtype if firm else INT32
    return {
        name: valued(dtype, value) if isinstance(value, NUMBERS) else value
        for name, value in values.items()
    }


def _as_int(value: Any) -> Any:
    return value.__index__() if isinstance(value, np.integer) else value


def _as_float(value: Any) -> Any:
    if not isinstance(value, (int, float, np.floating, np.integer)):
        return value
    try:
        return float(value)
    except OverflowError:
        raise CompileError(
            f"expected a number that a float can hold, got {described(value)}"
        ) from None


def _as_var(value: Any) -> Any:
    return value.var if isinstance(value, IterVar) else value


def _as_buffer(value: Any) -> Any:
    convert = None if isinstance(value, type) else getattr(value, "asobject", None)
    reference = value if convert is None else convert()
    return reference.buffer if isinstance(reference, BufferRef) else value


def _as_attrs(value: Any) -> Any:
    known = {each.name for each in fields(FuncAttrs)}
    return FuncAttrs(**value) if isinstance(value, Mapping) and known.issuperset(value) else value


# The conversions to a class, and the names of classes in messages.
_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "PrimExpr": lambda value: as_expr(value),
    "DType": lambda value: as_dtype(value),
    "int": _as_int,
    "float": _as_float,
    "Var": _as_var,
    "Buffer": _as_buffer,
    "FuncAttrs": _as_attrs,
}
_WORDS = {
    "PrimExpr": "an expression",
    "Var": "a variable",
    "Buffer": "a buffer",
    "Stmt": "a statement",
    "WholeTensor": "a tensor",
    "IterVar": "an axis",
    "Range": "a Range",
    "CommReducer": "a reducer's combination",
    "FuncAttrs": "attributes of a function",
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "True or False",
}


def bounds(begin: Any, end: Any) -> tuple[PrimExpr, PrimExpr]:
    """The two ends of a range, or its begin and its length, in one dtype."""
    with naming("Range"):
        return promote(as_size(begin), as_size(end))
