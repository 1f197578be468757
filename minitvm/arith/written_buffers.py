"""Which buffers a statement reads and writes."""

from __future__ import annotations

from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer
from minitvm.tir.functor import walk_once
from minitvm.tir.stmt import BufferStore, PrimFunc, Stmt


def written_buffers(body: Stmt) -> frozenset[Buffer]:
    """The buffers that `body` may write: those stored to, and those passed to packed or C
    functions unless by a pointer that says it is only read."""
    written: set[Buffer] = set()
    read_only: set[int] = set()
    for node in walk_once(body):
        if isinstance(node, BufferStore):
            written.add(node.buffer)
        elif isinstance(node, e.Call) and node.op == "tvm_access_ptr":
            reference, mask = node.args[0], e.const_int(node.args[3])
            if mask is not None and not mask & Buffer.WRITE:
                read_only.add(id(reference))
        elif isinstance(node, e.BufferRef) and id(node) not in read_only:
            written.add(node.buffer)
    return frozenset(written)


def written_parameters(func: PrimFunc) -> frozenset[Buffer]:
    """The parameters that a function may write: those that its attribute ``outputs`` lists, or
    else those that its body may."""
    outputs = func.attrs.get("outputs")
    if outputs is None:
        outputs = written_buffers(func.body)
    return frozenset(b for b in func.buffer_map.values() if b in outputs)
