"""The parser of hybrid functions: from a syntax tree to an operation of loop IR.

The tree is followed as Python would run it. Python computes at once the values that are known while
the tree is followed: numbers, tuples, shapes, conditions on them. The rest becomes loop IR.

A name is bound to a value, and bound anew by each assignment in a row. Only a name that a loop or a
branch assigns to from inside becomes a variable, a buffer of one element. The parser meets this
assignment after the name's first use; it adds the fact to `Facts`, and follows the tree again from
the start.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from minitvm.runtime.errors import CompileError
from minitvm.te.hybrid.calls import run
from minitvm.te.hybrid.expressions import condition, element_of, of_two, value_of
from minitvm.te.hybrid.frame import Frame, Program
from minitvm.te.hybrid.names import assign_name, settled
from minitvm.te.hybrid.source import ScriptedFunction, read_source
from minitvm.te.hybrid.values import (
    NO_VALUE,
    Binding,
    Block,
    Facts,
    Learned,
    Loop,
    plain,
    shown,
    simple,
)
from minitvm.te.tag import scoped_tag
from minitvm.te.tensor import ExternOp, Tensor
from minitvm.tir import expr as e
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import Buffer, BufferLoad, PrimExpr, Var
from minitvm.tir.stmt import AssertStmt, BufferStore, For, ForKind, IfThenElse, Stmt, While


def parse(function: ScriptedFunction, arguments: Mapping[str, Any]) -> ExternOp:
    """The operation that a call of a hybrid function stands for. `arguments` are tensors,
    expressions, numbers and tuples of them, by the names of its parameters.

    Raises
    ------
    CompileError
        Where the function uses an unsupported construct; the text shows the line of its source.
    """
    name, source = function.pyfunc.__name__, read_source(function.pyfunc)
    facts = Facts()
    while True:
        inputs: dict[Tensor, Buffer] = {}
        values = {key: _argument(name, key, value, inputs) for key, value in arguments.items()}
        known = facts.count
        read_only = frozenset(inputs.values())
        frame = Frame(function, source, Program(facts), read_only, _follow)
        try:
            run(frame, values)
        except Learned:
            assert facts.count > known  # otherwise this loop would never end
            continue
        outputs = _outputs(frame)
        body = frame.program.blocks[0].statement()
        tensors, places = tuple(inputs), tuple(inputs.values())
        return ExternOp(name, scoped_tag(name, ""), {}, tensors, places, outputs, body)


def _argument(function: str, name: str, value: Any, inputs: dict[Tensor, Buffer]) -> Any:
    """An argument as a value of the program; tensors become buffers, which `inputs` collects."""
    if isinstance(value, Tensor):
        if value not in inputs:
            inputs[value] = decl_buffer(value.shape, value.dtype, value.name)
        return inputs[value]
    if isinstance(value, (tuple, list)):
        return tuple(_argument(function, name, member, inputs) for member in value)
    made = plain(value)
    if made is NO_VALUE:
        raise CompileError(
            f"{function}: argument {name}: expected a tensor, an expression, a number or a "
            f"tuple of them, got {type(value).__name__}"
        )
    return made


def _outputs(frame: Frame) -> tuple[Buffer, ...]:
    """The buffers that a function returns, which must be all buffers that it made by
    output_tensor."""
    returned = frame.returned if isinstance(frame.returned, tuple) else (frame.returned,)
    node, outputs = frame.source.tree.body[-1], frame.program.outputs
    for value in returned:
        if not isinstance(value, Buffer) or value not in outputs:
            raise frame.error(
                node,
                f"expected to return tensors made by output_tensor, got {shown(value)}: "
                "make one, and store to it",
            )
    if len(set(returned)) < len(returned):
        raise frame.error(node, "expected to return each tensor once, got one twice")
    for buffer in outputs:
        if buffer not in returned:
            raise frame.error(
                node,
                f"expected every output_tensor to be returned, found {buffer.name} left out: "
                "return it, or make it with allocate",
            )
    return returned


# -- Statements -----------------------------------------------------------------------------------


def _follow(frame: Frame) -> None:
    """Follows the statements of a function to its return."""
    _statements(frame, frame.source.tree.body)
    if frame.returned is NO_VALUE:
        raise frame.error(frame.source.tree, "expected a return at its end, found none")


def _statements(frame: Frame, nodes: Sequence[ast.stmt]) -> None:
    for node in nodes:
        if frame.returned is not NO_VALUE:
            return  # a branch that was taken has returned
        add = _STATEMENTS.get(type(node))
        if add is None:
            raise frame.unsupported(node)
        with frame.located(node):
            add(frame, node)


def _expression(frame: Frame, node: ast.Expr) -> None:
    if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return  # a docstring
    if not isinstance(node.value, ast.Call):
        raise frame.error(node, "expected a statement, found an expression: its value is lost")
    value_of(frame, node.value)


def _return(frame: Frame, node: ast.Return) -> None:
    if len(frame.program.blocks) > frame.depth:
        raise frame.error(
            node, "expected the return at the end of the function, found it in a block"
        )
    if node.value is None:
        raise frame.error(node, "expected a value to return, found none")
    frame.returned = value_of(frame, node.value)


def _assert(frame: Frame, node: ast.Assert) -> None:
    held = condition(frame, node.test)
    message = "expected " + ast.unparse(node.test)
    if node.msg is not None:
        message = value_of(frame, node.msg)
    if not isinstance(message, str) or "{}" in message:
        raise frame.error(node.msg or node, "expected a string without {} as the message")
    if held is False:
        raise frame.error(node, f"the assertion never holds: {message}")
    if held is not True:
        frame.program.emit(lambda rest: AssertStmt(held, message, rest))


def _if(frame: Frame, node: ast.If) -> None:
    held = condition(frame, node.test)
    if isinstance(held, bool):
        _statements(frame, node.body if held else node.orelse)
        return
    before = set(frame.names)
    with frame.block(loop=False) as then_block:
        _statements(frame, node.body)
        then_names, then_assigned = set(frame.names), frame.assigned
    with frame.block(loop=False) as else_block:
        _statements(frame, node.orelse)
        else_names, else_assigned = set(frame.names), frame.assigned
    frame.assigned = then_assigned & else_assigned
    for name in (then_names & else_names) - before:
        frame.merged[name] = frame.key(name)
    else_case = else_block.statement() if node.orelse else None
    frame.program.emit(IfThenElse(held, then_block.statement(), else_case))


# -- Loops ----------------------------------------------------------------------------------------


def _while(frame: Frame, node: ast.While) -> None:
    _check_no_else(frame, node)
    items = frame.program.blocks[-1].items
    before = len(items)
    held = condition(frame, node.test)
    if held is False:
        return
    if held is True:
        _learn_what_changes(frame, node)
        raise frame.error(
            node.test,
            "expected a condition that can change, found one that always holds: a loop ends by its "
            "condition, or is a `for` over a range",
        )
    if len(items) > before:
        raise frame.error(node.test, "expected a condition without calls of other hybrid functions")
    with _loop(frame, node, ForKind.SERIAL) as block:
        _statements(frame, node.body)
    frame.program.emit(While(held, block.statement()))


def _check_no_else(frame: Frame, node: ast.For | ast.While) -> None:
    if node.orelse:
        raise frame.error(
            node.orelse[0], "expected no else of a loop, found one: write it after it"
        )


def _learn_what_changes(frame: Frame, node: ast.While) -> None:
    """Makes variables of the names that the condition of a while loop reads and its body assigns
    to: the condition was evaluated for the first iteration only."""
    read = set(_names_in(node.test))
    stored = (each for part in node.body for each in ast.walk(part))
    for each in stored:
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and each.id in read:
            known = frame.names.get(each.id)
            if isinstance(known, Binding) and not known.is_loop:
                frame.program.facts.variables.add(known.key)
                raise Learned


def _for(frame: Frame, node: ast.For) -> None:
    _check_no_else(frame, node)
    values = value_of(frame, node.iter)
    for name in _names_in(node.target):
        _check_loop_name(frame, node.target, name)
    if isinstance(values, (range, tuple)):
        _write_out(frame, node, values)
        return
    if not isinstance(values, Loop):
        raise frame.error(
            node.iter,
            "expected range, parallel, vectorize, unroll, const_range or a tuple to loop "
            f"over, got {shown(values)}",
        )
    if not isinstance(node.target, ast.Name):
        raise frame.error(node.target, "expected one variable of the loop, found several")
    frame.program.emit(_loop_over(frame, node, node.target.id, values))


def _check_loop_name(frame: Frame, node: ast.AST, name: str) -> None:
    """Refuses a loop variable whose name has a value around the loop."""
    known = frame.names.get(name)
    block = frame.program.blocks[-1]
    is_free = isinstance(known, Binding) and known.block is block and not known.is_loop
    if known is not None and not is_free:
        raise frame.error(
            node,
            f"{name} has a value from line {frame.line_of(known)}, around this loop: "
            "use another name for the loop's variable",
        )


def _write_out(frame: Frame, node: ast.For, values: Sequence[Any]) -> None:
    """Follows the body once for each value of the loop variable, which is a known number there."""
    for value in values:
        _assign_to(frame, node.target, value)
        _statements(frame, node.body)
    for name in _names_in(node.target):
        frame.names.pop(name, None)
        frame.ended[name] = f"the loop at line {frame.source.line_of(node)}"


def _loop_over(frame: Frame, node: ast.For, name: str, loop: Loop) -> Stmt:
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
        raise frame.error(
            node.iter,
            f"expected a constant number of iterations to vectorize, got {extent}: use range, "
            "which the compiler vectorizes where it can",
        )
    frame.names.pop(name, None)
    with _loop(frame, node, loop.kind) as block:
        frame.bind(name, value, node, is_loop=True)
        _statements(frame, node.body)
    return For(var, low, extent, loop.kind, block.statement())


@contextmanager
def _loop(frame: Frame, node: ast.stmt, kind: ForKind) -> Iterator[Block]:
    frame.program.loops.append(kind)
    frame.positions.append((*frame.positions[-1], (node.lineno, node.col_offset)))
    with frame.block(loop=True) as block:
        yield block
    frame.positions.pop()
    frame.program.loops.pop()


def _names_in(target: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]


# -- Assignment -----------------------------------------------------------------------------------


def _assign(frame: Frame, node: ast.Assign) -> None:
    first = node.targets[0]
    frame.target = first.id if isinstance(first, ast.Name) else "buffer"
    value = value_of(frame, node.value)
    frame.target = "buffer"
    for target in node.targets:
        _assign_to(frame, target, value)


def _augmented_assign(frame: Frame, node: ast.AugAssign) -> None:
    read = value_of(frame, ast.copy_location(_as_read(node.target), node.target))
    value = of_two(frame, node, node.op, read, value_of(frame, node.value))
    _assign_to(frame, node.target, value)


def _as_read(target: ast.expr) -> ast.expr:
    """The target of an augmented assignment as the expression that reads it."""
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    if isinstance(target, ast.Subscript):
        return ast.Subscript(target.value, target.slice, ast.Load())
    return target


def _assign_to(frame: Frame, target: ast.expr, value: Any) -> None:
    match target:
        case ast.Name():
            assign_name(frame, target, value)
        case ast.Tuple() | ast.List():
            _assign_several(frame, target, value)
        case ast.Subscript():
            _store(frame, target, value)
        case _:
            raise frame.error(target, "expected a name or an element to assign to")


def _assign_several(frame: Frame, target: ast.Tuple | ast.List, value: Any) -> None:
    if not isinstance(value, tuple) or len(value) != len(target.elts):
        raise frame.error(
            target, f"expected a tuple of {len(target.elts)} values, got {shown(value)}"
        )
    # All values are computed before the first is assigned: `a, b = b, a`.
    for each, made in zip(target.elts, settled(frame, "value", value), strict=True):
        _assign_to(frame, each, made)


def _store(frame: Frame, target: ast.Subscript, value: Any) -> None:
    place = element_of(frame, target)
    if not isinstance(place, BufferLoad):
        raise frame.error(target, f"expected an element to assign to, got {shown(place)}")
    buffer = place.buffer
    if buffer in frame.read_only:
        raise frame.error(
            target,
            f"expected an array of the function's own to store to, got parameter "
            f"{buffer.name}: make one with output_tensor or allocate",
        )
    with frame.located(target):
        stored = frame.program.numbers.converted(buffer.name, value, buffer.dtype)
    frame.program.emit(BufferStore(buffer, stored, place.indices))


_STATEMENTS: dict[type[ast.stmt], Callable[[Frame, Any], None]] = {
    ast.Assert: _assert,
    ast.Assign: _assign,
    ast.AugAssign: _augmented_assign,
    ast.Expr: _expression,
    ast.For: _for,
    ast.If: _if,
    ast.Pass: lambda frame, node: None,
    ast.Return: _return,
    ast.While: _while,
}
