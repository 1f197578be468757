"""Where the sums of a tile are kept while the sum runs."""

from __future__ import annotations

from minitvm.auto_scheduler.contraction import Contraction
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.tensor import Tensor


def sums_in_registers(s: Schedule, contraction: Contraction, last: Tensor) -> Tensor:
    """The stage of a contraction's sums, in registers: where `last` takes the sums, the contraction
    itself; where it is the contraction's own tensor, a new stage that it is copied from."""
    if last.op is contraction.op:
        return s.cache_write(last, "local")  # type: ignore[no-any-return]  # of one tensor, one
    sums = contraction.op.output(0)
    s[sums].set_scope("local")
    return sums
