"""Operators made by minitvm.jit: what they compute, return, build and show."""

from __future__ import annotations

import copy
import inspect
import itertools
import operator
import pickle
import threading
from collections.abc import Callable
from typing import Annotated, Any, Optional

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import minitvm as tvm
from minitvm import te
from tests.forks import assert_in_child

Matrix = Annotated[te.Tensor, "m n"]
Vector = Annotated[te.Tensor, "n"]


def _random(*shape: int, dtype: str = "float32") -> Any:
    return np.asarray(np.random.default_rng(0).standard_normal(shape), dtype)


@tvm.jit
def rms_norm(x: Matrix, w: Vector, eps: float = 1e-6) -> te.Tensor:
    """Rows of mean square 1, times weights."""
    k = te.reduce_axis((0, x.shape[1]))
    s = te.compute((x.shape[0],), lambda i: te.sum(x[i, k] * x[i, k], axis=k))
    y: te.Tensor = te.compute(
        x.shape, lambda i, j: x[i, j] * te.rsqrt(s[i] / x.shape[1] + eps) * w[j]
    )
    return y


def _rms_norm(x: Any, w: Any, eps: float = 1e-6) -> Any:
    return x / np.sqrt((x.astype("float64") ** 2).mean(1, keepdims=True) + eps) * w


LIBRARIES: list[tuple[Callable[[Any], Any], type]] = [
    (np.asarray, np.ndarray),
    (torch.from_numpy, torch.Tensor),
    (jnp.asarray, jax.Array),
    (tvm.nd.array, tvm.NDArray),
]


@pytest.mark.parametrize(("convert", "kind"), LIBRARIES, ids=["numpy", "torch", "jax", "ndarray"])
def test_the_result_is_of_the_arguments_library(convert: Callable[[Any], Any], kind: type) -> None:
    x, w = _random(5, 7), _random(7)
    y = rms_norm(convert(x), convert(w), eps=0.25)
    assert isinstance(y, kind)
    np.testing.assert_allclose(np.asarray(y), _rms_norm(x, w, 0.25), rtol=1e-5)


def test_numbers_build_nothing_and_defaults_hold() -> None:
    rms_norm.clear()
    x, w = _random(5, 7), _random(7)
    for eps in (1e-6, 0.5, 2):
        np.testing.assert_allclose(rms_norm(x, w, eps), _rms_norm(x, w, eps), rtol=1e-5)
    np.testing.assert_allclose(rms_norm(w=w, x=x), _rms_norm(x, w), rtol=1e-5)
    assert len(rms_norm.specialisations) == 1


def test_the_third_size_builds_nothing() -> None:
    rms_norm.clear()
    made = []
    for m, n in [(5, 7), (6, 7), (9, 7), (200, 7), (0, 7), (9, 8), (5, 9), (5, 7)]:
        x, w = _random(m, n), _random(n)
        np.testing.assert_allclose(rms_norm(x, w), _rms_norm(x, w), rtol=1e-5)
        made.append(len(rms_norm.specialisations))
    assert made == [1, 2, 2, 2, 2, 3, 3, 3]
    assert [sorted(map(str, each.symbolic)) for each in rms_norm.specialisations] == [
        [],
        ["m"],
        ["m", "n"],
    ]


def test_named_letters_are_variables_at_once_and_others_constants() -> None:
    @tvm.jit(symbolic="m")
    def double(x: Matrix) -> Any:
        return x * 2.0

    for m, n in [(1, 3), (4, 3), (4, 5), (6, 5), (6, 7)]:
        x = _random(m, n)
        np.testing.assert_array_equal(double(x), 2 * x)
    assert [dict(each.fixed) for each in double.specialisations] == [{"n": 3}, {"n": 5}, {"n": 7}]


def test_a_program_that_needs_constants_is_built_for_each() -> None:
    @tvm.jit
    def unrolled(x: Vector) -> Any:
        total = x[0] * 0.0
        for i in range(int(x.shape[0])):
            total = total + x[i]
        return te.compute((), lambda: total)

    np.testing.assert_allclose(unrolled(_random(3)), _random(3).sum(), rtol=1e-5)
    with pytest.warns(tvm.PerformanceWarning, match=r"any extents n, found one that needs them"):
        unrolled(_random(4))
    np.testing.assert_allclose(unrolled(_random(5)), _random(5).sum(), rtol=1e-5)
    assert len(unrolled.specialisations) == 3


@tvm.jit
def add(x: Any, y: Any) -> Any:
    return x + y


@pytest.mark.parametrize(
    ("a", "b"),
    [((3,), (3,)), ((5,), (5,)), ((3, 4), (4,)), ((5, 1), (1, 4)), ((7, 1), (1, 9)), ((), (3,)),
     ((0, 3), (3,)), ((6, 6), (6, 6)), ((2, 8), (2, 8))],
)  # fmt: skip
def test_parameters_without_annotations_take_any_shape(
    a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    x, y = _random(*a), _random(*b)
    np.testing.assert_array_equal(add(x, y), x + y)


@pytest.mark.parametrize("number", [2.5, 3, np.float32(1.5)])
def test_a_parameter_without_annotation_takes_a_number(number: Any) -> None:
    x = _random(4)
    np.testing.assert_array_equal(add(x, number), x + np.float32(number))


@pytest.mark.parametrize("dtype", ["float64", "int8", "int64", "uint16", "float16", "bool"])
def test_dtypes_follow_the_arguments(dtype: str) -> None:
    x = np.arange(4).astype(dtype)
    y = tvm.jit(lambda x: te.compute(x.shape, lambda i: x[i]))(x)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, x)


def test_numbers_are_as_wide_as_literals_or_as_the_arrays() -> None:
    @tvm.jit
    def scaled(x: Vector, scale: float, shift: int = 0) -> Any:
        return te.compute(x.shape, lambda i: x[i] * scale + shift)

    for dtype, result in [("float32", "float32"), ("float64", "float64"), ("int8", "float32")]:
        y = scaled(np.arange(3).astype(dtype), 0.1, 2)
        assert y.dtype == result
        np.testing.assert_allclose(y, np.arange(3) * np.dtype(result).type(0.1) + 2, rtol=1e-6)


@tvm.jit
def softmax(x: Annotated[te.Tensor, "... n"]) -> Any:
    rows = x.shape[:-1]
    k, k2 = te.reduce_axis((0, x.shape[-1])), te.reduce_axis((0, x.shape[-1]))
    m = te.compute(rows, lambda *i: te.max(x(*i, k), axis=k), "m")
    e = te.compute(x.shape, lambda *i: te.exp(x(*i) - m(*i[:-1])), "e")
    s = te.compute(rows, lambda *i: te.sum(e(*i, k2), axis=k2), "s")
    return te.compute(x.shape, lambda *i: e(*i) / s(*i[:-1]), "y")


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (2, 4, 5), (1, 5), (7, 6)])
def test_leading_dimensions(shape: tuple[int, ...]) -> None:
    x = _random(*shape)
    np.testing.assert_allclose(softmax(x), _softmax(x), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (1, 4, 5)), ((7, 1, 3, 4), (2, 4, 5)),
     ((1, 3, 4), (6, 4, 5))],
)  # fmt: skip
def test_leading_dimensions_broadcast_on_request(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = _random(*a), _random(*b)
    np.testing.assert_allclose(_matmul(x, y), x @ y, rtol=1e-4, atol=1e-5)


@tvm.jit(broadcast=True)
def _matmul(a: Annotated[te.Tensor, "... m k"], b: Annotated[te.Tensor, "... k n"]) -> Any:
    k = te.reduce_axis((0, a.shape[-1]))
    return te.compute(
        (*a.shape[:-1], b.shape[-1]),
        lambda *i: te.sum(a(*i[:-1], k) * b(*i[:-2], k, i[-1]), axis=k),
    )


@tvm.jit
def parts(x: Vector, y: Annotated[te.Tensor, "2*n"], z: Vector | None = None) -> Any:
    both = te.compute(x.shape, lambda i: x[i] + y[2 * i], "both")
    return both, te.compute(y.shape, lambda i: y[i] * (2.0 if z is None else 3.0), "times")


def test_several_outputs_arithmetic_and_none() -> None:
    for n in (3, 4, 9):
        x, y = _random(n), _random(2 * n)
        both, times = parts(x, y)
        np.testing.assert_array_equal(both, x + y[::2])
        np.testing.assert_array_equal(times, y * 2)
        np.testing.assert_array_equal(parts(x, y, x)[1], y * 3)


def test_an_array_or_none_may_be_left_out() -> None:
    @tvm.jit
    def biased(x: Vector, bias: Vector | None) -> te.Tensor:
        return x if bias is None else x + bias

    x = np.ones(3, "float32")
    assert biased(x).tolist() == biased(x, None).tolist() == [1, 1, 1]
    assert biased(x, bias=x).tolist() == [2, 2, 2]


@pytest.mark.parametrize("annotation", ["n | None", "Optional['n']", "float | None"])
def test_optional_annotations_as_text_and_as_types(annotation: str) -> None:
    def biased(x: Any, bias: Any = None) -> Any:
        return te.compute(x.shape, lambda i: x[i] if bias is None else x[i] * 2.0)

    is_text = not annotation.startswith("Optional")
    given = repr(annotation) if is_text else operator.getitem(Optional, "n")
    biased.__annotations__["bias"] = given
    f, x = tvm.jit(biased), np.ones(3, "float32")
    other = 1.0 if "float" in annotation else x
    assert f(x).tolist() == [1, 1, 1] and f(x, other).tolist() == [2, 2, 2]
    with pytest.raises((TypeError, ValueError), match="argument 1 'bias': expected"):
        f(x, "no" if "float" in annotation else x[None])


def test_a_tuple_as_default_is_a_value_of_the_program() -> None:
    @tvm.jit
    def first(x: Any, size: Any = (2,)) -> Any:
        return te.compute(size, lambda i: x[i])

    x = np.arange(4, dtype="float32")
    assert first(x).tolist() == [0, 1]
    assert first(x, (3,)).tolist() == [0, 1, 2]


def test_out() -> None:
    x, y = _random(3), _random(6)
    out = (np.empty(3, "float32"), np.empty(6, "float32"))
    returned = parts(x, y, out=out)
    assert [a is b for a, b in zip(returned, out, strict=True)] == [True, True]
    np.testing.assert_array_equal(out[0], x + y[::2])
    z = np.empty((6, 2), "float32")[::2, 0]
    assert add(x, x, out=z) is z
    np.testing.assert_array_equal(z, 2 * x)


def test_static_arguments_make_programs() -> None:
    @tvm.jit(static="axis")
    def total(x: Any, axis: int = 0, negative: bool = False) -> Any:
        k = te.reduce_axis((0, x.shape[axis]))
        s = te.compute(
            (x.shape[1 - axis],), lambda i: te.sum(x[k, i] if axis == 0 else x[i, k], axis=k)
        )
        return te.compute(s.shape, lambda i: -s[i] if negative else s[i])

    x = _random(3, 4)
    np.testing.assert_allclose(total(x), x.sum(0), rtol=1e-5)
    np.testing.assert_allclose(total(x, axis=1), x.sum(1), rtol=1e-5)
    np.testing.assert_allclose(total(x, 1, True), -x.sum(1), rtol=1e-5)


@tvm.jit(static=("times", "how"))
def scaled(x: Vector, factor: float = 1.0, times: int = 1, how: Any = None) -> te.Tensor:
    """The factor, as often as asked for."""
    scale = factor if how is None else -factor
    y: te.Tensor = te.compute(x.shape, lambda i: x[i] * scale * float(times))
    return y


def test_calls_in_turn_are_of_their_own_static_arguments() -> None:
    x = np.ones(3, "float32")
    scaled.clear()
    for _ in range(3):  # the second call of a kind finds the build of another
        assert scaled(x, 2.0, 3)[0] == 6
        assert scaled(x, 2.0, 3)[0] == 6
        assert scaled(x, 2.0, 4)[0] == 8
        assert scaled(x, 2.0)[0] == 2
        assert scaled(x, 5.0)[0] == 5
        assert scaled(x, times=3, factor=2.0)[0] == 6
        assert scaled(x, times=2, factor=3.0)[0] == 6
        assert scaled(x, factor=7.0, times=2)[0] == 14
        assert scaled(x, 2.0, how="negative")[0] == -2
        assert scaled(x, 2.0, how=None)[0] == 2
        assert scaled(x, 2.0, how=(1, 2))[0] == -2
        assert scaled(x, np.float32(2.5), 2)[0] == 5
    assert len(scaled.specialisations) == 6


def test_a_call_after_another_is_checked_as_the_first() -> None:
    x = np.ones(3, "float32")
    assert scaled(x, 2.0, times=3)[0] == 6
    with pytest.raises(TypeError, match=r"expected arguments among .*, got 'tim'"):
        scaled(x, 2.0, tim=3)
    with pytest.raises(TypeError, match=r"factor.*given by position and by name"):
        scaled(x, 2.0, factor=3)
    assert scaled(x, 2.0, times=True)[0] == 2  # equal to 1 and a build of its own
    assert scaled(x.astype("float64"), 2.0, times=3).dtype == np.float64
    assert scaled(np.ones(5, "float32"), 2.0, times=3).shape == (5,)
    with pytest.raises(ValueError, match=r"x.*expected"):
        scaled(np.ones((5, 5), "float32"), 2.0, times=3)


def test_operators_of_operators() -> None:
    @tvm.jit
    def attend(q: Matrix, bias: Vector) -> Any:
        return softmax(te.compute(q.shape, lambda i, j: q[i, j] + bias[j]))

    q, bias = _random(3, 4), _random(4)
    np.testing.assert_allclose(attend(q, bias), _softmax(q + bias), rtol=1e-5)


def test_a_schedule_of_the_users() -> None:
    @tvm.jit
    def double(x: Vector) -> Any:
        y = te.compute(x.shape, lambda i: x[i] * 2.0, "y")
        s = te.create_schedule(y.op)
        _, inner = s[y].split(y.op.axis[0], factor=4)
        s[y].vectorize(inner)
        return s, y

    np.testing.assert_array_equal(double(_random(8)), 2 * _random(8))
    assert "ramp(i.outer * 4, 1, 4)" in str(double.lower("float32[8]"))
    assert "scheduled by hand" in str(double.explain("float32[8]"))


def test_what_is_returned_twice_or_untouched_is_copied() -> None:
    x = _random(3)
    a, b = tvm.jit(lambda x: (x, x))(x)
    assert a is not b and not np.shares_memory(a, x) and not np.shares_memory(a, b)
    np.testing.assert_array_equal(np.stack([a, b]), np.stack([x, x]))


class Scaling:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    @tvm.jit(static="self")
    def apply(self, x: Vector) -> Any:
        return te.compute(x.shape, lambda i: x[i] * self.scale)


def test_methods() -> None:
    x = _random(3)
    np.testing.assert_array_equal(Scaling(2.0).apply(x), 2 * x)
    np.testing.assert_array_equal(Scaling(3.0).apply(x), 3 * x)


def test_no_call_compiles_after_a_warm_up() -> None:
    @tvm.jit
    def double(x: Vector) -> Any:
        return te.compute(x.shape, lambda i: x[i] * 2.0)

    double.warm_up(["float32[8]", ("float64[8]",), {"x": torch.empty(4, device="meta")}])
    function = double.build_for("float32[8]").entry_func
    assert isinstance(function, tvm.runtime.packed_func.Function) and function.variants is not None
    variants = len(function.variants.made)
    x = _random(16)
    np.testing.assert_array_equal(double(x[::2]), 2 * x[::2])
    np.testing.assert_array_equal(double(x[:4]), 2 * x[:4])
    assert len(double.specialisations) == 3 and len(function.variants.made) == variants == 2


def test_named_letters_have_any_value_after_a_warm_up() -> None:
    @tvm.jit(symbolic="rows")
    def sums(x: Annotated[te.Tensor, "rows c"]) -> Any:
        k = te.reduce_axis((0, x.shape[1]))
        return te.compute((x.shape[0],), lambda i: te.sum(x[i, k], axis=k))

    sums.warm_up(["float32[2 3]", "float32[2 4]", "float32[9 3]"])
    for rows, c in itertools.product((0, 1, 2, 77), (3, 4)):
        x = _random(rows, c)
        np.testing.assert_allclose(sums(x), x.sum(1), rtol=1e-5)
    assert [dict(each.fixed) for each in sums.specialisations] == [{"c": 3}, {"c": 4}]


def test_tensors_without_data_have_results_without_data() -> None:
    x, w = torch.ones(5, 7), torch.ones(7)
    for args in ((x.to("meta"), w.to("meta")), (x, w), (x.to("meta"), w.to("meta"))):
        made = rms_norm(*args)
        assert (made.device, made.shape, made.dtype) == (args[0].device, x.shape, x.dtype)
    given = x.to("meta").requires_grad_()
    rms_norm(given, w.to("meta")).sum().backward()
    assert given.grad is not None and given.grad.device.type == "meta"
    with torch.device("meta"):
        assert rms_norm(torch.ones(5, 7), torch.ones(7)).device.type == "meta"
    with pytest.raises(ValueError, match=r"expected shape \(n,\)"):
        rms_norm(x.to("meta"), w[:3].to("meta"))
    with pytest.raises(BufferError, match=r"'w': expected a tensor with data.* meta"):
        rms_norm(x, w.to("meta"))


def test_looking_inside() -> None:
    x, w = _random(5, 7), _random(7)
    assert str(inspect.signature(rms_norm)).endswith("eps: 'float' = 1e-06) -> 'te.Tensor'")
    assert (rms_norm.name, rms_norm.__doc__) == (
        "rms_norm",
        "Rows of mean square 1, times weights.",
    )
    assert "def rms_norm(x: float32[5, 7], w: float32[7], eps: float32" in str(rms_norm.lower(x, w))
    assert "define" in rms_norm.source("float32[5 7]", "float32[7]")
    assert "rms_norm" in str(rms_norm.explain("float32[5 7]", "float32[7]", measure=False))
    assert isinstance(rms_norm.build_for(x, w), tvm.runtime.Module)


def test_an_operator_is_copied_and_pickled_as_a_function_is() -> None:
    assert copy.deepcopy(rms_norm) is copy.copy(rms_norm) is rms_norm
    assert pickle.loads(pickle.dumps(rms_norm)) is rms_norm


def test_threads_build_once() -> None:
    traced = []

    @tvm.jit
    def double(x: Vector) -> Any:
        traced.append(1)
        return te.compute(x.shape, lambda i: x[i] * 2.0)

    threads = [threading.Thread(target=double, args=(_random(5),)) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(traced) == 1


def test_a_fork_while_a_thread_builds() -> None:
    inside, done = threading.Event(), threading.Event()

    @tvm.jit
    def double(x: Vector) -> Any:
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            done.wait(60)
        return te.compute(x.shape, lambda i: x[i] * 2.0)

    thread = threading.Thread(target=double, args=(_random(5),))
    thread.start()
    inside.wait(60)
    try:
        assert_in_child(lambda: bool((double(_random(6)) == 2 * _random(6)).all()))
    finally:
        done.set()
        thread.join()


def test_without_arrays_outputs_are_numpys() -> None:
    y = tvm.jit(lambda: te.compute((3,), lambda i: i * 2))()
    np.testing.assert_array_equal(y, [0, 2, 4])


def test_equal_extents_are_equal_in_later_builds() -> None:
    @tvm.jit
    def coloured(x: te.Tensor) -> Any:
        more = 1.0 if x.shape[0] == x.shape[1] else 2.0 if x.shape[1] == 3 else 3.0
        return te.compute(x.shape, lambda i, j: x[i, j] + more)

    with pytest.warns(tvm.PerformanceWarning):
        for n, m in ((3, 3), (4, 5), (7, 7), (6, 5), (6, 3), (5, 5), (1, 7), (1, 1)):
            made = coloured(np.zeros((n, m), "float32"))
            assert (made == (1 if n == m else 2 if m == 3 else 3)).all(), (n, m)


def test_a_scan_reads_its_own_state() -> None:
    @tvm.jit
    def running(x: Matrix) -> Any:
        state = te.placeholder(x.shape, name="state")
        first = te.compute((1, x.shape[1]), lambda t, i: x[t, i])
        update = te.compute(x.shape, lambda t, i: state[t - 1, i] + x[t, i])
        return te.scan(first, update, state, inputs=[x])

    for shape in ((5, 7), (6, 7), (1, 3), (9, 2)):
        x = _random(*shape)
        np.testing.assert_allclose(running(x), x.cumsum(axis=0), rtol=1e-5, atol=1e-6)


def test_expressions_are_tensors_of_rank_0() -> None:
    """A product of a tensor of rank 0 and a number is an expression: no rank is special."""

    @tvm.jit
    def scaled(x: Any, a: Any) -> Any:
        return x * a

    for rank in range(3):
        x = np.full((2,) * rank, 3.0)
        found = scaled(x, 2.0)
        assert found.shape == x.shape and (found == 6).all()
    assert scaled(2.0, 3.0) == 6
    x = torch.tensor(3.0, requires_grad=True)
    scaled(x, 2.0).backward()
    assert x.grad == 2
    assert torch.vmap(lambda y: scaled(y, 2.0))(torch.arange(3.0)).tolist() == [0, 2, 4]

    @tvm.jit
    def first_and_sum(x: Any) -> Any:
        k = te.reduce_axis((0, x.shape[0]))
        return x[0], te.sum(x[k], axis=k)

    assert [float(each) for each in first_and_sum(np.arange(1.0, 4.0))] == [1, 6]
