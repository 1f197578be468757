"""NDArray: a tensor in memory, its own or borrowed from any library that speaks DLPack."""

from __future__ import annotations

import ctypes
import math
import operator
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, final

import numpy as np

import minitvm.runtime.device_api.copies as copies
import minitvm.runtime.dlpack as dlpack
import minitvm.runtime.exchange as exchange
from minitvm.runtime.device import Device, cpu
from minitvm.runtime.device import device as find_device
from minitvm.runtime.device_api import registry
from minitvm.runtime.device_api.allocator import DeviceBlock
from minitvm.runtime.device_api.managed import ManagedDevice
from minitvm.runtime.device_api.streams import Stream, stream_of
from minitvm.runtime.dlpack import (
    DLTensor,
    TensorView,
    compact_strides,
    lead_alike,
)
from minitvm.runtime.dtype import UINT16, DType, DTypeLike
from minitvm.runtime.errors import StreamError
from minitvm.runtime.glue import glue
from minitvm.runtime.heap_types import HEADER, show_buffers, storage
from minitvm.runtime.sub_byte import read_codes, write_codes

_CPU = cpu(0)
_HOST = registry.managed(_CPU)
_FIRST_VERSIONED = (1, 0)  # the first version of DLPack whose capsules have a version and flags


class _Token:
    """The owner that exported memory keeps. When it is freed, the last consumer has let go."""

    __slots__ = ("__weakref__",)


@final
class Loan:
    """Memory that compiled code lends to a Python callback, until the callback returns."""

    __slots__ = ("_token", "over")

    def __init__(self) -> None:
        self.over = False
        self._token: weakref.ref[_Token] | None = None

    def token(self) -> _Token:
        """The owner of arrays that other libraries make from the lent memory."""
        token = self._token() if self._token is not None else None
        if token is None:
            token = _Token()
            self._token = weakref.ref(token)
        return token

    def is_exported(self) -> bool:
        """Whether another library still holds an array of the lent memory."""
        return self._token is not None and self._token() is not None


if TYPE_CHECKING:
    _Storage = object
else:
    # A DLTensor, and flags for compiled code: 1 for read-only; 2 for arrays that are left to Python
    # code, which are lent arrays and those that a DLTensor can't fully describe; 4 for empty.
    _Storage = storage(
        "minitvm.runtime.ndarray.Storage",
        ctypes.sizeof(DLTensor) + 8,
        shows_buffers=sys.version_info < (3, 12),
    )


@final
class NDArray(_Storage):
    """A tensor: an address, a shape, strides and a dtype. Made by :func:`array` and its siblings.

    Compiled functions read and write it in place, and so does every library that speaks DLPack
    (``np.from_dlpack(a)``, ``torch.from_dlpack(a)``). ``numpy()`` copies, as in classic TVM.

    >>> a = array([[1, 2, 3], [4, 5, 6]], dtype="float32")
    >>> a.shape, a.dtype, a.device
    ((2, 3), DType('float32'), cpu(0))
    >>> a[:, ::-1].numpy()
    array([[3., 2., 1.],
           [6., 5., 4.]], dtype=float32)
    """

    __slots__ = ("__weakref__", "_dims", "_owner", "_seen")

    def __init__(self, view: TensorView, owner: object) -> None:
        """A tensor in memory that `owner` keeps alive; for other rooms, not for users."""
        if _to_do:
            _show_buffers()
        self._seen = view
        self._owner: object = owner
        self._dims = (ctypes.c_int64 * (2 * len(view.shape)))()
        tensor = DLTensor.from_address(id(self) + HEADER)
        dlpack.fill_tensor(tensor, view, ctypes.addressof(self._dims))
        flags = ctypes.c_int64.from_address(id(self) + HEADER + ctypes.sizeof(DLTensor))
        unusual = self.is_lent or not view.is_plain or not view.is_on_host
        flags.value = view.read_only | 2 * unusual | 4 * (0 in view.shape)

    @property
    def _view(self) -> TensorView:
        try:
            return self._seen
        except AttributeError:  # compiled code made the array
            tensor = id(self) + HEADER
            state = ctypes.c_int64.from_address(tensor + ctypes.sizeof(DLTensor)).value
            self._seen = dlpack.read_tensor(tensor, bool(state & dlpack.READ_ONLY))
            return self._seen

    # ---- Properties ------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        return self._view.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Distances between neighbours along each axis, in elements."""
        return self._view.strides

    @property
    def dtype(self) -> DType:
        return self._view.dtype

    @property
    def ndim(self) -> int:
        return len(self._view.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self._view.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of all elements, without the gaps between them."""
        return dlpack.size_of(self.shape, self.dtype, self.padded)

    @property
    def device(self) -> Device:
        return self._view.device

    ctx = device  # the name of `device` up to TVM 0.7

    @property
    def read_only(self) -> bool:
        return self._view.read_only

    @property
    def padded(self) -> bool:
        """Whether elements of fewer bits than a byte have a byte each, as in numpy. They are packed
        by default, as in DLPack."""
        return self._view.padded

    @property
    def needs_packing(self) -> bool:
        """Whether a DLTensor can't describe the elements: they are padded, or are packed and begin
        within a byte."""
        return not self._view.is_plain

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie row-major and without gaps."""
        return lead_alike(self.shape, self.strides, compact_strides(self.shape))

    @property
    def handle(self) -> int:
        """The address of the DLTensor, valid as long as this object."""
        self._check_loan()
        return id(self) + HEADER

    @property
    def data(self) -> int:
        """The address of the first element."""
        self._check_loan()
        return self._view.data

    @property
    def is_lent(self) -> bool:
        """Whether the memory was lent to a Python callback for one call."""
        return isinstance(self._owner, Loan)

    def same_as(self, other: object) -> bool:
        """Whether `other` is the same tensor: equal address, shape, strides and dtype."""
        if not isinstance(other, NDArray):
            return False
        return self._view._replace(read_only=False) == other._view._replace(read_only=False)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("NDArray: a 0-d array has no length")
        return self.shape[0]

    def __bool__(self) -> bool:
        to_do = "write `a is None`, `len(a)` or a condition on elements, as `(a.numpy() > 0).any()`"
        return bool(self._number("a truth value (`if a`, `a and b`)", to_do))

    def __float__(self) -> float:
        return float(self._number("float(a)", "take one, as in `float(a[0])`, or `a.numpy()`"))

    def __int__(self) -> int:
        return int(self._number("int(a)", "take one, as in `int(a[0])`, or `a.numpy()`"))

    def _number(self, use: str, to_do: str) -> Any:
        """The only element, where Python code needs one number."""
        if self.size != 1:
            raise ValueError(
                f"NDArray: expected one element for {use}, got the shape {self.shape}: {to_do}"
            )
        return self.item()

    def __repr__(self) -> str:
        head = f"NDArray(shape={self.shape}, dtype='{self.dtype}', device={self.device})"
        if isinstance(self._owner, Loan) and self._owner.over:
            return f"<{head}, lent for a call that has returned>"
        return f"<{head}>\n{_shown(_on_host(self))}"

    # ---- Parts -----------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> NDArray:
        """The part at `key` (integers, slices, ``...``, None), a view of the same memory.

        Raises
        ------
        IndexError
            When an index lies outside.
        TypeError
            For arrays and lists of indices, which need a copy.

        >>> array([[1, 2], [3, 4]])[1, ::-1].numpy()
        array([4, 3])
        """
        keys = key if isinstance(key, tuple) else (key,)
        for part in keys:
            basic = part is None or part is Ellipsis or isinstance(part, slice)
            if not basic and (isinstance(part, bool) or not hasattr(part, "__index__")):
                kind = type(part).__name__
                raise TypeError(f"NDArray: expected integers and slices as indices, got {kind}")
        if not any(part is Ellipsis for part in keys):
            keys = (*keys, Ellipsis)  # numpy then answers with an array, never with a scalar
        return self._arranged(_offsets(self)[keys])

    def __setitem__(self, key: Any, value: Any) -> None:
        """Copy `value` into the part at `key`; broadcasts and converts as numpy does.

        >>> a = empty((2, 2))
        >>> a[...] = 7
        >>> a.numpy()
        array([[7., 7.],
               [7., 7.]], dtype=float32)
        """
        _assign(self[key], value)

    def __iter__(self) -> Iterator[NDArray]:
        return (self[index] for index in range(len(self)))

    def reshape(self, *shape: int | tuple[int, ...], copy: bool | None = None) -> NDArray:
        """The same elements, row after row, in another shape; one extent may be -1.

        Parameters
        ----------
        shape
            The extents.
        copy
            By default the result is a view if the strides allow it, and otherwise a copy; False
            refuses to copy, True always copies.

        Raises
        ------
        ValueError
            When the sizes differ, or only a copy could have the shape, with ``copy=False``.

        >>> array([[1, 2, 3], [4, 5, 6]]).reshape(3, -1).numpy()
        array([[1, 2],
               [3, 4],
               [5, 6]])
        """
        extents = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        # numpy resolves -1, on an array that takes no memory.
        wanted = np.broadcast_to(np.int8(0), self.shape).reshape(extents).shape
        source = array(self) if copy else self
        try:
            return source._arranged(_offsets(source).reshape(wanted, copy=False))
        except ValueError:
            if copy is False:
                raise ValueError(
                    f"NDArray: reshape to {wanted}: expected copy=None or True, as strides "
                    f"{self.strides} need a copy, got copy=False"
                ) from None
        return array(self).reshape(wanted)

    def transpose(self, *axes: int | tuple[int, ...]) -> NDArray:
        """A view with the axes in another order, by default reversed.

        >>> array([[1, 2, 3], [4, 5, 6]]).transpose(1, 0).shape
        (3, 2)
        """
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], tuple) else axes
        offsets = _offsets(self)
        return self._arranged(offsets.transpose(*order) if order else offsets.T)

    @property
    def T(self) -> NDArray:
        """A view with the axes reversed."""
        return self.transpose()

    def view(self, dtype: DTypeLike) -> NDArray:
        """The same bytes as elements of another dtype. If the dtype has another size, the last
        axis, which must be without gaps, gets more or fewer elements.

        Raises
        ------
        ValueError
            When the bytes of the last axis aren't whole elements of the dtype.

        >>> array([1.0], dtype="float32").view("int32").numpy()
        array([1065353216], dtype=int32)
        >>> array([[1, 2, 3, 4]], dtype="uint8").view("uint16").shape
        (1, 2)
        """
        target = DType.of(dtype)
        changed = self._view._replace(dtype=target, padded=self.padded and target.is_sub_byte)
        old, new = self._view.element_bits, changed.element_bits
        if old == new:
            return NDArray(changed, self._owner)
        if self._view.bit or not self.shape or self.strides[-1] != 1 or self.shape[-1] * old % new:
            raise ValueError(
                f"NDArray: view expected a dtype of {old} bits, or a last axis without gaps of "
                f"whole elements, got {target} of {new} bits for shape {self.shape}, strides "
                f"{self.strides}"
            )
        if any(step * old % new for step in self.strides[:-1]):
            raise ValueError(
                f"NDArray: view expected strides of whole {target}, got strides {self.strides}"
            )
        strides = (*(step * old // new for step in self.strides[:-1]), 1)
        shape = (*self.shape[:-1], self.shape[-1] * old // new)
        return NDArray(changed._replace(shape=shape, strides=strides), self._owner)

    def _arranged(self, offsets: np.ndarray[Any, Any]) -> NDArray:
        """The elements at the offsets, an array of :func:`_offsets`, in their order."""
        self._check_loan()
        view = self._view._replace(shape=offsets.shape, strides=offsets.strides)
        first = self._view.bit + (offsets.ctypes.data - _NOWHERE) * self._view.element_bits
        if offsets.size:
            view = view._replace(data=self._view.data + first // 8, bit=first % 8)
        return NDArray(view, self._owner)

    # ---- Copies ----------------------------------------------------------------------------------

    def numpy(self) -> np.ndarray[Any, Any]:
        """The elements as a new numpy array. For an array on a device, the device finishes all
        requested work first.

        Raises
        ------
        TypeError
            When numpy has no such dtype. ``bfloat16`` needs the package ml_dtypes; without it,
            ``a.view("uint16").numpy()`` gives the bits.
        """
        return np.array(_typed_numpy(_on_host(self)), order="C")

    asnumpy = numpy

    def item(self) -> Any:
        """The only element as a Python number."""
        if self.size != 1:
            raise ValueError(f"NDArray: item expected one element, got the shape {self.shape}")
        return _values(_on_host(self)).item()

    def copyto(self, target: NDArray | Device, stream: Stream | None = None) -> NDArray:
        """Copy the elements into `target`, or into a new array on that device; returns it.

        Parameters
        ----------
        target
            An array of this shape and dtype, on any device, or a device.
        stream
            A stream of either array's device: the copy is done in the order of that stream, perhaps
            after this returns. Until then the caller must keep both arrays, must not write the
            source, and must not read the target. By default the copy comes after all earlier work
            of the devices, and is done when this returns.

        Raises
        ------
        ValueError
            When shape or dtype differ, the target is read-only, or the stream is another device's.
        DeviceError
            When a device fails, or an earlier failure on a stream hasn't been raised yet.
        """
        if isinstance(target, Device):
            made = empty(self.shape, self.dtype, target)
            _assign(made, self, stream)
            return made
        if not hasattr(target, "copyfrom"):
            kind = type(target).__name__
            raise TypeError(f"NDArray: copyto expected an NDArray or a Device, got {kind}")
        if (target.shape, target.dtype) != (self.shape, self.dtype):
            raise ValueError(
                f"NDArray: copyto expected a target of shape {self.shape} and dtype {self.dtype}, "
                f"got {target.shape} and {target.dtype}"
            )
        _assign(target, self, stream)
        return target

    def copyfrom(self, source: Any, stream: Stream | None = None) -> NDArray:
        """Copy the elements of an array of the same shape, converted to this dtype; returns self.

        For bfloat16, an array of uint16 holds the bits, as in classic TVM. For `stream`, see
        :meth:`copyto`.

        Raises
        ------
        ValueError
            When the shape differs or this array is read-only.
        """
        values = source if isinstance(source, NDArray) else _source(source)
        if values.shape != self.shape:
            raise ValueError(
                f"NDArray: copyfrom expected a source of shape {self.shape}, got {values.shape}"
            )
        _assign(self, values, stream)
        return self

    def __reduce__(self) -> tuple[Callable[..., NDArray], tuple[Any, ...]]:
        self._check_loan()
        source = _on_host(self)
        compact = array(source) if self.needs_packing or not source.is_contiguous else source
        content = ctypes.string_at(compact.data, compact.nbytes)
        state = (content, self.shape, self.dtype)
        return _from_bytes, state if source is self else (*state, self.device)

    # ---- Other libraries -------------------------------------------------------------------------

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule of this memory, or of a copy.

        Parameters
        ----------
        stream
            For an array on a device, the consumer's stream: a stream of ours or a handle of the
            device's. It then waits for the earlier work of the device. -1 waits for nothing; None
            waits here until the work is done. None on the CPU, which has no streams.
        max_version
            The newest version of DLPack that the consumer reads, (major, minor). Without it, or
            before 1.0, the capsule is of the old kind, which can't mark memory as read-only.
        dl_device
            The device that the consumer wants: the array's own, or the CPU, (1, 0), for a copy.
        copy
            True makes a copy, which belongs to the consumer alone; False never makes one.

        Raises
        ------
        BufferError
            For a stream, for another device, or for a read-only array if the consumer wants a
            capsule that can't mark it; and where only a copy could be exported, with
            ``copy=False``.
        """
        _ = NDArray.__dlpack_c_exchange_api__  # from now on compiled code replaces this method
        on_host = self._view.is_on_host
        if stream is not None and on_host:
            raise StreamError(f"NDArray: expected stream=None on the CPU, got {stream!r}")
        wanted = self.device if dl_device is None else Device(*_pair("dl_device", dl_device))
        moved = wanted != self.device
        if moved and (wanted != _CPU or (copy is not None and not copy)):
            raise BufferError(f"NDArray: can't export memory of {self.device} as {wanted}")
        if not on_host and not moved:
            _wait_for_consumer(registry.managed(self.device), stream)
        versioned = (
            max_version is not None and _pair("max_version", max_version) >= _FIRST_VERSIONED
        )
        # DLPack has a flag for padding, but none for a begin within a byte.
        repacked = self.needs_packing and not (versioned and self.padded)
        if repacked and copy is not None and not copy:
            raise BufferError(
                f"NDArray: expected packed {self.dtype} from the beginning of a byte, got padded "
                "elements or a part, which need a copy"
            )
        source = array(self, wanted) if copy or repacked or moved else self
        if source.read_only and not versioned:
            raise BufferError("NDArray: read-only memory needs a consumer of DLPack 1.0 or newer")
        return dlpack.export(
            source._view, source._export_owner(), versioned=versioned, copied=source is not self
        )

    _dlpack_slowly = __dlpack__

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device.device_type, self.device.device_id)

    __dlpack_c_exchange_api__: object = exchange.Exchange(lambda: rare())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """numpy's protocol: ``np.asarray(a)`` shares the memory."""
        values = _typed_numpy(self)
        if copy is False and self._view.is_packed:
            raise ValueError(f"NDArray: can't give packed {self.dtype} to numpy uncopied")
        if dtype is not None and np.dtype(dtype) != values.dtype:
            if copy is False:
                raise ValueError(f"NDArray: can't give {self.dtype} as {np.dtype(dtype)} uncopied")
            return values.astype(dtype)
        return values.copy() if copy else values

    def __buffer__(self, flags: int) -> memoryview:
        """The buffer protocol: ``memoryview(a)`` shows the memory.

        Raises
        ------
        BufferError
            When the protocol has no format for the dtype.
        """
        shown: Any = _shown_in_place(self)
        return memoryview(shown)

    def _export_owner(self) -> object:
        """The object that other libraries have to hold for as long as they use the memory."""
        self._check_loan()
        return self._owner.token() if isinstance(self._owner, Loan) else self

    def _check_loan(self) -> None:
        if isinstance(self._owner, Loan) and self._owner.over:
            raise ValueError(
                "NDArray: its memory was lent to a callback for one call, which has returned; "
                "keep a copy (a.numpy() or nd.array(a)) instead"
            )


# ---- Making --------------------------------------------------------------------------------------


def empty(
    shape: int | tuple[int, ...],
    dtype: DTypeLike = "float32",
    device: Device | str | None = None,
    mem_scope: str | None = None,
) -> NDArray:
    """A new array with unspecified elements, on the CPU in memory aligned to 256 bytes.

    Parameters
    ----------
    shape, dtype
        Of the array.
    device
        The array's device: the CPU by default. Its memory comes from the device's cache
        (docs/device_memory.md), with ``with stream:`` in the order of that stream.
    mem_scope
        Classic; only "global".

    Raises
    ------
    ValueError
        For a negative extent, a device that isn't there, or a memory scope.
    DeviceMemoryError
        When the device has no memory left.

    >>> empty((2, 3)).shape
    (2, 3)
    """
    place = place_of(device, mem_scope)
    extents = shape if isinstance(shape, tuple | list) else (shape,)
    dims = tuple(operator.index(extent) for extent in extents)
    if min(dims, default=0) < 0 or len(dims) > dlpack.MAX_NDIM:
        raise ValueError(f"NDArray: expected extents of at least 0, got the shape {dims}")
    kind = DType.of(dtype)
    dlpack.check_dtype(kind)
    nbytes = dlpack.size_of(dims, kind)
    block = place.allocate(nbytes) if nbytes else None
    data = 0 if block is None else block.address
    view = TensorView(data, dims, compact_strides(dims), kind, device=place.device)
    return NDArray(view, block)


def array(
    arr: Any,
    device: Device | str | None = None,
    mem_scope: str | None = None,
    dtype: DTypeLike | None = None,
) -> NDArray:
    """A new array with the elements of `arr`: an NDArray, any array, nested lists, a number.

    Parameters
    ----------
    arr
        The elements, on any device.
    device, mem_scope
        The device of the new array: the CPU by default.
    dtype
        The dtype of the result; by default that of `arr` (of ``np.array(arr)``, for lists). For
        bfloat16, an array of uint16 holds the bits, as in classic TVM.

    >>> array([1, 2], dtype="bfloat16").dtype
    DType('bfloat16')
    """
    place_of(device, mem_scope)
    source = _source(arr)
    target = empty(source.shape, source.dtype if dtype is None else dtype, device)
    _assign(target, source)
    return target


def _wait_for_consumer(place: ManagedDevice, stream: Any) -> None:
    """The producer's part of DLPack's protocol of streams."""
    if stream is None or not place.driver.has_streams:
        place.synchronize()
    elif isinstance(stream, Stream):
        stream_of(place.device, stream, "NDArray: __dlpack__").wait(place.current_stream.record())
    elif stream != -1:
        event = place.current_stream.record()
        place.driver.stream_wait_event(place.device, stream, event.handle, place.device)


def _export_managed(exported: object) -> int:
    found = _own(exported)
    source = found if found.padded or not found.needs_packing else array(found)
    return dlpack.write_managed(
        source._view, source._export_owner(), versioned=True, copied=source is not found
    )


def _adopt_managed(managed: int) -> NDArray:
    taken = dlpack.adopt(managed, True)
    return NDArray(taken.view, taken.owner)


def _lent_tensor(lent: object) -> int:
    found = _own(lent)
    if found.needs_packing:
        raise BufferError(
            f"NDArray: expected packed {found.dtype} from the beginning of a byte, got padded "
            "elements or a part: pass tvm.nd.array(x)"
        )
    return found.handle


def _own(value: object) -> NDArray:
    if not isinstance(value, NDArray):
        kind = type(value).__name__
        raise TypeError(f"expected an NDArray, whose exchange API this is, got {kind}")
    return value


def rare() -> exchange.Rare:
    """The Python functions for the cases that compiled code leaves to them. From now on compiled
    code makes arrays by itself."""
    if _to_do:
        _show_buffers()
    return exchange.Rare(_export_managed, _adopt_managed, _lent_tensor)


def as_ndarray(source: Any) -> NDArray | None:
    """`source` as it is, as an NDArray that keeps it alive; None when it is no array.

    Numpy arrays are read by their own attributes, which tell more than their DLPack export: they
    may be read-only, or have a dtype that numpy doesn't export. Objects that numpy can view in
    place are read through numpy: those with the buffer protocol (``memoryview``, ``array.array``,
    ``mmap``, arrays of ctypes) or ``__array_interface__``. ``bytes`` and ``bytearray`` aren't
    arrays, but values of their own kind.

    Raises
    ------
    BufferError, ValueError, TypeError
        When it is an array that can't be used in place; frameworks also raise types of their own.
    """
    if isinstance(source, NDArray):
        return source
    if isinstance(source, np.ndarray):
        return NDArray(read_numpy(source), source)
    if isinstance(source, type | np.generic | bytes | bytearray):
        return None
    if hasattr(source, "__dlpack__"):
        capsule, read_only = dlpack.request(source, accepts=registry.exists)
        return NDArray(dlpack.borrow(capsule, read_only, registry.exists), capsule)
    seen = _seen_by_numpy(source)
    return None if seen is None else NDArray(read_numpy(seen), seen)


def _pair(name: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"NDArray: expected {name} to be a pair of integers, got {value!r}")
    return operator.index(value[0]), operator.index(value[1])


def place_of(device: Device | str | None, mem_scope: str | None) -> ManagedDevice:
    """The device for new memory."""
    if mem_scope not in (None, "", "global"):
        raise ValueError(f"NDArray: expected the memory scope 'global', got {mem_scope!r}")
    if device is None:
        return _HOST
    found: object = find_device(device) if isinstance(device, str) else device
    if not isinstance(found, Device):
        kind = type(device).__name__
        raise TypeError(f"NDArray: expected a device such as tvm.cpu(0), got {kind}")
    try:
        return registry.managed(found)
    except ValueError as error:
        error.args = (f"NDArray: {error}",)
        raise


def _on_host(source: NDArray) -> NDArray:
    """The array itself; for an array on a device, a copy on the CPU with the same layout."""
    if source._view.is_on_host:
        return source
    source._check_loan()
    view, owner = copies.fetch(source._view)
    return NDArray(view, owner)


def _from_bytes(
    content: bytes, shape: tuple[int, ...], dtype: DType, device: Device = _CPU
) -> NDArray:
    made = empty(shape, dtype)
    ctypes.memmove(made.data, content, len(content))
    return made if device == _CPU else made.copyto(device)


# ---- Between numpy and us ------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _dtype_of_numpy(dtype: np.dtype[Any]) -> DType:
    if not dtype.isnative:
        raise ValueError(
            f"expected elements in native byte order, got {dtype.str}: pass "
            "x.astype(x.dtype.newbyteorder('='))"
        )
    try:
        return DType.of(dtype)
    except TypeError:
        raise TypeError(
            f"expected elements of a dtype that minitvm has, got {dtype}: convert them, as in "
            'x.astype("float32")'
        ) from None


def read_numpy(source: np.ndarray[Any, Any]) -> TensorView:
    if type(source) is not np.ndarray and isinstance(source, np.ma.MaskedArray):
        raise TypeError("expected an array without a mask, got a masked array: pass x.filled(...)")
    dtype = _dtype_of_numpy(source.dtype)
    itemsize = dtype.itemsize
    strides = source.strides
    if any(step % itemsize for step in strides) and source.size:
        raise ValueError(
            f"expected strides of whole {itemsize}-byte elements, got {strides} bytes: pass a copy"
        )
    steps = tuple(step // itemsize for step in strides)
    fixed = not source.flags.writeable
    return TensorView(source.ctypes.data, source.shape, steps, dtype, fixed, dtype.is_sub_byte)


def _seen_by_numpy(source: object) -> np.ndarray[Any, Any] | None:
    """The memory that another object shows by the protocols of Python or numpy, without a copy."""
    if hasattr(source, "__array_interface__"):
        return np.asarray(source)
    try:
        memory: memoryview[Any] = memoryview(source)  # type: ignore[arg-type]  # if it has one
    except TypeError:
        return None
    if memory.ndim == 0:  # a ctypes number isn't an array
        return None
    try:
        return np.asarray(memory)
    except ValueError:
        found = f"the buffer format {memory.format!r}"
        raise TypeError(
            f"expected elements of a dtype that minitvm has, got {found}: convert them, as in "
            'x.astype("float32")'
        ) from None


class _Interface:
    """Hands memory to numpy, which keeps this object, which keeps the owner."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, interface: dict[str, Any], owner: object) -> None:
        self.__array_interface__ = interface
        self._owner = owner


_NOWHERE = 1 << 61


def _offsets(source: NDArray) -> np.ndarray[Any, Any]:
    """A numpy array without memory, in which a byte stands for each element. numpy computes parts
    and shapes on it; nobody may read it."""
    interface = {
        "version": 3,
        "shape": source.shape,
        "strides": source.strides,
        "typestr": "|V1",
        "data": (_NOWHERE, True),
    }
    return np.asarray(_Interface(interface, None))


def _raw_numpy(source: NDArray) -> np.ndarray[Any, Any]:
    """The memory as a numpy array of a dtype of the same size; a last axis for the lanes. Not for
    packed elements."""
    owner = _owner_on_host(source)
    dtype = source.dtype
    element = dtype.element
    # The stride of a single element has no meaning, and may have any value.
    strides = tuple(
        (1 if extent == 1 else step) * dtype.itemsize
        for extent, step in zip(source.shape, source.strides, strict=True)
    )
    shape = source.shape
    if dtype.lanes > 1:
        shape, strides = (*shape, dtype.lanes), (*strides, element.itemsize)
    kind = _numpy_of(element)
    if kind is None:
        kind = np.dtype(f"V{element.itemsize}")
    return _in_place(source.data, shape, strides, kind, source.read_only, owner)


def _owner_on_host(source: NDArray) -> object:
    """The object that numpy has to hold for as long as it uses the memory."""
    if not source._view.is_on_host:
        raise BufferError(
            f"NDArray: expected memory of the CPU, got an array on {source.device}: a.numpy() and "
            "a.copyto(tvm.cpu(0)) copy it"
        )
    return source._export_owner()


def _in_place(
    data: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    kind: np.dtype[Any],
    read_only: bool,
    owner: object,
) -> np.ndarray[Any, Any]:
    if 0 in shape:
        return np.empty(shape, kind)
    interface = {
        "version": 3,
        "shape": shape,
        "strides": strides,
        "typestr": kind.str,
        "data": (data, read_only),
    }
    return np.asarray(_Interface(interface, owner))


@lru_cache(maxsize=256)
def _numpy_of(dtype: DType) -> np.dtype[Any] | None:
    """numpy's own dtype; None if it has none."""
    try:
        return dtype.to_numpy()
    except TypeError:
        return None


def _added_to_numpy(dtype: DType) -> np.dtype[Any]:
    """The dtype that ml_dtypes adds to numpy.

    Raises
    ------
    TypeError
        When numpy has no such dtype.
    """
    name = str(dtype)
    try:
        import ml_dtypes
    except ImportError:
        ml_dtypes = None
    if hasattr(ml_dtypes, name):
        kind: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return kind
    bits = dtype.bits if dtype.bits in (16, 32, 64) else 8
    hint = f"a.view('uint{bits}').numpy() gives the bits"
    if ml_dtypes is None and not dtype.is_handle:
        hint = "install ml_dtypes, or " + hint
    raise TypeError(f"NDArray: numpy has no dtype {name}: {hint}")


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The dtype that numpy has, or that ml_dtypes adds to it.

    Raises
    ------
    TypeError
        When numpy has no such dtype.
    """
    return _numpy_of(dtype) or _added_to_numpy(dtype)


def _typed_numpy(source: NDArray) -> np.ndarray[Any, Any]:
    """The elements as a numpy array of the array's own dtype: its memory, or a copy of packed
    elements."""
    element = source.dtype.element
    if _numpy_of(element) is not None:
        return _raw_numpy(source)
    kind = _added_to_numpy(element)
    return (_codes(source) if source._view.is_packed else _raw_numpy(source)).view(kind)


def _codes(source: NDArray) -> np.ndarray[Any, Any]:
    """The bits of elements of fewer bits than a byte: a byte for each, in a new array."""
    if not source._view.is_packed:
        return np.array(_raw_numpy(source).view(np.uint8))
    return read_codes(source._view, _bytes(source))


def _bytes(source: NDArray) -> np.ndarray[Any, Any]:
    """All bytes from the first element to the last."""
    span, owner = source._view.span(), _owner_on_host(source)
    kind = np.dtype(np.uint8)
    return _in_place(span.start, (len(span),), (1,), kind, source.read_only, owner)


def _shown_in_place(source: NDArray) -> np.ndarray[Any, Any]:
    """The memory as a numpy array of a dtype that the buffer protocol has a format for."""
    if _numpy_of(source.dtype.element) is None:
        raise BufferError(
            f"NDArray: a memoryview has no format for {source.dtype.element}: a.view('uint8') has"
        )
    return _raw_numpy(source)


# Before Python 3.12, CPython doesn't know `__buffer__`.
_to_do = ["show buffers"] if sys.version_info < (3, 12) else []


def _show_buffers() -> None:
    glue().set_objects(show=_shown_in_place)
    show_buffers(NDArray, glue().function("get_buffer"))
    _to_do.clear()


def _values(source: NDArray) -> np.ndarray[Any, Any]:
    """The elements as numbers: bfloat16 as float32, which holds each of its values."""
    if not source.dtype.is_bfloat16:
        return _typed_numpy(source)
    bits = _raw_numpy(source).view(np.uint16)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _shown(source: NDArray) -> np.ndarray[Any, Any]:
    """The text to print: the elements, or their bits where numpy has no such dtype."""
    try:
        return _values(source)
    except TypeError:
        return _codes(source) if source._view.is_packed else _raw_numpy(source)


def _source(value: Any) -> NDArray:
    known = as_ndarray(value)
    if known is not None:
        return known
    made = np.asarray(value)
    if made.dtype.kind == "O":
        raise TypeError(f"NDArray: expected an array or numbers, got {type(value).__name__}")
    return NDArray(read_numpy(made), made)


def _assign(target: NDArray, value: Any, stream: Stream | None = None) -> None:
    """Copy `value` into `target`: broadcast, converted as numpy's assignment converts."""
    if target.read_only:
        raise ValueError(
            "NDArray: expected a writable array, got a read-only one: copy it (tvm.nd.array(x)) "
            "and write that"
        )
    source = _source(value)
    if stream is not None:
        _check_stream(stream, target, source)
    if not (target._view.is_on_host and source._view.is_on_host):
        _assign_across(target, source, value, stream)
        return
    if stream is not None:
        stream.synchronize()
    _assign_on_host(target, source, isinstance(value, np.generic))


def _assign_on_host(target: NDArray, source: NDArray, is_number: bool) -> None:
    if target.dtype.is_bfloat16 and source.dtype == UINT16 and not is_number:
        target = target.view(UINT16)
    if target._view.is_packed or (source.dtype == target.dtype and source._view.is_packed):
        _assign_codes(target, _codes_as(target.dtype, source))
    elif source.dtype == target.dtype:
        _raw_numpy(target)[...] = _raw_numpy(source)
    elif target.dtype.is_bfloat16:
        rounded = _round_to_bfloat16(_values(source))
        _raw_numpy(target.view(UINT16))[...] = rounded
    else:
        _typed_numpy(target)[...] = _values(source)


def _assign_across(
    target: NDArray, source: NDArray, value: Any, stream: Stream | None = None
) -> None:
    """As :func:`_assign`, with one of the two on a device. The elements are copied as they are; the
    CPU converts, broadcasts, and gathers scattered elements."""
    for each in (target, source):
        each._check_loan()
    direct = target.shape == source.shape and copies.are_alike(target._view, source._view)
    if direct and not copies.may_overlap(target._view, source._view):
        used = used_on(stream, target, source)
        copies.copy(target._view, source._view, stream)
        if stream is not None:
            stream.keep(*used)
        return
    if stream is not None:
        stream.synchronize()
    known = source if source._view.is_on_host else _on_host(source)
    is_number = isinstance(value, np.generic)
    if target._view.is_on_host:
        _assign_on_host(target, known, is_number)
    elif target._view.is_packed:
        fetched = _on_host(target)
        _assign_on_host(fetched, known, is_number)
        copies.write_back(target._view, fetched._view)
    else:
        staged = _empty_like(target)
        _assign_on_host(staged, known, is_number)
        copies.copy(target._view, staged._view)


def _empty_like(target: NDArray) -> NDArray:
    """A compact array of the CPU whose elements have the same number of bytes."""
    memory = np.empty(dlpack.size_of(target.shape, target.dtype, target.padded), np.uint8)
    view = target._view._replace(
        data=memory.ctypes.data, strides=compact_strides(target.shape), device=_CPU
    )
    return NDArray(view, memory)


def used_on(stream: Stream | None, *arrays: NDArray) -> list[object]:
    """Notes that a stream is about to use arrays; returns the objects to keep meanwhile. For other
    rooms, not for users."""
    if stream is None:
        return []
    used: list[object] = []
    for each in arrays:
        owner = each._owner
        if isinstance(owner, DeviceBlock) and each.device == stream.device:
            registry.managed(each.device).use_on(owner, stream)
        else:
            used.append(owner)
    return used


def _check_stream(stream: Any, target: NDArray, source: NDArray) -> None:
    devices = [each.device for each in (target, source)]
    if isinstance(stream, Stream) and stream.device in devices:
        return
    listed = " or ".join(dict.fromkeys(map(str, devices)))
    found = f"one of {stream.device}" if isinstance(stream, Stream) else type(stream).__name__
    kind = ValueError if isinstance(stream, Stream) else TypeError
    raise kind(f"NDArray: expected a stream of {listed}, got {found}")


def _codes_as(dtype: DType, source: NDArray) -> np.ndarray[Any, Any]:
    """The elements of `source` as bits of another dtype, of fewer bits than a byte."""
    if source.dtype == dtype:
        return _codes(source)
    return _values(source).astype(_added_to_numpy(dtype.element)).view(np.uint8)


def _assign_codes(target: NDArray, codes: np.ndarray[Any, Any]) -> None:
    if not target._view.is_packed:
        _raw_numpy(target)[...] = codes.view(f"V{target.dtype.itemsize}")
        return
    lanes = target.dtype.lanes
    shape = target.shape if lanes == 1 else (*target.shape, lanes)
    if target.size:
        write_codes(target._view, _bytes(target), np.broadcast_to(codes, shape))


def _round_to_bfloat16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bits of the nearest bfloat16, ties to even; NaN stays a quiet NaN."""
    single = np.asarray(values, np.float32)
    bits = single.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40
    return np.where(np.isnan(single), quiet, rounded).astype(np.uint16)
