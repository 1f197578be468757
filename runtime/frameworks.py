"""Rules for other frameworks' tensors: which never change, and whose memory doesn't hold their
values.

They are known by the names of their classes, so that no framework is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

# Libraries whose arrays never change, even if their capsules say otherwise: other arrays, and
# programs that were compiled or recorded, rely on their contents.
_IMMUTABLE = ("jax", "jaxlib", "tensorflow", "pyarrow")


def is_immutable(kind: type) -> bool:
    """Whether arrays of a type never change, by the rules of its library, or of the library of a
    base class."""
    return _library(kind) is not None


def _library(kind: type) -> str | None:
    packages = (str(each.__module__).partition(".")[0] for each in kind.__mro__)
    return next((package for package in packages if package in _IMMUTABLE), None)


def forgets_gradients(kind: type) -> bool:
    """Whether the C exchange API of a type hands out tensors that take part in gradients, although
    its ``__dlpack__`` refuses these: Paddle's (3.3) does. For torch, the tensor itself is
    checked."""
    return any(each.__module__ == "paddle" and each.__name__ == "Tensor" for each in kind.__mro__)


def is_read_only(array: Any) -> bool:
    """Whether an array must not be written even if its library hands it out as writable: its
    library's arrays never change, or torch would have to record the changes."""
    return is_immutable(type(array)) or (_is_tensor(array) and bool(array.requires_grad))


def why_read_only(array: Any) -> str:
    """The advice in a message about a read-only array."""
    library = _library(type(array))
    if library is not None:
        return (
            f" of {library.removesuffix('lib')}, whose arrays never change: pass a numpy array "
            "(np.empty), and make an array of that"
        )
    if _is_tensor(array) and array.requires_grad:
        return (
            ", since it requires grad: pass x.detach(), and tell autograd of the change by "
            "torch.autograd.graph.increment_version(x)"
        )
    return ": pass a writable copy"


def readable(array: Any) -> Any:
    """The array to export in place of an array: the array itself; for a torch tensor that requires
    grad, if grad mode is off, so that nothing is recorded, the tensor without its history.

    torch silently exports some tensors that have no memory, or whose memory doesn't hold their
    values: a lazily negated tensor as if it weren't negated, a fake tensor with a NULL address, a
    dual tensor without its tangent.

    Raises
    ------
    BufferError
        For such a tensor, and for an array that JAX is tracing; the message tells what to do.
    """
    if not _is_tensor(array):
        if is_tracer(array):
            raise BufferError(
                "expected an array, got one that JAX is tracing, without numbers: call the "
                "function that its jax_op() returns, or make it by jit"
            )
        return array
    reason = why_unreadable(array)
    if reason is not None:
        raise BufferError(reason)
    return array.detach() if array.requires_grad else array


def why_unreadable(tensor: Any) -> str | None:
    """The reason for which a torch tensor can't be exported, as the tensor that was expected; None
    if it can."""
    for applies, message in _TORCH:
        if applies(tensor):
            return message.format(layout=tensor.layout)
    return None


def _is_tensor(value: object) -> bool:
    return is_a(value, "torch", "Tensor")


def is_tracer(value: Any) -> bool:
    """Whether a value is a tracer: it stands for a value in a program that JAX traces."""
    kinds = type(value).__mro__
    return any(each.__name__ == "Tracer" and "jax" in each.__module__ for each in kinds)


def overriding_tensors(values: Sequence[Any]) -> list[Any]:
    """The torch tensors among some values whose class overrides functions
    (``__torch_function__``)."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    own = [each for each in tensors if type(each) not in (torch.Tensor, torch.nn.Parameter)]
    return own if own and torch.overrides.has_torch_function(tuple(own)) else []


def override(function: Callable[..., Any], values: Sequence[Any], out: Any) -> Any:
    """The result of a call according to such tensors' classes. By default they call the function,
    and give its results their own class."""
    handle = sys.modules["torch"].overrides.handle_torch_function
    return handle(function, overriding_tensors(values), *values, out=out)


def is_a(value: object, module: str, name: str) -> bool:
    """Whether the class of a value, or a base class, is the class `name` of a module."""
    return any(each.__name__ == name and each.__module__ == module for each in type(value).__mro__)


def _is_recorded(tensor: Any) -> bool:
    return bool(tensor.requires_grad) and bool(sys.modules["torch"].is_grad_enabled())


def is_differentiated(tensor: Any) -> bool:
    """Whether torch differentiates the operations on a tensor."""
    return _is_recorded(tensor) or _is_dual(tensor)


def _is_dual(tensor: Any) -> bool:
    torch: Any = sys.modules["torch"]
    if torch.autograd.forward_ad._current_level < 0:
        return False
    core, keys = torch._C, torch._C.DispatchKey
    if core._dispatch_tls_is_dispatch_key_excluded(keys.ADInplaceOrView):
        return False  # a kernel that torch's autograd calls: tangents are computed around it
    return torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None


def _is_fake(tensor: Any) -> bool:
    return is_a(tensor, "torch._subclasses.fake_tensor", "FakeTensor")


def _is_batched(tensor: Any) -> bool:
    """Whether a tensor stands for a batch: of ``torch.vmap``, or of the older transform by which
    autograd batches gradients (``is_grads_batched``)."""
    c = sys.modules["torch"]._C
    if c._functorch.is_batchedtensor(tensor):
        return True
    return bool(c._dispatch_keys(tensor).has(c._dispatch_key_parse("Batched")))


_TORCH: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (_is_fake, "expected a tensor with data, got a fake one, which has no data"),
    (
        _is_batched,
        "expected a tensor with memory of its own, got one of torch.vmap, which stands for a "
        "batch: call an operator under vmap, f.torch_op('my::f'), or one of jit without out=",
    ),
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
        _is_recorded,
        "expected a tensor that doesn't require grad, got one that does: pass x.detach(), or call "
        "under torch.no_grad() or in the forward of a torch.autograd.Function",
    ),
    (
        _is_dual,
        "expected a tensor without a tangent, got a dual one of forward-mode AD: pass "
        "torch.autograd.forward_ad.unpack_dual(x).primal",
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
