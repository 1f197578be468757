"""Trees of nodes: the children of a node, a node with new children, and walks over its subtree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from operator import attrgetter, is_not
from typing import Any, TypeVar, overload

from minitvm.runtime.errors import InternalError
from minitvm.tir.fields import CHILDREN, CONSTRUCTED_OF, HELD
from minitvm.tir.node import Node, PrimExpr

_Any = TypeVar("_Any")
_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_Reader = Callable[[Any], tuple[Any, ...]]


class _Readers(dict[type, _Reader]):
    """The functions that read the children of a node of each class, made at the class's first
    node."""

    def __missing__(self, cls: type) -> _Reader:
        made = self[cls] = _reader(cls)
        return made


class _FieldEach(dict[type, bool]):
    """Whether each child of a node of a class has a field of its own, which is never None."""

    def __missing__(self, cls: type) -> bool:
        annotations = {each.name: str(each.type) for each in fields(cls)}
        made = self[cls] = all(annotations[n] in ("PrimExpr", "Stmt") for n in CHILDREN[cls])
        return made


HAS_FIELDS = _FieldEach()


def _reader(cls: type) -> _Reader:
    """The function that reads the children of a node of a class; as fast as Python can, since
    nothing is called as often."""
    if cls not in CHILDREN:
        raise InternalError(f"children: no case for {cls.__name__}")
    names, held = CHILDREN[cls], HELD[cls]
    annotations = {each.name: str(each.type) for each in fields(cls)}
    alone = len(names) == 1 and annotations[names[0]].startswith("tuple")
    if alone or (HAS_FIELDS[cls] and len(names) > 1):
        return attrgetter(*names)
    parts = ""
    for name in names:
        if name in held:
            parts += "".join(f"*node.{name}.{each}, " for each in held[name])
        elif annotations[name].startswith("tuple"):
            parts += f"*node.{name}, "
        elif annotations[name].endswith("None"):
            parts += f"*(() if node.{name} is None else (node.{name},)), "
        else:
            parts += f"node.{name}, "
    made: _Reader = eval(f"lambda node: ({parts})")
    return made


READERS = _Readers()


@overload
def children(node: PrimExpr) -> tuple[PrimExpr, ...]: ...
@overload
def children(node: Node) -> tuple[Node, ...]: ...
def children(node: Node) -> tuple[Node, ...]:
    """The direct children of a node, in order of evaluation."""
    return READERS[type(node)](node)


def rebuild(node: _Any, changes: Mapping[str, Any]) -> _Any:
    """A copy of a node, or of a part of one, with some fields replaced; `node` itself when no field
    is replaced."""
    if not changes:
        return node
    cls: Callable[..., _Any] = type(node)
    names = CONSTRUCTED_OF[type(node)]
    return cls(*[changes[n] if n in changes else getattr(node, n) for n in names])


def with_fields(node: _Any, **values: Any) -> _Any:
    """`node` with other values of some fields; `node` itself if the values are the same."""
    return rebuild(
        node, {n: value for n, value in values.items() if not _is_same(value, getattr(node, n))}
    )


def _is_same(new: Any, old: Any) -> bool:
    if isinstance(new, tuple):
        return len(new) == len(old) and not any(map(is_not, new, old))
    return new is old


def post_order_visit(node: Node, visit: Callable[[Any], None]) -> None:
    """Calls `visit` on every node below `node`, children first, then on `node`.

    A shared subtree is visited as often as it occurs.
    """
    stack = [(node, False)]
    while stack:
        each, follows_children = stack.pop()
        below = () if follows_children else children(each)
        if below:
            stack.append((each, True))
            stack.extend([(child, False) for child in below[::-1]])
        else:
            visit(each)


@overload
def walk(node: PrimExpr) -> Iterator[PrimExpr]: ...
@overload
def walk(node: Node) -> Iterator[Node]: ...
def walk(node: Node) -> Iterator[Node]:
    """Every node of the tree, parents before children."""
    stack: list[Node] = [node]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(children(top)[::-1])


@overload
def walk_once(*roots: PrimExpr) -> Iterator[PrimExpr]: ...
@overload
def walk_once(*roots: Node) -> Iterator[Node]: ...
def walk_once(*roots: Node) -> Iterator[Node]:
    """Every distinct node of some trees, once, parents before children.

    An expression may share subtrees, so that its tree is exponentially larger than its graph.
    """
    seen: set[int] = set()
    stack = list(reversed(roots))
    while stack:
        top = stack.pop()
        key = id(top)
        if key not in seen:
            seen.add(key)
            yield top
            below = READERS[type(top)](top)
            if below:
                stack += below[::-1]


class _Bits(dict[Any, int]):
    """A bit for each class of nodes, and the bits of several classes."""

    def __missing__(self, kinds: Any) -> int:
        if isinstance(kinds, tuple):
            made = sum(self[each] for each in kinds)
        elif kinds in CHILDREN:
            made = 1 << len([each for each in self if not isinstance(each, tuple)])
        else:
            raise InternalError(f"find: expected a class of nodes, got {kinds.__name__}")
        self[kinds] = made
        return made


BITS = _Bits()


def kinds_of(node: Any) -> int:
    """The classes of the nodes of a tree, as bits. They are found once for each node."""
    try:
        found: int = node._kinds
    except AttributeError:
        found = _found_kinds(node)
    return found


def _found_kinds(node: Any) -> int:
    stack, found = [node], 0
    while stack:
        top, size = stack[-1], len(stack)
        found = BITS[type(top)]
        for child in READERS[type(top)](top):
            below = getattr(child, "_kinds", 0)
            if below:
                found |= below
            else:
                stack.append(child)
        if len(stack) == size:
            object.__setattr__(stack.pop(), "_kinds", found)
    return found


def contains(kinds: type | tuple[type, ...], *roots: Node) -> bool:
    """Whether a node of some classes is in one of some trees. The answer takes no walk."""
    wanted = BITS[kinds]
    for root in roots:  # noqa: SIM110 - a generator would take twice the time
        if kinds_of(root) & wanted:
            return True
    return False


def consists_of(kinds: tuple[type, ...], root: Node) -> bool:
    """Whether all nodes of a tree are of some classes. The answer takes no walk."""
    return not kinds_of(root) & ~BITS[kinds]


@overload
def find(kinds: type[_A], *roots: Node) -> Iterator[_A]: ...
@overload
def find(kinds: tuple[type[_A], type[_B]], *roots: Node) -> Iterator[_A | _B]: ...
@overload
def find(kinds: tuple[type[_A], type[_B], type[_C]], *roots: Node) -> Iterator[_A | _B | _C]: ...
@overload
def find(kinds: tuple[type, ...], *roots: Node) -> Iterator[Any]: ...
def find(kinds: Any, *roots: Node) -> Iterator[Any]:
    """Every distinct node of some classes in some trees, in the order of :func:`walk_once`. Parts
    of a tree without such nodes aren't visited."""
    wanted = BITS[kinds]
    seen: set[int] = set()
    stack: list[Any] = [root for root in reversed(roots) if kinds_of(root) & wanted]
    while stack:
        top = stack.pop()
        key = id(top)
        if key not in seen:
            seen.add(key)
            if BITS[type(top)] & wanted:
                yield top
            stack += [x for x in READERS[type(top)](top)[::-1] if x._kinds & wanted]


@overload
def walk_leaves_first(*roots: PrimExpr) -> Iterator[PrimExpr]: ...
@overload
def walk_leaves_first(*roots: Node) -> Iterator[Node]: ...
def walk_leaves_first(*roots: Node) -> Iterator[Node]:
    """Every distinct node of some trees, once, children before parents, at any depth."""
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
