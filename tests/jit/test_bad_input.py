"""Wrong functions, annotations and arguments of minitvm.jit: each has an error that says what to
do."""

from __future__ import annotations

import array
import functools
import operator
from collections.abc import Callable
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import minitvm as tvm
from minitvm import te

X = np.ones((2, 3), "float32")
W = np.ones(3, "float32")
ELSEWHERE = te.placeholder((3,), name="elsewhere")


@tvm.jit
def scaled(
    x: Annotated[te.Tensor, "m n"],
    w: Annotated[te.Tensor, "float32|float64[n]"],
    scale: float = 1.0,
) -> Any:
    return te.compute(x.shape, lambda i, j: x[i, j] * w[j] * scale)


@tvm.jit
def switched(x: Any, mode: Literal["up", "down"] = "up", flag: bool = False) -> Any:
    return x * (2.0 if mode == "up" else 0.5) + (1.0 if flag else 0.0)


@tvm.jit
def shaped(x: Any) -> Any:
    return te.compute(x.shape, lambda *i: x(*i) + 1.0)


@tvm.jit
def both(x: Any, y: Any) -> Any:
    return x + y, x - y


@tvm.jit
def added(x: Annotated[te.Tensor, "... n"], y: Annotated[te.Tensor, "... n"]) -> Any:
    return te.compute(x.shape, lambda *i: x(*i) + y(*i))


@tvm.jit
def by_position(x: Annotated[te.Tensor, "n"], /, scale: float = 2.0) -> Any:
    return te.compute(x.shape, lambda i: x[i] * scale)


class Exporting:
    """An object that has DLPack's functions alone."""

    def __dlpack__(self, **options: Any) -> Any:
        return W.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return W.__dlpack_device__()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: by_position(x=W), TypeError, "argument 0 'x': expected by position, given by"),
        (
            lambda: [by_position(W), by_position(W, scale=1.0), by_position(scale=1.0, x=W)],
            TypeError,
            "argument 0 'x': expected by position, given by",
        ),
        (
            lambda: by_position(Exporting()),
            TypeError,
            r"'x': expected an array with a shape and a dtype, got Exporting: pass np.from_dlpack",
        ),
        (
            lambda: added(X, W),
            ValueError,
            r"with ... == \(2,\) \(as argument 0 'x' has it\), got \(3,\): jit\(broadcast=True\)",
        ),
        (lambda: added(X, X[:0]), ValueError, r"... == \(2,\) .*, got \(0, 3\)$"),
        (
            lambda: scaled(X),
            TypeError,
            r"argument 1 'w': .* of shape \(n,\), got none",
        ),
        (lambda: scaled(X, W, 1, 2), TypeError, r"expected at most 3 arguments .*, got 4"),
        (lambda: scaled(X, W, eps=1), TypeError, "expected arguments among x, w, scale, got 'eps'"),
        (lambda: scaled(X, W, x=X), TypeError, "argument 0 'x': given by position and by name"),
        (lambda: scaled(W, W), ValueError, r"argument 0 'x': expected shape \(m, n\), got \(3,\)"),
        (
            lambda: scaled(X, W[:2]),
            ValueError,
            r"'w': expected shape \(n,\) with n == 3 \(as argument 0 'x' has it\), got \(2,\)",
        ),
        (lambda: scaled(X, W.astype("int8")), TypeError, "dtype float32 or float64, got int8"),
        (lambda: scaled(X, W, "a"), TypeError, "argument 2 'scale': expected a number, got str"),
        (lambda: scaled(X, W, np.array(2)), TypeError, r"got ndarray: pass its item\(\)"),
        (lambda: scaled(X, W, True), TypeError, "argument 2 'scale': expected a number, got bool"),
        (lambda: scaled(X, W.tolist()), TypeError, r"got list: pass np.asarray\(x\)"),
        (lambda: scaled(np.float32(1), W), TypeError, r"got float32: pass np.asarray\(x\)"),
        (lambda: scaled(X, torch.ones(3)), TypeError, "an array of numpy, as argument 0 'x' is"),
        (lambda: scaled(X.astype("complex64"), W), TypeError, "real numbers, .* got complex64"),
        (lambda: scaled(X.astype(object), W), TypeError, "real numbers, .* got object"),
        (lambda: scaled(np.ma.array(X), W), TypeError, r"without a mask.*x.filled\(value\)"),
        (lambda: scaled(X.astype(">f4"), W), ValueError, "native byte order"),
        (lambda: scaled(torch.ones(2, 3, device="meta"), torch.ones(3)), BufferError, "meta"),
        (
            lambda: scaled(torch.nested.as_nested_tensor([torch.ones(3)], layout=torch.jagged), W),
            TypeError,
            r"one shape, got a nested one: pass its parts, x.unbind\(\)",
        ),
        (
            lambda: scaled(
                torch.ones(2, 3, requires_grad=True), torch.ones(3), out=torch.ones(2, 3)
            ),
            BufferError,
            r"argument 0 'x': expected a tensor that doesn't require grad.* x.detach\(\)",
        ),
        (
            lambda: jax.jit(lambda x: scaled(x, x[0], out=X))(jnp.ones((2, 3))),
            TypeError,
            "out: expected none where JAX is tracing",
        ),
        (lambda: switched(W, "sideways"), ValueError, "expected 'up' or 'down', got 'sideways'"),
        (lambda: switched(W, flag="False"), TypeError, "'flag': expected a bool, got 'False'"),
        (lambda: shaped(W[0]), tvm.CompileError, r"'x': expected an array, which has 'shape', got"),
        (lambda: both(W, "a"), TypeError, "an array or a number, got str: static='y' has the"),
        (lambda: both(W, memoryview(b"ab")), TypeError, r"got memoryview: pass np.asarray\(x\)"),
        (lambda: shaped(array.array("f", W)), TypeError, r"got array: pass np.asarray\(x\)"),
        (
            lambda: tvm.jit(_sets_an_element)(W),
            tvm.CompileError,
            "elements that could be set.*te.compute",
        ),
        (lambda: scaled(X, W, out=W), ValueError, "scaled: out: expected ndim == 2, got 1"),
        (lambda: scaled(X, W, out=X[:1].copy()), ValueError, r"expected shape\[0\] == 2, got 1"),
        (lambda: scaled(X, W, out=X.astype("f8")), TypeError, "expected dtype float32"),
        (lambda: both(W, W, out=W), TypeError, "out: expected a tuple of 2 arrays"),
        (lambda: scaled(X, W, out=torch.ones(2, 3)), TypeError, "out: expected an array of numpy"),
        (
            lambda: scaled(X, W, out=X.tolist()),
            TypeError,
            r"out: expected an array \(\w+\), got list: results",
        ),
        (
            lambda: scaled(*map(jnp.asarray, (X, W)), out=jnp.asarray(X)),
            ValueError,
            "read-only one of jax",
        ),
        (lambda: scaled(X, ELSEWHERE), TypeError, "'x': expected a tensor of te.* array of numpy"),
        (lambda: scaled.warm_up([("float32[m 3]", "float32[3]")]), tvm.CompileError, "64 768"),
        (
            lambda: tvm.jit(lambda x, n: x, static="n")(W, []),
            TypeError,
            "that can be hashed, since the program is made for it, got list: pass a tuple",
        ),
    ],
)
def test_arguments(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def _branches(x: te.Tensor) -> Any:
    return te.compute(x.shape, lambda i: x[i] if x[i] > 0 else 0.0)


def _takes_a_float(x: te.Tensor) -> Any:
    return te.compute(x.shape, lambda i: x[i] * float(x[i]))


def _reads_numbers(table: Any) -> Any:
    return lambda x: te.compute(x.shape, lambda i: x[i] * table[i])


def _loops(x: te.Tensor, n: int = 3) -> Any:
    y: Any = x
    for _ in range(n):
        y = y * 2.0
    return y


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: None, "got None: does it lack a `return`"),
        (lambda x: 3, "got int"),
        (lambda x: x == 0, "got a bool: `==` and `!=` of tensors ask whether they are one tensor"),
        (lambda x: te.reduce_axis((0, 4), "k"), "axis k is used outside of its loop"),
        (lambda x: torch.exp(x), "torch.exp computes numbers, and Tensor.* has none.* te.exp"),
        (lambda x: torch.stack([x, x]), "torch.stack computes numbers, and Tensor.* has none"),
        (lambda x: x * torch.ones(4), r"got an array of shape \(4,\): .* as a parameter"),
        (lambda x: [], "got a list of none"),
        (lambda x: (x,), "got a tuple of 1: return the tensor itself"),
        (lambda x: {"x": x}, "got a dict: return a tuple"),
        (lambda x: (x, 1), r"got int in a tuple: return a tensor, as in te.compute"),
        (lambda x: np.matmul(x, x), "np.matmul computes numbers, .* written: write te.sum over"),
        (lambda x: x.op, "got an operation"),
        (lambda x: te.create_schedule((x + 1.0).op), "got a Schedule alone"),
        (lambda x: x + ELSEWHERE, r"its own tensors \(x\), found that it reads 'elsewhere'"),
        (_branches, r"depends on shapes, .* alone.* te.if_then_else.* static="),
        (_takes_a_float, r"depends on shapes, .* alone.* x.astype.* static="),
        (_loops, r"depends on shapes, .* alone.* static="),
        (lambda x: jnp.sin(x), "functions of te, found one of JAX.*: write te.sin for jnp.sin"),
        (_reads_numbers(W), "compute: expected axes .* takes it as a parameter.*: only integers"),
        (_reads_numbers(jnp.ones(3)), "compute: expected axes .* takes it as a parameter.*: only"),
    ],
)
def test_functions(function: Any, message: str) -> None:
    with pytest.raises(tvm.CompileError, match=message):
        tvm.jit(function)(W)


def _annotated(annotation: Any) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        return x

    function.__annotations__["x"] = repr(annotation) if isinstance(annotation, str) else annotation
    return function


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ("m**2", r"parameter 'x': shape 'm\*\*2': expected a dimension, got 'm\*\*2': write"),
        ("-1", "expected a dimension, got '-1'"),
        ("n ...", "expected a dimension, got '...'"),
        ("m//2", "letters that are dimensions somewhere, or follow from one as .*, got 'm'"),
        ("m*m", "letters that are dimensions somewhere, or follow from one as .*, got 'm'"),
        ("m+l", "letters that are dimensions somewhere, or follow from one as .*, got 'm'"),
        ("float32", r"expected dimensions, got the dtype float32: write 'float32\[...\]'"),
        ("float99[n]", "expected a dtype, got 'float99'"),
        (list, "expected an annotation such as .* got list: name the parameter in static="),
        (np.ndarray, "got ndarray: te.Tensor, or no annotation, takes an array of any library"),
        (torch.Tensor, "got Tensor: te.Tensor, or no annotation, takes an array of any library"),
        ("n? | None", "expected a dimension, got 'n\\?'"),
        (Annotated[float, "zz"], "expected a dtype for a number, got 'zz'"),
    ],
)
def test_annotations(annotation: Any, message: str) -> None:
    with pytest.raises(tvm.CompileError, match=message):
        tvm.jit(_annotated(annotation))


_number: Any = 3
_number_of: Any = classmethod(lambda cls, x: x)


async def _asynchronous(x: Any) -> Any:
    return x


def _generator(x: Any) -> Any:
    yield x


def _sets_an_element(x: Any) -> Any:
    x[0] = 1.0
    return x


def test_parameters_and_options() -> None:
    def many(*x: Any) -> Any:
        return x[0]

    def out(out: Any) -> Any:
        return out

    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: tvm.jit(many), r"'x': expected .* one argument, got '\*x.*': name the arg"),
        (lambda: tvm.jit(out), "'out': expected another name"),
        (lambda: tvm.jit(_number), "expected a Python function of tensors, got int: give options"),
        (lambda: tvm.jit(dict), "got the class dict: make its methods operators"),
        (lambda: tvm.jit(len), r"got len, which isn't written in Python: write one that returns"),
        (lambda: tvm.jit(functools.partial(len)), "got len, which isn't written in Python"),
        (lambda: tvm.jit(functools.cache(max)), "got max, which isn't written in Python"),
        (lambda: tvm.jit(np.add), "got add, which isn't written in Python"),
        (lambda: tvm.jit(operator.itemgetter(1)), "got itemgetter, which isn't written in Python"),
        (lambda: tvm.jit(_asynchronous), "got the asynchronous function _asynchronous: write it"),
        (lambda: tvm.jit(_generator), "got the generator _generator: return its results"),
        (lambda: tvm.jit(_number_of), "got a classmethod: decorate the function first"),
        (lambda: tvm.jit(staticmethod(_branches)), "got a staticmethod: decorate the function"),
        (lambda: tvm.jit(static="q")(_branches), "static: expected parameters among x, got 'q'"),
        (lambda: tvm.jit(symbolic="q")(_branches), "symbolic: expected letters among none"),
    ]
    for make, message in cases:
        with pytest.raises(tvm.CompileError, match=message):
            make()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torch_op", r"one build has it, f.build_for\('float32\[8\]', ...\).torch_op\(name\)"),
        ("jax_op", r"takes JAX's arrays.*build_for\(.*\).jax_op\(\)"),
        ("returning", "an operator returns its outputs"),
        ("shape", "scaled: expected an attribute of an operator, got 'shape'$"),
    ],
)
def test_methods_of_built_functions(name: str, message: str) -> None:
    assert not hasattr(scaled, name)
    with pytest.raises(AttributeError, match=message):
        getattr(scaled, name)


def test_an_index_error_of_the_function_is_its_own() -> None:
    factors: list[float] = []

    @tvm.jit
    def third(x: Any) -> Any:
        return te.compute(x.shape, lambda i: x[i] * factors[2])

    with pytest.raises(IndexError, match="list index out of range"):
        third(W)
