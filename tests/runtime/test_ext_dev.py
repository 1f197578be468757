"""The simulated device: memory apart, streams with threads of their own, and faults to order."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from minitvm.runtime.device import Device
from minitvm.runtime.device_api import ext_faults
from minitvm.runtime.device_api.ext_dev import ExtDev, Sizes, Usage
from minitvm.runtime.device_api.interface import (
    OPTIONAL,
    REQUIRED,
    Kernel,
    MemoryStats,
)
from minitvm.runtime.device_type import DeviceType
from minitvm.runtime.errors import DeviceError, DeviceMemoryError
from tests.forks import assert_in_child

D0, D1 = Device(DeviceType.EXT_DEV, 0), Device(DeviceType.EXT_DEV, 1)
SIZE = 256
ABOVE = 2**63  # the first address that isn't one of a signed integer


@pytest.fixture
def ext() -> Iterator[ExtDev]:
    """A device, of which nobody fails to take back what he has."""
    device = ExtDev(capacity=1 << 20)
    yield device
    device.finalize()
    assert device.usage().threads == 0


def host(size: int = SIZE, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def filled(ext: ExtDev, device: Device, values: np.ndarray[Any, Any]) -> int:
    """New bytes of a device with values."""
    address = ext.device_memory_allocate(device, values.nbytes)
    ext.memory_copy_h2d(device, address, values.ctypes.data, values.nbytes)
    return address


def contents(ext: ExtDev, device: Device, address: int, size: int = SIZE) -> Any:
    values = np.zeros(size, np.uint8)
    ext.memory_copy_d2h(device, values.ctypes.data, address, size)
    return values


class Function:
    """A kernel of Python: ``body(address_of)``."""

    def __init__(self, body: Callable[[Callable[[int, int], int]], None], name: str = "f") -> None:
        self.name = name
        self._body = body

    def __call__(self, address_of: Callable[[int, int], int]) -> None:
        self._body(address_of)


def fill(address: int, value: int, size: int = SIZE) -> Kernel:
    """A kernel that writes a byte's value."""
    return Function(lambda address_of: _memset(address_of(address, size), value, size), "fill")


def _memset(address: int, value: int, size: int) -> None:
    ctypes.memset(address, value, size)


def nothing() -> None:
    """A callback."""


def raising(error: BaseException, name: str = "broken") -> Kernel:
    def body(address_of: object) -> None:
        raise error

    return Function(body, name)


class Gate:
    """What a stream waits at until it is opened; `reached` is set when it has come there."""

    def __init__(self, ext: ExtDev, device: Device, stream: object) -> None:
        self.reached = threading.Event()
        self._opened = threading.Event()
        ext.stream_add_callback(device, stream, self._wait)

    def _wait(self) -> None:
        self.reached.set()
        assert self._opened.wait(30)

    def open(self) -> None:
        self._opened.set()


# ---- The whole interface -------------------------------------------------------------------------


def test_every_function_of_the_interface_is_there() -> None:
    ext = ExtDev()
    assert [name for name in OPTIONAL if not ext.provides(name)] == []
    own = {name for name in vars(ExtDev) if not name.startswith("_")}
    assert own - {*OPTIONAL, *REQUIRED} == {"inject", "calls", "record", "usage"}


def call_every(ext: ExtDev) -> dict[str, Callable[[], object]]:
    """Each function, ready to be called once, in an order in which all of them succeed."""
    values, out = host(), np.zeros(SIZE, np.uint8)
    h, o = values.ctypes.data, out.ctypes.data
    a, b = ext.device_memory_allocate(D0, SIZE), ext.device_memory_allocate(D0, SIZE)
    c = ext.device_memory_allocate(D1, SIZE)
    pinned, unified = ext.host_memory_allocate(D0, SIZE), ext.unified_memory_allocate(D0, SIZE)
    s, e = ext.create_stream(D0), ext.create_event(D0)
    calls: dict[str, Callable[[], object]] = {
        "initialize": ext.initialize,
        "init_device": lambda: ext.init_device(D0),
        "get_device_count": ext.get_device_count,
        "get_device_list": ext.get_device_list,
        "get_device_properties": lambda: ext.get_device_properties(D0),
        "get_compute_capability": ext.get_compute_capability,
        "get_runtime_version": ext.get_runtime_version,
        "get_driver_version": ext.get_driver_version,
        "set_device": lambda: ext.set_device(D1),
        "get_device": ext.get_device,
        "device_memory_allocate": lambda: ext.device_memory_allocate(D0, SIZE),
        "host_memory_allocate": lambda: ext.host_memory_allocate(D0, SIZE),
        "unified_memory_allocate": lambda: ext.unified_memory_allocate(D0, SIZE),
        "create_stream": lambda: ext.create_stream(D0),
        "create_event": lambda: ext.create_event(D0),
        "device_memory_set": lambda: ext.device_memory_set(D0, a, 1, SIZE),
        "memory_copy_h2d": lambda: ext.memory_copy_h2d(D0, a, h, SIZE),
        "memory_copy_d2h": lambda: ext.memory_copy_d2h(D0, o, a, SIZE),
        "memory_copy_d2d": lambda: ext.memory_copy_d2d(D0, b, a, SIZE),
        "memory_copy_p2p": lambda: ext.memory_copy_p2p(D1, D0, c, a, SIZE),
        "async_memory_copy_h2d": lambda: ext.async_memory_copy_h2d(D0, s, a, h, SIZE),
        "async_memory_copy_d2h": lambda: ext.async_memory_copy_d2h(D0, s, o, a, SIZE),
        "async_memory_copy_d2d": lambda: ext.async_memory_copy_d2d(D0, s, b, a, SIZE),
        "async_memory_copy_p2p": lambda: ext.async_memory_copy_p2p(D0, D1, s, a, c, SIZE),
        "launch": lambda: ext.launch(D0, s, fill(a, 7)),
        "stream_add_callback": lambda: ext.stream_add_callback(D0, s, nothing),
        "record_event": lambda: ext.record_event(D0, s, e),
        "stream_wait_event": lambda: ext.stream_wait_event(D0, s, e),
        "query_event": lambda: ext.query_event(D0, e),
        "query_stream": lambda: ext.query_stream(D0, s),
        "synchronize_event": lambda: ext.synchronize_event(D0, e),
        "synchronize_stream": lambda: ext.synchronize_stream(D0, s),
        "synchronize_device": lambda: ext.synchronize_device(D0),
        "device_memory_stats": lambda: ext.device_memory_stats(D0),
        "destroy_event": lambda: ext.destroy_event(D0, e),
        "destroy_stream": lambda: ext.destroy_stream(D0, s),
        "device_memory_deallocate": lambda: ext.device_memory_deallocate(D0, a, SIZE),
        "host_memory_deallocate": lambda: ext.host_memory_deallocate(D0, pinned, SIZE),
        "unified_memory_deallocate": lambda: ext.unified_memory_deallocate(D0, unified, SIZE),
        "deinit_device": lambda: ext.deinit_device(D0),
        "finalize": ext.finalize,
    }
    sizes = [name for name in OPTIONAL if name.endswith("_size")]
    calls.update({name: lambda name=name: getattr(ext, name)(D0) for name in sizes})  # type: ignore[misc]  # bound at once
    return calls


def test_every_function_is_counted_and_can_fail() -> None:
    ext = ExtDev()
    calls = call_every(ext)
    assert set(calls) == {*OPTIONAL, *REQUIRED}
    for name, call in calls.items():
        before = ext.calls[name]
        taking_back = name.startswith(("destroy", "deinit", "finalize")) or "deallocate" in name
        error = pytest.raises(DeviceError, match=f"{name}: injected failure")
        with ext.inject(name) as fault, ext.record() as record, error:
            call()
        assert (fault.calls, fault.hits, record) == (1, 1, [name])
        if taking_back:
            assert ext.calls[name] == before + 1
            continue  # it has done so
        call()
        assert ext.calls[name] == before + 2


def test_every_function_refuses_a_device_that_is_not_there() -> None:
    ext = ExtDev(devices=1)
    for name in ("device_memory_stats", "synchronize_device", "create_stream", "init_device"):
        with pytest.raises(DeviceError, match=rf"ext_dev\(1\): {name}: expected a device of an id"):
            getattr(ext, name)(D1)
    p = ext.device_memory_allocate(D0, 8)
    with pytest.raises(DeviceError, match=r"expected a source of ext_dev, of an id from 0 to 0"):
        ext.memory_copy_p2p(D0, D1, p, p, 8)


@pytest.mark.parametrize(("devices", "capacity"), [(0, 1), (129, 1), (1, 0)])
def test_a_device_that_makes_no_sense(devices: int, capacity: int) -> None:
    with pytest.raises(ValueError, match="expected 1 to 128 devices of a capacity above 0"):
        ExtDev(devices, capacity)


def test_devices_and_their_sizes() -> None:
    ext = ExtDev(devices=3, capacity=1 << 16, sizes=Sizes(extra_padding=32))
    assert (ext.get_device_count(), list(ext.get_device_list())) == (3, [0, 1, 2])
    assert ext.get_device_properties(D1)["total_memory"] == 1 << 16
    assert ext.device_min_chunk_size(D0) == 256
    assert ext.device_extra_padding_size(D0) == 32
    assert ext.device_max_chunk_size(D0) == ext.device_init_alloc_size(D0) == 1 << 16
    ext.set_device(D1)
    elsewhere: list[int] = []
    thread = threading.Thread(target=lambda: elsewhere.append(ext.get_device()))
    thread.start()
    thread.join()
    assert (ext.get_device(), elsewhere) == (1, [0])


# ---- Memory --------------------------------------------------------------------------------------


def test_addresses_are_never_the_hosts(ext: ExtDev) -> None:
    """Bit 55 is the kernel's half on AArch64; bits 47 to 63, or 56 to 63, are not all equal, as
    x86-64 demands."""
    for device in (D0, D1):
        address = ext.device_memory_allocate(device, SIZE)
        assert 0 < address < ABOVE
        assert address % 256 == 0
        assert address >> 55 & 1
        assert address >> 62 == 1


def test_touching_device_memory_from_the_host_ends_the_process() -> None:
    program = """
import ctypes
from minitvm.runtime.device import Device
from minitvm.runtime.device_api.ext_dev import ExtDev
address = ExtDev().device_memory_allocate(Device(12), 8)
print("allocated", flush=True)
ctypes.string_at(address, 8)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=100)
    assert run.stdout == b"allocated\n"
    assert run.returncode in (-signal.SIGSEGV, -signal.SIGBUS)


def test_an_address_is_never_given_twice(ext: ExtDev) -> None:
    seen = set()
    for _ in range(100):
        address = ext.device_memory_allocate(D0, SIZE)
        ext.device_memory_deallocate(D0, address, SIZE)
        seen.add(address)
    assert len(seen) == 100


WRONG: dict[str, tuple[str, str]] = {
    # what is given as an address of the device: how to make it, and what is said of it
    "of the host": ("values.ctypes.data", "an address of the host"),
    "of pinned memory": ("pinned", r"byte 0 of 256 of an allocation \(pinned memory of the host\)"),
    "null": ("0", "a null pointer"),
    "negative": ("-8", "-0x8, no address"),
    "too large": ("1 << 64", "0x10000000000000000, no address"),
    "another device's": ("other + 3", r"byte 3 of 256 of an allocation \(ext_dev\(1\)\)"),
    "freed": ("freed + 1", r"byte 1 of 256 of an allocation \(ext_dev\(0\)\) that was deallocated"),
    "at the end": ("a + 256", r"0 beyond the end of an allocation \(ext_dev\(0\)\)"),
    "beyond": ("a + 257", r"1 beyond the end of an allocation \(ext_dev\(0\)\)"),
    "never given": ("a + (1 << 40)", "an address of device 0 that is in no allocation"),
    "no device's": ("a + (9 << 48)", "an address of device 9, which is not there"),
    "too many bytes": ("a + 250", r"byte 250 of 256 of an allocation \(ext_dev\(0\)\): 2 beyond"),
    "no integer": ("None", "expected an integer as an address, got NoneType"),
    "a float": ("1.0", "expected an integer as an address, got float"),
}
USES: dict[str, Callable[[ExtDev, Any, int], object]] = {
    "h2d": lambda ext, p, h: ext.memory_copy_h2d(D0, p, h, 8),
    "d2h": lambda ext, p, h: ext.memory_copy_d2h(D0, h, p, 8),
    "set": lambda ext, p, h: ext.device_memory_set(D0, p, 1, 8),
    "p2p source": lambda ext, p, h: ext.memory_copy_p2p(D1, D0, _on_1(ext), p, 8),
    "p2p target": lambda ext, p, h: ext.memory_copy_p2p(D0, D1, p, _on_1(ext), 8),
    "async h2d": lambda ext, p, h: ext.async_memory_copy_h2d(D0, 0, p, h, 8),
    "async d2h": lambda ext, p, h: ext.async_memory_copy_d2h(D0, None, h, p, 8),
    "async d2d": lambda ext, p, h: ext.async_memory_copy_d2d(D0, 0, p, p, 8),
    "kernel": lambda ext, p, h: _run(ext, fill(p, 1, 8)),
}


def _run(ext: ExtDev, kernel: Kernel) -> None:
    ext.launch(D0, 0, kernel)
    ext.synchronize_device(D0)


def _on_1(ext: ExtDev) -> int:
    return ext.device_memory_allocate(D1, SIZE)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("wrong", WRONG)
def test_every_use_of_a_wrong_address_says_what_it_is(ext: ExtDev, wrong: str, use: str) -> None:
    values = host()
    a, other = filled(ext, D0, values), filled(ext, D1, values)
    pinned = ext.host_memory_allocate(D0, SIZE)
    freed = ext.device_memory_allocate(D0, SIZE)
    ext.device_memory_deallocate(D0, freed, SIZE)
    how, said = WRONG[wrong]
    names = {"values": values, "a": a, "other": other, "pinned": pinned, "freed": freed}
    before = values.copy()
    with pytest.raises(DeviceError, match=said):
        USES[use](ext, eval(how, names), values.ctypes.data)
    np.testing.assert_array_equal(values, before)
    np.testing.assert_array_equal(contents(ext, D0, a), before)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("a", r"byte 0 of 256 of an allocation \(ext_dev\(0\)\)"),
        ("a + (1 << 47)", "an address of device 0 that is in no allocation"),
        ("0", "a null pointer"),
        ("a - (1 << 55)", "an address of the host"),  # but the device's addresses are behind it
        ("pinned + 250", r"byte 250 of 256 of an allocation \(pinned memory of the host\): 2 beyo"),
    ],
)
def test_the_hosts_side_of_a_copy_is_the_hosts(ext: ExtDev, address: str, said: str) -> None:
    a, pinned = ext.device_memory_allocate(D0, SIZE), ext.host_memory_allocate(D0, SIZE)
    wrong = eval(address, {"a": a, "pinned": pinned})
    size = 1 << 55 if "55" in address else 8
    p = ext.device_memory_allocate(D0, SIZE)
    with pytest.raises(DeviceError, match=said):
        ext.memory_copy_h2d(D0, p, wrong, 8) if size == 8 else ext._memory.on_host("", wrong, size)
    if size == 8:
        with pytest.raises(DeviceError, match=said):
            ext.async_memory_copy_d2h(D0, 0, wrong, p, 8)


@pytest.mark.parametrize("size", [0, -1, 1.0, None, 2**64])
def test_sizes_that_are_none(ext: ExtDev, size: Any) -> None:
    p, h = ext.device_memory_allocate(D0, SIZE), host().ctypes.data
    with pytest.raises(DeviceError, match=r"expected a positive number|beyond its end"):
        ext.memory_copy_h2d(D0, p, h, size)
    with pytest.raises(DeviceError, match=r"expected a positive number|expected at most the"):
        ext.device_memory_allocate(D0, size)


@pytest.mark.parametrize("value", [-1, 256])
def test_no_byte(ext: ExtDev, value: int) -> None:
    p = ext.device_memory_allocate(D0, SIZE)
    with pytest.raises(DeviceError, match=f"expected a byte's value, got {value}"):
        ext.device_memory_set(D0, p, value, SIZE)


def test_copies_in_every_direction(ext: ExtDev) -> None:
    values = host()
    a = filled(ext, D0, values)
    b, c = ext.device_memory_allocate(D0, SIZE), ext.device_memory_allocate(D1, SIZE)
    ext.memory_copy_d2d(D0, b, a, SIZE)
    ext.memory_copy_p2p(D1, D0, c, b, SIZE)
    ext.memory_copy_p2p(D0, D1, a + 1, c, SIZE - 1)
    np.testing.assert_array_equal(contents(ext, D1, c), values)
    np.testing.assert_array_equal(contents(ext, D0, a)[1:], values[:-1])
    ext.memory_copy_d2d(D0, a, a + 1, SIZE - 1)  # overlapping
    np.testing.assert_array_equal(contents(ext, D0, a)[:-1], values[:-1])
    ext.device_memory_set(D0, a + 8, 255, 8)
    np.testing.assert_array_equal(contents(ext, D0, a)[7:17], [values[7], *[255] * 8, values[16]])


def test_unified_memory_is_valid_on_both_sides(ext: ExtDev) -> None:
    values, unified = host(), ext.unified_memory_allocate(D0, SIZE)
    ext.memory_copy_h2d(D0, unified, values.ctypes.data, SIZE)
    assert ctypes.string_at(unified, SIZE) == values.tobytes()
    a = ext.device_memory_allocate(D1, SIZE)
    ext.memory_copy_h2d(D1, a, unified, SIZE)
    ext.memory_copy_d2d(D1, a, unified, SIZE)
    np.testing.assert_array_equal(contents(ext, D1, a), values)
    with pytest.raises(DeviceError, match="1 beyond its end"):
        ext.device_memory_set(D0, unified, 0, SIZE + 1)


def test_statistics_are_exact(ext: ExtDev) -> None:
    total = 1 << 20
    a, b = ext.device_memory_allocate(D0, 1000), ext.device_memory_allocate(D0, 1)
    ext.host_memory_allocate(D0, 4096)
    ext.unified_memory_allocate(D0, 100)
    assert ext.device_memory_stats(D0) == MemoryStats(total, total - 1001)
    assert ext.device_memory_stats(D1) == MemoryStats(total, total)
    assert ext.usage() == Usage(2, 1001, 4096, 100)
    ext.device_memory_deallocate(D0, a, 1000)
    assert ext.device_memory_stats(D0).free == total - 1
    message = r"the 1048575 bytes that are free, got 1048576: 1 of 1048576 bytes are allocated"
    with pytest.raises(DeviceMemoryError, match=message):
        ext.device_memory_allocate(D0, total)
    ext.device_memory_allocate(D0, total - 1)
    ext.device_memory_deallocate(D0, b, 1)
    assert ext.device_memory_stats(D0) == MemoryStats(total, 1)


def test_a_host_without_memory_is_an_error_of_the_device() -> None:
    ext = ExtDev(capacity=1 << 47)
    with pytest.raises(DeviceMemoryError, match="the host, which stands in for the device, has no"):
        ext.device_memory_allocate(D0, (1 << 47) - 1)
    with pytest.raises(DeviceMemoryError, match="all of the device's addresses were given once"):
        ExtDev(capacity=1 << 50).device_memory_allocate(D0, 1 << 49)
    assert ext.usage() == Usage()


KINDS = ("device_memory", "host_memory", "unified_memory")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_taken_back_is_what_was_given(ext: ExtDev, kind: str) -> None:
    allocate, deallocate = getattr(ext, f"{kind}_allocate"), getattr(ext, f"{kind}_deallocate")
    address = allocate(D0, SIZE)
    with pytest.raises(DeviceError, match=r"expected 256 bytes, which were allocated at .*, got 8"):
        deallocate(D0, address, 8)
    with pytest.raises(
        DeviceError, match=r"expected the address of an allocation .*, byte 1 of 256"
    ):
        deallocate(D0, address + 1, SIZE)
    for other in set(KINDS) - {kind}:
        with pytest.raises(DeviceError, match="expected the address of an allocation"):
            getattr(ext, f"{other}_deallocate")(D0, address, SIZE)
    deallocate(D0, address, SIZE)
    with pytest.raises(DeviceError, match="that was deallocated"):
        deallocate(D0, address, SIZE)
    assert ext.usage() == Usage()


def test_memory_of_another_device_is_not_taken_back(ext: ExtDev) -> None:
    address = ext.device_memory_allocate(D0, SIZE)
    with pytest.raises(DeviceError, match=r"expected .* \(ext_dev\(1\)\), got .* \(ext_dev\(0\)\)"):
        ext.device_memory_deallocate(D1, address, SIZE)


def test_what_a_stream_uses_is_not_taken_back(ext: ExtDev) -> None:
    stream = ext.create_stream(D0)
    gate = Gate(ext, D0, stream)
    a, b = ext.device_memory_allocate(D0, SIZE), ext.device_memory_allocate(D0, SIZE)
    pinned = ext.host_memory_allocate(D0, SIZE)
    ext.async_memory_copy_h2d(D0, stream, a, pinned, SIZE)
    ext.async_memory_copy_d2d(D0, stream, b, a, SIZE)
    with pytest.raises(DeviceError, match="which async_memory_copy_h2d uses: wait for it first"):
        ext.device_memory_deallocate(D0, a, SIZE)
    with pytest.raises(DeviceError, match="which async_memory_copy_d2d uses: wait for it first"):
        ext.device_memory_deallocate(D0, b, SIZE)
    with pytest.raises(DeviceError, match="which async_memory_copy_h2d uses: wait for it first"):
        ext.host_memory_deallocate(D0, pinned, SIZE)
    gate.open()
    ext.synchronize_stream(D0, stream)
    ext.device_memory_deallocate(D0, a, SIZE)
    ext.device_memory_deallocate(D0, b, SIZE)
    ext.host_memory_deallocate(D0, pinned, SIZE)


def test_what_a_kernel_uses_is_not_taken_back(ext: ExtDev) -> None:
    a, reached, opened = ext.device_memory_allocate(D0, SIZE), threading.Event(), threading.Event()
    kept: list[Callable[[int, int], int]] = []

    def body(address_of: Callable[[int, int], int]) -> None:
        address_of(a, SIZE)
        kept.append(address_of)
        reached.set()
        assert opened.wait(30)

    ext.launch(D0, 0, Function(body, "slow"))
    assert reached.wait(30)
    with pytest.raises(DeviceError, match="which kernel 'slow' uses: wait for it first"):
        ext.device_memory_deallocate(D0, a, SIZE)
    opened.set()
    ext.synchronize_device(D0)
    with pytest.raises(DeviceError, match="kernel 'slow': expected a running kernel, got one that"):
        kept[0](a, SIZE)
    ext.device_memory_deallocate(D0, a, SIZE)


# ---- Streams and events --------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [0, None, "new"])
def test_a_stream_keeps_its_order(ext: ExtDev, stream: Any) -> None:
    if stream == "new":
        stream = ext.create_stream(D0)
    values, out = host(), np.zeros(SIZE, np.uint8)
    a, b = ext.device_memory_allocate(D0, SIZE), ext.device_memory_allocate(D0, SIZE)
    order: list[int] = []
    gate = Gate(ext, D0, stream)
    ext.async_memory_copy_h2d(D0, stream, a, values.ctypes.data, SIZE)
    ext.stream_add_callback(D0, stream, lambda: order.append(1))
    ext.async_memory_copy_d2d(D0, stream, b, a, SIZE)
    ext.launch(D0, stream, fill(b, 9, 8))
    ext.async_memory_copy_d2h(D0, stream, out.ctypes.data, b, SIZE)
    ext.stream_add_callback(D0, stream, lambda: order.append(2))
    assert not ext.query_stream(D0, stream)
    assert not order
    assert not out.any()
    gate.open()
    ext.synchronize_stream(D0, stream)
    assert ext.query_stream(D0, stream)
    assert order == [1, 2]
    np.testing.assert_array_equal(out, [*[9] * 8, *values[8:]])
    if stream:
        ext.destroy_stream(D0, stream)


def test_streams_run_side_by_side(ext: ExtDev) -> None:
    streams = [ext.create_stream(each) for each in (D0, D0, D1)]
    barrier = threading.Barrier(len(streams))
    for device, stream in zip((D0, D0, D1), streams, strict=True):
        ext.stream_add_callback(device, stream, lambda: _meet(barrier))
    for device in (D0, D1):
        ext.synchronize_device(device)
    assert ext.usage().threads == 3
    for device, stream in zip((D0, D0, D1), streams, strict=True):
        ext.destroy_stream(device, stream)


def _meet(barrier: threading.Barrier) -> None:
    barrier.wait(30)


@pytest.mark.parametrize("other", [D0, D1])
def test_a_stream_waits_for_an_event(ext: ExtDev, other: Device) -> None:
    """Also one of another device, which is recorded again and destroyed before it happens."""
    first, second = ext.create_stream(D0), ext.create_stream(other)
    event, order = ext.create_event(D0), list[int]()
    gate = Gate(ext, D0, first)
    ext.stream_add_callback(D0, first, lambda: order.append(1))
    ext.record_event(D0, first, event)
    ext.stream_wait_event(other, second, event)
    ext.stream_add_callback(other, second, lambda: order.append(2))
    later = Gate(ext, D0, first)
    ext.record_event(D0, first, event)
    assert not ext.query_event(D0, event)
    ext.destroy_event(D0, event)
    assert not order
    gate.open()
    ext.synchronize_stream(other, second)
    assert order == [1, 2]
    later.open()
    for device, stream in ((D0, first), (other, second)):
        ext.destroy_stream(device, stream)


def test_an_event_that_was_never_recorded_has_happened(ext: ExtDev) -> None:
    event = ext.create_event(D0)
    assert ext.query_event(D0, event)
    ext.synchronize_event(D0, event)
    ext.stream_wait_event(D0, 0, event)
    ext.synchronize_device(D0)
    ext.destroy_event(D0, event)


def test_a_stream_waits_for_its_own_past(ext: ExtDev) -> None:
    event, done = ext.create_event(D0), list[int]()
    ext.record_event(D0, 0, event)
    ext.stream_wait_event(D0, 0, event)
    ext.stream_add_callback(D0, 0, lambda: done.append(1))
    ext.synchronize_stream(D0, 0)
    assert done == [1]


def test_an_event_waits_for_what_was_before_it_alone(ext: ExtDev) -> None:
    event, done = ext.create_event(D0), list[int]()
    ext.stream_add_callback(D0, 0, lambda: done.append(1))
    ext.record_event(D0, 0, event)
    gate = Gate(ext, D0, 0)
    ext.synchronize_event(D0, event)
    assert done == [1]
    assert ext.query_event(D0, event)
    assert not ext.query_stream(D0, 0)
    gate.open()


def test_copies_wait_for_the_default_stream_and_for_no_other(ext: ExtDev) -> None:
    a, b, stream = filled(ext, D0, host()), filled(ext, D0, host()), ext.create_stream(D0)
    gate = Gate(ext, D0, stream)
    ext.launch(D0, stream, fill(b, 2))
    with ext.inject("launch", delay=0.05):
        ext.launch(D0, 0, fill(a, 1))
    assert (contents(ext, D0, a) == 1).all()
    gate.open()
    ext.destroy_stream(D0, stream)
    assert (contents(ext, D0, b) == 2).all()


def test_handles_that_are_none_say_what_they_are(ext: ExtDev) -> None:
    stream, event = ext.create_stream(D0), ext.create_event(D0)
    wait = ext.synchronize_stream
    with pytest.raises(
        DeviceError, match=rf"a stream of ext_dev\(1\), got {stream}, a stream of e"
    ):
        wait(D1, stream)
    with pytest.raises(DeviceError, match=rf"a stream of ext_dev\(0\), got {event}, an event"):
        wait(D0, event)
    with pytest.raises(DeviceError, match=r"a stream of ext_dev\(0\), got 'x', which was never gi"):
        wait(D0, "x")
    with pytest.raises(DeviceError, match=rf"an event of ext_dev\(1\), got {event}, an event of e"):
        ext.synchronize_event(D1, event)
    with pytest.raises(DeviceError, match=rf"expected an event, got {stream}, a stream"):
        ext.record_event(D0, 0, stream)
    with pytest.raises(DeviceError, match=r"expected an event, got \[\], which was never given"):
        ext.query_event(D0, [])
    ext.destroy_stream(D0, stream)
    ext.destroy_event(D0, event)
    with pytest.raises(DeviceError, match=f"got {stream}, which was destroyed"):
        ext.destroy_stream(D0, stream)
    with pytest.raises(DeviceError, match=f"got {event}, which was destroyed"):
        ext.destroy_event(D0, event)
    with pytest.raises(DeviceError, match="expected a stream that was created, got 0"):
        ext.destroy_stream(D0, 0)


def test_a_destroyed_stream_is_done_first_and_leaves_no_thread(ext: ExtDev) -> None:
    before = threading.active_count()
    stream = ext.create_stream(D0)
    assert ext.usage().threads == 0  # none before it is used
    done: list[int] = []
    with ext.inject("stream_add_callback", delay=0.02):
        ext.stream_add_callback(D0, stream, lambda: done.append(1))
    assert threading.active_count() == before + 1
    ext.destroy_stream(D0, stream)
    assert done == [1]
    assert threading.active_count() == before
    assert ext.usage() == Usage()


def test_a_device_that_nobody_has_leaves_no_thread() -> None:
    before = set(threading.enumerate())  # other tests' devices may have threads, too
    ext = ExtDev()
    ext.stream_add_callback(D0, 0, nothing)
    ext.stream_add_callback(D0, ext.create_stream(D0), nothing)
    ext.synchronize_device(D0)
    threads = set(threading.enumerate()) - before
    assert len(threads) == 2
    gone = weakref.ref(ext)
    del ext
    gc.collect()
    assert gone() is None
    for each in threads:
        each.join(30)
    assert not any(each.is_alive() for each in threads)


def test_what_is_done_is_not_kept(ext: ExtDev) -> None:
    kernel = fill(filled(ext, D0, host()), 1)
    gone = weakref.ref(kernel)
    ext.launch(D0, 0, kernel)
    del kernel
    ext.synchronize_device(D0)
    assert gone() is None


def test_kernels_and_callbacks_do_not_wait(ext: ExtDev) -> None:
    """They could wait for themselves."""
    a, h, event = filled(ext, D0, host()), host().ctypes.data, ext.create_event(D0)
    waits: list[Callable[[], object]] = [
        lambda: ext.synchronize_stream(D0, 0),
        lambda: ext.synchronize_device(D1),
        lambda: ext.synchronize_event(D0, event),
        lambda: ext.memory_copy_d2h(D0, h, a, 8),
        lambda: ext.device_memory_set(D0, a, 0, 8),
        lambda: ext.deinit_device(D0),
        ext.finalize,
    ]
    for wait in waits:
        ext.stream_add_callback(D0, 0, wait)  # type: ignore[arg-type]  # nobody looks at the result
        with pytest.raises(DeviceError, match="expected a thread of the host, got one of a stream"):
            ext.synchronize_device(D0)
    other, order = ext.create_stream(D0), list[int]()

    def put() -> None:
        ext.stream_add_callback(D0, other, lambda: order.append(1))
        ext.destroy_stream(D0, other)

    ext.stream_add_callback(D0, 0, put)
    ext.synchronize_stream(D0, 0)
    ext.synchronize_device(D0)
    assert order == [1]
    assert ext.usage().streams == 0


# ---- Failures ------------------------------------------------------------------------------------


def test_a_failure_is_raised_by_who_waits_and_names_the_kernel(ext: ExtDev) -> None:
    stream, error = ext.create_stream(D0), IndexError("index 9 of 8")
    waits: list[Callable[[], object]] = [
        lambda: ext.synchronize_stream(D0, stream),
        lambda: ext.synchronize_device(D0),
        lambda: ext.synchronize_event(D0, event),
        lambda: ext.deinit_device(D0),
        lambda: ext.destroy_stream(D0, stream),
    ]
    said = rf"ext_dev\(0\): kernel 'broken' on stream {stream} failed: IndexError: index 9 of 8"
    event = ext.create_event(D0)
    for wait in waits:
        ext.launch(D0, stream, raising(error))
        ext.record_event(D0, stream, event)
        with pytest.raises(DeviceError, match=f"^{said}$") as caught:
            wait()
        assert isinstance(caught.value, IndexError)
        assert caught.value.__cause__ is error
        if wait is not waits[-1]:
            wait_again = ext.synchronize_stream
            wait_again(D0, stream)  # it was told
    assert ext.usage().streams == 0


@pytest.mark.parametrize("wait", ["copy", "set"])
def test_what_failed_on_the_default_stream_is_raised_by_the_next_copy(
    ext: ExtDev, wait: str
) -> None:
    a = filled(ext, D0, host())
    ext.launch(D0, 0, raising(ValueError("x")))
    with pytest.raises(DeviceError, match="kernel 'broken' on the default stream failed: ValueErr"):
        contents(ext, D0, a) if wait == "copy" else ext.device_memory_set(D0, a, 0, SIZE)
    np.testing.assert_array_equal(contents(ext, D0, a), host())
    ext.device_memory_deallocate(D0, a, SIZE)


def test_what_is_behind_a_failure_is_not_run_until_it_is_told(ext: ExtDev) -> None:
    stream, a = ext.create_stream(D0), filled(ext, D0, np.zeros(SIZE, np.uint8))
    ext.launch(D0, stream, raising(ValueError("x")))
    ext.launch(D0, stream, fill(a, 1))
    ext.async_memory_copy_h2d(D0, stream, a, host().ctypes.data, SIZE)
    while not ext.query_stream(D0, stream):
        time.sleep(0)
    ext.launch(D0, stream, fill(a, 2))
    with pytest.raises(DeviceError, match="ValueError: x; 3 operations behind it were not run"):
        ext.synchronize_stream(D0, stream)
    assert not contents(ext, D0, a).any()
    ext.launch(D0, stream, fill(a, 3))
    ext.synchronize_stream(D0, stream)
    assert (contents(ext, D0, a) == 3).all()
    ext.destroy_stream(D0, stream)
    ext.device_memory_deallocate(D0, a, SIZE)


def test_an_event_tells_of_what_is_before_it(ext: ExtDev) -> None:
    """What is behind it when it tells, and isn't run, is told of by the stream."""
    stream, event, ran = ext.create_stream(D0), ext.create_event(D0), list[int]()
    early = ext.create_event(D0)
    ext.record_event(D0, stream, early)
    gate = Gate(ext, D0, stream)
    ext.launch(D0, stream, raising(ValueError("x")))
    ext.record_event(D0, stream, event)
    ext.stream_add_callback(D0, stream, lambda: ran.append(1))
    gate.open()
    ext.synchronize_event(D0, early)
    for _ in range(2):  # as often as one asks
        with pytest.raises(DeviceError, match="kernel 'broken' on stream"):
            ext.synchronize_event(D0, event)
    ext.stream_add_callback(D0, stream, lambda: ran.append(2))
    with pytest.raises(DeviceError, match="ValueError: x; 1 operation behind it was not run"):
        ext.synchronize_stream(D0, stream)
    assert ran == [2]
    ext.synchronize_stream(D0, stream)
    ext.record_event(D0, stream, event)
    ext.synchronize_event(D0, event)
    ext.destroy_stream(D0, stream)


def test_an_event_alone_makes_a_stream_work_again(ext: ExtDev) -> None:
    stream, event, ran = ext.create_stream(D0), ext.create_event(D0), list[int]()
    for _ in range(20):
        ext.launch(D0, stream, raising(ValueError("x")))
        ext.record_event(D0, stream, event)
        with pytest.raises(DeviceError, match="kernel 'broken'"):
            ext.synchronize_event(D0, event)
        ext.stream_add_callback(D0, stream, lambda: ran.append(1))
        ext.synchronize_stream(D0, stream)
    assert len(ran) == 20
    ext.destroy_stream(D0, stream)


def test_who_waits_for_an_event_behind_a_failure_fails(ext: ExtDev) -> None:
    first, second = ext.create_stream(D0), ext.create_stream(D1)
    event, ran = ext.create_event(D0), list[int]()
    ext.launch(D0, first, raising(ValueError("x")))
    ext.record_event(D0, first, event)
    ext.stream_wait_event(D1, second, event)
    ext.stream_add_callback(D1, second, lambda: ran.append(1))
    said = (
        rf"ext_dev\(1\): stream_wait_event on stream {second} failed: the event is behind a failur"
        rf"e: ext_dev\(0\): kernel 'broken' on stream {first} failed: ValueError: x; 1 operation b"
    )
    with pytest.raises(DeviceError, match=said):
        ext.synchronize_stream(D1, second)
    assert not ran
    with pytest.raises(DeviceError, match="kernel 'broken'"):
        ext.synchronize_stream(D0, first)
    ext.destroy_stream(D0, first)
    ext.destroy_stream(D1, second)


def test_a_device_tells_of_all_its_streams(ext: ExtDev) -> None:
    streams = [ext.create_stream(D0) for _ in range(2)]
    for index, stream in enumerate(streams):
        ext.launch(D0, stream, raising(ValueError(f"{index}"), f"k{index}"))
    with pytest.raises(DeviceError, match=r"kernel 'k0' .*: 0; ext_dev.*: kernel 'k1' .*: 1"):
        ext.synchronize_device(D0)
    ext.synchronize_device(D0)
    for stream in streams:
        ext.destroy_stream(D0, stream)


def test_a_stream_that_a_callback_destroys_leaves_its_failure_to_the_device(ext: ExtDev) -> None:
    stream = ext.create_stream(D0)
    ext.launch(D0, stream, raising(ValueError("x")))
    ext.stream_add_callback(D0, 0, lambda: ext.destroy_stream(D0, stream))
    with pytest.raises(DeviceError, match="kernel 'broken'"):
        ext.synchronize_stream(D0, 0) or ext.synchronize_device(D0)  # type: ignore[func-returns-value]  # one after the other
    ext.synchronize_device(D0)
    assert not ext._orphans


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), MemoryError("none")])
def test_whatever_a_callback_raises_is_a_failure(ext: ExtDev, error: BaseException) -> None:
    ext.launch(D0, 0, raising(error))
    with pytest.raises(DeviceError, match=f"failed: {type(error).__name__}"):
        ext.synchronize_device(D0)
    ext.synchronize_device(D0)


def test_an_interrupt_gets_through_to_who_waits(ext: ExtDev) -> None:
    stream = ext.create_stream(D0)
    event = ext.create_event(D0)
    waits: list[Callable[[], object]] = [
        lambda: ext.synchronize_stream(D0, stream),
        lambda: ext.synchronize_device(D0),
        lambda: ext.synchronize_event(D0, event),
    ]
    for wait in waits:
        gate = Gate(ext, D0, stream)
        ext.record_event(D0, stream, event)
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with pytest.raises(KeyboardInterrupt):
                wait()
        finally:
            signal.signal(signal.SIGALRM, before)
        gate.open()
        wait()
    ext.destroy_stream(D0, stream)


# ---- Faults --------------------------------------------------------------------------------------


def test_faults_come_when_they_are_ordered(ext: ExtDev) -> None:
    def outcomes(times: int) -> list[bool]:
        found = []
        for _ in range(times):
            address = 0
            with contextlib.suppress(DeviceMemoryError):
                address = ext.device_memory_allocate(D0, 8)
            found.append(bool(address))
        return found

    with ext.inject("device_memory_allocate", after=2, count=3) as fault:
        assert outcomes(7) == [True, True, False, False, False, True, True]
    assert (fault.calls, fault.hits) == (7, 3)
    fault = ext.inject("device_memory_allocate", count=None)
    assert not any(outcomes(5))
    fault.remove()
    fault.remove()
    assert all(outcomes(3))


def test_the_nth_call_of_all_fails(ext: ExtDev) -> None:
    def scenario() -> None:
        address = ext.device_memory_allocate(D0, 8)
        try:
            ext.device_memory_set(D0, address, 1, 8)
        finally:
            ext.device_memory_deallocate(D0, address, 8)

    with ext.record() as calls:
        scenario()
    assert calls == ["device_memory_allocate", "device_memory_set", "device_memory_deallocate"]
    for n in itertools.count():
        with ext.inject(after=n) as fault:
            if n == len(calls):
                scenario()
                break
            with pytest.raises(DeviceError, match=f"{calls[n]}: injected failure"):
                scenario()
        assert fault.hits == 1
        assert ext.usage() == Usage()


def test_the_error_is_the_one_that_was_asked_for(ext: ExtDev) -> None:
    with ext.inject("get_device_count", error=KeyError), pytest.raises(KeyError, match="injected"):
        ext.get_device_count()
    error = OSError("mine")
    with ext.inject("get_device_count", error=error), pytest.raises(OSError, match=r"^mine$"):
        ext.get_device_count()


@pytest.mark.parametrize("function", sorted(ext_faults.ON_STREAMS))
def test_a_fault_on_a_stream_is_told_at_its_synchronisation(ext: ExtDev, function: str) -> None:
    s, e = ext.create_stream(D0), ext.create_event(D0)
    a, b = filled(ext, D0, host()), filled(ext, D1, host())
    out = np.zeros(SIZE, np.uint8)
    calls: dict[str, Callable[[], None]] = {
        "async_memory_copy_h2d": lambda: ext.async_memory_copy_h2d(D0, s, a, out.ctypes.data, SIZE),
        "async_memory_copy_d2h": lambda: ext.async_memory_copy_d2h(D0, s, out.ctypes.data, a, SIZE),
        "async_memory_copy_d2d": lambda: ext.async_memory_copy_d2d(D0, s, a, a + 1, SIZE - 1),
        "async_memory_copy_p2p": lambda: ext.async_memory_copy_p2p(D0, D1, s, a + 1, b, SIZE - 1),
        "launch": lambda: ext.launch(D0, s, fill(a, 3)),
        "stream_add_callback": lambda: ext.stream_add_callback(D0, s, lambda: out.fill(1)),
        "stream_wait_event": lambda: ext.stream_wait_event(D0, s, e),
    }
    with ext.inject(function, on_stream=True) as fault:
        calls[function]()
    named = {"launch": "kernel 'fill'", "stream_add_callback": "callback"}.get(function, function)
    with pytest.raises(DeviceError, match=f"{named}.* on stream {s} failed: injected failure"):
        ext.synchronize_stream(D0, s)
    assert fault.hits == 1
    assert not out.any()
    np.testing.assert_array_equal(contents(ext, D0, a), host())
    with ext.inject(function, after=1, on_stream=True):
        calls[function]()
        ext.synchronize_stream(D0, s)
    ext.device_memory_deallocate(D0, a, SIZE)
    ext.destroy_stream(D0, s)


def test_slow_copies_take_their_time_and_are_right(ext: ExtDev) -> None:
    values, out, stream = host(), np.zeros(SIZE, np.uint8), ext.create_stream(D0)
    a = ext.device_memory_allocate(D0, SIZE)
    with (
        ext.inject("async_memory_copy_h2d", count=None, delay=0.02),
        ext.inject("memory_copy_d2h", count=None, delay=0.02) as slow,
    ):
        began = time.perf_counter()
        ext.async_memory_copy_h2d(D0, stream, a, values.ctypes.data, SIZE)
        assert not ext.query_stream(D0, stream)
        ext.synchronize_stream(D0, stream)
        np.testing.assert_array_equal(contents(ext, D0, a), values)
        assert time.perf_counter() - began >= 0.04
    assert slow.hits == 1
    assert not out.any()
    ext.destroy_stream(D0, stream)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"function": "memory_copy"}, "expected a function of DeviceInterface, or None for all"),
        ({"function": "memory_copy_h2d", "on_stream": True}, "a function that puts something on"),
        ({"after": -1}, "expected after >= 0"),
        ({"count": 0}, "expected after >= 0, count >= 1"),
        ({"delay": -0.1}, "got 0, 1 and -0.1"),
    ],
)
def test_orders_that_are_wrong(ext: ExtDev, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ext.inject(**arguments)


def test_a_copy_that_fails_leaves_its_memory_free(ext: ExtDev) -> None:
    a, h = ext.device_memory_allocate(D0, SIZE), host()
    with pytest.raises(DeviceError, match="source: expected"):
        ext.async_memory_copy_h2d(D0, 0, a, 0, SIZE)
    with pytest.raises(DeviceError, match="expected a stream"):
        ext.async_memory_copy_h2d(D0, 5, a, h.ctypes.data, SIZE)
    with ext.inject("memory_copy_h2d"), pytest.raises(DeviceError, match="injected"):
        ext.memory_copy_h2d(D0, a, h.ctypes.data, SIZE)
    ext.device_memory_deallocate(D0, a, SIZE)


# ---- Threads, forks and the end ------------------------------------------------------------------


def test_threads_share_a_device(ext: ExtDev) -> None:
    """Each its streams and memory; nothing is mixed."""
    wrong: list[int] = []

    def work(seed: int) -> None:
        for round_ in range(20):
            values, out = host(4096, seed * 100 + round_), np.zeros(4096, np.uint8)
            stream, event = ext.create_stream(D0), ext.create_event(D0)
            a, b = ext.device_memory_allocate(D0, 4096), ext.device_memory_allocate(D1, 4096)
            ext.async_memory_copy_h2d(D0, stream, a, values.ctypes.data, 4096)
            ext.record_event(D0, stream, event)
            ext.stream_wait_event(D1, 0, event)
            ext.async_memory_copy_p2p(D1, D0, 0, b, a, 4096)
            ext.async_memory_copy_d2h(D1, 0, out.ctypes.data, b, 4096)
            ext.synchronize_stream(D1, 0)
            ext.destroy_stream(D0, stream)
            ext.destroy_event(D0, event)
            ext.device_memory_deallocate(D0, a, 4096)
            ext.device_memory_deallocate(D1, b, 4096)
            if (out != values).any():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
    assert ext.usage()._replace(threads=0) == Usage()


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_has_streams_of_its_own(ext: ExtDev) -> None:
    values, stream, event = host(), ext.create_stream(D0), ext.create_event(D0)
    a, ran = filled(ext, D0, values), list[int]()
    other = ext.device_memory_allocate(D0, SIZE)
    gate = Gate(ext, D0, stream)
    assert gate.reached.wait(30)
    ext.async_memory_copy_d2d(D0, stream, other, a, SIZE)
    ext.stream_add_callback(D0, stream, lambda: ran.append(1))
    ext.record_event(D0, stream, event)

    def child() -> bool:
        said = "it was pending when the process was forked"
        with pytest.raises(DeviceError, match=said):
            ext.synchronize_stream(D0, stream)
        with pytest.raises(DeviceError, match=said):
            ext.synchronize_event(D0, event)
        ext.stream_add_callback(D0, stream, lambda: ran.append(2))
        ext.launch(D0, stream, fill(other, 4))
        ext.synchronize_device(D0)
        assert ran == [2]
        assert (contents(ext, D0, other) == 4).all()
        np.testing.assert_array_equal(contents(ext, D0, a), values)
        ext.device_memory_deallocate(D0, a, SIZE)
        ext.destroy_stream(D0, stream)
        assert_in_child(lambda: ext.synchronize_device(D0) is None)  # type: ignore[func-returns-value]  # it returns
        return True

    assert_in_child(child)
    gate.open()
    ext.synchronize_stream(D0, stream)
    assert ran == [1]
    np.testing.assert_array_equal(contents(ext, D0, other), values)
    ext.destroy_stream(D0, stream)


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_forks_while_other_threads_use_the_device(ext: ExtDev) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            address = filled(ext, D0, host())
            ext.launch(D0, 0, fill(address, 1))
            ext.synchronize_stream(D0, 0)
            ext.device_memory_deallocate(D0, address, SIZE)

    def child() -> bool:
        try:
            ext.synchronize_device(D0)
        except DeviceError as error:
            assert "forked" in str(error)
        address = ext.device_memory_allocate(D0, SIZE)
        ext.launch(D0, 0, fill(address, 5))
        return bool((contents(ext, D0, address) == 5).all())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(20):
            assert_in_child(child)
    finally:
        stop.set()
        thread.join()


_PREAMBLE = """
import atexit, threading
import numpy as np
later = []
atexit.register(lambda: [each() for each in later])  # after what is imported now has ended
from minitvm.runtime.device import Device
from minitvm.runtime.device_api.ext_dev import ExtDev
ext, device = ExtDev(), Device(12)
stream = ext.create_stream(device)
size = 1 << 24
a = ext.device_memory_allocate(device, size)
values = np.ones(size, np.uint8)
"""
_ENDS = {
    "idle": "ext.stream_add_callback(device, stream, int); ext.synchronize_device(device)",
    "pending": """
for _ in range(100):
    ext.async_memory_copy_h2d(device, stream, a, values.ctypes.data, size)
slow, stuck, waiting, failed = (ext.create_stream(device) for _ in range(4))
ext.inject("async_memory_copy_h2d", delay=1000)
ext.async_memory_copy_h2d(device, slow, a, values.ctypes.data, size)
event, started = ext.create_event(device), threading.Event()
ext.stream_add_callback(device, stuck, started.set)
ext.stream_add_callback(device, stuck, threading.Event().wait)
ext.record_event(device, stuck, event)
ext.stream_wait_event(device, waiting, event)
ext.stream_add_callback(device, failed, lambda: 1 // 0)
started.wait()
""",
    "used by what ends later": """
def late():
    ext.async_memory_copy_h2d(device, stream, a, values.ctypes.data, size)
    ext.synchronize_stream(device, stream)
    ext.destroy_stream(device, stream)
    out = np.zeros(size, np.uint8)
    ext.memory_copy_d2h(device, out.ctypes.data, a, size)
    assert out.all()
    ext.device_memory_deallocate(device, a, size)
    print("done")
later.append(late)
ext.stream_add_callback(device, stream, int)
""",
}


@pytest.mark.parametrize("end", _ENDS)
def test_the_interpreter_ends_quietly(end: str) -> None:
    program = _PREAMBLE + _ENDS[end]
    run = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program], capture_output=True, timeout=60
    )
    said = b"done\n" if "done" in program else b""
    assert (run.returncode, run.stdout, run.stderr.decode()) == (0, said, "")


_ENDS_A_STREAM = """
import os, time
import minitvm as tvm

device = tvm.ext_dev(0)
with device.interface.inject("async_memory_copy_h2d", delay=0.5):
    stream, other = device.create_stream(), device.create_stream()
    host = tvm.nd.array([1.0])
    a, b = (tvm.nd.empty((1,), "float64", device) for _ in range(2))
    host.copyto(a, stream=stream)
    host.copyto(b, stream=other)
    stream.add_callback(lambda kept=other: None)
    del other
    child = os.fork()
    if child == 0:
        os._exit(0)
until = time.monotonic() + 60
while (status := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < until:
    time.sleep(0.01)
if status == (0, 0):
    os.kill(child, 9)
assert status == (child, 0), status
device.sync()
"""


@needs_fork
def test_a_child_in_which_pending_work_ends_a_stream() -> None:
    """What was pending is dropped in the child, and with it the last reference to a stream, which
    ends in silence: nobody in the child waits for it."""
    command = [sys.executable, "-W", "ignore", "-c", _ENDS_A_STREAM]
    run = subprocess.run(command, capture_output=True, timeout=100)
    told = run.stderr.decode()
    assert (run.returncode, told) == (0, "")
