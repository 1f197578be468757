"""A lock that a fork doesn't leave locked."""

from __future__ import annotations

import os
import threading
from typing import final


@final
class ForkLock:
    """A reentrant lock for a module's own state. A forked child gets a new one, since it lacks the
    thread that may hold the lock.

    >>> lock = ForkLock()
    >>> with lock, lock:
    ...     pass
    """

    def __init__(self) -> None:
        self.renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self._held = threading.RLock()

    def __enter__(self) -> None:
        self._held.acquire()

    def __exit__(self, *error: object) -> None:
        self._held.release()
