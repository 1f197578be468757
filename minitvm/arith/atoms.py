"""Shares equal subterms: one object for each term, numbered in the order in which terms are met."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields
from typing import Any

from minitvm.tir.expr import Call, FloatImm, IntImm, PrimExpr, Var
from minitvm.tir.functor import CHILDREN, Node, find
from minitvm.tir.intrinsics import IMPURE_CALLS


def is_impure(node: Node) -> bool:
    """Whether `node` itself is a call with an effect, or one that may return another value when it
    is repeated."""
    return isinstance(node, Call) and node.op in IMPURE_CALLS


def is_pure(node: Node) -> bool:
    """Whether evaluating `node` again, or not at all, makes no difference."""
    return not any(map(is_impure, find(Call, node)))


def structural_key(node: Any) -> Hashable:
    """A key that two expressions share when they are the same term over the same variables.

    The key identifies variables and buffers by address, so it is valid as long as they live. An
    impure call equals itself alone. A shared subexpression stands in the key once.
    """
    leaf = _leaf_key(node)
    if leaf is not None:
        return leaf
    parts: dict[Hashable, int] = {}  # each refers to earlier ones
    _number(node, parts, {})
    return tuple(parts)


def _leaf_key(node: Any) -> Hashable:
    cls = type(node)
    if cls is IntImm:
        return ("int", node.dtype.code, node.dtype.bits, int(node.value))
    if cls is FloatImm:
        return ("float", node.dtype.code, node.dtype.bits, float(node.value).hex())
    if cls is str or cls is int:
        return ("plain", node)
    if cls is tuple:
        return None
    return id(node) if cls is Var or cls not in CHILDREN or is_impure(node) else None


def _number(node: Any, parts: dict[Hashable, int], known: dict[int, int]) -> int:
    """The place of `node` among the distinct parts."""
    number = known.get(id(node))
    if number is not None:
        return number
    key = _leaf_key(node)
    if key is None:
        if type(node) is tuple:
            key = ("tuple", *[_number(each, parts, known) for each in node])
        else:
            dtype = node.dtype
            fields_of = [_number(getattr(node, name), parts, known) for name in _FIELDS[type(node)]]
            key = (type(node), dtype.code, dtype.bits, dtype.lanes, *fields_of)
    number = known[id(node)] = parts.setdefault(key, len(parts))
    return number


# The fields that distinguish the nodes of a class, besides the dtype.
_FIELDS = {
    cls: tuple(f.name for f in fields(cls) if f.init and f.name != "dtype") for cls in CHILDREN
}


class Atoms:
    """The terms met so far."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, PrimExpr] = {}
        self._order: dict[PrimExpr, int] = {}

    def shared(self, term: PrimExpr, key: Hashable = None) -> PrimExpr:
        """The first term equal to `term`: with the same `key`, structural by default."""
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
