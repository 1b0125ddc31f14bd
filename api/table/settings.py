"""SET and RESET: Flink's keys that mean something here, what their values may be, and what they do to a job.

A value is checked when it is set. It counts for the jobs of later statements, and for the time in which one is made:
what the program itself has said of its `StreamExecutionEnvironment` stays as it is below.

Source: Flink's documentation ("Configuration", "SQL Client"), ``ExecutionOptions``, ``CheckpointingOptions``,
``RestartStrategyOptions``, ``SqlClientOptions``.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.engine.errors import ConfigurationError, HeadraceError, nearest
from headrace.engine.kernel.config import CheckpointingMode
from headrace.engine.optimizer.growth import SETTING
from headrace.engine.optimizer.tuning.choices import MiniBatches
from headrace.state.values.durations import parse_duration_ms

from ..sql.parsing.errors import SqlError
from ..stream.environment import StreamExecutionEnvironment
from ..stream.environment_settings import EnvironmentSettings
from ..stream.restart_strategies import RestartStrategies

__all__ = ["Settings", "TableConfig"]

Apply = Callable[[EnvironmentSettings, Any], Any]


@dataclass(frozen=True)
class _Setting:
    """One key.

    Attributes:
        key: Flink's.
        parse: From the text to the value; its docstring says which values there are.
        apply: What the value does to a job by itself; None if others read it.
        alias_of: The key that it is an older name of.
    """

    key: str
    parse: Callable[[str], Any]
    apply: Apply | None = None
    alias_of: str | None = None


def _word(*words: str, **others: str) -> Callable[[str], str]:
    """One of several words; others are refused with a reason of their own."""

    def parse(text: str) -> str:
        if text.lower() in words:
            return text.lower()
        message = others.get(text.lower(), f"it is one of {', '.join(words)}")
        raise ValueError(message)

    parse.__doc__ = f"One of {', '.join(words)}."
    return parse


def _words(*words: str) -> Callable[[str], frozenset[str]]:
    """Several of some words, between commas."""

    def parse(text: str) -> frozenset[str]:
        found = frozenset(one.strip().lower() for one in text.split(",") if one.strip())
        if not found <= set(words):
            message = f"it is some of {', '.join(words)}"
            raise ValueError(message)
        return found

    parse.__doc__ = f"Some of {', '.join(words)}."
    return parse


def _number(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.lstrip("-").isdecimal() or int(text) < low:
            message = f"it is a whole number, {low} or more"
            raise ValueError(message)
        return int(text)

    parse.__doc__ = f"A whole number, {low} or more."
    return parse


def _real(low: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = float(text)
        if not value >= low:
            message = f"it is a number, {low:g} or more"
            raise ValueError(message)
        return value

    parse.__doc__ = f"A number, {low:g} or more."
    return parse


def _flag(text: str) -> bool:
    """True or false."""
    return _word("true", "false")(text) == "true"


def _milliseconds(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        duration = parse_duration_ms(text)
        if duration < low:
            message = f"it is at least {low} ms"
            raise ValueError(message)
        return duration

    parse.__doc__ = f"A duration, {low} ms or more."
    return parse


def _place(text: str) -> str:
    """A path or a URI."""
    if not text.strip():
        message = "it is a path or a URI"
        raise ValueError(message)
    return text.strip()


def _name(text: str) -> str:
    """A text."""
    if not text.strip():
        message = "it is a text"
        raise ValueError(message)
    return text


def _time_zone(text: str) -> str:
    """UTC, by any of its names."""
    if text.upper() in ("UTC", "ETC/UTC", "GMT", "Z", "+00:00", "UTC+00:00"):
        return "UTC"
    message = "times without a zone are UTC here, and no other"
    raise ValueError(message)


def _checkpoints(apply: Callable[[Any, Any], Any]) -> Apply:
    return lambda env, value: apply(env.get_checkpoint_config(), value)


_SETTINGS = (
    _Setting("execution.runtime-mode", _word(
        "streaming", "batch", automatic="a statement does not choose its mode here: say streaming or batch")),
    _Setting("parallelism.default", _number(1), lambda env, value: env.set_parallelism(value)),
    _Setting("pipeline.name", _name),
    _Setting("pipeline.max-parallelism", _number(1), lambda env, value: env.set_max_parallelism(value)),
    _Setting("pipeline.object-reuse", _flag,
             lambda env, value: env.enable_object_reuse() if value else env.disable_object_reuse()),
    _Setting("pipeline.operator-chaining.enabled", _flag,
             lambda env, value: None if value else env.disable_operator_chaining()),
    _Setting("execution.buffer-timeout.interval", _milliseconds(0), lambda env, value: env.set_buffer_timeout(value)),
    _Setting("taskmanager.network.memory.buffer-debloat.enabled", _flag,
             lambda env, value: env.set_buffer_debloating(value)),
    _Setting("execution.checkpointing.interval", _milliseconds(1), lambda env, value: env.enable_checkpointing(
        value, env.get_checkpointing_mode())),
    _Setting("execution.checkpointing.mode", _word("exactly_once", "at_least_once"), _checkpoints(
        lambda config, value: config.set_checkpointing_mode(CheckpointingMode[value.upper()]))),
    _Setting("execution.checkpointing.dir", _place, _checkpoints(
        lambda config, value: config.set_checkpoint_storage_dir(value))),
    _Setting("state.checkpoints.dir", _place, alias_of="execution.checkpointing.dir"),
    _Setting("execution.checkpointing.savepoint-dir", _place,
             lambda env, value: env.set_default_savepoint_directory(value)),
    _Setting("state.savepoints.dir", _place, alias_of="execution.checkpointing.savepoint-dir"),
    _Setting("execution.checkpointing.timeout", _milliseconds(1), _checkpoints(
        lambda config, value: config.set_checkpoint_timeout(value))),
    _Setting("execution.checkpointing.min-pause", _milliseconds(0), _checkpoints(
        lambda config, value: config.set_min_pause_between_checkpoints(value))),
    _Setting("execution.checkpointing.num-retained", _number(1), _checkpoints(
        lambda config, value: config.set_max_retained_checkpoints(value))),
    _Setting("execution.checkpointing.tolerable-failed-checkpoints", _number(-1), _checkpoints(
        lambda config, value: config.set_tolerable_checkpoint_failure_number(value))),
    _Setting("execution.checkpointing.unaligned.enabled", _flag, _checkpoints(
        lambda config, value: config.enable_unaligned_checkpoints(value))),
    _Setting("execution.state-recovery.path", _place, lambda env, value: env.set_restore_path(value)),
    _Setting("execution.savepoint.path", _place, alias_of="execution.state-recovery.path"),
    _Setting("execution.state-recovery.ignore-unclaimed-state", _flag),
    _Setting("execution.savepoint.ignore-unclaimed-state", _flag,
             alias_of="execution.state-recovery.ignore-unclaimed-state"),
    _Setting("table.upgrade.accept", _words("partial", "old-filter", "lost")),
    _Setting("state.backend.type", _word(
        "hashmap", "rocksdb", forst="there is no ForSt here: rocksdb holds state larger than memory"),
        lambda env, value: env.set_state_backend("heap" if value == "hashmap" else value)),
    _Setting("state.backend", _word("hashmap", "rocksdb"), alias_of="state.backend.type"),
    _Setting("restart-strategy.type", _word("none", "off", "disable", "fixed-delay", "failure-rate",
                                            "exponential-delay")),
    _Setting("restart-strategy", _word("none", "fixed-delay", "failure-rate", "exponential-delay"),
             alias_of="restart-strategy.type"),
    _Setting("restart-strategy.fixed-delay.attempts", _number(0)),
    _Setting("restart-strategy.fixed-delay.delay", _milliseconds(0)),
    _Setting("restart-strategy.failure-rate.max-failures-per-interval", _number(1)),
    _Setting("restart-strategy.failure-rate.failure-rate-interval", _milliseconds(1)),
    _Setting("restart-strategy.failure-rate.delay", _milliseconds(0)),
    _Setting("restart-strategy.exponential-delay.initial-backoff", _milliseconds(1)),
    _Setting("restart-strategy.exponential-delay.max-backoff", _milliseconds(1)),
    _Setting("restart-strategy.exponential-delay.backoff-multiplier", _real(1)),
    _Setting("restart-strategy.exponential-delay.reset-backoff-threshold", _milliseconds(1)),
    _Setting("restart-strategy.exponential-delay.jitter-factor", _real(0)),
    _Setting("table.local-time-zone", _time_zone),
    _Setting("table.optimizer.distinct-agg.split.enabled", _flag),
    _Setting("table.optimizer.distinct-agg.split.bucket-num", _number(1)),
    _Setting("table.exec.mini-batch.enabled", _flag),
    _Setting("table.exec.mini-batch.allow-latency", _milliseconds(1)),
    _Setting("table.exec.mini-batch.size", _number(1)),
    _Setting("table.dml-sync", _flag),
    _Setting("table.exec.source.idle-timeout", _milliseconds(0)),
    _Setting("table.exec.async-lookup.buffer-capacity", _number(1)),
    _Setting("table.exec.async-lookup.output-mode", _word("ordered", "allow_unordered")),
    _Setting("table.exec.async-lookup.timeout", _milliseconds(1)),
    _Setting("table.optimizer.multi-join.enabled", _flag),
    _Setting("table.optimizer.shared-join-state.enabled", _flag),
    _Setting(SETTING, _milliseconds(0)),
    _Setting("table.optimizer.reuse-sub-plan-enabled", _flag),
    _Setting("table.optimizer.agg-phase-strategy", _word("auto", "two_phase", "one_phase")),
    _Setting("sql-client.execution.result-mode", _word("table", "changelog", "tableau")),
    _Setting("sql-client.execution.max-table-result.rows", _number(1)),
    _Setting("sql-client.display.max-column-width", _number(1)),
    _Setting("sql-client.display.print-time-cost", _flag),
    _Setting("sql-client.verbose", _flag),
)  # fmt: skip

_BY_KEY = {one.key: one for one in _SETTINGS}


class Settings:
    """What SET has said, by key."""

    def __init__(self, texts: dict[str, str] | None = None) -> None:
        # As it was written, under the newest name of the key.
        self._texts = dict(texts or {})

    def copy(self) -> Settings:
        """Return the settings as they are now."""
        return Settings(self._texts)

    @staticmethod
    def known_keys() -> list[str]:
        """Return all keys that there are, in order."""
        return sorted(_BY_KEY)

    @staticmethod
    def described() -> list[tuple[str, str, str | None]]:
        """Return each key in order, the values that it takes in words, and the key that it is an older name of."""
        return [(key, _BY_KEY[key].parse.__doc__ or "", _BY_KEY[key].alias_of) for key in sorted(_BY_KEY)]

    def set(self, key: str, text: str) -> None:
        """Give a key a value.

        Raises:
            SqlError: If there is no such key, or no such value of it.
        """
        setting = _setting(key)
        try:
            setting.parse(text)
        except (ValueError, ConfigurationError) as error:
            reason = error.message if isinstance(error, HeadraceError) else str(error)
            message = f"{key!r} cannot be {text!r}: {reason}"
            raise SqlError(message) from error
        self._texts[setting.alias_of or key] = text

    def reset(self, key: str | None = None) -> None:
        """Forget a value, or all."""
        if key is None:
            self._texts.clear()
        else:
            setting = _setting(key)
            self._texts.pop(setting.alias_of or key, None)

    def value(self, key: str, default: Any = None) -> Any:
        """Return the value of a key; the default if nothing was said."""
        text = self._texts.get(key)
        return default if text is None else _BY_KEY[key].parse(text)

    def text(self, key: str) -> str | None:
        """Return what a key was set to, as it was written; None if nothing was said.

        Raises:
            SqlError: If there is no such key.
        """
        setting = _setting(key)
        return self._texts.get(setting.alias_of or key)

    @property
    def accepted(self) -> frozenset[str]:
        """What the user allows a query that goes on from a savepoint."""
        named: frozenset[str] = self.value("table.upgrade.accept", frozenset())
        is_left = self.value("execution.state-recovery.ignore-unclaimed-state", default=False)
        return named | {"lost"} if is_left else named

    @property
    def mini_batches(self) -> MiniBatches | None:
        """How rows wait in front of operators; None if they do not.

        Raises:
            SqlError: If only a part of it was said.
        """
        own = "table.exec.mini-batch"
        if not self.value(f"{own}.enabled", default=False):
            return None
        latency_ms, size = self.value(f"{own}.allow-latency"), self.value(f"{own}.size")
        for name, value, example in (("allow-latency", latency_ms, "2 s"), ("size", size, "5000")):
            if value is None:
                message = f"{own}.enabled is true, and {own}.{name} was not said"
                raise SqlError(message, hint=f"SET '{own}.{name}' = '{example}'")
        return MiniBatches(latency_ms, size)

    @property
    def num_buckets(self) -> int | None:
        """Into how many buckets different values go; None if they stay together."""
        own = "table.optimizer.distinct-agg.split"
        is_split = self.value(f"{own}.enabled", default=False)
        return int(self.value(f"{own}.bucket-num", 1_024)) if is_split else None

    def as_table(self) -> pa.Table:
        """Return what was said, in the order of the keys."""
        keys = sorted(self._texts)
        return pa.table({
            "key": pa.array(keys, pa.string()),
            "value": pa.array([self._texts[key] for key in keys], pa.string()),
        })  # fmt: skip

    @contextmanager
    def applied_to(self, env: StreamExecutionEnvironment) -> Iterator[None]:
        """Inside, jobs of an environment are made as the settings say."""
        with env.for_one_job():
            for key in self._texts:
                apply = _BY_KEY[key].apply
                if apply is not None:
                    apply(env, self.value(key))
            self._set_restarts(env)
            yield

    def _set_restarts(self, env: EnvironmentSettings) -> None:
        """One strategy is made of several keys; their defaults are Flink's."""
        kind = self.value("restart-strategy.type")
        if kind in ("none", "off", "disable"):
            env.set_restart_strategy(RestartStrategies.no_restart())
        elif kind == "fixed-delay":
            own = "restart-strategy.fixed-delay"
            strategy: Any = RestartStrategies.fixed_delay_restart(
                self.value(f"{own}.attempts", 1), self.value(f"{own}.delay", 1_000)
            )
            env.set_restart_strategy(strategy)
        elif kind == "failure-rate":
            own = "restart-strategy.failure-rate"
            strategy = RestartStrategies.failure_rate_restart(
                self.value(f"{own}.max-failures-per-interval", 1),
                self.value(f"{own}.failure-rate-interval", 60_000),
                self.value(f"{own}.delay", 1_000),
            )
            env.set_restart_strategy(strategy)
        elif kind == "exponential-delay":
            own = "restart-strategy.exponential-delay"
            strategy = RestartStrategies.exponential_delay_restart(
                self.value(f"{own}.initial-backoff", 1_000),
                self.value(f"{own}.max-backoff", 60_000),
                self.value(f"{own}.backoff-multiplier", 1.5),
                self.value(f"{own}.reset-backoff-threshold", 3_600_000),
                self.value(f"{own}.jitter-factor", 0.1),
            )
            env.set_restart_strategy(strategy)


class TableConfig:
    """The settings of a table program; those that are set here count for later statements, as with SET.

    Args:
        settings: Where they are.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def set(self, key: str, value: Any) -> TableConfig:
        """Give a key a value.

        Raises:
            SqlError: If there is no such key, or no such value of it.
        """
        self._settings.set(key, str(value).lower() if isinstance(value, bool) else str(value))
        return self

    def get(self, key: str, default_value: str) -> str:
        """Return what a key was set to; the default if it was not.

        Raises:
            SqlError: If there is no such key.
        """
        found = self._settings.text(key)
        return default_value if found is None else found

    def set_idle_state_retention(self, duration: Any) -> TableConfig:
        """Let state that is not written for so long be forgotten: ``table.exec.state.ttl``.

        Args:
            duration: A ``timedelta``, milliseconds, or a text such as ``"1 h"``; 0 for never.

        Raises:
            ConfigurationError: If it is none of these.
            SqlError: If it is negative.
        """
        return self.set(SETTING, f"{parse_duration_ms(duration)} ms")

    def get_idle_state_retention(self) -> datetime.timedelta:
        """Return how long state is kept that is not written; 0 for ever."""
        return datetime.timedelta(milliseconds=self._settings.value(SETTING, 0))


def _setting(key: str) -> _Setting:
    found = _BY_KEY.get(key)
    if found is None:
        message = f"there is no option {key!r}"
        raise SqlError(message, hint=nearest(key, Settings.known_keys()) or "docs/guide/sql-client.md lists them")
    return found
