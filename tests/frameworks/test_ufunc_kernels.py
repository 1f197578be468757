"""The kernels that the loop of a ufunc chooses: for extents, for shared operands, for chains."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.ufuncs import programs
from tests.frameworks.programs import parts

RNG = np.random.default_rng(5)


def dot_of(x: Any, y: Any) -> Any:
    k = te.reduce_axis((0, x.shape[0]))
    return te.compute((), lambda: te.sum(x[k] * y[k], axis=k))


@pytest.fixture(scope="module")
def product() -> Any:
    @tvm.gufunc("(m,k),(k,n)->(m,n)", types=["float64"])
    def product(a: Any, b: Any) -> Any:
        k = te.reduce_axis((0, a.shape[1]))
        shape = (a.shape[0], b.shape[1])
        return te.compute(shape, lambda i, j: te.sum(a[i, k] * b[k, j], axis=k))

    return product


@pytest.fixture(scope="module")
def decayed() -> Any:
    @tvm.ufunc(types=["float64"], identity=0)
    def decayed(x: Any, y: Any) -> Any:
        """Neither commutative nor associative."""
        return x * 0.5 + y

    return decayed


@pytest.fixture(scope="module")
def added() -> Any:
    @tvm.ufunc(types=["int32", ("int64", "int32"), "float32"])
    def added(x: Any, y: Any) -> Any:
        return x + y

    return added


def in_order(values: np.ndarray[Any, Any]) -> list[float]:
    """The results of `decayed` along the first axis, one after the other."""
    made = [values[0]]
    for each in values[1:]:
        made.append(made[-1] * 0.5 + each)
    return made


class Built:
    """Counts what the programs of ufuncs build."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        build = vars(programs)["build"]

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return build(*args, **kwargs)

        monkeypatch.setattr(programs, "build", counted)


# -- core dimensions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b"),
    [((30, 4, 4), (30, 4, 4)), ((30, 4, 4), (4, 4)), ((4, 4), (30, 4, 4)), ((40, 1, 9), (9, 1)),
     ((2, 20, 1, 3), (20, 3, 5)), ((4, 70, 3), (4, 3, 2)), ((4, 71, 3), (3, 2)),
     ((30, 0, 4), (4, 4)), ((30, 4, 0), (0, 4))],
)  # fmt: skip
def test_products(product: Any, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = RNG.random(a), RNG.random(b)
    expected = np.matmul(x, y)
    np.testing.assert_allclose(product(x, y), expected, rtol=1e-12)
    turned = np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    np.testing.assert_allclose(product(turned, y[..., ::-1]), expected[..., ::-1], rtol=1e-12)
    apart = np.repeat(x, 2, 0)[::2]
    out = np.empty((*expected.shape, 2))[..., 0]
    np.testing.assert_allclose(product(apart, y, out=out), expected, rtol=1e-12)


def test_each_size_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built = Built(monkeypatch)
    dot = tvm.gufunc("(n),(n)->()", types=["float64"])(dot_of)
    assert built.count == 1
    x = RNG.random((200, 300))

    def call(n: int, shared: bool = False) -> int:
        y = x[7, :n] if shared else x[:, :n]
        np.testing.assert_allclose(dot(x[:, :n], y), (x[:, :n] * y).sum(1), rtol=1e-12)
        return built.count

    assert [call(3), call(3), call(4), call(3), call(3, True), call(3, True)] == [2, 2, 3, 3, 4, 4]
    # Of large extents the first is a constant; the others share the program for all.
    assert [call(100), call(150), call(299), call(100)] == [5] * 4
    # Few elements are left to it, too.
    dot(x[:2, :5], x[:2, :5])
    assert built.count == 5
    for n in range(5, 64):
        call(n)
    assert built.count == 1 + 16
    call(3)
    call(40)


def test_a_function_without_a_program_for_a_size() -> None:
    @tvm.gufunc("(n)->(n)", types=["float64"])
    def fussy(x: Any) -> Any:
        if str(x.shape[0]).isdigit():
            raise ValueError("not for numbers")
        return te.compute(x.shape, lambda i: x[i] + 1.0)

    x = RNG.random((100, 5))
    for _ in range(2):
        np.testing.assert_allclose(fussy(x), x + 1)


def test_several_threads() -> None:
    dot = tvm.gufunc("(n),(n)->()", types=["float64"])(dot_of)
    x = RNG.random((300, 9))
    found: list[Any] = []

    def run() -> None:
        for n in (5, 9):
            found.append(np.allclose(dot(x[:, :n], x[:, :n]), (x[:, :n] ** 2).sum(1)))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [True] * 6


def test_no_warnings_of_lanes_that_nobody_reads() -> None:
    @tvm.gufunc("(n)->(n)", types=["float32"])
    def shares(x: Any) -> Any:
        k = te.reduce_axis((0, x.shape[0]))
        total = te.compute((), lambda: te.sum(x[k], axis=k))
        return te.compute(x.shape, lambda i: te.exp(x[i]) / total[()])

    divided = tvm.ufunc(types=["float32"])(lambda x, y: x / y)
    x = RNG.random((20_000, 3), "float32") + 1
    with np.errstate(all="raise"):
        assert divided(x[0], x[0]).tolist() == [1, 1, 1]
        np.testing.assert_allclose(shares(x), np.exp(x) / x.sum(1, keepdims=True), rtol=1e-5)


def test_built_functions_compute_a_batch() -> None:
    f = parts().gufunc("(n,m)->(n,m),(n)")
    x = RNG.random((50, 4, 3), "float32")
    for given in (x, x[:, ::2], x[::3], x[:0]):
        y, z = f(given)
        np.testing.assert_allclose(y, given + 1, rtol=1e-6)
        np.testing.assert_allclose(z, given.sum(2), rtol=1e-5)


# -- chains ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1,), (2,), (9,), (1000,), (7, 5), (300, 3), (3, 300), (4, 0)])
def test_chains_are_in_order(decayed: Any, shape: tuple[int, ...]) -> None:
    whole = RNG.standard_normal((2 * shape[0], *shape[1:]))
    for x in (whole[: shape[0]], whole[::2], np.asfortranarray(whole[: shape[0]]), whole[::-2]):
        expected = in_order(x)
        np.testing.assert_allclose(decayed.reduce(x, axis=0), expected[-1], rtol=1e-12)
        np.testing.assert_allclose(decayed.accumulate(x, axis=0), expected, rtol=1e-12)
        turned = np.ascontiguousarray(np.moveaxis(x, 0, -1))
        np.testing.assert_allclose(decayed.reduce(turned, axis=-1), expected[-1], rtol=1e-12)
        made = decayed.accumulate(turned, axis=-1)
        np.testing.assert_allclose(np.moveaxis(made, -1, 0), expected, rtol=1e-12)


def test_parts_of_chains(decayed: Any) -> None:
    x = RNG.standard_normal(50)
    starts = [0, 7, 7, 30, 31, 3]
    ends = [7, 8, 30, 31, 32, 50]
    expected = [in_order(x[a:b])[-1] for a, b in zip(starts, ends, strict=True)]
    np.testing.assert_allclose(decayed.reduceat(x, starts), expected, rtol=1e-12)
    table = RNG.standard_normal((4, 3))
    found, at = table.copy(), np.array([1, 3, 1, 1])
    decayed.at(found, at, x[:12].reshape(4, 3))
    for i, row in zip(at, x[:12].reshape(4, 3), strict=True):
        table[i] = table[i] * 0.5 + row
    np.testing.assert_allclose(found, table, rtol=1e-12)
    assert decayed.reduce(x, initial=3.0) == pytest.approx(in_order(np.array([3.0, *x]))[-1])
    some = x > 0
    np.testing.assert_allclose(
        decayed.reduce(x, where=some), in_order(np.array([0.0, *x[some]]))[-1], rtol=1e-12
    )


def test_chains_in_the_place_of_operands(decayed: Any) -> None:
    x = RNG.standard_normal(40)
    expected = in_order(x)
    both = x.copy()
    np.testing.assert_allclose(decayed.accumulate(both, out=both), expected, rtol=1e-12)
    both = x.copy()
    decayed.reduce(both, out=both[3:4].reshape(()))
    np.testing.assert_allclose(both[3], expected[-1], rtol=1e-12)


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [(slice(-1), slice(1, None), slice(-1)), (slice(1, None), slice(1, None), slice(-1)),
     (slice(0, 40, 2), slice(0, 40, 2), slice(20)), (slice(20), slice(20), slice(0, 40, 2)),
     (slice(0, 40, 2), slice(1, 40, 2), slice(1, 40, 2)), (slice(40), slice(40), slice(40)),
     (slice(None, None, -1), slice(40), slice(40))],
)  # fmt: skip
def test_operands_that_overlap(decayed: Any, a: slice, b: slice, out: slice) -> None:
    """Those that numpy passes on as they are, since each element is read before it is written."""
    x = RNG.standard_normal(40)
    both = x.copy()
    decayed(both[a], both[b], out=both[out])
    np.testing.assert_allclose(both[out], x[a] * 0.5 + x[b], rtol=1e-12)


def test_chains_of_other_dtypes(added: Any) -> None:
    small = RNG.integers(-9, 9, 40).astype("int32")
    assert added.types == ["ii->i", "li->l", "ff->f"]
    assert added.accumulate(small).tolist() == np.cumsum(small).tolist()
    assert added.reduce(small.reshape(8, 5)).tolist() == small.reshape(8, 5).sum(0).tolist()
    wide = np.arange(300)
    assert added(wide, small[0]).tolist() == (wide + small[0]).tolist()
    x = np.array([1.0, np.nan, np.inf, 2.0], "float32")
    np.testing.assert_array_equal(added.accumulate(x), np.add.accumulate(x))
    assert np.isnan(added.reduce(x))


def test_a_number_beside_an_array(decayed: Any) -> None:
    x = RNG.standard_normal((40, 5))
    for a, b in ((x, 2.0), (2.0, x), (x, x[:, :1]), (x[0], x), (3.0, 2.0)):
        np.testing.assert_allclose(decayed(a, b), np.multiply(a, 0.5) + b, rtol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 3, 1023, 1024, 1025, 3000])
def test_short_and_long_chains(decayed: Any, count: int) -> None:
    """Short ones go to the kernel's plain entry, where the elements lie side by side, aligned."""
    x = RNG.standard_normal(2 * count)
    packed = np.zeros(count, [("skipped", "u1"), ("x", "f8")])
    packed["x"] = x[:count]
    for given in (x[:count], x[::2], x[:count][::-1], packed["x"]):
        expected = in_order(np.ascontiguousarray(given))
        np.testing.assert_allclose(decayed.reduce(given), expected[-1], rtol=1e-12)
        np.testing.assert_allclose(decayed.accumulate(given), expected, rtol=1e-12)
        parts = np.array([0, count // 3, count // 2])
        ends = np.array([*parts[1:], count])
        ends = np.where(ends > parts, ends, parts + 1)
        wanted = [in_order(np.array(given[a:b]))[-1] for a, b in zip(parts, ends, strict=True)]
        np.testing.assert_allclose(decayed.reduceat(given, parts), wanted, rtol=1e-12)


def test_chains_tell_no_exceptions_of_floats(decayed: Any) -> None:
    x = np.array([np.inf, -np.inf, 1e308, 1e308, 0.0])
    with np.errstate(all="raise"):
        assert np.isnan(decayed.reduce(x))
        assert decayed.reduceat(x, [2, 3, 4]).tolist() == [1e308, 1e308, 0]
        assert np.isposinf(decayed(np.array([1.7e308]), np.array([1.7e308])))[0]
        np.testing.assert_array_equal(decayed.accumulate(x)[:2], [np.inf, np.nan])
