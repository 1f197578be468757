"""The text of ``help`` for a built function: its arguments, as the program declares them."""

from __future__ import annotations

from minitvm.arith.effects import written_parameters
from minitvm.codegen.packed_abi import arg_names
from minitvm.tir.expr import Buffer
from minitvm.tir.stmt import PrimFunc


def describe(func: PrimFunc) -> str:
    """The docstring of a function.

    >>> from minitvm import build, te
    >>> n = te.var("n")
    >>> X = te.placeholder((n, 4), name="X")
    >>> Y = te.compute((n,), lambda i: X[i, 0] * 2.0, name="Y")
    >>> print(build(te.create_schedule(Y.op), [X, Y], name="first").__doc__)
    first(X, Y)
    <BLANKLINE>
    Compiled by minitvm. Outputs are arguments, and are written in place.
    <BLANKLINE>
    Parameters
    ----------
    X : array of float32, shape (n, 4)
    Y : array of float32, shape (n,), written
    """
    names = arg_names(func)
    written = written_parameters(func)
    lines = [
        f"{func.name}({', '.join(names)})",
        "",
        "Compiled by minitvm. Outputs are arguments, and are written in place.",
        "",
        "Parameters",
        "----------",
    ]
    for position, (name, param) in enumerate(zip(names, func.params, strict=True)):
        buffer = func.buffer_map.get(param)
        if buffer is None:
            lines.append(f"{name} : {param.dtype}")
        else:
            end = f", layout_{buffer.layout}" if buffer.layout else ""
            end += ", written" if buffer in written else ""
            end += ", made by minitvm.prepack" if position in func.attrs.prepacked else ""
            lines.append(f"{name} : array of {buffer.dtype}, shape {_shape(buffer)}{end}")
    return "\n".join(lines)


def _shape(buffer: Buffer) -> str:
    extents = ", ".join(str(extent) for extent in buffer.shape)
    return f"({extents},)" if buffer.ndim == 1 else f"({extents})"
