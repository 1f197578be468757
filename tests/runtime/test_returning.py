"""Calls that return: the outputs, their frameworks, what is refused, and what stays behind."""

from __future__ import annotations

import array
import copy
import gc
import importlib
import inspect
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
import minitvm.runtime.foreign as foreign
from minitvm import te, tir
from minitvm.runtime import NDArray
from minitvm.runtime.call_path import call_path
from minitvm.runtime.returning import Returning
from tests.frameworks import programs
from tests.leaks import traced_growth

FRAMEWORKS = ["numpy", "NDArray", "torch"]


def maker(framework: str) -> Callable[[Any], Any]:
    if framework == "numpy":
        return np.asarray
    if framework == "NDArray":
        return tvm.nd.array
    return lambda x: pytest.importorskip("torch").from_numpy(np.array(x))


def kind_of(framework: str) -> type:
    if framework == "torch":
        kind: type = pytest.importorskip("torch").Tensor
        return kind
    return np.ndarray if framework == "numpy" else NDArray


def values(array: Any) -> Any:
    return np.from_dlpack(array) if not isinstance(array, np.ndarray) else array


def build(*args: Any, name: str = "f") -> Any:
    outputs = [arg for arg in args if isinstance(getattr(arg, "op", None), te.ComputeOp)]
    return tvm.build(te.create_schedule([each.op for each in outputs]), list(args), name=name)


@pytest.fixture(scope="module")
def parts() -> Any:
    return programs.parts().returning()


@pytest.fixture(scope="module")
def sizes() -> Any:
    """Y of shape (2n + 3, (m + 1) // 2, n % 3, max(n, m) - min(n, 4), s)."""
    n, m, s = te.var("n"), te.var("m"), te.var("s")
    x, w = te.placeholder((n,), "int32", name="X"), te.placeholder((m, 2), "int32", name="W")
    shape = (2 * n + 3, (m + 1) // 2, n % 3, tir.max(n, m) - tir.min(n, 4), s)
    y = te.compute(shape, lambda *i: i[0] + x[0] + w[0, 0], name="Y")
    return build(x, w, s, y, name="sizes").returning()


# ---- What comes back -----------------------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_outputs_are_of_the_inputs_framework(parts: Any, framework: str) -> None:
    x = np.arange(6, dtype="float32").reshape(2, 3)
    given = maker(framework)(x)
    for _ in range(3):  # by Python code, and by compiled code
        for y, z in (parts(given), parts(X=given), parts(given, out=None)):
            assert type(y) is type(z) is kind_of(framework)
            np.testing.assert_array_equal(values(y), x + 1)
            np.testing.assert_array_equal(values(z), x.sum(1))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("n", "m", "s"), [(5, 4, 2), (1, 1, 0), (7, 2, 1), (4, 9, 3)])
def test_shapes_follow_from_the_inputs(sizes: Any, framework: str, n: int, m: int, s: int) -> None:
    x, w = (maker(framework)(np.ones(shape, "int32")) for shape in ((n,), (m, 2)))
    expected = (2 * n + 3, (m + 1) // 2, n % 3, max(n, m) - min(n, 4), s)
    for call in (sizes._call_slowly, sizes, sizes):
        assert tuple(call(x, w, s).shape) == expected
        assert tuple(call(x, s=s, W=w).shape) == expected


def test_the_first_array_says_the_framework() -> None:
    torch = pytest.importorskip("torch")
    add = build(*_sum())
    r, x = add.returning(), np.ones(3, "float32")
    for _ in range(2):
        assert isinstance(r(x, torch.ones(3)), np.ndarray)
        assert isinstance(r(torch.ones(3), x), torch.Tensor)
        assert isinstance(r(Y=x, X=tvm.nd.array(x)), NDArray)
        assert isinstance(r(array.array("f", x), torch.ones(3)), np.ndarray)


def _sum() -> tuple[Any, Any, Any]:
    n = te.var("n")
    x, y = te.placeholder((n,), name="X"), te.placeholder((n,), name="Y")
    return x, y, te.compute((n,), lambda i: x[i] + y[i], name="Z")


def test_without_an_array_they_are_numpys() -> None:
    s = te.var("s", "int32")
    made = build(s, te.compute((4,), lambda i: i * s, name="Y")).returning()
    empty = build(te.compute((), lambda: tir.const(3, "int64"), name="Y")).returning()
    for _ in range(2):
        np.testing.assert_array_equal(made(3), [0, 3, 6, 9])
        assert empty().shape == ()
        assert empty().dtype == np.int64


@pytest.mark.parametrize("dtype", [*programs.DTYPES, "bfloat16"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_dtypes(framework: str, dtype: str) -> None:
    r = programs.backwards(dtype).returning()
    if dtype == "bfloat16":
        bits = importlib.import_module("ml_dtypes").bfloat16
        x: Any = np.array([0, 1, 1, 0], bits)
        if framework != "numpy":
            own = tvm.nd.array(x)
            x = own if framework == "NDArray" else pytest.importorskip("torch").from_dlpack(own)
    else:
        x = maker(framework)(programs.values(dtype))
    for _ in range(3):
        y = r(x)
        assert (type(y), y.dtype) == (kind_of(framework), x.dtype)
        back = y.numpy() if isinstance(y, NDArray) else y.tolist()
        assert [float(each) for each in back] == [0, 1, 1, 0]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_any_layout_of_the_inputs(parts: Any, framework: str) -> None:
    x = np.arange(24, dtype="float32").reshape(4, 6)
    whole = maker(framework)(x)
    for _ in range(2):
        for part in (whole[::2, 1:], whole[:0], whole[:, :0]):
            y, z = parts(part)
            np.testing.assert_array_equal(values(y), values(part) + 1)
            np.testing.assert_array_equal(values(z), values(part).sum(1))


def test_large_outputs_are_their_own(parts: Any) -> None:
    x = np.ones((4096, 4096), "float32")
    y, _ = parts(x)
    again, _ = parts(x)
    assert y.flags.owndata
    assert not np.shares_memory(y, again)
    assert (y == 2).all()


def test_declared_layouts_and_alignments() -> None:
    torch = pytest.importorskip("torch")
    n = te.var("n")
    x = te.placeholder((n, 3), name="X")
    y = te.compute((n, 3), lambda i, j: x[i, j] * 2.0, name="Y")
    s = te.create_schedule(y.op)
    columns = tir.decl_buffer((n, 3), name="Y", layout="left")
    aligned = tir.decl_buffer((n, 3), name="Y", data_alignment=128)
    data = np.arange(6, dtype="float32").reshape(2, 3)
    for buffer in (columns, aligned):
        r = tvm.build(s, [x, y], binds={y: buffer}).returning()
        for given in (data, torch.from_numpy(data), tvm.nd.array(data)):
            made = r(given)
            assert type(made) is type(given)
            np.testing.assert_array_equal(values(made), data * 2)
            if buffer is columns and isinstance(made, np.ndarray):
                assert made.flags.f_contiguous
    strided = tir.decl_buffer((n, 3), name="Y", strides=(4, 1))
    f = tvm.build(s, [x, y], binds={y: strided}, name="f")
    with pytest.raises(ValueError, match=r"f: output 1 'Y': expected a compact output, got .*4, 1"):
        f.returning()


# ---- out -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_out_is_written_and_returned(parts: Any, framework: str) -> None:
    make = maker(framework)
    x = make(np.ones((2, 3), "float32"))
    add = build(*_sum()).returning()
    for call in (parts._call_slowly, parts, parts):
        y, z = make(np.zeros((2, 3), "float32")), make(np.zeros(2, "float32"))
        made = call(x, out=(y, z))
        assert made[0] is y
        assert made[1] is z
        assert values(z).tolist() == [3, 3]
        made = call(X=x, out=(None, z))
        assert made[1] is z
        assert values(made[0]).tolist() == [[2, 2, 2]] * 2
    v = make(np.ones(3, "float32"))
    for call in (add._call_slowly, add, add):
        w = make(np.zeros(6, "float32"))[::2]
        for out in (w, (w,)):
            assert call(v, v, out=out) is w
            assert values(w).tolist() == [2, 2, 2]
        assert call(v, v, out=v) is v  # in place
        v = make(np.ones(3, "float32"))


def test_what_is_wrong_with_out(parts: Any) -> None:
    x = np.ones((2, 3), "float32")
    fixed = np.zeros(2, "float32")
    fixed.flags.writeable = False
    with pytest.raises(TypeError, match=r"out: expected a tuple of 2 arrays \(Y, Z\), got ndarray"):
        parts(x, out=x)
    with pytest.raises(TypeError, match=r"expected a tuple of 2 arrays .*got a tuple of 1"):
        parts(x, out=(x,))
    with pytest.raises(TypeError, match="got list: results are written to arrays"):
        parts(x, out=[x.copy(), np.zeros(2, "float32")])
    for call in (parts, parts._call_slowly):
        with pytest.raises(ValueError, match=r"parts: out\[1\]: expected shape\[0\] == 2 .*got 3"):
            call(x, out=(x.copy(), np.zeros(3, "float32")))
        with pytest.raises(ValueError, match=r"parts: out\[1\]: expected a writable array"):
            call(x, out=(None, fixed))
        with pytest.raises(ValueError, match=r"out\[0\]: .* shares no memory with out\[1\]"):
            call(x, out=(z := x.copy(), z[:, 0]))


def test_an_input_called_out() -> None:
    n = te.var("n")
    x = te.placeholder((n,), name="out")
    r = build(x, te.compute((n,), lambda i: x[i] * 2.0, name="Y")).returning()
    v, w = np.ones(2, "float32"), np.zeros(2, "float32")
    for call in (r._call_slowly, r):
        assert call(v, out=w) is w
        with pytest.raises(TypeError, match="expected 1 input"):
            call(out=v)


# ---- What is refused -----------------------------------------------------------------------------

BAD: list[tuple[Any, type[Exception], str]] = [
    ((), TypeError, r"parts: expected 1 input \(X\), got 0"),
    ((np.ones((2, 3), "f4"),) * 2, TypeError, r"expected 1 input \(X\), got 2"),
    ((np.ones((2, 3)),), TypeError, "argument 0 'X': expected dtype float32, got float64"),
    ((np.ones(3, "f4"),), ValueError, "argument 0 'X': expected ndim == 2, got 1"),
    (([[1.0]],), TypeError, r"argument 0 'X': expected an array .*got list: pass np.asarray"),
    ((2.5,), TypeError, "argument 0 'X': expected an array, got a float"),
    ((None,), TypeError, "argument 0 'X': expected an array"),
    ((np.ma.masked_array(np.ones((2, 3), "f4")),), TypeError, "got a masked array"),
]


@pytest.mark.parametrize(("args", "error", "text"), BAD, ids=[each[2] for each in BAD])
def test_wrong_inputs(parts: Any, args: Any, error: type[Exception], text: str) -> None:
    for call in (parts._call_slowly, parts, parts):
        with pytest.raises(error, match=text):
            call(*args)


def test_inputs_that_do_not_fit_each_other() -> None:
    r, x = build(*_sum()).returning(), np.ones(4, "float32")
    for make in (np.asarray, tvm.nd.array):
        for _ in range(2):
            text = r"f: argument 1 'Y': expected shape\[0\] == 4 \(n, as argument 0 .*\), got 3"
            with pytest.raises(ValueError, match=text):
                r(make(x), make(x[:3]))
    with pytest.raises(TypeError, match="argument 0 'X': given by position and by name"):
        r(x, X=x)
    with pytest.raises(TypeError, match="expected inputs by name among Y, got 'y'"):
        r(x, y=x)


def test_shapes_that_cannot_be() -> None:
    n, s = te.var("n"), te.var("s", "int64")
    x = te.placeholder((n,), name="X")
    less = build(x, te.compute((n - 3,), lambda i: x[i], name="Y")).returning()
    text = r"f: output 1 'Y': expected extents of at least 0, got the shape \(-1,\)"
    many = build(x, s, te.compute((s, 2**40), lambda i, j: x[0], name="Y")).returning()
    torch = pytest.importorskip("torch")
    for make in (np.asarray, tvm.nd.array, torch.from_numpy):
        given = make(np.ones(2, "float32"))
        for _ in range(2):
            with pytest.raises(ValueError, match=text):
                less(given)
            for size in (2**20, 2**23, 2**40):
                with pytest.raises(Exception, match=r"f: output 2 'Y': "):
                    many(given, size)
    assert less(np.ones(5, "float32")).shape == (2,)


def test_programs_that_return_nothing() -> None:
    m = te.var("m")
    x = te.placeholder((4,), name="X")
    f = build(x, te.compute((m,), lambda i: x[0], name="Y"))
    with pytest.raises(ValueError, match=r"f: output 1 'Y': expected a shape that follows .*got m"):
        f.returning()
    buffer = tir.decl_buffer((4,), name="A")
    ib = tir.ir_builder.create()
    a = ib.buffer_ptr(buffer)
    with ib.for_range(0, 4, name="i") as i:
        a[i] = a[i] + 1.0
    changes = tvm.build(tir.PrimFunc((buffer.data,), ib.get(), {buffer.data: buffer}, "changes"))
    with pytest.raises(TypeError, match=r"changes: expected outputs that are written .*got 'A'"):
        changes.returning()
    module = tvm.runtime.Module({"g": tvm.runtime.PackedFunc(len, name="g")})
    with pytest.raises(TypeError, match="returning: g: expected a compiled Function"):
        module.returning()


# ---- Frameworks' own rules -----------------------------------------------------------------------


def test_subclasses_of_numpys_arrays_give_plain_ones(parts: Any) -> None:
    class Own(np.ndarray[Any, Any]):
        pass

    x = np.ones((2, 3), "float32")
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix(x)
    for given in (x.view(Own), matrix):
        assert type(parts(given)[0]) is np.ndarray


@pytest.mark.parametrize("shape", [(), (3,), (0, 3), (3, 0), (1, 1), (2, 3, 4), (300, 300)])
def test_tensors_of_torch_are_as_torch_makes_them(shape: tuple[int, ...]) -> None:
    """Small ones come from torch's C interface, and large ones from DLPack's."""
    torch = pytest.importorskip("torch")
    for dtype in ("bool", "int8", "uint16", "int64", "bfloat16", "float16", "float32", "float64"):
        x = te.placeholder(shape, dtype, name="x")
        same = build(x, te.compute(shape, lambda *i, x=x: x(*i), name="y")).returning()
        given = torch.ones(shape).to(getattr(torch, dtype))
        for _ in range(3):
            y, wanted = same(given), torch.empty(shape, dtype=given.dtype)
            assert type(y) is torch.Tensor and torch.equal(y, given)
            assert (y.dtype, y.shape, y.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
            assert (y.device, y.requires_grad, y.is_leaf) == (wanted.device, False, True)
            assert (y._version, y.storage_offset()) == (0, 0)
            assert sys.getrefcount(y) == sys.getrefcount(wanted)
    if foreign.torch_allocator(torch) is not None and y.numel() < 1000:
        y.resize_(2000)


def test_torchs_fields_are_found_in_all_modes() -> None:
    torch = pytest.importorskip("torch")
    found = foreign.torch_fields(torch)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            assert foreign.torch_fields(torch) == found
            assert (foreign.torch_allocator(torch) is None) == (found is None)


def test_torchs_interface_is_tested_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(foreign, "_TORCH_FUNCTIONS", ("no_such_function",) * 4)
    assert foreign.torch_allocator(torch) is None
    monkeypatch.undo()
    found = foreign.torch_allocator(torch)
    if found is not None:
        wrong = found._replace(dtypes={**found.dtypes, "float64": found.dtypes["float32"]})
        assert not foreign._makes_tensors(torch, wrong)


def test_torchs_rules(parts: Any) -> None:
    torch = pytest.importorskip("torch")
    leaf = torch.nn.Parameter(torch.ones(2, 3))
    for _ in range(2):
        with pytest.raises(BufferError, match="expected a tensor that doesn't require grad"):
            parts(leaf)
        with torch.no_grad():
            y, _ = parts(leaf)
        assert type(y) is torch.Tensor
        assert not y.requires_grad
        with torch.inference_mode():
            y, _ = parts(torch.ones(2, 3))
        assert y.is_inference()
        with torch.device("meta"):
            assert parts(leaf.data)[0].device.type == "cpu"
        with pytest.raises(Exception, match="argument 0 'X'"):
            torch.func.vmap(lambda each: parts(each)[0])(torch.ones(4, 2, 3))

    class Own(torch.Tensor):  # type: ignore[misc, name-defined]
        pass

    y, _ = parts(torch.ones(2, 3).as_subclass(Own))
    assert type(y) is Own


def test_an_array_api_library_makes_its_own() -> None:
    class Space:
        @staticmethod
        def from_dlpack(array: Any) -> Any:
            return "made", np.from_dlpack(array)

    class Array:
        def __init__(self) -> None:
            self.memory = np.ones(3, "float32")

        def __dlpack__(self, **options: Any) -> Any:
            return self.memory.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.memory.__dlpack_device__()

        def __array_namespace__(self) -> type:
            return Space

    what, made = build(*_sum()).returning()(Array(), np.ones(3, "float32"))
    assert what == "made"
    assert made.tolist() == [2, 2, 2]


def test_numpy_has_no_bfloat16_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    n = te.var("n")
    x = te.placeholder((n,), name="X")
    y = te.compute((n,), lambda i: x[i].astype("bfloat16"), name="Y")
    f = build(x, y)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(TypeError, match=r"f: output 1 'Y': .*no dtype bfloat16: install ml_dtypes"):
        f.returning()(np.ones(3, "float32"))
    assert str(f.returning()(tvm.nd.array(np.ones(3, "float32"))).dtype) == "bfloat16"


# ---- Callbacks, objects, what stays --------------------------------------------------------------


def test_calls_inside_of_callbacks() -> None:
    n = te.var("n")
    x = te.placeholder((n,), name="X")

    def body(ins: Any, outs: Any) -> Any:
        ib = tir.ir_builder.create()
        source, target = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        with ib.for_range(0, n, name="i") as i:
            target[i] = source[i] * 2.0
        ib.emit(tvm.call_packed("tests.returning", outs[0]))
        return ib.get()

    y = te.extern((n,), [x], body, name="Y")
    r = tvm.build(te.create_schedule(y.op), [x, y], name="calls").returning()
    double = build(*_sum()).returning()

    def callback(array: NDArray) -> None:
        v = np.full(2, 3, "float32")
        array.copyfrom(array.numpy() + double(v, v)[0])
        if array.numpy()[0] > 10:
            raise LookupError("too large")

    tvm.register_func("tests.returning", callback)
    try:
        for make in (np.asarray, tvm.nd.array, maker("torch")):
            for _ in range(2):
                assert values(r(make(np.ones(2, "float32")))).tolist() == [8, 8]
                with pytest.raises(LookupError, match="too large"):
                    r(make(np.full(2, 9, "float32")))
    finally:
        tvm.remove_global_func("tests.returning")


def test_it_is_an_object_as_the_function_is(parts: Any) -> None:
    assert parts.name == parts.__name__ == "parts"
    assert repr(parts) == "<Returning parts>"
    assert str(inspect.signature(parts)) == "(X, *, out=None)"
    assert copy.copy(parts) is copy.deepcopy(parts) is parts
    assert isinstance(parts, Returning)
    x = np.ones((2, 3), "float32")
    again = pickle.loads(pickle.dumps(parts))
    assert again(x)[1].tolist() == [3, 3]
    module = programs.parts()
    r = module.returning()
    del module
    gc.collect()
    assert r(x)[1].tolist() == [3, 3]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_calls_leave_nothing(parts: Any, framework: str) -> None:
    make = maker(framework)
    x, narrow = make(np.ones((2, 3), "float32")), make(np.ones(3, "float32"))
    y, z = parts(x)

    def call() -> None:
        parts(x)
        parts(X=x)
        parts(x, out=(y, z))
        for bad in ({"out": (y, y)}, {"out": y}, {"Y": x}):
            with pytest.raises((TypeError, ValueError)):
                parts(x, **bad)
        with pytest.raises(ValueError, match="ndim"):
            parts(narrow)

    assert traced_growth(call, 100, 1000) < 1000
    watched = (x, y, z, parts, None, np.dtype("float32"))
    before = [sys.getrefcount(each) for each in watched]
    for _ in range(100):
        call()
    after = [sys.getrefcount(each) for each in watched]
    # None is shared by all, and immortal from Python 3.12 on.
    changes = [abs(b - a) for a, b in zip(before, after, strict=True)]
    assert max(changes) < 50, changes


def test_numpys_table_is_the_published_one() -> None:
    if call_path() is None:
        pytest.skip("no compiled call path")
    header = Path(np.get_include(), "numpy", "__multiarray_api.h").read_text(encoding="utf-8")
    found = re.search(r"#define PyArray_NewFromDescr \\\n.*?PyArray_API\[(\d+)\]", header, re.S)
    assert found is not None
    assert int(found[1]) == foreign._NEW_FROM_DESCR
    assert foreign.numpy_new_array() != 0
