"""The cache on disk that keeps machine code, and LLVM IR, for the next process.

An entry is a file that only its owner can have written. Its name is a digest of the code's source
and target, and it begins with a digest of its name and contents. An entry is written to a temporary
file and moved to its place, so that any number of processes may read and write at once, without a
lock that a fork could leave locked.

Nothing here raises. If there is no directory that can be trusted, if the disk is full or read-only,
or if an entry is damaged, the code is simply compiled again.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
import time
from pathlib import Path

MOST_KEPT = 32 * 1024 * 1024  # bytes of all entries, roughly; the runtime's own take 500 KiB
_MAGIC = b"minitvm machine code 1\n"  # the number counts the formats
_DIGEST_SIZE = 32
_OURS = re.compile(r"[0-9a-f]{64}(-\w+\.tmp)?")  # an entry, or one that is being written
_ABANDONED = 3600  # seconds after which an unfinished file has no writer
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def cache_directory() -> Path | None:
    """The directory of machine code; None where no code is kept.

    It is ``MINITVM_CACHE_DIR``, else ``minitvm`` in the user's directory of caches. It has to
    belong to the user, and to be closed to others (mode 700); it is made if it doesn't exist.
    """
    path = _wanted_directory()
    if path is None:
        return None
    try:
        if not path.is_dir():
            _make(path)
        status = path.lstat()
    except OSError:
        return None
    closed = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    return path if closed and status.st_uid == os.geteuid() else None


def _make(path: Path) -> None:
    """Makes a directory, if the folder around it is the user's or the system's: another user
    couldn't use a directory that root makes in that user's home."""
    around = next(folder for folder in path.parents if folder.is_dir())
    if around.stat().st_uid in (0, os.geteuid()):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)


def _wanted_directory() -> Path | None:
    if not hasattr(os, "geteuid"):  # Windows has no such simple owner of a file
        return None
    said = os.environ.get("MINITVM_CACHE_DIR")
    if said:
        return Path(said) if os.path.isabs(said) else None
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(caches):
        caches = os.path.expanduser("~/Library/Caches" if sys.platform == "darwin" else "~/.cache")
    return Path(caches, "minitvm") if os.path.isabs(caches) else None


def entry_key(*parts: str) -> str:
    """The name of the entry for a key of several `parts`.

    >>> entry_key("ab", "c") == entry_key("a", "bc")
    False
    """
    return _digest(b"".join(b"%d:%s," % (len(p), p) for p in map(str.encode, parts))).hex()


def read_entry(key: str) -> bytes | None:
    """The payload that was written under `key`; None if there is none, or it is damaged."""
    directory = cache_directory()
    if directory is None:
        return None
    try:
        # Without waiting for a writer, in case somebody has put a pipe there.
        handle = os.open(directory / key, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | _NO_LINK)
        with open(handle, "rb") as file:
            status = os.fstat(handle)
            owned = status.st_uid == os.geteuid() and not status.st_mode & 0o022
            if not (stat.S_ISREG(status.st_mode) and owned and status.st_size <= MOST_KEPT):
                return None
            data = file.read()
    except OSError:
        return None
    start = len(_MAGIC) + _DIGEST_SIZE
    payload = data[start:]
    return payload if data[:start] == _MAGIC + _entry_digest(key, payload) else None


def write_entry(key: str, payload: bytes) -> None:
    """Keeps `payload` under `key`, if it can; drops the oldest entries beyond :data:`MOST_KEPT`."""
    directory = cache_directory()
    if directory is None:
        return
    try:
        handle, unfinished = tempfile.mkstemp(".tmp", f"{key}-", directory)
    except OSError:
        return
    try:
        with open(handle, "wb") as file:
            file.write(_MAGIC + _entry_digest(key, payload) + payload)
        os.replace(unfinished, directory / key)
        _clean(directory)
    except OSError:
        _remove(unfinished)


def _clean(directory: Path) -> None:
    """Removes unfinished files of writers, and the oldest entries beyond the limit."""
    now, total = time.time(), 0
    with os.scandir(directory) as files:
        ours = [(each.stat(follow_symlinks=False), each) for each in files if _is_ours(each)]
    for status, each in sorted(ours, key=lambda found: -found[0].st_mtime):
        total += status.st_size
        abandoned = each.name.endswith(".tmp") and now - status.st_mtime > _ABANDONED
        if abandoned or total > MOST_KEPT:
            _remove(each.path)


def _is_ours(file: os.DirEntry[str]) -> bool:
    return _OURS.fullmatch(file.name) is not None


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return


def _entry_digest(key: str, payload: bytes) -> bytes:
    return _digest(key.encode() + payload)


def _digest(data: bytes) -> bytes:
    import hashlib  # on demand: it loads OpenSSL, which takes 3 ms

    return hashlib.sha256(data).digest()
