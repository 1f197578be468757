"""Compiled code that calls Python: a registered function, and an exception on its way back.

python examples/python_callback.py
"""

from typing import Any

import numpy as np

import minitvm as tvm
from minitvm import te, tir

seen: list[int] = []


@tvm.register_func("example.sort_row")
def sort_row(row: int, source: tvm.NDArray, target: tvm.NDArray) -> None:
    """Sorts one row; the arrays are the compiled function's own memory, for as long as the call."""
    values = source.numpy()[row]
    if np.isnan(values).any():
        raise ValueError(f"row {row}: expected numbers to sort, found NaN")
    seen.append(row)
    target[row] = np.sort(values)


def sort_rows(ins: Any, outs: Any) -> Any:
    """A loop around the call. What Python returns counts as an int32, and None as 0."""
    ib = tir.ir_builder.create()
    with ib.for_range(0, ROWS, name="row") as row:
        ib.emit(tvm.call_packed("example.sort_row", row, ins[0], outs[0]))
    return ib.get()


ROWS, COLUMNS = 3, 5
A = te.placeholder((ROWS, COLUMNS), name="A")
doubled = te.compute((ROWS, COLUMNS), lambda i, j: A[i, j] * 2.0, name="doubled")
S = te.extern((ROWS, COLUMNS), [doubled], sort_rows, name="S")
f = tvm.build(te.create_schedule(S.op), [A, S], name="sort_doubled")

a = np.random.default_rng(0).random((ROWS, COLUMNS), dtype=np.float32)
result = np.empty_like(a)
f(a, result)
np.testing.assert_array_equal(result, np.sort(a * 2, axis=1))
print(f"compiled code called Python for rows {seen}")

a[1, 2] = np.nan
seen.clear()
try:
    f(a, result)
except ValueError as error:
    message = str(error)
else:
    raise AssertionError("expected the callback's ValueError")
assert message == "row 1: expected numbers to sort, found NaN", message
assert seen == [0], seen  # row 2 was never asked for
print(f"the callback's exception came out of the call: ValueError: {message}")

tvm.remove_global_func("example.sort_row")
