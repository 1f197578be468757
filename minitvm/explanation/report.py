"""The explanation of a function: the record of its figures and decisions, and its text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import final

from minitvm.explanation.amount import Amount, sum_of
from minitvm.explanation.assembly import InnerLoop
from minitvm.explanation.loops import ParallelLoop, Temporary
from minitvm.explanation.nests import Nest
from minitvm.explanation.work import Operations
from minitvm.runtime.record import record
from minitvm.tir.provenance import Choice

_INDENT = "    "
_WIDTH = 100  # of the text


@final
@record()
class ExplainedStage:
    """A stage of the program as it was written, and the choices for it."""

    name: str
    shape: tuple[Amount, ...]
    summed: tuple[Amount, ...]
    operations: tuple[Operations, ...]
    choices: tuple[Choice, ...]


@final
@record()
class Roofline:
    """The least time that this machine takes for some operations and bytes, with `threads` threads:
    the time of the arithmetic or that of reading, whichever is longer (Williams, Waterman and
    Patterson, "Roofline", CACM 52(4), 2009). Both speeds are measured.

    Attributes
    ----------
    threads
        The number of threads that the function uses.
    arithmetic_seconds
        The time of all operations at the peak of their kinds; calls of functions such as exp don't
        count.
    bandwidth
        Bytes a second, of memory or of the cache that holds the arguments.
    memory_seconds
        The time of reading as many bytes as the arguments have.
    """

    threads: int
    arithmetic_seconds: float
    bandwidth: float
    memory_seconds: float

    @property
    def seconds(self) -> float:
        return max(self.arithmetic_seconds, self.memory_seconds)

    @property
    def bound_by(self) -> str:
        """``"arithmetic"`` or ``"memory"``."""
        return "arithmetic" if self.arithmetic_seconds >= self.memory_seconds else "memory"


@final
@record(repr=False)
class Explanation:
    """The result of :func:`explain`; its ``str`` is a page of text. Amounts are integers, or the
    text of an expression where a size is symbolic.

    Attributes
    ----------
    name, arguments, target, scheduled
        The function's properties; ``scheduled`` as in :class:`minitvm.tir.provenance.Origin`.
    stages
        The program as it was written.
    parallel, temporaries, nests, inner_loops
        As found in the loops and the machine code.
    vector_registers
        The number of the target's vector registers.
    operations
        The operations as they were written, or the fewer that remain where factors were taken out
        of a sum; with `is_estimate`, as the loops compute them.
    named
        The operations on values by their names, such as ``"multiply-adds"`` and ``"comparisons"``,
        as they were written; none where the user wrote loops.
    bytes
        The bytes of the arguments, each moved once.
    roofline, seconds
        The bound on this machine, and the measured time of a call; None where they weren't
        measured.
    unmeasured
        The reason why nothing was measured.
    zeros
        The inputs that were made for measuring and filled with zeros, since no valid values were
        known.
    """

    name: str
    arguments: tuple[str, ...]
    target: str
    scheduled: str
    stages: tuple[ExplainedStage, ...]
    parallel: tuple[ParallelLoop, ...]
    temporaries: tuple[Temporary, ...]
    nests: tuple[Nest, ...]
    inner_loops: tuple[InnerLoop, ...]
    vector_registers: int
    operations: tuple[Operations, ...]
    named: tuple[Operations, ...]
    is_estimate: bool
    bytes: Amount
    roofline: Roofline | None
    seconds: float | None
    unmeasured: str
    zeros: tuple[str, ...]

    @property
    def flop(self) -> Amount:
        """All arithmetic, of floats and integers."""
        return sum_of(each.number for each in self.operations if each.is_arithmetic)

    @property
    def intensity(self) -> float | None:
        """Arithmetic operations for each byte."""
        if isinstance(self.flop, str) or isinstance(self.bytes, str) or not self.bytes:
            return None
        return self.flop / self.bytes

    @property
    def share_of_peak(self) -> float | None:
        """The measured speed as a share of the speed of the arithmetic units."""
        if self.roofline is None or self.seconds is None:
            return None
        return self.roofline.arithmetic_seconds / self.seconds

    @property
    def share_of_bound(self) -> float | None:
        """The measured speed as a share of the bound's."""
        if self.roofline is None or self.seconds is None:
            return None
        return self.roofline.seconds / self.seconds

    def __str__(self) -> str:
        parts = {
            "Loops": map(_loop, self.parallel),
            "Memory between stages": map(_temporary, self.temporaries),
            "Machine code": (_inner_loop(each, self.vector_registers) for each in self.inner_loops),
            "Loop nests": (line for nest in self.nests for line in _nest(nest)),
            "Work": _work(self),
            "Bound on this machine": () if self.roofline is None else _bound(self.roofline, self),
            "Measured": _measured(self),
        }
        lines = [f"{self.name}({', '.join(self.arguments)})", *_made(self)]
        lines += (line for stage in self.stages for line in _stage(stage))
        for head, below in parts.items():
            found = [f"{_INDENT}{line}" for line in below]
            lines += [head, *found] if found else []
        return "\n".join(map(_wrapped, lines))

    __repr__ = __str__


# -- Text -----------------------------------------------------------------------------------------


def _wrapped(line: str) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(line, _WIDTH, subsequent_indent=indent + "  ", break_on_hyphens=False)


def _made(of: Explanation) -> Iterator[str]:
    how = {"not": "not scheduled: plain loops", "": "made of loops"}
    yield f"for {of.target}, {how.get(of.scheduled, f'scheduled {of.scheduled}')}"


def _stage(stage: ExplainedStage) -> Iterator[str]:
    text = f"{stage.name}: {_shape(stage.shape)}"
    if stage.summed:
        text += f", each over {_shape(stage.summed)}"
    yield text
    yield from (f"{_INDENT}{choice}" for choice in stage.choices)


def _loop(loop: ParallelLoop) -> str:
    how = {
        True: "shared by threads",
        False: "on one thread: threads don't pay, or can't be",
        None: "shared by threads where the call has enough to do",
    }
    return f"{loop.name}: {loop.iterations} iterations, {how[loop.starts_threads]}"


def _nest(nest: Nest) -> Iterator[str]:
    made_of = f" of {', '.join(nest.reads)}" if nest.reads else ""
    shares = [
        f"{share:.0%} {how}"
        for share, how in ((nest.predicted, "predicted"), (nest.measured, "measured"))
        if share is not None
    ]
    share = f"; of the time {', '.join(shares)}" if shares else ""
    size = f"{_shape([size for _, size in nest.loops])} iterations" if nest.loops else "no loop"
    yield f"{', '.join(nest.writes)}{made_of}: {size}{share}"
    at_once = f"{nest.lanes} lanes at once" if nest.lanes > 1 else "one element at a time"
    found = "".join(f"; {each}" for each in nest.notes)
    if nest.bits or nest.notes:
        yield f"{_INDENT}{at_once}{found}"
    if nest.operations:
        listed = ", ".join(f"{_count(number)} {name}" for name, number in nest.operations)
        yield f"{_INDENT}{listed}"


def _temporary(buffer: Temporary) -> str:
    whose = "for each thread at work" if buffer.is_per_task else "once a call"
    made_of = f", made of {', '.join(buffer.made_of)}" if buffer.made_of else ""
    shape = ", ".join(map(str, buffer.shape))
    size = f"{buffer.name}: {buffer.dtype}[{shape}], {_bytes(buffer.bytes)}"
    return f"{size}, {buffer.place} {whose}{made_of}"


def _inner_loop(loop: InnerLoop, registers: int) -> str:
    tiles = f" and {loop.tiles} tile registers" if loop.tiles else ""
    spills = f"{loop.spills} accesses of the stack" if loop.spills else "nothing spilled"
    return (
        f"{loop.function}: {loop.instructions} instructions in the innermost loop, of which "
        f"{loop.multiply_adds} multiply and add, {loop.arithmetic - loop.multiply_adds} compute "
        f"otherwise, {loop.loads} load, {loop.stores} store; {loop.bits} bits wide, in "
        f"{loop.registers} of {registers} vector registers{tiles}, {spills}"
    )


def _work(of: Explanation) -> Iterator[str]:
    for each in of.operations:
        unit = "operations in" if each.is_arithmetic else "calls of"
        kind = " x ".join(each.kind[:2]) if each.is_arithmetic else str(each.kind)
        kind += f" to {each.kind[2]}" if each.is_arithmetic and len(each.kind) == 3 else ""
        yield f"{_count(each.number)} {unit} {kind}{', as the loops do it' * of.is_estimate}"
    named = [f"{_count(each.number)} {each.kind}" for each in of.named]
    if named:
        yield f"as written: {', '.join(named)}"
    per_byte = "" if of.intensity is None else f"; {of.intensity:.3g} operations for each byte"
    yield f"{_bytes(of.bytes)} of arguments, each moved once{per_byte}"


def _bound(roofline: Roofline, of: Explanation) -> Iterator[str]:
    threads = f"{roofline.threads} thread{'s' if roofline.threads > 1 else ''}"
    if roofline.arithmetic_seconds and not isinstance(of.flop, str):
        peak = of.flop / roofline.arithmetic_seconds
        yield f"arithmetic: {_time(roofline.arithmetic_seconds)} at {_rate(peak, of)}, {threads}"
    yield (
        f"memory: {_time(roofline.memory_seconds)} at {roofline.bandwidth / 1e9:.3g} GB/s, the "
        f"speed of reading so much again and again, {threads}"
    )
    yield f"at best {_time(roofline.seconds)}, bound by {roofline.bound_by}"


def _measured(of: Explanation) -> Iterator[str]:
    if of.seconds is None:
        yield f"nothing: {of.unmeasured}"
        return
    if of.zeros:
        yield f"with arguments that were made: all of {', '.join(of.zeros)} is zero"
    if of.roofline is None:
        yield f"{_time(of.seconds)} a call; data say how much is computed, so there is no bound"
        return
    rate = "" if isinstance(of.flop, str) or not of.flop else f", {_rate(of.flop / of.seconds, of)}"
    peak = f"{of.share_of_peak:.0%} of peak, " if of.share_of_peak else ""
    yield f"{_time(of.seconds)} a call{rate}: {peak}{of.share_of_bound:.0%} of the bound"


def _shape(shape: Sequence[Amount]) -> str:
    texts = (f"({each})" if " " in str(each) else str(each) for each in shape)
    return " x ".join(texts) or "one element"


def _count(number: Amount) -> str:
    """A number of things, exact up to a million.

    >>> _count(1_000), _count(2_500_000), _count("n * 2")
    ('1000', '2.5 million', 'n * 2')
    """
    if isinstance(number, str) or number < 1e6:
        return str(number)
    unit, name = (1e9, "billion") if number >= 1e9 else (1e6, "million")
    return f"{number / unit:.4g} {name}"


def _bytes(size: Amount) -> str:
    """
    >>> _bytes(896), _bytes(3 << 20), _bytes("n * 4")
    ('896 bytes', '3 MiB', 'n * 4 bytes')
    """
    if isinstance(size, str) or size < 1 << 10:
        return f"{size} bytes"
    shift = next(each for each in (30, 20, 10) if size >> each)
    return f"{size / (1 << shift):.4g} {'KMG'[shift // 10 - 1]}iB"


def _time(seconds: float) -> str:
    """
    >>> _time(2e-8), _time(0.0025)
    ('20 ns', '2.5 ms')
    """
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
    unit, name = next((each for each in units if seconds >= each[0]), units[-1])
    return f"{seconds / unit:.3g} {name}"


def _rate(rate: float, of: Explanation) -> str:
    is_float = any(each.is_arithmetic and "float" in each.kind[-1] for each in of.operations)
    return f"{rate / 1e9:.4g} {'GFLOP/s' if is_float else 'billion operations/s'}"
