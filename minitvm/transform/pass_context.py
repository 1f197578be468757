"""PassContext: the options of the pipeline, its instruments and its timings."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, final

from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.tir.stmt import IRModule, PrimFunc
from minitvm.tir.verify import verify
from minitvm.transform.pass_config import parse_config

Pass = tuple[str, Callable[[PrimFunc], PrimFunc]]

# The name, for `print_after`, of the program before the first pass.
FIRST_STAGE = "schedule_ops"


class Instrument(Protocol):
    """Watches the passes of a context, under the names of classic ``PassInstrument``.

    ``info.name`` is the name of a pass, `func` the program before or after it.
    """

    def run_before_pass(self, func: PrimFunc, info: PassInfo) -> None: ...

    def run_after_pass(self, func: PrimFunc, info: PassInfo) -> None: ...


@final
@record()
class PassInfo:
    """The description of a pass, in the classic order.

    Attributes
    ----------
    opt_level
        ``Sequential`` leaves out a pass whose level is above the context's.
    name
        The name by which a context disables it or prints after it.
    required
        There for classic programs: the names of passes that it needs. Here a pass needs no others,
        since each takes any valid program.
    """

    opt_level: int
    name: str
    required: Sequence[str] = ()


@final
class PassContext:
    """Options of the pipeline for everything that is lowered in its ``with`` block.

    Parameters
    ----------
    opt_level
        The level up to which a ``Sequential`` runs its passes. The pipeline runs all of its own.
    required_pass
        Names of passes that a ``Sequential`` runs at any level.
    instruments
        Objects with the methods of :class:`Instrument`, called around each pass.
    config
        Options by their classic names, such as ``{"tir.UnrollLoop": {"auto_max_step": 16}}``;
        unknown names and values of another type are refused. docs/pipeline.md lists them.
    disabled_pass
        Names of passes to leave out, to study their effect. ``check_bounds`` can't be left out.
    print_after
        Names of passes after which the program is printed to standard error, ``"schedule_ops"``
        for the loops before the first pass; True for all.
    verify_each
        Whether the program is verified after each pass.

    Attributes
    ----------
    timings
        Seconds spent in each pass so far, by name.

    >>> from minitvm import te
    >>> from minitvm.lowering.lower import lower
    >>> A = te.placeholder((4,), name="A")
    >>> B = te.compute((4,), lambda i: A[i] + 1.0, name="B")
    >>> with PassContext(verify_each=True) as context:
    ...     _ = lower(te.create_schedule(B.op), [A, B])
    >>> "simplify" in context.timings
    True
    """

    def __init__(
        self,
        opt_level: int = 2,
        required_pass: Sequence[str] | None = None,
        disabled_pass: Sequence[str] | None = None,
        instruments: Sequence[Instrument] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        print_after: Collection[str] | bool = (),
        verify_each: bool = False,
    ) -> None:
        self.opt_level = opt_level
        self.config = parse_config(config or {})
        self._instruments = tuple(instruments or ())
        self.required_pass = tuple(required_pass or ())
        self.disabled_pass = tuple(disabled_pass or ())
        self.verify_each = verify_each
        self.timings: dict[str, float] = {}
        self._print_after = print_after
        if "check_bounds" in self.disabled_pass:
            raise CompileError(
                "PassContext: disabled_pass: expected passes that can be left out, got "
                "check_bounds, which keeps a kernel inside of its memory"
            )

    @staticmethod
    def current() -> PassContext:
        """The context of the innermost ``with``, or one with every default."""
        stack = _around.contexts
        return stack[-1] if stack else PassContext()

    def __enter__(self) -> PassContext:
        _around.contexts.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _around.contexts.pop()

    def run(self, passes: Sequence[Pass], func: PrimFunc) -> PrimFunc:
        """`func` after all passes that are not left out."""
        self._check_names(passes)
        self._look(FIRST_STAGE, func)
        for name, transform in passes:
            if name not in self.disabled_pass:
                func = self.applied(PassInfo(0, name), transform, func)
        return func

    def applied(self, info: PassInfo, transform: Callable[[Any], Any], program: Any) -> Any:
        """A program after one pass, watched by the instruments."""
        for each in self._instruments:
            each.run_before_pass(program, info)
        with self.timed(info.name):
            made = transform(program)
        for each in self._instruments:
            each.run_after_pass(made, info)
        self._look(info.name, made)
        return made

    def is_enabled(self, info: PassInfo) -> bool:
        """Whether a pass of a ``Sequential`` runs."""
        if info.name in self.disabled_pass:
            return False
        return info.name in self.required_pass or info.opt_level <= self.opt_level

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Adds the seconds of the block to the timings."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.timings[name] = self.timings.get(name, 0.0) + time.perf_counter() - start

    def _look(self, stage: str, func: PrimFunc | IRModule) -> None:
        """Verifies and prints a program where the options ask for it."""
        if self.verify_each:
            for each in func.functions.values() if isinstance(func, IRModule) else (func,):
                verify(each)
        asked = self._print_after
        if asked is True or (asked and stage in asked):
            print(f"# after {stage}\n{func}\n", file=sys.stderr)

    def render(self) -> str:
        """The timings as a table.

        >>> context = PassContext()
        >>> context.timings.update(simplify=0.003, check_bounds=0.001)
        >>> print(context.render())
        pass            ms  share
        simplify      3.00   75 %
        check_bounds  1.00   25 %
        all           4.00  100 %
        """
        total = sum(self.timings.values())
        rows = [(name, f"{1000 * seconds:.2f}", f"{round(100 * seconds / (total or 1))} %")
                for name, seconds in (*self.timings.items(), ("all", total))]  # fmt: skip
        rows.insert(0, ("pass", "ms", "share"))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            f"{name:<{widths[0]}}  {ms:>{widths[1]}}  {share:>{widths[2]}}"
            for name, ms, share in rows
        ]
        return "\n".join(lines)

    def _check_names(self, passes: Sequence[Pass]) -> None:
        known = [FIRST_STAGE, *(name for name, _ in passes)]
        asked = () if isinstance(self._print_after, bool) else self._print_after
        for name in (*self.disabled_pass, *asked):
            if name not in known:
                raise CompileError(
                    f"PassContext: expected a pass among {', '.join(known)}, got {name!r}"
                )


class _Around(threading.local):
    """The contexts of the ``with`` statements around, of each thread."""

    def __init__(self) -> None:
        self.contexts = list[PassContext]()


_around = _Around()
