"""Ufuncs of numpy from expressions and built functions, against numpy's own."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.runtime.heap_types import HEADER
from minitvm.ufuncs.loop import UfuncFields
from minitvm.ufuncs.signature import parse_signature
from tests.frameworks import programs


@pytest.fixture(scope="module")
def plus() -> Any:
    @tvm.ufunc(types=["int32", "float32", "float64"], identity=0)
    def plus(x: Any, y: Any) -> Any:
        """The sum of two numbers."""
        return x + y

    return plus


@pytest.fixture(scope="module")
def product() -> Any:
    @tvm.gufunc("(m,k),(k,n)->(m,n)", types=["float64"])
    def product(a: Any, b: Any) -> Any:
        k = te.reduce_axis((0, a.shape[1]))
        shape = (a.shape[0], b.shape[1])
        return te.compute(shape, lambda i, j: te.sum(a[i, k] * b[k, j], axis=k))

    return product


@pytest.fixture(scope="module")
def centred() -> Any:
    @tvm.gufunc("(n)->(n),()", types=["float64"])
    def centred(x: Any) -> Any:
        """Two results, through a stage that both read."""
        k = te.reduce_axis((0, x.shape[0]))
        total = te.compute((), lambda: te.sum(x[k], axis=k), name="total")
        mean = te.compute((), lambda: total[()] / x.shape[0], name="mean")
        return te.compute(x.shape, lambda i: x[i] - mean[()], name="rest"), mean

    return centred


RNG = np.random.default_rng(0)
X, Y = RNG.integers(-50, 50, (2, 6, 8)).astype("float64")


@pytest.mark.parametrize("dtype", ["int8", "int32", "float32", "float64"])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x[::2, ::-1],
        lambda x: x.T,
        lambda x: x[:, :1],
        lambda x: np.broadcast_to(x[0], x.shape),
        lambda x: x[:0],
    ],
)
def test_elementwise(plus: Any, dtype: str, view: Any) -> None:
    x, y = view(X).astype(dtype), view(Y).astype(dtype)
    for a, b in ((x, y), (view(X.astype(dtype)), y), (x, y[..., :1])):
        result = plus(a, b)
        expected = np.add(a, b, dtype=result.dtype)
        assert result.dtype == ("int32" if dtype == "int8" else dtype)
        np.testing.assert_array_equal(result, expected)


def test_without_parentheses() -> None:
    @tvm.ufunc
    def thrice(x: Any) -> Any:
        return x * 3.0

    assert thrice([1.0, 2.0]).tolist() == [3, 6] and thrice.types == ["f->f", "d->d"]
    with pytest.raises(TypeError, match="ufunc: expected a function of numbers, got int 0"):
        tvm.ufunc(0)  # type: ignore[call-overload]  # which is refused


def _generated(x: Any) -> Any:
    yield x


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (len, "ufunc: expected a Python function, got len, which isn't written in Python: write"),
        (np.sin, "ufunc: expected a Python function, got sin, which isn't written in Python"),
        (dict, "ufunc: expected a Python function, got the class dict"),
        (_generated, "ufunc: expected a Python function, got the generator _generated: return"),
        (lambda *x: x[0], r"<lambda>: expected a parameter by position for each input, got '\*x'"),
        (lambda x, *, y: x, "<lambda>: expected a parameter by position for each input, got 'y'"),
        (lambda: 1.0, "<lambda>: expected a function of at least one input, got one of none"),
        (lambda x: None, "<lambda>: expected a function that returns an expression, or a tuple of"),
    ],
)
def test_functions_of_which_no_ufunc_is_made(function: Any, message: str) -> None:
    with pytest.raises((TypeError, tvm.CompileError), match=message):
        tvm.ufunc(function)


def test_parts_of_functions() -> None:
    scaled = tvm.ufunc(partial(lambda x, k: x * k, k=3.0), types=["float64"], name="scaled")
    assert scaled([1.0, 2.0]).tolist() == [3, 6] and scaled.nin == 1


def test_all_that_numpy_gives(plus: Any) -> None:
    assert (plus.__name__, plus.nin, plus.nout, plus.identity) == ("plus", 2, 1, 0)
    assert plus.types == ["ii->i", "ff->f", "dd->d"]
    assert "The sum of two numbers." in str(plus.__doc__)
    np.testing.assert_array_equal(plus.outer(X[0], Y[0]), np.add.outer(X[0], Y[0]))
    for axis in (0, 1, None):
        np.testing.assert_array_equal(plus.reduce(X, axis=axis), np.add.reduce(X, axis=axis))
    np.testing.assert_array_equal(plus.accumulate(X, 1), np.add.accumulate(X, 1))
    assert plus.reduce(np.zeros(0)) == 0
    counts = np.zeros(3)
    plus.at(counts, [0, 0, 2], 1)
    assert counts.tolist() == [2, 0, 1]
    out = np.full(X.shape, 7.0)
    assert plus(X, Y, out=out, where=X > 0) is out
    np.testing.assert_array_equal(out, np.where(X > 0, X + Y, 7))


def test_results_in_the_place_of_operands(plus: Any) -> None:
    for source, target in ((0, 0), (0, 1), (1, 0)):
        both = X.copy()
        a, b = both[:, source : source + 7], both[:, target : target + 7]
        expected = a + a
        plus(a, a, out=b)
        np.testing.assert_array_equal(b, expected)


@pytest.mark.parametrize(
    ("a", "b"),
    [((2, 3, 4), (2, 4, 5)), ((3, 4), (2, 1, 4, 5)), ((6, 20, 20), (20, 20)), ((0, 3, 4), (4, 2)),
     ((2, 3, 0), (0, 2)), ((1, 1), (5, 1, 1))],
)  # fmt: skip
def test_batches(product: Any, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = RNG.random(a), RNG.random(b)
    np.testing.assert_allclose(product(x, y), x @ y, rtol=1e-12)
    turned = np.moveaxis(np.ascontiguousarray(x.swapaxes(-1, -2)), -1, -2)
    np.testing.assert_allclose(product(turned, y[..., ::-1]), x @ y[..., ::-1], rtol=1e-12)
    out = np.empty((*product(x, y).shape, 2))[..., 0]
    np.testing.assert_allclose(product(x, y, out=out), x @ y, rtol=1e-12)


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (3, 7, 7), (2, 40, 40), (0, 4, 4)])
def test_products_in_the_place_of_factors(product: Any, shape: tuple[int, ...]) -> None:
    x, y = RNG.random(shape), RNG.random(shape)
    for turned in (False, True):
        for factors in ((x, x), (x, y), (y, x), (x.swapaxes(-1, -2), y), (x[..., ::-1, :], x)):
            expected = np.matmul(*factors)
            out = x.copy()
            given = [out if each is x else each for each in factors]
            if turned:  # an output with strides
                out = np.ascontiguousarray(out.swapaxes(-1, -2)).swapaxes(-1, -2)
                given = [out if each is x else each for each in factors]
            assert product(*given, out=out) is out
            np.testing.assert_allclose(out, expected, rtol=1e-12)


def test_an_output_takes_the_place_of_an_input_where_it_may(product: Any) -> None:
    """numpy copies one that may not, as it does for its own products."""
    flags = ctypes.c_uint32 * 3

    def flags_of(ufunc: np.ufunc) -> list[int]:
        fields = UfuncFields.from_address(id(ufunc) + HEADER)
        return [*flags.from_address(ctypes.addressof(fields.op_flags.contents))]

    @tvm.gufunc("(n),(n)->(n)", types=["float64"])
    def scaled(x: te.Tensor, w: te.Tensor) -> Any:
        k = te.reduce_axis((0, x.shape[0]))
        s = te.compute((), lambda: te.sum(x[k] * x[k], axis=k))
        return te.compute(x.shape, lambda i: x[i] * te.rsqrt(s()) * w[i])

    assert flags_of(product) == flags_of(np.matmul)
    assert flags_of(scaled) == flags_of(np.add)
    x, w = RNG.random((3, 50)), RNG.random(50)
    expected = scaled(x, w)
    np.testing.assert_array_equal(scaled(x, w, out=x), expected)


def test_axes_are_numpys(product: Any) -> None:
    x, y = RNG.random((4, 2, 3)), RNG.random((3, 2, 5))
    made = product(x, y, axes=[(0, 2), (0, 2), (1, 0)])
    expected = np.einsum("mbk,kbn->nmb", x, y)
    np.testing.assert_allclose(made, expected, rtol=1e-12)


def test_several_results(centred: Any) -> None:
    rest, mean = centred(X)
    np.testing.assert_allclose(mean, X.mean(1), rtol=1e-12)
    np.testing.assert_allclose(rest, X - X.mean(1, keepdims=True), atol=1e-12)
    rest, mean = centred(X, axis=0)
    np.testing.assert_allclose(rest, X - X.mean(0), atol=1e-12)


def test_built_functions() -> None:
    a, b = programs.matrices()
    f = programs.product().gufunc("(m,k),(k,n)->(m,n)", name="matmul")
    assert (f.__name__, f.signature) == ("matmul", "(m,k),(k,n)->(m,n)")
    np.testing.assert_allclose(f(np.stack([a, 2 * a]), b), np.stack([a, 2 * a]) @ b, rtol=1e-5)
    rows = programs.parts().gufunc("(m)->(m),()")
    y, z = rows(np.ones((2, 3, 4), "float32"))
    assert (y.tolist(), z.tolist()) == (np.full((2, 3, 4), 2).tolist(), [[4] * 3] * 2)


class Logged(np.ndarray[Any, Any]):
    """A subclass of numpy's arrays that sees each ufunc."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain = [np.asarray(each) for each in inputs]
        return ufunc.__name__, method, getattr(ufunc, method)(*plain, **kwargs).tolist()


def test_subclasses(plus: Any) -> None:
    x = np.ones(2).view(Logged)
    assert plus(x, 1) == ("plus", "__call__", [2, 2])
    assert plus.reduce(x) == ("plus", "reduce", 2)


def test_an_error_in_the_kernel() -> None:
    n = te.var("n")
    x, i = te.placeholder((n,), name="X"), te.placeholder((n,), "int64", name="I")
    y = te.compute((n,), lambda j: x[i[j]], name="Y")
    take = tvm.build(te.create_schedule(y.op), [x, i, y], name="take").gufunc("(n),(n)->(n)")
    x3 = np.arange(3, dtype="float32")
    assert take(x3, [2, 0, 1]).tolist() == [2, 0, 1]
    with pytest.raises(IndexError, match=r"take: X\[b, I\[b, j\]\]: .* got 3"):
        take(x3, [0, 1, 3])
    assert take(x3, [0, 0, 0]).tolist() == [0, 0, 0]


# -- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["(m?)->()", "(m)", "m->m", "(m)->", "(3x)->()", "", 3])
def test_wrong_signatures(text: Any) -> None:
    with pytest.raises(ValueError, match="gufunc: expected a signature such as"):
        parse_signature(text)


def test_signatures_that_do_not_fit() -> None:
    module = programs.product()
    for signature, text in (
        ("(m,k)->(m)", "expected a signature of 2 inputs and 1 outputs, got"),
        ("(m,k),(k,n)->(m)", r"got shapes \(n, m\), \(m, p\), \(n, p\)"),
        ("(m,m),(m,n)->(m,n)", "expected dimension 'm' of .* to be one variable, got n and m"),
        ("(m,3),(3,n)->(m,n)", "expected dimension '3' of .* to be 3, got m and m"),
    ):
        with pytest.raises(ValueError, match=text):
            module.gufunc(signature)
    with pytest.raises(TypeError, match="argument 1 'a': expected an array, got a number, which"):
        programs.scaled().gufunc("(),()->()")
    with pytest.raises(TypeError, match="'X': expected a dtype of numpy, got bfloat16"):
        programs.backwards("bfloat16").gufunc("(4)->(4)")
    assert programs.backwards("float32").gufunc("(4)->(4)").signature == "(4)->(4)"


def test_functions_that_do_not_fit(product: Any) -> None:
    with pytest.raises(ValueError, match=r"same: output 0: expected shape .*n.*, got .*n, 2"):
        tvm.gufunc("(n)->(n)", name="same")(
            lambda x: te.compute((x.shape[0], 2), lambda i, j: x[i])
        )
    with pytest.raises(ValueError, match="one: expected a function of 1 tensors"):
        tvm.gufunc("(n)->(n)", name="one")(lambda x, y: x)
    with pytest.raises(ValueError, match="f: types: expected at least one dtype"):
        tvm.ufunc(types=[], name="f")(lambda x: x)
    with pytest.raises(ValueError, match="f: types: expected a dtype, or 1 of them"):
        tvm.ufunc(types=[("int8", "int8")], name="f")(lambda x: x)
    with pytest.raises(ValueError, match="f: expected an identity among 0, 1, -1 and None, got 2"):
        tvm.ufunc(types="int8", identity=2, name="f")(lambda x: x)
    with pytest.raises(tvm.CompileError, match=r"vmap: .*: expected stages of te.compute and"):
        tvm.gufunc("(n)->(n)")(
            lambda x: te.extern(x.shape, [x], lambda i, o: tvm.tir.call_packed("f"), name="E")
        )
    with pytest.raises(TypeError, match="where"):
        product(np.ones((2, 2)), np.ones((2, 2)), where=True)
