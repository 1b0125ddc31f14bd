"""One Spark inside the Ray cluster for all DataSet jobs of a process: started by the first, stopped at the end.

Decides when Spark starts (never before a job needs it), how large it is (what is free in the cluster then), and how it
ends: Python's exit, Ctrl-C or ``stop_spark`` leave no JVM and no actor behind. A start that cannot succeed is an error
within `SparkSettings.start_timeout_ms`, not a wait for resources that never come.

What runs: the driver's JVM, a child of this process; RayDP's master, an actor with a JVM of its own; its app master and
the executors, which are Java actors. On a Ray of our own they reserve no cores, as streaming jobs do not; on a shared
cluster each executor holds its cores until the session ends.

A session that somebody else made in this process (``raydp.init_spark``, a `pyspark.sql.SparkSession`) is used as it is
and never stopped here: there can be only one per process.

Source: RayDP's ``init_spark``; ``docs/design/005-dependencies.md`` for versions and flags.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.engine.errors import ClusterUnavailableError, ConfigurationError, NoResourceAvailableError

from ..ray.java import ADD_OPENS, find_java, offer_java

__all__ = ["Session", "SparkSettings", "leave_session", "open_session", "size_of_session", "stop_session"]

MB = 1 << 20

MIN_EXECUTOR_BYTES = 512 * MB
"""Spark refuses heaps below 450 MB (1.5 times what it reserves for itself)."""

MAX_EXECUTOR_BYTES_PER_CORE = 2048 * MB
"""What a task can use well; the rest is left to Python's side of each task, to Ray's objects and to others."""

HEAP_SHARE = 0.5
"""Of a node's free memory; as much again may be wanted by Python processes and off-heap buffers."""

STOP_TIMEOUT_S = 15.0
"""How long JVMs and actors may take to end before they are killed."""

LOOK_AGAIN_S = 0.05


@dataclass(frozen=True)
class SparkSettings:
    """How large Spark is, and how long it may take to come.

    Attributes:
        num_executors: 0 for one on each node that has free cores.
        executor_cores: Tasks that an executor runs at once; 0 for the free cores of its node.
        executor_memory_bytes: Heap of an executor; 0 for half of its node's free memory, at most 2 GiB per core.
        driver_memory_bytes: Heap of the driver's JVM, through which results are collected.
        start_timeout_ms: After which a start that has not succeeded is an error.
        local_iteration_bytes: An iteration whose inputs come to at most so much is run in the process of the program,
            until it has grown beyond it; 0 to run all supersteps on Spark.
        address: Of the Ray cluster; None as for streaming jobs: the connected one, a running one, else a new one.
        configs: More of Spark's own settings.
    """

    num_executors: int = 0
    executor_cores: int = 0
    executor_memory_bytes: int = 0
    driver_memory_bytes: int = 1024 * MB
    start_timeout_ms: int = 120_000
    local_iteration_bytes: int = 32 * MB
    address: str | None = None
    configs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("num_executors", "executor_cores", "executor_memory_bytes", "local_iteration_bytes"):
            if getattr(self, name) < 0:
                message = f"{name} must be 0 or more; got {getattr(self, name)}"
                raise ConfigurationError(message)
        for name in ("executor_memory_bytes", "driver_memory_bytes"):
            if 0 < getattr(self, name) < MIN_EXECUTOR_BYTES:
                message = f"{name} must be at least {MIN_EXECUTOR_BYTES} (512 MiB); got {getattr(self, name)}"
                raise ConfigurationError(message)
        if self.start_timeout_ms < 1:
            message = f"start_timeout_ms must be at least 1; got {self.start_timeout_ms}"
            raise ConfigurationError(message)


@dataclass(frozen=True)
class _Size:
    num_executors: int
    cores: int
    memory_bytes: int


class Session:
    """A running Spark.

    Attributes:
        spark: The `pyspark.sql.SparkSession`.
        parallelism: Tasks that run at once.
        directory: A directory of this machine for files of the session; removed with it.
    """

    def __init__(self, spark: Any, parallelism: int, directory: Path, *, is_owner: bool, opened_ray: bool) -> None:
        self.spark = spark
        self.parallelism = parallelism
        self.directory = directory
        self._is_owner = is_owner
        # Whether Ray is to be shut down with Spark.
        self._opened_ray = opened_ray
        # What identifies the Ray that the executors live in.
        self._ray_session = _ray_session()

    @property
    def has_object_store(self) -> bool:
        """Whether executors are Ray actors, and so can read Ray's objects."""
        return str(self.spark.sparkContext.master).startswith("ray")

    @property
    def is_alive(self) -> bool:
        """Whether jobs can still run: driver and Ray are those that it was started with."""
        context = self.spark.sparkContext
        if context._jsc is None or _ray_session() != self._ray_session:
            return False
        process = getattr(context._gateway, "proc", None)
        return process is None or process.poll() is None

    def activate(self) -> None:
        """Make it the session of this thread, whose settings expressions take when they are built.

        Only some calls of PySpark do so; in a thread without a session an overflow would wrap around.
        """
        self.spark._jvm.SparkSession.setActiveSession(self.spark._jsparkSession)

    def log_tail(self) -> str:
        """The end of what the driver's JVM has written."""
        return _tail(self.directory / "driver.log")

    def close(self) -> None:
        """Stop what was started for this session, and wait until it is gone."""
        if self._is_owner:
            _in_own_thread(_tear_down)
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._opened_ray and _ray_session() == self._ray_session:
            import ray

            from ..ray.system import clusters_on_ray

            if not clusters_on_ray():  # else a streaming job of this process has joined it
                ray.shutdown()


_lock = threading.RLock()
_current: Session | None = None


_num_users = 0
"""Open executors that have used the session."""


def open_session(settings: SparkSettings | None = None, *, is_new_user: bool = False) -> Session:
    """Return the session of this process; started now if there is none, or if the one there was has been lost.

    Args:
        settings: Of a session that has to be started; one that runs stays as it is.
        is_new_user: Whether to count one more who will call `leave_session`.

    Raises:
        ConfigurationError: If Java, RayDP or Spark is missing, or Ray is reached through its client.
        NoResourceAvailableError: If the cluster has not room for one executor.
        ClusterUnavailableError: If there is no cluster, or Spark does not come up in time.
    """
    global _current, _num_users
    with _lock:
        if _current is not None and not _current.is_alive:
            _stop()
        if _current is None:
            _current = _adopted() or _started(settings or SparkSettings())
            atexit.register(stop_session)  # runs before those of RayDP and Ray, which were loaded before
        _num_users += is_new_user
        return _current


def leave_session() -> None:
    """Be one user less; the last one stops Spark."""
    global _num_users
    with _lock:
        _num_users = max(0, _num_users - 1)
        if not _num_users:
            stop_session()


def stop_session() -> None:
    """Stop Spark, also if it is in use, and Ray if it was started for it. May be repeated."""
    global _num_users
    with _lock:
        _num_users = 0
        _stop()


def _stop() -> None:
    global _current
    session, _current = _current, None
    if session is not None:
        atexit.unregister(stop_session)
        session.close()


def _adopted() -> Session | None:
    """The session that the program itself has made in this process, if any."""
    pyspark = sys.modules.get("pyspark")
    if pyspark is None or pyspark.SparkContext._active_spark_context is None:
        return None
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate().newSession()  # the program's own keeps its settings
    for name, value in SQL_SETTINGS.items():
        spark.conf.set(name, value)
    directory = Path(tempfile.mkdtemp(prefix="headrace-spark-"))
    return Session(spark, spark.sparkContext.defaultParallelism, directory, is_owner=False, opened_ray=False)


def _started(settings: SparkSettings) -> Session:
    find_java()
    _check_packages()
    from ..ray.connection import is_private, open_ray

    deadline = time.monotonic() + settings.start_timeout_ms / 1_000
    _refuse_ray_client()
    opened = open_ray(settings.address, 0)
    directory = Path(tempfile.mkdtemp(prefix="headrace-spark-"))
    try:
        if not is_private():
            from .probe import check_nodes

            check_nodes(deadline - time.monotonic())
        offer_java()  # the driver's own JVM is started through PATH as well
        size = size_of_session(settings, _free_by_node())
        spark = _launch(settings, size, directory, deadline, reserve=not is_private())
        return Session(spark, size.num_executors * size.cores, directory, is_owner=True, opened_ray=opened)
    except BaseException:
        _tear_down()
        shutil.rmtree(directory, ignore_errors=True)
        if opened:
            import ray

            ray.shutdown()
        raise


def _check_packages() -> None:
    import importlib.util

    missing = [name for name in ("pyspark", "raydp") if importlib.util.find_spec(name) is None]
    if missing:
        message = f"DataSet jobs on Spark need the packages {' and '.join(missing)}, not installed here"
        raise ConfigurationError(message, hint="pip install 'headrace[spark]'; executor=\"local\" needs none")


def _refuse_ray_client() -> None:
    from ray.util.client import ray as client

    if client.is_connected():
        message = "this process reaches Ray through its client (ray://), through which Spark's driver cannot be a part"
        raise ConfigurationError(
            message, hint="submit the program with 'ray job submit', or connect by host:port from within the cluster"
        )


def _ray_session() -> str | None:
    """What identifies the Ray this process is connected to; None without one."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    return str(ray.get_runtime_context().get_job_id()) + str(ray.get_runtime_context().gcs_address)


# ------------------------------------------------------------------------------------------------------------ resources


def _free_by_node() -> list[tuple[float, float]]:
    """Free cores and bytes of each living node."""
    import ray
    from ray._private.state import available_resources_per_node

    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    free = available_resources_per_node()
    return [(r.get("CPU", 0.0), r.get("memory", 0.0)) for node, r in free.items() if node in alive]


def size_of_session(settings: SparkSettings, free: list[tuple[float, float]]) -> _Size:
    """How many executors of which size fit into the free part of the cluster; all of one size, as Spark wants them.

    On a node with more than two free cores one is left to others: sources and sinks of streaming jobs, Ray's tasks.
    """
    cores = settings.executor_cores
    memory = settings.executor_memory_bytes
    least = cores or 1
    usable = [
        (cpus, room) for cpus, room in free if cpus >= least and room * HEAP_SHARE >= (memory or MIN_EXECUTOR_BYTES)
    ]
    if not usable:
        room_needed = (memory or MIN_EXECUTOR_BYTES) / HEAP_SHARE / MB
        wanted = f"{least} free core{'s' if least > 1 else ''} and {room_needed:.0f} MiB"
        there = ", ".join(f"{cpus:g} cores and {room / MB:.0f} MiB" for cpus, room in free) or "nothing"
        message = f"Spark needs {wanted} on one node for an executor; free in the cluster: {there}"
        raise NoResourceAvailableError(
            message, hint='stop other jobs, ask for smaller executors (executor_cores, executor_memory_bytes), or '
            'take executor="local"'
        )  # fmt: skip
    if not cores:
        smallest = int(min(cpus for cpus, _ in usable))
        cores = smallest - 1 if smallest > 2 else smallest
    per_node = [int(cpus // cores) for cpus, _ in usable]
    count = settings.num_executors or len(usable)
    if settings.num_executors and not settings.executor_cores:  # several on one node share its cores
        cores = max(1, min(cores, int(sum(cpus for cpus, _ in usable)) // settings.num_executors))
        per_node = [int(cpus // cores) for cpus, _ in usable]
    if count > sum(per_node):
        message = f"{count} executors of {cores} cores were asked for; the cluster has room for {sum(per_node)}"
        raise NoResourceAvailableError(message, hint="ask for fewer, or for smaller ones")
    if not memory:
        on_one_node = -(-count // len(usable))
        room = min(room for _, room in usable) * HEAP_SHARE / on_one_node
        memory = int(max(MIN_EXECUTOR_BYTES, min(room, cores * MAX_EXECUTOR_BYTES_PER_CORE)))
    return _Size(count, cores, memory)


# ---------------------------------------------------------------------------------------------------------------- start


def _configs(settings: SparkSettings, size: _Size, directory: Path, *, reserve: bool) -> dict[str, str]:
    log_settings = directory / "log4j2.properties"
    log_settings.write_text(LOG_SETTINGS)
    python = os.environ.get("PYSPARK_PYTHON") or sys.executable
    parallelism = size.num_executors * size.cores
    return {
        "spark.driver.memory": f"{settings.driver_memory_bytes // MB}m",
        "spark.driver.maxResultSize": "0",
        "spark.driver.extraJavaOptions": ADD_OPENS,
        "spark.executor.extraJavaOptions": ADD_OPENS,
        "spark.ray.raydp_app_master.extraJavaOptions": f"{ADD_OPENS} {QUICK_START}",
        # Cores are the executors' alone; RayDP's master only waits.
        "spark.ray.raydp_spark_master.actor.resource.CPU": "0",
        "spark.ray.raydp_spark_executor.actor.resource.cpu": str(size.cores if reserve else 0),
        "spark.log4j.config.file.name": str(log_settings),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.eventLog.enabled": "false",
        "spark.pyspark.python": python,
        "spark.pyspark.driver.python": sys.executable,
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(dict.fromkeys(map(os.path.abspath, sys.path))),
        "spark.default.parallelism": str(parallelism),
        "spark.sql.shuffle.partitions": str(max(2 * parallelism, 4)),
        "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1m",
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
        **SQL_SETTINGS,
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.cleaner.periodicGC.interval": "5min",
        # What the driver remembers of jobs that have ended; iterations make thousands.
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "200",
        "spark.ui.retainedTasks": "2000",
        "spark.sql.ui.retainedExecutions": "20",
        **settings.configs,
    }


def _launch(settings: SparkSettings, size: _Size, directory: Path, deadline: float, *, reserve: bool) -> Any:
    import raydp

    name = f"headrace-{uuid.uuid4().hex[:8]}"
    configs = _configs(settings, size, directory, reserve=reserve)
    log = directory / "driver.log"
    with _alarm(deadline, name) as is_late, _captured(log), _own_interrupts():
        try:
            spark = raydp.init_spark(
                name,
                size.num_executors,
                size.cores,
                size.memory_bytes,
                fault_tolerant_mode=False,  # blocks are not handed to `ray.data`; a second connection is saved
                configs=configs,
            )
            # Its option of that name is for programs that spark-submit starts; else functions run on PATH's python3.
            spark.sparkContext.pythonExec = configs["spark.pyspark.python"]
            _wait_for_executors(spark, 1, deadline)
        except Exception as error:
            message = f"Spark could not be started on Ray: {_first_line(error)}"
            hint = "the logs of RayDP's processes are in /tmp/ray/session_latest/logs on the cluster's nodes"
            if is_late.is_set() or isinstance(error, TimeoutError):
                message = f"Spark did not come up on Ray within {settings.start_timeout_ms} ms"
                hint = (
                    f"on a busy machine give it longer, e.g. start_timeout_ms={4 * settings.start_timeout_ms}, or run "
                    f"in this process without Spark: executor='local', headrace run --executor local; {hint}"
                )
            said = _tail(log)
            raise ClusterUnavailableError(f"{message}\n{said}" if said else message, hint=hint) from error
    return spark


def _wait_for_executors(spark: Any, count: int, deadline: float) -> None:
    """Wait until executors have registered: a job would wait for them without end."""
    scheduler = spark.sparkContext._jsc.sc()
    while scheduler.getExecutorMemoryStatus().size() - 1 < count:  # the driver counts as one
        if time.monotonic() > deadline:
            message = "no executor has registered"
            raise TimeoutError(message)
        time.sleep(LOOK_AGAIN_S)


@contextlib.contextmanager
def _alarm(deadline: float, name: str) -> Iterator[threading.Event]:
    """End a start that takes too long by killing what it waits for. Yields whether that has happened."""
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        _kill_master(name)
        _kill_driver()

    timer = threading.Timer(max(0.0, deadline - time.monotonic()), end)
    timer.daemon = True
    timer.start()
    try:
        yield is_late
    finally:
        timer.cancel()


@contextlib.contextmanager
def _captured(log: Path) -> Iterator[None]:
    """Let the driver's JVM write to a file what it would print to the terminal."""
    import pyspark.context

    launch = pyspark.context.launch_gateway
    home = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(find_java())
    with log.open("wb") as stream:
        pyspark.context.launch_gateway = functools.partial(
            launch, popen_kwargs={"stdout": stream, "stderr": stream}
        )  # fmt: skip
        try:
            yield
        finally:
            pyspark.context.launch_gateway = launch
            if home is None:
                del os.environ["JAVA_HOME"]
            else:
                os.environ["JAVA_HOME"] = home


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep the program's handling of Ctrl-C: PySpark's would talk to the JVM in the middle of its answer."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _tail(log: Path, num_lines: int = 12) -> str:
    if not log.is_file():
        return ""
    lines = log.read_text(errors="replace").strip().splitlines()
    return "\n".join(line for line in lines if not line.startswith("\tat "))[-num_lines * 200 :]


# ------------------------------------------------------------------------------------------------------------------ end


def _tear_down() -> None:
    """Stop Spark, RayDP's actors and the driver's JVM; returns when they are gone, or were killed."""
    raydp = sys.modules.get("raydp")
    if raydp is None:
        return
    import pyspark

    context = pyspark.SparkContext._active_spark_context
    name = context.appName if context is not None else None
    actors = _actors(name)
    try:
        raydp.stop_spark()
    except Exception:
        # The cluster or a JVM has gone before: what remains is ended below, by force.
        pyspark.SparkContext._active_spark_context = None
    _kill_driver(STOP_TIMEOUT_S)
    _end_actors(actors)


def _in_own_thread(work: Callable[[], None]) -> None:
    """Run something in a thread of its own: this one's line to the JVM may have been interrupted."""
    thread = threading.Thread(target=work, name="headrace-spark-stop")
    try:
        thread.start()
    except RuntimeError:  # the interpreter is past starting threads
        work()
        return
    thread.join()


def _actors(name: str | None) -> list[str]:
    """Names of RayDP's actors of this process's Ray job."""
    import ray

    if not ray.is_initialized():
        return []
    return [actor for actor in ray.util.list_named_actors() if _is_raydp(actor, name)]


def _is_raydp(actor: str, name: str | None) -> bool:
    return actor == "RAY_APP_MASTER" or actor.startswith("raydp-executor-") or actor == f"{name}_SPARK_MASTER"


def _end_actors(actors: list[str]) -> None:
    import ray

    if not ray.is_initialized():
        return
    kill_at = time.monotonic() + STOP_TIMEOUT_S / 3
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while (left := set(actors) & set(ray.util.list_named_actors())) and time.monotonic() < deadline:
        if time.monotonic() > kill_at:
            for actor in left:
                with contextlib.suppress(ValueError):
                    ray.kill(ray.get_actor(actor), no_restart=True)
        time.sleep(LOOK_AGAIN_S)


def _kill_master(name: str) -> None:
    import ray

    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(f"{name}_SPARK_MASTER"), no_restart=True)


def _kill_driver(patience_s: float = 0.0) -> None:
    """End the driver's JVM, which PySpark keeps for the next context, with flags that may then be wrong."""
    import subprocess

    import pyspark

    gateway = pyspark.SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is None:
        return
    if patience_s:
        with contextlib.suppress(Exception):  # it may be dead already
            gateway.shutdown()
        process.stdin.close()  # its end is what the JVM watches
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
        pyspark.SparkContext._gateway = None
        pyspark.SparkContext._jvm = None
    if process.poll() is None:
        process.kill()
        process.wait()


SQL_SETTINGS = {
    # A partition without records is a partition still: an aggregate of it is a record, a function is called with none.
    "spark.sql.adaptive.optimizer.excludedRules": "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation",
    "spark.sql.ansi.enabled": "true",  # overflow is an error, as in our expressions
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "32768",
    "spark.sql.execution.arrow.localRelationThreshold": "0",  # a table keeps the partitions it is given
    "spark.sql.legacy.parquet.nanosAsLong": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}
"""What translated plans count on; set in every session that they run in."""

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that only pass messages: they start in a third less time and take less memory."""

LOG_SETTINGS = """\
rootLogger.level = error
rootLogger.appenderRef.file.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
"""Of the driver's JVM. Executors keep Ray's own, which writes to its log directory."""
