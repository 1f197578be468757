"""mdspan: views of a tensor's memory in the terms of C++.

``std::mdspan`` (C++23, [mdspan]) is an address, extents, and a *layout mapping*: the function from
indices to the offset of an element. CUDA's C++ library makes one of a ``DLTensor`` (libcudacxx,
"DLPack to mdspan"). This room makes the same checks in the same order, with the same texts, so that
Python raises the errors of a C++ kernel for the same array.
"""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Sequence
from enum import Enum
from typing import Any, final

import numpy as np

import minitvm.runtime.dlpack as dlpack
from minitvm.runtime.device_type import DEVICE_TYPES
from minitvm.runtime.dlpack import DLDevice, DLTensor, TensorView
from minitvm.runtime.dtype import DType, DTypeLike, TypeCode
from minitvm.runtime.ndarray import NDArray, as_ndarray
from minitvm.runtime.record import record


class LayoutPolicy(str, Enum):
    """The layouts that a view may ask for, named as C++ names them."""

    RIGHT = "layout_right"  # row-major without gaps, as arrays of C
    LEFT = "layout_left"  # column-major without gaps, as arrays of Fortran
    STRIDE = "layout_stride"  # any strides of at least 1
    STRIDE_RELAXED = "layout_stride_relaxed"  # any strides, also 0 and negative ones


layout_right = LayoutPolicy.RIGHT
layout_left = LayoutPolicy.LEFT
layout_stride = LayoutPolicy.STRIDE
layout_stride_relaxed = LayoutPolicy.STRIDE_RELAXED

_INT, _UINT, _FLOAT, _COMPLEX = TypeCode.INT, TypeCode.UINT, TypeCode.FLOAT, TypeCode.COMPLEX


def _element_types() -> dict[str, DType]:
    made = {
        "bool": DType(TypeCode.BOOL, 8),
        "half": DType(_FLOAT, 16),
        "bf16": DType(TypeCode.BFLOAT, 16),
        "float": DType(_FLOAT, 32),
        "double": DType(_FLOAT, 64),
        "float128": DType(_FLOAT, 128),
        "e4m3": DType(10, 8),
        "e5m2": DType(12, 8),
        "e8m0": DType(14, 8),
        "e2m3": DType(15, 6),
        "e3m2": DType(16, 6),
        "e2m1": DType(17, 4),
        "complex32": DType(_COMPLEX, 32),
        "complex64": DType(_COMPLEX, 64),
        "complex128": DType(_COMPLEX, 128),
    }
    for bits in (8, 16, 32, 64, 128):
        made[f"int{bits}"], made[f"uint{bits}"] = DType(_INT, bits), DType(_UINT, bits)
    vectors = (
        ("char", _INT, 8), ("uchar", _UINT, 8), ("short", _INT, 16), ("ushort", _UINT, 16),
        ("int", _INT, 32), ("uint", _UINT, 32), ("longlong", _INT, 64), ("ulonglong", _UINT, 64),
        ("float", _FLOAT, 32), ("double", _FLOAT, 64),
    )  # fmt: skip
    for name, code, bits in vectors:
        for lanes in (2, 4):
            made[f"{name}{lanes}"] = DType(code, bits, lanes)
    return made


ELEMENT_TYPES: dict[str, DType] = _element_types()
"""The element types of C++ by short names: ``float``, ``half``, ``bf16``, ``e4m3`` (DLPack's
``float8_e4m3fn``), ``int64``, ``complex64`` (two floats), vectors as ``float2``."""


@final
@record()
class Mapping:
    """A layout mapping: from indices to offsets, in elements.

    >>> mapping = Mapping(layout_left, (2, 3), (1, 2))
    >>> mapping(1, 2), mapping.required_span_size(), mapping.is_exhaustive()
    (5, 6, True)
    """

    layout: LayoutPolicy
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0  # of the element at indices 0; always 0 except in layout_stride_relaxed

    def __call__(self, *indices: int) -> int:
        """The offset of the element at `indices`, one for each extent.

        Raises
        ------
        IndexError
            When there are more or fewer indices than extents, or one leaves its extent. (In C++
            that is undefined.)
        """
        if len(indices) != len(self.extents):
            raise IndexError(f"mdspan: expected {len(self.extents)} indices, got {len(indices)}")
        total = self.offset
        for axis, (index, extent) in enumerate(zip(indices, self.extents, strict=True)):
            place = operator.index(index)
            if not 0 <= place < extent:
                raise IndexError(f"mdspan: index {axis} must stay in [0, {extent}), got {place}")
            total += place * self.strides[axis]
        return total

    def stride(self, axis: int) -> int:
        """The distance of neighbours along an axis, in elements."""
        return self.strides[axis]

    def required_span_size(self) -> int:
        """One more than the largest offset; 0 where there is no element."""
        return 0 if 0 in self.extents else self._ends()[1] + 1

    def _ends(self) -> tuple[int, int]:
        """The least and the largest offset, where there is an element."""
        axes = zip(self.strides, self.extents, strict=True)
        reach = [step * (extent - 1) for step, extent in axes]
        low, high = (sum(pick(each, 0) for each in reach) for pick in (min, max))
        return self.offset + low, self.offset + high

    def is_unique(self) -> bool:
        """Whether no two elements share an offset, as far as the strides show it: each stride must
        exceed the reach of all shorter strides together."""
        if 0 in self.extents:
            return True
        reach = 0
        steps = zip(map(abs, self.strides), self.extents, strict=True)
        for step, extent in sorted(each for each in steps if each[1] > 1):
            if step <= reach:
                return False
            reach += step * (extent - 1)
        return True

    def is_exhaustive(self) -> bool:
        """Whether every offset in the required span belongs to an element."""
        if 0 in self.extents:
            return True
        return self._ends() == (0, math.prod(self.extents) - 1) and self.is_unique()

    def is_strided(self) -> bool:
        """Whether each axis has one stride, as all these layouts have."""
        return True


@final
class MdSpan:
    """A view of another object's memory; :func:`to_host_mdspan` and others make it.

    It keeps the owner alive where the array names it; the memory of a bare ``DLTensor`` has to
    outlive the view, as in C++.

    >>> import numpy as np
    >>> x = np.arange(6, dtype="float32").reshape(2, 3)
    >>> md = to_host_mdspan(x, "float32", 2)
    >>> md[1, 2], md.extents, md.strides
    (5.0, (2, 3), (3, 1))
    >>> md[0, 0] = 9
    >>> float(x[0, 0])
    9.0
    """

    __slots__ = ("_owner", "data_handle", "element_type", "mapping", "memory", "read_only")

    def __init__(
        self,
        data_handle: int,
        mapping: Mapping,
        element_type: DType,
        memory: str,
        read_only: bool,
        owner: object,
    ) -> None:
        self.data_handle = data_handle
        self.mapping = mapping
        self.element_type = element_type
        self.memory = memory
        self.read_only = read_only
        self._owner = owner

    @property
    def extents(self) -> tuple[int, ...]:
        return self.mapping.extents

    @property
    def strides(self) -> tuple[int, ...]:
        """Distances between neighbours along each axis, in elements."""
        return self.mapping.strides

    def rank(self) -> int:
        return len(self.extents)

    def extent(self, axis: int) -> int:
        return self.extents[axis]

    def stride(self, axis: int) -> int:
        return self.mapping.strides[axis]

    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.extents)

    def empty(self) -> bool:
        return 0 in self.extents

    def is_unique(self) -> bool:
        return self.mapping.is_unique()

    def is_exhaustive(self) -> bool:
        return self.mapping.is_exhaustive()

    def is_strided(self) -> bool:
        return self.mapping.is_strided()

    def __getitem__(self, indices: int | tuple[int, ...]) -> Any:
        """The element at `indices`: a Python number, of vectors a tuple; in host memory only.

        Raises
        ------
        IndexError
            When there are more or fewer indices than extents, or one leaves its extent.
        TypeError
            For device memory, and for elements that Python can't show.
        """
        element = self._element(indices)
        if element.dtype.code in (_INT, _UINT) and element.dtype.element.bits > 64:
            content = ctypes.string_at(element.data, element.dtype.itemsize)
            return int.from_bytes(content, "little", signed=element.dtype.is_int)
        if element.dtype.lanes > 1:
            return tuple(element.numpy().tolist())
        return element.item()

    def __setitem__(self, indices: int | tuple[int, ...], value: Any) -> None:
        """Write the element at `indices`.

        Raises
        ------
        IndexError, TypeError
            As for reading.
        ValueError
            When the memory is read-only.
        """
        self._element(indices)[...] = value

    def _element(self, indices: int | tuple[int, ...]) -> NDArray:
        if self.memory == "device":
            raise TypeError("device_mdspan: expected host memory to read or write an element of")
        place = self.mapping(*(indices if isinstance(indices, tuple) else (indices,)))
        address = self.data_handle + place * max(self.element_type.itemsize, 1)
        view = TensorView(address, (), (), self.element_type, self.read_only)
        return NDArray(view, self)

    def __repr__(self) -> str:
        return (
            f"{self.memory}_mdspan<{self.element_type}, {self.mapping.layout.value}>"
            f"(extents={self.extents}, strides={self.strides})"
        )


@final
class DLPackTensor:
    """A ``DLTensor`` with the memory of its shape and strides; see :func:`to_dlpack_tensor`."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: DLTensor, *owners: object) -> None:
        self._tensor = tensor
        tensor.owners = owners

    def get(self) -> DLTensor:
        """The struct; it keeps shape, strides and the view."""
        return self._tensor


def to_host_mdspan(
    tensor: Any,
    element_type: DTypeLike,
    rank: int,
    layout: LayoutPolicy | str = layout_stride,
    *,
    dlpack_version: tuple[int, int] = dlpack.VERSION,
    header: str | None = None,
) -> MdSpan:
    """A view of a tensor in the CPU's memory.

    Parameters
    ----------
    tensor
        A ``DLTensor``, or any array that can be exported: NDArray, numpy, torch, capsules...
    element_type
        The type of the elements: the name of one of :data:`ELEMENT_TYPES`, or a dtype.
    rank
        The number of dimensions.
    layout
        The layout policy: ``layout_right``, ``layout_left``, ``layout_stride``,
        ``layout_stride_relaxed``, or its name.
    dlpack_version
        The version of DLPack that the tensor was made by: before 1.2 strides may be NULL.
    header
        A release of CCCL, to answer as its header does, defects included: ``"3.3.0"`` lets expected
        strides wrap to negative ones. By default strides beyond int64 are refused.

    Raises
    ------
    ValueError
        Where libcudacxx throws ``std::invalid_argument``, with its text, in its order: device,
        rank, dtype, address, alignment, shape, strides. For an unknown `header`.
    TypeError
        When `tensor` is no array, or `element_type` or `layout` names nothing.

    Source: "DLPack to mdspan", libcudacxx (CCCL 3.3.0; ``layout_stride_relaxed`` 3.5.0).

    >>> import numpy as np
    >>> to_host_mdspan(np.zeros((2, 3), "float32"), "float", 2, layout_right)
    host_mdspan<float32, layout_right>(extents=(2, 3), strides=(3, 1))
    >>> to_host_mdspan(np.zeros((2, 3), "float32"), "float", 2, layout_left)
    Traceback (most recent call last):
    ...
    ValueError: DLTensor strides are not compatible with layout_left
    """
    rules = _Rules("host", element_type, rank, layout, dlpack_version, header)
    return rules.span_of(tensor)


def to_device_mdspan(
    tensor: Any,
    element_type: DTypeLike,
    rank: int,
    layout: LayoutPolicy | str = layout_stride,
    *,
    dlpack_version: tuple[int, int] = dlpack.VERSION,
    header: str | None = None,
) -> MdSpan:
    """A view of a tensor in a CUDA device's memory, whose elements the host can't read; otherwise
    as :func:`to_host_mdspan`."""
    rules = _Rules("device", element_type, rank, layout, dlpack_version, header)
    return rules.span_of(tensor)


def to_managed_mdspan(
    tensor: Any,
    element_type: DTypeLike,
    rank: int,
    layout: LayoutPolicy | str = layout_stride,
    *,
    dlpack_version: tuple[int, int] = dlpack.VERSION,
    header: str | None = None,
) -> MdSpan:
    """A view of a tensor in CUDA's managed memory; otherwise as :func:`to_host_mdspan`."""
    rules = _Rules("managed", element_type, rank, layout, dlpack_version, header)
    return rules.span_of(tensor)


def to_dlpack_tensor(span: MdSpan, *, header: str | None = None) -> DLPackTensor:
    """The ``DLTensor`` of a view, with the storage of its shape and strides.

    The offset goes into the address, ``byte_offset`` is 0, and an empty view has a NULL address.

    Parameters
    ----------
    span
        The view.
    header
        A release of CCCL, ``"3.3.0"`` or ``"3.5.0"``, to answer as its header does, defects
        included: both forget the mapping's offset, and take a size of 2^64 for 0.

    >>> import numpy as np
    >>> made = to_dlpack_tensor(to_host_mdspan(np.zeros((2, 3)), "double", 2))
    >>> made.get().ndim, made.get().byte_offset
    (2, 0)
    """
    _check_header(header)
    rank = span.rank()
    dims = (ctypes.c_int64 * (2 * rank))(*span.extents, *span.strides)
    tensor = DLTensor()
    size, offset = span.size(), span.mapping.offset * max(span.element_type.itemsize, 1)
    if header is not None:
        size, offset = size % (1 << 64), 0
    tensor.data = span.data_handle + offset if size else None
    tensor.device = DLDevice(DEVICE_TYPES[_DEVICES[span.memory][0]], 0)
    tensor.ndim = rank
    tensor.dtype = dlpack.raw_dtype(span.element_type)
    tensor.shape = ctypes.addressof(dims) if rank else None
    tensor.strides = ctypes.addressof(dims) + 8 * rank if rank else None
    return DLPackTensor(tensor, dims, span)


_DEVICES = {
    "host": ("cpu", "kDLCPU"),
    "device": ("cuda", "kDLCUDA"),
    "managed": ("cuda_managed", "kDLCUDAManaged"),
}


@final
@record()
class _Rules:
    """The requirements of a view on a tensor."""

    memory: str
    element_type: DTypeLike
    rank: int
    layout: LayoutPolicy | str
    dlpack_version: tuple[int, int]
    header: str | None

    def span_of(self, source: Any) -> MdSpan:
        _check_header(self.header)
        layout = _layout_of(self.layout)
        dtype = _element_type_of(self.element_type)
        tensor, read_only, owner = _tensor_of(source)
        self._check_what_it_is(tensor, dtype)
        offset = int(tensor.byte_offset)
        # In C++, elements of less than a byte take a byte each.
        size = max(dtype.bits * dtype.lanes // 8, 1)
        relaxed = layout is layout_stride_relaxed
        if relaxed and offset % size:
            raise ValueError("DLTensor byte_offset must be a multiple of element size")
        data = tensor.data + (0 if relaxed else offset)
        if data % size:
            raise ValueError("DLTensor data must be aligned to the data type")
        extents, strides = self._dims(tensor, layout)
        mapping = Mapping(layout, extents, strides, offset // size if relaxed else 0)
        return MdSpan(data, mapping, dtype, self.memory, read_only, owner)

    def _check_what_it_is(self, tensor: DLTensor, dtype: DType) -> None:
        device, constant = _DEVICES[self.memory]
        if tensor.device.device_type != DEVICE_TYPES[device]:
            raise ValueError(f"DLTensor device type must be {constant} for {self.memory}_mdspan")
        if tensor.ndim != self.rank:
            raise ValueError("DLTensor rank does not match expected rank")
        raw = tensor.dtype
        if (raw.code, raw.bits, raw.lanes) != (dtype.code, dtype.bits, dtype.lanes):
            raise ValueError("DLTensor data type does not match expected type")
        if tensor.data is None:
            raise ValueError("DLTensor data must be non-null")

    def _dims(
        self, tensor: DLTensor, layout: LayoutPolicy
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self.rank == 0:
            return (), ()
        if not tensor.shape:
            raise ValueError("DLTensor shape must be non-null")
        extents = tuple((ctypes.c_int64 * self.rank).from_address(tensor.shape))
        if min(extents) < 0:
            raise ValueError("DLTensor shapes must be positive")
        if not tensor.strides:
            return extents, self._strides_of_none(extents, layout)
        strides = tuple((ctypes.c_int64 * self.rank).from_address(tensor.strides))
        for axis, stride in enumerate(strides):
            if layout is layout_stride and stride <= 0:
                raise ValueError("layout_stride requires strictly positive strides")
            if layout in (layout_right, layout_left):
                inner = extents[axis + 1 :] if layout is layout_right else extents[:axis]
                if stride != self._product(inner):
                    raise ValueError(f"DLTensor strides are not compatible with {layout.value}")
        return extents, strides

    def _strides_of_none(self, extents: tuple[int, ...], layout: LayoutPolicy) -> tuple[int, ...]:
        if self.dlpack_version >= (1, 2):
            raise ValueError("strides=nullptr is not supported for DLPack v1.2 and later")
        if layout is layout_left and self.rank > 1:
            raise ValueError("strides must be non-null for layout_left")
        return tuple(self._product(extents[axis + 1 :]) for axis in range(self.rank))

    def _product(self, extents: Sequence[int]) -> int:
        """The product of extents: the stride of the axis around such axes."""
        total = 1
        for extent in extents:
            total *= extent
            if total >= 1 << (64 if self.header == "3.3.0" else 63):
                raise ValueError("shape overflow")
        return total - (1 << 64) if total >= 1 << 63 else total


def _check_header(header: str | None) -> None:
    if header not in (None, "3.3.0", "3.5.0"):
        raise ValueError(f"mdspan: expected header to be None, '3.3.0' or '3.5.0', got {header!r}")


def _layout_of(layout: LayoutPolicy | str) -> LayoutPolicy:
    try:
        return LayoutPolicy(layout)
    except ValueError:
        names = ", ".join(each.value for each in LayoutPolicy)
        raise TypeError(f"mdspan: expected a layout among {names}, got {layout!r}") from None


def _element_type_of(value: DTypeLike) -> DType:
    known = ELEMENT_TYPES.get(value) if isinstance(value, str) else None
    return DType.of(value) if known is None else known


def _tensor_of(source: Any) -> tuple[DLTensor, bool, object]:
    """The struct, whether its memory is read-only, and the object that keeps it alive."""
    if isinstance(source, DLTensor):
        return source, False, source
    if dlpack.is_capsule(source):
        return *dlpack.lent_tensor(source), source
    if not isinstance(source, NDArray | np.ndarray) and hasattr(source, "__dlpack__"):
        capsule, fixed = dlpack.request(source, accepts=lambda device: True)
        tensor, read_only = dlpack.lent_tensor(capsule)
        return tensor, read_only or fixed, capsule
    array = as_ndarray(source)
    if array is None:
        kind = type(source).__name__
        raise TypeError(f"mdspan: expected a DLTensor or an array that can be exported, got {kind}")
    return DLTensor.from_address(array.handle), array.read_only, array
