"""A pass of one's own: it finds loops in a lowered program, and changes them.

Such a pass works below the schedule, on loops that nobody named. Where a schedule can say the same,
as here by `vectorize`, it is shorter; and an untouched schedule is made of vectors already.

python examples/classic/custom_pass.py
"""

# Classic programs are not typed: constructors convert numbers and lists.
# mypy: disable-error-code="arg-type"

from typing import Any

import numpy as np

import minitvm as tvm
import minitvm.testing
from minitvm import te, tir

LANES = 4
A = te.placeholder((64,), name="A")
B = te.compute((64,), lambda i: A[i] * A[i], name="B")
schedule = te.create_schedule(B.op)
a = np.random.default_rng(0).random(64, dtype="float32")


def divisible(body: tir.Stmt) -> list[tir.For]:
    """The serial loops of a constant extent that vectors divide."""
    found: list[tir.For] = []

    def look(node: Any) -> None:
        is_serial = isinstance(node, tir.For) and node.kind == tir.ForKind.SERIAL
        if is_serial and isinstance(node.extent, tir.IntImm) and not node.extent.value % LANES:
            found.append(node)

    tir.stmt_functor.post_order_visit(body, look)
    return found


@tvm.tir.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]  # classic
def in_lanes(func: tir.PrimFunc, mod: tvm.IRModule, ctx: Any) -> tir.PrimFunc:
    """Splits such loops, and makes the inner one a vector."""
    loops = divisible(func.body)

    def split(node: Any) -> Any:
        if node not in loops:
            return None
        outer, inner = (te.var(f"{node.loop_var.name}.{part}") for part in ("outer", "inner"))
        body = tir.stmt_functor.substitute(node.body, {node.loop_var: outer * LANES + inner})
        body = tir.For(inner, 0, LANES, tir.ForKind.VECTORIZED, body)
        return tir.For(outer, 0, node.extent.value // LANES, tir.ForKind.SERIAL, body)

    return func.with_body(tir.stmt_functor.ir_transform(func.body, None, split, ["tir.For"]))


# In the pipeline, behind one of its four phases.
with tvm.transform.PassContext(config={"tir.add_lower_pass": [(0, in_lanes)]}):
    lowered = tvm.lower(schedule, [A, B])
    f = tvm.build(schedule, [A, B], auto_schedule=False)
print(lowered)
assert "ramp(" in str(lowered)
b = tvm.nd.empty((64,))
f(a, b)
tvm.testing.assert_allclose(b.numpy(), a * a, rtol=1e-6)

# By hand, on a module, with passes of the pipeline before and after.
plain = tvm.lower(schedule, [A, B], simple_mode=True)
passes = [tir.transform.Simplify(), in_lanes, tir.transform.VectorizeLoop()]
made = tvm.transform.Sequential(passes)(plain)
print(made)
tvm.build(made)(a, b)
tvm.testing.assert_allclose(b.numpy(), a * a, rtol=1e-6)

# A program is saved as text, and comes back the same.
again = tvm.ir.load_json(tvm.ir.save_json(made))
tvm.ir.assert_structural_equal(again, made)
assert tvm.ir.structural_hash(again) == tvm.ir.structural_hash(made)
