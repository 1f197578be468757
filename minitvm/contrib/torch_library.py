"""Registrations of an operator with torch's dispatcher: schema, fake outputs, gradients, batches.

Everything is registered through ``torch.library``. Each function here makes the function of one
registration from a :class:`Results`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

from minitvm.contrib.imported import imported
from minitvm.runtime.record import record
from minitvm.runtime.results import Results
from minitvm.tir.expr import IntImm, Var

# The types of numbers in torch's schemas. Extents may be symbols where sizes change.
_SCALARS = {"float": "float", "int": "SymInt", "uint": "SymInt", "bool": "bool"}


def schema_of(results: Results) -> str:
    """The operator's signature, as torch writes it.

    Raises
    ------
    ValueError
        When torch has no type for an argument.
    """
    kinds = [
        f"{schema_type(results, position)} {parameter(results, position)}"
        for position in results.inputs
    ]
    for position in results.outputs:
        torch_dtype(results, position)
    returned = ", ".join(["Tensor"] * len(results.outputs))
    return f"({', '.join(kinds)}) -> {returned if len(results.outputs) == 1 else f'({returned})'}"


def schema_type(results: Results, position: int) -> str:
    """The type of an argument in a schema."""
    if not results.is_scalar(position):
        torch_dtype(results, position)
        return "Tensor"
    dtype = str(results.dtypes[position])
    for start, kind in _SCALARS.items():
        if dtype.startswith(start):
            return kind
    raise ValueError(
        f"{results.argument(position)}: expected a tensor or a number, which torch has types for, "
        f"got {dtype}"
    )


def torch_dtype(results: Results, position: int) -> Any:
    """The dtype of a tensor argument, as one of torch's."""
    torch = imported("torch", "torch_op")
    dtype = str(results.dtypes[position])
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(
            f"{results.argument(position)}: expected a dtype that torch has, got {dtype}"
        )
    return found


def parameter(results: Results, position: int) -> str:
    """A parameter name that torch can parse: the argument's own, if all names are ASCII identifiers
    and differ."""
    names = results.names
    plain = all(name.isidentifier() and name.isascii() for name in names)
    own = plain and len(set(names)) == len(names) and "out" not in names
    return names[position] if own else f"x{position}"


# ---- Shapes without data -------------------------------------------------------------------------


def fake_kernel(function: Any, results: Results) -> Callable[..., Any]:
    """Makes outputs of the right shapes and dtypes for inputs without data, whose sizes may be
    symbols. The inputs are checked as a call checks them."""
    dtypes = {at: torch_dtype(results, at) for at in _tensors(results)}
    expected = list(_expected_extents(function, results))

    def fake(*values: Any) -> Any:
        _check_dtypes(results, values, dtypes)
        results.shapes(values)  # this checks the ranks
        _check_extents(results, values, expected)
        return results.returned(empty_outputs(results, values, dtypes))

    return fake


def empty_outputs(
    results: Results, values: Sequence[Any], dtypes: dict[int, Any] | None = None
) -> list[Any]:
    """Uninitialised outputs for some inputs, on the inputs' device."""
    torch = imported("torch", "torch_op")
    found = dtypes or {at: torch_dtype(results, at) for at in results.outputs}
    device = next((each.device for each in values if isinstance(each, torch.Tensor)), "cpu")
    shapes = results.shapes(values)
    return [
        torch.empty(shape, dtype=found[at], device=device)
        for shape, at in zip(shapes, results.outputs, strict=True)
    ]


def _check_dtypes(results: Results, values: Sequence[Any], dtypes: dict[int, Any]) -> None:
    for position, value in zip(results.inputs, values, strict=True):
        if position in dtypes and value.dtype != dtypes[position]:
            raise TypeError(
                f"{results.argument(position)}: expected dtype {results.dtypes[position]}, got "
                f"{str(value.dtype).removeprefix('torch.')}"
            )


def _check_extents(
    results: Results, values: Sequence[Any], expected: Sequence[tuple[int, int, Any]]
) -> None:
    torch = imported("torch", "torch_op")
    given = dict(zip(results.inputs, values, strict=True))
    for position, axis, extent in expected:
        found = given[position].shape[axis]
        if not isinstance(extent, int):
            at, dim = extent
            extent = given[at] if dim is None else given[at].shape[dim]
        text = f"{results.argument(position)}: expected shape[{axis}] == {extent}, got {found}"
        torch._check_value(found == extent, lambda text=text: text)


def _expected_extents(function: Any, results: Results) -> Iterator[tuple[int, int, Any]]:
    """The extents of inputs that a constant or an earlier argument determines: the argument, the
    axis, and the constant, or the earlier argument and its axis (None for a scalar)."""
    params = function.program.lowered[function.name].arguments
    sources: dict[Var, tuple[int, int | None]] = {
        param: (at, None) for at, param in enumerate(params) if isinstance(param, Var)
    }
    for position in results.inputs:
        if results.is_scalar(position):
            continue
        for axis, extent in enumerate(params[position].shape):
            if isinstance(extent, IntImm):
                yield position, axis, extent.value
            elif isinstance(extent, Var) and extent in sources:
                yield position, axis, sources[extent]
            elif isinstance(extent, Var):
                sources[extent] = (position, axis)


def _tensors(results: Results) -> Iterator[int]:
    return (at for at in (*results.inputs, *results.outputs) if not results.is_scalar(at))


# ---- Gradients -----------------------------------------------------------------------------------


def keep_all(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    """The default ``setup_context``: keeps the tensors among the inputs, then the outputs."""
    torch = imported("torch", "torch_op")
    outputs = output if isinstance(output, tuple) else (output,)
    ctx.save_for_backward(*(x for x in (*inputs, *outputs) if isinstance(x, torch.Tensor)))


_Pushforward = Callable[[Sequence[Any], Sequence[Any]], Mapping[int, Any]]


@final
@record(eq=False)
class Recording:
    """A run of an operator that keeps tensors for its gradients.

    Attributes
    ----------
    run
        Takes plain tensors, and returns the outputs and then further tensors: a tuple, or one
        tensor.
    operator
        An operator of torch that does the same.
    outputs
        The number of outputs.
    kept
        The places of the tensors to be kept among the values that `run` returns.
    function
        ``function(values, kept, heads)`` returns the gradient of each input, as
        :attr:`Gradients.function` does, from the kept tensors. These gradients have no gradients
        themselves.
    """

    run: Callable[..., Any]
    operator: Any
    outputs: int
    kept: tuple[int, ...]
    function: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], tuple[Any, ...]]


@final
@record()
class Gradients:
    """A derivative as a function of tensors, which also differentiates batches.

    Attributes
    ----------
    function
        ``function(values, heads, needed)`` returns the gradient of each input, None for one that
        has none or isn't `needed`. `values` are the inputs, then the outputs if `reads_outputs`;
        `heads` are the gradients of the outputs of floats.
    reads_outputs
        Whether the function takes the outputs.
    pushforward
        ``pushforward(values, tangents)`` returns the tangents of the outputs by their places,
        without those that are zero. `tangents` has the tangent of each input, None for zero. The
        attribute is None where forward mode isn't known.
    recording
        ``recording(needed)`` tells how the operator runs where autograd records it and the
        gradients of some inputs are `needed`; None where it runs as without autograd.
    """

    function: Callable[[Sequence[Any], Sequence[Any], Sequence[bool]], tuple[Any, ...]]
    reads_outputs: bool
    pushforward: _Pushforward | None = None
    recording: Callable[[Sequence[bool]], Recording | None] | None = None

    def registered(self, results: Results) -> tuple[Callable[..., Any], Callable[..., None]]:
        """The derivative as torch takes it: ``backward`` and ``setup_context``."""
        heads = [i for i, at in enumerate(results.outputs) if is_differentiable(results, at)]

        def differentiate(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
            given = [gradients[i].contiguous() for i in heads]
            return self.function(kept(ctx), given, ctx.needs_input_grad)

        return differentiate, keep_inputs(results, self.reads_outputs)

    def forward_mode(self, results: Results) -> Callable[..., Any] | None:
        """Forward mode as torch takes it: ``jvp``."""
        if self.pushforward is None:
            return None
        pushforward = self.pushforward

        def push(ctx: Any, *tangents: Any) -> Any:
            given = [None if each is None else each.contiguous() for each in tangents]
            found = pushforward(kept(ctx), given)
            return results.returned([found.get(i) for i in range(len(results.outputs))])

        return push

    def batched(self, flags: Sequence[bool]) -> Gradients:
        """The derivative of the operator for a batch. The inputs with a flag have the batch
        dimension; the gradients of the others are sums over the batch."""
        torch = imported("torch", "torch_op")

        def function(
            values: Sequence[Any], heads: Sequence[Any], needed: Sequence[bool]
        ) -> tuple[Any, ...]:
            places: list[int] = []

            def each(values: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
                found = self.function(values, [head.contiguous() for head in heads], needed)
                places[:] = [i for i, gradient in enumerate(found) if gradient is not None]
                return [found[i] for i in places]

            dims = [0 if has else None for has in flags]
            dims += [0] * (len(values) - len(flags))
            made = torch.vmap(each, (dims, [0] * len(heads)))(list(values), list(heads))
            summed = (g if flags[i] else g.sum(0) for i, g in zip(places, made, strict=True))
            by_place = dict(zip(places, summed, strict=True))
            return tuple(by_place.get(i) for i in range(len(flags)))

        push = None if self.pushforward is None else _pushed_batch(self.pushforward, flags)
        return Gradients(function, self.reads_outputs, push)


def _pushed_batch(pushforward: _Pushforward, flags: Sequence[bool]) -> _Pushforward:
    """The tangents of a batch."""
    torch = imported("torch", "torch_op")
    dims = [0 if has else None for has in flags]

    def push(values: Sequence[Any], tangents: Sequence[Any]) -> Mapping[int, Any]:
        moved = [i for i, tangent in enumerate(tangents) if tangent is not None]

        def each(values: Sequence[Any], given: Sequence[Any]) -> Mapping[int, Any]:
            now = dict(zip(moved, given, strict=True))
            return pushforward(values, [now.get(i) for i in range(len(tangents))])

        outputs = [0] * (len(values) - len(flags))
        batched = torch.vmap(each, ([*dims, *outputs], [dims[i] for i in moved]))
        made: Mapping[int, Any] = batched(list(values), [tangents[i] for i in moved])
        return made

    return push


def keep_inputs(results: Results, with_outputs: bool) -> Callable[..., None]:
    """A ``setup_context`` that keeps all inputs for :func:`kept`, also numbers, and behind them the
    outputs if wanted."""
    numbers = [i for i, at in enumerate(results.inputs) if results.is_scalar(at)]
    tensors = [i for i, at in enumerate(results.inputs) if not results.is_scalar(at)]

    def keep(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        given = [inputs[i] for i in tensors] if numbers else inputs
        if with_outputs:
            given = (*given, *(output if isinstance(output, tuple) else (output,)))
        ctx.save_for_backward(*given)
        ctx.save_for_forward(*given)
        ctx.numbers = {i: inputs[i] for i in numbers}

    return keep


def kept(ctx: Any) -> list[Any]:
    """The values that :func:`keep_inputs` has kept, in the order of the inputs."""
    values = list(ctx.saved_tensors)
    for i, value in ctx.numbers.items():
        values.insert(i, value)
    return values


def gradients_of(results: Results, wanted: Sequence[int], made: Any) -> tuple[Any, ...]:
    """The gradient of each input, None for those that aren't `wanted`. `made` is the result of a
    function that computes the wanted gradients."""
    found: list[Any] = [None] * len(results.inputs)
    for i, each in zip(wanted, made if isinstance(made, tuple) else (made,), strict=True):
        found[i] = each
    return tuple(found)


def no_backward(name: str) -> Callable[..., Any]:
    """The ``backward`` of an operator without a derivative: it raises."""

    def refuse(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError(
            f"{name}: expected an operator with a backward to differentiate, but none was given: "
            "pass torch_op(..., backward=)"
        )

    return refuse


def is_differentiable(results: Results, position: int) -> bool:
    """Whether an argument is a tensor of floating point numbers."""
    return not results.is_scalar(position) and bool(
        torch_dtype(results, position).is_floating_point
    )


# ---- Batches -------------------------------------------------------------------------------------


def batching_rule(
    results: Results,
    operator: Callable[..., Any],
    batch: Callable[[tuple[bool, ...], Sequence[Any]], Callable[..., Any] | None],
) -> Callable[..., Any]:
    """The rule of ``torch.vmap``: one call of the operator for batches, which `batch` finds for the
    inputs that have the batch dimension; where there is no such operator, one call for each
    element."""

    def rule(info: Any, in_dims: Sequence[int | None], *values: Any) -> tuple[Any, Any]:
        whole = batch(tuple(dim is not None for dim in in_dims), values)
        if whole is None:
            made = _one_by_one(results, operator, info.batch_size, in_dims, values)
        else:
            returned = whole(
                *(
                    value.movedim(dim, 0) if dim else value
                    for value, dim in zip(values, in_dims, strict=True)
                )
            )
            made = list(returned) if isinstance(returned, tuple) else [returned]
        return results.returned(made), results.returned([0] * len(made))

    return rule


def _one_by_one(
    results: Results,
    operator: Callable[..., Any],
    size: int,
    in_dims: Sequence[int | None],
    values: Sequence[Any],
) -> list[Any]:
    """The outputs of a batch by a call for each element."""
    torch = imported("torch", "torch_op")
    if size == 0:
        return _empty_batch(results, in_dims, values)
    parts = [
        None if dim is None else value.unbind(dim)
        for value, dim in zip(values, in_dims, strict=True)
    ]
    each = [
        operator(
            *(
                value if part is None else part[index]
                for value, part in zip(values, parts, strict=True)
            )
        )
        for index in range(size)
    ]
    columns = [each] if len(results.outputs) == 1 else zip(*each, strict=True)
    return [torch.stack(column) for column in columns]


def _empty_batch(
    results: Results, in_dims: Sequence[int | None], values: Sequence[Any]
) -> list[Any]:
    """The outputs of a batch without elements."""
    one = [
        value if dim is None else value.new_empty(_without(value.shape, dim))
        for value, dim in zip(values, in_dims, strict=True)
    ]
    return [made.new_empty((0, *made.shape)) for made in empty_outputs(results, one)]


def _without(shape: Sequence[int], axis: int) -> list[int]:
    return [extent for at, extent in enumerate(shape) if at != axis % len(shape)]


# ---- Autocast ------------------------------------------------------------------------------------


def autocast_kernel(results: Results, overload: Any) -> Callable[..., Any]:
    """Under ``torch.autocast``, floating-point inputs are cast to the dtypes that the operator
    takes: it computes in those, as torch's own operators with a dtype of their own do."""
    torch = imported("torch", "torch_op")
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    wanted = [
        torch_dtype(results, at) if is_differentiable(results, at) else None
        for at in results.inputs
    ]

    def cast(*values: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(key):
            return overload(
                *(
                    value.to(dtype) if dtype is not None and value.is_floating_point() else value
                    for value, dtype in zip(values, wanted, strict=True)
                )
            )

    return cast
