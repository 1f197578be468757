"""Elements that data choose from small tables, which vector registers hold.

A gather reads its lanes one after the other. A permutation of a register chooses all lanes at once,
of as many entries as the register has; of more, several permutations do::

    T[i]    ->    select(i < 16, permute(T[0:16], i), permute(T[16:32], i))

No instruction gathers bytes or 16-bit numbers, so the words of larger tables are gathered::

    T[i]    ->    (words of T)[i // 4] >> i % 4 * 8
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import final

from minitvm.codegen.conversion import memory_type
from minitvm.codegen.emitter import Emitter
from minitvm.codegen.llvm_text import (
    FunctionText,
    Value,
    i64,
    integer,
    lanes_of,
    poison,
    vector_type,
    wrapped,
    zero,
)
from minitvm.runtime.dtype import DType
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, PrimExpr

_WORD = 4  # bytes
_SHARE = 4  # of all vector registers, one in so many may hold a table


@final
@record()
class Permutation:
    """An instruction, by its intrinsic, that chooses each of `lanes` elements of some `bits` from
    as many `entries`. If these are fewer than lanes, each such part of the register holds the
    entries again, and an index must be less than their number."""

    features: frozenset[str]
    name: str
    bits: int
    lanes: int
    entries: int


def _on(*features: str) -> frozenset[str]:
    return frozenset(features)


# In order of preference.
PERMUTATIONS = (
    Permutation(_on("avx512vbmi"), "x86.avx512.permvar.qi.512", 8, 64, 64),
    Permutation(_on("avx512bw"), "x86.avx512.pshuf.b.512", 8, 64, 16),
    Permutation(_on("avx2"), "x86.avx2.pshuf.b", 8, 32, 16),
    Permutation(_on("sse4.1"), "x86.ssse3.pshuf.b.128", 8, 16, 16),
    Permutation(_on("neon"), "aarch64.neon.tbl1.v16i8", 8, 16, 16),
    Permutation(_on("avx512bw"), "x86.avx512.permvar.hi.512", 16, 32, 32),
    Permutation(_on("avx512f"), "x86.avx512.permvar.si.512", 32, 16, 16),
    Permutation(_on("avx2"), "x86.avx2.permd", 32, 8, 8),
    Permutation(_on("avx512f"), "x86.avx512.permvar.di.512", 64, 8, 8),
)


def looked_up(emitter: Emitter, node: e.BufferLoad, row: Value) -> Value | None:
    """The elements that a load reads from a row of neighbours, which begins at `row`, by
    permutations of the whole row; None if it has so many elements that gathering them takes less
    time. Lanes in which the load's predicate doesn't hold are any elements."""
    dtype, lanes, index = node.buffer.dtype, node.dtype.lanes, _place(node)
    bits = dtype.itemsize * 8
    by = _permutation(emitter.target, bits)
    if by is None or dtype.is_handle:
        return None
    count = e.const_int(node.buffer.shape[-1])
    if count is None or not 0 < count <= 1 << bits:
        return None
    pieces = -(-count // by.entries)
    operations = 3 * pieces - 2  # permutations, comparisons, choices
    if pieces * _SHARE > emitter.target.vector_registers or operations > min(lanes, by.lanes):
        return None
    text = emitter.text
    places = emitter.cast(index, DType(f"int{bits}x{lanes}"))
    begins = range(0, count, by.entries)
    entries = [_entries(text, row, at, min(by.entries, count - at), by) for at in begins]
    parts = [
        _permuted(text, entries, _some_lanes(text, places, begin, by.lanes), by)
        for begin in range(0, lanes, by.lanes)
    ]
    while len(parts) & (len(parts) - 1):  # halves are joined
        parts.append(parts[-1])
    while len(parts) > 1:
        parts = [_joined(text, a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    found = _some_lanes(text, parts[0], 0, lanes)
    return text.convert_whole(found, vector_type(memory_type(dtype), lanes))


def from_words(
    emitter: Emitter, buffer: Buffer, table: Value, offsets: Value, mask: Value | None
) -> Value | None:
    """The elements of a compact buffer, which begins at `table`, at some offsets, where `mask`
    holds: from gathered words, all of which lie in the buffer. None if elements are as wide, or the
    target gathers few words at a time, or the buffer isn't surely made of words."""
    size, extents = buffer.dtype.itemsize, [e.const_int(each) for each in buffer.shape]
    if size not in (1, 2) or "avx512f" not in emitter.target.features or None in extents:
        return None
    count = prod(each or 0 for each in extents)
    if count * size % _WORD or not 0 < count <= 1 << 31:
        return None
    text, lanes = emitter.text, lanes_of(offsets.type)
    at = text.convert("trunc", offsets, "i32")
    in_word = text.binary("and", at, integer(at.type, _WORD // size - 1))
    number = text.binary("lshr", at, integer(at.type, _WORD // size // 2))
    pointers = text.vector_of_pointers(vector_type("ptr", lanes), "i32", table, number)
    words = text.gather(at.type, pointers, size, mask)
    bits = text.binary("mul", in_word, integer(at.type, 8 * size))
    low = text.convert("trunc", text.binary("lshr", words, bits), f"i{8 * size}")
    return low if mask is None else text.select(mask, low, zero(low.type))


def _place(node: e.BufferLoad) -> PrimExpr:
    """The last index of a load, without casts that keep the bits by which an element may be
    numbered."""
    index = node.indices[-1]
    while isinstance(index, e.Cast) and _has_number(index.value.dtype, node.buffer.dtype):
        index = index.value
    return index


def _has_number(dtype: DType, elements: DType) -> bool:
    is_number = dtype.is_int or dtype.is_uint
    return is_number and dtype.itemsize >= elements.itemsize


def _permutation(target: Target, bits: int) -> Permutation | None:
    return next((p for p in PERMUTATIONS if p.bits == bits and p.features <= target.features), None)


def _entries(text: FunctionText, table: Value, at: int, count: int, by: Permutation) -> Value:
    """Some elements of a table, in each part of a register."""
    element = f"i{by.bits}"
    place = text.element_pointer(element, table, i64(at))
    if count == 1:  # a vector of one lane isn't one
        return text.splat(text.load(element, place, by.bits // 8), by.lanes)
    loaded = text.load(vector_type(element, count), place, by.bits // 8)
    order = [lane % by.entries for lane in range(by.lanes)]
    return text.shuffle(
        loaded, poison(loaded.type), [lane if lane < count else None for lane in order]
    )


def _permuted(
    text: FunctionText, entries: Sequence[Value], places: Value, by: Permutation
) -> Value:
    """The elements at some places of a table, whose pieces are `entries`."""
    type, inside = places.type, places
    if by.entries < by.lanes:
        inside = text.binary("and", places, integer(type, by.entries - 1))
    made = text.intrinsic(by.name, type, entries[-1], inside)
    for piece in range(len(entries) - 1)[::-1]:
        behind = wrapped((piece + 1) * by.entries, by.bits)
        lies_here = text.icmp("ult", places, integer(type, behind))
        made = text.select(lies_here, text.intrinsic(by.name, type, entries[piece], inside), made)
    return made


def _some_lanes(text: FunctionText, vector: Value, begin: int, count: int) -> Value:
    """Lanes of a vector from `begin` on; those beyond its end are any values."""
    lanes = lanes_of(vector.type)
    if begin == 0 and count == lanes:
        return vector
    order = [lane if lane < lanes else None for lane in range(begin, begin + count)]
    return text.shuffle(vector, poison(vector.type), order)


def _joined(text: FunctionText, a: Value, b: Value) -> Value:
    return text.shuffle(a, b, range(lanes_of(a.type) + lanes_of(b.type)))
