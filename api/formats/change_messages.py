"""Messages that say what becomes of a row: Debezium's envelopes in JSON.

A message has the row that there was (``before``), the one that there is (``after``) and what was done (``op``): ``c``
and ``r`` insert, ``u`` updates, ``d`` deletes. An update is two changes of a table. Written, an update is a deletion
and an insertion, since its halves may come apart on their way.

Source: Debezium's documentation ("Change event values"); Flink's ``DebeziumJsonDeserializationSchema`` and
``DebeziumJsonSerializationSchema``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.changelog.changes import places_of_changes
from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError, TypeMismatchError

from .contract import columns_to_write
from .json_lines import JsonEncoder
from .messages import BadMessage, Decoded, JsonMessages, MessageFormat
from .schemas import schema_of

__all__ = ["DebeziumMessages"]

_INSERTS, _DELETES = ("c", "r"), "d"
_ADDS = ("+I", "+U")


class DebeziumMessages(MessageFormat[dict[str, Any]]):
    """Changes of a table, as Debezium tells them.

    Args:
        schema: The columns of rows, with their types.
        has_schema: Whether messages say their types, too (``schema`` beside ``payload``), as Kafka Connect's converter
            does unless ``schemas.enable`` is false. They are read so, not written.
        kind_column: The column in which a record says what change it is (``+I``, ``-U``, ``+U``, ``-D``), where
            messages are made.
    """

    schema: pa.Schema
    gives_changes = True

    def __init__(
        self, schema: pa.Schema | Mapping[str, Any], *, has_schema: bool = False, kind_column: str = "op"
    ) -> None:
        found = schema_of(schema)
        if found is None or not found.names:
            message = "the columns of a table whose changes are read must be declared"
            raise ConfigurationError(message)
        self.schema = found
        self._kind_column = kind_column
        self._has_schema = has_schema
        row = pa.struct(list(found))
        envelope = pa.schema([("before", row), ("after", row), ("op", pa.string())])
        self._envelopes = JsonMessages(pa.schema([("payload", pa.struct(list(envelope)))]) if has_schema else envelope)

    def decode(self, messages: Sequence[bytes]) -> Decoded:
        """Make changes of messages: an update comes to two, whose places are the same."""
        decoded = self._envelopes.decode(messages)
        columns = decoded.batch.columns_as(self._envelopes.schema)
        if self._has_schema:
            columns = pa.RecordBatch.from_struct_array(columns.column("payload"))
        before, after, op = (columns.column(name) for name in ("before", "after", "op"))
        causes = _causes(before, after, op)
        bad = [*decoded.bad, *(_bad(messages, int(decoded.good[row]), cause) for row, cause in causes.items())]
        bad.sort(key=lambda one: one.index)
        is_good = np.ones(len(op), bool)
        is_good[list(causes)] = False
        takes_back = _is_in(op, ("u", _DELETES)) & is_good
        gives = _is_in(op, ("u", *_INSERTS)) & is_good
        rows, kinds = places_of_changes(takes_back, gives, np.ones(len(op), np.bool_))
        both = pa.concat_arrays([before, after]).take(pa.array(rows))
        batch = Batch.of_columns(pa.RecordBatch.from_struct_array(both), None, kinds)
        return Decoded(batch, decoded.good[rows % max(len(op), 1)], bad)

    def encode(self, batch: Batch) -> list[bytes]:
        """Make a message of each change.

        Raises:
            TypeMismatchError: If a record does not say which it is, or has no place in the columns.
        """
        columns = batch.columns
        if self._kind_column not in columns.schema.names:
            message = f"the records have no field {self._kind_column!r} that says what each change is"
            raise TypeMismatchError(message)
        is_added = _is_in(columns.column(self._kind_column), _ADDS)
        rows = Batch.of_columns(columns.drop_columns([self._kind_column]))
        written = columns_to_write(rows, self.schema)
        before, after = (
            pa.StructArray.from_arrays(written.columns, fields=list(written.schema), mask=pa.array(is_none))
            for is_none in (is_added, ~is_added)
        )
        made = [before, after, pa.array(np.where(is_added, "c", "d"))]
        envelopes = pa.RecordBatch.from_arrays(made, names=["before", "after", "op"])
        return JsonEncoder().encode(Batch.of_columns(envelopes)).split(b"\n")[:-1]


def _is_in(values: pa.Array, wanted: Sequence[str]) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = pc.is_in(values, pa.array(wanted, values.type)).to_numpy(zero_copy_only=False)
    return found


def _causes(before: pa.Array, after: pa.Array, op: pa.Array) -> dict[int, str]:
    """Why envelopes are none, by their places."""
    known = _is_in(op, (*_INSERTS, "u", _DELETES))
    no_before = _is_in(op, ("u", _DELETES)) & before.is_null().to_numpy(zero_copy_only=False)
    no_after = _is_in(op, (*_INSERTS, "u")) & after.is_null().to_numpy(zero_copy_only=False)
    causes = {
        int(row): f"it does {op[int(row)].as_py()!r}, which is none of c, r, u, d" for row in np.flatnonzero(~known)
    }
    what = "it does not say the row that there was; PostgreSQL does with REPLICA IDENTITY FULL"
    causes.update({int(row): what for row in np.flatnonzero(no_before)})
    causes.update({int(row): "it does not say the row that there is" for row in np.flatnonzero(no_after & ~no_before)})
    return causes


def _bad(messages: Sequence[bytes], place: int, cause: str) -> BadMessage:
    return BadMessage(place, messages[place], cause)
