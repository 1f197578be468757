"""Loops that copy a row of vectors from one buffer to another.

Vectors copy a short row faster than the C library's ``memcpy``, which first examines its arguments.
``memcpy`` copies a long row faster, since it doesn't read the lines that it overwrites. LLVM would
call ``memcpy`` for each row, so functions are emitted with
:data:`minitvm.codegen.llvm_text.OWN_COPIES`.
"""

from __future__ import annotations

from collections.abc import Sequence

from minitvm.arith.accesses import step_of
from minitvm.codegen.accesses import address
from minitvm.codegen.emitter import Emitter
from minitvm.codegen.llvm_text import Value
from minitvm.runtime.dtype import INT64
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, BufferLoad, PrimExpr, Var
from minitvm.tir.functor import mentions, substitute, with_fields
from minitvm.tir.stmt import BufferStore

_MEMCPY = "llvm.memcpy.p0.p0.i64"
_WHOLE = "is_whole"  # the annotation of a loop, whether it is emitted as one copy
LONG = 8192  # bytes of a row that memcpy copies faster


def bytes_of_copy(loop: s.For) -> int | None:
    """The bytes that each iteration of a loop copies, one behind the other from one buffer to
    another; None for any other loop, and for one whose rows are surely short."""
    store = loop.body
    if not isinstance(store, BufferStore) or not isinstance(store.value, BufferLoad):
        return None
    load, var = store.value, loop.loop_var
    if store.predicate is not None or load.predicate is not None:
        return None
    is_same = store.buffer.data is load.buffer.data or store.buffer.dtype != load.buffer.dtype
    if is_same or not all(_goes_along(x.buffer, x.indices, var) for x in (store, load)):
        return None
    size = load.dtype.lanes * load.buffer.dtype.itemsize
    extent = e.const_int(loop.extent)
    return size if extent is None or extent * size >= LONG else None


def _goes_along(buffer: Buffer, indices: Sequence[PrimExpr], var: Var) -> bool:
    """Whether an iteration accesses the vector behind that of the iteration before."""
    if buffer.strides or buffer.layout or buffer.auto_broadcast or not indices:
        return False
    *outer, last = indices
    if not isinstance(last, e.Ramp) or e.const_int(last.stride) != 1 or mentions(var, *outer):
        return False
    return step_of(last.base, var) == last.dtype.lanes


def as_whole(loop: s.For, is_one: bool) -> s.For:
    """A loop for which :func:`bytes_of_copy` gives a number, to be emitted as one copy, or not."""
    return with_fields(loop, annotations={**loop.annotations, _WHOLE: is_one})


def is_decided(loop: s.For) -> bool:
    return _WHOLE in loop.annotations


def is_whole(loop: s.For) -> bool:
    """Whether a loop is to be emitted as one copy."""
    return bool(loop.annotations.get(_WHOLE, False))


def emit_copy(emitter: Emitter, loop: s.For) -> None:
    """Copies all that a loop copies at once."""
    store, each = loop.body, bytes_of_copy(loop)
    assert isinstance(store, BufferStore) and isinstance(store.value, BufferLoad) and each
    begin = {loop.loop_var: loop.min}
    to, source = (
        address(emitter, x.buffer, tuple([substitute(i, begin) for i in x.indices])).pointer
        for x in (store, store.value)
    )
    emitter.needs.add(store.value.buffer.data)
    size = emitter.index(e.cast(INT64, loop.extent) * each)
    emitter.text.call_external(_MEMCPY, "void", [to, source, size, Value("i1", "0")])
    emitter.text.forget(store.buffer.data)
