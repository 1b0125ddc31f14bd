"""What a kind of keyed state is, and which kinds there are.

A *kind* of state is one class, a `StateDescriptor` that is registered by `state_kind`. It says which layout its values
have (`headrace.state.keyed.layouts`), what handle functions get, how windows merge it and what clients are shown.
Everything else is the layout's: how both backends keep it, how it expires, how snapshots show it, how it is moved when
an operator is rescaled. So a kind is added by its class, and nothing else needs to know of it. Those that come with
Headrace are in `headrace.state.keyed.descriptors`.

Source: Flink's ``StateDescriptor``, which names one of a closed set of types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol, TypeVar

from ..errors import CheckpointMismatchError, ProgramError
from .layouts import ONE, Layout, Merge
from .ttl import StateTtlConfig

__all__ = [
    "ABSENT",
    "NO_KEY",
    "StateDescriptor",
    "ValueCell",
    "is_state_kind",
    "layout_of_kind",
    "shows_parts_of_kind",
    "state_kind",
]


_NO_TYPES = (str, bytes, int, float, list, tuple, dict, set)
"""Whose instances are values, and so no types that state could be declared to be of."""


class _NoKey:
    """The type of `NO_KEY`; one instance per process, also through pickling. No mapping takes it for a key."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "NO_KEY"

    def __reduce__(self) -> str:
        return "NO_KEY"


NO_KEY: Final = _NoKey()
"""What ``current_key`` is outside of a keyed call; no key that a program can have."""

ABSENT: Any = object()
"""What a cell gives for a key without a value, where None may be a value."""


class ValueCell(Protocol):
    """What a backend offers of state of one part per key, to the handle of a kind: a `ValueState`, and `fold`.

    Of elements it offers a `ListState`, of entries a `MapState`; with a time to live the same.
    """

    def value(self) -> Any:
        """Return the current key's value, or what the descriptor says of a key without one
        (`StateDescriptor.absent`).
        """
        ...

    def update(self, value: Any) -> None:
        """Set the current key's value."""
        ...

    def fold(self, combine: Callable[[Any, Any], Any], value: Any) -> None:
        """Set the current key's value to ``combine(its value or ABSENT, value)``, in one access."""
        ...

    def clear(self) -> None:
        """Forget the current key's value."""
        ...


@dataclass(frozen=True)
class StateDescriptor:
    """Names one keyed state of an operator; what a kind of state is, in its subclasses.

    Attributes:
        kind: What checkpoints call it; compared on restore. ``table`` is state that operators keep by themselves.
        layout: How what a key holds is made of parts.
        shows_parts: Whether clients that ask for the state are shown what is stored; else what `result` makes of it.
        keeps_streams: Whether `keep` puts a record into the state, so that streams can be kept for clients.
        name: Unique within the operator, not empty; a restore finds the state by it.
        value_type: The declared type of the values, if any: a Python type or hint, a dataclass, a NamedTuple, an Arrow
            type or schema, one of ``Types``.
        ttl: How long values live; None for ever. A duration stands for a `StateTtlConfig` of that time.
        renamed_fields: New name -> old name of fields of ``value_type`` that checkpoints may still hold under the old
            one.
        queryable: The name under which clients may ask for values while the job runs; None for not at all. See
            `set_queryable`.

    Raises:
        ProgramError: If the name is not a non-empty string, or a declared type is a value such as ``"int"``.
        ConfigurationError: If ``ttl`` is neither a configuration nor a positive duration.
    """

    kind: ClassVar[str] = "table"
    layout: ClassVar[Layout] = ONE
    shows_parts: ClassVar[bool] = True
    keeps_streams: ClassVar[bool] = False

    name: str
    value_type: Any = None
    ttl: StateTtlConfig | None = field(default=None, kw_only=True)
    renamed_fields: Mapping[str, str] | None = field(default=None, kw_only=True, hash=False)
    queryable: str | None = field(default=None, kw_only=True, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            message = f"a state's name must be a non-empty string; got {self.name!r}"
            raise ProgramError(message)
        for declared in (self.value_type, self.place_type):
            if isinstance(declared, _NO_TYPES):
                message = f"state {self.name!r} is declared to be of {declared!r}, which is a value and no type"
                raise ProgramError(message, hint="name a class or a hint, a type of Arrow or one of Types")
        if self.ttl is not None:
            self.enable_time_to_live(self.ttl)
        if self.queryable is not None:
            self.set_queryable(self.queryable)

    # ----------------------------------------------------------------------------------------------- what a kind is
    @property
    def place_type(self) -> Any:
        """The declared type of the keys of entries; None if none is."""
        return None

    @property
    def absent(self) -> Any:
        """What a cell of one value gives for a key without one; what can change is copied for each use."""
        return ABSENT

    @property
    def function(self) -> Any:
        """The user's function that is part of the state; None for none. It is only called, never opened."""
        return None

    def handle(self, cell: Any) -> Any:
        """Return what functions hold, over what the backend offers: a `ValueCell`, `ListState` or `MapState`."""
        return cell

    def merger(self) -> Merge:
        """Return what makes one part of two parts at one place, for windows that merge.

        Raises:
            ProgramError: If state of this kind cannot be merged.
        """
        message = f"{self.kind} state {self.name!r} cannot be that of windows that merge"
        hint = "list, reducing and aggregating state can be merged"
        raise ProgramError(message, hint=hint, state=self.name)

    def keep(self, handle: Any, record: Any) -> None:
        """Put a record of a stream into the state; only of kinds that keep streams."""
        raise NotImplementedError

    def result(self, stored: Any) -> Any:
        """Return what clients are shown of what a key holds; only of kinds that do not show parts."""
        return stored

    # ------------------------------------------------------------------------------------------------- what it is given
    def enable_time_to_live(self, ttl_config: Any) -> None:
        """Let values expire; called before the descriptor is handed to anybody, as in PyFlink.

        Args:
            ttl_config: A `StateTtlConfig`, or a duration. One whose update type is ``Disabled`` switches it off.

        Raises:
            ConfigurationError: If it is neither.
        """
        config = ttl_config if isinstance(ttl_config, StateTtlConfig) else StateTtlConfig(ttl_config)
        object.__setattr__(self, "ttl", config if config.is_enabled() else None)

    def set_queryable(self, queryable_state_name: str) -> None:
        """Let clients ask for the state's values while the job runs; called before the descriptor is handed to anybody.

        Args:
            queryable_state_name: What they ask for.

        Raises:
            ProgramError: If it is not a non-empty string, or another name has been set.
        """
        if not isinstance(queryable_state_name, str) or not queryable_state_name:
            message = f"the name of queryable state must be a non-empty string; got {queryable_state_name!r}"
            raise ProgramError(message, state=self.name)
        if self.queryable not in (None, queryable_state_name):
            message = f"state {self.name!r} is queryable as {self.queryable!r} already; got {queryable_state_name!r}"
            raise ProgramError(message)
        object.__setattr__(self, "queryable", queryable_state_name)

    def is_queryable(self) -> bool:
        """Return whether clients may ask for the state's values."""
        return self.queryable is not None

    def get_queryable_state_name(self) -> str | None:
        """Return what clients ask for."""
        return self.queryable

    def _fill(self, **attributes: Any) -> None:
        """For subclasses whose arguments come in PyFlink's order, not in that of the attributes."""
        for name, value in attributes.items():
            object.__setattr__(self, name, value)
        self.__post_init__()


_Kind = TypeVar("_Kind", bound=type[StateDescriptor])

_KINDS: dict[str, type[StateDescriptor]] = {}


def state_kind(descriptor: _Kind) -> _Kind:
    """Register a kind of state; a decorator of its descriptor.

    Raises:
        ProgramError: If another kind has its name.
    """
    known = _KINDS.get(descriptor.kind)
    taken = StateDescriptor if descriptor.kind == StateDescriptor.kind else known
    if taken is not None and taken.__qualname__ != descriptor.__qualname__:
        message = f"{descriptor.kind!r} is the kind of {taken.__qualname__}; {descriptor.__qualname__} needs another"
        raise ProgramError(message)
    _KINDS[descriptor.kind] = descriptor
    return descriptor


def is_state_kind(descriptor: Any) -> bool:
    """Return whether something is a descriptor of state that functions use: not of a table, nor of a kind of no
    name.
    """
    return isinstance(descriptor, StateDescriptor) and descriptor.kind in _KINDS


def layout_of_kind(kind: str) -> Layout:
    """Return the layout of a kind of state, by the name that checkpoints have of it.

    Raises:
        CheckpointMismatchError: If no such kind is registered.
    """
    return _kind_named(kind).layout


def shows_parts_of_kind(kind: str) -> bool:
    """Return whether clients are shown what is stored in a kind of state; else as `layout_of_kind`."""
    return _kind_named(kind).shows_parts


def _kind_named(kind: str) -> type[StateDescriptor]:
    if kind == StateDescriptor.kind:
        return StateDescriptor
    if kind not in _KINDS:
        message = f"the checkpoint has {kind} state; there is no such kind of state here"
        hint = f"import the module that registers it; known are {', '.join(_KINDS)}"
        raise CheckpointMismatchError(message, hint=hint)
    return _KINDS[kind]
