"""Functions of numbers: the language's, those of the C library, and rules of one's own.

python examples/classic/intrinsics.py
"""

from typing import Any

import numpy as np

import minitvm as tvm
import minitvm.testing
from minitvm import te
from minitvm.ir import register_intrin_lowering, register_op_attr

n = te.var("n")
A = te.placeholder((n,), name="A")
a = np.linspace(0.1, 4, 100, dtype="float32")


def values_of(function: Any) -> Any:
    """`function` of every element, and the LLVM IR that computes it."""
    B = te.compute(A.shape, lambda i: function(A[i]), name="B")
    f = tvm.build(te.create_schedule(B.op), [A, B], "llvm", name="f")
    b = tvm.nd.empty(a.shape)
    f(a, b)
    return b.numpy(), f.get_source()


# A function of the C library, by its symbol; and the language's own, which needs no call, becomes
# vectors, and is defined for every dtype of floats.
tvm.testing.assert_allclose(
    values_of(lambda v: tvm.tir.call_pure_extern("float32", "expf", v))[0], np.exp(a), rtol=1e-6
)
found, source = values_of(te.exp)
tvm.testing.assert_allclose(found, np.exp(a), rtol=1e-6)
assert "@expf" not in source


# An intrinsic that the language lacks begins with an attribute, and ends in a rule: what replaces
# the call when code is made for a target.
def softsign(x: Any) -> Any:
    """``x / (1 + |x|)``, as an intrinsic."""
    return tvm.tir.call_intrin(x.dtype, "tir.softsign", x)


def rule(op: Any) -> Any:
    """The call in terms of the language."""
    assert op.op.name == "tir.softsign"
    return op.args[0] / (1.0 + te.abs(op.args[0]))


register_op_attr("tir.softsign", "TCallEffectKind", tvm.tir.CallEffectKind.Pure)
register_intrin_lowering("tir.softsign", target="llvm", f=rule, level=99)
B = te.compute(A.shape, lambda i: softsign(A[i]), name="B")
print(tvm.lower(te.create_schedule(B.op), [A, B], simple_mode=True))
tvm.testing.assert_allclose(values_of(softsign)[0], a / (1 + a), rtol=1e-6)


# A rule may also replace what the language has: here by the C library's.
def by_the_c_library(op: Any) -> Any:
    """The function of the C library for the dtype."""
    name = op.op.name.removeprefix("tir.")
    if op.dtype == "float32":
        return tvm.tir.call_pure_extern("float32", f"{name}f", op.args[0])
    return op  # as it would be without the rule


register_intrin_lowering("tir.log1p", target="llvm", f=by_the_c_library, level=99)
found, source = values_of(te.log1p)
tvm.testing.assert_allclose(found, np.log1p(a), rtol=1e-6)
assert "@log1pf" in source
print("exp, softsign, log1p: equal to numpy's")
