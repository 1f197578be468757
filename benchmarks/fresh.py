"""Fresh Python processes, for what happens once in each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: str) -> tuple[str, str]:
    """The output and the error output of ``python arguments...`` in the repository's root.

    Modules come from their compiled files, as they do where a package is installed, even if the
    environment here forbids writing them: the first, uncounted round writes them.
    """
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=_ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"python {' '.join(arguments)}: {done.stderr}")
    return done.stdout, done.stderr
