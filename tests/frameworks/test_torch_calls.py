"""Calls of torch's operators that go past the dispatcher, and all that must not go past it."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from minitvm.contrib import register_torch_op
from minitvm.runtime import torch_state
from tests.frameworks import programs
from tests.frameworks.test_torch_op import new

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def square() -> Any:
    """a * x * x, of plain tensors once, so that compiled code knows these."""

    def backward(ctx: Any, grad: Any) -> tuple[Any, None]:
        x, _ = ctx.saved_tensors
        return 2 * x * grad * 3.0, None

    op = register_torch_op(programs.scaled(), new(), backward)
    op(torch.ones(2), 3.0)
    op(torch.nn.Parameter(torch.ones(2)), 3.0)
    return op


def python_calls(call: Callable[[], Any]) -> list[str]:
    """The names of the functions of Python that run in a call."""
    names: list[str] = []

    def note(frame: Any, event: str, argument: object) -> None:
        if event == "call":
            names.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names


@pytest.mark.skipif(torch_state.torch_state(torch) is None, reason="this torch doesn't tell")
def test_no_python_code_runs_where_nothing_watches(square: Any) -> None:
    x, factor = torch.tensor([1.0, 2.0]), torch.nn.Parameter(torch.ones(2))

    def calls() -> None:
        square(x, 3.0)
        square(x[::2], 3)
        with torch.no_grad():
            square(factor, 3.0)

    assert not {"_call_slowly", "_dispatched"} & set(python_calls(calls))
    assert "record_unwatched" in python_calls(lambda: square(factor, 3.0))
    assert "_call_slowly" in python_calls(lambda: square(x, a=3.0))


def _noted(square: Any, x: Any, mode: Any, method: str) -> bool:
    """Whether a mode of torch's sees a call."""
    seen = []

    def note(self: Any, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen.append(op)
        return op(*args, **(kwargs or {}))

    with type("Noting", (mode,), {method: note})():
        square(x, 3.0)
    return square.overload in seen


def _dispatch_mode(square: Any, x: Any) -> bool:
    modes: Any = importlib.import_module("torch.utils._python_dispatch")
    return _noted(square, x, modes.TorchDispatchMode, "__torch_dispatch__")


def _function_mode(square: Any, x: Any) -> bool:
    return _noted(square, x, torch.overrides.TorchFunctionMode, "__torch_function__")


def _profiler(square: Any, x: Any) -> bool:
    with torch.autograd.profiler.profile() as profile:
        square(x, 3.0)
    return any(event.name == square.name for event in profile.function_events)


def _autocast(square: Any, x: Any) -> bool:
    with torch.autocast("cpu"):
        return bool(square(x.double(), 3.0).dtype == torch.float32)


def _fake(square: Any, x: Any) -> bool:
    fakes: Any = importlib.import_module("torch._subclasses.fake_tensor")
    with fakes.FakeTensorMode(allow_non_fake_inputs=True):
        return isinstance(square(x, 3.0), fakes.FakeTensor)


def _traced(square: Any, x: Any, **options: bool) -> bool:
    tensors: Any = importlib.import_module("torch.fx.experimental.proxy_tensor")
    graph = tensors.make_fx(lambda x: square(x, 3.0) + square(torch.ones(2), 3.0), **options)(x)
    return sum(node.target is square.overload for node in graph.graph.nodes) >= 1


def _traced_early(square: Any, x: Any) -> bool:
    return _traced(square, x, pre_dispatch=True)


def _scripted(square: Any, x: Any) -> bool:
    return square.name in str(torch.jit.trace(lambda x: square(x, 3.0), x).graph)


def _batched(square: Any, x: Any) -> bool:
    made = torch.vmap(lambda x: square(x, 3.0))(torch.stack([x, x]))
    return bool(made.shape == (2, *x.shape))


def _functionalised(square: Any, x: Any) -> bool:
    made = torch.func.functionalize(lambda x: square(x, 3.0))(x)
    return bool(torch.equal(made, square(x, 3.0)))


def _transformed(square: Any, x: Any) -> bool:
    made = torch.func.grad(lambda x: square(x, 3.0).sum())(x)
    return bool(torch.equal(made, 6 * x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
@pytest.mark.parametrize(
    "sees",
    [_dispatch_mode, _function_mode, _profiler, _autocast, _fake, _traced, _traced_early, _scripted,
     _batched, _functionalised, _transformed],
)  # fmt: skip
def test_what_watches_sees_the_operator(square: Any, sees: Callable[[Any, Any], bool]) -> None:
    x = torch.tensor([1.0, 2.0])
    assert sees(square, x)
    assert square(x, 3.0).tolist() == [3, 12]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
def test_what_means_something_else_is_left_to_torch(square: Any) -> None:
    x = torch.tensor([1.0, 2.0])
    assert square(torch._neg_view(x), 3.0).tolist() == [3, 12]
    assert square(torch.ones(2, device="meta"), 3.0).device.type == "meta"

    class Own(torch.Tensor):  # type: ignore[misc, name-defined]
        pass

    assert type(square(x.as_subclass(Own), 3.0)) is Own
    with torch.inference_mode():
        assert square(x, 3.0).is_inference()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises((RuntimeError, BufferError), match=r"tangent|jvp"):
            square(dual, 3.0)
    with pytest.raises(Exception, match=r"expected|Expected"):
        square(x.numpy(), 3.0)
    with pytest.raises((ValueError, RuntimeError, TypeError), match="float64"):
        square(x.double(), 3.0)
    with pytest.raises((TypeError, RuntimeError)):
        square(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
@pytest.mark.parametrize(
    "sees", [_dispatch_mode, _function_mode, _autocast, _fake, _traced, _traced_early]
)
def test_the_operator_in_torch_is_watched_as_well(
    square: Any, sees: Callable[[Any, Any], bool]
) -> None:
    """Its kernel for autograd calls the built function where there is nothing to record."""

    class ByName:
        overload, name = square.overload, square.name

        def __call__(self, *args: Any) -> Any:
            return square.overload(*args)

    x = torch.tensor([1.0, 2.0])
    assert sees(ByName(), x)
    assert square.overload(x, 3.0).tolist() == [3, 12]
    assert square.overload(torch._neg_view(x), 3.0).tolist() == [3, 12]
    assert square.overload(X=x[::2], a=3).tolist() == [3]
    assert square.overload(torch.ones(2, device="meta"), 3.0).device.type == "meta"
    leaf = torch.nn.Parameter(x.clone())
    square.overload(leaf, 3.0).sum().backward()
    assert leaf.grad.tolist() == [6, 12]
    with torch.no_grad():
        assert square.overload(leaf, 3.0).grad_fn is None


def test_the_state_is_that_of_the_calling_thread(square: Any) -> None:
    x, made = torch.tensor([1.0, 2.0]), []
    with torch.autocast("cpu"), torch.device("meta"):
        thread = threading.Thread(target=lambda: made.append(square(x, 3.0)))
        thread.start()
        thread.join()
    assert made[0].tolist() == [3, 12]


def test_gradients_of_a_call_past_the_dispatcher(square: Any) -> None:
    x = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    made = square(x, 3.0)
    made.sum().backward()
    assert x.grad.tolist() == [6, 12]
    assert square(x.detach(), 3.0).grad_fn is None


def test_another_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without a function, and one where they mean something else."""
    names = torch_state._FUNCTIONS
    for others in (("minitvm_missing", *names[1:]), (names[1], names[0], *names[2:])):
        monkeypatch.setattr(torch_state, "_FUNCTIONS", others)
        assert torch_state.torch_state(torch) is None


def test_batches_of_batches(square: Any) -> None:
    """Transforms within transforms, of which some don't concern an argument."""
    x = torch.arange(24.0).reshape(2, 3, 4)
    wanted = 3 * x * x

    def twice(x: Any) -> Any:
        return torch.vmap(lambda row: square(row, 3.0))(x)

    assert torch.equal(torch.vmap(twice)(x), wanted)
    inner = torch.vmap(lambda row: torch.vmap(lambda _: square(row, 3.0))(torch.ones(5)))
    assert torch.equal(inner(x[0]), wanted[0][:, None].expand(3, 5, 4))
    turned = torch.vmap(lambda row: square(row, 3.0), in_dims=1, out_dims=-1)
    assert torch.equal(turned(x[0]), wanted[0])
    assert torch.equal(torch.vmap(lambda _: square(x[0][0], 3.0))(x), wanted[0][:1].expand(2, 4))
    slopes = torch.vmap(torch.func.grad(lambda row: square(row, 3.0).sum()))(x[0])
    assert torch.equal(slopes, 6 * x[0])
    slope = torch.func.grad(lambda x: torch.vmap(lambda row: square(row, 3.0))(x).sum())(x[0])
    assert torch.equal(slope, 6 * x[0])
    assert torch.vmap(lambda row: square(row, 3.0))(torch.zeros(0, 4)).shape == (0, 4)


def test_a_failure_in_a_batch_leaves_the_transforms_alone(square: Any) -> None:
    def attempt(row: Any) -> Any:
        with pytest.raises((TypeError, ValueError, RuntimeError), match="float"):
            square(row.double(), 3.0)
        return square(row, 3.0)

    made = torch.vmap(attempt)(torch.ones(2, 3))
    assert torch.equal(made, torch.full((2, 3), 3.0))
    assert torch._C._functorch.peek_interpreter_stack() is None
