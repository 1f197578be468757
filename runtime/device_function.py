"""DeviceFunction: a compiled function on a device's arrays, launched on a stream."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable, Mapping
from typing import Any, final

from minitvm.runtime.device import Device, cpu
from minitvm.runtime.device_api.managed import ManagedDevice
from minitvm.runtime.device_api.registry import managed
from minitvm.runtime.dlpack import DLTensor, fill_tensor
from minitvm.runtime.evaluator import BenchmarkResult, check_counts, measure
from minitvm.runtime.ndarray import NDArray, used_on
from minitvm.runtime.packed_func import Arguments, Function, InstanceDoc, PackedFunc
from minitvm.runtime.results import Results
from minitvm.runtime.returning import Returning

_HOST = cpu(0)


@final
class DeviceFunction(PackedFunc):
    """A function compiled for the CPU that runs on another device, against its memory.

    A call checks its arguments, puts the kernel on the stream of the ``with stream:`` around, or on
    the device's own, and returns. A failure of the kernel is raised by the next wait for that
    stream: ``device.sync()``, ``a.numpy()``.

    Parameters
    ----------
    host
        The function, which checks its arrays and runs as if they were arrays of the CPU.
    device_type
        The number of the kind of device.
    """

    __slots__ = ("_host", "arg_names", "device_type")
    has_native_entry = False
    __doc__ = InstanceDoc(__doc__)

    def __init__(self, host: Function, device_type: int) -> None:
        super().__init__(self._launch, name=host.name, owner=host.program)
        self._host = host
        self.arg_names = host.arg_names
        self.device_type = device_type

    @property
    def _doc(self) -> str | None:
        return self._host._doc

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._host)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self._prepare(self._host._bind(args, kwargs)).go()

    _call_slowly = __call__

    def time_evaluator(
        self, number: int = 10, repeat: int = 1, min_repeat_ms: float = 0
    ) -> Callable[..., BenchmarkResult]:
        """A function of the same arguments that measures launches until all of them are done, like
        :meth:`Function.time_evaluator`."""
        check_counts(number, repeat, min_repeat_ms)

        def evaluate(*args: Any, **kwargs: Any) -> BenchmarkResult:
            launch = self._prepare(self._host._bind(args, kwargs))

            def run(number: int) -> None:
                for _ in range(number):
                    launch.go()
                launch.place.synchronize()

            run(1)
            return measure(run, number, repeat, min_repeat_ms)

        return evaluate

    def results(self) -> Results:
        """As :meth:`Function.results`."""
        return self._host.results()

    def returning(self) -> Returning:
        """As :meth:`Function.returning`. The outputs are arrays of the device; the kernel may still
        be running when they are returned."""
        return Returning(self)

    def _begin(self, inputs: Mapping[int, Any]) -> Arguments:
        return self._host._begin(inputs)

    def _end(self, arguments: Arguments, outputs: Mapping[int, Any]) -> None:
        for position, value in outputs.items():
            self._host._put(arguments, position, value)
        self._prepared(arguments).go()

    def _launch(self, *args: Any) -> None:
        self._prepare(args).go()

    def _prepare(self, args: tuple[Any, ...]) -> _Launch:
        """A call with checked arguments.

        Raises
        ------
        TypeError, ValueError, BufferError
            When they aren't.
        """
        return self._prepared(self._host._convert(args))

    def _prepared(self, arguments: Arguments) -> _Launch:
        kept = ((position, arguments.keep[position]) for position in arguments.tensors())
        arrays = {position: array for position, array in kept if isinstance(array, NDArray)}
        place = self._place(arrays)
        return _Launch(self._host, place, arrays, arguments)

    def _place(self, arrays: dict[int, NDArray]) -> ManagedDevice:
        """The device of all arrays."""
        place: Device | None = None
        because = ""
        for position, array in arrays.items():
            found = array.device
            if place is None and found.device_type == self.device_type:
                place, because = found, f", as {self._host._argument(position)} is"
            if found != place:
                to = place or Device(self.device_type)
                wanted = to.name if place is None else to
                raise ValueError(
                    f"{self.name}: {self._host._argument(position)}: expected an array on {wanted}"
                    f"{because}, got one on {found}: copy it: tvm.nd.array(x, tvm.{to})"
                )
        if place is None:
            raise ValueError(f"{self.name}: expected an array, by which to know the device")
        return managed(place)


@final
class _Launch:
    """One call: checked arguments, and the code that takes them. The device gets it as the kernel
    to run."""

    def __init__(
        self, host: Function, place: ManagedDevice, arrays: dict[int, NDArray], arguments: Arguments
    ) -> None:
        self.place = place
        self._host = host
        self._arrays = arrays
        self._arguments = arguments
        self.name = host.name
        self._address = host._checked(self._as_of_host(lambda address, size: address))

    def go(self) -> None:
        """Put the kernel on the current stream."""
        stream = self.place.current_stream
        used = used_on(stream, *self._arrays.values())
        self.place.driver.launch(self.place.device, stream.handle, self)
        stream.keep(*used)
        if any(array.is_lent for array in self._arrays.values()):
            stream.synchronize()  # the memory belongs to others again when the callback returns

    def __call__(self, address_of: Callable[[int, int], int]) -> None:
        self._host._call(self._as_of_host(address_of), address=self._address)

    def _as_of_host(self, address_of: Callable[[int, int], int]) -> Arguments:
        """The arguments with arrays of the CPU, at other addresses."""
        given = self._arguments
        made = Arguments(given.count)
        ctypes.memmove(made.values, given.values, ctypes.sizeof(made.values))
        ctypes.memmove(made.codes, given.codes, ctypes.sizeof(made.codes))
        made.keep = list(given.keep)
        for position, array in self._arrays.items():
            view = array._view
            span = view.span()
            shift = address_of(span.start, len(span)) - span.start if len(span) else 0
            tensor, dims = DLTensor(), (ctypes.c_int64 * (2 * len(view.shape)))()
            moved = view._replace(data=view.data + shift, device=_HOST)
            fill_tensor(tensor, moved, ctypes.addressof(dims))
            made.values[position].v_handle = ctypes.addressof(tensor)
            made.read_only[ctypes.addressof(tensor)] = view.read_only
            made.keep[position] = (tensor, dims)
        return made
