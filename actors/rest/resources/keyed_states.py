"""The state of a key: live, or from the newest checkpoint, of states that their program has made queryable.

State may be private, so values are under the same switch as records (``rest.record-samples.enabled``), need the token
that allows everything, and have the same fields hidden. Which states there are, and of what type their keys are, is
told to everybody who may look.

Source: Flink's queryable state, which has no REST.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headrace.engine.errors import (
    ClusterUnavailableError,
    StateQueryError,
    StateUnavailableError,
    TypeMismatchError,
)
from headrace.engine.kernel.machine import Address
from headrace.engine.kernel.rest_settings import RestSettings
from headrace.engine.protocol.query_messages import StateDescription
from headrace.state.identifiers import JobId
from headrace.state.open.column_types import schema_of_field, values_of
from headrace.state.values.json_keys import example_of_key, key_of_text
from headrace.state.values.json_text import json_text
from headrace.state.values.type_sources import schema_text

from ...clients.state_queries import query_state, queryable_states
from ...hosts.masking import without_hidden
from .questions import AsksCluster
from .routes import RestError, RestRequest

__all__ = ["CONSISTENCIES", "StatesOfKeys"]

CONSISTENCIES = ("live", "checkpoint")

MOST_QUESTIONS = 4
"""At the same time."""

MOST_ROWS = 100
"""Windows of a key that are shown."""

MOST_CHARACTERS = 20_000
"""Of one value."""

ALL = "*"
_MOST_MS = (1 << 63) - 1


class _Asker:
    """A cluster as what asks for state wants it."""

    def __init__(self, cluster: AsksCluster) -> None:
        self._cluster = cluster

    def ask_job(self, job_id: JobId, request: Any, timeout_ms: int) -> Any:
        return self._cluster.ask_job(job_id, request, timeout_ms)

    def ask_machine(self, address: Address, request: Any, timeout_ms: int) -> Any:
        return self._cluster.ask_machine(address, request, timeout_ms)

    def wait(self, duration_ms: int) -> None:
        time.sleep(duration_ms / 1_000)


class StatesOfKeys:
    """Answers for queryable state.

    Args:
        settings: The server's.
    """

    def __init__(self, settings: RestSettings) -> None:
        self._is_enabled = settings.allows_record_samples
        self._masked = frozenset(name.lower() for name in settings.masked_fields)
        self._room = threading.BoundedSemaphore(MOST_QUESTIONS)

    def names(self, request: RestRequest) -> Any:
        """Return which states of an operator may be asked for, and of what type their keys are."""
        consistency = request.query.get("consistency", "live")
        return {
            "operator": request.path["operatorid"],
            "consistency": consistency,
            "states": [_description(one) for one in self._known(request, consistency)],
        }

    def state(self, request: RestRequest) -> Any:
        """Return what a state holds for a key."""
        if not self._is_enabled:
            raise RestError(403, "state is not shown by this cluster: rest.record-samples.enabled is false")
        consistency = request.query.get("consistency", "live")
        if not self._room.acquire(blocking=False):
            raise RestError(503, f"state is asked for by {MOST_QUESTIONS} others; ask again later")
        try:
            state = self._find(request, self._known(request, consistency))
            window = _window(request, state)
            key = _key(request.query["key"], state)
            table = query_state(
                _Asker(request.cluster.cluster),
                JobId(request.path["jobid"]),
                request.path["operatorid"],
                state.queryable,
                [key],
                window=window,
                consistency=consistency,
                timeout=request.cluster.timeout_ms / 1_000,
            )
        except TypeMismatchError as error:
            raise RestError(400, str(error)) from error
        except StateQueryError as error:
            raise RestError(409, str(error)) from error
        except StateUnavailableError as error:
            raise RestError(503, str(error)) from error
        finally:
            self._room.release()
        wanted = request.query.get("mask") or []
        masked = self._masked | {name.lower() for name in wanted if name != ALL}
        return {
            "operator": request.path["operatorid"],
            **_description(state),
            "consistency": consistency,
            "key": json_text(key, str),
            "masked-fields": sorted(masked),
            **_rows(table, masked, hides_values=ALL in wanted),
        }

    def _known(self, request: RestRequest, consistency: str) -> list[StateDescription]:
        """The operator's states.

        Raises:
            RestError: 404 if there is no such operator, 503 if it does not answer now.
        """
        asker, job_id = _Asker(request.cluster.cluster), JobId(request.path["jobid"])
        timeout_s = request.cluster.timeout_ms / 1_000
        try:
            return queryable_states(
                asker, job_id, request.path["operatorid"], consistency=consistency, timeout=timeout_s
            )
        except StateQueryError as error:
            raise RestError(404, str(error)) from error
        except (StateUnavailableError, ClusterUnavailableError) as error:
            raise RestError(503, str(error)) from error

    def _find(self, request: RestRequest, known: list[StateDescription]) -> StateDescription:
        wanted = request.path["statename"]
        found = next((one for one in known if one.queryable == wanted), None)
        found = found or next((one for one in known if one.name == wanted), None)
        if found is None:
            names = ", ".join(one.queryable for one in known) or "none"
            message = (
                f"operator {request.path['operatorid']!r} does not answer for state {wanted!r}; it does for: {names}"
            )
            raise RestError(404, f"{message}. A program makes state queryable by its descriptor (set_queryable)")
        return found


def _description(state: StateDescription) -> dict[str, Any]:
    schema = state.key_schema
    return {
        "state": state.queryable,
        "kind": state.kind,
        "windowed": state.is_windowed,
        "value-type": state.value_type,
        "key-type": None if schema is None else schema_text(schema),
        "key-example": None if schema is None else example_of_key(schema),
    }


def _key(text: str, state: StateDescription) -> Any:
    return key_of_text(text, state.key_schema)


def _window(request: RestRequest, state: StateDescription) -> tuple[int, int] | None:
    parts = request.query.get("window")
    if not parts:
        return None
    if not state.is_windowed:
        raise RestError(400, f"state {state.queryable!r} is not one of windows; a window was asked for")
    try:
        start, end = (int(part) for part in parts)
    except ValueError:
        start, end = 1, 0
    if not -_MOST_MS - 1 <= start <= end <= _MOST_MS:
        message = f"window must be start and end in epoch milliseconds, as 0,60000; got {','.join(parts)[:100]!r}"
        raise RestError(400, message)
    return start, end


def _rows(table: pa.Table, masked: frozenset[str], *, hides_values: bool) -> dict[str, Any]:
    name = table.column_names[-1]
    found = table.filter(table.column("found"))
    shown = found.slice(0, MOST_ROWS)
    schema = schema_of_field(table.schema.field(name))
    is_map = isinstance(schema, dict) and "map" in schema
    rows = []
    for index, value in enumerate(values_of(shown.column(name), schema, name)):
        row: dict[str, Any] = {}
        if "window_start" in table.column_names:
            row["window-start"] = shown.column("window_start")[index].as_py()
            row["window-end"] = shown.column("window_end")[index].as_py()
        if is_map and hides_values:
            text = f'"<map of {len(value)}>"'  # its keys are data, not names of fields
        else:
            text = _text(without_hidden(value, masked, hides_values=hides_values))
        row["value"] = text[:MOST_CHARACTERS]
        row["is-cut"] = len(text) > MOST_CHARACTERS
        rows.append(row)
    return {
        "found": found.num_rows > 0,
        "holds": name,
        "values": rows,
        "left-out": found.num_rows - len(rows),
    }


def _text(value: Any) -> str:
    """JSON; of a map whose keys can be no names, its entries."""
    try:
        return json_text(value, repr)
    except TypeMismatchError:
        if isinstance(value, Mapping):
            return json_text(list(value.items()), repr)
        raise
