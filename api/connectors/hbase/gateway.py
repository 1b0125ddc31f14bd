"""The client of HBase's Thrift server, imported when it is needed, and what its errors mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.engine.errors import ConfigurationError
from headrace.state.credentials import masked
from headrace.state.extras import needs

from ..messages.client_thread import AnswerError

__all__ = ["Gateway", "HbaseClient"]

TIMEOUT_S = 60.0
"""For one answer, unless a sink says otherwise."""

FOR_GOOD = (
    "TableNotFoundException", "NoSuchColumnFamilyException", "DoNotRetryIOException", "AccessDeniedException",
    "TableNotDisabledException",
)  # fmt: skip
"""What HBase says of what it will never do."""

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\s/@]+)(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True)
class HbaseClient:
    """Makes connections to a Thrift server of HBase.

    Attributes:
        host: The server, maybe with a port: ``hbase-thrift:9090``.
        transport: As the server is set up: ``buffered`` or ``framed``.
        protocol: As the server is set up: ``binary`` or ``compact``.
    """

    host: str
    transport: str = "buffered"
    protocol: str = "binary"

    def __post_init__(self) -> None:
        parts = _HOST.fullmatch(self.host) if isinstance(self.host, str) else None
        if parts is None or not 0 < int(parts["port"] or 9090) < 1 << 16:
            message = f"a host is a name, maybe with a port, as hbase-thrift:9090; got {masked(str(self.host))!r}"
            raise ConfigurationError(message)
        if self.transport not in ("buffered", "framed") or self.protocol not in ("binary", "compact"):
            message = "transport is buffered or framed, and protocol binary or compact"
            message += f"; got {self.transport!r}, {self.protocol!r}"
            raise ConfigurationError(message)

    def check_client(self) -> None:
        """Raise ConfigurationError if the client is not installed."""
        with needs("HBase needs a client, happybase", "hbase"):
            import happybase  # noqa: F401

    def connect(self, timeout_s: float = TIMEOUT_S) -> Gateway:
        """Return a connection.

        Raises:
            AnswerError: If the server does not answer.
            ConfigurationError: If the client is not installed.
        """
        self.check_client()
        import happybase

        parts = _HOST.fullmatch(self.host)
        assert parts is not None
        connection = happybase.Connection(
            parts["name"].strip("[]"), int(parts["port"] or 9090), timeout=int(timeout_s * 1_000), autoconnect=False,
            transport=self.transport, protocol=self.protocol,
        )  # fmt: skip
        _asked(connection.open)
        return Gateway(connection)


def _asked(question: Callable[..., Any], *arguments: Any) -> Any:
    """Return an answer.

    Raises:
        AnswerError: If it is an error, or there is none.
    """
    from thriftpy2.thrift import TException
    from thriftpy2.transport import TTransportException

    try:
        return question(*arguments)
    except (TTransportException, OSError) as error:  # there was no answer, maybe not in time
        raise AnswerError(masked(str(error) or repr(error))[:300], is_away=True) from error
    except TException as error:
        told = getattr(error, "message", None)
        text = (told.decode(errors="replace") if isinstance(told, bytes) else str(told or error)).split("\n")[0]
        # What HBase answers to a question that means nothing has another type than what it could not do now.
        is_away = type(error).__name__ == "IOError" and not any(word in str(told) for word in FOR_GOOD)
        raise AnswerError(masked(text)[:500], is_away=is_away) from error


class Gateway:
    """A connection to a Thrift server; blocks, and is used by one thread at a time. After an error it is of no use."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def check_table(self, table: str, families: Sequence[str]) -> None:
        """See that a table has column families.

        Raises:
            ConfigurationError: If it is not there, or has not.
            AnswerError: If there is an error, or no answer.
        """
        if table.encode() not in _asked(self._connection.tables):
            message = f"HBase has no table {table!r}"
            raise ConfigurationError(message)
        found = [name.decode(errors="replace").rstrip(":") for name in _asked(self._connection.table(table).families)]
        for family in families:
            if family not in found:
                message = f"table {table!r} of HBase has no column family {family!r}"
                raise ConfigurationError(message, hint=f"it has {', '.join(found)}")

    def make_table(self, table: str, family: str) -> None:
        """Make a table that may be there.

        Raises:
            AnswerError: If there is an error, or no answer.
        """
        try:
            _asked(self._connection.create_table, table, {family: {"max_versions": 1}})
        except AnswerError:
            if table.encode() not in _asked(self._connection.tables):
                raise

    def write(
        self, table: str, number: int, puts: Sequence[tuple[bytes, dict[bytes, bytes]]], gone: Sequence[bytes],
        families: Sequence[bytes],
    ) -> None:  # fmt: skip
        """Put and delete rows, all with one timestamp.

        Args:
            table: Where.
            number: The timestamp.
            puts: Row keys, and cells by column.
            gone: Row keys of rows that are deleted.
            families: Whose cells are deleted.

        Raises:
            AnswerError: If there is an error, or no answer; some may be written.
        """
        batch = self._connection.table(table).batch(timestamp=number)
        for row, cells in puts:
            batch.put(row, cells)
        for row in gone:
            batch.delete(row, list(families))
        _asked(batch.send)

    def cell(self, table: str, row: bytes, column: bytes) -> bytes | None:
        """Return what a cell holds; None if it is not there.

        Raises:
            AnswerError: If there is an error, or no answer.
        """
        found = _asked(self._connection.table(table).row, row, [column])
        value: bytes | None = found.get(column)
        return value

    def check_and_put(self, table: str, row: bytes, column: bytes, old: bytes | None, new: bytes) -> bool:
        """Put a cell if it holds a value, or is not there; whether it was put.

        Raises:
            AnswerError: If there is an error, or it is not known.
        """
        from Hbase_thrift import Mutation

        mutation = Mutation(isDelete=False, column=column, value=new)
        put = self._connection.client.checkAndPut
        return bool(_asked(put, table.encode(), row, column, old, mutation, {}))

    def regions(self, table: str) -> list[tuple[bytes, bytes]]:
        """Return the first row keys of a table's regions, and those behind their last ones; empty for none.

        Raises:
            AnswerError: If there is an error, or no answer.
        """
        found = _asked(self._connection.table(table).regions)
        return sorted((one["start_key"], one["end_key"]) for one in found)

    def rows(self, table: str, start: bytes, stop: bytes, number: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """Return so many rows at most, from a row key on and before another one (empty for none).

        Raises:
            AnswerError: If there is an error, or no answer.
        """

        def scanned() -> list[tuple[bytes, dict[bytes, bytes]]]:
            scan = self._connection.table(table).scan(
                row_start=start, row_stop=stop or None, limit=number, batch_size=number
            )
            return list(scan)

        found: list[tuple[bytes, dict[bytes, bytes]]] = _asked(scanned)
        return found

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()
