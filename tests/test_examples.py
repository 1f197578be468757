"""Each example runs alone, from any directory, and checks its own result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
LADDER = ROOT / "examples" / "schedules" / "09_gemm_ladder.py"  # slow unless it is given a size


def run_example(path: Path, cwd: Path, *arguments: str) -> str:
    """What an example prints; it must not complain about anything."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(path), *arguments], cwd=cwd, env=env, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("path", sorted({*EXAMPLES} - {LADDER}), ids=lambda path: path.stem)
def test_runs_alone(path: Path, tmp_path: Path) -> None:
    assert run_example(path, tmp_path)


@pytest.mark.parametrize("size", ["96", "100"])
def test_the_ladder_runs_at_any_size(size: str, tmp_path: Path) -> None:
    printed = run_example(LADDER, tmp_path, size)
    assert all(f"\n{rung} " in printed for rung in ("baseline", "write_cache", "parallel"))


HIDE_TORCH = """
import runpy, sys
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
sys.modules["torch"] = None
runpy.run_path({path!r}, run_name="__main__")
"""


@pytest.mark.parametrize(
    "name",
    [
        "quickstart",
        "fused_operator",
        "literature_matmul",
        "one_tensor_seven_views",
        "operators/attention",
        "operators/int8_linear",
        "operators/masked_softmax",
        "operators/rms_norm",
        "operators/rotary_embedding",
        "operators/swiglu",
        "operators/embedding_bag",
        "operators/depthwise_convolution",
        "operators/sparse_product",
    ],
)
def test_runs_without_torch(name: str, tmp_path: Path) -> None:
    script = tmp_path / "without_torch.py"
    script.write_text(HIDE_TORCH.format(path=str(ROOT / "examples" / f"{name}.py")))
    printed = run_example(script, tmp_path)
    assert "torch: not installed, left out" in printed


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_says_how_to_run_it(path: Path) -> None:
    assert f"python {path.relative_to(ROOT).as_posix()}" in path.read_text()
