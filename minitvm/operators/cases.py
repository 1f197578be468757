"""The builds of an operator as cases, with which compiled code makes the operator's calls by
itself.

A case holds the conditions of :class:`.signature.Signature` and :class:`.specialisation.Group` on
the arguments. So compiled code chooses the build that Python code would choose, or leaves the call
to Python code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from minitvm.operators.extents import Extents, Label
from minitvm.operators.parameters import Parameter
from minitvm.operators.shapes import Arithmetic
from minitvm.operators.signature import Signature
from minitvm.operators.specialisation import Specialisation
from minitvm.runtime.cases import MOST_CASES, Argument, Case, Check, Choosing, is_native
from minitvm.runtime.cases_text import Op

# The number of the build's constants, the arguments' types, and the build's number.
_Key: TypeAlias = tuple[Any, ...]
_MOST_FILLINGS = 64  # times that a table too small for its calls is filled; then it stays as it is


class ChoosingOperator(Choosing):
    """The part of an operator that lets compiled code make its calls: cases learned from the calls
    that Python code made."""

    __slots__ = ("_cases", "_fillings")

    def _start(self, parameters: Sequence[Parameter]) -> None:
        self._cases: dict[_Key, Case] = {}
        self._fillings = 0
        defaults = {each.position: each.default for each in parameters if each.has_default}
        positional = sum(not each.is_keyword for each in parameters)
        names = ["" if each.is_nameless else each.name for each in parameters]
        self._let_choose(names, defaults, positional)

    def _learn(
        self, signature: Signature, serving: Sequence[Specialisation], variable: frozenset[str]
    ) -> bool:
        """Lets compiled code make calls of a signature, which the last build of `serving` serves;
        the earlier builds are tried before it. Returns False where the table had no room, and
        forgot all other cases."""
        arguments = _arguments(signature)
        found = _cases(signature, arguments, serving, variable)
        new = {key: case for key, case in found.items() if is_native(case)}
        if len(new) < len(found) or new.keys() <= self._cases.keys() or len(new) > MOST_CASES:
            return True
        has_room = len(self._cases.keys() | new.keys()) <= MOST_CASES
        if not has_room and self._fillings == _MOST_FILLINGS:
            return True
        self._fillings += not has_room
        self._cases = {**self._cases, **new} if has_room else new
        # The builds with the most constants first: that is the order within each signature.
        ordered = sorted(self._cases.items(), key=lambda item: -item[0][0])
        self._set_cases([case for _, case in ordered])
        return has_room

    def _forget(self) -> None:
        """Forgets the cases, since there may be better builds now. The caller holds
        ``_table_lock``."""
        self._cases = {}
        self._set_cases(())


def _arguments(signature: Signature) -> tuple[Argument, ...]:
    arguments = []
    for position, value in enumerate(signature.values):
        labels = signature.extents.labels.get(position)
        if labels is not None:
            dtype = signature.dtypes[position]
            arguments.append(Argument(type(value), dtype, len(labels)))
        elif position in signature.dtypes:
            arguments.append(Argument(type(value)))
        else:
            arguments.append(Argument(type(value), is_constant=True, constant=value))
    return tuple(arguments)


def _cases(
    signature: Signature,
    arguments: tuple[Argument, ...],
    serving: Sequence[Specialisation],
    variable: frozenset[str],
) -> dict[_Key, Case]:
    """The cases of some builds for a signature. The last build serves it. If conditions can't
    describe all extents that this build serves, its case is for these extents alone."""
    kinds = tuple(each.kind for each in arguments)
    made: dict[_Key, Case] = {}
    for build in serving:
        # Only Python code finds out whether letters that are solved for are whole numbers.
        is_known = not signature.extents.solved
        checks = _checks(signature.extents, build, variable) if is_known else None
        if checks is None:
            return _exact(signature, arguments, serving[-1], kinds)
        key = (len(build.fixed), kinds, id(build))
        made[key] = _case(build, arguments, checks)
    return made


def _exact(
    signature: Signature,
    arguments: tuple[Argument, ...],
    build: Specialisation,
    kinds: tuple[type, ...],
) -> dict[_Key, Case]:
    shapes = _shapes(signature.extents)
    checks = [
        Check(Op.IS, position, dim, extent)
        for position, shape in shapes.items()
        for dim, extent in enumerate(shape)
    ]
    key = (len(build.fixed), kinds, id(build), tuple(shapes.items()))
    return {key: _case(build, arguments, checks)}


def _case(build: Specialisation, arguments: tuple[Argument, ...], checks: Sequence[Check]) -> Case:
    operator = build.derivative.bridges.get("torch")
    return Case(build.returning, arguments, tuple(checks), operator)


def _shapes(extents: Extents) -> dict[int, tuple[int, ...]]:
    letters = extents.letters(extents.values)

    def extent(label: Any) -> int:
        if isinstance(label, Arithmetic):
            return int(label.value(letters))
        return label if isinstance(label, int) else extents.values[label]

    return {at: tuple(map(extent, labels)) for at, labels in extents.labels.items()}


def _checks(
    extents: Extents, build: Specialisation, variable: frozenset[str]
) -> list[Check] | None:
    """The conditions on the extents under which a build serves a call of this signature; None where
    they need arithmetic."""
    fixed, classes = build.fixed, extents.classes
    letters = {label: n for label, n in fixed.items() if isinstance(label, str)}
    places: dict[Label, tuple[int, int]] = {}  # the first dimension that has each variable extent
    checks = []
    for position, labels in extents.labels.items():
        for dim, label in enumerate(labels):
            if isinstance(label, Arithmetic):
                if not letters.keys() >= set(label.letters):
                    return None
                checks.append(Check(Op.IS, position, dim, int(label.value(letters))))
            elif isinstance(label, int):
                checks.append(Check(Op.IS, position, dim, label))
            elif label in fixed:
                checks.append(Check(Op.IS, position, dim, fixed[label]))
            elif (first := places.setdefault(classes[label], (position, dim))) != (position, dim):
                checks.append(Check(Op.IS_THAT, position, dim, first[1], first[0]))
            elif label not in variable:
                is_one = extents.values[label] == 1
                checks.append(Check(Op.IS if is_one else Op.IS_NOT, position, dim, 1))
    return checks + _distinct(fixed, classes, places)


def _distinct(
    fixed: Mapping[Label, int],
    classes: Mapping[Label, Label],
    places: Mapping[Label, tuple[int, int]],
) -> list[Check]:
    """Conditions on dimensions without a letter: those that are equal in the known call must be
    equal, and the others must differ."""
    unnamed = [label for label in dict.fromkeys(classes.values()) if not isinstance(label, str)]
    checks = []
    for i, label in enumerate(unnamed):
        for other in unnamed[:i]:
            here, there = places.get(label), places.get(other)
            if here is not None and there is not None:
                checks.append(Check(Op.IS_NOT_THAT, *here, there[1], there[0]))
            elif here is not None:
                checks.append(Check(Op.IS_NOT, *here, fixed[other]))
            elif there is not None:
                checks.append(Check(Op.IS_NOT, *there, fixed[label]))
    return checks
