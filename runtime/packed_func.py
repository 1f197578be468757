"""PackedFunc: one signature for every function, in C and in Python.

``int f(TVMValue* args, int* type_codes, int num_args, TVMValue* ret, int* ret_type_code, void*
resource)`` returns 0, or -1 with a Python exception pending in the calling thread. Compiled code is
called with the GIL held, so an exception that it sets (``PyErr_Format``) comes out of the call. An
exception that a Python callback raises below it comes out as the same object.

A *handle* of a function is the address of two pointers, ``{function, resource}``: compiled code
loads both and calls.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import keyword
import math
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, final

from minitvm.runtime.arrangement import (
    ASKS_FOR_VARIANT,
    ASKS_TO_CHECK,
    NEEDS_VARIANT,
    Arrangement,
    Variants,
)
from minitvm.runtime.bridges import Bridged
from minitvm.runtime.c_function import CFunction
from minitvm.runtime.call_path import call_path
from minitvm.runtime.call_path_text import StoredFunction
from minitvm.runtime.device_api.registry import exists
from minitvm.runtime.device_type import DeviceType
from minitvm.runtime.dlpack import (
    DLTensor,
    TensorView,
    compact_strides,
    fill_tensor,
    read_tensor,
)
from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import InternalError
from minitvm.runtime.evaluator import BenchmarkResult, check_counts, measure
from minitvm.runtime.frameworks import why_read_only
from minitvm.runtime.glue import glue
from minitvm.runtime.heap_types import HEADER, enable, leaf, storage
from minitvm.runtime.native import NativeCode, Once
from minitvm.runtime.ndarray import Loan, NDArray, array, as_ndarray
from minitvm.runtime.results import Results
from minitvm.runtime.returning import Returning
from minitvm.runtime.traced import call_traced, is_operator, is_read_by_torch, numbers_of_python
from minitvm.runtime.values import (
    ArgTypeCode,
    Encoded,
    HandleObject,
    TVMValue,
    decode,
    encode,
    encode_plain,
    is_plain,
    number_as,
    text_for_c,
)

_PACKED = ctypes.PYFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
_REPEAT = ctypes.PYFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
_CALL_WITHIN = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object)
_ARRAYS = (ArgTypeCode.DLTENSOR_HANDLE, ArgTypeCode.NDARRAY_HANDLE)
_OBJECTS = (ArgTypeCode.OBJECT_HANDLE, ArgTypeCode.MODULE_HANDLE)
_POINTERS = (*_ARRAYS, *_OBJECTS, ArgTypeCode.PACKED_FUNC_HANDLE)
_NEVER_NULL = (*_POINTERS, ArgTypeCode.STR, ArgTypeCode.BYTES)
_CODES = frozenset(map(int, ArgTypeCode))
_MAX_RETURNED = 64
_PAGE = 4096
_NEEDS_VARIANT = object()


@final
class Arguments:
    """The arguments of a call as C has them, and the objects that keep them alive."""

    __slots__ = ("codes", "count", "keep", "read_only", "values")

    def __init__(self, count: int) -> None:
        self.count = count
        self.values = (TVMValue * count)()
        self.codes = (ctypes.c_int * count)()
        self.keep: list[object] = [None] * count
        self.read_only: dict[int, bool] = {}  # for the arrays, by their addresses

    def put(self, index: int, encoded: Encoded) -> None:
        setattr(self.values[index], encoded.field, encoded.raw)
        self.codes[index] = encoded.code
        self.keep[index] = encoded.keep
        if encoded.code in _ARRAYS:
            self.read_only[encoded.raw] = encoded.read_only

    def tensors(self) -> dict[int, int]:
        """The addresses of the arrays, by position."""
        codes = enumerate(self.codes)
        return {i: self.values[i].v_handle or 0 for i, code in codes if code in _ARRAYS}


class _Running:
    """The state that a running call shares with the callbacks below it. ``returned`` keeps the
    callbacks' results, by address, until the call returns. ``read_only`` tells, by address, whether
    an array among the arguments is read-only."""

    __slots__ = ("read_only", "returned")

    def __init__(self, read_only: Mapping[int, bool]) -> None:
        self.read_only = read_only
        self.returned: dict[int | None, object] = {}

    def is_read_only(self, tensor: int, view: TensorView) -> bool:
        """Whether an array for a callback, at an address, lies in read-only memory."""
        given = self.read_only.get(tensor)
        if given is not None:
            return given
        fixed = (at for at, read_only in self.read_only.items() if read_only)
        return any(view.data in read_tensor(at, accepts=exists).span() for at in fixed)


class _Thread(threading.local):
    # None stands for a call without read-only arrays of which no callback has returned yet.
    running: _Running | None = None


_thread = _Thread()


if TYPE_CHECKING:
    _Storage = object
else:
    _Storage = storage("minitvm.runtime.packed_func.Storage", ctypes.sizeof(StoredFunction))


class Program(ABC):
    """The program of compiled functions, which keeps their code and is pickled for them."""

    __slots__ = ("__weakref__",)

    @property
    @abstractmethod
    def object_code(self) -> bytes:
        """The machine code of all functions, as an object file."""

    @abstractmethod
    def function(self, name: str) -> PackedFunc:
        """The function of a name: the same object, as long as that object lives."""


class PackedFunc(HandleObject, _Storage):
    """A function behind the packed C ABI, callable from Python and from compiled code.

    A function never changes, so a copy (``copy.copy``, ``copy.deepcopy``) is the function itself. A
    pickle holds the Python callable, or the :class:`Program` of compiled code.

    Parameters
    ----------
    function
        A Python callable, or the address of a C function of the packed signature.
    name
        The name in messages; by default the callable's own.
    owner
        The object that keeps the code at that address alive.
    resource
        The last argument of the C function, an address.

    >>> add = PackedFunc(lambda x, y: x + y)
    >>> add(1, 2)
    3
    """

    __slots__ = ("__weakref__", "_callable", "_entry", "_owner", "_stored", "name")
    _type_code = ArgTypeCode.PACKED_FUNC_HANDLE
    _native_entry = "call_packed"

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(natively_called(cls))

    def __init__(
        self,
        function: Any,
        *,
        name: str | None = None,
        owner: object = None,
        resource: int = 0,
    ) -> None:
        self.name: str
        if name is not None:
            text_for_c(name)
        self._callable: Callable[..., Any] | None = None
        if isinstance(function, int):
            address = function
            self.name = name or f"function at {function:#x}"
        elif callable(function):
            self._callable = function
            address = native().function("call_python")
            self.name = name or _name_of(function)
            resource = id(function)
        else:
            kind = type(function).__name__
            raise TypeError(f"PackedFunc: expected a callable or an address, got {kind}")
        self._owner = owner
        self._entry = _PACKED(address)
        self._stored = StoredFunction.from_address(self.handle)
        self._stored.function, self._stored.resource = address, resource
        self._stored.calls_back = True
        _live.add(self)
        enable(self)

    @property
    def handle(self) -> int:
        """The address of ``{function, resource}``, valid as long as this object. Compiled code gets
        a function argument as its handle; C code takes :attr:`c_function`."""
        return id(self) + HEADER

    @property
    def c_function(self) -> CFunction:
        """The function for C code: a struct ``MiniTVMFunction`` of ``minitvm/c_runtime_api.h``,
        which keeps the function alive. See docs/c.md.

        >>> f = PackedFunc(lambda x: x + 1)
        >>> entry = ctypes.cast(f.c_function.call, _PACKED)
        >>> args, codes = (TVMValue * 1)(TVMValue(v_int64=41)), (ctypes.c_int * 1)(ArgTypeCode.INT)
        >>> value, code = TVMValue(), ctypes.c_int()
        >>> at = [ctypes.addressof(each) for each in (args, codes, value, code)]
        >>> entry(*at[:2], 1, *at[2:], f.c_function.resource), value.v_int64
        (0, 42)
        """
        return CFunction(self, _place_of_the_running_call())

    @property
    def program(self) -> Program | None:
        """The program that the function was compiled from, if any."""
        return self._owner if isinstance(self._owner, Program) else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Where there is compiled code, it is called in place of this method; torch.compile traces
        # this one.
        if is_read_by_torch() and self.program is not None:
            return call_traced(self, self._bind(args, kwargs))
        return self._call_slowly(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def __copy__(self) -> PackedFunc:
        return self

    def __deepcopy__(self, memo: object) -> PackedFunc:
        return self

    def __reduce__(self) -> tuple[Callable[..., PackedFunc], tuple[Any, ...]]:
        if self.program is not None:
            return self.program.function, (self.name,)
        if self._callable is None:
            raise TypeError(
                f"{self.name}: expected a Python callable or a function of build to pickle, found "
                "an address, which means nothing in another process"
            )
        return _packed, (self._callable, self.name)

    def _call_slowly(self, *args: Any, **kwargs: Any) -> Any:
        """A call made by Python code, which defines the meaning of calls: the compiled path does
        the same for known kinds of arguments."""
        values = self._bind(args, kwargs)
        if self.program is not None and is_operator(self.name, values):
            return call_traced(self, numbers_of_python(values))
        result, _ = self._run(self._convert(values))
        self._learn(args, kwargs)
        return result

    def _learn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        path = call_path()
        if path is not None:
            for value in (*args, *kwargs.values()):
                path.learn(value)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position."""
        if kwargs:
            raise TypeError(
                f"{self.name}: expected arguments by position only, got {', '.join(kwargs)} by name"
            )
        return args

    def _run(self, arguments: Arguments) -> tuple[Any, int]:
        """Call; returns the result, and the address of the code that took these arguments."""
        return self._call(arguments), self._stored.function

    def _convert(self, args: tuple[Any, ...]) -> Arguments:
        arguments = Arguments(len(args))
        for index, value in enumerate(args):
            self._put(arguments, index, value)
        return arguments

    def _put(self, arguments: Arguments, index: int, value: Any) -> None:
        try:
            arguments.put(index, self._encode(index, value))
        except Exception as error:
            _add_context(error, f"{self.name}: {self._argument(index)}")
            raise

    def _encode(self, index: int, value: Any) -> Encoded:
        return to_c(value)

    def _argument(self, index: int) -> str:
        return f"argument {index}"

    def _call(
        self, arguments: Arguments, number: int = 0, *, address: int = 0, asks: int = 0
    ) -> Any:
        """Call once, or `number` times; returns the result of the last call.

        With an `address`, call the variant there. The bits of `asks` are in
        :mod:`minitvm.runtime.arrangement`. The result is `_NEEDS_VARIANT` if the call asks for a
        variant and this function was compiled for another arrangement of the arrays.
        """
        run = partial(self._call_once, arguments, number, address, asks)
        return _call_within()(_Running(arguments.read_only), run)

    def _call_once(self, arguments: Arguments, number: int, address: int, asks: int) -> Any:
        address = address or self._stored.function
        ret = TVMValue()
        ret_code = ctypes.c_int(asks or ArgTypeCode.NULL)
        packed = (
            ctypes.addressof(arguments.values),
            ctypes.addressof(arguments.codes),
            arguments.count,
            ctypes.addressof(ret),
            ctypes.addressof(ret_code),
            self._stored.resource,
        )
        if number:
            status = _REPEAT(glue().function("repeat"))(address, number, *packed)
        elif address == self._stored.function:
            status = self._entry(*packed)
        else:
            status = _PACKED(address)(*packed)
        if asks and status == NEEDS_VARIANT:
            return _NEEDS_VARIANT
        if status != 0:
            self._fail(status)
        if asks & ASKS_TO_CHECK == ASKS_TO_CHECK:
            return None
        return take_result(ret, ret_code.value, arguments.keep)

    def _fail(self, status: int) -> NoReturn:
        raise InternalError(f"{self.name}: failed with status {status} but set no error")

    def _resolve(self, args: int, codes: int, count: int) -> int:
        """The address of the code for the arguments that C code has passed, where compiled code
        couldn't find it.

        Raises
        ------
        ValueError
            When pointers are missing.
        """
        if count < 0:
            raise ValueError(f"{self.name}: expected a count of arguments, got {count}")
        for what, address in (("arguments", args), ("type codes", codes)):
            if count and not address:
                raise ValueError(f"{self.name}: expected {count} {what}, got a null pointer")
        if not count:
            return self._address_for((), ())
        values = (TVMValue * count).from_address(args)
        return self._address_for(tuple(values), tuple((ctypes.c_int * count).from_address(codes)))

    def _address_for(self, values: Sequence[TVMValue], codes: Sequence[int]) -> int:
        self._tensors(values, codes)
        return self._stored.function or 0

    def _tensors(self, values: Sequence[TVMValue], codes: Sequence[int]) -> dict[int, int]:
        """The addresses of the arrays, by position; each array is checked to be readable."""
        found = {}
        for index, (value, code) in enumerate(zip(values, codes, strict=True)):
            if code in _ARRAYS and value.v_handle:
                try:
                    read_tensor(value.v_handle)
                except Exception as error:
                    _add_context(error, f"{self.name}: {self._argument(index)}")
                    raise
                found[index] = value.v_handle
        return found

    def _refuse_result(self, code: int) -> NoReturn:
        kind = ArgTypeCode(code).name if code in _CODES else f"type code {code}"
        raise TypeError(
            f"{self.name}: result: expected a number or None for C, which could own nothing else, "
            f"got {kind}"
        )

    def _take(self, result: int, *args: Any) -> Any:
        """The result of a compiled call with these arguments, which lies at an address."""
        ret = TVMValue.from_address(result)
        code = ctypes.c_int.from_address(result + ctypes.sizeof(TVMValue)).value
        keep = map(as_ndarray, args) if code in _ARRAYS else ()
        return take_result(ret, code, keep)


_leaves: dict[type, type] = {}


def natively_called(cls: type[HandleObject]) -> type:
    """The type of new instances of a class with an entry for compiled code (``_native_entry``),
    where that is possible. Users' subclasses stay as they are."""
    path = call_path() if "_native_entry" in cls.__dict__ else None
    if path is None:
        return cls
    if cls not in _leaves:
        if not _leaves:
            path.keep_running_call(**_place_of_the_running_call())
        made = leaf(cls, path.entries[cls._native_entry])
        if _leaves.setdefault(cls, made) is made:
            path.add_own(made, cls._type_code)
    return _leaves[cls]


def _packed(function: Callable[..., Any], name: str) -> PackedFunc:
    """Unpickles a Python callable."""
    return PackedFunc(function, name=name)


class _Live:
    """PackedFuncs by handle, so that a PackedFunc that went through C comes back as the same
    object.

    Unlike a WeakValueDictionary it runs no Python code when a function is freed, since an exception
    from a signal would be lost there. Freed functions are dropped when they are as many as the live
    ones.
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[PackedFunc]] = {}
        self._room = 64

    def add(self, function: PackedFunc) -> None:
        references = self._references
        references[function.handle] = weakref.ref(function)
        if len(references) > self._room:
            for handle, reference in list(references.items()):
                if reference() is None and references.get(handle) is reference:
                    references.pop(handle, None)
            self._room = 64 + 2 * len(references)

    def get(self, handle: int) -> PackedFunc | None:
        reference = self._references.get(handle)
        return None if reference is None else reference()


_live = _Live()


def convert_to_packed(function: Callable[..., Any]) -> PackedFunc:
    """`function` as a PackedFunc; a PackedFunc comes back as it is."""
    return function if isinstance(function, PackedFunc) else PackedFunc(function)


class InstanceDoc:
    """The docstring of a class whose instances may have their own, which ``help(instance)``
    shows."""

    def __init__(self, class_doc: str | None) -> None:
        self._class_doc = class_doc

    def __get__(self, instance: Any, owner: type) -> str | None:
        return self._class_doc if instance is None else instance._doc or self._class_doc


@final
class Function(Bridged, PackedFunc):
    """A compiled function with the names of its arguments; ``build`` makes it from an expression.

    Parameters
    ----------
    address
        The address of a C function of the packed signature.
    owner
        The object that keeps the machine code alive.
    name, arg_names
        The names, for messages and keyword arguments.
    written
        The positions of the arguments that the function writes.
    variants
        The variants for other arrangements of the arrays; this function is the first.
    resource
        The last argument of the C function.
    calls_back
        Whether it may call Python functions, whose results are kept until it returns.
    doc
        Makes the text that ``help`` shows.
    results
        Computes how the outputs follow from the inputs.
    """

    __slots__ = ("_describe", "_results", "arg_names", "variants", "written")
    _native_entry = "call_packed"
    device_type = int(DeviceType.CPU)
    has_native_entry = True
    __doc__ = InstanceDoc(__doc__)

    def __init__(
        self,
        address: int,
        *,
        owner: object,
        name: str,
        arg_names: Iterable[str],
        written: Iterable[int] = (),
        variants: Variants | None = None,
        resource: int = 0,
        calls_back: bool = True,
        doc: Callable[[], str] | None = None,
        results: Callable[[], Results] | None = None,
    ) -> None:
        super().__init__(address, name=name, owner=owner, resource=resource)
        self.arg_names = tuple(map(sys.intern, arg_names))
        self.written = frozenset(written)
        self.variants = variants
        self._stored.variants = None if variants is None else variants.table
        self._stored.names = id(self.arg_names)
        self._stored.written = sum(1 << position for position in self.written if position < 64)
        self._stored.calls_back = calls_back
        self._describe = doc
        self._results = results

    @property
    def _doc(self) -> str | None:
        return None if self._describe is None else self._describe()

    @property
    def __signature__(self) -> inspect.Signature:
        names = self.arg_names
        if len(set(names)) == len(names) and all(map(_is_parameter, names)):
            parameters = [_named(name) for name in names]
        else:  # not every argument can be given by name
            parameters = [_positional(f"arg{i}") for i in range(len(names))]
        return inspect.Signature(parameters, return_annotation=None)

    def time_evaluator(
        self, number: int = 10, repeat: int = 1, min_repeat_ms: float = 0
    ) -> Callable[..., BenchmarkResult]:
        """A function of the same arguments that measures the time of calls.

        It converts the arguments once and makes one call that doesn't count; then come `repeat`
        measurements of `number` calls each, made by compiled code. `number` grows until a
        measurement takes `min_repeat_ms` milliseconds.

        Raises
        ------
        ValueError
            When `number` or `repeat` is less than 1, or `min_repeat_ms` negative.
        """
        check_counts(number, repeat, min_repeat_ms)

        def evaluate(*args: Any, **kwargs: Any) -> BenchmarkResult:
            arguments = self._convert(self._bind(args, kwargs))
            _, address = self._run(arguments)

            def run(number: int) -> None:
                self._call(arguments, number, address=address)

            return measure(run, number, repeat, min_repeat_ms)

        return evaluate

    def results(self) -> Results:
        """The function's outputs as results: their shapes and dtypes, for calls that make them.

        Raises
        ------
        TypeError, ValueError
            When it can't return them.
        """
        if self._results is None:
            raise TypeError(f"{self.name}: expected a function of minitvm.build, got an address")
        return self._results()

    def prepare_strided(self) -> None:
        """Compiles the variant for arrays of any strides, so that no call has to."""
        if self.variants is not None:
            self.variants.prepare(Arrangement(strided=True))

    def returning(self) -> Returning:
        """The function as a function of its inputs alone, which returns its outputs in new arrays:
        see :class:`minitvm.runtime.returning.Returning`.

        Raises
        ------
        TypeError, ValueError
            When the function writes nothing, or reads an argument that it writes, or the inputs
            don't determine the shape of an output.
        """
        return Returning(self)

    def _begin(self, inputs: Mapping[int, Any]) -> Arguments:
        """The arguments of a call, whose outputs are still missing."""
        arguments = Arguments(len(self.arg_names))
        for position, value in inputs.items():
            self._put(arguments, position, value)
        self._learn(tuple(inputs.values()), {})
        return arguments

    def _end(self, arguments: Arguments, outputs: Mapping[int, Any]) -> None:
        """Makes the call, with the missing outputs."""
        for position, value in outputs.items():
            self._put(arguments, position, value)
        self._run(arguments)

    def check(self, *described: tuple[Sequence[int], DType] | int | float) -> None:
        """Checks arguments that don't exist yet. Each is given as a number, or as the shape and the
        dtype of a compact array.

        Raises
        ------
        TypeError, ValueError
            The error that a call with such arguments raises before it computes.

        >>> from minitvm import build, te
        >>> n = te.var("n")
        >>> X = te.placeholder((n,), name="X")
        >>> Y = te.compute((n,), lambda i: X[i] * 2.0, name="Y")
        >>> f = build(te.create_schedule(Y.op), [X, Y], name="f").entry_func
        >>> f.check(((3,), DType.of("float32")), ((4,), DType.of("float32")))
        Traceback (most recent call last):
        ...
        ValueError: f: argument 1 'Y': expected shape[0] == 3 (n, as argument 0 'X' has it), got 4
        """
        arguments = Arguments(len(described))
        nowhere = _PAGE  # addresses that aren't read: distinct and aligned
        for index, each in enumerate(described):
            if not isinstance(each, tuple):
                arguments.put(index, self._encode(index, each))
                continue
            shape, dtype = tuple(each[0]), each[1]
            view = TensorView(nowhere, shape, compact_strides(shape), dtype)
            tensor, dims = DLTensor(), (ctypes.c_int64 * (2 * len(shape)))()
            fill_tensor(tensor, view, ctypes.addressof(dims))
            at = ctypes.addressof(tensor)
            array = ArgTypeCode.DLTENSOR_HANDLE
            arguments.put(index, Encoded(array, "v_handle", at, (tensor, dims)))
            nowhere += (math.prod(shape) * dtype.itemsize // _PAGE + 1) * _PAGE
        self._call(arguments, asks=ASKS_FOR_VARIANT | ASKS_TO_CHECK)

    def _run(self, arguments: Arguments) -> tuple[Any, int]:
        """Call; returns the result, and the address of the variant that took these arrays."""
        if self.variants is None:
            return self._call(arguments), self._stored.function
        result = self._call(arguments, asks=ASKS_FOR_VARIANT)
        if result is not _NEEDS_VARIANT:
            return result, self._stored.function
        address = self.variants.find(arguments.tensors()).address
        return self._call(arguments, address=address), address

    def _checked(self, arguments: Arguments) -> int:
        """The address of the variant for the arguments, which are checked. For code that devices
        launch."""
        found = self._call(arguments, asks=ASKS_FOR_VARIANT | ASKS_TO_CHECK)
        if found is not _NEEDS_VARIANT or self.variants is None:
            return self._stored.function or 0
        address = self.variants.find(arguments.tensors()).address
        self._call(arguments, address=address, asks=ASKS_TO_CHECK)
        return address

    def _address_for(self, values: Sequence[TVMValue], codes: Sequence[int]) -> int:
        tensors = self._tensors(values, codes)
        if self.variants is None:
            return self._stored.function or 0
        return self.variants.find(tensors).address

    def _encode(self, index: int, value: Any) -> Encoded:
        encoded = to_c(value)
        if encoded.code == ArgTypeCode.OBJECT_HANDLE:
            kind = type(value).__name__
            advice = ": pass np.asarray(x)" if isinstance(value, list | tuple) else ""
            if advice and index in self.written:
                advice = (
                    ": the function writes into it, so pass an array of this shape, as np.empty"
                )
            raise TypeError(f"expected an array (numpy, DLPack...), got {kind}{advice}")
        if encoded.read_only and index in self.written:
            raise ValueError(
                f"expected a writable array, got a read-only one{why_read_only(value)}"
            )
        return encoded

    def _argument(self, index: int) -> str:
        if index >= len(self.arg_names):
            return f"argument {index}"
        return f"argument {index} '{self.arg_names[index]}'"

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position."""
        if not kwargs:
            return args  # the compiled code checks their number
        names = self.arg_names
        for name in kwargs:
            if name not in names:
                known = ", ".join(names)
                raise TypeError(f"{self.name}: expected arguments among {known}, got '{name}'")
            if name in names[: len(args)]:
                position = names.index(name)
                raise TypeError(
                    f"{self.name}: {self._argument(position)}: given by position and by name"
                )
        for index, name in enumerate(names[len(args) :], len(args)):
            if name not in kwargs:
                raise TypeError(f"{self.name}: {self._argument(index)}: expected a value, got none")
        return (*args, *(kwargs[name] for name in names[len(args) :]))


def _named(name: str) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _positional(name: str) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY)


def _is_parameter(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _add_context(error: Exception, context: str) -> None:
    error.args = (f"{context}: {error}",)  # in place: type and traceback stay the producer's


# ---- Conversion of everything --------------------------------------------------------------------


def to_c(value: Any) -> Encoded:
    """Any Python value as a TVMValue.

    Raises
    ------
    OverflowError, ValueError, TypeError, BufferError
        When a number, a string or an array can't be converted.
    """
    if isinstance(value, HandleObject):
        return Encoded(value._type_code, "v_handle", value.handle, value)
    return encode(value) or _encode_object(value)


def _encode_object(value: Any) -> Encoded:
    if callable(value) and not isinstance(value, type):
        function = PackedFunc(value)
        return Encoded(ArgTypeCode.PACKED_FUNC_HANDLE, "v_handle", function.handle, function)
    return Encoded(ArgTypeCode.OBJECT_HANDLE, "v_handle", id(value), value)


def from_c(value: TVMValue, code: int, loan: Loan) -> Any:
    """The Python value of a TVMValue; arrays are valid until `loan` is over.

    Raises
    ------
    ValueError
        For an unknown type code or a NULL handle.
    """
    plain = is_plain(code)
    if not plain and code not in _POINTERS:
        raise ValueError(f"expected a type code of the packed ABI, got {code}")
    if code in _NEVER_NULL and not value.v_handle:
        raise ValueError(f"expected a handle of type code {code}, got NULL")
    if plain:
        return decode(value, code)
    handle = value.v_handle
    if code in _ARRAYS:
        return _lend(handle, loan)
    if code in _OBJECTS:
        return ctypes.cast(handle, ctypes.py_object).value
    return _live.get(handle) or _function_at(handle)


def _lend(tensor: int, loan: Loan) -> NDArray:
    """The array of the DLTensor at an address, valid until `loan` is over."""
    view, running = read_tensor(tensor, accepts=exists), _thread.running
    read_only = running is not None and running.is_read_only(tensor, view)
    return NDArray(view._replace(read_only=read_only), loan)


def _function_at(handle: int) -> PackedFunc:
    """The function for a handle that other code made and keeps alive."""
    function, resource = (ctypes.c_void_p * 2).from_address(handle)
    if not function:
        raise ValueError(
            "expected a function's handle, the address of {function, resource}, got "
            "one whose function is NULL"
        )
    return PackedFunc(function, resource=resource or 0)


def take_result(ret: TVMValue, code: int, keep: Iterable[object] = ()) -> Any:
    """The result of a call that has just returned 0; `keep` holds the arguments.

    An array that isn't an argument and that no callback returned has no owner that outlives this
    call, so it is copied.
    """
    if code not in _ARRAYS:
        return from_c(ret, code, Loan())
    found = from_c(ret, code, Loan())
    running = _thread.running
    returned = None if running is None else running.returned.get(ret.v_handle)
    for value in (*keep, returned):
        if isinstance(value, NDArray) and value.same_as(found):
            return value
    return array(found)


# ---- Python callbacks ----------------------------------------------------------------------------


def answer(
    function: Callable[..., Any],
    loan: Loan,
    args: int,
    codes: int,
    count: int,
    ret: int,
    ret_code: int,
    reader: DType | None = None,
) -> None:
    """Call a Python function with the arguments that compiled code gave. Compiled code may read the
    result as a number of the dtype `reader`.

    Compiled code calls this through the glue, which takes any exception raised here, or on the way
    here, and ends the loan.
    """
    arguments = []
    if count:
        values = (TVMValue * count).from_address(args)
        type_codes = (ctypes.c_int * count).from_address(codes)
        arguments = [from_c(values[i], type_codes[i], loan) for i in range(count)]
    result = function(*arguments)
    arguments.clear()
    if ret:
        _give(function, result, reader, ret, ret_code)
    del result
    if loan.is_exported():
        gc.collect()  # arrays in garbage cycles don't count
    if loan.is_exported():
        raise BufferError(
            f"{_name_of(function)}: expected no array to outlive the callback, but one made of an "
            "argument's memory (np.asarray, from_dlpack) does; keep a copy"
        )


def _give(
    function: Callable[..., Any], result: Any, reader: DType | None, ret: int, ret_code: int
) -> None:
    try:
        encoded = _encode_result(result if reader is None else number_as(reader, result))
    except Exception as error:
        _add_context(error, f"{_name_of(function)}: result")
        raise
    slot = TVMValue.from_address(ret)
    setattr(slot, encoded.field, encoded.raw)
    ctypes.c_int.from_address(ret_code).value = encoded.code
    if encoded.keep is not None:
        _remember(slot.v_handle, encoded.keep)


def _encode_result(result: Any) -> Encoded:
    """A callback's result, encoded; arrays of other libraries are passed as objects."""
    if isinstance(result, NDArray) and result.is_lent:
        result = array(result)
    if isinstance(result, HandleObject):
        return Encoded(result._type_code, "v_handle", result.handle, result)
    return encode_plain(result) or _encode_object(result)


def _remember(pointer: int | None, keep: object) -> None:
    """Keep a result until the running call returns; at most the latest 64."""
    running = _thread.running
    if running is None:
        running = _thread.running = _Running({})
    returned = running.returned
    returned.pop(pointer, None)
    returned[pointer] = keep
    if len(returned) > _MAX_RETURNED:
        del returned[next(iter(returned))]


def _name_of(function: object) -> str:
    name = str(getattr(function, "__name__", type(function).__name__))
    return name.encode("utf-8", "backslashreplace").decode()


def _place_of_the_running_call() -> dict[str, object]:
    """The objects through which compiled code accesses the running call."""
    return {"thread": _thread, "running": sys.intern("running")}


@Once
def native() -> NativeCode:
    """The glue, which knows the functions that it calls and the objects that it reads."""
    code = glue()
    code.set_objects(
        answer=answer,
        loan=Loan,
        over=sys.intern("over"),
        true=True,
        **_place_of_the_running_call(),
    )
    return code


@Once
def _call_within() -> Callable[[_Running, Callable[[], Any]], Any]:
    """Makes a call the running one while a function runs. No signal is handled between the end of
    the function and the return to the previous call, since compiled code may still be reading its
    results."""
    return _CALL_WITHIN(native().function("call_within"))
