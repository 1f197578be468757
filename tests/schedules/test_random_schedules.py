"""Schedules never change what is computed: random programs, random schedules."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import te
from minitvm.tir.interpreter import interpret
from tests.schedules.programs import PROGRAMS, Draw, Program
from tests.schedules.random_schedule import schedule_randomly

# Without shrinking: of a schedule, the trace says it all, and shrinking one takes minutes.
QUICK = [Phase.explicit, Phase.reuse, Phase.generate]
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def check(make: Any, draw: Draw) -> None:
    """One program: its scheduled and compiled result against the interpreted plain loops. Some of
    the tensors between are arguments, too, where the schedule computes them whole."""
    program: Program = make(draw)
    s = te.create_schedule(program.outputs)
    inside = draw(st.lists(st.sampled_from([None, *program.inside()]), unique=True))
    schedule_randomly(s, draw)
    note(s.trace())
    note(str(program.sizes))
    for tensor in inside:
        if tensor is not None and s.now(tensor).ndim == tensor.ndim:  # its layout is its own
            program.args.append(tensor)
            if not is_accepted(s, program):
                program.args.remove(tensor)
    note(str(program.args))
    plain = tvm.lower(te.create_schedule(program.outputs), program.args)["main"]
    expected = program.arrays(seed=0)
    interpret(plain, *expected)
    lowered = tvm.lower(s, program.args)
    note(str(lowered))
    assert str(tvm.lower(te.replay(s.trace(), program.outputs), program.args)) == str(lowered)
    actual = program.arrays(seed=0)
    tvm.build(s, program.args, name="scheduled")(*actual)
    for got, wanted in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)
    interpreted = program.arrays(seed=0)
    interpret(lowered["main"], *interpreted)
    for got, wanted in zip(interpreted, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)


def is_accepted(s: te.Schedule, program: Program) -> bool:
    """Whether a schedule computes the last argument whole, for the sizes drawn, too."""
    try:
        lowered = tvm.lower(s, program.args)["main"]
        interpret(lowered, *program.arrays(seed=0))
    except (tvm.CompileError, ValueError) as error:
        assert re.search(REFUSALS, str(error)), error
        return False
    # What is inlined only `lower` takes. An empty sum reads some arguments not at all.
    return not any(each.op in s.stage_map and s[each].inlined for each in program.args)


# Why something between may be no argument: of part of its elements nobody says what they are.
REFUSALS = (
    "expected all elements of an argument to be computed"
    "|compute different elements of an argument"
    "|expected a stage that is computed, found it inlined"
    "|to keep twice, found it double-buffered"
    "|since argument .* isn't computed otherwise"
    "|got one that .* does not read"
)


@pytest.mark.parametrize("make", PROGRAMS)
@settings(max_examples=3, deadline=None, suppress_health_check=SLOW, phases=QUICK)
@given(data=st.data())
def test_a_schedule_keeps_what_is_computed(make: Any, data: st.DataObject) -> None:
    check(make, data.draw)


@pytest.mark.wide
@pytest.mark.parametrize("make", PROGRAMS)
@settings(max_examples=1500, deadline=None, suppress_health_check=SLOW, phases=QUICK)
@given(data=st.data())
def test_many_schedules_keep_what_is_computed(make: Any, data: st.DataObject) -> None:
    check(make, data.draw)
