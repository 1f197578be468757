"""The GIL: which programs need it, and which kernels run without it.

A call from Python holds the GIL before the body of a kernel (the checks of its arguments) and after
it (the report of a failure). A caller without the GIL says so (IS_WITHOUT_GIL); only an error then
takes it. ::

    status = body(...)      ->      state = PyEval_SaveThread()
                                    status = body(...)
                                    PyEval_RestoreThread(state)

A callback inside takes it by ``PyGILState_Ensure``; an exception that it sets is the thread's own,
and so still pending when the thread has the GIL again.
"""

from __future__ import annotations

from minitvm.arith.work import KnownWork, estimated_work
from minitvm.codegen.llvm_text import NULL, FunctionText, Value
from minitvm.runtime.errors import CompileError
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr
from minitvm.tir.functor import find
from minitvm.tir.stmt import PrimFunc, Stmt

# Operations from which on a kernel releases the GIL. Releasing costs up to 100 ns; but if another
# thread is busy in Python, the kernel waits for up to 5 ms, the switch interval, to get the GIL
# back. This number of operations takes some 60 us of vectorised code, and less than 4 ms of scalar
# code: a kernel that keeps the GIL makes others wait no longer than any thread of Python may.
LEAST_WORK = 4e6


def needs_the_gil(node: Stmt) -> bool:
    """Whether `node` calls Python: by a packed call, or a function of Python's C API."""
    calls = find(e.Call, node)
    return any(each.op == "call_packed" or _function_of_python(each) for each in calls)


def _function_of_python(call: e.Call) -> str:
    """The function of Python's C API that a call calls, which needs the GIL; "" for other calls."""
    name = call.args[0] if call.op == "call_extern" and call.args else None
    if isinstance(name, e.StringImm) and name.value.startswith(("Py", "_Py")):
        return name.value
    return ""


def pays_release(func: PrimFunc, asked: bool | None, known: KnownWork | None = None) -> PrimExpr:
    """Whether a kernel releases the GIL: a condition on its arguments. `known`: see
    :func:`estimated_work`.

    Parameters
    ----------
    asked
        The value of ``build(..., release_gil=)``. With None the work decides, and a kernel with
        callbacks keeps the GIL: each callback would have to wait for it.

    Raises
    ------
    CompileError
        When `asked` is true and the kernel calls functions of Python's C API.
    """
    if not asked:
        keeps = asked is False or needs_the_gil(func.body)
        return e.const(False) if keeps else estimated_work(func.body, known) >= LEAST_WORK
    calls = find(e.Call, func.body)
    name = next(filter(None, map(_function_of_python, calls)), "")
    if name:
        raise CompileError(
            f"{func.name}: release_gil=True: expected no call of Python's C API, which needs the "
            f"GIL, got a call of {name!r}: leave release_gil out"
        )
    return e.const(True)


def take_gil_anew(text: FunctionText) -> Value:
    """Takes the GIL in a thread that may or may not have it; the result is for
    ``PyGILState_Release``."""
    return text.call_external("PyGILState_Ensure", "i32", [])


def release_gil(text: FunctionText, pays: Value) -> Value:
    """Releases the GIL if `pays`; returns the thread state for :func:`take_gil`."""
    before = text.current
    release, go_on = text.blocks("release", "run")
    with text.when(pays, release, go_on):
        state = text.call_external("PyEval_SaveThread", "ptr", [])
    return text.phi("ptr", (state, release), (NULL, before))


def take_gil(text: FunctionText, state: Value) -> None:
    """Takes the GIL if it was released."""
    take, go_on = text.blocks("take", "returned")
    with text.when(text.icmp("ne", state, NULL), take, go_on):
        text.call_external("PyEval_RestoreThread", "void", [state])
