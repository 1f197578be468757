"""The derivative of a build: functions from the gradients of its outputs to those of its inputs.

::

    forward:    inputs                           ->  outputs
    backward:   inputs, gradients of outputs     ->  gradients of the inputs that are wanted
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, final

from minitvm.operators.parameters import Parameter
from minitvm.operators.tracing import Traced
from minitvm.runtime.errors import CompileError
from minitvm.runtime.lock import ForkLock
from minitvm.runtime.module import Module
from minitvm.te.autodiff.gradient import gradient
from minitvm.te.operation import placeholder
from minitvm.te.tensor import Tensor
from minitvm.tir.expr import Var

Build = Callable[[list[Tensor], list[Tensor | Var], str], Module]


@final
class Derivative:
    """The functions that differentiate one build of an operator, built when they are asked for.

    Parameters
    ----------
    name
        The operator's name.
    parameters
        The operator's parameters.
    traced
        The program of the build.
    backward
        A function of the user's that writes the gradients; None has ``te.gradient`` write them.
    build
        Builds a program: its outputs, its inputs, its name.

    Attributes
    ----------
    backward
        As given.
    inputs
        The inputs that have gradients, arrays of floats: their places among the inputs.
    outputs
        The outputs that have gradients: their places among the outputs.
    reads_outputs
        Whether the functions take the outputs, too, between the inputs and the gradients.
    bridges
        Operators of other libraries made of it.
    """

    def __init__(
        self,
        name: str,
        parameters: Sequence[Parameter],
        traced: Traced,
        backward: Callable[..., Any] | None,
        build: Build,
    ) -> None:
        self.name = name
        self._parameters = parameters
        self._traced = traced
        self.backward = backward
        self._build = build
        self._given = list(traced.inputs.values())
        self.inputs = tuple(i for i, each in enumerate(self._given) if _has_gradient(each))
        self.outputs = tuple(i for i, each in enumerate(traced.outputs) if _has_gradient(each))
        self._built: dict[tuple[int, ...], Module] = {}
        self._again: dict[tuple[int, ...], Derivative] = {}
        self.bridges: dict[object, Callable[..., Any]] = {}

    @cached_property
    def reads_outputs(self) -> bool:
        if self.backward is None:
            return False
        count = sum(not each.is_keyword for each in self._parameters) + len(self.outputs)
        named = [each.name for each in self._parameters if each.is_keyword]
        counts = (count, count + len(self._traced.outputs))
        for each in counts:
            if _takes(self.backward, each, named):
                return each != count
        raise CompileError(
            f"{self.name}: backward: expected a function of {counts[0]} arguments (those of "
            f"{self.name}, then the gradients of its outputs) or of {counts[1]} (with the outputs "
            f"between them), got {inspect.signature(self.backward)}"
        )

    def function(self, wanted: tuple[int, ...]) -> Module:
        """The built function that returns the gradients of some inputs, given by their places.

        Raises
        ------
        CompileError
            When the program has no derivative.
        """
        with making:
            if wanted not in self._built:
                self._built[wanted] = self._made(wanted)
            return self._built[wanted]

    def again(self, wanted: tuple[int, ...]) -> Derivative:
        """The derivative of :meth:`function` for the same inputs, a second one; found when its own
        functions are asked for."""
        with making:
            self.function(wanted)
            return self._again[wanted]

    def _made(self, wanted: tuple[int, ...]) -> Module:
        outputs = self._traced.outputs
        heads = [_like(outputs[i], f"{outputs[i].op.name}_gradient") for i in self.outputs]
        kept = [_like(each, f"{each.op.name}_output") for each in outputs]
        kept = kept if self.reads_outputs else []
        targets = [self._given[i] for i in wanted]
        if self.backward is None:
            try:
                found = gradient([outputs[i] for i in self.outputs], targets, heads)
            except CompileError as error:
                raise CompileError(
                    f"{self.name}: {error}: pass x.detach() for a tensor without a gradient, or "
                    "write the gradients, jit(backward=)"
                ) from error
        else:
            found = self._written(self.backward, wanted, [*kept, *heads])
        name, given = f"{self.name}_backward", [*self._given, *kept, *heads]
        program = Traced(dict(enumerate(given)), tuple(found), None, given)
        self._again[wanted] = Derivative(name, (), program, None, self._build)
        return self._build(found, given, name)

    def _written(
        self, backward: Callable[..., Any], wanted: tuple[int, ...], more: Sequence[Tensor]
    ) -> list[Tensor]:
        """The gradients that a function of the user's returns. An input that broadcasts is given
        to it with all dimensions, over which the gradient is then added up."""
        places = list(self._traced.inputs)
        positional = sum(not each.is_keyword for each in self._parameters)
        args, named = self._traced.args[:positional], self._traced.args[positional:]
        keywords = self._parameters[positional:]
        by_name = {each.name: value for each, value in zip(keywords, named, strict=True)}
        returned = backward(*args, *more, **by_name)
        gradients = list(returned) if isinstance(returned, tuple | list) else [returned]
        names = ", ".join(self._parameters[places[i]].name for i in self.inputs)
        if len(gradients) != len(self.inputs):
            raise CompileError(
                f"{self.name}: backward: expected {len(self.inputs)} gradients, of {names}, got "
                f"{len(gradients)}"
            )
        made = []
        for place, found in zip(self.inputs, gradients, strict=True):
            if place in wanted:
                own = self._given[place]
                try:
                    made += gradient(self._traced.args[places[place]], own, found)
                except CompileError as error:
                    what = f"{self.name}: backward: the gradient of {own}"
                    raise CompileError(f"{what}: {_cause(error)}") from error
        return made


def _has_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and bool(value.dtype.is_float)


def _like(tensor: Tensor, name: str) -> Tensor:
    return placeholder(tensor.shape, tensor.dtype, name)


def _takes(function: Callable[..., Any], count: int, named: Sequence[str]) -> bool:
    try:
        inspect.signature(function).bind(*range(count), **dict.fromkeys(named))
    except TypeError:
        return False
    return True


def _cause(error: CompileError) -> str:
    return str(error).removeprefix("gradient: head_adjoints: ")


# One thread makes a derivative, or a framework's operator, at a time.
making = ForkLock()
