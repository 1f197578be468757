"""What programs do, against numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitvm.runtime.dtype import BOOL, FLOAT32, INT32, UINT8, DType
from minitvm.runtime.errors import CompileError, InternalError, KernelError
from minitvm.tir import expr as e
from minitvm.tir import op, scalars
from minitvm.tir import stmt as s
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import Buffer, PrimExpr, Var, cast, const
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import ForKind, Stmt
from tests.tir.programs import built, function, loop, matmul

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]


def numpy_type(dtype: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def mapped(make: Callable[..., PrimExpr], *inputs: Any) -> Any:
    """``make(x, ...)`` of the elements of some arrays of one shape, run as a program."""
    i = Var("i")
    buffers = [decl_buffer(x.shape, x.dtype, f"x{n}") for n, x in enumerate(inputs)]
    value = make(*(buffer[i] for buffer in buffers))
    out = decl_buffer(inputs[0].shape, value.dtype, "out")
    body = loop(i, inputs[0].size, s.BufferStore(out, value, (i,)))
    result = np.zeros(inputs[0].shape, numpy_type(str(value.dtype)))
    interpret(function("mapped", *buffers, out, body=body), *inputs, result)
    return result


# -- Whole programs -------------------------------------------------------------------------------


def test_matmul_is_rounded_step_by_step() -> None:
    random = np.random.default_rng(0)
    x, y = random.standard_normal((2, 7, 7)).astype("float32")
    z, expected = np.empty_like(x), np.zeros_like(x)
    interpret(matmul(7), x, y, z)
    for k in range(7):
        expected += x[:, k, None] * y[k]
    np.testing.assert_array_equal(z, expected)


def test_argmax_with_lets() -> None:
    def argmax(ib: Any, x: Any, out: Any) -> None:
        best = ib.allocate("float32", (), "best")
        best[()] = float("-inf")
        out[0] = -1
        with ib.for_range(0, 8, "i") as i:
            value = ib.let("value", x[i])
            with ib.if_scope(value > best[()]):
                out[0] = i
                best[()] = value

    x, out = np.array([3, 1, 4, 1, 5, 9, 2, 6], "float32"), np.zeros(1, "int32")
    func = built(argmax, decl_buffer((8,), "float32", "x"), decl_buffer((1,), "int32", "out"))
    interpret(func, x, out)
    assert out[0] == 5


def test_while() -> None:
    def collatz(ib: Any, state: Any) -> None:
        with ib.while_loop(state[0] != 1):
            state[1] = state[1] + 1
            with ib.if_scope(state[0] % 2 == 0):
                state[0] = state[0] // 2
            with ib.else_scope():
                state[0] = state[0] * 3 + 1

    state = np.array([27, 0], "int32")
    interpret(built(collatz, decl_buffer((2,), "int32", "state")), state)
    assert state.tolist() == [1, 111]


@pytest.mark.parametrize("kind", list(ForKind))
def test_loops_of_every_kind_run_in_order(kind: ForKind) -> None:
    i = Var("i")
    seen: list[int] = []
    call = s.Evaluate(op.call_packed("see", i))
    body = s.For(i, const(3), const(4), kind, call)
    interpret(function("order", body=body), packed={"see": seen.append})
    assert seen == [3, 4, 5, 6]


def test_a_negative_extent_runs_nothing() -> None:
    seen: list[int] = []
    i = Var("i")
    body = loop(i, -3, s.Evaluate(op.call_packed("see", i)))
    interpret(function("nothing", body=body), packed={"see": seen.append})
    assert not seen


def test_vectors() -> None:
    def vectors(ib: Any, x: Any, out: Any) -> None:
        forward, backward = (e.Ramp(const(a), const(b), 4) for a, b in ((0, 1), (3, -1)))
        value = x[backward] * const(2.0, "float32x4") + cast("float32x4", forward)
        out[forward] = e.Select(value > const(5.0, "float32x4"), value, op.exp(x[forward]))

    x, out = np.array([0, 1, 2, 3], "float32"), np.zeros(4, "float32")
    interpret(built(vectors, *(decl_buffer((4,), "float32", n) for n in ("x", "out"))), x, out)
    np.testing.assert_array_equal(out, np.array([6.0, *np.exp([1.0, 2.0, 3.0])], "float32"))


def test_vector_of_rows() -> None:
    """A scalar index next to a vector one is repeated."""

    def column(ib: Any, x: Any, out: Any) -> None:
        lanes = e.Ramp(const(0), const(1), 3)
        out[lanes] = x[lanes, 1]

    x, out = np.arange(12, dtype="int32").reshape(3, 4), np.zeros(3, "int32")
    interpret(built(column, decl_buffer((3, 4), "int32"), decl_buffer((3,), "int32")), x, out)
    assert out.tolist() == [1, 5, 9]


def test_let_and_lazy_choice() -> None:
    i = Var("i")
    x = np.array([1.0, 4.0], "float32")

    def make(value: PrimExpr) -> PrimExpr:
        y = Var("y", FLOAT32)
        return e.Let(y, value + 1.0, y * y)

    assert mapped(make, x).tolist() == [4.0, 25.0]
    buffer, out = decl_buffer((2,), "float32", "x"), decl_buffer((4,), "float32", "out")
    guarded = op.if_then_else(i < 2, buffer[i], -1.0)
    func = function("pad", buffer, out, body=loop(i, 4, s.BufferStore(out, guarded, (i,))))
    result = np.zeros(4, "float32")
    interpret(func, x, result)
    assert result.tolist() == [1.0, 4.0, -1.0, -1.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda safe, value: e.Select(safe, value, const(0.0)),
        lambda safe, value: cast("float32", e.And(safe, value > 0.0)),
        lambda safe, value: cast("float32", e.Or(e.Not(safe), value > 0.0)),
    ],
)
def test_other_choices_evaluate_both_sides(make: Callable[..., PrimExpr]) -> None:
    i, x = Var("i"), decl_buffer((2,), "float32", "x")
    body = loop(i, 4, s.Evaluate(make(i < 2, x[i])))
    with pytest.raises(IndexError, match=r"^both: x\[2\]: expected index 0 from 0 to 1, got 2$"):
        interpret(function("both", x, body=body), np.ones(2, "float32"))


# -- Memory and arguments -------------------------------------------------------------------------


@pytest.mark.parametrize("index", [-1, 4])
def test_indices_never_wrap(index: int) -> None:
    x = decl_buffer((2, 4), "float32", "x")
    store = s.BufferStore(x, const(0.0), (const(1), const(index)))
    message = rf"^f: x\[1, {index}\]: expected index 1 from 0 to 3, got {index}$"
    for body in (store, s.Evaluate(x[1, index])):
        with pytest.raises(IndexError, match=message):
            interpret(function("f", x, body=body), np.zeros((2, 4), "float32"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int8"])
def test_unwritten_memory_is_not_read(dtype: str) -> None:
    fresh = decl_buffer((4,), dtype, "T")
    reads = s.Evaluate(fresh[2])
    write = s.BufferStore(fresh, const(1, dtype), (const(2),))
    interpret(function("f", body=s.Allocate(fresh, s.seq(write, reads))))
    with pytest.raises(InternalError, match=r"^f: T\[2\]: expected an element written before"):
        interpret(function("f", body=s.Allocate(fresh, reads)))
    i = Var("i")
    again = loop(i, 2, s.Allocate(fresh, s.IfThenElse(i < 1, write, reads)))
    with pytest.raises(InternalError, match="expected an element written before"):
        interpret(function("f", body=again))


LANES = e.Ramp(const(0), const(1), 4)


def partly_written(body: Callable[[Buffer, Buffer], Stmt]) -> np.ndarray[Any, Any]:
    """What a body makes of 4 elements that are 7, with a fresh buffer whose first two are 1."""
    fresh, x = decl_buffer((4,), "float32", "T"), decl_buffer((4,), "float32", "x")
    first = e.LT(LANES, e.Broadcast(const(2), 4))
    ones = s.BufferStore(fresh, e.Broadcast(const(1.0), 4), (LANES,), first)
    found = np.full(4, 7, "float32")
    interpret(function("f", x, body=s.Allocate(fresh, s.seq(ones, body(fresh, x)))), found)
    return found


def extracted(vector: PrimExpr) -> PrimExpr:
    return e.Call(FLOAT32, "vector_extract", (vector, const(1)))


def doubled(fresh: Buffer) -> PrimExpr:
    return e.BufferLoad(fresh, (LANES,)) * e.Broadcast(const(2.0), 4)


def test_lanes_that_nothing_uses_need_no_value() -> None:
    """They pass through operations, copies and choices."""
    first = e.LT(LANES, e.Broadcast(const(2), 4))
    others = e.Broadcast(const(5.0), 4)
    assert partly_written(
        lambda fresh, x: s.BufferStore(x, doubled(fresh), (LANES,), first)
    ).tolist() == [2, 2, 7, 7]
    assert partly_written(
        lambda fresh, x: s.BufferStore(x, e.Select(first, doubled(fresh), others), (LANES,))
    ).tolist() == [2, 2, 5, 5]

    def copied(fresh: Buffer, x: Buffer) -> Stmt:
        copy = decl_buffer((4,), "float32", "C")
        again = s.BufferStore(x, extracted(e.BufferLoad(copy, (LANES,))), (const(0),))
        return s.Allocate(copy, s.seq(s.BufferStore(copy, doubled(fresh), (LANES,)), again))

    assert partly_written(copied).tolist() == [2, 7, 7, 7]


@pytest.mark.parametrize(
    "use",
    [
        lambda fresh, x: s.BufferStore(x, doubled(fresh), (LANES,)),
        lambda fresh, x: s.BufferStore(x, const(1.0), (e.Cast(INT32, fresh[2]),)),
        lambda fresh, x: s.IfThenElse(fresh[2] > 0.0, s.BufferStore(x, const(1.0), (const(0),))),
        lambda fresh, x: s.BufferStore(x, op.if_then_else(fresh[2] > 0.0, x[1], x[2]), (const(0),)),
        lambda fresh, x: s.BufferStore(
            x, e.Call(FLOAT32, "vector_reduce_add", (const(0.0), doubled(fresh))), (const(0),)
        ),
    ],
)
def test_values_that_nothing_wrote_are_not_used(use: Callable[[Buffer, Buffer], Stmt]) -> None:
    with pytest.raises(InternalError, match=r"^f: T\[2\]: expected an element written before"):
        partly_written(use)


def test_fresh_memory_is_poisoned() -> None:
    fresh, scalar = decl_buffer((2,), "float32", "T"), decl_buffer((), "int16", "S")
    seen: list[Any] = []
    body = s.Allocate(fresh, s.Allocate(scalar, s.Evaluate(op.call_packed("see", fresh, scalar))))
    interpret(function("f", body=body), packed={"see": lambda *arrays: seen.extend(arrays)})
    assert np.isnan(seen[0]).all() and seen[1] == -1


def test_shapes_and_strides_bind_variables() -> None:
    n, m, step, offset = (Var(name) for name in ("n", "m", "step", "offset"))
    x = decl_buffer((n, m), "float32", "x", strides=(step, 1), elem_offset=offset)
    y = decl_buffer((n * m,), "float32", "y")
    out = decl_buffer((4,), "int32", "out")
    stores = [s.BufferStore(out, v, (const(i),)) for i, v in enumerate((n, m, step, offset))]
    func = function("layout", y, x, out, body=s.seq(*stores))
    found, array = np.zeros(4, "int32"), np.zeros((3, 10), "float32")[:, :5]
    interpret(func, np.zeros(15, "float32"), array, found)
    assert found.tolist() == [3, 5, 10, 0]
    with pytest.raises(ValueError, match=r"^layout: argument 0 'y': expected shape\[0\] == 15, "):
        interpret(func, np.zeros(14, "float32"), array, found)


def test_any_strides() -> None:
    base = np.arange(24, dtype="float32").reshape(4, 6)
    doubled = np.zeros((6, 4), "float32").T[::-1]
    i, j = Var("i"), Var("j")
    x, out = decl_buffer((4, 3), "float32", "x"), decl_buffer((4, 3), "float32", "out")
    body = loop(i, 4, loop(j, 3, s.BufferStore(out, x[i, j] * 2.0, (i, j))))
    interpret(function("f", x, out, body=body), base[:, ::-2], doubled[:, :3])
    np.testing.assert_array_equal(doubled[:, :3], base[:, ::-2] * 2)


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((), TypeError, "f: expected 3 arguments, got 0"),
        (([1.0], 1, 1.0), TypeError, "f: argument 0 'x': expected a numpy array, got list"),
        (
            (np.zeros(4), 1, 1.0),
            TypeError,
            "f: argument 0 'x': expected dtype float32, got float64",
        ),
        ((np.zeros(3, "f"), 1, 1.0), ValueError, r"'x': expected shape\[0\] == 4, got 3"),
        ((np.zeros((4, 1), "f"), 1, 1.0), ValueError, "'x': expected 1 dimensions, got 2"),
        ((np.zeros(4, "f"), 1.0, 1.0), TypeError, "1 'n': expected a number of uint8, got float"),
        ((np.zeros(4, "f"), 256, 1.0), ValueError, "'n': expected a value from 0 to 255, got 256"),
        ((np.zeros(4, "f"), 1, "1"), TypeError, "2 'a': expected a number of float32, got str"),
    ],
)
def test_arguments_that_do_not_fit(args: Any, error: type[Exception], message: str) -> None:
    x = decl_buffer((4,), "float32", "x")
    with pytest.raises(error, match=message):
        interpret(function("f", x, Var("n", UINT8), Var("a", FLOAT32)), *args)


def test_scalars_are_converted() -> None:
    a, n, p, out = Var("a", FLOAT32), Var("n"), Var("p", BOOL), decl_buffer((3,), "float64", "out")
    values = [cast("float64", v) for v in (a, n, p)]
    body = s.seq(*[s.BufferStore(out, v, (const(i),)) for i, v in enumerate(values)])
    found = np.zeros(3)
    interpret(function("f", a, n, p, out, body=body), 0.1, np.int64(7), True, found)
    assert found.tolist() == [float(np.float32(0.1)), 7.0, 1.0]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool"])
def test_every_dtype_is_read_and_written(dtype: str) -> None:
    x = np.array([0, 1, 1, 0], "int32").astype(numpy_type(dtype))
    np.testing.assert_array_equal(mapped(lambda v: v, x), x)


def test_bfloat16_as_bit_patterns() -> None:
    x = np.array([1.5, -2.25], "float32").astype(ml_dtypes.bfloat16)
    bits, out = x.view(np.uint16), np.zeros(2, np.uint16)
    buffers = [decl_buffer((2,), "bfloat16", name) for name in ("x", "out")]
    i = Var("i")
    body = loop(i, 2, s.BufferStore(buffers[1], buffers[0][i] + buffers[0][i], (i,)))
    interpret(function("f", *buffers, body=body), bits, out)
    np.testing.assert_array_equal(out.view(ml_dtypes.bfloat16), x + x)


# -- Values ---------------------------------------------------------------------------------------

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, 1e-45, -1e-40, 2.0**-24, 1e38, 65504.0, 88.5, 1e-3,
           -20.0, math.pi, math.inf, -math.inf, math.nan]  # fmt: skip
MATH: dict[str, Any] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "expm1": np.expm1, "exp10": lambda x: np.power(10.0, x), "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sigmoid": lambda x: np.exp(np.minimum(x, 0.0)) / (1.0 + np.exp(-np.abs(x))),
    "erf": np.vectorize(math.erf, [np.float64]),
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "nearbyint": np.rint, "abs": np.abs,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
}  # fmt: skip
MATH_OF_TWO: dict[str, Any] = {
    "atan2": np.arctan2, "hypot": np.hypot, "fmod": np.fmod, "copysign": np.copysign,
    "pow": lambda x, y: np.power(x.astype(np.longdouble), y),  # float64's is an ULP off
}  # fmt: skip


def same(found: Any, expected: Any) -> None:
    """Equal in value and sign, NaN with NaN."""
    found, expected = found.astype(np.float64), np.asarray(expected, found.dtype).astype(np.float64)
    np.testing.assert_array_equal(found, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(expected[numbers]))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", MATH)
def test_mathematics(name: str, dtype: str) -> None:
    """Against numpy's float64, rounded. (bfloat16 holds few of the values: no double rounding.)"""
    with np.errstate(all="ignore"):
        x = np.array(SPECIAL).astype("float32").astype(numpy_type(dtype))
        exact = MATH[name](x.astype(np.float64))
        found = mapped(getattr(op, name), x)
        if dtype == "bfloat16" and exact.dtype != bool:
            exact = np.array([scalars.round_to_bfloat16(v) for v in exact.tolist()])
        same(found, exact.astype(found.dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", MATH_OF_TWO)
def test_mathematics_of_two(name: str, dtype: str) -> None:
    with np.errstate(all="ignore"):
        values = np.array(SPECIAL).astype(dtype)
        x, y = (grid.ravel() for grid in np.meshgrid(values, values))
        exact = MATH_OF_TWO[name](x.astype(np.float64), y.astype(np.float64))
        same(mapped(getattr(op, name), x, y), exact.astype(dtype))


FLOAT_OPERATORS: dict[str, Any] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}
COMPARISONS: dict[str, Any] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", [*FLOAT_OPERATORS, *COMPARISONS])
def test_float_operators_over_special_values(name: str, dtype: str) -> None:
    function = {**FLOAT_OPERATORS, **COMPARISONS}[name]
    with np.errstate(all="ignore"):
        values = np.array(SPECIAL).astype("float32").astype(numpy_type(dtype))
        x, y = (grid.ravel() for grid in np.meshgrid(values, values))
        same(mapped(function, x, y), function(x, y))


def test_minimum_and_maximum_of_floats() -> None:
    values = np.array([v for v in SPECIAL if v != 0.0], "float32")
    x, y = (grid.ravel() for grid in np.meshgrid(values, values))
    same(mapped(e.minimum, x, y), np.minimum(x, y))
    same(mapped(e.maximum, x, y), np.maximum(x, y))


@pytest.mark.parametrize("dtype", INTEGERS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_integer_operators_wrap_as_numpy_does(dtype: str, data: st.DataObject) -> None:
    limits = np.iinfo(dtype)
    numbers = st.integers(int(limits.min), int(limits.max))
    edges = st.sampled_from([int(limits.min), int(limits.max), 0, 1, -1 if limits.min else 2])
    a, b = (np.array([data.draw(numbers | edges) for _ in range(12)], dtype) for _ in "ab")
    with np.errstate(all="ignore"):
        same(mapped(lambda x, y: (x + y) * y - x, a, b), (a + b) * b - a)
        same(mapped(lambda x, y: x // y, a, b), a // b)
        same(mapped(lambda x, y: x % y, a, b), a % b)
        same(mapped(e.truncmod, a, b), np.fmod(a, b))
        same(mapped(lambda x, y: (x & y) | (x ^ ~y), a, b), (a & b) | (a ^ ~b))
        same(mapped(e.minimum, a, b), np.minimum(a, b))


@pytest.mark.parametrize("source", [*FLOATS, "int8", "int64", "uint64", "bool"])
@pytest.mark.parametrize("target", [*FLOATS, *INTEGERS, "bool"])
def test_casts(source: str, target: str) -> None:
    with np.errstate(all="ignore"):
        if source in FLOATS:
            x = np.array([*SPECIAL, 3e9, -129.5]).astype("float32").astype(numpy_type(source))
        elif source == "bool":
            x = np.array([False, True])
        else:
            limits = np.iinfo(source)
            x = np.array([0, 1, 100, limits.max, limits.min, limits.max - 1], source)
        found = mapped(lambda v: cast(target, v), x).tolist()
    wanted = DType.of(target)
    values = x.astype(np.float64).tolist() if source == "bfloat16" else x.tolist()
    expected = [scalars.cast(wanted, v) for v in values]
    assert [*map(repr, found)] == [*map(repr, map(type(found[0]), expected))]


def test_reinterpret() -> None:
    x = np.array([1.0, -0.0, np.inf, 3e-40], "float32")
    np.testing.assert_array_equal(mapped(lambda v: op.reinterpret("int32", v), x), x.view("int32"))
    bits = x.view("uint32")
    np.testing.assert_array_equal(mapped(lambda v: op.reinterpret("float32", v), bits), x)

    def halves(ib: Any, source: Any, out: Any) -> None:
        lanes = e.Ramp(const(0), const(1), 8)
        out[lanes] = op.reinterpret("uint16x8", source[e.Ramp(const(0), const(1), 4)])

    out = np.zeros(8, "uint16")
    buffers = decl_buffer((4,), "float32"), decl_buffer((8,), "uint16")
    interpret(built(halves, *buffers), x, out)
    np.testing.assert_array_equal(out, x.view("uint16"))


def test_likely_and_not() -> None:
    x = np.array([1, 5], "int32")
    assert mapped(lambda v: op.likely(v < 3), x).tolist() == [True, False]
    assert mapped(lambda v: e.Not(v < 3), x).tolist() == [False, True]


# -- Assertions and calls out ---------------------------------------------------------------------


def test_assertions() -> None:
    n = Var("n")
    message = "f: expected {n} < {}, got {}"
    below = s.AssertStmt(n < 3, message, s.seq(), (const(3), n), "ValueError")
    interpret(function("f", n, body=below), 2)
    with pytest.raises(ValueError, match=r"^f: expected \{n\} < 3, got 7$") as caught:
        interpret(function("f", n, body=below), 7)
    assert caught.type is ValueError
    with pytest.raises(KernelError, match=r"^\{a\}$"):
        interpret(function("f", n, body=s.AssertStmt(n < 3, "{a}", s.seq())), 7)


def test_packed_calls() -> None:
    x, out = decl_buffer((2, 2), "float32", "x"), decl_buffer((2,), "int32", "out")
    added = s.BufferStore(out, op.call_packed("add", x, 3, "text"), (const(0),))
    body = s.seq(added, s.Evaluate(op.call_packed("none")))
    array, found = np.zeros((3, 3), "float32")[:2, :2], np.ones(2, "int32")

    def add(given_array: Any, number: int, text: str) -> Any:
        given_array += number
        return np.float32(len(text))

    packed: dict[str, Callable[..., Any]] = {"add": add, "none": lambda: None}
    interpret(function("f", x, out, body=body), array, found, packed=packed)
    assert array.tolist() == [[3, 3], [3, 3]]
    assert found.tolist() == [4, 1]
    with pytest.raises(ValueError, match="f: expected 'h' in packed, found add, none"):
        interpret(function("f", body=s.Evaluate(op.call_packed("h"))), packed=packed)


def test_packed_functions_fill_fresh_memory() -> None:
    fresh, out = decl_buffer((2,), "bfloat16", "T"), decl_buffer((1,), "bfloat16", "out")
    body = s.seq(
        s.Evaluate(op.call_packed("fill", fresh)), s.BufferStore(out, fresh[1], (const(0),))
    )
    found = np.zeros(1, np.uint16)
    func = function("f", out, body=s.Allocate(fresh, body))
    interpret(func, found, packed={"fill": lambda array: array.fill(0x3F80)})
    assert found[0] == 0x3F80


def test_c_functions() -> None:
    x = np.array([0.5, 2.0])
    found = mapped(lambda v: op.call_extern("float64", "cbrt", v), x)
    np.testing.assert_allclose(found, np.cbrt(x), rtol=1e-15)
    source, target = (decl_buffer((4,), "int32", name) for name in "st")
    copy = op.call_extern(
        "handle",
        "memcpy",
        target.access_ptr("w"),
        source.access_ptr("r", offset=1),
        const(8, "uint64"),
    )
    array, out = np.arange(4, dtype="int32"), np.zeros(4, "int32")
    interpret(function("f", source, target, body=s.Evaluate(copy)), array, out)
    assert out.tolist() == [1, 2, 0, 0]
    with pytest.raises(CompileError, match="expected a C symbol, found none named 'no_such_thing'"):
        mapped(lambda v: op.call_extern("float64", "no_such_thing", v), x)


def test_null_handles() -> None:
    handle, x = Var("h", DType.of("handle")), decl_buffer((2,), "bool", "x")
    stores = [
        s.BufferStore(x, op.isnullptr(each), (const(i),)) for i, each in enumerate((handle, x.data))
    ]
    found = np.zeros(2, bool)
    interpret(function("f", handle, x, body=s.seq(*stores)), None, found)
    assert found.tolist() == [True, False]


def test_what_only_compiled_code_can_do() -> None:
    call = op.call_llvm_pure_intrin("float32", "llvm.sqrt", const(1.0))
    with pytest.raises(CompileError, match="call_llvm_pure_intrin: only compiled code gives it"):
        interpret(function("f", body=s.Evaluate(call)))
    vectors = decl_buffer((2,), "float32x4", "v")
    with pytest.raises(CompileError, match="v: expected a scalar element to interpret, got fl"):
        interpret(function("f", body=s.Allocate(vectors, s.seq())))


def test_invalid_programs_are_refused() -> None:
    with pytest.raises(InternalError, match="variable i"):
        interpret(function("f", body=s.Evaluate(Var("i", INT32))))


# -- Predicates and vectors -----------------------------------------------------------------------


def test_predicated_accesses() -> None:
    """Lanes that are off touch nothing, wherever they would be, and read 0."""
    x, out = decl_buffer((3,), "float32", "x"), decl_buffer((6,), "float32", "out")
    lanes = e.Ramp(const(0), const(1), 4)
    first = e.LT(lanes, e.Broadcast(const(3), 4))
    read = e.BufferLoad(x, (lanes,), first)
    where = e.GE(lanes, e.Broadcast(const(2), 4))
    far = e.BufferLoad(x, (const(99),), const(False))
    stores = [
        s.BufferStore(out, read, (e.Ramp(const(0), const(2), 4),), first),
        s.BufferStore(out, e.Broadcast(const(7.0), 4), (e.Ramp(const(-1), const(2), 4),), where),
        s.BufferStore(out, far, (const(1),), const(True)),
        s.BufferStore(out, const(5.0), (const(99),), const(False)),
    ]
    found = np.ones(6, np.float32)
    interpret(function("f", x, out, body=s.seq(*stores)), np.arange(1, 4, dtype="float32"), found)
    assert found.tolist() == [1, 0, 2, 7, 3, 7]


def test_shuffles_pick_lanes_of_both() -> None:
    x, out = decl_buffer((4,), "float32", "x"), decl_buffer((3,), "float32", "out")
    a, b = (e.BufferLoad(x, (e.Ramp(const(begin), const(1), 2),)) for begin in (0, 2))
    lanes = (const(3), const(0), const(3))
    picked = e.Call(FLOAT32.with_lanes(3), "vector_shuffle", (a, b, *lanes))
    body = s.BufferStore(out, picked, (e.Ramp(const(0), const(1), 3),))
    found = np.zeros(3, np.float32)
    interpret(function("f", x, out, body=body), np.arange(4, dtype="float32"), found)
    assert found.tolist() == [3, 0, 3]


def test_folds_go_in_order() -> None:
    x, out = decl_buffer((3,), "float32", "x"), decl_buffer((4,), "float32", "out")
    vector = e.BufferLoad(x, (e.Ramp(const(0), const(1), 3),))
    names = ("vector_reduce_add", "vector_reduce_mul", "vector_reduce_min", "vector_reduce_max")
    stores = [
        s.BufferStore(out, e.Call(FLOAT32, name, (const(2.0), vector)), (const(i),))
        for i, name in enumerate(names)
    ]
    found = np.zeros(4, np.float32)
    array = np.array([1e10, -1e10, 3], np.float32)
    interpret(function("f", x, out, body=s.seq(*stores)), array, found)
    assert found.tolist() == [3, np.float32(np.float32(2e10) * np.float32(-1e10)) * 3, -1e10, 1e10]
