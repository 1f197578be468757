"""Malformed and odd DLPack tensors, and what becomes of each: an error, or the right array.

Run by test_hostile_capsules.py, and as a program: ``python -m tests.runtime.hostile_capsules``.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from minitvm.runtime import NDArray, PackedFunc, array, from_dlpack
from minitvm.runtime.dlpack import DLDataType, DLDevice
from tests.runtime.test_dlpack import LEGACY, VERSIONED, CapsuleName, CapsuleNew, Producer
from tests.runtime.test_exchange import imported

I64 = 2**63
COUNT = np.arange(6, dtype="int32")


class Case(NamedTuple):
    """What a producer hands out, and what comes of it."""

    fields: dict[str, Any]  # of the DLTensor; `shape_` and `strides_` are sequences, or addresses
    error: type[Exception] | None = None
    text: str = ""
    values: Any = None  # the elements, as numpy has them


def refused(error: type[Exception], text: str, **fields: Any) -> Case:
    return Case(fields, error, text)


def right(values: Any, **fields: Any) -> Case:
    return Case(fields, values=np.asarray(values))


def dtype(code: int, bits: int, lanes: int = 1) -> DLDataType:
    return DLDataType(code, bits, lanes)


GRID = COUNT.reshape(2, 3)
BYTES = COUNT.view("uint8")
MALFORMED: dict[str, Case] = {
    "ndim -1": refused(BufferError, "0 to 64 dimensions, got ndim -1", ndim=-1),
    "ndim least": refused(BufferError, "got ndim -2147483648", ndim=-(2**31)),
    "ndim 65": refused(BufferError, "got ndim 65", ndim=65),
    "ndim most": refused(BufferError, "got ndim 2147483647", ndim=2**31 - 1),
    "NULL shape": refused(BufferError, "with a shape, got NULL and ndim 2", shape_=None),
    "NULL data": refused(BufferError, "got a NULL address", data=None),
    "NULL data, offset": refused(BufferError, "got a NULL address", data=None, byte_offset=8),
    "extent -1": refused(BufferError, r"at least 0, got the shape \(2, -1\)", shape_=(2, -1)),
    "extent least": refused(BufferError, "extents of at least 0", shape_=(-I64, 1)),
    "extents -2, -3": refused(BufferError, "extents of at least 0", shape_=(-2, -3)),
    "extents 0, -1": refused(BufferError, "extents of at least 0", shape_=(0, -1)),
    "extent most": refused(BufferError, r"less than 2\*\*63 bytes", shape_=(I64 - 1, 1)),
    "2**64 elements": refused(BufferError, r"less than 2\*\*63", shape_=(2**32, 2**32)),
    "2**128 elements": refused(BufferError, r"less than 2\*\*63", shape_=(2**62, 2**62)),
    "2**64 bytes": refused(BufferError, r"less than 2\*\*63", shape_=(2**61, 2)),
    "none of 2**62": refused(BufferError, r"less than 2\*\*63", shape_=(0, 2**62)),
    "long strides": refused(BufferError, "elements at addresses", strides_=(2**61, 1)),
    "longest strides": refused(BufferError, "at addresses", strides_=(I64 - 1, I64 - 1)),
    "strides below 0": refused(BufferError, "at addresses", strides_=(-(2**60), 1)),
    "least strides": refused(BufferError, "at addresses", strides_=(-I64, -I64)),
    "offset that wraps": refused(BufferError, "at addresses", byte_offset=2**64 - 4),
    "offset 2**63": refused(BufferError, "at addresses", byte_offset=I64),
    "data beyond": refused(BufferError, "at addresses", data=2**64 - 8),
    "data beyond, all": refused(BufferError, "at addresses", data=2**64 - 1, byte_offset=2**64 - 1),
    "cuda": refused(ValueError, r"cpu\(0\), got cuda\(1\)", device=DLDevice(2, 1)),
    "second cpu": refused(ValueError, r"cpu\(0\), got cpu\(1\)", device=DLDevice(1, 1)),
    "cpu -1": refused(ValueError, r"cpu\(0\), got cpu\(-1\)", device=DLDevice(1, -1)),
    "device 0": refused(ValueError, r"got device_type_0\(0\)", device=DLDevice(0, 0)),
    "device 5": refused(ValueError, r"got device_type_5\(0\)", device=DLDevice(5, 0)),
    "device -7": refused(ValueError, r"got device_type_-7\(0\)", device=DLDevice(-7, 0)),
    "trn": refused(ValueError, r"got trn\(0\)", device=DLDevice(18, 0)),
    "code 18": refused(BufferError, "type code of DLPack 1.3, 0 to 17, got 18", dtype=dtype(18, 8)),
    "code 255": refused(BufferError, "0 to 17, got 255", dtype=dtype(255, 255, 65535)),
    "0 bits": refused(BufferError, "bits for int, got 0 bits", dtype=dtype(0, 0)),
    "9 bits": refused(BufferError, "whole bytes of bits for int, got 9", dtype=dtype(0, 9)),
    "255 bits": refused(BufferError, "bits for uint, got 255", dtype=dtype(1, 255)),
    "0 lanes": refused(BufferError, "at least one lane", dtype=dtype(2, 32, 0)),
    "float8": refused(BufferError, "bits for float, got 8", dtype=dtype(2, 8)),
    "float33": refused(BufferError, "bits for float, got 33", dtype=dtype(2, 33)),
    "bfloat32": refused(BufferError, "of 16 bits for bfloat, got 32", dtype=dtype(4, 32)),
    "complex8": refused(BufferError, "bits for complex, got 8", dtype=dtype(5, 8)),
    "complex40": refused(BufferError, "bits for complex, got 40", dtype=dtype(5, 40)),
    "bool of 1 bit": refused(BufferError, "of 8 bits for bool, got 1", dtype=dtype(6, 1)),
    "handle of 4 bits": refused(BufferError, "bits for handle, got 4", dtype=dtype(3, 4)),
    "fp8 of 7 bits": refused(BufferError, "8 bits for float8_e4m3fn, got 7", dtype=dtype(10, 7)),
    "fp6 of 8 bits": refused(BufferError, "6 bits for float6_e2m3fn, got 8", dtype=dtype(15, 8)),
    "fp4 of 8 bits": refused(BufferError, "4 bits for float4_e2m1fn, got 8", dtype=dtype(17, 8)),
    "version 0.8": refused(BufferError, "DLPack 1.x, got version 0.8", version=(0, 8)),
    "version 2.0": refused(BufferError, "DLPack 1.x, got version 2.0", version=(2, 0)),
    "last version": refused(BufferError, "got version 4294967295", version=(2**32 - 1, 0)),
    "version 3, all wrong": refused(
        BufferError, "got version 3.1", version=(3, 1), ndim=-9, shape_=7, data=3, flags=2**64 - 1
    ),
}
ODD: dict[str, Case] = {
    "plain": right(GRID),
    "minor version 99": right(GRID, version=(1, 99)),
    "unknown flags": right(GRID, flags=1 << 40),
    "NULL strides": right(GRID, strides_=None),
    "NULL manager": right(GRID),
    "scalar": right(COUNT[0], ndim=0),
    "scalar, all NULL": right(COUNT[0], ndim=0, shape_=None, strides_=None),
    "offset": right(COUNT[2:5], ndim=1, shape_=(3,), byte_offset=8),
    "reversed": right(GRID[::-1, ::-1], strides_=(-3, -1), byte_offset=20),
    "transposed": right(GRID.T, shape_=(3, 2), strides_=(1, 3)),
    "broadcast": right(np.broadcast_to(COUNT[0], (4, 5)), shape_=(4, 5), strides_=(0, 0)),
    "overlapping": right(np.array([[0, 1, 2], [1, 2, 3]], "int32"), strides_=(1, 1)),
    "single, absurd strides": right(
        COUNT[:1].reshape(1, 1), shape_=(1, 1), strides_=(-I64, I64 - 1)
    ),
    "empty, NULL data": right(np.zeros((0, 3), "int32"), shape_=(0, 3), data=None),
    "empty, data nowhere": right(np.zeros((2, 0), "int32"), shape_=(2, 0), data=5),
    "empty, absurd strides": right(
        np.zeros((2, 0), "int32"), shape_=(2, 0), strides_=(I64 - 1, -I64), byte_offset=2**64 - 1
    ),
    "64 dimensions": right(COUNT.reshape((6,) + (1,) * 63), ndim=64, shape_=(6,) + (1,) * 63),
    "misaligned": right(
        np.frombuffer(BYTES[1:21].tobytes(), "int32"), ndim=1, shape_=(5,), byte_offset=1
    ),
    "old bool": right(BYTES[:6].reshape(2, 3) != 0, dtype=dtype(1, 1)),
    "bytes": right(BYTES[:6].reshape(2, 3), dtype=dtype(1, 8)),
    "vectors": right(COUNT.reshape(1, 3, 2), shape_=(1, 3), dtype=dtype(0, 32, 2)),
    "complex": right(COUNT[:4].view("complex64"), ndim=1, shape_=(2,), dtype=dtype(5, 64)),
    "nibbles": right([0, 0, 0, 0, 0, 0, 0, 0, 1, 0], ndim=1, shape_=(10,), dtype=dtype(1, 4)),
    "padded nibbles": right([0, 0, 0, 0, 1, 0], ndim=1, shape_=(6,), dtype=dtype(1, 4), flags=4),
    "crumbs": right([0] * 16 + [1, 0], ndim=1, shape_=(18,), dtype=dtype(1, 2)),
    "bits of pairs": right(
        np.array([0] * 32 + [1, 0]).reshape(17, 2), ndim=1, shape_=(17,), dtype=dtype(1, 1, 2)
    ),
}
CASES = {**MALFORMED, **ODD}


def producer(case: Case, name: bytes) -> Producer:
    """What hands out the tensor of a case."""
    fields = dict(case.fields)
    ndim = fields.get("ndim", 2)
    dims: dict[str, Any] = {}
    for field in ("shape", "strides"):
        given = fields.pop(f"{field}_", ())
        if isinstance(given, tuple) and given:
            dims[field] = (ctypes.c_int64 * len(given))(*given)
            fields[field] = ctypes.addressof(dims[field])
        elif given != ():
            fields[field] = given
    made = Producer(name=name, **fields)
    made.dims = dims  # type: ignore[attr-defined]  # kept alive
    assert ndim == made.managed.dl_tensor.ndim
    return made


def ways(made: Producer) -> dict[str, Callable[[], NDArray]]:
    """How the tensor may come to us, each with a capsule of its own."""
    return {
        "array": lambda: from_dlpack(made),
        "capsule": lambda: from_dlpack(made.capsule()),
        "copy": lambda: from_dlpack(made, copy=True),
        "no copy": lambda: from_dlpack(made, copy=False),
        "device": lambda: from_dlpack(made, device="cpu"),
        **({"exchange API": lambda: imported(made.managed)} if made.name == VERSIONED else {}),
    }


def check(case: Case, name: bytes) -> None:
    """The tensor is refused, or read right, and deleted once a capsule that we consumed."""
    made = producer(case, name)
    for expected, take in enumerate(ways(made).values(), 1):
        if case.error is not None:
            with pytest.raises(case.error, match=case.text):
                take()
        else:
            read(take(), case.values)
        if made.deleted != expected:
            gc.collect()  # what an error's traceback keeps
        assert made.deleted == expected
    given = expected
    call = PackedFunc(lambda a: read(a, case.values), name="f")
    if case.error is not None:
        with pytest.raises(case.error, match=f"f: argument 0: .*{case.text}"):
            call(made)
    elif not case.fields.get("flags"):
        call(made)  # a call borrows, and deletes nothing
    assert made.deleted == given


def read(found: NDArray, values: Any) -> None:
    """Reads an array in every way that there is."""
    assert found.shape == values.shape[: found.ndim]
    content = found.numpy()
    if found.dtype.bits < 8:
        content = content.astype("int64")
    np.testing.assert_array_equal(content, values, strict=True)
    assert repr(found).startswith("<NDArray")
    assert from_dlpack(found).same_as(found) or found.size == 0
    assert array(found).nbytes <= found.nbytes
    for part in (found[...], found.T, found.reshape(-1)):
        assert from_dlpack(part).size == found.size
    capsule = found.__dlpack__(max_version=(1, 0))
    assert CapsuleName(capsule) == VERSIONED


def odd_names() -> dict[str, Any]:
    """Capsules that are none of DLPack's, or no longer."""
    names = (
        b"used_dltensor", b"used_dltensor_versioned", b"DLTENSOR", b"dltensor ", b"", None,
        b"dltensor_versioned_2", b"arrow_array", b"\xff\xfe", b"dlpack_exchange_api",
    )  # fmt: skip
    made = Producer()
    kept.extend(names)
    return {str(name): CapsuleNew(ctypes.addressof(made.managed), name, None) for name in names}


kept: list[Any] = []  # a capsule keeps the address of its name alone


def names_of(case: Case) -> tuple[bytes, ...]:
    """The kinds of capsules that can say what a case says."""
    return (VERSIONED,) if {"version", "flags"} & set(case.fields) else (LEGACY, VERSIONED)


ALL = [(title, name) for title, case in CASES.items() for name in names_of(case)]


def main() -> None:
    for title, name in ALL:
        check(CASES[title], name)
    for capsule in odd_names().values():
        with pytest.raises(BufferError):
            from_dlpack(capsule)
    print("done")


if __name__ == "__main__":
    main()
