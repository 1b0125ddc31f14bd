"""Queryable state, the slot's side: values of keyed state, looked up by key for a client.

A slot answers between two steps of its tasks, on the thread that runs them: the answer is the state at one moment,
whole, though no checkpoint may ever hold it (read uncommitted). Different slots answer at different moments. Answers
carry the attempt they come from; a slot where it is not running says so, and the client asks again where its successor
is. Nothing is done for records: a query reads tables that are there anyway.

Only state that its descriptor declares queryable is answered for; all else is the program's own business. Values are
Arrow, in their stored form; an object of an undeclared type is refused unless the client asked for pickles.

Source: Flink's ``KvStateServerHandler``, ``KvStateLocation``, ``QueryableStateClient``; deprecated there since 1.18 for
its unsafe access to state from other threads, which has no counterpart here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.state.keyed.contract import KeyedStateBackend, Namespace
from headrace.state.keyed.kinds import StateDescriptor
from headrace.state.keyed.layouts import NOTHING
from headrace.state.keys.hashing import hash_keys, with_one_nan
from headrace.state.keys.key_groups import key_groups_of
from headrace.state.open.column_types import array_of, field_of, is_certain, refined, schema_of_values
from headrace.state.open.values import Opaque, open_pickle, pickled
from headrace.state.values.sharing import shown
from headrace.state.values.type_sources import schema_text, type_of_hint
from headrace.state.values.types import Schema

from ..errors import (
    HeadraceError,
    StateQueryError,
    StateUnavailableError,
    TypeMismatchError,
    raise_from_outside,
)
from ..protocol.messages import RequestFailed
from ..protocol.query_messages import (
    DescribeStates,
    QueryState,
    StateAnswered,
    StateDescription,
    StatesDescribed,
)
from ..protocol.states import TaskState

if TYPE_CHECKING:
    from .task import Task

__all__ = ["answer_query", "describe_states"]

_MISSING: Any = object()


def answer_query(request: QueryState, task: Task | None, now_ms: int) -> StateAnswered | RequestFailed:
    """Look values up; called by the slot between two steps.

    Args:
        request: What is asked.
        task: The attempt asked for, if it is here.
        now_ms: The clock.
    """
    backend = _backend_of(request, task)
    if isinstance(backend, RequestFailed):
        return backend
    declared = backend.queryable_states()
    descriptor = declared.get(request.state) or next((d for d in declared.values() if d.name == request.state), None)
    if descriptor is None:
        return StateAnswered(request.attempt, False, tuple(declared), False, b"")
    try:
        return _looked_up(request, backend, descriptor, tuple(declared), now_ms)
    except HeadraceError as error:
        error.context.setdefault("operator", request.operator)
        error.context.setdefault("state", request.state)
        return RequestFailed(error)
    except BaseException as error:  # of a key's or value's own code: the question's failure, never the slot's
        raise_from_outside(error)
        message = f"the values asked for could not be told: {error!r}"
        return RequestFailed(StateQueryError(message, operator=request.operator, state=request.state))


def describe_states(request: DescribeStates, task: Task | None) -> StatesDescribed | RequestFailed:
    """Say which states clients may ask for; called by the slot between two steps.

    Args:
        request: What is asked.
        task: The attempt asked for, if it is here.
    """
    backend = _backend_of(request, task)
    if isinstance(backend, RequestFailed):
        return backend if _is_gone(task) else StatesDescribed(())  # an operator without keyed state
    tables: Any = backend.tables()
    try:
        found = tuple(_described(name, one, tables[one.name]) for name, one in backend.queryable_states().items())
    except BaseException as error:  # of a key's own code
        raise_from_outside(error)
        message = f"the states could not be told: {error!r}"
        return RequestFailed(StateQueryError(message, operator=request.operator))
    return StatesDescribed(found)


def _described(queryable: str, descriptor: StateDescriptor, table: Any) -> StateDescription:
    declared = type_of_hint(descriptor.value_type).schema
    value_type = None if declared is None else schema_text(declared)
    key_schema = _key_schema(table)
    return StateDescription(queryable, descriptor.name, descriptor.kind, table.windowed, value_type, key_schema)


def _backend_of(request: QueryState | DescribeStates, task: Task | None) -> KeyedStateBackend | RequestFailed:
    if task is None or _is_gone(task):
        message = "the attempt that was asked is not running"
        return RequestFailed(StateUnavailableError(message, attempt=str(request.attempt)))
    backend = task.keyed_state(request.operator)
    if backend is None:
        message = f"the task has no operator {request.operator!r}"
        return RequestFailed(StateQueryError(message))
    return backend


def _is_gone(task: Task | None) -> bool:
    return task is None or task.state not in (TaskState.RUNNING, TaskState.ENDED)


def _looked_up(
    request: QueryState, backend: KeyedStateBackend, descriptor: StateDescriptor, declared: tuple[str, ...], now_ms: int
) -> StateAnswered:
    table: Any = backend.tables()[descriptor.name]
    if request.window is not None and not table.windowed:
        message = f"state {descriptor.name!r} is not one of windows; a window was asked for"
        raise StateQueryError(message)
    namespaces = [request.window]
    if request.window is None and table.windowed:
        namespaces = sorted(_windows_of(table))
    positions: list[int] = []
    windows: list[Namespace] = []
    values: list[Any] = []
    keys = with_one_nan(list(request.keys))
    groups = key_groups_of(hash_keys(keys), backend.max_parallelism).tolist() if keys else []
    # Keys of others are asked after only for their type.
    owned = [position for position, group in enumerate(groups) if backend.key_groups.contains(group)]
    for namespace in namespaces:
        for position in owned:
            stored = table.look_up(namespace, keys[position], _MISSING)
            value = _MISSING if stored is _MISSING else _visible(descriptor, stored, now_ms)
            if value is not _MISSING:
                positions.append(position)
                windows.append(namespace)
                values.append(value)
    if not values:
        _check_key_type(table, request)
    schema = _schema_of(descriptor, values)
    if not request.allow_pickle and not is_certain(schema) and _has_objects(values):
        message = f"state {descriptor.name!r} holds objects of a type that is not declared"
        hint = "declare the state's value type, or ask with allow_pickle=True"
        raise StateQueryError(message, hint=hint)
    columns = {
        "position": pa.array(positions, pa.int64()),
        "window_start": pa.array([None if window is None else window[0] for window in windows], pa.int64()),
        "window_end": pa.array([None if window is None else window[1] for window in windows], pa.int64()),
        "value": array_of(values, schema),
    }
    fields = [*(pa.field(name, columns[name].type) for name in list(columns)[:3]), field_of("value", schema)]
    batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(fields))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return StateAnswered(request.attempt, True, declared, table.windowed, sink.getvalue().to_pybytes())


def _windows_of(table: Any) -> Iterator[Any]:
    return (namespace for namespace in table.namespaces() if namespace is not None)


def _visible(descriptor: StateDescriptor, stored: Any, now_ms: int) -> Any:
    """What a key holds as plain stored values, without what has expired; or what its kind makes of that."""
    layout, ttl = descriptor.layout, descriptor.ttl
    if ttl is not None:
        stored = layout.live(stored, ttl.cutoff_ms(now_ms))
        if stored is NOTHING:
            return _MISSING
        stored = layout.of_each(lambda unit: unit[0])(stored)
    if not descriptor.shows_parts:
        return descriptor.result(stored)
    lower = type_of_hint(descriptor.value_type).lower
    return stored if lower is None else layout.of_each(lower)(stored)


def _schema_of(descriptor: StateDescriptor, values: list[Any]) -> Schema:
    declared = None  # a result's type is not declared
    if descriptor.shows_parts:
        part, place = (type_of_hint(hint).schema for hint in (descriptor.value_type, descriptor.place_type))
        declared = descriptor.layout.schema(part, place)
    if is_certain(declared):
        return declared
    return refined(declared, schema_of_values(values))


def _has_objects(values: list[Any]) -> bool:
    return any(isinstance(open_pickle(pickled(value)), Opaque) for value in values)


def _check_key_type(table: Any, request: QueryState) -> None:
    """Refuse keys that are not of the type of the state's keys. Called where no key was found.

    Raises:
        TypeMismatchError: If one was not.
    """
    wanted = _key_schema(table)
    if wanted is None:
        return
    for key in request.keys:
        if not _is_alike(schema_of_values([key]), wanted):
            message = f"the state's keys are of type {schema_text(wanted)}; got {shown(key, 120)}"
            raise TypeMismatchError(message)


def _key_schema(table: Any) -> Schema:
    """The type of a key that a table holds; None if it holds none."""
    held = next(iter(table.some_keys()), _MISSING)
    return None if held is _MISSING or isinstance(held, Opaque) else schema_of_values([held])


def _is_alike(one: Schema, other: Schema) -> bool:
    if isinstance(one, dict) and isinstance(other, dict) and "tuple" in one and "tuple" in other:
        parts = (one["tuple"], other["tuple"])
        return len(parts[0]) == len(parts[1]) and all(map(_is_alike, *parts))
    numbers = ("int64", "float64", "bool", "decimal")
    is_open = any(schema == "null" or (isinstance(schema, dict) and "opaque" in schema) for schema in (one, other))
    return is_open or one == other or (one in numbers and other in numbers)
