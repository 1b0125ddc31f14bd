"""What the tests of the RocksDB backend share."""

from __future__ import annotations

from headrace.state.checkpoints.snapshot import RestoredPart, StateFile
from headrace.state.identifiers import OperatorId
from headrace.state.keyed.descriptors import ValueStateDescriptor
from headrace.state.keys.key_groups import KeyGroupRange

OPERATOR = OperatorId("counter")
VALUE = ValueStateDescriptor("value")
ALL = KeyGroupRange(0, 127)


def written(parts, subtask=0):
    return [RestoredPart(part.state, part.kind, part.metadata, part.write(), subtask) for part in parts]


def stored(parts, checkpoint_id):
    """What the store would say of a snapshot's files."""
    return [
        part.reused
        or StateFile(f"chk-{checkpoint_id}/{part.metadata['name']}", 1, "0" * 64, part.state, part.kind, part.metadata)
        for part in parts
    ]


def restored(make, *snapshots, owned=ALL, **options):
    backend = make(owned, **options)
    backend.restore([part for subtask, parts in enumerate(snapshots) for part in written(parts, subtask)])
    return backend
