"""Streams of a simulated device: each is a queue of operations with a thread that runs them.

A failed operation leaves its stream failed. Operations behind it are not run, and events behind it
fail, as does a stream that waits for one of them. A waiting caller is told of the failure, and then
new operations on the stream run again::

    copy A    fails
    kernel B  not run
    event E   happens, failed
              synchronize_event(E) raises: copy A failed, 1 operation behind it was not run
    kernel C  runs
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import final

from minitvm.runtime.device_api.ext_memory import Allocation
from minitvm.runtime.device_type import BareDevice
from minitvm.runtime.errors import DeviceError, device_failure
from minitvm.runtime.record import record


@final
class Failure:
    """A failure on a stream, and the number of operations behind it that were not run."""

    def __init__(self, what: str, error: BaseException) -> None:
        self.what = what
        self.error = error
        self.skipped = 0
        self.is_told = False

    def tell(self) -> None:
        """Notes that a waiting caller got this failure, and so the failure that caused it."""
        self.is_told = True
        if isinstance(self.error, _Behind):
            self.error.failure.tell()

    def __str__(self) -> str:
        if not self.skipped:
            return self.what
        behind = "operations behind it were" if self.skipped > 1 else "operation behind it was"
        return f"{self.what}; {self.skipped} {behind} not run"


class _Behind(DeviceError):
    """The event that a stream waited for is behind a failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"the event is behind a failure: {failure}")
        self.failure = failure


@final
@record(frozen=False, eq=False)
class Untold:
    """A failure of the items from `first` to `last` that no caller has got yet."""

    failure: Failure
    first: int
    last: int


@final
class Operation:
    """Work on a stream, with the allocations that it needs while it waits and runs."""

    __slots__ = ("action", "is_copy", "is_over", "name", "used")

    def __init__(self, name: str, action: Callable[[], None], *, is_copy: bool = False) -> None:
        self.name = name
        self.action = action
        self.is_copy = is_copy
        self.is_over = False
        self.used: list[Allocation] = []

    def use(self, allocation: Allocation | None) -> None:
        """Notes an allocation that nobody may take back until the operation is over."""
        if allocation is not None:
            self.used.append(allocation)
            allocation.users.append(self.name)

    def release(self) -> Callable[[], None]:
        """Releases its allocations. The caller drops the work, and the objects that it keeps, at a
        point where users' objects may be finalised."""
        for each in self.used:
            if self.name in each.users:  # a forked child has forgotten its parent's streams
                each.users.remove(self.name)
        self.used = []
        self.is_over = True
        action, self.action = self.action, _nothing
        return action


def _nothing() -> None:
    """The work of a finished operation: nothing."""


@final
class Point:
    """A place in a stream: the number of items before it. It is done when they are."""

    __slots__ = ("failure", "is_done", "number", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.number = stream.queued + 1
        self.is_done = False
        self.failure: Failure | None = None


@final
@record(eq=False)
class Recovery:
    """The place from which on a stream isn't failed any longer."""

    failure: Failure


Item = Operation | Point | Recovery


class Worker(threading.Thread):
    """The thread of a stream."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(name=f"minitvm {stream.name}", daemon=True)
        self._stream = stream

    def run(self) -> None:
        while self._stream.step(self):
            pass


def refuse_on_worker(where: object) -> None:
    """Raise an error on a stream's thread: an operation that waits for streams could wait for
    itself."""
    if isinstance(threading.current_thread(), Worker):
        raise DeviceError(
            f"{where}: expected a thread of the host, got one of a stream: kernels and callbacks "
            "may put something on a stream, but not wait for one"
        )


@final
class Stream:
    """An order of operations. Callers hold the lock, except for the stream's own thread."""

    def __init__(self, lock: threading.RLock, device: BareDevice, handle: int) -> None:
        self.device = device
        self.handle = handle
        self.name = f"stream {handle} of {device}" if handle else f"default stream of {device}"
        self.queued = 0  # items so far
        self.finished = 0
        self.untold: list[Untold] = []
        self._poison: Failure | None = None
        self._is_closed = False
        self._is_stopped = False
        self._is_retired = False
        self._worker: Worker | None = None
        self.renew(lock)

    def renew(self, lock: threading.RLock) -> None:
        """Give the stream another lock, and no thread, as a forked child needs it."""
        self._items: deque[Item] = deque()
        self._changed = threading.Condition(lock)
        self._worker = None

    @property
    def lock(self) -> AbstractContextManager[object]:
        return self._changed

    @property
    def is_working(self) -> bool:
        """Whether its thread lives."""
        return self._worker is not None

    @property
    def is_clear(self) -> bool:
        """Whether nothing is pending, and no failure is untold."""
        return self.finished == self.queued and not self.untold

    # ---- Operations ------------------------------------------------------------------------------

    def put(self, item: Item) -> None:
        """Put an item behind the others."""
        if self._is_closed:
            raise DeviceError(f"{self.name}: expected one that exists, got one that was destroyed")
        if self._is_stopped:  # no thread can be started when the interpreter ends
            self.queued += 1
            self._finish(item, self._run(item))
            return
        if self._worker is None:
            self._start()
        self._append(item)

    def _append(self, item: Item) -> None:
        self._items.append(item)
        self.queued += 1
        self._changed.notify_all()

    def _start(self) -> None:
        self._is_retired = False
        self._worker = Worker(self)
        try:
            self._worker.start()
        except BaseException as error:
            self._worker = None
            if isinstance(error, RuntimeError):
                raise DeviceError(f"{self.name}: no thread could be started: {error}") from error
            raise

    # ---- The thread ------------------------------------------------------------------------------

    def step(self, worker: Worker) -> bool:
        """Run one item, on the stream's thread; returns whether there may be more."""
        with self.lock:
            while self._worker is worker and not self._items and not self._is_retired:
                self._changed.wait()
            if self._worker is not worker:
                return False
            if not self._items:
                self._worker = None
                self._changed.notify_all()
                return False
            item = self._items[0]
        error = self._run(item)
        with self.lock:
            if self._worker is not worker:  # in a child that the item forked
                return False
            self._items.popleft()
            self._finish(item, error)
            self._changed.notify_all()
        error = None  # whose traceback holds this frame
        return True

    def _run(self, item: Item) -> BaseException | None:
        """Run an operation, unless the stream has failed; returns the exception that it raised."""
        if not isinstance(item, Operation) or self._poison is not None:
            return None
        try:
            item.action()
        except BaseException as error:
            return error
        return None

    def _finish(self, item: Item, error: BaseException | None) -> None:
        self.finished += 1
        match item:
            case Point():
                item.failure = self._poison
                item.is_done = True
            case Recovery():
                if self._poison is item.failure:
                    self._poison = None
            case Operation():
                item.release()
                if self._poison is not None:
                    self._poison.skipped += 1
                    self._strike(self._poison)
                elif error is not None:
                    self._poison = self._failure(item.name, error)
                    self._strike(self._poison)

    def _failure(self, name: str, error: BaseException) -> Failure:
        on = f"stream {self.handle}" if self.handle else "the default stream"
        said = f"{error}" if isinstance(error, DeviceError) else f"{type(error).__name__}: {error}"
        return Failure(f"{self.device}: {name} on {on} failed: {said}", error)

    def _strike(self, failure: Failure) -> None:
        if not self.untold or self.untold[-1].failure is not failure:
            self.untold.append(Untold(failure, self.finished, self.finished))
        self.untold[-1].last = self.finished

    # ---- Waiting, and telling --------------------------------------------------------------------

    def wait(self, number: int) -> None:
        """Wait until a number of items are finished."""
        while self.finished < number:
            self._changed.wait()

    def wait_for(self, point: Point) -> None:
        """Wait, on this stream's thread, until a place of another stream is done; fail if that
        stream has failed."""
        with self.lock:
            while not (point.is_done or self._is_stopped):
                point.stream._changed.wait()
            if not point.is_done:
                raise DeviceError("the interpreter ends")
            if point.failure is not None:
                raise _Behind(point.failure)

    def rest(self, seconds: float) -> None:
        """Wait for a time, or until the interpreter ends."""
        until = time.monotonic() + seconds
        with self.lock:
            while not self._is_stopped and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)

    def tell(self, number: int) -> list[Failure]:
        """The failures up to an item, which count as told from now on; later items run."""
        found = [each for each in self.untold if each.first <= number]
        for each in found:
            each.first = number + 1
            self._recover(each.failure)
        self.untold = [each for each in self.untold if each.first <= each.last]
        return [each.failure for each in found]

    def tell_of(self, point: Point) -> list[Failure]:
        """The failure before a place, however often it is asked for."""
        told = self.tell(point.number)
        if point.failure is None:
            return told
        self._recover(point.failure)
        return [point.failure, *told]

    def _recover(self, failure: Failure) -> None:
        if self._poison is not failure:
            return
        if self._items:
            self._append(Recovery(failure))
        else:
            self._poison = None

    # ---- The end ---------------------------------------------------------------------------------

    def retire(self) -> Worker | None:
        """Let the thread end when it has run all items; returns the thread."""
        self._is_retired = True
        self._changed.notify_all()
        return self._worker

    def close(self) -> None:
        """Accept no more items, and retire."""
        self._is_closed = True
        self.retire()

    def outlive(self, worker: Worker | None) -> None:
        """Wait until a thread of the stream has run all items."""
        while worker is not None and self._worker is worker:
            self._changed.wait()

    def drop(self, reason: str) -> list[Callable[[], None]]:
        """Forget the items that are not yet done. A wait for them fails with `reason`; the end of
        the stream doesn't report them. The caller gets their work."""
        dropped = []
        items, self._items = self._items, deque()
        failure = Failure(f"{self.name}: {reason}", DeviceError(reason))
        failure.is_told = True
        self.finished = self.queued
        for item in items:
            match item:
                case Operation():
                    dropped.append(item.release())
                    self._strike(failure)
                case Point():
                    item.failure = failure
                    item.is_done = True
                case Recovery():
                    pass
        self._poison = None
        return dropped

    def stop(self) -> bool:
        """Drop waiting items, as the interpreter ends; returns whether a copy still runs."""
        running = self._items.popleft() if self._worker is not None and self._items else None
        self._is_stopped = self._is_retired = True
        self.drop("it was not done when the interpreter ended")
        if running is not None:
            self._items.append(running)
            self.finished -= 1
        self._changed.notify_all()
        return isinstance(running, Operation) and running.is_copy


def raise_failures(failures: Iterable[Failure]) -> None:
    """Raise the failures, if there are any."""
    found = list(dict.fromkeys(failures))
    if not found:
        return
    for each in found:
        each.tell()
    # Without a variable, since the error would refer to itself through this frame.
    raise device_failure(found[0].error, "; ".join(map(str, found)))
