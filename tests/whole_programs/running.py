"""A program in one setting: built, called, and compared with what it means."""

from __future__ import annotations

import logging
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

import minitvm as tvm
from minitvm import te
from minitvm.auto_scheduler.attempts import LOGGER
from tests.whole_programs import bounded
from tests.whole_programs.arrays import LAYOUTS, Placed, numbers, place
from tests.whole_programs.bounded import Array, Bounded
from tests.whole_programs.description import (
    FLOATS,
    Apply,
    Input,
    Program,
    Reduction,
    nodes,
    results_of,
)
from tests.whole_programs.drawing import extent_of
from tests.whole_programs.numpy_meaning import Meaning, mix
from tests.whole_programs.scheduling import schedule_randomly, specialize_randomly
from tests.whole_programs.te_text import MIX, arguments, program_text

TARGETS = (
    "llvm", "llvm", "llvm -num-cores=5", "llvm -mcpu=haswell", "llvm -mcpu=x86-64",
    "llvm -mcpu=nehalem -num-cores=2", "llvm -mcpu=znver3", "llvm -mcpu=znver4 -num-cores=1",
    "llvm -mcpu=skylake-avx512", "llvm -mcpu=sapphirerapids",
    "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1",
)  # fmt: skip
CONFIGS: tuple[dict[str, Any], ...] = (
    *[{}] * 6,
    {"tir.LoopPartition": {"partition_const_loop": True}},
    {"tir.UnrollLoop": {"auto_max_step": 16}},
    {"tir.UnrollLoop": {"explicit_unroll": False}},
    {"tir.InjectDoubleBuffer": {"split_loop": 2}},
    {"tir.disable_vectorize": True},
    {"tir.disable_storage_rewrite": True},
    {"tir.debug_keep_trivial_loop": True},
    {"tir.instrument_bound_checkers": True},
)
SCHEDULES = ["auto"] * 6 + ["plain"] + ["random"] * 5 + ["completed", "versions"] * 2
SLOW_BUILD = 2.0  # seconds of the CPU


class Difference(AssertionError):
    """A result that is not what the program means, or a strategy that failed on the way there."""


@dataclass(frozen=True)
class Setting:
    """How a program is built and called."""

    target: str = "llvm"
    threads: int = 1
    fp: str = "fast"
    debug: str | None = None
    schedule: str = "auto"  # "plain" loops; random ones: "random", "completed", "versions"
    steps: int = 0  # primitives of a schedule that is random
    seed: int = 0  # of the schedule, the layouts and the arrays in place
    layouts: bool = False
    in_place: bool = False
    config: int = 0  # of CONFIGS: the options of the passes

    @property
    def is_random(self) -> bool:
        return self.schedule in ("random", "completed", "versions")


def draw_setting(random: Random) -> Setting:
    return Setting(
        random.choice(TARGETS),
        random.choice([1, 2, 5]),
        random.choice(["fast", "strict"]),
        random.choice([None] * 7 + ["bounds"]),
        schedule := random.choice(SCHEDULES),
        random.choice([1, 2, 3, 4, 6, 9]) if schedule not in ("auto", "plain") else 0,
        random.getrandbits(30),
        random.random() < 0.15,
        random.random() < 0.12,
        random.randrange(len(CONFIGS)),
    )


@dataclass
class Outcome:
    """What became of a program: how many elements were compared, and how many are in doubt."""

    kind: str = "right"  # or "refused", a random schedule; or "built" for another machine
    seconds: float = 0.0  # of the build
    elements: int = 0
    doubtful: int = 0
    calls: int = 0
    shared: int = 0  # calls in place
    notes: list[str] = field(default_factory=list)


def run(program: Program, setting: Setting) -> Outcome:
    """Builds and calls a program.

    Raises
    ------
    Unsuitable
        When the program is none that a user may write.
    Difference
        When a result is wrong, memory is written that is none of an output's, or a strategy of the
        auto-scheduler failed, so that another one was taken.
    Exception
        Whatever the build or the call raises, for a program that is right.
    """
    outcome = Outcome()
    random = Random(setting.seed)
    calls = [Call(program, setting, i, random) for i in range(program.calls)]
    names = made(program)
    schedule = te.create_schedule(unique_operations(names["outputs"]))
    if setting.is_random:
        schedule_randomly(schedule, random, setting.steps, program)
    if setting.schedule == "versions":
        specialize_randomly(schedule, random, setting.steps, program, names)
    begin = time.process_time()
    try:
        if setting.schedule == "completed":
            tvm.auto_schedule(schedule, setting.target)
        with (
            strategies_that_failed() as failed,
            warnings.catch_warnings(),
            tvm.transform.PassContext(config=CONFIGS[setting.config]),
        ):
            # Of stages that a random schedule leaves plain.
            warnings.simplefilter("ignore", tvm.PerformanceWarning)
            function = tvm.build(
                schedule, names["args"], setting.target, fp=setting.fp, debug=setting.debug,
                auto_schedule=setting.schedule != "plain",
            )  # fmt: skip
    except tvm.CompileError as error:
        # Of what is folded away no output reads anything.
        unread = not program.told and "does not read" in str(error)
        if not schedule.is_touched and not unread:
            raise
        outcome.kind = "refused"
        outcome.notes.append(signature(error))
        return outcome
    outcome.seconds = time.process_time() - begin
    if failed:
        raise Difference(failed[0])
    if tvm.Target(setting.target).missing_on_host:
        outcome.kind = "built"
        return outcome
    tvm.set_num_threads(setting.threads)
    for call in calls:
        try:
            call.check(function, outcome)
        except ValueError as error:  # an argument at a loop without iterations at these sizes
            if not schedule.is_touched or "isn't computed otherwise" not in str(error):
                raise
            outcome.notes.append(signature(error))
            continue
        if setting.threads > 1:
            call.check_same_bits(function)
    return outcome


@contextmanager
def strategies_that_failed() -> Iterator[list[str]]:
    """What the auto-scheduler logs meanwhile."""
    failed: list[str] = []
    handler, logger = logging.Handler(logging.INFO), logging.getLogger(LOGGER)
    handler.emit = lambda record: failed.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield failed
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def made(program: Program) -> dict[str, Any]:
    """The names that the text of a program gives values to."""
    tvm.register_func(MIX, mix, override=True)
    names: dict[str, Any] = {}
    exec(compile(program_text(program), "<program>", "exec"), names)
    return names


def unique_operations(outputs: list[Any]) -> list[Any]:
    return list(dict.fromkeys(each.op for each in outputs))


class Call:
    """The arrays of one call, and the results that it should have."""

    def __init__(self, program: Program, setting: Setting, call: int, random: Random) -> None:
        self._program, self._setting, self._random = program, setting, random
        self._sizes = program.sizes_at(call)
        self._scalars = {name: value for name, _, value in program.scalars}
        self._inputs = self._draw_inputs(Random(f"{program.seed} {call}"))
        meaning = Meaning(program, call, self._inputs)
        results = [r for stage in program.stages for r in results_of(stage)]
        self._outputs: dict[str, Bounded] = {
            r.name: meaning.tensors[r.name] for r in results if r.name in program.outputs
        }

    @property
    def _may_factor_out(self) -> bool:
        """Whether a sum of products may have an infinity in the place of NaN: see
        docs/numerics.md."""
        found = [*nodes(self._program.stages)]
        return (
            self._setting.fp == "fast"
            and any(isinstance(each, Reduction) for each in found)
            and any(isinstance(each, Apply) and each.op == "multiply" for each in found)
        )

    def _draw_inputs(self, random: Random) -> dict[str, Array]:
        drawn: dict[str, Array] = {}
        for stage in self._program.stages:
            if isinstance(stage, Input):
                shape = tuple(extent_of(dim, self._sizes) for dim in stage.shape)
                bound = extent_of(stage.bound, self._sizes)
                drawn[stage.name] = numbers(stage, shape, bound, random)
        return drawn

    def check(self, function: Any, outcome: Outcome) -> None:
        layout = self._layout if self._setting.layouts else lambda: "compact"
        self._check(function, outcome, layout, None)
        if self._setting.in_place:
            for source, values in self._inputs.items():
                for target, wanted in self._outputs.items():
                    if values.shape == wanted.exact.shape and _same_dtype(values, wanted):
                        self._check_shared(function, outcome, source, target)

    def check_same_bits(self, function: Any) -> None:
        """One thread computes what several do, bit for bit."""
        found = []
        for threads in (self._setting.threads, 1):
            tvm.set_num_threads(threads)
            placed = self._placed(lambda: "compact", None)
            function(*self._given(placed))
            found.append({name: placed[name].view.tobytes() for name in self._outputs})
        for name in self._outputs:
            if found[0][name] != found[1][name]:
                raise Difference(f"output {name}: other bits on {self._setting.threads} threads")
        tvm.set_num_threads(self._setting.threads)

    def _placed(
        self, layout: Callable[[], str], shared: tuple[str, str] | None
    ) -> dict[str, Placed]:
        """Memory for all arguments that are arrays."""
        placed = {name: self._input(values, layout()) for name, values in self._inputs.items()}
        for name, wanted in self._outputs.items():
            placed[name] = place(wanted.exact.shape, wanted.dtype, layout())
        if shared is not None:
            placed[shared[1]] = placed[shared[0]]
        return placed

    def _given(self, placed: Mapping[str, Placed]) -> list[Any]:
        """The arguments, in order."""
        return [
            placed[name].view if name in placed else self._number(name)
            for name in arguments(self._program)
        ]

    def _layout(self) -> str:
        return self._random.choice(LAYOUTS)

    def _check_shared(self, function: Any, outcome: Outcome, source: str, target: str) -> None:
        """An output in the place of an input: refused, or as it should be."""
        try:
            self._check(function, outcome, lambda: "compact", (source, target))
        except ValueError as error:
            if "shares no memory" not in str(error):
                raise
        else:
            outcome.shared += 1

    def _check(
        self,
        function: Any,
        outcome: Outcome,
        layout: Callable[[], str],
        shared: tuple[str, str] | None,
    ) -> None:
        placed = self._placed(layout, shared)
        before = {name: each.base.tobytes() for name, each in placed.items()}
        function(*self._given(placed))
        outcome.calls += 1
        for name, each in placed.items():
            if name in self._outputs:
                self._compare(name, each.view, outcome)
                continue
            if shared is not None and name == shared[0]:
                continue
            if each.base.tobytes() != before[name]:
                raise Difference(f"input {name}: written to")
        for name in self._outputs:
            each, old = placed[name], before[name]
            whole = Placed(np.frombuffer(bytearray(old), each.base.dtype).reshape(each.base.shape),
                           each.layout, each.shape)  # fmt: skip
            if whole.holding(each.view) != each.base.tobytes():
                raise Difference(f"output {name} ({each.layout}): written around")

    def _input(self, values: Array, layout: str) -> Placed:
        dtype = "bfloat16" if values.dtype == bounded.numpy_dtype("bfloat16") else str(values.dtype)
        return place(values.shape, dtype, layout, values)

    def _number(self, name: str) -> int | float:
        return self._sizes[name] if name in self._sizes else self._scalars[name]

    def _compare(self, name: str, got: Array, outcome: Outcome) -> None:
        wanted = self._outputs[name]
        certain = np.isfinite(wanted.error)
        outcome.elements += int(certain.sum())
        outcome.doubtful += int(certain.size - certain.sum())
        if wanted.dtype in FLOATS:
            found = got.astype(bounded.WIDE)
            with np.errstate(all="ignore"):
                right = abs(found - wanted.exact) <= wanted.error
            right |= (found == wanted.exact) | (np.isnan(found) & np.isnan(wanted.exact))
            if self._may_factor_out:
                right |= np.isinf(found) & np.isnan(wanted.exact)
        else:
            right = got == wanted.exact
        wrong = np.argwhere(certain & ~right)
        if len(wrong):
            at = tuple(int(i) for i in wrong[0])
            off = f", off by {wanted.error[at]:.3g} at most" if wanted.dtype in FLOATS else ""
            raise Difference(
                f"output {name}{list(at)}: expected {wanted.exact[at]}{off}, got {got[at]}: "
                f"{len(wrong)} of {certain.size} elements"
            )


def _same_dtype(values: Array, wanted: Bounded) -> bool:
    return bool(values.dtype == bounded.numpy_dtype(wanted.dtype))


def signature(error: BaseException) -> str:
    """What findings of one cause share: an error without its names and numbers."""
    first = str(error).split("\n")[0]
    plain = re.sub(r"\b[A-Z]\w*\d+\w*(\.\w+)*|\b[ik]\d+(\.\w+)*", "X", first)
    plain = re.sub(r"-?\d+(\.\d+)?(e[-+]\d+)?", "N", plain)
    return f"{type(error).__name__}: {plain[:150]}"
