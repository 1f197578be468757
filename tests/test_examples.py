"""Each example runs alone, from any directory, and checks its own result."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.processes import run_python

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
LADDER = ROOT / "examples" / "schedules" / "09_gemm_ladder.py"  # slow unless it is given a size

RUN = """
import runpy, sys
sys.argv = {argv!r}
sys.path.insert(0, {folder!r})
runpy.run_path({path!r}, run_name="__main__")
"""
HIDE_TORCH = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
sys.modules["torch"] = None
"""


def run_example(path: Path, cwd: Path, *arguments: str, torch: bool = True) -> str:
    """What an example prints; it must not complain about anything."""
    run = RUN.format(argv=[str(path), *arguments], folder=str(path.parent), path=str(path))
    imported = ["torch"] if torch and "import torch" in path.read_text(encoding="utf-8") else []
    done = run_python(run if torch else HIDE_TORCH + run, *imported, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("path", sorted({*EXAMPLES} - {LADDER}), ids=lambda path: path.stem)
def test_runs_alone(path: Path, tmp_path: Path) -> None:
    assert run_example(path, tmp_path)


@pytest.mark.parametrize("size", ["96", "100"])
def test_the_ladder_runs_at_any_size(size: str, tmp_path: Path) -> None:
    printed = run_example(LADDER, tmp_path, size)
    assert all(f"\n{rung} " in printed for rung in ("baseline", "write_cache", "parallel"))


# Those with a function check_torch that is called where torch is found, and nowhere else.
ALIKE = [
    "operators/attention",
    "operators/int8_linear",
    "operators/masked_softmax",
    "operators/rms_norm",
    "operators/rotary_embedding",
    "operators/swiglu",
]


@pytest.mark.parametrize(
    "name",
    [
        "quickstart",
        "fused_operator",
        "literature_matmul",
        "one_tensor_seven_views",
        "operators/embedding_bag",
        "operators/depthwise_convolution",
        "operators/sparse_product",
        *ALIKE[3:4],
        *(pytest.param(name, marks=pytest.mark.wide) for name in ALIKE[:3] + ALIKE[4:]),
    ],
)
def test_runs_without_torch(name: str, tmp_path: Path) -> None:
    printed = run_example(ROOT / "examples" / f"{name}.py", tmp_path, torch=False)
    assert "torch: not installed, left out" in printed


@pytest.mark.parametrize("name", ALIKE)
def test_asks_for_torch_before_it_is_used(name: str) -> None:
    tree = ast.parse((ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8"))
    functions = [each for each in tree.body if isinstance(each, ast.FunctionDef)]
    (checks,) = (each for each in functions if each.name == "check_torch")
    assert "torch" in ast.unparse(checks)
    others = "\n".join(ast.unparse(each) for each in tree.body if each is not checks)
    call = "check_torch() if importlib.util.find_spec('torch') else 'not installed, left out'"
    assert call in others
    assert not re.search(r"import torch|torch\.|check_torch", others.replace(call, ""))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_says_how_to_run_it(path: Path) -> None:
    assert f"python {path.relative_to(ROOT).as_posix()}" in path.read_text()
