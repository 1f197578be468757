"""te.hybrid.script: compiled, interpreted and run as Python, a function does the same."""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te, tir
from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError, KernelError
from minitvm.te import hybrid
from minitvm.te.hybrid import (
    allocate,
    bind,
    ceil_div,
    const_range,
    exp,
    float32,
    float64,
    int8,
    int32,
    likely,
    log,
    max_num_threads,
    output_tensor,
    parallel,
    popcount,
    power,
    serial,
    sigmoid,
    sqrt,
    tanh,
    uint8,
    unroll,
    vectorize,
)
from minitvm.te.hybrid import intrinsics as hybrid_intrinsics
from minitvm.tir.interpreter import interpret
from minitvm.tir.intrinsics import INTRINSICS, Intrinsic

Array = np.ndarray[Any, Any]
random = np.random.default_rng(7)


def floats(*shape: int, dtype: str = "float32") -> Array:
    return random.uniform(0.5, 4.0, shape).astype(dtype)


def integers(*shape: int, dtype: str = "int32") -> Array:
    return random.integers(0, 100, shape).astype(dtype)


def symbolic(value: Any, found: list[tuple[Any, Any]]) -> Any:
    """A tensor for an array, a variable for numpy's number; `found` collects both and the value."""
    if isinstance(value, (list, tuple)):
        return [symbolic(each, found) for each in value]
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    made: Any = te.var(f"v{len(found)}", str(value.dtype))
    if isinstance(value, np.ndarray):
        made = te.placeholder(value.shape, str(value.dtype), name=f"t{len(found)}")
    found.append((made, value))
    return made


def check(function: Any, *args: Any) -> tir.IRModule:
    """Runs a function in the three ways on the same arguments. Returns the lowered program."""
    found: list[tuple[Any, Any]] = []
    made = function(*[symbolic(each, found) for each in args])
    tensors = made if isinstance(made, tuple) else (made,)
    params, values = [each for each, _ in found], [each for _, each in found]
    expected = function(*args)
    arrays = expected if isinstance(expected, tuple) else (expected,)
    schedule = te.create_schedule(tensors[0].op)
    module = tvm.lower(schedule, [*params, *tensors], name="f")
    compiled = tvm.build(schedule, [*params, *tensors], name="f")
    for run in (compiled, lambda *all_args: interpret(module["f"], *all_args)):
        results = [np.full(each.shape, 77).astype(each.dtype) for each in arrays]
        run(*[v.item() if isinstance(v, np.generic) else v for v in values], *results)
        for result, array, tensor in zip(results, arrays, tensors, strict=True):
            assert str(array.dtype) == str(tensor.dtype)
            if array.dtype.kind == "f":
                np.testing.assert_allclose(result, array, rtol=1e-5, atol=1e-6)
            else:
                np.testing.assert_array_equal(result, array)
    return module


# -- Loops and conditions -------------------------------------------------------------------------


@hybrid.script
def outer_product(n: Any, m: Any, a: Any, b: Any) -> Any:
    """Functions may be documented."""
    c = output_tensor((n, m), a.dtype)
    for i in range(n):
        for j in range(m):
            assert i < n and j < m, "index out of range!"
            c[i, j] = a[i] * b[j]
    return c


def test_symbolic_sizes() -> None:
    n, m = te.size_var("n"), te.size_var("m")
    a, b = te.placeholder((n,), name="a"), te.placeholder((m,), name="b")
    c = outer_product(n, m, a, b)
    assert c.op.name == "outer_product" and isinstance(c.op, te.ExternOp)
    f = tvm.build(te.create_schedule(c.op), [a, b, c])
    for rows, columns in ((3, 5), (0, 4), (1, 1)):
        x, y, z = floats(rows), floats(columns), np.empty((rows, columns), "float32")
        f(x, y, z)
        np.testing.assert_array_equal(z, outer_product(rows, columns, x, y))


@hybrid.script
def loop_kinds(a: Any) -> Any:
    b, c = output_tensor((16,), "int32"), output_tensor((16,), "int32")
    d, e = output_tensor((16,), "int32"), output_tensor((16,), "int32")
    for i in parallel(16):
        b[i] = a[i]
    for j in vectorize(16):
        c[j] = a[j] + 1
    for k in unroll(16):
        d[k] = a[k] + 2
    for p in serial(16):
        e[p] = a[p] + 3
    return b, c, d, e


def test_kinds_of_loops() -> None:
    made = loop_kinds(te.placeholder((16,), "int32", name="a"))
    loops = made[0].op.body.seq
    kinds = tir.ForKind
    assert [each.kind for each in loops] == [
        kinds.PARALLEL, kinds.VECTORIZED, kinds.UNROLLED, kinds.SERIAL
    ]  # fmt: skip
    check(loop_kinds, integers(16))


@hybrid.script
def steps(a: Any) -> Any:
    b = output_tensor((20,), "int32")
    for i in range(2, 19, 3):
        b[i] = a[i] + i
    for i in range(19, 10, -4):
        b[i] = a[i] - i
    for i in range(5, 3):
        b[i] = 1
    return b


def test_steps_and_empty_ranges() -> None:
    check(steps, integers(20))


@hybrid.script
def triangle(a: Any, b: Any) -> Any:
    c = output_tensor((10, 10), dtype="float32")
    for i in range(10):
        for j in range(i, 10):
            c[i, j] = a[i] * b[j]
    return c


def test_what_is_not_written_is_zero() -> None:
    check(triangle, floats(10), floats(10))


@hybrid.script
def conditions(a: Any) -> Any:
    b = output_tensor((10,), a.dtype)
    c = output_tensor((10,), "int32")
    for i in range(10):
        if i % 2 == 0 and not (i > 4 or a[i] < 0):
            b[i] = a[i]
        elif 5 <= i < 8 != i:
            b[i] = a[i] + 1
        else:
            pass
        c[i] = -1 if i % 3 == 0 else +1
        if likely(i > 0 and a[i - 1] > 1.5) or i == 9:
            c[i] = ~c[i]
    return b, c


def test_conditions_are_lazy() -> None:
    check(conditions, floats(10))


@hybrid.script
def decided(a: Any, flag: Any, dtype: Any) -> Any:
    if flag and dtype in ("float32", "float64"):
        b = output_tensor((len(a),), dtype)
    else:
        b = output_tensor((len(a),), "int32")
    for i in range(len(a)):
        if dtype == "float32":
            b[i] = float32(a[i]) * 0.5
        else:
            b[i] = a[i] + (2 if flag is None else 3)
    if a.ndim == 1:
        return b
    return a


def test_conditions_that_are_known() -> None:
    module = check(decided, integers(6), True, "float32")
    assert "if" not in str(module)
    check(decided, integers(6), False, "int32")
    check(decided, integers(6), None, "int32")


@hybrid.script
def newton(a: Any) -> Any:
    b = output_tensor(a.shape, a.dtype)
    for i in range(a.shape[0]):
        x = a[i]
        while x * x > a[i] * 1.001:
            x = 0.5 * (x + a[i] / x)
        b[i] = x
    return b


@hybrid.script
def counting(a: Any) -> Any:
    b = output_tensor((6,), "int32")
    c = 0
    while c < 10:
        c = c + 1
    left = 5
    steps = 0
    while steps < 10 and left > 0:
        steps += 3
        left = left - 2
    for i in range(3):
        e = 0
        while e < 2 * i:
            e = e + 1
            while e % 2 != 0:
                e += 1
        b[i] = e
    going = True
    f = 0
    while going:
        f = f + 1
        going = f < 7
    late = 12
    while late < 10:
        late = late + 1
    b[3] = c + steps
    b[4] = f
    b[5] = late
    return b


def test_while() -> None:
    check(newton, floats(5) + 1)


def test_a_condition_that_holds_before_the_first_time() -> None:
    check(counting, floats(5))


# -- Variables ------------------------------------------------------------------------------------


@hybrid.script
def fanout(a: Any) -> Any:
    three = 3.0
    b = output_tensor((a.shape[0] - 3,), a.dtype)
    for i in range(a.shape[0] - 3):
        sigma = 0.0
        for j in range(3):
            sigma += a[i + j]
        sigma = sigma / three
        b[i] = sigma
    return b


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_number_adapts_to_what_is_added(dtype: str) -> None:
    module = check(fanout, floats(10, dtype=dtype))
    assert f"allocate({dtype}[1]" in str(module)


def test_half_precision_sums_in_half() -> None:
    a = te.placeholder((10,), "float16", name="a")
    b = fanout(a)
    assert b.dtype == "float16"
    assert "float16[1]" in str(tvm.lower(te.create_schedule(b.op), [a, b]))


@hybrid.script
def in_a_row(a: Any) -> Any:
    b = output_tensor((8,), "float32")
    for i in range(8):
        x = i * 2
        x = x // 2
        y = a[x]
        b[x] = y
        y = y * 2.0
        b[x] += y
        p, q = y, b[x]
        p, q = q, p
        b[i] += p - q
    return b


def test_names_bound_in_a_row_are_no_variables() -> None:
    module = check(in_a_row, floats(8))
    assert "allocate" not in str(module) and "assert" not in str(module)


@hybrid.script
def merged(a: Any) -> Any:
    b = output_tensor((9,), "float32")
    count = 0
    for i in range(9):
        if a[i] > 2.0:
            x = a[i]
            count += 1
        else:
            x = -a[i]
        b[i] = x + count
    return b


def test_both_branches_bind_a_name() -> None:
    check(merged, floats(9))


@hybrid.script
def swapped(a: Any) -> Any:
    b = output_tensor((2,), "float32")
    x, y = a[0], a[1]
    for _ in range(3):
        x, y = y, x
    b[0], b[1] = x, y
    return b


@hybrid.script
def kept_in_a_tuple(a: Any) -> Any:
    b = output_tensor((4,), a.dtype)
    for i in range(4):
        b[i] = a[i]
    pair = b[0], (b[1], b[2] + b[3])
    b[0], b[3] = b[3], b[0]
    for i in range(4):
        b[i] = b[i] * 2
    b[1] = pair[0] + pair[1][0] * 10
    b[2] = pair[1][1]
    return b


def test_a_tuple_keeps_its_values() -> None:
    check(kept_in_a_tuple, np.arange(4, dtype="int32") + 5)


def test_swap() -> None:
    check(swapped, floats(2))


@hybrid.script
def types(a: Any, b: Any, n: Any) -> Any:
    c = output_tensor((4,), "int8")
    d = output_tensor((4,), "float64")
    e = output_tensor((4,), "uint8")
    for i in range(4):
        c[i] = a[i] + 1
        d[i] = b[i] * 0.1 + float64(a[i]) + i + n
        e[i] = uint8(int8(int32(a[i]) * 100))
        if a[i] < 1000:
            c[i] += a[i]
    return c, d, e


def test_dtypes() -> None:
    check(types, integers(4, dtype="int8") // 2, floats(4, dtype="float64"), np.int32(7))


def test_the_variable_of_a_loop_is_as_wide_as_its_bounds() -> None:
    n = te.var("n", "int64")
    c = outer_product(n, 3, te.placeholder((n,), name="a"), te.placeholder((3,), name="b"))
    loop = c.op.body
    assert isinstance(loop, tir.For) and loop.loop_var.dtype == "int64"
    assert isinstance(loop.body, tir.For) and loop.body.loop_var.dtype == "int32"


@hybrid.script
def counted(a: Any, n: Any, dtype: Any = None) -> Any:
    b = output_tensor((4,), dtype or a.dtype)
    for i in range(4):
        if a[i] > 1.0 and (None or n):
            n += 2
        b[i] = n
    return b


def test_a_parameter_may_become_a_variable() -> None:
    check(counted, floats(4), np.int32(3))
    check(counted, floats(4), 3, "int32")
    check(counted, floats(4), 3, "float64")


# -- Memory ---------------------------------------------------------------------------------------


@hybrid.script
def blur(a: Any) -> Any:
    b = output_tensor((30, 30), "float32")
    for i in range(30):
        rows = allocate((3, 30), "float32", "local")
        for j in range(3):
            for k in range(30):
                rows[j, k] = a[i + j, k] + a[i + j, k + 1] + a[i + j, k + 2]
        for j in range(30):
            b[i, j] = (rows[0, j] + rows[1, j] + rows[2, j]) / 9.0
    return b


def test_allocate() -> None:
    module = check(blur, floats(32, 32))
    assert " = 0.0" not in str(module)  # each element is stored before it is read


@hybrid.script
def matmul(a: Any, b: Any) -> Any:
    c = output_tensor((a.shape[0], b.shape[1]), a.dtype)
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            c[i][j] = 0.0
            for k in range(len(b)):
                c[i][j] += a[i][k] * b[k, j]
    return c


@hybrid.script
def lazy_matmul(a: Any, b: Any) -> Any:
    c = output_tensor((a.shape[0], b.shape[1]), a.dtype)
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            for k in range(b.shape[0]):
                c[i, j] += a[i, k] * b[k, j]
    return c


def test_zeros_are_stored_where_they_can_be_seen() -> None:
    eager, lazy = (check(f, floats(3, 4), floats(4, 5)) for f in (matmul, lazy_matmul))
    assert str(eager).count("0.0") == 1 and str(lazy).count("0.0") == 1
    assert str(lazy) == str(eager).replace("matmul", "lazy_matmul")


@hybrid.script
def first_stores(a: Any) -> Any:
    b, c = output_tensor((4, 5), "float32"), output_tensor((4,), "float32")
    d, e = output_tensor((4,), "float32"), output_tensor((4,), "float32")
    tmp = allocate((4,), "float32")
    for i in range(4):
        for j in range(5):
            b[i, j] = a[i]
        for j in range(5):
            b[i, j] += b[i, 4 - j]  # the row is there
        if i > 2:
            c[i] = a[i]
        else:
            c[i] = a[0]
        d[3 - i] = a[i]  # all are stored, which isn't plain to see
        if i > 0:
            e[i] = e[i - 1] + tmp[i]
        tmp[i] = 1.0
    return b, c, d, e


def test_which_zeros_can_be_seen() -> None:
    module = str(check(first_stores, floats(4)))
    zeroed = re.findall(r"(\w+)\[z0.*\] = 0.0", module)
    assert zeroed == ["v3", "v2"] and "tmp[i] = 0.0" in module  # e, d and tmp


@hybrid.script
def rows_by_threads(starts: Any, a: Any) -> Any:
    sums, ends = output_tensor((4, 3), "float32"), output_tensor((4, 3), "float32")
    for i in parallel(4):
        for k in range(starts[i], starts[i + 1]):
            for j in range(3):
                sums[i, j] += a[k, j]
    for i in range(1, 4):
        for j in range(3):
            ends[i, j] += sums[i - 1, j]
    return sums, ends


def test_zeros_are_stored_where_their_row_is_touched() -> None:
    """In the loop over the rows, if each iteration touches its own row alone."""
    module = str(check(rows_by_threads, np.array([0, 2, 2, 3, 5], "int32"), floats(5, 3)))
    assert "v0[i, z0] = 0.0" in module
    assert re.search(r"v1\[z0\w*, z1\] = 0.0", module)  # the loop touches no first row


@hybrid.script
def reads_elsewhere(a: Any, kind: Any) -> Any:
    b = output_tensor((4, 4), a.dtype)
    c = output_tensor((4, 4), a.dtype)
    for i in range(4):
        for j in range(4):
            b[i, j] = a[i, j]
            if kind == 0:
                c[i, j] = b[i, 3 - j]
            elif kind == 1:
                c[i, j] = b[3 - i, j]
            elif kind == 2:
                c[i, j] = b[j, i]
            elif kind == 3:
                c[i, j] = b[j, j]
            else:
                c[i, j] = b[i, j]
    return b, c


@pytest.mark.parametrize("kind", range(5))
def test_what_is_read_before_it_is_stored_is_zero(kind: int) -> None:
    module = check(reads_elsewhere, np.arange(1, 17, dtype="int32").reshape(4, 4), kind)
    assert ("z0" in str(module)) == (kind != 4)


@hybrid.script
def writes_a_parameter(pair: Any) -> Any:
    b = output_tensor((1,), "float32")
    first, (second, number) = pair
    second[0] = number
    b[0] = first[0]
    return b


def test_parameters_are_not_written_in_tuples_either() -> None:
    a = np.arange(2, dtype="float32")
    with pytest.raises(ValueError, match="read-only"):
        writes_a_parameter((a, (a, 2)))
    assert a.tolist() == [0, 1]


@hybrid.script
def accumulate(a: Any, b: Any) -> Any:
    out = output_tensor((a.shape[0],), a.dtype)
    for i in range(a.shape[0]):
        tmp = allocate((b,), a.dtype)
        for j in range(b):
            tmp[j] += a[i] * j
        for j in range(b):
            out[i] += tmp[j]
    return out


def test_allocated_memory_begins_as_zeros_each_time() -> None:
    check(accumulate, floats(4), 3)


# -- Values known while the program is read -------------------------------------------------------


@hybrid.script
def sum_of_inputs(inputs: Any, weights: Any) -> Any:
    out = output_tensor((10,), inputs[0].dtype)
    for i in range(10):
        for j in const_range(len(inputs)):
            out[i] += inputs[j][i] * weights[j]
        for x in inputs:
            out[i] += x[i]
        for w, k in ((1, 2), (3, 4)):
            out[i] += w * k
    return out


def test_tuples_of_tensors() -> None:
    arrays = [floats(10), floats(10), floats(10)]
    check(sum_of_inputs, arrays, (1, 2, 0.5))
    a = te.placeholder((10,), name="a")
    made = sum_of_inputs([a, a], [1, 1])
    assert made.op.inputs == (a,)


constant_tuple = (10, 8)
constant_list = [[1, 2], [3, 8]]


@hybrid.script
def captured(a: Any) -> Any:
    c = output_tensor((constant_tuple[1],), "float32")
    for i in range(constant_tuple[-1]):
        c[i] = a[i] + constant_list[1][0] * math.pi
    return c


def test_values_from_outside() -> None:
    check(captured, floats(8))
    scale = np.float32(3)

    @hybrid.script
    def scaled(a: Any) -> Any:
        b = output_tensor(a.shape, a.dtype)
        for i in range(a.shape[0]):
            b[i] = a[i] * scale
        return b

    check(scaled, floats(3))


@hybrid.script
def defaults(a: Any, n: Any = 3, *, bias: Any = 1.5) -> Any:
    b = output_tensor((n,), a.dtype)
    for i in range(n):
        b[i] = a[i] + bias
    return b


def test_defaults_and_names() -> None:
    check(defaults, floats(5))
    check(lambda a: defaults(a, bias=2.0, n=4), floats(5))


# -- Functions ------------------------------------------------------------------------------------


@hybrid.script
def small_mathematics(k: Any) -> Any:
    c = output_tensor((4,), "int32")
    c[0] = popcount(k[0])
    c[1] = ceil_div(k[1], 7) << 1
    c[2] = k[2] % 3 + k[2] // 3 - (k[2] & 5) ^ 1
    c[3] = -k[3] | int32(2.5)
    return c


@hybrid.script
def float_mathematics(a: Any) -> Any:
    b = output_tensor((10,), "float32")
    b[0] = sqrt(a[0])
    b[1] = log(a[1])
    b[2] = exp(a[2])
    b[3] = sigmoid(a[3])
    b[4] = power(a[4], a[5])
    b[5] = tanh(a[5])
    b[6] = min(a[4], a[5])
    b[7] = max(a[5], a[6], 1)
    b[8] = abs(-a[7]) ** 2 + sqrt(2.0)
    b[9] = round(a[1] * 2) + max_num_threads(True)
    return b


def test_mathematics() -> None:
    check(float_mathematics, floats(8))
    check(small_mathematics, np.array([114514, 100, -17, 5], "int32"))


def applied(known: Intrinsic, dtype: DType) -> Any:
    """A hybrid function that applies an intrinsic to each element, and to that at the other end."""
    function, result = hybrid_intrinsics.INTRINSICS[known.name], str(known.result_of(dtype))

    @hybrid.script
    def of_one(a: Any) -> Any:
        b = output_tensor(a.shape, result)
        for i in range(a.shape[0]):
            b[i] = function(a[i])
        return b

    @hybrid.script
    def of_two(a: Any) -> Any:
        b = output_tensor(a.shape, result)
        for i in range(a.shape[0]):
            b[i] = function(a[i], a[a.shape[0] - 1 - i])
        return b

    @hybrid.script
    def of_an_exponent(a: Any) -> Any:
        b = output_tensor(a.shape, result)
        for i in range(a.shape[0]):
            b[i] = function(a[i], int32(i))
        return b

    if known.second is not None:
        return of_an_exponent
    return of_one if known.arity == 1 else of_two


@pytest.mark.parametrize("name", [n for n in INTRINSICS if n in hybrid_intrinsics.INTRINSICS])
def test_each_intrinsic(name: str) -> None:
    known = INTRINSICS[name]
    for values in (floats(6), np.array([5, -1, 0, 1000], "int32")):
        dtype = DType.of(values.dtype)
        if known.problem(dtype) is None:
            check(applied(known, dtype), values)
        else:
            with pytest.raises(CompileError, match=f"expected .*, got {dtype}"):
                applied(known, dtype)(values)


@hybrid.script
def clamp(x: Any, low: Any, high: Any) -> Any:
    return min(max(x, low), high)


@hybrid.script
def row_sum(a: Any, i: Any) -> Any:
    total = 0.0
    for j in range(a.shape[1]):
        total += a[i, j]
    return total


@hybrid.script
def shifted(a: Any) -> Any:
    b = output_tensor(a.shape, a.dtype)
    for i in range(a.shape[0]):
        b[i] = a[i] + 1.0
    return b


@hybrid.script
def with_helpers(a: Any) -> Any:
    n = a.shape[0]
    sums = allocate((n,), a.dtype)
    for i in range(n):
        sums[i] = clamp(row_sum(a, i), 1.0, high=9.0)
    moved = shifted(sums)
    first = clamp(moved[0], 0, 100)
    moved = shifted(moved)
    out = output_tensor((n,), a.dtype)
    for i in range(n):
        out[i] = moved[i] + first
    return out


def test_functions_that_call_others() -> None:
    check(with_helpers, floats(4, 3))


def test_a_stage_among_others() -> None:
    a = te.placeholder((4,), name="a")
    b = te.compute((4,), lambda i: a[i] * 2.0, name="b")
    c = shifted(b)
    d = te.compute((4,), lambda i: c[i] * 3.0, name="d")
    x, y = floats(4), np.empty(4, "float32")
    tvm.build(te.create_schedule(d.op), [a, d])(x, y)
    np.testing.assert_allclose(y, (x * 2 + 1) * 3)


def test_bind_runs_as_python_only() -> None:
    @hybrid.script
    def bound(a: Any) -> Any:
        b = output_tensor((4,), "float32")
        for i in bind("threadIdx.x", 4):
            b[i] = a[i]
        return b

    x = floats(4)
    np.testing.assert_array_equal(bound(x), x)
    text = r"bind\('threadIdx.x', 4\) makes threads of a GPU, and this is code for a CPU: use range"
    with pytest.raises(CompileError, match=text):
        bound(te.placeholder((4,), name="a"))


def test_assertions() -> None:
    @hybrid.script
    def checked(a: Any) -> Any:
        b = output_tensor((4,), "float32")
        for i in range(4):
            assert a[i] > 0.0, "expected positive numbers"
            assert a[i] < 9.0
            b[i] = sqrt(a[i])
        return b

    a = te.placeholder((4,), name="a")
    b = checked(a)
    f = tvm.build(te.create_schedule(b.op), [a, b])
    out = np.empty(4, "float32")
    f(np.ones(4, "float32"), out)
    with pytest.raises(KernelError, match="expected positive numbers"):
        f(-np.ones(4, "float32"), out)
    with pytest.raises(KernelError, match=r"expected a\[i\] < 9.0"):
        f(np.full(4, 10, "float32"), out)
    with pytest.raises(AssertionError, match="expected positive numbers"):
        checked(-np.ones(4, "float32"))


def test_intrinsics_need_no_import(tmp_path: Path) -> None:
    """As classic programs are written; and a module's own names come back as they were."""
    path = tmp_path / "classic.py"
    path.write_text(
        "from minitvm import te\n"
        "exp = 'mine'\n"
        "@te.hybrid.script\n"
        "def f(a):\n"
        "    b = output_tensor(a.shape, a.dtype)\n"
        "    for i in vectorize(a.shape[0]):\n"
        "        b[i] = exp(a[i])\n"
        "    return b\n"
    )
    spec = importlib.util.spec_from_file_location("classic", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    check(module.f, floats(3))
    assert module.exp == "mine" and not hasattr(module, "output_tensor")


def test_python_does_not_write_to_parameters_either() -> None:
    @hybrid.script
    def spoiled(a: Any) -> Any:
        b = output_tensor(a.shape, a.dtype)
        a[0] = 1.0
        return b

    with pytest.raises(ValueError, match="read-only"):
        spoiled(floats(2))
    with pytest.raises(CompileError, match="expected an array of the function's own to store to"):
        spoiled(te.placeholder((2,), name="a"))


# -- Random programs ------------------------------------------------------------------------------


def expression(depth: int) -> str:
    if depth == 0:
        return str(random.choice(["x", "y", "z", *map(str, range(10))]))
    a, b = expression(depth - 1), expression(depth - 1)
    forms = [
        f"({a} + {b})", f"({a} - {b})", f"({a} * {b})",
        f"({a} // ({b} % 7 + 1))", f"({a} % ({b} % 7 + 1))",
        f"a[{a} % 6]", f"b[{b} % 6]", f"min({a}, {b})", f"({a} if {b} > {a} else {b})",
        f"(1 if 2 < {a} <= {b} or not ({b} < 3 and {a} != 2) else {a})",
    ]  # fmt: skip
    return str(random.choice(forms))


def statements(depth: int, margin: str) -> list[str]:
    """A block; every value that is assigned stays far from where int32 wraps."""
    made = []
    for _ in range(random.integers(1, 4)):
        x, y = random.permutation(["x", "y", "z"])[:2]
        form = random.integers(0, 7 if depth else 4)
        inner = (statements(depth - 1, margin + "    ") for _ in range(2))
        if form == 0:
            made += [f"{margin}{x} = {expression(2)} % 100"]
        elif form == 1:
            made += [f"{margin}{x} += {expression(1)} % 50", f"{margin}{x} %= 97"]
        elif form == 2:
            made += [f"{margin}b[{expression(1)} % 6] = {expression(2)} % 100"]
        elif form == 3:
            made += [f"{margin}{x}, {y} = {y}, {expression(1)} % 100"]
        elif form == 4:
            made += [f"{margin}if {expression(1)} < {expression(1)}:", *next(inner)]
            made += [f"{margin}else:", *next(inner)]
        else:
            loop = random.choice(["range", "const_range", "unroll"])
            made += [f"{margin}for i{depth} in {loop}({random.integers(0, 4)}):"]
            made += [f"{margin}    x = (x + i{depth}) % 89", *next(inner)]
    return made


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int, tmp_path: Path) -> None:
    global random
    random = np.random.default_rng(seed)
    text = ["b = output_tensor((6,), 'int32')", "x = 3", "y = a[1]", "z = 7", *statements(3, "")]
    check(body("\n".join([*text, "b[0] += x + 2 * y - z", "return b"]), tmp_path), integers(6))


# -- Errors ---------------------------------------------------------------------------------------

captured_tensor = te.placeholder((3,), name="captured_tensor")
captured_array = np.zeros(3)


def undecorated(x: Any) -> Any:
    return x


def body(text: str, tmp_path: Path) -> Any:
    """A hybrid function of `text`, read from a file as every other."""
    path = tmp_path / "wrong.py"
    lines = ["from tests.te.test_hybrid import *", "import math", "def make():"]
    lines += ["    @hybrid.script", "    def f(a):"]
    lines += ["        " + line for line in text.splitlines()]
    path.write_text("\n".join([*lines, "    return f", ""]))
    spec = importlib.util.spec_from_file_location("wrong", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make()


LOOP = "b = output_tensor((4,), a.dtype)\nfor i in range(4):\n    {}\nreturn b"
ONCE = "b = output_tensor((4,), a.dtype)\n{}\nreturn b"

WRONG = [
    # what there is not
    (LOOP.format("break"), "found Break: put the statements that follow under an if"),
    (LOOP.format("continue"), "found Continue"),
    (LOOP.format("b[0:2] = a[0:2]"), "found Slice: loop over the indices"),
    (LOOP.format("b[i] = [x for x in a]"), "found ListComp: loop with `for`, into an array"),
    (LOOP.format("b[i] = (lambda x: x)(a[i])"), "found Lambda: define a function outside"),
    (ONCE.format("with open('x'): pass"), "found With"),
    (ONCE.format("x: float = 0.0"), "found AnnAssign"),
    (ONCE.format("raise ValueError"), "found Raise: use `assert"),
    (ONCE.format("b[0] = a @ a"), "expected an operator on numbers, found MatMult"),
    (ONCE.format("b[0] = a[0] if (x := 1) else 0"), "found NamedExpr"),
    (ONCE.format("assert a[0] > 0, f'{a}'"), "found JoinedStr: write a plain string"),
    (ONCE.format("assert a[0] > 0, 'in {}'"), "expected a string without {} as the message"),
    (ONCE.format("assert 1 > 2, 'no'"), "the assertion never holds: no"),
    (ONCE.format("for i in range(3):\n    pass\nelse:\n    pass"), "expected no else of a loop"),
    (
        ONCE.format("while True:\n    pass"),
        "expected a condition that can change, .* or is a `for` over a range",
    ),
    (ONCE.format("while a[0] > clamp(a[1], 0, 1):\n    pass"), "without calls of other hybrid"),
    (
        ONCE.format("for i in a:\n    pass"),
        "expected range, .* a tuple to loop over, got tensor",
    ),
    (
        ONCE.format("for i in vectorize(int32(a[0])):\n    pass"),
        "expected a constant number of iter",
    ),
    (ONCE.format("for i, j in range(3):\n    pass"), "expected one variable of the loop"),
    (ONCE.format("b[0]"), "expected a statement, found an expression: its value is lost"),
    (ONCE.format("b.T[0] = 1"), r"expected .shape, .dtype or .ndim of a tensor, found .T"),
    (ONCE.format("b[0] = 1j"), "expected a number or a string, got 1j"),
    # names
    (ONCE.format("b[0] = nothing"), "expected a known name, got nothing"),
    (ONCE.format("b[0] = x\nx = 1"), "expected x to have a value, found none assigned before"),
    (ONCE.format("for i in range(4):\n    b[i] = a[i]\nb[i] = 1"), "i ends with the loop that"),
    (ONCE.format("for i in const_range(4):\n    pass\nb[i] = 1"), "i ends with the loop at line"),
    (ONCE.format("for i in range(4):\n    x = a[i]\nb[0] = x"), "x ends with the loop that gives"),
    (ONCE.format("if a[0] > 1:\n    x = a[0]\nb[0] = x"), "x ends with the branch that gives"),
    (LOOP.format("i = 3"), "i is the variable of the loop at line 7: it can't be assigned to"),
    (LOOP.format("for i in range(2): pass"), "i has a value from line 7, around this loop"),
    (
        ONCE.format("s = 0.0\nfor i in parallel(4):\n    s += a[i]"),
        "s is from outside of a parallel or vectorized loop .line 7.",
    ),
    (
        ONCE.format("s = int32(0)\nfor i in range(4):\n    s = s + 0.5"),
        "expected a value of int32 for s, got one of float32: cast it",
    ),
    (ONCE.format("s = 0\nfor i in range(4):\n    s = 0.5"), "s begins as an integer at line 7"),
    (
        ONCE.format("s = a[0]\nfor i in range(4):\n    s = float64(a[i])"),
        "expected a value of float32 for s, got one of float64: cast it, as in float32",
    ),
    (ONCE.format("s = (1, 2)\nfor i in range(4):\n    s = 1"), "expected a number for s, which a"),
    (ONCE.format("b[0] = captured_tensor[0]"), "found captured_tensor captured: pass it as one"),
    (ONCE.format("b[0] = captured_array[0]"), "found captured_array captured"),
    (ONCE.format("b[0] = undecorated(a[0])"), "or one decorated with te.hybrid.script, got undec"),
    (ONCE.format("b[0] = math.sqrt(a[0])"), "got math.sqrt: write sqrt"),
    (
        ONCE.format("print(a[0])"),
        "expected a function of hybrid programs, got Python's print: write a loop, or one of abs",
    ),
    (ONCE.format("b[0] = float(a[0])"), "expected a cast that names its dtype, as int32"),
    # values
    (LOOP.format("b[i] = float64(a[i])"), "expected a value of float32 for b, got one of float64"),
    (LOOP.format("b[i] = int32(a[i]) / 2"), "`/` on integers .* is ambiguous: use floordiv"),
    (LOOP.format("b[i] = a"), "expected a number to store to b, got tensor a"),
    (LOOP.format("b[i] = a + 1"), "expected a number, got tensor a"),
    (LOOP.format("b[i] = exp(i)"), "exp: expected a floating-point argument, got int32"),
    (LOOP.format("b[i] = int8(a[i]) + 300"), "expected a value from -128 to 127, got 300"),
    (LOOP.format("b[i, 0] = 1"), "expected 1 indices of b, got 2"),
    (LOOP.format("b[-1] = 1"), "expected an index from 0 on, got -1: counting from the end"),
    (LOOP.format("b[0.5] = 1"), "expected an integer as an index, got 0.5"),
    (LOOP.format("b[a[i]] = 1"), "expected an integer expression, got .* of dtype float32"),
    (LOOP.format("b[i] = (1, 2)[i]"), "expected an index of a tuple that is known now, got i"),
    (LOOP.format("b[i] = (1, 2)[2]"), "expected an index of a tuple of 2 values, got 2"),
    (ONCE.format("x, y = a.shape"), "expected a tuple of 2 values, got"),
    (ONCE.format("for i in const_range(int32(a[0])):\n    pass"), "bounds of const_range that are"),
    (ONCE.format("for i in range(0, 4, 0):\n    pass"), "expected a known step other than 0"),
    (ONCE.format("for i in range(a[0]):\n    pass"), "expected an integer expression"),
    (ONCE.format("b[0] = clamp(a[0])"), "missing a required argument: 'low'"),
    (ONCE.format("b[0] = clamp(*a)"), "expected each argument by itself"),
    (ONCE.format("b[0] = exp(x=a[0])"), "expected arguments of exp by position, got x="),
    (ONCE.format("b[0] = f(a)"), "expected no recursion, found a call of f"),
    (ONCE.format("if b:\n    pass"), "expected a condition, got tensor b"),
    # memory and outputs
    (ONCE.format("c = output_tensor((2,), 'int32')"), "found c left out: return it, or make it"),
    (
        ONCE.format("c = allocate((-1,), 'int32')"),
        "c: shape.0.: expected no negative extent",
    ),
    (LOOP.format("c = output_tensor((2,), 'int32')"), "expected output tensor c outside of blocks"),
    (ONCE.format("c = allocate((int32(a[0]),))"), "expected a shape of sizes for c, got"),
    ("b = allocate((4,), 'float32')\nreturn b", "expected to return tensors made by output_tensor"),
    ("return a", "expected to return tensors made by output_tensor, got tensor a"),
    ("b = output_tensor((4,))\nreturn b, b", "expected to return each tensor once, got one twice"),
    ("b = output_tensor((4,))", "expected a return at its end, found none"),
    ("b = output_tensor((4,))\nreturn", "expected a value to return, found none"),
    (ONCE.format("if a[0] > 1:\n    return b"), "expected the return at the end of the function"),
]


@pytest.mark.parametrize(("text", "problem"), WRONG, ids=range(len(WRONG)))
def test_wrong_programs(text: str, problem: str, tmp_path: Path) -> None:
    f = body(text, tmp_path)
    with pytest.raises(CompileError, match=problem) as caught:
        f(te.placeholder((4,), name="a"))
    assert re.match(r"\S*wrong\.py:\d+:\d+: f: ", str(caught.value))


def test_a_message_shows_the_place(tmp_path: Path) -> None:
    f = body(LOOP.format("b[i] = a[i] + undecorated(a[i])"), tmp_path)
    with pytest.raises(CompileError) as caught:
        f(te.placeholder((4,), name="a"))
    where, line, marker = str(caught.value).splitlines()
    assert where.startswith(f"{tmp_path}/wrong.py:8:27: f: expected a function of hybrid programs")
    assert line == "    b[i] = a[i] + undecorated(a[i])"
    assert marker == "                  ^^^^^^^^^^^"


def test_no_source() -> None:
    names: dict[str, Any] = {"hybrid": hybrid}
    exec("@hybrid.script\ndef f(a):\n    return a\n", names)
    assert (names["f"](captured_array) == captured_array).all()
    with pytest.raises(
        CompileError, match=r"f: expected the source of a hybrid function, .* found"
    ):
        names["f"](captured_tensor)
    with pytest.raises(CompileError, match="expected a function defined by `def`, got"):
        hybrid.script(lambda a: a)


def test_wrong_arguments() -> None:
    with pytest.raises(CompileError, match=r"argument weights: expected a tensor, .* got dict"):
        sum_of_inputs([captured_tensor], {})
    with pytest.raises(CompileError, match=r"argument inputs: expected .* got ndarray"):
        sum_of_inputs([captured_tensor, captured_array], (1, 1))
    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        shifted()
