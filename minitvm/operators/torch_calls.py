"""Calls that torch watches, as operators of torch: with gradients, by the derivative of a build."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, final

import numpy as np

from minitvm.contrib.torch_library import Gradients, Recording, gradients_of
from minitvm.operators.arrays import is_symbol
from minitvm.operators.derivative import Derivative, Recorded, making
from minitvm.operators.extents import Extents, Label
from minitvm.runtime.module import Module
from minitvm.runtime.packed_func import Function
from minitvm.runtime.results import results_of
from minitvm.runtime.traced import is_without_data


def records(values: Sequence[Any]) -> bool:
    """Whether torch records what happens to some arguments: for gradients, for a transform, or as
    it reads a program."""
    torch: Any = sys.modules.get("torch")
    tensors = [] if torch is None else [x for x in values if isinstance(x, torch.Tensor)]
    if not tensors:
        return False
    if torch.autograd.forward_ad._current_level >= 0:
        return True
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        return True
    if is_without_data(tensors):
        return True
    return any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors))


def is_module(value: object) -> bool:
    """Whether a value is a module of torch."""
    torch: Any = sys.modules.get("torch.nn")
    return torch is not None and isinstance(value, torch.Module)


@final
class ModuleMethod(partial[Any]):
    """A method of a module that is an operator. torch.compile looks for the files of methods that
    are ``types.MethodType``, which only those of functions have."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.func, name)


def varying(extents: Extents, values: Sequence[Any]) -> frozenset[Label]:
    """The extents of some arguments that torch, which reads a program, doesn't fix."""
    return frozenset(
        label
        for position, labels in extents.labels.items()
        for label, extent in zip(labels, values[position].shape, strict=True)
        if is_symbol(extent) and isinstance(label, str | tuple)
    )


def graph_arguments(
    operator: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The arguments of :func:`call_in_graph` for a call of an operator that torch.compile reads.

    The operator, and arguments that no graph of torch has (``self``, say), are constants there:
    they are given by their addresses. torch.compile reads this function.
    """
    torch: Any = sys.modules["torch"]
    kinds = (torch.Tensor, bool, int, float, str, tuple, type(None))
    names, values = (*range(len(args)), *kwargs), (*args, *kwargs.values())
    let_into_graphs(id(operator))
    places: list[Any] = []
    given: list[Any] = []
    for name, value in zip(names, values, strict=True):
        is_given = isinstance(value, kinds)
        if not is_given:
            let_into_graphs(id(value))
        places.append((name, 0 if is_given else id(value)))
        given.append(value if is_given else None)
    return (id(operator), tuple(places), *given)


def call_in_graph(address: int, places: Sequence[tuple[int | str, int]], *values: Any) -> Any:
    """A call of an operator, as it stands in a graph of torch.compile: a value for each argument,
    which has a position or a name, and perhaps an address."""
    given = {
        name: _in_graphs[own] if own else value
        for (name, own), value in zip(places, values, strict=True)
    }
    args = [value for name, value in given.items() if isinstance(name, int)]
    kwargs = {name: value for name, value in given.items() if isinstance(name, str)}
    return _in_graphs[address](*args, **kwargs)


def let_into_graphs(address: int) -> None:
    """Keeps an object for graphs of torch.compile, which know it by its address. They take the
    calls of operators as they are; AOTAutograd, which runs them, meets the operator of torch in
    their place."""
    torch: Any = sys.modules["torch"]
    _in_graphs[address] = ctypes.cast(address, ctypes.py_object).value
    torch.compiler.allow_in_graph(call_in_graph)


# What torch.compiler.assume_constant_result does, without an import of torch: torch.compile calls
# the function while it reads a program.
let_into_graphs._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch's

# The operators and other objects in graphs, which live as long as these.
_in_graphs: dict[int, Any] = {}


def plain(value: Any) -> Any:
    """An argument as torch takes it: numbers of numpy are numbers of Python."""
    return value.item() if isinstance(value, np.generic) else value


def torch_operator(module: Module, derivative: Derivative, options: object) -> Callable[..., Any]:
    """The operator of torch of a build. It returns the outputs, and has gradients."""
    bridges = derivative.bridges
    if "torch" not in bridges:
        with making:
            if "torch" not in bridges:
                backward = _recorded(module, derivative, options)
                bridges["torch"] = _operator(module, options, backward)
    return bridges["torch"]


def _derived(
    derivative: Derivative, kind: str, places: tuple[int, ...], options: object
) -> Callable[..., Any]:
    """The operator of torch of a derivative's function, which has gradients itself: the gradients
    of the inputs at some places, or the tangents of the outputs from those of these inputs."""
    bridges, key = derivative.bridges, ("torch", kind, places)
    if key not in bridges:
        find = {"backward": derivative.backward_of, "pushforward": derivative.pushforward_of}[kind]
        module, again = find(places)
        with making:
            if key not in bridges:
                bridges[key] = _operator(module, options, _recorded(module, again, options))
    return bridges[key]


def _operator(module: Module, options: object, *backward: Any) -> Callable[..., Any]:
    """The operator of torch of a built function. Its name holds a digest of the program, so that
    it means the same in every process."""
    function = module.entry_func
    assert isinstance(function, Function)
    program: Any = function.program
    text = f"{program.lowered[function.name]}\n{options}"
    made: Callable[..., Any] = function.torch_op(_new_name(function.name, text), *backward)
    return made


def _new_name(name: str, text: str) -> str:
    operators: Any = sys.modules["torch"].ops.minitvm
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    own = "".join(each if each.isascii() else "_" for each in name)
    made = f"jit_{own}_{digest}"
    while hasattr(operators, made):
        made += "_"
    return f"minitvm::{made}"


def _recorded(module: Module, derivative: Derivative, options: object) -> Gradients:
    """What torch calls for gradients and tangents."""
    results = results_of(module)

    def differentiate(
        values: Sequence[Any], heads: Sequence[Any], needed: Sequence[bool]
    ) -> tuple[Any, ...]:
        wanted = tuple(i for i in derivative.inputs if needed[i])
        made = _derived(derivative, "backward", wanted, options)(*values, *heads)
        return gradients_of(results, wanted, made)

    def push(values: Sequence[Any], tangents: Sequence[Any]) -> Mapping[int, Any]:
        moved = tuple(i for i in derivative.inputs if tangents[i] is not None)
        if not moved or not derivative.outputs:
            return {}
        run = _derived(derivative, "pushforward", moved, options)
        made = run(*values, *(tangents[i] for i in moved))
        made = made if isinstance(made, tuple) else (made,)
        return dict(zip(derivative.outputs, made, strict=True))

    return Gradients(
        differentiate, derivative.reads_outputs, push, _recordings(module, derivative, options)
    )


def _recordings(
    module: Module, derivative: Derivative, options: object
) -> Callable[[Sequence[bool]], Recording | None] | None:
    """How the operator runs where it is recorded; None where it keeps nothing in any case."""
    if not derivative.keeps:
        return None
    known: dict[Sequence[bool], Recording | None] = {}

    def recording(needed: Sequence[bool]) -> Recording | None:
        if needed not in known:
            wanted = tuple(i for i in derivative.inputs if needed[i])
            found = derivative.recorded_of(wanted)
            with making:
                if needed not in known:
                    known[needed] = found and _recording(module, derivative, found, wanted, options)
        return known[needed]

    return recording


def _recording(
    module: Module, derivative: Derivative, found: Recorded, wanted: Sequence[int], options: object
) -> Recording:
    results, own = results_of(module), derivative.bridges["torch"]
    operator: Any = own if found.forward is None else _operator(found.forward.module, options)

    @cache
    def backward() -> Callable[..., Any]:
        made, again = found.backward()
        return _operator(made, options, _recorded(made, again, options))

    def differentiate(
        values: Sequence[Any], kept: Sequence[Any], heads: Sequence[Any]
    ) -> tuple[Any, ...]:
        return gradients_of(results, wanted, backward()(*values, *kept, *heads))

    return Recording(operator.compute, operator, found.outputs, found.kept, differentiate)
