"""What a program means: each stage by numpy, over the grid of its axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.whole_programs import bounded
from tests.whole_programs.bounded import Array, Bounded
from tests.whole_programs.description import (
    COMPARISONS,
    FLOATS,
    Apply,
    Axis,
    Compute,
    Extern,
    Input,
    Load,
    Number,
    Program,
    Reduction,
    Scalar,
    Scan,
    Size,
    Stage,
    Value,
    cast,
    nodes,
    promoted,
)

MOST_WORK = 400_000  # elements of a grid


class Unsuitable(Exception):
    """The program is none that a user may write, or too large: draw another."""


def mix(value: Any) -> Any:
    """The callback of "packed"."""
    return (value * 3 + 1) % 7


def grid(name: str, position: int, rank: int, begin: int, end: int) -> Array:
    shape = [1] * rank
    shape[position] = max(end - begin, 0)
    return np.arange(begin, begin + shape[position], dtype="int32").reshape(shape)


@dataclass
class Scope:
    """What names stand for in one stage, and where its reads count."""

    names: Mapping[str, Bounded]
    tensors: Mapping[str, Bounded]
    active: Array

    def within(self, condition: Bounded, holds: bool) -> Scope:
        sure = (condition.exact == holds) | np.isinf(condition.error)
        return Scope(self.names, self.tensors, self.active & sure)


class Meaning:
    """The tensors of a program, for some sizes, scalars and inputs."""

    def __init__(self, program: Program, call: int, inputs: Mapping[str, Array]) -> None:
        self._fixed = {
            name: bounded.known("int32", value) for name, value in program.sizes_at(call).items()
        }
        self._fixed |= {name: bounded.known(dtype, value) for name, dtype, value in program.scalars}
        self.tensors: dict[str, Bounded] = {}
        with np.errstate(all="ignore"):
            for stage in program.stages:
                self._add(stage, inputs)

    def _add(self, stage: Stage, inputs: Mapping[str, Array]) -> None:
        match stage:
            case Input():
                made = bounded.known(stage.dtype, inputs[stage.name])
                self.tensors[stage.name] = _whole(made, made.exact.shape)
            case Compute():
                results = self._computed(stage)
                for name, result in zip(stage.names, results, strict=True):
                    self.tensors[name] = result
            case Scan():
                self.tensors[stage.name] = self._scanned(stage)
            case Extern():
                self.tensors[stage.name] = self._sums(stage)

    def size(self, value: Value) -> int:
        scope = Scope(self._fixed, self.tensors, np.ones((), bool))
        return int(evaluate(value, scope).exact)

    def _shape(self, shape: tuple[Value, ...]) -> tuple[int, ...]:
        made = tuple(self.size(each) for each in shape)
        if min(made, default=0) < 0 or np.prod(made) > MOST_WORK:
            raise Unsuitable(f"shape {made}")
        return made

    def _computed(self, stage: Compute) -> list[Bounded]:
        shape = self._shape(stage.shape)
        reduced = stage.reduction.axes if stage.reduction else ()
        rank = len(shape) + len(reduced)
        names = dict(self._fixed)
        for i, (axis, extent) in enumerate(zip(stage.axes, shape, strict=True)):
            names[axis] = bounded.known("int32", grid(axis, i, rank, 0, extent))
        scope = Scope(names, self.tensors, np.ones((1,) * rank, bool))
        if stage.reduction is None:
            return [_whole(evaluate(body, scope), shape) for body in stage.bodies]
        used = scope.active
        extents = list(shape)
        for i, each in enumerate(reduced):
            begin, end = (_sure(evaluate(x, scope)) for x in (each.begin, each.end))
            first = int(begin.min(initial=0)) if begin.size else 0
            last = int(end.max(initial=first)) if end.size else first
            at = grid(each.name, len(shape) + i, rank, first, last)
            names[each.name] = bounded.known(each.dtype, at)
            used = used & (at >= begin) & (at < end)
            extents.append(last - first)
        if np.prod(extents) > MOST_WORK:
            raise Unsuitable(f"grid {extents}")
        results = self._reduced(stage, stage.reduction, Scope(names, self.tensors, used), extents)
        return [_whole(_dropped(each, len(shape)), shape) for each in results]

    def _reduced(
        self, stage: Compute, reduction: Reduction, scope: Scope, extents: list[int]
    ) -> list[Bounded]:
        rank = len(extents)
        axes = tuple(range(rank - len(reduction.axes), rank))
        doubt: Array = np.zeros((), bounded.WIDE)
        if reduction.where is not None:
            condition = evaluate(reduction.where, scope)
            doubt = np.asarray(condition.error)
            scope = scope.within(condition, True)
        terms = [_doubted(evaluate(body, scope), doubt) for body in stage.bodies]
        used = np.broadcast_to(scope.active, extents)
        outer = Scope(scope.names, self.tensors, np.ones((1,) * rank, bool))
        init = None
        if reduction.init is not None:
            init = [evaluate(each, outer) for each in reduction.init]
        if reduction.reducer in ("sum", "prod"):
            reduce = bounded.total if reduction.reducer == "sum" else bounded.product
            filled = _whole(terms[0], tuple(extents))
            first = None if init is None else init[0]
            return [reduce(filled, used, first, axes)]
        captured = None if reduction.captured is None else evaluate(reduction.captured, outer)
        made = _folded(reduction.reducer, terms, used, init, captured, len(axes))
        for i in {"sums": (0, 1), "sum_and_max": (0,)}.get(reduction.reducer, ()):
            first = None if init is None else init[i]
            made[i] = bounded.total(_whole(terms[i], tuple(extents)), used, first, axes)
        return made

    def _scanned(self, stage: Scan) -> Bounded:
        shape = self._shape(stage.shape)
        rank, dtype = len(shape), stage.update.dtype
        zero = bounded.known(dtype, np.zeros(shape))
        exact = zero.exact.copy()
        error = np.full(shape, np.inf, bounded.WIDE)
        for t in range(shape[0]):
            body = stage.first if t < stage.steps else stage.update
            names = dict(self._fixed)
            names[stage.axes[0]] = bounded.known("int32", np.full((1,) * rank, t))
            for i, axis in enumerate(stage.axes[1:], 1):
                names[axis] = bounded.known("int32", grid(axis, i, rank, 0, shape[i]))
            tensors = {**self.tensors, stage.name: Bounded(dtype, exact, error)}
            part = evaluate(body, Scope(names, tensors, np.ones((1,) * rank, bool)))
            part = _whole(part, (1, *shape[1:]))
            exact[t], error[t] = part.exact[0], part.error[0]
        if shape[0] < stage.steps:
            raise Unsuitable("fewer steps than are given")
        return Bounded(dtype, exact, error + bounded.of_steps(dtype, exact))

    def _sums(self, stage: Extern) -> Bounded:
        source = self.tensors[stage.source]
        made = bounded.known(stage.dtype, 0)
        parts = []
        for i in range(source.exact.shape[0]):
            term = Bounded(source.dtype, source.exact[i], source.error[i])
            made = bounded.binary("add", stage.dtype, made, term)
            parts.append(made)
        exact = np.array([each.exact for each in parts], source.exact.dtype)
        return Bounded(stage.dtype, exact, np.array([each.error for each in parts], bounded.WIDE))


def _whole(value: Bounded, shape: tuple[int, ...]) -> Bounded:
    """All elements, one by one."""
    exact, error = (np.broadcast_to(each, shape) for each in (value.exact, value.error))
    return Bounded(value.dtype, exact, error)


def _dropped(value: Bounded, rank: int) -> Bounded:
    """Without the axes that were reduced."""
    exact, error = (
        each.reshape(each.shape[:rank]) if each.ndim else each
        for each in (np.asarray(value.exact), np.asarray(value.error))
    )
    return Bounded(value.dtype, exact, error)


def _doubted(value: Bounded, doubt: Array) -> Bounded:
    return Bounded(value.dtype, value.exact, value.error + doubt)


def _sure(value: Bounded) -> Array:
    if np.any(np.isinf(value.error)):
        raise Unsuitable("a range in doubt")
    return np.asarray(value.exact).astype("int64")


# -- Reducers -------------------------------------------------------------------------------------


def _identity(reducer: str, position: int, dtype: str) -> Bounded:
    limits: tuple[object, object]
    if dtype in FLOATS:
        limits = (-np.inf, np.inf)
    elif dtype == "bool":
        limits = (False, True)
    else:
        limits = (np.iinfo(dtype).min, np.iinfo(dtype).max)
    match reducer, position:
        case ("max", _):
            return bounded.known(dtype, np.asarray(limits[0]))
        case ("min", _):
            return bounded.known(dtype, np.asarray(limits[1]))
        case ("argmax" | "sum_and_max", 1):
            return bounded.known(dtype, _least(dtype))
        case ("argmax", 0):
            return bounded.known(dtype, np.iinfo(dtype).max)
        case ("all", _):
            return bounded.known(dtype, True)
    return bounded.known(dtype, 0)


def _least(dtype: str) -> object:
    """``te.min_value``: the least finite number."""
    return -bounded._FORMATS[dtype].most if dtype in FLOATS else np.iinfo(dtype).min


def _combined(
    reducer: str, a: list[Bounded], b: list[Bounded], captured: Bounded | None
) -> list[Bounded]:
    dtype = a[0].dtype
    match reducer:
        case "min" | "max":
            return [bounded.binary(f"{reducer}imum", dtype, a[0], b[0])]
        case "any" | "all":
            return [bounded.binary(reducer, dtype, a[0], b[0])]
        case "xor":
            return [bounded.binary("xor", dtype, a[0], b[0])]
        case "argmax":
            above = bounded.compare("gt", a[1], b[1])
            same = bounded.binary("all", "bool", bounded.compare("eq", a[1], b[1]),
                                  bounded.compare("le", a[0], b[0]))  # fmt: skip
            first = bounded.binary("any", "bool", above, same)
            return [bounded.choose(first, x, y) for x, y in zip(a, b, strict=True)]
        case "sum_and_max":
            return [bounded.binary("add", dtype, a[0], b[0]),
                    bounded.binary("maximum", a[1].dtype, a[1], b[1])]  # fmt: skip
        case "sums":
            return [bounded.binary("add", x.dtype, x, y) for x, y in zip(a, b, strict=True)]
        case "modular" | "capped":
            assert captured is not None
            sum_ = bounded.binary("add", dtype, a[0], b[0])
            last = "floormod" if reducer == "modular" else "minimum"
            return [bounded.binary(last, dtype, sum_, captured)]
    raise NotImplementedError(reducer)


def _folded(
    reducer: str,
    terms: list[Bounded],
    used: Array,
    init: list[Bounded] | None,
    captured: Bounded | None,
    reduced: int,
) -> list[Bounded]:
    """A reduction, one step of the reduce axes after the other."""
    rank = used.ndim
    kept, ones = used.shape[: rank - reduced], (1,) * reduced
    state = init or [_identity(reducer, i, each.dtype) for i, each in enumerate(terms)]
    full = [_whole(each, used.shape) for each in terms]
    for index in np.ndindex(used.shape[rank - reduced :]):
        at = (..., *index)
        active = used[at].reshape(kept + ones)
        part = [
            Bounded(x.dtype, x.exact[at].reshape(kept + ones), x.error[at].reshape(kept + ones))
            for x in full
        ]
        combined = _combined(reducer, state, part, captured)
        state = [new.where(active, old) for new, old in zip(combined, state, strict=True)]
    return [_whole(each, kept + ones) for each in state]


# -- Values ---------------------------------------------------------------------------------------


def evaluate(value: Value, scope: Scope) -> Bounded:
    match value:
        case Number():
            elements = value.value
            if value.dtype in FLOATS:
                return bounded.known(
                    value.dtype, bounded.round_to(value.dtype, np.asarray(elements, bounded.WIDE))
                )
            return bounded.known(value.dtype, elements)
        case Axis() | Size() | Scalar():
            return scope.names[value.name]
        case Load():
            return _loaded(value, scope)
        case Apply():
            return _applied(value, scope)


def _loaded(value: Load, scope: Scope) -> Bounded:
    tensor = scope.tensors[value.tensor]
    indices = []
    for each, extent in zip(value.indices, tensor.exact.shape, strict=True):
        index = evaluate(each, scope)
        exact = index.exact.astype("int64")
        outside = (exact < 0) | (exact >= extent) | np.isinf(index.error)
        if np.any(outside & scope.active):
            raise Unsuitable(f"{value.tensor}: an index outside")
        indices.append(np.clip(exact, 0, max(extent - 1, 0)))
    if not indices:
        return tensor
    if 0 in tensor.exact.shape:
        shape = np.broadcast_shapes(*(each.shape for each in indices), scope.active.shape)
        return _whole(bounded.known(value.dtype, 0), shape)
    return Bounded(value.dtype, tensor.exact[tuple(indices)], tensor.error[tuple(indices)])


def _applied(value: Apply, scope: Scope) -> Bounded:
    op, args = value.op, value.args
    if op == "if_then_else":
        condition = evaluate(args[0], scope)
        a = evaluate(cast(args[1], value.dtype), scope.within(condition, True))
        b = evaluate(cast(args[2], value.dtype), scope.within(condition, False))
        return bounded.choose(condition, a, b)
    if op == "select":
        condition, a, b = (
            evaluate(each, scope)
            for each in (args[0], cast(args[1], value.dtype), cast(args[2], value.dtype))
        )
        return bounded.choose(condition, a, b)
    if op in COMPARISONS:
        common = promoted(args[0].dtype, args[1].dtype)
        return bounded.compare(op, *(evaluate(cast(each, common), scope) for each in args))
    if op in ("all", "any"):
        made = evaluate(args[0], scope)
        for each in args[1:]:
            made = bounded.binary(op, "bool", made, evaluate(each, scope))
        return made
    if op == "cast":
        return bounded.convert(evaluate(args[0], scope), value.dtype)
    if op == "packed":
        given = evaluate(args[0], scope)
        return Bounded("int32", np.asarray(mix(given.exact), "int32"), given.error)
    if len(args) == 1:
        return bounded.unary(op, evaluate(args[0], scope))
    a, b = (evaluate(cast(each, value.dtype), scope) for each in args)
    if op in _RING and value.dtype in _MOST_INDEX and not _has_data(value):
        _check_index_arithmetic(op, value.dtype, a, b)
    return bounded.binary(op, value.dtype, a, b)


_RING = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "shift_left": np.ldexp}
_MOST_INDEX = {"int32": 2.0**31, "int64": 2.0**62}


def _has_data(value: Value) -> bool:
    return any(
        isinstance(node, Load) or (isinstance(node, Apply) and node.op == "packed")
        for node in nodes(value)
    )


def _check_index_arithmetic(op: str, dtype: str, a: Bounded, b: Bounded) -> None:
    """docs/bounds.md: what is made of sizes and axes alone is exact, and does not wrap."""
    size = _RING[op](abs(a.exact.astype("float64")), abs(b.exact.astype("int64")))
    if np.any(abs(size) >= _MOST_INDEX[dtype]):
        raise Unsuitable("index arithmetic beyond its type")
