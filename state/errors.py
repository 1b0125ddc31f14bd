"""Every error that Headrace raises on purpose, as one tree.

::

    HeadraceError
    |-- UserError                       the program, its functions or its arguments are wrong
    |   |-- ProgramError                the plan cannot be built or would mean nothing
    |   |-- ConfigurationError          an option or argument has an illegal value
    |   |-- TypeMismatchError           a value does not fit its declared or inferred type
    |   |-- UserFunctionError           a user function raised
    |   |-- MalformedRecordError        input that cannot be decoded, under the policy "fail"
    |   |-- StateAccessError            state or timers used where they do not exist
    |   `-- StateQueryError             a question about state that a job does not answer
    |-- ExternalError                   something outside the engine failed
    |   |-- SourceError                 a source cannot be read
    |   |-- SinkError                   a sink cannot be written or committed
    |   |   |-- PossibleLossError       prepared output is gone, or nobody knows whether it was committed
    |   |   `-- SinkFencedError         another attempt or job has taken over the sink
    |   |-- StorageError                the checkpoint store failed
    |   |   |-- AlreadyExistsError      an exclusive create lost the race
    |   |   `-- NotFoundError           a file that must exist does not
    |   |-- StateUnavailableError       state cannot be asked for now: its subtask is not running
    |   |-- SupersededError             another leader has taken over
    |   |-- ClusterUnavailableError     no cluster at the given address, or it went away
    |   `-- NoResourceAvailableError    the slots asked for did not come in time
    |-- CheckpointError
    |   |-- CheckpointNotFoundError     there is no checkpoint where one was named
    |   |-- CheckpointCorruptError      hash, size or structure of a checkpoint is wrong
    |   |-- CheckpointMismatchError     a sound checkpoint that belongs to another job, program or version
    |   `-- SavepointError              a savepoint that was asked for was not taken, and why
    |-- JobError
    |   |-- JobFailedError              the job ended FAILED; `cause_text` is the first failure
    |   |-- JobCanceledError            the job ended CANCELED
    |   `-- JobNotFoundError            the cluster knows no such job
    `-- InternalError                   a broken invariant: a bug in Headrace

The tree lives in the lowest package so that all four can raise from it; ``headrace.engine.errors`` and ``headrace``
re-export it. An error says in lower case which rule was broken and by what value, names operator, subtask, split and
position where it knows them, and survives pickling with all its attributes.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AlreadyExistsError",
    "CheckpointCorruptError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointNotFoundError",
    "ClusterUnavailableError",
    "ConfigurationError",
    "ExternalError",
    "HeadraceError",
    "InternalError",
    "JobCanceledError",
    "JobError",
    "JobFailedError",
    "JobNotFoundError",
    "MalformedRecordError",
    "NoResourceAvailableError",
    "NotFoundError",
    "PossibleLossError",
    "ProgramError",
    "SavepointError",
    "SinkError",
    "SinkFencedError",
    "SourceError",
    "StateAccessError",
    "StateQueryError",
    "StateUnavailableError",
    "StorageError",
    "SupersededError",
    "TypeMismatchError",
    "UserError",
    "UserFunctionError",
]


class HeadraceError(Exception):
    """The root of the tree.

    Args:
        message: The violated rule and the value, lower case, no full stop.
        hint: One sentence with the fix, if there is one to name.
        **context: What the error is about (``operator``, ``subtask``, ``split``, ``position``, ``checkpoint``,
            ``path`` ...); kept as ``context`` and appended to the text.
    """

    domain = "internal"

    def __init__(self, message: str, *, hint: str | None = None, **context: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.context = context

    def __str__(self) -> str:
        where = ", ".join(
            f"{name} {value!r}" if isinstance(value, str) and name != "subtask" else f"{name} {value}"
            for name, value in self.context.items()
        )
        text = f"{self.message} ({where})" if where else self.message
        return f"{text}\nhint: {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.context)


def _rebuild(kind: type[HeadraceError], message: str, hint: str | None, context: dict[str, Any]) -> HeadraceError:
    return kind(message, hint=hint, **context)


class UserError(HeadraceError):
    """The program, its functions or its arguments are wrong."""

    domain = "user"


class ProgramError(UserError):
    """The plan cannot be built, or would mean nothing."""


class ConfigurationError(UserError):
    """An option or an argument has an illegal value."""


class TypeMismatchError(UserError):
    """A value does not fit its declared or inferred type."""


class UserFunctionError(UserError):
    """A user function raised; ``context["traceback"]`` holds its own traceback as text."""

    def __str__(self) -> str:
        shown = {name: value for name, value in self.context.items() if name != "traceback"}
        text = HeadraceError.__str__(UserError(self.message, hint=self.hint, **shown))
        trace = self.context.get("traceback")
        return f"{text}\n{trace}" if trace else text


class MalformedRecordError(UserError):
    """Input that cannot be decoded, met under the policy ``fail``."""


class StateAccessError(UserError):
    """State or timers were used where they do not exist."""


class StateQueryError(UserError):
    """A running job was asked for state that it does not have, or does not answer for."""


class ExternalError(HeadraceError):
    """Something outside the engine failed; a retry may help."""

    domain = "external"


class SourceError(ExternalError):
    """A source cannot be read."""


class SinkError(ExternalError):
    """A sink cannot be written or committed."""


class PossibleLossError(SinkError):
    """Output of a complete checkpoint is gone, or nobody can tell whether it was committed. No retry and no restart
    helps: the job fails, and somebody has to look.
    """


class SinkFencedError(SinkError):
    """A newer attempt of the job, or another job, has taken over the sink: whoever meets this writes no more."""


class StorageError(ExternalError):
    """The checkpoint store failed."""


class AlreadyExistsError(StorageError):
    """An exclusive create found the file in place: somebody else was first."""


class NotFoundError(StorageError):
    """A file that must exist does not."""


class StateUnavailableError(ExternalError):
    """State cannot be asked for now: the subtask that owns it is not running, or there is no checkpoint yet."""


class SupersededError(ExternalError):
    """What a leader wanted to do was refused: another one has taken over. It must do nothing more."""


class ClusterUnavailableError(ExternalError):
    """There is no cluster at the given address, or it went away."""


class NoResourceAvailableError(ExternalError):
    """The slots that a job needs did not come within ``slot_request_timeout``."""


class CheckpointError(HeadraceError):
    """Anything about a checkpoint as a whole."""

    domain = "external"


class CheckpointNotFoundError(CheckpointError):
    """There is no checkpoint where one was named."""


class CheckpointCorruptError(CheckpointError):
    """Size, hash or structure of a checkpoint's file is not what its manifest says."""


class CheckpointMismatchError(CheckpointError):
    """A sound checkpoint that belongs to another job, program or format version."""

    domain = "user"


class SavepointError(CheckpointError):
    """A savepoint that was asked for was not taken: there is none. The job is as it was, unless the text says so."""


class JobError(HeadraceError):
    """How a job ended, as seen by the client."""

    domain = "user"


class JobFailedError(JobError):
    """The job ended FAILED. ``context["cause"]`` is the first failure's text."""


class JobCanceledError(JobError):
    """The job ended CANCELED."""


class JobNotFoundError(JobError):
    """The cluster knows no such job."""


class InternalError(HeadraceError):
    """A broken invariant: a bug in Headrace, never the user's fault."""
