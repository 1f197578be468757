"""Calls of an operator under ``torch.vmap``, by the operator's rule for batches.

``torch.autograd.Function`` and ``torch.library`` take such calls to the same rule, through layers
of Python code that know arguments of any structure. An operator's arguments are tensors and
numbers, so here one call of torch unwraps each argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_NAMES = (
    "TransformType", "_add_batch_dim", "_unwrap_batched", "peek_interpreter_stack",
    "pop_dynamic_layer_stack", "push_dynamic_layer_stack", "unwrap_if_dead",
)  # fmt: skip


class BatchInfo(NamedTuple):
    """The description of a batch that a batching rule gets."""

    batch_size: int


def batched_calls(
    torch: Any, operator: Callable[..., Any], rule: Callable[..., Any]
) -> Callable[[Sequence[Any]], Any] | None:
    """A function that calls an operator by its rule if the innermost active transform is
    ``torch.vmap``, and otherwise returns NotImplemented. None where a version of torch lacks a
    function that this needs.

    Parameters
    ----------
    operator
        Takes the call where no argument has this transform's dimension.
    rule
        ``rule(info, in_dims, *values)`` returns the outputs and the place of the batch in each, as
        for ``torch.library.register_vmap``.
    """
    core = torch._C._functorch
    if not all(hasattr(core, name) for name in _NAMES):
        return None
    vmap = core.TransformType.Vmap

    def call(args: Sequence[Any]) -> Any:
        transform = core.peek_interpreter_stack()
        if transform is None or transform.key() != vmap:
            return NotImplemented
        level = transform.level()
        values, dims = list(args), [None] * len(args)
        size = 0
        for i, value in enumerate(args):
            if isinstance(value, torch.Tensor):
                given = core.unwrap_if_dead(value)
                values[i], dim = core._unwrap_batched(given, level)
                dims[i] = dim
                size = size if dim is None else values[i].shape[dim]
        is_batch = any(dim is not None for dim in dims)
        below = core.pop_dynamic_layer_stack()  # the rule runs under the next transform
        try:
            if not is_batch:
                return operator(*values)
            made, places = rule(BatchInfo(size), dims, *values)
        finally:
            core.push_dynamic_layer_stack(below)
        if not isinstance(made, tuple):
            return core._add_batch_dim(made, places, level)
        return tuple(
            core._add_batch_dim(each, place, level)
            for each, place in zip(made, places, strict=True)
        )

    return call
