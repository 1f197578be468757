"""The outputs of a built function as results: their shapes and dtypes follow from the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, final

from minitvm.runtime.dtype import DType
from minitvm.runtime.module import Module
from minitvm.runtime.packed_func import Function
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, PrimExpr, Var
from minitvm.tir.stmt import PrimFunc
from minitvm.tir.tree import walk

# Shape arithmetic on whatever numbers a framework has for extents, symbols included.
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    e.Add: lambda a, b: a + b,
    e.Sub: lambda a, b: a - b,
    e.Mul: lambda a, b: a * b,
    e.FloorDiv: lambda a, b: a // b,
    e.FloorMod: lambda a, b: a % b,
    e.Max: max,
    e.Min: min,
}
_KNOWN = (e.IntImm, e.Cast, *_ARITHMETIC)


@final
@record(eq=False)
class Results:
    """A built function as one that returns its outputs.

    Attributes
    ----------
    name
        The function's name.
    inputs, outputs
        The positions of its arguments that are read only, and of those that it writes.
    params
        For each argument its buffer, or the variable of a scalar.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    names: tuple[str, ...]
    params: tuple[Buffer | Var, ...]
    function: Any = field(repr=False)

    def dtype(self, position: int) -> DType:
        """The dtype of an argument."""
        return self.params[position].dtype

    def is_scalar(self, position: int) -> bool:
        return isinstance(self.params[position], Var)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The inputs by position.

        Raises
        ------
        TypeError
            When the arguments don't fit the function's inputs.
        """
        names = [self.names[position] for position in self.inputs]
        for name in kwargs:
            if name not in names[len(args) :]:
                known = ", ".join(names[len(args) :]) or "none"
                raise TypeError(f"{self.name}: expected inputs by name among {known}, got '{name}'")
        given = dict(zip(names, args, strict=False)) | dict(kwargs)
        if len(args) > len(names) or len(given) < len(names):
            raise TypeError(
                f"{self.name}: expected {len(names)} inputs ({', '.join(names)}), got "
                f"{len(args) + len(kwargs)}: what it writes is returned"
            )
        return [given[name] for name in names]

    def arguments(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """The arguments of a call of the function."""
        placed = dict(zip((*self.inputs, *self.outputs), (*inputs, *outputs), strict=True))
        return [placed[position] for position in range(len(placed))]

    def returned(self, outputs: Sequence[Any]) -> Any:
        """The return value for a value of each output: the only one, or a tuple."""
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def shapes(self, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The shapes of the outputs for some inputs, arrays with a ``shape`` and numbers.

        Raises
        ------
        ValueError
            When an input has another rank, or the inputs don't determine the size of an output.

        >>> from minitvm import build, te
        >>> import numpy as np
        >>> n = te.var("n")
        >>> X = te.placeholder((n,), name="X")
        >>> Y = te.compute((n + 1, 2), lambda i, j: X[0] * 2.0, name="Y")
        >>> results_of(build(te.create_schedule(Y.op), [X, Y], name="f")).shapes([np.zeros(3)])
        [(4, 2)]
        """
        sizes = self._sizes(values)
        made = []
        for position in self.outputs:
            buffer = self.params[position]
            assert isinstance(buffer, Buffer)
            where = f"{self.name}: output {position} '{self.names[position]}'"
            made.append(tuple(_value(where, extent, sizes) for extent in buffer.shape))
        return made

    def extents(self, values: Sequence[Any]) -> Iterator[tuple[int, int, Any, Any]]:
        """The sizes of the inputs that something else determines: for each its argument, its axis,
        the expected size and the size found.

        Raises
        ------
        ValueError
            When an input has another rank.
        """
        sizes = self._sizes(values)
        for position, value in zip(self.inputs, values, strict=True):
            param = self.params[position]
            if isinstance(param, Var):
                continue
            for axis, (extent, found) in enumerate(zip(param.shape, value.shape, strict=True)):
                if sizes.get(extent) is not found and _is_determined(extent, sizes):
                    yield position, axis, _value(self.name, extent, sizes), found

    def _sizes(self, values: Sequence[Any]) -> dict[Var, Any]:
        sizes: dict[Var, Any] = {}
        for position, value in zip(self.inputs, values, strict=True):
            param = self.params[position]
            if isinstance(param, Var):
                sizes.setdefault(param, value)
                continue
            shape = tuple(value.shape)
            if len(shape) != param.ndim:
                raise ValueError(
                    f"{self.name}: argument {position} '{self.names[position]}': expected ndim == "
                    f"{param.ndim}, got {len(shape)}"
                )
            for extent, found in zip(param.shape, shape, strict=True):
                if isinstance(extent, Var):
                    sizes.setdefault(extent, found)
        return sizes


def results_of(function: Any) -> Results:
    """A function made by ``build`` (of a module, the first one) as one that returns its outputs.

    Raises
    ------
    TypeError
        For anything else, and for a function that writes nothing.
    """
    called = function.entry_func if isinstance(function, Module) else function
    lowered = getattr(getattr(called, "program", None), "lowered", None)
    if not isinstance(called, Function) or lowered is None:
        kind = type(function).__name__
        raise TypeError(
            f"expected a function of minitvm.build, which says what it writes, got {kind}"
        )
    func: PrimFunc = lowered[called.name]
    if not called.written:
        raise TypeError(f"{called.name}: expected a function that writes an argument, got none")
    params = tuple(func.buffer_map.get(param, param) for param in func.params)
    outputs = tuple(sorted(called.written))
    inputs = tuple(i for i in range(len(params)) if i not in called.written)
    return Results(called.name, inputs, outputs, called.arg_names, params, called)


def _is_determined(extent: PrimExpr, sizes: Mapping[Var, Any]) -> bool:
    """Whether an extent follows from known sizes by the arithmetic that :func:`_value` has."""
    return all(
        each in sizes if isinstance(each, Var) else isinstance(each, _KNOWN)
        for each in walk(extent)
    )


def _value(where: str, extent: PrimExpr, sizes: Mapping[Var, Any]) -> Any:
    """An extent, computed with the caller's numbers."""
    match extent:
        case e.IntImm(value=value):
            return value
        case Var() if extent in sizes:
            return sizes[extent]
        case e.Cast(value=inner):
            return _value(where, inner, sizes)
    make = _ARITHMETIC.get(type(extent))
    if make is None or not isinstance(extent, e.Arithmetic):
        raise ValueError(
            f"{where}: expected a shape that follows from the shapes of the inputs, got {extent}"
        )
    return make(_value(where, extent.a, sizes), _value(where, extent.b, sizes))
