"""A target: its text says all, so that it means the same on every machine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import te
from minitvm.codegen.options import CodegenOptions
from minitvm.driver.program import module_text
from minitvm.runtime import host as host_module
from minitvm.runtime.errors import CompileError
from minitvm.runtime.threads import available_cpus
from minitvm.target import _OPTIONS, PROCESSORS, create
from tests.auto_scheduler import contractions

X86 = "llvm -mtriple=x86_64-unknown-linux-gnu"
ARM = "llvm -mtriple=aarch64-unknown-linux-gnu"
TARGETS = [
    f"{X86} -mcpu=haswell", f"{ARM} -mcpu=neoverse-n1", f"{X86} -mcpu=sapphirerapids",
    "llvm -mtriple=arm64-apple-darwin -mcpu=apple-m1", f"{X86} -mcpu=x86-64-v3 -num-cores=3",
    f"{ARM} -mattr=+i8mm,+dotprod", f"{X86} -mcpu=znver4 -l2-cache-bytes=65536", X86,
    f"{ARM} -mcpu=neoverse-v1 -l1d-cache-bytes=16384 -l1d-cache-ways=2",
]  # fmt: skip
FOUND_ONCE = (
    host_module.host, host_module.cache_sizes, host_module.l1_ways, available_cpus,
)  # fmt: skip
# Other machines: LLVM's triple, the CPU's name, what it has, L1, L2, L3, ways, CPUs.
MACHINES = {
    "large": ("x86_64-unknown-linux-gnu", "graniterapids", "graniterapids",
              ("48K", "2048K", "114688K"), 12, 64),
    "small": ("aarch64-unknown-linux-gnu", "cortex-a53", "cortex-a53",
              ("16K", "128K", "512K"), 2, 1),
}  # fmt: skip


def product(rows: Any, columns: Any, depth: int, layout: str = "NN", of: str = "float32") -> Any:
    to = {"int8": "int32", "bfloat16": "float32"}.get(of, of)
    return contractions.product(rows, columns, depth, (of, of, to), layout)


def convolution(channels: int, filters: int, size: int, stride: int = 1) -> Any:
    X = te.placeholder((1, channels, size, size), name="X")
    W = te.placeholder((filters, channels, 3, 3), name="W")
    c, p, q = (
        te.reduce_axis((0, n), name=name) for n, name in ((channels, "c"), (3, "p"), (3, "q"))
    )
    out = (size - 3) // stride + 1
    return X, W, te.compute(
        (1, filters, out, out),
        lambda n, f, y, x: te.sum(
            X[n, c, y * stride + p, x * stride + q] * W[f, c, p, q], axis=[c, p, q]
        ),
        name="Y",
    )  # fmt: skip


def softmax(rows: Any, columns: int) -> Any:
    X = te.placeholder((rows, columns), name="X")
    k, l = (te.reduce_axis((0, columns), name=name) for name in "kl")  # noqa: E741
    most = te.compute((rows,), lambda i: te.max(X[i, k], axis=k), name="most")
    power = te.compute((rows, columns), lambda i, j: te.exp(X[i, j] - most[i]), name="power")
    total = te.compute((rows,), lambda i: te.sum(power[i, l], axis=l), name="total")
    return X, te.compute((rows, columns), lambda i, j: power[i, j] / total[i], name="Y")


def elementwise(*shape: Any) -> Any:
    X = te.placeholder(shape, name="X")
    return X, te.compute(shape, lambda *i: te.tanh(X(*i)) * 2.0 + 1.0, name="Y")


PROGRAMS: dict[str, Callable[[], Any]] = {
    "small product": lambda: product(56, 56, 56),
    "large product": lambda: product(1024, 1024, 1024),
    "of rows a page apart": lambda: product(96, 512, 1024, of="float64"),
    "transposed": lambda: product(300, 700, 500, "NT"),
    "both transposed": lambda: product(512, 1000, 256, "TT"),
    "few rows": lambda: product(4, 2048, 4096),
    "any size": lambda: product(te.var("n"), 768, 512),
    "bfloat16": lambda: product(128, 512, 256, of="bfloat16"),
    "int8": lambda: product(128, 512, 256, of="int8"),
    "convolution": lambda: convolution(64, 64, 58),
    "convolution of few channels": lambda: convolution(3, 32, 114, 2),
    "convolution in one image": lambda: convolution(256, 20, 16),
    "softmax": lambda: softmax(64, 4096),
    "elementwise": lambda: elementwise(te.var("n"), 1000),
}


def made(name: str, target: str) -> tuple[str, str, str]:
    """The schedule, the loops and the LLVM IR of a program."""
    args = PROGRAMS[name]()
    schedule = tvm.auto_schedule(args[-1], target)
    lowered = tvm.lower(schedule, args, name="f")
    text = module_text(lowered, CodegenOptions(tvm.Target(target)))
    return schedule.trace(), str(lowered), str(text)


@pytest.fixture
def elsewhere(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[[str], None]]:
    """Lets this process believe that it runs on another machine, until the test ends."""

    def forget() -> None:
        for each in FOUND_ONCE:
            each.cache_clear()

    def move(machine: str) -> None:
        triple, cpu, features, sizes, ways, cpus = MACHINES[machine]
        arch = "x86_64" if triple.startswith("x86_64") else "aarch64"
        found = PROCESSORS[arch][features].features
        for level, size in enumerate(sizes, 1):
            folder = tmp_path / f"index{level}"
            folder.mkdir(exist_ok=True)
            told = {"level": level, "type": "Data", "size": size, "ways_of_associativity": ways}
            for file, text in told.items():
                (folder / file).write_text(f"{text}\n")

        def all_features() -> Any:
            known = llvm.FeatureMap()
            known.update(dict.fromkeys(found, True))
            return known

        monkeypatch.setattr(llvm, "get_process_triple", lambda: triple)
        monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: cpu)
        monkeypatch.setattr(llvm, "get_host_cpu_features", all_features)
        monkeypatch.setattr(host_module, "_SYSTEM", tmp_path)
        monkeypatch.setattr(host_module, "_ask_for_tiles", lambda: "")
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)), raising=False)
        forget()

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    yield move
    monkeypatch.undo()
    forget()


def test_this_machine_is_what_the_system_tells(elsewhere: Callable[[str], None]) -> None:
    """The other tests see another machine, where a target is this one."""
    own = tvm.Target("llvm")
    assert own.num_cores == available_cpus()
    assert [own.cache_bytes(each) for each in (1, 2, 3)] == [*host_module.cache_sizes().values()]
    assert own.l1_ways == host_module.l1_ways()
    elsewhere("large")
    found = tvm.Target("llvm")
    assert found.mcpu == "graniterapids"
    assert "amx-fp16" in found.features
    assert (found.cache_bytes(1), found.cache_bytes(2)) == (48 << 10, 2 << 20)
    assert found.l1_ways == 12
    assert found.num_cores == available_cpus()
    elsewhere("small")
    assert tvm.Target("llvm").arch == "aarch64"
    assert tvm.Target("llvm").cache_bytes(3) == 512 << 10


def check_program(name: str, target: str, elsewhere: Callable[[str], None]) -> None:
    here, figures = made(name, target), repr(tvm.Target(target))
    for machine in MACHINES:
        elsewhere(machine)
        assert repr(tvm.Target(target)) == figures
        assert tvm.Target(target).num_cores == tvm.Target(target).given_cores
        assert made(name, target) == here, machine


@pytest.mark.parametrize(("name", "number"), [(name, i) for i, name in enumerate(PROGRAMS)])
def test_one_text_makes_one_program(
    name: str, number: int, elsewhere: Callable[[str], None]
) -> None:
    """The schedule, the loops and the LLVM IR of a target that is named: here, and elsewhere."""
    check_program(name, TARGETS[number % len(TARGETS)], elsewhere)


@pytest.mark.wide
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_all_texts_make_one_program(
    name: str, target: str, elsewhere: Callable[[str], None]
) -> None:
    check_program(name, target, elsewhere)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_machine_decides_where_it_is_the_target(
    machine: str, elsewhere: Callable[[str], None]
) -> None:
    """Or else the tests above could not fail."""
    here = made("large product", "llvm")
    elsewhere(machine)
    assert made("large product", "llvm")[0] != here[0]


ALL = [(arch, name) for arch, known in PROCESSORS.items() for name in known]


@pytest.mark.parametrize(("arch", "name"), ALL)
def test_figures_of_known_cpus(arch: str, name: str) -> None:
    """They fit together, and LLVM knows the name."""
    target = tvm.Target(f"llvm -mtriple={arch}-unknown-linux-gnu -mcpu={name}")
    first, second, third = (target.cache_bytes(level) for level in (1, 2, 3))
    assert 16 << 10 <= first < second < third
    sets = first // target.l1_ways // 64
    assert sets & (sets - 1) == 0
    assert first == sets * target.l1_ways * 64
    assert 3 <= target.multiply_adds_under_way <= 18
    assert target.num_cores == 8


OPTIONS = {
    "mattr": st.sampled_from(["+avx512vnni", "-avx2,+fma", "+prefer-256-bit"]),
    "mcpu": st.sampled_from(sorted(PROCESSORS["x86_64"])),
    "num-cores": st.integers(1, 64),
    "l1d-cache-bytes": st.integers(1, 1 << 20),
    "l1d-cache-ways": st.integers(1, 1 << 10),
    "l2-cache-bytes": st.integers(1, 1 << 24),
    "l3-cache-bytes": st.integers(1, 1 << 28),
    "model": st.text("ab '\"\\$-=", max_size=5),
    "keys": st.just("cpu"),
}


CHOSEN = st.fixed_dictionaries({"mtriple": st.just("x86_64-unknown-linux-gnu")}, optional=OPTIONS)


@given(CHOSEN, st.sampled_from(["llvm", "ext_dev"]))
def test_the_text_of_a_target_is_the_target(options: dict[str, Any], kind: str) -> None:
    target = create({"kind": kind, **options})
    again = tvm.Target(str(target))
    assert again == target
    assert hash(again) == hash(target)
    assert repr(again) == repr(target)
    assert target.num_cores == options.get("num-cores", 8)
    for level, name in enumerate(("l1d-cache-bytes", "l2-cache-bytes", "l3-cache-bytes"), 1):
        assert target.cache_bytes(level) == options.get(name, again.cache_bytes(level))


@settings(max_examples=15, deadline=None)
@given(CHOSEN)
def test_any_caches_make_a_schedule(options: dict[str, Any]) -> None:
    target = create({"kind": "llvm", **options})
    args = product(96, 512, 1024)
    assert tvm.lower(tvm.auto_schedule(args[-1], target), args, simple_mode=True)


@pytest.mark.parametrize(
    "option", ["num-cores", "l1d-cache-bytes", "l1d-cache-ways", "l2-cache-bytes", "l3-cache-bytes"]
)
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "32K", "", "x"])
def test_wrong_numbers(option: str, value: str) -> None:
    with pytest.raises(
        CompileError, match=f"^target: expected a number of at least 1 for -{option}=, g"
    ):
        tvm.Target(f"llvm -{option}={value}")


def test_caches_that_are_said_decide() -> None:
    """With small L2 and L3 caches, a large product is computed in more blocks."""
    small, large = (
        f"{X86} -mcpu=znver4 -l2-cache-bytes={size} -l3-cache-bytes={size}"
        for size in (1 << 16, 1 << 24)
    )
    assert made("large product", small)[0] != made("large product", large)[0]


def test_the_page_lists_the_options() -> None:
    page = Path(__file__).parents[2] / "docs" / "targets.md"
    listed = re.findall(r"`-([\w-]+)(?:=[^`]*)?`", page.read_text(encoding="utf-8"))
    assert set(listed) == set(_OPTIONS)


@pytest.mark.parametrize("target", TARGETS[:4])
def test_what_is_explained_is_the_targets_own(target: str) -> None:
    """The reasons speak of the target; the bound is this machine's, where that can run the code."""
    args = product(256, 512, 512)
    f = tvm.build(args[-1], args, target, name="f")
    made_for = tvm.Target(target)
    found = tvm.explain(f, measure=False)
    assert found.target == target
    assert found.vector_registers == made_for.vector_registers
    packing = [each for each in found.stages[-1].choices if each.about == "packing"]
    assert len(packing) == 1
    if made_for.missing_on_host:
        assert tvm.explain(f).unmeasured == "it is code for another machine"
        assert tvm.explain(f).roofline is None
