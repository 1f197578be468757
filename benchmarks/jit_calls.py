"""What a call of an operator of `minitvm.jit` costs, beside the framework's `empty` and peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import numpy as np

import minitvm
from benchmarks import operators, peers
from benchmarks.measure import OURS, Row, Settings, Timer, interleaved, statement
from minitvm import te

_WHAT = "3 elements of float32 a tensor; every figure has some 10 ns of Python's loop in it"
_X = np.array([1, 2, 3], np.float32)
_FIVE = np.arange(5, dtype=np.float32)
_Vector = Annotated[te.Tensor, "n"]


@minitvm.jit
def _add(x: _Vector, y: _Vector) -> Any:
    return te.compute(x.shape, lambda i: x[i] + y[i])


@minitvm.jit
def _scaled(x: _Vector, scale: float = 1.0, shift: float = 0.0) -> Any:
    return te.compute(x.shape, lambda i: x[i] * scale + shift)


class _Scaling:
    @minitvm.jit(static="self")
    def apply(self, x: _Vector) -> Any:
        return te.compute(x.shape, lambda i: x[i] * 2.0)


def rows(settings: Settings) -> Iterator[Row]:
    """Calls with arrays of numpy, torch and JAX, recorded by torch, and of torch's operators."""
    yield from _of_numpy(settings)
    if (torch := peers.peer("torch")) is not None:
        yield from _of_torch(torch, settings)
        yield from _of_torch_operators(torch, settings)
    if (jax := peers.peer("jax")) is not None:
        yield from _of_jax(jax, settings)


def _row(name: str, contenders: Mapping[str, Timer], settings: Settings, what: str = "") -> Row:
    return Row(name, what or _WHAT, interleaved(contenders, settings), {}, None)


def _seen(text: str, expected: Any, **names: Any) -> Timer:
    """Times an expression that has been seen to have a value."""
    for _ in range(3):  # the first calls build, and compiled code learns
        found = eval(text, dict(names))
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6)
    return statement(text, **names)


def _of_numpy(settings: Settings) -> Iterator[Row]:
    x, five = _X, _FIVE
    empty = {"np.empty": statement("f(3, d)", f=np.empty, d=np.float32)}
    numba, jax = peers.peer("numba"), peers.peer("jax")
    add: dict[str, Callable[..., Any]] = {OURS: _add}
    scaled: dict[str, Callable[..., Any]] = {OURS: _scaled}
    if numba is not None:
        add["numba"] = numba.njit(lambda x, y: x + y)
        scaled["numba"] = numba.njit(_python_scaled)
    sums = {name: _seen("f(x, x)", 2 * x, f=f, x=x) for name, f in add.items()}
    if jax is not None:
        theirs = {"f": jax.jit(lambda x, y: x + y), "x": jax.numpy.asarray(x)}
        sums["jax.jit"] = _seen("f(x, x).block_until_ready()", 2 * x, **theirs)
    yield _row("jit, numpy arrays", {**sums, "np.add": _numpy_add(x), **empty}, settings)
    turns = {name: _seen("f(x, x) is f(y, y)", False, f=f, x=x, y=five) for name, f in add.items()}
    yield _row(
        "jit, two builds in turn", {**turns, **empty}, settings, f"3 and 5 elements; {_WHAT}"
    )
    named = {name: _seen("f(x, scale=2.0)", 2 * x, f=f, x=x) for name, f in scaled.items()}
    yield _row("jit, a number by name and a default", {**named, **empty}, settings)
    out = _seen("f(x, x, out=z)", 2 * x, f=_add, x=x, z=np.empty_like(x))
    yield _row("jit, out=", {OURS: out, "np.add(out=)": _numpy_add(x, ", out=z")}, settings)
    method = _seen("o.apply(x)", 2 * x, o=_Scaling(), x=x)
    yield _row("jit, a method", {OURS: method, **empty}, settings)


def _python_scaled(x: Any, scale: float = 1.0, shift: float = 0.0) -> Any:
    return x * np.float32(scale) + np.float32(shift)


def _numpy_add(x: Any, more: str = "") -> Timer:
    return _seen(f"f(x, x{more})", 2 * x, f=np.add, x=x, z=np.empty_like(x))


def _of_torch(torch: Any, settings: Settings) -> Iterator[Row]:
    x = torch.from_numpy(_X.copy())
    empty = {
        "torch.empty": statement("f(3)", f=torch.empty),
        "torch.empty(shape)": statement("f(s)", f=torch.empty, s=(3,)),
    }
    for name, text in (("tensors", "f(x, x)"), ("tensors, out=", "f(x, x, out=z)")):
        contenders = {
            label: _seen(text, 2 * _X, f=f, x=x, z=torch.empty(3))
            for label, f in ((OURS, _add), ("torch.add", torch.add))
        }
        yield _row(f"jit, torch {name}", {**contenders, **empty}, settings)
    leaf = x.clone().requires_grad_()
    yield _row(
        "jit, recorded by torch",
        {
            OURS: _recorded("f(x, x)", f=_add, x=leaf),
            "torch.add": _recorded("f(x, x)", f=torch.add, x=leaf),
            "autograd.Function": _recorded("f(x, x)", f=_by_hand(torch), x=leaf),
        },
        settings,
        f"the forward call alone; the function by hand calls returning(); {_WHAT}",
    )


def _of_torch_operators(torch: Any, settings: Settings) -> Iterator[Row]:
    """A built function as an operator of torch, which a graph of torch.compile holds, too."""
    x, ours = torch.from_numpy(_X.copy()), _add.build_for("float32[3]", "float32[3]")
    operator: Any = ours.torch_op("benchmarks::add")
    by_hand = torch.library.custom_op("benchmarks::by_hand", mutates_args=())(_by_torch(torch))
    by_hand.register_fake(lambda x, y: torch.empty_like(x))
    theirs = {"torch.add": torch.add, "custom_op by hand": by_hand}
    functions = {OURS: operator, "by its overload": operator.overload, **theirs}
    empty = {"torch.empty": statement("f(3)", f=torch.empty)}
    called = {name: _seen("f(x, x)", 2 * _X, f=f, x=x) for name, f in functions.items()}
    called["the function with its output"] = _seen_writing(ours, x, torch.empty(3))
    yield _row("torch operator", {**called, **empty}, settings)
    if settings.least and not operators.no_compiler():
        functions = {OURS: _add, "the operator": operator, **theirs}
        compiled = {name: operators.compiled(torch, f, 1) for name, f in functions.items()}
        found = {name: _seen("f(x, x)", 2 * _X, f=f, x=x) for name, f in compiled.items()}
        yield _row("jit, in a program of torch.compile", found, settings)


def _by_torch(torch: Any) -> Callable[..., Any]:
    def add(x: Any, y: Any) -> Any:
        return torch.add(x, y)

    add.__annotations__ = dict.fromkeys(("x", "y", "return"), torch.Tensor)
    return add


def _seen_writing(function: Any, x: Any, z: Any) -> Timer:
    function(x, x, z)
    np.testing.assert_array_equal(z.numpy(), 2 * _X)
    return statement("f(x, x, z)", f=function.entry_func, x=x, z=z)


def _of_jax(jax: Any, settings: Settings) -> Iterator[Row]:
    x = jax.numpy.asarray(_X)
    functions = {OURS: _add, "jax": lambda x, y: x + y, "jax.jit": jax.jit(lambda x, y: x + y)}
    for _ in range(50):  # calls that are repeated are made by XLA
        _add(x, x)
    text = "f(x, x).block_until_ready()"
    found = {name: _seen(text, 2 * _X, f=f, x=x) for name, f in functions.items()}
    empty = {"jnp.empty": statement("f(3).block_until_ready()", f=jax.numpy.empty)}
    yield _row("jit, arrays of JAX", {**found, **empty}, settings)


def _recorded(text: str, **names: Any) -> Timer:
    for _ in range(3):
        found = eval(text, dict(names))
    np.testing.assert_array_equal(found.detach().numpy(), 2 * _X)
    assert found.requires_grad
    return statement(text, **names)


def _by_hand(torch: Any) -> Callable[..., Any]:
    """The operator as a user writes it for autograd."""
    returning = _add.build_for("float32[3]", "float32[3]").returning()

    class Addition(torch.autograd.Function):  # type: ignore[misc]  # of Any
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.save_for_backward(x, y)
            return returning(x, y)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient, gradient

    made: Callable[..., Any] = Addition.apply
    return made
