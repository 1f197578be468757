"""Structural equality of programs: the same nodes, and the same variables up to renaming of bound
ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

from minitvm.tir import nodes as n
from minitvm.tir.depth import deep_expressions
from minitvm.tir.node import PrimExpr, Stmt
from minitvm.tir.nodes import Buffer, Var
from minitvm.tir.tree import kinds_of

_Entity = Var | Buffer  # which may be bound


def structural_equal(lhs: Any, rhs: Any, map_free_vars: bool = False) -> bool:
    """Whether two expressions, statements, functions or modules have the same structure.

    A variable or buffer that is bound inside (by a loop, a let, an allocation, as a parameter)
    equals the variable or buffer bound at the same place; a free one equals only itself, or with
    `map_free_vars` one variable of its dtype, the same one everywhere. Names don't count.

    >>> from minitvm.tir.expr import Var
    >>> i, j = Var("i"), Var("j")
    >>> structural_equal(i + 1, i + 1), structural_equal(i + 1, j + 1)
    (True, False)
    >>> structural_equal(i + 1, j + 1, map_free_vars=True)
    True

    Raises
    ------
    CompileError
        When they are nested too deeply to compare.
    """
    if isinstance(lhs, (PrimExpr, Stmt)) and isinstance(rhs, (PrimExpr, Stmt)):
        if lhs is rhs:
            return True
        if kinds_of(lhs) != kinds_of(rhs):  # most are of different classes, and this takes no walk
            return False
    with deep_expressions("structural_equal", lhs):
        return _Comparison(map_free_vars).same(lhs, rhs)


class _Comparison:
    """Walks two programs at once, with a mapping between their variables."""

    def __init__(self, map_free_vars: bool) -> None:
        self._map_free_vars = map_free_vars
        self._there: dict[_Entity, _Entity] = {}
        self._back: dict[_Entity, _Entity] = {}
        # Expressions found to be the same, which are often shared. They are forgotten when one of
        # their variables changes its meaning.
        self._known: set[tuple[int, int]] = set()
        self._met_free: set[_Entity] = set()

    def same(self, a: Any, b: Any) -> bool:
        if type(a) is not type(b):
            return False
        if isinstance(a, Var):
            return self._same_entity(a, b, self._bind)
        if isinstance(a, Buffer):
            return self._same_entity(a, b, self._bind_buffer)
        if isinstance(a, float):
            return a.hex() == b.hex() or (math.isnan(a) and math.isnan(b))
        if isinstance(a, (tuple, list)):
            return len(a) == len(b) and all(map(self.same, a, b))
        if isinstance(a, n.PrimFunc):
            return self._same_func(a, b)
        if isinstance(a, n.IRModule):
            return self._same_mapping(a.functions, b.functions)
        if isinstance(a, PrimExpr):
            return self._same_expr(a, b)
        if isinstance(a, (Stmt, n.CommReducer, n.Range, n.IterVar)):
            return self._same_node(a, b)
        if isinstance(a, dict):
            return self._same_mapping(a, b)
        if isinstance(a, frozenset):  # buffers that are bound, such as a function's outputs
            return frozenset(self._there.get(each, each) for each in a) == frozenset(b)
        return bool(a == b)

    def _same_entity(self, a: _Entity, b: _Entity, bind: Callable[[Any, Any], bool]) -> bool:
        if a in self._there or b in self._back:
            return self._there.get(a) is b and self._back.get(b) is a
        if self._map_free_vars:
            return bind(a, b)
        self._met_free.add(a)
        return a is b

    def _bind(self, a: Var, b: Var) -> bool:
        if a.dtype != b.dtype:
            return False
        self._pair(a, b)
        return True

    def _pair(self, a: _Entity, b: _Entity) -> None:
        """Pairs `a` with `b` from here on."""
        there, back = self._there.get(a), self._back.get(b)
        if there is b and back is a:
            return
        had_another = there is not None or back is not None
        if had_another or not self._met_free.isdisjoint((a, b)):
            self._known.clear()
        self._there[a], self._back[b] = b, a

    def _bind_buffer(self, a: Buffer, b: Buffer) -> bool:
        """Pairs two buffers if all of their properties except the names agree. Variables in their
        shapes must be bound, or are free."""
        if not self._bind(a.data, b.data):
            return False
        names = [f.name for f in fields(Buffer) if f.name not in ("data", "name")]
        if not self._same_fields(a, b, names):
            return False
        self._pair(a, b)
        return True

    def _same_expr(self, a: PrimExpr, b: PrimExpr) -> bool:
        pair = id(a), id(b)
        if pair not in self._known:
            if not self._same_node(a, b):
                return False
            self._known.add(pair)
        return True

    def _same_node(self, a: Any, b: Any) -> bool:
        outside, binder, inside = _FIELDS_AROUND[type(a)]
        return (
            self._same_fields(a, b, outside)
            and all(self._bind_each(getattr(a, n), getattr(b, n)) for n in binder)
            and self._same_fields(a, b, inside)
        )

    def _bind_each(self, a: Any, b: Any) -> bool:
        if isinstance(a, tuple):
            return len(a) == len(b) and all(map(self._bind_each, a, b))
        if isinstance(a, Buffer):
            return self._bind_buffer(a, b)
        if isinstance(a, n.IterVar):
            return self.same(a.dom, b.dom) and self._bind(a.var, b.var)
        return self._bind(a, b)

    def _same_fields(self, a: Any, b: Any, names: Iterable[str]) -> bool:
        return all(self.same(getattr(a, n), getattr(b, n)) for n in names)

    def _same_mapping(self, a: Any, b: Any) -> bool:
        return a.keys() == b.keys() and all(self.same(a[k], b[k]) for k in a)

    def _same_func(self, a: n.PrimFunc, b: n.PrimFunc) -> bool:
        if not self._bind_each(a.params, b.params):
            return False
        params = list(zip(a.params, b.params, strict=True))
        if any((x in a.buffer_map) != (y in b.buffer_map) for x, y in params):
            return False
        pairs = [(a.buffer_map[x], b.buffer_map[y]) for x, y in params if x in a.buffer_map]
        return (
            all(self._bind_shape_vars(x, y) and self._bind_buffer(x, y) for x, y in pairs)
            and self.same(a.body, b.body)
            and self._same_fields(a.attrs, b.attrs, COMPARED_ATTRIBUTES)
        )

    def _bind_shape_vars(self, a: Buffer, b: Buffer) -> bool:
        """Pairs variables that are dimensions or strides of parameters, which the call binds."""
        ours, theirs = (*a.shape, *a.strides), (*b.shape, *b.strides)
        return len(ours) == len(theirs) and all(
            self._bind(x, y)
            for x, y in zip(ours, theirs, strict=True)
            if isinstance(x, Var) and isinstance(y, Var)
            and x not in self._there and y not in self._back
        )  # fmt: skip


_Names = Sequence[str]


class _FieldsAround(dict[type, tuple[_Names, _Names, _Names]]):
    """The fields of a class that lie outside of the scope of its variables, those that bind
    variables, and those in their scope."""

    def __missing__(self, cls: type) -> tuple[_Names, _Names, _Names]:
        binder = BINDERS.get(cls, ())
        others = [each.name for each in fields(cls) if each.name not in binder]
        inside = ["body"] if binder and "body" in others else others
        outside = [name for name in others if name not in inside]
        made = self[cls] = outside, binder, inside
        return made


_FIELDS_AROUND = _FieldsAround()


# The origin of a function is no part of its meaning.
COMPARED_ATTRIBUTES = [each.name for each in fields(n.FuncAttrs) if each.name != "origin"]
# For each node the fields that bind variables. Their scope is the node's `body` if it has one, and
# otherwise the whole node.
BINDERS: dict[type, tuple[str, ...]] = {
    n.Let: ("var",),
    n.Reduce: ("axis",),
    n.CommReducer: ("lhs", "rhs"),
    n.For: ("loop_var",),
    n.LetStmt: ("var",),
    n.Allocate: ("buffer",),
}
