"""What a table format must be able to do for sinks to write into its tables exactly once.

A `TableAccess` finds a table; a `TableView` is that table as it was at one look. A view commits on top of what it has
seen: of two views of one state, only one commits for a sink.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from headrace.engine.connectors.sink_protocols import GlobalCommittable
from headrace.engine.errors import CheckpointMismatchError
from headrace.state.checkpoints.manifest_schema import is_count, require

from .ledger import Ledger

__all__ = ["DELETED", "CommitConflictError", "DataFile", "Note", "TableAccess", "TableView"]

DELETED = "$deleted"
"""In files of changes by key: the column that says whether a row is to go."""

_FILE_NAME = re.compile(r"[0-9a-f]{12}-[0-9a-f]{12}-[0-9]+(?:_[0-9]+)?-[0-9]{5}-[0-9]{6}\.parquet")


class CommitConflictError(Exception):
    """Somebody else has committed since the look: look again."""


@dataclass(frozen=True)
class DataFile:
    """A file that a writer has finished, and that no reader of the table sees yet.

    Attributes:
        table: The id of the table that it was written for.
        name: Of the file.
        partition: What the format has made of the partition's values; empty if there are none.
        size: In bytes.
        rows: How many.
    """

    table: str
    name: str
    partition: str
    size: int
    rows: int

    def to_state(self) -> dict[str, Any]:
        """Return it as it is kept in checkpoints."""
        return {
            "table": self.table, "name": self.name, "partition": self.partition, "size": self.size, "rows": self.rows
        }  # fmt: skip

    @classmethod
    def of_state(cls, stored: Any) -> DataFile:
        """Read one out of a checkpoint, which anybody may have written: its name leads to no other file.

        Raises:
            CheckpointMismatchError: If it is none.
        """
        try:
            made = cls(stored["table"], stored["name"], stored["partition"], stored["size"], stored["rows"])
            require(type(made.table) is str, "table", made.table)
            require(type(made.name) is str and _FILE_NAME.fullmatch(made.name) is not None, "name", made.name)
            require(type(made.partition) is str, "partition", made.partition)
            require(is_count(made.size) and is_count(made.rows), "size", (made.size, made.rows))
        except (KeyError, TypeError, ValueError) as error:
            message = f"the checkpoint names a file of a table in a way that cannot be read: {error!r:.400}"
            raise CheckpointMismatchError(message) from error
        return made


@dataclass(frozen=True)
class Note:
    """What a commit leaves in the table beside its files.

    Attributes:
        origin: Of the sink.
        ledger: The sink's notes as they are behind the commit.
        whole: What is committed; None for a takeover.
        job: Of the committer, for people.
        operator: Likewise.
    """

    origin: str
    ledger: Ledger
    whole: GlobalCommittable | None
    job: str
    operator: str

    def to_properties(self) -> dict[str, str]:
        """Return it as texts by name, for people who read the table's history."""
        said = {"headrace.job-id": self.job, "headrace.operator-id": self.operator, "headrace.origin": self.origin}
        if self.whole is not None:
            said["headrace.checkpoint-id"] = str(self.whole.checkpoint_id)
            said["headrace.commit"] = self.whole.name
        return said


class TableView(Protocol):
    """A table as it was at one look.

    Contract:
        * ``append``, ``change`` and ``claim`` commit all that they are given, and the note, or nothing (*trusted*).
        * They raise `CommitConflictError` if anything was committed for the same origin since the look (*asserted*).
    """

    table_id: str
    schema: pa.Schema
    """Of the table's rows, with the names and types that files are to have."""

    def split(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each partition, as they are in a file, with what `DataFile.partition` is to say."""
        ...

    def open_output(self, name: str, partition: str) -> Any:
        """Open a file to be written: a stream of bytes, durable once it is closed."""
        ...

    def delete_output(self, name: str, partition: str) -> None:
        """Delete a file that was never committed."""
        ...

    def ledger(self, origin: str) -> Ledger:
        """Return a sink's notes.

        Raises:
            SinkError: If the table's history no longer says.
        """
        ...

    def has(self, origin: str, whole: GlobalCommittable) -> bool:
        """Return whether something is committed."""
        ...

    def claim_of(self, origin: str) -> int:
        """Return the claim on a sink."""
        ...

    def append(self, files: Sequence[DataFile], note: Note) -> None:
        """Commit files.

        Raises:
            CommitConflictError: See the class.
            PossibleLossError: If a file is gone.
        """
        ...

    def change(self, files: Sequence[DataFile], keys: Sequence[str], note: Note) -> None:
        """Commit changes by key: each file holds rows, and in column `DELETED` whether a row is to go.

        Raises:
            CommitConflictError: See the class.
            PossibleLossError: If a file is gone.
        """
        ...

    def claim(self, note: Note) -> None:
        """Commit nothing but a note."""
        ...


class TableAccess(Protocol):
    """Finds a table; picklable."""

    @property
    def name(self) -> str:
        """For errors."""
        ...

    @property
    def place(self) -> Mapping[str, Any]:
        """Likewise."""
        ...

    def look(self) -> TableView:
        """Return the table as it is now.

        Raises:
            SinkError: If it is not there, or not one that can be written.
        """
        ...

    def make(self) -> None:
        """Make the table if it is not there and the program has said how."""
        ...
