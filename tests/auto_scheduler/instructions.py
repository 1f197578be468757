"""Instructions that this machine may lack, defined by numpy, for the kernels that use them.

:func:`in_software` replaces the calls of LLVM's intrinsics in the text of a module. What a kernel
does otherwise, it does as on a machine that has them.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import minitvm as tvm

Array = np.ndarray[Any, Any]
HERE = tvm.Target("llvm")

_TILE = "<256 x i32>"
_FEATURES = {"vpdpbusd": "avx512vnni", "vpdpwssd": "avx512vnni", "dpbf16ps": "avx512bf16"}
"""The feature of each dot product."""
_VECTORS = {"smmla": ("int8", "int8"), "ummla": ("uint8", "uint8"), "usmmla": ("uint8", "int8"),
            "bfmmla": ("bfloat16", "bfloat16")}  # fmt: skip
_DOTS = {"vpdpbusd": ("uint8", "int8"), "vpdpwssd": ("int16", "int16"),
         "dpbf16ps": ("bfloat16", "bfloat16")}  # fmt: skip
_TILES = {"tdpbssd": ("int8", "int8"), "tdpbsud": ("int8", "uint8"), "tdpbusd": ("uint8", "int8"),
          "tdpbuud": ("uint8", "uint8"), "tdpbf16ps": ("bfloat16", "bfloat16"),
          "tdpfp16ps": ("float16", "float16")}  # fmt: skip


def _bytes_at(address: int, count: int) -> Array:
    return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address))


def _numbers(raw: Array, dtype: str) -> Array:
    """Bytes as numbers that their products and sums are exact in, or wrap around in."""
    if dtype == "bfloat16":
        return (raw.view("uint16").astype("uint32") << 16).view("float32").astype("float64")
    return raw.view(dtype).astype("float64" if dtype == "float16" else "int64")


def _dot_product(a_dtype: str, b_dtype: str) -> Callable[..., None]:
    """Intel's manual, VPDPBUSD: of each dword of `a` and of `b`, the products of the parts are
    added to the sum in the same place."""

    def run(size: int, z: int, c: int, a: int, b: int) -> None:
        x, y = (
            _numbers(_bytes_at(each, size).copy(), dtype).reshape(size // 4, 1, -1)
            for each, dtype in ((a, a_dtype), (b, b_dtype))
        )
        before = _bytes_at(c, size).copy().reshape(-1, 4)
        made = [_sum(*each) for each in zip(before, x, y.transpose(0, 2, 1), strict=True)]
        _bytes_at(z, size)[...] = np.concatenate(made, axis=None)

    return run


def _sum(before: Array, x: Array, y: Array) -> Array:
    """32-bit sums with the products of matrices added, as bytes."""
    with np.errstate(all="ignore"):
        dtype = "float32" if x.dtype == "float64" else "int32"
        made: Array = (before.view(dtype) + x @ y).astype(dtype).view("uint8")
        return made


def _tile_product(a_dtype: str, b_dtype: str) -> Callable[..., None]:
    """Intel's manual, TDPBSSD: of each dword of a row of `a`, and of a row of `b`, the products of
    the parts are added to the sum of that row and column. The rest of a tile becomes zero."""

    def run(rows: int, columns: int, depth: int, z: int, c: int, a: int, b: int) -> None:
        c_tile, a_tile, b_tile = (_bytes_at(each, 1024).reshape(16, 64) for each in (c, a, b))
        x = _numbers(a_tile[:rows, :depth].copy(), a_dtype)
        y = _numbers(b_tile[: depth // 4, :columns].copy(), b_dtype)
        group = x.shape[1] // (depth // 4)
        y = y.reshape(depth // 4, columns // 4, group).transpose(0, 2, 1).reshape(-1, columns // 4)
        made = _bytes_at(z, 1024).reshape(16, 64)
        made[...] = 0
        made[:rows, :columns] = _sum(c_tile[:rows, :columns].copy(), x, y)

    return run


def _load_tile(rows: int, columns: int, z: int, pointer: int, stride: int) -> None:
    made = _bytes_at(z, 1024).reshape(16, 64)
    made[...] = 0
    for row in range(rows):
        made[row, :columns] = _bytes_at(pointer + row * stride, columns)


def _store_tile(rows: int, columns: int, pointer: int, stride: int, tile: int) -> None:
    values = _bytes_at(tile, 1024).reshape(16, 64)
    for row in range(rows):
        _bytes_at(pointer + row * stride, columns)[...] = values[row, :columns]


def _vector_product(a_dtype: str, b_dtype: str) -> Callable[..., None]:
    """Arm's manual, SMMLA: two rows of `a` times two rows of `b`, to sums of two by two."""

    def run(z: int, c: int, a: int, b: int) -> None:
        x, y = (
            _numbers(_bytes_at(each, 16).reshape(2, 8).copy(), dtype)
            for each, dtype in ((a, a_dtype), (b, b_dtype))
        )
        before = _bytes_at(c, 16).reshape(2, 8).copy()
        _bytes_at(z, 16).reshape(2, 8)[...] = _sum(before, x, y.T)

    return run


_C_TYPES = {"i16": ctypes.c_int16, "i64": ctypes.c_int64, "ptr": ctypes.c_void_p}
_kept: list[Any] = []  # functions that machine code calls


def _definition(name: str, result: str, params: list[str], run: Callable[..., None]) -> str:
    """An LLVM function that hands addresses of vectors to `run`, that of its result after the
    numbers that come first."""
    passed = [each if each in _C_TYPES else "ptr" for each in params]
    if result != "void":
        passed.insert(params.count("i16"), "ptr")
    function = ctypes.CFUNCTYPE(None, *(_C_TYPES[each] for each in passed))(run)
    _kept.append(function)
    address = ctypes.cast(function, ctypes.c_void_p).value
    listed = ", ".join(f"{type} %p{n}" for n, type in enumerate(params))
    lines = [f"define internal {result} @{name}({listed}) {{"]
    arguments = []
    for n, type in enumerate(params):
        arguments.append(f"{type} %p{n}")
        if type not in _C_TYPES:
            lines += [f"  %m{n} = alloca {type}, align 64", f"  store {type} %p{n}, ptr %m{n}"]
            arguments[n] = f"ptr %m{n}"
    if result != "void":
        lines.append(f"  %made = alloca {result}, align 64")
        arguments.insert(params.count("i16"), "ptr %made")
    lines.append(f"  call void inttoptr (i64 {address} to ptr)({', '.join(arguments)})")
    if result == "void":
        return "\n".join([*lines, "  ret void", "}"])
    return "\n".join([*lines, f"  %z = load {result}, ptr %made", f"  ret {result} %z", "}"])


def _definitions() -> dict[str, str]:
    """The LLVM functions that stand for intrinsics, by name."""
    made = {
        "tilezero": f"define internal {_TILE} @tilezero(i16 %r, i16 %c) {{\n"
        f"  ret {_TILE} zeroinitializer\n}}",
        **{
            name: _definition(name, _TILE, ["i16", "i16", "ptr", "i64"], _load_tile)
            for name in ("tileloadd64", "tileloaddt164")
        },
        "tilestored64": _definition(
            "tilestored64", "void", ["i16", "i16", "ptr", "i64", _TILE], _store_tile
        ),
        "cast": f"define internal {_TILE} @cast({_TILE} %t) {{\n  ret {_TILE} %t\n}}",
    }
    for name, dtypes in _TILES.items():
        params = [*["i16"] * 3, *[_TILE] * 3]
        made[name] = _definition(name, _TILE, params, _tile_product(*dtypes))
    for name, dtypes in _VECTORS.items():
        of_floats = dtypes[0] == "bfloat16"
        sums = "<4 x float>" if of_floats else "<4 x i32>"
        factor = "<8 x bfloat>" if of_floats else "<16 x i8>"
        made[name] = _definition(name, sums, [sums, factor, factor], _vector_product(*dtypes))
    for name, dtypes in _DOTS.items():
        for bits in () if _FEATURES[name] in HERE.features else (256, 512):
            of_floats = dtypes[0] == "bfloat16"
            sums = f"<{bits // 32} x {'float' if of_floats else 'i32'}>"
            width = 8 if dtypes[1] == "int8" else 16
            factor = f"<{bits // width} x {'bfloat' if of_floats else f'i{width}'}>"
            run = partial(_dot_product(*dtypes), bits // 8)
            made[f"{name}.{bits}"] = _definition(
                f"{name}.{bits}", sums, [sums, factor, factor], run
            )
    return made


def in_software(text: str) -> str:
    """The text of a module with its intrinsics for products of matrices, and those for dot products
    that this machine lacks, replaced by calls of the functions here, which it then defines."""
    text = re.sub(r"@llvm\.x86\.cast\.(vector\.to\.tile|tile\.to\.vector)", "@cast", text)
    text = re.sub(r"@llvm\.x86\.(\w+)\.internal", r"@\1", text)
    text = re.sub(r"@llvm\.aarch64\.neon\.(\w*mmla)[\w.]*", r"@\1", text)
    for name, feature in _FEATURES.items():
        if feature not in HERE.features:
            text = re.sub(rf"@llvm\.x86\.\w+\.({name}\.\d+)", r"@\1", text)
    text = text.replace("x86_amx", _TILE)
    used = [each for name, each in _definitions().items() if f"@{name}(" in text]
    return "\n".join([text, *used])
