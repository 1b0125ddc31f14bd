"""The columnar table in which windows keep partial results, whatever types the records turn out to have.

A table has one schema for ever, but what a stream without a declared type shows may get wider: a column of nulls turns
out to be one of integers, integers to be floats. The table is then another one, under another name, to which everything
is moved. The name tells the schema, so that the subtasks of one operator, which see different records, never write one
name with two schemas.

Source: Headrace's own; Flink's state has one serializer, and evolves it on restore only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.state.errors import CheckpointMismatchError, TypeMismatchError
from headrace.state.keyed.contract import ColumnarTable, KeyedStateBackend
from headrace.state.reading.arrow_reading import read_arrow_schema

__all__ = ["ColumnarState", "unified_batches"]


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
        """What a snapshot says of the table besides what is in it; for `restore`."""
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
        """Partial results in the table's schema, which gets wider if it must: everything is moved then.

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
    """One batch of all rows, of types that hold the values of all.

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
