"""Built functions as operators of torch: compiled, differentiated, checked by torch's own tests."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
import uuid
from typing import Any

import pytest

import minitvm as tvm
from minitvm import te
from minitvm.contrib import register_torch_op
from minitvm.runtime.packed_func import Function
from tests.frameworks import programs

torch = pytest.importorskip("torch")
library = pytest.importorskip("torch.library")


def graph_counter() -> Any:
    """A backend of torch.compile that counts graphs, from a module which torch doesn't import."""
    testing = importlib.import_module("torch._dynamo.testing")
    return testing.CompileCounterWithBackend("aot_eager")


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
    with pytest.raises(RuntimeError, match="expected an operator with a backward to differentiate"):
        plain(x, 3.0).sum().backward()


def test_recorded_calls_are_seen_by_modes_and_hooks(square: Any) -> None:
    """Autograd alone is told of a recorded call where nothing else of torch wants to know."""
    modes = importlib.import_module("torch.utils._python_dispatch")
    seen, kept = [], []

    class Noting(modes.TorchDispatchMode):  # type: ignore[misc, name-defined]
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(op)
            return op(*args, **(kwargs or {}))

    def keep(tensor: Any) -> Any:
        kept.append(tensor)
        return tensor

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = square(x, 3.0)
    assert [each.tolist() for each in kept] == [[1, 2], [3, 12]]
    with Noting():
        z = square(x, 3.0)
    assert square.overload in seen
    for made in (y, z):
        assert torch.autograd.grad(made.sum(), x)[0].tolist() == [6, 12]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made = square(x, 3.0)
        with torch.no_grad():
            x += 1
        made.sum().backward()


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
        (
            (programs.scaled(), "a::b", None, print),
            ValueError,
            "expected a Python backward for setup",
        ),
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


# ---- The method, and the ways of a call ----------------------------------------------------------


def test_the_method_of_a_function_and_of_a_module(square: Any) -> None:
    built = programs.scaled()
    function = built.entry_func
    assert isinstance(function, Function)
    x = torch.rand(5)
    for made in (built.torch_op(new()), function.torch_op(new())):
        torch.testing.assert_close(made(x, 2.0), 2 * x * x)
        y = torch.empty(5)
        assert made(x, 2.0, out=y) is y
        torch.testing.assert_close(y, 2 * x * x)
    with pytest.raises(TypeError, match="out"):
        square(x, 2.0, out=(x, x))


def test_a_derivative_that_is_built() -> None:
    n, a = te.var("n"), te.var("a", "float64")
    x, g = (te.placeholder((n,), "float64", name=name) for name in "XG")
    y = te.compute((n,), lambda i: x[i] * x[i] * a, name="Y")
    d = te.compute((n,), lambda i: 2.0 * x[i] * a * g[i], name="D")
    forward = tvm.build(te.create_schedule(y.op), [x, a, y], name="forward")
    backward = tvm.build(te.create_schedule(d.op), [x, a, g, d], name="backward")
    op = forward.torch_op(new(), backward)
    leaf = torch.rand(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: op(t, 1.5), (leaf,))
    compiled = torch.compile(lambda t: op(t, 1.5).sum(), fullgraph=True, backend="aot_eager")
    compiled(leaf).backward()
    torch.testing.assert_close(leaf.grad, 3 * leaf.detach())
    with pytest.raises(ValueError, match="backward: forward: expected 3 inputs"):
        forward.torch_op(new(), forward)


def test_batches_and_gradients_of_them(square: Any) -> None:
    x = torch.rand(3, 4)
    expected = 3 * x * x
    torch.testing.assert_close(torch.vmap(lambda r: square(r, 3.0))(x), expected)
    torch.testing.assert_close(torch.vmap(lambda r: square(r, 3.0), 1, 1)(x), expected)
    assert torch.vmap(lambda r: square(r, 3.0))(torch.zeros(0, 4)).shape == (0, 4)
    grad = torch.func.grad(lambda r: square(r, 3.0).sum())
    torch.testing.assert_close(torch.vmap(grad)(x), 6 * x)


def test_what_torch_represents_otherwise(square: Any) -> None:
    x = torch.tensor([1.0, -2.0])
    assert square(torch._neg_view(x), 1.0).tolist() == [1, 4]
    assert square(torch.zeros(2, device="meta"), 1.0).device.type == "meta"
    with torch.autocast("cpu", torch.bfloat16):
        assert square(x.bfloat16(), 1.0).dtype == torch.float32
    with torch.device("cpu"):
        assert square(x, 1.0).tolist() == [1, 4]
    with torch._subclasses.fake_tensor.FakeTensorMode():
        assert type(square(torch.empty(3), 1.0)).__name__ == "FakeTensor"


def test_fake_inputs_are_checked() -> None:
    op = programs.product().torch_op(new())
    fake = torch.zeros(2, 3, device="meta")
    with pytest.raises(ValueError, match=r"argument 1 'B': expected shape\[0\] == 3, got 2"):
        op(fake, fake)
    with pytest.raises(TypeError, match="argument 1 'B': expected dtype float32, got int32"):
        op(fake, fake.int())


def test_exported(square: Any) -> None:
    class Layer(torch.nn.Module):  # type: ignore[misc,name-defined]  # of importorskip
        def forward(self, x: Any) -> Any:
            return square(x, 3.0) + 1

    x = torch.rand(4)
    for strict in (False, True):
        exported = torch.export.export(Layer(), (x,), strict=strict)
        torch.testing.assert_close(exported.module()(x), 3 * x * x + 1)


def test_copies_and_pickles(square: Any) -> None:
    assert copy.deepcopy(square) is square
    op = programs.scaled().torch_op(new())
    assert pickle.loads(pickle.dumps(op)) is op


# ---- Plain calls in programs that torch reads ----------------------------------------------------


@pytest.mark.parametrize("of", ["module", "function"])
def test_a_plain_call_is_an_operator_by_itself(of: str) -> None:
    built = programs.scaled()
    f = built if of == "module" else built.entry_func

    def program(x: Any) -> Any:
        y = torch.empty_like(x)
        f(x, 3.0, y)
        return y + 1

    counter = graph_counter()
    compiled = torch.compile(program, fullgraph=True, backend=counter)
    for size in (4, 4, 5, 6):
        x = torch.rand(size)
        torch.testing.assert_close(compiled(x), 3 * x * x + 1)
    assert counter.frame_count <= 2
    x = torch.rand(3, requires_grad=True)
    with pytest.raises(Exception, match="expected a tensor that doesn't require grad"):
        compiled(x)


def test_another_function_is_another_operator() -> None:
    functions = [programs.scaled(), programs.scaled()]

    def program(x: Any) -> Any:
        y = torch.empty_like(x)
        functions[0](x, 3.0, y)
        return y

    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    x = torch.rand(3)
    torch.testing.assert_close(compiled(x), 3 * x * x)
    n, a = te.var("n"), te.var("a", "float32")
    p = te.placeholder((n,), name="X")
    q = te.compute((n,), lambda i: p[i] + a, name="Y")
    functions[0] = tvm.build(te.create_schedule(q.op), [p, a, q], name="scaled")
    torch.testing.assert_close(compiled(x), x + 3)


def test_a_plain_call_is_exported() -> None:
    f = programs.scaled()

    class Layer(torch.nn.Module):  # type: ignore[misc,name-defined]  # of importorskip
        def forward(self, x: Any) -> Any:
            y = torch.empty_like(x)
            f(x, 3.0, y)
            return y

    x = torch.rand(4)
    exported = torch.export.export(Layer(), (x,))
    torch.testing.assert_close(exported.module()(x), 3 * x * x)


# ---- Calls that return, in programs that torch reads ---------------------------------------------


def test_a_returning_call_is_an_operator_by_itself() -> None:
    scaled = programs.scaled().returning()
    counter = graph_counter()
    compiled = torch.compile(lambda x: scaled(x, a=3.0) + 1, fullgraph=True, backend=counter)
    for size in (4, 4, 5, 6):
        x = torch.rand(size)
        torch.testing.assert_close(compiled(x), 3 * x * x + 1)
    assert counter.frame_count <= 2
    x, y = torch.rand(4), torch.zeros(4)
    into = torch.compile(lambda x, y: scaled(x, 3.0, out=y) + 1, fullgraph=True, backend=counter)
    torch.testing.assert_close(into(x, y), 3 * x * x + 1)
    torch.testing.assert_close(y, 3 * x * x)


def test_a_returning_call_is_exported() -> None:
    scaled = programs.scaled().returning()

    class Layer(torch.nn.Module):  # type: ignore[misc,name-defined]  # of importorskip
        def forward(self, x: Any) -> Any:
            return scaled(x, 3.0)

    x = torch.rand(4)
    exported = torch.export.export(Layer(), (x,))
    torch.testing.assert_close(exported.module()(x), 3 * x * x)


def test_an_operator_of_jit_runs_between_graphs() -> None:
    @tvm.jit
    def scaled(x: te.Tensor, a: float = 2.0) -> Any:
        return te.compute(x.shape, lambda i: x[i] * a)

    counter = graph_counter()
    compiled = torch.compile(lambda x: scaled(x + 1, a=3.0) * 2, backend=counter)
    for size in (4, 5, 0):
        x = torch.rand(size)
        torch.testing.assert_close(compiled(x), (x + 1) * 6)
    assert counter.frame_count >= 2
