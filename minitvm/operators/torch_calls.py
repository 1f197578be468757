"""Calls that torch records or traces, as operators of torch, with the derivative of a build."""

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
from minitvm.runtime.traced import is_watched_by_torch, is_without_data


def records(values: Sequence[Any]) -> bool:
    """Whether torch records the operations on some arguments: for gradients, for a transform, or
    while it traces a program."""
    torch: Any = sys.modules.get("torch")
    tensors = [] if torch is None else [x for x in values if isinstance(x, torch.Tensor)]
    if not tensors:
        return False
    if torch.autograd.forward_ad._current_level >= 0:
        return True
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        return True
    if is_without_data(tensors) or is_watched_by_torch():
        return True
    return any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors))


def is_module(value: object) -> bool:
    """Whether a value is a module of torch."""
    torch: Any = sys.modules.get("torch.nn")
    return torch is not None and isinstance(value, torch.Module)


@final
class ModuleMethod(partial[Any]):
    """A method of a module that is an operator. It is no ``types.MethodType``, since torch.compile
    looks for the source file of such a method, and only a function has one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.func, name)


def varying(extents: Extents, values: Sequence[Any]) -> frozenset[Label]:
    """The extents of some arguments that are symbolic in a program that torch traces."""
    return frozenset(
        label
        for position, labels in extents.labels.items()
        for label, extent in zip(labels, values[position].shape, strict=True)
        if is_symbol(extent) and isinstance(label, str | tuple)
    )


def graph_arguments(
    operator: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The arguments of :func:`call_in_graph` for a call of an operator that torch.compile traces.

    The operator, and arguments that a graph of torch can't hold (``self``, say), are constants of
    the graph, given by their addresses. torch.compile traces this function.
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
    """Calls an operator from a graph of torch.compile. There is a value for each argument; each
    argument has a position or a name, and perhaps an address."""
    given = {
        name: _in_graphs[own] if own else value
        for (name, own), value in zip(places, values, strict=True)
    }
    args = [value for name, value in given.items() if isinstance(name, int)]
    kwargs = {name: value for name, value in given.items() if isinstance(name, str)}
    return _in_graphs[address](*args, **kwargs)


def let_into_graphs(address: int) -> None:
    """Keeps an object for graphs of torch.compile, which refer to it by its address. The graphs
    hold the calls of operators unchanged; when AOTAutograd runs a graph, a call becomes one of the
    operator of torch."""
    torch: Any = sys.modules["torch"]
    _in_graphs[address] = ctypes.cast(address, ctypes.py_object).value
    torch.compiler.allow_in_graph(call_in_graph)


# As torch.compiler.assume_constant_result, without an import of torch: torch.compile calls the
# function while it traces a program.
let_into_graphs._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch's

# The operators and other objects to which graphs refer; they live as long as the graphs.
_in_graphs: dict[int, Any] = {}


def plain(value: Any) -> Any:
    """An argument as torch takes it: a number of numpy becomes a number of Python."""
    return value.item() if isinstance(value, np.generic) else value


def torch_operator(module: Module, derivative: Derivative, options: object) -> Callable[..., Any]:
    """The operator of torch for a build. It returns the outputs, and has gradients."""
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
    """The operator of torch for a function of a derivative. It computes the gradients of the inputs
    at some places, or the tangents of the outputs from the tangents of these inputs; it has
    gradients itself."""
    bridges, key = derivative.bridges, ("torch", kind, places)
    if key not in bridges:
        find = {"backward": derivative.backward_of, "pushforward": derivative.pushforward_of}[kind]
        module, again = find(places)
        with making:
            if key not in bridges:
                bridges[key] = _operator(module, options, _recorded(module, again, options))
    return bridges[key]


def _operator(module: Module, options: object, *backward: Any) -> Callable[..., Any]:
    """The operator of torch for a built function. Its name holds a digest of the program, so that
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
    """The functions that torch calls for gradients and tangents."""
    results = results_of(module)
    known: dict[tuple[bool, ...], tuple[_Takers, tuple[int, ...]]] = {}

    def differentiate(
        values: Sequence[Any], heads: Sequence[Any], needed: Sequence[bool]
    ) -> tuple[Any, ...]:
        key = tuple(needed)
        if (found := known.get(key)) is None:
            found = known[key] = _wanted(derivative, key)
        takers, wanted = found
        made = _derived(derivative, "backward", wanted, options)(*values, *heads) if wanted else ()
        return _with_views(gradients_of(results, wanted, made), takers, heads)

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
    """The function that tells how a recorded call of the operator runs; None where no call keeps
    tensors."""
    if not derivative.keeps:
        return None
    known: dict[Sequence[bool], Recording | None] = {}

    def recording(needed: Sequence[bool]) -> Recording | None:
        if needed not in known:
            takers, wanted = _wanted(derivative, needed)
            found = derivative.recorded_of(wanted)
            with making:
                if needed not in known:
                    known[needed] = found and _recording(
                        module, derivative, found, takers, wanted, options
                    )
        return known[needed]

    return recording


_Takers = Sequence[tuple[int, Callable[[Sequence[Any]], Any]]]


def _wanted(derivative: Derivative, needed: Sequence[bool]) -> tuple[_Takers, tuple[int, ...]]:
    """The needed gradients that are views of the gradients of outputs, each with the function that
    takes it, and the inputs whose gradients have to be computed."""
    wanted = tuple(i for i in derivative.inputs if needed[i])
    views = derivative.views_of(wanted)
    takers = [(i, view.taker()) for i, view in views.items()]
    return takers, tuple(i for i in wanted if i not in views)


def _with_views(
    gradients: tuple[Any, ...], takers: _Takers, heads: Sequence[Any]
) -> tuple[Any, ...]:
    """The gradients of all inputs. Torch's own operators hand such views on as well."""
    if not takers:
        return gradients
    found = [*gradients]
    for i, take in takers:
        found[i] = take(heads)
    return tuple(found)


def _recording(
    module: Module,
    derivative: Derivative,
    found: Recorded,
    takers: _Takers,
    wanted: Sequence[int],
    options: object,
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
        made = gradients_of(results, wanted, backward()(*values, *kept, *heads))
        return _with_views(made, takers, heads)

    return Recording(operator.compute, operator, found.outputs, found.kept, differentiate)
