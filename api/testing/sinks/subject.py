"""A sink under test: what it is, what is visible of it, and the faults that its commits meet.

Source: Flink's ``SinkTestSuiteBase``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from headrace.engine.connectors.contract import (
    CommitRetry,
    Committer,
    ProvingCommitter,
    SinkWriter,
    SupportsCommitProof,
    SupportsCommitter,
)
from headrace.engine.connectors.sink_protocols import SupportsGlobalCommitter

from .harness import SinkTestHarness

__all__ = ["CrashError", "SinkSubject"]


class CrashError(BaseException):
    """The process dies: nothing catches it."""

    strikes_from_outside = True


@dataclass
class SinkSubject:
    """A sink and the way to look at what it writes. Made anew, with an empty place, for each check.

    Attributes:
        sink: The sink.
        visible: Gives the numbers that a reader sees, in any order.
        record: Gives the record of a number.
    """

    sink: SupportsCommitter | SupportsGlobalCommitter
    visible: Callable[[], Iterable[int]]
    record: Callable[[int], Any]
    # What the injected committers were called with, and what they do wrong.
    calls: list[tuple[int, Any]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def job(self, parallelism: int = 1, **options: Any) -> _Job:
        """Return a job that writes to the sink, whose commits can be made to fail."""
        return _Job(self, parallelism, **options)

    def check_visible(self, numbers: Iterable[int], when: str) -> None:
        """Assert that exactly these numbers are visible, each once."""
        seen, expected = Counter(self.visible()), Counter(numbers)
        lost, extra = sorted((expected - seen).elements()), sorted((seen - expected).elements())
        assert not lost, f"{when}: missing {lost}"
        assert not extra, f"{when}: too many {extra}"


class _Job(SinkTestHarness):
    def __init__(self, subject: SinkSubject, parallelism: int, **options: Any) -> None:
        has_one = hasattr(subject.sink, "create_global_committer")
        super().__init__((_FaultyGlobalSink if has_one else _FaultySink)(subject), parallelism, **options)
        self.subject = subject

    def put(self, *numbers: int, subtask: int = 0) -> None:
        """Hand the records of numbers to a subtask."""
        self.write([self.subject.record(number) for number in numbers], subtask)


class _Faulty:
    """The sink under test."""

    def __init__(self, subject: SinkSubject) -> None:
        self._subject = subject

    def create_writer(self) -> SinkWriter:
        return self._subject.sink.create_writer()


class _FaultySink(_Faulty):
    """Its committers do what `SinkSubject.faults` says, one word per call of ``commit``."""

    def create_committer(self) -> Committer:
        sink = self._subject.sink
        is_proving = isinstance(sink, SupportsCommitProof) and sink.proves_commits
        return (_FaultyProvingCommitter if is_proving else _FaultyCommitter)(self._subject)


class _FaultyGlobalSink(_Faulty):
    """The same for a sink with one committer."""

    def create_global_committer(self) -> Committer:
        return _FaultyCommitter(self._subject)


class _FaultyCommitter(Committer):
    retry = CommitRetry(max_attempts=3, initial_delay_ms=10, max_delay_ms=10)

    def __init__(self, subject: SinkSubject) -> None:
        self._subject = subject
        sink: Any = subject.sink
        create = getattr(sink, "create_global_committer", None) or sink.create_committer
        self._committer: Committer = create()
        self._subtask = 0

    def open(self, context: Any) -> None:
        self._subtask = context.subtask
        self._committer.open(context)

    def commit(self, committable: Any) -> None:
        faults = self._subject.faults
        fault = faults.pop(0) if faults else ""
        self._subject.calls.append((self._subtask, committable))
        if fault == "fails":
            message = "made to fail"
            raise OSError(message)
        self._committer.commit(committable)
        if fault == "twice":
            self._committer.commit(committable)
        if fault == "answer lost":
            message = "made to fail behind its effect"
            raise OSError(message)

    def abort_leftovers(self) -> None:
        self._committer.abort_leftovers()

    def finish(self) -> None:
        self._committer.finish()

    def close(self) -> None:
        self._committer.close()


class _FaultyProvingCommitter(_FaultyCommitter, ProvingCommitter):
    def num_committed_after(self, checkpoint_id: int) -> int:
        assert isinstance(self._committer, ProvingCommitter), "a sink that proves commits has a ProvingCommitter"
        return self._committer.num_committed_after(checkpoint_id)
