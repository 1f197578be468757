"""Odd names and texts: what C's strings and UTF-8 can't hold is refused, by name, wherever it comes
in; everything else is a name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te, tir
from minitvm.runtime import PackedFunc

LONE, ZERO = "a\ud800b", "a\0b"
GOOD = ("ünï ☃", "a b", '"%s%n\\', "𝔸", "\t\n", "x" * 5000, "define i32 @f()", "\x7f\x01", "1")


def program(**names: str) -> None:
    """Builds and calls a program in which one thing is so called, and reads what it says."""
    n = te.var(names.get("variable", "n"))
    a = te.placeholder((n, n), name=names.get("input", "A"))
    k = te.reduce_axis((0, n), name=names.get("axis", "k"))
    p = te.compute((n,), lambda i: te.sum(a[i, k], axis=k), name="P")
    b = te.compute((n,), lambda i: p[i] + 1.0, name=names.get("output", "B"))
    f = tvm.build(te.create_schedule(b.op), [a, b], name=names.get("function", "f"))
    x, out = np.ones((3, 3), "float32"), np.zeros(3, "float32")
    f(x, out)
    assert list(out) == [4, 4, 4]
    with pytest.raises(ValueError, match="expected") as refused:
        f(x, out[:2])
    str(refused.value).encode()


def extern(body: Callable[[Any], Any]) -> None:
    b = te.extern((2,), [], lambda ins, outs: body(outs[0]), dtype="int32", name="B")
    tvm.build(te.create_schedule(b.op), [b])(np.zeros(2, "int32"))


def packed(name: str) -> None:
    tvm.register_func(name, lambda *args: 0, override=True)
    try:
        extern(lambda out: tvm.call_packed(name, out))
    finally:
        tvm.remove_global_func(name)


def argument(text: str) -> None:
    seen: list[str] = []
    tvm.register_func("names.keep", seen.append, override=True)
    extern(lambda out: tvm.call_packed("names.keep", tir.StringImm(text)))
    tvm.remove_global_func("names.keep")
    assert seen == [text]


def returned(text: str) -> None:
    assert PackedFunc(lambda: text)() == text


def given(text: str) -> None:
    for _ in range(3):
        assert PackedFunc(lambda x: x)(text) == text


def named(name: str) -> None:
    f = PackedFunc(lambda x: x, name=name)
    with pytest.raises(TypeError, match="by name") as refused:
        f(x=1)
    str(refused.value).encode()


OF_A_PROGRAM = ("variable", "input", "output", "function", "axis")
PLACES: dict[str, Callable[[str], None]] = {
    **{
        place: functools.partial(lambda place, name: program(**{place: name}), place)
        for place in OF_A_PROGRAM
    },
    "call_packed": packed,
    "string": argument,
    "result": returned,
    "argument": given,
    "packed function": named,
}


@pytest.mark.parametrize("text", [LONE, ZERO], ids=ascii)
@pytest.mark.parametrize("place", PLACES)
def test_names_that_c_cannot_have_are_refused(place: str, text: str) -> None:
    shown = "without a zero|a name such as 'fmm'" if text == ZERO else "text that UTF-8 can encode"
    with pytest.raises(ValueError, match=f"expected .*({shown}).*, got .*a.*b") as refused:
        PLACES[place](text)
    assert type(refused.value) is not UnicodeEncodeError
    str(refused.value).encode()


@pytest.mark.parametrize("text", GOOD, ids=ascii)
def test_all_other_names_are_names(text: str) -> None:
    """Nothing is raised, and what a place does with its name is right."""
    program(**dict.fromkeys(OF_A_PROGRAM, text))
    for place in PLACES.keys() - {*OF_A_PROGRAM}:
        PLACES[place](text)


@pytest.mark.parametrize("text", [LONE, ZERO], ids=ascii)
def test_names_of_c_functions_and_texts_of_llvm(text: str) -> None:
    def call(name: str) -> None:
        one = te.const(1.0, "float32")
        b = te.compute((2,), lambda i: tir.call_extern("float32", name, one), name="B")
        tvm.build(te.create_schedule(b.op), [b])

    with pytest.raises(tvm.error.CompileError, match="expected"):
        call(text)


def test_a_python_function_may_be_called_anything() -> None:
    def oddly() -> object:
        return 2**70

    oddly.__name__ = LONE
    with pytest.raises(OverflowError, match=r"^a\\ud800b: result: expected an integer that int64"):
        PackedFunc(oddly)()
