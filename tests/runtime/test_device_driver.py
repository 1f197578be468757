"""Drivers: what stands in for each function that a device lacks, and what its mistakes become."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minitvm.runtime.device import Device
from minitvm.runtime.device_api.cpu import HostMemory
from minitvm.runtime.device_api.driver import Driver
from minitvm.runtime.device_api.ext_dev import ExtDev, Sizes
from minitvm.runtime.device_api.interface import OPTIONAL, DeviceInterface, Status
from minitvm.runtime.device_type import DEVICE_TYPES, name_device_type
from minitvm.runtime.errors import DeviceError, DeviceMemoryError, UnsupportedByDevice

D0, D1 = Device(12, 0), Device(12, 1)
CONTENT = bytes(range(256)) * 4
SIZE = len(CONTENT)


class Lacking(DeviceInterface):
    """The simulated device without some of its functions; notes which are called."""

    def __init__(self, *lacking: str, sizes: Sizes = Sizes()) -> None:  # noqa: B008
        self._ext = ExtDev(capacity=1 << 24, sizes=sizes)
        self._lacking = lacking
        self.called: list[str] = []

    def provides(self, name: str) -> bool:
        return name not in self._lacking

    def __getattribute__(self, name: str) -> Any:
        if name not in OPTIONAL and not name.startswith("device_memory_"):
            return super().__getattribute__(name)
        assert name not in self._lacking, f"{name} is called, which the device lacks"
        self.called.append(name)
        return getattr(self._ext, name)

    def device_memory_allocate(self, device: Device, size: int) -> int:
        raise NotImplementedError

    def device_memory_deallocate(self, device: Device, address: int, size: int) -> None:
        raise NotImplementedError


def _driver(*lacking: str) -> Driver:
    return Driver("ext_dev", 12, Lacking(*lacking))


def _exercise(driver: Driver) -> list[bytes]:
    """What arrives, by every kind of copy."""
    host = ctypes.create_string_buffer(CONTENT, SIZE)
    results = [ctypes.create_string_buffer(SIZE) for _ in range(4)]
    source, back = ctypes.addressof(host), [ctypes.addressof(each) for each in results]
    a, b = (driver.device_memory_allocate(D0, SIZE) for _ in range(2))
    c = driver.device_memory_allocate(D1, SIZE)
    # At once.
    driver.memory_copy_h2d(D0, a, source, SIZE)
    driver.memory_copy_d2d(D0, b, a, SIZE)
    driver.memory_copy_p2p(D1, D0, c, b, SIZE)
    driver.memory_copy_d2h(D1, back[0], c, SIZE)
    driver.memory_copy_d2d(D0, b + 3, b, SIZE - 3)  # which overlap
    driver.device_memory_set(D0, b, 7, 3)
    driver.memory_copy_d2h(D0, back[1], b, SIZE)
    # On streams, of which one waits for the other.
    first, second = driver.create_stream(D0), driver.create_stream(D1)
    event = driver.create_event(D0)
    driver.async_memory_copy_h2d(D0, first, b, source, SIZE)
    driver.async_memory_copy_d2d(D0, first, a, b, SIZE)
    driver.record_event(D0, first, event)
    driver.stream_wait_event(D1, second, event, D0)
    driver.async_memory_copy_p2p(D1, D0, second, c, a, SIZE)
    driver.async_memory_copy_d2h(D1, second, back[2], c, SIZE)
    reached = []
    driver.stream_add_callback(D1, second, lambda: reached.append(results[2].raw))
    driver.synchronize_stream(D1, second)
    assert reached == [CONTENT]
    assert driver.query_stream(D1, second)
    assert driver.query_event(D0, event)
    driver.synchronize_event(D0, event)
    driver.synchronize_device(D0)
    driver.memory_copy_d2h(D0, back[3], a, SIZE)
    driver.destroy_event(D0, event)
    driver.destroy_stream(D0, first)
    driver.destroy_stream(D1, second)
    for device, address in ((D0, a), (D0, b), (D1, c)):
        driver.device_memory_deallocate(device, address, SIZE)
    return [each.raw for each in results]


EXPECTED = [CONTENT, b"\7" * 3 + CONTENT[:-3], CONTENT, CONTENT]
COPIES = [f"memory_copy_{kind}" for kind in ("h2d", "d2h", "d2d", "p2p")]
_STREAMS = [
    name
    for name in OPTIONAL
    if any(word in name for word in ("stream", "event", "async_", "launch"))
]


@pytest.mark.parametrize("lacking", OPTIONAL)
def test_without_one_function(lacking: str) -> None:
    driver = _driver(lacking)
    assert not driver.provides(lacking)
    assert _exercise(driver) == EXPECTED


class _Runs:
    """A kernel."""

    name = "runs"

    def __init__(self, run: Callable[[Callable[[int, int], int]], None]) -> None:
        self._run = run

    def __call__(self, address_of: Callable[[int, int], int]) -> None:
        self._run(address_of)


def test_the_cpu_is_a_device_without_streams() -> None:
    driver, device = Driver("cpu", 1, HostMemory()), Device(1, 0)
    content, seen = ctypes.create_string_buffer(CONTENT, SIZE), list[Any]()
    for kind in ("device", "host", "unified"):  # which are the same memory
        for size in (1, SIZE, 3 << 20):
            address = getattr(driver, f"{kind}_memory_allocate")(device, size)
            assert address % 256 == 0
            driver.device_memory_set(device, address, 7, size)
            assert ctypes.string_at(address, size) == b"\7" * size
            getattr(driver, f"{kind}_memory_deallocate")(device, address, size)
    a, b = (driver.device_memory_allocate(device, SIZE) for _ in range(2))
    stream = driver.create_stream(device)
    driver.async_memory_copy_h2d(device, stream, a, ctypes.addressof(content), SIZE)
    driver.async_memory_copy_p2p(device, device, stream, b, a, SIZE)
    driver.stream_add_callback(device, stream, lambda: seen.append(ctypes.string_at(b, SIZE)))
    assert seen == [CONTENT]
    driver.launch(device, stream, _Runs(lambda address_of: seen.append(address_of(a, SIZE))))
    assert seen[1:] == [a]
    total, free = driver.device_memory_stats(device) or (0, 0)
    assert total >= free > 0
    for address in (a, b):
        driver.device_memory_deallocate(device, address, SIZE)


def test_with_all_functions_each_is_asked_itself() -> None:
    driver = _driver()
    assert _exercise(driver) == EXPECTED
    assert isinstance(driver.interface, Lacking)
    called = set(driver.interface.called)
    assert called >= {*COPIES, *(f"async_{each}" for each in COPIES), "device_memory_set"}


# What no other function does. Without sync copies there are the async ones, and the reverse.
@pytest.mark.parametrize(
    "lacking",
    [
        ("memory_copy_d2d", "async_memory_copy_d2d"),
        ("memory_copy_p2p", "async_memory_copy_p2p", "memory_copy_d2d"),
        ("memory_copy_h2d", "memory_copy_d2h", "memory_copy_d2d", "memory_copy_p2p"),
        ("memory_copy_h2d", "device_memory_set"),
        tuple(f"async_{each}" for each in COPIES),
        tuple(_STREAMS),
        ("create_event", "record_event"),
        ("synchronize_event", "query_event"),
        ("synchronize_stream", "synchronize_device"),
        ("synchronize_stream", "create_event", "synchronize_device"),
        ("synchronize_stream", "create_event"),
        ("stream_wait_event", "synchronize_event"),
        tuple(sorted({*OPTIONAL} - {"memory_copy_h2d", "memory_copy_d2h", "get_device_count"})),
    ],
    ids=lambda lacking: ", ".join(lacking[:4]),
)
def test_without_several_functions(lacking: tuple[str, ...]) -> None:
    assert _exercise(_driver(*lacking)) == EXPECTED


_REPLACEABLE = (
    "memory_copy_d2d", "memory_copy_p2p", "device_memory_set", "async_memory_copy_h2d",
    "query_stream", "query_event", "stream_wait_event", "stream_add_callback",
    "synchronize_device", "destroy_event", "destroy_stream",
)  # fmt: skip


def test_without_three_functions() -> None:
    for lacking in list(itertools.combinations(_REPLACEABLE, 3))[::7]:
        assert _exercise(_driver(*lacking)) == EXPECTED, lacking


@pytest.mark.parametrize(
    ("lacking", "function", "call"),
    [
        (
            ("memory_copy_h2d", "async_memory_copy_h2d"),
            "memory_copy_h2d",
            lambda driver: driver.memory_copy_h2d(D0, 1, 1, 1),
        ),
        (
            ("memory_copy_d2h", "create_stream"),
            "memory_copy_d2h",
            lambda driver: driver.memory_copy_d2h(D0, 1, 1, 1),
        ),
        (
            ("memory_copy_d2d", "async_memory_copy_d2d", "memory_copy_h2d", "create_stream"),
            "memory_copy_h2d",
            lambda driver: driver.memory_copy_h2d(D0, 1, 1, 1),
        ),
        (
            ("host_memory_allocate",),
            "host_memory_allocate",
            lambda driver: driver.host_memory_allocate(D0, 1),
        ),
        (
            ("host_memory_deallocate",),
            "host_memory_deallocate",
            lambda driver: driver.host_memory_deallocate(D0, 1, 1),
        ),
        (
            ("unified_memory_allocate",),
            "unified_memory_allocate",
            lambda driver: driver.unified_memory_allocate(D0, 1),
        ),
        (
            ("unified_memory_deallocate",),
            "unified_memory_deallocate",
            lambda driver: driver.unified_memory_deallocate(D0, 1, 1),
        ),
        (("launch",), "launch", lambda driver: driver.launch(D0, None, None)),
        (
            ("get_driver_version",),
            "get_driver_version",
            lambda driver: driver.get_driver_version(),
        ),
        (
            ("synchronize_stream", "record_event", "synchronize_device", "query_stream"),
            "synchronize_stream",
            lambda driver: driver.synchronize_stream(D0, driver.create_stream(D0)),
        ),
    ],
)
def test_what_nothing_stands_in_for(
    lacking: tuple[str, ...], function: str, call: Callable[[Driver], object]
) -> None:
    where = r"ext_dev(\(0\))?"
    with pytest.raises(
        UnsupportedByDevice, match=f"^{where}: {function}: expected a device with this function"
    ):
        call(_driver(*lacking))


def test_sizes_that_a_device_does_not_say() -> None:
    sizes = [name for name in OPTIONAL if name.endswith("_size")]
    driver = _driver(*sizes)
    free = driver.device_memory_stats(D0)
    assert free is not None
    assert driver.device_min_chunk_size(D0) == 1
    assert driver.device_extra_padding_size(D0) == 0
    assert driver.device_max_chunk_size(D0) == driver.device_max_alloc_size(D0) == free.free
    assert driver.device_init_alloc_size(D0) is driver.device_realloc_size(D0) is None
    driver = _driver(*sizes, "device_memory_stats")
    assert driver.device_memory_stats(D0) is None
    assert driver.device_max_chunk_size(D0) is driver.device_max_alloc_size(D0) is None
    driver = _driver(*(name for name in sizes if name != "device_max_alloc_size"))
    most = driver.device_max_alloc_size(D0)
    assert most is not None
    assert driver.device_max_chunk_size(D0) == most
    assert driver.device_init_alloc_size(D0) == driver.device_realloc_size(D0) == most


def test_devices_that_a_device_does_not_count() -> None:
    assert list(_driver().get_device_list()) == [0, 1]
    assert list(_driver("get_device_list").get_device_list()) == [0, 1]
    assert _driver("get_device_count").get_device_count() == 2
    driver = _driver("get_device_count", "get_device_list", "get_device")
    assert (driver.get_device_count(), list(driver.get_device_list())) == (1, [0])
    assert driver.get_device() == 0
    driver.set_device(D1)
    assert driver.get_device() == 1
    known = set(_driver("get_driver_version").get_device_properties(D0))
    assert "driver_version" not in known
    assert "runtime_version" in known


class Wrong(DeviceInterface):
    """Answers each call with one thing."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def provides(self, name: str) -> bool:
        return name != "set_device"

    def __getattribute__(self, name: str) -> Any:
        if name in OPTIONAL or name.startswith("device_memory_"):
            return lambda *args: self._say()
        return super().__getattribute__(name)

    def _say(self) -> Any:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    def device_memory_allocate(self, device: Device, size: int) -> int:
        raise NotImplementedError

    def device_memory_deallocate(self, device: Device, address: int, size: int) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("answer", "call", "error", "text"),
    [
        (2, "h2d", DeviceError, r"toy\(0\): memory_copy_h2d: failed with status 2 \(FAILED\)"),
        (Status.INTERNAL_ERROR, "h2d", DeviceError, r"failed with status 4 \(INTERNAL_ERROR\)"),
        (99, "h2d", DeviceError, r"toy\(0\): memory_copy_h2d: failed with status 99$"),
        ("no", "h2d", DeviceError, "expected None or a status, got 'no'"),
        (OSError("cable"), "h2d", DeviceError, r"memory_copy_h2d: OSError: cable"),
        (True, "h2d", DeviceError, "expected None or a status, got True"),
        (np.int64(3), "h2d", DeviceError, r"failed with status 3 \(ERROR\)"),
        (IndexError("i"), "h2d", IndexError, r"toy\(0\): memory_copy_h2d: IndexError: i"),
        (DeviceError("its own"), "h2d", DeviceError, "^its own$"),
        (0, "allocate", DeviceMemoryError, r"toy\(0\): device_memory_allocate: no memory for 8"),
        (None, "allocate", DeviceMemoryError, "no memory for 8 bytes"),
        (MemoryError(), "allocate", DeviceMemoryError, "device_memory_allocate: no memory$"),
        (MemoryError("full"), "allocate", DeviceMemoryError, "device_memory_allocate: full$"),
        (-1, "allocate", DeviceError, "expected an address, got -1"),
        (1 << 64, "allocate", DeviceError, "expected an address, got"),
        (True, "allocate", DeviceError, "expected an address, got True"),
        ("here", "allocate", DeviceError, "expected an address, got 'here'"),
        (-1, "min_chunk", DeviceError, r"device_min_chunk_size: expected an integer from 0"),
        (None, "min_chunk", DeviceError, r"expected an integer from 0 to .*, got None"),
        (3, "stats", DeviceError, r"expected \(total, free\), got 3"),
        ((1, -1), "stats", DeviceError, r"expected \(total, free\), got \(1, -1\)"),
        ([0, 0], "list", DeviceError, r"expected ids, each once, got \[0, 0\]"),
        ([-1], "list", DeviceError, "expected ids, each once"),
        (7.5, "list", DeviceError, "expected ids, each once, got 7.5"),
        ("done", "query", DeviceError, "query_stream: expected True or False, got 'done'"),
    ],
)
def test_wrong_answers(answer: Any, call: str, error: type[Exception], text: str) -> None:
    driver, device = Driver("toy", 300, Wrong(answer)), Device(300, 0)
    calls: dict[str, Callable[[], object]] = {
        "h2d": lambda: driver.memory_copy_h2d(device, 1, 1, 1),
        "allocate": lambda: driver.device_memory_allocate(device, 8),
        "min_chunk": lambda: driver.device_min_chunk_size(device),
        "stats": lambda: driver.device_memory_stats(device),
        "list": lambda: driver.get_device_list(),
        "query": lambda: driver.query_stream(device, None),
    }
    with _named("toy", 300), pytest.raises(error, match=text):
        calls[call]()


def test_warnings() -> None:
    driver = Driver("toy", 300, Wrong(1))
    with pytest.warns(RuntimeWarning, match=r"memory_copy_h2d: failed with status 1 \(WARNING\)"):
        driver.memory_copy_h2d(Device(300, 0), 1, 1, 1)
    assert Driver("toy", 300, Wrong(np.int64(64))).device_memory_allocate(D0, 8) == 64


def test_interrupts_pass() -> None:
    driver = Driver("toy", 300, Wrong(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        driver.memory_copy_h2d(Device(300, 0), 1, 1, 1)


def test_no_bytes_are_no_copies() -> None:
    """The device isn't asked, as it would fail."""
    driver = Driver("toy", 300, Wrong(AssertionError()))
    device = Device(300, 0)
    driver.memory_copy_h2d(device, 0, 0, 0)
    driver.async_memory_copy_p2p(device, device, None, 0, 0, 0)
    driver.device_memory_set(device, 0, 0, 0)


class _named:
    """A name for a number of devices."""

    def __init__(self, name: str, number: int) -> None:
        self._name, self._number = name, number

    def __enter__(self) -> None:

        name_device_type(self._name, self._number)

    def __exit__(self, *exception: object) -> None:

        del DEVICE_TYPES[self._name]
