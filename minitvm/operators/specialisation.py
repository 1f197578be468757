"""The builds of an operator, and the choice which extents are constants in them.

An operator is built for the extents that it meets first. An extent that is met with a second value
becomes a variable in the next build, which then serves all values. So there are at most as many
builds for a signature as there are letters in it, and one more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

from minitvm.operators.extents import Extents, Label
from minitvm.operators.tracing import Traced
from minitvm.runtime.errors import CompileError
from minitvm.runtime.module import Module
from minitvm.runtime.record import record


@final
@record(eq=False)
class Specialisation:
    """One build of an operator.

    Attributes
    ----------
    traced
        Its program.
    module
        Its code.
    fixed
        The extents that are constants in it.
    symbolic
        The extents that are variables.
    returning
        The function that returns the outputs.
    """

    traced: Traced
    module: Module
    fixed: Mapping[Label, int]
    symbolic: frozenset[Label]
    returning: Callable[..., Any]

    def serves(self, values: Mapping[Label, int]) -> bool:
        return all(values[label] == value for label, value in self.fixed.items())


Build = Callable[[frozenset[Label]], Specialisation]


class Group:
    """The builds for arguments of one kind, which differ in their extents alone.

    Parameters
    ----------
    named
        The letters that the user wants as variables.
    """

    def __init__(self, named: frozenset[str]) -> None:
        self._named = named
        self._seen: dict[Label, int] = {}
        self._varying: set[Label] = set()
        self._always_static = False
        self.builds: list[Specialisation] = []

    def find(self, extents: Extents) -> Specialisation | None:
        """The build that serves some extents: the one with the most constants."""
        serving = (each for each in self.builds if each.serves(extents.values))
        return max(serving, key=lambda each: len(each.fixed), default=None)

    def add(self, extents: Extents, make: Build) -> Specialisation:
        """A new build for some extents."""
        symbolic = self._variables(extents)
        named = symbolic & self._named
        if symbolic == named:
            made = make(symbolic)
        else:
            made = self._generalised(symbolic, named, make)
        self.builds.append(made)
        return made

    def _generalised(
        self, symbolic: frozenset[Label], named: frozenset[Label], make: Build
    ) -> Specialisation:
        """A build with variables; one with constants if the program has no meaning with them."""
        try:
            return make(symbolic)
        except (CompileError, TypeError, ValueError):
            self._always_static = True
            return make(named)

    def _variables(self, extents: Extents) -> frozenset[Label]:
        """The extents that become variables: those that the user named, and those that were met
        with another value."""
        for label, value in extents.values.items():
            if self._seen.setdefault(label, value) != value:
                self._varying.add(label)
        named = {each for each in extents.values if each in self._named}
        varying = {extents.classes[label] for label in self._varying}
        return frozenset(named if self._always_static else named | varying)
