"""The cache of machine code: what is damaged or not ours is made again, and nothing ever raises."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import pwd
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import llvmlite
import llvmlite.binding as llvm
import pytest

from minitvm.runtime import code_cache, object_code
from minitvm.runtime.code_cache import cache_directory, entry_key, read_entry, write_entry
from minitvm.runtime.host import host
from minitvm.runtime.object_code import LoadedCode, native_object

KEY = entry_key("a key")
PAYLOAD = bytes(range(256)) * 20
IS_ROOT = os.geteuid() == 0
NOBODY = 65534

ANSWER = """
define i64 @minitvm_test_answer() {
  ret i64 42
}
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, still empty."""
    path = tmp_path / "cache"
    monkeypatch.setenv("MINITVM_CACHE_DIR", str(path))
    return path


def answer(object_code: bytes) -> int:
    """What the loaded code says."""
    code = LoadedCode(object_code, lambda name: pytest.fail(f"needs {name}"))
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("minitvm_test_answer"))())


def start_python(code: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def output(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return out


# All of the runtime's machine code, and that it works.
USE_IT = """
import ctypes, os
import numpy as np
import minitvm
from minitvm import runtime, te, tir
runtime.set_num_threads(2)
n = te.var("n")
X = te.placeholder((n, n), name="X")
Y = te.compute((n, n), lambda i, j: X[i, j] + 1.0, name="Y")
Z = te.compute((n, n), lambda i, j: Y[i, j] * 2.0, name="Z")
s = te.create_schedule(Z.op)
s[Z].parallel(s[Z].op.axis[0])
f = minitvm.build(s, [X, Z], name="f")
x = np.ones((500, 500), "float32")
z = minitvm.nd.empty((500, 500), "float32")
f(x, z)
assert (np.from_dlpack(z) == 4).all()
try:
    f(x[0], z)
except ValueError as error:
    print(error)
"""
SAID = "f: argument 0 'X': expected ndim == 2, got 1\n"
# One page of it, which is compiled.
USE_A_PAGE = """
import minitvm
from minitvm.runtime import object_code
parse, made = object_code.parse, []
object_code.parse = lambda text: made.append(text) or parse(text)
assert minitvm.nd.empty((2, 3), "float32").shape == (2, 3)
assert made
"""
COMPILE_NOTHING = """
from minitvm.runtime import object_code
object_code.parse = None
"""
# Children of one process, each with contents of its own, of another length than the others'.
WRITE_AND_READ = """
import os
from minitvm.runtime.code_cache import entry_key, read_entry, write_entry
key = entry_key("a key")
payloads = {bytes([i]) * (1000 * i) for i in range(1, 9)}
children = []
for payload in payloads:
    children.append(os.fork())
    if not children[-1]:
        good = True
        for _ in range(200):
            write_entry(key, payload)
            good &= read_entry(key) in payloads
        os._exit(0 if good else 1)
for child in children:
    print(os.waitpid(child, 0)[1])
"""


# -- Entries --------------------------------------------------------------------------------------


def test_an_entry_is_read_back(directory: Path) -> None:
    assert read_entry(KEY) is None
    write_entry(KEY, PAYLOAD)
    assert read_entry(KEY) == PAYLOAD
    assert read_entry(entry_key("another key")) is None
    write_entry(KEY, b"")
    assert read_entry(KEY) == b""
    assert os.listdir(directory) == [KEY]


def test_others_can_not_read_it(directory: Path) -> None:
    write_entry(KEY, PAYLOAD)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / KEY).stat().st_mode & 0o777 == 0o600


def _flip(entry: Path, position: int) -> None:
    data = bytearray(entry.read_bytes())
    data[position] ^= 1
    entry.write_bytes(data)


def _replace_by_directory(entry: Path) -> None:
    entry.unlink()
    entry.mkdir()


def _replace_by_link(entry: Path) -> None:
    entry.rename(entry.with_name("elsewhere"))
    entry.symlink_to(entry.with_name("elsewhere"))


def _replace_by_pipe(entry: Path) -> None:
    entry.unlink()
    os.mkfifo(entry)


def _replace_by_another(entry: Path) -> None:
    other = entry_key("another key")
    write_entry(other, PAYLOAD[::-1])
    entry.with_name(other).replace(entry)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "the format flipped": lambda entry: _flip(entry, 3),
    "the digest flipped": lambda entry: _flip(entry, len(code_cache._MAGIC) + 5),
    "the first byte flipped": lambda entry: _flip(
        entry, len(code_cache._MAGIC) + code_cache._DIGEST_SIZE
    ),
    "the last byte flipped": lambda entry: _flip(entry, -1),
    "cut off in the contents": lambda entry: os.truncate(entry, entry.stat().st_size - 1),
    "cut off in the digest": lambda entry: os.truncate(entry, len(code_cache._MAGIC) + 5),
    "cut off in the format": lambda entry: os.truncate(entry, 5),
    "empty": lambda entry: os.truncate(entry, 0),
    "longer": lambda entry: entry.write_bytes(entry.read_bytes() + b"\0"),
    "garbage": lambda entry: entry.write_bytes(os.urandom(5000)),
    "contents alone": lambda entry: entry.write_bytes(PAYLOAD),
    "the entry of another key": _replace_by_another,
    "a directory": _replace_by_directory,
    "a link to an entry": _replace_by_link,
    "a pipe": _replace_by_pipe,
    "writable by the group": lambda entry: entry.chmod(0o620),
    "writable by all": lambda entry: entry.chmod(0o602),
    "not readable, or too large": lambda entry: (
        os.truncate(entry, code_cache.MOST_KEPT + 1) if IS_ROOT else entry.chmod(0)
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_does_not_count(damage: Callable[[Path], object], directory: Path) -> None:
    write_entry(KEY, PAYLOAD)
    damage(directory / KEY)
    assert read_entry(KEY) is None
    write_entry(KEY, PAYLOAD)
    if damage is not _replace_by_directory:
        assert read_entry(KEY) == PAYLOAD
    assert not list(directory.glob("*.tmp"))


@pytest.mark.skipif(not IS_ROOT, reason="only root gives files away")
def test_the_entry_of_another_user_does_not_count(directory: Path) -> None:
    write_entry(KEY, PAYLOAD)
    os.chown(directory / KEY, NOBODY, NOBODY)
    assert read_entry(KEY) is None


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_code_is_made_again(damage: Callable[[Path], object], directory: Path) -> None:
    made = native_object(ANSWER)
    (entry,) = directory.iterdir()
    damage(entry)
    assert native_object(ANSWER) == made
    assert answer(native_object(ANSWER)) == 42


def test_code_that_needs_more_than_its_text_declares_is_made_again(directory: Path) -> None:
    made = native_object(ANSWER)
    (entry,) = directory.iterdir()
    needy = ANSWER.replace("ret", "call void @abort()\nret") + "declare void @abort()\n"
    write_entry(entry.name, native_object(needy))
    assert native_object(ANSWER) == made
    assert read_entry(entry.name) == made


# -- Keys -----------------------------------------------------------------------------------------


def test_a_key_names_all_that_the_code_depends_on(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def entries() -> int:
        native_object(ANSWER)
        return len(os.listdir(directory))

    here, info = host(), llvm.llvm_version_info
    fewer = here.feature_string.rpartition(",")[0]
    assert entries() == entries() == 1
    monkeypatch.setattr(object_code, "host", lambda: dataclasses.replace(here, cpu="generic"))
    assert entries() == entries() == 2
    monkeypatch.setattr(
        object_code, "host", lambda: dataclasses.replace(here, feature_string=fewer)
    )
    assert entries() == entries() == 3
    monkeypatch.setattr(object_code, "host", host)
    assert entries() == 3
    for owner, name, value in (
        (object_code, "VERSION", "0.0.0"),
        (llvmlite, "__version__", "0.0.0"),
        (llvm, "llvm_version_info", (info[0], info[1], info[2] + 1)),
        (sys, "abiflags", "t"),
        (sys, "implementation", SimpleNamespace(cache_tag="cpython-399")),
    ):
        before = entries()
        monkeypatch.setattr(owner, name, value)
        assert entries() == entries() == before + 1, name
    native_object(ANSWER, level=0)
    native_object(ANSWER.replace("42", "43"))
    assert len(os.listdir(directory)) == 10


# -- Directories ----------------------------------------------------------------------------------


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    for said in ("off", "relative/path", "~/cache"):
        monkeypatch.setenv("MINITVM_CACHE_DIR", said)
        assert cache_directory() is None
    monkeypatch.setenv("MINITVM_CACHE_DIR", "")
    assert cache_directory() == tmp_path / "xdg" / "minitvm"
    monkeypatch.delenv("MINITVM_CACHE_DIR")
    assert cache_directory() == tmp_path / "xdg" / "minitvm"
    for said in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", said)
        assert cache_directory() == tmp_path / ".cache" / "minitvm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == tmp_path / ".cache" / "minitvm"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_directory() == tmp_path / "Library" / "Caches" / "minitvm"


def test_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    for name in ("MINITVM_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert cache_directory() is None
    assert answer(native_object(ANSWER)) == 42


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o750, 0o705, 0o777])
def test_a_directory_open_to_others_does_not_count(mode: int, directory: Path) -> None:
    write_entry(KEY, PAYLOAD)
    directory.chmod(mode)
    assert cache_directory() is None
    assert read_entry(KEY) is None
    write_entry(entry_key("another key"), PAYLOAD)
    assert os.listdir(directory) == [KEY]
    assert answer(native_object(ANSWER)) == 42


def test_a_link_to_a_directory_does_not_count(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    directory.symlink_to(tmp_path / "real")
    assert cache_directory() is None
    assert answer(native_object(ANSWER)) == 42
    assert not os.listdir(tmp_path / "real")


@pytest.mark.skipif(not IS_ROOT, reason="only root gives files away")
def test_the_directory_of_another_user_does_not_count(directory: Path, tmp_path: Path) -> None:
    directory.mkdir(mode=0o700)
    os.chown(directory, NOBODY, NOBODY)
    assert cache_directory() is None
    directory.rmdir()
    os.chown(tmp_path, NOBODY, NOBODY)
    assert cache_directory() is None
    assert not directory.exists()


def test_a_place_where_there_can_be_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/minitvm")):
        monkeypatch.setenv("MINITVM_CACHE_DIR", str(place))
        assert cache_directory() is None
        assert answer(native_object(ANSWER)) == 42


def test_a_read_only_directory(directory: Path) -> None:
    write_entry(KEY, PAYLOAD)
    directory.chmod(0o500)
    assert read_entry(KEY) == PAYLOAD
    assert answer(native_object(ANSWER)) == 42
    assert IS_ROOT or os.listdir(directory) == [KEY]  # root may write anywhere
    directory.chmod(0o700)


def test_a_full_disk(directory: Path) -> None:
    code = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n{USE_A_PAGE}"
    assert output(start_python(code)) == ""
    assert os.listdir(directory) == []


def test_off(directory: Path) -> None:
    assert output(start_python(USE_A_PAGE, MINITVM_CACHE_DIR="off")) == ""
    assert not directory.exists()


# -- Size -----------------------------------------------------------------------------------------


def test_the_oldest_go(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [entry_key(str(i)) for i in range(6)]
    for age, key in enumerate(reversed(keys[:5])):
        write_entry(key, PAYLOAD)
        os.utime(directory / key, (0, time.time() - 100 * (age + 1)))
    (directory / "notes.txt").write_bytes(PAYLOAD)
    monkeypatch.setattr(code_cache, "MOST_KEPT", 3 * (len(PAYLOAD) + 100))
    write_entry(keys[5], PAYLOAD)
    assert set(os.listdir(directory)) == {"notes.txt", *keys[3:]}


def test_what_nobody_finished_goes(directory: Path) -> None:
    write_entry(KEY, PAYLOAD)
    recent, old = (directory / f"{KEY}-{name}.tmp" for name in ("recent", "old"))
    for path in (recent, old):
        path.write_bytes(PAYLOAD[:100])
    os.utime(old, (0, time.time() - 2 * code_cache._ABANDONED))
    write_entry(KEY, PAYLOAD)
    assert set(os.listdir(directory)) == {KEY, recent.name}


@pytest.mark.parametrize("hours", [0, 0.9, 1.1, 30, 24 * 400, -5])
def test_finished_entries_stay_whatever_their_age(directory: Path, hours: float) -> None:
    """So long as there is room; and so does what an unfinished one was replaced by."""
    old = entry_key("old")
    write_entry(old, PAYLOAD)
    then = time.time() - 3600 * hours
    os.utime(directory / old, (then, then))
    unfinished = directory / f"{old}-age.tmp"
    unfinished.write_bytes(PAYLOAD)
    os.utime(unfinished, (then, then))
    write_entry(KEY, PAYLOAD)
    assert read_entry(old) == PAYLOAD
    assert unfinished.exists() == (hours < 1)


# -- Processes ------------------------------------------------------------------------------------


PAGES = 11  # that USE_IT needs: the program, and five of the runtime, as text and machine code


def test_the_next_process_compiles_nothing(directory: Path) -> None:
    assert output(start_python(USE_IT)) == SAID
    kept = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    assert all(re.fullmatch("[0-9a-f]{64}", path.name) for path in kept)
    assert len(kept) == PAGES
    assert output(start_python(COMPILE_NOTHING + USE_IT)) == SAID
    assert {path: path.stat().st_mtime_ns for path in directory.iterdir()} == kept


def test_processes_race_for_a_cold_cache(directory: Path) -> None:
    together = [start_python(USE_IT) for _ in range(2)]
    assert [output(process) for process in together] == [SAID] * 2
    kept = list(directory.iterdir())
    assert len(kept) == PAGES
    assert all(read_entry(path.name) is not None for path in kept)


def test_forked_processes_never_read_a_mixture(directory: Path) -> None:
    assert output(start_python(WRITE_AND_READ)).split() == ["0"] * 8
    assert os.listdir(directory) == [KEY]
