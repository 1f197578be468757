"""Processes of their own for tests."""

from __future__ import annotations

import os
import subprocess
import sys


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process that ran `code`, which finds what this one imports."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


def output_of(code: str, **environment: str) -> str:
    """The output of a process that has to end well, and soon."""
    done = run_python(code, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
