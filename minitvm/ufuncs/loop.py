"""Makes ufuncs of numpy: their loops, and the kernels that each loop calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, final

import numpy as np

from minitvm.runtime.errors import RAISABLE, InternalError, KernelError
from minitvm.runtime.heap_types import HEADER
from minitvm.runtime.host import host
from minitvm.runtime.lock import ForkLock
from minitvm.runtime.native import NativeCode, Once
from minitvm.ufuncs.kernels import Kernel, LoopFields
from minitvm.ufuncs.loop_text import ANY, LARGE_EXTENT, MOST_KERNELS, ufunc_loop_text
from minitvm.ufuncs.signature import Signature

_MOST_BUILDS = 16  # the most kernels that a loop builds for forms and extents
Make = Callable[[int, tuple[int, ...]], Kernel | None]


@Once
def _code() -> NativeCode:
    code = NativeCode(ufunc_loop_text(host().triple.partition("-")[0]))
    code.set_objects(fail=_fail, ask=_ask)
    return code


def _fail(text: bytes) -> None:
    """Raises the exception that a text of ``last_error`` describes."""
    kind, _, message = text.decode("utf-8", "replace").partition(": ")
    raise RAISABLE.get(kind, KernelError)(message)


def _ask(loop: int, form: int, extents: int) -> int:
    """The address of the kernel that a loop, given by its address, lacks."""
    found = _loops[loop]
    given = (ctypes.c_int64 * found.names).from_address(extents)
    return found.kernel(form, tuple(given)).address


@final
class Loop:
    """The loop of a ufunc for one combination of dtypes.

    Parameters
    ----------
    signature
        The signature of the ufunc.
    base
        The kernel for all operands.
    dtypes
        The dtypes of the operands.
    make
        Makes the kernel of a form for some extents, or tells that there is none. It is called once
        for each combination, and a bounded number of times.
    may_chain
        Whether there are kernels for chains.
    apart
        The numbers, from 0 on, of the outputs that can't take the place of each input.
    """

    def __init__(
        self,
        signature: Signature,
        base: Kernel,
        dtypes: Sequence[np.dtype[Any]],
        make: Make | None = None,
        may_chain: bool = False,
        apart: Sequence[int] = (),
    ) -> None:
        self.dtypes = list(dtypes)
        self.apart = frozenset(apart)
        self.names = len(signature.names)
        self._base = base
        self._make = make
        self._kernels: list[Kernel] = []
        self._builds = 0
        self._met: dict[int, int] = {}
        self.data = LoopFields(
            base=base.address,
            may_ask=make is not None,
            may_chain=may_chain,
            inputs=len(signature.inputs),
            names=self.names,
            count=len(signature.operands),
            words=2 * sum(len(names) + 1 for names in signature.operands),
        )

    def kernel(self, form: int, extents: tuple[int, ...]) -> Kernel:
        """The kernel of a form for some extents; the kernel for all extents where a special one
        doesn't pay."""
        if 0 in extents:
            return self._base
        with _making:
            return self._found(form, extents)

    def _found(self, form: int, extents: tuple[int, ...]) -> Kernel:
        wanted = tuple(map(self._constant, range(self.names), extents))
        for each in self._kernels:  # perhaps made by another thread
            if (each.form, each.extents) == (form, wanted):
                return each
        if self._make is None or len(self._kernels) == MOST_KERNELS:
            self.data.may_ask = 0
            return self._base
        made = self._make(form, wanted) if self._builds < _MOST_BUILDS else None
        self._builds += made is not None
        kernel = made or self._base.standing_for(form, wanted)
        self._kernels.append(kernel)
        _ADD(_code().function("add_kernel"))(ctypes.addressof(self.data), kernel.address)
        return kernel

    def _constant(self, dim: int, extent: int) -> int:
        """An extent as a kernel has it: a constant, except for the second large extent of one
        dimension."""
        if extent > LARGE_EXTENT and self._met.setdefault(dim, extent) != extent:
            return ANY
        return extent


_ADD = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_making = ForkLock()  # one thread makes a kernel at a time
# The loops by their addresses, since numpy's ufuncs point to them. A ufunc may live as long as the
# process, and tells nobody when it is freed.
_loops: dict[int, Loop] = {}
_kept: list[object] = []

# numpy/__ufunc_api.h: PyUFunc_FromFuncAndDataAndSignature is entry 31 of the table in the capsule
# _UFUNC_API, in all versions of numpy that have the capsule.
_FROM_FUNC_AND_DATA_AND_SIGNATURE = 31
_IDENTITIES = {None: -1, 0: 0, 1: 1, -1: 2}


def make_ufunc(
    name: str, doc: str, signature: Signature, loops: Sequence[Loop], identity: int | None
) -> np.ufunc:
    """A ufunc of numpy with one loop for each combination of dtypes; it lives, with its code, to
    the end of the process."""
    if identity not in _IDENTITIES:
        raise ValueError(f"{name}: expected an identity among 0, 1, -1 and None, got {identity!r}")
    count = len(loops)
    functions = (ctypes.c_void_p * count)(*[_code().function("ufunc_loop")] * count)
    data = (ctypes.c_void_p * count)(*[ctypes.addressof(loop.data) for loop in loops])
    types = bytes(dtype.num for loop in loops for dtype in loop.dtypes)
    texts = [name.encode(), doc.encode(), signature.text.encode()]
    _kept.append((functions, data, types, texts))
    _loops.update((ctypes.addressof(loop.data), loop) for loop in loops)
    plain = not signature.names
    made: np.ufunc = _from_func()(
        ctypes.addressof(functions),
        ctypes.addressof(data),
        types,
        count,
        len(signature.inputs),
        len(signature.outputs),
        _IDENTITIES[identity],
        texts[0],
        texts[1],
        0,
        None if plain else texts[2],
    )
    _set_apart(made, frozenset[int]().union(*(loop.apart for loop in loops)))
    return made


class UfuncFields(ctypes.Structure):
    """``PyUFuncObject`` (numpy/ufuncobject.h) behind the header of an object, in all versions of
    numpy from 1.7 on, up to the flags that its iterator has for each operand."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("nin", "nout", "nargs", "identity")),
        *((name, ctypes.c_void_p) for name in ("functions", "data")),
        *((name, ctypes.c_int) for name in ("ntypes", "reserved1")),
        *((name, ctypes.c_void_p) for name in ("name", "types", "doc", "ptr", "obj", "userloops")),
        *((name, ctypes.c_int) for name in ("core_enabled", "core_num_dim_ix")),
        *((name, ctypes.c_void_p) for name in ("core_num_dims", "core_dim_ixs", "core_offsets")),
        *((name, ctypes.c_void_p) for name in ("core_signature", "type_resolver", "dict")),
        *((name, ctypes.c_void_p) for name in ("vectorcall", "reserved3")),
        ("op_flags", ctypes.POINTER(ctypes.c_uint32)),
    )


# numpy/ndarraytypes.h: NPY_ITER_WRITEONLY, _ALIGNED, _UPDATEIFCOPY, _ALLOCATE, _NO_SUBTYPE and
# _NO_BROADCAST. By default, an output also has _OVERLAP_ASSUME_ELEMENTWISE, by which an output that
# is the array of an input isn't copied. numpy's own matmul has these flags.
_APART = 0x0004_0000 | 0x0010_0000 | 0x0080_0000 | 0x0100_0000 | 0x0200_0000 | 0x0800_0000


def _set_apart(made: np.ufunc, outputs: frozenset[int]) -> None:
    """Lets numpy compute some outputs in copies where they are the arrays of inputs."""
    fields = UfuncFields.from_address(id(made) + HEADER)
    if (fields.nin, fields.nout, fields.nargs) != (made.nin, made.nout, made.nargs):
        raise InternalError("gufunc: expected the fields of numpy/ufuncobject.h, found others")
    for i in outputs:
        fields.op_flags[made.nin + i] = _APART


@Once
def _from_func() -> Any:
    """``PyUFunc_FromFuncAndDataAndSignature``."""
    multiarray = import_module("numpy._core._multiarray_umath")

    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    table = get(("PyCapsule_GetPointer", ctypes.pythonapi))(multiarray._UFUNC_API, None)
    if not table:
        raise InternalError("gufunc: expected numpy's table of the C API of ufuncs, got none")
    entries = (ctypes.c_void_p * (_FROM_FUNC_AND_DATA_AND_SIGNATURE + 1)).from_address(table)
    address = entries[_FROM_FUNC_AND_DATA_AND_SIGNATURE] or 0
    integers = [ctypes.c_int] * 4
    pointers = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p]
    texts = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p]
    return ctypes.PYFUNCTYPE(ctypes.py_object, *pointers, *integers, *texts)(address)
