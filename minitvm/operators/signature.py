"""The signature of a call: the properties of its arguments for which a program is built."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from minitvm.operators.arrays import (
    Described,
    described,
    is_symbol,
    library_of,
    why_refused,
)
from minitvm.operators.extents import Extents, extents_of
from minitvm.operators.parameters import Kind, Parameter
from minitvm.runtime.dtype import FLOAT32, FLOAT64, INT32, INT64, DType
from minitvm.runtime.frameworks import is_a, is_tracer
from minitvm.runtime.record import record
from minitvm.tir.described import shown

# The dtype of a number: that of a literal, or the wider dtype if an array has that.
_NARROW = {float: FLOAT32, int: INT32}
_WIDE = {float: FLOAT64, int: INT64}


@final
@record(eq=False)
class Signature:
    """The properties of a call's arguments for which a program is built.

    Attributes
    ----------
    values
        The argument for each parameter.
    dtypes
        The dtypes of the arrays and of the numbers, by their parameters' positions. The values of
        all other arguments are parts of the program.
    extents
        The extents of the arrays.
    key
        All properties on which the program depends, except for the values of extents.
    """

    values: Sequence[Any]
    dtypes: Mapping[int, DType]
    extents: Extents
    key: tuple[object, ...]


def signature_of(
    name: str,
    parameters: Sequence[Parameter],
    values: Sequence[Any],
    *,
    variable: frozenset[str] = frozenset(),
    broadcast: bool = False,
) -> Signature:
    """The signature of a call with a value for each parameter.

    Parameters
    ----------
    variable
        The letters that are variables for every extent.
    broadcast
        Whether leading dimensions broadcast.

    Raises
    ------
    TypeError, ValueError
        When a parameter doesn't take its value; when arrays belong to different libraries.
    """
    arrays: dict[int, Described] = {}
    numbers: dict[int, type] = {}
    constants: dict[int, object] = {}
    for position, (parameter, value) in enumerate(zip(parameters, values, strict=True)):
        where = f"{name}: {parameter}"
        kind = _kind(where, parameter, value)
        if kind is Kind.TENSOR:
            arrays[position] = _array(where, parameter, value)
        elif kind is Kind.NUMBER:
            numbers[position] = parameter.number or _number(value)
        else:
            _check_value(where, parameter, value)
            constants[position] = frozen(where, value)
    _check_libraries(name, parameters, {i: values[i] for i in arrays})
    present = {each.dtype for each in arrays.values()}
    dtypes: dict[int, DType] = {}
    for position in sorted({*arrays, *numbers}):
        declared = parameters[position].dtype
        if position in arrays:
            dtypes[position] = arrays[position].dtype
        else:
            number = float if issubclass(numbers[position], float | np.floating) else int
            wide = _WIDE[number]
            dtypes[position] = declared or (wide if wide in present else _NARROW[number])
    extents = extents_of(name, parameters, arrays, broadcast)
    key = (tuple(dtypes.items()), tuple(constants.items()), extents.pattern(variable))
    return Signature(values, dtypes, extents, key)


def _kind(where: str, parameter: Parameter, value: Any) -> Kind:
    """The kind of a value: an array, a number, or a value that is part of the program."""
    kind = parameter.kind
    if kind is Kind.STATIC or (value is None and parameter.optional):
        return Kind.STATIC
    is_number = isinstance(value, int | float | np.integer | np.floating) or is_symbol(value)
    if kind is Kind.NUMBER and is_tracer(value) and value.shape == ():
        return Kind.NUMBER
    if kind is Kind.TENSOR or not (is_number or kind is Kind.NUMBER):
        return Kind.TENSOR
    if not is_number or isinstance(value, bool):
        is_array = getattr(value, "shape", None) == ()
        advice = ": pass its item(), or annotate an array of rank 0, ''" if is_array else ""
        raise TypeError(f"{where}: expected a number, got {type(value).__name__}{advice}")
    if parameter.number is int and not issubclass(_number(value), int | np.integer):
        raise TypeError(f"{where}: expected an int, got the float {value}")
    return Kind.NUMBER


def _check_value(where: str, parameter: Parameter, value: Any) -> None:
    """Checks a value that is part of the program against the parameter's annotation."""
    values = parameter.values
    if values is None or (value is None and parameter.optional):
        return
    if isinstance(values, type):
        if not isinstance(value, (bool, np.bool_) if values is bool else values):
            raise TypeError(f"{where}: expected a {values.__name__}, got {shown(value)}")
    elif not any(type(each) is type(value) and each == value for each in values):
        listed = " or ".join(map(repr, values))
        raise ValueError(f"{where}: expected {listed}, got {shown(value)}")


def _number(value: Any) -> type:
    if is_symbol(value):
        return int if type(value).__name__ == "SymInt" else float
    return type(value)


def _array(where: str, parameter: Parameter, value: Any) -> Described:
    if isinstance(value, Described):
        found = value
    else:
        if library_of(value) is None:
            raise TypeError(f"{where}: {_no_array(parameter, value)}")
        reason = why_refused(value)
        if reason is not None:
            raise TypeError(f"{where}: {reason}")
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            kind = type(value).__name__
            raise TypeError(
                f"{where}: expected an array with a shape and a dtype, got {kind}: pass "
                "np.from_dlpack(x)"
            )
        try:
            found = described(value)
        except TypeError as error:
            raise TypeError(f"{where}: {error}") from None
    if not parameter.shape.takes_dtype(found.dtype):
        wanted = " or ".join(map(str, parameter.shape.dtypes))
        raise TypeError(f"{where}: expected dtype {wanted}, got {found.dtype}")
    return found


def _no_array(parameter: Parameter, value: Any) -> str:
    kind = type(value).__name__
    is_array = isinstance(value, list | tuple | int | float | np.generic | memoryview | array)
    is_array = is_array or hasattr(value, "__array__")
    advice = ": pass np.asarray(x)" if is_array else ""
    is_proxy = is_a(value, "torch.fx.proxy", "Proxy")
    if is_proxy:
        advice = ": torch.fx.wrap('the name') lets torch.fx.symbolic_trace record the call"
    if parameter.kind is Kind.TENSOR:
        return f"expected an array of shape {parameter.shape}, got {kind}{advice}"
    if not is_array and not is_proxy:
        advice = f": static={parameter.name!r} has the program made for its value"
    return f"expected an array or a number, got {kind}{advice}"


def frozen(where: str, value: Any) -> object:
    """A value as a part of a key. Values that compare equal but aren't the same, such as 1 and
    True, have different keys."""
    try:
        hash(value)
    except TypeError:
        kind = type(value).__name__
        advice = ": pass a tuple" if isinstance(value, list) else ""
        if is_tracer(value):
            advice = ": name the parameter in static_argnames of jax.jit, too"
        raise TypeError(
            f"{where}: expected a value that can be hashed, since the program is made for it, got "
            f"{kind}{advice}"
        ) from None
    if isinstance(value, tuple):
        return (type(value), tuple(frozen(where, each) for each in value))
    return (type(value), value.hex() if isinstance(value, float) else value)


def _check_libraries(name: str, parameters: Sequence[Parameter], arrays: Mapping[int, Any]) -> None:
    first: tuple[int, str | None] | None = None
    for position, given in arrays.items():
        if isinstance(given, Described):
            continue
        library = library_of(given)
        if first is None:
            first = position, library
        elif library != first[1]:
            raise TypeError(
                f"{name}: {parameters[position]}: expected an array of {first[1]}, as "
                f"{parameters[first[0]]} is, got one of {library}: convert it"
            )
