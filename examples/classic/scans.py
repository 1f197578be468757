"""Recurrences over an axis of time: one state, a step of two stages, two states.

python examples/classic/scans.py
"""

import numpy as np

import minitvm as tvm
import minitvm.testing
from minitvm import te

m, n, w = te.var("m"), te.var("n"), te.var("w")
X = te.placeholder((m, n), name="X")
x = np.random.default_rng(0).random((6, 40), dtype="float32")

# The greatest value so far.
state = te.placeholder((m, n), name="state")
first = te.compute((1, n), lambda _, i: X[0, i], name="first")
update = te.compute((m, n), lambda t, i: te.max(state[t - 1, i], X[t, i]), name="update")
peak = te.scan(first, update, state, inputs=[X])
s = te.create_schedule(peak.op)
outer, inner = s[update].split(update.op.axis[1], factor=8)
s[update].vectorize(inner)
print(tvm.lower(s, [X, peak], simple_mode=True))
result = tvm.nd.empty(x.shape)
tvm.build(s, [X, peak], name="peak", auto_schedule=False)(x, result)
tvm.testing.assert_allclose(result.numpy(), np.maximum.accumulate(x, axis=0))

# A step of two stages: a moving average, by the half of what was and the half of what comes.
half = te.compute((m, n), lambda t, i: state[t - 1, i] * 0.5, name="half")
moved = te.compute((m, n), lambda t, i: half[t, i] + X[t, i] * 0.5, name="moved")
average = te.scan(first, moved, state, inputs=[X])
s = te.create_schedule(average.op)
outer, inner = s[moved].split(moved.op.axis[1], factor=32)
s[half].compute_at(s[moved], outer)
print(tvm.lower(s, [X, average], simple_mode=True))
tvm.build(s, [X, average], auto_schedule=False)(x, result)
expected = x.copy()
for t in range(1, len(x)):
    expected[t] = expected[t - 1] * 0.5 + x[t] * 0.5
tvm.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)

# Two states of different widths: running sums, and how often the first of them was seen.
sums = te.placeholder((m, n), name="sums")
seen = te.placeholder((m, w), name="seen")
first_seen = te.compute((1, w), lambda _, i: 0.0, name="first_seen")
add = te.compute((m, n), lambda t, i: sums[t - 1, i] + X[t, i], name="add")
look = te.compute((m, w), lambda t, i: seen[t - 1, i] + sums[t - 1, 0], name="look")
total, looked = te.scan([first, first_seen], [add, look], [sums, seen], inputs=[X])
f = tvm.build(te.create_schedule(total.op), [X, total, looked])
total_result, looked_result = tvm.nd.empty((6, 40)), tvm.nd.empty((6, 3))
f(x, total_result, looked_result)
running = np.cumsum(x, axis=0)
tvm.testing.assert_allclose(total_result.numpy(), running, rtol=1e-5)
tvm.testing.assert_allclose(looked_result.numpy()[-1], [running[:-1, 0].sum()] * 3, rtol=1e-5)
print("peak, average, sums: equal to numpy's")
