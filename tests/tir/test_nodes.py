"""What the constructors of nodes refuse: a node that exists fits together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import minitvm as tvm
from minitvm.runtime.dtype import FLOAT32, DType
from minitvm.runtime.errors import CompileError
from minitvm.tir.stmt import ForKind, seq

te: Any = tvm.te  # wrong arguments are what is tested
tir: Any = tvm.tir
e = s = tir
Buffer, Var, const, decl_buffer = tir.Buffer, tir.Var, tir.const, tir.decl_buffer

N, X, P = te.var("n"), te.var("x", "float32"), te.var("p", "bool")
AXIS, POINTER = te.var("i"), te.var("h", "handle")
A = decl_buffer((4, 4), "float32", name="A")
RAMP, VECTOR = tir.Ramp(N, 1, 4), tir.Broadcast(X, 4)
T = te.placeholder((4,), name="T")
PASS = seq()
WRITE = "write x != 0 for a number x"

WRONG: list[tuple[Callable[[], Any], str]] = [
    # names and kinds
    (lambda: tir.Var(1), "Var: name: expected a string, got int 1"),
    (lambda: tir.Var(""), "Var: expected a name, got an empty string"),
    (lambda: tir.Var("v", 3), "Var: dtype: expected"),
    (lambda: te.var(1), "var: expected a string as name, got int 1"),
    (lambda: te.size_var(None), "size_var: expected a string as name"),
    (lambda: te.placeholder((4,), name=1), "placeholder: expected a string"),
    (lambda: te.compute((4,), lambda i: i, name=1), "compute: expected a string"),
    (lambda: te.reduce_axis((0, 4), 1), "reduce_axis: expected a string"),
    (lambda: decl_buffer((4,), name=1), "decl_buffer: expected a string"),
    (lambda: tir.call_packed(1), "call_packed: expected a string"),
    (lambda: tir.call_extern("int32", 1), "call_extern: expected a string"),
    (lambda: tir.StringImm(1), "StringImm: value: expected a string"),
    (lambda: tir.Add(N, None), "Add: b: expected an expression or a number, got NoneType"),
    (lambda: tir.Let("n", N, N), "Let: var: expected a variable, got str 'n'"),
    (lambda: tir.BufferLoad(T, [0]), "BufferLoad: buffer: "),
    (lambda: tir.SeqStmt([N]), "SeqStmt: seq: expected a statement, got Var n"),
    (lambda: tir.IntImm("int32", 1.5), "IntImm: value: expected an integer"),
    (lambda: tir.IntImm("float32", 1), "IntImm: expected the dtype of an integer"),
    (lambda: tir.FloatImm("int32", 1.0), "FloatImm: expected the dtype of a float"),
    (lambda: tir.PrimFunc((), PASS, {}, "f", {"out": 1}), "PrimFunc: attrs: expected an attribute"),
    (lambda: tir.PrimFunc((), PASS, {}, "f", {"outputs": [A]}), "FuncAttrs: outputs: expected"),
    # conditions
    (lambda: s.IfThenElse(N, PASS), f"IfThenElse: expected a bool condition, got n of .*{WRITE}"),
    (lambda: s.While(N, PASS), f"While: expected a bool condition, got n of int32: {WRITE}"),
    (lambda: s.AssertStmt(N, "", PASS), f"AssertStmt: expected a bool condition.*{WRITE}"),
    (lambda: tir.Select(N, N, N), f"Select: expected a bool condition.*{WRITE}"),
    (lambda: tir.Select(1, N, N), f"Select: expected a bool condition.*{WRITE}"),
    (lambda: e.And(N, N), f"And: expected a bool condition.*{WRITE}"),
    (lambda: e.Not(N), f"Not: expected a bool condition.*{WRITE}"),
    (lambda: te.if_then_else(N, 1, 2), f"if_then_else: expected a bool condition.*{WRITE}"),
    (lambda: te.all(N, P), f"all: expected a bool condition.*{WRITE}"),
    (lambda: te.any(P, 1), f"any: expected a bool condition.*{WRITE}"),
    (lambda: te.likely(N), f"likely: expected a bool condition.*{WRITE}"),
    (lambda: te.sum(X, axis=te.reduce_axis((0, 4)), where=N), f"sum: expected a bool.*{WRITE}"),
    (lambda: tir.ir_builder.create().if_scope(N).__enter__(), f"if_scope: expected.*{WRITE}"),
    (lambda: tir.ir_builder.create().while_loop(1).__enter__(), f"while_loop: exp.*{WRITE}"),
    # stores, loads, buffers
    (lambda: s.BufferStore(A, N, (N, N)), "A: expected a value of float32 to store, got one of i"),
    (lambda: s.BufferStore(A, X, (N, RAMP)), "A: expected a value of float32x4 to store, got one"),
    (lambda: s.BufferStore(A, VECTOR, (N, N)), "A: expected a value of float32 to store, got one"),
    (lambda: s.BufferStore(A, X, (N,)), "A: expected 2 indices, got 1"),
    (lambda: s.BufferStore(A, True, (N, N)), "expected a value of float32, got bool True"),
    (lambda: e.BufferLoad(A, (X, N)), "A: index 0: expected an integer, got float32"),
    (lambda: e.BufferLoad(A, (P, N)), "A: index 0: expected an integer, got bool"),
    (lambda: e.BufferLoad(A, (e.Ramp(N, N, 2), RAMP)), "A: index 1: expected 1 or 2 lanes, got"),
    (lambda: e.BufferLoad(A, (N, RAMP), P), "A: predicate: expected boolx4, got bool"),
    (lambda: s.BufferStore(A, X, (N, N), N), "A: predicate: expected bool, got int32"),
    (lambda: Buffer(Var("B"), (N, N), FLOAT32, "B", (N,)), "B: expected 2 strides, got 1"),
    (lambda: Buffer(Var("B"), (X,), FLOAT32, "B"), "B: layout: expected a scalar integer, got x"),
    (lambda: decl_buffer((4, -1)), r"shape\[1\]: expected no negative extent, got -1"),
    (lambda: decl_buffer((RAMP,)), r"shape\[0\]: expected a scalar, got ramp"),
    (lambda: decl_buffer((4,), data_alignment=48), "data_alignment a power of 2, got 48"),
    (lambda: decl_buffer((4,), data_alignment=0.5), "data_alignment to be an integer"),
    (lambda: decl_buffer((4,), data=N), "data to be a variable of dtype handle, got Var n"),
    (lambda: T[X], "T: index 0: expected an integer"),
    (lambda: e.ProducerLoad(T, (X,)), "T: index 0: expected an integer, got float32"),
    (lambda: e.ProducerLoad(T, ()), "T: expected 1 indices, got 0"),
    # bindings and loops
    (lambda: s.LetStmt(AXIS, X, PASS), "LetStmt i: expected a value of int32, got one of float32"),
    (lambda: e.Let(AXIS, X, AXIS), "Let i: expected a value of int32, got one of float32"),
    (lambda: s.For(AXIS, const(0, "int64"), N, ForKind.SERIAL, PASS), "For: min: expected int32"),
    (lambda: s.For(AXIS, N, const(4, "int64"), ForKind.SERIAL, PASS), "For: extent: expected int"),
    (lambda: s.For(Var("y", FLOAT32), X, X, ForKind.SERIAL, PASS), "For: loop variable: expected"),
    (lambda: s.For(AXIS, N, N, 9, PASS), "For: kind: expected ForKind, got int 9"),
    # vectors and conversion
    (lambda: e.Ramp(X, X, 4), "Ramp: expected base and stride of one integer dtype, got float32"),
    (lambda: e.Ramp(N, const(1, "int64"), 4), "Ramp: expected base and stride of one integer dt"),
    (lambda: e.Ramp(0, 1, 1), "Ramp: expected 2 to 65535 lanes, got 1"),
    (lambda: e.Broadcast(RAMP, 8), "Broadcast: expected a scalar, got int32x4"),
    (lambda: e.Broadcast(N, 1), "Broadcast: expected 2 to 65535 lanes, got 1"),
    (lambda: e.Broadcast(N, 10**5000), "Broadcast: expected 2 to 65535 lanes, got one of 16610"),
    (lambda: e.Cast(DType.of("float32x2"), RAMP), "Cast: expected 4 lanes, as in int32x4, got"),
    (lambda: e.Cast(FLOAT32, POINTER), "Cast: expected numeric dtypes, got handle to float32"),
    (lambda: tir.cast("handle", N), "cast: expected numeric dtypes, got int32 to handle"),
    (lambda: e.Select(e.Broadcast(P, 2), VECTOR, VECTOR), "Select: expected a condition of 1 or 4"),
    # operators
    (lambda: e.FloorDiv(X, X), "FloorDiv: expected integers, got float32"),
    (lambda: e.Add(P, P), "Add: expected numbers, got two bools"),
    (lambda: e.Add(POINTER, POINTER), "Add: expected numbers, got handle"),
    (lambda: e.LT(POINTER, POINTER), "LT: expected numbers, got handle"),
    (lambda: e.Add(N, X), "Add: expected operands of one dtype, got int32 and float32"),
    (lambda: N // 0, "floordiv: expected a divisor other than 0"),
    (lambda: N % 0, "floormod: expected a divisor other than 0"),
    (lambda: te.truncdiv(N, 0), "truncdiv: expected a divisor other than 0"),
    (lambda: N << 32, "shift_left: expected a shift from 0 to 31 for int32, got 32"),
    (lambda: N >> -1, "shift_right: expected a shift from 0 to 31 for int32, got -1"),
    (lambda: te.exp(None), "exp: expected an expression or a number, got NoneType None"),
    (lambda: N + None, "add: expected an expression or a number, got NoneType None"),
    # tensors, axes and reductions
    (lambda: te.placeholder((4,), "handle"), "placeholder: expected the dtype of a number"),
    (lambda: te.placeholder((4,), "float32x0"), "expected 1 to 65535 lanes, got 0"),
    (lambda: te.extern((4,), [], lambda i, o: 0, dtype="handle"), "extern: expected the dtype of"),
    (lambda: te.reduce_axis((0, 2.5)), "expected an integer expression, got 2.5"),
    (lambda: te.reduce_axis(tir.Range(4, 0)), "expected begin <= end"),
    (lambda: tir.Range(0, X), "Range: expected an integer expression, got x of dtype float32"),
    (lambda: te.compute((4,), 3), "compute: expected fcompute to be a function, got int 3"),
    (lambda: te.compute((4,), max), "expected an fcompute whose parameters are known"),
    (lambda: te.compute((4,), lambda i: i, attrs=[1]), "compute: expected a dict as attrs"),
    (lambda: te.sum("x", axis=te.reduce_axis((0, 4))), "sum: expected a number"),
    (
        lambda: te.comm_reducer(lambda a, b: a, lambda t, u: 0)(X, axis=te.reduce_axis((0, 4))),
        "comm_reducer: expected fidentity of 1 dtypes, one for each combined value: missing",
    ),
    (lambda: te.comm_reducer(1, 2)(X, axis=te.reduce_axis((0, 4))), "expected fcombine to be a fu"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "text"), WRONG, ids=[text[:60] for _, text in WRONG])
def test_refused(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(CompileError, match=text):
        make()


def test_bodies_are_checked_where_they_become_stages() -> None:
    calls: list[tuple[Any, str]] = [
        (tir.Call("float32", "exp", [X, X]), "exp: expected 1 arguments, got 2, in"),
        (tir.Call("float64", "exp", [X]), "exp: expected float32, got float64"),
        (tir.Call("float32", "expp", [X]), "expected the name of an intrinsic, got 'expp'"),
        (tir.Call("int32", "call_packed", [N]), "expected the name of a function first"),
        (tir.Call("int32", "call_llvm_intrin", ['llvm.x"']), "expected a name that starts with"),
    ]
    for call, text in calls:
        with pytest.raises(CompileError, match=f"S: .*{text}"):
            te.compute((4,), lambda i, call=call: call, name="S")
        with pytest.raises(CompileError, match=f"S: .*{text}"):
            te.extern((4,), [], lambda i, o, call=call: call, dtype="float32", name="S")
        with pytest.raises(CompileError, match=f"f: .*{text}"):
            tvm.lower(tir.PrimFunc((N, X), tir.Evaluate(call), {}, "f"))


def test_statements_are_checked_where_they_become_stages() -> None:
    other = decl_buffer((4,), name="other")
    loop = tir.For(AXIS, 0, 4, 0, tir.Evaluate(AXIS))
    for body, text in (
        (tir.BufferStore(other, 1, [0]), "buffer other: expected a use inside the scope"),
        (tir.SeqStmt((loop, tir.Evaluate(AXIS))), "variable i: expected a use inside the scope"),
        (tir.Evaluate(T[0]), "ProducerLoad: expected in tensor expressions only"),
    ):
        with pytest.raises(CompileError, match=f"S: {text}"):
            te.extern((4,), [], lambda i, o, body=body: body, dtype="float32", name="S")


def test_attributes_of_a_function_may_be_given_as_a_mapping() -> None:
    made = tir.PrimFunc((), PASS, {}, "f", {"outputs": frozenset(), "knows_layout": True})
    assert made.attrs.outputs == frozenset() and made.attrs.knows_layout
    assert tir.PrimFunc((), PASS, {}, "f").attrs.outputs is None
