"""The primitives that shape loops: one computation, run in a dozen ways, with the same result.

A *computation* says what each element is. A *schedule* says in which order elements are computed,
which of them are kept, and how a loop runs. No primitive can change a result, so every one below
is followed by the same check.

python examples/schedules/01_primitives.py
"""

import numpy as np

import minitvm as tvm
from minitvm import te

ROWS, COLUMNS = 10, 24
A = te.placeholder((ROWS, COLUMNS), name="A")
B = te.compute((ROWS, COLUMNS), lambda i, j: A[i, j] * 2.0, name="B")
C = te.compute((ROWS, COLUMNS), lambda i, j: B[i, j] + 1.0, name="C")
i, j = C.op.axis

a = np.random.default_rng(0).random((ROWS, COLUMNS), dtype=np.float32)


def show(title: str, s: te.Schedule) -> None:
    """Prints the loops of a schedule, runs them, and compares with numpy."""
    print(f"# {title}\n{tvm.lower(s, [A, C], name='f', simple_mode=True)}\n")
    c = np.empty_like(a)
    tvm.build(s, [A, C], name="f")(a, c)
    np.testing.assert_array_equal(c, a * 2 + 1)


# -- Where a stage is computed ---------------------------------------------------------------------

# Without a decision, each stage is a loop nest of its own: all of B, kept in memory, then all of C.
s = te.create_schedule(C.op)
show("as it is: each stage as a whole", s)

# compute_inline puts the expression of B where B is read. Nothing of B is kept.
s = te.create_schedule(C.op)
s[B].compute_inline()
show("compute_inline", s)

# compute_at computes, in each iteration of a loop of C, what that iteration reads: here a row. The
# memory shrinks to the row, which is found by itself. compute_root takes it back.
s = te.create_schedule(C.op)
s[B].compute_at(s[C], i)
show("compute_at: a row of B in each row of C", s)
s[B].compute_root()
show("compute_root: as it was", s)

# -- Which loops there are -------------------------------------------------------------------------

# split makes two loops of one. `factor` is the extent of the inner loop; `nparts` of the outer.
s = te.create_schedule(C.op)
s[B].compute_inline()
outer, inner = s[C].split(j, factor=8)
show("split(j, factor=8): 3 times 8", s)

s = te.create_schedule(C.op)
s[B].compute_inline()
outer, inner = s[C].split(j, nparts=8)
show("split(j, nparts=8): 8 times 3", s)

# Where the factor doesn't divide the extent, a condition guards the body: 10 rows are 2 times 4,
# with 2 left over. Lowering then takes the condition out of the loops again: the full parts run
# without one, and the rest is a loop of its own.
s = te.create_schedule(C.op)
s[B].compute_inline()
outer, inner = s[C].split(i, factor=4)
show("split(i, factor=4): the last part is smaller", s)

# reorder puts loops in another order; tile is two splits and a reorder.
s = te.create_schedule(C.op)
s[B].compute_inline()
s[C].reorder(j, i)
show("reorder(j, i): by columns", s)

s = te.create_schedule(C.op)
i_outer, j_outer, i_inner, j_inner = s[C].tile(i, j, x_factor=5, y_factor=8)
s[B].compute_at(s[C], j_outer)
show("tile: blocks of 5 x 8, and a block of B at a time", s)

# fuse makes one loop of two neighbours. Together with split, work can be cut into any shape.
s = te.create_schedule(C.op)
s[B].compute_inline()
fused = s[C].fuse(i, j)
show("fuse(i, j)", s)

# -- How a loop runs -------------------------------------------------------------------------------

# vectorize: the iterations are lanes of vectors. unroll: they are written out one after the other.
# parallel: threads share them (a loop as small as this one stays on the calling thread).
s = te.create_schedule(C.op)
s[B].compute_inline()
outer, inner = s[C].split(j, factor=8)
s[C].vectorize(inner)
s[C].unroll(outer)
s[C].parallel(i)
show("parallel, unrolled and vectorized loops", s)

# bind gives a loop to the threads of a device. A CPU has none, so this lowers, and doesn't build.
s = te.create_schedule(C.op)
s[B].compute_inline()
outer, inner = s[C].split(s[C].fuse(i, j), factor=64)
s[C].bind(outer, te.thread_axis("blockIdx.x"))
s[C].bind(inner, te.thread_axis("threadIdx.x"))
print(f"# bind, for a GPU\n{tvm.lower(s, [A, C], name='f', simple_mode=True)}\n")
try:
    tvm.build(s, [A, C], name="f")
except tvm.CompileError as error:
    print("CompileError:", error)
else:
    raise AssertionError("expected an error: a CPU has no thread axes")

print("all schedules: equal to a * 2 + 1")
