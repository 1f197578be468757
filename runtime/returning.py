"""Returning: a compiled function as one that takes its inputs and returns its outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol, final

from minitvm.runtime.allocation import Allocated, Kind, allocate_like
from minitvm.runtime.device_api.registry import exists
from minitvm.runtime.dlpack import read_tensor
from minitvm.runtime.errors import InternalError
from minitvm.runtime.ndarray import empty
from minitvm.runtime.results import Result, Results
from minitvm.runtime.values import ArgTypeCode


class Called(Protocol):
    """The function behind a :class:`Returning`."""

    @property
    def name(self) -> str: ...

    def results(self) -> Results: ...

    def _begin(self, inputs: Mapping[int, Any]) -> Any: ...

    def _end(self, arguments: Any, outputs: Mapping[int, Any]) -> None: ...

    def returning(self) -> Returning: ...


@final
class Returning:
    """A function of the inputs alone, which returns the outputs of a compiled function.

    They are new arrays of the framework of the first array among the inputs, on its device: of
    numpy, torch, JAX, ``NDArray``, or any library with the array API's ``from_dlpack``. Without an
    array among the inputs they are numpy's.

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

    __slots__ = ("__weakref__", "_results", "function")

    def __init__(self, function: Called) -> None:
        self.function = function
        self._results = function.results()

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
        outputs = dict(zip(results.outputs, (each.array for each in made), strict=True))
        self.function._end(arguments, outputs)
        return results.returned([each.finish(each.array) for each in made])

    def _known(self, arguments: Any) -> dict[int, Any]:
        """What the shapes of the outputs follow from: the shapes of arrays, and numbers."""
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
        """Has the function say what is wrong with the inputs: it looks at them first at their kinds
        and ranks, before it looks at the sizes of arrays."""
        results = self._results
        self.function._end(
            arguments,
            {
                each.position: empty((0,) * len(each.extents), results.dtypes[each.position])
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
        except Exception as error:
            error.args = (f"{where}: {error}",)  # in place: type and traceback stay
            raise


def _itself(array: Any) -> Any:
    return array
