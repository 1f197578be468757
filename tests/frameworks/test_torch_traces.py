"""Built functions in programs that torch traces by the operators that run, and under its modes."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from minitvm.runtime import torch_state
from tests.frameworks import programs
from tests.frameworks.test_torch_calls import python_calls
from tests.frameworks.test_torch_op import new

torch = pytest.importorskip("torch")
X, OTHER = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])

_scaled: Any = programs.scaled()  # a * x * x
_returning = _scaled.returning()
_operator = _scaled.torch_op(new())


def _written(x: Any) -> Any:
    y = torch.empty_like(x)
    _scaled(x, 3.0, y)
    return y


def _operator_into(x: Any) -> Any:
    return _operator(x, 3.0, out=torch.empty_like(x))


CALLS: dict[str, Callable[[Any], Any]] = {
    "f(x, y)": _written,
    "f.returning()": lambda x: _returning(x, 3.0),
    "a number of numpy": lambda x: _returning(x, np.float32(3.0)),
    "op(out=)": _operator_into,
    "op": lambda x: _operator(x, 3.0),
}


def _made_by_fx(call: Any, x: Any, **options: Any) -> Any:
    return importlib.import_module("torch.fx.experimental.proxy_tensor").make_fx(call, **options)(x)


def _made_by_jit(call: Any, x: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit.trace is deprecated
        return torch.jit.trace(call, x)


TRACERS: dict[str, Callable[[Any, Any], Any]] = {
    "make_fx": _made_by_fx,
    "before dispatch": lambda call, x: _made_by_fx(call, x, pre_dispatch=True),
    "fake": lambda call, x: _made_by_fx(call, x, tracing_mode="fake"),
    "functionalize": lambda call, x: _made_by_fx(torch.func.functionalize(call), x),
    "jit.trace": _made_by_jit,
    "symbolic_trace": lambda call, _: torch.fx.symbolic_trace(call),
}


@pytest.fixture(autouse=True)
def known_to_compiled_code() -> None:
    for call in CALLS.values():
        assert call(X).tolist() == [3, 12, 27]


@pytest.mark.skipif(torch_state.torch_state(torch) is None, reason="this torch doesn't tell")
def test_compiled_code_asks_whether_torch_notes_operators() -> None:
    y = torch.empty(3)

    def calls() -> None:
        _scaled(X, 3.0, y)
        _returning(X, 3.0)

    assert "_call_slowly" not in python_calls(calls)
    with _Noting():
        assert python_calls(calls).count("_call_slowly") >= 2


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_is_a_part_of_the_graph(call: str, tracer: str) -> None:
    if tracer == "functionalize" and call in ("f(x, y)", "op(out=)"):
        with pytest.raises(RuntimeError, match="We only support functionalizing operators"):
            TRACERS[tracer](CALLS[call], X)
        return
    made = TRACERS[tracer](lambda x: CALLS[call](x) + 1, X)
    assert made(OTHER).tolist() == [49, 76, 109]
    assert CALLS[call](OTHER).tolist() == [48, 75, 108]


@pytest.mark.parametrize("tracer", ["make_fx", "before dispatch", "jit.trace"])
def test_calls_of_constants_stay(tracer: str) -> None:
    """The function may be called with tensors that no input gives."""
    fixed = X.clone()
    made = TRACERS[tracer](lambda x: x + _written(torch.ones(3)) + _returning(fixed, 3.0), X)
    assert made(OTHER).tolist() == [10, 20, 36]


@pytest.mark.parametrize("tracer", ["make_fx", "before dispatch", "jit.trace"])
@pytest.mark.parametrize("name", ["in", "out"])
def test_arrays_of_numpy_beside_tensors_are_refused(tracer: str, name: str) -> None:
    def call(x: Any) -> Any:
        into = np.zeros(3, "float32")
        given = (x, 3.0, into) if name == "out" else (into, 3.0, x)
        _scaled(*given)
        return x + torch.from_numpy(into)

    with pytest.raises(TypeError, match=r"tensors of torch alone.*got ndarray.*from_numpy\(x\)"):
        TRACERS[tracer](call, X.clone())
    assert call(X.clone()).shape == (3,)


@pytest.mark.parametrize("tracer", ["make_fx", "jit.trace"])
@pytest.mark.parametrize("call", ["f(x, y)", "f.returning()"])
def test_gradients_are_refused_as_without_a_tracer(tracer: str, call: str) -> None:
    leaf = X.clone().requires_grad_()
    calls: list[Callable[[], Any]] = [
        lambda: CALLS[call](leaf),
        lambda: TRACERS[tracer](CALLS[call], leaf),
        lambda: TRACERS["make_fx"](torch.func.grad(lambda x: CALLS[call](x).sum()), X),
    ]
    for each in calls:
        with pytest.raises(BufferError, match=r"argument 0 'X': .* grad, .*pass x\.detach\(\)"):
            each()
    with torch.no_grad():
        assert TRACERS[tracer](CALLS[call], leaf)(OTHER).tolist() == [48, 75, 108]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit, in forward-mode AD
@pytest.mark.parametrize("call", ["f(x, y)", "f.returning()"])
def test_tangents_are_refused_under_a_mode(call: str) -> None:
    with torch.autograd.forward_ad.dual_level(), _Noting():
        dual = torch.autograd.forward_ad.make_dual(X, X)
        with pytest.raises(BufferError, match=r"argument 0 'X': .* tangent.*\.primal"):
            CALLS[call](dual)


_Mode: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode


class _Noting(_Mode):  # type: ignore[misc]  # of importorskip
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(op))
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("call", CALLS)
def test_modes_see_each_call_once(call: str) -> None:
    with _Noting() as outer, _Noting() as inner:
        assert CALLS[call](X).tolist() == [3, 12, 27]
    for mode in (outer, inner):
        assert len([name for name in mode.seen if not name.startswith("aten")]) == 1


@pytest.mark.parametrize("call", ["f(x, y)", "f.returning()"])
def test_what_notes_no_operators_changes_nothing(call: str) -> None:
    class Functions(torch.overrides.TorchFunctionMode):  # type: ignore[misc,name-defined]
        def __torch_function__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return op(*args, **(kwargs or {}))

    def states() -> Iterator[Any]:
        yield from (Functions(), torch.inference_mode(), torch.autocast("cpu"), torch.no_grad())

    for state in states():
        with state:
            assert CALLS[call](X).tolist() == [3, 12, 27]
    made = torch.vmap(lambda row: row + CALLS[call](X))(torch.zeros(2, 3))
    assert made.tolist() == [[3, 12, 27]] * 2


@pytest.mark.parametrize("call", ["f(x, y)", "f.returning()"])
def test_a_forward_of_ones_own_is_traced(call: str) -> None:
    class Own(torch.autograd.Function):  # type: ignore[misc,name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return CALLS[call](x)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad

    for tracer in ("make_fx", "jit.trace"):
        assert TRACERS[tracer](Own.apply, X)(OTHER).tolist() == [48, 75, 108]


def test_a_jit_operator_and_symbolic_trace() -> None:
    import minitvm as tvm
    from minitvm import te

    @tvm.jit
    def twice(x: te.Tensor) -> Any:
        return te.compute(x.shape, lambda i: x[i] * 2.0)

    with pytest.raises(TypeError, match=r"got Proxy: torch\.fx\.wrap"):
        torch.fx.symbolic_trace(lambda x: twice(x))
