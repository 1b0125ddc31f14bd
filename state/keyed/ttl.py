"""Time to live of keyed state: its configuration, and what a stored unit with a time means.

State with a time to live is stored as *units* ``(value, timestamp_ms)``: of a value, of each element of a list, of each
value of a map, of a reducing or aggregating state's accumulator. The timestamp is the processing time of the last
write (or access), by the clock injected into the backend; a unit has expired once ``timestamp + ttl <= now``. Because
the timestamp is stored and the clock is the world's, time that passes between a checkpoint and its restore counts.

Expired units are never kept for long: reading one forgets it, every access (or record) sweeps a few more entries of
the state, and a snapshot may leave them out. Units are plain tuples: backends store and files show them as such.

Source: Flink's ``StateTtlConfig``, ``TtlValue``, ``TtlUtils``, ``TtlIncrementalCleanup``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Protocol

from ..errors import ConfigurationError
from ..values.durations import parse_duration_ms

__all__ = [
    "StateTtlConfig",
    "TtlCleanup",
    "TtlCleanupStrategies",
    "TtlTime",
    "TtlUpdateType",
    "TtlVisibility",
]

_SWEPT_PER_ACCESS = 5
"""Entries, as in Flink's default background clean-up of the heap."""
_SWEEP_AT_ONCE = 64
"""Sweeps of accesses are saved up to this many entries: the cost of starting one is shared."""


class TtlUpdateType(Enum):
    """When a unit's time starts anew."""

    Disabled = "disabled"
    OnCreateAndWrite = "on-create-and-write"
    OnReadAndWrite = "on-read-and-write"


class TtlVisibility(Enum):
    """Whether expired values that have not been cleaned up yet may still be seen."""

    ReturnExpiredIfNotCleanedUp = "return-expired-if-not-cleaned-up"
    NeverReturnExpired = "never-return-expired"


class TtlTime(Enum):
    """What time values live by; there is one."""

    ProcessingTime = "processing-time"


@dataclass(frozen=True, slots=True)
class TtlCleanupStrategies:
    """How expired values that are never read are forgotten.

    Attributes:
        in_full_snapshot: Leave them out of snapshots, where a snapshot writes everything anyway.
        sweep_size: Entries to look at per access of the state; 0 for no clean-up in the background.
        sweep_every_record: Sweep for every record the operator processes too, so that a state that is no longer
            accessed shrinks.
    """

    in_full_snapshot: bool = False
    sweep_size: int = _SWEPT_PER_ACCESS
    sweep_every_record: bool = False


@dataclass(frozen=True, slots=True)
class StateTtlConfig:
    """How long values of a state live.

    Attributes:
        ttl: The time, as `parse_duration_ms` takes it; kept as ``ttl_ms``.
        update_type: When the time starts anew.
        state_visibility: Whether an expired value may be seen before it is cleaned up.
        cleanup: How expired values that are never read are forgotten.

    Raises:
        ConfigurationError: If the time is no duration or not positive.
    """

    UpdateType: ClassVar[type[TtlUpdateType]] = TtlUpdateType
    StateVisibility: ClassVar[type[TtlVisibility]] = TtlVisibility
    TtlTimeCharacteristic: ClassVar[type[TtlTime]] = TtlTime
    CleanupStrategies: ClassVar[type[TtlCleanupStrategies]] = TtlCleanupStrategies

    ttl: Any
    update_type: TtlUpdateType = TtlUpdateType.OnCreateAndWrite
    state_visibility: TtlVisibility = TtlVisibility.NeverReturnExpired
    cleanup: TtlCleanupStrategies = field(default_factory=TtlCleanupStrategies)

    def __post_init__(self) -> None:
        ttl_ms = parse_duration_ms(self.ttl)
        if ttl_ms <= 0:
            message = f"a time to live must be positive; got {self.ttl!r}"
            raise ConfigurationError(message)
        object.__setattr__(self, "ttl", ttl_ms)
        chosen: tuple[Any, Any] = (self.update_type, self.state_visibility)
        if not isinstance(chosen[0], TtlUpdateType) or not isinstance(chosen[1], TtlVisibility):
            message = (
                "a time to live needs an UpdateType and a StateVisibility; "
                f"got {self.update_type!r} and {self.state_visibility!r}"
            )
            raise ConfigurationError(message)

    @staticmethod
    def new_builder(ttl: Any) -> StateTtlConfig.Builder:
        """Start to describe a time to live step by step, as in PyFlink.

        Args:
            ttl: A duration as `parse_duration_ms` takes it.
        """
        return StateTtlConfig.Builder(ttl)

    @property
    def ttl_ms(self) -> int:
        """The time to live in milliseconds."""
        return int(self.ttl)

    def is_enabled(self) -> bool:
        """Return whether values expire at all."""
        return self.update_type is not TtlUpdateType.Disabled

    def get_ttl(self) -> int:
        """Return the time to live in milliseconds."""
        return self.ttl_ms

    def get_update_type(self) -> TtlUpdateType:
        """Return when the time starts anew."""
        return self.update_type

    def get_state_visibility(self) -> TtlVisibility:
        """Return whether expired values may be seen."""
        return self.state_visibility

    def get_ttl_time_characteristic(self) -> TtlTime:
        """Return what time values live by."""
        return TtlTime.ProcessingTime

    def get_cleanup_strategies(self) -> TtlCleanupStrategies:
        """Return how expired values that are never read are forgotten."""
        return self.cleanup

    @property
    def updates_on_read(self) -> bool:
        """Whether reading starts the time anew."""
        return self.update_type is TtlUpdateType.OnReadAndWrite

    @property
    def returns_expired(self) -> bool:
        """Whether an expired value is returned that has not been cleaned up yet."""
        return self.state_visibility is TtlVisibility.ReturnExpiredIfNotCleanedUp

    def cutoff_ms(self, now_ms: int) -> int:
        """Return the latest timestamp of units that have expired at ``now_ms``."""
        return now_ms - self.ttl_ms

    class Builder:
        """Describes a time to live step by step; each method returns the builder.

        Args:
            ttl: A duration as `parse_duration_ms` takes it.
        """

        def __init__(self, ttl: Any) -> None:
            self._ttl = ttl
            self._update_type = TtlUpdateType.OnCreateAndWrite
            self._visibility = TtlVisibility.NeverReturnExpired
            self._in_full_snapshot = False
            self._sweep_size = _SWEPT_PER_ACCESS
            self._sweep_every_record = False

        def set_update_type(self, update_type: TtlUpdateType) -> StateTtlConfig.Builder:
            """Say when the time starts anew."""
            self._update_type = update_type
            return self

        def update_ttl_on_create_and_write(self) -> StateTtlConfig.Builder:
            """Start the time anew at each write; the default."""
            return self.set_update_type(TtlUpdateType.OnCreateAndWrite)

        def update_ttl_on_read_and_write(self) -> StateTtlConfig.Builder:
            """Start the time anew at each read and write."""
            return self.set_update_type(TtlUpdateType.OnReadAndWrite)

        def set_state_visibility(self, state_visibility: TtlVisibility) -> StateTtlConfig.Builder:
            """Say whether expired values may be seen."""
            self._visibility = state_visibility
            return self

        def return_expired_if_not_cleaned_up(self) -> StateTtlConfig.Builder:
            """Return an expired value once more if nothing has cleaned it up before."""
            return self.set_state_visibility(TtlVisibility.ReturnExpiredIfNotCleanedUp)

        def never_return_expired(self) -> StateTtlConfig.Builder:
            """Never return an expired value; the default."""
            return self.set_state_visibility(TtlVisibility.NeverReturnExpired)

        def set_ttl_time_characteristic(self, characteristic: TtlTime) -> StateTtlConfig.Builder:
            """Say what time values live by.

            Raises:
                ConfigurationError: If it is not processing time.
            """
            chosen: Any = characteristic
            if chosen is not TtlTime.ProcessingTime:
                message = f"state lives by processing time; got {characteristic!r}"
                raise ConfigurationError(message)
            return self

        def use_processing_time(self) -> StateTtlConfig.Builder:
            """Let values live by processing time: there is no other."""
            return self

        def set_ttl(self, ttl: Any) -> StateTtlConfig.Builder:
            """Set the time."""
            self._ttl = ttl
            return self

        def cleanup_full_snapshot(self) -> StateTtlConfig.Builder:
            """Leave expired values out of snapshots that write everything anyway."""
            self._in_full_snapshot = True
            return self

        def cleanup_incrementally(
            self, cleanup_size: int, run_cleanup_for_every_record: bool = False
        ) -> StateTtlConfig.Builder:
            """Sweep in the background.

            Args:
                cleanup_size: Entries to look at per access of the state.
                run_cleanup_for_every_record: Whether to do so for every record of the operator too.

            Raises:
                ConfigurationError: If the size is not positive.
            """
            if cleanup_size < 1:
                message = f"incremental clean-up must look at one entry at least; got {cleanup_size}"
                raise ConfigurationError(message)
            self._sweep_size = cleanup_size
            self._sweep_every_record = run_cleanup_for_every_record
            return self

        def cleanup_in_rocksdb_compact_filter(
            self, query_time_after_num_entries: int = 1_000, periodic_compaction_time: Any = None
        ) -> StateTtlConfig.Builder:
            """Clean up in the background; the sizes are PyFlink's and mean nothing, for every backend sweeps."""
            self._sweep_size = self._sweep_size or _SWEPT_PER_ACCESS
            return self

        def disable_cleanup_in_background(self) -> StateTtlConfig.Builder:
            """Forget expired values only where they are read, or in snapshots if that is asked for."""
            self._sweep_size = 0
            self._sweep_every_record = False
            return self

        def build(self) -> StateTtlConfig:
            """Return the configuration.

            Raises:
                ConfigurationError: If the time is no duration or not positive.
            """
            cleanup = TtlCleanupStrategies(self._in_full_snapshot, self._sweep_size, self._sweep_every_record)
            return StateTtlConfig(self._ttl, self._update_type, self._visibility, cleanup)


class _Swept(Protocol):
    """What a clean-up needs of a table: `headrace.state.keyed.contract.StateTable.sweep`."""

    def sweep(self, num_entries: int, cutoff_ms: int) -> None: ...


class TtlCleanup:
    """The clean-up of one state in the background.

    Args:
        table: Of the state.
        config: Its time to live.
    """

    __slots__ = ("_config", "_due", "_size", "_table", "runs_for_every_record")

    def __init__(self, table: _Swept, config: StateTtlConfig) -> None:
        self._table = table
        self._config = config
        self._size = config.cleanup.sweep_size
        # Entries that accesses have asked to look at, and that has not been done yet.
        self._due = 0
        self.runs_for_every_record = config.cleanup.sweep_every_record and self._size > 0

    def accessed(self, now_ms: int) -> None:
        """Note that the state has been accessed once."""
        self._due += self._size
        if self._due >= _SWEEP_AT_ONCE:
            self._sweep(now_ms)

    def processed(self, num_records: int, now_ms: int) -> None:
        """Note that the operator has processed records. Called where clean-up runs for every record."""
        self._due += self._size * num_records
        self._sweep(now_ms)

    def _sweep(self, now_ms: int) -> None:
        due, self._due = self._due, 0
        self._table.sweep(due, self._config.cutoff_ms(now_ms))
