"""Whether arrays share memory, decided by compiled code from their strides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from minitvm.codegen.llvm_text import FunctionText, Value, integer

# int share_memory(DLTensor* a, DLTensor* b)
SHARE_MEMORY = "minitvm_share_memory"


@final
@dataclass(frozen=True, slots=True)
class Region:
    """The memory of the array of a ``DLTensor*``: its bytes lie in ``[low, end)``, and strides
    (counted in elements) lead from one to the others. `compact`: it fills the range."""

    tensor: Value
    low: Value
    end: Value
    extents: list[Value]
    strides: list[Value]
    compact: bool


def are_apart(text: FunctionText, a: Region, b: Region) -> Value:
    """Whether two arrays share no byte: their ranges don't meet, or they interleave, as the
    columns of a matrix do. The runtime tells exactly, which is rarely needed and not cheap."""
    ranges = _any(
        text,
        text.icmp("ule", a.end, b.low),
        text.icmp("ule", b.end, a.low),
        text.icmp("eq", a.low, a.end),  # empty
        text.icmp("eq", b.low, b.end),
    )
    if a.compact and b.compact:
        return ranges
    before, meeting, join = text.current, text.block("meeting"), text.block("apart")
    text.branch_if(ranges, join, meeting, likely=True)
    text.place(meeting)
    with text.scope():
        share_lowest = text.icmp("eq", a.low, b.low)  # an element lies there in both
    exact = text.block("interleaved")
    text.branch_if(share_lowest, join, exact)
    text.place(exact)
    function = text.module.external_function(SHARE_MEMORY, "i32 (ptr, ptr)")
    shared = text.call(function, "i32", [a.tensor, b.tensor])
    with text.scope():
        interleaved = text.icmp("eq", shared, integer("i32", 0))
    text.branch(join)
    text.place(join)
    true, false = integer("i1", 1), integer("i1", 0)
    return text.phi("i1", (true, before), (false, meeting), (interleaved, exact))


def own_elements_apart(text: FunctionText, region: Region) -> list[Value]:
    """For each dimension, whether its stride steps over all that smaller strides reach. If all do,
    no two elements share an address, as those of a broadcast array would."""
    zero, one = integer("i64", 0), integer("i64", 1)
    strides = [text.intrinsic("abs", "i64", s, integer("i1", 0)) for s in region.strides]
    spans = [
        text.binary("mul", stride, text.binary("sub", extent, one))
        for stride, extent in zip(strides, region.extents, strict=True)
    ]
    found: list[Value] = []
    for dim, stride in enumerate(strides):
        reach = zero
        for other, span in enumerate(spans):
            if other == dim:
                continue
            # Of two equal strides the later counts as the smaller, so that they collide.
            smaller = text.icmp("sle" if other > dim else "slt", strides[other], stride)
            counted = text.binary("and", smaller, text.icmp("sgt", span, zero))
            reach = text.binary("add", reach, text.select(counted, span, zero))
        single = text.icmp("sle", region.extents[dim], one)
        found.append(_any(text, text.icmp("sgt", stride, reach), single))
    return found


def _any(text: FunctionText, first: Value, *others: Value) -> Value:
    for other in others:
        first = text.binary("or", first, other)
    return first
