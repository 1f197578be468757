"""Reductions: along one axis and several, in pieces, with a reducer of one's own, as convolution.

A reduction axis is a loop along no dimension of the result. It can be split, reordered and unrolled
like other loops, but it can't be parallel, since all threads would write one element. `rfactor`
gives each part of the reduction an element of its own, so the loop over the parts can be parallel.

python examples/schedules/02_reductions.py
"""

from typing import Any

import numpy as np

import minitvm as tvm
from minitvm import te

rng = np.random.default_rng(0)


def show(title: str, s: te.Schedule, args: list[te.Tensor]) -> None:
    print(f"# {title}\n{tvm.lower(s, args, name='f', simple_mode=True)}\n")


# -- The sum of each row ---------------------------------------------------------------------------

n, m = te.var("n"), te.var("m")
A = te.placeholder((n, m), name="A")
k = te.reduce_axis((0, m), name="k")
B = te.compute((n,), lambda i: te.sum(A[i, k], axis=k), name="B")
a = rng.random((37, 201), dtype=np.float32)
expected = a.sum(axis=1)


def check_rows(s: te.Schedule) -> None:
    b = np.empty(len(a), dtype=np.float32)
    tvm.build(s, [A, B], name="f")(a, b)
    # Sums of m terms in another order differ by at most m roundings of their own size.
    np.testing.assert_allclose(b, expected, rtol=a.shape[1] * np.finfo(np.float32).eps)


s: Any = te.create_schedule(B.op)
show("the sum of each row: an element begins as 0, then terms are added", s, [A, B])
check_rows(s)

# Reduce axes are split like others. The full parts run first, then what is left over.
s = te.create_schedule(B.op)
ko, ki = s[B].split(B.op.reduce_axis[0], factor=16)
io, ii = s[B].split(B.op.axis[0], factor=8)
show("both axes split", s, [A, B])
check_rows(s)

# -- rfactor ---------------------------------------------------------------------------------------

# Each element is one chain of additions, each of which waits for the one before. `rfactor` makes of
# 16 interleaved parts of the row 16 partial sums, a tensor BF, and then sums those.
s = te.create_schedule(B.op)
ko, ki = s[B].split(B.op.reduce_axis[0], factor=16)
BF = s.rfactor(B, ki, factor_axis=1)
show("rfactor: partial sums, and their sum", s, [A, B])
check_rows(s)

# The partial sums are a stage with loops of its own. Here they are computed where a row needs them,
# 16 at a time as the lanes of vectors, and rows are shared among threads.
row = s[B].op.axis[0]
s[BF].compute_at(s[B], row)
parts = s[BF].op.axis[1]
(inner_reduction,) = s[BF].op.reduce_axis
s[BF].reorder(inner_reduction, parts)
s[BF].vectorize(parts)
s[B].parallel(row)
show("rfactor, scheduled: 16 sums side by side", s, [A, B])
check_rows(s)

# -- A sum over all axes ---------------------------------------------------------------------------

i, j = te.reduce_axis((0, n), name="i"), te.reduce_axis((0, m), name="j")
total = te.compute((1,), lambda _: te.sum(A[i, j], axis=[i, j]), name="total")
s = te.create_schedule(total.op)
show("the sum of a matrix", s, [A, total])
result = np.empty(1, dtype=np.float32)
tvm.build(s, [A, total])(a, result)
np.testing.assert_allclose(result[0], a.sum(dtype=np.float64), rtol=a.size * 2.0**-23)

# -- A reducer of one's own ------------------------------------------------------------------------

# A combination that is associative and commutative, and the value that it leaves as it is.
product = te.comm_reducer(lambda x, y: x * y, lambda t: te.const(1, t), name="product")
k = te.reduce_axis((0, m), name="k")
P = te.compute((n,), lambda i: product(A[i, k], axis=k), name="P")
s = te.create_schedule(P.op)
show("the product of each row", s, [A, P])
near_one = (0.99 + a / 50).astype(np.float32)
p = np.empty(len(a), dtype=np.float32)
tvm.build(s, [A, P])(near_one, p)
np.testing.assert_allclose(p, near_one.prod(axis=1), rtol=a.shape[1] * 2.0**-23)

# -- Convolution is a reduction --------------------------------------------------------------------

size = te.var("size")
image = te.placeholder((size, size), name="image")
kernel = te.placeholder((3, 3), name="kernel")
di, dj = te.reduce_axis((0, 3), name="di"), te.reduce_axis((0, 3), name="dj")
out = te.compute(
    (size - 2, size - 2),
    lambda i, j: te.sum(image[i + di, j + dj] * kernel[di, dj], axis=[di, dj]),
    name="out",
)
s = te.create_schedule(out.op)
s[out].unroll(out.op.reduce_axis[1])
show("3 x 3 convolution", s, [image, kernel, out])
x, w = rng.random((11, 11), dtype=np.float32), rng.random((3, 3), dtype=np.float32)
y = np.empty((9, 9), dtype=np.float32)
tvm.build(s, [image, kernel, out])(x, w, y)
windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3))
np.testing.assert_allclose(y, (windows * w).sum(axis=(2, 3)), rtol=9 * 2.0**-23)
print("all reductions: equal to numpy's")
