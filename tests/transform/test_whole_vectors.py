"""Registers of an odd number of lanes, which become whole vectors where masks cost nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.tensor import Tensor
from minitvm.tir import stmt as s
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import Buffer, Var, const, const_int
from minitvm.tir.functor import walk_once
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import PrimFunc
from minitvm.transform.whole_vectors import in_whole_vectors

Value = Callable[[Any, Any], Any]


def narrow(
    columns: int, dtype: str = "float32", value: Value = lambda a, b: a * b, *, rows: int = 4
) -> tuple[Schedule, list[Tensor]]:
    """Sums of `columns` columns in registers, some of 12 rows at a time."""
    A = te.placeholder((12, 20), dtype, name="A")
    B = te.placeholder((20, columns), dtype, name="B")
    k = te.reduce_axis((0, 20), name="k")
    C = te.compute((12, columns), lambda i, j: te.sum(value(A[i, k], B[k, j]), axis=k), name="C")
    made = te.create_schedule(C.op)
    sums = made.cache_write(C, "local")
    i, j = C.op.axis
    outer, inner = made[C].split(i, factor=rows)
    made[C].unroll(inner)
    made[C].vectorize(j)
    made[sums].compute_at(made[C], outer)
    row, column = sums.op.axis
    made[sums].reorder(*sums.op.reduce_axis, row, column)
    made[sums].unroll(row)
    made[sums].vectorize(column)
    return made, [A, B, C]


def lowered(made: Schedule, args: list[Tensor], *, masks: bool = True) -> PrimFunc:
    """The loops for vectors of 64 bytes, with or without registers for masks."""
    func = tvm.lower(made, args, vector_bytes=64, mask_registers=masks)["main"]
    assert isinstance(func, PrimFunc)
    return func


def registers(func: PrimFunc) -> list[int | None]:
    """The lanes of the registers that are allocated."""
    found = [each.buffer for each in walk_once(func.body) if isinstance(each, s.Allocate)]
    return [const_int(buffer.shape[-1]) for buffer in found]


def check(made: Schedule, args: list[Tensor]) -> None:
    """The interpreter and machine code against numpy."""
    generator = np.random.default_rng(0)
    a, b = (
        generator.integers(-9, 9, [const_int(n) or 0 for n in t.shape]).astype(str(t.dtype))
        for t in args[:2]
    )
    for call in (
        lambda *arrays: interpret(lowered(made, args), *arrays),
        tvm.build(made, args, "llvm"),
    ):
        c = np.full((12, b.shape[1]), 7, a.dtype)
        call(a, b, c)
        np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("rows", [4, 5])
@pytest.mark.parametrize("columns", [3, 5, 6, 7, 9, 12, 15])
def test_registers_become_whole_vectors(columns: int, rows: int) -> None:
    """All of their lanes are computed, without a mask, and no others of other buffers."""
    made, args = narrow(columns, rows=rows)
    width = 1 << (columns - 1).bit_length()
    func = lowered(made, args)
    assert set(registers(func)) == {width}
    accesses = re.findall(r"(B|C|C\.local)(?:_1)?\[[^\]]*, (ramp[^\]]*)\]", str(func))
    ramp = f"ramp(0, 1, {width})"
    assert {at for name, at in accesses if name == "C.local"} == {ramp}
    assert all(at.startswith(f"{ramp}, where=") for name, at in accesses if name != "C.local")
    assert set(registers(lowered(made, args, masks=False))) == {columns}
    check(made, args)


def lanes_of(buffer: Buffer, **around: Buffer) -> int | None:
    """The lanes of nine zeros in a buffer, where attributes of buffers are around their loop."""
    j = Var("j")
    store = s.BufferStore(buffer, const(0.0, "float32"), (j,))
    body: s.Stmt = s.For(j, const(0), const(9), s.ForKind.VECTORIZED, store)
    for key, other in around.items():
        body = s.AttrStmt(other, key, const(1), body)
    made = in_whole_vectors(s.Allocate(buffer, body), 64)
    return made and const_int(made.buffer.shape[0])


def test_attributes_around_the_lanes() -> None:
    """Another buffer that ignores guards has no further lanes; those of registers may be computed,
    and other attributes say nothing of lanes."""
    mine = decl_buffer((9,), "float32", "mine", scope="local")
    other = decl_buffer((9,), "float32", "other")
    assert lanes_of(mine) == lanes_of(mine, padded_buffer=mine) == 16
    assert lanes_of(mine, pragma_nontemporal=other) == 16
    assert lanes_of(mine, padded_buffer=other) is None
    assert lanes_of(mine, padded_buffer=other, pragma_nontemporal=mine) is None


def test_buffers_of_other_layouts_and_scopes_stay() -> None:
    for declared in (
        decl_buffer((9,), "float32", "in_memory"),
        decl_buffer((9,), "float32", "apart", scope="local", strides=(2,)),
        decl_buffer((9,), "float32", "behind", scope="local", elem_offset=const(1)),
    ):
        assert lanes_of(declared) is None


@pytest.mark.parametrize(
    ("dtype", "columns"), [("float64", 7), ("int32", 13), ("int16", 27), ("int64", 5)]
)
def test_any_type(dtype: str, columns: int) -> None:
    made, args = narrow(columns, dtype)
    assert registers(lowered(made, args)) == [1 << (columns - 1).bit_length()]
    check(made, args)


@pytest.mark.parametrize(("dtype", "columns"), [("float32", 8), ("float32", 2), ("float64", 9)])
def test_others_stay(dtype: str, columns: int) -> None:
    """Powers of two, two lanes, and more lanes than a vector has."""
    made, args = narrow(columns, dtype)
    assert registers(lowered(made, args)) == [columns]
    check(made, args)


def test_quotients_of_padding_are_not_computed() -> None:
    """Lanes behind the end divide by nothing that isn't there."""
    made, args = narrow(9, "int32", lambda a, b: te.floordiv(a, b))
    a = np.arange(-120, 120, dtype="int32").reshape(12, 20)
    b = (np.arange(180, dtype="int32") % 7 - 9).reshape(20, 9)
    c = np.zeros((12, 9), "int32")
    tvm.build(made, args, "llvm")(a, b, c)
    np.testing.assert_array_equal(c, (a[:, :, None] // b[None]).sum(1))


def test_lanes_that_are_read_otherwise_stay() -> None:
    """Register 0 is read in every lane."""
    A = te.placeholder((4, 9), name="A")
    B = te.compute((4, 9), lambda i, j: A[i, j] + 1, name="B")
    C = te.compute((4, 9), lambda i, j: B[i, j] * B[i, 0], name="C")
    made = te.create_schedule(C.op)
    made[B].compute_at(made[C], C.op.axis[0])
    made[B].set_scope("local")
    made[B].vectorize(B.op.axis[1])
    made[C].vectorize(C.op.axis[1])
    assert registers(lowered(made, [A, C])) == [9]
    a = np.random.default_rng(0).random((4, 9), "float32")
    c = np.zeros_like(a)
    tvm.build(made, [A, C], "llvm")(a, c)
    np.testing.assert_array_equal(c, (a + 1) * (a[:, :1] + 1))


@pytest.mark.parametrize(("shape", "columns"), [((2, 3), 5), ((6,), 7), ((2, 2), 9)])
def test_other_buffers_have_no_further_lanes(shape: tuple[int, ...], columns: int) -> None:
    """The sums lie in registers, which become whole vectors; the rows that they are copied to, in
    loops with guards, have no room for these lanes."""
    ranks = len(shape)
    M = te.placeholder((columns, 1), "float64", name="M")
    H = te.placeholder((*shape, columns, 1), "float64", name="H")
    k = te.reduce_axis((0, columns), name="k")
    P = te.compute(
        H.shape, lambda *i: te.sum(M[k, i[-1]] * H(*i[:ranks], k, i[-1]), axis=k), name="P"
    )
    G = te.compute(
        H.shape,
        lambda *i: H(*i) * M[0, i[-1]] + te.if_then_else(i[ranks] == 0, P(*i), 0.0),
        name="G",
    )
    X = te.compute((*shape, columns, 2), lambda *i: G(*i[:-1], 0) * M[i[-1], 0], name="X")
    generator = np.random.default_rng(0)
    m, h = generator.random((columns, 1)), generator.random((*shape, columns, 1))
    g, x = np.zeros_like(h), np.zeros((*shape, columns, 2))
    tvm.build([G, X], [M, H, G, X], "llvm")(m, h, g, x)
    wanted = h * m[0]
    wanted[..., 0, :] += (m * h).sum(-2)
    np.testing.assert_allclose(g, wanted)
    np.testing.assert_allclose(x, wanted * m[:2, 0])
