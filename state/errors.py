"""Every error that Headrace raises on purpose, as one tree.

::

    HeadraceError
    |-- UserError                       the program, its functions or its arguments are wrong
    |   |-- ProgramError                the plan cannot be built or would mean nothing
    |   |-- ConfigurationError          an option or argument has an illegal value
    |   |-- ConflictingRowsError        several rows of a query have one PRIMARY KEY
    |   |-- TypeMismatchError           a value does not fit its declared or inferred type
    |   |-- UserFunctionError           a user function raised
    |   |-- MalformedRecordError        input that cannot be decoded, under the policy "fail"
    |   |-- StateAccessError            state or timers used where they do not exist
    |   |-- ManagedMemoryError          state in memory needs more than the slot's share
    |   `-- StateQueryError             a question about state that a job does not answer
    |-- ExternalError                   something outside the engine failed
    |   |-- SourceError                 a source cannot be read
    |   |-- SinkError                   a sink cannot be written or committed
    |   |   |-- PossibleLossError       prepared output is gone, or it is unknown whether it was committed
    |   |   |-- NewerOutputError        output is public that the restored checkpoint knows nothing of
    |   |   `-- SinkFencedError         another attempt or job has taken over the sink
    |   |-- StorageError                the checkpoint store failed
    |   |   |-- AlreadyExistsError      an exclusive create lost the race
    |   |   |-- DamagedFileError        what is at a path cannot be the file that was written there
    |   |   `-- NotFoundError           a file that must exist does not
    |   |-- StateUnavailableError       state cannot be asked for now: its subtask is not running
    |   |-- SupersededError             another leader has taken over
    |   |-- ClusterUnavailableError     no cluster at the given address, or it went away
    |   |-- RestRequestError            a cluster's REST server has refused a request
    |   |-- ProcessLostError            a process in which tasks ran is gone
    |   `-- NoResourceAvailableError    the slots asked for did not come in time
    |-- CheckpointError
    |   |-- CheckpointNotFoundError     there is no checkpoint where one was named
    |   |-- CheckpointLostError         one that was complete is gone from the store
    |   |-- CheckpointCorruptError      hash, size or structure of a checkpoint is wrong
    |   |-- CheckpointFallbackError     going on from an older one would write public output again
    |   |-- CheckpointMismatchError     a sound checkpoint that belongs to another job, program or version
    |   `-- SavepointError              a savepoint that was asked for was not taken, and why
    |-- JobError
    |   |-- JobFailedError              the job ended FAILED; its text says why
    |   |-- JobCanceledError            the job ended CANCELED
    |   `-- JobNotFoundError            the cluster knows no such job
    `-- InternalError                   a broken invariant: a bug in Headrace

The tree lives in the lowest package so that all four can raise from it; ``headrace.engine.errors`` and ``headrace``
re-export it. An error says in lower case which rule was broken and by what value, names operator, subtask, split and
position where it knows them, and survives pickling with all its attributes.
"""

from __future__ import annotations

import difflib
import signal
import threading
from collections.abc import Iterable
from typing import Any

from .credentials import masked

__all__ = [
    "AlreadyExistsError",
    "CheckpointCorruptError",
    "CheckpointError",
    "CheckpointFallbackError",
    "CheckpointLostError",
    "CheckpointMismatchError",
    "CheckpointNotFoundError",
    "ClusterUnavailableError",
    "ConfigurationError",
    "ConflictingRowsError",
    "DamagedFileError",
    "ExternalError",
    "HeadraceError",
    "InternalError",
    "JobCanceledError",
    "JobError",
    "JobFailedError",
    "JobNotFoundError",
    "MalformedRecordError",
    "ManagedMemoryError",
    "NewerOutputError",
    "NoResourceAvailableError",
    "NotFoundError",
    "PossibleLossError",
    "ProcessLostError",
    "ProgramError",
    "RestRequestError",
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
    "codes_of",
    "nearest",
    "raise_from_outside",
]


def nearest(name: Any, names: Iterable[Any]) -> str | None:
    """Return a hint with the name that was probably meant; None if none is near."""
    found = difflib.get_close_matches(str(name), [other for other in names if isinstance(other, str)], n=1)
    return f"did you mean {found[0]!r}?" if found else None


class HeadraceError(Exception):
    """The root of the tree.

    Args:
        message: The violated rule and the value, lower case, no full stop.
        hint: One sentence with the fix, if there is one to name.
        **context: What the error is about (``operator``, ``subtask``, ``split``, ``position``, ``checkpoint``,
            ``path`` ...); kept as ``context`` and appended to the text.

    Passwords in any of these are masked, as errors are shown to all who may look at a job.
    """

    domain = "internal"

    def __init__(self, message: str, *, hint: str | None = None, **context: Any) -> None:
        message = masked(message)
        super().__init__(message)
        self.message = message
        self.hint = None if hint is None else masked(hint)
        self.context = {name: _shown(value) for name, value in context.items()}

    @property
    def code(self) -> str:
        """The name of its class in this tree, which stays what it is; docs/guide/errors.md explains each."""
        return next(kind.__name__ for kind in type(self).__mro__ if kind.__module__ == HeadraceError.__module__)

    def __str__(self) -> str:
        where = ", ".join(
            f"{name} {value!r}" if isinstance(value, str) and name not in _AS_THEY_ARE else f"{name} {value}"
            for name, value in self.context.items()
        )
        text = f"{self.message} ({where})" if where else self.message
        return f"{text}\nhint: {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.context)


_AS_THEY_ARE = frozenset(("subtask", "record", "rows", "key", "window", "event_time"))
"""What is shown without quotes: records, keys, windows and event times come as texts."""


def _shown(value: Any) -> Any:
    """A value of an error's context: as it is, or as a masked text if it would show a secret."""
    if value is None or isinstance(value, (int, float)):
        return value
    text = str(value)
    return value if (shown := masked(text)) == text else shown


def _rebuild(kind: type[HeadraceError], message: str, hint: str | None, context: dict[str, Any]) -> HeadraceError:
    return kind(message, hint=hint, **context)


def codes_of(error: BaseException) -> str:
    """Return the codes of an error and of what caused it, as people are told: ``JobFailedError: UserFunctionError``."""
    codes: list[str] = []
    one: BaseException | None = error
    while isinstance(one, HeadraceError) and len(codes) < _MOST_CODES:
        codes.append(one.code)
        one = one.__cause__
    return ": ".join(dict.fromkeys(codes))


_MOST_CODES = 4


def raise_from_outside(error: BaseException) -> None:
    """Raise what strikes the code it came out of from outside again: Ctrl-C of the driver, a simulated death.

    Code that calls users' functions catches ``BaseException`` and asks this first. All else is the doing of that code,
    ``SystemExit`` and ``KeyboardInterrupt`` included, and is its failure: nothing that a function raises may end the
    thread that happens to run it. What comes from outside says so by an attribute ``strikes_from_outside``.
    """
    is_signal = isinstance(error, KeyboardInterrupt) and _is_ctrl_c_at_large()
    if is_signal or getattr(error, "strikes_from_outside", False):
        raise error


def _is_ctrl_c_at_large() -> bool:
    """Whether Python's own handler may raise in the midst of anything in this thread: the signal was not put off."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


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


class ConflictingRowsError(UserError):
    """Several rows of a query have one PRIMARY KEY of the table that they are written into."""


class MalformedRecordError(UserError):
    """Input that cannot be decoded, met under the policy ``fail``."""


class StateAccessError(UserError):
    """State or timers were used where they do not exist."""


class ManagedMemoryError(UserError):
    """State needs more than the slot's share of managed memory. A restart would need as much again: it ends the job."""


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
    """Output of a complete checkpoint is gone, or it is unknown whether it was committed. No retry and no restart
    helps: the job fails, and somebody has to look.
    """


class NewerOutputError(SinkError):
    """Output is public that was made behind the checkpoint which is restored: going on would make it again. No restart
    helps: somebody has to choose.
    """


class SinkFencedError(SinkError):
    """A newer attempt of the job, or another job, has taken over the sink: the job that meets this writes no more."""


class StorageError(ExternalError):
    """The checkpoint store failed."""


class AlreadyExistsError(StorageError):
    """An exclusive create found the file in place: somebody else was first."""


class DamagedFileError(StorageError):
    """What is at a path cannot be the file that was written there: a directory, unreadable blocks, too many bytes."""


class NotFoundError(StorageError):
    """A file that must exist does not."""


class StateUnavailableError(ExternalError):
    """State cannot be asked for now: the subtask that owns it is not running, or there is no checkpoint yet."""


class SupersededError(ExternalError):
    """What a leader wanted to do was refused: another one has taken over. It must do nothing more."""


class ClusterUnavailableError(ExternalError):
    """There is no cluster at the given address, or it went away."""


class RestRequestError(ExternalError):
    """A cluster's REST server has refused a request; ``context["status"]`` is that of HTTP."""


class ProcessLostError(ExternalError):
    """A process in which tasks of the job ran is gone, with all that was in it."""


class NoResourceAvailableError(ExternalError):
    """The slots that a job needs did not come within ``slot_request_timeout``."""


class CheckpointError(HeadraceError):
    """Anything about a checkpoint as a whole."""

    domain = "external"


class CheckpointNotFoundError(CheckpointError):
    """There is no checkpoint where one was named."""


class CheckpointLostError(CheckpointError):
    """A checkpoint that was complete is gone from the store, and nothing may go on without it."""


class CheckpointCorruptError(CheckpointError):
    """Size, hash or structure of a checkpoint's file is not what its manifest says."""


class CheckpointFallbackError(CheckpointError):
    """The newest checkpoint is damaged or gone, and going on from an older one would write again what is public."""


class CheckpointMismatchError(CheckpointError):
    """A sound checkpoint that belongs to another job, program or format version."""

    domain = "user"


class SavepointError(CheckpointError):
    """A savepoint that was asked for was not taken: there is none. The job is as it was, unless the text says so."""


class JobError(HeadraceError):
    """How a job ended, as seen by the client."""

    domain = "user"


class JobFailedError(JobError):
    """The job ended FAILED. The failure that ended it is in the text, and its ``__cause__`` where it is known."""


class JobCanceledError(JobError):
    """The job ended CANCELED."""


class JobNotFoundError(JobError):
    """The cluster knows no such job."""


class InternalError(HeadraceError):
    """A broken invariant: a bug in Headrace, never the user's fault."""
