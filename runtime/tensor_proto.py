"""TensorProto: tensors in the wire format of TensorFlow, without TensorFlow.

The message is ``tensorflow.TensorProto`` (tensorflow/core/framework/tensor.proto). The package
protobuf reads and writes it, from a description made here in a pool of its own, so that TensorFlow
in the same process doesn't mind. A message holds its elements in one of two forms: as *content*,
the bytes of all elements in little-endian order, or in a *typed field* of numbers, where the last
value stands for all that follow. A signalling NaN becomes a quiet one in a typed field.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, final

import numpy as np

from minitvm.runtime.dtype import FLOAT32, INT32, INT64, DType, DTypeLike
from minitvm.runtime.ndarray import NDArray, array, as_ndarray, empty
from minitvm.runtime.record import record

_STRING = 7  # DT_STRING


@final
@record()
class _Kind:
    """The written form of one dtype."""

    number: int  # of the enum DataType
    field: str  # the typed field
    in_field: str  # numpy's type of a value in the field
    by_content: bool = True  # the choice of make_tensor_proto


_KINDS: dict[str, _Kind] = {
    "float32": _Kind(1, "float_val", "<f4"),
    "float64": _Kind(2, "double_val", "<f8"),
    "int32": _Kind(3, "int_val", "<i4"),
    "uint8": _Kind(4, "int_val", "<i4"),
    "int16": _Kind(5, "int_val", "<i4"),
    "int8": _Kind(6, "int_val", "<i4"),
    "complex64": _Kind(8, "scomplex_val", "<f4", by_content=False),
    "int64": _Kind(9, "int64_val", "<i8"),
    "bool": _Kind(10, "bool_val", "|b1", by_content=False),
    "bfloat16": _Kind(14, "half_val", "<i4"),
    "uint16": _Kind(17, "int_val", "<i4", by_content=False),
    "complex128": _Kind(18, "dcomplex_val", "<f8", by_content=False),
    "float16": _Kind(19, "half_val", "<i4"),
    "uint32": _Kind(22, "uint32_val", "<u4"),
    "uint64": _Kind(23, "uint64_val", "<u8"),
    "float8_e5m2": _Kind(24, "float8_val", "|u1"),
    "float8_e4m3fn": _Kind(25, "float8_val", "|u1"),
}
_NAMES = {kind.number: name for name, kind in _KINDS.items()}
_AT_LEAST = 64  # elements from which on a message is compressed
_RATIO = 2  # the factor by which compression must shrink a message


def to_bytes(
    values: Any,
    *,
    dtype: DTypeLike | None = None,
    shape: Sequence[int] | None = None,
    content: bool | None = None,
    compress: bool = False,
) -> bytes:
    """The serialised ``TensorProto`` of an array, of nested lists of numbers, or of strings.

    Parameters
    ----------
    values
        The elements: any array, a number, nested lists. Lists of Python floats become float32, of
        Python integers int32 where all fit and else int64. Text and ``bytes`` make a tensor of
        strings.
    dtype
        The dtype of the message; by default that of `values`.
    shape
        The shape of the message. It may have more elements than `values`; the last value then
        stands for the rest.
    content
        True writes the elements as content, as ``tf.io.serialize_tensor`` does, False in the typed
        field. By default the choice of ``tf.make_tensor_proto``: content for more than one element
        of a type that isn't uint16, bool or complex.
    compress
        Leave out a run of equal elements at the end, if there are 64 elements or more and at most
        half of their bytes remain.

    Raises
    ------
    TypeError
        For elements that TensorFlow has no type for.
    ValueError
        When `shape` has fewer elements than `values`, or strings as content have fewer values than
        `shape` has elements.
    ImportError
        Without the package protobuf (``pip install "minitvm[tensor-proto]"``).

    >>> to_bytes([1.5, 2.5]).hex()
    '080112041202080222080000c03f00002040'
    >>> from_bytes(to_bytes([[1, 2], [3, 4]])).numpy()
    array([[1, 2],
           [3, 4]], dtype=int32)
    """
    strings = _strings(values)
    if strings is not None:
        return _write_strings(strings, dtype, shape, content)
    source = _numbers(values, dtype)
    kind = _KINDS.get(source.dtype)
    if kind is None:
        raise TypeError(
            f"tensor_proto: expected a dtype among {', '.join(_KINDS)}, got {source.dtype}"
        )
    bits = _bits_of(source)
    extents = source.shape if shape is None else tuple(map(int, shape))
    count = math.prod(extents)
    _check_count(bits.size, count, extents)
    if count and not bits.size:
        raise ValueError(f"tensor_proto: expected a value for the shape {extents}, got none")
    message = _message()
    _write_head(message, kind.number, extents)
    if count == 0:
        return _serialized(message)
    kept = _kept(bits, count, kind) if compress else bits.size
    as_content = kind.by_content and count > 1 if content is None else content
    if as_content and kept == bits.size == count:
        message.tensor_content = bits.astype(bits.dtype.newbyteorder("<"), copy=False).tobytes()
    else:
        _write_field(message, kind, source.dtype, bits[:kept])
    return _serialized(message)


def from_bytes(content: bytes, *, strict: bool = True) -> NDArray | np.ndarray[Any, Any]:
    """The tensor of a serialised ``TensorProto``, a new array.

    Tensors of strings are numpy arrays of ``bytes`` objects. Content takes precedence over the
    typed field. A typed field with fewer values than elements repeats its last, and an empty one is
    zeros. Values in the field of another type are ignored. Without a shape, or of unknown rank, the
    tensor is a scalar.

    Parameters
    ----------
    content
        The message.
    strict
        Refuse more values than elements, and integers that leave the dtype. Without it, surplus
        values are ignored and integers wrap, as in TensorFlow's own reader.

    Raises
    ------
    ValueError
        When the message is malformed, contradicts itself, or is of a type that isn't a number or a
        string.
    ImportError
        Without the package protobuf.
    """
    message = _message()
    errors = _library().DecodeError
    try:
        message.ParseFromString(bytes(content))
    except errors as error:
        raise ValueError(f"tensor_proto: expected a TensorProto, got {error}") from None
    shape = _read_shape(message)
    if message.dtype == _STRING:
        return _read_strings(message, shape, strict)
    name = _NAMES.get(message.dtype)
    if name is None:
        known = ", ".join(f"{number} ({each})" for number, each in _NAMES.items())
        raise ValueError(
            f"tensor_proto: expected a dtype among {known} and {_STRING} (string), "
            f"got {message.dtype}"
        )
    dtype = DType.of(name)
    made = _room(shape, dtype)
    bits = _bits_view(made)
    if message.tensor_content:
        expected = bits.size * dtype.itemsize
        if len(message.tensor_content) != expected:
            raise ValueError(
                f"tensor_proto: expected {expected} bytes of content for the shape {shape} of "
                f"{dtype}, got {len(message.tensor_content)}"
            )
        found = np.frombuffer(message.tensor_content, bits.dtype.newbyteorder("<"))
        bits[...] = found.reshape(bits.shape)
    else:
        values = _read_field(message, _KINDS[name], dtype, strict)
        _fill(bits.reshape(-1), values, shape, strict)
    return made


# -- Between arrays and fields --


def _numbers(values: Any, dtype: DTypeLike | None) -> NDArray:
    known = as_ndarray(values)
    if known is None:
        plain = np.asarray(values)
        wanted = None
        if plain.dtype == np.float64 and not isinstance(values, np.generic):
            wanted = FLOAT32
        elif plain.dtype == np.int64 and not isinstance(values, np.generic):
            limits = np.iinfo(np.int32)
            fits = not plain.size or (plain.min() >= limits.min and plain.max() <= limits.max)
            wanted = INT32 if fits else INT64
        known = array(plain, dtype=wanted)
    return known if dtype is None else array(known, dtype=dtype)


def _bits_type(dtype: DType) -> np.dtype[Any]:
    """numpy's type for the bytes of an element: its own, or an unsigned integer of its size."""
    try:
        return dtype.to_numpy()
    except TypeError:
        return np.dtype(f"u{dtype.itemsize}")


def _bits_view(made: NDArray) -> np.ndarray[Any, Any]:
    return np.asarray(made.view(str(_bits_type(made.dtype))))


def _bits_of(source: NDArray) -> np.ndarray[Any, Any]:
    """The elements in row-major order, flat."""
    return np.ascontiguousarray(_bits_view(source)).reshape(-1)


def _kept(bits: np.ndarray[Any, Any], count: int, kind: _Kind) -> int:
    """The number of values to write: the last value stands for the rest, and an empty list for
    zeros."""
    raw = bits.view(f"V{bits.dtype.itemsize}")
    differ = np.flatnonzero(raw != raw[-1])
    kept = int(differ[-1]) + 2 if differ.size else 1
    if kept == 1 and not any(raw[-1].tobytes()):
        kept = 0
    parts = 2 if bits.dtype.kind == "c" else 1
    written = kept * parts * np.dtype(kind.in_field).itemsize
    worth = count >= _AT_LEAST and written * _RATIO <= count * bits.dtype.itemsize
    return kept if worth else bits.size


def _write_field(message: Any, kind: _Kind, dtype: DType, bits: np.ndarray[Any, Any]) -> None:
    if kind.field == "float8_val":
        message.float8_val = bits.tobytes()
        return
    if kind.field == "half_val":
        bits = bits.view(np.uint16)
    elif bits.dtype.kind == "c":
        bits = bits.view(f"f{bits.dtype.itemsize // 2}")
    getattr(message, kind.field).extend(bits.tolist())


def _read_field(message: Any, kind: _Kind, dtype: DType, strict: bool) -> np.ndarray[Any, Any]:
    target = _bits_type(dtype)
    if kind.field == "float8_val":
        return np.frombuffer(message.float8_val, np.uint8)
    values: np.ndarray[Any, Any] = np.array(getattr(message, kind.field), kind.in_field)
    if kind.field == "half_val":
        return _fitted(values, np.dtype(np.uint16), dtype, strict).view(target)
    if target.kind == "c":
        if values.size % 2:
            raise ValueError(
                f"tensor_proto: expected pairs of numbers in {kind.field}, got {values.size}"
            )
        pairs: np.ndarray[Any, Any] = values.view(target.newbyteorder("<"))
        return pairs.astype(target)
    return _fitted(values, target, dtype, strict)


def _fitted(
    values: np.ndarray[Any, Any], target: np.dtype[Any], dtype: DType, strict: bool
) -> np.ndarray[Any, Any]:
    made = values.astype(target)
    if strict and target.kind in "iu":
        wrong = np.flatnonzero(made.astype(values.dtype) != values)
        if wrong.size:
            raise ValueError(
                f"tensor_proto: expected values of {dtype}, got {values[wrong[0]]} at {wrong[0]}"
            )
    return made


def _fill(
    target: np.ndarray[Any, Any],
    values: np.ndarray[Any, Any],
    shape: tuple[int, ...],
    strict: bool,
) -> None:
    if strict:
        _check_count(values.size, target.size, shape)
    given = min(values.size, target.size)
    target[:given] = values[:given]
    if given < target.size:
        target[given:] = values[-1] if given else np.zeros((), target.dtype)


def _check_count(given: int, count: int, shape: tuple[int, ...]) -> None:
    if given > count:
        raise ValueError(
            f"tensor_proto: expected at most {count} values for the shape {shape}, got {given}"
        )


def _room(shape: tuple[int, ...], dtype: DType) -> NDArray:
    """A new array for a shape that was read from a message."""
    if math.prod(shape) * dtype.itemsize >= 1 << 63:
        raise ValueError(f"tensor_proto: expected less than 2**63 bytes, got the shape {shape}")
    return empty(shape, dtype)


# -- Strings --


def _strings(values: Any) -> np.ndarray[Any, Any] | None:
    """An array of ``bytes`` objects, if `values` are text or bytes."""
    if isinstance(values, str | bytes):
        made = np.empty((), object)
        made[()] = values
    elif isinstance(values, np.ndarray):
        made = values
    elif as_ndarray(values) is not None:
        return None
    else:
        made = np.asarray(values, object)
    if made.dtype.kind not in "SUO":
        return None
    flat = [each.encode() if isinstance(each, str) else each for each in made.reshape(-1).tolist()]
    if not all(isinstance(each, bytes) for each in flat):
        if any(isinstance(each, bytes) for each in flat):
            raise TypeError("tensor_proto: expected strings or numbers, got both")
        return None
    if not flat and made.dtype.kind == "O":
        return None
    result = np.empty(made.shape, object)
    result.reshape(-1)[:] = flat
    return result


def _write_strings(
    strings: np.ndarray[Any, Any],
    dtype: DTypeLike | None,
    shape: Sequence[int] | None,
    content: bool | None,
) -> bytes:
    if dtype is not None:
        raise TypeError(f"tensor_proto: expected numbers for dtype {dtype}, got strings")
    extents = strings.shape if shape is None else tuple(map(int, shape))
    count = math.prod(extents)
    flat = strings.reshape(-1).tolist()
    _check_count(len(flat), count, extents)
    if content and len(flat) != count:
        raise ValueError(
            f"tensor_proto: expected {count} strings for content of the shape {extents}, "
            f"got {len(flat)}"
        )
    message = _message()
    _write_head(message, _STRING, extents)
    if content:
        lengths = b"".join(_varint(len(each)) for each in flat)
        message.tensor_content = lengths + b"".join(flat)
    else:
        message.string_val.extend(flat)
    return _serialized(message)


def _read_strings(message: Any, shape: tuple[int, ...], strict: bool) -> np.ndarray[Any, Any]:
    count = math.prod(shape)
    if message.tensor_content:
        flat = _split(message.tensor_content, count)
    else:
        flat = list(message.string_val)
        if strict:
            _check_count(len(flat), count, shape)
    if count > max(len(message.tensor_content), _MANY, len(flat)):
        raise ValueError(
            f"tensor_proto: expected strings for the shape {shape}, got {len(flat)} of {count}"
        )
    made = np.empty(count, object)
    made[:] = (flat + [flat[-1] if flat else b""] * (count - len(flat)))[:count]
    return made.reshape(shape)


_MANY = 1 << 24  # the most strings that a message may leave out


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _split(content: bytes, count: int) -> list[bytes]:
    """Strings written as their lengths, each a varint, and then all their bytes."""
    lengths, at = list[int](), 0
    while len(lengths) < count:
        length = shift = 0
        while True:
            if at >= len(content) or shift > 63:
                raise ValueError(
                    f"tensor_proto: expected {count} lengths of strings, got {len(lengths)}"
                )
            byte = content[at]
            at, length, shift = at + 1, length | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                break
        lengths.append(length)
    if sum(lengths) != len(content) - at:
        raise ValueError(
            f"tensor_proto: expected {sum(lengths)} bytes of strings, got {len(content) - at}"
        )
    parts = list[bytes]()
    for length in lengths:
        parts.append(content[at : at + length])
        at += length
    return parts


# -- The message --


def _write_head(message: Any, number: int, shape: Iterable[int]) -> None:
    message.dtype = number
    message.tensor_shape.SetInParent()
    for extent in shape:
        if extent < 0:
            raise ValueError(f"tensor_proto: expected extents of at least 0, got {extent}")
        message.tensor_shape.dim.add().size = extent


def _read_shape(message: Any) -> tuple[int, ...]:
    if message.tensor_shape.unknown_rank:
        return ()
    shape = tuple(dim.size for dim in message.tensor_shape.dim)
    if min(shape, default=0) < 0:
        raise ValueError(f"tensor_proto: expected extents of at least 0, got the shape {shape}")
    return shape


def _serialized(message: Any) -> bytes:
    return message.SerializeToString(deterministic=True)  # type: ignore[no-any-return]  # bytes


@final
@record()
class _Library:
    message: Any
    DecodeError: type[Exception]


@lru_cache(maxsize=1)
def _library() -> _Library:
    """The class of the message, described by hand: field, number, type."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
    except ImportError:
        raise ImportError(
            'tensor_proto: expected the package protobuf: pip install "minitvm[tensor-proto]"'
        ) from None
    file = descriptor_pb2.FileDescriptorProto(
        name="minitvm/tensor.proto", package="minitvm", syntax="proto3"
    )
    kinds = descriptor_pb2.FieldDescriptorProto

    def add(target: Any, name: str, number: int, kind: str, *, repeated: bool = False) -> None:
        made = target.field.add(name=name, number=number)
        made.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        if kind.startswith("."):
            made.type, made.type_name = kinds.TYPE_MESSAGE, kind
        else:
            made.type = getattr(kinds, f"TYPE_{kind.upper()}")

    shape = file.message_type.add(name="TensorShapeProto")
    dim = shape.nested_type.add(name="Dim")
    add(dim, "size", 1, "int64")
    add(dim, "name", 2, "string")
    add(shape, "dim", 2, ".minitvm.TensorShapeProto.Dim", repeated=True)
    add(shape, "unknown_rank", 3, "bool")
    tensor = file.message_type.add(name="TensorProto")
    add(tensor, "dtype", 1, "int32")
    add(tensor, "tensor_shape", 2, ".minitvm.TensorShapeProto")
    add(tensor, "version_number", 3, "int32")
    add(tensor, "tensor_content", 4, "bytes")
    add(tensor, "float8_val", 18, "bytes")
    fields = (
        ("float_val", 5, "float"), ("double_val", 6, "double"), ("int_val", 7, "int32"),
        ("string_val", 8, "bytes"), ("scomplex_val", 9, "float"), ("int64_val", 10, "int64"),
        ("bool_val", 11, "bool"), ("dcomplex_val", 12, "double"), ("half_val", 13, "int32"),
        ("uint32_val", 16, "uint32"), ("uint64_val", 17, "uint64"),
    )  # fmt: skip
    for name, number, kind in fields:
        add(tensor, name, number, kind, repeated=True)
    pool = descriptor_pool.DescriptorPool()  # not the pool of TensorFlow's own messages
    pool.Add(file)
    found = pool.FindMessageTypeByName("minitvm.TensorProto")
    return _Library(message_factory.GetMessageClass(found), message.DecodeError)


def _message() -> Any:
    return _library().message()
