"""Golden texts: what a test prints, kept in ``tests/golden/<test module>/<test>.txt``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden texts instead of comparing"
    )


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
