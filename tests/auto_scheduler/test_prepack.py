"""Arguments that are packed once: the function of the packed ones computes what the other does."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import te
from minitvm.te.tensor import ComputeOp, Operation, PlaceholderOp, Tensor
from minitvm.tir.expr import ProducerLoad
from minitvm.tir.functor import free_vars, walk_once
from minitvm.tir.interpreter import interpret
from tests.auto_scheduler.contractions import product
from tests.auto_scheduler.test_auto_schedule import QUICK, SLOW, TARGETS, contraction
from tests.schedules.programs import PROGRAMS, Draw, Program

Array = np.ndarray[Any, Any]
random = np.random.default_rng(11)
SHAPES = [(30, 70, 50), (1, 33, 7), (17, 5, 9)]  # m, n, k
HASWELL = "llvm -mcpu=haswell"
SMALL = [
    ("uint8", "int8", "int32"),
    ("int8", "int8", "int32"),
    ("int16", "int16", "int32"),
    ("int8", "int16", "int32"),
]


def numbers(shape: Any, dtype: Any) -> Array:
    """Small whole numbers, whose sums every dtype holds exactly."""
    low = 0 if str(dtype).startswith("u") else -9
    return random.integers(low, 10, tuple(map(int, shape))).astype(str(dtype))


def check(args: list[te.Tensor], prepacked: list[te.Tensor], target: str = "llvm") -> Any:
    """Both functions on the same arrays; that of the packed ones."""
    arrays = [numbers(arg.shape, arg.dtype) for arg in args]
    g = tvm.build([args[-1]], args, target, name="g")
    expected = np.empty_like(arrays[-1])
    g(*arrays[:-1], expected)
    return compare(args, prepacked, target, arrays[:-1], expected)


def check_product(args: list[te.Tensor], layout: str, target: str = "llvm") -> None:
    """The function of a packed B computes what numpy does."""
    a, b = (numbers(arg.shape, arg.dtype) for arg in args[:2])
    x, y = (each.astype(str(args[2].dtype)) for each in (a, b))
    expected = (x if layout[0] == "N" else x.T) @ (y if layout[1] == "N" else y.T)
    compare(args, [args[1]], target, [a, b], expected)


def compare(
    args: list[te.Tensor],
    prepacked: list[te.Tensor],
    target: str,
    inputs: list[Array],
    expected: Array,
) -> Any:
    """The function of the packed arguments, which gives what is expected."""
    f = tvm.build([args[-1]], args, target, name="f", prepacked=prepacked)
    packed: list[Any] = [
        tvm.prepack(f, arg.name, x) if arg in prepacked else x
        for arg, x in zip(args[:-1], inputs, strict=True)
    ]
    found = np.empty_like(expected)
    f(*packed, found)
    np.testing.assert_array_equal(found, expected)
    return f


# -- What is computed -----------------------------------------------------------------------------


DTYPES = [("float32",) * 3, ("float64",) * 3, *SMALL]


@pytest.mark.covering(1)
@pytest.mark.parametrize("layout", ["NN", "NT"])
@pytest.mark.parametrize("dtypes", DTYPES, ids="-".join)
@pytest.mark.parametrize("shape", SHAPES)
def test_products(shape: tuple[int, int, int], dtypes: tuple[str, str, str], layout: str) -> None:
    check_product(product(*shape, dtypes, layout), layout)


@pytest.mark.covering(2)
@pytest.mark.parametrize("layout", ["TN", "TT"])
@pytest.mark.parametrize("dtypes", DTYPES[::2], ids="-".join)
@pytest.mark.parametrize("target", TARGETS[1:])
def test_products_for_other_targets(dtypes: tuple[str, str, str], layout: str, target: str) -> None:
    check_product(product(30, 70, 50, dtypes, layout), layout, target)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["NN", "NT"])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_narrow_floats(shape: tuple[int, int, int], dtype: str, layout: str) -> None:
    torch = pytest.importorskip("torch")
    args = product(*shape, (dtype, dtype, "float32"), layout)
    f = tvm.build([args[2]], args, name="f", prepacked=[args[1]])
    a, b = (
        torch.from_numpy(numbers(arg.shape, "float32")).to(getattr(torch, dtype))
        for arg in args[:2]
    )
    packed = tvm.prepack(f, "B", b)
    assert packed.dtype == dtype
    c = np.empty(shape[:2], "float32")
    f(a, packed, c)
    y = b.float() if layout == "NN" else b.float().T
    np.testing.assert_array_equal(c, (a.float() @ y).numpy())


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtypes", [("float32",) * 3, *SMALL], ids="-".join)
@pytest.mark.parametrize("layout", ["NN", "NT"])
def test_the_call_decides_how_many_rows(dtypes: tuple[str, str, str], layout: str) -> None:
    args = product(te.var("m"), 70, 50, dtypes, layout)
    f = tvm.build([args[2]], args, name="f", prepacked=[args[1]])
    b = numbers(args[1].shape, dtypes[1])
    packed = tvm.prepack(f, "B", b)
    assert packed.ndim == 3
    for m in (0, 1, 2, 5, 13, 14, 31):
        a, c = numbers((m, 50), dtypes[0]), np.empty((m, 70), dtypes[2])
        f(a, packed, c)
        y = b if layout == "NN" else b.T
        np.testing.assert_array_equal(c, a.astype(dtypes[2]) @ y.astype(dtypes[2]))


def test_sums_in_blocks_behind_which_there_is_a_stage() -> None:
    """So many steps that they are summed in blocks, of so few sums that there is a single task."""
    for m in (2, te.var("m")):
        A, B, C = product(m, 16, 40_000, ("float32",) * 3)
        D = te.compute((m, 16), lambda i, j, C=C: C[i, j] + 1.0, name="D")
        a, b = numbers((2, 40_000), "float32"), numbers((40_000, 16), "float32")
        for prepacked in ([], [B]):
            s = tvm.auto_schedule(D, prepacked=prepacked)
            assert "rfactor" in s.trace() or not prepacked
            f = tvm.build(s, [A, B, D], name="f")
            d = np.empty((2, 16), "float32")
            f(a, tvm.prepack(f, "B", b) if prepacked else b, d)
            np.testing.assert_array_equal(d, a @ b + 1)


@pytest.mark.covering(1)
@pytest.mark.parametrize("symbolic", ["b", "m", "bm"])
@pytest.mark.parametrize("dtypes", SMALL, ids="-".join)
@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("is_prepacked", [True, False])
def test_the_call_decides_how_many_batches(
    is_prepacked: bool, is_shared: bool, dtypes: tuple[str, str, str], symbolic: str
) -> None:
    """And rows, of which there may be tasks though the columns don't end with a tile."""
    a_dtype, b_dtype, dtype = dtypes
    b, m = (te.var(name) if name in symbolic else 3 for name in "bm")
    k = te.reduce_axis((0, 50), name="k")
    A = te.placeholder((b, m, 50), a_dtype, name="A")
    B = te.placeholder((50, 70) if is_shared else (b, 50, 70), b_dtype, name="B")

    def element(n: Any, i: Any, j: Any) -> Any:
        each = B[(n, k, j)[-B.ndim :]]
        return te.sum(A[n, i, k].astype(dtype) * each.astype(dtype), axis=k)

    C = te.compute((b, m, 70), element, name="C")
    f = tvm.build([C], [A, B, C], name="f", prepacked=[B] if is_prepacked else [])
    x, y = numbers((3, 3, 50), a_dtype), numbers((3, 50, 70)[-B.ndim :], b_dtype)
    z = np.empty((3, 3, 70), dtype)
    f(x, tvm.prepack(f, "B", y) if is_prepacked else y, z)
    np.testing.assert_array_equal(z, x.astype(dtype) @ y.astype(dtype))


def test_batches() -> None:
    """Weights of each member of a batch, and the same for all."""
    A = te.placeholder((5, 20, 30), name="A")
    k = te.reduce_axis((0, 30), name="k")
    for shape in ((5, 30, 40), (5, 40, 30), (30, 40), (40, 30)):
        B = te.placeholder(shape, name="B")

        def element(b: Any, i: Any, j: Any, B: Any = B, shape: Any = shape) -> Any:
            at = (k, j) if shape[-1] == 40 else (j, k)
            return te.sum(A[b, i, k] * B[(b, *at)[-len(shape) :]], axis=k)

        C = te.compute((5, 20, 40), element, name="C")
        f = check([A, B, C], [B])
        assert f["f.prepack.B"].__doc__.count("array") == 2


@pytest.mark.covering(2)
@pytest.mark.parametrize("rows", [1, 5, 60])
@pytest.mark.parametrize("layout", ["NN", "NT"])
@pytest.mark.parametrize("is_stage", [False, True])
def test_dequantised_weights_stay_narrow(rows: int, layout: str, is_stage: bool) -> None:
    X = te.placeholder((rows, 45), name="X")
    W = te.placeholder((45, 70) if layout == "NN" else (70, 45), "int8", name="W")
    scale = te.placeholder((70,), name="scale")
    k = te.reduce_axis((0, 45), name="k")
    if is_stage:
        D = te.compute(
            W.shape,
            lambda i, j: W[i, j].astype("float32") * scale[j if layout == "NN" else i],
            name="D",
        )

    def weight(j: Any) -> Any:
        at = (k, j) if layout == "NN" else (j, k)
        return D[at] if is_stage else W[at].astype("float32") * scale[j]

    C = te.compute((rows, 70), lambda i, j: te.sum(X[i, k] * weight(j), axis=k), name="C")
    f = check([X, W, scale, C], [W])
    packed = tvm.prepack(f, "W", numbers(W.shape, "int8"))
    assert packed.dtype == "int8" and packed.ndim == 3


def test_an_epilogue_stays() -> None:
    A, B, C = product(20, 40, 30, ("uint8", "int8", "int32"))
    scale = te.placeholder((40,), name="scale")
    D = te.compute((20, 40), lambda i, j: C[i, j].astype("float32") * scale[j], name="D")
    check([A, B, scale, D], [B])


@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions(channels_last: bool) -> None:
    X = te.placeholder((1, 9, 9, 6) if channels_last else (1, 6, 9, 9), name="X")
    W = te.placeholder((3, 3, 6, 20) if channels_last else (20, 6, 3, 3), name="W")
    u, v, c = (te.reduce_axis((0, n), name=x) for n, x in ((3, "u"), (3, "v"), (6, "c")))
    if channels_last:
        Y = te.compute(
            (1, 7, 7, 20),
            lambda n, i, j, o: te.sum(X[n, i + u, j + v, c] * W[u, v, c, o], axis=[u, v, c]),
            name="Y",
        )
    else:
        Y = te.compute(
            (1, 20, 7, 7),
            lambda n, o, i, j: te.sum(X[n, c, i + u, j + v] * W[o, c, u, v], axis=[c, u, v]),
            name="Y",
        )
    check([X, W, Y], [W])


@settings(max_examples=2, deadline=None, suppress_health_check=SLOW, phases=QUICK)
@pytest.mark.parametrize("make", [contraction, *PROGRAMS[::2]])
@given(data=st.data())
def test_any_arguments_of_any_program(make: Any, data: st.DataObject) -> None:
    check_any_arguments(make, data.draw)


@pytest.mark.wide
@settings(max_examples=200, deadline=None, suppress_health_check=SLOW, phases=QUICK)
@pytest.mark.parametrize("make", [contraction, *PROGRAMS])
@given(data=st.data())
def test_many_arguments_of_any_program(make: Any, data: st.DataObject) -> None:
    check_any_arguments(make, data.draw)


def check_any_arguments(make: Any, draw: Draw) -> None:
    program: Program = make(draw)
    expected = program.arrays(seed=0)
    interpret(tvm.lower(te.create_schedule(program.outputs), program.args)["main"], *expected)
    known = {stage.op for stage in te.create_schedule(program.outputs).stages}
    known -= {tensor.op for op in known for tensor in _lengths(op)}
    inputs = [
        each
        for each in program.args
        if isinstance(each.op, PlaceholderOp) and each.op in known and _binds_its_sizes(each)
    ]
    target = draw(st.sampled_from(TARGETS))
    s = tvm.auto_schedule(program.outputs, target, inputs)
    note(s.trace())
    assert str(tvm.lower(te.replay(s.trace(), program.outputs), program.args)) == str(
        tvm.lower(s, program.args)
    )
    f = tvm.build(s, program.args, target, name="f")
    arrays = program.arrays(seed=0)
    packed = [
        tvm.prepack(f, arg.name, x) if arg in inputs else x
        for arg, x in zip(program.args, arrays, strict=True)
    ]
    f(*packed)
    for arg, got, wanted in zip(program.args, packed, expected, strict=True):
        if arg not in inputs:
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)


def _binds_its_sizes(tensor: Tensor) -> bool:
    """Whether a tensor's shape alone tells the sizes in it."""
    return all(set(free_vars(dim)) <= set(tensor.shape) for dim in tensor.shape)


def _lengths(op: Operation) -> Iterator[Tensor]:
    """What is read to tell how long sums are, which isn't packed."""
    for axis in op.reduce_axis if isinstance(op, ComputeOp) else ():
        assert axis.dom is not None
        for each in walk_once(axis.dom.min, axis.dom.extent):
            if isinstance(each, ProducerLoad) and isinstance(each.producer, Tensor):
                yield each.producer


# -- What is packed -------------------------------------------------------------------------------


def test_zeros_pad() -> None:
    A, B, C = product(30, 70, 49, ("uint8", "int8", "int32"))
    f = tvm.build([C], [A, B, C], "llvm -mcpu=x86-64-v2", name="f", prepacked=[B])
    packed = tvm.prepack(f, "B", np.ones((49, 70), "int8")).numpy()
    assert packed.size > 49 * 70
    assert set(np.unique(packed)) == {0, 1} and packed.sum() == 49 * 70


def test_arrays_of_any_kind() -> None:
    A, B, C = product(20, 70, 50, ("float32",) * 3)
    f = tvm.build([C], [A, B, C], name="f", prepacked=[B])
    b = numbers((50, 70), "float32")
    expected = tvm.prepack(f, "B", b).numpy()
    read_only = b.copy()
    read_only.flags.writeable = False
    for other in (np.asfortranarray(b), read_only, tvm.nd.array(b), np.repeat(b, 2, 1)[:, ::2]):
        np.testing.assert_array_equal(tvm.prepack(f, "B", other).numpy(), expected)
    packed = tvm.prepack(f, "B", b)
    assert np.from_dlpack(packed).ctypes.data % 64 == 0
    again = b.copy()
    b[...] = 0  # was read, and is not needed any more
    a, c = numbers((20, 50), "float32"), np.empty((20, 70), "float32")
    f(a, packed, c)
    np.testing.assert_array_equal(c, a @ again)


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    A, B, C = product(20, 70, 50, ("float32",) * 3, "NT")
    f = tvm.build([C], [A, B, C], name="f", prepacked=[B])
    a, weight = torch.randn(20, 50), torch.randn(70, 50)
    c = torch.empty(20, 70)
    f(a, tvm.prepack(f, "B", weight), c)
    torch.testing.assert_close(c, a @ weight.T)


def test_what_is_not_packed_is_a_copy() -> None:
    """A vector that is only read in order; callers need not know."""
    X = te.placeholder((40,), name="X")
    Y = te.compute((40,), lambda i: X[i] * 2.0, name="Y")
    f = tvm.build([Y], [X, Y], name="f", prepacked=[X])
    x, y = numbers((40,), "float32"), np.empty(40, "float32")
    packed = tvm.prepack(f, "X", x)
    np.testing.assert_array_equal(packed.numpy(), x)
    for each in (packed, x):
        f(each, y)
        np.testing.assert_array_equal(y, x * 2)


def test_a_single_number_is_a_copy() -> None:
    X, scale = te.placeholder((40,), name="X"), te.placeholder((), name="scale")
    check([X, scale, te.compute((40,), lambda i: X[i] * scale(), name="Y")], [scale])


def test_what_two_stages_read_is_a_copy() -> None:
    """Weights of two products, and of a product and something else."""
    A, B, C = product(30, 70, 50, ("float32",) * 3)
    D = te.compute((30, 70), lambda i, j: C[i, j] + B[i, j], name="D")
    f = check([A, B, D], [B])
    assert tvm.prepack(f, "B", np.zeros((50, 70), "float32")).shape == (50, 70)


def test_sizes_that_the_call_decides_are_kept() -> None:
    n = te.var("n")
    A, B = te.placeholder((20, n), name="A"), te.placeholder((n, 30), name="B")
    k = te.reduce_axis((0, n), name="k")
    C = te.compute((20, 30), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    f = tvm.build([C], [A, B, C], name="f", prepacked=[B])
    a, b = numbers((20, 7), "float32"), numbers((7, 30), "float32")
    c = np.empty((20, 30), "float32")
    f(a, tvm.prepack(f, "B", b), c)
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("again", ["module", "function"])
def test_pickles(again: str) -> None:
    A, B, C = product(20, 70, 50, ("float32",) * 3)
    made = tvm.build([C], [A, B, C], name="f", prepacked=[B])
    f = pickle.loads(pickle.dumps(made if again == "module" else made["f"]))
    a, b = numbers((20, 50), "float32"), numbers((50, 70), "float32")
    c = np.empty((20, 70), "float32")
    f(a, tvm.prepack(f, "B", b), c)
    np.testing.assert_array_equal(c, a @ b)


# -- By hand --------------------------------------------------------------------------------------


def by_hand(**sizes: Any) -> tuple[te.Schedule, list[te.Tensor]]:
    A, B, C = product(20, sizes.get("n", 70), sizes.get("k", 50), ("float32",) * 3)
    s = te.create_schedule(C.op)
    BB = s.cache_read(B, "global", [C])
    s[BB].transform_layout(lambda k, j: [j // 16, k, j % 16])
    s[BB].compute_ahead()
    return s, [A, B, C]


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_schedule_says_it(symbolic: bool) -> None:
    sizes = {"n": te.var("n"), "k": te.var("k")} if symbolic else {}
    s, args = by_hand(**sizes)
    f = tvm.build(s, args, name="f")
    a, b = numbers((20, 50), "float32"), numbers((50, 70), "float32")
    c = np.empty((20, 70), "float32")
    packed = tvm.prepack(f, "B", b)
    assert packed.shape == (5, 50, 16)
    f(a, packed, c)
    np.testing.assert_array_equal(c, a @ b)


def test_another_place_instead() -> None:
    s, args = by_hand()
    (panels,) = (stage for stage in s.stages if stage.is_ahead)
    panels.compute_at(s[args[2]], args[2].axis[0])
    assert list(tvm.lower(s, args).functions) == ["main"]
    panels.compute_ahead()
    assert list(tvm.lower(s, args).functions) == ["main", "main.prepack.B"]
    panels.compute_root()
    assert list(tvm.lower(s, args).functions) == ["main"]


def test_a_single_tensor_is_computed_ahead() -> None:
    A = te.placeholder((8,), name="A")
    B = te.compute((8,), lambda i: (A[i] + 1.0, A[i] * 2.0), name="B")
    C = te.compute((8,), lambda i: B[0][i] + B[1][i], name="C")
    s = te.create_schedule(C.op)
    with message(tvm.CompileError, "B: compute_ahead: expected a single tensor, got several"):
        s[B[0]].compute_ahead()
    D = te.compute((8,), lambda i: A[i] + 1.0, name="D")
    E = te.compute((8,), lambda i: D[i] * 2.0, name="E")
    s = te.create_schedule(E.op)
    s.create_group(D, A)
    with message(
        tvm.CompileError, "D: compute_ahead: expected a single tensor, got one of group(D)"
    ):
        s[D].compute_ahead()


def test_a_table_is_computed_ahead() -> None:
    """Of what is computed from nothing, as much as serves it alone."""
    A = te.placeholder((8,), name="A")
    T = te.compute((8,), lambda i: i * 2, name="T")
    B = te.compute((8,), lambda i: A[i] + T[i].astype("float32"), name="B")
    C = te.compute((8,), lambda i: B[i] * 2.0, name="C")
    s = te.create_schedule(C.op)
    s[B].compute_ahead()
    f = tvm.build(s, [A, C], name="f")
    a, c = numbers((8,), "float32"), np.empty(8, "float32")
    f(tvm.prepack(f, "A", a), c)
    np.testing.assert_array_equal(c, (a + 2 * np.arange(8)) * 2)


def test_binds_are_refused() -> None:
    s, args = by_hand()
    buffer = tvm.tir.decl_buffer(args[1].shape, name="B")
    with pytest.raises(tvm.CompileError, match=r"^f: binds: expected no buffer for B, which is"):
        tvm.lower(s, args, name="f", binds={args[1]: buffer})


def test_names_differ() -> None:
    A, B = te.placeholder((8,), name="X"), te.placeholder((8,), name="X")
    C = te.compute((8,), lambda i: A[i] + B[i], name="C")
    with pytest.raises(tvm.CompileError, match=r"^f: expected names that differ .* got X twice$"):
        tvm.build([C], [A, B, C], name="f", prepacked=[A, B])


# -- What is refused ------------------------------------------------------------------------------


def message(error: type[Exception], text: str) -> Any:
    return pytest.raises(error, match=f"^{re.escape(text)}$")


def test_arrays_that_are_not_packed() -> None:
    A, B, C = product(200, 300, 200, ("float32",) * 3, "NT")
    f = tvm.build([C], [A, B, C], HASWELL, name="f", prepacked=[B])
    a, b = numbers((200, 200), "float32"), numbers((300, 200), "float32")
    c = np.zeros((200, 300), "float32")
    with message(
        ValueError,
        "f: argument 1 'B': expected ndim == 3, got 2: pack it with minitvm.prepack(f, 'B', array)",
    ):
        f(a, b, c)
    packed = tvm.prepack(f, "B", b)
    others, columns, width = packed.shape[0] + 1, packed.shape[1], packed.shape[2]
    with message(
        ValueError,
        f"f: argument 1 'B': expected shape[0] == {packed.shape[0]}, got {others}: pack it with "
        "minitvm.prepack(f, 'B', array)",
    ):
        f(a, np.zeros((others, columns, width), "float32"), c)
    assert not c.any()
    with message(ValueError, "f: argument 0 'A': expected shape[0] == 200, got 199"):
        f(a[:199], packed, c)


@pytest.mark.parametrize("dtypes", [("float32",) * 3, ("int8", "int8", "int32")], ids="-".join)
def test_a_copy_in_another_order_has_another_shape(dtypes: tuple[str, str, str]) -> None:
    """Square weights that are transposed would be taken for those that aren't."""
    A, B, C = product(1, 600, 600, dtypes, "NT")
    s = tvm.auto_schedule(C, HASWELL, prepacked=[B])
    (copy,) = (each for each in s.stages if each.is_ahead)
    is_other = copy.op.output(0).ndim > 2 or "transform_layout" not in s.trace()
    assert is_other
    check([A, B, C], [B], HASWELL)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
@pytest.mark.parametrize("rows", [1, 2, 3, 5])
@pytest.mark.parametrize("epilogue", [False, True])
def test_few_rows_read_no_panels(rows: int, layout: str, epilogue: bool) -> None:
    """Nothing reads a panel again, and lines of several rows come faster."""
    tensors = product(rows, 1030, 700, ("float32",) * 3, layout)
    if epilogue:
        C, bias = tensors[-1], te.placeholder((1030,), name="bias")
        out = te.compute(C.shape, lambda i, j: te.max(C[i, j] + bias[j], te.const(0, "float32")),
                         name="D")  # fmt: skip
        tensors = [*tensors[:2], bias, out]
    s = tvm.auto_schedule(tensors[-1], "llvm -mcpu=skylake-avx512", prepacked=[tensors[1]])
    (copy,) = (each for each in s.stages if each.is_ahead)
    assert sorted(map(int, copy.op.output(0).shape)) == [700, 1030]
    check(tensors, [tensors[1]])


def test_arrays_that_another_function_wants() -> None:
    """Of the same weights, no two layouts have one shape: panels of `n` columns have other widths,
    or hold groups of `k`."""
    A, B, C = product(20, 96, 64, ("uint8", "int8", "int32"))
    targets = ["llvm -mcpu=x86-64", "llvm -mcpu=haswell", "llvm -mcpu=znver4"]
    found = set()
    for target in targets:
        main = tvm.lower(tvm.auto_schedule(C, target, [B]), [A, B, C])["main"]
        buffer = main.buffer_map[main.params[1]]
        found.add((str(buffer.dtype), tuple(map(str, buffer.shape))))
    assert len(found) == len(targets)


def test_what_prepack_refuses() -> None:
    A, B, C = product(20, 70, 50, ("float32",) * 3)
    f = tvm.build([C], [A, B, C], name="f", prepacked=[B])
    with message(ValueError, "f: prepack: 'B': expected shape[1] == 70, got 71"):
        tvm.prepack(f, "B", np.zeros((50, 71), "float32"))
    with message(TypeError, "f: prepack: 'B': expected dtype float32, got float64"):
        tvm.prepack(f, "B", np.zeros((50, 70)))
    with message(
        ValueError,
        "f: prepack: expected an argument that was built as prepacked ('B'), got 'A': name it in "
        "build(..., prepacked=[...])",
    ):
        tvm.prepack(f, "A", np.zeros((20, 50), "float32"))
    with pytest.raises(ValueError, match=r"^g: prepack: .*prepacked \(none\), got 'B'"):
        tvm.prepack(tvm.build([C], [A, B, C], name="g"), "B", np.zeros((50, 70), "float32"))
    with pytest.raises(TypeError, match=r"^prepack: expected a function that build made, got <"):
        tvm.prepack(len, "B", np.zeros((50, 70), "float32"))  # type: ignore[arg-type]  # the test


def test_what_build_refuses() -> None:
    A, B, C = product(20, 70, 50, ("float32",) * 3)
    unread = te.placeholder((4,), name="unread")
    for wrong in (C, unread, "B"):
        with pytest.raises(tvm.CompileError, match=r"^prepacked: expected placeholders that the"):
            tvm.build([C], [A, B, C], prepacked=[wrong])  # type: ignore[list-item]  # the test
    s = te.create_schedule(C.op)
    s[C].split(C.axis[0], 4)
    for inputs, automatic in ((s, True), ([C], False)):
        with pytest.raises(tvm.CompileError, match=r"^build: expected prepacked only where nothin"):
            tvm.build(inputs, [A, B, C], auto_schedule=automatic, prepacked=[B])


def test_help_says_it() -> None:
    A, B, C = product(200, 300, 200, ("float32",) * 3, "NT")
    f = tvm.build([C], [A, B, C], HASWELL, name="f", prepacked=[B])
    assert re.search(r"\nB : array of float32, shape \(\d+, 200, \d+\), made by minitvm.prepack\n",
                     f.__doc__ or "")  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "kind", "text"),
    [
        (np.ones((8, 4), "float32"), ValueError, "expected shape[1] == 3, got 4"),
        (np.ones((8, 3), "float64"), TypeError, "expected dtype float32, got float64"),
        ([[1.0]], TypeError, "expected an array (numpy, DLPack...), got list"),
        (None, TypeError, "expected an array, got None"),
    ],
    ids=["shape", "dtype", "list", "None"],
)
def test_errors_name_what_the_user_called(wrong: Any, kind: Any, text: str) -> None:
    A, B = te.placeholder((4, 8), name="A"), te.placeholder((8, 3), name="B")
    k = te.reduce_axis((0, 8), name="k")
    C = te.compute((4, 3), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    f = tvm.build([C], [A, B, C], name="f", prepacked=[B])
    for _ in range(2):
        with pytest.raises(kind, match=re.escape(f"f: prepack: 'B': {text}")):
            tvm.prepack(f, "B", wrong)


def test_panels_of_another_size_are_refused() -> None:
    """Panels of 100 and of 99 steps would have one shape: a symbolic size is packed as it is."""
    n = te.var("n")
    A, B = te.placeholder((40, n), "uint8", name="A"), te.placeholder((n, 64), "int8", name="B")
    k = te.reduce_axis((0, n), name="k")
    C = te.compute(
        (40, 64), lambda i, j: te.sum(A[i, k].astype("int32") * B[k, j].astype("int32"), axis=k)
    )
    f = tvm.build(tvm.auto_schedule(C, prepacked=[B]), [A, B, C], name="f")
    a, b = random.integers(0, 255, (40, 100), "uint8"), random.integers(-99, 99, (100, 64), "int8")
    packed, c = tvm.prepack(f, "B", b), np.zeros((40, 64), "int32")
    f(a, packed, c)
    np.testing.assert_array_equal(c, a.astype("int32") @ b.astype("int32"))
    with pytest.raises(ValueError, match="argument 1 'B'"):
        f(np.ascontiguousarray(a[:, :99]), packed, c)
