"""Small wrong changes of a source file, found in its syntax tree.

A change replaces the text of one node. What has no meaning for the program is left alone:
docstrings, annotations, messages of errors, assertions, decorators, imports and ``__repr__``.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.sources import ROOMS, ROOT

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_UNWRAPPED = ("abs", "reversed", "sorted", "simplify")  # f(x) becomes x
_INTEGERS = {32: 64, 64: 32, 31: 32, 63: 64}  # others become one more
# Words in texts that we print: LLVM's IR, names of dtypes. (LLVM's parser catches another type.)
_WORDS = {
    "slt": "sle",
    "sle": "slt",
    "sgt": "sge",
    "sge": "sgt",
    "ult": "ule",
    "ule": "ult",
    "ugt": "uge",
    "uge": "ugt",
    "olt": "ole",
    "oge": "ogt",
    "eq": "ne",
    "ne": "eq",
    "int32": "int64",
    "int64": "int32",
    "sext": "zext",
    "zext": "sext",
    "ashr": "lshr",
    "lshr": "ashr",
    "sdiv": "udiv",
    "udiv": "sdiv",
    "add": "sub",
    "sub": "add",
    "fadd": "fsub",
    "smin": "smax",
    "smax": "smin",
}
_WORD = re.compile(r"(?<![\w.{])(" + "|".join(_WORDS) + r")(?![\w}])")
_UNCHANGED_FUNCTIONS = ("__repr__", "__str__", "__rich_repr__")
_UNCHANGED_NAMES = ("__all__", "__slots__", "__match_args__", "__version__")
# The order of their arguments is caught by any call, or is one of types.
_UNSWAPPED = ("isinstance", "issubclass", "getattr", "hasattr", "setattr", "cast", "TypeVar")
_LONGEST_KEY = 160


@dataclass(frozen=True)
class Mutant:
    """One wrong change.

    `start` and `end` are offsets in bytes, `line` counts from 1, `before` and `after` are the
    lines of the change, `text` the changed source.
    """

    path: str
    function: str
    line: int
    kind: str
    before: str
    after: str
    start: int
    end: int
    new: str

    @property
    def room(self) -> str:
        """The room of the file."""
        return next(room for room, folder in ROOMS.items() if self.path.startswith(folder + "/"))

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names the change while other lines of the file come and go."""
        return self.path, self.function, self.before, self.after

    def applied(self, source: bytes) -> bytes:
        """The wrong source."""
        return source[: self.start] + self.new.encode() + source[self.end :]


def mutants_of(path: Path) -> list[Mutant]:
    """Every change of the file."""
    return mutants_in(str(path.relative_to(ROOT)), path.read_bytes())


def mutants_in(name: str, source: bytes) -> list[Mutant]:
    """Every change of the source of a file."""
    return list(_Finder(name, source).changes(ast.parse(source)))


def compiles(mutant: Mutant) -> bool:
    """Whether the wrong source is one of Python, and another."""
    source = (ROOT / mutant.path).read_bytes()
    try:
        changed = ast.parse(mutant.applied(source))
    except SyntaxError:
        return False
    return ast.dump(changed) != ast.dump(ast.parse(source))


def sampled(
    mutants: list[Mutant],
    count: int,
    seed: int,
    compiles: Callable[[Mutant], bool] = compiles,
) -> list[Mutant]:
    """`count` of them, at most one a line; a change elsewhere in the files draws the same."""
    repeated: Counter[tuple[str, ...]] = Counter()
    order = []
    for mutant in mutants:
        repeated[mutant.key] += 1
        words = (str(seed), str(repeated[mutant.key]), *mutant.key)
        order.append((hashlib.sha256("\0".join(words).encode()).digest(), mutant))
    chosen: dict[tuple[str, int], Mutant] = {}
    for _, mutant in sorted(order, key=lambda each: each[0]):
        line = mutant.path, mutant.line
        if len(chosen) < count and line not in chosen and compiles(mutant):
            chosen[line] = mutant
    return list(chosen.values())


class _Finder:
    """Walks over one file."""

    def __init__(self, path: str, source: bytes) -> None:
        self._path, self._source = path, source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._scope: list[str] = []
        self._functions = 0  # that are open
        self._rows: set[ast.AST] = set()  # inside a table
        self._refusals: set[ast.stmt] = set()  # raised behind a guard, which is deleted as a whole

    def changes(self, node: ast.AST) -> Iterator[Mutant]:
        """The changes in `node` and below."""
        if _is_left_alone(node):
            return
        if isinstance(node, ast.stmt):
            yield from self._statement(node)
        elif isinstance(node, ast.expr):
            yield from self._expression(node)
        elif isinstance(node, ast.match_case):
            yield from self._case(node)
        elif isinstance(node, ast.comprehension):
            for condition in node.ifs:
                yield self._changed(condition, "dropped condition", "True")
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            self._scope.append(node.name)
            self._functions += isinstance(node, ast.FunctionDef)
        for child in _children(node):
            yield from self.changes(child)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            self._scope.pop()
            self._functions -= isinstance(node, ast.FunctionDef)

    def _at(self, line: int, column: int) -> int:
        return self._lines[line - 1] + column

    def _changed(self, node: ast.AST, kind: str, new: str) -> Mutant:
        assert isinstance(node, ast.expr | ast.stmt | ast.pattern)
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self._at(node.lineno, node.col_offset)
        return self._mutant(
            node.lineno, start, self._at(node.end_lineno, node.end_col_offset), kind, new
        )

    def _mutant(self, line: int, start: int, end: int, kind: str, new: str) -> Mutant:
        first = self._source.rfind(b"\n", 0, start) + 1
        last = self._source.find(b"\n", end) % (len(self._source) + 1)  # -1: the last line
        before = self._source[first:last]
        after = self._source[first:start] + new.encode() + self._source[end:last]
        function = ".".join(self._scope)
        texts = (_shortened(before), _shortened(after))
        return Mutant(self._path, function, line, kind, *texts, start, end, new)

    def _replaced(self, node: ast.expr, kind: str, new: ast.expr) -> Mutant:
        return self._changed(node, kind, ast.unparse(ast.fix_missing_locations(new)))

    def _source_of(self, node: ast.expr) -> str:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self._at(node.lineno, node.col_offset)
        return self._source[start : self._at(node.end_lineno, node.end_col_offset)].decode()

    def _statement(self, node: ast.stmt) -> Iterator[Mutant]:
        match node:
            case ast.If(test, body, orelse):
                if not orelse and isinstance(body[-1], ast.Return | ast.Raise | ast.Continue):
                    yield self._changed(node, "deleted guard", "pass")
                    if isinstance(body[0], ast.Raise):
                        self._refusals.add(body[0])
                if not isinstance(body[0], ast.Raise):
                    yield self._changed(test, "negated condition", f"not ({self._source_of(test)})")
            case ast.Expr(ast.Call() | ast.Yield() | ast.YieldFrom()) | ast.Raise():
                if node in self._refusals:
                    return
                yield self._changed(node, "deleted statement", "pass")
            case ast.Assign([ast.Attribute() | ast.Subscript()]):
                yield self._changed(node, "deleted statement", "pass")
            case ast.AugAssign(_, op, _):
                yield self._changed(node, "deleted statement", "pass")
                if type(op) in _OPERATORS:
                    new = copy.deepcopy(node)
                    new.op = _OPERATORS[type(op)]()
                    yield self._changed(node, "operator", ast.unparse(new))
            case ast.Continue():
                yield self._changed(node, "continue", "break")
            case ast.Break():
                yield self._changed(node, "break", "continue")
            case ast.FunctionDef(args=args):
                yield from self._identity(node, [each.arg for each in args.args])

    def _identity(self, function: ast.FunctionDef, parameters: list[str]) -> Iterator[Mutant]:
        """What is computed is not: the first argument is returned as it came."""
        given = [each for each in parameters if each not in ("self", "cls")]
        if not given:
            return
        self._scope.append(function.name)
        for node in _own_statements(function.body):
            if (
                isinstance(node, ast.Return)
                and isinstance(node.value, ast.Call | ast.BinOp | ast.IfExp)
                and not ast.unparse(node.value).startswith("cast(")
            ):
                yield self._changed(node.value, "returned argument", given[0])
        self._scope.pop()

    def _case(self, case: ast.match_case) -> Iterator[Mutant]:
        if case.guard is not None:
            yield self._changed(case.guard, "dropped guard", "True")
        elif not isinstance(case.body[0], ast.Raise):
            pattern = case.pattern
            end = self._at(pattern.end_lineno, pattern.end_col_offset)
            closing = self._source.find(b":", end)
            yield self._mutant(pattern.lineno, closing, closing, "dropped case", " if False")

    def _expression(self, node: ast.expr) -> Iterator[Mutant]:
        match node:
            case ast.Compare(_, ops, _):
                for index, op in enumerate(ops):
                    new = copy.deepcopy(node)
                    new.ops[index] = _COMPARISONS[type(op)]()
                    yield self._replaced(node, "comparison", new)
            case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
                if not _is_text(left) and not _is_text(right) and not _is_union(node):
                    yield self._replaced(
                        node, "operator", ast.BinOp(left, _OPERATORS[type(op)](), right)
                    )
            case ast.BoolOp(op, values):
                other = ast.Or() if isinstance(op, ast.And) else ast.And()
                yield self._changed(node, "and, or", f"({ast.unparse(ast.BoolOp(other, values))})")
                for index in range(len(values)):
                    rest = [value for at, value in enumerate(values) if at != index]
                    left_over = rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
                    yield self._changed(node, "dropped condition", f"({ast.unparse(left_over)})")
            case ast.UnaryOp(ast.Not() | ast.USub(), operand):
                yield self._changed(node, "dropped sign", f"({ast.unparse(operand)})")
            case ast.IfExp(test, body, orelse):
                yield self._replaced(node, "swapped branches", ast.IfExp(test, orelse, body))
            case ast.Constant(bool() as value):
                yield self._changed(node, "constant", str(not value))
            case ast.Constant(int() as value):
                yield self._changed(node, "constant", str(_INTEGERS.get(value, value + 1)))
                if value in (1, 2):
                    yield self._changed(node, "constant", str(value - 1))
            case ast.Constant(float() as value):
                yield self._changed(node, "constant", repr(value + 1.0))
            case ast.Constant(str()) | ast.JoinedStr():
                yield from self._words(node)
            case ast.Call(ast.Name(name), [argument], []) if name in _UNWRAPPED:
                yield self._changed(node, "unwrapped", f"({ast.unparse(argument)})")
            case ast.Call(function, arguments):
                yield from self._call(node, function, arguments)
            case ast.Dict() | ast.Set() | ast.List() | ast.Tuple(ctx=ast.Load()):
                if node not in self._rows and (not self._functions or isinstance(node, ast.Set)):
                    yield from self._elements(node)

    def _elements(self, node: ast.Dict | ast.Set | ast.List | ast.Tuple) -> Iterator[Mutant]:
        """A table, an element less."""
        self._rows.update(ast.walk(node))
        elements = node.keys if isinstance(node, ast.Dict) else node.elts
        for index, element in enumerate(elements):
            if element is not None and len(elements) > 1:
                less = copy.deepcopy(node)
                if isinstance(less, ast.Dict):
                    del less.keys[index], less.values[index]
                else:
                    del less.elts[index]
                yield self._element(node, self._source_of(element), less)

    def _element(self, node: ast.expr, removed: str, new: ast.expr) -> Mutant:
        mutant = self._changed(node, "removed element", f"({ast.unparse(new)})")
        words = _shortened(removed.encode())
        first = mutant.before if len(mutant.before) < 60 else mutant.before[:57] + "..."
        return _renamed(mutant, first, f"without {words}")

    def _call(
        self, node: ast.Call, function: ast.expr, arguments: list[ast.expr]
    ) -> Iterator[Mutant]:
        name = function.id if isinstance(function, ast.Name) else ""
        if name in _FUNCTIONS:
            yield self._changed(function, "function", _FUNCTIONS[name])
        if name in (*_FUNCTIONS, *_UNSWAPPED):
            return
        for index, (first, second) in enumerate(itertools.pairwise(arguments)):
            if _alike(first, second):
                swapped = [*arguments[:index], second, first, *arguments[index + 2 :]]
                new = ast.Call(function, swapped, node.keywords)
                yield self._replaced(node, "swapped arguments", new)

    def _words(self, node: ast.expr) -> Iterator[Mutant]:
        start = self._at(node.lineno, node.col_offset)
        for found in _WORD.finditer(self._source_of(node)):
            before = self._source_of(node)[: found.start()]
            at = start + len(before.encode())
            line = node.lineno + before.count("\n")
            yield self._mutant(line, at, at + len(found[0]), "word", _WORDS[found[0]])


def _renamed(mutant: Mutant, before: str, after: str) -> Mutant:
    fields = {**mutant.__dict__, "before": before, "after": after}
    return Mutant(**fields)


def _shortened(text: bytes) -> str:
    words = " ".join(text.decode().split())
    return words if len(words) <= _LONGEST_KEY else words[:_LONGEST_KEY] + "..."


def _alike(first: ast.expr, second: ast.expr) -> bool:
    """Whether two arguments could be taken for each other."""
    if isinstance(first, ast.Constant) and isinstance(second, ast.Constant):
        return type(first.value) is type(second.value)
    return type(first) is type(second) and not isinstance(first, ast.Starred | ast.Lambda)


def _own_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements, but not those of functions inside."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            continue
        yield statement
        for block in ("body", "orelse", "finalbody"):
            yield from _own_statements(getattr(statement, block, []))
        for case in getattr(statement, "cases", []):
            yield from _own_statements(case.body)


def _is_text(node: ast.expr) -> bool:
    texts = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return texts or isinstance(node, ast.JoinedStr | ast.Tuple | ast.List)


def _is_union(node: ast.BinOp) -> bool:
    """Whether ``A | B`` is one of types."""
    return isinstance(node.op, ast.BitOr) and any(
        (isinstance(each, ast.Constant) and each.value is None)
        or (isinstance(each, ast.Name) and (each.id[0].isupper() or each.id in _TYPES))
        or (isinstance(each, ast.Attribute) and each.attr[0].isupper())
        for each in (node.left, node.right)
    )


_TYPES = ("int", "float", "str", "bool", "bytes", "tuple", "list", "dict", "type")


def _is_left_alone(node: ast.AST) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Expr(ast.Constant()):
            return True
        case ast.FunctionDef(name, decorator_list=decorators):
            overloaded = any(ast.unparse(each).endswith("overload") for each in decorators)
            return name in _UNCHANGED_FUNCTIONS or overloaded
        case ast.If(ast.Name("TYPE_CHECKING")):
            return True
        case ast.AnnAssign(_, ast.Name("TypeAlias")):
            return True
        case ast.Assign([ast.Name()], ast.Subscript(ast.Name(name))):  # a type
            return name in _TYPES or name[0].isupper()
        case ast.Assign([ast.Name(name)]):
            return name in _UNCHANGED_NAMES
        case ast.keyword("strict"):  # an assertion of zip
            return True
        case ast.Call(function):  # a message
            return re.search(r"([eE]rror|Warning|warn)$", ast.unparse(function)) is not None
    return False


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """What may be changed below."""
    match node:
        case ast.Raise() | ast.JoinedStr():
            return
        case ast.FunctionDef(args=args, body=body):
            yield from args.defaults
            yield from (each for each in args.kw_defaults if each is not None)
            yield from body
        case ast.ClassDef(body=body):
            yield from body
        case ast.AnnAssign(value=value):
            if value is not None:
                yield value
        case _:
            yield from ast.iter_child_nodes(node)
