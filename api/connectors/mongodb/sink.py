"""A collection of MongoDB as a sink: a document for each key.

Each document has a number in a field of its own, and is written only if the number there is not greater: in one
operation, which finds the document by ``_id`` and number and inserts one if it finds none. If there is one with a
greater number, the insert fails as there is that ``_id``: what was to be written is older. The number is never the
time of writing: either it is the record's own (``order``), or one that the sink makes, above all that were made for the
collection before (`headrace.connectors.upserts.numbering`). So whatever is written again, or late, changes nothing.

A document that is deleted has no number any more, unless it stays as a mark.

Source: Flink's ``MongoSink``, ``MongoRowDataSerializationSchema``; MongoDB's "Upsert with Unique Index".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from headrace.engine.errors import ConfigurationError, SinkError

from ...formats.client_values import optional
from ...formats.schemas import schema_of
from ..messages.client_thread import AnswerError
from ..upserts import (
    Entry,
    KeyedColumns,
    Numbers,
    OrderKey,
    Refused,
    SinkAwayError,
    UpsertOptions,
    UpsertSink,
    UpsertSinkWriter,
    WriterPlace,
)
from .bson_values import check_bson_types, check_names, writer_of
from .client import Connection, MongodbClient
from .source import split_name

__all__ = ["MongodbSink"]

OVERHEAD_BYTES = 100
"""Beside the values of a document, about."""

MOST_BYTES = 16 << 20
"""Of a document."""

_REFUSED = (ValueError, TypeError, AttributeError, ArithmeticError)
"""What is raised for values that no document can have."""


class MongodbSink(UpsertSink):
    """Writes records as fields of documents; other fields of a document are left as they are.

    Args:
        client: Of the cluster, or its URI.
        collection: The collection behind its database, as ``shop.items``. It must not be sharded by anything but
            ``_id``.
        schema: The fields that are written, with their types.
        key: The columns of the key. The value of one is the document's ``_id``; those of several are a document in it.
        order: The column, or the `OrderKey`, that says which record of a key is newer; it need not be written. None:
            the one that came to the sink later is newer, and records of a key must come to one subtask.
        delete_column: A boolean field that is not written: where it is true, the document is deleted.
        deletion_marker: A field that is written in the place of a deletion, with its time: the document stays, with its
            key, and so does its number. None: it goes.
        bson_types: By column, what a text is in documents: ``objectId`` or ``uuid``; else it is a string.
        number_field: Where a document has its number.
        numbers_collection: Where it is kept, in the same database, which numbers were used; for sinks without an order.
        options: How records are brought there.

    Guarantees: at least once; each key has its newest record, whatever fails. With deletions that are not marked, a
        write that comes late behind a deletion brings its document back.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    def __init__(
        self,
        client: MongodbClient | str,
        collection: str,
        *,
        schema: pa.Schema | Mapping[str, Any],
        key: str | Sequence[str],
        order: str | OrderKey | None = None,
        delete_column: str | None = None,
        deletion_marker: str | None = None,
        bson_types: Mapping[str, str] | None = None,
        number_field: str = "_number",
        numbers_collection: str = "headrace_numbers",
        options: UpsertOptions = UpsertOptions(),
    ) -> None:
        self._client = MongodbClient(client) if isinstance(client, str) else client
        fields = schema_of(schema)
        assert fields is not None
        rows = KeyedColumns(fields, key, delete_column, order)
        self._target = _Target(
            split_name(collection), fields, rows.key, check_bson_types(fields, bson_types or {}), number_field,
            deletion_marker, None if rows.order is not None else numbers_collection,
        )  # fmt: skip
        if deletion_marker is not None and delete_column is None:
            message = "deletion_marker is about deletions: delete_column is missing"
            raise ConfigurationError(message)
        super().__init__(f"collection {collection!r}", rows, options)

    def create_writer(self) -> UpsertSinkWriter:
        """Make the writer of one subtask."""
        return _Writer(self.place, self._client, self._target, self.options)


class _Target:
    """What is written.

    Args:
        place: Database and collection.
        schema: The fields.
        key: Those of the key.
        bson_types: What texts are.
        number_field: Of documents.
        marker: Of those that are deleted; None if they go.
        numbers: The collection where numbers are kept; None if they are the records' own.
    """

    def __init__(
        self,
        place: tuple[str, str],
        schema: pa.Schema,
        key: tuple[str, ...],
        bson_types: dict[str, str],
        number_field: str,
        marker: str | None,
        numbers: str | None,
    ) -> None:
        self.place = place
        self.schema = schema
        self.key = key
        self.bson_types = bson_types
        self.number_field = number_field
        self.marker = marker
        self.numbers = numbers
        own = [number_field] if marker is None else [number_field, marker]
        check_names((*schema.names, *own))
        if set(own) & {*schema.names, "_id"} or len(set(own)) < len(own):
            message = f"the fields {', '.join(own)} are the sink's own: the schema cannot have them"
            raise ConfigurationError(message)
        if "_id" in schema.names and key != ("_id",):
            message = f"a document's _id is its key: with a column _id that is the key; got {', '.join(key)}"
            raise ConfigurationError(message)
        for name in key:
            kind = schema.field(name).type
            if kinds.is_floating(kind) or kinds.is_nested(kind):
                message = f"column {name!r} of the key is {kind}, whose equal values may be different documents"
                raise ConfigurationError(message)


class _Converters:
    """Makes operations of entries.

    Raises:
        TypeMismatchError: If a field's type has no place in documents.
    """

    def __init__(self, target: _Target) -> None:
        self._target = target
        self._convert = {
            field.name: optional(writer_of(field.name, field.type, target.bson_types.get(field.name)))
            for field in target.schema
        }

    def id_of(self, key: tuple[Any, ...]) -> Any:
        """The ``_id`` of a key."""
        made = {name: self._convert[name](value) for name, value in zip(self._target.key, key, strict=True)}
        return made if len(made) > 1 else next(iter(made.values()))

    def operation(self, entry: Entry, number: int) -> Any:
        """What the driver is asked to do.

        Raises:
            ValueError, TypeError, AttributeError, ArithmeticError: If no document can have these values.
        """
        import bson
        from bson import DatetimeMS, Int64
        from bson.raw_bson import RawBSONDocument
        from pymongo import DeleteOne, ReplaceOne, UpdateOne

        key, _, values = entry
        target = self._target
        own = self.id_of(key)
        # Also a document that has no number, as it was written by others.
        there = {"_id": own, target.number_field: {"$not": {"$gt": Int64(number)}}}
        if values is None and target.marker is None:
            return DeleteOne(there)
        if values is None:
            now_ms = int(datetime.now(timezone.utc).timestamp() * 1_000)
            kept = {name: self._convert[name](one) for name, one in zip(target.key, key, strict=True) if name != "_id"}
            mark = {str(target.marker): DatetimeMS(now_ms), target.number_field: Int64(number)}
            return ReplaceOne(there, {"_id": own, **kept, **mark}, upsert=True)
        pairs = zip(target.schema.names, values, strict=True)
        fields = {name: self._convert[name](value) for name, value in pairs if name != "_id"}
        try:
            text = bson.encode({**fields, target.number_field: Int64(number)})
        except bson.errors.BSONError as error:
            raise ValueError(str(error)) from error
        if len(text) > MOST_BYTES:
            message = f"a document would have {len(text)} bytes, and MongoDB takes {MOST_BYTES}"
            raise ValueError(message)
        change: dict[str, Any] = {"$set": RawBSONDocument(text)}
        if target.marker is not None:
            change["$unset"] = {target.marker: ""}
        return UpdateOne(there, change, upsert=True)


class _Writer(UpsertSinkWriter):
    """Sends entries as bulks of writes."""

    def __init__(self, place: str, client: MongodbClient, target: _Target, options: UpsertOptions) -> None:
        super().__init__(place, options)
        self._client = client
        self._target = target
        self._connection: Connection | None = None
        # Who makes numbers where records have none.
        self._numbers: Numbers | None = None

    def open(self, context: Any) -> None:
        """Get ready."""
        if self._target.numbers is not None:
            self._numbers = Numbers(_Cell(self, self._target.numbers), WriterPlace.of(context))
        super().open(context)

    def connect(self) -> None:
        self._client.check_driver()
        self._converters = _Converters(self._target)

    def connection(self) -> Connection:
        """Return the connection, which finds hosts by itself.

        Raises:
            SinkAwayError: If there is none.
        """
        if self._connection is None:
            try:
                self._connection = self._client.connect(self._options.request_timeout_s)
            except AnswerError as error:
                raise self.error_of(error) from error
        return self._connection

    def error_of(self, error: AnswerError) -> SinkError:
        """Return what an answer means."""
        message = f"{self._place} takes nothing: {error}"
        return (SinkAwayError if error.is_away else SinkError)(message)

    def collection(self, name: str | None = None) -> Any:
        """The collection that is written, or another one of its database."""
        database, own = self._target.place
        return self.connection().collection(database, own if name is None else name)

    def get_size_in_bytes(self, request_entry: Entry) -> int:
        key, _, values = request_entry
        return OVERHEAD_BYTES + sum(map(_size_of, key if values is None else values))

    def apply(self, entries: list[Entry]) -> Iterable[Refused]:
        refused: list[Refused] = []
        number = None
        if self._numbers is not None:
            # No two entries are of one document, so one number will do for all of them.
            entries, number = self._newest_of_documents(entries), self._numbers.take()
        operations: list[Any] = []
        sent: list[Entry] = []
        for entry in entries:
            own = entry[1] if number is None else number
            assert own is not None
            try:
                operations.append(self._converters.operation(entry, own))
            except _REFUSED as error:
                refused.append(Refused(entry, str(error) or repr(error)))
                continue
            sent.append(entry)
        return [*refused, *self._written(sent, operations, number)] if operations else refused

    def _newest_of_documents(self, entries: Sequence[Entry]) -> list[Entry]:
        """Of the entries of each document the last one: several texts of a key may be one, as those of a UUID."""
        import bson

        newest: dict[Any, Entry] = {}
        for entry in entries:
            try:
                place: Any = bson.encode({"_id": self._converters.id_of(entry[0])})
            except _REFUSED:  # it is refused when it is sent
                place = entry[0]
            newest.pop(place, None)
            newest[place] = entry
        return list(newest.values())

    def _written(self, entries: Sequence[Entry], operations: Sequence[Any], number: int | None) -> list[Refused]:
        try:
            failed = self.connection().write(self.collection(), operations)
        except AnswerError as error:
            raise self.error_of(error) from error
        there = self._numbers_there([entries[one.index] for one in failed if one.has_id])
        refused: list[Refused] = []
        num_older = 0
        for one in failed:
            entry = entries[one.index]
            own = entry[1] if number is None else number
            newest = there.get(_comparable(self._converters.id_of(entry[0])))
            if one.has_id and newest is not None and own is not None and newest > own:
                num_older += 1
            else:  # one that has its _id and is not newer was inserted in the same moment by somebody else
                refused.append(Refused(entry, one.cause, one.is_for_now or one.has_id))
        if num_older:
            self.count_older(num_older)
        return refused

    def _numbers_there(self, entries: Sequence[Entry]) -> dict[Any, Any]:
        """The numbers of the documents of entries, by what is equal for one ``_id``; all are asked for at once."""
        from bson import Decimal128

        if not entries:
            return {}
        field = self._target.number_field
        ids = [self._converters.id_of(entry[0]) for entry in entries]
        is_composite = len(self._target.key) > 1  # not every server finds documents by $in
        asked = {"$or": [{"_id": one} for one in ids]} if is_composite else {"_id": {"$in": ids}}
        try:
            found = self.connection().ask(
                lambda: list(self.collection().find(asked, {field: 1}, batch_size=len(entries)))
            )
        except AnswerError as error:
            raise self.error_of(error) from error
        numbers: dict[Any, Any] = {}
        for document in found:
            number = document.get(field)
            if isinstance(number, Decimal128):  # which somebody else has written
                number = number.to_decimal()
            if isinstance(number, (int, float, Decimal)):
                numbers[_comparable(document["_id"])] = number
        return numbers

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _comparable(value: Any) -> Any:
    """What is equal where MongoDB takes one ``_id`` for another, whatever types its numbers are of."""
    from bson import DatetimeMS, Decimal128

    if isinstance(value, Mapping):
        return tuple((name, _comparable(one)) for name, one in value.items())
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, DatetimeMS):
        return ("date", int(value))
    return value.to_decimal() if isinstance(value, Decimal128) else value


def _size_of(value: Any) -> int:
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(str(name)) + _size_of(one) for name, one in value.items())
    return sum(map(_size_of, value)) if isinstance(value, (list, tuple)) else 16


class _Cell:
    """Numbers that were used for a collection, in a document of another one."""

    def __init__(self, writer: _Writer, name: str) -> None:
        self._writer = writer
        self._name = name

    def _ask(self, question: Any) -> Any:
        try:
            return self._writer.connection().ask(question)
        except AnswerError as error:
            raise self._writer.error_of(error) from error

    @property
    def _id(self) -> str:
        return self._writer.collection().name

    def read(self) -> str | None:
        found = self._ask(lambda: self._writer.collection(self._name).find_one({"_id": self._id}))
        return None if found is None else str(found.get("numbers"))

    def replace(self, old: str | None, new: str) -> bool:
        from pymongo.errors import DuplicateKeyError

        def replaced() -> bool:
            collection = self._writer.collection(self._name)
            if old is None:
                try:
                    collection.insert_one({"_id": self._id, "numbers": new})
                except DuplicateKeyError:
                    return False
                return True
            changed = collection.update_one({"_id": self._id, "numbers": old}, {"$set": {"numbers": new}})
            return bool(changed.matched_count)

        return bool(self._ask(replaced))
