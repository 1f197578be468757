"""Functions: the language's own, those of the C library, intrinsics of LLVM, and conversions.

python examples/schedules/07_intrinsics_and_math.py
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import minitvm as tvm
from minitvm import te, tir

n = te.var("n")
X = te.placeholder((n,), name="X")
x = np.random.default_rng(0).uniform(0.01, 4, 1001).astype(np.float32)


def values_of(function: Callable[[Any], Any]) -> Any:
    """`function` of every element, in vectors of 8."""
    Y = te.compute((n,), lambda i: function(X[i]), name="Y")
    s = te.create_schedule(Y.op)
    _, inner = s[Y].split(Y.op.axis[0], factor=8)
    s[Y].vectorize(inner)
    y = np.empty(x.shape, dtype=str(Y.dtype))
    tvm.build(s, [X, Y])(x, y)
    return y


# -- Functions of the language ---------------------------------------------------------------------

# They are defined on every target, to a stated accuracy (docs/numerics.md); here 3 ULP of float32.
for name in ("exp", "log", "sqrt", "sin", "cos", "tanh", "floor", "ceil", "log2", "exp2"):
    exact = getattr(np, name)(x.astype(np.float64))
    got = values_of(getattr(te, name))
    bound = 3 * np.spacing(np.abs(exact).astype(np.float32))
    assert (np.abs(got - exact) <= bound).all(), name
print("exp, log, sqrt, sin, cos, tanh, floor, ceil, log2, exp2: equal to numpy's")

# They make expressions as operators do: a composition is one loop.
np.testing.assert_allclose(
    values_of(lambda v: te.exp(-v) / (1.0 + te.exp(-v))), 1 / (1 + np.exp(x)), rtol=1e-5
)
np.testing.assert_allclose(
    values_of(lambda v: te.power(v, 1.5) + te.max(v, 1.0)), x**1.5 + np.maximum(x, 1), rtol=1e-5
)

# -- Functions of the C library --------------------------------------------------------------------

# `call_pure_extern` calls a C function by its symbol, one element at a time, and passes each
# argument in its own dtype: `cbrtf` is the one for float32. "Pure" says that it has no effects.
np.testing.assert_allclose(
    values_of(lambda v: tir.call_pure_extern("float32", "cbrtf", v)), np.cbrt(x), rtol=1e-6
)
np.testing.assert_allclose(
    values_of(lambda v: tir.call_pure_extern("float32", "fmaf", v, v, te.const(1.0))),
    x * x + 1,
    rtol=1e-6,
)

# `call_extern` is for those with effects; statements keep their order. Here `memcpy` gets the
# addresses of the two buffers.
C = te.extern(
    X.shape,
    [X],
    lambda ins, outs: tir.call_extern(
        "handle", "memcpy", outs[0].access_ptr("w"), ins[0].access_ptr("r"), te.cast("int64", n * 4)
    ),
    name="C",
)
copied = np.empty_like(x)
tvm.build(te.create_schedule(C.op), [X, C])(x, copied)
np.testing.assert_array_equal(copied, x)
print("cbrtf, fmaf, memcpy of the C library: called")

# -- Intrinsics of LLVM ----------------------------------------------------------------------------

# Any intrinsic without effects, by its name without the type: "llvm.sqrt" becomes llvm.sqrt.f32.
# Classic programs say before the arguments how many of them select the type; that is taken too.
one = te.const(1, "uint32")
np.testing.assert_array_equal(
    values_of(lambda v: tir.call_llvm_pure_intrin("float32", "llvm.sqrt", one, v)), np.sqrt(x)
)
np.testing.assert_array_equal(
    values_of(lambda v: tir.call_llvm_pure_intrin("float32", "llvm.copysign", v, -v)), -x
)
bits = values_of(
    lambda v: tir.call_llvm_pure_intrin("int32", "llvm.bswap", te.reinterpret("int32", v))
)
np.testing.assert_array_equal(bits, x.view(np.int32).byteswap())
print("llvm.sqrt, llvm.copysign, llvm.bswap: called")

# -- Conversions -----------------------------------------------------------------------------------

# `astype` converts the value, and says what happens at the ends (docs/language.md): a float out of
# an integer's range becomes the nearest end of it. `reinterpret` keeps the bits.
np.testing.assert_array_equal(
    values_of(lambda v: (v * 100.0).astype("uint8")), np.minimum(x * 100, 255).astype("uint8")
)
np.testing.assert_array_equal(values_of(lambda v: v.astype("float16")), x.astype("float16"))
np.testing.assert_array_equal(values_of(lambda v: te.reinterpret("uint32", v)), x.view("uint32"))

# A sum in a wider type than the values': cast what is summed.
k = te.reduce_axis((0, n), name="k")
total = te.compute((1,), lambda _: te.sum(X[k].astype("float64"), axis=k), name="total")
result = np.empty(1)
tvm.build(te.create_schedule(total.op), [X, total])(x, result)
np.testing.assert_allclose(result[0], x.sum(dtype=np.float64), rtol=1e-12)
print("conversions: equal to numpy's")
