"""The indices of fused and split axes: guards that nothing needs, and addresses that are one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minitvm import build, lower, te, tir
from minitvm.arith.analyzer import Analyzer
from minitvm.te.tensor import Tensor
from minitvm.tir.expr import const_int
from minitvm.tir.functor import substitute, walk_once

B, S, T, D = (te.var(name) for name in "bstd")


def sizes_beside(*tensors: Tensor) -> list[Any]:
    """The sizes that are no plain dimension of a tensor, so that a call has to give them."""
    plain = {each for tensor in tensors for each in tensor.shape if isinstance(each, tir.Var)}
    used = {each for tensor in tensors for each in walk_once(*tensor.shape)}
    return [each for each in (B, S, T, D) if each in used - plain]


def size(extent: Any, given: dict[Any, int]) -> int:
    """A symbolic extent where sizes are `given`."""
    found = const_int(Analyzer().simplify(substitute(extent + 0, given)))
    assert found is not None
    return found


# -- Leading dimensions ----------------------------------------------------------------------------

LEADING: dict[str, tuple[Any, ...]] = {
    "b": (B,), "b, s": (B, S), "b, s, t": (B, S, T), "b, s, t, d": (B, S, T, D),
    "b, s, 8": (B, S, 8), "b, 8, t": (B, 8, T), "8, s, t": (8, S, T), "3, 5, t": (3, 5, T),
    "b, s + 1, t": (B, S + 1, T), "b, 2 * s, t": (B, 2 * S, T), "b, s // 2": (B, S // 2),
    "b, s, s": (B, S, S),
}  # fmt: skip


def means(leading: tuple[Any, ...], from_right: bool, factor: int | None) -> list[Any]:
    """Each row less its sum; in one loop over the rows, which may be split further."""
    X = te.placeholder((*leading, 32), name="X")
    k = te.reduce_axis((0, 32), name="k")
    total = te.compute(leading, lambda *at: te.sum(X(*at, k), axis=k), name="total")
    Y = te.compute(X.shape, lambda *at: X[at] - total[at[:-1]], name="Y")
    s = te.create_schedule(Y.op)
    rows = list(axes_of(Y)[:-1])
    if from_right:
        while len(rows) > 1:
            rows[-2:] = [s[Y].fuse(rows[-2], rows[-1])]
    row = s[Y].fuse(*rows)
    if factor is not None:
        _, row = s[Y].split(row, factor=factor)
    s[total].compute_at(s[Y], row)
    return [s, X, Y]


@pytest.mark.parametrize("from_right", [False, True])
@pytest.mark.parametrize("leading", LEADING)
def test_a_fused_row_lies_in_its_tensor(leading: str, from_right: bool) -> None:
    s, X, Y = means(LEADING[leading], from_right, None)
    text = str(lower(s, [*sizes_beside(X), X, Y], simple_mode=True))
    assert "if " not in text
    assert "total = allocate(float32[1" in text


@pytest.mark.covering(1)
@pytest.mark.parametrize("factor", [None, 4, 5])
@pytest.mark.parametrize("leading", LEADING)
def test_rows_of_symbolic_shapes(leading: str, factor: int | None) -> None:
    s, X, Y = means(LEADING[leading], leading.count("s") > 1, factor)
    beside = sizes_beside(X)
    f = build(s, [*beside, X, Y])
    for b, n, t, d in ((2, 3, 5, 2), (1, 1, 1, 1), (3, 2, 7, 3), (0, 2, 2, 1), (2, 4, 0, 2)):
        given = {B: b, S: n, T: t, D: d}
        shape = [size(each, given) for each in X.shape]
        x = np.random.default_rng(0).integers(-9, 9, shape).astype("float32")
        y = np.full_like(x, 77)
        f(*(given[each] for each in beside), x, y)
        np.testing.assert_array_equal(y, x - x.sum(-1, keepdims=True))


# -- Short last axes -------------------------------------------------------------------------------

OUTSIDE: dict[str, tuple[Any, ...]] = {
    "24": (24,), "6, 16": (6, 16), "7, 5": (7, 5), "2, 3, 32": (2, 3, 32), "b": (B,),
    "b, s": (B, S), "b, 6": (B, 6), "6, s": (6, S), "b, s, t": (B, S, T), "b, 4, s": (B, 4, S),
}  # fmt: skip


def in_one_loop(Y: Tensor, lanes: int) -> te.Schedule:
    """Vectors over all elements as they lie in memory."""
    s = te.create_schedule(Y.op)
    outer, inner = s[Y].split(s[Y].fuse(*axes_of(Y)), factor=lanes)
    s[Y].vectorize(inner)
    s[Y].parallel(outer)
    return s


@pytest.mark.parametrize("last", range(1, 18))
def test_elements_in_one_line_are_neighbours(last: int) -> None:
    check_line(last, list(OUTSIDE)[last % len(OUTSIDE)], with_strides=last in (3, 8))


@pytest.mark.wide
@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("last", range(1, 18))
def test_elements_in_any_line_are_neighbours(last: int, outside: str) -> None:
    check_line(last, outside, with_strides=True)


def check_line(last: int, outside: str, with_strides: bool) -> None:
    shape = (*OUTSIDE[outside], last)
    X, Z = (te.placeholder(shape, name=name) for name in "XZ")
    Y = te.compute(shape, lambda *at: X[at] * 2.0 + Z[at], name="Y")
    s = in_one_loop(Y, 8)
    text = llvm(s, [X, Z, Y])
    assert "gather" not in text and "scatter" not in text
    check(s, X, Z, Y, lambda x, z: x * 2 + z, with_strides=with_strides)


WINDOWS: dict[str, tuple[tuple[Any, ...], int]] = {
    "3 channels": ((9, 14, 3), 3), "4 channels": ((9, 12, 4), 3), "2 channels": ((12, 9, 2), 5),
    "symbolic": ((B, S, 3), 3), "images": ((2, 9, 14, 3), 3), "a symbolic size": ((9, S, 3), 3),
    "symbolic images": ((B, 7, S, 4), 3),
}  # fmt: skip


@pytest.mark.parametrize("kind", WINDOWS)
def test_windows_of_pixels_are_neighbours(kind: str) -> None:
    """``X[y, x + q, c]`` in one loop over x and c."""
    shape, width = WINDOWS[kind]
    *rows, x, c = shape
    X = te.placeholder((*rows, x + width - 1, c), name="X")
    Y = te.compute(
        shape,
        lambda *at: sum((X(*at[:-2], at[-2] + q, at[-1]) for q in range(1, width)), X[at]),
        name="Y",
    )
    s = te.create_schedule(Y.op)
    _, inner = s[Y].split(s[Y].fuse(*axes_of(Y)[-2:]), factor=8)
    s[Y].vectorize(inner)
    beside = sizes_beside(X, Y)
    text = llvm(s, [*beside, X, Y])
    assert "gather" not in text and "scatter" not in text

    def sums(x: Any) -> Any:
        return sum(x[..., q : x.shape[-2] - width + 1 + q, :] for q in range(width))

    check(s, *beside, X, Y, sums)


def axes_of(tensor: Tensor) -> tuple[Any, ...]:
    assert isinstance(tensor.op, te.ComputeOp)
    return tensor.op.axis


def llvm(s: te.Schedule, args: list[Any]) -> str:
    return str(build(s, args, target="llvm -mcpu=haswell", name="f").get_source("ll"))


def check(s: te.Schedule, *rest: Any, with_strides: bool = False) -> None:
    """The results for some sizes, against numpy's; of compact arrays and of strided ones."""
    *args, meaning = rest
    f = build(s, args)
    tensors = [each for each in args if isinstance(each, Tensor)]
    for b, n, t in ((2, 3, 5), (1, 1, 1), (3, 16, 2), (0, 2, 2), (2, 0, 4)):
        given = {B: b, S: n, T: t, D: 1}
        random = np.random.default_rng(0)
        shapes = [[size(each, given) for each in tensor.shape] for tensor in tensors]
        arrays = [random.integers(-9, 9, shape).astype("float32") for shape in shapes]
        wanted = meaning(*arrays[:-1])
        sizes = [given[each] for each in args if each in given]
        f(*sizes, *arrays)
        np.testing.assert_array_equal(arrays[-1], wanted)
        if not with_strides:
            continue
        strided = [np.repeat(each, 2, -1)[..., ::2] for each in arrays[:-1]]
        out = np.full_like(np.repeat(arrays[-1], 2, -1), 77)
        f(*sizes, *strided, out[..., 1::2])
        np.testing.assert_array_equal(out[..., 1::2], wanted)
        assert (out[..., ::2] == 77).all()
