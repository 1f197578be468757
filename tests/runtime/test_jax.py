"""JAX's arrays as arguments: jax_arrays.py, in a process where nothing forks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_arrays_of_jax() -> None:
    tests = Path(__file__).with_name("jax_arrays.py")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, str(tests)], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr
