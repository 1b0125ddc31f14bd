"""Tables of Apache Hudi, as the library ``hudi`` (hudi-rs) gives them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.engine.errors import SourceError
from headrace.state.extras import needs

from .timeline import Timeline, read_timeline

__all__ = ["HudiAccess", "commit_metadata", "hudi"]

_LOOKS = 20
"""So often a table is looked at until nobody has committed meanwhile."""


def hudi() -> Any:
    """Return the library.

    Raises:
        ConfigurationError: If it is not installed.
    """
    with needs("tables of Apache Hudi need the library hudi", "hudi"):
        import hudi
    return hudi


@dataclass(frozen=True)
class HudiAccess:
    """Where a table is.

    Attributes:
        uri: An absolute path or a URI.
        storage_options: Of the library's own access to the table.
        kind: What the table must be: ``COPY_ON_WRITE`` or ``MERGE_ON_READ``; None for either.
    """

    uri: str
    storage_options: Mapping[str, str] = field(default_factory=dict)
    kind: str | None = None

    @property
    def name(self) -> str:
        return self.uri

    @property
    def place(self) -> Mapping[str, Any]:
        return {"table": self.uri}

    def load(self) -> Any:
        """Return the library's table, as it is now.

        Raises:
            SourceError: If it is not there, or is none that can be read.
        """
        library = hudi()
        try:
            table = library.HudiTable(self.uri, dict(self.storage_options) or None)
        except Exception as error:  # the library's own errors have no class that it exports
            message = f"there is no Hudi table that can be read: {error}"
            raise SourceError(message, **self.place) from error
        self._require_readable(table)
        return table

    def _require_readable(self, table: Any) -> None:
        options = table.hudi_options()
        if self.kind is not None and table.table_type != self.kind:
            message = f"the Hudi table is of type {table.table_type}, not {self.kind}"
            raise SourceError(message, **self.place)
        for name, wanted, what in (
            ("hoodie.table.base.file.format", "PARQUET", "has files of another format than Parquet"),
            ("hoodie.table.multiple.base.file.formats.enable", "false", "has files of several formats"),
        ):
            if options.get(name, wanted).lower() != wanted.lower():
                message = f"the Hudi table {what}, which is not read: {name} is {options[name]!r}"
                raise SourceError(message, **self.place)

    def timeline(self, table: Any) -> Timeline:
        """List the commits of a table."""
        options = table.hudi_options()
        layout = int(options.get("hoodie.timeline.layout.version", 1))
        archive = options.get("hoodie.timeline.history.path" if layout > 1 else "hoodie.archivelog.folder")
        return read_timeline(self.uri, layout, archive or ("history" if layout > 1 else "archived"))

    def look(self) -> tuple[Any, Timeline]:
        """Return the table, and its commits as they were when it was loaded.

        Raises:
            SourceError: If others commit faster than one can look.
        """
        table = self.load()
        for _ in range(_LOOKS):
            before = self.timeline(table)
            table = self.load()
            if self.timeline(table) == before:
                return table, before
        message = f"others have committed to the Hudi table during each of {_LOOKS} looks at it"
        raise SourceError(message, **self.place)


def commit_metadata(table: Any, instants: set[str]) -> dict[str, dict[str, Any]]:
    """Return what the table says of completed commits, by their instants."""
    timeline = table.get_timeline()
    found = [
        *timeline.get_completed_commits(), *timeline.get_completed_deltacommits(),
        *timeline.get_completed_replacecommits(),
    ]  # fmt: skip
    return {
        one.timestamp: json.loads(timeline.get_instant_metadata_in_json(one))
        for one in found
        if one.timestamp in instants
    }
