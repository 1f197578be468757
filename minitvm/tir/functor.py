"""Traversal of both IRs: the mutator that rebuilds a tree, and the walks that read one.

:class:`Mutator` rebuilds a tree; the walks of :mod:`minitvm.tir.tree`, handed on here, look at one.
A subtree in which nothing changed comes back as the same object, so "did it change" is an ``is``.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from operator import is_not
from typing import Any, ClassVar, TypeVar, overload

from minitvm.runtime.errors import CompileError, similar
from minitvm.tir import nodes as n
from minitvm.tir.conversion import as_expr
from minitvm.tir.depth import deep_expressions
from minitvm.tir.described import described
from minitvm.tir.fields import CHILDREN as CHILDREN
from minitvm.tir.fields import HELD
from minitvm.tir.node import Node as Node
from minitvm.tir.node import PrimExpr, Stmt
from minitvm.tir.nodes import Buffer, Var
from minitvm.tir.tree import BITS, HAS_FIELDS, READERS, kinds_of
from minitvm.tir.tree import children as children
from minitvm.tir.tree import consists_of as consists_of
from minitvm.tir.tree import contains as contains
from minitvm.tir.tree import find as find
from minitvm.tir.tree import post_order_visit as post_order_visit
from minitvm.tir.tree import rebuild as rebuild
from minitvm.tir.tree import walk as walk
from minitvm.tir.tree import walk_leaves_first as walk_leaves_first
from minitvm.tir.tree import walk_once as walk_once
from minitvm.tir.tree import with_fields as with_fields

_Any = TypeVar("_Any")
_Node = TypeVar("_Node", PrimExpr, Stmt)

_VISITORS = {node: f"visit_{node.__name__}" for node in CHILDREN}
_WALK = ("expr", "stmt", "descend")
LEAVES = frozenset((n.Var, n.IntImm, n.FloatImm, n.StringImm, n.BufferRef))


class Mutator:
    """Rebuilds a tree bottom up. A subclass gives methods named ``visit_ClassName`` for the nodes
    that it changes, and calls :meth:`descend` to go on below them.

    A shared subexpression is visited once, and its replacement is shared, so the replacement must
    not depend on the place of the expression. A subclass whose replacements do overrides
    :meth:`expr`. Trees without nodes that the subclass has methods for aren't visited, unless it
    overrides :meth:`expr`, :meth:`stmt` or :meth:`descend`.
    """

    _methods: ClassVar[dict[type, Callable[[Any, Any], Any]]]
    _changes: ClassVar[int]  # the classes of nodes that it has methods for, as bits

    def __init_subclass__(cls) -> None:
        cls._methods = {
            node: getattr(cls, visitor, cls.descend) for node, visitor in _VISITORS.items()
        }
        changes = tuple(node for node, visitor in _VISITORS.items() if hasattr(cls, visitor))
        visits_all = any(getattr(cls, each) is not getattr(Mutator, each) for each in _WALK)
        cls._changes = -1 if visits_all else BITS[changes]

    def __init__(self) -> None:
        self._made: dict[PrimExpr, PrimExpr] = {}

    def expr(self, node: PrimExpr) -> PrimExpr:
        """The expression that replaces `node`."""
        if not kinds_of(node) & self._changes:
            return node
        if type(node) in LEAVES:
            leaf: PrimExpr = self._methods[type(node)](self, node)
            return leaf
        made = self._made.get(node)
        if made is None:
            made = self._made[node] = self._methods[type(node)](self, node)
        return made

    def stmt(self, node: Stmt) -> Stmt:
        """The statement that replaces `node`."""
        if not kinds_of(node) & self._changes:
            return node
        made: Stmt = self._methods[type(node)](self, node)
        return made

    @overload
    def node(self, node: PrimExpr) -> PrimExpr: ...
    @overload
    def node(self, node: Stmt) -> Stmt: ...
    def node(self, node: Node) -> Node:
        """The expression or statement that replaces `node`."""
        return self.expr(node) if isinstance(node, PrimExpr) else self.stmt(node)

    def descend(self, node: _Any) -> _Any:
        """`node` with its children replaced: a node of its class."""
        cls = type(node)
        names = CHILDREN[cls]
        if not names:
            return node
        expr, stmt = self.expr, self.stmt
        if HAS_FIELDS[cls]:  # most nodes
            olds = READERS[cls](node)
            news = [expr(x) if isinstance(x, PrimExpr) else stmt(x) for x in olds]
            changed = any(map(is_not, news, olds))
            return rebuild(node, dict(zip(names, news, strict=True))) if changed else node
        held = HELD[cls]
        changes: dict[str, Any] = {}
        for name in names:
            old = getattr(node, name)
            if isinstance(old, tuple):
                made = tuple([expr(x) if isinstance(x, PrimExpr) else stmt(x) for x in old])
                if any(map(is_not, made, old)):
                    changes[name] = made
            elif old is not None:
                if name in held:
                    new = self._rebuilt_holder(old, held[name])
                else:
                    new = expr(old) if isinstance(old, PrimExpr) else stmt(old)
                if new is not old:
                    changes[name] = new
        if not changes:
            return node
        if isinstance(node, n.Allocate) and "buffer" in changes:
            body = changes.get("body", node.body)
            changes["body"] = replace_buffers(body, {node.buffer: changes["buffer"]})
        return rebuild(node, changes)

    def _rebuilt_holder(self, value: Any, names: tuple[str, ...]) -> Any:
        """A field that holds children, such as a reducer, with the children replaced."""
        olds = {name: getattr(value, name) for name in names}
        made = {name: tuple(map(self.expr, old)) for name, old in olds.items()}
        is_new = any(any(map(is_not, made[name], olds[name])) for name in names)
        return rebuild(value, made if is_new else {})


class Substitution(Mutator):
    """Replaces variables by expressions in several trees; subtrees that they share stay shared."""

    def __init__(self, mapping: Mapping[Var, PrimExpr]) -> None:
        super().__init__()
        self._mapping = mapping

    def visit_Var(self, node: Var) -> PrimExpr:
        return self._mapping.get(node, node)


def substitute(node: _Node, mapping: Mapping[Var, Any]) -> _Node:
    """`node` with variables replaced by expressions (axes and numbers are taken as such).

    >>> from minitvm.tir.expr import Var
    >>> i = Var("i")
    >>> substitute(i + 1, {i: i * 2})
    i * 2 + 1

    Raises
    ------
    CompileError
        When `node` is nested too deeply.
    """
    if not mapping:
        return node
    made = Substitution({var: as_expr(value) for var, value in mapping.items()})
    with deep_expressions("substitute", node):
        return made.node(node)


Visit = Callable[[Any], Any]


def ir_transform(
    stmt: _Node,
    preorder: Visit | None,
    postorder: Visit | None,
    only_enable: Sequence[str] | None = None,
) -> _Node:
    """`stmt` rebuilt by two functions of nodes (classic ``tir.stmt_functor.ir_transform``).

    Parameters
    ----------
    stmt : statement or expression
        The tree.
    preorder
        Called before the children. A node that it returns takes the place of its argument, whose
        children are then not visited; after None they are.
    postorder
        Called with the node whose children are done. It returns another node, or None.
    only_enable
        The classes of nodes for which the functions are called, as ``"tir.For"``; all unless given.

    Raises
    ------
    CompileError
        When a class is unknown, or an expression is replaced by a statement, or by an expression of
        another dtype; when `stmt` is nested too deeply.

    >>> from minitvm.tir.expr import Var, const
    >>> from minitvm.tir.nodes import Add, Mul
    >>> ir_transform(Var("i") + 2, None, lambda node: node.a * node.b, ["tir.Add"])
    i * 2
    """
    known = {f"tir.{cls.__name__}": cls for cls in CHILDREN}
    for name in only_enable or ():
        if name not in known:
            close = similar(name, known) or sorted(known)
            raise CompileError(
                f"ir_transform: expected classes of nodes such as {', '.join(close)}, got {name!r}"
            )
    classes = frozenset(known.values() if only_enable is None else map(known.get, only_enable))
    with deep_expressions("ir_transform", stmt):
        return _Transformation(preorder, postorder, classes).node(stmt)


class _Transformation(Mutator):
    """The mutator of :func:`ir_transform`."""

    def __init__(
        self, preorder: Visit | None, postorder: Visit | None, classes: Container[Any]
    ) -> None:
        super().__init__()
        self._preorder, self._postorder, self._classes = preorder, postorder, classes

    def expr(self, node: PrimExpr) -> PrimExpr:
        made = self._made.get(node)
        if made is None:
            made = self._made[node] = self._transformed(node)
        return made

    def stmt(self, node: Stmt) -> Stmt:
        made: Stmt = self._transformed(node)
        return made

    def _transformed(self, node: Any) -> Any:
        applies = type(node) in self._classes
        if applies and self._preorder is not None:
            made = self._preorder(node)
            if made is not None:
                return _checked_replacement(node, made)
        done = self.descend(node)
        if applies and self._postorder is not None:
            made = self._postorder(done)
            if made is not None:
                return _checked_replacement(node, made)
        return done


def _checked_replacement(node: Any, made: Any) -> Any:
    kind: type[Any] = PrimExpr if isinstance(node, PrimExpr) else Stmt
    if not isinstance(made, kind):
        what = "an expression" if kind is PrimExpr else "a statement"
        raise CompileError(
            f"ir_transform: expected {what} or None in place of a {type(node).__name__}, got "
            f"{described(made)}"
        )
    if kind is PrimExpr and made.dtype != node.dtype:
        raise CompileError(
            f"ir_transform: expected an expression of {node.dtype} in place of {node}, got "
            f"{made} of {made.dtype}"
        )
    return made


class _ReplaceBuffers(Mutator):
    def __init__(self, mapping: Mapping[Buffer, Buffer]) -> None:
        super().__init__()
        self._mapping = mapping

    def _replace(self, node: Any) -> Any:
        made = self.descend(node)
        new = self._mapping.get(made.buffer)
        return made if new is None else rebuild(made, {"buffer": new})

    visit_BufferLoad = visit_BufferStore = visit_BufferRef = visit_Allocate = _replace

    def visit_AttrStmt(self, node: n.AttrStmt) -> Stmt:
        if node.attr_key == n.VIEW and isinstance(node.value, n.BufferRef):
            owner = self._mapping.get(node.value.buffer)
            if owner is not None:
                self._mapping = {**self._mapping, node.node: replace(node.node, data=owner.data)}
        made = self.descend(node)
        new = self._mapping.get(made.node) if isinstance(made.node, Buffer) else None
        return made if new is None else rebuild(made, {"node": new})


def replace_buffers(node: _Node, mapping: Mapping[Buffer, Buffer]) -> _Node:
    """`node` with buffers exchanged wherever they are read, written, passed on, allocated or the
    subject of an attribute."""
    return _ReplaceBuffers(mapping).node(node)


def mentions(var: Var, *nodes: Node) -> bool:
    """Whether a variable is in one of some nodes."""
    return any(each is var for each in find(Var, *nodes))


_NAMING = (n.Var, n.Let, n.LetStmt, n.For, n.Reduce)


def free_vars(node: Node) -> list[Var]:
    """The variables read but not bound in `node`, in order of first use."""
    bound: set[Var] = set()
    found: dict[Var, None] = {}
    for each in find(_NAMING, node):
        if isinstance(each, n.Var):
            found[each] = None
        elif isinstance(each, n.Let | n.LetStmt):
            bound.add(each.var)
        elif isinstance(each, n.For):
            bound.add(each.loop_var)
        elif isinstance(each, n.Reduce):
            bound.update(axis.var for axis in each.axis)
            bound.update(each.combiner.lhs + each.combiner.rhs)
    return [var for var in found if var not in bound]
