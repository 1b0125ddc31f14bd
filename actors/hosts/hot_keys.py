"""Names the keys that tasks are sent most, when somebody asks: a look at what arrives, for a moment.

As of samples of records (`record_samples`) a channel pays for it with one comparison a message while nobody looks. Who
looks takes some rows of each batch, and how many it had; their keys are found and counted in the thread that asks, so
what is kept is bounded, whatever the number of keys. Shares are estimates, of ten thousand rows at most.

Keys are data of the program as its records are, and are hidden as those are (`masking`).
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from headrace.engine.columns.records import Batch
from headrace.engine.functions.keys import KeySelector
from headrace.engine.protocol.observation_messages import FindHotKeys, HotKey, HotKeys
from headrace.engine.protocol.task_messages import DataMessage
from headrace.state.identifiers import ExecutionAttemptId, VertexId
from headrace.state.values.sharing import shown

from .masking import MASK, without_hidden
from .record_samples import TapChannels

__all__ = ["KeySelectorOf", "hot_keys"]

KeySelectorOf = Callable[[VertexId, int], "KeySelector | None"]
"""By what the tasks of a vertex find the keys of what they are sent on an exchange; None if they have no keys."""

LONGEST_MS = 10_000
LOOK_MS = 20
MOST_KEYS = 100
"""Of one task."""

MOST_ROWS = 10_000
"""Whose keys are counted, of one task."""

ROWS_OF_BATCH = 256
MOST_CHARACTERS = 100
"""Of one key."""


class _Counted:
    """The keys of one task: rows that were taken on its thread, and what those that were looked at have come to.

    Args:
        selector: Finds keys.
    """

    def __init__(self, selector: KeySelector) -> None:
        self._selector = selector
        self._pieces: deque[tuple[Batch, int]] = deque()
        self._num_taken = 0
        self.num_rows = self.num_looked_at = 0
        # By key, for how many records it stands.
        self.weights: defaultdict[Hashable, float] = defaultdict(float)

    @property
    def is_full(self) -> bool:
        return self._num_taken >= MOST_ROWS

    def take(self, message: DataMessage) -> None:
        """Keep some rows of a message, and how many it had; called on the task's thread."""
        for batch in message.elements:
            if not isinstance(batch, Batch) or not batch.num_rows or self.is_full:
                continue
            number = min(batch.num_rows, ROWS_OF_BATCH)
            # Another place in each batch: what makes batches may begin each with the same key.
            begin = self.num_rows % (batch.num_rows - number + 1)
            self.num_rows += batch.num_rows
            self._num_taken += number
            self._pieces.append((batch.slice(begin, number), batch.num_rows))

    def count(self) -> None:
        """Count the keys of the rows so far, and let go of these: records may be large."""
        while self._pieces:
            piece, num_rows = self._pieces.popleft()
            weight = num_rows / piece.num_rows
            for key in self._selector.keys(piece):
                self.weights[key] += weight
            self.num_looked_at += piece.num_rows


def hot_keys(tap_channels: TapChannels, selector_of: KeySelectorOf, request: FindHotKeys) -> list[HotKeys]:
    """Look at an exchange; blocks until there is enough or the time is over.

    Nothing of tasks that have no keys there.
    """
    selector = selector_of(request.vertex, request.edge_id)
    if selector is None:
        return []
    found: defaultdict[ExecutionAttemptId, _Counted] = defaultdict(lambda: _Counted(selector))
    deadline = time.monotonic() + min(request.duration_ms, LONGEST_MS) / 1_000
    try:
        attempts = tap_channels(request.vertex, request.edge_id, lambda attempt, message: found[attempt].take(message))
        wanted = [one for one in attempts if request.subtask in (None, one.subtask)]
        while time.monotonic() < deadline and not all(found[attempt].is_full for attempt in wanted):
            time.sleep(LOOK_MS / 1_000)
            for attempt in wanted:
                found[attempt].count()
    finally:
        tap_channels(request.vertex, request.edge_id, None)
    for attempt in wanted:
        found[attempt].count()
    return [_answer(attempt, found[attempt], selector, request) for attempt in wanted]


def _answer(attempt: ExecutionAttemptId, counted: _Counted, selector: KeySelector, request: FindHotKeys) -> HotKeys:
    weights = counted.weights
    total = sum(weights.values())
    largest = heapq.nlargest(min(request.num_keys, MOST_KEYS), weights.items(), key=lambda item: item[1])
    keys = tuple(HotKey(_text(key, selector, request), weight / total) for key, weight in largest)
    return HotKeys(attempt, counted.num_rows, counted.num_looked_at, len(weights), keys)


def _text(key: Any, selector: KeySelector, request: FindHotKeys) -> str:
    names: Sequence[str] | None = selector.field_names
    if names is None or request.hides_values:
        return shown(without_hidden(key, request.masked, hides_values=request.hides_values), MOST_CHARACTERS)
    parts = (key,) if len(names) == 1 else key
    clear = [MASK if name.lower() in request.masked else part for name, part in zip(names, parts, strict=True)]
    return shown(clear[0] if len(names) == 1 else tuple(clear), MOST_CHARACTERS)
