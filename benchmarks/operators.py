"""Operators of examples/operators, small and large, forward and backward, beside torch, compiled
torch, JAX and numba.

All are called with the same arrays and allocate their results; a result that differs is named and
not timed. Backward, torch has recorded the forward run once and computes the adjoints alone, and
so does minitvm beside it where the example has a function for that; all others compute them from
the inputs.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks import contraction, operator_loops, peers, speeds
from benchmarks.measure import OURS, Row, Settings, Timer, calls, paced
from benchmarks.operator_cases import OPERATORS, Case, Operator
from benchmarks.report import seconds

SLOWER = 1.05  # times the best peer: a loss
_BUDGET = 0.6  # seconds of measuring a row
_TIES = 1e-3  # of integers, where a choice between equals is rounded otherwise

Call = Callable[[], Any]
Function = Callable[..., Any]


def rows(settings: Settings) -> Iterator[Row]:
    """Rows of which the name contains ``settings.only``, on the first number of threads of the
    settings; in a quick run the small ones, without peers that compile."""
    for operator in OPERATORS:
        for kind, size in (("small", operator.small), ("large", operator.large)):
            for direction in ("forward", "backward"):
                title = f"{operator.script} {direction} {kind}"
                wanted = settings.only in title and (settings.least or kind == "small")
                if wanted and (direction == "forward" or operator.gradient):
                    case = operator.case(*size)
                    head = _head(operator, case) if direction == "backward" else None
                    yield from _measured(title, operator, case, head, settings)


def _head(operator: Operator, case: Case) -> Any:
    """The adjoint of an operator's result, in its shape."""
    function = getattr(_module(operator), operator.function)
    result = function(*case.arrays, *case.options.values())
    return contraction.filled(result.shape, "float32", 9)


def _measured(
    title: str, operator: Operator, case: Case, head: Any, settings: Settings
) -> Iterator[Row]:
    """All contenders in turn; a row for each library in which minitvm has peers. Without `head`
    the operator is measured, with it its gradient."""
    threads = settings.threads[0]
    contenders = _contenders(operator, case, head, threads, bool(settings.least))
    missing = {library: peers.missing([library]) for library in contenders}
    if settings.least:
        missing["numpy"] |= peers.missing(["jax", "numba"])
        missing.setdefault("torch", {}).update(peers.missing(["torch"]))
    timers: dict[str, Timer] = {}
    wanted = None
    for library, calls_of in contenders.items():
        for name, call in sorted(calls_of.items(), key=lambda item: item[0] == OURS):
            found, reason = _result(name, threads, call)
            wanted = found if wanted is None and not reason else wanted
            reason = reason or _difference(found, wanted)
            if reason and name == OURS:
                raise AssertionError(f"{title}, {library}: {reason}")
            if reason:
                missing[library][name] = reason
            else:
                timers[f"{library}:{name}"] = contraction.on(threads, name, calls(call))
    more = dataclasses.replace(settings, least=settings.least / 10, repeat=3 * settings.repeat)
    found = paced(timers, more, _BUDGET)
    for library in contenders:
        part = {
            name.removeprefix(f"{library}:"): each
            for name, each in found.items()
            if name.startswith(f"{library}:")
        }
        if len(part) > 1:
            what = f"called with arrays of {library}"
            name = f"{title}, {library}: {case.size}"
            yield Row(name, what, part, missing[library], None, threads)


# -- Contenders --


def _module(operator: Operator) -> Any:
    return importlib.import_module(f"examples.operators.{operator.script}")


def _contenders(
    operator: Operator, case: Case, head: Any, threads: int, is_compiled: bool
) -> dict[str, dict[str, Call]]:
    """Those of torch's tensors, and those of arrays of numpy (or JAX)."""
    torch, arrays = peers.peer("torch"), _arguments(case, head)
    found = {}
    if torch is not None and case.torch:
        found["torch"] = _in_torch(case, head, threads if is_compiled else None)
        tensors = list(map(torch.from_numpy, arrays))
        is_recorded = head is not None and operator.recorded is not None
        ours = _ours_recorded if is_recorded else _ours
        found["torch"][OURS] = ours(operator, case, head, tensors)
    found["numpy"] = _by_numpy(operator, case, head)
    if is_compiled:
        found["numpy"] |= _in_jax(case, head) | _in_numba(operator, case, head, threads)
    found["numpy"][OURS] = _ours(operator, case, head, arrays)
    return found


def _ours(operator: Operator, case: Case, head: Any, arrays: Sequence[Any]) -> Call:
    """The example's function, its extents constants at each size."""
    name = operator.function if head is None else operator.gradient
    function = getattr(_module(operator), name or "")
    function.clear()
    return partial(function, *arrays, *case.options.values())


def _ours_recorded(operator: Operator, case: Case, head: Any, arrays: Sequence[Any]) -> Call:
    """The example's backward function, of the arrays and what a forward run has recorded."""
    module, (*inputs, adjoint) = _module(operator), arrays
    forward, backward = (getattr(module, name) for name in operator.recorded or ())
    for function in (forward, backward):
        function.clear()
    _, *kept = forward(*inputs, *case.options.values())
    return partial(backward, *inputs, *kept, adjoint, *case.options.values())


def _arguments(case: Case, head: Any) -> Sequence[Any]:
    """The arrays that an operator, or its gradient, is called with."""
    if head is None:
        return case.arrays
    read = range(len(case.arrays)) if case.read is None else case.read
    return [*(case.arrays[place] for place in read), head]


def _by_numpy(operator: Operator, case: Case, head: Any) -> dict[str, Call]:
    function = getattr(_module(operator), "by_numpy", None)
    if function is None or head is not None:
        return {}
    return {"numpy": partial(function, *case.arrays, *case.options.values())}


def _in_torch(case: Case, head: Any, threads: int | None) -> dict[str, Call]:
    """Eager functions and, with a number of threads, a compiled one."""
    torch = peers.peer("torch")
    functions = {name: _bound(each, torch, case) for name, each in case.torch.items()}
    first = next(iter(functions.values()))
    if head is not None:
        functions = {"torch": first}
    if threads is not None and not no_compiler():
        known = first if case.compiled is None else _bound(case.compiled, torch, case)
        functions["torch.compile"] = compiled(torch, known, threads)
    tensors = [torch.from_numpy(each) for each in case.arrays]
    if head is None:
        return {name: partial(each, *tensors) for name, each in functions.items()}
    adjoint = torch.from_numpy(head)
    return {name: _adjoints(torch, each, case, adjoint) for name, each in functions.items()}


def _bound(function: Function, module: Any, case: Case) -> Function:
    """A peer's function of the tensors alone."""
    return lambda *tensors: function(module, *tensors, *case.options.values())


def _adjoints(torch: Any, function: Function, case: Case, head: Any) -> Call:
    """The backward run of what is recorded when it is first called."""

    @cache
    def recorded() -> tuple[Any, Any]:
        leaves = [torch.from_numpy(each) for each in case.arrays]
        trained = [leaves[place].requires_grad_() for place in case.trained]
        return function(*leaves), trained

    return lambda: torch.autograd.grad(*recorded(), head, retain_graph=True)


def compiled(torch: Any, function: Function, threads: int) -> Function:
    """For these shapes alone, in this process, and for a backward run that is repeated."""
    inductor = importlib.import_module("torch._inductor.config")
    inductor.compile_threads, inductor.cpp.threads = 1, threads  # type: ignore[attr-defined]  # its own
    importlib.import_module("torch._functorch.config").donated_buffer = False  # type: ignore[attr-defined]  # its own
    torch._dynamo.reset()
    made: Function = torch.compile(function, dynamic=False)
    return made


def no_compiler() -> str:
    """Why torch.compile can't be measured here, or nothing."""
    if os.environ.get("CXX") or any(map(shutil.which, ("g++", "clang++"))):
        return ""
    return "no C++ compiler is here (g++ or clang++)"


def _in_jax(case: Case, head: Any) -> dict[str, Call]:
    jax = peers.peer("jax")
    if jax is None or case.jax is None:
        return {}
    function = _bound(case.jax, jax, case)

    def adjoints(head: Any, *arrays: Any) -> Any:
        def of_trained(*trained: Any) -> Any:
            every = list(arrays)
            for place, each in zip(case.trained, trained, strict=True):
                every[place] = each
            return function(*every)

        return jax.vjp(of_trained, *(arrays[place] for place in case.trained))[1](head)

    arrays = case.arrays if head is None else [head, *case.arrays]
    jitted = jax.jit(function if head is None else adjoints)
    inputs = [jax.numpy.asarray(each) for each in arrays]
    return {"jax": lambda: jax.block_until_ready(jitted(*inputs))}


def _in_numba(operator: Operator, case: Case, head: Any, threads: int) -> dict[str, Call]:
    """A loop over `prange` on several threads, a plain one on one."""
    loops = operator_loops.FORWARD if head is None else operator_loops.BACKWARD
    numba, loop = peers.peer("numba"), loops.get(operator.function)
    if numba is None or loop is None:
        return {}
    jitted = numba.njit(parallel=threads > 1)(loop)
    return {"numba": partial(jitted, *_arguments(case, head), *case.options.values())}


# -- Results --


def _result(name: str, threads: int, call: Call) -> tuple[Any, str]:
    """What a contender computes, or why it can't; compilers compile meanwhile."""
    results: list[Any] = []

    def once(number: int) -> float:
        results.append(call())
        return 0.0

    try:
        contraction.on(threads, name, once)(1)
    except Exception as error:  # of a peer, or of ours: the row names it, and the run goes on
        return None, f"FAILED: {type(error).__name__}: {str(error).strip()[:160]}"
    return results[0], ""


def _difference(found: Any, wanted: Any) -> str:
    """How a result differs from another contender's, if it does."""
    for one, other in zip(_all(found), _all(wanted), strict=True):
        if np.issubdtype(one.dtype, np.integer):
            off, allowed = float((one != other).mean()), _TIES
        else:
            off, allowed = np.abs(one - other).max(initial=0), 1e-4 * (1 + np.abs(other).max())
        if not off <= allowed:
            return f"WRONG: off by {off:.3g}, where {allowed:.3g} is allowed"
    return ""


def _all(results: Any) -> list[Any]:
    """One result or several, as arrays of numpy."""
    each = results if isinstance(results, tuple | list) else [results]
    tensors = (array.detach() if hasattr(array, "detach") else array for array in each)
    return [np.asarray(array) for array in tensors]


# -- What is shown --

HEAD = f"{'':69} minitvm  in the time of the best peer (undisturbed), and of each"


def line(row: Row) -> str:
    """A row in one line; above 1, minitvm is slower."""
    parts = [f"{name} {row.ours / found.seconds:.2f}" for name, found in row.peers.items()]
    parts += [f"{name}: {reason}" for name, reason in row.missing.items()]
    verdict = f"{row.ratio:.2f} ({ratio(row):.2f}){' SLOWER' if is_slower(row) else ''}"
    return f"{row.name:78} {seconds(row.ours):>8}  {verdict:19} {'; '.join(parts)}"


def ratio(row: Row) -> float:
    """minitvm's least time in that of the best peer."""
    return 1 / (speeds.undisturbed(row) or 1.0)


def is_slower(row: Row) -> bool:
    """Whether a peer is faster by more than the noise of the least times."""
    return ratio(row) > SLOWER


def summary(found: Sequence[Row]) -> str:
    """The losses, the worst first."""
    lost = sorted((row for row in found if is_slower(row)), key=ratio, reverse=True)
    head = f"Slower than {SLOWER} of the best peer, by least times: {len(lost)} of {len(found)}"
    return "\n".join([head, *map(line, lost)])
