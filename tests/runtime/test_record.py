"""Records: what a dataclass with slots is, frozen or not."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import Any

import pytest

from minitvm.runtime.record import record


@record()
class Point:
    x: int
    y: int = 5
    tags: list[str] = field(default_factory=list)
    length: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", self.x + self.y)


@dataclass(frozen=True, slots=True)
class Usual:
    x: int
    y: int = 5
    tags: list[str] = field(default_factory=list)
    length: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", self.x + self.y)


@record(frozen=False)
class Open:
    x: int
    y: int = 5
    tags: list[str] = field(default_factory=list)
    length: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.length = self.x + self.y


@record(eq=False, repr=False)
class Plain:
    a: int

    def __repr__(self) -> str:
        return "mine"


SAME: dict[str, Callable[[Any], Any]] = {
    "repr": lambda cls: re.sub(r"^\w+", "", repr(cls(1, tags=["a"]))),
    "equal": lambda cls: cls(1) == cls(1, 5),
    "other": lambda cls: cls(1) == cls(2),
    "another class": lambda cls: cls(1) == 1,
    "slots": lambda cls: (cls.__slots__, hasattr(cls(1), "__dict__")),
    "match": lambda cls: cls.__match_args__,
    "fields": lambda cls: [(each.name, each.init) for each in fields(cls)],
    "computed": lambda cls: cls(1, y=2).length,
    "replaced": lambda cls: replace(cls(1), x=7).length,
    "own lists": lambda cls: cls(1).tags is not cls(1).tags,
    "copied": lambda cls: copy.copy(cls(3)) == cls(3),
    "pickled": lambda cls: pickle.loads(pickle.dumps(cls(3, 4))) == cls(3, 4),
}


@pytest.mark.parametrize("what", SAME.values(), ids=SAME.keys())
@pytest.mark.parametrize("cls", [Point, Open])
def test_as_a_dataclass(cls: type, what: Callable[[Any], Any]) -> None:
    assert what(cls) == what(Usual)


def test_fields_that_change() -> None:
    point = Open(1)
    point.x = 2
    del point.tags
    assert point.x == 2
    assert not hasattr(point, "tags")
    with pytest.raises(TypeError, match="unhashable type: 'Open'"):
        hash(point)


def test_the_constructor_is_compiled_when_it_is_asked_for() -> None:
    @record()
    class Base:
        a: int

    @record()
    class Same(Base):
        pass

    @record()
    class More(Base):
        b: int = 2

    assert not inspect.isfunction(vars(Base)["__init__"])
    assert (More(1), Same(1).a) == (More(1, 2), 1)
    assert list(inspect.signature(Base).parameters) == ["a"]
    assert inspect.isfunction(vars(Base)["__init__"])
    assert Base.__init__ is vars(Base)["__init__"]
    assert Base.__init__.__qualname__.endswith("Base.__init__")


@pytest.mark.parametrize("cls", [Point, Usual])
def test_fields_do_not_change(cls: Any) -> None:
    point = cls(1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x
    assert point.x == 1


@pytest.mark.parametrize("cls", [Point, Usual])
def test_arguments(cls: Any) -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        cls()
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        cls(1, z=2)


def test_hash() -> None:
    @record()
    class Pair:
        a: int
        b: str

    assert len({Pair(1, "x"), Pair(1, "x"), Pair(2, "x")}) == 2
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        hash(Point(1))


def test_an_identity() -> None:
    assert Plain(1) != Plain(1)
    assert len({Plain(1), Plain(1)}) == 2
    assert repr(Plain(1)) == "mine"
    assert dataclasses.is_dataclass(Plain)


def test_slots_of_bases_are_not_repeated() -> None:
    """An inherited method reads the slot of its own class."""

    @record()
    class Base:
        x: int

        def of_base(self) -> int:
            return self.x

    @record()
    class Derived(Base):
        y: int = 2

    assert vars(Derived)["__slots__"] == ("y",)
    assert (Derived(1).of_base(), Derived(1).x, Derived(1).y) == (1, 1, 2)
    assert not hasattr(Derived(1), "__dict__")
