"""The effects of statements and calls: the memory that they write, and the values that stay
stable."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import TypeAlias, TypeGuard

from minitvm.arith.atoms import is_pure
from minitvm.tir.expr import (
    Buffer,
    BufferLoad,
    BufferRef,
    Call,
    PrimExpr,
    ProducerLoad,
    Select,
    Var,
    const_int,
)
from minitvm.tir.functor import Node, children, contains, find
from minitvm.tir.stmt import (
    Allocate,
    AttrStmt,
    BufferStore,
    Evaluate,
    For,
    IfThenElse,
    LetStmt,
    PrimFunc,
    SeqStmt,
    Stmt,
)
from minitvm.tir.structural_equal import structural_equal

_ANY = Var("any")  # the memory that a function outside of the program writes
_CALLS_OUT = ("call_packed", "call_extern", "call_llvm_intrin", "tvm_access_ptr")


def calls_out(*nodes: PrimExpr | Stmt) -> bool:
    """Whether functions outside of the program are called."""
    return any(each.op in _CALLS_OUT for each in find(Call, *nodes))


def loads(*nodes: PrimExpr) -> bool:
    """Whether an element of a buffer is read. Such a value may only be evaluated where the program
    evaluates it: elsewhere its index may be outside of the buffer."""
    return contains(BufferLoad, *nodes)


def is_lazy(node: Node) -> TypeGuard[Call]:
    """Whether a node evaluates only one of its branches."""
    return isinstance(node, Call) and node.op == "if_then_else"


def surely_evaluated(*nodes: PrimExpr) -> Iterator[PrimExpr]:
    """Every distinct node of some expressions outside of the branches of lazy choices."""
    seen: set[PrimExpr] = set()
    stack = [*nodes]
    while stack:
        top = stack.pop()
        if top not in seen:
            seen.add(top)
            yield top
            stack += top.args[:1] if is_lazy(top) else children(top)


def outermost_choices(node: PrimExpr) -> list[PrimExpr]:
    """The choices of an expression that are in no other choice."""
    made: list[PrimExpr] = []
    seen: set[PrimExpr] = set()
    stack = [node]
    while stack:
        top = stack.pop()
        if top in seen:
            continue
        seen.add(top)
        if is_lazy(top) or isinstance(top, Select):
            made.append(top)
        else:
            stack += children(top)
    return made


SureChoices: TypeAlias = dict[PrimExpr, dict[Call, None]]
"""The lazy choices that expressions evaluate in any case, as far as they are known."""


def choices_in_both(a: PrimExpr, b: PrimExpr, known: SureChoices) -> list[Call]:
    """The lazy choices that both of two expressions evaluate in any case. Where `a` and `b` are the
    branches of a choice, these are evaluated before it, once: otherwise a chain of choices, each of
    which has the one before in both branches, would be evaluated exponentially often."""
    if not (contains(Call, a) and contains(Call, b)):
        return []
    others = _sure_choices(b, known)
    return [each for each in _sure_choices(a, known) if each in others]


def _sure_choices(node: PrimExpr, known: SureChoices) -> dict[Call, None]:
    """The lazy choices that an expression evaluates in any case, inner ones first: also those in
    both branches of a choice."""
    found = known.get(node)
    if found is not None:
        return found
    if is_lazy(node):
        condition, a, b = (_sure_choices(each, known) for each in node.args)
        found = {**condition, **{each: None for each in a if each in b}, node: None}
    else:
        parts = [made for each in children(node) if (made := _sure_choices(each, known))]
        found = {key: None for part in parts for key in part} if len(parts) != 1 else parts[0]
    known[node] = found
    return found


def reads_tensors(*nodes: PrimExpr) -> bool:
    """Whether an element of a tensor is read. Such a value depends on data."""
    return contains(ProducerLoad, *nodes)


def has_effect(node: Stmt, own: Container[Buffer] = ()) -> bool:
    """Whether a statement has an effect outside of itself. Nothing outside reads the memory of
    `own`. A prefetch has no effect."""
    match node:
        case Evaluate(Call(op="prefetch")):
            return False
        case BufferStore():
            return node.buffer not in own or not is_pure(node)
        case For() | SeqStmt() | Allocate() | AttrStmt() | LetStmt() | IfThenElse():
            parts = children(node)
            return any(
                has_effect(each, own) if isinstance(each, Stmt) else not is_pure(each)
                for each in parts
            )
    return True


def own_memory(body: Stmt) -> frozenset[Buffer]:
    """The buffers that a statement allocates, which nothing else can read."""
    return frozenset(each.buffer for each in find(Allocate, body))


def is_stable(value: PrimExpr, body: PrimExpr | Stmt) -> bool:
    """Whether `value` surely stays the same while `body` runs: `body` writes nothing it loads.

    A fact about ``A[i]`` ends at a store to A.
    """
    return Effects().is_stable(value, body)


class Effects:
    """The memory that parts of a program may write. Each part is visited once, however many scopes
    on the way down ask for it."""

    def __init__(self) -> None:
        self._stored: dict[PrimExpr | Stmt, frozenset[Var]] = {}
        self._loaded: dict[PrimExpr | Stmt, frozenset[Var]] = {}

    def is_stable(self, value: PrimExpr, body: PrimExpr | Stmt) -> bool:
        """See :func:`is_stable`."""
        read = _memory_of(value, _READING, self._loaded)
        if not read or _ANY in read:
            return not read
        written = _memory_of(body, _WRITING, self._stored)
        return _ANY not in written and read.isdisjoint(written)


_NO_MEMORY = frozenset[Var]()
_READING = (BufferLoad, Call)
_WRITING = (BufferStore, BufferRef, Call)


def _memory_of(
    node: PrimExpr | Stmt,
    kinds: tuple[type, ...],
    known: dict[PrimExpr | Stmt, frozenset[Var]],
) -> frozenset[Var]:
    """The memory of the buffers that nodes of some kinds in `node` read or write, as the pointers
    to it; `_ANY` among them, of a call out of the program, stands for all memory."""
    if not contains(kinds, node):
        return _NO_MEMORY
    found = known.get(node)
    if found is None:
        parts = [_memory_of(child, kinds, known) for child in children(node)]
        if isinstance(node, BufferLoad | BufferStore | BufferRef) and type(node) in kinds:
            parts.append(frozenset([node.buffer.data]))
        elif isinstance(node, Call) and node.op in _CALLS_OUT:
            parts.append(frozenset([_ANY]))
        found = known[node] = _NO_MEMORY.union(*parts)
    return found


def read_buffers(body: Stmt) -> frozenset[Buffer]:
    """The buffers whose elements `body` reads. A request ahead reads nothing."""
    found, seen = set[Buffer](), set[int]()
    waiting = list[Node]([body])
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        if isinstance(node, Call) and node.op == "prefetch":
            waiting += children(node.args[0])
            continue
        seen.add(id(node))
        if isinstance(node, BufferLoad):
            found.add(node.buffer)
        waiting += children(node)
    return frozenset(found)


def written_buffers(body: Stmt) -> frozenset[Buffer]:
    """The buffers that `body` may write: it stores to them, or passes them to packed or C functions
    by a pointer that isn't read-only."""
    written: set[Buffer] = set()
    read_only: set[int] = set()
    for node in find((BufferStore, Call, BufferRef), body):
        if isinstance(node, BufferStore):
            written.add(node.buffer)
        elif isinstance(node, BufferRef):
            if id(node) not in read_only:
                written.add(node.buffer)
        elif node.op == "tvm_access_ptr":
            reference, mask = node.args[0], const_int(node.args[3])
            if mask is not None and not mask & Buffer.WRITE:
                read_only.add(id(reference))
    return frozenset(written)


def written_parameters(func: PrimFunc) -> frozenset[Buffer]:
    """The parameters that a function may write: those in its attribute ``outputs``; without that
    attribute, those that its body may write."""
    outputs = func.attrs.outputs
    if outputs is None:
        outputs = written_buffers(func.body)
    return frozenset(b for b in func.buffer_map.values() if b in outputs)


def may_be_one_array(func: PrimFunc, source: Buffer, target: Buffer) -> bool:
    """Whether two parameters are an input and an output for which a call may pass one array."""
    written = written_parameters(func)
    return (
        target in written
        and source not in written
        and any(source is each for each in func.buffer_map.values())
        and source.dtype == target.dtype
        and len(source.shape) == len(target.shape)
        and all(map(structural_equal, source.shape, target.shape))
        and not source.auto_broadcast
        and not target.auto_broadcast
    )
