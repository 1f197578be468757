"""What an object file needs from outside.

LLVM's loader calls address 0 where a symbol is missing, so they are checked beforehand.
"""

from __future__ import annotations

import struct

# System V ABI, "Object Files": Elf64_Ehdr, Elf64_Shdr, Elf64_Sym.
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE = 2  # SHT_SYMTAB
_UNDEFINED = 0  # SHN_UNDEF


def undefined_symbols(data: bytes) -> tuple[str, ...]:
    """The names that a 64-bit little-endian ELF object uses and does not define; nothing of
    another format.

    Parameters
    ----------
    data
        The object file.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        return ()
    header = _HEADER.unpack_from(data)
    offset, size, count = header[6], header[11], header[12]
    sections = [_SECTION.unpack_from(data, offset + i * size) for i in range(count)]
    names: dict[str, None] = {}
    for _, kind, _, _, start, length, link, *_ in sections:
        if kind != _SYMBOL_TABLE:
            continue
        strings = sections[link][4]
        for name, _, _, section, _, _ in _SYMBOL.iter_unpack(data[start : start + length]):
            if section == _UNDEFINED and name:
                end = data.index(b"\0", strings + name)
                names[data[strings + name : end].decode()] = None
    return tuple(n for n in names if n != "_GLOBAL_OFFSET_TABLE_")
