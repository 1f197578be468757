"""The records by which the machine code of a ufunc's loop knows the kernels that it calls."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, final

from minitvm.runtime.call_path_text import StoredFunction
from minitvm.runtime.dlpack import dtype_word
from minitvm.runtime.dtype import DType
from minitvm.runtime.heap_types import HEADER
from minitvm.runtime.native_text import fields_of
from minitvm.runtime.record import record
from minitvm.ufuncs.loop_text import LOOP, MOST_KERNELS


class OperandFields(ctypes.Structure):
    _fields_ = fields_of(LOOP, "Operand")


class KernelFields(ctypes.Structure):
    _fields_ = fields_of(LOOP, "Kernel")


class LoopFields(ctypes.Structure):
    _fields_ = fields_of(LOOP, "Loop", {"MOST_KERNELS": MOST_KERNELS})


@final
@record()
class Operand:
    """An argument of a kernel.

    Attributes
    ----------
    position
        Its place among the kernel's arguments.
    source
        Its place among numpy's operands.
    dims
        The numbers of its core dimensions, in numpy's numbering of the signature's dimensions, from
        1 on.
    first_step
        The place of its first core dimension among numpy's steps.
    batched
        Whether it has a batch dimension in front.
    dtype
        The dtype of its elements.
    is_output
        Whether the kernel writes it.
    """

    position: int
    source: int
    dims: tuple[int, ...]
    first_step: int
    batched: bool
    dtype: DType
    is_output: bool


@final
class Kernel:
    """A built function as the loop calls it, for operands of a form and for some extents of the
    core dimensions.

    Attributes
    ----------
    form
        The inputs that all elements share, as bits; or the kind of a chain.
    extents
        The extents of the core dimensions; ``ANY`` for large ones, ``EVERY`` for all.
    address
        The address at which the machine code finds it.
    """

    def __init__(
        self,
        function: Any,
        operands: Sequence[Operand],
        form: int = 0,
        extents: Sequence[int] = (),
        is_chain: bool = False,
    ) -> None:
        self.form, self.extents = form, tuple(extents)
        self._given = function, operands
        self._entry = function.c_function
        self._extents = (ctypes.c_int64 * len(extents))(*extents)
        self._dims = [(ctypes.c_int64 * len(each.dims))(*each.dims) for each in operands]
        self._operands = (OperandFields * len(operands))(
            *(
                OperandFields(
                    each.position,
                    each.source,
                    len(each.dims),
                    each.batched,
                    dtype_word(each.dtype),
                    each.is_output,
                    each.dtype.itemsize,
                    ctypes.addressof(dims),
                    each.first_step,
                )
                for each, dims in zip(operands, self._dims, strict=True)
            )
        )
        stored = StoredFunction.from_address(id(function) + HEADER)
        self._fields = KernelFields(
            form,
            is_chain,
            ctypes.addressof(self._extents),
            self._entry.call,
            self._entry.resource,
            self._entry.last_error,
            len(operands),
            ctypes.addressof(self._operands),
            None if stored.calls_back else ctypes.addressof(stored),
            function.program.plain_entry(function.name) if is_chain else None,
        )
        self.address = ctypes.addressof(self._fields)

    def standing_for(self, form: int, extents: Sequence[int]) -> Kernel:
        """The same kernel, standing for a kernel of another form or for other extents."""
        return Kernel(*self._given, form, extents)
