"""Tags: names by which a schedule recognises operations."""

from __future__ import annotations

from contextlib import ContextDecorator
from contextvars import ContextVar, Token
from typing import Any

from minitvm.runtime.errors import CompileError

_current: ContextVar[str] = ContextVar("tag", default="")


class tag_scope(ContextDecorator):
    """Gives every operation made inside it a tag; a context manager and a decorator.

    >>> from minitvm import te
    >>> with te.tag_scope("conv"):
    ...     te.compute((4,), lambda i: i).op.tag
    'conv'
    """

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self._token: Token[str] | None = None

    def _recreate_cm(self) -> tag_scope:
        return tag_scope(self.tag)  # a decorated function may call itself from another scope

    def __enter__(self) -> tag_scope:
        if _current.get():
            raise CompileError(
                f"tag_scope {self.tag!r}: expected no scope around it, found {_current.get()!r}"
            )
        self._token = _current.set(self.tag)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._token is not None:
            _current.reset(self._token)


def scoped_tag(name: str, tag: str) -> str:
    """The tag of the operation `name`: its own, or that of the scope that it is made in."""
    if tag and _current.get():
        raise CompileError(
            f"{name}: expected one tag, got {tag!r} inside of tag_scope {_current.get()!r}"
        )
    return tag or _current.get()
