"""How exact a contraction is, whatever its numbers are, and that its bits are always the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.te.tensor import Tensor
from tests.auto_scheduler.meaning import Meaning
from tests.auto_scheduler.test_contractions import numpy_dtype, shape_of, with_caches

Array = np.ndarray[Any, Any]
OTHERS = ["llvm -mcpu=haswell", "llvm -mcpu=x86-64"]
NORMAL = 2.0**-126  # the least normal number of float32


@dataclass(frozen=True)
class Kind:
    """A contraction that the auto-scheduler treats in its own way."""

    subscripts: str
    sizes: tuple[int, ...]  # of the letters in alphabetical order
    dtypes: tuple[str, str, str] = ("float32", "float32", "float32")
    epilogue: str = ""
    small_caches: bool = False

    def program(self) -> tuple[list[Tensor], Tensor]:
        """The inputs and the output."""
        a, b, c = self.subscripts.replace("->", ",").split(",")
        extent = dict(zip(sorted({*a, *b}), self.sizes, strict=True))
        A = te.placeholder([extent[x] for x in a], self.dtypes[0], name="A")
        B = te.placeholder([extent[x] for x in b], self.dtypes[1], name="B")
        sums = {x: te.reduce_axis((0, extent[x]), name=x) for x in sorted({*a, *b} - {*c})}

        def element(*indices: Any) -> Any:
            at = {**dict(zip(c, indices, strict=True)), **sums}
            x, y = (t(*(at[i] for i in axes)) for t, axes in ((A, a), (B, b)))
            value = x.astype(self.dtypes[2]) * y.astype(self.dtypes[2])
            return te.sum(value, axis=list(sums.values()))

        C = te.compute([extent[x] for x in c], element, name="C")
        if self.epilogue == "":
            return [A, B], C
        if self.epilogue == "bias":
            bias = te.placeholder(C.shape[-1:], self.dtypes[2], name="bias")
            return [A, B, bias], te.compute(C.shape, lambda *i: C(*i) + bias[i[-1]], name="D")
        return [A, B], te.compute(C.shape, lambda *i: C(*i).astype(self.epilogue), name="D")


KINDS = {
    "tiles": Kind("ik,kj->ij", (37, 67, 41)),
    "packed": Kind("ik,kj->ij", (57, 300, 221)),
    "transposed": Kind("ki,jk->ij", (33, 67, 300)),
    "blocked": Kind("ik,kj->ij", (70, 130, 90), small_caches=True),
    "long sums": Kind("ik,kj->ij", (33, 64, 900), epilogue="bias", small_caches=True),
    "streamed": Kind("ik,kj->ij", (3, 700, 301)),
    "vector": Kind("k,kj->j", (500, 701)),
    "matrix-vector": Kind("ik,k->i", (70, 1000)),
    "few rows": Kind("ik,jk->ij", (2, 70, 1000)),
    "batch": Kind("bik,bkj->bij", (3, 17, 19, 67)),
    "shared batch": Kind("bik,kj->bij", (3, 17, 19, 67)),
    "tensordot": Kind("ikl,lkj->ij", (17, 40, 9, 11)),
    "bias": Kind("ik,kj->ij", (37, 67, 300), epilogue="bias"),
    "float64": Kind("ik,kj->ij", (37, 67, 300), ("float64",) * 3),
    "float64 sums": Kind("ik,kj->ij", (37, 67, 300), ("float32", "float32", "float64")),
    "float16": Kind("ik,kj->ij", (37, 67, 300), ("float16", "float16", "float32")),
    "rounded to float16": Kind(
        "ik,kj->ij", (37, 67, 300), ("float16", "float16", "float32"), "float16"
    ),
    "bfloat16": Kind("ik,kj->ij", (37, 67, 300), ("bfloat16", "bfloat16", "float32")),
    "rounded to bfloat16": Kind(
        "ik,kj->ij", (37, 67, 300), ("bfloat16", "bfloat16", "float32"), "bfloat16"
    ),
}
SOME = ["packed", "blocked", "long sums", "streamed", "float16", "bfloat16"]


# -- The bound -------------------------------------------------------------------------------------


def cancelling(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Large numbers of both signs, and small ones, which remain."""
    large = np.where(random.random(shape) < 0.5, -1.0, 1.0) * 2.0**3
    return np.where(random.random(shape) < 0.8, large, random.standard_normal(shape))


def of_all_sizes(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.standard_normal(shape) * 2.0 ** random.integers(-14, 5, shape)


def far_apart(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.standard_normal(shape) * 2.0 ** random.integers(-74, 50, shape)


def positive(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """No error is made up for by another."""
    return 1 + random.random(shape) / 2


def subnormal(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers, products and sums around the least normal number."""
    return random.standard_normal(shape) * 2.0 ** random.integers(-149, -55, shape)


Numbers = Callable[[np.random.Generator, tuple[int, ...]], Array]
NUMBERS: list[Numbers] = [cancelling, of_all_sizes, far_apart, positive, subnormal]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    "target", ["llvm", *(pytest.param(x, marks=pytest.mark.wide) for x in OTHERS)]
)
def test_results_are_within_the_bound(name: str, target: str) -> None:
    """Of a sum of k products in any order, gamma_k sum |a| |b|: see meaning.py."""
    kind = KINDS[name]
    wide = np.longdouble if "float64" in kind.dtypes else np.float64
    f, tensors, output = built(name, target)
    flushes = "bfloat16" in kind.dtypes and "dpbf16ps" in f.get_source("asm")
    for numbers in NUMBERS:
        if numbers in (far_apart, subnormal) and "float16" in kind.dtypes:
            continue  # out of its range
        given = arguments(tensors, numbers)
        got = np.full(shape_of(output, {}), np.nan, numpy_dtype(output.dtype))
        f(*given.values(), got)
        expected = Meaning(given, {}, wide).of(output)
        error = expected.error + (flushed(given, kind) if flushes else 0)
        assert (abs(got.astype(wide) - expected.exact) <= error).all(), numbers.__name__


@cache
def built(name: str, target: str = "llvm") -> tuple[Any, list[Tensor], Tensor]:
    """The function of a kind, its inputs and its output."""
    kind = KINDS[name]
    tensors, output = kind.program()
    target = with_caches(target, small=kind.small_caches)
    return tvm.build(output, [*tensors, output], target), tensors, output


def arguments(tensors: list[Tensor], numbers: Numbers) -> dict[Tensor, Array]:
    random = np.random.default_rng(3)
    return {
        each: numbers(random, shape_of(each, {})).astype(numpy_dtype(each.dtype))
        for each in tensors
    }


def flushed(given: dict[Tensor, Array], kind: Kind) -> float:
    """What is lost where subnormal factors, products and sums count as zero."""
    a, b = (float(abs(each.astype("float64")).max()) for each in list(given.values())[:2])
    depth = kind.sizes[sorted({*kind.subscripts} - {*",->"}).index("k")]
    return depth * NORMAL * (2 + a + b)


# -- NaN, infinities and zeros ---------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_what_is_not_finite_stays_where_it_belongs(name: str) -> None:
    """A NaN or an infinity reaches the sums that it is in, and no other: not by way of padding,
    which is multiplied as well."""
    f, tensors, output = built(name)
    for special in (np.nan, np.inf, -np.inf):
        given = arguments(tensors, positive)
        for each in list(given.values())[:2]:
            each[(-1,) * each.ndim] = special
            each[(0,) * each.ndim] = 0
        if special < 0:  # of both signs: NaN where they meet
            next(iter(given.values()))[(-1,) * tensors[0].ndim] = np.inf
        got = np.zeros(shape_of(output, {}), numpy_dtype(output.dtype))
        f(*given.values(), got)
        with np.errstate(invalid="ignore"):
            a, b, *bias = (each.astype("float64") for each in given.values())
            expected = np.einsum(KINDS[name].subscripts, a, b) + sum(bias)
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(got.astype("float64")[~finite], expected[~finite])
        assert np.isfinite(got.astype("float64")[finite]).all()


@pytest.mark.parametrize("name", KINDS)
def test_sums_of_nothing_but_negative_zeros(name: str) -> None:
    """A sum begins with 0.0, which minus zero does not change."""
    f, tensors, output = built(name)
    given = [np.full(shape_of(each, {}), -0.0, numpy_dtype(each.dtype)) for each in tensors]
    given[0] = -given[0]
    got = np.full(shape_of(output, {}), np.nan, numpy_dtype(output.dtype))
    f(*given, got)
    assert not np.signbit(got.astype("float64")).any()
    assert (got.astype("float64") == 0).all()


# -- The same bits ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_bits_are_the_same_for_any_number_of_threads_and_any_address(name: str) -> None:
    f, tensors, output = built(name)
    given = list(arguments(tensors, of_all_sizes).values())
    shape, dtype = shape_of(output, {}), numpy_dtype(output.dtype)
    first = np.empty(shape, dtype)
    with tvm.num_threads(1):
        f(*given, first)
    for threads in (1, 2, 3, 5):
        for place in (np.asarray, misaligned):
            got = place(np.zeros(shape, dtype))
            with tvm.num_threads(threads):
                f(*map(place, given), got)
            assert np.array_equal(got, first), (threads, place.__name__)


def misaligned(array: Array) -> Array:
    """At an address that is a multiple of the element's size alone."""
    flat = np.zeros(array.size + 1, array.dtype)[1:]
    flat[...] = array.ravel()
    view: Array = flat.reshape(array.shape)
    return view


@pytest.mark.parametrize("name", SOME)
def test_bits_are_the_same_for_any_number_of_cores(name: str) -> None:
    """Which a schedule may know of: it may share the work in another way, and not a sum."""
    results = []
    for cores in (1, 64):
        with tvm.num_threads(min(cores, 2)):
            f, tensors, output = built(name, f"llvm -num-cores={cores}")
            got = np.zeros(shape_of(output, {}), numpy_dtype(output.dtype))
            f(*arguments(tensors, of_all_sizes).values(), got)
        results.append(got)
    for got in results[1:]:
        np.testing.assert_array_equal(got, results[0])


@pytest.mark.parametrize("name", SOME)
def test_strict_sums_are_in_order(name: str) -> None:
    """The same bits as of plain loops."""
    tensors, output = KINDS[name].program()
    given = list(arguments(tensors, of_all_sizes).values())
    results = []
    target = with_caches("llvm", small=KINDS[name].small_caches)
    for auto_schedule in (False, True):
        args = [*tensors, output]
        f = tvm.build(output, args, target, fp="strict", auto_schedule=auto_schedule)
        got = np.empty(shape_of(output, {}), numpy_dtype(output.dtype))
        f(*given, got)
        results.append(got)
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("name", ["tiles", "packed", "few rows", "bfloat16"])
def test_arrays_of_any_strides_are_within_the_bound(name: str) -> None:
    """A variant for strides may add in another order."""
    f, tensors, output = built(name)
    given = arguments(tensors, of_all_sizes)
    for moved in (np.asfortranarray, sliced):
        got = moved(np.zeros(shape_of(output, {}), numpy_dtype(output.dtype)))
        f(*map(moved, given.values()), got)
        expected = Meaning(given, {}, np.float64).of(output)
        assert (abs(got - expected.exact) <= expected.error).all()


def sliced(array: Array) -> Array:
    """The same elements, apart from each other."""
    larger = np.zeros([2 * extent for extent in array.shape], array.dtype)
    view: Array = larger[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view
