"""What the two phases of windows on columns have in common: their settings, their lateness, and the table they keep.

Windows of whatever kind are aggregated twice: `LocalPhase` makes partial results of each batch before the shuffle,
`GlobalPhase` keeps them behind it, in a `ColumnarState`, and fires. Kinds of windows are
`headrace.engine.windows.columnar.slices` and `headrace.engine.windows.columnar.sessions`.

A table has one schema for ever, but what a stream without a declared type shows may get wider: a column of nulls turns
out to be one of integers, integers to be floats. The table is then another one, under another name, to which everything
is moved. The name tells the schema, so that the subtasks of one operator, which see different records, never write one
name with two schemas.

Source: Headrace's own; Flink's state has one serializer, and evolves it on restore only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from headrace.state.errors import CheckpointMismatchError, ProgramError, TypeMismatchError
from headrace.state.keyed.contract import ColumnarTable, KeyedStateBackend
from headrace.state.reading.arrow_reading import read_arrow_schema

from ...columns.records import MAX_TIMESTAMP, MIN_TIMESTAMP, StreamStatus, Watermark
from ...functions.aggregates.contract import Aggregate
from ...functions.keys import KeySelector
from ...functions.operator import Operator, OperatorContext
from ...operators.event_time import EventTimeProgress

__all__ = ["BeforeShuffle", "ColumnarState", "GlobalPhase", "LocalPhase", "unified_batches"]


class ColumnarState:
    """One table at a time, of the narrowest schema that holds all partial results so far.

    Args:
        keyed_state: Where the table is.
        kind: What the table holds (``slices``, ``sessions``): its name begins so.
        key_columns: Whose values decide about key groups.

    Raises:
        CheckpointMismatchError: If other state has been restored, as that of windows on rows: it would be forgotten.

    Attributes:
        table: The table; None until the first partial results tell the types.
        schema: Its schema.
    """

    def __init__(self, keyed_state: KeyedStateBackend, kind: str, key_columns: Sequence[str]) -> None:
        self._keyed_state = keyed_state
        self._kind = kind
        self._key_columns = tuple(key_columns)
        self.table: ColumnarTable | None = None
        self.schema: pa.Schema | None = None
        others = {name: table for name, table in keyed_state.tables().items() if not name.startswith(f"{kind}-")}
        foreign = sorted(name for name, table in others.items() if any(True for _ in table.namespaces()))
        if foreign:
            message = f"the checkpoint has state that windows on columns cannot read: {', '.join(map(repr, foreign))}"
            raise CheckpointMismatchError(message, hint="give the windows another uid to begin without it")

    def facts(self) -> dict[str, Any]:
        """Return what a snapshot says of the table besides what is in it; for `restore`."""
        schema = None if self.schema is None else self.schema.serialize().to_pybytes()
        return {"schema": schema, "table": "" if self.table is None else self.table.name}

    def restore(self, restored: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
        """Bind the table for what old subtasks had.

        Args:
            restored: Their `facts`.
            names: The columns that the program needs.

        Raises:
            CheckpointMismatchError: If the state has others.
        """
        schemas: dict[str, pa.Schema] = {}
        for facts in restored:
            if facts["schema"] is not None:
                schema = read_arrow_schema(facts["schema"], f"the schema of {self._kind}")
                if schema.names != list(names):
                    message = f"the state holds columns {schema.names}; the program needs {list(names)}"
                    raise CheckpointMismatchError(message, hint="give the changed aggregation another uid")
                schemas[facts["table"]] = schema
        if schemas:
            self._move_to(_unified(list(schemas.values())), schemas)

    def fitted(self, partial: pa.RecordBatch) -> pa.RecordBatch:
        """Return partial results in the table's schema, which gets wider if it must: everything is moved then.

        Raises:
            TypeMismatchError: If no type holds both.
        """
        partial = partial.replace_schema_metadata(None)
        if self.table is None or self.schema is None:
            self._move_to(partial.schema, {})
            return partial
        if partial.schema.equals(self.schema):
            return partial
        # Rows without a declared type can show a column as null, or as integers, before they show its wider type.
        schema = _unified([self.schema, partial.schema])
        if not schema.equals(self.schema):
            self._move_to(schema, {self.table.name: self.schema})
        return _cast(partial, schema)

    def _move_to(self, schema: pa.Schema, old: Mapping[str, pa.Schema]) -> None:
        """Bind the table of a schema, with the runs of old tables (schemas by name) moved to it."""
        table = self._keyed_state.columnar_table(_table_name(self._kind, schema), schema, self._key_columns)
        for name, old_schema in old.items():
            if name != table.name:
                source = self._keyed_state.columnar_table(name, old_schema, self._key_columns)
                for namespace in list(source.namespaces()):
                    for run in source.runs(namespace):
                        table.append(namespace, _cast(run, schema))
                    source.drop(namespace)
        self.table, self.schema = table, schema


def unified_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return one batch of all rows, of types that hold the values of all.

    Raises:
        TypeMismatchError: If there are none.
    """
    schema = _unified([batch.schema for batch in batches])
    return pa.concat_batches([_cast(batch, schema) for batch in batches])


def _table_name(kind: str, schema: pa.Schema) -> str:
    # 8 hex digits are plenty for the few types a stream can show.
    text = ";".join(f"{field.name}:{field.type}" for field in schema)
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _unified(schemas: list[pa.Schema]) -> pa.Schema:
    try:
        return pa.unify_schemas(schemas, promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        message = f"the types of keys or aggregates changed from batch to batch: {error}"
        raise TypeMismatchError(message, hint="declare the stream's type") from error


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    try:
        arrays = [batch.column(name).cast(field.type) for name, field in zip(schema.names, schema, strict=True)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        message = f"the types of keys or aggregates changed from batch to batch: {error}"
        raise TypeMismatchError(message, hint="declare the stream's type") from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class BeforeShuffle(Operator):
    """What is aggregated before the shuffle: holds nothing back, so barriers and watermarks need no flush.

    What is ahead of the watermark here is ahead of it behind the shuffle, unless this input has been idle. In a job
    that was restored that is likely, not certain: behind the shuffle event time goes on from where it was, and here
    from where the subtask's own input is. That may be further back: with a split that was idle or is handed out only
    now, or with watermarks made in the middle of a stream, which begin anew at another parallelism.
    """

    def __init__(self) -> None:
        # Records at or before it may be late; of those ahead of it see above.
        self._late_until_ms = MIN_TIMESTAMP
        # From then on the others' watermark may be anywhere.
        self._has_been_idle = False

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        if context.is_restored:  # the watermark is known behind the first records only
            self._late_until_ms = MAX_TIMESTAMP

    def process_watermark(self, watermark: Watermark) -> None:
        if not self._has_been_idle:
            self._late_until_ms = watermark.timestamp_ms
        super().process_watermark(watermark)

    def process_status(self, status: StreamStatus) -> None:
        if status.idle:
            self._late_until_ms, self._has_been_idle = MAX_TIMESTAMP, True
        super().process_status(status)


class LocalPhase(BeforeShuffle):
    """First phase, on columns.

    Args:
        keys: Names of the key columns, or a selector by fields; for sessions also
            `headrace.engine.windows.all_windows.OneKey`.
        assigner: Event-time windows that the phase's grouping takes.
        aggregates: By the name of their result column; all mergeable.
        input_schema: Declared type of the records; None to go by what comes.

    Raises:
        ProgramError: If an aggregate is not mergeable, names collide, or the windows are others.
    """

    may_change_records = False
    face = "columns"

    # Makes a `WindowGrouping` of keys, assigner, aggregates and declared type.
    grouping_type: ClassVar[Any]

    def __init__(
        self,
        keys: KeySelector | Sequence[str],
        assigner: Any,
        aggregates: Mapping[str, Aggregate],
        *,
        input_schema: pa.Schema | None = None,
    ) -> None:
        super().__init__()
        self._grouping: Any = self.grouping_type(keys, assigner, aggregates, input_schema)
        self._grouping.require_mergeable("use the global phase with from_records=True alone")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._grouping.keys_text})"


class GlobalPhase(Operator):
    """Second phase: keeps what comes and fires windows. Or the only phase, fed with records.

    Emits the key columns, ``window_start`` and ``window_end`` (``timestamp[ms]``), and the aggregates; event time is
    the window's last millisecond. Counts late records in ``num_late_records_dropped``.

    Args:
        keys: As of `LocalPhase`.
        assigner: As of `LocalPhase`.
        aggregates: By the name of their result column; all mergeable, unless records come.
        allowed_lateness_ms: How long after its end a window takes records and fires again.
        late_tag: Side output for late records; only with ``from_records``.
        from_records: Whether the input is records, not the output of the first phase.
        input_schema: Declared type of the records, with ``from_records``.

    Raises:
        ProgramError: If an aggregate is not mergeable, names collide, the windows are others, or ``late_tag`` is given
            without ``from_records``.
    """

    may_change_records = False
    face = "columns"

    keyed = True
    keeps_columns = True

    # Makes a `WindowGrouping` of keys, assigner, aggregates and declared type.
    grouping_type: ClassVar[Any]

    def __init__(
        self,
        keys: KeySelector | Sequence[str],
        assigner: Any,
        aggregates: Mapping[str, Aggregate],
        *,
        allowed_lateness_ms: int = 0,
        late_tag: str | None = None,
        from_records: bool = False,
        input_schema: pa.Schema | None = None,
    ) -> None:
        self._grouping: Any = self.grouping_type(keys, assigner, aggregates, input_schema)
        if late_tag is not None and not from_records:
            message = "partial results cannot go to a side output for late records"
            raise ProgramError(message, hint="aggregate in one phase: from_records=True")
        if not from_records:
            self._grouping.require_mergeable("aggregate in one phase: from_records=True")
        if allowed_lateness_ms < 0:
            message = f"allowed lateness must not be negative; got {allowed_lateness_ms} ms"
            raise ProgramError(message)
        self.allowed_lateness_ms = allowed_lateness_ms
        self.late_tag = late_tag
        self.from_records = from_records
        # The combined watermark as of the last call; in union state, so that what was late stays late after a restore.
        self._progress = EventTimeProgress()
