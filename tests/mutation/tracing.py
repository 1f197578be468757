"""A plugin of pytest that notes which lines each test executes, for ``python -m tests.mutation``.

Loaded with ``-p tests.mutation.tracing``; ``MUTATION_TRACE`` names the folder that it writes.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

from tests.mutation.sources import ROOMS, ROOT

FOLDER = Path(os.environ["MUTATION_TRACE"])
_coverage = coverage.Coverage(
    data_file=str(FOLDER / "lines.sqlite"),
    config_file=False,
    include=[str(ROOT / folder / "*") for folder in ROOMS.values()],
)
_coverage.start()  # before any test is imported, and with it minitvm
_spent: dict[str, float] = {}
_failed: set[str] = set()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Notes the lines under the test's name, and the processor's time that it took."""
    _coverage.switch_context(item.nodeid)
    start = time.process_time()
    yield
    _spent[item.nodeid] = time.process_time() - start
    _coverage.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What doesn't pass says nothing of a change."""
    if not report.passed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Writes both files of the folder."""
    _coverage.stop()
    with warnings.catch_warnings():  # one that says that a file of tests runs none of the lines
        warnings.simplefilter("ignore", coverage.exceptions.CoverageWarning)
        _coverage.save()
    passed = {test: spent for test, spent in _spent.items() if test not in _failed}
    (FOLDER / "tests.json").write_text(json.dumps(passed), encoding="utf-8")
