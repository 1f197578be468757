"""Streams and events of a device, which order its work.

A device does the operations of one stream in order, and those of two streams side by side. An event
is a place in a stream. A failure on a stream is raised when somebody waits for the stream.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, final

from minitvm.runtime.device_api.driver import Driver
from minitvm.runtime.device_api.interface import Device, Handle
from minitvm.runtime.device_type import BareDevice

_MOST_KEPT = 64  # objects that a stream keeps before it drops those that it no longer needs


class _Thread(threading.local):
    def __init__(self) -> None:
        self.streams: list[Stream] = []  # of the `with stream:` blocks around, innermost last


_thread = _Thread()


def innermost_stream(device: BareDevice) -> Stream | None:
    """The stream of this thread's innermost ``with stream:`` whose stream belongs to the device."""
    return next((each for each in reversed(_thread.streams) if each.device == device), None)


@final
class _Kept:
    """Objects that a stream keeps until an event; without one, until a wait for the stream."""

    __slots__ = ("objects", "until")

    def __init__(self, objects: object) -> None:
        self.objects = objects
        self.until: Event | None = None

    @property
    def is_done(self) -> bool:
        return self.until is not None and self.until.query()


@final
class Stream:
    """An order of copies and kernels of one device: ``device.create_stream()``.

    With ``with stream:``, the kernels of this thread run on it. A device without streams does
    everything at once, and its streams are always done.
    """

    __slots__ = ("__weakref__", "_driver", "_end", "_kept", "device", "handle")

    def __init__(self, driver: Driver, device: BareDevice, end: Callable[[Handle], None]) -> None:
        """For other rooms, not for users: `end` is called with the handle, which it destroys."""
        self.device: Device = device
        self._driver = driver
        self._end = end
        self._kept: list[_Kept] = []
        self.handle: Handle = driver.create_stream(device)

    def synchronize(self) -> None:
        """Wait until everything on the stream is done.

        Raises
        ------
        DeviceError
            When an operation failed; for a kernel's failure it also has the type that a call would
            raise.
        """
        kept = self.kept
        try:
            self._driver.synchronize_stream(self.device, self.handle)
        except BaseException:
            self.forget_done()
            raise
        self.forget(kept)

    def query(self) -> bool:
        """Whether everything on the stream is done."""
        return self._driver.query_stream(self.device, self.handle)

    def record(self, event: Event | None = None) -> Event:
        """Make this place of the stream the event's, or a new event's; returns the event."""
        recorded = Event(self._driver, self.device) if event is None else event
        recorded.record(self)
        return recorded

    def wait(self, event: Event) -> None:
        """Let later operations of the stream wait until an event has happened.

        Raises
        ------
        TypeError
            When it is no event.
        """
        if not isinstance(event, Event):
            raise TypeError(f"{self}: expected an event to wait for, got {type(event).__name__}")
        if event.device.device_type != self.device.device_type:
            event.synchronize()  # neither device knows the other's events
        elif event.is_recorded:
            self._driver.stream_wait_event(self.device, self.handle, event.handle, event.device)

    def add_callback(self, callback: Callable[[], None]) -> None:
        """Call a function, in a thread of the device's, when the stream has done all earlier
        operations.

        Raises
        ------
        TypeError
            When it can't be called.
        """
        if not callable(callback):
            raise TypeError(f"{self}: expected a function, got {type(callback).__name__}")
        self._driver.stream_add_callback(self.device, self.handle, callback)

    def keep(self, *objects: object) -> None:
        """Keep objects until the present operations of the stream are done."""
        if not self._driver.has_streams:
            return
        kept = _Kept(objects)
        self._kept.append(kept)
        try:
            kept.until = self.record()
        except BaseException:
            self.synchronize()
            raise
        if len(self._kept) > _MOST_KEPT:
            self.forget_done()
            _forget_left()

    @property
    def kept(self) -> tuple[_Kept, ...]:
        """The objects that the stream keeps now."""
        return tuple(self._kept)

    def forget(self, kept: Iterable[_Kept]) -> None:
        """Drop kept objects, since the stream was waited for."""
        for each in kept:
            with contextlib.suppress(ValueError):  # another thread drops them
                self._kept.remove(each)

    def forget_done(self) -> None:
        """Drop the objects of finished operations."""
        self.forget(itertools.takewhile(lambda each: each.is_done, self.kept))

    def __enter__(self) -> Stream:
        _thread.streams.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _thread.streams.remove(self)

    def __repr__(self) -> str:
        return f"<Stream of {self.device}>"

    def __del__(self) -> None:
        if hasattr(self, "handle") and not sys.is_finalizing():
            _left.extend(self._kept)
            try:
                self._end(self.handle)
            finally:
                _forget_left()


# The objects kept by destroyed streams: not every device waits until a destroyed stream is done.
_left: list[_Kept] = []


def _forget_left() -> None:
    for each in tuple(_left):
        if each.is_done:
            with contextlib.suppress(ValueError):
                _left.remove(each)


@final
class Event:
    """A place in a stream: ``stream.record()``, or ``device.create_event()`` to record later."""

    __slots__ = ("__weakref__", "_driver", "device", "handle", "is_recorded")

    def __init__(self, driver: Driver, device: BareDevice) -> None:
        self.device: Device = device
        self._driver = driver
        self.is_recorded = False
        self.handle: Handle = driver.create_event(device)

    def record(self, stream: Stream) -> None:
        """Set the event's place to the present end of a stream.

        Raises
        ------
        ValueError
            When the stream is another device's.
        """
        if stream.device != self.device:
            raise ValueError(f"{self}: expected a stream of {self.device}, got {stream}")
        self.record_handle(stream.handle)

    def record_handle(self, stream: Handle) -> None:
        """As :meth:`record`, for the handle of a stream; for other rooms, not for users."""
        self._driver.record_event(self.device, stream, self.handle)
        self.is_recorded = True

    def query(self) -> bool:
        """Whether the event has happened. An event that was never recorded counts as happened."""
        return not self.is_recorded or self._driver.query_event(self.device, self.handle)

    def synchronize(self) -> None:
        """Wait until it has happened.

        Raises
        ------
        DeviceError
            When an operation before it on its stream failed.
        """
        if self.is_recorded:
            self._driver.synchronize_event(self.device, self.handle)

    def __repr__(self) -> str:
        return f"<Event of {self.device}>"

    def __del__(self) -> None:
        if hasattr(self, "handle") and not sys.is_finalizing():
            self._driver.destroy_event(self.device, self.handle)


def stream_of(device: BareDevice, stream: Any, what: str) -> Stream:
    """`stream`, which has to belong to the device.

    Raises
    ------
    TypeError, ValueError
        When it is no stream, or belongs to another device.
    """
    if not isinstance(stream, Stream):
        kind = type(stream).__name__
        raise TypeError(f"{what}: expected a stream of {device}, got {kind}")
    if stream.device != device:
        raise ValueError(f"{what}: expected a stream of {device}, got one of {stream.device}")
    return stream
