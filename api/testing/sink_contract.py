"""The checks that every exactly-once sink must pass, for sinks of your own.

Each check plays a piece of a job's life with a `SinkTestHarness`: failures between any two steps, restores from one
checkpoint twice, commits that fail half-way or whose answer gets lost, attempts that go on after they were replaced,
other parallelisms, another job. What a reader of the outside sees must be right at every moment. `OWNED_SINK_CONTRACT`
is for sinks that can do more: tell one owner from another.

Examples:
    A test file for a sink is the sink's place, its sink and what is visible there::

        import pytest
        from headrace.testing.sink_contract import SINK_CONTRACT, SinkSubject

        @pytest.mark.parametrize("check", SINK_CONTRACT, ids=lambda check: check.__name__)
        def test_my_sink(check, tmp_path):
            check(SinkSubject(MySink(tmp_path), lambda: numbers_in(tmp_path), lambda number: {"n": number}))

Source: Flink's ``SinkTestSuiteBase`` and ``TwoPhaseCommitSinkFunctionTest``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from headrace.engine.connectors.contract import (
    SupportsCommitProof,
)
from headrace.engine.errors import (
    CheckpointFallbackError,
    NewerOutputError,
    SinkError,
    SinkFencedError,
)
from headrace.state.reading.program_pickles import dump_program, load_program

from .sinks.subject import CrashError, SinkSubject

__all__ = ["OWNED_SINK_CONTRACT", "SINK_CONTRACT", "SinkSubject"]

Check = Callable[["SinkSubject"], None]


# --------------------------------------------------------------------------------------------------------------- checks
def can_be_pickled(subject: SinkSubject) -> None:
    """The sink travels to the slots."""
    load_program(dump_program(subject.sink)).create_writer()


def shows_nothing_before_its_checkpoint_is_complete(subject: SinkSubject) -> None:
    """Rows appear with the notification, not with the write, and not with the barrier."""
    job = subject.job()
    job.start()
    job.put(1, 2)
    subject.check_visible([], "written")
    job.checkpoint(1, notifies=False)
    subject.check_visible([], "prepared")
    job.put(3)
    job.checkpoint(2, notifies=False)
    job.notify(1)
    subject.check_visible([1, 2], "the first checkpoint is complete")
    job.notify(2)
    subject.check_visible([1, 2, 3], "the second checkpoint is complete")
    job.finish()
    subject.check_visible([1, 2, 3], "the job has ended")


def commits_in_order(subject: SinkSubject) -> None:
    """What a subtask prepared earlier is committed earlier, and a later checkpoint commits what earlier ones left."""
    job = subject.job(2)
    job.start()
    for checkpoint_id in (1, 2, 3):
        for subtask in (0, 1):
            job.put(10 * checkpoint_id + subtask, subtask=subtask)
        job.checkpoint(checkpoint_id, completes=checkpoint_id != 2, notifies=checkpoint_id == 3)
    subject.check_visible([10, 11, 20, 21, 30, 31], "the third checkpoint is complete")
    prepared = [[committable for owner, committable in subject.calls if owner == subtask] for subtask in (0, 1)]
    prepared = [each for each in prepared if each or not hasattr(subject.sink, "create_global_committer")]
    assert {len(each) for each in prepared} == {3}, "a committable for each checkpoint"
    assert all(each.index(one) == index for each in prepared for index, one in enumerate(each)), "each has its own name"


def commits_twice(subject: SinkSubject) -> None:
    """The second commit of a committable changes nothing."""
    job = subject.job()
    job.start()
    job.put(1, 2)
    subject.faults[:] = ["twice"]
    job.checkpoint(1)
    subject.check_visible([1, 2], "committed twice")
    job.put(3)
    job.checkpoint(2)
    job.finish()
    subject.check_visible([1, 2, 3], "the job has ended")


def survives_an_answer_that_gets_lost(subject: SinkSubject) -> None:
    """A commit that was made, and looks as if it had failed, is made again."""
    job = subject.job()
    job.start()
    job.put(1)
    subject.faults[:] = ["answer lost"]
    job.checkpoint(1)
    subject.check_visible([1], "tried again")
    assert len(subject.calls) == 2
    assert job.pauses_ms == [10]


def restores_twice_from_one_checkpoint(subject: SinkSubject) -> None:
    """What a checkpoint holds as prepared appears once, however often it is restored, also when it had appeared."""
    job = subject.job()
    job.start()
    job.put(1, 2)
    job.checkpoint(1, notifies=False)
    for _ in range(3):
        job.start()
        subject.check_visible([1, 2], "restored")
    job.checkpoint(2)
    job.start(checkpoint_id=1)
    subject.check_visible([1, 2], "restored from before its commit")


def restores_into_another_job(subject: SinkSubject) -> None:
    """A job that begins from another one's checkpoint takes over its output, once."""
    job = subject.job(2)
    job.start()
    job.put(1)
    job.put(2, subtask=1)
    job.checkpoint(1, notifies=False)
    for name in ("another", "a third"):
        job.job = name
        job.start(checkpoint_id=1)
        subject.check_visible([1, 2], "restored into another job")
    job.put(3)
    job.checkpoint(2)
    job.finish()
    subject.check_visible([1, 2, 3], "the other job has ended")


def survives_half_a_commit(subject: SinkSubject) -> None:
    """A crash after k of n commits: the others are made at the restore, and none twice."""
    job = subject.job()
    job.start()
    first, count = 0, 4
    for crash_after in range(count):
        for number in range(first, first + count):  # one committable each
            job.put(number)
            job.checkpoint(number + 1, notifies=False)
        first += count
        job.probe = _crashing(f"sink.commit.{crash_after}")
        try:
            job.notify(first)
        except CrashError:
            pass
        else:
            message = "the sink was not asked to commit"
            raise AssertionError(message)
        job.probe = lambda _point: None
        subject.check_visible(range(first - count + crash_after + 1), "in the middle of the commits")
        job.start()
        subject.check_visible(range(first), "restored")
    job.checkpoint(first + 1)
    job.finish()
    subject.check_visible(range(first), "the job has ended")


def _crashing(at: str) -> Callable[[str], None]:
    def probe(point: str) -> None:
        if point == at:
            raise CrashError(point)

    return probe


def forgets_what_no_checkpoint_holds(subject: SinkSubject) -> None:
    """What a dead attempt wrote and prepared behind the restored checkpoint never appears."""
    job = subject.job(2)
    job.start()
    job.put(1)
    job.checkpoint(1)
    job.put(2)
    job.put(3, subtask=1)
    job.checkpoint(2, completes=False)
    job.put(4)
    job.start(1)
    subject.check_visible([1], "restored")
    job.put(2, 3)
    for checkpoint_id in (3, 4):
        job.checkpoint(checkpoint_id)
    job.finish()
    subject.check_visible([1, 2, 3], "the job has ended")


def proves_what_it_has_committed(subject: SinkSubject) -> None:
    """A sink that says it can tell whether anything behind a checkpoint is public tells the truth, to every attempt."""
    if not isinstance(subject.sink, SupportsCommitProof) or not subject.sink.proves_commits:
        return
    job = subject.job(2)
    zombie = job.start()
    job.put(1)
    job.checkpoint(1)
    job.put(2)
    job.checkpoint(2, notifies=False)
    job.start(checkpoint_id=1, is_fallback=True)  # nothing of 2 is public, so going back is safe
    subject.check_visible([1], "gone back to a checkpoint behind which nothing was committed")
    _try(lambda: zombie.notify_complete(2))
    subject.check_visible([1], "a zombie has heard of the checkpoint that was passed over")
    job.put(2, 3)
    job.checkpoint(3)
    for parallelism in (1, 3):
        try:
            job.start(parallelism, checkpoint_id=1, is_fallback=True)
        except CheckpointFallbackError:
            continue
        message = "the sink did not tell that something behind checkpoint 1 is public"
        raise AssertionError(message)
    job.start(checkpoint_id=3, is_fallback=True)
    job.put(4)
    job.checkpoint(4)
    job.finish()
    subject.check_visible([1, 2, 3, 4], "the job has ended")


def shuts_out_zombies(subject: SinkSubject) -> None:
    """An attempt that goes on after it was replaced adds nothing and takes nothing away."""
    job = subject.job(2)
    zombie = job.start()
    job.put(1)
    job.checkpoint(1, notifies=False)
    zombie.write([subject.record(100)], 1)
    job.start()
    job.put(2)
    _try(lambda: zombie.write([subject.record(101)], 0))
    _try(lambda: zombie.notify_complete(1))
    subject.check_visible([1], "a zombie has heard of its checkpoint")
    job.checkpoint(2)
    subject.check_visible([1, 2], "the next checkpoint is complete")
    _try(lambda: zombie.write([subject.record(102)], 1))
    _try(lambda: zombie.snapshot(2))
    _try(lambda: zombie.notify_complete(1))
    job.put(3)
    _try(zombie.close)
    job.checkpoint(3)
    job.finish()
    subject.check_visible([1, 2, 3], "the job has ended")


def gives_no_name_twice(subject: SinkSubject) -> None:
    """What two attempts prepare for checkpoints of one number is not confused: ids may repeat when a leader dies."""
    job = subject.job()
    zombie = job.start()
    job.put(1)
    job.checkpoint(1)
    job.put(100)
    job.checkpoint(2, completes=False)
    job.start()
    job.put(2)
    job.checkpoint(2, notifies=False)
    _try(lambda: zombie.write([subject.record(101)]))
    _try(lambda: zombie.snapshot(2))
    job.notify(2)
    subject.check_visible([1, 2], "the newer attempt's checkpoint is complete")
    job.start()
    job.put(3)
    job.checkpoint(3)
    job.finish()
    subject.check_visible([1, 2, 3], "the job has ended")


def shuts_out_a_late_commit(subject: SinkSubject) -> None:
    """A commit that is under way when its attempt is replaced, and ends late, adds nothing."""
    job = subject.job()
    job.start()
    job.put(1)
    job.holds_work = True
    job.checkpoint(1)
    zombie = job.attempt
    assert zombie is not None
    assert zombie.works, "the commit is under way"
    job.holds_work = False
    job.start()
    subject.check_visible([1], "restored")
    job.put(2)
    _try(zombie.run_work)
    subject.check_visible([1], "the late commit has ended")
    job.checkpoint(2)
    job.finish()
    subject.check_visible([1, 2], "the job has ended")


def _try(action: Callable[[], Any]) -> None:
    """What a zombie does may fail: in that it is shut out, or in that its output, finished or not, is not there."""
    with contextlib.suppress(SinkError):
        action()


def commits_at_another_parallelism(subject: SinkSubject) -> None:
    """Committables of subtasks that are no more, or that are new, are committed once: 2 to 3 to 4 to 1."""
    job = subject.job(2)
    job.start()
    number = 0
    for checkpoint_id, parallelism in enumerate((3, 4, 1), 1):
        for subtask in range(job.parallelism):
            job.put(number, number + 1, subtask=subtask)
            number += 2
        job.checkpoint(checkpoint_id, notifies=False)
        job.start(parallelism)
        subject.check_visible(range(number), f"restored with {parallelism} subtasks")
        job.start()
        subject.check_visible(range(number), "restored again")
    job.put(number)
    job.checkpoint(9)
    job.finish()
    subject.check_visible(range(number + 1), "the job has ended")


def tries_failed_commits_again_and_never_skips_one(subject: SinkSubject) -> None:
    """A commit that fails is tried again; when it fails for good the job does, and the next attempt commits."""
    job = subject.job()
    job.start()
    job.put(1)
    subject.faults[:] = ["fails", "fails"]
    job.checkpoint(1)
    subject.check_visible([1], "tried again")
    job.put(2)
    subject.faults[:] = ["fails"] * 3
    failure: SinkError | None = None
    try:
        job.checkpoint(2)
    except SinkError as error:
        failure = error
    assert failure is not None, "a commit that always fails was passed over"
    assert failure.context["checkpoint"] == 2
    subject.check_visible([1], "failed for good")
    job.start()
    subject.check_visible([1, 2], "restored")


def ends_with_its_last_commit(subject: SinkSubject) -> None:
    """The job is finished when all is visible, and not before; nothing is taken away when it closes."""
    job = subject.job(2)
    job.start()
    job.put(1)
    job.put(2, subtask=1)
    job.holds_work = True
    job.checkpoint(1)
    attempt = job.attempt
    assert attempt is not None
    attempt.finish()
    assert not attempt.is_settled, "finished before its last commit"
    attempt.run_work()
    assert all(operator.is_settled for operator in attempt.operators)
    subject.check_visible([1, 2], "finished")
    job.close()
    attempt.run_work()
    subject.check_visible([1, 2], "closed")


def appears_at_the_end_without_checkpoints(subject: SinkSubject) -> None:
    """A job without checkpoints shows its output when it ends."""
    job = subject.job(2, checkpointing=False)
    job.start()
    job.put(1)
    job.put(2, subtask=1)
    subject.check_visible([], "written")
    job.finish()
    subject.check_visible([1, 2], "the job has ended")


def survives_a_crash_anywhere(subject: SinkSubject) -> None:
    """At every protocol point in turn the job dies once; nothing is lost, doubled or shown too early."""
    number, crash = 0, 0
    job = subject.job(2)
    while True:
        # A round: three records, a checkpoint, three more, a checkpoint; dies at the crash-th point of it.
        base, met = job.complete, 0

        def probe(point: str, crash: int = crash + 1) -> None:
            nonlocal met
            met += 1
            if met == crash:
                raise CrashError(point)

        crash += 1
        job.probe = probe
        start, done = number, {base: number}
        try:
            job.start(1 + crash % 3)
            for checkpoint_id in (base + 1, base + 2):
                for position in range(number, number + 3):
                    job.put(position, subtask=position % job.parallelism)
                number += 3
                done[checkpoint_id] = number
                job.checkpoint(checkpoint_id)
        except CrashError:
            number = done[job.complete]
            seen = list(subject.visible())
            assert set(seen) <= set(range(number)), f"crash {crash}: shown before its checkpoint is complete"
            assert len(set(seen)) == len(seen), f"crash {crash}: doubled"
            assert set(range(start)) <= set(seen), f"crash {crash}: taken back"
            job.probe = lambda _point: None
            job.start()
            subject.check_visible(range(number), f"restored after crash {crash}")
            continue
        break
    assert crash > 10, "hardly anything was passed"
    job.probe = lambda _point: None
    job.finish()
    subject.check_visible(range(number), "the job has ended")


# ------------------------------------------------------------------------------------------ checks of sinks with owners
def shuts_out_a_job_that_was_replaced(subject: SinkSubject) -> None:
    """Two jobs go on from one checkpoint: the one that came first, asleep meanwhile, adds nothing and takes nothing."""
    _replace(subject, 1)


def shuts_out_a_job_of_several_subtasks(subject: SinkSubject) -> None:
    """The same with three subtasks, one of which had something to write."""
    _replace(subject, 3)


def shuts_out_a_job_that_goes_on(subject: SinkSubject) -> None:
    """A job that was replaced while nothing was under way, and takes its next checkpoint, shows nothing of it."""
    first, second = subject.job(2), subject.job(3)
    first.job, second.job = "first", "second"
    first.start()
    first.put(1)
    first.checkpoint(1)
    going_on = first.attempt
    assert going_on is not None
    second.take_snapshot_of(first, 1)
    second.start(checkpoint_id=1)
    for checkpoint_id, subtask in ((2, 0), (3, 1)):
        _try(lambda subtask=subtask: going_on.write([subject.record(100 + subtask)], subtask))  # type: ignore[misc]
        _try(lambda number=checkpoint_id: going_on.snapshot(number))  # type: ignore[misc]
        _try(lambda number=checkpoint_id: going_on.notify_complete(number))  # type: ignore[misc]
        subject.check_visible([1], "the job that was replaced has taken a checkpoint")
    second.put(2)
    second.checkpoint(2)
    second.finish()
    subject.check_visible([1, 2], "the other job has ended")


def _replace(subject: SinkSubject, parallelism: int) -> None:
    first, second = subject.job(parallelism), subject.job(parallelism)
    first.job, second.job = "first", "second"
    first.start()
    first.put(1)
    first.checkpoint(1, notifies=False)
    first.put(2)
    sleeping = first.attempt
    assert sleeping is not None
    first.holds_work = True
    sleeping.snapshot(2)
    sleeping.notify_complete(2)  # the commit of what was prepared is under way when it falls asleep
    second.take_snapshot_of(first, 1)
    second.start(checkpoint_id=1)
    _try(sleeping.run_work)
    subject.check_visible([1], "the job that was replaced has woken up")
    _try(lambda: sleeping.write([subject.record(100)]))
    _try(lambda: sleeping.snapshot(3))
    _try(lambda: sleeping.notify_complete(3))
    _try(sleeping.run_work)
    second.put(2)
    second.checkpoint(2)
    second.finish()
    subject.check_visible([1, 2], "the other job has ended")
    _try(lambda: sleeping.write([subject.record(101)]))
    _try(lambda: sleeping.snapshot(4))
    _try(lambda: sleeping.notify_complete(4))
    _try(sleeping.run_work)
    subject.check_visible([1, 2], "the job that was replaced has gone on behind the other's end")
    first.holds_work = False
    _refused(lambda: first.start(checkpoint_id=1), "a job that was replaced came back")
    subject.check_visible([1, 2], "the job that was replaced was started again")


def notices_output_behind_its_checkpoint(subject: SinkSubject) -> None:
    """A checkpoint that is restored once more, behind whose back output is public, is refused and nothing doubled."""
    job = subject.job(2)
    job.start()
    job.put(1)
    job.checkpoint(1)
    job.put(2, subtask=1)
    job.checkpoint(2)
    job.job = "another"
    _refused(lambda: job.start(3, checkpoint_id=1), "output behind the checkpoint was not noticed")
    job.start(3, checkpoint_id=2)
    job.put(3)
    job.checkpoint(3)
    job.finish()
    for name, checkpoint_id in (("a third", 2), ("a fourth", 1)):
        job.job = name
        _refused(lambda n=checkpoint_id: job.start(1, checkpoint_id=n), "another job's output was not noticed")  # type: ignore[misc]
    subject.check_visible([1, 2, 3], "all were refused")
    job.job = "a fifth"
    job.start(checkpoint_id=3)
    job.put(4)
    job.checkpoint(4)
    job.finish()
    subject.check_visible([1, 2, 3, 4], "the newest checkpoint can be restored")


def _refused(action: Callable[[], Any], otherwise: str) -> None:
    try:
        action()
    except (NewerOutputError, SinkFencedError):
        return
    raise AssertionError(otherwise)


SINK_CONTRACT: tuple[Check, ...] = (
    can_be_pickled,
    shows_nothing_before_its_checkpoint_is_complete,
    commits_in_order,
    commits_twice,
    survives_an_answer_that_gets_lost,
    restores_twice_from_one_checkpoint,
    restores_into_another_job,
    survives_half_a_commit,
    forgets_what_no_checkpoint_holds,
    proves_what_it_has_committed,
    shuts_out_zombies,
    gives_no_name_twice,
    shuts_out_a_late_commit,
    commits_at_another_parallelism,
    tries_failed_commits_again_and_never_skips_one,
    ends_with_its_last_commit,
    appears_at_the_end_without_checkpoints,
    survives_a_crash_anywhere,
)
"""All checks, each a function of a fresh `SinkSubject`; it raises an AssertionError that says when what was wrong."""

OWNED_SINK_CONTRACT: tuple[Check, ...] = (
    shuts_out_a_job_that_was_replaced,
    shuts_out_a_job_of_several_subtasks,
    shuts_out_a_job_that_goes_on,
    notices_output_behind_its_checkpoint,
)
"""Further checks, for sinks that know who owns what they write to, and what of it a checkpoint accounts for: see
`headrace.engine.connectors.contract.SinkHistory`."""
