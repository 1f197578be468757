"""DTypes, devices and what the machine tells: names, numbers, limits."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from minitvm import te
from minitvm.runtime import dtype, host
from minitvm.runtime.device import Device, cpu, device
from minitvm.runtime.device_type import DEVICE_TYPES, BareDevice, DeviceType
from minitvm.runtime.dlpack import IS_COPIED, IS_SUBBYTE_TYPE_PADDED, READ_ONLY
from minitvm.runtime.dtype import CODE_NAMES, DType, TypeCode
from minitvm.runtime.errors import CompileError

WIDTHS = {
    "int": (2, 4, 8, 16, 32, 64), "uint": (2, 4, 8, 16, 32, 64),
    "float": (16, 32, 64), "bfloat": (16,), "complex": (64, 128), "handle": (64,), "bool": (8,),
}  # fmt: skip
LANES = (1, 2, 16, 65535)


@pytest.mark.parametrize("kind", WIDTHS)
def test_every_name_is_that_of_its_dtype(kind: str) -> None:
    code = CODE_NAMES.index(kind)
    for bits, lanes in product(WIDTHS[kind], LANES):
        made = DType(code, bits, lanes)
        name = kind if kind in ("bool", "handle") else f"{kind}{bits}"
        assert made == (name if lanes == 1 else f"{name}x{lanes}")
        assert DType.of(str(made)) is made
        assert pickle.loads(pickle.dumps(made)) is made
        assert (made.code, made.bits, made.lanes) == (code, bits, lanes)
        assert made.itemsize == -(-bits * lanes // 8)
        assert made.element is DType(code, bits) and made.element.with_lanes(lanes) is made


@pytest.mark.parametrize("code", range(7, len(CODE_NAMES)))
def test_small_floats_are_named_without_their_bits(code: int) -> None:
    bits = int(CODE_NAMES[code][5])
    for lanes in (1, 2, 3, 65535):
        made = DType(code, bits, lanes)
        assert str(made) == (CODE_NAMES[code] if lanes == 1 else f"{CODE_NAMES[code]}x{lanes}")
        assert DType.of(str(made)) is made
        assert made.is_sub_byte == (bits * lanes % 8 > 0)
    assert DType(code, bits + 1) != DType(code, bits)  # one name, one dtype
    assert str(DType(len(CODE_NAMES), 12)) == f"code{len(CODE_NAMES)}_12"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("int", "int32"), ("uint", "uint32"), ("float", "float32"), ("bfloat", "bfloat16"),
        ("uint1", "bool"), ("bool8", "bool"), ("handle64", "handle"),
    ],
)  # fmt: skip
def test_short_names(name: str, expected: str) -> None:
    assert DType.of(name) == expected


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("float33", "float comes in 16, 32, 64 bits, got 33"),
        ("int8x0", "expected 1 to 65535 lanes, got 0"),
        ("int8x65536", "expected 1 to 65535 lanes, got 65536"),
        ("complex", "expected a width, such as complex64"),
        ("flaot32", "expected the name of a dtype such as"),
    ],
)
def test_names_of_nothing(name: str, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        DType.of(name)


@pytest.mark.parametrize("code", [TypeCode.INT, TypeCode.UINT])
@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_ends_of_integers_are_those_of_numpy(code: TypeCode, bits: int) -> None:
    made = DType(code, bits)
    info = np.iinfo(str(made))
    assert (made.min(), made.max()) == (info.min, info.max)
    assert made.to_numpy() == np.dtype(str(made))
    with pytest.raises(TypeError, match="numpy has no such type"):
        made.with_lanes(2).to_numpy()


def test_numbers_of_dlpack() -> None:
    """Those of dlpack.h."""
    assert (READ_ONLY, IS_COPIED, IS_SUBBYTE_TYPE_PADDED) == (1, 2, 4)
    assert {kind.name: int(kind) for kind in DeviceType} == {
        "CPU": 1, "CUDA": 2, "CUDA_HOST": 3, "OPENCL": 4, "VULKAN": 7, "METAL": 8, "VPI": 9,
        "ROCM": 10, "ROCM_HOST": 11, "EXT_DEV": 12, "CUDA_MANAGED": 13, "ONEAPI": 14, "WEBGPU": 15,
        "HEXAGON": 16, "MAIA": 17, "TRN": 18,
    }  # fmt: skip
    numbers = set(map(int, DeviceType))
    known = {name: n for name, n in DEVICE_TYPES.items() if n in numbers}  # others are registered
    assert {name.lower(): number for name, number in DeviceType.__members__.items()} == known
    assert list(enumerate(CODE_NAMES)) == list(enumerate((
        "int", "uint", "float", "handle", "bfloat", "complex", "bool", "float8_e3m4",
        "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
        "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn",
    )))  # fmt: skip
    assert [code.name.lower() for code in TypeCode] == list(CODE_NAMES)


@pytest.mark.parametrize(
    "name", ["int4", "uint2x4", "float4_e2m1fn", "float8_e5m2x2", "float6_e3m2fn"]
)
def test_programs_do_not_compute_with_small_types(name: str) -> None:
    with pytest.raises(CompileError, match="expected a dtype of the language, such as 'float32'"):
        te.placeholder((4,), name)
    with pytest.raises(CompileError, match="expected a dtype of the language, such as 'float32'"):
        te.var("n").astype(name)


@pytest.mark.parametrize("name", DEVICE_TYPES)
def test_devices_have_names(name: str) -> None:
    made = device(name, 3)
    assert made == Device(DEVICE_TYPES[name], 3) == device(DEVICE_TYPES[name], 3)
    assert str(made) == f"{name}(3)"
    assert not made.exist
    assert device(name).exist == (name in ("cpu", "ext_dev"))


def test_other_names_of_devices() -> None:
    assert device("llvm -mcpu=haswell") == device("c") == cpu()
    assert device("gpu", 1) == device("nvptx", 1) == device("cuda", 1)
    assert str(Device(99, 2)) == "device_type_99(2)"
    for unknown in ("", " ", "tpu", "CPU"):
        with pytest.raises(ValueError, match=r"expected a device among cpu, cuda, .*, got '"):
            device(unknown)


def test_a_bare_device_is_the_device_of_its_type_and_id() -> None:
    bare, made = BareDevice(1, 2), Device(1, 2)
    assert bare == made and made == bare and hash(bare) == hash(made) and len({bare, made}) == 1
    assert bare != Device(2, 2) and bare != Device(1, 1) and made != (1, 2)
    assert (str(bare), repr(made)) == ("cpu(2)", "cpu(2)")
    assert type(pickle.loads(pickle.dumps(made))) is Device
    with pytest.raises(FrozenInstanceError):
        made.device_id = 3  # type: ignore[misc]  # what is refused


def test_sizes_of_caches(tmp_path: Path) -> None:
    """As Linux tells them: instructions' are no data's, and what isn't plain is left out."""
    rows = [
        ("1", "Data", "48K", "12"), ("1", "Instruction", "64K", "4"),
        ("2", "Unified", "1024K", "0"), ("3", "Unified", "32M", "16"), ("4", "Unified", "K", "8"),
        ("5", "Unified", "64K"),
    ]  # fmt: skip
    for number, row in enumerate(rows):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        names = ("level", "type", "size", "ways_of_associativity")
        for name, text in zip(names, row, strict=False):
            (folder / name).write_text(f"{text}\n")
    (tmp_path / "index9").mkdir()
    expected = {1: (48 << 10, 12), 2: (1 << 20, 8), 5: (64 << 10, 8)}
    assert host._caches_below(tmp_path) == expected
    assert host._caches_below(tmp_path / "nowhere") == {}


def test_typical_sizes_of_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host, "_SYSTEM", tmp_path)
    assert host.cache_sizes.__wrapped__() == {1: 32 << 10, 2: 512 << 10, 3: 8 << 20}
    assert host.l1_ways.__wrapped__() == 8


def test_constants_are_what_they_are_called() -> None:
    named = {name: value for name, value in vars(dtype).items() if isinstance(value, DType)}
    assert len(named) > 10
    assert {name: name.lower() for name in named} == named
