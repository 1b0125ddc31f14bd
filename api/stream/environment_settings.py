"""What can be set of a program besides its streams: the settings half of an environment.

Nothing here starts or touches a cluster. What a program does not say may be said from outside, in variables of the
environment; see `headrace.stream.environment`.

Source: PyFlink's ``StreamExecutionEnvironment``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from enum import Enum
from typing import Any, TypeVar

from headrace.engine.autoscaler.topology import unknown_exclusions
from headrace.engine.errors import ConfigurationError
from headrace.engine.graph.job_graph import JobGraph
from headrace.engine.graph.stream_graph import MAX_MAX_PARALLELISM
from headrace.engine.kernel.autoscaler_settings import AutoscalerSettings
from headrace.engine.kernel.config import (
    AnyRestartStrategy,
    CheckpointingMode,
    ClusterSettings,
    FailoverStrategy,
    HighAvailabilitySettings,
    JobSettings,
    StateSettings,
)
from headrace.state.backends.choice import HashMapStateBackend, RocksDBStateBackend

from ..arguments.checks import duration_ms
from ..arguments.places import lasting_place
from ..jobs.progress import ProgressListener
from .checkpoint_config import CheckpointConfig

__all__ = ["EnvironmentSettings", "RuntimeExecutionMode", "warn_of_exclusions"]

_LOG = logging.getLogger("headrace.autoscaler")

_Self = TypeVar("_Self", bound="EnvironmentSettings")

_DEFAULTS = JobSettings()

AUTOSCALER_VARIABLE = "HEADRACE_AUTOSCALER"
"""How jobs are rescaled by themselves: lines of ``key=value``, with Flink's keys."""

_OWN = (
    "_parallelism", "_max_parallelism", "_checkpoints", "_restart", "_runtime_mode", "_chaining_enabled",
    "_restore_from", "_allows_non_restored_state", "_savepoint_directory", "_job_options", "_on_progress",
    "_autoscaler",
)  # fmt: skip
"""What a program says of its jobs."""


_WITH_SETTERS = {
    "allow_non_restored_state", "attached", "autoscaler", "buffer_debloat_enabled", "checkpoint_key_file",
    "checkpoints", "failover", "restart", "restore_from", "restore_mode", "savepoint_directory", "state",
}  # fmt: skip
"""Fields of `JobSettings` that are said in another way than by an option of that name."""


class RuntimeExecutionMode(Enum):
    """How a program is run."""

    STREAMING = "streaming"
    BATCH = "batch"
    """All sources are bounded: nothing is late, results come once, and a failure starts over."""
    AUTOMATIC = "automatic"
    """BATCH if all sources are bounded and there is no iteration, else STREAMING."""


class EnvironmentSettings:
    """Settings of an environment, for all jobs that are submitted afterwards.

    Args:
        cluster_settings: How a cluster is laid out that this environment starts.
        cluster_name: By which a detached cluster is found again.
    """

    def __init__(self, cluster_settings: ClusterSettings, cluster_name: str | None) -> None:
        self._cluster_settings = cluster_settings
        self._cluster_name = cluster_name
        self._parallelism: int | None = None
        self._max_parallelism: int | None = None
        self._checkpoints = CheckpointConfig()
        self._restart: AnyRestartStrategy | None = None
        self._runtime_mode = RuntimeExecutionMode.STREAMING
        self._chaining_enabled = True
        self._allows_non_restored_state = False
        self._restore_from: str | None = os.environ.get("HEADRACE_RESTORE_FROM") or None
        # None until said: then what is said outside, else nothing, counts.
        self._savepoint_directory: str | None = None
        # Job settings that have no setter of their own, by the names of `JobSettings`.
        self._job_options: dict[str, Any] = {}
        self._on_progress: ProgressListener | None = None
        # Whether it has been said, and what.
        self._autoscaler: tuple[AutoscalerSettings | None] | None = None
        # Whether there is a cluster: from the first submission to `close`.
        self._is_connected = False

    @contextmanager
    def changed_apart(self) -> Iterator[None]:
        """Inside, settings may be changed; afterwards they are as before."""
        before = dict(vars(self))
        checkpoints = self._checkpoints
        self._checkpoints, self._job_options = checkpoints.copy(), dict(self._job_options)
        try:
            yield
        finally:
            checkpoints.adopt_temporary(self._checkpoints)
            for name in _OWN:
                setattr(self, name, before[name])

    # --------------------------------------------------------------------------------------------------------- settings

    def set_parallelism(self: _Self, parallelism: int) -> _Self:
        """Set the parallelism of operators that are added from here on and have none of their own."""
        self._parallelism = _checked_parallelism(parallelism, self._max_parallelism)
        return self

    def get_parallelism(self) -> int:
        """Return the parallelism in force: the program's, that of ``HEADRACE_PARALLELISM``, or the number of logical
        cores.
        """
        if self._parallelism is not None:
            return self._parallelism
        outside = os.environ.get("HEADRACE_PARALLELISM")
        if outside:
            if not outside.isdecimal() or int(outside) < 1:
                message = f"HEADRACE_PARALLELISM must be a whole number, 1 or more; got {outside!r}"
                raise ConfigurationError(message)
            return int(outside)
        return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)

    def set_max_parallelism(self: _Self, max_parallelism: int) -> _Self:
        """Set the number of key groups: the bound of every later parallelism; cannot be changed with the state kept."""
        self._max_parallelism = _checked_max_parallelism(max_parallelism)
        return self

    def get_max_parallelism(self) -> int | None:
        """Return the number of key groups; None for the default (128, more for a parallelism above 85)."""
        return self._max_parallelism

    def set_buffer_timeout(self: _Self, timeout: Any) -> _Self:
        """Send half-full output buffers after this long: milliseconds, or a text such as "5 ms"."""
        self._job_options["buffer_timeout_ms"] = duration_ms("buffer timeout", timeout, 0)
        return self

    def get_buffer_timeout(self) -> int:
        """After how many milliseconds half-full output buffers are sent."""
        return JobSettings(**self._job_options).buffer_timeout_ms

    def set_latency_target(self: _Self, target: Any) -> _Self:
        """Choose batches and times so that records take about this long from one task to the next, while all keep up.

        Of the target an eighth is for records that gather in an output buffer, and a quarter for what a task processes
        at once; the rest is for the way and for waiting. It sets the buffer timeout, the length of steps and the target
        of debloating, as if each had been set here: of several calls the last one counts, so a buffer timeout that was
        set before is replaced, and one that is set afterwards stays. Shorter batches cost throughput.

        Args:
            target: Milliseconds, or a text such as "10 ms". The settings of a fresh environment fit 40 ms and more.
        """
        target_ms = duration_ms("latency target", target, 1)
        self._job_options["buffer_timeout_ms"] = min(target_ms // 8, _DEFAULTS.buffer_timeout_ms)
        self._job_options["step_us"] = min(target_ms * 1_000 // 4, _DEFAULTS.step_us)
        self._job_options["buffer_debloat_target_ms"] = min(target_ms, _DEFAULTS.buffer_debloat_target_ms)
        return self

    def set_buffer_debloating(self: _Self, enabled: bool = True, *, target: Any = "100 ms") -> _Self:
        """Let no more be in flight to an operator than it needs a short time for, so that records and barriers do not
        wait long for it.

        On by default. An operator that keeps up has up to sixteen times the target in flight; what that may be at most
        is bounded anyhow. One message is always in flight on each channel, and one gathered: ten milliseconds' work, or
        one record. So an operator that gets records from many subtasks may have more than the target before it.

        Args:
            enabled: Whether channels adapt; else they always hold up to 16 MiB.
            target: How long an operator is to need for what is in flight to it: milliseconds or a text such as "1 s".
                A shorter one makes aligned checkpoints shorter while operators are slow, and batches smaller.
        """
        self._job_options["buffer_debloat_enabled"] = bool(enabled)
        self._job_options["buffer_debloat_target_ms"] = duration_ms("target of debloating", target, 1)
        return self

    def enable_object_reuse(self: _Self) -> _Self:
        """Never copy records: a promise that no function changes what it is handed, or has given.

        By default records are copied where others may hold them: a function may change what it is handed, and what it
        has given is not touched by what it does later.
        """
        self._job_options["object_reuse"] = True
        return self

    def disable_object_reuse(self: _Self) -> _Self:
        """Copy records where others may hold them; the default."""
        self._job_options["object_reuse"] = False
        return self

    def is_object_reuse_enabled(self) -> bool:
        """Return whether records are never copied."""
        return bool(self._job_options.get("object_reuse", False))

    def set_runtime_mode(self: _Self, mode: RuntimeExecutionMode) -> _Self:
        """Run as a stream, as a batch (bounded sources only, results once), or as the sources suggest."""
        self._runtime_mode = mode
        return self

    def set_high_availability(
        self: _Self,
        directory: str | os.PathLike[str],
        *,
        cluster_id: str | None = None,
        lease_store: str = "files",
        num_standbys: int = 1,
        lease_ms: Any = 6_000,
    ) -> _Self:
        """Let the cluster survive the loss of its leading process, and later starts take over its jobs.

        Must be called before the first job is submitted.

        Args:
            directory: Where the cluster's jobs are kept: a path or a URI that all its machines reach.
                It holds pickled programs, which a cluster runs: let only those write there who may run jobs.
            cluster_id: Names the cluster; one that is started with the directory and id of one that is gone recovers
                its jobs. None takes ``cluster_name``.
            lease_store: ``"files"``, or ``"zookeeper://host:port,host:port/path"`` (extra ``zookeeper``).
            num_standbys: Processes that wait to take over.
            lease_ms: After so long without a sign of life of the leader one of them does; also as a duration.

        Raises:
            ConfigurationError: If a value is illegal, there is no id, or a job has been submitted already.
        """
        if self._is_connected:
            message = "high availability must be set before the first job is submitted"
            raise ConfigurationError(message)
        settings = HighAvailabilitySettings(
            lasting_place(directory, "the directory for high availability"),
            cluster_id or self._cluster_name or "",
            lease_store,
            num_standbys,
            duration_ms("lease_ms", lease_ms, 1),
        )
        self._cluster_settings = replace(self._cluster_settings, high_availability=settings)
        self._cluster_name = settings.cluster_id
        return self

    def set_restart_strategy(self: _Self, strategy: AnyRestartStrategy) -> _Self:
        """Say how often a failed job is restarted; by default with checkpoints without end, else never."""
        self._restart = strategy
        return self

    def get_restart_strategy(self) -> AnyRestartStrategy | None:
        """Return how often a failed job is restarted; None for the default."""
        return self._restart

    def set_autoscaler(self: _Self, settings: AutoscalerSettings | Mapping[str, Any] | None) -> _Self:
        """Let the next jobs be rescaled by themselves, by how busy they are and what waits; needs checkpoints.

        Args:
            settings: When and how far; as an object, or by Flink's keys: ``{"job.autoscaler.enabled": True,
                "job.autoscaler.utilization.target": 0.8}``. None: they are rescaled by command only.

        Raises:
            ConfigurationError: If a key does not exist, or a value is illegal.
        """
        if isinstance(settings, Mapping):
            settings = AutoscalerSettings.from_configuration(settings)
        self._autoscaler = (settings,)
        return self

    def get_autoscaler(self) -> AutoscalerSettings | None:
        """Return how the next jobs are rescaled by themselves: as the program or ``HEADRACE_AUTOSCALER`` says; None:
        not.
        """
        if self._autoscaler is not None:
            return self._autoscaler[0]
        lines = [line for line in os.environ.get(AUTOSCALER_VARIABLE, "").splitlines() if line.strip()]
        return AutoscalerSettings.from_configuration(dict(line.split("=", 1) for line in lines))

    def set_failover_strategy(self: _Self, strategy: str | FailoverStrategy) -> _Self:
        """Say what is restarted with a failed task.

        Args:
            strategy: ``"region"`` (default): the tasks that are connected to it, directly or not; all others run on.
                ``"full"``: the whole job.

        Raises:
            ConfigurationError: If it is neither.
        """
        names = [one.value for one in FailoverStrategy]
        if not isinstance(strategy, FailoverStrategy) and strategy not in names:
            message = f"the failover strategy must be one of {', '.join(names)}; got {strategy!r}"
            raise ConfigurationError(message)
        self._job_options["failover"] = FailoverStrategy(strategy)
        return self

    def set_state_backend(self: _Self, backend: str | HashMapStateBackend | RocksDBStateBackend) -> _Self:
        """Say where keyed state lives; by default on the heap.

        Args:
            backend: ``"heap"`` or a `HashMapStateBackend`: Python objects, fastest while all state fits in memory.
                ``"rocksdb"`` or a `RocksDBStateBackend` with its settings: a database on the local disk of each slot's
                machine, for state of any size, with checkpoints that write only what has changed.

        Raises:
            ConfigurationError: If it is none of these.
        """
        if isinstance(backend, RocksDBStateBackend):
            local = backend.local_directory
            local = None if local is None else lasting_place(local, "the local directory of databases")
            state = StateSettings("rocksdb", backend.managed_memory_bytes, local)
        else:
            state = StateSettings("heap" if isinstance(backend, HashMapStateBackend) else backend)
        self._job_options["state"] = state
        return self

    def get_state_backend(self) -> HashMapStateBackend | RocksDBStateBackend:
        """Return where keyed state lives."""
        state: StateSettings = self._job_options.get("state", StateSettings())
        if state.backend != "rocksdb":
            return HashMapStateBackend()
        return RocksDBStateBackend(state.managed_memory_bytes, state.local_directory)

    def disable_operator_chaining(self: _Self) -> _Self:
        """Run every operator as a task of its own."""
        self._chaining_enabled = False
        return self

    def is_chaining_enabled(self) -> bool:
        """Return whether operators are chained."""
        return self._chaining_enabled

    def enable_checkpointing(
        self: _Self,
        interval_ms: Any,
        mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE,
        *,
        directory: str | os.PathLike[str] | None = None,
    ) -> _Self:
        """Take checkpoints.

        Args:
            interval_ms: Time from one to the next, milliseconds (or a text such as "10 s").
            mode: Exactly-once or at-least-once.
            directory: A path or a URI that all machines of the cluster reach. None takes a fresh
                temporary directory of this machine: enough to survive the death of any process, not that of the
                machine, and not for several machines.
        """
        interval = duration_ms("checkpoint interval", interval_ms, 1)
        self._checkpoints.enable(interval, mode, None if directory is None else os.fspath(directory))
        return self

    def get_checkpoint_config(self) -> CheckpointConfig:
        """Return all other settings of checkpoints."""
        return self._checkpoints

    def get_checkpoint_interval(self) -> int | None:
        """Return milliseconds from one checkpoint to the next; None if none are taken."""
        return self._checkpoints.get_checkpoint_interval()

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """Exactly-once or at-least-once."""
        return self._checkpoints.get_checkpointing_mode()

    def set_restore_path(self: _Self, path: str | os.PathLike[str] | None) -> _Self:
        """Start the next jobs from a checkpoint: the path that ``JobView.last_checkpoint_path`` gives."""
        self._restore_from = None if path is None else lasting_place(path, "the snapshot to start from")
        return self

    def get_restore_path(self) -> str | None:
        """Return where the next jobs start from; None for nothing."""
        return self._restore_from

    def allow_non_restored_state(self: _Self) -> _Self:
        """Let the next jobs start although what they start from holds state that has no place in them."""
        self._allows_non_restored_state = True
        return self

    def set_plan(self: _Self, plan: str | None) -> _Self:
        """Say what the next jobs are: a JSON object that lies in their checkpoints, for a job that goes on from one."""
        self._job_options["plan"] = plan
        return self

    def set_default_savepoint_directory(self: _Self, directory: str | os.PathLike[str]) -> _Self:
        """Say where the next jobs' savepoints go unless their request names a place.

        Args:
            directory: A path or a URI that all machines of the cluster reach. A relative path is one
                of the client's working directory.
        """
        self._savepoint_directory = lasting_place(directory, "the directory of savepoints")
        return self

    def get_default_savepoint_directory(self) -> str | None:
        """Return where savepoints go by default: the program's word, that of ``HEADRACE_SAVEPOINT_DIRECTORY``,
        or None.
        """
        if self._savepoint_directory is not None:
            return self._savepoint_directory
        outside = os.environ.get("HEADRACE_SAVEPOINT_DIRECTORY")
        return lasting_place(outside, "HEADRACE_SAVEPOINT_DIRECTORY") if outside else None

    def set_progress_listener(self: _Self, listener: ProgressListener | None) -> _Self:
        """Have each new view of a job told to ``listener`` while somebody waits for it.

        A `headrace.jobs.progress.Progress` is also told what each sink guarantees, when a job has been submitted.
        None leaves it to the surroundings: a live table under ``headrace run`` and in a notebook, lines in the log of
        a submitted program, nothing elsewhere. ``HEADRACE_PROGRESS`` says it from outside: ``terminal``, ``lines`` or
        ``none``.
        """
        self._on_progress = listener
        return self


def _checked_parallelism(parallelism: Any, max_parallelism: int | None) -> int:
    if isinstance(parallelism, bool) or not isinstance(parallelism, int):
        message = f"parallelism must be a whole number; got {parallelism!r}"
        raise ConfigurationError(message)
    maximum = MAX_MAX_PARALLELISM if max_parallelism is None else max_parallelism
    if not 1 <= parallelism <= maximum:
        message = f"parallelism must be between 1 and max_parallelism ({maximum}); got {parallelism}"
        raise ConfigurationError(message)
    return parallelism


def _checked_max_parallelism(max_parallelism: Any) -> int:
    if (
        isinstance(max_parallelism, bool)
        or not isinstance(max_parallelism, int)
        or not 1 <= max_parallelism <= MAX_MAX_PARALLELISM
    ):
        message = f"max_parallelism must be between 1 and {MAX_MAX_PARALLELISM}; got {max_parallelism!r}"
        raise ConfigurationError(message)
    return max_parallelism


def checked_job_options(options: Mapping[str, Any], others: Iterable[str]) -> dict[str, int]:
    """Check the options that have no setter of their own, which are whole numbers.

    Args:
        options: By the names of `JobSettings`.
        others: Options that are known elsewhere, for the message.

    Raises:
        ConfigurationError: If one does not exist, or is no whole number.
    """
    known = [one.name for one in fields(JobSettings) if one.name not in _WITH_SETTERS]
    for name, value in options.items():
        if name not in known:
            choices = sorted({*known, *(one.name for one in fields(ClusterSettings)), *others})
            message = f"no option is called {name!r}; there are {', '.join(choices)}"
            raise ConfigurationError(message)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            message = f"{name} must be a whole number, 0 or more; got {value!r}"
            raise ConfigurationError(message)
    return dict(options)


def warn_of_exclusions(job_graph: JobGraph, settings: JobSettings) -> None:
    """Say which uids of ``vertex.exclude.ids`` no operator has: what is misspelt would be rescaled.

    It is no error: one configuration may be for the jobs of several programs.
    """
    for uid, hint in [] if settings.autoscaler is None else unknown_exclusions(job_graph, settings.autoscaler):
        meant = "" if hint is None else f"; {hint}"
        _LOG.warning(
            "job.autoscaler.vertex.exclude.ids names %r, and job %r has no operator of that uid%s",
            uid,
            job_graph.name,
            meant,
        )
