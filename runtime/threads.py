"""The one thread pool of the process, for the parallel loops of compiled code.

A *region* is a parallel loop at work: a function of compiled code, called once for each of its
tasks. One region at a time has the workers. A region that finds them taken, by another thread's
region or by the region around it, runs on its own thread, as one task. The thread that starts a
region takes part in it, and then waits for tasks that a worker has begun, never for a worker that
is late. Nobody needs the GIL. Workers keep off the CPU of the thread that wakes them, and may run
on all others that they inherited.

A region has *seats*: one for the thread that starts it, the others for the first workers that come.
The tasks are distributed among the seats beforehand, in queues. A thread takes the tasks of its own
queue one by one, and then the last ones of the others' queues: so slow threads run fewer tasks, and
neighbouring tasks mostly stay on one thread.

Workers spin for a while before they sleep: waking one costs about 50 us, so they are woken only
where the work is known, or found, to take long enough. They are threads of the C
library with all signals blocked, made when the first region wants them; Python doesn't know these
threads, and so doesn't wait for them when it exits. A forked child finds the pool's page empty: it
has no workers, and makes its own when it needs them.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import final, overload

import llvmlite.binding as llvm

from minitvm.runtime.native import NativeCode, Once
from minitvm.runtime.record import record
from minitvm.runtime.threads_text import MACHINES, MOST_THREADS, pool_text

TASKS = 16  # tasks of a loop for each thread: with more, the loop doesn't end earlier

_STATUS = ctypes.CFUNCTYPE(ctypes.c_int)


@final
@record()
class _Pool:
    """The machine code of the pool, started."""

    parallel_for: int
    barrier: int
    wanted: ctypes.c_int64
    own_threads: Callable[[], int]
    set_own_threads: Callable[[int], None]


# Without a lock, which a fork could leave locked: if two threads race, both use the first entry.
_asked: dict[str, int] = {}


@overload
def num_threads() -> int: ...
@overload
def num_threads(number: int) -> AbstractContextManager[None]: ...
def num_threads(number: int | None = None) -> int | AbstractContextManager[None]:
    """The number of threads that a parallel loop may use, the calling one included; or a ``with``
    block in which the loops that this thread starts use `number`.

    The number is that of the innermost such block; else of :func:`set_num_threads`; else of
    ``MINITVM_NUM_THREADS`` when the pool was first asked for; else the CPUs that the process may
    run on, by its affinity mask and its cgroup's quota.

    Raises
    ------
    ValueError
        When `number` is less than 1, or ``MINITVM_NUM_THREADS`` is not a number of threads.

    >>> with num_threads(1):
    ...     num_threads()
    1
    """
    if number is not None:
        return _in_this_thread(_checked("num_threads", number))
    if _pool.is_made:
        pool = _pool()
        return pool.own_threads() or int(pool.wanted.value)
    if "threads" not in _asked:
        _asked.setdefault("threads", _threads_at_start())
    return _asked["threads"]


@contextmanager
def _in_this_thread(number: int) -> Iterator[None]:
    pool = _pool()
    before = pool.own_threads()
    pool.set_own_threads(number)
    try:
        yield
    finally:
        pool.set_own_threads(before)


def set_num_threads(number: int) -> None:
    """Parallel loops that begin from now on use `number` threads, the calling one included.

    That holds for all threads of the process, but not in a block ``with num_threads(...)``.

    Raises
    ------
    ValueError
        When `number` is less than 1.
    """
    number = _checked("set_num_threads", number)
    _asked["threads"] = number
    if _pool.is_made:
        _pool().wanted.value = number


def _checked(function: str, number: int) -> int:
    """A requested number of threads, at most the useful one."""
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"{function}: expected a number of threads, got {type(number).__name__}")
    if number < 1:
        raise ValueError(f"{function}: expected at least 1 thread, got {number}")
    return min(number, _most_threads())


def parallel_for_address() -> int:
    """``int parallel_for(function, void* closure, int64_t limit, int64_t worth, int64_t each,
    int64_t* failure)``.

    Calls ``int function(void* closure, int64_t task, int64_t tasks, void* region, int64_t*
    failure)`` for each `task` from 0 to `tasks` - 1. The number of tasks is at most `limit`, at
    most `worth`, which the amount of work justifies, and at most `each` for every thread; it may be
    1. With an `each` of 1 all tasks run at the same time. Returns 0 or the status of the first task
    whose status isn't 0; the values that this task wrote to its `failure`, of
    :data:`MAX_FAILURE_VALUES` values, are then in `failure`.
    """
    return _pool().parallel_for


def barrier_address() -> int:
    """``int barrier(void* region, int64_t tasks)``: 0 when each task of a region has called it;
    otherwise a task has failed, and the caller has to end."""
    return _pool().barrier


@Once
def _pool() -> _Pool:
    threads = num_threads()  # first: it may raise an error
    code = NativeCode(pool_text(_machine()))
    wanted = ctypes.c_int64.from_address(code.data("wanted"))
    if _STATUS(code.function("start"))() != 0:
        raise MemoryError("threads: expected a key for data of a thread, found none left")
    if _most_threads() > 1 and _STATUS(code.function("open_pool"))() != 0:  # before Linux 4.14
        os.register_at_fork(after_in_child=ctypes.CFUNCTYPE(None)(code.function("forget")))
    wanted.value = threads
    return _Pool(
        code.function("parallel_for"),
        code.function("barrier"),
        wanted,
        ctypes.PYFUNCTYPE(ctypes.c_int64)(code.function("own_threads")),
        ctypes.PYFUNCTYPE(None, ctypes.c_int64)(code.function("set_own_threads")),
    )


def _most_threads() -> int:
    """The most threads that are of use; 1, the caller, on machines where we don't know how to
    wait."""
    known = sys.platform == "linux" and _machine() in MACHINES
    return MOST_THREADS if known else 1


def _machine() -> str:
    return str(llvm.get_process_triple()).split("-")[0]


def _threads_at_start() -> int:
    text = os.environ.get("MINITVM_NUM_THREADS")
    if text is None:
        return min(available_cpus(), _most_threads())
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(
            f"MINITVM_NUM_THREADS: expected a number of threads, at least 1, got {text!r}: set "
            "one, as in MINITVM_NUM_THREADS=4, or unset it for all CPUs of the process"
        )
    return min(int(text), _most_threads())


@lru_cache(maxsize=1)
def available_cpus() -> int:
    """The number of CPUs of the affinity mask, or the smaller number that the cgroup's quota
    allows; read once, when first asked for."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cpus = len(os.sched_getaffinity(0))
    quota = _cgroup_quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return max(1, cpus if quota is None else min(cpus, math.ceil(quota)))


def _cgroup_quota(membership: Path, mounted: Path) -> float | None:
    """The number of CPUs that the process's cgroup and its ancestors allow; None without a limit.

    Parameters
    ----------
    membership
        ``/proc/self/cgroup``: lines ``number:controllers:path``, of version 2 with no controllers.
    mounted
        ``/sys/fs/cgroup``.
    """
    found: list[float] = []
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            found += _quotas(mounted, controllers, folder)
    return min(found, default=None)


def _quotas(mounted: Path, controllers: str, group: Path) -> list[float]:
    """The limits of a group itself, each a quota divided by a period; "max" and -1 are no limit."""
    if controllers:
        folders = (mounted / controllers / group, mounted / "cpu" / group)
        pairs = [
            (_read(f / "cpu.cfs_quota_us") + " " + _read(f / "cpu.cfs_period_us")).split()
            for f in folders
        ]
    else:
        pairs = [_read(mounted / group / "cpu.max").split()]
    return [
        int(pair[0]) / int(pair[1])
        for pair in pairs
        if len(pair) == 2 and all(number.isdecimal() for number in pair)
    ]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
