"""Contractions with few columns, computed with a row's axis as the column.

Vectors lie along the column axis, so a result of few columns leaves most lanes idle. Where this
takes more cycles than the transposition in the last line here, the factors exchange their roles::

    T[j, i] = sum over k of B[k, j] * A[i, k]        # its column is i; few rows j
    C[i, j] = T[j, i]

The gradient of a convolution by its weights is short along its last axes as well, those of a
window, and sums over images. With the channels of the adjoint as the column, the images are read as
they lie, at all places of the window, and the adjoint is packed for a part of the sum at a time::

    T[c, r, q, f] = sum over n, y, x of image[n, c, y + r, x + q] * adjoint[n, f, y, x]
    W[f, c, r, q] = T[c, r, q, f]
"""

from __future__ import annotations

from minitvm.auto_scheduler.contraction import (
    Contraction,
    contraction_of,
    extent_of,
    is_uneven,
    product_of_extents,
)
from minitvm.auto_scheduler.convolution import cycles_of_convolution, sums_over_images
from minitvm.auto_scheduler.cost import copy_cycles, transfer_cycles
from minitvm.auto_scheduler.loops import compute_of, lie_along
from minitvm.auto_scheduler.packing import can_be_copied
from minitvm.auto_scheduler.tiled import cycles_of
from minitvm.auto_scheduler.tiles import ALIKE
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.tensor import Tensor
from minitvm.tir.expr import IterVar


def turned_column(contraction: Contraction, target: Target) -> IterVar | None:
    """The axis of rows that is better as the column; None if the last axis is best.

    >>> from minitvm import te
    >>> A, B = te.placeholder((500, 900), name="A"), te.placeholder((500, 3), name="B")
    >>> k = te.reduce_axis((0, 500), name="k")
    >>> C = te.compute((900, 3), lambda i, j: te.sum(A[k, i] * B[k, j], axis=k), name="C")
    >>> target = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver3")
    >>> turned_column(contraction_of(C.op), target) is C.op.axis[0]
    True
    """
    is_of_windows = sums_over_images(contraction)
    if not is_of_windows and not can_be_copied(contraction, contraction.b):
        return None
    found = _turned(contraction, target)
    if found is None:
        return None
    turned, cycles = found
    as_it_is = cycles_of_convolution if is_of_windows else cycles_of
    return turned.column if cycles * ALIKE < as_it_is(contraction, target) else None


def are_fewest(cycles: float, contraction: Contraction, target: Target) -> bool:
    """Whether a contraction takes more than `cycles` by tiles of sums, whether the last axis or the
    axis of rows is the column."""
    if cycles >= cycles_of(contraction, target):
        return False
    found = _turned(contraction, target)
    return found is None or cycles < found[1]


def _turned(contraction: Contraction, target: Target) -> tuple[Contraction, float] | None:
    """A contraction with its last axis of rows as the column, and its cycles with the copy of the
    result; None where the factors can't exchange their roles."""
    if not is_plain(contraction):
        return None
    row = contraction.rows[-1]
    if extent_of(row) == 1:  # indices are simplified to 0, and read no column
        return None
    turned = contraction_of(contraction.op, row)
    if turned is None or not is_plain(turned) or turned.b.tensor is not contraction.a.tensor:
        return None
    if not can_be_copied(turned, turned.b):
        return None
    elements = product_of_extents(contraction.op.axis)
    if elements is None:
        return None
    size = elements * contraction.op.output(0).dtype.itemsize
    # The copy is written and read, and what it is copied to comes before it is overwritten.
    copied = copy_cycles(size) + transfer_cycles(4 * size, 2 * size, target)
    return turned, cycles_of(turned, target) + copied


def is_plain(contraction: Contraction) -> bool:
    """Whether a contraction of two factors of one type, with several rows, may be turned."""
    op, factors = contraction.op, contraction.factors
    dtypes = {each.tensor.dtype for each in factors}
    return (
        len(factors) == 2
        and len(op.outputs) == 1
        and dtypes == {op.output(0).dtype}
        and not is_uneven(op)
        and product_of_extents(contraction.rows) not in (None, 0, 1)
        and None not in map(extent_of, (*op.axis, *op.reduce_axis))
    )


def turn(s: Schedule, tensor: Tensor, column: IterVar, stays: bool) -> Tensor:
    """Makes `column` the last axis of a tensor's stage; or, where the tensor `stays` as it is, of a
    stage from which the tensor is copied. Returns the tensor that is computed."""
    place = compute_of(s[tensor]).axis.index(column)
    made: Tensor = s.cache_write(tensor, "global") if stays else tensor
    lie_along(s[made], place)
    return made
