"""The matrix product of ``examples/quickstart.py``, 56 x 56 in float32 without a schedule, as each
compiler takes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import minitvm
from benchmarks import peers
from benchmarks.measure import OURS
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.tensor import Tensor

N = 56


def schedule() -> tuple[Schedule, list[Tensor]]:
    """The quickstart's schedule and arguments."""
    X = minitvm.placeholder((N, N), name="X")
    Y = minitvm.placeholder((N, N), name="Y")
    k = minitvm.reduce_axis((0, N), name="k")
    Z = minitvm.compute((N, N), lambda i, j: minitvm.sum(X[i, k] * Y[k, j], axis=k), name="Z")
    return minitvm.create_schedule(Z.op), [X, Y, Z]


def builders() -> dict[str, Callable[[], Any]]:
    """For each compiler that is here, what turns the expression into a function ``f(x, y, z)``.

    The expression is made already; all compile for this machine's CPU.
    """
    return {name: builder(name) for name in (OURS, "numba", "tvm") if name not in missing()}


def builder(name: str) -> Callable[[], Any]:
    """See :func:`builders`. No other compiler is imported."""
    if name == "numba":
        return _numba
    return _tvm() if name == "tvm" else _ours()


def missing() -> dict[str, str]:
    """The compilers that are not here."""
    return peers.missing(("numba", "tvm"))


def arrays() -> tuple[Any, Any, Any]:
    """Two factors and a place for the product."""
    rng = np.random.default_rng(0)
    x, y = (rng.random((N, N), dtype=np.float32) for _ in range(2))
    return x, y, np.empty((N, N), np.float32)


def _ours() -> Callable[[], Any]:
    s, args = schedule()
    return lambda: minitvm.build(s, args, target_host="llvm", name="fmm")


def _plain_loops(x: Any, y: Any, z: Any) -> None:
    for i in range(N):
        for j in range(N):
            total = np.float32(0)
            for k in range(N):
                total += x[i, k] * y[k, j]
            z[i, j] = total


def _numba() -> Any:
    """Compiled at once, and with the freedom that minitvm's ``fp="fast"`` takes."""
    numba = peers.peer("numba")
    matrix = numba.float32[:, ::1]
    freedom = {"contract", "reassoc"}
    return numba.njit(numba.void(matrix, matrix, matrix), fastmath=freedom)(_plain_loops)


def _tvm() -> Callable[[], Any]:
    tvm = peers.peer("tvm")
    te = tvm.te
    X = te.placeholder((N, N), name="X")
    Y = te.placeholder((N, N), name="Y")
    k = te.reduce_axis((0, N), name="k")
    Z = te.compute((N, N), lambda i, j: te.sum(X[i, k] * Y[k, j], axis=k), name="Z")
    target = {"kind": "llvm", "mcpu": minitvm.Target("llvm").mcpu}

    def build() -> Any:
        function = te.create_prim_func([X, Y, Z]).with_attr("global_symbol", "fmm")
        return tvm.compile(function, target=target)["fmm"]

    return build
