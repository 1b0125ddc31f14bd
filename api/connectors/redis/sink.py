"""Redis as a sink: exactly once, or at least once.

*Exactly once*: the records between two barriers are part of the checkpoint. When it is complete a script writes them
and notes in the same step how far it is (`headrace.connectors.messages.numbered_output`). What Redis itself loses is
another matter: with ``appendfsync everysec`` a machine that fails takes a second with it at most, and a replica that
takes over does not have what it had not got. The attempt's next commit then finds rows missing that were confirmed,
and fails with `PossibleLossError`.

*At least once*: records are written as they come, and all of them before a barrier passes. What a failure makes the job
repeat is written again: entries of a stream are doubled, keys have an older value for a while.

Source: Redis' "Scripting with Lua", "Persistence"; Flink's ``Sink``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import Committer, CommitterContext, SinkWriter, WriterContext
from headrace.engine.errors import ConfigurationError, PossibleLossError, SinkError
from headrace.state.credentials import masked

from ..messages.numbered_output import NumberedCommitter, NumberedWriter
from .client import Client, redis
from .targets import SCHEMA, RedisTarget

__all__ = ["RedisSink"]

ROWS_AT_ONCE = 2_000
"""So many rows are written in one step of Redis, which answers nobody else meanwhile."""

BYTES_AT_ONCE = 4 << 20


class RedisSink:
    """Writes records into a stream, or by key into hashes or strings. Made by `exactly_once` or `at_least_once`.

    Common arguments of both:
        url: ``redis://user:password@host:port/database``; ``rediss://`` with TLS.
        target: `RedisStream`, `RedisHashes` or `RedisStrings`.
        options: More settings of the client (``redis.Redis``), as those of TLS.

    Records of one key keep their order if they come to one subtask: ``key_by`` the key.
    """

    def __init__(self, client: Client, target: RedisTarget) -> None:
        self._client = client
        self._target = target

    def __repr__(self) -> str:
        return f"RedisSink({self._target.place})"

    @classmethod
    def exactly_once(cls, url: str, target: RedisTarget, *, options: Mapping[str, Any] = {}) -> RedisSink:
        """Write every record exactly once, when its checkpoint is complete.

        Args:
            url: See the class.
            target: See the class.
            options: See the class.

        Guarantees: exactly once with checkpoints, as far as Redis keeps what it has confirmed; without checkpoints,
            the records appear when the job ends. Beside the target there is a hash with the numbers of what is written,
            ``{target}:headrace``, which must not be deleted.

        Raises:
            ConfigurationError: If an argument has an illegal value.
        """
        return _ExactlyOnceSink(Client(url, dict(options)), _checked(target))

    @classmethod
    def at_least_once(cls, url: str, target: RedisTarget, *, options: Mapping[str, Any] = {}) -> RedisSink:
        """Write records as they come, and again after a failure; nothing is lost.

        Args:
            url: See the class.
            target: See the class.
            options: See the class.

        Raises:
            ConfigurationError: If an argument has an illegal value.
        """
        return cls(Client(url, dict(options)), _checked(target))

    def create_writer(self) -> SinkWriter:
        """Make the writer of one subtask."""
        return _ImmediateWriter(self._client, self._target)


class _ExactlyOnceSink(RedisSink):
    """Keeps records in the checkpoint, and writes them when it is complete."""

    # Numbers are of one subtask in one attempt.
    subtasks_are_independent = True

    def create_writer(self) -> SinkWriter:
        return NumberedWriter(self._target.place, self._target.encode)

    def create_committer(self) -> Committer:
        """Make the committer of one subtask."""
        return _RedisCommitter(self._client, self._target)


def _checked(target: Any) -> RedisTarget:
    if not isinstance(target, RedisTarget):
        message = f"target must be RedisStream, RedisHashes or RedisStrings; got {target!r}"
        raise ConfigurationError(message)
    return target


class _Rows:
    """Writes rows of a target. Blocks."""

    def __init__(self, client: Client, target: RedisTarget) -> None:
        self._target = target
        self._connection = client.connect()
        self._run = self._connection.register_script(target.script)

    def last_number(self, publisher: str) -> int:
        try:
            found = self._connection.hget(self._target.numbers_key, publisher)
            return int(found or 0)
        except ValueError as error:
            message = f"{self._target.numbers_key!r} of Redis does not hold numbers of rows: {error}"
            raise SinkError(message) from error
        except redis().RedisError as error:
            raise self._failed(error) from error

    def write(self, publisher: str, first: int, rows: list[list[bytes]]) -> None:
        """Write rows under their numbers; without a publisher, write them."""
        arguments: list[bytes] = []
        num_rows = num_bytes = 0
        for row in rows:
            arguments += (str(len(row)).encode(), *row)
            num_rows += 1
            num_bytes += sum(map(len, row))
            if num_rows >= ROWS_AT_ONCE or num_bytes >= BYTES_AT_ONCE:
                self._call(publisher, first, arguments)
                first += num_rows
                arguments, num_rows, num_bytes = [], 0, 0
        if num_rows:
            self._call(publisher, first, arguments)

    def _call(self, publisher: str, first: int, arguments: list[bytes]) -> None:
        target = self._target
        try:
            self._run([target.key, target.numbers_key], [publisher, first, target.option, *arguments])
        except redis().RedisError as error:
            if str(error).startswith("GAP"):
                message = f"{target.place} has lost rows before number {first} of {publisher}"
                raise PossibleLossError(message) from error
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> SinkError:
        message = f"{self._target.place} does not take records: {masked(str(error) or repr(error))}"
        return SinkError(message)

    def ping(self) -> None:
        """See that the server answers."""
        try:
            self._connection.ping()
        except redis().RedisError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        with contextlib.suppress(redis().RedisError):
            self._connection.close()


class _RedisCommitter(NumberedCommitter):
    def __init__(self, client: Client, target: RedisTarget) -> None:
        super().__init__(target.place, SCHEMA)
        self._client = client
        self._target = target
        # None while there is no connection.
        self._rows: _Rows | None = None

    def connect(self, context: CommitterContext) -> None:
        self._connected().ping()

    def _connected(self) -> _Rows:
        if self._rows is None:
            self._rows = _Rows(self._client, self._target)
        return self._rows

    def last_number(self, publisher: str) -> int:
        return self._connected().last_number(publisher)

    def send(self, publisher: str, first: int, rows: pa.RecordBatch) -> None:
        self._connected().write(publisher, first, rows.column(0).to_pylist())

    def disconnect(self) -> None:
        rows, self._rows = self._rows, None
        if rows is not None:
            rows.close()


class _ImmediateWriter(SinkWriter):
    """Writes rows when there are enough of them, and the rest before a barrier."""

    def __init__(self, client: Client, target: RedisTarget) -> None:
        self._client = client
        self._target = target
        self._waiting: list[list[bytes]] = []
        # Made with the first row.
        self._rows: _Rows | None = None

    def open(self, context: WriterContext) -> None:
        redis()  # said at once if it is not installed

    def write(self, batch: Batch) -> None:
        if len(batch):
            self._waiting += self._target.encode(batch).column(0).to_pylist()
            if len(self._waiting) >= ROWS_AT_ONCE:
                self._flush()

    def _flush(self) -> None:
        if self._rows is None:
            self._rows = _Rows(self._client, self._target)
        waiting, self._waiting = self._waiting, []
        self._rows.write("", 0, waiting)

    def prepare(self, checkpoint_id: int) -> list[Any]:
        if self._waiting:
            self._flush()
        return []

    def close(self) -> None:
        rows, self._rows = self._rows, None
        if rows is not None:
            rows.close()
