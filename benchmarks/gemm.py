"""Matrix products of every kind: plain, skinny, transposed, batched, of narrow types, fused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks import contraction, fused, peers, prepacked, speeds
from benchmarks.contraction import Array, Call, Problem
from benchmarks.measure import Row, Settings
from benchmarks.speeds import Target

Sizes = tuple[int, ...]
Shapes = tuple[tuple[int, int, int], ...]  # m, n, k

# Tuned on, then held out. Nobody looks at the second lists to choose a rule or a constant.
_SQUARES: tuple[Sizes, Sizes] = (
    (
        16,
        17,
        31,
        32,
        48,
        56,
        64,
        97,
        100,
        127,
        128,
        192,
        200,
        251,
        256,
        384,
        509,
        512,
        768,
        1000,
        1024,
        1536,
        2048,
    ),
    (19, 26, 38, 43, 50, 70, 85, 110, 155, 215, 280, 330, 420, 570, 660, 820, 1050, 1350),
)
_ML: tuple[Shapes, Shapes] = (
    tuple(
        (rows, n, k)
        for rows in (1, 4, 16, 128, 197, 384)
        for n, k in ((768, 768), (3072, 768), (768, 3072), (4096, 1024))
    ),
    tuple(
        (rows, n, k)
        for rows in (1, 2, 11, 40, 160, 280)
        for n, k in ((768, 2304), (1280, 1280), (3000, 900))
    ),
)
_SKINNY: tuple[Shapes, Shapes] = (
    ((1024, 16, 1024), (4096, 16, 256), (512, 512, 16), (1024, 1024, 16), (16, 16, 4096)),
    ((2500, 20, 600), (600, 5, 700), (900, 700, 18), (1700, 220, 9), (30, 20, 2500)),
)
_TRANSPOSED: tuple[Shapes, Shapes] = (
    (*((n, n, n) for n in (32, 64, 128, 256, 512, 1024)), (197, 768, 768), (1, 4096, 1024)),
    ((70, 70, 70), (280, 280, 280), (640, 640, 640), (90, 1600, 600)),
)
_BATCHED: tuple[tuple[tuple[int, str, int, int, int], ...], ...] = (
    (
        (12, "NT", 197, 197, 64),
        (12, "NN", 197, 64, 197),
        (16, "NT", 384, 384, 64),
        (16, "NN", 384, 64, 384),
        (12, "NT", 1, 512, 64),
        (12, "NN", 1, 64, 512),
        (64, "NN", 32, 32, 32),
    ),
    ((5, "NT", 230, 230, 72), (5, "NN", 230, 72, 230), (40, "NN", 30, 34, 38)),
)
_FLOAT64: tuple[Sizes, Sizes] = ((32, 64, 127, 128, 256, 512, 1000, 1024), (49, 95, 170, 310, 850))
# Of narrow numbers by weights that lie along the sum, as a linear layer has them.
_LINEAR: tuple[Shapes, Shapes] = (
    tuple(
        (rows, n, k)
        for rows in (1, 4, 16, 128, 384)
        for n, k in ((3072, 768), (768, 3072), (4096, 1024))
    ),
    tuple(
        (rows, n, k)
        for rows in (2, 11, 77, 280)
        for n, k in ((1280, 5120), (5120, 1280), (3000, 900))
    ),
)
_NARROW: tuple[Sizes, Sizes] = ((64, 128, 256, 512, 1024, 2048), (72, 150, 300, 600, 1100))

TARGETS = (
    Target("float32", 1.15, lambda row: row.what.startswith("float32/"), speeds.LOST),
    Target(
        "float32, squares of 16 to 64",
        1.4,
        lambda row: row.what == "float32/squares" and int(row.name.split()[0]) <= 64,
    ),
    *(
        Target(f"    {kind}", 1.15, lambda row, kind=kind: row.what == kind, speeds.LOST)  # type: ignore[misc]  # a closure
        for kind in (
            "float32/squares",
            "float32/ml",
            "float32/skinny",
            "float32/NT",
            "float32/TN",
            "float32/TT",
            "float32/batched",
        )
    ),
    Target("float64", 1.05, lambda row: row.what.startswith("float64/")),
    Target("bfloat16", 1.1, lambda row: row.what == "bfloat16/squares"),
    Target("int8", 1.1, lambda row: row.what == "int8/squares"),
    Target("bfloat16 and int8, linear layers", 1.1, lambda row: row.what.endswith("/linear")),
    Target("fused", 1.3, lambda row: row.what.startswith("fused/")),
    Target("prepacked", 1.1, lambda row: row.what.startswith("prepacked/")),
)


def rows(settings: Settings) -> Iterator[Row]:
    """All products."""
    return contraction.rows(
        [*_problems(), *prepacked.problems(), *fused.problems(settings)], settings
    )


def _problems() -> Iterator[Problem]:
    for held_out in (False, True):
        for n in _SQUARES[held_out]:
            yield product("float32/squares", "float32", "NN", n, n, n, held_out=held_out)
        for shape in _ML[held_out]:
            yield product("float32/ml", "float32", "NN", *shape, held_out=held_out)
        for shape in _SKINNY[held_out]:
            yield product("float32/skinny", "float32", "NN", *shape, held_out=held_out)
        for layout in ("NT", "TN", "TT"):
            for shape in _TRANSPOSED[held_out]:
                yield product(f"float32/{layout}", "float32", layout, *shape, held_out=held_out)
        for batch, layout, m, n, k in _BATCHED[held_out]:
            yield product(
                "float32/batched", "float32", layout, m, n, k, batch=(batch,), held_out=held_out
            )
        for n in _FLOAT64[held_out]:
            yield product("float64/squares", "float64", "NN", n, n, n, held_out=held_out)
        for dtype in ("bfloat16", "int8"):
            if dtype == "bfloat16" and peers.peer("torch") is None:
                continue  # whose tensors are the arrays
            for n in _NARROW[held_out]:
                yield product(f"{dtype}/squares", dtype, "NN", n, n, n, held_out=held_out)
            for shape in _LINEAR[held_out]:
                yield product(f"{dtype}/linear", dtype, "NT", *shape, held_out=held_out)


def product(
    family: str,
    dtype: str,
    layout: str,
    m: int,
    n: int,
    k: int,
    *,
    batch: tuple[int, ...] = (),
    held_out: bool = False,
) -> Problem:
    """A (m, k) times B (k, n), each stored transposed where `layout` has a T, or a batch of them.

    Products of int8 are sums of int32; those of bfloat16 sums of float32, rounded at the end, as
    torch has them.
    """
    shapes = [
        (*batch, *((m, k) if layout[0] == "N" else (k, m))),
        (*batch, *((k, n) if layout[1] == "N" else (n, k))),
        (*batch, m, n),
    ]
    summed = {"int8": "int32", "bfloat16": "float32"}.get(dtype, dtype)
    result = "bfloat16" if dtype == "bfloat16" else summed

    def program(te: Any) -> list[Any]:
        A = te.placeholder(shapes[0], dtype, name="A")
        B = te.placeholder(shapes[1], dtype, name="B")
        r = te.reduce_axis((0, k), name="k")

        def element(*axes: Any) -> Any:
            *outer, i, j = axes
            a = A[tuple(outer) + ((i, r) if layout[0] == "N" else (r, i))]
            b = B[tuple(outer) + ((r, j) if layout[1] == "N" else (j, r))]
            if summed != dtype:
                a, b = a.astype(summed), b.astype(summed)
            return te.sum(a * b, axis=r)

        C = te.compute(shapes[2], element, name="C")
        if result != summed:
            return [A, B, te.compute(shapes[2], lambda *axes: C[axes].astype(result), name="D")]
        return [A, B, C]

    def arrays() -> list[Any]:
        if dtype == "bfloat16":
            torch = peers.peer("torch")
            made = [torch.from_numpy(contraction.filled(s, "float32", 0)) for s in shapes]
            return [x.to(torch.bfloat16) for x in made]
        a, b = (contraction.filled(shape, dtype, i) for i, shape in enumerate(shapes[:2]))
        return [a, b, contraction.aligned(shapes[2], result)]

    def exact(a: Array, b: Array) -> tuple[Array, Array]:
        a, b = _as_stored(layout, a, b)
        return a @ b, np.abs(a) @ np.abs(b)

    name = f"{m} x {n} x {k}"
    plain = layout == "NN" and not batch and family.endswith("/squares") and summed == dtype
    return Problem(
        family,
        f"{batch[0]} of {layout} {name}" if batch else name,
        2 * m * n * k * int(np.prod(batch)),
        program,
        arrays,
        exact,
        k,
        partial(_libraries, dtype, layout, shapes[2]),
        0.0 if dtype == "int8" else float(np.finfo(summed).eps),
        2.0**-8 * 1.01 if dtype == "bfloat16" else 0.0,
        held_out,
        contraction.compilers(program, _loop, "matmul") if plain else None,
    )


def _as_stored(layout: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Both factors as (m, k) and (k, n), views of what is stored."""
    if layout[0] == "T":
        a = a.swapaxes(-1, -2)
    if layout[1] == "T":
        b = b.swapaxes(-1, -2)
    return a, b


def _libraries(
    dtype: str, layout: str, shape: Sequence[int], inputs: Sequence[Any]
) -> dict[str, Call]:
    """The product of torch and of numpy, into an array that is there; of oneDNN, which torch calls
    for linear layers, into a new one."""
    found: dict[str, Call] = {}
    if (torch := peers.peer("torch")) is not None:
        a, b = _as_stored(layout, *contraction.tensors(inputs))
        if dtype == "int8":
            found["torch"] = partial(torch._int_mm, a, b, out=torch.empty(shape, dtype=torch.int32))
        else:
            mm = torch.mm if len(shape) == 2 else torch.bmm
            found["torch"] = partial(mm, a, b, out=torch.empty(shape, dtype=a.dtype))
        is_linear = dtype in ("float32", "bfloat16") and len(shape) == 2
        if is_linear and torch.backends.mkldnn.is_available():
            linear = torch.ops.mkldnn._linear_pointwise
            found["torch oneDNN"] = partial(linear, a, b.t(), None, "none", [], "")
    if dtype in ("float32", "float64"):  # numpy has no bfloat16, and plain loops for integers
        a, b = _as_stored(layout, *inputs)
        found["numpy"] = partial(np.matmul, a, b, out=np.empty(shape, dtype))
    return found


def _loop(a: Any, b: Any, c: Any) -> None:
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            total = a[i, 0] * b[0, j]
            for k in range(1, a.shape[1]):
                total += a[i, k] * b[k, j]
            c[i, j] = total
