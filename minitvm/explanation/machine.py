"""The speed of this machine, measured by small kernels on demand, once in a process.

The kernels are built like any others: chains of multiply-adds in registers, a product of matrices
that lie in the cache, and sums of arrays in memory.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from minitvm.driver.build import build
from minitvm.runtime.dtype import DType
from minitvm.runtime.host import cache_sizes
from minitvm.runtime.module import Module
from minitvm.runtime.ndarray import array
from minitvm.runtime.packed_func import Function
from minitvm.runtime.threads import num_threads
from minitvm.target import Target
from minitvm.te import compute, create_schedule, extern, placeholder, reduce_axis, sum, var
from minitvm.tir.ir_builder import create

_LEAST_ROUNDS, _MOST_ROUNDS = 5, 200  # measurements; the least time counts
_ENOUGH = 0.1  # seconds of measuring
_LEAST_MS = 0.3  # of one measurement: short, since other processes may use the same cores
_STEPS = 2_000  # of a chain
_CHAINS = 12  # in flight at once: enough to hide any latency, and few enough for 16 registers
_ROWS, _COLUMNS, _LINE = 512, 64, 256  # of a product for each thread; a row's length in bytes
_LEAST_READ = 1 << 25  # bytes in a measurement
_LEAST_SET = 1 << 14  # bytes: no cache is faster for less


def peak(kind: tuple[str, ...], target: Target, threads: int) -> float:
    """The operations a second that code for a target reaches on this machine; a multiply-add counts
    as two.

    Parameters
    ----------
    kind
        The kind of operations, as in :class:`minitvm.te.schedules.provenance.Work`: one dtype, or
        those of two factors and of sums.
    """
    most = _peak_of_chains(kind[-1], str(target), threads)
    # Narrow factors: one instruction may multiply and add several of them.
    return most if len(kind) == 1 else max(most, _peak_of_products(kind, str(target), threads))


@lru_cache(maxsize=64)
def _peak_of_chains(dtype: str, target: str, threads: int) -> float:
    """Multiply-adds on registers alone."""
    lanes = Target(target).lanes(DType.of(dtype))

    def multiply_add(ins: Any, outs: Any) -> Any:
        ib = create()
        factor, out = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        with ib.for_range(0, threads, kind="parallel") as thread:
            value = ib.allocate(dtype, (_CHAINS, lanes), scope="local")
            for steps in (1, _STEPS):
                with (
                    ib.for_range(0, steps),
                    ib.for_range(0, _CHAINS, kind="unroll") as chain,
                    ib.for_range(0, lanes, kind="vectorize") as lane,
                ):
                    before = factor[0] if steps == 1 else value[chain, lane]
                    value[chain, lane] = before * factor[0] + factor[1]
            with (
                ib.for_range(0, _CHAINS, kind="unroll") as chain,
                ib.for_range(0, lanes, kind="vectorize") as lane,
            ):
                out[thread, chain, lane] = value[chain, lane]
        return ib.get()

    factor = placeholder((2,), dtype, name="factor")
    out = extern((threads, _CHAINS, lanes), [factor], multiply_add, dtype=dtype, name="out")
    f = build(create_schedule(out.op), [factor, out], target, name="chains")
    result = array(np.zeros((threads, _CHAINS, lanes)), dtype=dtype)
    return 2 * result.size * _STEPS / _time(f, threads, array([0, 0], dtype=dtype), result)


@lru_cache(maxsize=64)
def _peak_of_products(kind: tuple[str, ...], target: str, threads: int) -> float:
    """A product of matrices that lie in the cache, as it is scheduled for the target."""
    steps = _LINE // DType.of(kind[0]).itemsize
    shapes = (_ROWS * threads, steps), (steps, _COLUMNS), (_ROWS * threads, _COLUMNS)
    a, b = placeholder(shapes[0], kind[0], "a"), placeholder(shapes[1], kind[1], "b")
    k = reduce_axis((0, steps), "k")

    def product(i: Any, j: Any) -> Any:
        return sum(a[i, k].astype(kind[2]) * b[k, j].astype(kind[2]), axis=k)

    c = compute(shapes[2], product, "c")
    f = build([c], [a, b, c], target, name="product")
    arrays = [array(np.zeros(shape), dtype=t) for shape, t in zip(shapes, kind, strict=True)]
    return 2 * _ROWS * threads * steps * _COLUMNS / _time(f, threads, *arrays)


def bandwidth(size: int, threads: int) -> float:
    """The bytes a second at which `threads` read `size` bytes again and again: the bandwidth of the
    cache that holds them, or of memory.

    >>> bandwidth(1 << 14, 1) > 0
    True
    """
    most = 4 * cache_sizes()[3]
    return _bandwidth(min(max(_LEAST_SET, 1 << (size - 1).bit_length()), most), threads)


@lru_cache(maxsize=64)
def _bandwidth(size: int, threads: int) -> float:
    lines = max(1, size // (threads * _line_of_vectors() * 4))
    passes = max(1, _LEAST_READ // size)
    x = array(np.zeros((threads, lines, _line_of_vectors()), np.float32))
    y = array(np.zeros((passes, threads, _line_of_vectors()), np.float32))
    return passes * x.nbytes / _time(_reader(), threads, x, y)


@lru_cache(maxsize=1)
def _reader() -> Module:
    """A function that sums up an array again and again; each thread reads its own part."""
    parts, lines, passes, width = var("parts"), var("lines"), var("passes"), _line_of_vectors()
    x = placeholder((parts, lines, width), name="x")
    k = reduce_axis((0, lines), "k")
    y = compute((passes, parts, width), lambda p, t, j: sum(x[t, k, j], axis=k), "y")
    s: Any = create_schedule(y.op)
    sums = s.cache_write(y, "local")
    p, t, j = s[y].op.axis
    s[y].reorder(t, p, j)
    s[y].vectorize(j)
    s[y].parallel(t)
    s[sums].compute_at(s[y], p)
    s[sums].reorder(s[sums].op.reduce_axis[0], s[sums].op.axis[-1])
    s[sums].vectorize(s[sums].op.axis[-1])
    return build(s, [x, y], name="reader")


def _line_of_vectors() -> int:
    """The lanes of eight vectors, whose sums are in flight at once."""
    return 8 * Target("llvm").lanes(DType.of("float32"))


def least_time(f: Module | Function, *args: Any) -> float:
    """The shortest time of a call, in seconds."""
    evaluate = f.entry_func if isinstance(f, Module) else f
    assert isinstance(evaluate, Function)
    first = evaluate.time_evaluator(number=1)(*args).min
    rounds = int(_ENOUGH / max(first, _LEAST_MS / 1e3))
    repeat = min(max(rounds, _LEAST_ROUNDS), _MOST_ROUNDS)
    return evaluate.time_evaluator(1, repeat, _LEAST_MS)(*args).min


def _time(f: Module, threads: int, *args: Any) -> float:
    with num_threads(threads):
        return least_time(f, *args)
