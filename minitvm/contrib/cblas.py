"""Products of matrices by numpy's BLAS: classic ``tvm.contrib.cblas``.

Importing this module registers the packed function ``"tvm.contrib.cblas.matmul"``, as the classic
library has it. A product written with ``te.compute`` needs no call out of the program, and is
mostly faster.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minitvm.runtime.registry import register_func
from minitvm.te.operation import extern
from minitvm.te.tensor import Tensor
from minitvm.tir.op import call_packed


@register_func("tvm.contrib.cblas.matmul", override=True)
def _matmul(a: Any, b: Any, c: Any, transa: bool, transb: bool) -> None:
    x, y, z = (np.from_dlpack(each) for each in (a, b, c))
    np.matmul(x.T if transa else x, y.T if transb else y, out=z)


def matmul(
    lhs: Tensor, rhs: Tensor, transa: bool = False, transb: bool = False, **kwargs: Any
) -> Tensor:
    """The product of two matrices by BLAS, each transposed on demand.

    >>> from minitvm import te
    >>> matmul(te.placeholder((4, 8)), te.placeholder((6, 8)), transb=True).shape
    (4, 6)
    """
    rows = lhs.shape[1] if transa else lhs.shape[0]
    columns = rhs.shape[0] if transb else rhs.shape[1]
    options = {"name": "C", **kwargs}
    made: Tensor = extern(
        (rows, columns),
        [lhs, rhs],
        lambda ins, outs: call_packed(
            "tvm.contrib.cblas.matmul", ins[0], ins[1], outs[0], transa, transb
        ),
        **options,
    )
    return made
