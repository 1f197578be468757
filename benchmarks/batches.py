"""Batches of small problems: generalised ufuncs, reductions by ufuncs, vmap in JAX and torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

import minitvm
from benchmarks import peers
from benchmarks.measure import OURS, Row, Settings, Timer, interleaved, statement
from minitvm import te

_RNG = np.random.default_rng(0)


def rows(settings: Settings) -> Iterator[Row]:
    """Products, sums of rows, chains, and operators under vmap."""
    yield from _generalised(settings)
    yield from _chains(settings)
    yield from _vmapped(settings)


def _row(name: str, what: str, contenders: Mapping[str, Timer], settings: Settings) -> Row:
    return Row(name, what, interleaved(contenders, settings), peers.missing(["numba"]))


def _random(*shape: int) -> Any:
    return _RNG.random(shape, dtype="float32")


# ---- Generalised ufuncs --------------------------------------------------------------------------


def _product(a: Any, b: Any) -> Any:
    k = te.reduce_axis((0, a.shape[1]))
    shape = (a.shape[0], b.shape[1])
    return te.compute(shape, lambda i, j: te.sum(a[i, k] * b[k, j], axis=k))


def _dot(x: Any, y: Any) -> Any:
    k = te.reduce_axis((0, x.shape[0]))
    return te.compute((), lambda: te.sum(x[k] * y[k], axis=k))


def _product_loops(a: Any, b: Any, c: Any) -> None:
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            total = np.float32(0)
            for k in range(a.shape[1]):
                total += a[i, k] * b[k, j]
            c[i, j] = total


def _dot_loop(x: Any, y: Any, out: Any) -> None:
    total = np.float32(0)
    for i in range(x.shape[0]):
        total += x[i] * y[i]
    out[0] = total


def _dot_of_numpy(x: Any, y: Any, out: Any = None) -> Any:
    return np.einsum("bi,bi->b", x, y, out=out)


def _generalised(settings: Settings) -> Iterator[Row]:
    product, dot = "(m,k),(k,n)->(m,n)", "(n),(n)->()"
    ours = partial(minitvm.gufunc, types=["float32"])
    products = {OURS: ours(product)(_product), "numpy": np.matmul}
    dots = {OURS: ours(dot)(_dot), "numpy": getattr(np, "vecdot", _dot_of_numpy)}
    if (numba := peers.peer("numba")) is not None:
        products["numba"] = numba.guvectorize(["(f4[:,:],f4[:,:],f4[:,:])"], product)(
            _product_loops
        )
        dots["numba"] = numba.guvectorize(["(f4[:],f4[:],f4[:])"], dot)(_dot_loop)
    for size, count in ((2, 10_000), (4, 10_000), (16, 2_000), (64, 100)):
        x = _random(count, size, size)
        for name, y in (("", x), (", one factor for all", x[0].copy())):
            yield _gufunc_row(f"{count:,} products of {size} x {size}{name}", products, x, y,
                              settings)  # fmt: skip
    for size, count in ((3, 60_000), (100, 2_000)):
        x = _random(count, size)
        yield _gufunc_row(f"{count:,} dot products of {size}", dots, x, x, settings)


def _gufunc_row(name: str, functions: Mapping[str, Any], x: Any, y: Any, settings: Settings) -> Row:
    z = functions["numpy"](x, y)
    contenders = {}
    for who, function in functions.items():
        np.testing.assert_allclose(function(x, y), z, rtol=1e-4)
        contenders[who] = statement("f(x, y, z)", f=function, x=x, y=y, z=z)
    return _row(f"gufunc, {name}", f"{x.shape} and {y.shape}, float32", contenders, settings)


# ---- Reductions ----------------------------------------------------------------------------------


def _plus(x: Any, y: Any) -> Any:
    return x + y


def _chains(settings: Settings) -> Iterator[Row]:
    functions = {OURS: minitvm.ufunc(types=["float32"], identity=0)(_plus), "numpy": np.add}
    if (numba := peers.peer("numba")) is not None:
        kinds = ["float32(float32, float32)"]
        functions["numba"] = numba.vectorize(kinds, identity=0)(lambda x, y: x + y)
    x, at = _random(100_000), _RNG.integers(0, 1000, 10_000)
    given = {"x": x, "rows": x.reshape(1000, 100), "starts": np.arange(0, x.size, 10),
             "at": at, "few": x[: at.size], "sums": np.zeros(1000, "float32")}  # fmt: skip
    for name, text in (
        ("reduce of 100,000", "f.reduce(x)"),
        ("reduce of 1,000 rows of 100", "f.reduce(rows, axis=1)"),
        ("reduce of 1,000 rows, of columns", "f.reduce(rows, axis=0)"),
        ("accumulate of 100,000", "f.accumulate(x)"),
        ("reduceat of parts of 10", "f.reduceat(x, starts)"),
        ("at 10,000 places", "f.at(sums, at, few)"),
    ):
        contenders = {who: statement(text, f=f, **given) for who, f in functions.items()}
        what = "the sum of float32, by a ufunc of x + y in order; numpy's own adds in another order"
        yield _row(f"ufunc, {name}", what, contenders, settings)


# ---- vmap ----------------------------------------------------------------------------------------


@cache
def _scaled() -> Any:
    n, a = te.var("n"), te.var("a", "float32")
    x = te.placeholder((n,), name="x")
    y = te.compute((n,), lambda i: x[i] * x[i] * a, name="y")
    return minitvm.build(te.create_schedule(y.op), [x, a, y], name="scaled")


@cache
def _scaled_in_torch() -> Any:  # once, since an operator of torch lives to the end of the process
    return _scaled().torch_op("benchmarks::scaled")


def _plainly(x: Any, a: Any) -> Any:
    return x * x * a


def _vmapped(settings: Settings) -> Iterator[Row]:
    given = _random(10_000, 4)
    what = "x * x * a of 10,000 vectors of 4, float32; x differs, a is shared"
    if (jax := peers.peer("jax")) is not None:
        x, both = jax.numpy.asarray(given), {OURS: _scaled().jax_op(), "jax": _plainly}
        mapped = {who: jax.jit(jax.vmap(f, (0, None))) for who, f in both.items()}
        text = "f(x, 2.0).block_until_ready()"
        contenders = {who: statement(text, f=f, x=x) for who, f in mapped.items()}
        yield _row("vmap in JAX", what, contenders, settings)
    if (torch := peers.peer("torch")) is not None:
        x, both = torch.from_numpy(given), {OURS: _scaled_in_torch(), "torch": _plainly}
        mapped = {who: torch.vmap(f, (0, None)) for who, f in both.items()}
        contenders = {who: statement("f(x, 2.0)", f=f, x=x) for who, f in mapped.items()}
        yield _row("vmap in torch", what, contenders, settings)
