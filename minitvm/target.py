"""Target: the CPU that code is made for, with the figures that schedules use."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import Any, final

from minitvm.runtime.device import device
from minitvm.runtime.device_api.registry import kinds, launches
from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError, similar
from minitvm.runtime.host import (
    TYPICAL_BYTES_PER_CYCLE,
    TYPICAL_CACHES,
    TYPICAL_WAYS,
    cache_sizes,
    host,
    l1_ways,
)
from minitvm.runtime.record import record
from minitvm.runtime.threads import available_cpus

_PIECE_BYTES = (64, 96)  # from the L3 cache, and from memory
_PAGES = (64, 2048)  # of Zen 3, and of Ice Lake
_CORES = 8  # taken for a named CPU, whose models have few or many


@final
@record()
class Processor:
    """A CPU: its `features`, by LLVM's names; a core's share of its data caches, in bytes, from
    level 1 on; the ways of the L1 cache. A vector multiply-add takes `latency` cycles; in each
    cycle `ports` of them and `loads` loads of vectors may begin. `bytes_per_cycle` come to a core
    from the L2 cache, the L3 cache and memory; from the last two, each piece that lies apart from
    the one before takes as long as `piece_bytes` more. What is requested comes after at most
    `l2_latency` cycles from the L2 cache, many lines at a time (0: it comes in time without a
    request), and after `memory_latency` cycles from memory. A task of a parallel loop pays from
    `task` cycles on. The first and the last level of address translation hold as many `pages`;
    addresses `l2_way_bytes` apart are in the same set of the L2 cache. The defaults stand for an
    unknown CPU.
    """

    features: frozenset[str]
    cache_bytes: tuple[int, int, int] = TYPICAL_CACHES
    l1_ways: int = TYPICAL_WAYS
    latency: int = 4
    ports: int = 2
    loads: int = 2
    bytes_per_cycle: tuple[int, int, int] = TYPICAL_BYTES_PER_CYCLE
    piece_bytes: tuple[int, int] = _PIECE_BYTES
    l2_latency: int = 0
    memory_latency: int = 500
    task: int = 1600
    pages: tuple[int, int] = _PAGES
    l2_way_bytes: int = 1 << 16  # of most


def _cpu(
    features: frozenset[str],
    l1: int,
    l2: int,
    l3: int = TYPICAL_CACHES[2] >> 10,
    *,
    ways: int = 8,
    latency: int = 4,
    ports: int = 2,
    loads: int = 2,
    bytes_per_cycle: tuple[int, int, int] = TYPICAL_BYTES_PER_CYCLE,
    piece_bytes: tuple[int, int] = _PIECE_BYTES,
    l2_latency: int = 0,
    pages: tuple[int, int] = _PAGES,
    l2_way_bytes: int = 1 << 16,
) -> Processor:
    """A CPU whose caches are given in KiB."""
    sizes = (l1 << 10, l2 << 10, l3 << 10)
    return Processor(
        features,
        sizes,
        ways,
        latency,
        ports,
        loads,
        bytes_per_cycle,
        piece_bytes,
        l2_latency,
        pages=pages,
        l2_way_bytes=l2_way_bytes,
    )


# Intel's servers, whose L3 and memory are reached through a mesh.
_server = partial(_cpu, bytes_per_cycle=(32, 8, 4), piece_bytes=(150, 230), l2_latency=150)


_V2 = frozenset({"sse2", "sse4.1", "sse4.2", "popcnt"})
_V3 = _V2 | {"avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_VNNI = _V4 | {"avx512vnni"}
_ICELAKE = _VNNI | {"avx512vbmi", "avx512vbmi2", "avx512bitalg", "avx512vpopcntdq"}
_SAPPHIRE = _ICELAKE | {"avx512bf16", "avx512fp16", "amx-tile", "amx-bf16", "amx-int8", "avxvnni"}
_ZEN4 = _ICELAKE | {"avx512bf16"}
_NEON = frozenset({"neon"})
_V82 = _NEON | {"fullfp16", "dotprod"}
_V86 = _V82 | {"bf16", "i8mm"}
_N2 = _V86 | {"sve", "sve2"}

_WIDE = (64, 16, 6)
_NEHALEM = _cpu(_V2, 32, 256, latency=3, ports=1, loads=1)
_HASWELL = _cpu(_V3, 32, 256, latency=5)
_SKYLAKE_SERVER = _server(_V4, 32, 1024)
_ICELAKE_CLIENT = _cpu(_ICELAKE, 48, 512, ways=12, ports=1)
_golden_cove = partial(_cpu, ways=12, pages=(96, 2048), l2_way_bytes=1 << 17)
_golden_cove_server = partial(_server, ways=12, pages=(96, 2048), l2_way_bytes=1 << 17)
_SAPPHIRE_RAPIDS = _golden_cove_server(_SAPPHIRE, 48, 2048)

# By architecture and name.
#
# Features that code generation and schedules use. Source: LLVM 22, llvm/lib/Target/X86/X86.td,
# AArch64/AArch64Processors.td. LLVM itself knows all others.
#
# Caches and arithmetic: Intel, "64 and IA-32 Architectures Optimization Reference Manual"; AMD,
# "Software Optimization Guide" of each family (17h, 19h, 1Ah); Arm, "Software Optimization Guide"
# and "Technical Reference Manual" of each core; Fujitsu, "A64FX Microarchitecture Manual"; Apple,
# `sysctl hw.perflevel0`, and D. Johnson, "Apple M1 Microarchitecture Research". Where an
# implementation may choose a size, the table has a usual one. An L2 that cores share is divided
# among them. The L3 of a Zen is the cache of its complex of cores; for other CPUs, whose models
# differ in L3, it is a typical size. For CPUs without an instruction that multiplies and adds, the
# figures are the addition's.
#
# Where LLVM's scheduling models disagree, measured tables decide (A. Fog, "Instruction tables";
# uops.info): in each cycle, one multiply-add of 512 bits begins on the client cores of Ice Lake,
# Tiger Lake and Rocket Lake, whose port 5 has no unit for it; one of 256 bits on znver1, which
# splits it into two halves; two on znver3.
PROCESSORS: dict[str, dict[str, Processor]] = {
    "x86_64": {
        "x86-64": Processor(frozenset({"sse2"})),
        "x86-64-v2": Processor(_V2),
        "x86-64-v3": Processor(_V3),
        "x86-64-v4": Processor(_V4),
        "nehalem": _NEHALEM,
        "westmere": _NEHALEM,
        "sandybridge": _cpu(_V2 | {"avx"}, 32, 256, latency=3, ports=1, loads=1),
        "ivybridge": _cpu(_V2 | {"avx", "f16c"}, 32, 256, latency=3, ports=1, loads=1),
        "haswell": _HASWELL,
        "core-avx2": _HASWELL,
        "broadwell": _HASWELL,
        "skylake": _cpu(_V3, 32, 256),
        "alderlake": _golden_cove(_V3 | {"avxvnni"}, 48, 1280),
        "raptorlake": _golden_cove(_V3 | {"avxvnni"}, 48, 2048),
        "skylake-avx512": _SKYLAKE_SERVER,
        "skx": _SKYLAKE_SERVER,
        "cascadelake": _server(_VNNI, 32, 1024),
        "cooperlake": _server(_VNNI | {"avx512bf16"}, 32, 1024),
        "icelake-client": _ICELAKE_CLIENT,
        "icelake-server": _server(_ICELAKE, 48, 1280, ways=12),
        "tigerlake": _cpu(_ICELAKE, 48, 1280, ways=12, ports=1),
        "rocketlake": _ICELAKE_CLIENT,
        "sapphirerapids": _SAPPHIRE_RAPIDS,
        "emeraldrapids": _SAPPHIRE_RAPIDS,
        "graniterapids": _golden_cove_server(_SAPPHIRE | {"amx-fp16"}, 48, 2048),
        "znver1": _cpu(_V3, 32, 512, 8 << 10, latency=5, ports=1, loads=1),
        "znver2": _cpu(_V3, 32, 512, 16 << 10, latency=5),
        "znver3": _cpu(_V3, 32, 512, 32 << 10),
        "znver4": _cpu(_ZEN4, 32, 1024, 32 << 10, ports=1, loads=1, pages=(72, 3072)),
        "znver5": _cpu(
            _ZEN4 | {"avxvnni"},
            48,
            1024,
            32 << 10,
            ways=12,
            bytes_per_cycle=(64, 16, 10),
            pages=(96, 4096),
        ),
    },
    "aarch64": {
        "generic": Processor(_NEON),
        # At most one multiply-add begins in each cycle: LLVM, AArch64SchedA53.td,
        # AArch64SchedA57.td.
        "cortex-a53": _cpu(_NEON, 32, 128, ways=4, ports=1, loads=1),
        "cortex-a57": _cpu(_NEON, 32, 512, ways=2, ports=1),
        "cortex-a72": _cpu(_NEON, 32, 512, ways=2),
        "cortex-a76": _cpu(_V82, 64, 512, ways=4),
        "neoverse-n1": _cpu(_V82, 64, 1024, ways=4),
        "neoverse-v1": _cpu(
            _V86 | {"sve"}, 64, 1024, ways=4, ports=4, loads=3, bytes_per_cycle=_WIDE
        ),
        "neoverse-n2": _cpu(_N2, 64, 1024, ways=4),
        "neoverse-v2": _cpu(_N2, 64, 1024, ways=4, ports=4, loads=3, bytes_per_cycle=_WIDE),
        "apple-m1": _cpu(_V82, 128, 3 << 10, ports=4, loads=3, bytes_per_cycle=_WIDE),
        "apple-m2": _cpu(_V86, 128, 4 << 10, ports=4, loads=3, bytes_per_cycle=_WIDE),
        "apple-m3": _cpu(_V86, 128, 4 << 10, ports=4, loads=3, bytes_per_cycle=_WIDE),
        "a64fx": _cpu(_NEON | {"fullfp16", "sve"}, 64, 680, ways=4, latency=9),
    },
}
# A feature of AMD's CPUs that LLVM would use for shuffles of bytes. Its instructions have no form
# of AVX: each of them, among those of AVX, takes hundreds of cycles on some machines. Rows don't
# list it, so code runs on each machine that has the features of a row.
_UNUSED = {"x86_64": "-sse4a"}
# LLVM's tuning by the features of a CPU. In a tile each product adds to a sum of its own, so none
# waits for the one before: LLVM must not divide `vpdpwssd` into a multiplication and an addition.
_TUNING = {"avx512vnni": "+fast-dpwssd", "avxvnni": "+fast-dpwssd"}
_ARCH_ALIASES = {"amd64": "x86_64", "x86-64": "x86_64", "arm64": "aarch64"}
# Features by which LLVM tunes, such as prefer-256-bit. LLVM lists them nowhere.
_TUNING_PREFIXES = ("prefer-", "fast-", "slow-")
_CACHES = ("l1d-cache-bytes", "l2-cache-bytes", "l3-cache-bytes")
_OPTIONS = (
    "mcpu", "mattr", "mtriple", "num-cores", *_CACHES, "l1d-cache-ways",
    "keys", "device", "model", "opt-level",
)  # fmt: skip


@final
@record()
class TargetKind:
    """The kind of a target: ``llvm``, or a kind of device that launches code of the CPU."""

    name: str

    def __str__(self) -> str:
        return self.name


@final
@dataclass(frozen=True, slots=True)
class Target:
    """The CPU or device for which code is generated, in the classic notation.

    ``llvm`` alone is this machine with all its features, its caches and the cores that the process
    may use. ``-mcpu=NAME`` names a CPU and ``-mtriple=ARCH-VENDOR-OS`` an architecture and system;
    all their figures come from a table, so that the same text makes the same program on
    every machine. ``-mattr=+a,-b`` adds and removes features; ``-num-cores=``,
    ``-l1d-cache-bytes=`` and the like set single figures (docs/targets.md). In the place of
    ``llvm``, the name of a device that launches kernels, such as ``ext_dev``, makes code for its
    arrays (docs/devices.md). A dict of these options or another target is accepted as well. `host`
    is there for classic programs: the CPU that calls is the CPU that computes, so `host` is only
    checked.

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
    processor: Processor = field(init=False)
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
        cores = _number(options, "num-cores")
        if cpu in ("", "native") and "mtriple" not in options:
            sizes = cache_sizes()
            cpu, given = host().cpu, host().feature_string
            found = replace(
                _nearest(_arch(triple), cpu, host().features),
                features=host().features,
                cache_bytes=(sizes[1], sizes[2], sizes[3]),
                l1_ways=l1_ways(),
            )
        else:
            cpu = cpu or _baseline(triple)
            found, given = _known(triple, cpu), ""
            cores = cores or _CORES
        first, second, third = (
            _number(options, name) or size
            for name, size in zip(_CACHES, found.cache_bytes, strict=True)
        )
        processor = replace(
            found,
            features=(found.features | added) - removed,
            cache_bytes=(first, second, third),
            l1_ways=_number(options, "l1d-cache-ways") or found.l1_ways,
        )
        unused = _UNUSED.get(_arch(triple), "")
        tuning = {each for name, each in _TUNING.items() if name in processor.features}
        marks = [f"+{name}" for name in sorted(added)] + [f"-{name}" for name in sorted(removed)]
        for name, value in (
            ("target", text),
            ("triple", triple),
            ("mcpu", cpu),
            ("feature_string", ",".join(filter(None, (given, unused, *tuning, *marks)))),
            ("processor", processor),
            ("given_cores", cores),
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
    def keys(self) -> tuple[str, ...]:
        """The classic keys: ``cpu`` and, on AArch64, ``arm_cpu`` before it.

        >>> Target("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell").keys
        ('cpu',)
        """
        return ("arm_cpu", "cpu") if self.arch == "aarch64" else ("cpu",)

    @property
    def arch(self) -> str:
        """``x86_64`` or ``aarch64``."""
        return _arch(self.triple)

    @property
    def features(self) -> frozenset[str]:
        """The CPU's features, by LLVM's names."""
        return self.processor.features

    @property
    def vector_registers(self) -> int:
        """The number of vector registers, which bounds the register tiles of a schedule.

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
        """The number of elements of a type in a vector register, at least 1.

        >>> Target("llvm -mcpu=haswell").lanes(DType.of("float32"))
        8
        """
        return max(1, self.vector_bits // dtype.bits)

    def cache_bytes(self, level: int) -> int:
        """A core's share of a data cache, level 1 to 3.

        >>> Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4").cache_bytes(2)
        1048576
        """
        return self.processor.cache_bytes[level - 1]

    def level_of(self, size: int) -> int:
        """The cache that holds `size` bytes, 1 to 3; 4 where none does.

        >>> Target("llvm -mcpu=haswell").level_of(100_000)
        2
        """
        first, second, third = self.processor.cache_bytes
        return 1 if size <= first else 2 if size <= second else 3 if size <= third else 4

    def bytes_per_cycle(self, level: int) -> int:
        """The bytes that a core reads in a cycle from a cache, level 2 or 3, or from memory: 4.

        >>> Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver3").bytes_per_cycle(2)
        32
        """
        return self.processor.bytes_per_cycle[level - 2]

    @property
    def l1_ways(self) -> int:
        """The number of lines in one set of the L1 cache."""
        return self.processor.l1_ways

    @property
    def multiply_adds_under_way(self) -> int:
        """The number of independent vector multiply-adds that keep the arithmetic units busy.

        >>> Target("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell").multiply_adds_under_way
        10
        """
        return self.processor.latency * self.processor.ports

    @property
    def task_operations(self) -> int:
        """The operations, in vectors, from which on a part of a parallel loop is worth a task.

        >>> Target("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell").task_operations
        25600
        """
        return self.processor.task * self.processor.ports * self.vector_bits // 32

    @property
    def task_bytes(self) -> int:
        """The bytes from the L2 cache that take as long as the least task.

        >>> target = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell")
        >>> target.task_bytes // target.bytes_per_cycle(2)
        1600
        """
        return int(self.processor.task * self.bytes_per_cycle(2))

    @property
    def num_cores(self) -> int:
        """The number of cores that share the work: ``-num-cores=``. By default it is the cores that
        this process may use where the target is this machine, and 8 where it is another."""
        return self.given_cores or available_cpus()

    @property
    def has_float16_conversion(self) -> bool:
        """Whether an instruction converts between float16 and float32."""
        return self.arch == "aarch64" or "f16c" in self.features

    @property
    def has_fused_multiply_add(self) -> bool:
        """Whether an instruction multiplies and adds with one rounding."""
        return self.arch == "aarch64" or "fma" in self.features

    @property
    def has_rounding(self) -> bool:
        """Whether an instruction rounds a float to a whole number."""
        return self.arch == "aarch64" or "sse4.1" in self.features

    @property
    def keeps_nan(self) -> bool:
        """Whether an instruction computes a minimum or maximum that is NaN if an operand is NaN."""
        return self.arch == "aarch64"

    @property
    def has_mask_registers(self) -> bool:
        """Whether the predicate of a vector is held as bits, one a lane."""
        return {"avx512f", "avx512bw", "avx512vl", "bmi2"} <= self.features

    @property
    def missing_on_host(self) -> str:
        """The reason why this machine can't run code for the target; empty if it can."""
        return missing_on_host(self.triple, self.features)

    @staticmethod
    def list_kinds() -> list[str]:
        """The kinds that a target may have: ``llvm``, and those of devices that launch code of the
        CPU."""
        return ["llvm", *filter(launches, kinds())]

    @staticmethod
    def current(allow_none: bool = True) -> Target | None:
        """The target of the innermost ``with target:``, if any.

        Raises
        ------
        CompileError
            When there is none and `allow_none` is false.
        """
        stack = _around.targets
        if not stack and not allow_none:
            raise CompileError("target: expected a `with Target(...):` around, found none")
        return stack[-1] if stack else None

    def __enter__(self) -> Target:
        _around.targets.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _around.targets.pop()

    def __str__(self) -> str:
        return self.target

    def __reduce__(self) -> tuple[type[Target], tuple[str]]:
        return Target, (self.target,)  # "llvm" stands for the machine that unpickles it


def missing_on_host(triple: str, features: frozenset[str]) -> str:
    """The reason why this machine can't run code for a CPU of some features; empty if it can."""
    if _arch(host().triple) != _arch(triple) or _system(host().triple) != _system(triple):
        return f"it is {host().triple}, not {triple}"
    lacking = features - host().features
    if not lacking:
        return ""
    of_tiles = any(name.startswith("amx-") for name in lacking)
    reason = f" ({host().refusal})" if of_tiles and host().refusal else ""
    return f"it lacks {', '.join(sorted(lacking))}{reason}"


def create(target: Any) -> Target:
    """The target of a text or a dict of options; a target stays itself (classic name)."""
    return target if isinstance(target, Target) else Target(target)


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise CompileError(f"target: expected a number of at least 1 for -{name}=, got {text!r}")
    return int(text)


class _Around(threading.local):
    """The targets of the ``with`` statements around, of each thread."""

    def __init__(self) -> None:
        self.targets = list[Target]()


_around = _Around()


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
    return " ".join((str(target.get("kind", "")), *map(shlex.quote, parts)))


def _parse(text: str) -> tuple[str, dict[str, str]]:
    """The kind and the options of a target's text."""
    words = shlex.split(text)
    if not words or (words[0] != "llvm" and not launches(words[0])):
        found = repr(words[0]) if words else "an empty text"
        known = ", ".join(Target.list_kinds())
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
    known = frozenset[str]().union(*(each.features for each in PROCESSORS[arch].values()))
    if arch == _arch(host().triple):  # LLVM lists all features of the host's architecture
        known |= host().known_features
    for name in names:
        if name[0] not in "+-" or len(name) == 1:
            raise CompileError(f"target: expected -mattr=+feature or -feature, got {name!r}")
        if name[1:] not in known and not name[1:].startswith(_TUNING_PREFIXES):
            close = similar(name[1:], known) or sorted(known)
            raise CompileError(
                f"target: expected features of {arch} such as {', '.join(close)}, got {name[1:]!r}"
            )
    added = frozenset(name[1:] for name in names if name[0] == "+")
    return added, frozenset(name[1:] for name in names if name[0] == "-")


def _arch(triple: str) -> str:
    arch = triple.split("-")[0]
    arch = _ARCH_ALIASES.get(arch, arch)
    if arch not in PROCESSORS:
        raise CompileError(
            f"target: expected an architecture among {', '.join(PROCESSORS)}, got {triple!r}"
        )
    return arch


def _system(triple: str) -> str:
    for name in ("linux", "darwin", "macosx", "windows"):
        if name in triple:
            return "darwin" if name == "macosx" else name
    return "unknown"


def _baseline(triple: str) -> str:
    return "x86-64" if _arch(triple) == "x86_64" else "generic"


def _nearest(arch: str, cpu: str, features: frozenset[str]) -> Processor:
    """The row of a machine that has `features` and that LLVM names `cpu`. LLVM names a CPU by its
    family and model, which a hypervisor may invent. A machine with features that the named row
    lacks must be another CPU. Its row is the one that differs least in the features that rows list.

    >>> sapphire_rapids = PROCESSORS["x86_64"]["sapphirerapids"]
    >>> _nearest("x86_64", "rocketlake", sapphire_rapids.features) == sapphire_rapids
    True
    """
    rows = PROCESSORS[arch]
    listed = frozenset[str]().union(*(row.features for row in rows.values()))
    present = features & listed
    named = rows.get(cpu)
    if named is not None and present <= named.features:
        return named
    return min(rows.values(), key=lambda row: len(row.features ^ present))


def _known(triple: str, cpu: str) -> Processor:
    known = PROCESSORS[_arch(triple)]
    if cpu not in known:
        close = similar(cpu, known) or sorted(known)
        raise CompileError(
            f"target: expected a CPU of {_arch(triple)} such as {', '.join(close)}, got {cpu!r}"
        )
    return known[cpu]
