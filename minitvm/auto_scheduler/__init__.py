"""Schedules made by the machine: the primitives that a person would write.

A stage is recognised by its reads alone: a reduction that uses elements several times is a
contraction (:mod:`contraction`). A model of registers and caches chooses its tiles (:mod:`tiles`).
The schedule is written with the ordinary primitives (:mod:`write`), so that it prints as Python,
and can be edited. If a strategy fails, the next one is tried (:mod:`attempts`).
"""

from minitvm.auto_scheduler.left_plain import left_plain as left_plain
from minitvm.auto_scheduler.write import auto_schedule as auto_schedule
from minitvm.auto_scheduler.write import schedule_program as schedule_program
from minitvm.runtime.faces import hand_on as _hand_on

_hand_on(__name__)
