"""The addresses of a buffer's elements, and the instructions that read and write them.

The lanes of a vector are neighbours, neighbours in reverse, one element for all, every so many-th
element, or anywhere; each has instructions of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from minitvm.arith.fused_index import joined
from minitvm.codegen.conversion import memory_type
from minitvm.codegen.emitter import Emitter, literal
from minitvm.codegen.llvm_text import (
    FunctionText,
    Value,
    element_type,
    i64,
    lanes_of,
    vector_type,
    zero,
)
from minitvm.runtime.dtype import INT64, DType
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, BufferStore, PrimExpr, Var

_NO_OFFSET = i64(0)
_STRIDES = (2, 3, 4)  # steps that are read as neighbours
_ZERO = {"i": "0", "f": "0.0", "d": "0.0", "p": "null"}  # by the first letter of an LLVM type


@final
@record()
class Address:
    """The address of an access: a pointer, and for a vector access the step between its elements.

    `step` counts elements: 0 for the same in every lane, 1 for neighbours and -1 for neighbours
    from the last to the first, which is where `pointer` then is; None for one element or any
    others, whose distances from `pointer` are `offsets`, one a lane. `apart` is the step of these
    offsets where it is constant.
    """

    pointer: Value
    lanes: int = 1
    step: int | None = None
    offsets: Value | None = None
    apart: int | None = None


# -- where --


def pointer_of(emitter: Emitter, buffer: Buffer) -> Value:
    """The address of the buffer's first element."""
    if buffer not in emitter.pointers:
        raise CompileError(
            f"{buffer.name}: expected a buffer that is an argument or allocated, found neither"
        )
    pointer = emitter.pointers[buffer]
    if buffer.elem_offset is None:
        return pointer
    offset = emitter.dimension(buffer.elem_offset)
    return emitter.text.element_pointer(memory_type(buffer.dtype), pointer, offset)


def strides_of(emitter: Emitter, buffer: Buffer) -> list[Value]:
    """The distances, in elements, between neighbours along each dimension, as ``i64``; 0 along a
    dimension of one element that broadcasts."""
    text = emitter.text
    extents = [emitter.dimension(extent) for extent in buffer.shape]
    if buffer.strides:
        made = [emitter.dimension(stride) for stride in buffer.strides]
    else:
        made = [i64(1)]
        for extent in extents[:0:-1]:
            made.append(emitter.product(extent, made[-1]))
        made = made[::-1][: len(extents)]
    if not buffer.auto_broadcast:
        return made
    return [
        text.select(text.icmp("eq", extent, i64(1)), i64(0), stride)
        for extent, stride in zip(extents, made, strict=True)
    ]


def _constant_strides(emitter: Emitter, buffer: Buffer) -> Sequence[int | None]:
    """The distances between neighbours along each dimension, None where they aren't known."""
    known = emitter.strides.get(buffer)
    if known is None:
        apart = list(buffer.strides) or [e.const(1)]
        known = [e.const_int(stride) for stride in apart]
        if not buffer.strides:
            for extent in buffer.shape[:0:-1]:
                below, factor = known[0], e.const_int(extent)
                known.insert(0, None if below is None or factor is None else below * factor)
        if buffer.auto_broadcast:
            known = [None] * len(known)
        emitter.strides[buffer] = known
    return known


def _split(emitter: Emitter, node: PrimExpr) -> tuple[Value, int]:
    """An index as ``i64``, and a constant to be added to it."""
    if isinstance(node, e.IntImm):
        return _NO_OFFSET, node.value
    if node.dtype != INT64:
        return emitter.index(node), 0
    if isinstance(node, Var):
        value = emitter.emit(node)
        known = literal(value)
        return (value, 0) if known is None else (_NO_OFFSET, known)
    if isinstance(node, e.Add | e.Sub | e.Mul):
        (a, x), (b, y) = _split(emitter, node.a), _split(emitter, node.b)
        if isinstance(node, e.Add):
            return emitter.sum(a, b, ""), x + y
        if b == _NO_OFFSET:
            if isinstance(node, e.Sub):
                return a, x - y
            return emitter.product(a, i64(y), ""), x * y
        if isinstance(node, e.Mul) and a == _NO_OFFSET:
            return emitter.product(b, i64(x), ""), x * y
    return emitter.index(node), 0


def address(emitter: Emitter, buffer: Buffer, indices: tuple[PrimExpr, ...]) -> Address:
    """The address of ``buffer[indices]``."""
    text = emitter.text
    offset, constant, step, constant_step, lanes = _NO_OFFSET, 0, _NO_OFFSET, 0, 1
    offsets: Value | None = None
    factors = _constant_strides(emitter, buffer)
    strides = strides_of(emitter, buffer) if None in factors else ()
    for node, dim in joined(buffer, indices):
        factor = factors[dim]
        stride = strides[dim] if factor is None else i64(factor)
        lanes = max(lanes, node.dtype.lanes)
        first = node
        if isinstance(node, e.Ramp):
            first, apart = node.base, e.const_int(node.stride)
            if apart is None or factor is None:
                step = emitter.sum(step, emitter.product(emitter.index(node.stride), stride))
            else:
                constant_step += apart * factor
        elif isinstance(node, e.Broadcast):
            first = node.value
        if first.dtype.lanes > 1:
            index = emitter.index(first)
            scaled = text.binary("mul", index, text.splat(stride, first.dtype.lanes))
            offsets = scaled if offsets is None else text.binary("add", offsets, scaled)
        elif factor is None:
            offset = emitter.sum(offset, emitter.product(emitter.index(first), stride))
        else:
            value, more = _split(emitter, first)
            offset = emitter.sum(offset, emitter.product(value, stride, "nsw"))
            constant += more * factor
    step = emitter.sum(step, i64(constant_step))
    element = memory_type(buffer.dtype)
    pointer = _shifted(emitter, element, pointer_of(emitter, buffer), offset, constant)
    if lanes == 1:
        return Address(pointer)
    apart = literal(step) if offsets is None else None
    if apart in (0, 1):
        return Address(pointer, lanes, apart)
    if apart == -1:
        return Address(text.element_pointer(element, pointer, i64(1 - lanes)), lanes, -1)
    ramp = multiples(text, step, lanes)
    all_offsets = ramp if offsets is None else text.binary("add", offsets, ramp)
    return Address(pointer, lanes, None, all_offsets, apart)


def _shifted(emitter: Emitter, element: str, pointer: Value, offset: Value, constant: int) -> Value:
    """The element at ``offset + constant``. The constant is added last: then unrolled loops share
    the rest, and the constant is part of the load. Without it an address may lie outside of the
    buffer."""
    text = emitter.text
    if constant and literal(offset) is None:
        pointer = text.element_pointer(element, pointer, offset, inbounds=False)
        return text.element_pointer(element, pointer, i64(constant), inbounds=False)
    return text.element_pointer(element, pointer, emitter.sum(offset, i64(constant)))


def multiples(text: FunctionText, step: Value, lanes: int) -> Value:
    """0, `step`, twice `step`..."""
    known = literal(step)
    numbers = range(lanes) if known is None else [lane * known for lane in range(lanes)]
    bits = int(step.type[1:])
    listed = ", ".join(f"{step.type} {_wrapped(number, bits)}" for number in numbers)
    constant = Value(vector_type(step.type, lanes), f"<{listed}>")
    return constant if known is not None else text.binary("mul", constant, text.splat(step, lanes))


def _wrapped(number: int, bits: int) -> int:
    """`number` as a signed integer of as many bits."""
    half = 1 << (bits - 1)
    return (number + half) % (2 * half) - half


# -- reading and writing --


def emit_load(emitter: Emitter, node: e.BufferLoad) -> Value:
    """The elements that a load reads, 0 where its predicate doesn't hold."""
    emitter.needs.add(node.buffer.data)
    dtype, predicate = node.buffer.dtype, unless_all(node.predicate)
    if predicate is not None and _is_never(predicate):
        loaded = zero(vector_type(memory_type(dtype), predicate.dtype.lanes))
    elif predicate is not None and predicate.dtype.lanes == 1:
        loaded = _load_if(emitter, emitter.emit(predicate), node)
    else:
        mask = None if predicate is None else emitter.emit(predicate)
        loaded = _load(emitter.text, dtype, address(emitter, node.buffer, node.indices), mask)
    return emitter.conversions.from_memory(loaded, dtype)


def _load_if(emitter: Emitter, holds: Value, node: e.BufferLoad) -> Value:
    """One element, read only if `holds`."""
    text, before = emitter.text, emitter.text.current
    with text.when(holds, *text.blocks("read", "endif")):
        loaded = _load(text, node.buffer.dtype, address(emitter, node.buffer, node.indices))
        came_from = text.current
    nothing = Value(loaded.type, _ZERO[loaded.type[0]])
    return text.phi(loaded.type, (nothing, before), (loaded, came_from))


def _load(text: FunctionText, dtype: DType, where: Address, mask: Value | None = None) -> Value:
    """The value in memory at an address; lanes that a mask leaves out are 0."""
    align, scalar = dtype.element.itemsize, memory_type(dtype)
    type = vector_type(scalar, where.lanes)
    if mask is None and (where.lanes == 1 or where.step == 0):
        return text.splat(text.load(scalar, where.pointer, align), where.lanes)
    if where.step in (1, -1):
        if mask is not None and where.step == -1:
            mask = text.reverse(mask)
        loaded = text.load(type, where.pointer, align, mask)
        return loaded if where.step == 1 else text.reverse(loaded)
    if where.apart not in _STRIDES:
        return text.gather(type, _lane_pointers(text, where, scalar), align, mask)
    loaded = _load_apart(text, type, where.pointer, where.apart, align, mask)
    return loaded if mask is None else text.select(mask, loaded, zero(type))


def _load_apart(
    text: FunctionText, type: str, pointer: Value, step: int, align: int, mask: Value | None
) -> Value:
    """Every `step`-th element, picked from vectors of neighbours: no gather is as fast. The vectors
    lie between the first and the last element, so in the same object. With a mask only the elements
    themselves are read."""
    lanes = lanes_of(type)
    last = (lanes - 1) * step + 1 - lanes  # where the last vector begins
    made: Value | None = None
    for begin in (*range(0, last, lanes), last):
        place = text.element_pointer(element_type(type), pointer, i64(begin))
        part_mask = None
        if mask is not None:
            here = range(begin, begin + lanes)
            wanted = [lanes if p % step else p // step for p in here]  # `lanes`: a zero
            part_mask = text.shuffle(mask, zero(mask.type), wanted)
        part = text.load(type, place, align, part_mask)
        places = [lane * step - begin for lane in range(lanes)]
        chosen = [  # the elements before, these, or those that come later
            lane if p < 0 else lanes + p if p < lanes else None for lane, p in enumerate(places)
        ]
        made = text.shuffle(part if made is None else made, part, chosen)
    assert made is not None
    return made


def emit_store(emitter: Emitter, node: BufferStore, value: Value) -> None:
    """Stores `value`, which is in the buffer's own dtype."""
    predicate = unless_all(node.predicate)
    if predicate is not None and _is_never(predicate):
        return
    text, dtype = emitter.text, node.buffer.dtype
    memory, align = emitter.conversions.to_memory(value, dtype), dtype.element.itemsize
    if predicate is not None and predicate.dtype.lanes == 1:
        write, join = text.blocks("write", "endif")
        with text.when(emitter.emit(predicate), write, join):
            _store(text, memory, address(emitter, node.buffer, node.indices), align)
    else:
        mask = None if predicate is None else emitter.emit(predicate)
        _store(text, memory, address(emitter, node.buffer, node.indices), align, mask)


def _store(
    text: FunctionText, memory: Value, where: Address, align: int, mask: Value | None = None
) -> None:
    if where.step == -1:
        memory, mask = text.reverse(memory), mask and text.reverse(mask)
    if where.step in (1, -1) or (mask is None and where.lanes == 1):
        text.store(memory, where.pointer, align, mask)
    elif mask is None and where.step == 0:  # the last lane is what remains
        text.store(text.extract(memory, where.lanes - 1), where.pointer, align)
    else:
        pointers = _lane_pointers(text, where, element_type(memory.type))
        text.scatter(memory, pointers, align, mask)


def _lane_pointers(text: FunctionText, where: Address, element: str) -> Value:
    if where.offsets is None:
        return text.splat(where.pointer, where.lanes)
    type = vector_type("ptr", where.lanes)
    return text.vector_of_pointers(type, element, where.pointer, where.offsets)


def unless_all(predicate: PrimExpr | None) -> PrimExpr | None:
    """`predicate`, or None where it holds in every lane."""
    inner = predicate.value if isinstance(predicate, e.Broadcast) else predicate
    return None if isinstance(inner, e.IntImm) and inner.value else predicate


def _is_never(predicate: PrimExpr) -> bool:
    inner = predicate.value if isinstance(predicate, e.Broadcast) else predicate
    return isinstance(inner, e.IntImm)  # true ones are gone
