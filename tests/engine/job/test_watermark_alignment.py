"""Watermark alignment, from the aligner alone to sources that wait for each other.

Families: oracle (the limit is the lowest watermark that counts, plus the drift), property (whatever messages are lost,
doubled or late, everything is read; and nobody runs ahead by more than the drift and a batch), behaviour of one source
operator by hand.
"""

from __future__ import annotations

import random

import pytest
from campaigns import examples
from control_harness import ControlWorld, Splits, graph, settings, submission, vertex
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from source_harness import MONOTONOUS, Harness, ListReader, ListSource

from headrace.engine.columns.records import MAX_TIMESTAMP, MIN_TIMESTAMP, StreamStatus
from headrace.engine.connectors.sources import PollResult
from headrace.engine.errors import ConfigurationError, ProgramError
from headrace.engine.functions.operator import Operator
from headrace.engine.job.sources.watermark_alignment import AlignmentCoordinator, WatermarkAligner
from headrace.engine.operators.event_time import WatermarkStrategy
from headrace.engine.operators.row_operators import TimestampsAndWatermarksOperator
from headrace.engine.protocol.task_messages import ReportWatermark, WatermarkLimit
from headrace.state.identifiers import ExecutionAttemptId

ALIGNED = MONOTONOUS.with_watermark_alignment("group", 10, 100)


def attempt(vertex_id, subtask=0, number=0):
    return ExecutionAttemptId(1, number, vertex_id, subtask)


class AlignedSource(Operator):
    requests_split = True

    def __init__(self, strategy):
        self.source, self.watermark_strategy = Splits(["a"]), strategy


# -------------------------------------------------------------------------------------------------------------- aligner
@given(st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(-50, 50), st.just(MAX_TIMESTAMP)))))
def test_the_limit_is_the_lowest_watermark_that_counts_plus_the_drift(reports):
    aligner, last = WatermarkAligner(), {}
    for member, watermark_ms in reports:
        aligner.reported(attempt("v", member), "op", watermark_ms)
        last[member] = watermark_ms
        counting = [w for w in last.values() if w is not None and w < MAX_TIMESTAMP]
        assert aligner.limit_ms(7) == (min(counting) + 7 if counting else MAX_TIMESTAMP)


def test_an_ended_member_holds_nobody_back():
    aligner = WatermarkAligner()
    aligner.reported(attempt("v", 0), "op", 5)
    aligner.reported(attempt("v", 1), "op", 50)
    aligner.ended(attempt("v", 0))
    assert aligner.limit_ms(0) == 50


def test_groups_are_apart_and_each_source_has_its_own_drift():
    job_graph = graph(
        vertex("a", 1, AlignedSource(MONOTONOUS.with_watermark_alignment("x", 10))),
        vertex("b", 1, AlignedSource(MONOTONOUS.with_watermark_alignment("x", 100))),
        vertex("c", 1, AlignedSource(MONOTONOUS.with_watermark_alignment("y", 1))),
        vertex("d", 1, AlignedSource(MONOTONOUS)),
    )
    coordinator = AlignmentCoordinator(job_graph)

    def limit(name, watermark_ms):
        answer = coordinator.reported(ReportWatermark(attempt(name), name, 3, watermark_ms))
        return answer if answer is None else (answer.number, answer.limit_ms)

    assert limit("a", 1_000) == (3, 1_010)
    assert limit("b", 500) == (3, 600)
    assert limit("a", 1_000) == (3, 510)
    assert limit("c", 0) == (3, 1)
    assert limit("d", 0) is None
    coordinator.ended(attempt("b"))
    assert limit("a", 1_000) == (3, 1_010)
    coordinator.begin()
    assert limit("b", None) == (3, MAX_TIMESTAMP)


def test_the_job_manager_answers_current_attempts_only():
    job_graph = graph(vertex("a", 1, AlignedSource(ALIGNED)))
    w = ControlWorld(submission(job_graph, settings(attached=False), 1)).run()
    [current] = w.current()
    w.to_jm(ReportWatermark(current, "a", 1, 40))
    w.to_jm(ReportWatermark(current._replace(attempt=7), "a", 1, 0))
    w.to_jm(ReportWatermark(current, "a", 2, 41))
    assert w.messages(WatermarkLimit) == [
        WatermarkLimit(current, "a", 1, 50),
        WatermarkLimit(current, "a", 2, 51),
    ]


# ----------------------------------------------------------------------------------------------------------- one source
class PausableSource(ListSource):
    def create_reader(self):
        self.readers.append(PausableReader(self))
        return self.readers[-1]


class PausableReader(ListReader):
    paused = frozenset()

    def pause_splits(self, split_ids):
        self.paused = split_ids

    def poll(self, max_records):
        held = {split_id: self.splits.pop(split_id) for split_id in self.paused if split_id in self.splits}
        polled = super().poll(max_records) if self.splits else None
        self.splits.update(held)
        assert polled is not None, "polled although all its splits are held back"
        return polled


def report(source):
    """What the task would send now."""
    return source.operator.take_watermark_report(source.now_ms)


def test_before_its_first_limit_a_source_reads_until_it_has_a_watermark():
    source = Harness(strategy=ALIGNED)
    assert report(source) == (1, None)
    source.add("a", *range(0, 100, 10))
    assert source.operator.limit_watermark(1, MAX_TIMESTAMP), "an answer to a subtask that did not count"
    assert source.poll(1) is PollResult.MORE
    assert report(source) == (2, -1), "at once: the first watermark"
    assert source.poll(1) is PollResult.NOTHING
    assert source.operator.limit_watermark(2, 9)
    assert source.poll(1) is PollResult.MORE
    assert report(source) is None
    assert source.output.rows == [0, 10]


def test_a_source_above_its_limit_waits_and_goes_on_when_it_moves():
    source = Harness(strategy=ALIGNED)
    source.add("a", 0, 5, 20, 30, 40)
    source.poll(1)
    number, _ = report(source)
    source.operator.limit_watermark(number, 10)
    results = [source.poll(1) for _ in range(4)]
    assert results == [PollResult.MORE, PollResult.MORE, PollResult.NOTHING, PollResult.NOTHING]
    assert source.output.rows == [0, 5, 20], "one batch beyond"
    assert source.operator.next_poll_ms() == 100, "the next report"
    source.now_ms = 100
    assert report(source) == (2, 19)
    assert not source.operator.limit_watermark(1, 500), "doubled"
    source.operator.limit_watermark(2, 29)
    assert source.poll(1) is PollResult.MORE
    source.operator.limit_watermark(3, 0)
    assert source.poll(1) is PollResult.NOTHING, "a slower source may have come"


def test_a_waiting_source_answers_barriers_and_takes_splits():
    source = Harness(ListSource(is_concurrent=True), ALIGNED)
    source.add("a", 50, 60)
    source.poll(1)
    source.operator.limit_watermark(report(source)[0], 10)
    assert source.poll(1) is PollResult.NOTHING
    assert source.operator.wants_split
    resumed = Harness(ListSource(is_concurrent=True), ALIGNED, parts=source.snapshot())
    assert resumed.poll(1) is PollResult.NOTHING, "its watermark is known, its limit is not"
    assert report(resumed) == (1, 49)
    source.add("b", 1, 2, 3)
    assert source.poll(1) is PollResult.MORE, "another split may go on"


def test_waiting_is_neither_idleness_nor_silence():
    strategy = ALIGNED.with_idleness(100).with_quiet_advance(100)
    source = Harness(strategy=strategy)
    source.add("a", 50, 60)
    source.poll(1)
    source.operator.limit_watermark(report(source)[0], 10)
    for source.now_ms in range(0, 5_000, 20):
        assert source.poll(1) is PollResult.NOTHING
        answered = report(source)
        if answered is not None:
            assert answered[1] == 49
            source.operator.limit_watermark(answered[0], 10)
    assert source.output.statuses == []
    assert source.output.watermarks == [49]


def test_an_idle_source_holds_nobody_back_and_is_read_on():
    source = Harness(ListSource(is_bounded=False), ALIGNED.with_idleness(100))
    source.add("a", 50, *[None] * 40, 60)
    source.poll(1)
    source.operator.limit_watermark(report(source)[0], 60)
    reports = []
    for source.now_ms in range(0, 400, 10):
        source.poll(1)
        answered = report(source)
        if answered is not None:
            reports.append(answered[1])
            source.operator.limit_watermark(answered[0], 60 if answered[1] is not None else MAX_TIMESTAMP)
    assert reports == [None, None, None]
    source.poll(1)
    assert source.output.elements[-2:-1] == [[60]]
    assert StreamStatus(False) in source.output.elements
    assert report(source) == (5, 59), "at once"
    assert source.poll(1) is PollResult.NOTHING


def test_a_reader_that_can_leaves_out_the_splits_that_are_ahead():
    source = Harness(PausableSource(is_concurrent=True), ALIGNED)
    source.add("slow", 1, 2, 3)
    source.add("fast", 100, 200)
    source.poll(1)
    assert report(source) == (1, 0)
    source.operator.limit_watermark(1, 10)
    for _ in range(3):
        source.poll(1)
    assert source.output.rows == [1, 100, 2, 3]
    source.poll(1)  # the slow one ends
    assert source.poll(1) is PollResult.NOTHING, "only the fast one is left"
    source.now_ms = 100
    assert report(source) == (2, 99)
    source.operator.limit_watermark(2, 109)
    source.poll(1)
    assert source.output.rows[-1] == 200


def test_a_reader_that_cannot_waits_for_its_slowest_split():
    source = Harness(ListSource(is_concurrent=True), ALIGNED)
    source.add("slow", 1, 2, 50)
    source.add("fast", 100, 200)
    source.poll(1)
    source.poll(1)
    source.operator.limit_watermark(report(source)[0], 10)
    for _ in range(4):
        source.poll(1)
    assert source.output.rows == [1, 100, 2, 200, 50]
    assert source.poll(1) is PollResult.NOTHING


def test_a_source_without_a_group_has_nothing_to_report():
    source = Harness()
    source.add("a", 1)
    source.poll()
    assert report(source) is None


# ------------------------------------------------------------------------------------------------------------ the group
class Member:
    """A source subtask with its way to the aligner: reports and answers may be lost, doubled, late."""

    def __init__(self, subtask, source):
        self.attempt, self.source, self.mail, self.is_ended = attempt("v", subtask), source, [], False

    def lowest(self):
        return min(
            (t.watermark_ms for t in self.source.operator._trackers.values() if t.watermark_ms != MIN_TIMESTAMP),
            default=None,
        )


@given(
    speeds=st.lists(st.integers(1, 8), min_size=2, max_size=4),
    lengths=st.lists(st.integers(0, 60), min_size=4, max_size=8),
    drift=st.integers(0, 40),
    seed=st.integers(0, 10_000),
    can_pause=st.booleans(),
)
@hypothesis_settings(max_examples=examples(60), deadline=None)
def test_whatever_is_lost_nobody_waits_for_ever_and_everything_is_read(speeds, lengths, drift, seed, can_pause):
    """Splits start together, are read at different speeds, and are handed out one by one from a shared pool."""
    rng = random.Random(seed)
    strategy = MONOTONOUS.with_watermark_alignment("group", drift, 50)
    kind = PausableSource if can_pause else ListSource
    members = [Member(i, Harness(kind(is_concurrent=can_pause), strategy)) for i in range(len(speeds))]
    pool = [(f"s{i}", list(range(i, i + 3 * n, 3))) for i, n in enumerate(lengths)]
    expected = sorted(row for _, rows in pool for row in rows)
    aligner = WatermarkAligner()
    batch = 2
    for now in range(0, 600_000, 10):
        if all(member.is_ended for member in members):
            break
        for member, speed in zip(members, speeds, strict=True):
            source = member.source
            source.now_ms = now
            for number, limit_ms in [m for m in member.mail if rng.random() < 0.7]:
                source.operator.limit_watermark(number, limit_ms)
            member.mail = [m for m in member.mail if rng.random() < 0.3]
            if member.is_ended or rng.randrange(8) >= speed:
                continue
            member.is_ended = source.poll(batch) is PollResult.ENDED
            if source.operator.wants_split:
                source.operator.split_requested()
                if pool:
                    split_id, rows = pool.pop(0)
                    source.add(split_id, *rows)
                else:
                    source.operator.no_more_splits()
            report_now = source.operator.take_watermark_report(now)
            if report_now is not None and rng.random() < 0.8:
                aligner.reported(member.attempt, "op", report_now[1])
                member.mail.append((report_now[0], aligner.limit_ms(drift)))
            if member.is_ended:
                aligner.ended(member.attempt)
    assert all(member.is_ended for member in members), "somebody waits for ever"
    assert sorted(row for member in members for row in member.source.output.rows) == expected


@given(
    slow=st.integers(1, 4),
    drift=st.integers(0, 200),
    max_records=st.integers(1, 5),
    seed=st.integers(0, 10_000),
)
@hypothesis_settings(max_examples=examples(30), deadline=None)
def test_the_drift_is_bounded_by_what_is_allowed_and_one_batch(slow, drift, max_records, seed):
    """Two sources over the same times, one of which is polled far less often; also with lost messages."""
    rng = random.Random(seed)
    strategy = MONOTONOUS.with_watermark_alignment("group", drift, 20)
    members = [Member(i, Harness(strategy=strategy)) for i in range(2)]
    for member in members:
        member.source.add(f"s{member.attempt.subtask}", *range(0, 1_500, 10))
        member.source.operator.split_requested()
        member.source.operator.no_more_splits()
    aligner = WatermarkAligner()
    most = 0
    for now in range(0, 1_000_000, 5):
        for member, share in zip(members, (20, slow), strict=True):
            source = member.source
            source.now_ms = now
            if member.is_ended or (now > 0 and rng.randrange(20) >= share):
                continue
            member.is_ended = source.poll(max_records) is PollResult.ENDED
            if member.is_ended:
                aligner.ended(member.attempt)
            answer = source.operator.take_watermark_report(now)
            if answer is not None and (now == 0 or rng.random() < 0.8):
                aligner.reported(member.attempt, "op", answer[1])
                member.mail.append((answer[0], aligner.limit_ms(drift)))
            while member.mail:
                source.operator.limit_watermark(*member.mail.pop(0))
        fast, slower = (member.lowest() for member in members)
        if not any(member.is_ended for member in members) and fast is not None and slower is not None:
            most = max(most, fast - slower)
        if members[0].is_ended:
            break
    assert members[0].is_ended
    assert most <= drift + 10 * max_records


# ----------------------------------------------------------------------------------------------------------- the wishes
def test_senseless_alignments_are_refused():
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    with pytest.raises(ConfigurationError, match="watermark_group must be a name"):
        strategy.with_watermark_alignment("", 10)
    with pytest.raises(ConfigurationError, match="must not be negative; got '-1 s'"):
        strategy.with_watermark_alignment("g", "-1 s")
    with pytest.raises(ConfigurationError, match="update_interval must be positive; got 0"):
        strategy.with_watermark_alignment("g", "1 s", 0)
    with pytest.raises(ProgramError, match="holds back sources"):
        TimestampsAndWatermarksOperator(strategy.with_watermark_alignment("g", "1 s"))
