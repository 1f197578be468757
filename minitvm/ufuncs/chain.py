"""Chains: ``reduce`` and ``accumulate`` of a function of two numbers, in order, as one kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minitvm.runtime.dtype import DType
from minitvm.te.operation import var
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import as_expr
from minitvm.tir.ir_builder import create
from minitvm.tir.stmt import PrimFunc


def chain(
    function: Callable[..., Any], dtypes: Sequence[DType], name: str, *, keeps: bool
) -> PrimFunc:
    """The loop that takes each element of a vector together with the result before it::

        last = first[()]                    last = first[()]
        for i in range(n):                  for i in range(n):
            last = f(last, x[i])                last = f(last, x[i])
        first[()] = last                        y[i] = last

    Parameters
    ----------
    function
        The function of two numbers.
    dtypes
        Those of its parameters; the first is that of the result, too.
    name
        The kernel's.
    keeps
        Whether all results are kept, as on the right. The elements are taken in order in any case:
        the function need not be associative.

    >>> print(chain(lambda a, b: a + b, [DType.of("float32")] * 2, "plus", keeps=False))
    def plus(first: float32[], x: float32[n]):
        last = allocate(float32[1])
        last[0] = first[()]
        for i in range(n):
            before = last[0]
            last[0] = before + x[i]
        first[()] = last[0]
    """
    n, (own, other) = var("n"), dtypes
    first, x = decl_buffer((), own, "first"), decl_buffer((n,), other, "x")
    y = decl_buffer((n,), own, "y")
    program = create()
    last = program.allocate(own, 1, "last")
    start, source, target = map(program.buffer_ptr, (first, x, y))
    last[0] = start[()]
    with program.for_range(0, n) as i:
        # By a variable: a sum that a store adds to what it overwrites could be taken in any order.
        before = program.let("before", last[0])
        last[0] = as_expr(function(before, source[i])).astype(own)
        if keeps:
            target[i] = last[0]
    if not keeps:
        start[()] = last[0]
    params: Any = (first, x, y) if keeps else (first, x)  # buffers, which it makes handles for
    return PrimFunc(params, program.get(), name=name)
