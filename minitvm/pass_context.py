"""PassContext: how the pipeline runs, and what it shows of itself."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, final

from minitvm.runtime.errors import CompileError
from minitvm.stmt import PrimFunc
from minitvm.verify import verify

Pass = tuple[str, Callable[[PrimFunc], PrimFunc]]


@final
class PassContext:
    """Options of the pipeline for everything that is lowered in its ``with`` block.

    Parameters
    ----------
    opt_level
        Classic; kept, and changes nothing yet.
    config
        Options by name; unknown names are refused.
    disabled_pass
        Names of passes to leave out, for looking at what they do. ``check_bounds`` can't be.
    print_after
        Names of passes after which the program is printed to standard error; True for all.
    verify_each
        Whether the program is verified after each pass.

    Attributes
    ----------
    timings
        Seconds spent in each pass so far, by name.

    >>> from minitvm import te
    >>> from minitvm.lower import lower
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
        config: Mapping[str, Any] | None = None,
        *,
        print_after: Collection[str] | bool = (),
        verify_each: bool = False,
    ) -> None:
        for name in config or ():
            raise CompileError(f"PassContext: expected known options in config, got {name!r}")
        self.opt_level = opt_level
        self.config = dict(config or {})
        self.disabled_pass = tuple(disabled_pass or ())
        self.verify_each = verify_each
        self.timings: dict[str, float] = {}
        self._print_after = print_after
        if "check_bounds" in self.disabled_pass:
            raise CompileError("PassContext: check_bounds is what makes a kernel safe: it stays")

    @staticmethod
    def current() -> PassContext:
        """The context of the innermost ``with``, or one with every default."""
        stack = _stack()
        return stack[-1] if stack else PassContext()

    def __enter__(self) -> PassContext:
        _stack().append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _stack().pop()

    def run(self, passes: Sequence[Pass], func: PrimFunc) -> PrimFunc:
        """`func` after all passes that are not left out."""
        self._check_names(passes)
        if self.verify_each:
            verify(func)
        for name, transform in passes:
            if name in self.disabled_pass:
                continue
            start = time.perf_counter()
            func = transform(func)
            self.timings[name] = self.timings.get(name, 0.0) + time.perf_counter() - start
            if self.verify_each:
                verify(func)
            if self._print_after is True or (self._print_after and name in self._print_after):
                print(f"# after {name}\n{func}\n", file=sys.stderr)
        return func

    def _check_names(self, passes: Sequence[Pass]) -> None:
        known = [name for name, _ in passes]
        asked = () if isinstance(self._print_after, bool) else self._print_after
        for name in (*self.disabled_pass, *asked):
            if name not in known:
                raise CompileError(
                    f"PassContext: expected a pass among {', '.join(known)}, got {name!r}"
                )


_contexts = threading.local()


def _stack() -> list[PassContext]:
    if not hasattr(_contexts, "stack"):
        _contexts.stack = []
    stack: list[PassContext] = _contexts.stack
    return stack
