"""Adjoints read values of the program in place of their factors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import minitvm as tvm
from minitvm import te
from minitvm.te.autodiff.known_values import reading_values
from minitvm.te.schedules.operation_graph import in_order
from minitvm.te.tensor import Tensor

Function = Callable[..., Any]


def _row_sums(x: Tensor, value: Function) -> Any:
    k = te.reduce_axis((0, x.shape[1]))
    return te.compute((x.shape[0],), lambda i: te.sum(value(i, k), axis=k), name="S")


def _softmax(x: Tensor) -> Any:
    k = te.reduce_axis((0, x.shape[1]))
    top = te.compute((x.shape[0],), lambda i: te.max(x[i, k], axis=k), name="top")
    power = te.compute(x.shape, lambda i, j: te.exp(x[i, j] - top[i]), name="power")
    total = _row_sums(x, lambda i, j: power[i, j])
    return te.compute(x.shape, lambda i, j: power[i, j] / total[i], name="Y")


def _unshifted(x: Tensor) -> Any:
    """Whose exponentials are no stage."""
    total = _row_sums(x, lambda i, j: te.exp(x[i, j]))
    return te.compute(x.shape, lambda i, j: te.exp(x[i, j]) / total[i], name="Y")


def _tempered(x: Tensor) -> Any:
    power = te.compute(x.shape, lambda i, j: te.exp(x[i, j] * 0.25 + 1.0), name="power")
    total = _row_sums(x, lambda i, j: power[i, j])
    return te.compute(x.shape, lambda i, j: 3.0 * power[i, j] * (1.0 / total[i]), name="Y")


def _masked(x: Tensor) -> Any:
    power = te.compute(
        x.shape, lambda i, j: te.if_then_else(j <= i + 2, te.exp(x[i, j]), 0.0), name="power"
    )
    total = _row_sums(x, lambda i, j: power[i, j])
    return te.compute(x.shape, lambda i, j: power[i, j] / total[i], name="Y")


def _along_columns(x: Tensor) -> Any:
    k = te.reduce_axis((0, x.shape[0]))
    power = te.compute(x.shape, lambda i, j: te.exp(x[i, j]), name="power")
    total = te.compute((x.shape[1],), lambda j: te.sum(power[k, j], axis=k), name="S")
    return te.compute(x.shape, lambda i, j: power[i, j] / total[j], name="Y")


def _rooted(x: Tensor) -> Any:
    """A softmax whose sum is used again."""
    power = te.compute(x.shape, lambda i, j: te.exp(x[i, j]), name="power")
    total = _row_sums(x, lambda i, j: power[i, j] * power[i, j])
    return te.compute(x.shape, lambda i, j: power[i, j] / te.sqrt(total[i]), name="Y")


def _of_torch(name: str) -> Function:
    def masked(x: Any) -> Any:
        rows, columns = x.shape
        hidden = torch.arange(columns)[None] > torch.arange(rows)[:, None] + 2
        return torch.softmax(x.masked_fill(hidden, -torch.inf), 1)

    return {
        "softmax": lambda x: torch.softmax(x, 1),
        "unshifted": lambda x: torch.softmax(x, 1),
        "tempered": lambda x: 3 * torch.softmax(x * 0.25, 1),
        "masked": masked,
        "along columns": lambda x: torch.softmax(x, 0),
        "rooted": lambda x: torch.nn.functional.normalize(x.exp(), dim=1),
    }[name]


OPERATORS: dict[str, Function] = {
    "softmax": _softmax,
    "unshifted": _unshifted,
    "tempered": _tempered,
    "masked": _masked,
    "along columns": _along_columns,
    "rooted": _rooted,
}


def _backward(f: Function, shape: Any = (5, 9), dtype: str = "float32") -> list[Any]:
    """The operations of a gradient."""
    x = te.placeholder(shape, dtype, name="X")
    y = f(x)
    (dx,) = te.gradient(y, [x], te.placeholder(y.shape, y.dtype, name="dY"))
    return in_order([dx.op])


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("shape", [(5, 9), (1, 1), (33, 70)])
def test_gradients_are_those_of_torch(name: str, shape: tuple[int, int]) -> None:
    operator, expected = tvm.jit(OPERATORS[name]), _of_torch(name)
    torch.manual_seed(0)
    for size in (shape, shape[::-1]):
        x = torch.randn(size, dtype=torch.float64, requires_grad=True)
        dy = torch.randn(size, dtype=torch.float64)
        (found,) = torch.autograd.grad(operator(x), [x], dy)
        torch.testing.assert_close(found, torch.autograd.grad(expected(x), [x], dy)[0])


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # of torch.func
@pytest.mark.parametrize("name", OPERATORS)
def test_second_derivatives_and_tangents(name: str) -> None:
    operator = tvm.jit(OPERATORS[name])
    torch.manual_seed(1)
    x = torch.randn((3, 4), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(operator, [x])
    assert torch.autograd.gradgradcheck(operator, [x])
    expected, dx = _of_torch(name), torch.randn((3, 4), dtype=torch.float64)
    (found,), (wanted,) = (
        torch.func.jvp(f, (x.detach(),), (dx,))[1:] for f in (operator, expected)
    )
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", ["softmax", "unshifted", "along columns"])
@pytest.mark.parametrize("m", [5, te.var("m")])
def test_the_adjoint_of_a_softmax_reads_the_softmax(name: str, m: Any) -> None:
    (*_, last) = _backward(OPERATORS[name], (m, 9))
    (body,) = last.body
    read = {each.op.name for each in last.input_tensors}
    assert len(read) == 3 and {"Y", "dY"} < read
    assert "exp(" not in str(body) and "/" not in str(body)


def test_an_operator_keeps_nothing_but_its_output() -> None:
    operator = tvm.jit(_softmax)
    x = torch.randn(64, 512, requires_grad=True)
    y = operator(x)
    node: Any = y.grad_fn
    _, kept = node.saved_tensors
    assert kept.data_ptr() == y.data_ptr()
    y.sum().backward()
    assert x.grad is not None and x.grad.abs().max() < 1e-6


def test_factors_that_are_read_anyway_are_read_alone() -> None:
    def gated(x: Tensor) -> Any:
        return te.compute(x.shape, lambda i, j: x[i, j] * te.sigmoid(x[i, j]), name="Y")

    operations = _backward(gated)
    assert "Y" not in [op.name for op in operations]


def test_products_at_other_places_stay() -> None:
    """The sum of another row, a smaller tensor, and a factor of the second power."""
    s = te.placeholder((6,), name="S")
    e = te.placeholder((6, 6), name="E")
    y = te.compute((6, 6), lambda i, j: e[i, j] / s[i], name="Y")
    small = te.compute((5, 6), lambda i, j: e[i, j] / s[i], name="small")
    dy = te.placeholder((6, 6), name="dY")

    def reads(value: Function, known: Tensor) -> set[str]:
        adjoint = te.compute((6, 6), value, name="D")
        (found,) = reading_values([adjoint], [known])
        return {each.op.name for each in found.op.input_tensors}

    assert reads(lambda i, j: dy[i, j] / s[i] * e[i, j], y) == {"dY", "Y"}
    assert reads(lambda i, j: dy[i, j] / s[j] * e[j, i], y) == {"dY", "Y"}
    assert reads(lambda i, j: dy[i, j] / s[j] * e[i, j], y) == {"dY", "S", "E"}
    assert reads(lambda i, j: dy[i, j] / s[i] * e[i, j], small) == {"dY", "S", "E"}
    assert reads(lambda i, j: dy[i, j] * s[i] * e[i, j], y) == {"dY", "S", "E"}
    assert reads(lambda i, j: e[i, j] / s[i] * e[i, j] / s[i], y) == {"Y"}
    assert reads(lambda i, j: dy[i, j] * e[i, j] / s[i] / s[i], y) == {"dY", "S", "Y"}
    assert reads(lambda i, j: (dy[i, j] - 1.0) / s[i] * e[i, j] + e[i, j], y) == {"dY", "S", "E"}


def test_infinite_and_missing_values() -> None:
    x = torch.tensor([[0.0, -np.inf, 3.0], [800.0, 1.0, -800.0], [np.nan, 0.0, 1.0]])
    x = x.double().requires_grad_()
    dy = torch.arange(9.0, dtype=torch.float64).reshape(3, 3)
    (found,) = torch.autograd.grad(tvm.jit(_softmax)(x), [x], dy)
    (expected,) = torch.autograd.grad(torch.softmax(x, 1), [x], dy)
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("fp", ["fast", "strict"])
def test_built_gradients(fp: Any) -> None:
    x, dy = te.placeholder((7, 11), name="X"), te.placeholder((7, 11), name="dY")
    y = _softmax(x)
    (dx,) = te.gradient(y, [x], dy)
    f = tvm.build([dx], [x, dy, dx], fp=fp)
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 7, 11), dtype="float32")
    found = np.empty_like(a)
    f(a, b, found)
    p = np.exp(a.astype("float64"))
    p /= p.sum(1, keepdims=True)
    np.testing.assert_allclose(found, p * (b - (b * p).sum(1, keepdims=True)), atol=1e-6)


def test_16_bit_adjoints() -> None:
    x = torch.randn(6, 40).half().requires_grad_()
    dy = torch.randn(6, 40).half()
    (found,) = torch.autograd.grad(tvm.jit(_softmax)(x), [x], dy)
    wide = x.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(torch.softmax(wide, 1), [wide], dy.double())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=4e-3)


def test_long_chains_of_products() -> None:
    """Each product of the chain has the one before as two factors: written out, 2 ** 30 of them."""
    X = te.placeholder((4,), "float64", name="X")
    chain = X
    for _ in range(30):
        before = chain
        chain = te.compute((4,), lambda i, b=before: te.sin(b[i]) * b[i] * 1.1, name="product")
    head = te.placeholder((4,), "float64", name="H")
    (adjoint,) = te.gradient(chain, [X], head)
    x, h, found = np.linspace(0.9, 1.2, 4), np.arange(4.0), np.zeros(4)
    tvm.build([adjoint], [X, head, adjoint])(x, h, found)
    leaf = torch.tensor(x, requires_grad=True)
    y = leaf
    for _ in range(30):
        y = torch.sin(y) * y * 1.1
    y.backward(torch.tensor(h))
    np.testing.assert_allclose(found, leaf.grad, rtol=1e-8)


def test_long_sums_of_products() -> None:
    """A sum over a chain of stages of which each has two terms."""
    X, k = te.placeholder((4, 3), "float64", name="X"), te.reduce_axis((0, 3))
    chain = X
    for _ in range(30):
        before = chain
        chain = te.compute((4, 3), lambda i, j, b=before: b[i, j] * 0.7 + b[i, j] * b[i, j] * 0.2)
    total = te.compute((4,), lambda i: te.sum(chain[i, k], axis=k))
    head = te.placeholder((4,), "float64", name="H")
    (adjoint,) = te.gradient(total, [X], head)
    x, h = np.random.default_rng(0).random((4, 3)), np.arange(4.0)
    found = np.zeros((4, 3))
    tvm.build([adjoint], [X, head, adjoint])(x, h, found)
    leaf = torch.tensor(x, requires_grad=True)
    y = leaf
    for _ in range(30):
        y = y * 0.7 + y * y * 0.2
    y.sum(1).backward(torch.tensor(h))
    np.testing.assert_allclose(found, leaf.grad, rtol=1e-8)
