"""The interpreter ends quietly, wherever callables and arrays are at that time."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

_PREAMBLE = """
import atexit, sys, threading
import numpy as np
import minitvm as tvm
from minitvm import te

def build(name="square", kind="serial"):
    n = te.var("n")
    x = te.placeholder((n,), name="X")
    y = te.compute((n,), lambda i: x[i] * x[i], name="Y")
    s = te.create_schedule(y.op)
    if kind == "parallel":
        s[y].parallel(y.op.axis[0])
    return tvm.build(s, [x, y], name=name)

def call(f):
    x, y = np.arange(3, dtype="float32"), np.zeros(6, "float32")
    f(x, y[:3])
    f(x, y[::2])
    assert y.tolist() == [0, 1, 1, 0, 4, 0]
"""

_KEPT_EVERYWHERE = """
module = build()
function = build()["square"]

class Kept:
    shared = build()
    def __init__(self):
        self.function = build()["square"]
        self.me = self
    def __del__(self):
        call(self.function)

in_a_cycle = Kept()
local = threading.local()
local.function = build()
for each in (module, function, Kept.shared, local.function):
    call(each)
sys.kept = build()  # outlives every module
atexit.register(call, build())
atexit.register(lambda: call(module))
"""

_CALLBACKS = """
@tvm.register_func("shutdown.report")
def report(i):
    return i

packed = tvm.runtime.convert_to_packed(lambda f, x: f(x))
assert packed(lambda x: x + 1, 2) == 3
def failing():
    raise ValueError("kept with its traceback")

kept = None
try:
    tvm.runtime.convert_to_packed(failing)()
except ValueError as error:
    kept = error
def call_report(ins, outs):
    return tvm.call_packed("shutdown.report", 7)

y = te.extern((1,), [], call_report, dtype="float32", name="Y")
calls = tvm.build(y, [y], name="calls")
calls(np.zeros(1, "float32"))
atexit.register(calls, np.zeros(1, "float32"))
"""

_ARRAYS = """
import torch
array = tvm.nd.array(np.arange(4, dtype="float32"))
of_numpy = np.from_dlpack(array)
of_torch = torch.from_dlpack(tvm.nd.array(np.arange(4, dtype="float32")))
sys.kept = [np.from_dlpack(array), torch.from_dlpack(array), tvm.nd.from_dlpack(torch.ones(3))]
capsule = array.__dlpack__()
call(build())
"""

_PARALLEL = """
tvm.runtime.set_num_threads(2)
square = build(kind="parallel")
x = np.ones(1_000_000, "float32")
y = np.zeros_like(x)
square(x, y)
assert (y == 1).all()
atexit.register(square, x, y)
"""

# The main thread ends while the daemon is in compiled code, which it gets the GIL for as often as
# it is switched.
_A_DAEMON_AT_WORK = """
n = te.var("n")
x = te.placeholder((n,), name="X")
k = te.reduce_axis((0, 1 << 22), name="k")
y = te.compute((n,), lambda i: te.sum(te.exp(x[i] + k.astype("float32")), axis=k), name="Y")
slow = tvm.build(y, [x, y], name="slow")
started = threading.Event()

def work():
    a = np.zeros(16, "float32")
    while True:
        started.set()
        slow(a, np.zeros_like(a))

threading.Thread(target=work, daemon=True).start()
started.wait()
"""


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(_KEPT_EVERYWHERE + _CALLBACKS, id="callables and callbacks"),
        pytest.param(_ARRAYS, id="arrays that frameworks hold", marks=needs_torch),
        pytest.param(_PARALLEL, id="parallel loops"),
        pytest.param(_A_DAEMON_AT_WORK, id="a daemon thread in a kernel"),
    ],
)
def test_the_interpreter_ends_quietly(program: str) -> None:
    run = subprocess.run(
        [sys.executable, "-X", "dev", "-c", _PREAMBLE + program], capture_output=True, timeout=100
    )
    assert run.stderr.decode() == ""
    assert (run.returncode, run.stdout) == (0, b"")
