"""Gradients of operators: torch and JAX differentiate them by `te.gradient`, or by `backward=`."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import minitvm as tvm
from minitvm import te

Matrix = Annotated[te.Tensor, "m n"]
Vector = Annotated[te.Tensor, "n"]


def _rms_norm(x: Matrix, w: Vector, eps: float = 1e-6) -> Any:
    k = te.reduce_axis((0, x.shape[1]))
    s = te.compute((x.shape[0],), lambda i: te.sum(x[i, k] * x[i, k], axis=k))
    return te.compute(x.shape, lambda i, j: x[i, j] * te.rsqrt(s[i] / x.shape[1] + eps) * w[j])


def _softmax(x: Matrix) -> Any:
    k, r = te.reduce_axis((0, x.shape[1])), te.reduce_axis((0, x.shape[1]))
    top = te.compute((x.shape[0],), lambda i: te.max(x[i, k], axis=k))
    e = te.compute(x.shape, lambda i, j: te.exp(x[i, j] - top[i]))
    total = te.compute((x.shape[0],), lambda i: te.sum(e[i, r], axis=r))
    return te.compute(x.shape, lambda i, j: e[i, j] / total[i])


def _matmul(a: Annotated[te.Tensor, "... m k"], b: Annotated[te.Tensor, "... k n"]) -> Any:
    k = te.reduce_axis((0, a.shape[-1]))
    return te.compute(
        (*a.shape[:-1], b.shape[-1]),
        lambda *i: te.sum(a(*i[:-1], k) * b(*i[:-2], k, i[-1]), axis=k),
    )


rms_norm = tvm.jit(_rms_norm)
softmax = tvm.jit(_softmax)
matmul = tvm.jit(_matmul, broadcast=True)


def _random(*shape: int, requires_grad: bool = True) -> torch.Tensor:
    values = np.random.default_rng(sum(shape)).random(shape)
    return torch.tensor(values, requires_grad=requires_grad)


@pytest.mark.parametrize(
    ("operator", "inputs"),
    [
        (rms_norm, [_random(4, 5), _random(5)]),
        (rms_norm, [_random(3, 5), _random(5)]),  # with a variable extent
        (rms_norm, [_random(4, 5, requires_grad=False), _random(5)]),
        (softmax, [_random(3, 4)]),
        (softmax, [_random(4, 3).T]),
        (matmul, [_random(2, 3), _random(3, 4)]),
        (matmul, [_random(2, 2, 3), _random(3, 4)]),  # whose second factor broadcasts
    ],
)
def test_gradcheck(operator: Callable[..., Any], inputs: list[torch.Tensor]) -> None:
    assert torch.autograd.gradcheck(operator, inputs)


@pytest.mark.parametrize(
    ("operator", "inputs"),
    [
        (rms_norm, [_random(4, 5), _random(5)]),
        (softmax, [_random(3, 4)]),
        (matmul, [_random(2, 2, 3), _random(3, 4)]),
    ],
)
def test_second_derivatives(operator: Callable[..., Any], inputs: list[torch.Tensor]) -> None:
    assert torch.autograd.gradgradcheck(operator, inputs)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_batches_of_gradients_by_autograd() -> None:
    """autograd batches gradients by a transform of its own, older than torch.vmap."""
    x = _random(3, 4)
    heads = torch.eye(12, dtype=torch.float64).reshape(12, 3, 4)
    (found,) = torch.autograd.grad(softmax(x), x, heads, is_grads_batched=True)
    wanted = torch.autograd.functional.jacobian(lambda y: torch.softmax(y, 1), x)
    torch.testing.assert_close(found.reshape(3, 4, 3, 4), wanted)
    vectorized = torch.autograd.functional.jacobian(softmax, x, vectorize=True)
    torch.testing.assert_close(vectorized, wanted)


def test_third_derivatives_of_jax() -> None:
    @tvm.jit
    def fourth(x: Vector) -> Any:
        return te.compute(x.shape, lambda i: x[i] * x[i] * x[i] * x[i])

    def derivative(f: Callable[..., Any]) -> Callable[..., Any]:
        made: Callable[..., Any] = jax.grad(lambda x: f(x).sum())
        return made

    x = jnp.arange(4, dtype="float32")
    found = jax.jit(derivative(derivative(derivative(fourth))))(x)
    np.testing.assert_allclose(found, 24 * x)


def test_only_wanted_gradients_are_computed() -> None:
    both = tvm.jit(_matmul)
    a, b = _random(2, 3), _random(3, 4)
    both(a.detach(), b).sum().backward()
    (build,) = both.specialisations
    assert list(build.derivative._made) == [("backward", (1,))]
    assert a.grad is None
    torch.testing.assert_close(b.grad, a.detach().T @ torch.ones(2, 4, dtype=torch.float64))


def test_indices_and_numbers_have_no_gradients() -> None:
    @tvm.jit
    def rows(table: Matrix, at: Annotated[te.Tensor, "k"], scale: float = 1.0) -> Any:
        shape = (at.shape[0], table.shape[1])
        return te.compute(shape, lambda i, j: table[at[i], j] * scale)

    table = torch.ones(4, 2, requires_grad=True)
    rows(table, torch.tensor([1, 1, 3]), scale=np.float32(2)).sum().backward()
    assert table.grad is not None
    assert table.grad[:, 0].tolist() == [0, 4, 0, 2]


def test_several_outputs() -> None:
    @tvm.jit
    def parts(x: Vector) -> Any:
        whole = te.compute(x.shape, lambda i: te.floor(x[i]).astype("int32"))
        return te.compute(x.shape, lambda i: x[i] * x[i]), whole, te.compute((), lambda: x[0])

    x = torch.tensor([1.5, 2.5], requires_grad=True)
    square, whole, first = parts(x)
    assert not whole.requires_grad
    first.backward(retain_graph=True)
    assert x.grad is not None and x.grad.tolist() == [1, 0]
    (square.sum() + first).backward()
    assert x.grad.tolist() == [5, 5]


def test_modes_of_torch() -> None:
    w = _random(5)
    with torch.no_grad():
        assert not rms_norm(_random(4, 5), w).requires_grad
    with torch.inference_mode():
        assert not rms_norm(_random(4, 5), w).requires_grad
    x = _random(4, 5)
    per_row = torch.func.grad(lambda x: softmax(x)[0, 0])(x.detach())
    (expected,) = torch.autograd.grad(torch.softmax(x, 1)[0, 0], x)
    torch.testing.assert_close(per_row, expected)
    batch = _random(2, 4, 5, requires_grad=False)
    torch.testing.assert_close(torch.vmap(softmax)(batch), torch.softmax(batch, -1))


def test_a_module_learns() -> None:
    layer = torch.nn.Linear(5, 3, dtype=torch.float64)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    losses = []
    for _ in range(5):
        loss = (softmax(layer(_random(4, 5))) - torch.eye(4, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


# -- Programs that torch compiles ------------------------------------------------------------------


def test_torch_compile() -> None:
    operator = tvm.jit(_rms_norm)

    program = torch.compile(
        lambda x, w, eps=1e-6: operator(x * 2, w, eps=eps) + 1, fullgraph=True, backend="aot_eager"
    )

    def expected(x: torch.Tensor, w: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
        y = x * 2
        return y * torch.rsqrt(y.square().mean(1, keepdim=True) + eps) * w + 1

    w = _random(5)
    for rows in (4, 6, 7, 9):  # of which the second becomes a size that torch doesn't fix
        x = _random(rows, 5)
        found = torch.autograd.grad(program(x, w).square().sum(), (x, w))
        torch.testing.assert_close(
            found, torch.autograd.grad(expected(x, w).square().sum(), (x, w))
        )
    torch.testing.assert_close(program(x, w, 0.5), expected(x, w, 0.5))
    assert [sorted(each.symbolic) for each in operator.specialisations] == [[], ["m"]]


def test_torch_compile_of_static_arguments() -> None:
    @tvm.jit(static="axis")
    def sums(x: Matrix, axis: int = 0) -> Any:
        k = te.reduce_axis((0, x.shape[axis]))
        n = x.shape[1 - axis]
        total = te.compute((n,), lambda i: te.sum(x[k, i] if axis == 0 else x[i, k], axis=k))
        return total, te.compute((n,), lambda i: total[i] * 2.0)

    program = torch.compile(lambda x, axis: sums(x, axis=axis), fullgraph=True, backend="aot_eager")
    x = _random(3, 4)
    for axis in (0, 1):
        total, twice = program(x, axis)
        torch.testing.assert_close(total, x.sum(axis))
        torch.testing.assert_close(twice, x.sum(axis) * 2)


def test_torch_export() -> None:
    class Norm(torch.nn.Module):  # type: ignore[misc]  # of Any
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(_random(5).detach())

        def forward(self, x: torch.Tensor) -> Any:
            return rms_norm(x, self.w)

    layer, rows = Norm(), torch.export.Dim("rows")
    program = torch.export.export(layer, (_random(4, 5),), dynamic_shapes=({0: rows},))
    called = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert len(called) == 1 and called[0].startswith("minitvm.jit__rms_norm_")
    x = _random(9, 5)
    torch.testing.assert_close(program.module()(x), layer(x))


# -- Programs that JAX traces ---------------------------------------------------------------------


def test_jax() -> None:
    operator = tvm.jit(_rms_norm)

    def expected(x: Any, w: Any, eps: float = 1e-6) -> Any:
        return x * jax.lax.rsqrt((x * x).mean(1, keepdims=True) + eps) * w

    def loss(run: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: (run(*args) ** 2 * jnp.arange(5)).sum()

    for rows in (3, 4):
        x = jnp.asarray(np.random.default_rng(rows).random((rows, 5)), "float32")
        args = (x, jnp.arange(5, dtype="float32"), 0.5)
        np.testing.assert_allclose(jax.jit(operator)(*args), expected(*args), rtol=1e-5)
        wanted = jax.grad(loss(expected), argnums=(0, 1))(*args)
        found = jax.jit(jax.grad(loss(operator), argnums=(0, 1)))(*args)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    found = jax.vmap(operator, (0, None))(jnp.stack([x, 2 * x]), args[1])
    np.testing.assert_allclose(found[1], expected(2 * x, args[1]), rtol=1e-5)


def test_jax_with_indices_and_several_outputs() -> None:
    @tvm.jit
    def rows(table: Matrix, at: Annotated[te.Tensor, "k"], scale: float = 1.0) -> Any:
        shape = (at.shape[0], table.shape[1])
        taken = te.compute(shape, lambda i, j: table[at[i], j] * scale)
        return taken, te.compute(at.shape, lambda i: at[i] + 1)

    table, at = jnp.ones((4, 2)), jnp.asarray([1, 1, 3])
    found = jax.grad(lambda t: rows(t, at, 2.0)[0].sum())(table)
    assert found[:, 0].tolist() == [0, 4, 0, 2]
    assert jax.jit(rows)(table, at)[1].tolist() == [2, 2, 4]


# -- A gradient of the user's ---------------------------------------------------------------------


def _softmax_backward(x: Any, y: Any, g: Any) -> Any:
    k = te.reduce_axis((0, x.shape[1]))
    total = te.compute((x.shape[0],), lambda i: te.sum(g[i, k] * y[i, k], axis=k))
    return te.compute(x.shape, lambda i, j: y[i, j] * (g[i, j] - total[i]))


def _matmul_backward(a: Any, b: Any, g: Any) -> Any:
    """Of all dimensions, over which te adds up those that an argument broadcasts."""
    n, m = te.reduce_axis((0, b.shape[-1])), te.reduce_axis((0, a.shape[-2]))
    return (
        te.compute(a.shape, lambda *i: te.sum(g(*i[:-1], n) * b(*i[:-2], i[-1], n), axis=n)),
        te.compute(b.shape, lambda *i: te.sum(a(*i[:-2], m, i[-2]) * g(*i[:-2], m, i[-1]), axis=m)),
    )


def test_backward_of_the_users() -> None:
    mine = tvm.jit(_softmax, backward=_softmax_backward)
    assert torch.autograd.gradcheck(mine, [_random(3, 4)])
    mine = tvm.jit(_matmul, broadcast=True, backward=_matmul_backward)
    assert torch.autograd.gradcheck(mine, [_random(2, 2, 3), _random(3, 4)])
    x = jnp.asarray(np.random.default_rng(0).random((3, 4)), "float32")
    mine = tvm.jit(_softmax, backward=_softmax_backward)
    found = jax.grad(lambda x: mine(x)[0, 0])(x)
    np.testing.assert_allclose(found, jax.grad(lambda x: jax.nn.softmax(x)[0, 0])(x), atol=1e-6)
    double = tvm.jit(lambda x: te.compute(x.shape, lambda i: x[i] * 2.0), backward=lambda x, g: g)
    x = torch.ones(3, requires_grad=True)
    double(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1, 1, 1]  # as the user says


# -- What is refused ------------------------------------------------------------------------------


def _copy(x: Vector) -> Any:
    return te.compute(x.shape, lambda i: x[i])


def _loss(backward: Callable[..., Any]) -> Callable[[], None]:
    operator = tvm.jit(_copy, backward=backward, name="copy")
    return lambda: operator(torch.ones(3, requires_grad=True)).sum().backward()


def test_a_program_without_a_derivative() -> None:
    @tvm.jit
    def after(x: Vector) -> Any:
        return te.compute(x.shape, lambda i: te.nextafter(x[i], 0.0))

    y = after(torch.ones(3, requires_grad=True))
    with pytest.raises(tvm.CompileError, match=r"after: gradient: .*nextafter.*jit\(backward=\)"):
        y.sum().backward()


def test_no_second_derivative() -> None:
    @tvm.jit(backward=lambda x, g: te.compute(x.shape, lambda i: te.nextafter(x[i], 0.0) * g[i]))
    def after(x: Vector) -> Any:
        return te.compute(x.shape, lambda i: x[i] * x[i])

    x = torch.ones(3, requires_grad=True)
    (g,) = torch.autograd.grad(after(x).sum(), x, create_graph=True)
    with pytest.raises(tvm.CompileError, match=r"after_backward: gradient: .*nextafter"):
        g.sum().backward()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (_loss(lambda x: x), tvm.CompileError, r"copy: backward: .* function of 2 .*or of 3"),
        (_loss(lambda x, g: (g, g)), tvm.CompileError, "expected 1 gradients, of x, got 2"),
        (_loss(lambda x, g: 1.0), tvm.CompileError, "the gradient of .*expected a tensor, got"),
        (
            _loss(lambda x, g: te.compute((2,), lambda i: g[i])),
            tvm.CompileError,
            "expected the shape of x",
        ),
        (
            lambda: softmax(_random(3, 4), out=torch.empty(3, 4, dtype=torch.float64)),
            BufferError,
            "doesn't require grad",
        ),
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_backward_is_a_function() -> None:
    with pytest.raises(tvm.CompileError, match="backward: expected a function of tensors, got int"):
        tvm.jit(_copy, backward=3)  # type: ignore[call-overload]  # what is tested


# -- Forward mode ---------------------------------------------------------------------------------


def _torch_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def _cubes(x: Vector, w: Vector) -> Any:
    """With a function of the user's for the gradients, which reads the outputs."""
    return te.compute(x.shape, lambda i: x[i] * x[i] * x[i] * w[i])


def _cubes_backward(x: te.Tensor, w: te.Tensor, y: te.Tensor, g: te.Tensor) -> Any:
    dx = te.compute(x.shape, lambda i: 3.0 * y[i] / x[i] * g[i])
    return dx, te.compute(x.shape, lambda i: x[i] * x[i] * x[i] * g[i])


cubes = tvm.jit(_cubes, backward=_cubes_backward)

# torch's own forward mode imports what it has deprecated.
quietly = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

FORWARD: dict[str, tuple[Any, Any, list[tuple[int, ...]]]] = {
    "softmax": (softmax, _torch_softmax, [(3, 4)]),
    "product": (tvm.jit(_matmul), torch.matmul, [(3, 4), (4, 2)]),
    "with a backward": (cubes, lambda x, w: x**3 * w, [(5,), (5,)]),
}


def _points(name: str, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [torch.tensor(rng.standard_normal(shape) + 2) for shape in FORWARD[name][2]]


@quietly
@pytest.mark.parametrize("name", FORWARD)
def test_tangents_are_those_of_torch(name: str) -> None:
    ours, theirs, _ = FORWARD[name]
    x, v = tuple(_points(name, 1)), tuple(_points(name, 2))
    for mine, known in zip(torch.func.jvp(ours, x, v), torch.func.jvp(theirs, x, v), strict=True):
        torch.testing.assert_close(mine, known)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x[0], v[0])
        tangents = [
            torch.autograd.forward_ad.unpack_dual(f(dual, *x[1:])).tangent for f in (ours, theirs)
        ]
        torch.testing.assert_close(*tangents)
    torch.testing.assert_close(torch.func.jacfwd(ours)(*x), torch.func.jacfwd(theirs)(*x))
    hessians = [torch.func.hessian(lambda *a, f=f: (f(*a) ** 2).sum())(*x) for f in (ours, theirs)]
    torch.testing.assert_close(*hessians)
    inputs = tuple(each.requires_grad_() for each in x)
    assert torch.autograd.gradcheck(
        lambda *a: ours(*a), inputs, check_forward_ad=True, fast_mode=True
    )


@quietly
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")  # torch's
@pytest.mark.parametrize("name", FORWARD)
def test_torch_linearizes(name: str) -> None:
    """Its kernels run below autograd, where nothing tells whether a tensor is dual."""
    ours, theirs, _ = FORWARD[name]
    x, v = tuple(_points(name, 1)), tuple(_points(name, 2))
    torch.testing.assert_close(*(torch.func.linearize(f, *x)[1](*v) for f in (ours, theirs)))


@quietly
@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=pytest.mark.wide if each == "product" else ()) for each in FORWARD],
)
def test_tangents_in_jax_are_those_of_torch(name: str) -> None:
    ours, theirs, _ = FORWARD[name]
    x, v = tuple(_points(name, 1)), tuple(_points(name, 2))
    with jax.enable_x64(True):
        a, b = ([jnp.asarray(each.numpy()) for each in given] for given in (x, v))
        close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)
        y, t = jax.jvp(ours, a, b)
        known = torch.func.jvp(theirs, x, v)
        close(y, known[0])
        close(t, known[1])
        close(jax.linearize(ours, *a)[1](*b), known[1])
        moved = jax.jit(lambda a0, b0: jax.jvp(lambda z: ours(z, *a[1:]), (a0,), (b0,))[1])
        zeros = (v[0], *map(torch.zeros_like, v[1:]))
        close(moved(a[0], b[0]), torch.func.jvp(theirs, x, zeros)[1])
        close(jax.jacfwd(ours)(*a), torch.func.jacfwd(theirs)(*x))
        hessian = jax.jit(jax.hessian(lambda *given: (ours(*given) ** 2).sum()))(*a)
        close(hessian, torch.func.hessian(lambda *given: (theirs(*given) ** 2).sum())(*x))
        many = [jnp.stack([each, 2 * each]) for each in a]
        batch = jax.vmap(lambda *given: jax.jvp(ours, given, tuple(b))[1])(*many)
        twice = torch.func.jvp(theirs, tuple(2 * each for each in x), v)[1]
        close(batch, torch.stack([known[1], twice]))


def test_a_number_has_no_gradient_in_jax() -> None:
    x = jnp.ones((2, 3))
    with pytest.raises(TypeError, match=r"'eps': expected a number that isn't differentiated"):
        jax.grad(lambda eps: rms_norm(x, jnp.ones(3), eps).sum())(0.1)


@quietly
def test_gradients_that_are_not_linear_have_no_tangents() -> None:
    @tvm.jit(backward=lambda x, g: te.compute(x.shape, lambda i: g[i] * g[i]))
    def odd(x: Vector) -> Any:
        return te.compute(x.shape, lambda i: x[i] * 2.0)

    x = torch.ones(3)
    with pytest.raises(tvm.CompileError, match="expected gradients that are linear"):
        torch.func.jvp(odd, (x,), (x,))
