"""Builds kernels for ``reduce``, ``accumulate`` and ``at`` of a function of two numbers: chains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from minitvm.runtime.dtype import DType
from minitvm.te.operation import var
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import as_expr
from minitvm.tir.ir_builder import IRBuilder, create
from minitvm.tir.stmt import FuncAttrs, PrimFunc


class Kind(Enum):
    """The kinds of chains, which differ in the place of the previous result."""

    REDUCE = "in one place"
    ACCUMULATE = "before it"
    UPDATE = "in its own place"


def chain(function: Callable[..., Any], dtypes: Sequence[DType], name: str, kind: Kind) -> PrimFunc:
    """The loop that takes each element of a vector together with the result before it::

        REDUCE                      ACCUMULATE                  UPDATE

        last = first[()]            last = first[()]            for i in range(n):
        for i in range(n):          for i in range(n):              y[i] = f(y[i], x[i])
            last = f(last, x[i])        last = f(last, x[i])
        first[()] = last                y[i] = last

    The elements are taken in order: the function need not be associative.

    Parameters
    ----------
    function
        The function of two numbers.
    dtypes
        The dtypes of its parameters; the first is also the dtype of the result.
    name
        The kernel's name.
    kind
        The kind of loop.

    >>> print(chain(lambda a, b: a + b, [DType.of("float32")] * 2, "plus", Kind.REDUCE))
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
    start, source, target = map(program.buffer_ptr, (first, x, y))
    if kind is Kind.UPDATE:
        with program.for_range(0, n) as i:
            before = program.let("before", target[i])
            target[i] = as_expr(function(before, source[i])).astype(own)
        return _function((y, x), program, name)
    last = program.allocate(own, 1, "last")
    last[0] = start[()]
    with program.for_range(0, n) as i:
        # The previous result has a name: a store that adds to the element which it overwrites could
        # be reordered.
        before = program.let("before", last[0])
        last[0] = as_expr(function(before, source[i])).astype(own)
        if kind is Kind.ACCUMULATE:
            target[i] = last[0]
    if kind is Kind.ACCUMULATE:
        return _function((first, x, y), program, name)
    start[()] = last[0]
    return _function((first, x), program, name)


def _function(buffers: Any, program: IRBuilder, name: str) -> PrimFunc:
    """A function with a handle as parameter for each buffer."""
    attrs = FuncAttrs(has_plain_entry=True)
    return PrimFunc(buffers, program.get(), name=name, attrs=attrs)
