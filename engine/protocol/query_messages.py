"""The conversation of queryable state: a running job's keyed state, asked for by key from outside.

A client asks the JobManager where an operator's subtasks are (`LocateState`), and then each slot that owns one of its
keys (`QueryState`). Which states there are to be asked for, and of what type their keys are, a slot says as well
(`DescribeStates`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.state.identifiers import ExecutionAttemptId, OperatorId
from headrace.state.keyed.contract import Namespace
from headrace.state.values.types import Schema

from ..kernel.machine import Address

__all__ = [
    "DescribeStates",
    "LocateState",
    "QueryState",
    "StateAnswered",
    "StateDescription",
    "StateLocated",
    "StateOwner",
    "StatesDescribed",
]


@dataclass(frozen=True, slots=True)
class LocateState:
    """A client asks a JobManager where an operator's subtasks are. Answer: `StateLocated` or `RequestFailed`.

    Attributes:
        operator: The operator's uid, or its name.
    """

    operator: str


@dataclass(frozen=True, slots=True)
class StateOwner:
    """One subtask, where it runs now."""

    attempt: ExecutionAttemptId
    address: Address


@dataclass(frozen=True, slots=True)
class StateLocated:
    """Where an operator's subtasks are.

    Attributes:
        operator: Its uid.
        max_parallelism: How many key groups it has.
        owners: Its subtasks in order; empty while not all of them run.
    """

    operator: OperatorId
    max_parallelism: int
    owners: tuple[StateOwner, ...]


@dataclass(frozen=True, slots=True)
class QueryState:
    """A client asks a slot for values. Answer: `StateAnswered` or `RequestFailed`. May be asked any number of times.

    Attributes:
        attempt: The subtask's attempt.
        operator: The operator's uid.
        state: The name that the state is queryable under, or its own.
        keys: The keys, which belong to that subtask.
        window: Of windowed state: the window meant; None for all windows of each key.
        allow_pickle: Whether values may be pickled objects.
    """

    attempt: ExecutionAttemptId
    operator: OperatorId
    state: str
    keys: tuple[Any, ...]
    window: Namespace
    allow_pickle: bool


@dataclass(frozen=True, slots=True)
class StateAnswered:
    """What a slot knows.

    Attributes:
        attempt: Whose state it is.
        is_known: Whether the subtask has declared the state by now: functions may do so at their first record.
        declared: The queryable states that it has declared.
        is_windowed: Whether the state belongs to windows.
        rows: An Arrow IPC stream: ``position`` (of the key in the request), ``window_start``, ``window_end`` and
            ``value``; a row per key, or key and window, that there is something for.
    """

    attempt: ExecutionAttemptId
    is_known: bool
    declared: tuple[str, ...]
    is_windowed: bool
    rows: bytes


@dataclass(frozen=True, slots=True)
class DescribeStates:
    """A client asks a slot what an operator's subtask answers for. Answer: `StatesDescribed` or `RequestFailed`.

    Attributes:
        attempt: The subtask's attempt.
        operator: The operator's uid.
    """

    attempt: ExecutionAttemptId
    operator: OperatorId


@dataclass(frozen=True, slots=True)
class StateDescription:
    """A state that clients may ask for.

    Attributes:
        queryable: The name that it is queryable under.
        name: Its own.
        kind: As in checkpoints: ``value``, ``list``, ``map`` and so on.
        is_windowed: Whether it belongs to windows.
        value_type: The declared type of its values, for people; None for none.
        key_schema: The type of a key that it holds; None while none is known.
    """

    queryable: str
    name: str
    kind: str
    is_windowed: bool
    value_type: str | None
    key_schema: Schema


@dataclass(frozen=True, slots=True)
class StatesDescribed:
    """The states that one subtask has declared, and clients may ask for."""

    states: tuple[StateDescription, ...]
