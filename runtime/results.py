"""The outputs of a built function as results: their shapes and dtypes follow from the inputs."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

from minitvm.runtime.dtype import DType
from minitvm.runtime.record import record


class Op(IntEnum):
    """The operation of a step: it pushes a number on a stack, or replaces the upper two numbers."""

    CONSTANT = 0  # push the number `a`
    EXTENT = 1  # push extent number `b` of the array at position `a` of the arguments
    SCALAR = 2  # push the scalar at position `a`
    ADD = 3
    SUBTRACT = 4
    MULTIPLY = 5
    FLOOR_DIVIDE = 6
    FLOOR_MOD = 7
    MAX = 8
    MIN = 9


class Step(NamedTuple):
    """A step of the computation of an extent."""

    op: Op
    a: int = 0
    b: int = 0


Extent = tuple[Step, ...]
_Parameter = inspect.Parameter

# On any numbers that a framework has for extents, symbols included.
_ARITHMETIC: dict[Op, Callable[[Any, Any], Any]] = {
    Op.ADD: lambda a, b: a + b,
    Op.SUBTRACT: lambda a, b: a - b,
    Op.MULTIPLY: lambda a, b: a * b,
    Op.FLOOR_DIVIDE: lambda a, b: a // b if b else 0,
    Op.FLOOR_MOD: lambda a, b: a % b if b else 0,
    Op.MAX: max,
    Op.MIN: min,
}


@final
@record()
class Result:
    """An output as a result.

    Attributes
    ----------
    position
        Its place among the arguments.
    extents
        For each dimension the steps that compute its extent.
    alignment
        The bytes to which its memory has to be aligned.
    in_columns
        Whether it is column-major.
    """

    position: int
    extents: tuple[Extent, ...]
    alignment: int = 1
    in_columns: bool = False

    def shape(self, known: Mapping[int, Any]) -> tuple[Any, ...]:
        """The shape, given the shapes of arrays and the values of scalars by their positions."""
        return tuple(_value(steps, known) for steps in self.extents)


@final
@record()
class Results:
    """A built function as one that returns its outputs.

    Attributes
    ----------
    name
        The function's name.
    names, dtypes, ranks
        The properties of each argument; the rank of a scalar is -1.
    inputs
        The positions of the arguments that the function only reads.
    results
        The arguments that the function writes.
    """

    name: str
    names: tuple[str, ...]
    dtypes: tuple[DType, ...]
    ranks: tuple[int, ...]
    inputs: tuple[int, ...]
    results: tuple[Result, ...]

    @property
    def outputs(self) -> tuple[int, ...]:
        """The positions of the arguments that the function writes."""
        return tuple(each.position for each in self.results)

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(self.names[position] for position in self.inputs)

    def is_scalar(self, position: int) -> bool:
        return self.ranks[position] < 0

    def argument(self, position: int) -> str:
        """The text for an argument in messages."""
        kind = "argument" if position in self.inputs else "output"
        return f"{self.name}: {kind} {position} '{self.names[position]}'"

    def about_outputs(self, text: Any) -> Any:
        """The text of an error about arguments, where the outputs were given as ``out=``."""
        for i, each in enumerate(self.results if isinstance(text, str) else ()):
            place = "out" if len(self.results) == 1 else f"out[{i}]"
            text = text.replace(f"argument {each.position} '{self.names[each.position]}'", place)
        return text

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The inputs by position.

        Raises
        ------
        TypeError
            When the arguments don't fit the function's inputs.
        """
        names = self.input_names
        for name in kwargs:
            if name not in names[len(args) :]:
                if name in names:
                    where = self.argument(self.inputs[names.index(name)])
                    raise TypeError(f"{where}: given by position and by name")
                known = ", ".join(names[len(args) :]) or "none"
                raise TypeError(f"{self.name}: expected inputs by name among {known}, got '{name}'")
        given = dict(kwargs)
        missing = [name for name in names[len(args) :] if name not in given]
        if len(args) > len(names) or missing:
            raise TypeError(
                f"{self.name}: expected {_count(len(names), 'input')} ({', '.join(names)}), got "
                f"{len(args) + len(kwargs)}: outputs are returned, not passed"
            )
        return [*args, *(given[name] for name in names[len(args) :])]

    def given(self, out: Any) -> list[Any]:
        """The arrays that a caller has given for the outputs, None for outputs that the call has to
        make.

        Raises
        ------
        TypeError
            When their number is wrong.
        """
        count = len(self.results)
        if out is None:
            return [None] * count
        arrays = list(out) if isinstance(out, tuple) else [out]
        if len(arrays) != count or isinstance(out, list):
            listed = ", ".join(self.names[each.position] for each in self.results)
            what = "an array" if count == 1 else f"a tuple of {count} arrays"
            got = f"a tuple of {len(arrays)}" if isinstance(out, tuple) else type(out).__name__
            remedy = ": results are written to arrays" if isinstance(out, list) else ""
            raise TypeError(f"{self.name}: out: expected {what} ({listed}), got {got}{remedy}")
        return arrays

    @property
    def signature(self) -> inspect.Signature:
        """The signature of the function that returns its outputs."""
        names = self.input_names
        by_name = len(set(names)) == len(names) and all(map(_is_parameter, names))
        if not by_name:  # not all can be given by name
            names = tuple(f"arg{position}" for position in self.inputs)
        kind = _Parameter.POSITIONAL_OR_KEYWORD if by_name else _Parameter.POSITIONAL_ONLY
        out = _Parameter("out", _Parameter.KEYWORD_ONLY, default=None)
        return inspect.Signature([*(_Parameter(name, kind) for name in names), out])

    def arguments(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """The arguments of a call of the function."""
        placed = dict(zip((*self.inputs, *self.outputs), (*inputs, *outputs), strict=True))
        return [placed[position] for position in range(len(placed))]

    def returned(self, outputs: Sequence[Any]) -> Any:
        """The return value, given a value for each output: the only value, or a tuple."""
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def shapes(self, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The shapes of the outputs for some inputs, arrays with a ``shape`` and numbers.

        Raises
        ------
        ValueError
            When an input has another rank than the function expects.

        >>> from minitvm import build, te
        >>> import numpy as np
        >>> n = te.var("n")
        >>> X = te.placeholder((n,), name="X")
        >>> Y = te.compute((n + 1, 2), lambda i, j: X[0] * 2.0, name="Y")
        >>> results_of(build(te.create_schedule(Y.op), [X, Y], name="f")).shapes([np.zeros(3)])
        [(4, 2)]
        """
        known = {
            position: value if self.is_scalar(position) else tuple(value.shape)
            for position, value in zip(self.inputs, values, strict=True)
        }
        for position, shape in known.items():
            rank = self.ranks[position]
            if not self.is_scalar(position) and len(shape) != rank:
                where = self.argument(position)
                raise ValueError(f"{where}: expected ndim == {rank}, got {len(shape)}")
        return [each.shape(known) for each in self.results]

    def determine(self, known: Mapping[int, Any]) -> bool:
        """Whether the shapes of some arrays and the values of some scalars determine all output
        shapes: all needed ones are given, and have the expected ranks."""
        steps = [step for each in self.results for extent in each.extents for step in extent]
        return all(
            step.a in known and (step.op == Op.SCALAR or len(known[step.a]) == self.ranks[step.a])
            for step in steps
            if step.op in (Op.EXTENT, Op.SCALAR)
        )


def _value(steps: Extent, known: Mapping[int, Any]) -> Any:
    """An extent, computed with the caller's numbers."""
    stack: list[Any] = []
    for op, a, b in steps:
        if op == Op.CONSTANT:
            stack.append(a)
        elif op == Op.EXTENT:
            stack.append(known[a][b])
        elif op == Op.SCALAR:
            stack.append(known[a])
        else:
            right = stack.pop()
            stack.append(_ARITHMETIC[op](stack.pop(), right))
    return stack.pop()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _is_parameter(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and name != "out"


@runtime_checkable
class ToldResults(Protocol):
    """A function that can describe its results."""

    def results(self) -> Results: ...


def results_of(function: Any) -> Results:
    """A function made by ``build`` (of a module, the first one) as one that returns its outputs.

    Raises
    ------
    TypeError
        For any other object, and for a function that writes nothing, or that changes an argument.
    ValueError
        When the inputs don't determine the shape of an output.
    """
    called = getattr(function, "entry_func", function)
    if not isinstance(called, ToldResults):
        kind = type(function).__name__
        raise TypeError(
            f"expected a function of minitvm.build, which knows its outputs, got {kind}"
        )
    return called.results()
