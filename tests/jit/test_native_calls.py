"""Calls of operators that compiled code makes: the build that it chooses, and what it leaves."""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Annotated, Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import minitvm as tvm
from minitvm import te
from minitvm.operators import jax_calls
from minitvm.operators.operator import Operator
from minitvm.runtime.call_path import call_path
from tests.forks import assert_in_child

Matrix = Annotated[te.Tensor, "m n"]
Vector = Annotated[te.Tensor, "n"]

pytestmark = pytest.mark.skipif(call_path() is None, reason="Python code makes all calls here")


@pytest.fixture
def slow_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the operators whose calls Python code makes."""
    made: list[str] = []
    original = Operator._called

    def called(self: Operator, *args: Any) -> Any:
        made.append(self.name)
        return original(self, *args)

    monkeypatch.setattr(Operator, "_called", called)
    return made


@contextmanager
def by_python_code_alone() -> Iterator[None]:
    """Operators learn nothing for compiled code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Operator, "_learn", lambda *_: True)
        yield


def _random(*shape: int, dtype: str = "float32") -> Any:
    return np.asarray(np.random.default_rng(0).standard_normal(shape), dtype)


def scaled_program(x: Matrix, w: Vector, scale: float = 2.0, *, shift: int = 0) -> Any:
    return te.compute(x.shape, lambda i, j: x[i, j] * w[j] * scale + shift)


def _expected(x: Any, w: Any, scale: float = 2.0, shift: int = 0) -> Any:
    return np.asarray(x) * np.asarray(w) * np.float32(scale) + shift


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy, tvm.nd.array])
def test_known_calls_are_made_by_compiled_code(
    convert: Callable[[Any], Any], slow_calls: list[str]
) -> None:
    scaled = tvm.jit(scaled_program)
    x, w = convert(_random(3, 4)), convert(_random(4))
    calls: list[Callable[[], Any]] = [
        lambda: scaled(x, w),
        lambda: scaled(x, w, 0.5),
        lambda: scaled(x, w, scale=0.5),
        lambda: scaled(w=w, x=x, shift=3, scale=1.5),
        lambda: scaled(x, w, shift=-1, out=None),
    ]
    expected = [
        _expected(x, w),
        _expected(x, w, 0.5),
        _expected(x, w, 0.5),
        _expected(x, w, 1.5, 3),
        _expected(x, w, shift=-1),
    ]
    scaled(x, w)
    scaled(x, w)  # the second time at the latest: types are met by the first call
    del slow_calls[:]
    for call, value in zip(calls, expected, strict=True):
        made = call()
        assert type(made) is type(x)
        np.testing.assert_allclose(np.asarray(made), value, rtol=1e-6)
    assert slow_calls == []


def test_builds_alternate(slow_calls: list[str]) -> None:
    scaled = tvm.jit(scaled_program)
    shapes = [(3, 4), (0, 4), (5, 1), (5, 4), (1, 1), (6, 7), (2, 7)]
    arrays = [
        (_random(*shape, dtype=dtype), _random(shape[1], dtype=dtype))
        for shape in shapes
        for dtype in ("float32", "float64")
    ]
    tensors = [(torch.from_numpy(x), torch.from_numpy(w)) for x, w in arrays]
    for turn in range(3):
        del slow_calls[:]
        for x, w in (*arrays, *tensors):
            np.testing.assert_allclose(scaled(x, w), _expected(x, w), rtol=1e-6)
        assert turn < 2 or slow_calls == []


def test_the_same_builds_as_by_python_code() -> None:
    """Random calls, of shapes that match letters, broadcast, are equal or not, or are known."""
    random = np.random.default_rng(1)

    def program(x: Any, y: Any, z: Annotated[te.Tensor, "a 2*a"]) -> Any:
        extra = 1.0 if x.shape[0] == x.shape[1] else 2.0
        both = x + y
        s = te.compute((), lambda: z[0, 1] * extra)
        return te.compute(both.shape, lambda i, j: both[i, j] + s())

    calls = []
    for _ in range(120):
        n, m, a = (int(each) for each in random.integers(1, 4, 3))
        rows = n if random.integers(2) else 1
        calls.append((_random(n, m), _random(rows, m), _random(a, 2 * a)))
    native, slow = tvm.jit(program), tvm.jit(program)
    with pytest.warns(tvm.PerformanceWarning):
        for arrays in calls:
            made = native(*arrays)
            with by_python_code_alone():
                expected = slow(*arrays)
            np.testing.assert_array_equal(made, expected)
            assert [dict(each.fixed) for each in native.specialisations] == [
                dict(each.fixed) for each in slow.specialisations
            ]


def test_a_build_with_more_constants_is_preferred_once_it_is_made() -> None:
    @tvm.jit(symbolic="n")
    def double(x: Vector) -> Any:
        return te.compute(x.shape, lambda i: x[i] * 2.0)

    @tvm.jit
    def halves(x: Vector) -> Any:
        return te.compute(x.shape, lambda i: x[i] / 2.0)

    for n in (3, 4, 5, 5, 5):
        halves(_random(n)), double(_random(n))
    assert [len(each.fixed) for each in halves.specialisations] == [1, 0]
    halves.build_for("float32[5]")
    x = _random(5)
    np.testing.assert_array_equal(halves(x), x / 2)
    table = halves._table
    assert table is not None
    assert halves.specialisations[-1].returning in [each.returning for each in table.cases]
    assert halves.specialisations[1].returning not in [each.returning for each in table.cases]
    assert len(double.specialisations) == 1


class Colour(Enum):
    RED = 1
    BLUE = 2


class Valued:
    """Equal to those of the same value, and may change."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Valued) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)


def test_static_arguments_are_compared(slow_calls: list[str]) -> None:
    seen = []

    @tvm.jit(static="value")
    def counted(x: Vector, value: Any = None) -> Any:
        seen.append(value)
        return te.compute(x.shape, lambda i: x[i] + float(len(seen)))

    x = np.zeros(3, "float32")
    values: list[Any] = [
        None, 0, False, 0.0, -0.0, "", "wörd", b"", 1, True, 1.0, 10**40, 10**40 + 1,
        float("nan"), (), (1, 2), (True, 2), (1, 2.0), ((1,), "a"), ((1,), "b"), Colour.RED,
        Colour.BLUE, int, float, _expected, Valued(1.0),
    ]  # fmt: skip
    first = [float(counted(x, value)[0]) for value in values]
    assert first == list(range(1, len(values) + 1))
    del slow_calls[:]
    again = [float(counted(x, value)[0]) for value in values]
    assert again == first and len(seen) == len(values)
    assert slow_calls == ["counted"]  # of the last, which may change
    # Equal values that are other objects.
    text, number, pair = "".join(["wö", "rd"]), 10**39 * 10, tuple(map(int, "12"))
    del slow_calls[:]
    for value in (text, number, pair):
        assert counted(x, value)[0] == first[values.index(value)]
    assert slow_calls == []
    changed = values[-1]
    changed.value = 2.0
    assert counted(x, changed)[0] == len(values) + 1


def test_more_builds_than_there_is_room_for() -> None:
    @tvm.jit(static="k")
    def plus(x: Vector, k: int) -> Any:
        return te.compute(x.shape, lambda i: x[i] + float(k))

    x = np.zeros(2, "float32")
    for _ in range(2):
        for k in range(40):
            assert plus(x, k).tolist() == [k, k]


def test_several_outputs_and_out(slow_calls: list[str]) -> None:
    @tvm.jit(static="how")
    def parts(how: str, x: Vector, y: Vector | None = None) -> Any:
        total = te.compute(x.shape, lambda i: x[i] if y is None else x[i] + y[i])
        return total, te.compute((2, *x.shape), lambda _, i: x[i])

    x, y = _random(5), _random(10)[::2]
    for _ in range(2):
        del slow_calls[:]
        total, twice = parts("a", x, y)
        np.testing.assert_array_equal(total, x + y)
        np.testing.assert_array_equal(twice, [x, x])
        np.testing.assert_array_equal(parts("a", x)[0], x)
        out = (np.empty(5, "float32"), np.empty((2, 10), "float32")[:, ::2])
        made = parts("a", x, y, out=out)
        assert made[0] is out[0] and made[1] is out[1]
        np.testing.assert_array_equal(out[0], x + y)
        np.testing.assert_array_equal(out[1], [x, x])
        parts("a", x, out=(None, out[1]))
    assert slow_calls == ["parts"]  # of the None
    for wrong, error, message in [
        (torch.empty(5), TypeError, "out: expected an array of numpy, .*got one of torch"),
        ((out[0],), TypeError, "expected .*2"),
        ((out[0], out[0]), ValueError, "expected ndim == 2, got 1"),
        ((x, out[1]), ValueError, "shares no memory|overlap"),
    ]:
        with pytest.raises(error, match=message):
            parts("a", x, y, out=wrong)


ODD_CALLS: list[tuple[Callable[..., Any], type[Exception], str]] = [
    (lambda f, x, w: f(x), TypeError, r"argument 1 'w': .* of shape \(n,\), got none"),
    (lambda f, x, w: f(x, w, 1.0, 2), TypeError, "at most 3 arguments by position"),
    (lambda f, x, w: f(x, w, w=w), TypeError, "given by position and by name"),
    (lambda f, x, w: f(x, w, scales=1), TypeError, "expected arguments among .*'scales'"),
    (lambda f, x, w: f(x, w, True), TypeError, "expected a number, got bool"),
    (lambda f, x, w: f(x, w, shift=1.5), TypeError, "expected an int, got the float"),
    (lambda f, x, w: f(x, w[:3]), ValueError, r"with n == 4 \(as argument 0 'x' has it\), got"),
    (lambda f, x, w: f(x[0], w), ValueError, r"expected shape \(m, n\), got"),
    (lambda f, x, w: f(x, torch.from_numpy(w)), TypeError, "expected an array of numpy, as"),
    (lambda f, x, w: f(np.ma.masked_array(x), w), TypeError, "without a mask"),
    (lambda f, x, w: f(x, w, shift=2**40), ValueError, "expected a value of dtype int32, got 109"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), ODD_CALLS)
def test_errors_are_those_of_python_code(
    call: Callable[..., Any], error: Any, message: str
) -> None:
    scaled = tvm.jit(scaled_program)
    x, w = _random(3, 4), _random(4)
    scaled(x, w), scaled(x, w)
    with pytest.raises(error, match=message) as found:
        call(scaled, x, w)
    slow = tvm.jit(scaled_program, name="scaled_program")
    with by_python_code_alone(), pytest.raises(error) as expected:
        call(slow, x, w)
    assert str(found.value) == str(expected.value)


def test_numbers_of_other_types() -> None:
    scaled = tvm.jit(scaled_program)
    x, w = _random(3, 4), _random(4)
    for scale in (2.5, 3, np.float32(0.5), np.int64(4), -0.0, float("inf"), 2.5):
        np.testing.assert_array_equal(scaled(x, w, scale), _expected(x, w, scale))

    @tvm.jit
    def plus(x: Vector, y: Any) -> Any:
        return x + y

    for _ in range(2):
        for y in (1, 1.5, np.float32(2), np.ones(4, "float32"), np.ones((), "float64")):
            expected = (w + np.asarray(y, "float64")).astype("float32")
            np.testing.assert_allclose(plus(w, y), expected, rtol=1e-6)


# ---- Calls that mean something else --------------------------------------------------------------


class Marked(torch.Tensor):  # type: ignore[misc]  # of Any
    """A class of tensors of its own."""


def test_torch_sees_what_it_has_to_see() -> None:
    @tvm.jit
    def square(x: Vector) -> Any:
        return te.compute(x.shape, lambda i: x[i] * x[i])

    x = torch.tensor([1.0, 2.0, 3.0])
    leaf = x.clone().requires_grad_()
    for _ in range(3):
        assert not square(x).requires_grad
        y = square(leaf)
        assert y.requires_grad and torch.autograd.grad(y.sum(), leaf)[0].tolist() == [2, 4, 6]
        with torch.no_grad():
            assert not square(leaf).requires_grad
        with torch.inference_mode():
            assert square(x).is_inference()
        assert square(torch.nn.Parameter(x)).requires_grad
        assert torch.vmap(square)(torch.ones(2, 3)).shape == (2, 3)
        assert torch.func.grad(lambda v: square(v).sum())(x).tolist() == [2, 4, 6]
        assert type(square(x.as_subclass(Marked))) is Marked
        with pytest.raises(BufferError, match="require"):
            square(leaf, out=torch.empty(3))
        with torch.autocast("cpu", torch.bfloat16):
            assert square(leaf).dtype == torch.float32


def test_fake_tensors_and_programs_of_torch() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    @tvm.jit
    def square(x: Vector) -> Any:
        return te.compute(x.shape, lambda i: x[i] * x[i])

    x = torch.tensor([1.0, 2.0, 3.0])
    square(x), square(x)
    with FakeTensorMode() as mode:
        assert type(square(mode.from_tensor(x))).__name__ == "FakeTensor"
    compiled = torch.compile(lambda v: square(v) + 1, fullgraph=True, backend="aot_eager")
    assert compiled(x).tolist() == [2, 5, 10]

    def broken(v: torch.Tensor) -> Any:
        torch._dynamo.graph_break()
        return square(v)

    leaf = x.clone().requires_grad_()
    assert torch.compile(broken, backend="aot_eager")(leaf).tolist() == [1, 4, 9]
    assert torch.compile(broken, backend="aot_eager")(x).tolist() == [1, 4, 9]


@pytest.mark.parametrize("mode", ["make_fx", "before dispatch", "jit.trace"])
def test_traces_by_operators_that_run(mode: str) -> None:
    """The tensors have data, so that a result which isn't an operator's would be a constant."""
    from torch.fx.experimental.proxy_tensor import make_fx

    @tvm.jit
    def twice(x: Annotated[te.Tensor, "m n"]) -> Any:
        return te.compute(x.shape, lambda i, j: x[i, j] * 2.0)

    for _ in range(2):  # the second time by compiled code
        x = torch.rand(2, 3)
        if mode == "jit.trace":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # jit.trace is deprecated
                made: Any = torch.jit.trace(twice, (x,))
        else:
            made = make_fx(lambda x: twice(x), pre_dispatch=mode != "make_fx")(x)
        y = torch.rand(2, 3)
        assert torch.equal(made(y), y * 2)
        assert torch.equal(twice(y), y * 2)


def test_sizes_that_jax_exports_as_symbols() -> None:
    @tvm.jit
    def norms(x: Annotated[te.Tensor, "m n"]) -> Any:
        k = te.reduce_axis((0, x.shape[1]))
        return te.compute((x.shape[0],), lambda i: te.sum(x[i, k] * x[i, k], axis=k))

    m, n = jax.export.symbolic_shape("m, n")
    check = jax.export.DisabledSafetyCheck.custom_call("minitvm_call")
    gradient = jax.jit(jax.grad(lambda x: norms(x).sum()))
    cases: list[tuple[Any, Callable[[Any], Any]]] = [
        (jax.jit(norms), lambda x: (x * x).sum(1)),
        (gradient, lambda x: 2 * x),
    ]
    for function, expected in cases:
        made = jax.export.export(function, disabled_checks=[check])(
            jax.ShapeDtypeStruct((2 * m, n), jnp.float32)
        )
        for shape in ((2, 3), (6, 1)):
            x = np.random.default_rng(0).random(shape).astype("float32")
            np.testing.assert_allclose(made.call(x), expected(x), rtol=1e-6)


def test_a_deleted_array_of_jax() -> None:
    scaled, x = tvm.jit(scaled_program), jnp.ones((3, 4))
    x.delete()
    with pytest.raises(BufferError, match="'x': expected an array with data, got one of JAX"):
        scaled(x, jnp.ones(4))


def test_jax_traces() -> None:
    scaled = tvm.jit(scaled_program)
    x, w = _random(3, 4), _random(4)
    scaled(x, w), scaled(x, w)
    traced = jax.jit(lambda x, w: scaled(x, w) + 1)(jnp.asarray(x), jnp.asarray(w))
    np.testing.assert_allclose(traced, _expected(x, w) + 1, rtol=1e-6)
    assert isinstance(scaled(jnp.asarray(x), jnp.asarray(w)), jax.Array)


def test_programs_take_operators() -> None:
    scaled = tvm.jit(scaled_program)
    x, w = _random(3, 4), _random(4)
    scaled(x, w), scaled(x, w)
    a, b = te.placeholder((3, 4), name="a"), te.placeholder((4,), name="b")
    assert isinstance(scaled(a, b), te.Tensor)
    twice = tvm.jit(lambda x, w: scaled(scaled(x, w), w))
    np.testing.assert_allclose(twice(x, w), _expected(_expected(x, w), w), rtol=1e-5)


# ---- Operators as objects ------------------------------------------------------------------------


class Scaling:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    @tvm.jit(static="self")
    def apply(self, x: Vector) -> Any:
        """Scales."""
        return te.compute(x.shape, lambda i: x[i] * self.scale)


class Layer(torch.nn.Module):  # type: ignore[misc]  # of Any
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    @tvm.jit(static="self")
    def forward(self, x: Vector) -> Any:
        return te.compute(x.shape, lambda i: x[i] * self.scale)


def test_methods(slow_calls: list[str]) -> None:
    x = _random(3)
    two, three = Scaling(2.0), Scaling(3.0)
    for _ in range(2):
        del slow_calls[:]
        np.testing.assert_array_equal(two.apply(x), 2 * x)
        np.testing.assert_array_equal(three.apply(x=x), 3 * x)
        np.testing.assert_array_equal(Scaling.apply(two, x), 2 * x)
        bound = two.apply
        np.testing.assert_array_equal(bound(x), 2 * x)
    assert slow_calls == []
    assert inspect.ismethod(bound) and bound == two.apply
    assert list(inspect.signature(bound).parameters) == ["x"]
    assert bound.__doc__ == "Scales." and inspect.unwrap(Scaling.apply) is not Scaling.apply


def test_methods_in_programs_of_torch() -> None:
    x = torch.ones(3, requires_grad=True)
    program = torch.compile(lambda m, x: m.apply(x) + 1, fullgraph=True, backend="aot_eager")
    for scale in (2.0, 3.0):
        y = program(Scaling(scale), x)
        assert y.tolist() == [scale + 1] * 3
        assert torch.autograd.grad(y.sum(), x)[0].tolist() == [scale] * 3
    layer = Layer(4.0)
    assert layer(x).tolist() == [4.0] * 3 and layer.forward.name == "forward"
    compiled = torch.compile(layer, backend="aot_eager")
    assert compiled(x).tolist() == [4.0] * 3
    inside = torch.compile(
        torch.nn.Sequential(torch.nn.ReLU(), layer), fullgraph=True, backend="aot_eager"
    )
    assert inside(x).tolist() == [4.0] * 3


def test_an_operator_is_an_object_like_others() -> None:
    scaled = tvm.jit(scaled_program)
    assert isinstance(scaled, Operator) and callable(scaled)
    assert type(scaled).__name__ == "Operator"
    assert scaled.__wrapped__ is scaled_program  # type: ignore[attr-defined]
    scaled.note = 3  # type: ignore[attr-defined]
    assert vars(scaled)["note"] == 3
    assert functools.partial(scaled, scale=0.5)(_random(1, 1), _random(1)).shape == (1, 1)
    x, w = _random(3, 4), _random(4)
    scaled(x, w), scaled(x, w)
    gone = weakref.ref(scaled)
    del scaled
    gc.collect()
    assert gone() is None


def _refused(function: Callable[..., Any], *args: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        function(*args)


def test_calls_keep_and_leak_nothing() -> None:
    scaled = tvm.jit(scaled_program)
    x, w, scale = _random(3, 4), _random(4), 0.12345
    out, leaf = np.empty((3, 4), "float32"), torch.ones(3, 4, requires_grad=True)
    v = torch.ones(4)
    calls: list[Callable[[], Any]] = [
        lambda: scaled(x, w, scale),
        lambda: scaled(x=x, w=w, scale=scale, out=out),
        lambda: scaled(leaf, v, scale),
        lambda: _refused(scaled, x, w, scale, None),
        lambda: _refused(scaled, x, x[0, :3], scale),
    ]
    for call in calls:
        for _ in range(3):
            call()
        gc.collect()
        table = scaled._table
        held = [x, w, scale, out, leaf, v, table, scaled, scaled_program.__defaults__]
        before = [sys.getrefcount(each) for each in held]
        for _ in range(50):
            call()
        gc.collect()
        assert [sys.getrefcount(each) for each in held] == before


def test_threads_call_while_others_clear() -> None:
    scaled = tvm.jit(scaled_program)
    x, w = _random(3, 4), _random(4)
    expected, wrong, done = _expected(x, w), [], threading.Event()

    def call() -> None:
        while not done.is_set():
            if not np.array_equal(scaled(x, w), expected):
                wrong.append(1)

    scaled(x, w)
    threads = [threading.Thread(target=call) for _ in range(3)]
    for each in threads:
        each.start()
    for _ in range(8):
        with scaled._table_lock:
            scaled._forget()
        scaled._routes = {}
    scaled.clear()
    done.set()
    for each in threads:
        each.join()
    assert not wrong


def test_a_forked_child_calls() -> None:
    scaled = tvm.jit(scaled_program)
    x, w = _random(3, 4), _random(4)
    scaled(x, w), scaled(x, w)
    with scaled._table_lock:  # as another thread may
        assert_in_child(lambda: bool((scaled(x[:2], w) == _expected(x[:2], w)).all()))


# ---- Functions that call themselves --------------------------------------------------------------


def test_a_function_that_calls_itself_without_end_is_named() -> None:
    @tvm.jit
    def endless(x: Vector) -> Any:
        return endless(te.compute(x.shape, lambda i: x[i] + 1.0))

    for _ in range(2):
        with pytest.raises(tvm.CompileError, match=r"endless: expected a function that ends, fou"):
            endless(_random(3))
    with pytest.raises(tvm.CompileError, match="endless: expected a function that ends"):
        endless(te.placeholder((3,)))


def test_a_function_may_call_itself_until_an_end() -> None:
    @tvm.jit(static="k")
    def power(x: Vector, k: int) -> Any:
        return x if k == 0 else power(te.compute(x.shape, lambda i: x[i] * 2.0), k - 1)

    np.testing.assert_array_equal(power(np.ones(3, "float32"), 5), [32] * 3)


def test_repeated_calls_with_arrays_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA makes them, with the results and errors of the first calls."""
    made: list[str] = []
    original = jax_calls.jax_operation

    def recorded(module: Any, derivative: Any) -> Any:
        made.append(derivative.name)
        return original(module, derivative)

    monkeypatch.setattr(jax_calls, "jax_operation", recorded)

    @tvm.jit
    def scaled(x: Matrix, by: float = 2.0) -> Any:
        return te.compute(x.shape, lambda i, j: x[i, j] * by)

    @tvm.jit
    def chosen(x: Vector, at: Annotated[te.Tensor, "k"]) -> Any:
        return te.compute(at.shape, lambda i: x[at[i]])

    @tvm.jit
    def first(x: Vector) -> Any:
        return te.compute((), lambda: x[0].astype("int64"))

    x, at = jnp.asarray(_random(3, 4)), jnp.asarray([2, 0, 1])
    for number in range(2 * jax_calls._REPEATED):
        assert np.array_equal(scaled(x), x * 2)
        assert np.array_equal(scaled(x, by=number), x * number)
        assert np.array_equal(chosen(x[0], at), x[0][at])
        assert first(jnp.asarray([5.5])) == 5
    assert set(made) == {"scaled", "first"}  # the other one may fail
    with pytest.raises(IndexError, match="chosen"):
        chosen(x[0], at + 9)
    with pytest.raises(TypeError, match="scaled: argument 1 'by': expected a number, got str"):
        scaled(x, "a")
    x.delete()
    with pytest.raises(BufferError, match="that was deleted"):
        scaled(x)
