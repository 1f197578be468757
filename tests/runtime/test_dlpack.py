"""DLPack: layouts, both directions, hostile producers, lifetimes, frameworks."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minitvm.runtime import NDArray, PackedFunc, array, empty, from_dlpack
from minitvm.runtime.dlpack import (
    DLDataType,
    DLDevice,
    DLManagedTensor,
    DLManagedTensorVersioned,
    DLPackExchangeAPI,
    DLPackVersion,
    DLTensor,
    borrow,
    compact_strides,
    data_size,
    is_capsule,
)
from minitvm.runtime.glue import glue
from tests.leaks import traced_growth

CapsuleNew = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
CapsuleName = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
LEGACY, VERSIONED = b"dltensor", b"dltensor_versioned"


def offsets(struct: Any) -> dict[str, int]:
    return {name: getattr(struct, name).offset for name, *_ in struct._fields_}


def test_layouts_are_those_of_the_header() -> None:
    sizes = {
        DLDevice: 8, DLDataType: 4, DLPackVersion: 8, DLTensor: 48, DLManagedTensor: 64,
        DLManagedTensorVersioned: 80, DLPackExchangeAPI: 56,
    }  # fmt: skip
    assert {struct: ctypes.sizeof(struct) for struct in sizes} == sizes
    assert offsets(DLTensor) == {
        "data": 0, "device": 8, "ndim": 16, "dtype": 20, "shape": 24, "strides": 32,
        "byte_offset": 40,
    }  # fmt: skip
    assert offsets(DLManagedTensor) == {"dl_tensor": 0, "manager_ctx": 48, "deleter": 56}
    assert offsets(DLManagedTensorVersioned) == {
        "version": 0, "manager_ctx": 8, "deleter": 16, "flags": 24, "dl_tensor": 32,
    }  # fmt: skip
    assert offsets(DLDataType) == {"code": 0, "bits": 1, "lanes": 2}
    assert offsets(DLDevice) == {"device_type": 0, "device_id": 4}
    assert offsets(DLPackVersion) == {"major": 0, "minor": 4}
    assert offsets(DLPackExchangeAPI) == {
        "version": 0, "prev_api": 8, "managed_tensor_allocator": 16,
        "managed_tensor_from_py_object_no_sync": 24, "managed_tensor_to_py_object_no_sync": 32,
        "dltensor_from_py_object_no_sync": 40, "current_work_stream": 48,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "dtype", "packed", "padded"),
    [
        ((), (0, 32, 1), 4, 4),
        ((2, 3), (0, 32, 1), 24, 24),
        ((2, 0), (2, 64, 1), 0, 0),
        ((3,), (2, 16, 3), 18, 18),
        ((5,), (17, 4, 1), 3, 5),
        ((5,), (17, 4, 2), 5, 5),
        ((5,), (17, 4, 3), 8, 10),
        ((3, 3), (15, 6, 1), 7, 9),
        ((9,), (1, 1, 3), 4, 9),
        ((9,), (1, 1, 1), 9, 9),  # bool, as it was
        ((1 << 62,), (0, 8, 1), 1 << 62, 1 << 62),
        ((1 << 62, 2), (1, 2, 1), 1 << 61, None),
        ((1 << 63 - 1,), (0, 16, 1), None, None),
        ((1 << 32, 1 << 32), (0, 8, 1), None, None),
        ((0, 1 << 62, 1 << 62), (0, 8, 1), None, None),
        ((-1,), (0, 8, 1), None, None),
        ((2,), (0, 8, 0), None, None),
        ((2,), (4, 8, 1), None, None),
    ],
)
def test_data_size(shape: Any, dtype: Any, packed: int | None, padded: int | None) -> None:
    dims = (ctypes.c_int64 * len(shape))(*shape)
    tensor = DLTensor(
        ndim=len(shape), dtype=DLDataType(*dtype), shape=ctypes.addressof(dims), data=1
    )
    for flags, expected in ((0, packed), (3, packed), (4, padded)):
        if expected is None:
            with pytest.raises(BufferError, match="expected"):
                data_size(tensor, flags)
        else:
            assert data_size(tensor, flags) == expected


def test_glue_is_compiled_once() -> None:
    assert glue() is glue()


# DLPack's contract: what was handed out lives until its deleter is called, and a garbage collector
# that finds a producer and its array in one failed test may end the producer first.
_producers: list[Producer] = []


class Producer:
    """Hands out a tensor that a test describes, and counts what is done to it. Lives for ever."""

    def __init__(
        self,
        *,
        name: bytes = VERSIONED,
        version: tuple[int, int] = (1, 0),
        flags: int = 0,
        **fields: Any,
    ) -> None:
        self.deleted = 0
        self.name = name
        self.content = (ctypes.c_int32 * 6)(*range(6))
        self.shape = (ctypes.c_int64 * 2)(2, 3)
        self.managed: Any = (DLManagedTensorVersioned if VERSIONED in name else DLManagedTensor)()
        tensor = self.managed.dl_tensor
        tensor.data = ctypes.addressof(self.content)
        tensor.device = DLDevice(1, 0)
        tensor.ndim = 2
        tensor.dtype = DLDataType(0, 32, 1)
        tensor.shape = ctypes.addressof(self.shape)
        for field, value in fields.items():
            setattr(tensor, field, value)
        self.deleter = Deleter(self.delete)
        self.managed.deleter = ctypes.cast(self.deleter, ctypes.c_void_p).value
        if VERSIONED in name:
            self.managed.version = DLPackVersion(*version)
            self.managed.flags = flags
        _producers.append(self)

    def delete(self, _: int) -> None:
        self.deleted += 1

    def capsule(self) -> Any:
        return CapsuleNew(ctypes.addressof(self.managed), self.name, None)

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


@pytest.mark.parametrize("name", [LEGACY, VERSIONED])
def test_import_reads_the_memory_and_deletes_once(name: bytes) -> None:
    producer = Producer(name=name)
    capsule = producer.capsule()
    a = from_dlpack(capsule)
    assert CapsuleName(capsule) == b"used_" + name
    assert (a.shape, a.strides, str(a.dtype)) == ((2, 3), (3, 1), "int32")
    view = a[1]
    del a, capsule
    producer.content[3] = 33
    np.testing.assert_array_equal(view.numpy(), [33, 4, 5])
    shared = np.asarray(view)
    del view
    assert producer.deleted == 0
    assert shared[0] == 33
    del shared
    assert producer.deleted == 1


def test_import_folds_the_byte_offset_and_takes_strides() -> None:
    strides = (ctypes.c_int64 * 2)(1, 2)
    producer = Producer(byte_offset=4, strides=ctypes.addressof(strides))
    producer.shape[:] = [2, 2]
    a = from_dlpack(producer)
    assert a.data == ctypes.addressof(producer.content) + 4
    np.testing.assert_array_equal(a.numpy(), [[1, 3], [2, 4]])


def test_legacy_bool_is_bool() -> None:
    producer = Producer(dtype=DLDataType(1, 1, 1))
    producer.content[0] = 1 + (1 << 16)
    a = from_dlpack(producer)
    assert a.dtype == "bool"
    np.testing.assert_array_equal(a.numpy(), [[True, False, True], [False, True, False]])


def test_read_only_flag_is_honoured() -> None:
    a = from_dlpack(Producer(flags=1))
    assert a.read_only
    assert a[0].read_only
    with pytest.raises(ValueError, match="expected a writable array, got a read-only one"):
        a[...] = 1
    assert not np.asarray(a).flags.writeable
    with pytest.raises(BufferError, match=r"read-only memory needs a consumer of DLPack 1\.0"):
        a.__dlpack__()


HOSTILE: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"ndim": -1}, BufferError, "0 to 64 dimensions, got ndim -1"),
    ({"ndim": 1_000_000}, BufferError, "got ndim 1000000"),
    ({"shape": None}, BufferError, "expected a DLTensor with a shape, got NULL and ndim 2"),
    ({"data": None}, BufferError, r"expected memory for the shape \(2, 3\), got a NULL address"),
    ({"dtype": DLDataType(2, 32, 0)}, BufferError, "at least one lane, got 32 bits, 0 lanes"),
    ({"dtype": DLDataType(17, 8, 1)}, BufferError, "of 4 bits for float4_e2m1fn, got 8 bits"),
    ({"dtype": DLDataType(18, 8, 1)}, BufferError, r"DLPack 1\.3, 0 to 17, got 18"),
    ({"device": DLDevice(2, 1)}, ValueError, r"expected memory of cpu\(0\), got cuda\(1\)"),
    ({"version": (2, 0)}, BufferError, "expected a tensor of DLPack 1.x, got version 2.0"),
    ({"version": (0, 9)}, BufferError, "got version 0.9"),
]


@pytest.mark.parametrize(("fields", "kind", "match"), HOSTILE)
def test_hostile_tensors_are_refused_and_deleted_once(
    fields: dict[str, Any], kind: type[Exception], match: str
) -> None:
    producer = Producer(**fields)
    with pytest.raises(kind, match=match):
        from_dlpack(producer)
    gc.collect()
    assert producer.deleted == 1
    with pytest.raises(kind, match="f: argument 0: .*" + match):
        PackedFunc(lambda a: None, name="f")(producer)  # borrows, and so deletes nothing
    assert producer.deleted == 1


@pytest.mark.parametrize(
    ("shape", "match"),
    [((2, -3), r"extents of at least 0, got the shape \(2, -3\)"), ((2**40, 2**40), "2\\*\\*63")],
)
def test_impossible_shapes_are_refused(shape: tuple[int, int], match: str) -> None:
    producer = Producer()
    producer.shape[:] = list(shape)
    with pytest.raises(BufferError, match=match):
        from_dlpack(producer)


def test_other_major_version_is_not_touched() -> None:
    producer = Producer(version=(7, 0), ndim=-5, shape=1, data=1)
    with pytest.raises(BufferError, match=r"got version 7\.0"):
        from_dlpack(producer.capsule())
    assert producer.deleted == 1


def test_missing_deleter_is_no_crash() -> None:
    producer = Producer()
    producer.managed.deleter = None
    assert from_dlpack(producer).shape == (2, 3)


def test_wrong_and_consumed_capsules() -> None:
    capsule = Producer().capsule()
    from_dlpack(capsule)
    with pytest.raises(BufferError, match="expected an unused DLPack capsule, got one that was"):
        from_dlpack(capsule)
    with pytest.raises(BufferError, match="'dltensor' or 'dltensor_versioned', got 'something'"):
        from_dlpack(CapsuleNew(1, b"something", None))
    with pytest.raises(BufferError, match="got no name"):
        from_dlpack(CapsuleNew(1, None, None))
    with pytest.raises(BufferError, match="expected a DLPack capsule, got list"):
        borrow([])
    with pytest.raises(TypeError, match="expected an array with __dlpack__ or a capsule, got list"):
        from_dlpack([1])


def test_older_producer_without_keywords() -> None:
    class Old(Producer):
        def __dlpack__(self) -> Any:  # type: ignore[override]  # that is the point
            return self.capsule()

    assert from_dlpack(Old(name=LEGACY)).shape == (2, 3)


def test_device_is_asked_before_the_capsule() -> None:
    class OnGpu(Producer):
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, **_: Any) -> Any:
            raise AssertionError("not asked")

    with pytest.raises(ValueError, match=r"expected memory of cpu\(0\), got cuda\(0\): copy it"):
        from_dlpack(OnGpu())


# ---- Export --------------------------------------------------------------------------------------


def managed(capsule: Any) -> Any:
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    name = CapsuleName(capsule)
    struct = DLManagedTensorVersioned if name == VERSIONED else DLManagedTensor
    return struct.from_address(get(capsule, name))


@pytest.mark.parametrize(
    ("max_version", "name"),
    [
        (None, LEGACY),
        ((0, 8), LEGACY),
        ((1, 0), VERSIONED),
        ((1, 3), VERSIONED),
        ((2, 0), VERSIONED),
    ],
)
def test_capsule_kind_follows_the_consumers_version(max_version: Any, name: bytes) -> None:
    assert CapsuleName(array([1]).__dlpack__(max_version=max_version)) == name


def test_exported_tensor_suits_every_consumer() -> None:
    a = array(np.arange(12.0).reshape(3, 4))[1:, ::-1]
    capsule = a.__dlpack__(max_version=(1, 3))
    header = managed(capsule)
    tensor = header.dl_tensor
    assert (header.version.major, header.version.minor, header.flags) == (1, 3, 0)
    assert header.manager_ctx and header.deleter
    assert (tensor.data, tensor.byte_offset, tensor.ndim) == (a.data, 0, 2)
    assert list((ctypes.c_int64 * 4).from_address(tensor.shape)) == [2, 4, 4, -1]
    assert tensor.strides == tensor.shape + 16


def test_export_of_copies() -> None:
    a = array([1, 2])
    capsule = a.__dlpack__(max_version=(1, 0), copy=True)
    assert managed(capsule).flags == 2
    copied = from_dlpack(capsule)
    a[...] = 9
    np.testing.assert_array_equal(copied.numpy(), [1, 2])
    assert managed(a.__dlpack__(max_version=(1, 0), copy=False)).dl_tensor.data == a.data


def test_empty_arrays_export_a_null_address() -> None:
    assert managed(empty((0, 3)).__dlpack__()).dl_tensor.data is None
    assert from_dlpack(empty((0, 3))).shape == (0, 3)
    assert np.from_dlpack(empty((2, 0))).shape == (2, 0)


def test_export_refusals() -> None:
    a = array([1])
    with pytest.raises(BufferError, match="expected stream=None on the CPU, got 1"):
        a.__dlpack__(stream=1)
    with pytest.raises(BufferError, match=r"can't export memory of cpu\(0\) as cuda\(0\)"):
        a.__dlpack__(dl_device=(2, 0))
    assert is_capsule(a.__dlpack__(dl_device=(1, 0)))


@pytest.mark.parametrize("max_version", [None, (1, 3)])
def test_capsules_that_nobody_consumes_free_the_memory(max_version: Any) -> None:
    class Memory(np.ndarray[Any, Any]):
        pass

    memory = np.zeros(3).view(Memory)
    alive = weakref.ref(memory)
    capsule = NDArray(from_dlpack(memory)._view, memory).__dlpack__(max_version=max_version)
    del memory
    gc.collect()
    assert alive() is not None
    del capsule
    assert alive() is None


def test_deleter_keeps_a_pending_exception() -> None:
    def use() -> None:
        kept = np.from_dlpack(array([1.0]))
        raise KeyError(kept.sum())

    with pytest.raises(KeyError, match=r"1\.0"):
        use()


def test_consumers_keep_our_memory_and_we_keep_theirs() -> None:
    a = array(np.arange(1000))
    theirs = np.from_dlpack(a)
    del a
    gc.collect()
    assert theirs.sum() == 499500
    x = np.arange(1000)
    alive = weakref.ref(x)
    ours = from_dlpack(x)
    del x
    gc.collect()
    assert alive() is not None
    assert ours.numpy().sum() == 499500
    del ours
    assert alive() is None


def test_exports_leak_nothing() -> None:
    a = array(np.zeros((3, 4)))

    def export() -> None:
        a.__dlpack__()
        np.from_dlpack(a)
        from_dlpack(a)

    assert traced_growth(export, 1500, 5000) < 5000


# ---- torch ---------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def test_torch_shares_both_ways(torch: Any) -> None:
    t = torch.arange(12.0).reshape(3, 4)[:, ::2]
    a = from_dlpack(t)
    assert a.strides == (4, 2)
    back = torch.from_dlpack(a)
    back[0, 0] = 77
    del a
    gc.collect()
    assert t[0, 0] == 77
    ours = array([1.5, 2.5], dtype="bfloat16")
    theirs = torch.from_dlpack(ours)
    del ours
    gc.collect()
    assert theirs.dtype == torch.bfloat16
    assert theirs.tolist() == [1.5, 2.5]


def _fake(torch: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.randn(3)


TORCH_REFUSED: list[tuple[str, Callable[[Any], Any], type[Exception], str]] = [
    ("grad", lambda t: t.ones(3, requires_grad=True), BufferError, "doesn't require grad"),
    ("conj", lambda t: t.ones(3, dtype=t.cfloat).conj(), BufferError, "conjugate bit"),
    ("neg", lambda t: t.ones(3, dtype=t.cfloat).conj().imag, BufferError, "x.resolve_neg"),
    ("meta", lambda t: t.ones(3, device="meta"), BufferError, "meta"),
    ("sparse", lambda t: t.eye(3).to_sparse(), BufferError, "layout torch.sparse_coo"),
]


@pytest.mark.parametrize(
    ("make", "kind", "match"), [c[1:] for c in TORCH_REFUSED], ids=[c[0] for c in TORCH_REFUSED]
)
def test_torch_tensors_that_cannot_be_shared(
    torch: Any, make: Callable[[Any], Any], kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=match):
        from_dlpack(make(torch))
    with pytest.raises(kind, match="^f: argument 0: .*" + match):
        PackedFunc(lambda a: None, name="f")(make(torch))


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_torch_fake_tensor(torch: Any) -> None:
    with pytest.raises(BufferError, match="got a fake one, which has no data"):
        from_dlpack(_fake(torch))


@pytest.mark.filterwarnings("ignore")
def test_torch_quantised_tensor(torch: Any) -> None:
    quantised = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
    with pytest.raises(BufferError, match="got a quantised one"):
        from_dlpack(quantised)


def test_compact_strides_of_empty_shapes() -> None:
    assert compact_strides(()) == ()
    assert compact_strides((2, 0, 3)) == (3, 3, 1)
