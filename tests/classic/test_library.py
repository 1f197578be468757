"""Libraries: functions that are exported to a file and loaded, here and in other processes."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.runtime import Module, PackedFunc, load_module
from minitvm.tir.json import load_json

MAGIC = b"minitvm library 1\n"
n = te.var("n")
X = te.placeholder((n,), name="X")
Y = te.compute((n,), lambda i: te.exp(X[i]) * 2.0, name="Y")


def built() -> Module:
    return tvm.build(te.create_schedule(Y.op), [X, Y], name="twice")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library") / "twice.so"
    built().export_library(path)
    return path


def changed(library: Path, change: Callable[[dict[str, Any]], Any], target: Path) -> Path:
    """A library with another description, and the right digest."""
    content = library.read_bytes()[len(MAGIC) + 32 :]
    (length,) = struct.unpack_from("<Q", content)
    description = json.loads(content[8 : 8 + length])
    change(description)
    text = json.dumps(description).encode()
    made = struct.pack("<Q", len(text)) + text + content[8 + length :]
    target.write_bytes(MAGIC + hashlib.sha256(made).digest() + made)
    return target


def test_a_loaded_function_is_called_as_a_built_one(library: Path) -> None:
    again, x = load_module(library), np.linspace(-1, 1, 37, dtype="float32")
    y, wide = np.empty_like(x), np.zeros(74, "float32")
    again(x, y)
    np.testing.assert_allclose(y, np.exp(x) * 2, rtol=1e-6)
    again(x, wide[::2])
    np.testing.assert_array_equal(wide[::2], y)
    same = x.copy()
    again(same, same)
    np.testing.assert_array_equal(same, y)
    np.testing.assert_array_equal(again.returning()(x), y)
    again(x[:0], y[:0])
    assert again.entry_func.__doc__ == built().entry_func.__doc__
    assert again.get_source("tir") == built().get_source("tir")
    assert repr(tvm.explain(again)).startswith("twice(X: float32[n], Y: float32[n])")


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.zeros(3, "float32"), np.zeros(4, "float32")),
        (np.zeros(3), np.zeros(3, "float32")),
        (np.zeros((3, 1), "float32"), np.zeros(3, "float32")),
        (None, np.zeros(3, "float32")),
    ],
)
def test_a_loaded_function_refuses_as_a_built_one(library: Path, x: Any, y: Any) -> None:
    said = []
    for function in (built(), load_module(library)):
        with pytest.raises((TypeError, ValueError)) as caught:
            function(x, y)
        said.append((type(caught.value), str(caught.value)))
    assert said[0] == said[1]


def test_tensors_of_torch_and_pickles(library: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.ones(5), torch.empty(5)
    again = pickle.loads(pickle.dumps(load_module(library)))
    again(x, y)
    torch.testing.assert_close(y, torch.exp(x) * 2)
    again.export_library(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == library.read_bytes()


def test_another_process_loads_it(library: Path) -> None:
    text = (
        "import sys, numpy as np, minitvm as tvm\n"
        "f = tvm.runtime.load_module(sys.argv[1])\n"
        "x, y = np.zeros(9, 'float32'), np.empty(9, 'float32')\n"
        "f(x, y)\n"
        "print(f.entry_name, y.sum())"
    )
    command = [sys.executable, "-c", text, str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["twice", "18.0"]


def test_several_functions_scalars_and_imported_modules(tmp_path: Path) -> None:
    a = te.var("a", "float32")
    scaled = te.compute((n,), lambda i: X[i] * a, name="S")
    lowered = {
        name: tvm.lower(te.create_schedule(out.op), [*args, out], name=name)[name]
        for name, args, out in (("scale", [X, a], scaled), ("twice", [X], Y))
    }
    module = tvm.build(tvm.IRModule(lowered), target="llvm")
    outer = Module(
        {"first": built().entry_func, "scale": module["scale"]}, imported_modules=[module]
    )
    outer.export_library(str(tmp_path / "outer"))
    again = load_module(str(tmp_path / "outer"))
    assert again.function_names == ("first", "scale")
    assert again.entry_name == "first"
    x, y = np.ones(3, "float32"), np.empty(3, "float32")
    again["scale"](x, 3.5, y)
    np.testing.assert_array_equal(y, np.full(3, 3.5))
    again.get_function("twice", query_imports=True)(x, y)
    np.testing.assert_allclose(y, np.exp(x) * 2, rtol=1e-6)
    (imported,) = again.imported_modules
    assert imported.function_names == ("scale", "twice")
    assert imported["scale"] is again["scale"]


def test_prepacked_weights(tmp_path: Path) -> None:
    A, W = te.placeholder((5, 64), name="A"), te.placeholder((64, 48), name="W")
    k = te.reduce_axis((0, 64), name="k")
    C = te.compute((5, 48), lambda i, j: te.sum(A[i, k] * W[k, j], axis=k), name="C")
    tvm.build(C, [A, W, C], name="layer", prepacked=[W]).export_library(tmp_path / "layer")
    layer = load_module(tmp_path / "layer")
    rng = np.random.default_rng(0)
    a, w = rng.random((5, 64), "float32"), rng.random((64, 48), "float32")
    c = np.empty((5, 48), "float32")
    layer(a, tvm.prepack(layer, "W", w), c)
    np.testing.assert_allclose(c, a @ w, rtol=1e-5)


# -- What is refused ------------------------------------------------------------------------------


def test_a_damaged_file_is_never_loaded(library: Path, tmp_path: Path) -> None:
    whole, damaged = library.read_bytes(), tmp_path / "damaged"
    for position in range(0, len(whole), 97):
        content = bytearray(whole)
        content[position] ^= 1 << position % 8
        damaged.write_bytes(content)
        with pytest.raises(ValueError, match=r"^load_module: .*damaged: expected "):
            load_module(damaged)
    for size in (0, 5, len(MAGIC), 60, len(whole) - 1):
        damaged.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"expected (a library that|the library as it was)"):
            load_module(damaged)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x7fELF\x02\x01", "got an object file or shared library: no linker is needed here"),
        (b"minitvm library 12\nxyz", "expected a library of format 1, got one of format '12'"),
        (b"\x80\x04\x95", r"expected a library that Module\.export_library has written$"),
    ],
)
def test_other_files(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        load_module(tmp_path / "other")


def test_no_file_and_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_module(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        built().export_library(tmp_path / "nothing" / "library")
    with pytest.raises(TypeError, match="NoneType"):
        load_module(None)  # type: ignore[arg-type]  # what is refused
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        built().export_library(tmp_path / "folder")
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("programs"),
        lambda d: d.update(modules=[]),
        lambda d: d.update(modules=7),
        lambda d: d["modules"][0].update(entry="other"),
        lambda d: d["modules"][0].update(imported=[0]),
        lambda d: d["modules"][0]["functions"].update(twice=[0, "other"]),
        lambda d: d["modules"][0]["functions"].update(twice=[3, "twice"]),
        lambda d: d["programs"][0].update(bytes=10),
        lambda d: d["programs"][0].update(bytes=-1),
        lambda d: d["programs"][0].update(loops="{}"),
        lambda d: d["programs"][0].update(target="cuda"),
        lambda d: d["programs"][0].update(strict="yes"),
        lambda d: d["programs"][0].update(triple="riscv64-unknown-linux-gnu"),
        lambda d: d["programs"].append(d["programs"][0]),
        lambda d: d["programs"][0].pop("features"),
    ],
)
def test_descriptions_without_a_meaning(
    change: Callable[[dict[str, Any]], Any], library: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        ValueError, match=r"^load_module: .*: expected a library as export_library writes it"
    ):
        load_module(changed(library, change, tmp_path / "other"))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"features": ["avx1024"]}, r"twice: expected .* but it lacks avx1024: build it on this"),
        ({"triple": "x86_64-unknown-windows"}, "but it is .*, not x86_64-unknown-windows"),
    ],
)
def test_code_for_another_cpu_is_refused(
    values: dict[str, Any], words: str, library: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        load_module(changed(library, lambda d: d["programs"][0].update(values), tmp_path / "a"))


def test_what_another_version_made_is_compiled_again(library: Path, tmp_path: Path) -> None:
    def change(description: dict[str, Any]) -> None:
        description["made_by"] = ["0.0", "cpython-30"]

    again = load_module(changed(library, change, tmp_path / "older"))
    x = np.ones(3, "float32")
    np.testing.assert_allclose(again.returning()(x), np.exp(x) * 2, rtol=1e-6)


def test_functions_of_python_are_refused(tmp_path: Path) -> None:
    module = Module({"twice": built().entry_func, "helper": PackedFunc(lambda: 1)})
    with pytest.raises(TypeError, match="export_library: helper: expected a function of build"):
        module.export_library(tmp_path / "library")
    module = built()
    module.imported_modules.append(module)
    with pytest.raises(ValueError, match="twice: expected no module that imports itself"):
        module.export_library(tmp_path / "library")
    assert not list(tmp_path.iterdir())


# -- Single forms ---------------------------------------------------------------------------------


def test_forms_for_other_tools(tmp_path: Path) -> None:
    module = built()
    for name, fmt in (("f.ll", ""), ("f.s", ""), ("f.asm", ""), ("f.tir", ""), ("f.txt", "ll")):
        module.save(tmp_path / name, fmt)
        kind = {"s": "asm"}.get(fmt or name[2:], fmt or name[2:])
        assert (tmp_path / name).read_text(encoding="utf-8") == module.get_source(kind)
    program = module.entry_func.program
    assert program is not None
    module.save(str(tmp_path / "f.o"))
    assert (tmp_path / "f.o").read_bytes() == program.object_code
    with pytest.raises(ValueError, match=r"twice: expected the format o, .*, got 'so': export"):
        module.save(tmp_path / "f.so")
    with pytest.raises(ValueError, match=r"expected the format o, .*got 'o': export_library"):
        Module({"helper": PackedFunc(lambda: 1)}).save(tmp_path / "f.o")


def test_the_loops_of_a_library_are_text(library: Path) -> None:
    found: list[Any] = []
    changed(library, lambda d: found.append(d["programs"][0]["loops"]), library.parent / "copy")
    assert str(load_json(found[0])) == built().get_source("tir")
