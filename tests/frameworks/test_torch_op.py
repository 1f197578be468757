"""Built functions as operators of torch: compiled, differentiated, checked by torch's own tests."""

from __future__ import annotations

import sys
import uuid
from typing import Any

import pytest

import minitvm as tvm
from minitvm import te
from minitvm.contrib import register_torch_op
from tests.frameworks import programs

torch = pytest.importorskip("torch")
library = pytest.importorskip("torch.library")


def new() -> str:
    """A name that no other test has."""
    return f"minitvm_tests::f{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def square() -> Any:
    """a * x * x, with its derivative."""

    def backward(ctx: Any, grad: Any) -> tuple[Any, None]:
        x, _ = ctx.saved_tensors
        return 2 * x * grad * 3.0, None

    return register_torch_op(programs.scaled(), new(), backward)


def test_it_returns_what_is_written(square: Any) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    assert square(x, 3.0).tolist() == [3, 12, 27]
    assert square(x[::2], a=2.0).tolist() == [2, 18]
    assert square(torch.zeros(0), 1.0).shape == (0,)
    assert x.tolist() == [1, 2, 3]


def test_it_has_a_name_in_torch() -> None:
    op = register_torch_op(programs.product(), "minitvm_tests::product")
    a, b = map(torch.tensor, programs.matrices())
    torch.testing.assert_close(torch.ops.minitvm_tests.product(a, b), a @ b)
    torch.testing.assert_close(op(A=a, B=b), a @ b)
    with pytest.raises(ValueError, match="expected a new name, got 'minitvm_tests::product'"):
        register_torch_op(programs.product(), "minitvm_tests::product")


def test_torch_finds_nothing_wrong(square: Any) -> None:
    leaf = torch.rand(4, requires_grad=True)
    for op, args in (
        (square, (leaf, 3.0)),
        (register_torch_op(programs.parts(), new()), (torch.rand(3, 4),)),
    ):
        assert set(library.opcheck(op.overload, args).values()) == {"SUCCESS"}


def test_derivatives(square: Any) -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    square(x, 3.0).sum().backward()
    assert x.grad.tolist() == [6, 12]
    plain = register_torch_op(programs.scaled(), new())
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        plain(x, 3.0).sum().backward()


def test_a_context_of_ones_own() -> None:
    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.factor = inputs[1]

    op = register_torch_op(
        programs.scaled(),
        new(),
        lambda ctx, grad: (2 * ctx.saved_tensors[0] * grad * ctx.factor, None),
        setup,
    )
    x = torch.tensor([1.0, 2.0], dtype=torch.float32, requires_grad=True)
    op(x, 5.0).sum().backward()
    assert x.grad.tolist() == [10, 20]


@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled(square: Any, dynamic: bool | None) -> None:
    """The whole graph, with sizes that change, and its derivative."""
    f = torch.compile(
        lambda x: square(x.relu(), 3.0) + 1, fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    for size in (3, 5, 8):
        x = torch.linspace(-1, 1, size, requires_grad=True)
        y = f(x)
        torch.testing.assert_close(y, 3 * x.relu() ** 2 + 1)
        y.sum().backward()
        torch.testing.assert_close(x.grad, 6 * x.detach().relu())


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own
def test_compiled_by_inductor(square: Any) -> None:
    f = torch.compile(lambda x: square(x.relu(), 3.0) + 1, fullgraph=True)
    x = torch.rand(6)
    torch.testing.assert_close(f(x), 3 * x * x + 1)


def test_numbers_of_each_kind() -> None:
    kinds = ("float32", "float64", "int32", "int64", "uint8", "bool")
    numbers = [te.var(f"s{i}", kind) for i, kind in enumerate(kinds)]
    x = te.placeholder((2,), "float64", name="self")  # a word that torch's parser knows
    y = te.compute((2,), lambda i: sum((s.astype("float64") for s in numbers), x[i]), name="Y")
    op = register_torch_op(tvm.build(te.create_schedule(y.op), [x, *numbers, y], name="f"), new())
    assert op(torch.zeros(2, dtype=torch.float64), 0.5, 0.25, 1, 2, 4, True).tolist() == [8.75] * 2


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        ((programs.add_one, "a::b"), TypeError, "expected a function of minitvm.build"),
        ((programs.scaled(), "b"), ValueError, "expected a name such as 'mine::add', got 'b'"),
        ((programs.scaled(), "a::"), ValueError, "expected a name such as 'mine::add', got 'a::'"),
        ((programs.scaled(), "a::b", None, print), ValueError, "expected a backward for setup"),
    ],
)
def test_what_is_refused(args: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        register_torch_op(*args)


def test_wrong_inputs(square: Any) -> None:
    with pytest.raises(TypeError, match="argument 0 'X': expected dtype float32, got int64"):
        square(torch.arange(3), 1.0)
    with pytest.raises(ValueError, match="argument 0 'X': expected ndim == 1, got 2"):
        square(torch.zeros(2, 2), 1.0)


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="register_torch_op: expected torch to be installed"):
        register_torch_op(programs.scaled(), "a::b")
