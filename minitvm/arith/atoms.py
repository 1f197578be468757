"""Sharing of equal subterms: one object for each term, in the order in which terms were met."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields
from typing import Any

from minitvm.expr import Call, FloatImm, IntImm, PrimExpr, Var
from minitvm.functor import CHILDREN, Node, walk_once

# Calls whose value does not depend on their arguments alone, or that do something.
_IMPURE = frozenset({
    "call_packed", "call_extern", "call_llvm_intrin", "tvm_access_ptr", "tvm_stack_make_array",
    "checked",
})  # fmt: skip


def is_pure(node: Node) -> bool:
    """Whether evaluating `node` again, or not at all, makes no difference."""
    return not any(isinstance(each, Call) and each.op in _IMPURE for each in walk_once(node))


def structural_key(node: Any) -> Hashable:
    """A key that two expressions share when they are the same term over the same variables.

    It identifies variables and buffers by address, so it lasts as long as they do. An impure call
    is only ever equal to itself.
    """
    cls = type(node)
    if cls is IntImm:
        return ("int", node.dtype.code, node.dtype.bits, int(node.value))
    if cls is FloatImm:
        return ("float", node.dtype.code, node.dtype.bits, float(node.value).hex())
    if cls is tuple:
        return tuple([structural_key(each) for each in node])
    if cls is str or cls is int:
        return node  # type: ignore[no-any-return]  # narrowed by its class
    if cls is Var or cls not in CHILDREN or (cls is Call and node.op in _IMPURE):
        return id(node)
    names = [f.name for f in fields(cls) if f.init]
    parts = [structural_key(getattr(node, name)) for name in names if name != "dtype"]
    return (cls, node.dtype.code, node.dtype.bits, node.dtype.lanes, *parts)


class Atoms:
    """The terms met so far."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, PrimExpr] = {}
        self._order: dict[PrimExpr, int] = {}

    def shared(self, term: PrimExpr, key: Hashable = None) -> PrimExpr:
        """The first term equal to `term`; a `key` says what "equal" means here."""
        if isinstance(term, Var):
            self._order.setdefault(term, len(self._order))
            return term
        found = self._by_key.setdefault(structural_key(term) if key is None else key, term)
        self._order.setdefault(found, len(self._order))
        return found

    def find(self, key: Hashable) -> PrimExpr | None:
        """The term known under `key`."""
        return self._by_key.get(key)

    def order(self, term: PrimExpr) -> int:
        """Terms sort in the order in which they were met."""
        return self._order[term]
