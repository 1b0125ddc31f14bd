"""Joins of two streams by nearness in time, by version, and by window.

May import: `headrace.engine.windows` and the rooms below it. Start reading at `interval`.
"""
