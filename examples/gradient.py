"""A small network, trained with gradients by te.gradient: which points lie inside of a ring?

python examples/gradient.py
"""

import numpy as np

import minitvm as tvm
from minitvm import te

POINTS, HIDDEN = 256, 32

X = te.placeholder((POINTS, 2), name="X")
label = te.placeholder((POINTS,), name="label")
W1, b1 = te.placeholder((2, HIDDEN), name="W1"), te.placeholder((HIDDEN,), name="b1")
W2, b2 = te.placeholder((HIDDEN,), name="W2"), te.placeholder((1,), name="b2")

k = te.reduce_axis((0, 2), name="k")
product = te.compute(
    (POINTS, HIDDEN), lambda i, j: te.sum(X[i, k] * W1[k, j], axis=k), name="product"
)
hidden = te.compute((POINTS, HIDDEN), lambda i, j: te.tanh(product[i, j] + b1[j]), name="hidden")
j = te.reduce_axis((0, HIDDEN), name="j")
score = te.compute((POINTS,), lambda i: te.sum(hidden[i, j] * W2[j], axis=j), name="score")
# The cross entropy of sigmoid(x), for labels 0 and 1.
x = te.compute((POINTS,), lambda i: score[i] + b2[0], name="x")
n = te.reduce_axis((0, POINTS), name="n")
loss = te.compute(
    (),
    lambda: te.sum(
        (te.max(x[n], 0.0) - x[n] * label[n] + te.log1p(te.exp(-te.abs(x[n])))) / POINTS, axis=n
    ),
    name="loss",
)

weights = [W1, b1, W2, b2]
gradients = te.gradient(loss, weights)
step = tvm.build([loss, *gradients], [X, label, *weights, loss, *gradients], name="step")

rng = np.random.default_rng(0)
points = rng.uniform(-1, 1, (POINTS, 2)).astype("float32")
radius = np.hypot(points[:, 0], points[:, 1])
inside = ((radius > 0.4) & (radius < 0.8)).astype("float32")
values = [rng.standard_normal([int(d) for d in w.shape]).astype("float32") for w in weights]
made = [np.empty_like(each) for each in values]
momenta = [np.zeros_like(each) for each in values]
now = np.empty((), "float32")

losses = []
for _ in range(3000):
    step(points, inside, *values, now, *made)
    losses.append(float(now))
    for value, momentum, change in zip(values, momenta, made, strict=True):
        momentum *= 0.9
        momentum -= 0.2 * change
        value += momentum

for i in range(0, len(losses), 600):
    print(f"step {i:4d}: loss {losses[i]:.3f}")
print(f"at the end: loss {losses[-1]:.3f}")
assert losses[-1] < 0.2 * losses[0]
