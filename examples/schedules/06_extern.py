"""Stages that aren't expressions: a call to Python, or loops written by hand, among scheduled ones.

`te.extern` makes a tensor from a statement. To the schedule it is a stage that reads and writes
whole tensors, so it has no loops to split, and the tensors that it reads can't be inlined into it.

python examples/schedules/06_extern.py
"""

from typing import Any

import numpy as np

import minitvm as tvm
from minitvm import te, tir

rng = np.random.default_rng(0)
a, b = rng.random((19, 23), dtype=np.float32), rng.random((23, 31), dtype=np.float32)

# -- A library routine: numpy ----------------------------------------------------------------------

calls: list[tuple[int, ...]] = []


@tvm.register_func("tutorial.matmul")
def matmul(x: tvm.NDArray, y: tvm.NDArray, out: tvm.NDArray) -> None:
    """Works on the compiled function's own memory: views by DLPack, where x.numpy() would copy."""
    np.matmul(np.from_dlpack(x), np.from_dlpack(y), out=np.from_dlpack(out))
    calls.append(out.shape)


n, m, depth = te.var("n"), te.var("m"), te.var("depth")
A = te.placeholder((n, depth), name="A")
B = te.placeholder((depth, m), name="B")
scaled = te.compute((n, depth), lambda i, j: A[i, j] * 0.5, name="scaled")
product = te.extern(
    (n, m),
    [scaled, B],
    lambda ins, outs: tir.call_packed("tutorial.matmul", ins[0], ins[1], outs[0]),
    name="product",
)
shifted = te.compute((n, m), lambda i, j: product[i, j] + 1.0, name="shifted")

# The stages around it are scheduled as any other.
s = te.create_schedule(shifted.op)
for stage in (scaled, shifted):
    outer, inner = s[stage].split(stage.op.axis[1], factor=8)
    s[stage].vectorize(inner)
    s[stage].parallel(stage.op.axis[0])
print(f"# numpy's matmul in the middle\n{tvm.lower(s, [A, B, shifted], simple_mode=True)}\n")

result = np.empty((19, 31), dtype=np.float32)
tvm.build(s, [A, B, shifted])(a, b, result)
np.testing.assert_allclose(result, (a * np.float32(0.5)) @ b + 1, rtol=1e-5)
assert calls == [(19, 31)]

# -- Loops by hand ---------------------------------------------------------------------------------


def sorted_rows(ins: Any, outs: Any) -> Any:
    """Insertion sort: a loop that ends when the data says so, which no expression has."""
    ib = tir.ir_builder.create()
    source, target = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
    with (
        ib.for_range(0, n, name="row", kind="parallel") as row,
        ib.for_range(0, m, name="count") as count,
    ):
        place = ib.allocate("int32", (1,), name="place")
        place[0] = count
        value = ib.let("value", source[row, count])
        goes_on = te.if_then_else(place[0] > 0, target[row, te.max(place[0] - 1, 0)] > value, False)
        with ib.while_loop(goes_on):
            target[row, place[0]] = target[row, place[0] - 1]
            place[0] = place[0] - 1
        target[row, place[0]] = value
    return ib.get()


S = te.placeholder((n, m), name="S")
ordered = te.extern((n, m), [S], sorted_rows, name="ordered")
k = te.reduce_axis((0, 3), name="k")
# Sums of three neighbours in the ordered rows: a stage that reads what the loops wrote.
smooth = te.compute((n, m - 2), lambda i, j: te.sum(ordered[i, j + k], axis=k), name="smooth")
s = te.create_schedule(smooth.op)
s[smooth].unroll(smooth.op.reduce_axis[0])
print(f"# insertion sort, then a sum\n{tvm.lower(s, [S, smooth], simple_mode=True)}\n")

result = np.empty((19, 21), dtype=np.float32)
tvm.build(s, [S, smooth])(a, result)
rows = np.sort(a, axis=1)
np.testing.assert_allclose(result, rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:], rtol=1e-6)

# -- Several results -------------------------------------------------------------------------------


def extremes(ins: Any, outs: Any) -> Any:
    ib = tir.ir_builder.create()
    source, least, greatest = (ib.buffer_ptr(each) for each in (*ins, *outs))
    with ib.for_range(0, n, name="i") as i:
        least[i], greatest[i] = te.infinity("float32"), -te.infinity("float32")
        with ib.for_range(0, m, name="j") as j:
            least[i] = te.min(least[i], source[i, j])
            greatest[i] = te.max(greatest[i], source[i, j])
    return ib.get()


low, high = te.extern([(n,), (n,)], [S], extremes, name="extremes")
spread = te.compute((n,), lambda i: high[i] - low[i], name="spread")
widths = np.empty(19, dtype=np.float32)
tvm.build(te.create_schedule(spread.op), [S, spread])(a, widths)
np.testing.assert_allclose(widths, np.ptp(a, axis=1), rtol=1e-6)

tvm.remove_global_func("tutorial.matmul")
print("all externs: equal to numpy's")
