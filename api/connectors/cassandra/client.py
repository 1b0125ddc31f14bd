"""The client of Cassandra, imported when it is needed, and what its errors mean."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.engine.errors import ConfigurationError, nearest
from headrace.state.credentials import masked
from headrace.state.extras import needs

from ..messages.client_thread import AnswerError
from .cql_types import TableShape, shape_of
from .cql_values import exact

__all__ = ["CassandraClient", "Connection", "split_name"]

TIMEOUT_S = 30.0
"""For one answer, unless a sink says otherwise."""

RECONNECT_S = 1.0

LEVELS = ("ALL", "EACH_QUORUM", "LOCAL_ONE", "LOCAL_QUORUM", "ONE", "QUORUM", "THREE", "TWO")
"""Of consistency. ANY is not among them: nothing that can be read has a row then."""

OWN_OPTIONS = frozenset(
    {"contact_points", "port", "auth_provider", "execution_profiles", "load_balancing_policy", "default_retry_policy"}
)

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\s/@]+)(?::(?P<port>\d{1,5}))?")
_PLAIN = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class CassandraClient:
    """Makes connections to a cluster.

    Attributes:
        hosts: A host of the cluster, or several, maybe with ports: ``cassandra-1:9042``.
        user: Who to be; None for nobody.
        password: The user's.
        datacenter: The one whose hosts are asked; None for that of the hosts.
        consistency: How many replicas must have taken, or agree on, what is written and read: ``LOCAL_QUORUM``,
            ``QUORUM``, ``EACH_QUORUM``, ``ALL``; with ``LOCAL_ONE``, ``ONE``, ``TWO`` and ``THREE`` a write that was
            confirmed may be lost with the replicas that have it, and a read may not see it.
        options: More of the driver's own settings (``cassandra.cluster.Cluster``), as ``ssl_options``.
    """

    hosts: str | Sequence[str]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    datacenter: str | None = None
    consistency: str = "LOCAL_QUORUM"
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.endpoints:
            message = "a cluster needs a host"
            raise ConfigurationError(message)
        if (self.user is None) != (self.password is None):
            message = "user and password need each other"
            raise ConfigurationError(message)
        if self.consistency not in LEVELS:
            message = f"there is no consistency {self.consistency!r} here"
            raise ConfigurationError(
                message, hint=nearest(self.consistency, LEVELS) or f"there are {', '.join(LEVELS)}"
            )
        for name in self.options:
            if name in OWN_OPTIONS:
                message = f"the option {name!r} of the driver of Cassandra is not for the program to set"
                raise ConfigurationError(message)

    @property
    def endpoints(self) -> list[tuple[str, int]]:
        """Hosts and ports."""
        found = []
        for host in [self.hosts] if isinstance(self.hosts, str) else self.hosts:
            parts = _HOST.fullmatch(host) if isinstance(host, str) else None
            if parts is None or not 0 < int(parts["port"] or 9042) < 1 << 16:
                message = f"hosts are names, maybe with ports, as cassandra-1:9042; got {masked(str(host))!r}"
                raise ConfigurationError(message)
            found.append((parts["name"].strip("[]"), int(parts["port"] or 9042)))
        return found

    def check_driver(self) -> None:
        """Raise ConfigurationError if the driver is not installed."""
        with needs("Cassandra needs a driver, cassandra-driver", "cassandra"):
            import cassandra.cluster  # noqa: F401

    def connect(self, timeout_s: float = TIMEOUT_S) -> Connection:
        """Return a connection.

        Raises:
            AnswerError: If no host answers.
            ConfigurationError: If the driver is not installed, or takes an option for wrong.
        """
        self.check_driver()
        from cassandra import ConsistencyLevel
        from cassandra.auth import PlainTextAuthProvider
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
        from cassandra.policies import (
            ConstantReconnectionPolicy,
            DCAwareRoundRobinPolicy,
            FallthroughRetryPolicy,
            TokenAwarePolicy,
        )
        from cassandra.query import tuple_factory

        log = logging.getLogger("cassandra")
        if log.level == logging.NOTSET:  # who asks tells of errors: the driver writes a stack for each try
            log.setLevel(logging.CRITICAL)
        is_local = self.consistency.startswith("LOCAL_")
        serial_level = ConsistencyLevel.LOCAL_SERIAL if is_local else ConsistencyLevel.SERIAL
        profile = ExecutionProfile(
            TokenAwarePolicy(DCAwareRoundRobinPolicy(self.datacenter or "")),
            FallthroughRetryPolicy(),  # who asks decides what is asked again
            consistency_level=ConsistencyLevel.name_to_value[self.consistency],
            serial_consistency_level=serial_level,
            request_timeout=timeout_s,
            row_factory=tuple_factory,
        )
        own: dict[str, Any] = {
            "contact_points": self.endpoints, "execution_profiles": {EXEC_PROFILE_DEFAULT: profile},
            "reconnection_policy": ConstantReconnectionPolicy(RECONNECT_S, None), "connect_timeout": timeout_s,
        }  # fmt: skip
        if self.user is not None:
            own["auth_provider"] = PlainTextAuthProvider(self.user, self.password)
        try:
            cluster = Cluster(**{**self.options, **own})
        except (TypeError, ValueError) as error:
            message = f"Cassandra's driver cannot be made: {masked(str(error))}"
            raise ConfigurationError(message) from error
        try:
            session = cluster.connect()
        except BaseException as error:
            cluster.shutdown()
            raise _answer_of(error) from error
        return Connection(cluster, session, serial_level)


class Connection:
    """A connection to a cluster; blocks.

    Attributes:
        serial_level: The driver's number of the consistency of compare-and-set.
    """

    def __init__(self, cluster: Any, session: Any, serial_level: int) -> None:
        self._cluster = cluster
        self._session = session
        self.serial_level = serial_level
        self._prepared: dict[str, Any] = {}

    def prepared(self, text: str) -> Any:
        """Return a statement that is prepared, once.

        Raises:
            AnswerError: If it cannot be.
        """
        if text not in self._prepared:
            try:
                self._prepared[text] = self._session.prepare(text)
            except Exception as error:  # of many kinds, which have no base
                raise _answer_of(error) from error
        return self._prepared[text]

    def ask(self, statement: Any) -> Any:
        """Return the pages of an answer to a text or a statement with its values.

        Raises:
            AnswerError: If it is an error, or there is none.
        """
        try:
            return self._session.execute(statement)
        except Exception as error:  # of many kinds, which have no base
            raise _answer_of(error) from error

    def rows_behind(self, pages: Any) -> list[tuple[Any, ...]] | None:
        """Return the rows of the next page of an answer; None behind the last one.

        Raises:
            AnswerError: If there is an error, or no answer.
        """
        if not pages.has_more_pages:
            return None
        try:
            pages.fetch_next_page()
        except Exception as error:  # of many kinds, which have no base
            raise _answer_of(error) from error
        return list(pages.current_rows)

    def ask_all(self, statements: Iterable[Any]) -> list[list[tuple[Any, ...]] | AnswerError]:
        """Return for each statement, all of which are sent at once, its rows, or its error."""
        futures = [self._begin(statement) for statement in statements]
        return [one if isinstance(one, AnswerError) else _rows_of(one) for one in futures]

    def _begin(self, statement: Any) -> Any:
        try:
            return self._session.execute_async(statement)
        except Exception as error:  # of many kinds, which have no base
            return _answer_of(error)

    def shape(self, keyspace: str, table: str) -> TableShape:
        """Return what a table is, as it was when the connection was made.

        Raises:
            ConfigurationError: If it is not there.
        """
        found = self._cluster.metadata.keyspaces.get(keyspace)
        if found is None:
            message = f"Cassandra has no keyspace {keyspace!r}"
            raise ConfigurationError(message, hint=nearest(keyspace, list(self._cluster.metadata.keyspaces)))
        if table not in found.tables:
            message = f"keyspace {keyspace!r} has no table {table!r}"
            if table in found.views:
                message += ": that is a view"
            raise ConfigurationError(message, hint=nearest(table, list(found.tables)))
        return shape_of(found.tables[table])

    @property
    def ring(self) -> list[int]:
        """The tokens that end the ranges of hosts, sorted.

        Raises:
            ConfigurationError: If the cluster places rows in another way.
        """
        ring = self._cluster.metadata.token_map
        if ring is None or "Murmur3" not in str(self._cluster.metadata.partitioner):
            message = f"the partitioner {self._cluster.metadata.partitioner} is not supported: Murmur3Partitioner is"
            raise ConfigurationError(message)
        return sorted(token.value for token in ring.ring)

    def types_of(self, text: str) -> list[Any]:
        """Return the driver's types of the columns of a statement's answers.

        Raises:
            AnswerError: If it cannot be prepared.
        """
        return [column[3] for column in self.prepared(text).result_metadata]

    def binary(self, kind: Any, value: Any) -> bytes:
        """Return a value of one of the driver's types as Cassandra has it."""
        return bytes(kind.to_binary(exact(value), self._cluster.protocol_version))

    def bound_binary(self, text: str, values: Sequence[bytes]) -> Any:
        """Return a statement with values that are as Cassandra has them.

        Raises:
            AnswerError: If it cannot be prepared.
        """
        from cassandra.query import BoundStatement

        bound = BoundStatement(self.prepared(text))
        bound.values = list(values)
        return bound

    def close(self) -> None:
        """Let go of the connection."""
        self._cluster.shutdown()


def _rows_of(future: Any) -> list[tuple[Any, ...]] | AnswerError:
    try:
        return list(future.result())
    except Exception as error:  # of many kinds, which have no base
        return _answer_of(error)


def _answer_of(error: BaseException) -> AnswerError:
    """What an error of the driver means.

    Raises:
        BaseException: The error, if it is none of an answer.
    """
    import cassandra
    from cassandra import cluster, connection, protocol

    if not isinstance(error, Exception):
        raise error
    if isinstance(error, cluster.NoHostAvailable):
        causes = list(error.errors.values()) if isinstance(error.errors, Mapping) else []
        for_good = [one for one in causes if isinstance(one, cassandra.AuthenticationFailed)]
        text = "; ".join(dict.fromkeys(str(one) for one in (for_good or causes)[:3])) or "no host answers"
        return AnswerError(masked(text)[:500], is_away=not for_good)
    away = (
        cassandra.OperationTimedOut, cassandra.Unavailable, cassandra.Timeout, connection.ConnectionException,
        protocol.OverloadedErrorMessage, protocol.IsBootstrappingErrorMessage, OSError,
        # A replica, or the host, could not do it: that says nothing of the row.
        cassandra.CoordinationFailure, cassandra.CDCWriteFailure, protocol.ServerError,
    )  # fmt: skip
    is_unknown_cas = isinstance(error, getattr(cassandra, "CASWriteUnknown", ()))
    return AnswerError(masked(str(error) or repr(error))[:500], is_away=is_unknown_cas or isinstance(error, away))


def split_name(table: str) -> tuple[str, str]:
    """Return keyspace and table of a name, ``keyspace.table``.

    Raises:
        ConfigurationError: If it is none.
    """
    keyspace, dot, name = table.partition(".") if isinstance(table, str) else ("", "", "")
    if not (keyspace and dot and name) or "." in name:
        message = f"a table is named with its keyspace, as shop.orders; got {table!r}"
        raise ConfigurationError(message)
    return keyspace, name
