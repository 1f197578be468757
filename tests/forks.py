"""Forked children for tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


def assert_in_child(check: Callable[[], bool]) -> None:
    """`check` holds in a forked child."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
