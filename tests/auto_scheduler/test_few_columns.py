"""Results of few columns: computed transposed where vectors along a row's axis take fewer cycles;
and factors that lie across, which all tasks read from one copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te, tir
from minitvm.auto_scheduler.contraction import contraction_of
from minitvm.auto_scheduler.layouts import best_layout
from minitvm.target import Target
from minitvm.te.tensor import Tensor
from tests.whole_programs.running import strategies_that_failed

TARGET = "llvm -mcpu=haswell -num-cores=2"
SMALL = f"{TARGET} -l1d-cache-bytes=8192 -l2-cache-bytes=65536"  # many blocks of small products
TURNED = "computed as {orders}: copies counted, that takes fewer cycles"
SHARED = "{a} is copied once for all tasks: it is slow to read in its own layout"
Term = Callable[[Any, Any], Any]


def product(
    layout: str,
    rows: int,
    columns: int,
    steps: int,
    dtype: str = "float32",
    batch: tuple[int, ...] = (),
    reducer: Any = te.sum,
    term: Term = lambda a, b: a * b,
) -> list[Tensor]:
    """``C[..., i, j]``, the factors stored transposed where `layout` has a T."""
    a = (rows, steps) if layout[0] == "N" else (steps, rows)
    b = (steps, columns) if layout[1] == "N" else (columns, steps)
    A = te.placeholder((*batch, *a), dtype, name="A")
    B = te.placeholder((*batch, *b), dtype, name="B")
    k = te.reduce_axis((0, steps), name="k")

    def element(*axes: Any) -> Any:
        *outer, i, j = axes
        a = A(*outer, *((i, k) if layout[0] == "N" else (k, i)))
        b = B(*outer, *((k, j) if layout[1] == "N" else (j, k)))
        return reducer(term(a, b), axis=k)

    return [A, B, te.compute((*batch, rows, columns), element, name="C")]


def texts(output: Tensor, target: str = TARGET) -> list[str]:
    return [each.text for each in tvm.auto_schedule(output, target).choices]


def arrays(tensors: list[Tensor]) -> list[Any]:
    rng = np.random.default_rng(0)
    shapes = [tuple(int(n) for n in each.shape) for each in tensors]
    dtypes = [str(each.dtype) for each in tensors]
    return [rng.integers(-9, 10, s).astype(t) for s, t in zip(shapes, dtypes, strict=True)]


def stored(layout: str, a: Any, b: Any) -> tuple[Any, Any]:
    a = a if layout[0] == "N" else a.swapaxes(-1, -2)
    return a, b if layout[1] == "N" else b.swapaxes(-1, -2)


@pytest.mark.covering(1)
@pytest.mark.parametrize("columns", [1, 2, 3, 5, 8, 12, 17])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_few_columns(layout: str, columns: int) -> None:
    """Small integers have exact sums in any order."""
    tensors = product(layout, 101, columns, 70)
    a, b, c = arrays(tensors)
    tvm.build(tensors[-1], tensors, TARGET, name="f")(a, b, c)
    left, right = stored(layout, a, b)
    np.testing.assert_array_equal(c, left @ right)


@pytest.mark.parametrize("dtype", ["float64", "int32"])
@pytest.mark.parametrize("fp", ["fast", "strict"])
def test_types(dtype: str, fp: str) -> None:
    tensors = product("TN", 130, 3, 90, dtype)
    assert TURNED in texts(tensors[-1])
    a, b, c = arrays(tensors)
    tvm.build(tensors[-1], tensors, TARGET, name="f", fp=fp)(a, b, c)
    np.testing.assert_array_equal(c, a.T @ b)


def test_a_batch() -> None:
    tensors = product("TN", 66, 3, 50, batch=(2, 3))
    assert TURNED in texts(tensors[-1])
    a, b, c = arrays(tensors)
    tvm.build(tensors[-1], tensors, TARGET, name="f")(a, b, c)
    np.testing.assert_array_equal(c, a.swapaxes(-1, -2) @ b)


def test_other_reducers() -> None:
    tensors = product("TN", 90, 3, 40, reducer=te.min, term=lambda a, b: a + b)
    a, b, c = arrays(tensors)
    a[3, 5] = np.nan
    tvm.build(tensors[-1], tensors, TARGET, name="f")(a, b, c)
    np.testing.assert_array_equal(c, (a[:, :, None] + b[:, None, :]).min(0))


def test_an_epilogue_and_a_prologue() -> None:
    """What reads the sums finds them transposed; what is computed for a factor is still there."""
    rows, columns, steps = 120, 4, 80
    X = te.placeholder((steps, rows), name="X")
    B = te.placeholder((steps, columns), name="B")
    bias = te.placeholder((columns,), name="bias")
    A = te.compute((steps, rows), lambda i, j: X[i, j] + 1, name="A")
    k = te.reduce_axis((0, steps), name="k")
    C = te.compute((rows, columns), lambda i, j: te.sum(A[k, i] * B[k, j], axis=k), name="C")
    D = te.compute((rows, columns), lambda i, j: te.max(C[i, j] + bias[j], 0), name="D")
    tensors = [X, B, bias, D]
    assert TURNED in texts(D)
    x, b, added, d = arrays(tensors)
    tvm.build(D, tensors, TARGET, name="f")(x, b, added, d)
    np.testing.assert_array_equal(d, np.maximum((x + 1).T @ b + added, 0))


def test_sums_that_are_an_output_and_read() -> None:
    A, B, C = product("TN", 120, 4, 80)
    D = te.compute(C.shape, lambda i, j: C[i, j] * 2, name="D")
    a, b, c, d = arrays([A, B, C, D])
    tvm.build([C, D], [A, B, C, D], TARGET, name="f")(a, b, c, d)
    np.testing.assert_array_equal(c, a.T @ b)
    np.testing.assert_array_equal(d, 2 * c)


def test_wide_results_stay() -> None:
    """The last axis fills vectors, so a transposed result would only be copied."""
    for layout in ("NN", "NT", "TN", "TT"):
        assert TURNED not in texts(product(layout, 96, 96, 96)[-1])
    assert TURNED not in texts(product("NN", 3, 500, 400)[-1])


def test_prepacked_weights_stay() -> None:
    tensors = product("NT", 300, 3, 200)
    found = tvm.auto_schedule(tensors[-1], TARGET, prepacked=[tensors[1]]).choices
    assert TURNED not in [each.text for each in found]


@pytest.mark.parametrize("columns", [290, 333])
def test_tasks_share_one_copy(columns: int) -> None:
    """Steps of the rows' factor lie on more pages than the CPU finds without a walk."""
    tensors = product("TN", 203, columns, 401)
    assert SHARED in texts(tensors[-1], SMALL)
    a, b, c = arrays(tensors)
    tvm.build(tensors[-1], tensors, SMALL, name="f")(a, b, c)
    np.testing.assert_array_equal(c, a.T @ b)


def test_a_shared_copy_of_symbolic_size() -> None:
    n, m = te.var("n"), te.var("m")
    A, B = te.placeholder((n, m), name="A"), te.placeholder((n, 90), name="B")
    k = te.reduce_axis((0, n), name="k")
    C = te.compute((m, 90), lambda i, j: te.sum(A[k, i] * B[k, j], axis=k), name="C")
    f = tvm.build(C, [A, B, C], SMALL, name="f")
    for rows, steps in ((203, 401), (1, 5), (6, 0), (0, 7)):
        rng = np.random.default_rng(1)
        a, b = (rng.integers(-9, 10, (steps, w)).astype("float32") for w in (rows, 90))
        c = np.empty((rows, 90), "float32")
        f(a, b, c)
        np.testing.assert_array_equal(c, a.T @ b)


def test_a_row_of_one_element_is_no_column() -> None:
    """Its index is 0 in a stage that is laid out anew, so that no factor reads it."""
    A, B = te.placeholder((5, 2, 1), name="A"), te.placeholder((5, 2, 9), name="B")
    k, m = te.reduce_axis((0, 5), name="k"), te.reduce_axis((0, 2), name="m")
    C = te.compute((1, 9), lambda i, j: te.sum(A[k, m, i] * B[k, m, j], axis=[k, m]), name="C")
    contraction = contraction_of(C.op)
    assert contraction is not None
    layout = best_layout(contraction, Target("llvm -mcpu=znver3"))
    assert layout is not None and layout.result == ((0,), (1,))  # steps are flattened
    a, b = np.arange(10, dtype="float32").reshape(5, 2, 1), np.ones((5, 2, 9), "float32")
    c = np.empty((1, 9), "float32")
    tvm.build(C, [A, B, C], name="f")(a, b, c)
    np.testing.assert_array_equal(c, np.full((1, 9), 45))


def test_a_product_that_a_statement_reads_whole() -> None:
    """It is computed transposed, and stays as the statement reads it."""
    A, B = te.placeholder((500, 900), name="A"), te.placeholder((500, 3), name="B")
    k = te.reduce_axis((0, 500), "k")
    C = te.compute((900, 3), lambda i, j: te.sum(A[k, i] * B[k, j], axis=k), name="C")

    def twice(ins: Any, outs: Any) -> Any:
        ib = tir.ir_builder.create()
        source, target = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        with ib.for_range(0, 900, name="i") as i, ib.for_range(0, 3, name="j") as j:
            target[i, j] = source[i, j] * 2.0
        return ib.get()

    X = te.extern((900, 3), [C], twice, name="X")
    with strategies_that_failed() as failed:
        function = tvm.build(X, [A, B, X], TARGET)
    assert not failed
    a, b = np.ones((500, 900), "float32"), np.arange(1500, dtype="float32").reshape(500, 3)
    x = np.empty((900, 3), "float32")
    function(a, b, x)
    np.testing.assert_array_equal(x, 2 * a.T @ b)
