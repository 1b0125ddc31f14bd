"""Which topics have the names that are read: a topic that is deleted and made again has another id, and new records
under the offsets of the old ones.

Source: KIP-516.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from .client import REQUEST_TIMEOUT_S, Client, ClientErrors, kafka

__all__ = ["TopicIds"]

_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""What brokers say that know of no ids."""


class TopicIds:
    """Asks a cluster, and waits for nothing.

    Args:
        client: Of the cluster.
        errors: Whom to tell what the client says.
    """

    def __init__(self, client: Client, errors: ClientErrors) -> None:
        self._client = client
        self._errors = errors
        # Made with the first question.
        self._admin: Any = None
        # Answers that are under way, by topic.
        self._asked: dict[str, Any] = {}

    @property
    def is_under_way(self) -> bool:
        """Whether an answer is waited for, or can be taken."""
        return bool(self._asked)

    def ask(self, topics: Collection[str]) -> None:
        """Ask for the ids of topics."""
        if self._admin is None:
            self._admin = self._client.admin(self._errors)
        wanted = kafka().TopicCollection(sorted(topics))
        self._asked = self._admin.describe_topics(wanted, request_timeout=REQUEST_TIMEOUT_S)

    def take(self) -> dict[str, str | None] | None:
        """Return the ids, or None while the answer is under way.

        Of a topic for which no broker has answered there is nothing; its id is None if they tell of none.
        """
        if not all(answer.done() for answer in self._asked.values()):
            return None
        asked, self._asked = self._asked, {}
        found: dict[str, str | None] = {}
        for topic, answer in asked.items():
            error = answer.exception()
            said = None if error is not None else str(answer.result().topic_id)
            if isinstance(error, kafka().KafkaException):
                self._errors.note(error.args[0])
                if _is_no_answer(error.args[0]):
                    continue
            found[topic] = None if said in (None, "None", _NO_ID) else said
        return found


def _is_no_answer(error: Any) -> bool:
    """Whether an error says that brokers are away."""
    codes = kafka().KafkaError
    away = (codes._TIMED_OUT, codes._TRANSPORT, codes._ALL_BROKERS_DOWN, codes._RESOLVE, codes.REQUEST_TIMED_OUT)
    return error.code() in away or error.retriable()
