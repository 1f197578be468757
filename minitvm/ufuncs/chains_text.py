"""The native code of chains: a part of the page of a ufunc's loop.

A chain is a loop whose elements depend on each other: ``reduce``, ``accumulate``, ``at``.
"""

from __future__ import annotations

CHAINS = r"""
# Whether the bytes from the first to the last element of x lie apart from the bytes of y. `x_span`
# is the distance from the first element to the last.
def are_apart(x: i64, x_span: i64, x_size: i64, y: i64, y_span: i64, y_size: i64) -> i1:
    x_end = u64(x + max(x_span, 0) + x_size)
    y_end = u64(y + max(y_span, 0) + y_size)
    return x_end <= u64(y + min(y_span, 0)) or y_end <= u64(x + min(x_span, 0))

# Whether an element of a result is written again, or an input is read at its place: before the
# write (accumulate) or after it, since numpy allows operands to overlap that are read ahead of the
# result.
def is_serial(base: ptr[Kernel], args: ptr[i64], steps: ptr[i64], n: i64) -> i1:
    last = n - 1
    for i in range(base.count):
        operand = base.operands[i]
        if operand.output:
            far = steps[i]
            if far == 0:
                return True
            for j in range(i):
                read = base.operands[j]
                distance = args[i] - args[j]
                if distance == far:
                    return True
                if read.rank == 0 and not are_apart(
                    args[j], steps[j] * last, read.size, args[i], far * last, operand.size
                ):
                    # With equal steps, the operands are the same, or interleave.
                    if steps[j] != far or (distance != 0 and distance % far == 0):
                        return True
    return False

# REDUCE, ACCUMULATE or UPDATE where the calls are such a chain, with x apart from it; else 0:
#     reduce         r, x[i] -> r
#     accumulate     y[i - 1], x[i] -> y[i]
#     update         y[i], x[i] -> y[i], of few elements
def form_of_chain(loop: ptr[Loop], args: ptr[i64], steps: ptr[i64], n: i64) -> i64:
    if not loop.may_chain:
        return 0
    step = steps[2]
    far = args[2] - args[0]
    if steps[0] != step or (far != 0 and far != step):
        return 0
    operands = loop.base.operands
    last = n - 1
    if not are_apart(
        args[1], steps[1] * last, operands[1].size, args[0], step * last + far, operands[2].size
    ):
        return 0
    if step == 0 and n != 1:
        return REDUCE
    if far != 0:
        return ACCUMULATE
    return 0 if n > FEW else UPDATE

# A chain that takes less time than the checks of its arrays. Their results are known here, since
# numpy aligns the elements of its numbers. False: nothing was done, and the kernel must be called
# with the checks.
def run_short_chain(
    kernel: ptr[Kernel], args: ptr[i64], steps: ptr[i64], n: i64, addresses: ptr[i64]
) -> i1:
    if n > SHORT or not kernel.plain:
        return False
    for i in range(kernel.count):
        operand = kernel.operands[i]
        source = operand.source
        if steps[source] != operand.size and n != 1 and operand.batched:
            return False
        if args[source] & (operand.size - 1):
            return False
        addresses[operand.position] = args[source]
    sizes = alloca(i64)
    sizes[0] = n
    call(i32, kernel.plain, addresses, sizes)
    return True
"""
