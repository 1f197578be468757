"""The compiled call path against the Python code that defines what a call is."""

from __future__ import annotations

import array
import ctypes
import gc
import inspect
import itertools
import pydoc
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import minitvm.runtime.exchange as exchange
import minitvm.runtime.foreign as foreign
from minitvm import build, nd, te
from minitvm.contrib.dlpack import to_numpy_func, to_pytorch_func
from minitvm.runtime import Device, DType, NDArray, PackedFunc, cpu
from minitvm.runtime.call_path import call_path

n = te.var("n")
X, Y = (te.placeholder((n,), name=name) for name in "XY")
SCALE = te.var("scale", "float32")
Z = te.compute((n,), lambda i: X[i] * SCALE + Y[i], name="Z")
SCALE_ADD = build(te.create_schedule(Z.op), [X, Y, SCALE, Z], name="scale_add")


class Callable2:
    """An object that can be called, which crosses as a function."""

    def __call__(self) -> int:
        return 2


class ArrayOfItsOwn(np.ndarray[Any, Any]):
    """A subclass, of which nobody knows what it means."""


def fixed(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    values.flags.writeable = False
    return values


f32 = np.arange(12, dtype=np.float32)
ARRAYS: dict[str, Any] = {
    "float32": f32[:3],
    "other dtypes": [np.zeros(3, code) for code in "?bhilqBHILQefdFD"],
    "bfloat16": np.zeros(3, ml_dtypes.bfloat16),
    "rows": f32.reshape(4, 3)[::2],
    "columns": f32.reshape(4, 3)[:, 1],
    "backwards": f32[::-1],
    "transposed": f32.reshape(3, 2, 2).T,
    "broadcast": np.broadcast_to(f32[:1], (5, 3)),
    "0-d": np.array(1.5, np.float32),
    "empty": np.zeros((0, 3), np.float32)[:, ::2],
    "singletons": f32[:3].reshape(1, 3, 1)[::-1],
    "12 dimensions": np.zeros((1,) * 11 + (2,), np.float32)[..., ::2],
    "read-only": fixed(np.zeros(3, np.float32)),
    "foreign order": np.zeros(3, ">f4" if sys.byteorder == "little" else "<f4"),
    "uneven strides": np.zeros(3, [("a", "<f4"), ("b", "u1")])["a"],
    "unaligned": np.frombuffer(bytes(13), np.uint8)[1:].view(np.float32),
    "subclass": np.zeros(3, np.float32).view(ArrayOfItsOwn),
    "masked": np.ma.masked_array(f32[:3], [False, True, False]),
    "structured": np.zeros(3, [("a", "<f4")]),
    "objects": np.array([None, 1, "a"]),
    "dates": np.zeros(3, "M8[s]"),
    "metadata": np.zeros(3, np.dtype("f4", metadata={"a": 1})),
    "NDArray": nd.array(f32[:3]),
    "strided NDArray": nd.array(f32)[::-4],
    "read-only NDArray": nd.from_dlpack(fixed(np.zeros(3, np.float32))),
}
OTHERS: dict[str, Any] = {
    "int": 3, "largest": 2**63 - 1, "too large": 2**63, "too small": -(2**63) - 1, "true": True,
    "false": False, "float": 2.5, "nan": float("nan"), "str": "ünï", "zero in str": "a\0b",
    "surrogate": "\ud800", "bytes": b"a\0b", "bytearray": bytearray(b"ab"), "None": None,
    "null pointer": ctypes.c_void_p(), "pointer": ctypes.c_void_p(0x1234),
    "dtype": DType.of("float32x4"), "device": cpu(0), "other device": Device(2, 3),
    "module": SCALE_ADD, "function": SCALE_ADD.entry_func, "callable": len, "object": object(),
    "called": Callable2(), "numpy int": np.int8(3), "numpy float": np.float32(1.5), "list": [1],
    "type": int, "array.array": array.array("f", [1, 2, 3]),
}  # fmt: skip
VALUES = {**ARRAYS, **OTHERS}
del VALUES["other dtypes"]
VALUES |= {f"dtype {a.dtype}": a for a in ARRAYS["other dtypes"]}


def described(value: object) -> object:
    """What a callback can see of an argument."""
    if isinstance(value, NDArray):
        return value.data, value.shape, value.strides, value.dtype, value.read_only
    if isinstance(value, ctypes.c_void_p):
        return "pointer", value.value
    return value if isinstance(value, float) and value == value else repr(value)


def outcome(call: Callable[[], object]) -> object:
    """What a call returns, or the type and text of what it raises."""
    try:
        return described(call())
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_arguments_arrive_as_python_code_sends_them(value: Any) -> None:
    seen: list[object] = []
    function = PackedFunc(lambda *args: seen.append([described(arg) for arg in args]), name="f")
    results = [
        outcome(partial(call, 1, value, value))
        for call in (function._call_slowly, function, function._call_slowly, function)
    ]
    assert all(result == results[0] for result in results)
    assert all(arrived == seen[0] for arrived in seen)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_arguments_come_back_as_from_python_code(compiled: Any, value: Any) -> None:
    first = compiled.packed("return_first")
    slow, fast, again = (
        outcome(partial(call, value, 1)) for call in (first._call_slowly, first, first)
    )
    assert slow == fast == again


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_compiled_functions_answer_as_by_python_code(value: Any, position: int) -> None:
    function = SCALE_ADD.entry_func

    def arguments() -> list[Any]:
        given = [f32[:3], np.ones(3, np.float32), 2.0, np.zeros(3, np.float32)]
        given[position] = value
        return given

    before = [value.copy() if isinstance(value, np.ndarray) else None]
    slow, fast = (
        outcome(partial(call, *arguments())) for call in (function._call_slowly, function)
    )
    assert slow == fast
    if position < 3 and before[0] is not None:
        np.testing.assert_array_equal(value, before[0])


def test_results_of_each_argument() -> None:
    x, y = f32[:5], f32[5:10]
    for a, b, z in itertools.product(
        (x, nd.array(x), np.repeat(x, 2)[::2]), (y, nd.array(y), y[::-1][::-1]),
        (np.zeros(5, np.float32), np.zeros((5, 3), np.float32)[:, 1]),
    ):  # fmt: skip
        z[:] = 0
        SCALE_ADD(a, b, 2, z)
        np.testing.assert_array_equal(z, x * 2 + y)
        z[:] = 0
        SCALE_ADD(Z=z, scale=2.0, X=a, Y=b)
        np.testing.assert_array_equal(z, x * 2 + y)


# -- Torch ----------------------------------------------------------------------------------------


def torch_tensors(torch: Any) -> dict[str, Any]:
    with torch.inference_mode():
        inference = torch.arange(3.0)
    return {
        "plain": torch.arange(3.0),
        "view": torch.arange(12.0)[3:6],
        "strided": torch.arange(12.0)[::4],
        "expanded": torch.ones(1).expand(3),
        "inference": inference,
        "detached": torch.arange(3.0, requires_grad=True).detach(),
        "requires grad": torch.arange(3.0, requires_grad=True),
        "result that requires grad": torch.arange(3.0, requires_grad=True) * 2,
        "view that requires grad": torch.arange(12.0, requires_grad=True)[:3],
        "parameter": torch.nn.Parameter(torch.arange(3.0)),
        "fixed parameter": torch.nn.Parameter(torch.arange(3.0), requires_grad=False),
        "negated": torch._neg_view(torch.arange(3.0)),
        "imaginary part": torch.arange(3).to(torch.complex64).conj().imag,
        "conjugated": torch.arange(3).to(torch.complex64).conj(),
        "meta": torch.arange(3.0, device="meta"),
        "sparse": torch.arange(3.0).to_sparse(),
        "bool": torch.zeros(3, dtype=torch.bool),
        "bfloat16": torch.zeros(3, dtype=torch.bfloat16),
        "float64": torch.arange(3.0, dtype=torch.float64),
        "0-d": torch.tensor(1.0),
        "empty": torch.zeros(0),
    }


@pytest.mark.parametrize("fields", ["found", "unknown"])
def test_torch_tensors(monkeypatch: pytest.MonkeyPatch, fields: str) -> None:
    torch = pytest.importorskip("torch")
    function = SCALE_ADD.entry_func
    out = torch.zeros(3)
    SCALE_ADD(torch.ones(3), torch.ones(3), 1, out)  # now the type is known
    path = call_path()
    assert path is not None
    found: list[Any] = path.torch_fields[:]
    assert 0 not in found
    if fields == "unknown":
        path.torch_fields[:] = [0, 0, 0]
    try:
        for name, tensor in torch_tensors(torch).items():
            results = []
            for call in (function._call_slowly, function):
                out.fill_(-1)
                answer = outcome(partial(call, tensor, f32[:3], 2.0, out))
                results.append((answer, out.tolist()))
            assert results[0] == results[1], name
            refused = name.startswith(("requires", "result", "view that", "param", "neg", "imag"))
            assert (results[0][0] == "None") == (not refused and name not in (
                "conjugated", "meta", "sparse", "bool", "bfloat16", "float64", "0-d", "empty",
            )), name  # fmt: skip
    finally:
        path.torch_fields[:] = found


def test_what_torch_keeps_is_found() -> None:
    torch = pytest.importorskip("torch")
    found = foreign.torch_fields(torch)
    assert found is not None
    assert found.plain != found.inference
    assert foreign.torch_fields(object()) is None
    assert exchange.functions_of(torch.Tensor)
    assert exchange.functions_of(np.ndarray) is None


# -- Where objects don't look as expected ---------------------------------------------------------

FALLBACK = """
import numpy as np
import minitvm.runtime.foreign as foreign
{patch}
import minitvm
from minitvm import te
X = te.placeholder((3,), name="X")
Y = te.compute((3,), lambda i: X[i] * 2.0, name="Y")
double = minitvm.build(te.create_schedule(Y.op), [X, Y], name="double")
assert type(double.entry_func).__call__ is {call}
for _ in range(3):
    x, y = np.arange(3, dtype="float32"), np.zeros(3, "float32")
    double(x, y)
    assert y.tolist() == [0, 2, 4]
    double(X=x[::-1], Y=y)
    assert y.tolist() == [4, 2, 0]
    double(minitvm.nd.array(x), y)
    assert y.tolist() == [0, 2, 4]
    double.time_evaluator()(x, y)
try:
    double(x, y.astype("float64"))
except TypeError as error:
    assert str(error) == "double: argument 1 'Y': expected dtype float32, got float64"
"""
PYTHON_CODE = "minitvm.runtime.PackedFunc.__call__"


@pytest.mark.parametrize(
    ("patch", "call"),
    [
        ("foreign.type_offset = lambda: None", PYTHON_CODE),
        ("", None),
        ("foreign.numpy_is_as_expected = lambda: False", None),
    ],
    ids=["no type", "unchanged", "no arrays"],
)
def test_python_code_serves_where_the_compiled_path_cannot(patch: str, call: str | None) -> None:
    call = call or "not None and type(double.entry_func).__call__"
    program = FALLBACK.format(patch=patch, call=call)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_numpy_fields_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert foreign.numpy_is_as_expected()
    for field in foreign.NUMPY_FIELDS:
        with monkeypatch.context() as patched:
            patched.setitem(foreign.NUMPY_FIELDS, field, foreign.NUMPY_FIELDS[field] + 4)
            assert not foreign.numpy_is_as_expected(), field


# -- The callable ---------------------------------------------------------------------------------


def test_signature_and_documentation() -> None:
    for each in (SCALE_ADD, SCALE_ADD.entry_func):
        assert str(inspect.signature(each)) == "(X, Y, scale, Z) -> None"
        text = pydoc.plain(pydoc.render_doc(each))
        assert "scale_add(X, Y, scale, Z)" in text
        assert "Z : array of float32, shape (n,), written" in text
        assert "scale : float32" in text
    assert "The result of ``build``" in (type(SCALE_ADD).__doc__ or "")
    odd = te.placeholder((3,), name="in")
    even = te.compute((3,), lambda i: odd[i] + 1.0, name="in")
    module = build(te.create_schedule(even.op), [odd, even], name="odd")
    assert str(inspect.signature(module)) == "(arg0, arg1, /) -> None"


def test_wrappers_of_our_functions_are_the_functions() -> None:
    pytest.importorskip("torch")
    assert to_pytorch_func(SCALE_ADD) is SCALE_ADD
    assert to_numpy_func(SCALE_ADD.entry_func) is SCALE_ADD.entry_func


def test_keywords(compiled: Any) -> None:
    first = compiled.function("return_first")
    for arguments, keywords in (
        ((1, 2), {"Z": 3}), ((), {"Z": 3, "Y": 2, "X": 1}), ((1,), {"Z": 3, "Y": 2}),
        ((1, 2, 3), {"X": 1}), ((1,), {"Z": 3}), ((1, 2), {"W": 3}), ((1, 2, 3), {}),
        ((1, 2), {"Z": 3, "W": 4}), ((), {"".join(("X",)): 1, "Y": 2, "Z": 3}),
    ):  # fmt: skip
        slow, fast = (
            outcome(partial(call, *arguments, **keywords)) for call in (first._call_slowly, first)
        )
        assert slow == fast
    with pytest.raises(TypeError, match=r"^f: expected arguments by position only, got a, b by"):
        PackedFunc(lambda: None, name="f")(a=1, b=2)


def test_very_many_arguments(compiled: Any) -> None:
    count = compiled.packed("return_count")
    for number in (0, 1, 23, 24, 25, 1000, 100_000):
        assert count(*range(number)) == number
    everything = [np.zeros((2,) * 32, np.int8)[..., ::1]] * 24
    wide = [np.zeros((1,) * 32, np.int8)[(slice(None, None, -1),) * 32]] * 24
    assert count(*wide) == len(wide) == len(everything)


def test_recursion_ends_in_an_error(compiled: Any) -> None:
    forward = compiled.packed("forward")

    def again() -> None:
        forward(again)

    with pytest.raises(RecursionError):
        forward(again)
    assert forward(lambda: 3) == 3


def test_references_are_balanced(compiled: Any) -> None:
    torch = pytest.importorskip("torch")
    function, first = SCALE_ADD.entry_func, compiled.packed("return_first")
    x, z, t = f32[:3].copy(), np.zeros(3, np.float32), torch.ones(3)
    watched: list[Any] = [
        x, z, t, nd.array(x), x[::-1], "a string", b"some bytes", 12345678901, 1.5,
        DType.of("int8"), Device(1, 7), ctypes.c_void_p(8), None, function, SCALE_ADD, f32.dtype,
        torch.Tensor, t.neg().requires_grad_(), torch._neg_view(t), object(),
    ]  # fmt: skip

    def calls() -> None:
        for value in watched:
            for arguments in ((value, x, 2.0, z), (x, value, 1, z), (x, x, value, z)):
                outcome(partial(function, *arguments))
            outcome(partial(function, x, x, 1.0, value))
            outcome(partial(function, Y=value, Z=z, X=x, scale=2))
            outcome(partial(first, value))

    for _ in range(3):
        calls()
    gc.collect()
    before = [sys.getrefcount(value) for value in watched]
    for _ in range(50):
        calls()
    gc.collect()
    after = [sys.getrefcount(value) for value in watched]
    assert [b - a for a, b in zip(before, after, strict=True)] == [0] * len(watched)


def test_module_and_function_go_together() -> None:
    B = te.compute((3,), lambda i: i.astype("float32"), name="B")
    module = build(te.create_schedule(B.op), [B], name="iota")
    function = module.entry_func
    b = np.zeros(3, np.float32)
    del module
    gc.collect()
    function(b)
    assert b.tolist() == [0, 1, 2]
    module = build(te.create_schedule(B.op), [B], name="iota")
    del function
    gc.collect()
    module(b)


def test_derived_classes_are_called_by_python_code() -> None:
    class Counting(PackedFunc):
        calls = 0

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            Counting.calls += 1
            return super().__call__(*args, **kwargs)

    function = Counting(lambda a: a + 1, name="f")
    assert type(function) is Counting
    assert function(1) == 2
    assert Counting.calls == 1
    assert PackedFunc(lambda f: f(3))(function) == 4
