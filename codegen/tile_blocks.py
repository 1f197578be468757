"""Parts of a function with blocks of AMX that become functions of their own.

A tile register has one shape in all of a function: LLVM gives each register rows and bytes a row,
and never a register of one shape to a tile of another. If it runs out of registers, it ends the
process. A block never needs more registers than there are, but blocks of other shapes do together:
those of several products, or of the versions of one. Then the largest parts whose blocks do with
the registers are functions. Each loads the shapes once, which takes as long as some products.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from minitvm.codegen.gil import needs_the_gil
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.functor import children, find
from minitvm.tir.stmt import Stmt

_REGISTERS = 8
_LANES = 256  # of a tile, as a vector of words


def are_blocks_apart(body: Stmt) -> bool:
    """Whether parts of a function are functions: its blocks of tiles together need more registers
    than there are."""
    return _needed(body) > _REGISTERS


def is_part_of_tiles(node: Stmt) -> bool:
    """Whether the blocks of tiles in a statement do with the registers that there are."""
    return 0 < _needed(node) <= _REGISTERS and not needs_the_gil(node)


def _needed(node: Stmt) -> int:
    """The registers that the blocks of tiles in a statement need together."""
    needed = Counter[tuple[int, int]]()
    for block in _blocks(node):
        needed |= _tiles(block)
    return needed.total()


def _is_block(node: Stmt) -> bool:
    """Whether a statement makes tiles that no statement around it uses."""
    match node:
        case s.Evaluate():
            return bool(_tiles(node))
        case s.Allocate(buffer=buffer):
            return any(each.buffer is buffer for each in _stores_of_tiles(node))
    return False


def _blocks(node: Stmt) -> Iterator[Stmt]:
    if _is_block(node):
        yield node
        return
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
