"""DType: the type of an element, in DLPack's terms (code, bits, lanes)."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from typing import Any, NoReturn, final

import numpy as np


class TypeCode(IntEnum):
    """``DLDataTypeCode`` of DLPack 1.3 (dlpack.h). Programs compute with the codes up to BOOL;
    arrays hold all codes."""

    INT = 0
    UINT = 1
    FLOAT = 2
    HANDLE = 3  # kDLOpaqueHandle
    BFLOAT = 4
    COMPLEX = 5
    BOOL = 6
    FLOAT8_E3M4 = 7
    FLOAT8_E4M3 = 8
    FLOAT8_E4M3B11FNUZ = 9
    FLOAT8_E4M3FN = 10
    FLOAT8_E4M3FNUZ = 11
    FLOAT8_E5M2 = 12
    FLOAT8_E5M2FNUZ = 13
    FLOAT8_E8M0FNU = 14
    FLOAT6_E2M3FN = 15
    FLOAT6_E3M2FN = 16
    FLOAT4_E2M1FN = 17


CODE_NAMES: tuple[str, ...] = tuple(code.name.lower() for code in TypeCode)

MAX_LANES = (1 << 16) - 1  # a uint16 in DLPack
# The widths of the codes with a single width, which isn't part of the name.
_SMALL_FLOATS = {name: int(name[5]) for name in CODE_NAMES[TypeCode.FLOAT8_E3M4 :]}
_PATTERN = re.compile(
    rf"({'|'.join(_SMALL_FLOATS)}|int|uint|float|bfloat|complex|handle|bool)(\d*)(?:x(\d+))?"
)
_WIDTHS: dict[str, tuple[int, ...]] = {
    "int": (2, 4, 8, 16, 32, 64),
    "uint": (1, 2, 4, 8, 16, 32, 64),
    "float": (16, 32, 64),
    "bfloat": (16,),
    "complex": (64, 128),
    "handle": (64,),
    "bool": (8,),
    **{name: (bits,) for name, bits in _SMALL_FLOATS.items()},
}
_DEFAULT_WIDTH = {
    "int": 32, "uint": 32, "float": 32, "bfloat": 16, "handle": 64, "bool": 8, **_SMALL_FLOATS
}  # fmt: skip


@final
class DType(str):
    """An element type: DLPack's type code, the bits of one lane, and the number of lanes.

    It is constructed from these numbers or, as classic TVM's ``DataType``, from a name. It is a
    string, the text of its own name, as dtypes are in classic TVM: ``A.dtype == "float32"``,
    ``x.astype(A.dtype)`` and ``A.dtype.startswith("int")`` work. ``bool`` is DLPack's (code 6, 8
    bits); classic TVM's name ``uint1`` stands for it as well.

    >>> DType.of("float32x4").lanes
    4
    >>> DType.of("uint1") == "bool"
    True
    """

    __slots__ = (
        "_greatest", "_least", "bits", "code", "is_bfloat16", "is_bool", "is_float", "is_handle",
        "is_int", "is_integral", "is_uint", "lanes",
    )  # fmt: skip
    code: int
    bits: int
    lanes: int
    is_int: bool  # a signed integer
    is_uint: bool  # an unsigned integer; ``bool`` is not one
    is_bool: bool
    is_integral: bool  # a signed or unsigned integer, or ``bool``
    is_float: bool  # a floating-point number, ``bfloat16`` among them
    is_bfloat16: bool
    is_handle: bool  # an opaque pointer
    _least: int
    _greatest: int

    def __new__(cls, code: int | str, bits: int | None = None, lanes: int = 1) -> DType:
        if isinstance(code, str) and bits is None and lanes == 1:
            return _parse(code)
        if isinstance(code, str) or bits is None:
            raise TypeError(
                f"DType: expected a name such as 'float32x4', or a code and bits, got {code!r} and "
                f"{bits!r}"
            )
        known = _dtypes.get((code, bits, lanes))
        if known is not None:
            return known
        self = super().__new__(cls, _name(code, bits, lanes))
        fields = {
            "code": int(code),
            "bits": bits,
            "lanes": lanes,
            "is_int": code == TypeCode.INT,
            "is_uint": code == TypeCode.UINT,
            "is_bool": code == TypeCode.BOOL,
            "is_integral": code in (TypeCode.INT, TypeCode.UINT, TypeCode.BOOL),
            "is_float": code in (TypeCode.FLOAT, TypeCode.BFLOAT),
            "is_bfloat16": code == TypeCode.BFLOAT,
            "is_handle": code == TypeCode.HANDLE,
            "_least": -(1 << bits >> 1) if code == TypeCode.INT else 0,
            "_greatest": _greatest(code, bits),
        }
        for field, value in fields.items():
            object.__setattr__(self, field, value)
        return _dtypes.setdefault((code, bits, lanes), self)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"DType: expected no change of {name}, dtypes are immutable")

    def __reduce__(self) -> tuple[type[DType], tuple[int, int, int]]:
        return DType, (self.code, self.bits, self.lanes)

    @staticmethod
    def of(value: DTypeLike) -> DType:
        """The DType that a name, a numpy dtype, a Python type or another DType stands for.

        Raises
        ------
        TypeError
            When `value` names no type that minitvm knows.
        """
        if isinstance(value, DType):
            return value
        if isinstance(value, str):
            return _parse(value)
        if value is bool:
            return BOOL
        if value is int:
            return INT32
        if value is float:
            return FLOAT32
        try:
            name = np.dtype(value).name
        except (TypeError, ValueError):
            name = getattr(value, "__name__", None) or str(value)
        return _parse(name.removeprefix("torch."))

    @property
    def type_code(self) -> int:
        """The code, as classic TVM's ``DataType`` calls it."""
        return self.code

    @property
    def itemsize(self) -> int:
        """Bytes of one element, all its lanes, rounded up."""
        return (self.bits * self.lanes + 7) // 8

    @property
    def is_sub_byte(self) -> bool:
        """Whether packed neighbours share a byte.

        >>> DType.of("float4_e2m1fn").is_sub_byte, DType.of("float4_e2m1fnx2").is_sub_byte
        (True, False)
        """
        return self.bits * self.lanes % 8 != 0

    @property
    def element(self) -> DType:
        """The type of one lane."""
        return self if self.lanes == 1 else DType(self.code, self.bits)

    def with_lanes(self, lanes: int) -> DType:
        return self if lanes == self.lanes else DType(self.code, self.bits, lanes)

    def min(self) -> int:
        """The least value of an integer type."""
        return self._least

    def max(self) -> int:
        """The greatest value of an integer type."""
        return self._greatest

    def to_numpy(self) -> np.dtype[Any]:
        """The numpy dtype of the same bytes.

        Raises
        ------
        TypeError
            For types that numpy does not have: ``bfloat16``, handles, vectors.
        """
        if self.lanes == 1 and self.code in _NUMPY_KINDS and self.bits in _NUMPY_KINDS[self.code]:
            return np.dtype(str(self))
        raise TypeError(f"dtype {self}: numpy has no such type")

    def __repr__(self) -> str:
        return f"DType('{self}')"


def _greatest(code: int, bits: int) -> int:
    if code == TypeCode.BOOL:
        return 1
    return (1 << bits >> (code == TypeCode.INT)) - 1


def _name(code: int, bits: int, lanes: int) -> str:
    suffix = "" if lanes == 1 else f"x{lanes}"
    if code >= len(CODE_NAMES):
        return f"code{code}_{bits}{suffix}"
    name = CODE_NAMES[code]
    has_one = code in (TypeCode.HANDLE, TypeCode.BOOL) or code > TypeCode.BOOL
    if has_one and bits == _DEFAULT_WIDTH[name]:
        return name + suffix
    return f"{name}{bits}{suffix}"


_dtypes: dict[tuple[int, int, int], DType] = {}  # one object for each
DTypeLike = DType | str | type | np.dtype[Any] | Any
_NUMPY_KINDS: dict[int, tuple[int, ...]] = {
    TypeCode.INT: (8, 16, 32, 64),
    TypeCode.UINT: (8, 16, 32, 64),
    TypeCode.FLOAT: (16, 32, 64),
    TypeCode.BOOL: (8,),
    TypeCode.COMPLEX: (64, 128),
}


@lru_cache(maxsize=512)
def _parse(name: str) -> DType:
    match = _PATTERN.fullmatch(name)
    if match is None:
        raise TypeError(f"expected the name of a dtype such as 'float32' or 'int8x4', got {name!r}")
    kind, digits, lane_digits = match.groups()
    if not digits and kind not in _DEFAULT_WIDTH:
        raise TypeError(f"dtype {name!r}: expected a width, such as {kind}64")
    bits = int(digits) if digits else _DEFAULT_WIDTH[kind]
    lanes = int(lane_digits) if lane_digits else 1
    if bits not in _WIDTHS[kind]:
        widths = ", ".join(map(str, _WIDTHS[kind]))
        raise TypeError(f"dtype {name!r}: {kind} comes in {widths} bits, got {bits}")
    if not 1 <= lanes <= MAX_LANES:
        raise TypeError(f"dtype {name!r}: expected 1 to {MAX_LANES} lanes, got {lanes}")
    if kind == "uint" and bits == 1:
        kind, bits = "bool", 8
    return DType(int(TypeCode[kind.upper()]), bits, lanes)


BOOL = DType(TypeCode.BOOL, 8)
INT8 = DType(TypeCode.INT, 8)
INT16 = DType(TypeCode.INT, 16)
INT32 = DType(TypeCode.INT, 32)
INT64 = DType(TypeCode.INT, 64)
UINT8 = DType(TypeCode.UINT, 8)
UINT16 = DType(TypeCode.UINT, 16)
UINT32 = DType(TypeCode.UINT, 32)
UINT64 = DType(TypeCode.UINT, 64)
FLOAT16 = DType(TypeCode.FLOAT, 16)
BFLOAT16 = DType(TypeCode.BFLOAT, 16)
FLOAT32 = DType(TypeCode.FLOAT, 32)
FLOAT64 = DType(TypeCode.FLOAT, 64)
HANDLE = DType(TypeCode.HANDLE, 64)
