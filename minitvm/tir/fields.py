"""The fields of a node: the values that its constructor takes, and those that hold its children.

A field holds children where its annotation says ``PrimExpr`` or ``Stmt``, a tuple of them or None
in place of one. A bound variable or axis and a buffer are no children.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping
from dataclasses import field, fields
from functools import partial
from typing import Any, TypeVar

from minitvm.runtime.dtype import DType
from minitvm.runtime.record import dataclass_transform, record
from minitvm.tir.node import PrimExpr, Stmt, language

_Class = TypeVar("_Class", bound=type)

# The fields of each class of nodes that hold children, in the order of evaluation: the expressions
# of a statement come before the statements in it.
CHILDREN: dict[type, tuple[str, ...]] = {}
# For a field whose value holds the children, such as a reducer: the fields of that value.
HELD: dict[type, dict[str, tuple[str, ...]]] = {}
# The fields that the constructor of a class takes, in order.
CONSTRUCTED_OF: dict[type, tuple[str, ...]] = {}


def holding(*names: str) -> Any:
    """A field whose value holds children in its fields `names`."""
    return field(metadata={"holds": names})


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field, holding))
def node(cls: _Class) -> _Class:
    """A class of nodes, or of their parts: a record that is compared by identity, whose constructor
    takes values of the annotated classes and converts others: see :mod:`minitvm.tir.admission`."""
    made = record(eq=False, repr=not issubclass(cls, (PrimExpr, Stmt)), admission=_NodeAdmission())(
        cls
    )
    all_fields = fields(made)
    CONSTRUCTED_OF[made] = tuple(each.name for each in all_fields if each.init)
    if not issubclass(made, (PrimExpr, Stmt)):
        return made
    held = {each.name: each.metadata["holds"] for each in all_fields if "holds" in each.metadata}
    kinds = {each.name: of_annotation(str(each.type))[0] for each in all_fields}
    CHILDREN[made] = (
        *(name for name, kind in kinds.items() if kind == "PrimExpr" or name in held),
        *(name for name, kind in kinds.items() if kind == "Stmt"),
    )
    HELD[made] = held
    return made


def of_annotation(annotation: str) -> tuple[str, bool, bool]:
    """The class that an annotation names, whether None may stand in its place, and whether it is
    the class of a tuple's members."""
    kind = annotation.removesuffix(" | None")
    members = kind.removeprefix("tuple[").removesuffix(", ...]")
    return members.split("[")[0], kind != annotation, members != kind


def class_of(cls: type, kind: str) -> Any:
    """The class that an annotation in `cls` names."""
    return vars(sys.modules[cls.__module__]).get(kind) or getattr(builtins, kind)


class _NodeAdmission:
    """The test of values that may be stored as they are. The language converts the others."""

    def test(self, cls: type, annotation: str, name: str) -> tuple[str, Mapping[str, Any]]:
        """See :class:`minitvm.runtime.record.Admission`."""
        kind, optional, several = of_annotation(annotation)
        if kind == "Any":
            return "True", {}
        taken = class_of(cls, kind)
        if several:
            return f"_all_{kind}({name})", {f"_all_{kind}": partial(_are_all, taken)}
        exact = taken in (float, DType)
        test = f"type({name}) is {kind}" if exact else f"isinstance({name}, {kind})"
        return f"{name} is None or {test}" if optional else test, {kind: taken}

    def admit(self, cls: type, values: dict[str, Any]) -> dict[str, Any]:
        return language().admit(cls, values)


def _are_all(taken: type, values: object) -> bool:
    return type(values) is tuple and all(isinstance(value, taken) for value in values)
