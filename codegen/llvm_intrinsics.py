"""Checks calls of LLVM intrinsics by asking LLVM itself."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from minitvm.codegen.llvm_text import Value
from minitvm.runtime.errors import CompileError
from minitvm.target import Target

# Intrinsics of one kind of processor, by the word behind "llvm." in their names: LLVM parses them
# for any target, and ends the process where it can't generate code for them.
_PROCESSORS = frozenset((
    "aarch64", "amdgcn", "arm", "bpf", "dx", "hexagon", "loongarch", "mips", "nvvm", "ppc", "r600",
    "riscv", "s390", "spv", "ve", "wasm", "x86", "xcore",
))  # fmt: skip

# Every target can generate code for these.
_EVERYWHERE = frozenset((
    "abs", "bitreverse", "bswap", "ceil", "copysign", "cos", "ctlz", "ctpop", "cttz", "exp",
    "exp10", "exp2", "fabs", "floor", "fma", "fmuladd", "fshl", "fshr", "log", "log10", "log2",
    "maximum", "maxnum", "minimum", "minnum", "nearbyint", "pow", "powi", "rint", "round",
    "roundeven", "sin", "smax", "smin", "sqrt", "trunc", "uadd", "umax", "umin",
))  # fmt: skip


def check_intrinsic(name: str, type: str, args: Sequence[Value], target: Target) -> None:
    """Asks LLVM whether it has an intrinsic of that name for a target, with these arguments and
    this result.

    Raises
    ------
    CompileError
        When LLVM has no such intrinsic, with LLVM's own message; when it belongs to another kind of
        processor, or the target lacks its instruction.
    """
    processor = name.split(".")[1]
    if processor in _PROCESSORS and processor != target.arch.removesuffix("_64"):
        raise CompileError(
            f"{name}: expected an intrinsic for {target.arch}, got one for {processor}"
        )
    # Constant arguments stay constants, since some must be; other arguments become undefined values
    # of their type.
    given = tuple((each.type, "poison" if each.text[0] in "%@" else each.text) for each in args)
    reason = _refusal(name, type, given)
    if reason is not None:
        taken = ", ".join(each.type for each in args)
        raise CompileError(
            f"{name}: expected an intrinsic of LLVM that takes ({taken}) and returns {type}: "
            f"LLVM says: {reason}"
        )
    if processor not in _EVERYWHERE and "x86_amx" not in (type, *(each.type for each in args)):
        reason = _end(name, type, given, (target.triple, target.mcpu, target.feature_string))
        if reason is not None:
            raise CompileError(
                f"{name}: expected a target that has its instruction, got {str(target)!r}: another "
                f"intrinsic, or another -mcpu or -mattr (LLVM says: {reason})"
            )


# The type of a tile has no constants.
_TILE = "%tile = call x86_amx @llvm.x86.cast.vector.to.tile.v256i32(<256 x i32> poison)"


@lru_cache(maxsize=256)
def _refusal(name: str, type: str, args: tuple[tuple[str, str], ...]) -> str | None:
    """LLVM's reason for refusing a call; None if it accepts the call."""
    passed = ", ".join(f"{kind} {'%tile' if kind == 'x86_amx' else text}" for kind, text in args)
    tile = _TILE if "%tile" in passed else ""
    body = f"{tile}\n  call {type} @{name}({passed})\n  ret void"
    try:
        llvm.parse_assembly(f"define void @f() {{\n  {body}\n}}").verify()
    except RuntimeError as error:
        said = re.search(r"error: (.*)", str(error))
        return said[1] if said else str(error).splitlines()[0]
    return None


# The program of a separate process, which reads a module and generates code for it: LLVM ends a
# process that asks for an instruction that the target lacks.
_MAKE_CODE = """
import resource, sys
packages, triple, cpu, features = sys.argv[1:]
sys.path.append(packages)
import llvmlite.binding as llvm
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=2)
machine.emit_object(llvm.parse_assembly(sys.stdin.read()))
"""
_PATIENCE = 60.0  # seconds


@lru_cache(maxsize=256)
def _end(
    name: str, type: str, args: tuple[tuple[str, str], ...], machine: tuple[str, str, str]
) -> str | None:
    """LLVM's last message if it ends the process at a call; None if it generates code for the call,
    or if no process can be started."""
    if not sys.executable:
        return None
    import subprocess  # on demand: its import takes 5 ms

    texts = [f"%a{i}" if text == "poison" else text for i, (_, text) in enumerate(args)]
    passed = [f"{kind} {text}" for (kind, _), text in zip(args, texts, strict=True)]
    taken = ", ".join(each for each in passed if "%a" in each)
    result, back = ("%made = ", f"{type} %made") if type != "void" else ("", "void")
    call = f"{result}call {type} @{name}({', '.join(passed)})"
    text = f"define {type} @f({taken}) {{\n  {call}\n  ret {back}\n}}"
    packages = str(Path(llvmlite.__file__).parents[1])
    try:
        done = subprocess.run(
            (sys.executable, "-I", "-c", _MAKE_CODE, packages, *machine), input=text,
            capture_output=True, text=True, timeout=_PATIENCE, check=False,
        )  # fmt: skip
    except OSError:
        return None
    except subprocess.TimeoutExpired:
        return "nothing, for a minute"
    said = re.search(r"LLVM ERROR: (.*)", done.stderr)
    if said is None and done.returncode >= 0:  # LLVM didn't end the process
        return None
    return said[1].rstrip(": ") if said else f"nothing, with signal {-done.returncode}"
