"""The manifest of a snapshot: what it consists of, as one canonical JSON file that proves itself by its own SHA-256.

A manifest is all that makes a checkpoint or a savepoint: it names every file with size and hash, and the operators,
key-group ranges and descriptors that the files hold. Its ``kind`` says to whom it belongs: a ``checkpoint`` to its job,
which deletes it when it is superseded; a ``savepoint`` to the user, who alone disposes of it. Both are read alike.

Whatever is read is checked field by field, for a manifest may come from anywhere: a changed byte, a path that leaves
its folder or an impossible number is an error here and never an exception later.

Source: Flink's ``CheckpointMetadata`` and ``MetadataV5Serializer``; ``SnapshotType``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from ..errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    StorageError,
    TypeMismatchError,
)
from ..files.filesystem import join_confined
from ..identifiers import OperatorId
from ..reading.read_limits import MAX_DEPTH
from ..reading.signing import SigningKeys
from ..reading.stored_json import parse_json
from .manifest_schema import (
    MAX_PARALLELISM,
    check_metadata,
    is_count,
    is_counts,
    is_text,
    require,
)
from .snapshot import FileKind, OperatorSnapshot, StateFile

__all__ = ["CHECKPOINT", "MANIFEST_VERSION", "MAX_MANIFEST_BYTES", "SAVEPOINT", "Manifest", "OperatorState"]

MANIFEST_VERSION = 2
"""Format of manifests; newer ones are refused. Those without a plan are of version 1, which knew none."""

_WITHOUT_PLAN = 1

MAX_MANIFEST_BYTES = 1 << 30
"""Of a manifest: some 400 bytes for each file, and rows that its client has not fetched."""

CHECKPOINT, SAVEPOINT = "checkpoint", "savepoint"
"""The kinds of manifests; one that names none is a checkpoint's."""

_PURPOSE = "manifest"
"""What signatures of manifests are made for."""

_KINDS = frozenset(kind.value for kind in FileKind)


@dataclass(frozen=True, slots=True)
class OperatorState:
    """One operator's part of a checkpoint: what each of its subtasks stored.

    Attributes:
        uid: What the state is matched by.
        name: For people.
        parallelism: How many subtasks it had.
        max_parallelism: How many key groups.
        subtasks: At most one snapshot per subtask; those without files may be left out.
    """

    uid: OperatorId
    name: str
    parallelism: int
    max_parallelism: int
    subtasks: tuple[OperatorSnapshot, ...]

    @property
    def has_keys(self) -> bool:
        """Whether it has keyed state: its key groups are then as many for good."""
        return any(file.key_groups is not None for snapshot in self.subtasks for file in snapshot.files)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A complete checkpoint: names every file with size and SHA-256.

    Attributes:
        job_id: The job that took it; also the name of its folder then.
        job_name: For people.
        checkpoint_id: Grows for the whole life of a job, over all its leaders.
        epoch: Of the leader that published it.
        timestamp_ms: When it was triggered, epoch milliseconds UTC.
        operators: The operators with state.
        enumerators: The split enumerators' states by their source's uid, as JSON values.
        max_ids: The highest ids given out when it was taken, by kind, for those that must not use them again.
        format_version: Of this very format.
        kind: ``checkpoint`` (the job's own) or ``savepoint`` (the user's).
        plan: What the job was, for another program that goes on from it: a JSON object that its reader checks. None if
            it says nothing about itself.
    """

    job_id: str
    job_name: str
    checkpoint_id: int
    epoch: int
    timestamp_ms: int
    operators: tuple[OperatorState, ...]
    enumerators: dict[str, Any] = field(default_factory=dict)
    max_ids: dict[str, int] = field(default_factory=dict)
    format_version: int = _WITHOUT_PLAN
    kind: str = CHECKPOINT
    plan: dict[str, Any] | None = None

    def files(self) -> list[StateFile]:
        """Return all files of all operators."""
        return [file for state in self.operators for snapshot in state.subtasks for file in snapshot.files]

    def to_json(self, keys: SigningKeys | None = None) -> bytes:
        """Return the manifest's file: canonical JSON with its own SHA-256, so that any changed byte shows.

        Args:
            keys: Sign it, if there are any.

        Raises:
            TypeMismatchError: If an enumerator's state is not a JSON value.
        """
        try:
            values = dataclasses.asdict(self)
            if self.plan is None:
                del values["plan"]
            else:
                values["format_version"] = MANIFEST_VERSION
            body = _canonical(values)
        except (TypeError, ValueError) as error:
            message = f"a checkpoint's enumerator states and metadata must be JSON values: {error}"
            raise TypeMismatchError(message, checkpoint=self.checkpoint_id) from error
        return _envelope(body, None if keys is None else keys.sign(_PURPOSE, body.encode()))

    @classmethod
    def from_json(cls, data: bytes, path: str, keys: SigningKeys | None = None) -> Manifest:
        """Read a manifest's file.

        Args:
            data: Its content.
            path: For errors.
            keys: With which it must be signed; None takes any.

        Raises:
            CheckpointCorruptError: If hash or structure are not those of a manifest.
            CheckpointMismatchError: If a newer version wrote it, or it is not signed with one of the keys.
        """
        try:
            document = parse_json(data, max_bytes=MAX_MANIFEST_BYTES, max_depth=2 * MAX_DEPTH)
            body = _canonical(document["manifest"])
            signature = document.get("signature")
            is_intact = _envelope(body, signature) == data
            version = document["manifest"]["format_version"]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            message = f"a checkpoint's manifest cannot be decoded: {error!r:.400}"
            raise CheckpointCorruptError(message, path=path) from error
        if not is_intact:
            message = "a checkpoint's manifest does not have the content it was published with"
            raise CheckpointCorruptError(message, path=path)
        if keys is not None:
            keys.verify(_PURPOSE, body.encode(), signature, "a checkpoint's manifest", path)
        if type(version) is not int or not _WITHOUT_PLAN <= version <= MANIFEST_VERSION:
            message = (
                f"a checkpoint's manifest has format version {version!r:.40}; "
                f"this Headrace reads versions {_WITHOUT_PLAN} to {MANIFEST_VERSION}"
            )
            raise CheckpointMismatchError(message, path=path)
        try:
            return _manifest(document["manifest"])
        except (ValueError, TypeError, KeyError, AttributeError, StorageError) as error:
            message = f"a checkpoint's manifest has the wrong structure: {error!r:.400}"
            raise CheckpointCorruptError(message, path=path) from error


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _envelope(body: str, signature: Any = None) -> bytes:
    digest = hashlib.sha256(body.encode()).hexdigest()
    signed = "" if signature is None else f',"signature":{_canonical(signature)}'
    return f'{{"manifest":{body},"sha256":"{digest}"{signed}}}\n'.encode()


def _manifest(raw: dict[str, Any]) -> Manifest:
    """Build a manifest, checking every field; raises ValueError, TypeError, KeyError or StorageError."""
    values = dict(raw)
    values["operators"] = tuple(_operator_state(state) for state in _list(values, "operators"))
    manifest = Manifest(**values)
    for name in ("checkpoint_id", "epoch", "timestamp_ms"):
        require(is_count(getattr(manifest, name)), name, getattr(manifest, name))
    require(manifest.checkpoint_id > 0, "checkpoint_id", manifest.checkpoint_id)
    require(manifest.kind in (CHECKPOINT, SAVEPOINT), "kind", manifest.kind)
    require(is_text(manifest.job_id) and is_text(manifest.job_name), "job", (manifest.job_id, manifest.job_name))
    require(type(manifest.enumerators) is dict, "enumerators", manifest.enumerators)
    require(is_counts(manifest.max_ids), "max_ids", manifest.max_ids)
    require(manifest.plan is None or type(manifest.plan) is dict, "plan", manifest.plan)
    uids = [state.uid for state in manifest.operators]
    require(len(set(uids)) == len(uids), "operators", uids)
    return manifest


def _list(raw: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = raw[name]
    require(type(found) is list and all(type(item) is dict for item in found), name, found)
    return list(found)


def _operator_state(raw: dict[str, Any]) -> OperatorState:
    values = dict(raw)
    values["subtasks"] = tuple(_operator_snapshot(snapshot) for snapshot in _list(values, "subtasks"))
    state = OperatorState(**values)
    require(is_text(state.uid) and is_text(state.name), "operator", (state.uid, state.name))
    require(is_count(state.parallelism, MAX_PARALLELISM + 1), "parallelism", state.parallelism)
    require(is_count(state.max_parallelism, MAX_PARALLELISM + 1), "max_parallelism", state.max_parallelism)
    subtasks = [snapshot.subtask for snapshot in state.subtasks]
    require(len(set(subtasks)) == len(subtasks), "subtasks", subtasks)
    require(all(subtask < state.parallelism for subtask in subtasks), "subtasks", subtasks)
    require(all(snapshot.operator == state.uid for snapshot in state.subtasks), "operator of a subtask", state.uid)
    for snapshot in state.subtasks:
        for file in snapshot.files:
            if file.kind in (FileKind.KEYED, FileKind.COLUMNAR):
                require(file.key_groups is not None, "key_groups", None)
            if file.key_groups is not None:
                require(file.key_groups[1] < state.max_parallelism, "key_groups", file.key_groups)
    return state


def _operator_snapshot(raw: dict[str, Any]) -> OperatorSnapshot:
    values = dict(raw)
    values["files"] = tuple(_state_file(file) for file in _list(values, "files"))
    snapshot = OperatorSnapshot(**values)
    require(is_count(snapshot.subtask), "subtask", snapshot.subtask)
    return snapshot


def _state_file(raw: dict[str, Any]) -> StateFile:
    values = dict(raw)
    if values["key_groups"] is not None:
        first, last = values["key_groups"]
        require(is_count(first) and is_count(last) and first <= last, "key_groups", values["key_groups"])
        values["key_groups"] = (first, last)
    require(type(values["kind"]) is str and values["kind"] in _KINDS, "kind", values["kind"])
    file = StateFile(**{**values, "kind": FileKind(values["kind"])})
    require(is_text(file.path), "path", file.path)
    join_confined("", file.path)
    require(is_count(file.size), "size", file.size)
    require(type(file.sha256) is str and re.fullmatch(r"[0-9a-f]{64}", file.sha256) is not None, "sha256", file.sha256)
    require(is_text(file.state), "state", file.state)
    check_metadata(file.metadata, file.kind)
    return file
