"""A table of HBase as a sink: a row for each row key.

Each cell is put with a timestamp, and HBase shows the cell with the greatest one. The number is never the time of
writing: either it is the record's own (``order``), or one that the sink makes, above all that were made for the table
before (`headrace.connectors.upserts.numbering`). So whatever is written again, or late, changes nothing.

A deletion hides all cells with its number or a smaller one, until a major compaction takes both away.

Source: Flink's ``HBaseSinkFunction``, ``RowDataToMutationConverter``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from headrace.engine.errors import SinkError, TypeMismatchError

from ...formats.schemas import schema_of
from ..messages.client_thread import AnswerError
from ..upserts import (
    Entry,
    KeyedRecords,
    Numbers,
    OrderKey,
    Refused,
    SinkAwayError,
    UpsertOptions,
    UpsertSink,
    UpsertSinkWriter,
    WriterPlace,
)
from .cell_values import TableFields
from .gateway import Gateway, HbaseClient

__all__ = ["HbaseSink"]

OVERHEAD_BYTES = 60
"""Beside keys and values of a row, about."""

UNIT_US = 1_000
"""Timestamps of HBase are milliseconds."""

BLOCK = 100
"""Numbers that are reserved at once: a tenth of a second."""

NUMBERS = b"n:numbers"


class HbaseSink(UpsertSink):
    """Writes records as rows.

    Args:
        client: Of a Thrift server, or its host.
        table: The table, which must be there.
        schema: One column that is no row, which is the row key, and a row for each column family.
        order: The column, or the `OrderKey`, that says which record of a key is newer, and differs for each change of a
            key; it is not written unless it is in the schema. None: the one that came to the sink later is newer, and
            records of a key must come to one subtask.
        delete_column: A boolean field that is not written: where it is true, the row is deleted, as far as its families
            are in the schema.
        null_text: What a null text is written as.
        numbers_table: Where it is kept which numbers were used; for sinks without an order. It is made if it is not
            there.
        options: How records are brought there.

    Guarantees: at least once; each key has its newest record, whatever fails, until a major compaction forgets
    deletions.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    def __init__(
        self,
        client: HbaseClient | str,
        table: str,
        *,
        schema: pa.Schema | Mapping[str, Any],
        order: str | OrderKey | None = None,
        delete_column: str | None = None,
        null_text: str = "null",
        numbers_table: str = "headrace_numbers",
        options: UpsertOptions = UpsertOptions(),
    ) -> None:
        self._client = HbaseClient(client) if isinstance(client, str) else client
        given = schema_of(schema)
        assert given is not None
        fields = TableFields(given, null_text)
        rows = _Rows(fields, delete_column, order)
        self._target = (table, fields.families, None if rows.order is not None else numbers_table)
        super().__init__(f"table {table!r}", rows, options)

    def create_writer(self) -> UpsertSinkWriter:
        """Make the writer of one subtask."""
        return _Writer(self.place, self._client, *self._target, self.options)


class _Rows(KeyedRecords):
    """Records as row keys and cells."""

    time_unit = timedelta(microseconds=UNIT_US)

    def __init__(self, fields: TableFields, delete_column: str | None, order: str | OrderKey | None) -> None:
        assert fields.key is not None
        super().__init__(fields.key, delete_column, order)
        self._fields = fields

    def key_of(self, values: tuple[Any, ...]) -> bytes:
        self.check_no_nulls(values)
        key = self._fields.key_bytes(values[0])
        if not key:
            message = f"row key {self._fields.key!r} is empty"
            raise TypeMismatchError(message)
        return key

    def value_of(self, row: dict[str, Any]) -> dict[bytes, bytes]:
        return self._fields.cells_of(row)


class _Writer(UpsertSinkWriter):
    """Sends rows, those with one timestamp together."""

    def __init__(
        self,
        place: str,
        client: HbaseClient,
        table: str,
        families: Sequence[str],
        numbers_table: str | None,
        options: UpsertOptions,
    ) -> None:
        super().__init__(place, options)
        self._client = client
        self._table = table
        self._families = families
        self._numbers_table = numbers_table
        # None until the server has answered, and behind an error.
        self._gateway: Gateway | None = None
        # Who makes numbers where records have none.
        self._writer_place: WriterPlace | None = None
        self._numbers: Numbers | None = None

    def open(self, context: Any) -> None:
        """Look at the table, if the server answers."""
        self._writer_place = WriterPlace.of(context)
        if self._numbers_table is not None:
            self._numbers = Numbers(_Cell(self), self._writer_place, unit_us=UNIT_US, block=BLOCK)
        super().open(context)

    def connect(self) -> None:
        self._client.check_client()
        try:
            self.gateway()
        except SinkAwayError:  # it is asked again with the first request, for as long as patience says
            return

    def gateway(self) -> Gateway:
        """Return a connection to a server that has the table.

        Raises:
            SinkAwayError: If it does not answer.
            ConfigurationError: If it has not.
        """
        if self._gateway is not None:
            return self._gateway
        try:
            gateway = self._client.connect(self._options.request_timeout_s)
        except AnswerError as error:
            raise self.error_of(error) from error
        try:
            gateway.check_table(self._table, self._families)
            if self._numbers_table is not None:
                gateway.make_table(self._numbers_table, NUMBERS.decode().partition(":")[0])
        except AnswerError as error:
            gateway.close()
            raise self.error_of(error) from error
        except BaseException:
            gateway.close()
            raise
        self._gateway = gateway
        return gateway

    def error_of(self, error: AnswerError) -> SinkError:
        """Return what an answer means, and let go of the connection."""
        self.close()
        message = f"{self._place} takes nothing: {error}"
        return (SinkAwayError if error.is_away else SinkError)(message)

    @property
    def number_cell(self) -> tuple[str, bytes]:
        """The table and the row in which numbers are kept."""
        assert self._numbers_table is not None
        return self._numbers_table, self._table.encode()

    def get_size_in_bytes(self, request_entry: Entry) -> int:
        key, _, cells = request_entry
        return OVERHEAD_BYTES + len(key) + sum(len(name) + len(value) for name, value in (cells or {}).items())

    def apply(self, entries: list[Entry]) -> Iterable[Refused]:
        # No two entries have one key, so one number will do for all of them.
        number = None if self._numbers is None else self._numbers.take()
        groups: dict[int, list[Entry]] = {}
        for entry in entries:
            own = entry[1] if number is None else number
            assert own is not None
            groups.setdefault(own, []).append(entry)
        refused: list[Refused] = []
        for place, (timestamp, some) in enumerate(groups.items()):
            refused += self._written(timestamp, some)
            if any(one.is_for_now for one in refused):
                cause = next(one.cause for one in refused if one.is_for_now)
                behind = list(groups.values())[place + 1 :]
                return [*refused, *(Refused(entry, cause, is_for_now=True) for one in behind for entry in one)]
        return refused

    def _written(self, timestamp: int, entries: list[Entry]) -> Iterator[Refused]:
        """Write rows together; if one of them is refused, one by one."""
        puts = [(key, cells) for key, _, cells in entries if cells is not None]
        gone = [key for key, _, cells in entries if cells is None]
        families = [name.encode() for name in self._families]
        try:
            self.gateway().write(self._table, timestamp, puts, gone, families)
        except AnswerError as error:
            self.close()
            if error.is_away:
                yield from (Refused(entry, str(error), is_for_now=True) for entry in entries)
            elif len(entries) == 1:
                yield Refused(entries[0], str(error))
            else:
                for entry in entries:
                    yield from self._written(timestamp, [entry])

    def close(self) -> None:
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            gateway.close()


class _Cell:
    """Numbers that were used for a table, in a row of another one."""

    def __init__(self, writer: _Writer) -> None:
        self._writer = writer

    def read(self) -> str | None:
        gateway = self._writer.gateway()
        try:
            found = gateway.cell(*self._writer.number_cell, NUMBERS)
        except AnswerError as error:
            raise self._writer.error_of(error) from error
        return None if found is None else found.decode(errors="replace")

    def replace(self, old: str | None, new: str) -> bool:
        gateway = self._writer.gateway()
        before = None if old is None else old.encode()
        try:
            is_put = gateway.check_and_put(*self._writer.number_cell, NUMBERS, before, new.encode())
        except AnswerError as error:
            raise self._writer.error_of(error) from error
        if is_put and self.read() == old:  # what was put has a smaller timestamp than what was there
            message = f"{self._writer.number_cell[0]!r} keeps no numbers: the clock of a region server has gone back"
            raise SinkError(message)
        return is_put
