"""Names under which the engine keeps state of its own, for those who show checkpoints to people.

The engine's operators give these names to the states that they declare; they are part of what checkpoints hold, and so
never change.
"""

from __future__ import annotations

__all__ = [
    "BUFFERED_REQUESTS",
    "COMMITTABLES",
    "FUNCTION_PREFIX",
    "PENDING_REPORTS",
    "RUN_MARKS",
    "SINK_HISTORY",
    "SPLITS",
    "STOPPED_WITH_SAVEPOINT",
    "STOPPING",
    "TIMERS",
]

TIMERS = {
    "event-time-timers": "event-time",
    "processing-time-timers": "processing-time",
    "window-event-timers": "event-time",
    "window-clock-timers": "processing-time",
}
"""States that hold timers, and their time domains: of keyed functions, and of windows."""

SPLITS = "splits"
"""What a source's readers are reading: `headrace.engine.connectors.sources`."""

COMMITTABLES = "committables"
"""What a sink has prepared and not committed: `headrace.engine.connectors.sinks`."""

SINK_HISTORY = "history"
"""Whose output a sink goes on from, and up to which checkpoint: `headrace.engine.connectors.sinks`."""

BUFFERED_REQUESTS = "buffered-requests"
"""What an asynchronous sink has not sent, or does not know to be accepted."""

FUNCTION_PREFIX = "function."
"""Before the names of lists of user functions: `headrace.engine.functions.checkpointed`."""

PENDING_REPORTS = "(collected rows)"
"""Where a manifest holds rows that the client had not fetched, beside the enumerators; no operator has such a uid."""

STOPPING = "(stopping)"
"""Where a manifest says, beside the enumerators, that it was taken while the job was being stopped, and how."""

STOPPED_WITH_SAVEPOINT = "(stopped with savepoint)"
"""Where the last checkpoint of a job that was stopped with a savepoint says which, as [request, path of the savepoint].

The savepoint holds the same state as that checkpoint, so a job that restores the checkpoint must process nothing
more."""

RUN_MARKS = frozenset((PENDING_REPORTS, STOPPING, STOPPED_WITH_SAVEPOINT))
"""What concerns only the run that took a checkpoint: everything else beside it is the enumerator of a source."""
