"""What a Dispatcher remembers of jobs that have ended: of the newest all, of older ones the last word, then nothing.

Streams and data sets are counted apart: a program of many short queries pushes no stream out, whose id an application
that is run again may ask for. What is kept in full is bounded by its size, and stages of data sets are part of a job's
last word: a client that lists jobs is sent all of them, by a process that has more to do.

Source: Flink's ``ExecutionGraphInfoStore``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from headrace.state.identifiers import JobId

from .dispatched_jobs import DispatchedJob

__all__ = ["overdue_jobs", "thin_out"]

MAX_ARCHIVED = 1_000
"""Ended jobs remembered, and as many data sets."""

MAX_DETAILED_SUBTASKS = 20_000
"""Of ended jobs that are remembered in full: some fifty megabytes."""

CHARACTERS_OF_SUBTASK = 2_500
"""So much of a plan weighs as much as one of them."""

MAX_STAGES = 5_000
"""Of data sets that have ended, all together: each list of jobs has them."""


def overdue_jobs(jobs: Mapping[JobId, DispatchedJob], is_cleaned_up: Callable[[JobId], bool]) -> list[JobId]:
    """Return which jobs are to be forgotten.

    Args:
        jobs: All jobs, oldest first.
        is_cleaned_up: Whether nothing is being deleted of a job.
    """
    ended: dict[bool, list[JobId]] = {False: [], True: []}
    for job_id, job in jobs.items():
        if job.has_ended and job.host is None and job.ending is None and is_cleaned_up(job_id):
            ended[job.view.is_data_set].append(job_id)
    return [job_id for kind in ended.values() for job_id in kind[: max(len(kind) - MAX_ARCHIVED, 0)]]


def thin_out(jobs: dict[JobId, DispatchedJob]) -> None:
    """Keep what is known of ended jobs in full only of the newest ones."""
    left, stages_left = MAX_DETAILED_SUBTASKS, MAX_STAGES
    for job in reversed(jobs.values()):
        if job.view.is_data_set and not job.has_ended:
            continue  # its program tells all of it again
        if job.details is not None:
            left -= 1 + sum(len(vertex.subtasks) for vertex in job.details.vertices)
            left -= len(job.details.plan) // CHARACTERS_OF_SUBTASK
            job.details = job.details if left >= 0 else None
        if job.view.stages:
            stages_left -= len(job.view.stages)
            if stages_left < 0:
                num_left_out = job.view.num_stages_left_out + len(job.view.stages)
                job.view = replace(job.view, stages=(), num_stages_left_out=num_left_out)
