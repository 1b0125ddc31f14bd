"""HTTP as a sink: batches of records by POST, under a key by which a server knows a batch again.

*Exactly once*: the records between two barriers are part of the checkpoint, with the name of who prepared them and
their numbers. When it is complete they are posted in batches: the same batches under the same keys by every attempt,
however often. A server that honours the key keeps each batch once.

*At least once*: batches are posted as they are full, and all of them before a barrier passes. A key stands for one
attempt to post, so a server sees twice what a failure makes the job repeat.

Source: IETF, "The Idempotency-Key HTTP Header Field".
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import CommitRetry, Committer, CommitterContext, SinkWriter, WriterContext
from headrace.engine.errors import ConfigurationError, SinkError, TypeMismatchError

from ...formats.messages import JsonMessages, MessageFormat, require_format
from ..messages.arguments import patience_s_of
from ..messages.numbered_output import NumberedWriter, PreparedCommitter
from ..messages.tls import Tls
from .addresses import duration_s
from .client import Endpoint, HttpAwayError, HttpClient, HttpRefusedError

__all__ = ["HttpSink"]

_SCHEMA = pa.schema([pa.field("body", pa.binary(), nullable=False)])
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
STILL_WORKING = 409
"""A request of the same key is being dealt with."""

_TYPES = {"lines": "application/x-ndjson", "array": "application/json", "single": "application/octet-stream"}
Framing = Literal["lines", "array", "single"]


class HttpSink:
    """Posts records in batches. Made by `exactly_once` or `at_least_once`.

    Common arguments of both:
        url: Where to. What says who asks belongs into ``headers``.
        value: How records are texts, as `JsonMessages`; see `headrace.formats.messages`.
        framing: What a batch is: ``lines``, one record a line; ``array`` of JSON; ``single``, a record alone.
        batch_size: How many records a batch has at most.
        batch_bytes: How large a batch is at most; a record that is larger is a batch alone.
        method: ``POST``, ``PUT`` or ``PATCH``.
        key_header: The header that has the batch's key.
        content_type: Of a batch, unless that of the framing is right.
        headers: Sent along, as ``{"Authorization": "Bearer ..."}``, to this server alone, and shown nowhere.
        patience: How long the server may be away, busy, or ask to be left alone, until that is an error.
        timeout: How long an answer may take.
        tls: Whom to trust, for ``https://``.

    Answers 408, 409, 425, 429 and 5xx are waited out, as long as ``Retry-After`` says; others that are not 2xx are
    errors.
    """

    def __init__(self, target: _Target) -> None:
        self._target = target

    def __repr__(self) -> str:
        return f"HttpSink({self._target.place})"

    @classmethod
    def exactly_once(
        cls,
        url: str,
        *,
        value: MessageFormat,
        framing: Framing = "lines",
        batch_size: int = 500,
        batch_bytes: int = 4 << 20,
        method: str = "POST",
        key_header: str = "Idempotency-Key",
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        patience: int | str = "1 min",
        timeout: int | str = "30 s",
        tls: Tls | None = None,
    ) -> HttpSink:
        """Post every record when its checkpoint is complete, under keys that stay the same whatever fails.

        The arguments are those of the class. Batches are cut by ``batch_size`` and ``batch_bytes`` alone: who changes
        them stops the job with a savepoint before.

        Guarantees: exactly once with checkpoints, if the server keeps what comes under one key once, for longer than
            the job is ever away; at least once otherwise. Without checkpoints, records are posted when the job ends.

        Raises:
            ConfigurationError: If an argument has an illegal value.
        """
        return _ExactlyOnceSink(
            _target_of(
                url, value, framing, batch_size, batch_bytes, method, key_header, content_type, headers, patience,
                timeout, tls,
            )
        )  # fmt: skip

    @classmethod
    def at_least_once(
        cls,
        url: str,
        *,
        value: MessageFormat,
        framing: Framing = "lines",
        batch_size: int = 500,
        batch_bytes: int = 4 << 20,
        method: str = "POST",
        key_header: str = "Idempotency-Key",
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        patience: int | str = "1 min",
        timeout: int | str = "30 s",
        tls: Tls | None = None,
    ) -> HttpSink:
        """Post records as they come, and again after a failure; nothing is lost.

        The arguments are those of the class.

        Raises:
            ConfigurationError: If an argument has an illegal value.
        """
        return cls(
            _target_of(
                url, value, framing, batch_size, batch_bytes, method, key_header, content_type, headers, patience,
                timeout, tls,
            )
        )  # fmt: skip

    def create_writer(self) -> SinkWriter:
        """Make the writer of one subtask."""
        return _ImmediateWriter(self._target)


class _ExactlyOnceSink(HttpSink):
    """Keeps records in the checkpoint, and posts them when it is complete."""

    # Keys are of one subtask in one attempt.
    subtasks_are_independent = True

    def create_writer(self) -> SinkWriter:
        return NumberedWriter(self._target.place, self._target.encode)

    def create_committer(self) -> Committer:
        """Make the committer of one subtask."""
        return _HttpCommitter(self._target)


@dataclass(frozen=True)
class _Target:
    endpoint: Endpoint
    value: MessageFormat
    framing: str
    batch_size: int
    batch_bytes: int
    method: str
    key_header: str
    content_type: str
    patience_s: float

    @property
    def place(self) -> str:
        return self.endpoint.url

    def encode(self, batch: Batch) -> pa.RecordBatch:
        """The texts of records, as they are posted.

        Raises:
            TypeMismatchError: If one would be several lines.
        """
        bodies = self.value.encode(batch)
        if self.framing == "lines" and any(b"\n" in body or b"\r" in body for body in bodies):
            message = "a record with a line end in it cannot be one line of a batch"
            raise TypeMismatchError(message, hint="framing='single' posts each record alone")
        return pa.record_batch([pa.array(bodies, pa.binary())], schema=_SCHEMA)

    def batches(self, bodies: Sequence[bytes]) -> Iterator[list[bytes]]:
        """Cut records into batches: always in the same way."""
        found: list[bytes] = []
        num_bytes = 0
        for body in bodies:
            if found and (len(found) >= self.batch_size or num_bytes + len(body) > self.batch_bytes):
                yield found
                found, num_bytes = [], 0
            found.append(body)
            num_bytes += len(body)
        if found:
            yield found

    def framed(self, bodies: Sequence[bytes]) -> bytes:
        """A batch as it is posted."""
        if self.framing == "array":
            return b"[" + b",".join(bodies) + b"]"
        return b"".join(body + b"\n" for body in bodies) if self.framing == "lines" else bodies[0]


def _target_of(
    url: str, value: MessageFormat, framing: str, batch_size: int, batch_bytes: int, method: str, key_header: str,
    content_type: str | None, headers: Mapping[str, str] | None, patience: int | str, timeout: int | str,
    tls: Tls | None,
) -> _Target:  # fmt: skip
    """Check the arguments of a sink.

    Raises:
        ConfigurationError: If one of them has an illegal value.
    """
    require_format(value)
    if framing not in _TYPES:
        message = f"framing must be lines, array or single; got {framing!r}"
        raise ConfigurationError(message)
    if framing == "array" and not isinstance(value, JsonMessages):
        message = f"an array is of records in JSON; got {value!r}"
        raise ConfigurationError(message)
    for name, number in (("batch_size", batch_size), ("batch_bytes", batch_bytes)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            message = f"{name} must be 1 or more; got {number!r}"
            raise ConfigurationError(message)
    if method not in ("POST", "PUT", "PATCH"):
        message = f"method must be POST, PUT or PATCH; got {method!r}"
        raise ConfigurationError(message)
    kind = content_type or _TYPES[framing]
    if content_type is None and framing == "single" and isinstance(value, JsonMessages):
        kind = "application/json"
    Endpoint(url, {key_header: "x", "Content-Type": kind}, tls).check("http", "https")
    endpoint = Endpoint(url, dict(headers or {}), tls, duration_s("timeout", timeout))
    endpoint.check("http", "https")
    return _Target(
        endpoint, value, framing, 1 if framing == "single" else batch_size, batch_bytes, method, key_header, kind,
        patience_s_of(patience),
    )  # fmt: skip


class _Poster:
    """Posts batches. Blocks."""

    def __init__(self, target: _Target) -> None:
        self._target = target
        self._client = HttpClient(target.endpoint)
        self._never = threading.Event()

    def post(self, key: str, bodies: Sequence[bytes]) -> None:
        """Have the server take a batch, and wait until it says so.

        Raises:
            SinkError: If it does not.
        """
        target = self._target
        body = target.framed(bodies)
        headers = {target.key_header: key, "Content-Type": target.content_type}
        deadline, pause_s = time.monotonic() + target.patience_s, FIRST_PAUSE_S
        while True:
            try:
                self._client.ask(target.method, target.place, body, headers).skip()
                return
            except HttpAwayError as error:
                wait_s, reason = max(pause_s, error.wait_s), error
            except HttpRefusedError as error:
                if error.context.get("status") != STILL_WORKING:
                    raise SinkError(error.message, hint=error.hint, **error.context, batch=key) from error
                wait_s, reason = pause_s, error  # type: ignore[assignment]
            if time.monotonic() + wait_s > deadline:
                raise SinkError(reason.message, **reason.context, batch=key) from reason
            self._never.wait(wait_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def close(self) -> None:
        self._client.close()


class _HttpCommitter(PreparedCommitter):
    # It has been patient itself.
    retry = CommitRetry(max_attempts=3)

    def __init__(self, target: _Target) -> None:
        super().__init__(target.place, _SCHEMA)
        self._target = target
        self._poster: _Poster | None = None

    def connect(self, context: CommitterContext) -> None:
        _Poster(self._target).close()  # what it needs is there: nothing can be posted for a trial

    def send_all(self, publisher: str, first: int, batches: list[pa.RecordBatch]) -> None:
        if self._poster is None:
            self._poster = _Poster(self._target)
        bodies = [body for batch in batches for body in batch.column("body").to_pylist()]
        for group in self._target.batches(bodies):
            self._poster.post(f"{quote(publisher, safe='')}-{first}-{first + len(group) - 1}", group)
            first += len(group)

    def disconnect(self) -> None:
        poster, self._poster = self._poster, None
        if poster is not None:
            poster.close()


class _ImmediateWriter(SinkWriter):
    def __init__(self, target: _Target) -> None:
        self._target = target
        self._poster: _Poster | None = None
        self._bodies: list[bytes] = []

    def open(self, context: WriterContext) -> None:
        self._poster = _Poster(self._target)

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        self._bodies += self._target.encode(batch).column("body").to_pylist()
        if len(self._bodies) >= self._target.batch_size:
            self._post()

    def _post(self) -> None:
        assert self._poster is not None
        bodies, self._bodies = self._bodies, []
        for group in self._target.batches(bodies):
            self._poster.post(f"headrace-{uuid.uuid4().hex}", group)

    def prepare(self, checkpoint_id: int) -> list[Any]:
        self._post()
        return []

    def close(self) -> None:
        if self._poster is not None:
            self._poster.close()
