"""The checks that every sink must pass which writes rows by key to a service without transactions (`UpsertSink`).

What stays is the newest row of each key, whatever is written again, late, or by an attempt that was replaced. Rows that
wait are in checkpoints; what a service refuses is named alone; a service that is away is waited for. Each check plays
subtasks of the sink, each an attempt of its own. Sinks that commit have `headrace.testing.sink_contract`.

Examples:
    A test file for such a sink is how it is made, and how to see what stays::

        import pytest
        from headrace.testing.upsert_contract import UPSERT_CONTRACT, UpsertSubject

        @pytest.mark.parametrize("check", UPSERT_CONTRACT, ids=lambda check: check.__name__)
        def test_my_sink(check, service):
            table = service.new_table()

            def sink(**options):
                return MySink(service.url, table, key="k", delete_column="gone", **options)

            check(UpsertSubject(sink, rows=lambda: {row.k: (row.at, row.v) for row in service.read(table)}))

Source: Flink's upsert sinks (its JDBC, HBase and Elasticsearch connectors), whose tests each have some of these.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.async_sink_operator import AsyncSinkOperator
from headrace.engine.errors import HeadraceError
from headrace.engine.functions.operator import OffloadEnd, OperatorContext
from headrace.engine.kernel.machine import OffloadKind
from headrace.engine.kernel.metrics import MetricGroup
from headrace.state.backends.heap.backend import HeapOperatorStateBackend
from headrace.state.checkpoints.snapshot import RestoredPart
from headrace.state.identifiers import OperatorId
from headrace.state.reading.program_pickles import dump_program, load_program

from ..connectors.upserts import UpsertOptions, UpsertSink
from .operators.works import WorkRunner
from .sources.subject import SourceServer

__all__ = ["UPSERT_CONTRACT", "UpsertAttempt", "UpsertSubject"]

PATIENCE_S = 60.0
"""How long a service that has come back may take."""

Row = tuple[int, int, int, bool]
"""Key, order, value, and whether it is a deletion."""


class UpsertAttempt:
    """One subtask of the sink in one attempt, by hand: what it asks to be done outside is done by `flush`.

    Args:
        sink: The sink.
        attempt: Which attempt: those of greater numbers replace those of smaller ones.
        restored: A snapshot of an attempt before.

    Attributes:
        counters: What the sink has counted.
    """

    def __init__(self, sink: UpsertSink, attempt: str = "1.0", restored: Sequence[RestoredPart] = ()) -> None:
        self._now_ms = 0
        self._metrics = MetricGroup()
        self._state = HeapOperatorStateBackend(OperatorId("sink"))
        self._state.restore(list(restored), 0, 1)
        self._runner = WorkRunner()
        # By number what is to be done outside, and whom to tell of its end; and calls that are wanted later.
        self._works: dict[int, tuple[Callable[[], Any], OffloadEnd, OffloadKind]] = {}
        self._alarms: dict[int, tuple[int, Callable[[], None]]] = {}
        self._next = 0
        self._operator = load_program(dump_program(AsyncSinkOperator(sink)))
        self._operator.open(
            OperatorContext(
                operator=OperatorId("sink"),
                name="sink",
                subtask=0,
                parallelism=1,
                max_parallelism=128,
                attempt=attempt,
                job="job",
                output=None,  # type: ignore[arg-type]  # a sink emits nothing
                keyed_state=None,  # type: ignore[arg-type]  # and has no keyed state
                operator_state=self._state,
                metrics=self._metrics,
                now_ms=lambda: self._now_ms,
                probe=lambda _point: None,
                is_restored=bool(restored),
                offload=self._offload,
                cancel_offload=self._cancel,
                call_later=self._call_later,
            )
        )

    @property
    def counters(self) -> dict[str, int]:
        return self._metrics.counters

    def write(self, rows: Sequence[Any]) -> None:
        """Hand over rows, in one batch; they wait for `flush`."""
        self._operator.process_batch(Batch.of_rows(list(rows)), 0)

    def snapshot(self) -> list[RestoredPart]:
        """Return what a checkpoint holds."""
        self._operator.prepare_snapshot(1)
        self._operator.take_snapshot(1)
        return [RestoredPart(part.state, part.kind, part.metadata, part.write(), 0) for part in self._state.snapshot()]

    def try_once(self) -> None:
        """Let some time pass, and do once what is to be done outside then."""
        self._pass_time()
        for number in list(self._works):
            self._do(number)

    def flush(self) -> None:
        """Let time pass and do what is to be done, until nothing is left.

        Raises:
            HeadraceError: What the job would fail with.
            AssertionError: If it has no end.
        """
        deadline = time.monotonic() + PATIENCE_S
        self._operator.end_input(0)
        while self._works or self._alarms or self._operator.has_pending:
            assert time.monotonic() < deadline, "what was handed over is not written"
            self.try_once()

    def _do(self, number: int) -> None:
        work, on_end, kind = self._works.pop(number)
        result, error = self._runner.run(work, kind)
        on_end(result, error)

    def _pass_time(self) -> None:
        self._now_ms += 1_000
        while (due := self._operator.next_processing_time()) is not None and due <= self._now_ms:
            self._operator.on_processing_time(self._now_ms)
        for number in [number for number, (due_ms, _) in self._alarms.items() if due_ms <= self._now_ms]:
            self._alarms.pop(number)[1]()

    def _offload(self, work: Callable[[], Any], on_end: OffloadEnd, kind: OffloadKind) -> int:
        self._next += 1
        self._works[self._next] = work, on_end, kind
        return self._next

    def _call_later(self, delay_ms: int, call: Callable[[], None]) -> int:
        self._next += 1
        self._alarms[self._next] = self._now_ms + delay_ms, call
        return self._next

    def _cancel(self, number: int) -> None:
        self._works.pop(number, None)
        self._alarms.pop(number, None)


@dataclass
class UpsertSubject:
    """A sink by key, and how to see what it has written. Made anew, with an empty table, for each check.

    Attributes:
        sink: Makes the sink, of rows with a whole number ``k`` as key, ``at``, ``v`` and the column ``gone`` that says
            what is deleted: with ``order="at"``, or None, and the ``options``.
        rows: What a client of the service reads: by key, the order and the value.
        row: Makes a record of key, order, value and whether it is a deletion.
        bad: A record that the service refuses, of key 2; None if there is no such thing.
        numbers_itself: Whether attempts that were replaced are shut out without an order.
        orders: Whether the sink can be told an order; without one the row that was written last is the newest, and
            nothing may be passed over.
        server: The service, as what can be away; None if it never is.
    """

    sink: Callable[..., UpsertSink]
    rows: Callable[[], dict[int, tuple[int, int]]]
    row: Callable[[int, int, int, bool], Any] = lambda k, at, v, gone: {"k": k, "at": at, "v": v, "gone": gone}
    bad: Any = None
    numbers_itself: bool = True
    orders: bool = True
    server: SourceServer | None = None

    def attempt(
        self, order: str | None, attempt: str = "1.0", restored: Sequence[RestoredPart] = (), **options: Any
    ) -> UpsertAttempt:
        """A subtask of the sink; ``options`` are those of `UpsertOptions`."""
        given = UpsertOptions(**{"batch_size": 50, "batch_interval": "10 ms", **options})
        return UpsertAttempt(self.sink(order=order, options=given), attempt, restored)

    def records(self, rows: Sequence[Row]) -> list[Any]:
        """Return records of rows."""
        return [self.row(*row) for row in rows]

    def check(self, rows: Sequence[Row], when: str) -> None:
        """Assert that of these, in order, the newest of each key is there, and nothing else."""
        newest = {row[0]: row for row in rows}
        expected = {k: (at, v) for k, at, v, gone in newest.values() if not gone}
        found = self.rows()
        assert found == expected, f"{when}: there is {found}; expected is {expected}"


Check = Callable[[UpsertSubject], None]


def _random_rows(rng: random.Random, count: int = 300) -> list[Row]:
    return [(rng.randrange(12), at, rng.randrange(1_000), rng.random() < 0.2) for at in range(1, count + 1)]


def keeps_the_newest(subject: UpsertSubject) -> None:
    """The same rows several times, in other orders, by attempts that do not know of each other."""
    if not subject.orders:
        return
    rng = random.Random(3)
    rows = _random_rows(rng)
    for number in range(4):
        attempt = subject.attempt("at", f"{number + 1}.0")
        attempt.write(subject.records(rows if number == 0 else rng.sample(rows, 200)))
        attempt.flush()
        subject.check(rows, f"attempt {number + 1}")


def keeps_the_last_without_an_order(subject: UpsertSubject) -> None:
    """Also where values get smaller, and rows are deleted and come again in one request or the next."""
    rows = _random_rows(random.Random(4))
    for number, first in enumerate(range(0, len(rows), 37)):
        attempt = subject.attempt(None, f"1.{number}")
        attempt.write(subject.records(rows[first : first + 37]))
        attempt.flush()
        subject.check(rows[: first + 37], f"{min(first + 37, len(rows))} rows were written")


def deletes(subject: UpsertSubject) -> None:
    """A row that is deleted is gone, and is there again when it comes again."""
    for order in ("at", None) if subject.orders else (None,):
        rows: list[Row] = [(1, 1, 5, False), (2, 2, 6, False), (1, 3, 5, True), (1, 4, 7, False), (2, 5, 6, True)]
        rows = [(k, at + (10 if order is None else 0), v, gone) for k, at, v, gone in rows]
        for number in range(len(rows)):
            attempt = subject.attempt(order, f"{1 if order else 2}.{number}")
            attempt.write(subject.records(rows[number : number + 1]))
            attempt.flush()
            before: list[Row] = [(1, 4, 7, False)] if order is None and subject.orders else []
            subject.check([*before, *rows[: number + 1]], f"{order}, {number}")


def shuts_out_an_attempt_that_was_replaced(subject: UpsertSubject) -> None:
    """What it still sends changes nothing, and one that begins anew with an old number is refused."""
    if not subject.numbers_itself:
        return
    old = subject.attempt(None, "1.0")
    old.write(subject.records([(1, 1, 9, False)]))
    _flush_once(old)
    new = subject.attempt(None, "1.1")
    new.write(subject.records([(1, 2, 3, False)]))
    new.flush()
    with contextlib.suppress(HeadraceError):
        old.write(subject.records([(1, 1, 10, False)]))
        _flush_once(old)
    subject.check([(1, 2, 3, False)], "an attempt that was replaced has written")
    refused = False
    try:
        again = subject.attempt(None, "1.0")
        again.write(subject.records([(1, 1, 11, False)]))
        again.flush()
    except HeadraceError:
        refused = True
    assert refused, "an attempt that was replaced may begin anew"
    subject.check([(1, 2, 3, False)], "an attempt that was replaced has begun anew")


def _flush_once(attempt: UpsertAttempt) -> None:
    for _ in range(3):
        attempt.try_once()


def goes_on_from_a_checkpoint(subject: UpsertSubject) -> None:
    """Rows that wait are in the checkpoint: they are written by the attempt that goes on from it."""
    for order, number in (("at", 1), (None, 2)) if subject.orders else ((None, 2),):
        rows: list[Row] = [(k, 10 * number + k, k, False) for k in range(30)]
        first = subject.attempt(order, f"{number}.0")
        first.write(subject.records(rows))
        kept = first.snapshot()
        second = subject.attempt(order, f"{number}.1", kept)
        second.flush()
        subject.check(rows, f"gone on from a checkpoint, order {order}")


def names_what_is_refused(subject: UpsertSubject) -> None:
    """The error says which record the service refuses, and where it was."""
    if subject.bad is None:
        return
    attempt = subject.attempt("at" if subject.orders else None)
    error = None
    try:
        attempt.write([*subject.records([(1, 1, 1, False)]), subject.bad, *subject.records([(3, 1, 3, False)])])
        attempt.flush()
    except HeadraceError as raised:
        error = raised
    assert error is not None, "a record that the service refuses was passed over in silence"
    assert "2" in error.message, f"the error does not say the key: {error}"
    assert error.hint, f"the error does not say what may be done: {error}"


def passes_over_what_it_is_told_to(subject: UpsertSubject) -> None:
    """What is refused is counted, and what is beside it is written."""
    if subject.bad is None or not subject.orders:
        return
    attempt = subject.attempt("at", on_error="skip")
    attempt.write([*subject.records([(1, 1, 1, False)]), subject.bad, *subject.records([(3, 1, 3, False)])])
    attempt.flush()
    counted = attempt.counters.get("num_records_skipped", 0)
    assert counted == 1, f"one record was refused; num_records_skipped is {counted}"
    subject.check([(1, 1, 1, False), (3, 1, 3, False)], "one record was passed over")


def waits_for_its_service(subject: UpsertSubject) -> None:
    """It is away when rows are sent, and comes back: all are written."""
    if subject.server is None:
        return
    rows: list[Row] = [(k, k + 1, k, False) for k in range(10)]
    attempt = subject.attempt("at", request_timeout="2 s", patience="5 min")
    subject.server.stop()
    attempt.write(subject.records(rows))
    deadline = time.monotonic() + PATIENCE_S
    while not attempt.counters.get("num_entries_retried"):
        assert time.monotonic() < deadline, "what the service did not take is not sent again"
        attempt.try_once()
    subject.server.start()
    attempt.flush()
    subject.check(rows, "the service is back")


UPSERT_CONTRACT: tuple[Check, ...] = (
    keeps_the_newest,
    keeps_the_last_without_an_order,
    deletes,
    shuts_out_an_attempt_that_was_replaced,
    goes_on_from_a_checkpoint,
    names_what_is_refused,
    passes_over_what_it_is_told_to,
    waits_for_its_service,
)
"""All checks, each a function of a fresh `UpsertSubject`; it raises an AssertionError that says what was wrong."""
