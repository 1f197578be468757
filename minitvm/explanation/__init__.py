"""What was built and why, and how fast it can be: :func:`minitvm.explain`.

The facts come from where they are true: operations from the program as it was written, memory and
threads from the loops, registers from the machine code, reasons from what the auto-scheduler noted,
and the machine's limits from measurements of small kernels.
"""
