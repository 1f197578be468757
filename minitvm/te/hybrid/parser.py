"""From the syntax tree of a hybrid function to an operation of loop IR.

The tree is followed as Python would run it. What is known while it is followed is computed at once,
by Python: numbers, tuples, shapes, conditions on them. The rest becomes loop IR.

A name is bound to a value, and bound anew by each assignment in a row. Only a name that a loop or a
branch assigns to from inside becomes a variable, a buffer of one element. That is known when the
assignment is met, after the name's first use: so the tree is then followed again, from the start,
with that `Facts` learned.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, final

import numpy as np

from minitvm import expr as e
from minitvm import op
from minitvm.arith.analyzer import Analyzer
from minitvm.buffer import decl_buffer
from minitvm.expr import Buffer, BufferLoad, IntImm, IterVar, PrimExpr, Var
from minitvm.functor import Node, walk_once
from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.stmt import (
    Allocate,
    AssertStmt,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Stmt,
    While,
    seq,
)
from minitvm.te.hybrid import intrinsics
from minitvm.te.hybrid.initial_zeros import begin_with_zeros
from minitvm.te.hybrid.source import ScriptedFunction, Source, read_source
from minitvm.te.tag import scoped_tag
from minitvm.te.tensor import ExternOp, Tensor


def parse(function: ScriptedFunction, arguments: Mapping[str, Any]) -> ExternOp:
    """The operation that a hybrid function stands for, called with `arguments`: tensors,
    expressions, numbers and tuples of them, by the names of its parameters.

    Raises
    ------
    CompileError
        Where the function uses what a hybrid function can't, with the place in its source.
    """
    source = read_source(function.pyfunc)
    facts = Facts()
    while True:
        inputs: dict[Tensor, Buffer] = {}
        values = {name: _argument(source, name, arg, inputs) for name, arg in arguments.items()}
        parser = _Parser(function, source, values, facts, None, frozenset(inputs.values()))
        try:
            body, outputs = parser.operation()
        except _Learned:
            continue
        name = function.pyfunc.__name__
        tag = scoped_tag(name, "")
        tensors, places = tuple(inputs), tuple(inputs.values())
        return ExternOp(name, tag, {}, tensors, places, outputs, body)


def _argument(source: Source, name: str, value: Any, inputs: dict[Tensor, Buffer]) -> Any:
    """An argument as a value of the program; tensors become buffers, which `inputs` collects."""
    if isinstance(value, Tensor):
        if value not in inputs:
            inputs[value] = decl_buffer(value.shape, value.dtype, value.name)
        return inputs[value]
    if isinstance(value, (tuple, list)):
        return tuple(_argument(source, name, member, inputs) for member in value)
    made = _plain(value)
    if made is _NO_VALUE:
        raise CompileError(
            f"{source.name}: argument {name}: expected a tensor, an expression, a number or a "
            f"tuple of them, got {type(value).__name__}"
        )
    return made


_NO_VALUE = object()


def _plain(value: Any) -> Any:
    """A number, a text or an expression from outside the program; `_NO_VALUE` for others."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return str(value) if isinstance(value, DType) else value
    if isinstance(value, (np.number, np.bool_)):
        return value.item()
    if isinstance(value, (IterVar, PrimExpr)):
        return e.as_expr(value)
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return str(DType.of(value))
    return _NO_VALUE


# -- What names and values are --------------------------------------------------------------------

Key = tuple[Any, ...]  # names a variable: the calls and the loop that it is in, and its name


@final
@dataclass(slots=True)
class Facts:
    """What was learned about names while the tree was followed before: which are variables, and
    the dtypes of those that begin as Python's numbers."""

    variables: set[Key] = field(default_factory=set)
    dtypes: dict[Key, DType] = field(default_factory=dict)


class _Learned(Exception):
    """Something was learned; the tree must be followed again."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Binding:
    """A name bound to a value, in a block; `is_loop` for the variable of a loop."""

    value: Any
    node: ast.AST
    block: _Block
    key: Key
    is_loop: bool = False


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Variable:
    """A name whose value changes. While it has only been given Python's numbers it `adapts`."""

    buffer: Buffer
    node: ast.AST
    key: Key
    adapts: bool
    loops: int  # how many loops it stands in


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A buffer indexed in its first dimensions: ``a[i]`` of a matrix."""

    buffer: Buffer
    indices: tuple[Any, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Loop:
    """What a call of ``range`` or ``parallel`` gives."""

    kind: ForKind
    begin: PrimExpr
    end: PrimExpr
    step: int


@final
@dataclass(slots=True, eq=False)
class _Block:
    """Statements, and functions that make a statement around all that follows in the block."""

    items: list[Stmt | Callable[[Stmt], Stmt]] = field(default_factory=list)
    loop: bool = False  # the body of a loop, or of the function: where variables live

    def statement(self) -> Stmt:
        made = seq()
        for item in reversed(self.items):
            made = seq(item, made) if isinstance(item, Stmt) else item(made)
        return made


_KINDS = {
    "range": ForKind.SERIAL,
    "serial": ForKind.SERIAL,
    "parallel": ForKind.PARALLEL,
    "vectorize": ForKind.VECTORIZED,
    "unroll": ForKind.UNROLLED,
}
_AT_ONCE = (ForKind.PARALLEL, ForKind.VECTORIZED)
_OPERATORS: dict[type[ast.AST], tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    # of numbers known now, and of expressions
    ast.Add: (operator.add, e.add),
    ast.Sub: (operator.sub, e.subtract),
    ast.Mult: (operator.mul, e.multiply),
    ast.Div: (operator.truediv, e.divide),
    ast.FloorDiv: (operator.floordiv, e.floordiv),
    ast.Mod: (operator.mod, e.floormod),
    ast.Pow: (operator.pow, e.power),
    ast.BitAnd: (operator.and_, e.bitwise_and),
    ast.BitOr: (operator.or_, e.bitwise_or),
    ast.BitXor: (operator.xor, e.bitwise_xor),
    ast.LShift: (operator.lshift, e.shift_left),
    ast.RShift: (operator.rshift, e.shift_right),
    ast.Lt: (operator.lt, e.less),
    ast.LtE: (operator.le, e.less_equal),
    ast.Gt: (operator.gt, e.greater),
    ast.GtE: (operator.ge, e.greater_equal),
    ast.Eq: (operator.eq, e.equal),
    ast.NotEq: (operator.ne, e.not_equal),
}
_UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
# Comparisons that only numbers, texts and tuples known now have.
_KNOWN_ONLY: dict[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
# What to write in place of a construct that has no meaning here.
_ADVICE: dict[type[ast.AST], str] = {
    ast.Break: "put what follows under an if, or loop with `while`",
    ast.Continue: "put what follows under an if",
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
    ast.MatMult: "loop with `for`",
}


@final
class _Parser:
    """Follows one function, called with `arguments`; a helper's parser has a `caller`."""

    def __init__(
        self,
        function: ScriptedFunction,
        source: Source,
        arguments: Mapping[str, Any],
        facts: Facts,
        caller: _Parser | None,
        read_only: frozenset[Buffer],
        call: Key = (),
    ) -> None:
        self._function = function
        self._source = source
        self._facts = facts
        self._caller = caller
        self._read_only = read_only
        self._call = call
        # Shared with the caller, whose program the helper's becomes part of.
        self._blocks: list[_Block] = caller._blocks if caller else [_Block(loop=True)]
        self._loops: list[ForKind] = caller._loops if caller else []
        self._adapting: dict[PrimExpr, None] = caller._adapting if caller else {}
        self._computed: dict[Node, None] = caller._computed if caller else {}
        self._reported: list[Exception] = caller._reported if caller else []
        self._outputs: list[Buffer] = []
        self._depth = len(self._blocks)
        self._names: dict[str, _Binding | _Variable] = {}
        self._assigned: set[str] = set()
        self._ended: dict[str, str] = {}  # why a name that was bound is no more
        self._merged: dict[str, Key] = {}  # names that both branches of an if have bound
        self._positions: list[Key] = [()]  # of the loops that are open
        self._target = "buffer"
        self._returned: Any = _NO_VALUE
        self._closure = inspect.getclosurevars(function.pyfunc)
        for name, value in arguments.items():
            self._names[name] = _Binding(value, source.tree, self._blocks[-1], self._key(name))

    # -- The function -----------------------------------------------------------------------------

    def operation(self) -> tuple[Stmt, tuple[Buffer, ...]]:
        """The body and the outputs of the function as an operation."""
        self._run()
        returned = self._returned if isinstance(self._returned, tuple) else (self._returned,)
        node = self._source.tree.body[-1]
        for value in returned:
            if not isinstance(value, Buffer) or value not in self._outputs:
                raise self._error(
                    node,
                    f"expected to return tensors made by output_tensor, got {_shown(value)}: "
                    "make one, and store to it",
                )
        if len(set(returned)) < len(returned):
            raise self._error(node, "expected to return each tensor once, got one twice")
        for buffer in self._outputs:
            if buffer not in returned:
                raise self._error(
                    node,
                    f"expected every output_tensor to be returned, found {buffer.name} left out: "
                    "return it, or make it with allocate",
                )
        return self._blocks[0].statement(), returned

    def inlined(self) -> Any:
        """The value that the function returns, its statements having become the caller's."""
        self._run()
        return self._settled("result", self._returned)

    def _run(self) -> None:
        self._statements(self._source.tree.body)
        if self._returned is _NO_VALUE:
            raise self._error(self._source.tree, "expected a return at its end, found none")

    # -- Errors -----------------------------------------------------------------------------------

    def _error(self, node: ast.AST, problem: str) -> CompileError:
        error = CompileError(self._source.message(node, problem))
        self._reported.append(error)
        return error

    @contextmanager
    def _at(self, node: ast.AST) -> Iterator[None]:
        """Where an error of the language gets the place of `node`, unless it has one."""
        try:
            yield
        except (CompileError, TypeError, ArithmeticError, ValueError) as error:
            if any(error is each for each in self._reported):
                raise
            raise self._error(node, str(error)) from None

    def _unsupported(self, node: ast.AST) -> CompileError:
        kind = type(node).__name__
        advice = _ADVICE.get(type(node), "see docs/hybrid.md for what there is")
        return self._error(node, f"expected what a hybrid function may use, found {kind}: {advice}")

    # -- Blocks -----------------------------------------------------------------------------------

    def _emit(self, item: Stmt | Callable[[Stmt], Stmt]) -> None:
        self._blocks[-1].items.append(item)

    @contextmanager
    def _block(self, loop: bool) -> Iterator[_Block]:
        """A block that may not run, or run often; names that it binds end with it."""
        names, assigned = dict(self._names), set(self._assigned)
        block = _Block(loop=loop)
        self._blocks.append(block)
        yield block
        self._blocks.pop()
        for name, found in self._names.items():
            if name in names:
                continue
            if isinstance(found, _Variable) and not loop:
                names[name] = found  # it lives in the loop around the branch
            else:
                what = "loop" if loop else "branch"
                line = self._source.line_of(found.node)
                self._ended[name] = f"the {what} that gives it a value, at line {line}"
        self._names, self._assigned = names, assigned

    def _statements(self, nodes: Sequence[ast.stmt]) -> None:
        for node in nodes:
            if self._returned is not _NO_VALUE:
                return  # as a branch that was chosen now has returned
            method = getattr(self, f"_visit_{type(node).__name__}", None)
            if method is None:
                raise self._unsupported(node)
            with self._at(node):
                method(node)

    # -- Statements -------------------------------------------------------------------------------

    def _visit_Pass(self, node: ast.Pass) -> None:
        pass

    def _visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return  # a docstring
        if not isinstance(node.value, ast.Call):
            raise self._error(node, "expected a statement, found an expression: its value is lost")
        self._value(node.value)

    def _visit_Return(self, node: ast.Return) -> None:
        if len(self._blocks) > self._depth:
            raise self._error(
                node, "expected the return at the end of the function, found it in a block"
            )
        if node.value is None:
            raise self._error(node, "expected a value to return, found none")
        self._returned = self._value(node.value)

    def _visit_Assert(self, node: ast.Assert) -> None:
        condition = self._condition(node.test)
        message = "expected " + ast.unparse(node.test)
        if node.msg is not None:
            message = self._value(node.msg)
        if not isinstance(message, str) or "{}" in message:
            raise self._error(node.msg or node, "expected a string without {} as the message")
        if condition is False:
            raise self._error(node, f"the assertion never holds: {message}")
        if condition is not True:
            self._emit(lambda rest: AssertStmt(condition, message, rest))

    def _visit_If(self, node: ast.If) -> None:
        condition = self._condition(node.test)
        if isinstance(condition, bool):
            self._statements(node.body if condition else node.orelse)
            return
        before = set(self._names)
        with self._block(loop=False) as then_block:
            self._statements(node.body)
            then_names, then_assigned = dict(self._names), self._assigned
        with self._block(loop=False) as else_block:
            self._statements(node.orelse)
            else_names, else_assigned = dict(self._names), self._assigned
        self._assigned = then_assigned & else_assigned
        for name in then_names.keys() & else_names.keys() - before:
            self._merged[name] = self._key(name)
        else_case = else_block.statement() if node.orelse else None
        self._emit(IfThenElse(condition, then_block.statement(), else_case))

    def _visit_While(self, node: ast.While) -> None:
        if node.orelse:
            raise self._error(
                node.orelse[0], "expected no else of a loop, found one: write it after it"
            )
        before = len(self._blocks[-1].items)
        condition = self._condition(node.test)
        if condition is False:
            return
        if condition is True:
            raise self._error(
                node.test, "expected a condition that can change, found one that holds"
            )
        if len(self._blocks[-1].items) > before:
            raise self._error(
                node.test, "expected a condition without calls of other hybrid functions"
            )
        with self._loop(node, ForKind.SERIAL) as block:
            self._statements(node.body)
        self._emit(While(condition, block.statement()))

    def _visit_For(self, node: ast.For) -> None:
        if node.orelse:
            raise self._error(
                node.orelse[0], "expected no else of a loop, found one: write it after it"
            )
        values = self._value(node.iter)
        for name in _names_in(node.target):
            self._check_loop_name(node.target, name)
        if isinstance(values, (range, tuple)):
            self._write_out(node, values)
            return
        if not isinstance(values, _Loop):
            raise self._error(
                node.iter,
                "expected range, parallel, vectorize, unroll, const_range or a tuple to loop "
                f"over, got {_shown(values)}",
            )
        if not isinstance(node.target, ast.Name):
            raise self._error(node.target, "expected one variable of the loop, found several")
        self._emit(self._for(node, node.target.id, values))

    def _check_loop_name(self, node: ast.AST, name: str) -> None:
        """A loop's variable hides no other: which one is meant around it would be a riddle."""
        known = self._names.get(name)
        if known is None:
            return
        if isinstance(known, _Binding) and known.block is self._blocks[-1] and not known.is_loop:
            return
        raise self._error(
            node,
            f"{name} has a value from line {self._source.line_of(known.node)}, around this loop: "
            "use another name for the loop's variable",
        )

    def _write_out(self, node: ast.For, values: Sequence[Any]) -> None:
        """The body once for each value, which is known in it."""
        for value in values:
            self._assign(node.target, value)
            self._statements(node.body)
        for name in _names_in(node.target):
            self._names.pop(name, None)
            self._ended[name] = f"the loop at line {self._source.line_of(node)}"

    def _for(self, node: ast.For, name: str, loop: _Loop) -> Stmt:
        var = Var(name, loop.begin.dtype)
        low, extent = loop.begin, loop.end - loop.begin
        value: PrimExpr = var
        if loop.step != 1:
            span = extent if loop.step > 0 else loop.begin - loop.end
            size = e.const(abs(loop.step), var.dtype)
            low, extent = e.const(0, var.dtype), (span + (size - 1)) // size
            value = loop.begin + var * e.const(loop.step, var.dtype)
        self._names.pop(name, None)
        with self._loop(node, loop.kind) as block:
            self._names[name] = _Binding(value, node, block, self._key(name), is_loop=True)
            self._statements(node.body)
        return For(var, low, _simple(extent), loop.kind, block.statement())

    @contextmanager
    def _loop(self, node: ast.stmt, kind: ForKind) -> Iterator[_Block]:
        self._loops.append(kind)
        self._positions.append((*self._positions[-1], (node.lineno, node.col_offset)))
        with self._block(loop=True) as block:
            yield block
        self._positions.pop()
        self._loops.pop()

    def _visit_Assign(self, node: ast.Assign) -> None:
        first = node.targets[0]
        self._target = first.id if isinstance(first, ast.Name) else "buffer"
        value = self._value(node.value)
        self._target = "buffer"
        for target in node.targets:
            self._assign(target, value)

    def _visit_AugAssign(self, node: ast.AugAssign) -> None:
        target = ast.copy_location(_as_read(node.target), node.target)
        read = self._value(target)
        self._assign(node.target, self._binary(node, node.op, read, self._value(node.value)))

    # -- Assignment -------------------------------------------------------------------------------

    def _assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name():
                self._assign_name(target, target.id, value)
            case ast.Tuple() | ast.List():
                self._assign_several(target, value)
            case ast.Subscript():
                self._store(target, value)
            case _:
                raise self._error(target, "expected a name or an element to assign to")

    def _assign_several(self, target: ast.Tuple | ast.List, value: Any) -> None:
        if not isinstance(value, tuple) or len(value) != len(target.elts):
            raise self._error(
                target, f"expected a tuple of {len(target.elts)} values, got {_shown(value)}"
            )
        # All values are computed before the first is assigned: `a, b = b, a`.
        settled = [self._settled("value", each) for each in value]
        for each, made in zip(target.elts, settled, strict=True):
            self._assign(each, made)

    def _assign_name(self, node: ast.Name, name: str, value: Any) -> None:
        known = self._names.get(name)
        if isinstance(known, _Binding) and known.is_loop:
            line = self._source.line_of(known.node)
            raise self._error(
                node, f"{name} is the variable of the loop at line {line}: it can't be assigned to"
            )
        if isinstance(known, _Variable):
            self._set_variable(node, name, known, value)
        elif known is not None and known.block is not self._blocks[-1]:
            self._facts.variables.add(known.key)
            raise _Learned
        elif self._key(name) in self._facts.variables:
            self._set_variable(node, name, self._variable(node, name, value), value)
        else:
            settled = self._settled(name, value)
            self._names[name] = _Binding(settled, node, self._blocks[-1], self._key(name))

    def _key(self, name: str) -> Key:
        return (*self._call, self._positions[-1], name)

    def _variable(self, node: ast.Name, name: str, value: Any) -> _Variable:
        """A new variable, of the dtype of its first value."""
        if not isinstance(value, (bool, int, float, PrimExpr)):
            raise self._error(
                node,
                f"expected a number for {name}, which a loop or a branch assigns to again, got "
                f"{_shown(value)}: give the other value another name",
            )
        key = self._key(name)
        adapts = not self._is_firm(value)
        dtype = self._facts.dtypes.get(key, e.as_expr(value).dtype)
        buffer = decl_buffer((1,), dtype, name, scope="local")
        home = next(block for block in reversed(self._blocks) if block.loop)
        home.items.append(lambda rest: Allocate(buffer, rest))
        loops = sum(block.loop for block in self._blocks) - 1
        made = _Variable(buffer, node, key, adapts and key not in self._facts.dtypes, loops)
        self._names[name] = made
        return made

    def _set_variable(self, node: ast.Name, name: str, known: _Variable, value: Any) -> None:
        if any(kind in _AT_ONCE for kind in self._loops[known.loops :]):
            line = self._source.line_of(known.node)
            raise self._error(
                node,
                f"{name} is from outside of a parallel or vectorized loop (line {line}), whose "
                "iterations run at once: give it a value inside, or use range",
            )
        if known.adapts and self._is_firm(value) and isinstance(value, PrimExpr):
            self._facts.dtypes[known.key] = value.dtype
            raise _Learned
        if known.adapts and known.buffer.dtype.is_integral and _is_float(value):
            raise self._error(
                node,
                f"{name} begins as an integer at line {self._source.line_of(known.node)}, and "
                "can't become a float: begin with a float, such as 0.0",
            )
        stored = self._converted(node, name, value, known.buffer.dtype)
        self._emit(BufferStore(known.buffer, stored, (e.const(0),)))
        self._assigned.add(name)

    def _store(self, target: ast.Subscript, value: Any) -> None:
        place = self._subscript(target)
        if not isinstance(place, BufferLoad):
            raise self._error(target, f"expected an element to assign to, got {_shown(place)}")
        buffer = place.buffer
        if buffer in self._read_only:
            raise self._error(
                target,
                f"expected an array of the function's own to store to, got parameter "
                f"{buffer.name}: make one with output_tensor or allocate",
            )
        stored = self._converted(target, buffer.name, value, buffer.dtype)
        self._emit(BufferStore(buffer, stored, place.indices))

    def _settled(self, name: str, value: Any) -> Any:
        """A value that later stores can't change: what reads memory gets a name of its own."""
        if isinstance(value, tuple):
            return tuple(self._settled(name, each) for each in value)
        if isinstance(value, _Part):
            return _Part(value.buffer, self._settled("index", value.indices))
        if not isinstance(value, PrimExpr) or isinstance(value, (Var, IntImm, e.FloatImm)):
            return value
        reads = any(isinstance(each, (BufferLoad, e.Call)) for each in walk_once(value))
        if value.dtype.is_integral and not reads:
            return value
        var = Var(name, value.dtype)
        self._emit(lambda rest: LetStmt(var, value, rest))
        self._computed[var] = None
        if value in self._adapting:
            self._adapting[var] = None
        return var

    # -- dtypes: Python's numbers adapt to what they meet -----------------------------------------

    def _is_firm(self, value: Any) -> bool:
        """Whether a value has a dtype of its own, which Python's numbers have not."""
        return isinstance(value, PrimExpr) and value not in self._adapting

    def _adapted(self, value: Any, dtype: DType) -> Any:
        """A number that is not firm, next to one of `dtype`."""
        if isinstance(value, bool) or dtype.is_bool:
            return e.as_expr(value)
        if _is_float(value) and not dtype.is_float:
            return e.as_expr(value)
        return e.cast(dtype, value) if isinstance(value, PrimExpr) else e.const(value, dtype)

    def _together(self, values: Sequence[Any], lenient: bool = False) -> list[Any]:
        """Numbers as the operands of one operation; when `lenient`, numbers that the others' dtype
        can't hold keep their own."""
        firm = [value.dtype for value in values if self._is_firm(value)]
        if not firm:
            return [e.as_expr(value) for value in values]
        made = []
        for value in values:
            fits = not isinstance(value, int) or not firm[0].is_integral or firm[0].is_bool
            fits = fits or firm[0].min() <= value <= firm[0].max()
            keep = self._is_firm(value) or (lenient and not fits)
            made.append(e.as_expr(value) if keep else self._adapted(value, firm[0]))
        return made

    def _made(self, function: Callable[..., Any], *values: Any, lenient: bool = False) -> Any:
        """`function` of numbers of which one at least is an expression."""
        for value in values:
            if not isinstance(value, (bool, int, float, PrimExpr)):
                raise TypeError(f"expected a number, got {_shown(value)}")
        made = function(*self._together(values, lenient))
        if not any(map(self._is_firm, values)):
            self._adapting[made] = None
        return made

    def _converted(self, node: ast.AST, name: str, value: Any, dtype: DType) -> PrimExpr:
        """A value as it is stored: converted where that loses no more than rounding."""
        if not isinstance(value, (bool, int, float, PrimExpr)):
            raise self._error(node, f"expected a number to store to {name}, got {_shown(value)}")
        made = e.as_expr(value if self._is_firm(value) else self._adapted(value, dtype))
        loses_sign = made.dtype.is_int and dtype.is_uint
        if loses_sign or (made.dtype != dtype and e.promoted(made.dtype, dtype) != dtype):
            raise self._error(
                node,
                f"expected a value of {dtype} for {name}, got one of {made.dtype}: cast it, as in "
                f"{dtype}(...)" + ("" if not isinstance(value, float) else ", or write an integer"),
            )
        return e.cast(dtype, made)

    # -- Expressions ------------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> Any:
        """What an expression stands for: a value known now, or an expression of the language."""
        method = getattr(self, f"_value_{type(node).__name__}", None)
        if method is None:
            raise self._unsupported(node)
        with self._at(node):
            return method(node)

    def _value_Constant(self, node: ast.Constant) -> Any:
        if node.value is None or isinstance(node.value, (bool, int, float, str)):
            return node.value
        raise self._error(node, f"expected a number or a string, got {node.value!r}")

    def _value_Tuple(self, node: ast.Tuple | ast.List) -> tuple[Any, ...]:
        return tuple(self._value(each) for each in node.elts)

    _value_List = _value_Tuple

    def _value_BinOp(self, node: ast.BinOp) -> Any:
        return self._binary(node, node.op, self._value(node.left), self._value(node.right))

    def _binary(self, node: ast.AST, operation: ast.operator, a: Any, b: Any) -> Any:
        if type(operation) not in _OPERATORS:
            raise self._error(
                node, f"expected an operator on numbers, found {type(operation).__name__}"
            )
        of_known, of_expressions = _OPERATORS[type(operation)]
        if _is_known(a) and _is_known(b):
            return of_known(a, b)
        return self._made(of_expressions, a, b)

    def _value_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            condition = self._condition(node.operand)
            return not condition if isinstance(condition, bool) else e.logical_not(condition)
        value = self._value(node.operand)
        if _is_known(value):
            return _UNARY[type(node.op)](value)
        if isinstance(node.op, ast.UAdd):
            return value
        return self._made(e.negate if isinstance(node.op, ast.USub) else e.bitwise_not, value)

    def _value_Compare(self, node: ast.Compare) -> Any:
        operands = [node.left, *node.comparators]
        made: Any = True
        left = self._value(operands[0])
        for operation, right_node in zip(node.ops, operands[1:], strict=True):
            right = self._value(right_node)
            made = self._both(made, self._compared(node, operation, left, right))
            if made is False:
                return False
            left = right
        return made

    def _compared(self, node: ast.AST, operation: ast.cmpop, a: Any, b: Any) -> Any:
        if type(operation) in _KNOWN_ONLY:
            if not (_is_known(a) and _is_known(b)):
                raise self._error(node, "expected `is` and `in` between values that are known now")
            return _KNOWN_ONLY[type(operation)](a, b)
        of_known, of_expressions = _OPERATORS[type(operation)]
        if _is_known(a) and _is_known(b):
            return of_known(a, b)
        return self._made(of_expressions, a, b, lenient=True)

    def _value_BoolOp(self, node: ast.BoolOp) -> Any:
        """As in Python, what stands right counts only where what stands left leaves it open."""
        decides = isinstance(node.op, ast.Or)
        join = self._either if decides else self._both
        made: Any = not decides
        for each in node.values:
            made = join(made, self._condition(each))
            if made is decides:
                return made
        return made

    def _both(self, a: Any, b: Any) -> Any:
        if isinstance(a, bool):
            return b if a else False
        if _is_cheap(b):
            return e.logical_and(a, b)
        return op.if_then_else(a, b, False)

    def _either(self, a: Any, b: Any) -> Any:
        if isinstance(a, bool):
            return True if a else b
        if _is_cheap(b):
            return e.logical_or(a, b)
        return op.if_then_else(a, True, b)

    def _condition(self, node: ast.expr) -> bool | PrimExpr:
        """A condition: True or False where it is known now."""
        value = self._value(node)
        if _is_known(value):
            return bool(value)
        if not isinstance(value, PrimExpr):
            raise self._error(node, f"expected a condition, got {_shown(value)}")
        simple = _simple(e.as_condition(value))
        return bool(simple.value) if isinstance(simple, IntImm) else simple

    def _value_IfExp(self, node: ast.IfExp) -> Any:
        condition = self._condition(node.test)
        if isinstance(condition, bool):
            return self._value(node.body if condition else node.orelse)
        values = self._value(node.body), self._value(node.orelse)
        return self._made(lambda a, b: op.if_then_else(condition, a, b), *values)

    def _value_Attribute(self, node: ast.Attribute) -> Any:
        owner = self._value(node.value)
        if isinstance(owner, ModuleType):
            return self._captured(node, f"{ast.unparse(node)}", getattr(owner, node.attr, None))
        if isinstance(owner, (Buffer, _Part)):
            taken = 0 if isinstance(owner, Buffer) else len(owner.indices)
            buffer = owner if isinstance(owner, Buffer) else owner.buffer
            shape = buffer.shape[taken:]
            if node.attr == "shape":
                return tuple(map(_number_if_known, shape))
            if node.attr in ("dtype", "ndim"):
                return str(buffer.dtype) if node.attr == "dtype" else len(shape)
        if isinstance(owner, PrimExpr) and node.attr == "dtype":
            return str(owner.dtype)
        raise self._error(node, f"expected .shape, .dtype or .ndim of a tensor, found .{node.attr}")

    def _value_Subscript(self, node: ast.Subscript) -> Any:
        return self._subscript(node)

    def _subscript(self, node: ast.Subscript) -> Any:
        owner = self._value(node.value)
        index_nodes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        indices = tuple(self._value(each) for each in index_nodes)
        if isinstance(owner, (tuple, str)):
            for each, index_node in zip(indices, index_nodes, strict=True):
                index = _number_if_known(_simple(each) if isinstance(each, PrimExpr) else each)
                if not isinstance(index, int):
                    raise self._error(
                        index_node,
                        f"expected an index of a tuple that is known now, got {_shown(each)}: "
                        "loop with const_range",
                    )
                if not -len(owner) <= index < len(owner):
                    raise self._error(
                        index_node,
                        f"expected an index of a tuple of {len(owner)} values, got {index}",
                    )
                owner = owner[index]
            return owner
        if not isinstance(owner, (Buffer, _Part)):
            raise self._error(
                node.value, f"expected a tensor or a tuple to index, got {_shown(owner)}"
            )
        buffer = owner if isinstance(owner, Buffer) else owner.buffer
        before = () if isinstance(owner, Buffer) else owner.indices
        made = tuple(map(self._index, index_nodes, indices))
        if len(before) + len(made) < buffer.ndim:
            return _Part(buffer, before + made)
        if len(before) + len(made) > buffer.ndim:
            raise self._error(
                node,
                f"expected {buffer.ndim} indices of {buffer.name}, got {len(before) + len(made)}",
            )
        return BufferLoad(buffer, before + made)

    def _index(self, node: ast.expr, value: Any) -> PrimExpr:
        if isinstance(value, int) and value < 0:
            raise self._error(
                node,
                f"expected an index from 0 on, got {value}: counting from the end is written as "
                "in a.shape[0] - 1",
            )
        if not isinstance(value, (int, PrimExpr)):
            raise self._error(node, f"expected an integer as an index, got {_shown(value)}")
        return e.as_index(value)

    # -- Names ------------------------------------------------------------------------------------

    def _value_Name(self, node: ast.Name) -> Any:
        name = node.id
        known = self._names.get(name)
        if isinstance(known, _Binding):
            return known.value
        if isinstance(known, _Variable):
            return self._read_variable(node, name, known)
        if name in self._function.pyfunc.__code__.co_varnames + (
            self._function.pyfunc.__code__.co_cellvars
        ):
            raise self._unbound(node, name)
        if name in self._closure.nonlocals:
            return self._captured(node, name, self._closure.nonlocals[name])
        outside = self._closure.globals.get(name, _NO_VALUE)
        if name in intrinsics.INTRINSICS and not isinstance(outside, ScriptedFunction):
            return intrinsics.INTRINSICS[name]
        if outside is not _NO_VALUE:
            return self._captured(node, name, outside)
        if name in intrinsics.BUILTINS:
            return intrinsics.BUILTINS[name]
        if hasattr(builtins, name):
            raise self._error(node, f"expected a function of hybrid programs, got Python's {name}")
        raise self._error(node, f"expected a known name, got {name}")

    def _unbound(self, node: ast.AST, name: str) -> CompileError:
        if name in self._merged:
            self._facts.variables.add(self._merged[name])
            raise _Learned
        if name in self._ended:
            return self._error(
                node,
                f"{name} ends with {self._ended[name]}: give it a value before that, too",
            )
        return self._error(node, f"expected {name} to have a value, found none assigned before")

    def _read_variable(self, node: ast.AST, name: str, known: _Variable) -> PrimExpr:
        if name not in self._assigned:
            line = self._source.line_of(known.node)
            raise self._error(
                node,
                f"{name} may have no value here, as only some ways to here assign one (line "
                f"{line}): give it a value before",
            )
        made = BufferLoad(known.buffer, (e.const(0),))
        if known.adapts:
            self._adapting[made] = None
        return made

    def _captured(self, node: ast.AST, name: str, value: Any) -> Any:
        """A value from outside of the function."""
        if isinstance(value, (tuple, list)):
            return tuple(self._captured(node, name, each) for each in value)
        if isinstance(value, (ScriptedFunction, ModuleType)):
            return value
        plain = _plain(value)
        if plain is not _NO_VALUE and value is not None:
            return plain
        if _is_intrinsic(value):
            return value
        if isinstance(value, (Tensor, np.ndarray)):
            raise self._error(
                node, f"expected tensors as arguments, found {name} captured: pass it as one"
            )
        if callable(value):
            known = intrinsics.INTRINSICS.get(getattr(value, "__name__", ""))
            hint = "" if known is None else f": write {known.__name__}"
            raise self._error(
                node,
                "expected a function of hybrid programs, or one decorated with "
                f"te.hybrid.script, got {name}{hint}",
            )
        raise self._error(node, f"expected a number, got {name}, {_shown(value)}, from outside")

    # -- Calls ------------------------------------------------------------------------------------

    def _value_Call(self, node: ast.Call) -> Any:
        target, self._target = self._target, "buffer"
        function = self._value(node.func)
        for each in node.args:
            if isinstance(each, ast.Starred):
                raise self._error(each, "expected each argument by itself, found a starred one")
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self._error(
                    keyword.value, "expected each argument by itself, found ** of a dict"
                )
        args = [self._value(each) for each in node.args]
        named = {str(keyword.arg): self._value(keyword.value) for keyword in node.keywords}
        if isinstance(function, ScriptedFunction):
            return self._inline(node, function, args, named)
        if not _is_intrinsic(function):
            raise self._error(node.func, f"expected a function to call, got {_shown(function)}")
        name: str = function.__name__
        if name in ("allocate", "output_tensor"):
            bound = inspect.signature(function).bind(*args, **named)
            bound.apply_defaults()
            return self._new_buffer(node, name, target, **bound.arguments)
        if named:
            raise self._error(
                node, f"expected arguments of {name} by position, got {', '.join(named)}="
            )
        if name in _KINDS:
            return self._range(node, name, args)
        if all(map(_is_known, args)) and name != "bind" and name not in intrinsics.CASTS:
            return function(*args)
        return self._intrinsic(node, name, args)

    def _inline(
        self, node: ast.Call, function: ScriptedFunction, args: Sequence[Any], named: dict[str, Any]
    ) -> Any:
        """The value of a helper's call, whose statements go here."""
        caller: _Parser | None = self
        while caller is not None:
            if caller._function is function:
                raise self._error(
                    node, f"expected no recursion, found a call of {self._source.name}"
                )
            caller = caller._caller
        bound = inspect.signature(function.pyfunc).bind(*args, **named)
        bound.apply_defaults()
        values = {name: self._settled(name, value) for name, value in bound.arguments.items()}
        read_only = frozenset(_buffers(tuple(values.values())))
        call = (*self._call, self._positions[-1], (node.lineno, node.col_offset))
        source = read_source(function.pyfunc)
        return _Parser(function, source, values, self._facts, self, read_only, call).inlined()

    def _new_buffer(
        self, node: ast.AST, kind: str, name: str, shape: Any, dtype: Any, scope: str = "global"
    ) -> Buffer:
        extents = shape if isinstance(shape, tuple) else (shape,)
        simple = [_simple(each) if isinstance(each, PrimExpr) else each for each in extents]
        buffer = decl_buffer(simple, dtype, name, scope=scope)
        for extent in buffer.shape:
            known = e.const_int(extent)
            if known is not None and known < 0:
                raise self._error(node, f"expected no negative extent of {name}, got {known}")
            if any(isinstance(n, BufferLoad) or n in self._computed for n in walk_once(extent)):
                raise self._error(
                    node, f"expected a shape of sizes for {name}, got one computed by the program"
                )
        is_output = kind == "output_tensor" and self._caller is None
        if not is_output:
            self._emit(lambda rest: Allocate(buffer, begin_with_zeros(buffer, rest, False)))
            return buffer
        if len(self._blocks) > 1:
            raise self._error(
                node, f"expected output tensor {name} outside of blocks, found it inside"
            )
        self._outputs.append(buffer)
        self._emit(lambda rest: begin_with_zeros(buffer, rest, True))
        return buffer

    def _range(self, node: ast.Call, name: str, args: Sequence[Any]) -> Any:
        if not 1 <= len(args) <= 3:
            raise self._error(node, f"expected {name} of 1 to 3 bounds, got {len(args)}")
        begin, end, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
        for bound in (begin, end):
            if not isinstance(bound, (int, PrimExpr)):
                raise self._error(
                    node, f"expected integers as bounds of {name}, got {_shown(bound)}"
                )
        step = _number_if_known(step)
        if not isinstance(step, int) or not step:
            raise self._error(
                node, f"expected a known step other than 0 of {name}, got {_shown(step)}"
            )
        low, high = e.promote(*map(e.as_index, self._together([begin, end])))
        return _Loop(_KINDS[name], low, high, step)

    def _intrinsic(self, node: ast.Call, name: str, args: list[Any]) -> Any:
        """A call of an intrinsic on arguments of which not all are known."""
        match name:
            case "const_range":
                bounds = [_number_if_known(_simple(e.as_expr(bound))) for bound in args]
                if not all(isinstance(bound, int) for bound in bounds):
                    raise self._error(
                        node, "expected bounds of const_range that are known now: use range"
                    )
                return range(*bounds)
            case "bind":
                raise self._error(
                    node,
                    f"bind({', '.join(map(repr, args))}) makes threads of a GPU, and this is code "
                    "for a CPU: use range or parallel",
                )
            case "len":
                return self._length(node, args)
            case "int" | "float" | "bool":
                raise self._error(
                    node,
                    f"expected a cast that names its dtype, as int32(x) or float32(x), got {name}",
                )
            case "likely":
                return op.likely(args[0])
            case "min" | "max":
                values = args[0] if len(args) == 1 and isinstance(args[0], tuple) else args
                return self._extremum(e.minimum if name == "min" else e.maximum, values)
            case "abs":
                return self._made(e.absolute, *args)
            case "ceil_div":
                return self._made(op.ceildiv, *args)
        if name in intrinsics.CASTS:
            return e.cast(name, *args)
        return self._made(getattr(op, name), *args)

    def _extremum(self, function: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
        made = values[0]
        for each in values[1:]:
            made = self._made(function, made, each)
        return made

    def _length(self, node: ast.Call, args: Sequence[Any]) -> Any:
        if len(args) == 1 and isinstance(args[0], tuple):
            return len(args[0])
        if len(args) == 1 and isinstance(args[0], (Buffer, _Part)):
            taken = 0 if isinstance(args[0], Buffer) else len(args[0].indices)
            buffer = args[0] if isinstance(args[0], Buffer) else args[0].buffer
            if buffer.ndim > taken:
                return _number_if_known(buffer.shape[taken])
        raise self._error(node, f"expected len of a tuple or a tensor, got {_shown(args[0])}")


def _as_read(target: ast.expr) -> ast.expr:
    """The target of an augmented assignment as the expression that reads it."""
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    if isinstance(target, ast.Subscript):
        return ast.Subscript(target.value, target.slice, ast.Load())
    return target


def _names_in(target: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]


def _buffers(values: tuple[Any, ...]) -> Iterator[Buffer]:
    for value in values:
        if isinstance(value, tuple):
            yield from _buffers(value)
        elif isinstance(value, (Buffer, _Part)):
            yield value if isinstance(value, Buffer) else value.buffer


def _is_intrinsic(value: Any) -> bool:
    """Whether `value` is a function of :mod:`minitvm.te.hybrid.intrinsics`, or one of Python's."""
    name = getattr(value, "__name__", "")
    return callable(value) and any(
        value is known.get(name) for known in (intrinsics.INTRINSICS, intrinsics.BUILTINS)
    )


def _is_known(value: Any) -> bool:
    """Whether a value is known now."""
    if isinstance(value, tuple):
        return all(map(_is_known, value))
    return value is None or isinstance(value, (bool, int, float, str, range))


def _is_float(value: Any) -> bool:
    return value.dtype.is_float if isinstance(value, PrimExpr) else isinstance(value, float)


def _is_cheap(value: Any) -> bool:
    """Whether a condition may be evaluated where Python would not."""
    return isinstance(value, bool) or not any(
        isinstance(each, (BufferLoad, e.Call)) for each in walk_once(value)
    )


def _number_if_known(value: Any) -> Any:
    """An int32 constant, as shapes have them, as Python's number, which adapts."""
    return value.value if isinstance(value, IntImm) and value.dtype == "int32" else value


def _simple(value: PrimExpr) -> PrimExpr:
    return Analyzer().simplify(value)


def _shown(value: Any) -> str:
    if isinstance(value, Buffer):
        return f"tensor {value.name}"
    if isinstance(value, _Part):
        return f"a part of tensor {value.buffer.name}"
    if isinstance(value, _Loop):
        return "a range"
    if isinstance(value, PrimExpr):
        return f"{value} of {value.dtype}"
    if callable(value):
        return f"function {getattr(value, '__name__', value)}"
    return repr(value)
