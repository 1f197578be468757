"""Wrappers for other libraries' tensors. Those of JAX: test_jax.py; of TensorFlow, Paddle and
MXNet: `tests/frameworks/run`."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
import minitvm.contrib
from minitvm import te
from minitvm.contrib import convert_func, to_numpy_func, to_pytorch_func
from minitvm.runtime import NDArray
from minitvm.runtime.results import results_of
from tests.frameworks import matrix, programs


def add_one(a: NDArray, out: NDArray, by: int = 1) -> None:
    assert isinstance(a, NDArray)
    assert isinstance(out, NDArray)
    out.copyfrom(a.numpy() + by)


def test_to_pytorch_func() -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    to_pytorch_func(add_one)(x, y)
    assert y.tolist() == [1, 2, 3]
    to_pytorch_func(add_one)(x, out=y, by=5)
    assert y.tolist() == [5, 6, 7]
    with pytest.raises(BufferError, match="doesn't require grad"):
        to_pytorch_func(add_one)(torch.ones(3, requires_grad=True), y)


def test_to_numpy_func(compiled: Any) -> None:
    x, y = np.arange(3), np.zeros(3, np.int64)
    x.flags.writeable = False
    to_numpy_func(add_one)(x, y)
    assert y.tolist() == [1, 2, 3]
    to_numpy_func(compiled.function("increment", ("X",), (0,)))(y)
    assert y.tolist() == [2, 2, 3]


def test_convert_func_converts_through_capsules() -> None:
    class Tensor:
        def __init__(self) -> None:
            self.content = np.zeros(3, np.int64)

    tensor = Tensor()
    converted = convert_func(add_one, Tensor, lambda t: t.content.__dlpack__())
    converted(tensor, tensor)
    assert tensor.content.tolist() == [1, 1, 1]


def test_convert_func_returns_what_is_written() -> None:
    f = convert_func(programs.parts(), np.ndarray, lambda x: x, lambda made: made.numpy())
    x = np.arange(6, dtype="float32").reshape(2, 3)
    y, z = f(x)
    np.testing.assert_array_equal(y, x + 1)
    assert z.tolist() == [3, 12]
    assert f(x[:, ::-1])[1].tolist() == [3, 12]


@pytest.mark.parametrize("framework", ["pytorch", "jax", "tensorflow", "mxnet", "paddle", "cupy"])
def test_a_framework_that_is_missing(monkeypatch: pytest.MonkeyPatch, framework: str) -> None:
    module = {"pytorch": "torch"}.get(framework, framework)
    monkeypatch.setitem(sys.modules, module, None)
    wrap = getattr(minitvm.contrib, f"to_{framework}_func")
    text = f"to_{framework}_func: expected {module} to be installed, got: "
    with pytest.raises(ImportError, match=text) as error:
        wrap(programs.add_one)
    assert error.value.name == module


def test_cupy_has_memory_of_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Array:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, **kwargs: Any) -> Any:
            raise AssertionError

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=Array))
    for function in (programs.add_one, programs.scaled()):
        with pytest.raises(ValueError, match=r"expected memory of cpu\(0\), got cuda\(0\)"):
            minitvm.contrib.to_cupy_func(function)(Array(), 1.0, Array())


def test_shapes_of_results() -> None:
    n, m = te.var("n"), te.var("m")
    x = te.placeholder((n * 2, m), name="X")
    w = te.placeholder((n,), name="W")
    y = te.compute((n, (m + 1) // 2 + n % 3), lambda i, j: w[i], name="Y")
    f = tvm.build(te.create_schedule(y.op), [x, w, y], name="f")
    results = results_of(f)
    assert (results.inputs, results.outputs) == ((0, 1), (2,))
    assert results.shapes([np.zeros((8, 5)), np.zeros(4)]) == [(4, 4)]


def test_a_shape_that_inputs_do_not_tell() -> None:
    n = te.var("n")
    x = te.placeholder((4,), name="X")
    y = te.compute((n,), lambda i: x[0] * 2.0, name="Y")
    f = tvm.build(te.create_schedule(y.op), [x, y], name="f")
    with pytest.raises(ValueError, match=r"f: output 1 'Y': expected a shape that follows .*got n"):
        results_of(f)


def test_who_reads_and_writes_what() -> None:
    """The table of docs/interop.md, of the framework that every environment has."""
    rows = [line.split(" | ") for line in matrix.table(["numpy"]).splitlines()[2:]]
    found = {name.strip("| "): (reads, writes.strip(" |")) for name, reads, writes in rows}
    assert set(found) == set(matrix.DTYPES)
    native = ("bool", *matrix.INTEGERS, *(x for x in matrix.FLOATS if x != "bfloat16"))
    assert all(found[name] == ("shared", "shared") for name in native)
    assert "other" not in str(found)
