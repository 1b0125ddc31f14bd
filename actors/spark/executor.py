"""The executor of plans on Spark: one run after the other, in the session of this process.

A run translates the plan, has Spark compute what the sinks ask for, and lets go of everything it has cached. What Spark
raises comes out as an error of our own tree. Spark itself computes again what is lost with an executor; what an
iteration had kept there without history cannot be, so then the whole run is replayed: bounded inputs are still there.

Source: `headrace.engine.plan.plan.Executor`; ``docs/design/016-datasets.md``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from headrace.engine.errors import ConfigurationError, HeadraceError, InternalError, JobCanceledError, ProgramError
from headrace.engine.partitions.outputs import results_of
from headrace.engine.plan.iteration_nodes import iteration_names
from headrace.engine.plan.plan import Collect, Count, ExecutionResult, Node, WriteFiles, walk
from headrace.engine.plan.run_watch import RunWatch
from headrace.state.files.filesystem import filesystem_for

from .columns import Layout
from .counting import accumulators_in
from .failures import is_lost_block, is_of_spark, translated
from .lowering import lowered
from .progress import ProgressLine
from .python_workers import bare
from .relations import Job, Relation
from .session import Session, leave_session, open_session
from .session_size import SparkSettings
from .stage_reports import StagesTold

__all__ = ["SparkExecutor", "interrupts_as_event"]

MAX_RUNS = 4
"""How often a run is started in all, if executors are lost with what an iteration had kept."""


CANCEL_TIMEOUT_S = 30.0
"""How long an interrupted job may take to notice: a busy machine needs seconds; Spark must not be stopped before."""

LOOK_MS = 100
"""How often the program looks whether it was interrupted."""


class SparkExecutor:
    """Runs plans on Spark inside the Ray cluster. Starts Spark with its first plan.

    Args:
        **options: The fields of `SparkSettings`, for a session that has to be started.

    Raises:
        ConfigurationError: If there is no such option, or a value is illegal.
    """

    def __init__(self, **options: Any) -> None:
        known = [option.name for option in fields(SparkSettings)]
        for name in options:
            if name not in known:
                message = f"the Spark executor has no option {name!r}; it has {', '.join(known)}"
                raise ConfigurationError(message)
        self._settings = SparkSettings(**options)
        self._is_closed = False
        # What is kept between plans, as long as somebody has the token.
        self._caches: MutableMapping[Any, Relation] = WeakKeyDictionary()
        # Whether it counts as a user of the session.
        self._is_using = False

    def execute(
        self,
        sinks: tuple[Node, ...],
        *,
        parallelism: int | None = None,
        cached_files: Mapping[str, str] | None = None,
        watch: RunWatch | None = None,
    ) -> ExecutionResult:
        """Run a plan; see `headrace.engine.plan.plan.Executor`."""
        if self._is_closed:
            message = "the executor has been closed"
            raise ProgramError(message)
        if parallelism is not None and parallelism < 1:
            message = f"parallelism must be at least 1; got {parallelism}"
            raise ConfigurationError(message)
        session = open_session(self._settings, is_new_user=not self._is_using)
        self._is_using = True
        running = _Running(
            session,
            parallelism or session.parallelism * 2,
            cached_files or {},
            self._settings.local_iteration_bytes,
            self._caches,
            watch,
        )
        return running.interruptible(sinks)

    def close(self) -> None:
        """Refuse further plans. Spark is stopped if no other executor of this process has used it and is still open."""
        self._is_closed = True
        self._caches.clear()
        if self._is_using:
            self._is_using = False
            leave_session()


class _Running:
    """One plan on its way, in a thread of its own: so Ctrl-C never meets the caller's thread talking to the JVM.

    An interrupt in the middle of an answer would leave that thread's line in disorder, and Spark unusable.
    """

    def __init__(
        self,
        session: Session,
        parallelism: int,
        cached_files: Mapping[str, str],
        local_iteration_bytes: int,
        caches: MutableMapping[Any, Relation],
        watch: RunWatch | None,
    ) -> None:
        self._session = session
        self._watch = watch
        self._caches = caches
        self._local_iteration_bytes = local_iteration_bytes
        self._parallelism = parallelism
        self._cached_files = cached_files
        # The current attempt; None between two.
        self._job: Job | None = None
        self._is_canceled = False
        self._results: list[ExecutionResult] = []
        self._failures: list[BaseException] = []

    def interruptible(self, sinks: tuple[Node, ...]) -> ExecutionResult:
        """Run the plan and wait for it."""
        with interrupts_as_event() as pressed:
            thread = self._thread(lambda: self._run(sinks), "headrace-spark-job")
            try:
                while thread.is_alive():
                    thread.join(LOOK_MS / 1_000)
                    if pressed.is_set():
                        raise KeyboardInterrupt
                    if self._watch is not None:
                        self._watch.require_running()
            except (KeyboardInterrupt, JobCanceledError):
                self._is_canceled = True
                self._thread(self._cancel, "headrace-spark-cancel").join(CANCEL_TIMEOUT_S)
                thread.join(CANCEL_TIMEOUT_S)
                raise
        if self._failures:
            raise self._failures[0]
        return self._results[0]

    def _thread(self, target: Callable[[], None], name: str) -> Any:
        from pyspark import InheritableThread

        thread = InheritableThread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def _cancel(self) -> None:
        job = self._job
        if job is not None:
            job.is_canceled = True
            with contextlib.suppress(Exception):  # Spark may have gone
                job.context.cancelJobGroup(job.id)

    def _run(self, sinks: tuple[Node, ...]) -> None:
        try:
            self._results.append(self._attempts(sinks))
        except BaseException as error:
            self._failures.append(error)

    def _attempts(self, sinks: tuple[Node, ...]) -> ExecutionResult:
        started = time.monotonic()
        self._session.activate()
        files = _distributed(self._session, self._cached_files)
        attempt = 0
        while True:
            attempt += 1
            job = self._job = Job(self._session, self._parallelism, files, lowered)
            job.local_iteration_bytes = self._local_iteration_bytes
            job.caches = self._caches
            job.is_canceled = self._is_canceled
            job.iteration_names = iteration_names(walk(*sinks))
            try:
                values = _run(sinks, job, self._watch)
                seconds = time.monotonic() - started
                statistics: dict[str, Any] = {"seconds": seconds, "attempts": attempt}
                if job.iterations:
                    statistics["iterations"] = job.iterations
                return ExecutionResult(values, accumulators_in(job.counted, job.local_reports), statistics)
            except HeadraceError:
                raise
            except Exception as error:
                if is_lost_block(error) and attempt < MAX_RUNS:
                    self._caches.clear()
                    continue
                if not is_of_spark(error):
                    raise
                raise translated(error, self._session.log_tail()) from None
            finally:
                self._job = None
                job.close()


@contextlib.contextmanager
def interrupts_as_event() -> Iterator[threading.Event]:
    """The event that Ctrl-C sets inside. Elsewhere than in the main thread, and where the program handles it itself,
    everything stays as it is, and the event is never set.

    PySpark's lines to the JVM are plain sockets, and any thread may use one at any moment: for a call, or because an
    object that is collected there lets go of its twin in the JVM. An interrupt that is raised in the middle of an
    answer leaves the line in disorder, and py4j prints a traceback of its own. So nothing is raised while a job is
    waited for: the signal only sets an event, and the wait looks at it.
    """
    pressed = threading.Event()
    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not is_ours:
        yield pressed
        return
    signal.signal(signal.SIGINT, lambda *_: pressed.set())
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _distributed(session: Session, cached_files: Mapping[str, str]) -> dict[str, str]:
    """Hand files to all executors; their names there, by the program's names."""
    names = {}
    for name, uri in cached_files.items():
        file = f"{name}-{os.path.basename(uri.rstrip('/'))}".replace(os.sep, "_")
        local = session.directory / "cached" / file
        local.parent.mkdir(exist_ok=True)
        if not local.exists():
            _fetch(uri, local)
            session.spark.sparkContext.addFile(str(local))
        names[name] = file
    return names


def _fetch(uri: str, local: Path) -> None:
    """Copy a file to this machine."""
    fs, path = filesystem_for(uri)
    try:
        with fs.open_input(path) as source, local.open("wb") as target:
            shutil.copyfileobj(source, target)
    except (OSError, pa.ArrowException) as error:
        local.unlink(missing_ok=True)
        message = f"a cached file cannot be read: {error}"
        raise ConfigurationError(message, path=uri) from error


def _run(sinks: tuple[Node, ...], job: Job, watch: RunWatch | None) -> dict[int, Any]:
    job.context.setJobGroup(job.id, "headrace", interruptOnCancel=False)
    told = contextlib.nullcontext() if watch is None else StagesTold(job.context, job.id, watch)
    with told, ProgressLine(job.context, job.id) as line:

        def tell(text: str) -> None:
            line.doing = text

        job.tell = tell
        try:
            return results_of(sinks, lambda sink: _run_sink(sink, job))
        finally:
            with contextlib.suppress(Exception):  # Spark may have gone
                job.context.setLocalProperty("spark.jobGroup.id", None)


def _run_sink(sink: Node, job: Job) -> Any:
    job.check_canceled()
    relation = lowered(sink.inputs[0], job, job.root)
    job.tell(sink.name)
    if isinstance(sink, Collect):
        return job.collected(relation)
    if isinstance(sink, Count):
        return job.flushed(relation).df.count()
    if isinstance(sink, WriteFiles):
        return _write(sink, relation, job)
    message = f"{sink!r} is no sink"
    raise InternalError(message)


_PARTS = pa.schema([pa.field("partition", pa.int64()), pa.field("name", pa.string())])


class _Writer:
    """Writes one partition and gives the names of its parts; runs in Python processes of Spark."""

    def __init__(self, sink: WriteFiles) -> None:
        self._sink = sink

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task: Any = TaskContext.get()
        attempt = f"{task.stageId()}-{task.attemptNumber()}-{task.taskAttemptId()}"
        names = self._sink.files.write(self._sink, task.partitionId(), attempt, batches)
        yield pa.record_batch([[task.partitionId()] * len(names), names], schema=_PARTS)


def _write(sink: WriteFiles, relation: Relation, job: Job) -> list[str]:
    plain = job.flushed(relation)
    writing = replace(plain, function=_Writer(bare(sink)), schema=_PARTS)  # type: ignore[arg-type]
    layout = Layout(_PARTS)
    df = plain.df.mapInArrow(job.task(writing, layout), layout.spark_schema())
    return [row[1] for row in sorted(df.collect())]
