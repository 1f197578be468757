"""The stage that keeps the sums of a register tile."""

from __future__ import annotations

from typing import cast

from minitvm.auto_scheduler.contraction import Contraction
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.tensor import Tensor


def sums_in_registers(s: Schedule, contraction: Contraction, last: Tensor) -> Tensor:
    """The stage that keeps a contraction's sums in registers: the contraction itself, if `last` is
    an epilogue; otherwise a new stage, from which the contraction's tensor is copied."""
    if last.op is contraction.op:
        several = len(last.op.outputs) > 1
        made = s.cache_write(list(last.op.outputs) if several else last, "local")
        return cast(Tensor, made[0] if several else made)
    sums = contraction.op.output(0)
    s[sums].set_scope("local")
    return sums
