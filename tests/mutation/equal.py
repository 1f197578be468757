"""Changes that change nothing, each with its reason.

A change is named by what stands in the results: file, function, the lines before, the lines after.
"""

from __future__ import annotations

EQUAL: dict[tuple[str, str, str, str], str] = {}
