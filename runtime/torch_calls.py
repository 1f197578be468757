"""Operators of torch whose calls bypass its dispatcher where nothing watches them.

torch's dispatcher takes microseconds to find that a call is neither traced nor transformed, cast
or profiled. Compiled code asks torch's own functions in some ten nanoseconds
(:mod:`.torch_calls_text`); where a version of torch lacks one of them, Python code makes all calls.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from minitvm.runtime.call_path import call_path, leaf_of
from minitvm.runtime.heap_types import HEADER, enable, storage
from minitvm.runtime.returning import Returning
from minitvm.runtime.torch_calls_text import StoredOperator

if TYPE_CHECKING:
    _Storage = object
else:
    _Storage = storage("minitvm.runtime.torch_calls.Storage", ctypes.sizeof(StoredOperator))


class PastDispatcher(_Storage):
    """An object whose calls go to a returning function if nothing in torch watches them, and
    otherwise to ``_call_slowly``. A call that autograd records, and that nothing watches, goes to
    ``record_unwatched``."""

    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(leaf_of(cls, "call_operator"))

    def _let_pass(self, torch: Any, compute: Callable[..., Any]) -> None:
        """Lets calls go to `compute` from now on; `compute` lives as long as the object."""
        path = call_path()
        if path is not None and isinstance(compute, Returning) and path.learn_torch_state(torch):
            StoredOperator.from_address(id(self) + HEADER).returning = id(compute)
        enable(self)
