"""Returning: a compiled function as one that takes its inputs and returns its outputs."""

from __future__ import annotations

import ctypes
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, final

import numpy as np

from minitvm.runtime.allocation import LEAST_ALIGNMENT, Allocated, Kind, allocate_like
from minitvm.runtime.call_path import call_path, leaf_of
from minitvm.runtime.call_path_text import MOST_ARGUMENTS
from minitvm.runtime.device import Device
from minitvm.runtime.device_api.registry import exists
from minitvm.runtime.dlpack import dtype_word, read_tensor
from minitvm.runtime.errors import REFUSALS, InternalError
from minitvm.runtime.frameworks import override, overriding_tensors
from minitvm.runtime.heap_types import HEADER, enable, storage
from minitvm.runtime.ndarray import empty, numpy_dtype
from minitvm.runtime.results import Op, Result, Results, Step
from minitvm.runtime.returning_text import (
    END,
    MOST_EXTENTS,
    MOST_NUMBERS,
    MOST_OUTPUTS,
    STORE,
    CompiledOutput,
    CompiledStep,
    StoredReturning,
)
from minitvm.runtime.traced import (
    call_returning_traced,
    call_traced,
    is_operator,
    is_read_by_torch,
    numbers_of_python,
)
from minitvm.runtime.values import ArgTypeCode


class Called(Protocol):
    """The function behind a :class:`Returning`."""

    name: str
    device_type: int
    has_native_entry: bool

    def results(self) -> Results: ...

    def _begin(self, inputs: Mapping[int, Any]) -> Any: ...

    def _end(self, arguments: Any, outputs: Mapping[int, Any]) -> None: ...

    def returning(self) -> Returning: ...


if TYPE_CHECKING:
    _Storage = object
else:
    _Storage = storage("minitvm.runtime.returning.Storage", ctypes.sizeof(StoredReturning))


@final
class Returning(_Storage):
    """A function of the inputs alone, which returns the outputs of a compiled function.

    The outputs are new arrays in the framework of the first array among the inputs, on its device:
    numpy, torch, JAX, ``NDArray``, or any library with the array API's ``from_dlpack``. Without an
    array among the inputs they are numpy arrays.

    Parameters
    ----------
    function
        The compiled function.

    >>> import minitvm
    >>> from minitvm import te
    >>> import numpy as np
    >>> n = te.var("n")
    >>> X = te.placeholder((n,), name="X")
    >>> Y = te.compute((n,), lambda i: X[i] * 2.0, name="Y")
    >>> double = minitvm.build(te.create_schedule(Y.op), [X, Y], name="double").returning()
    >>> double(np.ones(3, "float32"))
    array([2., 2., 2.], dtype=float32)
    >>> y = np.empty(3, "float32")
    >>> double(X=np.ones(3, "float32"), out=y) is y
    True
    """

    __slots__ = ("__weakref__", "_results", "_tables", "function")

    def __new__(cls, function: Called) -> Any:
        return super().__new__(leaf_of(cls, "call_returning"))

    def __init__(self, function: Called) -> None:
        self.function = function
        self._results = function.results()
        self._tables: _Tables | None = None
        if function.has_native_entry and _is_common(self._results):
            self._tables = _Tables(self._results)
            stored = StoredReturning.from_address(id(self) + HEADER)
            self._tables.fill(stored)
            stored.function = id(function)
        enable(self)

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.name

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def results(self) -> Results:
        """The inputs and outputs of the function."""
        return self._results

    @property
    def __signature__(self) -> inspect.Signature:
        return self._results.signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Where there is compiled code, it is called in place of this method; torch.compile traces
        # this one.
        if is_read_by_torch():
            return self._call_traced(*args, **kwargs)
        return self._call_slowly(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Returning {self.name}>"

    def __copy__(self) -> Returning:
        return self

    def __deepcopy__(self, memo: object) -> Returning:
        return self

    def __reduce__(self) -> tuple[Callable[..., Returning], tuple[Any, ...]]:
        return Returning, (self.function,)

    def _call_slowly(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """A call made by Python code, which defines the meaning of calls."""
        results = self._results
        values = results.bind(args, kwargs)
        if is_operator(self.name, values):
            return self._traced(numbers_of_python(values), out)
        if overriding_tensors(values):
            return override(self, values, out)
        given = results.given(out)
        inputs = dict(zip(results.inputs, values, strict=True))
        arguments = self.function._begin(inputs)
        made = [Allocated(array, _itself) for array in given]
        if any(array is None for array in given):
            known = self._known(arguments)
            like = next((v for i, v in inputs.items() if not results.is_scalar(i)), None)
            made = [
                self._made(like, result, result.shape(known)) if each.array is None else each
                for each, result in zip(made, results.results, strict=True)
            ]
            _learn_to_make(like)
        outputs = dict(zip(results.outputs, (each.array for each in made), strict=True))
        try:
            self.function._end(arguments, outputs)
        except REFUSALS as error:
            if out is not None:
                error.args = tuple(map(results.about_outputs, error.args))
            raise
        return results.returned([each.finish(each.array) for each in made])

    def _call_traced(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        return self._traced(self._results.bind(args, kwargs), out)

    def _traced(self, values: Sequence[Any], out: Any) -> Any:
        """A call in a program that torch traces or records."""
        results = self._results
        if out is None:
            return call_returning_traced(self.function, values)
        call_traced(self.function, tuple(results.arguments(values, results.given(out))))
        return out

    def _known(self, arguments: Any) -> dict[int, Any]:
        """The values that determine the shapes of the outputs: the shapes of arrays, and
        numbers."""
        results = self._results
        known: dict[int, Any] = {
            position: read_tensor(address, accepts=exists).shape
            for position, address in arguments.tensors().items()
        }
        for position in results.inputs:
            if results.is_scalar(position) and arguments.codes[position] == ArgTypeCode.INT:
                known[position] = arguments.values[position].v_int64
        if not results.determine(known):
            self._refuse(arguments)
        return known

    def _refuse(self, arguments: Any) -> NoReturn:
        """Lets the function raise the error about the inputs: it checks kinds and ranks before the
        sizes of arrays."""
        results = self._results
        self.function._end(
            arguments,
            {
                each.position: empty(
                    (0,) * len(each.extents),
                    results.dtypes[each.position],
                    Device(self.function.device_type),
                )
                for each in results.results
            },
        )
        raise InternalError(f"{self.name}: expected inputs that are refused, got others")

    def _made(self, like: Any, result: Result, shape: tuple[int, ...]) -> Allocated:
        where = self._results.argument(result.position)
        if min(shape, default=0) < 0:
            raise ValueError(f"{where}: expected extents of at least 0, got the shape {shape}")
        dtype = self._results.dtypes[result.position]
        try:
            return allocate_like(like, Kind(shape, dtype, result.alignment, result.in_columns))
        except MemoryError as error:  # numpy's error makes its text from other arguments
            raise MemoryError(f"{where}: {error}") from error
        except Exception as error:
            error.args = (f"{where}: {error}",)  # in place: type and traceback stay
            raise


def _itself(array: Any) -> Any:
    return array


# ---- What compiled code reads --------------------------------------------------------------------


def _is_common(results: Results) -> bool:
    """Whether compiled code can make the calls: functions that exceed its tables are left to Python
    code."""
    made = results.results
    extents = [steps for each in made for steps in each.extents]
    return (
        len(results.names) <= MOST_ARGUMENTS
        and len(made) <= MOST_OUTPUTS
        and len(extents) <= MOST_EXTENTS
        and all(len(steps) <= MOST_NUMBERS for steps in extents)
        and not any(each.in_columns or each.alignment > LEAST_ALIGNMENT for each in made)
    )


@final
class _Tables:
    """The tables of a Returning, which live as long as it does."""

    def __init__(self, results: Results) -> None:
        names = results.input_names
        # The name "out" stands for the outputs; no input's name is this object, even if it has the
        # same text.
        self.names = tuple(sys.intern(name) if name != "out" else "" for name in names)
        self.names_and_out = (*self.names, sys.intern("out"))
        self.places = (ctypes.c_int64 * len(names))(*results.inputs)
        self.outputs = (CompiledOutput * len(results.results))()
        self.dtypes = [_numpys(results, each) for each in results.results]
        for output, result, dtype in zip(self.outputs, results.results, self.dtypes, strict=True):
            output.position, output.ndim = result.position, len(result.extents)
            output.dtype = dtype_word(results.dtypes[result.position])
            output.descr = None if dtype is None else id(dtype)
        steps = [
            step
            for result in results.results
            for extent in result.extents
            for step in (*(_compiled(each, results) for each in extent), CompiledStep(STORE))
        ]
        self.steps = (CompiledStep * (len(steps) + 1))(*steps, CompiledStep(END))
        arrays = [i for i, at in enumerate(results.inputs) if not results.is_scalar(at)]
        self.first = arrays[0] if arrays else -1

    def fill(self, stored: StoredReturning) -> None:
        stored.names, stored.names_and_out = id(self.names), id(self.names_and_out)
        stored.inputs, stored.outputs = len(self.places), len(self.outputs)
        stored.first = self.first
        stored.places = ctypes.addressof(self.places)
        stored.made = ctypes.addressof(self.outputs)
        stored.steps = ctypes.addressof(self.steps)


def _compiled(step: Step, results: Results) -> CompiledStep:
    op, a, b = step
    if op == Op.CONSTANT:
        return CompiledStep(op, 0, 0, 0, a)
    return CompiledStep(op, a, results.ranks[a] if op == Op.EXTENT else 0, b)


def _numpys(results: Results, result: Result) -> np.dtype[Any] | None:
    """The dtype of an output that compiled code lets numpy make; None where Python code has to make
    it."""
    dtype = results.dtypes[result.position]
    try:
        return None if dtype.is_sub_byte else numpy_dtype(dtype)
    except TypeError:
        return None


def _learn_to_make(like: Any) -> None:
    path = call_path()
    if path is not None:
        path.let_make(type(like))
