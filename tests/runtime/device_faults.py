"""What comes of the faults that a simulated device is told to have."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import NamedTuple

from minitvm.runtime.errors import DeviceError


class Outcome(NamedTuple):
    """What was raised, also where nobody could catch it."""

    raised: list[BaseException]


@contextlib.contextmanager
def outcome() -> Iterator[Outcome]:
    raised: list[BaseException] = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda found: raised.append(found.exc_value or KeyError())
    try:
        yield Outcome(raised)
    except DeviceError as error:
        raised.append(error.with_traceback(None))
    finally:
        sys.unraisablehook = before


def check(found: Outcome) -> None:
    """Nothing but faults was raised."""
    for each in found.raised:
        assert "injected failure" in str(each)
    found.raised.clear()  # they hold what was at hand
