"""The commits of a table of Apache Hudi, in the order in which following reads them.

An instant has the time at which it began. Of two writers the one that began first may complete last, so who goes by
these times alone would pass it over. Tables of version 8 and later say in the name of a commit when it was completed:
that is the order. Older tables do not say it: there the commits end in front of the first one that is still under way.

What was completed long ago is archived, and no longer listed. A position that is in no listing is never guessed at.

Source: Hudi's "Timeline" and technical specification; ``HoodieActiveTimeline``, ``InstantFileNameParserV2``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.engine.errors import SourceError
from headrace.state.files.filesystem import filesystem_for

__all__ = ["BEGINNING", "Commit", "Timeline", "number_of", "read_timeline"]

BEGINNING = 0
"""The position in front of all commits."""

_DIGITS = 17
"""Of a time with milliseconds."""

_BY_COMPLETION = 2
"""The layout of timelines whose names say when a commit was completed."""

_COMPLETED = re.compile(r"(\d{14,17})(?:_(\d{14,17}))?\.(?:commit|deltacommit|replacecommit)")
_PENDING = re.compile(r"(\d{14,17})\.(?:inflight|(?:commit|deltacommit|replacecommit)\.(?:requested|inflight))")


@dataclass(frozen=True, order=True)
class Commit:
    """What one writer has added or changed.

    Attributes:
        number: By which commits are in order: when it was completed, in older tables when it began.
        instant: When it began, which is its name, and what its rows have as ``_hoodie_commit_time``.
    """

    number: int
    instant: str


@dataclass(frozen=True)
class Timeline:
    """The commits that can be followed.

    Attributes:
        commits: In their order.
        is_archived: Whether there were others before them.
        is_by_completion: Whether they are in the order in which they were completed.
        is_cut: Whether there are, or may be, more behind one that is still under way.
    """

    commits: tuple[Commit, ...]
    is_archived: bool
    is_by_completion: bool
    is_cut: bool = False

    @property
    def newest(self) -> int:
        """The position behind all of them."""
        return self.commits[-1].number if self.commits else BEGINNING

    def position(self, start: int, place: Mapping[str, Any]) -> int:
        """Return the position behind a time, or behind the commit of that name.

        Raises:
            SourceError: If commits behind it are archived.
        """
        named = [one.number for one in self.commits if number_of(one.instant) == start]
        before = named or [one.number for one in self.commits if one.number <= start]
        if not before and self.is_archived:
            raise self._gone(start, place)
        return max(before, default=BEGINNING)

    def behind(self, number: int, place: Mapping[str, Any]) -> tuple[Commit, ...]:
        """Return the commits behind a position.

        Raises:
            SourceError: If the table no longer says which they are.
        """
        if number == BEGINNING:
            if self.is_archived:
                raise self._gone(number, place)
            return self.commits
        if number not in {one.number for one in self.commits}:
            if self.is_archived and (not self.commits or number < self.commits[0].number):
                raise self._gone(number, place)
            message = f"the commit that was read last, {number}, is none of the Hudi table's any more"
            hint = "it was rolled back, or another table has its name; read the table anew"
            raise SourceError(message, hint=hint, commit=number, **place)
        return tuple(one for one in self.commits if one.number > number)

    def _gone(self, number: int, place: Mapping[str, Any]) -> SourceError:
        first = self.commits[0].number if self.commits else "none"
        message = f"the Hudi table has archived what came behind position {number}: its first commit is {first} now"
        hint = "hoodie.keep.min.commits says how many stay; read the table anew"
        return SourceError(message, hint=hint, commit=number, **place)


def read_timeline(uri: str, layout: int, archive: str) -> Timeline:
    """List a table's commits.

    Args:
        uri: The table's folder.
        layout: The table's ``hoodie.timeline.layout.version``.
        archive: The name of the folder of archived commits.
    """
    fs, root = filesystem_for(uri)
    folder = f"{root.rstrip('/')}/.hoodie" + ("/timeline" if layout >= _BY_COMPLETION else "")
    names = [path.removeprefix(f"{folder}/") for path, _ in fs.list_files(folder)]
    is_archived = any(name.startswith(f"{archive}/") and not _is_note(name) for name in names)
    completed = {found[1]: found for found in map(_COMPLETED.fullmatch, names) if found}
    commits = sorted(Commit(number_of(found[2] or found[1]), found[1]) for found in completed.values())
    pending = [found[1] for found in map(_PENDING.fullmatch, names) if found and found[1] not in completed]
    if layout >= _BY_COMPLETION or not pending:
        return Timeline(tuple(commits), is_archived, layout >= _BY_COMPLETION)
    whole = [one for one in commits if one.instant < min(pending)]
    return Timeline(tuple(whole), is_archived, is_by_completion=False, is_cut=True)


def number_of(instant: str) -> int:
    """Return a time as a number; old tables have no milliseconds."""
    return int(instant.ljust(_DIGITS, "0"))


def _is_note(name: str) -> bool:
    """Whether a file of the archive is no part of it: checksums, and the version that writers leave there at once."""
    base = name.rpartition("/")[2]
    return base.endswith(".crc") or base.startswith(("_version_", "manifest_"))
