"""Reducers: functions that combine the values along a reduction axis into one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.tir import expr, op
from minitvm.tir.described import check_takes
from minitvm.tir.expr import (
    CommReducer,
    IterType,
    IterVar,
    PrimExpr,
    Reduce,
    Var,
    as_condition,
    as_expr,
    as_name,
    as_tuple,
    const,
    described,
    naming,
    valued,
)
from minitvm.tir.functor import Node, walk_once


def comm_reducer(
    fcombine: Callable[[Any, Any], Any], fidentity: Callable[..., Any], name: str = "reduce"
) -> Callable[..., Any]:
    """A reducer: a function that combines the values of an expression along axes.

    Parameters
    ----------
    fcombine : function of two values, or two tuples of values
        Combines them into one; commutative and associative. It may depend on the data axes of the
        tensor that is computed, and so may `fidentity`.
    fidentity : function of the dtype, or of the dtypes of a tuple
        The identity: the value, or tuple of values, that leaves the other operand of a combination
        as it is.
    name : str
        The reducer's, in messages.

    Returns
    -------
    function ``(expr, axis, where=None, init=None)``
        `expr` is an expression, or a tuple for a reducer of tuples, which then returns a tuple;
        `axis` a reduction axis or a list of them; `where` is the condition under which an element
        counts; `init` is the initial value in place of the identity. Called with expressions only,
        as in ``te.max(a, b)``, the function combines these expressions.

    >>> from minitvm import te
    >>> mysum = comm_reducer(lambda x, y: x + y, lambda t: te.const(0, t), name="mysum")
    >>> A, k = te.placeholder((4, 3), name="A"), te.reduce_axis((0, 3), "k")
    >>> te.compute((4,), lambda i: mysum(A[i, k], axis=k), name="B").op.reduce_axis
    (iter_var(k, range(min=0, ext=3)),)
    """

    with naming("comm_reducer"):
        as_name(name)

    def reduce_over(source: Any, axis: Any, where: Any = None, init: Any = None) -> Any:
        several = isinstance(source, (tuple, list))
        with naming(name):
            sources = tuple(map(_number, as_tuple(source)))
            condition = const(True) if where is None else as_condition(where)
        if not sources:
            raise CompileError(f"{name}: expected values to combine, got none")
        with naming(name):
            combiner = _combiner(fcombine, fidentity, [each.dtype for each in sources], several)
        axes = tuple(_reduce_axis(name, each) for each in as_tuple(axis))
        if not axes or len(set(axes)) < len(axes):
            raise CompileError(f"{name}: expected reduce axes, each once, got {list(axes)}")
        axes = _outer_first(axes)
        begin = () if init is None else _initial(name, as_tuple(init), sources)
        _check_fixed(name, axes, (*combiner.result, *combiner.identity, *begin))
        results = tuple(
            Reduce(combiner, sources, axes, condition, i, begin) for i in range(len(sources))
        )
        return results if several else results[0]

    def reducer(expr: Any, *args: Any, **named: Any) -> Any:
        # `axis=0` is a mistake, where `te.max(x, 0)` is the greater of two values.
        if named or (args and isinstance(args[0], (IterVar, list, tuple))):
            return reduce_over(expr, *args, **named)
        if not args:
            raise CompileError(
                f"{name}: expected axis=, or several values to combine, got one: write "
                f"k = te.reduce_axis((0, n)) and te.{name}(x[i, k], axis=k)"
            )
        with naming(name):
            return functools.reduce(fcombine, args, expr)

    for function in (reducer, reduce_over):  # for the texts of Python's errors
        function.__name__ = function.__qualname__ = name
    reducer.__doc__ = f"The reducer {name!r}: see :func:`comm_reducer`."
    return reducer


def _combiner(
    fcombine: Callable[[Any, Any], Any],
    fidentity: Callable[..., Any],
    dtypes: list[DType],
    several: bool,
) -> CommReducer:
    """The combination of values of some dtypes."""
    for what, function in (("fcombine", fcombine), ("fidentity", fidentity)):
        if not callable(function):
            raise CompileError(
                f"comm_reducer: expected {what} to be a function, got {described(function)}"
            )
    names = [*signature(fcombine).parameters]
    if len(names) != 2:
        raise CompileError(
            f"comm_reducer: expected fcombine of two values, got one of {len(names)}"
        )
    check_takes(
        f"comm_reducer: expected fidentity of {len(dtypes)} dtypes, one for each combined value",
        fidentity,
        *dtypes,
    )
    lhs, rhs = (_operands(each, dtypes, several) for each in names)
    result = fcombine(lhs, rhs) if several else fcombine(lhs[0], rhs[0])
    identity = fidentity(*dtypes)
    return CommReducer(
        lhs,
        rhs,
        _of_dtypes("fcombine", result, dtypes),
        _of_dtypes("fidentity", identity, dtypes),
    )


def _number(value: Any) -> PrimExpr:
    made = as_expr(value)
    if made.dtype.is_handle:
        raise CompileError(f"expected a number, got {made} of {made.dtype}")
    return made


def _operands(name: str, dtypes: list[DType], several: bool) -> tuple[Var, ...]:
    return tuple(Var(f"{name}_{i}" if several else name, t) for i, t in enumerate(dtypes))


def _of_dtypes(what: str, values: Any, dtypes: list[DType]) -> tuple[PrimExpr, ...]:
    """The result of a user's function, checked against the dtypes that are reduced."""
    made = as_tuple(values)
    if len(made) != len(dtypes):
        raise CompileError(
            f"comm_reducer: expected {what} to return {len(dtypes)} values, got {len(made)}"
        )
    return tuple(
        _of_dtype(f"comm_reducer: {what}", *each) for each in zip(made, dtypes, strict=True)
    )


def _of_dtype(where: str, value: Any, dtype: DType) -> PrimExpr:
    """An expression of `dtype`; a Python number is taken as one."""
    with naming(where):
        made = valued(dtype, value)
    if made.dtype != dtype:
        raise CompileError(f"{where}: expected a value of {dtype}, got one of {made.dtype}")
    return made


def _reduce_axis(name: str, axis: Any) -> IterVar:
    if isinstance(axis, IterVar) and axis.iter_type == IterType.COMM_REDUCE:
        return axis
    got = f"axis {axis.name}" if isinstance(axis, (IterVar, Var)) else repr(axis)
    raise CompileError(
        f"{name}: expected axes made by te.reduce_axis, got {got}: write "
        f"k = te.reduce_axis((0, n)) and te.{name}(x[i, k], axis=k)"
    )


def _outer_first(axes: tuple[IterVar, ...]) -> tuple[IterVar, ...]:
    """The axes in their order, but each behind those that its range depends on."""
    left, made = list(axes), list[IterVar]()
    while left:
        names = {each.var for each in left}
        first = next(each for each in left if names.isdisjoint(_names_in_range(each)))
        left.remove(first)
        made.append(first)
    return tuple(made)


def _names_in_range(axis: IterVar) -> Iterator[Node]:
    return walk_once(*(() if axis.dom is None else (axis.dom.min, axis.dom.extent)))


def _initial(
    name: str, values: tuple[Any, ...], sources: tuple[PrimExpr, ...]
) -> tuple[PrimExpr, ...]:
    if len(values) != len(sources):
        raise CompileError(f"{name}: expected {len(sources)} values of init, got {len(values)}")
    return tuple(
        _of_dtype(f"{name}: init", value, source.dtype)
        for value, source in zip(values, sources, strict=True)
    )


def _check_fixed(name: str, axes: tuple[IterVar, ...], parts: tuple[PrimExpr, ...]) -> None:
    """Checks that a combination doesn't depend on reduction axes: partial results are combined in
    any order, and belong to no iteration of these."""
    for axis in axes:
        for part in parts:
            if any(node is axis.var for node in walk_once(part)):
                raise CompileError(
                    f"{name}: expected a combination, an identity and an init that are the same "
                    f"all along {axis.name}, which is reduced over, got {part}: let the combined "
                    f"values depend on {axis.name}"
                )


def _greatest(dtype: DType) -> PrimExpr:
    """The greatest value of a dtype, infinity for floats."""
    return op.infinity(dtype) if dtype.is_float else op.max_value(dtype)


def _least(dtype: DType) -> PrimExpr:
    """The least value of a dtype, minus infinity for floats."""
    return -op.infinity(dtype) if dtype.is_float else op.min_value(dtype)


sum = comm_reducer(expr.add, lambda dtype: const(0, dtype), name="sum")
prod = comm_reducer(expr.multiply, lambda dtype: const(1, dtype), name="prod")
min = comm_reducer(expr.minimum, _greatest, name="min")
max = comm_reducer(expr.maximum, _least, name="max")
