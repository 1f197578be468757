"""The extents of a call: the value of each letter, found in the shapes of the arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, final

from minitvm.operators.arrays import Described
from minitvm.operators.parameters import Kind, Parameter
from minitvm.operators.shapes import ANY_SHAPE, Arithmetic, Dimension, Letter
from minitvm.runtime.record import record

# A letter; or, for a dimension without one, its place: a position among the leading dimensions,
# counted from the right, or a parameter and a dimension of it.
Label: TypeAlias = str | tuple[str, int]
_LEADING = "..."


@final
@record(eq=False)
class Extents:
    """The dimensions of a call's arrays.

    Attributes
    ----------
    labels
        For each parameter, by position, what each dimension is: a label, an extent that the
        annotation fixes, or arithmetic.
    values
        The extent of each label.
    """

    labels: Mapping[int, tuple[Label | int | Arithmetic, ...]]
    values: Mapping[Label, int]


def extents_of(
    name: str, parameters: Sequence[Parameter], arrays: Mapping[int, Described]
) -> Extents:
    """The extents in the shapes of some arrays, given by their parameters' positions.

    Raises
    ------
    ValueError
        When a shape is not the one that its parameter declares, or a letter has two extents.
    """
    labels: dict[int, tuple[Label | int | Arithmetic, ...]] = {}
    values: dict[Label, int] = {}
    first: dict[Label, Parameter] = {}
    for position, array in arrays.items():
        parameter = parameters[position]
        if not parameter.shape.takes_rank(len(array.shape)):
            raise ValueError(f"{name}: {_mismatch(parameter, array)}")
        labels[position] = _labels(parameter, len(array.shape))
        for label, extent in zip(labels[position], array.shape, strict=True):
            if isinstance(label, int):
                if label != extent:
                    raise ValueError(f"{name}: {_mismatch(parameter, array)}")
            elif not isinstance(label, Arithmetic) and values.setdefault(label, extent) != extent:
                raise ValueError(
                    f"{name}: {_mismatch(parameter, array, label, values[label], first[label])}"
                )
            elif not isinstance(label, Arithmetic):
                first.setdefault(label, parameter)
    letters = {label: value for label, value in values.items() if isinstance(label, str)}
    for position, array in arrays.items():
        for label, extent in zip(labels[position], array.shape, strict=True):
            if isinstance(label, Arithmetic) and (wanted := label.value(letters)) != extent:
                known = ", ".join(f"{each} == {letters[each]}" for each in label.letters)
                raise ValueError(
                    f"{name}: {_mismatch(parameters[position], array)}: {label} is {wanted} where "
                    f"{known}"
                )
    return Extents(labels, values)


def _labels(parameter: Parameter, ndim: int) -> tuple[Label | int | Arithmetic, ...]:
    shape = parameter.shape
    count = ndim - len(shape.dims)
    if shape is ANY_SHAPE or parameter.kind is Kind.ANY:
        return tuple((parameter.name, i) for i in range(ndim))
    leading: list[Label | int | Arithmetic] = [(_LEADING, i - count) for i in range(count)]
    return (*leading, *(_label(parameter, count + i, d) for i, d in enumerate(shape.dims)))


def _label(parameter: Parameter, position: int, dim: Dimension) -> Label | int | Arithmetic:
    if isinstance(dim, Letter):
        return dim.name
    return dim if isinstance(dim, int | Arithmetic) else (parameter.name, position)


def _mismatch(
    parameter: Parameter,
    array: Described,
    label: Label | None = None,
    value: int = 0,
    first: Parameter | None = None,
) -> str:
    wanted = f"{parameter}: expected shape {parameter.shape}"
    if first is not None:
        named = label if isinstance(label, str) else "..."
        elsewhere = "" if first is parameter else f" (as {first} has it)"
        extent = f"{named} == {value}" if isinstance(label, str) else f"... as {first} has it"
        wanted += f" with {extent}{elsewhere if isinstance(label, str) else ''}"
    return f"{wanted}, got {_said(array.shape)}"


def _said(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def pattern_of(extents: Extents, named: frozenset[str]) -> tuple[object, ...]:
    """What a program may depend on in some extents apart from their values: which are 1, and
    broadcast, and which of those without a letter are equal. Extents in `named` may be anything."""
    ones = frozenset(
        label for label, value in extents.values.items() if value == 1 and label not in named
    )
    classes: dict[int, int] = {}
    places = [(label, v) for label, v in extents.values.items() if not isinstance(label, str)]
    equal = tuple((label, classes.setdefault(value, len(classes))) for label, value in places)
    return (ones, equal)


def merged(extents: Extents) -> Mapping[Label, Label]:
    """For each label, the one that stands for it: the first of those without a letter that are
    equal."""
    first: dict[int, Label] = {}
    return {
        label: label if isinstance(label, str) else first.setdefault(value, label)
        for label, value in extents.values.items()
    }
