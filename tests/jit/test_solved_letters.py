"""Letters that no dimension is, and that follow from arithmetic: the ``n`` of ``"2*n k"``."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import pytest
import torch

import minitvm as tvm
from minitvm import te

Pairs = Annotated[te.Tensor, "2*n k"]


def _sums(x: Any) -> Any:
    return te.compute(
        (x.shape[0] // 2, x.shape[1]), lambda i, j: x[2 * i, j] + x[2 * i + 1, j], name="S"
    )


@tvm.jit
def pair_sums(x: Pairs) -> Any:
    return _sums(x)


def _random(*shape: int) -> Any:
    return np.random.default_rng(0).random(shape, dtype="float32")


def test_one_letter_from_one_dimension() -> None:
    for rows in (6, 10, 2, 0, 14):  # from the second on with a variable
        x = _random(rows, 3)
        np.testing.assert_array_equal(pair_sums(x), x[::2] + x[1::2])
    assert [sorted(map(str, s.symbolic)) for s in pair_sums.specialisations][1:2] == [["2*n"]]
    for rows in (5, 1, 13):
        with pytest.raises(
            ValueError, match=r"argument 0 'x': expected shape \(2\*n, k\) with an i"
        ):
            pair_sums(_random(rows, 3))


def test_a_letter_is_the_same_in_all_arguments() -> None:
    @tvm.jit
    def function(
        x: Annotated[te.Tensor, "2*n"],
        y: Annotated[te.Tensor, "3*n+1"],
        z: Annotated[te.Tensor, "2*n"],
    ) -> Any:
        return te.compute((x.shape[0] // 2,), lambda i: x[2 * i] + y[3 * i] + z[2 * i + 1])

    for n in (4, 7, 5):
        x, y, z = _random(2 * n), _random(3 * n + 1), _random(2 * n)
        np.testing.assert_allclose(function(x, y, z), x[::2] + y[:-1:3] + z[1::2], rtol=1e-6)
    with pytest.raises(ValueError, match=r"'y': .*\(3\*n\+1,\) with 3\*n\+1 == 13, since n == 4"):
        function(_random(8), _random(14), _random(8))
    with pytest.raises(ValueError, match=r"'z': .*\(2\*n,\) with 2\*n == 8, since n == 4, got \(6"):
        function(_random(8), _random(13), _random(6))


@pytest.mark.parametrize(
    ("first", "second", "shape", "other"),
    [
        ("2*n+k", "k", (11,), (3,)),
        ("k", "k*n", (3,), (12,)),
        ("10-n", "n+1", (6,), (5,)),
        ("2*(n+1)", "n-2", (12,), (3,)),
    ],
)
def test_forms(first: str, second: str, shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    def function(x: Any, y: Any) -> Any:
        return te.compute((), lambda: x[0] + y[0])

    function.__annotations__.update(x=repr(first), y=repr(second))
    made = tvm.jit(function)
    x, y = _random(*shape), _random(*other)
    np.testing.assert_allclose(made(x, y), x[0] + y[0])
    with pytest.raises(ValueError, match="expected shape"):
        made(x, _random(other[0] + 1))


def test_no_number_of_times_nothing() -> None:
    def function(x: Any, y: Any) -> Any:
        return te.compute((1,), lambda i: te.const(1.0, "float32"))

    function.__annotations__.update(x="'k'", y="'k*n'")
    with pytest.raises(ValueError, match=r"'y': expected shape \(k\*n,\) with an integer n of 0"):
        tvm.jit(function)(np.zeros(0, "float32"), np.zeros(0, "float32"))


def test_arguments_that_are_left_out() -> None:
    def function(x: Any, y: Any = None) -> Any:
        return te.compute((1,), lambda i: x[0] if y is None else x[0] + y[0, 0])

    function.__annotations__.update(x="'2*n*k'", y="'n k'")
    made = tvm.jit(function)
    x, y = _random(12), _random(2, 3)
    np.testing.assert_allclose(made(x, y), [x[0] + y[0, 0]])
    with pytest.raises(ValueError, match=r"\(2\*n\*k,\), and n by another argument, got \(12,\)"):
        made(x)


def test_letters_that_are_variables_from_the_first() -> None:
    made = tvm.jit(symbolic="n")(lambda_of_pairs())
    made(_random(6, 3))
    made(_random(8, 3))
    assert [sorted(map(str, s.symbolic)) for s in made.specialisations] == [["2*n"]]
    with pytest.raises(tvm.CompileError, match="symbolic: expected letters among k, n, got 'm'"):
        tvm.jit(symbolic="m")(lambda_of_pairs())


def lambda_of_pairs() -> Any:
    def function(x: Pairs) -> Any:
        return _sums(x)

    return function


def test_torch_compiles_and_differentiates_it() -> None:
    x = torch.from_numpy(_random(6, 3)).requires_grad_()
    pair_sums(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.ones(6, 3))
    compiled = torch.compile(lambda x: pair_sums(x) * 2, dynamic=True, backend="aot_eager")
    for rows in (6, 12):
        x = torch.from_numpy(_random(rows, 3))
        torch.testing.assert_close(compiled(x), (x[::2] + x[1::2]) * 2)
