"""Machine code in this process: functions, variables, and symbols that are missing."""

from __future__ import annotations

import ctypes

import pytest

from minitvm.runtime.errors import InternalError
from minitvm.runtime.native import NativeCode
from minitvm.runtime.native_text import native_text

TEXT = """
@number = global i64 7
@hidden = internal global i64 5

define i64 @add_hidden(i64 %x) {
  %slot = alloca i64
  store i64 %x, ptr %slot
  %y = load i64, ptr %slot
  %old = load i64, ptr @hidden
  %new = add i64 %y, %old
  store i64 %new, ptr @hidden
  ret i64 %new
}

define i64 @measure(ptr %text) {
  %length = call i64 @strlen(ptr %text)
  ret i64 %length
}

define void @clear(ptr %memory, i64 %size) {
  call void @llvm.memset.p0.i64(ptr %memory, i8 0, i64 %size, i1 false)
  ret void
}
"""
CALL_NOTHING = """
declare void @no_such_function()
define void @call() {
  call void @no_such_function()
  ret void
}
"""
INT = ctypes.c_int64


@pytest.fixture(scope="module")
def code() -> NativeCode:
    return NativeCode(native_text(TEXT))


def test_functions_keep_their_variables(code: NativeCode) -> None:
    add = ctypes.CFUNCTYPE(INT, INT)(code.function("add_hidden"))
    assert [add(1), add(10)] == [6, 16]


def test_variables_can_be_written(code: NativeCode) -> None:
    number = INT.from_address(code.data("number"))
    assert number.value == 7
    number.value = 8
    assert INT.from_address(code.data("number")).value == 8


def test_symbols_that_it_needs(code: NativeCode) -> None:
    measure = ctypes.CFUNCTYPE(INT, ctypes.c_char_p)(code.function("measure"))
    assert measure(b"seven") == 5


def test_what_llvm_calls_by_itself(code: NativeCode) -> None:
    memory = ctypes.create_string_buffer(b"x" * 5000)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, INT)(code.function("clear"))(
        ctypes.addressof(memory), 4999
    )
    assert memory.raw == b"\0" * 4999 + b"x\0"


def test_a_name_that_is_not_there(code: NativeCode) -> None:
    with pytest.raises(InternalError, match=r"minitvm_runtime_nothing: no such symbol"):
        code.function("nothing")
    with pytest.raises(InternalError, match=r"minitvm_runtime_nothing: no such symbol"):
        code.data("nothing")
    with pytest.raises(ValueError, match="no_such_function"):
        NativeCode(native_text(CALL_NOTHING), ctypes.CDLL(None))


def test_the_same_text_twice_has_variables_of_its_own(code: NativeCode) -> None:
    other = NativeCode(native_text(TEXT))
    assert other.data("number") != code.data("number")
