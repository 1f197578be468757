"""Stencils and convolutions: how much of a stage to keep, and where to pad.

The results of a scheduled program are compared with those of the *unscheduled* program in the
reference interpreter, which defines the meaning of programs.

python examples/schedules/08_stencils_and_convolutions.py
"""

from typing import Any

import numpy as np

import minitvm as tvm
from minitvm import te
from minitvm.tir.interpreter import interpret

rng = np.random.default_rng(0)


def check(title: str, s: te.Schedule, args: list[Any], rtol: float) -> None:
    """Prints a schedule's loops, and compares what they compute with the plain program's result."""
    print(f"# {title}\n{tvm.lower(s, args, name='f', simple_mode=True)}\n")
    *inputs, output = args
    shapes = [tuple(map(int, tensor.shape)) for tensor in args]
    arrays = [rng.random(shape, dtype=np.float32) for shape in shapes[: len(inputs)]]
    expected, result = (np.empty(shapes[-1], dtype=np.float32) for _ in range(2))
    interpret(tvm.lower(te.create_schedule(output.op), args)["main"], *arrays, expected)
    tvm.build(s, args)(*arrays, result)
    np.testing.assert_allclose(result, expected, rtol=rtol)


# -- A blur in two passes --------------------------------------------------------------------------

H, W = 13, 30
image = te.placeholder((H, W), name="image")
padded = te.compute(
    (H + 2, W + 2),
    lambda y, x: te.if_then_else(
        te.all(y >= 1, y < H + 1, x >= 1, x < W + 1), image[y - 1, x - 1], 0.0
    ),
    name="padded",
)
across = te.compute(
    (H + 2, W),
    lambda y, x: (padded[y, x] + padded[y, x + 1] + padded[y, x + 2]) / 3.0,
    name="across",
)
blur = te.compute(
    (H, W), lambda y, x: (across[y, x] + across[y + 1, x] + across[y + 2, x]) / 3.0, name="blur"
)
BLUR_ERROR = 8 * 2.0**-23
y, x = blur.op.axis

# Each element of `across` is used three times. Inlined, it is computed three times...
s: Any = te.create_schedule(blur.op)
s[padded].compute_inline()
s[across].compute_inline()
check("blur, all inlined: least memory, most work", s, [image, blur], BLUR_ERROR)

# ...and in a tile, 4 x 8 elements of the blur need 6 x 8 of it, in a buffer that stays in cache:
# `compute_at` finds those bounds. Its rows are vectors, and the rows of tiles run in parallel.
s = te.create_schedule(blur.op)
y_outer, x_outer, y_inner, x_inner = s[blur].tile(y, x, 4, 8)
s[across].compute_at(s[blur], x_outer)
s[padded].compute_inline()
s[across].vectorize(across.op.axis[1])
s[blur].vectorize(x_inner)
s[blur].parallel(y_outer)
check("blur in tiles: 6 x 8 of a stage for 4 x 8 of the next", s, [image, blur], BLUR_ERROR)

# -- Borders ---------------------------------------------------------------------------------------

# The condition of the padding holds in the middle of the image, which is nearly all of it. Loops
# over such a choice are cut into a first part, a middle without the condition, and a last part.
s = te.create_schedule(blur.op)
s[across].compute_at(s[blur], y)
check("padding cut into borders and middle", s, [image, blur], BLUR_ERROR)

# -- A copy of what is read ------------------------------------------------------------------------

# cache_read lets a stage read a copy of a tensor. Here a block of the image is copied before it is
# used; what `compute_at` finds for the copy is the block and its margin.
s = te.create_schedule(blur.op)
copy = s.cache_read(image, "local", [padded])
y_outer, x_outer, y_inner, x_inner = s[blur].tile(y, x, 4, 8)
s[padded].compute_inline()
s[across].compute_at(s[blur], x_outer)
s[copy].compute_at(s[blur], x_outer)
check("a block of the image, copied before it is used", s, [image, blur], BLUR_ERROR)

# -- Convolution of channels -----------------------------------------------------------------------

IN, OUT, SIZE, STRIDE = 3, 8, 11, 2
RESULT = (SIZE + 2 - 3) // STRIDE + 1
data = te.placeholder((1, IN, SIZE, SIZE), name="data")  # NCHW
weight = te.placeholder((OUT, IN, 3, 3), name="weight")
bordered = te.compute(
    (1, IN, SIZE + 2, SIZE + 2),
    lambda n, c, y, x: te.if_then_else(
        te.all(y >= 1, y <= SIZE, x >= 1, x <= SIZE), data[n, c, y - 1, x - 1], 0.0
    ),
    name="bordered",
)
rc = te.reduce_axis((0, IN), "rc")
ry, rx = te.reduce_axis((0, 3), "ry"), te.reduce_axis((0, 3), "rx")
conv = te.compute(
    (1, OUT, RESULT, RESULT),
    lambda n, o, y, x: te.sum(
        bordered[n, rc, y * STRIDE + ry, x * STRIDE + rx] * weight[o, rc, ry, rx], axis=[rc, ry, rx]
    ),
    name="conv",
)

# The sums of a tile of 4 output channels x 6 positions stay in registers ("local") for the whole
# reduction, and are stored once. The tile's channels use the same part of the padded data.
s = te.create_schedule(conv.op)
sums = s.cache_write(conv, "local")
n, o, y, x = s[conv].op.axis
o_outer, o_inner = s[conv].split(o, factor=4)
s[conv].reorder(n, o_outer, y, o_inner, x)
s[conv].vectorize(x)
s[sums].compute_at(s[conv], y)
channel, row, column = s[sums].op.reduce_axis
s[sums].reorder(channel, row, column, *s[sums].op.axis)
s[sums].unroll(s[sums].op.axis[1])
s[sums].vectorize(s[sums].op.axis[3])
s[bordered].compute_at(s[conv], n)
s[conv].parallel(o_outer)
check("convolution, 4 channels at a time", s, [data, weight, conv], IN * 9 * 2.0**-23)
print("all stencils: equal to the interpreted plain program")
