"""Arrays on devices: made, copied in all directions, exported and imported."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import nd
from minitvm.runtime.device import Device
from minitvm.runtime.device_api import registry
from minitvm.runtime.device_api.ext_dev import ExtDev
from minitvm.runtime.device_type import DEVICE_TYPES
from minitvm.runtime.dlpack import IS_COPIED

EXT0, EXT1 = tvm.ext_dev(0), tvm.ext_dev(1)


@pytest.fixture(scope="module")
def other() -> Iterator[Device]:
    """A device of another kind than ext_dev."""
    number = tvm.register_device("other_dev", ExtDev(devices=1))
    yield tvm.device("other_dev", 0)
    tvm.unregister_device("other_dev")
    assert number not in DEVICE_TYPES.values()


@pytest.fixture
def places(other: Device) -> list[Device]:
    return [tvm.cpu(0), EXT0, EXT1, other]


def test_there_and_not_there(other: Device) -> None:
    assert all(each.exist for each in (tvm.cpu(), EXT0, EXT1, other))
    for missing in (tvm.ext_dev(2), tvm.device("cuda"), tvm.cpu(1), tvm.device("other_dev", 1)):
        assert not missing.exist
        with pytest.raises(ValueError, match=r"NDArray: expected a device that is there \(cpu\(0"):
            nd.empty((2,), device=missing)
        with pytest.raises(ValueError, match="expected a device that is there"):
            missing.sync()
    assert str(other) == "other_dev(0)"
    assert EXT0.properties["is_simulated"]
    with pytest.raises(TypeError, match=r"expected a device such as .*, got int"):
        nd.empty((2,), device=3)  # type: ignore[arg-type]


def test_copies_between_all_places(places: list[Device]) -> None:
    x = np.arange(24, dtype="float32").reshape(4, 6)
    for first, second in itertools.product(places, places):
        a = nd.array(x, first)
        assert a.device == first
        b = a.copyto(second)
        assert b.device == second
        np.testing.assert_array_equal(b.numpy(), x)
        b[...] = 0
        np.testing.assert_array_equal(a.numpy(), x)
        c = nd.empty((4, 6), device=second)
        assert a.copyto(c) is c
        np.testing.assert_array_equal(c.numpy(), x)
        np.testing.assert_array_equal(nd.array(a, second, dtype="int32").numpy(), x.astype("int32"))


def _views(base: Any) -> list[Any]:
    return [
        base, base[1:3], base[:, ::2], base[::-1], base[:, ::-3], base.T, base[2], base[:, 4],
        base[1:2, 3:4], base[:0], base[3:, 5, ...], base[None, :, 1:5:2],
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bool", "int8", "complex128", "float16"])
def test_strided_sources_and_targets(places: list[Device], dtype: str) -> None:
    x = np.arange(24).reshape(4, 6).astype(dtype)
    for first, second in itertools.product(places, places):
        a = nd.array(x, first)
        for view, expected in zip(_views(a), _views(x), strict=True):
            np.testing.assert_array_equal(view.copyto(second).numpy(), expected)
        for position in range(len(_views(x))):
            wanted = np.zeros_like(x)
            target = nd.array(wanted, second)
            _views(wanted)[position][...] = _views(x)[position]
            _views(a)[position].copyto(_views(target)[position])
            np.testing.assert_array_equal(target.numpy(), wanted)


@pytest.mark.parametrize(
    ("target", "source"),
    [
        (np.s_[1:], np.s_[:-1]), (np.s_[:-1], np.s_[1:]), (np.s_[...], np.s_[::-1]),
        (np.s_[:, 1:], np.s_[:, :-1]), (np.s_[1:4, ::2], np.s_[:3, 1::2]), (np.s_[:], np.s_[:]),
    ],
)  # fmt: skip
def test_parts_that_overlap(target: Any, source: Any) -> None:
    x = np.arange(30, dtype="float32").reshape(5, 6)
    for stream in (None, EXT0.create_stream()):
        a, expected = nd.array(x, EXT0), x.copy()
        a[source].copyto(a[target], stream=stream)
        expected[target] = x[source]
        np.testing.assert_array_equal(a.numpy(), expected)


def test_large_rows_and_scattered_elements() -> None:
    x = np.random.default_rng(0).random((50, 3000))
    a = nd.array(x, EXT0)
    for key in (
        np.s_[::7],
        np.s_[:, :2000],
        np.s_[::-1, 100:2900],
        np.s_[:, ::1000],
        np.s_[::49, 5],
    ):
        np.testing.assert_array_equal(a[key].numpy(), x[key])
        np.testing.assert_array_equal(a[key].copyto(EXT1).numpy(), x[key])
        x[key] += 1
        a[key] = x[key]
        np.testing.assert_array_equal(a.numpy(), x)


def test_assignment_converts_and_broadcasts() -> None:
    a = nd.empty((3, 4), "float64", EXT0)
    a[...] = 7
    a[1] = [1, 2, 3, 4]
    a[:, 2] = nd.array(np.array([5, 6, 7], "int16"), EXT1)
    expected = np.full((3, 4), 7.0)
    expected[1] = [1, 2, 3, 4]
    expected[:, 2] = [5, 6, 7]
    np.testing.assert_array_equal(a.numpy(), expected)
    b = nd.array(np.array([1.0, 2.5], "float32"), EXT0, dtype="bfloat16")
    assert b.view("uint16").numpy().tolist() == [0x3F80, 0x4020]
    with pytest.raises(ValueError, match="copyto expected a target of shape"):
        a.copyto(nd.empty((3, 3), "float64", EXT0))
    with pytest.raises(ValueError, match="copyfrom expected a source of shape"):
        a.copyfrom(np.zeros(2))


_FEW_BITS = ["int4", "uint1", "float4_e2m1fn", "float8_e4m3fn", "float6_e2m3fn"]


@pytest.mark.parametrize("dtype", _FEW_BITS)
def test_elements_of_few_bits(dtype: str) -> None:
    on_host = nd.empty((4, 6), dtype)
    on_host[...] = (np.arange(24).reshape(4, 6) % 2).astype("float32")
    on_host[1] = np.zeros(6, "float32")
    a = nd.array(on_host, EXT0)
    assert a.dtype == on_host.dtype
    part = a[1:3, 1:5].copyto(tvm.cpu())
    np.testing.assert_array_equal(part.numpy(), on_host[1:3, 1:5].numpy())
    a[0:2, 3:5].copyfrom(on_host[2:4, 0:2])
    a[3, 1] = on_host[0, 0]
    expected = on_host.numpy()
    expected[0:2, 3:5] = expected[2:4, 0:2]
    expected[3, 1] = expected[0, 0]
    np.testing.assert_array_equal(a.numpy(), expected)


def test_no_elements_take_no_memory() -> None:
    before = EXT0.memory_stats().allocations
    for shape in ((0,), (3, 0, 2)):
        a = nd.empty(shape, device=EXT0)
        assert a.copyto(EXT1).numpy().shape == shape
        a[...] = 1
        assert nd.array(a, EXT0).shape == a.T.T.shape
        assert a.data == 0
        assert repr(a).startswith("<NDArray")
    assert EXT0.memory_stats().allocations == before


def test_memory_comes_back() -> None:
    before = EXT0.memory_stats().allocated
    a = nd.empty((1000,), device=EXT0)
    part = a[10:20]
    del a
    assert EXT0.memory_stats().allocated > before
    del part
    assert EXT0.memory_stats().allocated == before


def test_copies_on_streams() -> None:
    x = np.random.default_rng(1).random(10_000)
    first, second = EXT0.create_stream(), EXT1.create_stream()
    source, back = nd.array(x), nd.empty(x.shape, "float64")
    a, b = nd.empty(x.shape, "float64", EXT0), nd.empty(x.shape, "float64", EXT1)
    source.copyto(a, stream=first)
    second.wait(first.record())
    a.copyto(b, stream=second)
    b.copyto(back, stream=second)
    done = second.record()
    done.synchronize()
    assert done.query()
    assert second.query()
    np.testing.assert_array_equal(back.numpy(), x)
    # Parts with gaps, and another kind of device, in the order of the stream.
    a[::2].copyfrom(nd.array(-x[::2]), stream=first)
    a.T.copyto(back[::-1], stream=first)
    first.synchronize()
    x[::2] *= -1
    np.testing.assert_array_equal(back.numpy(), x[::-1])


def test_what_a_stream_uses_stays() -> None:
    """Arrays that nobody holds while a stream still copies them are neither freed nor given out."""
    stream = EXT0.create_stream()
    back = [nd.empty((5000,)) for _ in range(20)]
    for value in range(20):
        source = nd.array(np.full(5000, value, "float32"))
        on_device = nd.empty((5000,), device=EXT0)
        source.copyto(on_device, stream=stream)
        on_device.copyto(back[value], stream=stream)
        del source, on_device
    stream.synchronize()
    for value in range(20):
        assert (back[value].numpy() == value).all()


def test_arrays_of_a_stream_on_another() -> None:
    first, second = EXT0.create_stream(), EXT0.create_stream()
    with first:
        a = nd.empty((1000,), device=EXT0)
    x = nd.array(np.arange(1000, dtype="float32"))
    x.copyto(a, stream=second)
    y = nd.empty((1000,))
    a.copyto(y, stream=second)
    second.synchronize()
    np.testing.assert_array_equal(y.numpy(), x.numpy())
    del first
    a.copyto(y, stream=second)
    second.synchronize()


def test_streams_of_others() -> None:
    a = nd.array(np.ones(4, "float32"), EXT0)
    stream = EXT1.create_stream()
    with pytest.raises(ValueError, match=r"expected a stream of cpu\(0\) or ext_dev\(0\), got one"):
        a.copyto(nd.empty((4,)), stream=stream)
    with pytest.raises(TypeError, match=r"expected a stream of ext_dev\(0\), got int"):
        a.copyto(nd.empty((4,), device=EXT0), stream=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"sync: expected a stream of ext_dev\(0\), got one of"):
        EXT0.sync(stream)
    with pytest.raises(TypeError, match="expected an event to wait for, got str"):
        stream.wait("now")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected a stream of"):
        EXT0.create_event().record(stream)
    with pytest.raises(TypeError, match="expected a function, got int"):
        stream.add_callback(3)  # type: ignore[arg-type]
    assert EXT0.create_event().query()


def test_the_cpu_has_streams_too() -> None:
    """Code that is written for streams runs on all devices."""
    stream, reached = tvm.cpu().create_stream(), []
    a = nd.array(np.ones(3, "float32"))
    with stream:
        b = a.copyto(nd.empty((3,)), stream=stream)
    event = stream.record()
    stream.wait(event)
    stream.add_callback(lambda: reached.append(1))
    stream.synchronize()
    tvm.cpu().sync()
    assert event.query()
    assert stream.query()
    assert reached == [1]
    assert b.numpy().tolist() == [1, 1, 1]


def test_numpy_sees_only_the_cpu() -> None:
    a = nd.array(np.ones(3, "float32"), EXT0)
    text = r"expected memory of the CPU, got an array on ext_dev\(0\): a.numpy\(\)"
    for see in (np.asarray, memoryview):
        with pytest.raises(BufferError, match=text):
            see(a)
    assert a[:1].item() == 1
    assert "device=ext_dev(0))>\n[1. 1. 1.]" in repr(a)


def test_pickles_come_back_where_they_were() -> None:
    x = np.arange(12, dtype="int16").reshape(3, 4)
    a = nd.array(x, EXT1)
    for each, expected in ((a, x), (a[:, ::2], x[:, ::2])):
        copied = pickle.loads(pickle.dumps(each))
        assert copied.device == EXT1
        np.testing.assert_array_equal(copied.numpy(), expected)


# ---- DLPack --------------------------------------------------------------------------------------


def test_exported_and_imported() -> None:
    a = nd.array(np.arange(6, dtype="int32").reshape(2, 3), EXT1)
    assert a.__dlpack_device__() == (12, 1)
    shared = tvm.from_dlpack(a)
    assert (shared.device, shared.data) == (EXT1, a.data)
    shared[0, 0] = 99
    assert a.numpy()[0, 0] == 99
    again = tvm.from_dlpack(a.T.__dlpack__(max_version=(1, 0)))
    assert (again.shape, again.strides, again.device) == ((3, 2), (1, 3), EXT1)
    assert tvm.from_dlpack(a, copy=True).data != a.data
    assert tvm.from_dlpack(a, copy=True).device == EXT1
    moved = tvm.from_dlpack(a, device="cpu")
    np.testing.assert_array_equal(np.asarray(moved), a.numpy())
    assert tvm.from_dlpack(np.arange(3), device=EXT0).device == EXT0
    with pytest.raises(ValueError, match="expected shared memory, got a copy"):
        tvm.from_dlpack(np.arange(3), device=EXT0, copy=False)
    with pytest.raises(BufferError, match=r"can't export memory of ext_dev\(1\) as cuda\(0\)"):
        a.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match=r"can't export memory of ext_dev\(1\) as cpu\(0\)"):
        a.__dlpack__(dl_device=(1, 0), copy=False)


def test_exported_as_a_device_of_ones_own(other: Device) -> None:
    a = nd.array(np.arange(3, dtype="float32"), other)
    assert a.__dlpack_device__() == (other.device_type, 0)
    assert other.device_type >= 256
    assert tvm.from_dlpack(a).device == other
    with pytest.raises(Exception, match=r"[Uu]nsupported"):
        np.from_dlpack(a)


def test_consumers_say_their_streams() -> None:
    x = np.arange(50_000, dtype="float64")
    a, back = nd.empty(x.shape, "float64", EXT0), nd.empty(x.shape, "float64")
    mine, theirs = EXT0.create_stream(), EXT0.create_stream()
    for stream in (theirs, theirs.handle, None):
        with mine:
            nd.array(x).copyto(a, stream=mine)
            tensor = tvm.from_dlpack(a.__dlpack__(stream=stream))
        tensor.copyto(back, stream=theirs)
        theirs.synchronize()
        np.testing.assert_array_equal(back.numpy(), x)
        x += 1
    a.__dlpack__(stream=-1)
    with pytest.raises(ValueError, match="expected a stream of"):
        a.__dlpack__(stream=EXT1.create_stream())


def test_a_producer_of_a_device_that_is_not_there() -> None:
    class Elsewhere:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (12, 9)

        def __dlpack__(self, **options: Any) -> Any:
            raise AssertionError

    with pytest.raises(ValueError, match=r"expected memory of cpu\(0\), got ext_dev\(9\)"):
        tvm.from_dlpack(Elsewhere())
    assert IS_COPIED


# ---- Registration --------------------------------------------------------------------------------


def test_names_and_numbers_that_are_taken() -> None:
    with pytest.raises(TypeError, match="expected a DeviceInterface, got int"):
        tvm.register_device("some", 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected an instance, got the class ExtDev: pass ExtDev"):
        tvm.register_device("some", ExtDev)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a name first"):
        tvm.register_device(ExtDev(), "some")  # type: ignore[arg-type]
    for name in ("cpu", "cuda", "gpu", "llvm"):
        with pytest.raises(ValueError, match="expected a name for a new kind of device"):
            tvm.register_device(name, ExtDev())
    with pytest.raises(ValueError, match="expected a name such as 'npu', got 'two words'"):
        tvm.register_device("two words", ExtDev())
    for number in (0, 2, -1, 1 << 31):
        with pytest.raises(ValueError, match="expected a number of a device from 1 to"):
            tvm.register_device("some", ExtDev(), device_type=number)
    for name in ("cpu", "nothing"):
        with pytest.raises(ValueError, match="expected a device that was registered"):
            tvm.unregister_device(name)


def test_a_device_that_cannot_be_initialised() -> None:
    class Broken(ExtDev.__base__):  # type: ignore[misc,name-defined]
        def device_memory_allocate(self, device: Device, size: int) -> int:
            return 0

        def device_memory_deallocate(self, device: Device, address: int, size: int) -> None:
            pass

        def initialize(self) -> int:
            return 3

    with pytest.raises(tvm.DeviceError, match=r"broken: initialize: failed with status 3"):
        tvm.register_device("broken", Broken())
    with pytest.raises(ValueError, match="expected a device among"):
        tvm.device("broken")


def test_the_life_of_a_device() -> None:
    events: list[str] = []

    class Counted(ExtDev.__base__):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            self._memory = ExtDev()

        def device_memory_allocate(self, device: Device, size: int) -> int:
            return self._memory.device_memory_allocate(Device(12, 0), size)

        def device_memory_deallocate(self, device: Device, address: int, size: int) -> None:
            self._memory.device_memory_deallocate(Device(12, 0), address, size)

        def initialize(self) -> None:
            events.append("initialize")

        def finalize(self) -> None:
            events.append("finalize")

        def init_device(self, device: Device) -> None:
            events.append(f"init {device.device_id}")

        def deinit_device(self, device: Device) -> None:
            events.append(f"deinit {device.device_id}")

    tvm.register_device("counted", Counted(), device_type=777)
    a = nd.empty((10,), device="counted")
    assert (a.device.device_type, registry.driver_of(777) is not None) == (777, True)
    with pytest.raises(ValueError, match=r"unregister_device: counted\(0\): expected no array on"):
        tvm.unregister_device("counted")
    with pytest.raises(tvm.UnsupportedByDevice, match=r"counted\(0\): memory_copy_d2h: expected"):
        a.numpy()
    del a
    tvm.unregister_device("counted")
    assert events == ["initialize", "init 0", "deinit 0", "finalize"]
    tvm.register_device("counted", Counted())
    tvm.unregister_device("counted")


@pytest.mark.parametrize("failing", ["device_memory_deallocate", "deinit_device", "finalize"])
def test_a_device_that_fails_to_end_is_gone(failing: str) -> None:
    simulated = ExtDev(devices=2)
    for _ in range(2):
        tvm.register_device("ending", simulated)
        for number in range(2):
            nd.empty((10,), device=tvm.device("ending", number))
        with (
            simulated.inject(failing),
            pytest.raises(tvm.DeviceError, match=f"{failing}: injected failure"),
        ):
            tvm.unregister_device("ending")
        with pytest.raises(ValueError, match="expected a device among"):
            tvm.device("ending")


# ---- Random --------------------------------------------------------------------------------------

_PLACES = (tvm.cpu(0), EXT0, EXT1)
_KEYS = st.tuples(
    st.slices(7), st.one_of(st.slices(5), st.integers(-5, 4)), st.one_of(st.slices(6), st.none())
)


@given(
    st.sampled_from(_PLACES), st.sampled_from(_PLACES), _KEYS, st.booleans(),
    st.sampled_from(["float32", "int8", "float64"]),
)  # fmt: skip
def test_random_parts(
    first: Device, second: Device, key: Any, transposed: bool, dtype: str
) -> None:
    x = np.arange(210).reshape(7, 5, 6).astype(dtype)
    expected = np.zeros_like(x)
    a, b = nd.array(x, first), nd.array(expected, second)
    if transposed:
        x, expected, a, b = x.T, expected.T, a.T, b.T
        key = tuple(key[:1])
    a[key].copyto(b[key])
    expected[key] = x[key]
    np.testing.assert_array_equal(b.numpy(), expected)
