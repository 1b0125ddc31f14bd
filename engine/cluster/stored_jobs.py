"""What the job store holds of jobs, as data: submissions and last words as JSON, and back.

A new leader reads these for every job of the cluster, before it knows which of them it will run, so reading one runs
nothing. Two parts stay closed: the job's graph, which is opened by the job's own JobManager and no one before, and
accumulators of users' own kinds, which only the client opens that asks for them. The error that a job ended with comes
back if it is one of Headrace's; of any other one its text is in the view's ``failure``.

Source: Flink's ``ArchivedExecutionGraph``, whose errors are ``ErrorInfo``: a text, and bytes that clients open.
"""

from __future__ import annotations

from typing import Any

from headrace.state.checkpoints.manifest_schema import is_count, require
from headrace.state.checkpoints.stored_facts import fields_as_facts, fields_from_facts
from headrace.state.identifiers import JobId

from .. import errors
from ..errors import HeadraceError
from ..functions.accumulators import part_as_facts, part_from_facts
from ..protocol.messages import SubmitJob
from ..protocol.views import JobView

__all__ = ["end_as_facts", "end_from_facts", "submission_as_facts", "submission_from_facts"]

_MAX_SLOTS = 1 << 31

_APART = ("job_id", "job_graph")
"""Of a submission: what is an entry's name, and what stays closed."""

_NOT_FIELDS = ("error", "accumulators")
"""Of a view: what is written apart."""

_KINDS: dict[str, type[HeadraceError]] = {
    name: kind
    for name in errors.__all__
    if isinstance(kind := getattr(errors, name), type) and issubclass(kind, HeadraceError)
}
_OWN_ARGUMENTS = frozenset(("self", "message", "hint"))
"""Names that an error's context cannot have."""


def submission_as_facts(submission: SubmitJob) -> dict[str, Any]:
    """Return all of a submission but the job's graph.

    Raises:
        TypeMismatchError: If a setting is not of its type.
        ValueError: If it would not be read again: better now than when a leader was lost.
    """
    facts = fields_as_facts(submission, omit=_APART)
    submission_from_facts(submission.job_id, facts, b"")
    return facts


def submission_from_facts(job_id: JobId, facts: dict[str, Any], job_graph: bytes) -> SubmitJob:
    """Return the submission.

    Args:
        job_id: The job.
        facts: What `submission_as_facts` gave, or anybody.
        job_graph: Its graph, closed.

    Raises:
        ValueError, HeadraceError: If it is none, or its settings are no good.
    """
    fields = fields_from_facts(SubmitJob, facts, omit=_APART)
    require(is_count(fields["num_slots"], _MAX_SLOTS), "num_slots", fields["num_slots"])
    return SubmitJob(job_id=job_id, job_graph=job_graph, **fields)


def end_as_facts(view: JobView) -> dict[str, Any]:
    """Return a job's last word.

    Raises:
        TypeMismatchError: If a field of the view is not of its type.
        ValueError: If it would not be read again.
    """
    parts = {name: [part_as_facts(part) for part in parts] for name, parts in view.accumulators.items()}
    facts = {
        "view": fields_as_facts(view, omit=_NOT_FIELDS),
        "accumulators": parts,
        "error": _error_as_facts(view.error),
    }
    end_from_facts(view.job_id, facts)
    return facts


def end_from_facts(job_id: JobId, facts: dict[str, Any]) -> JobView:
    """Return the last word of a job.

    Raises:
        ValueError, HeadraceError: If it is none, or another job's.
    """
    _check_names(facts, {"view", "accumulators", "error"})
    stored = facts["accumulators"]
    require(type(stored) is dict and all(type(parts) is list for parts in stored.values()), "accumulators", stored)
    fields = fields_from_facts(JobView, facts["view"], omit=_NOT_FIELDS)
    fields["accumulators"] = {name: tuple(map(part_from_facts, parts)) for name, parts in stored.items()}
    view = JobView(**fields, error=_error_from_facts(facts["error"]))
    require(view.job_id == job_id, "job of a view", view.job_id)
    require(view.state.is_terminal, "state of a job that has ended", view.state)
    return view


def _check_names(facts: dict[str, Any], names: set[str]) -> None:
    require(set(facts) == names, "facts of a job", sorted(facts))


def _error_as_facts(error: BaseException | None) -> dict[str, Any] | None:
    """An error of Headrace's; of a subclass that somebody has made it is the nearest one of the tree."""
    if not isinstance(error, HeadraceError):
        return None
    kind = next(own for own in type(error).__mro__ if _KINDS.get(own.__name__) is own)
    context = {name: _plain(value) for name, value in error.context.items()}
    return {"kind": kind.__name__, "message": error.message, "hint": error.hint, "context": context}


def _plain(value: Any) -> Any:
    if value is None or type(value) is bool or (type(value) is int and value.bit_length() < 64):
        return value
    return str(value)


def _error_from_facts(facts: Any) -> HeadraceError | None:
    if facts is None:
        return None
    require(type(facts) is dict, "error", facts)
    _check_names(facts, {"kind", "message", "hint", "context"})
    kind, message, hint, context = (facts[name] for name in ("kind", "message", "hint", "context"))
    require(type(kind) is str and kind in _KINDS, "kind of an error", kind)
    require(type(message) is str and (hint is None or type(hint) is str), "text of an error", message)
    require(type(context) is dict and _OWN_ARGUMENTS.isdisjoint(context), "context of an error", context)
    require(all(type(value) not in (list, dict) for value in context.values()), "context of an error", context)
    return _KINDS[kind](message, hint=hint, **context)
