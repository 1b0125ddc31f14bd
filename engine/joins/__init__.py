"""Joins of two streams by nearness in time, by version, and by window; and look-ups in outside tables.

May import: `headrace.engine.windows` and the rooms below it. Start reading at `interval`.
"""
