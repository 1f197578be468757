"""Hostile producers: an error or a right result, the deleter called once, never a crash."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minitvm.runtime import from_dlpack
from minitvm.runtime.dlpack import DLPackExchangeAPI, DLPackVersion
from tests.runtime import hostile_capsules
from tests.runtime.hostile_capsules import ALL, CASES, check, odd_names
from tests.runtime.test_dlpack import CapsuleNew, Producer

ROOT = Path(__file__).parents[2]


def test_there_are_many() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize(("title", "name"), ALL)
def test_refused_or_right(title: str, name: bytes) -> None:
    check(CASES[title], name)


def test_all_under_a_checking_allocator() -> None:
    """What is written outside of a block, freed twice or with the wrong allocator ends it."""
    done = subprocess.run(
        [sys.executable, "-m", hostile_capsules.__name__],
        env={**os.environ, "PYTHONMALLOC": "debug", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("done\n")


@pytest.mark.parametrize("title", odd_names())
def test_capsules_of_other_names(title: str) -> None:
    capsule = odd_names()[title]
    for _ in range(2):
        with pytest.raises(BufferError, match=r"expected a(n unused DLPack)? capsule"):
            from_dlpack(capsule)


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (None, BufferError, "expected a DLPack capsule, got NoneType"),
        (17, BufferError, "expected a DLPack capsule, got int"),
        (b"dltensor", BufferError, "expected a DLPack capsule, got bytes"),
        (object(), BufferError, "expected a DLPack capsule, got object"),
    ],
)
def test_what_is_no_capsule(answer: Any, kind: type[Exception], text: str) -> None:
    class Odd(Producer):
        def __dlpack__(self, **_: Any) -> Any:
            return answer

    with pytest.raises(kind, match=text):
        from_dlpack(Odd())


@pytest.mark.parametrize(
    "answer", [None, 1, (1,), (1, 0, 0), "cpu", (1.5, 0), (None, 0), {1: 0}, ("1", "0")]
)
def test_what_is_no_device(answer: Any) -> None:
    class Odd(Producer):
        def __dlpack_device__(self) -> Any:
            return answer

    made = Odd()
    with pytest.raises(BufferError, match=r"expected __dlpack_device__\(\) to be"):
        from_dlpack(made)
    assert made.deleted == 0


def test_a_capsule_that_is_handed_out_twice() -> None:
    class Same(Producer):
        only: Any

        def __dlpack__(self, **_: Any) -> Any:
            return self.only

    made = Same()
    made.only = made.capsule()
    a = from_dlpack(made)
    with pytest.raises(BufferError, match="expected an unused DLPack capsule"):
        from_dlpack(made)
    del a
    assert made.deleted == 1


# ---- Types with an exchange API of their own -----------------------------------------------------

FromObject = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
_kept: list[Any] = []


def api_of(function: Any, version: tuple[int, int] = (1, 3), prev: int | None = None) -> Any:
    api = DLPackExchangeAPI(version=DLPackVersion(*version), prev_api=prev)
    api.managed_tensor_from_py_object_no_sync = ctypes.cast(function, ctypes.c_void_p).value
    _kept.extend((api, function))
    return api


def capsule_of(api: Any, name: bytes = b"dlpack_exchange_api") -> Any:
    _kept.append(name)
    return CapsuleNew(ctypes.addressof(api), name, None)


class Exporter(Producer):
    """Says whether its method was asked."""

    asked = False

    def __dlpack__(self, **_: Any) -> Any:
        self.asked = True
        return self.capsule()


def exporter_with(attribute: Any) -> Exporter:
    class WithAPI(Exporter):
        __dlpack_c_exchange_api__ = attribute
        __dlpack__ = Exporter.__dlpack__  # of the same class as the API

    return WithAPI()


def giving(made: list[Producer], status: int = 0) -> Any:
    def give(_: int, out: Any) -> int:
        if made:
            out[0] = ctypes.addressof(made[0].managed)
        return status

    return FromObject(give)


def test_the_exchange_api_is_asked_first() -> None:
    given: list[Producer] = []
    made = exporter_with(capsule_of(api_of(giving(given))))
    given.append(made)
    a = from_dlpack(made)
    assert not made.asked
    assert a.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    del a
    assert made.deleted == 1
    made.managed.dl_tensor.ndim = -1
    with pytest.raises(BufferError, match="ndim -1"):
        from_dlpack(made)
    assert made.deleted == 2


def test_an_older_api_is_found() -> None:
    given: list[Producer] = []
    old = api_of(giving(given))
    new = api_of(None, (7, 0), ctypes.addressof(api_of(None, (3, 0), ctypes.addressof(old))))
    made = exporter_with(capsule_of(new))
    given.append(made)
    assert from_dlpack(made).shape == (2, 3)
    assert not made.asked


def test_an_api_that_is_none() -> None:
    """The method is asked then."""
    circle = api_of(None, (2, 0))
    circle.prev_api = ctypes.addressof(circle)
    for attribute in (
        None, 17, "api", capsule_of(api_of(None)), capsule_of(api_of(None, (2, 0))),
        capsule_of(circle), capsule_of(api_of(giving([])), b"other"),
    ):  # fmt: skip
        made = exporter_with(attribute)
        assert from_dlpack(made).shape == (2, 3)
        assert made.asked


@pytest.mark.parametrize("status", [0, -1, 1])
def test_an_api_that_gives_nothing(status: int) -> None:
    made = exporter_with(capsule_of(api_of(giving([], status))))
    with pytest.raises(
        BufferError, match=f"exchange API of WithAPI to give a tensor, got {status}"
    ):
        from_dlpack(made)


def test_a_class_with_a_method_of_its_own_is_asked_for_that() -> None:
    made = exporter_with(capsule_of(api_of(giving([]))))

    class Derived(type(made)):  # type: ignore[misc]  # a class of the moment
        def __dlpack__(self, **_: Any) -> Any:
            return self.capsule()

    assert from_dlpack(Derived()).shape == (2, 3)
