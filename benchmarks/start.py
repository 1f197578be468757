"""The time that importing takes, by Python's own account, each import in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import fresh, peers
from benchmarks.measure import OURS, Row, Settings, in_turn

_GIVEN = "numpy, llvmlite.binding"


def rows(settings: Settings) -> Iterator[Row]:
    """What minitvm adds to the libraries it needs, and everything together."""
    yield Row(
        "import minitvm beyond numpy and llvmlite.binding",
        "after importing these two, fresh process, python -X importtime",
        in_turn({OURS: lambda: imported("minitvm", given=_GIVEN)}, settings.processes),
        target=0.10,
    )
    contenders = {OURS: lambda: imported("minitvm")}
    for name in peers.PEERS:
        if peers.peer(name) is not None:
            contenders[name] = lambda name=name: imported(name)  # type: ignore[misc]  # a closure
    yield Row(
        "import minitvm altogether",
        "numpy and llvmlite included, fresh process, python -X importtime",
        in_turn(contenders, settings.processes),
        peers.missing(),
    )


def imported(name: str, given: str = "sys") -> float:
    """Seconds to import `name`, with everything that it imports, where `given` is imported."""
    _, log = fresh.run("-X", "importtime", "-c", f"import {given}; import {name}")
    return cumulative(log, name)


def cumulative(log: str, name: str) -> float:
    """The seconds that ``-X importtime`` gives for `name` and what it imported.

    >>> cumulative("import time:       100 |      25000 | numpy\\n", "numpy")
    0.025
    """
    for line in reversed(log.splitlines()):
        columns = line.removeprefix("import time:").split("|")
        if len(columns) == 3 and columns[2].strip() == name:
            return int(columns[1]) / 1e6
    raise ValueError(f"importtime: expected a line for {name!r}, found none")
