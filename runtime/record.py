"""Classes of fields: dataclasses, made in a fraction of the time.

``dataclass(frozen=True, slots=True)`` compiles six methods for each class, which takes most of the
time of importing a package with many small classes. Here only ``__init__`` is compiled, when it is
first called; the other methods read the fields, and are the same for all classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, final

if TYPE_CHECKING:
    # A part of typing from Python 3.11 on.
    from typing_extensions import dataclass_transform as dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Tells type checkers that a decorator makes dataclasses."""
        return lambda function: function


_Class = TypeVar("_Class", bound=type)


class Admission(Protocol):
    """The check of the values of a class's fields."""

    def test(self, cls: type, annotation: str, name: str) -> tuple[str, Mapping[str, Any]]:
        """An expression of Python that is true where the value called `name` may be stored as it
        is in a field of `cls` of that annotation, and the meaning of its names."""

    def admit(self, cls: type, values: dict[str, Any]) -> dict[str, Any]:
        """The values to store in place of `values`, called if at least one failed its test; raises
        an error that names it."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(
    *, frozen: bool = True, eq: bool = True, repr: bool = True, admission: Admission | None = None
) -> Callable[[_Class], _Class]:
    """A class decorator: ``dataclass(frozen=frozen, slots=True, eq=eq, repr=repr)``, made faster.
    An `admission` checks the fields' values.

    >>> @record()
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> Point(1), Point(1) == Point(1, 0)
    (Point(x=1, y=0), True)
    >>> Point(1).x = 2
    Traceback (most recent call last):
    ...
    dataclasses.FrozenInstanceError: cannot assign to field 'x'
    """

    def make(cls: _Class) -> _Class:
        cls.__doc__ = cls.__doc__ or cls.__name__  # dataclass would show the signature
        own = set(vars(cls))
        made: Any = _with_slots(dataclass(init=False, repr=False, eq=False)(cls))
        methods: dict[str, Any] = dict(_METHODS)
        if frozen:
            methods.update(_FROZEN)
        is_like_its_base = hasattr(cls, "__dataclass_fields__") and "__annotations__" not in own
        if "__init__" not in own and not is_like_its_base:
            methods["__init__"] = _Initialiser(made, frozen, admission)
        if repr:
            methods["__repr__"] = _repr
        if eq:
            methods["__eq__"], methods["__hash__"] = _comparison(made, frozen)
        for name, method in methods.items():
            if name not in own:
                setattr(made, name, method)
        return made  # type: ignore[no-any-return]  # the class, with slots

    return make


def _with_slots(cls: Any) -> Any:
    """A dataclass made anew with slots for its own fields. ``dataclass(slots=True)`` of Python 3.10
    repeats the slots of its bases, whose methods would then read slots that are never filled."""
    inherited = {name for base in cls.__mro__[1:] for name in getattr(base, "__slots__", ())}
    names = [each.name for each in fields(cls)]
    left_out = {*names, "__dict__", "__weakref__"}
    namespace = {name: value for name, value in vars(cls).items() if name not in left_out}
    namespace["__slots__"] = tuple(name for name in names if name not in inherited)
    made = type(cls)(cls.__name__, cls.__bases__, namespace)
    made.__qualname__ = cls.__qualname__
    return made


@final
class _Initialiser:
    """Stands for the ``__init__`` of a class until the first call: many processes make no object of
    a class."""

    __slots__ = ("_admission", "_cls", "_frozen")

    def __init__(self, cls: Any, frozen: bool, admission: Admission | None) -> None:
        self._cls = cls
        self._frozen = frozen
        self._admission = admission

    def __get__(self, instance: object, owner: type) -> Any:
        made = _initialiser(self._cls, self._frozen, self._admission)
        self._cls.__init__ = made
        return made.__get__(instance, owner)


def _initialiser(cls: Any, frozen: bool, admission: Admission | None) -> Callable[..., None]:
    """The ``__init__`` of a class. It stores in the slots directly where assignment, which is
    faster, is refused."""
    parameters, lines = ["self"], []
    scope: dict[str, Any] = {"_MISSING": MISSING}
    for each in fields(cls):
        name, value = each.name, each.name
        scope[f"_set_{name}"] = getattr(cls, name).__set__
        scope[f"_default_{name}"] = each.default
        scope[f"_make_{name}"] = each.default_factory
        if not each.init:
            value = f"_default_{name}" if each.default_factory is MISSING else f"_make_{name}()"
            if each.default is MISSING and each.default_factory is MISSING:
                continue  # __post_init__ stores the field
        elif each.default_factory is not MISSING:
            parameters.append(f"{name}=_MISSING")
            value = f"_make_{name}() if {name} is _MISSING else {name}"
        else:
            parameters.append(name if each.default is MISSING else f"{name}=_default_{name}")
        lines.append(f"_set_{name}(self, {value})" if frozen else f"self.{name} = {value}")
    if admission is not None:
        lines = [*_admitted(cls, admission, scope), *lines]
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    body = "\n    ".join(lines or ["pass"])
    exec(f"def __init__({', '.join(parameters)}):\n    {body}", scope)
    made: Callable[..., None] = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    return made


def _admitted(cls: Any, admission: Admission, scope: dict[str, Any]) -> list[str]:
    """The lines of an ``__init__`` that call for admission of arguments that fail the tests."""
    names, tests = [], []
    for each in fields(cls):
        if each.init:
            names.append(each.name)
            test, meanings = admission.test(cls, str(each.type), each.name)
            scope.update(meanings)
            skip = "" if each.default_factory is MISSING else f"{each.name} is _MISSING or "
            tests.append(f"({skip}{test})")
    if not names:
        return []
    scope["_admit"] = admission.admit
    given = ", ".join(f"{name!r}: {name}" for name in names)
    return [
        f"if not ({' and '.join(tests)}):",
        f"    {', '.join(names)}, = _admit(type(self), {{{given}}}).values()",
    ]


def _values(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _repr(self: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{type(self).__qualname__}({shown})"


def _comparison(
    cls: Any, frozen: bool
) -> tuple[Callable[[Any, Any], Any], Callable[[Any], int] | None]:
    """The ``__eq__`` and the ``__hash__`` of a class, by the values of its fields."""
    names = [each.name for each in fields(cls)]
    # For one name, attrgetter returns the value itself; for none, there is no attrgetter.
    values: Callable[[Any], tuple[Any, ...]] = (
        attrgetter(*names)
        if len(names) > 1
        else lambda self: tuple(getattr(self, name) for name in names)
    )

    def __eq__(self: Any, other: Any) -> Any:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __eq__, __hash__ if frozen else None


def _refuse_to_set(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)


_METHODS = {"__getstate__": _values, "__setstate__": _set_state}
_FROZEN = {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
