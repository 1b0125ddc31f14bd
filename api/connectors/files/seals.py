"""Whose directory a file sink's is, where several origins want to be alone in it: seals.

::

    <path>/.staging/first/<number>.json

A seal names an origin (see `headrace.connectors.files.output`), and those that it has replaced. It is made exclusively
under the next number, and the newest one says who has the directory. Invariants:

* An origin makes a seal once. One that has been replaced never has the directory again, whichever subtask asks; so the
  last origin to make a seal has it.
* What an origin makes in the directory comes behind its seal if it overwrites. So who finds, behind a look at the
  directory, that its own seal is still the newest has seen nothing of a later one's.

The seal of an origin that ends in order goes away if it has replaced none, which may still be about to ask; else it
stays, alone. Numbers may begin anew, and one that still knows an old number may make a later one: so the newest is
looked for, and not the next.

Source: Delta Lake's put-if-absent log.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import NamedTuple

from headrace.engine.errors import AlreadyExistsError, ConfigurationError, NotFoundError
from headrace.state.files.filesystem import FileSystem
from headrace.state.reading.stored_json import MAX_RECORD_BYTES, parse_json

__all__ = ["Seal", "Seals", "noted_in", "number_after", "numbered"]

_SEALS = "first"
"""Of the directory of seals, beside those of origins, whose names are longer."""

_MAX_REPLACED = 1_000
"""So many origins are remembered to have been replaced."""

_SEAL = re.compile(r"([0-9]{5,18})\.json")
_MAX_NUMBER = 10**18 - 1
"""Of claims and seals. Nobody gets that far by counting, but others may be able to write to the directory."""


def numbered(fs: FileSystem, directory: str, names: re.Pattern[str]) -> list[int]:
    """Return the numbers of the files directly in a directory whose names are of a kind, lowest first.

    Only as they are written here: a number has one name, of at least five digits.
    """
    start = len(directory) + 1
    found = (names.fullmatch(path[start:]) for path, _ in fs.list_files(directory))
    return sorted(int(match[1]) for match in found if match is not None and match[1] == f"{int(match[1]):05d}")


def number_after(number: int, directory: str) -> int:
    """Return the number of the next claim or seal.

    Raises:
        ConfigurationError: If no number is left.
    """
    if number >= _MAX_NUMBER:
        message = f"nothing of a file sink has number {number}: somebody else has made what says so"
        hint = "remove it; if others can write to the directory, let the sink have another one"
        raise ConfigurationError(message, hint=hint, path=directory)
    return number + 1


def noted_in(fs: FileSystem, path: str) -> dict[str, object] | None:
    """Return what a small file says; nothing if it does not, None if there is none."""
    try:
        content = parse_json(fs.read_bytes(path, MAX_RECORD_BYTES))
    except NotFoundError:
        return None
    except ValueError:
        return {}  # half written where there are no hard links; it will never be anybody's
    return content if isinstance(content, dict) else {}


class Seal(NamedTuple):
    """Who has the directory.

    Attributes:
        number: 0 for none.
        origin: Whose it is; None for nobody's.
        replaced: Who had it before, newest first.
    """

    number: int = 0
    origin: str | None = None
    replaced: tuple[str, ...] = ()


class Seals:
    """The seals of a directory, as one origin sees them.

    Args:
        fs: Where the directory is.
        staging: Its staging directory, of all origins.
        origin: This one.
    """

    def __init__(self, fs: FileSystem, staging: str, origin: str) -> None:
        self._fs = fs
        self.directory = f"{staging}/{_SEALS}"
        self._origin = origin

    def newest(self) -> Seal:
        """Return the newest seal."""
        while True:
            number = max(self._numbers(), default=0)
            if number == 0:
                return Seal()
            seal = self._of(number)
            if seal.number:
                return seal
            # it has been deleted in between

    def _of(self, number: int) -> Seal:
        """The seal of that number; none if there is none."""
        for current in range(number, 0, -1):
            noted = noted_in(self._fs, self._path(current))
            if noted is None:
                return Seal() if current == number else Seal(number, "")
            origin, replaced = noted.get("origin"), noted.get("replaced")
            if isinstance(origin, str) and type(replaced) is list:
                known = tuple(map(str, replaced))
                return Seal(current, origin, known) if current == number else Seal(number, "", (origin, *known))
            # half written: it has replaced the one before
        return Seal(number, "") if number else Seal()

    def make_next(self, seal: Seal) -> None:
        """Make a seal of this origin behind another, unless somebody has been faster."""
        replaced = seal.replaced if seal.origin is None else (seal.origin, *seal.replaced)[:_MAX_REPLACED]
        content = {"origin": self._origin, "replaced": list(replaced)}
        with contextlib.suppress(AlreadyExistsError):
            number = number_after(seal.number, self.directory)
            self._fs.create_exclusive(self._path(number), json.dumps(content).encode())

    def take(self) -> bool:
        """Have the newest seal, from whichever origin had it before, unless this origin has made one that was replaced.

        Returns:
            Whether this origin has it; if not, another one has made a later seal.
        """
        while True:
            seal = self.newest()
            if seal.origin == self._origin:
                return True
            if self._origin in seal.replaced:
                return False
            self.make_next(seal)

    def end(self, *, is_alone: bool) -> None:
        """Note that this origin has ended in order.

        Args:
            is_alone: Whether no other one has begun here.
        """
        seal = self.newest()
        if seal.origin != self._origin:
            return
        is_forgotten = is_alone and not seal.replaced
        for number in self._numbers():
            if number < seal.number or (number == seal.number and is_forgotten):
                self._fs.delete(self._path(number))

    def _numbers(self) -> list[int]:
        return numbered(self._fs, self.directory, _SEAL)

    def _path(self, number: int) -> str:
        return f"{self.directory}/{number:05d}.json"
