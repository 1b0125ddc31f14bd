"""How a program names its state, and what user functions hold in their hands.

A descriptor is a plain, picklable value: a name, unique within the operator, and what the state is. What owns the
state backend turns it into a *handle* (`ValueState`, `ListState` ...) that reads and writes the state of the current
key only: no handle ever takes a key, so that a function cannot reach state that lives in another subtask.

The declared types are what checkpoints keep and restores compare (`headrace.state.keyed.evolution`); values are not
checked on every write. Instances of declared dataclasses and NamedTuples are stored by field.

Source: Flink's ``StateDescriptor`` and its subclasses, PyFlink's names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

from ..errors import ProgramError
from .ttl import StateTtlConfig

__all__ = [
    "NO_KEY",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "ReducingState",
    "ReducingStateDescriptor",
    "StateDescriptor",
    "ValueState",
    "ValueStateDescriptor",
]


class _NoKey:
    """The type of `NO_KEY`; one instance per process, also through pickling."""

    def __repr__(self) -> str:
        return "NO_KEY"

    def __reduce__(self) -> str:
        return "NO_KEY"


NO_KEY: Final = _NoKey()
"""What ``current_key`` is outside of a keyed call; no key that a program can have."""


@dataclass(frozen=True)
class StateDescriptor:
    """Names one keyed state of an operator.

    Attributes:
        name: Unique within the operator, not empty; a restore finds the state by it.
        value_type: The declared type of the values, if any: a Python type or hint, a dataclass, a NamedTuple, an Arrow
            type or schema, one of ``Types``.
        ttl: How long values live; None for ever. A duration stands for a `StateTtlConfig` of that time.
        renamed_fields: New name -> old name of fields of ``value_type`` that checkpoints may still hold under the old
            one.
        queryable: The name under which clients may ask for values while the job runs; None for not at all. See
            `set_queryable`.

    Raises:
        ProgramError: If the name is not a non-empty string.
        ConfigurationError: If ``ttl`` is neither a configuration nor a positive duration.
    """

    kind: ClassVar[str] = "table"
    """What handle belongs to it; kept in checkpoints, compared on restore."""

    name: str
    value_type: Any = None
    ttl: StateTtlConfig | None = field(default=None, kw_only=True)
    renamed_fields: Mapping[str, str] | None = field(default=None, kw_only=True, hash=False)
    queryable: str | None = field(default=None, kw_only=True, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            message = f"a state's name must be a non-empty string; got {self.name!r}"
            raise ProgramError(message)
        if self.ttl is not None:
            self.enable_time_to_live(self.ttl)
        if self.queryable is not None:
            self.set_queryable(self.queryable)

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
        """Whether clients may ask for the state's values."""
        return self.queryable is not None

    def get_queryable_state_name(self) -> str | None:
        """What clients ask for."""
        return self.queryable

    def _fill(self, **attributes: Any) -> None:
        """For subclasses whose arguments come in PyFlink's order, not in that of the attributes."""
        for name, value in attributes.items():
            object.__setattr__(self, name, value)
        self.__post_init__()


@dataclass(frozen=True)
class ValueStateDescriptor(StateDescriptor):
    """One value per key.

    Attributes:
        default: What ``value()`` gives for a key without a value. A mutable default is copied for each use.
    """

    kind: ClassVar[str] = "value"

    default: Any = None


@dataclass(frozen=True)
class ListStateDescriptor(StateDescriptor):
    """A list of values per key; ``value_type`` is that of the elements."""

    kind: ClassVar[str] = "list"


@dataclass(frozen=True, init=False)
class MapStateDescriptor(StateDescriptor):
    """A map per key; ``value_type`` is that of its values, ``key_type`` that of its keys. Also broadcast state."""

    kind: ClassVar[str] = "map"

    key_type: Any = None

    def __init__(
        self,
        name: str,
        key_type: Any = None,
        value_type: Any = None,
        *,
        ttl: Any = None,
        renamed_fields: Mapping[str, str] | None = None,
        queryable: str | None = None,
    ) -> None:
        self._fill(
            name=name,
            key_type=key_type,
            value_type=value_type,
            ttl=ttl,
            renamed_fields=renamed_fields,
            queryable=queryable,
        )


@dataclass(frozen=True, init=False)
class ReducingStateDescriptor(StateDescriptor):
    """One value per key, into which added values are folded.

    Attributes:
        reduce_function: ``(old, new) -> value``, or an object with a method ``reduce`` of that form. It must not
            change its arguments.
    """

    kind: ClassVar[str] = "reducing"

    reduce_function: Any = None

    def __init__(
        self,
        name: str,
        reduce_function: Any = None,
        value_type: Any = None,
        *,
        ttl: Any = None,
        renamed_fields: Mapping[str, str] | None = None,
        queryable: str | None = None,
    ) -> None:
        self._fill(
            name=name,
            reduce_function=reduce_function,
            value_type=value_type,
            ttl=ttl,
            renamed_fields=renamed_fields,
            queryable=queryable,
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reducer()

    def reducer(self) -> Callable[[Any, Any], Any]:
        """The function as a plain callable.

        Raises:
            ProgramError: If there is none.
        """
        reducer = getattr(self.reduce_function, "reduce", self.reduce_function)
        if not callable(reducer):
            message = f"reducing state needs a reduce function; got {self.reduce_function!r}"
            raise ProgramError(message, state=self.name)
        return reducer


@dataclass(frozen=True, init=False)
class AggregatingStateDescriptor(StateDescriptor):
    """One accumulator per key; ``value_type`` is the accumulator's.

    Attributes:
        aggregate_function: An object with ``create_accumulator()``, ``add(value, accumulator) -> accumulator``,
            ``get_result(accumulator)`` and, for windows that merge, ``merge(accumulator, accumulator)``.
    """

    kind: ClassVar[str] = "aggregating"

    aggregate_function: Any = None

    def __init__(
        self,
        name: str,
        aggregate_function: Any = None,
        value_type: Any = None,
        *,
        ttl: Any = None,
        renamed_fields: Mapping[str, str] | None = None,
        queryable: str | None = None,
    ) -> None:
        self._fill(
            name=name,
            aggregate_function=aggregate_function,
            value_type=value_type,
            ttl=ttl,
            renamed_fields=renamed_fields,
            queryable=queryable,
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        for method in ("create_accumulator", "add", "get_result"):
            if not callable(getattr(self.aggregate_function, method, None)):
                message = f"aggregating state needs a function with {method}(); got {self.aggregate_function!r}"
                raise ProgramError(message, state=self.name)


class ValueState(Protocol):
    """One value for the current key.

    Contract: every method raises StateAccessError outside of a keyed call (*asserted*). A value that was changed in
    place must be handed back by ``update`` (*trusted*).
    """

    def value(self) -> Any:
        """The current key's value, or the default."""
        ...

    def update(self, value: Any) -> None:
        """Set the current key's value."""
        ...

    def clear(self) -> None:
        """Forget the current key's value."""
        ...


class ListState(Protocol):
    """A list for the current key. Contract as `ValueState`."""

    def get(self) -> list[Any]:
        """The elements, oldest first; a copy."""
        ...

    def add(self, value: Any) -> None:
        """Append one element."""
        ...

    def add_all(self, values: Iterable[Any]) -> None:
        """Append several elements."""
        ...

    def update(self, values: Iterable[Any]) -> None:
        """Replace all elements."""
        ...

    def clear(self) -> None:
        """Forget all elements."""
        ...


class MapState(Protocol):
    """A map for the current key. Contract as `ValueState`.

    What iterates does so over the entries as they were when it was asked for: entries may be put and removed meanwhile.
    """

    def get(self, key: Any) -> Any:
        """The value at ``key``, or None."""
        ...

    def put(self, key: Any, value: Any) -> None:
        """Set one entry."""
        ...

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Set several entries."""
        ...

    def remove(self, key: Any) -> None:
        """Forget one entry, if it is there."""
        ...

    def contains(self, key: Any) -> bool:
        """Whether there is an entry at ``key``."""
        ...

    def keys(self) -> Iterator[Any]:
        """The keys, as of now, in no order that may be relied on."""
        ...

    def values(self) -> Iterator[Any]:
        """The values, as of now, in no order that may be relied on."""
        ...

    def items(self) -> Iterator[tuple[Any, Any]]:
        """The entries, as of now, in no order that may be relied on."""
        ...

    def is_empty(self) -> bool:
        """Whether there is no entry."""
        ...

    def clear(self) -> None:
        """Forget all entries."""
        ...


class ReducingState(Protocol):
    """A folded value for the current key. Contract as `ValueState`."""

    def get(self) -> Any:
        """The folded value, or None before the first ``add``."""
        ...

    def add(self, value: Any) -> None:
        """Fold one value in."""
        ...

    def clear(self) -> None:
        """Forget the value."""
        ...


class AggregatingState(Protocol):
    """An aggregate for the current key. Contract as `ValueState`."""

    def get(self) -> Any:
        """The aggregate's result, or None before the first ``add``."""
        ...

    def add(self, value: Any) -> None:
        """Add one value to the accumulator."""
        ...

    def clear(self) -> None:
        """Forget the accumulator."""
        ...
