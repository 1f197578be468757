"""Reads object files: the external symbols of the code, and whether calls to them need stubs.

LLVM's loader calls address 0 where a symbol is missing, so symbols are checked beforehand.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

# System V ABI, "Object Files": Elf64_Ehdr, Elf64_Shdr, Elf64_Sym, Elf64_Rela.
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE = 2  # SHT_SYMTAB
_RELOCATIONS = 4  # SHT_RELA
_UNDEFINED = 0  # SHN_UNDEF
_X86_64 = 62  # EM_X86_64
_PLT32 = 4  # R_X86_64_PLT32


def undefined_symbols(data: bytes) -> tuple[str, ...]:
    """The names that a 64-bit little-endian ELF object uses and does not define; empty for another
    format.

    Parameters
    ----------
    data
        The object file.
    """
    names: dict[str, None] = {}
    sections = _sections(data)
    for table in sections:
        if table.kind != _SYMBOL_TABLE:
            continue
        strings = sections[table.link].offset
        for name, _, _, section, _, _ in _SYMBOL.iter_unpack(table.content(data)):
            if section == _UNDEFINED and name:
                end = data.index(b"\0", strings + name)
                names[data[strings + name : end].decode()] = None
    return tuple(n for n in names if n != "_GLOBAL_OFFSET_TABLE_")


def calls_through_stubs(data: bytes) -> bool:
    """Whether a loader has to write stubs for the calls of external functions in an x86-64 ELF
    object. True for other machines and formats, where this isn't known."""
    sections = _sections(data)
    if not sections or _HEADER.unpack_from(data)[2] != _X86_64:
        return True
    for table in sections:
        if table.kind == _RELOCATIONS:
            symbols = sections[table.link].offset
            targets = np.frombuffer(table.content(data), "<u8")[1::3]
            called = targets[targets & 0xFFFFFFFF == _PLT32] >> 32
            for index in set(called.tolist()):
                if _SYMBOL.unpack_from(data, symbols + index * _SYMBOL.size)[3] == _UNDEFINED:
                    return True
    return False


class _Section(NamedTuple):
    kind: int
    offset: int
    size: int
    link: int

    def content(self, data: bytes) -> bytes:
        return data[self.offset : self.offset + self.size]


def _sections(data: bytes) -> list[_Section]:
    """The sections of a 64-bit little-endian ELF object; empty for another format."""
    if data[:6] != b"\x7fELF\x02\x01":
        return []
    header = _HEADER.unpack_from(data)
    offset, size, count = header[6], header[11], header[12]
    found = (_SECTION.unpack_from(data, offset + i * size) for i in range(count))
    return [_Section(each[1], each[4], each[5], each[6]) for each in found]
