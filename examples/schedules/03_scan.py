"""Scans: recurrences along time, each step of which reads the steps before it.

A scan ties three things together: the first step, the update that computes step t from earlier
ones, and a placeholder that stands for the result while the update is written down.

python examples/schedules/03_scan.py
"""

import numpy as np

import minitvm as tvm
from minitvm import te

m, n = te.var("m"), te.var("n")  # steps, and the size of the state
rng = np.random.default_rng(0)
x = rng.standard_normal((6, 13), dtype=np.float32)


def show(title: str, s: te.Schedule, args: list[te.Tensor]) -> None:
    print(f"# {title}\n{tvm.lower(s, args, name='f', simple_mode=True)}\n")


# -- Cumulative sum --------------------------------------------------------------------------------

X = te.placeholder((m, n), name="X")
state = te.placeholder((m, n), name="state")
first = te.compute((1, n), lambda _, i: X[0, i], name="first")
update = te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i], name="update")
cumsum = te.scan(first, update, state, inputs=[X], name="cumsum")

# The first step and the update write straight into the result; the time loop stands around the
# update. It is serial: what may be vectorized or parallel are the axes of the update.
s = te.create_schedule(cumsum.op)
show("cumulative sum", s, [X, cumsum])
s[first].vectorize(s[first].split(first.op.axis[1], factor=4)[1])
s[update].vectorize(s[update].split(update.op.axis[1], factor=4)[1])
show("cumulative sum, vectors of 4", s, [X, cumsum])
out = np.empty_like(x)
tvm.build(s, [X, cumsum])(x, out)
np.testing.assert_allclose(out, x.cumsum(axis=0), rtol=1e-5, atol=1e-6)

# -- A cell of several stages ----------------------------------------------------------------------

# A step may need intermediate results: stages of their own, which are computed anew at each step.
# Here: the states move halfway towards their own mean, and are then driven by the input.
k = te.reduce_axis((0, n), name="k")
state = te.placeholder((m, n), name="state")
start = te.compute((1, n), lambda _, i: X[0, i], name="start")
total = te.compute((m,), lambda t: te.sum(state[t - 1, k], axis=k), name="total")
drawn = te.compute(
    (m, n),
    lambda t, i: state[t - 1, i] * 0.5 + total[t] * 0.5 / te.cast("float32", n),
    name="drawn",
)
step = te.compute((m, n), lambda t, i: drawn[t, i] + X[t, i], name="step")
cell = te.scan(start, step, state, inputs=[X], name="cell")

# `total` is computed once a step. `drawn` is scheduled like any stage: inlined, or at a loop.
s = te.create_schedule(cell.op)
show("a cell of several stages, as it is", s, [X, cell])
outer, inner = s[step].split(step.op.axis[1], factor=4)
s[drawn].compute_at(s[step], outer)
show("the same, with a stage computed in pieces", s, [X, cell])
tvm.build(s, [X, cell])(x, out)

wanted = x.copy()
for t in range(1, len(x)):
    wanted[t] = wanted[t - 1] * 0.5 + wanted[t - 1].mean() * 0.5 + x[t]
np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)

# -- Several states --------------------------------------------------------------------------------

# States that go along together, here a position and a velocity, are lists; all their updates see
# the states of earlier steps.
force = te.placeholder((m, n), name="force")
position, velocity = (te.placeholder((m, n), name=name) for name in ("position", "velocity"))
rest = [te.compute((1, n), lambda _, i: te.const(0.0), name=name) for name in ("p0", "v0")]
moved = te.compute((m, n), lambda t, i: position[t - 1, i] + velocity[t - 1, i] * 0.1, name="moved")
pushed = te.compute(
    (m, n),
    lambda t, i: velocity[t - 1, i] + (force[t, i] - position[t - 1, i]) * 0.1,
    name="pushed",
)
path, speed = te.scan(rest, [moved, pushed], [position, velocity], inputs=[force], name="spring")

s = te.create_schedule(path.op)
show("two states", s, [force, path, speed])
p, v = np.empty_like(x), np.empty_like(x)
tvm.build(s, [force, path, speed])(x, p, v)

wanted_p, wanted_v = np.zeros_like(x), np.zeros_like(x)
for t in range(1, len(x)):
    wanted_p[t] = wanted_p[t - 1] + wanted_v[t - 1] * np.float32(0.1)
    wanted_v[t] = wanted_v[t - 1] + (x[t] - wanted_p[t - 1]) * np.float32(0.1)
np.testing.assert_allclose(p, wanted_p, rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(v, wanted_v, rtol=1e-5, atol=1e-6)
print("all scans: equal to the loops in numpy")
