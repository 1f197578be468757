"""Operators: Python functions of tensors that are compiled for the arguments of their calls."""

from __future__ import annotations

import functools
import inspect
import os
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, final

from minitvm.driver.build import build
from minitvm.lowering.lower import lower
from minitvm.operators.arrays import Described, fixed, library_of, sample, writable
from minitvm.operators.cases import ChoosingOperator
from minitvm.operators.derivative import Derivative
from minitvm.operators.extents import Label
from minitvm.operators.jax_calls import RepeatedCalls, jax_operation
from minitvm.operators.parameters import Kind, Parameter, bind, parameters_of
from minitvm.operators.shapes import parse_shape
from minitvm.operators.signature import Signature, frozen, signature_of
from minitvm.operators.specialisation import Group, Specialisation
from minitvm.operators.torch_calls import (
    ModuleMethod,
    call_in_graph,
    graph_arguments,
    is_module,
    plain,
    records,
    torch_operator,
    varying,
)
from minitvm.operators.tracing import Traced, call, is_symbolic, trace
from minitvm.runtime.errors import CompileError
from minitvm.runtime.frameworks import is_tracer
from minitvm.runtime.module import Module
from minitvm.runtime.packed_func import Function
from minitvm.runtime.record import record
from minitvm.runtime.traced import is_read_by_torch, is_without_data, outside_of_programs
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.tensor import Tensor
from minitvm.tir.described import shown
from minitvm.tir.expr import Var
from minitvm.tir.stmt import IRModule

if TYPE_CHECKING:
    from minitvm.explanation.report import Explanation

# What stands in the place of a built function's method.
_OF_BUILDS = "; one build has it, f.build_for('float32[8]', ...).{}, without gradients"
_ADVICE = {
    "torch_op": ": an operator takes torch's tensors, under torch.compile and autograd, too"
    + _OF_BUILDS.format("torch_op(name)"),
    "jax_op": ": an operator takes JAX's arrays, under jax.jit, vmap and grad, too"
    + _OF_BUILDS.format("jax_op()"),
    "returning": ": an operator returns its outputs",
    "gufunc": ": decorate the function with @minitvm.gufunc('(n)->(n)')",
    "get_source": ": write f.source(x, ...), with arguments or their signature",
}
_MOST_ROUTES = 1024  # signatures known by a key; for others the build is searched at each call


@final
@record()
class Options:
    """The options of :func:`minitvm.jit`."""

    static: tuple[str, ...] = ()
    symbolic: tuple[str, ...] | None = None
    broadcast: bool = False
    name: str | None = None
    target: str | Target | None = None
    fp: str = "fast"
    release_gil: bool | None = None
    backward: Callable[..., Any] | None = None


@final
class Operator(ChoosingOperator):
    """A Python function of tensors, compiled for the arguments of its calls. Made by
    :func:`minitvm.jit`.

    A call takes arrays of one library and returns new arrays of that library, or it writes the
    arrays of ``out=``. A call with tensors of ``te`` returns the function's expression of them.
    """

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self._function = function
        self._options = options
        self.name = _name(function, options)
        self._parameters = parameters_of(function, self.name, options.static)
        self._variable = _letters(self.name, self._parameters, options.symbolic or ())
        by_name = any(each.is_keyword for each in self._parameters)
        self._positional = -1 if by_name else len(self._parameters)  # in a call with all arguments
        self._static = [i for i, p in enumerate(self._parameters) if p.kind is Kind.STATIC]
        self._groups: dict[tuple[object, ...], Group] = {}
        self._routes: dict[tuple[object, ...] | None, Specialisation] = {}
        self._repeated = RepeatedCalls()
        self._lock = threading.RLock()
        functools.update_wrapper(self, function)
        self._start(self._parameters)
        _operators.add(self)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self
        if is_read_by_torch():  # torch knows only methods of functions
            return partial(self, instance)
        made = ModuleMethod if is_module(instance) else types.MethodType
        return made(self, instance)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            called, advice = self.__dict__.get("name", "jit"), _ADVICE.get(name, "")
            raise AttributeError(
                f"{called}: expected an attribute of an operator, got {name!r}{advice}",
                name=name,
                obj=self,
            )

    def __repr__(self) -> str:
        return f"<Operator {self.name}{self.__signature__}>"

    def __copy__(self) -> Operator:
        return self

    def __deepcopy__(self, memo: object) -> Operator:
        return self

    def __reduce__(self) -> str:
        return str(getattr(self, "__qualname__", self.name))  # by name, as functions are pickled

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function)

    # -- Looking inside ----------------------------------------------------------------------------

    def build_for(self, *args: Any, **kwargs: Any) -> Module:
        """The built function for some arguments. It takes its outputs as arguments.

        An argument is an array; an object with its ``shape`` and ``dtype``; or a text such as
        ``"float32[64 768]"``. The extents are constants, except for the letters in ``symbolic``.
        """
        signature = self._signature(self._given(args, kwargs))
        return self._specialisation(signature, exact=True).module

    def lower(self, *args: Any, **kwargs: Any) -> IRModule:
        """The plain loops for some arguments, without the automatic schedule: see
        :meth:`build_for`."""
        signature = self._signature(self._given(args, kwargs))
        traced = self._traced(signature, self._variables(signature))
        outputs = list(traced.outputs)
        program = traced.schedule or outputs
        return lower(program, [*traced.inputs.values(), *outputs], name=self.name)

    def source(self, *args: Any, kind: str = "ll", **kwargs: Any) -> str:
        """The text of the code that a call runs: ``"ll"``, ``"asm"`` or ``"tir"``. For the
        arguments see :meth:`build_for`."""
        return self._chosen(args, kwargs).module.get_source(kind)

    def explain(self, *args: Any, measure: bool = True, **kwargs: Any) -> Explanation:
        """Explains the code that a call runs: see :func:`minitvm.explain`. For the arguments see
        :meth:`build_for`."""
        # Imported on demand, since few programs ask for it.
        from minitvm.explanation.explain import explain

        values = self._given(args, kwargs)
        found = self._specialisation(self._signature(values))
        given = [values[position] for position in found.traced.inputs]
        inputs = [sample(each) if isinstance(each, Described) else each for each in given]
        made = found.returning(*inputs)
        outputs = made if isinstance(made, tuple) else (made,)
        return explain(found.module, *inputs, *map(writable, outputs), measure=measure)

    def warm_up(self, signatures: Iterable[Any], *, strided: bool = True) -> None:
        """Builds ahead, so that calls with such arguments compile nothing.

        Parameters
        ----------
        signatures
            Each a tuple of arguments, a dict of them by name, or the only argument: see
            :meth:`build_for`.
        strided
            Whether arrays that aren't compact are expected as well.
        """
        if not isinstance(signatures, Iterable) or isinstance(signatures, str):
            raise TypeError(
                f"{self.name}: warm_up: expected a list of signatures, as [('float32[8]',)], got "
                f"{shown(signatures)}"
            )
        for each in signatures:
            named = dict(each) if isinstance(each, Mapping) else {}
            args = each if isinstance(each, tuple | list) else () if named else (each,)
            function = self.build_for(*args, **named).entry_func
            if strided and isinstance(function, Function):
                function.prepare_strided()

    @property
    def specialisations(self) -> tuple[Specialisation, ...]:
        """The builds so far."""
        return tuple(each for group in self._groups.values() for each in group.builds)

    def clear(self) -> None:
        """Forgets all builds."""
        with self._lock:
            self._groups = {}
            self._forget_routes()

    # -- Calls -------------------------------------------------------------------------------------

    def __call__(self, /, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        # Where there is compiled code, it is called in place of this method; torch.compile traces
        # this one.
        return self._call_slowly(*args, out=out, **kwargs)

    def _call_slowly(self, /, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """A call made by Python code, which defines the meaning of calls. torch.compile may also
        begin to trace here, where compiled code has handed over a call."""
        if is_read_by_torch():
            if out is not None:  # torch's operators return new tensors
                return outside_of_programs(self.__call__)(*args, out=out, **kwargs)
            return call_in_graph(*graph_arguments(self, args, kwargs))
        return self._called(args, kwargs, out)

    def _called(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Any:
        values: Sequence[Any] = args
        if kwargs or len(args) != self._positional:
            values = bind(self.name, self._parameters, args, kwargs)
        key = self._key(values)
        try:
            found = self._routes.get(key)
        except TypeError:  # sizes that torch doesn't fix have no hash
            key = found = None
        signature = None
        if found is None:
            if any(map(is_symbolic, values)):
                return self._inlined(values, out)
            values = [fixed(v) if i in self._static else v for i, v in enumerate(values)]
            signature = self._signature(values)
            found = self._specialisation(signature, varying=varying(signature.extents, values))
            if any(map(is_tracer, values)):
                return self._traced_by_jax(found, values, out)
            if out is None and is_without_data(values):
                return self._recorded(found, _inputs(found, values))
        inputs = _inputs(found, values)
        if out is not None:
            self._check_out(values, out)
            made = found.returning(*inputs, out=out)
        elif records(inputs):
            made = self._recorded(found, inputs)
        else:
            made = None
            if signature is None:
                made = self._repeated.run(key, found.module, found.derivative, inputs)
            if made is None:
                made = found.returning(*inputs)
        if signature is not None and key is not None and len(self._routes) < _MOST_ROUTES:
            self._remember(key, signature, found)
        return made

    def _remember(
        self, key: tuple[object, ...], signature: Signature, found: Specialisation
    ) -> None:
        """Remembers the build for calls with this key, so that the next one needs no signature."""
        with self._table_lock:
            group = self._groups.get(signature.key)
            if group is None or found not in group.builds:
                return  # another thread has cleared them
            self._routes[key] = found
            if not self._learn(signature, group.until(found), self._variable):
                self._routes = {key: found}  # the signatures of the others are learned anew

    def _forget_routes(self) -> None:
        """Forgets the builds of all keys, so that each signature searches its build anew."""
        with self._table_lock:
            self._routes = {}
            self._repeated = RepeatedCalls()
            self._forget()

    def _traced_by_jax(self, found: Specialisation, values: Sequence[Any], out: Any) -> Any:
        """Makes a call that JAX traces, as a call of an operation of JAX."""
        if out is not None:
            raise TypeError(f"{self.name}: out: expected none where JAX is tracing, got one")
        operation = jax_operation(found.module, found.derivative)
        return operation(*(values[position] for position in found.traced.inputs))

    def _recorded(self, found: Specialisation, inputs: Sequence[Any]) -> Any:
        """Makes a call that torch records, as a call of an operator of torch."""
        options = self._options
        built = (options.target, options.fp, options.release_gil)
        is_new = "torch" not in found.derivative.bridges
        operator = torch_operator(found.module, found.derivative, built)
        if is_new:
            self._forget_routes()  # compiled code learns the operator of torch now
        return operator(*inputs)

    def _check_out(self, values: Sequence[Any], out: Any) -> None:
        """Refuses outputs of another library than the arguments'."""
        arrays = ((p, library_of(v)) for p, v in zip(self._parameters, values, strict=True))
        first, wanted = next((each for each in arrays if each[1]), (None, None))
        for each in out if isinstance(out, tuple) else (out,):
            found = library_of(each)
            if None not in (wanted, found) and found != wanted:
                raise TypeError(
                    f"{self.name}: out: expected an array of {wanted}, as {first} is, got one of "
                    f"{found}: convert it"
                )

    def _key(self, values: Sequence[Any]) -> tuple[object, ...] | None:
        """The key under which the specialisation for some arguments is remembered; None where it
        has to be searched."""
        try:
            key = [
                (type(each), getattr(each, "shape", None), getattr(each, "dtype", None))
                for each in values
            ]
            constants = [frozen(self.name, values[position]) for position in self._static]
            return (*key, *constants)
        except Exception:  # an array without these attributes: the signature raises the error
            return None

    def _inlined(self, values: Sequence[Any], out: Any) -> Any:
        """The expression that the function returns for tensors."""
        if out is not None:
            raise TypeError(f"{self.name}: out: expected none in a program of te, got one")
        for parameter, value in zip(self._parameters, values, strict=True):
            if library_of(value) is not None:
                raise TypeError(
                    f"{self.name}: {parameter}: expected a tensor of te, as other arguments are, "
                    f"got an array of {library_of(value)}: make it a parameter"
                )
        return call(self.name, self._function, self._parameters, values)

    # -- Signatures --------------------------------------------------------------------------------

    def _signature(self, values: Sequence[Any]) -> Signature:
        return signature_of(
            self.name,
            self._parameters,
            values,
            variable=self._variable,
            broadcast=self._options.broadcast,
        )

    def _given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The value of each parameter; texts such as ``"float32[64 768]"`` stand for arrays."""
        values = bind(self.name, self._parameters, args, kwargs)
        return [self._stood_for(p, v) for p, v in zip(self._parameters, values, strict=True)]

    def _stood_for(self, parameter: Parameter, value: Any) -> Any:
        if parameter.kind not in (Kind.TENSOR, Kind.ANY) or not isinstance(value, str):
            return value
        shape = parse_shape(value)
        extents = [each for each in shape.dims if isinstance(each, int)]
        if len(shape.dtypes) != 1 or len(extents) != len(shape.dims) or shape.leading:
            raise CompileError(
                f"{self.name}: {parameter}: expected an array or its description, such as "
                f"'float32[64 768]', got {value!r}"
            )
        return Described(tuple(extents), shape.dtypes[0])

    # -- Builds ------------------------------------------------------------------------------------

    def _chosen(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Specialisation:
        return self._specialisation(self._signature(self._given(args, kwargs)))

    def _specialisation(
        self,
        signature: Signature,
        exact: bool = False,
        varying: frozenset[Label] = frozenset(),
    ) -> Specialisation:
        """The build for a signature, made where there is none. An `exact` build has constants for
        all extents except those of ``symbolic`` letters."""
        group = self._groups.get(signature.key)
        found = None if group is None else group.find(signature.extents, exact, varying)
        if found is not None:
            return found
        with self._lock:
            group = self._groups.setdefault(signature.key, self._group())
            found = group.find(signature.extents, exact, varying)
            if found is None:
                build = partial(self._built, signature)
                found = group.add(signature.extents, build, exact, varying)
                if len(group.builds) > 1:  # the new build may be preferred
                    self._forget_routes()
            return found

    def _group(self) -> Group:
        return Group(self.name, self._variable, self._options.symbolic is None)

    def _variables(self, signature: Signature) -> frozenset[Label]:
        """The extents that are variables in every build."""
        return frozenset(label for label in signature.extents.values if label in self._variable)

    def _traced(self, signature: Signature, symbolic: frozenset[Label]) -> Traced:
        return trace(
            self.name,
            self._function,
            self._parameters,
            signature.values,
            signature.extents,
            signature.dtypes,
            symbolic,
        )

    def _built(self, signature: Signature, symbolic: frozenset[Label]) -> Specialisation:
        traced = self._traced(signature, symbolic)
        options = self._options
        compiled = partial(_compiled, options)
        outputs, inputs = list(traced.outputs), list(traced.inputs.values())
        module = compiled(outputs, inputs, self.name, traced.schedule)
        derivative = Derivative(self.name, self._parameters, traced, options.backward, compiled)
        extents, classes = signature.extents.values, signature.extents.classes
        fixed = {label: n for label, n in extents.items() if classes[label] not in symbolic}
        return Specialisation(traced, module, fixed, symbolic, module.returning(), derivative)


def _compiled(
    options: Options,
    outputs: list[Tensor],
    inputs: list[Tensor | Var],
    name: str,
    schedule: Schedule | None = None,
) -> Module:
    return build(
        schedule or outputs,
        [*inputs, *outputs],
        options.target,
        name=name,
        fp=options.fp,
        release_gil=options.release_gil,
    )


def _inputs(found: Specialisation, values: Sequence[Any]) -> list[Any]:
    """The arguments that a build takes. Numbers of numpy become Python's, since neither the
    compiled call path nor torch knows them."""
    return [plain(values[position]) for position in found.traced.inputs]


def _name(function: Callable[..., Any], options: Options) -> str:
    if options.name is not None and not isinstance(options.name, str):
        raise CompileError(f"jit: name: expected a name, got {shown(options.name)}")
    named = str(options.name or getattr(function, "__name__", ""))
    return named if named.isidentifier() else "operator"  # the name of a lambda or a partial isn't


def _letters(name: str, parameters: Iterable[Parameter], symbolic: Iterable[str]) -> frozenset[str]:
    """The labels of letters: their names, and the arithmetic that may determine them."""
    shapes = [each.shape for each in parameters]
    arithmetic = [dim for shape in shapes for dim in shape.arithmetic]
    known = dict.fromkeys(letter for shape in shapes for letter in shape.letters)
    known |= dict.fromkeys(letter for dim in arithmetic for letter in dim.letters)
    for each in symbolic:
        if each not in known:
            listed = ", ".join(known) or "none"
            raise CompileError(f"{name}: symbolic: expected letters among {listed}, got '{each}'")
    texts = [dim.text for dim in arithmetic if not set(symbolic).isdisjoint(dim.letters)]
    return frozenset((*symbolic, *texts))


# A forked child doesn't have the thread that holds a lock.
_operators: weakref.WeakSet[Operator] = weakref.WeakSet()


def _unlock() -> None:
    for each in _operators:
        each._lock, each._table_lock = threading.RLock(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)
