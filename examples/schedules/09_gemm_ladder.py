"""Matrix multiplication from plain loops to the machine's speed, one decision at a time.

Each rung is the rung below with one change, and prints the effect: the time, the rate, its share of
the peak of the arithmetic units (measured, see `peak`), and the speed-up over the rung below. Tile
sizes come from the target's registers, not from the size of the matrices.

python examples/schedules/09_gemm_ladder.py 1024     # N, for N x N matrices
"""

import importlib.util
import sys
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import minitvm as tvm
from minitvm import te, tir

TARGET = tvm.Target("llvm")
LANES = TARGET.vector_bits // 32
# A tile of C is two vectors wide. Its sums are to fit the registers, four of which are left for
# what is added to them; and more than eight rows of A, which are often a power of two apart, would
# drive each other out of an eight-way L1 cache.
COLUMNS = 2 * LANES
ROWS = min(8, (TARGET.vector_registers - 4) // 2)
STEPS = 4  # of the reduction, at a time


class Product:
    """``C = A @ B``, twice: of B as it is, and of B brought into panels as wide as a tile, each
    contiguous, so that the innermost loops read memory in its order. Zeros fill the last panel."""

    def __init__(self, n: int) -> None:
        self.A, self.B = A, B = [te.placeholder((n, n), name=name) for name in "AB"]
        self.k = k = te.reduce_axis((0, n), name="k")
        self.C = te.compute((n, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
        self.panels = te.compute(
            ((n + COLUMNS - 1) // COLUMNS, n, COLUMNS),
            lambda p, k, j: te.if_then_else(p * COLUMNS + j < n, B[k, p * COLUMNS + j], 0.0),
            name="panels",
        )
        self.packed_C = te.compute(
            (n, n),
            lambda i, j: te.sum(A[i, k] * self.panels[j // COLUMNS, k, j % COLUMNS], axis=k),
            name="C",
        )


@dataclass
class Rung:
    """A schedule, and the loops that the next rung changes: of tiles, in a tile, of the sum."""

    s: Any
    C: Any
    i_outer: Any = None
    i: Any = None
    j: Any = None
    k_outer: Any = None
    k: Any = None


def baseline(p: Product) -> Rung:
    """The loops as the expression has them: i, j, k."""
    return Rung(te.create_schedule(p.C.op), p.C)


def blocking(p: Product, C: Any = None) -> Rung:
    """Tile by tile, a few steps of the sum at a time: what is read is still in cache when it is
    read again."""
    C = p.C if C is None else C
    s: Any = te.create_schedule(C.op)
    i_outer, j_outer, i, j = s[C].tile(*C.op.axis, ROWS, COLUMNS)
    k_outer, k_inner = s[C].split(p.k, factor=STEPS)
    s[C].reorder(i_outer, j_outer, k_outer, i, j, k_inner)
    return Rung(s, C, i_outer, i, j, k_outer, k_inner)


def vectorization(p: Product, C: Any = None) -> Rung:
    """The columns of a tile innermost, as lanes of vectors."""
    r = blocking(p, C)
    r.s[r.C].reorder(r.k, r.i, r.j)
    r.s[r.C].vectorize(r.j)
    return r


def loop_permutation(p: Product, C: Any = None) -> Rung:
    """The steps of the sum inside of the tile's rows: A is read along its rows."""
    r = vectorization(p, C)
    r.s[r.C].reorder(r.i, r.k, r.j)
    return r


def array_packing(p: Product) -> Rung:
    """B is first brought into panels."""
    r = loop_permutation(p, p.packed_C)
    r.s[p.panels].vectorize(p.panels.op.axis[2])
    return r


def write_cache(p: Product) -> Rung:
    """The sums of a tile are kept in a buffer of their own, and C is written once. A buffer in
    "local" memory whose indices are constants, as all its loops are vectors or written out, is
    kept in registers."""
    C = p.packed_C
    s: Any = te.create_schedule(C.op)
    s[p.panels].vectorize(p.panels.op.axis[2])
    sums = s.cache_write(C, "local")
    i_outer, j_outer, i, j = s[C].tile(*s[C].op.axis, ROWS, COLUMNS)
    s[C].unroll(i)
    s[C].vectorize(j)
    s[sums].compute_at(s[C], j_outer)
    sum_i, sum_j = s[sums].op.axis
    k_outer, k_inner = s[sums].split(p.k, factor=STEPS)
    s[sums].reorder(k_outer, k_inner, sum_i, sum_j)
    s[sums].unroll(k_inner)
    s[sums].unroll(sum_i)
    s[sums].vectorize(sum_j)
    return Rung(s, C, i_outer, sum_i, sum_j, k_outer, k_inner)


def parallel(p: Product) -> Rung:
    """Threads share the rows of tiles, and the panels."""
    r = write_cache(p)
    r.s[r.C].parallel(r.i_outer)
    r.s[p.panels].parallel(p.panels.op.axis[0])
    return r


SERIAL: list[Callable[[Product], Rung]] = [
    baseline, blocking, vectorization, loop_permutation, array_packing, write_cache,
]  # fmt: skip
LADDER = [*SERIAL, parallel]


def build(rung: Callable[[Product], Rung], n: int) -> Any:
    """The function ``f(a, b, c)`` of a rung, scheduled by it alone."""
    p = Product(n)
    made = rung(p)
    arguments = [p.A, p.B, made.C]
    return tvm.build(made.s, arguments, TARGET, name=rung.__name__, auto_schedule=False)


def peak(threads: int) -> float:
    """GFLOP/s of multiply-adds on registers alone: as many chains as there are registers."""
    chains, steps = TARGET.vector_registers - 4, 20_000

    def multiply_add(ins: Any, outs: Any) -> Any:
        ib = tir.ir_builder.create()
        factor, out = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        with ib.for_range(0, threads, kind="parallel") as thread:
            value = ib.allocate("float32", (chains, LANES), scope="local")
            for first in (True, False):
                with (
                    ib.for_range(0, 1 if first else steps),
                    ib.for_range(0, chains, kind="unroll") as chain,
                    ib.for_range(0, LANES, kind="vectorize") as lane,
                ):
                    before = 0.0 if first else value[chain, lane]
                    value[chain, lane] = before * factor[0] + factor[1]
            with (
                ib.for_range(0, chains, kind="unroll") as chain,
                ib.for_range(0, LANES, kind="vectorize") as lane,
            ):
                out[thread, chain, lane] = value[chain, lane]
        return ib.get()

    factor = te.placeholder((2,), name="factor")
    out = te.extern((threads, chains, LANES), [factor], multiply_add, name="out")
    f = tvm.build(te.create_schedule(out.op), [factor, out], name="peak")
    result = np.empty((threads, chains, LANES), dtype=np.float32)
    measured = f.time_evaluator(number=1, repeat=50)(np.array([0.5, 1], dtype=np.float32), result)
    np.testing.assert_array_equal(result, np.full_like(result, 2))
    return 2 * result.size * steps / min(measured.results) / 1e9


def main(n: int) -> None:
    all_threads = tvm.runtime.num_threads()
    peaks = {threads: peak(threads) for threads in (1, all_threads)}
    for threads, most in peaks.items():
        print(f"arithmetic units, {threads} threads: {most:.0f} GFLOP/s")
    print(
        f"{n} x {n}, tiles of {ROWS} x {COLUMNS}\n{'':9}threads{'time':>14}{'share':>28}{'step':>9}"
    )

    def report(name: str, threads: int, seconds: float, before: float | None = None) -> None:
        rate = 2 * n**3 / seconds / 1e9
        step = "" if before is None else f"{before / seconds:9.2f} x"
        print(
            f"{name:18}{threads:3}{seconds * 1e3:12.3f} ms{rate:9.1f} GFLOP/s"
            f"{rate / peaks[threads]:6.0%}{step}"
        )

    a, b = np.random.default_rng(0).random((2, n, n), dtype=np.float32)
    c = np.empty((n, n), dtype=np.float32)
    expected = a @ b
    before = None
    for rung in LADDER:
        f = build(rung, n)
        c[:] = np.nan
        measured = f.time_evaluator(number=1, repeat=2 if rung is baseline else 20)(a, b, c)
        # Sums of n terms in another order: n roundings at the worst, each relative to the sum.
        np.testing.assert_allclose(c, expected, rtol=n * np.finfo(np.float32).eps)
        seconds = min(measured.results)
        report(rung.__name__, 1 if rung in SERIAL else all_threads, seconds, before)
        before = seconds

    def timed(function: Callable[[], Any]) -> float:
        return min(timeit.repeat(function, number=1, repeat=21))

    if importlib.util.find_spec("torch"):
        import torch

        x, y, z = map(torch.from_numpy, (a, b, c))
        for threads in peaks:
            torch.set_num_threads(threads)
            report("torch.mm", threads, timed(lambda: torch.mm(x, y, out=z)))
    else:
        print("torch: not installed, left out")
    seconds = timed(lambda: np.matmul(a, b, out=c))
    print(
        f"{'numpy':18}{'?':>3}{seconds * 1e3:12.3f} ms, with as many threads as its library takes"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1024)
