"""What Kafka's coordinators of transactions are asked that the client which writes cannot ask.

A transaction is committed by any client that knows its id, its producer's id and its epoch (``EndTxn``). ``librdkafka``
sends that request for its own open transaction only, so these few requests go out through another client,
``kafka-python``. They are of the published protocol, in versions that brokers have had since 2.5 (3.0 for describing
and listing).

Source: Kafka's protocol guide (``EndTxn``, ``InitProducerId``, ``DescribeTransactions``, ``ListTransactions``); KIP-98,
KIP-664.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.engine.errors import ConfigurationError, SinkError
from headrace.state.credentials import masked
from headrace.state.extras import needs

__all__ = ["Coordinator", "TransactionGoneError", "TransactionMark", "require_known_security"]

ANSWER_TIMEOUT_S = 30.0
"""For one answer, with all that is tried again meanwhile."""

RETRY_PAUSE_S = 0.05

ALL_TRANSACTIONS = "__transaction_state"
"""The topic in which brokers keep them: who leads a part of it coordinates what is in there."""

NO_LEADER = -1

FIRST_TRANSACTIONS = 4
"""The newest version of EndTxn that ends a transaction under the epoch that it was begun with."""

_OF_SECURITY = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}
"""Properties of ``librdkafka``, and what ``kafka-python`` calls them."""

_NAMES_IN_CAPITALS = ("security_protocol", "sasl_mechanism")
"""Settings whose values ``librdkafka`` takes in small letters, too."""


def require_known_security(properties: Mapping[str, Any]) -> None:
    """See that the other client can be let in as the first one is.

    Raises:
        ConfigurationError: If a property of security has no counterpart.
    """
    for name in properties:
        if name.startswith(("sasl.", "ssl.", "enable.ssl", "enable.sasl")) and name not in _OF_SECURITY:
            message = f"transactions cannot be committed with property {name!r}: the client that commits has no such"
            hint = f"staging='checkpoint', or of security only {', '.join(sorted(_OF_SECURITY))}"
            raise ConfigurationError(message, hint=hint)


def _library() -> Any:
    with needs("transactions that are left open until their checkpoint is complete need kafka-python", "kafka"):
        import kafka.admin
        import kafka.errors
        import kafka.protocol.metadata
        import kafka.protocol.producer
    return kafka


@dataclass(frozen=True, slots=True)
class TransactionMark:
    """What a transaction is ended by.

    Attributes:
        transactional_id: Whose it is.
        producer_id: Of the producer that began it; a number that the broker gave.
        epoch: Of that producer.
    """

    transactional_id: str
    producer_id: int
    epoch: int


class TransactionGoneError(Exception):
    """A transaction is not there to be committed.

    Args:
        message: What the broker says.
        state: That of the id, as the broker calls it; empty if it says none.
    """

    def __init__(self, message: str, state: str = "") -> None:
        super().__init__(message)
        self.state = state


class Coordinator:
    """Asks the coordinators of one cluster. Blocks; for one thread at a time. Connects with the first question.

    Args:
        servers: ``host:port``, several with commas between.
        properties: Of ``librdkafka``; those of security count here, too.
    """

    def __init__(self, servers: str, properties: Mapping[str, Any]) -> None:
        require_known_security(properties)
        settings = {_OF_SECURITY[name]: value for name, value in properties.items() if name in _OF_SECURITY}
        self._settings = {
            name: value.upper() if name in _NAMES_IN_CAPITALS else value for name, value in settings.items()
        }
        self._servers = [server.strip() for server in servers.split(",")]
        # None before the first question, and after a failure.
        self._admin: Any = None

    def mark_of(self, transactional_id: str) -> TransactionMark:
        """Return what an id's open transaction is ended by.

        Raises:
            TransactionGoneError: If it has none open.
            SinkError: If there is no answer.
        """
        found = self._described(transactional_id)
        if found is None or found.state.value != "Ongoing":
            state = "" if found is None else found.state.value
            message = f"it is {state}" if state else "nothing is known of it"
            raise TransactionGoneError(message, state)
        return TransactionMark(transactional_id, found.producer_id, found.producer_epoch)

    def _described(self, transactional_id: str) -> Any:
        errors = _library().errors

        def ask(admin: Any) -> Any:
            try:
                return admin.describe_transactions([transactional_id])[transactional_id]
            except errors.TransactionalIdNotFoundError:
                return None

        return self._asked(ask, f"transaction {transactional_id} cannot be looked at")

    def commit(self, mark: TransactionMark) -> None:
        """Commit a transaction; once more changes nothing, as long as the broker remembers it.

        Raises:
            TransactionGoneError: If it is not there to be committed, and its commit is not on record.
            SinkError: If there is no answer.
        """
        errors = _library().errors
        gone = (
            errors.InvalidProducerEpochError,
            errors.InvalidProducerIdMappingError,
            errors.InvalidTxnStateError,
            errors.ProducerFencedError,
        )
        try:
            self._asked(lambda admin: self._end(admin, mark), f"{mark.transactional_id} cannot be committed", gone)
        except gone as error:
            raise TransactionGoneError(type(error).__name__) from error

    def _end(self, admin: Any, mark: TransactionMark) -> None:
        request = _library().protocol.producer.EndTxnRequest(
            transactional_id=mark.transactional_id,
            producer_id=mark.producer_id,
            producer_epoch=mark.epoch,
            committed=True,
            max_version=FIRST_TRANSACTIONS,
        )
        _sent(admin, request, mark.transactional_id)

    def open_ids(self, prefix: str) -> list[str]:
        """Return the ids that begin so and have a transaction open.

        Raises:
            SinkError: If there is no answer.
        """
        return self._ids(prefix, "Ongoing")

    def committed_ids(self, prefix: str) -> list[str]:
        """Return the ids that begin so and have last committed a transaction, as far as the broker remembers.

        Raises:
            SinkError: If there is no answer.
        """
        return self._ids(prefix, "PrepareCommit", "CompleteCommit")

    def _ids(self, prefix: str, *states: str) -> list[str]:
        listed = self._asked(lambda admin: _listed(admin, states), "ids cannot be listed")
        found = {one.transactional_id for of_broker in listed.values() for one in of_broker}
        return sorted(one for one in found if one.startswith(prefix))

    def abort(self, transactional_id: str, timeout_ms: int) -> None:
        """End what an id has open, and shut out the producer that opened it.

        Raises:
            SinkError: If there is no answer.
        """
        request = _library().protocol.producer.InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
            max_version=FIRST_TRANSACTIONS,
        )
        self._asked(lambda admin: _sent(admin, request, transactional_id), f"{transactional_id} cannot be ended")

    def _asked(self, ask: Callable[[Any], Any], what: str, final: tuple[type[Exception], ...] = ()) -> Any:
        """Ask until there is an answer, or time is up."""
        library = _library()
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            try:
                if self._admin is None:
                    self._admin = library.admin.KafkaAdminClient(bootstrap_servers=self._servers, **self._settings)
                return ask(self._admin)
            except final:
                raise
            except library.errors.KafkaError as error:
                is_busy = isinstance(error, library.errors.ConcurrentTransactionsError)
                if not is_busy:
                    self.close()  # with what it believes of brokers: the next question connects anew
                if not error.retriable or time.monotonic() > deadline:
                    message = f"{what}: {masked(str(error)) or type(error).__name__}"
                    raise SinkError(message) from error
                time.sleep(RETRY_PAUSE_S)

    def close(self) -> None:
        """Let go of the connections."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()


def _listed(admin: Any, states: Sequence[str]) -> Mapping[int, Sequence[Any]]:
    """Return the transactions in some states, by the broker that coordinates them.

    A broker answers for those that it leads; of a part of them that nobody leads, or that goes to another one
    meanwhile, the answers say nothing.

    Raises:
        KafkaError: If not all are known of.
    """
    leaders = _leaders(admin)
    found: Mapping[int, Sequence[Any]] = admin.list_transactions(
        broker_ids=None if leaders is None else sorted(set(leaders.values())), state_filters=list(states)
    )
    if leaders != _leaders(admin):
        message = "transactions go to another coordinator"
        raise _library().errors.LeaderNotAvailableError(message)
    return found


def _leaders(admin: Any) -> dict[int, int] | None:
    """Who leads each part of all transactions; None if that may not be seen.

    Raises:
        KafkaError: If nobody leads one.
    """
    errors = _library().errors
    (topic,) = admin.describe_topics([ALL_TRANSACTIONS])
    kind = errors.for_code(topic["error_code"])
    if kind is errors.TopicAuthorizationFailedError:
        return None
    if kind is errors.UnknownTopicOrPartitionError:
        return {}  # there has been no transaction yet
    found = {one["partition_index"]: one["leader_id"] for one in topic["partitions"]}
    if kind is not errors.NoError or min(found.values(), default=NO_LEADER) == NO_LEADER:
        message = f"a part of {ALL_TRANSACTIONS} has no leader, so its transactions are not known"
        raise errors.LeaderNotAvailableError(message)
    return found


def _sent(admin: Any, request: Any, transactional_id: str) -> Any:
    """Send a request to the coordinator of an id.

    Raises:
        KafkaError: What it answers, if that is an error.
    """
    library = _library()

    async def send() -> Any:
        kind = library.protocol.metadata.CoordinatorType.TRANSACTION
        (node_id,) = (await admin._find_coordinator_ids([transactional_id], key_type=kind)).values()
        return await admin._manager.send(request, node_id=node_id)

    answer = admin._manager.run(send)
    kind = library.errors.for_code(answer.error_code)
    if kind is not library.errors.NoError:
        raise kind(transactional_id)
    return answer
