"""What the generated code may do, apart from what the program says."""

from __future__ import annotations

from typing import final

from minitvm.runtime.record import record
from minitvm.target import Target


@final
@record()
class CodegenOptions:
    """The target, whether floating point is as written, and who releases the GIL.

    `strict` keeps each operation as it stands. Without it a product and a sum may be contracted to
    one fused operation, and the additions of a reduction reordered.

    `release_gil` says whether kernels release the GIL; with None, those that are worth it do.
    """

    target: Target
    strict: bool = False
    release_gil: bool | None = None
