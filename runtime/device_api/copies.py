"""Copies of tensors between devices, and between a device and the CPU.

A device copies runs of bytes. Elements that don't lie together are copied run by run. Where a
device's elements lie in runs of a few bytes, all bytes between the first and the last are copied,
and the CPU picks the elements out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from minitvm.runtime.device import Device, cpu
from minitvm.runtime.device_api.driver import copy_through_host
from minitvm.runtime.device_api.registry import managed
from minitvm.runtime.device_api.streams import Stream
from minitvm.runtime.dlpack import TensorView, compact_strides, lead_alike

_SHORT = 4096  # bytes: a device copies shorter runs faster together than one by one
_FEW = 16  # the most bytes copied for short runs, as a multiple of the elements' bytes
_HOST = cpu(0)


def copy(target: TensorView, source: TensorView, stream: Stream | None = None) -> None:
    """Copy the bytes of `source` to `target`, of the same shape and dtype, one of them on a device.

    Without a stream, all earlier work of the devices is done first, and the copy is done when this
    returns. With a stream of either device, the copy is done in the order of that stream.
    """
    if 0 in target.shape:
        return
    if stream is not None and not _is_direct(stream, target, source):
        stream.synchronize()
        stream = None
    if stream is None:
        for view in (target, source):
            if not view.is_on_host:
                managed(view.device).synchronize()
    runs = _runs(target, source)
    for to, start in zip(runs.targets, runs.sources, strict=True):
        _move(target.device, source.device, to, start, runs.size, stream)


def fetch(source: TensorView) -> tuple[TensorView, object]:
    """The elements of a tensor on a device in new memory of the CPU, and the owner of that
    memory."""
    needed = (source.element_bits * math.prod(source.shape) + 7) // 8
    span = source.span()
    few = len(span) <= _FEW * needed
    if source.element_bits % 8 or (few and _common_run(source, source)[0] < _SHORT):
        host = np.empty(len(span), np.uint8)
        if host.size:
            managed(source.device).synchronize()
            _move(_HOST, source.device, host.ctypes.data, span.start, host.size, None)
        shift = host.ctypes.data - span.start
        return source._replace(data=source.data + shift, device=_HOST, read_only=False), host
    host = np.empty(needed, np.uint8)
    compact = source._replace(
        data=host.ctypes.data,
        strides=compact_strides(source.shape),
        device=_HOST,
        read_only=False,
    )
    copy(compact, source)
    return compact, host


def write_back(target: TensorView, fetched: TensorView) -> None:
    """Copy all bytes between the first and the last element, from `fetch`, back to the device.
    Elements that share bytes need this."""
    span = target.span()
    if len(span):
        _move(target.device, _HOST, span.start, fetched.span().start, len(span), None)


def may_overlap(target: TensorView, source: TensorView) -> bool:
    """Whether two tensors may share bytes: devices don't define the order in which they copy
    them."""
    a, b = target.span(), source.span()
    return target.device == source.device and a.start < b.stop and b.start < a.stop


def are_alike(target: TensorView, source: TensorView) -> bool:
    """Whether the elements of two tensors of the same shape are the same bytes in the same order,
    without gaps."""
    return (target.dtype, target.padded) == (source.dtype, source.padded) and all(
        not view.bit and lead_alike(view.shape, view.strides, compact_strides(view.shape))
        for view in (target, source)
    )


class _Runs(NamedTuple):
    """Runs of bytes: the length of each run, and the begins of all."""

    size: int
    targets: list[int]
    sources: list[int]


def _runs(target: TensorView, source: TensorView) -> _Runs:
    """The runs that both tensors have in common."""
    size, dims = _common_run(target, source)
    targets = sources = np.zeros(1, np.int64)
    for extent, to, start in dims:
        steps = np.arange(extent, dtype=np.int64)
        targets = np.add.outer(targets, steps * to).ravel()
        sources = np.add.outer(sources, steps * start).ravel()
    return _Runs(size, (targets + target.data).tolist(), (sources + source.data).tolist())


def _common_run(target: TensorView, source: TensorView) -> tuple[int, list[tuple[int, int, int]]]:
    """The bytes of a run; and for each dimension of runs its extent, and the bytes from one run to
    the next in the target and in the source."""
    if are_alike(target, source):
        return (target.element_bits * math.prod(target.shape) + 7) // 8, []
    assert target.element_bits % 8 == 0
    size = target.element_bits // 8
    dims = [
        (extent, to * size, start * size)
        for extent, to, start in zip(target.shape, target.strides, source.strides, strict=True)
        if extent != 1
    ]
    while dims and dims[-1][1:] == (size, size):
        size *= dims.pop()[0]
    return size, dims


def _is_direct(stream: Stream, target: TensorView, source: TensorView) -> bool:
    """Whether a device copies directly between the two places on the stream."""
    if target.is_on_host or source.is_on_host:
        return True
    return target.device.device_type == source.device.device_type and stream.device == target.device


def _move(
    to: Device, start: Device, target: int, source: int, size: int, stream: Stream | None
) -> None:
    """Copy bytes, on a stream, or now."""
    if _HOST not in (to, start) and to.device_type != start.device_type:
        copy_through_host(
            managed(to).driver, to, managed(start).driver, start, target, source, size
        )
        return
    device = start if to == _HOST else to
    if start == _HOST:
        kind, devices = "h2d", [device]
    elif to == _HOST:
        kind, devices = "d2h", [device]
    elif to == start:
        kind, devices = "d2d", [device]
    else:
        kind, devices = "p2p", [to, start]
    driver = managed(device).driver
    if stream is None:
        getattr(driver, f"memory_copy_{kind}")(*devices, target, source, size)
    else:
        getattr(driver, f"async_memory_copy_{kind}")(*devices, stream.handle, target, source, size)
