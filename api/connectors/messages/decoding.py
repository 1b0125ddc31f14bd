"""Messages of a queue or a stream as records, with what the server says of them, and what becomes of bad ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import ReaderContext
from headrace.engine.errors import ConfigurationError, MalformedRecordError, nearest

from ...formats.messages import BadMessage, MessageFormat, require_format

__all__ = ["MessageDecoder", "Metadata", "OnError", "reject"]

Message = TypeVar("Message")
OnError = Literal["fail", "skip", "dead-letter"]
Metadata = Mapping[str, tuple[pa.DataType, Callable[[Any], Any]]]
"""What a server says of a message: type, and how it is found."""


@dataclass(frozen=True)
class MessageDecoder(Generic[Message]):
    """Makes records of messages.

    Attributes:
        value: Decodes their bytes.
        value_of: Gives them.
        place_of: Says where a message was, for errors.
        known: What the server says of messages, by name.
        metadata: What of it is added, by the columns' names.
        on_error: What becomes of a bad one.
    """

    value: MessageFormat
    value_of: Callable[[Message], bytes]
    place_of: Callable[[Message], str]
    known: Metadata
    metadata: Mapping[str, str]
    on_error: OnError

    def __post_init__(self) -> None:
        require_format(self.value)
        if self.on_error not in ("fail", "skip", "dead-letter"):
            message = f"on_error must be fail, skip or dead-letter; got {self.on_error!r}"
            raise ConfigurationError(message)
        for column, name in self.metadata.items():
            if name not in self.known:
                message = f"the records have no metadata {name!r}"
                hint = nearest(name, list(self.known)) or f"there are {', '.join(self.known)}"
                raise ConfigurationError(message, hint=hint)
            if self.value.schema is not None and column in self.value.schema.names:
                message = f"the record has a column {column!r} itself"
                raise ConfigurationError(message, hint=f"give the metadata another name: {{'its_{column}': {name!r}}}")
        if self.metadata and self.value.schema is None:
            message = "metadata are columns beside those of the value, whose schema must be declared"
            raise ConfigurationError(message, hint="JsonMessages({'field': 'int64'}), or TextMessages(column='text')")

    @property
    def schema(self) -> pa.Schema | None:
        """The records' columns; None for rows of Python objects."""
        if self.value.schema is None:
            return None
        return pa.schema(
            [*self.value.schema, *(pa.field(column, self.known[name][0]) for column, name in self.metadata.items())]
        )

    def decode(
        self,
        context: ReaderContext,
        split_id: str,
        messages: Sequence[Message],
        time_of: Callable[[Message], int | None] | None = None,
    ) -> Batch:
        """Return the good ones as records.

        Args:
            context: Of the reader.
            split_id: Whose messages they are.
            messages: In their order.
            time_of: Their event times, epoch milliseconds; records have none if one of them has none.

        Raises:
            MalformedRecordError: If one is bad and that is to fail.
        """
        decoded = self.value.decode([self.value_of(message) for message in messages])
        if decoded.bad:
            reject(context, self.on_error, split_id, decoded.bad, lambda bad: self.place_of(messages[bad.index]))
        good = [messages[place] for place in decoded.good]
        batch = decoded.batch
        if not good:
            return Batch.of_rows([])
        if self.metadata:
            added = [
                pa.array([self.known[name][1](message) for message in good], self.known[name][0])
                for name in self.metadata.values()
            ]
            columns = batch.columns_as(self.value.schema)
            batch = batch.with_columns(pa.RecordBatch.from_arrays([*columns.columns, *added], schema=self.schema))
        times = [] if time_of is None else [time_of(message) for message in good]
        if times and None not in times:
            batch = batch.with_timestamps(np.array(times, np.int64))
        return batch


def reject(
    context: ReaderContext,
    on_error: OnError,
    split_id: str,
    bad: Sequence[BadMessage],
    place_of: Callable[[BadMessage], str],
    what: str = "a record",
    advice: str | None = None,
) -> None:
    """Do what is to become of messages that cannot be decoded.

    The error advises ``on_error``, or what is given as advice.

    Raises:
        MalformedRecordError: If that is to fail.
    """
    if on_error == "fail":
        message = f"cannot decode {what}: {bad[0].cause}"
        hint = advice or "on_error='skip' or 'dead-letter' goes on without such records"
        raise MalformedRecordError(message, hint=hint, split=split_id, position=place_of(bad[0]))
    context.metrics.count("num_records_skipped", len(bad))

    def letters() -> Batch:
        return Batch.of_rows(
            [{"error": one.cause, "split": split_id, "position": place_of(one), "raw": one.text} for one in bad]
        )

    if on_error == "dead-letter":
        context.emit_dead_letter(letters())
    else:
        context.note_skipped(letters)
