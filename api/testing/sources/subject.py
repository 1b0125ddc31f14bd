"""A source under test: how to fill what it reads, how to know records again, and what its server can be made to do.

Source: Flink's ``SourceTestSuiteBase``, ``DataStreamSourceExternalContext``.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.engine.connectors.contract import Source
from headrace.engine.operators.event_time import WatermarkStrategy

from .harness import SourceTestHarness

__all__ = ["SourceServer", "SourceSubject"]

_PER_PART = 1_000_000
"""Numbers of a part are between its own number times this, and the next one's."""


class SourceServer(Protocol):
    """What a source reads from, where that can be away."""

    def stop(self) -> None:
        """Have it gone, as if it had been killed; nothing if it is."""

    def start(self) -> None:
        """Have it back, with all it had; returns when it answers."""

    def pause(self) -> None:
        """Have it stand still, with its connections open."""

    def resume(self) -> None:
        """Have it go on."""


@dataclass
class SourceSubject:
    """A source and the way to fill what it reads. Made anew, with an empty place, for each check.

    Records are known by numbers. What a source reads has parts (files, partitions), each in an order.

    Attributes:
        source: The source.
        number: Gives the number of a record.
        put: Puts records with these numbers behind those that a part has, and makes it if it is not there. None if the
            source makes its records up.
        made_up: The numbers of these.
        num_parts: How many parts may be filled before the source looks: 1 for a table.
        is_ordered: Whether records of a part come in its order.
        grows: Whether records that are put behind others while the source reads are read, too.
        discovers: Whether parts that come while it reads are found.
        reads_side_by_side: Whether parts are read together, not one after the other.
        lets_go: Whether what is before a complete checkpoint is gone, so that only the newest can be gone on from; a
            reader that has not heard of it has not let go.
        put_bad: Puts a record that cannot be decoded behind those of a part; None if there is no such thing.
        passing_over: The source as it passes over such records; None if it cannot.
        server: What it reads from; None if it is never away.
    """

    source: Source
    number: Callable[[Any], int]
    put: Callable[[int, Sequence[int]], None] | None = None
    made_up: Sequence[int] = ()
    num_parts: int = 1
    is_ordered: bool = True
    grows: bool = False
    discovers: bool = False
    reads_side_by_side: bool = False
    lets_go: bool = False
    put_bad: Callable[[int], None] | None = None
    passing_over: Source | None = None
    server: SourceServer | None = None
    _filled: dict[int, int] = field(default_factory=dict)

    # -------------------------------------------------------------------------------------------------- what it reads
    def fill(self, count: int = 12, parts: Iterable[int] | None = None) -> list[int]:
        """Put records into parts; gives their numbers. What a source makes up is there already."""
        if self.put is None:
            return list(self.made_up)
        added = []
        for part in range(self.num_parts) if parts is None else parts:
            first = part * _PER_PART + self._filled.get(part, 0)
            numbers = list(range(first, first + count))
            self.put(part, numbers)
            self._filled[part] = self._filled.get(part, 0) + count
            added += numbers
        return added

    @staticmethod
    def part_of(number: int) -> int:
        """Return the part that `fill` has put a number into."""
        return number // _PER_PART

    # ------------------------------------------------------------------------------------------------------ what comes
    @contextlib.contextmanager
    def job(
        self, parallelism: int = 1, strategy: WatermarkStrategy | None = None, source: Source | None = None
    ) -> Iterator[SourceTestHarness]:
        """A job that reads the source; it is started, and ends with the block."""
        job = SourceTestHarness(source or self.source, parallelism, strategy or WatermarkStrategy.no_watermarks())
        try:
            yield job
        finally:
            job.close()

    def read_all(self, job: SourceTestHarness, numbers: Sequence[int], when: str, max_records: int = 5) -> None:
        """Read to the end, or until as many have come and a little longer, and hold what came against it."""
        if self.source.is_bounded:
            job.read_to_the_end(max_records)
        else:
            job.read_number(len(numbers), max_records)
            job.rest()
        self.check(job, numbers, when)

    def check(self, job: SourceTestHarness, numbers: Iterable[int], when: str) -> None:
        """Assert that exactly these numbers have come, each once, those of a part in order."""
        came = [self.number(row) for row in job.rows]
        seen, expected = Counter(came), Counter(numbers)
        lost, extra = sorted((expected - seen).elements()), sorted((seen - expected).elements())
        assert not lost, f"{when}: missing {lost}"
        assert not extra, f"{when}: too many {extra}"
        if self.is_ordered and self.put is not None:
            for part in {self.part_of(number) for number in came}:
                mine = [number for number in came if self.part_of(number) == part]
                assert mine == sorted(mine), f"{when}: part {part} is out of order: {mine}"

    # ------------------------------------------------------------------------------------------------------- its server
    @contextlib.contextmanager
    def in_fits_and_starts(self) -> Iterator[None]:
        """The server stands still most of the time."""
        assert self.server is not None
        server, is_over = self.server, threading.Event()

        def hold_up() -> None:
            while not is_over.is_set():
                server.pause()
                is_over.wait(0.03)
                server.resume()
                is_over.wait(0.02)

        thread = threading.Thread(target=hold_up)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
