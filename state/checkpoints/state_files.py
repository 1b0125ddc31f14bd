"""State files: one Arrow IPC file per state and subtask, and the freezing of values on their way there.

The schema's metadata ``headrace.state`` (JSON) holds the state's facts and says how to read keys and values. A file can
be read with pyarrow alone. Values are frozen in the synchronous part of a snapshot: kept as they are if they are
immutable by type, copied one level deep if they are lists or dicts of such, encoded on the spot otherwise. Bytes are
made later, on another thread.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Sequence
from decimal import Decimal
from itertools import chain
from typing import Any

import pyarrow as pa

from ..errors import CheckpointCorruptError, CheckpointMismatchError, TypeMismatchError
from ..reading.arrow_reading import read_arrow_file
from ..reading.stored_json import parse_json
from ..values.encoding import encode_values
from .snapshot import RestoredPart

__all__ = ["FORMAT_VERSION", "FrozenColumn", "read_state_file", "write_state_file"]

FORMAT_VERSION = 1
"""Of state files; a restore refuses newer ones."""

_FACTS = b"headrace.state"
_MAX_FACTS_BYTES = 64 << 20


_CLOCKS = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta)
_IMMUTABLE = frozenset((int, float, bool, str, bytes, type(None), complex, Decimal, *_CLOCKS))


_MAX_LOOKS = 1 << 16
"""Tuples of more parts, which may be few that they share, are encoded at once instead."""


def _are_immutable(values: Sequence[Any], max_parts: float = math.inf) -> bool:
    """Whether nothing can change any of the values, judging by their types; tuples are looked into."""
    kinds = set(map(type, values))
    if kinds <= _IMMUTABLE:
        return True
    if not kinds <= _IMMUTABLE | {tuple}:
        return False
    tuples = [value for value in values if type(value) is tuple]
    num_parts = sum(map(len, tuples))
    max_parts = min(max_parts, _MAX_LOOKS + 64 * len(values))
    return num_parts <= max_parts and _are_immutable(list(chain.from_iterable(tuples)), max_parts - num_parts)


def _freeze(values: list[Any]) -> list[Any] | None:
    """The values, safe from later changes, or None if only encoding them makes them so. ``values`` is a fresh list."""
    try:
        if _are_immutable(values):
            return values
    except RecursionError:  # tuples in tuples
        return None
    kinds = set(map(type, values)) - {type(None)}
    if kinds == {list}:
        if _are_immutable(list(chain.from_iterable(value for value in values if value is not None))):
            return [None if value is None else value.copy() for value in values]
    elif kinds == {dict}:
        present = [value for value in values if value is not None]
        if _are_immutable([part for value in present for parts in (value, value.values()) for part in parts]):
            return [None if value is None else value.copy() for value in values]
    return None


class FrozenColumn:
    """Values on their way into a file: frozen now, encoded now or when the file is written.

    Args:
        values: A list that nothing else changes.
        state: The state's name, for errors.

    Raises:
        TypeMismatchError: If a value cannot be stored; maybe only by `encode`.
    """

    __slots__ = ("_encoded", "_frozen", "_state")

    def __init__(self, values: list[Any], state: str) -> None:
        self._state = state
        self._frozen = _freeze(values)
        self._encoded = self._encode(values) if self._frozen is None else None

    def encode(self) -> tuple[pa.Array, Any]:
        """Return the column and its encoding."""
        if self._encoded is not None:
            return self._encoded
        assert self._frozen is not None
        return self._encode(self._frozen)

    def _encode(self, values: list[Any]) -> tuple[pa.Array, Any]:
        try:
            return encode_values(values)
        except TypeMismatchError as error:
            error.context = {"state": self._state, **error.context}
            raise


def write_state_file(table: pa.Table, facts: dict[str, Any]) -> bytes:
    """Return the bytes of a state file.

    Args:
        table: Its columns.
        facts: JSON-able; what the module's docstring says.
    """
    schema = table.schema.with_metadata(
        {**(table.schema.metadata or {}), _FACTS: json.dumps(facts, sort_keys=True).encode()}
    )
    table = table.replace_schema_metadata(schema.metadata).unify_dictionaries()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def read_state_file(part: RestoredPart, operator: str) -> tuple[pa.Table, dict[str, Any]]:
    """Open a state file and check that it is what its name in the manifest says.

    Raises:
        CheckpointCorruptError: If it is no such file.
        CheckpointMismatchError: If a newer version wrote it.
    """
    context: dict[str, Any] = {"operator": operator, "state": part.state, "source_subtask": part.source_subtask}
    table = read_arrow_file(part.data, "a state file", **context)
    try:
        facts = parse_json(table.schema.metadata[_FACTS], max_bytes=_MAX_FACTS_BYTES)
        version, kind, state = facts["format_version"], facts["kind"], facts["state"]
        if type(version) is not int or len(set(table.column_names)) < table.num_columns:
            message = f"format version {version!r:.40}, columns {table.column_names!r:.200}"
            raise ValueError(message)
    except (KeyError, TypeError, ValueError) as error:
        message = f"the facts of a state file cannot be decoded: {error!r:.400}"
        raise CheckpointCorruptError(message, **context) from error
    if version > FORMAT_VERSION:
        message = f"a state file has format version {version}; this Headrace reads up to {FORMAT_VERSION}"
        raise CheckpointMismatchError(message, **context)
    if (kind, state) != (part.kind, part.state):
        message = (
            f"a state file holds {kind!s:.40} state {state!r:.200} where its manifest says {part.kind} state "
            f"{part.state!r}"
        )
        raise CheckpointCorruptError(message, **context)
    return table.unify_dictionaries(), facts
