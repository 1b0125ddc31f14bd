"""Tables of Apache Iceberg, as the library ``pyiceberg`` gives them.

A commit is one change of the table's metadata: a new snapshot, and the sink's notes as a property of the table. The
catalog makes it only if the branch's snapshot is still the one that was looked at. The library would try again by
itself on top of whatever it finds then, without asking whether the same output has come in between; so its own retries
are switched off, and every try begins with a look (`headrace.connectors.lake.committing`). That the notes are a
property makes them outlive the expiry of snapshots; in the snapshot's summary they are for people.

Source: the Iceberg specification, "Optimistic Concurrency", "Commit Conflict Resolution and Retry".
"""

from __future__ import annotations

import base64
import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.engine.connectors.sink_protocols import GlobalCommittable
from headrace.engine.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    InternalError,
    NotFoundError,
    PossibleLossError,
    SinkError,
)
from headrace.state.credentials import masked
from headrace.state.extras import needs
from headrace.state.files.filesystem import filesystem_for

from ...formats.containers.parquet_files import open_parquet
from ...formats.folders import by_values
from ..lake.contract import DELETED, CommitConflictError, DataFile, Note
from ..lake.keyed_changes import last_changes
from ..lake.ledger import Ledger

__all__ = ["IcebergAccess", "IcebergView", "iceberg", "table_schema"]

_RETRIES = "commit.retry.num-retries"


def iceberg() -> Any:
    """Return the library.

    Raises:
        ConfigurationError: If it is not installed.
    """
    with needs("tables of Apache Iceberg need the library pyiceberg", "iceberg"):
        import pyiceberg
        import pyiceberg.catalog
        import pyiceberg.exceptions
        import pyiceberg.expressions
        import pyiceberg.io.pyarrow
        import pyiceberg.manifest
        import pyiceberg.partitioning
        import pyiceberg.transforms
        import pyiceberg.typedef
    return pyiceberg


def table_schema(table: Any) -> pa.Schema:
    """Return a table's columns as Arrow has them, each with its id as files have it."""
    schema: pa.Schema = iceberg().io.pyarrow.schema_to_pyarrow(table.schema())
    return pa.schema([field.with_type(_small(field.type)) for field in schema])


def _small(kind: pa.DataType) -> pa.DataType:
    """Texts and bytes as everybody else has them; fields of nested types keep their ids."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_small(field.type)) for field in kind])
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_small(kind.value_type)))
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_small(key.type)), item.with_type(_small(item.type)))
    return kind


@dataclass(frozen=True)
class IcebergAccess:
    """Which table of which catalog, and how it is made.

    Attributes:
        catalog: The catalog's properties, as ``type``, ``uri``, ``warehouse``.
        table: ``namespace.name``.
        schema: Of the table if it is to be made; None if it must be there.
        partition_by: Columns whose values are partitions; likewise.
    """

    catalog: Mapping[str, str]
    table: str
    schema: pa.Schema | None = None
    partition_by: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.table

    @property
    def place(self) -> Mapping[str, Any]:
        return {"table": self.table, "catalog": masked(self.catalog.get("uri", "")) or self.catalog.get("name", "")}

    def open_catalog(self) -> Any:
        """Return the library's catalog.

        Raises:
            SinkError: If it cannot be reached.
        """
        library = iceberg()
        properties = dict(self.catalog)
        try:
            return library.catalog.load_catalog(properties.pop("name", "headrace"), **properties)
        except Exception as error:
            message = f"the Iceberg catalog cannot be opened: {masked(str(error))}"
            raise SinkError(message, **self.place) from error

    def load(self) -> Any:
        """Return the library's table.

        Raises:
            SinkError: If it is not there, or cannot be asked.
        """
        library = iceberg()
        try:
            return self.open_catalog().load_table(self.table)
        except library.exceptions.NoSuchTableError as error:
            message = "there is no Iceberg table of the name"
            hint = "it must be there, or the sink must be told its schema to make it"
            raise SinkError(message, hint=hint, **self.place) from error
        except SinkError:
            raise
        except Exception as error:
            message = f"the Iceberg table cannot be loaded: {masked(str(error))}"
            raise SinkError(message, **self.place) from error

    def look(self) -> IcebergView:
        return IcebergView(self, self.load())

    def make(self) -> None:
        if self.schema is None:
            return
        library = iceberg()
        catalog = self.open_catalog()
        try:
            if catalog.table_exists(self.table):
                return
            with contextlib.suppress(library.exceptions.NamespaceAlreadyExistsError):
                catalog.create_namespace(self.table.rpartition(".")[0])
            failures = library.exceptions
            with contextlib.suppress(failures.TableAlreadyExistsError, failures.CommitFailedException):
                make_table(catalog, self.table, self.schema, self.partition_by)
        except Exception as error:
            message = f"the Iceberg table cannot be made: {masked(str(error))}"
            raise SinkError(message, **self.place) from error


def make_table(
    catalog: Any, name: str, schema: pa.Schema, partition_by: Sequence[str], key: Sequence[str] = ()
) -> None:
    """Make a table whose partitions are values of columns, and whose key may be known."""
    library = iceberg()
    required = [field.with_nullable(False) if field.name in key else field for field in schema]
    making = catalog.create_table_transaction(name, pa.schema(required))
    with making, making.update_spec() as spec:
        for column in partition_by:
            spec.add_field(column, library.transforms.IdentityTransform(), column)
        if key:
            with making.update_schema() as update:
                update.set_identifier_fields(*key)


class IcebergView:
    """A table as it was at one look; see `headrace.connectors.lake.contract.TableView`."""

    def __init__(self, access: IcebergAccess, table: Any) -> None:
        self._access = access
        self._table = table
        self.table_id = str(table.metadata.table_uuid)
        self.schema = table_schema(table)
        self._spec = table.spec()

    # ------------------------------------------------------------------------------------------------------------ files
    def split(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._spec.is_unpartitioned():
            yield "", rows
            return
        names, columns = [], []
        for field in self._spec.fields:
            source = self._table.schema().find_field(field.source_id)
            path = self._table.schema().find_column_name(field.source_id)
            if path is None or "." in path:
                message = f"the Iceberg table is partitioned by {path!r}, a part of a column, which is not supported"
                raise SinkError(message, **self._access.place)
            names.append(field.name)
            columns.append(self._transformed(field, source.field_type, rows.column(path)))
        keys = pa.RecordBatch.from_arrays(columns, names=names)
        for values, own in by_values(keys, rows):
            yield _text_of(self._spec.spec_id, values), own

    def _transformed(self, field: Any, kind: Any, column: pa.Array) -> Any:
        try:
            return field.transform.pyarrow_transform(kind)(column)
        except iceberg().exceptions.NotInstalledError as error:
            message = f"the Iceberg table is partitioned by {field.transform} of a column, which needs pyiceberg-core"
            raise ConfigurationError(message, hint="pip install 'headrace[iceberg]'", **self._access.place) from error

    def open_output(self, name: str, partition: str) -> Any:
        fs_path = self._local(name)
        if fs_path is not None:
            fs, path = fs_path
            return fs.open_output(path)
        return self._table.io.new_output(self._location(name)).create()

    def delete_output(self, name: str, partition: str) -> None:
        self._table.io.delete(self._location(name))

    def _location(self, name: str) -> str:
        place = self._table.metadata.properties.get("write.data.path") or f"{self._table.location()}/data"
        return f"{str(place).rstrip('/')}/{name}"

    def _local(self, name: str) -> tuple[Any, str] | None:
        """On a disk files are made durable, which the library does not see to."""
        location = self._location(name)
        if location.startswith("file://") or "://" not in location:
            return filesystem_for(location.removeprefix("file://"))
        return None

    # ------------------------------------------------------------------------------------------------------------ notes
    def ledger(self, origin: str) -> Ledger:
        text = self._table.metadata.properties.get(_property(origin))
        return Ledger() if text is None else Ledger.of_text(text, **self._access.place)

    def has(self, origin: str, whole: GlobalCommittable) -> bool:
        return self.ledger(origin).has(whole)

    def claim_of(self, origin: str) -> int:
        return self.ledger(origin).claim

    # ---------------------------------------------------------------------------------------------------------- commits
    def append(self, files: Sequence[DataFile], note: Note) -> None:
        made = [self._data_file(one) for one in files]
        with self._committing(note) as changing:
            self._add(changing, made, note)

    def claim(self, note: Note) -> None:
        with self._committing(note) as changing:
            self._add(changing, [], note)

    def _add(self, changing: Any, files: list[Any], note: Note) -> None:
        with changing.update_snapshot(snapshot_properties=note.to_properties()).fast_append() as adding:
            for one in files:
                adding.append_data_file(one)

    def change(self, files: Sequence[DataFile], keys: Sequence[str], note: Note) -> None:
        changes = last_changes(map(self._read, files), keys)
        added = changes.filter(pa.compute.invert(changes.column(DELETED))).drop_columns([DELETED])
        said = note.to_properties()
        with self._committing(note) as changing:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Delete operation did not match any records")
                changing.delete(_any_of(changes.select(list(keys))), snapshot_properties=said)
            # An append of nothing is a snapshot, too: one is needed that the note is of.
            changing.append(_with_schema(added, self.schema), snapshot_properties=said)

    @contextlib.contextmanager
    def _committing(self, note: Note) -> Iterator[Any]:
        """Give a transaction on top of what was looked at, that fails if that is not what is there."""
        failures = iceberg().exceptions
        table = self._table
        # Of this object alone: what the catalog has is not changed by it.
        settings = {**table.metadata.properties, _RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": settings})
        try:
            changing = table.transaction()
            changing.set_properties({_property(note.origin): note.ledger.to_text()})
            yield changing
            changing.commit_transaction()
        except (failures.CommitFailedException, failures.CommitStateUnknownException) as error:
            raise CommitConflictError from error
        except failures.NoSuchTableError as error:
            message = "the Iceberg table has been dropped"
            raise SinkError(message, **self._access.place) from error
        except failures.ValidationException as error:
            raise CommitConflictError from error

    # ---------------------------------------------------------------------------------------------------- what is there
    def _data_file(self, one: DataFile) -> Any:
        """The library's description of a file, with statistics out of its footer."""
        library, location = iceberg(), self._location(one.name)
        arrow, metadata = library.io.pyarrow, self._table.metadata
        with self._opened(one) as file:
            footer = file.metadata
        self._require_columns(one, footer.schema.to_arrow_schema())
        statistics = arrow.data_file_statistics_from_parquet_metadata(
            parquet_metadata=footer,
            stats_columns=arrow.compute_statistics_plan(self._table.schema(), metadata.properties),
            parquet_column_mapping=arrow.parquet_path_to_id_mapping(self._table.schema()),
        )
        manifest = library.manifest
        return manifest.DataFile.from_args(
            content=manifest.DataFileContent.DATA,
            file_path=location,
            file_format=manifest.FileFormat.PARQUET,
            partition=self._partition(one),
            file_size_in_bytes=one.size,
            sort_order_id=None,
            spec_id=self._spec.spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    def _partition(self, one: DataFile) -> Any:
        library = iceberg()
        if self._spec.is_unpartitioned() and not one.partition:
            return library.typedef.Record()
        spec_id, values = _of_text(one.partition) if one.partition else (-1, {})
        if spec_id != self._spec.spec_id or any(field.name not in values for field in self._spec.fields):
            message = "the table has been partitioned in another way under the sink"
            hint = "change it back, let the job commit, and stop it with a savepoint before the next change"
            raise SinkError(message, hint=hint, file=one.name, **self._access.place)
        partitioning = library.partitioning
        fields = [partitioning.PartitionFieldValue(field, values[field.name]) for field in self._spec.fields]
        return partitioning.PartitionKey(fields, self._spec, self._table.schema()).partition

    @contextlib.contextmanager
    def _opened(self, one: DataFile) -> Iterator[pq.ParquetFile]:
        try:
            stream = self._table.io.new_input(self._location(one.name)).open()
        except (NotFoundError, FileNotFoundError) as error:
            message = "prepared output is gone and was never committed: possible loss"
            hint = "removal of orphan files must leave those that are younger than a job may be away"
            raise PossibleLossError(message, file=one.name, rows=one.rows, hint=hint, **self._access.place) from error
        with stream:
            yield open_parquet(stream)

    def _read(self, one: DataFile) -> pa.Table:
        with self._opened(one) as file:
            table: pa.Table = file.read()
        self._require_columns(one, table.schema.remove(table.schema.get_field_index(DELETED)))
        return table

    def _require_columns(self, one: DataFile, written: pa.Schema) -> None:
        """The table may have got more columns, other names and wider types since a file was written."""
        kinds = {_id_of(field): field for field in self.schema}
        present = {_id_of(field): field for field in written}
        if b"" in present:
            message = f"a file was written without the id of column {present[b''].name!r}"
            raise InternalError(message, file=one.name, **self._access.place)
        for number, found in present.items():
            now = kinds.get(number)
            if now is not None and not _can_become(_small(found.type), now.type):
                message = (
                    f"the table has been changed under the sink: column {found.name!r} was {found.type}, is {now.type}"
                )
                raise SinkError(message, file=one.name, **self._access.place)
        missing = [field.name for number, field in kinds.items() if number not in present and not field.nullable]
        if missing:
            message = f"the table has been changed under the sink: column {missing[0]!r} has come, and must have values"
            raise SinkError(message, file=one.name, **self._access.place)


def _can_become(was: pa.DataType, now: pa.DataType) -> bool:
    """Whether Iceberg reads values of one type as those of the other."""
    kinds = pa.types
    widened = (kinds.is_int32(was) and kinds.is_int64(now)) or (kinds.is_float32(was) and kinds.is_float64(now))
    decimals = kinds.is_decimal(was) and kinds.is_decimal(now) and was.scale == now.scale
    return was == now or kinds.is_nested(was) or widened or (decimals and was.precision <= now.precision)


def _id_of(field: pa.Field) -> bytes:
    return (field.metadata or {}).get(b"PARQUET:field_id", b"")


def _property(origin: str) -> str:
    return f"headrace.sink.{origin}"


def _with_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with all columns of a table; those that came later are null."""
    columns = [
        rows.column(field.name).cast(field.type) if field.name in rows.schema.names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _any_of(keys: pa.Table) -> Any:
    """The condition that finds rows by their keys."""
    conditions = iceberg().expressions
    names = keys.column_names
    if len(names) == 1:
        return conditions.In(names[0], keys.column(0).to_pylist())
    found: Any = conditions.AlwaysFalse()
    by_first: dict[Any, list[Any]] = {}
    for first, *rest in zip(*(column.to_pylist() for column in keys.columns), strict=True):
        by_first.setdefault(first, []).append(rest)
    rows = []
    for first, others in by_first.items():
        for rest in others:
            parts = [conditions.EqualTo(name, value) for name, value in zip(names, [first, *rest], strict=True)]
            rows.append(conditions.And(*parts))
    while len(rows) > 1:  # a tree that is not deep
        rows = [conditions.Or(*rows[at : at + 2]) if at + 1 < len(rows) else rows[at] for at in range(0, len(rows), 2)]
    return rows[0] if rows else found


def _text_of(spec_id: int, values: pa.RecordBatch) -> str:
    """The values of a partition as a text: any types that Arrow has."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, values.schema) as writer:
        writer.write_batch(values)
    return f"{spec_id}:{base64.b64encode(stream.getvalue()).decode()}"


def _of_text(text: str) -> tuple[int, dict[str, Any]]:
    try:
        spec_id, _, encoded = text.partition(":")
        [values] = pa.ipc.open_stream(base64.b64decode(encoded, validate=True)).read_all().to_pylist()
        return int(spec_id), values
    except (ValueError, pa.ArrowException) as error:
        message = f"the checkpoint names a partition in a way that cannot be read: {error!r:.400}"
        raise CheckpointMismatchError(message) from error
