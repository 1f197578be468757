"""prepack: an unchanging argument, converted once to the layout that a function reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minitvm.arith.analyzer import Analyzer
from minitvm.codegen.packed_abi import arg_names
from minitvm.driver.program import compiled_function
from minitvm.runtime.module import Module
from minitvm.runtime.ndarray import NDArray, as_ndarray, empty
from minitvm.runtime.packed_func import Function
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr, Var
from minitvm.tir.functor import substitute
from minitvm.tir.stmt import PrimFunc


def prepack(function: Module | Function, argument: str, array: Any) -> NDArray:
    """Converts an array to the layout that a function reads. The result is passed for an argument
    that was built with ``build(..., prepacked=[B])``, or that the schedule computes ahead
    (``compute_ahead``).

    Parameters
    ----------
    function
        The module that ``build`` returned, or one of its functions.
    argument
        The name of the argument.
    array
        The argument's value: an array (numpy, torch, DLPack) of the shape and dtype of the
        placeholder, of any strides. It is read, and not kept.

    Returns
    -------
    NDArray
        A new array. Its layout belongs to this function alone: it depends on the program and the
        target. So make the array where the function runs, and don't store it.

    Raises
    ------
    TypeError
        When `function` isn't compiled.
    ValueError
        When the function has no such argument; and, as at a call, for an array of another shape or
        dtype.

    >>> import numpy as np
    >>> import minitvm as tvm
    >>> from minitvm import te
    >>> A, B = te.placeholder((4, 8), name="A"), te.placeholder((8, 3), name="B")
    >>> k = te.reduce_axis((0, 8), name="k")
    >>> C = te.compute((4, 3), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    >>> f = tvm.build([C], [A, B, C], name="f", prepacked=[B])
    >>> packed = tvm.prepack(f, "B", np.ones((8, 3), "float32"))
    >>> c = np.empty((4, 3), "float32")
    >>> f(np.ones((4, 8), "float32"), packed, c)
    >>> c[0]
    array([8., 8., 8.], dtype=float32)
    """
    found = compiled_function(function)
    if found is None:
        raise TypeError(f"prepack: expected a function that build made, got {function!r}")
    entry, program = found
    func = program.lowered[entry.name]
    names, made_by = arg_names(func), func.attrs.prepacked
    known = {names[position]: name for position, name in made_by.items()}
    if argument not in known:
        listed = ", ".join(map(repr, known)) or "none"
        raise ValueError(
            f"{func.name}: prepack: expected an argument that was built as prepacked ({listed}), "
            f"got {argument!r}: name it in build(..., prepacked=[...])"
        )
    packing = program.lowered[known[argument]]
    packed = empty(_packed_shape(packing, array), _buffers(packing)[1].dtype)
    try:
        program.function(packing.name)(array, packed)
    except Exception as error:
        _rename(error, packing.name, f"{func.name}: prepack")
        raise
    return packed


def _rename(error: Exception, packing: str, shown: str) -> None:
    """Lets an error begin with the name of the user's function instead of the packing
    function's."""
    begin, argument = f"{packing}: ", "argument 0 "
    text = str(error)
    if text.startswith(begin):
        error.args = (f"{shown}: {text.removeprefix(begin).removeprefix(argument)}",)


def _buffers(packing: PrimFunc) -> list[e.Buffer]:
    return [packing.buffer_map[param] for param in packing.params]


def _packed_shape(packing: PrimFunc, array: Any) -> tuple[int, ...]:
    """The shape of the packed array; where it is symbolic, the shape of the array binds it."""
    source, packed = _buffers(packing)
    known = [e.const_int(extent) for extent in packed.shape]
    if None in known:
        view = as_ndarray(array)
        found = () if view is None else view.shape
        sizes = {
            dim: e.const(size, dim.dtype)
            for dim, size in zip(source.shape, found, strict=False)
            if isinstance(dim, Var)
        }
        known = [_extent(extent, sizes) for extent in packed.shape]
    return tuple(each or 0 for each in known)


def _extent(extent: PrimExpr, sizes: Mapping[Var, PrimExpr]) -> int | None:
    """None if an array of another number of dimensions was given, which the call then refuses."""
    return e.const_int(Analyzer().simplify(substitute(extent, sizes)))
