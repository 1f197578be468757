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
    terms = Terms()
    terms.number(node)
    return tuple(terms.parts)


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


class Terms:
    """Numbers of terms: equal ones, as :func:`structural_key` defines it, have the same. Each node
    is examined once, and kept.

    Attributes
    ----------
    parts
        The distinct terms, each in terms of the numbers of its parts.
    """

    def __init__(self) -> None:
        self.parts: dict[Hashable, int] = {}
        self._known: dict[PrimExpr, int] = {}

    def number(self, node: Any) -> int:
        """The number of a term."""
        known = self._known.get(node)
        if known is not None:
            return known
        key = _leaf_key(node)
        if key is None:
            if type(node) is tuple:
                key = ("tuple", *[self.number(each) for each in node])
            else:
                dtype = node.dtype
                values = [self.number(getattr(node, name)) for name in _FIELDS[type(node)]]
                key = (type(node), dtype.code, dtype.bits, dtype.lanes, *values)
        number = self.parts.setdefault(key, len(self.parts))
        if isinstance(node, PrimExpr):
            self._known[node] = number
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
        self._terms = Terms()

    def are_equal(self, a: PrimExpr, b: PrimExpr) -> bool:
        """Whether two expressions are the same term."""
        return a is b or self._terms.number(a) == self._terms.number(b)

    def shared(self, term: PrimExpr, key: Hashable = None) -> PrimExpr:
        """The first term equal to `term`: with the same `key`, structural by default."""
        if isinstance(term, Var):
            self._order.setdefault(term, len(self._order))
            return term
        found = self._by_key.setdefault(self._terms.number(term) if key is None else key, term)
        self._order.setdefault(found, len(self._order))
        return found

    def find(self, key: Hashable) -> PrimExpr | None:
        """The term known under `key`."""
        return self._by_key.get(key)

    def order(self, term: PrimExpr) -> int:
        """Terms sort in the order in which they were met."""
        return self._order[term]
