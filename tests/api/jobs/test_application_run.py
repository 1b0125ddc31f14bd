"""What a program in application mode finds when it is run again: the ids of its jobs.

Risks: a job that is begun a second time beside the one that was recovered; another job followed in its place; rows that
are lost in silence; a program that ran to its end and is never run again.
"""

from __future__ import annotations

import atexit
from types import SimpleNamespace

import pytest

from headrace import HighAvailabilitySettings
from headrace.engine.errors import ConfigurationError, ProgramError
from headrace.jobs.application_run import MAX_JOBS, ApplicationRun
from headrace.state.checkpoints.job_store import JobStore


class Cluster:
    """Knows jobs by name."""

    def __init__(self):
        self.jobs = []

    def submit(self, run, name, *, hands_rows=False):
        job_id = run.next_job(name, self, hands_rows=hands_rows)
        if all(view.job_id != job_id for view in self.jobs):
            self.jobs.append(SimpleNamespace(job_id=job_id, name=name))
        return job_id

    def ask_dispatcher(self, _request, _timeout_ms):
        return self.jobs


@pytest.fixture
def settings(tmp_path):
    return HighAvailabilitySettings(str(tmp_path), "orders")


@pytest.fixture
def run_again(settings, monkeypatch):
    """A process of its own, which has died or ended before."""
    monkeypatch.setattr(atexit, "register", lambda _function: None)

    def begin():
        monkeypatch.setattr(ApplicationRun, "_of_directory", {})
        run = ApplicationRun.on(settings)
        run.begin()
        return run

    return begin


def test_a_program_that_died_finds_its_jobs_and_begins_those_that_are_missing(run_again):
    cluster = Cluster()
    first = run_again()
    before = [cluster.submit(first, name) for name in ("a", "b")]
    second = run_again()
    assert [cluster.submit(second, name) for name in ("a", "b", "c")][:2] == before
    assert [view.name for view in cluster.jobs] == ["a", "b", "c"]
    assert len({view.job_id for view in cluster.jobs}) == 3
    third = run_again()
    assert [cluster.submit(third, name) for name in "abc"] == [view.job_id for view in cluster.jobs]


def test_environments_of_one_program_count_together(run_again, settings):
    run, cluster = run_again(), Cluster()
    cluster.submit(run, "a")
    other = ApplicationRun.on(settings)
    assert other is run
    assert other.has_begun
    assert cluster.submit(other, "a") != cluster.jobs[0].job_id


def test_a_program_that_has_ended_is_another_one_when_it_is_run_again(run_again):
    cluster = Cluster()
    first = run_again()
    cluster.submit(first, "a")
    first.end()
    cluster.submit(run_again(), "a")
    assert len(cluster.jobs) == 2


def test_another_program_does_not_follow_a_job_in_its_place(run_again):
    cluster = Cluster()
    cluster.submit(run_again(), "a")
    with pytest.raises(ProgramError, match="job 1 of the application was 'a' when its process died, and is 'b' now"):
        cluster.submit(run_again(), "b")


def test_rows_that_went_to_a_main_that_died_are_missed_by_name(run_again):
    cluster = Cluster()
    cluster.submit(run_again(), "a", hands_rows=True)
    with pytest.raises(ProgramError, match="rows of job 'a' went to a main\\(\\) that has died"):
        cluster.submit(run_again(), "a", hands_rows=True)
    with_more = run_again()
    cluster.submit(with_more, "a")
    cluster.submit(with_more, "b", hands_rows=True)  # nobody has begun it


def test_more_jobs_than_a_cluster_remembers_are_refused(run_again):
    run, cluster = run_again(), Cluster()
    for number in range(MAX_JOBS):
        run.next_job(str(number), cluster, hands_rows=False)
    with pytest.raises(ProgramError, match=r"1,000 jobs at most"):
        run.next_job("more", cluster, hands_rows=False)


def test_jobs_that_have_not_ended_keep_the_run_alive(run_again, settings):
    """Its cluster could not be shut down, say: they are recovered, and must not be begun beside that."""
    cluster = Cluster()
    first = run_again()
    job_id = cluster.submit(first, "a")
    store = JobStore.open(settings.cluster_uri)
    store.put_submission(job_id, 1, {}, b"program")
    first.end()
    second = run_again()
    assert cluster.submit(second, "a") == job_id
    store.put_end(job_id, 1, {})
    second.end()
    assert cluster.submit(run_again(), "a") != job_id


def test_jobs_of_a_session_that_died_are_not_taken_for_the_programs_own(run_again, settings):
    JobStore.open(settings.cluster_uri).put_submission("f" * 32, 1, {}, b"program")
    with pytest.raises(ConfigurationError, match=f"have not ended and are not this program's: {'f' * 32}"):
        run_again()
