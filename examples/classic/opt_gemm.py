"""Matrix multiplication, optimised by hand: what each step gains over the one before, and what all
of them lose to an untouched schedule.

The classic story begins with plain loops, blocks them, and ends two hundred times faster. Here the
bare expression is fast: `build` schedules untouched programs. After the first primitive by hand,
all further steps must be done by hand as well.

python examples/classic/opt_gemm.py [size]
"""

# Classic programs are not typed: the operation of a stage may be any.
# mypy: disable-error-code="attr-defined"

import sys
from typing import Any

import numpy as np

import minitvm as tvm
import minitvm.testing
from minitvm import te

N = int(sys.argv[1]) if len(sys.argv) > 1 else 128
BLOCK, STEP = 32, 4

rng = np.random.default_rng(0)
a, b = (tvm.nd.array(rng.random((N, N), dtype="float32")) for _ in range(2))
expected = a.numpy() @ b.numpy()

A = te.placeholder((N, N), name="A")
B = te.placeholder((N, N), name="B")
k = te.reduce_axis((0, N), "k")
C = te.compute((N, N), lambda m, n: te.sum(A[m, k] * B[k, n], axis=k), name="C")
bare = 0.0


def measured(title: str, schedule: te.Schedule, result: te.Tensor, **options: Any) -> float:
    """Builds, checks, and prints the time of a call, also in times of the bare expression's."""
    f = tvm.build(schedule, [A, B, result], target="llvm", name="mmult", **options)
    c = tvm.nd.empty((N, N))
    f(a, b, c)
    tvm.testing.assert_allclose(c.numpy(), expected, rtol=1e-4)
    seconds = min(f.time_evaluator(f.entry_name, tvm.cpu(0), number=3, repeat=3)(a, b, c).results)
    share = f"{seconds / bare:8.1f} x" if bare else ""
    print(f"{title:<34}{seconds * 1e6:10.1f} us{share}")
    return seconds


def blocked(*order: str) -> te.Schedule:
    """Blocks of 32 x 32 and steps of 4, with the loops inside of a block in some order."""
    s = te.create_schedule(C.op)
    mo, no, mi, ni = s[C].tile(C.op.axis[0], C.op.axis[1], BLOCK, BLOCK)
    ko, ki = s[C].split(s[C].op.reduce_axis[0], factor=STEP)
    loops = {"ki": ki, "mi": mi, "ni": ni}
    s[C].reorder(mo, no, ko, *(loops[name] for name in order))
    return s


def innermost(schedule: te.Schedule) -> te.Schedule:
    """The schedule with vectors in its innermost loop."""
    schedule[C].vectorize(schedule[C].leaf_iter_vars[-1])
    return schedule


bare = measured("the bare expression", te.create_schedule(C.op), C)
print("\nby hand:")
measured("plain loops", te.create_schedule(C.op), C, auto_schedule=False)
measured("blocks", blocked("ki", "mi", "ni"), C, auto_schedule=False)
measured("vectors", innermost(blocked("ki", "mi", "ni")), C)
measured("loops in another order", innermost(blocked("mi", "ki", "ni")), C)

# Rows of a block of B lie one behind the other, when the block is packed first.
packed = te.compute((N / BLOCK, N, BLOCK), lambda o, k, i: B[k, o * BLOCK + i], name="packed")
D = te.compute(
    (N, N),
    lambda m, n: te.sum(A[m, k] * packed[n // BLOCK, k, tvm.tir.indexmod(n, BLOCK)], axis=k),
    name="D",
)
s = te.create_schedule(D.op)
block = s.cache_write(D, "global")
mo, no, mi, ni = s[D].tile(D.op.axis[0], D.op.axis[1], BLOCK, BLOCK)
s[block].compute_at(s[D], no)
mc, nc = s[block].op.axis
ko, ki = s[block].split(s[block].op.reduce_axis[0], factor=STEP)
s[block].reorder(ko, mc, ki, nc)
s[block].vectorize(nc)
s[block].unroll(ki)
s[D].vectorize(ni)
s[packed].vectorize(s[packed].op.axis[2])
measured("packed, with a cache for the block", s, D)
s[D].parallel(mo)
measured("on all cores", s, D)
