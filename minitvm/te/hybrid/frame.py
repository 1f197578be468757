"""The state of a hybrid function while it is followed: its program, its names, and its position."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Any, final

from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.hybrid.numbers import Numbers
from minitvm.te.hybrid.source import ScriptedFunction, Source
from minitvm.te.hybrid.values import NO_VALUE, Binding, Block, Facts, Key, Variable
from minitvm.tir.expr import Buffer, PrimExpr
from minitvm.tir.stmt import ForKind, Stmt

# The advice for a construct without a meaning here: the one to write in its place.
_ADVICE: dict[type[ast.AST], str] = {
    ast.Break: "put the statements that follow under an if, or loop with `while`",
    ast.Continue: "put the statements that follow under an if",
    ast.Slice: "loop over the indices",
    ast.With: "hybrid functions have no contexts",
    ast.Try: "nothing is raised while a kernel runs: check with `assert`",
    ast.Raise: "use `assert condition, message`",
    ast.FunctionDef: "define it outside, decorated with te.hybrid.script",
    ast.Lambda: "define a function outside, decorated with te.hybrid.script",
    ast.ListComp: "loop with `for`, into an array made by allocate",
    ast.GeneratorExp: "loop with `for`",
    ast.AnnAssign: "assign without an annotation; a cast, as in float32(x), sets a dtype",
    ast.NamedExpr: "assign in a statement of its own",
    ast.JoinedStr: "write a plain string",
    ast.Dict: "use a tuple",
    ast.Set: "use a tuple",
    ast.Delete: "names end with their block",
    ast.Import: "import outside of the function",
    ast.ImportFrom: "import outside of the function",
    ast.Global: "return the tensors that are written",
    ast.Nonlocal: "return the tensors that are written",
}


@final
@record(frozen=False, eq=False)
class Program:
    """The program of a function and the helpers that it calls."""

    facts: Facts
    blocks: list[Block] = field(default_factory=lambda: [Block(loop=True)])  # the open ones
    loops: list[ForKind] = field(default_factory=list)  # the open ones
    numbers: Numbers = field(default_factory=Numbers)
    computed: set[PrimExpr] = field(default_factory=set)  # names of values of the program
    outputs: list[Buffer] = field(default_factory=list)
    reported: list[Exception] = field(default_factory=list)  # errors with their place

    def emit(self, item: Stmt | Callable[[Stmt], Stmt]) -> None:
        self.blocks[-1].items.append(item)


@final
@record(frozen=False, eq=False)
class Frame:
    """One function that is followed; for a helper, `caller` is the caller's frame, and `call`
    identifies the call."""

    function: ScriptedFunction
    source: Source
    program: Program
    read_only: frozenset[Buffer]
    follow: Callable[[Frame], None]  # follows the statements of a frame's function
    caller: Frame | None = None
    call: Key = ()
    names: dict[str, Binding | Variable] = field(default_factory=dict)
    assigned: set[str] = field(default_factory=set)
    ended: dict[str, str] = field(default_factory=dict)  # the reason why a name is no longer bound
    merged: dict[str, Key] = field(default_factory=dict)  # names that both branches of an if bind
    positions: list[Key] = field(default_factory=lambda: [()])  # in the open loops
    target: str = "buffer"  # the name that is assigned to
    returned: Any = NO_VALUE
    depth: int = field(init=False)
    closure: inspect.ClosureVars = field(init=False)

    def __post_init__(self) -> None:
        self.depth = len(self.program.blocks)
        self.closure = inspect.getclosurevars(self.function.pyfunc)

    def key(self, name: str) -> Key:
        """The key of the variable that a name stands for here."""
        return (*self.call, self.positions[-1], name)

    def bind(self, name: str, value: Any, node: ast.AST, is_loop: bool = False) -> None:
        """Lets a name stand for a value in the innermost block."""
        block = self.program.blocks[-1]
        self.names[name] = Binding(value, node, block, self.key(name), is_loop)

    def line_of(self, known: Binding | Variable) -> int:
        """The line in which a name got its value."""
        return self.source.line_of(known.node)

    @contextmanager
    def block(self, loop: bool) -> Iterator[Block]:
        """A block that may run any number of times; names bound in it end with it."""
        names, assigned = dict(self.names), set(self.assigned)
        block = Block(loop=loop)
        self.program.blocks.append(block)
        yield block
        self.program.blocks.pop()
        for name, found in self.names.items():
            if name in names:
                continue
            if isinstance(found, Variable) and not loop:
                names[name] = found  # a variable lives in the loop around the branch
            else:
                what = "loop" if loop else "branch"
                self.ended[name] = (
                    f"the {what} that gives it a value, at line {self.line_of(found)}"
                )
        self.names, self.assigned = names, assigned

    # -- Errors -----------------------------------------------------------------------------------

    def error(self, node: ast.AST, problem: str) -> CompileError:
        """The error to raise for a problem at `node`."""
        error = CompileError(self.source.message(node, problem))
        self.program.reported.append(error)
        return error

    def unsupported(self, node: ast.AST) -> CompileError:
        """The error for a construct without a meaning in hybrid functions."""
        kind = type(node).__name__
        advice = _ADVICE.get(type(node), "docs/hybrid.md lists the statements")
        return self.error(node, f"expected a construct of hybrid functions, found {kind}: {advice}")

    @contextmanager
    def located(self, node: ast.AST) -> Iterator[None]:
        """A context in which errors get the place of `node`, unless they have one."""
        try:
            yield
        except (CompileError, TypeError, ArithmeticError, ValueError) as error:
            if any(error is each for each in self.program.reported):
                raise
            raise self.error(node, str(error)) from None
