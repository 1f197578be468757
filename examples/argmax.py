"""argmax with a reducer of one's own: a tuple of position and value, reduced together.

Of equal values the first counts, and a NaN counts as the greatest of all, as in numpy.

python examples/argmax.py
"""

from typing import Any

import numpy as np

import minitvm as tvm
from minitvm import te


def first_greatest(left: Any, right: Any) -> Any:
    """Of two pairs (position, value) the one that stays."""
    left_index, left_value = left
    right_index, right_value = right
    left_nan, right_nan = te.isnan(left_value), te.isnan(right_value)
    tie = te.any(left_value == right_value, te.all(left_nan, right_nan))
    keep_left = te.any(
        left_value > right_value,  # never true of a NaN
        te.all(left_nan, tvm.tir.Not(right_nan)),
        # On a tie, the smaller position: so the order of combination makes no difference.
        te.all(tie, left_index < right_index),
    )
    return (
        tvm.Select(keep_left, left_index, right_index),
        tvm.Select(keep_left, left_value, right_value),
    )


def nothing_yet(index_dtype: Any, value_dtype: Any) -> Any:
    """What combining with changes nothing: no value is below it, no position behind it."""
    return te.max_value(index_dtype), -te.infinity(value_dtype)


rows, columns = te.var("rows"), te.var("columns")
A = te.placeholder((rows, columns), name="A")
k = te.reduce_axis((0, columns), name="k")
argmax = te.comm_reducer(first_greatest, nothing_yet, name="argmax")
position, greatest = te.compute((rows,), lambda i: argmax((k, A[i, k]), axis=k), name="argmax")
f = tvm.build(te.create_schedule(position.op), [A, position, greatest], name="argmax")

rng = np.random.default_rng(0)
a = rng.integers(0, 5, (7, 40)).astype("float32")  # few values: many ties
a[1, [20, 30]] = np.nan
a[2] = -np.inf
index = np.empty(7, dtype="int32")
value = np.empty(7, dtype="float32")
f(a, index, value)
np.testing.assert_array_equal(index, a.argmax(axis=1))
np.testing.assert_array_equal(value, a.max(axis=1))
print("positions:", index)
print("values:   ", value)
print("equal to numpy's: the first of equal values, NaN above all")
