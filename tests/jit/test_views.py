"""Gradients that are views of the gradients of outputs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import minitvm as tvm
from minitvm import te
from minitvm.operators.views import view_of

Operator = Callable[..., Any]


def _of_slices(axis: int) -> Operator:
    """Three tensors, one behind the other."""

    @tvm.jit
    def joined(a: Any, b: Any, c: Any) -> Any:
        first, second = a.shape[axis], a.shape[axis] + b.shape[axis]
        shape = list(a.shape)
        shape[axis] = second + c.shape[axis]

        def element(*place: Any) -> Any:
            def at(x: Any, begin: Any) -> Any:
                where = (*place[:axis], place[axis] - begin, *place[axis + 1 :])
                return x[where]

            behind = te.if_then_else(place[axis] < second, at(b, first), at(c, second))
            return te.if_then_else(place[axis] < first, at(a, 0), behind)

        return te.compute(tuple(shape), element)

    return joined


def _stacked(axis: int) -> Operator:
    """Three tensors along a new axis."""

    @tvm.jit
    def stacked(a: Any, b: Any, c: Any) -> Any:
        def element(*place: Any) -> Any:
            where = (*place[:axis], *place[axis + 1 :])
            x, y, z = (each[where] for each in (a, b, c))
            later = te.if_then_else(place[axis] == 1, y, z)
            return te.if_then_else(place[axis] == 0, x, later)

        return te.compute((*a.shape[:axis], 3, *a.shape[axis:]), element)

    return stacked


@tvm.jit
def _padded(x: Any) -> Any:
    def element(i: Any, j: Any) -> Any:
        inside = te.all(i >= 2, i < x.shape[0] + 2, j >= 1, j < x.shape[1] + 1)
        return te.if_then_else(inside, x[i - 2, j - 1], te.const(0, x.dtype))

    return te.compute((x.shape[0] + 5, x.shape[1] + 3), element)


@tvm.jit
def _turned(x: Any) -> Any:
    return te.compute((x.shape[1], x.shape[0]), lambda i, j: x[j, i])


@tvm.jit
def _flat(x: Any) -> Any:
    n = x.shape[1]
    return te.compute((x.shape[0] * n,), lambda i: x[i // n, i % n])


@tvm.jit
def _rows_summed(x: Any) -> Any:
    k = te.reduce_axis((0, x.shape[1]))
    return te.compute((x.shape[0],), lambda i: te.sum(x[i, k], axis=k))


@tvm.jit
def _all_summed(x: Any) -> Any:
    i, j = te.reduce_axis((0, x.shape[0])), te.reduce_axis((0, x.shape[1]))
    return te.compute((), lambda: te.sum(x[i, j], axis=[i, j]))


@tvm.jit
def _beside_another(x: Any, y: Any) -> Any:
    return te.compute(x.shape, lambda i, j: x[i, j] + te.sin(y[i, j]))


def _inputs(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]


CASES: dict[str, tuple[Operator, Operator, list[torch.Tensor], int]] = {
    **{
        f"three along {axis}": (
            _of_slices(axis),
            lambda *x, axis=axis: torch.cat(x, axis),
            _inputs(*((*(3, 5, 4)[:axis], n, *(3, 5, 4)[axis + 1 :]) for n in (2, 6, 1))),
            3,
        )
        for axis in range(3)
    },
    **{
        f"stacked along {axis}": (
            _stacked(axis),
            lambda *x, axis=axis: torch.stack(x, axis),
            _inputs((4, 6), (4, 6), (4, 6)),
            3,
        )
        for axis in range(3)
    },
    "padded": (_padded, lambda x: torch.nn.functional.pad(x, (1, 2, 2, 3)), _inputs((4, 6)), 1),
    "turned": (_turned, lambda x: x.t(), _inputs((4, 6)), 1),
    "flat": (_flat, lambda x: x.flatten(), _inputs((4, 6)), 1),
    "sums of rows": (_rows_summed, lambda x: x.sum(1), _inputs((4, 6)), 1),
    "sum": (_all_summed, lambda x: x.sum(), _inputs((4, 6)), 1),
    "beside another": (
        _beside_another,
        lambda x, y: x + torch.sin(y),
        _inputs((4, 6), (4, 6)),
        1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_views(name: str) -> None:
    """The gradients have the memory of the output's gradient."""
    function, expected, inputs, count = CASES[name]
    y, wanted = function(*inputs), expected(*inputs)
    dy = torch.randn(wanted.shape, dtype=wanted.dtype)
    found = torch.autograd.grad(y, inputs, dy)
    for each, other in zip(found, torch.autograd.grad(wanted, inputs, dy), strict=True):
        torch.testing.assert_close(each, other)
    memory = dy.untyped_storage().data_ptr()
    assert sum(each.untyped_storage().data_ptr() == memory for each in found) == count
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_views_are_added_up() -> None:
    """A gradient that several calls contribute to, and that of a leaf, leave the others alone."""
    (x,) = _inputs((4, 6))
    dy = torch.ones(4, dtype=torch.float64)
    (_rows_summed(x) * 2.0 + _rows_summed(x)).backward(dy)
    _rows_summed(x).backward(dy)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.full_like(x, 4.0))
    torch.testing.assert_close(dy, torch.ones_like(dy))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("name", ["three along 1", "padded", "beside another"])
def test_compiled_and_batched(name: str) -> None:
    function, expected, inputs, _ = CASES[name]
    wanted = torch.autograd.grad(expected(*inputs).pow(2).sum(), inputs)
    compiled = torch.compile(
        lambda *a: function(*a).pow(2).sum(), fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(torch.autograd.grad(compiled(*inputs), inputs), wanted)
    plain = [each.detach() for each in inputs]
    places = tuple(range(len(plain)))
    gradients = torch.func.grad(lambda *a: function(*a).pow(2).sum(), argnums=places)
    torch.testing.assert_close(gradients(*plain), wanted)
    batch = [torch.stack([each, each * 2.0]) for each in plain]
    found = torch.vmap(gradients)(*batch)
    torch.testing.assert_close([each[0] for each in found], [*wanted])


def test_extents_that_change() -> None:
    """A whole dimension is one of any extent."""
    n = te.var("n")
    head = te.placeholder((n, 9), name="head")
    part = te.compute((n, 4), lambda i, j: head[i, j * 2 + 1], name="part")
    view = view_of(part, [head])
    assert view is not None
    x = np.arange(27).reshape(3, 9)
    np.testing.assert_array_equal(view.taker()([x]), x[:, 1::2])
    rows = te.compute((n - 1, 9), lambda i, j: head[i + 1, j], name="rows")
    assert view_of(rows, [head]) is None


@pytest.mark.parametrize(
    "element",
    [
        lambda head, i, j: head[5 - i, j],
        lambda head, i, j: head[i, i],
        lambda head, i, j: head[(i + 1) % 6, j],
        lambda head, i, j: head[i, j] * 2.0,
    ],
)
def test_no_views(element: Callable[..., Any]) -> None:
    head = te.placeholder((6, 6), name="head")
    assert view_of(te.compute((6, 6), lambda i, j: element(head, i, j)), [head]) is None
