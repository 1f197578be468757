"""The derivative of a build: functions from the gradients of its outputs to those of its inputs.

::

    forward:       inputs                         ->  outputs
    backward:      inputs, gradients of outputs   ->  gradients of the inputs that are wanted
    pushforward:   inputs, tangents of inputs     ->  tangents of outputs

A forward run that is recorded may keep tensors which the others would compute again::

    recorded:      inputs                         ->  outputs, kept tensors
    backward:      inputs, outputs and tensors that are kept, gradients of outputs   ->  the same
    pushforward:   inputs, outputs and tensors that are kept, tangents of inputs     ->  the same
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple, cast, final

from minitvm.operators.parameters import Parameter
from minitvm.operators.tracing import Traced
from minitvm.operators.views import View, view_of
from minitvm.runtime.errors import CompileError
from minitvm.runtime.lock import ForkLock
from minitvm.runtime.module import Module
from minitvm.runtime.record import record
from minitvm.te.autodiff.gradient import gradient
from minitvm.te.autodiff.keeping import kept_tensors, reading_kept, recorded
from minitvm.te.autodiff.pushforward import transposed
from minitvm.te.operation import placeholder
from minitvm.te.tensor import Tensor
from minitvm.tir.expr import Var

Build = Callable[[list[Tensor], list[Tensor | Var], str], Module]


class Differentiated(NamedTuple):
    """A function that a derivative consists of, and its own derivative."""

    module: Module
    derivative: Derivative


@final
@record(eq=False)
class Recorded:
    """A forward run that keeps tensors for the gradients of some inputs, and the functions that
    take these tensors.

    Attributes
    ----------
    forward
        The function that returns the outputs, and behind them the tensors that it keeps. None where
        it keeps only outputs: then it is the operator's own function.
    outputs
        The number of outputs.
    kept
        The tensors that the other functions take: their places among the values that `forward`
        returns.
    backward
        As :meth:`Derivative.backward_of`. It takes the kept tensors between the inputs and the
        gradients.
    pushforward
        As :meth:`Derivative.pushforward_of`. It takes the kept tensors between the inputs and the
        tangents.
    """

    forward: Differentiated | None
    outputs: int
    kept: tuple[int, ...]
    backward: Callable[[], Differentiated]
    pushforward: Callable[[], Differentiated]


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
        The user's function that writes the gradients; None for ``te.gradient``.
    build
        Builds a program from its outputs, its inputs and its name.
    keeps
        Whether runs that are recorded keep tensors. Functions of a derivative keep none.

    Attributes
    ----------
    backward
        As given.
    inputs
        The places of the inputs that have gradients: arrays of floats.
    outputs
        The places of the outputs that have gradients.
    keeps
        Whether runs that are recorded may keep tensors.
    reads_outputs
        Whether the functions take the outputs, too, between the inputs and the gradients.
    bridges
        Operators of other libraries that were made from this derivative.
    """

    def __init__(
        self,
        name: str,
        parameters: Sequence[Parameter],
        traced: Traced,
        backward: Callable[..., Any] | None,
        build: Build,
        keeps: bool = True,
    ) -> None:
        self.name = name
        self._parameters = parameters
        self._traced = traced
        self.backward = backward
        self._build = build
        self.keeps = keeps and backward is None
        self._given = list(traced.inputs.values())
        self.inputs = tuple(i for i, each in enumerate(self._given) if _has_gradient(each))
        self.outputs = tuple(i for i, each in enumerate(traced.outputs) if _has_gradient(each))
        self._made: dict[tuple[str, tuple[int, ...]], Differentiated] = {}
        self._recorded: dict[tuple[int, ...], Recorded | None] = {}
        self._views: dict[tuple[int, ...], Mapping[int, View]] = {}
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

    def input_name(self, place: int) -> str:
        """The name of an input."""
        return self._given[place].name

    def backward_of(self, wanted: tuple[int, ...]) -> Differentiated:
        """The built function that returns the gradients of some inputs, given by their places. It
        takes the inputs, the outputs if `reads_outputs`, and the gradients of the outputs.

        Raises
        ------
        CompileError
            When the program has no derivative.
        """
        with making:
            if ("backward", wanted) not in self._made:
                kept, heads = self._kept(), self._heads()
                found = self._gradients(wanted, kept, heads)
                made = self._differentiated("backward", found, [*self._given, *kept, *heads])
                self._made["backward", wanted] = made
            return self._made["backward", wanted]

    def views_of(self, wanted: tuple[int, ...]) -> Mapping[int, View]:
        """The gradients, among those of some inputs, that are views of the gradients of outputs, by
        the places of the inputs. The user's function computes all of them."""
        with making:
            if wanted not in self._views:
                self._views[wanted] = self._find_views(wanted)
            return self._views[wanted]

    def _find_views(self, wanted: tuple[int, ...]) -> Mapping[int, View]:
        if self.backward is not None or not wanted:
            return {}
        heads = self._heads()
        try:
            adjoints = self._gradients(wanted, (), heads)
        except CompileError:
            return {}  # the error is raised when the gradients are asked for
        found = {i: view_of(each, heads) for i, each in zip(wanted, adjoints, strict=True)}
        return {i: view for i, view in found.items() if view is not None}

    def recorded_of(self, wanted: tuple[int, ...]) -> Recorded | None:
        """The forward run for the gradients of some inputs, given by their places, or for the
        tangents of the outputs from the tangents of these inputs. None where keeping tensors
        doesn't pay, where the user's function computes the gradients, or where there are no
        gradients."""
        with making:
            if wanted not in self._recorded:
                self._recorded[wanted] = self._find_recorded(wanted)
            return self._recorded[wanted]

    def _find_recorded(self, wanted: tuple[int, ...]) -> Recorded | None:
        if not self.keeps or not wanted or not self.outputs:
            return None
        heads, outputs = self._heads(), [*self._traced.outputs]
        try:
            adjoints = self._gradients(wanted, (), heads)
        except CompileError:
            return None  # the error is raised when the gradients are asked for
        found = kept_tensors(outputs, adjoints)
        if self._traced.schedule is not None and not set(found) <= set(outputs):
            return None  # the user's schedule is made for a program without further outputs
        if not found:
            return None
        return self._keeping(wanted, heads, adjoints, found)

    def _keeping(
        self,
        wanted: tuple[int, ...],
        heads: list[Tensor],
        adjoints: list[Tensor],
        found: list[Tensor],
    ) -> Recorded:
        outputs = [*self._traced.outputs]
        returned = [*outputs, *(each for each in found if each not in outputs)]
        kept = tuple(map(returned.index, found))
        taken = [_like(each, f"{each.op.name}_kept") for each in found]
        adjoints = reading_kept(adjoints, dict(zip(found, taken, strict=True)))

        @cache
        def backward() -> Differentiated:
            return self._differentiated("backward", adjoints, [*self._given, *taken, *heads])

        @cache
        def pushforward() -> Differentiated:
            tangents = self._tangents(wanted)
            made = transposed(adjoints, heads, tangents)
            return self._differentiated("pushforward", made, [*self._given, *taken, *tangents])

        forward = None
        if len(returned) > len(outputs):
            made = recorded(outputs, found)
            forward = self._differentiated("recorded", made, self._given)
        return Recorded(forward, len(outputs), kept, backward, pushforward)

    def pushforward_of(self, moved: tuple[int, ...]) -> Differentiated:
        """The built function that returns the tangents of the outputs that have gradients. It takes
        the inputs, the outputs if `reads_outputs`, and the tangents of some inputs, given by their
        places.

        Raises
        ------
        CompileError
            When the program has no derivative.
        """
        with making:
            if ("pushforward", moved) not in self._made:
                kept, heads = self._kept(), self._heads()
                adjoints = self._gradients(moved, kept, heads)
                tangents = self._tangents(moved)
                found = transposed(adjoints, heads, tangents)
                made = self._differentiated("pushforward", found, [*self._given, *kept, *tangents])
                self._made["pushforward", moved] = made
            return self._made["pushforward", moved]

    def _kept(self) -> list[Tensor]:
        """The outputs as inputs of a derivative that reads them."""
        outputs = self._traced.outputs if self.reads_outputs else ()
        return [_like(each, f"{each.op.name}_output") for each in outputs]

    def _tangents(self, moved: Sequence[int]) -> list[Tensor]:
        inputs = [cast(Tensor, self._given[i]) for i in moved]
        return [_like(each, f"{each.op.name}_tangent") for each in inputs]

    def _heads(self) -> list[Tensor]:
        outputs = [self._traced.outputs[i] for i in self.outputs]
        return [_like(each, f"{each.op.name}_gradient") for each in outputs]

    def _gradients(
        self, wanted: tuple[int, ...], kept: Sequence[Tensor], heads: Sequence[Tensor]
    ) -> list[Tensor]:
        """The gradients of some inputs, as tensors."""
        if self.backward is not None:
            return self._written(self.backward, wanted, [*kept, *heads])
        results = [self._traced.outputs[i] for i in self.outputs]
        try:
            return gradient(results, [self._given[i] for i in wanted], list(heads))
        except CompileError as error:
            raise CompileError(
                f"{self.name}: {error}: pass x.detach() for a tensor without a gradient, or "
                "write the gradients, jit(backward=)"
            ) from error

    def _differentiated(
        self, kind: str, found: Sequence[Tensor], given: list[Tensor | Var]
    ) -> Differentiated:
        name = f"{self.name}_{kind}"
        program = Traced(dict(enumerate(given)), tuple(found), None, given)
        again = Derivative(name, (), program, None, self._build, keeps=False)
        return Differentiated(self._build(list(found), given, name), again)

    def _written(
        self, backward: Callable[..., Any], wanted: tuple[int, ...], more: Sequence[Tensor]
    ) -> list[Tensor]:
        """The gradients that the user's function returns. It gets an input that broadcasts with all
        dimensions; the gradient is then summed over the broadcast ones."""
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


# One thread at a time makes a derivative or a framework's operator.
making = ForkLock()
