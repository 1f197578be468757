"""What minitvm is compared with, where it is installed."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

PEERS = ("numpy", "torch", "numba", "tvm", "jax")


@cache
def _import(name: str) -> tuple[Any, str]:
    """A peer's module and why there is none."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        return None, f"not installed ({error})"
    if name == "torch":
        module.set_num_threads(1)
    if name == "jax":
        module.config.update("jax_enable_x64", True)  # float64 is float32 without
    return module, ""


def peer(name: str) -> Any:
    """The module of a peer, on one thread, or None."""
    return _import(name)[0]


def allow(threads: int) -> None:
    """Lets numba and JAX, which can't be told later, use that many threads; before anything asks
    for them."""
    os.environ["NUMBA_NUM_THREADS"] = os.environ["NPROC"] = str(threads)


def missing(names: Iterable[str] = PEERS) -> dict[str, str]:
    """Those of `names` that can't be measured here, with the reason."""
    return {name: reason for name in names if (reason := _import(name)[1])}


def versions() -> dict[str, str]:
    """The versions of the peers, or that they are not installed."""
    return {
        name: str(peer(name).__version__) if peer(name) is not None else "not installed"
        for name in PEERS
    }


def threads() -> dict[str, str]:
    """How many threads each peer says it uses."""
    found: dict[str, str] = {}
    if (torch := peer("torch")) is not None:
        found["torch"] = str(torch.get_num_threads())
    if (numba := peer("numba")) is not None:
        found["numba"] = str(numba.get_num_threads())
    return found


def torch_on_threads(threads: int, timer: Callable[[int], float]) -> Callable[[int], float]:
    """`timer` where torch uses that many threads."""
    torch = peer("torch")

    def run(number: int) -> float:
        torch.set_num_threads(threads)
        try:
            return timer(number)
        finally:
            torch.set_num_threads(1)

    return run
