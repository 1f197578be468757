"""What was built, in words and figures: :func:`minitvm.explanation.explain.explain`.

The facts come from where they are true: operations from the program as it was written, memory and
threads from the loops, registers from the machine code, reasons from what the auto-scheduler noted,
and the machine's limits from measurements of small kernels.
"""
