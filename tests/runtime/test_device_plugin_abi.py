"""The structures of plugins in C are laid out as PaddlePaddle's are: `plugin/layouts.csv`."""

from __future__ import annotations

import csv
import shutil
import subprocess
from pathlib import Path

import pytest

import minitvm as tvm
from minitvm.runtime.device_api.plugin_abi import ABI, ABIS, REQUIRED, CustomRuntimeParams
from tests.plugin import FOLDER, compile_c, paddle_include, run_compiler

Offsets = dict[str, int]
ABI_NAMES = ("3.0", "3.3")


def layout(abi: str, struct: str) -> Offsets:
    """The offsets of a struct's members, and its size as 'sizeof'."""
    with (FOLDER / "layouts.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["struct"] == struct]
    column = f"offset in {abi}"
    return {row["field"]: int(row[column]) for row in rows if row[column]}


def abi_of(name: str) -> ABI:
    return next(each for each in ABIS if each.name == name)


@pytest.mark.parametrize("name", ABI_NAMES)
def test_the_table_has_its_offsets(name: str) -> None:
    expected = layout(name, "C_DeviceInterface")
    abi = abi_of(name)
    assert abi.offsets == expected
    assert abi.table_size == expected["sizeof"]
    assert set(abi.functions) < set(expected)


@pytest.mark.parametrize("name", ABI_NAMES)
def test_the_parameters_have_their_offsets(name: str) -> None:
    expected = layout(name, "CustomRuntimeParams")
    assert abi_of(name).params_size == expected.pop("sizeof")
    fields = [each[0] for each in CustomRuntimeParams._fields_]
    assert {each: getattr(CustomRuntimeParams, each).offset for each in fields} == expected


def test_the_layout_of_2_6_is_the_beginning_of_the_others() -> None:
    oldest = abi_of("2.6")
    assert (oldest.table_size, oldest.params_size) == (912, 88)
    common = {name: at for name, at in oldest.offsets.items() if name not in ("unknown", "sizeof")}
    for name in ABI_NAMES:
        assert common.items() <= layout(name, "C_DeviceInterface").items()
    assert set(REQUIRED) < set(oldest.functions) <= set(common)


def assertions(abi: str) -> str:
    """C that compiles if the structs are laid out as the table says."""
    lines = []
    for struct in ("C_DeviceInterface", "CustomRuntimeParams"):
        for field, value in layout(abi, struct).items():
            found = f"sizeof({struct})" if field == "sizeof" else f"offsetof({struct}, {field})"
            lines.append(f"typedef char {struct}_{field}[{found} == {value} ? 1 : -1];")
    return "\n".join(lines)


@pytest.mark.parametrize("name", ABI_NAMES)
def test_the_header_has_the_offsets(name: str, tmp_path: Path) -> None:
    """C's compiler agrees with the table."""
    source = tmp_path / "offsets.c"
    source.write_text(f"#include <minitvm/device_plugin.h>\n{assertions(name)}\n")
    compile_c(source, tmp_path / "offsets.so", f"-DMINITVM_PLUGIN_ABI={name.replace('.', '0')}")


def test_the_header_knows_no_other_layout(tmp_path: Path) -> None:
    source = tmp_path / "empty.c"
    source.write_text("#include <minitvm/device_plugin.h>\n")
    with pytest.raises(AssertionError, match="expected MINITVM_PLUGIN_ABI to be 300 or 303"):
        compile_c(source, tmp_path / "empty.so", "-DMINITVM_PLUGIN_ABI=301")


@pytest.mark.parametrize("standard", ["c++11", "c++20"])
def test_the_header_is_cpp_too(tmp_path: Path, standard: str) -> None:
    """C++'s compiler has nothing to say of it."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    source = tmp_path / "empty.cpp"
    source.write_text(f"#include <minitvm/device_plugin.h>\n{assertions('3.3')}\n")
    flags = (f"-I{tvm.get_include()}", "-Wall", "-Wextra", "-Werror", "-fsyntax-only")
    run_compiler(compiler, *flags, f"-std={standard}", str(source))


@pytest.mark.parametrize("name", ABI_NAMES)
def test_the_offsets_are_those_of_paddlepaddle(name: str, tmp_path: Path) -> None:
    """The table agrees with PaddlePaddle's own header, where that is installed."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    include = paddle_include()
    if compiler is None or include is None:
        pytest.skip("needs PaddlePaddle's headers and a C++ compiler")
    header = "#include <paddle/phi/backends/device_ext.h>\n"
    source = tmp_path / "offsets.cpp"
    flags = (f"-I{include}", "-std=c++17", "-fsyntax-only", "-Wno-invalid-offsetof", str(source))
    size = layout(name, "C_DeviceInterface")["sizeof"]
    source.write_text(f'{header}static_assert(sizeof(C_DeviceInterface) == {size}, "");')
    if subprocess.run([compiler, *flags], capture_output=True).returncode != 0:
        pytest.skip(f"needs PaddlePaddle {name}")
    source.write_text(f"{header}{assertions(name)}\n")
    run_compiler(compiler, *flags)
