"""``ufunc`` and ``gufunc``: expressions as ufuncs of numpy, and built functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minitvm.contrib.built import Built
from minitvm.driver.build import build
from minitvm.runtime.dtype import DType
from minitvm.te.operation import compute, placeholder, var
from minitvm.te.schedules.schedule import create_schedule
from minitvm.te.tensor import Tensor
from minitvm.te.vmap import vmap
from minitvm.tir.expr import Buffer, IntImm, Var
from minitvm.tir.structural_equal import structural_equal
from minitvm.ufuncs.loop import Loop, make_ufunc
from minitvm.ufuncs.signature import Signature, parse_signature

FLOATS = ("float32", "float64")
_Types = Sequence[str | Sequence[str]]


def ufunc(
    *, types: _Types = FLOATS, identity: int | None = None, name: str | None = None
) -> Callable[[Callable[..., Any]], np.ufunc]:
    """Makes a ufunc of numpy from a Python function of numbers, written with ``te``.

    The ufunc has all that numpy's have: broadcasting, ``out=``, ``where=``, casts, ``reduce``,
    ``accumulate``, ``outer`` and ``at``. Arrays are computed by one call of compiled code.

    Parameters
    ----------
    types
        The dtypes for which code is built: each one for all parameters, or one for each. numpy
        converts other arguments to the first that holds them.
    identity
        What ``reduce`` begins with: 0, 1, -1, or None for the first element.
    name
        By default the function's own.

    Raises
    ------
    CompileError
        When the function returns no number.

    >>> from minitvm import te
    >>> @ufunc()
    ... def logaddexp(x, y):
    ...     return te.log(te.exp(x) + te.exp(y))
    >>> logaddexp([0.0, 1.0], 0.0).round(3).tolist(), logaddexp.types
    ([0.693, 1.313], ['ff->f', 'dd->d'])
    """

    def make(function: Callable[..., Any]) -> np.ufunc:
        own = name or function.__name__
        count = len(inspect.signature(function).parameters)

        def program(inputs: list[Tensor], extent: Var) -> list[Tensor]:
            made = compute((extent,), lambda i: function(*(x[i] for x in inputs)), name=own)
            return [made] if isinstance(made, Tensor) else list(made)

        loops = []
        for dtypes in _each(own, types, count):
            extent = var("n")
            inputs = _placeholders(function, [(extent,)] * count, dtypes)
            loops.append(_built(own, inputs, program(inputs, extent)))
        outputs = len(loops[0].outputs)
        signature = Signature("", ((),) * count, ((),) * outputs)
        return _made(own, function, signature, loops, identity)

    return make


def gufunc(
    signature: str, *, types: _Types = FLOATS, name: str | None = None
) -> Callable[[Callable[..., Any]], np.ufunc]:
    """Makes a generalised ufunc of numpy from a Python function of tensors, written with ``te``.

    The function gets a tensor of the core dimensions for each input and returns the outputs. The
    ufunc computes a whole batch, of any leading dimensions, in one call of compiled code.

    Parameters
    ----------
    signature
        The core dimensions, as numpy writes them: ``"(m,k),(k,n)->(m,n)"``. A number is an extent.
    types
        As for :func:`ufunc`.
    name
        By default the function's own.

    Raises
    ------
    ValueError
        When the signature can't be read, or isn't that of the function.
    CompileError
        When a stage isn't written with ``te.compute``.

    >>> from minitvm import te
    >>> @gufunc("(n),(n)->()", types=["float64"])
    ... def dot(x, y):
    ...     k = te.reduce_axis((0, x.shape[0]))
    ...     return te.compute((), lambda: te.sum(x[k] * y[k], axis=k))
    >>> dot(np.ones((2, 3, 4)), np.arange(4)).tolist()
    [[6.0, 6.0, 6.0], [6.0, 6.0, 6.0]]
    """
    parsed = parse_signature(signature)

    def make(function: Callable[..., Any]) -> np.ufunc:
        own = name or function.__name__
        count = len(inspect.signature(function).parameters)
        if count != len(parsed.inputs):
            raise ValueError(
                f"{own}: expected a function of {len(parsed.inputs)} tensors, as '{signature}' has "
                f"inputs, got one of {count}"
            )
        loops = [_batched(own, function, parsed, dtypes) for dtypes in _each(own, types, count)]
        return _made(own, function, parsed, loops, None)

    return make


def function_gufunc(
    function: Any, signature: str | None = None, *, name: str | None = None
) -> np.ufunc:
    """A built function as a ufunc of numpy; :meth:`Function.gufunc`."""
    results = Built(function)
    own = name or results.name
    parsed = (
        Signature("", ((),) * len(results.inputs), ((),) * len(results.outputs))
        if signature is None
        else parse_signature(signature)
    )
    counts = (len(results.inputs), len(results.outputs))
    wanted = (len(parsed.inputs), len(parsed.outputs))
    if counts != wanted:
        raise ValueError(
            f"{own}: expected a signature of {counts[0]} inputs and {counts[1]} outputs, got "
            f"'{parsed.text}', of {wanted[0]} and {wanted[1]}"
        )
    return make_ufunc(own, str(function.__doc__), parsed, [_loop(results, parsed)], None)


def _made(
    name: str,
    function: Callable[..., Any],
    signature: Signature,
    loops: Sequence[Built],
    identity: int | None,
) -> np.ufunc:
    doc = inspect.getdoc(function) or ""
    return make_ufunc(name, doc, signature, [_loop(each, signature) for each in loops], identity)


def _each(name: str, types: _Types, count: int) -> list[tuple[DType, ...]]:
    """The dtypes of the inputs, for each loop."""
    made = []
    for each in [types] if isinstance(types, str) else types:
        dtypes = (each,) * count if isinstance(each, str) else tuple(each)
        if len(dtypes) != count:
            raise ValueError(f"{name}: types: expected a dtype, or {count} of them, got {each}")
        made.append(tuple(map(DType.of, dtypes)))
    if not made:
        raise ValueError(f"{name}: types: expected at least one dtype, got none")
    return made


def _placeholders(
    function: Callable[..., Any], shapes: Sequence[Any], dtypes: Sequence[DType]
) -> list[Tensor]:
    names = inspect.signature(function).parameters
    return [placeholder(*each) for each in zip(shapes, dtypes, names, strict=True)]


def _batched(
    name: str, function: Callable[..., Any], signature: Signature, dtypes: Sequence[DType]
) -> Built:
    """The function's program for a batch, built."""
    sizes: dict[str, Any] = {
        each: int(each) if each.isdigit() else var(each) for each in signature.names
    }
    shapes = [tuple(sizes[each] for each in dims) for dims in signature.operands]
    inputs = _placeholders(function, shapes[: len(signature.inputs)], dtypes)
    made = function(*inputs)
    outputs = list(made) if isinstance(made, tuple | list) else [made]
    expected = shapes[len(signature.inputs) :]
    if len(outputs) != len(expected) or not all(isinstance(each, Tensor) for each in outputs):
        raise ValueError(
            f"{name}: expected {len(expected)} tensors as the result, as '{signature.text}' has "
            f"outputs, got {made!r}"
        )
    for i, (output, shape) in enumerate(zip(outputs, expected, strict=True)):
        wanted = placeholder(shape).shape
        same = len(wanted) == len(output.shape) and all(
            structural_equal(*pair) for pair in zip(wanted, output.shape, strict=True)
        )
        if not same:
            raise ValueError(
                f"{name}: output {i}: expected shape {_listed(wanted)}, as in "
                f"'{signature.text}', got {_listed(output.shape)}"
            )
    batch_outputs, batch_inputs = vmap(outputs, inputs, var("batch"))
    return _built(name, batch_inputs, batch_outputs)


def _listed(shape: Sequence[Any]) -> str:
    return f"({', '.join(map(str, shape))})"


def _built(name: str, inputs: list[Tensor], outputs: list[Tensor]) -> Built:
    schedule = create_schedule([each.op for each in outputs])
    return Built(build(schedule, [*inputs, *outputs], name=name))


def _loop(results: Built, signature: Signature) -> Loop:
    """The loop that calls a function, whose arguments have the core dimensions of a signature, and
    perhaps one of the batch in front."""
    positions = (*results.inputs, *results.outputs)
    buffers: list[Buffer] = []
    for position in positions:
        param = results.params[position]
        where = f"{results.name}: argument {position} '{results.names[position]}'"
        if not isinstance(param, Buffer):
            raise TypeError(
                f"{where}: expected an array, got a number, which no ufunc has: make it a "
                "placeholder, with '()' in the signature"
            )
        try:
            param.dtype.to_numpy()
        except (TypeError, ValueError):
            raise TypeError(f"{where}: expected a dtype of numpy, got {param.dtype}") from None
        if param.dtype.is_bfloat16:
            raise TypeError(f"{where}: expected a dtype of numpy, got {param.dtype}")
        buffers.append(param)
    return Loop(
        results.function, signature, buffers, positions, _is_batched(results, signature, buffers)
    )


def _is_batched(results: Built, signature: Signature, buffers: Sequence[Buffer]) -> bool:
    """Whether all arguments have a dimension in front of those of the signature."""
    more = {
        buffer.ndim - len(names) for buffer, names in zip(buffers, signature.operands, strict=True)
    }
    first = {buffer.shape[0] for buffer in buffers if buffer.ndim}
    batched = more == {1}
    if not (more == {0} or (batched and len(first) == 1 and isinstance(next(iter(first)), Var))):
        shapes = ", ".join(_listed(buffer.shape) for buffer in buffers)
        raise ValueError(
            f"{results.name}: expected arguments with the dimensions of '{signature.text}', or "
            f"with one variable for the batch in front of each, got shapes {shapes}"
        )
    known: dict[str, Any] = {}
    for buffer, names in zip(buffers, signature.operands, strict=True):
        for name, extent in zip(names, buffer.shape[batched:], strict=True):
            before = known.setdefault(name, extent)
            size = extent.value if isinstance(extent, IntImm) else None
            if (
                not structural_equal(before, extent)
                or (size is not None) != name.isdigit()
                or (size is not None and size != int(name))
            ):
                raise ValueError(
                    f"{results.name}: expected dimension '{name}' of '{signature.text}' to be "
                    f"{name if name.isdigit() else 'one variable'}, got {before} and {extent} in "
                    f"'{buffer.name}'"
                )
    return batched
