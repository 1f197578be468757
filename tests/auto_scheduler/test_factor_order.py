"""Products of several factors are summed over one group of axes after the other."""

from __future__ import annotations

import operator
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.auto_scheduler import auto_schedule
from minitvm.te.tensor import Tensor

TARGET = "llvm -mcpu=haswell -num-cores=2"


def einsum(spec: str, dtype: str, sizes: dict[str, Any]) -> list[Tensor]:
    """The operands, and the result, which is one sum."""
    operands, out = spec.split("->")
    inputs = [
        te.placeholder(tuple(sizes[c] for c in each), dtype, name=f"X{n}")
        for n, each in enumerate(operands.split(","))
    ]
    reduced = {c: te.reduce_axis((0, sizes[c]), name=c) for c in sorted({*spec} - {*out, *",->"})}

    def element(*indices: Any) -> Any:
        at = dict(zip(out, indices, strict=False)) | reduced
        value: Any = None
        for each, X in zip(operands.split(","), inputs, strict=True):
            factor = X[tuple(at[c] for c in each)]
            value = factor if value is None else value * factor
        return te.sum(value, axis=[*reduced.values()])

    return [*inputs, te.compute(tuple(sizes[c] for c in out), element, name="C")]


def numbers(dtype: str, shape: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(len(shape))
    if dtype.startswith("float"):
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(-100, 100, shape).astype(dtype)


def taken_out(tensor: Tensor) -> int:
    return auto_schedule(tensor, TARGET).trace().split("s.specialize(")[0].count("factor_out(")


STAGES = {  # stages of inner sums
    "i,ij,j->": 1,
    "bi,ij,bj->b": 1,
    "ik,kl,lj->ij": 1,
    "ik,kl,lm,mj->ij": 2,
    "ikl,kr,lr->ir": 1,
    "ik,kj,ij->ij": 1,
    "abc,ai,bj,ck->ijk": 2,
    "i,j->": 1,
    "i,ik,k,kj,j->": 2,
    "ik,kj->ij": 0,
    "ik,kj,k->ij": 0,
    "ir,jr,kr->ijk": 0,
}
EXTENTS = dict(zip("abcijklmr", (13, 7, 11, 37, 41, 35, 43, 19, 17), strict=True))


@pytest.mark.parametrize("spec", STAGES)
def test_factors_are_taken_out_of_sums(spec: str) -> None:
    assert taken_out(einsum(spec, "float32", EXTENTS)[-1]) == STAGES[spec]


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int8"])
@pytest.mark.parametrize("spec", STAGES)
def test_products_of_several_factors(spec: str, dtype: str) -> None:
    arguments = einsum(spec, dtype, EXTENTS)
    values = [numbers(dtype, tuple(map(int, each.shape))) for each in arguments]
    tvm.build([arguments[-1]], arguments)(*values)
    if dtype.startswith("int"):
        expected = np.einsum(spec, *(x.astype("int64") for x in values[:-1])).astype(dtype)
        np.testing.assert_array_equal(values[-1], expected)  # modulo 2^n
        return
    wide = [x.astype("float64") for x in values[:-1]]
    expected = np.einsum(spec, *wide, optimize=True)
    size = np.einsum(spec, *map(np.abs, wide), optimize=True)
    assert (abs(values[-1] - expected) <= 300 * np.finfo(dtype).eps * size).all()


CONDITIONS: dict[str, tuple[Any, bool]] = {
    # Each with whether all inner sums of floats have terms.
    "lower triangle": (lambda i, j, A: j <= i, True),
    "upper triangle": (lambda i, j, A: j > i, False),
    "of data": (lambda i, j, A: A[i, j] > 0, False),
    "some rows": (lambda i, j, A: i > 3, True),
    "some of both": (lambda i, j, A: te.all(i > 2, j < 5), True),
    "guards": (lambda i, j, A: te.all(i >= 1, A[te.max(i, 1) - 1, j] > -200), False),
}


@pytest.mark.covering(2)
@pytest.mark.parametrize("size", [31, None])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("kind", CONDITIONS)
def test_conditions(kind: str, dtype: str, size: int | None) -> None:
    n = size or te.var("n")
    holds, all_have_terms = CONDITIONS[kind]
    A, x = te.placeholder((n, n), dtype, name="A"), te.placeholder((n,), dtype, name="x")
    i, j = te.reduce_axis((0, n), name="i"), te.reduce_axis((0, n), name="j")
    C = te.compute(
        (1,),
        lambda _: te.sum(x[i] * A[i, j] * x[j], axis=[i, j], where=holds(i.var, j.var, A)),
        name="C",
    )
    if size:
        assert bool(taken_out(C)) == (all_have_terms or dtype == "int32")
    a, v = numbers(dtype, (31, 31)), numbers(dtype, (31,))
    at = [(p, q) for p in range(31) for q in range(31) if _holds(kind, p, q, a)]
    if dtype == "float32":
        v[0] = np.nan  # for some conditions, of excluded terms alone
    expected = sum(np.float64(v[p]) * np.float64(a[p, q]) * np.float64(v[q]) for p, q in at)
    got = np.empty(1, dtype)
    tvm.build([C], [A, x, C])(a, v, got)
    np.testing.assert_allclose(got[0], expected, rtol=1e-4)


def _holds(kind: str, i: int, j: int, a: Any) -> bool:
    return {
        "lower triangle": j <= i,
        "upper triangle": j > i,
        "of data": bool(a[i, j] > 0),
        "some rows": i > 3,
        "some of both": i > 2 and j < 5,
        "guards": i >= 1 and a[max(i, 1) - 1, j] > -200,
    }[kind]


@cache
def _of_any_extents() -> Any:
    sizes = {c: te.var(c) for c in "ijkl"}
    arguments = einsum("ik,kl,lj->ij", "float32", sizes)
    assert taken_out(arguments[-1]) == 1
    return tvm.build([arguments[-1]], arguments)


@pytest.mark.parametrize("short", [0, 1, 9])
def test_symbolic_extents(short: int) -> None:
    """A sum of no terms is 0, although NaN times 0 isn't."""
    f = _of_any_extents()
    a, b, c = (numbers("float32", t) for t in ((23, short), (short, 29), (29, 18)))
    c[3, 5] = np.nan
    got = np.ones((23, 18), "float32")
    f(a, b, c, got)
    expected = np.einsum("ik,kl,lj->ij", a, b, c) if short else np.zeros((23, 18))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_many_axes() -> None:
    """Chains of products: one stage less than there are reduction axes, up to ten of those."""
    chain = "abcdefghijklm"
    for count, stages in ((6, 5), (10, 9), (11, 0)):
        factors = [chain[i : i + 2] for i in range(count + 1)]
        arguments = einsum(
            f"{','.join(factors)}->a{chain[count + 1]}", "int32", dict.fromkeys(chain, 2)
        )
        assert taken_out(arguments[-1]) == stages
        values = [numbers("int32", (2, 2)) % 5 + i for i in range(count + 2)]
        tvm.build([arguments[-1]], arguments)(*values)
        expected = np.linalg.multi_dot([x.astype("int64") for x in values[:-1]]).astype("int32")
        np.testing.assert_array_equal(values[-1], expected)


def test_no_elements() -> None:
    for empty in "ijkl":
        arguments = einsum("ik,kl,lj->ij", "float32", dict.fromkeys("ijkl", 5) | {empty: 0})
        assert taken_out(arguments[-1]) == 0
        values = [np.full(tuple(map(int, x.shape)), np.nan, "float32") for x in arguments]
        tvm.build([arguments[-1]], arguments)(*values)
        assert (values[-1] == 0).all() or empty in "ij"


@cache
def _of_21() -> Any:
    arguments = einsum("ik,kl,lj->ij", "float32", dict.fromkeys("ijkl", 21))
    return tvm.build([arguments[-1]], arguments)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", range(3))
def test_special_numbers(which: int, special: float) -> None:
    """They reach the elements whose terms contain them, and no others."""
    values = [numbers("float32", (21, 21)) for _ in range(4)]
    values[which][2, 3] = special
    _of_21()(*values)
    with np.errstate(invalid="ignore"):
        expected = np.einsum("ik,kl,lj->ij", *values[:3])
    np.testing.assert_array_equal(np.isfinite(values[-1]), np.isfinite(expected))
    assert not np.isfinite(expected).all()
    at = np.isfinite(expected)
    np.testing.assert_allclose(values[-1][at], expected[at], rtol=1e-3, atol=1e-3)


@pytest.mark.covering(1)
@pytest.mark.parametrize(("dtype", "pays"), [("float32", True), ("int32", False)])
@pytest.mark.parametrize("reducer", ["min", "max"])
@pytest.mark.parametrize("later", [operator.add, operator.sub])
def test_the_shortest_ways_over_two_edges(later: Any, reducer: str, dtype: str, pays: bool) -> None:
    """Additions of integers may wrap: then the least sum isn't the sum of the least."""
    n = 33
    A, B, D = (te.placeholder((n, n), dtype, name=name) for name in "ABD")
    k, m = te.reduce_axis((0, n), name="k"), te.reduce_axis((0, n), name="m")
    C = te.compute(
        (n, n),
        lambda i, j: getattr(te, reducer)(later(A[i, k] + B[k, m], D[m, j]), axis=[k, m]),
        name="C",
    )
    assert bool(taken_out(C)) == pays
    a, b, d = (numbers(dtype, (n, n)) for _ in range(3))
    if pays:
        a[3, 4], b[5, 6] = np.inf, np.nan
    got = np.empty((n, n), dtype)
    tvm.build([C], [A, B, D, C])(a, b, d, got)
    fold = getattr(np, reducer)
    first = fold(a[:, :, None] + b[None], axis=1)
    expected = fold(later(first[:, :, None], d[None]), axis=1)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_divisors_are_taken_out_of_sums() -> None:
    """Of a product that divides, each factor moves by itself."""
    n = 65
    A, B = (te.placeholder((n, n), name=name) for name in "AB")
    u, v = (te.placeholder((n,), name=name) for name in "uv")
    k, m = te.reduce_axis((0, n), name="k"), te.reduce_axis((0, n), name="m")
    C = te.compute(
        (n, n), lambda i, j: te.sum(A[i, k] / (u[k] * v[m]) * B[m, j], axis=[k, m]), name="C"
    )
    assert taken_out(C) > 0
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(1, 2, (n, n)).astype("float32") for _ in range(2))
    x, y = (rng.uniform(1, 2, n).astype("float32") for _ in range(2))
    got = np.empty((n, n), "float32")
    tvm.build([C], [A, B, u, v, C])(a, b, x, y, got)
    expected = np.outer((a / x).astype("float64").sum(1), (b / y[:, None]).astype("float64").sum(0))
    np.testing.assert_allclose(got, expected, rtol=1e-5)


MASKS: dict[str, tuple[Any, Any]] = {
    # Each as a condition of the language and of numpy; it is the same for all terms of a result.
    "element": (lambda i, j, M, v: M[i, j] > 0, lambda M, v: M > 0),
    "row": (lambda i, j, M, v: v[i] > 0, lambda M, v: (v > 0)[:, None]),
    "column": (lambda i, j, M, v: v[j] > 0, lambda M, v: v > 0),
    "triangle": (lambda i, j, M, v: te.all(j <= i, v[i] > 0),
                 lambda M, v: (v > 0)[:, None] & np.tri(37, dtype=bool)),
    "guarded": (lambda i, j, M, v: te.all(i >= 1, v[te.max(i, 1) - 1] > 0),
                lambda M, v: np.append(False, v[:-1] > 0)[:, None]),
}  # fmt: skip


@pytest.mark.covering(2)
@pytest.mark.parametrize("form", ["choice", "where"])
@pytest.mark.parametrize("reducer", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int16"])
@pytest.mark.parametrize("mask", MASKS)
def test_conditions_of_results(mask: str, dtype: str, reducer: str, form: str) -> None:
    """They move out of the sums, also of short floats, and of any reducer. What they leave out may
    be NaN."""
    n = 37
    A, B, M = (te.placeholder((n, n), dtype, name=name) for name in "ABM")
    v, k = te.placeholder((n,), dtype, name="v"), te.reduce_axis((0, n), name="k")
    fold = te.comm_reducer(
        lambda a, b: {"sum": a + b, "max": te.max(a, b), "min": te.min(a, b)}[reducer],
        lambda t: te.const(0, t),
    )
    zero, holds = te.const(0, dtype), MASKS[mask][0]

    def element(i: Any, j: Any) -> Any:
        if form == "where":
            return fold(A[i, k] * B[k, j], axis=k, where=holds(i, j, M, v))
        return fold(te.if_then_else(holds(i, j, M, v), A[i, k] * B[k, j], zero), axis=k)

    C = te.compute((n, n), element, name="C")
    assert taken_out(C) == 1
    a, b, m, vector = (numbers(dtype, s) for s in ((n, n), (n, n), (n, n), (n,)))
    m[1], vector[5] = -1, -1
    if dtype != "int16":
        a[5, 3] = np.nan
    got = np.empty((n, n), dtype)
    tvm.build(C, [A, B, M, v, C])(a, b, m, vector, got)
    with np.errstate(invalid="ignore", over="ignore"):
        terms = a.astype("float64")[:, :, None] * b.astype("float64")
        if dtype == "int16":
            terms = terms.astype("int64").astype("int16").astype("int64")
        found = getattr(np, reducer)(terms, axis=1)
        found = {"sum": found, "max": np.maximum(found, 0), "min": np.minimum(found, 0)}[reducer]
        expected = np.where(MASKS[mask][1](m, vector), found, 0).astype(dtype)
    tolerance = 0 if dtype == "int16" else 100 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=4 * tolerance)


ASSOCIATIONS: dict[str, tuple[Any, str | None]] = {
    # Each with the product that a tile or another stage computes once.
    "vector": (lambda A, B, C, v, i, j, k: A[i, k] * B[k, j] * v[k], "A[i, k] * v[k]"),
    "divisor": (lambda A, B, C, v, i, j, k: A[i, k] * B[k, j] / v[k], "A[i, k] / v[k]"),
    "columns": (lambda A, B, C, v, i, j, k: A[i, k] * B[k, j] * C[k, j], "B[k, j] * C[k, j]"),
    "rows": (lambda A, B, C, v, i, j, k: C[i, k] * (B[k, j] * A[i, k]), "C[i, k] * A[i, k]"),
    "quotient": (lambda A, B, C, v, i, j, k: A[i, k] / (C[k, j] / B[k, j]), None),
    "in order": (lambda A, B, C, v, i, j, k: A[i, k] * v[k] * B[k, j], None),
    "two": (lambda A, B, C, v, i, j, k: A[i, k] * B[k, j], None),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", ASSOCIATIONS)
def test_factors_of_the_same_axes_are_multiplied_first(form: str, dtype: str) -> None:
    n = 41
    A, B, C = (te.placeholder((n, n), dtype, name=name) for name in "ABC")
    v, k = te.placeholder((n,), dtype, name="v"), te.reduce_axis((0, n), name="k")
    term, product = ASSOCIATIONS[form]
    D = te.compute((n, n), lambda i, j: te.sum(term(A, B, C, v, i, j, k), axis=k), name="D")
    s = te.create_schedule(D.op)
    if product is None:
        with pytest.raises(
            tvm.CompileError, match="reassociate of D: expected a contraction in which"
        ):
            s[D].reassociate()
    else:
        made: Any = s[D].reassociate().op
        assert product in str(made.body[0].source[0])
    assert ("reassociate()" in auto_schedule(D, TARGET).trace()) == (product is not None)
    a, b, c, d = (numbers(dtype, (n, n)) + 3 for _ in range(4))
    vector = numbers(dtype, (n,)) + 3
    wide = [x.astype("float64") for x in (a, b, c, vector)]
    x, y, z, w = wide[0][:, :, None], wide[1][None], wide[2], wide[3][:, None]
    expected = {
        "vector": x * y * w,
        "divisor": x * y / w,
        "columns": x * y * z[None],
        "rows": x * y * z[:, :, None],
        "quotient": x / (z[None] / y),
        "in order": x * y * w,
        "two": x * y,
    }[form]
    for build in (tvm.build, partial(tvm.build, fp="strict")):
        build(D, [A, B, C, v, D])(a, b, c, vector, d)
        size = abs(expected).sum(axis=1)
        assert (abs(d - expected.sum(axis=1)) <= 60 * np.finfo(dtype).eps * size).all()


def test_terms_of_the_same_axes_are_added_first() -> None:
    """The factors of shortest paths are terms, and an infinity of one stays one."""
    n = 33
    A, B, C = (te.placeholder((n, n), name=name) for name in "ABC")
    k = te.reduce_axis((0, n), name="k")
    D = te.compute((n, n), lambda i, j: te.min(A[i, k] + B[k, j] - C[k, j], axis=k), name="D")
    assert "s[D].reassociate()" in auto_schedule(D, TARGET).trace()
    a, b, c = (numbers("float32", (n, n)) for _ in range(3))
    a[3, 4], d = np.inf, np.empty((n, n), "float32")
    tvm.build(D, [A, B, C, D])(a, b, c, d)
    expected = (a[:, :, None] + (b - c)[None]).min(axis=1)
    np.testing.assert_allclose(d, expected, rtol=1e-5, atol=1e-5)


def test_constants_move_out_of_sums() -> None:
    A, B, k = te.placeholder((9, 8)), te.placeholder((8, 7)), te.reduce_axis((0, 8), name="k")
    for factor in (lambda x: x * 0.5, lambda x: x / 3.0, lambda x: 2.0 * x):
        C = te.compute((9, 7), lambda i, j, f=factor: te.sum(f(A[i, k] * B[k, j]), k), name="C")
        assert taken_out(C) == 1


def test_what_is_left_as_it_is() -> None:
    """Short floats, whose inner sums would be rounded; the order of ``fp="strict"``; sums by hand;
    products that begin elsewhere than at 0."""
    assert taken_out(einsum("ik,kl,lj->ij", "float16", EXTENTS)[-1]) == 0
    *inputs, C = einsum("i,ij,j->", "float32", dict.fromkeys("ij", 64))
    values = [numbers("float32", tuple(map(int, x.shape))) for x in (*inputs, C)]
    tvm.build([C], [*inputs, C], fp="strict")(*values)
    expected = np.float32(0)
    x, a, y, _ = values
    for i in range(64):
        for j in range(64):
            expected += x[i] * a[i, j] * y[j]
    assert values[-1] == expected
    s = te.create_schedule(C.op)
    s[C].split(s[C].leaf_iter_vars[0], 8)
    assert "factor_out" not in auto_schedule(s, TARGET).trace()
    A, k = te.placeholder((8, 8), name="A"), te.reduce_axis((0, 8), name="k")
    one = te.comm_reducer(lambda a, b: a + b, lambda t: te.const(1, t), name="one_more")
    D = te.compute((8, 8), lambda i, j: one(A[i, k] * A[k, j] * A[i, j], axis=k), name="D")
    assert taken_out(D) == 0


def test_the_result_is_read_and_its_schedule_replayed() -> None:
    *inputs, C = einsum("ik,kl,lj->ij", "float32", EXTENTS)
    D = te.compute(C.shape, lambda i, j: C[i, j] * 2.0 + 1.0, name="D")
    s = auto_schedule(D, TARGET)
    assert "s.factor_out(C, [k])" in s.trace()
    values = [numbers("float32", tuple(map(int, x.shape))) for x in (*inputs, C, D)]
    for schedule in (s, te.replay(s.trace(), [D.op])):
        tvm.build(schedule, [*inputs, D])(*values[:3], values[4])
        expected = np.einsum("ik,kl,lj->ij", *(x.astype("float64") for x in values[:3]))
        np.testing.assert_allclose(values[4], expected * 2 + 1, rtol=1e-3, atol=1e-3)
    tvm.build([C, D], [*inputs, C, D])(*values)  # C is an argument, too
    np.testing.assert_allclose(values[4], values[3] * 2 + 1, rtol=1e-6)
    assert "sums over k are done first" in str(tvm.explain(tvm.build(D, [*inputs, D])))


# -- Windows, one axis after the other --

SHAPE = (21, 30)


def window(combine: Any, size: tuple[int, int], term: Any, dtype: str = "float32") -> list[Tensor]:
    """An image, weights, and a reduction of a window at each place of the image where it fits."""
    X = te.placeholder(SHAPE, dtype, name="X")
    W = te.placeholder((max(size),), dtype, name="W")
    r, q = (te.reduce_axis((0, n), name=name) for n, name in zip(size, "rq", strict=True))
    shape = tuple(n - m + 1 for n, m in zip(SHAPE, size, strict=True))
    Y = te.compute(shape, lambda i, j: combine(term(X, W, i, j, r, q), axis=[r, q]), name="Y")
    return [X, W, Y]


def windows(x: Any, size: tuple[int, int]) -> Any:
    return np.lib.stride_tricks.sliding_window_view(x, size)


def plain(X: Any, W: Any, i: Any, j: Any, r: Any, q: Any) -> Any:
    return X[i + r, j + q]


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float32", (5, 5)), ("float64", (7, 4)), ("int32", (4, 9)), ("uint8", (5, 5))],
)
@pytest.mark.parametrize(
    ("combine", "term", "meaning"),
    [
        (te.sum, plain, lambda v, w: v.sum((2, 3))),
        (te.max, plain, lambda v, w: v.max((2, 3))),
        (te.min, plain, lambda v, w: v.min((2, 3))),
        (
            te.sum,
            lambda X, W, i, j, r, q: X[i + r, j + q] * W[r] * W[q],
            lambda v, w: (v * w[: v.shape[2], None] * w[: v.shape[3]]).sum((2, 3)),
        ),
        (
            te.sum,
            lambda X, W, i, j, r, q: X[i + r, j + q] * W[q],
            lambda v, w: (v * w[: v.shape[3]]).sum((2, 3)),
        ),
    ],
)
def test_a_window_is_reduced_along_one_axis_after_the_other(
    combine: Any, term: Any, meaning: Any, size: tuple[int, int], dtype: str
) -> None:
    X, W, Y = window(combine, size, term, dtype)
    assert taken_out(Y) == 1
    x, w = numbers(dtype, SHAPE), numbers(dtype, (max(size),))
    y = np.empty([int(n) for n in Y.shape], dtype)
    tvm.build([Y], [X, W, Y])(x, w, y)
    wide = "float64" if dtype.startswith("float") else dtype
    expected = meaning(windows(x.astype(wide), size), w.astype(wide)).astype(dtype)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("combine", "size", "term", "dtype"),
    [
        (te.sum, (3, 3), plain, "float32"),  # few terms are read as fast as inner sums
        (te.sum, (5, 5), plain, "float16"),  # inner sums would be rounded
        (te.max, (5, 5), lambda X, W, i, j, r, q: X[i + r, j + q] * W[q], "float32"),
        (te.sum, (5, 5), lambda X, W, i, j, r, q: abs(X[i + r, j + q] - X[i, j]), "float32"),
        (te.sum, (4, 4), lambda X, W, i, j, r, q: te.exp(X[i + r, j + q] * (r + q)), "float32"),
    ],
)
def test_windows_that_stay_one_sum(
    combine: Any, size: tuple[int, int], term: Any, dtype: str
) -> None:
    *_, Y = window(combine, size, term, dtype)
    assert "factor_out(Y, [r])" not in auto_schedule(Y, TARGET).trace()


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("dtype", "combine", "meaning", "size"),
    [
        ("float32", te.sum, np.sum, 64),
        ("float64", te.sum, np.sum, 12),
        ("int32", te.sum, np.sum, 20),
        ("uint8", te.max, np.max, 25),
        ("float32", te.min, np.min, 100),
    ],
)
def test_long_windows_are_reduced_in_parts(
    dtype: str, combine: Any, meaning: Any, size: int, axis: int
) -> None:
    shape = (3, 150) if axis else (150, 7)
    X, k = te.placeholder(shape, dtype, name="X"), te.reduce_axis((0, size), name="k")
    results = [n - (size - 1) * (d == axis) for d, n in enumerate(shape)]

    def value(i: Any, j: Any) -> Any:
        return combine(X[i, j + k] if axis else X[i + k, j], axis=k)

    Y = te.compute(results, value, name="Y")
    assert taken_out(Y) >= 1
    x, y = numbers(dtype, shape), np.empty(results, dtype)
    tvm.build([Y], [X, Y])(x, y)
    wide = x.astype("float64") if dtype.startswith("float") else x
    expected = meaning(np.lib.stride_tricks.sliding_window_view(wide, size, axis), axis=-1)
    np.testing.assert_allclose(y, expected.astype(dtype), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("size", "stride", "fp"),
    [(7, 1, "fast"), (31, 1, "fast"), (6, 1, "fast"), (16, 16, "fast"), (16, 1, "strict")],
)
def test_windows_without_parts(size: int, stride: int, fp: str) -> None:
    """Few steps, prime numbers of them, windows that share nothing, and sums in order."""
    n = (200 - size) // stride + 1
    X, k = te.placeholder((200,), name="X"), te.reduce_axis((0, size), name="k")
    Y = te.compute((n,), lambda i: te.sum(X[i * stride + k], axis=k), name="Y")
    assert fp == "strict" or taken_out(Y) == 0
    x, y = numbers("float32", (200,)), np.empty(n, "float32")
    tvm.build([Y], [X, Y], fp=fp)(x, y)
    expected = np.zeros(n, "float32" if fp == "strict" else "float64")
    for step in range(size):
        expected += x[step : step + (n - 1) * stride + 1 : stride]
    np.testing.assert_allclose(y, expected, rtol=0 if fp == "strict" else 1e-4, atol=1e-4)
    if fp == "strict":
        np.testing.assert_array_equal(y, expected)


def test_windows_of_three_axes_with_padding_and_symbolic_extents() -> None:
    n = te.var("n")
    X = te.placeholder((6, n, 17), name="X")
    axes = [te.reduce_axis((0, 5), name=name) for name in "zrq"]
    extents = (6, n, 17)

    def value(*at: Any) -> Any:
        place = [i + k - 2 for i, k in zip(at, axes, strict=True)]
        inside = [te.all(p >= 0, p < e) for p, e in zip(place, extents, strict=True)]
        return te.sum(te.if_then_else(te.all(*inside), X[tuple(place)], 0.0), axis=axes)

    Y = te.compute(extents, value, name="Y")
    s = auto_schedule(Y, TARGET)
    assert s.trace().split("s.specialize(")[0].count("factor_out(") == 2
    f = tvm.build([Y], [X, Y])
    for size in (1, 4, 33):
        x = np.random.default_rng(0).standard_normal((6, size, 17)).astype("float32")
        y = np.empty_like(x)
        f(x, y)
        padded = np.pad(x.astype("d"), 2)
        expected = np.lib.stride_tricks.sliding_window_view(padded, (5, 5, 5)).sum((3, 4, 5))
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


def test_infinite_and_missing_numbers_in_windows() -> None:
    X, W, Y = window(te.max, (5, 5), plain)
    x = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
    x[3, 4], x[10, 20] = np.inf, -np.inf
    y = np.empty([int(n) for n in Y.shape], "float32")
    tvm.build([Y], [X, W, Y])(x, np.zeros(5, "float32"), y)
    np.testing.assert_array_equal(y, windows(x, (5, 5)).max((2, 3)))


@pytest.mark.parametrize(
    ("shape", "length", "is_factored"),
    [
        ((1 << 14,), 16, True),
        ((1 << 22,), 16, False),  # the inner sums would come from beyond the L2 cache
        ((1 << 22,), 64, True),
        ((64, 1 << 16), 16, True),  # row by row
    ],
)
def test_inner_sums_of_windows_that_dont_fit_the_cache(
    shape: tuple[int, ...], length: int, is_factored: bool
) -> None:
    X, k = te.placeholder(shape, name="X"), te.reduce_axis((0, length), name="k")
    result = (*shape[:-1], shape[-1] - length + 1)
    Y = te.compute(result, lambda *at: te.sum(X(*at[:-1], at[-1] + k), axis=k), name="Y")
    target = "llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids"
    assert ("s.factor_out(" in tvm.auto_schedule(Y, target).trace()) == is_factored


def test_strict_sums_of_windows_stay_in_order() -> None:
    X, W, Y = window(te.sum, (7, 7), plain)
    x = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
    y = np.empty([int(n) for n in Y.shape], "float32")
    tvm.build([Y], [X, W, Y], fp="strict")(x, np.zeros(7, "float32"), y)
    expected = np.zeros_like(y)
    for v in windows(x, (7, 7)).reshape(*y.shape, -1).transpose(2, 0, 1):
        expected = expected + v
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_mean_divides_the_sum(axis: int) -> None:
    X = te.placeholder((96, 130), name="X")
    k = te.reduce_axis((0, X.shape[axis]), name="k")
    n = X.shape[1 - axis]
    M = te.compute(
        (n,), lambda i: te.sum((X[i, k] if axis else X[k, i]) / X.shape[axis], axis=k), name="M"
    )
    assert taken_out(M) == 1
    x = numbers("float32", (96, 130))
    found = np.empty(int(n), "float32")
    tvm.build(M, [X, M])(x, found)
    np.testing.assert_allclose(found, x.astype("float64").mean(axis), rtol=1e-5, atol=1e-6)


def test_divisions_that_stay_in_the_sum() -> None:
    """Of different numbers, and of few terms."""
    X, d = te.placeholder((96, 130), name="X"), te.placeholder((130,), name="d")
    Y = te.placeholder((4, 5), name="Y")

    def rows(x: Tensor, by: Any) -> Tensor:
        k = te.reduce_axis((0, x.shape[1]), name="k")
        made: Tensor = te.compute(
            (x.shape[0],), lambda i: te.sum(x[i, k] / by(k), axis=k), name="M"
        )
        return made

    assert taken_out(rows(X, lambda k: d[k])) == 0
    assert taken_out(rows(Y, lambda k: 5.0)) == 0
