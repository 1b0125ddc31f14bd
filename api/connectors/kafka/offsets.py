"""Where a reader of Kafka begins, and where it ends.

Source: Flink's ``OffsetsInitializer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from headrace.engine.errors import ConfigurationError

__all__ = ["KafkaOffsets"]

Kind = Literal["earliest", "latest", "timestamp", "committed", "given"]


@dataclass(frozen=True, slots=True)
class KafkaOffsets:
    """Offsets of all partitions of a source's topics. Made by the class methods.

    Attributes:
        kind: Which of them made it.
        timestamp_ms: Epoch milliseconds; of ``timestamp``.
        given: Offsets by topic and partition; of ``given``.
        otherwise: For partitions that have no such offset: ``earliest``, ``latest``, or ``none``, an error.
    """

    kind: Kind
    timestamp_ms: int = 0
    given: tuple[tuple[str, int, int], ...] = ()
    otherwise: Literal["earliest", "latest", "none"] = "none"

    @classmethod
    def earliest(cls) -> KafkaOffsets:
        """Begin at the first record that a partition still has."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> KafkaOffsets:
        """Begin at the end of each partition as it is when the job begins."""
        return cls("latest")

    @classmethod
    def timestamp(cls, time: int | datetime) -> KafkaOffsets:
        """Return the first record of each partition whose timestamp is at or behind a time; its end if there is none.

        Args:
            time: Epoch milliseconds, or a datetime with a zone.

        Raises:
            ConfigurationError: If the datetime has no zone, or the number is negative.
        """
        if isinstance(time, datetime):
            if time.tzinfo is None:
                message = f"a time to start from needs a zone; got {time}"
                raise ConfigurationError(message)
            time = int(time.timestamp() * 1_000)
        if time < 0:
            message = f"a time to start from is epoch milliseconds; got {time}"
            raise ConfigurationError(message)
        return cls("timestamp", timestamp_ms=time)

    @classmethod
    def committed(cls, otherwise: Literal["earliest", "latest", "none"] = "none") -> KafkaOffsets:
        """Return where the source's group has committed that it has come to.

        Args:
            otherwise: For partitions of which it has committed nothing.
        """
        return cls("committed", otherwise=_known(otherwise))

    @classmethod
    def of(
        cls, offsets: Mapping[tuple[str, int], int], otherwise: Literal["earliest", "latest", "none"] = "none"
    ) -> KafkaOffsets:
        """Offsets by ``(topic, partition)``.

        Args:
            offsets: Of the first record that is read of each.
            otherwise: For partitions that it does not name.
        """
        given = tuple((topic, partition, offset) for (topic, partition), offset in sorted(offsets.items()))
        for topic, partition, offset in given:
            if offset < 0:
                message = f"an offset is 0 or more; got {offset} for {topic}-{partition}"
                raise ConfigurationError(message)
        return cls("given", given=given, otherwise=_known(otherwise))


def _known(otherwise: str) -> Literal["earliest", "latest", "none"]:
    if otherwise == "earliest":
        return "earliest"
    if otherwise == "latest":
        return "latest"
    if otherwise == "none":
        return "none"
    message = f"otherwise is earliest, latest or none; got {otherwise!r}"
    raise ConfigurationError(message)
