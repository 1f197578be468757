"""The operators as loops that numba compiles, forward and backward, as one would write them there.

The arguments are those of the example's functions, options too; results are new arrays. Loops over
`prange` are shared by threads where numba is asked for that, and plain ones elsewhere. Products of
matrices are no loops that anyone writes for numba: these operators have no function here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

try:
    from numba import prange
except ImportError:
    prange = range


def rms_norm(x: Any, w: Any, eps: float) -> Any:
    found = np.empty_like(x)
    for i in prange(x.shape[0]):
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += x[i, j] * x[i, j]
        scale = np.float32(1 / math.sqrt(total / x.shape[1] + eps))
        for j in range(x.shape[1]):
            found[i, j] = x[i, j] * scale * w[j]
    return found


def rms_norm_backward(x: Any, w: Any, dy: Any, eps: float) -> Any:
    n = x.shape[1]
    dx, dw = np.empty_like(x), np.zeros_like(w)
    for i in range(x.shape[0]):
        total, product = np.float32(0), np.float32(0)
        for j in range(n):
            total += x[i, j] * x[i, j]
            product += x[i, j] * w[j] * dy[i, j]
        scale = np.float32(1 / math.sqrt(total / n + eps))
        back = product * scale * scale * scale / np.float32(n)
        for j in range(n):
            dx[i, j] = dy[i, j] * w[j] * scale - x[i, j] * back
            dw[j] += dy[i, j] * x[i, j] * scale
    return dx, dw


def rotary_embedding(x: Any, cos: Any, sin: Any) -> Any:
    found = np.empty_like(x)
    t, h = cos.shape
    for b in prange(x.shape[0]):
        for head in range(x.shape[1]):
            for i in range(t):
                for j in range(h):
                    first, second = x[b, head, i, j], x[b, head, i, j + h]
                    found[b, head, i, j] = first * cos[i, j] - second * sin[i, j]
                    found[b, head, i, j + h] = second * cos[i, j] + first * sin[i, j]
    return found


def rotary_embedding_backward(cos: Any, sin: Any, dy: Any) -> Any:
    found = np.empty_like(dy)
    t, h = cos.shape
    for b in prange(dy.shape[0]):
        for head in range(dy.shape[1]):
            for i in range(t):
                for j in range(h):
                    first, second = dy[b, head, i, j], dy[b, head, i, j + h]
                    found[b, head, i, j] = first * cos[i, j] + second * sin[i, j]
                    found[b, head, i, j + h] = second * cos[i, j] - first * sin[i, j]
    return found


def masked_softmax(x: Any, mask: Any) -> Any:
    found = np.empty_like(x)
    for b in prange(x.shape[0]):
        for i in range(x.shape[1]):
            top = np.float32(-np.inf)
            for j in range(x.shape[2]):
                if mask[b, i, j]:
                    top = max(top, x[b, i, j])
            total = np.float32(0)
            for j in range(x.shape[2]):
                power = math.exp(x[b, i, j] - top) if mask[b, i, j] else np.float32(0)
                found[b, i, j] = power
                total += power
            for j in range(x.shape[2]):
                found[b, i, j] /= total
    return found


def embedding_bag(table: Any, bags: Any, weights: Any) -> Any:
    found = np.zeros((bags.shape[0], table.shape[1]), np.float32)
    for i in prange(bags.shape[0]):
        for k in range(bags.shape[1]):
            row, weight = bags[i, k], weights[i, k]
            for j in range(table.shape[1]):
                found[i, j] += table[row, j] * weight
    return found


def embedding_bag_backward(table: Any, bags: Any, weights: Any, dy: Any) -> Any:
    d_table, d_weights = np.zeros_like(table), np.empty_like(weights)
    for i in range(bags.shape[0]):
        for k in range(bags.shape[1]):
            row, weight = bags[i, k], weights[i, k]
            total = np.float32(0)
            for j in range(table.shape[1]):
                total += table[row, j] * dy[i, j]
                d_table[row, j] += weight * dy[i, j]
            d_weights[i, k] = total
    return d_table, d_weights


def depthwise_convolution(x: Any, kernel: Any, stride: int, padding: int) -> Any:
    n, c, h, w = x.shape
    _, kh, kw = kernel.shape
    rows, columns = (h + 2 * padding - kh) // stride + 1, (w + 2 * padding - kw) // stride + 1
    padded = np.zeros((n, c, h + 2 * padding, w + 2 * padding), np.float32)
    padded[:, :, padding : padding + h, padding : padding + w] = x
    found = np.zeros((n, c, rows, columns), np.float32)
    for b in prange(n):
        for ch in range(c):
            for y in range(rows):
                for p in range(kh):
                    for q in range(kw):
                        for z in range(columns):
                            found[b, ch, y, z] += (
                                padded[b, ch, y * stride + p, z * stride + q] * kernel[ch, p, q]
                            )
    return found


def heat(u: Any, rate: float, steps: int) -> Any:
    found, rate = u.copy(), np.float32(rate)
    for _ in range(steps):
        before = found.copy()
        for i in prange(1, u.shape[0] - 1):
            for j in range(1, u.shape[1] - 1):
                around = before[i - 1, j] + before[i + 1, j] + before[i, j - 1] + before[i, j + 1]
                found[i, j] = before[i, j] + rate * (around - np.float32(4) * before[i, j])
    return found


def heat_backward(u: Any, dy: Any, rate: float, steps: int) -> Any:
    found, rate = dy.copy(), np.float32(rate)
    for _ in range(steps):
        before = found.copy()
        # Of the inside, which each step reads from and scatters to its neighbours.
        for i in range(1, u.shape[0] - 1):
            for j in range(1, u.shape[1] - 1):
                step = rate * before[i, j]
                found[i, j] -= np.float32(4) * step
                found[i - 1, j] += step
                found[i + 1, j] += step
                found[i, j - 1] += step
                found[i, j + 1] += step
    return found


def kmeans_step(x: Any, centres: Any) -> Any:
    (n, d), k = x.shape, centres.shape[0]
    nearest = np.empty(n, np.int32)
    norms = np.zeros(k, np.float32)
    columns = centres.T.copy()
    for j in range(k):
        for e in range(d):
            norms[j] += centres[j, e] * centres[j, e]
    for i in prange(n):
        distances = norms.copy()
        for e in range(d):
            for j in range(k):
                distances[j] -= np.float32(2) * x[i, e] * columns[e, j]
        nearest[i] = np.argmin(distances)
    sums, counts = np.zeros_like(centres), np.zeros(k, np.int64)
    for i in range(n):
        counts[nearest[i]] += 1
        for e in range(d):
            sums[nearest[i], e] += x[i, e]
    moved = centres.copy()
    for j in range(k):
        if counts[j] > 0:
            moved[j] = sums[j] / np.float32(counts[j])
    return moved, nearest


def edit_distance(a: Any, b: Any) -> Any:
    n = b.shape[0]
    row = np.arange(n + 1).astype(np.int32)
    for i in range(a.shape[0]):
        corner, row[0] = row[0], np.int32(i + 1)
        for j in range(n):
            best = min(min(row[j], row[j + 1]) + 1, corner + (a[i] != b[j]))
            corner, row[j + 1] = row[j + 1], np.int32(best)
    return row[n]


def sparse_product(starts: Any, columns: Any, values: Any, dense: Any) -> Any:
    found = np.zeros((starts.shape[0] - 1, dense.shape[1]), np.float32)
    for i in prange(starts.shape[0] - 1):
        for k in range(starts[i], starts[i + 1]):
            value, row = values[k], columns[k]
            for j in range(dense.shape[1]):
                found[i, j] += value * dense[row, j]
    return found


def sparse_product_backward(starts: Any, columns: Any, values: Any, dense: Any, dy: Any) -> Any:
    d_values, d_dense = np.empty_like(values), np.zeros_like(dense)
    for i in range(starts.shape[0] - 1):
        for k in range(starts[i], starts[i + 1]):
            value, row, total = values[k], columns[k], np.float32(0)
            for j in range(dense.shape[1]):
                total += dy[i, j] * dense[row, j]
                d_dense[row, j] += value * dy[i, j]
            d_values[k] = total
    return d_values, d_dense


FORWARD = {
    function.__name__: function
    for function in (
        rms_norm, rotary_embedding, masked_softmax, embedding_bag, depthwise_convolution, heat,
        kmeans_step, edit_distance, sparse_product,
    )
}  # fmt: skip
BACKWARD = {
    "rms_norm": rms_norm_backward,
    "rotary_embedding": rotary_embedding_backward,
    "embedding_bag": embedding_bag_backward,
    "heat": heat_backward,
    "sparse_product": sparse_product_backward,
}
