"""Where a server's address and tokens are kept: a file of the user's own, on the machine that it runs on.

The folder is in the user's runtime folder (``XDG_RUNTIME_DIR``), or, where there is none, in the system's folder for
temporary files; nobody else may have made it. A file is written whole, with mode 0600, and removed when its server
ends.

Source: Jupyter's ``jpserver-*.json``; Ray's ``auth_token``.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import tempfile
from pathlib import Path
from urllib.parse import quote

from headrace.engine.errors import ConfigurationError

from .security import Tokens

__all__ = ["fresh_tokens", "runtime_folder", "write_address"]


def fresh_tokens() -> Tokens:
    """Make tokens that nobody can guess."""
    return Tokens(secrets.token_urlsafe(32), secrets.token_urlsafe(32))


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


def write_address(cluster: str, head: str, url: str, tokens: Tokens) -> Path:
    """Write down where a server is and what it asks for; returns the file.

    Raises:
        ConfigurationError: If there is no folder for it.
    """
    path = runtime_folder() / f"rest-{quote(cluster, safe='')}-{quote(head, safe='')}.json"
    content = {"cluster": cluster, "url": url, "token": tokens.write, "read_token": tokens.read, "pid": os.getpid()}
    partial = path.with_suffix(f".{secrets.token_hex(4)}.part")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file)
    partial.replace(path)
    return path
