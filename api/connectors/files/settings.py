"""What all parts of a file source know of it: where its files are, what they hold, and how they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

__all__ = ["ErrorPolicy", "FileSettings"]

ErrorPolicy = Literal["fail", "skip", "dead-letter"]


@dataclass(frozen=True)
class FileSettings:
    """What all parts of a file source know; the meaning of each is at `FileSource`'s constructors."""

    format: Literal["parquet", "csv", "json lines", "text", "sequence", "orc", "avro"]
    locations: tuple[str, ...]
    recursive: bool
    follow_ms: int | None
    split_bytes: int
    """0 for what makes splits that are worth their costs, and enough of them."""
    columns: tuple[str, ...] | None = None
    schema: pa.Schema | None = None
    on_error: ErrorPolicy = "fail"
    is_splittable: bool = False
    has_header: bool = True
    delimiter: str = ","
    null_values: tuple[str, ...] | None = None
    encoding: str = "utf-8"
    int96_unit: str | None = None
    folders: pa.Schema | None = None
    """Columns whose values the folders of a file say; they come behind its own."""
