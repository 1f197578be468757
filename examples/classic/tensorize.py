"""A hardware instruction in the place of loops: declared by what it computes and how.

The instruction of this exercise takes a vector and 8 rows of a matrix. Its statement is written
with the loop builder, so that it needs no compiler; `tvm.contrib.clang.create_llvm` makes LLVM IR
of C where Clang is installed, for the pragma `import_llvm`.

python examples/classic/tensorize.py
"""

# Classic programs are not typed: constructors convert numbers and lists.
# mypy: disable-error-code="arg-type"

from typing import Any

import numpy as np

import minitvm as tvm
import minitvm.testing
from minitvm import te, tir

N, M, L, ROWS, STEP = 6, 24, 32, 8, 16
A, B = te.placeholder((N, L), name="A"), te.placeholder((M, L), name="B")
k = te.reduce_axis((0, L), name="k")
C = te.compute((N, M), lambda i, j: te.sum(A[i, k] * B[j, k], axis=k), name="C")


def gemv(rows: int, length: int) -> Any:
    """``c[i] = sum(a[k] * b[i, k])`` as an intrinsic: at once, or reset and then updated."""
    a = te.placeholder((length,), name="a")
    b = te.placeholder((rows, length), name="b")
    k = te.reduce_axis((0, length), name="k")
    c = te.compute((rows,), lambda i: te.sum(a[k] * b[i, k], axis=k), name="c")
    Ab = tir.decl_buffer(a.shape, a.dtype, name="A", offset_factor=1, strides=[1])
    Bb = tir.decl_buffer(b.shape, b.dtype, name="B", offset_factor=1, strides=[te.var("s"), 1])
    Cb = tir.decl_buffer(c.shape, c.dtype, name="C", offset_factor=1, strides=[1])

    def statements(ins: Any, outs: Any) -> Any:
        x, matrix = ins
        (result,) = outs

        def reset() -> Any:
            ib = tir.ir_builder.create()
            with ib.for_range(0, rows, name="r") as r:
                ib.emit(result.vstore(r, tir.const(0.0)))
            return ib.get()

        def update() -> Any:
            ib = tir.ir_builder.create()
            with ib.for_range(0, rows, name="r") as r, ib.for_range(0, length, name="l") as j:
                ib.emit(result.vstore(r, result.vload(r) + x.vload(j) * matrix.vload((r, j))))
            return ib.get()

        return tir.SeqStmt([reset(), update()]), reset(), update()

    return te.decl_tensor_intrin(c.op, statements, binds={a: Ab, b: Bb, c: Cb})


rng = np.random.default_rng(0)
a, b = rng.random((N, L), dtype="float32"), rng.random((M, L), dtype="float32")


def check(s: te.Schedule) -> None:
    """Prints the loops around the intrinsic, and compares the result."""
    print(tvm.lower(s, [A, B, C], simple_mode=True))
    c = tvm.nd.array(np.zeros((N, M), "float32"))
    tvm.build(s, [A, B, C], target="llvm", name="gemv", auto_schedule=False)(a, b, c)
    tvm.testing.assert_allclose(c.numpy(), a @ b.T, rtol=1e-5)


# Over the whole of k: the statement computes the sums.
s = te.create_schedule(C.op)
outer, inner = s[C].split(C.op.axis[1], factor=ROWS)
s[C].reorder(C.op.axis[0], outer, inner, C.op.reduce_axis[0])
s[C].tensorize(inner, gemv(ROWS, L))
check(s)

# Over a part of k: the sums are reset before the loop over the parts, and updated in it.
s = te.create_schedule(C.op)
outer, inner = s[C].split(C.op.axis[1], factor=ROWS)
ko, ki = s[C].split(C.op.reduce_axis[0], factor=STEP)
s[C].reorder(C.op.axis[0], outer, ko, inner, ki)
s[C].tensorize(inner, gemv(ROWS, STEP))
check(s)
