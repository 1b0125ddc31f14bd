"""What a source's reader or enumerator may be beside its contract: one protocol for each, and the check of them all.

An object that has a protocol's methods keeps it, whether it names it or not. `check_source` says where a program's
source has half of one, a method that cannot be called as it will be, or one whose name is nearly right: none of that
would ever be called, in silence. It is asked when the program is written and again where a reader is made.

Source: Flink's ``SourceReader``, ``SplitEnumerator``, ``SupportsHandleExecutionAttemptSourceEvent``.
"""

from __future__ import annotations

import difflib
import inspect
import re
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ..errors import ProgramError
from ..functions.checkpointed import refuse_halves
from .contract import Discovery, EnumeratorContext, SourceReader, Split, SplitEnumerator

__all__ = [
    "EnumeratorProgress",
    "KeepingReader",
    "ListeningEnumerator",
    "ListeningReader",
    "PausingReader",
    "ProgressingEnumerator",
    "SideBySideReader",
    "SnapshottingReader",
    "check_enumerator",
    "check_reader",
    "check_source",
]


# ------------------------------------------------------------------------------------------------------------- readers
@runtime_checkable
class SideBySideReader(SourceReader, Protocol):
    """A reader that may want another bounded split before it has finished those it has."""

    @property
    def wants_split(self) -> bool:
        """Whether it would read another one at once."""
        ...


@runtime_checkable
class PausingReader(SourceReader, Protocol):
    """A reader that can leave out single splits: watermark alignment then does not hold back the whole subtask."""

    def pause_splits(self, split_ids: frozenset[str]) -> None:
        """Leave out exactly these in ``poll`` and ``next_poll_ms`` until the next call."""
        ...


@runtime_checkable
class SnapshottingReader(SourceReader, Protocol):
    """A reader that wants to know for which checkpoint it is asked, to connect it with what it hears of that later."""

    def snapshot_for(self, checkpoint_id: int) -> list[Split]:
        """As ``snapshot``, and called in its place."""
        ...


@runtime_checkable
class KeepingReader(SourceReader, Protocol):
    """A reader that keeps splits which it has read to their end until its enumerator lets them go."""

    @property
    def num_kept(self) -> int:
        """How many these are now; where splits are dealt out they do not count."""
        ...


@runtime_checkable
class ListeningReader(SourceReader, Protocol):
    """A reader that its enumerator sends events to."""

    def handle_source_event(self, event: Any) -> None:
        """Take an event; on the task's thread, between polls."""
        ...


# --------------------------------------------------------------------------------------------------------- enumerators
@dataclass(frozen=True, slots=True)
class EnumeratorProgress:
    """How far a source has come, for an enumerator that wants to know.

    Attributes:
        state: What the last `Discovery` of this job said, also if that was before a restart; None at the beginning.
        is_exhausted: Whether all splits so far have been read to their end.
        parallelism: The number of readers.
        has_found: Whether any split has been found so far.
    """

    state: Any
    is_exhausted: bool
    parallelism: int
    has_found: bool = False


@runtime_checkable
class ProgressingEnumerator(SplitEnumerator, Protocol):
    """An enumerator that goes on from what it has said before. It keeps nothing itself that matters."""

    def discover_from(self, progress: EnumeratorProgress) -> Discovery:
        """As ``discover``, and called in its place; also called as soon as all splits so far are exhausted."""
        ...


@runtime_checkable
class ListeningEnumerator(SplitEnumerator, Protocol):
    """An enumerator that its readers send events to."""

    def handle_source_event(self, subtask: int, event: Any, progress: EnumeratorProgress) -> Discovery:
        """Take an event of a reader; may block, and is never called while another of its methods runs.

        What it raises fails the job's attempt. The discovery that it gives is final only if it says so.
        """
        ...


# --------------------------------------------------------------------------------------------------------------- check
_READER = {
    "open": 1, "add_splits": 1, "poll": 1, "next_poll_ms": 0, "snapshot": 0, "close": 0,
}  # fmt: skip
_READER_OPTIONS = {
    "pause_splits": 1, "snapshot_for": 1, "handle_source_event": 1, "notify_checkpoint_complete": 1,
    "notify_checkpoint_aborted": 1, "initialize_state": 1, "snapshot_state": 1,
}  # fmt: skip
_ENUMERATOR = {"discover": 0}
_ENUMERATOR_OPTIONS = {"discover_from": 1, "handle_source_event": 3}


def check_source(source: Any, name: str) -> None:
    """See that a source, its reader and its enumerator can be called as they will be.

    What cannot be made here, as what it needs is only where the job runs, is checked there.

    Args:
        source: The user's.
        name: Of the operator.

    Raises:
        ProgramError: If something is missing, half, of another signature, or named nearly as something else.
    """
    _check(source, {"create_enumerator": 1, "create_reader": 0}, {}, "a source", name)
    if not isinstance(getattr(source, "is_bounded", None), bool):
        message = f"a source says by is_bounded whether it ends; {type(source).__name__} does not, as True or False"
        raise ProgramError(message, operator=name)
    try:
        reader, enumerator = source.create_reader(), source.create_enumerator(EnumeratorContext(1))
    except Exception:
        return  # told where the job runs, unless it goes well there
    check_reader(reader, name)
    check_enumerator(enumerator, name)


def check_reader(reader: Any, name: str) -> None:
    """See that a source's reader can be called as it will be; raises `ProgramError`."""
    _check(reader, _READER, _READER_OPTIONS, "a source's reader", name)
    for value in ("wants_split", "num_kept"):
        if callable(getattr(type(reader), value, None)):
            message = f"{type(reader).__name__}.{value} must be a property or a value, not a method"
            raise ProgramError(message, operator=name)
    refuse_halves(reader, operator=name)


def check_enumerator(enumerator: Any, name: str) -> None:
    """See that a source's enumerator can be called as it will be; raises `ProgramError`."""
    _check(enumerator, _ENUMERATOR, _ENUMERATOR_OPTIONS, "a source's enumerator", name)
    interval_ms = getattr(enumerator, "discovery_interval_ms", "missing")
    if interval_ms is not None and (isinstance(interval_ms, bool) or not isinstance(interval_ms, int)):
        message = f"an enumerator says by discovery_interval_ms how often to look again, None for once; {interval_ms!r}"
        raise ProgramError(message, operator=name)


def _check(thing: Any, required: dict[str, int], optional: dict[str, int], what: str, name: str) -> None:
    owner = type(thing).__name__
    for method, num_arguments in {**required, **optional}.items():
        found = _method(thing, method)
        if found is None:
            if method in required:
                message = f"{what} has a method {method}; {owner} has not"
                raise ProgramError(message, operator=name)
        elif not _takes(found, num_arguments):
            message = f"{owner}.{method} is called with {num_arguments} arguments; it takes {inspect.signature(found)}"
            raise ProgramError(message, operator=name)
    known = {**required, **optional}
    for attribute in dir(type(thing)):
        if attribute.startswith("_") or attribute in known or not callable(getattr(type(thing), attribute, None)):
            continue
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", attribute).lower()
        near = [snake] if snake in known else difflib.get_close_matches(attribute, known, 1, cutoff=0.9)
        if near and _method(thing, near[0]) is None:
            message = f"{owner}.{attribute} would never be called; {what} has {near[0]}"
            raise ProgramError(message, operator=name)


def _method(thing: Any, name: str) -> Any:
    found = getattr(thing, name, None)
    return found if callable(found) else None


def _takes(method: Any, num_arguments: int) -> bool:
    try:
        inspect.signature(method).bind(*range(num_arguments))
    except TypeError:
        return False
    except ValueError:  # a built-in that does not say
        return True
    return True
