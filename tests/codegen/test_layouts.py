"""What a declared buffer says of its memory, held to at the call; and arrays of every layout."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import te, tir
from minitvm.runtime.errors import CompileError
from minitvm.tir.interpreter import interpret

Array = np.ndarray[Any, Any]
A = te.placeholder((4, 3), name="A")
B = te.compute((4, 3), lambda i, j: A[i, j] + 1.0, name="B")
base = np.arange(64, dtype="float32")
compact = base[:12].reshape(4, 3)
rows_of_8 = base[:32].reshape(4, 8)[:, :3]


def check_call(array: Array, **declared: Any) -> None:
    """Adds 1 to an array whose buffer is declared so."""
    buffer = tir.decl_buffer((4, 3), name="A", **declared)
    f = tvm.build(te.create_schedule(B.op), [A, B], binds={A: buffer}, name="f")
    result = np.empty((4, 3), "float32")
    f(array, result)
    np.testing.assert_array_equal(result, array + 1)


def aligned(to: int, plus: int) -> Array:
    """An array at `plus` elements after an address that is a multiple of `to` bytes."""
    memory = np.zeros(12 + to // 2, "float32")
    begin = -memory.ctypes.data % to // 4 + plus
    return memory[begin : begin + 12].reshape(4, 3)


@pytest.mark.parametrize(
    "array",
    [compact, rows_of_8, compact[::-1], np.asfortranarray(compact), compact[:1].repeat(4, 0)],
)
def test_strides_from_the_array(array: Array) -> None:
    check_call(array, strides=[te.var("s0"), te.var("s1")])
    check_call(np.broadcast_to(array[:1], (4, 3)), strides=[te.var("s0", "int64"), te.var("s1")])


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "float16", "int32", "float32", "int64", "float64"]
)
def test_steps_of_any_size(dtype: str) -> None:
    """Powers of two of bytes, and others; backwards; elements that overlap not at all."""
    n, m = te.var("n"), te.var("m")
    x = te.placeholder((n, m), dtype, name="X")
    y = te.compute((n, m), lambda i, j: x[i, j], name="Y")
    f = tvm.build(te.create_schedule(y.op), [x, y], name="f")
    memory = np.arange(1 << 14).astype(dtype)
    for step in (1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 257, 512, 1000, 1024, 2048, 4096):
        for across in (0, 1, 5, 64):
            strides = (step * memory.itemsize, across * memory.itemsize)
            array = np.lib.stride_tricks.as_strided(memory, (3, 4), strides, writeable=False)
            for view in (array, array[::-1], array[:, ::-1], array.T):
                result = np.zeros(view.shape, dtype)
                f(view, result)
                np.testing.assert_array_equal(result, view)


def test_given_strides() -> None:
    check_call(rows_of_8, strides=[8, 1])
    with pytest.raises(ValueError, match=r"argument 0 'A': expected strides\[0\] == 8 .*, got 3"):
        check_call(compact, strides=[8, 1])
    step = te.var("step")
    check_call(rows_of_8, strides=[step, 1])
    with pytest.raises(ValueError, match=r"argument 0 'A': expected strides\[1\] == 1 .*, got 4"):
        check_call(np.asfortranarray(compact), strides=[step, 1])
    same = te.var("same")
    with pytest.raises(ValueError, match=r"argument 0 'A': expected strides\[1\] == 3 .*, got 1"):
        check_call(compact, strides=[same, same])


@pytest.mark.parametrize("alignment", [8, 64])
def test_alignment(alignment: int) -> None:
    check_call(aligned(alignment, plus=0), data_alignment=alignment)
    text = f"argument 0 'A': expected data aligned to {alignment} bytes, got address 0x"
    with pytest.raises(ValueError, match=text):
        check_call(aligned(alignment, plus=1), data_alignment=alignment)


def test_offsets_begin_at_the_first_element() -> None:
    for array in (compact, base[7:19].reshape(4, 3)):
        check_call(array, offset_factor=8)
        check_call(array, elem_offset=te.var("offset"))
        check_call(array, elem_offset=0)
    text = (
        "f: buffer A: expected the elem_offset of an argument to be 0 or a variable of its own, got"
    )
    with pytest.raises(CompileError, match=f"{text} 16: an array is passed from its first element"):
        check_call(compact, elem_offset=16)
    step = te.var("step")
    with pytest.raises(CompileError, match=f"{text} step"):
        check_call(compact, strides=[step, 1], elem_offset=step)


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ({"data_alignment": 48}, "A: expected data_alignment a power of 2, got 48"),
        ({"offset_factor": -1}, "A: expected no negative offset_factor, got -1"),
        (
            {"elem_offset": 4, "offset_factor": 8},
            "A: expected elem_offset a multiple of offset_factor 8, got 4",
        ),
    ],
)
def test_wrong_declarations(declared: dict[str, Any], text: str) -> None:
    with pytest.raises(CompileError, match=text):
        check_call(compact, **declared)


# -- Broadcasting ----------------------------------------------------------------------------------

m, n = te.size_var("m"), te.size_var("n")
X = te.placeholder((m, n), name="X")
Y = te.compute((4, 3), lambda i, j: X[i, j] + 1.0, name="Y")
broadcast = tir.decl_buffer((m, n), name="X", buffer_type="auto_broadcast")


@pytest.mark.parametrize(
    "array",
    [compact, compact[:1], compact[:, :1], compact[1:2, 2:], rows_of_8, compact[::-1, 1:2]],
    ids=lambda array: f"{array.shape} by {array.strides}",
)
def test_a_dimension_of_one_element_broadcasts(array: Array) -> None:
    schedule = te.create_schedule(Y.op)
    module = tvm.lower(schedule, [X, Y], binds={X: broadcast}, name="f")
    compiled, interpreted = np.empty((2, 4, 3), "float32")
    tvm.build(schedule, [X, Y], binds={X: broadcast}, name="f")(array, compiled)
    interpret(module["f"], array, interpreted)
    expected = np.broadcast_to(array, (4, 3)) + 1
    np.testing.assert_array_equal(compiled, expected)
    np.testing.assert_array_equal(interpreted, expected)


def test_other_extents_do_not_broadcast() -> None:
    f = tvm.build(te.create_schedule(Y.op), [X, Y], binds={X: broadcast}, name="f")
    result = np.empty((4, 3), "float32")
    with pytest.raises(ValueError, match=r"X\[i, j\]: index 0 needs m <= 1 or m >= 4, got m = 2"):
        f(compact[:2], result)
    with pytest.raises(ValueError, match=r"f: X\[i, j\]: index 1 needs n >= 1, got n = 0"):
        f(compact[:, :0], result)


def test_constant_extents_broadcast() -> None:
    row = te.placeholder((1, 3), name="row")
    buffer = tir.decl_buffer((1, 3), name="row", buffer_type="auto_broadcast")
    wide = te.compute((4, 3), lambda i, j: row[i, j] + 1.0, name="wide")
    result = np.empty((4, 3), "float32")
    tvm.build(te.create_schedule(wide.op), [row, wide], binds={row: buffer})(compact[:1], result)
    np.testing.assert_array_equal(result, np.broadcast_to(compact[:1], (4, 3)) + 1)
    short = tir.decl_buffer((1, 3), name="row")
    with pytest.raises(CompileError, match=r"row\[i, j\]: index 0 must stay in \[0, 1\)"):
        tvm.build(te.create_schedule(wide.op), [row, wide], binds={row: short})


# -- Arrays of every layout ------------------------------------------------------------------------


class View:
    """A view of random layout, and the memory that it is a view of."""

    def __init__(self, draw: Callable[[Any], Any], shape: tuple[int, ...], *, once: bool) -> None:
        """With `once`, no element stands at two indices."""
        order = draw(st.permutations(range(len(shape))))
        self._axes = np.argsort(order)
        self._slices = tuple(draw(st.sampled_from(SLICES)) for _ in shape)
        self._offset = draw(st.integers(0, 3))
        self._shape = shape
        self._repeated = () if once else draw(st.sets(st.sampled_from([*range(len(shape)), 9])))
        self._steps_of_one = draw(st.sampled_from([None, 0, -3, 1000]))
        room = [extent * abs(step) for extent, step in zip(shape, self._slices, strict=True)]
        self._room = [room[axis] for axis in order]
        size = self._offset + math.prod(self._room)
        self.memory = np.random.default_rng(size).standard_normal(size).astype("float32")

    def of(self, memory: Array) -> Array:
        """The view of another memory of that size."""
        array: Array = memory[self._offset :].reshape(self._room).transpose(self._axes)
        array = array[tuple(slice(None, None, step) for step in self._slices)]
        for axis in self._repeated:
            if axis < array.ndim and array.shape[axis]:
                first = array[(slice(None),) * axis + (slice(1),)]
                array = np.broadcast_to(first, self._shape)
        if self._steps_of_one is None:
            return array
        strides = [
            4 * self._steps_of_one if extent == 1 else stride
            for extent, stride in zip(array.shape, array.strides, strict=True)
        ]
        return np.lib.stride_tricks.as_strided(array, array.shape, strides)


SLICES = (1, 1, 1, -1, 2, -2, 3)
p, q, r = (te.var(name) for name in "pqr")
L, M = te.placeholder((p, q), name="L"), te.placeholder((p, q), name="M")
T = te.placeholder((p, q, r), name="T")
N = te.placeholder((q, r), name="N")
along = te.reduce_axis((0, q), name="along")


def in_vectors(s: Any, tensor: Any) -> None:
    _, lanes = s[tensor].split(tensor.op.axis[-1], factor=4)
    s[tensor].vectorize(lanes)
    s[tensor].parallel(tensor.op.axis[0])


def fused(s: Any, tensor: Any) -> None:
    outer, lanes = s[tensor].split(s[tensor].fuse(*tensor.op.axis), factor=8)
    s[tensor].vectorize(lanes)
    s[tensor].parallel(outer)


def reordered(s: Any, tensor: Any) -> None:
    s[tensor].reorder(*reversed(tensor.op.axis))


def plain(s: Any, tensor: Any) -> None:
    """The loops as they are."""


class Kernel:
    """A function of some inputs with what numpy makes of them."""

    def __init__(self, output: Any, inputs: list[Any], expected: Any, *plans: Any) -> None:
        self.inputs = inputs
        self.output = output
        self.expected = expected
        self.runs_in_place = not output.op.reduce_axis and output.shape[0] is p
        self.plans = (plain, *plans)

    @cached_property
    def functions(self) -> list[Any]:
        return [self._built(plan) for plan in self.plans]

    def _built(self, plan: Any) -> Any:
        s = te.create_schedule(self.output.op)
        plan(s, self.output)
        return tvm.build(s, [*self.inputs, self.output], name="f")

    def check(self, draw: Callable[[Any], Any]) -> None:
        function = draw(st.sampled_from(self.functions))
        sizes = {size: draw(st.sampled_from([0, 1, 1, 2, 3, 5, 17])) for size in (p, q, r)}
        shapes = [[sizes[dim] for dim in each.shape] for each in (*self.inputs, self.output)]
        views = [View(draw, tuple(shape), once=False) for shape in shapes]
        in_place = [i for i, shape in enumerate(shapes[:-1]) if shape == shapes[-1]]
        place = draw(st.sampled_from([None, *in_place]))
        views[-1] = View(draw, tuple(shapes[-1]), once=True)
        if place is not None:
            views[place] = views[-1]
        memories = [view.memory for view in views]
        arrays = [view.of(memory) for view, memory in zip(views, memories, strict=True)]
        after = memories[-1].copy()
        result = self.expected(*(array.copy() for array in arrays[:-1]))
        views[-1].of(after)[...] = result
        before = [memory.copy() for memory in memories]
        if place is not None and result.size and not self.runs_in_place:
            with pytest.raises(ValueError, match=r"shares no memory with .* pass a copy or"):
                function(*arrays)
            after = before[-1]
        else:
            function(*arrays)
        np.testing.assert_allclose(memories[-1], after, rtol=1e-5, atol=1e-5)
        for view, memory, old in zip(views, memories, before, strict=True):
            if view is not views[-1]:
                np.testing.assert_array_equal(memory, old)


KERNELS = {
    "matrices": Kernel(
        te.compute((p, q), lambda i, j: L[i, j] * 2.0 + M[i, j], name="Y"), [L, M],
        lambda a, b: a * 2 + b, in_vectors, fused, reordered,
    ),
    "bias": Kernel(
        te.compute((p, q, r), lambda i, j, k: T[i, j, k] + N[j, k], name="Y"), [T, N],
        lambda a, b: a + b, fused,
    ),
    "product": Kernel(
        te.compute((p, r), lambda i, j: te.sum(L[i, along] * N[along, j], axis=along), name="Y"),
        [L, N], lambda a, b: a @ b, in_vectors,
    ),
    "sum": Kernel(
        te.compute((p, r), lambda i, j: te.sum(T[i, along, j], axis=along), name="Y"), [T],
        lambda a: a.sum(1), reordered,
    ),
    "transposed": Kernel(
        te.compute((q, p), lambda i, j: L[j, i], name="Y"), [L], np.transpose, in_vectors,
    ),
}  # fmt: skip
some = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
many = settings(max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("name", KERNELS)
@some
@given(data=st.data())
def test_arrays_of_every_layout(name: str, data: st.DataObject) -> None:
    KERNELS[name].check(data.draw)


@pytest.mark.wide
@pytest.mark.parametrize("name", KERNELS)
@many
@given(data=st.data())
def test_many_arrays_of_every_layout(name: str, data: st.DataObject) -> None:
    KERNELS[name].check(data.draw)


def test_an_empty_output_may_have_any_strides() -> None:
    """It is taken, and nothing is written."""
    for shape, strides in (((2, 0), (0, 4)), ((0, 3), (4, 0)), ((3, 0), (4, 4))):
        memory = np.ones(8, np.float32)
        y = np.lib.stride_tricks.as_strided(memory, shape, strides)
        KERNELS["product"].functions[0](
            np.zeros((shape[0], 2), np.float32), np.zeros((2, shape[1]), np.float32), y
        )
        assert (memory == 1).all()


def test_workspaces_whose_size_is_read_from_an_array_of_any_strides() -> None:
    count = te.placeholder((2,), "int32", name="count")
    x = te.placeholder((5,), name="x")
    twice = te.compute((5,), lambda i: x[i] * 2, name="twice")
    k = te.reduce_axis((0, count[0]), name="k")
    total = te.compute((2,), lambda i: te.sum(twice[k], axis=k), name="total")
    s = te.create_schedule(total.op)
    s[twice].compute_at(s[total], total.op.axis[0])
    f = tvm.build(s, [count, x, total])
    found = np.zeros(2, np.float32)
    f(np.array([4, 9, 1, 9], np.int32)[::2], base[1:6], found)
    assert found.tolist() == [20, 20]


def test_rows_at_constant_distances_share_a_multiplication() -> None:
    """The multiples of a stride that stays the same move out of loops."""
    m, k = te.var("m"), te.var("k")
    X = te.placeholder((m, k), name="X")
    Y = te.compute((m - 3,), lambda i: X[i, 0] + X[i + 1, 0] + X[i + 3, 0], name="Y")
    f = tvm.build([Y], [X, Y], auto_schedule=False)
    assert len(re.findall(r" = mul [a-z ]*i64 %v\d+, %v\d+\n", f.get_source("ll"))) == 1
    x = np.arange(35, dtype="float32").reshape(7, 5)
    y = np.empty(4, "float32")
    f(x, y)
    np.testing.assert_array_equal(y, x[:4, 0] + x[1:5, 0] + x[3:, 0])
