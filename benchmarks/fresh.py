"""Fresh Python processes, for what happens once in each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: str) -> tuple[str, str]:
    """The output and the error output of ``python arguments...`` in the repository's root."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"python {' '.join(arguments)}: {done.stderr}")
    return done.stdout, done.stderr
