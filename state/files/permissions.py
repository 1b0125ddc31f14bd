"""Who else can write where something is trusted: told by owners and modes, as ssh tells it of ``~/.ssh``.

A directory whose content is run, or unpickled, must be its user's alone. It is, if

* it belongs to this user or to root, and nobody else may write to it, and
* nobody else may put another directory in its place: none above it is open to others, unless it keeps them from
  renaming what is not theirs (the sticky bit, as ``/tmp`` has it). Those that a link on the way lies in are above it,
  too. Who owns one above is not asked: the one who names the place trusts them.

A group is nobody else, if nobody else is in it as far as this machine knows: the user's own group of the same name
(which ``umask 002`` is made for), a group without a name (as containers give volumes), and root's. What a directory is
that does not exist yet, is for its maker to decide: only those above it are looked at.

It knows no access control lists, which show in the mode as far as they let anybody write; and no object stores, which
have no modes.

Source: OpenSSH's ``safe_path`` and ``StrictModes``, with Debian's rule for groups of one user.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Callable, Iterable, Iterator

from ..errors import ConfigurationError
from .filesystem import FileSystem
from .local import LocalFileSystem

__all__ = ["require_private", "why_not_own", "why_others_can_write"]

_NOT_THERE = (FileNotFoundError, NotADirectoryError)
"""Or there is a file on the way to it, of which the error of what is made there says more."""

_MAX_LINKS = 40
"""As many as Linux follows."""


def require_private(fs: FileSystem, path: str, what: str, inner: Iterable[str] = ()) -> None:
    """Make sure that what lies in a directory on a local disk was put there by this user, or by root.

    Args:
        fs: The file system; only the local one has modes.
        path: The directory; it need not be there.
        what: It is, for errors.
        inner: Directories in it that may be there, whose content is trusted, too.

    Raises:
        ConfigurationError: If others can write there.
    """
    if not isinstance(fs, LocalFileSystem):
        return
    reason = why_others_can_write(path)
    for directory in inner:
        reason = reason or _told(why_not_own, directory)
    if reason is not None:
        message = f"{what} must be for this user only, as what lies there is run: {reason}"
        hint = (
            "chmod go-w it, or name another place; where that cannot be, have what is stored signed: with a key file"
            " (high-availability.key-file, set_key_file or HEADRACE_CHECKPOINT_KEY_FILE) others can run nothing"
        )
        raise ConfigurationError(message, hint=hint, path=path)


def why_others_can_write(path: str) -> str | None:
    """Return why somebody else could have put something into a directory; None if nobody could.

    Args:
        path: It need not be there.
    """
    return _told(_why_others_can_write, path)


def _told(look: Callable[[str], str | None], path: str) -> str | None:
    """What a look gave; that it cannot be taken is a reason, too."""
    try:
        return look(path)
    except OSError as error:
        return f"{path} cannot be looked at: {error.strerror or error}"


def _why_others_can_write(path: str) -> str | None:
    if (reason := why_not_own(os.path.realpath(path))) is not None:
        return reason
    for above in _directories_on_the_way(path):
        try:
            found = os.stat(above)
        except _NOT_THERE:
            continue
        if not found.st_mode & stat.S_ISVTX and (reason := _why_open(found)) is not None:
            return f"in {above}, which {reason}, others can put another directory in its place"
    return None


def _directories_on_the_way(path: str) -> Iterator[str]:
    """The directories in which a path is followed, those of links in it among them; each without links."""
    current, names, num_links = "/", os.path.abspath(path).split("/"), 0
    while names:
        name = names.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            current = os.path.dirname(current)
            continue
        yield current
        following = os.path.join(current, name)
        if not os.path.islink(following):
            current = following
            continue
        num_links += 1
        if num_links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = os.readlink(following)
        current, names = "/" if target.startswith("/") else current, target.split("/") + names


def why_not_own(path: str) -> str | None:
    """Return why a directory itself is not this user's alone; None if it is, or is not there.

    Raises:
        OSError: If it cannot be looked at.
    """
    try:
        found = os.lstat(path)
    except _NOT_THERE:
        return None
    if not stat.S_ISDIR(found.st_mode):
        return f"{path} is a link or a file"
    if found.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to user {found.st_uid}, not to user {os.geteuid()}"
    reason = _why_open(found)
    return None if reason is None else f"{path} {reason}"


def _why_open(found: os.stat_result) -> str | None:
    mode = f"mode {stat.S_IMODE(found.st_mode):o}"
    if found.st_mode & stat.S_IWOTH:
        return f"can be written by everybody ({mode})"
    if found.st_mode & stat.S_IWGRP and not _is_of_nobody_else(found.st_gid):
        return f"can be written by group {_name_of(found.st_gid)} ({mode})"
    return None


def _is_of_nobody_else(gid: int) -> bool:
    """Whether nobody else is in a group, as far as this machine knows."""
    if gid == 0:
        return True
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return gid in (os.getegid(), *os.getgroups())
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    if group.gr_name != user or any(member != user for member in group.gr_mem):
        return False
    return all(entry.pw_name == user for entry in pwd.getpwall() if entry.pw_gid == gid)


def _name_of(gid: int) -> str:
    try:
        return repr(grp.getgrgid(gid).gr_name)
    except KeyError:
        return str(gid)
