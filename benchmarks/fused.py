"""Matrix products with something before or after them, and attention, against torch eager and
compiled."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks import contraction, peers
from benchmarks.contraction import Array, Call, Problem, Program
from benchmarks.measure import Settings

Shapes = tuple[tuple[int, int, int], ...]  # m, n, k; tuned on, then held out
_GELU: tuple[Shapes, Shapes] = (
    ((16, 3072, 768), (128, 3072, 768), (384, 4096, 1024)),
    ((50, 2048, 512),),
)
_RESIDUAL: tuple[Shapes, Shapes] = (
    ((16, 768, 3072), (128, 768, 3072), (384, 1024, 4096)),
    ((50, 512, 2048),),
)
_DEQUANTISE: tuple[Shapes, Shapes] = (
    ((1, 4096, 4096), (16, 3072, 768), (128, 3072, 768)),
    ((50, 2048, 512),),
)
# Heads, rows, keys, depth; and whether a row sees the keys up to its own only.
_ATTENTION: tuple[tuple[tuple[int, int, int, int, bool], ...], ...] = (
    (
        (8, 64, 64, 64, False),
        (4, 512, 512, 64, False),
        (4, 512, 512, 64, True),
        (1, 2048, 2048, 64, True),
        (4, 100, 700, 64, False),
    ),
    ((2, 1000, 1000, 80, False), (2, 1000, 1000, 80, True)),
)
_MORE = 16  # roundings of an epilogue, and the error of erf, in eps

Torch = Callable[..., Any]
"""What torch computes, of its own tensors."""


def problems(settings: Settings) -> Iterator[Problem]:
    """Each kind at its shapes."""
    compiled = bool(settings.least)  # compiling takes torch seconds: not in a quick run
    for held_out in (False, True):
        for shape in _GELU[held_out]:
            yield _gelu(*shape, compiled=compiled, held_out=held_out)
        for shape in _RESIDUAL[held_out]:
            yield _residual(*shape, compiled=compiled, held_out=held_out)
        for shape in _DEQUANTISE[held_out]:
            yield _dequantise(*shape, compiled=compiled, held_out=held_out)
        for heads, rows, keys, depth, causal in _ATTENTION[held_out]:
            yield _attention(heads, rows, keys, depth, causal=causal, held_out=held_out)


def _gelu(m: int, n: int, k: int, *, compiled: bool, held_out: bool) -> Problem:
    """``gelu(x @ w + bias)``, with erf."""

    def program(te: Any) -> list[Any]:
        X, W, bias, C = _matmul(te, m, n, k, (n,))

        def gelu(i: Any, j: Any) -> Any:
            x = C[i, j] + bias[j]
            return x * 0.5 * (1.0 + te.erf(x * math.sqrt(0.5)))

        return [X, W, bias, te.compute((m, n), gelu, name="D")]

    def exact(x: Array, w: Array, bias: Array) -> tuple[Array, Array]:
        total = x @ w + bias
        erf = np.vectorize(math.erf)(total * math.sqrt(0.5))
        return total * 0.5 * (1 + erf), 1.13 * (np.abs(x) @ np.abs(w) + np.abs(bias))  # its slope

    def torch_gelu(torch: Any) -> dict[str, Torch]:
        linear = torch.nn.functional.gelu
        return {"": lambda x, w, bias: linear(torch.addmm(bias, x, w))}

    return _problem("gelu", (m, n, k), program, (n,), exact, torch_gelu, compiled, held_out)


def _residual(m: int, n: int, k: int, *, compiled: bool, held_out: bool) -> Problem:
    """``x @ w + residual``."""

    def program(te: Any) -> list[Any]:
        X, W, residual, C = _matmul(te, m, n, k, (m, n))
        return [
            X,
            W,
            residual,
            te.compute((m, n), lambda i, j: C[i, j] + residual[i, j], name="D"),
        ]

    def exact(x: Array, w: Array, residual: Array) -> tuple[Array, Array]:
        return x @ w + residual, np.abs(x) @ np.abs(w) + np.abs(residual)

    def torch_residual(torch: Any) -> dict[str, Torch]:
        return {"": lambda x, w, residual: torch.addmm(residual, x, w)}

    return _problem(
        "residual", (m, n, k), program, (m, n), exact, torch_residual, compiled, held_out
    )


def _dequantise(m: int, n: int, k: int, *, compiled: bool, held_out: bool) -> Problem:
    """``x @ (w * scale).T``, the weights in int8, a row and a scale for each output, as layers
    keep them."""

    def program(te: Any) -> list[Any]:
        X = te.placeholder((m, k), "float32", name="X")
        W = te.placeholder((n, k), "int8", name="W")
        scale = te.placeholder((n,), "float32", name="scale")
        r = te.reduce_axis((0, k), name="k")
        C = te.compute(
            (m, n),
            lambda i, j: te.sum(X[i, r] * (W[j, r].astype("float32") * scale[j]), axis=r),
            name="C",
        )
        return [X, W, scale, C]

    def exact(x: Array, w: Array, scale: Array) -> tuple[Array, Array]:
        weights = (w * scale[:, None]).T
        return x @ weights, np.abs(x) @ np.abs(weights)

    def torch_dequantise(torch: Any) -> dict[str, Torch]:
        return {
            "": lambda x, w, scale: torch.mm(x, w.to(torch.float32).t()) * scale,
            " weights first": lambda x, w, scale: torch.mm(
                x, (w.to(torch.float32) * scale[:, None]).t()
            ),
            " int8pack": torch._weight_int8pack_mm,
        }

    return _problem(
        "dequantise", (m, n, k), program, (n,), exact, torch_dequantise, compiled, held_out
    )


def _attention(
    heads: int, rows: int, keys: int, depth: int, *, causal: bool, held_out: bool
) -> Problem:
    """``softmax(q @ k.T / sqrt(depth)) @ v``."""
    scale = 1 / math.sqrt(depth)
    shape = heads, rows, keys

    def program(te: Any) -> list[Any]:
        Q = te.placeholder((heads, rows, depth), name="Q")
        K = te.placeholder((heads, keys, depth), name="K")
        V = te.placeholder((heads, keys, depth), name="V")
        d = te.reduce_axis((0, depth), name="d")
        S = te.compute(shape, lambda h, i, j: te.sum(Q[h, i, d] * K[h, j, d], axis=d), name="S")
        C = te.compute(shape, lambda h, i, j: S[h, i, j] * scale, name="C")

        def over(combine: Any, term: Any, name: str, *more: int) -> Any:
            def element(h: Any, i: Any, *c: Any) -> Any:
                k = te.reduce_axis((0, i + 1 if causal else keys), name="k")
                return combine(term(h, i, k, *c), axis=k)

            return te.compute((heads, rows, *more), element, name=name)

        M = over(te.max, lambda h, i, k: C[h, i, k], "M")
        E = te.compute(shape, lambda h, i, j: te.exp(C[h, i, j] - M[h, i]), name="E")
        T = over(te.sum, lambda h, i, k: E[h, i, k], "T")
        P = te.compute(shape, lambda h, i, j: E[h, i, j] / T[h, i], name="P")
        return [Q, K, V, over(te.sum, lambda h, i, k, c: P[h, i, k] * V[h, k, c], "O", depth)]

    def arrays() -> list[Any]:
        sizes = (rows, keys, keys)
        inputs = [contraction.filled((heads, n, depth), "float32", i) for i, n in enumerate(sizes)]
        return [*inputs, contraction.aligned((heads, rows, depth), "float32")]

    def exact(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        scores = q @ k.transpose(0, 2, 1) * scale
        if causal:
            scores = np.where(np.tri(rows, keys, dtype=bool), scores, -np.inf)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        shares = powers / powers.sum(-1, keepdims=True)
        errors = 1 + 2 * scale * (np.abs(q) @ np.abs(k).transpose(0, 2, 1)).max()
        return shares @ v, errors * (shares @ np.abs(v))

    def calls(inputs: Sequence[Any]) -> dict[str, Call]:
        torch = peers.peer("torch")
        if torch is None:
            return {}
        q, k, v = (each[None] for each in contraction.tensors(inputs)[:3])
        fused = torch.nn.functional.scaled_dot_product_attention
        hidden = torch.ones(rows, keys, dtype=torch.bool).triu(1)

        def plain() -> Any:
            scores = q @ k.transpose(2, 3) * scale
            if causal:
                scores = scores.masked_fill(hidden, -math.inf)
            return (torch.softmax(scores, -1) @ v)[0]

        return {
            "torch eager": plain,
            "torch scaled_dot_product_attention": lambda: fused(q, k, v, is_causal=causal)[0],
        }

    return Problem(
        f"fused/{'causal ' * causal}attention",
        f"{heads} x {rows} x {keys} x {depth}",
        4 * heads * rows * keys * depth // (2 if causal else 1),
        program,
        arrays,
        exact,
        keys + depth + _MORE,
        calls,
        held_out=held_out,
    )


def _matmul(te: Any, m: int, n: int, k: int, more: Sequence[int]) -> tuple[Any, Any, Any, Any]:
    """The factors, another input, and the product."""
    X = te.placeholder((m, k), "float32", name="X")
    W = te.placeholder((k, n), "float32", name="W")
    other = te.placeholder(tuple(more), "float32", name="other")
    r = te.reduce_axis((0, k), name="k")
    C = te.compute((m, n), lambda i, j: te.sum(X[i, r] * W[r, j], axis=r), name="C")
    return X, W, other, C


def _problem(
    kind: str,
    shape: tuple[int, int, int],
    program: Program,
    other: Sequence[int],
    exact: Callable[..., tuple[Array, Array]],
    in_torch: Callable[[Any], dict[str, Torch]],
    compiled: bool,
    held_out: bool,
) -> Problem:
    m, n, k = shape
    weights = ((n, k), "int8") if kind == "dequantise" else ((k, n), "float32")

    def arrays() -> list[Any]:
        return [
            contraction.filled((m, k), "float32", 0),
            contraction.filled(*weights, 1),
            contraction.filled(other, "float32", 2),
            contraction.aligned((m, n), "float32"),
        ]

    def calls(inputs: Sequence[Any]) -> dict[str, Call]:
        torch = peers.peer("torch")
        if torch is None:
            return {}
        tensors = contraction.tensors(inputs)
        found: dict[str, Call] = {}
        for name, function in in_torch(torch).items():
            found[f"torch eager{name}"] = lambda f=function: f(*tensors)  # type: ignore[misc]  # a closure
        if compiled:
            first = next(iter(in_torch(torch).values()))
            fast = compiled_by_torch(torch, first)
            found["torch.compile"] = lambda: fast(*tensors)
        return found

    return Problem(
        f"fused/{kind}",
        f"{m} x {n} x {k}",
        2 * m * n * k,
        program,
        arrays,
        exact,
        k + _MORE,
        calls,
        held_out=held_out,
    )


def compiled_by_torch(torch: Any, function: Torch) -> Torch:
    """Compiled for these shapes alone, in this process; without a compiler of C++ its first call
    fails, and the row says so."""
    importlib.import_module("torch._inductor.config").compile_threads = 1  # type: ignore[attr-defined]  # its own
    torch._dynamo.reset()
    made: Torch = torch.compile(function, dynamic=False)
    return made
