"""Chains of choices, each of which depends on the one before: a checksum bit by bit."""

from __future__ import annotations

import sys
from binascii import crc32
from types import FrameType

import numpy as np

import minitvm as tvm
from minitvm import te
from minitvm.te.tensor import Tensor

ROWS = 37


def checksum(size: int) -> tuple[Tensor, Tensor]:
    X = te.placeholder((ROWS, size), "uint8", name="X")
    one, zero, polynomial = (te.const(each, "uint32") for each in (1, 0, 0xEDB88320))

    def element(i: te.Var) -> te.PrimExpr:
        v = te.const(0xFFFFFFFF, "uint32")
        for k in range(size):
            v = v ^ X[i, k].astype("uint32")
            for _ in range(8):
                v = te.if_then_else((v & one) != zero, (v >> one) ^ polynomial, v >> one)
        return v ^ te.const(0xFFFFFFFF, "uint32")

    return X, te.compute((ROWS,), element, name="C")


def calls_of_lowering(size: int) -> int:
    """The number of Python's calls that lowering takes."""
    X, C = checksum(size)
    s = tvm.auto_schedule(C)
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        tvm.lower(s, [X, C])
    finally:
        sys.setprofile(None)
    return count


def test_a_checksum() -> None:
    X, C = checksum(5)
    x = np.random.default_rng(0).integers(0, 256, (ROWS, 5), dtype="uint8")
    c = np.empty(ROWS, "uint32")
    tvm.build([C], [X, C])(x, c)
    assert c.tolist() == [crc32(row.tobytes()) for row in x]


def test_the_work_grows_with_the_length() -> None:
    """Four times the choices take less than six times the calls; of each choice with all those
    before, they would take eleven times as many."""
    calls_of_lowering(1)  # what is made once a process
    assert calls_of_lowering(12) < 6 * calls_of_lowering(3)
