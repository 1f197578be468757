"""Chooses which extents are constants in each build of an operator.

The first build of an operator is for the extents of its first call. If a later call has a second
value for an extent, the extent becomes a variable in the next build, which then serves all values.
So a signature has at most one build more than it has letters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, final

from minitvm.operators.derivative import Derivative
from minitvm.operators.extents import Extents, Label, said
from minitvm.operators.tracing import Traced
from minitvm.runtime.errors import CompileError, PerformanceWarning
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
    derivative
        Its derivative.
    """

    traced: Traced
    module: Module
    fixed: Mapping[Label, int]
    symbolic: frozenset[Label]
    returning: Callable[..., Any]
    derivative: Derivative

    def serves(self, values: Mapping[Label, int]) -> bool:
        return all(values[label] == value for label, value in self.fixed.items())


Build = Callable[[frozenset[Label]], Specialisation]


@final
class Group:
    """The builds for arguments of one kind, which differ in their extents alone.

    Parameters
    ----------
    name
        The operator's name, for messages.
    named
        The letters that the user wants as variables.
    is_automatic
        Whether an extent also becomes a variable when a call has a second value for it.
    """

    def __init__(self, name: str, named: frozenset[str], is_automatic: bool) -> None:
        self._name = name
        self._named = named
        self._is_automatic = is_automatic
        self._seen: dict[Label, int] = {}
        self._varying: set[Label] = set()
        self.builds: list[Specialisation] = []

    def find(
        self, extents: Extents, exact: bool = False, varying: frozenset[Label] = frozenset()
    ) -> Specialisation | None:
        """The build that serves some extents: the one with the most constants. An `exact` build has
        only the variables that the user named. `varying` extents are variables in it, where this is
        possible."""
        variable = varying if self._is_automatic else varying & self._named
        serving = [
            each
            for each in self.builds
            if each.serves(extents.values)
            and not (exact and each.symbolic - self._named)
            and variable.isdisjoint(each.fixed)
        ]
        return max(serving, key=lambda each: len(each.fixed), default=None)

    def until(self, build: Specialisation) -> list[Specialisation]:
        """The builds up to `build`, in the order in which :meth:`find` prefers them."""
        preferred = sorted(self.builds, key=lambda each: -len(each.fixed))
        return preferred[: preferred.index(build) + 1]

    def add(
        self,
        extents: Extents,
        make: Build,
        exact: bool = False,
        varying: frozenset[Label] = frozenset(),
    ) -> Specialisation:
        """A new build for some extents; those in `varying` are known to change."""
        self._varying |= varying
        varying = self._met(extents)
        named = frozenset(each for each in extents.values if each in self._named)
        if exact or not self._is_automatic or varying <= named:
            made = make(named)
        else:
            made = self._generalised(named | varying, named, make)
        self.builds.append(made)
        return made

    def _met(self, extents: Extents) -> frozenset[Label]:
        """The extents for which a build has another value."""
        for label, value in extents.values.items():
            if self._seen.setdefault(label, value) != value:
                self._varying.add(label)
        return frozenset(extents.classes[label] for label in self._varying)

    def _generalised(
        self, symbolic: frozenset[Label], named: frozenset[Label], make: Build
    ) -> Specialisation:
        """A build with variables; if the program has no meaning with variables, a build with
        constants."""
        try:
            return make(symbolic)
        except (CompileError, TypeError, ValueError) as error:
            made = make(named)  # this fails as well if variables aren't the reason
            self._is_automatic = False
            extents = ", ".join(str(each) for each in sorted(map(said, symbolic)))
            warnings.warn(
                f"{self._name}: expected a program for any extents {extents}, found one that needs "
                f"them constant, and is built for each anew: {error}; symbolic=() says that this "
                "is meant",
                PerformanceWarning,
                stacklevel=2,
            )
            return made
