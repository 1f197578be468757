"""The operators of examples/operators at a small and a large size, and what torch and JAX compute.

Arrays are of numpy, on aligned memory that all contenders share. `torch` and `jax` below are those
modules; their functions take the same tensors as the example's function.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, final

import numpy as np

from benchmarks.contraction import aligned

Size = tuple[int, ...]
Function = Callable[..., Any]


@final
@dataclass(frozen=True, slots=True)
class Case:
    """An operator at one size.

    `arrays` and then `options` are the arguments of the example's function and, in this order, of
    every peer. `torch` are functions of the module and the tensors, the first of them with a
    gradient; `compiled` is what torch.compile gets instead of the first. `trained` are the
    positions of the inputs that have a gradient; the example's gradient takes the inputs at
    `read`, and the head adjoint.
    """

    size: str
    arrays: Sequence[Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    torch: Mapping[str, Function] = field(default_factory=dict)
    compiled: Function | None = None
    jax: Function | None = None
    trained: tuple[int, ...] = ()
    read: tuple[int, ...] | None = None


@final
@dataclass(frozen=True, slots=True)
class Operator:
    """A script of the gallery: its function, the name of its gradient, its cases. `recorded` are a
    forward function that also returns what a backward one takes behind the inputs, and that one.
    """

    script: str
    function: str
    gradient: str | None
    case: Callable[..., Case]
    small: Size
    large: Size
    recorded: tuple[str, str] | None = None


# -- Arrays --


def _normal(*shape: int, seed: int = 0) -> Any:
    return _on_aligned(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def _uniform(*shape: int, seed: int = 1) -> Any:
    return _on_aligned(np.random.default_rng(seed).random(shape, dtype=np.float32))


def _integers(low: int, high: int, shape: Size, dtype: str, seed: int = 2) -> Any:
    drawn = np.random.default_rng(seed).integers(low, high, shape)
    return _on_aligned(drawn.astype(dtype))


def _on_aligned(array: Any) -> Any:
    found = aligned(array.shape, str(array.dtype))
    found[...] = array
    return found


# -- Operators --


def _rms_norm(rows: int, width: int) -> Case:
    def eager(torch: Any, x: Any, w: Any, eps: float) -> Any:
        return torch.nn.functional.rms_norm(x, (width,), w, eps)

    def in_jax(jax: Any, x: Any, w: Any, eps: float) -> Any:
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + eps) * w

    arrays = _normal(rows, width), _uniform(width)
    return Case(
        f"{rows} x {width}", arrays, {"eps": 1e-6}, {"torch": eager}, jax=in_jax, trained=(0, 1)
    )


def _rotary_embedding(batch: int, heads: int, t: int, d: int) -> Case:
    def eager(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def in_jax(jax: Any, x: Any, cos: Any, sin: Any) -> Any:
        a, b = jax.numpy.split(x, 2, axis=-1)
        return jax.numpy.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)

    angles = np.outer(np.arange(t), 10000.0 ** (-np.arange(d // 2) / (d // 2)))
    tables = (_on_aligned(each.astype("float32")) for each in (np.cos(angles), np.sin(angles)))
    return Case(
        f"{batch} x {heads} x {t} x {d}", (_normal(batch, heads, t, d), *tables),
        torch={"torch": eager}, jax=in_jax, trained=(0,), read=(1, 2),
    )  # fmt: skip


def _swiglu(m: int, k: int, n: int) -> Case:
    def eager(torch: Any, x: Any, gate: Any, up: Any) -> Any:
        linear = torch.nn.functional.linear
        return torch.nn.functional.silu(linear(x, gate)) * linear(x, up)

    def by_onednn(torch: Any, x: Any, gate: Any, up: Any) -> Any:
        linear = torch.ops.mkldnn._linear_pointwise
        g, u = (linear(x, each, None, "none", [], "") for each in (gate, up))
        return torch.nn.functional.silu(g) * u

    def in_jax(jax: Any, x: Any, gate: Any, up: Any) -> Any:
        return jax.nn.silu(x @ gate.T) * (x @ up.T)

    weights = (_normal(n, k, seed=seed) / np.float32(math.sqrt(k)) for seed in (1, 2))
    return Case(
        f"{m} x {k} x {n}", (_normal(m, k), *weights),
        torch={"torch": eager, "torch oneDNN": by_onednn}, jax=in_jax, trained=(0, 1, 2),
    )  # fmt: skip


def _masked_softmax(heads: int, rows: int, width: int) -> Case:
    def eager(torch: Any, x: Any, mask: Any) -> Any:
        return torch.softmax(x.masked_fill(~mask, -math.inf), dim=-1)

    def in_jax(jax: Any, x: Any, mask: Any) -> Any:
        return jax.nn.softmax(jax.numpy.where(mask, x, -math.inf), axis=-1)

    mask = _on_aligned(_uniform(heads, rows, width) < 0.7)
    return Case(
        f"{heads} x {rows} x {width}", (_normal(heads, rows, width), mask),
        torch={"torch": eager}, jax=in_jax, trained=(0,),
    )  # fmt: skip


def _attention(heads: int, t: int, d: int) -> Case:
    def eager(torch: Any, q: Any, k: Any, v: Any, causal: bool) -> Any:
        fused = torch.nn.functional.scaled_dot_product_attention
        return fused(q[None], k[None], v[None], is_causal=causal)[0]

    def in_jax(jax: Any, q: Any, k: Any, v: Any, causal: bool) -> Any:
        score = q @ k.swapaxes(-1, -2) / math.sqrt(d)
        seen = jax.numpy.tri(t, dtype=bool) if causal else True
        return jax.nn.softmax(jax.numpy.where(seen, score, -math.inf), axis=-1) @ v

    arrays = [_normal(heads, t, d, seed=seed) for seed in range(3)]
    return Case(
        f"{heads} x {t} x {d}, causal", arrays, {"causal": True}, {"torch": eager},
        jax=in_jax, trained=(0, 1, 2),
    )  # fmt: skip


def _int8_linear(m: int, k: int, n: int) -> Case:
    def eager(torch: Any, x: Any, w: Any, scale: Any, bias: Any) -> Any:
        step = x.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
        product = torch._int_mm(torch.round(x / step).to(torch.int8), w.T)
        return product * step * scale + bias

    def by_floats(torch: Any, x: Any, w: Any, scale: Any, bias: Any) -> Any:
        """For processors without dot products of int8; the sums are exact up to 2^24."""
        step = x.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
        product = torch.round(x / step) @ w.to(torch.float32).T
        return product * step * scale + bias

    def in_jax(jax: Any, x: Any, w: Any, scale: Any, bias: Any) -> Any:
        jnp = jax.numpy
        step = jnp.maximum(jnp.abs(x).max(axis=1, keepdims=True), 1e-30) / 127
        q = jnp.round(x / step).astype("int8")
        product = jnp.matmul(q, w.T, preferred_element_type="int32")
        return product * step * scale + bias

    arrays = (
        _normal(m, k), _integers(-127, 128, (n, k), "int8"), _uniform(n) / 100, _uniform(n, seed=2)
    )  # fmt: skip
    peers = {"torch": eager, "torch by floats": by_floats}
    return Case(f"{m} x {k} x {n}", arrays, torch=peers, jax=in_jax)


def _embedding_bag(bags: int, each: int, width: int, rows: int) -> Case:
    def eager(torch: Any, table: Any, bags: Any, weights: Any) -> Any:
        bag = torch.nn.functional.embedding_bag
        return bag(bags, table, mode="sum", per_sample_weights=weights)

    def gathered(torch: Any, table: Any, bags: Any, weights: Any) -> Any:
        return (table[bags] * weights[..., None]).sum(1)

    def in_jax(jax: Any, table: Any, bags: Any, weights: Any) -> Any:
        return jax.numpy.einsum("bnd,bn->bd", table[bags], weights)

    arrays = (
        _normal(rows, width), _integers(0, rows, (bags, each), "int64"), _uniform(bags, each)
    )  # fmt: skip
    return Case(
        f"{bags} bags of {each} x {width} of {rows}", arrays,
        torch={"torch": eager}, compiled=gathered, jax=in_jax, trained=(0, 2),
    )  # fmt: skip


def _depthwise_convolution(n: int, c: int, h: int) -> Case:
    def eager(torch: Any, x: Any, kernel: Any, stride: int, padding: int) -> Any:
        convolution = torch.nn.functional.conv2d
        return convolution(x, kernel[:, None], stride=stride, padding=padding, groups=c)

    def in_jax(jax: Any, x: Any, kernel: Any, stride: int, padding: int) -> Any:
        return jax.lax.conv_general_dilated(
            x, kernel[:, None], (stride,) * 2, [(padding,) * 2] * 2, feature_group_count=c
        )

    return Case(
        f"3 x 3, {n} x {c} x {h} x {h}", (_normal(n, c, h, h), _normal(c, 3, 3, seed=1)),
        {"stride": 1, "padding": 1}, {"torch": eager}, jax=in_jax, trained=(0, 1),
    )  # fmt: skip


def _heat(m: int, steps: int) -> Case:
    def eager(torch: Any, u: Any, rate: float, steps: int) -> Any:
        for _ in range(steps):
            around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
            inner = u[1:-1, 1:-1] + rate * (around - 4.0 * u[1:-1, 1:-1])
            u = u.clone()
            u[1:-1, 1:-1] = inner
        return u

    def in_jax(jax: Any, u: Any, rate: float, steps: int) -> Any:
        for _ in range(steps):
            around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
            u = u.at[1:-1, 1:-1].add(rate * (around - 4.0 * u[1:-1, 1:-1]))
        return u

    return Case(
        f"{steps} steps on {m} x {m}", (_uniform(m, m),), {"rate": 0.2, "steps": steps},
        {"torch": eager}, jax=in_jax, trained=(0,), read=(0,),
    )  # fmt: skip


def _kmeans_step(n: int, d: int, k: int) -> Case:
    def eager(torch: Any, x: Any, centres: Any) -> Any:
        nearest = ((centres * centres).sum(1) - 2.0 * (x @ centres.T)).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, x)
        counts = torch.bincount(nearest, minlength=k)[:, None]
        moved = torch.where(counts > 0, sums / counts.clamp(min=1), centres)
        return moved, nearest

    def in_jax(jax: Any, x: Any, centres: Any) -> Any:
        nearest = ((centres * centres).sum(1) - 2.0 * (x @ centres.T)).argmin(1)
        sums = jax.ops.segment_sum(x, nearest, k)
        counts = jax.ops.segment_sum(jax.numpy.ones(n, "float32"), nearest, k)[:, None]
        moved = jax.numpy.where(counts > 0, sums / jax.numpy.maximum(counts, 1), centres)
        return moved, nearest

    size = f"{n} points of {d}, {k} centres"
    arrays = _uniform(n, d), _uniform(k, d, seed=2)
    return Case(size, arrays, torch={"torch": eager}, jax=in_jax)


def _edit_distance(n: int) -> Case:
    def in_jax(jax: Any, a: Any, b: Any) -> Any:
        ramp = jax.numpy.arange(n + 1)

        def row(above: Any, letter: Any) -> Any:
            best = jax.numpy.minimum(above[1:] + 1, above[:-1] + (b != letter))
            ours = jax.numpy.concatenate([above[:1] + 1, best]) - ramp
            return jax.lax.cummin(ours) + ramp, None

        return jax.lax.scan(row, ramp, a)[0][-1]

    arrays = [_integers(0, 4, (n,), "uint8", seed) for seed in (2, 3)]
    return Case(f"{n} letters", arrays, jax=in_jax)


def _sparse_product(m: int, n: int, p: int) -> Case:
    @cache
    def matrix(torch: Any, starts: Any, columns: Any, values: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's: CSR is in beta
            return torch.sparse_csr_tensor(starts, columns, values, (m, n))

    def eager(torch: Any, starts: Any, columns: Any, values: Any, dense: Any) -> Any:
        return matrix(torch, starts, columns, values) @ dense  # made once, as programs keep it

    def scattered(torch: Any, starts: Any, columns: Any, values: Any, dense: Any) -> Any:
        terms = values[:, None] * dense[columns]
        return torch.zeros(m, p).index_add(0, torch.from_numpy(rows), terms)

    def in_jax(jax: Any, starts: Any, columns: Any, values: Any, dense: Any) -> Any:
        terms = values[:, None] * dense[columns]
        return jax.ops.segment_sum(terms, rows, m, indices_are_sorted=True)

    each = n // 50
    rows = np.repeat(np.arange(m), each)
    starts = np.arange(m + 1, dtype=np.int32) * np.int32(each)
    inside = _integers(0, n // each, (m, each), "int32") + np.arange(each) * (n // each)
    columns = np.sort(inside, axis=1).astype(np.int32).ravel()
    arrays = _on_aligned(starts), _on_aligned(columns), _normal(m * each), _normal(n, p, seed=1)
    return Case(
        f"{m} x {n}, 2 %, by {p}", arrays,
        torch={"torch": eager}, compiled=scattered, jax=in_jax, trained=(2, 3),
    )  # fmt: skip


OPERATORS = (
    Operator("rms_norm", "rms_norm", "rms_norm_gradient", _rms_norm, (8, 96), (4096, 1024)),
    Operator(
        "rotary_embedding", "rotary_embedding", "rotary_embedding_gradient",
        _rotary_embedding, (1, 4, 16, 32), (2, 16, 512, 128),
    ),
    Operator(
        "swiglu", "swiglu", "swiglu_gradient", _swiglu, (8, 64, 96), (256, 1024, 2048),
        ("swiglu_recorded", "swiglu_backward"),
    ),
    Operator(
        "masked_softmax", "masked_softmax", "masked_softmax_gradient",
        _masked_softmax, (2, 16, 45), (16, 256, 512),
    ),
    Operator(
        "attention", "attention", "attention_gradient", _attention, (2, 32, 16), (8, 512, 64)
    ),
    Operator("int8_linear", "int8_linear", None, _int8_linear, (8, 64, 96), (256, 1024, 1024)),
    Operator(
        "embedding_bag", "embedding_bag", "backward",
        _embedding_bag, (32, 8, 32, 500), (4096, 32, 128, 50000),
    ),
    Operator(
        "depthwise_convolution", "depthwise_convolution", "backward",
        _depthwise_convolution, (1, 8, 14), (8, 64, 56),
    ),
    Operator("heat_equation", "heat", "backward", _heat, (64, 1), (1024, 4)),
    Operator("kmeans_step", "kmeans_step", None, _kmeans_step, (256, 8, 8), (20000, 64, 64)),
    Operator("edit_distance", "edit_distance", None, _edit_distance, (64,), (2000,)),
    Operator(
        "sparse_product", "sparse_product", "backward",
        _sparse_product, (100, 100, 8), (5000, 4000, 128),
    ),
)  # fmt: skip
