"""The checks that every source must pass which acknowledges messages to a service that then forgets them.

A queue has no positions. It gives a message to somebody, and again to somebody else, until one acknowledges it. So a
source acknowledges behind a complete checkpoint, what comes again meanwhile is known by an id of its own, and both are
so at any parallelism, while the service goes away, and with as many messages open as the service allows. Each check
plays a piece of a job's life with a `SourceTestHarness`. Other checks of sources are in
`headrace.testing.source_contract`.

Examples:
    A test file for such a source is how to send, and how to see what is left::

        import pytest
        from headrace.testing.acknowledging_contract import ACKNOWLEDGING_CONTRACT, AcknowledgingSubject

        @pytest.mark.parametrize("check", ACKNOWLEDGING_CONTRACT, ids=lambda check: check.__name__)
        def test_my_queue(check, queue):
            check(AcknowledgingSubject(MySource(queue.url), number=int, send=queue.send, num_left=queue.take_all))

Source: Flink's ``MessageAcknowledgingSourceBase`` and ``MultipleIdsMessageAcknowledgingSourceBase``.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.engine.connectors.contract import Source
from headrace.engine.operators.event_time import WatermarkStrategy

from .sources import harness as source_harness
from .sources.harness import SourceTestHarness
from .sources.subject import SourceServer

__all__ = ["ACKNOWLEDGING_CONTRACT", "AcknowledgingSubject"]


@dataclass
class AcknowledgingSubject:
    """A source that acknowledges, and its service. Made anew, with an empty service, for each check.

    Attributes:
        source: The source.
        number: Gives the number of a record.
        send: Sends messages with these numbers, each with its number as its id, where ids are; some to each queue, if
            the source reads several.
        num_left: Says how many messages the service keeps. It is asked once, at the end, when nobody reads, and may
            take them out.
        is_told: Whether the service has been told of all that was read; the job goes on until it says so.
        give_up: Has the service give up whom it has given messages to, where that takes a time of its own.
        knows_again: Whether what comes again is known, so that each message comes once.
        narrow: The source with at most ``most_open`` messages that are not acknowledged; None without such a bound.
        most_open: See there.
        server: The service as what can be away, and comes back with all that it had; None if it never is.
    """

    source: Source
    number: Callable[[Any], int]
    send: Callable[[Sequence[int]], None]
    num_left: Callable[[], int]
    is_told: Callable[[], bool] = lambda: True
    give_up: Callable[[], None] = lambda: None
    knows_again: bool = True
    narrow: Source | None = None
    most_open: int = 10
    server: SourceServer | None = None

    def send_more(self, numbers: Sequence[int], count: int = 9) -> list[int]:
        """Send the next numbers, to each queue some: they come behind what comes again; gives them."""
        more = list(range(len(numbers), len(numbers) + count))
        self.send(more)
        return more

    @contextlib.contextmanager
    def job(self, parallelism: int = 1, source: Source | None = None) -> Iterator[SourceTestHarness]:
        """A job that reads the source, and ends with the block."""
        job = SourceTestHarness(source or self.source, parallelism, WatermarkStrategy.no_watermarks())
        try:
            yield job
        finally:
            job.close()

    def restart(self, job: SourceTestHarness, parallelism: int | None = None, **options: Any) -> None:
        """End the job as by a failure, so that the service gives again what is not acknowledged, and deploy it."""
        job.close()
        self.give_up()
        job.start(parallelism, **options)

    def read(self, job: SourceTestHarness, numbers: Sequence[int], when: str) -> None:
        """Read until all have come and a little longer, and hold what came against it."""
        job.survive(lambda: len(self._came(job).keys() & set(numbers)) == len(set(numbers)))
        job.rest()
        self.check(job, numbers, when)

    def check(self, job: SourceTestHarness, numbers: Sequence[int], when: str) -> None:
        """Assert that exactly these numbers have come, and each once if what comes again is known."""
        came, expected = self._came(job), Counter(numbers)
        lost, strange = sorted(expected.keys() - came.keys()), sorted(came.keys() - expected.keys())
        assert not lost, f"{when}: missing {lost}"
        assert not strange, f"{when}: never sent {strange}"
        if self.knows_again:
            assert came == expected, f"{when}: more than once {sorted((came - expected).elements())}"

    def check_left(self, job: SourceTestHarness, number: int, when: str) -> None:
        """Let the service be told, end the job, and assert how many messages are left."""
        deadline = time.monotonic() + source_harness.PATIENCE_S
        while number == 0 and not self.is_told():
            assert time.monotonic() < deadline, f"{when}: the service has not been told of all"
            job.step()
        job.rest()
        job.close()
        self.give_up()
        left = self.num_left()
        assert left == number, f"{when}: the service keeps {left} messages; expected are {number}"

    def _came(self, job: SourceTestHarness) -> Counter[int]:
        return Counter(self.number(row) for row in job.rows)


Check = Callable[[AcknowledgingSubject], None]


def acknowledges_behind_a_complete_checkpoint(subject: AcknowledgingSubject) -> None:
    """What is in a complete checkpoint is gone from the service."""
    numbers = list(range(12))
    subject.send(numbers)
    with subject.job(2) as job:
        job.start()
        subject.read(job, numbers, "all were sent")
        job.checkpoint()
        subject.check_left(job, 0, "the checkpoint is complete")


def acknowledges_nothing_before(subject: AcknowledgingSubject) -> None:
    """What was read, and what is in a checkpoint that is under way, is still the service's."""
    numbers = list(range(12))
    subject.send(numbers)
    with subject.job(2) as job:
        job.start()
        subject.read(job, numbers, "all were sent")
        job.checkpoint(completes=False)
        subject.check_left(job, 12, "no checkpoint is complete")


def acknowledges_what_its_checkpoint_holds(subject: AcknowledgingSubject) -> None:
    """A checkpoint that is complete says nothing of what was read behind it."""
    subject.send(range(6))
    with subject.job(2) as job:
        job.start()
        subject.read(job, range(6), "some were sent")
        checkpoint_id = job.checkpoint(completes=False)
        subject.send(range(6, 12))
        subject.read(job, range(12), "more were sent")
        job.complete_checkpoint(checkpoint_id)
        job.rest()
        subject.check_left(job, 6, "six were read behind the checkpoint")


def knows_what_comes_again(subject: AcknowledgingSubject) -> None:
    """A checkpoint is complete and nobody has heard of it: all comes again, is known, and acknowledged at last."""
    numbers = list(range(12))
    subject.send(numbers)
    with subject.job(2) as job:
        job.start()
        subject.read(job, numbers, "all were sent")
        for parallelism in (2, 1, 3):
            job.checkpoint(notifies=False)
            subject.restart(job, parallelism)
            numbers += subject.send_more(numbers)
            subject.read(job, numbers, "gone on from a checkpoint that nobody has heard of")
        job.checkpoint()
        subject.check_left(job, 0, "what came again is in a complete checkpoint")


def gives_again_what_no_checkpoint_holds(subject: AcknowledgingSubject) -> None:
    """What was read behind the newest complete checkpoint comes again, whatever checkpoint was under way."""
    numbers = list(range(12))
    subject.send(numbers)
    with subject.job(2) as job:
        for _ in range(2):
            subject.restart(job)
            subject.read(job, numbers, "begun at the beginning")
            job.checkpoint(completes=False)
        job.checkpoint()
        job.rest()
        for parallelism in (3, 1):
            more = subject.send_more(numbers)
            subject.read(job, numbers + more, "more were sent")
            subject.restart(job, parallelism)
            numbers += more
            subject.read(job, numbers, "gone on from a checkpoint before them")
            job.checkpoint()
            job.rest()
        subject.check_left(job, 0, "all are in a complete checkpoint")


def goes_on_behind_what_may_be_open(subject: AcknowledgingSubject) -> None:
    """With as many messages open as may be nothing comes, until a checkpoint is complete."""
    if subject.narrow is None:
        return
    most, numbers = subject.most_open, list(range(2 * subject.most_open + 5))
    subject.send(numbers)
    with subject.job(1, subject.narrow) as job:
        job.start()
        for goal in (most, 2 * most, len(numbers)):
            job.read_number(goal)
            job.rest()
            assert len(job.rows) == goal, f"{len(job.rows)} have come, though only {most} may be open at a time"
            job.checkpoint()
        subject.check(job, numbers, "all were sent")
        subject.check_left(job, 0, "all are in a complete checkpoint")


def survives_the_service(subject: AcknowledgingSubject) -> None:
    """It goes away and comes back, before and behind checkpoints: nothing is lost, and nothing comes twice."""
    if subject.server is None:
        return
    numbers: list[int] = []
    with subject.job(2) as job:
        job.start()
        for notifies in (True, False, True):
            numbers += subject.send_more(numbers)
            subject.read(job, numbers, "the service is there")
            job.checkpoint(notifies=notifies)
            subject.server.stop()
            for _ in range(3):
                job.try_step()
            subject.server.start()
        numbers += subject.send_more(numbers)
        subject.read(job, numbers, "the service is back")
        job.checkpoint()
        subject.check_left(job, 0, "all are in a complete checkpoint")


ACKNOWLEDGING_CONTRACT: tuple[Check, ...] = (
    acknowledges_behind_a_complete_checkpoint,
    acknowledges_nothing_before,
    acknowledges_what_its_checkpoint_holds,
    knows_what_comes_again,
    gives_again_what_no_checkpoint_holds,
    goes_on_behind_what_may_be_open,
    survives_the_service,
)
"""All checks, each a function of a fresh `AcknowledgingSubject`; it raises an AssertionError that says what was wrong.
"""
