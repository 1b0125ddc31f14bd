"""The states of a checkpoint as Arrow tables: which columns a state has, and batches of them.

=====================  ============================================================================================
column                 what it holds
=====================  ============================================================================================
``key``                the key; one that is a tuple or record has a column per field, ``key.f0``, ``key.name`` ...
``window_start/_end``  of windowed state: epoch milliseconds, null outside of windows
``index``              of lists: the element's place
``map_key``            of maps: one row per entry; broadcast maps have ``key`` instead
``value``              the value in its stored form; one that is a tuple or record has a column per field
``updated_at``         with a time to live: the last write; ``expires_at`` besides, if the time is known
``key_group``          of the key; not for state without a key
``subtask``            whose it was
=====================  ============================================================================================

Timers have ``key``, ``time`` (epoch milliseconds) and ``domain`` (``event-time``, ``processing-time``), those of
windows ``window_start`` and ``window_end`` too. Columnar state has its own columns between those of its windows and the
last two.

Types that no declaration tells are found in a first pass over the rows, so batches of one state have one schema
however many there are, and never more than one batch is in memory.

Source: Flink's State Processor API; FLIP-43.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from ..errors import TypeMismatchError
from ..keyed.layouts import ELEMENTS
from ..values.types import Schema
from .column_types import Observed, array_of, field_of, fields_of, is_certain, refined
from .names import TIMERS
from .reader import EVERYTHING, Row, Selection, SnapshotReader
from .stored_states import StoredState
from .values import Unpickle

__all__ = ["StateColumns", "columnar_tables", "observed_columns"]

_UTC_MS = pa.timestamp("ms", "UTC")
_SUBTASK = pa.field("subtask", pa.int32())
_KEY_GROUP = pa.field("key_group", pa.int32())
_BOUNDS = (pa.field("window_start", pa.int64()), pa.field("window_end", pa.int64()))


def _is_timers(state: StoredState) -> bool:
    return state.kind == "table" and state.windowed and state.name in TIMERS


class StateColumns:
    """The columns of one state, and how rows become batches of them.

    Args:
        state: The state; not a columnar one.
        key_schema: Of its keys.
        map_key_schema: Of a map's keys.
        value_schema: Of its values.
        flatten: Whether tuples and records get a column per field.

    Attributes:
        schema: The schema of all batches.
    """

    def __init__(
        self, state: StoredState, key_schema: Schema, map_key_schema: Schema, value_schema: Schema, *, flatten: bool
    ) -> None:
        self._state = state
        self._flatten = flatten
        self._key_schema = key_schema
        self._map_key_schema = map_key_schema
        self._value_schema = value_schema
        self.schema = self.batch([]).schema

    def batches(self, rows: Iterator[Row], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Turn rows into batches.

        Args:
            rows: The rows.
            batch_rows: How many a batch has at most.

        Raises:
            TypeMismatchError: If a value is not of its declared type.
        """
        while chunk := list(islice(rows, batch_rows)):
            yield self.batch(chunk)

    def batch(self, rows: list[Row]) -> pa.RecordBatch:
        """Turn some rows into a batch."""
        state = self._state
        if _is_timers(state):
            rows = list(_timer_rows(rows, of_windows=state.name.startswith("window-")))
        columns: list[tuple[pa.Field, pa.Array]] = []
        if state.is_keyed or state.is_broadcast:
            columns += self._column("key", [row.key for row in rows], self._key_schema)
        if _is_timers(state):
            return self._timer_batch(rows, columns)
        if state.windowed:
            columns += _bounds(rows)
        if state.layout.place_column is not None:
            schema = "int64" if state.layout is ELEMENTS else self._map_key_schema
            columns += self._column(state.layout.place_column, [row.inner for row in rows], schema, flatten=False)
        columns += self._column("value", [row.value for row in rows], self._value_schema)
        if state.has_ttl:
            updated = [row.updated_ms for row in rows]
            columns.append((pa.field("updated_at", _UTC_MS), pa.array(updated, _UTC_MS)))
            if state.ttl_ms is not None:
                expires = [None if at is None else at + state.ttl_ms for at in updated]
                columns.append((pa.field("expires_at", _UTC_MS), pa.array(expires, _UTC_MS)))
        return self._finished(rows, columns)

    def _timer_batch(self, rows: list[Row], columns: list[tuple[pa.Field, pa.Array]]) -> pa.RecordBatch:
        name = self._state.name
        if name.startswith("window-"):
            columns += _bounds(rows)
        columns.append((pa.field("time", pa.int64()), pa.array([row.inner for row in rows], pa.int64())))
        domains = pa.array([TIMERS[name]] * len(rows), pa.string())
        columns.append((pa.field("domain", pa.string()), domains))
        return self._finished(rows, columns)

    def _finished(self, rows: list[Row], columns: list[tuple[pa.Field, pa.Array]]) -> pa.RecordBatch:
        if self._state.is_keyed:
            columns.append((_KEY_GROUP, pa.array([row.key_group for row in rows], pa.int32())))
        columns.append((_SUBTASK, pa.array([row.subtask for row in rows], pa.int32())))
        return pa.RecordBatch.from_arrays(
            [array for _, array in columns], schema=pa.schema([field for field, _ in columns])
        )

    def _column(
        self, name: str, values: list[Any], schema: Schema, *, flatten: bool = True
    ) -> list[tuple[pa.Field, pa.Array]]:
        try:
            array = array_of(values, schema)
        except TypeMismatchError as error:
            error.message = (
                f"state {self._state.name!r} holds a {name} that is not of its declared type: {error.message}"
            )
            error.hint = "read it with infer=True"
            error.context.update(operator=self._state.operator, state=self._state.name, column=name)
            raise
        fields = fields_of(schema)
        if not (flatten and self._flatten and fields):
            return [(field_of(name, schema), array)]
        return [(field_of(f"{name}.{inner}", part), array.field(index)) for index, (inner, part) in enumerate(fields)]


def _bounds(rows: list[Row]) -> list[tuple[pa.Field, pa.Array]]:
    return [
        (field, pa.array([None if row.namespace is None else row.namespace[side] for row in rows], pa.int64()))
        for side, field in enumerate(_BOUNDS)
    ]


def _timer_rows(rows: list[Row], *, of_windows: bool) -> Iterator[Row]:
    """Timers by time: their time becomes ``inner``; those of windows have these as namespaces."""
    for row in rows:
        assert row.namespace is not None
        time = row.namespace[0]
        if not of_windows:
            yield row._replace(namespace=None, inner=time)
            continue
        for _, start, end in row.value:
            yield row._replace(namespace=(start, end), inner=time)


def observed_columns(
    reader: SnapshotReader, state: StoredState, selection: Selection, unpickle: Unpickle, *, flatten: bool, infer: bool
) -> StateColumns:
    """Find the columns of a state, by a pass over its rows if need be.

    If a state is read by key, only the rows meant are looked at; else all, so that parts of it have one schema.

    Args:
        reader: Reads it.
        state: The state.
        selection: What is read.
        unpickle: What becomes of pickled values.
        flatten: As of `StateColumns`.
        infer: Whether to look at values whose type is declared, too.
    """
    declared_map_key = state.map_key_schema
    is_declared = not infer and is_certain(state.value_schema)
    keys, map_keys, values = Observed(), Observed(), Observed()
    if state.is_keyed or state.is_broadcast or not is_declared:
        try:
            for row in reader.rows(state, selection if selection.looks_at_keys else EVERYTHING, unpickle):
                keys.add(row.key)
                map_keys.add(row.inner)
                if not is_declared:
                    values.add(row.value)
        except RecursionError as error:
            message = f"state {state.name!r} holds a value that is nested too deep for a table"
            raise TypeMismatchError(message, operator=state.operator, state=state.name) from error
    value_schema = state.value_schema
    if not is_declared:
        value_schema = values.schema() if infer else refined(state.value_schema, values.schema())
    if state.is_broadcast:  # what the declaration calls a map's key is the only one there is
        key_schema = refined(None if infer else declared_map_key, keys.schema())
        return StateColumns(state, key_schema, None, value_schema, flatten=flatten)
    map_key_schema = refined(None if infer else declared_map_key, map_keys.schema())
    return StateColumns(state, keys.schema(), map_key_schema, value_schema, flatten=flatten)


def columnar_tables(reader: SnapshotReader, state: StoredState, selection: Selection) -> Iterator[pa.RecordBatch]:
    """The batches of columnar state; at least one, if only to tell the schema."""
    own = reader.columnar_schema(state)
    schema = pa.schema([*_BOUNDS, *own, _KEY_GROUP, _SUBTASK])
    is_empty = True
    for subtask, groups, starts, ends, batch in reader.columnar_batches(state, selection):
        is_empty = False
        subtasks = pa.array([subtask] * batch.num_rows, pa.int32())
        yield pa.RecordBatch.from_arrays([starts, ends, *batch.columns, groups, subtasks], schema=schema)
    if is_empty:
        yield pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
