"""Contractions by matrix-product instructions, whose kernels run on any machine: what it lacks is
done by numpy."""

from __future__ import annotations

import ctypes
import re
import sys
from math import prod
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.auto_scheduler import auto_schedule, instructions
from minitvm.codegen.llvm_text import ModuleText
from minitvm.codegen.machine_code import emit_object, machine_for
from minitvm.driver import program as program_module
from minitvm.runtime import host as host_module
from minitvm.runtime.errors import CompileError
from minitvm.runtime.object_code import optimise_functions, parse
from minitvm.te.intrinsics.instruction import find_instruction
from minitvm.te.intrinsics.matrix_product import MATRIX_PRODUCTS, MatrixProduct
from minitvm.tir.functor import walk_once
from minitvm.tir.stmt import Allocate
from tests.auto_scheduler.contractions import product
from tests.auto_scheduler.instructions import in_software
from tests.auto_scheduler.test_dot_products import (
    as_given,
    axes_of,
    check,
    exactly,
    numbers,
    pack,
    shape_of,
)

HERE = tvm.Target("llvm")
AMX = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=graniterapids"
ARM = "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-v1"
IS_NATIVE = {target: not tvm.Target(target).missing_on_host for target in (AMX, ARM)}
HAS_BMI2 = "bmi2" in HERE.features
BYTES = ("int8", "uint8")
CASES = [
    pytest.param(
        target, dtypes, id=f"{dtypes[0]}-{dtypes[1]}-{target.split('=')[-1]}",
        marks=pytest.mark.skipif(target == AMX and not HAS_BMI2, reason="kernels use BMI2"),
    )
    for target in (AMX, ARM)
    for dtypes in (
        *[(a, b, "int32") for a in BYTES for b in BYTES],
        ("bfloat16", "bfloat16", "float32"),
        ("float16", "float16", "float32"),
    )
    if (target, dtypes[0]) != (ARM, "float16")
]  # fmt: skip
# Both signs occur; which factor has which only chooses another instruction.
FEW = [case for case in CASES if str(case.id).split("-")[1] != "uint8"]
# At which tiles, panels and sums end in all ways.
SHAPES = {
    AMX: [(13, 50, 65, "NN"), (40, 33, 56, "NT"), (35, 24, 45, "TN"), (17, 41, 72, "TT"),
          (64, 64, 128, "NN")],
    ARM: [(7, 22, 15, "NN"), (12, 21, 16, "NT"), (9, 24, 22, "TN"), (6, 13, 24, "TT"),
          (16, 16, 32, "NN")],
}  # fmt: skip
Shapes = list[tuple[int, int, int, str]]
random = np.random.default_rng(7)


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets kernels for the targets above run on this machine, where they must be built so that they
    release the GIL: numpy takes it, on threads of the pool as well."""

    def emit_for_here(text: ModuleText, target: tvm.Target) -> bytes:
        if IS_NATIVE.get(str(target), True):
            return emit_object(text, target)
        machine = machine_for(HERE)
        here = re.sub(
            'target datalayout = ".*"', f'target datalayout = "{machine.target_data}"', str(text)
        )
        here = re.sub('target triple = ".*"', f'target triple = "{HERE.triple}"', here)
        module = parse(in_software(here))
        optimise_functions(module, machine, text.with_loop_passes)
        return bytes(machine.emit_object(module))

    monkeypatch.setattr(program_module, "emit_object", emit_for_here)
    monkeypatch.setattr(tvm.Target, "missing_on_host", "")


def instruction_of(s: te.Schedule) -> str:
    """The name and the block of the instruction that a schedule uses."""
    found = re.findall(r"te.matrix_product\('(\w+)', (.*?)\)", s.trace())
    return " ".join(found[0]) if found else ""


# -- By the auto-scheduler -------------------------------------------------------------------------


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("target", "dtypes"), CASES)
def test_products(target: str, dtypes: tuple[str, str, str]) -> None:
    """One shape of each type: together all shapes for each machine."""
    check_products(target, dtypes, one_of(SHAPES[target], target, dtypes))


@pytest.mark.wide
@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("target", "dtypes"), CASES)
def test_products_of_all_shapes(target: str, dtypes: tuple[str, str, str]) -> None:
    check_products(target, dtypes, SHAPES[target])


def one_of(shapes: Shapes, target: str, dtypes: tuple[str, str, str]) -> Shapes:
    """One of the shapes, for the next type on a machine the next one."""
    first = [case.values[1] for case in CASES if case.values[0] == target].index(dtypes)
    return [shapes[first % len(shapes)]]


def check_products(target: str, dtypes: tuple[str, str, str], shapes: Shapes) -> None:
    expected = find_instruction(MATRIX_PRODUCTS, *dtypes, tvm.Target(target).features)
    assert expected is not None
    for m, n, k, layout in shapes:
        tensors = product(m, n, k, dtypes, layout)
        s = auto_schedule(tensors[2], target)
        if n < 16 and any("{lanes} lanes of a vector" in each.text for each in s.choices):
            continue  # few columns, by dot products: they have tests of their own
        assert expected.name in instruction_of(s)
        check(tensors, s, target, layout, release_gil=True)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("target", "dtypes"), FEW)
def test_prepacked_products(target: str, dtypes: tuple[str, str, str]) -> None:
    """Panels, of a padded copy or not, or rows, that the call gets."""
    check_prepacked_products(target, dtypes, one_of(prepackable(target), target, dtypes))


@pytest.mark.wide
@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("target", "dtypes"), CASES)
def test_prepacked_products_of_all_shapes(target: str, dtypes: tuple[str, str, str]) -> None:
    check_prepacked_products(target, dtypes, prepackable(target))


def prepackable(target: str) -> Shapes:
    return [shape for shape in SHAPES[target] if shape[3][0] == "N"]


def check_prepacked_products(target: str, dtypes: tuple[str, str, str], shapes: Shapes) -> None:
    for m, n, k, layout in shapes:
        tensors = product(m, n, k, dtypes, layout)
        s = auto_schedule(tensors[2], target, prepacked=[tensors[1]])
        assert instruction_of(s)
        (panels,) = (stage for stage in s.stages if stage.is_ahead)
        assert panels.op.output(0).ndim == (2 if exchanges_roles(s) else 3)
        check(tensors, s, target, layout, release_gil=True)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("dtypes", [case.values[1] for case in FEW if case.values[0] == AMX])
@pytest.mark.parametrize(
    ("sizes", "layout"),
    [((20, 96, 256), "NT"), ((5, 128, 128), "NT"), ((24, 256, 128), "TT")],
)
def test_weights_are_rows(
    sizes: tuple[int, int, int], layout: str, dtypes: tuple[str, str, str]
) -> None:
    """With the roles of the factors exchanged, which costs less where a factor of few rows is
    packed or transposed in place of a large one."""
    tensors = product(*sizes, dtypes, layout)
    s = auto_schedule(tensors[2], AMX)
    assert exchanges_roles(s)
    check(tensors, s, AMX, layout, release_gil=True)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.covering(2)
@pytest.mark.parametrize(
    "dtypes", [("int8", "uint8", "int32"), ("bfloat16", "bfloat16", "float32")]
)
@pytest.mark.parametrize("sizes", [(13, 70, 65), (37, 131, 45), (8, 67, 70), (65, 83, 64)])
@pytest.mark.parametrize("layout", ["NT", "TT", "TN"])
def test_exchanged_roles_of_all_shapes(
    sizes: tuple[int, int, int],
    layout: str,
    dtypes: tuple[str, str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where they cost more, too: tiles, panels and sums end in all ways."""
    roles = instructions._roles
    monkeypatch.setattr(instructions, "_roles", lambda *given: roles(*given)[-1:])
    tensors = product(*sizes, dtypes, layout)
    s = auto_schedule(tensors[2], AMX)
    assert exchanges_roles(s)
    check(tensors, s, AMX, layout, release_gil=True)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.covering(2)
@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize(
    "dtypes", [("int8", "uint8", "int32"), ("bfloat16", "bfloat16", "float32")]
)
@pytest.mark.parametrize(
    ("n", "k", "layout"), [(200, 256, "NT"), (131, 77, "NT"), (160, 128, "TT")]
)
def test_fewest_rows(rows: int, n: int, k: int, layout: str, dtypes: tuple[str, str, str]) -> None:
    """Two and three rows are columns of tiles, most of whose products are padding; a single one is
    no matrix."""
    tensors = product(rows, n, k, dtypes, layout)
    s = auto_schedule(tensors[2], AMX)
    assert exchanges_roles(s) or rows == 1 or k == 77
    check(tensors, s, AMX, layout, release_gil=True)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(
    "dtypes", [("int8", "uint8", "int32"), ("bfloat16", "bfloat16", "float32")]
)
@pytest.mark.parametrize("sizes", [(13, 70, 65), (37, 131, 45), (8, 64, 64), (65, 83, 128)])
@pytest.mark.parametrize("layout", ["NN", "NT", "TT"])
def test_prepacked_rows(
    sizes: tuple[int, int, int],
    layout: str,
    dtypes: tuple[str, str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights as rows that are padded, or transposed, ahead of the call: nothing else is copied in
    the call than the few rows that become panels."""
    roles = instructions._roles
    monkeypatch.setattr(instructions, "_roles", lambda *given: roles(*given)[-1:])
    tensors = product(*sizes, dtypes, layout)
    s = auto_schedule(tensors[2], AMX, prepacked=[tensors[1]])
    assert exchanges_roles(s)
    (ahead,) = (stage for stage in s.stages if stage.is_ahead)
    *others, _, steps = map(int, ahead.op.output(0).shape)
    assert steps % 32 == 0
    assert others == ([1] if layout == "NN" and sizes[1] == sizes[2] else [])  # see `tell_apart`
    check(tensors, s, AMX, layout, release_gil=True)


def test_large_weights_are_rows_ahead() -> None:
    """Panels from beyond the L2 cache come late, since tiles wait for them."""
    for n, k, are_rows in ((768, 768, False), (4096, 1024, True), (5120, 1280, True)):
        _, B, C = product(24, n, k, ("bfloat16", "bfloat16", "float32"), "NN")
        assert exchanges_roles(auto_schedule(C, AMX, prepacked=[B])) == are_rows


@pytest.mark.usefixtures("anywhere")
def test_prepacked_rows_of_a_batch_that_are_moved() -> None:
    """Heads that a reshape divides: what moves them is done ahead, too."""
    A = te.placeholder((2, 24, 64), "bfloat16", "A")
    W = te.placeholder((2 * 96 * 64,), "bfloat16", "W")
    B = te.compute((2, 96, 64), lambda b, j, k: W[(b * 96 + j) * 64 + k], name="B")
    k = te.reduce_axis((0, 64), "k")
    C = te.compute(
        (2, 24, 96),
        lambda b, i, j: te.sum(A[b, i, k].astype("float32") * B[b, j, k].astype("float32"), k),
        name="C",
    )
    f = tvm.build(C, [A, W, C], AMX, prepacked=[W], release_gil=True)
    a, w = numbers((2, 24, 64), "bfloat16"), numbers((2 * 96 * 64,), "bfloat16")
    c = np.empty((2, 24, 96), "float32")
    f(as_given(a, A), tvm.prepack(f, "W", as_given(w, W)), c)
    x, y = exactly(a, "bfloat16"), exactly(w, "bfloat16").reshape(2, 96, 64)
    np.testing.assert_allclose(c, x @ y.transpose(0, 2, 1), 1e-4, 1e-4)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("sizes", [(64, 1500, 1024), (33, 1100, 1030)])
def test_rows_are_transposed_once(sizes: tuple[int, int, int]) -> None:
    """For all tasks; and lie an odd number of lines apart, so that those of a tile aren't in one
    set of the L1 cache."""
    tensors = product(*sizes, ("bfloat16", "bfloat16", "float32"), "TN")
    s = auto_schedule(tensors[2], AMX)
    assert any(each.about == "blocks" for each in s.choices)
    body = tvm.lower(s, tensors)["main"].body
    (rows,) = (
        each.buffer
        for each in walk_once(body)
        if isinstance(each, Allocate) and each.buffer.name.startswith("A.")
    )
    apart = int(rows.strides[-2]) * 2
    assert (apart % 128, apart >= 2 * sizes[2]) == (64, True)
    check(tensors, s, AMX, "TN", release_gil=True)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(
    ("dtypes", "rows", "n", "k", "is_in_tiles"),
    [
        (("uint8", "int8", "int32"), 6, 3072, 1024, True),
        (("uint8", "int8", "int32"), 5, 771, 770, True),
        (("bfloat16", "bfloat16", "float32"), 8, 4096, 1024, False),
        (("bfloat16", "bfloat16", "float32"), 4, 771, 770, False),
        (("bfloat16", "bfloat16", "float32"), 12, 768, 768, True),
    ],
)
def test_few_rows_are_in_tiles_unless_others_are_faster(
    dtypes: tuple[str, str, str], rows: int, n: int, k: int, is_in_tiles: bool
) -> None:
    """Groups of the columns' factor are copied for tiles, which pays for more rows."""
    tensors = product(rows, n, k, dtypes, "NN")
    s = auto_schedule(tensors[2], AMX)
    assert instruction_of(s).startswith("tdp") is is_in_tiles
    check(tensors, s, AMX, "NN", release_gil=True)


def exchanges_roles(s: te.Schedule) -> bool:
    return any("transposed on their way" in each.text for each in s.choices)


@pytest.mark.usefixtures("anywhere")
def test_roles_where_results_follow() -> None:
    """Batches, bias and a cast in the tiles; and signs of integers, which other instructions
    multiply when the roles change."""
    dtypes = ("bfloat16", "bfloat16", "float32")
    A, B = te.placeholder((2, 9, 64), dtypes[0], "A"), te.placeholder((2, 70, 64), dtypes[1], "B")
    bias, k = te.placeholder((70,), "float32", "bias"), te.reduce_axis((0, 64), "k")
    C = te.compute(
        (2, 9, 70),
        lambda b, i, j: te.sum(A[b, i, k].astype("float32") * B[b, j, k].astype("float32"), k),
        name="C",
    )
    D = te.compute((2, 9, 70), lambda b, i, j: te.max(C[b, i, j] + bias[j], 0.0), name="D")
    s = auto_schedule(D, AMX)
    assert exchanges_roles(s)
    a, b = numbers((2, 9, 64), dtypes[0]), numbers((2, 70, 64), dtypes[1])
    w, d = numbers((70,), "float16").astype("float32"), np.empty((2, 9, 70), "float32")
    tvm.build(s, [A, B, bias, D], AMX, release_gil=True)(as_given(a, A), as_given(b, B), w, d)
    x, y = exactly(a, dtypes[0]), exactly(b, dtypes[1])
    np.testing.assert_allclose(d, np.maximum(x @ y.transpose(0, 2, 1) + w, 0), 1e-4, 1e-4)

    mixed = product(8, 96, 128, ("uint8", "int8", "int32"), "NT")
    s = auto_schedule(mixed[2], AMX)
    assert instruction_of(s).startswith("tdpbsud ")
    check(mixed, s, AMX, "NT", release_gil=True)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("layout", ["NT", "TT"])
def test_any_number_of_few_rows(layout: str) -> None:
    """A version for few rows has the roles exchanged, those for more have not: each strip of rows
    would read all weights again."""
    m, k = te.var("m"), te.reduce_axis((0, 512), "k")
    A = te.placeholder((m, 512) if layout[0] == "N" else (512, m), "int8", "A")
    B = te.placeholder((640, 512), "int8", "B")

    def term(i: te.Var, j: te.Var) -> te.PrimExpr:
        a = A[i, k] if layout[0] == "N" else A[k, i]
        return te.sum(a.astype("int32") * B[j, k].astype("int32"), axis=k)

    C = te.compute((m, 640), term, name="C")
    s = auto_schedule(C, AMX)
    assert sum(exchanges_roles(each) for _, each in s.versions) == 1
    f = tvm.build(s, [A, B, C], AMX, release_gil=True)
    b = numbers((640, 512), "int8")
    for rows in (0, 1, 3, 16, 33, 63, 64, 65, 128, 130):
        a = numbers((rows, 512), "int8") if rows else np.empty((0, 512), "int8")
        c = np.empty((rows, 640), "int32")
        f(a if layout[0] == "N" else np.ascontiguousarray(a.T), b, c)
        np.testing.assert_array_equal(c, a.astype("int32") @ b.astype("int32").T)


def test_rows_of_tiles_that_leave_no_remainder() -> None:
    """25 tiles of 40 rows need no padding of the factor of 1000 rows, which 31.25 of 32 need."""
    s = auto_schedule(product(64, 1000, 1024, ("int8", "int8", "int32"), "NT")[2], AMX)
    rows = int(instruction_of(s).split()[1].strip(","))
    assert 1000 % rows == 0
    assert exchanges_roles(s)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("target", "dtypes"), FEW)
def test_batches_and_what_follows(target: str, dtypes: tuple[str, str, str]) -> None:
    a_dtype, b_dtype, dtype = dtypes
    A = te.placeholder((3, 18, 70), a_dtype, name="A")
    B = te.placeholder((3, 70, 40), b_dtype, name="B")
    scale = te.placeholder((40,), name="scale")
    r = te.reduce_axis((0, 70), name="k")
    C = te.compute(
        (3, 18, 40),
        lambda b, i, j: te.sum(A[b, i, r].astype(dtype) * B[b, r, j].astype(dtype), axis=r),
        name="C",
    )
    D = te.compute(C.shape, lambda b, i, j: C[b, i, j].astype("float32") * scale[j], name="D")
    s = auto_schedule(D, target)
    assert instruction_of(s)
    f = tvm.build(s, [A, B, scale, D], target, release_gil=True)
    a, b = numbers(shape_of(A), a_dtype), numbers(shape_of(B), b_dtype)
    factors, d = random.random(40, "float32"), np.empty((3, 18, 40), "float32")
    f(as_given(a, A), as_given(b, B), factors, d)
    x, y = exactly(a, a_dtype), exactly(b, b_dtype)
    bound = (70 + 3) * 2.0**-23 * (abs(x) @ abs(y)) * factors
    assert (abs(d - (x @ y) * factors) <= bound).all()


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("target", [pytest.param(AMX, marks=CASES[0].marks), ARM])
def test_nan_and_infinity(target: str) -> None:
    """Come out where they belong, and padding adds nothing to them."""
    tensors = product(33, 40, 35, ("bfloat16", "bfloat16", "float32"))
    a, b = numbers((33, 35), "bfloat16"), numbers((35, 40), "bfloat16")
    a[3, 34], a[32, 0], b[7, 39] = 0x7F80, 0x7FC0, 0xFF80  # infinity, NaN, -infinity
    c = np.empty((33, 40), "float32")
    s = auto_schedule(tensors[2], target)
    assert instruction_of(s)
    f = tvm.build(s, tensors, target, release_gil=True)
    f(as_given(a, tensors[0]), as_given(b, tensors[1]), c)
    with np.errstate(invalid="ignore"):
        wanted = exactly(a, "bfloat16") @ exactly(b, "bfloat16")
    np.testing.assert_allclose(c, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.skipif(not HAS_BMI2, reason="kernels use BMI2")
def test_blocks() -> None:
    """Of factors that don't fit the cache, blocks are packed and copied."""
    target = f"{AMX} -l1d-cache-bytes=32768 -l2-cache-bytes=32768 -l3-cache-bytes=32768"
    for layout in ("NN", "NT", "TN", "TT"):
        tensors = product(100, 150, 120, ("int8", "uint8", "int32"), layout)
        s = auto_schedule(tensors[2], target)
        body = tvm.lower(s, tensors)["main"].body
        made = [each.buffer for each in walk_once(body) if isinstance(each, Allocate)]
        sizes = [each.dtype.itemsize * prod(int(str(n)) for n in each.shape) for each in made]
        assert len(sizes) > 2
        assert max(sizes) <= 16 << 10
        if layout in ("NN", "TT"):  # both factors in both layouts
            check(tensors, s, AMX, layout, release_gil=True)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.skipif(not HAS_BMI2, reason="kernels use BMI2")
def test_blocks_that_divide_nothing() -> None:
    """Whole tiles need no padding, also where the last block has fewer of them than the others."""
    target = f"{AMX} -num-cores=1 -l2-cache-bytes=65536"
    tensors = product(512, 11 * 32, 128, ("int8", "int8", "int32"))
    s = auto_schedule(tensors[2], target)
    columns = next(each.figures["columns"] for each in s.choices if "tasks of" in str(each))
    assert isinstance(columns, int)
    assert (11 * 32) % columns
    assert columns * 128 <= 32 << 10
    assert "pad" not in str(tvm.lower(s, tensors))
    check(tensors, s, AMX, "NN", release_gil=True)


def test_padding_is_added_beside_the_panels() -> None:
    """To the rows of a group, not in a copy of the whole factor."""
    tensors = product(64, 70, 131, ("int8", "int8", "int32"))
    s = auto_schedule(tensors[2], f"{AMX} -num-cores=1")
    body = tvm.lower(s, tensors)["main"].body
    made = {
        each.buffer.name: each.buffer.shape
        for each in walk_once(body)
        if isinstance(each, Allocate)
    }
    assert int(str(made["B.pad"][0])) == 4


@pytest.mark.usefixtures("anywhere")
@pytest.mark.skipif(not HAS_BMI2, reason="kernels use BMI2")
def test_sums_in_place() -> None:
    """Where all tiles are whole they are stored to the output; also to one with strides."""
    tensors = product(32, 64, 128, ("int8", "int8", "int32"))
    s = auto_schedule(tensors[2], AMX)
    assert "cache_write" not in s.trace()
    f = tvm.build(s, tensors, AMX, release_gil=True)
    a, b = numbers((64, 128), "int8")[::2], numbers((64, 128), "int8").T
    c = np.zeros((32, 128), "int32")
    f(a, b, c[:, 64:])
    np.testing.assert_array_equal(c[:, 64:], a.astype("int32") @ b.astype("int32"))
    assert not c[:, :64].any()


@pytest.mark.usefixtures("anywhere")
@pytest.mark.skipif(not HAS_BMI2, reason="kernels use BMI2")
def test_checked_accesses() -> None:
    tensors = product(20, 40, 70, ("int8", "int8", "int32"))
    s = auto_schedule(tensors[2], AMX)
    f = tvm.build(s, tensors, AMX, debug="bounds", release_gil=True)
    a, b, c = numbers((20, 70), "int8"), numbers((70, 40), "int8"), np.empty((20, 40), "int32")
    f(a, b, c)
    np.testing.assert_array_equal(c, a.astype("int32") @ b.astype("int32"))


def test_traces_replay() -> None:
    for target in (AMX, ARM):
        (_, _, C) = product(130, 500, 370, ("int8", "int8", "int32"))
        text = auto_schedule(C, target).trace()
        assert te.replay(text, C).trace() == text


def test_chosen_where_it_pays() -> None:
    """Where little of it would be padding; by features, never by the name of a CPU."""

    def found(m: int, n: int, k: int, target: str, dtype: str = "int8") -> str:
        sums = "int32" if dtype == "int8" else "float32"
        return instruction_of(auto_schedule(product(m, n, k, (dtype, dtype, sums))[2], target))

    assert found(512, 512, 512, AMX) == "tdpbssd 32, 32"
    assert found(16, 512, 512, AMX) == "tdpbssd 16, 48"
    assert found(512, 16, 512, AMX) == "tdpbssd 32, 16"  # 47 would pad a copy of A
    assert found(100, 100, 100, AMX, "bfloat16") == "tdpbf16ps 25, 32"
    assert found(1, 512, 512, AMX) == found(512, 512, 4, AMX) == found(5, 3, 512, AMX) == ""
    assert found(512, 512, 512, ARM) == "smmla 8, 8"
    assert found(1, 512, 512, ARM) == found(512, 512, 4, ARM) == ""
    x86 = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v4"
    assert found(512, 512, 512, f"{x86} -mattr=+amx-tile,+amx-int8") == "tdpbssd 32, 32"
    assert found(512, 512, 512, f"{x86} -mattr=+amx-tile,+amx-bf16") == ""
    spr = "llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids"
    assert found(64, 64, 64, spr, "float16") == ""


def test_rows_that_lie_elsewhere() -> None:
    """Rows beside columns alone make tiles: heads between them are brought outside."""
    A = te.placeholder((64, 4, 64), "bfloat16", name="A")
    B = te.placeholder((64, 4, 64), "bfloat16", name="B")
    r = te.reduce_axis((0, 64), name="k")
    C = te.compute(
        (64, 4, 64),
        lambda i, h, j: te.sum(A[i, h, r].astype("float32") * B[j, h, r].astype("float32"), axis=r),
    )
    s = auto_schedule(C, AMX)
    assert "te.matrix_product" in s.trace()
    assert "layout" in {each.about for each in s.choices}


def test_strict_floats_are_rounded_as_written() -> None:
    tensors = product(64, 64, 64, ("bfloat16", "bfloat16", "float32"))
    assert "tdpbf16ps" in tvm.build(tensors[2], tensors, AMX).get_source("asm")
    assert "tdp" not in tvm.build(tensors[2], tensors, AMX, fp="strict").get_source("asm")


# -- By hand ---------------------------------------------------------------------------------------


def by_hand(
    by: MatrixProduct, sizes: tuple[int, int, int], block: tuple[int, int, int]
) -> tuple[list[te.Tensor], te.Schedule]:
    """A schedule with one instruction; where a block has but a part of the sum, in pieces."""
    tensors = product(*sizes, (by.a, by.b, by.sum))
    C, (rows, columns, depth) = tensors[2], block
    s = te.create_schedule(C.op)
    sums, _, b = s.pad_einsum(s.cache_write(C, "global"), block)
    row, column = axes_of(s[C].op)
    _, j_outer, _, j_inner = s[C].tile(row, column, rows, columns)
    s[C].vectorize(j_inner)
    s[sums].compute_at(s[C], j_outer)
    pack(s, b, sums, by, columns)
    i, j, k = axes_of(s[sums].op)
    k_outer, k_inner = s[sums].split(k, factor=depth)
    s[sums].reorder(k_outer, i, j, k_inner)
    s[sums].tensorize(i, te.matrix_product(by.name, rows, columns, depth))
    return tensors, s


@pytest.mark.usefixtures("anywhere")
def test_what_instructions_take() -> None:
    """As their names say: of AMX, s and u are the signs of both factors."""
    signs = {"s": "int8", "u": "uint8"}
    for by in MATRIX_PRODUCTS:
        assert by.name.split("_")[0] in by.llvm
        assert by.sum == ("int32" if by.a.endswith("int8") else "float32")
        assert by.a == by.b or {by.a, by.b} == {"int8", "uint8"}
        if by.name.startswith("tdpb") and by.sum == "int32":
            assert (by.a, by.b) == (signs[by.name[4]], signs[by.name[5]])
            assert by.features == {"amx-tile", "amx-int8"}
        elif by.a == by.b != "float16":
            assert find_instruction(MATRIX_PRODUCTS, by.a, by.b, by.sum, by.features) == by


@pytest.mark.parametrize("by", MATRIX_PRODUCTS, ids=[each.name for each in MATRIX_PRODUCTS])
def test_instructions(by: MatrixProduct) -> None:
    """In pieces of the sum, so that sums are also taken from memory."""
    target = ARM if "neon" in by.features else AMX
    if target == AMX and not HAS_BMI2:
        pytest.skip("kernels use BMI2")
    block = (3 * by.rows, 8, 2 * by.depth) if by.exact else (20, 24, 2 * by.depth)
    tensors, s = by_hand(by, (block[0] + 3, block[1] + 9, 3 * by.depth - 3), block)
    f = check(tensors, s, target, release_gil=True)
    assert re.search(rf"\b{by.name.split('_')[0]}\b", f.get_source("asm"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("tdpb", 16, 16, 64), r"expected an instruction among tdpbssd, .*, got 'tdpb'"),
        (("tdpbssd", 16, 16, 32), r"multiples of \(1, 1, 64\), .* got \(16, 16, 32\)"),
        (("tdpbssd", 0, 16, 64), r"multiples of \(1, 1, 64\), .* got \(0, 16, 64\)"),
        (("smmla", 3, 8, 8), r"multiples of \(2, 2, 8\), as smmla needs them, got \(3, 8, 8\)"),
    ],
)
def test_wrong_blocks(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(CompileError, match=text):
        te.matrix_product(*arguments)


def test_targets_that_lack_an_instruction() -> None:
    """LLVM would end the process."""
    v4 = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v4"
    tensors = product(64, 64, 64, ("int8", "int8", "int32"))
    expected = "expected a target with amx-tile, got 'llvm .*v4'"
    with pytest.raises(CompileError, match=expected):
        tvm.build(auto_schedule(tensors[2], AMX), tensors, v4)
    vnni = auto_schedule(tensors[2], f"{v4} -mattr=+avx512vnni")
    with pytest.raises(CompileError, match=r"vpdpbusd.* expected a target with avx512vnni, got"):
        tvm.build(vnni, tensors, v4)


# -- Assembly --------------------------------------------------------------------------------------


def loop_with(mnemonic: str, assembly: str) -> str:
    """The instructions of the innermost loop that has some."""
    blocks = re.split(r"^\.LBB\w+:", assembly, flags=re.MULTILINE)
    (found,) = [block for block in blocks if re.search(rf"^\t{mnemonic}", block, re.MULTILINE)]
    end = re.search(r"^\t(j\w+|b\.\w+)\t.*$", found, re.MULTILINE)
    assert end is not None
    return found[: end.end()]


@pytest.mark.parametrize(
    ("sizes", "rows", "tiles", "loads"),
    [
        ((64, 64, 512), 32, 4, 4),
        ((16, 96, 512), 16, 3, 4),
        ((96, 16, 512), 48, 3, 4),
        ((20, 64, 512), 20, 4, 4),
    ],
)
def test_tiles_stay_in_registers(
    sizes: tuple[int, int, int], rows: int, tiles: int, loads: int
) -> None:
    """A step loads each tile of the factors once, and no sums; they are stored after the loop, and
    nothing is stored to make room. It requests the next step's rows."""
    tensors = product(*sizes, ("int8", "int8", "int32"))
    assembly = tvm.build(tensors[2], tensors, AMX).get_source("asm")
    loop = loop_with("tdpbssd", assembly)
    found = [loop.count(each) for each in ("tdpbssd", "tileloadd", "tilestored", "ldtilecfg")]
    assert found == [tiles, loads, 0, 0]
    assert loop.count("prefetcht0") == rows
    for name in ("tilezero", "tilestored"):
        assert assembly.count(name) == tiles
    assert assembly.count("tilerelease") == 1


@pytest.mark.parametrize(("k", "is_requested"), [(768, True), (1024, True), (4096, False)])
def test_rows_that_evict_each_other_are_not_requested(k: int, is_requested: bool) -> None:
    """Rows of 8 KiB have all their lines for a step in one set of the L1 cache."""
    tensors = product(64, 64, k, ("bfloat16", "bfloat16", "float32"))
    assembly = tvm.build(tensors[2], tensors, AMX).get_source("asm")
    assert ("prefetcht0" in loop_with("tdpbf16ps", assembly)) == is_requested


def test_rows_of_pairs_stay_in_registers() -> None:
    for dtype, mnemonic in (("int8", "smmla"), ("bfloat16", "bfmmla")):
        tensors = product(64, 64, 512, (dtype, dtype, "int32" if dtype == "int8" else "float32"))
        loop = loop_with(mnemonic, tvm.build(tensors[2], tensors, ARM).get_source("asm"))
        assert loop.count(mnemonic) == 16
        assert "sp" not in loop
        assert not re.search(r"\tst[rpu]", loop)


def test_vnni_of_256_bits() -> None:
    """The instruction of AVX-VNNI, which is encoded otherwise than that of AVX-512."""
    target = "llvm -mtriple=x86_64-linux-gnu -mcpu=alderlake"
    for dtypes, mnemonic in (
        (("uint8", "int8", "int32"), "vpdpbusd"), (("int8", "uint8", "int32"), "vpdpbusd"),
        (("int8", "int8", "int32"), "vpdpbusd"), (("uint8", "uint8", "int32"), "vpdpwssd"),
    ):  # fmt: skip
        tensors = product(64, 64, 64, dtypes)
        assembly = tvm.build(tensors[2], tensors, target).get_source("asm")
        assert re.search(rf"\{{vex\}}\s+{mnemonic}\t.*%ymm", assembly)


# -- Permission ------------------------------------------------------------------------------------

_ON_LINUX = sys.platform == "linux" and HERE.arch == "x86_64"


@pytest.mark.skipif(not _ON_LINUX, reason="asks Linux on x86-64")
def test_the_kernel_is_asked() -> None:
    """What it says then is what it permits: ARCH_GET_XCOMP_PERM, of XFEATURE_XTILEDATA."""
    refusal = host_module._ask_for_tiles()
    permitted = ctypes.c_uint64()
    libc = ctypes.CDLL(None)
    libc.syscall(ctypes.c_long(158), ctypes.c_long(0x1022), ctypes.byref(permitted))
    assert bool(permitted.value >> 18 & 1) == (refusal == "")


def features_of(tiles: bool) -> Any:
    found = llvm.get_host_cpu_features()
    found.update(dict.fromkeys(("amx-tile", "amx-int8", "amx-bf16"), tiles))
    return found


@pytest.mark.parametrize("refusal", ["the kernel refuses its tile registers: no", ""])
def test_without_permission_there_are_no_tiles(
    refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU has them, and the kernel may not let this process use them."""
    made = features_of(tiles=True)
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: made)
    monkeypatch.setattr(host_module, "_ask_for_tiles", lambda: refusal)
    found = host_module.host.__wrapped__()
    assert found.refusal == refusal
    assert ("amx-int8" in found.features) == (not refusal)
    assert ("-amx-tile" in found.feature_string) == bool(refusal)

    monkeypatch.setattr(tvm.target, "host", lambda: found)
    target = tvm.Target("llvm -mattr=+amx-tile,+amx-int8")
    wanted = f"it lacks amx-int8, amx-tile ({refusal})" if refusal else ""
    assert target.missing_on_host == wanted
    trace = auto_schedule(product(64, 64, 64, ("int8", "int8", "int32"))[2], "llvm").trace()
    assert ("tdpbssd" in trace) == (not refusal)
    if refusal:
        tensors = product(64, 64, 64, ("int8", "int8", "int32"))
        f = tvm.build(tensors[2], tensors, target, name="mm")
        with pytest.raises(ValueError, match=r"mm: built for .* can't run: .*refuses its tile"):
            f(*(np.empty((64, 64), each.dtype) for each in tensors))


def test_nobody_asks_without_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    made = features_of(tiles=False)
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: made)
    monkeypatch.setattr(host_module, "_ask_for_tiles", lambda: pytest.fail("asked"))
    assert host_module.host.__wrapped__().refusal == ""


@pytest.mark.parametrize("dtypes", [("int8", "int32"), ("bfloat16", "float32")])
@pytest.mark.parametrize("layout", ["NT", "TN", "NN"])
def test_a_product_of_a_tensor_with_itself_has_two_factors(
    dtypes: tuple[str, str], layout: str
) -> None:
    """Instructions multiply two tensors: a copy is the columns' factor."""
    dtype, wide = dtypes
    n, depth = 200, 200 if layout == "NN" else 320
    A = te.placeholder((depth, n) if layout == "TN" else (n, depth), dtype, name="A")
    k = te.reduce_axis((0, depth), name="k")

    def element(i: Any, j: Any) -> Any:
        a = A[k, i] if layout == "TN" else A[i, k]
        b = A[j, k] if layout == "NT" else A[k, j]
        return te.sum(a.astype(wide) * b.astype(wide), axis=k)

    C = te.compute((n, n), element, name="C")
    trace = auto_schedule(C, AMX).trace()
    assert "s.hoist(C, " in trace and "matrix_product" in trace


@pytest.mark.parametrize("sizes", [(45, 64), (130, 77), (33, 300)])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_values_of_a_product_of_a_tensor_with_itself(sizes: tuple[int, int], dtype: str) -> None:
    n, depth = sizes
    A = te.placeholder((n, depth), dtype, name="A")
    k = te.reduce_axis((0, depth), name="k")
    C = te.compute(
        (n, n),
        lambda i, j: te.sum(A[i, k].astype("int32") * A[j, k].astype("int32"), axis=k),
        name="C",
    )
    a = random.integers(-99 if dtype != "uint8" else 0, 100, (n, depth)).astype(dtype)
    c = np.full((n, n), 77, "int32")
    tvm.build([C], [A, C])(a, c)
    np.testing.assert_array_equal(c, a.astype("int32") @ a.T.astype("int32"))
