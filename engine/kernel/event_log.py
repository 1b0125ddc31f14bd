"""What happened in a machine: a bounded story that can be asked for, and the lines of the operational log.

A machine only notes: what it is about, in words, and when. Its host takes what is new and hands it to Python's
``logging`` (`headrace.actors.hosts.host`), one line an event, of keys and values; and answers `FetchStory` with the
same lines. `line` is the one place where an event becomes text, and where secrets in it are masked.

Source: Flink's log lines of ``ExecutionGraph`` and ``CheckpointCoordinator``; dask's ``story``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from typing import Any, NamedTuple

from headrace.state.credentials import masked
from headrace.state.identifiers import ExecutionAttemptId, VertexId

__all__ = ["Event", "EventLog", "FetchStory", "key_values", "line"]


_KINDS = ("checkpoint", "job")
"""What is told apart by the first word of what an event is about."""


@dataclass(frozen=True, slots=True)
class FetchStory:
    """Ask any machine what it remembers. Answer, at once: a list of lines (see `line`), oldest first.

    Attributes:
        about: What the events are about: a prefix of an attempt's or host's name, ``job``, ``checkpoint 3``; empty for
            all.
    """

    about: str = ""


class Event(NamedTuple):
    """Something that happened.

    Attributes:
        at_ms: When, epoch milliseconds.
        about: What it is about: an execution attempt, or the name of anything else.
        text: What happened.
    """

    at_ms: int
    about: object
    text: str


class EventLog:
    """The last things that happened in one machine.

    Args:
        capacity: Events kept.
        **facts: What all events have in common, such as ``job``; see `know`.
    """

    def __init__(self, capacity: int = 2_000, **facts: Any) -> None:
        self._events: deque[Event] = deque(maxlen=capacity)
        self._facts = facts
        # The names of vertices, whose ids mean nothing to people.
        self.operators: Mapping[VertexId, str] = {}
        # How many there have been in all.
        self.num_events = 0

    def know(self, **facts: Any) -> None:
        """Change what all events have in common, such as the leader's ``epoch``."""
        self._facts.update(facts)

    def add(self, now_ms: int, about: object, text: str) -> None:
        """Note an event about a task (by its attempt), checkpoint, slot or the job."""
        self._events.append(Event(now_ms, about, text))
        self.num_events += 1

    def story(self, about: object = "") -> list[str]:
        """Return the events about one thing as lines, oldest first; a prefix such as a vertex's id or name will do."""
        wanted = str(about)
        return [self._line(event) for event in self._events if any(n.startswith(wanted) for n in self._names(event))]

    def _names(self, event: Event) -> tuple[str, ...]:
        about = event.about
        if not isinstance(about, ExecutionAttemptId) or about.vertex not in self.operators:
            return (str(about),)
        return str(about), f"{self.operators[about.vertex]}[{about.subtask}]"

    def _line(self, event: Event) -> str:
        return line(event, self._facts, self.operators)

    def newest(self, number: int) -> list[str]:
        """Return the newest events as lines, oldest first; as many as are kept."""
        skipped = max(len(self._events) - number, 0)
        return [self._line(event) for event in islice(self._events, skipped, None)]


def line(event: Event, facts: Mapping[str, Any], operators: Mapping[VertexId, str]) -> str:
    """Return an event as one line of keys and values, without secrets.

    ``time`` (UTC), then what all events of the machine have in common (``job``, ``epoch``); ``operator``, ``subtask``,
    ``attempt`` and ``epoch`` of a task, ``checkpoint`` of a checkpoint, ``job`` of a job, else ``about``; and
    ``event``. Values with blanks are quoted, and have no line breaks.
    """
    time = datetime.fromtimestamp(event.at_ms / 1_000, timezone.utc).isoformat(timespec="milliseconds")
    pairs: dict[str, Any] = {"time": time.replace("+00:00", "Z"), **facts}
    about = event.about
    if isinstance(about, ExecutionAttemptId):
        operator = operators.get(about.vertex, about.vertex)
        pairs |= {"operator": operator, "subtask": about.subtask, "attempt": about.attempt, "epoch": about.epoch}
    else:
        kind, _, name = str(about).partition(" ")
        pairs |= {kind: name} if name and kind in _KINDS else {"about": about}
    pairs["event"] = masked(event.text)
    return key_values(pairs)


def key_values(pairs: Mapping[str, Any]) -> str:
    """Keys and values as one line: values with blanks are quoted, and have no line breaks."""
    return " ".join(f"{key}={_value(str(value))}" for key, value in pairs.items())


def _value(text: str) -> str:
    if text and not any(character.isspace() or character in "\"'=" for character in text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + " ".join(escaped.split()) + '"'
