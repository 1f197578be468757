"""Schedules: stages, their loops, the primitives, and the trace of what was applied."""
