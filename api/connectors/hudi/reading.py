"""What a table of Apache Hudi brings, commit by commit, and its file slices.

A slice is a base file of Parquet, and for merge-on-read tables the logs of changes to it, which the library merges. A
commit that changes a row writes its base file anew: its own rows are those that have its name as
``_hoodie_commit_time``. The cleaner removes older files; one that is needed and gone is an error that names it.

Source: Hudi's technical specification, "File Layout", "Incremental Queries".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.errors import NotFoundError, SourceError
from headrace.state.files.filesystem import filesystem_for, join_confined

from ...formats.containers.parquet_files import open_parquet, row_group_batches
from ..lake.reading import Version, in_columns, require_same_table, wanted_columns
from .client import HudiAccess, commit_metadata, hudi
from .timeline import Commit, Timeline

__all__ = ["ReadableHudi"]

_COMMIT_TIME, _SEQUENCE, _KEY = "_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key"

_REARRANGED = ("COMPACT", "LOG_COMPACT", "CLUSTER", "INDEX", "ALTER_SCHEMA")
"""Operations that change no rows."""

_REPLACING = ("INSERT_OVERWRITE", "INSERT_OVERWRITE_TABLE", "DELETE_PARTITION", "BUCKET_RESCALE")

_LOG = re.compile(r"\.(?P<file>[^./][^/]*)_(?P<instant>[0-9]+)\.log\.[0-9]+(?:_[0-9-]+)?")
_BASE = re.compile(r"(?P<file>[^/_][^/]*?)_[^/_]+_(?P<instant>[0-9]+)\.parquet")


@dataclass(frozen=True)
class ReadableHudi:
    """A table, and where in its history reading begins.

    Attributes:
        access: To the table.
        start: Who follows: ``full`` reads the rows that are there first, ``latest`` none; a number, none of the commits
            up to that time.
        gives_changed: Whether a row that a commit changes is given as it is behind it.
    """

    access: HudiAccess
    start: str | int = "full"
    gives_changed: bool = False

    @property
    def name(self) -> str:
        return self.access.name

    # ---------------------------------------------------------------------------------------------------- what there is
    def first(self, *, follows: bool) -> Version:
        table, timeline = self.access.look()
        own = _identity(table)
        if follows:
            self._require_followed(table)
        if follows and isinstance(self.start, int):
            return Version(timeline.position(self.start, self.access.place), table=own)
        if follows and self.start == "latest":
            return Version(timeline.newest, table=own)
        self._require_known_columns(table, timeline.commits[-1:])
        return Version(timeline.newest, self._slices(table, timeline, follows=follows), table=own)

    def _slices(self, table: Any, timeline: Timeline, *, follows: bool) -> list[dict[str, Any]]:
        """The table's slices: of all commits, or as of the last one that can be followed.

        What is under way in an older table may show in its logs when it is completed, before they are read.
        """
        merges = table.table_type == "MERGE_ON_READ"
        options, as_of = hudi().HudiReadOptions(), None
        if timeline.commits:
            as_of = max(one.instant for one in timeline.commits)
        if timeline.is_cut and (follows or merges):
            if as_of is None:
                return []
            options = options.with_as_of_timestamp(as_of)
        found = []
        for one in table.get_file_slices(options):
            logs = sorted(one.log_files_relative_paths())
            payload = {"path": one.base_file_relative_path()}
            found.append({**payload, "logs": logs, "as_of": as_of} if logs else payload)
        if merges:
            self._require_base_files(timeline)
        return sorted(found, key=lambda one: str(one["path"]))

    def _require_base_files(self, timeline: Timeline) -> None:
        """Rows of a log without a base file are in no slice that the library gives.

        Logs of older tables have the instant of their base file in their names, which may be that of a compaction which
        is still to come; those of newer ones are found by when they were written.
        """
        fs, root = filesystem_for(self.access.uri)
        names = [path.removeprefix(f"{root.rstrip('/')}/") for path, _ in fs.list_files(root)]
        names = [name.rpartition("/")[2] for name in names if not name.startswith(".hoodie/")]
        bases = {self._base_of(found, timeline) for found in map(_BASE.fullmatch, names) if found}
        for name in names:
            log = _LOG.fullmatch(name)
            if log is not None and self._base_of(log, timeline) not in bases:
                message = f"the Hudi table has rows in a log without a base file, which are not read: {name}"
                hint = "compact the table, or wait until its compaction is done"
                raise SourceError(message, hint=hint, **self.access.place)

    def _base_of(self, found: re.Match[str], timeline: Timeline) -> tuple[str, str]:
        return found["file"], "" if timeline.is_by_completion else found["instant"]

    def _require_followed(self, table: Any) -> None:
        if table.hudi_options().get("hoodie.populate.meta.fields", "true").lower() != "true":
            message = "the Hudi table does not say which commit its rows are of: it cannot be followed"
            hint = "hoodie.populate.meta.fields is false"
            raise SourceError(message, hint=hint, **self.access.place)

    def _require_known_columns(self, table: Any, commits: tuple[Commit, ...]) -> None:
        for instant, said in commit_metadata(table, {one.instant for one in commits}).items():
            self._require_columns_by_name(instant, said)

    def _require_columns_by_name(self, instant: str, said: dict[str, Any]) -> None:
        """With a history of columns a file may have another name for one: by names it would be taken for null."""
        if (said.get("extraMetadata") or {}).get("latest_schema"):
            message = "the Hudi table keeps a history of its columns, which is not read"
            hint = "hoodie.schema.on.read.enable is set"
            raise SourceError(message, hint=hint, commit=instant, **self.access.place)

    # -------------------------------------------------------------------------------------------------------- what came
    def since(self, number: int, table: str) -> Iterator[Version]:
        now, timeline = self.access.look()
        require_same_table(table, _identity(now), **self.access.place)
        newer = timeline.behind(number, self.access.place)
        said = commit_metadata(now, {one.instant for one in newer})
        for one in newer:
            yield self._brought(one, said[one.instant], table)

    def _brought(self, commit: Commit, said: dict[str, Any], table: str) -> Version:
        self._require_columns_by_name(commit.instant, said)
        operation = str(said.get("operationType") or "UNKNOWN").upper()
        if said.get("compacted") or operation in _REARRANGED:
            return Version(commit.number, table=table)
        if operation in _REPLACING or said.get("partitionToReplaceFileIds"):
            return Version(commit.number, [], operation, table=table)
        stats = [one for group in (said.get("partitionToWriteStats") or {}).values() for one in group]
        if sum(int(one.get("numDeletes") or 0) for one in stats):
            return Version(commit.number, [], f"{operation} deletes rows", table=table)
        if sum(int(one.get("numUpdateWrites") or 0) for one in stats) and not self.gives_changed:
            return Version(commit.number, [], f"{operation} changes rows", table=table)
        for one in stats:
            if not str(one["path"]).endswith(".parquet"):
                return Version(commit.number, [], f"{operation} writes into a log ({one['path']})", table=table)
        files = [{"path": one["path"], "commit": commit.instant} for one in stats if int(one.get("numWrites") or 0)]
        return Version(commit.number, sorted(files, key=lambda one: str(one["path"])), table=table)

    # --------------------------------------------------------------------------------------------------- rows of a file
    def open_file(self, payload: dict[str, Any], columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        table = self.access.load()
        schema = pa.schema(table.get_schema())
        if columns is not None:
            schema = wanted_columns(pa.schema(table.get_schema_with_meta_fields()), columns)
        schema = schema.remove_metadata()
        try:
            batches = self._merged(table, payload) if payload.get("logs") else self._base(payload, schema)
            for batch in batches:
                yield in_columns(batch, schema, {})
        except (NotFoundError, FileNotFoundError) as error:
            message = "a file of the Hudi table that is to be read is gone: the cleaner has removed it"
            hint = "hoodie.clean.commits.retained says how long files stay; read the table anew"
            whose = payload.get("commit", payload["version"])
            raise SourceError(message, hint=hint, file=payload["path"], commit=whose, **self.access.place) from error

    def _base(self, payload: dict[str, Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        fs, root = filesystem_for(self.access.uri)
        commit = payload.get("commit")
        with fs.open_input(join_confined(root, payload["path"])) as stream:
            file = open_parquet(stream, "us")
            names = file.schema_arrow.names
            own = [name for name in schema.names if name in names]
            if commit is not None and _COMMIT_TIME not in own:
                own.append(_COMMIT_TIME)
            for batch in row_group_batches(file, range(file.metadata.num_row_groups), own or names[:1]):
                yield batch if commit is None else batch.filter(pc.equal(batch.column(_COMMIT_TIME), commit))

    def _merged(self, table: Any, payload: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """The rows of a slice with logs, in an order that is always the same: by key."""
        fs, root = filesystem_for(self.access.uri)
        for path in (payload["path"], *payload["logs"]):
            fs.size(join_confined(root, path))  # the library's own error would not tell what is gone
        options = hudi().HudiReadOptions().with_as_of_timestamp(payload["as_of"])
        reader = table.create_file_group_reader_with_options(options)
        rows = pa.Table.from_batches([reader.read_file_slice_from_paths(payload["path"], payload["logs"], options)])
        if _KEY not in rows.column_names:
            message = "rows of a Hudi table without keys of their own are not merged with its logs"
            raise SourceError(message, file=payload["path"], **self.access.place)
        yield from rows.sort_by([(_KEY, "ascending"), (_SEQUENCE, "ascending")]).to_batches()


def _identity(table: Any) -> str:
    """What tells a table from another one; two of one name are told by their commits."""
    options = table.hudi_options()
    return f"{options.get('hoodie.table.name')}:{options.get('hoodie.table.recordkey.fields')}:{table.table_type}"
