"""What is said of built functions is true of them."""

from __future__ import annotations

import ctypes
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

import minitvm as tvm
from minitvm import te, tir
from minitvm.codegen.statement import ALLOCATE_WORKSPACE
from minitvm.explanation import machine
from minitvm.explanation.report import Explanation
from minitvm.explanation.work import operations_of
from minitvm.runtime import object_code
from minitvm.runtime.workspace import workspaces
from minitvm.tir.expr import const
from minitvm.tir.stmt import PrimFunc
from minitvm.tir.structural_equal import structural_equal
from tests.explanation.programs import (
    AARCH64,
    HASWELL,
    ZNVER4,
    arrays,
    convolution,
    product,
    softmax,
    tiled_product,
)

PAGE = Path(__file__).parents[2] / "docs" / "explain.md"
N = te.var("n")
Programs = Callable[[], tvm.runtime.Module]


def figures(function: Any, *args: Any) -> Explanation:
    return tvm.explain(function, *args, measure=False)


def operations(found: Explanation) -> dict[Any, Any]:
    return {each.kind: each.number for each in found.operations}


def elementwise(*shape: Any, of: Callable[..., Any], name: str = "Y") -> tvm.runtime.Module:
    """A function of X and its elements."""
    X = te.placeholder(shape, name="X")
    Y = te.compute(shape, lambda *i: of(X[i]), name=name)
    return tvm.build([Y], [X, Y], name="elementwise")


# -- Operations and bytes -------------------------------------------------------------------------


def test_a_product() -> None:
    found = figures(product(37, 50, 64))
    assert operations(found) == {("float32",): 2 * 37 * 50 * 64}
    assert found.flop == 2 * 37 * 50 * 64
    assert found.bytes == 4 * (37 * 64 + 64 * 50 + 37 * 50)
    assert found.intensity == int(found.flop) / int(found.bytes)
    assert not found.is_estimate


def test_products_of_narrow_numbers_are_a_kind_of_their_own() -> None:
    found = figures(product(48, 64, 40, ZNVER4, ("uint8", "int8", "int32")))
    assert operations(found) == {("uint8", "int8", "int32"): 2 * 48 * 64 * 40}
    assert found.bytes == 48 * 40 + 40 * 64 + 4 * 48 * 64


def test_batches() -> None:
    A, B = te.placeholder((3, 8, 16), name="A"), te.placeholder((16, 32), name="B")
    k = te.reduce_axis((0, 16), name="k")
    C = te.compute((3, 8, 32), lambda b, i, j: te.sum(A[b, i, k] * B[k, j], axis=k), name="C")
    found = figures(tvm.build([C], [A, B, C]))
    assert found.flop == 2 * 3 * 8 * 32 * 16
    assert found.bytes == 4 * (3 * 8 * 16 + 16 * 32 + 3 * 8 * 32)


def test_a_convolution_in_groups() -> None:
    found = figures(convolution(8, 8, groups=2))
    assert operations(found)[("float32",)] == 2 * 8 * 14 * 14 * 4 * 3 * 3
    assert found.bytes == 4 * (8 * 14 * 14 + 8 * 4 * 3 * 3 + 8 * 14 * 14)


def test_functions_are_counted_by_name() -> None:
    found = figures(elementwise(10, 20, of=lambda x: 0.5 * x * (1.0 + te.erf(x * 0.7))))
    assert operations(found) == {("float32",): 4 * 200, "erf": 200}
    assert found.flop == 4 * 200


def test_what_depends_on_fewer_axes_is_computed_less_often() -> None:
    A, B = te.placeholder((16, 32), name="A"), te.placeholder((32, 48), "int8", name="B")
    scale = te.placeholder((48,), name="scale")
    k = te.reduce_axis((0, 32), name="k")
    C = te.compute(
        (16, 48),
        lambda i, j: te.sum(A[i, k] * (B[k, j].astype("float32") + scale[j]), axis=k),
        name="C",
    )
    found = figures(tvm.build([C], [A, B, scale, C]))
    assert found.flop == 2 * 16 * 48 * 32 + 32 * 48


def test_factors_that_were_taken_out_of_a_sum() -> None:
    A, B = te.placeholder((16, 32), name="A"), te.placeholder((32, 48), name="B")
    scale = te.placeholder((48,), name="scale")
    k = te.reduce_axis((0, 32), name="k")
    C = te.compute((16, 48), lambda i, j: te.sum(A[i, k] * (B[k, j] * scale[j]), axis=k), name="C")
    found = figures(tvm.build([C], [A, B, scale, C], "llvm -num-cores=1"))
    assert found.flop == 2 * 16 * 48 * 32 + 16 * 48


def test_indices_and_conditions_are_no_work() -> None:
    X = te.placeholder((64,), name="X")
    Y = te.compute((32,), lambda i: te.if_then_else(i * 2 + 1 < 60, X[i * 2] + 1.0, 0.0), name="Y")
    assert operations(figures(tvm.build([Y], [X, Y]))) == {("float32",): 32}


def test_a_stage_that_is_not_computed_is_no_work() -> None:
    X = te.placeholder((64,), name="X")
    Y = te.compute((64,), lambda i: te.exp(X[i]), name="Y")
    Z = te.compute((64,), lambda i: te.if_then_else(i < 64, X[i] + 1.0, Y[i]), name="Z")
    found = figures(tvm.build([Z], [X, Z]))
    assert operations(found) == {("float32",): 64}
    unread = found.stages[0]
    assert (unread.name, unread.shape, unread.operations) == ("Y", (64,), ())
    assert str(unread.choices[0]) == "not computed: nothing needs it"


def test_of_a_table_the_rows_that_are_read_count() -> None:
    table, rows = te.placeholder((1000, 16), name="table"), te.placeholder((5,), "int32", "rows")
    Y = te.compute((5, 16), lambda i, j: table[rows[i], j], name="Y")
    found = figures(tvm.build([Y], [table, rows, Y]))
    assert found.bytes == 4 * (5 * 16 + 5 + 5 * 16)
    assert found.flop == 0


def test_symbolic_sizes_are_expressions_until_there_are_arguments() -> None:
    function = product(N, 32, 16)
    found = figures(function)
    assert (found.flop, found.bytes) == ("1024 * n", "192 * n + 2048")
    assert found.stages[0].shape == ("n", 32)
    assert found.intensity is None
    arrays = [np.ones(shape, "float32") for shape in ((7, 16), (16, 32), (7, 32))]
    found = figures(function, *arrays)
    assert (found.flop, found.bytes) == (7 * 1024, 7 * 192 + 2048)
    assert found.stages[0].shape == (7, 32)


def test_loops_by_hand_are_counted_as_they_are() -> None:
    X = te.placeholder((N,), name="X")

    def square(ins: Any, outs: Any) -> Any:
        ib = tir.ir_builder.create()
        x, y = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        with ib.for_range(0, N, kind="parallel") as i:
            y[i] = te.exp(x[i] * x[i]) + 1.0
        return ib.get()

    Y = te.extern((N,), [X], square, dtype="float32", name="Y")
    function = tvm.build(te.create_schedule(Y.op), [X, Y], name="square")
    found = figures(function, np.ones(1000, "float32"), np.ones(1000, "float32"))
    assert operations(found) == {("float32",): 2000, "exp": 1000}
    assert found.is_estimate
    assert "as the loops do it" in str(found)


def test_expressions_and_plain_loops_count_alike() -> None:
    A, B = te.placeholder((12, 8), name="A"), te.placeholder((8, 20), name="B")
    k = te.reduce_axis((0, 8), name="k")
    C = te.compute((12, 20), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    D = te.compute((12, 20), lambda i, j: te.tanh(C[i, j]) - 1.0, name="D")
    (func,) = tvm.lower(te.create_schedule(D.op), [A, B, D]).functions.values()
    attrs = replace(func.attrs, origin=None)
    bare = PrimFunc(func.params, func.body, func.buffer_map, func.name, attrs)
    assert set(operations_of(bare, {})) == set(operations_of(func, {}))


# -- Loops, memory, machine code ------------------------------------------------------------------


def test_what_the_loops_of_a_product_say() -> None:
    found = figures(product(512, 512, 512, ZNVER4))
    assert found.parallel
    assert all(each.starts_threads for each in found.parallel)
    buffers = {each.name: each for each in found.temporaries}
    panels, sums = buffers["B.global"], buffers["C.local"]
    assert panels.bytes == 4 * prod(map(int, panels.shape))
    assert (panels.place, panels.made_of) == ("workspace", ("B",))
    assert (sums.place, sums.made_of) == ("registers", ("A", "B.global"))
    assert sums.is_per_task


def test_where_memory_is_per_call_and_where_per_task() -> None:
    X = te.placeholder((64, 8192), name="X")
    Y = te.compute(X.shape, lambda i, j: X[i, j] * 2.0, name="Y")
    Z = te.compute(X.shape, lambda i, j: Y[i, 8191 - j] + 1.0, name="Z")
    s: Any = te.create_schedule(Z.op)
    s[Z].parallel(Z.op.axis[0])
    (whole,) = figures(tvm.build(s, [X, Z])).temporaries
    assert (whole.bytes, whole.place, whole.is_per_task) == (4 * 64 * 8192, "workspace", False)
    s[Y].compute_at(s[Z], Z.op.axis[0])
    (row,) = figures(tvm.build(s, [X, Z])).temporaries
    assert (row.bytes, row.place, row.is_per_task) == (4 * 8192, "workspace", True)
    assert row.made_of == ("X",)


def test_parts_of_a_loop_have_one_buffer_of_each_kind() -> None:
    found = figures(product(384, 512, 512, HASWELL))
    names = [each.name for each in found.temporaries]
    assert len(names) == len(set(names))
    assert {each.name: each.made_of for each in found.temporaries}["C.local"] == ("A", "B.global")


def test_a_loop_with_little_to_do_stays_on_one_thread() -> None:
    (loop,) = figures(elementwise(40, 4, of=lambda x: x + 1.0)).parallel
    assert loop.starts_threads is False
    (loop,) = figures(elementwise(N, 4, of=lambda x: x + 1.0)).parallel
    assert loop.starts_threads is None


def test_registers_are_those_of_the_tile_that_was_chosen() -> None:
    found = figures(product(512, 512, 512, ZNVER4))
    (choice,) = (each for each in found.stages[0].choices if each.about == "tile")
    loop = max(found.inner_loops, key=lambda each: each.multiply_adds)
    assert loop.multiply_adds == choice.figures["registers"]
    assert choice.figures["there"] == found.vector_registers == 32
    assert loop.registers > loop.multiply_adds
    assert loop.spills == 0


@pytest.fixture
def handed_out() -> Iterator[list[int]]:
    """The bytes of each workspace that functions get which are built from now on."""
    sizes: list[int] = []
    signature = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)
    address = workspaces().allocate
    allocate = signature(address)

    def record(size: int) -> int | None:
        sizes.append(size)
        found: int | None = allocate(size)
        return found

    recorded = signature(record)
    object_code.provide(ALLOCATE_WORKSPACE, lambda name: address)
    llvm.add_symbol(ALLOCATE_WORKSPACE, ctypes.cast(recorded, ctypes.c_void_p).value)
    yield sizes
    llvm.add_symbol(ALLOCATE_WORKSPACE, address)


@pytest.mark.parametrize(
    "program",
    [
        lambda: product(256, 2048, 300),
        lambda: product(130, 200, 300, transposed=True),
        lambda: product(64, 512, 512, None, ("int8", "int8", "int32")),
        lambda: convolution(32, 32),
        lambda: softmax(16, 8192),
    ],
)
def test_the_memory_is_what_the_pool_hands_out(program: Programs, handed_out: list[int]) -> None:
    function = program()
    given = arrays(function)
    handed_out.clear()  # what was taken while building
    with tvm.num_threads(1):
        function(*given)
    said = [each for each in figures(function).temporaries if each.place == "workspace"]
    assert said
    assert {each.bytes for each in said} == set(handed_out)
    assert all(handed_out.count(int(each.bytes)) == 1 for each in said if not each.is_per_task)


# -- Reasons --------------------------------------------------------------------------------------

PLAIN = "row by row, each along its line of memory"
REASONS: dict[str, tuple[Programs, tuple[str, ...]]] = {
    "tiled, packed": (
        lambda: product(512, 512, 512, ZNVER4),
        (
            "matrix product of A and B: 512 x 512 sums of 512 products, NN",
            "vector registers: the fewest cycles, loads and edges counted",
            "B is packed into panels of",
            "columns, whose panels stay in the caches",
        ),
    ),
    "blocks of steps": (
        lambda: product(640, 512, 4096, f"{ZNVER4} -num-cores=2"),
        ("steps of the sum at a time, for which the rows of a tile fit the L1 cache",),
    ),
    "blocks of steps as they lie": (
        lambda: product(64, 512, 4096, f"{ZNVER4} -num-cores=2"),
        ("128 steps of the sum at a time: rows of B on pages found without a walk",),
    ),
    "widened": (
        lambda: product(96, 512, 512, HASWELL, ("bfloat16", "float32", "float32")),
        ("A is copied", "rows at a time: it is slow to read in its own layout"),
    ),
    "tiled, across": (
        lambda: product(97, 64, 128, ZNVER4, transposed=True, rectified=True),
        (
            "matrix product of A and B: 97 x 64 sums of 128 products, NT",
            "D takes the sums in the tile",
            "columns: neighbours along the columns lie apart",
        ),
    ),
    "tiled, in place": (
        lambda: product(64, 64, 64, ZNVER4),
        ("B is not packed: ", "cycles without a copy, ", "with one"),
    ),
    "tiled, few rows": (
        lambda: product(16, 64, 64, ZNVER4),
        ("B is not packed: ", "cycles without a copy, ", "with one"),
    ),
    "symbolic": (
        lambda: product(N, 256, 256, ZNVER4),
        ("matrix product of A and B: n x 256 sums of 256 products, NN",),
    ),
    "streamed": (
        lambda: product(4, 4096, 1024, ZNVER4),
        ("rows are read whole, 8 at a time; ", "columns of results stay in the L1 cache"),
    ),
    "plain": (
        lambda: product(1, 512, 1024, ZNVER4, transposed=True),
        ("matrix-vector product of A and B: 1 x 512 sums of 1024 products, NT", PLAIN),
    ),
    "instruction": (
        lambda: product(48, 64, 40, ZNVER4, ("uint8", "int8", "int32")),
        ("sums by vpdpbusd_512", "B is packed into panels of 32, groups of 4 together"),
    ),
    "instruction for matrices": (
        lambda: product(
            64,
            64,
            64,
            "llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids",
            ("int8", "int8", "int32"),
        ),
        (
            "tiles of 32 x 32 sums by tdpbssd, 100% filled, in 4 of 8 registers",
            "B is packed into panels of",
        ),
    ),
    "convolution": (
        lambda: convolution(16, 32),
        (
            "convolution of W and padded: 32 x 196 sums of 144 products",
            "channels are the columns of tiles, neighbours in the image their rows",
        ),
    ),
    "convolution of few channels": (
        lambda: convolution(2, 40),
        (
            "convolution of W and padded: 40 x 196 sums of 18 products",
            "the windows of padded are copied into panels of",
        ),
    ),
    "depthwise": (
        lambda: convolution(16, 16, groups=16),
        ("each channel by itself, from the image",),
    ),
    "rows": (
        lambda: softmax(16, 64),
        ("computed row by row within Y", "row by row, in vectors of neighbours in memory"),
    ),
    "inlined": (
        lambda: chain(),
        ("inlined where it is read",),
    ),
}


def chain() -> tvm.runtime.Module:
    X = te.placeholder((64,), name="X")
    Y = te.compute((64,), lambda i: X[i] * 2.0, name="Y")
    Z = te.compute((64,), lambda i: Y[i] + 1.0, name="Z")
    return tvm.build([Z], [X, Z], name="chain")


@pytest.mark.skipif(tvm.Target("llvm").arch != "x86_64", reason="the page names a CPU of x86-64")
def test_the_page_shows_what_is_printed() -> None:
    """Up to the machine code, which is LLVM's, it is the same on each machine."""
    text = PAGE.read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```text\n(.*?)^Machine code", text, re.M | re.S)
    found = figures(product(384, 512, 512, "llvm -mcpu=haswell"))
    assert str(found).replace("product(", "mm(").startswith(shown)


@pytest.mark.parametrize("name", REASONS)
def test_each_strategy_says_what_it_does_and_why(name: str) -> None:
    program, expected = REASONS[name]
    found = figures(program())
    said = [str(choice) for stage in found.stages for choice in stage.choices]
    assert found.scheduled == "by auto_schedule"
    for text in expected:
        assert any(text in each for each in said), (text, said)
    page = " ".join(str(found).split())
    assert all(" ".join(each.split()) in page for each in said)
    assert max(map(len, str(found).splitlines())) <= 100
    assert repr(found) == str(found)


def test_tiles_say_how_much_of_them_is_filled() -> None:
    (choice,) = (
        choice
        for choice in figures(product(97, 64, 128, ZNVER4)).stages[0].choices
        if choice.about == "tile"
    )
    rows, columns = int(str(choice.figures["rows"])), int(str(choice.figures["columns"]))
    tiles = -(-97 // rows) * -(-64 // columns)
    assert choice.figures["filled"] == pytest.approx(97 * 64 / (tiles * rows * columns))
    assert f"{choice.figures['filled']:.0%} filled" in str(choice)


def test_a_schedule_by_hand_has_no_reasons_but_all_else() -> None:
    found = figures(tiled_product(8, 32, ZNVER4))
    assert found.scheduled == "by hand"
    assert not any(stage.choices for stage in found.stages)
    assert found.flop == 2 * 96**3
    assert found.temporaries[0].place == "registers"
    assert "scheduled by hand" in str(found)


def test_what_is_changed_by_hand_loses_its_reasons() -> None:
    X = te.placeholder((64, 64), name="X")
    Y = te.compute((64, 64), lambda i, j: X[i, j] * 2.0, name="Y")
    s: Any = tvm.auto_schedule(Y)
    assert figures(tvm.build(s, [X, Y])).stages[0].choices
    s[Y].pragma(s[Y].leaf_iter_vars[0], "debug_skip_region", 0)
    found = figures(tvm.build(s, [X, Y]))
    assert (found.scheduled, found.stages[0].choices) == ("by hand", ())


def test_plain_loops() -> None:
    X = te.placeholder((8,), name="X")
    Y = te.compute((8,), lambda i: X[i] * 2.0, name="Y")
    found = figures(tvm.build(te.create_schedule(Y.op), [X, Y], auto_schedule=False))
    assert found.scheduled == "not"
    assert "not scheduled: plain loops" in str(found)


def test_reasons_are_no_part_of_what_a_function_is() -> None:
    X = te.placeholder((64, 64), name="X")
    Y = te.compute((64, 64), lambda i, j: X[i, j] * 2.0, name="Y")
    s = tvm.auto_schedule(Y)
    again = te.replay(s.trace(), Y)
    assert structural_equal(tvm.lower(s, [X, Y]), tvm.lower(again, [X, Y]))


# -- Measuring ------------------------------------------------------------------------------------


def test_a_bound_and_a_time_are_measured() -> None:
    with tvm.num_threads(1):
        found = tvm.explain(product(64, 64, 64))
    roofline = found.roofline
    assert roofline is not None and found.seconds is not None
    assert roofline.threads == 1
    assert roofline.memory_seconds == int(found.bytes) / roofline.bandwidth
    assert roofline.seconds == max(roofline.arithmetic_seconds, roofline.memory_seconds)
    assert found.share_of_bound == roofline.seconds / found.seconds
    assert found.share_of_peak == roofline.arithmetic_seconds / found.seconds
    assert f"bound by {roofline.bound_by}" in str(found)
    assert found.unmeasured == ""


def test_arguments_are_computed_with() -> None:
    x, y = np.arange(12, dtype="float32").reshape(3, 4), np.zeros((3, 4), "float32")
    found = tvm.explain(elementwise(N, 4, of=lambda x: x + 1.0), x, y)
    np.testing.assert_array_equal(y, x + 1)
    assert found.seconds is not None


def test_the_machine_is_measured_once() -> None:
    target = tvm.Target("llvm")
    assert machine.peak(("float32",), target, 1) == machine.peak(("float32",), target, 1) > 0
    assert machine.bandwidth(3 << 12, 1) == machine.bandwidth(1 << 14, 1) > 0


def test_the_peak_of_narrow_products_is_at_least_that_of_their_sums() -> None:
    target, kind = tvm.Target("llvm"), ("uint8", "int8", "int32")
    assert machine.peak(kind, target, 1) >= machine.peak(("int32",), target, 1)


UNMEASURED: dict[str, tuple[Callable[[], Explanation], str]] = {
    "not asked for": (lambda: figures(softmax(4, 8)), "measure=False"),
    "symbolic": (
        lambda: tvm.explain(product(N, 16, 16)),
        "sizes or numbers are symbolic: give the arguments",
    ),
    "another machine": (
        lambda: tvm.explain(product(64, 64, 64, AARCH64)),
        "it is code for another machine",
    ),
    "large": (
        lambda: tvm.explain(elementwise(1 << 15, 1 << 14, of=lambda x: x + 1.0)),
        "the arguments are 4294967296 bytes large: give them",
    ),
    "arguments that don't do": (
        lambda: tvm.explain(checked()),
        "with arguments that were made: n is 0",
    ),
}


def checked() -> tvm.runtime.Module:
    n = tir.decl_buffer((1,), "int32", name="n")
    ib = tir.ir_builder.create()
    number = ib.buffer_ptr(n)
    ib.emit(tir.AssertStmt(number[0] > 0, "n is 0", tir.Evaluate(const(0))))
    return tvm.build(tir.PrimFunc((n.data,), ib.get(), {n.data: n}, "checked"))


@pytest.mark.parametrize("case", UNMEASURED)
def test_it_says_why_nothing_is_measured(case: str) -> None:
    made, why = UNMEASURED[case]
    found = made()
    assert found.unmeasured == why
    assert (found.seconds, found.roofline, found.share_of_bound) == (None, None, None)
    assert f"nothing: {why}" in " ".join(str(found).split())


# -- Functions of all sorts -----------------------------------------------------------------------


def test_a_function_from_a_pickle() -> None:
    function = product(64, 64, 64)
    assert str(figures(pickle.loads(pickle.dumps(function)))) == str(figures(function))


def test_a_function_of_a_module() -> None:
    module = product(64, 64, 64)
    assert str(figures(module["product"])) == str(figures(module))


def test_haswell_is_explained_for_haswell() -> None:
    found = figures(product(96, 96, 96, HASWELL))
    loop = max(found.inner_loops, key=lambda each: each.multiply_adds)
    assert (found.vector_registers, loop.bits) == (16, 256)
    assert found.target == HASWELL


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (print, "a builtin_function_or_method"),
        (3, "a int"),
        (tvm.runtime.convert_to_packed(abs), "<PackedFunc abs>"),
    ],
)
def test_only_what_was_built_can_be_explained(given: Any, said: str) -> None:
    with pytest.raises(
        TypeError, match=f"explain: expected a function that build made, got {said}"
    ):
        tvm.explain(given)


def test_arguments_that_do_not_fit() -> None:
    function = elementwise(N, 4, of=lambda x: x + 1.0)
    x = np.ones((3, 4), "float32")
    with pytest.raises(TypeError, match="elementwise: expected 2 arguments, got 1"):
        tvm.explain(function, x)
    with pytest.raises(TypeError, match="elementwise: argument 'Y': expected an array, got int"):
        tvm.explain(function, x, 4)
    with pytest.raises(ValueError, match=r"argument 1 'Y': expected shape\[0\] == 3"):
        tvm.explain(function, x, x[:2])


def test_importing_minitvm_does_not_import_it() -> None:
    """Asking for ``minitvm.explain`` does."""
    look = "print('minitvm.explanation' in sys.modules)"
    code = f"import sys, minitvm; {look}; minitvm.explain; {look}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
