"""Names under which the engine keeps state of its own, for those who show checkpoints to people.

The engine's operators give these names to the states that they declare; they are part of what checkpoints hold, and so
never change.
"""

from __future__ import annotations

__all__ = ["COMMITTABLES", "FUNCTION_PREFIX", "SPLITS", "TIMERS"]

TIMERS = {
    "event-time-timers": "event-time",
    "processing-time-timers": "processing-time",
    "window-event-timers": "event-time",
    "window-clock-timers": "processing-time",
}
"""States that hold timers, and their time domains: `headrace.engine.timers`, `headrace.engine.window_general`."""

SPLITS = "splits"
"""What a source's readers are reading: `headrace.engine.sources`."""

COMMITTABLES = "committables"
"""What a sink has prepared and not committed: `headrace.engine.sinks`."""

FUNCTION_PREFIX = "function."
"""Before the names of lists of user functions: `headrace.engine.checkpointed`."""
