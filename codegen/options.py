"""The options of code generation: the target, strict floating point, and the release of the GIL."""

from __future__ import annotations

from typing import final

from minitvm.runtime.record import record
from minitvm.target import Target


@final
@record()
class CodegenOptions:
    """The options of code generation.

    `strict` keeps each operation as it is written. Without it, a product and a sum may be
    contracted to one fused operation, and the additions of a reduction may be reordered.

    `release_gil` tells whether kernels release the GIL; with None, a kernel does if its work pays
    for it.
    """

    target: Target
    strict: bool = False
    release_gil: bool | None = None
