"""Small compiled functions of the packed C ABI, to test calls without the code generator."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import pytest

from minitvm.runtime.arrangement import ASKS_FOR_VARIANT, NEEDS_VARIANT, Variants
from minitvm.runtime.arrangement import Compiled as Variant
from minitvm.runtime.errors import LayoutError
from minitvm.runtime.packed_func import Function, PackedFunc
from minitvm.runtime.registry import call_global_address

_SIGNATURE = "(ptr %args, ptr %codes, i32 %n, ptr %ret, ptr %ret_code, ptr %resource)"
_TEXT = rf"""
@value_error = external global ptr
@message = constant [14 x i8] c"set by code: \00"
@layout_message = constant [15 x i8] c"fmm: strides 2\00"
declare void @PyErr_SetString(ptr, ptr)
declare i32 @call_global(ptr, ptr, ptr, i32, ptr, ptr)
@calls = global i64 0

; The function in args[0], with the other arguments; passes the result on.
define i32 @forward{_SIGNATURE} {{
  %handle = load ptr, ptr %args
  %function = load ptr, ptr %handle
  %slot = getelementptr i8, ptr %handle, i64 8
  %r = load ptr, ptr %slot
  %rest = getelementptr i8, ptr %args, i64 8
  %rest_codes = getelementptr i8, ptr %codes, i64 4
  %m = sub i32 %n, 1
  %status = call i32 %function(ptr %rest, ptr %rest_codes, i32 %m, ptr %ret, ptr %ret_code, ptr %r)
  ret i32 %status
}}

; The global function named by args[0], with the other arguments.
define i32 @forward_global{_SIGNATURE} {{
  %name = load ptr, ptr %args
  %rest = getelementptr i8, ptr %args, i64 8
  %rest_codes = getelementptr i8, ptr %codes, i64 4
  %m = sub i32 %n, 1
  %status = call i32 @call_global(ptr %name, ptr %rest, ptr %rest_codes, i32 %m,
                                  ptr %ret, ptr %ret_code)
  ret i32 %status
}}

define i32 @return_first{_SIGNATURE} {{
  %value = load i64, ptr %args
  %code = load i32, ptr %codes
  store i64 %value, ptr %ret
  store i32 %code, ptr %ret_code
  ret i32 0
}}

; The bits of args[0] as an unsigned integer.
define i32 @unsigned{_SIGNATURE} {{
  %value = load i64, ptr %args
  store i64 %value, ptr %ret
  store i32 1, ptr %ret_code
  ret i32 0
}}

define i32 @return_count{_SIGNATURE} {{
  %count = zext i32 %n to i64
  store i64 %count, ptr %ret
  store i32 0, ptr %ret_code
  ret i32 0
}}

define i32 @raise_value_error{_SIGNATURE} {{
  %class = load ptr, ptr @value_error
  call void @PyErr_SetString(ptr %class, ptr @message)
  ret i32 -1
}}

define i32 @fail_silently{_SIGNATURE} {{
  ret i32 -1
}}

define i32 @bad_code{_SIGNATURE} {{
  store i32 99, ptr %ret_code
  ret i32 0
}}

define i32 @null_array{_SIGNATURE} {{
  store i64 0, ptr %ret
  store i32 7, ptr %ret_code
  ret i32 0
}}

; Adds one to the first element (int64) of args[0] and to the number of calls.
define i32 @increment{_SIGNATURE} {{
  %tensor = load ptr, ptr %args
  %data = load ptr, ptr %tensor
  %old = load i64, ptr %data
  %new = add i64 %old, 1
  store i64 %new, ptr %data
  %before = load i64, ptr @calls
  %after = add i64 %before, 1
  store i64 %after, ptr @calls
  store i32 4, ptr %ret_code
  ret i32 0
}}

; As increment, but unless strides[0] is 1 it is a LayoutError (whose class is the resource), or
; status -2 where the caller asks for a variant.
define i32 @increment_compact{_SIGNATURE} {{
  %tensor = load ptr, ptr %args
  %slot = getelementptr i8, ptr %tensor, i64 32
  %strides = load ptr, ptr %slot
  %stride = load i64, ptr %strides
  %compact = icmp eq i64 %stride, 1
  br i1 %compact, label %go, label %refuse
refuse:
  %code = load i32, ptr %ret_code
  %asks = icmp eq i32 %code, {ASKS_FOR_VARIANT}
  br i1 %asks, label %say, label %raise
say:
  ret i32 {NEEDS_VARIANT}
raise:
  call void @PyErr_SetString(ptr %resource, ptr @layout_message)
  ret i32 -1
go:
  %status = call i32 @increment{_SIGNATURE}
  ret i32 %status
}}
"""


@dataclass(frozen=True)
class Compiled:
    """Addresses of the functions above by name, and makers of callables."""

    engine: Any

    def address(self, name: str) -> int:
        return int(self.engine.get_function_address(f"minitvm_test_{name}"))

    def packed(self, name: str) -> PackedFunc:
        return PackedFunc(self.address(name), name=name, owner=self.engine)

    def function(
        self,
        name: str = "return_count",
        arg_names: tuple[str, ...] = ("X", "Y", "Z"),
        written: tuple[int, ...] = (2,),
        strided: Callable[[], int] | None = None,
    ) -> Function:
        """`strided` makes the variant for all layouts: it gives the address."""
        variants = None
        if strided is not None:
            variants = Variants(
                Variant(self.address(name), self.engine),
                written,
                range(len(arg_names)),
                lambda wanted: wanted,
                lambda _: Variant(strided(), self.engine),
            )
        return Function(
            self.address(name),
            owner=self.engine,
            name="fmm",
            arg_names=arg_names,
            written=written,
            variants=variants,
            resource=id(LayoutError),
        )


@pytest.fixture(scope="session")
def compiled() -> Compiled:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for name, address in {
        "PyErr_SetString": _address(ctypes.c_char, "PyErr_SetString"),
        "value_error": _address(ctypes.c_void_p, "PyExc_ValueError"),
        "call_global": call_global_address(),
    }.items():
        llvm.add_symbol(f"minitvm_test_{name}", address)
    module = llvm.parse_assembly(_TEXT.replace("@", "@minitvm_test_"))
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return Compiled(engine)


def _address(kind: Any, name: str) -> int:
    return ctypes.addressof(kind.in_dll(ctypes.pythonapi, name))
