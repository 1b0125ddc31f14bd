"""Deterministic core: graphs, scheduling, checkpoint decisions, operators, time, windows. No Ray, no clock, no I/O.

May import: `headrace.state`. Start reading at `kernel.machine`, then `task.task`.
"""
