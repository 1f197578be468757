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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, final

import numpy as np

from minitvm.runtime.errors import CompileError
from minitvm.te.hybrid import intrinsics, syntax
from minitvm.te.hybrid.initial_zeros import begin_with_zeros
from minitvm.te.hybrid.numbers import Numbers
from minitvm.te.hybrid.source import ScriptedFunction, Source, read_source
from minitvm.te.hybrid.values import (
    NO_VALUE,
    Binding,
    Block,
    Facts,
    Key,
    Learned,
    Loop,
    Part,
    Variable,
    buffers_in,
    is_cheap,
    is_float,
    is_intrinsic,
    is_known,
    number_if_known,
    plain,
    shown,
    simple,
)
from minitvm.te.tag import scoped_tag
from minitvm.te.tensor import ExternOp, Tensor
from minitvm.tir import expr as e
from minitvm.tir import op
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import Buffer, BufferLoad, IntImm, PrimExpr, Var
from minitvm.tir.functor import Node, walk_once
from minitvm.tir.stmt import (
    Allocate,
    AssertStmt,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Stmt,
    While,
)


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
        known = facts.count
        try:
            body, outputs = parser.operation()
        except Learned:
            assert facts.count > known  # or this would go on for ever
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
    made = plain(value)
    if made is NO_VALUE:
        raise CompileError(
            f"{source.name}: argument {name}: expected a tensor, an expression, a number or a "
            f"tuple of them, got {type(value).__name__}"
        )
    return made


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
        self._blocks: list[Block] = caller._blocks if caller else [Block(loop=True)]
        self._loops: list[ForKind] = caller._loops if caller else []
        self._numbers: Numbers = caller._numbers if caller else Numbers()
        self._computed: dict[Node, None] = caller._computed if caller else {}
        self._reported: list[Exception] = caller._reported if caller else []
        self._outputs: list[Buffer] = []
        self._depth = len(self._blocks)
        self._names: dict[str, Binding | Variable] = {}
        self._assigned: set[str] = set()
        self._ended: dict[str, str] = {}  # why a name that was bound is no more
        self._merged: dict[str, Key] = {}  # names that both branches of an if have bound
        self._positions: list[Key] = [()]  # of the loops that are open
        self._target = "buffer"
        self._returned: Any = NO_VALUE
        self._closure = inspect.getclosurevars(function.pyfunc)
        for name, value in arguments.items():
            self._names[name] = Binding(value, source.tree, self._blocks[-1], self._key(name))

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
                    f"expected to return tensors made by output_tensor, got {shown(value)}: "
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
        for name, found in tuple(self._names.items()):
            if isinstance(found, Binding) and found.key in self._facts.variables:
                parameter = ast.copy_location(ast.Name(name, ast.Store()), self._source.tree)
                del self._names[name]
                self._assign_name(parameter, name, found.value)
        self._statements(self._source.tree.body)
        if self._returned is NO_VALUE:
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
        advice = syntax.ADVICE.get(type(node), "see docs/hybrid.md for what there is")
        return self._error(node, f"expected what a hybrid function may use, found {kind}: {advice}")

    # -- Blocks -----------------------------------------------------------------------------------

    def _emit(self, item: Stmt | Callable[[Stmt], Stmt]) -> None:
        self._blocks[-1].items.append(item)

    @contextmanager
    def _block(self, loop: bool) -> Iterator[Block]:
        """A block that may not run, or run often; names that it binds end with it."""
        names, assigned = dict(self._names), set(self._assigned)
        block = Block(loop=loop)
        self._blocks.append(block)
        yield block
        self._blocks.pop()
        for name, found in self._names.items():
            if name in names:
                continue
            if isinstance(found, Variable) and not loop:
                names[name] = found  # it lives in the loop around the branch
            else:
                what = "loop" if loop else "branch"
                line = self._source.line_of(found.node)
                self._ended[name] = f"the {what} that gives it a value, at line {line}"
        self._names, self._assigned = names, assigned

    def _statements(self, nodes: Sequence[ast.stmt]) -> None:
        for node in nodes:
            if self._returned is not NO_VALUE:
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
            self._learn_what_changes(node)
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

    def _learn_what_changes(self, node: ast.While) -> None:
        """Has the names be variables that the condition of a loop reads and its body assigns to:
        the condition holds now, before the first time."""
        read = set(_names_in(node.test))
        stored = (each for part in node.body for each in ast.walk(part))
        for each in stored:
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and each.id in read:
                known = self._names.get(each.id)
                if isinstance(known, Binding) and not known.is_loop:
                    self._facts.variables.add(known.key)
                    raise Learned

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
        if not isinstance(values, Loop):
            raise self._error(
                node.iter,
                "expected range, parallel, vectorize, unroll, const_range or a tuple to loop "
                f"over, got {shown(values)}",
            )
        if not isinstance(node.target, ast.Name):
            raise self._error(node.target, "expected one variable of the loop, found several")
        self._emit(self._for(node, node.target.id, values))

    def _check_loop_name(self, node: ast.AST, name: str) -> None:
        """A loop's variable hides no other: which one is meant around it would be a riddle."""
        known = self._names.get(name)
        if known is None:
            return
        if isinstance(known, Binding) and known.block is self._blocks[-1] and not known.is_loop:
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

    def _for(self, node: ast.For, name: str, loop: Loop) -> Stmt:
        var = Var(name, loop.begin.dtype)
        low, extent = loop.begin, loop.end - loop.begin
        value: PrimExpr = var
        if loop.step != 1:
            span = extent if loop.step > 0 else loop.begin - loop.end
            size = e.const(abs(loop.step), var.dtype)
            low, extent = e.const(0, var.dtype), (span + (size - 1)) // size
            value = loop.begin + var * e.const(loop.step, var.dtype)
        extent = simple(extent)
        if loop.kind == ForKind.VECTORIZED and e.const_int(extent) is None:
            raise self._error(
                node.iter,
                f"expected a constant number of iterations to vectorize, got {extent}: use range, "
                "of which the compiler makes vectors as it can",
            )
        self._names.pop(name, None)
        with self._loop(node, loop.kind) as block:
            self._names[name] = Binding(value, node, block, self._key(name), is_loop=True)
            self._statements(node.body)
        return For(var, low, extent, loop.kind, block.statement())

    @contextmanager
    def _loop(self, node: ast.stmt, kind: ForKind) -> Iterator[Block]:
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
                target, f"expected a tuple of {len(target.elts)} values, got {shown(value)}"
            )
        # All values are computed before the first is assigned: `a, b = b, a`.
        settled = [self._settled("value", each) for each in value]
        for each, made in zip(target.elts, settled, strict=True):
            self._assign(each, made)

    def _assign_name(self, node: ast.Name, name: str, value: Any) -> None:
        known = self._names.get(name)
        if isinstance(known, Binding) and known.is_loop:
            line = self._source.line_of(known.node)
            raise self._error(
                node, f"{name} is the variable of the loop at line {line}: it can't be assigned to"
            )
        if isinstance(known, Variable):
            self._set_variable(node, name, known, value)
        elif known is not None and known.block is not self._blocks[-1]:
            self._facts.variables.add(known.key)
            raise Learned
        elif self._key(name) in self._facts.variables:
            self._set_variable(node, name, self._variable(node, name, value), value)
        else:
            settled = self._settled(name, value)
            self._names[name] = Binding(settled, node, self._blocks[-1], self._key(name))

    def _key(self, name: str) -> Key:
        return (*self._call, self._positions[-1], name)

    def _variable(self, node: ast.Name, name: str, value: Any) -> Variable:
        """A new variable, of the dtype of its first value."""
        if not isinstance(value, (bool, int, float, PrimExpr)):
            raise self._error(
                node,
                f"expected a number for {name}, which a loop or a branch assigns to again, got "
                f"{shown(value)}: give the other value another name",
            )
        key = self._key(name)
        adapts = not self._numbers.is_firm(value)
        dtype = self._facts.dtypes.get(key, e.as_expr(value).dtype)
        buffer = decl_buffer((1,), dtype, name, scope="local")
        home = next(block for block in reversed(self._blocks) if block.loop)
        home.items.append(lambda rest: Allocate(buffer, rest))
        loops = sum(block.loop for block in self._blocks) - 1
        made = Variable(buffer, node, key, adapts and key not in self._facts.dtypes, loops)
        self._names[name] = made
        return made

    def _set_variable(self, node: ast.Name, name: str, known: Variable, value: Any) -> None:
        if any(kind in syntax.AT_ONCE for kind in self._loops[known.loops :]):
            line = self._source.line_of(known.node)
            raise self._error(
                node,
                f"{name} is from outside of a parallel or vectorized loop (line {line}), whose "
                "iterations run at once: give it a value inside, or use range",
            )
        if known.adapts and self._numbers.is_firm(value) and isinstance(value, PrimExpr):
            self._facts.dtypes[known.key] = value.dtype
            raise Learned
        if known.adapts and known.buffer.dtype.is_integral and is_float(value):
            raise self._error(
                node,
                f"{name} begins as an integer at line {self._source.line_of(known.node)}, and "
                "can't become a float: begin with a float, such as 0.0",
            )
        with self._at(node):
            stored = self._numbers.converted(name, value, known.buffer.dtype)
        self._emit(BufferStore(known.buffer, stored, (e.const(0),)))
        self._assigned.add(name)

    def _store(self, target: ast.Subscript, value: Any) -> None:
        place = self._subscript(target)
        if not isinstance(place, BufferLoad):
            raise self._error(target, f"expected an element to assign to, got {shown(place)}")
        buffer = place.buffer
        if buffer in self._read_only:
            raise self._error(
                target,
                f"expected an array of the function's own to store to, got parameter "
                f"{buffer.name}: make one with output_tensor or allocate",
            )
        with self._at(target):
            stored = self._numbers.converted(buffer.name, value, buffer.dtype)
        self._emit(BufferStore(buffer, stored, place.indices))

    def _settled(self, name: str, value: Any) -> Any:
        """A value that later stores can't change: what reads memory gets a name of its own."""
        if isinstance(value, tuple):
            return tuple(self._settled(name, each) for each in value)
        if isinstance(value, Part):
            return Part(value.buffer, self._settled("index", value.indices))
        if not isinstance(value, PrimExpr) or isinstance(value, (Var, IntImm, e.FloatImm)):
            return value
        reads = any(isinstance(each, (BufferLoad, e.Call)) for each in walk_once(value))
        if value.dtype.is_integral and not reads:
            return value
        var = Var(name, value.dtype)
        self._emit(lambda rest: LetStmt(var, value, rest))
        self._computed[var] = None
        if not self._numbers.is_firm(value):
            self._numbers.let_adapt(var)
        return var

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
        if type(operation) not in syntax.OPERATORS:
            raise self._error(
                node, f"expected an operator on numbers, found {type(operation).__name__}"
            )
        of_known, of_expressions = syntax.OPERATORS[type(operation)]
        if is_known(a) and is_known(b):
            return of_known(a, b)
        return self._numbers.made(of_expressions, a, b)

    def _value_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            condition = self._condition(node.operand)
            return not condition if isinstance(condition, bool) else e.logical_not(condition)
        value = self._value(node.operand)
        if is_known(value):
            return syntax.UNARY[type(node.op)](value)
        if isinstance(node.op, ast.UAdd):
            return value
        return self._numbers.made(
            e.negate if isinstance(node.op, ast.USub) else e.bitwise_not, value
        )

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
        if type(operation) in syntax.KNOWN_ONLY:
            if not (is_known(a) and is_known(b)):
                raise self._error(node, "expected `is` and `in` between values that are known now")
            return syntax.KNOWN_ONLY[type(operation)](a, b)
        of_known, of_expressions = syntax.OPERATORS[type(operation)]
        if is_known(a) and is_known(b):
            return of_known(a, b)
        return self._numbers.made(of_expressions, a, b, lenient=True)

    def _value_BoolOp(self, node: ast.BoolOp) -> Any:
        """As in Python, what stands right counts only where what stands left leaves it open."""
        decides = isinstance(node.op, ast.Or)
        join = self._either if decides else self._both
        made: Any = None
        for each in node.values:
            value = self._value(each)
            if made is None and is_known(value):
                if bool(value) is decides or each is node.values[-1]:
                    return value
                continue
            condition = self._truth(each, value)
            made = condition if made is None else join(made, condition)
        return made

    def _both(self, a: Any, b: Any) -> Any:
        if isinstance(a, bool):
            return b if a else False
        if is_cheap(b):
            return e.logical_and(a, b)
        return op.if_then_else(a, b, False)

    def _either(self, a: Any, b: Any) -> Any:
        if isinstance(a, bool):
            return True if a else b
        if is_cheap(b):
            return e.logical_or(a, b)
        return op.if_then_else(a, True, b)

    def _condition(self, node: ast.expr) -> bool | PrimExpr:
        """A condition: True or False where it is known now."""
        return self._truth(node, self._value(node))

    def _truth(self, node: ast.expr, value: Any) -> bool | PrimExpr:
        if is_known(value):
            return bool(value)
        if not isinstance(value, PrimExpr):
            raise self._error(node, f"expected a condition, got {shown(value)}")
        held = value if value.dtype.is_bool else e.not_equal(value, e.const(0, value.dtype))
        made = simple(held)
        return bool(made.value) if isinstance(made, IntImm) else made

    def _value_IfExp(self, node: ast.IfExp) -> Any:
        condition = self._condition(node.test)
        if isinstance(condition, bool):
            return self._value(node.body if condition else node.orelse)
        values = self._value(node.body), self._value(node.orelse)
        return self._numbers.made(lambda a, b: op.if_then_else(condition, a, b), *values)

    def _value_Attribute(self, node: ast.Attribute) -> Any:
        owner = self._value(node.value)
        if isinstance(owner, ModuleType):
            return self._captured(node, f"{ast.unparse(node)}", getattr(owner, node.attr, None))
        if isinstance(owner, (Buffer, Part)):
            taken = 0 if isinstance(owner, Buffer) else len(owner.indices)
            buffer = owner if isinstance(owner, Buffer) else owner.buffer
            shape = buffer.shape[taken:]
            if node.attr == "shape":
                return tuple(map(number_if_known, shape))
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
                index = number_if_known(simple(each) if isinstance(each, PrimExpr) else each)
                if not isinstance(index, int):
                    raise self._error(
                        index_node,
                        f"expected an index of a tuple that is known now, got {shown(each)}: "
                        "loop with const_range",
                    )
                if not -len(owner) <= index < len(owner):
                    raise self._error(
                        index_node,
                        f"expected an index of a tuple of {len(owner)} values, got {index}",
                    )
                owner = owner[index]
            return owner
        if not isinstance(owner, (Buffer, Part)):
            raise self._error(
                node.value, f"expected a tensor or a tuple to index, got {shown(owner)}"
            )
        buffer = owner if isinstance(owner, Buffer) else owner.buffer
        before = () if isinstance(owner, Buffer) else owner.indices
        made = tuple(map(self._index, index_nodes, indices))
        if len(before) + len(made) < buffer.ndim:
            return Part(buffer, before + made)
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
            raise self._error(node, f"expected an integer as an index, got {shown(value)}")
        return e.as_index(value)

    # -- Names ------------------------------------------------------------------------------------

    def _value_Name(self, node: ast.Name) -> Any:
        name = node.id
        known = self._names.get(name)
        if isinstance(known, Binding):
            return known.value
        if isinstance(known, Variable):
            return self._read_variable(node, name, known)
        if name in self._function.pyfunc.__code__.co_varnames + (
            self._function.pyfunc.__code__.co_cellvars
        ):
            raise self._unbound(node, name)
        if name in self._closure.nonlocals:
            return self._captured(node, name, self._closure.nonlocals[name])
        outside = self._closure.globals.get(name, NO_VALUE)
        if name in intrinsics.INTRINSICS and not isinstance(outside, ScriptedFunction):
            return intrinsics.INTRINSICS[name]
        if outside is not NO_VALUE:
            return self._captured(node, name, outside)
        if name in intrinsics.BUILTINS:
            return intrinsics.BUILTINS[name]
        if hasattr(builtins, name):
            raise self._error(node, f"expected a function of hybrid programs, got Python's {name}")
        raise self._error(node, f"expected a known name, got {name}")

    def _unbound(self, node: ast.AST, name: str) -> CompileError:
        if name in self._merged:
            self._facts.variables.add(self._merged[name])
            raise Learned
        if name in self._ended:
            return self._error(
                node,
                f"{name} ends with {self._ended[name]}: give it a value before that, too",
            )
        return self._error(node, f"expected {name} to have a value, found none assigned before")

    def _read_variable(self, node: ast.AST, name: str, known: Variable) -> PrimExpr:
        if name not in self._assigned:
            line = self._source.line_of(known.node)
            raise self._error(
                node,
                f"{name} may have no value here, as only some ways to here assign one (line "
                f"{line}): give it a value before",
            )
        made = BufferLoad(known.buffer, (e.const(0),))
        if known.adapts:
            self._numbers.let_adapt(made)
        return made

    def _captured(self, node: ast.AST, name: str, value: Any) -> Any:
        """A value from outside of the function."""
        if isinstance(value, (tuple, list)):
            return tuple(self._captured(node, name, each) for each in value)
        if isinstance(value, (ScriptedFunction, ModuleType)):
            return value
        made = plain(value)
        if made is not NO_VALUE and value is not None:
            return made
        if is_intrinsic(value):
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
        raise self._error(node, f"expected a number, got {name}, {shown(value)}, from outside")

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
        if not is_intrinsic(function):
            raise self._error(node.func, f"expected a function to call, got {shown(function)}")
        name: str = function.__name__
        if name in ("allocate", "output_tensor"):
            bound = inspect.signature(function).bind(*args, **named)
            bound.apply_defaults()
            return self._new_buffer(node, name, target, **bound.arguments)
        if named:
            raise self._error(
                node, f"expected arguments of {name} by position, got {', '.join(named)}="
            )
        if name in syntax.KINDS:
            return self._range(node, name, args)
        if all(map(is_known, args)) and name != "bind" and name not in intrinsics.CASTS:
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
        read_only = frozenset(buffers_in(tuple(values.values())))
        call = (*self._call, self._positions[-1], (node.lineno, node.col_offset))
        source = read_source(function.pyfunc)
        return _Parser(function, source, values, self._facts, self, read_only, call).inlined()

    def _new_buffer(
        self, node: ast.AST, kind: str, name: str, shape: Any, dtype: Any, scope: str = "global"
    ) -> Buffer:
        extents = shape if isinstance(shape, tuple) else (shape,)
        sizes = [simple(each) if isinstance(each, PrimExpr) else each for each in extents]
        buffer = decl_buffer(sizes, dtype, name, scope=scope)
        for extent in buffer.shape:
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
                    node, f"expected integers as bounds of {name}, got {shown(bound)}"
                )
        step = number_if_known(step)
        if not isinstance(step, int) or not step:
            raise self._error(
                node, f"expected a known step other than 0 of {name}, got {shown(step)}"
            )
        low, high = e.promote(*map(e.as_index, self._numbers.operands([begin, end])))
        return Loop(syntax.KINDS[name], low, high, step)

    def _intrinsic(self, node: ast.Call, name: str, args: list[Any]) -> Any:
        """A call of an intrinsic on arguments of which not all are known."""
        match name:
            case "const_range":
                bounds = [number_if_known(simple(e.as_expr(bound))) for bound in args]
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
                return self._numbers.made(e.absolute, *args)
            case "ceil_div":
                return self._numbers.made(op.ceildiv, *args)
        if name in intrinsics.CASTS:
            return e.cast(name, *args)
        return self._numbers.made(getattr(op, name), *args)

    def _extremum(self, function: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
        made = values[0]
        for each in values[1:]:
            made = self._numbers.made(function, made, each)
        return made

    def _length(self, node: ast.Call, args: Sequence[Any]) -> Any:
        if len(args) == 1 and isinstance(args[0], tuple):
            return len(args[0])
        if len(args) == 1 and isinstance(args[0], (Buffer, Part)):
            taken = 0 if isinstance(args[0], Buffer) else len(args[0].indices)
            buffer = args[0] if isinstance(args[0], Buffer) else args[0].buffer
            if buffer.ndim > taken:
                return number_if_known(buffer.shape[taken])
        raise self._error(node, f"expected len of a tuple or a tensor, got {shown(args[0])}")


def _as_read(target: ast.expr) -> ast.expr:
    """The target of an augmented assignment as the expression that reads it."""
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    if isinstance(target, ast.Subscript):
        return ast.Subscript(target.value, target.slice, ast.Load())
    return target


def _names_in(target: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]
