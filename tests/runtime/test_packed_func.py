"""PackedFunc and Function: every value both ways, errors both ways, lifetimes, leaks."""

from __future__ import annotations

import ctypes
import functools
import gc
import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te, tir
from minitvm.runtime import (
    ArgTypeCode,
    Device,
    DType,
    InternalError,
    LayoutError,
    NDArray,
    PackedFunc,
    array,
    convert_to_packed,
    cpu,
    from_dlpack,
)
from minitvm.tir.interpreter import interpret
from tests.leaks import least_growth, traced_growth


class Thing:
    """An arbitrary object."""


PLAIN: list[Any] = [
    0, -(2**63), 2**63 - 1, True, 0.0, -1.5, float("inf"), "", "text", "ünï ☃", b"", b"a\0b",
    None, DType.of("float32x4"), DType.of("bool"), cpu(0), Device(2, 3),
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_come_back_through_python_and_compiled_code(compiled: Any, value: Any) -> None:
    seen: list[Any] = []

    def callback(x: Any) -> Any:
        seen.append(x)
        return x

    assert PackedFunc(callback)(value) == value
    assert compiled.packed("forward")(callback, value) == value
    assert compiled.packed("return_first")(value) == value
    assert seen == [value, value]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int8(-3), -3), (np.uint64(7), 7), (np.bool_(True), 1), (np.float16(0.5), 0.5),
        (np.float64(2.5), 2.5), (bytearray(b"xy"), b"xy"),
    ],
    ids=repr,
)  # fmt: skip
def test_numpy_scalars_cross_as_numbers(value: Any, expected: Any) -> None:
    assert PackedFunc(lambda x: x)(value) == expected


@pytest.mark.parametrize("code", [ArgTypeCode.INT, ArgTypeCode.UINT], ids=lambda c: c.name)
@pytest.mark.parametrize("bits", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_the_type_code_says_whether_a_number_has_a_sign(
    compiled: Any, code: ArgTypeCode, bits: int
) -> None:
    signed = bits - 2**64 if bits >> 63 else bits
    expected = bits if code is ArgTypeCode.UINT else signed
    call = compiled.packed("return_first")
    arguments = call._convert((signed,))
    arguments.codes[0] = code
    assert call._call(arguments) == expected

    seen: list[int] = []
    forward = compiled.packed("forward")
    arguments = forward._convert((PackedFunc(seen.append), signed))
    arguments.codes[1] = code
    forward._call(arguments)
    assert seen == [expected]


@pytest.mark.parametrize(
    "make",
    [Thing, list, dict, lambda: (1, 2), lambda: Thing],
    ids=["Thing", "list", "dict", "tuple", "class"],
)
def test_objects_keep_their_identity(compiled: Any, make: Any) -> None:
    value = make()
    assert PackedFunc(lambda x: x)(value) is value
    assert compiled.packed("forward")(lambda x: x, value) is value
    assert compiled.packed("return_first")(value) is value


def test_returned_objects_keep_their_identity_without_another_owner(compiled: Any) -> None:
    made = weakref.WeakSet[Thing]()

    def callback() -> Thing:
        thing = Thing()
        made.add(thing)
        return thing

    result = compiled.packed("forward")(callback)
    assert result in made
    del result
    gc.collect()
    assert not made


def test_opaque_handle_keeps_its_address() -> None:
    seen = PackedFunc(lambda x: x)(ctypes.c_void_p(4096))
    assert isinstance(seen, ctypes.c_void_p)
    assert seen.value == 4096


def test_packed_functions_keep_their_identity_and_callables_become_ones(compiled: Any) -> None:
    add = PackedFunc(lambda x, y: x + y, name="add")
    assert compiled.packed("forward")(lambda f: f, add) is add
    assert PackedFunc(lambda f: f(2, 3))(add) == 5
    returned = PackedFunc(lambda: functools.partial(max, 3))()
    assert isinstance(returned, PackedFunc)
    assert returned(9) == 9
    assert convert_to_packed(add) is add


def test_function_struct_of_other_code_is_callable(compiled: Any) -> None:
    struct = (ctypes.c_void_p * 2)(compiled.address("return_count"), None)
    handle = ctypes.addressof(struct)
    call = compiled.packed("return_first")
    arguments = call._convert((ctypes.c_void_p(handle), 1))
    arguments.codes[0] = 10
    assert call._call(arguments)(1, 2, 3) == 3


def test_arrays_come_as_lent_ndarrays(compiled: Any) -> None:
    x = np.arange(6.0).reshape(2, 3)
    seen: list[NDArray] = []

    def callback(a: NDArray, b: NDArray) -> None:
        assert a.shape == b.shape == (2, 3)
        assert a.dtype == "float64"
        assert a.is_lent
        np.testing.assert_array_equal(a.numpy(), x)
        b[...] = a
        seen.extend([a, b, a[0]])

    out = array(np.zeros((2, 3)))
    compiled.packed("forward")(callback, x, out)
    np.testing.assert_array_equal(out.numpy(), x)
    for lent in seen:
        for access in (
            lent.numpy, lent.__dlpack__, lambda a=lent: a[0], lambda a=lent: a.handle,
            lambda a=lent: a.data, lambda a=lent: array(a), lambda a=lent: np.asarray(a),
            lambda a=lent: a.copyfrom(x[: len(a)] if a.ndim == 2 else x[0]),
            lambda a=lent: compiled.function()(a, out, out),
            lambda a=lent: compiled.function()(out, out, a),
            lambda a=lent: compiled.packed("return_count")(a),
        ):  # fmt: skip
            with pytest.raises(ValueError, match="lent to a callback for one call, which has ret"):
                access()
        assert "lent for a call that has returned" in repr(lent)


@pytest.mark.parametrize("kind", ["callback", "compiled"])
def test_an_array_that_was_lent_is_no_argument(compiled: Any, kind: str) -> None:
    """By the compiled path too, which has met arrays that were lent, and its parts and views:
    the memory may be gone."""
    kept: list[NDArray] = []

    def keep(a: NDArray) -> None:
        take(a, a, a)  # while it is lent it is as good as any
        kept.extend([a, a[1:], a.reshape(3, 1), a.view("int64")])

    take: Any = compiled.function() if kind == "compiled" else PackedFunc(lambda *args: None)
    text = "lent to a callback for one call, which has returned"
    for _ in range(5):
        kept.clear()
        compiled.packed("forward")(keep, np.zeros(3))
        assert take(array([1.0]), array([1.0]), array([1.0])) in (None, 3)
        for lent in kept:
            for position in range(3):
                args = [lent if i == position else array([1.0]) for i in range(3)]
                with pytest.raises(ValueError, match=rf"argument {position}.*{text}"):
                    take(*args)
            with pytest.raises(ValueError, match=text):
                PackedFunc(lambda a: a)(lent)


@pytest.mark.parametrize("value", [0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1])
def test_unsigned_results_and_arguments_of_other_code(compiled: Any, value: int) -> None:
    """We write integers as signed ones; other code may say that one is unsigned."""
    for function, given in (("return_first", ()), ("forward", (PackedFunc(lambda x: [x]),))):
        call = compiled.packed(function)
        arguments = call._convert((*given, 0))
        arguments.values[len(given)].v_int64 = value
        arguments.codes[len(given)] = ArgTypeCode.UINT
        assert call._call(arguments) == ([value] if given else value)
    made = compiled.packed("unsigned")
    for _ in range(3):
        assert made(ctypes.c_void_p(value)) == value


def test_strided_arrays_reach_callbacks(compiled: Any) -> None:
    x = np.arange(12.0).reshape(3, 4)[::-2, 1::2]
    got: np.ndarray[Any, Any] = compiled.packed("forward")(lambda a: a, x).numpy()
    np.testing.assert_array_equal(got, x)


def test_returned_lent_array_is_copied_and_returned_array_is_itself(compiled: Any) -> None:
    x = np.arange(3)
    result = compiled.packed("forward")(lambda a: a[1:], x)
    x[:] = 9
    np.testing.assert_array_equal(result.numpy(), [1, 2])
    owned = array([1.0])
    assert compiled.packed("forward")(lambda: owned) is owned
    assert compiled.packed("return_first")(owned) is owned
    assert compiled.packed("forward")(lambda: x) is x


def test_array_result_that_is_an_argument_shares_and_that_nobody_owns_is_copied(
    compiled: Any,
) -> None:
    x = np.arange(3)
    first = compiled.packed("return_first")
    shared = first(x)
    view = from_dlpack(x)
    arguments = first._convert((ctypes.c_void_p(view.handle),))
    arguments.codes[0] = 7
    copied = first._call(arguments)
    x[:] = 9
    np.testing.assert_array_equal(shared.numpy(), [9, 9, 9])
    np.testing.assert_array_equal(copied.numpy(), [0, 1, 2])


def test_array_kept_of_lent_memory_is_an_error(compiled: Any) -> None:
    kept = []

    def keep(a: NDArray) -> None:
        kept.append(np.asarray(a))

    with pytest.raises(BufferError, match="keep: expected no array to outlive the callback"):
        compiled.packed("forward")(keep, np.arange(3))


def test_array_of_lent_memory_within_the_callback_is_fine(compiled: Any) -> None:
    def double(a: NDArray) -> None:
        shared: Any = np.asarray(a)
        shared *= 2
        cycle: list[Any] = [shared]
        cycle.append(cycle)

    x = np.arange(3)
    compiled.packed("forward")(double, x)
    np.testing.assert_array_equal(x, [0, 2, 4])


def test_many_returned_strings_in_one_call(compiled: Any) -> None:
    fill = compiled.function("forward", ("f",), ())
    count = iter(range(1000))
    evaluate = fill.time_evaluator(number=300)
    evaluate(lambda: f"text {next(count)}")
    assert next(count) == 301


# ---- Errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, KeyError])
def test_exception_of_a_callback_crosses_as_the_same_object(compiled: Any, kind: Any) -> None:
    raised = kind("from below")

    def fail() -> None:
        raise raised

    with pytest.raises(kind) as caught:
        compiled.packed("forward")(fail)
    assert caught.value is raised
    assert "fail" in [entry.name for entry in caught.traceback]
    raised.__traceback__ = None


def test_exception_keeps_its_cause_and_context(compiled: Any) -> None:
    def fail() -> None:
        raise ValueError("second") from KeyError("first")

    with pytest.raises(ValueError, match="second") as caught:
        compiled.packed("forward")(fail)
    assert isinstance(caught.value.__cause__, KeyError)


def test_exception_crosses_several_levels(compiled: Any) -> None:
    forward = compiled.packed("forward")

    def inner() -> None:
        raise ZeroDivisionError("deep")

    with pytest.raises(ZeroDivisionError, match="deep"):
        forward(lambda: forward(lambda: forward(inner)))


def test_caught_exception_leaves_no_trace(compiled: Any) -> None:
    forward = compiled.packed("forward")

    def outer() -> int:
        with pytest.raises(ValueError, match="set by code"):
            compiled.packed("raise_value_error")()
        with pytest.raises(ZeroDivisionError):
            forward(lambda: 1 // 0)
        return 7

    assert forward(outer) == 7


def test_compiled_code_raises(compiled: Any) -> None:
    with pytest.raises(ValueError, match=r"^set by code: $"):
        compiled.packed("raise_value_error")()


def test_failure_without_an_error_is_our_bug(compiled: Any) -> None:
    with pytest.raises(InternalError, match="fail_silently: failed with status -1 but set no err"):
        compiled.packed("fail_silently")()


def test_bad_results_of_compiled_code(compiled: Any) -> None:
    with pytest.raises(ValueError, match="expected a type code of the packed ABI, got 99"):
        compiled.packed("bad_code")()
    with pytest.raises(ValueError, match="expected a handle of type code 7, got NULL"):
        compiled.packed("null_array")()


def test_results_that_cannot_cross() -> None:
    def huge() -> int:
        return 1 << 63

    with pytest.raises(OverflowError, match=r"^huge: result: expected an integer that int64 holds"):
        PackedFunc(huge)()
    with pytest.raises(ValueError, match="result: expected a string without a zero character"):
        PackedFunc(lambda: "a\0b")()


def test_arguments_that_cannot_cross() -> None:
    function = PackedFunc(lambda *args: None, name="f")
    with pytest.raises(
        OverflowError, match=r"^f: argument 1: expected an integer that int64 holds"
    ):
        function(0, 1 << 63)
    with pytest.raises(OverflowError, match=f"got {-(2**63) - 1}"):
        function(-(2**63) - 1)
    with pytest.raises(ValueError, match="argument 0: expected a string without a zero character"):
        function("a\0b")
    with pytest.raises(ValueError, match="argument 0: expected elements in native byte order"):
        function(np.arange(3).astype(">i8" if sys.byteorder == "little" else "<i8"))
    with pytest.raises(TypeError, match="argument 0: expected elements of a dtype that minitvm"):
        function(np.array(["a"]))
    with pytest.raises(TypeError, match="expected an array without a mask"):
        function(np.ma.masked_array([1, 2], [False, True]))
    with pytest.raises(TypeError, match="expected a callable or an address, got str"):
        PackedFunc("f")


def test_reentrancy(compiled: Any) -> None:
    forward = compiled.packed("forward")

    def factorial(n: int) -> int:
        return 1 if n <= 1 else n * forward(factorial, n - 1)

    assert forward(factorial, 15) == 1307674368000


def test_threads_do_not_share_results_or_errors(compiled: Any) -> None:
    forward = compiled.packed("forward")
    wrong: list[Any] = []

    def fail(index: int) -> None:
        raise ValueError(f"thread {index}")

    def work(index: int) -> None:
        for step in range(200):
            got = forward(lambda: f"{index} {step}")  # noqa: B023
            if got != f"{index} {step}":
                wrong.append(got)
            with pytest.raises(ValueError, match=f"thread {index}"):
                forward(fail, index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ---- Function ------------------------------------------------------------------------------------


def test_function_says_which_argument_is_wrong(compiled: Any) -> None:
    fmm = compiled.function()
    x = np.zeros(3)
    assert fmm(x, x, x) == 3
    for wrong, found in (
        ({}, "dict"),
        (Thing(), "Thing"),
        ([1], "list: pass np.asarray(x)"),
        ((), "tuple: pass np.asarray(x)"),
    ):
        with pytest.raises(TypeError) as caught:
            fmm(x, wrong, x)
        expected = "fmm: argument 1 'Y': expected an array (numpy, DLPack...)"
        assert str(caught.value) == f"{expected}, got {found}"
    with pytest.raises(
        OverflowError, match=r"^fmm: argument 0 'X': expected an integer that int64"
    ):
        fmm(1 << 64, x, x)
    with pytest.raises(TypeError, match=r"^fmm: argument 3: expected an array"):
        fmm(x, x, x, [])


def test_function_refuses_to_write_read_only_arrays(compiled: Any) -> None:
    fmm = compiled.function()
    x = np.zeros(3)
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    assert fmm(frozen, np.broadcast_to(x, (2, 3)), x) == 3
    for target in (frozen, from_dlpack(frozen)):
        with pytest.raises(
            ValueError,
            match=r"^fmm: argument 2 'Z': expected a writable array, got a read-only one: ",
        ):
            fmm(x, x, target)


def test_function_keeps_the_type_of_a_producers_error(compiled: Any) -> None:
    class Stubborn(Exception):
        pass

    class Array:
        def __dlpack__(self, **_: Any) -> None:
            raise Stubborn("not today")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    with pytest.raises(Stubborn, match=r"^fmm: argument 0 'X': not today$"):
        compiled.function()(Array(), 1, 2)


def test_keyword_arguments(compiled: Any) -> None:
    first = compiled.function("return_first")
    assert first(X=1, Y=2, Z=3) == 1
    assert first(1, Z=3, Y=2) == 1
    assert compiled.function()(Z=1, X=2, Y=3) == 3
    with pytest.raises(TypeError, match=r"^fmm: expected arguments among X, Y, Z, got 'W'$"):
        first(1, 2, W=3)
    with pytest.raises(TypeError, match=r"^fmm: argument 0 'X': given by position and by name$"):
        first(1, X=1)
    with pytest.raises(TypeError, match=r"^fmm: argument 1 'Y': expected a value, got none$"):
        first(1, Z=3)


def test_wrong_number_of_positional_arguments_reaches_the_code(compiled: Any) -> None:
    assert compiled.function()(1) == 1
    assert compiled.function()(1, 2, 3, 4) == 4


def test_strided_variant_is_made_once_and_used(compiled: Any) -> None:
    made: list[int] = []

    def strided() -> int:
        made.append(compiled.address("increment"))
        return made[-1]

    fmm = compiled.function("increment_compact", ("X",), (0,), strided)
    x = np.zeros(4, np.int64)
    fmm(x)
    assert made == []
    fmm(x[::2])
    fmm(X=x[::2])
    assert len(made) == 1
    assert x[0] == 3
    with pytest.raises(LayoutError, match="fmm: strides 2"):
        compiled.function("increment_compact", ("X",), (0,))(x[::2])


def test_layout_error_of_a_callback_is_its_own(compiled: Any) -> None:
    def strided() -> int:
        raise AssertionError("not our LayoutError")

    def callback() -> None:
        compiled.function("increment_compact", ("X",), (0,))(np.zeros(4, np.int64)[::2])

    with pytest.raises(LayoutError, match="fmm: strides 2"):
        compiled.function("forward", ("f",), (), strided)(callback)


def test_time_evaluator_counts_and_results(compiled: Any) -> None:
    increment = compiled.function("increment", ("X",), (0,))
    x = np.zeros(1, np.int64)
    result = increment.time_evaluator(number=5, repeat=3)(x)
    assert x[0] == 1 + 5 * 3
    assert len(result.results) == 3
    assert 0 < result.min <= result.median <= result.max
    assert result.min <= result.mean <= result.max
    assert "mean (ms)" in str(result)
    assert increment.time_evaluator(number=1, min_repeat_ms=2)(X=x).mean > 0
    assert x[0] > 1000


def test_time_evaluator_uses_the_strided_variant(compiled: Any) -> None:
    fmm = compiled.function(
        "increment_compact", ("X",), (0,), lambda: compiled.address("increment")
    )
    x = np.zeros(4, np.int64)
    fmm.time_evaluator(number=5)(x[::2])
    assert x[0] == 6


def test_time_evaluator_errors(compiled: Any) -> None:
    fmm = compiled.function("forward", ("f",), ())
    with pytest.raises(ValueError, match="expected number of at least 1, got 0"):
        fmm.time_evaluator(number=0)
    with pytest.raises(ValueError, match="expected repeat of at least 1, got -1"):
        fmm.time_evaluator(repeat=-1)
    with pytest.raises(ValueError, match="expected min_repeat_ms of at least 0, got -1"):
        fmm.time_evaluator(min_repeat_ms=-1)
    calls = iter(range(100))

    def fail_at_third() -> None:
        if next(calls) == 2:
            raise ValueError("third call")

    with pytest.raises(ValueError, match="third call"):
        fmm.time_evaluator(number=50)(fail_at_third)
    assert next(calls) == 3


# ---- Lifetimes and leaks -------------------------------------------------------------------------


def test_functions_and_callables_are_freed(compiled: Any) -> None:
    thing = Thing()
    alive = weakref.ref(thing)
    function = PackedFunc(functools.partial(getattr, thing, "__class__"))
    assert function() is Thing
    del thing
    gc.collect()
    assert alive() is not None
    del function
    gc.collect()
    assert alive() is None


def test_owner_lives_as_long_as_the_function(compiled: Any) -> None:
    owner = Thing()
    alive = weakref.ref(owner)
    function = PackedFunc(compiled.address("return_count"), owner=owner)
    del owner
    assert alive() is not None
    assert function(1) == 1
    del function
    assert alive() is None


class Failing:
    def __dlpack__(self, **_: Any) -> None:
        raise BufferError("no")


def _call_well(fmm: Any, forward: Any, x: Any) -> None:
    fmm(x, x[::2], 3.5)
    forward(lambda a: a, "text")
    forward(lambda a: a[0], x)
    forward(lambda: Thing())


def _call_badly(fmm: Any, forward: Any, x: Any) -> None:
    with pytest.raises(TypeError):
        fmm(x, [], x)
    with pytest.raises(BufferError):
        fmm(Failing(), x, x)
    with pytest.raises(ZeroDivisionError):
        forward(lambda: 1 // 0)


@pytest.mark.parametrize("call", [_call_well, _call_badly])
def test_calls_leak_nothing(compiled: Any, call: Any) -> None:
    fmm, forward, x = compiled.function(), compiled.packed("forward"), np.zeros(8)

    def calls() -> None:
        call(fmm, forward, x)

    references = sys.getrefcount(x)
    assert traced_growth(calls, 500, 2500) < 2500  # five bytes a call
    assert sys.getrefcount(x) == references
    assert least_growth(lambda: len(gc.get_objects()), calls, 100, 20) < 20


def test_a_leak_of_one_small_object_a_call_is_seen() -> None:
    kept: list[object] = []
    assert traced_growth(lambda: kept.append(object()), 500, 2500) > 2500
    assert least_growth(lambda: len(gc.get_objects()), lambda: kept.append([]), 100, 20) >= 100


@pytest.mark.wide
def test_a_hundred_thousand_calls_leak_nothing(compiled: Any) -> None:
    fmm, x = compiled.function(), np.zeros(8)
    assert traced_growth(lambda: fmm(x, x, x), 100_000, 20_000) < 20_000


# -- Results that a program reads ------------------------------------------------------------------


@contextmanager
def registered(name: str, function: Callable[..., Any]) -> Iterator[None]:
    tvm.register_func(name, function)
    try:
        yield
    finally:
        tvm.remove_global_func(name)


def reads(result: Any) -> tuple[Callable[[], int], Callable[[], int]]:
    """What a compiled program reads of a callback's result, and what the interpreter reads."""
    place = te.compute((1,), lambda i: tvm.call_packed("test.give", i), name="P")
    function = tvm.lower([place], [place])["main"]

    def compiled() -> int:
        out = np.zeros(1, "int32")
        with registered("test.give", lambda _: result):
            tvm.build([place], [place])(out)
        return int(out[0])

    def interpreted() -> int:
        out = np.zeros(1, "int32")
        interpret(function, out, packed={"test.give": lambda _: result})
        return int(out[0])

    return compiled, interpreted


@pytest.mark.parametrize("result", [7, -(2**31), 2**31 - 1, True, 3.0, np.int64(5), np.float32(2)])
def test_numbers_that_a_program_reads(result: Any) -> None:
    for read in reads(result):
        assert read() == int(result)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (2**31, "expected a number that int32 holds, got 2147483648"),
        (-(2**31) - 1, "expected a number that int32 holds, got -2147483649"),
        (2.5, "expected a number that int32 holds, got 2.5"),
        (math.nan, "expected a number that int32 holds, got nan"),
        (math.inf, "expected a number that int32 holds, got inf"),
        (None, "expected a number of dtype int32, got NoneType"),
        ("7", "expected a number of dtype int32, got str"),
        ([7], "expected a number of dtype int32, got list"),
        (np.zeros(1, "int32"), "expected a number of dtype int32, got ndarray"),
    ],
)
def test_what_a_program_cannot_read(result: Any, text: str) -> None:
    for read in reads(result):
        with pytest.raises((TypeError, ValueError), match=text):
            read()


@pytest.mark.parametrize("result", [None, "text", 2**40, [1]])
def test_results_of_statements_are_nobodys(result: Any) -> None:
    def say(ins: Any, outs: Any) -> Any:
        ib = tir.ir_builder.create()
        ib.emit(tvm.call_packed("test.say"))
        ib.buffer_ptr(outs[0])[0] = 1
        return ib.get()

    out = te.extern((1,), [], say, dtype="int32", name="S")
    got, wanted = np.zeros(1, "int32"), np.zeros(1, "int32")
    with registered("test.say", lambda: result):
        tvm.build([out], [out])(got)
    interpret(tvm.lower([out], [out])["main"], wanted, packed={"test.say": lambda: result})
    assert got[0] == wanted[0] == 1
