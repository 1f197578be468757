"""The extents of a call: the value of each letter, found in the shapes of the arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias, final

from minitvm.operators.arrays import Described
from minitvm.operators.parameters import Kind, Parameter
from minitvm.operators.shapes import ANY_SHAPE, Arithmetic, Dimension, Letter
from minitvm.runtime.record import record
from minitvm.te.tensor import shape_text

# The label of a dimension: a letter, or arithmetic that determines one, as "2*n" does where n is no
# dimension. A dimension without a letter is labelled by its place: "..." and a position among the
# leading dimensions, counted from the right; or a parameter's name and a dimension of the
# parameter.
Label: TypeAlias = str | tuple[str, int]
Labels: TypeAlias = tuple[Label | int | Arithmetic, ...]
_LEADING = "..."


@final
@record(eq=False)
class Extents:
    """The dimensions of a call's arrays.

    Attributes
    ----------
    labels
        For the position of each array's parameter, the array's dimensions: labels, extents that are
        the same in all calls, and arithmetic.
    values
        The extent of each label.
    leading
        The labels of the leading dimensions, ``...``. An array that broadcasts has some of them.
    solved
        The letters that are no dimensions, each with the arithmetic that determines it; the text of
        the arithmetic is a label. A letter that the arithmetic of another letter needs comes before
        that letter.
    """

    labels: Mapping[int, Labels]
    values: Mapping[Label, int]
    leading: tuple[Label, ...] = ()
    solved: Mapping[str, Arithmetic] = field(default_factory=dict)

    @property
    def classes(self) -> Mapping[Label, Label]:
        """The label that stands for each label. A letter stands for itself; dimensions without a
        letter that have equal extents share one label."""
        first: dict[int, Label] = {}
        return {
            label: label if isinstance(label, str) else first.setdefault(value, label)
            for label, value in self.values.items()
        }

    def letters(self, found: Mapping[Any, Any]) -> dict[str, Any]:
        """The extent of each letter, also of those that are solved for, by the extents of the
        labels: numbers or expressions."""
        made = {label: extent for label, extent in found.items() if isinstance(label, str)}
        for letter, dim in self.solved.items():
            made[letter] = dim.solved(letter, made, found[dim.text])
        return made

    def pattern(self, variable: frozenset[str]) -> tuple[object, ...]:
        """The pattern on which a program may depend apart from the extents: the dimensions whose
        extent is 1, and which so broadcast, and the dimensions with equal extents. The letters in
        `variable` may have any extent."""
        ones = (label for label, value in self.values.items() if value == 1)
        return (
            tuple(self.labels.items()),
            frozenset(label for label in ones if label not in variable),
            tuple(self.classes.items()),
        )


class _Finder:
    """Collects the extents of one call."""

    def __init__(self, name: str, parameters: Sequence[Parameter]) -> None:
        self.name = name
        self.parameters = parameters
        self.values: dict[Label, int] = {}
        self._first: dict[Label, Parameter] = {}
        self._letters: dict[str, int] = {}
        self.solved: dict[str, Arithmetic] = {}

    def meet(self, parameter: Parameter, shape: tuple[int, ...], labels: Labels) -> None:
        """Notes the extents of an array; they must agree with the arrays before it."""
        for label, extent in zip(labels, shape, strict=True):
            if isinstance(label, Arithmetic):
                continue
            if isinstance(label, int):
                if label != extent:
                    raise self.error(parameter, shape)
            elif self.values.setdefault(label, extent) == extent:
                self._first.setdefault(label, parameter)
            else:
                raise self.error(parameter, shape, self._where(parameter, label))

    def solve(self, arrays: Mapping[int, Described], labels: Mapping[int, Labels]) -> None:
        """Finds the letters that are no dimensions, from the arithmetic that contains them."""
        self._letters = {each: n for each, n in self.values.items() if isinstance(each, str)}
        left = [
            (self.parameters[position], label, arrays[position].shape, axis)
            for position, each in labels.items()
            for axis, label in enumerate(each)
            if isinstance(label, Arithmetic)
        ]
        while left:
            unknown = [[x for x in dim.letters if x not in self._letters] for _, dim, *_ in left]
            which = next(
                (i for i, each in enumerate(unknown) if len(each) == 1
                 and left[i][1].determines(each[0])), None
            )  # fmt: skip
            if which is None:
                break
            (letter,) = unknown[which]
            parameter, dim, shape, axis = left.pop(which)
            value = dim.solved(letter, self._letters, shape[axis])
            if value is None:
                raise self.error(parameter, shape, f" with an integer {letter} of 0 or more")
            self._letters[letter] = value
            self.solved[letter] = dim
            self.values[dim.text] = shape[axis]
        for parameter, dim, shape, _ in left:
            for letter in dim.letters:
                if letter not in self._letters:
                    raise self.error(parameter, shape, f", and {letter} by another argument")

    def check(self, parameter: Parameter, shape: tuple[int, ...], labels: Labels) -> None:
        """Compares an array's extents with the values of arithmetic."""
        letters = self._letters
        for label, extent in zip(labels, shape, strict=True):
            if isinstance(label, Arithmetic) and (wanted := label.value(letters)) != extent:
                known = ", ".join(f"{each} == {letters[each]}" for each in label.letters)
                raise self.error(parameter, shape, f" with {label} == {wanted}, since {known}")

    def _where(self, parameter: Parameter, label: Label) -> str:
        first, value = self._first[label], self.values[label]
        has_it = "" if first is parameter else f" (as {first} has it)"
        if isinstance(label, str):
            return f" with {label} == {value}{has_it}"
        return f" with extent {value} at {label[1]} in ...{has_it}"

    def error(
        self, parameter: Parameter, shape: tuple[int, ...], more: str = "", advice: str = ""
    ) -> ValueError:
        return ValueError(
            f"{self.name}: {parameter}: expected shape {parameter.shape}{more}, got "
            f"{shape_text(shape)}{advice}"
        )


def extents_of(
    name: str,
    parameters: Sequence[Parameter],
    arrays: Mapping[int, Described],
    broadcast: bool = False,
) -> Extents:
    """The extents in the shapes of some arrays, given by their parameters' positions.

    Parameters
    ----------
    broadcast
        Whether the leading dimensions of the arrays broadcast as in numpy; otherwise they are
        equal.

    Raises
    ------
    ValueError
        When a shape is not the one that its parameter declares, or a letter has two extents.
    """
    finder = _Finder(name, parameters)
    for position, array in arrays.items():
        if not parameters[position].shape.takes_rank(len(array.shape)):
            raise finder.error(parameters[position], array.shape)
    leading = _leading(finder, arrays, broadcast)
    labels: dict[int, Labels] = {}
    for position, array in arrays.items():
        labels[position] = _labels(parameters[position], array.shape, broadcast, leading)
        finder.meet(parameters[position], array.shape, labels[position])
    finder.solve(arrays, labels)
    for position, array in arrays.items():
        finder.check(parameters[position], array.shape, labels[position])
    texts = {each.text for each in finder.solved.values()}
    for position, each in labels.items():
        labels[position] = tuple(_determining(label, texts) for label in each)
    present = {label for each in labels.values() for label in each}
    every = tuple((_LEADING, -i) for i in range(len(leading), 0, -1))
    values = {label: value for label, value in finder.values.items() if label in present}
    return Extents(labels, values, every, finder.solved)


def _determining(label: Label | int | Arithmetic, texts: set[str]) -> Label | int | Arithmetic:
    """The label of a dimension. Arithmetic that determines a letter labels a dimension of its
    own."""
    return label.text if isinstance(label, Arithmetic) and label.text in texts else label


def said(label: Label) -> str:
    """The text of a label in messages."""
    if isinstance(label, str):
        return label
    return f"{label[0]}[{label[1]}]" if label[1] < 0 else f"{label[0]}.shape[{label[1]}]"


def has_leading(parameter: Parameter) -> bool:
    """Whether a parameter shares its leading dimensions with other parameters."""
    return parameter.shape.leading and parameter.shape is not ANY_SHAPE


def _leading(finder: _Finder, arrays: Mapping[int, Described], broadcast: bool) -> tuple[int, ...]:
    """Notes the extents for which ``...`` stands."""
    found: tuple[int, ...] | None = None
    first: Parameter | None = None
    for position, array in arrays.items():
        parameter = finder.parameters[position]
        if not has_leading(parameter):
            continue
        own = array.shape[: len(array.shape) - len(parameter.shape.dims)]
        if found is None:
            found, first = own, parameter
        elif broadcast and (common := _common(found, own)) is not None:
            found = common
        elif own != found:
            words = "that broadcasts with" if broadcast else "=="
            more = f" with ... {words} {shape_text(found)} (as {first} has it)"
            could = not broadcast and _common(found, own) is not None
            advice = ": jit(broadcast=True) broadcasts them" if could else ""
            raise finder.error(parameter, array.shape, more, advice)
    return found or ()


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape to which two shapes broadcast, if there is one."""
    rank = max(len(a), len(b))
    pairs = list(zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True))
    if any(x != y and 1 not in (x, y) for x, y in pairs):
        return None
    return tuple(y if x == 1 else x for x, y in pairs)


def _labels(
    parameter: Parameter, shape: tuple[int, ...], broadcast: bool, leading: tuple[int, ...]
) -> Labels:
    """The label, extent or arithmetic of each dimension of an array."""
    if not has_leading(parameter) and (parameter.shape is ANY_SHAPE or parameter.kind is Kind.ANY):
        return tuple((parameter.name, i) for i in range(len(shape)))
    count = len(shape) - len(parameter.shape.dims)
    before: list[Label | int | Arithmetic] = [
        1 if broadcast and shape[i] == 1 != leading[i - count] else (_LEADING, i - count)
        for i in range(count)
    ]
    dims = enumerate(parameter.shape.dims, count)
    return (*before, *(_label(parameter, position, dim) for position, dim in dims))


def _label(parameter: Parameter, position: int, dim: Dimension) -> Label | int | Arithmetic:
    if isinstance(dim, Letter):
        return dim.name
    return dim if isinstance(dim, int | Arithmetic) else (parameter.name, position)
