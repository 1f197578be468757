"""A program as a user writes it: Python that imports minitvm."""

from __future__ import annotations

from tests.whole_programs.description import (
    Apply,
    Axis,
    Compute,
    Extern,
    Input,
    Load,
    Number,
    Program,
    ReduceAxis,
    Reduction,
    Scalar,
    Scan,
    Size,
    Stage,
    Value,
    names_of,
    nodes,
    read_by_outputs,
    results_of,
)

MIX = "whole_programs.mix"  # the callback of "packed"

_INFIX = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "floordiv": "//", "floormod": "%",
    "shift_left": "<<", "shift_right": ">>", "and": "&", "or": "|", "xor": "^",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip
_PREFIX = {"negative": "-", "invert": "~"}
_NAMED = {
    "minimum": "te.min", "maximum": "te.max", "select": "tvm.Select", "not": "tir.Not",
    "absolute": "te.abs",
}  # fmt: skip

# Reducers of one's own; {c} is what the reducer captures.
REDUCERS = {
    "any": "te.comm_reducer(lambda a, b: te.any(a, b), lambda t: te.const(False, t), name='any')",
    "all": "te.comm_reducer(lambda a, b: te.all(a, b), lambda t: te.const(True, t), name='all')",
    "xor": 'te.comm_reducer(lambda a, b: a ^ b, lambda t: te.const(0, t), name="xor")',
    "argmax": (
        "te.comm_reducer(lambda a, b: ("
        "tvm.Select(te.any(a[1] > b[1], te.all(a[1] == b[1], a[0] <= b[0])), a[0], b[0]), "
        "tvm.Select(te.any(a[1] > b[1], te.all(a[1] == b[1], a[0] <= b[0])), a[1], b[1])), "
        'lambda t, u: (te.max_value(t), te.min_value(u)), name="argmax")'
    ),
    "sum_and_max": (
        "te.comm_reducer(lambda a, b: (a[0] + b[0], te.max(a[1], b[1])), "
        'lambda t, u: (te.const(0, t), te.min_value(u)), name="sum_and_max")'
    ),
    "sums": (
        "te.comm_reducer(lambda a, b: (a[0] + b[0], a[1] + b[1]), "
        'lambda t, u: (te.const(0, t), te.const(0, u)), name="sums")'
    ),
    "modular": (
        "te.comm_reducer(lambda a, b: (a + b) % ({c}), lambda t: te.const(0, t), "
        'name="modular")'
    ),
    "capped": (
        "te.comm_reducer(lambda a, b: te.min(a + b, {c}), lambda t: te.const(0, t), "
        'name="capped")'
    ),
}  # fmt: skip


def value_text(value: Value) -> str:
    match value:
        case Number():
            return _number(value)
        case Axis() | Size() | Scalar():
            return value.name
        case Load():
            indices = ", ".join(map(value_text, value.indices))
            return f"{value.tensor}[{indices}]" if value.indices else f"{value.tensor}[()]"
        case Apply():
            return _apply(value)


def _number(value: Number) -> str:
    text = repr(value.value)
    if isinstance(value.value, float) and text.lstrip("-") in ("inf", "nan"):
        text = f'float("{text}")'
    return text if value.plain else f'te.const({text}, "{value.dtype}")'


def _apply(value: Apply) -> str:
    args = [value_text(each) for each in value.args]
    if value.op not in _INFIX or all(isinstance(each, Number) for each in value.args):
        args = [  # a Python number is an expression beside another only
            _number(Number(each.value, each.dtype)) if isinstance(each, Number) else text
            for each, text in zip(value.args, args, strict=True)
        ]
    if value.op in ("minimum", "maximum") and isinstance(value.args[1], Axis):
        args[1] = f"({args[1]} + 0)"  # an axis in the place of the second would be reduced
    if value.op in _INFIX:
        return f"({args[0]} {_INFIX[value.op]} {args[1]})"
    if value.op in _PREFIX:
        return f"({_PREFIX[value.op]}{args[0]})"
    if value.op == "cast":
        return f'{args[0]}.astype("{value.dtype}")'
    if value.op == "packed":
        return f'tvm.call_packed("{MIX}", {args[0]})'
    return f"{_NAMED.get(value.op, 'te.' + value.op)}({', '.join(args)})"


def _shape(shape: tuple[Value, ...]) -> str:
    return f"({', '.join(map(value_text, shape))}{',' if len(shape) == 1 else ''})"


def _stage(stage: Stage) -> list[str]:
    match stage:
        case Input():
            made = f'te.placeholder({_shape(stage.shape)}, "{stage.dtype}", name="{stage.name}")'
            return [f"{stage.name} = {made}"]
        case Compute():
            return _compute(stage)
        case Scan():
            return _scan(stage)
        case Extern():
            return _extern(stage)


def _compute(stage: Compute) -> list[str]:
    lines, bodies = [], [_expression(each) for each in stage.bodies]
    body = bodies[0] if len(bodies) == 1 else f"({', '.join(bodies)})"
    if stage.reduction is not None:
        for axis in stage.reduction.axes:
            if not _names_read(axis) & set(stage.axes):
                lines.append(f"{axis.name} = {_reduce_axis(axis)}")
        body = _reduced(stage.reduction, body)
    name = stage.names[0]
    targets = ", ".join(stage.names)
    inside = [axis for axis in _ranges(stage) if _names_read(axis) & set(stage.axes)]
    if inside:  # a range that reads the axes is made where they are
        lines += [f"def {name}_body({', '.join(stage.axes)}):"]
        lines += [f"    {axis.name} = {_reduce_axis(axis)}" for axis in inside]
        lines += [f"    return {body}"]
        function = f"{name}_body"
    else:
        function = f"lambda {', '.join(stage.axes)}: {body}" if stage.axes else f"lambda: {body}"
    lines.append(f'{targets} = te.compute({_shape(stage.shape)}, {function}, name="{name}")')
    return lines


def _expression(value: Value) -> str:
    """A body; a constant is written with its type."""
    return value_text(value) if not isinstance(value, Number) else _number(
        Number(value.value, value.dtype)
    )  # fmt: skip


def _ranges(stage: Compute) -> tuple[ReduceAxis, ...]:
    return stage.reduction.axes if stage.reduction is not None else ()


def _names_read(axis: ReduceAxis) -> set[str]:
    return {node.name for node in nodes((axis.begin, axis.end)) if isinstance(node, Axis)}


def _reduce_axis(axis: ReduceAxis) -> str:
    begin, end = value_text(axis.begin), value_text(axis.end)
    return f'te.reduce_axis(({begin}, {end}), name="{axis.name}")'


def _reduced(reduction: Reduction, body: str) -> str:
    reducer = REDUCERS.get(reduction.reducer, f"te.{reduction.reducer}")
    if reduction.captured is not None:
        reducer = reducer.replace("{c}", _expression(reduction.captured))
    axes = ", ".join(axis.name for axis in reduction.axes)
    text = f"{reducer}({body}, axis={axes if len(reduction.axes) == 1 else f'[{axes}]'}"
    if reduction.where is not None:
        text += f", where={_expression(reduction.where)}"
    if reduction.init is not None:
        inits = ", ".join(map(_expression, reduction.init))
        text += f", init={inits if len(reduction.init) == 1 else f'({inits})'}"
    return text + ")"


def _scan(stage: Scan) -> list[str]:
    name, dtype, rest = stage.name, stage.update.dtype, stage.shape[1:]
    axes = ", ".join(stage.axes)
    first, whole = _shape((Number(stage.steps, "int32", plain=True), *rest)), _shape(stage.shape)
    given, step = f"{name}_first", f"{name}_step"
    state = f"{name}_state"
    update = value_text(stage.update).replace(f"{name}[", f"{state}[")
    return [
        f'{state} = te.placeholder({whole}, "{dtype}", name="{state}")',
        f'{given} = te.compute({first}, lambda {axes}: {_expression(stage.first)}, name="{given}")',
        f'{step} = te.compute({whole}, lambda {axes}: {update}, name="{step}")',
        f'{name} = te.scan({given}, {step}, {state}, name="{name}")',
    ]  # fmt: skip


def _extern(stage: Extern) -> list[str]:
    name = stage.name
    return [
        f"def {name}_loops(ins, outs):",
        "    ib = tir.ir_builder.create()",
        "    source, target = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])",
        f'    total = ib.allocate("{stage.dtype}", (1,), name="total", scope="local")',
        f'    total[0] = te.const(0, "{stage.dtype}")',
        f'    with ib.for_range(0, {value_text(stage.shape[0])}, name="i") as i:',
        "        total[0] = total[0] + source[i]",
        "        target[i] = total[0]",
        "    return ib.get()",
        f"{name} = te.extern({_shape(stage.shape)}, [{stage.source}], {name}_loops, "
        f'name="{name}", dtype="{stage.dtype}")',
    ]


# -- Programs -------------------------------------------------------------------------------------


def arguments(program: Program) -> tuple[str, ...]:
    """What the function is called with: inputs, outputs, scalars, and sizes that no shape tells."""
    inputs = [r for s in program.stages if isinstance(s, Input) for r in results_of(s)]
    made = [r for stage in program.stages for r in results_of(stage) if r.name in program.outputs]
    told = {d.name for each in (*inputs, *made) for d in each.shape if isinstance(d, Size)}
    sizes = [name for name, _ in program.sizes if name not in told]
    scalars = [name for name, _, _ in program.scalars]
    names = [each.name for each in inputs if each.name not in program.outputs]
    return (*names, *sizes, *scalars, *(each.name for each in made))


def program_text(program: Program) -> str:
    """The lines that make the tensors of a program, and ``outputs`` and ``args``."""
    lines = ["import minitvm as tvm", "from minitvm import te, tir", ""]
    lines += [f'{name} = te.var("{name}")' for name, _ in program.sizes]
    lines += [f'{name} = te.var("{name}", "{dtype}")' for name, dtype, _ in program.scalars]
    for stage in program.stages:
        lines += _stage(stage)
    inside = read_by_outputs(program) if not program.told else set()
    first = [  # one result stands for all of its stage
        next(name for name in names_of(stage) if name in program.outputs)
        for stage in program.stages
        if set(names_of(stage)) & (set(program.outputs) - inside)
    ]
    lines += [f"outputs = [{', '.join(first)}]", f"args = [{', '.join(arguments(program))}]"]
    return "\n".join(lines)
