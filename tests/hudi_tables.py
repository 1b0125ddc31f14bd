"""Copy-on-write tables of Apache Hudi on a local disk, written as its specification says (version 6, without a table of
metadata), for tests that play what writers do and when they die. Tables that Hudi itself has written: `hudi_server`.
"""

from __future__ import annotations

import itertools
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

_PROPERTIES = {
    "hoodie.table.name": "numbers",
    "hoodie.table.type": "COPY_ON_WRITE",
    "hoodie.table.version": "6",
    "hoodie.timeline.layout.version": "1",
    "hoodie.table.base.file.format": "PARQUET",
    "hoodie.table.recordkey.fields": "n",
    "hoodie.table.partition.fields": "",
    "hoodie.populate.meta.fields": "true",
    "hoodie.archivelog.folder": "archived",
    "hoodie.table.timeline.timezone": "UTC",
}
_NUMBERS = itertools.count(1)


class HudiTables:
    """A table under a folder."""

    def __init__(self, directory):
        pytest.importorskip("hudi")
        self.path = directory / "numbers"

    def source(self, **options):
        from headrace.connectors.hudi import HudiSource

        return HudiSource(self.path, **options)

    def make(self, schema, **properties):
        self.schema = pa.schema(schema)
        (self.path / ".hoodie").mkdir(parents=True)
        said = {**_PROPERTIES, **properties}
        lines = "".join(f"{name}={value}\n" for name, value in said.items())
        (self.path / ".hoodie" / "hoodie.properties").write_text(lines)

    def begin(self):
        """Begin a commit; gives its instant."""
        instant = f"20240229{next(_NUMBERS):09}"
        for state in ("commit.requested", "inflight"):
            (self.path / ".hoodie" / f"{instant}.{state}").touch()
        return instant

    def complete(self, instant, rows, operation="INSERT", updates=0, deletes=0):
        """Write a file of a commit, and complete it; gives the file's path."""
        rows = pa.Table.from_batches([pa.RecordBatch.from_pylist(rows, schema=self.schema)])
        own = {
            "_hoodie_commit_time": [instant] * len(rows),
            "_hoodie_commit_seqno": [f"{instant}_0_{n}" for n in range(len(rows))],
            "_hoodie_record_key": [str(row["n"]) for row in rows.to_pylist()],
            "_hoodie_partition_path": [""] * len(rows),
            "_hoodie_file_name": [""] * len(rows),
        }
        name = f"{instant}-0_0-1-1_{instant}.parquet"
        table = pa.table({**{key: pa.array(values, pa.string()) for key, values in own.items()}})
        for field in self.schema:
            table = table.append_column(field, rows.column(field.name))
        pq.write_table(table, self.path / name, row_group_size=100)
        stat = {
            "fileId": f"{instant}-0", "path": name, "prevCommit": "null", "numWrites": len(rows),
            "numDeletes": deletes, "numUpdateWrites": updates, "numInserts": len(rows) - updates,
        }  # fmt: skip
        self.say(instant, {"partitionToWriteStats": {"": [stat]}, "operationType": operation})
        return self.path / name

    def say(self, instant, said, action="commit"):
        whole = {"compacted": False, "extraMetadata": {"schema": self._avro()}, **said}
        (self.path / ".hoodie" / f"{instant}.{action}").write_text(json.dumps(whole))

    def _avro(self):
        kinds = {"int64": "long", "string": "string", "double": "double"}
        fields = [{"name": one.name, "type": ["null", kinds[str(one.type)]], "default": None} for one in self.schema]
        return json.dumps({"type": "record", "name": "numbers", "fields": fields})

    def append(self, rows):
        return self.complete(self.begin(), rows.to_pylist())

    def forget(self, instant):
        """What a rollback leaves of a commit in the timeline."""
        for path in (self.path / ".hoodie").glob(f"{instant}.*"):
            path.unlink()

    def archive(self, instant):
        (self.path / ".hoodie" / "archived").mkdir(exist_ok=True)
        (self.path / ".hoodie" / "archived" / ".commits_.archive.1_1-0-1").write_bytes(b"x")
        self.forget(instant)

    def instants(self):
        return sorted(path.name.partition(".")[0] for path in (self.path / ".hoodie").glob("*.commit"))
