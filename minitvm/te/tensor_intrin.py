"""Placeholder until the intrinsics arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True, eq=False)
class TensorIntrin:
    """What ``te.decl_tensor_intrin`` makes."""

    name: str
