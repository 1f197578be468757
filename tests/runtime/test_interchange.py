"""The array API standard's rules of interchange, and numpy's own tests of DLPack, of an NDArray in
both roles: as producer, to numpy and torch, and as consumer, of numpy's, torch's and our arrays."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm.runtime import NDArray, array, cpu, device, empty, from_dlpack
from minitvm.runtime.dlpack import IS_COPIED, READ_ONLY, lead_alike
from tests.runtime.test_dlpack import LEGACY, VERSIONED, CapsuleName, Producer, managed

NUMPY_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64", "complex64", "complex128",
)  # fmt: skip
VERSIONS = (None, (0, 0), (0, 8), (1, 0), (1, 3), (1, 99), (100, 3))


class Old(np.ndarray[Any, Any]):
    """numpy's arrays with the method that they had before DLPack 1.0."""

    def __dlpack__(self, stream: None = None) -> Any:  # type: ignore[override]  # that is the point
        return super().__dlpack__(stream=None)


# ---- As producer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_capsule_holds_one_reference(version: Any) -> None:
    a = array(np.arange(5))
    before = sys.getrefcount(a)
    capsule = a.__dlpack__(max_version=version)
    assert sys.getrefcount(a) == before + 1
    versioned = version is not None and version[0] >= 1
    assert CapsuleName(capsule) == (VERSIONED if versioned else LEGACY)
    del capsule
    assert sys.getrefcount(a) == before


def test_streams_are_for_devices() -> None:
    a = array(np.arange(5))
    a.__dlpack__(stream=None)
    for stream, kind in itertools.product((1, -1, 0, "s"), (BufferError, RuntimeError)):
        with pytest.raises(kind, match="expected stream=None on the CPU, got"):
            a.__dlpack__(stream=stream)


def test_copies_are_said_to_be_copies() -> None:
    a = array(np.arange(5))
    for copy, flags in ((None, 0), (False, 0), (True, IS_COPIED)):
        header = managed(a.__dlpack__(max_version=(1, 0), copy=copy))
        assert header.flags == flags
        assert (header.dl_tensor.data == a.data) == (not copy)
    a.__dlpack__(copy=True)
    with pytest.raises(ValueError, match="ambiguous"):
        a.__dlpack__(copy=np.array([1, 2, 3]))  # type: ignore[arg-type]  # that is the point


def test_a_copy_of_fixed_memory_can_be_written() -> None:
    fixed = from_dlpack(np.arange(3), read_only=True)
    assert managed(fixed.__dlpack__(max_version=(1, 0))).flags == READ_ONLY
    assert managed(fixed.__dlpack__(max_version=(1, 0), copy=True)).flags == IS_COPIED
    assert CapsuleName(fixed.__dlpack__(copy=True)) == LEGACY
    with pytest.raises(BufferError, match=r"read-only memory needs"):
        fixed.__dlpack__()
    assert not np.from_dlpack(fixed).flags.writeable


def test_memory_of_another_device_is_not_to_be_had() -> None:
    a = array(np.arange(5))
    assert a.__dlpack_device__() == (1, 0)
    assert a[::2].__dlpack_device__() == (1, 0)
    for place in ((1, 0), [1, 0], (np.int64(1), 0)):
        a.__dlpack__(dl_device=place)  # type: ignore[arg-type]  # a list
    for place in ((10, 0), (1, 1), (2, 0)):
        with pytest.raises(BufferError, match=r"can't export memory of cpu\(0\) as"):
            a.__dlpack__(dl_device=place)


@pytest.mark.parametrize("wrong", [3, (1,), (1, 2, 3), "12", (1, "0"), (1.5, 0), (None, None)])
def test_pairs_of_integers_are_asked_for(wrong: Any) -> None:
    a = array([1])
    with pytest.raises(TypeError, match="integer"):
        a.__dlpack__(max_version=wrong)
    with pytest.raises(TypeError, match="integer"):
        a.__dlpack__(dl_device=wrong)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_others_read_ours(library: str, dtype: str) -> None:
    other = pytest.importorskip(library)
    x = np.arange(12).reshape(3, 4).astype(dtype)
    a = array(x)
    for part in (np.s_[:], np.s_[0], np.s_[:, 0], np.s_[1:, ::2], np.s_[0, 0], np.s_[3:]):
        theirs = np.asarray(other.from_dlpack(a[part]))
        np.testing.assert_array_equal(theirs, x[part], strict=True)
    theirs = other.from_dlpack(a)
    theirs[0, 0] = 1
    assert a[0, 0].item() == 1


@pytest.mark.parametrize("ndim", range(33))
def test_up_to_32_dimensions_and_beyond(ndim: int) -> None:
    shape = (1,) * ndim
    a = array(np.zeros(shape))
    assert np.from_dlpack(a).shape == shape
    assert from_dlpack(np.zeros(shape)).shape == shape
    wide = (2,) + (1,) * 63
    assert np.from_dlpack(from_dlpack(np.zeros(wide))).shape == wide


def test_the_strides_of_single_elements_and_of_none() -> None:
    buffer = np.ones(1000, np.uint8)
    x: Any = np.ndarray(dtype="f8", shape=(10, 5, 1), strides=(8, 80, 8), buffer=buffer, order="F")
    for a in (from_dlpack(x), array(x)):
        np.testing.assert_array_equal(np.from_dlpack(a), x)
        assert a.shape == x.shape
    for shape in ((0,), (3, 0), (0, 3), (2, 0, 2)):
        for a in (empty(shape), from_dlpack(np.zeros(shape, "f4")), array(np.zeros(shape, "f4"))):
            header = managed(a.__dlpack__(max_version=(1, 0)))
            assert header.dl_tensor.data is None and header.dl_tensor.strides
            assert np.from_dlpack(a).shape == from_dlpack(a).shape == shape


def test_a_pending_exception_survives_a_capsule() -> None:
    def fail(version: Any) -> None:
        capsule = array(np.arange(5)).__dlpack__(max_version=version)
        raise RuntimeError(str(capsule))

    for version in VERSIONS:
        with pytest.raises(RuntimeError, match="capsule object"):
            fail(version)


# ---- As consumer ---------------------------------------------------------------------------------

FROM: tuple[Callable[..., NDArray], ...] = (from_dlpack, tvm.from_dlpack, tvm.nd.from_dlpack)


def test_it_has_three_names() -> None:
    assert len(set(FROM)) == 1


@pytest.mark.parametrize("kind", [np.ndarray, Old])
def test_an_import_holds_one_reference(kind: type) -> None:
    x: Any = np.arange(5).view(kind)
    before = sys.getrefcount(x)
    a = from_dlpack(x)
    assert sys.getrefcount(x) == before + 1
    b = a[1:]
    del a
    assert sys.getrefcount(x) == before + 1
    del b
    assert sys.getrefcount(x) == before


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("kind", [np.ndarray, Old])
def test_dtypes_pass(kind: type, dtype: str) -> None:
    x: Any = np.arange(5).astype(dtype).view(kind)
    a = from_dlpack(x)
    assert a.dtype == dtype
    np.testing.assert_array_equal(a.numpy(), np.asarray(x), strict=True)


def test_errors_of_a_producer_pass() -> None:
    record = np.zeros((5,), dtype=[("int", np.int32), ("char", np.int8)])
    for x in (record["int"], np.asarray(np.datetime64("2021-05-27")),
              np.arange(5, dtype=np.dtype("=i8").newbyteorder())):  # fmt: skip
        with pytest.raises(BufferError):
            from_dlpack(x)

    class Failing(Producer):
        error: BaseException

        def __dlpack__(self, **_: Any) -> Any:
            raise self.error

    for error in (BufferError("b"), ValueError("v"), MemoryError("m"), KeyboardInterrupt("k")):
        producer = Failing()
        producer.error = error
        with pytest.raises(type(error), match=str(error)):
            from_dlpack(producer)


@pytest.mark.parametrize("wrong", [[1], 3, None, "text", object(), np.float32])
def test_what_is_no_array_lacks_the_attribute(wrong: Any) -> None:
    for kind in (AttributeError, TypeError):
        with pytest.raises(kind, match="from_dlpack: expected an array with __dlpack__ or a"):
            from_dlpack(wrong)


def test_parts_and_orders_pass() -> None:
    x = np.arange(25).reshape((5, 5))
    parts = (x[0], x[:, 0], x[1, :], x[1], np.diagonal(x).copy(), x.T, x[::-1, ::2], x[:0],
             np.broadcast_to(x[0], (3, 5)), np.array(1.0), x[None, :, None])  # fmt: skip
    for part in parts:
        a = from_dlpack(part)
        np.testing.assert_array_equal(a.numpy(), part, strict=True)
        assert lead_alike(a.shape, a.strides, tuple(s // part.itemsize for s in part.strides))
        assert a.read_only == (not part.flags.writeable)


def test_copy_is_none_true_or_false() -> None:
    x = np.arange(5)
    for copy, shared in ((None, True), (False, True), (True, False)):
        a = from_dlpack(x, copy=copy)
        assert np.may_share_memory(x, np.asarray(a)) == shared
        assert not a.read_only
    fixed = np.arange(5)
    fixed.flags.writeable = False
    assert from_dlpack(fixed).read_only
    assert from_dlpack(fixed, copy=False).read_only
    a = from_dlpack(fixed, copy=True)
    a[0] = 9
    assert fixed[0] == 0


def test_devices_that_are_not_there() -> None:
    x = np.arange(5)
    for place in (None, "cpu", cpu(0), device("llvm")):
        assert np.may_share_memory(x, np.asarray(from_dlpack(x, device=place)))
        assert not np.may_share_memory(x, np.asarray(from_dlpack(x, place, True)))
    with pytest.raises(ValueError, match=r"expected a device that is there .*, got cuda\(0\)"):
        from_dlpack(x, device="gpu")
    with pytest.raises(ValueError, match=r"expected a device that is there .*, got cpu\(1\)"):
        from_dlpack(x, device=cpu(1))
    with pytest.raises(ValueError, match="expected a device among cpu, cuda"):
        from_dlpack(x, device="abacus")


class Copies(Producer):
    """Copies when it is asked, and says so; lies on a GPU, but can hand itself to the CPU."""

    place: Any = (1, 0)

    def __dlpack__(self, **options: Any) -> Any:
        self.options = options
        self.managed.flags = IS_COPIED * (options.get("copy") is True or self.place != (1, 0))
        return self.capsule()

    def __dlpack_device__(self) -> Any:
        return self.place


def test_a_cpu_without_a_number_is_the_first() -> None:
    """As Paddle has it."""
    producer = Copies()
    producer.place = (1, None)
    assert from_dlpack(producer).data == producer.managed.dl_tensor.data
    producer.place = (2, None)
    with pytest.raises(ValueError, match=r"expected memory of cpu\(0\), got cuda\(0\)"):
        from_dlpack(producer)


def test_a_copy_of_the_producers_is_not_copied_again() -> None:
    copied = Producer(flags=IS_COPIED)
    a = from_dlpack(copied, copy=True)
    assert a.data == copied.managed.dl_tensor.data
    with pytest.raises(ValueError, match="expected shared memory, got a copy, with copy=False"):
        from_dlpack(Producer(flags=IS_COPIED), copy=False)
    fixed = Producer(flags=IS_COPIED | READ_ONLY)
    assert from_dlpack(fixed).read_only
    made = from_dlpack(fixed, copy=True)
    assert not made.read_only and made.data != fixed.managed.dl_tensor.data
    assert fixed.deleted == 2  # once a capsule: the copy needs it no longer
    assert from_dlpack(Producer(flags=IS_COPIED).capsule(), read_only=True).read_only


def test_a_copy_of_ours_can_be_written_and_the_original_goes() -> None:
    producer = Producer()
    a = from_dlpack(producer.capsule(), copy=True)
    assert producer.deleted == 1
    a[...] = 7
    assert list(producer.content) == [0, 1, 2, 3, 4, 5]


def test_options_are_passed_on() -> None:
    producer = Copies()
    from_dlpack(producer)
    assert producer.options == {"max_version": (1, 3)}
    from_dlpack(producer, copy=False)
    assert producer.options == {"max_version": (1, 3), "copy": False}
    from_dlpack(producer, device="cpu")
    assert "dl_device" not in producer.options  # it lies there already


def test_a_device_is_asked_for_when_memory_lies_elsewhere() -> None:
    producer = Copies()
    producer.place = (2, 0)
    with pytest.raises(ValueError, match=r"expected memory of cpu\(0\), got cuda\(0\): copy it"):
        from_dlpack(producer)
    with pytest.raises(ValueError, match=r"expected memory of cpu\(0\), got cuda\(0\): copy it"):
        from_dlpack(producer, device="cpu", copy=False)
    for copy in (None, True):
        a = from_dlpack(producer, device="cpu", copy=copy)
        assert producer.options == {"max_version": (1, 3), "dl_device": (1, 0)}
        assert a.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_producer_without_keywords_is_asked_without() -> None:
    class Plain(Producer):
        def __dlpack__(self) -> Any:  # type: ignore[override]  # that is the point
            return self.capsule()

    for copy in (None, False, True):
        assert from_dlpack(Plain(name=LEGACY), copy=copy).shape == (2, 3)


def test_a_round_trip_is_the_same_memory() -> None:
    torch = pytest.importorskip("torch")
    a = array(np.arange(6.0).reshape(2, 3))
    through: Any = (np.from_dlpack, torch.from_dlpack, from_dlpack)
    for there, back in itertools.product(through, repeat=2):
        shared = from_dlpack(back(there(a)))
        assert shared.data == a.data
        shared[0, 0] = 5.0
        assert a[0, 0].item() == 5.0
        a[0, 0] = 0
        del shared
        gc.collect()


# ---- Buffers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_a_memoryview_is_numpys(dtype: str) -> None:
    x: Any = np.arange(12).reshape(3, 4).astype(dtype)
    a = array(x)
    for part in (np.s_[:], np.s_[1:, ::2], np.s_[0, 0, ...], np.s_[3:]):
        ours, theirs = memoryview(a[part]), memoryview(x[part])
        for name in ("format", "itemsize", "shape", "strides", "readonly", "nbytes"):
            if name != "strides" or 0 not in x[part].shape:
                assert getattr(ours, name) == getattr(theirs, name), name
        assert ours.tobytes() == theirs.tobytes()
    assert bytes(a) == x.tobytes()
    assert memoryview(a.T).strides == memoryview(x.T).strides


def test_a_memoryview_keeps_the_memory_and_its_rules() -> None:
    a = array(np.arange(6, dtype="int32"))
    view = memoryview(a)
    view[0] = 7
    assert a[0].item() == 7
    del a
    gc.collect()
    assert view.tolist() == [7, 1, 2, 3, 4, 5]
    fixed = memoryview(from_dlpack(np.arange(3), read_only=True))
    with pytest.raises(TypeError, match="read-only"):
        fixed[0] = 1
    with pytest.raises(BufferError, match=r"no format for float8_e4m3fn: a.view"):
        memoryview(empty((2,), "float8_e4m3fn"))
    with pytest.raises(BufferError, match=r"no format for float4_e2m1fn: a.view"):
        memoryview(empty((2,), "float4_e2m1fn"))
