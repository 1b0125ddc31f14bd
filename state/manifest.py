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

from headrace.state.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    StorageError,
    TypeMismatchError,
)
from headrace.state.filesystem import join_confined
from headrace.state.identifiers import OperatorId
from headrace.state.snapshot import OperatorSnapshot, StateFile

__all__ = ["CHECKPOINT", "MANIFEST_VERSION", "SAVEPOINT", "Manifest", "OperatorState"]

MANIFEST_VERSION = 1
"""Format of manifests; newer ones are refused."""

CHECKPOINT, SAVEPOINT = "checkpoint", "savepoint"
"""The kinds of manifests; one that names none is a checkpoint's."""

_KINDS = ("keyed", "columnar", "list", "union", "broadcast", "rocksdb", "channel")


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
        max_ids: The highest ids given out when it was taken, by kind, for whoever must not use them again.
        format_version: Of this very format.
        kind: ``checkpoint`` (the job's own) or ``savepoint`` (the user's).
    """

    job_id: str
    job_name: str
    checkpoint_id: int
    epoch: int
    timestamp_ms: int
    operators: tuple[OperatorState, ...]
    enumerators: dict[str, Any] = field(default_factory=dict)
    max_ids: dict[str, int] = field(default_factory=dict)
    format_version: int = MANIFEST_VERSION
    kind: str = CHECKPOINT

    def files(self) -> list[StateFile]:
        """All files of all operators."""
        return [file for state in self.operators for snapshot in state.subtasks for file in snapshot.files]

    def to_json(self) -> bytes:
        """The manifest's file: canonical JSON with its own SHA-256, so that any changed byte shows.

        Raises:
            TypeMismatchError: If an enumerator's state is not a JSON value.
        """
        try:
            body = _canonical(dataclasses.asdict(self))
        except (TypeError, ValueError) as error:
            message = f"a checkpoint's enumerator states and metadata must be JSON values: {error}"
            raise TypeMismatchError(message, checkpoint=self.checkpoint_id) from error
        return _envelope(body)

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Manifest:
        """Read a manifest's file.

        Args:
            data: Its content.
            path: For errors.

        Raises:
            CheckpointCorruptError: If hash or structure are not those of a manifest.
            CheckpointMismatchError: If a newer version wrote it.
        """
        try:
            document = json.loads(data)
            body = _canonical(document["manifest"])
            is_intact = _envelope(body) == data
            version = document["manifest"]["format_version"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            message = f"a checkpoint's manifest cannot be decoded: {error!r}"
            raise CheckpointCorruptError(message, path=path) from error
        if not is_intact:
            message = "a checkpoint's manifest does not have the content it was published with"
            raise CheckpointCorruptError(message, path=path)
        if version != MANIFEST_VERSION:
            message = (
                f"a checkpoint's manifest has format version {version}; this Headrace reads version {MANIFEST_VERSION}"
            )
            raise CheckpointMismatchError(message, path=path)
        try:
            return _manifest(document["manifest"])
        except (ValueError, TypeError, KeyError, AttributeError, StorageError) as error:
            message = f"a checkpoint's manifest has the wrong structure: {error!r}"
            raise CheckpointCorruptError(message, path=path) from error


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _envelope(body: str) -> bytes:
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f'{{"manifest":{body},"sha256":"{digest}"}}\n'.encode()


def _manifest(raw: dict[str, Any]) -> Manifest:
    """Build a manifest, checking every field; raises ValueError, TypeError, KeyError or StorageError."""
    values = dict(raw)
    values["operators"] = tuple(_operator_state(state) for state in values["operators"])
    manifest = Manifest(**values)
    for value in (manifest.checkpoint_id, manifest.epoch, manifest.timestamp_ms):
        _require(_is_count(value), value)
    _require(manifest.checkpoint_id > 0, manifest.checkpoint_id)
    _require(manifest.kind in (CHECKPOINT, SAVEPOINT), manifest.kind)
    _require(all(isinstance(text, str) for text in (manifest.job_id, manifest.job_name)), manifest.job_id)
    _require(isinstance(manifest.enumerators, dict) and isinstance(manifest.max_ids, dict), manifest.max_ids)
    uids = [state.uid for state in manifest.operators]
    _require(len(set(uids)) == len(uids), uids)
    return manifest


def _operator_state(raw: dict[str, Any]) -> OperatorState:
    values = dict(raw)
    values["subtasks"] = tuple(_operator_snapshot(snapshot) for snapshot in values["subtasks"])
    state = OperatorState(**values)
    _require(isinstance(state.uid, str) and isinstance(state.name, str), state.uid)
    _require(_is_count(state.parallelism) and _is_count(state.max_parallelism), state.parallelism)
    subtasks = [snapshot.subtask for snapshot in state.subtasks]
    _require(
        len(set(subtasks)) == len(subtasks) and all(0 <= subtask < state.parallelism for subtask in subtasks), subtasks
    )
    _require(all(snapshot.operator == state.uid for snapshot in state.subtasks), state.uid)
    for snapshot in state.subtasks:
        for file in snapshot.files:
            if file.kind in ("keyed", "columnar"):
                _require(file.key_groups is not None and file.key_groups[1] < state.max_parallelism, file.key_groups)
    return state


def _operator_snapshot(raw: dict[str, Any]) -> OperatorSnapshot:
    values = dict(raw)
    values["files"] = tuple(_state_file(file) for file in values["files"])
    snapshot = OperatorSnapshot(**values)
    _require(_is_count(snapshot.subtask), snapshot.subtask)
    return snapshot


def _state_file(raw: dict[str, Any]) -> StateFile:
    values = dict(raw)
    if values["key_groups"] is not None:
        first, last = values["key_groups"]
        _require(_is_count(first) and _is_count(last) and first <= last, values["key_groups"])
        values["key_groups"] = (first, last)
    file = StateFile(**values)
    _require(isinstance(file.path, str) and isinstance(file.sha256, str), file.path)
    join_confined("", file.path)
    _require(_is_count(file.size), file.size)
    _require(re.fullmatch(r"[0-9a-f]{64}", file.sha256) is not None, file.sha256)
    _require(isinstance(file.state, str) and file.kind in _KINDS and isinstance(file.metadata, dict), file.kind)
    return file


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _require(condition: bool, value: Any) -> None:
    if not condition:
        message = f"impossible value {value!r}"
        raise ValueError(message)
