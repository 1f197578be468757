"""TensorProto: what TensorFlow wrote is read, and written again the same.

``data/tensor_proto_tensorflow-2.21.json.gz`` holds messages of TensorFlow 2.21
(``make_tensor_proto``, ``serialize_tensor``, grappler's compression) and some put together by hand,
with the arrays that its reader makes of them.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitvm import nd
from minitvm.runtime import tensor_proto
from minitvm.runtime.ndarray import NDArray
from minitvm.runtime.tensor_proto import from_bytes, to_bytes

DATA = Path(__file__).parent / "data" / "tensor_proto_tensorflow-2.21.json.gz"
ROWS: list[dict[str, Any]] = json.loads(gzip.decompress(DATA.read_bytes()))
READ_ALIKE = [row for row in ROWS if row.get("read_alike")]
NAMED = {row["name"]: row for row in ROWS}


def message(row: dict[str, Any]) -> bytes:
    return base64.b64decode(row["message"])


def expected(row: dict[str, Any]) -> np.ndarray[Any, Any]:
    if isinstance(row["expected"], list):
        return np.array([base64.b64decode(each) for each in row["expected"]], object)
    kind = np.dtype(row["expected"]["dtype"])
    content = base64.b64decode(row["expected"]["content"])
    made: np.ndarray[Any, Any] = np.frombuffer(content, kind.newbyteorder("<")).astype(kind)
    return np.reshape(made, row["expected"]["shape"])


def plain(found: NDArray | np.ndarray[Any, Any], view: str | None = None) -> np.ndarray[Any, Any]:
    return np.asarray(found.view(view) if view else found)


@pytest.mark.parametrize("row", READ_ALIKE, ids=lambda row: row["name"])
def test_messages_of_tensorflow(row: dict[str, Any]) -> None:
    strict = row["name"] not in ("hand_too_many", "hand_int8_overflow")
    found, wanted = plain(from_bytes(message(row), strict=strict), row.get("view")), expected(row)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert found.tolist() == wanted.tolist() or found.tobytes() == wanted.tobytes()


def test_values_that_tensorflow_loses() -> None:
    """A big-endian array, whose bytes it writes as they lie, and zeros with a sign, which its
    compression drops: what is in the message is what is read, and ours are written right."""
    swapped = from_bytes(message(NAMED["mtp_bigendian_in"]))
    assert plain(swapped).byteswap().tolist() == expected(NAMED["mtp_bigendian_in"]).tolist()
    zeros = expected(NAMED["grappler_negzero64"])
    assert np.signbit(zeros).all()
    assert np.signbit(plain(from_bytes(to_bytes(zeros, compress=True)))).all()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hand_too_many", r"expected at most 2 values for the shape \(2,\), got 3"),
        (
            "hand_content_long",
            r"expected 8 bytes of content for the shape \(2,\) of float32, got 12",
        ),
        ("hand_int8_overflow", "expected values of int8, got 300 at 0"),
        ("hand_dtype_invalid", r"expected a dtype among 1 \(float32\).* got 101"),
    ],
)
def test_messages_that_contradict_themselves(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        from_bytes(message(NAMED[name]))


# -- Writing as TensorFlow writes --

# Grappler leaves the run at the end of one array, which its own rule would drop.
_OTHERWISE = ("mtp_pyint_big", "mtp_partial_shape", "grappler_tail_run")
_SOURCES = ("make_tensor_proto", "tf.io.serialize_tensor", "grappler")
_WRITTEN = [
    row
    for row in READ_ALIKE
    if row["source"].startswith(_SOURCES) and row["name"] not in _OTHERWISE
]


@pytest.mark.parametrize("row", _WRITTEN, ids=lambda row: row["name"])
def test_the_same_bytes(row: dict[str, Any]) -> None:
    values: Any = expected(row)
    if row.get("view"):
        values = nd.array(values).view("bfloat16")
    serialised = row["name"].startswith("ser_")
    compress = row["name"].startswith("grappler")
    found = to_bytes(values, content=True if serialised else None, compress=compress)
    assert found == message(row)


def test_python_numbers() -> None:
    assert to_bytes([1.0, 2.0]) == message(NAMED["mtp_pylist_float"])
    assert to_bytes([1, 2]) == message(NAMED["mtp_pylist_int"])
    big = expected(NAMED["mtp_pyint_big"])
    assert to_bytes(big.tolist()) == message(NAMED["mtp_pyint_big"])
    partial = message(NAMED["mtp_partial_shape"])
    assert to_bytes([1.0, 2.0, 3.0], shape=[2, 4], content=False) == partial
    assert to_bytes([1.0, 2.0, 3.0], shape=[2, 4]) == partial


# -- There and back --

DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64", "complex64", "complex128", "bfloat16", "float8_e5m2", "float8_e4m3fn",
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
    st.sampled_from([None, True, False]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1, 40]),
)
def test_there_and_back(
    dtype: str, shape: tuple[int, ...], content: bool | None, compress: bool, seed: int, run: int
) -> None:
    """Every bit, for random bits with a run of equal elements at the end; but that of a signalling
    NaN in single precision, which is lost between Python's floats."""
    random = np.random.default_rng(seed)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    raw = random.integers(0, 256, (math.prod(shape), kind.itemsize), np.uint8)
    if dtype == "bool":
        raw &= 1
    if run and len(raw):
        raw[-run:] = raw[-1] if run % 2 else 0
    if dtype in ("float32", "complex64"):
        single = raw.reshape(-1).view("float32")
        single[np.isnan(single)] = np.nan
    values = raw.reshape(-1).view(kind).reshape(shape)
    found = from_bytes(to_bytes(values, content=content, compress=compress))
    assert isinstance(found, NDArray)
    assert (found.shape, str(found.dtype)) == (shape, dtype)
    bits = np.asarray(found.view(f"uint{8 * kind.itemsize}")) if kind.itemsize <= 8 else found
    assert np.asarray(bits).tobytes() == values.tobytes()


@pytest.mark.parametrize("content", [None, True, False])
@pytest.mark.parametrize(
    "values", [["a", "bc", ""], [["é", "x" * 300]], "one", b"\0\xff\0", np.array([b"q", b"rs"])]
)
def test_strings(values: Any, content: bool | None) -> None:
    wanted = np.array(values, object)
    found = from_bytes(to_bytes(values, content=content))
    assert isinstance(found, np.ndarray)
    assert found.shape == wanted.shape
    flat = [each.encode() if isinstance(each, str) else each for each in wanted.reshape(-1)]
    assert found.reshape(-1).tolist() == flat


def test_compression_is_for_what_gets_half_as_large() -> None:
    values = np.arange(64, dtype="float32")
    values[-33:] = 7
    assert len(to_bytes(values, compress=True)) < len(to_bytes(values)) / 1.9
    values[-33] = 8
    assert to_bytes(values, compress=True) == to_bytes(values)
    assert len(to_bytes(np.ones(63, "float32"), compress=True)) > 63 * 4


# -- Wrong input --


def test_what_cannot_be_written() -> None:
    with pytest.raises(TypeError, match=r"expected a dtype among float32.* got float8"):
        to_bytes(np.zeros(2, ml_dtypes.float8_e3m4))
    with pytest.raises(ValueError, match=r"at most 2 values for the shape \(2,\), got 3"):
        to_bytes([1, 2, 3], shape=[2])
    with pytest.raises(ValueError, match=r"expected a value for the shape \(2,\), got none"):
        to_bytes(np.zeros(0), shape=[2])
    with pytest.raises(ValueError, match="extents of at least 0, got -1"):
        to_bytes(np.zeros(0), shape=[0, -1])
    with pytest.raises(TypeError, match="expected strings or numbers, got both"):
        to_bytes(["a", 1])
    with pytest.raises(TypeError, match="expected numbers for dtype int8, got strings"):
        to_bytes("a", dtype="int8")
    with pytest.raises(ValueError, match=r"expected 2 strings for content"):
        to_bytes(["a"], shape=[2], content=True)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=60), st.sampled_from(ROWS), st.integers(0, 80), st.booleans())
def test_bytes_of_anybody(noise: bytes, row: dict[str, Any], at: int, strict: bool) -> None:
    """An array or a ValueError, whatever the bytes are."""
    content = message(row)
    for changed in (noise, content[:at], content[:at] + noise + content[at:]):
        try:
            found = from_bytes(changed, strict=strict)
        except (ValueError, MemoryError):
            continue
        assert isinstance(found, NDArray | np.ndarray)


def test_shapes_of_a_stranger() -> None:
    library = tensor_proto._message()
    library.dtype = 1
    for extent in (1 << 40, 1 << 40):
        library.tensor_shape.dim.add().size = extent
    with pytest.raises(ValueError, match="expected less than 2\\*\\*63 bytes"):
        from_bytes(library.SerializeToString())


def test_without_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor_proto._library.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(ImportError, match=r'pip install "minitvm\[tensor-proto\]"'):
        to_bytes([1])
