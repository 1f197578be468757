"""Every function and constructor that users call, with arguments of every kind: it gives a value
that prints, equals itself and is lowered or refused; or else a message that says who refuses."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm.ir import structural_equal
from minitvm.runtime.errors import CompileError
from minitvm.tir import op
from minitvm.tir.expr import IterVar

te: Any = tvm.te
tir: Any = tvm.tir

# Of the names in `te` and `tir`, those that no program text calls: classes of what other functions
# make, modules, and what takes a schedule.
NOT_CALLED = {
    "ComputeOp", "ExternOp", "Operation", "PlaceholderOp", "ScanOp", "Schedule", "Stage", "Tensor",
    "TensorIntrin", "TensorSlice", "create_schedule", "replay", "PrimExpr", "Stmt", "ForKind",
    "decl_tensor_intrin", "dot_product", "dot_product_of_lanes", "interleave", "interleave_rows",
    "matrix_product",
    "scan", "tag_scope", "IRModule",
}  # fmt: skip
DTYPES = ("bool", "int8", "int32", "int64", "uint8", "uint64", "float16", "bfloat16", "float32",
          "float64", "handle")  # fmt: skip
A = te.placeholder((4, 3), name="A")
S = te.placeholder((), "int32", name="S")
B = tir.decl_buffer((8,), name="B")
V = tir.decl_buffer((8,), "int32x4", name="V")
K = te.reduce_axis((0, 4), "K")
ADD = tir.CommReducer((X := te.var("X"),), (Y := te.var("Y"),), (X + Y,), (0,))
ENTITIES = (
    "A",
    "S",
    "B",
    "V",
    "K",
    "buf",
    "buffer",
    "decl_buffer",
    "constant of",
    "placeholder",
    "compute",
    "extern",
    "x",
    "i",
)


def surface() -> Iterator[tuple[str, Callable[..., Any]]]:
    for module in (te, tir):
        for name in module.__all__:
            function = getattr(module, name)
            if name not in NOT_CALLED and not isinstance(function, ModuleType):
                yield f"{module.__name__.split('.')[-1]}.{name}", function
    for name, function in inspect.getmembers(op, inspect.isfunction):
        if function.__module__ == op.__name__ and not name.startswith("_"):
            yield f"op.{name}", function
    for name in ("vload", "vstore", "access_ptr"):
        yield f"Buffer.{name}", getattr(B, name)
    for name in ("let", "allocate", "buffer_ptr", "likely", "emit"):
        yield f"ir_builder.{name}", partial(emitted, name)
    for name in ("for_range", "while_loop", "if_scope"):
        yield f"ir_builder.{name}", partial(entered, name)
    yield "Range.from_min_extent", tir.Range.from_min_extent


def builder() -> Any:
    return tir.ir_builder.create()


def emitted(name: str, *args: Any) -> Any:
    return getattr(builder(), name)(*args)


def entered(name: str, *args: Any) -> Any:
    ib = builder()
    with getattr(ib, name)(*args) as value:
        ib.emit(tir.Evaluate(0 if value is None else value))
    return ib.get()


SURFACE = dict(surface())


def _same(value: Any) -> Any:
    return value


def arguments() -> list[Callable[[], Any]]:
    """What makes each argument: fresh, so that none is shared by chance."""
    plain: list[Any] = [
        None, True, False, 0, 1, -1, 4, 300, 2**31, 2**63, -(2**64), 2**200, 10**5000, 0.0, 0.5,
        -1.5, float("nan"), float("inf"), 1e39, 70000.0, "", "x", "exp", "tir.exp", "llvm.sqrt",
        "global", *DTYPES, "int32x4", "float32x0", "float32x2", "int33", "complex64", b"", 1j,
        np.int64(4), np.int8(-1), np.uint64(2**63), np.float32(0.5), np.float64(0.1), np.float16(2),
        np.bool_(True), np.complex64(1), np.str_("x"), np.datetime64("2020"), np.arange(3),
        np.array(2.0), np.dtype("int32"), np.float32, int, float, object, Ellipsis, slice(0, 2), [],
        [0], (0, 4), [1, 2.5], (4, None), {}, {"a": 1}, object(), lambda i: i, lambda x, y: x + y,
        lambda *i: 0, print, max, A, S, A[0], A[0, 1], B, V, B[0], K, ADD, tir.Range(0, 4),
        te.thread_axis("threadIdx.x"), IterVar(None, te.var("free")), tir.Evaluate(0),
        tir.SeqStmt(()), B.access_ptr("r"), tir.StringImm("x"), tir.BufferRef(B), [K], (A, B),
        tir.ForKind.PARALLEL, te.const(0), te.const(True), te.const(2, "int64"), te.const(0.5),
        tir.Ramp(0, 1, 4), tir.Broadcast(1.0, 4), builder(), te.sum(K, axis=K), te, len,
    ]  # fmt: skip
    made: list[Callable[[], Any]] = [partial(_same, value) for value in plain]
    made += [partial(te.var, "x", dtype) for dtype in DTYPES]
    made += [lambda: te.var("i") < 4, lambda: te.var("i") + 1, lambda: te.var("x", "float32") * 2]
    return made


ARGUMENTS = arguments()


def drawn(function: Callable[..., Any], rng: random.Random) -> list[Any]:
    """Arguments for a function, mostly as many as it takes, and often ones that go together."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        parameters = []
    named = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    several = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    least = sum(p.default is p.empty for p in named)
    count = rng.randint(least, len(named) + (3 if several else 0))
    if rng.random() < 0.02:
        count = rng.randint(0, 6)
    return [rng.choice(ARGUMENTS)() for _ in range(count)]


def check(name: str, rng: random.Random, lowered: bool) -> bool:
    """Calls a function once; whether it gave a value."""
    args = drawn(SURFACE[name], rng)
    try:
        value = SURFACE[name](*args)
    except (CompileError, TypeError) as error:
        text = str(error)
        names = tuple(each for each in args if isinstance(each, str) and each)
        assert any(own in text for own in name.split(".")) or text.startswith(ENTITIES + names)
        return False
    for each in value if isinstance(value, (list, tuple)) else [value]:
        assert repr(each) and isinstance(str(each), str)
        if isinstance(each, (tir.PrimExpr, tir.Stmt)):
            assert structural_equal(each, each)
            if lowered:
                lower(each)
        elif isinstance(each, te.Tensor) and lowered:
            refused_or_lowered(each)
    return True


def lower(value: Any) -> None:
    """A program of a value is lowered, or refused as the user's mistake."""
    try:
        if isinstance(value, tir.PrimExpr):
            tensor = te.compute((4,), lambda i: value, name="T")
        else:
            tensor = te.extern((8,), [], lambda ins, outs: value, dtype="float32", name="T")
    except CompileError:
        return
    refused_or_lowered(tensor)


def refused_or_lowered(tensor: Any) -> None:
    free = [tensor, *tensor.op.input_tensors]
    with suppress(CompileError):
        tvm.lower(te.create_schedule(tensor.op), free, name="f")


@pytest.mark.parametrize("name", SURFACE)
def test_any_arguments(name: str) -> None:
    rng = random.Random(name)
    for i in range(40):
        check(name, rng, lowered=i % 8 == 0)
