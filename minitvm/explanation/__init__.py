"""The schedule of a built function, its reasons, and the machine's bound: :func:`minitvm.explain`.

Each fact has its source: operations come from the program as it was written, memory and threads
from the loops, registers from the machine code, reasons from the auto-scheduler's notes, and the
machine's limits from measurements of small kernels.
"""
