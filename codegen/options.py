"""What the generated code may do, apart from what the program says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from minitvm.target import Target


@final
@dataclass(frozen=True, slots=True)
class CodegenOptions:
    """The target, and whether floating point is as written.

    `strict` keeps each operation as it stands. Without it a product and a sum may be contracted to
    one fused operation, and the additions of a reduction reordered.
    """

    target: Target
    strict: bool = False
