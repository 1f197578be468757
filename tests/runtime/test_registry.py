"""Global functions, from Python and from compiled code."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from minitvm.runtime import (
    NDArray,
    PackedFunc,
    get_global_func,
    list_global_func_names,
    register_func,
    remove_global_func,
)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    before = set(list_global_func_names())
    yield
    for name in set(list_global_func_names()) - before:
        remove_global_func(name)


def test_register_in_every_way() -> None:
    @register_func("test.named")
    def named(x: int) -> int:
        return x + 1

    @register_func
    def test_bare(x: int) -> int:
        return x + 2

    register_func("test.called", lambda x: x + 3)
    assert named(1) == 2
    assert test_bare(1) == 3
    assert get_global_func("test.named")(1) == 2
    assert get_global_func("test_bare")(1) == 3
    assert get_global_func("test.called")(1) == 4
    assert {"test.named", "test_bare", "test.called"} <= set(list_global_func_names())
    packed = PackedFunc(lambda: 5)
    register_func("test.packed", packed)
    assert get_global_func("test.packed") is packed


def test_names_are_taken_once() -> None:
    register_func("test.f", lambda: 1)
    with pytest.raises(ValueError, match=r"global function 'test\.f' is registered already; pass"):
        register_func("test.f", lambda: 2)
    assert get_global_func("test.f")() == 1
    register_func("test.f", lambda: 3, override=True)
    assert get_global_func("test.f")() == 3


def test_missing_names() -> None:
    register_func("test.function", lambda: 1)
    assert get_global_func("test.nothing", allow_missing=True) is None
    with pytest.raises(ValueError, match=r"got 'test\.functoin'; did you mean 'test\.function'\?"):
        get_global_func("test.functoin")
    with pytest.raises(ValueError, match="expected the name of a registered global function, got"):
        remove_global_func("zzz")
    with pytest.raises(TypeError, match="expected a name or a function, got int"):
        register_func(3)  # type: ignore[call-overload]  # that is the point


def test_compiled_code_calls_global_functions(compiled: Any) -> None:
    def scale(a: NDArray, factor: int) -> str:
        a.copyfrom(a.numpy() * factor)
        return "done"

    register_func("test.scale", scale)
    x = np.arange(3)
    assert compiled.packed("forward_global")("test.scale", x, 10) == "done"
    assert x.tolist() == [0, 10, 20]
    register_func("test.compiled", compiled.packed("return_count"))
    assert compiled.packed("forward_global")("test.compiled", 1, 2) == 2


def test_errors_of_global_functions_cross(compiled: Any) -> None:
    register_func("test.divide", lambda x: 1 // x)
    forward = compiled.packed("forward_global")
    with pytest.raises(ZeroDivisionError):
        forward("test.divide", 0)
    with pytest.raises(ValueError, match=r"got 'test\.divid'; did you mean 'test\.divide'\?"):
        forward("test.divid", 1)


def test_one_of_many_threads_gets_the_name() -> None:
    refused: list[str] = []

    def work() -> None:
        with pytest.raises(ValueError, match="registered already"):
            register_func("test.race", lambda: 1)
            register_func("test.race", lambda: 1)
        refused.append("once")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 8
    assert get_global_func("test.race")() == 1
