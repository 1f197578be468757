"""Tensors of other frameworks whose memory doesn't hold what they stand for.

They are known by the names of their classes, so that no framework is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def check_readable(tensor: Any) -> None:
    """Refuse a torch tensor that has no memory, or memory that means something else.

    torch exports some of these without a word: one that is lazily negated as if it weren't, and a
    fake one with a NULL address.

    Raises
    ------
    BufferError
        Saying what to pass instead.
    """
    if not _is_a(tensor, "torch", "Tensor"):
        return
    for applies, message in _TORCH:
        if applies(tensor):
            raise BufferError(message.format(layout=tensor.layout))


def _is_a(value: object, module: str, name: str) -> bool:
    return any(each.__name__ == name and each.__module__ == module for each in type(value).__mro__)


def _is_fake(tensor: Any) -> bool:
    return _is_a(tensor, "torch._subclasses.fake_tensor", "FakeTensor")


_TORCH: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (_is_fake, "expected a tensor with data, got a fake one, which has no data"),
    (
        lambda tensor: tensor.is_meta,
        "expected a tensor with data, got one on the meta device, which has no data: pass "
        "torch.empty_like(x, device='cpu')",
    ),
    (
        lambda tensor: tensor.is_nested,
        "expected a tensor of one shape, got a nested one: pass its parts, x.unbind()",
    ),
    (
        lambda tensor: str(tensor.layout) != "torch.strided",
        "expected a dense tensor, got one of layout {layout}: pass x.to_dense()",
    ),
    (
        lambda tensor: tensor.is_quantized,
        "expected a tensor of plain numbers, got a quantised one: pass x.dequantize() or "
        "x.int_repr()",
    ),
    (
        lambda tensor: tensor.requires_grad,
        "expected a tensor that doesn't require grad, got one that does: pass x.detach()",
    ),
    (
        lambda tensor: tensor.is_conj(),
        "expected a tensor as it lies in memory, got one with the conjugate bit set: pass "
        "x.resolve_conj()",
    ),
    (
        lambda tensor: tensor.is_neg(),
        "expected a tensor as it lies in memory, got one with the negative bit set: pass "
        "x.resolve_neg()",
    ),
)
