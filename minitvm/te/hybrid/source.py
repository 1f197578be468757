"""The text of a Python function, and how messages point into it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from typing import Any, final

from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record


class ScriptedFunction:
    """Base of the results of ``te.hybrid.script``: a Python function that has a second meaning, the
    loops of its text."""

    pyfunc: Callable[..., Any]


@final
@record()
class Source:
    """The syntax tree of a function and the lines of its text, which begins at line
    `first_line` of `file`. In the tree the first line has number 2: line 1 may be an ``if`` that
    makes an indented function a program of its own."""

    name: str
    file: str
    first_line: int
    lines: Sequence[str]
    tree: ast.FunctionDef

    def line_of(self, node: ast.AST) -> int:
        """The line of the file in which `node` begins."""
        return int(getattr(node, "lineno", 2)) - 2 + self.first_line

    def message(self, node: ast.AST, problem: str) -> str:
        """`problem`, after the place of `node` and before its text, which is marked."""
        row = int(getattr(node, "lineno", 2)) - 2
        line = self.lines[row].rstrip("\n")
        begin = _column(line, int(getattr(node, "col_offset", 0)))
        ends_here = getattr(node, "end_lineno", None) == row + 2
        end = _column(line, node.end_col_offset) if ends_here else len(line)  # type: ignore[attr-defined]  # nodes with lines have it
        margin = len(line) - len(line.lstrip())
        marker = " " * (begin - margin) + "^" * max(end - begin, 1)
        where = f"{self.file}:{self.first_line + row}:{begin + 1}"
        return f"{where}: {self.name}: {problem}\n    {line.strip()}\n    {marker}"


def _column(line: str, offset: int) -> int:
    """The column in characters; the syntax tree counts the bytes of UTF-8."""
    return len(line.encode()[:offset].decode())


def read_source(function: Callable[..., Any]) -> Source:
    """The source of a function.

    Raises
    ------
    CompileError
        When no source can be read.
    """
    name = function.__name__
    try:
        lines, first_line = inspect.getsourcelines(function)
    except (OSError, TypeError):
        raise CompileError(
            f"{name}: expected the source of a hybrid function, which is compiled, found none: "
            "define it in a file or a notebook, rather than in the REPL or through exec"
        ) from None
    head = "if True:\n" if lines[0][:1].isspace() else "\n"
    tree = ast.parse(head + "".join(lines))
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name]
    file = inspect.getsourcefile(function) or function.__code__.co_filename
    return Source(name, file, first_line, lines, found[0])
