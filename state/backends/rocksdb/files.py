"""Files of a state database: into a snapshot and out of one.

A snapshot is RocksDB's own checkpoint, a directory of hard links, made in the synchronous part. Its sorted files
(SST) are immutable; each becomes a part of its own, which is stored once and named by every later checkpoint that
still holds it. Everything else (manifest, CURRENT, options) is small and goes into one more part, the *frame*, a
MessagePack map from name to content that every checkpoint writes anew. The frame's metadata say which states there
are, and under which id; they also name the sorted files, so that one that is missing shows before anything is opened.

A restore opens the database of the subtask that overlaps most with the new key groups, deletes the ranges that are no
longer owned, and copies owned ranges out of the others, in batches: memory is bounded whatever the state's size.

Source: Flink's ``RocksIncrementalSnapshotStrategy``, ``RocksDBIncrementalRestoreOperation`` (and FLIP-334's clipping).
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgpack

from ...checkpoints.snapshot import FileKind, RestoredPart, SnapshotPart, StateFile
from ...errors import CheckpointCorruptError, CheckpointMismatchError, StorageError
from ...files.local_directories import LocalDirectory, LocalFile
from ...keyed.kinds import layout_of_kind
from ...keys.hashing import hash_key
from ...keys.key_classes import has_renamed_classes
from ...keys.key_groups import KeyGroupRange
from .database import Database, SlotMemory, new_batch
from .row_encoding import encode_key, original_key, split_namespace

__all__ = [
    "FORMAT_VERSION",
    "RestoredDatabase",
    "copy_owned",
    "copy_renamed",
    "delete_foreign",
    "group_parts",
    "open_restored",
    "snapshot_parts",
]

FORMAT_VERSION = 1
"""Of state databases; a restore refuses newer ones."""
STATE_NAME = "(database)"
"""The state that files of a database are listed under: they hold all keyed states of the subtask."""
_FRAME = "frame"
_BATCH_BYTES = 4 << 20
_MAX_GROUP = 1 << 16
_NAMESPACE = 4
"""Where in a row's key the namespace begins, behind the state's id and the key group."""


# ------------------------------------------------------------------------------------------------------------ snapshots
def snapshot_parts(
    directory: LocalDirectory, names: Sequence[str], facts: Mapping[str, Any], known: Mapping[str, StateFile]
) -> list[SnapshotPart]:
    """Return the parts of a snapshot.

    Args:
        directory: Holds RocksDB's checkpoint.
        names: The files that belong to it.
        facts: Of the frame; without names.
        known: Sorted files that the base checkpoint has stored, by name.

    Returns:
        The frame and the sorted files; nothing if the database is empty.
    """
    sorted_files = [name for name in names if name.endswith(".sst")]
    if not sorted_files:
        return []
    rest = [LocalFile(os.path.join(directory.path, name), directory) for name in names if name not in sorted_files]
    frame = {**facts, "name": _FRAME, "files": sorted_files}
    parts = [SnapshotPart(STATE_NAME, FileKind.DATABASE, frame, functools.partial(_frame_bytes, rest))]
    shared = {fact: facts[fact] for fact in ("format_version", "key_groups", "max_parallelism")}
    for name in sorted_files:
        file = LocalFile(os.path.join(directory.path, name), directory)
        metadata = {**shared, "name": name}
        reused = known.get(name)
        if reused is not None:
            groups = (facts["key_groups"][0], facts["key_groups"][1])
            reused = replace(reused, metadata=metadata, key_groups=groups)
        parts.append(SnapshotPart(STATE_NAME, FileKind.DATABASE, metadata, file.read, file=file, reused=reused))
    return parts


def _frame_bytes(files: Iterable[LocalFile]) -> bytes:
    data: bytes = msgpack.packb({os.path.basename(file.path): file.read() for file in files})
    return data


# -------------------------------------------------------------------------------------------------------------- restore
@dataclass(frozen=True, slots=True)
class RestoredDatabase:
    """The database that one earlier subtask wrote.

    Attributes:
        source_subtask: The subtask.
        facts: Of its frame.
        frame: The frame.
        files: The sorted files, by name.
    """

    source_subtask: int
    facts: dict[str, Any]
    frame: RestoredPart
    files: dict[str, RestoredPart]

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups it holds."""
        return KeyGroupRange(*self.facts["key_groups"])

    @property
    def states(self) -> list[dict[str, Any]]:
        """What its states are, and their ids in it."""
        states: list[dict[str, Any]] = self.facts["states"]
        return states

    @property
    def has_renamed(self) -> bool:
        """Whether rows of it may belong to other key groups by now."""
        return any(map(has_renamed_classes, self.states))

    @property
    def stored(self) -> dict[int, dict[str, StateFile]]:
        """The files that later checkpoints may use again, by checkpoint and name."""
        stored: dict[int, dict[str, StateFile]] = {}
        for name, part in self.files.items():
            if part.stored is not None:
                stored.setdefault(part.stored[0], {})[name] = part.stored[1]
        return stored


def group_parts(
    parts: Iterable[RestoredPart], operator: str, max_parallelism: int, owned: KeyGroupRange
) -> list[RestoredDatabase]:
    """Put the parts of a checkpoint together again, one database per subtask that wrote one.

    Raises:
        CheckpointMismatchError: If they are no databases, of another max parallelism or of a newer format.
        CheckpointCorruptError: If a file is missing.
    """
    frames: dict[int, RestoredPart] = {}
    files: dict[int, dict[str, RestoredPart]] = {}
    for part in parts:
        if part.kind is not FileKind.DATABASE:
            message = "the checkpoint's keyed state is of the heap backend; the program has the backend 'rocksdb'"
            hint = "set the state backend that the checkpoint was taken with"
            raise CheckpointMismatchError(message, hint=hint, operator=operator, state=part.state)
        name = part.metadata.get("name")
        if name == _FRAME:
            frames[part.source_subtask] = part
        else:
            files.setdefault(part.source_subtask, {})[str(name)] = part
    databases = []
    for subtask, frame in sorted(frames.items()):
        facts = frame.metadata
        version = facts.get("format_version")
        if not isinstance(version, int) or version > FORMAT_VERSION:
            message = f"a state database has format version {version}; this Headrace reads up to {FORMAT_VERSION}"
            raise CheckpointMismatchError(message, operator=operator, source_subtask=subtask)
        if facts["max_parallelism"] != max_parallelism:
            there = facts["max_parallelism"]
            message = f"the checkpoint has max parallelism {there}; the operator has {max_parallelism}"
            raise CheckpointMismatchError(message, operator=operator)
        present = files.pop(subtask, {})
        missing = [name for name in facts["files"] if name not in present]
        if missing:
            message = f"a state database lacks files that its frame names: {', '.join(missing)}"
            raise CheckpointCorruptError(message, operator=operator, source_subtask=subtask)
        database = RestoredDatabase(subtask, facts, frame, {name: present[name] for name in facts["files"]})
        if owned.overlaps(*facts["key_groups"]) or database.has_renamed:
            databases.append(database)
    if files:
        message = "a state database has files but no frame"
        raise CheckpointCorruptError(message, operator=operator, source_subtask=min(files))
    return databases


def open_restored(database: RestoredDatabase, path: str, memory: SlotMemory, context: dict[str, Any]) -> Database:
    """Lay out the files of a database in a fresh directory and open it there.

    Raises:
        CheckpointCorruptError: If they are not a database's.
        StorageError: If the disk fails.
    """
    context = {**context, "source_subtask": database.source_subtask}
    frame = database.frame.data if database.frame.file is None else database.frame.file.read()
    try:
        os.mkdir(path, 0o700)
        for name, data in msgpack.unpackb(frame).items():
            _write(os.path.join(path, _frame_name(name, data)), data)
        for name, part in database.files.items():
            target = os.path.join(path, _sorted_name(name))
            if part.file is None:
                _write(target, part.data)
            else:
                _link(part.file.path, target)
    except (ValueError, TypeError, AttributeError, RecursionError, struct.error, msgpack.UnpackException) as error:
        message = f"the frame of a state database cannot be decoded: {error!r}"
        raise CheckpointCorruptError(message, **context) from error
    except OSError as error:
        message = f"could not lay out a state database: {error.strerror or error}"
        raise StorageError(message, **context, path=path) from error
    try:
        return Database(path, memory, is_restored=True, context=context)
    except StorageError as error:
        if "Corruption" in error.message or "Invalid argument" in error.message:
            message = f"a state database of the checkpoint cannot be opened: {error.message}"
            raise CheckpointCorruptError(message, **context) from error
        raise


_FRAME_NAME = re.compile(r"CURRENT|IDENTITY|(MANIFEST|OPTIONS)-[0-9]{1,20}|[0-9]{1,20}\.log|rocksdict-config\.json")
_SORTED_NAME = re.compile(r"[0-9]{1,20}\.sst")
_CURRENT = re.compile(rb"MANIFEST-[0-9]{1,20}\n")


def _frame_name(name: Any, data: Any) -> str:
    """A file's name as RocksDB gives them, of a file that it may have: never a way out of the directory."""
    if not isinstance(name, str) or not isinstance(data, bytes) or _FRAME_NAME.fullmatch(name) is None:
        message = f"impossible file {name!r:.80}"
        raise ValueError(message)
    if name == "CURRENT" and _CURRENT.fullmatch(data) is None:
        message = f"a file CURRENT that names {data[:80]!r}"
        raise ValueError(message)
    return name


def _sorted_name(name: str) -> str:
    if _SORTED_NAME.fullmatch(name) is None:
        message = f"impossible file {name!r:.80}"
        raise ValueError(message)
    return name


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without links
        shutil.copyfile(source, target)


def delete_foreign(database: Database, number: int, owned: KeyGroupRange, state: str) -> None:
    """Delete a keyed state's rows of key groups that are not owned."""
    prefix = number.to_bytes(2, "big")
    if owned.start > 0:
        database.delete_range(prefix + b"\x00\x00", prefix + owned.start.to_bytes(2, "big"), state)
    if owned.end + 1 < _MAX_GROUP - 1:
        database.delete_range(prefix + (owned.end + 1).to_bytes(2, "big"), prefix + b"\xff\xff", state)


def copy_owned(
    source: Database, source_number: int, target: Database, target_number: int, owned: KeyGroupRange, state: str
) -> None:
    """Copy a keyed state's rows of owned key groups from one database to another."""
    old, new = source_number.to_bytes(2, "big"), target_number.to_bytes(2, "big")
    batch = new_batch()
    bounds = (old + owned.start.to_bytes(2, "big"), old + (owned.end + 1).to_bytes(2, "big"))
    for row_key, data in source.scan((bounds,), state):
        batch.put(new + row_key[2:], data)
        if batch.size_in_bytes() > _BATCH_BYTES:
            target.write(batch, state)
            batch = new_batch()
    if len(batch):
        target.write(batch, state)


def copy_renamed(
    source: Database,
    target: Database,
    target_number: int,
    form: Mapping[str, Any],
    owned: KeyGroupRange,
    max_parallelism: int,
) -> None:
    """Copy those rows of a keyed state whose keys are owned by the names that their classes have now.

    Args:
        source: Has the rows.
        target: Gets them; it may be the same.
        target_number: The state's id there, under which there are no rows of these keys.
        form: What is said of the state in the source.
        owned: The key groups.
        max_parallelism: How many there are.
    """
    state, old, new = form["name"], form["id"].to_bytes(2, "big"), target_number.to_bytes(2, "big")
    has_entries = layout_of_kind(form["descriptor"]).has_rows_of_parts
    batch = new_batch()
    for row_key, data in source.scan(((old + b"\x00\x00", old + b"\xff\xff"),), state):
        start = split_namespace(row_key, _NAMESPACE)[1] if form["windowed"] else _NAMESPACE
        group, encoded = int.from_bytes(row_key[2:_NAMESPACE], "big"), row_key[start:]
        kept, is_kept = original_key(data)
        if is_kept:  # else it has no class
            key, parts = (kept[0], kept) if has_entries else (kept, (kept,))
            group, encoded = hash_key(key) % max_parallelism, b"".join(map(encode_key, parts))
        if owned.contains(group):
            batch.put(new + group.to_bytes(2, "big") + row_key[_NAMESPACE:start] + encoded, data)
        if batch.size_in_bytes() > _BATCH_BYTES:
            target.write(batch, state)
            batch = new_batch()
    if len(batch):
        target.write(batch, state)
