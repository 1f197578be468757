"""The language of native code: the meaning of each part, and the mistakes that it refuses."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import pytest

from minitvm.runtime.errors import InternalError
from minitvm.runtime.native import NativeCode
from minitvm.runtime.native_language import translate
from minitvm.runtime.native_text import native_text

I64 = ctypes.c_int64

PAGE = """
class Node:
    key: i64
    next: ptr[Node]
    parts: array[i32, 3]

class Holder:
    tag: i8
    node: Node

hidden: internal[i64] = 5
table: array[i64, 4]
text = "a \\"text\\"\\n"

@export
def quotient(a: i64, b: i64) -> i64:
    return a // b * 1000 + a % b

@export
def unsigned_quotient(a: i64, b: i64) -> i64:
    return i64(u64(a) // u64(b)) + i64(u64(a) % u64(b))

@export
def shifts(a: i64, n: i64) -> i64:
    return (a >> n) + i64(u64(a) >> u64(n)) + (a << n) + (a & 12) + (a | 3) + (a ^ 5)

@export
def compare(a: i64, b: i64) -> i64:
    signed = (a < b) | (a == b and a <= b and a >= b and not a != b and not a > b)
    return i64(signed) * 10 + i64(u64(a) < u64(b))

@export
def widths(a: i64) -> i64:
    return i64(i8(a)) + 1000 * i64(u8(a)) + 1000000 * i64(i1(a))

@export
def real(a: i64) -> i64:
    x = alloca(double)
    store(a, x)
    return bits(double(float(x[0])))

@export
def sum_of_odd(n: i64) -> i64:
    total = 0
    for i in range(n):
        if i % 2 == 0:
            continue
        if i > 10:
            break
        total += i
    return total

@export
def from_to(first: i64, last: i64) -> i64:
    n = 0
    for i in range(first, last):
        n = n * 10 + i
    return n

@export
def nested(n: i64) -> i64:
    found = 0
    i = 0
    while True:
        for j in range(i):
            if j == 2:
                break
            found += 1
        i += 1
        if i == n:
            return found

@export
def chosen(a: i64) -> i64:
    match a:
        case 1 | 2:
            a += 100
        case -3:
            return 7
        case 4:
            return 8
        case _:
            a = -a
    return a

@export
def without_default(a: i64) -> i64:
    match a:
        case 1:
            return 10
    return 20

@export
def lazy(a: ptr[Node]) -> i64:
    if a and a.key == 3 or not a:
        return a.key if a else -1
    return 0 if not (a.key > 5 and a.next) else 1

@export
def literals(a: i64) -> i64:
    x: i32 = 0
    x = 7 if a else -7
    return i64(x) if a != 2 else 9

@export
def sum_of_keys(node: ptr[Node]) -> i64:
    total = 0
    while node:
        total += node.key
        node = node.next
    return total

@export
def fields() -> i64:
    holder = alloca(Holder)
    holder.node.key = 1
    holder.node.parts[2] = 20
    at(holder.node).next = at(holder.node)
    holder.node.next.parts[0] = 300
    both = holder.node.parts[0] + at(holder.node.parts)[2]
    return i64(both) + holder.node.next.key + i64(sizeof(Holder)) * 1000

@export
def moved(n: i64) -> i64:
    memory = alloca(i64, n)
    for i in range(n):
        memory[i] = i
    last = memory + n - 1
    return last[0] * 100 + load(i64, ptr(memory) + 8) * 10 + last[-1]

@export
def globals(a: i64) -> i64:
    global hidden
    hidden += a
    table[a] = hidden
    hidden = 5
    return table[a]

@export
def shadowed(a: i64) -> i64:
    table = a
    return table + 1

@export
def overflows(a: i64, b: i64) -> i64:
    total, is_over = add_overflow(a, b)
    product, is_large = mul_overflow(u64(a), u64(b))
    return (0 if is_over else total) + (1000 if is_large else 0)

@export
def extremes(a: i64, b: i64) -> i64:
    return max(a, b) * 1000 + i64(min(u64(a), u64(b))) + i64(sub_saturating(u64(3), 4))

@export
def atomic(a: i64) -> i64:
    memory = alloca(i64)
    store_release(a, memory[0])
    before = fetch_add(memory[0], 1, seq_cst)
    done = exchanges(memory[0], a + 1, 50, acq_rel) and not exchanges(memory[0], 3, 4, acquire)
    return load_acquire(memory[0]) + before * 100 + i64(done) * 10000

def helper(a: i64) -> i64:
    return a * 2

@export
def by_address(a: i64) -> i64:
    return call(i64, helper, a) + call(i64, helper, 1)

@export
def characters(place: i64) -> i64:
    return i64(load(i8, text + place)) + i64(strlen("four"))

@export
def nothing(memory: ptr[i64]):
    if not memory:
        return
    memory[0] = 1
"""


@pytest.fixture(scope="module")
def code() -> NativeCode:
    return NativeCode(native_text(PAGE))


@pytest.fixture(scope="module")
def run(code: NativeCode) -> Callable[..., int]:
    def call(name: str, *arguments: int) -> int:
        kinds = [I64] * len(arguments)
        return int(ctypes.CFUNCTYPE(I64, *kinds)(code.function(name))(*arguments))

    return call


HIGH = -(1 << 63)


def _bits(number: float) -> int:
    return int(struct.unpack("q", struct.pack("d", number))[0])


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("quotient", (7, 2), 3001),
        ("quotient", (-7, 2), -3001),  # toward zero, as in C
        ("unsigned_quotient", (-1, 1 << 32), (1 << 32) - 1 + (1 << 32) - 1),
        ("shifts", (-8, 1), -4 + (1 << 63) - 4 + -16 + (-8 & 12) + (-8 | 3) + (-8 ^ 5)),
        ("compare", (-1, 1), 10),
        ("compare", (1, -1), 1),
        ("compare", (2, 2), 10),
        ("widths", (511,), -1 + 255 * 1000 + 1_000_000),
        ("real", (_bits(3.14),), _bits(struct.unpack("f", struct.pack("f", 3.14))[0])),
        ("sum_of_odd", (6,), 9),
        ("sum_of_odd", (100,), 25),
        ("sum_of_odd", (-1,), 0),
        ("from_to", (2, 5), 234),
        ("from_to", (5, 2), 0),
        ("nested", (5,), 0 + 1 + 2 + 2 + 2),
        ("chosen", (2,), 102),
        ("chosen", (-3,), 7),
        ("chosen", (4,), 8),
        ("chosen", (5,), -5),
        ("without_default", (1,), 10),
        ("without_default", (2,), 20),
        ("lazy", (0,), -1),
        ("literals", (1,), 7),
        ("literals", (0,), -7),
        ("literals", (2,), 9),
        ("sum_of_keys", (0,), 0),
        ("fields", (), 321 + 40_000),
        ("moved", (4,), 300 + 10 + 2),
        ("globals", (3,), 8),
        ("shadowed", (3,), 4),
        ("overflows", (3, 4), 7),
        ("overflows", (HIGH, -1), 1000),
        ("overflows", (-1, -1), 998),
        ("extremes", (-1, 2), 2002),
        ("atomic", (7,), 50 + 700 + 10_000),
        ("by_address", (4,), 10),
        ("characters", (2,), ord('"') + 4),
        ("characters", (8,), ord("\n") + 4),
        ("characters", (9,), 4),
    ],
)
def test_meaning(
    run: Callable[..., int], name: str, arguments: tuple[int, ...], expected: int
) -> None:
    assert run(name, *arguments) == expected


def test_memory_of_others(run: Callable[..., int], code: NativeCode) -> None:
    class Node(ctypes.Structure):
        _fields_ = (("key", I64), ("next", ctypes.c_void_p), ("parts", ctypes.c_int32 * 3))

    last = Node(key=3)
    first = Node(key=10, next=ctypes.addressof(last))
    assert run("sum_of_keys", ctypes.addressof(first)) == 13
    assert [run("lazy", ctypes.addressof(each)) for each in (first, last)] == [1, 3]
    memory = I64(0)
    set_it = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.function("nothing"))
    set_it(None)
    set_it(ctypes.addressof(memory))
    assert memory.value == 1
    assert ctypes.string_at(code.data("text")) == b'a "text"\n'


def _mistake(page: str) -> Any:
    with pytest.raises(InternalError) as raised:
        translate(page, {"free": "void (ptr)"})
    return str(raised.value)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return a + b", "'a + b', line 2: expected u64, got i64"),
        ("return i64(a) < b", "expected u64, got i1"),
        ("return a.key", "expected a pointer with a type"),
        ("return p.other", "%Node has no such field"),
        ("return missing(a)", "is nothing"),
        ("return free()", "expected 1 arguments"),
        ("return lambda: a", "is no part of the language"),
        ("return ~a", "is no part of the language"),
        ("del a", "is no part of the language"),
        ("if a:\n        return a", "expected a return at the end"),
        ("a() = 3", "cannot assign"),
    ],
)
def test_mistakes(body: str, expected: str) -> None:
    head = "def f(a: u64, b: i64, p: ptr[Node]) -> u64:\n    "
    page = f"{head}{body}\nclass Node:\n    key: i64\n"
    if expected == "cannot assign":
        with pytest.raises(SyntaxError, match=expected):
            translate(page, {})
    else:
        assert expected in _mistake(page)


def test_statements_outside_of_functions() -> None:
    assert "is no part of the language" in _mistake("import os\n")


def test_functions_of_c_are_declared_once() -> None:
    page = """
def other(a: ptr, b: i32) -> i64: ...
def f(a: ptr) -> i64:
    free(a)
    free(a)
    return other(a, 1)
"""
    text = translate(page, {"free": "void (ptr)", "unused": "i32 ()"})
    assert text.count("declare void @free(ptr)") == text.count("declare i64 @other(ptr, i32)") == 1
    assert "unused" not in text
