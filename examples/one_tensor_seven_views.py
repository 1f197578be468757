"""One tensor as seven structures, and the ones that share its memory.

python examples/one_tensor_seven_views.py
"""

import ctypes
import importlib.util

import numpy as np

import minitvm as tvm
from minitvm import te
from minitvm.runtime import ArgTypeCode, mdspan, tensor_proto
from minitvm.runtime.dlpack import DLManagedTensor, DLTensor

address_in_capsule = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def element(tensor: DLTensor, row: int, column: int) -> float:
    """An element of a matrix of float32, as C reads it: data, byte_offset and strides say where."""
    strides = (ctypes.c_int64 * tensor.ndim).from_address(tensor.strides)
    place = tensor.data + tensor.byte_offset + 4 * (row * strides[0] + column * strides[1])
    return ctypes.c_float.from_address(place).value


# 1. NDArray: the object that owns the memory.
array = tvm.nd.array(np.arange(6, dtype="float32").reshape(2, 3))

# 2. DLTensor: it lies in the NDArray, and says where the elements are and what.
tensor = DLTensor.from_address(array.handle)

# 3. DLManagedTensor: in the capsule that goes to another library, with the deleter to call.
capsule = array.__dlpack__()
managed = DLManagedTensor.from_address(address_in_capsule(capsule, b"dltensor") or 0)

# 4. TVMValue: an argument of a packed call, here both of a function that works in place.
X = te.placeholder((2, 3), name="X")
Y = te.compute((2, 3), lambda i, j: X[i, j] + 10.0, name="Y")
add_ten = tvm.build(te.create_schedule(Y.op), [X, Y], name="add_ten")
args = tvm.TVMArgs()
args.values[0].v_handle = args.values[1].v_handle = array.handle
args.tcodes[0] = args.tcodes[1] = ArgTypeCode.NDARRAY_HANDLE
args.values_count = 2

# 5. mdspan: C++'s view, an address and a mapping of indices.
span = mdspan.to_host_mdspan(array, "float", 2, mdspan.layout_right)

# 6. A tensor of a framework.
framework = "torch" if importlib.util.find_spec("torch") else "numpy"
if framework == "torch":
    import torch

    foreign = torch.from_dlpack(array)
    foreign_address = foreign.data_ptr()
else:
    foreign = np.from_dlpack(array)
    foreign_address = foreign.ctypes.data
    print("torch: not installed, left out")

# 7. TensorProto: a message, which has the elements themselves, and so a copy.
message = None
if importlib.util.find_spec("google") and importlib.util.find_spec("google.protobuf"):
    message = tensor_proto.to_bytes(array)
else:
    print("protobuf: not installed, left out")


def show(title: str) -> None:
    """The last element in all of them."""
    value_handle = DLTensor.from_address(args.values[0].v_handle)
    rows = [
        ("NDArray", array.data, array.numpy()[1, 2]),
        ("DLTensor", tensor.data, element(tensor, 1, 2)),
        ("DLManagedTensor", managed.dl_tensor.data, element(managed.dl_tensor, 1, 2)),
        ("TVMValue", value_handle.data, element(value_handle, 1, 2)),
        ("mdspan", span.data_handle, span[1, 2]),
        (f"{framework}'s tensor", foreign_address, foreign[1, 2]),
    ]
    print(f"\n{title}")
    for name, data, value in rows:
        print(f"  {name:18}at {data:#x}   [1, 2] is {float(value)}")
        assert (data, float(value)) == (array.data, array.numpy()[1, 2])
    if message is not None:
        copy = np.asarray(tensor_proto.from_bytes(message))
        print(f"  {'TensorProto':18}{len(message)} bytes           [1, 2] is {copy[1, 2]}")
        assert copy.ctypes.data != array.data and copy[1, 2] == 5


show("As it was made:")

entry = add_ten.c_function
packed = ctypes.CFUNCTYPE(
    ctypes.c_int, *[ctypes.c_void_p] * 2, ctypes.c_int, *[ctypes.c_void_p] * 3
)(entry.call)
status = packed(
    ctypes.addressof(args.values),
    ctypes.addressof(args.tcodes),
    args.values_count,
    None,
    None,
    entry.resource,
)
assert status == 0
show("After a packed call that adds 10 in place:")
assert array.numpy()[1, 2] == 15

span[1, 2] = -1
show("After md[1, 2] = -1:")

foreign[1, 2] = 0.5
show(f"After {framework} has written 0.5:")
