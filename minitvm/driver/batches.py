"""Batched forms of a built function: one kernel computes a batch of its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from minitvm.runtime.errors import CompileError
from minitvm.runtime.module import Module
from minitvm.te.operation import var
from minitvm.te.tensor import PlaceholderOp, Tensor
from minitvm.te.vmap import vmap
from minitvm.tir.expr import Var


@final
class Batches:
    """The program of a built function, built again with a dimension for a batch in front of some
    inputs and of all outputs. The extent of the batch is a variable.

    Parameters
    ----------
    arguments
        The function's parameters: tensors and variables of ``te``.
    build
        Builds a program with other parameters in the way in which the function was built; returns a
        module.
    """

    __slots__ = ("_build", "_built", "arguments")

    def __init__(
        self,
        arguments: Sequence[Tensor | Var],
        build: Callable[[list[Tensor], list[Tensor | Var]], Module],
    ) -> None:
        self.arguments = tuple(arguments)
        self._build = build
        self._built: dict[tuple[bool, ...], Module | None] = {}

    @property
    def outputs(self) -> list[Tensor]:
        """The tensors among the arguments that the function computes."""
        return [each for each in self.arguments if _is_computed(each)]  # type: ignore[misc]  # so

    @property
    def inputs(self) -> list[Tensor | Var]:
        return [each for each in self.arguments if not _is_computed(each)]

    def function(self, batched: Sequence[bool]) -> Module | None:
        """The function for a batch; None where the program has none (``extern``).

        Parameters
        ----------
        batched
            For each input, in order, whether it has the dimension. A batched number is an array of
            rank 1.
        """
        key = tuple(batched)
        if key not in self._built:
            self._built.setdefault(key, self._made(key))
        return self._built[key]

    def _made(self, batched: tuple[bool, ...]) -> Module | None:
        inputs = self.inputs
        chosen = [each for each, has in zip(inputs, batched, strict=True) if has]
        before = [*chosen, *self.outputs]
        try:
            outputs, given = vmap(self.outputs, chosen, var("batch"))
            after = dict(zip(before, [*given, *outputs], strict=True))
            return self._build(outputs, [after.get(each, each) for each in self.arguments])
        except CompileError:
            return None


def batches_of(
    arguments: Sequence[Any] | None,
    build: Callable[[list[Tensor], list[Tensor | Var]], Module],
) -> Batches | None:
    """The batches of a program whose parameters are tensors and variables, and which computes some
    of the tensors; None for any other program."""
    given = list(arguments or ())
    if not all(isinstance(each, Tensor | Var) for each in given):
        return None
    if len(set(given)) != len(given) or not any(map(_is_computed, given)):
        return None
    return Batches(given, build)


def _is_computed(argument: Tensor | Var) -> bool:
    return isinstance(argument, Tensor) and not isinstance(argument.op, PlaceholderOp)
