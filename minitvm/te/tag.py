"""Tags: names by which a schedule recognises operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from minitvm.runtime.errors import CompileError
from minitvm.tir.expr import described

_current: ContextVar[str] = ContextVar("tag", default="")


@contextmanager
def tag_scope(tag: str) -> Iterator[None]:
    """Gives every operation made inside it a tag; a context manager and a decorator.

    Raises
    ------
    CompileError
        When the scope is entered inside another tag scope.

    >>> from minitvm import te
    >>> with te.tag_scope("conv"):
    ...     te.compute((4,), lambda i: i).op.tag
    'conv'
    """
    if _current.get():
        raise CompileError(
            f"tag_scope {tag!r}: expected no scope around it, found {_current.get()!r}"
        )
    token = _current.set(tag)
    try:
        yield
    finally:
        _current.reset(token)


def scoped_tag(name: str, tag: str) -> str:
    """The tag of the operation `name`: its own, or that of the tag scope around its creation."""
    if not isinstance(tag, str):
        raise CompileError(f"{name}: expected a string as tag, got {described(tag)}")
    if tag and _current.get():
        raise CompileError(
            f"{name}: expected one tag, got {tag!r} inside of tag_scope {_current.get()!r}"
        )
    return tag or _current.get()
