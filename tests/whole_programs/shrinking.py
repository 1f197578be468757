"""Smaller programs that fail in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from tests.whole_programs.description import (
    Apply,
    Axis,
    Compute,
    Input,
    Load,
    Number,
    Program,
    Size,
    Stage,
    cast,
    needed,
    nodes,
    number,
    results_of,
    rewritten,
)
from tests.whole_programs.running import Setting

Case = tuple[Program, Setting]


def shrink(case: Case, fails: Callable[[Case], bool], seconds: float) -> Case:
    """The smallest case found that fails too, taking one thing away after the other."""
    end = time.monotonic() + seconds
    tried: set[Case] = set()
    smaller = True
    while smaller:
        smaller = False
        for candidate in _candidates(*case):
            if time.monotonic() > end:
                return case
            if candidate in tried:
                continue
            tried.add(candidate)
            if fails(candidate):
                case, smaller = candidate, True
                break
    return case


def _candidates(program: Program, setting: Setting) -> Iterator[Case]:
    for plain in _plainer(setting):
        yield program, plain
    for smaller in _smaller(program):
        if smaller != program:
            yield smaller, setting


def _plainer(setting: Setting) -> Iterator[Setting]:
    plain = Setting(schedule=setting.schedule, steps=setting.steps, seed=setting.seed)
    for name in ("layouts", "in_place", "config", "debug", "threads", "target", "fp"):
        if getattr(setting, name) != getattr(plain, name):
            yield replace(setting, **{name: getattr(plain, name)})
    if setting.is_random:
        yield replace(setting, schedule="auto", steps=0)
        yield replace(setting, schedule="plain", steps=0)
        for steps in range(1, setting.steps):
            yield replace(setting, steps=steps)


def _smaller(program: Program) -> Iterator[Program]:
    if len(program.outputs) > 1:
        for name in program.outputs:
            yield needed(replace(program, outputs=(name,)))
        for name in program.outputs:
            yield needed(replace(program, outputs=tuple(n for n in program.outputs if n != name)))
    if program.calls > 1:
        for i in range(program.calls):
            yield replace(program, sizes=tuple((n, (each[i],)) for n, each in program.sizes))
    for stage in program.stages:
        if not isinstance(stage, Input):
            yield from _cut(program, stage)
    if program.calls == 1:
        for name, (value,) in program.sizes:
            yield _replaced(program, partial(_instead, Size(name), number(value)))
    for stage in program.stages:
        if isinstance(stage, Compute):
            for simpler in _simpler(stage):
                yield _with(program, stage, simpler)
    yield from _smaller_numbers(program)
    yield from _smaller_values(program)
    for stage in program.stages:
        if isinstance(stage, Input) and stage.numbers in ("real", "any", "special"):
            yield _with(program, stage, replace(stage, numbers="whole"))


def _cut(program: Program, stage: Stage) -> Iterator[Program]:
    """Results of a stage as inputs: what computes them is taken away."""
    made = results_of(stage)
    if any(each.name in program.outputs for each in made):
        return
    inputs = tuple(Input(each.name, each.shape, each.dtype) for each in made)
    stages: list[Stage] = []
    for each in program.stages:
        stages += inputs if each is stage else [each]
    yield needed(replace(program, stages=tuple(stages)))


def _with(program: Program, stage: Stage, other: Stage) -> Program:
    return needed(
        replace(program, stages=tuple(other if each is stage else each for each in program.stages))
    )


def _replaced(program: Program, change: Callable[[Any], Any]) -> Program:
    return needed(replace(program, stages=rewritten(program.stages, change)))


def _instead(old: Any, other: Any, node: Any) -> Any:
    return other if node == old else node


def _number_instead(old: int, other: int, node: Any) -> Any:
    is_old = isinstance(node, Number) and node.dtype == "int32" and node.value == old
    return replace(node, value=other) if is_old else node


def _simpler(stage: Compute) -> Iterator[Compute]:
    reduction = stage.reduction
    if reduction is None:
        return
    if reduction.where is not None:
        yield replace(stage, reduction=replace(reduction, where=None))
    if reduction.init is not None:
        yield replace(stage, reduction=replace(reduction, init=None))
    for i, axis in enumerate(reduction.axes):
        for name in ("begin", "end"):
            bound = getattr(axis, name)
            if not isinstance(bound, Number):
                begins = name == "begin"
                plain = replace(axis, begin=number(0)) if begins else replace(axis, end=number(2))
                axes = (*reduction.axes[:i], plain, *reduction.axes[i + 1 :])
                yield replace(stage, reduction=replace(reduction, axes=axes))


def _smaller_numbers(program: Program) -> Iterator[Program]:
    """Each whole number of the program, wherever it stands, as a smaller one."""
    found = {
        int(node.value)
        for node in nodes(program.stages)
        if isinstance(node, Number) and node.dtype == "int32" and node.value > 1
    }
    for value in sorted(found, reverse=True):
        for less in (1, 2, 3, value // 2, value - 1):
            if less < value:
                yield _replaced(program, partial(_number_instead, value, less))
    for i, (name, values) in enumerate(program.sizes):
        for less in (1, 2, 3, values[0] // 2):
            if program.calls == 1 and less < values[0]:
                sizes = (*program.sizes[:i], (name, (less,)), *program.sizes[i + 1 :])
                yield replace(program, sizes=sizes)


def _smaller_values(program: Program) -> Iterator[Program]:
    """Each operation as one of its operands, or as a constant; each index as 0."""
    seen: set[Any] = set()
    for node in nodes(program.stages):
        if node in seen or not isinstance(node, (Apply, Load)):
            continue
        seen.add(node)
        others: list[Any] = []
        if isinstance(node, Apply):
            others = [cast(each, node.dtype) for each in node.args]
        else:
            for i, index in enumerate(node.indices):
                if not isinstance(index, (Number, Axis)):
                    for plain in (number(0), *(a for a in getattr(index, "args", ()))):
                        others.append(
                            replace(
                                node, indices=(*node.indices[:i], plain, *node.indices[i + 1 :])
                            )
                        )
        if node.dtype != "bool":
            others.append(Number(1, node.dtype))
        for other in others:
            yield _replaced(program, partial(_instead, node, other))
