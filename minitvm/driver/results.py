"""The results of a compiled function that makes its own outputs: which arguments it writes, and how
their shapes follow from the inputs."""

from __future__ import annotations

from collections.abc import Iterable

from minitvm.arith.effects import written_parameters
from minitvm.codegen.packed_abi import arg_names
from minitvm.runtime.results import Extent, Op, Result, Results, Step
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, BufferLoad, BufferRef, PrimExpr, Var
from minitvm.tir.functor import walk_once
from minitvm.tir.stmt import BufferStore, PrimFunc

_OPERATIONS: dict[type, Op] = {
    e.Add: Op.ADD,
    e.Sub: Op.SUBTRACT,
    e.Mul: Op.MULTIPLY,
    e.FloorDiv: Op.FLOOR_DIVIDE,
    e.FloorMod: Op.FLOOR_MOD,
    e.Max: Op.MAX,
    e.Min: Op.MIN,
}


def results_of_program(func: PrimFunc) -> Results:
    """The results of a function.

    Raises
    ------
    TypeError
        When the function writes nothing, or reads an argument that it later writes.
    ValueError
        When the inputs don't determine an output's shape or strides.

    >>> from minitvm import lower, te
    >>> n = te.var("n")
    >>> X = te.placeholder((n, 4), name="X")
    >>> Y = te.compute((n + 1,), lambda i: X[0, 0] * 2.0, name="Y")
    >>> results_of_program(lower(te.create_schedule(Y.op), [X, Y], name="f")["f"]).outputs
    (1,)
    """
    params = func.arguments
    names, written = arg_names(func), written_parameters(func)
    if not written:
        raise TypeError(f"{func.name}: expected a function that writes an argument, got none")
    changed = [] if func.attrs.outputs is not None else _changed(func, written)
    if changed:
        listed = ", ".join(f"'{buffer.name}'" for buffer in params if buffer in changed)
        raise TypeError(
            f"{func.name}: expected outputs that are written before they are read, got {listed}, "
            "which it changes: call the function itself, with an array for each argument"
        )
    sources = _sources(params, written)
    results = [
        _result(func.name, position, param, sources)
        for position, param in enumerate(params)
        if isinstance(param, Buffer) and param in written
    ]
    return Results(
        func.name,
        names,
        tuple(param.dtype for param in params),
        tuple(param.ndim if isinstance(param, Buffer) else -1 for param in params),
        tuple(i for i, param in enumerate(params) if param not in written),
        tuple(results),
    )


def _sources(params: Iterable[Buffer | Var], written: Iterable[Buffer]) -> dict[Var, Step]:
    """For each variable that an input determines, the place where a call finds its value."""
    found: dict[Var, Step] = {}
    for position, param in enumerate(params):
        if isinstance(param, Var):
            found[param] = Step(Op.SCALAR, position)
        elif param not in written:
            for dim, extent in enumerate(param.shape):
                if isinstance(extent, Var):
                    found.setdefault(extent, Step(Op.EXTENT, position, dim))
    return found


def _result(name: str, position: int, buffer: Buffer, sources: dict[Var, Step]) -> Result:
    where = f"{name}: output {position} '{buffer.name}'"
    if not buffer.layout and any(not isinstance(stride, Var) for stride in buffer.strides):
        listed = ", ".join(map(str, buffer.strides))
        raise ValueError(
            f"{where}: expected a compact output, got one declared with the strides ({listed}): "
            "call the function itself, with an array of those"
        )
    return Result(
        position,
        tuple(tuple(_steps(where, extent, sources)) for extent in buffer.shape),
        max(buffer.dtype.element.itemsize, buffer.data_alignment),
        buffer.layout == "left",
    )


def _steps(where: str, extent: PrimExpr, sources: dict[Var, Step]) -> Extent:
    """The steps that compute an extent."""
    match extent:
        case e.IntImm(value=value):
            return (Step(Op.CONSTANT, value),)
        case Var() if extent in sources:
            return (sources[extent],)
        case e.Cast(value=inner):
            return _steps(where, inner, sources)
    op = _OPERATIONS.get(type(extent))
    if op is None or not isinstance(extent, e.Arithmetic):
        raise ValueError(
            f"{where}: expected a shape that follows from the shapes of the inputs, got {extent}: "
            "call the function itself, with an array of the shape that is meant"
        )
    left, right = (_steps(where, side, sources) for side in (extent.a, extent.b))
    return (*left, *right, Step(op))


def _changed(func: PrimFunc, written: Iterable[Buffer]) -> set[Buffer]:
    """The parameters whose first access is a read."""
    changed: set[Buffer] = set()
    new = set(written)
    for node in walk_once(func.body):
        if isinstance(node, BufferStore) and node.buffer in new:
            new.discard(node.buffer)
            parts = (node.value, *node.indices)
            if any(
                isinstance(x, BufferLoad) and x.buffer is node.buffer for x in walk_once(*parts)
            ):
                changed.add(node.buffer)
        elif isinstance(node, BufferLoad) and node.buffer in new:
            new.discard(node.buffer)
            changed.add(node.buffer)
        elif isinstance(node, BufferRef):
            new.discard(node.buffer)
    return changed
