"""Typed settings of a job and of a cluster, with their meaning, unit and default. Validated where they are made.

Source: Flink's option names; a setting that Flink has keeps its name in snake_case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from headrace.state.backends.choice import BACKENDS, check_memory
from headrace.state.files.filesystem import join_uri
from headrace.state.values.durations import parse_duration_ms

from ..errors import ConfigurationError
from .autoscaler_settings import AutoscalerSettings
from .reporter_settings import ReporterSettings
from .rest_settings import RestSettings

__all__ = [
    "AnyRestartStrategy",
    "CheckpointSettings",
    "CheckpointingMode",
    "ClusterSettings",
    "DamagedCheckpointPolicy",
    "ExponentialDelayRestartStrategy",
    "FailoverStrategy",
    "FailureRateRestartStrategy",
    "HighAvailabilitySettings",
    "JobSettings",
    "RestartStrategy",
    "RestoreMode",
    "StateSettings",
    "parse_duration_ms",
]


def _check_at_least(settings: object, **bounds: float) -> None:
    """See that numbers of some settings, by their names, are not below their bounds; the first that is gets refused."""
    for name, low in bounds.items():
        value = getattr(settings, name)
        if value < low:
            message = f"{name} must be at least {low}; got {value}"
            raise ConfigurationError(message)


class FailoverStrategy(Enum):
    """What is restarted when a task fails; values as in Flink's ``jobmanager.execution.failover-strategy``."""

    REGION = "region"
    """The tasks that are connected to it, directly or not."""
    FULL = "full"
    """The whole job."""


class CheckpointingMode(Enum):
    """Whether barriers are aligned: Flink's ``CheckpointingMode``."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class DamagedCheckpointPolicy(Enum):
    """What happens to a job that restarts and finds its newest checkpoint damaged or gone, and an older one sound.

    Sinks made output public when the newest one was complete; whatever goes on from an older one produces it again.
    """

    FAIL = "fail"
    """The job fails and says which output is public; unless no sink commits, or every sink that does can prove that
    nothing of the newest checkpoint has been committed: then it goes on from the older one. Exactly-once stays true."""
    FALL_BACK_AT_LEAST_ONCE = "fall-back-at-least-once"
    """The job goes on from the older one: output of the newest comes twice. The guarantee is *at least once* from
    there; the job's history says when it happened."""


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """How a job takes checkpoints.

    Attributes:
        interval_ms: Time from one trigger to the next, milliseconds.
        directory: Where they go: a path or a URI. Each job makes a folder of its own in it.
        mode: Aligned (exactly-once) or not (at-least-once).
        timeout_ms: A checkpoint that is not complete by then is aborted.
        min_pause_ms: At least this long between the end of one and the trigger of the next.
        max_concurrent: How many may be in flight at once.
        num_retained: How many complete ones are kept.
        tolerable_failures: How many in a row may fail before the job does; -1 for any number.
        retain_on_cancellation: Whether a canceled job's checkpoints stay.
        unaligned: Whether barriers may overtake records, which then belong to the checkpoint. Exactly-once only, and
            one checkpoint at a time. Jobs with loops are aligned all the same.
        aligned_timeout_ms: So long after its trigger a checkpoint stays aligned; 0 for not at all.
        damaged_checkpoints: What happens to the job if its newest checkpoint is damaged or gone.
        only_last: Whether but one is taken, when all input is processed: it makes a batch's output public.
    """

    interval_ms: int
    directory: str
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    timeout_ms: int = 600_000
    min_pause_ms: int = 0
    max_concurrent: int = 1
    num_retained: int = 1
    tolerable_failures: int = 0
    retain_on_cancellation: bool = False
    unaligned: bool = False
    aligned_timeout_ms: int = 0
    damaged_checkpoints: DamagedCheckpointPolicy = DamagedCheckpointPolicy.FAIL
    only_last: bool = False

    def __post_init__(self) -> None:
        _check_at_least(
            self, interval_ms=1, timeout_ms=1, min_pause_ms=0, max_concurrent=1, num_retained=1, aligned_timeout_ms=0
        )
        if self.unaligned and self.mode is not CheckpointingMode.EXACTLY_ONCE:
            message = "unaligned checkpoints are exactly-once; the mode is at-least-once, which aligns nothing anyway"
            raise ConfigurationError(message)

    @property
    def concurrency(self) -> int:
        """How many may be in flight at once: ``max_concurrent``, but one if they may be unaligned."""
        return 1 if self.unaligned else self.max_concurrent


class RestoreMode(Enum):
    """Who owns the snapshot that a job is started from (FLIP-193)."""

    NO_CLAIM = "no_claim"
    """The user: the job never deletes it, and does not need it any more once its own first checkpoint is complete."""
    CLAIM = "claim"
    """The job: it deletes it once enough checkpoints of its own are complete, and when it has finished."""


@dataclass(frozen=True, slots=True)
class RestartStrategy:
    """How often a failed job is restarted and how long it waits before: a number of times, a fixed pause.

    Attributes:
        max_attempts: Restarts in all; 0 for none, -1 for without end.
        delay_ms: Pause before each.
        max_user_failures: So many failures of the program itself (user functions, types, records) in a row, without
            a checkpoint completed in between, fail the job although restarts are left: they would only repeat
            themselves. 0 for any number.
    """

    max_attempts: int
    delay_ms: int = 1_000
    max_user_failures: int = 0

    @classmethod
    def none(cls) -> RestartStrategy:
        """Fail with the first failure."""
        return cls(0, 0)

    @classmethod
    def fixed_delay(cls, max_attempts: int, delay_ms: int) -> RestartStrategy:
        """Restart up to ``max_attempts`` times, ``delay_ms`` after each failure."""
        return cls(max_attempts, delay_ms)

    def describe(self) -> str:
        """Return the strategy in words."""
        if self.max_attempts == 0:
            return "none"
        times = "time" if self.max_attempts == 1 else "times"
        bound = "without end" if self.max_attempts < 0 else f"at most {self.max_attempts} {times}"
        return f"{bound}, {self.delay_ms} ms after a failure"


@dataclass(frozen=True, slots=True)
class FailureRateRestartStrategy:
    """Restart as long as failures do not come too often.

    Attributes:
        max_failures: So many failures within any ``interval_ms`` are answered by a restart; one more is final.
        interval_ms: The interval, milliseconds.
        delay_ms: Pause before each restart.
    """

    max_failures: int
    interval_ms: int
    delay_ms: int

    def __post_init__(self) -> None:
        _check_at_least(self, max_failures=1, interval_ms=1, delay_ms=0)

    @property
    def max_attempts(self) -> int:
        """Restarts in all: without end."""
        return -1

    @property
    def max_user_failures(self) -> int:
        """The rate alone counts."""
        return 0

    def describe(self) -> str:
        """Return the strategy in words."""
        times = "time" if self.max_failures == 1 else "times"
        return f"at most {self.max_failures} {times} in {self.interval_ms} ms, {self.delay_ms} ms after a failure"


@dataclass(frozen=True, slots=True)
class ExponentialDelayRestartStrategy:
    """Restart without end, after pauses that grow while the job goes on failing.

    Attributes:
        initial_backoff_ms: The first pause.
        max_backoff_ms: The longest.
        backoff_multiplier: By what each is longer than the one before.
        reset_backoff_threshold_ms: After running for so long without a failure the pauses begin anew.
        jitter_factor: Each pause is made up to this share longer or shorter, so that jobs that failed together do not
            all come back at once.
        seed: What the jitter follows from, with the number of the restart.
        max_user_failures: As of `RestartStrategy`.
        resets_with_checkpoints: Whether they also begin anew once the job has completed a checkpoint and run for as
            long as the last pause was: a job that is killed now and then is back at once, and one that fails at once
            again is not.
    """

    initial_backoff_ms: int = 1_000
    max_backoff_ms: int = 60_000
    backoff_multiplier: float = 1.5
    reset_backoff_threshold_ms: int = 3_600_000
    jitter_factor: float = 0.1
    seed: int = 0
    max_user_failures: int = 0
    resets_with_checkpoints: bool = False

    def __post_init__(self) -> None:
        _check_at_least(
            self,
            initial_backoff_ms=1,
            max_backoff_ms=self.initial_backoff_ms,
            backoff_multiplier=1,
            reset_backoff_threshold_ms=1,
        )
        if not 0 <= self.jitter_factor <= 1:
            message = f"jitter_factor must be between 0 and 1; got {self.jitter_factor}"
            raise ConfigurationError(message)

    @property
    def max_attempts(self) -> int:
        """Restarts in all: without end."""
        return -1

    def describe(self) -> str:
        """Return the strategy in words."""
        return (
            f"without end, after {self.initial_backoff_ms} to {self.max_backoff_ms} ms, "
            f"each pause {self.backoff_multiplier:g} times the one before"
        )


DEFAULT_RESTART = ExponentialDelayRestartStrategy(
    200, 60_000, 2.0, jitter_factor=0.1, max_user_failures=3, resets_with_checkpoints=True
)
"""Of jobs with checkpoints: a single failure costs next to nothing, one that stays (a full disk) little work."""

AnyRestartStrategy = RestartStrategy | FailureRateRestartStrategy | ExponentialDelayRestartStrategy


@dataclass(frozen=True, slots=True)
class StateSettings:
    """Where keyed state lives.

    Attributes:
        backend: ``heap`` (Python objects) or ``rocksdb`` (a database on the local disk of each slot's machine).
        managed_memory_bytes: Memory of one slot for its state databases, all in all; None for the slot's share.
        local_directory: Where the databases are, on each machine; None for the system's directory for temporary files.

    Raises:
        ConfigurationError: If there is no such backend, or the memory is too little to work with.
    """

    backend: str = "heap"
    managed_memory_bytes: int | None = None
    local_directory: str | None = None

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            message = f"the state backend must be one of {', '.join(BACKENDS)}; got {self.backend!r}"
            raise ConfigurationError(message)
        check_memory(self.managed_memory_bytes)


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Everything about a job that is not its graph.

    Attributes:
        checkpoints: None takes none.
        restart: None means the default. With checkpoints, or for a batch: `DEFAULT_RESTART`, without end, after pauses
            that grow from 200 ms to a minute while the job gets nowhere; but three failures in a row of the program
            itself without a new checkpoint are final. Else: none.
        restore_from: Directory of a checkpoint to start from; None starts empty.
        failover: What is restarted with a failed task.
        state: Where keyed state lives.
        buffer_timeout_ms: A half-full output buffer is sent after this long.
        step_us: How long a task processes records at once, about, in microseconds.
        max_batch_rows: Rows that a source reads, and a buffer gathers, at once at most.
        max_batch_bytes: Bytes that a buffer gathers at once at most.
        channel_credits: Messages in flight per channel at most.
        channel_credit_bytes: Bytes in flight per channel at most (one message may exceed it alone).
        buffer_debloat_enabled: Whether channels hold no more than their consumer needs the target for.
        buffer_debloat_target_ms: With debloating: so long a consumer is to need for what is in flight to it.
        slot_request_timeout_ms: How long to wait for slots while the cluster launches no nodes.
        node_launch_timeout_ms: How long to wait for them in all while it says that it does; 0 for no longer than else.
        task_cancellation_timeout_ms: How long a task may take to cancel before its slot is killed; 0 for any time.
        step_timeout_ms: How long one call of user code may take before its slot is killed as stuck; 0 for any time.
        heartbeat_interval_ms: Time between signs of life.
        heartbeat_timeout_ms: Silence after which a peer is taken for dead.
        latency_interval_ms: Time between latency markers of a source; 0 for none. Operators then have metrics of how
            long markers were on their way to them: ``source.NAME.latency_ms.mean``, ``.min``, ``.max``, ``.count``.
        metrics_interval_ms: Time between metric reports.
        attached: Cancel the job when its client stops asking for it.
        restore_mode: Who owns what ``restore_from`` names.
        allow_non_restored_state: Start although what it holds has no place in the program: that is lost.
        savepoint_directory: Where savepoints go unless their request says so; None for nowhere.
        object_reuse: Whether records are never copied, as no function changes what it is handed or has given.
        watches_records: Whether to look for functions that change records which others read.
        checkpoint_key_file: Where every machine of the cluster has the keys that manifests are signed with; with it the
            job takes no other ones. None: they are not signed.
        is_batch: Whether the job is a batch: no watermark but the end of event time, records of a key in the order of
            time, results once; see `headrace.engine.operators.sorted_input`. It starts from nothing.
        sort_memory_bytes: Of a batch: what sorting one operator's input takes of memory; None for its part of the
            slot's managed memory.
        autoscaler: How the job is rescaled by itself; None: only by command.
        plan: What the program is, as a JSON object: it lies in all its checkpoints. None if it does not say.
    """

    checkpoints: CheckpointSettings | None = None
    restart: AnyRestartStrategy | None = None
    restore_from: str | None = None
    failover: FailoverStrategy = FailoverStrategy.REGION
    state: StateSettings = StateSettings()
    buffer_timeout_ms: int = 5
    step_us: int = 20_000
    max_batch_rows: int = 65_536
    max_batch_bytes: int = 8 << 20
    channel_credits: int = 4
    channel_credit_bytes: int = 16 << 20
    buffer_debloat_enabled: bool = True
    buffer_debloat_target_ms: int = 100
    slot_request_timeout_ms: int = 30_000
    node_launch_timeout_ms: int = 1_800_000
    task_cancellation_timeout_ms: int = 10_000
    step_timeout_ms: int = 180_000
    heartbeat_interval_ms: int = 1_000
    heartbeat_timeout_ms: int = 10_000
    latency_interval_ms: int = 0
    metrics_interval_ms: int = 500
    attached: bool = True
    restore_mode: RestoreMode = RestoreMode.NO_CLAIM
    allow_non_restored_state: bool = False
    savepoint_directory: str | None = None
    object_reuse: bool = False
    watches_records: bool = False
    checkpoint_key_file: str | None = None
    is_batch: bool = False
    sort_memory_bytes: int | None = None
    plan: str | None = None
    autoscaler: AutoscalerSettings | None = None

    def __post_init__(self) -> None:
        _check_at_least(
            self,
            buffer_timeout_ms=0,
            step_us=1,
            max_batch_rows=1,
            max_batch_bytes=1,
            channel_credits=1,
            channel_credit_bytes=1,
            buffer_debloat_target_ms=1,
            slot_request_timeout_ms=0,
            node_launch_timeout_ms=0,
            task_cancellation_timeout_ms=0,
            step_timeout_ms=0,
            heartbeat_interval_ms=1,
            heartbeat_timeout_ms=1,
            latency_interval_ms=0,
            metrics_interval_ms=1,
        )
        if self.sort_memory_bytes is not None:
            _check_at_least(self, sort_memory_bytes=1)
        if self.is_batch and self.restore_from is not None:
            message = f"a batch job starts from nothing; it cannot go on from {self.restore_from}"
            raise ConfigurationError(message, hint="run the program in STREAMING mode")

    def restart_strategy(self) -> AnyRestartStrategy:
        """Return the restart strategy in force."""
        if self.restart is not None:
            return self.restart
        return DEFAULT_RESTART if self.checkpoints is not None or self.is_batch else RestartStrategy.none()


FILES_LEASE = "files"
"""The lease store that needs nothing but the directory."""

MIN_LEASE_MS = 100


@dataclass(frozen=True, slots=True)
class HighAvailabilitySettings:
    """How a cluster survives the loss of the process that leads it.

    Attributes:
        directory: ``high-availability.storageDir``: where the cluster's jobs are kept, a path or any ``pyarrow.fs``
            URI that all its machines reach. What lies there is run: only those who may run jobs may write to it.
        cluster_id: ``high-availability.cluster-id``: a cluster that is started with the directory and id of one that
            is gone takes over its jobs.
        lease_store: Where leaders are elected: ``files`` (in the directory) or ``zookeeper://host:port,.../path``.
        num_standbys: Processes that wait to lead, beside the one that does.
        lease_ms: A leader silent for so long is replaced; it stops by itself after two thirds of it.
        key_file: Where every machine has the keys that stored jobs are signed with; with it no other ones are run.
    """

    directory: str
    cluster_id: str
    lease_store: str = FILES_LEASE
    num_standbys: int = 1
    lease_ms: int = 6_000
    key_file: str | None = None

    def __post_init__(self) -> None:
        if not self.directory:
            message = "high availability needs a directory that all machines reach"
            raise ConfigurationError(message, hint="set high-availability.storageDir")
        if re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", self.cluster_id) is None:
            message = f"a cluster id must consist of letters, digits, '-', '_' and '.'; got {self.cluster_id!r}"
            raise ConfigurationError(message, hint="it names what a later start recovers: high-availability.cluster-id")
        if self.lease_store != FILES_LEASE and not self.lease_store.startswith("zookeeper://"):
            message = f"the lease store must be 'files' or zookeeper://host:port/path; got {self.lease_store!r}"
            raise ConfigurationError(message)
        _check_at_least(self, num_standbys=0, lease_ms=MIN_LEASE_MS)

    @property
    def cluster_uri(self) -> str:
        """The cluster's own directory."""
        return join_uri(self.directory, self.cluster_id)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, str]) -> HighAvailabilitySettings | None:
        """Read Flink's configuration keys; None if they say ``high-availability.type: none``, or nothing.

        Understood are ``high-availability.type`` (``none``, ``files`` or ``zookeeper``), ``.storageDir``,
        ``.cluster-id``, ``.zookeeper.quorum``, ``.zookeeper.path.root``, ``.zookeeper.client.session-timeout`` and, not
        of Flink, ``.standbys`` and ``.key-file``.

        Raises:
            ConfigurationError: If a value is missing, illegal, or of a key that is not known.
        """
        prefix = "high-availability."
        given = {key.removeprefix(prefix): value for key, value in configuration.items() if key.startswith(prefix)}
        kind = given.pop("type", "zookeeper" if "zookeeper.quorum" in given else FILES_LEASE).lower()
        if not given or kind == "none":
            return None
        if kind not in (FILES_LEASE, "zookeeper"):
            message = f"high-availability.type must be 'none', 'files' or 'zookeeper'; got {kind!r}"
            raise ConfigurationError(message)
        lease_store = FILES_LEASE
        quorum, root = given.pop("zookeeper.quorum", ""), given.pop("zookeeper.path.root", "/headrace")
        if kind == "zookeeper":
            if not quorum:
                message = "high availability with ZooKeeper needs its servers"
                raise ConfigurationError(message, hint="set high-availability.zookeeper.quorum")
            lease_store = f"zookeeper://{quorum}/{root.strip('/')}"
        options: dict[str, Any] = {"key_file": given.pop("key-file", None)}
        if "zookeeper.client.session-timeout" in given:
            options["lease_ms"] = parse_duration_ms(given.pop("zookeeper.client.session-timeout"))
        if "standbys" in given:
            options["num_standbys"] = _whole_number(f"{prefix}standbys", given.pop("standbys"))
        directory, cluster_id = given.pop("storageDir", ""), given.pop("cluster-id", "")
        if given:
            message = f"no option is called {prefix}{min(given)}"
            raise ConfigurationError(message)
        return cls(directory, cluster_id.strip("/"), lease_store, **options)


def _whole_number(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        message = f"{key} must be a whole number; got {text!r}"
        raise ConfigurationError(message) from error


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How a cluster is laid out.

    Attributes:
        slots_per_task_manager: ``taskmanager.numberOfTaskSlots``; 0 lets the ResourceManager fit them to the nodes'
            cores.
        cpu_per_slot: Logical cores a slot reserves in the cluster.
        max_slots: Upper bound of slots in this cluster; 0 for none but the machines' own.
        managed_memory_bytes: ``taskmanager.memory.managed.size``: managed memory of a TaskManager, divided evenly over
            its slots, for state databases and columnar state. 0 takes the slots' part of 40 % of the machine's memory.
        high_availability: How it survives the loss of its leading process; None: not at all.
        node_failures_until_blocked: After so many processes that died or fell silent on one node within
            ``node_block_ms`` the node gets no new TaskManagers, as long as others have room; 0 for never.
        node_block_ms: How long that lasts.
        rest: How the cluster serves REST; None: not at all.
        reporters: Where metrics and traces are sent; None: nowhere.
        ends_with_jobs: Whether it ends by itself once all jobs that it was given have ended: Flink's per-job mode.
    """

    slots_per_task_manager: int = 0
    cpu_per_slot: float = 1.0
    max_slots: int = 0
    managed_memory_bytes: int = 0
    high_availability: HighAvailabilitySettings | None = None
    node_failures_until_blocked: int = 0
    node_block_ms: int = 600_000
    rest: RestSettings | None = None
    reporters: ReporterSettings | None = None
    ends_with_jobs: bool = False

    def __post_init__(self) -> None:
        _check_at_least(self, managed_memory_bytes=0, node_failures_until_blocked=0, node_block_ms=1)
