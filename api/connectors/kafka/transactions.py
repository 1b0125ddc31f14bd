"""Transactions of Kafka as a sink uses them: whose they are, and how one is begun.

Source: KIP-98.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from headrace.engine.connectors.contract import CommitterContext, SinkHistory, WriterContext
from headrace.engine.errors import CheckpointMismatchError, ConfigurationError, NewerOutputError, SinkError
from headrace.state.credentials import masked

from .client import REQUEST_TIMEOUT_S, Client, ClientErrors, client_failures, kafka
from .ledger import Ledger, newer_output

__all__ = ["CommitSettings", "failed", "let_go", "require_topic", "transactional_producer"]


@dataclass(frozen=True, slots=True)
class CommitSettings:
    """How a sink commits.

    Attributes:
        topic: Where records go.
        prefix: Of transactional ids.
        commits_topic: Where it is noted what is written.
        timeout_ms: How long a transaction may stay open.
        keeps_newer: Whether to go on from a checkpoint behind which records are written already.
    """

    topic: str
    prefix: str
    commits_topic: str
    timeout_ms: int
    keeps_newer: bool = False

    def transactional_id(self, context: WriterContext | CommitterContext) -> str:
        """Return the id under which a subtask's attempt prepares."""
        return f"{self.prefix}-{context.history.owner}-{context.attempt}-{context.subtask}"

    def require_no_newer(
        self, ledger: Ledger, context: CommitterContext, not_noted: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """See that nothing is written behind the restored checkpoint, which this job would write again.

        Args:
            ledger: Of notes.
            context: Of the committer.
            not_noted: By owner, to which checkpoint something belongs that is written, whatever notes say.

        Raises:
            NewerOutputError: If there is.
        """
        history = context.history
        if not history.prepared:
            return
        newer = newer_output(ledger.notes(), self.prefix, history)
        for owner, checkpoint_id in not_noted.items():
            if not history.accounts_for(owner, checkpoint_id):
                newer[owner] = max(checkpoint_id, newer.get(owner, -1))
        if not newer:
            return
        if self.keeps_newer or context.newer_output == "repeat":
            for owner, checkpoint_id in newer.items():
                history.accept(owner, checkpoint_id)
            return
        strangers = [owner for owner in newer if owner not in (history.owner, *history.prepared)]
        point, last = max(history.prepared.values()), max(newer.values())
        message = (
            f"the job goes on from checkpoint {point}, and topic {self.topic!r} has records up to checkpoint {last} of"
            f" {'another job that went on from there' if strangers else 'the job before'}: they would be written again"
        )
        hint = "restore the newest checkpoint, end the other job, or say on_newer_output='keep' and have them twice"
        raise NewerOutputError(message, hint=hint, topic=self.topic, operator=context.operator_name)

    @staticmethod
    def begins_from_another(history: SinkHistory) -> bool:
        """Return whether the sink goes on from what another job has prepared, which may be running still."""
        return any(owner != history.owner for owner in history.prepared)

    def require_own(self, topic: str, transaction: str) -> None:
        """See that what a checkpoint holds goes where this sink writes.

        Raises:
            CheckpointMismatchError: If not.
        """
        if topic != self.topic or not transaction.startswith(f"{self.prefix}-"):
            message = (
                f"the checkpoint holds records for topic {topic!r} under {transaction!r}; the sink writes topic"
                f" {self.topic!r} under {self.prefix!r}"
            )
            hint = "keep topic and transactional_id_prefix, or give the sink another uid"
            raise CheckpointMismatchError(message, hint=hint)


def transactional_producer(
    client: Client, settings: CommitSettings, transactional_id: str, errors: ClientErrors
) -> Any:
    """Make a producer that takes an id over; what others have open under it is ended.

    Raises:
        ConfigurationError: If the broker allows no transactions of that length.
        SinkError: If it does not answer.
    """
    library = kafka()
    timeout_ms = settings.timeout_ms
    producer = client.producer(errors, **{"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms})
    try:
        producer.init_transactions(REQUEST_TIMEOUT_S)
    except library.KafkaException as error:
        let_go(producer)
        if error.args[0].code() == library.KafkaError.INVALID_TRANSACTION_TIMEOUT:
            message = f"the broker allows no transactions of {timeout_ms} ms"
            hint = "set transaction_timeout below its transaction.max.timeout.ms"
            raise ConfigurationError(message, hint=hint) from error
        what = "its transaction cannot be begun"
        raise failed(what, error, settings.topic, errors) from error
    return producer


def require_topic(producer: Any, topic: str, errors: ClientErrors) -> None:
    """See that a topic is there.

    Raises:
        SinkError: If not.
    """
    library = kafka()
    try:
        found = producer.list_topics(topic, REQUEST_TIMEOUT_S)
    except library.KafkaException as error:
        what = "the topic cannot be looked at"
        raise failed(what, error, topic, errors) from error
    described = found.topics[topic]
    if described.error is not None:
        message = f"records cannot be written into topic {topic!r}: {described.error}"
        raise SinkError(message, topic=topic)


def let_go(producer: Any) -> None:
    """Close a producer, which aborts what it has open; one that is broken says so once more."""
    with contextlib.suppress(*client_failures()):
        producer.close(0)


def failed(what: str, error: Any, topic: str, errors: ClientErrors) -> SinkError:
    """Make the error of a sink from one of the client."""
    message = f"{what}: {masked(str(error))}"
    return SinkError(message, topic=topic, last_error=errors.last)
