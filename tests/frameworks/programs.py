"""What the tests of all frameworks run, and what numpy makes of the same."""

from __future__ import annotations

from typing import Any

import numpy as np

import minitvm as tvm
from minitvm import te
from minitvm.runtime import Module, NDArray

DTYPES = ("float32", "float64", "float16", "int8", "int32", "int64", "uint8", "bool")


def scaled() -> Module:
    """Y = X * X * a, of vectors of any length."""
    n, a = te.var("n"), te.var("a", "float32")
    x = te.placeholder((n,), name="X")
    y = te.compute((n,), lambda i: x[i] * x[i] * a, name="Y")
    return tvm.build(te.create_schedule(y.op), [x, a, y], name="scaled")


def product() -> Module:
    """C = A @ B, of matrices of any sizes."""
    n, m, p = map(te.var, "nmp")
    a, b = te.placeholder((n, m), name="A"), te.placeholder((m, p), name="B")
    k = te.reduce_axis((0, m), name="k")
    c = te.compute((n, p), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return tvm.build(te.create_schedule(c.op), [a, b, c], name="product")


def parts() -> Module:
    """Two results: Y = X + 1 and Z, the sums of the rows of X."""
    n, m = te.var("n"), te.var("m")
    x = te.placeholder((n, m), name="X")
    k = te.reduce_axis((0, m), name="k")
    y = te.compute((n, m), lambda i, j: x[i, j] + 1.0, name="Y")
    z = te.compute((n,), lambda i: te.sum(x[i, k], axis=k), name="Z")
    return tvm.build(te.create_schedule([y.op, z.op]), [x, y, z], name="parts")


def backwards(dtype: str) -> Module:
    """Y[i] = X[3 - i]."""
    x = te.placeholder((4,), dtype, name="X")
    y = te.compute((4,), lambda i: x[3 - i], name="Y")
    return tvm.build(te.create_schedule(y.op), [x, y], name="backwards")


def add_one(source: NDArray, target: NDArray, by: float = 1) -> None:
    """A Python function of NDArrays, as classic programs have them."""
    assert isinstance(source, NDArray)
    assert isinstance(target, NDArray)
    target.copyfrom(source.numpy() + np.asarray(by, str(target.dtype)))


def values(dtype: str) -> Any:
    return np.array([0, 1, 1, 0], dtype)


def matrices() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.random((5, 7), dtype="float32"), rng.random((7, 3), dtype="float32")
