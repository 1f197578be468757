"""Whole programs mean what numpy says, however they are built, scheduled and called."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, note, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import te
from tests.whole_programs import bounded, running, sweep
from tests.whole_programs.arrays import LAYOUTS, place
from tests.whole_programs.description import (
    FLOATS,
    INTEGERS,
    SIGNED,
    Apply,
    Axis,
    Compute,
    Extern,
    Input,
    Load,
    Number,
    Program,
    ReduceAxis,
    Reduction,
    Value,
    apply,
    bits,
    nodes,
    number,
    reads,
)
from tests.whole_programs.drawing import Drawer, draw_program
from tests.whole_programs.numpy_meaning import Unsuitable
from tests.whole_programs.running import (
    Difference,
    Setting,
    draw_setting,
    made,
    run,
    unique_operations,
)
from tests.whole_programs.scheduling import schedule_randomly
from tests.whole_programs.shrinking import shrink
from tests.whole_programs.te_text import program_text

ROOT = Path(__file__).parents[2]
SEEDS = 48
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.fixture(autouse=True)
def threads() -> Any:
    before = tvm.num_threads()
    yield
    tvm.set_num_threads(before)


def check(program: Program, setting: Setting) -> None:
    try:
        run(program, setting)
    except Unsuitable:
        return
    except Exception:
        print(sweep.case_text(program, setting))
        raise


@pytest.mark.parametrize("first", range(0, SEEDS, 6))
def test_programs_of_some_seeds(first: int) -> None:
    for seed in range(first, first + 6):
        check(*sweep.case_of(seed))


@settings(max_examples=10, deadline=None, suppress_health_check=SLOW, phases=[Phase.generate])
@given(random=st.randoms(use_true_random=False))
def test_random_programs(random: Random) -> None:
    try:
        program = Drawer(random).program()
    except Unsuitable:
        assume(False)
    setting = draw_setting(random)
    note(sweep.case_text(program, setting))
    check(program, setting)


@pytest.mark.wide
def test_many_programs(pytestconfig: pytest.Config) -> None:
    """``pytest -m wide tests/whole_programs --programs 10000 --seed 1 --jobs 2``"""
    options = [f"--{k}={pytestconfig.getoption(o)}"
               for k, o in (("count", "programs"), ("seed", "seed"), ("jobs", "jobs"))]  # fmt: skip
    command = [sys.executable, "-m", "tests.whole_programs", *options]
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(result.stdout)
    assert result.returncode == 0, result.stdout


# -- What would be found --------------------------------------------------------------------------

A = Input("A", (number(4),), "float32")
ELEMENT = Load("A", (Axis("i0"),), "float32")


def program_of(body: Value) -> Program:
    return Program((), (), (A, Compute(("B",), ("i0",), (number(4),), (body,))), ("B",), 1)


DOUBLED = program_of(apply("add", ELEMENT, ELEMENT))


def test_a_wrong_element_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(a: Any, b: Any) -> None:
        b[...] = a + a
        b[2] += 1

    monkeypatch.setattr(tvm, "build", lambda *args, **options: wrong)
    with pytest.raises(Difference, match=r"output B\[2\]: expected .*: 1 of 4 elements"):
        run(DOUBLED, Setting())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_write_around_an_output_is_found(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(a: Any, b: Any) -> None:
        b[...] = a + a
        owner = b if b.base is None else b.base
        owner.reshape(-1)[0] = 5

    monkeypatch.setattr(tvm, "build", lambda *args, **options: wrong)
    monkeypatch.setattr(running, "LAYOUTS", (layout,))
    with pytest.raises(Difference, match=rf"output B \({layout}\): written around"):
        run(DOUBLED, Setting(layouts=True))


def test_a_write_to_an_input_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(a: Any, b: Any) -> None:
        b[...] = a + a
        a[0] = 77

    monkeypatch.setattr(tvm, "build", lambda *args, **options: wrong)
    with pytest.raises(Difference, match="input A: written to"):
        run(DOUBLED, Setting())


def test_a_crash_and_an_exception_have_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome(case: Any) -> running.Outcome:
        seed = next(s for s in range(6) if sweep.case_of(s) == case)
        if seed == 1:
            os.kill(os.getpid(), 9)
        if seed == 3:
            raise RuntimeError("A3: wrong by 17")
        return running.Outcome()

    monkeypatch.setattr(sweep, "outcome_of", outcome)
    report = sweep.sweep(6, 0, 2)
    assert dict(report.findings) == {
        "crash: exit status -9": [1],
        "RuntimeError: X: wrong by N (test_whole_programs.py)": [3],
    }
    assert report.programs == 6
    assert sum(report.stages.values()) == 4


def test_shrinking_leaves_what_fails() -> None:
    """The program that is left has a product, and nothing that could be taken away."""
    seed = next(s for s in range(1000) if _multiplies(draw_program(s)))
    program, _ = shrink((draw_program(seed), Setting()), lambda case: _multiplies(case[0]), 20)
    assert len([s for s in program.stages if isinstance(s, Compute)]) == 1
    assert len(program.outputs) == 1
    assert _multiplies(program)


def _multiplies(program: Program) -> bool:
    """Whether a sum is one of products of two tensors' elements."""
    return any(
        isinstance(node, Apply)
        and node.op == "multiply"
        and all(isinstance(each, Load) for each in node.args)
        for stage in program.stages
        if isinstance(stage, Compute) and stage.reduction and stage.reduction.reducer == "sum"
        for node in nodes(stage.bodies)
    )


# -- Random schedules -----------------------------------------------------------------------------


def test_loops_by_hand_are_scheduled_randomly() -> None:
    """Their axes aren't known, nor are those of the inputs: what asks for axes finds none."""
    stage = Extern("E", "A", (number(4),), "float32")
    program = Program((), (), (A, stage), ("E",), 1)
    touched = 0
    for seed in range(40):
        s = te.create_schedule(unique_operations(made(program)["outputs"]))
        schedule_randomly(s, Random(seed), 8, program)
        touched += s.is_touched
    assert touched


def test_a_stage_keeps_its_shape_if_any_of_its_tensors_is_an_output() -> None:
    """A function's arguments have the shapes of the program, whatever the schedule."""
    k = ReduceAxis("k", number(0), number(3))
    loads = tuple(Load(name, (Axis("i0"), Axis("k")), "float32") for name in "AA")
    shape = (number(2), number(5))
    stage = Compute(("R", "S"), ("i0", "i1"), shape, loads, Reduction("sum_and_max", (k,)))
    a = Input("A", (number(2), number(3)), "float32")
    program = Program((), (), (a, stage), ("S",), 1)
    for seed in range(40):
        (output,) = made(program)["outputs"]
        s = te.create_schedule(output.op)
        schedule_randomly(s, Random(seed), 8, program)
        assert [[int(n) for n in t.shape] for t in s[output].op.outputs] == [[2, 5]] * 2


# -- The meaning ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@given(value=st.floats(allow_nan=False))
def test_rounding_is_numpys(dtype: str, value: float) -> None:
    with np.errstate(over="ignore"):
        if dtype == "bfloat16":  # by way of float32, numpy rounds twice
            value = float(np.float32(value))
        expected = np.float64(value).astype(bounded.numpy_dtype(dtype))
    assert bounded.round_to(dtype, np.longdouble(value)) == np.longdouble(expected)


INTEGER_OPERATORS: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b if b else 0,
    "floormod": lambda a, b: a % b if b else 0,
    "truncdiv": lambda a, b: (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if b else 0,
    "truncmod": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1) if b else 0,
    "shift_left": lambda a, b: a << b if 0 <= b < 64 else 0,
    "minimum": min,
    "maximum": max,
    "xor": lambda a, b: a ^ b,
}


@given(data=st.data(), dtype=st.sampled_from(INTEGERS), op=st.sampled_from(list(INTEGER_OPERATORS)))
def test_integers_are_pythons_and_wrap(data: st.DataObject, dtype: str, op: str) -> None:
    limits = np.iinfo(dtype)
    values = st.integers(int(limits.min), int(limits.max)) | st.sampled_from(
        [0, 1, int(limits.min), int(limits.max), -1 if dtype in SIGNED else 2]
    )
    a, b = data.draw(values), data.draw(values)
    exact = INTEGER_OPERATORS[op](a, b)
    wrapped = (exact - int(limits.min)) % (1 << bits(dtype)) + int(limits.min)
    found = bounded.binary(op, dtype, bounded.known(dtype, a), bounded.known(dtype, b))
    if op == "shift_left" and b >= bits(dtype):
        wrapped = 0
    assert found.exact == wrapped and found.exact.dtype == dtype


@pytest.mark.parametrize("dtype", FLOATS)
def test_bounds_hold_for_sums_in_any_order(dtype: str) -> None:
    generator = np.random.default_rng(3)
    values = generator.standard_normal((50, 40)).astype(bounded.numpy_dtype(dtype))
    terms = bounded.known(dtype, values)
    found = bounded.total(terms, np.ones((50, 40), bool), None, (1,))
    for _ in range(3):
        generator.shuffle(values, axis=1)
        sums = values[:, 0]
        for i in range(1, 40):
            sums = (sums + values[:, i]).astype(values.dtype)
        off = abs(sums.astype(bounded.WIDE) - found.exact[:, 0])
        assert (off <= found.error[:, 0]).all()
        assert off.any()  # or the bound would never be tried
    size = abs(values).astype(bounded.WIDE).sum(1)
    digits = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}[dtype]
    assert (found.error[:, 0] <= 1.5 * 42 * 2.0**-digits * size).all()


def test_what_cannot_be_told_is_in_doubt() -> None:
    third = bounded.binary(
        "divide", "float32", bounded.known("float32", 1.0), bounded.known("float32", 3.0)
    )
    assert 0 < third.error < 2.0**-25
    same = bounded.compare("lt", third, third)
    assert same.error == math.inf
    zero = bounded.binary("subtract", "float32", third, third)
    assert bounded.unary("floor", zero).error == math.inf
    large = bounded.binary(
        "multiply", "float32", bounded.known("float32", 1e30), bounded.known("float32", 1e30)
    )
    assert large.error == math.inf


def test_a_program_that_reads_outside_is_none() -> None:
    index = apply("add", Axis("i0"), number(1))
    body = Load("A", (index,), "float32")
    with pytest.raises(Unsuitable, match="A: an index outside"):
        running.Call(program_of(body), Setting(), 0, Random(0))
    inside = apply("lt", index, number(4))
    guarded = apply("if_then_else", inside, body, Number(0.0, "float32"))
    run(program_of(guarded), Setting())


def test_arrays_of_every_layout_hold_their_values() -> None:
    for layout in LAYOUTS:
        for shape in [(), (0,), (1,), (3, 4), (2, 0, 3), (2, 3, 4, 5)]:
            values = np.arange(math.prod(shape), dtype="float32").reshape(shape)
            placed = place(shape, "float32", layout, values)
            assert placed.view.shape == shape and (placed.view == values).all()
            assert placed.holding(values) == placed.base.tobytes()


# -- What is drawn --------------------------------------------------------------------------------


def test_every_kind_of_program_is_drawn() -> None:
    """What programs of 400 seeds have in common with what users write."""
    programs = [draw_program(seed) for seed in range(400)]
    stages = [stage for program in programs for stage in program.stages]
    computes = [stage for stage in stages if isinstance(stage, Compute)]
    reductions = [stage.reduction for stage in computes if stage.reduction]
    ranges = [axis for each in reductions for axis in each.axes]
    assert {bool(program.sizes) for program in programs} == {True, False}
    assert {type(stage).__name__ for stage in stages} == {"Input", "Compute", "Scan", "Extern"}
    assert {stage.dtype for stage in stages if isinstance(stage, Input)} == {
        "bool", *INTEGERS, *FLOATS
    }  # fmt: skip
    assert {each.reducer for each in reductions} >= {
        "sum", "prod", "min", "max", "any", "all", "xor", "argmax", "sums", "sum_and_max",
        "modular", "capped",
    }  # fmt: skip
    assert any(each.where is not None for each in reductions)
    assert any(each.init is not None for each in reductions)
    assert any(_reads_axis(each.captured) for each in reductions)
    assert any(_reads_axis(each.end) for each in ranges)
    assert any(_reads_data(each) for each in ranges)
    assert any(each.begin not in (number(0),) for each in ranges)
    assert any(len(stage.shape) == 0 for stage in computes)
    assert any(len(stage.shape) == 4 for stage in computes)
    assert any(len(stage.names) > 1 for stage in computes)
    assert any(_is_intermediate(program) for program in programs)
    texts = [program_text(program) for program in programs]
    for wanted in ("te.if_then_else", "tvm.Select", "//", "%", "te.all(", "call_packed", "where="):
        assert any(wanted in text for text in texts), wanted


def _reads_axis(part: Any) -> bool:
    return part is not None and any(isinstance(node, Axis) for node in nodes(part))


def _reads_data(part: ReduceAxis) -> bool:
    return any(isinstance(node, Load) for node in nodes(part))


def _is_intermediate(program: Program) -> bool:
    """Whether an output is read by a later stage."""
    return any(name in reads(stage) for stage in program.stages for name in program.outputs)


def test_ranges_of_a_reduction_begin_and_end_where_they_say() -> None:
    k = ReduceAxis("k", number(1), apply("add", Axis("i0"), number(1)))
    value: Value = Load("A", (Axis("k"),), "float32")
    stage = Compute(("R",), ("i0",), (number(4),), (value,), Reduction("sum", (k,)))
    program = Program((), (), (A, stage), ("R",), 7)
    call = running.Call(program, Setting(), 0, Random(0))
    a = call._inputs["A"]
    assert call._outputs["R"].exact.tolist() == [a[1 : i + 1].sum() for i in range(4)]
    run(program, Setting())
