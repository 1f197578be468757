"""``build``: schedules, lowers and compiles a program to a function that can be called.

::

    a program  ->  a schedule  ->  loop IR  ->  LLVM IR  ->  machine code  ->  a Module
        schedule_program         lower     (compile_module)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import NoneType
from typing import Any

from minitvm.auto_scheduler import left_plain, schedule_program
from minitvm.codegen.options import CodegenOptions
from minitvm.driver.batches import batches_of
from minitvm.driver.program import compile_module, compiled_function
from minitvm.lowering.lower import check_binds, lower
from minitvm.runtime.errors import CompileError, PerformanceWarning
from minitvm.runtime.module import Module
from minitvm.target import Target, create
from minitvm.te.schedules.schedule import Schedule, create_schedule
from minitvm.te.tensor import Tensor
from minitvm.tir.depth import deep_expressions
from minitvm.tir.expr import Buffer, described
from minitvm.tir.stmt import IRModule, PrimFunc
from minitvm.variants.column_major import RowMajor, in_column_major, in_row_major, shows_indices
from minitvm.variants.in_place import needs_form_in_place, with_form_in_place

_FP_MODES = ("fast", "strict")


def build(
    inputs: Any,
    args: Sequence[Any] | None = None,
    target: str | Target | None = None,
    target_host: str | Target | None = None,
    name: str | None = None,
    binds: Mapping[Tensor, Buffer] | None = None,
    *,
    fp: str = "fast",
    release_gil: bool | None = None,
    debug: str | None = None,
    auto_schedule: bool = True,
    prepacked: Sequence[Tensor] = (),
) -> Module:
    """A native function for a schedule.

    Parameters
    ----------
    inputs
        A schedule, output tensors, a ``PrimFunc`` or an ``IRModule``; in the classic form, a
        mapping from the target to one of these.
    args
        The parameters of the function, in order: tensors (inputs and outputs), buffers, and
        variables for scalars. Not for a ``PrimFunc`` or ``IRModule``, which have their own.
    target
        The target: ``"llvm"`` is this machine; see :class:`minitvm.target.Target`. By
        default the innermost ``with Target(...)``, or this machine.
    target_host
        Classic; serves where `target` is not given.
    name
        The function's name in messages and in the object code. By default ``"default_function"``.
    binds
        Buffers for some tensors, for strides and alignments other than the default.
    fp
        ``"fast"`` lets a multiplication and an addition be contracted into one rounding, and the
        additions of a reduction be reordered. ``"strict"`` computes as written, with the functions
        of the C library. Neither assumes anything about NaN and infinities.
    release_gil
        Whether other threads of Python run while the function computes. By default they do where
        its work, estimated at the call, is worth it, and it calls nothing of Python.
    auto_schedule
        Whether an untouched program is scheduled for the target: `inputs` are tensors, or a
        schedule to which no primitive was applied. Any other schedule is built as it is; one
        :class:`PerformanceWarning` names its stages that are left as slow plain loops.
    prepacked
        Placeholders that don't change from call to call, such as weights: the function takes the
        arrays that :func:`minitvm.prepack` makes of them, in the layout that the schedule reads.
        For programs that are scheduled here; in a schedule of yours use ``compute_ahead``.
    debug
        ``"bounds"`` checks every access of memory where it happens, which is slower: an access that
        leaves its tensor raises an ``IndexError``, even if a pass of yours, or a proof, was wrong.
        See docs/bounds.md.

    Returns
    -------
    Module
        Call it, or its functions by name: ``f(x, y, z)`` with arrays that speak DLPack. Outputs are
        arguments, and are written.

    Raises
    ------
    CompileError
        When the program has no meaning, or none on this target.

    >>> import numpy as np
    >>> from minitvm import te
    >>> A = te.placeholder((4,), name="A")
    >>> B = te.compute((4,), lambda i: A[i] * 2.0, name="B")
    >>> double = build(te.create_schedule(B.op), [A, B], name="double")
    >>> b = np.empty(4, "float32")
    >>> double(np.arange(4, dtype="float32"), b)
    >>> b
    array([0., 2., 4., 6.], dtype=float32)
    """
    _check_options(name, fp, release_gil)
    if isinstance(inputs, Mapping):
        inputs, target = _of_one_target(inputs, target)
    if args is not None and isinstance(inputs, (PrimFunc, IRModule)):
        raise CompileError(
            "build: expected no args for a PrimFunc or IRModule, which have their own"
        )
    options = CodegenOptions(
        _target(target, target_host), strict=fp == "strict", release_gil=release_gil
    )
    called = name or "default_function"
    check_binds(called, binds)
    if not isinstance(args, list | tuple | NoneType):
        raise CompileError(
            f"{called}: expected a list of arguments, such as [A, B, C], got {described(args)}"
        )
    if not isinstance(prepacked, list | tuple):
        raise CompileError(
            f"{called}: prepacked: expected a list of placeholders, got {described(prepacked)}"
        )
    lowered = partial(
        lower,
        name=called,
        debug=debug,
        vector_bytes=options.target.vector_bits // 8,
        mask_registers=options.target.has_mask_registers,
        kind=options.target.kind.name,
    )

    def compiled(program: Any) -> Module:
        made = _also_in_place(lowered(program, args, binds=binds), in_place)
        if name is not None and isinstance(program, PrimFunc):
            (func,) = made.functions.values()
            made = IRModule({name: replace(func, name=name)})
        return compile_module(made, options)

    def in_place() -> IRModule:
        """The loops for calls in place: without blocks, and plain loops where nothing is
        scheduled."""
        plain = create_schedule(outputs) if outputs else inputs
        return lowered(plain, args, binds=binds, vector_bytes=0)

    def built(module: Module) -> Module:
        found = compiled_function(module)
        if found is not None and not (binds or prepacked or debug):
            again = partial(build, target=options.target, name=name, fp=fp, release_gil=release_gil)
            found[1].batches = batches_of(args, again)
        return module

    outputs = _unscheduled(inputs, args) if auto_schedule else ()
    if not outputs:
        if prepacked:
            raise CompileError(
                "build: expected prepacked only where nothing is scheduled, got a program that is: "
                "say s[packed].compute_ahead() in its schedule"
            )
        if auto_schedule and isinstance(inputs, Schedule):
            _warn_of_plain_loops(inputs, called, options.target)
        return built(compiled(inputs))
    schedule = deep_expressions(called)(schedule_program)
    scheduled = partial(schedule, target=options.target, strict=options.strict)
    row_major = None if prepacked else in_row_major(outputs, args or (), binds or {})
    if row_major is not None:
        module = _built_in_row_major(row_major, called, lowered, options, scheduled, in_place)
        if module is not None:
            return built(module)
    return built(scheduled(outputs, arguments=_tensors(args), use=compiled, prepacked=prepacked))


def _check_options(name: object, fp: object, release_gil: object) -> None:
    if name is not None and not isinstance(name, str):
        raise CompileError(f"build: expected a name such as 'fmm', got {described(name)}")
    if not isinstance(fp, str) or fp not in _FP_MODES:
        raise CompileError(f"build: expected fp to be 'fast' or 'strict', got {fp!r}")
    if release_gil is not None and not isinstance(release_gil, bool):
        raise CompileError(
            f"build: expected release_gil to be True, False or None, got {release_gil!r}"
        )


def _built_in_row_major(
    program: RowMajor,
    name: str,
    lowered: Callable[..., IRModule],
    options: CodegenOptions,
    scheduled: Callable[..., Module],
    in_place: Callable[[], IRModule],
) -> Module | None:
    """The module of a program whose column-major arguments are scheduled as row-major ones; None if
    a message would show indices in reverse order."""
    shows = []

    def compiled(schedule: Schedule) -> Module:
        made = lowered(schedule, program.args, binds=program.binds)
        shows.append(shows_indices(made[name], program.names))
        func = in_column_major(made[name], program.declared)
        made = _also_in_place(IRModule({**made.functions, name: func}), in_place)
        return compile_module(made, options)

    try:
        module = scheduled(program.outputs, arguments=_tensors(program.args), use=compiled)
    except CompileError:
        return None  # lowering the program as it was written raises the error in its own terms
    return None if shows[-1] else module


def _also_in_place(made: IRModule, in_place: Callable[[], IRModule]) -> IRModule:
    """The functions of a module. If the arguments are declared with different layouts, so that a
    function's loops can't serve calls in place, the function gets a second form with other
    loops."""
    names = [name for name, func in made.functions.items() if needs_form_in_place(func)]
    if not names:
        return made
    forms = in_place()
    both = {name: with_form_in_place(made[name], forms[name]) for name in names}
    return IRModule({**made.functions, **both})


def _warn_of_plain_loops(s: Schedule, name: str, target: Target) -> None:
    """Warns once of the stages that a schedule by hand leaves as slow plain loops."""
    if s.is_warned_of or not (stages := left_plain(s, target)):
        return
    s.is_warned_of = True
    names = ", ".join(stage.name for stage in stages)
    warnings.warn(
        f"{name}: {names}: computed by plain loops, which can be many times slower than others: a "
        "schedule with primitives is built as it is. Before build, minitvm.auto_schedule(s) "
        "schedules the stages without primitives; build(..., auto_schedule=False) says that plain "
        "loops are meant",
        PerformanceWarning,
        stacklevel=3,
    )


def _tensors(args: Sequence[Any] | None) -> list[Tensor]:
    return [each for each in args or () if isinstance(each, Tensor)]


def _unscheduled(inputs: Any, args: Sequence[Any] | None) -> Sequence[Any]:
    """The outputs of an unscheduled program; no outputs for anything else."""
    if args is None:
        return ()
    if isinstance(inputs, Schedule):
        return () if inputs.is_touched else inputs.outputs
    outputs = inputs if isinstance(inputs, list | tuple) else [inputs]
    return outputs if all(isinstance(each, Tensor) for each in outputs) else ()


def _of_one_target(
    inputs: Mapping[Any, Any], target: str | Target | None
) -> tuple[Any, str | Target | None]:
    """The program and the target of ``build({target: program})``."""
    if len(inputs) != 1:
        raise CompileError(
            f"build: expected a mapping of one target, got {len(inputs)}: build a module for each"
        )
    if target is not None:
        raise CompileError(
            f"build: expected the target in the mapping alone, got target={str(target)!r} as well"
        )
    ((given, program),) = inputs.items()
    return program, given


def _target(target: str | Target | None, target_host: str | Target | None) -> Target:
    """The target; `target_host` counts only if there is no other."""
    host = None if target_host is None else create(target_host)
    if target is not None:
        return create(target)
    return host or Target.current() or Target("llvm")
