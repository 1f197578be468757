"""Machine code in this process: functions, variables, and symbols that are missing."""

from __future__ import annotations

import ctypes
import sys

import llvmlite.binding as llvm
import pytest

from minitvm.runtime.errors import InternalError
from minitvm.runtime.native import NativeCode
from minitvm.runtime.native_text import native_text
from minitvm.runtime.object_code import host_machine, optimise_functions, parse
from minitvm.runtime.object_file import calls_through_stubs
from tests.processes import run_python

TEXT = """
number: i64 = 7
hidden: internal[i64] = 5

@export
def add_hidden(x: i64) -> i64:
    global hidden
    hidden += x
    return hidden

@export
def measure(text: ptr) -> i64:
    return strlen(text)

@export
def clear(memory: ptr, size: i64):
    memset(memory, 0, size)
"""
CALL_NOTHING = """
def no_such_function(): ...

@export
def call_nothing():
    no_such_function()
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


# A process whose free addresses are holes of a page each, 4 GiB apart, and a gigabyte far away.
SCATTERED = """
import ctypes, sys
import numpy as np
import minitvm as tvm
from minitvm import te

def kernel(factor):
    A = te.placeholder((64,), name="A")
    root = lambda i: tvm.tir.call_pure_extern("float32", "sqrtf", A[i])
    B = te.compute((64,), lambda i: te.exp(A[i]) + root(i) * factor, name="B")
    return tvm.build(te.create_schedule(B.op), [A, B])

kernel(1.0)
c = ctypes.CDLL(None)
c.mmap.restype = ctypes.c_void_p
c.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
c.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
NONE, SCARCE, REFUSED = 0, 0x4022, ctypes.c_void_p(-1).value
taken = []
for size in (1 << power for power in range(46, 11, -1)):
    while (at := c.mmap(None, size, NONE, SCARCE, -1, 0)) != REFUSED:
        taken.append((at, size))
large = [each for each in taken if each[1] >= 1 << 40]
if len(large) < 2:
    sys.exit("no room")
at, size = large[0]
for hole in range(1, 200):
    c.munmap(at + size - (hole << 32), 4096)
c.munmap(large[-1][0], 1 << 30)
x, y = np.ones(64, "float32"), np.zeros(64, "float32")
for factor in (2.0, 3.0):
    kernel(factor)(x, y)
    np.testing.assert_allclose(y, np.e + factor, rtol=1e-6)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="maps memory as Linux does")
def test_code_loads_where_free_addresses_are_scattered() -> None:
    done = run_python(SCATTERED)
    if done.stderr.strip() == "no room":
        pytest.skip("the address space of a process is limited here")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "declared",
    [
        "declare double @outside(double)",
        "declare double @outside(double) #0",
        "declare double @outside(double) local_unnamed_addr #0",
        "declare double @outside(double) unnamed_addr addrspace(0) nounwind",
        'declare noundef double @outside(double noundef) memory(none) gc "statepoint-example"',
        "declare double @outside(double) ; (of the C library)",
    ],
)
def test_calls_go_by_the_table_of_addresses(declared: str) -> None:
    text = f"""
{declared}
declare double @llvm.pow.f64(double, double)
define double @f(double %x) {{
  %a = call double @outside(double %x)
  %b = call double @llvm.pow.f64(double %a, double %x)
  ret double %b
}}
attributes #0 = {{ nounwind }}
"""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    machine = target.create_target_machine(reloc="pic", codemodel="small")
    assert calls_through_stubs(machine.emit_object(llvm.parse_assembly(text)))
    by_stubs = "(of" in declared  # of a comment nothing is known
    assert calls_through_stubs(machine.emit_object(parse(text))) == by_stubs
    assert calls_through_stubs(b"not ELF at all")


def test_functions_that_are_to_stay_as_they_are() -> None:
    body = "(i32 %x) {attributes} {\n %y = add i32 %x, 0\n ret i32 %y\n}\n"
    functions = {"made": "nounwind", "kept": "nounwind noinline optnone"}
    text = "".join(
        f"define i32 @{name}" + body.replace("{attributes}", attributes)
        for name, attributes in functions.items()
    )
    module = parse(text)
    optimise_functions(module, host_machine(), frozenset())
    found = {name: "add" in str(module.get_function(name)) for name in functions}
    assert found == {"made": False, "kept": True}
