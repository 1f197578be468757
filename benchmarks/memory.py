"""Functions whose time is that of the memory, against the bound: a copy of as many bytes.

The copy is measured beside the others, between the same rounds. A row's target is the copy's time
with a tenth more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from math import prod
from typing import Any, final

import numpy as np

import minitvm
from benchmarks import contraction, peers
from benchmarks.contraction import Array, Call, Program
from benchmarks.fused import compiled_by_torch
from benchmarks.measure import OURS, Row, Settings, Timer, calls, paced

_SHARE = 0.9  # of a copy's speed
_BUDGET = 0.5  # seconds of measuring a row
_QUICK = 1 << 18  # bytes that a function moves, at most, in a quick run

Function = Callable[..., Any]


@final
@dataclass(frozen=True, slots=True)
class Work:
    """One function of one shape.

    `inputs` are the shapes and dtypes. `exact` makes the result of numpy's arrays, which ours must
    be to the last bit, or nearly if it `rounds`. `in_torch` and `in_jax` compute the same of their
    own tensors, and give a compact result.
    """

    family: str
    name: str
    inputs: Sequence[tuple[Sequence[int], str]]
    program: Program
    exact: Function
    in_torch: Callable[[Any], Function]
    in_jax: Callable[[Any], Function]
    rounds: bool = False


def rows(settings: Settings) -> Iterator[Row]:
    """Each function whose name contains ``settings.only``, on each number of threads."""
    for work in (*transposes(), *around_transposes()):
        size = sum(prod(shape) * np.dtype(dtype).itemsize for shape, dtype in work.inputs)
        is_chosen = settings.only in f"{work.family} {work.name}"
        if is_chosen and (settings.least or size <= _QUICK):
            yield from _measured(work, settings)


def _measured(work: Work, settings: Settings) -> Iterator[Row]:
    arrays = [
        contraction.filled(shape, dtype, seed) for seed, (shape, dtype) in enumerate(work.inputs)
    ]
    expected = np.ascontiguousarray(work.exact(*arrays))
    output = contraction.aligned(expected.shape, str(expected.dtype))
    arguments = work.program(minitvm.te)
    function = minitvm.build([arguments[-1]], arguments, name="f")
    function(*arrays, output)
    if work.rounds:
        np.testing.assert_allclose(output, expected, rtol=1e-5)
    else:
        np.testing.assert_array_equal(output, expected)
    contenders: dict[str, Call] = {
        OURS: partial(function, *arrays, output),
        **_peers(work, arrays, output, bool(settings.least)),
    }
    copy, call = _copy((sum(array.nbytes for array in arrays) + output.nbytes) // 2)
    contenders[copy] = call
    for threads in settings.threads:
        timers: dict[str, Timer] = {
            name: contraction.on(threads, name, calls(call))
            for name, call in contenders.items()
            if threads == 1 or not name.startswith(("numpy", "jax"))
        }
        found = paced(timers, settings, _BUDGET)
        bound = found.pop(copy).seconds
        number = "1 thread" if threads == 1 else f"{threads} threads"
        what = "minitvm without a schedule; the target is a copy of as many bytes, and a tenth"
        name = f"{work.family} {work.name}, {number}"
        missing = peers.missing(("torch", "jax"))
        yield Row(name, what, found, missing, bound / _SHARE, threads)


def _peers(
    work: Work, arrays: Sequence[Array], output: Array, is_compiled: bool
) -> dict[str, Call]:
    found: dict[str, Call] = {"numpy": lambda: np.copyto(output, work.exact(*arrays))}
    if (torch := peers.peer("torch")) is not None:
        tensors, eager = contraction.tensors(arrays), work.in_torch(torch)
        found["torch eager"] = lambda: eager(*tensors)
        if is_compiled:
            fast = compiled_by_torch(torch, eager)
            found["torch.compile"] = lambda: fast(*tensors)
    if is_compiled and (jax := peers.peer("jax")) is not None:
        jitted, inputs = jax.jit(work.in_jax(jax.numpy)), [jax.numpy.asarray(x) for x in arrays]
        found["jax"] = lambda: jitted(*inputs).block_until_ready()
    return found


def _copy(size: int) -> tuple[str, Call]:
    """A copy of as many bytes and its name: of torch where it is, which can use threads."""
    source, target = np.zeros(size, "uint8"), np.ones(size, "uint8")
    torch = peers.peer("torch")
    if torch is None:
        return "copy", partial(np.copyto, target, source)
    return "torch copy", partial(torch.from_numpy(target).copy_, torch.from_numpy(source))


# -- Transposes ------------------------------------------------------------------------------------


def transposes() -> Iterator[Work]:
    """Matrices of all shapes and sizes of elements, and permutations of three axes."""
    shapes = ((64, 100), (4096, 1024), (1024, 4096), (33, 40000), (100003, 7), (7, 100003))
    for dtype in ("float32", "uint8", "float64", "float16"):
        for shape in shapes:
            yield _transpose(shape, (1, 0), dtype)
    for order in permutations(range(3)):
        if order != (0, 1, 2):
            yield _transpose((64, 256, 192), order, "float32")
    for dtype in ("float32", "uint8"):
        yield _transpose((32, 3, 50176), (0, 2, 1), dtype)
        yield _transpose((32, 50176, 3), (0, 2, 1), dtype)
    yield _transpose((16, 64, 56, 56), (0, 2, 3, 1), "float32")
    yield _transpose((16, 56, 56, 64), (0, 3, 1, 2), "float32")


def _transpose(shape: Sequence[int], order: Sequence[int], dtype: str) -> Work:
    def program(te: Any) -> list[Any]:
        X = te.placeholder(tuple(shape), dtype, name="X")

        def element(*place: Any) -> Any:
            return X(*(place[order.index(axis)] for axis in range(len(order))))

        return [X, te.compute(tuple(shape[axis] for axis in order), element, name="T")]

    name = f"{' x '.join(map(str, shape))} by {', '.join(map(str, order))}"
    return Work(
        f"transpose {dtype}",
        name,
        [(shape, dtype)],
        program,
        lambda x: x.transpose(order),
        lambda torch: lambda x: x.permute(*order).contiguous(),
        lambda jnp: lambda x: jnp.transpose(x, order),
    )


def around_transposes() -> Iterator[Work]:
    """Expressions that read one tensor across."""
    for m, n in ((64, 100), (4096, 1024), (33, 40000)):
        yield _sum(m, n)
        yield _scaled(m, n)
        yield _joined(m, n)


def _sum(m: int, n: int) -> Work:
    def program(te: Any) -> list[Any]:
        A, B = te.placeholder((n, m), name="A"), te.placeholder((m, n), name="B")
        return [A, B, te.compute((m, n), lambda i, j: A[j, i] + 2 * B[i, j], name="T")]

    function = _same(lambda a, b: a.T + 2 * b)
    inputs = [((n, m), "float32"), ((m, n), "float32")]
    return Work("A.T + 2 B", f"{m} x {n}", inputs, program, function(None), function, function,
                rounds=True)  # fmt: skip


def _scaled(m: int, n: int) -> Work:
    def program(te: Any) -> list[Any]:
        A, b = te.placeholder((n, m), name="A"), te.placeholder((n,), name="b")
        return [
            A,
            b,
            te.compute(
                (m, n), lambda i, j: te.if_then_else(A[j, i] > 0.0, A[j, i], 0.0) * b[j], name="T"
            ),
        ]

    return Work(
        "relu(A.T) * b",
        f"{m} x {n}",
        [((n, m), "float32"), ((n,), "float32")],
        program,
        lambda a, b: np.maximum(a.T, 0) * b,
        lambda torch: lambda a, b: (torch.relu(a.T) * b).contiguous(),
        lambda jnp: lambda a, b: jnp.maximum(a.T, 0) * b,
        rounds=True,
    )


def _joined(m: int, n: int) -> Work:
    """Two transposed matrices, one below the other."""

    def program(te: Any) -> list[Any]:
        A, B = te.placeholder((n, m), name="A"), te.placeholder((n, m), name="B")

        def element(i: Any, j: Any) -> Any:
            return te.if_then_else(i < m, A[j, i], B[j, i - m])

        return [A, B, te.compute((2 * m, n), element, name="T")]

    return Work(
        "A.T above B.T",
        f"{m} x {n}",
        [((n, m), "float32"), ((n, m), "float32")],
        program,
        lambda a, b: np.concatenate([a.T, b.T]),
        lambda torch: lambda a, b: torch.cat([a.T, b.T]),
        lambda jnp: lambda a, b: jnp.concatenate([a.T, b.T]),
    )


def _same(function: Function) -> Callable[[Any], Function]:
    """The function of every library, whose arrays have the same operators."""
    return lambda library: function
