"""Functions of one-dimensional float32 tensors, as each compiler takes them.

minitvm and TVM speak the same language, so one program serves both: `te` below is either's. numba
gets the loop. All are called with the inputs and then the output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

import minitvm
from benchmarks import peers
from benchmarks.measure import OURS

Program = Callable[[Any], list[Any]]
"""Given a `te`, the arguments of a function, the output last."""
Loop = Callable[..., None]
"""What numba compiles."""


def compiled(program: Program, loop: Loop, **options: Any) -> dict[str, Any]:
    """The function of each compiler that is here; `options` are those of ``numba.njit``.

    numba compiles its function when it is first called.
    """
    *inputs, output = program(minitvm.te)
    schedule = minitvm.te.create_schedule(output.op)
    found = {OURS: minitvm.build(schedule, [*inputs, output], name="f")}
    if (numba := peers.peer("numba")) is not None:
        found["numba"] = numba.njit(**options)(loop)
    if (tvm := peers.peer("tvm")) is not None:
        function = tvm.te.create_prim_func(program(tvm.te)).with_attr("global_symbol", "f")
        target = {"kind": "llvm", "mcpu": minitvm.Target("llvm").mcpu}
        found["tvm"] = tvm.compile(function, target=target)["f"]
    return found


def total(names: Sequence[str]) -> Program:
    """``z[i]`` is the sum of all inputs there; `names` are those of the arguments."""

    def program(te: Any) -> list[Any]:
        n = te.var("n")
        inputs = [te.placeholder((n,), name=name) for name in names[:-1]]
        output = te.compute((n,), lambda i: reduce(add, (x[i] for x in inputs)), name=names[-1])
        return [*inputs, output]

    return program


def index(te: Any) -> list[Any]:
    """``z[i] = i``."""
    n = te.var("n")
    return [te.compute((n,), lambda i: i.astype("float32"), name="z")]


def scaled(dtype: str) -> Program:
    """``z[i] = x[i] * s`` with a number `s` of that dtype."""

    def program(te: Any) -> list[Any]:
        n, s = te.var("n"), te.var("s", dtype)
        x = te.placeholder((n,), name="x")
        return [x, s, te.compute((n,), lambda i: x[i] * s.astype("float32"), name="z")]

    return program


def exponential(te: Any) -> list[Any]:
    """``z[i] = exp(x[i])``."""
    x = te.placeholder((te.var("n"),), name="x")
    return [x, te.compute(x.shape, lambda i: te.exp(x[i]), name="z")]


def index_loop(z: Any) -> None:
    for i in range(z.shape[0]):
        z[i] = i


def add_loop(x: Any, y: Any, z: Any) -> None:
    for i in range(z.shape[0]):
        z[i] = x[i] + y[i]


def total_of_seven_loop(
    a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, z: Any
) -> None:  # numba's dispatch of *args is another
    for i in range(z.shape[0]):
        z[i] = a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i]


def scale_loop(x: Any, s: Any, z: Any) -> None:
    for i in range(z.shape[0]):
        z[i] = x[i] * s


def exponential_loop(x: Any, z: Any) -> None:
    for i in range(z.shape[0]):
        z[i] = math.exp(x[i])
