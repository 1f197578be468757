"""Traversal of both IRs: the one place that knows the children of a node.

:class:`Mutator` rebuilds a tree; :func:`post_order_visit` looks at one. A subtree in which nothing
changed comes back as the same object, so "did it change" is an ``is``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from operator import attrgetter, is_not
from typing import Any, ClassVar, TypeVar, cast

from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, PrimExpr, Var
from minitvm.tir.stmt import Stmt

Node = PrimExpr | Stmt
_N = TypeVar("_N", bound=Node)

_AB = ("a", "b")
# The fields of each node that hold children: a node, a tuple of nodes, a combiner, or None.
CHILDREN: dict[type, tuple[str, ...]] = {
    e.Var: (),
    e.IntImm: (),
    e.FloatImm: (),
    e.StringImm: (),
    e.BufferRef: (),
    **dict.fromkeys(
        (e.Add, e.Sub, e.Mul, e.Div, e.Mod, e.FloorDiv, e.FloorMod, e.Min, e.Max, e.EQ, e.NE, e.LT,
         e.LE, e.GT, e.GE, e.And, e.Or),
        _AB,
    ),
    e.Not: ("a",),
    e.Select: ("condition", "true_value", "false_value"),
    e.Cast: ("value",),
    e.Let: ("value", "body"),
    e.Ramp: ("base", "stride"),
    e.Broadcast: ("value",),
    e.ProducerLoad: ("indices",),
    e.BufferLoad: ("indices", "predicate"),
    e.Call: ("args",),
    e.Reduce: ("combiner", "source", "condition", "init"),
    s.For: ("min", "extent", "body"),
    s.While: ("condition", "body"),
    s.BufferStore: ("value", "indices", "predicate"),
    s.Allocate: ("buffer", "body"),  # of the buffer, its shape and its strides
    s.LetStmt: ("value", "body"),
    s.IfThenElse: ("condition", "then_case", "else_case"),
    s.SeqStmt: ("seq",),
    s.Evaluate: ("value",),
    s.AssertStmt: ("condition", "values", "body"),
    s.AttrStmt: ("value", "body"),
}  # fmt: skip
_INIT_FIELDS: dict[type, tuple[str, ...]] = {
    cls: tuple(f.name for f in fields(cls) if f.init) for cls in CHILDREN
}


def _reader(cls: type) -> Callable[[Any], tuple[Node, ...]]:
    """What reads the children of a node of a class."""
    names = CHILDREN[cls]
    types = {f.name: str(f.type) for f in fields(cls)}
    single = not any(kind in types[n] for n in names for kind in ("tuple", "None", "Buffer"))
    if len(names) > 1 and single:
        return cast(Callable[[Any], tuple[Node, ...]], attrgetter(*names))
    if len(names) == 1 and types[names[0]].startswith("tuple"):
        return cast(Callable[[Any], tuple[Node, ...]], attrgetter(*names))

    def read(node: Any) -> tuple[Node, ...]:
        found: tuple[Node, ...] = ()
        for name in names:
            child = getattr(node, name)
            if isinstance(child, tuple):
                found += child
            elif isinstance(child, e.CommReducer):
                found += child.result + child.identity
            elif isinstance(child, Buffer):
                found += child.shape + child.strides
            elif child is not None:
                found += (child,)
        return found

    return read


_READERS = {cls: _reader(cls) for cls in CHILDREN}


def children(node: Node) -> tuple[Node, ...]:
    """The direct children of a node, in order of evaluation."""
    return _READERS[type(node)](node)


def rebuild(node: Any, changes: Mapping[str, Any]) -> Any:
    """A copy of `node` with some fields replaced; `node` itself when there are none."""
    if not changes:
        return node
    cls = type(node)
    return cls(*[changes[n] if n in changes else getattr(node, n) for n in _INIT_FIELDS[cls]])


def with_fields(node: _N, **values: Any) -> _N:
    """`node` with other values of some fields; `node` itself where they are the same."""
    changes = {n: value for n, value in values.items() if not _is_same(value, getattr(node, n))}
    return cast(_N, rebuild(node, changes))


def _is_same(new: Any, old: Any) -> bool:
    if isinstance(new, tuple):
        return len(new) == len(old) and not any(map(is_not, new, old))
    return new is old


_LEAVES = (e.Var, e.IntImm, e.FloatImm, e.StringImm, e.BufferRef)


class Mutator:
    """Rebuilds a tree bottom up. A subclass gives methods named ``visit_ClassName`` for the nodes
    that it changes, and calls :meth:`descend` to go on below them.

    A shared subexpression is visited once, and its replacement shared: what an expression becomes
    must not depend on where it stands. A subclass for which it does overrides :meth:`expr`.
    """

    _methods: ClassVar[dict[type, Callable[[Any, Any], Any]]]

    def __init_subclass__(cls) -> None:
        cls._methods = {
            node: getattr(cls, f"visit_{node.__name__}", cls.descend) for node in CHILDREN
        }

    def __init__(self) -> None:
        self._made: dict[PrimExpr, PrimExpr] = {}

    def expr(self, node: PrimExpr) -> PrimExpr:
        """The expression that replaces `node`."""
        if type(node) in _LEAVES:
            return cast(PrimExpr, self._methods[type(node)](self, node))
        made = self._made.get(node)
        if made is None:
            made = self._made[node] = self._methods[type(node)](self, node)
        return made

    def stmt(self, node: Stmt) -> Stmt:
        """The statement that replaces `node`."""
        return cast(Stmt, self._methods[type(node)](self, node))

    def descend(self, node: Any) -> Any:
        """`node` with its children replaced."""
        changes: dict[str, Any] = {}
        for name in CHILDREN[type(node)]:
            old = getattr(node, name)
            if isinstance(old, tuple):
                made = tuple([self._visit(child) for child in old])
                if any(map(is_not, made, old)):
                    changes[name] = made
            elif old is not None:
                new = self._visit(old)
                if new is not old:
                    changes[name] = new
        made = rebuild(node, changes)
        if "buffer" in changes:
            return s.Allocate(made.buffer, replace_buffers(made.body, {node.buffer: made.buffer}))
        return made

    def _visit(self, node: Any) -> Any:
        if isinstance(node, e.CommReducer):
            return self._combiner(node)
        if isinstance(node, Buffer):
            return self._allocated(node)
        return self.expr(node) if isinstance(node, PrimExpr) else self.stmt(node)

    def _allocated(self, buffer: Buffer) -> Buffer:
        shape, strides = tuple(map(self.expr, buffer.shape)), tuple(map(self.expr, buffer.strides))
        if not any(map(is_not, shape + strides, buffer.shape + buffer.strides)):
            return buffer
        return replace(buffer, shape=shape, strides=strides)

    def _combiner(self, node: e.CommReducer) -> e.CommReducer:
        """What a reduction combines with and begins from may depend on its data axes."""
        result, identity = tuple(map(self.expr, node.result)), tuple(map(self.expr, node.identity))
        if not any(map(is_not, result + identity, node.result + node.identity)):
            return node
        return e.CommReducer(node.lhs, node.rhs, result, identity)


def post_order_visit(node: Node, visit: Callable[[Any], None]) -> None:
    """Calls `visit` on every node below `node`, children first, then on `node`.

    A shared subtree is visited as often as it occurs.
    """
    for child in children(node):
        post_order_visit(child, visit)
    visit(node)


def walk(node: Node) -> Iterator[Node]:
    """Every node of the tree, parents before children."""
    stack: list[Node] = [node]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(children(top)[::-1])


def walk_once(*roots: Node) -> Iterator[Node]:
    """Every distinct node of some trees, once, parents before children.

    An expression may share subtrees, so that its tree is exponentially larger than its graph.
    """
    seen: set[int] = set()
    stack = list(reversed(roots))
    while stack:
        top = stack.pop()
        if id(top) not in seen:
            seen.add(id(top))
            yield top
            below = _READERS[type(top)](top)
            if below:
                stack.extend(below[::-1])


def walk_leaves_first(*roots: Node) -> Iterator[Node]:
    """Every distinct node of some trees, once, children before parents, however deep they are."""
    seen: set[int] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, follows_children = stack.pop()
        if follows_children:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend([(child, False) for child in children(node)[::-1]])


class Substitution(Mutator):
    """Replaces variables by expressions: of several trees, what they share once."""

    def __init__(self, mapping: Mapping[Var, PrimExpr]) -> None:
        super().__init__()
        self._mapping = mapping

    def visit_Var(self, node: Var) -> PrimExpr:
        return self._mapping.get(node, node)


def substitute(node: Any, mapping: Mapping[Var, Any]) -> Any:
    """`node` with variables replaced by expressions (axes and numbers are taken as such).

    >>> from minitvm.tir.expr import Var
    >>> i = Var("i")
    >>> substitute(i + 1, {i: i * 2})
    i * 2 + 1
    """
    if not mapping:
        return node
    replacer = Substitution({var: e.as_expr(value) for var, value in mapping.items()})
    return replacer.expr(node) if isinstance(node, PrimExpr) else replacer.stmt(node)


class _ReplaceBuffers(Mutator):
    def __init__(self, mapping: Mapping[Buffer, Buffer]) -> None:
        super().__init__()
        self._mapping = mapping

    def _replace(self, node: Any) -> Any:
        made = self.descend(node)
        new = self._mapping.get(made.buffer)
        return made if new is None else rebuild(made, {"buffer": new})

    visit_BufferLoad = visit_BufferStore = visit_BufferRef = visit_Allocate = _replace

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        made: s.AttrStmt = self.descend(node)
        new = self._mapping.get(made.node) if isinstance(made.node, Buffer) else None
        return made if new is None else cast(Stmt, rebuild(made, {"node": new}))


def replace_buffers(node: Any, mapping: Mapping[Buffer, Buffer]) -> Any:
    """`node` with buffers exchanged wherever they are read, written, passed on, allocated or the
    subject of an attribute."""
    replacer = _ReplaceBuffers(mapping)
    return replacer.expr(node) if isinstance(node, PrimExpr) else replacer.stmt(node)


def mentions(var: Var, *nodes: Node) -> bool:
    """Whether a variable is in one of some nodes."""
    return any(each is var for each in walk_once(*nodes))


def free_vars(node: Node) -> list[Var]:
    """The variables read but not bound in `node`, in order of first use."""
    bound: set[Var] = set()
    found: dict[Var, None] = {}
    for each in walk_once(node):
        if isinstance(each, e.Var):
            found[each] = None
        elif isinstance(each, e.Let | s.LetStmt):
            bound.add(each.var)
        elif isinstance(each, s.For):
            bound.add(each.loop_var)
        elif isinstance(each, e.Reduce):
            bound.update(axis.var for axis in each.axis)
            bound.update(each.combiner.lhs + each.combiner.rhs)
    return [var for var in found if var not in bound]
