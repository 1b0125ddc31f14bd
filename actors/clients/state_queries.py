"""The client's side of queryable state: which subtask owns which key, asking again, one table in the order asked.

A question is asked live, of the slots that run the job, or of its newest complete checkpoint. Live answers are what the
state is at this moment, uncommitted: after a failure the job may go back behind them. The checkpoint's are committed,
and as old as the checkpoint is.

A subtask that is restarting is asked again, wherever it is by then, until the time is up.

Source: Flink's ``QueryableStateClient``; ``KeyedStream.asQueryableState``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from headrace.engine.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    ClusterUnavailableError,
    ConfigurationError,
    StateQueryError,
    StateUnavailableError,
)
from headrace.engine.protocol.asks_jobs import AsksJobs
from headrace.engine.protocol.messages import WaitForJob
from headrace.engine.protocol.query_messages import (
    DescribeStates,
    LocateState,
    QueryState,
    StateAnswered,
    StateDescription,
    StateLocated,
    StatesDescribed,
)
from headrace.engine.protocol.views import JobView
from headrace.state.checkpoints.manifest import OperatorState
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.identifiers import JobId
from headrace.state.keys.hashing import hash_keys
from headrace.state.keys.key_groups import key_groups_of, subtask_of
from headrace.state.open.column_types import (
    array_of,
    field_of,
    is_certain,
    refined,
    schema_of_field,
    schema_of_values,
    values_of,
)
from headrace.state.open.plain_objects import plain_value
from headrace.state.open.reader import EVERYTHING, Selection, SnapshotReader, encoded_key
from headrace.state.open.stored_states import StoredState, states_of
from headrace.state.open.values import Opaque, open_pickle
from headrace.state.reading.signing import key_file_of
from headrace.state.reading.stored_pickles import unpickle_value
from headrace.state.values.type_sources import schema_text
from headrace.state.values.types import Schema

__all__ = ["query_state", "queryable_states"]

_RETRY_MS = 50
_PATIENCE_MS = 2_000
"""A slot that has not answered by then is asked again: it may be in a long step, or be gone."""

_MOST_OWNERS = 16
"""Slots that are asked which states there are, until one holds a key of each."""

_MAX_KEYS = 1_000
"""Keys per question: an answer is made between two steps of a slot, which must not be long."""

_Found = tuple[int, tuple[int, int] | None, Any]
"""Position of the key, window, value."""


def query_state(
    cluster: AsksJobs,
    job_id: JobId,
    operator: str,
    state: str,
    keys: Iterable[Any],
    *,
    window: tuple[int, int] | None = None,
    consistency: str = "live",
    timeout: float = 10.0,
    allow_pickle: bool = False,
) -> pa.Table:
    """Ask a running job what its state holds for some keys.

    Only states that their descriptors declare queryable (`StateDescriptor.set_queryable`) are answered for. What has
    outlived its time to live is not found.

    Args:
        cluster: Where the job runs.
        job_id: The job.
        operator: The operator's uid or name.
        state: The name that the state is queryable under, or its own.
        keys: The keys, of the type that the stream's keys have.
        window: Of windowed state: only this window (start and end, epoch milliseconds); None for all.
        consistency: ``live``, or ``checkpoint`` for what the newest complete checkpoint holds.
        timeout: Seconds to try.
        allow_pickle: Whether objects of undeclared types may come as pickles and be built here.

    Shape: ``key``, ``found`` and ``value``, in the order asked, a key that is asked twice twice. A list's value is a
        list, a map's a map. Windowed state has ``window_start`` and ``window_end`` too, and a row per window of a key,
        in their order. The value of aggregating state is the aggregate's result; in a checkpoint there are only
        accumulators, and the column's name is ``accumulator``.

    Raises:
        StateQueryError: If the job has no such operator or state, or does not answer for it.
        StateUnavailableError: If a subtask that owns a key was not running all the time, or there is no checkpoint.
        TypeMismatchError: If a key is of another type than the state's keys, or can be no key.
        ConfigurationError: If ``consistency`` is neither.
    """
    asked = list(keys)
    window = None if window is None else (window[0], window[1])
    hashes = hash_keys(asked) if asked else None
    _require_consistency(consistency)

    def ask(deadline: float) -> pa.Table:
        if consistency == "live":
            return _ask_slots(cluster, job_id, operator, state, asked, hashes, window, deadline, allow_pickle)
        return _ask_checkpoint(cluster, job_id, operator, state, asked, hashes, window, allow_pickle)

    table: pa.Table = _patiently(cluster, f"state {state!r} of operator {operator!r}", timeout, ask)
    return table


def _require_consistency(consistency: str) -> None:
    if consistency not in ("live", "checkpoint"):
        message = f"consistency must be 'live' or 'checkpoint'; got {consistency!r}"
        raise ConfigurationError(message)


def _patiently(cluster: AsksJobs, what: str, timeout: float, ask: Callable[[float], Any]) -> Any:
    """Ask, and again where a subtask is restarting or a checkpoint has just been removed, until the time is up."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return ask(deadline)
        except (
            StateUnavailableError,
            ClusterUnavailableError,
            CheckpointNotFoundError,
            CheckpointCorruptError,
        ) as error:
            if time.monotonic() >= deadline:
                message = f"{what} could not be asked for within {timeout:g} s: {error}"
                hint = "a subtask that restarts is asked again; give it more time"
                raise StateUnavailableError(message, hint=hint) from error
            cluster.wait(_RETRY_MS)


# ---------------------------------------------------------------------------------------------------------------- live
def _ask_slots(
    cluster: AsksJobs,
    job_id: JobId,
    operator: str,
    state: str,
    keys: list[Any],
    hashes: Any,
    window: tuple[int, int] | None,
    deadline: float,
    allow_pickle: bool,
) -> pa.Table:
    located: StateLocated = cluster.ask_job(job_id, LocateState(operator), _left_ms(deadline))
    if not located.owners:
        message = f"operator {operator!r} is not running"
        raise StateUnavailableError(message)
    # Also with no keys a slot is asked: whether there is such a state should not depend on them.
    positions: dict[int, list[int]] = {} if keys else {0: []}
    if keys:
        groups = key_groups_of(hashes, located.max_parallelism)
        for position, subtask in enumerate(subtask_of(groups, located.max_parallelism, len(located.owners)).tolist()):
            positions.setdefault(subtask, []).append(position)
    found: list[_Found] = []
    answers = []
    schemas: list[Schema] = []
    questions = [
        (subtask, mine[start : start + _MAX_KEYS])
        for subtask, mine in sorted(positions.items())
        for start in range(0, max(len(mine), 1), _MAX_KEYS)
    ]
    for subtask, mine in questions:
        owner = located.owners[subtask]
        own = tuple(keys[position] for position in mine)
        request = QueryState(owner.attempt, located.operator, state, own, window, allow_pickle)
        answer: StateAnswered = cluster.ask_machine(owner.address, request, min(_PATIENCE_MS, _left_ms(deadline)))
        answers.append(answer)
        if answer.is_known:
            table = pa.ipc.open_stream(answer.rows).read_all()
            schema = schema_of_field(table.schema.field("value"))
            schemas.append(schema)
            values = values_of(table.column("value"), schema)
            columns = (table.column(name).to_pylist() for name in ("position", "window_start", "window_end"))
            for position, start, end, value in zip(*columns, values, strict=True):
                found.append((mine[position], None if start is None else (start, end), value))
    if not any(answer.is_known for answer in answers):
        declared = sorted({name for answer in answers for name in answer.declared})
        message = f"operator {located.operator!r} does not answer for state {state!r}; it does for: "
        hint = "make its descriptor queryable (set_queryable), and declare it in open(): before that it is not known"
        raise StateQueryError(message + (", ".join(declared) or "none"), hint=hint)
    is_windowed = any(answer.is_windowed for answer in answers)
    if keys and not found:
        # Whether the keys are of the right type can only be told where there are some.
        for owner in (owner for subtask, owner in enumerate(located.owners) if subtask not in positions):
            request = QueryState(owner.attempt, located.operator, state, tuple(keys[:_MAX_KEYS]), window, allow_pickle)
            cluster.ask_machine(owner.address, request, min(_PATIENCE_MS, _left_ms(deadline)))
    agreed = schemas[0] if schemas and all(schema == schemas[0] for schema in schemas) else None
    return _table(keys, found, agreed, is_windowed, "value", allow_pickle)


def _left_ms(deadline: float) -> int:
    return max(1, int((deadline - time.monotonic()) * 1_000))


# ---------------------------------------------------------------------------------------------------------- checkpoints
def _ask_checkpoint(
    cluster: AsksJobs,
    job_id: JobId,
    operator: str,
    state: str,
    keys: list[Any],
    hashes: Any,
    window: tuple[int, int] | None,
    allow_pickle: bool,
) -> pa.Table:
    storage, known = _newest_checkpoint(cluster, job_id, operator)
    stored = _queryable(states_of(known), operator, state)
    if window is not None and not stored.windowed:
        message = f"state {stored.name!r} is not one of windows; a window was asked for"
        raise StateQueryError(message)
    groups = key_groups_of(hashes, known.max_parallelism).tolist() if keys else []
    encoded = [encoded_key(key) for key in keys]
    places: dict[bytes, list[int]] = {}
    for position, key in enumerate(encoded):
        places.setdefault(key, []).append(position)
    selection = Selection(keys=dict(zip(encoded, groups, strict=True)))
    now_ms = time.time_ns() // 1_000_000
    held: dict[tuple[bytes, Any], list[tuple[Any, Any]]] = {}
    reader = SnapshotReader(storage)
    try:
        unpickle = unpickle_value if allow_pickle else open_pickle
        for row in reader.rows(stored, selection, unpickle):
            if window is not None and row.namespace != window:
                continue
            if row.updated_ms is not None and stored.ttl_ms is not None and row.updated_ms + stored.ttl_ms <= now_ms:
                continue
            place = (encoded_key(row.key), row.namespace)
            held.setdefault(place, []).append((row.inner, row.value))
    except CheckpointMismatchError as error:
        message = f"state {stored.name!r} cannot be asked for these keys in a checkpoint: {error.message}"
        hint = "ask with allow_pickle=True, if you trust the writer of the checkpoint"
        raise StateQueryError(message, hint=hint) from error
    finally:
        reader.close()
    layout = stored.layout
    found = [
        (position, namespace, layout.whole(parts))
        for (key, namespace), parts in held.items()
        for position in places[key]
    ]
    declared: Schema = layout.schema(stored.value_schema, stored.map_key_schema)
    if not allow_pickle and any(isinstance(value, Opaque) for _, _, value in found):
        message = f"state {stored.name!r} holds objects of a type that is not declared"
        hint = "declare the state's value type, or ask with allow_pickle=True"
        raise StateQueryError(message, hint=hint)
    name = "value" if stored.shows_parts else "accumulator"
    return _table(keys, found, declared, stored.windowed, name, allow_pickle)


def _newest_checkpoint(cluster: AsksJobs, job_id: JobId, operator: str) -> tuple[CheckpointStorage, OperatorState]:
    """Where the newest complete checkpoint is, and what it has of an operator."""
    view: JobView = cluster.ask_job(job_id, WaitForJob(-1, 0), _PATIENCE_MS)
    if view.last_checkpoint_path is None:
        message = "the job has no complete checkpoint yet"
        raise StateUnavailableError(message)
    storage, manifest = CheckpointStorage.from_manifest(view.last_checkpoint_path, key_file_of(None))
    known = [found for found in manifest.operators if found.uid == operator]
    known = known or [found for found in manifest.operators if found.name == operator]
    if len(known) != 1:
        message = f"checkpoint {manifest.checkpoint_id} has no state of an operator {operator!r}"
        raise StateQueryError(message)
    return storage, known[0]


def _queryable(states: dict[str, StoredState], operator: str, name: str) -> StoredState:
    declared = {state.queryable: state for state in states.values() if state.queryable is not None}
    found = declared.get(name) or next((state for state in declared.values() if state.name == name), None)
    if found is None:
        message = f"operator {operator!r} does not answer for state {name!r}; it does for: "
        hint = "only state whose descriptor was made queryable (set_queryable) is answered for"
        raise StateQueryError(message + (", ".join(sorted(declared)) or "none"), hint=hint)
    return found


# ------------------------------------------------------------------------------------------------------ what there is
def queryable_states(
    cluster: AsksJobs, job_id: JobId, operator: str, *, consistency: str = "live", timeout: float = 10.0
) -> list[StateDescription]:
    """Say which states of an operator clients may ask for, and of what type their keys are.

    Args:
        cluster: Where the job runs.
        job_id: The job.
        operator: The operator's uid or name.
        consistency: As of `query_state`.
        timeout: Seconds to try.

    Raises:
        StateQueryError: If the job has no such operator.
        StateUnavailableError: If the operator was not running all the time, or there is no checkpoint.
        ConfigurationError: If ``consistency`` is neither.
    """
    _require_consistency(consistency)

    def ask(deadline: float) -> list[StateDescription]:
        if consistency == "live":
            return _states_of_slots(cluster, job_id, operator, deadline)
        return _states_of_checkpoint(cluster, job_id, operator)

    found: list[StateDescription] = _patiently(cluster, f"the states of operator {operator!r}", timeout, ask)
    return found


def _states_of_checkpoint(cluster: AsksJobs, job_id: JobId, operator: str) -> list[StateDescription]:
    storage, known = _newest_checkpoint(cluster, job_id, operator)
    reader = SnapshotReader(storage)
    try:
        stored = [one for one in states_of(known).values() if one.queryable is not None]
        return [_described(one, reader) for one in sorted(stored, key=lambda one: one.queryable or "")]
    finally:
        reader.close()


def _states_of_slots(cluster: AsksJobs, job_id: JobId, operator: str, deadline: float) -> list[StateDescription]:
    located: StateLocated = cluster.ask_job(job_id, LocateState(operator), _left_ms(deadline))
    if not located.owners:
        message = f"operator {operator!r} is not running"
        raise StateUnavailableError(message)
    found: dict[str, StateDescription] = {}
    for owner in located.owners[:_MOST_OWNERS]:
        request = DescribeStates(owner.attempt, located.operator)
        answer: StatesDescribed = cluster.ask_machine(owner.address, request, min(_PATIENCE_MS, _left_ms(deadline)))
        for one in answer.states:
            known_one = found.get(one.queryable)
            if known_one is None or known_one.key_schema is None:
                found[one.queryable] = one
        if found and all(one.key_schema is not None for one in found.values()):
            break
    return [found[name] for name in sorted(found)]


def _described(stored: StoredState, reader: SnapshotReader) -> StateDescription:
    first = next(iter(reader.rows(stored, EVERYTHING, open_pickle)), None)
    is_known = first is not None and not isinstance(first.key, Opaque)
    key_schema = schema_of_values([first.key]) if first is not None and is_known else None
    value_type = None if stored.value_schema is None else schema_text(stored.value_schema)
    return StateDescription(
        stored.queryable or stored.name, stored.name, stored.kind, stored.windowed, value_type, key_schema
    )


# ----------------------------------------------------------------------------------------------------------- the answer
def _table(
    keys: list[Any], found: list[_Found], declared: Schema, is_windowed: bool, name: str, allow_pickle: bool
) -> pa.Table:
    by_position: dict[int, list[_Found]] = {}
    for one in found:
        by_position.setdefault(one[0], []).append(one)
    rows: list[_Found | None] = []
    order: list[int] = []
    for position in range(len(keys)):
        mine = sorted(by_position.get(position, ()), key=lambda one: one[1] or (0, 0))
        rows.extend(mine or [None])
        order.extend([position] * max(len(mine), 1))
    values = [None if row is None else row[2] for row in rows]
    if allow_pickle:
        values = [plain_value(unpickle_value(v.data) if isinstance(v, Opaque) else v) for v in values]
    schema = declared if is_certain(declared) else refined(declared, schema_of_values(values))
    key_schema = schema_of_values([keys[position] for position in order])
    fields = [field_of("key", key_schema), pa.field("found", pa.bool_())]
    shown = [keys[position] for position in order]
    columns = [array_of(shown, key_schema), pa.array([row is not None for row in rows], pa.bool_())]
    if is_windowed:
        for side, bound in enumerate(("window_start", "window_end")):
            fields.append(pa.field(bound, pa.int64()))
            bounds = [None if row is None or row[1] is None else row[1][side] for row in rows]
            columns.append(pa.array(bounds, pa.int64()))
    fields.append(field_of(name, schema))
    columns.append(array_of(values, schema))
    return pa.table(columns, schema=pa.schema(fields))
