"""The compiled call path of the process, and the tables that it reads.

The code of a call is in :mod:`minitvm.runtime.call_path_text`. Foreign objects are read in place
only where :mod:`minitvm.runtime.foreign` has found their fields at the expected places.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from typing import Any, final

import numpy as np

import minitvm.runtime.exchange as exchange
import minitvm.runtime.foreign as foreign
from minitvm.runtime.call_path_text import (
    CALL_PATH,
    DTYPE_NUMBERS,
    MOST_ROUTES,
    Route,
    call_path_text,
)
from minitvm.runtime.cases_text import COMPARED_TYPES
from minitvm.runtime.device import Device
from minitvm.runtime.dlpack import VERSION, DLDevice, raw_dtype
from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import REFUSALS
from minitvm.runtime.frameworks import is_immutable
from minitvm.runtime.heap_types import function, leaf
from minitvm.runtime.native import NativeCode, Once
from minitvm.runtime.native_text import fields_of
from minitvm.runtime.ndarray import NDArray
from minitvm.runtime.outputs_text import TORCH_DTYPES, TorchDtype
from minitvm.runtime.torch_state import torch_state
from minitvm.runtime.values import ArgTypeCode

_MOST_CONSTANTS = 256
_ENTRIES = ("call_packed", "call_entry", "call_returning", "call_cases", "call_operator")


class Row(ctypes.Structure):
    """A row of the compiled code's table: a type and its route."""

    _fields_ = fields_of(CALL_PATH, "Route")


@final
class CallPath:
    """The compiled call path, and its tables."""

    def __init__(self, type_offset: int) -> None:
        code = NativeCode(call_path_text(type_offset))
        self.entries = {name: code.function(name) for name in _ENTRIES}
        self._code = code
        self._rows = (Row * MOST_ROUTES).from_address(code.data("routes"))
        self._types: list[type] = []  # the types of the rows, kept alive here
        self._met: weakref.WeakSet[type] = weakref.WeakSet()
        self._constants: dict[object, int] = {}
        self._knows_torch_state: bool | None = None
        self.torch_fields = (ctypes.c_int64 * 3).from_address(code.data("torch_fields"))
        self._dtypes = (ctypes.c_int32 * DTYPE_NUMBERS).from_address(code.data("dtypes"))
        code.set_objects(
            constants=self._constants,
            none=None,
            true=True,
            tuple_type=tuple,
            refusals=REFUSALS,
            float_type=float,
            out_name=sys.intern("out"),
            record_name=sys.intern("record"),
            record_unwatched=sys.intern("record_unwatched"),
            exception=Exception,
            attribute_error=AttributeError,
            call_slowly=sys.intern("_call_slowly"),
            fail=sys.intern("_fail"),
            take=sys.intern("_take"),
            requires_grad=sys.intern("requires_grad"),
            is_neg=sys.intern("is_neg"),
            is_conj=sys.intern("is_conj"),
            current_level=sys.intern("_current_level"),
        )
        compared = (ctypes.c_void_p * len(COMPARED_TYPES)).from_address(code.data("compared_types"))
        compared[:] = [id(each) for each in COMPARED_TYPES]
        self._add_own_routes()

    def keep_running_call(self, **place: object) -> None:
        """Sets the place where the running call is noted: ``thread``, and the name of its
        attribute, ``running``."""
        self._code.set_objects(**place)

    def importer(self, array_of: int) -> Any:
        """A function that makes an NDArray of an array's memory, by the function ``array_of`` of
        our exchange API. It returns None where Python code has to make the NDArray."""
        self._code.set_objects(
            dlpack=sys.intern("__dlpack__"),
            version=VERSION,
            keywords=(sys.intern("max_version"),),
        )
        self._code.set_address("array_of", array_of)
        return function("from_dlpack", self._code.function("import_array"))

    def add_route(
        self, kind: type, route: Route, code: int = 0, function: int = 0, managed: int = 0
    ) -> None:
        """Converts arguments whose type is exactly `kind` by `route` from now on."""
        if len(self._types) + 1 < MOST_ROUTES:  # the last row marks the end
            self._types.append(kind)
            self._rows[len(self._types) - 1] = Row(id(kind), route, code, function, managed)

    def has_route(self, kind: type) -> bool:
        """Whether arguments whose type is exactly `kind` are converted by compiled code."""
        return kind in self._types

    def let_make(self, kind: type) -> None:
        """Lets compiled code make new arrays of a type's library, if the type has a route, and an
        exchange API that allocates."""
        functions = exchange.functions_of(kind)
        if functions is not None and kind in self._types:
            row = self._rows[self._types.index(kind)]
            row.allocate, row.to_object = functions.allocate, functions.to_object

    def add_own(self, kind: type, code: ArgTypeCode) -> None:
        """Passes arguments of one of our own types under its type code."""
        is_function = code == ArgTypeCode.PACKED_FUNC_HANDLE
        self.add_route(kind, Route.STORED if is_function else Route.ITSELF, code)

    def learn(self, value: object) -> None:
        """Lets arguments like `value`, which Python code has just converted, take the compiled path
        the next time, if they can."""
        kind = type(value)
        if kind is np.ndarray:
            self._learn_dtype(value.dtype)  # type: ignore[attr-defined]  # mypy: object
        elif isinstance(value, DType | Device):
            if len(self._constants) < _MOST_CONSTANTS:
                self._constants[value] = _constant(value)
        elif kind not in self._met:
            self._met.add(kind)
            self._learn_type(kind)

    def learn_torch_state(self, torch: Any) -> bool:
        """Lets compiled code find out whether something watches torch's operators; returns whether
        it can."""
        if self._knows_torch_state is None:
            found = torch_state(torch)
            self._knows_torch_state = found is not None
            if found is not None:
                for name in ("noters", "watchers", "autocast"):
                    place = ctypes.c_uint64.from_address(self._code.data(f"torch_{name}"))
                    place.value = getattr(found, name)
                for name in ("function_modes", "observed", "guard"):  # the last one is read first
                    self._code.set_address(f"torch_{name}", getattr(found, name))
        return self._knows_torch_state

    def _add_own_routes(self) -> None:
        if foreign.numpy_is_as_expected():
            self.add_route(np.ndarray, Route.NUMPY)
            self._code.set_objects(array_type=np.ndarray)
            self._code.set_address("new_array", foreign.numpy_new_array())
        for kind, route, code in (
            (NDArray, Route.NDARRAY, 0),
            (int, Route.INT, 0),
            (float, Route.FLOAT, 0),
            (bool, Route.BOOL, 0),
            (str, Route.STR, 0),
            (bytes, Route.BYTES, 0),
            (type(None), Route.NONE, 0),
            (ctypes.c_void_p, Route.POINTER, 0),
            (DType, Route.CONSTANT, ArgTypeCode.DATA_TYPE),
            (Device, Route.CONSTANT, ArgTypeCode.DEVICE),
        ):
            self.add_route(kind, route, code)
        for name in "?bhilqBHILQefdFD":
            self._learn_dtype(np.dtype(name))

    def _learn_dtype(self, dtype: np.dtype[Any]) -> None:
        if dtype.num < DTYPE_NUMBERS and not dtype.hasobject and dtype.names is None:
            try:
                self._dtypes[dtype.num] = _constant(DType.of(dtype))
            except TypeError:
                return  # none of ours

    def _learn_type(self, kind: type) -> None:
        functions = exchange.functions_of(kind)
        if functions is None or not functions.tensor or is_immutable(kind):
            return
        torch = sys.modules.get("torch")
        if torch is None or not issubclass(kind, torch.Tensor):
            self.add_route(
                kind, Route.EXCHANGE, function=functions.tensor, managed=functions.managed
            )
        elif kind in (torch.Tensor, torch.nn.Parameter):  # subclasses may behave in any way
            self._code.set_objects(
                forward_ad=torch.autograd.forward_ad, is_grad_enabled=torch.is_grad_enabled
            )
            self._learn_torch(torch)
            self._learn_to_make_torch(torch)
            self.learn_torch_state(torch)
            self._code.set_address("torch_managed", functions.managed)
            self.add_route(kind, Route.TORCH, function=functions.tensor)

    def _learn_torch(self, torch: Any) -> None:
        found = foreign.torch_fields(torch)
        if found is None:
            return
        plain = (ctypes.c_uint64 * 2).from_address(self._code.data("torch_plain"))
        plain[:] = [found.plain, found.inference]
        self.torch_fields[:] = [found.tensor, found.keys, found.autograd]

    def _learn_to_make_torch(self, torch: Any) -> None:
        found = foreign.torch_allocator(torch)
        if found is None:
            return
        table = (TorchDtype * TORCH_DTYPES).from_address(self._code.data("torch_dtypes"))
        for row, (name, number) in zip(table, found.dtypes.items(), strict=False):
            row.dtype, row.number = _constant(DType.of(name)), number
        for field in ("data", "release", "wrap", "empty"):  # the last one is read first
            self._code.set_address(f"torch_{field}", getattr(found, field))


def _constant(value: DType | Device) -> int:
    """A DLDataType or DLDevice as an integer of its bytes."""
    if isinstance(value, Device):
        return int.from_bytes(bytes(DLDevice(value.device_type, value.device_id)), sys.byteorder)
    return int.from_bytes(bytes(raw_dtype(value)), sys.byteorder)


@Once
def call_path() -> CallPath | None:
    """The compiled call path of this process, made on the first call; None where objects don't have
    the expected layout, or several threads change them at once (free-threaded Python)."""
    offset = foreign.type_offset()
    if offset is None or "free-threading build" in sys.version:
        return None
    return CallPath(offset)


_leaves: dict[type, type] = {}


def leaf_of(cls: type, entry: str, *, is_method: bool = False) -> type:
    """The type of new instances of a class, whose calls enter compiled code where that is
    possible."""
    path = call_path()
    if path is None:
        return cls
    if cls not in _leaves:
        _leaves.setdefault(cls, leaf(cls, path.entries[entry], is_method=is_method))
    return _leaves[cls]
