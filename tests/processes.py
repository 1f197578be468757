"""Processes of their own for tests.

They are forked from a process that has imported what is long to import and done nothing else::

    pytest --- server: import numpy, minitvm --- fork: a program
                                             --- fork: a program

A program finds a process as it is after these imports, and ends as any process of Python ends.
Tests of an import itself, or of Python's options, start a process with ``subprocess``.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
_PATIENCE = 300  # seconds
# What a library imports when it is first used: half a second of each process that compares tensors.
_LATER = {"torch": "torch.distributed.tensor"}

_SERVER = """
import importlib, json, os, sys

def forked():
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return json.loads(line)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)

def program():
    sys.path[:0] = {path!r}
    for module in {modules!r}:
        importlib.import_module(module)
    code, environment, folder, *files = forked()
    flags = os.O_RDONLY, os.O_WRONLY, os.O_WRONLY
    for place, (file, flag) in enumerate(zip(files, flags)):
        opened = os.open(file, flag)
        os.dup2(opened, place)
        os.close(opened)
    sys.stdin = open(0, closefd=False)
    os.chdir(folder)
    for name in os.environ.keys() - environment:
        del os.environ[name]
    os.environ.update(environment)
    return code

exec(program())
"""


@cache
def _server(modules: tuple[str, ...]) -> subprocess.Popen[str]:
    """The process that has imported `modules`, in a group of its own."""
    path = [str(ROOT), *sys.path]
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER.format(path=path, modules=modules)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(server.communicate)
    return server


def run_python(
    code: str, *imported: str, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A process that ran `code` after numpy, minitvm and the modules `imported` had been imported.
    It finds what this process imports."""
    server = _server(("numpy", "minitvm", *imported, *(_LATER[x] for x in imported if x in _LATER)))
    assert server.stdin is not None and server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        for each in (out, err):
            each.touch()
        request = [
            code, {**os.environ, **(environment or {})}, str(cwd), os.devnull, str(out), str(err)
        ]  # fmt: skip
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        if not select.select([server.stdout], [], [], _PATIENCE)[0]:
            os.killpg(server.pid, signal.SIGKILL)
            _server.cache_clear()
            raise subprocess.TimeoutExpired(code, _PATIENCE)
        status = int(server.stdout.readline())
        return subprocess.CompletedProcess(code, status, out.read_text(), err.read_text())


def output_of(code: str, **environment: str) -> str:
    """The output of a process that has to end well, and soon."""
    done = run_python(code, environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
