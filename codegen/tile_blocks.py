"""Blocks of AMX that become functions of their own.

A tile register has one shape in all of a function: LLVM gives each register rows and bytes a row,
and never a register of one shape to a tile of another. If it runs out of registers, it ends the
process. A block never needs more registers than there are, but blocks of other shapes do together:
those of several products, or of the versions of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.functor import children, find
from minitvm.tir.stmt import Stmt

_REGISTERS = 8
_LANES = 256  # of a tile, as a vector of words


def tile_blocks_apart(body: Stmt) -> set[Stmt]:
    """The blocks of tiles in a function that together need more registers than there are; nothing
    if all of them share the registers."""
    blocks = [*_blocks(body)]
    needed = Counter[tuple[int, int]]()
    for block in blocks:
        needed |= _tiles(block)
    return {*blocks} if needed.total() > _REGISTERS else set()


def _blocks(node: Stmt) -> Iterator[Stmt]:
    """The outermost statements whose tiles are used in no other statement."""
    match node:
        case s.Evaluate() if _tiles(node):
            yield node
        case s.Allocate() if any(each.buffer is node.buffer for each in _stores_of_tiles(node)):
            yield node
        case _:
            for each in children(node):
                if isinstance(each, Stmt):
                    yield from _blocks(each)


def _stores_of_tiles(node: Stmt) -> Iterator[s.BufferStore]:
    return (each for each in find(s.BufferStore, node) if each.value.dtype.lanes == _LANES)


def _tiles(block: Stmt) -> Counter[tuple[int, int]]:
    """The number of tiles of each shape, rows and bytes, that are made or loaded in a block."""
    made = Counter[tuple[int, int]]()
    for call in find(e.Call, block):
        name = call.args[0] if call.args else None
        if isinstance(name, e.StringImm) and name.value.startswith(
            ("llvm.x86.tilezero", "llvm.x86.tileload")
        ):
            rows, width = (e.const_int(each) for each in call.args[1:3])
            made[rows or 0, width or 0] += 1
    return made
