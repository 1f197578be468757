"""Golden texts: what a test prints, kept in ``tests/golden/<test module>/<test>.txt``; a cache of
machine code of the tests' own; an alarm for strategies of the auto-scheduler that fail, which
nothing but the speed of a program shows; random tests that draw the same in every run, but for
those marked wide; and what keeps the run short: of the cases of some tests a part that covers them,
LLVM compiles a text once, garbage is searched for among what tests make, neighbouring tests run in
one process, and other libraries compute on one thread."""

from __future__ import annotations

import gc
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import covering

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden texts instead of comparing"
    )
    wide = parser.getgroup("whole programs", "of pytest -m wide tests/whole_programs")
    wide.addoption("--programs", type=int, default=10_000, help="how many programs")
    wide.addoption("--seed", type=int, default=1, help="the seed of the first")
    wide.addoption("--jobs", type=int, default=1, help="processes at a time")


class DroppedStrategies(logging.Handler):
    """Collects what the auto-scheduler says of strategies that failed, where a test expects it, and
    fails elsewhere."""

    expected: list[str] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        assert self.expected is not None, record.getMessage()
        self.expected.append(record.getMessage())


DROPPED = DroppedStrategies(logging.INFO)


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is imported: no test finds what another session has cached, or adds to it;
    and what an ordinary run draws depends on the tests alone, so that a failure stays until it is
    mended. Sweeps draw anew in each run. No draw has a deadline, which a busy machine misses. The
    libraries beside which results are compared compute on one thread: their threads would spin on
    the cores of the other processes."""
    if settings.get_current_profile_name() == "default":
        is_ordinary = config.option.markexpr != "wide"
        settings.register_profile("minitvm", derandomize=is_ordinary, deadline=None)
        settings.load_profile("minitvm")
    logger = logging.getLogger("minitvm.auto_scheduler")
    logger.setLevel(logging.INFO)
    logger.addHandler(DROPPED)
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    if not hasattr(config, "workerinput"):  # the processes of xdist share that of the first
        directory = tempfile.TemporaryDirectory(prefix="minitvm-cache-")
        os.environ["MINITVM_CACHE_DIR"] = directory.name
        config.add_cleanup(directory.cleanup)
    from tests import kept_objects  # with numpy, which reads the variables above

    kept_objects.install(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before those marked wide are left out."""
    covering.mark_others(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of several processes each takes a run of neighbouring tests, which share what they build,
    and the first that is done takes from another's end."""
    if config.option.dist != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


@pytest.fixture(scope="module", autouse=True)
def _settled_heap() -> None:
    """What lives before a module's tests begin, such as torch and what earlier tests have left in
    caches, is left out of every search for garbage: many tests ask for hundreds."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def dropped() -> Iterator[list[str]]:
    """The strategies that fail in a test, and why."""
    DROPPED.expected = []
    yield DROPPED.expected
    DROPPED.expected = None


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Compares a text with the test's golden file; ``--update-golden`` writes it."""
    path = GOLDEN / request.path.stem / f"{request.node.name}.txt"

    def check(text: str) -> None:
        text = text.rstrip("\n") + "\n"
        assert text.count("\n") <= 25, "a golden text is read by people: keep it short"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden text at {path}: run pytest --update-golden, read the diff"
        assert text == path.read_text(encoding="utf-8")

    return check
