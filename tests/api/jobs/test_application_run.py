"""What a program in application mode finds when it is run again: the ids of its jobs.

Risks: a job that is begun a second time beside the one that was recovered; another job followed in its place; rows that
are lost in silence; a program that ran to its end and is never run again; jobs that end with a program that was
stopped, or was another one.
"""

from __future__ import annotations

import atexit
import signal
import threading
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
        with run.connecting() as is_first:
            assert is_first
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
    with other.connecting() as is_first:
        assert not is_first
    assert cluster.submit(other, "a") != cluster.jobs[0].job_id
    run.close_cluster(is_owner=True)
    with other.connecting() as is_first:
        assert is_first, "it has been closed"


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
    assert first.close_cluster(is_owner=True)
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


def begin_and_store(run, settings, *names):
    """A cluster with jobs of these names, all of which go on."""
    cluster = Cluster()
    for name in names:
        JobStore.open(settings.cluster_uri).put_submission(cluster.submit(run, name), 1, {}, b"program")
    return cluster


def test_jobs_that_the_next_run_has_not_asked_for_yet_do_not_end_with_its_cluster(run_again, settings):
    """As where each part of a program has an environment of its own, which it closes."""
    cluster = begin_and_store(run_again(), settings, "a", "b")
    second = run_again()
    cluster.submit(second, "a")
    assert second.close_cluster(is_owner=False), "it is not this environment's"
    assert not second.close_cluster(is_owner=True)
    cluster.submit(second, "b")
    assert second.close_cluster(is_owner=True)


@pytest.mark.parametrize("options", [{"name": "other"}, {"name": "a", "hands_rows": True}])
def test_a_program_that_is_refused_ends_nothing(run_again, settings, options):
    cluster = begin_and_store(run_again(), settings, "a")
    JobStore.open(settings.cluster_uri).put_end(cluster.jobs[0].job_id, 1, {})
    refused = run_again()
    with pytest.raises(ProgramError):
        cluster.submit(refused, **options)
    assert refused.is_cut_off
    assert not refused.close_cluster(is_owner=True)
    refused.end()
    assert cluster.submit(run_again(), "a") == cluster.jobs[0].job_id


def test_a_program_that_is_stopped_is_not_at_its_end(run_again, settings, monkeypatch):
    exits = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: exits.append(number))  # as of Ray
    try:
        first = run_again()
        cluster = begin_and_store(first, settings, "a")
        with first.connecting():
            pass  # by another environment
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert exits == [signal.SIGTERM]
    assert not first.close_cluster(is_owner=True)
    first.end()
    assert cluster.submit(run_again(), "a") == cluster.jobs[0].job_id


def in_threads(submits):
    errors = []

    def run(submit):
        try:
            submit()
        except ProgramError as error:
            errors.append(error)

    for submit in submits:
        thread = threading.Thread(target=run, args=(submit,))
        thread.start()
        thread.join()
    return errors


def test_jobs_of_threads_are_found_in_any_order(run_again):
    cluster, first = Cluster(), run_again()
    cluster.submit(first, "main")
    assert not in_threads([lambda: cluster.submit(first, "a"), lambda: cluster.submit(first, "b")])
    second = run_again()
    in_order = [lambda name=name: cluster.submit(second, name) for name in ("b", "c", "a")]
    assert not in_threads(in_order)
    cluster.submit(second, "main")
    assert [view.name for view in cluster.jobs] == ["main", "a", "b", "c"]


def test_two_jobs_of_threads_have_two_names(run_again):
    cluster, run = Cluster(), run_again()
    (error,) = in_threads([lambda: cluster.submit(run, "a")] * 2)
    assert "threads of the application submit two jobs 'a'" in str(error)
    assert cluster.submit(run, "a"), "that of the main thread is another one"


def test_one_of_several_threads_starts_the_cluster(run_again, settings, monkeypatch):
    monkeypatch.setattr(ApplicationRun, "_of_directory", {})
    begun, others, firsts = threading.Event(), threading.Barrier(4), []

    def connect():
        others.wait()
        with ApplicationRun.on(settings).connecting() as is_first:
            begun.wait()
            firsts.append(is_first)

    threads = [threading.Thread(target=connect) for _ in range(4)]
    for thread in threads:
        thread.start()
    begun.set()
    for thread in threads:
        thread.join()
    assert sorted(firsts) == [False, False, False, True]
