"""What LLVM says of a call of one of its intrinsics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import llvmlite.binding as llvm

from minitvm.codegen.llvm_text import Value
from minitvm.runtime.errors import CompileError

# Intrinsics of one kind of processor, by what follows "llvm." in their names: LLVM reads them for
# any target, and ends the process where it can't make code of them.
_PROCESSORS = frozenset((
    "aarch64", "amdgcn", "arm", "bpf", "dx", "hexagon", "loongarch", "mips", "nvvm", "ppc", "r600",
    "riscv", "s390", "spv", "ve", "wasm", "x86", "xcore",
))  # fmt: skip


def check_intrinsic(name: str, type: str, args: Sequence[Value], arch: str) -> None:
    """Asks LLVM whether it has an intrinsic of that name for a processor of `arch`, with such
    arguments and result.

    Raises
    ------
    CompileError
        When it has none, with LLVM's own words, or it is one of another kind of processor.
    """
    processor = name.split(".")[1]
    if processor in _PROCESSORS and processor != arch.removesuffix("_64"):
        raise CompileError(f"{name}: expected an intrinsic for {arch}, got one for {processor}")
    # Some arguments must be constants, which stay themselves; of others only the type is asked.
    given = tuple((each.type, "poison" if each.text[0] in "%@" else each.text) for each in args)
    reason = _refusal(name, type, given)
    if reason is not None:
        taken = ", ".join(each.type for each in args)
        raise CompileError(
            f"{name}: expected an intrinsic of LLVM that takes ({taken}) and returns {type}: "
            f"LLVM says: {reason}"
        )


# There are no constants of the type of a tile.
_TILE = "%tile = call x86_amx @llvm.x86.cast.vector.to.tile.v256i32(<256 x i32> poison)"


@lru_cache(maxsize=256)
def _refusal(name: str, type: str, args: tuple[tuple[str, str], ...]) -> str | None:
    """Why LLVM refuses a call; None where it doesn't."""
    passed = ", ".join(f"{kind} {'%tile' if kind == 'x86_amx' else text}" for kind, text in args)
    tile = _TILE if "%tile" in passed else ""
    body = f"{tile}\n  call {type} @{name}({passed})\n  ret void"
    try:
        llvm.parse_assembly(f"define void @f() {{\n  {body}\n}}").verify()
    except RuntimeError as error:
        said = re.search(r"error: (.*)", str(error))
        return said[1] if said else str(error).splitlines()[0]
    return None
