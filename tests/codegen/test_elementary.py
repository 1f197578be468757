"""Functions by arithmetic: without calls on every target, and the same bits whatever the schedule.

How exact they are is in test_intrinsics.py and test_accuracy.py.
"""

from __future__ import annotations

import ctypes
import math
import re
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import llvmlite.binding as llvm
import mpmath
import numpy as np
import pytest

from minitvm import build, te
from minitvm.codegen.angles import _two_over_pi
from minitvm.codegen.coefficients import DOUBLE, SINGLE
from minitvm.codegen.elementary import ELEMENTARY
from minitvm.driver.program import compiled_function
from minitvm.runtime.dtype import FLOAT32
from minitvm.runtime.host import host
from minitvm.runtime.module import Module
from minitvm.tir.intrinsics import INTRINSICS, Domain
from tests.codegen import minimax
from tests.codegen.kernels import Array

FUNCTIONS = tuple(ELEMENTARY)
OF_FLOATS = [
    each.name for each in INTRINSICS.values() if each.problem(FLOAT32) is None and not each.operator
]
EXTENT = 1024
IS_X86 = host().triple.startswith("x86_64")
# All that this machine has, and without fused multiply-add and rounding.
TARGETS = ["llvm", *(["llvm -mcpu=x86-64"] if IS_X86 else [])]
FOREIGN = [
    "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64",
    "llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512",
    "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-v1",
]


def kernels(
    names: Sequence[str], dtype: str, lanes: int, target: str = "llvm", fp: str = "fast"
) -> Module:
    """Functions of each element, `lanes` of them at a time: of x, of x and its reverse, of x and
    integers."""
    x = te.placeholder((EXTENT,), dtype, name="x")
    n = te.placeholder((EXTENT,), "int32", name="n")

    def made(name: str) -> te.Tensor:
        known = INTRINSICS[name]
        function = getattr(te, known.language_name)

        def element(i: Any) -> Any:
            if known.second:
                return function(x[i], n[i])
            return function(*(x[i], x[EXTENT - 1 - i])[: known.arity])

        output: te.Tensor = te.compute((EXTENT,), element, name=f"{name}_of_x")
        return output

    results = [made(name) for name in names]
    s = te.create_schedule([y.op for y in results])
    for y in results:
        if lanes > 1:
            s[y].vectorize(s[y].split(s[y].leaf_iter_vars[0], factor=lanes)[1])
    return build(s, [x, n, *results], target, fp=fp, auto_schedule=False)


def kernel(name: str, dtype: str, lanes: int, target: str = "llvm", fp: str = "fast") -> Module:
    """One function."""
    return kernels([name], dtype, lanes, target, fp)


def arguments(dtype: str) -> Array:
    generator = np.random.default_rng(0)
    made = generator.uniform(-20, 20, EXTENT)
    made[:512] = generator.uniform(0, 3, 512)
    made[-8:] = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 1e30, -1e10)
    with np.errstate(over="ignore"):
        return made.astype(dtype)


def run(module: Module, x: Array, count: int = 1) -> list[Array]:
    """The results of the functions of a module, of exponents about 0."""
    results = [np.empty_like(x) for _ in range(count)]
    module(x, np.arange(-EXTENT // 2, EXTENT // 2, dtype="int32"), *results)
    return results


@pytest.mark.parametrize(
    ("dtype", "widths", "target"),
    [
        ("float16", (1, 16), "llvm"),
        ("float32", (1, 4, 16), "llvm"),
        ("float64", (1, 8), "llvm"),
        pytest.param("float64", (1, 2, 16), "llvm", marks=pytest.mark.wide),
        *(("float32", (1, 4), target) for target in TARGETS[1:]),
        *(("float64", (1, 2), target) for target in TARGETS[1:]),
    ],
)
def test_a_schedule_does_not_change_results(dtype: str, widths: Sequence[int], target: str) -> None:
    x = arguments(dtype)
    first, *others = (
        run(kernels(FUNCTIONS, dtype, lanes, target), x, len(FUNCTIONS)) for lanes in widths
    )
    for other in others:
        for name, one, another in zip(FUNCTIONS, first, other, strict=True):
            assert bits_of(one) == bits_of(another), name


def bits_of(values: Array) -> bytes:
    """All bits but the sign of NaN, which LLVM may choose."""
    return np.where(np.isnan(values), np.nan, values).astype(values.dtype).tobytes()


@pytest.mark.parametrize(("dtype", "lanes"), [("float32", 32), ("float64", 8)])
def test_vectors_are_taken_apart_by_instructions(dtype: str, lanes: int) -> None:
    text = kernels(["log", "exp", "ldexp"], dtype, lanes, FOREIGN[1]).get_source("asm")
    suffix = "s" if dtype == "float32" else "d"
    for instruction in ("vgetmantp", "vgetexpp", "vscalefp"):
        assert f"{instruction}{suffix}\t" in text


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_powers_of_positive_and_other_numbers_in_one_vector(dtype: str) -> None:
    """A vector of positive numbers needs no signs; one other lane changes no bit of the rest."""
    x, found = np.linspace(0.5, 4, EXTENT).astype(dtype), list[Array]()
    for each in (x, np.where(np.arange(EXTENT) % 16 == 3, -x, x)):
        found += run(kernel("power", dtype, 16), each)
    kept = np.arange(EXTENT) % 16 != 3
    kept &= kept[::-1]  # the exponents are the numbers in reverse
    np.testing.assert_array_equal(found[0][kept], found[1][kept])
    assert np.isnan(found[1][3])


def undefined(module: Module) -> set[str]:
    """The symbols that a module for Linux uses but doesn't define, besides the runtime's: those of
    section 0 in the symbol table of its object file (ELF-64)."""
    found = compiled_function(module)
    assert found is not None
    file = llvm.ObjectFileRef.from_data(found[1].object_code)
    sections = {each.name(): each.data() for each in file.sections()}
    symbols, names = sections[b".symtab"], sections[b".strtab"]
    used = {
        names[name : names.index(b"\0", name)].decode()
        for name, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", symbols)
        if name and not section
    }
    return {each for each in used - {"PyGILState_Ensure"} if "minitvm_" not in each}


@pytest.mark.parametrize(
    ("dtype", "lanes", "target"),
    [
        ("float32", 4, FOREIGN[0]),
        ("float64", 2, FOREIGN[0]),
        ("float32", 16, FOREIGN[1]),
        ("float64", 2, FOREIGN[2]),
        *(
            pytest.param(dtype, lanes, target, marks=pytest.mark.wide)
            for dtype in ("float16", "bfloat16", "float32", "float64")
            for lanes in (1, 8)
            for target in FOREIGN
        ),
    ],
)
def test_nothing_is_called(dtype: str, lanes: int, target: str) -> None:
    assert undefined(kernels(OF_FLOATS, dtype, lanes, target)) == set()


@pytest.mark.parametrize("target", FOREIGN)
def test_a_call_would_be_seen(target: str) -> None:
    assert undefined(kernel("exp", "float32", 16, target, fp="strict")) == {"expf"}


@pytest.mark.parametrize("name", ["exp", "atan2", "power", "acosh"])
def test_a_plain_loop_runs_in_vectors(name: str) -> None:
    text = kernel(name, "float32", 1).get_source("ll")
    assert re.search(r"<\d+ x (float|double)> @llvm\.(fma|sqrt|fabs)", text)


@pytest.mark.parametrize("name", [each for each in FUNCTIONS if INTRINSICS[each].libm])
def test_strict_asks_the_c_library(name: str) -> None:
    text = kernel(name, "float32", 1, fp="strict").get_source("ll")
    assert f"@{INTRINSICS[name].libm}f(" in text


def test_long_code_stands_in_a_module_once() -> None:
    x = te.placeholder((64,), "float64", name="x")
    y = te.compute((64,), lambda i: te.asinh(x[i]) + te.asinh(x[i] + 1.0) + te.asinh(x[i] + 2.0))
    inputs = np.linspace(-5, 5, 64)
    found = np.empty_like(inputs)
    s = te.create_schedule(y.op)
    s[y].vectorize(s[y].split(y.op.axis[0], factor=4)[1])
    function = build(s, [x, y])
    function(inputs, found)
    expected = np.arcsinh(inputs) + np.arcsinh(inputs + 1) + np.arcsinh(inputs + 2)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    text = function.get_source("ll")
    assert len(re.findall(r"call .*@minitvm\.asinh\.4\.double\(", text)) == 2
    assert text.count("fdiv <4 x double>") == 4  # two here, and two in the function


# -- guarded arguments --


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_huge_arguments(name: str, dtype: str, target: str) -> None:
    most = 38 if dtype == "float32" else 308
    x = np.geomspace(1e-3, 1.5 * 10.0**most, EXTENT).astype(dtype)
    x[::3] = np.linspace(-10, 10, len(x[::3]))
    x[1::6] *= -1
    x[-4:] = np.inf, -np.inf, np.nan, np.finfo(dtype).max
    expected = [getattr(math, name)(v) if math.isfinite(v) else math.nan for v in x.tolist()]
    for lanes in (1, 16):
        (y,) = run(kernel(name, dtype, lanes, target), x)
        np.testing.assert_allclose(y, expected, rtol=2 * float(np.finfo(dtype).eps))


def test_angles_nearest_to_quarter_turns() -> None:
    """Of all doubles the first, and of all floats the second and third, are nearest to a multiple
    of pi / 2 (Muller, Elementary Functions, 3rd edition, section 11.3.2; found by continued
    fractions): the digits that remain must all be right."""
    for dtype, value in (
        ("float64", 6381956970095103.0 * 2.0**797),
        ("float32", 16367173.0 * 2.0**72),
        ("float32", 8258587.0 * 2.0**99),
    ):
        x = np.full(EXTENT, value, dtype)
        for name in ("sin", "cos", "tan"):
            (y,) = run(kernel(name, dtype, 16), x)
            with mpmath.workprec(1200):
                error = y[0].item() / getattr(mpmath, name)(mpmath.mpf(value)) - 1
            assert abs(error) <= np.finfo(dtype).eps


def test_the_bits_of_two_over_pi() -> None:
    words = _two_over_pi()
    # The first words behind the point (Payne and Hanek, 1983, and the tables of many libraries).
    assert [hex(word) for word in words[:4]] == [
        "0x0", "0xa2f9836e4e441529", "0xfc2757d1f534ddc0", "0xdb6295993c439041",
    ]  # fmt: skip
    assert len(words) == 20


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_remainders_by_many_divisions(dtype: str, target: str) -> None:
    info = np.finfo(dtype)
    generator = np.random.default_rng(0)
    exponents = generator.uniform(np.log2(float(info.smallest_subnormal)), info.maxexp - 1, EXTENT)
    x = (generator.choice([-1.5, 1.25], EXTENT) * 2.0**exponents).astype(dtype)
    x[:4] = info.max, info.smallest_subnormal, np.inf, 0.0
    x[-4:] = 0.0, info.max, info.max, info.smallest_subnormal
    with np.errstate(invalid="ignore"):
        expected = np.fmod(x, x[::-1])
    for lanes in (1, 16):
        (y,) = run(kernel("fmod", dtype, lanes, target), x)
        np.testing.assert_array_equal(y, expected)
        assert (np.signbit(y) == np.signbit(x))[~np.isnan(y)].all()


# -- without instructions --


@pytest.mark.skipif(not IS_X86, reason="of x86-64")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rounding_without_an_instruction(dtype: str) -> None:
    names = [name for name in OF_FLOATS if INTRINSICS[name].domain is Domain.ROUNDED]
    x = np.concatenate([arguments(dtype), np.arange(-64, 64, 0.25, dtype=dtype)])[-EXTENT:]
    limit = 2.0 ** np.finfo(dtype).nmant
    x[:6] = limit - 0.5, limit, limit + 1, -limit + 0.5, -0.25, 0.49999997
    expected = run(kernels(names, dtype, 1, "llvm -mcpu=haswell"), x, len(names))
    for lanes in (1, 16):
        found = run(kernels(names, dtype, lanes, "llvm -mcpu=x86-64"), x, len(names))
        for name, one, another in zip(names, expected, found, strict=True):
            assert one.tobytes() == another.tobytes(), name


# -- coefficients --


def test_coefficients_are_those_of_the_algorithm() -> None:
    names = minimax.polynomials()
    for bits, form in ((32, SINGLE), (64, DOUBLE)):
        for name in names:
            if bits == 32 or name in ("exp", "log", "sinh"):  # the others take seconds
                assert getattr(form, name) == minimax.computed(name, bits)[0], (name, bits)


@pytest.mark.wide
def test_all_coefficients_are_those_of_the_algorithm() -> None:
    for name in minimax.polynomials():
        found, error = minimax.computed(name, 64)
        assert getattr(DOUBLE, name) == found
        assert error < 2.0**-55


def test_parts_of_a_number() -> None:
    for form in (SINGLE, DOUBLE):
        high, low = map(Fraction, form.parts(1, 3, 2))
        assert abs(Fraction(1, 3) - high - low) < Fraction(2) ** (-2 * form.digits - 3)


# -- Underflow --

FE_UNDERFLOW = 0x10  # fenv.h of x86


@pytest.mark.skipif(not IS_X86, reason="the flag's number is that of x86")
@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["exp", "exp2", "exp10", "sigmoid"])
def test_results_of_zero_and_one_do_not_underflow(name: str, target: str, dtype: str) -> None:
    """A product that underflows takes a hundred cycles and more, in a softmax for each element that
    is masked."""
    x = te.placeholder((64,), dtype, name="x")
    y = te.compute((64,), lambda i: getattr(te, name)(x[i]), name="y")
    function, found = build([y], [x, y], target), np.empty(64, dtype)
    flags = ctypes.CDLL(None)
    for value, expected in ((-1e4, 0.0), (-1e9, 0.0), (-math.inf, 0.0), (1e4, None)):
        given = np.full(64, value, dtype)
        flags.feclearexcept(FE_UNDERFLOW)
        function(given, found)
        assert not flags.fetestexcept(FE_UNDERFLOW), value
        above = 1.0 if name == "sigmoid" else math.inf
        np.testing.assert_array_equal(found, above if expected is None else expected)
