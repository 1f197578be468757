"""What a declared buffer says of its memory, held to at the call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te, tir
from minitvm.interpreter import interpret
from minitvm.runtime.errors import CompileError

Array = np.ndarray[Any, Any]
A = te.placeholder((4, 3), name="A")
B = te.compute((4, 3), lambda i, j: A[i, j] + 1.0, name="B")
base = np.arange(64, dtype="float32")
compact = base[:12].reshape(4, 3)
rows_of_8 = base[:32].reshape(4, 8)[:, :3]


def call(array: Array, **declared: Any) -> None:
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
    call(array, strides=[te.var("s0"), te.var("s1")])
    call(np.broadcast_to(array[:1], (4, 3)), strides=[te.var("s0", "int64"), te.var("s1")])


def test_given_strides() -> None:
    call(rows_of_8, strides=[8, 1])
    with pytest.raises(ValueError, match=r"argument 0 'A': expected strides\[0\] == 8 .*, got 3"):
        call(compact, strides=[8, 1])
    step = te.var("step")
    call(rows_of_8, strides=[step, 1])
    with pytest.raises(ValueError, match=r"argument 0 'A': expected strides\[1\] == 1 .*, got 4"):
        call(np.asfortranarray(compact), strides=[step, 1])
    same = te.var("same")
    with pytest.raises(ValueError, match=r"argument 0 'A': expected strides\[1\] == 3 .*, got 1"):
        call(compact, strides=[same, same])


@pytest.mark.parametrize("alignment", [8, 64])
def test_alignment(alignment: int) -> None:
    call(aligned(alignment, plus=0), data_alignment=alignment)
    text = f"argument 0 'A': expected data aligned to {alignment} bytes, got address 0x"
    with pytest.raises(ValueError, match=text):
        call(aligned(alignment, plus=1), data_alignment=alignment)


def test_offsets_begin_at_the_first_element() -> None:
    for array in (compact, base[7:19].reshape(4, 3)):
        call(array, offset_factor=8)
        call(array, elem_offset=te.var("offset"))
        call(array, elem_offset=0)
    text = (
        "f: buffer A: expected the elem_offset of an argument to be 0 or a variable of its own, got"
    )
    with pytest.raises(CompileError, match=f"{text} 16: an array is passed from its first element"):
        call(compact, elem_offset=16)
    step = te.var("step")
    with pytest.raises(CompileError, match=f"{text} step"):
        call(compact, strides=[step, 1], elem_offset=step)


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
        call(compact, **declared)


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
