"""Bridges: methods of functions whose work is done in rooms above the runtime.

A framework's operator is made by a method of the function (``f.jax_op()``), since users look for it
there. The face of the package knows the modules that do the work, and sets them here; each is
imported when a program asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_places: dict[str, str] = {}


def set_bridges(places: Mapping[str, str]) -> None:
    """Sets the modules of the bridges: a mapping from the name of a function to the module that
    defines it."""
    _places.update(places)


def bridge(name: str) -> Callable[..., Any]:
    """The function of a name.

    >>> import minitvm
    >>> bridge("register_torch_op").__module__
    'minitvm.contrib.torch_op'
    """
    made: Callable[..., Any] = getattr(import_module(_places[name]), name)
    return made


class Bridged:
    """The methods that turn a compiled function, or a module's entry function, into an operator of
    another library."""

    __slots__ = ()

    def torch_op(
        self, name: str, backward: Any = None, setup_context: Callable[..., None] | None = None
    ) -> Callable[..., Any]:
        """The function, or a module's entry, as an operator of torch, which takes the inputs
        and returns the outputs: see :func:`minitvm.contrib.register_torch_op`.

        Parameters
        ----------
        name
            The operator's name, with a namespace: ``"mine::add"`` is also ``torch.ops.mine.add``.
        backward, setup_context
            The gradient, by a Python function as in ``torch.autograd.Function``, or by another
            built function. Without it, the operator can't be differentiated.
        """
        made: Callable[..., Any] = bridge("register_torch_op")(self, name, backward, setup_context)
        return made

    def jax_op(self, *, backward: Any = None) -> Callable[..., Any]:
        """The function, or a module's entry, as an operation of JAX, which takes the inputs and
        returns the outputs: see :func:`minitvm.contrib.jax_op`.

        Parameters
        ----------
        backward
            The gradient, by a Python function or another built function. Without it, the operation
            can't be differentiated.
        """
        made: Callable[..., Any] = bridge("jax_op")(self, backward=backward)
        return made

    def gufunc(self, signature: str | None = None, *, name: str | None = None) -> np.ufunc:
        """The function, or a module's entry, as a ufunc of numpy, see docs/ufuncs.md.

        Parameters
        ----------
        signature
            The core dimensions, as ``"(m,k),(k,n)->(m,n)"``; by default none. The function's
            arguments have these dimensions, or one variable for the batch in front of them.
        name
            By default the function's own.

        Raises
        ------
        ValueError, TypeError
            When the arguments don't fit the signature, or numpy has no such argument.
        """
        made: np.ufunc = bridge("function_gufunc")(self, signature, name=name)
        return made
