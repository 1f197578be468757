"""Traces a Python function to a program: the function runs once, on tensors without values."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from minitvm.operators.extents import Extents, Label, Labels, has_leading
from minitvm.operators.parameters import Parameter
from minitvm.operators.shapes import Arithmetic
from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.operation import compute, placeholder, size_var, var
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.tensor import Operation, PlaceholderOp, ScanOp, Tensor
from minitvm.tir.expr import PrimExpr, Var
from minitvm.tir.node import ExprOperators
from minitvm.tir.sizes import only_decided_sizes

# The messages of the language where Python code needs a value that isn't known yet.
_NO_VALUES = "while a program is written"
_OF_JAX = "is not a valid JAX type"  # of JAX's functions


@final
@record(eq=False)
class Traced:
    """The program that a traced function returned.

    Attributes
    ----------
    inputs
        The placeholders and variables of its parameters that a call passes, by position.
    outputs
        The tensors that it returns.
    schedule
        The schedule that it returns with them, if any.
    args
        The argument that the function got for each parameter.
    """

    inputs: Mapping[int, Tensor | Var]
    outputs: tuple[Tensor, ...]
    schedule: Schedule | None
    args: Sequence[Any]


def trace(
    name: str,
    function: Callable[..., Any],
    parameters: Sequence[Parameter],
    values: Sequence[Any],
    extents: Extents,
    dtypes: Mapping[int, DType],
    symbolic: frozenset[Label] = frozenset(),
) -> Traced:
    """Runs a function on placeholders, and collects its program.

    Parameters
    ----------
    values
        The argument for each parameter; those at the positions of `dtypes` are replaced by
        placeholders and variables.
    dtypes
        The dtypes of the arrays and numbers.
    symbolic
        The extents that become variables.

    Raises
    ------
    CompileError
        When the function returns no program of these tensors.
    """
    dims = _dimensions(extents, symbolic)
    inputs: dict[int, Tensor | Var] = {}
    args = list(values)
    for position, dtype in dtypes.items():
        called = parameters[position].name
        if position not in extents.labels:
            args[position] = inputs[position] = var(called, dtype)
            continue
        labels = extents.labels[position]
        given = placeholder([dims.get(each, each) for each in labels], dtype, called)
        inputs[position] = given
        args[position] = _broadcast(given, labels, parameters[position], extents, dims)
    returned = _call_traced(name, function, parameters, args)
    schedule, tensors = _returned(name, returned)
    tensors_given = [each for each in inputs.values() if isinstance(each, Tensor)]
    _check_inputs(name, tensors, tensors_given)
    if schedule is None:
        tensors = _computed(tensors, tensors_given)
    return Traced(inputs, tensors, schedule, args)


def _call_traced(
    name: str, function: Callable[..., Any], parameters: Sequence[Parameter], args: Sequence[Any]
) -> Any:
    try:
        with only_decided_sizes():
            return call(name, function, parameters, args)
    except AttributeError as error:
        for parameter, given in zip(parameters, args, strict=True):
            if given is error.obj and isinstance(given, Var):
                raise CompileError(
                    f"{name}: {parameter}: expected an array, which has {error.name!r}, got a "
                    "number: pass an array of rank 0, such as np.asarray(x)"
                ) from error
        raise
    except (CompileError, TypeError) as error:
        if _OF_JAX in str(error):
            raise CompileError(
                f"{name}: expected functions of te, found one of JAX, which computes numbers, and "
                f"a tensor has none while a program is written: write te.sin for jnp.sin: {error}"
            ) from error
        if _NO_VALUES not in str(error):
            raise
        raise CompileError(
            f"{name}: expected a function whose program depends on shapes, dtypes and static "
            f"arguments alone, since it runs before there are numbers: {error}; or name a "
            "parameter in static=, and the program is made for its value"
        ) from error


def _broadcast(
    tensor: Tensor,
    labels: Labels,
    parameter: Parameter,
    extents: Extents,
    dims: Mapping[Any, Any],
) -> Tensor:
    """A tensor broadcast to all leading dimensions, if it has only some of them."""
    count = len(labels) - len(parameter.shape.dims)
    before, rest = labels[:count], labels[count:]
    if not has_leading(parameter) or before == extents.leading:
        return tensor
    shape = [*(dims[each] for each in extents.leading), *(dims.get(each, each) for each in rest)]
    skipped = len(extents.leading) - len(before)

    def element(*indices: Any) -> Any:
        own = indices[skipped:]
        return tensor(*(0 if each == 1 else i for each, i in zip(labels, own, strict=True)))

    made: Tensor = compute(shape, element, f"{tensor.op.name}_broadcast")
    return made


class _Running(threading.local):
    """For each function, the depth of its recursion on the thread: now, and at most."""

    def __init__(self) -> None:
        self.depths: dict[int, int] = {}
        self.deepest: dict[int, int] = {}


_running = _Running()


def call(
    name: str, function: Callable[..., Any], parameters: Sequence[Parameter], args: Sequence[Any]
) -> Any:
    """Calls a function with a value for each parameter; returns its result.

    Raises
    ------
    CompileError
        When the function calls itself without end.
    """
    pairs = list(zip(parameters, args, strict=True))
    positional = [value for each, value in pairs if not each.is_keyword]
    keywords = {each.name: value for each, value in pairs if each.is_keyword}
    depths, deepest, key = _running.depths, _running.deepest, id(function)
    depth = depths[key] = depths.get(key, 0) + 1
    deepest[key] = max(depth, deepest.get(key, 0))
    try:
        return function(*positional, **keywords)
    except RecursionError:
        if depth > 1 or deepest[key] == 1:  # the outermost call has enough stack to raise the error
            raise
        raise CompileError(
            f"{name}: expected a function that ends, found {deepest[key]} calls of itself inside "
            "each other: end them by a static argument or a shape, as in `return x if depth == 0 "
            "else ...`, or write the repetition as te.scan"
        ) from None
    finally:
        depths[key] = depth - 1
        if depth == 1:
            del depths[key], deepest[key]


def _dimensions(extents: Extents, symbolic: frozenset[Label]) -> dict[Any, Any]:
    """The dimension for each label, and for arithmetic with letters."""
    classes = extents.classes
    found: dict[Any, Any] = {
        label: size_var(_variable(label)) if label in symbolic else extents.values[label]
        for label in dict.fromkeys(classes.values())
    }
    found |= {label: found[its] for label, its in classes.items()}
    letters = extents.letters(found)
    for labels in extents.labels.values():
        found |= {each: each.value(letters) for each in labels if isinstance(each, Arithmetic)}
    return found


def _variable(label: Label) -> str:
    """The name of the variable for a label."""
    if isinstance(label, str):
        return label
    return f"leading{-label[1]}" if label[1] < 0 else f"{label[0]}{label[1]}"


def _returned(name: str, value: Any) -> tuple[Schedule | None, tuple[Tensor, ...]]:
    """The schedule and the tensors that a function returned. An expression is a tensor of rank 0:
    so is a number of the program, or the product of a tensor of rank 0 and a number."""
    schedule = None
    if isinstance(value, tuple | list) and value and isinstance(value[0], Schedule):
        schedule, *rest = value
        value = rest[0] if len(rest) == 1 else tuple(rest) or schedule
    given = tuple(value) if isinstance(value, tuple | list) else (value,)
    members = tuple(_of_rank_0(each) if isinstance(each, ExprOperators) else each for each in given)
    for member in members:
        if not isinstance(member, Tensor):
            raise CompileError(
                f"{name}: expected a function that returns a tensor, or a tuple of tensors, got "
                f"{_advised(value, member)}"
            )
    if len(members) < 2 and isinstance(value, tuple | list):
        got = f"a {type(value).__name__} of {len(members) or 'none'}"
        advice = ": return the tensor itself" if members else ""
        raise CompileError(
            f"{name}: expected a function that returns a tensor, or a tuple of several, got "
            f"{got}{advice}"
        )
    return schedule, members


def _of_rank_0(value: ExprOperators) -> Tensor:
    made: Tensor = compute((), lambda: value)
    return made


def _advised(value: Any, member: Any) -> str:
    kind = type(member).__name__
    inside = f" in a {type(value).__name__}" if member is not value else ""
    if isinstance(member, bool):
        return (
            f"a bool{inside}: `==` and `!=` of tensors ask whether they are one tensor; compare "
            "elements, as in te.compute(x.shape, lambda i: x[i] == 0)"
        )
    if isinstance(member, Schedule):
        return f"a Schedule alone{inside}: return the tensors with it, as `return s, C`"
    if member is None:
        return f"None{inside}: does it lack a `return`?"
    if isinstance(member, Operation):
        return f"an operation{inside}: return its tensor, op.output(0)"
    if isinstance(member, dict):
        return f"a dict{inside}: return a tuple of its tensors"
    if isinstance(member, int | float):
        return f"{kind}{inside}: return a tensor, as in te.compute((), lambda: {member})"
    return f"{kind}{inside}"


def _check_inputs(name: str, outputs: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Refuses tensors that no argument passes; a scan's state stands for its result."""
    known = {each.op for each in given}
    seen: set[Operation] = set()
    left = [each.op for each in outputs]
    while left:
        op = left.pop()
        if op in seen:
            continue
        seen.add(op)
        if isinstance(op, PlaceholderOp) and op not in known:
            names = ", ".join(each.name for each in given) or "none"
            raise CompileError(
                f"{name}: expected a program of its own tensors ({names}), found that it reads "
                f"'{op.name}', a placeholder from elsewhere: make it a parameter"
            )
        if isinstance(op, ScanOp):
            known |= {each.op for each in op.state_placeholder}
        left += [each.op for each in op.input_tensors]


def _computed(outputs: Sequence[Tensor], given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs as tensors of their own: a parameter that is returned unchanged, or a tensor that
    is returned twice, is copied."""
    made: list[Tensor] = []
    for each in outputs:
        is_own = each not in given and each not in made
        made.append(each if is_own else _copied(each))
    return tuple(made)


def _copied(tensor: Tensor) -> Tensor:
    made: Tensor = compute(tensor.shape, lambda *i: tensor(*i), f"{tensor.op.name}_copy")
    return made


def is_symbolic(value: Any) -> bool:
    """Whether a value is part of a program: a tensor, or an expression."""
    return isinstance(value, Tensor | PrimExpr | ExprOperators)
