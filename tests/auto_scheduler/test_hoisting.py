"""Dear values that are the same in many iterations are computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.auto_scheduler import auto_schedule
from minitvm.auto_scheduler.write import schedule_program
from minitvm.te.tensor import Tensor

TARGET = "llvm -mcpu=haswell -num-cores=2"
M, N, K = 60, 70, 50
Program = tuple[list[Tensor], Tensor, Callable[..., Any]]


def _tensors(*shapes: tuple[Any, ...], dtype: str = "float32") -> list[Tensor]:
    return [te.placeholder(shape, dtype, name=f"X{i}") for i, shape in enumerate(shapes)]


def _product(m: Any = M, n: Any = N, k: Any = K) -> Program:
    x, y = _tensors((m, k), (k, n))
    r = te.reduce_axis((0, k), name="r")
    z = te.compute((m, n), lambda i, j: te.sum(te.exp(x[i, r]) * y[r, j], axis=r), name="Z")
    return [x, y], z, lambda x, y: np.exp(x) @ y


def _both_factors() -> Program:
    x, y = _tensors((M, K), (K, N))
    r = te.reduce_axis((0, K), name="r")
    z = te.compute((M, N), lambda i, j: te.sum(te.exp(x[i, r]) * te.sin(y[r, j]), axis=r), name="Z")
    return [x, y], z, lambda x, y: np.exp(x) @ np.sin(y)


def _rows() -> Program:
    x, w = _tensors((M, N), (N,))
    z = te.compute((M, N), lambda i, j: x[i, j] * te.exp(w[j]) + te.exp(w[j]), name="Z")
    return [x, w], z, lambda x, w: x * np.exp(w) + np.exp(w)


def _angles() -> Program:
    x, w = _tensors((8, M, N), (N,))
    z = te.compute(
        (8, M, N), lambda b, i, j: x[b, i, j] * te.cos(i.astype("float32") * w[j]), name="Z"
    )
    return [x, w], z, lambda x, w: x * np.cos(np.arange(M)[:, None] * w)


def _largest_distances() -> Program:
    x, y = _tensors((M, K), (N, K))
    r = te.reduce_axis((0, K), name="r")
    z = te.compute((M, N), lambda i, j: te.max(te.tanh(x[i, r]) - y[j, r], axis=r), name="Z")
    return [x, y], z, lambda x, y: (np.tanh(x)[:, None] - y[None]).max(-1)


def _triangle() -> Program:
    x, y = _tensors((M, M), (M, N))
    r = te.reduce_axis((0, M), name="r")
    z = te.compute(
        (M, N), lambda i, j: te.sum(te.exp(x[i, r]) * y[r, j], axis=r, where=r <= i), name="Z"
    )
    return [x, y], z, lambda x, y: np.tril(np.exp(x)) @ y


def _windows() -> Program:
    x, w = _tensors((M + 4,), (N, 5))
    r = te.reduce_axis((0, 5), name="r")
    z = te.compute((N, M), lambda f, i: te.sum(te.exp(x[i + r]) * w[f, r], axis=r), name="Z")
    return (
        [x, w],
        z,
        lambda x, w: w @ np.lib.stride_tricks.sliding_window_view(np.exp(x), 5).T,
    )


def _borders() -> Program:
    x, w = _tensors((M,), (N, 5))
    r = te.reduce_axis((0, 5), name="r")

    def element(f: Any, i: Any) -> Any:
        inside = te.all(i + r >= 2, i + r < M + 2)
        return te.sum(te.if_then_else(inside, te.exp(x[i + r - 2]), 0.0) * w[f, r], axis=r)

    z = te.compute((N, M), element, name="Z")
    return (
        [x, w],
        z,
        lambda x, w: w @ np.lib.stride_tricks.sliding_window_view(np.pad(np.exp(x), 2), 5).T,
    )


def _groups() -> Program:
    x, v = _tensors((8, M, 16), (8, 4))
    z = te.compute(
        (8, M, 16), lambda n, i, c: x[n, i, c] * te.rsqrt(te.abs(v[n, c // 4]) + 1.0), name="Z"
    )
    return [x, v], z, lambda x, v: x / np.sqrt(np.abs(np.repeat(v, 4, 1))[:, None] + 1)


def _few_operations_of_rows() -> Program:
    """Of a factor of a contraction: each tile of columns would compute them again."""
    x, w, y = _tensors((M, K), (K,), (K, N))
    r = te.reduce_axis((0, K), name="r")
    z = te.compute(
        (M, N), lambda i, j: te.sum(te.max(x[i, r] + w[r], 0.0) * y[r, j], axis=r), name="Z"
    )
    return [x, w, y], z, lambda x, w, y: np.maximum(x + w, 0) @ y


def _few_operations_of_both() -> Program:
    x, y, v = _tensors((M, K), (N, K), (N,))
    r = te.reduce_axis((0, K), name="r")
    z = te.compute(
        (M, N),
        lambda i, j: te.max((x[i, r] * x[i, r]) + y[j, r] * v[j], axis=r),
        name="Z",
    )
    return [x, y, v], z, lambda x, y, v: ((x * x)[:, None] + y * v[:, None]).max(-1)


PROGRAMS: dict[str, tuple[Callable[[], Program], int]] = {
    "product": (_product, 1),
    "both factors": (_both_factors, 2),
    "rows": (_rows, 1),
    "angles": (_angles, 1),
    "largest distances": (_largest_distances, 1),
    "triangle": (_triangle, 1),
    "windows": (_windows, 1),
    "borders": (_borders, 1),
    "groups": (_groups, 1),
    "few operations of rows": (_few_operations_of_rows, 1),
    "few operations of both": (_few_operations_of_both, 2),
}


def _parts(z: Tensor) -> int:
    return auto_schedule(z, TARGET).trace().split("s.specialize(")[0].count(".hoist(")


def _check(program: Program, *arrays: Any, fp: str = "fast") -> None:
    _compare(program, _built(program, fp), *arrays)


def _built(program: Program, fp: str = "fast") -> Any:
    inputs, z, _ = program
    return tvm.build(te.create_schedule(z.op), [*inputs, z], TARGET, fp=fp)


def _compare(program: Program, f: Any, *arrays: Any) -> None:
    _, z, known = program
    want = known(*(each.astype("float64") for each in arrays))
    found = np.full(want.shape, np.nan, z.dtype.to_numpy())
    f(*arrays, found)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("fp", ["fast", "strict"])
def test_parts_are_computed_once(name: str, fp: str) -> None:
    make, parts = PROGRAMS[name]
    inputs, z, known = make()
    assert _parts(z) == parts
    rng = np.random.default_rng(0)
    shapes = [tuple(map(int, each.shape)) for each in inputs]
    arrays = [rng.standard_normal(shape, dtype="float32") for shape in shapes]
    arrays[0].flat[7] = np.nan
    with np.errstate(invalid="ignore"):
        _check((inputs, z, known), *arrays, fp=fp)


def test_symbolic_sizes() -> None:
    program = _product(te.var("m"), te.var("n"), te.var("k"))
    assert _parts(program[1]) == 1
    f = _built(program)
    rng = np.random.default_rng(0)
    for m, n, k in ((60, 70, 50), (1, 1, 1), (0, 3, 4), (3, 0, 4), (3, 4, 0)):
        x, y = rng.random((m, k), dtype="float32"), rng.random((k, n), dtype="float32")
        _compare(program, f, x, y)


@pytest.mark.parametrize("rows", [1, 4, 60])
@pytest.mark.parametrize("across", [False, True])
def test_elements_that_are_unpacked(rows: int, across: bool) -> None:
    """Integers of 4 bits, two to a byte, with a scale for each group of steps: what a few rows use
    is unpacked where it is used, unless vectors of columns would read it element by element."""
    x, scale = _tensors((rows, 64), (4, 48) if across else (48, 4))
    packed = te.placeholder((32, 48) if across else (48, 32), "uint8", name="W")
    r = te.reduce_axis((0, 64), name="r")

    def weight(j: Any) -> Any:
        byte = packed[r // 2, j] if across else packed[j, r // 2]
        bits = (byte >> ((r % 2) * 4).astype("uint8")) & te.const(15, "uint8")
        return (bits.astype("float32") - 8.0) * (scale[r // 16, j] if across else scale[j, r // 16])

    z = te.compute((rows, 48), lambda i, j: te.sum(x[i, r] * weight(j), axis=r), name="Z")
    assert _parts(z) == (rows == 60 or (rows > 1 and not across))
    rng = np.random.default_rng(0)
    a = rng.integers(-3, 4, (rows, 64)).astype("float32")
    w = rng.integers(0, 256, tuple(map(int, packed.shape)), "uint8")
    s = rng.integers(1, 4, tuple(map(int, scale.shape))).astype("float32")
    found = np.empty((rows, 48), "float32")
    tvm.build([z], [x, packed, scale, z], TARGET)(a, w, s, found)
    w, s = (w, s) if across else (w.T, s.T)
    bits = np.stack([w & 15, w >> 4], axis=1).reshape(64, 48).astype("float32")
    np.testing.assert_array_equal(found, a @ ((bits - 8) * np.repeat(s, 16, axis=0)))


def test_integers_of_a_factor() -> None:
    x, y = _tensors((M, K), (K, N), dtype="int32")
    r = te.reduce_axis((0, K), name="r")
    z = te.compute((M, N), lambda i, j: te.sum((x[i, r] ^ 5) * (y[r, j] >> 2), axis=r), name="Z")
    assert _parts(z) == 2
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (M, K), "int32"), rng.integers(-99, 99, (K, N), "int32")
    found = np.empty((M, N), "int32")
    tvm.build([z], [x, y, z], TARGET)(a, b, found)
    np.testing.assert_array_equal(found, (a ^ 5) @ (b >> 2))


def _stays(name: str) -> Any:
    x, v, w = _tensors((M, N), (M,), (N,))
    r = te.reduce_axis((0, N), name="r")
    t = te.placeholder((N,), "int32", name="t")
    elements: dict[str, Callable[[Any, Any], Any]] = {
        "outer axes": lambda i, j: x[i, j] * te.rsqrt(v[i] + 1.0),
        "all axes": lambda i, j: te.exp(x[i, j] - v[i]),
        "few operations": lambda i, j: x[i, j] * (w[j] * 2.0 + 1.0),
        "a read that may not exist": lambda i, j: te.if_then_else(
            j > 0, x[i, j] * te.exp(w[j - 1] + w[j]), 0.0
        ),
        "a read at a place from data": lambda i, j: te.if_then_else(
            i > 0, x[i, j] * te.exp(w[t[j]] + w[j]), 0.0
        ),
        "integers": lambda i, j: t[j] // te.max(t[j], 1) * i,
    }
    if name == "sums of rows":
        return te.compute((M,), lambda i: te.sum(x[i, r] * te.exp(v[i]), axis=r), name="Z")
    if name == "small":
        return te.compute((5, 7), lambda i, j: x[i, j] * te.exp(w[j]), name="Z")
    return te.compute((M, N), elements[name], name="Z")


@pytest.mark.parametrize(
    "name",
    ["outer axes", "all axes", "few operations", "a read that may not exist",
     "a read at a place from data", "integers", "sums of rows", "small"],
)  # fmt: skip
def test_parts_that_stay(name: str) -> None:
    assert _parts(_stays(name)) == 0


def test_parts_of_parts() -> None:
    """A part may have parts itself."""
    x, w = _tensors((200, 40), (40,))
    y = te.placeholder((40, 30), name="Y")
    r = te.reduce_axis((0, 40), name="r")
    z = te.compute(
        (200, 30),
        lambda i, j: te.sum(te.tanh(x[i, r] * te.exp(w[r])) * y[r, j], axis=r),
        name="Z",
    )
    assert _parts(z) == 2
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, dtype="float32") for shape in ((200, 40), (40,), (40, 30))]
    _check(([x, w, y], z, lambda x, w, y: np.tanh(x * np.exp(w)) @ y), *arrays)


def test_weights_that_are_packed_ahead() -> None:
    x, y = _tensors((M, K), (K, N))
    r = te.reduce_axis((0, K), name="r")
    z = te.compute((M, N), lambda i, j: te.sum(x[i, r] * te.exp(y[r, j]), axis=r), name="Z")
    f = tvm.build([z], [x, y, z], TARGET, prepacked=[y])
    rng = np.random.default_rng(0)
    a, b = rng.random((M, K), dtype="float32"), rng.random((K, N), dtype="float32")
    found = np.empty((M, N), "float32")
    f(a, tvm.prepack(f, y.op.name, b), found)
    np.testing.assert_allclose(found, a @ np.exp(b), rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 2, 4, 33])
def test_elements_of_a_table(rows: int) -> None:
    """Weights are numbers of table entries, with a scale for each group of steps: what several rows
    use is looked up once, along the rows of the weights."""
    x, table = _tensors((rows, 64), (16,))
    w = te.placeholder((48, 32), "uint8", name="W")
    scale = te.placeholder((48, 4), name="S")
    r = te.reduce_axis((0, 64), name="r")

    def term(i: Any, j: Any) -> Any:
        bits = (w[j, r // 2] >> ((r % 2) * 4).astype("uint8")) & te.const(15, "uint8")
        return x[i, r] * table[bits.astype("int32")] * scale[j, r // 16]

    z = te.compute((rows, 48), lambda i, j: te.sum(term(i, j), axis=r), name="Z")
    trace = auto_schedule(z, TARGET).trace()
    assert ("Z_part = s.hoist(" in trace) == (rows > 2)
    assert ("s[Z].reassociate()" in trace) == (rows > 1)
    assert "Z_part].compute_inline()" not in trace
    rng = np.random.default_rng(0)
    a, t = (rng.integers(-3, 4, n).astype("float32") for n in ((rows, 64), 16))
    b = rng.integers(0, 256, (48, 32), "uint8")
    c = rng.integers(1, 4, (48, 4)).astype("float32")
    found = np.empty((rows, 48), "float32")
    tvm.build([z], [x, table, w, scale, z], TARGET)(a, t, b, c, found)
    weights = t[np.stack([b & 15, b >> 4], axis=2).reshape(48, 64)] * np.repeat(c, 16, axis=1)
    np.testing.assert_array_equal(found, a @ weights.T)


@pytest.mark.parametrize("is_guarded", [False, True])
def test_elements_that_data_choose_are_read_where_the_program_reads_them(is_guarded: bool) -> None:
    """A table with fewer entries than numbers: each is checked, but not where a guard fails."""
    x, table = _tensors((M, K), (100,))
    w = te.placeholder((N, K), "uint8", name="W")
    r = te.reduce_axis((0, K), name="r")

    def term(i: Any, j: Any) -> Any:
        value = x[i, r] * table[w[j, r].astype("int32")]
        return (
            te.if_then_else(w[j, r] < te.const(100, "uint8"), value, 0.0) if is_guarded else value
        )

    z = te.compute((M, N), lambda i, j: te.sum(term(i, j), axis=r), name="Z")
    assert _parts(z) == (not is_guarded)
    f = tvm.build([z], [x, table, w, z], TARGET)
    a, t = np.ones((M, K), "float32"), np.arange(100, dtype="float32")
    b, found = np.full((N, K), 99, "uint8"), np.empty((M, N), "float32")
    f(a, t, b, found)
    np.testing.assert_array_equal(found, np.full((M, N), 99.0 * K))
    b[3, 4] = 100
    if is_guarded:
        f(a, t, b, found)
        expected = np.full((M, N), 99.0 * K)
        expected[:, 3] -= 99
        np.testing.assert_array_equal(found, expected)
        return
    with pytest.raises(IndexError, match="must stay in"):
        f(a, t, b, found)


@pytest.mark.parametrize("form", ["rows", "steps", "steps of rows", "columns"])
def test_rows_that_data_choose_are_gathered_once(form: str) -> None:
    n = 70
    a, b = _tensors((n, n), (n, n))
    index, k = te.placeholder((n,), "int32", name="I"), te.reduce_axis((0, n), name="k")
    term: Any = {
        "rows": lambda i, j: a[index[i], k] * b[k, j],
        "steps": lambda i, j: a[i, k] * b[index[k], j],
        "steps of rows": lambda i, j: a[i, index[k]] * b[k, j],
        "columns": lambda i, j: a[i, k] * b[k, index[j]],
    }[form]
    c = te.compute((n, n), lambda i, j: te.sum(term(i, j), axis=k), name="C")
    assert _parts(c) == 1
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, n, n)).astype("float32")
    at, found = rng.integers(0, n, n).astype("int32"), np.empty((n, n), "float32")
    f = tvm.build(c, [a, b, index, c], TARGET)
    f(x, y, at, found)
    expected = {
        "rows": lambda: x[at] @ y,
        "steps": lambda: x @ y[at],
        "steps of rows": lambda: x[:, at] @ y,
        "columns": lambda: x @ y[:, at],
    }[form]()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    at[n // 2] = n
    with pytest.raises(IndexError, match="must stay in"):
        f(x, y, at, found)


def test_elements_that_data_choose_for_symbolic_sizes() -> None:
    """Data choose nothing where there are no results."""
    m, n, size = te.var("m"), te.var("n"), te.var("size")
    x, table = _tensors((m, K), (size,))
    w, r = te.placeholder((n, K), "uint8", name="W"), te.reduce_axis((0, K), name="r")

    def term(i: Any, j: Any) -> Any:
        return te.sum(x[i, r] * table[w[j, r].astype("int32")], axis=r)

    z = te.compute((m, n), term, name="Z")
    assert _parts(z) == 1
    f = tvm.build([z], [x, table, w, z], TARGET)
    rng = np.random.default_rng(0)
    t, numbers = np.arange(100, dtype="float32"), rng.integers(0, 100, (N, K)).astype("uint8")
    a, found = rng.integers(-9, 9, (M, K)).astype("float32"), np.full((M, N), 7, "float32")
    f(a, t, numbers, found)
    np.testing.assert_array_equal(found, a @ t[numbers].T)
    numbers[3, 4] = 100
    f(a[:0], t, numbers, found[:0])
    f(a, t, numbers[:3], found[:, :3].copy())
    with pytest.raises(IndexError, match="must stay in"):
        f(a, t, numbers, found)


@pytest.mark.parametrize("rows", [1, 5, None])
def test_elements_at_digits_of_symbolic_steps(rows: int | None) -> None:
    """The program itself needs an even number of steps: it reads all bytes."""
    m: Any = te.var("m") if rows is None else rows
    n, k = te.var("n"), te.var("k")
    x, scale = _tensors((m, k), (n, k // 32))
    w, r = te.placeholder((n, k // 2), "uint8", name="W"), te.reduce_axis((0, k), name="r")

    def term(i: Any, j: Any) -> Any:
        digit = w[j, r // 2] >> (r % 2 * 4).astype("uint8") & te.const(15, "uint8")
        return te.sum(x[i, r] * (digit.astype("float32") * scale[j, r // 32]), axis=r)

    z = te.compute((m, n), term, name="Z")
    assert _parts(z) == (rows != 1)
    f = tvm.build([z], [x, w, scale, z], TARGET)
    rng = np.random.default_rng(0)
    for count, steps in ((rows or 3, 64), (rows or 70, 256), (rows or 2, 0), (rows or 0, 96)):
        a = rng.integers(-9, 9, (count, steps)).astype("float32")
        b = rng.integers(0, 256, (N, steps // 2)).astype("uint8")
        c = rng.integers(-3, 3, (N, steps // 32)).astype("float32")
        digits = np.stack([b & 15, b >> 4], axis=2).reshape(N, steps)
        found = np.full((count, N), 7, "float32")
        f(a, b, c, found)
        np.testing.assert_array_equal(found, a @ (digits * np.repeat(c, 32, axis=1)).T)
    for steps in (63, 80):
        arrays = np.ones((N, steps // 2), "uint8"), np.ones((N, steps // 32), "float32")
        found = np.full((rows or 3, N), 7, "float32")
        with pytest.raises(ValueError, match=f"got k = {steps}"):
            f(np.ones((rows or 3, steps), "float32"), *arrays, found)
        assert (found == 7).all()


def test_factors_stay_in_order_where_floats_do() -> None:
    x, y, z = _tensors((M, K), (N, K), (N, K))
    r = te.reduce_axis((0, K), name="r")
    c = te.compute(
        (M, N), lambda i, j: te.sum(x[i, r] * te.exp(y[j, r]) * te.exp(z[j, r]), axis=r), name="C"
    )
    assert "s[C].reassociate()" in auto_schedule(c, TARGET).trace()
    strict = schedule_program(c, tvm.Target(TARGET), (), lambda s: s.trace(), strict=True)
    assert ".hoist(" in strict and "reassociate" not in strict


def test_hoisted_values_in_conditions_and_in_the_indices_they_protect() -> None:
    """Samples between the elements of each channel, zero beyond the ends: the place is computed
    once for all channels, and no element is checked."""
    channels, size, count = 5, 40, 70
    X, G = te.placeholder((channels, size), name="X"), te.placeholder((count,), name="G")

    def sample(c: Any, i: Any) -> Any:
        place = (G[i] + 1.0) * (size / 2) - 0.5
        first = te.floor(place).astype("int32")
        part = place - te.floor(place)

        def at(j: Any) -> Any:
            inside = te.max(te.min(j, size - 1), 0)
            return te.if_then_else(te.all(j >= 0, j < size), X[c, inside], 0.0)

        return (1.0 - part) * at(first) + part * at(first + 1)

    Y = te.compute((channels, count), sample, name="Y")
    s = te.create_schedule(Y.op)
    s[Y].simplify()
    for _ in range(4):
        s.hoist(Y, [Y.op.axis[1]])
    assert "assert" not in str(tvm.lower(s, [X, G, Y]))
    rng = np.random.default_rng(0)
    x = rng.random((channels, size), dtype="float32")
    g = rng.uniform(-1.2, 1.2, count).astype("float32")
    y = np.zeros((channels, count), "float32")
    tvm.build(s, [X, G, Y])(x, g, y)
    place = (g + np.float32(1)) * np.float32(size / 2) - np.float32(0.5)
    first = np.floor(place).astype(int)
    part = place - np.floor(place)
    padded = np.pad(x, ((0, 0), (size, size)))
    expected = (1 - part) * padded[:, first + size] + part * padded[:, first + 1 + size]
    np.testing.assert_allclose(y, expected, atol=1e-5)


# -- Rows that data choose --


def _warp(channels: int, is_clamped: bool, dtype: str = "uint8") -> Program:
    h, w = 23, 37
    x, m = te.placeholder((h, w, channels), dtype, name="X"), te.placeholder((2, 3), name="M")

    def place(row: int, i: Any, j: Any) -> Any:
        at = m[row, 0] * j.astype("float32") + m[row, 1] * i.astype("float32") + m[row, 2]
        return te.floor(at + 0.5).astype("int32")

    def element(i: Any, j: Any, c: Any) -> Any:
        q, r = place(0, i, j), place(1, i, j)
        if is_clamped:
            return x[te.max(te.min(r, h - 1), 0), te.max(te.min(q, w - 1), 0), c]
        is_inside = te.all(q >= 0, q < w, r >= 0, r < h)
        return te.if_then_else(is_inside, x[r, q, c], te.const(0, dtype))

    def of_numpy(x: Any, m: Any) -> Any:
        i, j = np.mgrid[:h, :w]
        q, r = (np.floor(m[n, 0] * j + m[n, 1] * i + m[n, 2] + 0.5).astype(int) for n in (0, 1))
        found = x[r.clip(0, h - 1), q.clip(0, w - 1)]
        is_inside = (q >= 0) & (q < w) & (r >= 0) & (r < h)
        return found if is_clamped else found * is_inside[..., None]

    z = te.compute((h, w, channels), element, name="Z")
    return [x, m], z, of_numpy


@pytest.mark.parametrize("is_clamped", [False, True], ids=["zeros", "clamped"])
@pytest.mark.parametrize("channels", [2, 3, 4, 16, 24])
def test_places_of_rows_that_data_choose(channels: int, is_clamped: bool) -> None:
    """The coordinates of a pixel are vectors of their own: a row of channels is one vector or
    less, so that its own loops compute them one by one."""
    args, z, of_numpy = _warp(channels, is_clamped)
    x = np.random.default_rng(0).integers(0, 256, (23, 37, channels)).astype("uint8")
    m = np.array([[1.0, 0.125, -2.25], [-0.125, 1.25, 3.5]], "float32")  # exact in float32
    found = np.empty_like(x)
    tvm.build([z], [*args, z])(x, m, found)
    np.testing.assert_array_equal(found, of_numpy(x, m))


@pytest.mark.parametrize("is_clamped", [False, True], ids=["zeros", "clamped"])
def test_places_are_hoisted_where_rows_are_short(is_clamped: bool) -> None:
    def count(channels: int) -> int:
        _, z, _ = _warp(channels, is_clamped)
        return auto_schedule(z, "llvm -mcpu=skylake-avx512").trace().count("s.hoist(")

    assert count(3) == 2
    assert count(64) == 0
