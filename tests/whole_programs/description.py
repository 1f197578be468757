"""What a random program is made of: values, stages, and the tensors between them.

No class here is minitvm's. :mod:`te_text` writes a program in the tensor language,
:mod:`numpy_meaning` computes it; the type of an operator's result follows the table of
docs/language.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeAlias

FLOATS = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = (*SIGNED, *UNSIGNED)
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
CONDITIONS = (*COMPARISONS, "all", "any", "not", "isnan", "isfinite")


def bits(dtype: str) -> int:
    return 16 if dtype == "bfloat16" else int(dtype.lstrip("uintfloa"))


# -- Values ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    """A constant; a plain one is written as Python writes it, and counts as int32 or float32."""

    value: int | float | bool
    dtype: str
    plain: bool = False


@dataclass(frozen=True)
class Axis:
    """A data axis or a reduce axis."""

    name: str
    dtype: str = "int32"


@dataclass(frozen=True)
class Size:
    """A symbolic dimension."""

    name: str
    dtype: str = "int32"


@dataclass(frozen=True)
class Scalar:
    """A scalar parameter of the function."""

    name: str
    dtype: str


@dataclass(frozen=True)
class Load:
    """An element of a tensor."""

    tensor: str
    indices: tuple[Value, ...]
    dtype: str


@dataclass(frozen=True)
class Apply:
    """An operator or a function of values."""

    op: str
    args: tuple[Value, ...]
    dtype: str


Value: TypeAlias = Number | Axis | Size | Scalar | Load | Apply


def promoted(a: str, b: str) -> str:
    """The type in which an operator computes two operands: the table of docs/language.md."""
    if a == b or b == "bool":
        return a
    if a == "bool":
        return b
    if (a in FLOATS) != (b in FLOATS):
        return a if a in FLOATS else b
    if bits(a) != bits(b):
        return a if bits(a) > bits(b) else b
    return a if a in UNSIGNED else b


def apply(op: str, *args: Value) -> Value:
    """An operator of values of any types, and what its result is."""
    if op in CONDITIONS:
        return Apply(op, args, "bool")
    if op in ("select", "if_then_else"):
        return Apply(op, args, promoted(args[1].dtype, args[2].dtype))
    dtype = args[0].dtype
    for other in args[1:]:
        dtype = promoted(dtype, other.dtype)
    return Apply(op, args, dtype)


def cast(value: Value, dtype: str) -> Value:
    return value if value.dtype == dtype else Apply("cast", (value,), dtype)


def number(value: int) -> Number:
    return Number(value, "int32", plain=True)


def arith(op: str, a: Value, b: Value) -> Value:
    """An expression of sizes and axes, its constants folded."""
    if isinstance(a, Number) and isinstance(b, Number):
        x, y = int(a.value), int(b.value)
        return number({"add": x + y, "subtract": x - y, "multiply": x * y}[op])
    if isinstance(b, Number) and (op, b.value) in (("add", 0), ("subtract", 0), ("multiply", 1)):
        return a
    return apply(op, a, b)


# -- Stages ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Input:
    """A tensor that the caller passes.

    `numbers` says which: "whole" small numbers, "real" ones, "any" that the type has, "special"
    (with infinities and NaN), "positions" in [0, bound), "offsets" that rise from 0 to bound.
    """

    name: str
    shape: tuple[Value, ...]
    dtype: str
    numbers: str = "whole"
    bound: Value = Number(0, "int32")


@dataclass(frozen=True)
class ReduceAxis:
    name: str
    begin: Value
    end: Value

    @property
    def dtype(self) -> str:
        return promoted(self.begin.dtype, self.end.dtype)


@dataclass(frozen=True)
class Reduction:
    """How a stage combines its bodies along axes; `captured` is a value that the reducer reads."""

    reducer: str
    axes: tuple[ReduceAxis, ...]
    where: Value | None = None
    init: tuple[Value, ...] | None = None
    captured: Value | None = None


@dataclass(frozen=True)
class Compute:
    """``te.compute``: one result for each body."""

    names: tuple[str, ...]
    axes: tuple[str, ...]
    shape: tuple[Value, ...]
    bodies: tuple[Value, ...]
    reduction: Reduction | None = None


@dataclass(frozen=True)
class Scan:
    """``te.scan`` along the first axis: `first` for the first steps, `update` for the rest."""

    name: str
    axes: tuple[str, ...]
    shape: tuple[Value, ...]
    steps: int
    first: Value
    update: Value


@dataclass(frozen=True)
class Extern:
    """``te.extern`` with loops by hand: the running sums of a tensor of one dimension."""

    name: str
    source: str
    shape: tuple[Value, ...]
    dtype: str


Stage: TypeAlias = Input | Compute | Scan | Extern


@dataclass(frozen=True)
class Program:
    """A program, and the sizes and scalars that it is called with."""

    sizes: tuple[tuple[str, tuple[int, ...]], ...]  # of each symbolic size, one value for each call
    scalars: tuple[tuple[str, str, int | float], ...]  # name, dtype, value
    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]
    seed: int  # of its data
    told: bool = True  # whether the schedule is told of the outputs that others read

    @property
    def calls(self) -> int:
        return len(self.sizes[0][1]) if self.sizes else 1

    @property
    def output_stages(self) -> set[str]:
        """The names of the stages that compute outputs: a stage of two tensors has the first's."""
        return {names_of(stage)[0] for stage in self.stages if {*names_of(stage)} & {*self.outputs}}

    def sizes_at(self, call: int) -> dict[str, int]:
        return {name: values[call] for name, values in self.sizes}


@dataclass(frozen=True)
class Result:
    """A tensor of a program."""

    name: str
    shape: tuple[Value, ...]
    dtype: str


def names_of(stage: Stage) -> tuple[str, ...]:
    return stage.names if isinstance(stage, Compute) else (stage.name,)


def results_of(stage: Stage) -> tuple[Result, ...]:
    match stage:
        case Compute():
            return tuple(
                Result(name, stage.shape, body.dtype)
                for name, body in zip(stage.names, stage.bodies, strict=True)
            )
        case Scan():
            return (Result(stage.name, stage.shape, stage.update.dtype),)
        case _:
            return (Result(stage.name, stage.shape, stage.dtype),)


# -- Walking and rewriting ------------------------------------------------------------------------


def nodes(part: Any) -> Iterator[Any]:
    """A part of a program and all parts below."""
    if isinstance(part, tuple):
        for each in part:
            yield from nodes(each)
    elif is_dataclass(part):
        yield part
        for field in fields(part):
            yield from nodes(getattr(part, field.name))


def rewritten(part: Any, change: Callable[[Any], Any]) -> Any:
    """A part of a program with the nodes that `change` returns another for."""
    if isinstance(part, tuple):
        return tuple(rewritten(each, change) for each in part)
    if not is_dataclass(part) or isinstance(part, type):
        return part
    changed = change(part)
    if changed is not part:
        return changed
    made = {f.name: rewritten(getattr(part, f.name), change) for f in fields(part)}
    return replace(part, **made)


def reads(stage: Stage) -> set[str]:
    """The tensors that a stage reads."""
    found = {node.tensor for node in nodes(stage) if isinstance(node, Load)}
    if isinstance(stage, Extern):
        found.add(stage.source)
    return found - set(names_of(stage))


def read_by_outputs(program: Program) -> set[str]:
    """The tensors, of all that a stage computes, that another output needs."""
    made = {name: stage for stage in program.stages for name in names_of(stage)}
    found: set[str] = set()
    waiting = [reads(made[name]) for name in program.outputs]
    while waiting:
        for name in waiting.pop() - found:
            found |= set(names_of(made[name]))
            waiting.append(reads(made[name]))
    return found


def needed(program: Program) -> Program:
    """The program without the stages, sizes and scalars that no output needs."""
    wanted = set(program.outputs)
    kept: list[Stage] = []
    for stage in reversed(program.stages):
        if wanted & set(names_of(stage)):
            kept.append(stage)
            wanted |= reads(stage)
    stages = tuple(reversed(kept))
    used = {node.name for node in nodes(stages) if isinstance(node, (Size, Scalar))}
    return replace(
        program,
        stages=stages,
        sizes=tuple(each for each in program.sizes if each[0] in used),
        scalars=tuple(each for each in program.scalars if each[0] in used),
    )
