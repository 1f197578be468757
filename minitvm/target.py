"""Target: what code is made for, and what a schedule may know of it."""

from __future__ import annotations

import difflib
import shlex
import threading
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any, final

from minitvm.runtime.device import device
from minitvm.runtime.device_api.registry import kinds, launches
from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.runtime.host import cache_sizes, host
from minitvm.runtime.threads import available_cpus

_V2 = frozenset({"sse2", "sse4.1", "sse4.2", "popcnt"})
_V3 = _V2 | {"avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_ICELAKE = _V4 | {"avx512vnni", "avx512vbmi", "avx512vbmi2", "avx512bitalg", "avx512vpopcntdq"}
_SAPPHIRE = _ICELAKE | {"avx512bf16", "avx512fp16", "amx-tile", "amx-bf16", "amx-int8", "avxvnni"}
_NEON = frozenset({"neon"})
_V82 = _NEON | {"fullfp16", "dotprod"}
_V86 = _V82 | {"bf16", "i8mm"}

# CPUs by LLVM's name for them, with the features that code generation and schedules ask about
# (LLVM 22: llvm/lib/Target/X86/X86.td, AArch64/AArch64Processors.td). LLVM itself knows the rest.
CPUS: dict[str, dict[str, frozenset[str]]] = {
    "x86_64": {
        "x86-64": frozenset({"sse2"}),
        "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4,
        "nehalem": _V2, "westmere": _V2,
        "sandybridge": _V2 | {"avx"}, "ivybridge": _V2 | {"avx", "f16c"},
        "haswell": _V3, "core-avx2": _V3, "broadwell": _V3, "skylake": _V3,
        "alderlake": _V3 | {"avxvnni"}, "raptorlake": _V3 | {"avxvnni"},
        "skylake-avx512": _V4, "skx": _V4,
        "cascadelake": _V4 | {"avx512vnni"}, "cooperlake": _V4 | {"avx512vnni", "avx512bf16"},
        "icelake-client": _ICELAKE, "icelake-server": _ICELAKE, "tigerlake": _ICELAKE,
        "rocketlake": _ICELAKE,
        "sapphirerapids": _SAPPHIRE, "emeraldrapids": _SAPPHIRE,
        "graniterapids": _SAPPHIRE | {"amx-fp16"},
        "znver1": _V3, "znver2": _V3, "znver3": _V3,
        "znver4": _ICELAKE | {"avx512bf16"}, "znver5": _ICELAKE | {"avx512bf16", "avxvnni"},
    },
    "aarch64": {
        "generic": _NEON, "cortex-a53": _NEON, "cortex-a57": _NEON, "cortex-a72": _NEON,
        "cortex-a76": _V82, "neoverse-n1": _V82, "neoverse-v1": _V86 | {"sve"},
        "neoverse-n2": _V86 | {"sve", "sve2"}, "neoverse-v2": _V86 | {"sve", "sve2"},
        "apple-m1": _V82, "apple-m2": _V86, "apple-m3": _V86, "a64fx": _NEON | {"sve"},
    },
}  # fmt: skip
_ARCH_ALIASES = {"amd64": "x86_64", "x86-64": "x86_64", "arm64": "aarch64"}
# Features by which LLVM tunes, such as prefer-256-bit; it lists them nowhere.
_TUNING_PREFIXES = ("prefer-", "fast-", "slow-")
_OPTIONS = ("mcpu", "mattr", "mtriple", "keys", "device", "model", "num-cores", "opt-level")


@final
@dataclass(frozen=True, slots=True)
class TargetKind:
    """What a target is for: ``llvm``, or a kind of device that launches code of the CPU."""

    name: str

    def __str__(self) -> str:
        return self.name


@final
@dataclass(frozen=True, slots=True)
class Target:
    """What code is made for, in the classic notation.

    ``llvm`` alone is this machine with all its features. ``-mcpu=NAME`` names a CPU,
    ``-mattr=+a,-b`` adds and removes features, ``-mtriple=ARCH-VENDOR-OS`` says another
    architecture or system. In the place of ``llvm``, the name of a device that launches kernels,
    such as ``ext_dev``, makes code for its arrays (docs/devices.md). A dict of these options does
    as well, and so does another target. `host` is classic: the CPU that calls is the one that
    computes, so it is only checked.

    Raises
    ------
    CompileError
        When the kind, an option, the CPU or the architecture is unknown.

    >>> Target("llvm -mcpu=haswell").vector_bits
    256
    """

    target: str = "llvm"
    host: InitVar[Any] = None
    triple: str = field(init=False)
    mcpu: str = field(init=False)
    feature_string: str = field(init=False)
    features: frozenset[str] = field(init=False)
    given_cores: int | None = field(init=False)
    kind: TargetKind = field(init=False)

    def __post_init__(self, host_target: Any) -> None:
        text = _text(self.target)
        kind, options = _parse(text)
        if host_target is not None:
            _parse(_text(host_target))
        triple = options.get("mtriple", host().triple)
        cpu = options.get("mcpu", "")
        added, removed = _attributes(options.get("mattr", ""), _arch(triple))
        if cpu in ("", "native") and "mtriple" not in options:
            features, string = host().features, host().feature_string
            cpu = host().cpu
        else:
            cpu = cpu or _baseline(triple)
            features, string = _cpu_features(triple, cpu), ""
        marks = [f"+{name}" for name in sorted(added)] + [f"-{name}" for name in sorted(removed)]
        for name, value in (
            ("target", text),
            ("triple", triple),
            ("mcpu", cpu),
            ("feature_string", ",".join(filter(None, (string, *marks)))),
            ("features", (features | added) - removed),
            ("given_cores", _cores(options)),
            ("kind", TargetKind(kind)),
        ):
            object.__setattr__(self, name, value)

    @property
    def device_type(self) -> int:
        """The kind of device whose memory the code works on, as DLPack numbers it.

        >>> Target("ext_dev").device_type
        12
        """
        return device("cpu" if self.kind.name == "llvm" else self.kind.name).device_type

    @property
    def arch(self) -> str:
        """``x86_64`` or ``aarch64``."""
        return _arch(self.triple)

    @property
    def vector_registers(self) -> int:
        """How many vector registers there are: what a schedule can keep in registers.

        >>> Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4").vector_registers
        32
        """
        return 32 if self.arch == "aarch64" or "avx512f" in self.features else 16

    @property
    def vector_bits(self) -> int:
        """The width of a vector register, in bits."""
        if "avx512f" in self.features:
            return 512
        return 256 if "avx" in self.features else 128

    def lanes(self, dtype: DType) -> int:
        """How many elements of a type a vector register holds, at least 1.

        >>> Target("llvm -mcpu=haswell").lanes(DType.of("float32"))
        8
        """
        return max(1, self.vector_bits // dtype.bits)

    def cache_bytes(self, level: int) -> int:
        """The size of a data cache, level 1 to 3: of this machine, whatever the CPU's name."""
        return cache_sizes()[level]

    @property
    def num_cores(self) -> int:
        """How many cores share the work: ``-num-cores=``, or those that this process may use."""
        return self.given_cores or available_cpus()

    @property
    def has_float16_conversion(self) -> bool:
        """Whether float16 and float32 are converted into each other by an instruction."""
        return self.arch == "aarch64" or "f16c" in self.features

    @property
    def has_fused_multiply_add(self) -> bool:
        """Whether a product and a sum with one rounding are one instruction."""
        return self.arch == "aarch64" or "fma" in self.features

    @property
    def has_mask_registers(self) -> bool:
        """Whether the predicate of a vector is held as bits, one a lane."""
        return {"avx512f", "avx512bw", "avx512vl", "bmi2"} <= self.features

    @property
    def missing_on_host(self) -> str:
        """What this machine lacks to run code for the target; empty if nothing."""
        if _arch(host().triple) != self.arch or _system(host().triple) != _system(self.triple):
            return f"it is {host().triple}, not {self.triple}"
        lacking = self.features - host().features
        if not lacking:
            return ""
        of_tiles = any(name.startswith("amx-") for name in lacking)
        reason = f" ({host().refusal})" if of_tiles and host().refusal else ""
        return f"it lacks {', '.join(sorted(lacking))}{reason}"

    @staticmethod
    def current(allow_none: bool = True) -> Target | None:
        """The target of the innermost ``with target:``, if any.

        Raises
        ------
        CompileError
            When there is none and `allow_none` is false.
        """
        stack = _stack()
        if not stack and not allow_none:
            raise CompileError("target: expected a `with Target(...):` around, found none")
        return stack[-1] if stack else None

    def __enter__(self) -> Target:
        _stack().append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _stack().pop()

    def __str__(self) -> str:
        return self.target

    def __reduce__(self) -> tuple[type[Target], tuple[str]]:
        return Target, (self.target,)  # "llvm" is this machine, wherever that is


def create(target: Any) -> Target:
    """The target of a text or a dict of options; a target stays itself (classic name)."""
    return target if isinstance(target, Target) else Target(target)


def _cores(options: Mapping[str, str]) -> int | None:
    text = options.get("num-cores")
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise CompileError(f"target: expected -num-cores= a number, at least 1, got {text!r}")
    return int(text)


_current = threading.local()


def _stack() -> list[Target]:
    if not hasattr(_current, "stack"):
        _current.stack = []
    stack: list[Target] = _current.stack
    return stack


def _text(target: Any) -> str:
    """A target in classic notation; of a dict too, ``{"kind": "llvm", "mcpu": "haswell"}``."""
    if isinstance(target, Target):
        return target.target
    if isinstance(target, str):
        return target
    if not isinstance(target, Mapping):
        found = type(target).__name__
        raise CompileError(f"target: expected a text such as 'llvm' or a dict, got {found}")
    options = {name: target[name] for name in target if name not in ("kind", "host")}
    parts = (
        f"-{name}={','.join(value) if isinstance(value, (list, tuple)) else value}"
        for name, value in options.items()
    )
    return " ".join((str(target.get("kind", "")), *parts))


def _parse(text: str) -> tuple[str, dict[str, str]]:
    """The kind and the options of a target's text."""
    words = shlex.split(text)
    if not words or (words[0] != "llvm" and not launches(words[0])):
        found = repr(words[0]) if words else "an empty text"
        known = ", ".join(("llvm", *filter(launches, kinds())))
        raise CompileError(f"target: expected a kind among {known}, got {found}")
    options: dict[str, str] = {}
    for word in words[1:]:
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not equals or name not in _OPTIONS:
            listed = ", ".join(f"-{option}=" for option in _OPTIONS)
            raise CompileError(f"target {text!r}: expected options among {listed}, got {word!r}")
        options[name] = value
    return words[0], options


def _attributes(text: str, arch: str) -> tuple[frozenset[str], frozenset[str]]:
    """The features that ``-mattr`` adds, and those that it removes."""
    names = [name for name in text.split(",") if name]
    known = frozenset[str]().union(*CPUS[arch].values())
    if arch == _arch(host().triple):  # LLVM lists them all for the architecture that it runs on
        known |= host().known_features
    for name in names:
        if name[0] not in "+-" or len(name) == 1:
            raise CompileError(f"target: expected -mattr=+feature or -feature, got {name!r}")
        if name[1:] not in known and not name[1:].startswith(_TUNING_PREFIXES):
            close = difflib.get_close_matches(name[1:], known, n=3) or sorted(known)
            raise CompileError(
                f"target: expected features of {arch} such as {', '.join(close)}, got {name[1:]!r}"
            )
    added = frozenset(name[1:] for name in names if name[0] == "+")
    return added, frozenset(name[1:] for name in names if name[0] == "-")


def _arch(triple: str) -> str:
    arch = triple.split("-")[0]
    arch = _ARCH_ALIASES.get(arch, arch)
    if arch not in CPUS:
        raise CompileError(
            f"target: expected an architecture among {', '.join(CPUS)}, got {triple!r}"
        )
    return arch


def _system(triple: str) -> str:
    for name in ("linux", "darwin", "macosx", "windows"):
        if name in triple:
            return "darwin" if name == "macosx" else name
    return "unknown"


def _baseline(triple: str) -> str:
    return "x86-64" if _arch(triple) == "x86_64" else "generic"


def _cpu_features(triple: str, cpu: str) -> frozenset[str]:
    known = CPUS[_arch(triple)]
    if cpu not in known:
        close = difflib.get_close_matches(cpu, known, n=3) or sorted(known)
        raise CompileError(
            f"target: expected a CPU of {_arch(triple)} such as {', '.join(close)}, got {cpu!r}"
        )
    return known[cpu]
