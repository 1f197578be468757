"""Built functions as operations of JAX, with rules for ``jax.jit``, ``vmap`` and ``grad``.

::

    f(x, a, y)     ->     y = f.jax_op()(x, a)

      traced by JAX:  the function itself checks shapes and dtypes; those of its outputs follow
      run by XLA:     a custom call (minitvm.contrib.xla_call), without Python and without a copy
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from minitvm.contrib.built import Built
from minitvm.contrib.imported import imported
from minitvm.contrib.jax_derivative import Derivative, argument, differentiable
from minitvm.contrib.xla_call import TARGET, XlaCallee, handler
from minitvm.runtime.dtype import DType
from minitvm.runtime.module import Module
from minitvm.runtime.native import Once
from minitvm.runtime.packed_func import Function
from minitvm.tir.expr import Buffer
from minitvm.tir.functor import free_vars

_X64 = ("int64", "uint64", "float64")


def jax_op(function: Any, *, backward: Any = None) -> Callable[..., Any]:
    """A built function as an operation of JAX: it takes the inputs, by position or by name, and
    returns the outputs, one array or a tuple, as ``z = add.jax_op()(x, y)``.

    It may stand anywhere in a program of JAX: under ``jit``, ``vmap``, ``lax.scan``, ``lax.cond``,
    and with a `backward` under ``grad``. On the CPU, XLA calls the machine code, without a copy and
    without the GIL. Where JAX has no FFI, and on other platforms, it calls Python back. A number (a
    ``te.var`` among the arguments) may be a Python number or a traced array without dimensions; a
    number on which a shape depends has to be a Python ``int``.

    Parameters
    ----------
    function
        A function of ``build``, or a module, whose first function counts.
    backward
        The derivative of the operation; by default it has none.

        - ``backward(inputs, outputs, gradients)`` returns a tuple with the gradient of each input,
          None for an input without a gradient. `inputs` is a tuple; `outputs` is the result of the
          operation, and `gradients` its gradient.
        - A function of ``build``. It takes the inputs; if it has parameters for them, the outputs
          of the operation; then the gradients of the outputs. It returns the gradients of the
          inputs that are arrays of floats, in order.

    Raises
    ------
    ImportError
        When jax isn't installed.
    TypeError
        When `function` doesn't come from ``build`` or takes an opaque pointer; when a built
        `backward` has other arguments.

    Notes
    -----
    The machine code stays in memory until the process ends: a program that JAX has compiled may run
    at any time.
    """
    jax = imported("jax", "jax_op")
    results = Built(function)
    for position in results.inputs:
        if results.dtype(position).is_handle:
            raise TypeError(
                f"{argument(results, position)}: expected an array or a number, which JAX has, got "
                "an opaque pointer: build the function without that argument"
            )
    traced = _Traced(jax, results)
    run = differentiable(results, traced, _static(results), _derivative(results, backward))

    def operation(*args: Any, **kwargs: Any) -> Any:
        return run(*map(traced.operand, results.inputs, results.bind(args, kwargs)))

    operation.__name__ = operation.__qualname__ = results.name
    operation.__doc__ = function.__doc__
    if _sizes(results):
        return operation  # jax.jit would trace the numbers that determine shapes
    compiled: Callable[..., Any] = jax.jit(operation)
    return compiled


def _sizes(results: Built) -> set[int]:
    """The positions of the numbers on which a shape depends."""
    buffers = [param for param in results.params if isinstance(param, Buffer)]
    used = {var for buffer in buffers for extent in buffer.sizes for var in free_vars(extent)}
    return {position for position in results.inputs if results.params[position] in used}


# -- what JAX traces ------------------------------------------------------------------------------


@final
class _Traced:
    """The operation while JAX traces it: inputs by position become outputs."""

    def __init__(self, jax: Any, results: Built) -> None:
        self._jax = jax
        self._results = results
        self._sizes = _sizes(results)
        self._run = _run(jax, results)

    def operand(self, position: int, value: Any) -> Any:
        """An input: an array, a number without dimensions, or an ``int`` that gives a size.

        Raises
        ------
        TypeError
            When the value is something else, or JAX lacks the dtype.
        """
        results, where = self._results, argument(self._results, position)
        is_number = results.is_scalar(position)
        if position in self._sizes:
            if isinstance(value, self._jax.core.Tracer):
                raise TypeError(
                    f"{where}: expected a Python int, since a shape depends on it, got a traced "
                    "value: name it in static_argnames of jax.jit"
                )
            return int(value)
        if isinstance(value, bool | int | float | np.ndarray | np.generic):
            value = self._jax.numpy.asarray(value)
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            kind = type(value).__name__
            expected = "a number" if is_number else "an array of JAX or numpy"
            raise TypeError(f"{where}: expected {expected}, got {kind}")
        if is_number and value.shape:
            raise TypeError(f"{where}: expected a number, got an array of shape {value.shape}")
        return value

    def __call__(self, *values: Any) -> Any:
        results = self._results
        for position in (*results.inputs, *results.outputs):
            self._refuse_64_bits(position)
        shapes = results.shapes(values)
        self._check(values, shapes)
        kinds = [self._dtype(position) for position in results.outputs]
        outputs = [
            self._jax.ShapeDtypeStruct(shape, kind)
            for shape, kind in zip(shapes, kinds, strict=True)
        ]
        passed = list(map(self._as_passed, results.inputs, values))
        return results.returned(self._batched(values, outputs, passed))

    def _batched(
        self, values: Sequence[Any], outputs: Sequence[Any], passed: Sequence[Any]
    ) -> Sequence[Any]:
        """Runs the function; under ``jax.vmap``, the function for the whole batch."""
        inputs = self._results.inputs
        given = [place for place, at in enumerate(inputs) if at not in self._sizes]
        if not given:
            return self._run(outputs, passed)

        def one(*operands: Any) -> tuple[Any, ...]:
            now = dict(zip(given, operands, strict=True))
            return tuple(self._run(outputs, [now.get(i, each) for i, each in enumerate(passed)]))

        def batch(size: int, batched: Sequence[bool], *operands: Any) -> tuple[Any, Any]:
            flags = dict(zip(given, batched, strict=True))
            now = dict(zip(given, operands, strict=True))
            whole = [now.get(i, each) for i, each in enumerate(values)]
            made = self._batch([flags.get(i, False) for i in range(len(values))], whole)
            if made is None:  # the handler calls the function for each element
                each = self._jax.vmap(one, [0 if has else None for has in batched])
                made = each(*operands)
            return made, (True,) * len(outputs)

        run = self._jax.custom_batching.custom_vmap(one)
        run.def_vmap(batch)
        made: Sequence[Any] = run(*(passed[place] for place in given))
        return made

    def _batch(self, batched: Sequence[bool], values: Sequence[Any]) -> tuple[Any, ...] | None:
        """The outputs for a batch, computed by the function for batches; None where there is no
        such function."""
        results = self._results
        if results.batches is None:
            return None
        for position, has, value in zip(results.inputs, batched, values, strict=True):
            if has and results.is_scalar(position) and not self._has_array_of(position, value):
                return None
        module = results.batches.function(batched)
        if module is None:
            return None
        given = [
            value.astype(self._dtype(position)) if has else value
            for position, has, value in zip(results.inputs, batched, values, strict=True)
        ]
        made = _Traced(self._jax, Built(module))(*given)
        return made if isinstance(made, tuple) else (made,)

    def _has_array_of(self, position: int, value: Any) -> bool:
        """Whether an array of numbers may have the dtype of a number of the function."""
        dtype = self._dtype(position)
        if str(dtype) in _X64 and not self._jax.config.jax_enable_x64:
            return False
        return bool(np.issubdtype(dtype, np.floating) or np.can_cast(value.dtype, dtype, "safe"))

    def _dtype(self, position: int) -> Any:
        return self._jax.numpy.dtype(str(self._results.dtype(position)))

    def _refuse_64_bits(self, position: int) -> None:
        dtype = str(self._results.dtype(position))
        is_integer = self._results.is_scalar(position) and dtype != "float64"
        if dtype in _X64 and not is_integer and not self._jax.config.jax_enable_x64:
            raise TypeError(
                f"{argument(self._results, position)}: expected JAX to have dtype {dtype}, got "
                "jax_enable_x64 == False: jax.config.update('jax_enable_x64', True)"
            )

    def _check(self, values: Sequence[Any], shapes: Sequence[tuple[Any, ...]]) -> None:
        """Lets the function check all properties of the inputs except their memory. Sizes that JAX
        doesn't know (``jax.export.symbolic_shape``) are checked when the program runs."""
        results = self._results
        given = [
            self._described(position, value)
            for position, value in zip(results.inputs, values, strict=True)
        ]
        given += [
            (shape, results.dtype(position))
            for position, shape in zip(results.outputs, shapes, strict=True)
        ]
        sizes = [size for each in given if isinstance(each, tuple) for size in each[0]]
        if all(isinstance(size, int) for size in sizes):
            count = len(results.inputs)
            results.function.check(*results.arguments(given[:count], given[count:]))

    def _described(self, position: int, value: Any) -> Any:
        """An input for :meth:`Function.check`; for a number, a number of its kind."""
        if isinstance(value, int):
            return value
        if not self._results.is_scalar(position):
            return tuple(value.shape), DType.of(str(value.dtype))
        kind = np.dtype(value.dtype).kind
        if kind not in "biu" and not self._jax.numpy.issubdtype(value.dtype, np.floating):
            raise TypeError(
                f"{argument(self._results, position)}: expected a number, got one of {value.dtype}"
            )
        return 0 if kind in "biu" else 0.0

    def _as_passed(self, position: int, value: Any) -> Any:
        """An input as the handler reads it: numbers are converted to one of a few types."""
        numpy = self._jax.numpy
        dtype = self._results.dtype(position)
        if not self._results.is_scalar(position):
            return value
        if dtype.is_float:
            return numpy.asarray(value, "float64" if str(dtype) == "float64" else "float32")
        value = numpy.asarray(value)
        if str(value.dtype) in ("int32", "uint32", "int64"):
            return value
        return value.astype("int64" if str(value.dtype) == "uint64" else "int32")


# -- what runs ------------------------------------------------------------------------------------

_Run = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]


def _run(jax: Any, results: Built) -> _Run:
    """The function that runs the custom call: from the specifications of the outputs, and the
    inputs, to the outputs."""
    called_back = _called_back(jax, results)
    if not hasattr(jax, "ffi"):
        return called_back
    callee = XlaCallee.of(results)
    _register()

    def call(outputs: Sequence[Any], inputs: Sequence[Any]) -> Sequence[Any]:
        # Batched operands get dimensions in front, of extent 1 where all elements share them.
        run = jax.ffi.ffi_call(TARGET, outputs, vmap_method="expand_dims")
        made: Sequence[Any] = run(*inputs, function=results.name, key=np.int64(callee.key))
        return made

    def run(outputs: Sequence[Any], inputs: Sequence[Any]) -> Sequence[Any]:
        if jax.default_backend() == "cpu":
            return call(outputs, inputs)
        made: Sequence[Any] = jax.lax.platform_dependent(
            *inputs,
            cpu=lambda *now: list(call(outputs, now)),
            default=lambda *now: list(called_back(outputs, now)),
        )
        return made

    return run


@Once
def _register() -> None:
    jax = imported("jax", "jax_op")
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handler()), platform="cpu")


def _called_back(jax: Any, results: Built) -> _Run:
    """The same as the custom call, by Python code that the program of JAX calls back."""

    def compute(outputs: Sequence[Any], values: Sequence[Any]) -> tuple[Any, ...]:
        made = [np.empty(spec.shape, spec.dtype) for spec in outputs]
        inputs = [
            np.asarray(value).item() if results.is_scalar(position) else np.asarray(value)
            for position, value in zip(results.inputs, values, strict=True)
        ]
        results.function(*results.arguments(inputs, made))
        return tuple(made)

    def run(outputs: Sequence[Any], inputs: Sequence[Any]) -> Sequence[Any]:
        made: Sequence[Any] = jax.pure_callback(
            lambda *now: compute(outputs, now), tuple(outputs), *inputs, vmap_method="sequential"
        )
        return made

    return run


# -- gradients ------------------------------------------------------------------------------------


def _derivative(results: Built, backward: Any) -> Derivative | None:
    """The derivative for the `backward` that a user gives."""
    if backward is None or isinstance(backward, Derivative):
        return backward
    rule = _built_rule(results, backward) if _is_built(backward) else backward
    if not callable(rule):
        kind = type(backward).__name__
        raise TypeError(f"{results.name}: backward: expected a function, got {kind}")
    return Derivative(lambda inputs, outputs, gradients, _: rule(inputs, outputs, gradients))


def _static(results: Built) -> list[int]:
    """The places, among the inputs, of the numbers that JAX doesn't see."""
    sizes = _sizes(results)
    return [place for place, position in enumerate(results.inputs) if position in sizes]


def _is_built(backward: Any) -> bool:
    return isinstance(backward, Function | Module)


def _built_rule(results: Built, backward: Any) -> Callable[..., Any]:
    """A built function as the rule of a gradient."""
    found = Built(backward)
    operation = jax_op(backward)
    floats = [
        position
        for position in results.inputs
        if results.dtype(position).is_float and not results.is_scalar(position)
    ]
    least = len(results.inputs) + len(results.outputs)
    most = least + len(results.outputs)
    if len(found.inputs) not in (least, most):
        raise TypeError(
            f"{found.name}: expected the {len(results.inputs)} inputs of {results.name}, its "
            f"outputs or not, and {len(results.outputs)} gradients, so {least} or {most} inputs, "
            f"got {len(found.inputs)}"
        )
    if len(found.outputs) != len(floats):
        names = ", ".join(results.names[position] for position in floats)
        raise TypeError(
            f"{found.name}: expected {len(floats)} outputs, the gradients of {names}, got "
            f"{len(found.outputs)}"
        )

    def rule(inputs: Sequence[Any], outputs: Any, gradients: Any) -> list[Any]:
        parts = (outputs, gradients) if len(results.outputs) > 1 else ((outputs,), (gradients,))
        kept = parts[0] if len(found.inputs) == most else ()
        made = operation(*inputs, *kept, *parts[1])
        made = made if len(floats) > 1 else (made,)
        by_position = dict(zip(floats, made, strict=True))
        return [by_position.get(position) for position in results.inputs]

    return rule
