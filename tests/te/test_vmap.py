"""vmap against loops over the elements of a batch: which stages get its dimension, and where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te

RNG = np.random.default_rng(3)


def elementwise() -> Any:
    x, y = te.placeholder((3, 5), name="x"), te.placeholder((5,), name="y")
    return [x, y], [te.compute((3, 5), lambda i, j: te.exp(-x[i, j]) * y[j], name="z")]


def product() -> Any:
    """With a symbolic size, and a stage before."""
    n = te.var("n")
    a, b = te.placeholder((n, 5), name="a"), te.placeholder((5, 3), name="b")
    k = te.reduce_axis((0, 5), name="k")
    twice = te.compute((5, 3), lambda i, j: b[i, j] * 2.0, name="twice")
    c = te.compute((n, 3), lambda i, j: te.sum(a[i, k] * twice[k, j], axis=k), name="c")
    return [a, b], [c]


def softmax() -> Any:
    """Several outputs, at several depths."""
    x = te.placeholder((4, 6), name="x")
    k, m = te.reduce_axis((0, 6), name="k"), te.reduce_axis((0, 6), name="m")
    top = te.compute((4,), lambda i: te.max(x[i, k], axis=k), name="top")
    e = te.compute((4, 6), lambda i, j: te.exp(x[i, j] - top[i]), name="e")
    total = te.compute((4,), lambda i: te.sum(e[i, m], axis=m), name="total")
    return [x], [te.compute((4, 6), lambda i, j: e[i, j] / total[i], name="y"), top, total]


def argmax() -> Any:
    """A reduction of pairs."""
    x = te.placeholder((4, 7), name="x")
    k = te.reduce_axis((0, 7), name="k")
    larger = te.comm_reducer(
        lambda a, b: (
            te.if_then_else(a[1] >= b[1], a[0], b[0]),
            te.if_then_else(a[1] >= b[1], a[1], b[1]),
        ),
        lambda i, v: (te.const(-1, i), te.min_value(v)),
    )
    best = te.compute((4,), lambda i: larger((k, x[i, k]), axis=k), name="best")
    return [x], list(best)


def gathered() -> Any:
    """Indices that are read from data."""
    x, i = te.placeholder((5,), name="x"), te.placeholder((4,), "int32", name="i")
    return [x, i], [te.compute((4,), lambda j: x[i[j]] + 1.0, name="y")]


def ragged() -> Any:
    """Ranges that are read from data: the rows of a sparse matrix."""
    ends, x = te.placeholder((4,), "int32", name="ends"), te.placeholder((5,), name="x")

    def row(i: Any) -> Any:
        k = te.reduce_axis((ends[i], ends[i + 1]), name="k")
        return te.sum(x[k], axis=k)

    return [ends, x], [te.compute((3,), row, name="sums")]


def running_sums() -> Any:
    """A scan, and a stage that reads it."""
    x = te.placeholder((6, 3), name="x")
    state = te.placeholder((6, 3), name="state")
    first = te.compute((1, 3), lambda _, i: x[0, i], name="first")
    step = te.compute((6, 3), lambda t, i: state[t - 1, i] + x[t, i], name="step")
    sums = te.scan(first, step, state, inputs=[x], name="sums")
    return [x], [te.compute((3, 6), lambda i, t: sums[t, i] * 2.0, name="turned"), sums]


def recurrence() -> Any:
    """A scan of two states with a product inside, whose first states are placeholders."""
    n = te.var("n")
    x, w = te.placeholder((n, 3), name="x"), te.placeholder((3, 3), name="w")
    h0, c0 = te.placeholder((1, 3), name="h0"), te.placeholder((1, 3), name="c0")
    h, c = te.placeholder((n, 3), name="h"), te.placeholder((n, 3), name="c")
    k = te.reduce_axis((0, 3), name="k")
    mixed = te.compute((n, 3), lambda t, i: te.sum(h[t - 1, k] * w[k, i], axis=k), name="mixed")
    c1 = te.compute((n, 3), lambda t, i: c[t - 1, i] * 0.5 + mixed[t, i], name="c1")
    h1 = te.compute((n, 3), lambda t, i: te.tanh(c1[t, i] + x[t, i]), name="h1")
    return [x, w, h0, c0], te.scan([h0, c0], [h1, c1], [h, c], inputs=[x], name="cell")


def scaled() -> Any:
    """A number among the inputs."""
    a, m = te.var("a", "float32"), te.var("m", "int32")
    x = te.placeholder((5,), name="x")
    return [x, a, m], [te.compute((5,), lambda i: x[i] * a + m, name="y")]


def gathered_adjoint() -> Any:
    """Rows that data choose are added to, in place; with a number."""
    x, i = te.placeholder((5, 3), name="x"), te.placeholder((4,), "int32", name="i")
    a, h = te.var("a", "float32"), te.placeholder((4, 3), name="h")
    y = te.compute((4, 3), lambda j, c: te.sin(x[i[j], c]) * a, name="y")
    return [h, x, i, a], te.gradient(y, x, h)


def ragged_adjoint() -> Any:
    """Loops over ranges that are read from data."""
    (ends, x), (sums,) = ragged()
    h = te.placeholder((3,), name="h")
    return [ends, x, h], te.gradient(sums, x, h)


PROGRAMS = [elementwise, product, softmax, argmax, gathered, ragged, running_sums, recurrence,
            scaled, gathered_adjoint, ragged_adjoint]  # fmt: skip


def values(program: Callable[[], Any], tensor: Any, batch: int | None) -> Any:
    """Values for an input, of the whole batch or the same for all elements."""
    front = () if batch is None else (batch,)
    if isinstance(tensor, te.Tensor):
        shape = (*front, *(int(each) if str(each).isdigit() else 4 for each in tensor.shape))
        if tensor.name == "ends":
            return np.sort(RNG.integers(0, 6, shape), axis=-1).astype("int32")
        if tensor.dtype == "int32":
            return RNG.integers(0, 5, shape).astype("int32")
        return RNG.standard_normal(shape).astype("float32")
    made = RNG.integers(-3, 4, front).astype(str(tensor.dtype))
    return made if front else made.item()


def results(function: Any, args: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    made = function.returning()(*args)
    return list(made) if isinstance(made, tuple) else [made]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_batch_is_its_elements(program: Callable[[], Any]) -> None:
    inputs, outputs = program()
    one = tvm.build(outputs, [*inputs, *outputs], name="one", fp="strict")
    n = te.var("b")
    alone = [[i == j for i in range(len(inputs))] for j in {0, len(inputs) - 1}]
    for flags in ([True] * len(inputs), *(alone if len(inputs) > 1 else [])):
        chosen = [each for each, flag in zip(inputs, flags, strict=True) if flag]
        made, given = te.vmap(outputs, chosen, n)
        mapped = dict(zip(chosen, given, strict=True))
        whole = [mapped.get(each, each) for each in inputs]
        function = tvm.build(made, [*whole, *made], name="batch", fp="strict")
        for size in (0, 1, 3):
            args = [
                values(program, each, size if flag else None)
                for each, flag in zip(inputs, flags, strict=True)
            ]
            found = results(function, args)
            each_of = [
                results(one, [a[i] if flag else a for a, flag in zip(args, flags, strict=True)])
                for i in range(size)
            ]
            for place, result in enumerate(found):
                assert result.shape[0] == size
                for i in range(size):
                    np.testing.assert_allclose(result[i], each_of[i][place], rtol=1e-5, atol=1e-6)


def test_batches_of_batches() -> None:
    inputs, outputs = product()
    b, c = te.var("b"), te.var("c")
    once, (a,) = te.vmap(outputs, inputs[:1], b)
    twice, (right,) = te.vmap(once, inputs[1:], c)
    function = tvm.build(twice, [a, right, *twice], name="twice")
    x, y = RNG.random((4, 2, 5), "float32"), RNG.random((3, 5, 3), "float32")
    expected = np.einsum("bnk,ckm->cbnm", x, 2 * y)
    np.testing.assert_allclose(results(function, [x, y])[0], expected, rtol=1e-5)


def test_what_all_elements_share_is_computed_once() -> None:
    inputs, outputs = product()
    (made,), _ = te.vmap(outputs, inputs[:1], te.var("b"))
    twice = next(each for each in made.op.input_tensors if each.op.name == "twice")
    assert twice.ndim == 2
    w = te.placeholder((3,), name="w")
    shared = te.compute((3,), lambda i: w[i] + 1.0, name="shared")
    (copied,), (x,) = te.vmap([shared], [te.placeholder((3,), name="x")], 2)
    function = tvm.build([copied], [x, w, copied], name="copied")
    args = [np.zeros((2, 3), "float32"), np.arange(3, dtype="float32")]
    assert results(function, args)[0].tolist() == [[1, 2, 3]] * 2


def test_mistakes() -> None:
    x, a, n = te.placeholder((3,), name="x"), te.var("a", "float32"), te.var("n")
    y = te.compute((3,), lambda i: x[i] * a, name="y")
    called = te.extern((3,), [x], lambda i, o: tvm.tir.call_packed("f"), name="called")
    sized = te.compute((n,), lambda i: x[0], name="sized")
    ends = te.placeholder((), "int32", name="ends")
    ragged = te.compute((3,), lambda i: te.sum(x[i], axis=te.reduce_axis((0, ends[()]))), name="r")
    assert [*te.vmap([ragged], [ends], 2)[0][0].shape] == [2, 3]
    cases: tuple[tuple[Any, Any, str], ...] = (
        ([called], [x], "called: expected stages of te.compute and te.scan, got ExternOp"),
        ([called], [a], "called: expected an output of te.compute or te.scan, got one of Ext"),
        ([x], [x], "x: expected an output of te.compute or te.scan, got one of Placeholder"),
        ([y], [y], "y: expected a placeholder, got a stage"),
        ([sized], [n], "sized: expected elements of one shape, found that the range of axis i"),
        ([te.compute((3,), lambda i: te.placeholder((n,), name="z")[i] * n, name="q")], [n],
         "z: expected elements of one shape, found that the shape depends on n"),
        ([], [x], "outputs: expected a list of tensors"),
        ([y], [1], "inputs: expected a list of tensors"),
    )  # fmt: skip
    for outputs, inputs, text in cases:
        with pytest.raises(tvm.CompileError, match=f"vmap: {text}"):
            te.vmap(outputs, inputs, 2)
