"""Named tensors in files: both containers, there and back, and files of strangers."""

from __future__ import annotations

import math
import struct
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitvm import nd
from minitvm.runtime.params import load_param_dict, load_params, save_param_dict, save_params

SUFFIXES = (".params", ".safetensors")
DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=40, deadline=None)
@given(
    params=st.dictionaries(
        st.text(max_size=9).filter(lambda name: name.isprintable() and name != "__metadata__"),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3).map(tuple)),
        max_size=4,
    ),
    seed=st.integers(0, 99),
)
def test_there_and_back(
    suffix: str, params: dict[str, tuple[str, tuple[int, ...]]], seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    random = np.random.default_rng(seed)
    arrays = {}
    for name, (dtype, shape) in params.items():
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        raw = random.integers(0, 2 if dtype == "bool" else 256, math.prod(shape) * kind.itemsize)
        arrays[name] = raw.astype(np.uint8).view(kind).reshape(shape)
    path = tmp_path_factory.mktemp("params") / f"some{suffix}"
    save_params(path, arrays)
    found = load_params(path)
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert (str(found[name].dtype), found[name].shape) == (str(array.dtype), array.shape)
        assert found[name].numpy().tobytes() == array.tobytes()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_arrays_of_anybody(suffix: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / f"some{suffix}"
    rows = torch.arange(6.0).reshape(2, 3)
    save_params(path, {"t": rows.T, "n": nd.array([1.5], dtype="bfloat16")})
    found = load_params(path)
    assert found["t"].numpy().tolist() == rows.T.tolist()
    assert (found["n"].dtype, found["n"].item()) == ("bfloat16", 1.5)


def test_safetensors_reads_what_we_write(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    save_params(tmp_path / "a.safetensors", {"w": np.arange(3, dtype="float32")})
    assert load_file(tmp_path / "a.safetensors")["w"].tolist() == [0, 1, 2]


def test_the_layout_of_classic_tvm() -> None:
    content = save_param_dict({"ab": np.array([[7, 8]], dtype="int16")})
    assert content == struct.pack(
        "<QQQQ2sQQQiiiBBHqqqhh",
        0xF7E58D4F05049CB7, 0, 1, 2, b"ab", 1,
        0xDD5E40F096B4A13F, 0, 1, 0, 2, 0, 16, 1, 1, 2, 4, 7, 8,
    )  # fmt: skip
    was_bool = bytes(save_param_dict({"x": np.array([True])})).replace(
        struct.pack("<BBH", 6, 8, 1), struct.pack("<BBH", 1, 1, 1)
    )
    assert load_param_dict(was_bool)["x"].dtype == "bool"


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_files_of_strangers(data: st.DataObject) -> None:
    """Arrays or a ValueError, whatever the bytes are."""
    content = bytearray(save_param_dict({"a": np.arange(4.0), "b": np.ones((2, 2), "int8")}))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    changed = content[: data.draw(st.sampled_from([len(content), 0, 24, 60]))]
    try:
        found = load_param_dict(changed)
    except ValueError as error:
        assert "load_params" in str(error)
    else:
        assert len(found) <= 2


def test_wrong_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    bad: Any = {1: np.zeros(2)}
    with pytest.raises(TypeError, match="expected names that are strings, got 1"):
        save_param_dict(bad)
    with pytest.raises(TypeError, match="expected a name in Unicode"):
        save_param_dict({"\ud800": np.zeros(2)})
    with pytest.raises(TypeError, match="w: safetensors has no dtype complex128"):
        save_params(path, {"w": np.zeros(2, "complex128")})
    assert not path.exists()
    with pytest.raises(ValueError, match="expected the end, got 1 bytes more"):
        load_param_dict(save_param_dict({}) + b"x")
    with pytest.raises(ValueError, match="expected a parameter dictionary"):
        load_param_dict(bytes(40))
    path.write_bytes(b"\xff" * 20)
    with pytest.raises(ValueError, match="expected safetensors"):
        load_params(path)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r'pip install "minitvm\[safetensors\]"'):
        load_params(path)
