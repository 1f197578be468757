"""Built functions as operators of PyTorch, for torch.compile, autograd and torch.export."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

from minitvm.contrib.imported import imported
from minitvm.contrib.torch_autograd import register_autograd
from minitvm.contrib.torch_library import (
    Gradients,
    Recording,
    autocast_kernel,
    batching_rule,
    empty_outputs,
    fake_kernel,
    gradients_of,
    is_differentiable,
    keep_all,
    no_backward,
    schema_of,
)
from minitvm.contrib.torch_plain import Call, kinds_of_calls, transformed_calls, watched_calls
from minitvm.contrib.torch_recorded import recorded_calls
from minitvm.contrib.torch_vmap import batched_calls
from minitvm.runtime.lock import ForkLock
from minitvm.runtime.module import Module
from minitvm.runtime.packed_func import Function, PackedFunc
from minitvm.runtime.results import Results, results_of
from minitvm.runtime.torch_calls import PastDispatcher
from minitvm.tir.structural_equal import structural_equal

_Pair = tuple[Callable[..., Any], Callable[..., None]]
_Derivative = Gradients | _Pair


def register_torch_op(
    tvm_func: Callable[..., Any],
    name: str,
    backward: Any = None,
    setup_context: Callable[..., None] | None = None,
) -> TorchOperator:
    """A built function as a custom operator of torch (``torch.library``): it takes the inputs and
    returns the outputs, ``add(x, y, z) -> z = op(x, y)``, also under ``torch.compile`` with
    ``fullgraph=True``, ``torch.export``, ``torch.vmap`` and autograd. ``f.torch_op(name)`` is the
    same.

    Parameters
    ----------
    tvm_func
        A function of ``build``.
    name
        The operator's name, with a namespace: ``"mine::add"`` is also ``torch.ops.mine.add``.
    backward
        The derivative of the operator; by default it has none.

        - ``backward(ctx, *gradients of the outputs)`` returns the gradients of the inputs, None for
          one that has none, as in ``torch.autograd.Function``.
        - A function of ``build``. It takes the inputs; if it has parameters for them, the outputs
          of the operator; then the gradients of the outputs. It returns the gradients of the
          inputs. Only floating-point tensors have gradients.
    setup_context
        ``setup_context(ctx, inputs, output)`` keeps the values that a Python `backward` needs. By
        default ``ctx.saved_tensors`` are the tensors among the inputs, then the outputs.

    Raises
    ------
    ImportError
        When torch isn't installed.
    TypeError
        When `tvm_func` doesn't come from ``build``.
    ValueError
        When `name` has no namespace, or an operator of the name exists; when a `setup_context`
        comes without a Python `backward`; when the arguments of a built `backward` don't fit; when
        torch has no type for an argument.
    """
    torch = imported("torch", "register_torch_op")
    results = results_of(tvm_func)
    namespace, _, own = str(name).partition("::")
    if not _is_word(namespace) or not _is_word(own):
        raise ValueError(f"torch_op: expected a name such as 'mine::add', got {name!r}")
    if name in _operators or hasattr(getattr(torch.ops, namespace), own):
        raise ValueError(f"torch_op: expected a new name, got '{name}', which exists")
    if setup_context is not None and (backward is None or _is_built(backward)):
        found = "none" if backward is None else "a built function"
        raise ValueError(f"torch_op: expected a Python backward for setup_context, got {found}")
    schema_of(results)  # this refuses arguments for which torch has no type
    derivative = _derivative(results, name, backward, setup_context)
    function = tvm_func.entry_func if isinstance(tvm_func, Module) else tvm_func
    made = _new_operator(function, name, derivative)
    made.given = (backward, setup_context)
    return made


def _new_operator(function: Any, name: str, derivative: _Derivative | None) -> TorchOperator:
    torch = imported("torch", "register_torch_op")
    schema = schema_of(results_of(function))
    made = _operators[name] = TorchOperator(torch, function, name, schema, derivative)
    return made


# The operators by name. They live as long as torch knows them: to the end of the process.
_operators: dict[str, TorchOperator] = {}
_making = ForkLock()  # one thread makes an operator for a batch at a time


def _is_word(text: str) -> bool:
    return text.isidentifier() and text.isascii()


def _is_built(function: Any) -> bool:
    return isinstance(function, PackedFunc | Module)


@final
class TorchOperator(PastDispatcher):
    """An operator of torch that a built function computes.

    It takes the inputs by position or by name, and returns the outputs: a tensor, or a tuple.
    ``out=`` gives the output, or a tuple of the outputs, to write instead.

    Where only the result is wanted, a call goes to the built function itself. Where the gradient is
    wanted as well, the call also goes to autograd. Where torch is tracing, batching, casting or
    profiling, the call goes through torch's dispatcher.

    Attributes
    ----------
    name
        The name in torch, as ``"mine::add"``.
    overload
        ``torch.ops.mine.add.default``, for functions of torch that take an operator.
    function
        The built function.
    """

    __slots__ = ("__weakref__", "_batched", "_batches", "_compute", "_derivative",
                 "_differentiated", "_is_transformed", "_is_watched", "_kind_of", "_library",
                 "_recorded", "_results", "function", "given", "name", "overload")  # fmt: skip

    def __init__(
        self,
        torch: Any,
        function: Any,
        name: str,
        schema: str,
        derivative: _Derivative | None,
    ) -> None:
        namespace, _, own = name.partition("::")
        results = results_of(function)
        self.name = name
        self.function: Function = function
        self.given: tuple[Any, Any] = (None, None)
        self._results = results
        self._kind_of = kinds_of_calls(torch)
        self._is_transformed = transformed_calls(torch)
        self._is_watched = watched_calls(torch)
        self._derivative = derivative
        self._batches: dict[tuple[bool, ...], TorchOperator | None] = {}
        self._differentiated: Any = None
        self._batched: Callable[[Sequence[Any]], Any] | None = None
        self._compute = self._recorded = _returning(function, results)
        self._library = library = torch.library.Library(namespace, "FRAGMENT")
        library.define(own + schema, tags=(torch.Tag.pt2_compliant_tag,))
        self.overload = getattr(getattr(torch.ops, namespace), own).default
        takes_tensors = any(not results.is_scalar(at) for at in results.inputs)
        key = "CPU" if takes_tensors else "CompositeExplicitAutograd"
        library.impl(own, self._compute, key)
        torch.library.register_fake(name, fake_kernel(function, results), lib=library)
        if derivative is not None:
            pair = _registered_pair(derivative, results)
            self._register_gradients(torch, library, derivative)
        if any(is_differentiable(results, at) for at in results.inputs):
            library.impl(own, autocast_kernel(results, self.overload), "AutocastCPU")
        if takes_tensors:
            below = batching_rule(results, self.overload, self._batch_below)
            torch.library.register_vmap(name, below, lib=library)
            rule = batching_rule(results, self, self._batch)
            self._batched = batched_calls(torch, self, rule)
            if derivative is not None:
                push = None
                if isinstance(derivative, Gradients):
                    push = derivative.forward_mode(results)
                self._differentiated = _for_transforms(torch, self.overload, pair, push, rule)
        self._let_pass(torch, self._compute)

    def _register_gradients(self, torch: Any, library: Any, derivative: _Derivative) -> None:
        pair = _registered_pair(derivative, self._results)
        own, compute = self.name.partition("::")[2], self._compute
        if not isinstance(derivative, Gradients) or derivative.recording is None:
            register_autograd(torch, library, self.name, *pair, compute, None)
            self._recorded = _for_autograd(torch, own, compute, pair)
            return
        given = (torch, own, self._results, derivative)
        below = recorded_calls(*given, _below(torch, self.overload), partial(_below_of, torch))
        register_autograd(torch, library, self.name, *pair, compute, below.apply)
        function = recorded_calls(*given, compute, lambda recording: recording.run)
        self._recorded = _applied(torch, function)

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        # Where there is compiled code, it is called in place of this method; torch.compile traces
        # this one.
        return self._call_slowly(*args, out=out, **kwargs)

    def _call_slowly(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """A call made by Python code, which defines the meaning of calls."""
        if out is not None:
            return self._into(out, args, kwargs)
        kind = Call.WATCHED if kwargs else self._kind_of(args)
        if kind is Call.WATCHED:
            return self._dispatched(args, kwargs)
        try:
            return self._compute(*args) if kind is Call.PLAIN else self._recorded(*args)
        except BufferError:  # of a lazy tensor, which torch resolves
            return self.overload(*args)

    def record(self, *args: Any) -> Any:
        """A call whose caller knows that the arguments are plain tensors and numbers, and that
        autograd records the call."""
        if self._is_watched():
            return self._dispatched(args, {})
        return self.record_unwatched(*args)

    def record_unwatched(self, *args: Any) -> Any:
        """As :meth:`record`, where nothing watches the running operators."""
        try:
            return self._recorded(*args)
        except BufferError:
            return self.overload(*args)

    def _dispatched(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not kwargs and self._is_transformed():
            made = NotImplemented if self._batched is None else self._batched(args)
            if made is not NotImplemented:
                return made
            if self._differentiated is not None:
                return self._differentiated.apply(*args)
        return self.overload(*args, **kwargs)

    def _into(self, out: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        results = self._results
        outputs = out if isinstance(out, tuple | list) else (out,)
        if len(outputs) != len(results.outputs):
            raise TypeError(
                f"{self.name}: out: expected {len(results.outputs)} tensors, got {len(outputs)}"
            )
        self.function(*results.arguments(results.bind(args, kwargs), outputs))
        return out

    def _batch(self, flags: tuple[bool, ...], values: Sequence[Any]) -> TorchOperator | None:
        """The operator for a batch of calls; the inputs with a flag have the batch dimension. None
        where there is no such operator, or where its calls need a derivative and have none."""
        is_function = self._derivative is None or isinstance(self._derivative, Gradients)
        if not is_function and self._kind_of(values) is not Call.PLAIN:
            return None
        if flags not in self._batches:
            with _making:
                if flags not in self._batches:
                    self._batches[flags] = _batch_of(self, flags)
        return self._batches[flags]

    def _batch_below(self, flags: tuple[bool, ...], values: Sequence[Any]) -> Any:
        """As :meth:`_batch`, for the rule that the dispatcher calls: the dispatcher has left the
        transform, which the operator itself would still see."""
        found = self._batch(flags, values)
        return None if found is None else found.overload

    @property
    def compute(self) -> Callable[..., Any]:
        """The function that computes the operator for plain tensors."""
        return self._compute

    @property
    def __name__(self) -> str:
        return self.name.partition("::")[2]

    @property
    def __signature__(self) -> inspect.Signature:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = [each.name for each in self.overload._schema.arguments]
        out = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None)
        return inspect.Signature([*(inspect.Parameter(name, kind) for name in names), out])

    def __repr__(self) -> str:
        return f"<TorchOperator {self.overload._schema}>"

    def __copy__(self) -> TorchOperator:
        return self

    def __deepcopy__(self, memo: object) -> TorchOperator:
        return self

    def __reduce__(self) -> tuple[Callable[..., TorchOperator], tuple[Any, ...]]:
        return _registered, (self.function, self.name, *self.given)


def _registered(function: Function, name: str, *given: Any) -> TorchOperator:
    """Unpickles an operator: the one of the name, if it computes the same.

    Raises
    ------
    ValueError
        When the name is that of another operator.
    """
    found = _operators.get(name)
    if found is None or not _is_same(found.function, function):
        return register_torch_op(function, name, *given)
    return found


def _is_same(a: Function, b: Function) -> bool:
    if a is b:
        return True
    programs: list[Any] = [a.program, b.program]
    first, second = (
        program.lowered[each.name] for program, each in zip(programs, (a, b), strict=True)
    )
    return structural_equal(first, second)


def _batch_of(operator: TorchOperator, flags: tuple[bool, ...]) -> TorchOperator | None:
    """The operator for a batch of an operator's calls."""
    program: Any = operator.function.program
    module = None if program.batches is None else program.batches.function(flags)
    if module is None:
        return None
    derivative = operator._derivative
    if isinstance(derivative, Gradients):
        derivative = derivative.batched(flags)
    name = f"{operator.name}_batch_{''.join('01'[flag] for flag in flags)}"
    return _new_operator(module.entry_func, name, derivative)


def _returning(function: Any, results: Results) -> Callable[..., Any]:
    """A built function that allocates its outputs in torch."""
    if any(not results.is_scalar(at) for at in results.inputs):
        made: Callable[..., Any] = function.returning()
        return made

    def compute(*values: Any) -> Any:  # only numbers, which don't show a library for the outputs
        outputs = empty_outputs(results, results.bind(values, {}))
        function(*results.arguments(values, outputs))
        return results.returned(outputs)

    return compute


# ---- Gradients -----------------------------------------------------------------------------------


def _for_autograd(
    torch: Any,
    name: str,
    compute: Callable[..., Any],
    derivative: tuple[Callable[..., Any], Callable[..., None]],
) -> Callable[..., Any]:
    """The operator as a ``torch.autograd.Function``, which takes a fraction of the dispatcher's
    time. It keeps the same tensors as the registered operator, and calls the same functions for
    gradients."""
    backward, setup_context = derivative

    def forward(ctx: Any, *args: Any) -> Any:
        made = compute(*args)
        setup_context(ctx=ctx, inputs=args, output=made)
        return made

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return _applied(torch, type(name, (torch.autograd.Function,), methods))


def _applied(torch: Any, function: Any) -> Callable[..., Any]:
    # The `apply` of torch's class would look for transforms of torch.func; here none is active.
    made: Callable[..., Any] = super(torch.autograd.Function, function).apply
    return made


def _below(torch: Any, overload: Any) -> Callable[..., Any]:
    """Calls an operator below autograd, to which torch has dispatched already."""

    def run(*args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return overload(*args)

    return run


def _below_of(torch: Any, recording: Recording) -> Callable[..., Any]:
    return _below(torch, recording.operator.overload)


def _for_transforms(
    torch: Any,
    overload: Any,
    derivative: _Pair,
    push: Callable[..., Any] | None,
    rule: Callable[..., Any],
) -> Any:
    """The operator for ``torch.func.grad`` and its kin, which take a ``torch.autograd.Function``
    but no operator of ``torch.library`` with a gradient, and for forward mode."""
    backward, setup_context = derivative
    methods = {
        "forward": lambda *args: overload(*args),
        "setup_context": setup_context,
        "backward": backward,
        "vmap": rule,
    }
    if push is not None:
        methods["jvp"] = push
    bases = (torch.autograd.Function,)
    return type("Differentiated", bases, {k: staticmethod(v) for k, v in methods.items()})


def _derivative(
    results: Results, name: str, backward: Any, setup_context: Callable[..., None] | None
) -> _Derivative | None:
    """The functions that torch calls for gradients; None where there is nothing to
    differentiate."""
    if isinstance(backward, Gradients):
        return backward
    if backward is None:
        differentiable = any(is_differentiable(results, at) for at in results.inputs)
        return (no_backward(name), _keep_nothing) if differentiable else None
    if _is_built(backward):
        return _built_derivative(results, name, backward)
    if not callable(backward):
        kind = type(backward).__name__
        raise TypeError(f"{name}: backward: expected a function, got {kind}")
    return backward, setup_context or keep_all


def _keep_nothing(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    pass


def _registered_pair(derivative: _Derivative, results: Results) -> _Pair:
    return derivative.registered(results) if isinstance(derivative, Gradients) else derivative


def _built_derivative(results: Results, name: str, backward: Any) -> Gradients:
    """The derivative that a built function computes: an operator of its own, so that torch can
    compile it as well."""
    given = results_of(backward)
    wanted = [i for i, at in enumerate(results.inputs) if is_differentiable(results, at)]
    heads = [i for i, at in enumerate(results.outputs) if is_differentiable(results, at)]
    count, inputs, outputs = len(given.inputs), len(results.inputs), len(results.outputs)
    with_outputs = count == inputs + outputs + len(heads)
    if count != inputs + len(heads) and not with_outputs:
        raise ValueError(
            f"{name}: backward: {given.name}: expected {inputs + len(heads)} inputs (the inputs, "
            f"then the gradients of the outputs) or {inputs + outputs + len(heads)} (with the "
            f"outputs between them), got {count}: {', '.join(given.names[i] for i in given.inputs)}"
        )
    if len(given.outputs) != len(wanted):
        raise ValueError(
            f"{name}: backward: {given.name}: expected {len(wanted)} outputs, the gradients of "
            f"{', '.join(results.names[results.inputs[i]] for i in wanted)}, got "
            f"{len(given.outputs)}"
        )
    operator = register_torch_op(backward, f"{name}_backward")

    def differentiate(
        values: Sequence[Any], grads: Sequence[Any], needed: Sequence[bool]
    ) -> tuple[Any, ...]:
        return gradients_of(results, wanted, operator(*values, *grads))

    return Gradients(differentiate, with_outputs)
