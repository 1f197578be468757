"""mdspan views: the checks of CUDA's header, mappings, elements, and the way back to DLPack.

``data/mdspan_cccl-*.jsonl.gz`` holds random descriptions of tensors with what the header of that
release of CCCL (libcudacxx, DLPack 1.3) answered.
"""

from __future__ import annotations

import ctypes
import gzip
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitvm import nd
from minitvm.runtime import mdspan
from minitvm.runtime.dlpack import DLDataType, DLDevice, DLTensor
from minitvm.runtime.dtype import DType
from minitvm.runtime.mdspan import (
    Mapping,
    layout_left,
    layout_right,
    layout_stride,
    layout_stride_relaxed,
    to_device_mdspan,
    to_dlpack_tensor,
    to_host_mdspan,
    to_managed_mdspan,
)

DATA = Path(__file__).parent / "data"
MAKERS: dict[str, Any] = {
    "host": to_host_mdspan,
    "device": to_device_mdspan,
    "managed": to_managed_mdspan,
}
LAYOUTS = {
    "right": layout_right,
    "left": layout_left,
    "stride": layout_stride,
    "relaxed": layout_stride_relaxed,
}


def dims(address: int | None, rank: int) -> list[int] | None:
    return list((ctypes.c_int64 * rank).from_address(address)) if address else None


class Described:
    """The DLTensor of a description, in a buffer aligned to 256 bytes."""

    def __init__(self, case: dict[str, Any]) -> None:
        self._buffer = ctypes.create_string_buffer(4096)
        self.base = -(-ctypes.addressof(self._buffer) // 256) * 256
        self._dims = {
            name: (ctypes.c_int64 * max(len(case[name]), 1))(*case[name])
            for name in ("shape", "strides")
            if case[name] is not None
        }
        self.tensor = tensor = DLTensor()
        tensor.device = DLDevice(case["dev"], 0)
        tensor.ndim = case["ndim"]
        tensor.dtype = DLDataType(*case["dt"])
        tensor.byte_offset = case["off"]
        if case["data"] is not None:
            tensor.data = self.base + int(case["data"].removeprefix("buf+"))
        for name, values in self._dims.items():
            setattr(tensor, name, ctypes.addressof(values))


def answer(case: dict[str, Any], header: str) -> dict[str, Any]:
    described = Described(case)
    make, layout = MAKERS[case["api"]], LAYOUTS[case["layout"]]
    try:
        md = make(described.tensor, case["elem"], case["rank"], layout, header=header)
    except ValueError as error:
        return {"ok": False, "message": str(error)}
    back = to_dlpack_tensor(md, header=header).get()
    return {
        "ok": True,
        "extents": list(md.extents),
        "strides": list(md.strides),
        "address": md.data_handle - described.base,
        "offset": md.mapping.offset,
        "back": {
            "dt": [back.dtype.code, back.dtype.bits, back.dtype.lanes],
            "ndim": back.ndim,
            "data": None if back.data is None else back.data - described.base,
            "shape": dims(back.shape, back.ndim),
            "strides": dims(back.strides, back.ndim),
            "byte_offset": back.byte_offset,
        },
    }


@pytest.mark.parametrize("header", ["3.3.0", "3.5.0"])
def test_answers_of_the_header(header: str) -> None:
    seen = 0
    with gzip.open(DATA / f"mdspan_cccl-{header}.jsonl.gz", "rt") as lines:
        for line in lines:
            row = json.loads(line)
            found = answer(row["case"], header)
            if row["answer"].get("back", found) is None:  # of device memory it wasn't asked
                found["back"] = None
            assert found == row["answer"], row["case"]
            seen += 1
    assert seen == 4000


def test_products_that_exceed_64_bits_are_refused() -> None:
    """Where the header of 3.3.0 gives an expected stride of -2^63."""
    case = {
        "dev": 1, "dt": [1, 8, 1], "data": "buf+0", "off": 0, "ndim": 3,
        "shape": [1, 1 << 32, 1 << 31], "strides": [-(1 << 63), 1 << 31, 1],
    }  # fmt: skip
    described = Described(case)
    assert to_host_mdspan(described.tensor, "uint8", 3, layout_right, header="3.3.0").rank() == 3
    with pytest.raises(ValueError, match=r"^shape overflow$"):
        to_host_mdspan(described.tensor, "uint8", 3, layout_right)


def test_the_offset_of_a_relaxed_layout_comes_back() -> None:
    """Which the headers forget."""
    x = np.arange(8, dtype="int32")
    tensor = DLTensor.from_buffer_copy((ctypes.c_char * 48).from_address(nd.array(x).handle))
    tensor.data, tensor.byte_offset = x.ctypes.data, 12
    extents = (ctypes.c_int64 * 2)(3, -1)
    tensor.shape, tensor.strides = ctypes.addressof(extents), ctypes.addressof(extents) + 8
    md = to_host_mdspan(tensor, "int32", 1, layout_stride_relaxed)
    assert [md[i] for i in range(3)] == [3, 2, 1]
    assert (md.mapping.offset, md.mapping.required_span_size()) == (3, 4)
    back = to_dlpack_tensor(md).get()
    assert (back.data, back.byte_offset) == (x.ctypes.data + 12, 0)
    assert to_dlpack_tensor(md, header="3.5.0").get().data == x.ctypes.data


# -- Strides that are NULL ---------------------------------------------------------------------


@pytest.mark.parametrize("layout", list(LAYOUTS.values()))
@pytest.mark.parametrize("shape", [[], [5], [2, 3], [0, 4], [2, 0]])
def test_strides_of_old_producers(shape: list[int], layout: mdspan.LayoutPolicy) -> None:
    case = {
        "dev": 1, "dt": [2, 32, 1], "data": "buf+0", "off": 0, "ndim": len(shape),
        "shape": shape, "strides": None,
    }  # fmt: skip
    described = Described(case)
    if layout is layout_left and len(shape) > 1:
        with pytest.raises(ValueError, match=r"^strides must be non-null for layout_left$"):
            to_host_mdspan(described.tensor, "float", 2, layout, dlpack_version=(1, 1))
    else:
        md = to_host_mdspan(described.tensor, "float", len(shape), layout, dlpack_version=(1, 1))
        assert md.strides == tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    if shape:
        with pytest.raises(ValueError, match=r"strides=nullptr is not supported for DLPack v1.2"):
            to_host_mdspan(described.tensor, "float", len(shape), layout)


# -- Mappings ----------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-7, 13)), max_size=3), st.integers(0, 40))
def test_mappings(axes: list[tuple[int, int]], offset: int) -> None:
    """Against all offsets, written down."""
    extents, strides = tuple(e for e, _ in axes), tuple(s for _, s in axes)
    mapping = Mapping(layout_stride_relaxed, extents, strides, offset)
    places = list(itertools.product(*map(range, extents)))
    offsets = [mapping(*place) for place in places]
    assert offsets == [
        offset + sum(i * s for i, s in zip(place, strides, strict=True)) for place in places
    ]
    assert mapping.required_span_size() == max(offsets, default=-1) + 1
    unique = len(set(offsets)) == len(offsets)
    assert unique or not mapping.is_unique()
    if mapping.is_unique():
        full = set(offsets) == set(range(mapping.required_span_size()))
        assert mapping.is_exhaustive() == full


@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (2, 1, 5), (0, 3)])
def test_compact_mappings_are_unique_and_exhaustive(shape: tuple[int, ...]) -> None:
    for order, layout in (("C", layout_right), ("F", layout_left)):
        strides = tuple(s // 8 for s in np.zeros(shape, order=order).strides)  # type: ignore[call-overload]  # one of its literals
        mapping = Mapping(layout, shape, strides)
        assert mapping.is_unique()
        assert mapping.is_exhaustive()
        assert mapping.is_strided()


def test_indices_are_checked() -> None:
    md = to_host_mdspan(np.zeros((2, 3)), "double", 2)
    with pytest.raises(IndexError, match=r"mdspan: index 1 must stay in \[0, 3\), got 3"):
        md[0, 3]
    with pytest.raises(IndexError, match=r"index 0 must stay in \[0, 2\), got -1"):
        md[-1, 0] = 1.0
    with pytest.raises(IndexError, match="expected 2 indices, got 1"):
        md[0]
    with pytest.raises(TypeError):
        md[0.5, 0]  # type: ignore[index]  # meant


# -- Elements ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int64", "uint64", "float16", "float64", "complex64"]
)
def test_elements(dtype: str) -> None:
    x = np.arange(24).reshape(2, 3, 4).astype(dtype)[:, ::2, 1:]
    md = to_host_mdspan(x, dtype, 3)
    for place in np.ndindex(x.shape):
        assert md[place] == x[place]
    md[1, 1, 2] = 0
    assert x[1, 1, 2] == 0


def test_elements_that_numpy_does_not_have() -> None:
    content = ctypes.create_string_buffer((-5).to_bytes(16, "little", signed=True) * 2)
    one = (ctypes.c_int64 * 2)(2, 1)
    tensor = DLTensor(
        ctypes.addressof(content), DLDevice(1, 0), 1, DLDataType(0, 128, 1),
        ctypes.addressof(one), ctypes.addressof(one) + 8, 0,
    )  # fmt: skip
    if tensor.data % 16 == 0:
        assert to_host_mdspan(tensor, "int128", 1)[1] == -5
    pairs = nd.empty((3,), "float32x2")
    pairs[...] = np.arange(6, dtype="float32").reshape(3, 2)
    assert to_host_mdspan(pairs, "float2", 1)[2] == (4.0, 5.0)
    brain = nd.array([1.5, 2.5], dtype="bfloat16")
    assert to_host_mdspan(brain, "bf16", 1)[1] == 2.5


def test_arrays_of_anybody() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3).T
    for source in (x, x.numpy(), nd.from_dlpack(x), x.__dlpack__(), memoryview(x.numpy())):
        md = to_host_mdspan(source, "float", 2)
        assert (md.extents, md.strides, md[2, 1]) == ((3, 2), (1, 3), 5.0)
    assert to_host_mdspan(x, "float", 2, "layout_left").mapping.layout is layout_left
    md = to_host_mdspan(torch.arange(4).clone(), "int64", 1)
    assert md[3] == 3, "the view keeps the memory"


def test_read_only_memory() -> None:
    x = np.zeros(3)
    x.flags.writeable = False
    md = to_host_mdspan(x, "double", 1)
    with pytest.raises(ValueError, match="expected a writable array, got a read-only one"):
        md[0] = 1.0
    assert md[0] == 0.0


def test_memory_that_the_host_cannot_read() -> None:
    case = {
        "dev": 2, "dt": [2, 32, 1], "data": "buf+0", "off": 0, "ndim": 1,
        "shape": [3], "strides": [1],
    }  # fmt: skip
    described = Described(case)
    md = to_device_mdspan(described.tensor, "float", 1)
    with pytest.raises(TypeError, match="expected host memory"):
        md[0]
    assert repr(md) == "device_mdspan<float32, layout_stride>(extents=(3,), strides=(1,))"


def test_wrong_questions() -> None:
    x = np.zeros(3)
    with pytest.raises(TypeError, match="expected a DLTensor or an array that can be exported"):
        to_host_mdspan(3, "double", 1)
    with pytest.raises(TypeError, match="expected a layout among layout_right, layout_left"):
        to_host_mdspan(x, "double", 1, "row_major")
    with pytest.raises(TypeError, match="expected the name of a dtype"):
        to_host_mdspan(x, "quad", 1)
    with pytest.raises(ValueError, match=r"expected header to be None, '3.3.0' or '3.5.0'"):
        to_host_mdspan(x, "double", 1, header="2.0")
    with pytest.raises(ValueError, match="expected header"):
        to_dlpack_tensor(to_host_mdspan(x, "double", 1), header="2.0")
    assert mdspan.ELEMENT_TYPES["e4m3"] == DType(10, 8)
