"""Operations with several results: elementwise pairs, and reductions of pairs such as argmax.

The results of one operation are computed in one loop nest and share its schedule.

python examples/schedules/04_tuple_inputs.py
"""

from typing import Any

import numpy as np

import minitvm as tvm
from minitvm import te

rng = np.random.default_rng(0)


def show(title: str, s: te.Schedule, args: list[te.Tensor]) -> None:
    print(f"# {title}\n{tvm.lower(s, args, name='f', simple_mode=True)}\n")


# -- Two results, elementwise ----------------------------------------------------------------------

m, n = te.var("m"), te.var("n")
A, B = te.placeholder((m, n), name="A"), te.placeholder((m, n), name="B")
total, difference = te.compute(
    (m, n), lambda i, j: (A[i, j] + B[i, j], A[i, j] - B[i, j]), name="both"
)

# Both tensors have the same operation; s[total] and s[difference] are the same stage.
s: Any = te.create_schedule(total.op)
assert s[total] is s[difference]
outer, inner = s[total].split(total.op.axis[1], factor=8)
s[total].vectorize(inner)
show("sum and difference in one loop nest", s, [A, B, total, difference])

a, b = rng.random((2, 5, 21), dtype=np.float32)
got_total, got_difference = np.empty_like(a), np.empty_like(a)
tvm.build(s, [A, B, total, difference])(a, b, got_total, got_difference)
np.testing.assert_array_equal(got_total, a + b)
np.testing.assert_array_equal(got_difference, a - b)

# -- argmax ----------------------------------------------------------------------------------------


def better(left: Any, right: Any) -> Any:
    """Of two pairs (position, value): the greater value, and of equal ones the first position.

    The tie has to be decided: a reducer's order isn't promised, and rfactor will change it.
    """
    first = te.any(left[1] > right[1], te.all(left[1] == right[1], left[0] < right[0]))
    return tvm.Select(first, left[0], right[0]), tvm.Select(first, left[1], right[1])


def none_yet(index_dtype: Any, value_dtype: Any) -> Any:
    """What any pair is better than."""
    return te.max_value(index_dtype), -te.infinity(value_dtype)


argmax = te.comm_reducer(better, none_yet, name="argmax")
k = te.reduce_axis((0, n), name="k")
position, value = te.compute((m,), lambda i: argmax((k, A[i, k]), axis=k), name="best")
values = rng.integers(0, 9, (5, 100)).astype(np.float32)  # few different ones: ties


def check_argmax(s: te.Schedule) -> None:
    got_position, got_value = np.empty(5, dtype=np.int32), np.empty(5, dtype=np.float32)
    tvm.build(s, [A, position, value])(values, got_position, got_value)
    np.testing.assert_array_equal(got_position, values.argmax(axis=1))
    np.testing.assert_array_equal(got_value, values.max(axis=1))


s = te.create_schedule(position.op)
show("argmax of each row", s, [A, position, value])
check_argmax(s)

# rfactor returns as many partial results as there are results: here the best of each of 8
# interleaved parts of the row, computed side by side, and then the best of those.
s = te.create_schedule(position.op)
ko, ki = s[position].split(position.op.reduce_axis[0], factor=8)
part_position, part_value = s.rfactor(position, ki, factor_axis=1)
parts, rest = s[part_position].op.axis[1], s[part_position].op.reduce_axis[0]
s[part_position].reorder(rest, parts)
s[part_position].vectorize(parts)
s[part_position].compute_at(s[position], s[position].op.axis[0])
show("argmax of 8 parts, and of their results", s, [A, position, value])
check_argmax(s)

# -- Further stages on each result -----------------------------------------------------------------

# Others read the results one by one, and the operation is placed as a whole.
scaled = te.compute((m, n), lambda i, j: total[i, j] * 0.5, name="scaled")
squared = te.compute((m, n), lambda i, j: scaled[i, j] + difference[i, j] ** 2, name="squared")
s = te.create_schedule(squared.op)
s[scaled].compute_inline()
s[total].compute_at(s[squared], squared.op.axis[0])
show("a pair computed row by row where it is read", s, [A, B, squared])
got = np.empty_like(a)
tvm.build(s, [A, B, squared])(a, b, got)
np.testing.assert_allclose(got, (a + b) * 0.5 + (a - b) ** 2, rtol=1e-6)
print("all pairs: equal to numpy's")
