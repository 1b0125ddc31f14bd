"""The names of a file sink's parts: what a checkpoint says of them, and what public and staged names say.

::

    [<column>=<value>/]part-<subtask>-<origin>-<owner>-<attempt>-<checkpoint>-<number>.<format>       public
    <subtask>-<owner>-<attempt>-<count>.<format>                                   staged

Names come out of checkpoints, and so are not believed: a committable names a staged file and the public name that its
writer could give to that, and nothing else. That both are of the sink's own origin `OutputDirectory.require_own` sees.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from headrace.engine.errors import CheckpointMismatchError
from headrace.state.checkpoints.manifest_schema import is_count, is_text

from ...formats.folders import FOLDERS

__all__ = ["STAGED_NAME", "Committable", "PublicFile", "Staged", "public_match"]

_MAX_NAME, _MAX_PATH = 255, 4_096
_NUMBER, _NAME = "[0-9]{5,18}", "[0-9a-f]{12}"
_FORMATS = "(?:parquet|orc|avro|csv|jsonl|seq)"
_PART = rf"(?P<owner>{_NAME})-(?P<attempt>[0-9]+_[0-9]+)"
STAGED_NAME = re.compile(rf"(?P<subtask>{_NUMBER})-{_PART}-{_NUMBER}\.(?P<format>{_FORMATS})")
_PUBLIC_NAME = re.compile(
    rf"part-(?P<subtask>{_NUMBER})-(?P<origin>{_NAME})-{_PART}-(?P<checkpoint>{_NUMBER})-{_NUMBER}\.(?P<format>{_FORMATS})"
)
_SAME_IN_BOTH = ("subtask", "owner", "attempt", "format")
"""What the staged name of a part and its public one have in common."""
# Of version 1: paths, with a name of the attempt, and no owner.
_OLD_STAGED = re.compile(
    rf"(?P<root>.*)/(?P<name>\.staging/{_NAME}/(?P<subtask>{_NUMBER})-(?P<attempt>{_NAME})-{_NUMBER}\.(?P<format>{_FORMATS}))",
    re.DOTALL,
)
_OLD_PUBLIC = re.compile(
    rf"(?P<root>.*)/(?P<name>part-(?P<subtask>{_NUMBER})-(?P<attempt>{_NAME})-{_NUMBER}-{_NUMBER}\.(?P<format>{_FORMATS}))",
    re.DOTALL,
)


@dataclass(frozen=True)
class Committable:
    """A closed part: names within the directory, and how large it is.

    Attributes:
        location: The directory, as the sink that prepared it was told.
        staged: Its name in the staging directory; of version 1 with the directories in front.
        final: Its public name.
        size: Bytes.
        rows: Records.
    """

    location: str
    staged: str
    final: str
    size: int
    rows: int

    def to_state(self) -> dict[str, Any]:
        """As a checkpoint holds it."""
        return asdict(self)

    @classmethod
    def of(cls, state: Any) -> Committable:
        """Read what a checkpoint holds.

        Raises:
            CheckpointMismatchError: If it is not what a file sink prepares, or names anything but a staged file and
                the public one, in its directory or folders ``name=value`` of it, that its writer could make of it.
        """
        try:
            location, staged, final = state["location"], state["staged"], state["final"]
            size, rows = state["size"], state["rows"]
        except (KeyError, TypeError) as error:
            message = f"the checkpoint holds prepared output that is not a file sink's: {error!r}"
            raise CheckpointMismatchError(message) from error
        texts, numbers = (location, staged, final), (size, rows)
        if not all(is_text(text) and "\0" not in text for text in texts) or not all(map(is_count, numbers)):
            message = "the checkpoint holds prepared output that is not a file sink's"
            raise CheckpointMismatchError(message)
        if max(map(len, (staged.rpartition("/")[2], *final.split("/")))) > _MAX_NAME or len(final) > _MAX_PATH:
            message = "the checkpoint holds prepared output whose name no file has"
            raise CheckpointMismatchError(message, staged=staged[:_MAX_NAME], final=final[:_MAX_NAME])
        if _agree(STAGED_NAME.fullmatch(staged), public_match(final), _SAME_IN_BOTH):
            return cls(location, staged, final, size, rows)
        old_staged, old_final = _OLD_STAGED.fullmatch(staged), _OLD_PUBLIC.fullmatch(final)
        if _agree(old_staged, old_final, ("root", "subtask", "attempt", "format")):
            assert old_staged is not None
            assert old_final is not None
            return cls(location, old_staged["name"], old_final["name"], size, rows)
        message = "the checkpoint holds prepared output outside of the sink's directory"
        shown = {"staged": staged, "final": final, "directory": location}
        raise CheckpointMismatchError(message, **{name: text[:_MAX_NAME] for name, text in shown.items()})


def public_match(path: str) -> re.Match[str] | None:
    """Return what the name of a public file says, by its place in the directory; None if it is no file sink's."""
    folders, _, name = path.rpartition("/")
    return _PUBLIC_NAME.fullmatch(name) if not folders or FOLDERS.fullmatch(folders) else None


def _agree(staged: re.Match[str] | None, final: re.Match[str] | None, names: tuple[str, ...]) -> bool:
    if staged is None or final is None:
        return False
    return all(staged[name] == final[name] for name in names)


class PublicFile(NamedTuple):
    """What the name of a public file of a file sink says; it begins with the folders that the file is in."""

    name: str
    subtask: int
    origin: str
    owner: str
    checkpoint_id: int


class Staged(NamedTuple):
    """What the name of a staged file says."""

    subtask: int
    owner: str
    attempt: str
