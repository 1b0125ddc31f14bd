"""The driver of MongoDB, imported when it is needed, and what its errors mean.

What is written counts when most members of a replica set have it in their journals, and what is read is what most of
them have: neither is taken back by an election.

Source: MongoDB's "Write Concern", "Read Concern", "Error Codes".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headrace.engine.errors import ConfigurationError
from headrace.state.credentials import masked
from headrace.state.extras import needs

from ..messages.client_thread import AnswerError

__all__ = ["Connection", "MongodbClient", "NotWritten"]

Answer = TypeVar("Answer")

TIMEOUT_S = 30.0
"""For one answer, unless a sink says otherwise."""

DUPLICATE_KEY = 11_000

AWAY_CODES = frozenset(
    {6, 7, 24, 43, 46, 50, 63, 64, 89, 91, 100, 112, 133, 134, 150, 175, 189, 202, 237, 262, 9001, 10107, 11600, 11602,
     13388, 13435, 13436}
)  # fmt: skip
"""Hosts that are away or no primary, time that is up, locks and write conflicts, not enough members, stale routing, and
cursors that went with a server."""

OWN_OPTIONS = frozenset(
    {"host", "uuidrepresentation", "datetime_conversion", "tz_aware", "document_class", "type_registry", "retrywrites",
     "retryreads", "w", "journal", "wtimeoutms", "readconcernlevel", "serverselectiontimeoutms", "sockettimeoutms"}
)  # fmt: skip


@dataclass(frozen=True)
class MongodbClient:
    """Makes connections to a server, a replica set or a sharded cluster.

    Attributes:
        uri: ``mongodb://user:password@host:port,...`` or ``mongodb+srv://...``; shown nowhere.
        options: More of the driver's own settings (``pymongo.MongoClient``), as ``tlsCAFile``.
    """

    uri: str = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.uri, str) or not self.uri.startswith(("mongodb://", "mongodb+srv://")):
            message = f"uri must be mongodb://host:port or mongodb+srv://host; got {masked(str(self.uri))!r}"
            raise ConfigurationError(message)
        for name in self.options:
            if name.lower() in OWN_OPTIONS:
                message = f"the option {name!r} of the driver of MongoDB is not for the program to set"
                raise ConfigurationError(message)

    def check_driver(self) -> None:
        """Raise ConfigurationError if the driver is not installed."""
        with needs("MongoDB needs a driver, pymongo", "mongodb"):
            import pymongo  # noqa: F401

    def connect(self, timeout_s: float = TIMEOUT_S) -> Connection:
        """Return a connection, which is made with the first question.

        Raises:
            AnswerError: If the hosts of a ``mongodb+srv://`` cannot be asked for.
            ConfigurationError: If the driver is not installed, or takes an option for wrong.
        """
        self.check_driver()
        import pymongo
        from bson.codec_options import DatetimeConversion
        from pymongo.errors import InvalidURI, PyMongoError

        log = logging.getLogger("pymongo")
        if log.level == logging.NOTSET:  # who asks tells of errors
            log.setLevel(logging.CRITICAL)
        timeout_ms = max(1, int(timeout_s * 1_000))
        own: dict[str, Any] = {
            "serverSelectionTimeoutMS": timeout_ms, "socketTimeoutMS": timeout_ms, "connectTimeoutMS": timeout_ms,
            "retryWrites": False, "retryReads": False,  # who asks decides what is asked again
            "w": "majority", "journal": True, "wTimeoutMS": timeout_ms, "readConcernLevel": "majority",
            "uuidRepresentation": "unspecified", "tz_aware": False,
            "datetime_conversion": DatetimeConversion.DATETIME_MS, "appname": "headrace",
        }  # fmt: skip
        try:
            return Connection(pymongo.MongoClient(self.uri, **{**self.options, **own}))
        except (InvalidURI, pymongo.errors.ConfigurationError, TypeError, ValueError) as error:
            message = f"MongoDB's driver cannot be made: {masked(str(error))}"
            raise ConfigurationError(message) from error
        except PyMongoError as error:
            raise _answer_of(error) from error


@dataclass(frozen=True, slots=True)
class NotWritten:
    """A write of several that was not done.

    Attributes:
        index: Which.
        cause: What the server says.
        is_for_now: Whether it may be done later.
        has_id: Whether the reason is that a document has its ``_id``.
    """

    index: int
    cause: str
    is_for_now: bool
    has_id: bool


class Connection:
    """A connection; blocks. May be used by several threads, and finds hosts again by itself."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def collection(self, database: str, name: str) -> Any:
        """Return a collection of the driver, to be used within `ask` alone."""
        return self._client[database][name]

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """Return what a question to the driver gives.

        Raises:
            AnswerError: If it is an error, or there is none.
            ConfigurationError: If the server is too old for the driver.
        """
        import bson.errors
        import pymongo.errors

        try:
            return question()
        except bson.errors.BSONError as error:
            message = f"a document is damaged: {masked(str(error))}"
            raise AnswerError(message[:500], is_away=False) from error
        except pymongo.errors.ConfigurationError as error:
            message = f"MongoDB cannot be asked: {masked(str(error))}"
            raise ConfigurationError(message) from error
        except pymongo.errors.PyMongoError as error:
            raise _answer_of(error) from error

    def write(self, collection: Any, operations: Sequence[Any]) -> list[NotWritten]:
        """Do several writes, in any order; gives those that were not done.

        Raises:
            AnswerError: If it is not known of all of them whether they were done, for good.
        """
        details: Mapping[str, Any] = self.ask(lambda: _bulk(collection, operations))
        concerns = details.get("writeConcernErrors")
        if concerns:
            message = f"it is not known whether most members have it: {concerns[0].get('errmsg')}"
            raise AnswerError(masked(message)[:500], is_away=True)
        return [_not_written(error) for error in details.get("writeErrors", ())]

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()


def _bulk(collection: Any, operations: Sequence[Any]) -> Mapping[str, Any]:
    """Write, and return what has gone wrong with some of it; nothing if nothing has."""
    from pymongo.errors import BulkWriteError

    try:
        collection.bulk_write(list(operations), ordered=False)
    except BulkWriteError as error:
        return error.details or {}
    return {}


def _not_written(error: Mapping[str, Any]) -> NotWritten:
    code, text = error.get("code"), str(error.get("errmsg"))
    is_of_id = error.get("keyPattern") == {"_id": 1} or "index: _id_ " in text
    return NotWritten(
        int(error["index"]), masked(f"{text} (code {code})")[:500], code in AWAY_CODES,
        code == DUPLICATE_KEY and is_of_id,
    )  # fmt: skip


def _answer_of(error: Any) -> AnswerError:
    from pymongo.errors import ConnectionFailure

    is_away = isinstance(error, ConnectionFailure) or getattr(error, "code", None) in AWAY_CODES
    is_away = is_away or error.has_error_label("RetryableWriteError")
    text = str(error).partition(", Topology Description")[0]
    return AnswerError(masked(text or repr(error))[:500], is_away=is_away)
