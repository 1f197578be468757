"""Every golden text belongs to a test."""

from pathlib import Path

TESTS = Path(__file__).parent


def test_no_golden_is_an_orphan() -> None:
    goldens = sorted((TESTS / "golden").rglob("*.txt"))
    assert [str(path.relative_to(TESTS)) for path in goldens if not _has_test(path)] == []


def _has_test(golden: Path) -> bool:
    """Whether a module of the folder's name defines a test of the file's (parameters aside)."""
    name = golden.stem.split("[")[0]
    modules = TESTS.rglob(f"{golden.parent.name}.py")
    return any(f"def {name}(golden" in module.read_text(encoding="utf-8") for module in modules)
