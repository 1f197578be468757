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
from typing import Any, final

import numpy as np

from minitvm.driver.build import build
from minitvm.explanation.explain import explain
from minitvm.explanation.report import Explanation
from minitvm.lowering.lower import lower
from minitvm.operators.arrays import Described, described, library_of, why_refused
from minitvm.operators.extents import Extents, Label, extents_of, merged, pattern_of
from minitvm.operators.parameters import Kind, Parameter, bind, parameters_of
from minitvm.operators.returning import returning
from minitvm.operators.shapes import parse_shape
from minitvm.operators.specialisation import Group, Specialisation
from minitvm.operators.tracing import Traced, call, is_symbolic, trace
from minitvm.runtime.dtype import FLOAT32, FLOAT64, INT32, INT64, DType
from minitvm.runtime.errors import CompileError
from minitvm.runtime.module import Module
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.tensor import Tensor
from minitvm.tir.stmt import IRModule

_WIDE = {float: (FLOAT32, FLOAT64), int: (INT32, INT64)}


@final
@record()
class Options:
    """The options of :func:`minitvm.operators.jit.jit`."""

    static: tuple[str, ...] = ()
    symbolic: tuple[str, ...] = ()
    name: str | None = None
    target: str | Target | None = None
    fp: str = "fast"
    release_gil: bool | None = None


@final
@record(eq=False)
class _Signature:
    """What a program is made for, in a call's arguments.

    Attributes
    ----------
    values
        The argument for each parameter.
    arrays
        The arrays, by their parameters' positions.
    dtypes
        The dtypes of the arrays and of the numbers.
    key
        All that the program depends on apart from the extents of the arrays.
    """

    values: Sequence[Any]
    arrays: Mapping[int, Described]
    dtypes: Mapping[int, DType]
    key: tuple[object, ...]
    extents: Extents


@final
class Operator:
    """A Python function of tensors, compiled for the arguments of its calls. Made by
    :func:`minitvm.jit`.

    A call takes arrays of one library, and returns new arrays of that library; or it writes the
    arrays of ``out=``. A call with tensors of ``te`` is the function's own expression, so that
    operators are made of operators.
    """

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self._function = function
        self._options = options
        named = options.name or getattr(function, "__name__", "operator")
        self.name: str = named if named.isidentifier() else "operator"
        self._parameters = parameters_of(function, self.name, options.static)
        letters = {each for p in self._parameters for each in p.shape.letters}
        for each in options.symbolic:
            if each not in letters:
                known = ", ".join(sorted(letters)) or "none"
                raise CompileError(
                    f"{self.name}: symbolic: expected letters among {known}, got '{each}'"
                )
        self._groups: dict[tuple[object, ...], Group] = {}
        self._known: dict[tuple[object, ...], Callable[..., Any]] = {}
        self._lock = threading.RLock()
        functools.update_wrapper(self, function)
        _operators.add(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        out = kwargs.pop("out", None)
        values = bind(self.name, self._parameters, args, kwargs)
        if any(map(is_symbolic, values)):
            return self._inlined(values, out)
        signature = self._signature(values)
        found = self._specialisation(signature)
        inputs = [signature.values[position] for position in found.traced.inputs]
        self._check_libraries(signature)
        if out is not None:
            return found.returning(*inputs, out=out)
        return found.returning(*inputs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<Operator {self.name}{self.__signature__}>"

    def __copy__(self) -> Operator:
        return self

    def __deepcopy__(self, memo: object) -> Operator:
        return self

    def __reduce__(self) -> str:
        return str(self.__qualname__)  # type: ignore[attr-defined]  # of the function

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function)

    # -- Looking inside ----------------------------------------------------------------------------

    def build_for(self, *args: Any, **kwargs: Any) -> Module:
        """The built function for some arguments, which takes its outputs as arguments.

        An argument is an array, or stands for one: a text such as ``"float32[64 768]"``, or an
        object with a ``shape`` and a ``dtype``.
        """
        return self._for(args, kwargs).module

    def lower(self, *args: Any, **kwargs: Any) -> IRModule:
        """The loops for some arguments, see :meth:`build_for`."""
        traced = self._traced(self._signature(self._given(args, kwargs)), frozenset())
        outputs = list(traced.outputs)
        program = traced.schedule or outputs
        return lower(program, [*traced.inputs.values(), *outputs], name=self.name)

    def source(self, *args: Any, kind: str = "ll", **kwargs: Any) -> str:
        """The text of the code for some arguments, see :meth:`build_for`: ``"ll"``, ``"asm"`` or
        ``"tir"``."""
        return self.build_for(*args, **kwargs).get_source(kind)

    def explain(self, *args: Any, measure: bool = True, **kwargs: Any) -> Explanation:
        """What was built for some arguments, and why: see :func:`minitvm.explain`."""
        found = self._for(args, kwargs)
        return explain(found.module, measure=measure)

    def warm_up(self, signatures: Iterable[Any]) -> None:
        """Builds for some signatures, so that calls with such arguments compile nothing.

        Each signature is a tuple of arguments, or a dict of them by name, see :meth:`build_for`.
        """
        for each in signatures:
            if isinstance(each, Mapping):
                self.build_for(**each)
            else:
                self.build_for(*(each if isinstance(each, tuple | list) else (each,)))

    @property
    def specialisations(self) -> tuple[Specialisation, ...]:
        """The builds so far."""
        return tuple(each for group in self._groups.values() for each in group.builds)

    def clear(self) -> None:
        """Forgets all builds."""
        with self._lock:
            self._groups.clear()

    # -- Signatures --------------------------------------------------------------------------------

    def _given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        values = bind(self.name, self._parameters, args, kwargs)
        return [self._stood_for(p, v) for p, v in zip(self._parameters, values, strict=True)]

    def _stood_for(self, parameter: Parameter, value: Any) -> Any:
        """The array that a text stands for."""
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

    def _for(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Specialisation:
        return self._specialisation(self._signature(self._given(args, kwargs)))

    def _signature(self, values: list[Any]) -> _Signature:
        arrays: dict[int, Described] = {}
        numbers: dict[int, type] = {}
        key: list[object] = []
        for position, (parameter, value) in enumerate(zip(self._parameters, values, strict=True)):
            kind = self._kind(parameter, value)
            if kind is Kind.TENSOR:
                arrays[position] = self._array(parameter, value)
                key.append((arrays[position].dtype, len(arrays[position].shape)))
            elif kind is Kind.NUMBER:
                numbers[position] = float if isinstance(value, float) else parameter.number
                key.append(numbers[position])
            else:
                key.append(self._frozen(parameter, value))
        extents = extents_of(self.name, self._parameters, arrays)
        dtypes = {position: each.dtype for position, each in arrays.items()}
        wide = {each.dtype for each in arrays.values()}
        for position, kind_of_number in numbers.items():
            narrow, wider = _WIDE[kind_of_number]
            declared = self._parameters[position].dtype
            dtypes[position] = declared or (wider if wider in wide else narrow)
        key.append(pattern_of(extents, frozenset(self._options.symbolic)))
        return _Signature(values, arrays, dict(sorted(dtypes.items())), tuple(key), extents)

    def _kind(self, parameter: Parameter, value: Any) -> Kind:
        """What the value of a parameter is: an array, a number, or a value to build for."""
        if parameter.kind is Kind.STATIC or (value is None and parameter.optional):
            return Kind.STATIC
        is_number = isinstance(value, int | float | np.integer | np.floating)
        if parameter.kind is Kind.TENSOR or (parameter.kind is Kind.ANY and not is_number):
            return Kind.TENSOR
        if not is_number or isinstance(value, bool):
            raise TypeError(
                f"{self.name}: {parameter}: expected {parameter.kind.value}, got "
                f"{type(value).__name__}"
            )
        if parameter.kind is Kind.NUMBER and parameter.number is int and isinstance(value, float):
            raise TypeError(f"{self.name}: {parameter}: expected an int, got the float {value}")
        return Kind.NUMBER

    def _array(self, parameter: Parameter, value: Any) -> Described:
        if isinstance(value, Described):
            found = value
        else:
            if library_of(type(value)) is None:
                raise TypeError(f"{self.name}: {parameter}: {_no_array(parameter, value)}")
            reason = why_refused(value)
            if reason is not None:
                raise TypeError(f"{self.name}: {parameter}: {reason}")
            try:
                found = described(value)
            except TypeError as error:
                raise TypeError(f"{self.name}: {parameter}: {error}") from None
        if not parameter.shape.takes_dtype(found.dtype):
            wanted = " or ".join(map(str, parameter.shape.dtypes))
            raise TypeError(f"{self.name}: {parameter}: expected dtype {wanted}, got {found.dtype}")
        return found

    def _frozen(self, parameter: Parameter, value: Any) -> object:
        """A value as a part of a key: values that are equal but not the same, such as 1 and True,
        differ."""
        try:
            hash(value)
        except TypeError:
            raise TypeError(
                f"{self.name}: {parameter}: expected a value that can be hashed, since the "
                f"program is made for it, got {type(value).__name__}"
            ) from None
        if isinstance(value, tuple):
            return tuple(self._frozen(parameter, each) for each in value)
        return (type(value), value.hex() if isinstance(value, float) else value)

    def _check_libraries(self, signature: _Signature) -> None:
        first: tuple[int, str | None] | None = None
        for position in signature.arrays:
            library = library_of(type(signature.values[position]))
            if first is None:
                first = position, library
            elif library != first[1]:
                raise TypeError(
                    f"{self.name}: {self._parameters[position]}: expected an array of {first[1]}, "
                    f"as {self._parameters[first[0]]} is, got one of {library}: convert it"
                )

    # -- Builds ------------------------------------------------------------------------------------

    def _specialisation(self, signature: _Signature) -> Specialisation:
        group = self._groups.get(signature.key)
        found = None if group is None else group.find(signature.extents)
        if found is not None:
            return found
        with self._lock:
            group = self._groups.setdefault(signature.key, Group(frozenset(self._options.symbolic)))
            return group.find(signature.extents) or group.add(
                signature.extents, partial(self._build, signature)
            )

    def _traced(self, signature: _Signature, symbolic: frozenset[Label]) -> Traced:
        return trace(
            self.name,
            self._function,
            self._parameters,
            signature.values,
            signature.extents,
            signature.dtypes,
            symbolic,
        )

    def _build(self, signature: _Signature, symbolic: frozenset[Label]) -> Specialisation:
        traced = self._traced(signature, symbolic)
        outputs = list(traced.outputs)
        options = self._options
        module = build(
            traced.schedule or outputs,
            [*traced.inputs.values(), *outputs],
            options.target,
            name=self.name,
            fp=options.fp,
            release_gil=options.release_gil,
        )
        stands_for = merged(signature.extents)
        fixed = {
            label: value
            for label, value in signature.extents.values.items()
            if stands_for[label] not in symbolic
        }
        return Specialisation(traced, module, fixed, symbolic, returning(module))

    def _inlined(self, values: list[Any], out: Any) -> Any:
        """The function's own expression of tensors."""
        if out is not None:
            raise TypeError(f"{self.name}: out: expected none for tensors of te, which are defined")
        for parameter, value in zip(self._parameters, values, strict=True):
            if library_of(type(value)) is not None:
                raise TypeError(
                    f"{self.name}: {parameter}: expected a tensor of te, as other arguments are, "
                    f"got an array of {library_of(type(value))}: make it a parameter"
                )
        return call(self._function, self._parameters, values)


def _no_array(parameter: Parameter, value: Any) -> str:
    advice = ""
    if isinstance(value, list | tuple | int | float | np.generic):
        advice = ": pass np.asarray(x)"
    return f"expected an array of shape {parameter.shape}, got {type(value).__name__}{advice}"


# A thread that holds a lock is not there in a forked child.
_operators: weakref.WeakSet[Operator] = weakref.WeakSet()


def _unlock() -> None:
    for each in _operators:
        each._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)
