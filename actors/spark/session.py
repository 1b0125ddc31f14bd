"""One Spark inside the Ray cluster for all DataSet jobs of a process: started by the first, stopped at the end.

Spark starts when a job needs it, never before, as large as the cluster has room for then
(`headrace.actors.spark.session_size`). Python's exit, Ctrl-C or ``stop_spark`` leave no JVM and no actor behind
(`headrace.actors.spark.process_ends`). A start that cannot succeed is an error within `SparkSettings.start_timeout_ms`,
not a wait for resources that never come.

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.engine.errors import ClusterUnavailableError, ConfigurationError

from ..ray.java import ADD_OPENS, find_java, offer_java
from .process_ends import LOOK_AGAIN_S, in_own_thread, kill_driver, kill_master, tear_down
from .session_size import MB, SessionSize, SparkSettings, free_by_node, size_of_session

__all__ = ["Session", "leave_session", "open_session", "stop_session"]


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
        """Return the end of what the driver's JVM has written."""
        return _tail(self.directory / "driver.log")

    def close(self) -> None:
        """Stop what was started for this session, and wait until it is gone."""
        if self._is_owner:
            in_own_thread(tear_down)
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
        size = size_of_session(settings, free_by_node())
        spark = _launch(settings, size, directory, deadline, reserve=not is_private())
        return Session(spark, size.num_executors * size.cores, directory, is_owner=True, opened_ray=opened)
    except BaseException:
        tear_down()
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


def _configs(settings: SparkSettings, size: SessionSize, directory: Path, *, reserve: bool) -> dict[str, str]:
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


def _launch(settings: SparkSettings, size: SessionSize, directory: Path, deadline: float, *, reserve: bool) -> Any:
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
        kill_master(name)
        kill_driver()

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
