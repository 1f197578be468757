"""The parameters of a Python function of tensors, as its signature declares them."""

from __future__ import annotations
import __future__ as future

import ast
import contextlib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, final

from minitvm.operators.shapes import ANY_SHAPE, Shape, parse_shape
from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.tensor import Tensor

_NUMBERS: dict[str, type] = {"float": float, "int": int, "bool": bool}
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_RESERVED = "out"


class Kind(Enum):
    """The kind of argument that a parameter takes."""

    TENSOR = "an array"
    NUMBER = "a number"  # known only at the call
    STATIC = "a value"  # a part of the program
    ANY = "an array or a number"  # without annotation


@final
@record(eq=False)
class Parameter:
    """A parameter of a Python function of tensors.

    Attributes
    ----------
    shape
        The shapes of an array.
    number
        ``float`` or ``int``, for a number whose annotation is one of them.
    dtype
        The dtype of a number, where it is declared.
    is_nameless
        Whether it is given by position alone.
    optional
        Whether None may stand in the place of an array, or of a value that is part of the program.
    values
        The values that ``Literal`` lists, or the class ``bool`` or ``str``; None where any value
        may stand.
    """

    name: str
    position: int
    kind: Kind
    default: Any
    is_keyword: bool
    shape: Shape = ANY_SHAPE
    number: type | None = None
    dtype: DType | None = None
    is_nameless: bool = False
    optional: bool = False
    values: tuple[object, ...] | type | None = None

    @property
    def has_default(self) -> bool:
        return self.default is not inspect.Parameter.empty

    def __str__(self) -> str:
        return f"argument {self.position} '{self.name}'"


def parameters_of(
    function: Callable[..., Any], name: str, static: Iterable[str]
) -> tuple[Parameter, ...]:
    """The parameters of a function.

    Raises
    ------
    CompileError
        When an annotation has no meaning, or an operator can't have a parameter of that kind.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:  # some builtins have no signature
        raise CompileError(f"{name}: expected a function of tensors: {error}") from None
    found = []
    for position, given in enumerate(signature.parameters.values()):
        where = f"{name}: parameter '{given.name}'"
        if given.kind in _VARIADIC:
            raise CompileError(
                f"{where}: expected a parameter of one argument, got '{given}': name the arguments "
                "one by one"
            )
        if given.name == _RESERVED:
            raise CompileError(f"{where}: expected another name: `out=` is an operator's own")
        kind = Kind.STATIC if given.name in static else None
        try:
            meant = {} if kind else _meaning(_annotation(function, given.annotation))
        except CompileError as error:
            raise CompileError(f"{where}: {error}") from None
        is_keyword = given.kind is inspect.Parameter.KEYWORD_ONLY
        kind = kind or meant.pop("kind")
        if kind is Kind.ANY and isinstance(given.default, bool | str | tuple):
            kind = Kind.STATIC
        optional = meant.pop("optional", False) or given.default is None
        is_left_out = optional and given.default is inspect.Parameter.empty
        default = None if is_left_out else given.default
        is_nameless = given.kind is inspect.Parameter.POSITIONAL_ONLY
        more = {"is_nameless": is_nameless, "optional": optional, **meant}
        found.append(Parameter(given.name, position, kind, default, is_keyword, **more))
    known = {each.name for each in found}
    for each in static:
        if each not in known:
            listed = ", ".join(known) or "none"
            raise CompileError(f"{name}: static: expected parameters among {listed}, got '{each}'")
    _check_letters(name, found)
    return tuple(found)


def _check_letters(name: str, parameters: Iterable[Parameter]) -> None:
    """Refuses arithmetic with a letter that isn't a dimension and doesn't follow from one."""
    shapes = [(each, each.shape) for each in parameters if each.kind is Kind.TENSOR]
    known = {letter for _, shape in shapes for letter in shape.letters}
    dims = [(parameter, dim) for parameter, shape in shapes for dim in shape.arithmetic]
    found = True
    while found:
        unknown = [{*dim.letters} - known for _, dim in dims]
        found = False
        for (_, dim), letters in zip(dims, unknown, strict=True):
            if len(letters) == 1 and dim.determines(*letters):
                known |= letters
                found = True
                break
    for parameter, dim in dims:
        for letter in dim.letters:
            if letter not in known:
                raise CompileError(
                    f"{name}: parameter '{parameter.name}': dimension {dim}: expected letters that "
                    f"are dimensions somewhere, or follow from one as n does from 2*n, got "
                    f"'{letter}': give the dimension a letter of its own, and compute with that"
                )


def _annotation(function: Callable[..., Any], annotation: Any) -> Any:
    """The value of an annotation: an object, or the text of a shape. Under ``from __future__ import
    annotations`` every annotation is the text of an expression."""
    if not isinstance(annotation, str):
        return annotation
    code = getattr(inspect.unwrap(function), "__code__", None)
    is_source = code is not None and code.co_flags & future.annotations.compiler_flag
    if not is_source:
        return _NUMBERS.get(annotation, annotation)
    tree = ast.parse(annotation, mode="eval").body
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        return tree.value
    names = {**getattr(inspect.unwrap(function), "__globals__", {}), **_closed(function)}
    try:
        return eval(annotation, names)  # as inspect.signature(eval_str=True) does
    except Exception as error:
        raise CompileError(
            f"expected an annotation that can be evaluated, got {annotation!r}: {error}: define "
            "its names at the top of the module, or write the shape as a string"
        ) from None


def _closed(function: Callable[..., Any]) -> dict[str, Any]:
    """The variables of the functions around a function that have a value: its own name has no value
    while it is being decorated."""
    inner = inspect.unwrap(function)
    cells = getattr(inner, "__closure__", None) or ()
    names = getattr(getattr(inner, "__code__", None), "co_freevars", ())
    found = {}
    for name, cell in zip(names, cells, strict=True):
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _meaning(annotation: Any) -> dict[str, Any]:
    """The fields of a Parameter that follow from its annotation."""
    if annotation is inspect.Parameter.empty or annotation is Any:
        return {"kind": Kind.ANY}
    if isinstance(annotation, str):
        text, bar, none = annotation.rpartition("|")
        if bar and none.strip() == "None":
            return {**_meaning(_NUMBERS.get(text.strip(), text.strip())), "optional": True}
        return {"kind": Kind.TENSOR, "shape": parse_shape(annotation)}
    if isinstance(annotation, typing.ForwardRef):  # the text in Optional["m n"]
        return _meaning(annotation.__forward_arg__)
    if annotation is Tensor:
        return {"kind": Kind.TENSOR}
    if annotation is float or annotation is int:
        return {"kind": Kind.NUMBER, "number": annotation}
    if annotation is bool or annotation is str:
        return {"kind": Kind.STATIC, "values": annotation}
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType) and type(None) in args:
        (*others,) = (each for each in args if each is not type(None))
        if len(others) == 1:
            return {**_meaning(others[0]), "optional": True}
    if origin is typing.Literal:
        return {"kind": Kind.STATIC, "values": args}
    if origin is typing.Annotated:
        texts = [each for each in args[1:] if isinstance(each, str)]
        if len(texts) == 1:
            return _annotated(args[0], texts[0])
    advice = "name the parameter in static=, if the program is made for its value"
    if hasattr(annotation, "__dlpack__"):
        advice = "te.Tensor, or no annotation, takes an array of any library and any shape"
    raise CompileError(
        f'expected an annotation such as "m n", Annotated[te.Tensor, "m n"], float, int or '
        f"bool, got {_said(annotation)}: {advice}"
    )


def _annotated(kind: Any, text: str) -> dict[str, Any]:
    if kind in (float, int):
        try:
            return {"kind": Kind.NUMBER, "number": kind, "dtype": DType.of(text)}
        except (TypeError, ValueError):
            raise CompileError(f"expected a dtype for a number, got {text!r}") from None
    return {"kind": Kind.TENSOR, "shape": parse_shape(text)}


def _said(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else repr(annotation)


def bind(
    name: str,
    parameters: tuple[Parameter, ...],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> list[Any]:
    """The value of each parameter in a call; defaults for parameters that are left out.

    Raises
    ------
    TypeError
        When the arguments don't fit the parameters.
    """
    positional = [each for each in parameters if not each.is_keyword]
    if len(args) > len(positional):
        raise TypeError(
            f"{name}: expected at most {len(positional)} arguments by position "
            f"({_listed(positional)}), got {len(args)}"
        )
    values = {each.name: value for each, value in zip(positional, args, strict=False)}
    known = {each.name: each for each in parameters}
    for given, value in kwargs.items():
        if given not in known:
            raise TypeError(
                f"{name}: expected arguments among {_listed(parameters)}, got '{given}'"
            )
        if known[given].is_nameless:
            raise TypeError(f"{name}: {known[given]}: expected by position, given by name")
        if given in values:
            raise TypeError(f"{name}: {known[given]}: given by position and by name")
        values[given] = value
    bound = []
    for each in parameters:
        if each.name not in values and not each.has_default:
            raise TypeError(f"{name}: {each}: expected {_wanted(each)}, got none")
        bound.append(values.get(each.name, each.default))
    return bound


def _listed(parameters: Iterable[Parameter]) -> str:
    return ", ".join(each.name for each in parameters) or "none"


def _wanted(parameter: Parameter) -> str:
    is_array = parameter.kind is Kind.TENSOR
    return (
        f"{parameter.kind.value} of shape {parameter.shape}" if is_array else parameter.kind.value
    )
