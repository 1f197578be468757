"""What is refused, with its text: at build, and at a call before anything is written."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import numpy as np
import pytest

from minitvm import CompileError, Target, build, create_schedule, nd, te, tir
from minitvm.codegen.argument_errors import _KINDS
from minitvm.runtime.dlpack import DLDataType, DLDevice, DLTensor
from minitvm.runtime.packed_func import _PACKED
from minitvm.runtime.values import ArgTypeCode, TVMValue
from minitvm.tir import ir_builder

n, m = te.var("n"), te.var("m")


def f32(*shape: int, fill: float = 7.0) -> Any:
    return np.full(shape, fill, "float32")


@pytest.fixture(scope="module")
def add() -> Any:
    """C[n, m] = A[n, m] + B[m] * 2, and scalar parameters of several kinds before them."""
    A, B = te.placeholder((n, m), name="A"), te.placeholder((m,), name="B")
    C = te.compute((n, m), lambda i, j: A[i, j] + B[j], name="C")
    return build([C], [A, B, C], name="add")


def refused(
    function: Any, args: tuple[Any, ...], kind: type[Exception], text: str, *, whole: bool = True
) -> None:
    """The call raises exactly `text`, and changes no argument."""
    before = [a.copy() if isinstance(a, np.ndarray) and a.size < 1000 else None for a in args]
    with pytest.raises(kind, match=f"^{re.escape(text)}{'$' if whole else ''}") as caught:
        function(*args)
    assert type(caught.value) is kind or issubclass(kind, CompileError)
    for old, new in zip(before, args, strict=True):
        if old is not None:
            np.testing.assert_array_equal(old, new)


# -- The number and the kinds of arguments --------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_count(add: Any, count: int) -> None:
    text = f"add: expected 3 arguments (A, B, C), got {count}"
    refused(add, (f32(1, 1),) * count, TypeError, text)


def test_count_of_one_and_of_none() -> None:
    C = te.compute((3,), lambda i: 1.0, name="C")
    f = build([C], [C], name="ones")
    refused(f, (), TypeError, "ones: expected 1 argument (C), got 0")
    b = ir_builder.create()
    b.emit(tir.call_packed("minitvm.test.none"))
    empty = build(tir.PrimFunc((), b.get(), {}, "nothing"))
    refused(empty, (1,), TypeError, "nothing: expected 0 arguments, got 1")


NO_ARRAYS = [
    (1, "an integer"), (1.5, "a float"), (None, "None"), ("text", "a str"), (b"bytes", "bytes"),
    (len, "a function"), (ctypes.c_void_p(8), "an opaque pointer"), (nd.cpu(0), "a device"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "kind"), NO_ARRAYS, ids=[k for _, k in NO_ARRAYS])
def test_kinds(add: Any, value: Any, kind: str) -> None:
    text = f"add: argument 1 'B': expected an array, got {kind}"
    refused(add, (f32(2, 3), value, f32(2, 3)), TypeError, text)


def test_objects_are_no_arrays(add: Any) -> None:
    text = "add: argument 0 'A': expected an array (numpy, DLPack...), got dict"
    refused(add, ({}, f32(3), f32(2, 3)), TypeError, text)


# -- Ranks, dtypes, shapes ------------------------------------------------------------------------


def test_ndim(add: Any) -> None:
    text = "add: argument 0 'A': expected ndim == 2, got 1"
    refused(add, (f32(3), f32(3), f32(2, 3)), ValueError, text)


@pytest.mark.parametrize("dtype", ["float64", "int8", "uint16", "bool", "float16", "complex64"])
def test_dtype(add: Any, dtype: str) -> None:
    text = f"add: argument 1 'B': expected dtype float32, got {dtype}"
    refused(add, (f32(2, 3), np.ones(3, dtype), f32(2, 3)), TypeError, text)


def test_dtype_of_vectors_and_bfloat16(add: Any) -> None:
    text = "add: argument 1 'B': expected dtype float32, got "
    for dtype in ("float32x4", "bfloat16"):
        refused(add, (f32(2, 3), nd.empty((3,), dtype), f32(2, 3)), TypeError, text + dtype)


SHAPES = [
    (((2, 3), (4,), (2, 3)), "1 'B': expected shape[0] == 3 (m, as argument 0 'A' has it), got 4"),
    (((2, 3), (3,), (5, 3)), "2 'C': expected shape[0] == 2 (n, as argument 0 'A' has it), got 5"),
    (((2, 3), (3,), (2, 0)), "2 'C': expected shape[1] == 3 (m, as argument 0 'A' has it), got 0"),
]  # fmt: skip


@pytest.mark.parametrize(("shapes", "text"), SHAPES)
def test_symbolic_shapes(add: Any, shapes: tuple[tuple[int, ...], ...], text: str) -> None:
    refused(add, tuple(f32(*s) for s in shapes), ValueError, f"add: argument {text}")


def test_constant_and_computed_shapes() -> None:
    A = te.placeholder((n, 4), name="A")
    B = te.compute((n * 2 + 1, 4), lambda i, j: te.if_then_else(i < n, A[i, j], 0.0), name="B")
    f = build([B], [A, B], name="f")
    f(f32(2, 4), f32(5, 4))
    text = "f: argument 0 'A': expected shape[1] == 4, got 5"
    refused(f, (f32(2, 5), f32(5, 4)), ValueError, text)
    text = "f: argument 1 'B': expected shape[0] == 5 (n * 2 + 1), got 4"
    refused(f, (f32(2, 4), f32(4, 4)), ValueError, text)


def test_a_size_that_is_a_parameter() -> None:
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i], name="B")
    f = build([B], [n, A, B], name="f")
    f(3, f32(3), f32(3))
    text = "f: argument 1 'A': expected shape[0] == 3 (n), got 4"
    refused(f, (3, f32(4), f32(3)), ValueError, text)


def test_an_extent_beyond_int32() -> None:
    A = te.placeholder((n,), dtype="int8", name="A")
    B = te.compute((1,), lambda i: A[0], name="B")
    f = build([B], [A, B], name="f")
    huge = np.broadcast_to(np.int8(1), (1 << 33,))
    text = "f: argument 0 'A': expected shape[0] from 0 to the largest int32, got 8589934592"
    refused(f, (huge, np.zeros(1, "int8")), ValueError, text)


# -- Scalars --------------------------------------------------------------------------------------


def of_scalar(dtype: str) -> Any:
    x = te.var("x", dtype)
    value = x if dtype != "handle" else tir.isnullptr(x)
    C = te.compute((1,), lambda i: value, name="C")
    return build([C], [x, C], name="f"), np.zeros(1, C.dtype.to_numpy())


SCALARS = [
    ("int8", 128), ("int8", -129), ("uint8", -1), ("uint8", 256), ("int32", 1 << 31),
    ("uint32", -1), ("bool", 2), ("uint64", -1), ("int16", -(1 << 63)),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "value"), SCALARS)
def test_scalars_out_of_range(dtype: str, value: int) -> None:
    f, out = of_scalar(dtype)
    text = f"f: argument 0 'x': expected a value of dtype {dtype}, got {value}"
    refused(f, (value, out), ValueError, text)


SCALAR_KINDS = [
    ("int32", 1.5, "an integer, got a float"), ("int32", None, "an integer, got None"),
    ("float32", "1", "a number, got a str"), ("float64", f32(1), "a number, got an array"),
    ("int64", f32(1), "an integer, got an array"),
    ("handle", 1, "an opaque pointer, got an integer"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "value", "text"), SCALAR_KINDS)
def test_scalars_of_another_kind(dtype: str, value: Any, text: str) -> None:
    f, out = of_scalar(dtype)
    refused(f, (value, out), TypeError, f"f: argument 0 'x': expected {text}")


def test_scalars_of_the_right_kind() -> None:
    f, out = of_scalar("handle")
    f(None, out)
    assert out[0]
    f(ctypes.c_void_p(8), out)
    assert not out[0]
    f, out = of_scalar("float16")
    f(3, out)
    assert out[0] == 3
    f(np.float32(2.5), out)
    assert out[0] == 2.5


# -- Memory ---------------------------------------------------------------------------------------


def test_read_only_outputs(add: Any) -> None:
    c = f32(2, 3)
    c.flags.writeable = False
    text = (
        "add: argument 2 'C': expected a writable array, got a read-only one: pass a writable copy"
    )
    refused(add, (f32(2, 3), f32(3), c), ValueError, text)


OVERLAP = (
    "expected an output that shares no memory with argument {}, got overlapping memory: "
    "pass a copy or another output"
)


def test_overlap_of_output_and_input(add: Any) -> None:
    memory = f32(20)
    text = "add: argument 2 'C': " + OVERLAP.format("0 'A'")
    a, c = memory[:6].reshape(2, 3), memory[5:11].reshape(2, 3)
    refused(add, (a, f32(3), c), ValueError, text)
    refused(add, (c, f32(3), a), ValueError, text)
    apart = memory[6:12].reshape(2, 3)
    add(a, f32(3), apart)
    assert (apart == 14.0).all()


def test_overlap_of_strided_arrays(add: Any) -> None:
    memory = f32(40)
    text = "add: argument 2 'C': " + OVERLAP.format("0 'A'")
    a = memory[:12].reshape(2, 6)[:, ::2]
    refused(add, (a, f32(3), memory[9:15].reshape(2, 3)), ValueError, text)
    refused(add, (a[::-1, ::-1], f32(3), memory[9:15].reshape(2, 3)), ValueError, text)
    c = memory[11:17].reshape(2, 3)  # a's last element is number 10
    add(a[::-1, ::-1], f32(3), c)
    assert (c == 14.0).all()


def test_inputs_may_overlap(add: Any) -> None:
    a, c = f32(3, 3), f32(3, 3, fill=0.0)
    add(a, a[0], c)
    assert (c == 14.0).all()


def test_overlap_of_two_outputs() -> None:
    A = te.placeholder((n,), name="A")
    P, Q = te.compute((n,), lambda i: (A[i], A[i] + 1.0), name="P")
    f = build([P, Q], [A, P, Q], name="f")
    memory = f32(8)
    text = "f: argument 1 'P.v0': " + OVERLAP.format("2 'P.v1'")
    refused(f, (f32(4), memory[:4], memory[3:7]), ValueError, text)
    f(f32(4), memory[:4], memory[4:])
    assert memory.tolist() == [7.0] * 4 + [8.0] * 4


def test_empty_arrays_overlap_nothing(add: Any) -> None:
    """They are taken, wherever they begin, and nothing is written."""
    memory = f32(4)
    before = memory.copy()
    add(memory[:0].reshape(0, 3), f32(3), memory[:0].reshape(0, 3))
    add(memory[2:2].reshape(2, 0), f32(0), memory[1:1].reshape(2, 0))
    np.testing.assert_array_equal(memory, before)


# -- The raw packed ABI ---------------------------------------------------------------------------


class Raw:
    """A DLTensor by hand."""

    def __init__(self, array: Any, **fields: Any) -> None:
        self.array = array
        steps = [s // array.itemsize for s in array.strides]
        self._shape = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
        self._strides = (ctypes.c_int64 * max(1, array.ndim))(*steps)
        self.tensor = DLTensor()
        self.tensor.data = array.ctypes.data
        self.tensor.device = DLDevice(1, 0)
        self.tensor.ndim = array.ndim
        self.tensor.dtype = DLDataType(2, 32, 1)
        self.tensor.shape = ctypes.addressof(self._shape)
        self.tensor.strides = ctypes.addressof(self._strides)
        for name, value in fields.items():
            setattr(self.tensor, name, value)

    @property
    def address(self) -> int:
        return ctypes.addressof(self.tensor)


def call_raw(address: int, *args: Raw | None) -> Any:
    """A call with DLTensors as they are; None is a null pointer."""
    values = (TVMValue * len(args))()
    codes = (ctypes.c_int * len(args))(*[ArgTypeCode.DLTENSOR_HANDLE] * len(args))
    for value, arg in zip(values, args, strict=True):
        value.v_handle = arg.address if arg else None
    result, code = TVMValue(), ctypes.c_int()
    addresses = [ctypes.addressof(each) for each in (values, codes, result, code)]
    return _PACKED(address)(addresses[0], addresses[1], len(args), *addresses[2:], None)


def raw_refused(
    function: Any, args: tuple[Raw | None, ...], kind: type[Exception], text: str
) -> None:
    before = [a.array.copy() for a in args if a]
    with pytest.raises(kind, match=f"^{text}$"):
        call_raw(function.entry_func._stored.function, *args)
    for old, new in zip(before, [a.array for a in args if a], strict=True):
        np.testing.assert_array_equal(old, new)


def test_raw_null_arrays(add: Any) -> None:
    text = "add: argument 1 'B': expected an array, got a null pointer"
    raw_refused(add, (Raw(f32(2, 3)), None, Raw(f32(2, 3))), TypeError, text)


def test_raw_strides(add: Any) -> None:
    wide = f32(2, 6)[:, :3]
    text = r"add: argument 0 'A': expected strides\[0\] == 3 \(elements\), got 6"
    raw_refused(add, (Raw(wide), Raw(f32(3)), Raw(f32(2, 3))), ValueError, text)
    text = r"add: argument 1 'B': expected strides\[0\] == 1 \(elements\), got 2"
    raw_refused(add, (Raw(f32(2, 3)), Raw(f32(6)[::2]), Raw(f32(2, 3))), ValueError, text)


def test_raw_null_strides_are_compact(add: Any) -> None:
    c = f32(2, 3)
    arrays = [Raw(each, strides=None) for each in (f32(2, 3), f32(3), c)]
    assert call_raw(add.entry_func._stored.function, *arrays) == 0
    assert (c == 14.0).all()


def test_raw_null_strides_beside_strided_arrays(add: Any) -> None:
    """The variant for other layouts takes compact arrays without strides as well."""
    c, wide = f32(2, 3), f32(2, 6)[:, ::2]
    add(wide, f32(3), c)
    variants = add.entry_func.variants
    arrays = (Raw(wide), Raw(f32(3)), Raw(c))
    variant = variants.find({i: each.address for i, each in enumerate(arrays)})
    arrays = (Raw(wide), Raw(f32(3), strides=None), Raw(c, strides=None))
    c[:] = 0.0
    assert call_raw(variant.address, *arrays) == 0
    assert (c == 14.0).all()
    transposed = f32(3, 2)
    transposed[:] = np.arange(6).reshape(3, 2)
    assert call_raw(variant.address, Raw(transposed.T), Raw(f32(3), strides=None), arrays[2]) == 0
    np.testing.assert_array_equal(c, transposed.T + 7.0)


def test_raw_device(add: Any) -> None:
    for device, name in {(2, 1): "cuda(1)", (10, 0): "rocm(0)", (99, 3): "unknown(3)"}.items():
        bad = Raw(f32(3), device=DLDevice(*device))
        text = f"add: argument 1 'B': expected an array on cpu, got one on {re.escape(name)}"
        raw_refused(add, (Raw(f32(2, 3)), bad, Raw(f32(2, 3))), ValueError, text)


@pytest.mark.parametrize("code", range(20))
def test_raw_dtype_codes(add: Any, code: int) -> None:
    bad = Raw(f32(3), dtype=DLDataType(code, 16, 1))
    text = r"add: argument 1 'B': expected dtype float32, got [a-z][a-z0-9_ ]*"
    raw_refused(add, (Raw(f32(2, 3)), bad, Raw(f32(2, 3))), TypeError, text)


@pytest.mark.parametrize("code", [*range(len(_KINDS)), 15, 77, -1])
def test_raw_type_codes(add: Any, code: int) -> None:
    values, codes = (TVMValue * 3)(), (ctypes.c_int * 3)(code, code, code)
    if code in (ArgTypeCode.DLTENSOR_HANDLE, ArgTypeCode.NDARRAY_HANDLE):
        found = "a null pointer"
    else:
        found = _KINDS[code] if 0 <= code < len(_KINDS) else "unknown"
    addresses = [ctypes.addressof(values), ctypes.addressof(codes), 3]
    result, result_code = TVMValue(), ctypes.c_int()
    with pytest.raises(TypeError, match=f"^add: argument 0 'A': expected an array, got {found}$"):
        add.entry_func._entry(
            *addresses, ctypes.addressof(result), ctypes.addressof(result_code), None
        )


def test_raw_null_data(add: Any) -> None:
    text = "add: argument 2 'C': expected memory for 6 elements, got a null data pointer"
    raw_refused(add, (Raw(f32(2, 3)), Raw(f32(3)), Raw(f32(2, 3), data=None)), ValueError, text)
    empty = (Raw(f32(0, 3), data=None), Raw(f32(3)), Raw(f32(0, 3), data=None))
    assert call_raw(add.entry_func._stored.function, *empty) == 0


def test_raw_negative_extent() -> None:
    n = te.var("n")
    a = te.placeholder((n,), name="A")
    b = te.compute((n,), lambda i: a[i] + 1.0, name="B")
    kernel = build(b, [a, b], name="k")
    bad = Raw(f32(4))
    bad._shape[0] = -1
    text = r"k: argument 0 'A': expected shape\[0\] from 0 to the largest int32, got -1"
    raw_refused(kernel, (bad, Raw(f32(4))), ValueError, text)


def test_raw_misaligned_data(add: Any) -> None:
    text = "add: argument 1 'B': expected data aligned to 4 bytes, got "
    text += "address 0x[0-9a-f]+: pass a copy"
    bad = Raw(f32(4), byte_offset=2)
    bad._shape[0] = 3
    raw_refused(add, (Raw(f32(2, 3)), bad, Raw(f32(2, 3))), ValueError, text)


def test_raw_byte_offset(add: Any) -> None:
    b, c = np.arange(4, dtype="float32"), f32(2, 3)
    moved = Raw(b, byte_offset=4)
    moved._shape[0] = 3
    assert call_raw(add.entry_func._stored.function, Raw(f32(2, 3)), moved, Raw(c)) == 0
    np.testing.assert_array_equal(c[0], b[1:] + 7.0)


# -- Programs that are refused --------------------------------------------------------------------


A8 = te.placeholder((8,), name="A")
B8 = te.compute((8,), lambda i: A8[i] + 1.0, name="B")
K = te.reduce_axis((0, 8), "k")


def test_an_index_that_leaves_its_tensor() -> None:
    B = te.compute((8,), lambda i: A8[i + 1], name="B")
    text = r"main: A\[i \+ 1\]: index 0 must stay in \[0, 8\), got i \+ 1 in \[1, 8\]"
    with pytest.raises(CompileError, match=text):
        build([B], [A8, B], name="main")


def test_an_index_of_data() -> None:
    I = te.placeholder((n,), dtype="int32", name="I")  # noqa: E741  # the field's own letter
    B = te.compute((n,), lambda i: A8[I[i]], name="B")
    f = build([B], [A8, I, B], name="gather")
    a, b = np.arange(8, dtype="float32"), f32(3)
    f(a, np.array([7, 0, 3], "int32"), b)
    assert b.tolist() == [7.0, 0.0, 3.0]
    for index in (8, -1, 2**31 - 1, -(2**31)):
        text = rf"^gather: A\[I\[i\]\]: index 0 must stay in \[0, 8\), got {index}$"
        with pytest.raises(IndexError, match=text):
            f(a, np.array([0, index, 1], "int32"), b)


def test_sizes_that_do_not_fit_at_entry() -> None:
    A = te.placeholder((n,), name="A")
    B = te.compute((m,), lambda i: A[i], name="B")
    f = build([B], [A, B], name="f")
    f(f32(3), f32(2))
    b = f32(4)
    with pytest.raises(
        ValueError, match=r"^f: A\[i\]: index 0 needs .*, got [mn] = [34], [mn] = [34]$"
    ):
        f(f32(3), b)
    assert (b == 7.0).all()


def test_a_variable_that_no_argument_binds() -> None:
    x = te.var("x", "float32")
    B = te.compute((8,), lambda i: A8[i] * x, name="B")
    text = (
        "f: variable x: expected every variable to be an argument or a plain dimension of one, "
        "found x bound by none: pass it as an argument, or give a tensor a dimension that is "
        "just it"
    )
    with pytest.raises(CompileError, match=f"^{re.escape(text)}$"):
        build([B], [A8, B], name="f")


def test_a_reduce_axis_outside_a_reducer() -> None:
    text = (
        "B: axis k is used outside of its loop: it is none of B's axes (i), and no reducer runs "
        "over it, as in te.sum(..., axis=k)"
    )
    with pytest.raises(CompileError, match=f"^{re.escape(text)}$"):
        te.compute((8,), lambda i: A8[K], name="B")


WRONG_TARGETS = [
    ("cuda", "target: expected a kind among llvm, ext_dev, got 'cuda'"),
    ("", "target: expected a kind among llvm, ext_dev, got an empty text"),
    ("llvm -mcpu=haswel -mtriple=x86_64-linux-gnu",
     "target: expected a CPU of x86_64 such as haswell"),
    ("llvm -mtriple=sparc-sun-solaris",
     "target: expected an architecture among x86_64, aarch64, got 'sparc-sun-solaris'"),
    ("llvm -fast=1", "target 'llvm -fast=1': expected options among -mcpu="),
    ("llvm -mattr=avx", "target: expected -mattr=+feature or -feature, got 'avx'"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "text"), WRONG_TARGETS)
def test_unknown_targets(target: str, text: str) -> None:
    with pytest.raises(CompileError, match=f"^{re.escape(text)}"):
        build([B8], [A8, B8], target)
    with pytest.raises(CompileError, match=f"^{re.escape(text)}"):
        build([B8], [A8, B8], target_host=target)


def test_a_target_that_is_no_text() -> None:
    message = "^target: expected a text such as 'llvm' or a dict, got int$"
    with pytest.raises(CompileError, match=message):
        build([B8], [A8, B8], 3)  # type: ignore[arg-type]  # the mistake


def test_an_unknown_fp_mode() -> None:
    with pytest.raises(
        CompileError, match=r"^build: expected fp to be 'fast' or 'strict', got 'f'$"
    ):
        build([B8], [A8, B8], fp="f")


def test_a_placeholder_that_is_no_argument() -> None:
    text = (
        "A: expected every placeholder that is read to be an argument, found it missing: add it to "
        "the list of arguments"
    )
    with pytest.raises(CompileError, match=f"^{re.escape(text)}$"):
        build([B8], [B8])


def test_an_output_that_is_no_argument() -> None:
    text = (
        "f: expected output B among the arguments, found it missing: the caller passes the arrays "
        "that are written"
    )
    with pytest.raises(CompileError, match=f"^{re.escape(text)}$"):
        build([B8], [A8], name="f")


@pytest.mark.parametrize("position", [0, 1])
def test_an_argument_twice(position: int) -> None:
    args = [A8, B8]
    args.append(args[position])
    name = args[position].name
    with pytest.raises(
        CompileError, match=rf"^f: argument 2 .*{name}.*: expected each argument once"
    ):
        build([B8], args, name="f")


def test_arguments_that_are_none() -> None:
    with pytest.raises(
        CompileError, match=r"^f: argument 1: expected a tensor, a buffer or a te.var"
    ):
        build([B8], [A8, 3], name="f")
    with pytest.raises(CompileError, match=r"^f: expected a list of arguments, such as"):
        build([B8], name="f")
    with pytest.raises(CompileError, match=r"^expected a schedule \(te.create_schedule\(C.op\)\)"):
        build(3, [A8], name="f")


def test_arguments_of_a_function_that_has_its_own() -> None:
    func = tir.PrimFunc((), tir.Evaluate(te.const(0)), {}, "f")
    with pytest.raises(CompileError, match=r"^build: expected no args for a PrimFunc or IRModule"):
        build(func, [])


def test_a_function_of_another_machine() -> None:
    target = "llvm -mtriple=aarch64-unknown-linux-gnu"
    if not Target(target).missing_on_host:
        target = "llvm -mtriple=x86_64-unknown-linux-gnu"
    f = build(create_schedule(B8.op), [A8, B8], target, name="f")
    text = f"f: built for '{target}', which this machine can't run: it is "
    refused(f, (f32(8), f32(8)), ValueError, text, whole=False)


def test_a_function_of_a_greater_machine() -> None:
    target = "llvm -mattr=+amx-fp16"
    if not Target(target).missing_on_host:
        pytest.skip("this machine has everything")
    f = build([B8], [A8, B8], target, name="f")
    text = f"f: built for '{target}', which this machine can't run: it lacks amx-fp16"
    refused(f, (f32(8), f32(8)), ValueError, text)


def test_an_unknown_c_function() -> None:
    B = te.compute((8,), lambda i: tir.call_extern("float32", "no_such_f", A8[i]), name="B")
    text = (
        "call of 'no_such_f': expected a C function that is loaded in this process, found none: "
        "load its library with ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) first"
    )
    with pytest.raises(CompileError, match=f"^{re.escape(text)}$"):
        build([B], [A8, B])


def test_names_with_percent_signs() -> None:
    A = te.placeholder((2,), name="100%s")
    B = te.compute((2,), lambda i: A[i], name="B%d")
    f = build([B], [A, B], name="f%n")
    refused(f, (), TypeError, "f%n: expected 2 arguments (100%s, B%d), got 0")
    text = "f%n: argument 0 '100%s': expected shape[0] == 2, got 3"
    refused(f, (f32(3), f32(2)), ValueError, text)


@pytest.mark.parametrize("schedule", [lambda C: create_schedule(C.op), lambda C: [C]])
@pytest.mark.parametrize(
    "body", [lambda A, B: A + 1.0, lambda A, B: A + te.if_then_else(te.const(False), B, 1.0)]
)
def test_an_argument_that_nothing_computes_is_refused(schedule: Any, body: Any) -> None:
    """Neither the output reads it, nor does what is left of an expression once it is folded."""
    A = te.placeholder((4,), name="A")
    B = te.compute((4,), lambda i: A[i] * 2.0, name="B")
    C = te.compute((4,), lambda i: body(A[i], B[i]), name="C")
    text = (
        "f: argument 1 B: expected a placeholder, or a tensor that the schedule computes, got one "
        "that C does not read: have it computed, as in te.create_schedule([C.op, B.op]), or leave "
        "it out of the arguments"
    )
    with pytest.raises(CompileError, match=f"^{re.escape(text)}$"):
        build(schedule(C), [A, B, C], name="f")
    build(create_schedule([C.op, B.op]), [A, B, C], name="f")
