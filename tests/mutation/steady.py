"""A plugin of pytest: hypothesis draws the same examples every time, and writes nothing down."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("steady", derandomize=True, database=None, deadline=None, max_examples=50)
settings.load_profile("steady")
