"""Schedules made by the machine: the primitives that a person would write.

::

    description  ->  candidates  ->  cost  ->  writing
    contraction      strategies      cost      tiled, convolutions, instructions, lanes, reductions
    terms            layouts, tiles  ways      loops, packing

The description of a stage is its reads: the distance in memory of neighbours along each axis. A
reduction that reads an element for several results is a contraction. The candidates are the
strategies that fit, the orders of its axes, and the sizes of register tiles and cache blocks. The
model counts the cycles of each. The best one is written with the ordinary primitives, so that the
schedule prints as Python and can be edited. Stages that are no contractions are written by
:mod:`rows`. The order of all decisions is that of :mod:`write`; a strategy that fails is dropped
(:mod:`attempts`).
"""

from minitvm.auto_scheduler.left_plain import left_plain as left_plain
from minitvm.auto_scheduler.write import auto_schedule as auto_schedule
from minitvm.auto_scheduler.write import schedule_program as schedule_program
from minitvm.runtime.faces import hand_on as _hand_on

_hand_on(__name__)
