"""Each primitive: the loops that it makes, as text, and that they compute what they did before."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te, tir
from minitvm.arith.analyzer import Analyzer
from minitvm.te.tensor import ComputeOp, PlaceholderOp, Tensor
from minitvm.tir.expr import Cast, const_int
from minitvm.tir.functor import find, substitute
from minitvm.tir.interpreter import interpret

Golden = Callable[[str], None]
Arrays = list[np.ndarray[Any, Any]]
SIZES = (0, 1, 2, 7, 19)
LATER = ["partition_loops", "hoist_conditions", "unroll_loops", "reuse_storage"]

n = te.size_var("n")
m = te.size_var("m")


def arrays(args: Sequence[Tensor], sizes: dict[Any, int]) -> Arrays:
    """Inputs of small whole numbers; outputs of rubbish."""
    generator = np.random.default_rng(0)
    known = {var: tir.const(size, var.dtype) for var, size in sizes.items()}
    shapes = [[_extent(dim, known) for dim in arg.shape] for arg in args]
    return [
        generator.integers(-9, 10, shape).astype(str(arg.dtype))
        for shape, arg in zip(shapes, args, strict=True)
    ]


def _extent(dim: Any, known: dict[Any, Any]) -> int:
    made = const_int(Analyzer().simplify(cast(Any, substitute(dim, known))))
    assert made is not None
    return made


def check(s: te.Schedule, args: Sequence[Tensor], expected: Callable[..., Any]) -> None:
    """What a schedule computes, against numpy, for every size. `expected` takes the inputs."""
    function = tvm.build(s, args)
    constant = all(const_int(dim) is not None for arg in args for dim in arg.shape)
    for size in (0,) if constant else SIZES:
        sizes = {n: size, m: 5 if size else 0}
        made = arrays(args, sizes)
        inputs = [x for x, arg in zip(made, args, strict=True) if isinstance(arg.op, PlaceholderOp)]
        results = expected(*[x.copy() for x in inputs])
        function(*made)
        outputs = made[len(inputs) :]
        wanted = results if isinstance(results, tuple) else (results,)
        for got, each in zip(outputs, wanted, strict=True):
            np.testing.assert_array_equal(got, each)


def text(s: te.Schedule, args: Sequence[Tensor]) -> str:
    """The loops of a schedule, before passes change them."""
    with tvm.transform.PassContext(disabled_pass=LATER):
        return str(tvm.lower(s, args, name="f", simple_mode=True))


def body_of(s: te.Schedule, tensor: Tensor) -> tuple[tir.PrimExpr, ...]:
    """The body of the stage that computes a tensor."""
    op = s[tensor].op
    assert isinstance(op, ComputeOp)
    return op.body


def rows(shape: Any = (n, m)) -> tuple[Any, Any, Any, Any]:
    """B = 2 A, C = B + 1."""
    a = te.placeholder(shape, "int32", name="A")
    b = te.compute(shape, lambda i, j: a[i, j] * 2, name="B")
    c = te.compute(shape, lambda i, j: b[i, j] + 1, name="C")
    return a, b, c, te.create_schedule(c.op)


def twice_and_one(a: Any) -> Any:
    return a * 2 + 1


def vectors(size: Any = n) -> tuple[Any, Any, Any]:
    a = te.placeholder((size,), "int32", name="A")
    b = te.compute((size,), lambda i: a[i] * 2 + 1, name="B")
    return a, b, te.create_schedule(b.op)


def sums(shape: Any = (n, m)) -> tuple[Any, Any, Any]:
    a = te.placeholder(shape, "int32", name="A")
    k = te.reduce_axis((0, shape[1]), "k")
    b = te.compute((shape[0],), lambda i: te.sum(a[i, k], axis=k), name="B")
    return a, b, te.create_schedule(b.op)


def sum_rows(a: Any) -> Any:
    return a.sum(axis=1, dtype="int32")


def stencil() -> tuple[Any, Any, Any, Any]:
    a = te.placeholder((n + 2,), "int32", name="A")
    b = te.compute((n + 2,), lambda i: a[i] * 2, name="B")
    c = te.compute((n,), lambda i: b[i] + b[i + 1] + b[i + 2], name="C")
    return a, b, c, te.create_schedule(c.op)


def blurred(a: Any) -> Any:
    return 2 * (a[:-2] + a[1:-1] + a[2:])


# -- Loops ----------------------------------------------------------------------------------------


def test_split_by_factor(golden: Golden) -> None:
    a, b, s = vectors()
    s[b].split(b.op.axis[0], factor=4)
    golden(text(s, [a, b]))
    check(s, [a, b], twice_and_one)


def test_split_by_nparts(golden: Golden) -> None:
    a, b, s = vectors()
    s[b].split(b.op.axis[0], nparts=4)
    golden(text(s, [a, b]))
    check(s, [a, b], twice_and_one)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 7])
@pytest.mark.parametrize("how", ["factor", "nparts"])
def test_splits_of_constant_extents(size: int, how: str) -> None:
    a, b, s = vectors(size)
    outer, _ = s[b].split(b.op.axis[0], **{how: 4})
    s[b].split(outer, **{how: 3})
    check(s, [a, b], twice_and_one)


@pytest.mark.parametrize("factor", [1, 2, 7, 100])
@pytest.mark.parametrize("how", ["factor", "nparts"])
def test_split_by_a_variable(factor: int, how: str) -> None:
    a, b, s = vectors()
    f = te.var("f")
    s[b].split(b.op.axis[0], **{how: f})
    x = np.arange(13, dtype="int32")
    y = np.zeros_like(x)
    tvm.build(s, [a, b, f])(x, y, factor)
    np.testing.assert_array_equal(y, x * 2 + 1)


def test_fuse(golden: Golden) -> None:
    a, b, c, s = rows()
    fused = s[c].fuse(*c.op.axis)
    s[c].split(fused, 4)
    s[b].compute_inline()
    golden(text(s, [a, c]))
    check(s, [a, c], twice_and_one)


def test_fuse_nothing(golden: Golden) -> None:
    a, b, s = vectors()
    once = s[b].fuse()
    assert s[b].leaf_iter_vars == [once, b.op.axis[0]]
    golden(text(s, [a, b]))
    check(s, [a, b], twice_and_one)


def test_a_loop_of_its_own_is_fused_and_split() -> None:
    a, b, s = vectors()
    s[b].split(s[b].fuse(s[b].fuse(), b.op.axis[0]), nparts=3)
    check(s, [a, b], twice_and_one)


@pytest.mark.parametrize("extent", [1, 3, 4, 5])
def test_layouts_in_blocks(extent: int) -> None:
    a, b, c, s = rows((extent, 5))
    s[b].transform_layout(lambda i, j: [i // 4, j, i % 4])
    check(s, [a, c], twice_and_one)


@pytest.mark.parametrize("layout", [lambda i, j: [j, i], lambda i, j: [i // 3, j, i % 3]])
@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_layouts_of_nothing(shape: tuple[int, int], layout: Callable[..., Any]) -> None:
    a, b, c, s = rows(shape)
    s[b].transform_layout(layout)
    assert 0 in map(const_int, s[b].op.output(0).shape)
    check(s, [a, c], twice_and_one)


def test_fuse_of_three_axes(golden: Golden) -> None:
    a = te.placeholder((n, m, 3), "int32", name="A")
    b = te.compute((n, m, 3), lambda *i: a(*i) * 2, name="B")
    s = te.create_schedule(b.op)
    s[b].fuse(list(b.op.axis))
    golden(text(s, [a, b]))
    check(s, [a, b], lambda x: x * 2)


@pytest.mark.parametrize("factor", [None, 4])
def test_fused_memory_is_that_of_the_region(factor: int | None) -> None:
    """Of two rows, a part whose width depends on the loop around."""
    a = te.placeholder((n + 1, 6), "int32", name="A")
    b = te.compute((n + 1, 6), lambda t, i: a[t, i] * 2, name="B")
    c = te.compute((n, 6), lambda t, i: b[t, i] + b[t + 1, 5 - i], name="C")
    s = te.create_schedule(c.op)
    fused = s[b].fuse(*b.op.axis)
    if factor:
        s[b].split(fused, factor)
    s[b].compute_at(s[c], c.op.axis[1])
    found = re.search(r"B = allocate\(int32\[(\d+), 6\]\)", text(s, [a, c]))
    assert found is not None
    assert 2 <= int(found[1]) <= (2 if factor is None else 20)  # a remainder may be a row each
    check(s, [a, c], lambda x: 2 * (x[:-1] + x[1:, ::-1]))


def test_reorder(golden: Golden) -> None:
    """A reduction around data: the beginnings are in loops of their own."""
    a, b, s = sums()
    s[b].reorder(b.op.reduce_axis[0], b.op.axis[0])
    golden(text(s, [a, b]))
    check(s, [a, b], sum_rows)


def test_tile(golden: Golden) -> None:
    a, b, c, s = rows()
    xo, yo, xi, yi = s[c].tile(*c.op.axis, 4, 3)
    assert s[c].leaf_iter_vars == [xo, yo, xi, yi]
    s[b].compute_inline()
    golden(text(s, [a, c]))
    check(s, [a, c], twice_and_one)


def test_kinds_of_loops(golden: Golden) -> None:
    a, b, c, s = rows((8, 16))
    i, j = c.op.axis
    s[c].parallel(i)
    s[c].vectorize(s[c].split(j, 8)[1])
    s[b].unroll(s[b].split(b.op.axis[1], 2)[1])
    golden(text(s, [a, c]))
    check(s, [a, c], twice_and_one)


def test_bind(golden: Golden) -> None:
    """Shown by `lower`; no CPU has such threads."""
    a, b, s = vectors()
    s[b].bind(s[b].split(b.op.axis[0], 32)[1], te.thread_axis("threadIdx.x"))
    golden(text(s, [a, b]))
    with pytest.raises(tvm.CompileError, match=r"^loop i\.inner: bound to .*: a CPU has no thread"):
        tvm.build(s, [a, b])


def test_pragma(golden: Golden) -> None:
    a, b, s = vectors()
    s[b].pragma(b.op.axis[0], "auto_unroll_max_step", 16)
    golden(text(s, [a, b]))
    check(s, [a, b], twice_and_one)


def test_debug_skip_region() -> None:
    a, b, s = vectors()
    s[b].pragma(b.op.axis[0], "debug_skip_region")
    x, y = np.arange(5, dtype="int32"), np.full(5, 77, "int32")
    tvm.build(s, [a, b])(x, y)
    assert (y == 77).all()


# -- Places ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_compute_at(golden: Golden, depth: int) -> None:
    a, b, c, s = rows()
    loops = s[c].tile(*c.op.axis, 4, 3)
    s[b].compute_at(s[c], loops[depth])
    if depth in (1, 3):
        golden(text(s, [a, c]))
    check(s, [a, c], twice_and_one)


def test_compute_at_in_a_chain(golden: Golden) -> None:
    a = te.placeholder((n,), "int32", name="A")
    b = te.compute((n,), lambda i: a[i] * 2, name="B")
    c = te.compute((n,), lambda i: b[i] + 1, name="C")
    d = te.compute((n,), lambda i: c[n - 1 - i], name="D")
    s = te.create_schedule(d.op)
    outer, _ = s[d].split(d.op.axis[0], 4)
    s[c].compute_at(s[d], outer)
    s[b].compute_at(s[c], c.op.axis[0])
    golden(text(s, [a, d]))
    check(s, [a, d], lambda x: (x * 2 + 1)[::-1])


@pytest.mark.parametrize("block", [1, 2, 3, 4])
@pytest.mark.parametrize("width", [5, 6, 7])
def test_compute_at_in_a_chain_whose_sizes_differ(golden: Golden, width: int, block: int) -> None:
    """The last block is smaller; memory has one size for all of them."""
    blocks = -(-width // block)
    a = te.placeholder((6, width), "int32", name="A")
    b = te.compute((width, 6), lambda i, j: a[j, i] * 2, name="B")
    c = te.compute((6, width), lambda i, j: b[width - 1 - j, i] + a[i, j], name="C")
    d = te.compute((6, blocks, block),
                   lambda i, o, j: te.if_then_else(o * block + j < width,
                                                   c[i, te.min(o * block + j, width - 1)], 0),
                   name="D")  # fmt: skip
    s = te.create_schedule(d.op)
    s[b].compute_at(s[c], c.op.axis[0])
    s[c].compute_at(s[d], d.op.axis[1])
    if (width, block) == (5, 2):
        golden(text(s, [a, d]))

    def in_blocks(x: Any) -> Any:
        padded = np.zeros((6, blocks * block), "int32")
        padded[:, :width] = x + 2 * x[:, ::-1]
        return padded.reshape(6, blocks, block)

    check(s, [a, d], in_blocks)


def test_compute_at_of_a_reduction(golden: Golden) -> None:
    a, b, _ = sums()
    c = te.compute((n, m), lambda i, j: a[i, j] - b[i], name="C")
    s = te.create_schedule(c.op)
    s[b].compute_at(s[c], c.op.axis[0])
    golden(text(s, [a, c]))
    check(s, [a, c], lambda x: x - sum_rows(x)[:, None])


def test_compute_at_in_a_reduction() -> None:
    """What is reduced is computed where it is."""
    a = te.placeholder((n, m), "int32", name="A")
    b = te.compute((n, m), lambda i, j: a[i, j] * 2, name="B")
    k = te.reduce_axis((0, m), "k")
    c = te.compute((n,), lambda i: te.sum(b[i, k], axis=k), name="C")
    for place in range(3):
        s = te.create_schedule(c.op)
        outer, inner = s[c].split(k, 3)
        s[b].compute_at(s[c], (c.op.axis[0], outer, inner)[place])
        check(s, [a, c], lambda x: sum_rows(x) * 2)


def test_compute_at_of_a_stencil(golden: Golden) -> None:
    a, b, c, s = stencil()
    outer, _ = s[c].split(c.op.axis[0], 4)
    s[b].compute_at(s[c], outer)
    golden(text(s, [a, c]))
    check(s, [a, c], blurred)


def test_compute_inline(golden: Golden) -> None:
    a = te.placeholder((n, m), "int32", name="A")
    b = te.compute((n, m), lambda i, j: a[i, j] * 2, name="B")
    c = te.compute((m, n), lambda i, j: b[j, i] + 1, name="C")
    k = te.reduce_axis((0, m), "k")
    d = te.compute((n,), lambda i: te.sum(c[k, i], axis=k), name="D")
    s = te.create_schedule(d.op)
    s[b].compute_inline()
    s[c].compute_inline()
    golden(text(s, [a, d]))
    check(s, [a, d], lambda x: sum_rows(x * 2 + 1))


def test_compute_ahead(golden: Golden) -> None:
    a = te.placeholder((n,), "int32", name="A")
    b = te.placeholder((10,), "int32", name="B")
    c = te.compute((n,), lambda i: a[i] * b[i % 10], name="C")
    s = te.create_schedule(c.op)
    bb = s.cache_read(b, "global", [c])
    s[bb].transform_layout(lambda i: [i // 4, i % 4])
    s[bb].compute_ahead()
    golden(text(s, [a, b, c]))
    f = tvm.build(s, [a, b, c], name="f")
    x, y, z = (np.arange(size, dtype="int32") for size in (25, 10, 25))
    f(x, tvm.prepack(f, "B", y), z)
    np.testing.assert_array_equal(z, x * y[x % 10])


def test_compute_root() -> None:
    a, b, c, s = rows()
    plain = text(s, [a, c])
    s[b].compute_inline()
    s[b].compute_root()
    assert text(s, [a, c]) == plain
    s[b].compute_at(s[c], c.op.axis[0])
    s[b].compute_root()
    assert text(s, [a, c]) == plain


def test_create_group(golden: Golden) -> None:
    a = te.placeholder((n,), "int32", name="A")
    b = te.compute((n,), lambda i: a[i] * 2, name="B")
    c = te.compute((n,), lambda i: b[i] + 1, name="C")
    d = te.compute((n,), lambda i: c[i] * c[i], name="D")
    s = te.create_schedule(d.op)
    outer, _ = s[d].split(d.op.axis[0], 4)
    s.create_group(outputs=c, inputs=a).compute_at(s[d], outer)
    golden(text(s, [a, d]))
    check(s, [a, d], lambda x: (x * 2 + 1) ** 2)


def test_a_group_has_its_inputs_where_that_is_said() -> None:
    a = te.placeholder((n,), "int32", name="A")
    b = te.compute((n,), lambda i: a[i] * 2, name="B")
    c = te.compute((n,), lambda i: b[i] + 1, name="C")
    d = te.compute((n,), lambda i: c[i] * c[i], name="D")
    for included, members in ((False, "group(C)"), (True, "group(B, C)")):
        s = te.create_schedule(d.op)
        group = s.create_group(outputs=c, inputs=b, include_inputs=included)
        assert str(group) == members
        assert s.groups == [group]
        outer, _ = s[d].split(d.op.axis[0], 4)
        group.compute_at(s[d], outer)
        check(s, [a, d], lambda x: (x * 2 + 1) ** 2)


def test_an_extern_stage_has_a_place() -> None:
    a = te.placeholder((4, 4), "int32", name="A")

    def double(ins: Any, outs: Any) -> Any:
        builder = tir.ir_builder.create()
        source, target = builder.buffer_ptr(ins[0]), builder.buffer_ptr(outs[0])
        with (
            builder.for_range(0, 4) as i,
            builder.for_range(0, 4) as j,
        ):
            target[i, j] = source[i, j] * 2
        return builder.get()

    b = te.extern((4, 4), [a], double, name="B", dtype="int32")
    c = te.compute((4, 4), lambda i, j: b[j, i] + 1, name="C")
    s = te.create_schedule(c.op)
    s[b].compute_at(s[c], c.op.axis[0])
    check(s, [a, c], lambda x: x.T * 2 + 1)


# -- Memory ---------------------------------------------------------------------------------------


def test_cache_access(golden: Golden) -> None:
    """Windows side by side."""
    a = te.placeholder((9,), "int32", name="A")
    k = te.reduce_axis((0, 3), name="k")
    b = te.compute((4,), lambda i: te.sum(a[i * 2 + k], axis=k), name="B")
    s = te.create_schedule(b.op)
    s.cache_access(a, "global", b)
    golden(text(s, [a, b]))
    check(s, [a, b], lambda x: x[:7:2] + x[1:8:2] + x[2::2])


def windows(element: Callable[[Any, Any, Any], Any], **more: Any) -> tuple[Any, Any, Any, Any]:
    """A sum over `k` of something of `A`, and its schedule, in which that has a copy."""
    a = te.placeholder((9,), "int32", name="A")
    k = te.reduce_axis((0, 3), name="k")
    b = te.compute((8,), lambda i: te.sum(element(a, i, k), axis=k, **more), name="B")
    s = te.create_schedule(b.op)
    return a, b, s, s.cache_access(a, "global", b)


def test_cache_access_at_an_edge(golden: Golden) -> None:
    """The choice at the edge is made once, for the copy."""
    a, b, s, _ = windows(
        lambda a, i, k: te.if_then_else(te.all(i + k >= 1, i + k < 10), a[i + k - 1], 5)
    )
    golden(text(s, [a, b]))
    check(s, [a, b], lambda x: np.convolve([5, *x, 5], [1] * 3)[2:10])


@pytest.mark.parametrize(
    ("element", "dimensions"),
    [
        (lambda a, i, k: te.if_then_else(i + k < 9, a[i + k], 0) * k, "i k"),
        (lambda a, i, k: te.if_then_else(i < 7, te.if_then_else(k < 2, a[i + k], 1), 2), "i k"),
        (lambda a, i, k: te.if_then_else(k <= 1, a[i], 0), "i"),  # not needed for the copy
        (lambda a, i, k: te.if_then_else(k * i < 9, a[k * i], i), "i k"),
        (lambda a, i, k: te.if_then_else(k >= 1, a[i + 1 - te.min(k, 1)], 0), "i k"),
        (lambda a, i, k: te.if_then_else(k + i < 10, a[te.max(i, 2)] + a[te.max(i, 2)], 0), "i"),
        (lambda a, i, k: te.if_then_else(i - k >= 0, 1, a[i - k + 3]), "i k"),
        (lambda a, i, k: te.if_then_else(k == 1, a[i + 1], 0), "i"),
        (lambda a, i, k: te.if_then_else(te.all(k == 1, i < 7), a[i + 2], 0), "i"),
        (lambda a, i, k: te.if_then_else(i + k < 7, a[i + 2], 0), "i k"),  # another axis decides
        (lambda a, i, k: te.if_then_else(i + k < 7, a[i + 2], a[0 * k + i + 2 - 2]), None),
    ],
)
def test_cache_access_keeps_conditions(element: Any, dimensions: str | None) -> None:
    if dimensions is None:
        with pytest.raises(tvm.CompileError, match="expected B to read one element"):
            windows(element)
        return
    a, b, s, copy = windows(element)
    assert [axis.name for axis in copy.op.axis] == dimensions.split()
    plain = tvm.build(te.create_schedule(b.op), [a, b], auto_schedule=False)

    def expected(x: Any) -> Any:
        made = np.empty(8, "int32")
        plain(x, made)
        return made

    check(s, [a, b], expected)


def test_cache_access_keeps_the_condition_of_a_reduction() -> None:
    a = te.placeholder((9,), "int32", name="A")
    k = te.reduce_axis((0, 3), name="k")
    b = te.compute((8,), lambda i: te.sum(a[i - k], axis=k, where=i - k >= 0), name="B")
    s = te.create_schedule(b.op)
    s.cache_access(a, "global", b)
    check(s, [a, b], lambda x: np.convolve(x, [1] * 3)[:8])


def test_cache_access_by_sums(golden: Golden) -> None:
    """One element for each place on the ring that a window begins or ends at."""
    a = te.placeholder((9,), "int32", name="A")
    k = te.reduce_axis((0, 3), name="k")
    b = te.compute((5,), lambda i: te.sum(a[(i * 2 + k + 8) % 9], axis=k), name="B")
    s = te.create_schedule(b.op)
    assert str(s.cache_access(a, "global", b, sums=True).shape) == "(11,)"
    golden(text(s, [a, b]))
    check(s, [a, b], lambda x: (np.roll(x, 1) + x + np.roll(x, -1))[::2])


@pytest.mark.parametrize(
    ("element", "shape"),
    [
        (lambda a, i, k: te.if_then_else(te.all(i + k >= 1, i + k < 10), a[i + k - 1], 5), (10,)),
        (lambda a, i, k: a[tir.max(k - i, 0)], (10,)),
        (lambda a, i, k: a[i] * k, (8,)),
        (lambda a, i, k: a[tir.min(i, k.var)], (8, 3)),
        (lambda a, i, k: a[(i + k) % 9] + a[(i + k) % 9] * i, (10,)),
        (lambda a, i, k: te.if_then_else(i * 5 + k < 9, a[i * 5 + k], 0), (38,)),
    ],
)
def test_dimensions_of_sums(element: Any, shape: tuple[int, ...]) -> None:
    a = te.placeholder((9,), "int32", name="A")
    k = te.reduce_axis((0, 3), name="k")
    b = te.compute((8,), lambda i: te.sum(element(a, i, k), axis=k), name="B")
    plain, s = te.create_schedule(b.op), te.create_schedule(b.op)
    assert s.cache_access(a, "global", b, sums=True).shape == shape
    x = np.random.default_rng(0).integers(-99, 99, 9).astype("int32")
    expected, found = np.empty(8, "int32"), np.empty(8, "int32")
    tvm.build(plain, [a, b], auto_schedule=False)(x, expected)
    tvm.build(s, [a, b])(x, found)
    np.testing.assert_array_equal(found, expected)


def test_sums_that_are_refused() -> None:
    """Data may name any element between two windows, and any begin of a sum."""
    a, at = te.placeholder((9,), "int32", name="A"), te.placeholder((9,), "int32", name="at")
    k = te.reduce_axis((0, 2), name="k")
    b = te.compute((2,), lambda i: te.sum(a[at[i * 4 + k]], axis=k), name="B")
    with pytest.raises(tvm.CompileError, match="cache_access of A: expected an index that stays"):
        te.create_schedule(b.op).cache_access(a, "global", b, sums=True)
    r = te.reduce_axis((n, n + 3), name="r")
    c = te.compute((3,), lambda i: te.sum(a[(i + r) % 9], axis=r), name="C")
    with pytest.raises(tvm.CompileError, match="expected loops that begin at constants around"):
        te.create_schedule(c.op).cache_access(a, "global", c, sums=True)


@pytest.mark.parametrize(
    ("element", "shape"),
    [
        (lambda a, i, k: a[(i + k) % n], "(n + 2,)"),
        (lambda a, i, k: a[(i * 2 + k + n) % n], "(n * 2 + 1,)"),
        (lambda a, i, k: a[(k - i + n) % n], "(n + 2,)"),
        (lambda a, i, k: te.if_then_else(i + k < n, a[i + k], 0), "(n + 2,)"),
        (lambda a, i, k: a[tir.max(i - k, 0)], "(n + 2,)"),
    ],
)
def test_sums_of_symbolic_ranges(element: Any, shape: str) -> None:
    a, k = te.placeholder((n,), "int32", name="A"), te.reduce_axis((0, 3), name="k")
    b = te.compute((n,), lambda i: te.sum(element(a, i, k), axis=k), name="B")
    plain, s = te.create_schedule(b.op), te.create_schedule(b.op)
    assert str(s.cache_access(a, "global", b, sums=True).shape) == shape
    one = tvm.build(plain, [a, b], auto_schedule=False)
    other = tvm.build(s, [a, b], auto_schedule=False)
    for size in (0, 1, 2, 9):
        x = np.random.default_rng(size).integers(-99, 99, size).astype("int32")
        expected, found = np.empty_like(x), np.empty_like(x)
        one(x, expected)
        other(x, found)
        np.testing.assert_array_equal(found, expected)


def test_a_copy_by_sums_is_checked_as_its_reader() -> None:
    """A mirror of one element is refused, unless nothing is read of it."""
    m = te.var("m")
    a, k = te.placeholder((n,), "int32", name="A"), te.reduce_axis((0, 3), name="k")

    def element(i: Any, j: Any) -> Any:
        place = te.if_then_else(i + k < n, i + k, 2 * n - 2 - i - k)
        return te.sum(a[place] * j, axis=k)

    b = te.compute((n, m), element, name="B")
    s = te.create_schedule(b.op)
    s.cache_access(a, "global", b, sums=True)
    f = tvm.build(s, [a, b], name="f")
    x, y = np.array([5], "int32"), np.full((1, 2), 7, "int32")
    f(x, y[:, :0])
    with pytest.raises(ValueError, match="needs n <= 0 or m <= 0 or n >= 3, got n = 1, m = 2"):
        f(x, y)
    assert (y == 7).all()


def test_cache_access_of_one_element_of_several() -> None:
    a = te.placeholder((4, 5), "int32", name="A")
    k = te.reduce_axis((0, 5), name="k")
    b = te.compute((4, 4), lambda i, j: te.sum(a[i, k] * a[j, k], axis=k), name="B")
    s = te.create_schedule(b.op)
    with pytest.raises(tvm.CompileError, match=r"one element .* A\[i, k\], A\[j, k\]"):
        s.cache_access(a, "global", b)
    with pytest.raises(tvm.CompileError, match=r"expected B to read more than 2 elements"):
        s.cache_access(a, "global", b, which=2)
    rows = s.cache_access(a, "global", b, which=1)
    op: Any = s[b].op
    assert str(op.body[0].source[0]) == f"A[i, k] * {rows.name}[j, k]"
    check(s, [a, b], lambda x: x @ x.T)


def test_cache_access_keeps_what_data_decides() -> None:
    a, mask = te.placeholder((9,), "int32", name="A"), te.placeholder((8,), "int32", name="M")
    b = te.compute((8,), lambda i: te.if_then_else(mask[i] < 9, a[mask[i]], -1), name="B")
    s = te.create_schedule(b.op)
    s.cache_access(a, "global", b)
    f = tvm.build(s, [a, mask, b])
    x, m, out = np.arange(9, dtype="int32"), np.arange(2, 10, dtype="int32"), np.empty(8, "int32")
    f(x, m, out)
    np.testing.assert_array_equal(out, [2, 3, 4, 5, 6, 7, 8, -1])
    m[0] = -1  # no condition says that it is none of A's
    with pytest.raises(IndexError, match=r"index 0 must stay in \[0, 9\), got -1"):
        f(x, m, out)


def test_cache_access_of_what_is_inside_needs_no_common_condition() -> None:
    """The element decides under which condition it is read again."""
    X, k = te.placeholder((5,), name="X"), te.reduce_axis((0, 3), name="k")
    Y = te.compute((5,), lambda i: te.sum(X[i] * 2.0, axis=k, where=X[i] > 0.0), name="Y")
    s = te.create_schedule(Y.op)
    s.cache_access(X, "global", Y, 0)
    assert "X.global[i] = X[i]\n" in str(tvm.lower(s, [X, Y]))
    f, x, y = tvm.build(s, [X, Y]), np.arange(-2.0, 3.0, dtype="float32"), np.empty(5, "float32")
    f(x, y)
    np.testing.assert_array_equal(y, np.where(x > 0, 6 * x, 0))


def test_cache_access_in_a_scan_copies_for_its_steps() -> None:
    """The first step, which no update computes, would read outside."""
    X, S = te.placeholder((3, 5), name="X"), te.placeholder((6, 3), name="S")
    first = te.compute((1, 3), lambda t, i: te.const(0.0), name="first")
    step = te.compute((6, 3), lambda t, i: S[t - 1, i] + X[i, t - 1], name="step")
    Y = te.scan(first, step, S, name="Y")
    s = te.create_schedule(Y.op)
    s.cache_access(X, "global", step)
    assert "Y[Y.idx, i_2] = Y[Y.idx - 1, i_2] + X.global[Y.idx - 1, i_2]" in str(
        tvm.lower(s, [X, Y])
    )
    x, y = np.random.default_rng(0).random((3, 5)).astype("float32"), np.zeros((6, 3), "float32")
    tvm.build(s, [X, Y])(x, y)
    np.testing.assert_allclose(y[1:], np.cumsum(x.T, 0), rtol=1e-6)


def test_cache_access_of_uneven_sums_is_refused() -> None:
    a = te.placeholder((9,), "int32", name="A")

    def element(i: Any) -> Any:
        k = te.reduce_axis((0, i + 1), name="k")
        return te.sum(a[i - k], axis=k)

    b = te.compute((8,), element, name="B")
    s = te.create_schedule(b.op)
    message = "cache_access of A: expected a loop of one length for all elements, got k of i"
    with pytest.raises(tvm.CompileError, match=message):
        s.cache_access(a, "global", b)


def test_several_elements_are_no_access() -> None:
    a = te.placeholder((9,), "int32", name="A")
    b = te.compute((8,), lambda i: a[i] + a[i + 1], name="B")
    s = te.create_schedule(b.op)
    with pytest.raises(tvm.CompileError, match=r"expected B to read one element in each iteration"):
        s.cache_access(a, "global", b)


def test_cache_read(golden: Golden) -> None:
    """One copy for two readers, each of which reads another part."""
    a = te.placeholder((n,), "int32", name="A")
    b = te.compute((n,), lambda i: a[i] * 2, name="B")
    c = te.compute((n,), lambda i: b[i] + a[n - 1 - i], name="C")
    s = te.create_schedule(c.op)
    s.cache_read(a, "local", [b, c])
    s[b].compute_inline()
    golden(text(s, [a, c]))
    check(s, [a, c], lambda x: x * 2 + x[::-1])


def test_cache_read_casts() -> None:
    """The copy has the dtype to which each of its readers casts the elements."""
    a = te.placeholder((n,), "int8", name="A")
    b = te.compute((n,), lambda i: a[i].astype("int32") * a[n - 1 - i].astype("int32"), name="B")
    c = te.compute((n,), lambda i: b[i] + te.if_then_else(i > 0, a[i - 1].astype("int32"), 0))
    s = te.create_schedule(c.op)
    copy = s.cache_read(a, "global", [b, c], dtype="int32")
    assert copy.dtype == "int32"
    assert not {*find(Cast, *body_of(s, b), *body_of(s, c))}
    check(s, [a, c], lambda x: x * x[::-1].astype("int32") + np.append(np.int32(0), x[:-1]))


@pytest.mark.parametrize(
    ("element", "used"),
    [
        (lambda a, i: a[i] ^ tir.const(1, "int8"), "int8"),
        (lambda a, i: a[i].astype("int32") + a[i].astype("int64"), "int8"),
        (lambda a, i: a[i].astype("int64"), "int64"),
    ],
)
def test_cache_read_refuses_elements_that_are_not_cast(element: Any, used: str) -> None:
    a = te.placeholder((n,), "int8", name="A")
    b = te.compute((n,), lambda i: element(a, i), name="B")
    s = te.create_schedule(b.op)
    message = f"cache_read of A: .* cast each element to int32, got B, which uses it as {used}"
    with pytest.raises(tvm.CompileError, match=message):
        s.cache_read(a, "global", [b], "int32")
    with pytest.raises(tvm.CompileError, match=r"cast each element to int32|one element in each"):
        s.cache_access(a, "global", b, dtype="int32")


@pytest.mark.parametrize("sums", [False, True])
def test_cache_access_casts(sums: bool) -> None:
    """A choice around the cast is copied, too."""
    a = te.placeholder((8,), "int8", name="A")
    k = te.reduce_axis((0, 3), name="k")

    def element(i: Any) -> Any:
        value = te.if_then_else(i + k > 0, a[i + k - 1].astype("int32"), 7)
        return te.sum(value * value, axis=k)

    b = te.compute((6,), element, name="B")
    s = te.create_schedule(b.op)
    copy = s.cache_access(a, "global", b, sums=sums, dtype="int32")
    assert copy.dtype == "int32"
    assert not [*find(Cast, *body_of(s, b))]

    def windows(x: Any) -> Any:
        padded = np.append(np.int32(7), x[:7].astype("int32"))
        return sum(padded[j : j + 6] ** 2 for j in range(3))

    check(s, [a, b], windows)


# Places of a copy of what the sums of segments read: by the loops at it and inside of it.
def at_no_axis(s: te.Schedule, copy: Any, sums: Any, out: Any) -> None:
    s[copy].compute_at(s[sums], s[sums].fuse())


def at_a_block_of_rows(s: te.Schedule, copy: Any, sums: Any, out: Any) -> None:
    outer, _ = s[sums].split(sums.op.axis[0], 2)
    s[copy].compute_at(s[sums], outer)


def at_a_row_of_a_block(s: te.Schedule, copy: Any, sums: Any, out: Any) -> None:
    outer, _ = s[out].split(out.op.axis[0], 2)
    s[sums].compute_at(s[out], outer)
    s[copy].compute_at(s[sums], sums.op.axis[0])


def at_a_block_of_the_reader(s: te.Schedule, copy: Any, sums: Any, out: Any) -> None:
    outer, _ = s[out].split(out.op.axis[0], 2)
    s[sums].compute_at(s[out], outer)
    s[copy].compute_at(s[out], outer)


def at_a_part_of_a_segment(s: te.Schedule, copy: Any, sums: Any, out: Any) -> None:
    outer, _ = s[sums].split(sums.op.reduce_axis[0], 2)
    s[copy].compute_at(s[sums], outer)


def around_the_parts_of_segments(s: te.Schedule, copy: Any, sums: Any, out: Any) -> None:
    s[sums].split(sums.op.reduce_axis[0], 2)
    s[copy].compute_at(s[sums], s[sums].fuse())


@pytest.mark.covering(2)
@pytest.mark.parametrize(
    "place",
    [
        at_no_axis, at_a_block_of_rows, at_a_row_of_a_block, at_a_block_of_the_reader,
        at_a_part_of_a_segment, around_the_parts_of_segments,
    ],
)  # fmt: skip
@pytest.mark.parametrize("rows", [1, 4, 5])
@pytest.mark.parametrize("computed", [False, True])
def test_a_copy_of_segments(place: Callable[..., None], rows: int, computed: bool) -> None:
    """Data says where a segment ends: a copy for several rows has all elements, and beyond the last
    row no end is read."""
    a = te.placeholder((6,), name="A")
    p = te.placeholder((rows + 1,), "int32", name="P")
    ends = te.compute((rows + 1,), lambda i: p[i] + 0, name="ends") if computed else p

    def segment(i: Any) -> Any:
        k = te.reduce_axis((ends[i], ends[i + 1]), "k")
        return te.sum(a[k] * 2, axis=k)

    sums = te.compute((rows,), segment, name="sums")
    out = te.compute((rows,), lambda i: sums[i] + 1, name="out")
    s = te.create_schedule(out.op)
    place(s, s.cache_read(a, "local", [sums]), sums, out)
    values, borders = np.arange(6, dtype="float32"), np.array([0, 2, 2, 3, 6, 6], "int32")
    wanted = [values[i:j].sum() * 2 + 1 for i, j in pairwise(borders[: rows + 1])]
    made = np.empty(rows, "float32")
    tvm.build(s, [a, p, out])(values, borders[: rows + 1], made)
    np.testing.assert_array_equal(made, wanted)
    interpret(tvm.lower(s, [a, p, out])["main"], values, borders[: rows + 1], made)
    np.testing.assert_array_equal(made, wanted)


def test_cache_write(golden: Golden) -> None:
    a, b, s = sums()
    cache = s.cache_write(b, "local")
    s[cache].compute_at(s[b], b.op.axis[0])
    golden(text(s, [a, b]))
    check(s, [a, b], sum_rows)


def test_cache_write_keeps_the_layout_of_loops(golden: Golden) -> None:
    a, b, c, s = rows()
    xo, yo, xi, yi = s[c].tile(*c.op.axis, 4, 3)
    s[c].reorder(yo, xo, yi, xi)
    s.cache_write(c, "global")
    s[b].compute_inline()
    golden(text(s, [a, c]))
    check(s, [a, c], twice_and_one)


def test_cache_write_twice() -> None:
    a, b, s = sums()
    first = s.cache_write(b, "local")
    second = s.cache_write(first, "local")
    assert [each.name for each in s.stages] == ["A", "B.local.local", "B.local", "B"]
    s[second].compute_at(s[first], s[first].op.axis[0])
    check(s, [a, b], sum_rows)


def argmax(size: Any) -> tuple[Any, Any, Any, Any]:
    def later(x: Any, y: Any) -> Any:
        first = te.any(x[1] > y[1], te.all(x[1] == y[1], x[0] < y[0]))
        return te.if_then_else(first, x[0], y[0]), te.if_then_else(first, x[1], y[1])

    best = te.comm_reducer(later, lambda t0, t1: (te.const(1000, t0), te.min_value(t1)))
    a = te.placeholder((4, size), "int32", name="A")
    k = te.reduce_axis((0, size), "k")
    index, value = te.compute((4,), lambda i: best((k.var, a[i, k]), axis=k), name="M")
    return a, index, value, te.create_schedule(index.op)


def greatest(a: Any) -> Any:
    return a.argmax(axis=1), a.max(axis=1)


@pytest.mark.parametrize("size", [1, 5, 8])
def test_cache_write_of_several_tensors(size: int) -> None:
    a, index, value, s = argmax(size)
    caches = s.cache_write([index, value], "local")
    assert [each.name for each in caches] == ["M.local.v0", "M.local.v1"]
    check(s, [a, index, value], greatest)


def test_rfactor(golden: Golden) -> None:
    a, b, s = sums()
    _, inner = s[b].split(b.op.reduce_axis[0], 4)
    s.rfactor(b, inner)
    golden(text(s, [a, b]))
    check(s, [a, b], sum_rows)


def first_greatest(size: int) -> tuple[Any, Any, Any, Any]:
    best = te.comm_reducer(
        lambda x, y: tuple(te.if_then_else(x[1] >= y[1], x[i], y[i]) for i in range(2)),
        lambda t0, t1: (te.const(-1, t0), te.min_value(t1)),
        name="argmax",
    )
    a, k = te.placeholder((4, size), "int32", name="A"), te.reduce_axis((0, size), "k")
    index, value = te.compute((4,), lambda i: best((k.var, a[i, k]), axis=k), name="M")
    return a, index, value, te.create_schedule(index.op)


def test_find_block(golden: Golden) -> None:
    a, index, value, s = first_greatest(10)
    best, block = s.find_block(index, 4)
    assert (best.shape, block.shape) == ((4, 3), (4,))
    golden(text(s, [a, index, value]).split("M.v0[i_2] = -1\n")[1])
    check(s, [a, index, value], greatest)


@pytest.mark.parametrize("size", [1, 7, 10])
def test_find_block_of_any_size(size: int) -> None:
    a, index, value, s = first_greatest(10)
    s.find_block(value, size)
    check(s, [a, index, value], greatest)


def test_find_block_refuses_other_reductions() -> None:
    by_place = te.comm_reducer(
        lambda a, b: tuple(te.if_then_else(a[0] <= b[0], a[i], b[i]) for i in range(2)),
        lambda place, value: (te.max_value(place), te.const(0, value)),
    )
    x, k = te.placeholder((9,), name="X"), te.reduce_axis((0, 9), "k")
    first, _ = te.compute((1,), lambda _: by_place((k.var, x[k]), axis=k), name="F")
    with pytest.raises(tvm.CompileError, match="find_block of F: expected a reduction of tuples"):
        te.create_schedule(first.op).find_block(first, 3)
    _, index, _, s = first_greatest(10)
    with pytest.raises(tvm.CompileError, match=r"from 1 to the steps of k, .* got 11 of 10"):
        s.find_block(index, 11)


def gram(size: int) -> tuple[Any, Any, Any]:
    a, k = te.placeholder((size, m), "int32", name="A"), te.reduce_axis((0, m), "k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * a[j, k], axis=k), name="C")
    return a, c, te.create_schedule(c.op)


def test_mirror(golden: Golden) -> None:
    a, c, s = gram(9)
    assert s.mirror(c, c.op.axis, 4).name == "C.half"
    golden(text(s, [a, c]))
    check(s, [a, c], lambda x: x @ x.T)


@pytest.mark.parametrize("block", [1, 3, 9, 20])
def test_mirror_in_blocks_of_any_size(block: int) -> None:
    a, c, s = gram(9)
    s.mirror(c, [c.op.axis[1], c.op.axis[0]], block)
    check(s, [a, c], lambda x: x @ x.T)


@pytest.mark.parametrize(
    "term",
    [
        lambda a, i, j, k: a[i, k] * a[k, j],
        lambda a, i, j, k: a[i, k] - a[j, k],
        lambda a, i, j, k: te.if_then_else(i < j, a[i, k] * a[j, k], 0),
        lambda a, i, j, k: called("abs", a[i, k]) * called("labs", a[j, k]),
        lambda a, i, j, k: tvm.tir.call_extern("int32", "abs", a[i, k] + a[j, k]),
    ],
    ids=["two ways", "sign", "one side", "two functions", "effects"],
)
def test_mirror_refuses_what_is_not_symmetric(term: Any) -> None:
    a, k = te.placeholder((9, 9), "int32", name="A"), te.reduce_axis((0, 9), "k")
    c = te.compute((9, 9), lambda i, j: te.sum(term(a, i, j, k), axis=k), name="C")
    with pytest.raises(tvm.CompileError, match="mirror of C: expected two of its data axes that"):
        te.create_schedule(c.op).mirror(c, c.op.axis, 3)


def test_join(golden: Golden) -> None:
    x, w, a, b, s = statistics()
    assert [each.shape for each in s.join([a, b])] == [(9,), (9,)]
    golden(text(s, [x, w, a, b]))
    check(s, [x, w, a, b], lambda x, w: ((x * w).sum(1), (x - 2).max(1)))


def test_join_of_different_readers() -> None:
    """One result is an output, the other is read by a stage behind both."""
    x, w, a, b, _ = statistics()
    c = te.compute((9,), lambda i: a[i] - b[i], name="C")
    s = te.create_schedule([c.op, a.op])
    sums: Any = s.join([b, a])
    assert s[sums[0]] is s[sums[1]] and s[sums[0]].op.num_outputs == 2
    check(s, [x, w, c, a], lambda x, w: ((x * w).sum(1) - (x - 2).max(1), (x * w).sum(1)))
    assert te.replay(s.trace(), [c.op, a.op]).trace() == s.trace()


def statistics() -> tuple[Any, Any, Any, Any, Any]:
    """A sum and a maximum of rows, each with axes of its own."""
    x, w = te.placeholder((9, 6), "int32", name="X"), te.placeholder((6,), "int32", name="W")
    k, r = te.reduce_axis((0, 6), "k"), te.reduce_axis((0, 6), "r")
    a = te.compute((9,), lambda i: te.sum(x[i, k] * w[k], axis=k), name="A")
    b = te.compute((9,), lambda j: te.max(x[j, r] - 2, axis=r), name="B")
    return x, w, a, b, te.create_schedule([a.op, b.op])


def test_hoist_of_reassociated_factors() -> None:
    x, y, z = (te.placeholder((4, 4), "float64", name=name) for name in "XYZ")
    k = te.reduce_axis((0, 4), "k")
    c = te.compute((4, 4), lambda i, j: te.sum(x[i, k] * y[k, j] * z[k, j], axis=k), name="C")
    s = te.create_schedule(c.op)
    with pytest.raises(tvm.CompileError, match="hoist of C: expected a computed value"):
        s.hoist(c, [c.op.axis[1], k])
    s[c].reassociate()
    part = s.hoist(c, [c.op.axis[1], k])
    assert str(body_of(s, part)[0]) == "Y[k, j] * Z[k, j]"
    check(s, [x, y, z, c], lambda x, y, z: x @ (y * z))


def called(name: str, value: Any) -> Any:
    return tvm.tir.call_pure_extern("int32", name, value)


def test_mirror_looks_at_shared_terms_once() -> None:
    a, k = te.placeholder((9, 9), name="A"), te.reduce_axis((0, 9), "k")

    def term(i: Any, j: Any) -> Any:
        x = a[i, k] * a[j, k]
        for _ in range(60):
            x = x * x + x
        return x

    c = te.compute((9, 9), lambda i, j: te.sum(term(i, j), axis=k), name="C")
    assert te.create_schedule(c.op).mirror(c, c.op.axis, 3).name == "C.half"


def test_factor_out(golden: Golden) -> None:
    a, w = te.placeholder((7, 9), name="A"), te.placeholder((7,), name="W")
    i, j = te.reduce_axis((2, 7), "i"), te.reduce_axis((0, 9), "j")
    b = te.compute(
        (4,), lambda r: te.sum(w[r] * (a[i, j] * a[r, j]) / w[i], [i, j], j < i + r + 1), name="B"
    )
    s = te.create_schedule(b.op)
    sums: Any = s.factor_out(b, [j])
    assert sums.shape == (4, 5)
    s.factor_out(b, [i])
    golden(text(s, [a, w, b]))
    x, v, got = np.ones((7, 9), "float32"), np.arange(1, 8, dtype="float32"), np.zeros(4, "float32")
    tvm.build(s, [a, w, b])(x, v, got)
    terms = [sum(min(i + r + 1, 9) / v[i] for i in range(2, 7)) for r in range(4)]
    np.testing.assert_allclose(got, v[:4] * terms, rtol=1e-5)


def test_windows_under_a_condition_on_their_place() -> None:
    """The inner sums are those of each place, not those of each sum of a place and a step."""
    a, v = te.placeholder((9, 6, 5), "int32", name="A"), te.placeholder((3,), "int32", name="V")
    w, k, j = (te.reduce_axis((0, n), name) for n, name in ((3, "w"), (6, "k"), (5, "j")))
    condition: Any = lambda i, k: (i + k) % 3 != 1  # noqa: E731  # of axes and of arrays
    terms: list[Any] = [lambda i: a[i + w, k, j] * v[w], lambda i: a[i + w, k, j]]
    x = np.random.default_rng(0).integers(-99, 99, (9, 6, 5)).astype("int32")
    for term, factors in zip(terms, ([1, 2, 3], [1, 1, 1]), strict=True):
        b = te.compute(
            (7,), lambda i, f=term: te.sum(f(i), [w, k, j], where=condition(i, k)), name="B"
        )
        s = te.create_schedule(b.op)
        if term is terms[0]:
            s.factor_out(b, [j])
        got, mask = np.zeros(7, "int32"), condition(np.arange(7)[:, None], np.arange(6))
        tvm.build(s, [a, v, b])(x, np.array(factors, "int32"), got)
        sums = [(x[i : i + 3].sum(2) * mask[i]).sum(1) @ factors for i in range(7)]
        np.testing.assert_array_equal(got, sums)


def test_omit_zeros(golden: Golden) -> None:
    a, b, k = (
        te.placeholder((7, 7), name="A"),
        te.placeholder((7, 5), name="B"),
        te.reduce_axis((0, 7), "k"),
    )
    x = te.compute((7, 7), lambda i, j: te.if_then_else(j <= i, a[i, j], -math.inf), name="X")
    e = te.compute((7, 7), lambda i, j: te.exp(x[i, j] * 0.5), name="E")
    c = te.compute((7, 5), lambda i, j: te.sum(e[i, k] * b[k, j], k), name="C")
    s = te.create_schedule(c.op)
    s[c].omit_zeros()
    s[x].compute_inline()
    golden(text(s, [a, b, c]))
    with pytest.raises(tvm.CompileError, match="omit_zeros of C: expected a sum, minimum or max"):
        s[c].omit_zeros()


def test_reassociate(golden: Golden) -> None:
    a, b = te.placeholder((7, 9), name="A"), te.placeholder((9, 5), name="B")
    v, k = te.placeholder((9,), name="V"), te.reduce_axis((0, 9), "k")
    c = te.compute((7, 5), lambda i, j: te.sum(a[i, k] * (2.0 * b[k, j]) / v[k], k), name="C")
    s = te.create_schedule(c.op)
    s[c].reassociate()
    s.hoist(c, [c.op.axis[1], c.op.reduce_axis[0]])
    golden(text(s, [a, b, v, c]))
    with pytest.raises(tvm.CompileError, match="expected a contraction in which factors"):
        s[c].reassociate()


def test_factor_out_refuses_sums_without_terms() -> None:
    a, w = te.placeholder((7, 9), name="A"), te.placeholder((7,), name="W")
    i, j = te.reduce_axis((0, 7), "i"), te.reduce_axis((0, 9), "j")
    b = te.compute((1,), lambda _: te.sum(a[i, j] * w[i], [i, j], j < i), name="B")
    s = te.create_schedule(b.op)
    with pytest.raises(tvm.CompileError, match="expected a term in each of the inner sums"):
        s.factor_out(b, [j])
    with pytest.raises(tvm.CompileError, match="expected one sum of products"):
        short = te.compute((1,), lambda _: te.prod(a[i, j] * w[i], [i, j]), name="P")
        te.create_schedule(short.op).factor_out(short, [j])
    s[b].split(j, 2)
    with pytest.raises(tvm.CompileError, match="factor_out of B: expected loops as they began"):
        s.factor_out(b, [i])


def test_unstack(golden: Golden) -> None:
    """Axes, ranges and conditions of each place; a sum, and a stage that reads it."""
    a = te.placeholder((5, 9), name="A")

    def element(c: Any, i: Any) -> Any:
        k = te.reduce_axis((c, 9), "k")
        return te.sum(te.if_then_else(c == 1, a[i, k], a[i, 8 - k] * 2.0), axis=k)

    b = te.compute((3, 5), element, name="B")
    d = te.compute((3, 5), lambda c, i: b[c, i] + 1.0, name="D")
    s = te.create_schedule(d.op)
    parts = s.unstack(b, b.op.axis[0])
    assert [str(each) for each in parts] == [
        f"Tensor(shape=[5], op.name=B.{place})" for place in range(3)
    ]
    golden(text(s, [a, d]))
    x, got = np.arange(45, dtype="float32").reshape(5, 9), np.zeros((3, 5), "float32")
    tvm.build(s, [a, d])(x, got)
    expected = [2 * x.sum(1), x[:, 1:].sum(1), 2 * x[:, :7].sum(1)]
    np.testing.assert_array_equal(got, np.array(expected) + 1)


def test_unstack_of_several_results() -> None:
    a = te.placeholder((5, 9), name="A")
    ends = te.comm_reducer(
        lambda x, y: (te.min(x[0], y[0]), te.max(x[1], y[1])),
        lambda low, high: (te.max_value(low), te.min_value(high)),
        name="ends",
    )
    k = te.reduce_axis((0, 9), "k")

    def element(i: Any, c: Any) -> Any:
        return ends((a[i, k] * te.if_then_else(c == 0, 1.0, -1.0), a[i, k]), axis=k)

    low, high = te.compute((5, 2), element, name="B")
    s = te.create_schedule(low.op)
    s.unstack(low, low.op.axis[1])
    x = np.random.default_rng(0).random((5, 9), dtype="float32")
    lows, highs = np.zeros((5, 2), "float32"), np.zeros((5, 2), "float32")
    tvm.build(s, [a, low, high])(x, lows, highs)
    np.testing.assert_array_equal(lows, np.stack([x.min(1), -x.max(1)], 1))
    np.testing.assert_array_equal(highs, np.stack([x.max(1)] * 2, 1))


def test_unstack_refuses_long_axes() -> None:
    a = te.placeholder((17, te.var("n")), name="A")
    b = te.compute(a.shape, lambda i, j: a[i, j] + 1.0, name="B")
    for axis in b.op.axis:
        with pytest.raises(tvm.CompileError, match="unstack of B: expected an axis of 1 to 16"):
            te.create_schedule(b.op).unstack(b, axis)


@pytest.mark.parametrize("steps", [1, 3])
def test_unstack_refuses_time(steps: int) -> None:
    x, state = te.placeholder((steps, 4), name="X"), te.placeholder((steps, 4), name="S")
    first = te.compute((1, 4), lambda _, j: x[0, j], name="first")
    update = te.compute((steps, 4), lambda t, j: state[t - 1, j] + x[t, j], name="U")
    scan = te.scan(first, update, state, name="R")
    s = te.create_schedule(scan.op)
    with pytest.raises(tvm.CompileError, match="unstack of U: expected another axis than t, the t"):
        s.unstack(update, update.op.axis[0])
    s.unstack(update, update.op.axis[1])
    check(s, [x, scan], lambda x: np.cumsum(x, axis=0))


def test_hoist(golden: Golden) -> None:
    a, w = te.placeholder((7, 9), name="A"), te.placeholder((9,), name="W")
    k = te.reduce_axis((2, 7), "k")
    b = te.compute(
        (3, 9),
        lambda r, j: te.sum(te.exp(a[k, j] * w[j]) * te.tanh(a[r + k - 2, j]), k, k != 3),
        name="B",
    )
    s = te.create_schedule(b.op)
    parts: Any = s.hoist(b, [k, b.op.axis[1]])
    assert (parts.op.name, parts.shape) == ("B.exp", (5, 9))
    with pytest.raises(tvm.CompileError, match="hoist of B: expected a computed value"):
        s.hoist(b, [k, b.op.axis[1]])
    golden(text(s, [a, w, b]))
    rng = np.random.default_rng(0)
    x, v, got = rng.random((7, 9), "float32"), rng.random(9, "float32"), np.zeros((3, 9), "float32")
    tvm.build(s, [a, w, b])(x, v, got)
    terms = [[np.exp(x[k] * v) * np.tanh(x[r + k - 2]) for k in (2, 4, 5, 6)] for r in range(3)]
    np.testing.assert_allclose(got, np.sum(terms, axis=1), rtol=1e-5)


def test_repeat_rows(golden: Golden) -> None:
    a, w = te.placeholder((7, 5), name="A"), te.placeholder((2, 5), name="W")
    b = te.compute((7, 5), lambda i, j: a[i, j] * w[1, j] + w[i % 2, j], name="B")
    s = te.create_schedule(b.op)
    rows = s.repeat_rows(w, b, 3)
    assert rows.op.name == "W.repeated"
    assert [int(str(n)) for n in rows.shape] == [2, 3, 5]
    assert isinstance(b.op, te.ComputeOp)
    loop = s[b].fuse(*b.op.axis)
    s[b].split(loop, 15)
    golden(text(s, [a, w, b]))
    rng = np.random.default_rng(0)
    x, v, got = rng.random((7, 5), "float32"), rng.random((2, 5), "float32"), np.empty((7, 5), "f")
    tvm.build(s, [a, w, b])(x, v, got)
    np.testing.assert_allclose(got, x * v[1] + v[np.arange(7) % 2], rtol=1e-6)


@pytest.mark.parametrize("factor_axis", [0, 1, -1, -2])
def test_rfactor_puts_the_new_axis_anywhere(factor_axis: int) -> None:
    a, b, s = sums()
    outer, _ = s[b].split(b.op.reduce_axis[0], 3)
    partial: Any = s.rfactor(b, outer, factor_axis)
    place = factor_axis % 2
    assert [each.name for each in partial.op.axis][place] == "k.outer"
    check(s, [a, b], sum_rows)


@pytest.mark.parametrize("takes_first", [True, False])
def test_rfactor_finds_the_same_of_equal_elements(takes_first: bool) -> None:
    def better(a: Any, b: Any) -> Any:
        return a[1] >= b[1] if takes_first else a[1] > b[1]

    reducer = te.comm_reducer(
        lambda a, b: tuple(te.if_then_else(better(a, b), a[i], b[i]) for i in range(2)),
        lambda index, value: (te.const(-1, index), te.min_value(value)),
        name="place",
    )
    x, k = te.placeholder((3, 50), name="X"), te.reduce_axis((0, 50), "k")
    place, value = te.compute((3,), lambda i: reducer((k.var, x[i, k]), axis=k), name="A")
    s = te.create_schedule(place.op)
    _, inner = s[place].split(k, factor=8)
    s.rfactor(place, inner)
    given = np.random.default_rng(0).integers(0, 3, (3, 50)).astype("float32")
    places, values = np.empty(3, "int32"), np.empty(3, "float32")
    tvm.build(s, [x, place, value])(given, places, values)
    expected = given.argmax(1) if takes_first else 49 - given[:, ::-1].argmax(1)
    np.testing.assert_array_equal(places, expected)


def test_rfactor_of_a_whole_axis_and_again() -> None:
    a, b, s = sums()
    s.rfactor(b, b.op.reduce_axis[0])
    check(s, [a, b], sum_rows)
    _, inner = s[b].split(s[b].op.reduce_axis[0], 2)
    s.rfactor(b, inner)
    check(s, [a, b], sum_rows)


@pytest.mark.parametrize("size", [1, 5, 8])
def test_rfactor_of_several_results(size: int) -> None:
    a, index, value, s = argmax(size)
    _, inner = s[index].split(s[index].op.reduce_axis[0], 3)
    partial = s.rfactor(index, inner)
    s[partial[0]].compute_at(s[index], index.op.axis[0])
    check(s, [a, index, value], greatest)


def test_rfactor_keeps_init_and_where() -> None:
    a = te.placeholder((n, m), "int32", name="A")
    k = te.reduce_axis((0, m), "k")
    b = te.compute((n,), lambda i: te.sum(a[i, k], axis=k, where=a[i, k] > 0, init=7), name="B")
    for factor in (1, 2, 100):
        s = te.create_schedule(b.op)
        s.rfactor(b, s[b].split(k, factor)[1])
        check(s, [a, b], lambda x: 7 + sum_rows(np.maximum(x, 0)))


FROM_2: dict[str, Callable[[Any, Any, Any], object]] = {
    "rfactor": lambda s, a, b: s.rfactor(b, b.op.reduce_axis[0]),
    "rfactor_inner": lambda s, a, b: s.rfactor(b, s[b].split(b.op.reduce_axis[0], 3)[1]),
    "rfactor_outer": lambda s, a, b: s.rfactor(b, s[b].split(b.op.reduce_axis[0], nparts=3)[0]),
    "rfactor_twice": lambda s, a, b: (
        s.rfactor(b, s[b].split(b.op.reduce_axis[0], 4)[0]),
        s.rfactor(b, s[b].split(s[b].op.reduce_axis[0], 2)[1]),
    ),
    "cache_access": lambda s, a, b: s.cache_access(a, "global", b),
    "cache_read": lambda s, a, b: s[s.cache_read(a, "local", [b])].compute_at(
        s[b], s[b].split(b.op.reduce_axis[0], 3)[0]
    ),
    "cache_write": lambda s, a, b: s.cache_write(b, "local"),
    "cache_write_in_layout": lambda s, a, b: (
        s[b].split(b.op.axis[0], 3),
        s[b].split(b.op.reduce_axis[0], 3),
        s.cache_write(b, "local"),
    ),
    "tiles": lambda s, a, b: s[b].reorder(
        *s[b].split(b.op.reduce_axis[0], 3), *s[b].split(b.op.axis[0], 2)
    ),
    "placed": lambda s, a, b: s[s.cache_write(b, "local")].compute_at(
        s[b], s[b].split(b.op.axis[0], 3)[0]
    ),
}


@pytest.mark.parametrize("end", [9, n], ids=str)
@pytest.mark.parametrize("how", FROM_2)
def test_a_reduction_that_does_not_begin_at_0(how: str, end: Any) -> None:
    """Each element differs, so that one taken from elsewhere shows."""
    a = te.placeholder((5, end), "int32", name="A")
    k = te.reduce_axis((2, end), "k")
    b: Any = te.compute((5,), lambda i: te.sum(a[i, k] * (k * k + i + 1), axis=k), name="B")
    s: Any = te.create_schedule(b.op)
    FROM_2[how](s, a, b)
    function = tvm.build(s, [a, b])
    for size in (2, 3, 9, 17) if end is n else (9,):
        x = np.random.default_rng(0).integers(-999, 999, (5, size)).astype("int32")
        j, i = np.arange(2, size), np.arange(5)[:, None]
        got = np.full(5, -77, "int32")
        function(x, got)
        np.testing.assert_array_equal(got, (x[:, 2:] * (j * j + i + 1)).sum(axis=1))


# -- Reducers that depend on the element ----------------------------------------------------------


def up_or_down(kind: str) -> tuple[Any, Any, Any, Any, Any]:
    """The greatest element of some rows, the least of others, and twice that plus 1."""
    a, w = te.placeholder((7, 9), "int32", name="A"), te.placeholder((7,), "int32", name="W")
    k = te.reduce_axis((1, 9), "k")

    def row(i: Any) -> Any:
        up = w[i] > 0 if kind == "tensor" else i % 2 == 0
        reducer = te.comm_reducer(
            lambda x, y: te.if_then_else(up, te.max(x, y), te.min(x, y)),
            lambda t: te.if_then_else(up, te.min_value(t), te.max_value(t)),
        )
        return reducer(a[i, k], axis=k, init=w[i] * i if kind == "init" else None)

    r = te.compute((7,), row, name="R")
    out = te.compute((7,), lambda i: r[i] * 2 + 1, name="out")
    return a, w, r, out, te.create_schedule(out.op)


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", ["axis", "tensor", "init"])
@pytest.mark.parametrize(
    "how", ["none", "layout", "cache_in_layout", "copied", "copied_by_axes", *FROM_2]
)
def test_a_reducer_that_depends_on_the_element(how: str, kind: str) -> None:
    a, w, r, out, s = up_or_down(kind)
    match how:
        case "layout":
            s[r].transform_layout(lambda i: [i // 3, i % 3])
        case "cache_in_layout":
            s[s.cache_write(r, "local")].transform_layout(lambda i: [i % 3, i // 3])
        case "copied":
            s.cache_read(w if kind != "axis" else a, "local", [r])
        case "copied_by_axes":
            if kind != "axis":
                s.cache_access(w, "global", r)
        case "none":
            pass
        case _:
            FROM_2[how](s, a, r)
    x = np.random.default_rng(0).integers(-99, 99, (7, 9)).astype("int32")
    v = np.array([3, -1, 0, 5, -2, 7, 1], "int32")
    got = np.full(7, -77, "int32")
    tvm.build(s, [a, w, out])(x, v, got)
    up = v > 0 if kind == "tensor" else np.arange(7) % 2 == 0
    begin = [v * np.arange(7)] if kind == "init" else []
    greatest_of = np.maximum.reduce([x[:, 1:].max(axis=1), *begin])
    least_of = np.minimum.reduce([x[:, 1:].min(axis=1), *begin])
    expected: Any = np.where(up, greatest_of, least_of)
    np.testing.assert_array_equal(got, expected * 2 + 1)


def test_a_reducer_that_adds_the_axis() -> None:
    """It isn't associative, so that its order counts: the primitives that keep that agree."""
    a = te.placeholder((7, 9), "float32", name="A")
    k = te.reduce_axis((0, 9), "k")

    def row(i: Any) -> Any:
        shifted = te.comm_reducer(
            lambda x, y: te.max(x, y + i.astype("float32")), lambda t: te.min_value(t)
        )
        return shifted(a[i, k], axis=k)

    r = te.compute((7,), row, name="R")
    out: Any = te.compute((7,), lambda i: r[i] + 1.0, name="out")
    x = np.random.default_rng(0).random((7, 9), "float32")
    for change in (
        lambda s: s.cache_write(r, "local"),
        lambda s: s.rfactor(r, r.op.reduce_axis[0]),
        lambda s: s[r].transform_layout(lambda i: [i % 4, i // 4]),
        lambda s: (s[r].split(r.op.axis[0], 4), s.cache_write(r, "local")),
        lambda s: s.cache_access(a, "local", r),
        lambda s: s[r].compute_at(s[out], out.op.axis[0]),
    ):
        s = te.create_schedule(out.op)
        change(s)
        got = np.zeros(7, "float32")
        tvm.build(s, [a, out])(x, got)
        rows = np.arange(7, dtype="float32")
        np.testing.assert_allclose(got, x.max(axis=1) + rows + 1.0, rtol=1e-6)


def test_set_scope(golden: Golden) -> None:
    a, b, c, s = rows()
    s[b].set_scope("local")
    s[b].compute_at(s[c], c.op.axis[1])
    golden(text(s, [a, c]))
    check(s, [a, c], twice_and_one)


def test_set_store_predicate(golden: Golden) -> None:
    a, b, s = vectors()
    outer, _ = s[b].split(b.op.axis[0], 4)
    s[b].set_store_predicate(te.all(b.op.axis[0] > 2, outer < 2))
    golden(text(s, [a, b]))
    x, y = np.arange(13, dtype="int32"), np.full(13, -5, "int32")
    tvm.build(s, [a, b])(x, y)
    np.testing.assert_array_equal(y, [-5] * 3 + [2 * i + 1 for i in range(3, 8)] + [-5] * 5)


def test_a_store_predicate_on_threads() -> None:
    a, b, s = vectors()
    outer, inner = s[b].split(b.op.axis[0], 4)
    x, y = te.thread_axis("threadIdx.x"), te.thread_axis("threadIdx.y")
    s[b].bind(inner, x)
    with pytest.raises(tvm.CompileError, match=r"that they are bound to, found threadIdx\.y"):
        s[b].set_store_predicate(te.all(x.var < 3, y.var > 0))
    s[b].bind(outer, y)
    s[b].set_store_predicate(te.all(x.var < 3, y.var > 0))
    assert "if i.inner < 3 and i.outer > 0:" in text(s, [a, b])
    assert text(te.replay(s.trace(), [b.op]), [a, b]) == text(s, [a, b])


def test_the_first_thread_of_a_reduction_axis_stores() -> None:
    """As classic programs write it, whose reductions run across threads."""
    A, k = te.placeholder((64,), name="A"), te.reduce_axis((0, 64), name="k")
    B = te.compute((1,), lambda i: te.sum(A[k], axis=k), name="B")

    def schedule(*predicates: Callable[[Any], Any]) -> te.Schedule:
        s = te.create_schedule(B.op)
        _, inner = s[B].split(k, factor=16)
        s.rfactor(B, inner)
        thread, op = te.thread_axis("threadIdx.x"), s[B].op
        assert isinstance(op, te.ComputeOp)
        s[B].bind(op.reduce_axis[0], thread)
        for predicate in predicates:
            s[B].set_store_predicate(predicate(thread.var))
        return s

    assert text(schedule(lambda x: x.equal(0)), [A, B]) == text(schedule(), [A, B])
    with pytest.raises(tvm.CompileError, match="that the first thread of a reduction axis fulfils"):
        schedule(lambda x: x.equal(1))


def test_transform_layout(golden: Golden) -> None:
    a, b, c, s = rows((6, 10))
    loops = s[b].transform_layout(lambda i, *j: [j[0] // 4, i, j[0] % 4])
    assert s[b].leaf_iter_vars == loops
    golden(text(s, [a, c]))
    check(s, [a, c], twice_and_one)


@pytest.mark.parametrize(
    ("layout", "shape"),
    [(lambda i, j: [i * 2, j], (5, 4)), (lambda i, j: i * 8 + j, (20,)),
     (lambda i, j: [j * 6 + i * 2], (23,)), (lambda i, j: [j // 2 * 8 + i, j % 2], (11, 2))],
)  # fmt: skip
def test_transform_layout_pads_between_elements(layout: Any, shape: tuple[int, ...]) -> None:
    """Places that no element has are zeros, wherever they lie."""
    a = te.placeholder((3, 4), name="A")
    b = te.compute((3, 4), lambda i, j: a[i, j] + 1.0, name="B")
    s = te.create_schedule(b.op)
    s[b].transform_layout(layout)
    x, made = np.arange(12, dtype="float32").reshape(3, 4), np.full(shape, 9, "float32")
    tvm.build(s, [a, b])(x, made)
    expected = np.zeros(shape, "float32")
    for i, j in np.ndindex(3, 4):
        place = layout(i, j)
        expected[tuple(place) if isinstance(place, list) else place] = x[i, j] + 1
    np.testing.assert_array_equal(made, expected)


def test_transform_layout_of_an_argument() -> None:
    a, _, c, s = rows((6, 10))
    s[c].transform_layout(lambda i, j: [j // 4, i, j % 4])
    function = tvm.build(s, [a, c])
    x, y = np.arange(60, dtype="int32").reshape(6, 10), np.zeros((3, 6, 4), "int32")
    function(x, y)
    padded = np.pad(x * 2 + 1, ((0, 0), (0, 2)))
    np.testing.assert_array_equal(y, padded.reshape(6, 3, 4).transpose(1, 0, 2))


def test_what_only_speeds_up_keeps_what_is_computed() -> None:
    a, b, c, s = rows((6, 10))
    s[b].compute_at(s[c], c.op.axis[0])
    s[b].storage_align(b.op.axis[0], 16, 3)
    s[b].double_buffer()
    s[c].prefetch(b, c.op.axis[1], 1)
    s[b].prefetch(a, b.op.axis[1], 2)
    lowered = str(tvm.lower(s, [a, c]))
    assert "prefetch(A[" in lowered
    assert "prefetch(B[" in lowered
    check(s, [a, c], twice_and_one)


# -- Ranges that depend on others -----------------------------------------------------------------


def triangle() -> tuple[Any, Any, Any, Any]:
    """Sums of the first i + 1 elements of row i."""
    a = te.placeholder((7, 7), "int32", name="A")
    b = te.compute((7, 7), lambda i, j: a[i, j] * 2, name="B")

    def row(i: Any) -> Any:
        k = te.reduce_axis((0, i + 1), "k")
        return te.sum(b[i, k], axis=k)

    c = te.compute((7,), row, name="C")
    return a, b, c, te.create_schedule(c.op)


def triangle_sums(a: Any) -> Any:
    return sum_rows(np.tril(a)) * 2


TRIANGLES: dict[str, Callable[[te.Schedule, Any, Any], object]] = {
    "plain": lambda s, b, c: None,
    "split_rows": lambda s, b, c: s[c].split(c.op.axis[0], 3),
    "split_columns": lambda s, b, c: s[c].split(c.op.reduce_axis[0], 3),
    "parts_of_columns": lambda s, b, c: s[c].split(c.op.reduce_axis[0], nparts=3),
    "at_rows": lambda s, b, c: s[b].compute_at(s[c], s[c].split(c.op.axis[0], 3)[0]),
    "at_columns": lambda s, b, c: s[b].compute_at(s[c], s[c].split(c.op.reduce_axis[0], 3)[0]),
    "cache_write": lambda s, b, c: s.cache_write(c, "local"),
    "cache_in_layout": lambda s, b, c: (s[c].split(c.op.axis[0], 3), s.cache_write(c, "local")),
    "rfactor": lambda s, b, c: s.rfactor(c, s[c].split(c.op.reduce_axis[0], 3)[1]),
}


@pytest.mark.parametrize("how", TRIANGLES)
def test_a_range_that_depends_on_another_axis(how: str) -> None:
    a, b, c, s = triangle()
    TRIANGLES[how](s, b, c)
    check(s, [a, c], triangle_sums)


def test_a_triangle_in_tiles(golden: Golden) -> None:
    a, b, c, s = triangle()
    outer, _ = s[c].split(c.op.axis[0], 3)
    s[b].compute_at(s[c], outer)
    golden(text(s, [a, c]))


SPARSE: dict[str, Callable[..., object]] = {
    "plain": lambda s, ends, d, c: None,
    "ends_at": lambda s, ends, d, c: s[ends].compute_at(s[c], c.op.axis[0]),
    "ends_inline": lambda s, ends, d, c: s[ends].compute_inline(),
    "ends_cached": lambda s, ends, d, c: s.cache_write(ends, "local"),
    "values_at": lambda s, ends, d, c: s[d].compute_at(s[c], c.op.axis[0]),
    "split": lambda s, ends, d, c: (
        s[c].split(c.op.axis[0], 3),
        s[c].split(c.op.reduce_axis[0], 2),
    ),
    "cache_write": lambda s, ends, d, c: s.cache_write(c, "local"),
    "rfactor": lambda s, ends, d, c: s.rfactor(c, s[c].split(c.op.reduce_axis[0], 2)[1]),
}


@pytest.mark.parametrize("how", SPARSE)
def test_a_range_that_is_read_from_a_tensor(how: str) -> None:
    p = te.placeholder((5,), "int32", name="P")
    x = te.placeholder((12,), "int32", name="X")
    d = te.compute((12,), lambda i: x[i] * 3, name="D")
    ends = te.compute((5,), lambda i: te.max(te.min(p[i], 12), 0), name="ends")

    def row(i: Any) -> Any:
        k = te.reduce_axis((ends[i], te.max(ends[i], ends[i + 1])), "k")
        return te.sum(te.if_then_else(k < 12, d[te.min(k, 11)], 0), axis=k)

    c = te.compute((4,), row, name="C")
    s = te.create_schedule(c.op)
    SPARSE[how](s, ends, d, c)
    begins = np.array([0, 3, 3, 9, 12], "int32")
    values = np.arange(12, dtype="int32")
    found = np.zeros(4, "int32")
    tvm.build(s, [p, x, c])(begins, values, found)
    expected = [3 * values[begins[i] : begins[i + 1]].sum() for i in range(4)]
    np.testing.assert_array_equal(found, expected)


# -- Scans ----------------------------------------------------------------------------------------


def recurrence() -> tuple[Any, Any, Any, Any, Any]:
    x = te.placeholder((m, n), "int32", name="X")
    state = te.placeholder((m, n), "int32", name="state")
    first = te.compute((1, n), lambda _, i: x[0, i], name="first")
    half = te.compute((m, n), lambda t, i: state[t - 1, i] * 2, name="half")
    step = te.compute((m, n), lambda t, i: half[t, i] + x[t, i], name="step")
    result = te.scan(first, step, state, inputs=[x], name="R")
    return x, half, step, result, te.create_schedule(result.op)


def recurred(x: Any) -> Any:
    found = x.copy()
    for t in range(1, len(x)):
        found[t] = found[t - 1] * 2 + x[t]
    return found


def check_scan(s: te.Schedule, x: Any, results: list[Any], expected: Any) -> None:
    function = tvm.build(s, [x, *results])
    for size in SIZES:
        (given,) = arrays([x], {n: size, m: 5})
        made = [np.full_like(given, 99) for _ in results]
        function(given, *made)
        for got, wanted in zip(made, expected(given), strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_scan(golden: Golden) -> None:
    x, half, step, result, s = recurrence()
    outer, _ = s[step].split(step.op.axis[1], 4)
    s[half].compute_at(s[step], outer)
    golden(text(s, [x, result]))
    check_scan(s, x, [result], lambda a: [recurred(a)])


def remembered(shape: tuple[Any, Any]) -> tuple[Any, Any, Any, Any]:
    """A scan whose update reads two steps of a stage that reads the step before each, reversed: the
    scan has memory of its own, so that the interpreter sees a read of what isn't written yet."""
    steps, width = shape
    x = te.placeholder(shape, "int32", name="X")
    state = te.placeholder(shape, "int32", name="state")
    first = te.compute((2, width), lambda t, i: x[t, i], name="first")
    twice = te.compute(shape, lambda t, i: state[t - 1, i] * 2, name="twice")
    k = te.reduce_axis((0, 2), "k")
    step = te.compute(shape, lambda t, i: te.sum(twice[t - k, i] - x[t, i], axis=k), name="step")
    result = te.scan(first, step, state, inputs=[x], name="R")
    out = te.compute(shape, lambda t, i: result[steps - 1 - t, i], name="out")
    return x, twice, step, out


def fused(s: te.Schedule, twice: Any, step: Any) -> None:
    """The last of the outer loop's iterations goes beyond the step."""
    t, i = step.op.axis
    outer, inner = s[step].split(s[step].fuse(t, i), 5)
    s[step].reorder(outer, step.op.reduce_axis[0], inner)
    s[twice].compute_at(s[step], outer)


def regrouped(s: te.Schedule, twice: Any, step: Any) -> None:
    """A stage between, at a loop over time that has a remainder."""
    local = s.cache_read(twice, "local", [step])
    outer, _ = s[local].split(s[local].leaf_iter_vars[0], 3)
    s[local].compute_at(s[step], step.op.axis[1])
    s[twice].compute_at(s[local], outer)


def of_each(s: te.Schedule, twice: Any, step: Any) -> None:
    s[twice].compute_at(s[step], step.op.reduce_axis[0])


@pytest.mark.parametrize("placed", [fused, regrouped, of_each])
@pytest.mark.parametrize("shape", [(6, 6), (5, 1), (3, 7), (2, 4), (m, n)], ids=str)
def test_a_scan_computes_no_step_that_it_does_not_read(placed: Any, shape: Any) -> None:
    x, twice, step, out = remembered(shape)
    s = te.create_schedule(out.op)
    placed(s, twice, step)
    lowered = tvm.lower(s, [x, out])
    function = tvm.build(s, [x, out])
    for size in (1, 4, 5, 11) if shape[1] is n else (0,):
        (given,) = arrays([x], {m: 7, n: size})
        expected = given.copy()
        for t in range(2, len(given)):
            expected[t] = 2 * (expected[t - 1] + expected[t - 2] - given[t])
        found = np.full_like(given, 99)
        interpret(lowered["main"], given, found)
        np.testing.assert_array_equal(found, expected[::-1])
        found[:] = 99
        function(given, found)
        np.testing.assert_array_equal(found, expected[::-1])


def test_a_place_in_fused_loops_of_symbolic_sizes() -> None:
    """An iteration reads one tile, whatever the sizes: those of a loop that runs aren't 0."""
    a = te.placeholder((n, n, m), "int32", name="A")
    b = te.compute((n, n, m), lambda i, j, k: a[i, j, k] * 2, name="B")
    c: Any = te.compute((n, n, m), lambda i, j, k: b[i, j, k] + 1, name="C")
    s: Any = te.create_schedule(c.op)
    i, j, k = c.op.axis
    outer, inner = s[c].split(k, 4)
    fused = s[c].fuse(i, j, outer)
    s[b].compute_at(s[c], fused)
    s[b].vectorize(b.op.axis[2])
    s[c].vectorize(inner)
    assert "B = allocate(int32[1, 1, 4])" in str(tvm.lower(s, [a, c], simple_mode=True))
    check(s, [a, c], lambda x: x * 2 + 1)


@pytest.mark.parametrize("placed", [False, True])
def test_a_range_is_not_read_beyond_the_domain(placed: bool) -> None:
    """Where a split has a remainder, the last iterations have no element to read a range for."""
    a, p = te.placeholder((40,), "int32", name="A"), te.placeholder((n + 1,), "int32", name="P")
    q = te.compute((n + 1,), lambda i: p[i] + 0, name="Q")

    def part(i: Any) -> Any:
        k = te.reduce_axis((q[i], q[i + 1]), "k")
        return te.sum(a[k], axis=k)

    r = te.compute((n,), part, name="R")
    out: Any = te.compute((n,), lambda i: r[i] + 1, name="out")
    s: Any = te.create_schedule(out.op)
    if placed:
        s[r].compute_at(s[out], s[out].split(out.op.axis[0], nparts=3)[1])
    else:
        s[r].split(r.op.axis[0], 3)
    lowered = tvm.lower(s, [a, p, out])["main"]
    x = np.arange(40, dtype="int32")
    for size in (1, 7, 8):
        ends = np.arange(size + 1, dtype="int32") * 4
        found = np.zeros(size, "int32")
        interpret(lowered, x, ends, found)
        expected = [x[i * 4 : i * 4 + 4].sum() + 1 for i in range(size)]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("factor", [1, 2, 3, 4])
def test_padding_in_time_is_not_computed(factor: int) -> None:
    """The steps that come beyond the scan's aren't written yet."""
    x = te.placeholder((7, 4), "int32", name="X")
    state = te.placeholder((7, 4), "int32", name="state")
    first = te.compute((3, 4), lambda t, i: x[t, i], name="first")
    twice = te.compute((7, 4), lambda t, i: state[t - 1, i] * 2, name="twice")
    step = te.compute((7, 4), lambda t, i: twice[t, i] + twice[t - 2, 3 - i], name="step")
    result = te.scan(first, step, state, inputs=x, name="R")
    out = te.compute((7, 4), lambda t, i: result[t, i] + 1, name="out")
    s: Any = te.create_schedule(out.op)
    s[twice].split(twice.op.axis[0], factor)
    given = np.arange(28, dtype="int32").reshape(7, 4)
    expected, found = given.copy(), np.zeros((7, 4), "int32")
    for t in range(3, 7):
        expected[t] = 2 * expected[t - 1] + 2 * expected[t - 3, ::-1]
    interpret(tvm.lower(s, [x, out])["main"], given, found)
    np.testing.assert_array_equal(found, expected + 1)


def test_scan_of_two_states() -> None:
    x = te.placeholder((m, n), "int32", name="X")
    states = [te.placeholder((m, n), "int32", name=f"state{i}") for i in range(2)]
    firsts = [te.compute((1, n), lambda _, i, v=v: x[0, i] * v, name=f"first{v}") for v in (1, 2)]
    steps = [
        te.compute((m, n), lambda t, i: states[0][t - 1, i] + x[t, i], name="up"),
        te.compute((m, n), lambda t, i: states[1][t - 1, i] + states[0][t - 1, i], name="over"),
    ]
    a, b = te.scan(firsts, steps, states, inputs=[x], name="R")
    s = te.create_schedule(a.op)
    s[steps[1]].vectorize(s[steps[1]].split(steps[1].op.axis[1], 4)[1])

    def expected(given: Any) -> list[Any]:
        one = given.cumsum(axis=0, dtype="int32")
        two = np.concatenate([given[:1] * 2, one[:-1]]).cumsum(axis=0, dtype="int32")
        return [one, two]

    check_scan(s, x, [a, b], expected)


# -- Schedules ------------------------------------------------------------------------------------


def test_lowering_and_scheduling_on() -> None:
    """`lower` works on a copy; `normalize` makes one."""
    a, b, c, s = rows()
    s[b].compute_at(s[c], c.op.axis[0])
    before = text(s, [a, c])
    copy = s.normalize()
    assert text(copy, [a, c]) == before
    s[c].split(c.op.axis[0], 3)
    assert text(copy, [a, c]) == before
    check(s, [a, c], twice_and_one)


def test_two_schedules_of_one_graph() -> None:
    a, b, c, s = rows()
    other = te.create_schedule(c.op)
    plain = text(other, [a, c])
    s[c].split(c.op.axis[0], 3)
    s.cache_write(c, "local")
    s[b].compute_inline()
    assert text(other, [a, c]) == plain
    check(s, [a, c], twice_and_one)


def test_an_output_that_another_reads() -> None:
    a, b, c, _ = rows()
    s = te.create_schedule([b.op, c.op])
    x, y = c.op.axis
    s[c].tile(x, y, 4, 3)
    check(s, [a, b, c], lambda x: (x * 2, x * 2 + 1))


def test_rank_0_and_rank_7() -> None:
    a = te.placeholder((), "int32", name="A")
    b = te.compute((), lambda: a[()] * 2, name="B")
    c = te.compute((), lambda: b[()] + 1, name="C")
    s = te.create_schedule(c.op)
    cache = s.cache_write(c, "local")
    s[b].compute_at(s[cache], s[cache].fuse())
    check(s, [a, c], twice_and_one)
    shape = (1, 2, 3, 1, 2, 3, 2)
    a = te.placeholder(shape, "int32", name="A")
    b = te.compute(shape, lambda *i: a(*i) * 2 + 1, name="B")
    s = te.create_schedule(b.op)
    s[b].split(s[b].fuse(*b.op.axis[1:6]), 5)
    check(s, [a, b], twice_and_one)


@pytest.mark.parametrize("how", ["inline", "last", "next"])
def test_long_chains(how: str) -> None:
    length = 120
    a = te.placeholder((5,), "int32", name="A")
    made: list[Any] = [a]
    for i in range(length):
        made.append(te.compute((5,), lambda j, x=made[-1]: x[j] + 1, name=f"t{i}"))
    last = made[-1]
    s = te.create_schedule(last.op)
    for each, reader in pairwise(made[1:]):
        if how == "inline":
            s[each].compute_inline()
        else:
            parent = last if how == "last" else reader
            s[each].compute_at(s[parent], parent.op.axis[0])
    check(s, [a, last], lambda x: x + length)


def test_a_factor_that_the_caller_passes_is_checked() -> None:
    n, factor = te.var("n"), te.var("f")
    source = te.placeholder((n,), name="A")
    twice = te.compute((n,), lambda i: source[i] * 2.0, name="B")
    s = te.create_schedule(twice.op)
    s[twice].split(twice.op.axis[0], factor=factor)
    f = tvm.build(s, [source, twice, factor], name="f")
    a, b = np.arange(7, dtype="float32"), np.zeros(7, "float32")
    f(a, b, 3)
    np.testing.assert_array_equal(b, a * 2)
    for wrong in (0, -2):
        with pytest.raises(ValueError, match=rf"split of i of B: .* 1 or more, got f = {wrong}"):
            f(a, b, wrong)
