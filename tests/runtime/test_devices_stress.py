"""Devices under load and faults: no byte is lost, nothing leaks, and what comes next works."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.runtime.device import Device
from minitvm.runtime.device_api.ext_dev import ExtDev, Usage
from minitvm.runtime.device_api.registry import register_device, unregister_device
from minitvm.runtime.device_api.streams import Stream
from minitvm.runtime.errors import DeviceError
from tests.runtime.device_faults import check, outcome

_NAME, _NUMBER = "simulated", 300


class Simulated(NamedTuple):
    """A simulated device of a test's own, and its two devices."""

    ext: ExtDev
    first: Device
    second: Device


@contextlib.contextmanager
def simulated(capacity: int = 1 << 28) -> Iterator[Simulated]:
    """In the end nothing is left of what was taken."""
    ext = ExtDev(capacity=capacity)
    register_device(_NAME, ext, device_type=_NUMBER)
    yield Simulated(ext, Device(_NUMBER, 0), Device(_NUMBER, 1))
    unregister_device(_NAME)
    assert ext.usage() == Usage()


@pytest.fixture
def devices() -> Iterator[Simulated]:
    with simulated() as found:
        yield found


# ---- Load ----------------------------------------------------------------------------------------


@functools.cache
def minus() -> Any:
    """A kernel, which may write where it reads."""
    n, m = te.var("n"), te.var("m")
    x = te.placeholder((n, m), "int32", name="X")
    y = te.compute((n, m), lambda i, j: -x[i, j], name="Y")
    return tvm.build(te.create_schedule(y.op), [x, y], target=_NAME, name="minus")


def transfer(devices: Simulated, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`values`, by streams, events and kernels from device to device and back."""
    first, second, third = (
        device.create_stream() for device in (devices.first, devices.first, devices.second)
    )
    a = tvm.nd.empty(values.shape, values.dtype.name, devices.first)
    b = tvm.nd.empty(values.shape, values.dtype.name, devices.first)
    c = tvm.nd.empty(values.shape, values.dtype.name, devices.second)
    out = tvm.nd.empty(values.shape, values.dtype.name)
    a.copyfrom(values.copy(), stream=first)
    with first:
        minus()(a, a)
    second.wait(first.record())
    a.copyto(b, stream=second)
    with second:
        minus()(b, b)
    third.wait(second.record())
    b.copyto(c, stream=third)
    c.copyto(out, stream=third)
    third.synchronize()
    return np.asarray(out.numpy())


def transfer_now(devices: Simulated, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`values`, without streams, as others' streams are waited for too."""
    a = tvm.nd.array(values, devices.first)
    return np.asarray(a.copyto(devices.second).T.numpy().T)


def work(devices: Simulated, seed: int, until: float, lost: list[str]) -> None:
    draw = np.random.default_rng(seed)
    while time.monotonic() < until:
        shape = (int(draw.integers(1, 40)), int(draw.integers(1, 2000)))
        values = draw.integers(0, 1 << 30, shape, np.int32)
        how = transfer_now if draw.random() < 0.2 else transfer
        try:
            if (how(devices, values) != values).any():
                lost.append(f"{seed}: {how.__name__} of {shape}: wrong")
        except Exception as error:
            lost.append(f"{seed}: {how.__name__} of {shape}: {error!r}")


def lost_under_load(seconds: float) -> list[str]:
    """The transfers of eight threads that went wrong."""
    with simulated() as devices:
        lost: list[str] = []
        for name in ("async_memory_copy_h2d", "async_memory_copy_p2p"):
            devices.ext.inject(name, count=None, delay=0.002)
        until = time.monotonic() + seconds
        threads = [
            threading.Thread(target=work, args=(devices, seed, until, lost)) for seed in range(8)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return lost


def test_threads_share_a_device_without_a_lost_byte() -> None:
    assert not lost_under_load(2.0)


@pytest.mark.wide
def test_threads_share_a_device_for_a_minute_without_a_lost_byte() -> None:
    assert not lost_under_load(60.0)


# ---- What a stream needs is there ----------------------------------------------------------------


class Memory:
    """What a stream needs."""


def interrupted(wait: Callable[[], object]) -> None:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(KeyboardInterrupt):
            wait()
    finally:
        signal.signal(signal.SIGALRM, before)


def held_up(devices: Simulated, stream: Stream) -> threading.Event:
    """What a stream waits for from now on."""
    opened = threading.Event()
    stream.add_callback(lambda: _wait(opened))
    return opened


def _wait(opened: threading.Event) -> None:
    assert opened.wait(30)


def test_a_wait_that_is_interrupted_leaves_what_the_stream_needs(devices: Simulated) -> None:
    waits: list[Callable[[Stream], None]] = [Stream.synchronize, lambda s: s.device.sync()]
    for wait in waits:
        stream, needed = devices.first.create_stream(), Memory()
        opened, gone = held_up(devices, stream), weakref.ref(needed)
        stream.keep(needed)
        del needed
        interrupted(functools.partial(wait, stream))
        assert gone() is not None
        opened.set()
        wait(stream)
        assert gone() is None


def test_a_wait_for_the_device_leaves_what_was_put_on_a_stream_since(devices: Simulated) -> None:
    stream, other, needed = (
        devices.first.create_stream(),
        devices.first.create_stream(),
        Memory(),
    )
    first, gone = held_up(devices, other), weakref.ref(needed)
    waiting = threading.Thread(target=devices.first.sync)
    waiting.start()
    while devices.ext.calls["synchronize_device"] == 0:
        time.sleep(0)
    time.sleep(0.01)
    second = held_up(devices, stream)
    stream.keep(needed)
    del needed
    first.set()
    waiting.join()
    assert gone() is not None
    second.set()
    stream.synchronize()
    assert gone() is None


def test_a_stream_that_ends_before_its_work_leaves_what_that_needs(devices: Simulated) -> None:
    """One that is destroyed where nobody may wait."""
    holder, other, needed = (
        [devices.first.create_stream()],
        devices.first.create_stream(),
        Memory(),
    )
    opened, gone = held_up(devices, holder[0]), weakref.ref(needed)
    holder[0].keep(needed)
    del needed
    other.add_callback(holder.clear)
    other.synchronize()
    assert not holder
    assert gone() is not None
    opened.set()
    devices.first.sync()
    del other
    assert gone() is None


def test_what_a_stream_needs_is_kept_though_no_event_can_be_recorded(devices: Simulated) -> None:
    stream, source = devices.first.create_stream(), tvm.nd.array(np.ones(100, np.int32))
    target = tvm.nd.empty((100,), "int32", devices.first)
    devices.ext.inject("async_memory_copy_h2d", delay=0.05)
    with devices.ext.inject("record_event"), pytest.raises(DeviceError, match="injected"):
        target.copyfrom(source, stream=stream)
    assert stream.query()
    assert (target.numpy() == 1).all()


# ---- A fault at every call -----------------------------------------------------------------------

VALUES = np.arange(24, dtype=np.int32).reshape(4, 6)


def there_and_back(devices: Simulated) -> None:
    """Copies of every kind, at once."""
    a = tvm.nd.array(VALUES, devices.first)
    b = tvm.nd.empty(VALUES.shape, "int32", devices.first)
    a.copyto(b)
    c = b.copyto(devices.second)
    c[1:3] = VALUES[:2]
    expected = VALUES.copy()
    expected[1:3] = VALUES[:2]
    np.testing.assert_array_equal(c.numpy(), expected)
    np.testing.assert_array_equal(a.T.numpy(), VALUES.T)
    np.testing.assert_array_equal(tvm.nd.array(a[:, ::2], tvm.cpu(0)).numpy(), VALUES[:, ::2])


def on_streams(devices: Simulated) -> None:
    """Copies of every kind, on streams that wait for one another."""
    np.testing.assert_array_equal(transfer(devices, VALUES), VALUES)


def in_order(devices: Simulated) -> None:
    """Memory that is used on a stream, and ends while it is."""
    with devices.first.create_stream() as stream:
        for _ in range(3):
            a = tvm.nd.empty(VALUES.shape, "int32", devices.first)
            a.copyfrom(VALUES, stream=stream)
            b = tvm.nd.empty(VALUES.shape, "int32", devices.first)
            a.copyto(b, stream=stream)
            del a
        out = b.copyto(tvm.nd.empty(VALUES.shape, "int32"), stream=stream)
        stream.synchronize()
    np.testing.assert_array_equal(out.numpy(), VALUES)


def with_events(devices: Simulated) -> None:
    """Events that are recorded again, asked and waited for; a callback."""
    stream, event, seen = devices.first.create_stream(), devices.first.create_event(), list[int]()
    a = tvm.nd.array(VALUES, devices.first)
    for _ in range(2):
        stream.add_callback(lambda: seen.append(1))
        stream.record(event)
        event.synchronize()
    assert event.query()
    assert stream.query()
    assert seen == [1, 1]
    devices.first.sync()
    np.testing.assert_array_equal(a.numpy(), VALUES)


SCENARIOS = [there_and_back, on_streams, in_order, with_events]


def sweep(scenario: Callable[[Simulated], None], *, on_stream: bool) -> int:
    """Run a scenario with a fault at its first call, at its second...; how many there are.

    It ends with an error, or with the right values, as where memory is asked for once more.
    """
    gc.collect()
    gc.freeze()  # what there is by now needn't be looked through every time
    try:
        for n in itertools.count():
            with simulated() as devices:
                with devices.ext.inject(after=n, on_stream=on_stream) as fault, outcome() as found:
                    scenario(devices)
                check(found)
                with outcome() as later:  # what nobody has been told of yet
                    devices.first.sync()
                    devices.second.sync()
                check(later)
                scenario(devices)
                del found, later
                gc.collect()
            if not fault.hits:
                return n
    finally:
        gc.unfreeze()
    raise AssertionError


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_at_every_call_is_an_error_and_leaves_nothing(
    scenario: Callable[[Simulated], None],
) -> None:
    assert sweep(scenario, on_stream=False) > 10


@pytest.mark.parametrize("scenario", [on_streams, in_order, with_events])
def test_a_fault_at_every_place_of_a_stream_is_an_error_and_leaves_nothing(
    scenario: Callable[[Simulated], None],
) -> None:
    assert sweep(scenario, on_stream=True) > 1
