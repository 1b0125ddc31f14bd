"""The environment: where a program is written down, configured, and sent to a cluster.

An environment records transformations and settings; nothing runs before ``execute``. Only then is an actor system
started or connected to, so building, explaining and testing a program needs no Ray. One environment has at most one
cluster, kept for all its jobs until ``close`` or the end of the process.

What a program does not say itself may be said from outside, so that one program runs unchanged as a script, in a
notebook and through ``ray job submit``: ``HEADRACE_ACTOR_SYSTEM``, ``HEADRACE_ADDRESS``, ``HEADRACE_PARALLELISM``,
``HEADRACE_RESTORE_FROM``, ``HEADRACE_RESTORE_MODE``, ``HEADRACE_ALLOW_NON_RESTORED_STATE``,
``HEADRACE_SAVEPOINT_DIRECTORY``, ``HEADRACE_DRY_RUN``, ``HEADRACE_PROGRESS``. What it does say wins.

Source: PyFlink's ``StreamExecutionEnvironment``, ``CheckpointConfig`` and ``RestartStrategies``.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import fields, replace
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any

import cloudpickle

from headrace.client import CollectedRows, JobClient, JobExecutionResult, ProgressListener, ReportListener, print_report
from headrace.datatypes import resolve_type, schema_of
from headrace.engine.checkpoint_io import RestorePoint
from headrace.engine.config import (
    AnyRestartStrategy,
    CheckpointingMode,
    CheckpointSettings,
    ClusterSettings,
    ExponentialDelayRestartStrategy,
    FailoverStrategy,
    FailureRateRestartStrategy,
    HighAvailabilitySettings,
    JobSettings,
    RestartStrategy,
    RestoreMode,
    StateSettings,
    parse_duration_ms,
)
from headrace.engine.connector import Source
from headrace.engine.errors import ConfigurationError, ExternalError, HeadraceError, JobError, ProgramError, UserError
from headrace.engine.eventtime import WatermarkStrategy
from headrace.engine.explain import explain_text, plan_json
from headrace.engine.jobgraph import JobGraph
from headrace.engine.operators import Operator
from headrace.engine.restore_check import RestoreReport, check_restore
from headrace.engine.sources import SourceOperator
from headrace.engine.streamgraph import (
    MAX_MAX_PARALLELISM,
    OperatorKind,
    OperatorTransformation,
    StreamGraph,
    Transformation,
    build_job_graph,
    build_stream_graph,
    num_slots,
)
from headrace.restoring import DryRunOver, Restore, absolute_place, restore_mode_of
from headrace.state.backends import HashMapStateBackend, RocksDBStateBackend
from headrace.state.storage import CheckpointStorage

if TYPE_CHECKING:
    from headrace.actors.cluster import Cluster
    from headrace.datastream import DataStream

__all__ = [
    "CheckpointConfig",
    "ExternalizedCheckpointRetention",
    "RestartStrategies",
    "RuntimeExecutionMode",
    "StreamExecutionEnvironment",
]

_ACTOR_SYSTEMS = ("ray", "local", "sim")
_OWN_OPTIONS = ("cluster_name", "detached", "parallelism", "seed")
_DEFAULT_JOB_NAME = "headrace job"


class RuntimeExecutionMode(Enum):
    """How a program is run (row A1)."""

    STREAMING = "streaming"
    BATCH = "batch"
    """All sources are bounded; no checkpoints, a failure starts over."""
    AUTOMATIC = "automatic"
    """BATCH if all sources are bounded, else STREAMING."""


class ExternalizedCheckpointRetention(Enum):
    """What becomes of a job's checkpoints when it is canceled."""

    RETAIN_ON_CANCELLATION = "retain"
    DELETE_ON_CANCELLATION = "delete"


class RestartStrategies:
    """Makes restart strategies, by PyFlink's names (row D31)."""

    @staticmethod
    def fixed_delay_restart(restart_attempts: int, delay_between_attempts: Any) -> RestartStrategy:
        """Restart a failed job some times.

        Args:
            restart_attempts: How often in all; -1 for without end.
            delay_between_attempts: Pause before each; milliseconds, or a text such as "10 s".
        """
        if restart_attempts < -1:
            message = f"restart_attempts must be at least -1; got {restart_attempts}"
            raise ConfigurationError(message)
        return RestartStrategy.fixed_delay(
            restart_attempts, _duration_ms("delay_between_attempts", delay_between_attempts, 0)
        )

    @staticmethod
    def no_restart() -> RestartStrategy:
        """Fail with the first failure."""
        return RestartStrategy.none()

    @staticmethod
    def failure_rate_restart(
        failure_rate: int, failure_interval: Any, delay_interval: Any
    ) -> FailureRateRestartStrategy:
        """Restart a failed job as long as failures do not come too often.

        Args:
            failure_rate: So many failures within any ``failure_interval`` are answered by a restart; one more is final.
            failure_interval: Milliseconds, or a text such as "5 min".
            delay_interval: Pause before each restart; milliseconds or a text.

        Raises:
            ConfigurationError: If a value is out of range.
        """
        return FailureRateRestartStrategy(
            _whole_number("failure_rate", failure_rate),
            _duration_ms("failure_interval", failure_interval, 1),
            _duration_ms("delay_interval", delay_interval, 0),
        )

    @staticmethod
    def exponential_delay_restart(
        initial_backoff: Any,
        max_backoff: Any,
        backoff_multiplier: float = 1.5,
        reset_backoff_threshold: Any = "1 h",
        jitter_factor: float = 0.1,
        *,
        seed: int = 0,
    ) -> ExponentialDelayRestartStrategy:
        """Restart a failed job without end, after pauses that grow while it goes on failing.

        Args:
            initial_backoff: The first pause; milliseconds, or a text such as "1 s".
            max_backoff: The longest.
            backoff_multiplier: By what each is longer than the one before; at least 1.
            reset_backoff_threshold: After running for so long without a failure the pauses begin anew.
            jitter_factor: Each pause is made up to this share longer or shorter; 0 to 1.
            seed: What the jitter follows from; different for jobs that should not come back at the same time.

        Raises:
            ConfigurationError: If a value is out of range.
        """
        return ExponentialDelayRestartStrategy(
            _duration_ms("initial_backoff", initial_backoff, 1),
            _duration_ms("max_backoff", max_backoff, 1),
            float(backoff_multiplier),
            _duration_ms("reset_backoff_threshold", reset_backoff_threshold, 1),
            float(jitter_factor),
            _whole_number("seed", seed),
        )


class CheckpointConfig:
    """The settings of an environment's checkpoints beyond their interval; got from ``get_checkpoint_config``."""

    def __init__(self) -> None:
        # None until checkpoints are enabled: there is no default for how often.
        self._interval_ms: int | None = None
        # None until said or, at submission, replaced by a fresh temporary directory.
        self._directory: str | None = None
        # Everything else, by the names of `CheckpointSettings`; checked when it is set.
        self._others: dict[str, Any] = {}

    def enable(self, interval_ms: int, mode: CheckpointingMode, directory: str | None) -> None:
        """Switch checkpoints on; called by ``enable_checkpointing``."""
        self._interval_ms = interval_ms
        if directory is not None:
            self.set_checkpoint_storage_dir(directory)
        self._set("mode", mode)

    def is_checkpointing_enabled(self) -> bool:
        """Whether checkpoints are taken."""
        return self._interval_ms is not None

    def get_checkpoint_interval(self) -> int | None:
        """Time from one trigger to the next, milliseconds; None while checkpoints are off."""
        return self._interval_ms

    def set_checkpointing_mode(self, mode: CheckpointingMode) -> CheckpointConfig:
        """Exactly-once (aligned barriers) or at-least-once (row G8)."""
        return self._set("mode", mode)

    def set_checkpoint_timeout(self, timeout: Any) -> CheckpointConfig:
        """A checkpoint that takes longer is aborted; milliseconds or a text such as "1 min"."""
        return self._set("timeout_ms", _duration_ms("checkpoint timeout", timeout, 1))

    def set_min_pause_between_checkpoints(self, pause: Any) -> CheckpointConfig:
        """Time between the end of one checkpoint and the trigger of the next, at least; milliseconds or a text."""
        return self._set("min_pause_ms", _duration_ms("minimum pause", pause, 0))

    def set_max_concurrent_checkpoints(self, number: int) -> CheckpointConfig:
        """How many may be in flight at once (row G4)."""
        return self._set("max_concurrent", number)

    def set_tolerable_checkpoint_failure_number(self, number: int) -> CheckpointConfig:
        """How many in a row may fail before the job does; -1 for any number."""
        return self._set("tolerable_failures", number)

    def set_max_retained_checkpoints(self, number: int) -> CheckpointConfig:
        """How many complete ones are kept."""
        return self._set("num_retained", number)

    def set_externalized_checkpoint_retention(self, retention: ExternalizedCheckpointRetention) -> CheckpointConfig:
        """What becomes of them when the job is canceled."""
        return self._set("retain_on_cancellation", retention is ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> CheckpointConfig:
        """Let barriers overtake records in flight, which become part of the checkpoint: it is quick under backpressure.

        Exactly-once only. At most one checkpoint is in flight at a time then, whatever
        ``set_max_concurrent_checkpoints`` says. Jobs with loops are aligned all the same, and so is the last checkpoint
        of a job that is stopped.

        Args:
            enabled: False for aligned barriers, the default of a job.
        """
        return self._set("unaligned", bool(enabled))

    def set_aligned_checkpoint_timeout(self, timeout: Any) -> CheckpointConfig:
        """With unaligned checkpoints: barriers keep their place until a checkpoint is this old, and then overtake.

        Args:
            timeout: Milliseconds since its trigger, or a text such as "10 s"; 0, the default, overtakes at once.
        """
        return self._set("aligned_timeout_ms", _duration_ms("aligned checkpoint timeout", timeout, 0))

    def set_checkpoint_storage_dir(self, directory: str | os.PathLike[str]) -> CheckpointConfig:
        """Where they go: a path or any ``pyarrow.fs`` URI. A relative path is one of the client's working directory."""
        self._directory = absolute_place(os.fspath(directory))
        return self

    def _set(self, name: str, value: Any) -> CheckpointConfig:
        CheckpointSettings(interval_ms=1, directory="", **{**self._others, name: value})  # checks it
        self._others[name] = value
        return self

    def to_settings(self, *, make_directory: bool) -> CheckpointSettings | None:
        """The settings for a job; None while checkpoints are off.

        Args:
            make_directory: Whether to make the temporary directory, if no other was named; else its place is only
                described.
        """
        if self._interval_ms is None:
            return None
        directory = self._directory
        if directory is None and make_directory:
            directory = self._directory = tempfile.mkdtemp(prefix="headrace-checkpoints-")
        return CheckpointSettings(
            self._interval_ms,
            directory or os.path.join(tempfile.gettempdir(), "headrace-checkpoints-*"),
            **self._others,
        )


class StreamExecutionEnvironment:
    """The context in which a streaming program is written and run. Made by `get_execution_environment`."""

    def __init__(
        self,
        actor_system: str,
        address: str | None,
        cluster_settings: ClusterSettings,
        *,
        seed: int = 0,
        detached: bool = False,
        cluster_name: str | None = None,
    ) -> None:
        self._actor_system = actor_system
        self._address = address
        self._cluster_settings = cluster_settings
        self._seed = seed
        self._detached = detached
        self._cluster_name = cluster_name
        # Operators and sinks of the program so far; what feeds them hangs on them. Emptied by every submission.
        self._transformations: list[OperatorTransformation] = []
        self._next_id = 0
        self._parallelism: int | None = None
        self._max_parallelism: int | None = None
        self._checkpoints = CheckpointConfig()
        self._restart: AnyRestartStrategy | None = None
        self._runtime_mode = RuntimeExecutionMode.STREAMING
        self._chaining_enabled = True
        self._restore_from: str | None = os.environ.get("HEADRACE_RESTORE_FROM") or None
        # None until said: then what is said outside, else nothing, counts.
        self._savepoint_directory: str | None = None
        # Job settings that have no setter of their own, by the names of `JobSettings`.
        self._job_options: dict[str, Any] = {}
        # Made by the first submission, gone after `close`.
        self._cluster: Cluster | None = None
        self._on_progress: ProgressListener | None = None
        # Iterators that wait for rows of the program being written, by the uid of their sink's transformation.
        self._collecting: dict[int, CollectedRows] = {}

    # ------------------------------------------------------------------------------------------------------- making one

    @staticmethod
    def get_execution_environment(
        actor_system: str | None = None, address: str | None = None, **options: Any
    ) -> StreamExecutionEnvironment:
        """Make an environment.

        Args:
            actor_system: ``ray`` (default), ``local`` (one process, for debugging) or ``sim`` (one thread, seeded,
                virtual time).
            address: Of a running Ray cluster; None takes the one this process runs in, else starts one on this machine.
            **options: ``parallelism``; ``seed`` (for sim); ``detached`` (leave the cluster and its jobs running at the
                end of this process) and ``cluster_name`` (by which a detached cluster is found again); any field of
                `ClusterSettings` (``slots_per_task_manager``, ``max_slots`` ...); any field of `JobSettings` without a
                setter here (``slot_request_timeout_ms``, ``max_batch_rows`` ...).

        Raises:
            ConfigurationError: If an option does not exist or has an illegal value.
        """
        actor_system = actor_system or os.environ.get("HEADRACE_ACTOR_SYSTEM") or "ray"
        if actor_system not in _ACTOR_SYSTEMS:
            message = f"actor_system must be one of {', '.join(_ACTOR_SYSTEMS)}; got {actor_system!r}"
            raise ConfigurationError(message)
        cluster_options = {f.name: options.pop(f.name) for f in fields(ClusterSettings) if f.name in options}
        environment = StreamExecutionEnvironment(
            actor_system,
            address or os.environ.get("HEADRACE_ADDRESS") or None,
            ClusterSettings(**cluster_options),
            seed=int(options.pop("seed", 0)),
            detached=bool(
                options.pop("detached", os.environ.get("HEADRACE_DETACHED") == "1" and actor_system == "ray")
            ),
            cluster_name=options.pop("cluster_name", None),
        )
        outside = HighAvailabilitySettings.from_configuration(_high_availability_from_environment())
        if outside is not None and environment._cluster_settings.high_availability is None:
            environment._cluster_settings = replace(environment._cluster_settings, high_availability=outside)
            environment._cluster_name = outside.cluster_id
        if "parallelism" in options:
            environment.set_parallelism(options.pop("parallelism"))
        own = {"checkpoints", "restart", "restore_from", "attached", "state", "failover", "buffer_debloating"}
        own |= {"restore_mode", "allow_non_restored_state", "savepoint_directory"}
        known = [f.name for f in fields(JobSettings) if f.name not in own]
        for name, value in options.items():
            if name not in known:
                choices = sorted({*known, *(f.name for f in fields(ClusterSettings)), *_OWN_OPTIONS})
                message = f"no option is called {name!r}; there are {', '.join(choices)}"
                raise ConfigurationError(message)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                message = f"{name} must be a whole number, 0 or more; got {value!r}"
                raise ConfigurationError(message)
            environment._job_options[name] = value
        return environment

    # --------------------------------------------------------------------------------------------------------- settings

    def set_parallelism(self, parallelism: int) -> StreamExecutionEnvironment:
        """Set the parallelism of operators that are added from here on and have none of their own."""
        self._parallelism = _checked_parallelism(parallelism, self._max_parallelism)
        return self

    def get_parallelism(self) -> int:
        """The parallelism in force: the program's, that of ``HEADRACE_PARALLELISM``, or the number of logical cores."""
        if self._parallelism is not None:
            return self._parallelism
        outside = os.environ.get("HEADRACE_PARALLELISM")
        if outside:
            if not outside.isdecimal() or int(outside) < 1:
                message = f"HEADRACE_PARALLELISM must be a whole number, 1 or more; got {outside!r}"
                raise ConfigurationError(message)
            return int(outside)
        return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)

    def set_max_parallelism(self, max_parallelism: int) -> StreamExecutionEnvironment:
        """Set the number of key groups: the bound of every later parallelism; cannot be changed with the state kept."""
        self._max_parallelism = _checked_max_parallelism(max_parallelism)
        return self

    def get_max_parallelism(self) -> int | None:
        """The number of key groups; None for the default (128, more for a parallelism above 85)."""
        return self._max_parallelism

    def set_buffer_timeout(self, timeout: Any) -> StreamExecutionEnvironment:
        """Send half-full output buffers after this long: milliseconds, or a text such as "5 ms"."""
        self._job_options["buffer_timeout_ms"] = _duration_ms("buffer timeout", timeout, 0)
        return self

    def set_buffer_debloating(self, enabled: bool = True, *, target: Any = "1 s") -> StreamExecutionEnvironment:
        """Let less be in flight to operators that are slow, so that records and barriers do not wait long for them.

        Off by default. An operator that keeps up is not touched.

        Args:
            enabled: Whether channels adapt.
            target: How long an operator is to need for what is in flight to it: milliseconds or a text such as "1 s".
        """
        self._job_options["buffer_debloating"] = bool(enabled)
        self._job_options["buffer_debloat_target_ms"] = _duration_ms("target of debloating", target, 1)
        return self

    def set_runtime_mode(self, mode: RuntimeExecutionMode) -> StreamExecutionEnvironment:
        """Run as a stream, as a batch (bounded sources only, no checkpoints), or as the sources suggest."""
        self._runtime_mode = mode
        return self

    def set_high_availability(
        self,
        directory: str | os.PathLike[str],
        *,
        cluster_id: str | None = None,
        lease_store: str = "files",
        num_standbys: int = 1,
        lease_ms: Any = 6_000,
    ) -> StreamExecutionEnvironment:
        """Let the cluster survive the loss of its leading process, and later starts take over its jobs.

        Must be called before the first job is submitted.

        Args:
            directory: Where the cluster's jobs are kept: a path or any ``pyarrow.fs`` URI that all its machines reach.
                It holds pickled programs, which a cluster runs: let nobody write there who may not run jobs.
            cluster_id: Names the cluster; one that is started with the directory and id of one that is gone recovers
                its jobs. None takes ``cluster_name``.
            lease_store: ``"files"``, or ``"zookeeper://host:port,host:port/path"`` (extra ``zookeeper``).
            num_standbys: Processes that wait to take over.
            lease_ms: After so long without a sign of life of the leader one of them does; also as a duration.

        Raises:
            ConfigurationError: If a value is illegal, there is no id, or a job has been submitted already.
        """
        if self._cluster is not None:
            message = "high availability must be set before the first job is submitted"
            raise ConfigurationError(message)
        settings = HighAvailabilitySettings(
            absolute_place(os.fspath(directory)),
            cluster_id or self._cluster_name or "",
            lease_store,
            num_standbys,
            _duration_ms("lease_ms", lease_ms, 1),
        )
        self._cluster_settings = replace(self._cluster_settings, high_availability=settings)
        self._cluster_name = settings.cluster_id
        return self

    def set_restart_strategy(self, strategy: AnyRestartStrategy) -> StreamExecutionEnvironment:
        """Say how often a failed job is restarted; by default with checkpoints without end, else never."""
        self._restart = strategy
        return self

    def set_failover_strategy(self, strategy: str | FailoverStrategy) -> StreamExecutionEnvironment:
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

    def set_state_backend(self, backend: str | HashMapStateBackend | RocksDBStateBackend) -> StreamExecutionEnvironment:
        """Say where keyed state lives; by default on the heap.

        Args:
            backend: ``"heap"`` or a `HashMapStateBackend`: Python objects, fastest while all state fits in memory.
                ``"rocksdb"`` or a `RocksDBStateBackend` with its settings: a database on the local disk of each slot's
                machine, for state of any size, with checkpoints that write only what has changed.

        Raises:
            ConfigurationError: If it is none of these.
        """
        if isinstance(backend, RocksDBStateBackend):
            state = StateSettings("rocksdb", backend.managed_memory_bytes, backend.local_directory)
        else:
            state = StateSettings("heap" if isinstance(backend, HashMapStateBackend) else backend)
        self._job_options["state"] = state
        return self

    def disable_operator_chaining(self) -> StreamExecutionEnvironment:
        """Run every operator as a task of its own."""
        self._chaining_enabled = False
        return self

    def is_chaining_enabled(self) -> bool:
        """Whether operators are chained."""
        return self._chaining_enabled

    def enable_checkpointing(
        self,
        interval_ms: Any,
        mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE,
        *,
        directory: str | os.PathLike[str] | None = None,
    ) -> StreamExecutionEnvironment:
        """Take checkpoints.

        Args:
            interval_ms: Time from one to the next, milliseconds (or a text such as "10 s").
            mode: Exactly-once or at-least-once.
            directory: A path or any ``pyarrow.fs`` URI that all machines of the cluster reach. None takes a fresh
                temporary directory of this machine: enough to survive the death of any process, not that of the
                machine, and not for several machines.
        """
        interval = _duration_ms("checkpoint interval", interval_ms, 1)
        self._checkpoints.enable(interval, mode, None if directory is None else os.fspath(directory))
        return self

    def get_checkpoint_config(self) -> CheckpointConfig:
        """All other settings of checkpoints."""
        return self._checkpoints

    def set_restore_path(self, path: str | os.PathLike[str] | None) -> StreamExecutionEnvironment:
        """Start the next jobs from a checkpoint: the path that ``JobView.last_checkpoint_path`` gives."""
        self._restore_from = None if path is None else absolute_place(os.fspath(path))
        return self

    def set_default_savepoint_directory(self, directory: str | os.PathLike[str]) -> StreamExecutionEnvironment:
        """Say where the next jobs' savepoints go unless their request names a place.

        Args:
            directory: A path or any ``pyarrow.fs`` URI that all machines of the cluster reach. A relative path is one
                of the client's working directory.
        """
        self._savepoint_directory = absolute_place(os.fspath(directory))
        return self

    def get_default_savepoint_directory(self) -> str | None:
        """Where savepoints go by default: the program's word, that of ``HEADRACE_SAVEPOINT_DIRECTORY``, or None."""
        if self._savepoint_directory is not None:
            return self._savepoint_directory
        outside = os.environ.get("HEADRACE_SAVEPOINT_DIRECTORY")
        return absolute_place(outside) if outside else None

    def set_progress_listener(self, listener: ProgressListener | None) -> StreamExecutionEnvironment:
        """Have each new view of a job told to ``listener`` while somebody waits for it.

        None leaves it to the surroundings: a live table under ``headrace run`` and in a notebook, nothing elsewhere.
        """
        self._on_progress = listener
        return self

    # ---------------------------------------------------------------------------------------------------------- sources

    def from_source(
        self,
        source: Source,
        watermark_strategy: WatermarkStrategy | None = None,
        source_name: str = "source",
        type_info: Any = None,
    ) -> DataStream:
        """Read a source.

        Args:
            source: Where the records come from.
            watermark_strategy: How event time is found and progresses; None for no watermarks.
            source_name: For people.
            type_info: The declared type of its records, if it does not know better itself.
        """
        strategy = WatermarkStrategy.no_watermarks() if watermark_strategy is None else watermark_strategy
        for name, value, kind in (
            ("source", source, "create_enumerator"),
            ("watermark_strategy", strategy, "with_timestamp_assigner"),
        ):
            if not hasattr(value, kind):
                message = f"{name} must be a {'Source' if name == 'source' else 'WatermarkStrategy'}; got {value!r}"
                raise ProgramError(message)
        return self._add_source(SourceOperator(source, strategy), source_name, type_info)

    def from_collection(self, collection: Iterable[Any], type_info: Any = None) -> DataStream:
        """Read the elements of a collection, in order, in one subtask.

        Args:
            collection: Finite; read to its end at once. A ``pyarrow`` table or record batch is read as columns.
            type_info: The elements' type; None leaves them as Python objects.
        """
        from headrace.connectors.collection import CollectionSource

        schema = None if type_info is None else schema_of(resolve_type(type_info))
        operator = SourceOperator(CollectionSource(collection, schema), WatermarkStrategy.no_watermarks())
        return self._add_source(operator, "collection", None, is_parallel=False)

    def from_elements(self, *elements: Any, type_info: Any = None) -> DataStream:
        """Read the given elements, in order, in one subtask."""
        return self.from_collection(elements, type_info)

    def socket_text_stream(self, host: str, port: int) -> DataStream:
        """Read lines of text from a socket, in one subtask.

        A socket cannot be rewound: lines in flight at a failure are lost (row G12).
        """
        from headrace.connectors.socket import SocketTextSource

        operator = SourceOperator(SocketTextSource(host, port), WatermarkStrategy.no_watermarks())
        return self._add_source(operator, f"socket {host}:{port}", None, is_parallel=False)

    def _add_source(self, operator: Operator, name: str, type_info: Any, *, is_parallel: bool = True) -> DataStream:
        from headrace.datastream import DataStream

        transformation = OperatorTransformation(
            self.new_id(),
            name,
            OperatorKind.SOURCE,
            operator,
            (),
            self.get_parallelism() if is_parallel else 1,
            is_parallel=is_parallel,
            output_schema=None if type_info is None else schema_of(resolve_type(type_info)),
        )
        return DataStream(self, transformation)

    # -------------------------------------------------------------------------------------------- recording the program

    def new_id(self) -> int:
        """An id for the next transformation; called by the stream classes."""
        self._next_id += 1
        return self._next_id

    def add_operator(self, transformation: OperatorTransformation) -> None:
        """Make an operator part of the program; called by the stream classes. Sources are found from what they feed."""
        self._transformations.append(transformation)

    def add_collector(self, transformation: Transformation, rows: CollectedRows) -> None:
        """Have what a collect sink reports go to ``rows``; called by ``execute_and_collect``."""
        self._collecting[transformation.transformation_id] = rows

    # --------------------------------------------------------------------------------------------------------- the plan

    def get_stream_graph(self) -> StreamGraph:
        """The program as operators and edges.

        Raises:
            ProgramError: If it has no operator or would mean nothing.
            ConfigurationError: If a parallelism is out of range.
        """
        return build_stream_graph(
            self._transformations, chaining_enabled=self._chaining_enabled, max_parallelism=self._max_parallelism
        )

    def get_job_graph(self, job_name: str = _DEFAULT_JOB_NAME) -> JobGraph:
        """The program as it would be submitted."""
        graph = self.get_stream_graph()
        return build_job_graph(graph, job_name, self._job_settings(graph, make_directory=False))

    def get_execution_plan(self) -> str:
        """The program's operators as JSON, in the form of Flink's plan visualizer."""
        return plan_json(self.get_stream_graph())

    def explain(self, job_name: str = _DEFAULT_JOB_NAME) -> str:
        """The program as text: tasks with their chains, exchanges, slots and which operators work on columns."""
        return explain_text(self.get_job_graph(job_name))

    def _job_settings(self, graph: StreamGraph, *, make_directory: bool) -> JobSettings:
        unbounded = [
            node.name
            for node in graph.nodes.values()
            if isinstance(node.operator, SourceOperator) and not node.operator.source.is_bounded
        ]
        if self._runtime_mode is RuntimeExecutionMode.BATCH and unbounded:
            message = f"runtime mode BATCH needs bounded sources; {unbounded[0]!r} is unbounded"
            raise ProgramError(message)
        is_batch = self._runtime_mode is not RuntimeExecutionMode.STREAMING and not unbounded
        checkpoints = None if is_batch else self._checkpoints.to_settings(make_directory=make_directory)
        return JobSettings(
            checkpoints=checkpoints,
            restart=self._restart,
            restore_from=self._restore_from,
            restore_mode=restore_mode_of(os.environ.get("HEADRACE_RESTORE_MODE") or RestoreMode.NO_CLAIM),
            allow_non_restored_state=os.environ.get("HEADRACE_ALLOW_NON_RESTORED_STATE") == "1",
            savepoint_directory=self.get_default_savepoint_directory(),
            **self._job_options,
        )

    # ---------------------------------------------------------------------------------------------------------- running

    def execute(
        self,
        job_name: str = _DEFAULT_JOB_NAME,
        *,
        from_checkpoint: str | os.PathLike[str] | None = None,
        from_savepoint: str | os.PathLike[str] | None = None,
        allow_non_restored_state: bool | None = None,
        restore_mode: RestoreMode | str | None = None,
        on_progress: ProgressListener | None = None,
    ) -> JobExecutionResult:
        """Run the program and wait for its end.

        Args:
            job_name: For people.
            from_checkpoint: Directory of a checkpoint to start from, for this job only.
            from_savepoint: A savepoint to start from, for this job only; the same with another name.
            allow_non_restored_state: Start although the snapshot holds state of operators that the program does not
                have: that is lost. State is matched by ``uid``; operators that it holds nothing of start empty.
            restore_mode: ``no_claim`` (default): the snapshot stays the user's. ``claim``: it becomes the job's, which
                deletes it once ``max_retained_checkpoints`` of its own are complete, or when it has finished. Claim
                only what no other job needs.
            on_progress: Told each new `JobView`; None takes the environment's.

        Raises:
            JobFailedError: If the job failed.
            JobCanceledError: If somebody canceled it.
            ClusterUnavailableError: If there is no cluster at the address, or it went away.
            NoResourceAvailableError: If the cluster has too few slots.
            KeyboardInterrupt: After the job was canceled and the cluster closed.
        """
        client: JobClient | None = None
        restore = Restore.of(from_checkpoint, from_savepoint, allow_non_restored_state, restore_mode)
        try:
            client = self._submit(job_name, restore, on_progress, attached=True)
            return client.result()
        except (UserError, ExternalError, JobError):
            raise  # the job was refused, or has ended, or is out of reach
        except BaseException as error:
            # Ctrl-C, or a listener that failed: nobody waits for the job any more.
            try:
                if client is not None:
                    with contextlib.suppress(HeadraceError):  # then its JobManager notices that its client has gone
                        client.cancel()
            finally:
                if not isinstance(error, Exception):
                    self.close()
            raise

    def execute_async(
        self,
        job_name: str = _DEFAULT_JOB_NAME,
        *,
        from_checkpoint: str | os.PathLike[str] | None = None,
        from_savepoint: str | os.PathLike[str] | None = None,
        allow_non_restored_state: bool | None = None,
        restore_mode: RestoreMode | str | None = None,
        on_progress: ProgressListener | None = None,
    ) -> JobClient:
        """Run the program without waiting; see `execute`.

        The job ends with this process unless the environment was made with ``detached=True``.
        """
        restore = Restore.of(from_checkpoint, from_savepoint, allow_non_restored_state, restore_mode)
        client = self._submit(job_name, restore, on_progress, attached=False)
        self._connect().run_in_background()
        return client

    def _submit(
        self,
        job_name: str,
        restore: Restore,
        on_progress: ProgressListener | None,
        *,
        attached: bool,
    ) -> JobClient:
        graph = self.get_stream_graph()
        settings = restore.applied_to(replace(self._job_settings(graph, make_directory=True), attached=attached))
        job_graph = build_job_graph(graph, job_name, settings)
        collecting = {
            graph.nodes[node_id].uid: rows for node_id, rows in self._collecting.items() if node_id in graph.nodes
        }
        # The program has been taken over, even if it is refused now: the next one must not hold it again.
        self._transformations.clear()
        self._collecting.clear()
        _check_picklable(job_graph)
        if os.environ.get("HEADRACE_DRY_RUN") == "1" and settings.restore_from is not None:
            path, is_allowed = settings.restore_from, settings.allow_non_restored_state
            raise DryRunOver(self._report_of(job_graph, path, is_allowed, open_functions=True))
        cluster = self._connect()
        job_id = cluster.submit(job_graph, num_slots(job_graph))
        listeners: dict[str, ReportListener] = {"print": print_report}
        if collecting:
            listeners["collect"] = lambda operator, subtask, value: collecting[operator].listen(
                operator, subtask, value
            )
        progress = on_progress or self._on_progress or _default_progress()
        client = JobClient(cluster, job_id, job_name, on_progress=progress, on_report=listeners)
        for rows in collecting.values():
            rows.follow(client)
        return client

    def check_restore(
        self,
        path: str | os.PathLike[str],
        *,
        allow_non_restored_state: bool = False,
        open_functions: bool = True,
    ) -> RestoreReport:
        """Say what would come of starting the program from a snapshot; starts nothing and keeps the program.

        State is matched by ``uid``, then by its name and descriptor. The snapshot's manifest is read, no state.

        Args:
            path: Of a savepoint or checkpoint.
            allow_non_restored_state: Whether state that has no place in the program may be lost.
            open_functions: Whether user functions may be opened and closed in this process, once each, on empty state:
                it is in ``open`` that they declare what they keep. Without it their states are not compared.

        Returns:
            The report; printed, it is a table.

        Raises:
            CheckpointNotFoundError, CheckpointCorruptError, CheckpointMismatchError: If there is no sound snapshot.
            ProgramError: If there is no program.
        """
        return self._report_of(self.get_job_graph(), path, allow_non_restored_state, open_functions=open_functions)

    @staticmethod
    def _report_of(
        job_graph: JobGraph, path: str | os.PathLike[str], allow_non_restored_state: bool, *, open_functions: bool
    ) -> RestoreReport:
        storage, manifest = CheckpointStorage.from_manifest(absolute_place(os.fspath(path)))
        return check_restore(
            RestorePoint(manifest, storage.uri, is_requested=True),
            job_graph,
            backend=job_graph.settings.state.backend,
            allow_non_restored_state=allow_non_restored_state,
            open_functions=open_functions,
        )

    def _connect(self) -> Cluster:
        if self._cluster is None:
            from headrace.actors.cluster import connect

            self._cluster = connect(
                self._actor_system,
                address=self._address,
                detached=self._detached,
                name=self._cluster_name,
                settings=self._cluster_settings,
                seed=self._seed,
            )
            atexit.register(self.close)
        return self._cluster

    def close(self) -> None:
        """Let go of the cluster; may be repeated.

        What this environment started is stopped, unless it was made with ``detached=True``.
        """
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            atexit.unregister(self.close)
            cluster.close()

    def __enter__(self) -> StreamExecutionEnvironment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"StreamExecutionEnvironment({self._actor_system!r}, parallelism={self.get_parallelism()})"


def _check_picklable(job_graph: JobGraph) -> None:
    """See that every operator can be sent to another process, before anything is started.

    Raises:
        ProgramError: Naming the operator that cannot.
    """
    for vertex in job_graph.vertices.values():
        for link in vertex.chain:
            try:
                cloudpickle.dumps(link.operator)
            except Exception as error:
                message = f"an operator cannot be pickled: {error}"
                hint = (
                    "Make what cannot be sent to another process (locks, connections, files) in the function's open()."
                )
                raise ProgramError(message, hint=hint, operator=link.name) from error


def _default_progress() -> ProgressListener | None:
    """Who is told a job's views if the program does not say: a terminal (``headrace run``), a notebook, or nobody."""
    if os.environ.get("HEADRACE_PROGRESS") == "terminal":
        from headrace.progress import TerminalProgress

        return TerminalProgress().update
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None and hasattr(shell, "kernel"):
        from headrace.progress import NotebookProgress

        return NotebookProgress().update
    return None


def _high_availability_from_environment() -> dict[str, str]:
    """The settings of the command line, which passes them on in variables of the environment."""
    variables = {
        "HEADRACE_HA_DIR": "storageDir",
        "HEADRACE_CLUSTER_ID": "cluster-id",
        "HEADRACE_HA_ZOOKEEPER": "quorum",
    }
    given = {key: os.environ[name] for name, key in variables.items() if os.environ.get(name)}
    if "storageDir" not in given:
        return {}
    if "quorum" in given:
        quorum, _, root = given.pop("quorum").partition("/")
        given.update({"zookeeper.quorum": quorum, "zookeeper.path.root": f"/{root or 'headrace'}"})
    return {f"high-availability.{key}": value for key, value in given.items()}


def _duration_ms(name: str, value: Any, at_least: int) -> int:
    duration = parse_duration_ms(value)
    if duration < at_least:
        message = f"{name} must be at least {at_least} ms; got {value!r}"
        raise ConfigurationError(message)
    return duration


def _whole_number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        message = f"{name} must be a whole number; got {value!r}"
        raise ConfigurationError(message)
    return value


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
