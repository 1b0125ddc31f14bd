"""The checks that every source must pass, for sources of your own.

Each check plays a piece of a job's life with a `SourceTestHarness`: every record comes exactly once, from whatever
checkpoint and at whatever parallelism the job goes on, whether its server goes away or is slow, and whatever is found
later; watermarks are those of the slowest part, what cannot be decoded is named by its place, and what is bounded ends.
A check that is about something which a source does not have (a server, parts that come later) passes.

Examples:
    A test file for a source is how to fill what it reads, and how to know a record again::

        import pytest
        from headrace.testing.source_contract import SOURCE_CONTRACT, SourceSubject

        @pytest.mark.parametrize("check", SOURCE_CONTRACT, ids=lambda check: check.__name__)
        def test_my_source(check, tmp_path):
            def put(part, numbers):
                write(tmp_path, part, numbers)

            check(SourceSubject(MySource(tmp_path), number=int, put=put))

Source: Flink's ``SourceTestSuiteBase``, ``SourceReaderTestBase``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.engine.columns.records import MAX_WATERMARK
from headrace.engine.errors import HeadraceError, MalformedRecordError, TypeMismatchError
from headrace.engine.operators.event_time import WatermarkStrategy
from headrace.state.reading.program_pickles import dump_program, load_program

from .sources.harness import SourceTestHarness
from .sources.subject import SourceServer, SourceSubject

__all__ = ["SOURCE_CONTRACT", "SourceServer", "SourceSubject"]

Check = Callable[[SourceSubject], None]


def can_be_pickled(subject: SourceSubject) -> None:
    """The source travels to the slots."""
    load_program(dump_program(subject.source)).create_reader()


def gives_every_record_once(subject: SourceSubject) -> None:
    """All splits are found and read, whatever the number of readers: fewer than there are splits, and more."""
    numbers = subject.fill()
    for parallelism in (1, 2, 5):
        with subject.job(parallelism) as job:
            job.start()
            subject.read_all(job, numbers, f"with {parallelism} readers")


def reads_what_is_added(subject: SourceSubject) -> None:
    """Records that come while it reads are read, once."""
    if not subject.grows:
        return
    numbers = subject.fill()
    with subject.job(2) as job:
        job.start()
        for _ in range(3):
            subject.read_all(job, numbers, "before more come")
            numbers += subject.fill(3)
        subject.read_all(job, numbers, "all have come")


def goes_on_from_any_checkpoint(subject: SourceSubject) -> None:
    """From each checkpoint in turn the job goes on with another number of readers, and with another leader."""
    numbers = subject.fill()
    with subject.job(2) as job:
        job.start()
        _go_on_from_each(subject, job, numbers)


def _go_on_from_each(subject: SourceSubject, job: SourceTestHarness, numbers: list[int]) -> None:
    checkpoints = []
    while len(job.rows) < len(numbers):
        before = len(job.rows)
        job.read(lambda before=before: len(job.rows) > before or job.has_ended, 5)  # type: ignore[misc]
        checkpoints.append(job.checkpoint(notifies=not subject.lets_go))
        if job.has_ended:
            break
    subject.check(job, numbers, "before anything failed")
    for index, checkpoint_id in enumerate(checkpoints):
        parallelism = 1 + index % 3
        job.start(parallelism, checkpoint_id=checkpoint_id, fresh=index % 2 == 0)
        job.step(3)
        again = job.checkpoint(notifies=not subject.lets_go)  # of readers that have only just begun
        job.start(checkpoint_id=again)
        subject.read_all(job, numbers, f"gone on from checkpoint {checkpoint_id} with {parallelism} readers")


def forgets_what_no_checkpoint_holds(subject: SourceSubject) -> None:
    """What was read, and put into a checkpoint that never completed, is read again."""
    numbers = subject.fill()
    with subject.job(2) as job:
        job.start()
        job.read(lambda: bool(job.rows), 3)
        job.checkpoint()
        for parallelism in (3, 1, 2):
            for _ in range(3):
                if not job.has_ended:
                    job.step(2)
            complete = job.complete
            job.checkpoint(completes=False)
            job.start(parallelism, checkpoint_id=complete)
        subject.read_all(job, numbers, "restarted three times")


def begins_again_without_a_checkpoint(subject: SourceSubject) -> None:
    """A job that fails before its first checkpoint begins at the beginning."""
    numbers = subject.fill()
    with subject.job(2) as job:
        for _ in range(3):
            job.start(checkpoint_id=0)
            job.step(3)
            job.step(3)
        subject.read_all(job, numbers, "begun three times")


def ends_if_it_is_bounded(subject: SourceSubject) -> None:
    """All readers tell the end of event time, also those that had nothing, and tell it again after a restore."""
    if not subject.source.is_bounded:
        return
    numbers = subject.fill()
    with subject.job(4) as job:
        job.start()
        job.read_to_the_end()
        job.checkpoint()
        for parallelism in (4, 1, 6):
            job.start(parallelism)
            job.read_to_the_end()
            subject.check(job, numbers, "at the end")
            for one in job.subtasks:
                assert one.watermark_ms == MAX_WATERMARK.timestamp_ms, "a reader has not told the end of event time"


def is_idle_until_something_comes(subject: SourceSubject) -> None:
    """Where nothing comes its readers become idle, and no more are when something does."""
    if not subject.grows:
        return
    numbers = subject.fill()
    with subject.job(2, WatermarkStrategy.no_watermarks().with_idleness("2 s")) as job:
        job.start()
        subject.read_all(job, numbers, "filled")
        assert not any(one.is_idle for one in job.subtasks), "idle as soon as nothing more is there"
        job.now_ms += 2_000
        job.read(lambda: all(one.is_idle or one.has_ended for one in job.subtasks))
        numbers += subject.fill(2, [0])
        job.read_number(len(numbers))
        subject.check(job, numbers, "something has come")
        is_idle = all(one.is_idle or one.has_ended for one in job.subtasks)
        assert not is_idle, "idle although something has come"


def has_a_watermark_for_each_split(subject: SourceSubject) -> None:
    """Parts that are ahead of others make nothing late, in one reader or in several, and after a restore."""
    if not subject.reads_side_by_side or subject.num_parts < 2:
        return
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda row, _time: subject.number(row)
    )
    numbers = subject.fill(30)
    for parallelism in (1, 2):
        with subject.job(parallelism, strategy) as job:
            job.start()
            job.read_number(len(numbers) // 2, 4)
            late = sum(one.num_late for one in job.subtasks)
            job.checkpoint()
            job.start(3 - parallelism)
            subject.read_all(job, numbers, "read side by side", 4)
            late += sum(one.num_late for one in job.subtasks)
            assert not late, f"{late} records are behind the watermark of a part that is ahead"
            slowest = min(max(n for n in numbers if subject.part_of(n) == part) for part in range(subject.num_parts))
            told = [one.watermark_ms for one in job.subtasks if one.watermark_ms is not None]
            expected = MAX_WATERMARK.timestamp_ms if subject.source.is_bounded else slowest - 1
            assert told, "there is no watermark although all parts have records"
            assert min(told) == expected, f"the watermark is {min(told)}; that of the slowest part is {expected}"


def finds_what_comes_later(subject: SourceSubject) -> None:
    """A part that was not there at the beginning is read from its first record, once, also by who is restored."""
    if not subject.discovers:
        return
    numbers = subject.fill()
    later = iter(range(subject.num_parts, subject.num_parts + 9))
    with subject.job(2) as job:
        job.start()
        subject.read_all(job, numbers, "what was there")
        for parallelism in (2, 3, 1):
            numbers += subject.fill(6, [next(later)])
            subject.read_all(job, numbers, "a part has come")
            job.checkpoint()
            numbers += subject.fill(6, [next(later)])
            job.start(parallelism, fresh=parallelism == 3)
            subject.read_all(job, numbers, "a part has come while it was down")


# ---------------------------------------------------------------------------------------------------------- bad records
def names_what_it_cannot_decode(subject: SourceSubject) -> None:
    """The error says where the record is, every time, and nothing goes on behind it."""
    if subject.put_bad is None:
        return
    numbers = subject.fill()
    subject.put_bad(0)
    subject.fill()
    places = set()
    with subject.job(1) as job:
        for _ in range(2):
            job.start()
            error = _error_of(job)
            for place in ("operator", "split", "position"):
                assert error.context.get(place) is not None, f"the error does not say the {place}: {error}"
            came = {subject.number(row) for row in job.rows}
            passed = {number for number in came - set(numbers) if subject.part_of(number) == 0}
            assert not passed, f"read on behind a record that cannot be decoded: {sorted(passed)}"
            places.add((error.context["split"], str(error.context["position"])))
    assert len(places) == 1, f"one bad record is at several places: {places}"


def _error_of(job: SourceTestHarness) -> HeadraceError:
    try:
        job.read(lambda: job.has_ended)
    except (MalformedRecordError, TypeMismatchError) as error:
        return error
    message = "a record that cannot be decoded was passed over in silence"
    raise AssertionError(message)


def passes_over_what_it_is_told_to(subject: SourceSubject) -> None:
    """Where bad records are to be passed over, they are counted, and all others come once, from any checkpoint."""
    if subject.passing_over is None or subject.put_bad is None:
        return
    numbers = []
    for _ in range(3):
        numbers += subject.fill(4)
        subject.put_bad(0)
    numbers += subject.fill(4)
    with subject.job(2, source=subject.passing_over) as job:
        job.start()
        subject.read_all(job, numbers, "with bad records")
        counted = sum(one.metrics.counters.get("num_records_skipped", 0) for one in job.subtasks)
        assert counted == 3, f"3 records were passed over; num_records_skipped is {counted}"
        job.start(checkpoint_id=0)
        _go_on_from_each(subject, job, numbers)


# -------------------------------------------------------------------------------------------------------------- servers
def waits_for_a_server_that_is_away(subject: SourceSubject) -> None:
    """Without its server nothing is read, which is nobody's mistake; with it everything is."""
    if subject.server is None:
        return
    numbers = subject.fill()
    subject.server.stop()
    comes_back = threading.Thread(target=subject.server.start)
    with subject.job(2) as job:
        comes_back.start()
        job.try_step()  # while it is away, or still starting
        comes_back.join()
        job.survive(lambda: len(job.rows) >= len(numbers), 5)
        subject.read_all(job, numbers, "the server has come")


def survives_its_server(subject: SourceSubject) -> None:
    """The server goes away and comes back, between checkpoints and before the first: nothing is lost or doubled."""
    if subject.server is None:
        return
    numbers = subject.fill(20)
    with subject.job(2) as job:
        job.start()
        for goal in (len(numbers) // 3, len(numbers) // 2):
            job.survive(lambda goal=goal: len(job.rows) >= goal or job.has_ended, 4)  # type: ignore[misc]
            job.checkpoint()
            job.try_step(4)
            subject.server.stop()
            for _ in range(3):
                if job.subtasks:
                    job.try_step(4)
            subject.server.start()
            if subject.grows:
                numbers += subject.fill(3)
        job.survive(lambda: len(job.rows) >= len(numbers), 4)
        subject.read_all(job, numbers, "the server has come back")


def survives_a_slow_server(subject: SourceSubject) -> None:
    """The server stands still again and again: all comes, in its time."""
    if subject.server is None:
        return
    numbers = subject.fill(20)
    with subject.job(2) as job:
        with subject.in_fits_and_starts():
            for goal in (1, len(numbers) // 2, len(numbers)):
                job.survive(lambda goal=goal: len(job.rows) >= goal or job.has_ended, 4)  # type: ignore[misc]
                job.checkpoint()
        subject.read_all(job, numbers, "the server was slow")


SOURCE_CONTRACT: tuple[Check, ...] = (
    can_be_pickled,
    gives_every_record_once,
    reads_what_is_added,
    goes_on_from_any_checkpoint,
    forgets_what_no_checkpoint_holds,
    begins_again_without_a_checkpoint,
    ends_if_it_is_bounded,
    is_idle_until_something_comes,
    has_a_watermark_for_each_split,
    finds_what_comes_later,
    names_what_it_cannot_decode,
    passes_over_what_it_is_told_to,
    waits_for_a_server_that_is_away,
    survives_its_server,
    survives_a_slow_server,
)
"""All checks, each a function of a fresh `SourceSubject`; it raises an AssertionError that says when what was wrong."""
