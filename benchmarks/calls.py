"""What a call from Python costs: three elements a tensor, so that there is nothing to compute."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import minitvm
from benchmarks import elementwise, peers
from benchmarks.measure import OURS, Measured, Row, Settings, Timer, interleaved, kernel, statement
from minitvm import te
from minitvm.contrib.dlpack import to_pytorch_func

_WHAT = "3 elements of float32 a tensor; every figure has some 10 ns of Python's loop in it"
_COMPILERS = ("numba", "tvm")
_COMPACT_ONLY = "takes compact arrays only"

_X = np.array([1, 2, 3], np.float32)
_Y = np.array([4, 5, 6], np.float32)
_SUM = _X + _Y

Functions = Mapping[str, Any]


def rows(settings: Settings) -> Iterator[Row]:
    """Kinds of arguments, ways to call, and numbers of arguments."""
    # Many short measurements: those in which another process had the core stay in the minority.
    settings = dataclasses.replace(settings, least=settings.least / 10, repeat=5 * settings.repeat)
    add = elementwise.compiled(elementwise.total(("x", "y", "z")), elementwise.add_loop)
    yield from _kinds_of_arrays(add, settings)
    yield from _ways_to_call(add, settings)
    yield from _returning(add, settings)
    yield from _scalars(settings)
    yield from _numbers_of_tensors(settings)
    yield from _operators(settings)


def _row(
    name: str,
    contenders: Mapping[str, Timer],
    settings: Settings,
    *,
    what: str = "",
    shares: Mapping[str, int] | None = None,
    missing: Mapping[str, str] | None = None,
) -> Row:
    """A row; a call may take one `shares`-th of the time of each peer named there."""
    measured = interleaved(contenders, settings)
    wanted = shares or {}
    said = [what or _WHAT, *(f"the target is 1/{part} of {peer}" for peer, part in wanted.items())]
    return Row(name, "; ".join(said), measured, missing or {}, _target(measured, wanted))


def _target(measured: Mapping[str, Measured], shares: Mapping[str, int]) -> float | None:
    times = [measured[peer].seconds / part for peer, part in shares.items() if peer in measured]
    return min(times, default=None)


def _call(text: str, expected: Any, **names: Any) -> Timer:
    """Times a statement that has been seen to write `expected` into z."""
    timer = statement(text, **names)
    timer(1)
    np.testing.assert_array_equal(np.from_dlpack(names["z"]), expected)
    return timer


def _additions(functions: Functions, x: Any, y: Any, z: Any) -> dict[str, Timer]:
    return {name: _call("f(x, y, z)", _SUM, f=f, x=x, y=y, z=z) for name, f in functions.items()}


def _only(functions: Functions, *names: str) -> Functions:
    return {name: function for name, function in functions.items() if name in names}


# ---- Kinds of arrays -----------------------------------------------------------------------------


def _kinds_of_arrays(add: Functions, settings: Settings) -> Iterator[Row]:
    x, y, z = _X, _Y, np.zeros_like(_X)
    yield _row(
        "numpy arrays",
        {**_additions(add, x, y, z), "np.add(out=)": _numpy_add(x, y, z)},
        settings,
        shares={"tvm": 6, "numba": 2},
        missing=peers.missing(_COMPILERS),
    )
    yield _row(
        "of it, the compiled function",
        {OURS: kernel(add[OURS], x, y, z)},
        settings,
        what="its checks and its loop by time_evaluator, which has no loop of Python",
    )
    yield _row(
        "NDArrays",
        {
            name: timer
            for name, array in _own_arrays().items()
            for timer in _additions(_only(add, name), array(x), array(y), array(z)).values()
        },
        settings,
        what="tvm on its own tensors",
        shares={"tvm": 2},
        missing=peers.missing(["tvm"]),
    )
    if (torch := peers.peer("torch")) is not None:
        yield from _kinds_with_torch(torch, add, settings)
    x, y, z = (_spaced(array) for array in (x, y, z))
    yield _row(
        "numpy arrays with strides",
        {**_additions(_only(add, OURS, "numba"), x, y, z), "np.add(out=)": _numpy_add(x, y, z)},
        settings,
        missing={**peers.missing(["numba"]), "tvm": _COMPACT_ONLY},
    )


def _kinds_with_torch(torch: Any, add: Functions, settings: Settings) -> Iterator[Row]:
    x, y, z = (torch.from_numpy(array.copy()) for array in (_X, _Y, np.zeros_like(_X)))
    yield _row(
        "torch tensors",
        {
            **_additions(_only(add, OURS, "tvm"), x, y, z),
            "torch.add(out=)": _torch_add(torch, x, y, z),
        },
        settings,
        shares={"tvm": 2},
        missing=peers.missing(["tvm"]),
    )
    timers = _additions(_only(add, OURS), x, y, z)
    yield _row(
        "torch tensors, to_pytorch_func",
        {
            **_additions({OURS: to_pytorch_func(add[OURS])}, x, y, z),
            "the function itself": timers[OURS],
        },
        settings,
    )
    yield _row(
        "a numpy array, a torch tensor, an NDArray",
        {
            name: timer
            for name, array in _own_arrays().items()
            for timer in _additions(_only(add, name), _X, y, array(_X)).values()
        },
        settings,
        what="tvm with its own tensor",
        missing=peers.missing(["tvm"]),
    )
    x, y, z = (torch.from_numpy(_spaced(array)) for array in (_X, _Y, _X))
    yield _row(
        "torch tensors with strides",
        {
            **_additions(_only(add, OURS), x, y, z),
            "torch.add(out=)": _torch_add(torch, x, y, z),
        },
        settings,
        missing={"tvm": _COMPACT_ONLY},
    )


def _own_arrays() -> dict[str, Callable[[Any], Any]]:
    """What makes a tensor of its own from a numpy array, for each compiler that has one."""
    makers: dict[str, Callable[[Any], Any]] = {OURS: minitvm.nd.array}
    if (tvm := peers.peer("tvm")) is not None:
        makers["tvm"] = tvm.runtime.tensor
    return makers


def _spaced(array: Any) -> Any:
    """The same elements with gaps between them."""
    return np.repeat(array, 2)[::2]


def _numpy_add(x: Any, y: Any, z: Any) -> Timer:
    return _call("f(x, y, out=z)", _SUM, f=np.add, x=x, y=y, z=z)


def _torch_add(torch: Any, x: Any, y: Any, z: Any) -> Timer:
    return _call("f(x, y, out=z)", _SUM, f=torch.add, x=x, y=y, z=z)


# ---- Ways to call --------------------------------------------------------------------------------


def _ways_to_call(add: Functions, settings: Settings) -> Iterator[Row]:
    x, y, z = _X, _Y, np.zeros_like(_X)
    yield _row(
        "arguments by name",
        {
            name: _call("f(x=x, y=y, z=z)", _SUM, f=f, x=x, y=y, z=z)
            for name, f in _only(add, OURS, "numba").items()
        },
        settings,
        what="f(x=x, y=y, z=z) on numpy arrays",
        missing={**peers.missing(["numba"]), "tvm": "takes arguments by position only"},
    )
    f = add[OURS]
    one = _call("f(x, y, z=z)", _SUM, f=f, x=x, y=y, z=z)
    yield _row("one argument by name", {OURS: one}, settings, what="f(x, y, z=z) on numpy arrays")
    yield _row(
        "a wrong dtype, caught",
        _refusals(add),
        settings,
        what="float64 for y; numba compiled for float32 alone; np.add: int32 for the output",
        missing=peers.missing(_COMPILERS),
    )


def _refusals(add: Functions) -> dict[str, Timer]:
    """Calls with a wrong dtype, each with the except clause that catches its error."""
    x, wrong, z = _X, _Y.astype(np.float64), np.zeros_like(_X)
    timers = {
        name: _refusal("f(x, y, z)", f=f, x=x, y=wrong, z=z)
        for name, f in _only(add, OURS, "tvm").items()
    }
    if (numba := peers.peer("numba")) is not None:
        vector = numba.float32[::1]
        f = numba.njit(numba.void(vector, vector, vector))(elementwise.add_loop)
        timers["numba"] = _refusal("f(x, y, z)", f=f, x=x, y=wrong, z=z)
    integers = np.zeros(3, np.int32)
    timers["np.add(out=)"] = _refusal("f(x, y, out=z)", f=np.add, x=x, y=_Y, z=integers)
    return timers


def _refusal(text: str, **names: Any) -> Timer:
    """Times a statement that has been seen to raise TypeError, together with catching that."""
    try:
        statement(text, **names)(1)
    except TypeError:
        return statement(f"try:\n    {text}\nexcept TypeError:\n    pass", **names)
    raise AssertionError(f"{text}: expected a TypeError of {names['f']}, got none")


# ---- Calls that return ---------------------------------------------------------------------------


def _returning(add: Functions, settings: Settings) -> Iterator[Row]:
    x, y, z = _X, _Y, np.zeros_like(_X)
    plain = _call("f(x, y, z)", _SUM, f=add[OURS], x=x, y=y, z=z)
    numba = peers.peer("numba")
    theirs = {} if numba is None else {"numba": numba.njit(lambda x, y: x + y)}
    for name, f in (("symbolic", add[OURS]), ("static", _static_sum())):
        calls = {OURS: f.returning(), **theirs, "np.add": np.add}
        yield _row(
            f"a call that returns a numpy array, {name} shape",
            {
                **{name: _returned(f, x, y) for name, f in calls.items()},
                "the call with its output": plain,
                "np.empty": statement("f(3, d)", f=np.empty, d=np.float32),
            },
            settings,
            missing=peers.missing(["numba"]),
        )
    if (torch := peers.peer("torch")) is None:
        return
    x, y, z = (torch.from_numpy(array.copy()) for array in (_X, _Y, np.zeros_like(_X)))
    for name, f in (("symbolic", add[OURS]), ("static", _static_sum())):
        yield _row(
            f"a call that returns a torch tensor, {name} shape",
            {
                OURS: _returned(f.returning(), x, y),
                "torch.add": _returned(torch.add, x, y),
                "the call with its output": _call("f(x, y, z)", _SUM, f=f, x=x, y=y, z=z),
                "torch.empty": statement("f(3)", f=torch.empty),
                "torch.empty(shape)": statement("f(s)", f=torch.empty, s=(3,)),
            },
            settings,
        )


def _static_sum() -> Any:
    """The addition of arrays of three elements, and of no others."""
    x, y = (te.placeholder((3,), name=name) for name in "xy")
    z = te.compute((3,), lambda i: x[i] + y[i], name="z")
    return minitvm.build(te.create_schedule(z.op), [x, y, z], name="add")


def _returned(f: Callable[..., Any], x: Any, y: Any) -> Timer:
    """Times a call that has been seen to return the sum."""
    np.testing.assert_array_equal(np.from_dlpack(f(x, y)), _SUM)
    return statement("f(x, y)", f=f, x=x, y=y)


# ---- Scalars and numbers of tensors --------------------------------------------------------------


def _scalars(settings: Settings) -> Iterator[Row]:
    x, z = _X, np.zeros_like(_X)
    for dtype, s in (("int32", 3), ("float32", 2.5)):
        scale = elementwise.compiled(elementwise.scaled(dtype), elementwise.scale_loop)
        values = {"x": x, "s": s, "z": z}
        contenders = {name: _call("f(x, s, z)", x * s, f=f, **values) for name, f in scale.items()}
        contenders["np.multiply(out=)"] = _call("f(x, s, out=z)", x * s, f=np.multiply, **values)
        yield _row(
            f"two numpy arrays and a Python {type(s).__name__}",
            contenders,
            settings,
            missing=peers.missing(_COMPILERS),
        )


def _numbers_of_tensors(settings: Settings) -> Iterator[Row]:
    z = np.zeros_like(_X)
    index = elementwise.compiled(elementwise.index, elementwise.index_loop)
    yield _row(
        "1 numpy array",
        {name: _call("f(z)", np.arange(3), f=f, z=z) for name, f in index.items()},
        settings,
        missing=peers.missing(_COMPILERS),
    )
    inputs = "abcdefg"
    total = elementwise.compiled(elementwise.total((*inputs, "z")), elementwise.total_of_seven_loop)
    arrays = {name: _X.copy() for name in inputs}
    text = f"function({', '.join(inputs)}, z)"
    yield _row(
        "8 numpy arrays",
        {name: _call(text, 7 * _X, function=f, z=z, **arrays) for name, f in total.items()},
        settings,
        missing=peers.missing(_COMPILERS),
    )


def _operators(settings: Settings) -> Iterator[Row]:
    """Operations of JAX and ufuncs of numpy."""
    n = minitvm.te.var("n")
    x, y = (minitvm.te.placeholder((n,), name=name) for name in "xy")
    z = minitvm.te.compute((n,), lambda i: x[i] + y[i], name="z")
    add = minitvm.build(minitvm.te.create_schedule(z.op), [x, y, z], name="add")
    if (jax := peers.peer("jax")) is not None:
        arrays = {"x": jax.numpy.asarray(_X), "y": jax.numpy.asarray(_Y)}
        ours, theirs = add.jax_op(), jax.jit(lambda x, y: x + y)
        np.testing.assert_array_equal(ours(**arrays), _SUM)
        contenders = {
            OURS: statement("f(x, y).block_until_ready()", f=ours, **arrays),
            "jax": statement("f(x, y).block_until_ready()", f=theirs, **arrays),
        }
        yield _row("operation of JAX", contenders, settings)
    ufunc = add.gufunc()
    out = np.empty_like(_X)
    contenders = {
        OURS: _call("f(x, y, z)", _SUM, f=ufunc, x=_X, y=_Y, z=out),
        "numpy": _call("f(x, y, z)", _SUM, f=np.add, x=_X, y=_Y, z=out),
    }
    if (numba := peers.peer("numba")) is not None:
        vectorized = numba.vectorize(["float32(float32, float32)"])(lambda x, y: x + y)
        contenders["numba"] = _call("f(x, y, z)", _SUM, f=vectorized, x=_X, y=_Y, z=out)
    yield _row("ufunc", contenders, settings, missing=peers.missing(["numba"]))
