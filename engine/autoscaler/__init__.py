"""Rescaling a job by what it is measured to do: rates in, decisions out. Pure: it reads no clock and sends nothing.

`autoscaler` decides when, `evaluation` works out what a job needs, `topology` says what of it is scaled as one.

May import: `headrace.engine.execution` and the rooms below it. Start reading at `autoscaler`.
"""
