"""A reliable link over an unreliable network: in order, each once, as long as both ends live.

There is one link per ordered pair of hosts. Host names are incarnations and never reused, so a link begins with its
hosts at sequence 0 and there is nothing to negotiate. The sending end numbers its frames, keeps them until they are
acknowledged, and sends the oldest ones again after a silence that doubles each time. What was sent before that silence
and is missing, too, follows as fast as the peer acknowledges: a storm may leave hundreds of frames behind, and as long
as they are not through, whatever is sent now is as late as if there were still a storm. The receiving end holds back
what came early, drops what came twice, and acknowledges the number of frames it has had in order. Acknowledgements
ride on frames of the other direction; when there are none, a bare frame (without sequence, never acknowledged itself)
carries them. After ``give_up_ms`` without progress the peer counts as unreachable for good: whatever is delivered is
always a prefix of what was sent, never a sequence with a hole.

The link knows neither clock nor network: times are arguments (milliseconds of any clock that does not go back),
frames are return values.

Source: TCP's cumulative acknowledgement, exponential back-off, slow start and answer to partial acknowledgements (RFC
9293, RFC 6298, RFC 5681, RFC 6582). Ray promises neither order nor exactly-once:
``docs/design/001-machines-and-hosts.md``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import ConfigurationError

__all__ = ["BARE", "Frame", "LinkReceiver", "LinkSender", "LinkTiming", "Parcel"]

Parcel = tuple[str, Any]
"""A message with the name of the machine it is for, on the receiving host."""

BARE = -1
"""The sequence of a frame that only acknowledges."""

MAX_RESENT = 4
"""Frames sent again after a silence. The receiver most likely misses only the first, and data frames are large."""

MAX_REPAIRED = 32
"""The bound of a number that grows from `MAX_RESENT`: frames sent again when the peer has acknowledged all that
were sent again before, and so misses the next ones, too."""


class Frame(NamedTuple):
    """What travels between two hosts at once.

    Attributes:
        source: The sending host.
        destination: The receiving host.
        sequence: Counts the frames of this link from 0; `BARE` for one that only acknowledges.
        ack: How many frames of the opposite link the sending host has had in order.
        parcels: Messages in the order sent.
    """

    source: str
    destination: str
    sequence: int
    ack: int
    parcels: tuple[Parcel, ...]


@dataclass(frozen=True, slots=True)
class LinkTiming:
    """How patient a link is.

    Attributes:
        ack_delay_ms: How long an acknowledgement may wait for a frame to ride on.
        retry_ms: Silence before the first retransmission; more than a round trip and ``ack_delay_ms``.
        max_retry_ms: Upper bound of the doubled silences.
        give_up_ms: Time without progress after which the peer is unreachable for good, even if it lives and the network
            is well again: no one is told, and a job that needs the two would wait for ever. So it only clears away what
            is kept for peers that are gone without the system knowing, and is longer than any storm to be survived.
    """

    ack_delay_ms: int = 20
    retry_ms: int = 200
    max_retry_ms: int = 5_000
    give_up_ms: int = 86_400_000

    def __post_init__(self) -> None:
        if not 0 <= self.ack_delay_ms < self.retry_ms <= self.max_retry_ms <= self.give_up_ms:
            message = f"link times must grow from ack_delay_ms over retry_ms and max_retry_ms to give_up_ms; got {self}"
            raise ConfigurationError(message)


class LinkSender:
    """The sending end of the link from ``source`` to ``destination``."""

    __slots__ = (
        "_destination",
        "_is_repairing",
        "_next",
        "_num_again",
        "_patience_ms",
        "_resent_below",
        "_sent_below",
        "_source",
        "_timing",
        "_unacknowledged",
        "_waiting_since",
        "is_closed",
        "retry_at",
    )

    def __init__(self, source: str, destination: str, timing: LinkTiming) -> None:
        self._source = source
        self._destination = destination
        self._timing = timing
        # Sequence of the next new frame.
        self._next = 0
        # Frames sent and not acknowledged, oldest first, without gaps up to `_next`.
        self._unacknowledged: deque[Frame] = deque()
        # Since when the oldest of them has been waiting without any progress.
        self._waiting_since = 0
        # The silence before the next retransmission.
        self._patience_ms = timing.retry_ms
        # The newest retransmission: it sent again the frames below the one, all below the other had been sent by then;
        # how many the next one sends; and whether that is due because the peer wants more, not for its silence.
        self._resent_below = self._sent_below = 0
        self._num_again = MAX_RESENT
        self._is_repairing = False
        # When the next retransmission is due; None while nothing is unacknowledged.
        self.retry_at: int | None = None
        # True once the peer is gone or unreachable: nothing is sent or kept any more.
        self.is_closed = False

    def __len__(self) -> int:
        """How many frames wait for their acknowledgement."""
        return len(self._unacknowledged)

    def send(self, parcels: tuple[Parcel, ...], ack: int, now_ms: int) -> Frame:
        """Number a new frame and keep it until it is acknowledged.

        Args:
            parcels: The messages.
            ack: What the receiving end of the opposite link has had in order.
            now_ms: Now.

        Returns:
            The frame, to be given to the network.
        """
        frame = Frame(self._source, self._destination, self._next, ack, parcels)
        self._next += 1
        if not self.is_closed:
            if not self._unacknowledged:
                self._waiting_since = now_ms
                self._patience_ms = self._timing.retry_ms
                self.retry_at = now_ms + self._patience_ms
            self._unacknowledged.append(frame)
        return frame

    def acknowledge(self, ack: int, now_ms: int) -> None:
        """Forget all frames below ``ack``, which the peer has had. Old and doubled acknowledgements change nothing."""
        unacknowledged = self._unacknowledged
        if not unacknowledged or unacknowledged[0].sequence >= ack:
            return
        while unacknowledged and unacknowledged[0].sequence < ack:
            unacknowledged.popleft()
        self._waiting_since = now_ms
        self._patience_ms = self._timing.retry_ms
        was_repairing = self._is_repairing
        self._is_repairing = self._resent_below <= ack < self._sent_below
        if not self._is_repairing:
            self.retry_at = now_ms + self._patience_ms if unacknowledged else None
        elif not was_repairing:
            self._num_again = min(2 * self._num_again, MAX_REPAIRED)
            self.retry_at = now_ms

    def retransmit(self, ack: int, now_ms: int) -> list[Frame]:
        """Return the frames to send again now, with a fresh ``ack``; none before ``retry_at``.

        Closes the link, and returns nothing, once there was no progress for ``give_up_ms``.
        """
        if self.retry_at is None or now_ms < self.retry_at:
            return []
        if now_ms - self._waiting_since >= self._timing.give_up_ms:
            self.close()
            return []
        if self._is_repairing:
            self._is_repairing = False
        else:
            self._patience_ms = min(2 * self._patience_ms, self._timing.max_retry_ms)
            self._num_again = MAX_RESENT
            self._sent_below = self._next
        self.retry_at = now_ms + self._patience_ms
        first = self._unacknowledged[0].sequence
        oldest = min(self._num_again, self._sent_below - first)
        self._resent_below = first + oldest
        return [self._unacknowledged[i]._replace(ack=ack) for i in range(oldest)]

    def close(self) -> None:
        """Forget what a peer that is gone has not acknowledged, and keep nothing from now on."""
        self.is_closed = True
        self._unacknowledged.clear()
        self.retry_at = None


class LinkReceiver:
    """The receiving end of a link."""

    __slots__ = ("_early", "expected")

    def __init__(self) -> None:
        # The next sequence in order; at the same time the acknowledgement: how many have been had.
        self.expected = 0
        # Frames that came before their turn, by sequence; all above `expected`.
        self._early: dict[int, tuple[Parcel, ...]] = {}

    def receive(self, frame: Frame) -> tuple[Parcel, ...] | list[Parcel]:
        """Take a sequenced frame as the network delivers it.

        Returns:
            The messages that are now in order: none for a frame that came early or was had before, else those of this
            frame and of the early ones it was missing to.
        """
        sequence = frame.sequence
        if sequence != self.expected:
            if sequence > self.expected:
                self._early[sequence] = frame.parcels
            return ()
        self.expected = sequence + 1
        if not self._early:
            return frame.parcels
        in_order = list(frame.parcels)
        while (parcels := self._early.pop(self.expected, None)) is not None:
            in_order.extend(parcels)
            self.expected += 1
        return in_order

    def bare(self, source: str, destination: str) -> Frame:
        """Return a frame that only acknowledges, from this end's host ``source`` to the peer."""
        return Frame(source, destination, BARE, self.expected, ())
