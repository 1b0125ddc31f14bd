"""The keys that subtasks read most, where the cluster shows records: what makes one of several subtasks slow.

Keys are data of the program, so they are shown as records are: only where ``rest.record-samples.enabled`` says so, with
the token that allows everything, and with the same fields hidden.

Not of Flink.
"""

from __future__ import annotations

from typing import Any

from headrace.engine.protocol.observation_messages import FindHotKeys, HotKeys

from .routes import RestError, RestRequest
from .samples import LooksAtRecords, running_hosts
from .vertices import find_subtask

__all__ = ["HotKeysOfVertices"]

DEFAULT_KEYS = 5
MOST_KEYS = 50
"""Of each subtask."""

LOOK_MS = 1_000
"""So long records are waited for."""


class HotKeysOfVertices(LooksAtRecords):
    """Answers with the keys that the subtasks of a vertex read most on one of its inputs."""

    def __call__(self, request: RestRequest) -> Any:
        """The keys that subtasks are sent most on an input; looks for a second. None where it is not keyed."""
        view, more, edge_id = self.input_of(request, "keys")
        number = request.query.get("num", DEFAULT_KEYS)
        if not 1 <= number <= MOST_KEYS:
            raise RestError(400, f"num must be from 1 to {MOST_KEYS}")
        wanted = request.query.get("subtask")
        subtasks = more.subtasks if wanted is None else [find_subtask(more, str(wanted))]
        masked, hides_values = self.masked(request)
        question = FindHotKeys(view.vertex_id, edge_id, number, LOOK_MS, wanted, masked, hides_values)
        found: list[HotKeys] = self.ask(request, running_hosts(subtasks), question)
        return {
            "id": view.vertex_id,
            "edge": edge_id,
            "masked-fields": sorted(masked),
            "subtasks": [_as_json(one) for one in sorted(found, key=lambda one: one.attempt.subtask)],
        }


def _as_json(one: HotKeys) -> dict[str, Any]:
    return {
        "subtask": one.attempt.subtask,
        "attempt-number": one.attempt.attempt,
        "records": one.num_records,
        "looked-at": one.num_looked_at,
        "keys-seen": one.num_keys,
        "keys": [{"key": key.text, "share": key.share} for key in one.keys],
    }
