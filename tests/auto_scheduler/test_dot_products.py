"""Contractions of small numbers: exact for integers, within a bound for 16-bit floats."""

from __future__ import annotations

import re
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.auto_scheduler import auto_schedule
from minitvm.runtime.errors import CompileError
from minitvm.te.intrinsics.dot_product import DOT_PRODUCTS, DotProduct
from minitvm.te.intrinsics.instruction import find_instruction
from minitvm.te.intrinsics.matrix_product import MatrixProduct
from minitvm.tir.interpreter import interpret
from tests.auto_scheduler.contractions import product

Array = np.ndarray[Any, Any]
random = np.random.default_rng(5)
HERE = tvm.Target("llvm")
DTYPES = [
    ("uint8", "int8", "int32"),
    ("int8", "int8", "int32"),
    ("int8", "uint8", "int32"),
    ("uint8", "uint8", "int32"),
    ("int16", "int16", "int32"),
    ("int8", "int16", "int32"),
    ("bfloat16", "bfloat16", "float32"),
    ("float16", "float16", "float32"),
]
X86 = "llvm -mtriple=x86_64-linux-gnu -mcpu="
OTHERS = ["llvm"]
if HERE.arch == "x86_64":
    OTHERS += [f"llvm -mcpu={name}" for name in ("x86-64-v3", "x86-64-v2")]


def numbers(shape: tuple[int, ...], dtype: str) -> Array:
    """All values of integers, the extreme ones too; of bfloat16 the bits, as uint16."""
    if dtype == "bfloat16":
        wide = random.uniform(-1, 1, shape).astype("float32").view("uint32")
        return (wide >> 16).astype("uint16")
    if dtype == "float16":
        return random.uniform(-1, 1, shape).astype(dtype)
    info = np.iinfo(dtype)
    made = random.integers(info.min, info.max, shape, dtype, endpoint=True)
    made[(0,) * len(shape)] = info.min
    return made


def exactly(values: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        return (values.astype("uint32") << 16).view("float32").astype("float64")
    return values.astype("float64" if "float" in dtype else "int64")


def check(
    tensors: list[te.Tensor],
    s: te.Schedule,
    target: str = "llvm",
    layout: str = "NN",
    *,
    release_gil: bool | None = None,
) -> Any:
    """Held to exact arithmetic: integers wrap, and a sum of k products of 16-bit floats, exact in
    float32 or not even that, is off by at most (k + 2) roundings of the sum of magnitudes."""
    f = tvm.build(s, tensors, target, name="mm", release_gil=release_gil)
    if tvm.Target(target).missing_on_host:
        return f
    A, B, C = tensors
    a, b = numbers(shape_of(A), str(A.dtype)), numbers(shape_of(B), str(B.dtype))
    c = np.empty(shape_of(C), str(C.dtype))
    is_prepacked = any(stage.is_ahead for stage in s.stages)
    given = tvm.prepack(f, B.name, as_given(b, B)) if is_prepacked else as_given(b, B)
    f(as_given(a, A), given, c)
    x, y = exactly(a, str(A.dtype)), exactly(b, str(B.dtype))
    x, y = x if layout[0] == "N" else x.T, y if layout[1] == "N" else y.T
    if C.dtype == "int32":
        np.testing.assert_array_equal(c, (x @ y).astype("int32"))
    else:
        bound = (x.shape[-1] + 2) * 2.0**-23 * (abs(x) @ abs(y))
        assert (abs(c - x @ y) <= bound).all()
    return f


def shape_of(tensor: te.Tensor) -> tuple[int, ...]:
    return tuple(int(str(extent)) for extent in tensor.shape)


def as_given(values: Array, tensor: te.Tensor) -> Any:
    if tensor.dtype != "bfloat16":
        return values
    torch = pytest.importorskip("torch")
    return torch.from_numpy(values.view("int16")).view(torch.bfloat16)


# -- By the machine --------------------------------------------------------------------------------


SHAPES = [
    (13, 50, 9, "NN"), (5, 33, 38, "NT"), (9, 20, 21, "TN"), (17, 35, 18, "TT"),
    (32, 64, 64, "NN"), (2, 40, 7, "NN"), (30, 3, 5, "NT"),
]  # fmt: skip


def check_products(dtypes: tuple[str, str, str], target: str, shapes: Any) -> None:
    for m, n, k, layout in shapes:
        tensors = product(m, n, k, dtypes, layout)
        check(tensors, auto_schedule(tensors[2], target), target, layout)


@pytest.mark.parametrize("dtypes", DTYPES, ids="-".join)
@pytest.mark.parametrize("target", OTHERS)
def test_products(dtypes: tuple[str, str, str], target: str) -> None:
    """One shape of each type for each machine: together all shapes for each machine."""
    number = DTYPES.index(dtypes) + 3 * OTHERS.index(target)
    check_products(dtypes, target, [SHAPES[number % len(SHAPES)]])


@pytest.mark.wide
@pytest.mark.parametrize("dtypes", DTYPES, ids="-".join)
@pytest.mark.parametrize("target", OTHERS)
def test_products_of_all_shapes(dtypes: tuple[str, str, str], target: str) -> None:
    check_products(dtypes, target, SHAPES)


@pytest.mark.parametrize(
    ("sizes", "layout", "dtypes"),
    [
        ((2, 47, 17), "TT", ("uint8", "int8", "int32")),
        ((63, 33, 200), "TN", ("int8", "int16", "int32")),
        ((1, 130, 200), "TT", ("uint8", "int8", "int32")),
        ((1, 70, 97), "TN", ("int16", "int16", "int32")),
    ],
)
def test_prepacked_by_transposed_rows(
    sizes: tuple[int, int, int], layout: str, dtypes: tuple[str, str, str]
) -> None:
    """Whose groups are brought together in the call, also of a single row."""
    tensors = product(*sizes, dtypes, layout)
    for target in (X86 + "cascadelake", X86 + "haswell"):
        s = auto_schedule(tensors[2], target, prepacked=[tensors[1]])
        check(tensors, s, target, layout)


@pytest.mark.covering(1)
@pytest.mark.parametrize("wide", ["m", "n", "k", "mnk"])
@pytest.mark.parametrize("dtypes", [DTYPES[0], DTYPES[6]], ids="-".join)
def test_extents_in_64_bits(dtypes: tuple[str, str, str], wide: str) -> None:
    m, n, k = (
        te.const(size, "int64") if name in wide else size
        for name, size in {"m": 13, "n": 50, "k": 37}.items()
    )
    tensors = product(m, n, k, dtypes, "NT")
    s = auto_schedule(tensors[2])
    assert ("dot_product" in s.trace()) == ("dot_product" in _trace_of_32_bits(dtypes))
    check(tensors, s, layout="NT")


@cache
def _trace_of_32_bits(dtypes: tuple[str, str, str]) -> str:
    return auto_schedule(product(13, 50, 37, dtypes, "NT")[2]).trace()


@pytest.mark.parametrize("k", range(1, 10))
def test_short_sums(k: int) -> None:
    """Each rest of 4 for either of two types."""
    tensors = product(8, 32, k, DTYPES[k // 4 % 2])
    check(tensors, auto_schedule(tensors[2]))


def test_traces_replay() -> None:
    for dtypes in DTYPES:
        (_, _, C) = product(13, 50, 37, dtypes)
        text = auto_schedule(C).trace()
        assert te.replay(text, C).trace() == text


def test_batches_and_what_follows() -> None:
    A = te.placeholder((3, 10, 37), "uint8", name="A")
    B = te.placeholder((3, 37, 40), "int8", name="B")
    scale = te.placeholder((40,), name="scale")
    r = te.reduce_axis((0, 37), name="k")
    C = te.compute(
        (3, 10, 40),
        lambda b, i, j: te.sum(A[b, i, r].astype("int32") * B[b, r, j].astype("int32"), axis=r),
        name="C",
    )
    D = te.compute(C.shape, lambda b, i, j: C[b, i, j].astype("float32") * scale[j], name="D")
    s = auto_schedule(D)
    f = tvm.build(s, [A, B, scale, D])
    a, b = numbers((3, 10, 37), "uint8"), numbers((3, 37, 40), "int8")
    factors, d = random.random(40, "float32"), np.empty((3, 10, 40), "float32")
    f(a, b, factors, d)
    wanted = (a.astype("int32") @ b.astype("int32")).astype("float32") * factors
    np.testing.assert_array_equal(d, wanted)


def test_chosen_by_features_alone() -> None:
    def found(target: str, k: int = 64) -> str:
        (_, _, C) = product(16, 64, k, DTYPES[0])
        return ", ".join(re.findall(r"te.dot_product\('(\w+)'", auto_schedule(C, target).trace()))

    x86 = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v4"
    assert found(x86) == "vpmaddwd_512"  # of bytes widened to int16, which never saturates
    assert found(f"{x86} -mattr=+avx512vnni") == "vpdpbusd_512"
    assert found("llvm -mtriple=x86_64-linux-gnu -mcpu=alderlake") == "vpdpbusd_256"
    arm = "llvm -mtriple=aarch64-linux-gnu"
    assert found(arm) == ""
    assert found(f"{arm} -mattr=+i8mm,+dotprod", k=4) == "usdot"  # half of usmmla's


def test_strict_floats_are_rounded_as_written() -> None:
    """By no instruction that adds two products before it rounds."""
    tensors = product(16, 64, 64, ("bfloat16", "bfloat16", "float32"))
    target = "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4"
    assert "vdpbf16ps" in tvm.build(tensors[2], tensors, target).get_source("asm")
    strict = tvm.build(tensors[2], tensors, target, fp="strict")
    assert "vdpbf16ps" not in strict.get_source("asm")


def test_products_of_narrow_integers_wrap_where_the_program_says_so() -> None:
    """A product in int8 is no dot product."""
    A, B = te.placeholder((8, 16), "int8", name="A"), te.placeholder((16, 32), "int8", name="B")
    r = te.reduce_axis((0, 16), name="k")
    C = te.compute((8, 32), lambda i, j: te.sum((A[i, r] * B[r, j]).astype("int32"), axis=r))
    s = auto_schedule(C)
    assert "dot_product" not in s.trace()
    a, b, c = numbers((8, 16), "int8"), numbers((16, 32), "int8"), np.empty((8, 32), "int32")
    tvm.build(s, [A, B, C])(a, b, c)
    wanted = (a[:, :, None] * b[None]).astype("int32").sum(axis=1)
    np.testing.assert_array_equal(c, wanted)


# -- By hand ---------------------------------------------------------------------------------------


def axes_of(op: te.Operation) -> tuple[Any, ...]:
    assert isinstance(op, te.ComputeOp)
    return (*op.axis, *op.reduce_axis)


def pack(
    s: te.Schedule, b: te.Tensor, sums: te.Tensor, by: DotProduct | MatrixProduct, columns: int
) -> None:
    """Lets the sums read a factor from panels as an instruction wants them."""
    panels = s.cache_read(b, "global", [sums])
    loops = s[panels].transform_layout(
        lambda k, j: [j // columns, k // by.group, j % columns * by.group + k % by.group]
    )
    s[panels].tensorize(loops[-1], te.interleave(by.b, by.group, columns))


def by_hand(by: DotProduct, m: int, n: int, k: int) -> tuple[list[te.Tensor], te.Schedule]:
    """A schedule with one instruction, in tiles of 4 rows."""
    tensors = product(m, n, k, (by.a, by.b, by.sum))
    C, columns = tensors[2], 2 * by.lanes
    s = te.create_schedule(C.op)
    sums, _, b = s.pad_einsum(s.cache_write(C, "local"), [4, columns, by.group])
    row, column = axes_of(s[C].op)
    _, j_outer, i_inner, j_inner = s[C].tile(row, column, 4, columns)
    s[C].unroll(i_inner)
    s[C].vectorize(j_inner)
    s[sums].compute_at(s[C], j_outer)
    pack(s, b, sums, by, columns)
    i, j, k_axis = axes_of(s[sums].op)
    outer, inner = s[sums].split(k_axis, factor=by.group)
    s[sums].reorder(outer, i, j, inner)
    s[sums].unroll(i)
    s[sums].tensorize(j, te.dot_product(by.name, columns))
    return tensors, s


@pytest.mark.parametrize("by", DOT_PRODUCTS, ids=[each.name for each in DOT_PRODUCTS])
def test_instructions(by: DotProduct) -> None:
    """Run where they are; else their assembly is read."""
    target = "llvm"
    if "neon" in by.features:
        target = f"llvm -mtriple=aarch64-linux-gnu -mattr=+{',+'.join(sorted(by.features))}"
    elif not by.features <= HERE.features:
        triple = "-mtriple=x86_64-linux-gnu -mcpu=x86-64-v3"
        target = f"llvm {triple} -mattr=+{',+'.join(sorted(by.features))}"
    tensors, s = by_hand(by, 13, 70, 9)
    f = check(tensors, s, target)
    mnemonic = by.name.split("_")[0].removeprefix("v")
    if by.form == "add":  # where there is an instruction that adds as well, LLVM takes that
        mnemonic = f"(?:{mnemonic}|pdpwssd)"
    assert re.search(rf"\bv?{mnemonic}\b", f.get_source("asm"))


def test_no_saturation() -> None:
    """The extreme bytes, whose pairs of products pmaddubsw would cut off."""
    A, B, C = product(8, 32, 64, ("uint8", "int8", "int32"))
    c = np.empty((8, 32), "int32")
    for target in OTHERS:
        f = tvm.build(auto_schedule(C, target), [A, B, C], target)
        f(np.full((8, 64), 255, "uint8"), np.full((64, 32), -128, "int8"), c)
        assert (c == -128 * 255 * 64).all()


def test_find_instruction() -> None:
    assert find_instruction(DOT_PRODUCTS, "int8", "int8", "int32", {"avx2"}) is None
    best = find_instruction(
        DOT_PRODUCTS, "int8", "int8", "int32", {"avx2", "avxvnni", "avxvnniint8"}
    )
    assert best is not None and best.name == "vpdpbssd_256"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("vpdp", 16), r"expected an instruction among vdpbf16ps_512, .*, got 'vpdp'"),
        (("vpdpbusd_512", 24), "columns that are a multiple of 16, the lanes of vpdpbusd_512"),
        (("vpdpbusd_512", 0), "the lanes of vpdpbusd_512, got 0"),
    ],
)
def test_wrong_dot_products(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(CompileError, match=text):
        te.dot_product(*arguments)
    with pytest.raises(CompileError, match="interleave: expected a group of 2, 4 or 8, got 3"):
        te.interleave("int8", 3, 16)
    with pytest.raises(CompileError, match="interleave_rows: expected groups of 32 bits"):
        te.interleave_rows("int8", 2, 16)
    with pytest.raises(CompileError, match="got 4 of int8, 32 columns and 32 groups"):
        te.interleave_rows("int8", 4, 32)
    with pytest.raises(CompileError, match="at most as many groups as columns, got 8 groups of 4"):
        te.interleave_rows("int8", 4, 4, 8)


# -- Rows along the sum ----------------------------------------------------------------------------


@pytest.mark.parametrize(("lanes", "number"), [(4, 4), (8, 8), (8, 4), (16, 16), (16, 8), (16, 4)])
@pytest.mark.parametrize(("dtype", "group"), [("int8", 4), ("int16", 2)])
def test_rows_are_transposed_with_their_groups_together(
    dtype: str, group: int, lanes: int, number: int
) -> None:
    columns, steps = 2 * lanes, 3 * number * group
    W = te.placeholder((columns, steps), dtype, name="W")
    Z = te.compute(
        (steps // group, columns * group),
        lambda g, c: W[c // group, g * group + c % group],
        name="Z",
    )
    s = te.create_schedule(Z.op)
    g, c = axes_of(Z.op)
    groups, several = s[Z].split(g, factor=number)
    outer, lane = s[Z].split(c, factor=lanes * group)
    s[Z].reorder(outer, groups, several, lane)
    s[Z].tensorize(several, te.interleave_rows(dtype, group, lanes, number))
    w = np.arange(columns * steps).reshape(columns, steps).astype(np.int8).astype(W.dtype)
    z = np.zeros((steps // group, columns * group), W.dtype)
    wanted = w.reshape(columns, -1, group).transpose(1, 0, 2).reshape(z.shape)
    for run in (tvm.build(s, [W, Z]), partial(interpret, tvm.lower(s, [W, Z])["main"])):
        z[...] = 0
        run(w, z)
        np.testing.assert_array_equal(z, wanted)


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("cpu", "dtypes"),
    [
        ("sapphirerapids", ("int8", "int8", "int32")),
        ("sapphirerapids", ("bfloat16", "bfloat16", "float32")),
        ("znver4", ("uint8", "int8", "int32")),
        ("znver4", ("bfloat16", "bfloat16", "float32")),
        ("alderlake", ("uint8", "int8", "int32")),
        ("x86-64-v3", ("int16", "int16", "int32")),
    ],
)
@pytest.mark.parametrize("sizes", [(20, 96, 256), (33, 100, 144), (5, 48, 130)])
def test_weights_that_lie_along_the_sum_are_transposed_in_registers(
    sizes: tuple[int, int, int], cpu: str, dtypes: tuple[str, str, str]
) -> None:
    target = f"llvm -mtriple=x86_64-linux-gnu -mcpu={cpu} -num-cores=1"
    tensors = product(*sizes, dtypes, "NT")
    s = auto_schedule(tensors[-1], target)
    assert "te.interleave_rows(" in s.trace()  # of 130 steps, too, which are padded
    check(tensors, s, target, "NT")


# -- pad_einsum ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtypes", [("int8", "int8"), ("int16", "int8"), ("uint8", "int32")])
def test_padded_sums(dtypes: tuple[str, str]) -> None:
    """Without any instruction, so that the interpreter says what it means."""
    A, B, C = product(5, 7, 3, ("int8", "int8", "int32"))
    s = te.create_schedule(C.op)
    sums, *_ = s.pad_einsum(s.cache_write(C, "global"), [4, 8, 4], dtypes)
    assert shape_of(sums) == (8, 8)
    a, b = numbers((5, 3), "int8"), numbers((3, 7), "int8")
    compiled, interpreted = np.empty((2, 5, 7), "int32")
    tvm.build(s, [A, B, C])(a, b, compiled)
    interpret(tvm.lower(s, [A, B, C])["main"], a, b, interpreted)
    wanted = a.astype("int32") @ b.astype("int32")
    np.testing.assert_array_equal(compiled, wanted)
    np.testing.assert_array_equal(interpreted, wanted)


def test_wrong_padding() -> None:
    A, _, C = product(5, 7, 3, ("float32", "float32", "float32"))
    s = te.create_schedule(C.op)
    with pytest.raises(CompileError, match="expected a stage that is no output"):
        s.pad_einsum(C, [4, 4, 4])
    sums = s.cache_write(C, "local")
    with pytest.raises(CompileError, match="expected a multiple for each of 3 axes"):
        s.pad_einsum(sums, [4, 4])
    with pytest.raises(CompileError, match=r"a dtype that holds all values of A, .* got float16"):
        s.pad_einsum(sums, [4, 4, 4], ["float16", None])
    D = te.compute((5, 7), lambda i, j: te.exp(A[i, 0]) + j, name="D")
    s = te.create_schedule(D.op)
    with pytest.raises(CompileError, match="expected a sum of products of two elements"):
        s.pad_einsum(s.cache_write(D, "local"), [4, 4])
    r = te.reduce_axis((0, 3), name="r")
    E = te.compute((5, 7), lambda i, j: te.sum(A[i, r] * A[j, r], axis=r), name="E")
    s = te.create_schedule(E.op)
    with pytest.raises(CompileError, match="expected two tensors, got A twice"):
        s.pad_einsum(s.cache_write(E, "local"), [1, 1, 4])
    v = te.placeholder((7,), name="v")
    F = te.compute((5, 7), lambda i, j: te.sum(A[i, r] * v[j], axis=r), name="F")
    s = te.create_schedule(F.op)
    with pytest.raises(CompileError, match="expected both factors to depend on r, which is padded"):
        s.pad_einsum(s.cache_write(F, "local"), [1, 1, 4])


# -- Conversions in vectors ------------------------------------------------------------------------


@pytest.mark.skipif(HERE.arch != "x86_64", reason="reads the assembly of x86-64")
@pytest.mark.parametrize(
    ("dtype", "instruction"),
    [("bfloat16", r"vpmovzxwd\s.*%ymm"), ("float16", r"vcvtph2ps\s.*%ymm")],
)
def test_casts_are_vectorised(dtype: str, instruction: str) -> None:
    A = te.placeholder((256,), dtype, name="A")
    C = te.compute((256,), lambda i: A[i].astype("float32"), name="C")
    s = te.create_schedule(C.op)
    _, inner = s[C].split(C.op.axis[0], factor=8)
    s[C].vectorize(inner)
    target = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3"
    assembly = tvm.build(s, [A, C], target).get_source("asm")
    assert re.search(instruction, assembly)
    assert "vpinsrw" not in assembly


@pytest.mark.covering(1)
@pytest.mark.parametrize("names", [DTYPES[0], DTYPES[1], DTYPES[4]], ids=" ".join)
@pytest.mark.parametrize("transposed", [False, True])
def test_symbolic_sizes(names: tuple[str, str, str], transposed: bool) -> None:
    """Groups and tiles are padded, whatever the sizes are."""
    first, second, total = names
    m, n, k = te.var("m"), te.var("n"), te.var("k")
    A = te.placeholder((m, k), first, name="A")
    B = te.placeholder((n, k) if transposed else (k, n), second, name="B")
    r = te.reduce_axis((0, k), name="r")
    C = te.compute(
        (m, n),
        lambda i, j: te.sum(
            A[i, r].astype(total) * (B[j, r] if transposed else B[r, j]).astype(total), axis=r
        ),
        name="C",
    )
    assert (
        "pad_einsum" in auto_schedule(C.op, "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell").trace()
    )
    f = tvm.build([C], [A, B, C])
    for rows, columns, depth in [
        (1, 1, 1),
        (7, 17, 3),
        (13, 33, 8),
        (4, 0, 5),
        (3, 16, 0),
        (6, 100, 65),
    ]:
        a = numbers((rows, depth), first) if rows * depth else np.empty((rows, depth), first)
        shape = (columns, depth) if transposed else (depth, columns)
        b = numbers(shape, second) if columns * depth else np.empty(shape, second)
        c = np.full((rows, columns), -1, total)
        f(a, b, c)
        factor = (b.T if transposed else b).astype("int64")
        np.testing.assert_array_equal(c, (a.astype("int64") @ factor).astype(total))


@pytest.mark.parametrize(
    ("dtypes", "instruction"),
    [
        (("bfloat16", "bfloat16", "float32"), "vdpbf16ps_512"),
        (("int16", "int16", "int32"), "vpdpwssd_512"),
        (("uint8", "int8", "int32"), "vpdpbusd_512"),
        (("int8", "uint8", "int32"), "vpdpbusd_512_s8u8"),
    ],
)
def test_neighbouring_steps_are_added_to_lanes(
    dtypes: tuple[str, str, str], instruction: str
) -> None:
    """Too few columns fill no vector, but both factors lie along the sum."""
    tensors = product(9, 7, 256, dtypes, "NT")
    target = "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4"
    trace = auto_schedule(tensors[2], target).trace()
    assert f"te.dot_product_of_lanes('{instruction}')" in trace
    for each in OTHERS:
        check(tensors, auto_schedule(tensors[2], each), each, "NT")


def test_lanes_of_steps_by_hand() -> None:
    """On a target without the instruction, it is refused; elsewhere, the schedule is replayed."""
    tensors = product(4, 4, 128, ("int16", "int16", "int32"), "NT")
    s = auto_schedule(tensors[2], "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4")
    again = te.replay(s.trace(), [tensors[2].op])
    assert again.trace() == s.trace()
    with pytest.raises(CompileError, match="dot_product_of_lanes: expected"):
        te.dot_product_of_lanes("vpdp")
