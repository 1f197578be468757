"""The time that ``build`` takes for the quickstart's matrix product, and which part takes it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import minitvm
from benchmarks import fresh, small_matmul
from benchmarks.measure import OURS, Row, Settings, calls, in_turn, interleaved
from minitvm.codegen import machine_code
from minitvm.codegen.options import CodegenOptions
from minitvm.driver.program import module_text
from minitvm.runtime import object_code
from minitvm.target import Target

_TARGET = 0.060


def rows(settings: Settings) -> Iterator[Row]:
    """A process's first build, later ones, and their parts."""
    builders = small_matmul.builders()
    yield Row(
        "build matmul 56, cold",
        "no schedule given, the first build in a process, imports not counted",
        in_turn({name: partial(cold, name) for name in builders}, settings.processes),
        small_matmul.missing(),
        _TARGET,
    )
    yield Row(
        "build matmul 56, warm",
        "no schedule given, a later build in the process",
        interleaved({name: calls(build) for name, build in builders.items()}, settings),
        small_matmul.missing(),
        _TARGET,
    )
    yield from _parts(settings)


def cold(name: str) -> float:
    """Seconds of the first build of one compiler in a fresh process."""
    out, _ = fresh.run("-c", f"from benchmarks import build; build.print_first({name!r})")
    return float(out)


def print_first(name: str) -> None:
    """Builds once and prints the seconds; runs in the fresh process."""
    print(calls(small_matmul.builder(name))(1))


def _parts(settings: Settings) -> Iterator[Row]:
    """The steps of a warm build, each measured alone on what the step before it made."""
    s, args = small_matmul.schedule()
    options = CodegenOptions(Target("llvm"))
    machine = machine_code.machine_for(options.target)
    lowered = minitvm.lower(s, args, name="fmm")
    text = module_text(lowered, options)
    module = machine_code.optimised(text, options.target)
    object_file = machine_code.emit_object(text, options.target)
    steps = {
        "lower": calls(lambda: minitvm.lower(s, args, name="fmm")),
        "emit text": calls(module_text, lowered, options),
        "LLVM parse, verify": calls(object_code.parse, str(text)),
        "LLVM parse, verify, optimise": calls(machine_code.optimised, text, options.target),
        "LLVM emit object": calls(machine.emit_object, module),
        "load": calls(machine_code.load, object_file),
    }
    what = f"each part on its own; {str(text).count(chr(10))} lines of LLVM IR"
    for name, found in interleaved(steps, settings).items():
        yield Row(f"of the warm build: {name}", what, {OURS: found})
