"""Tensor intrinsics: a statement of one's own in the place of a computation that it does.

An intrinsic says what it computes, as an expression, and how, as a statement. `tensorize` puts the
statement where a schedule has loops that compute the same, which is checked: so it can stand for an
instruction, a library routine or hand-written code that a compiler wouldn't find.

python examples/schedules/05_tensorize.py
"""

from typing import Any

import numpy as np

import minitvm as tvm
from minitvm import te, tir

N, M, DEPTH = 6, 24, 64
A, B = te.placeholder((N, DEPTH), name="A"), te.placeholder((M, DEPTH), name="B")
k = te.reduce_axis((0, DEPTH), name="k")
C = te.compute((N, M), lambda i, j: te.sum(A[i, k] * B[j, k], axis=k), name="C")
a, b = (np.random.default_rng(0).random((rows, DEPTH), dtype=np.float32) for rows in (N, M))


def show(title: str, s: te.Schedule) -> None:
    """Prints the loops of a schedule, runs them, and compares with numpy."""
    print(f"# {title}\n{tvm.lower(s, [A, B, C], name='f', simple_mode=True)}\n")
    c = np.full((N, M), np.nan, dtype=np.float32)
    tvm.build(s, [A, B, C], name="f")(a, b, c)
    np.testing.assert_allclose(c, a @ b.T, rtol=DEPTH * 2.0**-23)


def declared(rows: int, depth: int, fcompute: Any) -> Any:
    """An intrinsic for `rows` rows of a matrix times a vector.

    Each operand has a buffer, which says what memory the statement can work on: rows of the matrix
    may lie any distance apart, and all may begin anywhere.
    """
    w, x = te.placeholder((rows, depth), name="w"), te.placeholder((depth,), name="x")
    k = te.reduce_axis((0, depth), name="k")
    z = te.compute((rows,), lambda i: te.sum(w[i, k] * x[k], axis=k), name="z")
    any_distance = [te.var("distance"), 1]
    binds = {
        w: tir.decl_buffer(w.shape, w.dtype, name="w", strides=any_distance, offset_factor=1),
        x: tir.decl_buffer(x.shape, x.dtype, name="x", offset_factor=1),
        z: tir.decl_buffer(z.shape, z.dtype, name="z", offset_factor=1),
    }
    return te.decl_tensor_intrin(z.op, fcompute, name=f"gemv_{rows}x{depth}", binds=binds)


# -- A statement of loops and vectors --------------------------------------------------------------


def row_sums(ins: Any, outs: Any, added: bool = False) -> Any:
    """``outs[0][r] = ins[0][r, :] . ins[1]``, or added to it, a vector of products at a time."""
    ib = tir.ir_builder.create()
    (matrix, vector), (result,) = ins, outs
    rows, depth = map(int, matrix.shape)
    with ib.for_range(0, rows, name="r", kind="unroll") as r:
        products = matrix.vload((r, 0), f"float32x{depth}") * vector.vload(0, f"float32x{depth}")
        name = f"llvm.vector.reduce.fadd.v{depth}f32"
        total = tir.call_llvm_pure_intrin("float32", name, te.const(-0.0), products)
        ib.emit(result.vstore(r, result.vload(r) + total if added else total))
    return ib.get()


# 8 rows of B times a row of A: the loops over 8 rows and all of k are replaced.
whole = declared(8, DEPTH, row_sums)
s = te.create_schedule(C.op)
i, j = C.op.axis
j_outer, j_inner = s[C].split(j, factor=8)
s[C].tensorize(j_inner, whole)
show("8 rows at a time", s)

# -- A reduction in pieces -------------------------------------------------------------------------

# Where a loop of the reduction stays outside, the intrinsic has to say how a reduction begins and
# how a piece is added: three statements, for a reduction in one piece, the beginning, and a piece.


def in_pieces(ins: Any, outs: Any) -> Any:
    reset = outs[0].vstore(0, te.const(0.0, "float32x8"))
    return row_sums(ins, outs), reset, row_sums(ins, outs, added=True)


s = te.create_schedule(C.op)
j_outer, j_inner = s[C].split(j, factor=8)
k_outer, k_inner = s[C].split(k, factor=16)
s[C].reorder(i, j_outer, k_outer, j_inner, k_inner)
s[C].tensorize(j_inner, declared(8, 16, in_pieces))
show("16 steps of the sum at a time", s)

# -- A routine from elsewhere ----------------------------------------------------------------------


@tvm.register_func("tutorial.gemv")
def gemv(matrix: tvm.NDArray, vector: tvm.NDArray, result: tvm.NDArray) -> None:
    np.matmul(np.from_dlpack(matrix), np.from_dlpack(vector), out=np.from_dlpack(result))


by_numpy = declared(
    M, DEPTH, lambda ins, outs: tir.call_packed("tutorial.gemv", ins[0], ins[1], outs[0])
)
s = te.create_schedule(C.op)
s[C].tensorize(j, by_numpy)
show("numpy does a row of C", s)
tvm.remove_global_func("tutorial.gemv")

# -- What doesn't fit is an error ------------------------------------------------------------------

s = te.create_schedule(C.op)
j_outer, j_inner = s[C].split(j, factor=4)
s[C].tensorize(j_inner, whole)
try:
    tvm.lower(s, [A, B, C])
except tvm.CompileError as error:
    print("CompileError:", error)
else:
    raise AssertionError("expected an error: 4 rows are no 8 rows")
print("all intrinsics: equal to a @ b.T")
