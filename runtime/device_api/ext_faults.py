"""The faults injected into a simulated device, and the record of its calls."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, final

from minitvm.runtime.device_api.interface import OPTIONAL, REQUIRED
from minitvm.runtime.errors import DeviceError, DeviceMemoryError

_FUNCTIONS = frozenset((*OPTIONAL, *REQUIRED))
_COPIES = (
    "memory_copy_h2d",
    "memory_copy_d2h",
    "memory_copy_d2d",
    "memory_copy_p2p",
)
ON_STREAMS = frozenset(
    (*(f"async_{each}" for each in _COPIES), "launch", "stream_add_callback", "stream_wait_event")
)
"""The functions that put something on a stream, where it can fail."""

Error = BaseException | type[BaseException]


class Fate(NamedTuple):
    """The outcome that faults give a call: seconds that it takes, and an error, if any."""

    seconds: float = 0.0
    error: Error | None = None
    is_on_stream: bool = False


_NONE = Fate()


@final
class Fault:
    """A fault of a device, until it is removed; as a context manager, until the end of the block.

    `calls` is the number of calls that it has seen, `hits` the number of those that it struck.
    """

    def __init__(
        self, faults: Faults, function: str | None, after: int, count: int | None, fate: Fate
    ) -> None:
        self._faults = faults
        self._function = function
        self._after = after
        self._count = count
        self._fate = fate
        self.calls = 0
        self.hits = 0

    def remove(self) -> None:
        """Removes the fault from the device."""
        self._faults.remove(self)

    def meet(self, function: str) -> Fate:
        """The fate of a call."""
        if self._function not in (None, function):
            return _NONE
        if self._fate.is_on_stream and function not in ON_STREAMS:
            return _NONE
        self.calls += 1
        struck = self.calls - self._after
        if struck <= 0 or (self._count is not None and struck > self._count):
            return _NONE
        self.hits += 1
        return self._fate

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


@final
class Faults:
    """The faults of a device, and its calls. The caller holds the lock."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._faults: tuple[Fault, ...] = ()
        self._records: tuple[list[str], ...] = ()

    def add(
        self,
        function: str | None,
        after: int,
        count: int | None,
        error: Error | None,
        delay: float,
        on_stream: bool,
    ) -> Fault:
        if function is not None and function not in _FUNCTIONS:
            raise ValueError(
                f"inject: expected a function of DeviceInterface, or None for all, got {function!r}"
            )
        if on_stream and function is not None and function not in ON_STREAMS:
            listed = ", ".join(sorted(ON_STREAMS))
            raise ValueError(
                f"inject: expected a function that puts something on a stream ({listed}), got "
                f"{function!r}"
            )
        if after < 0 or (count is not None and count < 1) or delay < 0:
            raise ValueError(
                f"inject: expected after >= 0, count >= 1 and delay >= 0, got {after}, {count} and "
                f"{delay}"
            )
        if error is None and not delay:
            is_allocation = function is not None and function.endswith("_allocate")
            error = DeviceMemoryError if is_allocation else DeviceError
        fault = Fault(self, function, after, count, Fate(delay, error, on_stream))
        self._faults += (fault,)
        return fault

    def remove(self, fault: Fault) -> None:
        self._faults = tuple(each for each in self._faults if each is not fault)

    def meet(self, function: str) -> Fate:
        """Count a call; returns its fate."""
        self.calls[function] += 1
        for record in self._records:
            record.append(function)
        if not self._faults:
            return _NONE
        fates = [fault.meet(function) for fault in self._faults]
        failing = [each for each in fates if each.error is not None]
        seconds = sum(each.seconds for each in fates)
        return failing[0]._replace(seconds=seconds) if failing else Fate(seconds)

    @contextlib.contextmanager
    def record(self) -> Iterator[list[str]]:
        calls: list[str] = []
        self._records += (calls,)
        try:
            yield calls
        finally:
            self._records = tuple(each for each in self._records if each is not calls)


def injected(error: Error, text: str) -> BaseException:
    """The error to raise: the given one, or a new error of the given class with a text."""
    return error if isinstance(error, BaseException) else error(text)
