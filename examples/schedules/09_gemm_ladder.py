"""Matrix multiplication from plain loops to the machine's speed, one decision at a time.

Each rung is the rung below with one thing changed, and prints what that brings: the time, the rate,
its share of what the arithmetic units can do (measured, see `peak`), and the speed-up over the rung
below. Tile sizes come from the target's registers, not from the size of the matrices.

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

N = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
TARGET = tvm.Target("llvm")
LANES = TARGET.vector_bits // 32
# A tile of C is two vectors wide, and as high as its sums fit the registers, four of which are left
# for what is added to them: two vectors of a row of B, an element of A, one to spare.
COLUMNS = 2 * LANES
ROWS = (TARGET.vector_registers - 4) // 2
STEPS = 4  # of the reduction, at a time

A, B = (te.placeholder((N, N), name=name) for name in "AB")
k = te.reduce_axis((0, N), name="k")
C = te.compute((N, N), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")

# The same product from B in another layout: panels as wide as a tile, each contiguous, so that the
# innermost loops read memory in its order. The last panel is filled up with zeros.
panels = te.compute(
    ((N + COLUMNS - 1) // COLUMNS, N, COLUMNS),
    lambda p, k, j: te.if_then_else(p * COLUMNS + j < N, B[k, p * COLUMNS + j], 0.0),
    name="panels",
)
packed_C = te.compute(
    (N, N),
    lambda i, j: te.sum(A[i, k] * panels[j // COLUMNS, k, j % COLUMNS], axis=k),
    name="C",
)


@dataclass
class Rung:
    """A schedule, and the loops that the next rung changes: of tiles, in a tile, of the sum."""

    s: Any
    C: Any
    i_outer: Any = None
    j_outer: Any = None
    i: Any = None
    j: Any = None
    k_outer: Any = None
    k: Any = None


def baseline() -> Rung:
    """The loops as the expression has them: i, j, k."""
    return Rung(te.create_schedule(C.op), C)


def blocking(product: Any = C) -> Rung:
    """Tile by tile, a few steps of the sum at a time: what is read is still in cache when it is
    read again."""
    s: Any = te.create_schedule(product.op)
    i_outer, j_outer, i, j = s[product].tile(*product.op.axis, ROWS, COLUMNS)
    k_outer, k_inner = s[product].split(k, factor=STEPS)
    s[product].reorder(i_outer, j_outer, k_outer, k_inner, i, j)
    return Rung(s, product, i_outer, j_outer, i, j, k_outer, k_inner)


def vectorization(product: Any = C) -> Rung:
    """The columns of a tile are lanes of vectors. (Where LLVM found them by itself, as in plain
    loops it does, nothing is gained yet: now they are decided.)"""
    r = blocking(product)
    r.s[product].vectorize(r.j)
    return r


def loop_permutation(product: Any = C) -> Rung:
    """The steps of the sum inside of the tile's rows: A is read along its rows."""
    r = vectorization(product)
    r.s[product].reorder(r.k_outer, r.i, r.k, r.j)
    return r


def array_packing() -> Rung:
    """B is first brought into panels."""
    r = loop_permutation(packed_C)
    r.s[panels].vectorize(panels.op.axis[2])
    return r


def write_cache() -> Rung:
    """The sums of a tile are kept in a buffer of their own, and C is written once. A buffer in
    "local" memory whose indices are constants, as all its loops are vectors or written out, is
    kept in registers."""
    s: Any = te.create_schedule(packed_C.op)
    s[panels].vectorize(panels.op.axis[2])
    sums = s.cache_write(packed_C, "local")
    i_outer, j_outer, _, j = s[packed_C].tile(*s[packed_C].op.axis, ROWS, COLUMNS)
    s[packed_C].vectorize(j)
    s[sums].compute_at(s[packed_C], j_outer)
    sum_i, sum_j = s[sums].op.axis
    k_outer, k_inner = s[sums].split(s[sums].op.reduce_axis[0], factor=STEPS)
    s[sums].reorder(k_outer, sum_i, k_inner, sum_j)
    s[sums].unroll(sum_i)
    s[sums].unroll(k_inner)
    s[sums].vectorize(sum_j)
    return Rung(s, packed_C, i_outer, j_outer, sum_i, sum_j, k_outer, k_inner)


def parallel() -> Rung:
    """Threads share the rows of tiles, and the panels."""
    r = write_cache()
    r.s[packed_C].parallel(r.i_outer)
    r.s[panels].parallel(panels.op.axis[0])
    return r


SERIAL = [baseline, blocking, vectorization, loop_permutation, array_packing, write_cache]
LADDER: list[Callable[[], Rung]] = [*SERIAL, parallel]


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


def report(name: str, threads: int, seconds: float, before: float | None = None) -> None:
    rate = 2 * N**3 / seconds / 1e9
    step = "" if before is None else f"{before / seconds:9.2f} x"
    print(
        f"{name:18}{threads:3}{seconds * 1e3:12.3f} ms{rate:9.1f} GFLOP/s"
        f"{rate / peaks[threads]:6.0%}{step}"
    )


rng = np.random.default_rng(0)
a, b = rng.random((2, N, N), dtype=np.float32)
c = np.empty((N, N), dtype=np.float32)
expected = a @ b
all_threads = tvm.runtime.num_threads()
peaks = {threads: peak(threads) for threads in (1, all_threads)}
for threads, most in peaks.items():
    print(f"arithmetic units, {threads} threads: {most:.0f} GFLOP/s")
print(f"{N} x {N}, tiles of {ROWS} x {COLUMNS}\n{'':9}threads{'time':>14}{'share':>28}{'step':>9}")
before = None
for rung in LADDER:
    made = rung()
    f = tvm.build(made.s, [A, B, made.C], TARGET, name=rung.__name__)
    c[:] = np.nan
    measured = f.time_evaluator(number=1, repeat=2 if rung is baseline else 20)(a, b, c)
    # Sums of N terms in another order: N roundings at the worst, each relative to the sum.
    np.testing.assert_allclose(c, expected, rtol=N * np.finfo(np.float32).eps)
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
print(f"{'numpy':18}{'?':>3}{seconds * 1e3:12.3f} ms, with as many threads as its library takes")
