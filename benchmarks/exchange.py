"""What it costs to hand a tensor from one library to another: no element is looked at."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import minitvm
from benchmarks import peers
from benchmarks.measure import OURS, Row, Settings, interleaved, statement

_WHAT = "2 x 3 of float32, shared, and dropped again; the target is the fastest of the others"
_NEEDED = ("torch", "tvm_ffi")

# The function that takes a tensor, and the tensor.
Exchanges = Mapping[str, tuple[Callable[[Any], Any], Any]]


def rows(settings: Settings) -> Iterator[Row]:
    """Tensors of torch to others, and arrays of others to torch and numpy."""
    # Many short measurements: those in which another process had the core stay in the minority.
    settings = dataclasses.replace(settings, least=settings.least / 10, repeat=5 * settings.repeat)
    x = np.arange(6, dtype="float32").reshape(2, 3)
    arrays: dict[str, Any] = {OURS: minitvm.nd.array(x), "numpy": x}
    torch, ffi = peers.peer("torch"), peers.peer("tvm_ffi")
    if ffi is not None:
        arrays["tvm-ffi"] = ffi.from_dlpack(x)
    if torch is not None:
        tensor = torch.from_numpy(x)
        takers: dict[str, Callable[[Any], Any]] = {
            OURS: minitvm.from_dlpack,
            "np.from_dlpack": np.from_dlpack,
            "tensor.numpy()": torch.Tensor.numpy,
        }
        if ffi is not None:
            takers["tvm-ffi"] = ffi.from_dlpack
        yield _row(
            "from_dlpack of a tensor of torch",
            {name: (take, tensor) for name, take in takers.items()},
            settings,
        )
        to_torch = {name: (torch.from_dlpack, array) for name, array in arrays.items()}
        yield _row(
            "torch.from_dlpack of an array",
            {**to_torch, "torch.from_numpy": (torch.from_numpy, x)},
            settings,
        )
        arrays["torch"] = tensor
    yield _row(
        "np.from_dlpack of an array",
        {name: (np.from_dlpack, array) for name, array in arrays.items() if name != "tvm-ffi"},
        settings,
    )


def _row(name: str, exchanges: Exchanges, settings: Settings) -> Row:
    for take, x in exchanges.values():
        expected = np.arange(6, dtype="float32").reshape(2, 3)
        np.testing.assert_array_equal(np.from_dlpack(take(x)), expected)
    timers = {peer: statement("take(x)", take=take, x=x) for peer, (take, x) in exchanges.items()}
    measured = interleaved(timers, settings)
    target = min(each.seconds for peer, each in measured.items() if peer != OURS)
    return Row(name, _WHAT, measured, peers.missing(_NEEDED), target)
