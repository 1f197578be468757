"""Many programs in child processes, so that a crash or a hang has a name: its seed."""

from __future__ import annotations

import multiprocessing
import re
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from random import Random
from typing import Any, TypeAlias

from minitvm import te
from tests.whole_programs.description import Program
from tests.whole_programs.drawing import draw_program
from tests.whole_programs.numpy_meaning import Unsuitable
from tests.whole_programs.running import (
    CONFIGS,
    SLOW_BUILD,
    Outcome,
    Setting,
    draw_setting,
    made,
    run,
    signature,
    unique_operations,
)
from tests.whole_programs.scheduling import schedule_randomly
from tests.whole_programs.shrinking import Case, shrink
from tests.whole_programs.te_text import arguments, program_text

CHUNK = 40  # programs of a child
EVERY = 500  # programs from one word of progress to the next
PATIENCE = 120.0  # seconds for one program
_FORK = multiprocessing.get_context("fork")
Message: TypeAlias = "tuple[str, int, Any]"


def case_of(seed: int) -> Case:
    """The program and the setting of a seed."""
    return draw_program(seed), draw_setting(Random(f"setting {seed}"))


@dataclass
class Report:
    """What became of the programs of a sweep."""

    programs: int = 0
    refused: int = 0
    unsuitable: int = 0
    built: int = 0
    elements: int = 0
    doubtful: int = 0
    calls: int = 0
    shared: int = 0
    settings: Counter[str] = field(default_factory=Counter)
    stages: Counter[int] = field(default_factory=Counter)
    findings: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    slow: list[tuple[float, int]] = field(default_factory=list)
    seconds: float = 0.0
    news: list[str] = field(default_factory=list)

    def find(self, seed: int, name: str) -> None:
        """A finding."""
        self.programs += 1
        self.findings[name].append(seed)
        self.news.append(f"seed {seed}: {name}")

    def add(self, seed: int, outcome: Outcome) -> None:
        program, setting = case_of(seed)
        self.programs += 1
        self.refused += outcome.kind == "refused"
        self.unsuitable += outcome.kind == "unsuitable"
        self.built += outcome.kind == "built"
        self.elements += outcome.elements
        self.doubtful += outcome.doubtful
        self.calls += outcome.calls
        self.shared += outcome.shared
        if outcome.seconds > SLOW_BUILD:
            self.slow.append((outcome.seconds, seed))
            self.news.append(f"seed {seed}: {outcome.seconds:.1f} s to build")
        if outcome.kind == "right":
            self.settings.update(_labels(setting))
            self.stages[sum(type(each).__name__ != "Input" for each in program.stages)] += 1

    def text(self) -> str:
        right = sum(self.stages.values())
        lines = [
            f"{self.programs} programs in {self.seconds:.0f} s: {right} right, "
            f"{self.refused} refused (random schedules), {self.built} built for other machines, "
            f"{self.unsuitable} unsuitable, "
            f"{sum(map(len, self.findings.values()))} findings",
            f"{self.calls} calls, {self.shared} in place; {self.elements} elements compared, "
            f"{self.doubtful} in doubt",
            "settings: " + ", ".join(f"{k} {n}" for k, n in sorted(self.settings.items())),
            "stages: " + ", ".join(f"{k}: {n}" for k, n in sorted(self.stages.items())),
        ]
        lines += [
            f"slow: seed {seed}: {s:.1f} s to build" for s, seed in sorted(self.slow)[::-1][:10]
        ]
        for name, seeds in sorted(self.findings.items(), key=lambda each: -len(each[1])):
            lines.append(f"finding: {len(seeds)} x {name}: seeds {seeds[:10]}")
        return "\n".join(lines)


def _labels(setting: Setting) -> list[str]:
    return [
        setting.target.replace("llvm -mcpu=", ""),
        f"{setting.threads} threads",
        setting.fp,
        f"{setting.schedule} schedule",
        f"debug={setting.debug}",
        "other layouts" if setting.layouts else "compact",
    ]


# -- Children -------------------------------------------------------------------------------------


def outcome_of(case: Case) -> Outcome:
    """What becomes of a case; a failure is an exception."""
    try:
        return run(*case)
    except Unsuitable as reason:
        return Outcome("unsuitable", notes=[str(reason)])


def _work(seeds: range, to: Connection) -> None:
    for seed in seeds:
        to.send(("begin", seed, None))
        try:
            outcome = outcome_of(case_of(seed))
        except Exception as error:
            to.send(("failed", seed, (_name(error), traceback.format_exc())))
        else:
            to.send(("done", seed, outcome))
    to.close()


def _name(error: BaseException) -> str:
    """A signature, and where a bug of minitvm was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = re.sub(r"^.*/", "", last.filename)
    return signature(error) + ("" if place == "running.py" else f" ({place})")


@dataclass
class _Child:
    """A process that runs some programs, and how far it is."""

    seeds: range
    at: int = 0
    since: float = 0.0

    def __post_init__(self) -> None:
        self.messages, other = _FORK.Pipe(duplex=False)
        self.process = _FORK.Process(target=_work, args=(self.seeds, other), daemon=True)
        self.at, self.since = self.seeds[0], time.monotonic()
        self.process.start()
        other.close()

    def end(self) -> int | None:
        """Stops it; how it ended."""
        if self.process.is_alive() and time.monotonic() - self.since > PATIENCE:
            self.process.kill()
        self.process.join()
        self.messages.close()
        return self.process.exitcode


def sweep(count: int, seed: int, jobs: int, say: Callable[[str], None] = lambda _: None) -> Report:
    """Runs the programs of some seeds, `jobs` at a time, and says what it finds when it does."""
    report, begin = Report(), time.monotonic()
    end = seed + count
    waiting = [range(at, min(at + CHUNK, end)) for at in range(seed, end, CHUNK)][::-1]
    children: list[_Child] = []
    told = 0
    while waiting or children:
        while waiting and len(children) < jobs:
            children.append(_Child(waiting.pop()))
        wait([each.messages for each in children], timeout=5)
        for child in list(children):
            rest = _listen(child, report)
            if rest is not None:
                children.remove(child)
                if rest:
                    waiting.append(rest)
        report.seconds = time.monotonic() - begin
        if report.programs // EVERY > told:
            told = report.programs // EVERY
            report.news.append("so far")
        for line in report.news:
            say(f"{report.seconds:.0f} s, {report.programs} of {count}: {line}")
        report.news.clear()
    return report


def _listen(child: _Child, report: Report) -> range | None:
    """Takes what a child says; the seeds that it leaves, when it has ended."""
    try:
        while child.messages.poll():
            kind, seed, said = child.messages.recv()
            child.at, child.since = seed, time.monotonic()
            if kind == "done":
                report.add(seed, said)
            elif kind == "failed":
                report.find(seed, said[0])
            if kind != "begin" and seed == child.seeds[-1]:
                child.end()
                return range(0)
    except EOFError:
        return _lost(child, report, "crash")
    if time.monotonic() - child.since > PATIENCE:
        return _lost(child, report, "hang")
    return None


def _lost(child: _Child, report: Report, how: str) -> range:
    code = child.end()
    report.find(child.at, f"{how}: exit status {code}")
    return range(child.at + 1, child.seeds[-1] + 1)


# -- One finding ----------------------------------------------------------------------------------


def failure(case: Case, patience: float = PATIENCE) -> tuple[str, str]:
    """How a case fails in a process of its own: a name, or nothing, and its traceback."""
    messages, other = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_try, args=(case, other), daemon=True)
    process.start()
    other.close()
    try:
        answer = messages.recv() if messages.poll(patience) else ("hang", "")
    except EOFError:
        process.join()
        answer = (f"crash: exit status {process.exitcode}", "")
    process.kill()
    process.join()
    return answer


def _try(case: Case, to: Connection) -> None:
    try:
        outcome_of(case)
    except Exception as error:
        to.send((_name(error), traceback.format_exc()))
    else:
        to.send(("", ""))


def shrunk(seed: int, seconds: float) -> tuple[Case, str]:
    """The smallest program found that fails as that of a seed does, and its traceback."""
    name, trace = failure(case_of(seed))
    if not name:
        return case_of(seed), ""
    traces = [trace]

    def fails(case: Case) -> bool:
        found, other = failure(case, patience=20)
        if found == name:
            traces.append(other)
        return found == name

    return shrink(case_of(seed), fails, seconds), traces[-1]


def case_text(program: Program, setting: Setting) -> str:
    """A case as Python: the program, its schedule and how it is built and called."""
    lines = [program_text(program)]
    lines.append(schedule_text(program, setting))
    built = f'f = tvm.build(s, args, "{setting.target}", fp="{setting.fp}"'
    built += f', debug="{setting.debug}"' if setting.debug else ""
    built += ", auto_schedule=False" if setting.schedule == "plain" else ""
    if setting.config:
        lines.append(f"# with tvm.transform.PassContext(config={CONFIGS[setting.config]})")
    if setting.schedule == "completed":
        lines.append(f'tvm.auto_schedule(s, "{setting.target}")')
    lines += [built + ")", f"tvm.set_num_threads({setting.threads})"]
    sizes = ", ".join(f"{name} = {list(values)}" for name, values in program.sizes)
    lines.append(f"# called with {', '.join(arguments(program))}; {sizes or 'no sizes'}; "
                 f"layouts {setting.layouts}, in place {setting.in_place}")  # fmt: skip
    return "\n".join(lines)


def schedule_text(program: Program, setting: Setting) -> str:
    """The schedule as Python, as far as it can be made."""
    if not setting.is_random:
        return "s = te.create_schedule(list(dict.fromkeys(each.op for each in outputs)))"
    try:
        s = te.create_schedule(unique_operations(made(program)["outputs"]))
        schedule_randomly(s, Random(setting.seed), setting.steps, program)
    except Exception as error:
        return f"# the schedule fails: {error!r}"
    return str(s.trace())
