"""Our C exchange API, called as C calls it."""

from __future__ import annotations

import ctypes
import gc
import inspect
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from minitvm.runtime import NDArray, PackedFunc, array, empty, from_dlpack
from minitvm.runtime.dlpack import (
    IS_COPIED,
    IS_SUBBYTE_TYPE_PADDED,
    READ_ONLY,
    DLDataType,
    DLDevice,
    DLManagedTensorVersioned,
    DLPackExchangeAPI,
    DLTensor,
)
from minitvm.runtime.exchange import functions_of
from tests.runtime.test_dlpack import Producer

# With the GIL, and an exception that is set is raised.
FROM_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
TO_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.py_object))
STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.c_void_p)
# Without the GIL.
SET_ERROR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
ALLOCATE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, SET_ERROR
)
DELETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def our_api() -> Any:
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    capsule = type(array([1])).__dlpack_c_exchange_api__
    return DLPackExchangeAPI.from_address(get(capsule, b"dlpack_exchange_api"))


def exported(value: Any) -> Any:
    """The managed tensor of an object."""
    found = ctypes.c_void_p(77)
    managed = our_api().managed_tensor_from_py_object_no_sync
    try:
        status = FROM_OBJECT(managed)(value, ctypes.addressof(found))
    except Exception:
        assert found.value is None
        raise
    assert status == 0
    return DLManagedTensorVersioned.from_address(found.value or 0)


def delete(managed: Any) -> None:
    DELETE(managed.deleter)(ctypes.addressof(managed))


def imported(managed: Any) -> NDArray:
    made = ctypes.py_object()
    to_object = our_api().managed_tensor_to_py_object_no_sync
    assert TO_OBJECT(to_object)(ctypes.addressof(managed), ctypes.byref(made)) == 0
    assert made.value is not None
    value = made.value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(value))  # the reference that we were given
    assert isinstance(value, NDArray)
    return value


def test_it_stands_on_the_type_and_stays() -> None:
    capsule = NDArray.__dlpack_c_exchange_api__
    assert capsule is NDArray.__dlpack_c_exchange_api__ is array([1]).__dlpack_c_exchange_api__
    api = our_api()
    assert (api.version.major, api.version.minor, api.prev_api) == (1, 3, None)
    assert all(getattr(api, name) for name, *_ in DLPackExchangeAPI._fields_[2:])
    assert functions_of(NDArray) is not None


def test_a_managed_tensor_holds_the_array() -> None:
    a = array(np.arange(12.0).reshape(3, 4))[1:, ::-1]
    before = sys.getrefcount(a)
    managed = exported(a)
    assert sys.getrefcount(a) == before + 1
    tensor = managed.dl_tensor
    assert (managed.version.major, managed.version.minor, managed.flags) == (1, 3, 0)
    assert managed.manager_ctx and managed.deleter
    assert (tensor.data, tensor.byte_offset, tensor.ndim) == (a.data, 0, 2)
    assert list((ctypes.c_int64 * 4).from_address(tensor.shape)) == [2, 4, 4, -1]
    assert tensor.strides == tensor.shape + 16
    delete(managed)
    assert sys.getrefcount(a) == before


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 4), (1,) * 64])
def test_there_and_back(shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    a = array(x)
    alive = weakref.ref(a)
    managed = exported(a)
    assert bool(managed.dl_tensor.data) == bool(x.size)
    del a
    b = imported(managed)
    gc.collect()
    if x.size:
        assert alive() is not None
    np.testing.assert_array_equal(b.numpy(), x, strict=True)
    del b
    gc.collect()
    assert alive() is None


def test_flags_say_what_is_unusual() -> None:
    fixed = from_dlpack(np.arange(3), read_only=True)
    assert exported(fixed).flags == READ_ONLY
    assert imported(exported(fixed)).read_only
    ml_dtypes = pytest.importorskip("ml_dtypes")
    padded = from_dlpack(np.ones(3, ml_dtypes.int4))
    managed = exported(padded)
    assert managed.flags == IS_SUBBYTE_TYPE_PADDED
    assert imported(managed).numpy().tolist() == [1, 1, 1]
    part = array(padded)[1:]  # begins within a byte
    managed = exported(part)
    assert managed.flags == IS_COPIED
    assert imported(managed).numpy().tolist() == [1, 1]
    with pytest.raises(BufferError, match="expected packed int4 from the beginning of a byte"):
        lent(part)


def lent(value: Any) -> DLTensor:
    found = DLTensor()
    tensor = our_api().dltensor_from_py_object_no_sync
    assert FROM_OBJECT(tensor)(value, ctypes.addressof(found)) == 0
    return found


def test_a_tensor_is_lent() -> None:
    a = array(np.arange(6).reshape(2, 3)).T
    before = sys.getrefcount(a)
    found = lent(a)
    assert sys.getrefcount(a) == before
    assert bytes(found) == ctypes.string_at(a.handle, 48)
    assert lent(empty((0, 2))).ndim == 2


@pytest.mark.parametrize("value", [None, 3, np.arange(3), object()])
def test_other_objects_are_refused(value: Any) -> None:
    for take in (exported, lent):
        with pytest.raises(TypeError, match="expected an NDArray, whose exchange API this is, got"):
            take(value)


def test_lent_arrays_are_exported_until_their_call_is_over() -> None:
    kept: list[Any] = []

    def keep(a: NDArray) -> None:
        kept.append(a)
        delete(exported(a))
        assert lent(a).data == a.data

    PackedFunc(keep)(np.arange(3))
    for take in (exported, lent):
        with pytest.raises(ValueError, match="lent to a callback for one call, which has returned"):
            take(kept[0])


def test_a_tensor_that_is_refused_is_deleted() -> None:
    for fields in ({"ndim": -1}, {"version": (2, 0)}, {"device": DLDevice(2, 0)}):
        producer = Producer(**fields)
        with pytest.raises((BufferError, ValueError)):
            imported(producer.managed)
        gc.collect()
        assert producer.deleted == 1


@pytest.mark.parametrize("count", [1, 2, 8, 9])
def test_what_is_usual_is_read_by_compiled_code(count: int) -> None:
    """The rest by Python code; both find the same."""
    shape = (2, 3, *(1 for _ in range(count - 2)))[:count]
    x = np.arange(np.prod(shape), dtype="int16").reshape(shape)
    for a in (array(x), array(x).T, array(x)[1:], array(x)[::-1], from_dlpack(x, read_only=True)):
        made = imported(exported(a))
        quick = count <= 8 and min(a.strides) > 0
        assert hasattr(made, "_seen") is not quick
        assert made.same_as(a)
        assert (made.read_only, made.shape, made.strides) == (a.read_only, a.shape, a.strides)
        assert ctypes.string_at(made.handle, 24) == ctypes.string_at(a.handle, 24)
        again = imported(exported(made))  # whose shape and strides lie apart
        assert again.same_as(a)
        np.testing.assert_array_equal(again.numpy(), a.numpy())


def test_the_method_is_compiled_code_and_says_what_it_takes() -> None:
    a = array([1, 2])
    for _ in range(2):  # Python code at first
        names = ["self", "stream", "max_version", "dl_device", "copy"]
        assert list(inspect.signature(NDArray.__dlpack__).parameters) == names
        assert "A DLPack capsule of this memory" in str(NDArray.__dlpack__.__doc__)
        for options in ({}, {"max_version": (1, 0)}, {"max_version": (0, 9), "copy": None}):
            assert from_dlpack(a.__dlpack__(**options)).data == a.data
        with pytest.raises(TypeError, match="positional argument"):
            a.__dlpack__(None)  # type: ignore[call-arg]  # that is the point
        with pytest.raises(TypeError, match="unexpected keyword argument 'Stream'"):
            a.__dlpack__(Stream=None)  # type: ignore[call-arg]  # that is the point
        with pytest.raises(TypeError, match="integer"):
            a.__dlpack__(max_version=(1, "0"))  # type: ignore[arg-type]  # that is the point


def test_python_code_gets_all_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """By position as well as by name, also where there are none of a kind."""
    given: list[Any] = []
    own = NDArray._dlpack_slowly

    def note(*args: Any, **named: Any) -> Any:
        given.append((args, named))
        return own(args[0])

    monkeypatch.setattr(NDArray, "_dlpack_slowly", note)
    x, stream, copy = array([1.0]), object(), object()
    x.__dlpack__()  # Python code at first
    given.clear()
    calls: Any = x.__dlpack__
    calls()
    calls(1, 2)
    calls(stream=stream)
    calls(1, stream=stream, max_version=(1, 0))
    calls(1, 2, copy=copy, stream=stream)
    assert given == [
        ((x,), {}),
        ((x, 1, 2), {}),
        ((x,), {"stream": stream}),
        ((x, 1), {"stream": stream, "max_version": (1, 0)}),
        ((x, 1, 2), {"copy": copy, "stream": stream}),
    ]


def test_torch_tensors_come_by_it() -> None:
    torch = pytest.importorskip("torch")
    t = torch.arange(6.0).reshape(2, 3)
    from_dlpack(t)  # learns of the type
    a = from_dlpack(t)
    assert not hasattr(a, "_seen")
    assert (a.data, a.shape, a.strides, a.dtype) == (t.data_ptr(), (2, 3), (3, 1), "float32")
    alive = weakref.ref(t)
    del t
    gc.collect()
    a[0, 0] = 5
    assert a.numpy()[0, 0] == 5
    assert alive() is None or a.data  # the storage is kept, whatever becomes of the tensor
    fixed = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert from_dlpack(fixed).read_only
    with pytest.raises(BufferError, match="doesn't require grad"):
        from_dlpack(fixed)
    with pytest.raises(BufferError, match="conjugate bit"):
        from_dlpack(torch.ones(3, dtype=torch.cfloat).conj())
    assert from_dlpack(torch.ones(3), read_only=True).read_only


def test_imports_leak_nothing() -> None:
    torch = pytest.importorskip("torch")
    t = torch.arange(3)
    before = sys.getrefcount(t), sys.getrefcount(NDArray)
    for step in range(3000):
        if step == 1000:
            gc.collect()
            blocks = sys.getallocatedblocks()
        from_dlpack(t)
        torch.from_dlpack(from_dlpack(t))
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 100
    assert abs(sys.getrefcount(t) - before[0]) < 3
    assert abs(sys.getrefcount(NDArray) - before[1]) < 10


def test_there_are_no_streams() -> None:
    found = ctypes.c_void_p(77)
    assert STREAM(our_api().current_work_stream)(1, 0, ctypes.addressof(found)) == 0
    assert found.value is None


# ---- The allocator -------------------------------------------------------------------------------


def allocated(extents: Any, dtype: tuple[int, int, int], **fields: Any) -> Any:
    """What the allocator makes of a prototype, or what it complains of."""
    dims = (ctypes.c_int64 * max(len(extents), 1))(*extents)
    prototype = DLTensor(ndim=len(extents), device=DLDevice(1, 0), dtype=DLDataType(*dtype))
    prototype.shape = ctypes.addressof(dims)
    prototype.data, prototype.strides, prototype.byte_offset = 7, 7, 7  # of no meaning
    for name, value in fields.items():
        setattr(prototype, name, value)
    found, errors = ctypes.c_void_p(77), []
    set_error = SET_ERROR(lambda context, kind, text: errors.append((context, kind, text)))
    status = ALLOCATE(our_api().managed_tensor_allocator)(
        ctypes.addressof(prototype), ctypes.addressof(found), 99, set_error
    )
    if status == 0:
        assert not errors
        return DLManagedTensorVersioned.from_address(found.value or 0)
    assert (status, found.value, len(errors)) == (-1, None, 1)
    return errors[0]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((), "float32"), ((3,), "int8"), ((2, 3), "float64"), ((0, 3), "float32"), ((5,), "int4"),
        ((2, 3), "float16x4"), ((7,), "bool"), ((1,) * 64, "int32"), ((2, 2), "float4_e2m1fn"),
        ((10, 0, 10), "bfloat16"),
    ],
)  # fmt: skip
def test_allocated_tensors_are_compact_arrays(shape: tuple[int, ...], dtype: str) -> None:
    kind = empty((), dtype).dtype
    managed = allocated(shape, (kind.code, kind.bits, kind.lanes))
    assert (managed.version.major, managed.version.minor, managed.flags) == (1, 3, 0)
    assert (managed.dl_tensor.data or 0) % 256 == managed.dl_tensor.byte_offset == 0
    a = imported(managed)
    expected = empty(shape, dtype)
    assert (a.shape, a.strides, a.dtype) == (shape, expected.strides, dtype)
    ctypes.memset(a.data, 1, a.nbytes)
    assert a.nbytes == expected.nbytes
    assert bool(a.data) == (a.size > 0)


def test_old_bool_has_a_byte_for_each() -> None:
    managed = allocated((9,), (1, 1, 1))
    a = imported(managed)
    a[...] = True
    assert a.dtype == "bool" and a.numpy().all()


@pytest.mark.parametrize(
    ("shape", "dtype", "fields", "text"),
    [
        ((2,), (0, 32, 1), {"device": DLDevice(2, 0)}, b"a prototype in memory of cpu(0)"),
        ((2,), (0, 32, 1), {"device": DLDevice(1, 1)}, b"a prototype in memory of cpu(0)"),
        ((2,), (0, 32, 1), {"ndim": -1}, b"0 to 64 dimensions"),
        ((2,), (0, 32, 1), {"ndim": 65}, b"0 to 64 dimensions"),
        ((2,), (0, 32, 1), {"shape": None}, b"0 to 64 dimensions"),
        ((2, -1), (0, 32, 1), {}, b"extents of at least 0"),
        ((2**40, 2**40), (0, 8, 1), {}, b"less than 2**60 bytes"),
        ((0, 2**62), (0, 8, 1), {}, b"less than 2**60 bytes"),
        ((2**63 - 1,), (0, 8, 1), {}, b"less than 2**60 bytes"),
        ((2,), (0, 0, 1), {}, b"expected a dtype"),
        ((2,), (0, 8, 0), {}, b"expected a dtype"),
        ((2,), (18, 8, 1), {}, b"expected a dtype"),
        ((2**59,), (0, 8, 1), {}, b"no memory"),
    ],
)
def test_the_allocator_complains(shape: Any, dtype: Any, fields: Any, text: bytes) -> None:
    context, kind, message = allocated(shape, dtype, **fields)
    assert (context, text in message) == (99, True), message
    assert kind == (b"MemoryError" if text == b"no memory" else b"BufferError")


def test_tensors_end_in_other_threads() -> None:
    x = np.arange(3)
    alive = weakref.ref(x)
    managed = [exported(array(x)), exported(from_dlpack(x)), allocated((3,), (0, 32, 1))]
    del x
    threads = [threading.Thread(target=delete, args=[each]) for each in managed]
    for thread in threads:
        thread.start()
        thread.join()
    gc.collect()
    assert alive() is None


def test_a_pending_exception_survives_a_deleter() -> None:
    def fail() -> None:
        raise KeyError("kept")

    managed = exported(array([1]))
    restore = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)
    with pytest.raises(KeyError, match="kept"):
        try:
            fail()
        finally:
            restore(ctypes.addressof(managed))


# ---- tvm-ffi -------------------------------------------------------------------------------------


def test_tvm_ffi_exchanges_by_it() -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi")
    a = array(np.arange(6.0).reshape(2, 3))
    before = sys.getrefcount(a)
    theirs = tvm_ffi.from_dlpack(a)
    assert sys.getrefcount(a) == before + 1
    np.from_dlpack(theirs)[0, 0] = 7
    assert a[0, 0].item() == 7
    del theirs
    assert sys.getrefcount(a) == before
    echo = tvm_ffi.get_global_func("testing.echo")  # returns arrays as those that it was given
    back = echo(a)
    assert isinstance(back, NDArray) and back.same_as(a)
    assert from_dlpack(tvm_ffi.from_dlpack(np.arange(3))).numpy().tolist() == [0, 1, 2]
