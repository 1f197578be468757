"""The classic wrappers for other libraries' tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minitvm.contrib.dlpack import convert_func, to_numpy_func, to_pytorch_func
from minitvm.runtime import NDArray


def add_one(a: NDArray, out: NDArray, by: int = 1) -> None:
    assert isinstance(a, NDArray)
    assert isinstance(out, NDArray)
    out.copyfrom(a.numpy() + by)


def test_to_pytorch_func() -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    to_pytorch_func(add_one)(x, y)
    assert y.tolist() == [1, 2, 3]
    to_pytorch_func(add_one)(x, out=y, by=5)
    assert y.tolist() == [5, 6, 7]
    with pytest.raises(BufferError, match="doesn't require grad"):
        to_pytorch_func(add_one)(torch.ones(3, requires_grad=True), y)


def test_to_numpy_func(compiled: Any) -> None:
    x, y = np.arange(3), np.zeros(3, np.int64)
    x.flags.writeable = False
    to_numpy_func(add_one)(x, y)
    assert y.tolist() == [1, 2, 3]
    to_numpy_func(compiled.function("increment", ("X",), (0,)))(y)
    assert y.tolist() == [2, 2, 3]


def test_convert_func_converts_through_capsules() -> None:
    class Tensor:
        def __init__(self) -> None:
            self.content = np.zeros(3, np.int64)

    tensor = Tensor()
    converted = convert_func(add_one, Tensor, lambda t: t.content.__dlpack__())
    converted(tensor, tensor)
    assert tensor.content.tolist() == [1, 1, 1]
