"""from_dlpack: an array of another library, or a capsule, as an NDArray of the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import minitvm.runtime.dlpack as dlpack
import minitvm.runtime.exchange as exchange
from minitvm.runtime.call_path import call_path
from minitvm.runtime.device import Device, cpu
from minitvm.runtime.device_api import registry
from minitvm.runtime.dlpack import Taken
from minitvm.runtime.errors import NotExportable
from minitvm.runtime.ndarray import NDArray, array, place_of, rare, read_numpy

_CPU = cpu(0)
_ADDED = 2  # `isbuiltin` of dtypes that other packages added to numpy


def from_dlpack(
    source: Any,
    device: Device | str | None = None,
    copy: bool | None = None,
    *,
    read_only: bool = False,
) -> NDArray:
    """An NDArray of the memory of `source`, an array with ``__dlpack__`` or a DLPack capsule.

    It can't be written where the capsule says so, or `source` is an array of a library whose arrays
    never change (JAX, TensorFlow). A capsule doesn't name its library: pass `read_only` for one.

    Parameters
    ----------
    source
        The array. If its type has DLPack's C exchange API, that API exports it.
    device
        The device of the result. By default it is the device of `source`: the CPU, or a registered
        device. For the CPU, the library of `source` is asked to copy an array from elsewhere.
    copy
        By default memory is shared. True makes a copy, which can be written; False refuses memory
        that had to be copied.
    read_only
        The memory must not be written.

    Raises
    ------
    TypeError
        When `source` is neither (the error is also an ``AttributeError``, as the array API standard
        demands).
    BufferError
        When its memory can't be shared; libraries raise errors of their own, too.
    ValueError
        When it is on a device that isn't there, or had to be copied with ``copy=False``.

    >>> x = np.arange(3)
    >>> a = from_dlpack(x)
    >>> b = from_dlpack(x, copy=True)
    >>> x[0] = 9
    >>> a.numpy(), b.numpy()
    (array([9, 1, 2]), array([0, 1, 2]))
    """
    if device is None and copy is None and not read_only:
        known = _quickly[0](source)
        if known is not None:
            return known
    place = None if device is None else place_of(device, None).device
    taken = _take(source, place == _CPU, copy)
    moved = place not in (None, taken.view.device)
    if copy is not None and not copy and (taken.copied or moved):
        raise ValueError("from_dlpack: expected shared memory, got a copy, with copy=False")
    view = taken.view._replace(read_only=True) if read_only else taken.view
    made = NDArray(view, taken.owner)
    if moved or (copy and (made.read_only or not taken.copied)):
        return array(made, made.device if place is None else place)
    return made


# Makes an NDArray from a tensor whose type compiled code has learnt; None for others.
_quickly: list[Callable[[Any], NDArray | None]] = [lambda source: None]


def _learn(source: object) -> None:
    """Lets compiled code import tensors like `source` the next time, if it can."""
    path = call_path()
    if path is not None:
        path.learn(source)
        array_of = exchange.loaded(NDArray, rare()).array_of
        if len(_quickly) == 1:
            _quickly.insert(0, path.importer(array_of))


def _take(source: Any, move: bool, copy: bool | None) -> Taken:
    """The tensor of an array or capsule, or of a copy if there is no other way."""
    if dlpack.is_capsule(source):
        return dlpack.consume(source, accepts=registry.exists)
    if not hasattr(source, "__dlpack__"):
        kind = type(source).__name__
        raise NotExportable(
            f"from_dlpack: expected an array with __dlpack__ or a capsule, got {kind}"
        )
    if type(source) is np.ndarray and source.dtype.isbuiltin == _ADDED:
        # numpy itself doesn't export these
        return Taken(read_numpy(source), source, False)
    if not move:
        managed, fixed = exchange.request(source)
        if managed:
            _learn(source)
            taken = dlpack.adopt(managed, True, fixed, accepts=registry.exists)
            if not taken.view.is_on_host:
                taken.view.device.sync()  # this form of the request leaves the wait to us
            return taken
    # For True, we make the copy, since not all libraries tell whether they have made one.
    asked = False if copy is not None and not copy else None
    capsule, fixed = dlpack.request(source, accepts=registry.exists, move=move, copy=asked)
    if type(source) is np.ndarray:
        _learn(source)
    return dlpack.consume(capsule, fixed, accepts=registry.exists)
