"""The limit of nested expressions, set by the traversals that recurse."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minitvm.runtime.errors import CompileError
from minitvm.tir.node import PrimExpr, Stmt
from minitvm.tir.tree import children, walk_leaves_first

# Python frames that a traversal may nest: enough for a sum of some 2,000 written-out terms.
_MAX_DEPTH = 10_000


class _Depth:
    """Python's recursion limit, which all threads share: the first thread that enters raises it,
    and the last one that leaves restores it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside, self._usual = 0, 0
        if hasattr(os, "register_at_fork"):
            lock = self._lock
            os.register_at_fork(
                before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
            )

    def enter(self) -> None:
        with self._lock:
            if not self._inside:
                self._usual = sys.getrecursionlimit()
                sys.setrecursionlimit(max(self._usual, _MAX_DEPTH))
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                sys.setrecursionlimit(self._usual)


_depth = _Depth()


class _Thread(threading.local):
    is_inside = False


_thread = _Thread()


@contextmanager
def deep_expressions(name: str, *nodes: Any) -> Iterator[None]:
    """A context in which expressions may be nested deeper than Python's usual recursion limit. An
    expression that is deeper still is reported as the user's error.

    Parameters
    ----------
    name
        The function's name in the message.
    nodes
        The expressions and statements, where they are at hand: the message then tells their depth.

    Raises
    ------
    CompileError
        For an expression that is nested deeper.
    """
    if _thread.is_inside:  # an outer context reports the error under its own name
        yield
        return
    _depth.enter()
    _thread.is_inside = True
    try:
        yield
    except RecursionError:
        depth = max(
            (nesting(each) for each in nodes if isinstance(each, PrimExpr | Stmt)), default=0
        )
        found = f"one of {depth} levels, which" if depth else "one that"
        raise CompileError(
            f"{name}: expected expressions nested less deeply, found {found} exceeds "
            f"{_MAX_DEPTH} Python frames: sum with te.sum, or compute parts in stages of their own"
        ) from None
    finally:
        _thread.is_inside = False
        _depth.leave()


def nesting(node: PrimExpr | Stmt) -> int:
    """The levels of a tree, 1 for a leaf.

    >>> from minitvm.tir.expr import Var
    >>> i = Var("i")
    >>> nesting(i), nesting(i * 2 + 1)
    (1, 3)
    """
    levels: dict[int, int] = {}
    for each in walk_leaves_first(node):
        levels[id(each)] = 1 + max((levels[id(child)] for child in children(each)), default=0)
    return levels[id(node)]
