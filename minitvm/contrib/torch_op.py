"""Built functions as operators of PyTorch: what torch.compile, autograd and torch.export see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minitvm.contrib.imported import imported
from minitvm.runtime.results import Results, results_of

_SCALARS = {"float": "float", "int": "int", "uint": "int", "bool": "bool"}


def register_torch_op(
    tvm_func: Callable[..., Any],
    name: str,
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., None] | None = None,
) -> Callable[..., Any]:
    """A built function as a custom operator of torch (``torch.library``): it takes the inputs and
    returns the outputs, ``add(x, y, z) -> z = op(x, y)``, also under ``torch.compile`` with
    ``fullgraph=True``.

    Parameters
    ----------
    tvm_func
        A function of ``build``.
    name
        The operator's name, with a namespace: ``"mine::add"`` is also ``torch.ops.mine.add``.
    backward
        ``backward(ctx, *gradients of the outputs)`` returns the gradients of the inputs, None for
        one that has none, as in ``torch.autograd.Function``. Without it, the operator can't be
        differentiated.
    setup_context
        ``setup_context(ctx, inputs, output)`` keeps what `backward` needs. By default
        ``ctx.saved_tensors`` are the tensors among the inputs, then the outputs.

    Raises
    ------
    ImportError
        When torch isn't installed.
    TypeError
        When `tvm_func` doesn't come from ``build``.
    ValueError
        When `name` has no namespace, or an operator of the name exists; when a `setup_context`
        comes without a `backward`; when torch has no type for an argument.
    """
    torch = imported("torch", "register_torch_op")
    results = results_of(tvm_func)
    namespace, _, own = name.partition("::")
    if not namespace.isidentifier() or not own.isidentifier():
        raise ValueError(f"register_torch_op: expected a name such as 'mine::add', got {name!r}")
    if hasattr(getattr(torch.ops, namespace), own):
        raise ValueError(f"register_torch_op: expected a new name, got '{name}', which exists")
    if setup_context is not None and backward is None:
        raise ValueError("register_torch_op: expected a backward for setup_context, got none")
    kinds = [getattr(torch, str(results.dtypes[position])) for position in results.outputs]

    def outputs_like(values: Sequence[Any]) -> list[Any]:
        shapes = results.shapes(values)
        return [
            torch.empty(shape, dtype=kind, device="cpu")
            for shape, kind in zip(shapes, kinds, strict=True)
        ]

    def run(*values: Any) -> Any:
        made = outputs_like(values)
        tvm_func(*results.arguments(values, made))
        return results.returned(made)

    def fake(*values: Any) -> Any:
        return results.returned(outputs_like(values))

    made = torch.library.custom_op(
        name, run, mutates_args=(), schema=_schema(results), device_types="cpu"
    )
    made.register_fake(fake)
    if backward is not None:
        made.register_autograd(backward, setup_context=setup_context or _keep_all)
    return made  # type: ignore[no-any-return]  # mypy doesn't follow torch


def _keep_all(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    torch = imported("torch", "register_torch_op")
    outputs = output if isinstance(output, tuple) else (output,)
    ctx.save_for_backward(*(x for x in (*inputs, *outputs) if isinstance(x, torch.Tensor)))


def _schema(results: Results) -> str:
    """The operator's signature, as torch writes it."""
    kinds = []
    for position in results.inputs:
        kind = "Tensor"
        if results.is_scalar(position):
            dtype = results.dtypes[position]
            found = next((t for k, t in _SCALARS.items() if str(dtype).startswith(k)), None)
            if found is None:
                raise ValueError(
                    f"{results.name}: argument {position} '{results.names[position]}': expected a "
                    f"tensor or a number, which torch has types for, got {dtype}"
                )
            kind = found
        kinds.append(f"{kind} {_parameter(results, position)}")
    returned = ", ".join(["Tensor"] * len(results.outputs))
    return f"({', '.join(kinds)}) -> {returned if len(results.outputs) == 1 else f'({returned})'}"


def _parameter(results: Results, position: int) -> str:
    """A name that torch can parse: the argument's own, if all are ASCII identifiers and differ."""
    names = [results.names[each] for each in results.inputs]
    plain = all(name.isidentifier() and name.isascii() for name in names)
    return results.names[position] if plain and len(set(names)) == len(names) else f"x{position}"
