"""The text of expressions, statements and functions: Python as far as Python goes.

* Parentheses stand only where Python's precedence needs them to read the same tree.
* Constants of int32, int64, float32 and bool print plainly, as the shortest digits that give the
  same value; any other dtype is named: ``float64(0.5)``, ``uint8(3)``. So ``3`` is always an index,
  of int32 or int64, as its neighbours show.
* Different variables, buffers and tensors of one name print as ``i``, ``i_1``, ... within one text.

The text is for people and golden tests; nothing parses it. Any tree prints, even an invalid one,
since error messages show it. The walks below keep their own stacks, so depth is no limit.
Subexpressions that a long expression shares are printed once, and named there: ``(v := exp(x))``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from minitvm.runtime.dtype import FLOAT32, INT32, INT64, DType
from minitvm.tir import nodes as n
from minitvm.tir import scalars
from minitvm.tir.conversion import const_int
from minitvm.tir.node import PrimExpr, Stmt, WholeTensor
from minitvm.tir.nodes import Buffer, ForKind, PrimFunc, Var
from minitvm.tir.structural_equal import structural_equal


def text(node: PrimExpr | Stmt | PrimFunc) -> str:
    """The text of a node."""
    if isinstance(node, PrimExpr):
        return expr_text(node)
    return func_text(node) if isinstance(node, PrimFunc) else stmt_text(node)


def expr_text(node: PrimExpr) -> str:
    """The text of an expression, on one line.

    >>> from minitvm.tir.expr import Var
    >>> i, j = Var("i"), Var("j")
    >>> print(expr_text((i + 1) * j - (i - j)))
    (i + 1) * j - (i - j)
    """
    return _Printer().join([(node, _ANY)])


def stmt_text(node: Stmt) -> str:
    """The text of a statement, on lines of their own.

    >>> from minitvm.tir.expr import Var
    >>> from minitvm.tir.stmt import Evaluate, LetStmt
    >>> i = Var("i")
    >>> print(stmt_text(LetStmt(i, Var("n") // 2, Evaluate(i))))
    i = n // 2
    i
    """
    return "\n".join(_Printer().lines(node, 0))


def func_text(func: PrimFunc) -> str:
    """The text of a function.

    >>> from minitvm.tir.expr import Var
    >>> from minitvm.tir.stmt import PrimFunc, SeqStmt
    >>> print(func_text(PrimFunc((Var("n"),), SeqStmt(()), {}, "nothing")))
    def nothing(n: int32):
        pass
    """
    printer = _Printer()
    for param in func.params:  # named first, so that the parameters keep their names
        if param in func.buffer_map:
            printer.name_of_parameter(param, func.buffer_map[param])
        else:
            printer.name_of(param)
    params = [_parameter_text(printer, func, param) for param in func.params]
    header = [f"def {func.name}({', '.join(params)}):"]
    if len(header[0]) > _WIDTH:
        header = [f"def {func.name}(", *[f"{_INDENT}{param}," for param in params], "):"]
    return "\n".join([*header, *printer.lines(func.body, 1)])


_WIDTH = 100
_LONG = 4000  # texts in one line, beyond which shared subexpressions have names
_INDENT = "    "

# The precedence of each form, loosest first, as in Python's grammar.
_ANY, _OR, _AND, _NOT, _COMPARE = range(5)
_BIT_OR, _BIT_XOR, _BIT_AND, _SHIFT, _SUM, _PRODUCT, _UNARY, _ATOM = range(5, 13)

# A piece of text, or an expression and the least precedence that needs no parentheses.
Piece = str | tuple[PrimExpr, int]
Form = tuple[int, Sequence[Piece]]  # the precedence of the whole, and its pieces


class _Printer:
    """The names given so far, and the two walks that give further names."""

    def __init__(self) -> None:
        self._names: dict[object, str] = {}
        self._taken: set[str] = set()
        self._next_suffix: dict[str, int] = {}

    def name_of(self, entity: Var | Buffer | WholeTensor) -> str:
        """The unique name of an entity. A buffer's pointer is named after it."""
        if entity in self._names:
            return self._names[entity]
        name = self._names[entity] = self._unique(entity.name)
        if isinstance(entity, Buffer):
            self._names.setdefault(entity.data, f"{name}.data")
        return name

    def name_of_parameter(self, param: Var, buffer: Buffer) -> None:
        """Names a tensor: the parameter is known by its buffer's name."""
        self._names.setdefault(param, self.name_of(buffer))

    def _unique(self, name: str) -> str:
        candidate = name
        while candidate in self._taken:
            suffix = self._next_suffix.get(name, 1)
            self._next_suffix[name] = suffix + 1
            candidate = f"{name}_{suffix}"
        self._taken.add(candidate)
        return candidate

    def join(self, pieces: Sequence[Piece]) -> str:
        """The text of pieces one after the other."""
        texts = self._texts(pieces, {}, _LONG)
        if texts is None:
            texts = self._texts(pieces, self._shared(pieces)) or []
        return "".join(texts)

    def _texts(
        self, pieces: Sequence[Piece], shared: dict[PrimExpr, str], most: float = math.inf
    ) -> list[str] | None:
        """The texts of pieces, in which subexpressions that are `shared` get names; None if there
        are more than `most`."""
        texts: list[str] = []
        stack: list[Piece] = list(reversed(pieces))
        while stack:
            piece = stack.pop()
            if isinstance(piece, str):
                texts.append(piece)
                if len(texts) > most:
                    return None
                continue
            node, needed = piece
            if shared.get(node):
                texts.append(shared[node])
                continue
            level, inner = self._form(node)
            if node in shared:
                shared[node] = self._unique("v")
                level, inner = _ATOM, (f"({shared[node]} := ", *inner, ")")
            stack.extend(reversed(inner if level >= needed else ("(", *inner, ")")))
        return texts

    def _shared(self, pieces: Sequence[Piece]) -> dict[PrimExpr, str]:
        """The subexpressions that occur several times in some pieces, without names yet. The graph
        may be exponentially smaller than the tree."""
        seen: set[PrimExpr] = set()
        shared: dict[PrimExpr, str] = {}
        stack = [piece[0] for piece in reversed(pieces) if not isinstance(piece, str)]
        while stack:
            node = stack.pop()
            inner = [piece[0] for piece in self._form(node)[1] if not isinstance(piece, str)]
            if node not in seen:
                seen.add(node)
                stack.extend(reversed(inner))
            elif inner and not isinstance(node, n.ProducerLoad | n.BufferLoad | n.Ramp):
                shared[node] = ""
        return shared

    def _form(self, node: PrimExpr) -> Form:
        return _FORMS.get(type(node), _unknown)(self, node)

    def expr(self, node: PrimExpr) -> str:
        return self.join([(node, _ANY)])

    def lines(self, node: Stmt, depth: int) -> list[str]:
        """The lines of a statement that stands `depth` levels deep."""
        texts: list[str] = []
        stack: list[tuple[int, Stmt | str]] = [(depth, node)]
        while stack:
            depth, top = stack.pop()
            if isinstance(top, str):
                texts.append(_INDENT * depth + top)
                continue
            block = _BLOCKS[type(top)](self, top)
            stack.extend((depth + deeper, each) for deeper, each in reversed(block))
        return texts


# -- Expressions: each node's form ----------------------------------------------------------------


def _listed(nodes: Sequence[PrimExpr]) -> list[Piece]:
    """``a, b, c``."""
    pieces: list[Piece] = []
    for node in nodes:
        pieces += [", ", (node, _ANY)] if pieces else [(node, _ANY)]
    return pieces


def _tuple(nodes: Sequence[PrimExpr]) -> list[Piece]:
    """``a`` alone, otherwise ``(a, b)``."""
    return _listed(nodes) if len(nodes) == 1 else ["(", *_listed(nodes), ")"]


def _call_form(name: str, *args: PrimExpr, first: str = "", last: str = "") -> Form:
    pieces = _listed(args)
    if first:
        pieces[:0] = [first, ", "] if args else [first]
    return _ATOM, (f"{name}(", *pieces, f"{last})")


def _infix(symbol: str, level: int, a: PrimExpr, b: PrimExpr) -> Form:
    """A left-associative operator; comparisons are not associative."""
    left = level + 1 if level == _COMPARE else level
    return level, ((a, left), f" {symbol} ", (b, level + 1))


def _operator(symbol: str, level: int) -> Callable[[_Printer, Any], Form]:
    return lambda printer, node: _infix(symbol, level, node.a, node.b)


def _function(name: str) -> Callable[[_Printer, Any], Form]:
    return lambda printer, node: _call_form(name, node.a, node.b)


def _div(printer: _Printer, node: n.Div) -> Form:
    if node.dtype.is_float:
        return _infix("/", _PRODUCT, node.a, node.b)
    return _call_form("truncdiv", node.a, node.b)


def _int_imm(printer: _Printer, node: n.IntImm) -> Form:
    plain = node.dtype in (INT32, INT64) or node.dtype.is_bool
    return _ATOM, [str(node.value) if plain else f"{node.dtype}({node.value})"]


def _float_imm(printer: _Printer, node: n.FloatImm) -> Form:
    digits = _shortest(node.dtype, node.value)
    return _ATOM, [digits if node.dtype == FLOAT32 else f"{node.dtype}({digits})"]


def _shortest(dtype: DType, value: float) -> str:
    """The fewest digits that round to `value` in `dtype`; for a whole number all of its digits."""
    if dtype.bits == 64 or not math.isfinite(value) or (value.is_integer() and abs(value) < 1e8):
        return repr(value)
    candidates = (float(f"{value:.{precision}g}") for precision in range(1, 10))
    return repr(next(c for c in candidates if scalars.round_float(dtype, c) == value))


def _select(printer: _Printer, node: n.Select) -> Form:
    return _call_form("select", node.condition, node.true_value, node.false_value)


def _let(printer: _Printer, node: n.Let) -> Form:
    name = printer.name_of(node.var)
    return _ANY, (f"let {name} = ", (node.value, _OR), " in ", (node.body, _ANY))


def _access(name: str, indices: Sequence[PrimExpr], predicate: PrimExpr | None = None) -> Form:
    where: list[Piece] = [] if predicate is None else [", where=", (predicate, _ANY)]
    return _ATOM, (f"{name}[", *(_listed(indices) or ["()"]), *where, "]")


_BINARY_CALLS = {
    "bitwise_and": ("&", _BIT_AND),
    "bitwise_or": ("|", _BIT_OR),
    "bitwise_xor": ("^", _BIT_XOR),
    "shift_left": ("<<", _SHIFT),
    "shift_right": (">>", _SHIFT),
}
# Calls whose result type does not follow from their arguments. The type is printed first, as in
# classic TVM.
_TYPED_CALLS = ("reinterpret", "call_extern", "call_llvm_intrin", "call_llvm_pure_intrin")


def _call(printer: _Printer, node: n.Call) -> Form:
    if node.op in _BINARY_CALLS and len(node.args) == 2:
        return _infix(*_BINARY_CALLS[node.op], *node.args)
    if node.op == "bitwise_not" and len(node.args) == 1:
        return _UNARY, ("~", (node.args[0], _UNARY))
    if node.op in _TYPED_CALLS:
        return _call_form(node.op, *node.args, first=f'"{node.dtype}"')
    return _call_form(node.op, *node.args)


_REDUCTIONS: dict[type, str] = {n.Add: "sum", n.Mul: "prod", n.Min: "min", n.Max: "max"}


def _reduce(printer: _Printer, node: n.Reduce) -> Form:
    combiner = node.combiner
    name = _reduction_name(combiner)
    pieces: list[Piece] = [f"{name or 'reduce'}("]
    if not name:
        pieces += ["combine=", *_tuple(combiner.lhs), ", ", *_tuple(combiner.rhs), " -> "]
        pieces += [*_tuple(combiner.result), ", identity=", *_tuple(combiner.identity), ", "]
    axes = ", ".join(printer.name_of(axis.var) for axis in node.axis)
    pieces += [*_tuple(node.source), f", axis=[{axes}]"]
    if const_int(node.condition) != 1:
        pieces += [", where=", (node.condition, _ANY)]
    if node.init:
        pieces += [", init=", *_tuple(node.init)]
    return _ATOM, [*pieces, ")" if len(node.source) == 1 else f")[{node.value_index}]"]


def _reduction_name(combiner: n.CommReducer) -> str | None:
    """The name of a combination that is a single operator on its two operands."""
    result = combiner.result[0]
    if len(combiner.result) != 1 or not isinstance(result, n.Add | n.Mul | n.Min | n.Max):
        return None
    direct = result.a is combiner.lhs[0] and result.b is combiner.rhs[0]
    return _REDUCTIONS[type(result)] if direct else None


def _unknown(printer: _Printer, node: Any) -> Form:
    """A node of another room, such as a wrongly placed axis: shown rather than refused."""
    return _ATOM, [f"<{type(node).__name__}>"]


_FORMS: dict[type, Callable[[_Printer, Any], Form]] = {
    n.Var: lambda printer, node: (_ATOM, [printer.name_of(node)]),
    n.IntImm: _int_imm,
    n.FloatImm: _float_imm,
    n.StringImm: lambda printer, node: (_ATOM, [_quoted(node.value)]),
    n.Add: _operator("+", _SUM),
    n.Sub: _operator("-", _SUM),
    n.Mul: _operator("*", _PRODUCT),
    n.Div: _div,
    n.Mod: _function("truncmod"),
    n.FloorDiv: _operator("//", _PRODUCT),
    n.FloorMod: _operator("%", _PRODUCT),
    n.Min: _function("min"),
    n.Max: _function("max"),
    n.EQ: _operator("==", _COMPARE),
    n.NE: _operator("!=", _COMPARE),
    n.LT: _operator("<", _COMPARE),
    n.LE: _operator("<=", _COMPARE),
    n.GT: _operator(">", _COMPARE),
    n.GE: _operator(">=", _COMPARE),
    n.And: _operator("and", _AND),
    n.Or: _operator("or", _OR),
    n.Not: lambda printer, node: (_NOT, ("not ", (node.a, _NOT))),
    n.Select: _select,
    n.Cast: lambda printer, node: _call_form(str(node.dtype), node.value),
    n.Let: _let,
    n.Ramp: lambda printer, node: _call_form(
        "ramp", node.base, node.stride, last=f", {node.lanes}"
    ),
    n.Broadcast: lambda printer, node: _call_form("broadcast", node.value, last=f", {node.lanes}"),
    n.ProducerLoad: lambda printer, node: _access(printer.name_of(node.producer), node.indices),
    n.BufferLoad: lambda printer, node: _access(
        printer.name_of(node.buffer), node.indices, node.predicate
    ),
    n.Call: _call,
    n.BufferRef: lambda printer, node: (_ATOM, [printer.name_of(node.buffer)]),
    n.Reduce: _reduce,
}


# -- Statements: each node's lines, and the statements among them ---------------------------------

Block = list[tuple[int, Stmt | str]]  # the additional depth, and a line or a statement

_LOOPS = {
    ForKind.SERIAL: "range",
    ForKind.PARALLEL: "parallel",
    ForKind.VECTORIZED: "vectorized",
    ForKind.UNROLLED: "unrolled",
    ForKind.THREAD_BINDING: "thread_binding",
}


def _for(printer: _Printer, node: n.For) -> Block:
    bounds: list[Piece] = [(node.extent, _ANY)]
    if const_int(node.min) != 0:
        bounds = [(node.min, _ANY), ", ", *_loop_end(node)]
    notes = ", ".join(
        f"{key} = {value}"
        for key, value in node.annotations.items()
        if key not in (n.FEW, n.INDEPENDENT)
    )
    header = printer.join(
        [f"for {printer.name_of(node.loop_var)} in {_LOOPS[node.kind]}(", *bounds, "):"]
    )
    return [(0, header + (f"  # {notes}" if notes else "")), (1, node.body)]


def _loop_end(node: n.For) -> list[Piece]:
    begin, extent = const_int(node.min), const_int(node.extent)
    if begin is not None and extent is not None:
        return [str(begin + extent)]
    if isinstance(node.extent, n.Sub) and structural_equal(node.extent.b, node.min):
        return [(node.extent.a, _ANY)]
    return [(node.min, _SUM), " + ", (node.extent, _PRODUCT)]


def _while(printer: _Printer, node: n.While) -> Block:
    return [(0, f"while {printer.expr(node.condition)}:"), (1, node.body)]


def _store(printer: _Printer, node: n.BufferStore) -> Block:
    _, target = _access(printer.name_of(node.buffer), node.indices, node.predicate)
    return [(0, printer.join([*target, " = ", (node.value, _ANY)]))]


def _allocate(printer: _Printer, node: n.Allocate) -> Block:
    buffer = node.buffer
    scope = f", {_quoted(buffer.scope)}" if buffer.scope != "global" else ""
    line = f"{printer.name_of(buffer)} = allocate({_buffer_type(printer, buffer)}{scope})"
    return [(0, line), (0, node.body)]


def _let_stmt(printer: _Printer, node: n.LetStmt) -> Block:
    return [(0, f"{printer.name_of(node.var)} = {printer.expr(node.value)}"), (0, node.body)]


def _if(printer: _Printer, node: n.IfThenElse) -> Block:
    block: Block = []
    case: Stmt | None = node
    while isinstance(case, n.IfThenElse):
        word = "elif" if block else "if"
        block += [(0, f"{word} {printer.expr(case.condition)}:"), (1, case.then_case)]
        case = case.else_case
    return block if case is None else [*block, (0, "else:"), (1, case)]


def _assert(printer: _Printer, node: n.AssertStmt) -> Block:
    message = _quoted(node.message)
    if node.values:
        message += printer.join([".format(", *_listed(node.values), ")"])
    if node.kind != "KernelError":
        message = f"{node.kind}({message})"
    return [(0, f"assert {printer.expr(node.condition)}, {message}"), (0, node.body)]


def _attr(printer: _Printer, node: n.AttrStmt) -> Block:
    subject = "" if node.node is None else f"{_subject_text(printer, node.node)}, "
    value = printer.expr(node.value)
    return [(0, f"with attr({subject}{_quoted(node.attr_key)}, {value}):"), (1, node.body)]


def _subject_text(printer: _Printer, subject: Any) -> str:
    if isinstance(subject, n.IterVar):
        return printer.name_of(subject.var)
    if isinstance(subject, Buffer):
        return printer.name_of(subject)
    return printer.expr(subject) if isinstance(subject, PrimExpr) else str(subject)


_BLOCKS: dict[type, Callable[[_Printer, Any], Block]] = {
    n.For: _for,
    n.While: _while,
    n.BufferStore: _store,
    n.Allocate: _allocate,
    n.LetStmt: _let_stmt,
    n.IfThenElse: _if,
    n.SeqStmt: lambda printer, node: [(0, each) for each in node.seq] or [(0, "pass")],
    n.Evaluate: lambda printer, node: [(0, printer.expr(node.value))],
    n.AssertStmt: _assert,
    n.AttrStmt: _attr,
}


# -- Names and types ------------------------------------------------------------------------------


def _quoted(text: str) -> str:
    import json  # imported here: it takes 2 ms

    return json.dumps(text, ensure_ascii=False)


def _buffer_type(printer: _Printer, buffer: Buffer) -> str:
    """``float32[n, 16]``, then the properties that differ from their defaults."""
    text = printer.join([f"{buffer.dtype}[", *_listed(buffer.shape), "]"])
    if buffer.strides:
        text += printer.join([" strides=[", *_listed(buffer.strides), "]"])
    if buffer.layout in ("right", "stride"):  # a layout that the strides don't show
        text += f" layout={buffer.layout}"
    if buffer.elem_offset is not None:
        text += printer.join([" elem_offset=", (buffer.elem_offset, _ANY)])
    return text


def _parameter_text(printer: _Printer, func: PrimFunc, param: Var) -> str:
    if param not in func.buffer_map:
        return f"{printer.name_of(param)}: {param.dtype}"
    buffer = func.buffer_map[param]
    return f"{printer.name_of(buffer)}: {_buffer_type(printer, buffer)}"
