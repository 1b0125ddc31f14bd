"""Where REST servers of this user's clusters are, and what they ask for: a file for each, of the user's own.

The folder is in the user's runtime folder (``XDG_RUNTIME_DIR``), or, where there is none, in the system's folder for
temporary files; nobody else may have made it. A file is written whole, with mode 0600, by the server, and removed when
it ends; one that a killed server has left names a process that is not there any more, and is passed over. Processes
with clusters of the same name, as all local ones have, have a file each.

Source: Jupyter's ``jpserver-*.json``; Ray's ``auth_token``.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import tempfile
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from urllib.parse import quote

from ..errors import ConfigurationError

__all__ = ["StoredAddress", "read_addresses", "runtime_folder", "write_address"]

MAX_FILE_BYTES = 10_000


@dataclass(frozen=True, slots=True)
class StoredAddress:
    """Where a server is.

    Attributes:
        cluster: The cluster's name.
        head: The one of its heads that the server is of.
        url: Without a slash at its end.
        token: Allows everything.
        read_token: Allows looking.
        pid: The server's process.
    """

    cluster: str
    head: str
    url: str
    token: str = field(repr=False)
    read_token: str = field(repr=False)
    pid: int


def runtime_folder() -> Path:
    """Return the folder of this user's servers, made if it is not there.

    Raises:
        ConfigurationError: If somebody else has made it, or others may look into it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    is_there = bool(base) and os.access(base, os.W_OK)
    folder = Path(base) / "headrace" if is_there else Path(tempfile.gettempdir()) / f"headrace-rest-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        message = f"the folder for addresses of REST servers cannot be made: {error}"
        raise ConfigurationError(message, hint="XDG_RUNTIME_DIR names the folder that it is made in") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        message = f"{folder} must be a directory that is this user's alone; tokens are kept there"
        raise ConfigurationError(message, hint=f"remove it, or run 'chmod 700 {folder}'")
    return folder


def write_address(cluster: str, head: str, url: str, token: str, read_token: str) -> Path:
    """Write down where a server of this process is and what it asks for; returns the file.

    What killed servers have left is removed: each program has a cluster of another name, so none would come back to it.

    Raises:
        ConfigurationError: If there is no folder for it.
    """
    folder, name = runtime_folder(), f"rest-{quote(cluster, safe='')}-{quote(head, safe='')}"
    for left in folder.glob("rest-*.json"):
        of = _read(left)
        if of is not None and not _lives(of.pid):
            left.unlink(missing_ok=True)
    path = folder / f"{name}-{os.getpid()}-{secrets.token_hex(2)}.json"
    partial = path.with_suffix(f".{secrets.token_hex(4)}.part")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(StoredAddress(cluster, head, url, token, read_token, os.getpid())), file)
    partial.replace(path)
    return path


def read_addresses() -> list[StoredAddress]:
    """Return the servers of this user on this machine whose processes live, by cluster and URL.

    Raises:
        ConfigurationError: As of `runtime_folder`.
    """
    found = (_read(path) for path in runtime_folder().glob("rest-*.json"))
    living = [address for address in found if address is not None and _lives(address.pid)]
    return sorted(living, key=lambda address: (address.cluster, address.url))


def _read(path: Path) -> StoredAddress | None:
    """One file; None if it is gone or none of ours."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(MAX_FILE_BYTES))
    except (OSError, ValueError):
        return None
    kinds = {one.name: int if one.name == "pid" else str for one in fields(StoredAddress)}
    if not isinstance(content, dict) or {name: type(value) for name, value in content.items()} != kinds:
        return None
    return StoredAddress(**content)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
