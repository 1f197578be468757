"""The shape language of parameters: ``"m n"``, ``"... n"``, ``"float32[m 2*k]"``.

::

    shape     ::=  [dtypes "["] [dimension ((" " | ",") dimension)*] ["]"]
    dtypes    ::=  dtype ("|" dtype)*
    dimension ::=  "..."       any leading dimensions, the same for all parameters that have them
                |  letter      an extent; a letter stands for one extent in all parameters
                |  "_"         any extent
                |  integer     this extent
                |  arithmetic  of letters and integers with + - * // and parentheses, without spaces
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record

_DTYPED = re.compile(r"\s*([^\[\]]*?)\s*\[([^\[\]]*)\]\s*")
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_GRAMMAR = (
    'write dimensions as "m n", "... n", "3 n", "m 2*k", "_" for any extent, "" for none, and '
    'dtypes before brackets, as "float32[m n]"'
)


@final
@record()
class Letter:
    """An extent that has a name."""

    name: str

    def __str__(self) -> str:
        return self.name


@final
@record()
class Anything:
    """Any extent: ``_``."""

    def __str__(self) -> str:
        return "_"


@final
@record(eq=False)
class Arithmetic:
    """An extent that is computed from other extents."""

    text: str
    tree: ast.expr
    letters: tuple[str, ...]

    def __str__(self) -> str:
        return self.text

    def value(self, extents: Mapping[str, Any]) -> Any:
        """The extent, given the extents of the letters as numbers or expressions; None where it
        divides by zero."""
        try:
            return _value(self.tree, extents)
        except ZeroDivisionError:
            return None

    def determines(self, letter: str) -> bool:
        """Whether the extent determines a letter when all other letters are known: the letter
        occurs once, and isn't divided.

        >>> (dim,) = parse_shape("2*n+k").dims
        >>> dim.determines("n"), dim.solved("n", {"k": 1}, 7), dim.solved("n", {"k": 1}, 8)
        (True, 3, None)
        """
        return _occurrences(self.tree, letter) == 1 and not _is_divided(self.tree, letter)

    def solved(self, letter: str, extents: Mapping[str, Any], extent: Any) -> Any:
        """The extent of a letter that this extent determines, as a number or an expression; None
        where no number of 0 or more fits."""
        base = _value(self.tree, {**extents, letter: 0})
        factor = _value(self.tree, {**extents, letter: 1}) - base
        if isinstance(factor, int) and factor < 0:
            base, extent, factor = -base, -extent, -factor
        if not all(isinstance(each, int) for each in (base, factor, extent)):
            return (extent - base) // factor
        found, rest = divmod(extent - base, factor) if factor else (0, 1)
        return None if rest or found < 0 else found


Dimension: TypeAlias = Letter | Anything | Arithmetic | int


@final
@record(eq=False)
class Shape:
    """The shape and the dtypes that a parameter takes.

    Attributes
    ----------
    dims
        The dimensions, without the leading ones of ``...``.
    leading
        Whether any dimensions may stand before them.
    dtypes
        The dtypes; if there are none, all dtypes of the language.
    """

    dims: tuple[Dimension, ...]
    leading: bool = False
    dtypes: tuple[DType, ...] = ()

    def __str__(self) -> str:
        dims = ", ".join([*(["..."] if self.leading else []), *map(str, self.dims)])
        comma = "," if len(self.dims) == 1 and not self.leading else ""
        return f"({dims}{comma})"

    @property
    def letters(self) -> tuple[str, ...]:
        """The letters that stand alone as dimensions."""
        return tuple(dict.fromkeys(dim.name for dim in self.dims if isinstance(dim, Letter)))

    @property
    def arithmetic(self) -> tuple[Arithmetic, ...]:
        return tuple(dim for dim in self.dims if isinstance(dim, Arithmetic))

    def takes_rank(self, ndim: int) -> bool:
        return ndim >= len(self.dims) if self.leading else ndim == len(self.dims)

    def takes_dtype(self, dtype: DType) -> bool:
        return not self.dtypes or dtype in self.dtypes


ANY_SHAPE = Shape((), leading=True)


def parse_shape(text: str) -> Shape:
    """The shape that `text` describes.

    Raises
    ------
    CompileError
        When the text describes no shape.

    >>> shape = parse_shape("float32|float64[... m 2*k]")
    >>> str(shape), shape.leading, shape.dtypes
    ('(..., m, 2*k)', True, (DType('float32'), DType('float64')))
    """
    dtypes: tuple[DType, ...] = ()
    dims = text
    if (found := _DTYPED.fullmatch(text)) is not None:
        dtypes = tuple(_dtype(text, name.strip()) for name in found[1].split("|"))
        dims = found[2]
    words = dims.replace(",", " ").split()
    leading = words[:1] == ["..."]
    return Shape(tuple(_dimension(text, word) for word in words[leading:]), leading, dtypes)


def _dtype(text: str, name: str) -> DType:
    try:
        return DType.of(name)
    except (TypeError, ValueError):
        raise CompileError(f"shape {text!r}: expected a dtype, got {name!r}: {_GRAMMAR}") from None


def _dimension(text: str, word: str) -> Dimension:
    if word == "_":
        return Anything()
    if word.isidentifier():
        if _is_dtype(word):
            raise CompileError(
                f"shape {text!r}: expected dimensions, got the dtype {word}: write '{word}[...]' "
                "for an array of any shape, with its dimensions in the brackets"
            )
        return Letter(word)
    if word.isascii() and word.isdigit():
        return int(word)
    try:
        tree = ast.parse(word, mode="eval").body
        letters = tuple(dict.fromkeys(_letters(text, word, tree)))
    except (SyntaxError, ValueError):
        raise CompileError(f"shape {text!r}: expected a dimension, got {word!r}: {_GRAMMAR}") from (
            None
        )
    if not letters:
        value = int(_value(tree, {}))
        if value < 0:
            raise CompileError(f"shape {text!r}: expected an extent of 0 or more, got {value}")
        return value
    return Arithmetic(word, tree, letters)


def _is_dtype(word: str) -> bool:
    try:
        return bool(DType.of(word))
    except (TypeError, ValueError):
        return False


def _letters(text: str, word: str, tree: ast.expr) -> Sequence[str]:
    match tree:
        case ast.Name(id=name):
            return [name]
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return []
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return [*_letters(text, word, left), *_letters(text, word, right)]
    raise ValueError(word)


def _occurrences(tree: ast.expr, letter: str) -> int:
    return sum(isinstance(each, ast.Name) and each.id == letter for each in ast.walk(tree))


def _is_divided(tree: ast.expr, letter: str) -> bool:
    divisions = (each for each in ast.walk(tree) if isinstance(each, ast.BinOp))
    return any(
        isinstance(each.op, ast.FloorDiv) and _occurrences(each, letter) for each in divisions
    )


def _value(tree: ast.expr, extents: Mapping[str, Any]) -> Any:
    match tree:
        case ast.Name(id=name):
            return extents[name]
        case ast.Constant(value=int(value)):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            return _ARITHMETIC[type(op)](_value(left, extents), _value(right, extents))
    raise AssertionError(tree)
