"""Kernels on devices: built for the simulated one, launched on its streams."""

from __future__ import annotations

import gc
import inspect
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import nd, te
from minitvm.runtime.device_api.ext_dev import ExtDev
from minitvm.runtime.device_function import DeviceFunction

DEV, DEV1 = tvm.ext_dev(0), tvm.ext_dev(1)


def _matmul(target: str = "ext_dev", **options: Any) -> Any:
    n, m, k = te.var("n"), te.var("m"), te.var("k")
    a = te.placeholder((n, k), name="A")
    b = te.placeholder((k, m), name="B")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    return tvm.build([c], [a, b, c], target=target, name="matmul", **options)


def _scale(target: Any = "ext_dev") -> Any:
    n, factor = te.var("n"), te.var("factor", "float32")
    x = te.placeholder((n,), name="X")
    y = te.compute((n,), lambda i: x[i] * factor, name="Y")
    return tvm.build([y], [x, factor, y], target=target, name="scale")


def _gather() -> Any:
    p = te.placeholder((4,), "int32", name="P")
    q = te.placeholder((10,), name="Q")
    r = te.compute((4,), lambda i: q[p[i]], name="R")
    return tvm.build([r], [p, q, r], target="ext_dev", name="gather")


def _wait(gate: threading.Event) -> None:
    assert gate.wait(60)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    """What failed in one test is told there, and all memory comes back."""
    gc.collect()
    before = [each.memory_stats().allocated for each in (DEV, DEV1)]
    yield
    gc.collect()
    for each, bytes_before in zip((DEV, DEV1), before, strict=True):
        each.sync()
        assert each.memory_stats().allocated == bytes_before


def test_the_whole_path() -> None:
    """Copy in, launch on a stream, event, copy out."""
    f = _matmul()
    rng = np.random.default_rng(0)
    stream = DEV.create_stream()
    for n, k, m in ((1, 1, 1), (17, 33, 65), (64, 64, 64), (0, 3, 4), (3, 0, 4), (200, 150, 100)):
        x, y = rng.random((n, k), "float32"), rng.random((k, m), "float32")
        back = nd.empty((n, m))
        with stream:
            a, b, c = (nd.empty(shape, device=DEV) for shape in ((n, k), (k, m), (n, m)))
            nd.array(x).copyto(a, stream=stream)
            nd.array(y).copyto(b, stream=stream)
            f(a, b, c)
            c.copyto(back, stream=stream)
        stream.record().synchronize()
        np.testing.assert_allclose(back.numpy(), x @ y, rtol=1e-5)


def test_without_a_stream() -> None:
    f = _scale()
    x = np.arange(1000, dtype="float32")
    a, b = nd.array(x, DEV), nd.empty((1000,), device=DEV)
    for factor in (2, 3.5, np.float32(0.25)):
        f(a, factor, b)
        np.testing.assert_array_equal(b.numpy(), x * np.float32(factor))
    f(X=a, Y=b, factor=7)
    np.testing.assert_array_equal(b.numpy(), x * 7)


def test_views_and_places() -> None:
    """Strided arrays, an output in the place of an input, a part of an array, another device."""
    f = _scale()
    x = np.arange(60, dtype="float32").reshape(6, 10)
    for device in (DEV, DEV1):
        for key in (np.s_[2], np.s_[:, 3], np.s_[::-1, 4], np.s_[1, ::-3], np.s_[1:1, 0]):
            a, expected = nd.array(x, device), x.copy()
            out = nd.empty(x[key].shape, device=device)
            f(a[key], 3, out)
            np.testing.assert_array_equal(out.numpy(), x[key] * 3)
            f(a[key], 2, a[key])
            expected[key] *= 2
            np.testing.assert_array_equal(a.numpy(), expected)


def test_mixed_devices() -> None:
    f, host = _scale(), _scale("llvm")
    x = np.ones(4, "float32")
    a, b = nd.array(x, DEV), nd.array(x, DEV1)
    text = r"scale: argument 0 'X': expected an array on ext_dev, got one on cpu\(0\): copy it"
    with pytest.raises(ValueError, match=text):
        f(x, 1, a)
    text = r"argument 2 'Y': expected an array on ext_dev\(0\), as argument 0 'X' is, got one on "
    for wrong, found in ((b, r"ext_dev\(1\)"), (x, r"cpu\(0\)")):
        with pytest.raises(ValueError, match=text + found + r": copy it: tvm.nd.array\(x, tvm.ext"):
            f(a, 1, wrong)
    for args in ((a, 1, x), (x, 1, a)):
        with pytest.raises(ValueError, match=r"expected an array on cpu, got one on ext_dev\(0\)"):
            host(*args)


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        (lambda a, b: (a, 1), TypeError, "scale: expected 3 arguments"),
        (lambda a, b: (a, 1, b[:3]), ValueError, r"'Y': expected shape\[0\] == 8 \(n, as arg"),
        (lambda a, b: (a, "1", b), TypeError, "'factor': expected a number, got a str"),
        (lambda a, b: (a, 1, b.view("int32")), TypeError, "'Y': expected dtype float32, got int32"),
        (lambda a, b: (a, 1, b.reshape(2, 4)), ValueError, "'Y': expected ndim == 1, got 2"),
        (
            lambda a, b: (a[:7], 1, a[1:]),
            ValueError,
            "expected an output that shares no memory",
        ),
        (lambda a, b: ([1.0] * 8, 1, b), TypeError, "'X': expected an array .*, got list"),
        (lambda a, b: (None, 1, None), ValueError, "expected an array, by which to know"),
    ],
)
def test_wrong_arguments_are_told_at_the_call(
    args: Callable[[Any, Any], tuple[Any, ...]], error: type[Exception], text: str
) -> None:
    a, b = (nd.array(np.ones(8, "float32"), DEV) for _ in range(2))
    with pytest.raises(error, match=text):
        _scale()(*args(a, b))
    assert b.numpy().tolist() == [1] * 8


def test_read_only_outputs() -> None:
    a = nd.array(np.ones(8, "float32"), DEV)
    fixed = tvm.from_dlpack(a, read_only=True)
    _scale()(fixed, 2, a.copyto(DEV))
    with pytest.raises(ValueError, match="'Y': expected a writable array, got a read-only one"):
        _scale()(a.copyto(DEV), 2, fixed)


def test_a_failure_is_told_at_synchronisation() -> None:
    f = _gather()
    good, bad = (nd.array(np.array(p, "int32"), DEV) for p in ([0, 1, 2, 3], [0, 99, 2, 3]))
    q = nd.array(np.arange(10, dtype="float32"), DEV)
    out, other = (nd.array(np.full(4, -1, "float32"), DEV) for _ in range(2))
    stream = DEV.create_stream()
    text = r"ext_dev\(0\): kernel 'gather' on stream .* IndexError: gather: .* got 99"
    for wait in (stream.synchronize, DEV.sync, lambda: stream.record().synchronize(), out.numpy):
        with stream:
            f(bad, q, out)
            f(good, q, other)  # which comes after the failure, and isn't run
        with pytest.raises(tvm.DeviceError, match=text) as error:
            wait()
        assert isinstance(error.value.__cause__, IndexError)
        assert other.numpy().tolist() == [-1] * 4
        DEV.sync()
    with stream:
        f(good, q, other)
    stream.synchronize()
    assert other.numpy().tolist() == [0, 1, 2, 3]


def test_arrays_may_end_while_a_kernel_waits() -> None:
    f, stream = _scale(), DEV.create_stream()
    gate = threading.Event()
    back = nd.empty((1000,))
    stream.add_callback(lambda: _wait(gate))
    with stream:
        a = nd.empty((1000,), device=DEV)
        nd.array(np.ones(1000, "float32")).copyto(a, stream=stream)
        b = nd.empty((1000,), device=DEV)
        f(a, 5, b)
        b.copyto(back, stream=stream)
    del a, b
    others = [nd.empty((1000,), device=DEV) for _ in range(4)]  # not of that memory
    gate.set()
    stream.synchronize()
    assert back.numpy().tolist() == [5] * 1000
    assert len(others) == 4


def test_streams_run_side_by_side() -> None:
    f, first, second = _scale(), DEV.create_stream(), DEV.create_stream()
    gate = threading.Event()
    a = nd.array(np.ones(10, "float32"), DEV)
    b, c = nd.empty((10,), device=DEV), nd.empty((10,), device=DEV)
    first.add_callback(lambda: _wait(gate))
    with first:
        f(a, 2, b)
        with second:
            f(a, 3, c)
        event = first.record()
    second.synchronize()
    assert not first.query()
    with second:
        second.wait(event)
        f(b, 7, c)
    gate.set()
    second.synchronize()
    assert c.numpy().tolist() == [14] * 10


def test_what_a_function_says() -> None:
    f = _scale()
    assert isinstance(f.entry_func, DeviceFunction)
    assert str(inspect.signature(f)) == "(X, factor, Y) -> None"
    assert f.entry_func.arg_names == ("X", "factor", "Y")
    assert "X" in (f.entry_func.__doc__ or "")
    assert repr(f.entry_func) == "<DeviceFunction scale>"
    assert "define" in f.get_source("ll")
    x = nd.array(np.ones(8, "float32"), DEV)
    y = nd.empty((8,), device=DEV)
    assert f.time_evaluator(f.entry_name, DEV, number=3)(x, 2, y).mean > 0
    with pytest.raises(ValueError, match=r"time_evaluator: scale: expected a device of ext_dev"):
        f.time_evaluator(f.entry_name, tvm.cpu(), number=3)
    with pytest.raises(ValueError, match=r"time_evaluator: scale: expected a device of cpu, got"):
        _scale("llvm").time_evaluator(dev=DEV)
    again = pickle.loads(pickle.dumps(f))
    again(x, 4, y)
    assert y.numpy().tolist() == [4] * 8


def test_called_by_other_code() -> None:
    """A function of a device is a packed function, and so are its arrays arguments of one."""
    f, seen = _scale(), []

    @tvm.runtime.convert_to_packed
    def called(g: Any, x: Any, y: Any) -> None:
        seen.append(x.device)
        g(x, 3.0, y)

    a, b = nd.array(np.ones(5, "float32"), DEV), nd.empty((5,), device=DEV)
    called(f.entry_func, a, b)
    assert seen == [DEV]
    assert b.numpy().tolist() == [3] * 5


def test_kernels_that_call_back() -> None:
    threads, x = [], te.placeholder((4,), name="X")

    @tvm.register_func("test_device_kernels.note", override=True)
    def note(value: float) -> int:
        threads.append(threading.current_thread())
        return round(value) + 1

    y = te.compute((4,), lambda i: tvm.call_packed("test_device_kernels.note", x[i]), name="Y")
    f = tvm.build([y], [x, y], target="ext_dev", name="calls")
    a, b = nd.array(np.zeros(4, "float32"), DEV), nd.empty((4,), "int32", DEV)
    f(a, b)
    assert b.numpy().tolist() == [1] * 4
    assert threading.main_thread() not in threads


def test_targets() -> None:
    for target in ("ext_dev", "ext_dev -mcpu=haswell", {"kind": "ext_dev"}, tvm.Target("ext_dev")):
        f = _scale(target)
        assert isinstance(f.entry_func, DeviceFunction)
    with tvm.Target("ext_dev"):
        assert isinstance(_scale(None).entry_func, DeviceFunction)
    assert (tvm.Target("ext_dev").kind.name, tvm.Target("llvm").kind.name) == ("ext_dev", "llvm")
    for wrong in ("cuda", "cpu", "vulkan"):
        with pytest.raises(tvm.CompileError, match=f"expected a kind among llvm, ext_dev.*{wrong}"):
            _scale(wrong)
    assert tvm.runtime.enabled("ext_dev")
    # Nothing but the entry, which may be asked only to check, is another than the CPU's.
    ours, theirs = (_matmul(target).get_source("tir") for target in ("ext_dev", "llvm"))
    assert ours == theirs


def test_kernels_of_a_device_of_ones_own() -> None:
    tvm.register_device("kernel_dev", ExtDev(devices=1))
    try:
        device = tvm.device("kernel_dev")
        f = _scale("kernel_dev")
        a, b = nd.array(np.ones(3, "float32"), device), nd.empty((3,), device=device)
        f(a, 2, b)
        assert b.numpy().tolist() == [2] * 3
        with pytest.raises(ValueError, match=r"got one on ext_dev\(0\): copy it: tvm.nd.array"):
            f(nd.array(np.ones(3, "float32"), DEV), 2, b)
        del a, b
    finally:
        tvm.unregister_device("kernel_dev")
    with pytest.raises(tvm.CompileError, match="expected a kind among"):
        _scale("kernel_dev")
