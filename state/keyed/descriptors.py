"""The kinds of keyed state: how a program names its state, and what user functions hold in their hands.

A descriptor is a plain, picklable value: a name, unique within the operator, and what the state is. What owns the
state backend turns it into a *handle* (`ValueState`, `ListState` ...) that reads and writes the state of the current
key only: no handle ever takes a key, so that a function cannot reach state that lives in another subtask.

What a kind is, and how everything else deals with it, says `headrace.state.keyed.kinds`.

The declared types are what checkpoints keep and restores compare (`headrace.state.keyed.evolution`); values are not
checked on every write. Instances of declared dataclasses and NamedTuples are stored by field. A Python type that is
declared is known to type checkers, too: ``ListStateDescriptor("items", str)`` is the way to a ``ListState[str]``.

Source: Flink's ``StateDescriptor`` and its subclasses, PyFlink's names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, Protocol, TypedDict, TypeVar, overload

from ..errors import ProgramError
from ..type_variables import IN, OUT, UK, UV, Declared, T
from .kinds import ABSENT, StateDescriptor, ValueCell, state_kind
from .layouts import ELEMENTS, ENTRIES, Layout, Merge

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "Aggregates",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "Reduces",
    "ReducingState",
    "ReducingStateDescriptor",
    "ValueState",
    "ValueStateDescriptor",
]

_Value = TypeVar("_Value")


class _Settings(TypedDict, total=False):
    """What every kind of state may be given by name, for type checkers; see `StateDescriptor`."""

    ttl: Any
    renamed_fields: Mapping[str, str] | None
    queryable: str | None


# ------------------------------------------------------------------------------------------------ functions that fold


class Reduces(Protocol[T]):
    """A ReduceFunction, as type checkers know it: by its method."""

    def reduce(self, value1: T, value2: T, /) -> T: ...


class Aggregates(Protocol[IN, OUT]):
    """An AggregateFunction; of what kind its accumulators are is its own affair."""

    def create_accumulator(self) -> Any: ...

    def add(self, value: IN, accumulator: Any, /) -> Any: ...

    def get_result(self, accumulator: Any, /) -> OUT: ...


# -------------------------------------------------------------------------------------------------------- descriptors


@state_kind
@dataclass(frozen=True)
class ValueStateDescriptor(StateDescriptor, Generic[T]):
    """One value per key.

    To type checkers ``ValueStateDescriptor("total", int)`` is of ``int | None``, with a ``default`` it is of ``int``.

    Attributes:
        default: What ``value()`` gives for a key without a value. A mutable default is copied for each use.
    """

    kind: ClassVar[str] = "value"
    keeps_streams: ClassVar[bool] = True

    default: Any = None

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: ValueStateDescriptor[_Value | None], name: str, value_type: type[_Value], **more: Unpack[_Settings]
        ) -> None: ...

        @overload
        def __init__(
            self, name: str, value_type: type[T] | Declared = None, default: T = ..., **more: Unpack[_Settings]
        ) -> None: ...

        def __init__(self, *arguments: Any, **named: Any) -> None: ...

    def keep(self, handle: ValueState, record: Any) -> None:
        """Keep the newest record."""
        handle.update(record)

    @property
    def absent(self) -> Any:
        """The default."""
        return self.default


@state_kind
@dataclass(frozen=True)
class ListStateDescriptor(StateDescriptor, Generic[T]):
    """A list of values per key; ``value_type`` is that of the elements."""

    kind: ClassVar[str] = "list"
    keeps_streams: ClassVar[bool] = True
    layout: ClassVar[Layout] = ELEMENTS

    value_type: type[T] | Declared = None

    def keep(self, handle: ListState, record: Any) -> None:
        """Keep all records."""
        handle.add(record)

    def merger(self) -> Merge:
        """Return what is never called: lists are put one behind the other, and no two elements meet."""
        return _never_meet


@state_kind
@dataclass(frozen=True, init=False)
class MapStateDescriptor(StateDescriptor, Generic[UK, UV]):
    """A map per key; ``value_type`` is that of its values, ``key_type`` that of its keys. Also broadcast state."""

    kind: ClassVar[str] = "map"
    layout: ClassVar[Layout] = ENTRIES

    key_type: Any = None

    def __init__(
        self,
        name: str,
        key_type: type[UK] | Declared = None,
        value_type: type[UV] | Declared = None,
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

    @property
    def place_type(self) -> Any:
        """The declared type of the keys."""
        return self.key_type


@state_kind
@dataclass(frozen=True, init=False)
class ReducingStateDescriptor(StateDescriptor, Generic[T]):
    """One value per key, into which added values are folded.

    Attributes:
        reduce_function: ``(old, new) -> value``, or an object with a method ``reduce`` of that form. It must not
            change its arguments.
    """

    kind: ClassVar[str] = "reducing"
    keeps_streams: ClassVar[bool] = True

    reduce_function: Any = None

    def __init__(
        self,
        name: str,
        reduce_function: Callable[[T, T], T] | Reduces[T] | None = None,
        value_type: type[T] | Declared = None,
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

    @property
    def function(self) -> Any:
        """The reduce function."""
        return self.reduce_function

    def keep(self, handle: ReducingState, record: Any) -> None:
        """Fold all records."""
        handle.add(record)

    def handle(self, cell: ValueCell) -> ReducingState:
        """Return a `ReducingState`."""
        return ReducingState(cell, self.reducer())

    def merger(self) -> Merge:
        """Return the reduce function."""
        return self.reducer()

    def reducer(self) -> Callable[[Any, Any], Any]:
        """Return the function as a plain callable.

        Raises:
            ProgramError: If there is none.
        """
        reducer = getattr(self.reduce_function, "reduce", self.reduce_function)
        if not callable(reducer):
            message = f"reducing state needs a reduce function; got {self.reduce_function!r}"
            raise ProgramError(message, state=self.name)
        return reducer


@state_kind
@dataclass(frozen=True, init=False)
class AggregatingStateDescriptor(StateDescriptor, Generic[IN, OUT]):
    """One accumulator per key; ``value_type`` is the accumulator's.

    Attributes:
        aggregate_function: An object with ``create_accumulator()``, ``add(value, accumulator) -> accumulator``,
            ``get_result(accumulator)`` and, for windows that merge, ``merge(accumulator, accumulator)``.
    """

    kind: ClassVar[str] = "aggregating"
    shows_parts: ClassVar[bool] = False

    aggregate_function: Any = None

    def __init__(
        self,
        name: str,
        aggregate_function: Aggregates[IN, OUT] | None = None,
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

    @property
    def function(self) -> Any:
        """The aggregate function."""
        return self.aggregate_function

    def handle(self, cell: ValueCell) -> AggregatingState:
        """Return an `AggregatingState`."""
        return AggregatingState(cell, self.aggregate_function)

    def merger(self) -> Merge:
        """Return the aggregate's ``merge``."""
        merge: Any = getattr(self.aggregate_function, "merge", None)
        if not callable(merge):
            message = f"state {self.name!r} of windows that merge needs an aggregate function with merge()"
            raise ProgramError(message, state=self.name)
        function: Merge = merge
        return function

    def result(self, stored: Any) -> Any:
        """Return the aggregate's result."""
        return self.aggregate_function.get_result(stored)


def _never_meet(held: Any, added: Any) -> NoReturn:
    message = f"two elements of a list are at one place: {held!r} and {added!r}"
    raise AssertionError(message)


# ---------------------------------------------------------------------------------------------- what functions hold


class ValueState(Protocol[T]):
    """One value for the current key.

    Contract: every method raises StateAccessError outside of a keyed call (*asserted*). A value that was changed in
    place must be handed back by ``update`` (*trusted*).
    """

    def value(self) -> T:
        """Return the current key's value, or the default."""
        ...

    def update(self, value: T) -> None:
        """Set the current key's value."""
        ...

    def clear(self) -> None:
        """Forget the current key's value."""
        ...


class ListState(Protocol[T]):
    """A list for the current key. Contract as `ValueState`."""

    def get(self) -> list[T]:
        """Return the elements, oldest first; a copy."""
        ...

    def add(self, value: T) -> None:
        """Append one element."""
        ...

    def add_all(self, values: Iterable[T]) -> None:
        """Append several elements."""
        ...

    def update(self, values: Iterable[T]) -> None:
        """Replace all elements."""
        ...

    def clear(self) -> None:
        """Forget all elements."""
        ...


class MapState(Protocol[UK, UV]):
    """A map for the current key. Contract as `ValueState`.

    What iterates does so over the entries as they were when it was asked for: entries may be put and removed meanwhile.
    """

    def get(self, key: UK) -> UV | None:
        """Return the value at ``key``, or None."""
        ...

    def put(self, key: UK, value: UV) -> None:
        """Set one entry."""
        ...

    def put_all(self, entries: Mapping[UK, UV]) -> None:
        """Set several entries."""
        ...

    def remove(self, key: UK) -> None:
        """Forget one entry, if it is there."""
        ...

    def contains(self, key: UK) -> bool:
        """Return whether there is an entry at ``key``."""
        ...

    def keys(self) -> Iterator[UK]:
        """The keys, as of now, in no order that may be relied on."""
        ...

    def values(self) -> Iterator[UV]:
        """The values, as of now, in no order that may be relied on."""
        ...

    def items(self) -> Iterator[tuple[UK, UV]]:
        """The entries, as of now, in no order that may be relied on."""
        ...

    def is_empty(self) -> bool:
        """Return whether there is no entry."""
        ...

    def clear(self) -> None:
        """Forget all entries."""
        ...


class ReducingState(Generic[T]):
    """A folded value for the current key. Contract as `ValueState`.

    Args:
        cell: Where it is.
        reduce: ``(old, new) -> value``.
    """

    __slots__ = ("_cell", "_reduce")

    def __init__(self, cell: ValueCell, reduce: Callable[[T, T], T]) -> None:
        self._cell = cell
        self._reduce = reduce

    def get(self) -> T | None:
        """Return the folded value, or None before the first ``add``."""
        value = self._cell.value()
        return None if value is ABSENT else value

    def add(self, value: T) -> None:
        """Fold one value in."""
        self._cell.fold(self._folded, value)

    def _folded(self, old: Any, value: Any) -> Any:
        return value if old is ABSENT else self._reduce(old, value)

    def clear(self) -> None:
        """Forget the value."""
        self._cell.clear()


class AggregatingState(Generic[IN, OUT]):
    """An aggregate for the current key; the accumulator is the state. Contract as `ValueState`.

    Args:
        cell: Where the accumulator is.
        function: The aggregate function.
    """

    __slots__ = ("_cell", "_function")

    def __init__(self, cell: ValueCell, function: Aggregates[IN, OUT]) -> None:
        self._cell = cell
        self._function = function

    def get(self) -> OUT | None:
        """Return the aggregate's result, or None before the first ``add``."""
        accumulator = self._cell.value()
        return None if accumulator is ABSENT else self._function.get_result(accumulator)

    def add(self, value: IN) -> None:
        """Add one value to the accumulator."""
        self._cell.fold(self._added, value)

    def _added(self, accumulator: Any, value: Any) -> Any:
        if accumulator is ABSENT:
            accumulator = self._function.create_accumulator()
        return self._function.add(value, accumulator)

    def clear(self) -> None:
        """Forget the accumulator."""
        self._cell.clear()
