"""NDArray: making, reading, parts, copies."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from minitvm import nd
from minitvm.runtime import NDArray, array, cpu, device, empty, from_dlpack

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (0,), (2, 0, 3), (1, 7, 1)])
def test_array_keeps_elements(shape: tuple[int, ...], dtype: str) -> None:
    x = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    a = array(x)
    assert (a.shape, a.ndim, a.size, a.nbytes) == (x.shape, x.ndim, x.size, x.nbytes)
    assert a.dtype == dtype
    assert a.device == a.ctx == cpu(0)
    assert a.data % 256 == 0
    assert a.is_contiguous
    assert not a.read_only
    np.testing.assert_array_equal(a.numpy(), x, strict=True)
    np.testing.assert_array_equal(np.asarray(a), x, strict=True)
    np.testing.assert_array_equal(from_dlpack(a).asnumpy(), x, strict=True)


def test_array_of_python_values() -> None:
    assert array([1, 2]).dtype == "int64"
    assert array([1.0]).dtype == "float64"
    assert array(3, dtype="float32").item() == 3.0
    assert array(True).dtype == "bool"
    assert array(array([1, 2]), cpu(0)).numpy().tolist() == [1, 2]
    assert nd.array is array


def test_array_copies_any_source() -> None:
    x = np.arange(6).reshape(2, 3)
    for source in (x, x[::-1, ::2], np.broadcast_to(x, (2, 2, 3)), x.T):
        a = array(source)
        np.testing.assert_array_equal(a.numpy(), source)
        assert a.is_contiguous
        assert not a.read_only
    a = array(x)
    x[...] = 0
    assert a.numpy().sum() == 15


def test_array_refuses() -> None:
    with pytest.raises(TypeError, match="expected an array or numbers, got object"):
        array(object())
    with pytest.raises(TypeError, match="expected elements of a dtype that minitvm has, got <U1"):
        array(["a"])
    with pytest.raises(TypeError, match="expected elements of a dtype that minitvm has, got"):
        array(np.zeros(2, [("x", "i4")]))
    with pytest.raises(ValueError, match=r"expected a device that is there .*, got cuda\(0\)"):
        array([1], device("cuda"))
    with pytest.raises(ValueError, match=r"expected a device that is there .*, got cpu\(1\)"):
        empty((1,), "int32", cpu(1))
    with pytest.raises(ValueError, match="expected the memory scope 'global', got 'shared'"):
        empty((1,), mem_scope="shared")
    with pytest.raises(ValueError, match=r"at least 0, got the shape \(2, -1\)"):
        empty((2, -1))


def test_strides_between_elements_are_refused() -> None:
    record = np.zeros(3, [("a", "i1"), ("b", "i4")])
    with pytest.raises(ValueError, match=r"strides of whole 4-byte elements, got \(5,\) bytes"):
        array(record["b"])


def test_readonly_numpy_is_read_only() -> None:
    x = np.arange(3)
    x.flags.writeable = False
    a = from_dlpack(x)
    assert a.read_only
    assert not array(a).read_only
    writes: list[Callable[[], object]] = [lambda: a.copyfrom(x), lambda: array(x).copyto(a)]
    for write in writes:
        with pytest.raises(ValueError, match="expected a writable array, got a read-only one"):
            write()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_parts_are_numpys(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True))
    a = array(x)
    expected = x[key]
    part = a[key]
    np.testing.assert_array_equal(part.numpy(), expected)
    assert part.shape == expected.shape
    if expected.size:
        a[key] = -1
        x[key] = -1
        np.testing.assert_array_equal(a.numpy(), x)


def test_parts_share_memory_and_check_indices() -> None:
    a = array(np.arange(12).reshape(3, 4))
    b = a[1:, ::2]
    b[0, 0] = 77
    assert a[1, 0].item() == 77
    assert not b.is_contiguous
    assert [row.shape for row in a] == [(4,)] * 3
    assert len(a) == 3
    with pytest.raises(IndexError, match="out of bounds"):
        a[3]
    for key, kind in (([0], "list"), (np.array([1]), "ndarray"), (True, "bool"), (1.5, "float")):
        if kind != "ndarray":
            with pytest.raises(TypeError, match=f"integers and slices as indices, got {kind}"):
                a[key]
    with pytest.raises(TypeError, match="a 0-d array has no length"):
        len(array(1))


def test_views() -> None:
    a = array(np.arange(6, dtype="float32"))
    assert a.reshape(2, 3).shape == a.reshape((2, -1)).shape == (2, 3)
    assert a.reshape(2, 3)[1, 0].item() == 3.0
    assert a.view("int32")[1].item() == 0x3F800000
    assert a[::2].reshape(3, 1).strides[0] == 2
    turned = a.reshape(2, 3).T
    with pytest.raises(ValueError, match=r"as strides .* need a copy, got copy=False"):
        turned.reshape(6, copy=False)
    with pytest.raises(ValueError, match="cannot reshape array of size 6"):
        a.reshape(4)
    assert a.view("float64").shape == (3,)
    with pytest.raises(ValueError, match=r"expected a dtype of 32 bits, or a last axis without"):
        a[::2].view("float64")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_shapes_and_orders_are_numpys(data: st.DataObject) -> None:
    """Of any part: a view where numpy has one, and else a copy."""
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    basic: Any = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=False))
    key = (*basic, ...) if isinstance(basic, tuple) else (basic, ...)
    order = data.draw(st.permutations(range(x[key].ndim)))
    expected, found = x[key].transpose(order), array(x)[key].transpose(*order)
    np.testing.assert_array_equal(found.numpy(), expected, strict=True)
    np.testing.assert_array_equal(found.T.numpy(), expected.T, strict=True)
    extents = data.draw(st.permutations(expected.shape))
    if data.draw(st.booleans()) and 0 not in extents and extents:
        extents[-1] = -1
    flat = found.reshape(*extents)
    np.testing.assert_array_equal(flat.numpy(), expected.reshape(extents), strict=True)
    try:
        shared = expected.reshape(extents, copy=False).size > 0
    except ValueError:
        shared = False
        with pytest.raises(ValueError, match="needs a copy"):
            found.reshape(*extents, copy=False)
    assert shared == (flat.size > 0 and np.shares_memory(np.asarray(flat), np.asarray(found)))
    assert not np.shares_memory(np.asarray(found.reshape(*extents, copy=True)), np.asarray(found))
    target = empty(expected.T.shape, "int64").T
    assert found.copyto(target) is target
    np.testing.assert_array_equal(target.numpy(), expected)


def test_assignment_and_copies() -> None:
    a = empty((2, 3), "int32")
    a[...] = 1
    a[0] = [1, 2, 3]
    a[1] = np.array([4.0, 5.0, 6.0])
    np.testing.assert_array_equal(a.numpy(), [[1, 2, 3], [4, 5, 6]])
    b = empty((2, 3), "int32")
    assert a.copyto(b) is b
    assert a.copyto(cpu(0)).same_as(a) is False
    np.testing.assert_array_equal(b.numpy(), a.numpy())
    assert b.copyfrom(np.zeros((2, 3))) is b
    assert b.numpy().sum() == 0
    with pytest.raises(ValueError, match=r"copyfrom expected a source of shape \(2, 3\), got \(3,"):
        b.copyfrom([1, 2, 3])
    with pytest.raises(ValueError, match=r"copyto expected a target of shape .* and float32$"):
        a.copyto(empty((2, 3)))
    with pytest.raises(TypeError, match="copyto expected an NDArray or a Device, got list"):
        a.copyto([])  # type: ignore[arg-type]  # that is the point
    overlapping = array(np.arange(5))
    overlapping[1:] = overlapping[:-1]
    assert overlapping.numpy().tolist() == [0, 0, 1, 2, 3]


def test_item_and_identity() -> None:
    a = array([[5]])
    assert a.item() == 5
    assert a.same_as(a[...])
    assert not a.same_as(3)
    with pytest.raises(ValueError, match=r"item expected one element, got the shape \(2,\)"):
        array([1, 2]).item()


def test_one_element_is_a_number_and_several_are_none() -> None:
    assert float(array([[1.5]])) == 1.5
    assert int(array(7)) == 7
    assert array([2])
    assert not array([[0.0]])
    several = array([1, 2])
    for use, text in (
        (bool, r"a truth value .*, got the shape \(2,\): write `a is None`, `len\(a\)` or"),
        (float, r"float\(a\), got the shape \(2,\): take one, as in `float\(a\[0\]\)`"),
        (int, r"int\(a\), got the shape \(2,\): take one"),
    ):
        with pytest.raises(ValueError, match=f"^NDArray: expected one element for {text}"):
            use(several)
    with pytest.raises(ValueError, match=r"got the shape \(0,\)"):
        bool(array([]))


def test_numpy_protocol() -> None:
    a = array([1.5, 2.5])
    assert np.asarray(a).ctypes.data == a.data
    assert np.array(a).ctypes.data != a.data
    assert np.asarray(a, dtype="int32").tolist() == [1, 2]
    assert (np.ones(2) + a).tolist() == [2.5, 3.5]
    with pytest.raises(ValueError, match="can't give float64 as float32 uncopied"):
        a.__array__(dtype="float32", copy=False)


@given(st.lists(st.floats(width=32), max_size=20))
def test_bfloat16_rounds_as_ml_dtypes(values: list[float]) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.array(values, np.float32)
    a = array(x, dtype="bfloat16")
    expected = x.astype(ml_dtypes.bfloat16)
    assert a.numpy().dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(
        a.numpy().astype(np.float32), expected.astype(np.float32), strict=True
    )
    np.testing.assert_array_equal(array(expected).numpy().astype("f4"), expected.astype("f4"))
    back = array(a, dtype="float32")
    np.testing.assert_array_equal(back.numpy(), expected.astype(np.float32))


def test_bfloat16_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    a = array([1.0, -2.0], dtype="bfloat16")
    with pytest.raises(TypeError, match="numpy has no dtype bfloat16: install ml_dtypes, or a"):
        a.numpy()
    assert a.view("uint16").numpy().tolist() == [0x3F80, 0xC000]
    assert a[1].item() == -2.0
    assert "-2." in repr(a)


def test_vectors_have_a_last_axis_in_numpy() -> None:
    a = empty((3,), "float32x4")
    a[...] = np.arange(12).reshape(3, 4)
    assert a.nbytes == 48
    assert a[1].numpy().tolist() == [4.0, 5.0, 6.0, 7.0]


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))]
)
def test_copies_and_pickles_are_independent(duplicate: Any) -> None:
    a = array(np.arange(6).reshape(2, 3))[:, ::2]
    b: NDArray = duplicate(a)
    a[...] = 0
    assert b.numpy().tolist() == [[0, 2], [3, 5]]


def test_repr() -> None:
    assert repr(empty((2,), "handle")).startswith("<NDArray(shape=(2,), dtype='handle'")
    assert repr(array([1, 2])) == "<NDArray(shape=(2,), dtype='int64', device=cpu(0))>\n[1 2]"


@pytest.mark.parametrize(
    "fill",
    [
        lambda bits: empty(bits.shape, "bfloat16").copyfrom(bits),
        lambda bits: empty(bits.shape, "bfloat16").copyfrom(array(bits)),
        lambda bits: array(bits, dtype="bfloat16"),
        lambda bits: array(bits).copyto(empty(bits.shape, "uint16")).view("bfloat16"),
        lambda bits: _assigned(bits),
    ],
    ids=["copyfrom", "copyfrom NDArray", "array", "view", "assignment"],
)
def test_uint16_are_the_bits_of_bfloat16(fill: Any) -> None:
    """As in classic TVM; all 65536, signalling NaN and subnormal numbers too."""
    bits = np.arange(65536, dtype="uint16").reshape(256, 256)[:, ::-1]
    np.testing.assert_array_equal(fill(bits).view("uint16").numpy(), bits)


def _assigned(bits: Any) -> NDArray:
    made = empty(bits.shape, "bfloat16")
    made[...] = bits
    return made


def test_other_integers_are_the_numbers_of_bfloat16() -> None:
    for source in (np.array([1, 2], "int32"), np.array([1, 2], "uint32"), [1, 2]):
        assert empty((2,), "bfloat16").copyfrom(source).view("uint16").numpy().tolist() == [
            0x3F80,
            0x4000,
        ]
    one = empty((1,), "bfloat16")
    one[...] = np.uint16(1)  # a number, not an array
    assert one.item() == 1
    assert array(array([2.5], dtype="bfloat16"), dtype="uint16").item() == 2
