"""How much an operator of a checkpoint has kept, counted in its files: keys, rows, values.

Logs hold what has changed, one state behind the other; what they come to is found as a restore finds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from headrace.engine.changelog.grouped_state import FORM_OF_GROUPS
from headrace.engine.tables.row_store import FORM_OF_ROWS, FORM_OF_TIMED_ROWS
from headrace.engine.tables.run_log import LogForm
from headrace.engine.tables.value_counts import FORM_OF_VALUES
from headrace.state.checkpoints.manifest import Manifest, OperatorState
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.open.reader import EVERYTHING, SnapshotReader
from headrace.state.open.stored_states import StoredState, states_of

__all__ = ["Kept", "kept_by"]

_ONE_KEY = ("key",)
"""The key columns of a log whose table has none."""

Kept = dict[str, int]
"""How many entries there are, by what they are: ``keys``, ``rows``, ``values``, ``slices of windows``."""


def kept_by(storage: CheckpointStorage, manifest: Manifest) -> dict[str, Kept]:
    """Count what the operators of a checkpoint have kept, by their uids.

    Raises:
        CheckpointCorruptError: If a file is damaged.
    """
    reader = SnapshotReader(storage)
    try:
        return {str(operator.uid): _kept_by(reader, operator) for operator in manifest.operators}
    finally:
        reader.close()


def _kept_by(reader: SnapshotReader, operator: OperatorState) -> Kept:
    kept: Kept = {}
    for state in states_of(operator).values():
        if not state.is_columnar:
            continue
        schema = reader.columnar_schema(state)
        if schema.names[len(state.key_columns) :] == ["time"]:
            continue  # when keys were written that others keep
        what, form = _form_of(schema, len(state.key_columns))
        count = sum(_count(rows, state, form) for rows in _by_subtask(reader, state))
        kept[what] = kept.get(what, 0) + count
    return kept


def _form_of(schema: pa.Schema, num_keys: int) -> tuple[str, LogForm | None]:
    """What the rows of a state are; None for those of windows, which are what they are."""
    names = schema.names[num_keys:]
    if names[:3] == ["row", "kind", "number"]:
        return "rows", FORM_OF_TIMED_ROWS if names[3:4] == ["time"] else FORM_OF_ROWS
    if names[:1] == ["records"]:
        return "keys", FORM_OF_GROUPS
    return ("values", FORM_OF_VALUES) if names[:1] == ["value"] else ("slices of windows", None)


def _by_subtask(reader: SnapshotReader, state: StoredState) -> Iterator[list[pa.RecordBatch]]:
    """The batches of each subtask, those of a key in the order in which they were written."""
    found: dict[int, list[pa.RecordBatch]] = {}
    for subtask, _groups, _starts, _ends, batch in reader.columnar_batches(state, EVERYTHING):
        found.setdefault(subtask, []).append(batch)
    yield from found.values()


def _count(batches: Iterable[pa.RecordBatch], state: StoredState, form: LogForm | None) -> int:
    table = pa.Table.from_batches(batches).combine_chunks()
    if form is None or not table.num_rows:
        return int(table.num_rows)
    columns = [column.combine_chunks() for column in table.columns]
    num_keys = len(state.key_columns)
    keys = [] if tuple(state.key_columns) == _ONE_KEY else columns[:num_keys]
    _, _, others = form.net((table.num_rows, keys, columns[num_keys:]))
    return int((~form.is_gone(others)).sum())
