"""The arrangement of a call's arrays in memory, and the variants of a function for arrangements.

A function is compiled for compact arrays that share no memory. The variant for another arrangement
is compiled when a call first needs it. A caller asks for the variant by passing
:data:`ASKS_FOR_VARIANT` in ``*ret_type_code``: a packed function that was compiled for another
arrangement then returns :data:`NEEDS_VARIANT`, with no error set and nothing written. Unasked, it
raises.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Collection, Mapping
from typing import final

from minitvm.runtime.dlpack import TensorView, compact_strides, lead_alike, read_tensor
from minitvm.runtime.record import record

# Requests of a caller in ``*ret_type_code``, alone or together; they are no type codes. The second
# asks for a check: the function returns 0 if the arguments are right, and does nothing else. The
# third tells that the caller doesn't hold the GIL. A kernel that then fails takes the GIL, sets the
# error, returns FAILED_HOLDING and leaves the state of the GIL in ``*ret``; wrong arguments give
# -1, and perhaps an error.
ASKS_FOR_VARIANT = 0x4C41
ASKS_TO_CHECK = 0x4C42
IS_WITHOUT_GIL = 0x4C44
ALL_WISHES = ASKS_FOR_VARIANT | ASKS_TO_CHECK | IS_WITHOUT_GIL
NEEDS_VARIANT = -2
FAILED_HOLDING = -3

# The size of the table of variants that callers try in order, its end included. A function hardly
# ever has as many; `Variants.find` knows any further ones.
_TABLE_SIZE = 8


@final
@record()
class Arrangement:
    """The arrays that a variant takes: whether they may have any strides, and which outputs are the
    same array as an input, as pairs (position of the output, position of the input)."""

    strided: bool = False
    same: frozenset[tuple[int, int]] = frozenset()


COMPACT = Arrangement()


@final
@record()
class Compiled:
    """The address of a packed C function, and the owner of its machine code."""

    address: int
    owner: object


class Variants:
    """The compiled variants of one function; the others are compiled when they are first needed.

    Threads may use it side by side, without a lock that a fork could leave behind: at worst, two
    compile the same variant and one of them is dropped.

    Parameters
    ----------
    base
        The function for :data:`COMPACT`.
    written
        The positions of the outputs.
    free
        The positions of the arrays that may have another arrangement in a variant.
    allowed
        Maps an arrangement to the nearest one that the program can have: pairs of an input and an
        output that the program can't compute in place are left out.
    make
        Compiles the variant for an allowed arrangement.
    """

    __slots__ = ("_allowed", "_free", "_make", "_slots", "_table", "_written", "made")

    def __init__(
        self,
        base: Compiled,
        written: Collection[int],
        free: Collection[int],
        allowed: Callable[[Arrangement], Arrangement],
        make: Callable[[Arrangement], Compiled],
    ) -> None:
        self._written = written
        self._free = free
        self._allowed = allowed
        self._make = make
        self.made = {COMPACT: base}
        self._table = (ctypes.c_void_p * _TABLE_SIZE)(base.address)
        self._slots = itertools.count(1)

    @property
    def table(self) -> int:
        """The address of the table of the variants' addresses, the base first and NULL at the end.
        The table stays in its place; entries are added, and never change."""
        return ctypes.addressof(self._table)

    def find(self, tensors: Mapping[int, int]) -> Compiled:
        """The variant for the arguments of a call.

        Call the variant without requests: if no variant takes these arrays, it raises the error.

        Parameters
        ----------
        tensors
            The addresses of the ``DLTensor`` arguments by position.
        """
        views = {position: read_tensor(address) for position, address in tensors.items()}
        arrangement = self._allowed(arrangement_of(views, self._written, self._free))
        made = self.made.get(arrangement)
        return self._add(arrangement) if made is None else made

    def prepare(self, arrangement: Arrangement) -> None:
        """Compiles the variant for an arrangement, so that no call has to."""
        nearest = self._allowed(arrangement)
        if nearest not in self.made:
            self._add(nearest)

    def _add(self, arrangement: Arrangement) -> Compiled:
        compiled = self._make(arrangement)
        made = self.made.setdefault(arrangement, compiled)
        if made is compiled:
            slot = next(self._slots)
            if slot < _TABLE_SIZE - 1:
                self._table[slot] = made.address
        return made


def arrangement_of(
    tensors: Mapping[int, TensorView], written: Collection[int], free: Collection[int]
) -> Arrangement:
    """The arrangement of arrays, given by their positions among the arguments; arrays that are not
    `free` have their declared arrangement.

    >>> import numpy as np
    >>> from minitvm.runtime import from_dlpack
    >>> x = np.zeros((4, 4), "float32")
    >>> arrays = [from_dlpack(a) for a in (x, x[0], x)]
    >>> tensors = {position: read_tensor(a.handle) for position, a in enumerate(arrays)}
    >>> arrangement_of(tensors, written={2}, free={0, 1, 2})
    Arrangement(strided=False, same=frozenset({(2, 0)}))
    """
    same = frozenset(
        (output, position)
        for output in written
        for position, view in tensors.items()
        if position not in written and _are_same(tensors[output], view)
    )
    compact = (_is_compact(view) for position, view in tensors.items() if position in free)
    return Arrangement(not all(compact), same)


def _is_compact(view: TensorView) -> bool:
    return lead_alike(view.shape, view.strides, compact_strides(view.shape))


def _are_same(a: TensorView, b: TensorView) -> bool:
    """Whether two arrays are the same one: equal indices lead to the same element."""
    return (
        (a.data, a.shape, a.dtype) == (b.data, b.shape, b.dtype)
        and 0 not in a.shape
        and lead_alike(a.shape, a.strides, b.strides)
    )
