"""The programs from which a ufunc's kernels are built, for all operands and for special forms.

A program of constant extents is computed by loops that are unrolled and vectorised as a whole: for
small cores this is many times as fast as a program of any extents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from minitvm.contrib.built import Built
from minitvm.driver.build import build
from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.te.operation import compute, placeholder, var
from minitvm.te.python_function import inputs_of
from minitvm.te.schedules.schedule import create_schedule
from minitvm.te.tensor import Tensor
from minitvm.te.vmap import vmap
from minitvm.tir.depth import deep_expressions
from minitvm.tir.expr import Buffer, IntImm, Var
from minitvm.tir.structural_equal import structural_equal
from minitvm.ufuncs.chain import Kind, chain
from minitvm.ufuncs.kernels import Kernel, Operand
from minitvm.ufuncs.loop import Loop
from minitvm.ufuncs.loop_text import ACCUMULATE, ANY, EVERY, REDUCE, UPDATE
from minitvm.ufuncs.signature import Signature
from minitvm.variants.in_place import can_run_in_place

# Raised by functions that have a program for all operands, but not for a special form.
_NO_PROGRAM = (CompileError, TypeError, ValueError)
_CHAINS = {REDUCE: Kind.REDUCE, ACCUMULATE: Kind.ACCUMULATE, UPDATE: Kind.UPDATE}


@final
class Elementwise:
    """A Python function of numbers as the loop of a ufunc, for the dtypes of its parameters."""

    def __init__(self, name: str, function: Callable[..., Any], dtypes: Sequence[DType]) -> None:
        self._name, self._function, self._dtypes = name, function, dtypes
        self._base = self._built(0)
        count = len(dtypes), len(self._base.outputs)
        self._signature = Signature("", ((),) * count[0], ((),) * count[1])

    def loop(self) -> Loop:
        buffers = _buffers(self._base)
        dtypes = [each.dtype for each in buffers]
        may_chain = len(dtypes) == 3 and len(self._dtypes) == 2 and dtypes[0] == dtypes[2]
        base = _kernel(self._base, self._signature)
        numpy_dtypes = [each.to_numpy() for each in dtypes]
        return Loop(self._signature, base, numpy_dtypes, self._made, may_chain)

    def _made(self, form: int, extents: tuple[int, ...]) -> Kernel | None:
        try:
            if form in _CHAINS:
                return self._chain(form)
            return _kernel(self._built(form), self._signature, form)
        except _NO_PROGRAM:
            return None

    def _built(self, shared: int) -> Built:
        """The function on vectors; an input whose bit in `shared` is set is a single number."""
        extent = var("n")
        count = len(self._dtypes)
        shapes = [() if shared >> i & 1 else (extent,) for i in range(count)]
        inputs = _placeholders(self._function, shapes, self._dtypes)

        def element(i: Any) -> Any:
            made = self._function(*(x[i] if x.ndim else x[()] for x in inputs))
            if made is None or (isinstance(made, tuple) and not made):
                raise CompileError(
                    f"{self._name}: expected a function that returns an expression, or a tuple of "
                    f"several, got {made}: does it lack a `return`?"
                )
            return made

        made = compute((extent,), element, name=self._name)
        return _built(self._name, inputs, [made] if isinstance(made, Tensor) else list(made))

    def _chain(self, form: int) -> Kernel:
        own, other = self._dtypes
        first = Operand(0, 2, (), 0, form == UPDATE, own, True)
        operands = [first, Operand(1, 1, (), 0, True, other, False)]
        if form == ACCUMULATE:
            operands[0] = Operand(0, 0, (), 0, False, own, False)
            operands.append(Operand(2, 2, (), 0, True, own, True))
        program = chain(self._function, self._dtypes, self._name, _CHAINS[form])
        function = build(program, name=self._name).entry_func
        return Kernel(function, operands, form, (), is_chain=True)


@final
class Batched:
    """A Python function of tensors as the loop of a generalised ufunc."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        signature: Signature,
        dtypes: Sequence[DType],
    ) -> None:
        self._name, self._function = name, function
        self._signature, self._dtypes = signature, dtypes

    def loop(self) -> Loop:
        base = self._built(0, [ANY] * len(self._signature.names))
        dtypes = [each.dtype.to_numpy() for each in _buffers(base)]
        kernel = _kernel(base, self._signature)
        return Loop(self._signature, kernel, dtypes, self._made, apart=_apart(base))

    def _made(self, form: int, extents: tuple[int, ...]) -> Kernel | None:
        names = zip(self._signature.names, extents, strict=True)
        if not form and all(extent == ANY or name.isdigit() for name, extent in names):
            return None  # the kernel for all extents serves
        try:
            return _kernel(self._built(form, extents), self._signature, form, extents)
        except _NO_PROGRAM:
            return None

    def _built(self, shared: int, extents: Sequence[int]) -> Built:
        """The function's program for a batch; an input whose bit in `shared` is set is the same for
        all elements."""
        name, signature = self._name, self._signature
        sizes: dict[str, Any] = {
            each: int(each) if each.isdigit() else var(each) if extent == ANY else extent
            for each, extent in zip(signature.names, extents, strict=True)
        }
        shapes = [tuple(sizes[each] for each in dims) for dims in signature.operands]
        inputs = _placeholders(self._function, shapes[: len(signature.inputs)], self._dtypes)
        made = self._function(*inputs)
        outputs = list(made) if isinstance(made, tuple | list) else [made]
        _check_outputs(name, signature, outputs, shapes[len(signature.inputs) :])
        chosen = [each for i, each in enumerate(inputs) if not shared >> i & 1]
        batch_outputs, given = vmap(outputs, chosen, var("batch"))
        mapped = dict(zip(chosen, given, strict=True))
        return _built(name, [mapped.get(each, each) for each in inputs], batch_outputs)


@final
class BuiltLoop:
    """A built function as the loop of a generalised ufunc. Its arguments have the core dimensions
    of the signature, and may have a batch dimension in front."""

    def __init__(self, results: Built, signature: Signature) -> None:
        self._results, self._signature = results, signature

    def loop(self) -> Loop:
        results, signature = self._results, self._signature
        buffers = _buffers(results)
        batched = _is_batched(results, signature, buffers)
        make = None if batched or results.batches is None else self._made
        base = make and make(0, ())
        dtypes = [each.dtype.to_numpy() for each in buffers]
        kernel = base or _kernel(results, signature)
        return Loop(signature, kernel, dtypes, make, apart=_apart(results))

    def _made(self, form: int, extents: tuple[int, ...]) -> Kernel | None:
        results, signature = self._results, self._signature
        shared = [bool(form >> i & 1) for i in range(len(results.inputs))]
        module = results.batches.function([not each for each in shared])
        if module is None:
            return None
        every = (EVERY,) * len(signature.names)
        return _kernel(Built(module), signature, form, every)


def _kernel(
    results: Built, signature: Signature, form: int = 0, extents: Sequence[int] = ()
) -> Kernel:
    """The kernel of a function whose arguments have the core dimensions of a signature, some of
    them with a batch dimension in front."""
    numbers = {name: i for i, name in enumerate(signature.names, 1)}  # 0 is the batch
    positions = (*results.inputs, *results.outputs)
    ranks = [len(names) for names in signature.operands]
    operands = []
    for i, (position, names) in enumerate(zip(positions, signature.operands, strict=True)):
        buffer = results.params[position]
        assert isinstance(buffer, Buffer)
        operands.append(
            Operand(
                position,
                i,
                tuple(map(numbers.__getitem__, names)),
                len(positions) + sum(ranks[:i]),
                buffer.ndim > len(names),
                buffer.dtype,
                i >= len(signature.inputs),
            )
        )
    return Kernel(results.function, operands, form, extents)


def _apart(results: Built) -> list[int]:
    """The numbers, from 0 on, of the outputs that can't take the place of each input."""
    func = results.function.program.lowered[results.name]
    with deep_expressions(results.name):
        return [
            i
            for i, output in enumerate(results.outputs)
            if not all(can_run_in_place(func, output, each) for each in results.inputs)
        ]


def _check_outputs(
    name: str, signature: Signature, outputs: Sequence[Any], expected: Sequence[Any]
) -> None:
    """Checks the outputs of a function against the shapes that the signature gives them."""
    if len(outputs) != len(expected) or not all(isinstance(each, Tensor) for each in outputs):
        made = outputs[0] if len(outputs) == 1 else outputs
        raise ValueError(
            f"{name}: expected {len(expected)} tensors as the result, as '{signature.text}' has "
            f"outputs, got {made!r}"
        )
    for i, (output, shape) in enumerate(zip(outputs, expected, strict=True)):
        wanted = placeholder(shape).shape
        same = len(wanted) == len(output.shape) and all(
            structural_equal(*pair) for pair in zip(wanted, output.shape, strict=True)
        )
        if not same:
            raise ValueError(
                f"{name}: output {i}: expected shape {_listed(wanted)}, as in "
                f"'{signature.text}', got {_listed(output.shape)}"
            )


def _buffers(results: Built) -> list[Buffer]:
    """The arguments of a function in numpy's order.

    Raises
    ------
    TypeError
        When one is a number, or numpy lacks its dtype.
    """
    buffers: list[Buffer] = []
    for position in (*results.inputs, *results.outputs):
        param = results.params[position]
        where = f"{results.name}: argument {position} '{results.names[position]}'"
        if not isinstance(param, Buffer):
            raise TypeError(
                f"{where}: expected an array, got a number, which no ufunc has: make it a "
                "placeholder, with '()' in the signature"
            )
        try:
            param.dtype.to_numpy()
        except (TypeError, ValueError):
            raise TypeError(f"{where}: expected a dtype of numpy, got {param.dtype}") from None
        if param.dtype.is_bfloat16:
            raise TypeError(f"{where}: expected a dtype of numpy, got {param.dtype}")
        buffers.append(param)
    return buffers


def _is_batched(results: Built, signature: Signature, buffers: Sequence[Buffer]) -> bool:
    """Whether all arguments have a dimension in front of the signature's dimensions."""
    more = {
        buffer.ndim - len(names) for buffer, names in zip(buffers, signature.operands, strict=True)
    }
    first = {buffer.shape[0] for buffer in buffers if buffer.ndim}
    batched = more == {1}
    if not (more == {0} or (batched and len(first) == 1 and isinstance(next(iter(first)), Var))):
        shapes = ", ".join(_listed(buffer.shape) for buffer in buffers)
        raise ValueError(
            f"{results.name}: expected arguments with the dimensions of '{signature.text}', or "
            f"with one variable for the batch in front of each, got shapes {shapes}"
        )
    known: dict[str, Any] = {}
    for buffer, names in zip(buffers, signature.operands, strict=True):
        for name, extent in zip(names, buffer.shape[batched:], strict=True):
            before = known.setdefault(name, extent)
            size = extent.value if isinstance(extent, IntImm) else None
            if (
                not structural_equal(before, extent)
                or (size is not None) != name.isdigit()
                or (size is not None and size != int(name))
            ):
                raise ValueError(
                    f"{results.name}: expected dimension '{name}' of '{signature.text}' to be "
                    f"{name if name.isdigit() else 'one variable'}, got {before} and {extent} in "
                    f"'{buffer.name}'"
                )
    return batched


def _placeholders(
    function: Callable[..., Any], shapes: Sequence[Any], dtypes: Sequence[DType]
) -> list[Tensor]:
    names = inputs_of("ufunc", function)
    return [placeholder(*each) for each in zip(shapes, dtypes, names, strict=True)]


def _listed(shape: Sequence[Any]) -> str:
    return f"({', '.join(map(str, shape))})"


def _built(name: str, inputs: list[Tensor], outputs: list[Tensor]) -> Built:
    schedule = create_schedule([each.op for each in outputs])
    return Built(build(schedule, [*inputs, *outputs], name=name))
