"""Arrays of every dtype of DLPack 1.3: storage, parts, copies, exchange, printing, numpy."""

from __future__ import annotations

import copy
import ctypes
import pickle
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from minitvm.runtime import DType, NDArray, array, empty, from_dlpack
from minitvm.runtime.dlpack import DLTensor, data_size
from minitvm.runtime.dtype import TypeCode

WIDTHS: dict[int, tuple[int, ...]] = {
    TypeCode.INT: (1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 64, 128),
    TypeCode.UINT: (1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 64, 128),
    TypeCode.FLOAT: (16, 32, 64, 80, 128),
    TypeCode.HANDLE: (32, 64),
    TypeCode.BFLOAT: (16,),
    TypeCode.COMPLEX: (32, 64, 128),
    TypeCode.BOOL: (8,),
    **dict.fromkeys(range(7, 15), (8,)),
    **dict.fromkeys((15, 16), (6,)),
    TypeCode.FLOAT4_E2M1FN: (4,),
}
DTYPES = [
    DType(code, bits, lanes)
    for code, widths in WIDTHS.items()
    for bits in widths
    for lanes in (1, 2, 3, 4)
    if (code, bits, lanes) != (TypeCode.UINT, 1, 1)  # which is bool, as DLPack had it
]
IN_ML_DTYPES = [
    "bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn",
    "float6_e3m2fn", "float4_e2m1fn", "int2", "int4", "uint2", "uint4",
]  # fmt: skip


def test_every_code_is_tried() -> None:
    assert set(WIDTHS) == set(TypeCode)


def filled(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> NDArray:
    """Arbitrary bits."""
    made = empty(shape, dtype)
    content = np.random.default_rng(seed).integers(0, 256, made.nbytes, "uint8").tobytes()
    if dtype.is_bool:
        content = bytes(byte & 1 for byte in content)
    ctypes.memmove(made.data, content, len(content))
    return made


def codes(a: NDArray) -> Any:
    """The bits of each element as an integer, found in the slowest way."""
    compact = array(a)
    memory = int.from_bytes(ctypes.string_at(compact.data, compact.nbytes), "little")
    width = a.dtype.bits * a.dtype.lanes
    found = [memory >> (i * width) & ((1 << width) - 1) for i in range(a.size)]
    return np.array([*found, None], object)[:-1].reshape(a.shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_of_it(dtype: DType) -> None:
    a = filled((3, 5), dtype)
    assert (
        a.nbytes
        == data_size(DLTensor.from_address(a.handle))
        == -(-15 * dtype.bits * dtype.lanes // 8)
    )
    bits = codes(a)
    assert repr(a).startswith(f"<NDArray(shape=(3, 5), dtype='{dtype}'")
    for part in (np.s_[1:, ::2], np.s_[::-1], np.s_[:, -1], np.s_[2, 3], np.s_[:, None, 1:4]):
        np.testing.assert_array_equal(codes(a[part]), np.asarray(bits[part], object))
        assert repr(a[part])
    np.testing.assert_array_equal(codes(a.T), bits.T)
    np.testing.assert_array_equal(codes(a.T.reshape(5, 3)), bits.T.reshape(5, 3))
    # Between layouts.
    target = filled((5, 4), dtype, seed=1)
    before = codes(target)
    a[1:].T.copyto(target[:, 1:3])
    before[:, 1:3] = bits[1:].T
    np.testing.assert_array_equal(codes(target), before)
    target[:, 0] = a[0]
    before[:, 0] = bits[0]
    np.testing.assert_array_equal(codes(target), before)
    for same in (copy.copy(a), pickle.loads(pickle.dumps(a)), pickle.loads(pickle.dumps(a.T)).T):
        np.testing.assert_array_equal(codes(same), bits)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exchange_of_it(dtype: DType) -> None:
    a = filled((3, 5), dtype)
    for whole in (a, a[:, ::2], a[1:2, 3:], a.T):
        bits = codes(whole)
        for version in (None, (1, 0)):
            back = from_dlpack(whole.__dlpack__(max_version=version))
            assert (back.dtype, back.shape) == (dtype, whole.shape)
            np.testing.assert_array_equal(codes(back), bits)
        np.testing.assert_array_equal(codes(from_dlpack(whole)), bits)
    one = from_dlpack(a)
    one[0, 0] = a[1, 1]
    assert codes(a)[0, 0] == codes(a)[1, 1]


@pytest.mark.parametrize("name", IN_ML_DTYPES)
def test_numpy_has_it_through_ml_dtypes(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = getattr(ml_dtypes, name)
    numbers = np.array([[0, 1, 1.5], [2, 3, 0.25]], "float32")
    if "int" in name:
        numbers = np.array([[0, 1, 1], [1, 0, 1]], "float32")
    expected = numbers.astype(kind)
    a = array(numbers, dtype=name)
    assert a.numpy().dtype == expected.dtype
    np.testing.assert_array_equal(a.numpy().astype("f4"), expected.astype("f4"))
    np.testing.assert_array_equal(np.asarray(a.T).astype("f4"), expected.T.astype("f4"))
    np.testing.assert_array_equal(array(a, dtype="float64").numpy(), expected.astype("f8"))
    assert a[0, 1].item() == 1
    # numpy's are padded, and shared.
    theirs = expected.copy()
    shared = from_dlpack(theirs)
    assert shared.data == theirs.ctypes.data
    assert shared.padded == a.dtype.is_sub_byte
    np.testing.assert_array_equal(codes(shared), codes(a))
    shared[1, 0] = 1
    shared[0] = a[0]
    assert theirs[1, 0] == 1
    assert shared[0, 1].item() == 1
    back = from_dlpack(shared.__dlpack__(max_version=(1, 0)))
    assert (back.data, back.padded) == (shared.data, shared.padded)
    if shared.padded:
        with pytest.raises(BufferError, match=f"expected packed {name} from the beginning of a"):
            shared.__dlpack__(copy=False)
        with pytest.raises(ValueError, match=f"can't give packed {name} to numpy uncopied"):
            a.__array__(copy=False)
    np.testing.assert_array_equal(codes(from_dlpack(shared.__dlpack__())), codes(shared))


@pytest.mark.parametrize("name", [*IN_ML_DTYPES, "complex32", "handle", "int3"])
def test_without_ml_dtypes_it_is_said_what_to_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    kind = DType(*{"complex32": (5, 32), "int3": (0, 3)}.get(name, _triple(name)))
    a = filled((2, 4), kind)
    do = "" if name == "handle" else "install ml_dtypes, or "
    unsigned = f"uint{kind.bits}" if kind.bits in (16, 32, 64) else "uint8"
    with pytest.raises(TypeError, match=f"numpy has no dtype {name}: {do}a.view.'{unsigned}'"):
        a.numpy()
    if kind.bits != 3 and kind.bits * 4 % 8 == 0:
        assert a.view(unsigned).numpy().nbytes == a.nbytes
    assert repr(a)
    np.testing.assert_array_equal(codes(array(a.T).T), codes(a))


def _triple(name: str) -> tuple[int, int]:
    kind = DType.of("float32") if name in ("complex32", "int3") else DType.of(name)
    return kind.code, kind.bits


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_parts_of_packed_elements_are_numpys(data: st.DataObject) -> None:
    bits, lanes = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 3))
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    a = filled(shape, DType(TypeCode.INT, bits, lanes), seed=data.draw(st.integers(0, 9)))
    expected = codes(a)
    for _ in range(2):
        basic: Any = data.draw(hnp.basic_indices(a.shape, allow_newaxis=True, allow_ellipsis=False))
        key = (*basic, ...) if isinstance(basic, tuple) else (basic, ...)
        a, expected = a[key], expected[key]
        np.testing.assert_array_equal(codes(a), expected)
        np.testing.assert_array_equal(codes(from_dlpack(a)), expected)
    a[...] = filled((), a.dtype, seed=11)
    assert set(codes(a).ravel()) <= {codes(filled((), a.dtype, seed=11)).item()}


def test_writes_touch_no_neighbour() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a = array(np.arange(8), dtype="uint4")
    a[1:7:2] = np.array([15, 14, 13], ml_dtypes.uint4)
    assert a.numpy().tolist() == [0, 15, 2, 14, 4, 13, 6, 7]
    a[3] = 0
    assert a.view("uint8").numpy().tolist() == [0xF0, 0x02, 0xD4, 0x76]
    fixed = from_dlpack(a, read_only=True)
    with pytest.raises(ValueError, match="expected a writable array, got a read-only one"):
        fixed[0] = 1


def test_views_of_other_sizes() -> None:
    a = array(np.arange(24, dtype="uint8").reshape(2, 12))
    x = a.numpy()
    for name in ("uint16", "int32", "uint32"):
        np.testing.assert_array_equal(a.view(name).numpy(), x.view(name))
        assert a.view(name).view("uint8").same_as(a)
    assert a.view("uint8x4").shape == (2, 3)
    assert a.view("float4_e2m1fn").shape == (2, 24)
    assert a.view("float4_e2m1fn").view("uint8").same_as(a)
    assert a.view("float6_e2m3fn").shape == (2, 16)
    assert a.view("float4_e2m1fnx2").shape == (2, 12)
    for wrong, name in ((a, "uint64"), (a.T, "uint16"), (a[0, 0], "uint16"), (a[:, ::2], "uint16"),
                        (a.view("uint4")[:, 1:], "uint8"), (a[:, :6], "uint32")):  # fmt: skip
        with pytest.raises(ValueError, match="NDArray: view expected"):
            wrong.view(name)
