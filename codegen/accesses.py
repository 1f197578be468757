"""The addresses of a buffer's elements, and the instructions that read and write them.

The lanes of a vector may be neighbours, neighbours in reverse, one element for all, elements with a
constant step, or any elements; each case has instructions of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import final

from minitvm.arith.fused_index import joined
from minitvm.arith.prover import Prover
from minitvm.codegen.conversion import memory_type
from minitvm.codegen.emitter import Emitter
from minitvm.codegen.llvm_text import (
    FunctionText,
    Value,
    element_type,
    i64,
    lanes_of,
    literal,
    poison,
    vector_type,
    wrapped,
    zero,
)
from minitvm.codegen.tables import from_words, looked_up
from minitvm.runtime.dtype import INT64, DType
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, BufferStore, PrimExpr, Var
from minitvm.transform.stream_stores import ALIGNMENT, NONTEMPORAL

_NO_OFFSET = i64(0)
_STRIDES = (2, 3, 4)  # steps that are read as neighbours
_WHOLE, _AVX = 4, 256  # the bytes of the least elements, and bits of vectors, that AVX masks
_MOST_CHOSEN = 64  # lanes of a mask that one register holds as bits
_NEAR = 4  # vectors of neighbours from which the lanes of one are picked
_PICKED = 2  # lanes from each of several vectors, at least
_ZERO = {"i": "0", "f": "0.0", "d": "0.0", "p": "null"}  # by the first letter of an LLVM type


@final
@record()
class Address:
    """The address of an access: a pointer, and for a vector access the step between its elements.

    `step` counts elements: 0 for the same in every lane, 1 for neighbours and -1 for neighbours
    from the last to the first, which is where `pointer` then is; None for one element or any
    others, whose distances from `pointer` are `offsets`, one a lane. `apart` is the step of these
    offsets where it is constant, and `places` are the offsets where they are.
    """

    pointer: Value
    lanes: int = 1
    step: int | None = None
    offsets: Value | None = None
    apart: int | None = None
    places: tuple[int, ...] | None = None


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
        # Arithmetic of loops' variables doesn't wrap: `limit_indices` has seen to it.
        flags = "nsw" if emitter.text.is_natural(a) and emitter.text.is_natural(b) else ""
        if isinstance(node, e.Add):
            return emitter.sum(a, b, flags), x + y
        if b == _NO_OFFSET:
            if isinstance(node, e.Sub):
                return a, x - y
            return emitter.product(a, i64(y), flags if y >= 0 else ""), x * y
        if isinstance(node, e.Mul) and a == _NO_OFFSET:
            return emitter.product(b, i64(x), flags if x >= 0 else ""), x * y
    return emitter.index(node), 0


def address(
    emitter: Emitter, buffer: Buffer, indices: tuple[PrimExpr, ...], *, inbounds: bool = True
) -> Address:
    """The address of ``buffer[indices]``; unless it is `inbounds`, the element need not exist."""
    text = emitter.text
    offset, constant, step, constant_step, lanes = _NO_OFFSET, 0, _NO_OFFSET, 0, 1
    offsets: Value | None = None
    places: list[int] | None = None  # the sums of constant offsets
    rows = _NO_OFFSET  # constants of indices, times strides that aren't known
    factors = _constant_strides(emitter, buffer)
    strides = strides_of(emitter, buffer) if None in factors else ()
    for node, dim in joined(buffer, indices):
        if node.dtype.lanes == 1 and e.const_int(buffer.shape[dim]) == 1:
            continue  # the index is 0, whatever it is computed from
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
        if first.dtype.lanes > 1 and factor is not None:
            first, constants = _with_constant_lanes(emitter, first)
            if constants is not None:
                before = places or [0] * lanes
                places = [a + b * factor for a, b in zip(before, constants, strict=True)]
        if first.dtype.lanes > 1:
            index = emitter.index(first)
            scaled = text.binary("mul", index, text.splat(stride, first.dtype.lanes))
            offsets = scaled if offsets is None else text.binary("add", offsets, scaled)
        elif factor is None:
            value, more = _split(emitter, first)
            offset = emitter.sum(offset, emitter.product(value, stride))
            rows = emitter.sum(rows, emitter.product(i64(more), stride))
        else:
            value, more = _split(emitter, first)
            offset = emitter.sum(offset, emitter.product(value, stride, "nsw"))
            constant += more * factor
    step = emitter.sum(step, i64(constant_step))
    known, element = literal(step), memory_type(buffer.dtype)
    if places is not None and known is not None:
        places = [place + lane * known for lane, place in enumerate(places)]
        step, steps = _NO_OFFSET, {b - a for a, b in pairwise(places)}
        if len(steps) == 1 and offsets is None:  # they are a ramp
            constant, step, places = constant + places[0], i64(steps.pop()), None
    pointer = pointer_of(emitter, buffer)
    pointer = _shifted(emitter, element, pointer, offset, rows, constant, inbounds=inbounds)
    if lanes == 1:
        return Address(pointer)
    if places is not None and offsets is None and step == _NO_OFFSET:
        return Address(pointer, lanes, None, _listed(places, "i64"), None, tuple(places))
    if places is not None:
        listed = _listed(places, "i64")
        offsets = listed if offsets is None else text.binary("add", offsets, listed)
    apart = literal(step) if offsets is None else None
    if apart in (0, 1):
        return Address(pointer, lanes, apart)
    if apart == -1:
        return Address(text.element_pointer(element, pointer, i64(1 - lanes)), lanes, -1)
    ramp = multiples(text, step, lanes)
    all_offsets = ramp if offsets is None else text.binary("add", offsets, ramp)
    return Address(pointer, lanes, None, all_offsets, apart)


def _with_constant_lanes(emitter: Emitter, index: PrimExpr) -> tuple[PrimExpr, list[int] | None]:
    """An index of many lanes as the sum of an index of a single lane and a constant for each lane;
    the index itself, and None, if it isn't such a sum."""
    constants = constant_lanes(emitter, index)
    if constants is not None:
        return e.const(0, index.dtype.element), constants
    if isinstance(index, e.Broadcast):
        return index.value, [0] * index.dtype.lanes
    if isinstance(index, e.Ramp):
        step = e.const_int(index.stride)
        if step is not None:
            return index.base, [lane * step for lane in range(index.dtype.lanes)]
    if isinstance(index, e.Add | e.Sub):
        (a, x), (b, y) = (_with_constant_lanes(emitter, each) for each in (index.a, index.b))
        if x is not None and y is not None:
            sign = 1 if isinstance(index, e.Add) else -1
            return type(index)(a, b), [p + sign * q for p, q in zip(x, y, strict=True)]
    if isinstance(index, e.Cast):
        inner, constants = _with_constant_lanes(emitter, index.value)
        if constants is not None:
            return e.cast(index.dtype.element, inner), constants
    return index, None


def constant_lanes(emitter: Emitter, node: PrimExpr) -> list[int] | None:
    """The lanes of an integer or a condition where all are constants, the variables of unrolled
    loops included."""
    found = None if node.dtype.is_float else _constants(emitter, node)
    if found is None or node.dtype.is_bool:
        return found
    low, high = node.dtype.element.min(), node.dtype.element.max()
    return found if all(low <= each <= high for each in found) else None


def _constants(emitter: Emitter, node: PrimExpr) -> list[int] | None:
    """See :func:`constant_lanes`; without bounds."""
    lanes = node.dtype.lanes
    match node:
        case e.IntImm():
            return [node.value]
        case Var():
            value = emitter.value_of(node)
            number = literal(value) if lanes == 1 else None
            return emitter.constants.get(node) if number is None else [number]
        case e.Broadcast(value=inner):
            found = constant_lanes(emitter, inner)
            return found and found * lanes
        case e.Ramp():
            base, step = constant_lanes(emitter, node.base), e.const_int(node.stride)
            if base is None or step is None:
                return None
            return [base[0] + lane * step for lane in range(lanes)]
        case e.Cast(value=inner) if node.dtype.is_int and inner.dtype.is_int:
            return constant_lanes(emitter, inner)
        case e.Not(inner):
            found = constant_lanes(emitter, inner)
            return found and [not each for each in found]
        case e.BinaryOp(a, b) if type(node) in _EXACT and not a.dtype.is_float:
            x, y = constant_lanes(emitter, a), constant_lanes(emitter, b)
            if x is None or y is None or (0 in y and isinstance(node, e.FloorDiv | e.FloorMod)):
                return None
            return [_EXACT[type(node)](p, q) for p, q in zip(x, y, strict=True)]
    return None


_EXACT: dict[type, Callable[[int, int], int]] = {
    e.Add: operator.add,
    e.Sub: operator.sub,
    e.Mul: operator.mul,
    e.FloorDiv: operator.floordiv,
    e.FloorMod: operator.mod,
    e.Min: min,
    e.Max: max,
    e.EQ: operator.eq,
    e.NE: operator.ne,
    e.LT: operator.lt,
    e.LE: operator.le,
    e.GT: operator.gt,
    e.GE: operator.ge,
    e.And: operator.and_,
    e.Or: operator.or_,
}


def _shifted(
    emitter: Emitter,
    element: str,
    pointer: Value,
    offset: Value,
    rows: Value,
    constant: int,
    *,
    inbounds: bool,
) -> Value:
    """The element at ``offset + rows + constant``. The constant is added last: then unrolled loops
    share the rest, and the constant is part of the load. `rows` are constant multiples of strides;
    a loop in which the strides stay the same keeps them in registers. Without both an address may
    lie outside of the buffer."""
    text = emitter.text
    if literal(rows) is None and literal(offset) is None:
        pointer = text.element_pointer(element, pointer, offset, inbounds=False)
        offset = rows
    else:
        offset = emitter.sum(offset, rows)
    if constant and literal(offset) is None:
        pointer = text.element_pointer(element, pointer, offset, inbounds=False)
        return text.element_pointer(element, pointer, i64(constant), inbounds=False)
    whole = emitter.sum(offset, i64(constant))
    return text.element_pointer(element, pointer, whole, inbounds=inbounds)


def multiples(text: FunctionText, step: Value, lanes: int, first: int = 0) -> Value:
    """0, `step`, twice `step`...; added to `first` where `step` is known."""
    known = literal(step)
    numbers = range(lanes) if known is None else [first + lane * known for lane in range(lanes)]
    constant = _listed(numbers, step.type)
    return constant if known is not None else text.binary("mul", constant, text.splat(step, lanes))


def _listed(numbers: Sequence[int], type: str) -> Value:
    """A constant vector."""
    bits = int(type[1:])
    listed = ", ".join(f"{type} {wrapped(number, bits)}" for number in numbers)
    return Value(vector_type(type, len(numbers)), f"<{listed}>")


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
        where = address(emitter, node.buffer, node.indices)
        picked = _load_picked(emitter, node, where, predicate)
        if picked is None:
            picked = _looked_up(emitter, node, where)
        if picked is None:
            mask = None if predicate is None else emitter.emit(predicate)
            if mask is not None and _reads_apart(emitter, node.buffer, where):
                picked = _load_some(emitter, node.buffer, where, mask)
            else:
                picked = _load_words(emitter, node.buffer, where, mask)
                picked = picked or _load(emitter.text, dtype, where, mask)
        loaded = picked
    return emitter.conversions.from_memory(loaded, dtype)


def _looked_up(emitter: Emitter, node: e.BufferLoad, where: Address) -> Value | None:
    """Elements at any places of a short row, which registers hold; None for other places. A row is
    read as a whole only if it surely exists."""
    buffer, is_anywhere = node.buffer, where.offsets is not None and where.apart is None
    if not is_anywhere or not buffer.shape or _constant_strides(emitter, buffer)[-1] != 1:
        return None
    *outer, _ = (each.value if isinstance(each, e.Broadcast) else each for each in node.indices)
    exists = node.predicate is None or all(e.const_int(each) == 1 for each in buffer.shape[:-1])
    if not exists or any(each.dtype.lanes > 1 for each in outer):
        return None
    row = address(emitter, buffer, (*outer, e.const(0, INT64))).pointer
    found = looked_up(emitter, node, row)
    if found is None or node.predicate is None:
        return found
    return emitter.text.select(emitter.emit(node.predicate), found, zero(found.type))


def _load_words(
    emitter: Emitter, buffer: Buffer, where: Address, mask: Value | None
) -> Value | None:
    """Narrow elements at any places of a buffer, from its words; None for others."""
    is_compact = not buffer.strides and not buffer.auto_broadcast
    is_anywhere = where.offsets is not None and where.apart is None and where.places is None
    if not (is_compact and is_anywhere) or where.pointer != pointer_of(emitter, buffer):
        return None
    assert where.offsets is not None
    return from_words(emitter, buffer, where.pointer, where.offsets, mask)


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


def _reads_apart(emitter: Emitter, buffer: Buffer, where: Address) -> bool:
    """Whether neighbours that a mask chooses would be read one after the other, in a branch each:
    no instruction reads some lanes of a vector."""
    target, itemsize = emitter.target, buffer.dtype.element.itemsize
    has_masks = target.has_mask_registers or (itemsize >= _WHOLE and target.vector_bits >= _AVX)
    is_compact = not buffer.strides and not buffer.auto_broadcast and bool(buffer.shape)
    is_near = where.step in (1, -1) and where.lanes <= _MOST_CHOSEN
    return is_near and is_compact and not has_masks


def _load_some(emitter: Emitter, buffer: Buffer, where: Address, mask: Value) -> Value:
    """The neighbours that a mask chooses: of the whole vector, where it lies in the buffer, as all
    do except for some at its ends; there, one after the other."""
    text, lanes, align = emitter.text, where.lanes, buffer.dtype.element.itemsize
    scalar = memory_type(buffer.dtype)
    type = vector_type(scalar, lanes)
    if where.step == -1:
        mask = text.reverse(mask)
    places = (where.pointer, pointer_of(emitter, buffer))
    place, begin = (text.convert("ptrtoint", each, "i64") for each in places)
    size = i64(align)
    for extent in buffer.shape:
        size = emitter.product(size, emitter.dimension(extent))
    offset, last = text.binary("sub", place, begin), text.binary("sub", size, i64(lanes * align))
    is_inside = (text.icmp("sge", offset, i64(0)), text.icmp("sle", offset, last))
    whole, each, join = text.blocks("whole", "each", "read")
    text.branch_if(text.all_of(is_inside), whole, each)
    with text.inside(whole, join):
        loaded = text.load(type, where.pointer, align)
        after_whole = text.current
    with text.inside(each, join):
        found = _load_each(text, type, where.pointer, align, mask)
        after_each = text.current
    text.place(join)
    read = text.phi(type, (loaded, after_whole), (found, after_each))
    read = text.select(mask, read, zero(type))
    return text.reverse(read) if where.step == -1 else read


def _load_each(text: FunctionText, type: str, pointer: Value, align: int, mask: Value) -> Value:
    """The neighbours that a mask chooses, one after the other; the others are 0."""
    lanes, scalar = lanes_of(type), element_type(type)
    memory = text.alloca(type, 1, align)
    text.store(zero(type), memory, align)
    bits = text.convert_whole(mask, f"i{lanes}")
    blocks = text.blocks("lane", "next", "done")
    with text.rounds(blocks, i64(0), i64(lanes), i64(1)) as i:
        lane = text.convert("trunc", i, f"i{lanes}") if lanes < 64 else i
        is_on = text.convert("trunc", text.binary("lshr", bits, lane), "i1")
        with text.when(is_on, *text.blocks("chosen", "further")):
            chosen = text.element_pointer(scalar, pointer, i, inbounds=False)
            value = text.load(scalar, chosen, align)
            text.store(value, text.element_pointer(scalar, memory, i), align)
        text.branch(blocks[1])
    return text.load(type, memory, align)


def _row_around(emitter: Emitter, node: e.BufferLoad) -> tuple[int, int]:
    """The numbers of elements that surely lie in memory before and behind those that are read: of
    a row of a tensor whose last index is a number; or of the vector at a multiple of its lanes that
    holds all of them, if rows are whole vectors."""
    buffer = node.buffer
    if not buffer.shape or _constant_strides(emitter, buffer)[-1] != 1:
        return 0, 0
    index, extent = node.indices[-1], e.const_int(buffer.shape[-1])
    place = e.const_int(index.value if isinstance(index, e.Broadcast) else index)
    if extent is None or (place is not None and not 0 <= place < extent):
        return 0, 0
    if place is not None:
        return place, extent - 1 - place
    lanes, others = index.dtype.lanes, node.indices[:-1]
    is_one_row = all(each.dtype.lanes == 1 or isinstance(each, e.Broadcast) for each in others)
    first, places = _with_constant_lanes(emitter, index)
    if places is None or not is_one_row or extent % lanes:
        return 0, 0
    form = Prover().affine(first)
    if any(by % lanes for by in form.terms.values()):
        return 0, 0
    low, high = min(places) + form.constant, max(places) + form.constant
    if low // lanes != high // lanes:
        return 0, 0
    return low % lanes, lanes - 1 - high % lanes


def _load_picked(
    emitter: Emitter, node: e.BufferLoad, where: Address, predicate: PrimExpr | None
) -> Value | None:
    """The elements at constant places, picked from a few vectors of neighbours. Each of these lies
    between two elements that are read, so in the same object; or, where these are fewer vectors,
    between those of the row around all of them. None for other places."""
    if where.places is None:
        return None
    holds = [1] * where.lanes if predicate is None else constant_lanes(emitter, predicate)
    if holds is None:
        return None
    text, dtype = emitter.text, node.buffer.dtype
    align, scalar = dtype.element.itemsize, memory_type(dtype)
    read = [place for place, each in zip(where.places, holds, strict=True) if each]
    if not read:
        return zero(vector_type(scalar, where.lanes))
    around = _row_around(emitter, node) if predicate is None else (0, 0)
    vectors = _vectors_over_all(read, where.lanes, around)
    if not vectors:
        return None
    made: Value | None = None
    for begin, width in vectors:
        place = text.element_pointer(scalar, where.pointer, i64(begin), inbounds=False)
        part = text.load(vector_type(scalar, width), place, align)
        if width == 1:  # a vector of one lane isn't one
            part = text.splat(part, where.lanes)
            if len(vectors) == 1 and all(holds):
                return part
        chosen = [
            p - begin if each and 0 <= p - begin < width else None
            for p, each in zip(where.places, holds, strict=True)
        ]
        nothing = lanes_of(part.type)
        here = text.shuffle(part, zero(part.type), [nothing if p is None else p for p in chosen])
        if made is None:
            made = here
        else:
            lanes = where.lanes
            both = [lane if p is None else lanes + lane for lane, p in enumerate(chosen)]
            made = text.shuffle(made, here, both)
    return made


def _vectors_over_all(
    places: Sequence[int], lanes: int, around: tuple[int, int]
) -> list[tuple[int, int]]:
    """Where the vectors of neighbours begin that cover some places, and their widths; none, if a
    gather is as fast. Between places further apart than a vector is wide, memory isn't read."""
    ordered = sorted({*places})
    ends = [i for i, (a, b) in enumerate(pairwise(ordered), 1) if b - a > lanes]
    groups = [ordered[i:j] for i, j in zip((0, *ends), (*ends, len(ordered)), strict=True)]
    found = list[tuple[int, int]]()
    for first, *others in groups:
        count = (others[-1] if others else first) + 1 - first
        if count > (_NEAR + 1) * lanes:
            return []
        begins, width = _vectors_over(count, lanes)
        found += [(first + begin, width) for begin in begins]
    before, behind = around
    whole = before + ordered[-1] + 1 - ordered[0] + behind
    if whole <= _NEAR * lanes:
        more, width = _vectors_over(whole, lanes)
        if len(more) < len(found):
            return [(ordered[0] - before + begin, width) for begin in more]
    return found if len(found) <= max(_NEAR + 1, lanes // _PICKED) else []


def _vectors_over(count: int, lanes: int) -> tuple[Sequence[int], int]:
    """Where vectors begin that cover a number of elements, and their width."""
    width = min(lanes, 1 << (count.bit_length() - 1))
    return (*range(0, count - width, width), count - width), width


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
        where = address(emitter, node.buffer, node.indices)
        if predicate is not None and where.step == 1 and not emitter.target.has_mask_registers:
            count = first_lanes(emitter, predicate)
            if count is not None and where.lanes & (where.lanes - 1) == 0:
                _store_first(text, memory, where.pointer, align, emitter.index(count))
                return
        mask = None if predicate is None else emitter.emit(predicate)
        if node.buffer is emitter.nontemporal and where.step == 1 and mask is None:
            text.store_past_caches(memory, where.pointer, ALIGNMENT[NONTEMPORAL])
            emitter.stores_past_caches = True
        else:
            _store(text, memory, where, align, mask)


def first_lanes(emitter: Emitter, predicate: PrimExpr) -> PrimExpr | None:
    """The number of the first lanes for which a condition ``ramp(0, 1) < broadcast(n)`` holds: n,
    which may be any number. None for any other condition."""
    if isinstance(predicate, Var):
        return emitter.first_lanes.get(predicate)
    if (
        isinstance(predicate, e.LT)
        and isinstance(predicate.a, e.Ramp)
        and isinstance(predicate.b, e.Broadcast)
        and e.const_int(predicate.a.base) == 0
        and e.const_int(predicate.a.stride) == 1
        and predicate.a.dtype.is_int
        and predicate.a.lanes < predicate.a.dtype.max()
    ):
        return predicate.b.value
    return None


def _store_first(
    text: FunctionText, memory: Value, pointer: Value, align: int, count: Value
) -> None:
    """Stores the first `count` lanes: all of them, or else a part for each bit of the number, from
    half of the lanes down to one. Without mask registers, processors of AMD take 18 cycles for a
    masked store, and others have none."""
    lanes, scalar = lanes_of(memory.type), element_type(memory.type)
    whole, part, join = text.blocks("whole", "part", "stored")
    text.branch_if(text.icmp("sge", count, i64(lanes)), whole, part)
    with text.inside(whole, join):
        text.store(memory, pointer, align)
    with text.inside(part, join):
        count = text.intrinsic("smax", "i64", count, i64(0))
        rest, width = memory, lanes // 2
        while width:
            low, high = (_part(text, rest, begin, width) for begin in (0, width))
            has_bit = text.icmp("ne", text.binary("and", count, i64(width)), i64(0))
            write, after = text.blocks("write", "further")
            before = text.current
            with text.when(has_bit, write, after):
                text.store(low, pointer, align)
                beyond = text.element_pointer(scalar, pointer, i64(width))
                written = text.current
            if width > 1:
                rest = text.phi(low.type, (low, before), (high, written))
                pointer = text.phi("ptr", (pointer, before), (beyond, written))
            width //= 2
    text.place(join)


def _part(text: FunctionText, vector: Value, begin: int, width: int) -> Value:
    """Some of the lanes of a vector."""
    if width == 1:
        return text.extract(vector, begin)
    return text.shuffle(vector, poison(vector.type), range(begin, begin + width))


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
