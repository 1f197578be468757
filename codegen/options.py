"""The freedom that code generation has, besides the program."""

from __future__ import annotations

from typing import final

from minitvm.runtime.record import record
from minitvm.target import Target


@final
@record()
class CodegenOptions:
    """The target, whether floating point is as written, and whether kernels release the GIL.

    `strict` keeps each operation as it stands. Without it a product and a sum may be contracted to
    one fused operation, and the additions of a reduction reordered.

    `release_gil` says whether kernels release the GIL; with None, those do whose work pays for it.
    """

    target: Target
    strict: bool = False
    release_gil: bool | None = None
