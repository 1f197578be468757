"""``te.gradient``: against torch, against central differences, and its errors."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

import minitvm as tvm
from minitvm import te, tir
from minitvm.te.tensor import ComputeOp, Tensor, domain_of
from minitvm.tir.intrinsics import INTRINSICS

torch = pytest.importorskip("torch")

Array = npt.NDArray[Any]
F64 = "float64"
N = np.array([1, 1, 0, 3, 1, 2], "int32")  # rows that are read, some several times


def _axis(extent: Any, name: str = "k") -> Any:
    return te.reduce_axis((0, extent), name)


def _body(tensor: Tensor) -> Any:
    return cast(Any, tensor.op).body[0]


def _zero() -> Any:
    return te.const(0.0, F64)


# -- Programs, each with torch's ------------------------------------------------------------------


def _product(A: Tensor, B: Tensor) -> Any:
    k = _axis(7)
    return te.compute((5, 6), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")


def _softmax(X: Tensor) -> Any:
    k, j = _axis(7), _axis(7, "j")
    m = te.compute((5,), lambda i: te.max(X[i, k], axis=k), name="m")
    power = te.compute((5, 7), lambda i, j: te.exp(X[i, j] - m[i]), name="power")
    total = te.compute((5,), lambda i: te.sum(power[i, j], axis=j), name="total")
    return te.compute((5, 7), lambda i, j: power[i, j] / total[i], name="softmax")


def _first_rows(X: Tensor) -> Any:
    return te.compute((3, 7), lambda i, j: X[i, j], name="first")


def _layer_norm(X: Tensor, w: Tensor, b: Tensor) -> Any:
    k, j = _axis(7), _axis(7, "j")
    mean = te.compute((5,), lambda i: te.sum(X[i, k] / 7.0, axis=k), name="mean")
    d = te.compute((5, 7), lambda i, j: X[i, j] - mean[i], name="d")
    var = te.compute((5,), lambda i: te.sum(d[i, j] * d[i, j] / 7.0, axis=j), name="var")
    return te.compute((5, 7), lambda i, j: d[i, j] * te.rsqrt(var[i] + 1e-5) * w[j] + b[j])


def _rms_norm(X: Tensor, w: Tensor) -> Any:
    k = _axis(7)
    s = te.compute((5,), lambda i: te.sum(X[i, k] * X[i, k], axis=k), name="s")
    return te.compute((5, 7), lambda i, j: X[i, j] * te.rsqrt(s[i] / 7.0 + 1e-6) * w[j])


def _gelu(X: Tensor) -> Any:
    return te.compute(X.shape, lambda i: 0.5 * X[i] * (1.0 + te.erf(X[i] * math.sqrt(0.5))))


def _convolution(stride: int, padding: int, dilation: int, groups: int = 1) -> Any:
    def program(X: Tensor, W: Tensor) -> Any:
        p, size, per = padding, 9, 4 // groups
        padded = te.compute(
            (2, 4, size + 2 * p, size + 2 * p),
            lambda n, c, y, x: te.if_then_else(
                te.all(y >= p, y < size + p, x >= p, x < size + p),
                X[n, c, y - p, x - p],
                _zero(),
            ),
            name="padded",
        )
        out = (size + 2 * p - dilation * 2 - 1) // stride + 1
        c, r, q = _axis(per, "c"), _axis(3, "r"), _axis(3, "q")
        return te.compute(
            (2, 6, out, out),
            lambda n, f, y, x: te.sum(
                padded[
                    n,
                    f // (6 // groups) * per + c,
                    y * stride + r * dilation,
                    x * stride + q * dilation,
                ]
                * W[f, c, r, q],
                axis=[c, r, q],
            ),
            name="Y",
        )

    return program


def _max_pool(stride: int, width: int) -> Any:
    def program(X: Tensor) -> Any:
        out = (9 - width) // stride + 1
        r, q = _axis(width, "r"), _axis(width, "q")
        return te.compute(
            (2, out, out),
            lambda n, y, x: te.max(X[n, y * stride + r, x * stride + q], axis=[r, q]),
        )

    return program


def _attention(Q: Tensor, K: Tensor, V: Tensor) -> Any:
    """With a causal mask."""
    n, d = 6, 4
    k, j, j2, j3 = _axis(d), _axis(n, "j"), _axis(n, "j2"), _axis(n, "j3")
    score = te.compute((n, n), lambda i, j: te.sum(Q[i, k] * K[j, k], axis=k), name="score")
    m = te.compute((n,), lambda i: te.max(score[i, j], axis=j, where=j <= i), name="m")
    power = te.compute(
        (n, n),
        lambda i, j: te.if_then_else(j <= i, te.exp(score[i, j] - m[i]), _zero()),
        name="power",
    )
    total = te.compute((n,), lambda i: te.sum(power[i, j2], axis=j2), name="total")
    out = te.compute((n, d), lambda i, c: te.sum(power[i, j3] * V[j3, c], axis=j3), name="out")
    return te.compute((n, d), lambda i, c: out[i, c] / total[i], name="attention")


def _cross_entropy(X: Tensor, t: Tensor) -> Any:
    k = _axis(4)
    total = te.compute((6,), lambda i: te.sum(te.exp(X[i, k]), axis=k), name="total")
    return te.compute((6,), lambda i: te.log(total[i]) - X[i, t[i]], name="loss")


def _running_sum(X: Tensor) -> Any:
    k = _axis(8)
    return te.compute((3, 8), lambda b, i: te.sum(X[b, k], axis=k, where=k <= i), name="sums")


def _rows(X: Tensor, B: Tensor, t: Tensor) -> Any:
    """A product of gathered rows."""
    k = _axis(5)
    return te.compute((6, 3), lambda i, j: te.sum(X[t[i], k] * B[k, j], axis=k), name="rows")


def _log_sum_exp(X: Tensor) -> Any:
    def combine(a: Any, b: Any) -> Any:
        return te.max(a, b) + te.log1p(te.exp(-te.abs(a - b)))

    reducer = te.comm_reducer(combine, lambda t: te.const(-1e30, t), name="log_sum_exp")
    k = _axis(5)
    return te.compute((3,), lambda i: reducer(X[i, k], axis=k), name="lse")


def _row_wise(reducer: Any) -> Any:
    k = _axis(5)
    return lambda X: te.compute((3,), lambda i: reducer(X[i, k], axis=k), name="Y")


def _of(shape: Any, element: Callable[..., Any]) -> Any:
    """A program of one stage."""

    def program(*tensors: Tensor) -> Any:
        return te.compute(shape, lambda *i: element(*tensors, *i), varargs_names=None, name="Y")

    return program


def _conv_of_torch(*options: int) -> Any:
    stride, padding, dilation, groups = (*options, 1)[:4]
    return lambda x, w: torch.conv2d(
        x, w, stride=stride, padding=padding, dilation=dilation, groups=groups
    )


def _pool_of_torch(stride: int, width: int) -> Any:
    return lambda x: torch.max_pool2d(x, width, stride)


_IMAGE, _WEIGHTS = (2, 4, 9, 9), (6, 4, 3, 3)
_CONVOLUTIONS = [(1, 1, 1), (2, 1, 1), (1, 2, 2), (2, 2, 2), (3, 0, 1), (2, 1, 3), (3, 2, 2)]
PROGRAMS: dict[str, tuple[Any, list[tuple[int, ...]], Any, tuple[Array, ...]]] = {
    "product": (_product, [(5, 7), (7, 6)], lambda a, b: a @ b, ()),
    "softmax": (_softmax, [(5, 7)], lambda x: torch.softmax(x, -1), ()),
    "layer norm": (
        _layer_norm,
        [(5, 7), (7,), (7,)],
        lambda x, w, b: torch.layer_norm(x, (7,), w, b),
        (),
    ),
    "rms norm": (_rms_norm, [(5, 7), (7,)], lambda x, w: torch.rms_norm(x, (7,), w, 1e-6), ()),
    "gelu": (_gelu, [(9,)], lambda x: torch.nn.functional.gelu(x), ()),
    **{
        f"convolution {o}": (_convolution(*o), [_IMAGE, _WEIGHTS], _conv_of_torch(*o), ())
        for o in _CONVOLUTIONS
    },
    "groups": (
        _convolution(1, 1, 1, 2), [_IMAGE, (6, 2, 3, 3)], _conv_of_torch(1, 1, 1, 2), ()
    ),
    **{
        f"max pool {o}": (_max_pool(*o), [(2, 9, 9)], _pool_of_torch(*o), ())
        for o in ((2, 3), (2, 2), (1, 2), (3, 2))
    },
    "attention": (
        _attention,
        [(6, 4)] * 3,
        lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=1.0
        ),
        (),
    ),
    "gather": (
        _of((6, 5), lambda X, t, i, j: X[t[i], j]), [(4, 5)], lambda x, t: x[t.long()], (N,)
    ),
    "gathered rows": (_rows, [(4, 5), (5, 3)], lambda x, b, t: x[t.long()] @ b, (N,)),
    "cross entropy": (
        _cross_entropy,
        [(6, 4)],
        lambda x, t: torch.nn.functional.cross_entropy(x, t.long(), reduction="none"),
        (N,),
    ),
    "running sum": (_running_sum, [(3, 8)], lambda x: x.cumsum(-1), ()),
    "reduction by prod": (_row_wise(te.prod), [(3, 5)], lambda x: x.prod(-1), ()),
    "reduction by min": (_row_wise(te.min), [(3, 5)], lambda x: x.amin(-1), ()),
    "log sum exp": (_log_sum_exp, [(3, 5)], lambda x: torch.logsumexp(x, -1), ()),
    "flatten": (
        _of((24,), lambda X, i: X[i // 6, i % 6] * 2.0), [(4, 6)], lambda x: x.reshape(-1) * 2, ()
    ),
    "unflatten": (
        _of((4, 6), lambda X, i, j: X[i * 6 + j]), [(24,)], lambda x: x.reshape(4, 6), ()
    ),
    "transpose": (_of((6, 4), lambda X, i, j: X[j, i]), [(4, 6)], lambda x: x.T, ()),
    "upsample": (
        _of((9,), lambda X, i: X[i // 2]), [(5,)], lambda x: x.repeat_interleave(2)[:9], ()
    ),
    "tile": (_of((13,), lambda X, i: X[i % 5]), [(5,)], lambda x: x.repeat(3)[:13], ()),
    "every third": (_of((4,), lambda X, i: X[3 * i + 1]), [(13,)], lambda x: x[1::3], ()),
    "reversed": (_of((5,), lambda X, i: X[4 - i]), [(5,)], lambda x: x.flip(0), ()),
    "diagonal": (
        _of((4,), lambda X, i: X[i, i] * X[0, i]), [(4, 4)], lambda x: x.diagonal() * x[0], ()
    ),
    "edge": (
        _of((6,), lambda X, i: X[te.min(i + 1, 5)] ** 2.0),
        [(6,)],
        lambda x: x[[1, 2, 3, 4, 5, 5]] ** 2,
        (),
    ),
    "concatenation": (
        _of((7,), lambda X, Y, i: te.if_then_else(i < 3, X[i], Y[i - 3])),
        [(3,), (4,)],
        lambda x, y: torch.cat([x, y]),
        (),
    ),
    "broadcast": (
        _of((3, 4), lambda X, b, i, j: X[i, j] * b[j] + b[j]),
        [(3, 4), (4,)],
        lambda x, b: x * b + b,
        (),
    ),
    "the first rows of a tensor that is computed": (
        lambda X: _first_rows(te.compute((5, 7), lambda i, j: te.exp(X[i, j]))),
        [(5, 7)],
        lambda x: x.exp()[:3],
        (),
    ),
    "choice of a logarithm": (
        _of((5,), lambda X, i: tvm.Select(X[i] > 0, te.log(X[i]), X[i])),
        [(5,)],
        lambda x: torch.where(x > 0, torch.where(x > 0, x, 1.0).log(), x),
        (),
    ),
}  # fmt: skip


def _built(outputs: list[Tensor], arguments: list[Tensor], arrays: list[Array]) -> list[Array]:
    made = [np.full([int(n) for n in t.shape], 7, str(t.dtype)) for t in outputs]
    tvm.build(outputs, [*arguments, *outputs], auto_schedule=False)(*arrays, *made)
    return made


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_torch(name: str) -> None:
    program, shapes, theirs, data = PROGRAMS[name]
    rng = np.random.default_rng(0)
    inputs = [te.placeholder(shape, F64, name=f"X{i}") for i, shape in enumerate(shapes)]
    extra = [te.placeholder(each.shape, str(each.dtype), name="t") for each in data]
    Y = program(*inputs, *extra)
    H = te.placeholder(Y.shape, F64, name="H")
    arrays = [rng.standard_normal(shape) for shape in shapes]
    head = rng.standard_normal([int(n) for n in Y.shape])
    made = te.gradient(Y, inputs, H)
    found = _built(made, [*inputs, *extra, H], [*arrays, *data, head])
    leaves = [torch.tensor(each, requires_grad=True) for each in arrays]
    theirs(*leaves, *map(torch.tensor, data)).backward(torch.tensor(head))
    for mine, leaf in zip(found, leaves, strict=True):
        np.testing.assert_allclose(mine, leaf.grad.numpy(), rtol=1e-9, atol=1e-10)


# -- The derivatives of functions -----------------------------------------------------------------

# Points inside of the domain, away from kinks and jumps.
POINTS: dict[str, tuple[float, ...]] = {
    "acosh": (1.5,), "atan2": (0.3, -0.7), "hypot": (0.3, -0.7), "fmod": (5.3, 1.7),
    "copysign": (0.3, -0.7), "power": (1.3, 2.7), "fabs": (-0.7,),
}  # fmt: skip
DIFFERENTIABLE = [
    each for each in INTRINSICS.values()
    if each.derivative is not None and each.name != "ldexp"
]  # fmt: skip


@pytest.mark.parametrize("known", DIFFERENTIABLE, ids=lambda known: known.name)
def test_derivatives_are_the_limits_of_quotients(known: Any) -> None:
    point = POINTS.get(known.name, (0.37,) * known.arity)
    step = 1e-6
    dtype = te.const(0.0, F64).dtype
    value = known.meaning(dtype, *point)
    found = known.derivative(np, np.float64(value), *map(np.float64, point))
    for i, mine in enumerate(found):
        above = [x + step * (i == j) for j, x in enumerate(point)]
        below = [x - step * (i == j) for j, x in enumerate(point)]
        quotient = (known.meaning(dtype, *above) - known.meaning(dtype, *below)) / (2 * step)
        assert quotient == pytest.approx(0.0 if mine is None else mine, rel=1e-7, abs=1e-8)


def test_an_argument_without_an_adjoint_has_a_gradient_of_zeros() -> None:
    X, Y, G = (te.placeholder((2,), F64, name=name) for name in "XYG")
    Z = te.compute((2,), lambda i: te.copysign(X[i], Y[i] * Y[i] * Y[i]), name="Z")
    dX, dY = te.gradient(Z, [X, Y], G)
    f = tvm.build([dX, dY], [X, Y, G, dX, dY], name="f")
    dx, dy = np.ones(2), np.ones(2)
    f(np.array([2.0, 3.0]), np.array([-1.0, 1.0]), np.array([5.0, 7.0]), dx, dy)
    assert (dx.tolist(), dy.tolist()) == ([-5, 7], [0, 0])


# -- Random programs ------------------------------------------------------------------------------


class _Programs:
    """Random graphs of stages over one input, smooth at random points."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def _smooth(self, x: Any) -> Any:
        functions: list[Callable[[Any], Any]] = [
            te.tanh, te.sigmoid, te.sin, lambda x: x * x, lambda x: te.exp(x * 0.3),
            lambda x: 1.0 / (x * x + 2.0), te.erf, lambda x: te.log(x * x + 1.0),
            lambda x: te.max(x, x * 0.5 + 0.1), te.abs, lambda x: tvm.Select(x > 0.2, x * 2.0, -x),
        ]  # fmt: skip
        return self._random.choice(functions)(x)

    def stage(self, pool: list[Tensor], t: Tensor) -> Any:
        pick = self._random
        X = pick.choice(pool)
        n = int(cast(Any, X.shape[0]))
        kind = pick.randrange(12)
        k = _axis(n)
        if kind == 0 and n > 2:
            w, s = pick.randint(1, min(3, n - 1)), pick.randint(1, 3)
            r = _axis(w, "r")
            m = (n - w) // s + 1
            return te.compute((m,), lambda i: te.sum(X[i * s + r] * X[r], axis=r), name="W")
        if kind == 1:
            return te.compute((5,), lambda i: X[t[i] % n] * X[0], name="G")
        if kind == 2:
            c = pick.randint(1, 4)
            return te.compute((n * 2 - 1,), lambda i: X[(i // c) % n] + X[i // 2], name="R")
        if kind == 3:
            fold = pick.choice([te.max, te.min, te.prod])
            return te.compute((4,), lambda i: fold(te.sin(X[k] + i * 0.7), axis=k), name="M")
        if kind == 4:
            return te.compute((n,), lambda i: te.sum(X[k], axis=k, where=k <= i), name="S")
        if kind == 5:
            p = pick.randint(0, 2)
            return te.compute(
                (n + 2,),
                lambda i: te.if_then_else(te.all(i >= p, i < n + p), X[i - p], _zero()),
                name="P",
            )
        if kind == 6:
            return te.compute((n,), lambda i: X[n - 1 - i] * X[te.max(i - 1, 0)], name="E")
        if kind == 7:
            Y = pick.choice(pool)
            m = int(cast(Any, Y.shape[0]))
            return te.compute((max(n, m),), lambda i: X[i % n] * self._smooth(Y[i % m]), name="B")
        if kind == 8:
            r = _axis(2, "r")
            return te.compute((n,), lambda i: te.sum(X[te.min(i + r, n - 1)] * (r + 1), axis=r))
        return te.compute((n,), lambda i: self._smooth(X[i] * 0.9 + 0.05), name="F")

    def draw(self) -> tuple[list[Tensor], Any, Tensor]:
        A = te.placeholder((self._random.randint(2, 7),), F64, name="A")
        t = te.placeholder((5,), "int32", name="t")
        pool = [A]
        for _ in range(self._random.randint(2, 6)):
            pool.append(self.stage(pool, t))
        Z = pool[-1]
        k = _axis(Z.shape[0], "last")
        weight = self._random.random()
        L = te.compute((), lambda: te.sum(Z[k] * te.cos(Z[k] + k * weight), axis=k), name="L")
        return [A, t], L, A


def _check_random(seed: int) -> None:
    arguments, L, A = _Programs(seed).draw()
    rng = np.random.default_rng(seed)
    a = rng.standard_normal(int(cast(Any, A.shape[0])))
    t = rng.integers(0, 50, 5).astype("int32")
    (dA,) = te.gradient(L, [A])
    scheduled = seed % 4 == 0
    f = tvm.build([L], [*arguments, L], auto_schedule=False)
    g = tvm.build([dA], [*arguments, dA], auto_schedule=scheduled)
    found, loss = np.empty_like(a), np.empty(())
    g(a, t, found)

    def value(x: Array) -> float:
        f(x, t, loss)
        return float(loss)

    for i in range(len(a)):
        quotients = []
        for step in (1e-5, 3e-6):
            moved = np.zeros_like(a)
            moved[i] = step
            quotients.append((value(a + moved) - value(a - moved)) / (2 * step))
        if abs(quotients[0] - quotients[1]) > 1e-6 * max(1.0, abs(quotients[0])):
            continue  # next to a kink
        scale = max(1.0, float(np.abs(found).max()), abs(value(a)))
        assert abs(found[i] - quotients[1]) < 2e-5 * scale, (seed, i)


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed: int) -> None:
    _check_random(seed)


@pytest.mark.wide
@pytest.mark.parametrize("seed", range(100, 700))
def test_many_random_programs(seed: int) -> None:
    _check_random(seed)


# -- Shapes of the result -------------------------------------------------------------------------


def test_the_gradient_of_a_product_is_two_products() -> None:
    A, B = te.placeholder((5, 7), name="A"), te.placeholder((7, 6), name="B")
    C = _product(A, B)
    H = te.placeholder((5, 6), name="H")
    dA, dB = te.gradient(C, [A, B], H)
    assert str(_body(dA)) == "sum(H[i0, j] * B[i1, j], axis=[j])"
    assert str(_body(dB)) == "sum(A[i, i0] * H[i, i1], axis=[i])"


def test_the_gradient_of_a_square_has_one_term() -> None:
    A, B = te.placeholder((5, 7), name="A"), te.placeholder((6, 7), name="B")
    k = te.reduce_axis((0, 7), name="k")
    D = te.compute((5, 6), lambda i, j: te.sum((A[i, k] - B[j, k]) ** 2, axis=k), name="D")
    H = te.placeholder((5, 6), name="H")
    dA, dB = te.gradient(D, [A, B], H)
    assert str(_body(dA)) == "A_grad[i0, i1] * 2.0"
    assert str(_body(dB)) == "B_grad[i0, i1] * -2.0"
    (total,) = (each for each in dB.op.input_tensors)
    assert str(_body(total)) == "sum(H[i, i0] * (A[i, i1] - B[i0, i1]), axis=[i])"


def test_choices_between_equal_adjoints_are_none() -> None:
    X, H = te.placeholder((5,), name="X"), te.placeholder((5,), name="H")
    Y = te.compute((5,), lambda i: te.if_then_else(X[i] > 0.0, X[i] - 1.0, X[i] + 1.0), name="Y")
    (dX,) = te.gradient(Y, [X], H)
    assert str(_body(dX)) == "H[i0]"


def _loops(y: Any, x: Tensor, *inputs: Tensor) -> str:
    """The gradient as plain loops."""
    dy = te.placeholder(y.shape, y.dtype, name="dy")
    (dx,) = te.gradient(y, [x], dy)
    return str(tvm.lower([dx], [x, *inputs, dy, dx]))


def test_the_value_that_a_derivative_is_made_of_is_read() -> None:
    X = te.placeholder((5, 7), name="X")
    mask = te.placeholder((5, 7), "bool", name="mask")
    k = _axis(7)
    power = te.compute(X.shape, lambda i, j: te.if_then_else(mask[i, j], te.exp(X[i, j]), 0.0))
    total = te.compute((5,), lambda i: te.sum(power[i, k], axis=k))
    y = te.compute(X.shape, lambda i, j: power[i, j] / total[i])
    assert _loops(y, X, mask).count("exp(") == 1
    assert _loops(te.compute(X.shape, lambda i, j: te.tanh(X[i, j])), X).count("tanh(") == 1


def test_halves_are_loops_of_their_own() -> None:
    X = te.placeholder((5, 8), name="X")
    turned = te.compute(
        X.shape, lambda i, j: te.if_then_else(j < 4, 2.0 * X[i, j] - X[i, j + 4], X[i, j - 4])
    )
    loops = _loops(turned, X)
    assert "if" not in loops
    assert [line for line in loops.splitlines() if "for i1" in line] == [
        "        for i1 in range(4):", "        for i1 in range(4, 8):"
    ]  # fmt: skip


def test_parts_under_opposite_conditions_that_read() -> None:
    X = te.placeholder((9,), F64, name="X")
    t = te.placeholder((9,), "int32", name="t")
    y = te.compute(
        (9,), lambda i: te.if_then_else(t[i] > 1, X[i] * X[i], te.exp(X[i])) + X[i], name="y"
    )
    dy = te.placeholder((9,), F64, name="dy")
    (dx,) = te.gradient(y, [X], dy)
    x, head = np.random.default_rng(0).standard_normal((2, 9))
    x[4] = np.inf  # the square isn't evaluated where the exponential is
    picks = np.arange(9).astype("int32") % 3
    found = np.empty(9)
    tvm.build([dx], [X, t, dy, dx])(x, picks, head, found)
    np.testing.assert_allclose(found, head * (np.where(picks > 1, 2 * x, np.exp(x)) + 1))


def test_a_jacobian() -> None:
    A = te.placeholder((3, 4), F64, name="A")
    Y = te.compute((3,), lambda i: A[i, 0] * A[i, 1], name="Y")
    (J,) = te.gradient(Y, [A])
    a = np.random.default_rng(0).random((3, 4))
    (found,) = _built([J], [A], [a])
    wanted = np.zeros((3, 3, 4))
    wanted[range(3), range(3), 0], wanted[range(3), range(3), 1] = a[:, 1], a[:, 0]
    np.testing.assert_allclose(found, wanted)


def test_several_outputs_of_symbolic_shapes() -> None:
    n, m = te.var("n"), te.var("m")
    X, W = te.placeholder((n, m), F64, name="X"), te.placeholder((m, n), F64, name="W")
    k = _axis(m)
    Z = te.compute((n, n), lambda i, j: te.sum(X[i, k] * W[k, j], axis=k), name="Z")
    F = te.compute((n * m,), lambda i: X[i // m, i % m] * 2.0, name="F")
    H, G = te.placeholder((n, n), F64, name="H"), te.placeholder((n * m,), F64, name="G")
    made = te.gradient([Z, F], [X, W], head_adjoints=[H, G])
    f = tvm.build(made, [X, W, H, G, *made])
    rng = np.random.default_rng(0)
    x, w, h, g = (rng.random(s) for s in ((4, 5), (5, 4), (4, 4), (20,)))
    dx, dw = np.empty((4, 5)), np.empty((5, 4))
    f(x, w, h, g, dx, dw)
    np.testing.assert_allclose(dx, h @ w.T + 2 * g.reshape(4, 5))
    np.testing.assert_allclose(dw, x.T @ h)


def test_the_jacobian_of_a_gather() -> None:
    X, t = te.placeholder((4,), F64, name="X"), te.placeholder((3,), "int32", name="t")
    (J,) = te.gradient(te.compute((3,), lambda i: X[t[i]] * X[t[i]], name="Y"), [X])
    (found,) = _built([J], [X, t], [np.arange(4.0), np.array([2, 2, 1], "int32")])
    np.testing.assert_array_equal(found, [[0, 0, 4, 0], [0, 0, 4, 0], [0, 2, 0, 0]])


def test_an_argmax_hands_the_adjoint_to_the_chosen_term() -> None:
    def greater(a: Any, b: Any) -> Any:
        first = te.any(a[1] > b[1], te.all(a[1] == b[1], a[0] < b[0]))
        return tvm.Select(first, a[0], b[0]), tvm.Select(first, a[1], b[1])

    argmax = te.comm_reducer(greater, lambda i, v: (te.max_value(i), -te.infinity(v)))
    X, H, k = te.placeholder((2, 4), F64, name="X"), te.placeholder((2,), F64, name="H"), _axis(4)
    _, V = te.compute((2,), lambda i: argmax((k, X[i, k] * 3.0), axis=k), name="V")
    x = np.array([[1.0, 4, 2, 4], [5, 1, 1, 1]])
    (found,) = _built(te.gradient(V, [X], H), [X, H], [x, np.array([1.0, 2])])
    assert found.tolist() == [[0, 3, 0, 0], [6, 0, 0, 0]]


CHOICES: dict[str, Callable[[Any, Any], Any]] = {
    "later": lambda a, b: tvm.Select(a[1] > b[1], a[1], b[1]),
    "earlier": lambda a, b: tvm.Select(a[1] >= b[1], a[1], b[1]),
    "max": lambda a, b: te.max(a[1], b[1]),
    "other": lambda a, b: te.if_then_else(a[1] < b[1], b[1], a[1]),
}


@pytest.mark.parametrize("name", CHOICES)
def test_of_equal_terms_one_has_the_adjoint(name: str) -> None:
    """An argmax whose results are chosen by conditions of their own, which differ at ties."""

    def greater(a: Any, b: Any) -> Any:
        first = te.any(a[1] > b[1], te.all(a[1] == b[1], a[0] < b[0]))
        return tvm.Select(first, a[0], b[0]), CHOICES[name](a, b)

    argmax = te.comm_reducer(greater, lambda i, v: (te.max_value(i), -te.infinity(v)))
    X, H, k = te.placeholder((3, 4), F64, name="X"), te.placeholder((3,), F64, name="H"), _axis(4)
    _, V = te.compute((3,), lambda i: argmax((k, X[i, k] * 3.0), axis=k), name="V")
    x, dX = np.array([[1.0, 4, 2, 4], [5, 5, 5, 5], [1, 2, 3, 4]]), te.placeholder((3, 4), F64)
    (found,) = _built(te.gradient(V, [X], H), [X, H], [x, np.array([1.0, 2, 4])])
    assert found.sum(1).tolist() == [3, 6, 12] and (found[x < x.max(1)[:, None]] == 0).all()
    (tangent,) = _built(te.jvp(V, X, dX), [X, dX], [x, x])
    assert tangent.tolist() == [12, 15, 12]


UNEVEN: dict[str, Callable[[Any, Any], Any]] = {
    "solved": lambda k, i: k + i,
    "clamped": lambda k, i: te.max(te.min(5 - k, 9), 0),
    "product": lambda k, i: k * i % 10,
    "quotient": lambda k, i: k * 2 + i // 3,
}


@pytest.mark.parametrize("length", [lambda i: i + 1, lambda i: te.min(i, 3), lambda i: 5 - i])
@pytest.mark.parametrize("name", UNEVEN)
def test_sums_whose_lengths_differ(name: str, length: Callable[[Any], Any]) -> None:
    """Reads at places that can and can't be solved for the iterations."""

    def element(i: Any) -> Any:
        k = te.reduce_axis((0, length(i)), "k")
        return te.sum(X[UNEVEN[name](k, i)] * X[k], axis=k)

    X, H = te.placeholder((13,), F64, name="X"), te.placeholder((5,), F64, name="H")
    Y = te.compute((5,), element, name="Y")
    x, h, dx = np.random.default_rng(0).random((3, 13))
    (found,) = _built(te.gradient(Y, [X], H), [X, H], [x, h[:5]])
    (y,), (before,) = (_built([Y], [X], [x + t * dx]) for t in (1e-6, -1e-6))
    np.testing.assert_allclose(found @ dx, (y - before) / 2e-6 @ h[:5], rtol=1e-6)


def test_an_axis_may_be_named_before_those_its_range_depends_on() -> None:
    X = te.placeholder((4, 4), F64, name="X")
    k = _axis(4)
    m = te.reduce_axis((0, k + 1), "m")
    x = np.random.default_rng(0).random((4, 4))
    for axes in ([k, m], [m, k]):
        Y = te.compute((), lambda axes=axes: te.sum(X[k, m], axis=axes), name="Y")
        (found,) = _built([Y], [X], [x])
        np.testing.assert_allclose(found, np.tril(x).sum())


@pytest.mark.parametrize("reducer", [te.sum, te.prod, te.max])
def test_the_first_value_of_a_reduction(reducer: Any) -> None:
    X, b, H = (te.placeholder(s, F64, name=n) for s, n in (((2, 3), "X"), ((2,), "b"), ((2,), "H")))
    k = _axis(3)
    Y = te.compute((2,), lambda i: reducer(X[i, k], axis=k, init=b[i]), name="Y")
    x, y, h = np.array([[2.0, 3, 4], [2, 3, 4]]), np.array([5.0, 1]), np.array([1.0, 2])
    leaves = [torch.tensor(x, requires_grad=True), torch.tensor(y, requires_grad=True)]
    both = torch.cat([leaves[0], leaves[1][:, None]], 1)
    folded = {te.sum: both.sum(1), te.prod: both.prod(1), te.max: both.amax(1)}[reducer]
    folded.backward(torch.tensor(h))
    found = _built(te.gradient(Y, [X, b], H), [X, b, H], [x, y, h])
    for mine, leaf in zip(found, leaves, strict=True):
        np.testing.assert_allclose(mine, leaf.grad.numpy())


def test_inputs_that_are_computed_outputs_or_named_twice() -> None:
    X, H = te.placeholder((3,), F64, name="X"), te.placeholder((3,), F64, name="H")
    Y = te.compute((3,), lambda i: X[i] * 2.0, name="Y")
    Z = te.compute((3,), lambda i: Y[i] * Y[i], name="Z")
    made = te.gradient(Z, [X, X, Y, Z], H)
    found = _built(made, [X, H], [np.arange(3.0), np.ones(3)])
    assert [each.tolist() for each in found] == [[0, 8, 16], [0, 8, 16], [0, 4, 8], [1, 1, 1]]


def test_a_sparse_product() -> None:
    pointer, column = (
        te.placeholder((4,), "int32", name="p"),
        te.placeholder((6,), "int32", name="c"),
    )
    v, B = te.placeholder((6,), F64, name="v"), te.placeholder((5, 2), F64, name="B")

    def element(i: Any, j: Any) -> Any:
        k = te.reduce_axis((pointer[i], pointer[i + 1]), "k")
        return te.sum(v[k] * B[column[k], j], axis=k)

    S, H = te.compute((3, 2), element, name="S"), te.placeholder((3, 2), F64, name="H")
    made = te.gradient(S, [v, B], H)
    p, c = np.array([0, 2, 2, 6], "int32"), np.array([1, 4, 0, 0, 3, 2], "int32")
    rng = np.random.default_rng(0)
    x, b, h = rng.random(6), rng.random((5, 2)), rng.random((3, 2))
    dv, db = _built(made, [pointer, column, v, B, H], [p, c, x, b, h])
    rows = np.repeat(range(3), np.diff(p))
    dense = np.zeros((3, 5))
    np.add.at(dense, (rows, c), x)
    np.testing.assert_allclose(db, dense.T @ h)
    np.testing.assert_allclose(dv, (h[rows] * b[c]).sum(1))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_sums_of_16_bit_adjoints_are_wide(dtype: str) -> None:
    A, B = te.placeholder((4, 300), dtype, name="A"), te.placeholder((300,), dtype, name="B")
    Y = te.compute((4, 300), lambda i, j: A[i, j] * B[j], name="Y")
    Z = te.compute((4, 300), lambda i, j: Y[i, j] + B[0], name="Z")
    H = te.placeholder((4, 300), dtype, name="H")
    (dB,) = te.gradient(Z, [B], H)
    assert str(dB.dtype) == dtype
    parts = [each for each in dB.op.input_tensors if isinstance(_body(each), tir.Reduce)]
    assert {str(each.dtype) for each in parts} == {"float32"}


def test_a_sum_of_ones_is_exact_in_float16() -> None:
    X = te.placeholder((1,), "float16", name="X")
    Y = te.compute((5000,), lambda i: X[0] * 1.0, name="Y")
    Z = te.compute((5000,), lambda i: Y[i].astype("float16"), name="Z")
    H = te.placeholder((5000,), "float16", name="H")
    (found,) = _built(
        te.gradient(Z, [X], H), [X, H], [np.ones(1, "float16"), np.ones(5000, "float16")]
    )
    assert found[0] == 5000  # adding ones in float16 stops at 2048


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_the_parts_of_a_line_are_copied(parts: int) -> None:
    """The gradient of a tensor that is cut into parts is one of them at each place, and no sum."""
    X = te.placeholder((4, 7 * parts), "float64", name="X")

    def part(k: int) -> Any:
        return te.compute((4, 7), lambda i, j: X[i, j + 7 * k], name=f"part{k}")

    outputs = [part(k) for k in range(parts)]
    heads = [te.placeholder((4, 7), "float64", name=f"D{k}") for k in range(parts)]
    (dX,) = te.gradient(outputs, [X], heads)
    assert "+" not in str(cast(ComputeOp, dX.op).body[0])
    rng = np.random.default_rng(0)
    given = [rng.random((4, 7)) for _ in heads]
    found = np.full((4, 7 * parts), np.nan)
    tvm.build([dX], [*heads, dX])(*given, found)
    np.testing.assert_array_equal(found, np.concatenate(given, 1))


def test_ties_and_kinks() -> None:
    """The first of equal maxima has all; two equal values share; a constant takes all."""
    X, Y = te.placeholder((3,), F64, name="X"), te.placeholder((3,), F64, name="Y")
    k = _axis(3)
    M = te.compute((1,), lambda i: te.max(X[k], axis=k), name="M")
    T = te.compute((3,), lambda i: te.max(X[i], Y[i]), name="T")
    R = te.compute((3,), lambda i: te.max(X[i], _zero()), name="R")
    A = te.compute((3,), lambda i: te.abs(X[i]), name="A")
    x, y = np.array([2.0, 0.0, 2.0]), np.array([2.0, 1.0, 1.0])
    for tensor, wanted in ((M, [1, 0, 0]), (T, [0.5, 0, 1]), (R, [1, 0, 1]), (A, [1, 0, 1])):
        H = te.placeholder(tensor.shape, F64, name="H")
        made = te.gradient(tensor, [X], head=H)
        (found,) = _built(made, [X, Y, H], [x, y, np.ones([int(n) for n in tensor.shape])])
        assert found.tolist() == wanted


def test_a_product_with_zeros() -> None:
    X, H = te.placeholder((4, 3), F64, name="X"), te.placeholder((4,), F64, name="H")
    k = _axis(3)
    Y = te.compute((4,), lambda i: te.prod(X[i, k], axis=k), name="Y")
    x = np.array([[2.0, 3, 4], [0, 3, 4], [0, 0, 4], [0, 0, 0]])
    (found,) = _built(te.gradient(Y, [X], H), [X, H], [x, np.ones(4)])
    assert found.tolist() == [[12, 8, 6], [12, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_inputs_without_a_part_in_the_output() -> None:
    X, Y = te.placeholder((3,), F64, name="X"), te.placeholder((2, 2), F64, name="Y")
    Z = te.compute((3,), lambda i: te.floor(X[i]) + X[i].astype("int32"), name="Z")
    H = te.placeholder((3,), F64, name="H")
    dX, dY = _built(te.gradient(Z, [X, Y], H), [X, Y, H], [np.ones(3), np.ones((2, 2)), np.ones(3)])
    assert not dX.any() and not dY.any()


def test_adjoints_that_are_one_tensor_are_returned_as_two() -> None:
    A, B, H = (te.placeholder((3,), F64, name=name) for name in "ABH")
    made = te.gradient(A + B, [A, B], H)
    dA, dB = _built(made, [A, B, H], [np.ones(3)] * 2 + [np.arange(3.0)])
    assert dA.tolist() == dB.tolist() == [0, 1, 2]


def test_rows_that_data_choose_are_checked() -> None:
    X, t = te.placeholder((4,), F64, name="X"), te.placeholder((2,), "int32", name="t")
    H = te.placeholder((2,), F64, name="H")
    made = te.gradient(te.compute((2,), lambda i: X[t[i]], name="Y"), [X], H)
    with pytest.raises(IndexError, match=r"X_grad.*must stay in \[0, 4\), got 4"):
        _built(made, [t, H], [np.array([0, 4], "int32"), np.ones(2)])


def test_skipped_rows_are_not_written() -> None:
    X, t = te.placeholder((4,), F64, name="X"), te.placeholder((3,), "int32", name="t")
    H = te.placeholder((3,), F64, name="H")
    Y = te.compute((3,), lambda i: te.if_then_else(t[i] >= 0, X[t[i]], _zero()), name="Y")
    made = te.gradient(Y, [X], H)
    (found,) = _built(made, [t, H], [np.array([2, -1, 2], "int32"), np.array([1.0, 5, 2])])
    assert found.tolist() == [0, 0, 3, 0]


# -- Errors ---------------------------------------------------------------------------------------

A = te.placeholder((4,), name="A")
B = te.compute((4,), lambda i: A[i] * 2.0, name="B")
INTEGERS = te.placeholder((4,), "int32", name="I")
E = te.extern((4,), [A], lambda ins, outs: tir.call_packed("f", ins[0], outs[0]), name="E")
S = te.compute((4,), lambda i: te.nextafter(A[i], A[0]), name="S")
ERRORS: dict[str, tuple[Any, ...]] = {
    r"outputs: expected a tensor, got int 3": (3, [A]),
    r"inputs\[1\]: expected a tensor of floats, got I of int32": (B, [A, INTEGERS]),
    r"outputs: expected a tensor of floats, got I of int32": (INTEGERS, [A]),
    r"inputs: expected at least one tensor, got none": (B, []),
    r"inputs\[0\]: expected a tensor, got int 1": (B, [1]),
    r"head_adjoints: expected the shape of B, \(4,\), .* got \(3,\)": (
        B, [A], te.placeholder((3,)),
    ),
    r"head_adjoints: expected the dtype of B, float32, got float64": (
        B, [A], te.placeholder((4,), F64),
    ),
    r"head_adjoints: expected a tensor, got": (B, [A], 1.0),
    r"expected one for each of 2 outputs, got 1": ([B, A], [A], [B]),
    r"expected one for each of 2 outputs, got none": ([B, A], [A]),
    r"head_adjoints\[1\]: expected the dimensions of the others, \(2,\)": (
        [B, A], [A], [te.placeholder((2, 4)), B],
    ),
    r"E: expected tensors of te.compute or te.scan, found one of ExternOp": (E, [A]),
    r"S: expected operations that have a derivative, found nextafter in nextafter\(A": (S, [A]),
}  # fmt: skip


@pytest.mark.parametrize("text", ERRORS)
def test_errors(text: str) -> None:
    with pytest.raises(tvm.error.CompileError, match="gradient: .*" + text):
        te.gradient(*ERRORS[text])


def test_two_heads() -> None:
    with pytest.raises(tvm.error.CompileError, match="head, its classic name, got both"):
        te.gradient(B, [A], A, head=A)


# -- Windows with strides -------------------------------------------------------------------------


@pytest.mark.covering(2)
@pytest.mark.parametrize(
    ("stride", "dilation", "width", "padding", "size"),
    [(2, 1, 3, 1, 12), (3, 1, 3, 0, 14), (2, 3, 4, 2, 21), (4, 6, 3, 1, 30), (3, 2, 5, 4, 17)],
)
@pytest.mark.parametrize("how", ["padded", "where"])
@pytest.mark.parametrize("scheduled", [False, True])
def test_windows(
    how: str, stride: int, dilation: int, width: int, padding: int, size: int, scheduled: bool
) -> None:
    X, W = te.placeholder((2, 3, size), F64, name="X"), te.placeholder((4, 3, width), F64, name="W")
    c, r = _axis(3, "c"), _axis(width, "r")
    out = (size + 2 * padding - dilation * (width - 1) - 1) // stride + 1
    P = te.compute(
        (2, 3, size + 2 * padding),
        lambda n, c, y: te.if_then_else(
            te.all(y >= padding, y < size + padding), X[n, c, y - padding], _zero()
        ),
        name="P",
    )

    def at(y: Any) -> Any:
        return y * stride + r * dilation

    def of_x(n: Any, f: Any, y: Any) -> Any:
        inside = te.all(at(y) >= padding, at(y) < size + padding)
        return te.sum(X[n, c, at(y) - padding] * W[f, c, r], axis=[c, r], where=inside)

    def of_padded(n: Any, f: Any, y: Any) -> Any:
        return te.sum(P[n, c, at(y)] * W[f, c, r], axis=[c, r])

    Y = te.compute((2, 4, out), of_x if how == "where" else of_padded, name="Y")
    H = te.placeholder(Y.shape, F64, name="H")
    made = te.gradient(Y, [X, W], H)
    rng = np.random.default_rng(size)
    x, w, h = (rng.standard_normal([int(n) for n in each.shape]) for each in (X, W, H))
    dx, dw = np.full_like(x, np.nan), np.full_like(w, np.nan)
    tvm.build(made, [X, W, H, *made], auto_schedule=scheduled)(x, w, h, dx, dw)
    leaves = [torch.tensor(each, requires_grad=True) for each in (x, w)]
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    torch.conv1d(*leaves, **options).backward(torch.tensor(h))
    np.testing.assert_allclose(dx, leaves[0].grad.numpy(), rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(dw, leaves[1].grad.numpy(), rtol=1e-9, atol=1e-10)


def test_the_image_of_a_convolution_with_a_stride_has_no_condition_on_remainders() -> None:
    X, W = te.placeholder((1, 4, 16), F64, name="X"), te.placeholder((6, 4, 4), F64, name="W")
    c, r = _axis(4, "c"), _axis(4, "r")
    Y = te.compute((1, 6, 7), lambda n, f, y: te.sum(X[n, c, y * 2 + r] * W[f, c, r], axis=[c, r]))
    (dX,) = te.gradient(Y, [X], te.placeholder(Y.shape, F64, name="H"))
    assert str(_body(dX)) == (
        "sum(H_padded[i0, f, i2 // 2 - r.step + 1] * W[f, i1, r.step * 2 + i2 % 2], "
        "axis=[f, r.step])"
    )


def test_a_window_as_long_as_the_result_is_divided_into_phases() -> None:
    """The phases leave half of the terms."""
    X, W = te.placeholder((10,), F64, name="X"), te.placeholder((4,), F64, name="W")
    r = _axis(4, "r")
    Y = te.compute((4,), lambda y: te.sum(X[y * 2 + r] * W[r], axis=r))
    (dX,) = te.gradient(Y, [X], te.placeholder(Y.shape, F64, name="H"))
    assert isinstance(dX.op, ComputeOp)
    assert [str(domain_of(axis).extent) for axis in dX.op.reduce_axis] == ["2"]


@pytest.mark.parametrize("form", ["in place", "stage", "two stages"])
def test_zeros_between_the_elements_of_an_image(form: str) -> None:
    """The gradients of a transposed convolution are those of a convolution with a stride: no sum
    has a term for the zeros, and no adjoint of the spread image is computed."""
    X, W = te.placeholder((3, 6), F64, name="X"), te.placeholder((3, 2, 4), F64, name="W")
    c, r = _axis(3, "c"), _axis(4, "r")

    def spread(a: Any, i: Any, low: int) -> Any:
        at = i - low
        inside = te.all(at >= 0, at < 11, at % 2 == 0)
        return te.if_then_else(inside, X[a, at // 2], _zero())

    if form == "two stages":
        D = te.compute((3, 11), lambda a, i: spread(a, i, 0), name="D")
        P = te.compute(
            (3, 15),
            lambda a, i: te.if_then_else(te.all(i >= 2, i < 13), D[a, i - 2], _zero()),
            name="P",
        )
    else:
        P = te.compute((3, 15), lambda a, i: spread(a, i, 2), name="P")

    def read(a: Any, i: Any) -> Any:
        return spread(a, i, 2) if form == "in place" else P[a, i]

    Y = te.compute((2, 12), lambda f, y: te.sum(read(c, y + r) * W[c, f, 3 - r], axis=[c, r]))
    H = te.placeholder(Y.shape, F64, name="H")
    dX, dW = te.gradient(Y, [X, W], H)
    for made in (dX, dW):
        assert "%" not in str(_body(made)) and "where" not in str(_body(made))
    steps = [[int(domain_of(k).extent) for k in cast(Any, d.op).reduce_axis] for d in (dX, dW)]
    assert steps == [[2, 4], [6]]
    rng = np.random.default_rng(0)
    x, w, h = (rng.standard_normal(shape) for shape in ((3, 6), (3, 2, 4), (2, 12)))
    found = np.empty((3, 6)), np.empty((3, 2, 4))
    tvm.build([dX, dW], [X, W, H, dX, dW])(x, w, h, *found)
    leaves = [torch.tensor(each, requires_grad=True) for each in (x, w)]
    made = torch.nn.functional.conv_transpose1d(leaves[0][None], leaves[1], stride=2, padding=1)
    made.backward(torch.tensor(h)[None])
    for one, leaf in zip(found, leaves, strict=True):
        np.testing.assert_allclose(one, leaf.grad.numpy(), rtol=1e-12, atol=1e-12)


def test_terms_under_an_equation_are_one_term() -> None:
    """A condition that fixes an axis leaves no sum over it."""
    X = te.placeholder((5, 7), F64, name="X")
    Y = te.compute((9,), lambda i: te.if_then_else(i % 3 == 1, X[i // 3, i // 3], _zero()))
    H = te.placeholder((9,), F64, name="H")
    (dX,) = te.gradient(Y, [X], H)
    assert not cast(Any, dX.op).reduce_axis
    h, found = np.arange(1.0, 10.0), np.full((5, 7), np.nan)
    tvm.build([dX], [H, dX])(h, found)
    expected = np.zeros((5, 7))
    expected[range(3), range(3)] = h[1::3]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shift", [0, 1, 2, 4])
@pytest.mark.parametrize("scheduled", [False, True])
def test_places_that_no_term_reads_are_not_summed(shift: int, scheduled: bool) -> None:
    """Of an image read at every third place, every third place has a sum."""
    X, W = te.placeholder((20, 5), F64, name="X"), te.placeholder((7, 5), F64, name="W")
    c = _axis(5, "c")
    Y = te.compute((6, 7), lambda y, f: te.sum(X[y * 3 + shift, c] * W[f, c], axis=c), name="Y")
    H = te.placeholder(Y.shape, F64, name="H")
    (dX,) = te.gradient(Y, [X], H)
    (inner,) = dX.op.input_tensors
    assert [int(extent) for extent in inner.shape] == [-(-(20 - shift % 3) // 3), 5]
    rng = np.random.default_rng(shift)
    w, h = rng.standard_normal((7, 5)), rng.standard_normal((6, 7))
    expected, found = np.zeros((20, 5)), np.full((20, 5), np.nan)
    expected[shift : shift + 18 : 3] = h @ w
    tvm.build([dX], [W, H, dX], auto_schedule=scheduled)(w, h, found)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_symbolic_places_that_no_term_reads() -> None:
    n = te.var("n")
    X, W = te.placeholder((n * 3, 5), F64, name="X"), te.placeholder((7, 5), F64, name="W")
    c = _axis(5, "c")
    Y = te.compute((n, 7), lambda y, f: te.sum(X[y * 3, c] * W[f, c], axis=c), name="Y")
    H = te.placeholder(Y.shape, F64, name="H")
    (dX,) = te.gradient(Y, [X], H)
    f = tvm.build([dX], [W, H, dX])
    rng = np.random.default_rng(0)
    for size in (0, 1, 4):
        w, h = rng.standard_normal((7, 5)), rng.standard_normal((size, 7))
        expected, found = np.zeros((3 * size, 5)), np.full((3 * size, 5), np.nan)
        expected[::3] = h @ w
        f(w, h, found)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


# -- Scans ----------------------------------------------------------------------------------------

T, D = 6, 4


def _scan(update: Callable[..., Any], given: int = 1) -> Any:
    """A program of the inputs, the first states and weights, with one state."""

    def program(X: Tensor, first: Tensor, w: Tensor) -> Any:
        s = te.placeholder((T, D), F64, name="s")
        init = te.compute((given, D), lambda t, i: first[t, i] * 2.0, name="init")
        return te.scan(init, update(s, X, w), s, name="H")

    return program


def _recurrent(s: Tensor, X: Tensor, w: Tensor) -> Any:
    k = _axis(D)
    P = te.compute((T, D), lambda t, i: te.sum(s[t - 1, k] * w[k, i], axis=k), name="P")
    return te.compute((T, D), lambda t, i: te.tanh(P[t, i] + X[t, i]), name="step")


def _older(s: Tensor, X: Tensor, w: Tensor) -> Any:
    return te.compute(
        (T, D), lambda t, i: te.sin(s[t - 1, i]) * s[t - 3, i] * w[0, i] + X[t - 2, i], name="step"
    )


def _neighbours(s: Tensor, X: Tensor, w: Tensor) -> Any:
    return te.compute(
        (T, D), lambda t, i: s[t - 1, D - 1 - i] * w[1, i] + te.max(X[t, i], s[t - 1, 0])
    )


def _shifted(s: Tensor, X: Tensor, w: Tensor) -> Any:
    """Steps read the element of a tensor without axes."""
    norm = te.compute((), lambda: te.exp(w[0, 1]), name="norm")
    return te.compute((T, D), lambda t, i: te.sin(s[t - 1, i]) * norm() + X[t, i])


def _two_states(X: Tensor, first: Tensor, w: Tensor) -> Any:
    """The second state reads the first one's new value and a gate."""
    a, b = te.placeholder((T, D), F64, name="a"), te.placeholder((T, D), F64, name="b")
    k = _axis(D)
    top = te.compute((T,), lambda t: te.max(a[t - 1, k] * X[t, k], axis=k), name="top")
    gate = te.compute((T, D), lambda t, i: te.sigmoid(b[t - 1, i] * w[0, i] + X[t, i]), name="gate")
    new_a = te.compute((T, D), lambda t, i: gate[t, i] * a[t - 1, i] + top[t], name="new_a")
    new_b = te.compute((T, D), lambda t, i: te.tanh(new_a[t, i]) * gate[t, i], name="new_b")
    begin = [
        te.compute((1, D), lambda t, i: first[0, i], name="begin_a"),
        te.compute((1, D), lambda t, i: first[0, i] * w[1, i], name="begin_b"),
    ]
    _, B = te.scan(begin, [new_a, new_b], [a, b], name="H")
    return B


def _stacked(step: Callable[..., Any], given: int = 1) -> Any:
    def run(x: Any, first: Any, w: Any) -> Any:
        states = [2 * each for each in first]
        for t in range(given, T):
            states.append(step(states, x, w, t))
        return torch.stack(states)

    return run


def _two_of_torch(x: Any, first: Any, w: Any) -> Any:
    a, b = first[0], [first[0] * w[1]]
    for t in range(1, T):
        gate = torch.sigmoid(b[-1] * w[0] + x[t])
        a = gate * a + (a * x[t]).max()
        b.append(torch.tanh(a) * gate)
    return torch.stack(b)


SCANS: dict[str, tuple[Any, int, Any]] = {
    "recurrent": (
        _scan(_recurrent), 1, _stacked(lambda s, x, w, t: torch.tanh(s[-1] @ w + x[t]))
    ),
    "older states": (
        _scan(_older, 3), 3,
        _stacked(lambda s, x, w, t: torch.sin(s[-1]) * s[-3] * w[0] + x[t - 2], 3),
    ),
    "neighbours": (
        _scan(_neighbours), 1,
        _stacked(lambda s, x, w, t: s[-1].flip(0) * w[1] + torch.maximum(x[t], s[-1][0])),
    ),
    "a number": (
        _scan(_shifted), 1,
        _stacked(lambda s, x, w, t: torch.sin(s[-1]) * torch.exp(w[0, 1]) + x[t]),
    ),
    "two states": (_two_states, 1, _two_of_torch),
}  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("name", SCANS)
def test_scans(name: str, scheduled: bool) -> None:
    program, given, theirs = SCANS[name]
    shapes = [(T, D), (given, D), (D, D)]
    inputs = [te.placeholder(s, F64, name=n) for s, n in zip(shapes, "XFw", strict=True)]
    Y, H = program(*inputs), te.placeholder((T, D), F64, name="G")
    made = te.gradient(Y, inputs, H)
    rng = np.random.default_rng(0)
    arrays, head = [rng.standard_normal(s) for s in shapes], rng.standard_normal((T, D))
    found = [np.full(s, np.nan) for s in shapes]
    tvm.build(made, [*inputs, H, *made], auto_schedule=scheduled)(*arrays, head, *found)
    leaves = [torch.tensor(each, requires_grad=True) for each in arrays]
    theirs(*leaves).backward(torch.tensor(head))
    for mine, leaf in zip(found, leaves, strict=True):
        np.testing.assert_allclose(mine, leaf.grad.numpy(), rtol=1e-9, atol=1e-11)


def test_the_jacobian_of_a_scan() -> None:
    inputs = [te.placeholder(s, F64, name=n) for s, n in (((T, D), "X"), ((1, D), "F"))]
    w = te.placeholder((D, D), F64, name="w")
    made = te.gradient(SCANS["recurrent"][0](*inputs, w), [*inputs, w])
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([int(n) for n in each.shape]) for each in (*inputs, w)]
    found = _built(made, [*inputs, w], arrays)
    known = torch.autograd.functional.jacobian(
        SCANS["recurrent"][2], tuple(map(torch.tensor, arrays))
    )
    for mine, theirs in zip(found, known, strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-9, atol=1e-12)


def test_scans_without_a_derivative() -> None:
    X, first = te.placeholder((T, D), F64, name="X"), te.placeholder((2, D), F64, name="F")
    w, s = te.placeholder((D, D), F64, name="w"), te.placeholder((T, D), F64, name="s")
    G = te.placeholder((T, D), F64, name="G")
    k = _axis(D)
    P = te.compute((T, D), lambda t, i: te.sum(s[t - 2, k] * w[k, i], axis=k), name="P")
    step = te.compute((T, D), lambda t, i: te.sin(P[t, i]) * P[t, 0] + X[t, i], name="step")
    init = te.compute((2, D), lambda t, i: first[t, i], name="init")
    H = te.scan(init, step, s, name="H")
    with pytest.raises(tvm.error.CompileError, match="H: expected only the update to read states"):
        te.gradient(H, [first], G)
    with pytest.raises(tvm.error.CompileError, match="P: expected inputs outside of the scan H"):
        te.gradient(H, [P], G)


# -- Second derivatives ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["softmax", "product", "gather", "convolution (2, 1, 1)"])
def test_second_derivatives(name: str) -> None:
    program, shapes, theirs, data = PROGRAMS[name]
    rng = np.random.default_rng(1)
    inputs = [te.placeholder(shape, F64, name=f"X{i}") for i, shape in enumerate(shapes)]
    extra = [te.placeholder(each.shape, str(each.dtype), name="t") for each in data]
    Y = program(*inputs, *extra)
    square = te.compute(Y.shape, lambda *i: Y(*i) * Y(*i) * Y(*i), name="square")
    H = te.placeholder(Y.shape, F64, name="H")
    G = [te.placeholder(shape, F64, name=f"G{i}") for i, shape in enumerate(shapes)]
    made = te.gradient(te.gradient(square, inputs, H), inputs, G)
    arrays, seconds = ([rng.standard_normal(shape) for shape in shapes] for _ in range(2))
    head = rng.standard_normal([int(n) for n in Y.shape])
    found = _built(made, [*inputs, *extra, H, *G], [*arrays, *data, head, *seconds])
    leaves = [torch.tensor(each, requires_grad=True) for each in arrays]
    cube = theirs(*leaves, *map(torch.tensor, data)) ** 3
    first = torch.autograd.grad(cube, leaves, torch.tensor(head), create_graph=True)
    wanted = torch.autograd.grad(first, leaves, [*map(torch.tensor, seconds)])
    for mine, theirs_ in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs_.numpy(), rtol=1e-9, atol=1e-10)


# -- Forward mode ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_tangents_are_those_of_torch(name: str) -> None:
    """By the Jacobian: torch has no forward mode for some of these."""
    program, shapes, theirs, data = PROGRAMS[name]
    rng = np.random.default_rng(1)
    inputs = [te.placeholder(shape, F64, name=f"X{i}") for i, shape in enumerate(shapes)]
    tangents = [te.placeholder(shape, F64, name=f"T{i}") for i, shape in enumerate(shapes)]
    extra = [te.placeholder(each.shape, str(each.dtype), name="t") for each in data]
    arrays = [rng.standard_normal(shape) for shape in shapes]
    moves = [rng.standard_normal(shape) for shape in shapes]
    made = te.jvp(program(*inputs, *extra), inputs, tangents)
    (found,) = _built(made, [*inputs, *extra, *tangents], [*arrays, *data, *moves])
    more = list(map(torch.tensor, data))
    known = torch.autograd.functional.jacobian(
        lambda *x: theirs(*x, *more), tuple(map(torch.tensor, arrays))
    )
    want = sum(
        np.tensordot(each.numpy(), move, move.ndim) for each, move in zip(known, moves, strict=True)
    )
    np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("tangents", "message"),
    [
        ([], "jvp: tangents: expected at least one tensor"),
        ([te.placeholder((5,), F64)] * 2, "expected one for each of 1 inputs, got 2"),
        ([te.placeholder((4,), F64)], r"tangents\[0\]: expected the shape .*\(5,\).*got \(4,\)"),
        ([te.placeholder((5,), "float32")], "and float64, got .*float32"),
    ],
)
def test_errors_of_tangents(tangents: Any, message: str) -> None:
    X = te.placeholder((5,), F64, name="X")
    with pytest.raises(tvm.CompileError, match=message):
        te.jvp(te.compute((5,), lambda i: X[i] * 2.0), X, tangents)
