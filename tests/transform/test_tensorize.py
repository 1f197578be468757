"""Tensor intrinsics: declared, matched, bound to memory, and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te, tir
from minitvm.lowering.tensorize import (
    Match,
    Region,
    Tensorized,
    View,
    bind_buffer,
    match_computation,
    region_offset,
    tensorize,
)
from minitvm.runtime.errors import CompileError
from minitvm.te.tensor_intrin import TensorIntrin
from minitvm.tir import expr as e
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import For, ForKind, FuncAttrs, PrimFunc, Stmt, seq

Array = np.ndarray[Any, Any]
random = np.random.default_rng(3)

# -- The intrinsic of these tests: z[i] += sum over k of w[i, k] * x[k] ----------------------------

ROWS, COLUMNS = 4, 8
w = te.placeholder((ROWS, COLUMNS), name="w")
x = te.placeholder((COLUMNS,), name="x")
r = te.reduce_axis((0, COLUMNS), name="r")
z = te.compute((ROWS,), lambda i: te.sum(w[i, r] * x[r], axis=r), name="z")

Fcompute = Callable[[list[tir.Buffer], list[tir.Buffer]], Any]


def in_loops(ins: list[tir.Buffer], outs: list[tir.Buffer]) -> Any:
    """Element by element."""

    def make(reset: bool, update: bool) -> Stmt:
        ib = tir.ir_builder.create()
        matrix, vector, result = map(ib.buffer_ptr, (*ins, *outs))
        with ib.for_range(0, ROWS, name="row") as i:
            if reset:
                result[i] = 0.0
            if update:
                with ib.for_range(0, COLUMNS, name="column") as k:
                    result[i] = result[i] + matrix[i, k] * vector[k]
        return ib.get()

    return make(True, True), make(True, False), make(False, True)


def in_vectors(ins: list[tir.Buffer], outs: list[tir.Buffer]) -> Any:
    """A row at a time, with an intrinsic of LLVM."""
    matrix, vector = ins
    result = outs[0]

    def total(i: int) -> Any:
        product = matrix.vload((i, 0), f"float32x{COLUMNS}") * vector.vload(0, f"float32x{COLUMNS}")
        zero = te.const(-0.0)
        name = f"llvm.vector.reduce.fadd.v{COLUMNS}f32"
        return tir.call_llvm_pure_intrin("float32", name, zero, product)

    reset = result.vstore(0, te.const(0.0, f"float32x{ROWS}"))
    body = seq(*[result.vstore(i, total(i)) for i in range(ROWS)])
    update = seq(*[result.vstore(i, result.vload(i) + total(i)) for i in range(ROWS)])
    return body, reset, update


def in_python(ins: list[tir.Buffer], outs: list[tir.Buffer]) -> Any:
    """Calls of Python, which get arrays."""
    return (
        tir.call_packed("test.gemv.body", *ins, *outs),
        tir.call_packed("test.gemv.reset", *outs),
        tir.call_packed("test.gemv.update", *ins, *outs),
    )


def arrays(*given: Any) -> list[Array]:
    return [a if isinstance(a, np.ndarray) else np.from_dlpack(a) for a in given]


def body_in_python(*given: Any) -> None:
    matrix, vector, result = arrays(*given)
    result[...] = matrix @ vector


def reset_in_python(*given: Any) -> None:
    arrays(*given)[0][...] = 0


def update_in_python(*given: Any) -> None:
    matrix, vector, result = arrays(*given)
    result += matrix @ vector


PACKED: dict[str, Callable[..., Any]] = {
    "test.gemv.body": body_in_python,
    "test.gemv.reset": reset_in_python,
    "test.gemv.update": update_in_python,
}


@pytest.fixture(autouse=True)
def registered() -> Any:
    for name, function in PACKED.items():
        tvm.register_func(name, function)
    yield
    for name in PACKED:
        tvm.remove_global_func(name)


def gemv(fcompute: Fcompute = in_loops, **layout: Any) -> TensorIntrin:
    wide = {"name": "W", "strides": [te.var("ldw"), 1], **layout}
    binds = {w: tir.decl_buffer(w.shape, w.dtype, **wide)}
    return te.decl_tensor_intrin(z.op, fcompute, name="gemv", binds=binds)


# -- A computation of which it is a part, and the loops around it ----------------------------------

A = te.placeholder((3, 16), name="A")
B = te.placeholder((12, 16), name="B")
k = te.reduce_axis((0, 16), name="k")
C = te.compute((3, 12), lambda i, j: te.sum(A[i, k] * B[j, k], axis=k), name="C")
outer = {name: te.var(name) for name in ("i", "jo", "ko")}


def tiles(rows: int = ROWS, columns: int = COLUMNS) -> dict[tir.IterVar, tir.Range]:
    """What each axis of C runs over inside of a tile."""
    i, j = C.op.axis
    spans = {i: (outer["i"], 1), j: (outer["jo"] * rows, rows), k: (outer["ko"] * columns, columns)}
    return {axis: tir.Range.from_min_extent(*span) for axis, span in spans.items()}


def matched(intrin: TensorIntrin, op: te.Operation = C.op) -> Match:
    assert isinstance(op, te.ComputeOp)
    return match_computation(intrin, op, tiles(), "C", "j.inner")


def loops(body: Stmt, *extents: tuple[str, int]) -> Stmt:
    for name, extent in reversed(extents):
        body = For(outer[name], e.const(0), e.const(extent), ForKind.SERIAL, body)
    return body


def function(parts: Tensorized, buffers: Mapping[te.Tensor, tir.Buffer]) -> PrimFunc:
    """The tiles of C, the first along k reset before."""
    assert parts.reduce_init is not None and parts.reduce_update is not None
    update = loops(parts.reduce_update, ("ko", 2))
    body = loops(seq(parts.reduce_init, update), ("i", 3), ("jo", 3))
    used = [buffers[t] for t in (A, B, C)]
    attrs = FuncAttrs(outputs=frozenset(used[2:]), knows_layout=parts.knows_layout)
    return PrimFunc(tuple(b.data for b in used), body, {b.data: b for b in used}, "f", attrs)


def compact() -> dict[te.Tensor, tir.Buffer]:
    return {t: tir.decl_buffer(t.shape, t.dtype, t.name) for t in (A, B, C)}


def on_memory(
    intrin: TensorIntrin, match: Match, buffers: Mapping[te.Tensor, tir.Buffer]
) -> Tensorized:
    """The statements of an intrinsic on the buffers of the tensors that were found."""
    views = []
    for region in (*match.inputs, *match.outputs):
        assert isinstance(region.source, te.Tensor)
        views.append(View(buffers[region.source], region.begins, region.extents))
    return tensorize(intrin, views, match.scalars, "C", "j.inner")


@pytest.mark.parametrize("fcompute", [in_loops, in_vectors, in_python])
def test_tiles_of_a_product(fcompute: Fcompute) -> None:
    intrin, buffers = gemv(fcompute), compact()
    parts = on_memory(intrin, matched(intrin), buffers)
    func = function(parts, buffers)
    a, b = (random.random(shape, dtype="float32") for shape in ((3, 16), (12, 16)))
    compiled, interpreted = np.empty((2, 3, 12), "float32")
    built = tvm.build(func)
    built(a, b, compiled)
    np.testing.assert_allclose(compiled, a @ b.T, rtol=1e-5)
    if fcompute is not in_vectors:  # LLVM's intrinsics mean nothing to the interpreter
        interpret(tvm.lower(func)["f"], a, b, interpreted, packed=PACKED)
        np.testing.assert_allclose(interpreted, a @ b.T, rtol=1e-5)
    wide = np.empty((3, 24), "float32")[:, ::2]  # no statement asked for the layout
    built(a[:, ::-1][:, ::-1], np.asfortranarray(b), wide)
    np.testing.assert_allclose(wide, a @ b.T, rtol=1e-5)


def test_the_match() -> None:
    found = matched(gemv())
    texts = [(r.source.name, *map(str, r.begins), *map(str, r.extents)) for r in found.inputs]
    assert texts == [("B", "jo * 4", "ko * 8", "4", "8"), ("A", "i", "ko * 8", "1", "8")]
    result = found.outputs[0]
    assert result.source is C and str(result.begins) == "(i, jo * 4)"
    assert str(result.extents) == "(1, 4)"


def test_on_views_as_text() -> None:
    intrin, buffers = gemv(), compact()
    parts = on_memory(intrin, matched(intrin), buffers)
    assert str(parts.reduce_update) == (
        "for row in range(4):\n"
        "    for column in range(8):\n"
        "        C[i, row + jo * 4] = C[i, row + jo * 4] + "
        "B[row + jo * 4, column + ko * 8] * A[i, column + ko * 8]"
    )
    assert not parts.knows_layout


def test_a_statement_that_asks_for_the_layout() -> None:
    def with_stride(ins: list[tir.Buffer], outs: list[tir.Buffer]) -> Any:
        pointers = [b.access_ptr("r", offset=1) for b in ins]
        made = tir.call_packed("gemv", *pointers, outs[0].access_ptr("w"), ins[0].strides[0])
        return made, None, made

    intrin, buffers = gemv(with_stride, offset_factor=8), compact()
    parts = on_memory(intrin, matched(intrin), buffers)
    assert parts.knows_layout and parts.reduce_init is None
    assert str(parts.body) == (
        'call_packed("gemv", tvm_access_ptr(B, jo * 64 + ko * 8 + 1, -1, 1), '
        "tvm_access_ptr(A, i * 16 + ko * 8 + 1, -1, 1), "
        "tvm_access_ptr(C, i * 12 + jo * 4, -1, 2), 16)"
    )


# -- Addresses, which C sees -----------------------------------------------------------------------


def copy(n: int, **params: Any) -> TensorIntrin:
    source = te.placeholder((n,), name="source")
    target = te.compute((n,), lambda i: source[i], name="target")

    def memcpy(ins: list[tir.Buffer], outs: list[tir.Buffer]) -> Any:
        size = te.const(4 * n, "int64")
        return tir.call_extern("handle", "memcpy", outs[0].access_ptr("w"), ins[0], size)

    return te.decl_tensor_intrin(target.op, memcpy, name="copy", default_buffer_params=params)


def test_addresses() -> None:
    X = te.placeholder((5, 8), name="X")
    Y = te.compute((5, 8), lambda i, j: X[4 - i, j], name="Y")
    i, j = Y.op.axis
    row = outer["i"]
    domain = {i: tir.Range.from_min_extent(row, 1), j: tir.Range(0, 8)}
    intrin = copy(8, offset_factor=8)
    found = match_computation(intrin, Y.op, domain, "Y", "j")
    buffers = {t: tir.decl_buffer(t.shape, t.dtype, t.name) for t in (X, Y)}
    parts = on_memory(intrin, found, buffers)
    assert parts.knows_layout
    body = loops(parts.body, ("i", 5))
    used = [buffers[X], buffers[Y]]
    func = PrimFunc(tuple(b.data for b in used), body, {b.data: b for b in used}, "reverse")
    array = random.random((5, 8), dtype="float32")
    compiled, interpreted = np.empty((2, 5, 8), "float32")
    f = tvm.build(func)
    f(array, compiled)
    interpret(func, array, interpreted)
    assert (compiled == array[::-1]).all() and (interpreted == array[::-1]).all()
    f(array[::-1], compiled)
    assert (compiled == array).all()


def test_an_extern_that_passes_addresses_works_on_compact_copies() -> None:
    """What it doesn't write stays as it was."""
    n = te.size_var("n")
    X = te.placeholder((n,), name="X")

    def memcpy(ins: list[tir.Buffer], outs: list[tir.Buffer]) -> Any:
        size = (n - 1).astype("int64") * 4
        return tir.call_extern("handle", "memcpy", outs[0], ins[0].access_ptr("r"), size)

    Y = te.extern((n,), [X], memcpy, name="Y")
    f = tvm.build(te.create_schedule(Y.op), [X, Y])
    array, result = np.arange(8, dtype="float32"), np.full(4, 9, "float32")
    f(array[:4], result)
    assert result.tolist() == [0, 1, 2, 9]
    wide = np.full(8, 9, "float32")
    f(array[::2], wide[::2])
    assert wide.tolist() == [0, 9, 2, 9, 4, 9, 9, 9]


# -- What matches ----------------------------------------------------------------------------------


def unary(name: str, make: Callable[[Any, Any], Any], n: int = 4, **options: Any) -> TensorIntrin:
    source = te.placeholder((n,), name="p")
    target = te.compute((n,), lambda i: make(source[i], i), name="q")

    def nothing(ins: Any, outs: Any, *scalars: Any) -> Stmt:
        return seq()

    return te.decl_tensor_intrin(target.op, nothing, name=name, **options)


def whole(tensor: te.Tensor) -> dict[tir.IterVar, tir.Range]:
    return {axis: axis.dom for axis in (*tensor.op.axis, *tensor.op.reduce_axis)}  # type: ignore[attr-defined]  # a ComputeOp


def match_whole(intrin: TensorIntrin, make: Callable[[Any, Any], Any]) -> Match:
    P = te.placeholder((4,), name="P")
    Q = te.compute((4,), lambda i: make(P[i], i), name="Q")
    assert isinstance(Q.op, te.ComputeOp)
    return match_computation(intrin, Q.op, whole(Q), "Q", "i")


def test_operands_either_way_round() -> None:
    intrin = unary("both", lambda p, i: te.exp(p) * 2.0 + p)
    match_whole(intrin, lambda p, i: p + 2.0 * te.exp(p))


def test_indices_are_compared_as_numbers() -> None:
    intrin = unary("ramp", lambda p, i: p * (i * 2 + 2))
    match_whole(intrin, lambda p, i: p * ((i + 1) * 2))


def test_scalars() -> None:
    alpha, factor = te.var("alpha", "float32"), te.var("factor", "float32")
    intrin = unary("scale", lambda p, i: p * alpha + alpha, scalar_params=[alpha])
    found = match_whole(intrin, lambda p, i: p * (factor + 1.0) + (factor + 1.0))
    assert str(found.scalars[alpha]) == "factor + 1.0"
    with pytest.raises(CompileError, match=r"a scalar that was 2.0 before"):
        match_whole(intrin, lambda p, i: p * 2.0 + 3.0)
    with pytest.raises(CompileError, match="a scalar that is not the same throughout"):
        match_whole(intrin, lambda p, i: p * i.astype("float32") + 3.0)


def test_divisions_in_indices() -> None:
    """After simplification both are the same, whatever stands outside."""
    p = te.placeholder((5, 5), name="p")
    q = te.compute((9, 9), lambda i, j: p[j // 3 + i % 3, j % 3 + i // 3], name="q")
    intrin = te.decl_tensor_intrin(q.op, lambda ins, outs: seq(), name="op")
    P = te.placeholder((5, 5), name="P")
    Q = te.compute((9, 9), lambda i, j: P[j // 3 + i % 3, j % 3 + i // 3], name="Q")
    found = match_computation(intrin, Q.op, whole(Q), "Q", "i")
    assert str(found.inputs[0].begins) == "(0, 0)"


# -- What does not ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "how"),
    [
        (lambda p, i: p * 3.0, "another value"),
        (lambda p, i: p + 2.0, "another operation"),
        (lambda p, i: te.exp(p) * 2.0, "no read of memory"),
        (lambda p, i: (p * 2.0).astype("float64"), "another operation"),
        (lambda p, i: p * i * 1.0, "no read of memory"),
    ],
)
def test_another_computation(make: Callable[[Any, Any], Any], how: str) -> None:
    with pytest.raises(CompileError, match=f"Q: tensorize of i by twice: .* found {how}"):
        match_whole(unary("twice", lambda p, i: p * 2.0), make)


def test_the_message_shows_both() -> None:
    D = te.compute((3, 12), lambda i, j: te.sum(A[i, k] + B[j, k], axis=k), name="D")
    i, j = D.op.axis
    domain = {axis: tiles()[old] for axis, old in zip((i, j, k), (*C.op.axis, k), strict=True)}
    with pytest.raises(CompileError) as caught:
        match_computation(gemv(), D.op, domain, "D", "j.inner")
    assert str(caught.value).splitlines()[0] == (
        "D: tensorize of j.inner by gemv: expected the intrinsic's computation, found another "
        "operation:"
    )
    stage, marks, intrinsic, others = str(caught.value).splitlines()[1:]
    assert stage.startswith("    stage:     ") and intrinsic.startswith("    intrinsic: ")
    begin, end = marks.index("^"), marks.rindex("^") + 1
    assert stage[begin:end] == "A[i, ko * 8 + r] + B[jo * 4 + i_1, ko * 8 + r]"
    begin, end = others.index("^"), others.rindex("^") + 1
    assert intrinsic[begin:end] == "w[i, r] * x[r]"


def test_other_reductions() -> None:
    i, j = C.op.axis
    for make, how in (
        (lambda i, j: te.max(A[i, k] * B[j, k], axis=k), "another reducer"),
        (lambda i, j: te.sum(A[i, k] * B[j, k], axis=k, init=1.0), "a reduction with init"),
        (lambda i, j: te.sum(A[i, k] * B[j, k], axis=k, where=k < 9), "another operation"),
        (lambda i, j: te.sum(A[i, k] * A[i, k], axis=k), "indices that move in another way"),
        (lambda i, j: te.sum(A[i, k] * B[j, 15 - k], axis=k), "indices that move in another way"),
    ):
        D = te.compute((3, 12), make, name="D")
        old = [*C.op.axis, k]
        domain = {new: tiles()[axis] for new, axis in zip((*D.op.axis, k), old, strict=True)}
        with pytest.raises(CompileError, match=how):
            match_computation(gemv(), D.op, domain, "D", "j")
    assert i is not j


def test_axes_that_do_not_fit() -> None:
    text = r"C: tensorize of j by gemv: expected axis j to run over 4 inside, as i of the intrinsic"
    with pytest.raises(CompileError, match=text):
        match_computation(gemv(), C.op, tiles(rows=6), "C", "j")
    with pytest.raises(CompileError, match="expected reduce axis k to run over 8 inside, as r of"):
        match_computation(gemv(), C.op, tiles(columns=16), "C", "j")
    domain = {**tiles(), C.op.axis[0]: tir.Range(0, 3)}
    with pytest.raises(CompileError, match="expected axis i to run over 1 inside, found 3"):
        match_computation(gemv(), C.op, domain, "C", "j")
    total = te.compute((4,), lambda i: A[0, i], name="T")
    with pytest.raises(CompileError, match=r"axis for each of the intrinsic.s \(r\), found none"):
        match_computation(gemv(), total.op, whole(total), "T", "i")


def test_operands_that_do_not_fit() -> None:
    twice = te.placeholder((4,), name="p")
    q = te.compute((4,), lambda i: twice[i] * twice[i], name="q")
    square = te.decl_tensor_intrin(q.op, lambda ins, outs: seq(), name="square")
    P, R = te.placeholder((8,), name="P"), te.placeholder((8,), name="R")
    Q = te.compute((4,), lambda i: P[i] * R[i], name="Q")
    with pytest.raises(CompileError, match="p was P before"):
        match_computation(square, Q.op, whole(Q), "Q", "i")
    Q = te.compute((4,), lambda i: P[i] * P[i + 4], name="Q")
    with pytest.raises(CompileError, match="p began elsewhere before"):
        match_computation(square, Q.op, whole(Q), "Q", "i")
    q = te.compute((2,), lambda i: twice[i + 1], name="q")
    part = te.decl_tensor_intrin(q.op, lambda ins, outs: seq(), name="part")
    Q = te.compute((2,), lambda i: P[i + 1], name="Q")
    text = "expected the intrinsic to read all of p, found that it reads 1 to 2 of 4 along dim"
    with pytest.raises(CompileError, match=text):
        match_computation(part, Q.op, whole(Q), "Q", "i")


# -- Buffers ---------------------------------------------------------------------------------------

n = te.size_var("n")
actual = tir.decl_buffer((n, 24), name="T")


def view(*spans: tuple[Any, Any], buffer: tir.Buffer = actual) -> View:
    return View(
        buffer, tuple(e.as_expr(b) for b, _ in spans), tuple(e.as_expr(x) for _, x in spans)
    )


def test_variables_are_bound() -> None:
    m, s, o = te.var("m"), te.var("s", "int64"), te.var("o")
    place = tir.decl_buffer((m, 8), name="W", strides=[s, 1], elem_offset=o, offset_factor=8)
    row = te.var("row")
    tile = view((row * 4, 4), (8, 8))
    bound = bind_buffer(place, tile, "C")
    assert [str(bound[v]) for v in (m, s, o)] == ["4", "24", "row * 96 + 8"]
    assert bound[s].dtype == "int64" and bound[place.data] is actual.data
    assert str(region_offset(tile)) == "row * 96 + 8"


def test_dimensions_of_one_element_are_dropped() -> None:
    place = tir.decl_buffer((8,), name="x")
    assert bind_buffer(place, view((te.var("i"), 1), (8, 8)), "C") == {place.data: actual.data}
    bind_buffer(tir.decl_buffer((1, 8), name="x"), view((te.var("i"), 1), (8, 8)), "C")
    bind_buffer(tir.decl_buffer((4, 24), name="x"), view((te.var("i"), 4), (0, 24)), "C")


strided = tir.decl_buffer((n, 24), name="S", strides=[te.var("s0"), te.var("s1")])
offset = tir.decl_buffer((n, 24), name="O", elem_offset=te.var("off"))
WRONG: list[tuple[dict[str, Any], View, str]] = [
    ({"shape": (4, 8)}, view((0, 4), (8, 8)),
     r"C: buffer W as T\[0: \+4, 8: \+8\]: expected strides\[0\] == 8 \(compact memory\), found "
     r'24: declare the intrinsic.s buffer with strides=\[te.var\("s0"\), 1\]'),
    ({"shape": (8,)}, view((0, 1), (8, 8), buffer=strided),
     r"expected strides\[0\] == 1 \(compact memory\), found s1"),
    ({"shape": (4, 8), "strides": [32, 1]}, view((0, 4), (8, 8)),
     r"expected strides\[0\] == 32, found 24"),
    ({"shape": (8,), "dtype": "float64"}, view((0, 1), (0, 8)),
     "expected dtype float64, found float32"),
    ({"shape": (8,), "scope": "shared"}, view((0, 1), (0, 8)),
     "expected scope 'shared', found 'global'"),
    ({"shape": (7,)}, view((0, 1), (0, 8)), r"expected shape\[0\] == 7, found 8"),
    ({"shape": (8,)}, view((0, 2), (0, 8)), "expected extent 1 along dimension 0, which W has not"),
    ({"shape": (1, 1, 8)}, view((0, 1), (0, 8)), "expected rank 3, found 2"),
    ({"shape": (8,), "offset_factor": 16}, view((te.var("i"), 1), (0, 8)),
     r"expected an elem_offset that is a multiple of 16, found i \* 24: split by a multiple"),
    ({"shape": (8,), "elem_offset": 0}, view((1, 1), (0, 8)),
     r"expected elem_offset == 0, found 24: declare W with elem_offset=te.var"),
    ({"shape": (8,), "elem_offset": 0}, view((0, 1), (0, 8), buffer=offset),
     "expected elem_offset == 0, found off"),
    ({"shape": (8,), "data_alignment": 64}, view((0, 1), (0, 8)),
     "expected data aligned to 64 bytes, found 4: declare T with data_alignment=64, in binds="),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "region", "text"), WRONG, ids=range(len(WRONG)))
def test_wrong_buffers(declared: dict[str, Any], region: View, text: str) -> None:
    with pytest.raises(CompileError, match=text):
        bind_buffer(tir.decl_buffer(**{"name": "W", **declared}), region, "C")


def test_one_variable_for_two_buffers() -> None:
    ld = te.var("ld")
    p = te.placeholder((2, 2), name="p")
    q = te.compute((2, 2), lambda i, j: p[i, j], name="q")
    binds = {t: tir.decl_buffer((2, 2), name=t.name, strides=[ld, 1]) for t in (p, q)}
    intrin = te.decl_tensor_intrin(q.op, lambda ins, outs: seq(), name="copy", binds=binds)
    P, Q = te.placeholder((2, 4), name="P"), te.placeholder((2, 3), name="Q")
    zero = (e.const(0), e.const(0))
    two = (e.const(2), e.const(2))
    regions = [Region(t, zero, two) for t in (P, Q)]
    buffers = {t: tir.decl_buffer(t.shape, t.dtype, t.name) for t in (P, Q)}
    with pytest.raises(CompileError, match=r"variable ld .*: expected one value, found 4 and 3"):
        on_memory(intrin, Match((regions[0],), (regions[1],), {}), buffers)


# -- Declaration -----------------------------------------------------------------------------------


def declared(op: Any = z.op, made: Any = None, **options: Any) -> TensorIntrin:
    statement = seq() if made is None else made
    return te.decl_tensor_intrin(op, lambda *buffers: statement, name="gemv", **options)


def test_declaration() -> None:
    made = declared(made=(tir.call_packed("f"), None, seq()))
    assert isinstance(made.body, tir.Evaluate) and made.reduce_init is None
    assert made.reduce_update is not None and made.inputs == (w, x)
    assert [b.name for b in made.buffers] == ["w", "x", "z"]
    params = {"offset_factor": 16, "data_alignment": 64}
    assert declared(default_buffer_params=params).buffers[1].data_alignment == 64


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"op": w.op}, r"gemv: expected the operation of a te.compute, such as C.op, got Placehol"),
        (
            {"op": te.compute((4,), lambda i: z[i] + 1.0, name="y").op},
            "found that y reads z, which",
        ),
        ({"made": 3}, "expected fcompute to return a statement or a call as its body, got int"),
        ({"made": (seq(), 3)}, "a statement or a call as its reduce_reset, got int"),
        ({"made": (None, seq(), seq())}, "as its body, got NoneType"),
        ({"made": (seq(),) * 4}, r"or \(body, reduce_reset, reduce_update\), got 4 of them"),
        ({"made": (seq(), seq())}, "expected a reduce_update next to the reduce_reset, got None"),
        ({"binds": {A: actual}}, "binds: expected tensors among w, x, z, got Tensor"),
        ({"binds": {w: 3}}, r"binds\[w\]: expected a buffer, got int"),
        ({"binds": {x: actual}}, r"binds\[x\]: expected a buffer of rank 1 of float32, got one of"),
        ({"binds": {x: tir.decl_buffer(7)}}, r"binds\[x\]: expected shape\[0\] == 8, got 7"),
        ({"scalar_params": [3]}, "scalar_params: expected variables, got 3"),
        ({"default_buffer_params": {"align": 3}}, "default_buffer_params: .*'align'"),
    ],
)
def test_wrong_declarations(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(CompileError, match=text):
        declared(**arguments)


def test_no_reduction_no_reset() -> None:
    op = te.compute((4,), lambda i: w[i, 0], name="y").op
    with pytest.raises(CompileError, match="expected a body alone, since y is no reduction"):
        declared(op=op, made=(seq(), seq(), seq()))


def test_a_reset_reads_no_input() -> None:
    def make(ins: list[tir.Buffer], outs: list[tir.Buffer]) -> Any:
        return seq(), outs[0].vstore(0, ins[1].vload(0)), seq()

    with pytest.raises(CompileError, match="found one that reads an input: leave reading to"):
        te.decl_tensor_intrin(z.op, make, name="gemv")


def test_an_intrinsic_is_not_called() -> None:
    with pytest.raises(CompileError, match=r"use s\[C\].tensorize\(axis, gemv\)"):
        gemv()(A, B)
