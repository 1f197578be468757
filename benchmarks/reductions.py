"""Reductions that wait for memory: windows, gathers, arguments, sums over any axes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from benchmarks import contraction, peers
from benchmarks.contraction import Array, Call, Problem, Program
from benchmarks.measure import Row, Settings
from benchmarks.speeds import Target

SHAPES = ((4096, 1024), (64, 100), (33, 40000), (100003, 7))

TARGETS = (Target("all", 1.7, lambda row: True, worst=0.95),)

Shape = tuple[int, ...]
Function = Callable[..., Any]


def rows(settings: Settings) -> Iterator[Row]:
    """A row for each reduction, and each number of threads."""
    return contraction.rows(problems(settings), settings)


def problems(settings: Settings) -> Iterator[Problem]:
    """Each kind at its shapes."""
    compiled = bool(settings.least)  # compiling takes torch seconds: not in a quick run
    made = partial(_problem, compiled=compiled)
    for shape in SHAPES:
        yield from _of_matrix(shape, made)
    yield from _mixed(made)
    yield from _windows(made)
    yield from _gathers(made)
    yield from _arguments(made)


# -- Sums --


def _of_matrix(shape: Shape, made: Function) -> Iterator[Problem]:
    m, n = shape
    name = f"{m} x {n}"

    def full(te: Any) -> list[Any]:
        X = te.placeholder(shape, "float32", name="X")
        i, j = te.reduce_axis((0, m), "i"), te.reduce_axis((0, n), "j")
        return [X, te.compute((), lambda: te.sum(X[i, j], axis=[i, j]), name="S")]

    def by_row(te: Any) -> list[Any]:
        X = te.placeholder(shape, "float32", name="X")
        j = te.reduce_axis((0, n), "j")
        return [X, te.compute((m,), lambda i: te.sum(X[i, j], axis=j), name="S")]

    def by_column(te: Any) -> list[Any]:
        X = te.placeholder(shape, "float32", name="X")
        i = te.reduce_axis((0, m), "i")
        return [X, te.compute((n,), lambda j: te.sum(X[i, j], axis=i), name="S")]

    def largest(te: Any) -> list[Any]:
        X = te.placeholder(shape, "float32", name="X")
        i = te.reduce_axis((0, m), "i")
        return [X, te.compute((n,), lambda j: te.max(X[i, j], axis=i), name="S")]

    inputs = ((shape, "float32"),)
    for kind, program, axis in (
        ("sum", full, None), ("row sums", by_row, 1), ("column sums", by_column, 0)
    ):  # fmt: skip
        output = () if axis is None else (shape[1 - axis],)
        yield made(
            kind, name, program, inputs, (output, "float32"), prod(shape),
            lambda x, axis=axis: (x.sum(axis), np.abs(x).sum(axis)),
            {
                "torch": lambda torch, x, axis=axis: x.sum(axis),
                "numpy": lambda x, axis=axis: x.sum(axis),
                "numba": _LOOPS[kind],
            },
        )  # fmt: skip
    yield made(
        "column maxima", name, largest, inputs, ((n,), "float32"), prod(shape),
        lambda x: (x.max(0), np.abs(x).max(0)),
        {"torch": lambda torch, x: x.amax(0), "numpy": lambda x: x.max(0)},
    )  # fmt: skip


def _mixed(made: Function) -> Iterator[Problem]:
    shape = (64, 256, 192)
    a, b, c = shape

    def outer_and_last(te: Any) -> list[Any]:
        X = te.placeholder(shape, "float32", name="X")
        i, k = te.reduce_axis((0, a), "i"), te.reduce_axis((0, c), "k")
        return [X, te.compute((b,), lambda j: te.sum(X[i, j, k], axis=[i, k]), name="S")]

    def middle(te: Any) -> list[Any]:
        X = te.placeholder(shape, "float32", name="X")
        j = te.reduce_axis((0, b), "j")
        return [X, te.compute((a, c), lambda i, k: te.sum(X[i, j, k], axis=j), name="S")]

    def statistics(te: Any) -> list[Any]:
        X = te.placeholder((4096, 1024), "float32", name="X")
        k = te.reduce_axis((0, 1024), "k")
        both = te.comm_reducer(
            lambda x, y: (x[0] + y[0], x[1] + y[1]),
            lambda s, t: (te.const(0, s), te.const(0, t)),
            name="both",
        )
        S, Q = te.compute((4096,), lambda i: both((X[i, k], X[i, k] * X[i, k]), axis=k), name="S")
        return [X, te.compute((4096,), lambda i: Q[i] - S[i] * S[i] * (1 / 1024), name="V")]

    inputs = ((shape, "float32"),)
    for kind, program, axes, output in (
        ("sums over (0, 2)", outer_and_last, (0, 2), (b,)),
        ("sums over 1", middle, (1,), (a, c)),
    ):
        yield made(
            kind, " x ".join(map(str, shape)), program, inputs, (output, "float32"), prod(shape),
            lambda x, axes=axes: (x.sum(axes), np.abs(x).sum(axes)),
            {
                "torch": lambda torch, x, axes=axes: x.sum(axes),
                "numpy": lambda x, axes=axes: x.sum(axes),
            },
        )  # fmt: skip
    yield made(
        "variance in one pass", "4096 x 1024", statistics, (((4096, 1024), "float32"),),
        ((4096,), "float32"), 4096 * 1024,
        lambda x: (x.var(1) * 1024, (x**2).sum(1)),
        {"torch": lambda torch, x: torch.var(x, 1, correction=0) * 1024},
    )  # fmt: skip


# -- Windows --


def _windows(made: Function) -> Iterator[Problem]:
    c, h, w = 16, 256, 256
    for stride in (1, 2):
        out = (h - 3) // stride + 1

        def largest(te: Any, stride: int = stride, out: int = out) -> list[Any]:
            X = te.placeholder((c, h, w), "float32", name="X")
            r, q = te.reduce_axis((0, 3), "r"), te.reduce_axis((0, 3), "q")
            return [X, te.compute(
                (c, out, out),
                lambda k, y, x: te.max(X[k, y * stride + r, x * stride + q], axis=[r, q]),
                name="P",
            )]  # fmt: skip

        def mean(te: Any, stride: int = stride, out: int = out) -> list[Any]:
            X = te.placeholder((c, h, w), "float32", name="X")
            r, q = te.reduce_axis((0, 3), "r"), te.reduce_axis((0, 3), "q")
            S = te.compute(
                (c, out, out),
                lambda k, y, x: te.sum(X[k, y * stride + r, x * stride + q], axis=[r, q]),
                name="S",
            )
            return [X, te.compute(S.shape, lambda k, y, x: S[k, y, x] * (1 / 9), name="P")]

        inputs = (((c, h, w), "float32"),)
        output = ((c, out, out), "float32")
        name = f"3 x 3 of {c} x {h} x {w}, stride {stride}"
        yield made(
            "max-pool", name, largest, inputs, output, 9 * c * out * out,
            lambda x, s=stride: (
                _windows_of(x, s).max((-1, -2)),
                _windows_of(np.abs(x), s).max((-1, -2)),
            ),
            {
                "torch": lambda torch, x, s=stride: torch.nn.functional.max_pool2d(x[None], 3, s),
                "numba": partial(_max_pool, stride=stride),
            },
        )  # fmt: skip
        yield made(
            "average pool", name, mean, inputs, output, 9 * c * out * out,
            lambda x, s=stride: (
                _windows_of(x, s).mean((-1, -2)),
                np.abs(_windows_of(x, s)).mean((-1, -2)),
            ),
            {"torch": lambda torch, x, s=stride: torch.nn.functional.avg_pool2d(x[None], 3, s)},
        )  # fmt: skip

    def moving(te: Any) -> list[Any]:
        X = te.placeholder((1 << 20,), "float32", name="X")
        q = te.reduce_axis((0, 16), "q")
        n = (1 << 20) - 15
        return [X, te.compute((n,), lambda i: te.sum(X[i + q], axis=q), name="P")]

    def lines(x: Array) -> Array:
        return np.asarray(np.lib.stride_tricks.sliding_window_view(x, 16))

    yield made(
        "moving sum of 16", "2^20", moving, (((1 << 20,), "float32"),),
        (((1 << 20) - 15,), "float32"), 16 << 20,
        lambda x: (lines(x).sum(-1), np.abs(lines(x)).sum(-1)),
        {
            "torch": lambda torch, x: torch.nn.functional.avg_pool1d(x[None], 16, 1) * 16,
            "numba": _moving_sum,
        },
    )  # fmt: skip

    def channels_last(te: Any) -> list[Any]:
        X = te.placeholder((h, w, c), "float32", name="X")
        r, q = te.reduce_axis((0, 3), "r"), te.reduce_axis((0, 3), "q")
        return [X, te.compute(
            (h - 2, w - 2, c), lambda y, x, k: te.max(X[y + r, x + q, k], axis=[r, q]), name="P"
        )]  # fmt: skip

    def window_last(x: Array) -> Array:
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (0, 1))
        return np.asarray(windows.max((-1, -2)))

    yield made(
        "max-pool", f"3 x 3 of {h} x {w} x {c}", channels_last, (((h, w, c), "float32"),),
        ((h - 2, w - 2, c), "float32"), 9 * c * h * w,
        lambda x: (window_last(x), np.abs(window_last(x))),
        {"torch": lambda torch, x: torch.nn.functional.max_pool2d(
            x.permute(2, 0, 1)[None], 3, 1).permute(0, 2, 3, 1)[0]},
    )  # fmt: skip

    def blur(te: Any) -> list[Any]:
        X = te.placeholder((720, 1280, 3), "uint8", name="X")
        r, q = te.reduce_axis((0, 5), "r"), te.reduce_axis((0, 5), "q")
        return [X, te.compute(
            (716, 1276, 3),
            lambda y, x, k: te.sum(X[y + r, x + q, k].astype("int32"), axis=[r, q]),
            name="P",
        )]  # fmt: skip

    def five(x: Array) -> Array:
        found = np.lib.stride_tricks.sliding_window_view(x, (5, 5), (0, 1)).sum((-1, -2))
        return np.asarray(found)

    yield made(
        "box blur of uint8", "5 x 5 of 720 x 1280 x 3", blur, (((720, 1280, 3), "uint8"),),
        ((716, 1276, 3), "int32"), 25 * 716 * 1276 * 3, lambda x: (five(x), five(x)),
        {"numba": _blur},
    )  # fmt: skip


def _windows_of(x: Array, stride: int) -> Array:
    return np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))[:, ::stride, ::stride]


# -- Gathers --


def _gathers(made: Function) -> Iterator[Problem]:
    bags, items, d, vocabulary = 2048, 20, 256, 50000

    def bag(te: Any) -> list[Any]:
        W = te.placeholder((vocabulary, d), "float32", name="W")
        bagged = te.placeholder((bags, items), "int64", name="I")
        k = te.reduce_axis((0, items), "k")
        return [W, bagged, te.compute(
            (bags, d), lambda b, j: te.sum(W[bagged[b, k], j], axis=k), name="E"
        )]  # fmt: skip

    def weighted(te: Any) -> list[Any]:
        W = te.placeholder((vocabulary, d), "float32", name="W")
        bagged = te.placeholder((bags, items), "int64", name="I")
        P = te.placeholder((bags, items), "float32", name="P")
        k = te.reduce_axis((0, items), "k")
        return [W, bagged, P, te.compute(
            (bags, d), lambda b, j: te.sum(W[bagged[b, k], j] * P[b, k], axis=k), name="E"
        )]  # fmt: skip

    table, indices = ((vocabulary, d), "float32"), ((bags, items), "int64")
    weights = ((bags, items), "float32")
    embedding = "embedding_bag"
    yield made(
        "embedding bag", f"{bags} x {items} of {vocabulary} x {d}", bag, (table, indices),
        ((bags, d), "float32"), bags * items * d,
        lambda w, i: (w[i.astype(int)].sum(1), np.abs(w[i.astype(int)]).sum(1)),
        {"torch": lambda torch, w, i: getattr(torch.nn.functional, embedding)(i, w, mode="sum"),
         "numpy": lambda w, i: w[i].sum(1)},
    )  # fmt: skip
    yield made(
        "weighted embedding bag", f"{bags} x {items} of {vocabulary} x {d}", weighted,
        (table, indices, weights), ((bags, d), "float32"), bags * items * d,
        lambda w, i, p: ((w[i.astype(int)] * p[..., None]).sum(1),
                         np.abs(w[i.astype(int)] * p[..., None]).sum(1)),
        {"torch": lambda torch, w, i, p: getattr(torch.nn.functional, embedding)(
            i, w, mode="sum", per_sample_weights=p)},
    )  # fmt: skip


# -- The place of the greatest --


def _arguments(made: Function) -> Iterator[Problem]:
    for m, n in ((64, 32000), *SHAPES):

        def first(te: Any, m: int = m, n: int = n) -> list[Any]:
            X = te.placeholder((m, n), "float32", name="X")
            k = te.reduce_axis((0, n), "k")
            greatest = contraction.place_of_greatest(te)
            place, _ = te.compute((m,), lambda i: greatest((k, X[i, k]), axis=k), name="A")
            return [X, te.compute((m,), lambda i: place[i], name="I")]

        def two(te: Any, m: int = m, n: int = n) -> list[Any]:
            X = te.placeholder((m, n), "float32", name="X")
            k, q = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "q")
            M = te.compute((m,), lambda i: te.max(X[i, k], axis=k), name="M")
            return [X, te.compute(
                (m,), lambda i: te.min(te.if_then_else(X[i, q] == M[i], q, n), axis=q), name="I"
            )]  # fmt: skip

        inputs, output = (((m, n), "float32"),), ((m,), "int32")
        others = {"torch": lambda torch, x: x.argmax(1), "numpy": lambda x: x.argmax(1)}

        def exact(x: Array) -> tuple[Array, Array]:
            return x.argmax(1), np.zeros(len(x))

        name = f"{m} x {n}"
        yield made("argmax of pairs", name, first, inputs, output, m * n, exact, others)
        yield made("argmax in two", name, two, inputs, output, m * n, exact, others)

    def nearest(te: Any) -> list[Any]:
        P = te.placeholder((10000, 16), "float32", name="P")
        Q = te.placeholder((64, 16), "float32", name="Q")
        d, k = te.reduce_axis((0, 16), "d"), te.reduce_axis((0, 64), "k")
        D = te.compute(
            (10000, 64),
            lambda p, q: te.sum((P[p, d] - Q[q, d]) * (P[p, d] - Q[q, d]), axis=d),
            name="D",
        )
        least = te.comm_reducer(
            lambda a, b: (
                te.if_then_else(te.any(a[1] < b[1], te.all(a[1] == b[1], a[0] < b[0])), a[0], b[0]),
                te.min(a[1], b[1]),
            ),
            lambda s, t: (te.max_value(s), te.max_value(t)),
            name="argmin",
        )
        place, _ = te.compute((10000,), lambda p: least((k, D[p, k]), axis=k), name="A")
        return [P, Q, te.compute((10000,), lambda p: place[p], name="I")]

    yield made(
        "nearest centre", "10000 x 16 to 64", nearest,
        (((10000, 16), "float32"), ((64, 16), "float32")), ((10000,), "int32"), 10000 * 64 * 16,
        lambda p, q: (((p[:, None] - q[None]) ** 2).sum(-1).argmin(1), np.zeros(len(p))),
        {"torch": lambda torch, p, q: (
            (q * q).sum(1)[None] - 2 * torch.mm(p, q.t())).argmin(1)},
    )  # fmt: skip


# -- Peers --


def _sum(x: Any) -> Any:
    total = np.float32(0)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            total += x[i, j]
    return total


def _row_sums(x: Any) -> Any:
    found = np.empty(x.shape[0], np.float32)
    for i in range(x.shape[0]):
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += x[i, j]
        found[i] = total
    return found


def _column_sums(x: Any) -> Any:
    found = np.zeros(x.shape[1], np.float32)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            found[j] += x[i, j]
    return found


_LOOPS: dict[str, Function] = {"sum": _sum, "row sums": _row_sums, "column sums": _column_sums}


def _max_pool(x: Any, stride: int) -> Any:
    c, h, _ = x.shape
    out = (h - 3) // stride + 1
    found = np.empty((c, out, out), np.float32)
    for k in range(c):
        for i in range(out):
            for j in range(out):
                best = x[k, i * stride, j * stride]
                for r in range(3):
                    for q in range(3):
                        best = max(best, x[k, i * stride + r, j * stride + q])
                found[k, i, j] = best
    return found


def _moving_sum(x: Any) -> Any:
    found = np.empty(x.shape[0] - 15, np.float32)
    for i in range(found.shape[0]):
        total = np.float32(0)
        for q in range(16):
            total += x[i + q]
        found[i] = total
    return found


def _blur(x: Any) -> Any:
    found = np.empty((x.shape[0] - 4, x.shape[1] - 4, x.shape[2]), np.int32)
    for i in range(found.shape[0]):
        for j in range(found.shape[1]):
            for k in range(found.shape[2]):
                total = np.int32(0)
                for r in range(5):
                    for q in range(5):
                        total += x[i + r, j + q, k]
                found[i, j, k] = total
    return found


def _problem(
    kind: str,
    name: str,
    program: Program,
    inputs: Sequence[tuple[Shape, str]],
    output: tuple[Shape, str],
    terms: int,
    exact: Callable[..., tuple[Array, Array]],
    others: dict[str, Function],
    compiled: bool,
) -> Problem:
    def arrays() -> list[Any]:
        made = [_filled(shape, dtype, i) for i, (shape, dtype) in enumerate(inputs)]
        return [*made, contraction.aligned(*output)]

    def calls(given: Sequence[Any]) -> dict[str, Call]:
        found: dict[str, Call] = {}
        torch = peers.peer("torch")
        if torch is not None and "torch" in others:
            tensors = contraction.tensors(given)
            function = partial(others["torch"], torch)
            found["torch eager"] = lambda: function(*tensors)
            if compiled:
                fast = _compiled(torch, function)
                found["torch.compile"] = lambda: fast(*tensors)
        if "numpy" in others:
            found["numpy"] = lambda: others["numpy"](*given)
        if "numba" in others and (numba := peers.peer("numba")) is not None:
            found["numba"] = _by_numba(numba, others["numba"], given)
        return found

    return Problem(f"{kind}", name, terms, program, arrays, exact, 64, calls)


def _filled(shape: Shape, dtype: str, seed: int) -> Array:
    if dtype == "int64":
        return np.random.default_rng(seed).integers(0, 50000, shape)
    return contraction.filled(shape, dtype, seed)


def _by_numba(numba: Any, loop: Function, given: Sequence[Any]) -> Call:
    if isinstance(loop, partial):
        function = numba.njit(fastmath=True)(loop.func)
        return lambda: function(*given, **loop.keywords)
    function = numba.njit(fastmath=True)(loop)
    return lambda: function(*given)


def _compiled(torch: Any, function: Function) -> Function:
    """Compiled for these shapes alone, in this process; without a compiler of C++ its first call
    fails, and the row says so."""
    importlib.import_module("torch._inductor.config").compile_threads = 1  # type: ignore[attr-defined]  # its own
    torch._dynamo.reset()
    made: Function = torch.compile(function, dynamic=False)
    return made
