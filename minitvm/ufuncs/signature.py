"""Signatures of generalised ufuncs: ``"(m,k),(k,n)->(m,n)"``."""

from __future__ import annotations

import re
from typing import final

from minitvm.runtime.record import record

_GROUP = r"\(\s*(?:\w+\s*(?:,\s*\w+\s*)*)?\)"
_SIDE = rf"\s*{_GROUP}\s*(?:,\s*{_GROUP}\s*)*"
_SIGNATURE = re.compile(rf"({_SIDE})->({_SIDE})", re.ASCII)


@final
@record()
class Signature:
    """The core dimensions of each input and each output, by their names; a number is its own name,
    and at the same time an extent."""

    text: str
    inputs: tuple[tuple[str, ...], ...]
    outputs: tuple[tuple[str, ...], ...]

    @property
    def operands(self) -> tuple[tuple[str, ...], ...]:
        return self.inputs + self.outputs

    @property
    def names(self) -> tuple[str, ...]:
        """The different dimensions, in the order in which numpy numbers them."""
        return tuple(dict.fromkeys(name for each in self.operands for name in each))


def parse_signature(text: str) -> Signature:
    """A signature from its text.

    Raises
    ------
    ValueError
        For a text that is no signature.

    >>> parse_signature("(m,k),(k)->(m)").names
    ('m', 'k')
    >>> parse_signature("(m?,k)->(k)")
    Traceback (most recent call last):
    ...
    ValueError: gufunc: expected a signature such as '(m,k),(k,n)->(m,n)', got '(m?,k)->(k)'
    """
    found = _SIGNATURE.fullmatch(text) if isinstance(text, str) else None
    parts = found.groups() if found else ("", "")
    sides = [
        tuple(tuple(re.findall(r"\w+", group)) for group in re.findall(_GROUP, side))
        for side in parts
    ]
    signature = Signature(str(text), sides[0], sides[1])
    if found is None or any(name[0].isdigit() and not name.isdigit() for name in signature.names):
        raise ValueError(f"gufunc: expected a signature such as '(m,k),(k,n)->(m,n)', got {text!r}")
    return signature
