"""Calls of every kind, good and bad, again and again: what checks of memory run.

python -m tests.memory.calls 100        (docs/memory.md: under valgrind too)
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import minitvm as tvm
from minitvm import te, tir

SIZE = 6
n = te.var("n")
X = te.placeholder((n,), name="X")


def scaled(name: str = "scaled") -> Any:
    """A function of an array, a number and an output."""
    factor = te.var("factor", "float32")
    y = te.compute((n,), lambda i: X[i] * factor, name="Y")
    return tvm.build(te.create_schedule(y.op), [X, factor, y], name=name)


def gathered() -> Any:
    """A function that reads where the elements of an array say."""
    index = te.placeholder((n,), "int32", name="I")
    y = te.compute((n,), lambda i: X[index[i]], name="Y")
    return tvm.build(te.create_schedule(y.op), [X, index, y], name="gathered")


def through_workspaces() -> Any:
    """A function with an intermediate stage on the heap and a parallel loop."""
    t = te.compute((n,), lambda i: X[i] + 1.0, name="T")
    y = te.compute((n,), lambda i: t[i] * t[n - 1 - i], name="Y")
    s = te.create_schedule(y.op)
    s[y].parallel(y.op.axis[0])
    return tvm.build(s, [X, y], name="through_workspaces")


def checked() -> Any:
    """A function that fails while it runs, unless the first element is positive."""

    def body(ins: Any, outs: Any) -> Any:
        ib = tir.ir_builder.create()
        x, y = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        ib.emit(lambda rest: tir.AssertStmt(x[0] > 0.0, "x[0] is not positive", rest))
        y[0] = x[0]
        return ib.get()

    y = te.extern((n,), [X], body, dtype="float32", name="Y")
    return tvm.build(te.create_schedule(y.op), [X, y], name="checked")


def calling(name: str) -> Any:
    """A function that passes its array to a registered function."""
    y = te.extern(
        (1,), [X], lambda ins, outs: tvm.call_packed(name, ins[0], 7), dtype="float32", name="Y"
    )
    return tvm.build(te.create_schedule(y.op), [X, y], name="calling")


def fail(*args: Any) -> None:
    """A callback that raises."""
    raise LookupError("on purpose")


@contextmanager
def registered(**functions: Callable[..., Any]) -> Iterator[None]:
    """Global functions, for a while."""
    for name, function in functions.items():
        tvm.register_func(f"memory.{name}", function)
    try:
        yield
    finally:
        for name in functions:
            tvm.remove_global_func(f"memory.{name}")


def good_calls() -> dict[str, Callable[[], object]]:
    """Calls that return, by name."""
    f, workspaces, callback = scaled(), through_workspaces(), calling("memory.look")
    x, y = np.arange(SIZE, dtype="float32"), np.zeros(SIZE, "float32")
    one, wide = np.zeros(1, "float32"), np.zeros(2 * SIZE, "float32")
    ours, theirs = tvm.nd.array(x), tvm.nd.empty((SIZE,))
    packed = tvm.runtime.convert_to_packed(lambda *args: args[0])
    return {
        "numpy": lambda: f(x, 2.0, y),
        "by name": lambda: f(x, Y=y, factor=2),
        "by the module's name": lambda: f["scaled"](x, 2.0, y),
        "NDArray": lambda: f(ours, 2.0, theirs),
        "fresh arrays": lambda: f(x + 1, np.float32(2), y[:]),
        "numpy's scalar": lambda: f(x, np.float32(2), y),
        "strides": lambda: f(x[::-1], 2.0, wide[::2]),
        "workspaces": lambda: workspaces(x, y),
        "a callback": lambda: callback(x, one),
        "a packed function": lambda: packed("text", 1, 2.0, None, x, "float32"),
        "a packed function given one": lambda: packed(abs),
        "arrays through a packed function": lambda: packed(ours),
        "to numpy": lambda: ours.numpy(),
        "by DLPack": lambda: np.from_dlpack(ours),
        "from DLPack": lambda: tvm.nd.from_dlpack(x),
        "a capsule that nobody takes": lambda: ours.__dlpack__(),
        "measured": lambda: f.time_evaluator(number=2)(x, 2.0, y),
    }


def bad_calls() -> dict[str, Callable[[], object]]:
    """Calls that raise, by name."""
    f, gather, check = scaled(), gathered(), checked()
    callback = calling("memory.fail")
    packed = tvm.runtime.convert_to_packed(fail)
    x, y, one = np.ones(SIZE, "float32"), np.zeros(SIZE, "float32"), np.zeros(1, "float32")
    index, outside = np.zeros(SIZE, "int32"), np.full(SIZE, SIZE, "int32")
    index[-1] = -1
    read_only = np.zeros(SIZE, "float32")
    read_only.flags.writeable = False
    return {
        "too few": lambda: f(x, 2.0),
        "too many": lambda: f(x, 2.0, y, y),
        "an unknown name": lambda: f(x, 2.0, z=y),
        "a name twice": lambda: f(x, 2.0, y, Y=y),
        "a missing name": lambda: f(x, Y=y),
        "dtype": lambda: f(x.astype("float64"), 2.0, y),
        "shape": lambda: f(x, 2.0, y[1:]),
        "rank": lambda: f(x.reshape(2, 3), 2.0, y),
        "overlap": lambda: f(y, 2.0, y[::-1]),
        "read-only": lambda: f(x, 2.0, read_only),
        "no array": lambda: f("text", 2.0, y),
        "None": lambda: f(None, 2.0, y),
        "a list": lambda: f([1.0], 2.0, y),
        "no number": lambda: f(x, "2", y),
        "an array for a number": lambda: f(x, x, y),
        "too large a number": lambda: f(x, 1 << 70, y),
        "a number for an array": lambda: f(1, 2.0, y),
        "an index": lambda: gather(x, outside, y),
        "a negative index": lambda: gather(x, index, y),
        "an assertion": lambda: check(-x, y),
        "a callback": lambda: callback(x, one),
        "a packed function": lambda: packed(x, 1, "text"),
        "no such function": lambda: f["none"],
        "a pickle of an address": lambda: pickle.dumps(tvm.runtime.PackedFunc(16)),
    }


def torch_calls() -> dict[str, Callable[[], object]]:
    """Calls with tensors of PyTorch, by name."""
    import torch

    f = scaled()
    x, y = torch.ones(SIZE), torch.zeros(SIZE)
    ours = tvm.nd.array(np.ones(SIZE, "float32"))
    return {
        "torch": lambda: f(x, 2.0, y),
        "torch and numpy": lambda: f(x, 2.0, y.numpy()),
        "torch with strides": lambda: f(x[::2], 2.0, y[::2]),
        "torch takes ours": lambda: torch.from_dlpack(ours),
        "we take torch's": lambda: tvm.nd.from_dlpack(x),
    }


def look(array: Any, number: int) -> int:
    """A callback that uses its arguments."""
    return int(array.numpy().size) + number


def make(call: Callable[[], object], raises: bool) -> None:
    """Makes a call that raises or doesn't."""
    try:
        call()
    except Exception:
        if not raises:
            raise
    else:
        assert not raises, "expected an exception, got none"


def main(count: int) -> None:
    """Makes every call `count` times."""
    with registered(look=look, fail=fail):
        for calls, raises in ((good_calls(), False), (bad_calls(), True)):
            for call in calls.values():
                for _ in range(count):
                    make(call, raises)


if __name__ == "__main__":
    main(int(sys.argv[1]))
