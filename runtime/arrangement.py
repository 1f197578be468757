"""How the arrays of a call lie in memory, and the variants of a function for it."""

from __future__ import annotations

# What a caller writes into *ret_type_code to ask for NEEDS_VARIANT instead of an error, where only
# the arrangement of the arrays is not the one that the function was compiled for.
ASKS_FOR_VARIANT = 0x4C41
NEEDS_VARIANT = -2
