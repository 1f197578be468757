"""The runtime's native code: every page is right for every machine, its structures lie as C's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import pytest

import minitvm.runtime
from minitvm.contrib.xla_call import xla_call_text
from minitvm.runtime import c_function, call_path, exchange, glue, threads_text
from minitvm.runtime.call_path_text import StoredFunction, call_path_text
from minitvm.runtime.device_api.pool_text import pool_text
from minitvm.runtime.dlpack import DLManagedTensor, DLManagedTensorVersioned, DLTensor
from minitvm.runtime.native_text import native_text
from minitvm.runtime.returning_text import CompiledOutput, CompiledStep, StoredReturning
from minitvm.ufuncs.loop_text import ufunc_loop_text

MACHINES = ("x86_64", "aarch64")
# The texts of each module that holds some, for a machine.
TEXTS: dict[str, Callable[[str], str]] = {
    "arguments_text": lambda machine: call_path_text(8),
    "c_function": lambda machine: c_function.c_function_text(),
    "call_path_text": lambda machine: call_path_text(8),
    "cases_text": lambda machine: call_path_text(8),
    "device_api.cpu_pool_text": lambda machine: pool_text(),
    "device_api.pool_text": lambda machine: pool_text(),
    "exchange": lambda machine: exchange.exchange_text(),
    "glue": lambda machine: glue.glue_text(),
    "outputs_text": lambda machine: call_path_text(8),
    "returning_text": lambda machine: call_path_text(8),
    "threads_text": threads_text.pool_text,
    "torch_calls_text": lambda machine: call_path_text(8),
}
# Of rooms above the runtime.
ABOVE: dict[str, Callable[[str], str]] = {
    "contrib.xla_call": lambda machine: xla_call_text(),
    "ufuncs.loop_text": ufunc_loop_text,
}


def test_all_texts_are_known() -> None:
    folder = Path(minitvm.runtime.__file__).parent
    found = {
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in folder.rglob("*.py")
        if ": ptr[" in path.read_text(encoding="utf-8") and not path.name.startswith("native_")
    }
    assert found == set(TEXTS)


@pytest.mark.parametrize("machine", [*MACHINES, "riscv64"])
@pytest.mark.parametrize("name", [*TEXTS, *ABOVE])
def test_the_text_is_valid(name: str, machine: str) -> None:
    text = (TEXTS | ABOVE)[name](machine)
    module = llvm.parse_assembly(text)
    module.verify()
    if machine in MACHINES:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        target = llvm.Target.from_triple(f"{machine}-unknown-linux-gnu").create_target_machine()
        assert target.emit_assembly(module)


def _layout(name: str) -> tuple[list[int], int]:
    """Where the fields of a structure of the call path lie, and its size."""
    text = call_path_text(8) + f"@some = global %{name} zeroinitializer\n"
    module = llvm.parse_assembly(text)
    kind = module.get_global_variable("some").global_value_type
    data = llvm.create_target_data("e-m:e-i64:64-n8:16:32:64")
    offsets = [data.get_element_offset(kind, index) for index in range(len(list(kind.elements)))]
    return offsets, data.get_abi_size(kind)


@pytest.mark.parametrize(
    ("name", "structure"),
    [
        ("Managed", DLManagedTensorVersioned),
        ("LegacyManaged", DLManagedTensor),
        ("PackedFunc", StoredFunction),
        ("Route", call_path.Row),
        ("Returning", StoredReturning),
        ("Output", CompiledOutput),
        ("Step", CompiledStep),
    ],
)
def test_structures_lie_as_those_of_ctypes(name: str, structure: Any) -> None:
    expected = [getattr(structure, each).offset for each, *_ in structure._fields_]
    assert _layout(name) == (expected, ctypes.sizeof(structure))


def test_a_tensor_lies_as_that_of_dlpack() -> None:
    device = DLTensor.device.offset
    names = ("ndim", "dtype", "shape", "strides", "byte_offset")
    rest = [getattr(DLTensor, each).offset for each in names]
    expected = [DLTensor.data.offset, device, device + 4, *rest]
    assert _layout("DLTensor") == (expected, ctypes.sizeof(DLTensor))


def test_words_and_names() -> None:
    page = """
class Pair:
    first: i32  # of two, as it happens
    rest: array[ptr, COUNT]

def drop(pair: ptr[Pair]):
    free(pair.rest[COUNT - 1])

@export
def drop_all(pair: ptr[Pair]):
    drop(pair)
"""
    text = native_text(page, {"COUNT": 3})
    llvm.parse_assembly(text).verify()
    assert "%Pair = type { i32, [3 x ptr] }" in text
    assert "define internal void @minitvm_runtime_drop(ptr %pair)" in text
    assert "define void @minitvm_runtime_drop_all(ptr %pair)" in text
    assert "declare void @minitvm_runtime_free(ptr)" in text
    assert native_text(page, {"COUNT": 3}) == text  # from the cache
