"""A sparse matrix in compressed rows (CSR) times a dense one, as loops whose bounds are data.

python examples/operators/sparse_product.py
"""

import importlib.util
import timeit
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

import minitvm
from minitvm import te
from minitvm.te.hybrid import output_tensor, parallel


@te.hybrid.script
def rows_of_products(starts, columns, values, dense):  # type: ignore[no-untyped-def]
    out = output_tensor((starts.shape[0] - 1, dense.shape[1]), dense.dtype)
    for i in parallel(starts.shape[0] - 1):
        for k in range(starts[i], starts[i + 1]):
            for j in range(dense.shape[1]):
                out[i, j] += values[k] * dense[columns[k], j]
    return out


@minitvm.jit
def sparse_product(
    starts: Annotated[te.Tensor, "int32[_]"],
    columns: Annotated[te.Tensor, "int32[nnz]"],
    values: Annotated[te.Tensor, "nnz"],
    dense: Annotated[te.Tensor, "n p"],
) -> Any:
    """Row i has the elements from ``starts[i]`` to ``starts[i + 1]``; the bounds are checked."""
    return rows_of_products(starts, columns, values, dense)


@te.hybrid.script
def scattered_rows(starts, columns, values, adjoint, dense):  # type: ignore[no-untyped-def]
    d_values = output_tensor(values.shape, values.dtype)
    d_dense = output_tensor(dense.shape, dense.dtype)
    for i in range(starts.shape[0] - 1):
        for k in range(starts[i], starts[i + 1]):
            for j in range(dense.shape[1]):
                d_values[k] += adjoint[i, j] * dense[columns[k], j]
                d_dense[columns[k], j] += values[k] * adjoint[i, j]
    return d_values, d_dense


@minitvm.jit
def backward(
    starts: Annotated[te.Tensor, "int32[_]"],
    columns: Annotated[te.Tensor, "int32[nnz]"],
    values: Annotated[te.Tensor, "nnz"],
    dense: Annotated[te.Tensor, "n p"],
    adjoint: Annotated[te.Tensor, "_ p"],
) -> Any:
    """The adjoints of the values and of the dense matrix; loops have no `te.gradient`."""
    return scattered_rows(starts, columns, values, adjoint, dense)


def milliseconds(call: Callable[[], object]) -> float:
    return 1e3 * min(timeit.repeat(call, number=3, repeat=10)) / 3


def main() -> None:
    minitvm.set_num_threads(1)  # as the peer
    rng = np.random.default_rng(0)
    matrix = np.where(rng.random((2000, 1000)) < 0.01, rng.standard_normal((2000, 1000)), 0)
    matrix = matrix.astype(np.float32)
    rows, columns = (each.astype(np.int32) for each in np.nonzero(matrix))
    starts = np.searchsorted(rows, np.arange(len(matrix) + 1)).astype(np.int32)
    values = matrix[rows, columns]
    dense = rng.standard_normal((1000, 64), dtype=np.float32)
    product = sparse_product(starts, columns, values, dense)
    np.testing.assert_allclose(product, matrix @ dense, rtol=1e-4, atol=1e-4)

    adjoint = rng.standard_normal(product.shape, dtype=np.float32)
    d_values, d_dense = backward(starts, columns, values, dense, adjoint)
    np.testing.assert_allclose(d_dense, matrix.T @ adjoint, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(d_values, (adjoint @ dense.T)[rows, columns], rtol=1e-4, atol=1e-4)

    if importlib.util.find_spec("torch"):
        import torch

        torch.set_num_threads(1)

        arrays = [torch.from_numpy(each) for each in (starts, columns, values, dense)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's: CSR is in beta
            csr = torch.sparse_csr_tensor(*arrays[:3], matrix.shape)

        def peer() -> Any:
            return csr @ arrays[3]

        torch.testing.assert_close(sparse_product(*arrays), peer(), rtol=1e-4, atol=1e-4)
        ours, theirs = milliseconds(lambda: sparse_product(*arrays)), milliseconds(peer)
        print(f"2000 x 1000, 1 % of it, times 1000 x 64: {ours:.3f} ms, torch {theirs:.3f} ms")
    else:
        ours = milliseconds(lambda: sparse_product(starts, columns, values, dense))
        theirs = milliseconds(lambda: matrix @ dense)
        print(f"2000 x 1000, 1 % of it: {ours:.3f} ms, numpy's of all {theirs:.3f} ms; ", end="")
        print("torch: not installed, left out")


if __name__ == "__main__":
    main()
