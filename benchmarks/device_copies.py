"""Copies between the CPU and the simulated device, beside memcpy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.measure import OURS, Row, Settings, calls, interleaved
from minitvm.runtime.device import Device
from minitvm.runtime.device_api.ext_dev import ExtDev
from minitvm.runtime.device_type import DeviceType

_SIZE = 64_000_000
_QUICK_SIZE = 1_000_000
_LEAST = 0.95  # of memcpy's bandwidth
_MEMCPY = "memcpy"
_DEVICE = Device(DeviceType.EXT_DEV)


def rows(settings: Settings) -> Iterator[Row]:
    """Both directions, at once and on a stream that is waited for."""
    size = _SIZE if settings.least else _QUICK_SIZE
    ext = ExtDev()
    stream = ext.create_stream(_DEVICE)
    address = ext.device_memory_allocate(_DEVICE, size)
    source = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    target = np.zeros(size, np.uint8)
    s, t = source.ctypes.data, target.ctypes.data

    def h2d_on_stream() -> None:
        ext.async_memory_copy_h2d(_DEVICE, stream, address, s, size)
        ext.synchronize_stream(_DEVICE, stream)

    def d2h_on_stream() -> None:
        ext.async_memory_copy_d2h(_DEVICE, stream, t, address, size)
        ext.synchronize_stream(_DEVICE, stream)

    copies: dict[str, Callable[[], None]] = {
        "h2d": lambda: ext.memory_copy_h2d(_DEVICE, address, s, size),
        "d2h": lambda: ext.memory_copy_d2h(_DEVICE, t, address, size),
        "h2d on a stream": h2d_on_stream,
        "d2h on a stream": d2h_on_stream,
    }
    copies["h2d"]()
    for name, copy in copies.items():
        target.fill(0)
        copy()
        copies["d2h"]()
        np.testing.assert_array_equal(target, source)
        timers = {
            OURS: calls(copy),
            _MEMCPY: calls(lambda: ctypes.memmove(t, s, size)),
        }
        measured = interleaved(timers, settings)
        seconds = measured[_MEMCPY].seconds
        gigabytes = {peer: size / each.seconds / 1e9 for peer, each in measured.items()}
        what = (
            f"{size / 1e6:g} MB between the CPU and ext_dev: {gigabytes[OURS]:.2f} GB/s, memcpy "
            f"{gigabytes[_MEMCPY]:.2f}; the target is {_LEAST} of its bandwidth"
        )
        yield Row(f"{name}, {size / 1e6:g} MB", what, measured, target=seconds / _LEAST)
    ext.destroy_stream(_DEVICE, stream)
