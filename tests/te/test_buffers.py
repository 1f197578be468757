"""Buffers and the builder of loop IR."""

from __future__ import annotations

from typing import Any

import pytest

from minitvm import te, tir
from minitvm.runtime.errors import CompileError
from minitvm.tir import expr as e

# -- Declaration ----------------------------------------------------------------------------------


def test_decl_buffer() -> None:
    n = te.var("n")
    B = tir.decl_buffer((n, 4), "int8", name="B", strides=[te.var("s"), 1], data_alignment=64)
    assert (B.name, str(B.dtype), B.ndim, B.scope, B.data_alignment) == (
        "B",
        "int8",
        2,
        "global",
        64,
    )
    assert B.shape[0] is n and len(B.strides) == 2 and B.data.dtype == "handle"
    plain = tir.decl_buffer(4)
    assert (str(plain.dtype), plain.name, plain.strides) == ("float32", "buffer", ())
    assert (plain.data_alignment, plain.elem_offset) == (0, None)
    assert repr(plain) == "Buffer(buffer: float32[4])"


def test_an_offset() -> None:
    made = tir.decl_buffer((4,), name="B", offset_factor=8)
    assert isinstance(made.elem_offset, e.Var) and made.elem_offset.name == "B_elem_offset"
    assert e.const_int(tir.decl_buffer((4,), elem_offset=16).elem_offset) == 16
    assert tir.decl_buffer((4,), buffer_type="auto_broadcast").auto_broadcast


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"shape": (4, 2.5)},
            r"B: shape\[1\]: expected an integer expression, got 2.5 of",
        ),
        ({"strides": [1, 2]}, "B: expected 1 strides, got 2"),
        ({"strides": [0.5]}, r"B: strides\[0\]: expected an integer expression, got 0.5 of dtype"),
        ({"buffer_type": "x"}, "B: expected buffer_type '' or 'auto_broadcast', got str 'x'"),
    ],
)
def test_wrong_declarations(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(CompileError, match=text):
        tir.decl_buffer(**{"shape": (4,), "name": "B", **arguments})


# -- Access ---------------------------------------------------------------------------------------

B = tir.decl_buffer((4, 16), name="B")


def test_loads_and_stores() -> None:
    assert B.vload((0, 1)).dtype == "float32"
    vector = B.vload([0, 4], "float32x8")
    assert vector.dtype == "float32x8"
    store = B.vstore((0, 0), vector)
    assert isinstance(store, tir.BufferStore) and isinstance(store.indices[1], tir.Ramp)
    number = B.vstore((0, 0), 1)
    assert isinstance(number, tir.BufferStore) and number.value.dtype == "float32"
    with pytest.raises(CompileError, match="B: expected a value of float32, got int32"):
        B.vstore((0, 0), te.var("n"))
    with pytest.raises(CompileError, match="B: expected a value of float32, got int8x4"):
        B.vload((0, 0), "int8x4")
    with pytest.raises(CompileError, match="B: expected 2 indices, got 1"):
        B.vload(0)


def test_a_buffer_of_vectors() -> None:
    V = tir.decl_buffer((4,), "float32x4", name="V")
    assert V.vload(0).dtype == "float32x4" and V[1].dtype == "float32x4"


def test_access_ptr() -> None:
    masks: dict[str | int, int] = {"r": 1, "w": 2, "rw": 3, tir.Buffer.READ: 1, tir.Buffer.WRITE: 2}
    for given, mask in masks.items():
        made = B.access_ptr(given)
        assert isinstance(made, tir.Call)
        assert (made.op, str(made.dtype)) == ("tvm_access_ptr", "handle")
        assert isinstance(made.args[0], tir.BufferRef) and made.args[0].buffer is B
        assert [e.const_int(arg) for arg in made.args[1:]] == [0, -1, mask]
    made = B.access_ptr("r", offset=te.var("o"), extent=4)
    assert isinstance(made, tir.Call) and e.const_int(made.args[2]) == 4
    for wrong in ("x", ""):
        with pytest.raises(CompileError, match="B: expected access_mask 'r', 'w' or 'rw', got"):
            B.access_ptr(wrong)


# -- The builder ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("serial", tir.ForKind.SERIAL),
        ("parallel", tir.ForKind.PARALLEL),
        ("vectorize", tir.ForKind.VECTORIZED),
        ("unroll", tir.ForKind.UNROLLED),
    ],
)
def test_loops(kind: str, wanted: tir.ForKind) -> None:
    ib = tir.ir_builder.create()
    p = ib.buffer_ptr(B)
    with ib.for_range(2, 6, name="x", kind=kind) as x:
        p[0, x] = 1
    loop = ib.get()
    assert isinstance(loop, tir.For) and loop.kind == wanted and loop.loop_var is x
    assert (e.const_int(loop.min), e.const_int(loop.extent), x.name) == (2, 4, "x")
    store = loop.body
    assert isinstance(store, tir.BufferStore) and store.value.dtype == "float32"


def test_dtypes_of_loops() -> None:
    ib = tir.ir_builder.create()
    with ib.for_range(0, te.var("n", "int64")) as i, ib.for_range(0, 4, dtype="int64") as j:
        assert i.dtype == j.dtype == "int64"
    with (
        pytest.raises(CompileError, match="for_range: expected kind among serial"),
        ib.for_range(0, 4, kind="fast"),
    ):
        pass


def test_indices_of_a_row_major_position() -> None:
    ib = tir.ir_builder.create()
    p = ib.buffer_ptr(B)
    load = p[35]
    assert isinstance(load, tir.BufferLoad) and list(map(e.const_int, load.indices)) == [2, 3]
    scalar = ib.buffer_ptr(tir.decl_buffer((), name="s"))[0]
    assert isinstance(scalar, tir.BufferLoad) and scalar.indices == ()
    with pytest.raises(CompileError, match="B: expected 2 indices, or one, got 3"):
        p[0, 1, 2]
    with pytest.raises(CompileError, match="B: expected a shape of rank 2, got one of rank 1"):
        ib.buffer_ptr(B, shape=(64,))


def test_stores_of_another_dtype() -> None:
    ib = tir.ir_builder.create()
    p = ib.buffer_ptr(B)
    text = r"B: expected a value of float32 to store, got one of int32: cast it, as in x.astype\('"
    with pytest.raises(CompileError, match=text):
        p[0, 0] = te.var("n")


def test_what_encloses_the_rest_of_its_block() -> None:
    ib = tir.ir_builder.create()
    buffer = ib.allocate("int32", (8,), name="tmp", scope="local")
    n = ib.let("n", buffer[0] + 1)
    ib.scope_attr(n, "pragma", 1)
    buffer[1] = n
    buffer[2] = n
    allocate = ib.get()
    assert isinstance(allocate, tir.Allocate) and allocate.buffer.scope == "local"
    assert isinstance(allocate.body, tir.LetStmt) and allocate.body.var is n
    attr = allocate.body.body
    assert isinstance(attr, tir.AttrStmt) and attr.attr_key == "pragma"
    assert isinstance(attr.body, tir.SeqStmt) and len(attr.body.seq) == 2


def test_branches_and_while() -> None:
    ib = tir.ir_builder.create()
    p, n = ib.buffer_ptr(B), te.var("n")
    with ib.while_loop(p[0, 0] < 1.0):
        with ib.if_scope(ib.likely(n < 3)):
            p[0, 0] = 1.0
        with ib.else_scope():
            p[0, 0] = 2.0
    loop = ib.get()
    assert isinstance(loop, tir.While) and isinstance(loop.body, tir.IfThenElse)
    assert isinstance(loop.body.else_case, tir.BufferStore)


def test_wrong_structure() -> None:
    ib = tir.ir_builder.create()
    text = "else_scope: expected an if_scope right before it, found none"
    with pytest.raises(CompileError, match=text), ib.else_scope():
        pass
    with pytest.raises(CompileError, match="emit: expected a statement or a call, got int"):
        ib.emit(3)
    with (
        ib.if_scope(te.var("n") > 0),
        pytest.raises(CompileError, match="expected every scope to be closed before get"),
    ):
        ib.get()


def test_emit_and_get() -> None:
    ib = tir.ir_builder.create()
    ib.emit(tir.call_packed("f", ib.buffer_ptr(B)))
    made = ib.get()
    assert isinstance(made, tir.Evaluate) and isinstance(made.value, tir.Call)
    assert isinstance(made.value.args[1], tir.BufferRef)
    empty = ib.get()
    assert isinstance(empty, tir.SeqStmt) and empty.seq == ()


def test_extern_with_loops() -> None:
    A = te.placeholder((4, 3), name="A")

    def doubled(ins: list[tir.Buffer], outs: list[tir.Buffer]) -> tir.Stmt:
        ib = tir.ir_builder.create()
        source, result = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        with ib.for_range(0, 12) as i:
            result[i] = source[i] * 2.0
        return ib.get()

    made = te.extern((4, 3), [A], doubled, name="C")
    assert isinstance(made.op, te.ExternOp) and isinstance(made.op.body, tir.For)
