"""Callables that choose among returning functions by the arguments of a call, in compiled code.

A :class:`Case` is a returning function, and the arguments that it is for: their types, dtypes and
ranks, the values of those that it doesn't take, and conditions on the extents. A
:class:`Choosing` has a table of cases, which a call tries in turn (:mod:`.cases_text`).
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, final

from minitvm.runtime.call_path import call_path, leaf_of
from minitvm.runtime.call_path_text import MOST_ARGUMENTS, StoredFunction
from minitvm.runtime.cases_text import (
    COMPARED_TYPES,
    CompiledCase,
    CompiledCheck,
    CompiledParameter,
    Op,
    StoredChooser,
    StoredTable,
)
from minitvm.runtime.dlpack import dtype_word
from minitvm.runtime.dtype import DType
from minitvm.runtime.heap_types import HEADER, enable, storage
from minitvm.runtime.record import record
from minitvm.runtime.returning import Returning
from minitvm.runtime.returning_text import StoredReturning

MOST_CASES = 32  # of a table: each costs some nanoseconds of a call that doesn't fit


@final
@record(eq=False)
class Argument:
    """The argument that a case accepts for a parameter: a value of a type.

    Attributes
    ----------
    kind
        The type, exactly.
    dtype, ndim
        The properties of an array that is passed on.
    is_constant
        Whether the value must be `constant`, and isn't passed on.
    """

    kind: type
    dtype: DType | None = None
    ndim: int = -1
    is_constant: bool = False
    constant: object = None


@final
@record()
class Check:
    """A condition on the extent `dim` of the array at `position`: it must equal, or differ from, a
    number or the extent `value` of the array at `other`.

    >>> Check(Op.IS_NOT, 0, 1, 1)  # the array at 0 has no rows of one element
    Check(op=<Op.IS_NOT: 2>, position=0, dim=1, value=1, other=0)
    """

    op: Op
    position: int
    dim: int
    value: int
    other: int = 0


@final
@record(eq=False)
class Case:
    """A returning function, and the arguments that it is for, one for each parameter. The function
    takes those that aren't constant, in order. Where torch records the call, the method ``record``
    of the `operator` takes them."""

    returning: Callable[..., Any]
    arguments: tuple[Argument, ...]
    checks: tuple[Check, ...]
    operator: object = None


def is_compared(value: object) -> bool:
    """Whether compiled code can compare a value with others: the value never changes, and has a
    type whose values are known, or is equal only to itself.

    >>> is_compared((1, "rows")), is_compared(frozenset())
    (True, False)
    """
    kind = type(value)
    if isinstance(value, tuple):
        return kind is tuple and all(map(is_compared, value))
    return (
        kind in (*COMPARED_TYPES, float)
        or kind.__hash__ is object.__hash__
        or value is None
        or isinstance(value, Enum)
    )


def is_native(case: Case) -> bool:
    """Whether compiled code makes the calls of a case."""
    path = call_path()
    if path is None or not isinstance(case.returning, Returning):
        return False
    function = StoredReturning.from_address(id(case.returning) + HEADER).function
    if not function or len(case.arguments) > MOST_ARGUMENTS:
        return False
    stored = StoredFunction.from_address(function + HEADER)
    taken = [each for each in case.arguments if not each.is_constant]
    writes_inputs = stored.written & ((1 << len(taken)) - 1)
    compared = all(is_compared(each.constant) for each in case.arguments)
    routed = all(path.has_route(each.kind) for each in taken)
    return compared and routed and not stored.calls_back and not writes_inputs


if TYPE_CHECKING:
    _TableStorage = object
    _ChooserStorage = object
else:
    _TableStorage = storage("minitvm.runtime.cases.TableStorage", ctypes.sizeof(StoredTable))
    _ChooserStorage = storage("minitvm.runtime.cases.Storage", ctypes.sizeof(StoredChooser))


@final
class Table(_TableStorage):
    """A table of cases, which a call tries in turn. A table never changes: a running call continues
    with it when another table takes its place."""

    __slots__ = ("_kept", "cases")

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = tuple(cases)
        rows = [_Row(case) for case in cases]
        array = (CompiledCase * len(rows))(*(each.compiled for each in rows))
        self._kept = (array, rows)
        stored = StoredTable.from_address(id(self) + HEADER)
        stored.cases, stored.count = ctypes.addressof(array), len(rows)


class _Row:
    """The memory of a case, which lives as long as the table."""

    def __init__(self, case: Case) -> None:
        parameters, place = [], 0
        for each in case.arguments:
            constant = id(each.constant) if each.is_constant else None
            dtype = dtype_word(each.dtype) if each.dtype is not None else 0
            parameters.append(CompiledParameter(id(each.kind), constant, each.ndim, dtype, place))
            place += not each.is_constant
        arrays = [i for i, each in enumerate(case.arguments) if each.ndim >= 0]
        checks = [
            CompiledCheck(each.op, each.position, each.dim, each.other, each.value)
            for each in case.checks
        ]
        self._parameters = (CompiledParameter * len(parameters))(*parameters)
        self._checks = (CompiledCheck * (len(checks) + 1))(*checks, CompiledCheck(Op.END))
        self.compiled = CompiledCase(
            id(case.returning) + HEADER,
            ctypes.addressof(self._parameters),
            ctypes.addressof(self._checks),
            arrays[0] if arrays else -1,
            None if case.operator is None else id(case.operator),
        )


class Choosing(_ChooserStorage):
    """An object whose calls choose among cases. A call that fits no case goes to ``_call_slowly``,
    which takes ``out`` by name.

    As an attribute of a class, such an object is a method of the class's instances.
    """

    __slots__ = ("_chooser", "_kept", "_table", "_table_lock")

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(leaf_of(cls, "call_cases", is_method=True))

    def _let_choose(
        self, names: Sequence[str], defaults: Mapping[int, Any], positional: int
    ) -> None:
        """Lets compiled code choose for calls. The arguments are the names of the parameters; the
        defaults, by the positions of their parameters; and `positional`, the number of parameters
        that may be passed by position."""
        interned = tuple(map(sys.intern, names))
        array = (ctypes.c_void_p * (len(names) + 1))()
        for position, default in defaults.items():
            array[position] = id(default)
        self._kept = (interned, dict(defaults), array)
        self._table: Table | None = None
        self._table_lock = threading.Lock()
        self._chooser = StoredChooser.from_address(id(self) + HEADER)
        self._chooser.names = id(interned)
        self._chooser.defaults = ctypes.addressof(array)
        self._chooser.parameters, self._chooser.positional = len(names), positional
        enable(self)

    def _set_cases(self, cases: Sequence[Case]) -> None:
        """Lets calls choose among these cases from now on. The caller holds ``_table_lock``."""
        table = Table(cases) if cases else None
        self._chooser.table = None if table is None else id(table)
        self._table = table  # set after the address; the table must outlive the address
