"""Who reads and writes what: ``python -m tests.frameworks.matrix numpy torch jax tensorflow ...``
prints a table of dtypes and of frameworks that this environment has.

Four elements of known bits go from an NDArray to the framework, and from the framework to
`minitvm.from_dlpack`; what arrives is compared.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import minitvm as tvm
from minitvm.runtime import NDArray

INTEGERS = [f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")]
FLOATS = ["float16", "float32", "float64", "bfloat16", "complex64", "complex128"]
SMALL = [
    "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn",
    "float4_e2m1fn", "int4", "uint4",
]  # fmt: skip
DTYPES = ["bool", *INTEGERS, *FLOATS, *SMALL]
_NOT = "-"


class Framework(NamedTuple):
    """How a framework makes an array of numpy's, reads and exports a tensor, and tells its bits and
    its address (None where it doesn't)."""

    make: Callable[[Any, str], Any]
    reads: Callable[[NDArray], Any]
    exports: Callable[[Any], Any]
    bits: Callable[[Any], bytes]
    address: Callable[[Any], int | None]


def _itself(value: Any) -> Any:
    return value


def _numpy() -> Framework:
    return Framework(
        lambda values, _: values, np.from_dlpack, _itself, np.ndarray.tobytes,
        lambda x: int(x.ctypes.data),
    )  # fmt: skip


def _torch() -> Framework:
    torch = importlib.import_module("torch")

    def make(values: Any, name: str) -> Any:
        return torch.frombuffer(bytearray(values.tobytes()), dtype=getattr(torch, name))

    def bits(x: Any) -> bytes:
        return bytes(x.contiguous().view(torch.uint8).numpy().tobytes())

    return Framework(make, torch.from_dlpack, _itself, bits, lambda x: int(x.data_ptr()))


def _jax() -> Framework:
    jax = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    return Framework(
        lambda values, _: jax.numpy.asarray(values), jax.dlpack.from_dlpack, _itself,
        lambda x: np.asarray(x).tobytes(), lambda x: int(x.unsafe_buffer_pointer()),
    )  # fmt: skip


def _tensorflow() -> Framework:
    tf = importlib.import_module("tensorflow")
    exchange = tf.experimental.dlpack
    return Framework(
        lambda values, _: tf.constant(values),
        lambda array: exchange.from_dlpack(array.__dlpack__()),
        exchange.to_dlpack,
        lambda x: bytes(x.numpy().tobytes()),
        lambda _: None,
    )


def _paddle() -> Framework:
    paddle = importlib.import_module("paddle")

    def bits(x: Any) -> bytes:
        as_bits = x.view("uint8") if x.dtype == paddle.bfloat16 else x
        return bytes(as_bits.numpy().tobytes())

    return Framework(
        lambda values, name: paddle.to_tensor(values.tolist(), dtype=name),
        paddle.utils.dlpack.from_dlpack, _itself, bits, lambda x: int(x.data_ptr()),
    )  # fmt: skip


def _mxnet() -> Framework:
    mx = importlib.import_module("mxnet")
    return Framework(
        lambda values, name: mx.nd.array(values, dtype=name),
        lambda array: mx.nd.from_dlpack(array.__dlpack__()),
        lambda x: x.to_dlpack_for_read(),
        lambda x: bytes(x.asnumpy().tobytes()),
        lambda _: None,
    )


FRAMEWORKS: dict[str, Callable[[], Framework]] = {
    "numpy": _numpy, "torch": _torch, "jax": _jax, "tensorflow": _tensorflow, "paddle": _paddle,
    "mxnet": _mxnet,
}  # fmt: skip


def _sample(name: str) -> Any:
    """Four elements that every dtype has: 0 and 1 and such whose bits are small."""
    if hasattr(np, name) and not name.startswith("float8"):
        kind: Any = getattr(np, "bool_" if name == "bool" else name)
    else:
        kind = getattr(importlib.import_module("ml_dtypes"), name)
    if name == "bool":
        return np.array([True, False, True, True])
    return np.array([1, 2, 0.5, 4] if "float" in name else [1, 2, 3, 4]).astype(kind)


def _outcome(attempt: Callable[[], str]) -> str:
    try:
        return attempt()
    except Exception:  # whatever a framework says of a dtype that it can't take
        return _NOT


def _kept(address: int | None, array: NDArray) -> str:
    if address is None:
        return "yes"
    return "shared" if address == array.data else "copied"


def reads(framework: Framework, name: str) -> str:
    """How a framework gets an NDArray."""
    array = tvm.nd.array(_sample(name))
    expected = _packed(array)
    made = framework.reads(array)
    if framework.bits(made) != expected:
        return "**other values**"
    return _kept(framework.address(made), array)


def writes(framework: Framework, name: str) -> str:
    """How `from_dlpack` gets an array of a framework."""
    source = framework.make(_sample(name), name)
    made = tvm.from_dlpack(framework.exports(source))
    if made.numpy().tolist() != _sample(name).tolist():
        return "**other values**"
    if str(made.dtype) != name:
        return f"as {made.dtype}"
    return _kept(framework.address(source), made)


def _packed(array: NDArray) -> bytes:
    return bytes(tvm.nd.array(array).view("uint8").numpy().tobytes())


def table(names: list[str]) -> str:
    """The table in Markdown: for each framework what it reads, and what is read of it."""
    made = {name: FRAMEWORKS[name]() for name in names}
    lines = [
        "| dtype | " + " | ".join(f"{name} reads | writes" for name in made) + " |",
        "|---" * (1 + 2 * len(made)) + "|",
    ]
    for dtype in DTYPES:
        cells = []
        for framework in made.values():
            cells.append(_outcome(lambda f=framework, d=dtype: reads(f, d)))  # type: ignore[misc]
            cells.append(_outcome(lambda f=framework, d=dtype: writes(f, d)))  # type: ignore[misc]
        lines.append(f"| {dtype} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(sys.argv[1:] or ["numpy"]))
