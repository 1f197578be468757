"""Schedules: stages, their loops, the primitives, and the trace of the applied primitives."""
