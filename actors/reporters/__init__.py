"""Reporters: what REST shows is sent where others look: to a collector that speaks OTLP, and to Ray's own metrics.

`spans` makes traces of views and is pure; `open_telemetry` and `ray_metrics` know how to hand things over; `reporter`
does it again and again in a thread, and `host` is its life in the head.

May import: `headrace.actors.hosts`, `headrace.actors.rest`, `headrace.engine`, `headrace.state`.
Start reading at `reporter`.
"""
