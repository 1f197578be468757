"""What is dropped is freed: callables, their code, what calls made on their way."""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.driver.program import CompiledProgram
from minitvm.runtime.object_code import LoadedCode
from tests.leaks import least_growth
from tests.memory.calls import bad_calls, fail, good_calls, look, make, registered, torch_calls

needs_proc = pytest.mark.skipif(
    not os.path.exists("/proc/self/statm"), reason="resident memory is read from /proc"
)
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
_KINDS = [
    pytest.param(good_calls, False, id="good"),
    pytest.param(bad_calls, True, id="bad"),
    pytest.param(torch_calls, False, id="torch", marks=needs_torch),
]
# What calls refer to besides their arguments.
_COMMON = (None, True, False, 0, 1, (), "", TypeError, ValueError, IndexError, tvm.KernelError)
Calls = Callable[[], dict[str, Callable[[], object]]]


@pytest.fixture
def callbacks() -> Iterator[None]:
    with registered(look=look, fail=fail):
        yield


def _resident() -> int:
    """The bytes of this process that are in memory."""
    with open("/proc/self/statm", encoding="ascii") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _references(call: Callable[[], object]) -> list[int]:
    """The counts of references to what a call refers to."""
    used = [cell.cell_contents for cell in call.__closure__ or ()]
    return [sys.getrefcount(each) for each in (*used, *_COMMON)]


def _repeat(call: Callable[[], object], raises: bool, count: int) -> None:
    for _ in range(count):
        make(call, raises)
    gc.collect()


# ---- Calls ---------------------------------------------------------------------------------------


def _leaks(calls: Calls, raises: bool, count: int) -> dict[str, str]:
    """What grows by one or more with every fifth call, by the call's name."""
    found = {}
    for name, call in calls().items():
        for _ in range(6):  # at first caches of ours and of CPython fill; a leak goes on
            more = _more(call, raises, count)
            if all(abs(each) <= count // 5 for each in more):
                break
        else:
            found[name] = f"blocks and references after {count} calls: {more}"
    return found


def _more(call: Callable[[], object], raises: bool, count: int) -> list[int]:
    """By how much calls change the number of blocks, and of references to what they use."""
    gc.collect()
    blocks, references = sys.getallocatedblocks(), _references(call)
    _repeat(call, raises, count)
    counts = zip(references, _references(call), strict=True)
    return [sys.getallocatedblocks() - blocks, *(after - before for before, after in counts)]


@pytest.mark.parametrize(("calls", "raises"), _KINDS)
@pytest.mark.usefixtures("callbacks")
def test_calls_leak_nothing(calls: Calls, raises: bool) -> None:
    assert _leaks(calls, raises, 500) == {}


@pytest.mark.wide
@pytest.mark.parametrize(("calls", "raises"), _KINDS)
@pytest.mark.usefixtures("callbacks")
def test_a_million_calls_leak_nothing(calls: Calls, raises: bool) -> None:
    assert _leaks(calls, raises, 25_000) == {}


@needs_proc
@pytest.mark.wide
@pytest.mark.parametrize(("calls", "raises"), _KINDS)
@pytest.mark.usefixtures("callbacks")
def test_resident_memory_stays_flat_over_calls(calls: Calls, raises: bool) -> None:
    growth = {}
    for name, call in calls().items():
        _repeat(call, raises, 1000)
        growth[name] = (
            least_growth(_resident, partial(make, call, raises), 25_000, 32 * 25_000) / 25_000
        )
    assert {name: each for name, each in growth.items() if each > 32} == {}  # bytes a call


def test_a_leak_would_be_seen() -> None:
    kept: list[object] = []
    leaking: dict[str, Callable[[], object]] = {
        "blocks": lambda: kept.append(object()),
        "references": lambda: kept.append(kept),
        "nothing": lambda: object(),
    }
    assert list(_leaks(lambda: leaking, False, 250)) == ["blocks", "references"]


# ---- Builds --------------------------------------------------------------------------------------


def _build_and_call(number: int) -> None:
    """Builds a function and its variant for strides, calls both and a copy, drops all."""
    n = te.var("n")
    a = te.placeholder((n,), name="A")
    b = te.compute((n,), lambda i: te.exp(a[i]) * float(number), name="B")
    module = tvm.build(te.create_schedule(b.op), [a, b], name="f")
    x, y = np.zeros(4, "float32"), np.zeros(8, "float32")
    module(x, y[:4])
    module(x, y[::2])
    pickle.loads(pickle.dumps(module["f"]))(x, y[4:])
    assert y[0] == y[4] == number


def _live(kind: type) -> int:
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())


def test_a_dropped_function_is_freed() -> None:
    _build_and_call(0)
    programs, codes = _live(CompiledProgram), _live(LoadedCode)
    blocks = sys.getallocatedblocks()
    for number in range(10):
        _build_and_call(number)
    assert (_live(CompiledProgram), _live(LoadedCode)) == (programs, codes)
    assert sys.getallocatedblocks() - blocks < 10 * 100  # a program has some thousand


def _growth(builds: int, most: int) -> float:
    """Bytes of resident memory that a build leaves behind."""
    numbers = itertools.count()
    found = least_growth(_resident, lambda: _build_and_call(next(numbers)), builds, most * builds)
    return found / builds


@needs_proc
def test_resident_memory_stays_flat_over_builds() -> None:
    for number in range(10):
        _build_and_call(number)
    # An engine takes 65,000, and there are three; a pass manager 180,000.
    assert _growth(30, 60_000) < 60_000


@needs_proc
@pytest.mark.wide
def test_resident_memory_stays_flat_over_ten_thousand_builds() -> None:
    for number in range(200):
        _build_and_call(number)
    # Of each of the two compilations llvmlite (0.50) keeps 2.1 KB: the callbacks of a pass builder.
    assert _growth(10_000, 6000) < 6000
