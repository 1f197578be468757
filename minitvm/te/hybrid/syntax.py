"""Which of Python's syntax has a meaning in a hybrid function, as tables."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from minitvm.tir import expr as e
from minitvm.tir.stmt import ForKind

KINDS = {
    "range": ForKind.SERIAL,
    "serial": ForKind.SERIAL,
    "parallel": ForKind.PARALLEL,
    "vectorize": ForKind.VECTORIZED,
    "unroll": ForKind.UNROLLED,
}
AT_ONCE = (ForKind.PARALLEL, ForKind.VECTORIZED)
OPERATORS: dict[type[ast.AST], tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
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
UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
# Comparisons that only numbers, texts and tuples known now have.
KNOWN_ONLY: dict[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
# What to write in place of a construct that has no meaning here.
ADVICE: dict[type[ast.AST], str] = {
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
