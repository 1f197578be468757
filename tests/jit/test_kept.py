"""Recorded runs keep what gradients would compute again."""

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import minitvm as tvm
from minitvm import te
from minitvm.te.autodiff.keeping import kept_tensors, reading_kept
from minitvm.te.autodiff.min_cut import Network
from minitvm.te.autodiff.pushforward import transposed
from minitvm.te.autodiff.shifts import cancels
from minitvm.te.schedules.operation_graph import in_order
from minitvm.tir.expr import Select

Rows = Annotated[te.Tensor, "m k"]
Weights = Annotated[te.Tensor, "n k"]


def _gated(x: Rows, gate: Weights, up: Weights) -> Any:
    a, b = te.reduce_axis((0, x.shape[1])), te.reduce_axis((0, x.shape[1]))
    shape = (x.shape[0], gate.shape[0])
    g = te.compute(shape, lambda i, j: te.sum(x[i, a] * gate[j, a], axis=a), name="g")
    u = te.compute(shape, lambda i, j: te.sum(x[i, b] * up[j, b], axis=b), name="u")
    return te.compute(shape, lambda i, j: g[i, j] * te.sigmoid(g[i, j]) * u[i, j])


def _expected(x: Any, gate: Any, up: Any) -> Any:
    g = x @ gate.T
    return torch.nn.functional.silu(g) * (x @ up.T)


def _inputs(m: int = 37, k: int = 129, n: int = 65) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(m, k), (n, k), (n, k)]
    return [torch.randn(shape, dtype=torch.float64).div(8).requires_grad_() for shape in shapes]


def _saved(y: torch.Tensor) -> list[tuple[int, ...]]:
    node: Any = y.grad_fn
    return [tuple(each.shape) for each in node.saved_tensors]


@pytest.fixture(scope="module")
def gated() -> Callable[..., Any]:
    """Built once for each dtype and framework."""
    return tvm.jit(_gated)


def test_products_are_kept(gated: Callable[..., Any]) -> None:
    inputs = _inputs()
    y = gated(*inputs)
    assert _saved(y) == [(37, 129), (65, 129), (65, 129), (37, 65), (37, 65)]
    torch.testing.assert_close(y, _expected(*inputs))
    dy = torch.randn_like(y)
    for _ in range(2):
        found = torch.autograd.grad(y, inputs, dy, retain_graph=True)
        torch.testing.assert_close(found, torch.autograd.grad(_expected(*inputs), inputs, dy))


def test_only_what_wanted_gradients_need(gated: Callable[..., Any]) -> None:
    x, gate, up = _inputs()
    y = gated(x.detach(), gate.detach(), up)  # whose gradient reads g alone
    assert _saved(y)[3:] == [(37, 65)]
    (found,) = torch.autograd.grad(y.sum(), [up])
    torch.testing.assert_close(found, torch.autograd.grad(_expected(x, gate, up).sum(), [up])[0])


def test_small_and_elementwise_programs_keep_nothing() -> None:
    @tvm.jit
    def waves(x: Rows) -> Any:
        return te.compute(x.shape, lambda i, j: te.sin(x[i, j]) * te.exp(x[i, j]))

    x = torch.ones(300, 300, requires_grad=True)
    assert _saved(waves(x)) == [(300, 300)]
    assert _saved(tvm.jit(_gated)(*_inputs(2, 3, 4))) == [(2, 3), (4, 3), (4, 3)]


def _pooled(x: Any) -> Any:
    """Maxima of windows that overlap."""
    r, q = te.reduce_axis((0, 3)), te.reduce_axis((0, 3))
    n, m = (x.shape[2] - 1) // 2, (x.shape[3] - 1) // 2
    return te.compute(
        (x.shape[0], x.shape[1], n, m),
        lambda b, c, i, j: te.max(x[b, c, i * 2 + r, j * 2 + q], axis=[r, q]),
    )


def _largest(x: Any) -> Any:
    k = te.reduce_axis((0, x.shape[0]))
    return te.compute((x.shape[1],), lambda j: te.max(x[k, j], axis=k))


def _smallest(x: Any) -> Any:
    k, r = te.reduce_axis((0, x.shape[0])), te.reduce_axis((0, x.shape[1]))
    return te.compute((), lambda: te.min(x[k, r], axis=[k, r]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("program", "expected", "shape"),
    [
        (_pooled, lambda x: torch.nn.functional.max_pool2d(x, 3, 2), (3, 5, 41, 33)),
        (_largest, lambda x: x.max(0)[0], (301, 203)),
        (_smallest, lambda x: x.min(), (301, 203)),
    ],
)
def test_positions_of_maxima_are_kept(
    program: Any, expected: Any, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """The forward run finds the positions beside the maxima: of equal ones the first."""
    function = tvm.jit(program)
    torch.manual_seed(0)
    x = torch.randint(0, 50, shape).to(dtype).requires_grad_()
    y, wanted = function(x), expected(x)
    torch.testing.assert_close(y, wanted)
    assert _saved(y) == [shape, tuple(y.shape)]
    dy = torch.randn(wanted.shape, dtype=dtype)
    if program is _smallest:  # torch takes another one of equal minima
        with torch.no_grad():
            x[7, 9] = -1.0
        y, wanted = function(x), expected(x)
    found = torch.autograd.grad(y, x, dy)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, x, dy))


def test_maxima_with_nan() -> None:
    """Recorded or not, the maximum with a NaN is NaN; the NaN has the gradient."""
    function = tvm.jit(_largest)
    x = torch.rand(301, 203)
    x[[5, 0, 300], [4, 7, 202]] = float("nan")
    x[:, 9] = float("-inf")
    plain = function(x)
    y = function(x.requires_grad_())
    assert _saved(y)[1:] == [(203,)]
    torch.testing.assert_close(y, plain, equal_nan=True)
    torch.testing.assert_close(plain, x.max(0)[0], equal_nan=True)
    found = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad(x.max(0)[0].sum(), x))


def test_second_derivatives(gated: Callable[..., Any]) -> None:
    inputs = _inputs()
    dy = torch.randn(37, 65, dtype=torch.float64)

    def second(f: Callable[..., Any]) -> Any:
        first = torch.autograd.grad(f(*inputs), inputs, dy, create_graph=True)
        return torch.autograd.grad(sum(each.pow(2).sum() for each in first), inputs)

    torch.testing.assert_close(second(gated), second(_expected))


def test_saved_tensors_are_torchs(gated: Callable[..., Any]) -> None:
    inputs = _inputs()
    packed: list[tuple[int, ...]] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tuple(tensor.shape))
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = gated(*inputs)
    assert packed.count((37, 65)) == 2
    expected = torch.autograd.grad(_expected(*inputs).sum(), inputs)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), inputs), expected)
    again: Any = checkpoint(gated, *inputs, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(again.sum(), inputs), expected)
    y = gated(*inputs)
    with torch.no_grad():
        inputs[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_outputs_that_are_kept_can_not_be_changed() -> None:
    @tvm.jit
    def both(x: Rows, w: Weights) -> Any:
        k = te.reduce_axis((0, x.shape[1]))
        shape = (x.shape[0], w.shape[0])
        p = te.compute(shape, lambda i, j: te.sum(x[i, k] * w[j, k], axis=k))
        return p, te.compute(shape, lambda i, j: te.sin(p[i, j]))

    x, w = _inputs()[:2]
    p, s = both(x, w)
    torch.testing.assert_close(torch.autograd.grad(s.sum(), x)[0], torch.cos(x @ w.T) @ w)
    p, s = both(x, w)
    with torch.no_grad():
        p.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        s.sum().backward()


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_compiled_transformed_and_batched(gated: Callable[..., Any]) -> None:
    inputs = _inputs()
    expected = torch.autograd.grad(_expected(*inputs).sum(), inputs)
    compiled = torch.compile(lambda *a: gated(*a).sum(), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(*inputs), inputs), expected)
    x, gate, up = (each.detach() for each in inputs)
    of_x = torch.func.grad(lambda x: gated(x, gate, up).sum())
    torch.testing.assert_close(of_x(x), expected[0])
    rows = torch.vmap(lambda row: of_x(row[None])[0])(x)
    torch.testing.assert_close(rows, expected[0])
    _, pushed = torch.func.jvp(lambda x: gated(x, gate, up), (x,), (x,))
    wanted = torch.func.jvp(lambda x: _expected(x, gate, up), (x,), (x,))[1]
    torch.testing.assert_close(pushed, wanted)


def test_jax(gated: Callable[..., Any]) -> None:
    x, gate, up = (jnp.asarray(each.detach().numpy(), "float32") for each in _inputs())

    def expected(x: Any, gate: Any, up: Any) -> Any:
        g = x @ gate.T
        return g * jax.nn.sigmoid(g) * (x @ up.T)

    def gradients(f: Callable[..., Any]) -> Any:
        return jax.jit(jax.grad(lambda *a: (f(*a) ** 2).sum(), argnums=(0, 1, 2)))

    def second(f: Callable[..., Any]) -> Any:
        return jax.jvp(jax.grad(lambda x: (f(x, gate, up) ** 3).sum()), (x,), (x,))[1]

    text = gradients(gated).lower(x, gate, up).as_text()
    assert text.count("@minitvm_call") == 2
    assert "gated_recorded" in text
    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
    pairs = zip(gradients(gated)(x, gate, up), gradients(expected)(x, gate, up), strict=True)
    for found, wanted in pairs:
        np.testing.assert_allclose(found, wanted, **close)
    np.testing.assert_allclose(second(gated), second(expected), **close)
    _, pushed = jax.jvp(gated, (x, gate, up), (x, gate, up))
    np.testing.assert_allclose(pushed, jax.jvp(expected, (x, gate, up), (x, gate, up))[1], **close)


def test_adjoints_of_reads_at_indices_from_data_read_kept_tensors() -> None:
    """Such adjoints are added up by loops, which read what is kept as all else does."""
    F64 = "float64"
    X, t = te.placeholder((3, 5), F64, name="X"), te.placeholder((4,), "int32", name="t")
    E = te.compute((3, 5), lambda i, j: te.exp(X[i, j]), name="E")
    G = te.compute((3, 4), lambda i, j: E[i, t[j]], name="G")
    k = te.reduce_axis((0, 4))
    S = te.compute((3,), lambda i: te.sum(te.exp(G[i, k]), axis=k), name="S")
    Y = te.compute((3, 4), lambda i, j: te.exp(G[i, j]) / S[i], name="Y")
    H, kept = te.placeholder((3, 4), F64, name="H"), te.placeholder((3, 4), F64, name="kept")
    (adjoint,) = reading_kept(te.gradient(Y, [X], H), {Y: kept})
    assert kept in {tensor for op in in_order([adjoint.op]) for tensor in op.input_tensors}
    T = te.placeholder((3, 5), F64, name="T")
    (tangent,) = transposed([adjoint], [H], [T])
    rng = np.random.default_rng(0)
    x, dx, index = rng.random((3, 5)), rng.random((3, 5)), np.array([4, 0, 4, 1], "int32")
    softmax, by_x = jax.jvp(
        lambda x: jax.nn.softmax(jnp.exp(x)[:, index]), (jnp.asarray(x),), (jnp.asarray(dx),)
    )
    found = np.empty((3, 4))
    built = tvm.build(te.create_schedule(tangent.op), [X, t, kept, T, tangent])
    built(x, index, np.asarray(softmax, F64), dx, found)
    np.testing.assert_allclose(found, by_x, rtol=1e-5, atol=1e-6)


def test_sizes_that_change(gated: Callable[..., Any]) -> None:
    for m in (37, 38, 1, 0):
        inputs = _inputs(m)
        found = torch.autograd.grad(gated(*inputs).sum(), inputs)
        torch.testing.assert_close(found, torch.autograd.grad(_expected(*inputs).sum(), inputs))


def test_a_user_s_backward_keeps_what_it_did() -> None:
    def backward(x: Any, gate: Any, up: Any, dy: Any) -> Any:
        return te.gradient(_gated(x, gate, up), [x, gate, up], dy)

    inputs = _inputs()
    y = tvm.jit(_gated, backward=backward)(*inputs)
    assert len(_saved(y)) == 3


# -- The choice -----------------------------------------------------------------------------------


def test_network() -> None:
    network = Network("s", "t")
    for a, b, capacity in [("s", "a", 3.0), ("s", "b", 2.0), ("a", "b", 1.0), ("a", "t", 2.0)]:
        network.join(a, b, capacity)
    network.join("b", "t", 9.0)
    assert network.on_side_of_source() == {"s"}
    network = Network("s", "t")
    network.join("s", "a", 5.0)
    network.join("a", "b", 2.0)
    network.join("b", "t")
    assert network.on_side_of_source() == {"s", "a"}


def _kept(outputs: Any, inputs: Any) -> list[str]:
    heads = [te.placeholder(each.shape, each.dtype, "head") for each in outputs]
    adjoints = te.gradient(outputs, inputs, heads)
    return [each.op.name for each in kept_tensors(outputs, adjoints)]


def _attention(n: int, d: int) -> list[str]:
    q, k, v = (te.placeholder((n, d), name=name) for name in "qkv")
    a, b, c, z = (te.reduce_axis((0, size)) for size in (d, n, n, n))
    s = te.compute((n, n), lambda i, j: te.sum(q[i, a] * k[j, a], axis=a), name="s")
    top = te.compute((n,), lambda i: te.max(s[i, b], axis=b), name="top")
    p = te.compute((n, n), lambda i, j: te.exp(s[i, j] - top[i]), name="p")
    total = te.compute((n,), lambda i: te.sum(p[i, c], axis=c), name="total")
    o = te.compute((n, d), lambda i, j: te.sum(p[i, z] * v[z, j], axis=z), name="o")
    y = te.compute((n, d), lambda i, j: o[i, j] / total[i], name="y")
    return _kept([y], [q, k, v])


def test_large_tensors_are_computed_again() -> None:
    assert _attention(200, 64) == ["p", "total", "y"]
    assert _attention(4000, 64) == ["top", "total", "y"]


def test_scans_are_kept_and_their_steps_are_not() -> None:
    x = te.placeholder((100, 64), name="x")
    state = te.placeholder((100, 64), name="state")
    first = te.compute((1, 64), lambda _, j: x[0, j], name="first")
    inside = te.compute((100, 64), lambda t, j: te.tanh(state[t - 1, j]) * x[t, j], name="inside")
    update = te.compute((100, 64), lambda t, j: inside[t, j] + 1.0, name="update")
    run = te.scan(first, update, state, inputs=[x], name="run")
    y = te.compute((64,), lambda j: run[99, j] * run[99, j], name="y")
    assert set(_kept([y], [x])) <= {"run", "y"}


# -- Shifts ---------------------------------------------------------------------------------------


def _softmax(x: Any, change: Callable[[Any, Any], Any], eps: float = 0.0) -> tuple[Any, Any]:
    k, r = te.reduce_axis((0, x.shape[1])), te.reduce_axis((0, x.shape[1]))
    top = te.compute((x.shape[0],), lambda i: te.max(x[i, k], axis=k), name="top")
    p = te.compute(x.shape, lambda i, j: change(x[i, j], top[i]), name="p")
    total = te.compute((x.shape[0],), lambda i: te.sum(p[i, r], axis=r), name="total")
    return top, te.compute(x.shape, lambda i, j: p[i, j] / (total[i] + eps), name="y")


@pytest.mark.parametrize(
    ("change", "eps", "is_cancelled"),
    [
        (lambda x, top: te.exp(x - top), 0.0, True),
        (lambda x, top: te.exp(2.0 * (x - top)), 0.0, True),
        (lambda x, top: te.exp2((x - top) * 1.5), 0.0, True),
        (lambda x, top: Select(x > 0.0, te.exp(x - top), te.const(0.0, "float64")), 0.0, True),
        (lambda x, top: te.exp(x - top), 1e-3, False),
        (lambda x, top: te.exp(x * top), 0.0, False),
        (lambda x, top: te.exp(x) - top, 0.0, False),
        (lambda x, top: x / top, 0.0, False),
    ],
)
def test_shifts_that_cancel(
    change: Callable[[Any, Any], Any], eps: float, is_cancelled: bool
) -> None:
    x = te.placeholder((3, 5), "float64", name="x")
    top, y = _softmax(x, change, eps)
    assert cancels(top, [y], in_order([y.op])) == is_cancelled

    operator = tvm.jit(lambda x: _softmax(x, change, eps)[1])
    rng = np.random.default_rng(0)
    given = torch.tensor(rng.random((3, 5)) + 0.5, requires_grad=True)
    assert torch.autograd.gradcheck(operator, [given])
    if is_cancelled:
        assert torch.autograd.gradgradcheck(operator, [given])


def test_shifts_of_other_rows_do_not_cancel() -> None:
    x = te.placeholder((4, 4), "float64", name="x")
    k, r = te.reduce_axis((0, 4)), te.reduce_axis((0, 4))
    top = te.compute((4,), lambda i: te.max(x[i, k], axis=k), name="top")
    p = te.compute((4, 4), lambda i, j: te.exp(x[i, j] - top[i]), name="p")
    total = te.compute((4,), lambda i: te.sum(p[r, i], axis=r), name="total")  # of columns
    y = te.compute((4, 4), lambda i, j: p[i, j] / total[i], name="y")
    assert not cancels(top, [y], in_order([y.op]))


def test_logarithms_of_sums() -> None:
    x = te.placeholder((3, 5), "float64", name="x")
    k, r = te.reduce_axis((0, 5)), te.reduce_axis((0, 5))
    top = te.compute((3,), lambda i: te.max(x[i, k], axis=k), name="top")
    total = te.compute((3,), lambda i: te.sum(te.exp(x[i, r] - top[i]), axis=r), name="total")
    whole = te.compute((3,), lambda i: te.log(total[i]) + top[i], name="whole")
    part = te.compute((3,), lambda i: te.log(total[i]) + 2.0 * top[i], name="part")
    assert cancels(top, [whole], in_order([whole.op]))
    assert not cancels(top, [part], in_order([part.op]))
    (dx,) = te.gradient(whole, [x], te.placeholder((3,), "float64"))
    assert all("position" not in op.name for op in in_order([dx.op]))
