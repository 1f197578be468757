"""C calls what Python has built: `c_caller.c`, compiled by the system's compiler."""

from __future__ import annotations

import ctypes
import gc
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import te
from minitvm.runtime import dlpack, values
from minitvm.runtime.c_function import CFunction
from minitvm.runtime.device_type import DEVICE_TYPES
from minitvm.runtime.dtype import TypeCode
from minitvm.runtime.packed_func import PackedFunc
from minitvm.runtime.values import ArgTypeCode, TVMByteArray, TVMValue

SOURCE = Path(__file__).with_name("c_caller.c")
N = 5
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
# enum Damage of the C source: what is wrong with a call of z = x * y, and what is said of it.
DAMAGES: dict[str, str | None] = {
    "NO_DAMAGE": None,
    "TOO_FEW": r"TypeError: multiply: expected 3 arguments \(X, Y, Z\), got 2",
    "TOO_MANY": r"TypeError: multiply: expected 3 arguments \(X, Y, Z\), got -1",
    "NEGATIVE_COUNT": r"TypeError: multiply: expected 3 arguments \(X, Y, Z\), got -3",
    "NO_ARGS": "ValueError: multiply: expected 3 arguments, got a null pointer",
    "NO_CODES": "ValueError: multiply: expected 3 type codes, got a null pointer",
    "NO_RESULTS": None,
    "CODE_INT": "TypeError: multiply: argument 1 'Y': expected an array, got an integer",
    "CODE_FLOAT": "TypeError: multiply: argument 1 'Y': expected an array, got a float",
    "CODE_STR": "TypeError: multiply: argument 1 'Y': expected an array, got a str",
    "CODE_UNKNOWN": "TypeError: multiply: argument 1 'Y': expected an array, got unknown",
    "CODE_NEGATIVE": "TypeError: multiply: argument 1 'Y': expected an array, got unknown",
    "NULL_TENSOR": "TypeError: multiply: argument 1 'Y': expected an array, got a null pointer",
    "NULL_DATA": "ValueError: multiply: argument 1 'Y': expected memory for 25 elements, got a nul",
    "NULL_SHAPE": "BufferError: multiply: argument 1 'Y': expected a DLTensor with a shape, got NU",
    "NULL_STRIDES": None,
    "NEGATIVE_NDIM": "BufferError: multiply: argument 1 'Y': expected a DLTensor of 0 to 64 dimen",
    "OTHER_NDIM": "ValueError: multiply: argument 1 'Y': expected ndim == 2, got 1",
    "OTHER_DTYPE": "TypeError: multiply: argument 1 'Y': expected dtype float32, got float64",
    "OTHER_DEVICE": r"ValueError: multiply: argument 1 'Y': expected an array on cpu, got one on c",
    "OTHER_SHAPE": r"ValueError: multiply: argument 1 'Y': expected shape\[1\] == 5 \(n, as",
    "NEGATIVE_SHAPE": r"ValueError: multiply: argument 0 'X': expected shape\[1\] == 5 .*, got -1",
    "TRANSPOSED": None,
    "ODD_ADDRESS": "ValueError: multiply: argument 1 'Y': expected data aligned to 4 bytes, got",
    "OFFSET": None,
    "OVERLAP": "ValueError: multiply: argument 2 'Z': expected an output that shares no memory",
}  # fmt: skip


def _compile(compiler: str, *arguments: str) -> None:
    done = subprocess.run(
        [compiler, f"-I{tvm.get_include()}", *WARNINGS, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    made = tmp_path_factory.mktemp("c") / "caller.so"
    _compile(compiler, "-std=c99", "-shared", "-fPIC", "-pthread", str(SOURCE), "-o", str(made))
    return made


@pytest.fixture(scope="module")
def caller(library: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(library))  # calls without the GIL


def build_multiply() -> tvm.runtime.Module:
    n = te.var("n")
    x, y = te.placeholder((n, n), name="X"), te.placeholder((n, n), name="Y")
    k = te.reduce_axis((0, n), name="k")
    z = te.compute((n, n), lambda i, j: te.sum(x[i, k] * y[k, j], axis=k), name="Z")
    return tvm.build(te.create_schedule(z.op), [x, y, z], name="multiply", auto_schedule=False)


ANY = build_multiply()


@pytest.fixture(scope="module")
def multiply() -> tvm.runtime.Module:
    return ANY


def _operands() -> tuple[Any, Any, Any]:
    x, y = np.random.default_rng(0).random((2, N, N), dtype="float32")
    return x, y, np.full((N, N), 7, "float32")


def _call(
    library: ctypes.CDLL, function: CFunction, damage: str, x: Any, y: Any, z: Any
) -> tuple[int, str, int, int]:
    """The status, the message, and what was written as the result."""
    value, code = ctypes.c_int64(), ctypes.c_int()
    message = ctypes.create_string_buffer(400)
    status = library.multiply(
        ctypes.byref(function), *(ctypes.c_void_p(each.ctypes.data) for each in (x, y, z)),
        ctypes.c_int64(N), list(DAMAGES).index(damage), ctypes.byref(value), ctypes.byref(code),
        message, ctypes.c_size_t(400),
    )  # fmt: skip
    return status, message.value.decode(), value.value, code.value


@pytest.mark.parametrize("with_gil", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_calls_from_c(
    library: Path, multiply: tvm.runtime.Module, damage: str, with_gil: bool
) -> None:
    loaded = ctypes.PyDLL(str(library)) if with_gil else ctypes.CDLL(str(library))
    x, y, z = _operands()
    status, message, value, code = _call(loaded, multiply.c_function, damage, x, y, z)
    expected = DAMAGES[damage]
    assert (value, code) == (0, ArgTypeCode.NULL)
    if expected is None:
        assert (status, message) == (0, "")
        right = y.T if damage == "TRANSPOSED" else y
        np.testing.assert_allclose(z, x @ right, rtol=1e-5)
    else:
        assert status == -1
        assert re.match(expected, message), message
        assert (z == 7).all()


def test_a_function_is_kept_by_its_struct(caller: ctypes.CDLL) -> None:
    function = build_multiply().c_function
    gc.collect()
    x, y, z = _operands()
    assert _call(caller, function, "NO_DAMAGE", x, y, z)[0] == 0
    np.testing.assert_allclose(z, x @ y, rtol=1e-5)


def test_threads_of_c(caller: ctypes.CDLL, multiply: tvm.runtime.Module) -> None:
    """Each has its own last error, "" before the first."""
    x, y, z = _operands()
    assert _call(caller, multiply.c_function, "NULL_DATA", x, y, z)[0] == -1
    message = ctypes.create_string_buffer(400)
    function = multiply.c_function
    operands = [ctypes.c_void_p(each.ctypes.data) for each in (x, y, z)]
    failed = caller.multiply_in_a_thread(
        ctypes.byref(function), *operands, ctypes.c_int64(N), message, ctypes.c_size_t(400)
    )
    assert not failed
    assert re.match(DAMAGES["TOO_FEW"] or "", message.value.decode())
    np.testing.assert_allclose(z, x @ y, rtol=1e-5)
    last_error = ctypes.CFUNCTYPE(ctypes.c_char_p)(function.last_error)
    assert b"expected memory for 25 elements" in last_error()


def test_many_threads_of_python(caller: ctypes.CDLL, multiply: tvm.runtime.Module) -> None:
    wrong: list[object] = []

    def work(damage: str) -> None:
        x, y, z = _operands()
        for _ in range(50):
            status, message, *_ = _call(caller, multiply.c_function, damage, x, y, z)
            expected = DAMAGES[damage]
            if bool(status) != bool(expected) or not re.match(expected or "", message):
                wrong.append((damage, message))

    threads = [threading.Thread(target=work, args=(damage,)) for damage in DAMAGES]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


_MEMORY = np.zeros(4096, "float32")


@given(st.data())
@settings(deadline=None)
def test_any_fields_at_all(data: st.DataObject) -> None:
    """A status, and with -1 a text: whatever the fields hold, as long as addresses that aren't NULL
    lead to memory that strides stay in."""
    f = ANY.c_function
    tensors, kept = [], []
    for _ in range(3):
        pairs = st.sampled_from([*[[4, 4]] * 6, [4, 1], [4, 1], [1, 4], [0, 4], [-1, 4], None])
        shape, strides = data.draw(pairs), data.draw(pairs)
        if strides is None and shape is not None and data.draw(st.booleans()):
            strides = data.draw(st.lists(st.integers(-20, 20), min_size=2, max_size=2))
        dims = [None if each is None else (ctypes.c_int64 * 2)(*each) for each in (shape, strides)]
        at = [None if each is None else ctypes.addressof(each) for each in dims]
        place = data.draw(st.sampled_from([*[4096 + 512 * i for i in range(12)], 4098, None]))
        tensors.append(
            dlpack.DLTensor(
                None if place is None else _MEMORY.ctypes.data + place,
                dlpack.DLDevice(data.draw(st.sampled_from([1, 1, 1, 2])), 0),
                data.draw(st.sampled_from([2, 2, 2, 2, 0, 1, -1])),
                dlpack.DLDataType(2, data.draw(st.sampled_from([32, 32, 32, 64, 0])), 1),
                *at,
                data.draw(st.sampled_from([0, 0, 0, 4, 3])),
            )
        )
        kept.append(dims)
    given_values = (TVMValue * 3)()
    codes = (ctypes.c_int * 3)()
    for i, tensor in enumerate(tensors):
        codes[i] = data.draw(st.sampled_from([7, 7, 7, 13, *range(-2, 16)]))
        is_there = data.draw(st.sampled_from([True, True, True, False]))
        given_values[i].v_handle = ctypes.addressof(tensor) if is_there else None
    entry = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 2, ctypes.c_int,
                             *[ctypes.c_void_p] * 3)  # fmt: skip
    count = data.draw(st.sampled_from([3, 3, 3, 3, 2, 0, -1, 4]))
    tables = [data.draw(st.sampled_from([ctypes.addressof(each)] * 6 + [None]))
              for each in (given_values, codes)]  # fmt: skip
    status = entry(f.call)(*tables, count, None, None, f.resource)
    text = ctypes.CFUNCTYPE(ctypes.c_char_p)(f.last_error)() or b""
    assert status == 0 or (status == -1 and b"Error: multiply: " in text), text


# -- Python functions behind the same entry -------------------------------------------------------


def _call_one(
    caller: ctypes.CDLL, function: Callable[..., Any], field: str, raw: Any, code: int
) -> tuple[int, str, TVMValue, int]:
    value, ret, ret_code = TVMValue(**{field: raw}), TVMValue(v_int64=99), ctypes.c_int(99)
    message = ctypes.create_string_buffer(400)
    entry = PackedFunc(function).c_function
    status = caller.call_with(
        ctypes.byref(entry), ctypes.byref(value), code, ctypes.byref(ret), ctypes.byref(ret_code),
        message, ctypes.c_size_t(400),
    )  # fmt: skip
    return status, message.value.decode(), ret, ret_code.value


def same(x: Any) -> Any:
    return x


@pytest.mark.parametrize(
    ("field", "raw", "code"),
    [
        ("v_int64", -3, ArgTypeCode.INT),
        ("v_float64", 1.5, ArgTypeCode.FLOAT),
        ("v_handle", 4096, ArgTypeCode.HANDLE),
        ("v_handle", None, ArgTypeCode.NULL),
    ],
)
def test_numbers_cross(caller: ctypes.CDLL, field: str, raw: Any, code: int) -> None:
    status, message, ret, ret_code = _call_one(caller, same, field, raw, code)
    assert (status, message, ret_code) == (0, "", code)
    assert getattr(ret, field) == raw


@pytest.mark.parametrize(
    ("field", "raw", "code", "message"),
    [
        ("v_handle", None, ArgTypeCode.STR, "expected a handle of type code 11, got NULL"),
        ("v_handle", None, ArgTypeCode.BYTES, "expected a handle of type code 12, got NULL"),
        ("v_handle", None, ArgTypeCode.OBJECT_HANDLE, "expected a handle of type code 8, got NU"),
        ("v_handle", None, ArgTypeCode.MODULE_HANDLE, "expected a handle of type code 9, got NU"),
        ("v_handle", None, ArgTypeCode.PACKED_FUNC_HANDLE, "expected a handle of type code 10"),
        ("v_handle", None, ArgTypeCode.DLTENSOR_HANDLE, "expected a handle of type code 7, got NU"),
        ("v_handle", None, ArgTypeCode.NDARRAY_HANDLE, "expected a handle of type code 13, got N"),
        ("v_int64", 1, 14, "expected a type code of the packed ABI, got 14"),
        ("v_int64", 1, 15, "expected a type code of the packed ABI, got 15"),
        ("v_int64", 1, -7, "expected a type code of the packed ABI, got -7"),
        ("v_str", b"text", ArgTypeCode.STR, "TypeError: same: result: expected a number or None"),
    ],
)
def test_what_cannot_cross(
    caller: ctypes.CDLL, field: str, raw: Any, code: int, message: str
) -> None:
    status, said, ret, ret_code = _call_one(caller, same, field, raw, code)
    assert status == -1
    assert message in said
    assert (ret.v_int64, ret_code) == (0, ArgTypeCode.NULL)


_FLOATS = {"device": dlpack.DLDevice(1, 0), "dtype": dlpack.DLDataType(2, 32, 1)}


@pytest.mark.parametrize(
    ("struct", "code", "message"),
    [
        ((ctypes.c_void_p * 2)(), ArgTypeCode.PACKED_FUNC_HANDLE, "one whose function is NULL"),
        (TVMByteArray(None, 8), ArgTypeCode.BYTES, "expected 8 bytes, got a null pointer"),
        (dlpack.DLTensor(ndim=2, **_FLOATS), ArgTypeCode.DLTENSOR_HANDLE, "with a shape, got NULL"),
        (dlpack.DLTensor(ndim=-1, **_FLOATS), ArgTypeCode.NDARRAY_HANDLE, "got ndim -1"),
        (dlpack.DLTensor(), ArgTypeCode.NDARRAY_HANDLE, "expected memory of cpu"),
        (dlpack.DLTensor(**_FLOATS), ArgTypeCode.NDARRAY_HANDLE, "got a NULL address"),
    ],
)
def test_broken_structs(caller: ctypes.CDLL, struct: Any, code: int, message: str) -> None:
    status, said, *_ = _call_one(caller, same, "v_handle", ctypes.addressof(struct), code)
    assert status == -1
    assert message in said


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("gone"), "KeyError: 'gone'"),
        (ValueError("a\0b"), "ValueError: a\\0b"),
        (ValueError("a\ud800"), "ValueError: a\\ud800"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_exceptions_become_text(caller: ctypes.CDLL, error: BaseException, text: str) -> None:
    def fail(x: Any) -> None:
        raise error

    assert _call_one(caller, fail, "v_int64", 0, 0)[:2] == (-1, text)


def test_an_exception_that_cannot_be_shown(caller: ctypes.CDLL) -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def fail(x: Any) -> None:
        raise Silent

    assert _call_one(caller, fail, "v_int64", 0, 0)[:2] == (-1, "minitvm: an error without a text")


def test_a_call_below_a_call(caller: ctypes.CDLL) -> None:
    """From Python to C to Python and so on; the error of the innermost is the one of its caller."""

    def deep(depth: int) -> int:
        if depth == 0:
            raise LookupError("at the bottom")
        status, message, *_ = _call_one(caller, deep, "v_int64", depth - 1, 0)
        assert (status, "at the bottom" in message) == ((-1, True) if depth == 1 else (0, False))
        return depth

    assert deep(6) == 6


# -- The header -----------------------------------------------------------------------------------


def test_the_numbers_are_ours(caller: ctypes.CDLL) -> None:
    class Number(ctypes.Structure):
        _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_long))

    table = (Number * 200).in_dll(caller, "numbers")
    found: dict[str, int] = {}
    for row in table:
        if row.name is None:
            break
        found[row.name.decode()] = row.value
    names = {"CFunction": "MiniTVMFunction"}
    classes: dict[str, Any] = {
        names.get(each.__name__, each.__name__): each
        for each in (*vars(dlpack).values(), *vars(values).values(), CFunction)
        if isinstance(each, type) and issubclass(each, ctypes.Structure | ctypes.Union)
    }
    classes["TVMPackedFunction"] = ctypes.c_void_p * 2
    for name, value in found.items():
        if match := re.match(r"sizeof\((\w+)\)", name):
            assert ctypes.sizeof(classes[match[1]]) == value, name
        elif match := re.match(r"offsetof\((\w+), (\w+)\)", name):
            assert getattr(classes[match[1]], match[2]).offset == value, name
    codes = {int(code) for code in ArgTypeCode}
    assert {value for name, value in found.items() if name.startswith("kTVM")} == codes
    assert found["TVM_CRT_MAX_ARGS"] == values.TVM_CRT_MAX_ARGS
    kinds = {name.removeprefix("kDL").lower(): value for name, value in found.items()
             if name.startswith("kDL")}  # fmt: skip
    for code in (TypeCode.INT, TypeCode.UINT, TypeCode.FLOAT, TypeCode.BFLOAT, TypeCode.COMPLEX,
                 TypeCode.BOOL):  # fmt: skip
        assert kinds[code.name.lower()] == code
    for device in ("cpu", "cuda", "cuda_managed"):
        assert kinds[device.replace("_", "")] == DEVICE_TYPES[device]


def test_the_documented_call(library: Path, multiply: tvm.runtime.Module, tmp_path: Path) -> None:
    """The C code of docs/c.md, after its text."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang") or ""
    page = (Path(__file__).parent.parent.parent / "docs" / "c.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```c\n(#include.*?)^```$", page, re.M | re.S)
    (tmp_path / "scale.c").write_text(code)
    made = tmp_path / "scale.so"
    _compile(compiler, "-std=c99", "-shared", "-fPIC", str(tmp_path / "scale.c"), "-o", str(made))
    n = te.var("n")
    x = te.placeholder((n,), name="X")
    y = te.compute((n,), lambda i: x[i] * 2.0, name="Y")
    function = tvm.build(te.create_schedule(y.op), [x, y], name="twice").c_function
    source, target = np.arange(6, dtype="float32"), np.empty(6, "float32")
    at = [ctypes.c_void_p(each.ctypes.data) for each in (source, target)]
    assert ctypes.CDLL(str(made)).scale(ctypes.byref(function), *at, ctypes.c_int64(6)) == 0
    assert target.tolist() == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("standard", ["c++11", "c++20"])
def test_the_header_is_cpp_too(tmp_path: Path, standard: str) -> None:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    source = tmp_path / "empty.cpp"
    source.write_text("#include <minitvm/c_runtime_api.h>\nstatic_assert(sizeof(DLTensor) == 48);\n"
                      .replace(");", ', "DLTensor");'))  # fmt: skip
    _compile(compiler, f"-std={standard}", "-fsyntax-only", str(source))
