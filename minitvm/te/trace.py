"""Schedules as text: the Python calls that made one, to be read, kept and run again."""

from __future__ import annotations

import functools
import inspect
import keyword
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

from minitvm.expr import IterVar, PrimExpr, Var
from minitvm.functor import free_vars, substitute
from minitvm.te.tensor import Operation, Tensor

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Traced:
    """What has methods that are recorded: a schedule, a stage, a group."""

    __slots__ = ()
    calls: Trace

    def text_in(self, trace: Trace) -> str:
        """How a line of the trace names this object."""
        raise NotImplementedError


class Trace:
    """The calls made on one schedule, each a line of Python.

    The text needs ``te`` and the output tensors under their own names, and gives a name to
    everything else that it uses.
    """

    def __init__(self, outputs: tuple[Operation, ...], now: Callable[[Tensor], Tensor]) -> None:
        """`now`: what a tensor of the program has become in the schedule."""
        self.lines: list[str] = []
        self._now = now
        self._names: dict[object, str] = {}
        self._taken = {"te", "s"}
        self._outputs = outputs
        self._depth = 0
        for op in outputs:
            self._name(op.output(0), op.name)
        listed = ", ".join(f"{self._names[op.output(0)]}.op" for op in outputs)
        self.lines.append(f"s = te.create_schedule([{listed}])")

    def copy(self, now: Callable[[Tensor], Tensor]) -> Trace:
        """A trace of a copy of the schedule, which goes on from here by itself."""
        made = Trace(self._outputs, now)
        made.lines, made._names, made._taken = [*self.lines], {**self._names}, {*self._taken}
        return made

    # -- Recording --------------------------------------------------------------------------------

    def call(
        self,
        target: Traced,
        function: Callable[[], _R],
        method: str,
        args: tuple[Any, ...],
        named: dict[str, Any],
    ) -> _R:
        """`function`, recorded as a call of `method` once it has succeeded; calls that it makes
        itself are not."""
        if self._depth:
            return function()
        before = [*self.lines], {**self._names}, {*self._taken}
        self._depth += 1
        try:
            text = f"{target.text_in(self)}.{method}({self._arguments(args, named)})"
            result = function()
        except BaseException:
            self.lines, self._names, self._taken = before
            raise
        finally:
            self._depth -= 1
        self.lines.append(text if result is target else self._results(result) + text)
        return result

    def _results(self, result: Any) -> str:
        made = result if isinstance(result, (list, tuple)) else [result]
        if not made or not all(isinstance(each, (IterVar, Tensor, Traced)) for each in made):
            return ""
        names = [self._name(each, str(getattr(each, "name", "group"))) for each in made]
        several = isinstance(result, (list, tuple))
        return ", ".join(names) + ("," if several and len(names) == 1 else "") + " = "

    def _arguments(self, args: tuple[Any, ...], named: dict[str, Any]) -> str:
        texts = [self._text(each) for each in args]
        return ", ".join(texts + [f"{key}={self._text(each)}" for key, each in named.items()])

    # -- Values as text ---------------------------------------------------------------------------

    def _text(self, value: Any) -> str:
        if isinstance(value, (list, tuple)):
            inside = ", ".join(map(self._text, value))
            return f"[{inside}]" if isinstance(value, list) else f"({inside},)"
        if isinstance(value, Tensor):
            return self.tensor(value)
        if isinstance(value, Operation):
            return self._operation(value)
        if isinstance(value, IterVar):
            return self._axis(value)
        if isinstance(value, Traced):
            return self._names.get(value) or value.text_in(self)
        if isinstance(value, PrimExpr):
            return self._expression(value)
        if callable(value) and not hasattr(value, "name"):
            return self._function(value)
        if hasattr(value, "__index__") and not isinstance(value, bool):
            return str(operator.index(value))
        return str(getattr(value, "name", None) or repr(value))

    def names_of(self, ops: Sequence[Operation]) -> dict[str, Tensor]:
        """The first tensors of some operations under their names."""
        return {self._names[op.output(0)]: op.output(0) for op in ops}

    def name_of(self, thing: object) -> str:
        """The name that a result was given."""
        return self._names[thing]

    def tensor(self, tensor: Tensor) -> str:
        """A name of the tensor, which is reached from what has a name already."""
        if tensor in self._names:
            return self._names[tensor]
        for known, name in self._named_tensors():
            if self._now(known).op is tensor.op:
                return f"s[{name}].op.output({tensor.value_index})"
        self._reach(tensor)
        return self._names[tensor]

    def _named_tensors(self) -> list[tuple[Tensor, str]]:
        return [(each, name) for each, name in self._names.items() if isinstance(each, Tensor)]

    def _operation(self, op: Operation) -> str:
        for known, name in self._named_tensors():
            if op in (known.op, self._now(known).op):
                return f"{name}.op" if op is known.op else f"s[{name}].op"
        return f"{self.tensor(op.output(0))}.op"

    def _reach(self, tensor: Tensor) -> None:
        path: dict[Operation, str] = {}
        pending: list[Operation] = []
        for known, name in self._named_tensors():
            if known.op not in path:
                path[known.op] = f"{name}.op"
                pending.append(known.op)
        while pending and tensor.op not in path:
            op = pending.pop(0)
            for i, each in enumerate(op.input_tensors):
                if each.op not in path:
                    path[each.op] = f"{path[op]}.input_tensors[{i}].op"
                    pending.append(each.op)
        name = self._name(tensor, tensor.name)
        where = path.get(tensor.op, f"{name}.op")
        self.lines.append(f"{name} = {where}.output({tensor.value_index})")

    def _axis(self, axis: IterVar) -> str:
        if axis not in self._names:
            name = self._name(axis, axis.name)
            self.lines.append(f"{name} = {self._root(axis)}")
        return self._names[axis]

    def _root(self, axis: IterVar) -> str:
        """Where an axis of an operation is found."""
        if axis.thread_tag:
            return f"te.thread_axis({axis.thread_tag!r})"
        for known, name in self._named_tensors():
            for op, text in ((known.op, f"{name}.op"), (self._now(known).op, f"s[{name}].op")):
                if getattr(op, "scan_axis", None) is axis:
                    return f"{text}.scan_axis"
                for field in ("axis", "reduce_axis"):
                    for i, each in enumerate(getattr(op, field, ())):
                        if each is axis:
                            return f"{text}.{field}[{i}]"
        return axis.name

    def _expression(self, value: PrimExpr) -> str:
        axes = {each.var: name for each, name in self._names.items() if isinstance(each, IterVar)}
        renamed: dict[Var, PrimExpr] = {}
        for var in free_vars(value):
            name = f"{axes[var]}.var" if var in axes else self._size(var)
            renamed[var] = Var(name, var.dtype)
        return str(substitute(value, renamed))

    def _function(self, function: Callable[..., Any]) -> str:
        """A function of indices."""
        names = list(inspect.signature(function).parameters)
        result = function(*[Var(name, axis=True) for name in names])
        members = result if isinstance(result, (list, tuple)) else [result]
        return f"lambda {', '.join(names)}: [{', '.join(map(str, members))}]"

    def _size(self, var: Var) -> str:
        """The name of a variable that is a dimension of a tensor."""
        if var not in self._names:
            for known, tensor in self._named_tensors():
                for i, dim in enumerate(known.shape):
                    if dim is var:
                        name = self._name(var, var.name)
                        self.lines.append(f"{name} = {tensor}.shape[{i}]")
                        return name
        return self._names.get(var, var.name)

    def _name(self, thing: object, wanted: str) -> str:
        base = re.sub(r"\W", "_", wanted) or "x"
        if keyword.iskeyword(base) or base[0].isdigit():
            base = f"_{base}"
        name, count = base, 1
        while name in self._taken:
            name, count = f"{base}_{count}", count + 1
        self._taken.add(name)
        self._names[thing] = name
        return name


def primitive(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """A method of a stage or a schedule whose calls the schedule's trace records."""

    @functools.wraps(method)
    def recorded(*args: _P.args, **named: _P.kwargs) -> _R:
        target = cast(Traced, args[0])
        return target.calls.call(
            target, lambda: method(*args, **named), method.__name__, args[1:], dict(named)
        )

    return recorded
