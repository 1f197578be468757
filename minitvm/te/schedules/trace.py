"""Schedules as text: the Python calls that made a schedule, to be read, kept and run again."""

from __future__ import annotations

import functools
import inspect
import keyword
import math
import operator
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from minitvm.runtime.dtype import FLOAT32, INT32, DType
from minitvm.runtime.errors import CompileError
from minitvm.te.schedules.layout import of_indices
from minitvm.te.tensor import Operation, Tensor, tensor_of
from minitvm.te.tensor_intrin import TensorIntrin
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Var
from minitvm.tir.functor import Mutator, children, substitute
from minitvm.tir.intrinsics import INTRINSICS

_LONG_WAY = 8  # operations between one that has a name and one that gets a name
_AXES = ("axis", "reduce_axis")  # the fields of an operation that hold axes
_P = ParamSpec("_P")
_R = TypeVar("_R")


class Traced:
    """An object whose primitives are recorded: a schedule, a stage, a group."""

    __slots__ = ()
    calls: Trace

    def indices_for(self, method: str) -> int:
        """The number of indices of a function that is passed to a method."""
        return 0

    def note_touched(self, things: Iterable[object]) -> None:
        """Notes that a primitive was applied to this object: `things` are its arguments and its
        results."""
        raise NotImplementedError

    def text_in(self, trace: Trace) -> str:
        """The name of this object in a line of the trace."""
        raise NotImplementedError


class Trace:
    """The calls made on one schedule, each a line of Python.

    The text needs ``te``, ``tir`` and the output tensors under their own names, and gives a name to
    everything else that it uses.
    """

    def __init__(
        self,
        outputs: tuple[Operation, ...],
        now: Callable[[Tensor], Tensor],
        stage_of: Callable[[Operation], object],
    ) -> None:
        """`outputs`: the outputs of the program before it was scheduled. `now`: maps a tensor of
        that program to the tensor that stands for it in the schedule. `stage_of`: the stage that
        computes an operation, or did; None for other operations."""
        self.lines: list[str] = []
        self._now = now
        self._stage_of = stage_of
        self._names: dict[object, str] = {}
        # First, by stage (or by operation, if that has no stage): the tensors that have names, each
        # behind the number of names before it. Then, by axis or operation: the stages whose
        # operations have the axis, or read the operation.
        self._named: dict[object, list[tuple[int, Tensor]]] = {}
        self._known_to: dict[object, dict[object, None]] = {}
        self._taken = {"te", "tir", "s"}
        self.outputs = outputs
        self._depth = 0
        self._open: list[object] = []  # the lists around the value that is being written
        for op in outputs:
            self._name(op.output(0), op.name)
        listed = ", ".join(f"{self._names[op.output(0)]}.op" for op in outputs)
        self.lines.append(f"s = te.create_schedule([{listed}])")

    def copy(
        self,
        now: Callable[[Tensor], Tensor],
        stage_of: Callable[[Operation], object],
        others: Mapping[Any, object],
    ) -> Trace:
        """A trace for a copy of the schedule, independent of this one from here on. `others` maps
        the objects of the schedule to their copies."""
        made = Trace((), now, stage_of)
        made.outputs = self.outputs
        made.lines, made._taken = [*self.lines], {*self._taken}
        for each, name in self._names.items():
            made._add(others.get(each, each), name)
        return made

    def note(self, op: Operation) -> None:
        """Notes the axes and the inputs of an operation that a stage computes from now on."""
        stage = self._holder(op)
        axes = (axis for field in _AXES for axis in getattr(op, field, ()))
        for each in (*axes, getattr(op, "scan_axis", None), *(t.op for t in op.input_tensors)):
            if each is not None:
                self._known_to.setdefault(each, {})[stage] = None

    # -- Recording --------------------------------------------------------------------------------

    def call(
        self,
        target: Traced,
        function: Callable[[], _R],
        method: str,
        args: tuple[Any, ...],
        named: dict[str, Any],
    ) -> _R:
        """Calls `function`, and records a call of `method` once it has succeeded. Calls of
        primitives inside of `function` are not recorded."""
        if self._depth:
            return function()
        lines, names, count = len(self.lines), len(self._names), target.indices_for(method)
        self._depth += 1
        try:
            text = f"{target.text_in(self)}.{method}({self._arguments(count, args, named)})"
            result = function()
        except BaseException:
            self._forget(lines, names)
            raise
        finally:
            self._depth -= 1
        self.lines.append(text if result is target else self._results(result) + text)
        target.note_touched(_flat([result, *args, *named.values()]))
        return result

    def _forget(self, lines: int, names: int) -> None:
        """Keeps only the first lines and names."""
        del self.lines[lines:]
        for _ in range(len(self._names) - names):
            thing, name = self._names.popitem()
            self._taken.discard(name)
            if isinstance(thing, Tensor):
                self._named[self._holder(thing.op)].pop()

    def _results(self, result: Any) -> str:
        made = result if isinstance(result, (list, tuple)) else [result]
        if not made or not all(isinstance(each, (IterVar, Tensor, Traced)) for each in made):
            return ""
        names = [self._name(each, str(getattr(each, "name", "group"))) for each in made]
        several = isinstance(result, (list, tuple))
        return ", ".join(names) + ("," if several and len(names) == 1 else "") + " = "

    def _arguments(self, count: int, args: tuple[Any, ...], named: dict[str, Any]) -> str:
        """`count`: the indices of a function among the arguments."""
        texts = [self._text(each, count) for each in args]
        texts += [f"{key}={self._text(each, count)}" for key, each in named.items()]
        return ", ".join(texts)

    # -- Values as text ---------------------------------------------------------------------------

    def _text(self, value: Any, count: int = 0) -> str:
        if isinstance(value, (list, tuple)):
            if any(each is value for each in self._open):
                raise CompileError("expected values, got a list within itself")
            self._open.append(value)
            try:
                inside = ", ".join(map(self._text, value))
            finally:
                self._open.pop()
            return f"[{inside}]" if isinstance(value, list) else f"({inside},)"
        if isinstance(value, Tensor):
            return self.tensor(value)
        if isinstance(value, Operation):
            return self.operation(value)
        if isinstance(value, IterVar):
            return self._axis(value)
        if isinstance(value, Traced):
            return self._names.get(value) or value.text_in(self)
        if isinstance(value, PrimExpr):
            return self._expression(value)
        if isinstance(value, TensorIntrin):
            return self._intrinsic(value)
        if isinstance(value, np.dtype) or (isinstance(value, type) and value in _NUMPY_TYPES):
            return repr(str(DType.of(value)))
        if callable(value) and not isinstance(value, type):
            return self._function(value, count)
        if hasattr(value, "__index__") and not isinstance(value, (bool, type, np.ndarray)):
            return str(operator.index(value))
        if isinstance(value, float):
            return _float(value)
        if isinstance(value, str) and "\n" in value and not {*'"\\'} & {*value}:
            return f'"""\n{value.strip()}\n"""'  # the trace of a part of a batch
        return repr(str(value)) if isinstance(value, str) else repr(value)

    def _intrinsic(self, intrin: TensorIntrin) -> str:
        """An intrinsic of this project, as the call that made it; any other intrinsic as a name,
        which `names` of ``replay`` must define."""
        if intrin.name.startswith("te."):
            return intrin.name
        return self._names.get(intrin) or self._name(intrin, intrin.name)

    def names_of(self, ops: Sequence[Operation]) -> dict[str, Tensor]:
        """The first tensors of some operations, by the operations' names."""
        return {self._names[op.output(0)]: op.output(0) for op in ops}

    def name_of(self, thing: object) -> str:
        """The name that the trace gave to a result."""
        return self._names[thing]

    def tensor(self, tensor: Tensor) -> str:
        """A name for the tensor, whose expression begins at an object that has a name already."""
        if tensor in self._names:
            return self._names[tensor]
        for _, known in self._named.get(self._holder(tensor.op), ()):
            if self._now(known).op is self._now(tensor).op:
                return f"s[{self._names[known]}].op.output({tensor.value_index})"
        self._reach(tensor)
        return self._names[tensor]

    def _holder(self, op: Operation) -> object:
        """The stage of an operation; the operation where there is none."""
        stage = self._stage_of(op)
        return op if stage is None else stage

    def _named_tensors(self) -> list[tuple[Tensor, str]]:
        return [(each, name) for each, name in self._names.items() if isinstance(each, Tensor)]

    def _named_operations(self, thing: object = None) -> list[tuple[Operation, str]]:
        """The operations of the tensors that have names: the original ones, and the current ones;
        at least the operations to which `thing`, an axis or an operation, belongs."""
        holders = self._named if thing is None else self._known_to.get(thing, ())
        places = [place for holder in holders for place in self._named.get(holder, ())]
        places.sort(key=operator.itemgetter(0))
        return [pair for _, each in places for pair in self._operations_of(each)]

    def _operations_of(self, tensor: Tensor) -> tuple[tuple[Operation, str], ...]:
        name = self._names[tensor]
        return (tensor.op, f"{name}.op"), (self._now(tensor).op, f"s[{name}].op")

    def operation(self, op: Operation) -> str:
        """An expression for the operation, which begins at an object that has a name."""
        return self._named_operation(op) or f"{self.tensor(op.output(0))}.op"

    def _named_operation(self, op: Operation) -> str | None:
        for _, tensor in self._named.get(self._holder(op), ()):
            for known, text in self._operations_of(tensor):
                if op is known:
                    return text
        return None

    def _reach(self, tensor: Tensor) -> None:
        where = self._named_operation(tensor.op) or self._read_from(tensor) or self._path(tensor)
        name = self._name(tensor, tensor.name)
        self.lines.append(f"{name} = {where or f'{name}.op'}.output({tensor.value_index})")

    def _read_from(self, tensor: Tensor) -> str | None:
        """The expression that reaches the operation of a tensor from one that reads it."""
        for op, text in self._named_operations(tensor.op):
            for i, each in enumerate(op.input_tensors):
                if each.op is tensor.op:
                    return f"{text}.input_tensors[{i}].op"
        return None

    def _path(self, tensor: Tensor) -> str | None:
        """The shortest expression that reaches the operation of a tensor. The tensors on a long way
        get names: in a chain of stages, the next ones are asked for soon."""
        known = dict(reversed(self._named_operations()))
        reader: dict[Operation, tuple[Operation, int]] = {}
        pending = deque(dict.fromkeys(op for op, _ in self._named_operations()))
        while pending and tensor.op not in reader:
            op = pending.popleft()
            for i, each in enumerate(op.input_tensors):
                if each.op not in reader and each.op not in known:
                    reader[each.op] = op, i
                    pending.append(each.op)
        way: list[tuple[Operation, int]] = []
        op = tensor.op
        while op in reader:
            way.append(reader[op])
            op = way[-1][0]
        text = known.get(op)
        for op, i in reversed(way):
            source = op.input_tensors[i]
            if len(way) > _LONG_WAY and source.op is not tensor.op:
                name = self._name(source, source.name)
                self.lines.append(f"{name} = {text}.input_tensors[{i}]")
                text = f"{name}.op"
            else:
                text = f"{text}.input_tensors[{i}].op"
        return text

    def _axis(self, axis: IterVar) -> str:
        if axis not in self._names:
            name = self._name(axis, axis.name)
            self.lines.append(f"{name} = {self._root(axis)}")
        return self._names[axis]

    def _root(self, axis: IterVar) -> str:
        """The expression that reaches an axis from a named operation."""
        if axis.thread_tag:
            named = "" if axis.name == axis.thread_tag else f", name={axis.name!r}"
            return f"te.thread_axis({axis.thread_tag!r}{named})"
        for op, text in self._named_operations(axis):
            if getattr(op, "scan_axis", None) is axis:
                return f"{text}.scan_axis"
            for field in _AXES:
                for i, each in enumerate(getattr(op, field, ())):
                    if each is axis:
                        return f"{text}.{field}[{i}]"
        return axis.name

    def _expression(self, value: PrimExpr) -> str:
        return str(_AsPython(self._variable, self.tensor).expr(value))

    def _variable(self, var: Var) -> str:
        named = [each for each in self._names if isinstance(each, IterVar)]
        for axis in [*named, *self._root_axes()]:
            if axis.var is var:
                return f"{self._axis(axis)}.var"
        return self._size(var)

    def _root_axes(self) -> list[IterVar]:
        """The axes of the operations that have names."""
        ops = [op for op, _ in self._named_operations()]
        times = [op.scan_axis for op in ops if hasattr(op, "scan_axis")]
        return [*(each for op in ops for field in _AXES for each in getattr(op, field, ())), *times]

    def _function(self, function: Callable[..., Any], indices_wanted: int) -> str:
        """A function of some indices; the primitive refuses a function of another number."""
        try:
            parameters = inspect.signature(function).parameters.values()
        except ValueError:
            return repr(function)
        named = [
            each.name
            for each in parameters
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        ]
        last = [
            each.name
            for each in parameters
            if each.kind is each.KEYWORD_ONLY and each.default is each.empty
        ]
        count = max(indices_wanted - len(last), 0)
        names = named[:count] + [f"i{i}" for i in range(len(named), count)] + last
        indices = [Var(name, axis=True) for name in names]
        try:
            result = of_indices("trace", function, indices)
        except CompileError:
            return repr(function)
        members = result if isinstance(result, (list, tuple)) else [result]

        def variable(var: Var) -> str:
            return var.name if any(var is each for each in indices) else self._variable(var)

        printed = _AsPython(variable, self.tensor)
        texts = [str(printed.expr(e.as_expr(each))) for each in members]
        return f"lambda {', '.join(names)}: [{', '.join(texts)}]"

    def _size(self, var: Var) -> str:
        """The name of a variable that is a dimension of a tensor."""
        if var not in self._names:
            read = (each for op, _ in self._named_operations() for each in op.input_tensors)
            named = (each for each, _ in self._named_tensors())
            for known in (*named, *read):
                for i, dim in enumerate(known.shape):
                    if dim is var:
                        tensor, name = self.tensor(known), self._name(var, var.name)
                        self.lines.append(f"{name} = {tensor}.shape[{i}]")
                        return name
        return self._names.get(var, var.name)

    def _name(self, thing: object, wanted: str) -> str:
        base = re.sub(r"\W", "_", wanted, flags=re.ASCII) or "x"
        if keyword.iskeyword(base) or base[0].isdigit():
            base = f"_{base}"
        name, count = base, 1
        while name in self._taken:
            name, count = f"{base}_{count}", count + 1
        self._taken.add(name)
        self._add(thing, name)
        return name

    def _add(self, thing: object, name: str) -> None:
        if isinstance(thing, Tensor) and thing not in self._names:
            place = len(self._names), thing
            self._named.setdefault(self._holder(thing.op), []).append(place)
            self.note(thing.op)
        self._names[thing] = name


class _AsPython(Mutator):
    """An expression that prints as Python: a node that is no operator in Python becomes a variable
    whose name is the text of a call."""

    def __init__(self, variable: Callable[[Var], str], tensor: Callable[[Tensor], str]) -> None:
        super().__init__()
        self._variable = variable
        self._tensor = tensor
        self._texts: dict[str, Var] = {}  # one variable for each text, so that it prints unchanged

    def _text(self, text: str, dtype: DType) -> PrimExpr:
        return self._texts.setdefault(text, Var(text, dtype))

    def visit_Var(self, node: Var) -> PrimExpr:
        return self._text(self._variable(node), node.dtype)

    def visit_IntImm(self, node: e.IntImm) -> PrimExpr:
        if node.dtype == INT32 or node.dtype.is_bool:
            return node
        return self._text(f"tir.const({int(node.value)}, '{node.dtype}')", node.dtype)

    def visit_FloatImm(self, node: e.FloatImm) -> PrimExpr:
        if node.dtype == FLOAT32 and math.isfinite(node.value):
            return node
        return self._text(f"tir.const({_float(node.value)}, '{node.dtype}')", node.dtype)

    def visit_StringImm(self, node: e.StringImm) -> PrimExpr:
        return self._text(repr(node.value), node.dtype)

    def _call(self, node: Any) -> PrimExpr:
        args = ", ".join(str(self.expr(each)) for each in children(node))
        return self._text(f"{_FUNCTIONS[type(node)]}({args})", node.dtype)

    visit_And = visit_Or = visit_Not = visit_Min = visit_Max = visit_Select = visit_Mod = _call

    def visit_Div(self, node: e.Div) -> PrimExpr:
        if node.dtype.is_float:
            return self.descend(node)
        return self._call(node)

    def visit_Call(self, node: e.Call) -> PrimExpr:
        if node.op in INTRINSICS and INTRINSICS[node.op].operator:
            return self.descend(node)
        args = "".join(f", {self.expr(each)}" for each in node.args)
        return self._text(f"tir.call_intrin('{node.dtype}', '{node.op}'{args})", node.dtype)

    def visit_Let(self, node: e.Let) -> PrimExpr:
        return self.expr(substitute(node.body, {node.var: node.value}))

    def visit_Cast(self, node: e.Cast) -> PrimExpr:
        return self._text(f"({self.expr(node.value)}).astype('{node.dtype}')", node.dtype)

    def visit_ProducerLoad(self, node: ProducerLoad) -> PrimExpr:
        indices = ", ".join(str(self.expr(index)) for index in node.indices)
        return self._text(f"{self._tensor(tensor_of(node))}({indices})", node.dtype)


# The nodes that print as a call of a function.
_FUNCTIONS: dict[type, str] = {
    e.And: "te.all",
    e.Or: "te.any",
    e.Not: "tir.Not",
    e.Min: "te.min",
    e.Max: "te.max",
    e.Select: "tir.Select",
    e.Div: "tir.truncdiv",
    e.Mod: "tir.truncmod",
}
_NUMPY_TYPES = frozenset(np.sctypeDict.values())


def _float(value: float) -> str:
    """A float as a literal; an infinite one is a literal that is too large."""
    return repr(float(value)).replace("inf", "1e999").replace("nan", "(1e999 - 1e999)")


def _flat(values: Iterable[Any]) -> Iterator[object]:
    """The values, those in lists one by one."""
    for each in values:
        yield from each if isinstance(each, (list, tuple)) else (each,)


def primitive(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """A method of a stage or a schedule whose calls the schedule's trace records."""
    # So Python names it where it is called with other arguments: bases of `Stage` aren't for users.
    method.__qualname__ = method.__name__

    @functools.wraps(method)
    def recorded(*args: _P.args, **named: _P.kwargs) -> _R:
        target = cast(Traced, args[0])
        return target.calls.call(
            target, lambda: method(*args, **named), method.__name__, args[1:], dict(named)
        )

    recorded.is_primitive = True  # type: ignore[attr-defined]  # functions have attributes
    return recorded


def is_primitive(target: Traced, name: str) -> bool:
    """Whether a trace records the calls of a method of `target`."""
    return hasattr(getattr(type(target), name, None), "is_primitive")
