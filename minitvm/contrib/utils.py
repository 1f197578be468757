"""Temporary folders, under the names of classic ``tvm.contrib.utils``."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any, final


@final
class TempDirectory:
    """A folder that is removed with this object, or at the end of the process. Made by
    :func:`tempdir`.

    Attributes
    ----------
    temp_dir : str
        Its path.
    """

    def __init__(self, custom_path: str | None = None, keep_for_debug: bool = False) -> None:
        if custom_path is None:
            self.temp_dir = tempfile.mkdtemp()
        else:
            Path(custom_path).mkdir(parents=True)  # new, so that removing it is safe
            self.temp_dir = str(custom_path)
        folder = self.temp_dir
        self._end = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        if keep_for_debug:
            self._end.detach()

    def remove(self) -> None:
        """Removes the folder now."""
        self._end()

    @property
    def path(self) -> str:
        """Its path."""
        return self.temp_dir

    def relpath(self, name: str) -> str:
        """The path of a file in it."""
        return str(Path(self.temp_dir) / name)

    def listdir(self) -> list[str]:
        """The names of the files in it, sorted."""
        return sorted(each.name for each in Path(self.temp_dir).iterdir())

    def __truediv__(self, name: str) -> Path:
        return Path(self.temp_dir) / name

    def __enter__(self) -> TempDirectory:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.remove()


def tempdir(custom_path: str | None = None, keep_for_debug: bool = False) -> TempDirectory:
    """A new folder, removed with the object that stands for it.

    Parameters
    ----------
    custom_path : str
        Its path, which must not exist yet; by default a path in the system's temporary folder.
    keep_for_debug : bool
        Whether the folder is kept.

    >>> temp = tempdir()
    >>> _ = Path(temp.relpath("notes.txt")).write_text("kept for a while")
    >>> temp.listdir()
    ['notes.txt']
    """
    return TempDirectory(custom_path, keep_for_debug)
