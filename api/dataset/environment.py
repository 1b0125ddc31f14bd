"""The environment of data sets: where a program is written down, and on what it runs.

Sources are read and results are computed by an *executor*: ``spark``, which is started inside the Ray cluster when a
job first needs it and kept until ``close``, or ``local``, which runs in this process and needs neither. One program
gives equal results on both. ``HEADRACE_EXECUTOR`` says which one programs use that do not say it themselves, else it is
Spark.

Source: Flink's ``ExecutionEnvironment``; PyFlink's names.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError, ProgramError, SourceError, StorageError
from headrace.engine.functions.accumulators import AccumulatorPart, accumulated_value
from headrace.engine.partitions.wire import conform, table_of_rows
from headrace.engine.plan.plan import (
    ExecutionResult,
    Executor,
    FileSource,
    ForeignSource,
    Node,
    SequenceSource,
    TableSource,
    row_kind,
)
from headrace.state.files.filesystem import filesystem_for

from ..arguments.checks import text, whole
from ..arguments.places import absolute_place
from ..formats.text import encoding_named
from .dataset import DataSet
from .file_reading import FilesOfSource, Reading
from .file_types import merged_type, parquet_types, plain_schema, refuse_doubled, require_one_type
from .input_files import (
    FolderColumns,
    InputFile,
    Paths,
    csv_headers,
    files_at,
    first_beginning,
    folder_columns,
)
from .output_folders import require_apart
from .types import declared_schema, schema_of_rows, schema_with_kind

if TYPE_CHECKING:
    from ..jobs.snapshots import Snapshot

__all__ = ["DataSetResult", "ExecutionEnvironment"]

_EXECUTORS = ("spark", "local")

_LOG = logging.getLogger("headrace.dataset")


@dataclass(frozen=True)
class DataSetResult:
    """How a job went.

    Attributes:
        job_name: Its name.
        net_runtime_ms: How long it ran, milliseconds.
        paths: Files written by each write, in the order of the program.
        statistics: What the executor tells of the run; of iterations their supersteps and sizes, by name, and of those
            that are to end by themselves whether they did (``is_converged``) or reached their limit.
        accumulators: For the methods below.
    """

    job_name: str
    net_runtime_ms: int
    paths: tuple[list[str], ...] = ()
    statistics: Mapping[str, Any] = field(default_factory=dict)
    accumulators: Mapping[str, tuple[AccumulatorPart, ...]] = field(default_factory=dict, repr=False)

    def get_net_runtime(self) -> int:
        """Return how long it ran, milliseconds."""
        return self.net_runtime_ms

    def get_accumulator_result(self, accumulator_name: str) -> Any:
        """Return the value of an accumulator over all subtasks; None if there is none of that name."""
        return accumulated_value(accumulator_name, self.accumulators.get(accumulator_name, ()))

    def get_all_accumulator_results(self) -> dict[str, Any]:
        """Return the values of all accumulators by name."""
        return {name: accumulated_value(name, parts) for name, parts in self.accumulators.items()}


class ExecutionEnvironment:
    """Where programs of data sets begin. Made by ``get_execution_environment``; may be used as a context manager.

    Args:
        executor: ``spark``, ``local``, or an object that runs plans.
        parallelism: Partitions of whatever does not say; None for the executor's default.
        optimize: Whether plans are optimised; without, they run as they were written.
        options: For the Spark executor.
    """

    def __init__(
        self, executor: str | Executor, parallelism: int | None, *, optimize: bool = True, options: Mapping[str, Any]
    ) -> None:
        if isinstance(executor, str) and executor not in _EXECUTORS:
            message = f"executor must be one of {', '.join(_EXECUTORS)}; got {executor!r}"
            raise ConfigurationError(message)
        if parallelism is not None:
            whole("parallelism", parallelism, 1, None)
        self._executor_name = executor if isinstance(executor, str) else type(executor).__name__
        # Made when a job first needs it.
        self._executor: Executor | None = None if isinstance(executor, str) else executor
        self._options = dict(options)
        self._parallelism = parallelism
        self._optimize = optimize
        self._next_id = 0
        # Writes that wait for execute, oldest first.
        self._sinks: list[Node] = []
        self._cached_files: dict[str, str] = {}
        self._last: DataSetResult | None = None

    @staticmethod
    def get_execution_environment(
        executor: str | Executor | None = None,
        parallelism: int | None = None,
        *,
        optimize: bool = True,
        **options: Any,
    ) -> ExecutionEnvironment:
        """Make an environment.

        Args:
            executor: ``spark`` (on the Ray cluster) or ``local`` (in this process); None for what
                ``HEADRACE_EXECUTOR`` says, else ``spark``. An object with ``execute`` and ``close`` is used as it is.
            parallelism: How many partitions data sets have that do not say; None for what ``HEADRACE_PARALLELISM``
                says, else for the executor's default.
            optimize: Whether plans are optimised before they run; off for tests of the optimiser.
            **options: For the local executor ``memory_bytes``: how much the records of a job may take before they are
                laid on disk; without it half of what is available. For the Spark executor the fields of
                ``SparkSettings`` (`headrace.actors.spark.session`); the ``address`` of the Ray cluster is that of
                ``HEADRACE_ADDRESS`` if none is given.

        Raises:
            ConfigurationError: If there is no such executor, or an option that it does not know.
        """
        chosen = executor if executor is not None else os.environ.get("HEADRACE_EXECUTOR") or "spark"
        if chosen == "local":
            for name, value in options.items():
                if name != "memory_bytes":
                    message = f"the local executor has no option {name!r}; it has memory_bytes"
                    raise ConfigurationError(message)
                whole(name, value, 1, None)
        if chosen == "spark" and "address" not in options and os.environ.get("HEADRACE_ADDRESS"):
            options["address"] = os.environ["HEADRACE_ADDRESS"]
        if parallelism is None:
            parallelism = _parallelism_from_outside()
        return ExecutionEnvironment(chosen, parallelism, optimize=optimize, options=options)

    # --------------------------------------------------------------------------------------------------------- settings

    def set_parallelism(self, parallelism: int) -> ExecutionEnvironment:
        """Set how many partitions data sets have that do not say."""
        whole("parallelism", parallelism, 1, None)
        self._parallelism = parallelism
        return self

    def get_parallelism(self) -> int | None:
        """Return how many partitions data sets have that do not say; None for the executor's default."""
        return self._parallelism

    def register_cached_file(self, path: str | os.PathLike[str], name: str, executable: bool = False) -> None:
        """Bring a file to every machine; functions find it by ``runtime_context.get_distributed_cache()``.

        Args:
            path: A local path or a URI.
            name: What functions call it.
            executable: Whether it is made executable.

        Raises:
            SourceError: If there is no such file.
        """
        text("a cached file's name", name)
        if name in self._cached_files:
            message = f"there is a cached file {name!r} already"
            raise ProgramError(message)
        location = absolute_place(path)
        fs, inside = filesystem_for(location)
        try:
            if not fs.exists(inside):
                message = f"cached file {name!r} does not exist"
                raise SourceError(message, path=location)
        except StorageError as error:
            message = f"cached file {name!r} cannot be read: {error}"
            raise SourceError(message, path=location) from error
        if executable and "://" not in location and not os.access(location, os.X_OK):
            message = f"cached file {name!r} is not executable"
            raise SourceError(message, path=location, hint="chmod +x it")
        self._cached_files[name] = location

    # ---------------------------------------------------------------------------------------------------------- sources

    def from_collection(self, collection: Iterable[Any], type_info: Any = None) -> DataSet:
        """Records of a collection, read at once.

        Args:
            collection: Finite. An Arrow table or a pandas data frame is read as columns.
            type_info: The records' type; None for the type they evidently have (flat dicts of the same fields, tuples
                of the same length, or values, of one plain type each), else they are any Python objects.
        """
        if isinstance(collection, (pa.Table, pa.RecordBatch)):
            return self.from_arrow(collection, type_info)
        if _is_data_frame(collection):
            return self.from_pandas(collection, type_info)
        if isinstance(collection, (str, bytes, Mapping)):
            message = f"a collection of records is needed; got {type(collection).__name__}"
            raise ProgramError(message, hint="wrap it in a list")
        rows = list(collection)
        schema = declared_schema(type_info) if type_info is not None else schema_of_rows(rows)
        return self._source(TableSource, "collection", schema, table=table_of_rows(rows, schema))

    def from_elements(self, *elements: Any, type_info: Any = None) -> DataSet:
        """Make a data set of the given records."""
        return self.from_collection(elements, type_info)

    def generate_sequence(self, start: int, end: int) -> DataSet:
        """The integers from ``start`` to ``end``, both included."""
        for what, value in (("start", start), ("end", end)):
            if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
                message = f"{what} must be an integer of 64 bits; got {value!r}"
                raise ProgramError(message)
        if end - start + 1 >= 2**63:
            message = f"a sequence has fewer than 2**63 integers; {start} to {end} are {end - start + 1}"
            raise ProgramError(message)
        schema = schema_with_kind([pa.field("value", pa.int64())], "value")
        return self._source(SequenceSource, f"sequence {start} to {end}", schema, start=start, end=end)

    def from_arrow(self, table: Any, type_info: Any = None) -> DataSet:
        """Records of an Arrow table, record batch or record batch reader; as dicts, if its schema says nothing else."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        elif hasattr(table, "read_all"):
            table = table.read_all()
        if not isinstance(table, pa.Table):
            message = f"an Arrow table is needed; got {type(table).__name__}"
            raise ProgramError(message)
        table = _plain(table)
        schema = declared_schema(type_info) if type_info is not None else table.schema
        if schema is None:
            rows = table.to_pylist()
            return self._source(TableSource, "table", None, table=table_of_rows(rows, None))
        if schema is not table.schema:
            batches = [conform(Batch.of_columns(batch), schema).columns for batch in table.to_batches()]
            table = pa.Table.from_batches(batches, schema)
        return self._source(TableSource, "table", schema, table=table)

    def from_pandas(self, frame: Any, type_info: Any = None) -> DataSet:
        """Records of a pandas data frame, without its index; NaN is null, in columns of floats and of objects."""
        if not _is_data_frame(frame):
            message = f"a pandas data frame is needed; got {type(frame).__name__}"
            raise ProgramError(message)
        table = pa.Table.from_pandas(frame, preserve_index=False)
        return self.from_arrow(table.replace_schema_metadata(None), type_info)

    def from_spark(self, frame: Any) -> DataSet:
        """Records of a Spark data frame; with ``executor="local"`` they are fetched when the program runs."""
        if getattr(getattr(frame, "schema", None), "fields", None) is None:
            message = f"a Spark data frame is needed; got {type(frame).__name__}"
            raise ProgramError(message)
        from headrace.actors.spark.sources import schema_of_frame

        return self._source(ForeignSource, "spark data frame", schema_of_frame(frame), kind="spark", handle=frame)

    def from_ray(self, refs: Any, type_info: Any = None) -> DataSet:
        """Records of Arrow tables in Ray's object store.

        Args:
            refs: Object references of tables or record batches, or a ``ray.data`` Dataset of Arrow blocks.
            type_info: The records' type; None to look at the first table.
        """
        from headrace.actors.ray.foreign_data import references_of, schema_of_references

        found = references_of(refs)
        schema = declared_schema(type_info) if type_info is not None else plain_schema(schema_of_references(found))
        return self._source(ForeignSource, "ray objects", schema, kind="ray", handle=found)

    def from_snapshot(
        self, path: str | os.PathLike[str] | Snapshot, uid: str, state_name: str, **options: Any
    ) -> DataSet:
        """Records of a state in a checkpoint or savepoint, one per value, list element or map entry; read at once.

        Neither the job nor its program is needed, and none of its code is run.

        Args:
            path: As of `Snapshot.open`, or an open snapshot, which stays open. A job that is running takes new
                checkpoints and deletes old ones: open its folder once, and read all states of that snapshot, where
                they have to belong together.
            uid: The operator's uid or name.
            state_name: The state's name.
            **options: As of `Snapshot.read_batches`: ``keys``, ``key_range``, ``allow_pickle`` ...

        Shape: dicts with the columns of `Snapshot.read`: ``key``, ``value`` ..., a column per field of a key or value
            that is a tuple or record (``key.f0``, ``value.name``), ``key_group``, ``subtask``.

        Raises:
            CheckpointNotFoundError: If there is no snapshot.
            CheckpointMismatchError: If it has no such operator or state.
            CheckpointCorruptError: If a file is damaged.
        """
        from ..jobs.snapshots import Snapshot

        if isinstance(path, Snapshot):
            table = path.read(uid, state_name, **options)
        else:
            with Snapshot.open(absolute_place(path)) as snapshot:
                table = snapshot.read(uid, state_name, **options)
        schema = plain_schema(table.schema)
        return self._source(
            TableSource, f"state {state_name} of {uid}", schema, table=table.replace_schema_metadata(None).cast(schema)
        )

    def read_text(self, path: Paths, encoding: str = "utf-8") -> DataSet:
        """Lines of text files, without their ends.

        Args:
            path: A file, a folder (its files), a pattern (``*``, ``**/``), a URI, or several of these. What is there is
                looked up now and stays the input. Of a folder that a streaming job writes to these are the parts that
                its checkpoints have committed, which never change; what is staged is not seen.
            encoding: Of the text.

        Files that end in ``.gz``, ``.gzip``, ``.bz2``, ``.zst`` or ``.lz4`` are decompressed, also by `read_csv` and
        `read_json`; each is read by one subtask.

        Raises:
            ConfigurationError: If there is no such encoding.
        """
        schema = schema_with_kind([pa.field("value", pa.string())], "value")
        return self._files("text", files_at(path), schema, {"encoding": encoding_named(encoding)})

    read_text_file = read_text

    def read_csv(
        self,
        path: Paths,
        types: Any = None,
        *,
        header: bool = True,
        delimiter: str = ",",
        null_values: Sequence[str] | None = None,
    ) -> DataSet:
        """Records of CSV files.

        Args:
            path: As of `read_text`.
            types: Columns and their types (a schema, or a mapping from name to Arrow or Python type); with a header it
                chooses columns, without one it names them all. None takes all columns, their types from the beginning
                of the first file that is not empty.
            header: Whether files begin with the columns' names.
            delimiter: One character.
            null_values: Texts that mean null, but in text columns; None for Arrow's list.
        """
        from ..formats.csv_lexing import csv_fields, cut_csv, first_csv_record, require_delimiter
        from ..formats.csv_records import infer_csv_schema
        from ..formats.schemas import schema_of

        require_delimiter(delimiter)
        paths = files_at(path)
        given = schema_of(types)
        nulls = None if null_values is None else tuple(null_values)
        names: list[str] | None = None if header else (None if given is None else given.names)
        schema = given
        typed = {} if given is None else {field.name: field.type for field in given}
        if given is not None and header:
            folder_names = {name for name, _value in paths[0].folders} - set(csv_headers(paths[:1], delimiter)[0])
            schema = pa.schema([field for field in given if field.name not in folder_names], given.metadata)
        if schema is None or names is None:
            block, location = first_beginning(paths)
            end = first_csv_record(block, delimiter) or len(block)
            with Reading(location):
                first = csv_fields(block[:end], delimiter)
            if header:
                body, found = block[end:], first
            else:
                body, found = block, names or [f"f{i}" for i in range(len(first))]
                names = found
            if schema is None:
                whole_records = body[: cut_csv(body, delimiter)] or body
                schema = infer_csv_schema(whole_records, found, delimiter, nulls)
                _require_one_header(paths, found, delimiter, header=header)
            else:
                _require_columns(schema, found, location)
        options: dict[str, Any] = {"delimiter": delimiter, "null_values": nulls}
        if names is not None:
            options["column_names"] = names
        return self._files("csv", paths, schema, options, folder_columns(paths, schema.names, typed))

    def read_json(self, path: Paths, types: Any = None) -> DataSet:
        """Records of files with a JSON object per line.

        Args:
            path: As of `read_text`.
            types: Fields and their types, as of `read_csv`; None for those of the beginning of the first file
                that is not empty.
        """
        import pyarrow.json as pajson

        from ..formats.schemas import schema_of

        paths = files_at(path)
        schema = schema_of(types)
        typed = {} if schema is None else {field.name: field.type for field in schema}
        if schema is not None:
            in_folders = {name for name, _value in paths[0].folders}
            schema = pa.schema([field for field in schema if field.name not in in_folders], schema.metadata)
        if schema is None:
            block, location = first_beginning(paths)
            lines = block[: block.rfind(b"\n") + 1] or block
            if not lines.strip():
                message = "the type of an empty file is not known"
                raise SourceError(message, path=location, hint="pass types")
            try:
                schema = pajson.read_json(pa.BufferReader(lines)).schema
            except pa.ArrowException as error:
                message = f"a file cannot be read: {error}"
                raise SourceError(message, path=location) from error
        return self._files("json", paths, schema, {}, folder_columns(paths, schema.names, typed))

    def read_parquet(
        self, path: Paths, columns: Sequence[str] | None = None, *, schema: Any = None, merge_schema: bool = False
    ) -> DataSet:
        """Records of Parquet files.

        All files must have the same columns and types, as far as nothing else is asked for. A column that a file lacks
        is null then; a value that its column cannot hold exactly fails.

        Args:
            path: As of `read_text`.
            columns: Those that are read; None for all.
            schema: The columns and types of the records, whatever the files have, as of `read_csv`'s ``types``.
            merge_schema: Whether records have the columns of all files, in types that hold the values of all.

        Raises:
            SourceError: If files have different columns or types; with the file and the column.
        """
        from ..formats.schemas import schema_of

        paths = files_at(path)
        declared = schema_of(schema)
        if declared is not None and merge_schema:
            message = "read_parquet takes a schema or merge_schema, not both"
            raise ProgramError(message)
        found = parquet_types(paths)
        if declared is not None:
            refuse_doubled("schema", declared)
            in_files = {name for one in found for name in one.names}
            folders = folder_columns(paths, sorted(in_files), {field.name: field.type for field in declared})
            kept = [field for field in declared if field.name not in folders.schema.names]
            own = schema_with_kind(kept, row_kind(declared))
            _require_columns(own, sorted(in_files), str(paths[0]))
        else:
            own = merged_type(paths, found) if merge_schema else require_one_type(paths, found)
            folders = folder_columns(paths, own.names)
        types = {field.name: field.type for field in own}
        is_uniform = all({field.name: field.type for field in one} == types for one in found)
        data = self._files("parquet", paths, own, {}, folders, is_uniform=is_uniform)
        return data if columns is None else data.project(*columns)

    def _files(
        self,
        form: str,
        paths: Sequence[InputFile],
        schema: pa.Schema,
        options: Mapping[str, Any],
        folders: FolderColumns | None = None,
        *,
        is_uniform: bool = True,
    ) -> DataSet:
        name = f"{form} {paths[0]}" if len(paths) == 1 else f"{form} {len(paths)} files"
        if folders is not None and len(folders.schema):
            schema = schema_with_kind([*schema, *folders.schema], row_kind(schema))
        return self._source(
            FileSource, name, schema, files=FilesOfSource(), format=form, paths=tuple(map(str, paths)),
            file_schema=schema, options=options,
            folder_columns=() if folders is None else tuple(folders.schema.names),
            folder_values=() if folders is None else folders.values, is_uniform=is_uniform,
        )  # fmt: skip

    def _source(self, kind: type[Node], name: str, schema: pa.Schema | None, /, **more: Any) -> DataSet:
        return DataSet(self, kind(id=self.new_id(), name=name, schema=schema, **more))

    # -------------------------------------------------------------------------------------------------------- recording

    def new_id(self) -> int:
        """Return an id for the next node; called by the data set classes."""
        self._next_id += 1
        return self._next_id

    def add_sink(self, sink: Node) -> None:
        """Take a write that waits for ``execute``; called by the data set classes.

        Raises:
            ProgramError: If another one that waits writes into the same folder, or into one above or below it.
        """
        require_apart(sink, self._sinks)
        self._sinks.append(sink)

    def require_same(self, one: DataSet, other: Any) -> None:
        """Refuse a data set of another environment."""
        if not isinstance(other, DataSet):
            message = f"a data set is needed; got {other!r}"
            raise ProgramError(message)
        if other.get_execution_environment() is not self or one.get_execution_environment() is not self:
            message = "data sets of different environments cannot be combined"
            raise ProgramError(message)

    # -------------------------------------------------------------------------------------------------------- execution

    def get_execution_plan(self) -> str:
        """Return the plan of what ``execute`` would run, as JSON."""
        from headrace.engine.optimizer.explain import explain_json

        return explain_json(self._optimized(tuple(self._sinks)))

    def execute(self, job_name: str = "headrace dataset job") -> DataSetResult:
        """Run all writes that were said since the last time.

        Raises:
            ProgramError: If there is nothing to write.
        """
        if not self._sinks:
            message = "there is nothing to execute"
            raise ProgramError(message, hint="write a data set somewhere; collect, count and print run by themselves")
        sinks = tuple(self._sinks)
        self._sinks = []
        self.run(sinks, job_name)
        return self.get_last_job_execution_result()

    def get_last_job_execution_result(self) -> DataSetResult:
        """Return how the last job went, also one that was run by ``collect``.

        Raises:
            ProgramError: If none has run.
        """
        if self._last is None:
            message = "no job has run in this environment"
            raise ProgramError(message)
        return self._last

    def run(self, sinks: tuple[Node, ...], job_name: str = "headrace dataset job") -> ExecutionResult:
        """Run a plan from its sinks; called by the data set classes."""
        executor = self._get_executor()
        started = monotonic()
        with self._fetched_files() as cached:
            result = executor.execute(self._optimized(sinks), parallelism=self._parallelism, cached_files=cached)
        paths = tuple(value for value in (result.values[sink.id] for sink in sinks) if isinstance(value, list))
        runtime_ms = round((monotonic() - started) * 1_000)
        self._last = DataSetResult(job_name, runtime_ms, paths, result.statistics, result.accumulators)
        for name, told in result.statistics.get("iterations", {}).items():
            if told.get("is_converged") is False:
                _LOG.warning(
                    "iteration %r was ended by its limit of %s supersteps before it was done", name, told["supersteps"]
                )
        return result

    def _optimized(self, sinks: tuple[Node, ...]) -> tuple[Node, ...]:
        from headrace.engine.optimizer.optimizer import optimize

        return optimize(sinks, self._parallelism) if self._optimize else sinks

    def _get_executor(self) -> Executor:
        if self._executor is None:
            if self._executor_name == "local":
                from headrace.engine.partitions.in_process import InProcessExecutor

                self._executor = InProcessExecutor(_resolved, self._room)
            else:
                from headrace.actors.spark.executor import SparkExecutor

                self._executor = SparkExecutor(**self._options)
        return self._executor

    def _room(self) -> int | None:
        """How many bytes the records of a job of the local executor may take in memory; None for no limit."""
        given: int | None = self._options.get("memory_bytes")
        if given is not None:
            return given
        from headrace.actors.machine_resources import memory_of

        _total, available = memory_of(Path("/"))
        return available // 2 or None

    @contextlib.contextmanager
    def _fetched_files(self) -> Any:
        """Cached files as local paths: those that are somewhere else are copied for the time of the job."""
        if all("://" not in location for location in self._cached_files.values()):
            yield self._cached_files
            return
        with tempfile.TemporaryDirectory(prefix="headrace-cache-") as folder:
            local = {}
            for number, (name, location) in enumerate(self._cached_files.items()):
                if "://" in location:
                    fs, inside = filesystem_for(location)
                    path = os.path.join(folder, f"{number}-{os.path.basename(inside)}")
                    with open(path, "wb") as copy:
                        copy.write(fs.read_bytes(inside))
                    local[name] = path
                else:
                    local[name] = location
            yield local

    def close(self) -> None:
        """Let go of the executor; further jobs of this environment start another."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.close()

    def __enter__(self) -> ExecutionEnvironment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _parallelism_from_outside() -> int | None:
    outside = os.environ.get("HEADRACE_PARALLELISM")
    if not outside:
        return None
    if not outside.isdecimal() or int(outside) < 1:
        message = f"HEADRACE_PARALLELISM must be a whole number, 1 or more; got {outside!r}"
        raise ConfigurationError(message)
    return int(outside)


# ------------------------------------------------------------------------------------------------------------- sources


def _resolved(source: ForeignSource) -> pa.Table:
    """The records of a foreign source, for the local executor."""
    from headrace.actors.ray.foreign_data import fetch

    return fetch(source)


def _is_data_frame(value: Any) -> bool:
    kind = type(value)
    return kind.__module__.split(".")[0] == "pandas" and kind.__name__ == "DataFrame"


def _plain(table: pa.Table) -> pa.Table:
    schema = plain_schema(table.schema)
    refuse_doubled("table", schema)
    return table.cast(schema)


def _require_one_header(paths: Sequence[InputFile], names: Sequence[str], delimiter: str, *, header: bool) -> None:
    """Refuse CSV files whose columns are not those of the first one: what they have more would be lost."""
    for path, found in zip(paths, csv_headers(paths, delimiter), strict=True):
        is_other = sorted(found) != sorted(names) if header else len(found) != len(names)
        if found and is_other:
            others = found if header else f"{len(found)} columns"
            message = f"the file's columns are {others}, and those of the first file {list(names)}"
            raise SourceError(message, path=str(path), hint="pass types: it chooses columns by name")


def _require_columns(schema: pa.Schema, names: Sequence[str], location: str) -> None:
    missing = [name for name in schema.names if name not in names]
    if missing:
        message = f"column {missing[0]!r} is not in the file; its columns are {list(names)}"
        raise SourceError(message, path=location)
