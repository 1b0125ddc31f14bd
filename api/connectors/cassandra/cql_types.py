"""Types of columns as Cassandra writes them down, and what a table is.

Source: Cassandra's documentation, "The Cassandra Query Language", "Data Types".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["CqlType", "TableShape", "parse_type", "quoted", "shape_of"]

_TOKEN = re.compile(r"""\s*("(?:[^"]|"")*"|'[^']*'|[\w.]+|[<>,])\s*""")


@dataclass(frozen=True)
class CqlType:
    """A type of a column.

    Attributes:
        name: As ``int``, ``list``; in lower case.
        parts: Of a list, a set, a map, a tuple.
        is_frozen: Whether its values are one cell.
    """

    name: str
    parts: tuple[CqlType, ...] = ()
    is_frozen: bool = False

    def __str__(self) -> str:
        text = f"{self.name}<{', '.join(map(str, self.parts))}>" if self.parts else self.name
        return f"frozen<{text}>" if self.is_frozen else text

    @property
    def is_collection(self) -> bool:
        """Whether it has elements."""
        return self.name in ("list", "set", "map")


def parse_type(text: str) -> CqlType:
    """Return what a text says, as ``frozen<map<text, int>>``; anything that it does not understand is a name."""
    return _parsed(iter([*_TOKEN.findall(text), ""]))[0]


def _parsed(tokens: Iterator[str]) -> tuple[CqlType, str]:
    """A type, and the token behind it."""
    name, behind = next(tokens), next(tokens)
    parts = []
    if behind == "<":
        while behind in ("<", ","):
            part, behind = _parsed(tokens)
            parts.append(part)
        behind = next(tokens, "")
    if name.lower() == "frozen" and len(parts) == 1:
        return CqlType(parts[0].name, parts[0].parts, is_frozen=True), behind
    return CqlType(name.lower() if parts or not name.startswith(('"', "'")) else name, tuple(parts)), behind


@dataclass(frozen=True)
class TableShape:
    """What a table is.

    Attributes:
        name: Behind that of its keyspace.
        columns: By name.
        partition_key: Columns that say where a row is.
        clustering: Columns that say in which order the rows of a partition are, and whether it is reversed.
        static: Columns that a partition has once.
    """

    name: str
    columns: Mapping[str, CqlType]
    partition_key: Sequence[str]
    clustering: Mapping[str, bool]
    static: frozenset[str]

    @property
    def key(self) -> tuple[str, ...]:
        """The primary key."""
        return (*self.partition_key, *self.clustering)


def shape_of(table: Any) -> TableShape:
    """Return what the driver says of a table."""
    return TableShape(
        f"{table.keyspace_name}.{table.name}",
        {name: parse_type(str(column.cql_type)) for name, column in table.columns.items()},
        tuple(column.name for column in table.partition_key),
        {column.name: bool(column.is_reversed) for column in table.clustering_key},
        frozenset(name for name, column in table.columns.items() if column.is_static),
    )


def quoted(*names: str) -> str:
    """Return names as a piece of a statement, with commas between."""
    return ", ".join('"' + name.replace('"', '""') + '"' for name in names)
