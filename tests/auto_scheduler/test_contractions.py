"""Contractions of every kind that people write, held to what they mean (:mod:`meaning`)."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, note, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm.runtime.dtype import DType
from minitvm.te.tensor import ComputeOp, PlaceholderOp, Tensor
from minitvm.tir.functor import free_vars
from tests.auto_scheduler.contractions import attention, contraction
from tests.auto_scheduler.meaning import Meaning, Value
from tests.schedules.programs import Draw, Program

Array = np.ndarray[Any, Any]
QUICK = [Phase.explicit, Phase.reuse, Phase.generate]
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
TARGETS = ["llvm", "llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64"]
# Bytes: small programs are blocked, too.
SMALL_CACHES = "-l1d-cache-bytes=2048 -l2-cache-bytes=8192 -l3-cache-bytes=32768"
MOST_WORK = 600_000  # elements or products of a stage
AROUND = 67  # elements of rubbish before and after what a function may touch


def numpy_dtype(dtype: DType) -> Any:
    if dtype.is_bfloat16:
        return pytest.importorskip("ml_dtypes").bfloat16
    return np.dtype(str(dtype))


def guarded(shape: tuple[int, ...], dtype: Any, fill: Any) -> tuple[Array, Array]:
    """An array in the middle of a larger one, which is filled; and that one."""
    count = int(np.prod(shape))
    whole = np.full(count + 2 * AROUND, fill, dtype)
    return whole[AROUND : AROUND + count].reshape(shape), whole


def inputs(program: Program, sizes: dict[Any, int], seed: int, whole: bool) -> dict[Tensor, Array]:
    """Elements for the placeholders: small whole numbers, or any."""
    generator = np.random.default_rng(seed)
    made = {}
    for tensor in program.args:
        if not isinstance(tensor.op, PlaceholderOp):
            continue
        dtype, shape = tensor.dtype, shape_of(tensor, sizes)
        values, _ = guarded(shape, numpy_dtype(dtype), rubbish(dtype))
        if dtype.is_float:
            drawn = generator.integers(-3, 4, shape) if whole else generator.standard_normal(shape)
        elif whole or dtype.is_bool:
            drawn = generator.integers(0 if not dtype.is_int else -3, 2, shape)
        else:
            drawn = generator.integers(dtype.min(), dtype.max(), shape, str(dtype), endpoint=True)
        values[...] = drawn.astype(values.dtype)
        made[tensor] = values
    return made


def rubbish(dtype: DType) -> Any:
    """What a function that reads or leaves it would be caught by."""
    return np.nan if dtype.is_float else True if dtype.is_bool else 77


def shape_of(tensor: Tensor, sizes: dict[Any, int]) -> tuple[int, ...]:
    meaning = Meaning({}, sizes)
    return tuple(meaning.size(extent) for extent in tensor.shape)


def run(f: Any, program: Program, given: dict[Tensor, Array], sizes: dict[Any, int]) -> list[Array]:
    """The outputs of a call, which has written nothing else."""
    arrays, outputs, wholes = [], [], []
    for tensor in program.args:
        if tensor in given:
            arrays.append(given[tensor])
            continue
        fill = rubbish(tensor.dtype)
        values, whole = guarded(shape_of(tensor, sizes), numpy_dtype(tensor.dtype), fill)
        arrays.append(values)
        outputs.append(values)
        wholes.append((whole, np.full(AROUND, fill, whole.dtype)))
    f(*arrays)
    for whole, around in wholes:
        for end in (whole[:AROUND], whole[len(whole) - AROUND :]):
            assert end.tobytes() == around.tobytes(), "written outside of the output"
    return outputs


def check_in_place(
    f: Any, program: Program, given: dict[Tensor, Array], expected: dict[Tensor, Value]
) -> None:
    """Any output in the place of any input: refused, or as it should be."""
    for source, target in product(given, expected):
        if source.dtype != target.dtype or given[source].shape != expected[target].exact.shape:
            continue
        shared = given[source].copy()
        rest = [np.zeros(x.exact.shape, numpy_dtype(t.dtype)) for t, x in expected.items()]
        at = {**given, **dict(zip(expected, rest, strict=True)), source: shared, target: shared}
        if was_taken(f, [at[tensor] for tensor in program.args]):
            for tensor, wanted in expected.items():
                assert_means(tensor, at[tensor], wanted)


def was_taken(f: Any, arrays: list[Array]) -> bool:
    """Calls, and says whether an output may have the memory of an input."""
    try:
        f(*arrays)
    except ValueError as error:
        assert "expected an output that shares no memory" in str(error)
        return False
    return True


def assert_means(tensor: Tensor, got: Array, expected: Value) -> None:
    if not tensor.dtype.is_float:
        np.testing.assert_array_equal(got, expected.exact)
        return
    error = abs(got.astype(np.longdouble) - expected.exact)
    wrong = ~(error <= expected.error)  # of a NaN, too
    if wrong.any():
        place = np.argwhere(wrong)[0]
        at = tuple(place)
        raise AssertionError(
            f"{tensor.name}: {wrong.sum()} of {wrong.size} elements are wrong, first {place}: got "
            f"{got[at]}, expected {expected.exact[at]} +- {expected.error[at]}"
        )


def check(make: Any, draw: Draw) -> None:
    program: Program = draw(st.composite(make)())
    assume(all(work_of(op.output(0), program.sizes) <= MOST_WORK for op in program.outputs))
    target = with_caches(draw(st.sampled_from(TARGETS)), small=draw(st.booleans()))
    note(f"{target}, sizes: {program.sizes}")
    calls = [program.sizes]
    for _ in range(3 if program.sizes else 0):  # the same function, called with other sizes
        calls.append(other_sizes(draw, program, least=1 if make is attention else 0))
    outputs = [op.output(0) for op in program.outputs]
    note(tvm.auto_schedule(program.outputs, target).trace())
    options = {
        "debug": draw(st.sampled_from([None, None, None, "bounds"])),
        "fp": draw(st.sampled_from(["fast", "fast", "fast", "strict"])),
    }
    note(str(options))
    scheduled = tvm.build(outputs, program.args, target, name="scheduled", **options)
    plain = tvm.build(outputs, program.args, target, auto_schedule=False, name="plain")
    for number, sizes in enumerate(calls):
        given = inputs(program, sizes, number, whole=number % 2 == 0 and draw(st.booleans()))
        meaning = Meaning(given, sizes)
        written = [tensor for tensor in program.args if tensor not in given]
        expected = {tensor: meaning.of(tensor) for tensor in written}
        for f in (plain, scheduled):
            note(f"{f.name}: {sizes}")
            for tensor, got in zip(written, run(f, program, given, sizes), strict=True):
                assert_means(tensor, got, expected[tensor])
        if number == 0:
            check_in_place(scheduled, program, given, expected)


def other_sizes(draw: Draw, program: Program, least: int) -> dict[Any, int]:
    """Sizes for another call, with which no stage computes too much."""
    any_size = st.integers(least, 1) | st.integers(least, 300)
    sizes = {size: draw(any_size) for size in program.sizes}
    while max(work_of(op.output(0), sizes) for op in program.outputs) > MOST_WORK:
        largest = max(sizes, key=lambda size: sizes[size])
        sizes[largest] //= 2
    return sizes


def work_of(tensor: Tensor, sizes: dict[Any, int]) -> int:
    """How many elements or products the largest has, of all that a tensor is made of."""
    op, own = tensor.op, prod(shape_of(tensor, sizes))
    if isinstance(op, ComputeOp):
        extents = [axis.dom.extent for axis in op.reduce_axis if axis.dom is not None]
        longest = max([1, *(size for each in op.input_tensors for size in shape_of(each, sizes))])
        for extent in extents:  # an uneven sum is as long as what it reads
            is_even = all(var in sizes for var in free_vars(extent))
            own *= Meaning({}, sizes).size(extent) if is_even else longest
    return max([own, *(work_of(each, sizes) for each in op.input_tensors)])


def with_caches(target: str, *, small: bool) -> str:
    """A target, or one like it whose caches hold little."""
    return f"{target} {SMALL_CACHES}" if small else target


@settings(max_examples=3, deadline=None, suppress_health_check=SLOW, phases=QUICK)
@given(data=st.data())
def test_contractions(data: st.DataObject) -> None:
    check(contraction, data.draw)


@settings(max_examples=2, deadline=None, suppress_health_check=SLOW, phases=QUICK)
@given(data=st.data())
def test_attention(data: st.DataObject) -> None:
    check(attention, data.draw)


@pytest.mark.wide
@pytest.mark.parametrize("make", [contraction, attention])
@settings(max_examples=1600, deadline=None, suppress_health_check=SLOW, phases=QUICK)
@given(data=st.data())
def test_many_contractions(make: Any, data: st.DataObject) -> None:
    check(make, data.draw)
