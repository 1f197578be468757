"""CPUs by LLVM's names: what code and schedules may ask of one, whatever this machine is."""

from __future__ import annotations

from typing import final

from minitvm.runtime.host import TYPICAL_CACHES, TYPICAL_WAYS
from minitvm.runtime.record import record

CORES = 8
"""The cores of a named CPU, of which there are models with few and with many."""


@final
@record()
class Processor:
    """Of a CPU: its `features`, by LLVM's names; a core's share of its data caches, in bytes, from
    level 1 on; the ways of the L1 cache. A vector multiply-add takes `latency` cycles, and `ports`
    of them begin in each. The defaults are those of a CPU of which no more is known.
    """

    features: frozenset[str]
    cache_bytes: tuple[int, int, int] = TYPICAL_CACHES
    l1_ways: int = TYPICAL_WAYS
    latency: int = 4
    ports: int = 2


def _cpu(
    features: frozenset[str],
    l1: int,
    l2: int,
    l3: int = TYPICAL_CACHES[2] >> 10,
    *,
    ways: int = 8,
    latency: int = 4,
    ports: int = 2,
) -> Processor:
    """A CPU whose caches are given in KiB."""
    return Processor(features, (l1 << 10, l2 << 10, l3 << 10), ways, latency, ports)


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

_NEHALEM = _cpu(_V2, 32, 256, latency=3, ports=1)
_HASWELL = _cpu(_V3, 32, 256, latency=5)
_SKYLAKE_SERVER = _cpu(_V4, 32, 1024)
_ICELAKE_CLIENT = _cpu(_ICELAKE, 48, 512, ways=12, ports=1)
_SAPPHIRE_RAPIDS = _cpu(_SAPPHIRE, 48, 2048, ways=12)

# By architecture and name.
#
# Features, as far as code generation and schedules ask about them: LLVM 22,
# llvm/lib/Target/X86/X86.td, AArch64/AArch64Processors.td. LLVM itself knows the rest.
#
# Caches and arithmetic: Intel, "64 and IA-32 Architectures Optimization Reference Manual"; AMD,
# "Software Optimization Guide" of each family (17h, 19h, 1Ah); Arm, "Software Optimization Guide"
# and "Technical Reference Manual" of each core; Fujitsu, "A64FX Microarchitecture Manual". Of sizes
# that an implementation may choose, the one that is usual in servers. What cores share is divided
# among them where it is L2; the L3 of a Zen is that of its complex of cores, and the one of others,
# of which there are models of many sizes, is the typical one. Without an instruction that
# multiplies and adds, the figures are those of the addition.
PROCESSORS: dict[str, dict[str, Processor]] = {
    "x86_64": {
        "x86-64": Processor(frozenset({"sse2"})),
        "x86-64-v2": Processor(_V2),
        "x86-64-v3": Processor(_V3),
        "x86-64-v4": Processor(_V4),
        "nehalem": _NEHALEM,
        "westmere": _NEHALEM,
        "sandybridge": _cpu(_V2 | {"avx"}, 32, 256, latency=3, ports=1),
        "ivybridge": _cpu(_V2 | {"avx", "f16c"}, 32, 256, latency=3, ports=1),
        "haswell": _HASWELL,
        "core-avx2": _HASWELL,
        "broadwell": _HASWELL,
        "skylake": _cpu(_V3, 32, 256),
        "alderlake": _cpu(_V3 | {"avxvnni"}, 48, 1280, ways=12),
        "raptorlake": _cpu(_V3 | {"avxvnni"}, 48, 2048, ways=12),
        "skylake-avx512": _SKYLAKE_SERVER,
        "skx": _SKYLAKE_SERVER,
        "cascadelake": _cpu(_VNNI, 32, 1024),
        "cooperlake": _cpu(_VNNI | {"avx512bf16"}, 32, 1024),
        "icelake-client": _ICELAKE_CLIENT,
        "icelake-server": _cpu(_ICELAKE, 48, 1280, ways=12),
        "tigerlake": _cpu(_ICELAKE, 48, 1280, ways=12, ports=1),
        "rocketlake": _ICELAKE_CLIENT,
        "sapphirerapids": _SAPPHIRE_RAPIDS,
        "emeraldrapids": _SAPPHIRE_RAPIDS,
        "graniterapids": _cpu(_SAPPHIRE | {"amx-fp16"}, 48, 2048, ways=12),
        "znver1": _cpu(_V3, 32, 512, 8 << 10, latency=5, ports=1),
        "znver2": _cpu(_V3, 32, 512, 16 << 10, latency=5),
        "znver3": _cpu(_V3, 32, 512, 32 << 10),
        "znver4": _cpu(_ZEN4, 32, 1024, 32 << 10, ports=1),
        "znver5": _cpu(_ZEN4 | {"avxvnni"}, 48, 1024, 32 << 10, ways=12),
    },
    "aarch64": {
        "generic": Processor(_NEON),
        "cortex-a53": _cpu(_NEON, 32, 128, ways=4),
        "cortex-a57": _cpu(_NEON, 32, 512, ways=2),
        "cortex-a72": _cpu(_NEON, 32, 512, ways=2),
        "cortex-a76": _cpu(_V82, 64, 512, ways=4),
        "neoverse-n1": _cpu(_V82, 64, 1024, ways=4),
        "neoverse-v1": _cpu(_V86 | {"sve"}, 64, 1024, ways=4, ports=4),
        "neoverse-n2": _cpu(_N2, 64, 1024, ways=4),
        "neoverse-v2": _cpu(_N2, 64, 1024, ways=4, ports=4),
        "apple-m1": _cpu(_V82, 128, 3 << 10, ports=4),
        "apple-m2": _cpu(_V86, 128, 4 << 10, ports=4),
        "apple-m3": _cpu(_V86, 128, 4 << 10, ports=4),
        "a64fx": _cpu(_NEON | {"sve"}, 64, 680, ways=4, latency=9),
    },
}
