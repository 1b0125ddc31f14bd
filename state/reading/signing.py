"""Keys of a cluster: with one, a checkpoint or a stored job is signed as the cluster's own.

A manifest holds the hash of every file of its checkpoint, so that its signature stands for all of them. With a key a
restore takes no manifest that is not signed with it, and says so before any file of it is opened. A signature says who
wrote a checkpoint, not when: an older checkpoint of the cluster, put back by somebody, is taken.

What is only read where it was written is signed together with its *place*: its cluster or job, and its name. A copy of
it elsewhere is not taken, nor one of another cluster that has the same key. Snapshots may be moved, and jobs may start
from those of others; whose checkpoint it is says the manifest, and a job looks for its own ones.

A key file has a line per key, the id and at least 32 bytes in hex. The first key signs, all are taken: a new key goes
before the old one, which goes when nothing signed with it is needed any more::

    2026-11 6f1e...
    2026-05 09ab...

Source: RFC 2104 (HMAC); NIST SP 800-57 on the rotation of keys.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import re
import stat
from typing import Any

from ..errors import CheckpointMismatchError, ConfigurationError

__all__ = ["KEY_FILE_VARIABLE", "SigningKeys", "key_file_of"]

KEY_FILE_VARIABLE = "HEADRACE_CHECKPOINT_KEY_FILE"
"""The environment variable that names the key file where nothing else does."""

_LINE = re.compile(r"([A-Za-z0-9_.-]{1,64})[ \t]+([0-9A-Fa-f]{64,1024})")
_MAX_BYTES = 1 << 20


def key_file_of(path: str | os.PathLike[str] | None) -> str | None:
    """Return the key file that is named, else that of the environment; None if there is none."""
    named = None if path is None else os.fspath(path)
    return named or os.environ.get(KEY_FILE_VARIABLE) or None


class SigningKeys:
    """The keys of a file.

    Args:
        keys: By their ids; the first one signs.
        path: Where they are from, for errors.
    """

    __slots__ = ("_keys", "_path")

    def __init__(self, keys: dict[str, bytes], path: str) -> None:
        self._keys = keys
        self._path = path

    @classmethod
    def read(cls, path: str) -> SigningKeys:
        """Read a key file.

        Raises:
            ConfigurationError: If it cannot be read, others than its owner can, or it is no key file; never with its
                content.
        """
        hint = "a line for each key: an id and 32 bytes in hex, as `openssl rand -hex 32` gives them; chmod 600"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # do not wait for a pipe
            with open(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise OSError(errno.EINVAL, "not a file")
                text = file.read(_MAX_BYTES).decode("ascii")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not a text"
            message = f"the key file of checkpoints cannot be read: {reason}"
            raise ConfigurationError(message, hint=hint, path=path) from None
        if status.st_mode & 0o077 or status.st_uid not in (os.getuid(), 0):
            message = "the key file of checkpoints must be its user's alone"
            raise ConfigurationError(message, hint=f"chmod 600 {path}", path=path)
        keys: dict[str, bytes] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            match = _LINE.fullmatch(line.strip())
            if match is None or len(match[2]) % 2 or match[1] in keys:
                message = f"line {number} of the key file of checkpoints is no key, or has the id of another one"
                raise ConfigurationError(message, hint=hint, path=path)
            keys[match[1]] = bytes.fromhex(match[2])
        if not keys:
            message = "the key file of checkpoints has no key"
            raise ConfigurationError(message, hint=hint, path=path)
        return cls(keys, path)

    def sign(self, purpose: str, content: bytes, place: tuple[str | int, ...] = ()) -> dict[str, str]:
        """Return the signature of some content, made for one purpose: a JSON object.

        Args:
            purpose: What it is made for.
            content: What it is of.
            place: The only place where it holds; empty if it may be moved.
        """
        key_id, key = next(iter(self._keys.items()))
        return {"hmac_sha256": _digest(key, purpose, place, content), "key": key_id}

    def verify(
        self, purpose: str, content: bytes, signature: Any, what: str, path: str, place: tuple[str | int, ...] = ()
    ) -> None:
        """See that a signature is one of these keys'.

        Args:
            purpose: What it must have been made for.
            content: What it is of.
            signature: What `sign` gave; None for none.
            what: For errors.
            path: For errors.
            place: Where the content was found, as of `sign`.

        Raises:
            CheckpointMismatchError: If it is not.
        """
        hint = f"restore what this cluster has signed; keys are in {self._path}"
        if signature is None:
            message = f"{what} is not signed, and only what is signed is taken"
            raise CheckpointMismatchError(message, hint=hint, path=path)
        key_id = signature.get("key") if isinstance(signature, dict) else None
        key = self._keys.get(key_id) if isinstance(key_id, str) else None
        if key is None:
            message = f"{what} is signed with a key that is not known: {key_id!r:.80}"
            raise CheckpointMismatchError(message, hint=hint, path=path)
        found = signature.get("hmac_sha256")
        expected = _digest(key, purpose, place, content)
        if not isinstance(found, str) or not hmac.compare_digest(found.encode("utf-8", "replace"), expected.encode()):
            elsewhere = ", or is of another place" if place else ""
            message = f"{what} has been changed after it was signed{elsewhere}, or was not signed with key {key_id!r}"
            raise CheckpointMismatchError(message, hint=hint, path=path)

    def __repr__(self) -> str:
        return f"SigningKeys({', '.join(self._keys)})"


def _digest(key: bytes, purpose: str, place: tuple[str | int, ...], content: bytes) -> str:
    where = f" {json.dumps(place)}" if place else ""
    return hmac.new(key, f"headrace {purpose}{where}\n".encode() + content, hashlib.sha256).hexdigest()
