"""What a snapshot says about its operators and states, before any state is read."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FileProblem", "OperatorInfo", "StateInfo"]


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    """One operator of a snapshot.

    Attributes:
        uid: What its state is matched by.
        name: For people.
        parallelism: How many subtasks it had.
        max_parallelism: How many key groups.
        states: The names of its states.
        num_files: How many files they are in.
        num_bytes: Their size.
    """

    uid: str
    name: str
    parallelism: int
    max_parallelism: int
    states: tuple[str, ...]
    num_files: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class StateInfo:
    """One state of an operator.

    Attributes:
        operator: The operator's uid.
        name: The state's name.
        kind: ``value``, ``list``, ``map``, ``reducing``, ``aggregating``; ``table`` and ``columnar`` for state of the
            engine's own operators; ``operator-list``, ``operator-union-list``, ``broadcast`` without a key.
        backend: ``heap`` or ``rocksdb``; ``operator`` without a key.
        windowed: Whether it belongs to windows (timers: to times) as well as to keys.
        value_type: The type of values: the declared one, or what was found by looking; None if neither is known.
        map_key_type: The same of a map's keys.
        key_type: What was found by looking at the keys; None without.
        has_ttl: Whether values have a time to live.
        ttl_ms: The time, if it is known.
        queryable: Under which name a running job answers for it, if it does.
        num_files: How many files it is in.
        num_bytes: Their size.
        shares_files: Whether the operator's other states are in the same files: those of a database.
        num_entries: Values, list elements and map entries; None if that was not counted.
    """

    operator: str
    name: str
    kind: str
    backend: str
    windowed: bool
    value_type: str | None
    map_key_type: str | None
    key_type: str | None
    has_ttl: bool
    ttl_ms: int | None
    queryable: str | None
    num_files: int
    num_bytes: int
    shares_files: bool
    num_entries: int | None


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A file that is not what the manifest says.

    Attributes:
        path: In the snapshot's folder.
        operator: Whose it is.
        state: Which state's.
        reason: What is wrong.
    """

    path: str
    operator: str
    state: str
    reason: str
