"""The four families of error, and the table that carries them across the C boundary.

* The user's mistake: :class:`CompileError` while a program is written or built; the builtin
  ``TypeError``, ``ValueError``, ``BufferError``... when a function is called.
* A kernel's failure while it runs: :class:`KernelError`.
* A device's failure: :class:`DeviceError`.
* A bug of minitvm: :class:`InternalError`.
"""

from __future__ import annotations

from collections.abc import Iterable


class TVMError(RuntimeError):
    """Base of every error that minitvm itself defines (classic ``tvm.TVMError``)."""


class CompileError(TVMError, ValueError):
    """A program that has no meaning, or can't be compiled for this target.

    Raised while an expression is written, scheduled, lowered or built. The message names the
    entity, what was expected, what was found and what to do.

    >>> raise CompileError("C: reduce axis k must be bound by a reducer, found it outside one")
    Traceback (most recent call last):
        ...
    minitvm.runtime.errors.CompileError: C: reduce axis k must be bound by a reducer, found it \
outside one
    """

    problem: str = ""  # the message without the function's name in front


class KernelError(TVMError):
    """A kernel found, while it ran, that it can't go on: an assertion of the program does not hold.
    Its outputs are then unspecified. (An index read from data that leaves its tensor is an
    ``IndexError``.)"""


class DeviceError(TVMError):
    """A device failed, or lacks a function that no other can stand in for. The message names the
    device and the function."""


class UnsupportedByDevice(DeviceError, NotImplementedError):
    """A device lacks a function that no other can stand in for."""


class DeviceMemoryError(DeviceError, MemoryError):
    """A device has no memory left, or no more than its limit."""


class LayoutError(ValueError):
    """An argument's strides differ from the strides that the compiled code was made for.

    A caller with a variant for strided arrays catches it. To all others it is a ``ValueError``,
    from which it derives.
    """


class StreamError(BufferError, RuntimeError):
    """A stream is given for memory of the CPU, which has no streams. The array API standard has
    ``BufferError`` for an array that can't be exported, numpy ``RuntimeError``."""


class NotExportable(TypeError, AttributeError):
    """An object is no array that can be exported. The array API standard has ``AttributeError``,
    since it lacks ``__dlpack__``."""


class PerformanceWarning(RuntimeWarning):
    """A program is built as it was scheduled, and another schedule would be much faster."""


class InternalError(TVMError):
    """A bug of minitvm, not of its user. Please report it with the program that shows it."""


# The errors that a compiled function may raise, by the name under which it asks for them. The order
# belongs to no interface, since compiled code refers to the classes by name.
RAISABLE: dict[str, type[Exception]] = {
    "TypeError": TypeError,
    "ValueError": ValueError,
    "IndexError": IndexError,
    "BufferError": BufferError,
    "MemoryError": MemoryError,
    "KernelError": KernelError,
    "LayoutError": LayoutError,
    "InternalError": InternalError,
}

REFUSALS = (TypeError, ValueError, BufferError)
"""The errors about arguments, raised before anything is written."""

_DEVICE_KINDS: dict[type, type[DeviceError]] = {
    MemoryError: DeviceMemoryError,
    **{
        kind: type(f"Device{kind.__name__}", (DeviceError, kind), {})
        for kind in RAISABLE.values()
        if kind is not MemoryError
    },
}


def device_failure(error: BaseException, message: str) -> DeviceError:
    """The DeviceError for an error that was raised on a device; it is also of the type that a
    compiled function raises.

    >>> isinstance(device_failure(IndexError("i"), "kernel 'f' failed: i"), IndexError)
    True
    """
    known = (_DEVICE_KINDS[each] for each in type(error).__mro__ if each in _DEVICE_KINDS)
    failure = next(known, DeviceError)(message)
    failure.__cause__ = error
    return failure


def similar(name: str, known: Iterable[str]) -> list[str]:
    """The known names, at most three, that somebody who wrote `name` may have meant.

    >>> similar("sqtr", ["exp", "sqrt"])
    ['sqrt']
    """
    import difflib  # on demand: its import takes 2 ms

    return difflib.get_close_matches(name, list(known))
