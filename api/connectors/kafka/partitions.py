"""What partitions there are, and where each of them begins and ends: the questions that an enumerator asks.

Source: Flink's ``KafkaSubscriber`` and ``OffsetsInitializer``.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from typing import Any

from headrace.engine.errors import SourceError
from headrace.state.credentials import masked

from .client import REQUEST_TIMEOUT_S, Client, ClientErrors, kafka
from .offsets import KafkaOffsets

__all__ = ["Partition", "Partitions", "end_of", "settings_of"]

FIRST_LOOK_S = 2.0
"""For the first answer of a partition's leader, which may have died; each further one has twice as long."""

Partition = tuple[str, int]
"""Topic and number."""


class Partitions:
    """Asks a cluster. Every method blocks.

    Args:
        client: Of the cluster.
        group_id: Whose committed offsets count; None if there is no group.
    """

    def __init__(self, client: Client, group_id: str | None) -> None:
        self._client = client
        self._group_id = group_id
        self._errors = ClientErrors("partitions of a source")
        # Made with the first question.
        self._admin: Any = None

    def find(self, topics: Sequence[str], pattern: str | None) -> list[Partition]:
        """Return the partitions of topics that are named, or whose names match, in order.

        Raises:
            SourceError: If the cluster does not answer, or has no such topic.
        """
        if self._admin is None:
            self._admin = self._client.admin(self._errors)
        library = kafka()
        try:
            found = self._admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        except library.KafkaException as error:
            message = f"Kafka does not say which topics there are: {masked(str(error))}"
            raise SourceError(message, last_error=self._errors.last) from error
        if pattern is not None:
            matches = re.compile(pattern).fullmatch
            names = [name for name in found if matches(name) and not name.startswith("__")]
        else:
            names = list(topics)
            missing = [name for name in names if name not in found]
            if missing:
                message = f"there is no topic {missing[0]!r}"
                raise SourceError(message, topic=missing[0])
        for name in names:
            if found[name].error is not None:
                message = f"Kafka does not describe topic {name!r}: {found[name].error}"
                raise SourceError(message, topic=name)
        return sorted((name, number) for name in names for number in found[name].partitions)

    def offsets(self, partitions: Sequence[Partition], wanted: KafkaOffsets) -> dict[Partition, int]:
        """Return where to begin, or end, in each partition.

        Raises:
            SourceError: If the cluster does not answer, or there is no such offset.
        """
        if not partitions:
            return {}
        if wanted.kind == "committed":
            found = self._committed(partitions)
        elif wanted.kind == "given":
            given = {(topic, number): offset for topic, number, offset in wanted.given}
            found = {partition: given[partition] for partition in partitions if partition in given}
        else:
            found = self._listed(partitions, wanted)
        missing = [partition for partition in partitions if partition not in found]
        if missing and wanted.otherwise == "none":
            topic, number = missing[0]
            what = "its group has committed none" if wanted.kind == "committed" else "none was given"
            message = f"there is no offset to begin from in partition {number} of topic {topic!r}: {what}"
            raise SourceError(message, hint="otherwise='earliest', or 'latest'", group=self._group_id)
        if missing:
            found.update(self._listed(missing, KafkaOffsets(wanted.otherwise)))  # type: ignore[arg-type]
        return found

    def _listed(self, partitions: Sequence[Partition], wanted: KafkaOffsets) -> dict[Partition, int]:
        admin = kafka().admin
        spec = {
            "earliest": admin.OffsetSpec.earliest,
            "latest": admin.OffsetSpec.latest,
            "timestamp": lambda: admin.OffsetSpec.for_timestamp(wanted.timestamp_ms),
        }[wanted.kind]()
        found = self._ask(partitions, spec)
        behind = [partition for partition, offset in found.items() if offset < 0]
        if behind:  # no record is as young as that
            found.update(self._ask(behind, admin.OffsetSpec.latest()))
        return found

    def _ask(self, partitions: Sequence[Partition], spec: Any) -> dict[Partition, int]:
        library = kafka()
        if self._admin is None:
            self._admin = self._client.admin(self._errors)
        try:
            return _listed(self._admin, partitions, spec, library.IsolationLevel.READ_COMMITTED)
        except library.KafkaException as error:
            message = f"Kafka does not say where partitions begin and end: {masked(str(error))}"
            raise SourceError(message, last_error=self._errors.last) from error

    def _committed(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        library = kafka()
        assert self._group_id is not None
        consumer = self._client.consumer(self._errors, self._group_id)
        try:
            asked = [library.TopicPartition(*partition) for partition in partitions]
            answers = consumer.committed(asked, timeout=REQUEST_TIMEOUT_S)
            for one in answers:
                if one.error is not None:
                    raise library.KafkaException(one.error)
        except library.KafkaException as error:
            message = f"Kafka does not say what group {self._group_id!r} has committed: {masked(str(error))}"
            raise SourceError(message, last_error=self._errors.last) from error
        finally:
            consumer.close()
        return {(one.topic, one.partition): one.offset for one in answers if one.offset >= 0}


def end_of(admin: Any, topic: str, partition: int) -> int:
    """Return the offset behind the last record of a partition, also of transactions that are open.

    Raises:
        KafkaException: If there is no answer.
    """
    library = kafka()
    latest, level = library.admin.OffsetSpec.latest(), library.IsolationLevel.READ_UNCOMMITTED
    return _listed(admin, [(topic, partition)], latest, level)[topic, partition]


def _listed(admin: Any, partitions: Sequence[Partition], spec: Any, level: Any) -> dict[Partition, int]:
    """Return an offset of each partition, as its leader says it; whoever leads it by now is asked again.

    Where a leader has died the client waits for it to the end, and then raises nothing: it gives a number that is no
    offset (``OFFSET_INVALID``). Taken for one, it would be the end of a partition that is empty.

    Raises:
        KafkaException: If there is no answer of one within `REQUEST_TIMEOUT_S`.
    """
    library = kafka()
    found: dict[Partition, int] = {}
    failure = library.KafkaException(library.KafkaError(library.KafkaError._TIMED_OUT))
    deadline, patience_s = time.monotonic() + REQUEST_TIMEOUT_S, FIRST_LOOK_S
    while missing := [partition for partition in partitions if partition not in found]:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise failure
        asked = {library.TopicPartition(*partition): spec for partition in missing}
        answers = admin.list_offsets(asked, isolation_level=level, request_timeout=min(patience_s, left_s))
        patience_s *= 2  # a broker that is only slow is given time
        for one, answer in answers.items():
            try:
                offset = answer.result().offset
            except library.KafkaException as error:
                if error.args[0].code() not in _leader_codes():
                    raise
                failure = error
            else:
                if offset != library.OFFSET_INVALID:
                    found[one.topic, one.partition] = offset
        if len(found) < len(partitions):
            with contextlib.suppress(library.KafkaException):  # asking again will tell
                admin.list_topics(timeout=max(0.1, min(patience_s, deadline - time.monotonic())))
    return found


def _leader_codes() -> tuple[int, ...]:
    """Errors that pass when a partition has a leader that the client knows."""
    codes = kafka().KafkaError
    return (
        codes._TIMED_OUT,
        codes._TRANSPORT,
        codes.FENCED_LEADER_EPOCH,
        codes.LEADER_NOT_AVAILABLE,
        codes.NOT_LEADER_FOR_PARTITION,
        codes.OFFSET_NOT_AVAILABLE,
        codes.REQUEST_TIMED_OUT,
        codes.UNKNOWN_LEADER_EPOCH,
    )


def settings_of(admin: Any, topic: str) -> dict[str, str]:
    """Return a topic's settings, those too that are the broker's.

    Raises:
        KafkaException: If there is no answer.
    """
    library = kafka()
    resource = library.admin.ConfigResource(library.admin.ResourceType.TOPIC, topic)
    (answer,) = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S).values()
    return {name: entry.value for name, entry in answer.result().items()}
