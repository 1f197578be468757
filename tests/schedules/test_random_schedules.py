"""Schedules never change what is computed: random programs, random schedules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import te
from minitvm.interpreter import interpret
from tests.schedules.programs import PROGRAMS, Draw, Program
from tests.schedules.random_schedule import schedule_randomly

# Without shrinking: of a schedule, the trace says it all, and shrinking one takes minutes.
QUICK = [Phase.explicit, Phase.reuse, Phase.generate]
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def check(make: Any, draw: Draw) -> None:
    """One program: its scheduled and compiled result against the interpreted plain loops."""
    program: Program = make(draw)
    plain = tvm.lower(te.create_schedule(program.outputs), program.args)["main"]
    expected = program.arrays(seed=0)
    interpret(plain, *expected)
    s = te.create_schedule(program.outputs)
    schedule_randomly(s, draw)
    note(s.trace())
    note(str(program.sizes))
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


@pytest.mark.parametrize("make", PROGRAMS)
@settings(max_examples=25, deadline=None, suppress_health_check=SLOW, phases=QUICK)
@given(data=st.data())
def test_a_schedule_keeps_what_is_computed(make: Any, data: st.DataObject) -> None:
    check(make, data.draw)


@pytest.mark.wide
@pytest.mark.parametrize("make", PROGRAMS)
@settings(max_examples=1500, deadline=None, suppress_health_check=SLOW, phases=QUICK)
@given(data=st.data())
def test_many_schedules_keep_what_is_computed(make: Any, data: st.DataObject) -> None:
    check(make, data.draw)
