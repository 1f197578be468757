"""placeholder, compute, extern, axes and tags."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te, tir
from minitvm.runtime.errors import CompileError
from minitvm.tir import expr as e
from minitvm.tir.stmt import Evaluate

A = te.placeholder((4, 3), name="A")


def body(tensor: te.Tensor) -> e.PrimExpr:
    assert isinstance(tensor.op, te.ComputeOp)
    return tensor.op.body[0]


# -- Placeholders and variables -------------------------------------------------------------------


def test_placeholder() -> None:
    n = te.size_var("n")
    T = te.placeholder((n, 4, np.int64(2)), dtype="int8", name="T")
    assert T.dtype == "int8" and T.name == "T" and T.shape[0] is n and n.nonnegative
    assert [each.dtype for each in T.shape] == ["int32"] * 3
    assert te.placeholder(5).shape[0].value == 5  # type: ignore[attr-defined]  # an IntImm
    assert te.placeholder((0,)).op.num_outputs == 1
    assert te.placeholder(n).op.input_tensors == ()


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((4, -1), r"P: shape\[1\]: expected no negative extent, got -1"),
        ((4.5,), r"P: shape\[0\]: expected an integer expression, got 4.5 of dtype float32"),
        ((True,), r"P: shape\[0\]: expected an integer expression"),
        ((None,), r"P: shape\[0\]: expected an expression or a number, got NoneType None"),
    ],
)
def test_wrong_shapes(shape: Any, text: str) -> None:
    with pytest.raises(CompileError, match=text):
        te.placeholder(shape, name="P")
    with pytest.raises(CompileError, match=text):
        te.compute(shape, lambda *i: 0.0, name="P")


def test_variables_and_axes() -> None:
    assert te.var().name == "tindex" and te.var("x", "float32").dtype == "float32"
    k = te.reduce_axis((2, 8), "k")
    assert k.dom is not None and e.const_int(k.dom.extent) == 6 and k.iter_type == 2
    assert te.reduce_axis(tir.Range(0, 4)).name == "rv"
    thread = te.thread_axis("threadIdx.x")
    assert (thread.name, thread.dom, thread.thread_tag) == ("threadIdx.x", None, "threadIdx.x")
    assert te.thread_axis((0, 4), "vthread", name="vx").name == "vx"
    with pytest.raises(CompileError, match="thread_axis: expected a tag such as"):
        te.thread_axis((0, 4))


@pytest.mark.parametrize("dom", [5, (1, 2, 3), None, "ab"])
def test_wrong_ranges(dom: Any) -> None:
    with pytest.raises(CompileError, match=r"axis k: expected a range \(begin, end\), got"):
        te.reduce_axis(dom, "k")


def test_a_range_that_ends_before_it_begins() -> None:
    with pytest.raises(CompileError, match=r"axis k: expected begin <= end, got tuple \(5, 2\)"):
        te.reduce_axis((5, 2), "k")


def test_a_float_bound() -> None:
    with pytest.raises(CompileError, match="axis k: bound 1: expected an integer expression"):
        te.reduce_axis((0, 2.5), "k")


# -- compute --------------------------------------------------------------------------------------


def names(tensor: te.Tensor) -> list[str]:
    return [axis.name for axis in tensor.axis]


def scaled(factor: float, i: e.Var, j: e.Var) -> Any:
    return A[i, j] * factor


def test_the_parameters_name_the_axes() -> None:
    assert names(te.compute((4, 3), lambda row, col: A[row, col])) == ["row", "col"]
    assert names(te.compute((4, 3), lambda *i: A(*i))) == ["i0", "i1"]
    assert names(te.compute((4, 3), lambda x, *i: A(x, *i))) == ["x", "i1"]
    assert names(te.compute((4, 3), lambda *i: A(*i), varargs_names=["p", "q"])) == ["p", "q"]
    assert names(te.compute((4, 3), partial(scaled, 2.0))) == ["i", "j"]
    assert names(te.compute((4, 3), lambda i, j, k=7: A[i, j] + k)) == ["i", "j"]
    assert names(te.compute((), lambda: 1.0)) == []
    assert names(te.compute(4, lambda i: A[i, 0])) == ["i"]


@pytest.mark.parametrize(
    ("fcompute", "text"),
    [
        (
            lambda i: 0,
            r"C: expected an fcompute of 2 indices, as the shape has, got one of 1 \(i\)",
        ),
        (lambda i, j, k: 0, r"got one of 3 \(i, j, k\)"),
        (lambda: 0, r"got one of 0 \(none\)"),
        (lambda i, j, *, k: 0, "C: expected an fcompute of indices, got keyword-only parameters"),
        (lambda i, j: None, "C: expected fcompute to return an element, got None"),
        (lambda i, j: (), "C: expected fcompute to return an element, got an empty tuple"),
        (lambda i, j: "x", "C: expected fcompute to return a number, got a string"),
        (lambda i, j: object(), "C: fcompute returned no element: expected an expression"),
        (lambda i, j: A, "A: expected an element, got the whole tensor, of rank 2"),
        (lambda i, j: A[i], "A: expected 2 indices, got 1"),
    ],
)
def test_wrong_functions(fcompute: Callable[..., Any], text: str) -> None:
    with pytest.raises(CompileError, match=text):
        te.compute((4, 3), fcompute, name="C")


def test_wrong_varargs_names() -> None:
    with pytest.raises(CompileError, match="compute: expected 2 varargs_names, got 1"):
        te.compute((4, 3), lambda *i: 0, varargs_names=["p"])


def test_results_that_are_no_expressions() -> None:
    s = te.placeholder((), name="s")
    k = te.thread_axis((0, 4), "x")
    assert isinstance(body(te.compute((), lambda: s)), e.ProducerLoad)
    assert body(te.compute((2,), lambda i: 3)).dtype == "int32"
    assert body(te.compute((2,), lambda i: np.float64(1))).dtype == "float64"
    assert e.as_expr(k) is k.var


def test_several_outputs() -> None:
    B, C = te.compute((4, 3), lambda i, j: (A[i, j], i + j), name="BC")
    assert B.op is C.op and B.op.num_outputs == 2 and (B.dtype, C.dtype) == ("float32", "int32")
    assert (B.name, C.name) == ("BC.v0", "BC.v1") and B != C and B.op.outputs == (B, C)


def test_axes_have_the_dtype_of_their_extent() -> None:
    n = te.var("n", "int64")
    assert te.compute((n,), lambda i: i).dtype == "int64"


def test_a_reduction_is_a_stage_of_its_own() -> None:
    k, r = te.reduce_axis((0, 3), "k"), te.reduce_axis((0, 4), "r")
    text = "D: expected a reduction to be the whole body, found one inside an expression"
    with pytest.raises(CompileError, match=text):
        te.compute((4,), lambda i: te.sum(A[i, k], axis=k) + 1, name="D")
    with pytest.raises(CompileError, match=text):
        te.compute((1,), lambda i: te.sum(te.sum(A[r, k], axis=k), axis=r), name="D")
    with pytest.raises(CompileError, match="D: expected the results of one reducer"):
        te.compute((4,), lambda i: (te.sum(A[i, k], axis=k), A[i, 0]), name="D")
    with pytest.raises(CompileError, match="D: expected the results of one reducer"):
        te.compute((4,), lambda i: (te.sum(A[i, k], axis=k), te.max(A[i, k], axis=k)), name="D")


def test_an_axis_outside_of_its_loop() -> None:
    k, r = te.reduce_axis((0, 3), "k"), te.reduce_axis((0, 4), "r")
    text = r"D: axis k is used outside of its loop: it is none of D's axes \(i\), and no reducer"
    with pytest.raises(CompileError, match=text):
        te.compute((4,), lambda i: A[i, k], name="D")
    with pytest.raises(CompileError, match=text):
        te.compute((4,), lambda i: te.sum(A[r, k], axis=r), name="D")
    other = te.compute((4,), lambda x: x)
    with pytest.raises(CompileError, match="D: axis x is used outside of its loop"):
        te.compute((4,), lambda i: other.axis[0] + i, name="D")


def test_a_scalar_parameter_may_be_used() -> None:
    alpha = te.var("alpha", "float32")
    assert te.compute((4, 3), lambda i, j: A[i, j] * alpha).dtype == "float32"


# -- Tags -----------------------------------------------------------------------------------------


def test_tag_scope() -> None:
    @te.tag_scope(tag="outer")
    def made() -> te.Tensor:
        return te.compute((4,), lambda i: i)  # type: ignore[no-any-return]

    assert made().op.tag == "outer" == made().op.tag
    assert te.compute((4,), lambda i: i, tag="own", attrs={"x": 1}).op.tag == "own"
    with te.tag_scope("a"):
        with pytest.raises(CompileError, match="tag_scope 'b': expected no scope around it"):
            te.tag_scope("b").__enter__()
        with pytest.raises(CompileError, match="C: expected one tag, got 'x' inside of tag_scope"):
            te.compute((4,), lambda i: i, name="C", tag="x")
    assert te.compute((4,), lambda i: i).op.tag == ""


# -- extern ---------------------------------------------------------------------------------------


def test_extern_with_a_packed_call() -> None:
    C = te.extern((4, 3), [A], lambda ins, outs: tir.call_packed("f", ins[0], outs[0], 2), name="C")
    op = C.op
    assert isinstance(op, te.ExternOp) and isinstance(op.body, Evaluate)
    assert C.dtype == "float32" and op.input_tensors == (A,) and op.inputs == (A,)
    call = op.body.value
    assert isinstance(call, e.Call) and [type(arg).__name__ for arg in call.args] == [
        "StringImm", "BufferRef", "BufferRef", "IntImm",
    ]  # fmt: skip
    assert (op.input_placeholders[0].name, op.output_placeholders[0].name) == ("A", "C")


def test_extern_with_several_outputs() -> None:
    X, Y = te.extern(
        [(4,), (te.var("n"), 2)], [A], lambda i, o: tir.call_packed("f"), dtype=["int8", "bool"]
    )
    assert X.op is Y.op and (X.dtype, Y.dtype) == ("int8", "bool") and Y.ndim == 2
    assert te.extern([4, 3], [A], lambda i, o: tir.call_packed("f")).ndim == 2
    assert te.extern([A.shape], [A], lambda i, o: tir.call_packed("f")).ndim == 2
    both = te.extern([(4,), (3,)], [A], lambda i, o: tir.call_packed("f"), dtype="int64")
    assert [each.dtype for each in both] == ["int64", "int64"]


def test_extern_with_buffers_of_the_users() -> None:
    wide = tir.decl_buffer((4, 3), strides=[8, 1], name="wide")
    C = te.extern((4,), [A], lambda ins, outs: tir.call_packed("f", ins[0]), in_buffers=wide)
    assert isinstance(C.op, te.ExternOp) and C.op.input_placeholders == (wide,)


N = te.placeholder((2,), "int32", "N")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"inputs": [3]}, r"E: inputs\[0\]: expected a tensor, got int"),
        ({"inputs": []}, r"E: expected a dtype, .* \(no inputs\): pass dtype="),
        ({"inputs": [A, N]}, r"E: expected a dtype, .* \(float32, int32\)"),
        ({"dtype": ["int8", "int8"]}, "E: expected 1 dtypes, one each output, got 2"),
        ({"in_buffers": [A]}, r"E: in_buffers\[0\]: expected a buffer, got Tensor"),
        ({"in_buffers": []}, "E: expected 1 in_buffers, got 0"),
        (
            {"out_buffers": tir.decl_buffer((4,), "int8")},
            r"E: out_buffers\[0\]: expected rank 1 of float32, got rank 1 of int8",
        ),
        (
            {"fcompute": lambda ins, outs: None},
            "E: expected fcompute to return a statement or a call, got NoneType",
        ),
        ({"fcompute": lambda ins: None}, "E: expected fcompute to be a function of two lists"),
        ({"fcompute": 3}, "E: expected fcompute to be a function of .*: 3 is not a callable"),
    ],
)
def test_wrong_externs(arguments: dict[str, Any], text: str) -> None:
    given = {"inputs": [A], "fcompute": lambda ins, outs: tir.call_packed("f"), **arguments}
    with pytest.raises(CompileError, match=text):
        te.extern((4,), name="E", **given)


def test_quotients_that_come_out_even() -> None:
    """``N / bn`` is a float in Python, and the number of blocks where bn divides N."""
    size, block = 64, 8
    b = te.placeholder((size, size), name="B")
    packed = te.compute(
        (size / block, size, np.float64(block)), lambda x, y, z: b[y, x * block + z], name="packed"
    )
    assert packed.shape == (8, 64, 8)
    k = te.reduce_axis((0, np.float32(size / block)), "k")
    total = te.compute((8,), lambda i: te.sum(packed[k, 16 / 2, i], axis=k), name="total")
    s = te.create_schedule(total.op)
    s[total].split(k, 8 / 2)
    x = np.random.default_rng(0).integers(0, 9, (size, size)).astype("float32")
    got = np.zeros(8, "float32")
    tvm.build(s, [b, total])(x, got)
    np.testing.assert_array_equal(got, x[8].reshape(8, 8).sum(axis=0))
    for odd in (size / 7, 0.5, float("inf"), float("nan"), 1e300):
        with pytest.raises(
            tvm.CompileError, match=r"shape\[0\]: (expected an integer expr|.* got 1e\+300)"
        ):
            te.compute((odd, size), lambda i, j: b[i, j])
