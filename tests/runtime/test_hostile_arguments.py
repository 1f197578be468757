"""Arguments of hostile, careless and merely strange callers: what is no array, arrays that can't be
used as they lie, producers that break DLPack's contract. Whatever comes, nothing crashes, what is
refused says what to pass instead, outputs stay as they were, and no reference is lost."""

from __future__ import annotations

import array
import contextlib
import ctypes
import functools
import gc
import mmap
import pickle
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.runtime.dlpack import (
    DLDataType,
    DLDevice,
    DLManagedTensor,
    DLManagedTensorVersioned,
    DLPackVersion,
)

Array = np.ndarray[Any, Any]
UNTOUCHED = 77.0
RIGHT = [2.0, 3.0, 4.0]  # of 1, 2, 3


@functools.cache
def add_one(dtype: str = "float32", scalar: bool = False) -> Any:
    """``f(A, B)``, or ``f(A, c, B)`` with a scalar: B is A and one."""
    n, c = te.var("n"), te.var("c", "int32")
    a = te.placeholder((n,), dtype, name="A")
    b = te.compute((n,), lambda i: a[i] + te.const(1, dtype), name="B")
    args = [a, c, b] if scalar else [a, b]
    return tvm.build(te.create_schedule(b.op), args, name="f")


def one_two_three(dtype: Any = "float32") -> Array:
    return np.array([1, 2, 3], dtype)


@functools.cache
def kept(make: Callable[[], Any]) -> Any:
    """One object for all calls, of which references can be counted."""
    return make()


def refused(value: Any, kind: type[BaseException], text: str, position: int = 0) -> None:
    """The call with `value` as its input (or output) is refused with `text`, again and again."""
    name = "AB"[position]
    other: Any = np.full(3, UNTOUCHED, "float32")
    arguments = [value, other] if position == 0 else [other, value]
    pattern = f"^f: argument {position} '{name}': {text}"
    for _ in range(3):
        with pytest.raises(kind, match=pattern):
            add_one()(*arguments)
    assert (other == UNTOUCHED).all()
    assert_counts_stay(arguments)


def assert_counts_stay(arguments: list[Any]) -> None:
    def call_often() -> None:
        for _ in range(50):
            with contextlib.suppress(Exception):
                add_one()(*arguments)

    gc.freeze()  # garbage is searched for among what the calls have made, not in torch's heap
    call_often()
    gc.collect()
    before = [sys.getrefcount(each) for each in arguments]
    call_often()
    gc.collect()
    assert [sys.getrefcount(each) for each in arguments] == before


def accepted(value: Any) -> None:
    """The call with `value`, which is 1, 2, 3, as its input is right."""
    out = np.full(3, UNTOUCHED, "float32")
    add_one()(value, out)
    assert out.tolist() == RIGHT
    assert_counts_stay([value, out])


def written(
    value: Any, read: Callable[[Any], list[Any]] = lambda x: np.asarray(x).tolist()
) -> None:
    """The call with `value` as its output writes there."""
    add_one()(one_two_three(), value)
    assert read(value) == RIGHT
    assert_counts_stay([one_two_three(), value])


# -- What is no array -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, TypeError, "expected an array.*, got None"),
        (3, TypeError, "expected an array.*, got an integer"),
        (float("nan"), TypeError, "expected an array.*, got a float"),
        (np.float32(3), TypeError, "expected an array.*, got a float"),
        (np.int64(3), TypeError, "expected an array.*, got an integer"),
        (2**63, OverflowError, "expected an integer that int64 holds, got 9223372036854775808"),
        (-(2**70), OverflowError, "expected an integer that int64 holds, got -118059162071741"),
        ("abc", TypeError, "expected an array.*, got a str"),
        ("a\0b", ValueError, r"expected a string without a zero character, got 'a\\x00b'"),
        (b"abc", TypeError, "expected an array.*, got bytes"),
        (bytearray(12), TypeError, "expected an array.*, got bytes"),
        ([1.0, 2.0, 3.0], TypeError, "expected an array .*, got list"),
        (np.ndarray, TypeError, "expected an array .*, got type"),
        (ctypes.c_float(1), TypeError, "expected an array .*, got c_float"),
        (len, TypeError, "expected an array.*, got a function"),
    ],
    ids=repr,
)
def test_what_is_no_array(value: Any, kind: type[Exception], text: str) -> None:
    refused(value, kind, text)
    refused(value, kind, text, position=1)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (2**31, ValueError, "expected a value of dtype int32, got 2147483648"),
        (2**64, OverflowError, "expected an integer that int64 holds, got 18446744073709551616"),
        (1.5, TypeError, "expected an integer, got a float"),
        (np.float64("nan"), TypeError, "expected an integer, got a float"),
        ("1", TypeError, "expected an integer, got a str"),
        (np.ones(()), TypeError, "expected an integer, got an array"),
        (None, TypeError, "expected an integer, got None"),
    ],
    ids=repr,
)
def test_what_is_no_integer(value: Any, kind: type[Exception], text: str) -> None:
    out = np.full(3, UNTOUCHED, "float32")
    with pytest.raises(kind, match=f"^f: argument 1 'c': {text}"):
        add_one(scalar=True)(one_two_three(), value, out)
    assert (out == UNTOUCHED).all()


@pytest.mark.parametrize("value", [True, np.True_, np.int8(-1), np.uint64(7), np.int32(3)])
def test_what_is_an_integer(value: Any) -> None:
    out = np.empty(3, "float32")
    add_one(scalar=True)(one_two_three(), value, out)
    assert out.tolist() == RIGHT


# -- Strange numpy arrays -------------------------------------------------------------------------


class Subclass(np.ndarray):
    """An array that notices views of itself, which nobody needs to make."""

    views = 0

    def __array_finalize__(self, source: Any) -> None:
        type(self).views += 1


def unaligned() -> Array:
    memory = np.zeros(16, np.uint8)
    made = memory[1:13].view("float32")
    made[:] = one_two_three()
    return made


def read_only() -> Array:
    made = one_two_three()
    made.flags.writeable = False
    return made


def between_elements() -> Array:
    return np.zeros(3, [("a", "float32"), ("b", "int16")])["a"]


STRANGE: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: np.ma.array([1, 2, 3], "float32"), TypeError, r"expected an array without a mask.*: "),
    (lambda: np.matrix([1, 2, 3], "float32"), ValueError, "expected ndim == 1, got 2"),
    (lambda: np.array(3, "float32"), ValueError, "expected ndim == 1, got 0"),
    (lambda: np.rec.array([(1.0,)], dtype=[("a", "f4")]), TypeError, "expected elements of a dt.*"),
    (lambda: np.zeros(3, [("a", "f4")]), TypeError, r"expected elements of .*, got \[\('a', '<f4'"),
    (lambda: one_two_three(object), TypeError, "expected elements of .*, got object"),
    (lambda: np.array(["a"]), TypeError, "expected elements of a dtype .*, got <U1"),
    (lambda: np.zeros(3, "M8[s]"), TypeError, r"expected elements of .*, got datetime64\[s\]"),
    (lambda: np.zeros(3, "m8[s]"), TypeError, r"expected elements of .*, got timedelta64\[s\]"),
    (lambda: one_two_three(np.longdouble), TypeError, "expected elements of .*, got .*float128"),
    (
        lambda: one_two_three(">f4"),
        ValueError,
        r"expected .*native byte order, got >f4: pass x\.as",
    ),
    (lambda: one_two_three("complex64"), TypeError, "expected dtype float32, got complex64"),
    (lambda: one_two_three("float16"), TypeError, "expected dtype float32, got float16"),
    (unaligned, ValueError, "expected data aligned to 4 bytes"),
    (between_elements, ValueError, r"expected strides of whole 4-byte elements, got \(6,\) bytes"),
]


@pytest.mark.parametrize(("make", "kind", "text"), STRANGE)
@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_strange_numpy_arrays_are_refused(
    make: Callable[[], Any], kind: type[Exception], text: str, position: int
) -> None:
    value = make()
    before = value.tobytes()
    refused(value, kind, text, position)
    assert value.tobytes() == before


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_numpy_arrays_of_another_kind_are_as_good() -> None:
    accepted(one_two_three().view(Subclass))
    accepted(np.asarray(np.matrix([1, 2, 3], "float32"))[0])
    accepted(pickle.loads(pickle.dumps(one_two_three())))
    accepted(one_two_three(np.dtype("float32", metadata={"unit": "m"})))
    accepted(read_only())
    accepted(np.broadcast_to(one_two_three(), (2, 3))[1])
    accepted(np.array([3, 2, 1], "float32")[::-1])
    accepted(np.array([(1, 9), (2, 9), (3, 9)], [("a", "f4"), ("b", "f4")])["a"])
    written(np.zeros(3, "float32").view(Subclass))
    written(np.zeros(3, np.dtype("float32", metadata={"unit": "m"})))


def test_a_subclass_is_not_viewed_on_the_way() -> None:
    value, out = one_two_three().view(Subclass), np.zeros(3, "float32")
    before = Subclass.views
    add_one()(value, out)
    assert Subclass.views == before


def test_int64_has_two_names() -> None:
    out = np.zeros(3, "int64")
    for kind in (np.int64, np.longlong, np.intp):
        add_one("int64")(one_two_three(kind), out)
        assert out.tolist() == RIGHT


def test_read_only_outputs_are_refused() -> None:
    text = "expected a writable array, got a read-only one"
    with tempfile.NamedTemporaryFile() as file:
        file.write(one_two_three().tobytes())
        file.flush()
        mapped = np.memmap(file.name, "float32", "r")
        accepted(mapped)
        refused(mapped, ValueError, text, position=1)
        assert mapped.tolist() == [1, 2, 3]
        written(np.memmap(file.name, "float32", "r+"))
        del mapped
    for value in (
        read_only(),
        memoryview(one_two_three().tobytes()).cast("f"),
        np.broadcast_to(np.float32(1), (3,)),
    ):
        refused(value, ValueError, text, position=1)


# -- Memory by Python's buffer protocol -----------------------------------------------------------


def anonymous_map(content: Array) -> mmap.mmap:
    made = mmap.mmap(-1, content.nbytes)
    made[:] = content.tobytes()
    return made


def seen(source: Any) -> memoryview:
    return memoryview(source)


def test_buffers_are_arrays() -> None:
    accepted(array.array("f", [1, 2, 3]))
    accepted(seen(one_two_three()))
    accepted(memoryview(one_two_three().tobytes()).cast("f"))
    accepted(seen(np.array([3, 2, 1], "float32"))[::-1])
    accepted((ctypes.c_float * 3)(1, 2, 3))
    accepted(memoryview(anonymous_map(one_two_three())).cast("f"))
    written(array.array("f", [0, 0, 0]))
    written(memoryview(bytearray(12)).cast("f"))
    written((ctypes.c_float * 3)())
    target = mmap.mmap(-1, 3)
    add_one("uint8")(anonymous_map(one_two_three("uint8")), target)
    assert target[:] == bytes([2, 3, 4])
    target.close()  # nobody holds it any more


def test_a_buffer_is_let_go_after_the_call() -> None:
    numbers = array.array("f", [1, 2, 3])
    add_one()(numbers, np.empty(3, "float32"))
    numbers.append(4)  # a BufferError if anybody still held it
    assert len(numbers) == 4


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: array.array("d", [1, 2, 3]), TypeError, "expected dtype float32, got float64"),
        (lambda: memoryview(bytearray(3)), TypeError, "expected dtype float32, got uint8"),
        (
            lambda: memoryview(bytearray(3)).cast("c"),
            TypeError,
            "expected elements of a dtype .* got .S1",
        ),
        (lambda: seen(np.zeros((3, 1), "f4")), ValueError, "expected ndim == 1, got 2"),
        (lambda: anonymous_map(one_two_three()), TypeError, "expected dtype float32, got uint8"),
        (lambda: seen(one_two_three(">f4")), ValueError, "expected .*native byte order"),
        (lambda: (ctypes.c_void_p * 3)(), TypeError, "expected elements of a dtype .*"),
    ],
)
@pytest.mark.filterwarnings("ignore:A builtin ctypes object gave a PEP3118 format string")
def test_buffers_of_other_elements_are_refused(
    make: Callable[[], Any], kind: type[Exception], text: str
) -> None:
    refused(make(), kind, text)
    refused(make(), kind, text, position=1)


def test_buffers_that_are_gone_are_refused() -> None:
    released = seen(one_two_three())
    released.release()
    refused(released, ValueError, "operation forbidden on released memoryview object")
    closed = anonymous_map(one_two_three())
    closed.close()
    refused(closed, ValueError, "mmap closed or invalid")


class Interface:
    """An array by numpy's protocol alone."""

    def __init__(self, **changes: Any) -> None:
        self.array = one_two_three()
        self.changes = changes

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {**self.array.__array_interface__, **self.changes}


def test_numpys_own_protocol() -> None:
    accepted(Interface())
    out = Interface()
    add_one()(one_two_three(), out)
    assert out.array.tolist() == RIGHT
    refused(Interface(typestr="<f8", shape=(1,)), TypeError, "expected dtype float32, got float64")
    refused(Interface(shape=(-1,)), ValueError, ".*")
    refused(Interface(shape="abc"), TypeError, ".*")
    fixed = Interface()
    fixed.changes = {"data": (fixed.array.ctypes.data, True)}
    refused(fixed, ValueError, "expected a writable array, got a read-only one", position=1)


# -- torch ----------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def fake(torch: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.randn(3)


def quantised(torch: Any) -> Any:
    return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)


TORCH: dict[str, tuple[Callable[[Any], Any], str]] = {
    "grad": (
        lambda t: t.ones(3, requires_grad=True),
        r"expected a tensor that doesn't require grad, got one that does: pass x\.detach\(\)",
    ),
    "parameter": (lambda t: t.nn.Parameter(t.ones(3)), r"expected .* grad.*: pass x\.detach\(\)"),
    "computed with grad": (lambda t: t.ones(3, requires_grad=True) * 2, r".*x\.detach\(\)"),
    "conj": (lambda t: t.ones(3, dtype=t.cfloat).conj(), r".*: pass x\.resolve_conj\(\)"),
    "neg": (lambda t: t.ones(3, dtype=t.cfloat).conj().imag, r".*: pass x\.resolve_neg\(\)"),
    "sparse": (lambda t: t.ones(3).to_sparse(), r"expected a dense .*coo: pass x\.to_dense\(\)"),
    "sparse rows": (
        lambda t: t.eye(3).to_sparse_csr(),
        r"expected a dense .*csr: pass x\.to_dense\(\)",
    ),
    "quantised": (quantised, r"expected .*: pass x\.dequantize\(\) or x\.int_repr\(\)"),
    "meta": (lambda t: t.ones(3, device="meta"), "expected a tensor with data, .*meta device"),
    "fake": (fake, "expected a tensor with data, got a fake one, which has no data"),
    "nested": (
        lambda t: t.nested.nested_tensor([t.ones(2), t.ones(1)]),
        r"expected a tensor of one shape, got a nested one: pass its parts, x\.unbind\(\)",
    ),
}


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.filterwarnings("ignore")  # torch's own, of what is new or old in it
def test_torch_tensors_that_are_refused(torch: Any, name: str, position: int) -> None:
    make, text = TORCH[name]
    refused(make(torch), BufferError, text, position)


def test_torch_tensors_that_are_taken(torch: Any) -> None:
    counted = torch.tensor([1.0, 2.0, 3.0])
    accepted(counted)
    accepted(torch.nn.Parameter(counted, requires_grad=False))
    accepted(counted.requires_grad_().detach())
    accepted(torch.tensor([1.0, 9, 2, 9, 3, 9])[::2])
    with torch.no_grad():
        accepted(torch.tensor([1.0, 2.0, 3.0]))
    with torch.inference_mode():
        inference = torch.tensor([1.0, 2.0, 3.0])
    accepted(inference)
    out = np.zeros(3, "float32")
    add_one()(torch.ones(1).expand(3), out)
    assert out.tolist() == [2, 2, 2]
    written(torch.zeros(3), lambda tensor: tensor.tolist())
    written(torch.zeros(6)[1::2], lambda tensor: tensor.tolist())


def test_torch_dtypes(torch: Any) -> None:
    refused(torch.ones(3, dtype=torch.bool), TypeError, "expected dtype float32, got bool")
    refused(torch.ones(3, dtype=torch.bfloat16), TypeError, "expected dtype float32, got bfloat16")
    refused(torch.ones(3, dtype=torch.cfloat), TypeError, "expected dtype float32, got complex64")
    source, out = torch.ones(3, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.bfloat16)
    add_one("bfloat16")(source, out)
    assert out.tolist() == [2, 2, 2]


def test_an_expanded_torch_tensor_is_no_output(torch: Any) -> None:
    value = torch.zeros(1).expand(3)
    refused(value, ValueError, "expected an output whose elements are apart", position=1)
    assert value.tolist() == [0, 0, 0]


# -- Producers that break DLPack's contract -------------------------------------------------------

_CapsuleNew = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# What was handed out lives until its deleter is called, whenever that is.
_alive: list[Any] = []


class Producer:
    """Hands out the numbers 1, 2, 3 in a managed tensor, some fields of which are wrong."""

    def __init__(
        self,
        *,
        name: bytes = b"dltensor_versioned",
        version: tuple[int, int] = (1, 0),
        shape: tuple[int, ...] = (3,),
        flags: int = 0,
        no_deleter: bool = False,
        **fields: Any,
    ) -> None:
        self.name = name
        self.content = one_two_three()
        self.shape = (ctypes.c_int64 * max(1, len(shape)))(*shape)
        versioned = b"versioned" in name
        self.managed: Any = (DLManagedTensorVersioned if versioned else DLManagedTensor)()
        tensor = self.managed.dl_tensor
        tensor.data = self.content.ctypes.data
        tensor.device = DLDevice(1, 0)
        tensor.ndim = len(shape)
        tensor.dtype = DLDataType(2, 32, 1)
        tensor.shape = ctypes.addressof(self.shape)
        for field, value in fields.items():
            setattr(tensor, field, value)
        self.deleter = _Deleter(self.delete)
        if not no_deleter:
            self.managed.deleter = ctypes.cast(self.deleter, ctypes.c_void_p).value
        if versioned:
            self.managed.version = DLPackVersion(*version)
            self.managed.flags = flags
        _alive.append(self)

    def delete(self, _: int) -> None:
        raise ZeroDivisionError("a deleter that fails")

    def capsule(self) -> Any:
        return _CapsuleNew(ctypes.addressof(self.managed), self.name, None)

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "name": ({"name": b"tensor"}, BufferError, "expected a capsule named .*, got 'tensor'"),
    "no name": ({"name": None}, BufferError, "expected a capsule named .*, got no name"),
    "used": ({"name": b"used_dltensor"}, BufferError, "expected an unused DLPack capsule"),
    "used, versioned": (
        {"name": b"used_dltensor_versioned"},
        BufferError,
        "expected an unused DLPack capsule, got one that was consumed",
    ),
    "NULL shape": ({"shape_": None}, BufferError, "expected a DLTensor with a shape, got NULL"),
    "absurd ndim": ({"ndim": 2**31 - 1}, BufferError, "expected .*0 to 64 dim.*, got ndim 214748"),
    "negative ndim": ({"ndim": -1}, BufferError, "expected .*0 to 64 dimensions, got ndim -1"),
    "negative shape": ({"shape": (-3,)}, BufferError, r"expected extents of at .* got .*\(-3,\)"),
    "huge shape": ({"shape": (2**62,)}, BufferError, r"expected less than 2\*\*63 bytes"),
    "huge product": ({"shape": (2**40, 2**40)}, BufferError, r"expected less than 2\*\*63 bytes"),
    "NULL data": ({"data": None}, BufferError, "expected memory for the shape .*, got a NULL"),
    "version 2": ({"version": (2, 0)}, BufferError, "expected a tensor of DLPack 1.x, got .* 2.0"),
    "version 0": ({"version": (0, 9)}, BufferError, "expected a tensor of DLPack 1.x, got .* 0.9"),
    "half bytes": ({"dtype": DLDataType(0, 4, 1)}, TypeError, "expected dtype float32, got int4"),
    "odd bits": ({"dtype": DLDataType(0, 9, 1)}, BufferError, "expected elements of whole bytes"),
    "odd code": ({"dtype": DLDataType(99, 8, 1)}, BufferError, "expected a type code of DLPack"),
    "no lanes": ({"dtype": DLDataType(2, 32, 0)}, BufferError, ".*lanes"),
    "device": ({"device": DLDevice(2, 3)}, ValueError, r"expected memory of cpu\(0\), got cuda\(3"),
    "odd device": ({"device": DLDevice(99, 0)}, ValueError, r"expected memory of cpu\(0\), got"),
    "vectors": (
        {"dtype": DLDataType(2, 32, 4)},
        TypeError,
        "expected dtype float32, got float32x4",
    ),
    "misaligned": ({"byte_offset": 1}, ValueError, "expected data aligned to 4 bytes"),
}


@pytest.mark.parametrize("case", WRONG)
def test_broken_tensors_are_refused(case: str) -> None:
    fields, kind, text = WRONG[case]
    producer = Producer(**{k: v for k, v in fields.items() if k not in ("shape_", "name")})
    if "shape_" in fields:
        producer.managed.dl_tensor.shape = None
    producer.name = fields.get("name", producer.name)
    refused(producer, kind, text)
    refused(producer, kind, text, position=1)
    assert producer.content.tolist() == [1, 2, 3]


@pytest.mark.parametrize("name", [b"dltensor", b"dltensor_versioned"])
@pytest.mark.parametrize("no_deleter", [False, True])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_deleter_that_fails_or_is_missing_does_no_harm(name: bytes, no_deleter: bool) -> None:
    accepted(Producer(name=name, no_deleter=no_deleter))
    array = tvm.nd.from_dlpack(Producer(name=name, no_deleter=no_deleter))
    assert array.numpy().tolist() == [1, 2, 3]
    del array
    gc.collect()


def test_a_capsule_can_be_consumed_once() -> None:
    producer = Producer(no_deleter=True)
    capsule = producer.capsule()
    tvm.nd.from_dlpack(capsule)
    with pytest.raises(BufferError, match="got one that was consumed"):
        tvm.nd.from_dlpack(capsule)


def test_a_read_only_flag_is_honoured() -> None:
    producer = Producer(flags=1)
    accepted(producer)
    refused(producer, ValueError, "expected a writable array, got a read-only one", position=1)


class Custom(Exception):
    """With a constructor that takes more than a text, and a text of its own."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(number, why)

    def __str__(self) -> str:
        return f"{self.args[-1]}"


class Raising:
    """A producer one method of which raises, the same object each time."""

    def __init__(self, error: BaseException, device: bool = False) -> None:
        self.error = error
        self.device = device

    def __dlpack__(self, **_: Any) -> Any:
        raise self.error

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.device:
            raise self.error
        return 1, 0


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: ValueError("why"),
        lambda: TypeError("why"),
        lambda: BufferError("why"),
        lambda: KeyError("why"),
        lambda: RuntimeError("why"),
        lambda: NotImplementedError("why"),
        lambda: AttributeError("why"),
        lambda: StopIteration("why"),
        lambda: ZeroDivisionError("why"),
        lambda: MemoryError("why"),
        lambda: Custom(3, "why"),
    ],
)
def test_what_a_producer_raises_comes_out_with_its_place(
    make: Callable[[], Exception], device: bool
) -> None:
    error = make()
    out = np.full(3, UNTOUCHED, "float32")
    with pytest.raises(type(error), match=re.compile("f: argument 0 'A': .*why")) as raised:
        add_one()(Raising(error, device), out)
    assert raised.value is error
    assert (out == UNTOUCHED).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: OSError(2, "why"),
        lambda: UnicodeDecodeError("ascii", b"\xff", 0, 1, "why"),
        KeyboardInterrupt,
        lambda: SystemExit(3),
        GeneratorExit,
    ],
)
def test_other_exceptions_come_out_as_they_are(make: Callable[[], BaseException]) -> None:
    error = make()
    out = np.full(3, UNTOUCHED, "float32")
    with pytest.raises(type(error)) as raised:
        add_one()(Raising(error), out)
    assert raised.value is error
    assert (out == UNTOUCHED).all()


class Lying(Producer):
    """Says of its device whatever it was told to."""

    answer: Any = (1, 0)

    def __dlpack_device__(self) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        ((2, 0), ValueError, r"expected memory of cpu\(0\), got cuda\(0\): copy it to the CPU"),
        ("cpu", BufferError, r"expected __dlpack_device__\(\) to be .*, got 'cpu'"),
        (None, BufferError, r"expected __dlpack_device__\(\) to be .*, got None"),
        ((1,), BufferError, r"expected __dlpack_device__\(\) to be .*, got \(1,\)"),
        ((1.5, 0), BufferError, r"expected __dlpack_device__\(\) to be .*, got \(1\.5, 0\)"),
        ((2**80, 0), ValueError, r"expected memory of cpu\(0\)"),
    ],
    ids=repr,
)
def test_a_device_that_is_a_lie(answer: Any, kind: type[Exception], text: str) -> None:
    value = Lying()
    value.answer = answer
    refused(value, kind, text)


def test_a_cpu_that_is_a_lie() -> None:
    """The tensor itself has the last word."""
    refused(Lying(device=DLDevice(2, 0)), ValueError, r"expected memory of cpu\(0\), got cuda\(0\)")


@pytest.mark.parametrize("capsule", [None, 3, ctypes.c_void_p(), b"dltensor"], ids=repr)
def test_what_is_no_capsule(capsule: Any) -> None:
    class NoCapsule(Producer):
        def capsule(self) -> Any:
            return capsule

    refused(NoCapsule(), BufferError, "expected a DLPack capsule, got ")


# -- A false C exchange API -----------------------------------------------------------------------


class ExchangeAPI(ctypes.Structure):
    """``DLPackExchangeAPI``: 56 bytes."""

    _fields_ = (
        ("version", DLPackVersion),
        ("prev_api", ctypes.c_void_p),
        ("managed_tensor_allocator", ctypes.c_void_p),
        ("managed_tensor_from_py_object_no_sync", ctypes.c_void_p),
        ("managed_tensor_to_py_object_no_sync", ctypes.c_void_p),
        ("dltensor_from_py_object_no_sync", ctypes.c_void_p),
        ("current_work_stream", ctypes.c_void_p),
    )


_FromPyObject = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


def _fails_silently(_: Any, __: int) -> int:
    return -1


def _fills_nothing(_: Any, __: int) -> int:
    return 0


def _null_data(_: Any, tensor: int) -> int:
    made = DLManagedTensor.from_address(tensor).dl_tensor
    made.data, made.device, made.ndim = None, DLDevice(1, 0), 1
    made.dtype, made.byte_offset, made.strides = DLDataType(2, 32, 1), 0, None
    made.shape = ctypes.addressof(_THREE)
    return 0


# PyObject_Size of what has no length returns -1, with a TypeError set.
_fails_aloud = ctypes.cast(ctypes.pythonapi.PyObject_Size, ctypes.c_void_p).value
_THREE = (ctypes.c_int64 * 1)(3)
EXCHANGE: dict[str, dict[str, Any]] = {
    "no capsule": {"capsule": "dlpack_exchange_api"},
    "wrong name": {"name": b"dltensor"},
    "no functions": {},
    "version 2": {"version": (2, 0), "function": _fills_nothing},
    "fails without an error": {"function": _fails_silently},
    "fails with an error": {"address": _fails_aloud},
    "NULL data": {"function": _null_data},
    "an older one behind": {"version": (2, 0), "previous": True},
}


def exchanging(
    name: bytes = b"dlpack_exchange_api",
    version: tuple[int, int] = (1, 3),
    function: Callable[[Any, int], int] | None = None,
    address: int | None = None,
    managed: Callable[[Any, int], int] = _fills_nothing,
    previous: bool = False,
    capsule: Any = None,
    base: type = Producer,
) -> Any:
    """A class of producers that are right, with a false exchange API beside."""
    api = ExchangeAPI(version=DLPackVersion(*version))
    whole = _FromPyObject(managed)
    _alive.append(whole)
    api.managed_tensor_from_py_object_no_sync = ctypes.cast(whole, ctypes.c_void_p).value
    if function is not None:
        entry = _FromPyObject(function)
        address = ctypes.cast(entry, ctypes.c_void_p).value
        _alive.append(entry)
    api.dltensor_from_py_object_no_sync = address
    if previous:
        older = ExchangeAPI(version=DLPackVersion(1, 3))
        api.prev_api = ctypes.addressof(older)
        _alive.append(older)
    made = _CapsuleNew(ctypes.addressof(api), name, None) if capsule is None else capsule
    _alive.append((api, name))
    return type("Exchanging", (base,), {"__dlpack_c_exchange_api__": made})


class OfNumpy:
    """The memory of an array of numpy, by whose `__dlpack__` it is read-only or not."""

    def __init__(self, memory: Array) -> None:
        self.memory = memory

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.memory.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def _describe(source: OfNumpy, tensor: Any) -> None:
    tensor.data, tensor.device, tensor.ndim = source.memory.ctypes.data, DLDevice(1, 0), 1
    tensor.dtype, tensor.byte_offset, tensor.strides = DLDataType(2, 32, 1), 0, None
    tensor.shape = ctypes.addressof(_THREE)


@pytest.mark.parametrize("with_deleter", [False, True])
@pytest.mark.parametrize("writeable", [False, True])
def test_the_exchange_api_tells_what_is_read_only(writeable: bool, with_deleter: bool) -> None:
    """The short way to a tensor doesn't say; so of outputs, and for callbacks, the long one is
    asked, and what it makes is deleted."""
    made: list[Any] = []
    deleted: list[int] = []

    def short(source: OfNumpy, tensor: int) -> int:
        _describe(source, DLManagedTensor.from_address(tensor).dl_tensor)
        return 0

    def long(source: OfNumpy, out: int) -> int:
        tensor = DLManagedTensorVersioned(version=DLPackVersion(1, 3))
        tensor.flags = 0 if source.memory.flags.writeable else 1
        tensor.deleter = ctypes.cast(delete, ctypes.c_void_p).value if with_deleter else None
        _describe(source, tensor.dl_tensor)
        made.append(tensor)
        ctypes.c_void_p.from_address(out).value = ctypes.addressof(tensor)
        return 0

    delete = _Deleter(deleted.append)
    kind = exchanging(function=short, managed=long, base=OfNumpy)
    x, ones = kind(np.array([1, 2, 3], "float32")), np.ones(3, "float32")
    x.memory.flags.writeable = writeable
    tells = tvm.runtime.PackedFunc(lambda a: a.read_only)
    for _ in range(4):
        out = np.full(3, UNTOUCHED, "float32")
        add_one()(x, out)
        assert out.tolist() == RIGHT
    assert not made
    for _ in range(4):
        assert tells(x) == (not writeable)
        with contextlib.nullcontext() if writeable else pytest.raises(ValueError, match="writable"):
            add_one()(ones, x)
        assert x.memory.tolist() == ([2, 2, 2] if writeable else [1, 2, 3])
    assert len(made) >= 4
    assert deleted == [ctypes.addressof(each) for each in made] * with_deleter


@pytest.mark.parametrize("case", EXCHANGE)
def test_a_false_exchange_api_does_no_harm(case: str) -> None:
    """Such a tensor is read by its `__dlpack__`, which is right, or refused, but never misread."""
    value = exchanging(**EXCHANGE[case])()
    for _ in range(3):
        out = np.full(3, UNTOUCHED, "float32")
        with contextlib.suppress(BufferError, TypeError, ValueError, SystemError, RuntimeError):
            add_one()(value, out)
        assert out.tolist() in (RIGHT, [UNTOUCHED] * 3)
    assert_counts_stay([value])
    accepted(one_two_three())  # no exception was left behind


# -- Garbage --------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_error_is_left() -> Iterator[None]:
    yield
    accepted(one_two_three())
