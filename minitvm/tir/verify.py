"""Checks of the invariants of the loop IR, which every pass may rely on and must keep."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType
from typing import Any, NoReturn

from minitvm.runtime.dtype import BOOL, HANDLE, DType
from minitvm.runtime.errors import RAISABLE, CompileError, InternalError, TVMError
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, PrimExpr, Var
from minitvm.tir.functor import CHILDREN, find, free_vars, walk_once
from minitvm.tir.intrinsics import CALLS, INTRINSICS, VECTOR_FOLDS, Intrinsic
from minitvm.tir.stmt import PrimFunc, Stmt


def verify(func: PrimFunc) -> None:
    """Checks that a function is valid loop IR.

    * A variable is read only inside the scope that defines it: a parameter, a variable that is a
      dimension, stride or offset of a parameter, a loop or a let. No scope defines a variable that
      is defined around it. Scopes side by side may define the same variable, as the copies of an
      unrolled body do.
    * A buffer is used only inside its ``Allocate``, or is a parameter's.
    * Calls have arguments of the numbers and dtypes for which they are defined.
    * No node of the tensor expressions is left.

    The nodes' constructors check that the dtypes of operands, conditions, indices, bounds and
    values fit together.

    Raises
    ------
    InternalError
        When the function isn't valid, with its name and the text of the first node at fault.

    >>> from minitvm.tir.expr import IntImm, Var
    >>> from minitvm.tir.stmt import Evaluate, PrimFunc
    >>> verify(PrimFunc((), Evaluate(Var("i")), {}, "f"))
    Traceback (most recent call last):
        ...
    minitvm.runtime.errors.InternalError: f: variable i: expected a use inside the scope that \
defines it, found one outside, in
        i
    """
    _Verifier(func).run()


def check_calls(name: str, *roots: PrimExpr | Stmt) -> None:
    """Refuses the user's expressions if they call an intrinsic that isn't defined.

    Raises
    ------
    CompileError
        With `name`, and the text of the call.
    """
    for node in walk_once(*roots):
        if isinstance(node, e.Call):
            for problem in call_problems(node):
                raise CompileError(f"{name}: {problem}, in {node}")


def check_written(func: PrimFunc) -> None:
    """:func:`verify` for a function that the user wrote.

    Raises
    ------
    CompileError
        When the function isn't valid.
    """
    _Verifier(func, CompileError).run()


def check_body(name: str, body: Stmt, buffers: Sequence[Buffer]) -> None:
    """Checks the user's statement, which reads and writes `buffers`; variables that it does not
    define are parameters.

    Raises
    ------
    CompileError
        As :func:`check_written`.
    """
    own = [node.buffer for node in find(s.Allocate, body)]
    inside = {buffer.data for buffer in own}
    read: list[PrimExpr | Stmt] = [body]
    read += [size for buffer in (*buffers, *own) for size in buffer.sizes]
    free = dict.fromkeys(var for root in read for var in free_vars(root))
    handles = tuple(Var(buffer.name, HANDLE) for buffer in buffers)
    params = (*handles, *(var for var in free if var not in inside))
    check_written(PrimFunc(params, body, dict(zip(handles, buffers, strict=True)), name))


Node = PrimExpr | Stmt
Step = Callable[[], None]  # an action between two nodes: a scope begins or ends

_LINES_SHOWN = 8


class _Verifier:
    """The open scopes, and a walk through the function with a stack of its own."""

    def __init__(self, func: PrimFunc, error: type[TVMError] = InternalError) -> None:
        self._func = func
        self._error = error
        self._variables: set[Var] = set()
        self._buffers: set[Buffer] = set()
        self._checked: set[PrimExpr] = set()  # in these scopes: shared ones cost nothing

    def run(self) -> None:
        func = self._func
        self._variables.update(func.params)
        if len(self._variables) != len(func.params):
            self._fail("parameters: expected each once, found one twice", func)
        for param, buffer in func.buffer_map.items():
            if param not in self._variables:
                self._fail(f"buffer {buffer.name}: expected a parameter for it, found none", func)
        for buffer in func.buffer_map.values():
            self._buffers.add(buffer)
            self._variables.add(buffer.data)
            self._variables.update(d for d in buffer.sizes if isinstance(d, Var))
        for buffer in func.buffer_map.values():
            for dimension in buffer.sizes:
                self._walk(dimension)
        self._walk(func.body)

    def _walk(self, root: Node) -> None:
        stack: list[Node | Step] = [root]
        while stack:
            top = stack.pop()
            if isinstance(top, FunctionType):
                top()
            elif top not in self._checked:
                self._check(top)
                stack.extend(reversed(self._steps(top)))

    def _check(self, node: Any) -> None:
        if isinstance(node, Var) and node not in self._variables:
            self._fail(f"variable {node.name}: {_OUTSIDE}", node)
        buffer: Buffer | None = getattr(node, "buffer", None)
        if buffer and buffer not in self._buffers and not isinstance(node, s.Allocate):
            self._fail(f"buffer {buffer.name}: {_OUTSIDE}", node)
        self._complain(_PROBLEMS.get(type(node), _nothing)(node), node)
        if isinstance(node, PrimExpr):
            self._checked.add(node)

    def _steps(self, node: Any) -> list[Node | Step]:
        """The children of a node, with the scope that it opens around its body."""
        steps: list[Node | Step] = []
        for name in CHILDREN[type(node)]:
            child = getattr(node, name)
            if name == "body":
                steps += self._scoped(node, child)
            elif isinstance(child, Buffer):
                steps += child.sizes
            else:
                steps += child if isinstance(child, tuple) else [child] * (child is not None)
        return steps

    def _scoped(self, node: Node, body: Node) -> list[Node | Step]:
        if isinstance(node, s.For):
            return self._around(self._variables, node.loop_var, node, body)
        if isinstance(node, e.Let | s.LetStmt):
            return self._around(self._variables, node.var, node, body)
        if isinstance(node, s.Allocate):
            buffer = node.buffer
            inside = self._around(self._variables, buffer.data, node, body)
            return self._around(self._buffers, buffer, node, *inside)
        if isinstance(node, s.AttrStmt) and node.attr_key == s.VIEW:
            return self._around(self._buffers, node.node, node, body)
        return [body]

    def _around(
        self, scope: set[Any], entity: Var | Buffer, node: Node, *inside: Node | Step
    ) -> list[Node | Step]:
        def begin() -> None:
            if entity in scope:
                self._fail(f"{entity.name}: expected one definition, found another inside", node)
            scope.add(entity)
            self._checked.clear()

        def end() -> None:
            scope.remove(entity)
            self._checked.clear()

        return [begin, *inside, end]

    def _complain(self, problems: Iterable[str], node: Node | PrimFunc) -> None:
        for problem in problems:
            self._fail(problem, node)

    def _fail(self, problem: str, node: Node | PrimFunc) -> NoReturn:
        lines = str(node).splitlines()
        if len(lines) > _LINES_SHOWN:
            lines[_LINES_SHOWN:] = ["..."]
        text = "".join(f"\n    {line}" for line in lines)
        raise self._error(f"{self._func.name}: {problem}, in{text}")


_OUTSIDE = "expected a use inside the scope that defines it, found one outside"


# -- Mistakes in a node by itself that its constructor doesn't refuse ------------------------------


def _nothing(node: Any) -> Iterator[str]:
    yield from ()


def _expected(what: str, wanted: DType, node: PrimExpr) -> Iterator[str]:
    if node.dtype != wanted:
        yield f"{what}: expected {wanted}, got {node.dtype}"


def _index_problems(what: str, node: PrimExpr) -> Iterator[str]:
    if not node.dtype.is_integral or node.dtype.is_bool:
        yield f"{what}: expected an integer, got {node.dtype}"


def _assert(node: s.AssertStmt) -> Iterator[str]:
    if node.kind not in RAISABLE:
        yield f"assert: expected a kind among {', '.join(RAISABLE)}, got {node.kind!r}"
    yield from _message_problems("assert", node.message, node.values)


def _message_problems(what: str, message: str, values: Sequence[PrimExpr]) -> Iterator[str]:
    if message.count("{}") != len(values):
        yield f"{what}: expected {message.count('{}')} values, got {len(values)}"
    for i, value in enumerate(values):
        yield from _index_problems(f"{what}: value {i}", value)


def _left_over(node: e.ProducerLoad | e.Reduce) -> Iterator[str]:
    yield f"{type(node).__name__}: expected in tensor expressions only, found it in the loop IR"


# -- Calls ----------------------------------------------------------------------------------------


def llvm_name_problems(name: Any) -> Iterator[str]:
    """The mistakes in the name of an intrinsic of LLVM."""
    if not isinstance(name, str) or not re.fullmatch(r"llvm(\.\w+)+", name, re.ASCII):
        yield (
            "expected a name that starts with 'llvm.', of letters, digits, _ and dots, got "
            f"{e.described(name)}"
        )


def call_problems(node: e.Call) -> Iterator[str]:
    """The mistakes in the name, the arguments and the dtype of a call."""
    known = INTRINSICS.get(node.op) or CALLS.get(node.op)
    if known is None:
        yield f"call: expected the name of an intrinsic, got {node.op!r}"
    elif known.arity is not None and len(node.args) != known.arity:
        yield f"{node.op}: expected {known.arity} arguments, got {len(node.args)}"
    elif isinstance(known, Intrinsic):
        yield from _intrinsic(node, known)
    else:
        problems: Callable[[e.Call], Iterator[str]] = _CALL_PROBLEMS.get(node.op, _nothing)
        yield from problems(node)


def _intrinsic(node: e.Call, known: Intrinsic) -> Iterator[str]:
    first = node.args[0].dtype
    problem = known.problem(first)
    if problem is not None:
        yield f"{node.op}: {problem}"
    yield from _expected(node.op, known.result_of(first), node)
    for other in node.args[1:]:
        yield from _expected(f"{node.op}: argument 1", known.second_of(first), other)


def _call_by_name(node: e.Call) -> Iterator[str]:
    if not node.args or not isinstance(node.args[0], e.StringImm):
        yield f"{node.op}: expected the name of a function first, found none"
    elif node.op in ("call_llvm_intrin", "call_llvm_pure_intrin"):
        yield from llvm_name_problems(node.args[0].value)


def _checked(node: e.Call) -> Iterator[str]:
    if len(node.args) < 3 or not isinstance(node.args[1], e.StringImm):
        yield "checked: expected a condition, a message and a value, found none"
        return
    condition, message, value, *shown = node.args
    assert isinstance(message, e.StringImm)
    yield from _expected("condition", BOOL, condition)
    yield from _expected("checked", value.dtype, node)
    yield from _message_problems("checked", message.value, shown)


def _if_then_else(node: e.Call) -> Iterator[str]:
    yield from _expected("condition", BOOL, node.args[0])
    for i in (1, 2):
        yield from _expected(f"if_then_else: argument {i}", node.dtype, node.args[i])


def _likely(node: e.Call) -> Iterator[str]:
    yield from _expected("likely", BOOL.with_lanes(node.dtype.lanes), node)
    yield from _expected("likely: argument 0", node.dtype, node.args[0])


def _reinterpret(node: e.Call) -> Iterator[str]:
    wanted, given = node.dtype, node.args[0].dtype
    if wanted.bits * wanted.lanes != given.bits * given.lanes:
        yield f"reinterpret: expected types of one width, got {given} as {wanted}"


def _extract(node: e.Call) -> Iterator[str]:
    yield from _expected("vector_extract", node.args[0].dtype.element, node)
    yield from _index_problems("vector_extract: argument 1", node.args[1])
    yield from _expected("vector_extract: argument 1", node.args[1].dtype.element, node.args[1])


def _shuffle(node: e.Call) -> Iterator[str]:
    if len(node.args) < 4:
        yield f"{node.op}: expected two vectors and two lanes at least, got {len(node.args)} args"
        return
    a, b, *chosen = node.args
    yield from _expected(f"{node.op}: argument 1", a.dtype, b)
    yield from _expected(node.op, a.dtype.with_lanes(len(chosen)), node)
    lanes = a.dtype.lanes
    if lanes == 1:
        yield f"{node.op}: expected vectors, got {a.dtype}"
    for each in chosen:
        if e.const_int(each) not in range(2 * lanes):
            yield f"{node.op}: expected numbers of lanes below {2 * lanes}, got {each}"


def _fold(node: e.Call) -> Iterator[str]:
    start, vector = node.args
    yield from _expected(f"{node.op}: argument 0", vector.dtype.element, start)
    yield from _expected(node.op, start.dtype, node)
    bitwise = VECTOR_FOLDS[node.op] in INTRINSICS
    if bitwise and not start.dtype.is_integral:
        yield f"{node.op}: expected integers or bools, got {start.dtype}"
    if start.dtype.is_bool and node.op in ("vector_reduce_add", "vector_reduce_mul"):
        yield f"{node.op}: expected numbers, got {start.dtype}"


def _isnullptr(node: e.Call) -> Iterator[str]:
    yield from _expected("isnullptr: argument 0", HANDLE, node.args[0])


def _are_apart(node: e.Call) -> Iterator[str]:
    for position, arg in enumerate(node.args):
        yield from _expected(f"are_apart: argument {position}", HANDLE, arg)


def _prefetch(node: e.Call) -> Iterator[str]:
    if not isinstance(node.args[0], e.BufferLoad):
        yield f"prefetch: expected an element of a buffer, got {type(node.args[0]).__name__}"


def _takes_buffer(node: e.Call) -> Iterator[str]:
    if not isinstance(node.args[0], e.BufferRef):
        yield f"{node.op}: expected a buffer first, got {type(node.args[0]).__name__}"


def _region(node: e.Call) -> Iterator[str]:
    reference = node.args[0] if node.args else None
    if not isinstance(reference, e.BufferRef):
        yield f"{node.op}: expected a buffer first, found none"
        return
    ndim = reference.buffer.ndim
    if not ndim <= len(node.args) - 1 <= 2 * ndim:
        yield f"{node.op}: expected {ndim} begins and up to as many extents, got {len(node.args)}"
    for i, number in enumerate(node.args[1:], 1):
        yield from _index_problems(f"{node.op}: argument {i}", number)


_CALL_PROBLEMS: dict[str, Callable[[e.Call], Iterator[str]]] = {
    "if_then_else": _if_then_else,
    "likely": _likely,
    "prefetch": _prefetch,
    "reinterpret": _reinterpret,
    "isnullptr": _isnullptr,
    "are_apart": _are_apart,
    "tvm_access_ptr": _takes_buffer,
    "vector_extract": _extract,
    "vector_shuffle": _shuffle,
    "tvm_stack_make_array": _region,
    "checked": _checked,
    **dict.fromkeys(VECTOR_FOLDS, _fold),
    **dict.fromkeys(
        ("call_packed", "call_extern", "call_llvm_intrin", "call_llvm_pure_intrin"), _call_by_name
    ),
}

_PROBLEMS: dict[type, Callable[[Any], Iterator[str]]] = {
    e.Call: call_problems,
    e.ProducerLoad: _left_over,
    e.Reduce: _left_over,
    s.AssertStmt: _assert,
}
